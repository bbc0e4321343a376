/* How far a kernel may be from the reference; README.md derives the form, here are the numbers of each op. */
#include "tests/kernels/bound.h"
#include "tests/kernels/compare.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double f32_roundoff = 0x1p-24;
static const double f16_half_unit = 0x1p-25;  /* of its subnormals; those of the others are out of reach */
static const double function_roundings = 8.0; /* erf, exp, log, and the factors around them */

double roundoff_of(DType dtype) {
  switch (dtype) {
  case DTYPE_F32: return 0x1p-24;
  case DTYPE_BF16: return 0x1p-8;
  case DTYPE_F16: return 0x1p-11;
  case DTYPE_F64: return 0x1p-53;
  default: return 0.0; /* whole numbers are exact */
  }
}

double sum_roundings(int64_t terms) { return fmin((double)terms, 8.0 * sqrt((double)terms)); }

static int64_t product_of(const int64_t *sizes, int64_t first, int64_t last) {
  int64_t product = 1;
  for (int64_t i = first; i < last; i++)
    product *= sizes[i];
  return product;
}

static int64_t window_taps(const Node *node) {
  int64_t taps = 1;
  for (int i = 0; i < 3; i++)
    taps *= node->params.kernel[i] > 0 ? node->params.kernel[i] : 1;
  return taps;
}

/* ---- Terms that one result is the sum of ---------------------------------------------------------------- */

/* A bias is one more. */
static int64_t conv_terms(const Node *node) {
  const Tensor *w = node->inputs[1];
  return (node->input_count > 2) + product_of(w->shape, 1, w->rank);
}

/* So is a residual. */
static int64_t conv_epilogue_terms(const Node *node) { return conv_terms(node) + (node->input_count > 3); }

static int64_t conv_data_terms(const Node *node) {
  const Tensor *w = node->inputs[1];
  return (node->input_count > 2) + w->shape[0] / node->params.groups * product_of(w->shape, 2, w->rank);
}

static int64_t conv_weight_terms(const Node *node) {
  const Tensor *dy = node->inputs[1];
  return dy->shape[0] * product_of(dy->shape, 2, dy->rank);
}

static int64_t per_channel(const Node *node) {
  const Tensor *x = node->inputs[0];
  return vl_tensor_elements(x) / x->shape[1];
}

static int64_t linear_terms(const Node *node) { return node->inputs[1]->shape[1] + 1; }

/* What it is added onto is one more. */
static int64_t matmul_terms(const Node *node) {
  const Tensor *a = node->inputs[0];
  return (node->input_count > 2) + a->shape[a->rank - (node->params.transpose_a ? 2 : 1)];
}

/* As many inputs as there are go into each output. */
static int64_t reduction_terms(const Node *node) {
  return vl_tensor_elements(node->inputs[0]) / vl_tensor_elements(node->outputs[0]);
}

/* At most every index names the same row; what it is added onto is one more. */
static int64_t index_terms(const Node *node) { return vl_tensor_elements(node->inputs[1]) + 1; }

static int64_t no_terms(const Node *node) {
  (void)node;
  return 0;
}

/* Ops that are linear in each input: M comes from running them on absolute values. `others` is r. */
typedef struct LinearOp {
  const char *name;
  int64_t (*terms)(const Node *node);
  double others;
} LinearOp;

static const LinearOp linear_ops[] = {
    {"conv", conv_terms, 1},
    {"conv_epilogue", conv_epilogue_terms, 1},
    {"conv_backward_data", conv_data_terms, 1},
    {"conv_transpose", conv_data_terms, 1},
    {"conv_backward_weights", conv_weight_terms, 1},
    {"linear", linear_terms, 1},
    {"matmul", matmul_terms, 1},
    {"sum", reduction_terms, 0},
    {"avg_pool", window_taps, 2},
    {"avg_pool_backward", window_taps, 2},
    {"max_pool_backward", window_taps, 0},
    {"global_avg_pool", reduction_terms, 2},
    {"global_avg_pool_backward", no_terms, 2},
    {"batch_norm_apply", no_terms, 8}, /* epsilon, root, quotient, difference, products, two sums */
    {"batch_norm_update", no_terms, 6},
    {"add", no_terms, 1},
    {"mul", no_terms, 1},
    {"scale", no_terms, 2},
    {"magnitude", no_terms, 2},
    {"magnitude_backward", no_terms, 0},
    {"dropout", no_terms, 3},
    {"sgd", no_terms, 7},
    {"embedding_backward", index_terms, 0},
    {"gather_tokens_backward", index_terms, 0},
};

static const char *const exact_ops[] = {"embedding", "gather_tokens", "relu",         "relu_backward",
                                        "max_pool",  "broadcast",     "reshape",      "transpose",
                                        "slice",     "pad",           "concat",       "cast",
                                        "copy",      "fill",          "correct_count"};

