/* Attention, one row of probabilities at a time, and its gradient. */
#include "tests/reference/attention.h"
#include "tests/reference/ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

AttentionShape attention_shape(const OpParams *params, const Tensor *qkv) {
  AttentionShape shape = {.batch = qkv->shape[0],
                          .length = qkv->shape[1],
                          .heads = qkv->shape[3],
                          .size = qkv->shape[4],
                          .scale = params->alpha};
  if (params->alpha == 0.0) shape.scale = 1.0 / sqrt((double)shape.size);
  return shape;
}

int64_t attention_at(const AttentionShape *shape, int64_t sample, int64_t token, int64_t part, int64_t head) {
  return (((sample * shape->length + token) * 3 + part) * shape->heads + head) * shape->size;
}

int64_t attention_row(const AttentionShape *shape, int64_t sample, int64_t token, int64_t head) {
  return ((sample * shape->length + token) * shape->heads + head) * shape->size;
}

double attention_dot(const double *a, const double *b, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; i++)
    sum += a[i] * b[i];
  return sum;
}

double attention_keep(const AttentionShape *shape, const OpParams *params, const LaunchContext *context,
                      int64_t sample, int64_t head, int64_t query, int64_t key) {
  if (params->rate == 0.0) return 1.0;
  uint64_t random_key = vl_random_key(context->seed, context->step, params->random_scope);
  int64_t element = (head * shape->length + query) * shape->length + key;
  uint32_t word = vl_random_word(random_key, (uint64_t)(context->first_sample + sample), (uint64_t)element);
  return (double)vl_random_unit(word) >= params->rate ? 1.0 / (1.0 - params->rate) : 0.0;
}

/* The scores of one query. */
static void fill_scores(const AttentionShape *shape, const double *qkv, const double *mask, int64_t b,
                        int64_t h, int64_t q, double *scores) {
  for (int64_t k = 0; k < shape->length; k++) {
    scores[k] = shape->scale * attention_dot(qkv + attention_at(shape, b, q, 0, h),
                                             qkv + attention_at(shape, b, k, 1, h), shape->size);
    if (mask) scores[k] += mask[b * shape->length + k];
  }
}

static void attention(const Node *node, const Arrays *arrays) {
  AttentionShape shape = attention_shape(&node->params, node->inputs[0]);
  const double *qkv = arrays->inputs[0], *mask = node->input_count > 1 ? arrays->inputs[1] : NULL;
  double *scores = vl_allocate((size_t)shape.length * sizeof *scores);
  for (int64_t i = 0; i < shape.batch * shape.heads * shape.length; i++) {
    int64_t b = i / (shape.heads * shape.length), h = i / shape.length % shape.heads, q = i % shape.length;
    fill_scores(&shape, qkv, mask, b, h, q, scores);
    double top = -(double)INFINITY, sum = 0.0;
    for (int64_t k = 0; k < shape.length; k++)
      top = fmax(top, scores[k]);
    for (int64_t k = 0; k < shape.length; k++)
      sum += exp(scores[k] - top);
    double *y = arrays->outputs[0] + attention_row(&shape, b, q, h);
    memset(y, 0, (size_t)shape.size * sizeof *y);
    for (int64_t k = 0; k < shape.length; k++) {
      double weight =
          exp(scores[k] - top) / sum * attention_keep(&shape, &node->params, arrays->context, b, h, q, k);
      for (int64_t d = 0; d < shape.size; d++)
        y[d] += weight * qkv[attention_at(&shape, b, k, 2, h) + d];
    }
    if (arrays->outputs[1]) arrays->outputs[1][i] = top + log(sum);
  }
  free(scores);
}

static void attention_backward(const Node *node, const Arrays *arrays) {
  AttentionShape shape = attention_shape(&node->params, node->inputs[1]);
  const double *dy = arrays->inputs[0], *qkv = arrays->inputs[1], *y = arrays->inputs[2],
               *lse = arrays->inputs[3], *mask = node->input_count > 4 ? arrays->inputs[4] : NULL;
  double *dqkv = arrays->outputs[0], *scores = vl_allocate((size_t)shape.length * sizeof *scores);
  memset(dqkv, 0, (size_t)vl_tensor_elements(node->outputs[0]) * sizeof *dqkv);
  for (int64_t i = 0; i < shape.batch * shape.heads * shape.length; i++) {
    int64_t b = i / (shape.heads * shape.length), h = i / shape.length % shape.heads, q = i % shape.length;
    int64_t row = attention_row(&shape, b, q, h), at_q = attention_at(&shape, b, q, 0, h);
    double delta = attention_dot(dy + row, y + row, shape.size);
    fill_scores(&shape, qkv, mask, b, h, q, scores);
    for (int64_t k = 0; k < shape.length; k++) {
      int64_t at_k = attention_at(&shape, b, k, 1, h), at_v = attention_at(&shape, b, k, 2, h);
      double keep = attention_keep(&shape, &node->params, arrays->context, b, h, q, k);
      double p = exp(scores[k] - lse[i]);
      double ds = p * (keep * attention_dot(dy + row, qkv + at_v, shape.size) - delta) * shape.scale;
      for (int64_t d = 0; d < shape.size; d++) {
        dqkv[at_q + d] += ds * qkv[at_k + d];
        dqkv[at_k + d] += ds * qkv[at_q + d];
        dqkv[at_v + d] += keep * p * dy[row + d];
      }
    }
  }
  free(scores);
}

const ReferenceOp reference_attention_ops[] = {
    {"attention", attention}, {"attention_backward", attention_backward}, {NULL, NULL}};
