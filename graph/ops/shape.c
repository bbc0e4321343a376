/* reshape, transpose, slice, pad: where values stand. */
#include "graph/ops/ops.h"

static Status infer_reshape(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "x", -1));
  const OpParams *params = &node->params;
  VL_TRY(op_check_shape(node, params->rank, params->shape));
  Tensor wanted = {.rank = (int32_t)params->rank, .dtype = node->inputs[0]->dtype};
  for (int32_t i = 0; i < wanted.rank; i++)
    wanted.shape[i] = params->shape[i];
  if (vl_tensor_elements(&wanted) != vl_tensor_elements(node->inputs[0])) {
    char from[96], to[96];
    vl_tensor_describe(node->inputs[0], from, sizeof from);
    vl_tensor_describe(&wanted, to, sizeof to);
    return op_error(VL_INVALID, node, "%s cannot become %s: %lld and %lld elements", from, to,
                    (long long)vl_tensor_elements(node->inputs[0]), (long long)vl_tensor_elements(&wanted));
  }
  return op_add_view(graph, node, NULL, node->inputs[0], params->rank, params->shape);
}

/* The gradient is one node of op `backward` on dy. */
static Status give(Gradients *gradients, Node *node, const char *backward, const OpParams *params) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *dx;
  VL_TRY(op_gradient_node(gradients, node, backward, params, &dy, 1, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static Status gradient_reshape(Gradients *gradients, Node *node) {
  OpParams params = {0};
  op_set_shape(&params, node->inputs[0]);
  return give(gradients, node, "reshape", &params);
}

static Status infer_transpose(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  int64_t shape[VL_MAX_DIMS];
  bool seen[VL_MAX_DIMS] = {false};
  for (int32_t i = 0; i < x->rank; i++) {
    int64_t axis = node->params.axes[i];
    if (axis < 0 || axis >= x->rank || seen[axis])
      return op_error(VL_INVALID, node, "axis %lld at place %d; axes must name each of 0 to %d once",
                      (long long)axis, i, x->rank - 1);
    seen[axis] = true;
    shape[i] = x->shape[axis];
  }
  return op_add_output(graph, node, NULL, x->dtype, x->rank, shape);
}

static Status gradient_transpose(Gradients *gradients, Node *node) {
  OpParams params = {0};
  for (int32_t i = 0; i < node->inputs[0]->rank; i++)
    params.axes[node->params.axes[i]] = i;
  return give(gradients, node, "transpose", &params);
}

/* A box of `inner` sizes at params.start lies within `outer` sizes. */
static Status check_box(const Node *node, int32_t rank, const int64_t *inner, const int64_t *outer) {
  if (node->params.rank != rank)
    return op_error(VL_INVALID, node, "shape has %lld dimensions, x %d", (long long)node->params.rank, rank);
  for (int32_t i = 0; i < rank; i++) {
    int64_t start = node->params.start[i];
    if (start < 0 || inner[i] > outer[i] || start > outer[i] - inner[i])
      return op_error(VL_INVALID, node, "%lld elements from %lld do not lie within the %lld of dimension %d",
                      (long long)inner[i], (long long)start, (long long)outer[i], i);
  }
  return vl_ok();
}

static Status infer_slice(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  VL_TRY(op_check_shape(node, node->params.rank, node->params.shape));
  VL_TRY(check_box(node, x->rank, node->params.shape, x->shape));
  return op_add_output(graph, node, NULL, x->dtype, x->rank, node->params.shape);
}

static Status infer_pad(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  VL_TRY(op_check_shape(node, node->params.rank, node->params.shape));
  VL_TRY(check_box(node, x->rank, x->shape, node->params.shape));
  return op_add_output(graph, node, NULL, x->dtype, x->rank, node->params.shape);
}

static Status gradient_slice(Gradients *gradients, Node *node) {
  OpParams params = node->params;
  op_set_shape(&params, node->inputs[0]);
  return give(gradients, node, "pad", &params);
}

static Status gradient_pad(Gradients *gradients, Node *node) {
  OpParams params = node->params;
  op_set_shape(&params, node->inputs[0]);
  return give(gradients, node, "slice", &params);
}

static const OpField reshape_fields[] = {OP_SIZES(shape), OP_INTEGER(rank)};
static const OpField transpose_fields[] = {OP_SIZES(axes)};
static const OpField box_fields[] = {OP_SIZES(start), OP_SIZES(shape), OP_INTEGER(rank)};

const Op op_reshape = {.name = "reshape",
                       OP_FIELDS(reshape_fields),
                       .min_inputs = 1,
                       .max_inputs = 1,
                       .precision = PRECISION_PROMOTE,
                       .is_view = true,
                       .infer = infer_reshape,
                       .gradient = gradient_reshape,
                       .flops = op_no_flops};

const Op op_transpose = {.name = "transpose",
                         OP_FIELDS(transpose_fields),
                         .min_inputs = 1,
                         .max_inputs = 1,
                         .precision = PRECISION_PROMOTE,
                         .infer = infer_transpose,
                         .gradient = gradient_transpose,
                         .flops = op_no_flops};

const Op op_slice = {.name = "slice",
                     OP_FIELDS(box_fields),
                     .min_inputs = 1,
                     .max_inputs = 1,
                     .precision = PRECISION_PROMOTE,
                     .infer = infer_slice,
                     .gradient = gradient_slice,
                     .flops = op_no_flops};

const Op op_pad = {.name = "pad",
                   OP_FIELDS(box_fields),
                   .min_inputs = 1,
                   .max_inputs = 1,
                   .precision = PRECISION_PROMOTE,
                   .infer = infer_pad,
                   .gradient = gradient_pad,
                   .flops = op_no_flops};
