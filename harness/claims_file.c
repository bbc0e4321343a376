#include "harness/claims.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* The canonical form of an entry: keys sorted, every scalar as text, so that quoting, comments and order do
 * not count and a changed number does. */
static json_t *canonical(const YamlNode *node) {
  if (node->kind == YAML_TEXT) return json_string(node->text);
  json_t *value = node->kind == YAML_LIST ? json_array() : json_object();
  for (int32_t i = 0; i < node->count; i++) {
    if (node->kind == YAML_LIST)
      json_array_append_new(value, canonical(node->items[i]));
    else
      json_object_set_new(value, node->keys[i], canonical(node->items[i]));
  }
  return value;
}

static Status hash_entry(const YamlNode *entry, char hash[VL_CLAIM_HASH_BYTES]) {
  json_t *value = canonical(entry);
  char *text = json_dumps(value, JSON_SORT_KEYS | JSON_COMPACT);
  json_decref(value);
  if (text == NULL) return vl_yaml_error(entry, "is not valid UTF-8");
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  int done = EVP_Digest(text, strlen(text), digest, &bytes, EVP_sha256(), NULL);
  free(text);
  if (done != 1 || bytes != 32) return vl_error(VL_ENVIRONMENT, "libcrypto offers no SHA-256");
  for (unsigned int i = 0; i < bytes; i++)
    snprintf(hash + 2 * (size_t)i, 3, "%02x", digest[i]);
  return vl_ok();
}

static bool is_among(const char *name, const char *const *names) {
  for (; names != NULL && *names != NULL; names++)
    if (strcmp(name, *names) == 0) return true;
  return false;
}

/* Every number and list the rule reads is there, and nothing it does not know. */
static Status check_region(const Claim *claim) {
  const YamlNode *region = claim->region;
  const ClaimRule *rule = claim->rule;
  if (region->kind != YAML_MAP) return vl_yaml_error(region, "region must be a map of numbers");
  for (const char *const *key = rule->numbers; key != NULL && *key != NULL; key++) {
    double number = 0;
    if (vl_yaml_get(region, *key) == NULL)
      return vl_yaml_error(region, "rule %s needs the number %s", rule->name, *key);
    VL_TRY(vl_yaml_real(vl_yaml_get(region, *key), &number));
  }
  for (const char *const *key = rule->lists; key != NULL && *key != NULL; key++) {
    const YamlNode *list = vl_yaml_get(region, *key);
    if (list == NULL || list->kind != YAML_LIST || list->count == 0)
      return vl_yaml_error(list != NULL ? list : region, "rule %s needs the list %s", rule->name, *key);
    if (rule->list_length > 0 && list->count != rule->list_length)
      return vl_yaml_error(list, "rule %s needs %d entries in %s, not %d", rule->name, rule->list_length,
                           *key, list->count);
    const char *text = NULL;
    for (int32_t i = 0; i < list->count; i++)
      VL_TRY(vl_yaml_text(list->items[i], &text));
  }
  for (int32_t i = 0; i < region->count && !rule->open_region; i++)
    if (!is_among(region->keys[i], rule->numbers) && !is_among(region->keys[i], rule->lists))
      return vl_yaml_error(region->items[i], "rule %s knows no %s", rule->name, region->keys[i]);
  return vl_ok();
}

static Status text_of(const YamlNode *entry, const char *key, const char **text) {
  const YamlNode *node = vl_yaml_get(entry, key);
  if (node == NULL) return vl_yaml_error(entry, "this claim has no %s", key);
  VL_TRY(vl_yaml_text(node, text));
  if ((*text)[0] == '\0') return vl_yaml_error(node, "%s is empty", key);
  return vl_ok();
}

/* A rule that looks at no cells leaves it to the entry to say what is missing; the others know themselves. */
static Status read_missing(const YamlNode *entry, Claim *claim) {
  const YamlNode *node = vl_yaml_get(entry, "missing");
  if (claim->rule->decide == NULL) return text_of(entry, "missing", &claim->missing);
  return node == NULL ? vl_ok()
                      : vl_yaml_error(node, "rule %s says itself what is missing", claim->rule->name);
}

