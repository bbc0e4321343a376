/* Batch normalisation in parts: statistics, application (with the residual addition and the ReLU that may
 * follow), the running statistics, and one backward node, which takes the sum of two gradients where `fuse`
 * found one: a residual's, say, and that of the branch beside it. */
#include "graph/ops/ops.h"

enum { INPUT_X = 0, INPUT_MEAN, INPUT_VAR, INPUT_GAMMA, INPUT_BETA, INPUT_RESIDUAL };
enum {
  BACKWARD_DY = 0,
  BACKWARD_X,
  BACKWARD_MEAN,
  BACKWARD_VAR,
  BACKWARD_GAMMA,
  BACKWARD_BETA,
  BACKWARD_Y,
  BACKWARD_DY2
};
enum { BACKWARD_DX = 0, BACKWARD_DRESIDUAL = 3 }; /* outputs; dgamma and dbeta in between */

static bool has_input(const Node *node, int32_t index) {
  return node->input_count > index && node->inputs[index] != NULL;
}

/* (N, C, ...) with at least one dimension to take statistics over besides N. */
static Status check_activation(const Node *node, int32_t index, const char *name) {
  VL_TRY(op_check_float_input(node, index, name, -1));
  if (node->inputs[index]->rank < 2)
    return op_error(VL_INVALID, node, "%s has %d dimensions; at least 2 (N, C) are needed", name,
                    node->inputs[index]->rank);
  return vl_ok();
}

/* ---- batch_norm_stats ------------------------------------------------------------------------------------- */

static Status infer_stats(Graph *graph, Node *node) {
  VL_TRY(check_activation(node, 0, "x"));
  const Tensor *x = node->inputs[0];
  DType dtype = op_statistics_dtype(x->dtype);
  VL_TRY(op_add_output(graph, node, "mean", dtype, 1, &x->shape[1]));
  return op_add_output(graph, node, "var", dtype, 1, &x->shape[1]);
}

/* The mean: one addition; the variance: difference, square, addition. */
static int64_t flops_stats(const Node *node) { return op_multiply(4, vl_tensor_elements(node->inputs[0])); }

/* ---- batch_norm_apply ------------------------------------------------------------------------------------- */

static bool has_residual(const Node *node) { return has_input(node, INPUT_RESIDUAL); }

static Status infer_apply(Graph *graph, Node *node) {
  VL_TRY(check_activation(node, INPUT_X, "x"));
  const Tensor *x = node->inputs[INPUT_X];
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_check_vector(node, INPUT_MEAN, "mean", x->shape[1], statistics));
  VL_TRY(op_check_vector(node, INPUT_VAR, "var", x->shape[1], statistics));
  VL_TRY(op_check_channels(node, INPUT_GAMMA, "gamma", x->shape[1]));
  VL_TRY(op_check_channels(node, INPUT_BETA, "beta", x->shape[1]));
  if (has_residual(node)) VL_TRY(op_check_alike(node, INPUT_X, INPUT_RESIDUAL));
  VL_TRY(op_check_epsilon(node));
  VL_TRY(op_check_flag(node, "relu", node->params.relu));
  return op_add_output_like(graph, node, NULL, x);
}

/* Scale and shift; then what is fused. */
static int64_t flops_apply(const Node *node) {
  int64_t per_element = 2 + (has_residual(node) ? 1 : 0) + node->params.relu;
  return op_multiply(per_element, vl_tensor_elements(node->inputs[INPUT_X]));
}

/* The backward formula goes through the statistics, so they must be those of this very x. */
static Status check_statistics_of_x(const Node *node) {
  const Tensor *mean = node->inputs[INPUT_MEAN], *var = node->inputs[INPUT_VAR];
  const Node *stats = mean->producer;
  if (stats == NULL || vl_role_is_persistent(mean->storage->role))
    return op_error(VL_UNSUPPORTED, node,
                    "no gradient in evaluation mode (mean is %s); only batch statistics are differentiated",
                    mean->name);
  if (stats->op != &op_batch_norm_stats || stats->outputs[0] != mean || stats->outputs[1] != var ||
      stats->inputs[0] != node->inputs[INPUT_X])
    return op_error(VL_UNSUPPORTED, node,
                    "no gradient: mean %s and var %s are not the batch_norm_stats of x, %s", mean->name,
                    var->name, node->inputs[INPUT_X]->name);
  return vl_ok();
}

/* The backward node for an apply node. Where a ReLU ends it, the mask comes from y only when a residual
 * hides the sign from x: else y can be dropped, or overwritten. */
