#include "graph/graph.h"
#include "graph/ops/ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *vl_role_name(Role role) {
  static const char *const names[] = {"activation", "input",    "parameter", "statistic",
                                      "optimizer",  "gradient", "source"};
  return names[role];
}

bool vl_role_is_persistent(Role role) {
  return role == ROLE_PARAMETER || role == ROLE_STATISTIC || role == ROLE_OPTIMIZER;
}

const char *vl_derivation_kind_name(DerivationKind kind) {
  static const char *const names[] = {"converted", "scaled", "shift"};
  return names[kind];
}

int32_t vl_derivation_source_count(DerivationKind kind) {
  static const int32_t counts[] = {1, 3, 4};
  return counts[kind];
}

const char *vl_hold_name(Hold hold) {
  static const char *const names[] = {"nothing", "block", "forward"};
  return names[hold];
}

const char *vl_segment_name(Segment segment) {
  static const char *const names[] = {"forward", "backward", "update"};
  return names[segment];
}

int64_t vl_tensor_elements(const Tensor *tensor) {
  int64_t elements = 1;
  for (int32_t i = 0; i < tensor->rank; i++)
    elements *= tensor->shape[i];
  return elements;
}

int64_t vl_tensor_bytes(const Tensor *tensor) {
  return vl_dtype_bytes(tensor->dtype, vl_tensor_elements(tensor));
}

bool vl_tensor_same_shape(const Tensor *a, const Tensor *b) {
  if (a->rank != b->rank) return false;
  for (int32_t i = 0; i < a->rank; i++) {
    if (a->shape[i] != b->shape[i]) return false;
  }
  return true;
}

void vl_tensor_describe(const Tensor *tensor, char *text, size_t size) {
  if (size == 0) return;
  size_t used = (size_t)snprintf(text, size, "(");
  for (int32_t i = 0; i < tensor->rank && used < size; i++) {
    used += (size_t)snprintf(text + used, size - used, i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
  }
  if (used < size) snprintf(text + used, size - used, ") %s", vl_dtype_name(tensor->dtype));
}

Graph *vl_graph_create(const char *name) {
  Graph *graph = vl_allocate(sizeof *graph);
  graph->arena = vl_arena_create();
  graph->name = vl_arena_copy_text(graph->arena, name);
  graph->scope = "";
  return graph;
}

void vl_graph_destroy(Graph **graph) {
  if (!*graph) return;
  free((*graph)->storages);
  free((*graph)->tensors);
  free((*graph)->nodes);
  vl_arena_destroy(&(*graph)->arena);
  free(*graph);
  *graph = NULL;
}

void vl_graph_set_scope(Graph *graph, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  graph->scope = vl_arena_copy_text(graph->arena, text);
}

/* Room for one more pointer in a growing array. */
static void *grow(void *array, int32_t count, int32_t *capacity) {
  if (count < *capacity) return array;
  *capacity = *capacity ? 2 * *capacity : 64;
  return vl_reallocate(array, (size_t)*capacity * sizeof(void *));
}

static bool storage_name_taken(const Graph *graph, const char *name) {
  for (int32_t i = 0; i < graph->storage_count; i++) {
    if (strcmp(graph->storages[i]->name, name) == 0) return true;
  }
  return false;
}

/* Names key State and files, so they must be unique; a repeated op in a scope gets a number. */
static const char *unique_name(Graph *graph, const char *name) {
  if (!storage_name_taken(graph, name)) return vl_arena_copy_text(graph->arena, name);
  for (int32_t suffix = 2;; suffix++) {
    const char *candidate = vl_arena_format(graph->arena, "%s.%d", name, suffix);
    if (!storage_name_taken(graph, candidate)) return candidate;
  }
}

static Tensor *add_tensor(Graph *graph, const char *name, DType dtype, int32_t rank, const int64_t *shape) {
  Tensor *tensor = vl_arena_allocate(graph->arena, sizeof *tensor);
  tensor->id = graph->tensor_count;
  tensor->name = name;
  tensor->dtype = dtype;
  tensor->rank = rank;
  for (int32_t i = 0; i < rank; i++)
    tensor->shape[i] = shape[i];
  graph->tensors = grow(graph->tensors, graph->tensor_count, &graph->tensor_capacity);
  graph->tensors[graph->tensor_count++] = tensor;
  return tensor;
}

Tensor *vl_graph_tensor(Graph *graph, const char *name, Role role, DType dtype, int32_t rank,
                        const int64_t *shape) {
  Storage *storage = vl_arena_allocate(graph->arena, sizeof *storage);
  storage->id = graph->storage_count;
  storage->name = unique_name(graph, name);
  storage->scope = graph->scope;
  storage->role = role;
  storage->dtype = dtype;
  storage->layout = LAYOUT_ANY;
  graph->storages = grow(graph->storages, graph->storage_count, &graph->storage_capacity);
  graph->storages[graph->storage_count++] = storage;
  Tensor *tensor = add_tensor(graph, storage->name, dtype, rank, shape);
  tensor->storage = storage;
  storage->root = tensor;
  storage->elements = vl_tensor_elements(tensor);
  return tensor;
}

Tensor *vl_graph_parameter(Graph *graph, const char *name, Role role, DType dtype, int32_t rank,
                           const int64_t *shape, Init init) {
  Tensor *tensor = vl_graph_tensor(graph, name, role, dtype, rank, shape);
  tensor->storage->init = init;
  return tensor;
}

void vl_graph_release_parameter(Graph *graph, Storage *storage) {
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    for (int32_t k = 0; k < node->input_count; k++)
      if (node->inputs[k] && node->inputs[k]->storage == storage) return;
  }
  if (vl_role_is_persistent(storage->role)) storage->role = ROLE_SOURCE;
}

