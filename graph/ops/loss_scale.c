/* What lies between the gradients and the update: square_sum, a part of their norm, and gradient_factor,
 * which decides what the update multiplies them by. Loss scaling and clipping meet there, so that gradients
 * are read once more and never written. */
#include "graph/ops/ops.h"

/* ---- square_sum ----------------------------------------------------------------------------------------------- */

static Status infer_square_sum(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  if (node->input_count == 1) return op_add_output(graph, node, NULL, DTYPE_F64, 0, NULL);
  VL_TRY(op_check_input(node, 1, "onto", 0));
  Tensor *onto = node->inputs[1];
  if (onto->dtype != DTYPE_F64)
    return op_error(VL_INVALID, node, "onto is %s; expected f64", vl_dtype_name(onto->dtype));
  return op_add_view(graph, node, NULL, onto, 0, NULL);
}

static int64_t flops_square_sum(const Node *node) {
  return op_multiply(2, vl_tensor_elements(node->inputs[0]));
}

/* ---- gradient_factor -------------------------------------------------------------------------------------------- */

static Status check_scaling(const Node *node) {
  const OpParams *params = &node->params;
  VL_TRY(op_check_input(node, 1, "scale", 0));
  if (node->inputs[1]->dtype != DTYPE_F32)
    return op_error(VL_INVALID, node, "scale is %s; expected f32", vl_dtype_name(node->inputs[1]->dtype));
  VL_TRY(op_check_vector(node, 2, "counters", SCALER_COUNTERS, DTYPE_I64));
  if (!(params->growth >= 1) || !(params->backoff > 0 && params->backoff <= 1) || params->interval < 1)
    return op_error(VL_INVALID, node,
                    "growth = %g, backoff = %g, interval = %lld; must be at least 1, within 0 (excluded) and "
                    "1, and at least 1",
                    params->growth, params->backoff, (long long)params->interval);
  return vl_ok();
}

static Status infer_factor(Graph *graph, Node *node) {
  VL_TRY(op_check_input(node, 0, "squares", 0));
  if (node->inputs[0]->dtype != DTYPE_F64)
    return op_error(VL_INVALID, node, "squares is %s; expected f64", vl_dtype_name(node->inputs[0]->dtype));
  if (!(node->params.max_norm >= 0))
    return op_error(VL_INVALID, node, "max_norm = %g; must be at least 0", node->params.max_norm);
  bool scales = node->input_count > 1;
  if (scales) VL_TRY(check_scaling(node));
  VL_TRY(op_add_output(graph, node, "factor", DTYPE_F32, 0, NULL));
  VL_TRY(op_add_output(graph, node, "norm", DTYPE_F32, 0, NULL));
  if (!scales) return vl_ok();
  Tensor *scale = node->inputs[1], *counters = node->inputs[2];
  VL_TRY(op_add_view(graph, node, "scale", scale, 0, NULL));
  return op_add_view(graph, node, "counters", counters, 1, counters->shape);
}

/* Root, quotients, sum, minimum, product, and the scale's own product. */
static int64_t flops_factor(const Node *node) {
  (void)node;
  return 7;
}

Status op_check_factor(const Node *node, int32_t index) {
  if (node->input_count <= index) return vl_ok();
  VL_TRY(op_check_input(node, index, "factor", 0));
  if (node->inputs[index]->dtype != DTYPE_F32)
    return op_error(VL_INVALID, node, "factor is %s; expected f32",
                    vl_dtype_name(node->inputs[index]->dtype));
  if (node->input_count == index + 1) return vl_ok();
  return op_check_vector(node, index + 1, "counters", SCALER_COUNTERS, DTYPE_I64);
}

static const OpField factor_fields[] = {OP_REAL(max_norm), OP_REAL(growth), OP_REAL(backoff),
                                        OP_INTEGER(interval)};

const Op op_square_sum = {.name = "square_sum",
                          .min_inputs = 1,
                          .max_inputs = 2,
                          .precision = PRECISION_KEEP,
                          .infer = infer_square_sum,
                          .flops = flops_square_sum};

const Op op_gradient_factor = {.name = "gradient_factor",
                               OP_FIELDS(factor_fields),
                               .min_inputs = 1,
                               .max_inputs = 3,
                               .precision = PRECISION_KEEP,
                               .side_effect = true,
                               .infer = infer_factor,
                               .flops = flops_factor};