static Status add_backward(Gradients *gradients, const Node *node, Tensor *dy, bool residual_wanted,
                           Node **backward) {
  Tensor *inputs[VL_MAX_INPUTS] = {dy, node->inputs[INPUT_X], node->inputs[INPUT_MEAN],
                                   node->inputs[INPUT_VAR], node->inputs[INPUT_GAMMA]};
  int32_t count = BACKWARD_GAMMA + 1;
  if (node->params.relu == 1 && has_residual(node)) {
    inputs[BACKWARD_Y] = node->outputs[0];
    count = BACKWARD_Y + 1;
  } else if (node->params.relu == 1) {
    inputs[BACKWARD_BETA] = node->inputs[INPUT_BETA];
    count = BACKWARD_BETA + 1;
  }
  OpParams params = {
      .epsilon = node->params.epsilon, .relu = node->params.relu, .alpha = residual_wanted ? 1 : 0};
  gradients->graph->scope = node->scope;
  return vl_graph_add(gradients->graph, "batch_norm_backward", &params, inputs, count, backward);
}

static Status gradient_apply(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL) return vl_ok();
  bool residual = op_gradient_wanted(gradients, node, INPUT_RESIDUAL);
  bool x = op_gradient_wanted(gradients, node, INPUT_X);
  bool gamma = op_gradient_wanted(gradients, node, INPUT_GAMMA);
  bool beta = op_gradient_wanted(gradients, node, INPUT_BETA);
  /* Without a ReLU the residual's gradient is dy itself: nothing to compute, nothing to store. */
  bool residual_masked = residual && node->params.relu == 1;
  if (x || gamma || beta || residual_masked) {
    VL_TRY(check_statistics_of_x(node));
    Node *backward;
    VL_TRY(add_backward(gradients, node, dy, residual_masked, &backward));
    if (x) VL_TRY(op_gradient_give(gradients, node, INPUT_X, backward->outputs[0]));
    if (gamma) VL_TRY(op_gradient_give(gradients, node, INPUT_GAMMA, backward->outputs[1]));
    if (beta) VL_TRY(op_gradient_give(gradients, node, INPUT_BETA, backward->outputs[2]));
    if (residual_masked) VL_TRY(op_gradient_give(gradients, node, INPUT_RESIDUAL, backward->outputs[3]));
  }
  if (residual && !residual_masked) VL_TRY(op_gradient_give(gradients, node, INPUT_RESIDUAL, dy));
  return vl_ok();
}

/* ---- batch_norm_update ------------------------------------------------------------------------------------ */

static Status infer_update(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "mean", 1));
  const Tensor *mean = node->inputs[0];
  int64_t channels = mean->shape[0];
  VL_TRY(op_check_vector(node, 1, "var", channels, mean->dtype));
  VL_TRY(op_check_vector(node, 2, "running_mean", channels, mean->dtype));
  VL_TRY(op_check_vector(node, 3, "running_var", channels, mean->dtype));
  VL_TRY(op_check_vector(node, 4, "batches", 1, DTYPE_I64));
  if (node->params.count < 2)
    return op_error(VL_INVALID, node,
                    "count = %lld elements per channel; the unbiased variance needs at least 2",
                    (long long)node->params.count);
  if (!(node->params.momentum >= 0 && node->params.momentum <= 1))
    return op_error(VL_INVALID, node, "momentum = %g; must be within 0 and 1", node->params.momentum);
  static const char *const parts[] = {"running_mean", "running_var", "batches"};
  for (int32_t i = 0; i < 3; i++) {
    Tensor *state = node->inputs[2 + i];
    VL_TRY(op_add_view(graph, node, parts[i], state, 1, state->shape));
  }
  return vl_ok();
}

/* Two products and an addition for each running number, and the unbiasing of the variance. */
static int64_t flops_update(const Node *node) { return op_multiply(7, vl_tensor_elements(node->inputs[0])); }

/* ---- batch_norm_backward ---------------------------------------------------------------------------------- */

static Status check_mask_source(const Node *node) {
  const Tensor *x = node->inputs[BACKWARD_X];
  bool beta = has_input(node, BACKWARD_BETA), y = has_input(node, BACKWARD_Y);
  if (beta) VL_TRY(op_check_channels(node, BACKWARD_BETA, "beta", x->shape[1]));
  if (y) VL_TRY(op_check_alike(node, BACKWARD_X, BACKWARD_Y));
  if (node->params.relu == 1 && !beta && !y)
    return op_error(VL_INVALID, node, "relu = 1 needs y, or beta to compute it again; both are missing");
  return vl_ok();
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(check_activation(node, BACKWARD_X, "x"));
  VL_TRY(op_check_alike(node, BACKWARD_DY, BACKWARD_X));
  const Tensor *x = node->inputs[BACKWARD_X];
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_check_vector(node, BACKWARD_MEAN, "mean", x->shape[1], statistics));
  VL_TRY(op_check_vector(node, BACKWARD_VAR, "var", x->shape[1], statistics));
  VL_TRY(op_check_channels(node, BACKWARD_GAMMA, "gamma", x->shape[1]));
  VL_TRY(op_check_epsilon(node));
  VL_TRY(op_check_flag(node, "relu", node->params.relu));
  VL_TRY(check_mask_source(node));
  if (has_input(node, BACKWARD_DY2)) VL_TRY(op_check_alike(node, BACKWARD_X, BACKWARD_DY2));
  if (node->params.alpha != 0 && node->params.alpha != 1)
    return op_error(VL_INVALID, node, "alpha = %g; must be 0, or 1 for the residual's gradient",
                    node->params.alpha);
  VL_TRY(op_add_output_like(graph, node, "dx", x));
  VL_TRY(op_add_output(graph, node, "dgamma", statistics, 1, &x->shape[1]));
  VL_TRY(op_add_output(graph, node, "dbeta", statistics, 1, &x->shape[1]));
  if (node->params.alpha == 1) VL_TRY(op_add_output_like(graph, node, "dresidual", x));
  return vl_ok();
}

