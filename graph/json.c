/* The JSON graph format, version 1: what a graph is, complete and exact.
 *
 * {"format": "vramlab-graph", "version": 1, "name": text, "block_count": integer,
 *  "storages": [{"id", "name", "scope", "role", "dtype", "elements", "root": tensor id,
 *                "init": {"kind": "zero" | "constant" | "uniform", "value"}, "frozen",
 *                "derived": {"kind": "converted" | "scaled" | "shift", "sources": [storage id], "epsilon"}}],
 *  "tensors": [{"id", "name", "dtype", "shape": [...], "storage": storage id, "offset"}],
 *  "nodes": [{"op", "params": {the fields of the op's table}, "inputs": [tensor id | null],
 *             "outputs": [tensor id | null], "scope", "segment", "block", "inplace_hint",
 *             "checkpoint_segment", "recompute_on_use", "accumulates", "hold": "block" | "forward"}]}
 *
 * An id is the place in its list; nodes stand in the order they run. Every key is there and no other
 * ("derived" and "hold" only where a value is); whole numbers are 64-bit, real ones have the digits that give
 * the same double again. Layouts are not part of it: they belong to a compiled graph. Writing leaves out
 * tensors nothing refers to any more, and numbers the rest anew, so that writing what was read gives the same
 * text. Reading infers every node again and compares.
 */
#include "graph/graph.h"
#include "graph/ops/ops.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "vramlab-graph";
enum { FORMAT_VERSION = 1, PATH_BYTES = 96 };

static const char *const init_names[] = {"zero", "constant", "uniform"};
/* As in graph/ops: bits of a tensor fit in 63 bits. */
static const int64_t max_elements = INT64_MAX / 64;
/* Whole numbers up to here are exact doubles. */
static const int64_t max_exact_integer = INT64_C(1) << 53;

static const char *init_name(int i) { return init_names[i]; }
static const char *role_name(int i) { return vl_role_name((Role)i); }
static const char *derivation_name(int i) { return vl_derivation_kind_name((DerivationKind)i); }
static const char *hold_name(int i) { return vl_hold_name((Hold)i); }
static const char *segment_name(int i) { return vl_segment_name((Segment)i); }

/* ---- Writing ------------------------------------------------------------------------------------------------ */

/* New ids, -1 for what is left out. */
typedef struct Writer {
  const Graph *graph;
  FILE *out;
  int32_t *tensor_ids, *storage_ids;
} Writer;

/* Takes `object`, NULL when a value in it has no JSON form: a number that is not finite, text not UTF-8. */
static Status write_element(Writer *writer, const char *list, int32_t index, json_t *object, bool *first) {
  if (object == NULL)
    return vl_error(VL_INVALID, "%s[%d]: a number in it is not finite, or a name not UTF-8", list, index);
  fputs(*first ? "\n" : ",\n", writer->out);
  *first = false;
  int failed = json_dumpf(object, writer->out, JSON_COMPACT | JSON_REAL_PRECISION(17));
  json_decref(object);
  if (failed != 0) return vl_error(VL_ENVIRONMENT, "%s[%d] could not be written", list, index);
  return vl_ok();
}

static void mark_tensors(Writer *writer, Tensor *const *tensors, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    if (tensors[i] != NULL) writer->tensor_ids[tensors[i]->id] = 0;
  }
}