Tensor *vl_graph_derived(Graph *graph, const char *name, DType dtype, int32_t rank, const int64_t *shape,
                         const Derivation *derivation) {
  Tensor *tensor = vl_graph_tensor(graph, name, ROLE_PARAMETER, dtype, rank, shape);
  Derivation *own = vl_arena_allocate(graph->arena, sizeof *own);
  *own = *derivation;
  tensor->storage->derived = own;
  return tensor;
}

Tensor *vl_graph_input(Graph *graph, const char *name, DType dtype, int32_t rank, const int64_t *shape,
                       int64_t below) {
  Init init = {INIT_UNIFORM, vl_dtype_is_float(dtype) ? sqrt(3.0) : (double)below};
  return vl_graph_parameter(graph, name, ROLE_INPUT, dtype, rank, shape, init);
}

Tensor *vl_graph_view(Graph *graph, const char *name, Tensor *of, int32_t rank, const int64_t *shape,
                      int64_t offset) {
  Tensor *view = add_tensor(graph, vl_arena_copy_text(graph->arena, name), of->dtype, rank, shape);
  view->storage = of->storage;
  view->offset = of->offset + offset;
  return view;
}

Status vl_graph_add(Graph *graph, const char *op, const OpParams *params, Tensor *const *inputs,
                    int32_t input_count, Node **out) {
  const Op *found = vl_op_find(op);
  if (!found) return vl_error(VL_INVALID, "unknown op '%s' in %s", op, graph->scope);
  if (input_count < found->min_inputs || input_count > found->max_inputs) {
    return vl_error(VL_INVALID, "%s in %s takes %d to %d inputs, got %d", op, graph->scope, found->min_inputs,
                    found->max_inputs, input_count);
  }
  Node *node = vl_arena_allocate(graph->arena, sizeof *node);
  node->op = found;
  if (params) node->params = *params;
  for (int32_t i = 0; i < input_count; i++)
    node->inputs[i] = inputs[i];
  node->input_count = input_count;
  node->scope = graph->scope;
  node->segment = graph->segment;
  node->block = graph->segment == SEGMENT_UPDATE ? 0 : graph->block;
  VL_TRY(found->infer(graph, node));
  for (int32_t i = 0; i < node->output_count; i++) {
    if (node->outputs[i]) node->outputs[i]->producer = node;
  }
  if (graph->next_node_id < graph->node_count) graph->next_node_id = graph->node_count; /* read from a file */
  node->id = graph->next_node_id++;
  node->position = graph->node_count;
  graph->nodes = grow(graph->nodes, graph->node_count, &graph->node_capacity);
  graph->nodes[graph->node_count++] = node;
  if (out) *out = node;
  return vl_ok();
}