/* ---- The form shared by all ------------------------------------------------------------------------------ */

double rounded_bound(double error, double value, DType dtype) {
  double least = dtype == DTYPE_F16 ? f16_half_unit : 0.0;
  return error + fmax(roundoff_of(dtype) * (fabs(value) + error), least);
}

static double bound_of(double roundings, double magnitude, double value, DType dtype) {
  return rounded_bound(roundings * f32_roundoff * magnitude, value, dtype);
}

static void exact_bounds(const Node *node, double *const *outputs, double *const *bounds) {
  for (int32_t k = 0; k < node->output_count; k++) {
    if (!node->outputs[k]) continue;
    DType dtype = node->outputs[k]->dtype;
    for (int64_t i = 0; i < vl_tensor_elements(node->outputs[k]); i++) {
      bounds[k][i] = fabs(round_to(dtype, outputs[k][i]) - outputs[k][i]); /* 0 for a value the dtype has */
    }
  }
}

static bool normalises(const Node *node) {
  return strcmp(node->op->name, "conv_backward_weights") == 0 && node->input_count > 2;
}

/* What is behind x and weights. */
static bool adds_bias(const Node *node) {
  bool may = strcmp(node->op->name, "conv") == 0 || strcmp(node->op->name, "conv_transpose") == 0 ||
             strcmp(node->op->name, "conv_epilogue") == 0;
  return may && node->input_count > 2;
}

/* A weight gradient that normalises x reads what batch_norm_apply would make, rounded to x's dtype. The bias
 * of a convolution may be rounded to y's dtype, or added to what was rounded already. */
static double other_roundings(const LinearOp *op, const Node *node) {
  if (adds_bias(node)) return op->others + 1.001 * roundoff_of(node->outputs[0]->dtype) / f32_roundoff;
  if (!normalises(node)) return op->others;
  return op->others + 8.0 + 1.001 * roundoff_of(node->inputs[0]->dtype) / f32_roundoff;
}

/* The same node with differences made sums: what it gives on absolute values is M. */
static Node without_differences(const Node *node) {
  Node copy = *node;
  copy.params.relu = 0;
  copy.params.alpha = fabs(node->params.alpha);
  copy.params.learning_rate = -node->params.learning_rate; /* w - rate v */
  return copy;
}

/* ---- 3x3 convolutions that may be computed by F(2x2, 3x3) ------------------------------------------------ */

/* README.md derives both. */
static const double window_factors[3][3] = {{1, 1, 2}, {1, 1, 1}, {2, 1, 1}};
enum { TRANSFORM_ROUNDINGS = 10 };

/* The weights, or their gradient, of a convolution in f32 that keeps its size under a window of 3x3. */
static const Tensor *window_of_3x3(const Node *node) {
  bool gradient = strcmp(node->op->name, "conv_backward_weights") == 0;
  if (!gradient && strncmp(node->op->name, "conv", 4) != 0) return NULL;
  if (strcmp(node->op->name, "conv_transpose") == 0) return NULL;
  const Tensor *window = gradient ? node->outputs[0] : node->inputs[1];
  if (!window || node->inputs[0]->dtype != DTYPE_F32 || node->params.groups > 1 || window->rank < 4)
    return NULL;
  for (int32_t i = window->rank - 2; i < window->rank; i++)
    if (window->shape[i] != 3 || node->params.stride[i - 2] != 1 || node->params.padding[i - 2] != 1)
      return NULL;
  return window;
}

/* T w T^T of every window, T the factors. */
static void widen_windows(const Tensor *window, double *values) {
  for (int64_t w = 0; w < vl_tensor_elements(window); w += 9) {
    double wide[3][3] = {{0}};
    for (int32_t e = 0; e < 81; e++)
      wide[e / 27][e / 9 % 3] += window_factors[e / 27][e / 3 % 3] * window_factors[e / 9 % 3][e % 3] *
                                 values[w + e / 3 % 3 * 3 + e % 3];
    memcpy(values + w, wide, sizeof wide);
  }
}

/* A bias may be rounded to y's dtype before `linear` adds it. */
static void add_bias_rounding(const Node *node, const double *bias, double *bounds) {
  DType dtype = node->outputs[0]->dtype;
  int64_t channels = vl_tensor_elements(node->inputs[2]);
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++)
    bounds[i] += rounded_bound(0.0, bias[i % channels], dtype);
}

/* A weight gradient in f32 may be rounded to the type of what it is made of first. */
static void add_gradient_rounding(const Node *node, const double *dw, double *bounds) {
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++)
    bounds[i] = rounded_bound(bounds[i], dw[i], node->inputs[0]->dtype);
}

