/* Profiles: devices on paper, read strictly from YAML. A misspelt or missing key is an error, since a
 * prediction from a half-read profile looks like any other. */
#include "devices/device.h"
#include "devices/modules.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef enum KeyType { KEY_TEXT = 0, KEY_BYTES, KEY_RATE, KEY_LOW_TYPES } KeyType;

typedef struct ProfileKey {
  const char *name;
  KeyType type;
  size_t offset, size;
  int64_t low, high; /* of KEY_BYTES and KEY_RATE */
} ProfileKey;

#define FIELD(member) offsetof(DeviceProfile, member), sizeof(((DeviceProfile *)0)->member)
/* Wide enough for any card of this century, narrow enough to catch a wrong unit. */
static const ProfileKey keys[] = {
    {"name", KEY_TEXT, FIELD(name), 0, 0},
    {"describes", KEY_TEXT, FIELD(describes), 0, 0},
    {"source", KEY_TEXT, FIELD(source), 0, 0},
    {"memory", KEY_BYTES, FIELD(memory_bytes), INT64_C(1) << 28, INT64_C(1) << 44},
    {"context_low", KEY_BYTES, FIELD(context_low_bytes), 0, INT64_C(1) << 34},
    {"context_high", KEY_BYTES, FIELD(context_high_bytes), 0, INT64_C(1) << 34},
    {"workspace_low", KEY_BYTES, FIELD(workspace_low_bytes), 0, INT64_C(1) << 34},
    {"workspace_high", KEY_BYTES, FIELD(workspace_high_bytes), 0, INT64_C(1) << 34},
    {"low_types", KEY_LOW_TYPES, FIELD(has_bf16), 0, 0},
    {"flops_f32", KEY_RATE, FIELD(flops_f32_per_s), INT64_C(1000000000), INT64_C(1) << 60},
    {"flops_low", KEY_RATE, FIELD(flops_low_per_s), INT64_C(1000000000), INT64_C(1) << 60},
    {"memory_rate", KEY_RATE, FIELD(memory_bytes_per_s), INT64_C(1000000000), INT64_C(1) << 50},
    {"host_rate", KEY_RATE, FIELD(host_bytes_per_s), INT64_C(100000000), INT64_C(1) << 50},
};
#undef FIELD
enum { KEYS = sizeof keys / sizeof *keys };
static const char accepted_keys[] =
    "name, describes, source, memory, context_low, context_high, workspace_low, workspace_high, low_types, "
    "flops_f32, flops_low, memory_rate, host_rate";

typedef struct Reader {
  const char *path;
  yaml_parser_t parser;
  DeviceProfile *profile;
  bool seen[KEYS];
} Reader;

static Status fail(const Reader *reader, const yaml_mark_t *mark, const char *what, const char *text) {
  return vl_error(VL_INVALID, "%s:%zu: %s \"%s\"; accepted keys: %s", reader->path, mark->line + 1, what,
                  text, accepted_keys);
}

/* The next event; the caller deletes it. */
static Status next(Reader *reader, yaml_event_t *event) {
  if (yaml_parser_parse(&reader->parser, event)) return vl_ok();
  const char *problem = reader->parser.problem ? reader->parser.problem : "not readable";
  return vl_error(VL_INVALID, "%s:%zu: not YAML: %s", reader->path, reader->parser.problem_mark.line + 1,
                  problem);
}

static Status expect(Reader *reader, yaml_event_type_t type, const char *what) {
  yaml_event_t event;
  VL_TRY(next(reader, &event));
  Status status = vl_ok();
  if (event.type != type) status = fail(reader, &event.start_mark, "expected", what);
  yaml_event_delete(&event);
  return status;
}

static Status set_text(const Reader *reader, const ProfileKey *key, const yaml_event_t *event) {
  const char *text = (const char *)event->data.scalar.value;
  if (strlen(text) == 0 || strlen(text) >= key->size)
    return vl_error(VL_INVALID, "%s:%zu: %s has %zu characters; accepted: 1 to %zu", reader->path,
                    event->start_mark.line + 1, key->name, strlen(text), key->size - 1);
  memcpy((char *)reader->profile + key->offset, text, strlen(text) + 1);
  return vl_ok();
}

