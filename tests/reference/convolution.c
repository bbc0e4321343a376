/* Convolution and its two gradients, as sums over kernel taps whose innermost loop runs along a row. */
#include "tests/reference/ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t reference_volume(const int64_t *extent) { return extent[0] * extent[1] * extent[2]; }

Window reference_window(const OpParams *params, const int64_t *kernel, const Tensor *in, const Tensor *out) {
  Window window = {.samples = in->shape[0],
                   .channels = in->shape[1],
                   .in = {1, 1, 1},
                   .out = {1, 1, 1},
                   .kernel = {1, 1, 1},
                   .stride = {1, 1, 1}};
  int spatial = in->rank - 2;
  for (int i = 0; i < spatial; i++) {
    int dim = 3 - spatial + i;
    window.in[dim] = in->shape[2 + i];
    window.out[dim] = out->shape[2 + i];
    window.kernel[dim] = kernel[i];
    window.stride[dim] = params->stride[i];
    window.padding[dim] = params->padding[i];
  }
  return window;
}

void reference_valid_outputs(const Window *window, int dim, int64_t k, int64_t *first, int64_t *last) {
  int64_t shift = window->padding[dim] - k; /* o * stride >= shift and o * stride < in + shift */
  int64_t stride = window->stride[dim];
  int64_t end = window->in[dim] + shift;
  *first = shift > 0 ? (shift + stride - 1) / stride : 0;
  *last = end > 0 ? (end + stride - 1) / stride : 0;
  if (*last > window->out[dim]) *last = window->out[dim];
}

/* What one tap of the kernel does to one row: `count` positions, the input `step` apart. */
typedef void (*RowFunction)(double *x, double *y, double *w, int64_t count, int64_t step);

static void row_forward(double *x, double *y, double *w, int64_t count, int64_t step) {
  double weight = *w;
  if (step == 1) { /* apart, so that the compiler sees unit strides */
    for (int64_t i = 0; i < count; i++)
      y[i] += weight * x[i];
  } else {
    for (int64_t i = 0; i < count; i++)
      y[i] += weight * x[i * step];
  }
}

static void row_data(double *x, double *y, double *w, int64_t count, int64_t step) {
  double weight = *w;
  if (step == 1) {
    for (int64_t i = 0; i < count; i++)
      x[i] += weight * y[i];
  } else {
    for (int64_t i = 0; i < count; i++)
      x[i * step] += weight * y[i];
  }
}

static void row_weights(double *x, double *y, double *w, int64_t count, int64_t step) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; i++)
    sum += y[i] * x[i * step];
  *w += sum;
}

/* All taps between one plane of x, one of y and their kernel. */
static void plane(const Window *window, double *x, double *y, double *w, RowFunction row) {
  const int64_t *in = window->in, *out = window->out, *kernel = window->kernel;
  for (int64_t kd = 0; kd < kernel[0]; kd++) {
    int64_t d0, d1;
    reference_valid_outputs(window, 0, kd, &d0, &d1);
    for (int64_t kh = 0; kh < kernel[1]; kh++) {
      int64_t h0, h1;
      reference_valid_outputs(window, 1, kh, &h0, &h1);
      for (int64_t kw = 0; kw < kernel[2]; kw++, w++) {
        int64_t w0, w1;
        reference_valid_outputs(window, 2, kw, &w0, &w1);
        int64_t column = w0 * window->stride[2] - window->padding[2] + kw;
        for (int64_t d = d0; d < d1; d++) {
          int64_t id = d * window->stride[0] - window->padding[0] + kd;
          for (int64_t h = h0; h < h1; h++) {
            int64_t ih = h * window->stride[1] - window->padding[1] + kh;
            row(x + (id * in[1] + ih) * in[2] + column, y + (d * out[1] + h) * out[2] + w0, w, w1 - w0,
                window->stride[2]);
          }
        }
      }
    }
  }
}

/* A window of 1 that moves by 1 pairs every element with its own: one long row. */
static Window flattened(Window window) {
  bool pointwise = true;
  for (int i = 0; i < 3; i++) {
    pointwise = pointwise && window.kernel[i] == 1 && window.stride[i] == 1 && window.padding[i] == 0;
  }
  if (!pointwise) return window;
  int64_t volume = reference_volume(window.in);
  for (int i = 0; i < 3; i++)
    window.in[i] = window.out[i] = i == 2 ? volume : 1;
  return window;
}

/* The sizes a convolution's loops run over. */
typedef struct Sizes {
  int64_t inputs, outputs; /* channels of a group */
  int64_t channels_in, channels_out;
  int64_t x_plane, y_plane, kernel;
} Sizes;

static Sizes sizes_of(const Window *window, const OpParams *params, const Tensor *y) {
  int64_t channels_out = y->shape[1];
  return (Sizes){.inputs = window->channels / params->groups,
                 .outputs = channels_out / params->groups,
                 .channels_in = window->channels,
                 .channels_out = channels_out,
                 .x_plane = reference_volume(window->in),
                 .y_plane = reference_volume(window->out),
                 .kernel = reference_volume(window->kernel)};
}

static void clear(double *values, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    values[i] = 0.0;
}

