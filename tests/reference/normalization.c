/* Layer and instance normalisation, and batch normalisation: statistics over samples and space, application,
 * running statistics, gradient. */
#include "tests/reference/ops.h"
#include <math.h>

/* Samples, channels and elements of a plane of (N, C, ...). */
typedef struct Planes {
  int64_t samples, channels, plane;
} Planes;

static Planes planes_of(const Tensor *x) {
  Planes planes = {x->shape[0], x->shape[1], 1};
  for (int32_t i = 2; i < x->rank; i++)
    planes.plane *= x->shape[i];
  return planes;
}

static void batch_norm_stats(const Node *node, const Arrays *arrays) {
  const double *x = arrays->inputs[0];
  double *mean = arrays->outputs[0], *var = arrays->outputs[1];
  Planes p = planes_of(node->inputs[0]);
  double count = (double)(p.samples * p.plane);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < p.channels; c++) {
    double sum = 0.0, squares = 0.0;
    for (int64_t n = 0; n < p.samples; n++) {
      const double *plane = x + (n * p.channels + c) * p.plane;
      for (int64_t i = 0; i < p.plane; i++)
        sum += plane[i];
    }
    double center = sum / count;
    for (int64_t n = 0; n < p.samples; n++) {
      const double *plane = x + (n * p.channels + c) * p.plane;
      for (int64_t i = 0; i < p.plane; i++)
        squares += (plane[i] - center) * (plane[i] - center);
    }
    if (mean) mean[c] = center;
    if (var) var[c] = squares / count;
  }
}

static void batch_norm_apply(const Node *node, const Arrays *arrays) {
  const double *x = arrays->inputs[0], *mean = arrays->inputs[1], *var = arrays->inputs[2],
               *gamma = arrays->inputs[3], *beta = arrays->inputs[4],
               *residual = node->input_count > 5 ? arrays->inputs[5] : NULL;
  double *y = arrays->outputs[0];
  Planes p = planes_of(node->inputs[0]);
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < p.samples; n++) {
    for (int64_t c = 0; c < p.channels; c++) {
      double scale = gamma[c] / sqrt(var[c] + node->params.epsilon);
      int64_t first = (n * p.channels + c) * p.plane;
      for (int64_t i = first; i < first + p.plane; i++) {
        double value = scale * (x[i] - mean[c]) + beta[c] + (residual ? residual[i] : 0.0);
        y[i] = node->params.relu && value <= 0.0 ? 0.0 : value;
      }
    }
  }
}

static void batch_norm_update(const Node *node, const Arrays *arrays) {
  const double *mean = arrays->inputs[0], *var = arrays->inputs[1];
  double momentum = node->params.momentum, count = (double)node->params.count;
  for (int64_t c = 0; c < vl_tensor_elements(node->inputs[0]); c++) {
    arrays->outputs[0][c] = (1.0 - momentum) * arrays->inputs[2][c] + momentum * mean[c];
    arrays->outputs[1][c] =
        (1.0 - momentum) * arrays->inputs[3][c] + momentum * var[c] * count / (count - 1.0);
  }
  arrays->outputs[2][0] = arrays->inputs[4][0] + 1.0;
}

static void batch_norm_invert(const Node *node, const Arrays *arrays) {
  const double *y = arrays->inputs[0], *mean = arrays->inputs[1], *var = arrays->inputs[2],
               *gamma = arrays->inputs[3], *beta = arrays->inputs[4];
  Planes p = planes_of(node->inputs[0]);
  for (int64_t i = 0; i < p.samples * p.channels * p.plane; i++) {
    int64_t c = i / p.plane % p.channels;
    double z = y[i] < 0.0 ? y[i] / node->params.alpha : y[i];
    arrays->outputs[0][i] = (z - beta[c]) * sqrt(var[c] + node->params.epsilon) / gamma[c] + mean[c];
  }
}

static double *present(double *const *inputs, const Node *node, int32_t index) {
  return index < node->input_count ? inputs[index] : NULL;
}

/* dy where the forward output was positive (all of it without a ReLU). */
static double through_relu(const Node *node, double dy, double y) {
  return node->params.relu && !(y > 0.0) ? 0.0 : dy;
}

