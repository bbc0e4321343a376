/* Suites: a YAML file expanded into cells. Everything is checked before anything runs. */
#include "harness/cell_json.h"
#include "harness/harness.h"
#include "harness/options.h"
#include "harness/suite_keys.h"

#include <dirent.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FIELDS = 48, MOST_CELLS = 100000, MOST_FACTORS = 6 };
static const double usual_timeout_s = 3600;

/* ---- Entries: keys with one value or several ---------------------------------------------------------------- */

typedef struct Field {
  const char *name; /* a key, or the name of a setting */
  bool setting;
  const YamlNode *node; /* a list is an axis */
} Field;

/* Parts of a recipe, of which a value of this axis is any choice. */
static bool is_factors(const Field *field) { return !field->setting && strcmp(field->name, "factors") == 0; }

/* A factor is there or not; one that is a list is there in one of several ways, or not. */
static int32_t level_count(const YamlNode *factor) {
  return factor->kind == YAML_LIST ? 1 + factor->count : 2;
}

/* NULL at level 0: it is not there. */
static const YamlNode *level_at(const YamlNode *factor, int32_t level) {
  return level == 0 ? NULL : factor->kind == YAML_LIST ? factor->items[level - 1] : factor;
}

typedef struct Entry {
  const YamlNode *place;
  bool max_batch;
  Field fields[MOST_FIELDS];
  int32_t count;
} Entry;

static void remove_field(Entry *entry, const char *name) {
  for (int32_t i = 0; i < entry->count; i++) {
    if (entry->fields[i].setting || strcmp(entry->fields[i].name, name) != 0) continue;
    memmove(&entry->fields[i], &entry->fields[i + 1], (size_t)(entry->count - i - 1) * sizeof(Field));
    entry->count--;
    return;
  }
}

static Status put_field(Entry *entry, const char *name, bool setting, const YamlNode *node) {
  if (node->kind == YAML_LIST && node->count == 0) return vl_yaml_error(node, "\"%s\" has no values", name);
  /* The two say the same thing in different ways; the later one counts. */
  if (!setting && strcmp(name, "batch") == 0) remove_field(entry, "micro_batch");
  if (!setting && strcmp(name, "micro_batch") == 0) remove_field(entry, "batch");
  for (int32_t i = 0; i < entry->count; i++) {
    Field *field = &entry->fields[i];
    if (field->setting != setting || strcmp(field->name, name) != 0) continue;
    field->node = node;
    return vl_ok();
  }
  if (entry->count == MOST_FIELDS) return vl_yaml_error(node, "more than %d keys", MOST_FIELDS);
  entry->fields[entry->count++] = (Field){name, setting, node};
  return vl_ok();
}

static Status check_cell_keys(const YamlNode *map) {
  const char *accepted[VL_SUITE_KEY_COUNT + 3];
  for (int i = 0; i < VL_SUITE_KEY_COUNT; i++)
    accepted[i] = vl_suite_keys[i].name;
  accepted[VL_SUITE_KEY_COUNT] = "factors";
  accepted[VL_SUITE_KEY_COUNT + 1] = "settings";
  accepted[VL_SUITE_KEY_COUNT + 2] = NULL;
  return vl_yaml_check_keys(map, accepted);
}

static Status check_factors(const YamlNode *node) {
  if (node->kind != YAML_LIST || node->count > MOST_FACTORS)
    return vl_yaml_error(node, "factors must be a list of at most %d parts of a recipe", MOST_FACTORS);
  for (int32_t i = 0; i < node->count; i++) {
    const YamlNode *factor = node->items[i];
    if (level_count(factor) > 1 + MOST_FACTORS)
      return vl_yaml_error(factor, "a factor with more than %d ways of being there", MOST_FACTORS);
    for (int32_t level = 1; level < level_count(factor); level++) {
      const char *text;
      Recipe recipe;
      VL_TRY(vl_yaml_text(level_at(factor, level), &text));
      Status status = vl_recipe_parse(text, &recipe);
      if (status.code != VL_OK) return vl_yaml_error(level_at(factor, level), "%s", status.message);
      if (recipe.count == 0) return vl_yaml_error(level_at(factor, level), "\"%s\" changes nothing", text);
    }
  }
  return vl_ok();
}

