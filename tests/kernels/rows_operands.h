/* What the rows_*.c files are written with: operands by kind, and the families of rows.c. Sizes are small and
 * unlike each other; at least one row of each op has tails in every dimension a kernel may cut into pieces
 * (channels not a multiple of 8, odd rows). */
#ifndef VRAMLAB_TESTS_KERNELS_ROWS_OPERANDS_H
#define VRAMLAB_TESTS_KERNELS_ROWS_OPERANDS_H

#include "tests/kernels/rows.h"

/* The rows of one op follow each other; each family ends with an empty row. */
extern const OpRow conv_rows[], norm_rows[], pointwise_rows[], product_rows[], shape_rows[], training_rows[];

/* An OpRow's build: the op on the operands, whose first output, of several, is y. */
Status row_first_output(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y) VL_CHECKED;

#define ACTIVATION(...)                                                                                      \
  {                                                                                                          \
    .kind = OPERAND_ACTIVATION, .shape = { __VA_ARGS__ }                                                     \
  }
#define FAR_ACTIVATION(...)                                                                                  \
  {                                                                                                          \
    .kind = OPERAND_ACTIVATION, .values = VALUES_FAR, .shape = { __VA_ARGS__ }                               \
  }
#define POSITIVE_ACTIVATION(...)                                                                             \
  {                                                                                                          \
    .kind = OPERAND_ACTIVATION, .values = VALUES_POSITIVE, .shape = { __VA_ARGS__ }                          \
  }
#define WEIGHT(...)                                                                                          \
  {                                                                                                          \
    .kind = OPERAND_WEIGHT, .shape = { __VA_ARGS__ }                                                         \
  }
#define F32(...)                                                                                             \
  {                                                                                                          \
    .kind = OPERAND_F32, .shape = { __VA_ARGS__ }                                                            \
  }
#define POSITIVE(...)                                                                                        \
  {                                                                                                          \
    .kind = OPERAND_F32, .values = VALUES_POSITIVE, .shape = { __VA_ARGS__ }                                 \
  }
#define STATE(...)                                                                                           \
  {                                                                                                          \
    .kind = OPERAND_STATE, .values = VALUES_POSITIVE, .shape = { __VA_ARGS__ }                               \
  }
/* Like STATE, of both signs. */
#define STATE_SIGNED(...)                                                                                    \
  {                                                                                                          \
    .kind = OPERAND_STATE, .shape = { __VA_ARGS__ }                                                          \
  }
#define PADDING(...)                                                                                         \
  {                                                                                                          \
    .kind = OPERAND_STATE, .values = VALUES_PADDED, .shape = { __VA_ARGS__ }                                 \
  }
#define LABELS(samples, classes)                                                                             \
  { .kind = OPERAND_LABELS, .values = VALUES_CLASSES, .shape = {samples}, .count = classes }

#define IGNORABLE_LABELS(samples, classes)                                                                   \
  { .kind = OPERAND_LABELS, .values = VALUES_IGNORABLE, .shape = {samples}, .count = classes }
#define IGNORED_LABELS(samples)                                                                              \
  { .kind = OPERAND_LABELS, .values = VALUES_IGNORED, .shape = {samples}, .count = 1 }
#define CODES(...)                                                                                           \
  {                                                                                                          \
    .kind = OPERAND_CODES, .shape = { __VA_ARGS__ }                                                          \
  }
/* i64. */
#define COUNTER(...)                                                                                         \
  {                                                                                                          \
    .kind = OPERAND_COUNTER, .shape = { __VA_ARGS__ }                                                        \
  }
/* Of rank 0. */
#define STATE_SCALAR                                                                                         \
  { .kind = OPERAND_STATE, .values = VALUES_POSITIVE }
/* Likewise: a factor that has a step skipped. */
#define STATE_ZERO                                                                                           \
  { .kind = OPERAND_STATE, .values = VALUES_ZERO }
/* Of rank 0. */
#define SCALAR                                                                                               \
  { .kind = OPERAND_F32 }
#define MASK(...)                                                                                            \
  {                                                                                                          \
    .kind = OPERAND_STATE, .values = VALUES_MASK, .shape = { __VA_ARGS__ }                                   \
  }
#define INDICES(limit, ...)                                                                                  \
  {                                                                                                          \
    .kind = OPERAND_LABELS, .values = VALUES_CLASSES, .count = limit, .shape = { __VA_ARGS__ }               \
  }
#define IGNORABLE_INDICES(limit, ...)                                                                        \
  {                                                                                                          \
    .kind = OPERAND_LABELS, .values = VALUES_IGNORABLE, .count = limit, .shape = { __VA_ARGS__ }             \
  }
#define IGNORED_INDICES(...)                                                                                 \
  {                                                                                                          \
    .kind = OPERAND_LABELS, .values = VALUES_IGNORED, .count = 1, .shape = { __VA_ARGS__ }                   \
  }

#endif