static Status linear_bounds(const LinearOp *op, const Node *node, double *const *inputs,
                            double *const *outputs, double *const *bounds, const LaunchContext *context) {
  Node magnitude = without_differences(node);
  LaunchContext plain = *context;
  plain.learning_rate = 0.0;
  double *absolute[VL_MAX_INPUTS] = {NULL};
  /* x - mean becomes |x| + |mean| */
  int32_t negated = strcmp(node->op->name, "batch_norm_apply") == 0 ? 1 : normalises(node) ? 2 : -1;
  bool keeps_index = strcmp(node->op->name, "max_pool_backward") == 0;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!inputs[i]) continue;
    int64_t count = vl_tensor_elements(node->inputs[i]);
    absolute[i] = vl_allocate((size_t)count * sizeof(double));
    double sign = i == negated ? -1.0 : 1.0;
    for (int64_t e = 0; e < count; e++) {
      absolute[i][e] = keeps_index && i == 1 ? inputs[i][e] : sign * fabs(inputs[i][e]);
    }
  }
  const Tensor *window = window_of_3x3(node);
  if (window && window == node->inputs[1]) widen_windows(window, absolute[1]);
  Status status = vl_reference_compute(&magnitude, absolute, bounds, &plain);
  if (window && window == node->outputs[0]) widen_windows(window, bounds[0]);
  for (int32_t i = 0; i < node->input_count; i++)
    free(absolute[i]);
  double roundings =
      sum_roundings(op->terms(node)) + other_roundings(op, node) + (window ? TRANSFORM_ROUNDINGS : 0);
  for (int32_t k = 0; k < node->output_count; k++) {
    if (!node->outputs[k]) continue;
    DType dtype = node->outputs[k]->dtype;
    for (int64_t i = 0; i < vl_tensor_elements(node->outputs[k]); i++) {
      bounds[k][i] = vl_dtype_is_float(dtype) ? bound_of(roundings, bounds[k][i], outputs[k][i], dtype) : 0.0;
    }
  }
  bool linear_bias = strcmp(node->op->name, "linear") == 0 && node->input_count > 2 && inputs[2];
  if (linear_bias && node->inputs[2]->dtype != node->outputs[0]->dtype)
    add_bias_rounding(node, inputs[2], bounds[0]);
  bool weights = strcmp(node->op->name, "conv_backward_weights") == 0;
  if (weights && node->inputs[0]->dtype != node->outputs[0]->dtype)
    add_gradient_rounding(node, outputs[0], bounds[0]);
  return status;
}

/* ---- Ops with formulas of their own ------------------------------------------------------------------------ */

static void stats_bounds(const Node *node, double *const *inputs, double *const *outputs,
                         double *const *bounds) {
  const Tensor *x = node->inputs[0];
  int64_t channels = x->shape[1], plane = product_of(x->shape, 2, x->rank), count = per_channel(node);
  for (int64_t c = 0; c < channels; c++) {
    double sum = 0.0, squares = 0.0;
    for (int64_t n = 0; n < x->shape[0]; n++) {
      for (int64_t i = 0; i < plane; i++) {
        double value = fabs(inputs[0][(n * channels + c) * plane + i]);
        sum += value / (double)count;
        squares += value * value / (double)count; /* a one-pass variance subtracts from this */
      }
    }
    double roundings = sum_roundings(count) + 4.0;
    if (bounds[0]) bounds[0][c] = bound_of(roundings, sum, outputs[0][c], node->outputs[0]->dtype);
    if (bounds[1]) bounds[1][c] = bound_of(roundings, squares, outputs[1][c], node->outputs[1]->dtype);
  }
}

static void gelu_bounds(const Node *node, double *const *inputs, double *const *outputs,
                        double *const *bounds) {
  bool backward = node->input_count == 2;
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++) {
    double x = fabs(inputs[backward ? 1 : 0][i]);
    double magnitude =
        backward ? fabs(inputs[0][i]) * (1.0 + x) : x; /* Phi is within 1, the density below 1 */
    bounds[0][i] = bound_of(function_roundings, magnitude, outputs[0][i], node->outputs[0]->dtype);
  }
}

/* The bias's gradient sums what is made before it is rounded. */
static void gelu_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                 double *const *bounds) {
  gelu_bounds(node, inputs, outputs, bounds);
  if (node->output_count < 2) return;
  int64_t width = node->outputs[1]->shape[0], rows = vl_tensor_elements(node->outputs[0]) / width;
  for (int64_t c = 0; c < width; c++) {
    double magnitude = 0.0;
    for (int64_t i = c; i < rows * width; i += width)
      magnitude += fabs(inputs[0][i]) * (1.0 + fabs(inputs[1][i]));
    bounds[1][c] =
        bound_of(function_roundings + sum_roundings(rows), magnitude, outputs[1][c], node->outputs[1]->dtype);
  }
}