/* Puts a map's keys over what the entry has. */
static Status overlay(Entry *entry, const YamlNode *map) {
  if (!map) return vl_ok();
  VL_TRY(check_cell_keys(map));
  if (vl_yaml_get(map, "batch") && vl_yaml_get(map, "micro_batch"))
    return vl_yaml_error(map, "batch and micro_batch: give one of them");
  for (int32_t i = 0; i < map->count; i++) {
    const YamlNode *value = map->items[i];
    if (strcmp(map->keys[i], "factors") == 0) VL_TRY(check_factors(value));
    if (strcmp(map->keys[i], "settings") != 0) {
      VL_TRY(put_field(entry, map->keys[i], false, value));
      continue;
    }
    if (value->kind != YAML_MAP)
      return vl_yaml_error(value, "settings must be a map of the case's arguments");
    for (int32_t j = 0; j < value->count; j++)
      VL_TRY(put_field(entry, value->keys[j], true, value->items[j]));
  }
  return vl_ok();
}

static int32_t value_count(const Field *field) {
  if (!is_factors(field)) return field->node->kind == YAML_LIST ? field->node->count : 1;
  int32_t choices = 1;
  for (int32_t i = 0; i < field->node->count; i++)
    choices *= level_count(field->node->items[i]);
  return choices;
}

static const YamlNode *value_at(const Field *field, int32_t i) {
  return field->node->kind == YAML_LIST ? field->node->items[i] : field->node;
}

/* ---- From an entry to cells -------------------------------------------------------------------------------------- */

typedef struct Expansion {
  Suite *suite;
  const YamlNode *exclude;
  bool *used; /* which excludes left something out */
  json_t *seen;
  int64_t capacity;
} Expansion;

static bool same_value(const char *key, const char *a, const char *b) {
  if (strcmp(a, b) == 0) return true;
  Recipe recipe_a, recipe_b;
  char text_a[VL_RECIPE_BYTES], text_b[VL_RECIPE_BYTES];
  if (strcmp(key, "recipe") != 0) return false;
  if (vl_recipe_parse(a, &recipe_a).code != VL_OK || vl_recipe_parse(b, &recipe_b).code != VL_OK)
    return false;
  vl_recipe_format(&recipe_a, text_a, sizeof text_a);
  vl_recipe_format(&recipe_b, text_b, sizeof text_b);
  return strcmp(text_a, text_b) == 0;
}

/* Whether a chosen value is the one, or one of those, that a rule names. */
static bool is_named(const Field *rule, const Entry *entry, const int32_t *choice) {
  for (int32_t i = 0; i < entry->count; i++) {
    const Field *field = &entry->fields[i];
    if (field->setting != rule->setting || strcmp(field->name, rule->name) != 0 || is_factors(field))
      continue;
    const YamlNode *value = value_at(field, choice[i]);
    for (int32_t j = 0; j < value_count(rule); j++) {
      const YamlNode *wanted = value_at(rule, j);
      if (value->kind == YAML_TEXT && wanted->kind == YAML_TEXT &&
          same_value(rule->name, value->text, wanted->text))
        return true;
    }
  }
  return false;
}

static Status is_excluded(Expansion *expansion, const Entry *entry, const int32_t *choice, bool *excluded) {
  *excluded = false;
  for (int32_t i = 0; expansion->exclude && i < expansion->exclude->count; i++) {
    Entry rule = {0};
    VL_TRY(overlay(&rule, expansion->exclude->items[i]));
    bool all = true;
    for (int32_t j = 0; j < rule.count; j++)
      all = all && is_named(&rule.fields[j], entry, choice);
    if (!all) continue;
    expansion->used[i] = true;
    *excluded = true;
  }
  return vl_ok();
}

