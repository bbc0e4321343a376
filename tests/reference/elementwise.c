/* Ops that treat each element alone. In place (output array = input array) works for all of them. */
#include "tests/reference/ops.h"
#include <math.h>
#include <string.h>

/* One element's result from the values at its place in inputs 0 and 1. */
typedef double (*ElementFunction)(const OpParams *params, double a, double b);

static void each(const Node *node, const Arrays *arrays, ElementFunction function) {
  const double *a = node->input_count > 0 ? arrays->inputs[0] : NULL;
  const double *b = node->input_count > 1 ? arrays->inputs[1] : NULL;
  double *y = arrays->outputs[0];
  int64_t count = vl_tensor_elements(node->outputs[0]);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i++)
    y[i] = function(&node->params, a ? a[i] : 0.0, b ? b[i] : 0.0);
}

/* Where element i of a meets b, which is repeated to a's shape. */
static int64_t place_in(const Tensor *b, const Tensor *a, int64_t i) {
  int64_t place = 0, stride = 1;
  for (int32_t dim = a->rank - 1, of_b = b->rank - 1; of_b >= 0; dim--, of_b--) {
    place += (b->shape[of_b] == 1 ? 0 : i % a->shape[dim]) * stride;
    stride *= b->shape[of_b];
    i /= a->shape[dim];
  }
  return place;
}

static void each_repeating(const Node *node, const Arrays *arrays, ElementFunction function) {
  const Tensor *a = node->inputs[0], *b = node->inputs[1];
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < vl_tensor_elements(a); i++)
    arrays->outputs[0][i] =
        function(&node->params, arrays->inputs[0][i], arrays->inputs[1][place_in(b, a, i)]);
}

static double relu_of(const OpParams *params, double a, double b) {
  (void)b;
  return a > 0.0 || a != a ? a : params->alpha > 0.0 ? params->alpha * a : 0.0; /* NaN stays */
}
static double relu_backward_of(const OpParams *params, double dy, double y) {
  return y > 0.0 ? dy : params->alpha > 0.0 ? params->alpha * dy : 0.0;
}
static double magnitude_of(const OpParams *params, double x, double b) {
  (void)b;
  return fabs(x) + params->epsilon;
}
static double magnitude_backward_of(const OpParams *params, double dy, double x) {
  (void)params;
  return x < 0.0 ? -dy : dy;
}
static double normal_cdf(double x) { return 0.5 * erfc(-x * sqrt(0.5)); }
static double gelu_of(const OpParams *params, double x, double b) {
  (void)params, (void)b;
  return x * normal_cdf(x);
}
static double gelu_backward_of(const OpParams *params, double dy, double x) {
  (void)params;
  double density = exp(-0.5 * x * x) / sqrt(2.0 * 3.14159265358979323846);
  return dy * (normal_cdf(x) + x * density);
}
static double tanh_of(const OpParams *params, double x, double b) {
  (void)params, (void)b;
  return tanh(x);
}
static double tanh_backward_of(const OpParams *params, double dy, double y) {
  (void)params;
  return dy * (1.0 - y * y);
}
static double rsqrt_of(const OpParams *params, double x, double b) {
  (void)b;
  return 1.0 / sqrt(x + params->epsilon);
}
static double rsqrt_backward_of(const OpParams *params, double dy, double y) {
  (void)params;
  return -0.5 * dy * y * y * y;
}
static double sum_of(const OpParams *params, double a, double b) {
  (void)params;
  return a + b;
}
static double product_of(const OpParams *params, double a, double b) {
  (void)params;
  return a * b;
}
static double scaled(const OpParams *params, double a, double b) {
  (void)b;
  return params->alpha * a;
}
static double same(const OpParams *params, double a, double b) {
  (void)params, (void)b;
  return a;
}
static double constant(const OpParams *params, double a, double b) {
  (void)a, (void)b;
  return params->alpha;
}

