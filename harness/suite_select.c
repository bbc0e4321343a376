#include "harness/suite_select.h"
#include "harness/progress.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

static Status compile_pattern(const char *pattern, regex_t *compiled) {
  int problem = regcomp(compiled, pattern, REG_EXTENDED | REG_NOSUB);
  if (problem == 0) return vl_ok();
  char text[128];
  regerror(problem, compiled, text, sizeof text);
  return vl_error(VL_INVALID, "\"%s\" is not a regular expression: %s", pattern, text);
}

Status vl_suite_keep_matching(Suite *suite, const char *pattern, bool matching) {
  regex_t compiled;
  if (!pattern) return vl_ok();
  VL_TRY(compile_pattern(pattern, &compiled));
  int64_t kept = 0;
  for (int64_t i = 0; i < suite->cell_count; i++) {
    char label[VL_RECIPE_BYTES + 160];
    vl_cell_label(&suite->cells[i], label, sizeof label);
    if ((regexec(&compiled, label, 0, NULL, 0) == 0) == matching) suite->cells[kept++] = suite->cells[i];
  }
  regfree(&compiled);
  suite->cell_count = kept;
  return vl_ok();
}

Status vl_suite_keep_cell(Suite *suite, const char *key) {
  int64_t found = 0, at = 0;
  if (!key) return vl_ok();
  for (int64_t i = 0; i < suite->cell_count; i++) {
    char own[17];
    vl_cell_key(&suite->cells[i], own);
    if (strncmp(own, key, strlen(key)) != 0) continue;
    found++;
    at = i;
  }
  if (found != 1)
    return vl_error(VL_INVALID,
                    "%s cell of suite \"%s\" has a key that begins with \"%s\"; --dry-run --json lists them",
                    found == 0 ? "no" : "more than one", suite->name, key);
  suite->cells[0] = suite->cells[at];
  suite->cell_count = 1;
  return vl_ok();
}

Status vl_shard_parse(const char *text, Shard *shard) {
  char *end;
  long index = strtol(text, &end, 10), count = 0;
  if (end != text && *end == '/') count = strtol(end + 1, &end, 10);
  if (*end != '\0' || count < 1 || count > 10000 || index < 1 || index > count)
    return vl_error(VL_INVALID, "--shard: \"%.40s\" is no part; accepted: I/N with I from 1 to N", text);
  *shard = (Shard){.index = (int32_t)index, .count = (int32_t)count};
  return vl_ok();
}

void vl_suite_keep_shard(Suite *suite, Shard shard) {
  json_t *places = json_object(); /* of cells without their repetition, in order of appearance */
  int64_t kept = 0;
  if (shard.count == 0) return;
  for (int64_t i = 0; i < suite->cell_count; i++) {
    SuiteCell cell = suite->cells[i];
    char key[17];
    cell.repeat = 0;
    vl_cell_key(&cell, key);
    if (!json_object_get(places, key))
      json_object_set_new(places, key, json_integer((json_int_t)json_object_size(places)));
    if (json_integer_value(json_object_get(places, key)) % shard.count == shard.index - 1)
      suite->cells[kept++] = suite->cells[i];
  }
  json_decref(places);
  suite->cell_count = kept;
}

json_t *vl_suite_listing(const Suite *suite) {
  json_t *cells = json_array();
  for (int64_t i = 0; i < suite->cell_count; i++) {
    const SuiteCell *cell = &suite->cells[i];
    char key[17], label[VL_RECIPE_BYTES + 160];
    vl_cell_key(cell, key);
    vl_cell_label(cell, label, sizeof label);
    json_array_append_new(cells, json_pack("{ss ss ss ss ss so}", "cell_key", key, "label", label, "case",
                                           cell->spec.case_name, "device", cell->spec.device, "kind",
                                           cell->max_batch ? "max-batch" : "run", "timeout_s",
                                           cell->timeout_s > 0 ? json_real(cell->timeout_s) : json_null()));
  }
  return json_pack("{ss so}", "suite", suite->name, "cells", cells);
}