/* Keeps what nodes read or make, what is given to the graph, and with each tensor its storage and root. */
static void choose_ids(Writer *writer) {
  const Graph *graph = writer->graph;
  writer->tensor_ids = vl_allocate((size_t)graph->tensor_count * sizeof(int32_t));
  writer->storage_ids = vl_allocate((size_t)graph->storage_count * sizeof(int32_t));
  for (int32_t i = 0; i < graph->storage_count; i++)
    writer->storage_ids[i] = -1;
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    bool given = tensor->producer == NULL && tensor->storage->root == tensor;
    writer->tensor_ids[i] = given ? 0 : -1;
  }
  for (int32_t i = 0; i < graph->node_count; i++) {
    mark_tensors(writer, graph->nodes[i]->inputs, graph->nodes[i]->input_count);
    mark_tensors(writer, graph->nodes[i]->outputs, graph->nodes[i]->output_count);
  }
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    if (writer->tensor_ids[i] < 0) continue;
    Storage *storage = graph->tensors[i]->storage;
    writer->storage_ids[storage->id] = 0;
    mark_tensors(writer, &storage->root, 1);
  }
  int32_t next = 0;
  for (int32_t i = 0; i < graph->tensor_count; i++)
    writer->tensor_ids[i] = writer->tensor_ids[i] < 0 ? -1 : next++;
  next = 0;
  for (int32_t i = 0; i < graph->storage_count; i++)
    writer->storage_ids[i] = writer->storage_ids[i] < 0 ? -1 : next++;
}

static json_t *derivation_of(const Writer *writer, const Derivation *derived) {
  json_t *sources = json_array();
  for (int32_t i = 0; i < vl_derivation_source_count(derived->kind); i++)
    json_array_append_new(sources, json_integer(writer->storage_ids[derived->sources[i]->id]));
  return json_pack("{s:s,s:o,s:f}", "kind", vl_derivation_kind_name(derived->kind), "sources", sources,
                   "epsilon", derived->epsilon);
}

static Status write_storages(Writer *writer) {
  bool first = true;
  for (int32_t i = 0; i < writer->graph->storage_count; i++) {
    const Storage *storage = writer->graph->storages[i];
    int32_t id = writer->storage_ids[i];
    if (id < 0) continue;
    if (storage->root->storage != storage)
      return vl_error(VL_INTERNAL, "storage %s: its root %s lies in storage %s", storage->name,
                      storage->root->name, storage->root->storage->name);
    json_t *object = json_pack(
        "{s:i,s:s,s:s,s:s,s:s,s:I,s:i,s:{s:s,s:f},s:b}", "id", id, "name", storage->name, "scope",
        storage->scope, "role", vl_role_name(storage->role), "dtype", vl_dtype_name(storage->dtype),
        "elements", (json_int_t)storage->elements, "root", writer->tensor_ids[storage->root->id], "init",
        "kind", init_name((int)storage->init.kind), "value", storage->init.value, "frozen", storage->frozen);
    if (object && storage->derived)
      json_object_set_new(object, "derived", derivation_of(writer, storage->derived));
    VL_TRY(write_element(writer, "storages", id, object, &first));
  }
  return vl_ok();
}

static Status write_tensors(Writer *writer) {
  bool first = true;
  for (int32_t i = 0; i < writer->graph->tensor_count; i++) {
    const Tensor *tensor = writer->graph->tensors[i];
    int32_t id = writer->tensor_ids[i];
    if (id < 0) continue;
    json_t *shape = json_array();
    for (int32_t k = 0; k < tensor->rank; k++)
      json_array_append_new(shape, json_integer(tensor->shape[k]));
    json_t *object =
        json_pack("{s:i,s:s,s:s,s:o,s:i,s:I}", "id", id, "name", tensor->name, "dtype",
                  vl_dtype_name(tensor->dtype), "shape", shape, "storage",
                  writer->storage_ids[tensor->storage->id], "offset", (json_int_t)tensor->offset);
    VL_TRY(write_element(writer, "tensors", id, object, &first));
  }
  return vl_ok();
}

static json_t *value_of_field(const OpField *field, const void *at, int32_t i) {
  switch (field->type) {
  case FIELD_INTEGER: return json_integer(((const int64_t *)at)[i]);
  case FIELD_REAL: return json_real(((const double *)at)[i]);
  case FIELD_DTYPE: return json_string(vl_dtype_name((DType)((const int64_t *)at)[i]));
  case FIELD_TEXT: return json_string(((const char *const *)at)[i]);
  }
  return NULL;
}

