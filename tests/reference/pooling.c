/* Pooling over windows and over the whole of space. */
#include "tests/reference/ops.h"
#include <math.h>

static Window pool_window(const Node *node, const Tensor *in, const Tensor *out) {
  return reference_window(&node->params, node->params.kernel, in, out);
}

/* The place in the input's plane that a tap of an output's window falls on; -1 in the padding. */
static int64_t place_of(const Window *window, int64_t output, int64_t tap) {
  int64_t at[3];
  for (int i = 2; i >= 0; i--) {
    at[i] = output % window->out[i] * window->stride[i] - window->padding[i] + tap % window->kernel[i];
    if (at[i] < 0 || at[i] >= window->in[i]) return -1;
    output /= window->out[i];
    tap /= window->kernel[i];
  }
  return (at[0] * window->in[1] + at[1]) * window->in[2] + at[2];
}

static void max_pool(const Node *node, const Arrays *arrays) {
  Window window = pool_window(node, node->inputs[0], node->outputs[0]);
  int64_t in = reference_volume(window.in), out = reference_volume(window.out);
  bool in_window = node->outputs[1] && node->outputs[1]->dtype == DTYPE_U8;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < window.samples * window.channels; p++) {
    const double *x = arrays->inputs[0] + p * in;
    for (int64_t o = 0; o < out; o++) {
      double best = -INFINITY;
      int64_t index = -1;
      for (int64_t tap = 0; tap < reference_volume(window.kernel); tap++) {
        int64_t at = place_of(&window, o, tap);
        if (at < 0 || (index >= 0 && !(x[at] > best) && !isnan(x[at]))) continue;
        best = x[at];
        index = in_window ? tap : at;
      }
      arrays->outputs[0][p * out + o] = best;
      if (arrays->outputs[1]) arrays->outputs[1][p * out + o] = (double)index;
    }
  }
}

static void max_pool_backward(const Node *node, const Arrays *arrays) {
  Window window = pool_window(node, node->outputs[0], node->inputs[0]);
  int64_t in = reference_volume(window.in), out = reference_volume(window.out);
  bool in_window = node->inputs[1]->dtype == DTYPE_U8;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < window.samples * window.channels; p++) {
    double *dx = arrays->outputs[0] + p * in;
    for (int64_t i = 0; i < in; i++)
      dx[i] = 0.0;
    for (int64_t o = 0; o < out; o++) {
      int64_t index = (int64_t)arrays->inputs[1][p * out + o];
      dx[in_window ? place_of(&window, o, index) : index] += arrays->inputs[0][p * out + o];
    }
  }
}

static void avg_pool(const Node *node, const Arrays *arrays) {
  Window window = pool_window(node, node->inputs[0], node->outputs[0]);
  int64_t in = reference_volume(window.in), out = reference_volume(window.out);
  int64_t taps = reference_volume(window.kernel);
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < window.samples * window.channels; p++) {
    for (int64_t o = 0; o < out; o++) {
      double sum = 0.0;
      for (int64_t tap = 0; tap < taps; tap++) {
        int64_t at = place_of(&window, o, tap);
        if (at >= 0) sum += arrays->inputs[0][p * in + at];
      }
      arrays->outputs[0][p * out + o] = sum / (double)taps;
    }
  }
}

static void avg_pool_backward(const Node *node, const Arrays *arrays) {
  Window window = pool_window(node, node->outputs[0], node->inputs[0]);
  int64_t in = reference_volume(window.in), out = reference_volume(window.out);
  int64_t taps = reference_volume(window.kernel);
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < window.samples * window.channels; p++) {
    double *dx = arrays->outputs[0] + p * in;
    for (int64_t i = 0; i < in; i++)
      dx[i] = 0.0;
    for (int64_t o = 0; o < out; o++) {
      for (int64_t tap = 0; tap < taps; tap++) {
        int64_t at = place_of(&window, o, tap);
        if (at >= 0) dx[at] += arrays->inputs[0][p * out + o] / (double)taps;
      }
    }
  }
}

static void global_avg_pool(const Node *node, const Arrays *arrays) {
  int64_t planes = node->inputs[0]->shape[0] * node->inputs[0]->shape[1];
  int64_t space = vl_tensor_elements(node->inputs[0]) / planes;
  for (int64_t p = 0; p < planes; p++) {
    double sum = 0.0;
    for (int64_t i = 0; i < space; i++)
      sum += arrays->inputs[0][p * space + i];
    arrays->outputs[0][p] = sum / (double)space;
  }
}

static void global_avg_pool_backward(const Node *node, const Arrays *arrays) {
  int64_t planes = node->outputs[0]->shape[0] * node->outputs[0]->shape[1];
  int64_t space = vl_tensor_elements(node->outputs[0]) / planes;
  for (int64_t p = 0; p < planes; p++) {
    for (int64_t i = 0; i < space; i++) {
      arrays->outputs[0][p * space + i] = arrays->inputs[0][p] / (double)space;
    }
  }
}

const ReferenceOp reference_pooling_ops[] = {{"max_pool", max_pool},
                                             {"max_pool_backward", max_pool_backward},
                                             {"avg_pool", avg_pool},
                                             {"avg_pool_backward", avg_pool_backward},
                                             {"global_avg_pool", global_avg_pool},
                                             {"global_avg_pool_backward", global_avg_pool_backward},
                                             {NULL, NULL}};
