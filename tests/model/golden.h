/* tests/model: golden values of a model's step (tests/goldens/NAME.json, made by scripts/goldens). */
#ifndef VRAMLAB_TESTS_MODEL_GOLDEN_H
#define VRAMLAB_TESTS_MODEL_GOLDEN_H

#include "base/base.h"

enum { GOLDEN_SIGNS = 4, GOLDEN_SAMPLES = 32, GOLDEN_STEPS = 3 };

/* What is kept of one tensor; scripts/goldens/golden.py says how signs and places are drawn. */
typedef struct GoldenTensor {
  char name[96];
  bool is_gradient; /* else a statistic */
  int64_t elements;
  double norm, sums[GOLDEN_SIGNS];
  int64_t places[GOLDEN_SAMPLES];
  double values[GOLDEN_SAMPLES];
  double pytorch_f32_error, pytorch_bf16_error; /* PyTorch's own, relative to its float64 */
} GoldenTensor;

typedef struct Golden {
  uint64_t seed, golden_seed;
  int64_t batch, size, parameters;
  double loss, pytorch_f32_loss_error, pytorch_bf16_loss_error;
  double losses[GOLDEN_STEPS];
  GoldenTensor *tensors;
  int32_t tensor_count;
} Golden;

Status golden_load(const char *path, Golden *golden) VL_CHECKED;
void golden_clear(Golden *golden);
const GoldenTensor *golden_find(const Golden *golden, const char *name); /* NULL: no such tensor */
/* The largest difference of norm, sums and samples from the golden ones, relative to its norm; absolute where
 * the golden norm is that of a zero. */
double golden_distance(const Golden *golden, const GoldenTensor *tensor, const double *values);

#endif