/* NULL when a value has no JSON form. */
static json_t *params_of(const Node *node) {
  json_t *params = json_object();
  int failed = 0;
  for (int32_t f = 0; f < node->op->field_count; f++) {
    const OpField *field = &node->op->fields[f];
    const void *at = (const char *)&node->params + field->offset;
    json_t *value = field->count == 1 ? value_of_field(field, at, 0) : json_array();
    for (int32_t i = 0; field->count > 1 && i < field->count; i++)
      failed |= json_array_append_new(value, value_of_field(field, at, i));
    failed |= json_object_set_new(params, field->name, value);
  }
  if (failed == 0) return params;
  json_decref(params);
  return NULL;
}

static json_t *ids_of(const Writer *writer, Tensor *const *tensors, int32_t count) {
  json_t *list = json_array();
  for (int32_t i = 0; i < count; i++)
    json_array_append_new(list, tensors[i] == NULL ? json_null()
                                                   : json_integer(writer->tensor_ids[tensors[i]->id]));
  return list;
}

static Status write_nodes(Writer *writer) {
  bool first = true;
  for (int32_t i = 0; i < writer->graph->node_count; i++) {
    const Node *node = writer->graph->nodes[i];
    json_t *params = params_of(node), *object = NULL;
    if (params != NULL)
      object =
          json_pack("{s:s,s:o,s:o,s:o,s:s,s:s,s:i,s:b,s:i,s:b,s:b}", "op", node->op->name, "params", params,
                    "inputs", ids_of(writer, node->inputs, node->input_count), "outputs",
                    ids_of(writer, node->outputs, node->output_count), "scope", node->scope, "segment",
                    vl_segment_name(node->segment), "block", node->block, "inplace_hint",
                    (int)node->inplace_hint, "checkpoint_segment", node->checkpoint_segment,
                    "recompute_on_use", (int)node->recompute_on_use, "accumulates", (int)node->accumulates);
    if (object && node->hold != HOLD_NOTHING)
      json_object_set_new(object, "hold", json_string(vl_hold_name(node->hold)));
    VL_TRY(write_element(writer, "nodes", i, object, &first));
  }
  return vl_ok();
}

static Status write_lists(Writer *writer) {
  json_t *name = json_string(writer->graph->name);
  if (name == NULL) return vl_error(VL_INVALID, "name: not UTF-8");
  fprintf(writer->out, "{\"format\":\"%s\",\"version\":%d,\"name\":", format_name, FORMAT_VERSION);
  int failed = json_dumpf(name, writer->out, JSON_ENCODE_ANY);
  json_decref(name);
  fprintf(writer->out, ",\"block_count\":%d,\n\"storages\":[", writer->graph->block_count);
  VL_TRY(write_storages(writer));
  fputs("],\n\"tensors\":[", writer->out);
  VL_TRY(write_tensors(writer));
  fputs("],\n\"nodes\":[", writer->out);
  VL_TRY(write_nodes(writer));
  fputs("]}\n", writer->out);
  if (failed != 0 || ferror(writer->out))
    return vl_error(VL_ENVIRONMENT, "graph %s could not be written", writer->graph->name);
  return vl_ok();
}

Status vl_graph_write_json(const Graph *graph, FILE *out) {
  Writer writer = {.graph = graph, .out = out};
  choose_ids(&writer);
  Status status = write_lists(&writer);
  free(writer.tensor_ids);
  free(writer.storage_ids);
  return status;
}

/* ---- Reading: values ------------------------------------------------------------------------------------------ */

static bool is_one_of(const char *key, const char *const *keys, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    if (strcmp(key, keys[i]) == 0) return true;
  }
  return false;
}

/* An object with exactly these keys. */
static Status check_keys(json_t *object, const char *path, const char *const *keys, int32_t count) {
  if (!json_is_object(object)) return vl_error(VL_INVALID, "%s: expected an object", path);
  for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
    if (!is_one_of(json_object_iter_key(at), keys, count))
      return vl_error(VL_INVALID, "%s: key '%.64s' is unknown", path, json_object_iter_key(at));
  }
  for (int32_t i = 0; i < count; i++) {
    if (json_object_get(object, keys[i]) == NULL)
      return vl_error(VL_INVALID, "%s: key '%s' is missing", path, keys[i]);
  }
  return vl_ok();
}