static Status add_setting(const Field *field, const YamlNode *value, CellSpec *spec) {
  const char *text;
  VL_TRY(vl_yaml_text(value, &text));
  if (spec->setting_count == VL_MAX_SETTINGS)
    return vl_yaml_error(value, "more than %d settings", VL_MAX_SETTINGS);
  char *to = spec->settings[spec->setting_count];
  if (snprintf(to, VL_NAME_BYTES, "%s=%s", field->name, text) >= VL_NAME_BYTES)
    return vl_yaml_error(value, "setting longer than the %d characters allowed", VL_NAME_BYTES - 1);
  spec->setting_count++;
  return vl_ok();
}

/* Adds what is there in this choice to the recipe; the first factor changes fastest. */
static Status add_factors(const Field *field, int32_t choice, CellSpec *spec) {
  for (int32_t i = 0; i < field->node->count; i++) {
    const YamlNode *factor = field->node->items[i], *part = level_at(factor, choice % level_count(factor));
    choice /= level_count(factor);
    if (part == NULL) continue;
    bool first = !*spec->recipe || strcmp(spec->recipe, "baseline") == 0;
    char recipe[2 * VL_RECIPE_BYTES];
    Recipe parsed;
    snprintf(recipe, sizeof recipe, "%s%s%.*s", first ? "" : spec->recipe, first ? "" : " ",
             VL_RECIPE_BYTES - 1, part->text);
    Status status = vl_recipe_parse(recipe, &parsed);
    if (status.code != VL_OK) return vl_yaml_error(part, "%s", status.message);
    vl_recipe_format(&parsed, spec->recipe, sizeof spec->recipe);
  }
  return vl_ok();
}

/* The micro-batch of a global batch under the recipe. */
static Status divide_batch(const Entry *entry, CellDraft *draft) {
  if (draft->batch == 0) return vl_ok();
  Status status = vl_cell_divide(&draft->cell.spec, draft->batch);
  return status.code == VL_OK ? status : vl_yaml_error(entry->place, "%s", status.message);
}

/* What a search takes from a cell: the batch is what it looks for, and it only plans. */
static Status make_search(const Entry *entry, CellDraft *draft) {
  CellSpec *spec = &draft->cell.spec;
  int64_t accumulate;
  if (spec->capacity_bytes == 0) return vl_yaml_error(entry->place, "max_batch needs a capacity");
  VL_TRY(vl_recipe_accumulate(spec->recipe, &accumulate));
  if (accumulate == 0)
    return vl_yaml_error(entry->place,
                         "max_batch with accumulate=auto: the batch is not given, so nothing is divided");
  snprintf(spec->device, sizeof spec->device, "plan");
  spec->micro_batch = 1;
  spec->global_batch = 0;
  spec->timeline = spec->monitor = spec->cross_check = spec->diagnose = false;
  spec->data[0] = '\0';
  draft->repeats = 1;
  draft->cell.max_batch = true;
  return vl_ok();
}

