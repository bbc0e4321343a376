/* Pooling: maximum with the index of the winner, average with counted padding, and the mean over space. */
#include "graph/ops/ops.h"

/* Output sizes of the pooled `shape`; padding beyond half the kernel would make windows without any input
 * (PyTorch's rule). */
static Status output_sizes(const Node *node, int64_t rank, const int64_t *shape, int64_t *y) {
  if (rank != 4 && rank != 5)
    return op_error(VL_INVALID, node,
                    "x has %lld dimensions; 4 (N, C, H, W) or 5 (N, C, D, H, W) are possible",
                    (long long)rank);
  const OpParams *params = &node->params;
  for (int32_t i = 0; i < (int32_t)rank - 2; i++) {
    if (params->padding[i] > params->kernel[i] / 2)
      return op_error(VL_INVALID, node, "padding %lld is more than half of kernel %lld",
                      (long long)params->padding[i], (long long)params->kernel[i]);
  }
  y[0] = shape[0];
  y[1] = shape[1];
  return op_window_sizes(node, (int32_t)rank - 2, shape + 2, params->kernel, y + 2);
}

static int64_t window_elements(const Node *node, int32_t rank) {
  int64_t elements = 1;
  for (int32_t i = 0; i < rank - 2; i++)
    elements = op_multiply(elements, node->params.kernel[i]);
  return elements;
}

static Status check_index_dtype(const Node *node, int32_t rank, int64_t dtype) {
  if (dtype != DTYPE_U8 && dtype != DTYPE_I64)
    return op_error(VL_INVALID, node, "dtype of the index is %s; must be u8 or i64",
                    dtype >= 0 && dtype < DTYPE_COUNT ? vl_dtype_name((DType)dtype) : "unknown");
  int64_t window = window_elements(node, rank);
  if (dtype == DTYPE_U8 && window > UINT8_MAX + 1)
    return op_error(VL_INVALID, node, "a window of %lld elements has no u8 index; use i64",
                    (long long)window);
  return vl_ok();
}

static Status infer_max(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  int64_t y[VL_MAX_DIMS];
  VL_TRY(output_sizes(node, x->rank, x->shape, y));
  VL_TRY(check_index_dtype(node, x->rank, node->params.dtype));
  VL_TRY(op_add_output(graph, node, "y", x->dtype, x->rank, y));
  return op_add_output(graph, node, "index", (DType)node->params.dtype, x->rank, y);
}

static Status infer_average(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  int64_t y[VL_MAX_DIMS];
  VL_TRY(output_sizes(node, x->rank, x->shape, y));
  return op_add_output(graph, node, NULL, x->dtype, x->rank, y);
}

/* Both backward ops: dy is what pooling params.shape gives. */
static Status infer_window_backward(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "dy", -1));
  const OpParams *params = &node->params;
  VL_TRY(op_check_shape(node, params->rank, params->shape));
  int64_t y[VL_MAX_DIMS];
  VL_TRY(output_sizes(node, params->rank, params->shape, y));
  VL_TRY(op_check_sizes(node, 0, "dy", (int32_t)params->rank, y));
  if (node->input_count > 1) {
    VL_TRY(op_check_sizes(node, 1, "index", (int32_t)params->rank, y));
    VL_TRY(check_index_dtype(node, (int32_t)params->rank, node->inputs[1]->dtype));
  }
  return op_add_output(graph, node, NULL, node->inputs[0]->dtype, params->rank, params->shape);
}

static Status infer_global(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  const Tensor *x = node->inputs[0];
  if (x->rank < 3)
    return op_error(VL_INVALID, node, "x has %d dimensions; at least 3 (N, C, W) are needed", x->rank);
  return op_add_output(graph, node, NULL, x->dtype, 2, x->shape);
}

static Status infer_global_backward(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "dy", -1));
  const OpParams *params = &node->params;
  VL_TRY(op_check_shape(node, params->rank, params->shape));
  if (params->rank < 3)
    return op_error(VL_INVALID, node, "shape has %lld dimensions; at least 3 (N, C, W) are needed",
                    (long long)params->rank);
  VL_TRY(op_check_sizes(node, 0, "dy", 2, params->shape));
  return op_add_output(graph, node, NULL, node->inputs[0]->dtype, params->rank, params->shape);
}