Status vl_graph_infer_again(Graph *graph, Node *node) {
  Tensor *outputs[VL_MAX_OUTPUTS];
  memcpy(outputs, node->outputs, sizeof outputs);
  int32_t count = node->output_count, tensors = graph->tensor_count, storages = graph->storage_count;
  memset(node->outputs, 0, sizeof node->outputs);
  node->output_count = 0;
  Status status = node->op->infer(graph, node);
  for (int32_t i = 0; i < count && status.code == VL_OK; i++) {
    if (!node->outputs[i] || !outputs[i]) continue;
    outputs[i]->dtype = node->outputs[i]->dtype;
    outputs[i]->storage->dtype = node->outputs[i]->dtype;
  }
  memcpy(node->outputs, outputs, sizeof outputs);
  node->output_count = count;
  graph->tensor_count = tensors; /* what infer made goes with the arena */
  graph->storage_count = storages;
  return status;
}

static void renumber(Graph *graph, int32_t from) {
  for (int32_t i = from; i < graph->node_count; i++)
    graph->nodes[i]->position = i;
}

void vl_graph_move_before(Graph *graph, Node *node, const Node *anchor) {
  int32_t from = node->position, to = anchor->position;
  if (from > to) {
    memmove(&graph->nodes[to + 1], &graph->nodes[to], (size_t)(from - to) * sizeof(Node *));
    graph->nodes[to] = node;
    renumber(graph, to);
  } else if (from < to) {
    memmove(&graph->nodes[from], &graph->nodes[from + 1], (size_t)(to - from - 1) * sizeof(Node *));
    graph->nodes[to - 1] = node;
    renumber(graph, from);
  }
}

void vl_graph_remove(Graph *graph, Node *node) {
  int32_t at = node->position;
  graph->node_count--;
  memmove(&graph->nodes[at], &graph->nodes[at + 1], (size_t)(graph->node_count - at) * sizeof(Node *));
  renumber(graph, at);
}

bool vl_node_is_view(const Node *node) {
  if (!node->op->is_view || node->input_count == 0 || !node->outputs[0]) return false;
  for (int32_t i = 0; i < node->input_count; i++)
    if (!node->inputs[i] || node->inputs[i]->storage != node->outputs[0]->storage) return false;
  return true;
}

bool vl_storage_is_joined(const Storage *storage) {
  const Node *whole = storage->root ? storage->root->producer : NULL;
  return whole && strcmp(whole->op->name, "concat") == 0 && vl_node_is_view(whole);
}

void vl_graph_move_storage(Graph *graph, const Storage *from, Storage *to) {
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    if (graph->tensors[i]->storage == from) graph->tensors[i]->storage = to;
  }
}

/* A view lies where what it shows lies, and so do the views of it. */
static void move_view(Graph *graph, Tensor *view, Storage *storage, int64_t offset) {
  const Storage *left = view->storage;
  view->storage = storage;
  view->offset += offset;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->op->is_view && node->inputs[0] == view && node->outputs[0]->storage == left)
      move_view(graph, node->outputs[0], storage, offset);
  }
}

void vl_graph_replace_reads(Graph *graph, const Tensor *from, Tensor *to) {
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (node == to->producer) continue;
    for (int32_t k = 0; k < node->input_count; k++) {
      if (node->inputs[k] != from) continue;
      node->inputs[k] = to;
      if (node->op->is_view && node->outputs[0]->storage == from->storage && to->storage != from->storage)
        move_view(graph, node->outputs[0], to->storage, to->offset - from->offset);
    }
  }
}

int32_t vl_graph_reads(const Graph *graph, const Tensor *tensor, Node **reader) {
  int32_t reads = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    for (int32_t k = 0; k < graph->nodes[i]->input_count; k++) {
      if (graph->nodes[i]->inputs[k] != tensor) continue;
      reads++;
      if (reader) *reader = graph->nodes[i];
    }
  }
  return reads;
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(Storage *const *)a)->name, (*(Storage *const *)b)->name);
}