static Status make_draft(const Entry *entry, const int32_t *choice, CellDraft *draft) {
  memset(draft, 0, sizeof *draft);
  vl_cell_spec_init(&draft->cell.spec);
  draft->cell.timeout_s = usual_timeout_s;
  draft->repeats = 1;
  for (int32_t i = 0; i < entry->count; i++) {
    const Field *field = &entry->fields[i];
    if (is_factors(field)) continue; /* added to the recipe below */
    const YamlNode *value = value_at(field, choice[i]);
    if (field->setting) VL_TRY(add_setting(field, value, &draft->cell.spec));
    for (int k = 0; k < VL_SUITE_KEY_COUNT && !field->setting; k++)
      if (strcmp(vl_suite_keys[k].name, field->name) == 0) VL_TRY(vl_suite_keys[k].set(value, draft));
  }
  for (int32_t i = 0; i < entry->count; i++)
    if (is_factors(&entry->fields[i])) VL_TRY(add_factors(&entry->fields[i], choice[i], &draft->cell.spec));
  VL_TRY(divide_batch(entry, draft));
  if (!*draft->cell.spec.case_name) return vl_yaml_error(entry->place, "a cell needs a case");
  if (entry->max_batch) VL_TRY(make_search(entry, draft));
  vl_cell_normalize(&draft->cell.spec);
  Status status = vl_cell_check(&draft->cell.spec);
  return status.code == VL_OK ? status : vl_yaml_error(entry->place, "%s", status.message);
}

static Status add_cell(Expansion *expansion, const YamlNode *place, const SuiteCell *cell) {
  char key[17];
  Suite *suite = expansion->suite;
  vl_cell_key(cell, key);
  if (json_object_get(expansion->seen, key)) return vl_ok();
  json_object_set_new(expansion->seen, key, json_true());
  if (suite->cell_count == MOST_CELLS) return vl_yaml_error(place, "more than %d cells", MOST_CELLS);
  if (suite->cell_count == expansion->capacity) {
    expansion->capacity = expansion->capacity ? 2 * expansion->capacity : 64;
    suite->cells = vl_reallocate(suite->cells, (size_t)expansion->capacity * sizeof *suite->cells);
  }
  suite->cells[suite->cell_count++] = *cell;
  return vl_ok();
}

/* The cell's repetition of this number, if it has so many; raises `most` to how many it has. */
static Status expand_choice(Expansion *expansion, const Entry *entry, const int32_t *choice, int32_t repeat,
                            int64_t *most) {
  bool excluded;
  VL_TRY(is_excluded(expansion, entry, choice, &excluded));
  if (excluded) return vl_ok();
  CellDraft draft;
  VL_TRY(make_draft(entry, choice, &draft));
  if (draft.repeats > *most) *most = draft.repeats;
  if (repeat >= draft.repeats) return vl_ok();
  draft.cell.repeat = repeat;
  return add_cell(expansion, entry->place, &draft.cell);
}

/* Every combination, the last axis fastest. */
static Status expand_round(Expansion *expansion, const Entry *entry, int32_t repeat, int64_t *most) {
  int32_t choice[MOST_FIELDS] = {0};
  for (;;) {
    VL_TRY(expand_choice(expansion, entry, choice, repeat, most));
    int32_t i = entry->count - 1;
    while (i >= 0 && choice[i] + 1 == value_count(&entry->fields[i]))
      choice[i--] = 0;
    if (i < 0) return vl_ok();
    choice[i]++;
  }
}

/* Repetitions are rounds over all of an entry: what drifts on the machine meanwhile is in each cell alike. */
static Status expand_entry(Expansion *expansion, const Entry *entry) {
  int64_t most = 1;
  for (int32_t repeat = 0; repeat < most; repeat++)
    VL_TRY(expand_round(expansion, entry, repeat, &most));
  return vl_ok();
}

static Status expand_map(Expansion *expansion, const YamlNode *defaults, const YamlNode *map,
                         bool max_batch) {
  Entry entry = {.place = map, .max_batch = max_batch};
  VL_TRY(overlay(&entry, defaults));
  VL_TRY(overlay(&entry, map));
  /* The batch is what a search looks for. */
  if (max_batch) remove_field(&entry, "batch");
  if (max_batch) remove_field(&entry, "micro_batch");
  return expand_entry(expansion, &entry);
}

static Status expect_list_of_maps(const YamlNode *node, const char *what) {
  if (node && node->kind != YAML_LIST) return vl_yaml_error(node, "%s must be a list", what);
  for (int32_t i = 0; node && i < node->count; i++)
    VL_TRY(check_cell_keys(node->items[i]));
  return vl_ok();
}

