/* sgd: PyTorch's, with momentum and weight decay, dampening 0. */
#include "graph/ops/ops.h"

static Status infer(Graph *graph, Node *node) {
  VL_TRY(op_check_alike(node, 0, 1));
  VL_TRY(op_check_alike(node, 0, 2));
  VL_TRY(op_check_factor(node, 3));
  const OpParams *params = &node->params;
  if (!(params->learning_rate >= 0) || !(params->weight_decay >= 0) || !(params->momentum >= 0))
    return op_error(VL_INVALID, node,
                    "learning_rate = %g, momentum = %g, weight_decay = %g; must be at least 0",
                    params->learning_rate, params->momentum, params->weight_decay);
  Tensor *w = node->inputs[0], *v = node->inputs[2];
  VL_TRY(op_add_view(graph, node, "w", w, w->rank, w->shape));
  return op_add_view(graph, node, "v", v, v->rank, v->shape);
}

/* Three multiply-adds an element: weight decay, momentum, step. */
static int64_t flops(const Node *node) { return op_multiply(6, vl_tensor_elements(node->inputs[0])); }

static const OpField fields[] = {OP_REAL(learning_rate), OP_REAL(momentum), OP_REAL(weight_decay)};

const Op op_sgd = {.name = "sgd",
                   OP_FIELDS(fields),
                   .min_inputs = 3,
                   .max_inputs = 5,
                   .precision = PRECISION_KEEP,
                   .side_effect = true,
                   .infer = infer,
                   .flops = flops};