/* Adds a bias (input 2, if there is one) to the planes of y. */
static void add_bias(const Node *node, const Arrays *arrays) {
  const Tensor *y = node->outputs[0];
  if (node->input_count < 3 || !arrays->inputs[2]) return;
  int64_t plane = vl_tensor_elements(y) / (y->shape[0] * y->shape[1]);
  for (int64_t i = 0; i < vl_tensor_elements(y); i++)
    arrays->outputs[0][i] += arrays->inputs[2][i / plane % y->shape[1]];
}

static void conv(const Node *node, const Arrays *arrays) {
  double *x = arrays->inputs[0], *w = arrays->inputs[1], *y = arrays->outputs[0];
  Window window = flattened(
      reference_window(&node->params, node->inputs[1]->shape + 2, node->inputs[0], node->outputs[0]));
  Sizes size = sizes_of(&window, &node->params, node->outputs[0]);
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < window.samples; n++) {
    for (int64_t o = 0; o < size.channels_out; o++) {
      double *to = y + (n * size.channels_out + o) * size.y_plane;
      clear(to, size.y_plane);
      int64_t base = o / size.outputs * size.inputs;
      for (int64_t i = 0; i < size.inputs; i++) {
        plane(&window, x + (n * size.channels_in + base + i) * size.x_plane, to,
              w + (o * size.inputs + i) * size.kernel, row_forward);
      }
    }
  }
  add_bias(node, arrays);
}

static void conv_epilogue(const Node *node, const Arrays *arrays) {
  const double *residual = node->input_count > 3 ? arrays->inputs[3] : NULL;
  double *to = arrays->outputs[0], *kept = NULL;
  int64_t count = vl_tensor_elements(node->outputs[0]);
  if (residual) { /* the output may lie over it */
    kept = vl_allocate((size_t)count * sizeof *kept);
    memcpy(kept, residual, (size_t)count * sizeof *kept);
  }
  conv(node, arrays);
  for (int64_t i = 0; i < count; i++) {
    double value = to[i] + (kept ? kept[i] : 0.0);
    to[i] = node->params.relu && value <= 0.0 ? 0.0 : value;
  }
  free(kept);
}

static void conv_backward_data(const Node *node, const Arrays *arrays) {
  double *dy = arrays->inputs[0], *w = arrays->inputs[1], *dx = arrays->outputs[0];
  Window window = flattened(
      reference_window(&node->params, node->inputs[1]->shape + 2, node->outputs[0], node->inputs[0]));
  Sizes size = sizes_of(&window, &node->params, node->inputs[0]);
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < window.samples; n++) {
    for (int64_t c = 0; c < size.channels_in; c++) {
      double *to = dx + (n * size.channels_in + c) * size.x_plane;
      clear(to, size.x_plane);
      int64_t base = c / size.inputs * size.outputs;
      for (int64_t o = base; o < base + size.outputs; o++) {
        plane(&window, to, dy + (n * size.channels_out + o) * size.y_plane,
              w + (o * size.inputs + c % size.inputs) * size.kernel, row_data);
      }
    }
  }
}

static void conv_transpose(const Node *node, const Arrays *arrays) {
  conv_backward_data(node, arrays);
  add_bias(node, arrays);
}

/* x as the weight gradient reads it: itself, or made of it by batch norm and ReLU and to be freed. */
static double *read_by_weights(const Node *node, const Arrays *arrays, const Window *window) {
  if (node->input_count == 2) return arrays->inputs[0];
  const double *x = arrays->inputs[0], *mean = arrays->inputs[2], *var = arrays->inputs[3],
               *gamma = arrays->inputs[4], *beta = arrays->inputs[5];
  int64_t plane = reference_volume(window->in);
  double *normalised = vl_allocate((size_t)vl_tensor_elements(node->inputs[0]) * sizeof *normalised);
  for (int64_t i = 0; i < vl_tensor_elements(node->inputs[0]); i++) {
    int64_t c = i / plane % window->channels;
    double value = gamma[c] / sqrt(var[c] + node->params.epsilon) * (x[i] - mean[c]) + beta[c];
    normalised[i] = node->params.relu && value <= 0.0 ? 0.0 : value;
  }
  return normalised;
}

static void conv_backward_weights(const Node *node, const Arrays *arrays) {
  double *dy = arrays->inputs[1], *dw = arrays->outputs[0];
  Window window = flattened(
      reference_window(&node->params, node->outputs[0]->shape + 2, node->inputs[0], node->inputs[1]));
  Sizes size = sizes_of(&window, &node->params, node->inputs[1]);
  double *x = read_by_weights(node, arrays, &window);
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t o = 0; o < size.channels_out; o++) {
    for (int64_t i = 0; i < size.inputs; i++) {
      double *to = dw + (o * size.inputs + i) * size.kernel;
      clear(to, size.kernel);
      int64_t c = o / size.outputs * size.inputs + i;
      for (int64_t n = 0; n < window.samples; n++) {
        plane(&window, x + (n * size.channels_in + c) * size.x_plane,
              dy + (n * size.channels_out + o) * size.y_plane, to, row_weights);
      }
    }
  }
  if (x != arrays->inputs[0]) free(x);
}

const ReferenceOp reference_convolution_ops[] = {{"conv", conv},
                                                 {"conv_epilogue", conv_epilogue},
                                                 {"conv_backward_data", conv_backward_data},
                                                 {"conv_backward_weights", conv_backward_weights},
                                                 {"conv_transpose", conv_transpose},
                                                 {NULL, NULL}};
