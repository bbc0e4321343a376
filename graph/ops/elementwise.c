/* Element by element: relu, gelu, tanh, rsqrt, magnitude, their gradients, add, mul, scale. */
#include "graph/ops/ops.h"

#include <string.h>

static Status infer_unary(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

static Status infer_binary(Graph *graph, Node *node) {
  VL_TRY(op_check_alike(node, 0, 1));
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

/* b has a's shape or is repeated to it, as in broadcast. */
static Status infer_repeating(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "a", -1));
  VL_TRY(op_check_float_input(node, 1, "b", -1));
  const Tensor *a = node->inputs[0], *b = node->inputs[1];
  bool fits = b->rank <= a->rank && a->dtype == b->dtype;
  for (int32_t i = 0; fits && i < b->rank; i++)
    fits = b->shape[i] == 1 || b->shape[i] == a->shape[a->rank - b->rank + i];
  if (!fits) return op_check_alike(node, 0, 1); /* says what clashes */
  return op_add_output_like(graph, node, NULL, a);
}

/* Gives input `index` a gradient of the output's shape, summed over what was repeated. */
static Status give_summed(Gradients *gradients, Node *node, int32_t index, Tensor *gradient) {
  const Tensor *input = node->inputs[index];
  OpParams sum = {.dtype = input->dtype}, shape = {0};
  for (int32_t i = 0; i < gradient->rank; i++) {
    int32_t of_input = i - (gradient->rank - input->rank);
    if (of_input < 0 || input->shape[of_input] != gradient->shape[i]) sum.axes[sum.axis_count++] = i;
  }
  if (sum.axis_count > 0) VL_TRY(op_gradient_node(gradients, node, "sum", &sum, &gradient, 1, &gradient));
  op_set_shape(&shape, input);
  if (!vl_tensor_same_shape(gradient, input))
    VL_TRY(op_gradient_node(gradients, node, "reshape", &shape, &gradient, 1, &gradient));
  return op_gradient_give(gradients, node, index, gradient);
}

