/* concat=in-place: what is concatenated is written where it will lie, one part of a storage each, and nothing
 * is copied; in backward a part of the gradient is read where it lies. That takes parts that are contiguous:
 * along the first axis that has more than one element, so with a micro-batch of one sample along the
 * channels. Last of all passes, since what is repeated or written over by then keeps a storage of its own;
 * where a device cannot have a part in its layout, the engine separates them again. */
#include "optimizations/internal.h"
#include <string.h>

static bool is_contiguous_along(const Tensor *tensor, int64_t axis) {
  for (int64_t i = 0; i < axis; i++)
    if (tensor->shape[i] != 1) return false;
  return true;
}

/* All of a storage of its own. */
static bool is_whole(const Tensor *tensor) {
  return tensor->offset == 0 && vl_tensor_elements(tensor) == tensor->storage->elements;
}

static bool is_kept(const Program *program, const Storage *storage) {
  return (program->loss && program->loss->storage == storage) ||
         (program->logits && program->logits->storage == storage);
}

static bool is_repeated(const Node *node) { return node->checkpoint_segment > 0 || node->recompute_on_use; }

/* Everything that lies in the storage lies in all of it, and is made once. */
static bool can_move(const Graph *graph, const Storage *storage) {
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    if (tensor->storage != storage) continue;
    if (!is_whole(tensor) || !tensor->producer || is_repeated(tensor->producer)) return false;
  }
  return storage->role == ROLE_ACTIVATION && !vl_storage_is_joined(storage);
}

static bool can_join(const Program *program, const Node *concat) {
  const Tensor *whole = concat->outputs[0];
  if (is_repeated(concat) || !is_contiguous_along(whole, concat->params.axis)) return false;
  if (whole->storage->root != whole || whole->storage->role != ROLE_ACTIVATION || !is_whole(whole))
    return false;
  for (int32_t i = 0; i < concat->input_count; i++) {
    const Storage *part = concat->inputs[i]->storage;
    if (!can_move(program->graph, part) || is_kept(program, part)) return false;
    for (int32_t k = 0; k < i; k++)
      if (concat->inputs[k]->storage == part) return false;
  }
  return true;
}

static void move(const Graph *graph, const Storage *from, Storage *to, int64_t offset) {
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    Tensor *tensor = graph->tensors[i];
    if (tensor->storage != from) continue;
    tensor->storage = to;
    tensor->offset += offset;
  }
}

static void join(const Graph *graph, const Node *concat) {
  int64_t offset = 0;
  for (int32_t i = 0; i < concat->input_count; i++) {
    const Storage *part = concat->inputs[i]->storage;
    move(graph, part, concat->outputs[0]->storage, offset);
    offset += part->elements;
  }
}

/* The axis along which a slice cuts, if it is one; -1: none, or several. */
static int32_t cut_axis(const Node *slice) {
  int32_t axis = -1;
  for (int32_t i = 0; i < slice->inputs[0]->rank; i++) {
    if (slice->inputs[0]->shape[i] == slice->outputs[0]->shape[i]) continue;
    if (axis >= 0) return -1;
    axis = i;
  }
  return axis;
}

/* A part of a gradient that slices alone read, and that nothing is written over. */
static bool can_show(const Graph *graph, const Node *slice) {
  const Tensor *whole = slice->inputs[0], *part = slice->outputs[0];
  int32_t axis = cut_axis(slice);
  bool is_activation = whole->storage->role == ROLE_ACTIVATION && part->storage->role == ROLE_ACTIVATION;
  if (slice->segment != SEGMENT_BACKWARD || axis < 0 || !is_contiguous_along(whole, axis)) return false;
  if (!is_activation || !is_whole(whole) || whole->storage->root != whole) return false;
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    const Tensor *other = graph->tensors[i];
    bool shares = other->storage == part->storage || (other->storage == whole->storage && other != whole);
    if (other != part && shares && !(other->producer && vl_node_is_view(other->producer))) return false;
  }
  return true;
}

static void show(const Graph *graph, const Node *slice) {
  int32_t axis = cut_axis(slice);
  int64_t inner = 1;
  for (int32_t i = axis + 1; i < slice->inputs[0]->rank; i++)
    inner *= slice->inputs[0]->shape[i];
  move(graph, slice->outputs[0]->storage, slice->inputs[0]->storage, slice->params.start[axis] * inner);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_concat, value, "in-place, copy");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (strcmp(value, "copy") == 0) return vl_ok();
  const Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (vl_node_is_view(node)) continue;
    if (strcmp(node->op->name, "concat") == 0 && can_join(program, node)) join(graph, node);
    if (strcmp(node->op->name, "slice") == 0 && can_show(graph, node)) show(graph, node);
  }
  return vl_ok();
}

const Optimization optimization_concat = {
    .name = "concat",
    .also_called = "zero-copy concatenation, skip connections without copies, shared memory concat",
    .turn_on = "no equivalent (torch.cat copies)",
    .values = "in-place, copy",
    .help =
        "concatenated tensors are written side by side where they are read, and not copied, where that is "
        "contiguous: along the channels with a micro-batch of 1 (copy: as torch.cat)",
    .phase = PHASE_POLICY,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