static bool row_counts(const double *labels, int64_t row) { return labels[row] != (double)VL_IGNORED_LABEL; }

static double counted_rows(const double *labels, int64_t rows) {
  double counted = 0.0;
  for (int64_t r = 0; r < rows; r++)
    counted += row_counts(labels, r);
  return counted;
}

/* log sum exp: the sum's relative error is the logarithm's absolute one. */
static void loss_bounds(const Node *node, double *const *inputs, double *const *outputs,
                        double *const *bounds) {
  int64_t rows = node->inputs[0]->shape[0], classes = node->inputs[0]->shape[1];
  double roundings = sum_roundings(classes) + function_roundings, mean = 0.0;
  double counted = counted_rows(inputs[1], rows);
  for (int64_t r = 0; r < rows; r++) {
    double top = 0.0;
    for (int64_t c = 0; c < classes; c++)
      top = fmax(top, fabs(inputs[0][r * classes + c]));
    double magnitude = 1.0 + 2.0 * top + log((double)classes);
    if (row_counts(inputs[1], r)) mean += magnitude / counted;
    for (int64_t c = 0; bounds[1] && c < classes; c++) {
      int64_t i = r * classes + c;
      bounds[1][i] = bound_of(roundings, magnitude, outputs[1][i], node->outputs[1]->dtype);
    }
  }
  bounds[0][0] = bound_of(roundings + sum_roundings(rows), mean, outputs[0][0], node->outputs[0]->dtype);
  if (counted == 0.0) bounds[0][0] = 0.0; /* NaN, and nothing else */
}

static void loss_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                 double *const *bounds) {
  int64_t rows = node->inputs[1]->shape[0], classes = node->inputs[1]->shape[1];
  for (int64_t i = 0; i < rows * classes; i++) {
    if (!row_counts(inputs[2], i / classes)) { /* exactly 0 */
      bounds[0][i] = 0.0;
      continue;
    }
    double log_p = inputs[1][i]; /* its exponential multiplies a relative error by |log_p| */
    double magnitude =
        fabs(inputs[0][0]) / counted_rows(inputs[2], rows) *
        (exp(log_p) * (1.0 + fabs(log_p)) + (i % classes == (int64_t)inputs[2][i / classes] ? 1.0 : 0.0));
    bounds[0][i] = bound_of(function_roundings, magnitude, outputs[0][i], node->outputs[0]->dtype);
  }
}

/* What one element of batch_norm_backward brings to the sums of its channel. */
typedef struct NormElement {
  double normal;    /* |x - mean| / deviation with differences made sums */
  double gradient;  /* |dy|, or |dy| + |dy2| */
  double undecided; /* the same where the sign of the forward result is within its bound, else 0 */
} NormElement;

static NormElement norm_element(const Node *node, double *const *inputs, int64_t c, int64_t i) {
  double deviation = 1.0 / sqrt(inputs[3][c] + node->params.epsilon), gamma = inputs[4][c];
  double *beta = node->input_count > 5 ? inputs[5] : NULL, *y = node->input_count > 6 ? inputs[6] : NULL,
         *dy2 = node->input_count > 7 ? inputs[7] : NULL;
  double spread = (fabs(inputs[1][i]) + fabs(inputs[2][c])) * deviation;
  NormElement element = {.normal = spread, .gradient = fabs(inputs[0][i])};
  if (dy2) element.gradient += fabs(dy2[i]);
  if (node->params.relu && !y && beta) {
    double value = gamma * (inputs[1][i] - inputs[2][c]) * deviation + beta[c];
    double bound = bound_of(8.0, fabs(gamma) * spread + fabs(beta[c]), value, DTYPE_F32);
    if (fabs(value) <= bound) element.undecided = element.gradient;
  }
  return element;
}