/* The gradient of an op with one input, by a node that also reads `saved`. */
static Status give_through(Gradients *gradients, Node *node, const char *backward, Tensor *saved) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *inputs[] = {dy, saved}, *dx;
  VL_TRY(op_gradient_node(gradients, node, backward, NULL, inputs, 2, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

/* Copies of dy that autograd holds while it makes dx. Where a ReLU wrote over a view (what nn.InstanceNorm
 * returns is one, of a batch norm's result) the gradient is that of the whole the view is of: dy in place of
 * it (CopySlices), and a clone of its part. */
enum { COPIES_OF_VIEWS = 2 };

static int64_t copies_of(const Node *relu) {
  const Node *maker = relu->inputs[0]->producer;
  bool is_view = maker && strcmp(maker->op->name, "instance_norm") == 0;
  return relu->inplace_hint && is_view ? COPIES_OF_VIEWS : 0;
}

/* From y, not x: y is what the next layer keeps anyway, and x may have been overwritten. */
static Status gradient_relu(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *inputs[] = {dy, node->outputs[0]}, *dx;
  OpParams params = node->params;
  params.count = copies_of(node);
  VL_TRY(op_gradient_node(gradients, node, "relu_backward", &params, inputs, 2, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static Status gradient_magnitude(Gradients *gradients, Node *node) {
  return give_through(gradients, node, "magnitude_backward", node->inputs[0]);
}

static Status gradient_tanh(Gradients *gradients, Node *node) {
  return give_through(gradients, node, "tanh_backward", node->outputs[0]);
}

static Status gradient_rsqrt(Gradients *gradients, Node *node) {
  return give_through(gradients, node, "rsqrt_backward", node->outputs[0]);
}

static Status gradient_gelu(Gradients *gradients, Node *node) {
  return give_through(gradients, node, "gelu_backward", node->inputs[0]);
}

static Status gradient_add(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  for (int32_t i = 0; dy != NULL && i < 2; i++) {
    if (op_gradient_wanted(gradients, node, i)) VL_TRY(give_summed(gradients, node, i, dy));
  }
  return vl_ok();
}

static Status gradient_mul(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  for (int32_t i = 0; dy != NULL && i < 2; i++) {
    if (!op_gradient_wanted(gradients, node, i)) continue;
    Tensor *inputs[] = {dy, node->inputs[1 - i]}, *dx;
    VL_TRY(op_gradient_node(gradients, node, "mul", NULL, inputs, 2, &dx));
    VL_TRY(give_summed(gradients, node, i, dx));
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
  return op_multiply(11 + (node->params.alpha == 1 ? 1 : 0), vl_tensor_elements(node->inputs[0]));
}

/* Square, difference, product; tanh itself counts as one. */
static int64_t flops_tanh_backward(const Node *node) {
  return op_multiply(3, vl_tensor_elements(node->inputs[0]));
}

/* The slope below zero; it keeps signs, by which the gradient goes. */
static Status check_slope(const Node *node) {
  if (node->params.alpha >= 0) return vl_ok();
  return op_error(VL_INVALID, node, "alpha = %g; the slope below zero must be at least 0",
                  node->params.alpha);
}

/* With alpha the gradient of a bias that was added to x. */
static Status infer_gelu_backward(Graph *graph, Node *node) {
  VL_TRY(infer_binary(graph, node));
  if (node->params.alpha == 0) return vl_ok();
  const Tensor *x = node->inputs[1];
  if (node->params.alpha != 1 || x->rank < 1)
    return op_error(VL_INVALID, node,
                    "alpha = %g; must be 0, or 1 for the bias's gradient, of x's last dimension",
                    node->params.alpha);
  return op_add_output(graph, node, "dbias", op_statistics_dtype(x->dtype), 1, &x->shape[x->rank - 1]);
}

static Status infer_relu(Graph *graph, Node *node) {
  VL_TRY(check_slope(node));
  return infer_unary(graph, node);
}

static Status infer_relu_backward(Graph *graph, Node *node) {
  VL_TRY(check_slope(node));
  int64_t copies = node->params.count;
  if (copies != 0 && copies != COPIES_OF_VIEWS)
    return op_error(VL_INVALID, node, "count = %lld; must be 0, or %d copies of dy", (long long)copies,
                    COPIES_OF_VIEWS);
  VL_TRY(infer_binary(graph, node));
  for (int64_t i = 0; i < copies; i++)
    VL_TRY(op_add_output_like(graph, node, "copy", node->inputs[0]));
  return vl_ok();
}

static int64_t flops_of_input(const Node *node) { return vl_tensor_elements(node->inputs[0]); }

static Status infer_with_epsilon(Graph *graph, Node *node) {
  VL_TRY(op_check_epsilon(node));
  return infer_unary(graph, node);
}

/* Sum, root, quotient. */
static int64_t flops_rsqrt(const Node *node) { return op_multiply(3, vl_tensor_elements(node->inputs[0])); }

/* y^3 is two products, dy and the factor two more. */
static int64_t flops_rsqrt_backward(const Node *node) {
  return op_multiply(4, vl_tensor_elements(node->inputs[0]));
}

static const OpField alpha_fields[] = {OP_REAL(alpha)};
static const OpField relu_backward_fields[] = {OP_REAL(alpha), OP_INTEGER(count)};
static const OpField epsilon_fields[] = {OP_REAL(epsilon)};

const Op op_relu = {.name = "relu",
                    OP_FIELDS(alpha_fields),
                    .min_inputs = 1,
                    .max_inputs = 1,
                    .precision = PRECISION_PROMOTE,
                    .inplace = {1U << 0},
                    .infer = infer_relu,
                    .gradient = gradient_relu};

const Op op_relu_backward = {.name = "relu_backward",
                             OP_FIELDS(relu_backward_fields),
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .precision = PRECISION_KEEP,
                             .inplace = {1U << 0},
                             .infer = infer_relu_backward,
                             .flops = flops_of_input};

const Op op_magnitude = {.name = "magnitude",
                         OP_FIELDS(epsilon_fields),
                         .min_inputs = 1,
                         .max_inputs = 1,
                         .precision = PRECISION_PROMOTE,
                         .infer = infer_with_epsilon,
                         .gradient = gradient_magnitude};

const Op op_magnitude_backward = {.name = "magnitude_backward",
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
                             OP_FIELDS(alpha_fields),
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .precision = PRECISION_KEEP,
                             .inplace = {1U << 0},
                             .infer = infer_gelu_backward,
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

const Op op_rsqrt = {.name = "rsqrt",
                     OP_FIELDS(epsilon_fields),
                     .min_inputs = 1,
                     .max_inputs = 1,
                     .precision = PRECISION_PROMOTE,
                     .inplace = {1U << 0},
                     .infer = infer_with_epsilon,
                     .gradient = gradient_rsqrt,
                     .flops = flops_rsqrt};

const Op op_rsqrt_backward = {.name = "rsqrt_backward",
                              .min_inputs = 2,
                              .max_inputs = 2,
                              .precision = PRECISION_KEEP,
                              .inplace = {1U << 0},
                              .infer = infer_binary,
                              .flops = flops_rsqrt_backward};

const Op op_add = {.name = "add",
                   .min_inputs = 2,
                   .max_inputs = 2,
                   .precision = PRECISION_PROMOTE,
                   .inplace = {1U << 0 | 1U << 1},
                   .infer = infer_repeating,
                   .gradient = gradient_add};

const Op op_mul = {.name = "mul",
                   .min_inputs = 2,
                   .max_inputs = 2,
                   .precision = PRECISION_PROMOTE,
                   .inplace = {1U << 0 | 1U << 1},
                   .infer = infer_repeating,
                   .gradient = gradient_mul};

const Op op_scale = {.name = "scale",
                     OP_FIELDS(alpha_fields),
                     .min_inputs = 1,
                     .max_inputs = 1,
                     .precision = PRECISION_PROMOTE,
                     .inplace = {1U << 0},
                     .infer = infer_unary,
                     .gradient = gradient_scale};