static Status set_bytes(const Reader *reader, const ProfileKey *key, const yaml_event_t *event) {
  const char *text = (const char *)event->data.scalar.value;
  int64_t bytes;
  Status status = vl_parse_bytes(text, &bytes);
  if (status.code != VL_OK)
    return vl_error(VL_INVALID, "%s:%zu: %s: %.300s", reader->path, event->start_mark.line + 1, key->name,
                    status.message);
  if (bytes < key->low || bytes > key->high) {
    char low[32], high[32];
    vl_format_bytes(key->low, low, sizeof low);
    vl_format_bytes(key->high, high, sizeof high);
    return vl_error(VL_INVALID, "%s:%zu: %s is %s; accepted: %s to %s", reader->path,
                    event->start_mark.line + 1, key->name, text, low, high);
  }
  memcpy((char *)reader->profile + key->offset, &bytes, sizeof bytes);
  return vl_ok();
}

/* What the card multiplies natively; every one that has bf16 has fp16. */
static Status set_low_types(const Reader *reader, const ProfileKey *key, const yaml_event_t *event) {
  const char *text = (const char *)event->data.scalar.value;
  bool has_bf16 = strcmp(text, "bf16, fp16") == 0;
  if (!has_bf16 && strcmp(text, "fp16") != 0)
    return vl_error(VL_INVALID, "%s:%zu: %s is \"%s\"; accepted: fp16 (before sm_80), or bf16, fp16",
                    reader->path, event->start_mark.line + 1, key->name, text);
  memcpy((char *)reader->profile + key->offset, &has_bf16, sizeof has_bf16);
  return vl_ok();
}

/* A number a second. */
static Status set_rate(const Reader *reader, const ProfileKey *key, const yaml_event_t *event) {
  const char *text = (const char *)event->data.scalar.value;
  char *end;
  double rate = strtod(text, &end);
  if (end == text || *end != '\0' || !(rate >= (double)key->low && rate <= (double)key->high))
    return vl_error(VL_INVALID, "%s:%zu: %s is %s; accepted: a number a second, %g to %g", reader->path,
                    event->start_mark.line + 1, key->name, text, (double)key->low, (double)key->high);
  memcpy((char *)reader->profile + key->offset, &rate, sizeof rate);
  return vl_ok();
}

static Status read_value(Reader *reader, int32_t index) {
  yaml_event_t event;
  VL_TRY(next(reader, &event));
  Status status;
  if (event.type != YAML_SCALAR_EVENT)
    status = fail(reader, &event.start_mark, "one value is expected for", keys[index].name);
  else if (keys[index].type == KEY_TEXT)
    status = set_text(reader, &keys[index], &event);
  else if (keys[index].type == KEY_LOW_TYPES)
    status = set_low_types(reader, &keys[index], &event);
  else if (keys[index].type == KEY_RATE)
    status = set_rate(reader, &keys[index], &event);
  else
    status = set_bytes(reader, &keys[index], &event);
  yaml_event_delete(&event);
  return status;
}

static Status read_key(Reader *reader, const yaml_event_t *event) {
  const char *text = event->type == YAML_SCALAR_EVENT ? (const char *)event->data.scalar.value : "not a name";
  for (int32_t i = 0; i < KEYS; ++i) {
    if (strcmp(keys[i].name, text) != 0) continue;
    if (reader->seen[i]) return fail(reader, &event->start_mark, "twice", text);
    reader->seen[i] = true;
    return read_value(reader, i);
  }
  return fail(reader, &event->start_mark, "unknown key", text);
}

static Status read_mapping(Reader *reader) {
  for (;;) {
    yaml_event_t event;
    VL_TRY(next(reader, &event));
    bool end = event.type == YAML_MAPPING_END_EVENT;
    Status status = end ? vl_ok() : read_key(reader, &event);
    yaml_event_delete(&event);
    if (end || status.code != VL_OK) return status;
  }
}

static Status check_interval(const Reader *reader, const char *what, int64_t low, int64_t high) {
  if (low <= high) return vl_ok();
  return vl_error(VL_INVALID, "%s:1: %s_low is %" PRId64 ", above %s_high, %" PRId64, reader->path, what, low,
                  what, high);
}

static Status check(const Reader *reader, const char *name) {
  const DeviceProfile *profile = reader->profile;
  for (int32_t i = 0; i < KEYS; ++i)
    if (!reader->seen[i])
      return vl_error(VL_INVALID, "%s:1: the key \"%s\" is missing; accepted keys, all required: %s",
                      reader->path, keys[i].name, accepted_keys);
  if (strcmp(profile->name, name) != 0)
    return vl_error(VL_INVALID, "%s:1: name is \"%s\"; accepted: the file's, \"%s\"", reader->path,
                    profile->name, name);
  VL_TRY(check_interval(reader, "context", profile->context_low_bytes, profile->context_high_bytes));
  VL_TRY(check_interval(reader, "workspace", profile->workspace_low_bytes, profile->workspace_high_bytes));
  if (profile->context_high_bytes >= profile->memory_bytes)
    return vl_error(VL_INVALID, "%s:1: context_high is %" PRId64 " bytes of a memory of %" PRId64,
                    reader->path, profile->context_high_bytes, profile->memory_bytes);
  return vl_ok();
}

