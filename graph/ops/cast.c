/* cast, copy, fill: values in another type or layout, and constants. */
#include "graph/ops/ops.h"

static Status check_dtype(const Node *node) {
  if (node->params.dtype >= 0 && node->params.dtype < DTYPE_COUNT) return vl_ok();
  return op_error(VL_INVALID, node, "dtype %lld is unknown", (long long)node->params.dtype);
}

static Status infer_cast(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "x", -1));
  VL_TRY(check_dtype(node));
  if (node->params.groups < 0)
    return op_error(VL_INVALID, node, "groups = %lld; must be at least 0", (long long)node->params.groups);
  const Tensor *x = node->inputs[0];
  return op_add_output(graph, node, NULL, (DType)node->params.dtype, x->rank, x->shape);
}

static Status infer_copy(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "x", -1));
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

static Status infer_fill(Graph *graph, Node *node) {
  VL_TRY(check_dtype(node));
  return op_add_output(graph, node, NULL, (DType)node->params.dtype, node->params.rank, node->params.shape);
}

/* dy, cast back where x has another type. */
static Status gradient(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  return op_gradient_give(gradients, node, 0, dy);
}

static const OpField cast_fields[] = {OP_FIELD(FIELD_DTYPE, dtype, 1), OP_INTEGER(groups)};
static const OpField fill_fields[] = {OP_SIZES(shape), OP_INTEGER(rank), OP_FIELD(FIELD_DTYPE, dtype, 1),
                                      OP_REAL(alpha)};

const Op op_cast = {.name = "cast",
                    OP_FIELDS(cast_fields),
                    .min_inputs = 1,
                    .max_inputs = 1,
                    .precision = PRECISION_KEEP,
                    .infer = infer_cast,
                    .gradient = gradient,
                    .flops = op_no_flops};

const Op op_copy = {.name = "copy",
                    .min_inputs = 1,
                    .max_inputs = 1,
                    .precision = PRECISION_KEEP,
                    .infer = infer_copy,
                    .gradient = gradient,
                    .flops = op_no_flops};

const Op op_fill = {.name = "fill",
                    OP_FIELDS(fill_fields),
                    .min_inputs = 0,
                    .max_inputs = 0,
                    .precision = PRECISION_KEEP,
                    .infer = infer_fill,
                    .flops = op_no_flops};
