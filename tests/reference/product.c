/* Matrix products, and the loss that ends a classifier. */
#include "tests/reference/ops.h"
#include <math.h>

static void linear(const Node *node, const Arrays *arrays) {
  const double *x = arrays->inputs[0], *w = arrays->inputs[1];
  const double *b = node->input_count > 2 ? arrays->inputs[2] : NULL;
  int64_t depth = node->inputs[1]->shape[1], columns = node->inputs[1]->shape[0];
  int64_t rows = vl_tensor_elements(node->inputs[0]) / depth;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c++) {
      double sum = b ? b[c] : 0.0;
      for (int64_t k = 0; k < depth; k++)
        sum += x[r * depth + k] * w[c * depth + k];
      arrays->outputs[0][r * columns + c] = sum;
    }
  }
}

static void matmul(const Node *node, const Arrays *arrays) {
  const Tensor *a = node->inputs[0], *y = node->outputs[0];
  const OpParams *params = &node->params;
  int64_t rows = y->shape[y->rank - 2], columns = y->shape[y->rank - 1];
  int64_t depth = a->shape[a->rank - (params->transpose_a ? 2 : 1)];
  int64_t a_row = params->transpose_a ? 1 : depth, a_step = params->transpose_a ? rows : 1;
  int64_t b_column = params->transpose_b ? depth : 1, b_step = params->transpose_b ? 1 : columns;
  int64_t products = vl_tensor_elements(y) / (rows * columns);
  const double *onto = node->input_count > 2 ? arrays->inputs[2] : NULL;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t p = 0; p < products; p++) {
    for (int64_t r = 0; r < rows; r++) {
      const double *left = arrays->inputs[0] + p * rows * depth + r * a_row;
      const double *right = arrays->inputs[1] + (node->inputs[1]->rank > 2 ? p * depth * columns : 0);
      double *to = arrays->outputs[0] + (p * rows + r) * columns;
      for (int64_t c = 0; c < columns; c++) {
        double sum = onto ? onto[(p * rows + r) * columns + c] : 0.0; /* may be the output */
        for (int64_t k = 0; k < depth; k++)
          sum += left[k * a_step] * right[c * b_column + k * b_step];
        to[c] = sum;
      }
    }
  }
}

/* Rows that a loss counts, of the whole step. */
static double counted_rows(const LaunchContext *context, const double *labels, int64_t rows) {
  if (context->counted_rows > 0) return (double)context->counted_rows;
  double counted = 0.0;
  for (int64_t r = 0; r < rows; r++)
    counted += labels[r] != (double)VL_IGNORED_LABEL;
  return counted;
}

/* The mask's element for element `index` of x: dimensions are aligned at the last, those of size 1 repeat. */
static double mask_at(const Tensor *x, const Tensor *mask, const double *values, int64_t index) {
  int64_t at = 0, stride = 1;
  for (int32_t i = 1; i <= mask->rank; i++) {
    int64_t size = mask->shape[mask->rank - i];
    at += size > 1 ? index % x->shape[x->rank - i] * stride : 0;
    stride *= size;
    index /= x->shape[x->rank - i];
  }
  return values[at];
}

static double scale_of(const Node *node) { return node->params.alpha != 0.0 ? node->params.alpha : 1.0; }

static void softmax(const Node *node, const Arrays *arrays) {
  const Tensor *x = node->inputs[0], *mask = node->input_count > 1 ? node->inputs[1] : NULL;
  int64_t width = x->shape[x->rank - 1], rows = vl_tensor_elements(x) / width;
  for (int64_t r = 0; r < rows; r++) {
    double *y = arrays->outputs[0] + r * width, top = -(double)INFINITY, sum = 0.0;
    for (int64_t i = 0; i < width; i++) {
      y[i] = scale_of(node) * arrays->inputs[0][r * width + i];
      if (mask) y[i] += mask_at(x, mask, arrays->inputs[1], r * width + i);
      top = fmax(top, y[i]);
    }
    for (int64_t i = 0; i < width; i++)
      sum += y[i] = exp(y[i] - top);
    for (int64_t i = 0; i < width; i++)
      y[i] /= sum;
  }
}

static void softmax_backward(const Node *node, const Arrays *arrays) {
  const Tensor *dy = node->inputs[0];
  int64_t width = dy->shape[dy->rank - 1], rows = vl_tensor_elements(dy) / width;
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0.0;
    for (int64_t i = r * width; i < (r + 1) * width; i++)
      sum += arrays->inputs[0][i] * arrays->inputs[1][i];
    for (int64_t i = r * width; i < (r + 1) * width; i++)
      arrays->outputs[0][i] = scale_of(node) * arrays->inputs[1][i] * (arrays->inputs[0][i] - sum);
  }
}

static void softmax_cross_entropy(const Node *node, const Arrays *arrays) {
  int64_t rows = node->inputs[0]->shape[0], classes = node->inputs[0]->shape[1];
  double loss = 0.0;
  for (int64_t r = 0; r < rows; r++) {
    const double *logits = arrays->inputs[0] + r * classes;
    double top = logits[0], sum = 0.0;
    for (int64_t c = 1; c < classes; c++)
      top = fmax(top, logits[c]);
    for (int64_t c = 0; c < classes; c++)
      sum += exp(logits[c] - top);
    double shift = top + log(sum);
    double label = arrays->inputs[1][r];
    if (label != (double)VL_IGNORED_LABEL) loss -= logits[(int64_t)label] - shift;
    if (!arrays->outputs[1]) continue;
    for (int64_t c = 0; c < classes; c++)
      arrays->outputs[1][r * classes + c] = logits[c] - shift;
  }
  arrays->outputs[0][0] = loss / counted_rows(arrays->context, arrays->inputs[1], rows);
}

static void softmax_cross_entropy_backward(const Node *node, const Arrays *arrays) {
  int64_t rows = node->inputs[1]->shape[0], classes = node->inputs[1]->shape[1];
  double weight = arrays->inputs[0][0] / counted_rows(arrays->context, arrays->inputs[2], rows);
  for (int64_t r = 0; r < rows; r++) {
    int64_t label = (int64_t)arrays->inputs[2][r];
    for (int64_t c = 0; c < classes; c++) {
      double probability = exp(arrays->inputs[1][r * classes + c]);
      arrays->outputs[0][r * classes + c] =
          label == VL_IGNORED_LABEL ? 0.0 : (probability - (c == label ? 1.0 : 0.0)) * weight;
    }
  }
}

static void correct_count(const Node *node, const Arrays *arrays) {
  int64_t rows = node->inputs[0]->shape[0], classes = node->inputs[0]->shape[1], correct = 0;
  for (int64_t r = 0; r < rows; r++) {
    const double *logits = arrays->inputs[0] + r * classes;
    int64_t best = 0;
    for (int64_t c = 1; c < classes; c++) {
      if (logits[c] > logits[best]) best = c;
    }
    if (best == (int64_t)arrays->inputs[1][r]) correct++;
  }
  arrays->outputs[0][0] = (double)correct;
}

const ReferenceOp reference_product_ops[] = {
    {"linear", linear},
    {"matmul", matmul},
    {"softmax", softmax},
    {"softmax_backward", softmax_backward},
    {"softmax_cross_entropy", softmax_cross_entropy},
    {"softmax_cross_entropy_backward", softmax_cross_entropy_backward},
    {"correct_count", correct_count},
    {NULL, NULL}};
