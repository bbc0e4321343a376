#include "op_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void expect_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

void expect_invalid(Status status, const char *text) {
  if (status.code != VL_INVALID || strstr(status.message, text) == NULL)
    fail_msg("expected a refusal with '%s', got %s: %s", text, vl_status_name(status.code), status.message);
}

Tensor *given(Graph *graph, DType dtype, int32_t rank, const int64_t *shape) {
  return vl_graph_tensor(graph, "given", ROLE_INPUT, dtype, rank, shape);
}

void expect_tensor(const Tensor *tensor, DType dtype, int32_t rank, const int64_t *shape) {
  assert_int_equal(tensor->dtype, dtype);
  assert_int_equal(tensor->rank, rank);
  for (int32_t i = 0; i < rank; i++)
    assert_int_equal(tensor->shape[i], shape[i]);
}

Status add_case(Graph *graph, const OpCase *op_case, Node **node) {
  Tensor *inputs[VL_MAX_INPUTS];
  for (int32_t i = 0; i < op_case->input_count; i++)
    inputs[i] = given(graph, op_case->inputs[i].dtype, op_case->inputs[i].rank, op_case->inputs[i].shape);
  vl_graph_set_scope(graph, "layer");
  return vl_graph_add(graph, op_case->op, &op_case->params, inputs, op_case->input_count, node);
}