static void norm_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                 double *const *bounds) {
  const Tensor *x = node->inputs[1];
  int64_t channels = x->shape[1], plane = product_of(x->shape, 2, x->rank);
  double count = (double)(x->shape[0] * plane), own = node->input_count > 7 ? 9.0 : 8.0;
  double roundings = sum_roundings(x->shape[0] * plane) + own; /* the sum of two gradients is one more */
  double *residual = node->output_count > 3 ? bounds[3] : NULL;
  for (int64_t c = 0; c < channels; c++) {
    double scale = fabs(inputs[4][c]) / sqrt(inputs[3][c] + node->params.epsilon);
    double sum = 0.0, product = 0.0, open_sum = 0.0, open_product = 0.0;
    for (int64_t p = 0; p < x->shape[0] * plane; p++) {
      NormElement element = norm_element(node, inputs, c, (p / plane * channels + c) * plane + p % plane);
      sum += element.gradient;
      product += element.gradient * element.normal;
      open_sum += element.undecided;
      open_product += element.undecided * element.normal;
    }
    if (bounds[1]) bounds[1][c] = bound_of(roundings, product, outputs[1][c], DTYPE_F32) + open_product;
    if (bounds[2]) bounds[2][c] = bound_of(roundings, sum, outputs[2][c], DTYPE_F32) + open_sum;
    for (int64_t p = 0; p < x->shape[0] * plane; p++) {
      int64_t i = (p / plane * channels + c) * plane + p % plane;
      NormElement element = norm_element(node, inputs, c, i);
      double sums = (sum + element.normal * product) / count;
      double open = element.undecided + (open_sum + element.normal * open_product) / count;
      if (residual) {
        residual[i] = element.undecided +
                      bound_of(own - 8.0, fabs(outputs[3][i]), outputs[3][i], node->outputs[3]->dtype);
      }
      if (!bounds[0]) continue;
      /* The sums' roundings weigh only what the sums contribute. */
      double magnitude = own / roundings * element.gradient + sums;
      bounds[0][i] =
          bound_of(roundings, scale * magnitude, outputs[0][i], node->outputs[0]->dtype) + scale * open;
    }
  }
}

/* In double, where a square of an f32 is exact. */
static void square_sum_bounds(const Node *node, double *const *inputs, double *const *outputs,
                              double *const *bounds) {
  (void)inputs;
  double terms = sum_roundings(vl_tensor_elements(node->inputs[0]) + 1);
  bounds[0][0] = terms * roundoff_of(DTYPE_F64) * outputs[0][0];
}

/* A few roundings to double, then one to f32; counters are exact. */
static void factor_bounds(const Node *node, double *const *inputs, double *const *outputs,
                          double *const *bounds) {
  (void)inputs;
  for (int32_t k = 0; k < 3 && k < node->output_count; k++)
    bounds[k][0] =
        rounded_bound(8.0 * roundoff_of(DTYPE_F64) * fabs(outputs[k][0]), outputs[k][0], DTYPE_F32);
  for (int32_t i = 0; node->output_count > 3 && i < SCALER_COUNTERS; i++)
    bounds[3][i] = 0.0;
}

/* Factors are rounded once each (`own`: the gradient's, which v has squared), and everything under the root
 * is positive. */
static void adamw_bounds(const Node *node, double *const *inputs, double *const *outputs,
                         double *const *bounds, const LaunchContext *context) {
  const OpParams *params = &node->params;
  double rate = context->learning_rate > 0.0 ? context->learning_rate : params->learning_rate;
  double steps = node->input_count > 5 ? inputs[5][SCALER_STEPS] : (double)context->step + 1.0;
  double factor = node->input_count > 4 ? fabs(inputs[4][0]) : 1.0, own = node->input_count > 4 ? 1.0 : 0.0;
  double step = rate / (1.0 - pow(params->beta1, steps));
  double correction = sqrt(1.0 - pow(params->beta2, steps));
  DType dtype = node->inputs[0]->dtype;
  for (int64_t i = 0; i < vl_tensor_elements(node->inputs[0]); i++) {
    double mean = outputs[1][i], square = outputs[2][i];
    double terms =
        fabs(inputs[2][i]) + (1.0 - params->beta1) * (factor * fabs(inputs[1][i]) + fabs(inputs[2][i]));
    double root = sqrt(square) / correction + params->epsilon;
    /* w: factor, product, sum. The step: four of m, seven of the root (half of v's four, root, correction,
     * quotient, epsilon, sum), factor, product, quotient, sum. */
    double weight = 3.0 * fabs(inputs[0][i] * (1.0 - rate * params->weight_decay)) +
                    step / root * ((4.0 + own) * terms + (11.0 + own) * fabs(mean));
    bounds[0][i] = bound_of(1.0, weight, outputs[0][i], dtype);
    bounds[1][i] = bound_of(4.0 + own, terms, mean, dtype);
    bounds[2][i] = bound_of(4.0 + 2.0 * own, square, square, dtype);
  }
}

/* What a row's statistics may be off by; README.md derives it. */
typedef struct RowErrors {
  double mean;     /* absolute */
  double relative; /* of rstd */
} RowErrors;

static RowErrors row_errors(const double *x, int64_t width, double rstd) {
  double roundings = sum_roundings(width), magnitude = 0.0;
  for (int64_t i = 0; i < width; i++)
    magnitude += fabs(x[i]) / (double)width;
  RowErrors errors = {.mean = (roundings + 2.0) * f32_roundoff * magnitude};
  /* Roundings of the variance weigh what it has in var + epsilon, at most all of it. */
  errors.relative = (roundings + 6.0) * f32_roundoff + errors.mean * errors.mean * rstd * rstd;
  return errors;
}

