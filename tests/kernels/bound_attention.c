/* Bounds of attention: an error of a score is a relative error of its probability, and errors of
 * probabilities are weighted by what they multiply. To first order, with u, v, c as in README.md and A the
 * magnitude of a score (its products' and its mask's):
 *
 *   a score s        (c(D) + 3) u A: the sum, then scale, product and mask
 *   exp(s - t)       e = that + u (|s| + |t|) + 10 u: the difference and the function
 *   a sum of them    c(S) u, the mean of e, and for a running maximum t, which random keys raise ln S times,
 *                    10 u and a difference each time
 *
 * A device may round probabilities and their gradients to the type of its products, each by v of its own:
 * their sum stays below v times the sum of magnitudes, and, being independent, below 8 v times the root of
 * the sum of their squares (README.md, lambda = 8). */
#include "tests/kernels/bound.h"
#include "tests/reference/attention.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;
static const double function_roundings = 10.0;

/* A sum of terms: the error they bring with them, and their magnitudes and squares. */
typedef struct Sum {
  double error, magnitude, squares;
} Sum;

static void sum_add(Sum *sum, double term, double relative_error, double own_error) {
  double size = fabs(term);
  sum->error += size * relative_error + own_error;
  sum->magnitude += size;
  sum->squares += size * size;
}

/* The bound of a result that is a sum of `terms`, whose first factors are rounded to dtype, as the result is.
 */
static double sum_bound(const Sum *sum, int64_t terms, double value, DType dtype) {
  double v = roundoff_of(dtype), factors = fmin(sum->magnitude, 8.0 * sqrt(sum->squares));
  double error = sum->error + (sum_roundings(terms) + 3.0) * u * sum->magnitude;
  if (dtype != DTYPE_F32) error += v * factors;
  return rounded_bound(error, value, dtype);
}

static double dot_magnitude(const double *a, const double *b, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; i++)
    sum += fabs(a[i] * b[i]);
  return sum;
}

/* One head's scores and the errors of exp(score - t) up to what t brings: [query][key]. */
typedef struct Head {
  AttentionShape shape;
  int64_t sample, head;
  double *scores, *errors;
} Head;

static Head head_of(const OpParams *params, const Tensor *qkv) {
  Head head = {.shape = attention_shape(params, qkv)};
  size_t squares = (size_t)(head.shape.length * head.shape.length);
  head.scores = vl_allocate(squares * sizeof(double));
  head.errors = vl_allocate(squares * sizeof(double));
  return head;
}

static void fill_head(Head *head, const double *qkv, const double *mask) {
  const AttentionShape *shape = &head->shape;
  for (int64_t i = 0; i < shape->length * shape->length; i++) {
    const double *q = qkv + attention_at(shape, head->sample, i / shape->length, 0, head->head);
    const double *k = qkv + attention_at(shape, head->sample, i % shape->length, 1, head->head);
    double added = mask ? mask[head->sample * shape->length + i % shape->length] : 0.0;
    double magnitude = shape->scale * dot_magnitude(q, k, shape->size) + fabs(added);
    head->scores[i] = shape->scale * attention_dot(q, k, shape->size) + added;
    /* A key that is masked out has no probability and no error. */
    head->errors[i] = isinf(added) ? 0.0
                                   : u * ((sum_roundings(shape->size) + 3.0) * magnitude +
                                          fabs(head->scores[i]) + function_roundings);
  }
}

static void forward_row(const Node *node, const Head *head, int64_t query, double *const *inputs,
                        double *const *outputs, double *const *bounds, const LaunchContext *context) {
  const AttentionShape *shape = &head->shape;
  const double *scores = head->scores + query * shape->length, *errors = head->errors + query * shape->length;
  double top = 0.0, lse = 0.0, mean = 0.0, largest = -(double)INFINITY;
  for (int64_t k = 0; k < shape->length; k++) {
    if (!isinf(scores[k])) top = fmax(top, fabs(scores[k]));
    largest = fmax(largest, scores[k]);
  }
  for (int64_t k = 0; k < shape->length; k++)
    lse += exp(scores[k] - largest);
  lse = largest + log(lse);
  for (int64_t k = 0; k < shape->length; k++)
    mean += exp(scores[k] - lse) * errors[k];
  double raises = 1.0 + log((double)shape->length);
  double of_sum = mean + u * (sum_roundings(shape->length) + 2.0 * top + raises * (function_roundings + top));
  int64_t row = attention_row(shape, head->sample, query, head->head);
  for (int64_t d = 0; d < shape->size; d++) {
    Sum sum = {0};
    for (int64_t k = 0; k < shape->length; k++) {
      double keep = attention_keep(shape, &node->params, context, head->sample, head->head, query, k);
      double value = inputs[0][attention_at(shape, head->sample, k, 2, head->head) + d];
      sum_add(&sum, exp(scores[k] - lse) * keep * value, errors[k] + of_sum, 0.0);
    }
    bounds[0][row + d] = sum_bound(&sum, shape->length, outputs[0][row + d], node->outputs[0]->dtype);
  }
  if (!bounds[1]) return;
  int64_t i = (head->sample * shape->heads + head->head) * shape->length + query;
  bounds[1][i] = of_sum + u * (function_roundings + 2.0 * fabs(lse) + top);
}