static void relu(const Node *node, const Arrays *arrays) { each(node, arrays, relu_of); }
static void relu_backward(const Node *node, const Arrays *arrays) {
  for (int32_t k = 1; k < node->output_count; k++) /* first: dx may be over dy */
    for (int64_t i = 0; arrays->outputs[k] && i < vl_tensor_elements(node->inputs[0]); i++)
      arrays->outputs[k][i] = arrays->inputs[0][i];
  each(node, arrays, relu_backward_of);
}
static void gelu(const Node *node, const Arrays *arrays) { each(node, arrays, gelu_of); }
static void gelu_backward(const Node *node, const Arrays *arrays) {
  each(node, arrays, gelu_backward_of);
  double *dbias = node->output_count > 1 ? arrays->outputs[1] : NULL;
  if (!dbias) return;
  int64_t width = node->outputs[1]->shape[0];
  memset(dbias, 0, (size_t)width * sizeof *dbias);
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++)
    dbias[i % width] += arrays->outputs[0][i];
}
static void tanh_forward(const Node *node, const Arrays *arrays) { each(node, arrays, tanh_of); }
static void tanh_backward(const Node *node, const Arrays *arrays) { each(node, arrays, tanh_backward_of); }
static void magnitude(const Node *node, const Arrays *arrays) { each(node, arrays, magnitude_of); }
static void magnitude_backward(const Node *node, const Arrays *arrays) {
  each(node, arrays, magnitude_backward_of);
}
static void rsqrt(const Node *node, const Arrays *arrays) { each(node, arrays, rsqrt_of); }
static void rsqrt_backward(const Node *node, const Arrays *arrays) { each(node, arrays, rsqrt_backward_of); }
static void add(const Node *node, const Arrays *arrays) { each_repeating(node, arrays, sum_of); }
static void mul(const Node *node, const Arrays *arrays) { each_repeating(node, arrays, product_of); }
static void scale(const Node *node, const Arrays *arrays) { each(node, arrays, scaled); }
static void copy(const Node *node, const Arrays *arrays) { each(node, arrays, same); }
static void fill(const Node *node, const Arrays *arrays) { each(node, arrays, constant); }

static void dropout(const Node *node, const Arrays *arrays) {
  const double *x = arrays->inputs[0];
  const double *given = node->input_count > 1 ? arrays->inputs[1] : NULL;
  double *y = arrays->outputs[0], *noise = node->output_count > 1 ? arrays->outputs[1] : NULL;
  double rate = node->params.rate;
  const LaunchContext *context = arrays->context;
  uint64_t key = vl_random_key(context->seed, context->step, node->params.random_scope);
  int64_t samples = node->inputs[0]->shape[0];
  int64_t elements = vl_tensor_elements(node->inputs[0]) / samples;
  for (int64_t n = 0; n < samples; n++) {
    uint64_t sample = (uint64_t)(context->first_sample + n);
    for (int64_t e = 0; e < elements; e++) {
      int64_t i = n * elements + e;
      double unit = (double)vl_random_unit(vl_random_word(key, sample, (uint64_t)e));
      bool kept = given ? given[i] != 0.0 : unit >= rate;
      y[i] = kept ? x[i] / (1.0 - rate) : 0.0;
      double factor = node->params.alpha == 2.0 ? 1.0 : 1.0 / (1.0 - rate);
      if (noise) noise[i] = kept ? factor : 0.0;
    }
  }
}

static void square_sum(const Node *node, const Arrays *arrays) {
  double sum = node->input_count > 1 ? arrays->inputs[1][0] : 0.0;
  for (int64_t i = 0; i < vl_tensor_elements(node->inputs[0]); i++)
    sum += arrays->inputs[0][i] * arrays->inputs[0][i];
  arrays->outputs[0][0] = sum;
}

/* torch.amp.GradScaler's unscale_ and update, with clip_grad_norm_ in between. */
static void gradient_factor(const Node *node, const Arrays *arrays) {
  const OpParams *params = &node->params;
  bool scales = node->input_count > 1, finite = isfinite(arrays->inputs[0][0]);
  double scale = scales ? arrays->inputs[1][0] : 1.0, norm = sqrt(arrays->inputs[0][0]) / scale;
  double clip = params->max_norm / (norm + 1e-6), factor = 1.0 / scale;
  if (params->max_norm > 0.0 && !(clip > 1.0)) factor *= clip;
  arrays->outputs[0][0] = scales && !finite ? 0.0 : factor;
  arrays->outputs[1][0] = norm;
  if (!scales) return;
  const double *counters = arrays->inputs[2];
  double clean = finite ? counters[SCALER_CLEAN] + 1.0 : 0.0, grown = scale * params->growth;
  bool grows = finite && clean >= (double)params->interval;
  arrays->outputs[2][0] = !finite ? scale * params->backoff : grows && isfinite((float)grown) ? grown : scale;
  arrays->outputs[3][SCALER_SKIPPED] = counters[SCALER_SKIPPED] + (finite ? 0.0 : 1.0);
  arrays->outputs[3][SCALER_STEPS] = counters[SCALER_STEPS] + (finite ? 1.0 : 0.0);
  arrays->outputs[3][SCALER_CLEAN] = grows ? 0.0 : clean;
}

