/* reshape, transpose, slice, pad, concat: where values stand. */
#include "graph/ops/ops.h"

#include <string.h>

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

static Status infer_concat(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "input 0", -1));
  const Tensor *first = node->inputs[0];
  int64_t axis = node->params.axis, shape[VL_MAX_DIMS];
  if (axis < 0 || axis >= first->rank)
    return op_error(VL_INVALID, node, "axis = %lld; the inputs have %d dimensions", (long long)axis,
                    first->rank);
  memcpy(shape, first->shape, sizeof shape);
  for (int32_t i = 1; i < node->input_count; i++) {
    VL_TRY(op_check_input(node, i, "an input", first->rank));
    const Tensor *next = node->inputs[i];
    bool agree = next->dtype == first->dtype;
    for (int32_t d = 0; d < first->rank; d++)
      agree = agree && (d == axis || next->shape[d] == first->shape[d]);
    if (!agree) {
      char left[96], right[96];
      vl_tensor_describe(first, left, sizeof left);
      vl_tensor_describe(next, right, sizeof right);
      return op_error(VL_INVALID, node,
                      "input 0 is %s and input %d %s; must agree in type and all sizes but that of axis %lld",
                      left, i, right, (long long)axis);
    }
    if (__builtin_add_overflow(shape[axis], next->shape[axis], &shape[axis])) shape[axis] = INT64_MAX;
  }
  return op_add_output(graph, node, NULL, first->dtype, first->rank, shape);
}

/* Each input's gradient is its slice of dy. */
static Status gradient_concat(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL) return vl_ok();
  int64_t axis = node->params.axis, at = 0;
  for (int32_t i = 0; i < node->input_count; i++) {
    OpParams params = {0};
    op_set_shape(&params, node->inputs[i]);
    params.start[axis] = at;
    at += node->inputs[i]->shape[axis];
    if (!op_gradient_wanted(gradients, node, i)) continue;
    Tensor *dx;
    VL_TRY(op_gradient_node(gradients, node, "slice", &params, &dy, 1, &dx));
    VL_TRY(op_gradient_give(gradients, node, i, dx));
  }
  return vl_ok();
}

static const OpField reshape_fields[] = {OP_SIZES(shape), OP_INTEGER(rank)};
static const OpField transpose_fields[] = {OP_SIZES(axes)};
static const OpField concat_fields[] = {OP_INTEGER(axis)};
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
                     .is_view = true,
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

const Op op_concat = {.name = "concat",
                      OP_FIELDS(concat_fields),
                      .min_inputs = 1,
                      .max_inputs = VL_MAX_INPUTS,
                      .precision = PRECISION_PROMOTE,
                      .is_view = true,
                      .infer = infer_concat,
                      .gradient = gradient_concat,
                      .flops = op_no_flops};
