/* YAML into a small tree that knows where each value stands. libyaml does the parsing; here are the limits:
 * no key twice, no tree too deep (an alias may contain itself) or too large (aliases of aliases multiply). */
#include "harness/harness.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { DEEPEST = 32, MOST_NODES = 100000 };

typedef struct Reading {
  Arena *arena;
  const char *file;
  yaml_document_t *document;
  int32_t nodes;
} Reading;

static Status error_at(const char *file, yaml_mark_t mark, const char *problem) {
  return vl_error(VL_INVALID, "%s:%zu:%zu: %s", file, mark.line + 1, mark.column + 1, problem);
}

static Status convert(Reading *reading, int id, int depth, YamlNode **result);

static Status convert_list(Reading *reading, const yaml_node_t *from, int depth, YamlNode *to) {
  const yaml_node_item_t *items = from->data.sequence.items.start;
  to->kind = YAML_LIST;
  to->count = (int32_t)(from->data.sequence.items.top - items);
  to->items = vl_arena_allocate(reading->arena, (size_t)(to->count + 1) * sizeof(YamlNode *));
  for (int32_t i = 0; i < to->count; i++)
    VL_TRY(convert(reading, items[i], depth + 1, &to->items[i]));
  return vl_ok();
}

static Status convert_map(Reading *reading, const yaml_node_t *from, int depth, YamlNode *to) {
  const yaml_node_pair_t *pairs = from->data.mapping.pairs.start;
  int32_t count = (int32_t)(from->data.mapping.pairs.top - pairs);
  to->kind = YAML_MAP;
  to->keys = vl_arena_allocate(reading->arena, (size_t)(count + 1) * sizeof(char *));
  to->key_nodes = vl_arena_allocate(reading->arena, (size_t)(count + 1) * sizeof(YamlNode *));
  to->items = vl_arena_allocate(reading->arena, (size_t)(count + 1) * sizeof(YamlNode *));
  for (int32_t i = 0; i < count; i++) {
    YamlNode *key = NULL;
    VL_TRY(convert(reading, pairs[i].key, depth + 1, &key));
    if (key->kind != YAML_TEXT) return vl_yaml_error(key, "a key must be plain text");
    if (vl_yaml_get(to, key->text)) return vl_yaml_error(key, "key \"%s\" is here twice", key->text);
    VL_TRY(convert(reading, pairs[i].value, depth + 1, &to->items[i]));
    to->keys[i] = key->text;
    to->key_nodes[i] = key;
    to->count = i + 1;
  }
  return vl_ok();
}

static Status convert(Reading *reading, int id, int depth, YamlNode **result) {
  const yaml_node_t *from = yaml_document_get_node(reading->document, id);
  YamlNode *to = vl_arena_allocate(reading->arena, sizeof *to);
  *result = to;
  if (depth > DEEPEST) return error_at(reading->file, from->start_mark, "nested too deep");
  if (++reading->nodes > MOST_NODES) return error_at(reading->file, from->start_mark, "too many values");
  to->file = reading->file;
  to->line = (int32_t)from->start_mark.line + 1;
  to->column = (int32_t)from->start_mark.column + 1;
  switch (from->type) {
  case YAML_SEQUENCE_NODE: return convert_list(reading, from, depth, to);
  case YAML_MAPPING_NODE: return convert_map(reading, from, depth, to);
  default: break;
  }
  const char *text = (const char *)from->data.scalar.value;
  if (strlen(text) != from->data.scalar.length)
    return error_at(reading->file, from->start_mark, "text holds a zero byte");
  to->kind = YAML_TEXT;
  to->text = vl_arena_copy_text(reading->arena, text);
  return vl_ok();
}