static Status check_names(const Graph *graph) {
  size_t count = (size_t)graph->storage_count;
  Storage **sorted = vl_allocate((count + 1) * sizeof(Storage *));
  if (count > 0) memcpy(sorted, graph->storages, count * sizeof(Storage *));
  qsort(sorted, count, sizeof(Storage *), compare_names);
  const char *twice = NULL;
  for (size_t i = 0; i + 1 < count && !twice; i++) {
    if (strcmp(sorted[i]->name, sorted[i + 1]->name) == 0) twice = sorted[i]->name;
  }
  free(sorted);
  return twice ? vl_error(VL_INVALID, "two storages are named '%s'", twice) : vl_ok();
}

/* What a node reads is made earlier, by a node of the graph. */
static Status check_inputs(const Graph *graph, const Node *node) {
  for (int32_t k = 0; k < node->input_count; k++) {
    const Tensor *input = node->inputs[k];
    if (!input || !input->producer) continue;
    int32_t made_at = input->producer->position;
    bool made = made_at < node->position && graph->nodes[made_at] == input->producer;
    if (!made) {
      return vl_error(VL_INVALID, "%s in %s (node %d) reads %s before it is made", node->op->name,
                      node->scope, node->position, input->name);
    }
  }
  return vl_ok();
}

/* Outputs are what inference says. They name their producer, which op_verify takes for a second maker. */
static Status check_outputs(Node *node, Graph *scratch) {
  for (int32_t k = 0; k < node->output_count; k++) {
    if (node->outputs[k]) node->outputs[k]->producer = NULL;
  }
  Status status = op_verify(node, scratch);
  for (int32_t k = 0; k < node->output_count; k++) {
    if (node->outputs[k]) node->outputs[k]->producer = node;
  }
  return status;
}

/* What a value is derived from has the sizes its kind says. */
static Status check_derivation(const Storage *storage) {
  const Derivation *derived = storage->derived;
  const Tensor *root = storage->root;
  int64_t channels = root->rank > 0 ? root->shape[0] : 1;
  for (int32_t i = 0; i < vl_derivation_source_count(derived->kind); i++) {
    const Storage *source = derived->sources[i];
    bool whole = i == 0 || derived->kind == DERIVED_SHIFT;
    int64_t wanted = whole ? storage->elements : channels;
    bool fits = source->elements == wanted && vl_dtype_is_float(source->dtype) && !source->derived;
    if (fits && vl_dtype_is_float(storage->dtype)) continue;
    return vl_error(VL_INVALID, "%s cannot be %s from %s: %lld numbers of its own are needed, of %s to %s",
                    storage->name, vl_derivation_kind_name(derived->kind), source->name, (long long)wanted,
                    vl_dtype_name(source->dtype), vl_dtype_name(storage->dtype));
  }
  return vl_ok();
}

static Status check_derivations(const Graph *graph) {
  for (int32_t i = 0; i < graph->storage_count; i++)
    if (graph->storages[i]->derived) VL_TRY(check_derivation(graph->storages[i]));
  return vl_ok();
}

Status vl_graph_check(const Graph *graph) {
  Graph *scratch = vl_graph_create("check");
  Status status = check_names(graph);
  if (status.code == VL_OK) status = check_derivations(graph);
  for (int32_t i = 0; i < graph->node_count && status.code == VL_OK; i++) {
    Node *node = graph->nodes[i];
    if (node->position != i) status = vl_error(VL_INTERNAL, "node %d stands at %d", node->position, i);
    if (status.code == VL_OK) status = check_inputs(graph, node);
    if (status.code == VL_OK) status = check_outputs(node, scratch);
  }
  vl_graph_destroy(&scratch);
  VL_TRY(status);
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    if (tensor->offset < 0 || tensor->offset + vl_tensor_elements(tensor) > tensor->storage->elements) {
      return vl_error(VL_INVALID, "tensor %s does not lie in its storage %s", tensor->name,
                      tensor->storage->name);
    }
  }
  return vl_ok();
}
