/* weights=on-use: low-precision copies of weights are made where they are used instead of being kept from
 * forward to backward, and weight gradients leave their kernel in fp32 instead of being cast afterwards.
 * weights=cached: the latter alone; the copies are kept, as autocast's cache does, which saves a cast each.
 * weights=once: in inference they are made when the weights are loaded, and nothing else is kept where nobody
 * reads more. Needs amp to matter. */
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

/* A cast of a weight becomes a parameter of its own, derived from the weight or from what that is derived
 * from. */
static Status derive_cast(Program *program, Node *cast) {
  Graph *graph = program->graph;
  Tensor *from = cast->inputs[0], *low = cast->outputs[0];
  Derivation derivation = {.kind = DERIVED_CONVERTED, .sources = {from->storage}};
  if (from->storage->derived) derivation = *from->storage->derived;
  graph->scope = from->storage->scope;
  const char *name = vl_arena_format(graph->arena, "%s.%s", from->storage->name, vl_dtype_name(low->dtype));
  Tensor *made = vl_graph_derived(graph, name, low->dtype, from->rank, from->shape, &derivation);
  vl_graph_replace_reads(graph, low, made);
  vl_graph_remove(graph, cast);
  vl_graph_release_parameter(graph, from->storage);
  return vl_ok();
}

static Status derive_casts(Program *program) {
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    bool whole = is_weight_cast(node) && node->inputs[0] == node->inputs[0]->storage->root;
    if (!whole || node->outputs[0] == program->logits) continue;
    VL_TRY(derive_cast(program, node));
    i--; /* what followed it stands here now */
  }
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  VL_TRY(optimization_one_of(&optimization_weights, value, "on-use, cached, once"));
  if (!program || !program->training || strcmp(value, "once") != 0) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "weights=once in training: weights change in every step");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  Graph *graph = program->graph;
  if (strcmp(value, "once") == 0) return derive_casts(program);
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
    .values = "on-use, cached, once",
    .help = "with amp: low-precision weights live only while a kernel reads them (cached: from forward to "
            "backward, as in autocast; once: in inference, made when weights are loaded and kept in their "
            "place), and weight gradients are made in fp32",
    .phase = PHASE_BACKWARD,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
};