static Status read_claim(const YamlNode *entry, Claim *claim) {
  static const char *const keys[] = {"id",     "section", "sentence", "translation", "setting",
                                     "suites", "cells",   "metric",   "denominator", "rule",
                                     "region", "trap",    "command",  "missing",     NULL};
  VL_TRY(vl_yaml_check_keys(entry, keys));
  const struct {
    const char *key, **text;
  } texts[] = {{"id", &claim->id},
               {"section", &claim->section},
               {"sentence", &claim->sentence},
               {"translation", &claim->translation},
               {"setting", &claim->setting},
               {"metric", &claim->metric},
               {"denominator", &claim->denominator},
               {"trap", &claim->trap},
               {"command", &claim->command}};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
    VL_TRY(text_of(entry, texts[i].key, texts[i].text));
  const char *rule = NULL;
  VL_TRY(text_of(entry, "rule", &rule));
  claim->rule = vl_claim_rule_find(rule);
  if (claim->rule == NULL)
    return vl_yaml_error(vl_yaml_get(entry, "rule"), "unknown rule \"%s\"; accepted: %s", rule,
                         vl_claim_rule_names());
  claim->suites = vl_yaml_get(entry, "suites");
  if (claim->suites == NULL || claim->suites->kind != YAML_LIST || claim->suites->count == 0)
    return vl_yaml_error(entry, "claim %s must list at least one suite under suites", claim->id);
  claim->cells = vl_yaml_get(entry, "cells");
  if (claim->cells == NULL || claim->cells->kind != YAML_MAP)
    return vl_yaml_error(entry, "claim %s must say which cells decide it: a map, {} for all", claim->id);
  claim->region = vl_yaml_get(entry, "region");
  if (claim->region == NULL) return vl_yaml_error(entry, "claim %s has no region", claim->id);
  VL_TRY(check_region(claim));
  VL_TRY(read_missing(entry, claim));
  return hash_entry(entry, claim->hash);
}

static Status read_claims(const YamlNode *root, ClaimFile *file) {
  static const char *const keys[] = {"article", "claims", NULL};
  VL_TRY(vl_yaml_check_keys(root, keys));
  VL_TRY(text_of(root, "article", &file->article));
  const YamlNode *list = vl_yaml_get(root, "claims");
  if (list == NULL || list->kind != YAML_LIST) return vl_yaml_error(root, "claims must be a list");
  file->claims = vl_arena_allocate(file->arena, sizeof(Claim) * (size_t)(list->count + 1));
  for (int32_t i = 0; i < list->count; i++) {
    VL_TRY(read_claim(list->items[i], &file->claims[i]));
    if (vl_claims_find(file, file->claims[i].id) != NULL)
      return vl_yaml_error(list->items[i], "claim %s is there twice", file->claims[i].id);
    file->claims[i].first_line = list->items[i]->line;
    if (i > 0) file->claims[i - 1].last_line = list->items[i]->line - 1;
    file->claims[i].last_line = INT32_MAX;
    file->count++;
  }
  return vl_ok();
}

static Status load(const char *path, ClaimFile *file) {
  char shared[4096];
  if (path == NULL) {
    VL_TRY(vl_shared_path("cases/claims.yaml", shared, sizeof(shared)));
    path = shared;
  }
  file->path = vl_arena_copy_text(file->arena, path);
  const YamlNode *root = NULL;
  VL_TRY(vl_yaml_load(file->path, file->arena, &root));
  return read_claims(root, file);
}

static Status load_without_commit(const char *path, ClaimFile **file) {
  *file = vl_allocate(sizeof(ClaimFile));
  (*file)->arena = vl_arena_create();
  Status status = load(path, *file);
  if (status.code != VL_OK) vl_claims_destroy(file);
  return status;
}

Status vl_claims_load(const char *path, ClaimFile **file) {
  VL_TRY(load_without_commit(path, file));
  vl_claims_find_commits(*file);
  return vl_ok();
}

void vl_claims_destroy(ClaimFile **file) {
  if (*file == NULL) return;
  vl_arena_destroy(&(*file)->arena);
  free(*file);
  *file = NULL;
}

const Claim *vl_claims_find(const ClaimFile *file, const char *id) {
  for (int32_t i = 0; i < file->count; i++)
    if (strcmp(file->claims[i].id, id) == 0) return &file->claims[i];
  return NULL;
}

Status vl_claims_hashes(const char *path, const char *suite, json_t **hashes) {
  ClaimFile *file = NULL;
  VL_TRY(load_without_commit(path, &file));
  *hashes = json_object();
  for (int32_t i = 0; i < file->count; i++) {
    const Claim *claim = &file->claims[i];
    for (int32_t s = 0; s < claim->suites->count; s++)
      if (claim->suites->items[s]->kind == YAML_TEXT && strcmp(claim->suites->items[s]->text, suite) == 0)
        json_object_set_new(*hashes, claim->id, json_string(claim->hash));
  }
  vl_claims_destroy(&file);
  return vl_ok();
}

Status vl_claims_hash(const char *path, const char *id, char hash[VL_CLAIM_HASH_BYTES]) {
  ClaimFile *file = NULL;
  VL_TRY(load_without_commit(path, &file));
  const Claim *claim = vl_claims_find(file, id);
  Status status = vl_ok();
  if (claim == NULL)
    status = vl_error(VL_INVALID, "%s has no claim \"%s\"", file->path, id);
  else
    memcpy(hash, claim->hash, VL_CLAIM_HASH_BYTES);
  vl_claims_destroy(&file);
  return status;
}

double vl_claim_number(const Claim *claim, const char *key) {
  double number = 0;
  Status status = vl_yaml_real(vl_yaml_get(claim->region, key), &number);
  return status.code == VL_OK ? number : 0;
}
