/* update=in-backward: each weight is updated as soon as its gradient is complete, and the gradient freed, so
 * that gradients of the whole model never exist together. */
#include "optimizations/internal.h"
#include <string.h>

/* Whether a tensor is the parameter or a cast or copy of it. */
static bool shows(const Tensor *tensor, const Tensor *parameter) {
  while (tensor && tensor != parameter && tensor->producer && tensor->producer->input_count == 1) {
    tensor = tensor->producer->inputs[0];
  }
  return tensor == parameter;
}

/* The last node of backward that makes the gradient or still reads the old weight. */
static const Node *last_before_update(const Graph *graph, const ParameterGradient *entry) {
  const Node *last = entry->gradient->producer;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->segment != SEGMENT_BACKWARD) continue;
    for (int32_t k = 0; k < node->input_count; k++) {
      if (node->inputs[k] && shows(node->inputs[k], entry->parameter) && node->position > last->position) {
        last = node;
      }
    }
  }
  return last;
}

static Node *update_of(const Graph *graph, const Tensor *parameter) {
  for (int32_t i = graph->node_count - 1; i >= 0; i--) {
    Node *node = graph->nodes[i];
    if (node->segment == SEGMENT_UPDATE && node->inputs[0] == parameter) return node;
  }
  return NULL;
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  VL_TRY(optimization_one_of(&optimization_update, value, "in-backward"));
  if ((program && program->accumulate > 1) || vl_accumulate_count(recipe) != 1) {
    return vl_error(VL_UNSUPPORTED,
                    "update=in-backward with accumulation: a gradient is complete only after the "
                    "last micro-batch, so it has to be kept");
  }
  if (vl_recipe_value(recipe, "clip")) {
    return vl_error(VL_UNSUPPORTED,
                    "update=in-backward with clipping: the norm over all gradients is known only "
                    "when the last one exists");
  }
  if (program && program->scaling.initial > 0.0) {
    return vl_error(VL_UNSUPPORTED,
                    "update=in-backward with loss scaling: whether the step is skipped is known "
                    "only when the last gradient exists");
  }
  return vl_ok();
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  Graph *graph = program->graph;
  program->update_in_backward = program->release_gradients = true;
  for (int32_t i = 0; i < program->gradient_count; i++) {
    const ParameterGradient *entry = &program->gradients[i];
    Node *update = update_of(graph, entry->parameter);
    const Node *last = last_before_update(graph, entry);
    if (!update) return vl_error(VL_INTERNAL, "%s has no update", entry->parameter->name);
    if (last->position + 1 < update->position) {
      vl_graph_move_before(graph, update, graph->nodes[last->position + 1]);
    }
  }
  return vl_ok();
}

const Optimization optimization_update = {
    .name = "update",
    .also_called = "optimizer in backward, fused backward, LOMO",
    .turn_on = "param.register_post_accumulate_grad_hook(step_and_free)",
    .values = "in-backward",
    .help = "update each weight as soon as its gradient is complete, then free the gradient",
    .phase = PHASE_BACKWARD,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is updated",
    .check = check,
    .apply = apply,
};
