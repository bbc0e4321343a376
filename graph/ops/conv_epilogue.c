/* conv with what follows it in evaluation: a bias, a residual addition, a ReLU, on the sum as it is made
 * (the epilogue of a matrix product). What `fold` makes of a convolution and its batch norm; not
 * differentiable. */
#include "graph/ops/ops.h"

enum { INPUT_RESIDUAL = 3 }; /* behind x, weights and bias */

static bool has_residual(const Node *node) {
  return node->input_count > INPUT_RESIDUAL && node->inputs[INPUT_RESIDUAL] != NULL;
}

/* A conv's inputs, its bias among them, are checked as a conv's. */
static Status check_residual(const Node *node, const Tensor *y) {
  if (!has_residual(node)) return vl_ok();
  VL_TRY(op_check_sizes(node, INPUT_RESIDUAL, "residual", y->rank, y->shape));
  DType dtype = node->inputs[INPUT_RESIDUAL]->dtype;
  if (dtype == y->dtype) return vl_ok();
  return op_error(VL_INVALID, node, "residual is %s; expected %s, as x", vl_dtype_name(dtype),
                  vl_dtype_name(y->dtype));
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(op_check_flag(node, "relu", node->params.relu));
  VL_TRY(op_conv.infer(graph, node));
  return check_residual(node, node->outputs[0]);
}

static int64_t flops(const Node *node) {
  int64_t products = op_conv.flops(node), all;
  int64_t per_element = (has_residual(node) ? 1 : 0) + node->params.relu;
  int64_t values = op_multiply(per_element, vl_tensor_elements(node->outputs[0]));
  return __builtin_add_overflow(products, values, &all) ? INT64_MAX : all;
}

static const OpField fields[] = {OP_SPATIAL(stride), OP_SPATIAL(padding), OP_INTEGER(groups),
                                 OP_INTEGER(relu)};

const Op op_conv_epilogue = {.name = "conv_epilogue",
                             OP_FIELDS(fields),
                             .min_inputs = 3,
                             .max_inputs = 4,
                             .precision = PRECISION_LOW,
                             .inplace = {1U << INPUT_RESIDUAL},
                             .infer = infer,
                             .flops = flops};
