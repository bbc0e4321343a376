/* softmax over the last dimension, and its gradient. */
#include "graph/ops/ops.h"

static Status check_mask(const Node *node) {
  const Tensor *x = node->inputs[0], *mask = node->inputs[1];
  DType dtype = op_statistics_dtype(x->dtype);
  if (mask->dtype != dtype)
    return op_error(VL_INVALID, node, "mask is %s; expected %s", vl_dtype_name(mask->dtype),
                    vl_dtype_name(dtype));
  int32_t added = x->rank - mask->rank;
  bool fits = added >= 0 && mask->rank > 0 && mask->shape[mask->rank - 1] == x->shape[x->rank - 1];
  for (int32_t i = 0; fits && i < mask->rank; i++)
    fits = mask->shape[i] == 1 || mask->shape[i] == x->shape[added + i];
  if (fits) return vl_ok();
  char given[96], wanted[96];
  vl_tensor_describe(mask, given, sizeof given);
  vl_tensor_describe(x, wanted, sizeof wanted);
  return op_error(
      VL_INVALID, node,
      "mask %s does not repeat to x %s; aligned at the last dimension, which must be equal, others "
      "may be 1",
      given, wanted);
}

static bool has_mask(const Node *node) { return node->input_count > 1 && node->inputs[1] != NULL; }

static Status infer(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  if (node->inputs[0]->rank < 1) return op_error(VL_INVALID, node, "x is a scalar; a row is needed");
  if (has_mask(node)) VL_TRY(check_mask(node));
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

/* From y alone: neither x nor the mask is kept. */
static Status gradient(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL) return vl_ok();
  if (op_gradient_wanted(gradients, node, 1))
    return op_error(VL_UNSUPPORTED, node, "no gradient of the mask; only of x");
  if (!op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *inputs[] = {dy, node->outputs[0]}, *dx;
  VL_TRY(op_gradient_node(gradients, node, "softmax_backward", &node->params, inputs, 2, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(op_check_alike(node, 0, 1));
  if (node->inputs[0]->rank < 1) return op_error(VL_INVALID, node, "dy is a scalar; a row is needed");
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

/* Scale, (mask,) maximum, difference, exp, sum, quotient. */
static int64_t flops(const Node *node) {
  return op_multiply(has_mask(node) ? 7 : 6, vl_tensor_elements(node->inputs[0]));
}

/* dy y and its sum, difference, two products. */
static int64_t flops_backward(const Node *node) {
  return op_multiply(5, vl_tensor_elements(node->inputs[0]));
}

static const OpField fields[] = {OP_REAL(alpha)};

const Op op_softmax = {.name = "softmax",
                       OP_FIELDS(fields),
                       .min_inputs = 1,
                       .max_inputs = 2,
                       .precision = PRECISION_FP32,
                       .inplace = {1U << 0},
                       .infer = infer,
                       .gradient = gradient,
                       .flops = flops};

const Op op_softmax_backward = {.name = "softmax_backward",
                                OP_FIELDS(fields),
                                .min_inputs = 2,
                                .max_inputs = 2,
                                .precision = PRECISION_KEEP,
                                .inplace = {1U << 0 | 1U << 1},
                                .infer = infer_backward,
                                .flops = flops_backward};