static Status load_document(yaml_parser_t *parser, const char *path, Arena *arena, const YamlNode **root) {
  yaml_document_t document;
  const char *file = vl_arena_copy_text(arena, path);
  if (!yaml_parser_load(parser, &document))
    return error_at(file, parser->problem_mark, parser->problem ? parser->problem : "malformed");
  Status status;
  Reading reading = {.arena = arena, .file = file, .document = &document};
  YamlNode *node = NULL;
  if (yaml_document_get_root_node(&document))
    status = convert(&reading, 1, 0, &node);
  else
    status = vl_error(VL_INVALID, "%s: the file is empty", file);
  yaml_document_delete(&document);
  *root = node;
  return status;
}

Status vl_yaml_load(const char *path, Arena *arena, const YamlNode **root) {
  FILE *file = fopen(path, "rb");
  if (!file) return vl_error(VL_INVALID, "%s: %s", path, strerror(errno));
  yaml_parser_t parser;
  if (!yaml_parser_initialize(&parser)) {
    fclose(file);
    return vl_error(VL_INTERNAL, "libyaml cannot start");
  }
  yaml_parser_set_input_file(&parser, file);
  Status status = load_document(&parser, path, arena, root);
  yaml_parser_delete(&parser);
  fclose(file);
  return status;
}

const YamlNode *vl_yaml_get(const YamlNode *map, const char *key) {
  if (!map || map->kind != YAML_MAP) return NULL;
  for (int32_t i = 0; i < map->count; i++)
    if (strcmp(map->keys[i], key) == 0) return map->items[i];
  return NULL;
}

Status vl_yaml_error(const YamlNode *node, const char *format, ...) {
  char text[VL_STATUS_MESSAGE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return vl_error(VL_INVALID, "%s:%d:%d: %s", node->file, node->line, node->column, text);
}

static const char *kind_name(YamlKind kind) {
  static const char *const names[] = {"text", "a list", "a map"};
  return names[kind];
}

static Status expect(const YamlNode *node, YamlKind kind) {
  if (node->kind == kind) return vl_ok();
  return vl_yaml_error(node, "expected %s, not %s", kind_name(kind), kind_name(node->kind));
}

Status vl_yaml_check_keys(const YamlNode *node, const char *const *accepted) {
  VL_TRY(expect(node, YAML_MAP));
  for (int32_t i = 0; i < node->count; i++) {
    bool known = false;
    for (const char *const *key = accepted; *key; key++)
      known = known || strcmp(*key, node->keys[i]) == 0;
    if (known) continue;
    char list[VL_STATUS_MESSAGE_BYTES] = "";
    for (const char *const *key = accepted; *key; key++) {
      size_t used = strlen(list);
      snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", *key);
    }
    return vl_yaml_error(node->key_nodes[i], "unknown key \"%s\"; accepted: %s", node->keys[i], list);
  }
  return vl_ok();
}

Status vl_yaml_text(const YamlNode *node, const char **text) {
  VL_TRY(expect(node, YAML_TEXT));
  *text = node->text;
  return vl_ok();
}

Status vl_yaml_integer(const YamlNode *node, int64_t low, int64_t high, int64_t *value) {
  VL_TRY(expect(node, YAML_TEXT));
  Status status = vl_parse_integer("value", node->text, low, high, value);
  return status.code == VL_OK ? status : vl_yaml_error(node, "%s", status.message);
}

Status vl_yaml_real(const YamlNode *node, double *value) {
  VL_TRY(expect(node, YAML_TEXT));
  /* jansson reads numbers alike in every locale; strtod does not. */
  json_t *json = json_loads(node->text, JSON_DECODE_ANY, NULL);
  bool number = json_is_number(json);
  *value = json_number_value(json);
  json_decref(json);
  return number ? vl_ok() : vl_yaml_error(node, "\"%s\" is not a number", node->text);
}

Status vl_yaml_flag(const YamlNode *node, bool *value) {
  VL_TRY(expect(node, YAML_TEXT));
  bool yes = strcmp(node->text, "true") == 0;
  if (!yes && strcmp(node->text, "false") != 0)
    return vl_yaml_error(node, "\"%s\" is neither true nor false", node->text);
  *value = yes;
  return vl_ok();
}