static Status get_integer(const json_t *value, const char *path, const char *key, int64_t low, int64_t high,
                          int64_t *out) {
  if (!json_is_integer(value)) return vl_error(VL_INVALID, "%s.%s: expected a whole number", path, key);
  *out = json_integer_value(value);
  if (*out < low || *out > high)
    return vl_error(VL_INVALID, "%s.%s: %lld is not within %lld and %lld", path, key, (long long)*out,
                    (long long)low, (long long)high);
  return vl_ok();
}

static Status get_small(const json_t *object, const char *path, const char *key, int32_t high, int32_t *out) {
  int64_t value = 0;
  VL_TRY(get_integer(json_object_get(object, key), path, key, 0, high, &value));
  *out = (int32_t)value;
  return vl_ok();
}

static Status get_real(const json_t *value, const char *path, const char *key, double *out) {
  bool exact_integer = json_is_integer(value) && json_integer_value(value) <= max_exact_integer &&
                       json_integer_value(value) >= -max_exact_integer;
  if (!json_is_real(value) && !exact_integer)
    return vl_error(VL_INVALID, "%s.%s: expected a number that a double holds", path, key);
  *out = json_number_value(value);
  return vl_ok();
}

static Status get_text(Graph *graph, const json_t *value, const char *path, const char *key,
                       const char **out) {
  if (!json_is_string(value)) return vl_error(VL_INVALID, "%s.%s: expected text", path, key);
  *out = vl_arena_copy_text(graph->arena, json_string_value(value));
  return vl_ok();
}

static Status get_bool(const json_t *object, const char *path, const char *key, bool *out) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_boolean(value)) return vl_error(VL_INVALID, "%s.%s: expected true or false", path, key);
  *out = json_is_true(value);
  return vl_ok();
}

/* One of `count` names. */
static Status get_choice(const json_t *object, const char *path, const char *key, const char *(*name)(int),
                         int count, int *out) {
  const char *text = json_string_value(json_object_get(object, key));
  char accepted[VL_STATUS_MESSAGE_BYTES / 2] = "";
  for (int i = 0; i < count; i++) {
    if (text != NULL && strcmp(text, name(i)) == 0) {
      *out = i;
      return vl_ok();
    }
    size_t used = strlen(accepted);
    snprintf(accepted + used, sizeof accepted - used, "%s%s", i > 0 ? ", " : "", name(i));
  }
  return vl_error(VL_INVALID, "%s.%s: expected one of %s", path, key, accepted);
}

static Status get_dtype(const json_t *value, const char *path, const char *key, DType *out) {
  if (!json_is_string(value)) return vl_error(VL_INVALID, "%s.%s: expected an element type", path, key);
  Status status = vl_dtype_parse(json_string_value(value), out);
  if (status.code != VL_OK) return vl_error(VL_INVALID, "%s.%s: %.300s", path, key, status.message);
  return vl_ok();
}

static Status get_list(const json_t *object, const char *path, const char *key, const json_t **out,
                       int32_t *count) {
  *out = json_object_get(object, key);
  if (!json_is_array(*out) || json_array_size(*out) > INT32_MAX / 2)
    return vl_error(VL_INVALID, "%s.%s: expected a list", path, key);
  *count = (int32_t)json_array_size(*out);
  return vl_ok();
}

/* The element's id is its place. */
static Status check_id(const json_t *object, const char *path, int32_t index) {
  int64_t id = 0;
  VL_TRY(get_integer(json_object_get(object, "id"), path, "id", 0, INT32_MAX, &id));
  if (id != index)
    return vl_error(VL_INVALID, "%s.id: %lld; expected %d, its place in the list", path, (long long)id,
                    index);
  return vl_ok();
}

/* ---- Reading: elements ------------------------------------------------------------------------------------------ */

/* The list being read, and places for what can only be resolved later. */
typedef struct Reader {
  Graph *graph;
  Graph *scratch; /* where nodes are inferred again */
  int32_t *roots; /* by storage: tensor id */
} Reader;

