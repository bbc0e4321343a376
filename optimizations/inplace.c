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

/* Autograd adds up gradients in place; so does a norm that does it for `fuse`. */
static bool accumulates(const Node *node) {
  if (node->segment != SEGMENT_BACKWARD) return false;
  bool norm = strcmp(node->op->name, "batch_norm_backward") == 0 ||
              strcmp(node->op->name, "instance_norm_backward") == 0;
  return strcmp(node->op->name, "add") == 0 || (norm && node->input_count == node->op->max_inputs);
}

static bool may_take(const Program *program, const Node *node, int32_t output, int32_t input) {
  const Tensor *from = node->inputs[input], *to = node->outputs[output];
  if (!from || !to || !from->producer || from->producer->segment != node->segment) return false;
  for (int32_t k = 0; k < node->output_count; k++) { /* taken already */
    if (node->outputs[k] && node->outputs[k]->storage == from->storage) return false;
  }
  bool sum_of_gradients = to->storage->role == ROLE_GRADIENT && accumulates(node);
  if (from->storage->role != ROLE_ACTIVATION) return false;
  if (to->storage->role != ROLE_ACTIVATION && !sum_of_gradients) return false;
  if (from->dtype != to->dtype || !vl_tensor_same_shape(from, to)) return false;
  if (from->offset != 0 || from->storage->elements != to->storage->elements) return false;
  if (from->storage->root != from && vl_node_is_view(from->producer)) return false;
  for (int32_t i = 0; i < node->input_count; i++) { /* the same value twice */
    if (i != input && node->inputs[i] && node->inputs[i]->storage == from->storage) return false;
  }
  return !is_kept(program, from->storage) && !read_elsewhere(program->graph, node, from->storage);
}

/* The output and its views move into the storage, which is from now on what theirs was for: a parameter's
 * gradient, if it is that. */
static void put_over(Graph *graph, const Tensor *output, Storage *storage) {
  Storage *left = output->storage;
  vl_graph_move_storage(graph, left, storage);
  if (left->role != ROLE_GRADIENT) return;
  const char *name = storage->name;
  storage->name = left->name;
  storage->role = ROLE_GRADIENT;
  left->name = name;
  left->role = ROLE_ACTIVATION;
}

/* Takes for an output the first input that may be written over. */
static void take_storage(const Program *program, Node *node, int32_t output) {
  for (int32_t input = 0; input < node->input_count; input++) {
    if (!(node->op->inplace[output] >> input & 1U) || !may_take(program, node, output, input)) continue;
    put_over(program->graph, node->outputs[output], node->inputs[input]->storage);
    return;
  }
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
    if (!all && !node->inplace_hint && !accumulates(node)) continue;
    for (int32_t output = 0; output < node->output_count; output++)
      take_storage(program, node, output);
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
