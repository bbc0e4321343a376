/* conv and its two gradients. Weights are (O, I/g, ...): already divided by the groups, so nothing below
 * divides by them again (fault case E2). FLOPs are 2 x multiply-adds. */
#include "graph/ops/ops.h"

/* Inputs of conv. */
enum { CONV_X = 0, CONV_W, CONV_BIAS };
/* Inputs of conv_backward_weights. */
enum { WEIGHTS_X = 0, WEIGHTS_DY, WEIGHTS_MEAN, WEIGHTS_VAR, WEIGHTS_GAMMA, WEIGHTS_BETA };

/* The shape of y for x and w. Groups are checked here alone, for every path (fault case E1). */
static Status output_sizes(const Node *node, int32_t rank, const int64_t *x, const int64_t *w, int64_t *y) {
  int64_t groups = node->params.groups;
  if (groups < 1 || x[1] % groups != 0 || w[0] % groups != 0)
    return op_error(
        VL_INVALID, node,
        "groups = %lld must be at least 1 and divide both channel counts, input %lld and output %lld",
        (long long)groups, (long long)x[1], (long long)w[0]);
  if (w[1] != x[1] / groups)
    return op_error(VL_INVALID, node,
                    "weights have %lld input channels per group; %lld channels in %lld groups need %lld",
                    (long long)w[1], (long long)x[1], (long long)groups, (long long)(x[1] / groups));
  y[0] = x[0];
  y[1] = w[0];
  return op_window_sizes(node, rank - 2, x + 2, w + 2, y + 2);
}

static Status check_rank(const Node *node, int32_t index, const char *name) {
  VL_TRY(op_check_float_input(node, index, name, -1));
  int32_t rank = node->inputs[index]->rank;
  if (rank != 4 && rank != 5)
    return op_error(VL_INVALID, node,
                    "%s has %d dimensions; 4 (N, C, H, W) or 5 (N, C, D, H, W) are possible", name, rank);
  return vl_ok();
}

static Status check_pair(const Node *node, const char *first, const char *second) {
  VL_TRY(check_rank(node, 0, first));
  VL_TRY(op_check_float_input(node, 1, second, node->inputs[0]->rank));
  if (node->inputs[0]->dtype != node->inputs[1]->dtype)
    return op_error(VL_INVALID, node, "%s is %s and %s %s; must be the same type", first,
                    vl_dtype_name(node->inputs[0]->dtype), second, vl_dtype_name(node->inputs[1]->dtype));
  return vl_ok();
}

/* params.shape of a gradient's target has the rank of the inputs. */
static Status check_target(const Node *node) {
  VL_TRY(op_check_shape(node, node->params.rank, node->params.shape));
  if (node->params.rank != node->inputs[0]->rank)
    return op_error(VL_INVALID, node, "shape has %lld dimensions, the inputs %d",
                    (long long)node->params.rank, node->inputs[0]->rank);
  return vl_ok();
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(check_pair(node, "x", "weights"));
  const Tensor *x = node->inputs[0];
  int64_t y[VL_MAX_DIMS];
  VL_TRY(output_sizes(node, x->rank, x->shape, node->inputs[CONV_W]->shape, y));
  VL_TRY(op_check_bias(node, CONV_BIAS, y[1]));
  return op_add_output(graph, node, NULL, x->dtype, x->rank, y);
}

static Status infer_backward_data(Graph *graph, Node *node) {
  VL_TRY(check_pair(node, "dy", "weights"));
  VL_TRY(check_target(node));
  const Tensor *dy = node->inputs[0];
  int64_t y[VL_MAX_DIMS];
  VL_TRY(output_sizes(node, dy->rank, node->params.shape, node->inputs[1]->shape, y));
  VL_TRY(op_check_sizes(node, 0, "dy", dy->rank, y));
  return op_add_output(graph, node, NULL, dy->dtype, node->params.rank, node->params.shape);
}

static bool normalises(const Node *node) { return node->input_count > WEIGHTS_MEAN; }

/* What normalises x: all of it or nothing. */
static Status check_normalisation(const Node *node) {
  VL_TRY(op_check_flag(node, "relu", node->params.relu));
  if (!normalises(node) && node->params.relu == 1)
    return op_error(VL_INVALID, node, "relu = 1 without mean, var, gamma and beta; it follows them");
  if (!normalises(node)) return vl_ok();
  const Tensor *x = node->inputs[WEIGHTS_X];
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_check_vector(node, WEIGHTS_MEAN, "mean", x->shape[1], statistics));
  VL_TRY(op_check_vector(node, WEIGHTS_VAR, "var", x->shape[1], statistics));
  VL_TRY(op_check_channels(node, WEIGHTS_GAMMA, "gamma", x->shape[1]));
  VL_TRY(op_check_channels(node, WEIGHTS_BETA, "beta", x->shape[1]));
  return op_check_epsilon(node);
}

