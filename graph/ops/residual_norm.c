/* Dropout of a branch, its addition to the residual stream and the layer norm behind it, as one op, and its
 * one backward node. The sum is an output: it is what backward reads. */
#include "graph/ops/ops.h"

enum { INPUT_X = 0, INPUT_RESIDUAL, INPUT_GAMMA, INPUT_BETA };
enum { OUTPUT_Y = 0, OUTPUT_MEAN, OUTPUT_RSTD, OUTPUT_SUM };
enum { BACKWARD_DY = 0, BACKWARD_SUM, BACKWARD_MEAN, BACKWARD_RSTD, BACKWARD_GAMMA };
enum { BACKWARD_DRESIDUAL = 0, BACKWARD_DGAMMA, BACKWARD_DBETA, BACKWARD_DX };

static int64_t width_of(const Tensor *x, int64_t *rows) {
  int64_t width = x->shape[x->rank - 1];
  *rows = vl_tensor_elements(x) / width;
  return width;
}

/* At least a sample and what is normalised over. */
static Status check_rows(const Node *node, int32_t index, const char *name) {
  VL_TRY(op_check_float_input(node, index, name, -1));
  if (node->inputs[index]->rank >= 2) return vl_ok();
  return op_error(VL_INVALID, node, "%s has %d dimensions; at least 2 are needed", name,
                  node->inputs[index]->rank);
}

static Status check_parameter(const Node *node, int32_t index, const char *name, int64_t width) {
  VL_TRY(op_check_float_input(node, index, name, 1));
  return op_check_sizes(node, index, name, 1, &width);
}

/* A rate of 0 draws nothing and needs no name. */
static Status check_dropout(Graph *graph, Node *node) {
  OpParams *params = &node->params;
  if (!(params->rate >= 0 && params->rate < 1))
    return op_error(VL_INVALID, node, "rate = %g; must be at least 0 and below 1", params->rate);
  bool named = params->random_scope != NULL && params->random_scope[0] != '\0';
  if (params->rate > 0 && !named)
    return op_error(VL_INVALID, node, "random_scope is missing; it names the mask");
  params->random_scope = named ? vl_arena_copy_text(graph->arena, params->random_scope) : NULL;
  return vl_ok();
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(check_rows(node, INPUT_X, "x"));
  VL_TRY(check_rows(node, INPUT_RESIDUAL, "residual"));
  const Tensor *x = node->inputs[INPUT_X], *residual = node->inputs[INPUT_RESIDUAL];
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_check_sizes(node, INPUT_RESIDUAL, "residual", x->rank, x->shape));
  if (residual->dtype != x->dtype && residual->dtype != statistics)
    return op_error(VL_INVALID, node, "residual is %s; must be %s or %s", vl_dtype_name(residual->dtype),
                    vl_dtype_name(x->dtype), vl_dtype_name(statistics));
  int64_t rows, width = width_of(x, &rows);
  VL_TRY(check_parameter(node, INPUT_GAMMA, "gamma", width));
  VL_TRY(check_parameter(node, INPUT_BETA, "beta", width));
  VL_TRY(op_check_epsilon(node));
  VL_TRY(check_dropout(graph, node));
  VL_TRY(op_add_output_like(graph, node, "y", residual));
  VL_TRY(op_add_output(graph, node, "mean", statistics, 1, &rows));
  VL_TRY(op_add_output(graph, node, "rstd", statistics, 1, &rows));
  return op_add_output_like(graph, node, "sum", residual);
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(check_rows(node, BACKWARD_SUM, "sum"));
  VL_TRY(op_check_alike(node, BACKWARD_DY, BACKWARD_SUM));
  const Tensor *sum = node->inputs[BACKWARD_SUM];
  int64_t rows, width = width_of(sum, &rows);
  DType statistics = op_statistics_dtype(sum->dtype);
  VL_TRY(op_check_vector(node, BACKWARD_MEAN, "mean", rows, statistics));
  VL_TRY(op_check_vector(node, BACKWARD_RSTD, "rstd", rows, statistics));
  VL_TRY(check_parameter(node, BACKWARD_GAMMA, "gamma", width));
  VL_TRY(op_check_float_dtype(node));
  VL_TRY(check_dropout(graph, node));
  VL_TRY(op_add_output_like(graph, node, "dresidual", sum));
  VL_TRY(op_add_output(graph, node, "dgamma", statistics, 1, &width));
  VL_TRY(op_add_output(graph, node, "dbeta", statistics, 1, &width));
  return op_add_output(graph, node, "dx", (DType)node->params.dtype, sum->rank, sum->shape);
}