static Status read_derivation(Graph *graph, json_t *object, const char *storage_path, Storage *storage) {
  static const char *const keys[] = {"kind", "sources", "epsilon"};
  char path[PATH_BYTES];
  const json_t *sources;
  int32_t count = 0;
  int kind = 0;
  Derivation *derived = vl_arena_allocate(graph->arena, sizeof *derived);
  snprintf(path, sizeof path, "%.64s.derived", storage_path);
  VL_TRY(check_keys(object, path, keys, sizeof keys / sizeof *keys));
  VL_TRY(get_choice(object, path, "kind", derivation_name, DERIVED_SHIFT + 1, &kind));
  VL_TRY(get_list(object, path, "sources", &sources, &count));
  derived->kind = (DerivationKind)kind;
  if (count != vl_derivation_source_count(derived->kind))
    return vl_error(VL_INVALID, "%s.sources: %d; this kind has %d", path, count,
                    vl_derivation_source_count(derived->kind));
  for (int32_t i = 0; i < count; i++) {
    int64_t id = 0;
    VL_TRY(
        get_integer(json_array_get(sources, (size_t)i), path, "sources", 0, graph->storage_count - 1, &id));
    derived->sources[i] = graph->storages[id];
  }
  storage->derived = derived;
  return get_real(json_object_get(object, "epsilon"), path, "epsilon", &derived->epsilon);
}

static Status read_storage(Reader *reader, json_t *object, int32_t index) {
  static const char *const keys[] = {"id",       "name", "scope", "role",   "dtype",
                                     "elements", "root", "init",  "frozen", "derived"};
  static const char *const init_keys[] = {"kind", "value"};
  char path[PATH_BYTES], init_path[PATH_BYTES];
  snprintf(path, sizeof path, "storages[%d]", index);
  snprintf(init_path, sizeof init_path, "storages[%d].init", index);
  json_t *derived = json_object_get(object, "derived");
  VL_TRY(check_keys(object, path, keys, sizeof keys / sizeof *keys - (derived ? 0 : 1)));
  VL_TRY(check_id(object, path, index));
  Storage *storage = reader->graph->storages[index];
  storage->id = index;
  storage->layout = LAYOUT_ANY;
  VL_TRY(get_text(reader->graph, json_object_get(object, "name"), path, "name", &storage->name));
  VL_TRY(get_text(reader->graph, json_object_get(object, "scope"), path, "scope", &storage->scope));
  int role = 0, kind = 0;
  VL_TRY(get_choice(object, path, "role", role_name, ROLE_SOURCE + 1, &role));
  storage->role = (Role)role;
  VL_TRY(get_dtype(json_object_get(object, "dtype"), path, "dtype", &storage->dtype));
  VL_TRY(get_integer(json_object_get(object, "elements"), path, "elements", 1, max_elements,
                     &storage->elements));
  VL_TRY(get_small(object, path, "root", reader->graph->tensor_count - 1, &reader->roots[index]));
  json_t *init = json_object_get(object, "init");
  VL_TRY(check_keys(init, init_path, init_keys, 2));
  VL_TRY(get_choice(init, init_path, "kind", init_name, INIT_UNIFORM + 1, &kind));
  storage->init.kind = (InitKind)kind;
  VL_TRY(get_bool(object, path, "frozen", &storage->frozen));
  VL_TRY(get_real(json_object_get(init, "value"), init_path, "value", &storage->init.value));
  return derived ? read_derivation(reader->graph, derived, path, storage) : vl_ok();
}

static Status read_shape(const json_t *object, const char *path, Tensor *tensor) {
  const json_t *list;
  VL_TRY(get_list(object, path, "shape", &list, &tensor->rank));
  if (tensor->rank > VL_MAX_DIMS)
    return vl_error(VL_INVALID, "%s.shape: %d sizes; at most %d are possible", path, tensor->rank,
                    VL_MAX_DIMS);
  int64_t elements = 1;
  for (int32_t i = 0; i < tensor->rank; i++) {
    VL_TRY(get_integer(json_array_get(list, (size_t)i), path, "shape", 1, max_elements / elements,
                       &tensor->shape[i]));
    elements *= tensor->shape[i];
  }
  return vl_ok();
}

