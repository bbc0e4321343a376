/* dropout: its mask comes from (seed, step, random_scope, sample, element), so that it is never stored and a
 * repeated forward draws it again (fault case D1). */
#include "graph/ops/ops.h"

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
  return op_add_output_like(graph, node, NULL, node->inputs[0]);
}

static Status gradient(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *dx;
  VL_TRY(op_gradient_node(gradients, node, "dropout", &node->params, &dy, 1, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static const OpField fields[] = {OP_REAL(rate), OP_FIELD(FIELD_TEXT, random_scope, 1)};

const Op op_dropout = {.name = "dropout",
                       OP_FIELDS(fields),
                       .min_inputs = 1,
                       .max_inputs = 1,
                       .precision = PRECISION_PROMOTE,
                       .inplace = {1U << 0},
                       .infer = infer,
                       .gradient = gradient};
