/* How far instance_norm and its gradient may be from the reference; README.md derives it. */
#include "tests/kernels/bound.h"
#include <math.h>
#include <stdlib.h>

static const double u = 0x1p-24;

typedef struct Planes {
  int64_t samples, channels, plane;
} Planes;

static Planes planes_of(const Tensor *x) {
  return (Planes){x->shape[0], x->shape[1], vl_tensor_elements(x) / x->shape[0] / x->shape[1]};
}

/* What a plane's statistics may be off by. */
typedef struct Errors {
  double mean;     /* absolute */
  double relative; /* of rstd */
} Errors;

static Errors plane_errors(const double *x, int64_t plane, double mean, double rstd) {
  double c = sum_roundings(plane), magnitude = 0.0, variance = 0.0, farthest = 0.0;
  for (int64_t i = 0; i < plane; i++) {
    double square = (x[i] - mean) * (x[i] - mean);
    magnitude += fabs(x[i]) / (double)plane;
    variance += square / (double)plane;
    farthest = fmax(farthest, square);
  }
  return (Errors){.mean = (c + 2.0) * u * magnitude,
                  .relative = (3.0 * c + 5.0) * u * (variance + farthest) * rstd * rstd + 2.0 * u};
}

void instance_norm_bounds(const Node *node, double *const *inputs, double *const *outputs,
                          double *const *bounds) {
  Planes p = planes_of(node->inputs[0]);
  double slope = node->params.alpha > 0.0 ? 2.0 * u : 0.0; /* its own rounding and its product's */
  for (int64_t k = 0; k < p.samples * p.channels; k++) {
    double mean = outputs[1][k], rstd = outputs[2][k];
    Errors errors = plane_errors(inputs[0] + k * p.plane, p.plane, mean, rstd);
    bounds[1][k] = rounded_bound(errors.mean, mean, node->outputs[1]->dtype);
    bounds[2][k] = rounded_bound(errors.relative * rstd, rstd, node->outputs[2]->dtype);
    double gamma = fabs(inputs[1][k % p.channels]), beta = fabs(inputs[2][k % p.channels]);
    for (int64_t i = k * p.plane; i < (k + 1) * p.plane; i++) {
      double gain = gamma * rstd, difference = fabs(inputs[0][i] - mean);
      double error = gain * (errors.mean + difference * (errors.relative + 4.0 * u)) +
                     u * (beta + gain * difference) + slope * fabs(outputs[0][i]);
      bounds[0][i] = rounded_bound(error, outputs[0][i], node->outputs[0]->dtype);
    }
  }
}

/* ---- Backward: the statistics are given, so that a difference has one rounding ----------------------------- */

/* Scale, differences, products, the slope, the sum of two gradients. */
static const double own = 10.0;

/* What one element brings to sums. */
typedef struct Element {
  double normal;    /* |x - mean| rstd */
  double gradient;  /* |dy|, or |dy| + |dy2| */
  double undecided; /* of it, what the sign of y decides where that is within its bound */
} Element;

static Element element_of(const Node *node, double *const *inputs, int64_t k, int64_t i) {
  int64_t c = k % node->inputs[1]->shape[1];
  const double *dy2 = node->input_count > 6 ? inputs[6] : NULL;
  double normal = (inputs[1][i] - inputs[2][k]) * inputs[3][k];
  Element element = {.normal = fabs(normal), .gradient = fabs(inputs[0][i]) + (dy2 ? fabs(dy2[i]) : 0.0)};
  if (!node->params.relu) return element;
  double scaled = inputs[4][c] * normal, value = scaled + inputs[5][c];
  bool open = fabs(value) <= 5.0 * u * (fabs(scaled) + fabs(inputs[5][c]));
  element.undecided = open ? (1.0 - node->params.alpha) * element.gradient : 0.0;
  return element;
}

typedef struct Sums {
  double gradient, product, open_gradient, open_product;
} Sums;

static Sums plane_sums(const Node *node, double *const *inputs, int64_t k, int64_t plane) {
  Sums sums = {0};
  for (int64_t i = k * plane; i < (k + 1) * plane; i++) {
    Element element = element_of(node, inputs, k, i);
    sums.gradient += element.gradient;
    sums.product += element.gradient * element.normal;
    sums.open_gradient += element.undecided;
    sums.open_product += element.undecided * element.normal;
  }
  return sums;
}

static void plane_bounds(const Node *node, double *const *inputs, double *const *outputs,
                         double *const *bounds, int64_t k, int64_t plane, const Sums *sums) {
  double count = (double)plane, of_sums = sum_roundings(plane) + own;
  double scale = fabs(inputs[4][k % node->inputs[1]->shape[1]] * inputs[3][k]);
  for (int64_t i = k * plane; i < (k + 1) * plane; i++) {
    Element element = element_of(node, inputs, k, i);
    double terms =
        own * element.gradient + of_sums * (sums->gradient + element.normal * sums->product) / count;
    double open = element.undecided + (sums->open_gradient + element.normal * sums->open_product) / count;
    bounds[0][i] = rounded_bound(scale * (u * terms + open), outputs[0][i], node->outputs[0]->dtype);
  }
}

void instance_norm_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                   double *const *bounds) {
  Planes p = planes_of(node->inputs[1]);
  double roundings = sum_roundings(p.samples * p.plane) + own;
  for (int64_t c = 0; c < p.channels; c++) {
    Sums all = {0};
    for (int64_t k = c; k < p.samples * p.channels; k += p.channels) {
      Sums sums = plane_sums(node, inputs, k, p.plane);
      if (bounds[0]) plane_bounds(node, inputs, outputs, bounds, k, p.plane, &sums);
      all.gradient += sums.gradient;
      all.product += sums.product;
      all.open_gradient += sums.open_gradient;
      all.open_product += sums.open_product;
    }
    if (bounds[1])
      bounds[1][c] = rounded_bound(roundings * u * all.product + all.open_product, outputs[1][c],
                                   node->outputs[1]->dtype);
    if (bounds[2])
      bounds[2][c] = rounded_bound(roundings * u * all.gradient + all.open_gradient, outputs[2][c],
                                   node->outputs[2]->dtype);
  }
}
