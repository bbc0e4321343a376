/* dropout: its mask comes from (seed, step, random_scope, sample, element), so that it need not be stored and
 * a repeated forward draws it again (fault case D1). Stored all the same where alpha is not 0, as eager
 * PyTorch does, for the gradient to read: the elements' factors (1; on a CPU), or a byte each (2; on a GPU).
 */
#include "graph/ops/ops.h"

enum { INPUT_X = 0, INPUT_NOISE, OUTPUT_Y = 0, OUTPUT_NOISE };

static bool has_noise(const Node *node) {
  return node->input_count > INPUT_NOISE && node->inputs[INPUT_NOISE];
}

static Status check_noise(const Node *node) {
  const Tensor *x = node->inputs[INPUT_X], *noise = node->inputs[INPUT_NOISE];
  if (noise->dtype != DTYPE_U8) return op_check_alike(node, INPUT_X, INPUT_NOISE);
  return op_check_sizes(node, INPUT_NOISE, "noise", x->rank, x->shape);
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  if (node->inputs[0]->rank < 1)
    return op_error(VL_INVALID, node, "x is a scalar; its first dimension must be the sample");
  OpParams *params = &node->params;
  if (!(params->rate >= 0 && params->rate < 1))
    return op_error(VL_INVALID, node, "rate = %g; must be at least 0 and below 1", params->rate);
  if (params->random_scope == NULL || params->random_scope[0] == '\0')
    return op_error(VL_INVALID, node, "random_scope is missing; it names the mask");
  params->random_scope = vl_arena_copy_text(graph->arena, params->random_scope);
  const Tensor *x = node->inputs[INPUT_X];
  if (has_noise(node)) VL_TRY(check_noise(node));
  bool known = params->alpha == 1 || params->alpha == 2;
  if (params->alpha != 0 && (!known || has_noise(node)))
    return op_error(VL_INVALID, node,
                    "alpha = %g; must be 0, or 1 or 2 to make the noise where none is given", params->alpha);
  VL_TRY(op_add_output_like(graph, node, NULL, x));
  if (params->alpha == 0) return vl_ok();
  return op_add_output(graph, node, "noise", params->alpha == 2 ? DTYPE_U8 : x->dtype, x->rank, x->shape);
}

static Status gradient(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[OUTPUT_Y]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *noise = has_noise(node)                     ? node->inputs[INPUT_NOISE]
                  : node->output_count > OUTPUT_NOISE ? node->outputs[OUTPUT_NOISE]
                                                      : NULL;
  OpParams params = node->params;
  params.alpha = 0;
  Tensor *inputs[] = {dy, noise}, *dx;
  VL_TRY(op_gradient_node(gradients, node, "dropout", &params, inputs, noise != NULL ? 2 : 1, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static const OpField fields[] = {OP_REAL(rate), OP_FIELD(FIELD_TEXT, random_scope, 1), OP_REAL(alpha)};

const Op op_dropout = {.name = "dropout",
                       OP_FIELDS(fields),
                       .min_inputs = 1,
                       .max_inputs = 2,
                       .precision = PRECISION_PROMOTE,
                       .inplace = {1U << 0},
                       .infer = infer,
                       .gradient = gradient};
