/* Instance normalisation over the space of each sample and channel, with the ReLU that may end it, and its
 * one backward node, which takes the sum of two gradients where `fuse` found one: a skip connection's, say.
 */
#include "graph/ops/ops.h"

enum { INPUT_X = 0, INPUT_GAMMA, INPUT_BETA };
enum { OUTPUT_Y = 0, OUTPUT_MEAN, OUTPUT_RSTD };
enum {
  BACKWARD_DY = 0,
  BACKWARD_X,
  BACKWARD_MEAN,
  BACKWARD_RSTD,
  BACKWARD_GAMMA,
  BACKWARD_BETA,
  BACKWARD_DY2
};

static bool has_input(const Node *node, int32_t index) {
  return node->input_count > index && node->inputs[index] != NULL;
}

/* (N, C, ...) with more than one value to take statistics over, as PyTorch asks for. */
static Status check_x(const Node *node, int32_t index) {
  VL_TRY(op_check_float_input(node, index, "x", -1));
  const Tensor *x = node->inputs[index];
  if (x->rank < 3)
    return op_error(VL_INVALID, node, "x has %d dimensions; at least 3 (N, C and space) are needed", x->rank);
  if (vl_tensor_elements(x) > x->shape[0] * x->shape[1]) return vl_ok();
  return op_error(VL_INVALID, node, "x has 1 value a sample and channel; its variance needs at least 2");
}

static Status check_activation(const Node *node) {
  const OpParams *params = &node->params;
  VL_TRY(op_check_flag(node, "relu", params->relu));
  bool slope = params->alpha >= 0 && params->alpha <= 1 && (params->relu == 1 || params->alpha == 0);
  if (slope) return vl_ok();
  return op_error(VL_INVALID, node,
                  "alpha = %g with relu = %lld; the ReLU's slope below zero must be within 0 and 1, and 0 "
                  "without a ReLU",
                  params->alpha, (long long)params->relu);
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(check_x(node, INPUT_X));
  const Tensor *x = node->inputs[INPUT_X];
  VL_TRY(op_check_channels(node, INPUT_GAMMA, "gamma", x->shape[1]));
  VL_TRY(op_check_channels(node, INPUT_BETA, "beta", x->shape[1]));
  VL_TRY(op_check_epsilon(node));
  VL_TRY(check_activation(node));
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_add_output_like(graph, node, "y", x));
  VL_TRY(op_add_output(graph, node, "mean", statistics, 2, x->shape));
  return op_add_output(graph, node, "rstd", statistics, 2, x->shape);
}

/* One number a sample and channel. */
static Status check_statistic(const Node *node, int32_t index, const char *name) {
  const Tensor *x = node->inputs[BACKWARD_X];
  DType expected = op_statistics_dtype(x->dtype);
  VL_TRY(op_check_sizes(node, index, name, 2, x->shape));
  DType found = node->inputs[index]->dtype;
  if (found == expected) return vl_ok();
  return op_error(VL_INVALID, node, "%s is %s; expected %s", name, vl_dtype_name(found),
                  vl_dtype_name(expected));
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(check_x(node, BACKWARD_X));
  VL_TRY(op_check_alike(node, BACKWARD_DY, BACKWARD_X));
  const Tensor *x = node->inputs[BACKWARD_X];
  VL_TRY(check_statistic(node, BACKWARD_MEAN, "mean"));
  VL_TRY(check_statistic(node, BACKWARD_RSTD, "rstd"));
  VL_TRY(op_check_channels(node, BACKWARD_GAMMA, "gamma", x->shape[1]));
  VL_TRY(check_activation(node));
  if (has_input(node, BACKWARD_BETA))
    VL_TRY(op_check_channels(node, BACKWARD_BETA, "beta", x->shape[1]));
  else if (node->params.relu == 1)
    return op_error(VL_INVALID, node, "relu = 1 needs beta, to find the sign of y again");
  if (has_input(node, BACKWARD_DY2)) VL_TRY(op_check_alike(node, BACKWARD_DY2, BACKWARD_X));
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_add_output_like(graph, node, "dx", x));
  VL_TRY(op_add_output(graph, node, "dgamma", statistics, 1, &x->shape[1]));
  return op_add_output(graph, node, "dbeta", statistics, 1, &x->shape[1]);
}