static Status read_tensor(Reader *reader, json_t *object, int32_t index) {
  static const char *const keys[] = {"id", "name", "dtype", "shape", "storage", "offset"};
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "tensors[%d]", index);
  VL_TRY(check_keys(object, path, keys, sizeof keys / sizeof *keys));
  VL_TRY(check_id(object, path, index));
  Graph *graph = reader->graph;
  Tensor *tensor = graph->tensors[index];
  tensor->id = index;
  VL_TRY(get_text(graph, json_object_get(object, "name"), path, "name", &tensor->name));
  VL_TRY(get_dtype(json_object_get(object, "dtype"), path, "dtype", &tensor->dtype));
  VL_TRY(read_shape(object, path, tensor));
  int32_t storage = 0;
  VL_TRY(get_small(object, path, "storage", graph->storage_count - 1, &storage));
  tensor->storage = graph->storages[storage];
  VL_TRY(get_integer(json_object_get(object, "offset"), path, "offset", 0, max_elements, &tensor->offset));
  if (tensor->dtype != tensor->storage->dtype)
    return vl_error(VL_INVALID, "%s.dtype: %s; expected %s, that of storage %d", path,
                    vl_dtype_name(tensor->dtype), vl_dtype_name(tensor->storage->dtype), storage);
  int64_t elements = vl_tensor_elements(tensor);
  if (tensor->offset + elements > tensor->storage->elements)
    return vl_error(VL_INVALID, "%s.offset: %lld elements from %lld do not lie within the %lld of storage %d",
                    path, (long long)elements, (long long)tensor->offset,
                    (long long)tensor->storage->elements, storage);
  return vl_ok();
}

/* The root spans its storage. */
static Status resolve_roots(Reader *reader) {
  for (int32_t i = 0; i < reader->graph->storage_count; i++) {
    Storage *storage = reader->graph->storages[i];
    Tensor *root = reader->graph->tensors[reader->roots[i]];
    if (root->storage != storage || root->offset != 0 || vl_tensor_elements(root) != storage->elements)
      return vl_error(VL_INVALID,
                      "storages[%d].root: tensor %d does not span the %lld elements of storage %d", i,
                      root->id, (long long)storage->elements, i);
    storage->root = root;
  }
  return vl_ok();
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(const Storage *const *)a)->name, (*(const Storage *const *)b)->name);
}

/* Names key State, so no two storages share one. */
static Status check_names(const Graph *graph) {
  size_t count = (size_t)graph->storage_count;
  if (count == 0) return vl_ok();
  const Storage **sorted = vl_allocate(count * sizeof *sorted);
  memcpy(sorted, graph->storages, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, compare_names);
  Status status = vl_ok();
  for (size_t i = 1; i < count && status.code == VL_OK; i++) {
    if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
      status = vl_error(VL_INVALID, "storages[%d].name: '%.128s' is also the name of storage %d",
                        sorted[i]->id, sorted[i]->name, sorted[i - 1]->id);
  }
  free(sorted);
  return status;
}

/* ---- Reading: nodes ----------------------------------------------------------------------------------------------- */

static Status read_value(Graph *graph, const json_t *value, const char *path, const OpField *field, void *at,
                         int32_t i) {
  switch (field->type) {
  case FIELD_INTEGER: return get_integer(value, path, field->name, INT64_MIN, INT64_MAX, &((int64_t *)at)[i]);
  case FIELD_REAL: return get_real(value, path, field->name, &((double *)at)[i]);
  case FIELD_DTYPE: {
    DType dtype = DTYPE_F32;
    VL_TRY(get_dtype(value, path, field->name, &dtype));
    ((int64_t *)at)[i] = dtype;
    return vl_ok();
  }
  case FIELD_TEXT: return get_text(graph, value, path, field->name, &((const char **)at)[i]);
  }
  return vl_error(VL_INTERNAL, "%s.%s: unknown field type", path, field->name);
}

