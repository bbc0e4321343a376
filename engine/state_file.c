/* State in the safetensors format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
 * data_offsets}, "__metadata__": {...}}, then the data (https://huggingface.co/docs/safetensors). Logical
 * layout, so a file does not depend on device or recipe. */
#include "engine/internal.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const dtype_names[DTYPE_COUNT] = {"F32", "BF16", "F16", "F64", "I32", "I64", "U8"};
enum { MAX_HEADER_BYTES = 100 << 20 };

static json_t *describe_entry(const StateEntry *entry, int64_t begin, int64_t end) {
  json_t *shape = json_array();
  for (int32_t i = 0; i < entry->storage.root->rank; i++) {
    json_array_append_new(shape, json_integer((json_int_t)entry->storage.root->shape[i]));
  }
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_names[entry->storage.dtype], "shape", shape,
                   "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static char *make_header(const State *state, int64_t step, uint64_t seed, size_t *length) {
  char step_text[32], seed_text[32];
  snprintf(step_text, sizeof step_text, "%" PRId64, step);
  snprintf(seed_text, sizeof seed_text, "%" PRIu64, seed);
  json_t *header = json_pack("{s:{s:s, s:s, s:s}}", "__metadata__", "format", "vramlab-state", "step",
                             step_text, "seed", seed_text);
  const char *vocabulary = engine_state_vocabulary(state);
  if (*vocabulary)
    json_object_set_new(json_object_get(header, "__metadata__"), "vocabulary", json_string(vocabulary));
  int64_t offset = 0;
  for (int32_t i = 0; i < engine_state_count(state); i++) {
    const StateEntry *entry = engine_state_entry(state, i);
    int64_t bytes = vl_dtype_bytes(entry->storage.dtype, entry->storage.elements);
    json_object_set_new(header, entry->storage.name, describe_entry(entry, offset, offset + bytes));
    offset += bytes;
  }
  char *text = json_dumps(header, JSON_COMPACT);
  json_decref(header);
  *length = strlen(text);
  return text;
}

static Status write_all(State *state, FILE *file, const char *header, size_t length, const char *path) {
  uint64_t prefix = length;
  if (fwrite(&prefix, 1, 8, file) != 8 || fwrite(header, 1, length, file) != length) {
    return vl_error(VL_ENVIRONMENT, "cannot write %s: %s", path, strerror(errno));
  }
  for (int32_t i = 0; i < engine_state_count(state); i++) {
    const StateEntry *entry = engine_state_entry(state, i);
    int64_t bytes = vl_dtype_bytes(entry->storage.dtype, entry->storage.elements);
    void *host = vl_allocate((size_t)bytes + 1);
    Status status = vl_state_read(state, entry->storage.name, host, bytes);
    if (status.code == VL_OK && fwrite(host, 1, (size_t)bytes, file) != (size_t)bytes) {
      status = vl_error(VL_ENVIRONMENT, "cannot write %s: %s", path, strerror(errno));
    }
    free(host);
    VL_TRY(status);
  }
  if (fflush(file) != 0 || fsync(fileno(file)) != 0) {
    return vl_error(VL_ENVIRONMENT, "cannot write %s: %s", path, strerror(errno));
  }
  return vl_ok();
}

