/* Layer normalisation over the last dimension, and its one backward node. What lies before that dimension is
 * rows. */
#include "graph/ops/ops.h"

enum { INPUT_X = 0, INPUT_GAMMA, INPUT_BETA };
enum { OUTPUT_Y = 0, OUTPUT_MEAN, OUTPUT_RSTD };
enum { BACKWARD_DY = 0, BACKWARD_X, BACKWARD_MEAN, BACKWARD_RSTD, BACKWARD_GAMMA };

/* The width normalised over; *rows: how often. */
static int64_t width_of(const Tensor *x, int64_t *rows) {
  int64_t width = x->shape[x->rank - 1];
  *rows = vl_tensor_elements(x) / width;
  return width;
}

static Status check_x(const Node *node, int32_t index) {
  VL_TRY(op_check_float_input(node, index, "x", -1));
  if (node->inputs[index]->rank >= 1) return vl_ok();
  return op_error(VL_INVALID, node, "x is a scalar; at least 1 dimension is needed");
}

/* gamma or beta, in any floating-point type. */
static Status check_parameter(const Node *node, int32_t index, const char *name, int64_t width) {
  VL_TRY(op_check_float_input(node, index, name, 1));
  return op_check_sizes(node, index, name, 1, &width);
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(check_x(node, INPUT_X));
  const Tensor *x = node->inputs[INPUT_X];
  int64_t rows, width = width_of(x, &rows);
  VL_TRY(check_parameter(node, INPUT_GAMMA, "gamma", width));
  VL_TRY(check_parameter(node, INPUT_BETA, "beta", width));
  if (!(node->params.epsilon >= 0))
    return op_error(VL_INVALID, node, "epsilon = %g; must be at least 0", node->params.epsilon);
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_add_output_like(graph, node, "y", x));
  VL_TRY(op_add_output(graph, node, "mean", statistics, 1, &rows));
  return op_add_output(graph, node, "rstd", statistics, 1, &rows);
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(check_x(node, BACKWARD_X));
  VL_TRY(op_check_alike(node, BACKWARD_DY, BACKWARD_X));
  const Tensor *x = node->inputs[BACKWARD_X];
  int64_t rows, width = width_of(x, &rows);
  DType statistics = op_statistics_dtype(x->dtype);
  VL_TRY(op_check_vector(node, BACKWARD_MEAN, "mean", rows, statistics));
  VL_TRY(op_check_vector(node, BACKWARD_RSTD, "rstd", rows, statistics));
  VL_TRY(check_parameter(node, BACKWARD_GAMMA, "gamma", width));
  VL_TRY(op_add_output_like(graph, node, "dx", x));
  VL_TRY(op_add_output(graph, node, "dgamma", statistics, 1, &width));
  return op_add_output(graph, node, "dbeta", statistics, 1, &width);
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
  Tensor *inputs[] = {dy, node->inputs[INPUT_X], node->outputs[OUTPUT_MEAN], node->outputs[OUTPUT_RSTD],
                      node->inputs[INPUT_GAMMA]};
  gradients->graph->scope = node->scope;
  Node *backward;
  VL_TRY(vl_graph_add(gradients->graph, "layer_norm_backward", NULL, inputs, 5, &backward));
  for (int32_t i = INPUT_X; i <= INPUT_BETA; i++) /* dx, dgamma, dbeta */
    if (op_gradient_wanted(gradients, node, i))
      VL_TRY(op_gradient_give(gradients, node, i, backward->outputs[i]));
  return vl_ok();
}

/* The mean: one addition; the variance: difference, square, addition; y: difference, two products, sum. */
static int64_t flops(const Node *node) { return op_multiply(8, vl_tensor_elements(node->inputs[INPUT_X])); }

/* The normal value: difference and product; dbeta: one addition, dgamma: product and addition; times gamma;
 * the two sums: product and two additions; dx: three products and two differences. */
static int64_t flops_backward(const Node *node) {
  return op_multiply(14, vl_tensor_elements(node->inputs[BACKWARD_X]));
}

static const OpField fields[] = {OP_REAL(epsilon)};

const Op op_layer_norm = {.name = "layer_norm",
                          OP_FIELDS(fields),
                          .min_inputs = 3,
                          .max_inputs = 3,
                          .precision = PRECISION_FP32,
                          .inplace = {1U << INPUT_X},
                          .infer = infer,
                          .gradient = gradient,
                          .flops = flops};

const Op op_layer_norm_backward = {.name = "layer_norm_backward",
                                   .min_inputs = 5,
                                   .max_inputs = 5,
                                   .precision = PRECISION_KEEP,
                                   .inplace = {1U << BACKWARD_DY | 1U << BACKWARD_X},
                                   .infer = infer_backward,
                                   .flops = flops_backward};