static Status read_params(Graph *graph, json_t *object, int32_t index, Node *node) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "nodes[%d].params", index);
  const Op *op = node->op;
  const char *keys[sizeof(OpParams) / sizeof(int64_t)];
  for (int32_t f = 0; f < op->field_count; f++)
    keys[f] = op->fields[f].name;
  VL_TRY(check_keys(object, path, keys, op->field_count));
  for (int32_t f = 0; f < op->field_count; f++) {
    const OpField *field = &op->fields[f];
    void *at = (char *)&node->params + field->offset;
    const json_t *value = json_object_get(object, field->name);
    if (field->count == 1) {
      VL_TRY(read_value(graph, value, path, field, at, 0));
      continue;
    }
    if (json_array_size(value) != (size_t)field->count)
      return vl_error(VL_INVALID, "%s.%s: expected a list of %d", path, field->name, field->count);
    for (int32_t i = 0; i < field->count; i++)
      VL_TRY(read_value(graph, json_array_get(value, (size_t)i), path, field, at, i));
  }
  return vl_ok();
}

/* Ids, or null where optional: at least `low`, at most `high`. */
static Status read_ids(const Graph *graph, json_t *object, const char *path, const char *key, int32_t low,
                       int32_t high, Tensor **tensors, int32_t *count) {
  const json_t *list;
  VL_TRY(get_list(object, path, key, &list, count));
  if (*count < low || *count > high)
    return vl_error(VL_INVALID, "%s.%s: %d; this op has %d to %d", path, key, *count, low, high);
  for (int32_t i = 0; i < *count; i++) {
    const json_t *value = json_array_get(list, (size_t)i);
    if (json_is_null(value)) continue;
    int64_t id = 0;
    VL_TRY(get_integer(value, path, key, 0, graph->tensor_count - 1, &id));
    tensors[i] = graph->tensors[id];
  }
  return vl_ok();
}

static Status read_node(Reader *reader, json_t *object, int32_t index) {
  static const char *const keys[] = {"op",
                                     "params",
                                     "inputs",
                                     "outputs",
                                     "scope",
                                     "segment",
                                     "block",
                                     "inplace_hint",
                                     "checkpoint_segment",
                                     "recompute_on_use",
                                     "accumulates",
                                     "hold"};
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "nodes[%d]", index);
  bool holds = json_object_get(object, "hold") != NULL;
  VL_TRY(check_keys(object, path, keys, sizeof keys / sizeof *keys - (holds ? 0 : 1)));
  Graph *graph = reader->graph;
  Node *node = graph->nodes[index];
  node->id = node->position = index;
  const char *op = json_string_value(json_object_get(object, "op"));
  node->op = op != NULL ? vl_op_find(op) : NULL;
  if (node->op == NULL)
    return vl_error(VL_INVALID, "%s.op: '%.64s' is unknown", path, op != NULL ? op : "not text");
  VL_TRY(get_text(graph, json_object_get(object, "scope"), path, "scope", &node->scope));
  VL_TRY(read_params(graph, json_object_get(object, "params"), index, node));
  VL_TRY(read_ids(graph, object, path, "inputs", node->op->min_inputs, node->op->max_inputs, node->inputs,
                  &node->input_count));
  VL_TRY(read_ids(graph, object, path, "outputs", 1, VL_MAX_OUTPUTS, node->outputs, &node->output_count));
  int segment = 0;
  VL_TRY(get_choice(object, path, "segment", segment_name, SEGMENT_UPDATE + 1, &segment));
  node->segment = (Segment)segment;
  VL_TRY(get_small(object, path, "block", graph->block_count, &node->block));
  VL_TRY(get_bool(object, path, "inplace_hint", &node->inplace_hint));
  VL_TRY(get_small(object, path, "checkpoint_segment", INT32_MAX, &node->checkpoint_segment));
  VL_TRY(get_bool(object, path, "recompute_on_use", &node->recompute_on_use));
  VL_TRY(get_bool(object, path, "accumulates", &node->accumulates));
  int hold = HOLD_NOTHING;
  if (holds) VL_TRY(get_choice(object, path, "hold", hold_name, HOLD_FORWARD + 1, &hold));
  node->hold = (Hold)hold;
  Status status = op_verify(node, reader->scratch);
  if (status.code != VL_OK) return vl_error(status.code, "%s: %.400s", path, status.message);
  for (int32_t i = 0; i < node->output_count; i++) {
    if (node->outputs[i] != NULL) node->outputs[i]->producer = node;
  }
  return vl_ok();
}