/* dx by the op's backward node, which also reads `index` unless NULL. */
static Status give(Gradients *gradients, Node *node, const char *backward, Tensor *index) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  OpParams params = node->params;
  params.dtype = 0;
  op_set_shape(&params, node->inputs[0]);
  Tensor *inputs[] = {dy, index}, *dx;
  VL_TRY(op_gradient_node(gradients, node, backward, &params, inputs, index != NULL ? 2 : 1, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static Status gradient_max(Gradients *gradients, Node *node) {
  return give(gradients, node, "max_pool_backward", node->outputs[1]);
}

static Status gradient_average(Gradients *gradients, Node *node) {
  return give(gradients, node, "avg_pool_backward", NULL);
}

static Status gradient_global(Gradients *gradients, Node *node) {
  return give(gradients, node, "global_avg_pool_backward", NULL);
}

/* One comparison or addition for each element of each window. */
static int64_t flops_window(const Node *node) {
  const Tensor *y = node->outputs[0];
  return op_multiply(window_elements(node, y->rank), vl_tensor_elements(y));
}

static int64_t flops_average_backward(const Node *node) {
  const Tensor *dy = node->inputs[0];
  return op_multiply(window_elements(node, dy->rank), vl_tensor_elements(dy));
}

static int64_t flops_of_input(const Node *node) { return vl_tensor_elements(node->inputs[0]); }

static const OpField max_fields[] = {OP_SPATIAL(kernel), OP_SPATIAL(stride), OP_SPATIAL(padding),
                                     OP_FIELD(FIELD_DTYPE, dtype, 1)};
static const OpField average_fields[] = {OP_SPATIAL(kernel), OP_SPATIAL(stride), OP_SPATIAL(padding)};
static const OpField backward_fields[] = {OP_SPATIAL(kernel), OP_SPATIAL(stride), OP_SPATIAL(padding),
                                          OP_SIZES(shape), OP_INTEGER(rank)};
static const OpField global_backward_fields[] = {OP_SIZES(shape), OP_INTEGER(rank)};

const Op op_max_pool = {.name = "max_pool",
                        OP_FIELDS(max_fields),
                        .min_inputs = 1,
                        .max_inputs = 1,
                        .precision = PRECISION_PROMOTE,
                        .infer = infer_max,
                        .gradient = gradient_max,
                        .flops = flops_window};

const Op op_max_pool_backward = {.name = "max_pool_backward",
                                 OP_FIELDS(backward_fields),
                                 .min_inputs = 2,
                                 .max_inputs = 2,
                                 .precision = PRECISION_KEEP,
                                 .infer = infer_window_backward,
                                 .flops = flops_of_input};

const Op op_avg_pool = {.name = "avg_pool",
                        OP_FIELDS(average_fields),
                        .min_inputs = 1,
                        .max_inputs = 1,
                        .precision = PRECISION_PROMOTE,
                        .infer = infer_average,
                        .gradient = gradient_average,
                        .flops = flops_window};

const Op op_avg_pool_backward = {.name = "avg_pool_backward",
                                 OP_FIELDS(backward_fields),
                                 .min_inputs = 1,
                                 .max_inputs = 1,
                                 .precision = PRECISION_KEEP,
                                 .infer = infer_window_backward,
                                 .flops = flops_average_backward};

const Op op_global_avg_pool = {.name = "global_avg_pool",
                               .min_inputs = 1,
                               .max_inputs = 1,
                               .precision = PRECISION_PROMOTE,
                               .infer = infer_global,
                               .gradient = gradient_global,
                               .flops = flops_of_input};

const Op op_global_avg_pool_backward = {.name = "global_avg_pool_backward",
                                        OP_FIELDS(global_backward_fields),
                                        .min_inputs = 1,
                                        .max_inputs = 1,
                                        .precision = PRECISION_KEEP,
                                        .infer = infer_global_backward,
                                        .flops = flops_of_input};
