/* Where attention's tensors have what; shared with the bounds of its kernels. */
#ifndef VRAMLAB_TESTS_REFERENCE_ATTENTION_H
#define VRAMLAB_TESTS_REFERENCE_ATTENTION_H

#include "devices/device.h"

typedef struct AttentionShape {
  int64_t batch, length, heads, size;
  double scale; /* of the scores */
} AttentionShape;
AttentionShape attention_shape(const OpParams *params, const Tensor *qkv);

/* The first element of a token's query (part 0), key (1) or value (2) in qkv. */
int64_t attention_at(const AttentionShape *shape, int64_t sample, int64_t token, int64_t part, int64_t head);
/* The first element of a token's result in y. */
int64_t attention_row(const AttentionShape *shape, int64_t sample, int64_t token, int64_t head);
double attention_dot(const double *a, const double *b, int64_t count);
/* What dropout multiplies a probability by. */
double attention_keep(const AttentionShape *shape, const OpParams *params, const LaunchContext *context,
                      int64_t sample, int64_t head, int64_t query, int64_t key);

#endif
