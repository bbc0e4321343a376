/* weights=on-use: low-precision copies of weights are made where they are used instead of being kept from
 * forward to backward, and weight gradients leave their kernel in fp32 instead of being cast afterwards.
 * weights=cached: the latter alone; the copies are kept, as autocast's cache does, which saves a cast each.
 * Needs amp to matter. */
#include "optimizations/internal.h"
#include <string.h>

static bool is_weight_cast(const Node *node) {
  return node && node->segment == SEGMENT_FORWARD && strcmp(node->op->name, "cast") == 0 &&
         node->inputs[0]->storage->role == ROLE_PARAMETER;
}

/* A backward reader of a forward cast gets a cast of its own, in whatever layout it wants. */
static Status recast(Graph *graph, Node *reader, int32_t input) {
  Node *forward = reader->inputs[input]->producer, *cast = NULL;
  graph->segment = SEGMENT_BACKWARD;
  graph->scope = forward->scope;
  VL_TRY(vl_graph_add(graph, "cast", &forward->params, forward->inputs, 1, &cast));
  vl_graph_move_before(graph, cast, reader);
  reader->inputs[input] = cast->outputs[0];
  return vl_ok();
}

/* The tensor that a gradient's storage was made for: what has several parts is summed in place. */
static Tensor *first_part(Tensor *gradient) {
  const Node *producer = gradient->producer;
  for (int32_t i = 0; i < producer->input_count; i++) {
    Tensor *input = producer->inputs[i];
    if (input && input->storage == gradient->storage) return first_part(input);
  }
  return gradient;
}

/* What is a parameter's gradient alone may be added to in place, and is freed with it. */
static bool can_be_gradient(const Graph *graph, const Tensor *tensor) {
  return tensor->storage->role == ROLE_ACTIVATION && vl_graph_reads(graph, tensor, NULL) == 1;
}

Status optimization_remove_cast(Program *program, Node *cast) {
  Graph *graph = program->graph;
  Tensor *from = cast->outputs[0], *to = cast->inputs[0];
  Storage *left = from->storage;
  if (left->role == ROLE_GRADIENT && !can_be_gradient(graph, to)) {
    cast->op = vl_op_find("copy");
    cast->params = (OpParams){0};
    return vl_graph_infer_again(graph, cast);
  }
  if (left->role == ROLE_GRADIENT) {
    to->storage->role = ROLE_GRADIENT;
    to->storage->name = left->name;
    left->name = vl_arena_format(graph->arena, "%s.cast", left->name);
  }
  vl_graph_replace_reads(graph, from, to);
  vl_graph_move_storage(graph, left, to->storage);
  for (int32_t i = 0; i < program->gradient_count; i++) {
    if (program->gradients[i].gradient != from) continue;
    to->name = from->name;
    program->gradients[i].gradient = to;
  }
  vl_graph_remove(graph, cast);
  return vl_ok();
}

/* The op that makes a low weight gradient whose only reader casts it to fp32 makes fp32 itself. */
static Status widen_gradient(Program *program, ParameterGradient *entry) {
  Graph *graph = program->graph;
  Tensor *wide = first_part(entry->gradient);
  Node *cast = wide->producer, *reader = NULL;
  if (strcmp(cast->op->name, "cast") != 0) return vl_ok();
  Tensor *low = cast->inputs[0];
  Node *maker = low->producer;
  bool can = maker && (strcmp(maker->op->name, "conv_backward_weights") == 0 ||
                       strcmp(maker->op->name, "matmul") == 0);
  if (!can || vl_graph_reads(graph, low, &reader) != 1) return vl_ok();
  maker->params.dtype = DTYPE_F32;
  VL_TRY(vl_graph_infer_again(graph, maker));
  return optimization_remove_cast(program, cast);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_weights, value, "on-use, cached");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  Graph *graph = program->graph;
  if (strcmp(value, "on-use") == 0) program->cast_cache = false;
  for (int32_t i = 0; i < graph->node_count && strcmp(value, "on-use") == 0;) {
    Node *node = graph->nodes[i];
    for (int32_t k = 0; node->segment == SEGMENT_BACKWARD && k < node->input_count; k++) {
      if (node->inputs[k] && is_weight_cast(node->inputs[k]->producer)) VL_TRY(recast(graph, node, k));
    }
    i = node->position + 1;
  }
  for (int32_t i = 0; i < program->gradient_count; i++)
    VL_TRY(widen_gradient(program, &program->gradients[i]));
  return vl_ok();
}

const Optimization optimization_weights = {
    .name = "weights",
    .also_called = "autocast weight cache, fp32 weight gradients",
    .turn_on = "with torch.autocast(device_type, dtype=torch.bfloat16, cache_enabled=False):",
    .values = "on-use, cached",
    .help = "with amp: low-precision weights live only while a kernel reads them (cached: from forward to "
            "backward, as in autocast), and weight gradients are made in fp32",
    .phase = PHASE_BACKWARD,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
};