static void layer_norm_bounds(const Node *node, double *const *inputs, double *const *outputs,
                              double *const *bounds) {
  const Tensor *x = node->inputs[0];
  int64_t width = x->shape[x->rank - 1], rows = vl_tensor_elements(x) / width;
  for (int64_t r = 0; r < rows; r++) {
    double mean = outputs[1][r], rstd = outputs[2][r];
    RowErrors errors = row_errors(inputs[0] + r * width, width, rstd);
    bounds[1][r] = rounded_bound(errors.mean, mean, node->outputs[1]->dtype);
    bounds[2][r] = rounded_bound(errors.relative * rstd, rstd, node->outputs[2]->dtype);
    for (int64_t i = r * width; i < (r + 1) * width; i++) {
      double gain = fabs(inputs[1][i % width]) * rstd, difference = fabs(inputs[0][i] - mean);
      double error = gain * (errors.mean + difference * (errors.relative + 4.0 * f32_roundoff)) +
                     f32_roundoff * (fabs(inputs[2][i % width]) + gain * difference);
      bounds[0][i] = rounded_bound(error, outputs[0][i], x->dtype);
    }
  }
}

/* The statistics are given, so that a difference has one rounding. */
static void layer_norm_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                       double *const *bounds) {
  const double own = 8.0;
  const Tensor *x = node->inputs[1];
  int64_t width = x->shape[x->rank - 1], rows = vl_tensor_elements(x) / width;
  double *dgamma = vl_allocate((size_t)width * sizeof *dgamma);
  double *dbeta = vl_allocate((size_t)width * sizeof *dbeta);
  for (int64_t r = 0; r < rows; r++) {
    double mean = inputs[2][r], rstd = fabs(inputs[3][r]), sum = 0.0, product = 0.0;
    for (int64_t i = 0; i < width; i++) {
      double dy = fabs(inputs[0][r * width + i]), g = dy * fabs(inputs[4][i]) / (double)width;
      double normal = fabs(inputs[1][r * width + i] - mean) * rstd;
      dgamma[i] += dy * normal;
      dbeta[i] += dy;
      sum += g;
      product += g * normal;
    }
    double of_sums = sum_roundings(width) + own;
    for (int64_t i = 0; i < width; i++) {
      int64_t at = r * width + i;
      double normal = fabs(inputs[1][at] - mean) * rstd, g = fabs(inputs[0][at] * inputs[4][i]);
      double terms = own * g + of_sums * (sum + normal * product);
      bounds[0][at] = bound_of(rstd, terms, outputs[0][at], x->dtype);
    }
  }
  for (int64_t i = 0; i < width; i++) {
    bounds[1][i] = bound_of(sum_roundings(rows) + own, dgamma[i], outputs[1][i], node->outputs[1]->dtype);
    bounds[2][i] = bound_of(sum_roundings(rows), dbeta[i], outputs[2][i], node->outputs[2]->dtype);
  }
  free(dgamma);
  free(dbeta);
}

/* A sum off by `error` at each place, `mean_error` on average: a difference is off by both, the variance by
 * twice the mean of differences times that and its square, rstd relatively by half as much. */
static void residual_norm_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                 double *const *bounds) {
  const Tensor *sum = node->outputs[3];
  int64_t width = sum->shape[sum->rank - 1], rows = vl_tensor_elements(sum) / width;
  double kept = 1.0 / (1.0 - node->params.rate);
  double *of_norm[] = {outputs[3], inputs[2], inputs[3]};
  Node norm = *node;
  norm.inputs[0] = node->outputs[3];
  layer_norm_bounds(&norm, of_norm, outputs, bounds);
  for (int64_t r = 0; r < rows; r++) {
    double mean = outputs[1][r], rstd = outputs[2][r], mean_error = 0.0, relative = 0.0;
    for (int64_t i = r * width; i < (r + 1) * width; i++) {
      double magnitude = fabs(inputs[1][i]) + kept * fabs(inputs[0][i]);
      bounds[3][i] = bound_of(4.0, magnitude, outputs[3][i], sum->dtype);
      mean_error += bounds[3][i] / (double)width;
    }
    for (int64_t i = r * width; i < (r + 1) * width; i++) {
      double error = bounds[3][i] + mean_error;
      relative += error * (fabs(outputs[3][i] - mean) + error) * rstd * rstd / (double)width;
    }
    bounds[1][r] += mean_error;
    bounds[2][r] += relative * rstd;
    for (int64_t i = r * width; i < (r + 1) * width; i++) {
      double gain = fabs(inputs[2][i % width]) * rstd, error = bounds[3][i] + mean_error;
      bounds[0][i] += (1.0 + roundoff_of(sum->dtype)) * (1.0 + relative) * gain *
                      (error + relative * fabs(outputs[3][i] - mean));
    }
  }
}