UpdateFactor reference_update_factor(const Node *node, int32_t index, const Arrays *arrays) {
  UpdateFactor update = {.factor = 1.0, .steps = (double)arrays->context->step + 1.0};
  if (node->input_count > index) update.factor = arrays->inputs[index][0];
  if (node->input_count <= index + 1) return update;
  update.steps = arrays->inputs[index + 1][SCALER_STEPS];
  update.skip = update.factor == 0.0;
  return update;
}

void reference_keep(const Node *node, const Arrays *arrays, int32_t output, int32_t input) {
  memmove(arrays->outputs[output], arrays->inputs[input],
          (size_t)vl_tensor_elements(node->inputs[input]) * sizeof(double));
}

static void sgd(const Node *node, const Arrays *arrays) {
  UpdateFactor update = reference_update_factor(node, 3, arrays);
  if (update.skip) {
    reference_keep(node, arrays, 0, 0);
    reference_keep(node, arrays, 1, 2);
    return;
  }
  const double *w = arrays->inputs[0], *dw = arrays->inputs[1], *v = arrays->inputs[2];
  double given = arrays->context->learning_rate;
  double learning_rate = given > 0.0 ? given : node->params.learning_rate;
  for (int64_t i = 0; i < vl_tensor_elements(node->inputs[0]); i++) {
    double velocity =
        node->params.momentum * v[i] + (update.factor * dw[i] + node->params.weight_decay * w[i]);
    arrays->outputs[1][i] = velocity;
    arrays->outputs[0][i] = w[i] - learning_rate * velocity;
  }
}

static void adamw(const Node *node, const Arrays *arrays) {
  UpdateFactor update = reference_update_factor(node, 4, arrays);
  if (update.skip) {
    reference_keep(node, arrays, 0, 0);
    reference_keep(node, arrays, 1, 2);
    reference_keep(node, arrays, 2, 3);
    return;
  }
  const double *w = arrays->inputs[0], *dw = arrays->inputs[1], *m = arrays->inputs[2],
               *v = arrays->inputs[3];
  const OpParams *params = &node->params;
  double given = arrays->context->learning_rate, steps = update.steps;
  double learning_rate = given > 0.0 ? given : params->learning_rate;
  double step = learning_rate / (1.0 - pow(params->beta1, steps));
  double correction = sqrt(1.0 - pow(params->beta2, steps));
  for (int64_t i = 0; i < vl_tensor_elements(node->inputs[0]); i++) {
    double g = update.factor * dw[i], mean = m[i] + (1.0 - params->beta1) * (g - m[i]);
    double square = params->beta2 * v[i] + (1.0 - params->beta2) * g * g;
    double decayed = w[i] * (1.0 - learning_rate * params->weight_decay);
    arrays->outputs[0][i] = decayed - step * mean / (sqrt(square) / correction + params->epsilon);
    arrays->outputs[1][i] = mean;
    arrays->outputs[2][i] = square;
  }
}

const ReferenceOp reference_elementwise_ops[] = {{"tanh", tanh_forward},
                                                 {"tanh_backward", tanh_backward},
                                                 {"relu", relu},
                                                 {"relu_backward", relu_backward},
                                                 {"gelu", gelu},
                                                 {"gelu_backward", gelu_backward},
                                                 {"magnitude", magnitude},
                                                 {"magnitude_backward", magnitude_backward},
                                                 {"rsqrt", rsqrt},
                                                 {"rsqrt_backward", rsqrt_backward},
                                                 {"add", add},
                                                 {"mul", mul},
                                                 {"scale", scale},
                                                 {"cast", copy},
                                                 {"copy", copy},
                                                 {"fill", fill},
                                                 {"dropout", dropout},
                                                 {"sgd", sgd},
                                                 {"square_sum", square_sum},
                                                 {"gradient_factor", gradient_factor},
                                                 {"adamw", adamw},
                                                 {NULL, NULL}};