/* What (query, key) brings to all three gradients: dropout(p), ds, and the errors of ds and of p. */
typedef struct Pair {
  double p, ds, relative_error, own_error;
} Pair;

static Pair pair_of(const Node *node, const Head *head, int64_t query, int64_t key, double *const *inputs,
                    const LaunchContext *context) {
  const AttentionShape *shape = &head->shape;
  int64_t i = query * shape->length + key, row = attention_row(shape, head->sample, query, head->head);
  double lse = inputs[3][(head->sample * shape->heads + head->head) * shape->length + query];
  double keep = attention_keep(shape, &node->params, context, head->sample, head->head, query, key);
  const double *dy = inputs[0] + row, *y = inputs[2] + row;
  const double *v = inputs[1] + attention_at(shape, head->sample, key, 2, head->head);
  double p = exp(head->scores[i] - lse);
  double dp = keep * attention_dot(dy, v, shape->size), delta = attention_dot(dy, y, shape->size);
  double magnitude = keep * dot_magnitude(dy, v, shape->size) + dot_magnitude(dy, y, shape->size);
  return (Pair){.p = keep * p,
                .ds = shape->scale * p * (dp - delta),
                .relative_error = head->errors[i] + u * fabs(lse),
                .own_error = shape->scale * p * (sum_roundings(shape->size) + 3.0) * u * magnitude};
}

static void backward_token(const Node *node, const Head *head, const Pair *pairs, int64_t token,
                           double *const *inputs, double *const *outputs, double *const *bounds) {
  const AttentionShape *shape = &head->shape;
  int64_t at[3];
  for (int64_t part = 0; part < 3; part++)
    at[part] = attention_at(shape, head->sample, token, part, head->head);
  for (int64_t d = 0; d < shape->size; d++) {
    Sum sums[3] = {{0}};
    for (int64_t other = 0; other < shape->length; other++) {
      const Pair *as_query = &pairs[token * shape->length + other];
      const Pair *as_key = &pairs[other * shape->length + token];
      double k = inputs[1][attention_at(shape, head->sample, other, 1, head->head) + d];
      double q = inputs[1][attention_at(shape, head->sample, other, 0, head->head) + d];
      double dy = inputs[0][attention_row(shape, head->sample, other, head->head) + d];
      sum_add(&sums[0], as_query->ds * k, as_query->relative_error, as_query->own_error * fabs(k));
      sum_add(&sums[1], as_key->ds * q, as_key->relative_error, as_key->own_error * fabs(q));
      sum_add(&sums[2], as_key->p * dy, as_key->relative_error, 0.0);
    }
    for (int64_t part = 0; part < 3; part++)
      bounds[0][at[part] + d] =
          sum_bound(&sums[part], shape->length, outputs[0][at[part] + d], node->outputs[0]->dtype);
  }
}

static void backward_head(const Node *node, const Head *head, double *const *inputs, double *const *outputs,
                          double *const *bounds, const LaunchContext *context) {
  int64_t length = head->shape.length;
  Pair *pairs = vl_allocate((size_t)(length * length) * sizeof *pairs);
  for (int64_t i = 0; i < length * length; i++)
    pairs[i] = pair_of(node, head, i / length, i % length, inputs, context);
  for (int64_t token = 0; token < length; token++)
    backward_token(node, head, pairs, token, inputs, outputs, bounds);
  free(pairs);
}

void attention_bounds(const Node *node, double *const *inputs, double *const *outputs, double *const *bounds,
                      const LaunchContext *context) {
  bool backward = strcmp(node->op->name, "attention_backward") == 0;
  int32_t qkv = backward ? 1 : 0, mask = backward ? 4 : 1;
  Head head = head_of(&node->params, node->inputs[qkv]);
  for (head.sample = 0; head.sample < head.shape.batch; head.sample++) {
    for (head.head = 0; head.head < head.shape.heads; head.head++) {
      fill_head(&head, inputs[qkv], mask < node->input_count ? inputs[mask] : NULL);
      if (backward) backward_head(node, &head, inputs, outputs, bounds, context);
      for (int64_t query = 0; !backward && query < head.shape.length; query++)
        forward_row(node, &head, query, inputs, outputs, bounds, context);
    }
  }
  free(head.scores);
  free(head.errors);
}
