/* sum over axes, and broadcast, its opposite. */
#include "graph/ops/ops.h"

static Status check_axes(const Node *node, int32_t rank) {
  const OpParams *params = &node->params;
  if (params->axis_count < 1 || params->axis_count > rank)
    return op_error(VL_INVALID, node, "axis_count = %lld; must be within 1 and %d, the dimensions of x",
                    (long long)params->axis_count, rank);
  int64_t last = -1;
  for (int64_t i = 0; i < params->axis_count; i++) {
    if (params->axes[i] <= last || params->axes[i] >= rank)
      return op_error(VL_INVALID, node, "axis %lld; axes must ascend within 0 and %d",
                      (long long)params->axes[i], rank - 1);
    last = params->axes[i];
  }
  return vl_ok();
}

static bool is_summed(const OpParams *params, int32_t axis) {
  for (int64_t i = 0; i < params->axis_count; i++) {
    if (params->axes[i] == axis) return true;
  }
  return false;
}

static Status infer_sum(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  VL_TRY(check_axes(node, x->rank));
  VL_TRY(op_check_float_dtype(node));
  int64_t shape[VL_MAX_DIMS];
  int32_t rank = 0;
  for (int32_t i = 0; i < x->rank; i++) {
    if (!is_summed(&node->params, i)) shape[rank++] = x->shape[i];
  }
  return op_add_output(graph, node, NULL, (DType)node->params.dtype, rank, shape);
}

/* Views `tensor` in another shape for the gradient of `node`; itself when it has that shape. */
static Status reshaped(Gradients *gradients, const Node *node, Tensor *tensor, const OpParams *shape,
                       Tensor **out) {
  *out = tensor;
  bool same = tensor->rank == shape->rank;
  for (int32_t i = 0; same && i < tensor->rank; i++)
    same = tensor->shape[i] == shape->shape[i];
  if (same) return vl_ok();
  return op_gradient_node(gradients, node, "reshape", shape, &tensor, 1, out);
}

static Status gradient_sum(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  const Tensor *x = node->inputs[0];
  /* Convert while it is small, give the summed axes back with size 1, then repeat along them. */
  Tensor *dx;
  VL_TRY(op_gradient_cast(gradients, node, dy, x->dtype, &dx));
  OpParams kept = {0}, full = {0};
  op_set_shape(&kept, x);
  op_set_shape(&full, x);
  for (int64_t i = 0; i < node->params.axis_count; i++)
    kept.shape[node->params.axes[i]] = 1;
  VL_TRY(reshaped(gradients, node, dx, &kept, &dx));
  if (!vl_tensor_same_shape(dx, x))
    VL_TRY(op_gradient_node(gradients, node, "broadcast", &full, &dx, 1, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static Status infer_broadcast(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  const OpParams *params = &node->params;
  VL_TRY(op_check_shape(node, params->rank, params->shape));
  int32_t added = (int32_t)params->rank - x->rank;
  if (added < 0)
    return op_error(VL_INVALID, node, "x has %d dimensions, more than the %lld asked for", x->rank,
                    (long long)params->rank);
  for (int32_t i = 0; i < x->rank; i++) {
    if (x->shape[i] != 1 && x->shape[i] != params->shape[added + i])
      return op_error(VL_INVALID, node, "size %lld of dimension %d cannot become %lld; only 1 is repeated",
                      (long long)x->shape[i], i, (long long)params->shape[added + i]);
  }
  return op_add_output(graph, node, NULL, x->dtype, params->rank, params->shape);
}

static Status gradient_broadcast(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  OpParams sum = {.dtype = x->dtype}, shape = {0};
  for (int32_t i = 0; i < y->rank; i++) {
    int32_t of_x = i - (y->rank - x->rank);
    if (of_x < 0 || x->shape[of_x] != y->shape[i]) sum.axes[sum.axis_count++] = i;
  }
  Tensor *dx = dy;
  if (sum.axis_count > 0) VL_TRY(op_gradient_node(gradients, node, "sum", &sum, &dy, 1, &dx));
  op_set_shape(&shape, x);
  VL_TRY(reshaped(gradients, node, dx, &shape, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static int64_t flops_sum(const Node *node) { return vl_tensor_elements(node->inputs[0]); }

static const OpField sum_fields[] = {OP_SIZES(axes), OP_INTEGER(axis_count), OP_FIELD(FIELD_DTYPE, dtype, 1)};
static const OpField broadcast_fields[] = {OP_SIZES(shape), OP_INTEGER(rank)};

const Op op_sum = {.name = "sum",
                   OP_FIELDS(sum_fields),
                   .min_inputs = 1,
                   .max_inputs = 1,
                   .precision = PRECISION_PROMOTE,
                   .infer = infer_sum,
                   .gradient = gradient_sum,
                   .flops = flops_sum};

const Op op_broadcast = {.name = "broadcast",
                         OP_FIELDS(broadcast_fields),
                         .min_inputs = 1,
                         .max_inputs = 1,
                         .precision = PRECISION_PROMOTE,
                         .infer = infer_broadcast,
                         .gradient = gradient_broadcast,
                         .flops = op_no_flops};