/* ---- Reading: the whole ------------------------------------------------------------------------------------------- */

/* A list of `count` zeroed elements. */
static void *make_elements(Graph *graph, int32_t count, size_t bytes) {
  void **list = vl_allocate((size_t)count * sizeof *list);
  for (int32_t i = 0; i < count; i++)
    list[i] = vl_arena_allocate(graph->arena, bytes);
  return list;
}

static Status read_lists(Reader *reader, json_t *root) {
  Graph *graph = reader->graph;
  const json_t *storages, *tensors, *nodes;
  VL_TRY(get_list(root, "graph", "storages", &storages, &graph->storage_count));
  VL_TRY(get_list(root, "graph", "tensors", &tensors, &graph->tensor_count));
  VL_TRY(get_list(root, "graph", "nodes", &nodes, &graph->node_count));
  graph->storages = make_elements(graph, graph->storage_count, sizeof(Storage));
  graph->tensors = make_elements(graph, graph->tensor_count, sizeof(Tensor));
  graph->nodes = make_elements(graph, graph->node_count, sizeof(Node));
  graph->storage_capacity = graph->storage_count;
  graph->tensor_capacity = graph->tensor_count;
  graph->node_capacity = graph->node_count;
  reader->roots = vl_arena_allocate(graph->arena, (size_t)graph->storage_count * sizeof *reader->roots);
  for (int32_t i = 0; i < graph->storage_count; i++)
    VL_TRY(read_storage(reader, json_array_get(storages, (size_t)i), i));
  for (int32_t i = 0; i < graph->tensor_count; i++)
    VL_TRY(read_tensor(reader, json_array_get(tensors, (size_t)i), i));
  VL_TRY(resolve_roots(reader));
  VL_TRY(check_names(graph));
  for (int32_t i = 0; i < graph->node_count; i++)
    VL_TRY(read_node(reader, json_array_get(nodes, (size_t)i), i));
  return vl_graph_check(graph);
}

static Status read_root(Reader *reader, json_t *root) {
  static const char *const keys[] = {"format",   "version", "name", "block_count",
                                     "storages", "tensors", "nodes"};
  VL_TRY(check_keys(root, "graph", keys, sizeof keys / sizeof *keys));
  const char *format = json_string_value(json_object_get(root, "format"));
  if (format == NULL || strcmp(format, format_name) != 0)
    return vl_error(VL_INVALID, "graph.format: expected '%s'", format_name);
  int64_t version = 0;
  VL_TRY(get_integer(json_object_get(root, "version"), "graph", "version", FORMAT_VERSION, FORMAT_VERSION,
                     &version));
  VL_TRY(get_text(reader->graph, json_object_get(root, "name"), "graph", "name", &reader->graph->name));
  VL_TRY(get_small(root, "graph", "block_count", INT32_MAX, &reader->graph->block_count));
  return read_lists(reader, root);
}

Status vl_graph_read_json(const char *text, size_t size, Graph **graph) {
  *graph = NULL;
  json_error_t fault;
  json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &fault);
  if (root == NULL)
    return vl_error(VL_INVALID, "line %d, column %d: %s", fault.line, fault.column, fault.text);
  Reader reader = {.graph = vl_graph_create(""), .scratch = vl_graph_create("scratch")};
  Status status = read_root(&reader, root);
  vl_graph_destroy(&reader.scratch);
  json_decref(root);
  if (status.code == VL_OK)
    *graph = reader.graph;
  else
    vl_graph_destroy(&reader.graph);
  return status;
}