static void batch_norm_backward(const Node *node, const Arrays *arrays) {
  const double *dy = arrays->inputs[0], *x = arrays->inputs[1], *mean = arrays->inputs[2],
               *var = arrays->inputs[3], *gamma = arrays->inputs[4], *beta = present(arrays->inputs, node, 5),
               *y = present(arrays->inputs, node, 6), *dy2 = present(arrays->inputs, node, 7);
  double *dx = arrays->outputs[0], *dgamma = arrays->outputs[1], *dbeta = arrays->outputs[2],
         *dresidual = node->output_count > 3 ? arrays->outputs[3] : NULL;
  Planes p = planes_of(node->inputs[0]);
  double count = (double)(p.samples * p.plane);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < p.channels; c++) {
    double deviation = 1.0 / sqrt(var[c] + node->params.epsilon);
    double scale = gamma[c] * deviation, sum = 0.0, product = 0.0;
    /* Two passes over the same expression: sums first, then what they give each element. */
    for (int pass = 0; pass < 2; pass++) {
      for (int64_t n = 0; n < p.samples; n++) {
        int64_t first = (n * p.channels + c) * p.plane;
        for (int64_t i = first; i < first + p.plane; i++) {
          double normal = (x[i] - mean[c]) * deviation;
          double d = dy[i] + (dy2 ? dy2[i] : 0.0);
          double g = through_relu(node, d, y ? y[i] : beta ? scale * (x[i] - mean[c]) + beta[c] : 1.0);
          if (pass == 0) {
            sum += g;
            product += g * normal;
            continue;
          }
          if (dresidual) dresidual[i] = g;
          if (dx) dx[i] = scale * (g - sum / count - normal * product / count);
        }
      }
    }
    if (dgamma) dgamma[c] = product;
    if (dbeta) dbeta[c] = sum;
  }
}

static void layer_norm(const Node *node, const Arrays *arrays) {
  const Tensor *tensor = node->inputs[0];
  int64_t width = tensor->shape[tensor->rank - 1], rows = vl_tensor_elements(tensor) / width;
  const double *gamma = arrays->inputs[1], *beta = arrays->inputs[2];
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const double *x = arrays->inputs[0] + r * width;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < width; i++)
      sum += x[i];
    double center = sum / (double)width;
    for (int64_t i = 0; i < width; i++)
      squares += (x[i] - center) * (x[i] - center);
    double scale = 1.0 / sqrt(squares / (double)width + node->params.epsilon);
    for (int64_t i = 0; i < width; i++)
      arrays->outputs[0][r * width + i] = gamma[i] * (x[i] - center) * scale + beta[i];
    if (arrays->outputs[1]) arrays->outputs[1][r] = center;
    if (arrays->outputs[2]) arrays->outputs[2][r] = scale;
  }
}

static void layer_norm_backward(const Node *node, const Arrays *arrays) {
  const Tensor *tensor = node->inputs[1];
  int64_t width = tensor->shape[tensor->rank - 1], rows = vl_tensor_elements(tensor) / width;
  const double *gamma = arrays->inputs[4];
  double *dx = arrays->outputs[0], *dgamma = arrays->outputs[1], *dbeta = arrays->outputs[2];
  for (int64_t i = 0; i < width; i++) {
    if (dgamma) dgamma[i] = 0.0;
    if (dbeta) dbeta[i] = 0.0;
  }
  for (int64_t r = 0; r < rows; r++) {
    const double *dy = arrays->inputs[0] + r * width, *x = arrays->inputs[1] + r * width;
    double center = arrays->inputs[2][r], scale = arrays->inputs[3][r], sum = 0.0, product = 0.0;
    for (int64_t i = 0; i < width; i++) {
      double normal = (x[i] - center) * scale;
      sum += dy[i] * gamma[i] / (double)width;
      product += dy[i] * gamma[i] * normal / (double)width;
      if (dgamma) dgamma[i] += dy[i] * normal;
      if (dbeta) dbeta[i] += dy[i];
    }
    for (int64_t i = 0; dx && i < width; i++)
      dx[r * width + i] = scale * (dy[i] * gamma[i] - sum - (x[i] - center) * scale * product);
  }
}

/* Statistics and normalisation of each plane; gamma and beta are of its channel. */
static void instance_norm(const Node *node, const Arrays *arrays) {
  const double *gamma = arrays->inputs[1], *beta = arrays->inputs[2];
  Planes p = planes_of(node->inputs[0]);
#pragma omp parallel for schedule(static)
  for (int64_t k = 0; k < p.samples * p.channels; k++) {
    const double *x = arrays->inputs[0] + k * p.plane;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < p.plane; i++)
      sum += x[i];
    double center = sum / (double)p.plane;
    for (int64_t i = 0; i < p.plane; i++)
      squares += (x[i] - center) * (x[i] - center);
    double rstd = 1.0 / sqrt(squares / (double)p.plane + node->params.epsilon);
    for (int64_t i = 0; i < p.plane; i++) {
      double value = gamma[k % p.channels] * (x[i] - center) * rstd + beta[k % p.channels];
      arrays->outputs[0][k * p.plane + i] =
          node->params.relu && value <= 0.0 ? node->params.alpha * value : value;
    }
    if (arrays->outputs[1]) arrays->outputs[1][k] = center;
    if (arrays->outputs[2]) arrays->outputs[2][k] = rstd;
  }
}

