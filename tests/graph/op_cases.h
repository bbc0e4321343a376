/* What the tests of single ops share: one op on given inputs, and what is expected of a status or tensor. */
#ifndef VRAMLAB_TESTS_OP_CASES_H
#define VRAMLAB_TESTS_OP_CASES_H

#include "graph/graph.h"

/* Fail the test unless the status is VL_OK; or VL_INVALID with a message that has `text` in it. */
void expect_ok(Status status);
void expect_invalid(Status status, const char *text);

/* An input tensor. */
Tensor *given(Graph *graph, DType dtype, int32_t rank, const int64_t *shape);
void expect_tensor(const Tensor *tensor, DType dtype, int32_t rank, const int64_t *shape);

/* A tensor's type and shape. */
typedef struct Shaped {
  DType dtype;
  int32_t rank;
  int64_t shape[VL_MAX_DIMS];
} Shaped;

/* One op on given inputs: what comes out. */
typedef struct OpCase {
  const char *op;
  OpParams params;
  Shaped inputs[VL_MAX_INPUTS];
  int32_t input_count;
  Shaped outputs[VL_MAX_OUTPUTS];
  int32_t output_count;
} OpCase;

/* Adds the op, in scope "layer", and its inputs. */
Status add_case(Graph *graph, const OpCase *op_case, Node **node) VL_CHECKED;

#endif