/* The backward formula goes through the statistics, and nobody reads the sum but it. */
static Status check_only_y(const Gradients *gradients, const Node *node) {
  for (int32_t i = OUTPUT_MEAN; i <= OUTPUT_SUM; i++) {
    const Tensor *output = node->outputs[i];
    if (output != NULL && vl_gradient_of(gradients, output) != NULL)
      return op_error(VL_UNSUPPORTED, node, "no gradient through %s; only through y", output->name);
  }
  return vl_ok();
}

static Status gradient(Gradients *gradients, Node *node) {
  static const int32_t of_input[] = {BACKWARD_DX, BACKWARD_DRESIDUAL, BACKWARD_DGAMMA, BACKWARD_DBETA};
  VL_TRY(check_only_y(gradients, node));
  Tensor *dy = vl_gradient_of(gradients, node->outputs[OUTPUT_Y]);
  if (dy == NULL) return vl_ok();
  OpParams params = {.rate = node->params.rate,
                     .random_scope = node->params.random_scope,
                     .dtype = node->inputs[INPUT_X]->dtype};
  Tensor *inputs[] = {dy, node->outputs[OUTPUT_SUM], node->outputs[OUTPUT_MEAN], node->outputs[OUTPUT_RSTD],
                      node->inputs[INPUT_GAMMA]};
  gradients->graph->scope = node->scope;
  Node *backward;
  VL_TRY(vl_graph_add(gradients->graph, "residual_norm_backward", &params, inputs, 5, &backward));
  for (int32_t i = INPUT_X; i <= INPUT_BETA; i++) {
    if (op_gradient_wanted(gradients, node, i))
      VL_TRY(op_gradient_give(gradients, node, i, backward->outputs[of_input[i]]));
  }
  return vl_ok();
}

/* Dropout, addition and eight of the norm; backward fourteen and dropout. */
static int64_t flops(const Node *node) { return op_multiply(10, vl_tensor_elements(node->inputs[INPUT_X])); }
static int64_t flops_backward(const Node *node) {
  return op_multiply(15, vl_tensor_elements(node->inputs[BACKWARD_SUM]));
}

static const OpField fields[] = {OP_REAL(epsilon), OP_REAL(rate), OP_FIELD(FIELD_TEXT, random_scope, 1)};
static const OpField backward_fields[] = {OP_REAL(rate), OP_FIELD(FIELD_TEXT, random_scope, 1),
                                          OP_FIELD(FIELD_DTYPE, dtype, 1)};

const Op op_residual_norm = {.name = "residual_norm",
                             OP_FIELDS(fields),
                             .min_inputs = 4,
                             .max_inputs = 4,
                             .precision = PRECISION_FP32,
                             .infer = infer,
                             .gradient = gradient,
                             .flops = flops};

const Op op_residual_norm_backward = {.name = "residual_norm_backward",
                                      OP_FIELDS(backward_fields),
                                      .min_inputs = 5,
                                      .max_inputs = 5,
                                      .precision = PRECISION_KEEP,
                                      .inplace = {1U << BACKWARD_DY | 1U << BACKWARD_SUM},
                                      .infer = infer_backward,
                                      .flops = flops_backward};
