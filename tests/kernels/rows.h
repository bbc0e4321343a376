/* The table of op tests: each row is a small graph around one op. rows_*.c have them by kind of op. */
#ifndef VRAMLAB_TESTS_KERNELS_ROWS_H
#define VRAMLAB_TESTS_KERNELS_ROWS_H

#include "tests/kernels/compare.h"

/* What an operand's values are. */
typedef enum Values {
  VALUES_SIGNED = 0, /* variance 1 around 0 */
  VALUES_FAR,        /* variance 1 around 1000 */
  VALUES_POSITIVE,   /* within [0.25, 1.75]: variances, scales */
  VALUES_MASK,       /* within [-1, 1.75], or -inf, about one in five */
  VALUES_CLASSES,    /* i32 in [0, count) */
  VALUES_IGNORABLE,  /* likewise, but every third is VL_IGNORED_LABEL */
  VALUES_IGNORED,    /* VL_IGNORED_LABEL throughout */
  VALUES_PADDED,     /* -infinity in the first three quarters of the last dimension, else 0 */
  VALUES_ZERO
} Values;

typedef enum OperandKind {
  OPERAND_END = 0,
  OPERAND_ACTIVATION, /* in the run's dtype; has a gradient */
  OPERAND_WEIGHT,     /* likewise; laid out as the device likes */
  OPERAND_F32,        /* f32 in every run; has a gradient */
  OPERAND_STATE,      /* f32 in every run, without a gradient */
  OPERAND_COUNTER,    /* i64, from 41 on */
  OPERAND_LABELS,     /* i32 */
  OPERAND_CODES       /* u8, any value, without a gradient */
} OperandKind;

typedef struct Operand {
  OperandKind kind;
  Values values;
  int64_t shape[VL_MAX_DIMS]; /* ends at the first 0 */
  int64_t count;              /* of classes */
} Operand;

enum { ROW_OPERANDS = 7 }; /* at most */

typedef struct OpRow OpRow;
struct OpRow {
  const char *op;
  const char *what; /* what this row adds: "groups 4", "odd sizes" */
  OpParams params;
  Operand operands[ROW_OPERANDS];
  bool dtype_of_run; /* params.dtype is the run's dtype */
  bool no_gradient;  /* the op alone: nothing to differentiate */
  bool f32_only;
  int64_t counted_rows; /* as LaunchContext has it; at least the row's own, for which bounds are */
  /* Builds the graph up to y from the operands' tensors; NULL: the op on the operands. */
  Status (*build)(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y);
};

/* All rows, those of one op one after the other; NULL after the last. */
const OpRow *op_row(int32_t index);

/* A row made a program in `dtype`: y from its operands, weighted by a random tensor and summed to a scalar
 * loss, differentiated; and the values of everything nobody computes. */
typedef struct RowProgram {
  Program program;
  Evaluation *evaluation;
} RowProgram;
Status row_program_create(const OpRow *row, DType dtype, bool weight_gradient_first, uint64_t seed,
                          RowProgram *made) VL_CHECKED;
void row_program_destroy(RowProgram *made);

#endif