static Status infer_backward_weights(Graph *graph, Node *node) {
  VL_TRY(check_pair(node, "x", "dy"));
  VL_TRY(check_normalisation(node));
  VL_TRY(check_target(node));
  VL_TRY(op_check_float_dtype(node));
  const Tensor *x = node->inputs[0];
  int64_t y[VL_MAX_DIMS];
  VL_TRY(output_sizes(node, x->rank, x->shape, node->params.shape, y));
  VL_TRY(op_check_sizes(node, 1, "dy", x->rank, y));
  return op_add_output(graph, node, NULL, (DType)node->params.dtype, node->params.rank, node->params.shape);
}

static Status give_data(Gradients *gradients, Node *node, Tensor *dy) {
  if (!op_gradient_wanted(gradients, node, 0)) return vl_ok();
  OpParams params = node->params;
  op_set_shape(&params, node->inputs[0]);
  Tensor *inputs[] = {dy, node->inputs[1]}, *dx;
  VL_TRY(op_gradient_node(gradients, node, "conv_backward_data", &params, inputs, 2, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static Status give_weights(Gradients *gradients, Node *node, Tensor *dy) {
  if (!op_gradient_wanted(gradients, node, 1)) return vl_ok();
  OpParams params = node->params;
  op_set_shape(&params, node->inputs[1]);
  params.dtype = node->inputs[1]->dtype;
  Tensor *inputs[] = {node->inputs[0], dy}, *dw;
  VL_TRY(op_gradient_node(gradients, node, "conv_backward_weights", &params, inputs, 2, &dw));
  return op_gradient_give(gradients, node, 1, dw);
}

static Status gradient(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL) return vl_ok();
  if (gradients->weight_first) {
    VL_TRY(give_weights(gradients, node, dy));
    VL_TRY(give_data(gradients, node, dy));
  } else {
    VL_TRY(give_data(gradients, node, dy));
    VL_TRY(give_weights(gradients, node, dy));
  }
  return op_gradient_give_bias(gradients, node, CONV_BIAS, dy, 1);
}

/* Every element of y takes one multiply-add per weight of its output channel; so do the two gradients,
 * with dy in the place of y. */
static int64_t flops_of(const Tensor *y, const int64_t *weights, int64_t rank) {
  int64_t per_element = 1;
  for (int64_t i = 1; i < rank; i++)
    per_element = op_multiply(per_element, weights[i]);
  return op_multiply(2, op_multiply(vl_tensor_elements(y), per_element));
}

static int64_t flops(const Node *node) {
  int64_t products = flops_of(node->outputs[0], node->inputs[CONV_W]->shape, node->inputs[CONV_W]->rank), all;
  bool has_bias = node->input_count > CONV_BIAS && node->inputs[CONV_BIAS] != NULL;
  if (!has_bias) return products;
  return __builtin_add_overflow(products, vl_tensor_elements(node->outputs[0]), &all) ? INT64_MAX : all;
}

static int64_t flops_backward_data(const Node *node) {
  return flops_of(node->inputs[0], node->inputs[1]->shape, node->inputs[1]->rank);
}

/* As batch_norm_apply: scale and shift, and the ReLU. */
static int64_t flops_backward_weights(const Node *node) {
  int64_t products = flops_of(node->inputs[WEIGHTS_DY], node->params.shape, node->params.rank), all;
  if (!normalises(node)) return products;
  int64_t values = op_multiply(2 + node->params.relu, vl_tensor_elements(node->inputs[WEIGHTS_X]));
  return __builtin_add_overflow(products, values, &all) ? INT64_MAX : all;
}

static const OpField fields[] = {OP_SPATIAL(stride), OP_SPATIAL(padding), OP_INTEGER(groups)};
static const OpField data_fields[] = {OP_SPATIAL(stride), OP_SPATIAL(padding), OP_INTEGER(groups),
                                      OP_SIZES(shape), OP_INTEGER(rank)};
static const OpField weight_fields[] = {OP_SPATIAL(stride), OP_SPATIAL(padding),
                                        OP_INTEGER(groups), OP_SIZES(shape),
                                        OP_INTEGER(rank),   OP_FIELD(FIELD_DTYPE, dtype, 1),
                                        OP_REAL(epsilon),   OP_INTEGER(relu)};

const Op op_conv = {.name = "conv",
                    OP_FIELDS(fields),
                    .min_inputs = 2,
                    .max_inputs = 3,
                    .precision = PRECISION_LOW,
                    .infer = infer,
                    .gradient = gradient,
                    .flops = flops};

const Op op_conv_backward_data = {.name = "conv_backward_data",
                                  OP_FIELDS(data_fields),
                                  .min_inputs = 2,
                                  .max_inputs = 2,
                                  .precision = PRECISION_KEEP,
                                  .infer = infer_backward_data,
                                  .flops = flops_backward_data};

const Op op_conv_backward_weights = {.name = "conv_backward_weights",
                                     OP_FIELDS(weight_fields),
                                     .min_inputs = 2,
                                     .max_inputs = 6,
                                     .precision = PRECISION_KEEP,
                                     .infer = infer_backward_weights,
                                     .flops = flops_backward_weights};