/* Dropout of what may be off already: its factor, rounded, and the product. */
static void residual_norm_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                          double *const *bounds) {
  double kept = 1.0 / (1.0 - node->params.rate);
  layer_norm_backward_bounds(node, inputs, outputs, bounds);
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[3]); i++) {
    double error = kept * bounds[0][i], magnitude = fabs(outputs[3][i]) + error;
    bounds[3][i] =
        rounded_bound(error + 3.0 * f32_roundoff * magnitude, outputs[3][i], node->outputs[3]->dtype);
  }
}

static void tanh_bounds(const Node *node, double *const *inputs, double *const *outputs,
                        double *const *bounds) {
  bool backward = node->input_count == 2;
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++) {
    double magnitude =
        backward ? fabs(inputs[0][i]) * (1.0 + inputs[1][i] * inputs[1][i]) : fabs(outputs[0][i]);
    bounds[0][i] =
        bound_of(backward ? 3.0 : function_roundings, magnitude, outputs[0][i], node->outputs[0]->dtype);
  }
}

/* The root's argument is a sum: what it cancels grows. */
static void rsqrt_bounds(const Node *node, double *const *inputs, double *const *outputs,
                         double *const *bounds) {
  bool backward = node->input_count == 2;
  double epsilon = node->params.epsilon;
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++) {
    double x = inputs[0][i], grown = backward ? 1.0 : (fabs(x) + epsilon) / (x + epsilon);
    double roundings = backward ? 4.0 : 2.0 + 0.5 * 2.0 * grown; /* half of epsilon's own and the sum's */
    bounds[0][i] = bound_of(roundings, fabs(outputs[0][i]), outputs[0][i], node->outputs[0]->dtype);
  }
}

/* The slope below zero, rounded, and its product. */
static void leaky_bounds(const Node *node, double *const *inputs, double *const *outputs,
                         double *const *bounds) {
  (void)inputs;
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++)
    bounds[0][i] = bound_of(2.0, fabs(outputs[0][i]), outputs[0][i], node->outputs[0]->dtype);
}

/* One over the slope and its product, difference, the scale's reciprocal and its product, sum. */
static void invert_bounds(const Node *node, double *const *inputs, double *const *outputs,
                          double *const *bounds) {
  const Tensor *y = node->inputs[0];
  int64_t plane = product_of(y->shape, 2, y->rank);
  for (int64_t i = 0; i < vl_tensor_elements(y); i++) {
    int64_t c = i / plane % y->shape[1];
    double z = fabs(inputs[0][i]) / (inputs[0][i] < 0.0 ? node->params.alpha : 1.0);
    double inverse = sqrt(inputs[2][c] + node->params.epsilon) / fabs(inputs[3][c]);
    double magnitude = (z + fabs(inputs[4][c])) * inverse + fabs(inputs[1][c]);
    bounds[0][i] = bound_of(6.0, magnitude, outputs[0][i], node->outputs[0]->dtype);
  }
}

static double softmax_scale(const Node *node) {
  return node->params.alpha != 0.0 ? fabs(node->params.alpha) : 1.0;
}

/* The scores z = alpha x + mask of a row again, with alpha's own rounding, the product's and the sum's: their
 * errors and that of z - max z are relative ones of the exponentials. What a result's is off by, and what all
 * are on average, weighted by themselves, are the errors of its numerator and denominator. Exponentials below
 * the smallest normal f32 have absolute errors. */
static void softmax_bounds(const Node *node, double *const *inputs, double *const *outputs,
                           double *const *bounds) {
  const Tensor *x = node->inputs[0], *mask = node->input_count > 1 ? node->inputs[1] : NULL;
  int64_t width = x->shape[x->rank - 1], rows = vl_tensor_elements(x) / width;
  double largest_mask = 0.0;
  for (int64_t i = 0; mask && i < vl_tensor_elements(mask); i++) {
    if (isfinite(inputs[1][i])) largest_mask = fmax(largest_mask, fabs(inputs[1][i]));
  }
  for (int64_t r = 0; r < rows; r++) {
    const double *y = outputs[0] + r * width;
    double top = 0.0, mean = 0.0;
    for (int64_t i = 0; i < width; i++)
      top = fmax(top, y[i]);
    for (int pass = 0; pass < 2; pass++) {
      for (int64_t i = 0; i < width; i++) {
        double *bound = &bounds[0][r * width + i];
        if (!(y[i] > 0.0)) { /* exp of -inf, exactly 0, or NaN */
          *bound = 0.0;
          continue;
        }
        double scaled = softmax_scale(node) * fabs(inputs[0][r * width + i]);
        double own = 3.0 * scaled + largest_mask + log(top / y[i]) + function_roundings; /* z - max z = log */
        if (pass == 0) {
          mean += y[i] * own;
        } else {
          double roundings = own + mean + sum_roundings(width);
          *bound = bound_of(roundings, y[i], y[i], node->outputs[0]->dtype) + 0x1p-147;
        }
      }
    }
  }
}