static Status expand(const YamlNode *root, Expansion *expansion) {
  const YamlNode *defaults = vl_yaml_get(root, "defaults"), *axes = vl_yaml_get(root, "axes");
  const YamlNode *cells = vl_yaml_get(root, "cells"), *searches = vl_yaml_get(root, "max_batch");
  expansion->exclude = vl_yaml_get(root, "exclude");
  VL_TRY(expect_list_of_maps(cells, "cells"));
  VL_TRY(expect_list_of_maps(searches, "max_batch"));
  VL_TRY(expect_list_of_maps(expansion->exclude, "exclude"));
  if (!axes && !cells && !searches) return vl_yaml_error(root, "a suite needs axes, cells or max_batch");
  int32_t rules = expansion->exclude ? expansion->exclude->count : 0;
  expansion->used = vl_arena_allocate(expansion->suite->arena, (size_t)rules + 1);
  if (axes) VL_TRY(expand_map(expansion, defaults, axes, false));
  for (int32_t i = 0; cells && i < cells->count; i++)
    VL_TRY(expand_map(expansion, defaults, cells->items[i], false));
  for (int32_t i = 0; searches && i < searches->count; i++)
    VL_TRY(expand_map(expansion, defaults, searches->items[i], true));
  for (int32_t i = 0; i < rules; i++)
    if (!expansion->used[i]) return vl_yaml_error(expansion->exclude->items[i], "leaves nothing out");
  if (expansion->suite->cell_count == 0) return vl_yaml_error(root, "no cell is left");
  return vl_ok();
}

/* ---- Files ---------------------------------------------------------------------------------------------------------- */

static Status read_head(const YamlNode *root, Suite *suite) {
  static const char *const accepted[] = {"name",    "title", "help",      "defaults", "axes",
                                         "exclude", "cells", "max_batch", NULL};
  VL_TRY(vl_yaml_check_keys(root, accepted));
  const YamlNode *name = vl_yaml_get(root, "name");
  const YamlNode *title = vl_yaml_get(root, "title"), *help = vl_yaml_get(root, "help");
  if (!name) return vl_yaml_error(root, "a suite needs a name");
  VL_TRY(vl_yaml_text(name, &suite->name));
  /* It becomes the name of a directory. */
  if (!*suite->name || strspn(suite->name, "abcdefghijklmnopqrstuvwxyz0123456789-_") != strlen(suite->name))
    return vl_yaml_error(name, "\"%s\": a name has lower-case letters, digits, - and _ only", suite->name);
  suite->title = suite->name;
  suite->help = "";
  if (title) VL_TRY(vl_yaml_text(title, &suite->title));
  if (help) VL_TRY(vl_yaml_text(help, &suite->help));
  return vl_ok();
}

static void append_name(const char *name, const char *title, const char *help, void *context) {
  (void)title, (void)help;
  char *list = context;
  size_t used = strlen(list);
  snprintf(list + used, VL_STATUS_MESSAGE_BYTES / 2 - used, "%s%s", used ? ", " : "", name);
}

static Status find_file(const char *path_or_name, char *path, size_t size) {
  const char *end = strrchr(path_or_name, '.');
  char relative[PATH_MAX], known[VL_STATUS_MESSAGE_BYTES / 2] = "";
  if (strchr(path_or_name, '/') || (end && (strcmp(end, ".yaml") == 0 || strcmp(end, ".yml") == 0))) {
    if (snprintf(path, size, "%s", path_or_name) < (int)size) return vl_ok();
    return vl_error(VL_INVALID, "%s: path too long", path_or_name);
  }
  snprintf(relative, sizeof relative, "cases/suites/%s.yaml", path_or_name);
  if (vl_shared_path(relative, path, size).code == VL_OK) return vl_ok();
  VL_TRY(vl_suite_each(append_name, known));
  return vl_error(VL_INVALID, "no suite is named \"%s\"; there are: %s; or give a path to a .yaml file",
                  path_or_name, *known ? known : "none");
}