static void instance_norm_backward(const Node *node, const Arrays *arrays) {
  const double *dy = arrays->inputs[0], *x = arrays->inputs[1], *mean = arrays->inputs[2],
               *rstd = arrays->inputs[3], *gamma = arrays->inputs[4],
               *beta = present(arrays->inputs, node, 5), *dy2 = present(arrays->inputs, node, 6);
  double *dx = arrays->outputs[0], *dgamma = arrays->outputs[1], *dbeta = arrays->outputs[2];
  Planes p = planes_of(node->inputs[1]);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < p.channels; c++) {
    double of_gamma = 0.0, of_beta = 0.0;
    for (int64_t k = c; k < p.samples * p.channels; k += p.channels) {
      double sum = 0.0, product = 0.0;
      /* Two passes over the same expression: sums first, then what they give each element. */
      for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = k * p.plane; i < (k + 1) * p.plane; i++) {
          double normal = (x[i] - mean[k]) * rstd[k], d = dy[i] + (dy2 ? dy2[i] : 0.0);
          bool cut = node->params.relu && !(gamma[c] * normal + beta[c] > 0.0);
          double g = cut ? node->params.alpha * d : d;
          if (pass == 0) {
            sum += g;
            product += g * normal;
          } else if (dx) {
            dx[i] = gamma[c] * rstd[k] * (g - (sum + normal * product) / (double)p.plane);
          }
        }
      }
      of_gamma += product;
      of_beta += sum;
    }
    if (dgamma) dgamma[c] = of_gamma;
    if (dbeta) dbeta[c] = of_beta;
  }
}

/* y = residual + dropout(x); without a residual the dropout. */
static void drop_onto(const Node *node, const Arrays *arrays, const double *x, const double *residual,
                      double *y) {
  const LaunchContext *context = arrays->context;
  const Tensor *shape = node->inputs[0];
  double rate = node->params.rate;
  uint64_t key =
      rate > 0.0 ? vl_random_key(context->seed, context->step, node->params.random_scope) : UINT64_C(0);
  int64_t elements = vl_tensor_elements(shape), per_sample = elements / shape->shape[0];
  for (int64_t i = 0; i < elements; i++) {
    uint64_t sample = (uint64_t)(context->first_sample + i / per_sample);
    double unit =
        rate > 0.0 ? (double)vl_random_unit(vl_random_word(key, sample, (uint64_t)(i % per_sample))) : 1.0;
    y[i] = (residual ? residual[i] : 0.0) + (unit >= rate ? x[i] / (1.0 - rate) : 0.0);
  }
}

static void residual_norm(const Node *node, const Arrays *arrays) {
  double *sum = arrays->outputs[3];
  drop_onto(node, arrays, arrays->inputs[0], arrays->inputs[1], sum);
  double *inputs[] = {sum, arrays->inputs[2], arrays->inputs[3]};
  layer_norm(node, &(Arrays){.inputs = inputs, .outputs = arrays->outputs, .context = arrays->context});
}

static void residual_norm_backward(const Node *node, const Arrays *arrays) {
  layer_norm_backward(node, arrays);
  if (arrays->outputs[3]) drop_onto(node, arrays, arrays->outputs[0], NULL, arrays->outputs[3]);
}

const ReferenceOp reference_normalization_ops[] = {{"batch_norm_stats", batch_norm_stats},
                                                   {"batch_norm_apply", batch_norm_apply},
                                                   {"batch_norm_update", batch_norm_update},
                                                   {"batch_norm_invert", batch_norm_invert},
                                                   {"batch_norm_backward", batch_norm_backward},
                                                   {"layer_norm", layer_norm},
                                                   {"layer_norm_backward", layer_norm_backward},
                                                   {"instance_norm", instance_norm},
                                                   {"instance_norm_backward", instance_norm_backward},
                                                   {"residual_norm", residual_norm},
                                                   {"residual_norm_backward", residual_norm_backward},
                                                   {NULL, NULL}};