/* The backward formula goes through the statistics: they have no gradient of their own. */
static Status check_only_y(const Gradients *gradients, const Node *node) {
  for (int32_t i = OUTPUT_MEAN; i <= OUTPUT_RSTD; i++) {
    const Tensor *output = node->outputs[i];
    if (output != NULL && vl_gradient_of(gradients, output) != NULL)
      return op_error(VL_UNSUPPORTED, node, "no gradient through %s; only through y", output->name);
  }
  return vl_ok();
}

static Status gradient(Gradients *gradients, Node *node) {
  VL_TRY(check_only_y(gradients, node));
  Tensor *dy = vl_gradient_of(gradients, node->outputs[OUTPUT_Y]);
  bool wanted = false;
  for (int32_t i = INPUT_X; i <= INPUT_BETA; i++)
    wanted = wanted || op_gradient_wanted(gradients, node, i);
  if (dy == NULL || !wanted) return vl_ok();
  Tensor *inputs[] = {dy,
                      node->inputs[INPUT_X],
                      node->outputs[OUTPUT_MEAN],
                      node->outputs[OUTPUT_RSTD],
                      node->inputs[INPUT_GAMMA],
                      node->inputs[INPUT_BETA]};
  OpParams params = {.relu = node->params.relu, .alpha = node->params.alpha};
  int32_t count = node->params.relu == 1 ? BACKWARD_BETA + 1 : BACKWARD_GAMMA + 1;
  gradients->graph->scope = node->scope;
  Node *backward;
  VL_TRY(vl_graph_add(gradients->graph, "instance_norm_backward", &params, inputs, count, &backward));
  for (int32_t i = INPUT_X; i <= INPUT_BETA; i++) /* dx, dgamma, dbeta */
    if (op_gradient_wanted(gradients, node, i))
      VL_TRY(op_gradient_give(gradients, node, i, backward->outputs[i]));
  return vl_ok();
}

/* The mean: one addition; the variance: difference, square, addition; y: scale and shift, and the ReLU. */
static int64_t flops(const Node *node) {
  return op_multiply(6 + node->params.relu, vl_tensor_elements(node->inputs[INPUT_X]));
}

/* The two sums: difference, product, two additions; dx: two differences and three products; the mask: one
 * comparison, after the forward's scale and shift; the sum of two gradients. */
static int64_t flops_backward(const Node *node) {
  int64_t per_element = 9 + 3 * node->params.relu + (has_input(node, BACKWARD_DY2) ? 1 : 0);
  return op_multiply(per_element, vl_tensor_elements(node->inputs[BACKWARD_X]));
}

static const OpField fields[] = {OP_REAL(epsilon), OP_INTEGER(relu), OP_REAL(alpha)};
static const OpField backward_fields[] = {OP_INTEGER(relu), OP_REAL(alpha)};

/* No autocast list of PyTorch's has it: it runs in x's type, with parameters and statistics in f32. */
const Op op_instance_norm = {.name = "instance_norm",
                             OP_FIELDS(fields),
                             .min_inputs = 3,
                             .max_inputs = 3,
                             .precision = PRECISION_PROMOTE,
                             .inplace = {1U << INPUT_X},
                             .infer = infer,
                             .gradient = gradient,
                             .flops = flops};

const Op op_instance_norm_backward = {.name = "instance_norm_backward",
                                      OP_FIELDS(backward_fields),
                                      .min_inputs = 5,
                                      .max_inputs = 7,
                                      .precision = PRECISION_KEEP,
                                      .inplace = {1U << BACKWARD_DY | 1U << BACKWARD_X | 1U << BACKWARD_DY2},
                                      .infer = infer_backward,
                                      .flops = flops_backward};