/* Reads the file a second time: which bytes were parsed does not matter as long as nobody edits it meanwhile.
 */
static Status hash_file(const char *path, char hexadecimal[65]) {
  unsigned char block[4096], digest[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  FILE *file = fopen(path, "rb");
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  bool good = file && context && EVP_DigestInit_ex(context, EVP_sha256(), NULL);
  for (size_t got; good && (got = fread(block, 1, sizeof block, file)) > 0;)
    good = EVP_DigestUpdate(context, block, got);
  good = good && !ferror(file) && EVP_DigestFinal_ex(context, digest, &bytes);
  EVP_MD_CTX_free(context);
  if (file) fclose(file);
  if (!good) return vl_error(VL_ENVIRONMENT, "%s: cannot be hashed", path);
  for (unsigned i = 0; i < bytes; i++)
    snprintf(hexadecimal + (size_t)2 * i, 3, "%02x", digest[i]);
  return vl_ok();
}

static Status load_into(Suite *suite, const char *path_or_name) {
  char path[PATH_MAX];
  const YamlNode *root;
  VL_TRY(find_file(path_or_name, path, sizeof path));
  suite->path = vl_arena_copy_text(suite->arena, path);
  VL_TRY(vl_yaml_load(path, suite->arena, &root));
  VL_TRY(read_head(root, suite));
  VL_TRY(hash_file(path, suite->sha256));
  Expansion expansion = {.suite = suite, .seen = json_object()};
  Status status = expand(root, &expansion);
  json_decref(expansion.seen);
  return status;
}

Status vl_suite_load(const char *path_or_name, Suite **suite) {
  Suite *loaded = vl_allocate(sizeof *loaded);
  loaded->arena = vl_arena_create();
  Status status = load_into(loaded, path_or_name);
  if (status.code != VL_OK) vl_suite_destroy(&loaded);
  *suite = loaded;
  return status;
}

void vl_suite_destroy(Suite **suite) {
  if (!*suite) return;
  vl_arena_destroy(&(*suite)->arena);
  free((*suite)->cells);
  free(*suite);
  *suite = NULL;
}

static int is_suite_file(const struct dirent *entry) {
  const char *end = strrchr(entry->d_name, '.');
  return end && strcmp(end, ".yaml") == 0;
}

/* Heads only: a suite with a mistake in its cells is listed all the same. */
static Status visit_file(const char *directory, const char *name,
                         void (*visit)(const char *, const char *, const char *, void *), void *context) {
  char path[PATH_MAX];
  const YamlNode *root;
  Suite head = {.arena = vl_arena_create()};
  Status status = vl_ok();
  if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
    status = vl_error(VL_ENVIRONMENT, "%s/%s: path too long", directory, name);
  if (status.code == VL_OK) status = vl_yaml_load(path, head.arena, &root);
  if (status.code == VL_OK) status = read_head(root, &head);
  if (status.code == VL_OK) visit(head.name, head.title, head.help, context);
  vl_arena_destroy(&head.arena);
  return status;
}

Status vl_suite_each(void (*visit)(const char *name, const char *title, const char *help, void *context),
                     void *context) {
  char directory[PATH_MAX];
  struct dirent **entries;
  VL_TRY(vl_shared_path("cases/suites", directory, sizeof directory));
  int count = scandir(directory, &entries, is_suite_file, alphasort);
  if (count < 0) return vl_error(VL_ENVIRONMENT, "%s: cannot be listed", directory);
  Status status = vl_ok();
  for (int i = 0; i < count; i++) {
    if (status.code == VL_OK) status = visit_file(directory, entries[i]->d_name, visit, context);
    free(entries[i]);
  }
  free(entries);
  return status;
}