/* ---- batch_norm_invert ------------------------------------------------------------------------------------ */

static Status infer_invert(Graph *graph, Node *node) {
  VL_TRY(check_activation(node, INPUT_X, "y"));
  const Tensor *y = node->inputs[INPUT_X];
  DType statistics = op_statistics_dtype(y->dtype);
  VL_TRY(op_check_vector(node, INPUT_MEAN, "mean", y->shape[1], statistics));
  VL_TRY(op_check_vector(node, INPUT_VAR, "var", y->shape[1], statistics));
  VL_TRY(op_check_channels(node, INPUT_GAMMA, "gamma", y->shape[1]));
  VL_TRY(op_check_channels(node, INPUT_BETA, "beta", y->shape[1]));
  VL_TRY(op_check_epsilon(node));
  if (!(node->params.alpha > 0))
    return op_error(VL_INVALID, node, "alpha = %g; a slope of 0 below zero cannot be inverted",
                    node->params.alpha);
  return op_add_output_like(graph, node, NULL, y);
}

/* The slope; difference, quotient, sum. */
static int64_t flops_invert(const Node *node) {
  return op_multiply(4, vl_tensor_elements(node->inputs[INPUT_X]));
}

/* The two sums: difference, product, two additions; dx: two differences and three products; the mask: one
 * comparison, after the forward's scale and shift where it is computed again; the sum of two gradients. */
static int64_t flops_backward(const Node *node) {
  int64_t per_element = 9 + node->params.relu + (has_input(node, BACKWARD_DY2) ? 1 : 0);
  if (node->params.relu == 1 && !has_input(node, BACKWARD_Y)) per_element += 2;
  return op_multiply(per_element, vl_tensor_elements(node->inputs[BACKWARD_X]));
}

static const OpField invert_fields[] = {OP_REAL(epsilon), OP_REAL(alpha)};
static const OpField apply_fields[] = {OP_REAL(epsilon), OP_INTEGER(relu)};
static const OpField update_fields[] = {OP_REAL(momentum), OP_INTEGER(count)};
static const OpField backward_fields[] = {OP_REAL(epsilon), OP_INTEGER(relu), OP_REAL(alpha)};

/* No gradient of its own: batch_norm_apply's goes through the statistics. */
const Op op_batch_norm_stats = {.name = "batch_norm_stats",
                                .min_inputs = 1,
                                .max_inputs = 1,
                                .precision = PRECISION_PROMOTE,
                                .infer = infer_stats,
                                .flops = flops_stats};

const Op op_batch_norm_apply = {.name = "batch_norm_apply",
                                OP_FIELDS(apply_fields),
                                .min_inputs = 5,
                                .max_inputs = 6,
                                .precision = PRECISION_PROMOTE,
                                .inplace = {1U << INPUT_X | 1U << INPUT_RESIDUAL},
                                .infer = infer_apply,
                                .gradient = gradient_apply,
                                .flops = flops_apply};

const Op op_batch_norm_update = {.name = "batch_norm_update",
                                 OP_FIELDS(update_fields),
                                 .min_inputs = 5,
                                 .max_inputs = 5,
                                 .precision = PRECISION_KEEP,
                                 .side_effect = true,
                                 .infer = infer_update,
                                 .flops = flops_update};

const Op op_batch_norm_backward = {.name = "batch_norm_backward",
                                   OP_FIELDS(backward_fields),
                                   .min_inputs = 5,
                                   .max_inputs = 8,
                                   .precision = PRECISION_KEEP,
                                   .inplace = {[BACKWARD_DX] = 1U << BACKWARD_DY | 1U << BACKWARD_DY2,
                                               [BACKWARD_DRESIDUAL] = 1U << BACKWARD_DY | 1U << BACKWARD_DY2},
                                   .infer = infer_backward,
                                   .flops = flops_backward};

const Op op_batch_norm_invert = {.name = "batch_norm_invert",
                                 OP_FIELDS(invert_fields),
                                 .min_inputs = 5,
                                 .max_inputs = 5,
                                 .precision = PRECISION_KEEP,
                                 .inplace = {1U << INPUT_X},
                                 .infer = infer_invert,
                                 .flops = flops_invert};
