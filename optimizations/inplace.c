/* inplace: output and input of a node share one storage. `source` does what the source program writes in
 * place (and autograd's accumulation of gradients), `all` whatever is legal. Runs after differentiation, when
 * every reader is known. */
#include "optimizations/internal.h"
#include <string.h>

static bool is_kept(const Program *program, const Storage *storage) {
  return (program->loss && program->loss->storage == storage) ||
         (program->logits && program->logits->storage == storage);
}

static bool read_elsewhere(const Graph *graph, const Node *node, const Storage *storage) {
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *other = graph->nodes[i];
    if (other == node) continue;
    /* A forward node may be repeated later, so any other reader counts; backward nodes run once. */
    bool writes_it = false;
    for (int32_t k = 0; k < other->output_count; k++) {
      writes_it = writes_it || (other->outputs[k] && other->outputs[k]->storage == storage);
    }
    if (writes_it && other->position < node->position) continue; /* an earlier link of the chain */
    if (node->segment == SEGMENT_BACKWARD && other->position < node->position) continue;
    for (int32_t k = 0; k < other->input_count; k++) {
      if (other->inputs[k] && other->inputs[k]->storage == storage) return true;
    }
  }
  return false;
}

static bool may_take(const Program *program, const Node *node, int32_t input) {
  const Tensor *from = node->inputs[input], *to = node->outputs[0];
  if (!from || !to || !from->producer || from->producer->segment != node->segment) return false;
  if (from->storage == to->storage) return false;
  if (from->storage->role != ROLE_ACTIVATION || to->storage->role != ROLE_ACTIVATION) return false;
  if (from->dtype != to->dtype || !vl_tensor_same_shape(from, to)) return false;
  if (from->offset != 0 || from->storage->elements != to->storage->elements) return false;
  if (from->storage->root != from && from->producer->op->is_view) return false;
  for (int32_t i = 0; i < node->input_count; i++) { /* the same value twice */
    if (i != input && node->inputs[i] && node->inputs[i]->storage == from->storage) return false;
  }
  return !is_kept(program, from->storage) && !read_elsewhere(program->graph, node, from->storage);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_inplace, value, "source, all");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  bool all = strcmp(value, "all") == 0;
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    bool accumulates = node->segment == SEGMENT_BACKWARD && strcmp(node->op->name, "add") == 0;
    if (!all && !node->inplace_hint && !accumulates) continue;
    for (int32_t input = 0; input < node->input_count; input++) {
      if (!(node->op->inplace & (1U << input)) || !may_take(program, node, input)) continue;
      node->outputs[0]->storage = node->inputs[input]->storage;
      break;
    }
  }
  return vl_ok();
}

const Optimization optimization_inplace = {
    .name = "inplace",
    .also_called = "in-place activation, inplace=True, buffer reuse",
    .turn_on = "nn.ReLU(inplace=True)",
    .values = "source, all",
    .help = "outputs over inputs that nobody reads again (source: only where the source program does)",
    .phase = PHASE_BACKWARD,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