static Status read_file(Reader *reader, FILE *file, const char *name) {
  yaml_parser_set_input_file(&reader->parser, file);
  VL_TRY(expect(reader, YAML_STREAM_START_EVENT, "a file"));
  VL_TRY(expect(reader, YAML_DOCUMENT_START_EVENT, "a document"));
  VL_TRY(expect(reader, YAML_MAPPING_START_EVENT, "key: value lines"));
  VL_TRY(read_mapping(reader));
  VL_TRY(expect(reader, YAML_DOCUMENT_END_EVENT, "the end"));
  VL_TRY(expect(reader, YAML_STREAM_END_EVENT, "one document"));
  return check(reader, name);
}

/* The folder of profiles: the one given, else the installed one beside the modules. */
static Status profile_directory(const char *given, char *text, size_t size) {
  if (given) {
    if ((size_t)snprintf(text, size, "%s", given) < size) return vl_ok();
    return vl_error(VL_INVALID, "the profile directory's name is longer than %zu characters", size - 1);
  }
  char modules[VL_MODULE_PATH_BYTES];
  VL_TRY(vl_module_directory(modules, sizeof modules));
  snprintf(text, size, "%s/../share/vramlab/profiles", modules);
  return vl_ok();
}

typedef struct NameList {
  char **names;
  int32_t count;
} NameList;

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(NameList *list) {
  for (int32_t i = 0; i < list->count; ++i)
    free(list->names[i]);
  free(list->names);
  *list = (NameList){NULL, 0};
}

/* Names of the profiles of a folder, sorted. */
static Status list_names(const char *directory, NameList *list) {
  *list = (NameList){NULL, 0};
  DIR *folder = opendir(directory);
  if (!folder)
    return vl_error(VL_ENVIRONMENT, "profiles: the folder %s cannot be read: %s", directory, strerror(errno));
  for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
    size_t length = strlen(entry->d_name);
    if (length < 6 || strcmp(entry->d_name + length - 5, ".yaml") != 0) continue;
    list->names = vl_reallocate(list->names, (size_t)(list->count + 1) * sizeof(char *));
    list->names[list->count] = vl_copy_text(entry->d_name);
    list->names[list->count++][length - 5] = '\0';
  }
  closedir(folder);
  if (list->count > 1) qsort(list->names, (size_t)list->count, sizeof(char *), compare_names);
  return vl_ok();
}

static Status unknown_profile(const char *directory, const char *name) {
  NameList list;
  char known[256] = "";
  VL_TRY(list_names(directory, &list));
  for (int32_t i = 0; i < list.count; ++i) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", list.names[i]);
  }
  free_names(&list);
  return vl_error(VL_INVALID, "unknown profile \"%s\"; accepted: %s", name,
                  *known ? known : "none, the folder is empty");
}

static Status load(const char *directory, const char *name, DeviceProfile *profile) {
  char path[VL_MODULE_PATH_BYTES + 128];
  memset(profile, 0, sizeof *profile);
  if (strchr(name, '/') || strlen(name) >= sizeof profile->name) return unknown_profile(directory, name);
  snprintf(path, sizeof path, "%s/%s.yaml", directory, name);
  FILE *file = fopen(path, "rb");
  if (!file) return unknown_profile(directory, name);
  Reader reader = {.path = path, .profile = profile};
  Status status;
  if (yaml_parser_initialize(&reader.parser)) {
    status = read_file(&reader, file, name);
    yaml_parser_delete(&reader.parser);
  } else {
    status = vl_error(VL_INTERNAL, "%s: the YAML parser does not start", path);
  }
  fclose(file);
  return status;
}

Status vl_profile_load(const char *directory, const char *name, DeviceProfile *profile) {
  char folder[VL_MODULE_PATH_BYTES + 32];
  VL_TRY(profile_directory(directory, folder, sizeof folder));
  return load(folder, name, profile);
}

Status vl_profile_each(const char *directory, void (*visit)(const DeviceProfile *, void *), void *context) {
  char folder[VL_MODULE_PATH_BYTES + 32];
  NameList list;
  VL_TRY(profile_directory(directory, folder, sizeof folder));
  VL_TRY(list_names(folder, &list));
  Status status = vl_ok();
  for (int32_t i = 0; i < list.count && status.code == VL_OK; ++i) {
    DeviceProfile profile;
    status = load(folder, list.names[i], &profile);
    if (status.code == VL_OK) visit(&profile, context);
  }
  free_names(&list);
  return status;
}