static void softmax_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                    double *const *bounds) {
  const Tensor *dy = node->inputs[0];
  int64_t width = dy->shape[dy->rank - 1], rows = vl_tensor_elements(dy) / width;
  double others = 5.0, roundings = sum_roundings(width) + others;
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0.0;
    for (int64_t i = r * width; i < (r + 1) * width; i++)
      sum += fabs(inputs[0][i] * inputs[1][i]);
    for (int64_t i = r * width; i < (r + 1) * width; i++) {
      double magnitude = softmax_scale(node) * fabs(inputs[1][i]) *
                         (others / roundings * fabs(inputs[0][i]) + sum); /* the sum's weigh only the sum */
      bounds[0][i] = bound_of(roundings, magnitude, outputs[0][i], node->outputs[0]->dtype);
    }
  }
}

typedef struct OwnBound {
  const char *name;
  void (*fill)(const Node *node, double *const *inputs, double *const *outputs, double *const *bounds);
} OwnBound;

static const OwnBound own_bounds[] = {{"batch_norm_stats", stats_bounds},
                                      {"batch_norm_backward", norm_backward_bounds},
                                      {"layer_norm", layer_norm_bounds},
                                      {"layer_norm_backward", layer_norm_backward_bounds},
                                      {"instance_norm", instance_norm_bounds},
                                      {"instance_norm_backward", instance_norm_backward_bounds},
                                      {"dice_cross_entropy", dice_cross_entropy_bounds},
                                      {"dice_cross_entropy_backward", dice_cross_entropy_backward_bounds},
                                      {"residual_norm", residual_norm_bounds},
                                      {"residual_norm_backward", residual_norm_backward_bounds},
                                      {"relu", leaky_bounds},
                                      {"relu_backward", leaky_bounds},
                                      {"batch_norm_invert", invert_bounds},
                                      {"square_sum", square_sum_bounds},
                                      {"gradient_factor", factor_bounds},
                                      {"tanh", tanh_bounds},
                                      {"tanh_backward", tanh_bounds},
                                      {"rsqrt", rsqrt_bounds},
                                      {"rsqrt_backward", rsqrt_bounds},
                                      {"softmax", softmax_bounds},
                                      {"softmax_backward", softmax_backward_bounds},
                                      {"gelu", gelu_bounds},
                                      {"gelu_backward", gelu_backward_bounds},
                                      {"softmax_cross_entropy", loss_bounds},
                                      {"softmax_cross_entropy_backward", loss_backward_bounds}};

Status bound_outputs(const Node *node, double *const *inputs, double *const *outputs, double *const *bounds,
                     const LaunchContext *context) {
  const char *name = node->op->name;
  for (size_t i = 0; i < sizeof exact_ops / sizeof *exact_ops; i++) {
    bool leaky = strncmp(name, "relu", 4) == 0 && node->params.alpha > 0.0;
    if (strcmp(exact_ops[i], name) == 0 && !leaky) return exact_bounds(node, outputs, bounds), vl_ok();
  }
  for (size_t i = 0; i < sizeof own_bounds / sizeof *own_bounds; i++) {
    if (strcmp(own_bounds[i].name, name) == 0)
      return own_bounds[i].fill(node, inputs, outputs, bounds), vl_ok();
  }
  if (strcmp(name, "adamw") == 0) return adamw_bounds(node, inputs, outputs, bounds, context), vl_ok();
  if (strcmp(name, "adamw_8bit") == 0)
    return adamw_8bit_bounds(node, inputs, outputs, bounds, context), vl_ok();
  for (size_t i = 0; i < sizeof linear_ops / sizeof *linear_ops; i++) {
    if (strcmp(linear_ops[i].name, name) == 0) {
      return linear_bounds(&linear_ops[i], node, inputs, outputs, bounds, context);
    }
  }
  if (strcmp(name, "attention") == 0 || strcmp(name, "attention_backward") == 0)
    return attention_bounds(node, inputs, outputs, bounds, context), vl_ok();
  return vl_error(VL_UNSUPPORTED, "no bound is written for op '%s'; add it to tests/kernels/bound.c", name);
}