Status vl_state_save(State *state, const char *path, int64_t step, uint64_t seed) {
  size_t length;
  if (engine_state_is_derived(state))
    return vl_error(
        VL_INVALID,
        "%s: what was derived from weights and statistics cannot be saved for them; leave out fold "
        "and weights=once",
        path);
  char *header = make_header(state, step, seed, &length);
  char temporary[600];
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  FILE *file = fopen(temporary, "wb");
  if (!file) {
    free(header);
    return vl_error(VL_ENVIRONMENT, "cannot create %s: %s", temporary, strerror(errno));
  }
  Status status = write_all(state, file, header, length, temporary);
  free(header);
  if (fclose(file) != 0 && status.code == VL_OK) {
    status = vl_error(VL_ENVIRONMENT, "cannot write %s: %s", temporary, strerror(errno));
  }
  if (status.code == VL_OK && rename(temporary, path) != 0) {
    status = vl_error(VL_ENVIRONMENT, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
  }
  if (status.code != VL_OK) unlink(temporary);
  return status;
}

static Status read_header(FILE *file, const char *path, json_t **header, int64_t *data_start) {
  uint64_t length = 0;
  if (fread(&length, 1, 8, file) != 8 || length == 0 || length > MAX_HEADER_BYTES) {
    return vl_error(VL_INVALID, "%s is not a safetensors file (header of %" PRIu64 " bytes)", path, length);
  }
  char *text = vl_allocate((size_t)length);
  json_error_t error;
  *header = fread(text, 1, (size_t)length, file) == (size_t)length
                ? json_loadb(text, (size_t)length, 0, &error)
                : NULL;
  free(text);
  if (!json_is_object(*header)) {
    json_decref(*header);
    return vl_error(VL_INVALID, "%s has a truncated or malformed safetensors header", path);
  }
  *data_start = 8 + (int64_t)length;
  return vl_ok();
}

static Status parse_metadata(const json_t *header, const char *path, int64_t *step, uint64_t *seed) {
  const json_t *metadata = json_object_get(header, "__metadata__");
  const char *format = json_string_value(json_object_get(metadata, "format"));
  const char *step_text = json_string_value(json_object_get(metadata, "step"));
  const char *seed_text = json_string_value(json_object_get(metadata, "seed"));
  if (!format || strcmp(format, "vramlab-state") != 0 || !step_text || !seed_text) {
    return vl_error(VL_INVALID, "%s was not saved by vramlab: no step and seed in its metadata", path);
  }
  VL_TRY(vl_parse_integer("step of the saved state", step_text, 0, INT64_MAX, step));
  char *end;
  errno = 0;
  *seed = strtoull(seed_text, &end, 10);
  if (errno || *end || !*seed_text)
    return vl_error(VL_INVALID, "%s: seed '%s' is not a number", path, seed_text);
  return vl_ok();
}

static const char *vocabulary_in(const json_t *header) {
  const json_t *metadata = json_object_get(header, "__metadata__");
  const char *digest = json_string_value(json_object_get(metadata, "vocabulary"));
  return digest ? digest : "";
}

static Status check_vocabulary(const State *state, const json_t *header, const char *path) {
  const char *own = engine_state_vocabulary(state), *its = vocabulary_in(header);
  if (!*own || !*its || strcmp(own, its) == 0) return vl_ok();
  return vl_error(
      VL_INVALID,
      "%s was trained with another vocabulary (sha256 %.12s...) than the data's (%.12s...): the same "
      "numbers would be other tokens",
      path, its, own);
}

static Status check_item(const Storage *storage, const json_t *item, const char *path, int64_t *begin) {
  const char *name = storage->name;
  const Tensor *root = storage->root;
  if (!json_is_object(item)) return vl_error(VL_INVALID, "%s has no '%s', which this run needs", path, name);
  const char *dtype = json_string_value(json_object_get(item, "dtype"));
  const json_t *shape = json_object_get(item, "shape"), *offsets = json_object_get(item, "data_offsets");
  bool same = dtype && strcmp(dtype, dtype_names[storage->dtype]) == 0 && json_is_array(shape) &&
              json_array_size(shape) == (size_t)root->rank && json_array_size(offsets) == 2;
  for (int32_t i = 0; same && i < root->rank; i++) {
    same = json_integer_value(json_array_get(shape, (size_t)i)) == root->shape[i];
  }
  char want[96];
  vl_tensor_describe(root, want, sizeof want);
  if (!same) return vl_error(VL_INVALID, "'%s' in %s is not %s", name, path, want);
  int64_t bytes = vl_dtype_bytes(storage->dtype, storage->elements);
  *begin = json_integer_value(json_array_get(offsets, 0));
  int64_t end = json_integer_value(json_array_get(offsets, 1));
  if (*begin < 0 || end < *begin || end - *begin != bytes) {
    return vl_error(VL_INVALID, "'%s' in %s has offsets that do not hold %s", name, path, want);
  }
  return vl_ok();
}

/* A safetensors file. */
typedef struct StateFile {
  FILE *file;
  const char *path;
  const json_t *header;
  int64_t data_start, bytes;
} StateFile;

/* A storage's value in the file; host NULL: it is only looked for. */
static Status read_item(const StateFile *from, const Storage *storage, void *host) {
  int64_t begin = 0, bytes = vl_dtype_bytes(storage->dtype, storage->elements);
  VL_TRY(check_item(storage, json_object_get(from->header, storage->name), from->path, &begin));
  if (begin > from->bytes - from->data_start - bytes) {
    return vl_error(VL_INVALID, "%s is truncated: '%s' ends past the file's end", from->path, storage->name);
  }
  if (!host) return vl_ok();
  if (fseek(from->file, (long)(from->data_start + begin), SEEK_SET) == 0 &&
      fread(host, 1, (size_t)bytes, from->file) == (size_t)bytes)
    return vl_ok();
  return vl_error(VL_ENVIRONMENT, "cannot read '%s' from %s", storage->name, from->path);
}

/* A value that is derived from what the file has. */
static Status read_derived(const StateFile *from, const Storage *storage, void *host) {
  const Derivation *derived = storage->derived;
  void *sources[VL_MAX_SOURCES] = {NULL};
  Status status = vl_ok();
  for (int32_t i = 0; i < vl_derivation_source_count(derived->kind) && status.code == VL_OK; i++) {
    const Storage *source = derived->sources[i];
    if (host) sources[i] = vl_allocate((size_t)vl_dtype_bytes(source->dtype, source->elements) + 1);
    status = read_item(from, source, sources[i]);
  }
  if (status.code == VL_OK && host) engine_derive(storage, sources, host);
  for (int32_t i = 0; i < VL_MAX_SOURCES; i++)
    free(sources[i]);
  return status;
}

static Status load_entry(State *state, const Storage *storage, const StateFile *from, bool write) {
  int64_t bytes = vl_dtype_bytes(storage->dtype, storage->elements);
  void *host = write ? vl_allocate((size_t)bytes + 1) : NULL;
  Status status = storage->derived ? read_derived(from, storage, host) : read_item(from, storage, host);
  if (status.code == VL_OK && write) status = vl_state_write(state, storage->name, host, bytes);
  free(host);
  return status;
}

/* First everything is checked, then written: a bad file leaves State as it was. */
static Status load_entries(State *state, const StateFile *from) {
  for (int32_t pass = 0; pass < 2; pass++)
    for (int32_t i = 0; i < engine_state_count(state); i++)
      VL_TRY(load_entry(state, &engine_state_entry(state, i)->storage, from, pass == 1));
  return vl_ok();
}

Status vl_state_load(State *state, const char *path, int64_t *step, uint64_t *seed) {
  FILE *file = fopen(path, "rb");
  if (!file) return vl_error(VL_INVALID, "cannot open %s: %s", path, strerror(errno));
  json_t *header = NULL;
  int64_t data_start = 0;
  fseek(file, 0, SEEK_END);
  int64_t file_bytes = ftell(file);
  rewind(file);
  Status status = read_header(file, path, &header, &data_start);
  if (status.code == VL_OK) {
    StateFile from = {file, path, header, data_start, file_bytes};
    status = parse_metadata(header, path, step, seed);
    if (status.code == VL_OK) status = check_vocabulary(state, header, path);
    if (status.code == VL_OK) status = load_entries(state, &from);
    if (status.code == VL_OK && *vocabulary_in(header)) vl_state_set_vocabulary(state, vocabulary_in(header));
    json_decref(header);
  }
  fclose(file);
  return status;
}
