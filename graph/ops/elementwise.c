/* Element by element: relu, gelu, tanh, their gradients, add, mul, scale. */
#include "graph/ops/ops.h"

static Status infer_unary(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

static Status infer_binary(Graph *graph, Node *node) {
  VL_TRY(op_check_alike(node, 0, 1));
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

/* The gradient of an op with one input, by a node that also reads `saved`. */
static Status give_through(Gradients *gradients, Node *node, const char *backward, Tensor *saved) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *inputs[] = {dy, saved}, *dx;
  VL_TRY(op_gradient_node(gradients, node, backward, NULL, inputs, 2, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

/* From y, not x: y is what the next layer keeps anyway, and x may have been overwritten. */
static Status gradient_relu(Gradients *gradients, Node *node) {
  return give_through(gradients, node, "relu_backward", node->outputs[0]);
}

static Status gradient_tanh(Gradients *gradients, Node *node) {
  return give_through(gradients, node, "tanh_backward", node->outputs[0]);
}

static Status gradient_gelu(Gradients *gradients, Node *node) {
  return give_through(gradients, node, "gelu_backward", node->inputs[0]);
}

static Status gradient_add(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  for (int32_t i = 0; dy != NULL && i < 2; i++) {
    if (op_gradient_wanted(gradients, node, i)) VL_TRY(op_gradient_give(gradients, node, i, dy));
  }
  return vl_ok();
}

static Status gradient_mul(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  for (int32_t i = 0; dy != NULL && i < 2; i++) {
    if (!op_gradient_wanted(gradients, node, i)) continue;
    Tensor *inputs[] = {dy, node->inputs[1 - i]}, *dx;
    VL_TRY(op_gradient_node(gradients, node, "mul", NULL, inputs, 2, &dx));
    VL_TRY(op_gradient_give(gradients, node, i, dx));
  }
  return vl_ok();
}

static Status gradient_scale(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *dx;
  VL_TRY(op_gradient_node(gradients, node, "scale", &node->params, &dy, 1, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

/* x / sqrt(2), erf, 1 +, / 2, x *: erf counts as one. */
static int64_t flops_gelu(const Node *node) { return op_multiply(5, vl_tensor_elements(node->inputs[0])); }

/* Phi(x) as above without the last product; the density: square, / -2, exp, constant; x *, +, dy *. */
static int64_t flops_gelu_backward(const Node *node) {
  return op_multiply(11, vl_tensor_elements(node->inputs[0]));
}

/* Square, difference, product; tanh itself counts as one. */
static int64_t flops_tanh_backward(const Node *node) {
  return op_multiply(3, vl_tensor_elements(node->inputs[0]));
}

static const OpField scale_fields[] = {OP_REAL(alpha)};

const Op op_relu = {.name = "relu",
                    .min_inputs = 1,
                    .max_inputs = 1,
                    .precision = PRECISION_PROMOTE,
                    .inplace = {1U << 0},
                    .infer = infer_unary,
                    .gradient = gradient_relu};

const Op op_relu_backward = {.name = "relu_backward",
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .precision = PRECISION_KEEP,
                             .inplace = {1U << 0},
                             .infer = infer_binary};

const Op op_gelu = {.name = "gelu",
                    .min_inputs = 1,
                    .max_inputs = 1,
                    .precision = PRECISION_PROMOTE,
                    .infer = infer_unary,
                    .gradient = gradient_gelu,
                    .flops = flops_gelu};

const Op op_gelu_backward = {.name = "gelu_backward",
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .precision = PRECISION_KEEP,
                             .inplace = {1U << 0},
                             .infer = infer_binary,
                             .flops = flops_gelu_backward};

const Op op_tanh = {.name = "tanh",
                    .min_inputs = 1,
                    .max_inputs = 1,
                    .precision = PRECISION_PROMOTE,
                    .inplace = {1U << 0},
                    .infer = infer_unary,
                    .gradient = gradient_tanh};

const Op op_tanh_backward = {.name = "tanh_backward",
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .precision = PRECISION_KEEP,
                             .inplace = {1U << 0},
                             .infer = infer_binary,
                             .flops = flops_tanh_backward};

const Op op_add = {.name = "add",
                   .min_inputs = 2,
                   .max_inputs = 2,
                   .precision = PRECISION_PROMOTE,
                   .inplace = {1U << 0 | 1U << 1},
                   .infer = infer_binary,
                   .gradient = gradient_add};

const Op op_mul = {.name = "mul",
                   .min_inputs = 2,
                   .max_inputs = 2,
                   .precision = PRECISION_PROMOTE,
                   .inplace = {1U << 0 | 1U << 1},
                   .infer = infer_binary,
                   .gradient = gradient_mul};

const Op op_scale = {.name = "scale",
                     OP_FIELDS(scale_fields),
                     .min_inputs = 1,
                     .max_inputs = 1,
                     .precision = PRECISION_PROMOTE,
                     .inplace = {1U << 0},
                     .infer = infer_unary,
                     .gradient = gradient_scale};
