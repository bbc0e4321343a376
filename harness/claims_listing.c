/* One claim with its verdict as people and machines read it: terminal, Markdown, JSON. */
#include "harness/claims.h"
#include "harness/report.h"

#include <string.h>

enum { TEXT_BYTES = VL_NUMBERS_BYTES + 3 * VL_SCOPE_BYTES, LABEL_WIDTH = 14 };

static void append(char *text, size_t size, const char *piece) {
  size_t used = strlen(text);
  snprintf(text + used, size - used, "%s", piece);
}

void vl_claim_region_text(const Claim *claim, char *text, size_t size) {
  snprintf(text, size, "rule %s", claim->rule->name);
  const YamlNode *region = claim->region;
  for (int32_t i = 0; i < region->count; i++) {
    const YamlNode *value = region->items[i];
    append(text, size, i > 0 ? ", " : ": ");
    append(text, size, region->keys[i]);
    append(text, size, value->kind == YAML_LIST ? " (" : " ");
    if (value->kind == YAML_TEXT) append(text, size, value->text);
    for (int32_t k = 0; value->kind == YAML_LIST && k < value->count; k++) {
      append(text, size, k > 0 ? ", " : "");
      append(text, size, value->items[k]->text);
    }
    append(text, size, value->kind == YAML_LIST ? ")" : "");
  }
}

void vl_claim_fixed_text(const ClaimVerdict *verdict, char *text, size_t size) {
  const Claim *claim = verdict->claim;
  bool changed = false, unknown = false, build_changed = false;
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    changed = changed || verdict->findings[i].region_changed;
    unknown = unknown || verdict->findings[i].region_unknown;
    build_changed = build_changed || verdict->findings[i].build_changed;
  }
  if (claim->commit[0] != '\0')
    snprintf(text, size, "region fixed by commit %s", claim->commit);
  else
    snprintf(text, size, "the commit that fixed the region is not known here");
  if (claim->uncommitted) append(text, size, ", changed since and not committed");
  if (changed) append(text, size, "; region changed after this run");
  if (unknown) append(text, size, "; some cells do not say which region they were run under");
  if (build_changed) append(text, size, "; run by a build that no commit has");
}

static bool has_command(const Claim *claim) { return strcmp(claim->command, "none") != 0; }

/* Numbers that gave a verdict, or what is missing for one. */
static const char *evidence_label(const ClaimVerdict *verdict) {
  return verdict->headline >= 0 ? vl_claim_provenance(verdict) : "missing";
}

static void evidence_text(const ClaimVerdict *verdict, char *text, size_t size) {
  char scope[2 * VL_SCOPE_BYTES];
  vl_claim_scope(verdict, scope, sizeof(scope));
  bool cells = verdict->claim->rule->decide != NULL;
  snprintf(text, size, "%s%s%s", cells ? scope : "", cells ? ": " : "", verdict->numbers);
}

/* A finding besides the headline's, in a line. */
static void finding_text(const Finding *finding, char *text, size_t size) {
  snprintf(text, size, "%s%s: %s. %s%s", finding->scope, finding->in_setting ? "" : " (elsewhere)",
           vl_finding_verdict_name(finding), finding->numbers,
           finding->region_changed ? " (region changed after this run)" : "");
}

static void test_text(const Claim *claim, char *text, size_t size) {
  bool none = strcmp(claim->denominator, "none") == 0;
  snprintf(text, size, "%s%s%s", claim->metric, none ? "" : "; against: ", none ? "" : claim->denominator);
}

/* ---- Terminal ---------------------------------------------------------------------------------------------- */

static void print_line(FILE *out, int width, const char *label, const char *text) {
  int indent = 2 + LABEL_WIDTH;
  fprintf(out, "  %-*s", LABEL_WIDTH, label);
  vl_report_term_wrapped(out, text, indent, indent, width);
}

void vl_claim_print_text(const ClaimVerdict *verdict, FILE *out, int width, bool color) {
  const Claim *claim = verdict->claim;
  char text[TEXT_BYTES];
  vl_report_term_verdict(vl_verdict_name(verdict->verdict), claim->id, out, color);
  fputc('\n', out);
  print_line(out, width, "claim", claim->translation);
  print_line(out, width, "original", claim->sentence);
  test_text(claim, text, sizeof(text));
  print_line(out, width, "test", text);
  vl_claim_region_text(claim, text, sizeof(text));
  print_line(out, width, "region", text);
  vl_claim_fixed_text(verdict, text, sizeof(text));
  print_line(out, width, "fixed", text);
  evidence_text(verdict, text, sizeof(text));
  print_line(out, width, evidence_label(verdict), text);
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    if (i == verdict->headline) continue;
    finding_text(&verdict->findings[i], text, sizeof(text));
    print_line(out, width, "beside it", text);
  }
  if (verdict->findings_left_out > 0)
    fprintf(out, "  %-*sand %d further findings\n", LABEL_WIDTH, "", verdict->findings_left_out);
  print_line(out, width, "trap", claim->trap);
  print_line(out, width, "command", has_command(claim) ? claim->command : "none yet");
}

/* ---- Markdown ---------------------------------------------------------------------------------------------- */

/* Text without what Markdown takes for marks. */
static void print_plain(FILE *out, const char *text) {
  for (; *text != '\0'; text++) {
    if (strchr("\\`*_[]<>#|", *text) != NULL) fputc('\\', out);
    fputc(*text, out);
  }
}

static void print_item(FILE *out, const char *label, const char *text) {
  fprintf(out, "- **%s**: ", label);
  print_plain(out, text);
  fputc('\n', out);
}

void vl_claim_print_markdown(const ClaimVerdict *verdict, FILE *out) {
  const Claim *claim = verdict->claim;
  char text[TEXT_BYTES];
  fprintf(out, "## %s: %s\n\n> ", claim->id, vl_verdict_name(verdict->verdict));
  print_plain(out, claim->sentence);
  fputs("\n\n", out);
  print_plain(out, claim->translation);
  fputs("\n\n", out);
  test_text(claim, text, sizeof(text));
  print_item(out, "test", text);
  vl_claim_region_text(claim, text, sizeof(text));
  print_item(out, "region", text);
  vl_claim_fixed_text(verdict, text, sizeof(text));
  print_item(out, "fixed", text);
  evidence_text(verdict, text, sizeof(text));
  print_item(out, evidence_label(verdict), text);
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    if (i == verdict->headline) continue;
    finding_text(&verdict->findings[i], text, sizeof(text));
    print_item(out, "beside it", text);
  }
  print_item(out, "trap", claim->trap);
  if (has_command(claim))
    fprintf(out, "- **command**: `%s`\n\n", claim->command);
  else
    fputs("- **command**: none yet\n\n", out);
}

/* ---- JSON -------------------------------------------------------------------------------------------------- */

static json_t *finding_json(const Finding *finding) {
  return json_pack("{s:s, s:b, s:s, s:b, s:s, s:s, s:b, s:b}", "verdict", vl_finding_verdict_name(finding),
                   "in_setting", finding->in_setting, "provenance",
                   finding->predicted ? "predicted" : "measured", "emulated", finding->emulated, "scope",
                   finding->scope, "numbers", finding->numbers, "region_changed", finding->region_changed,
                   "region_unknown", finding->region_unknown);
}

static json_t *node_json(const YamlNode *node) {
  if (node->kind == YAML_TEXT) return json_string(node->text);
  json_t *value = node->kind == YAML_LIST ? json_array() : json_object();
  for (int32_t i = 0; i < node->count; i++) {
    if (node->kind == YAML_LIST)
      json_array_append_new(value, node_json(node->items[i]));
    else
      json_object_set_new(value, node->keys[i], node_json(node->items[i]));
  }
  return value;
}

json_t *vl_claim_verdict_json(const ClaimVerdict *verdict) {
  const Claim *claim = verdict->claim;
  char scope[2 * VL_SCOPE_BYTES], fixed[VL_SCOPE_BYTES];
  vl_claim_scope(verdict, scope, sizeof(scope));
  vl_claim_fixed_text(verdict, fixed, sizeof(fixed));
  json_t *findings = json_array();
  for (int32_t i = 0; i < verdict->finding_count; i++)
    json_array_append_new(findings, finding_json(&verdict->findings[i]));
  const Finding *headline = verdict->headline >= 0 ? &verdict->findings[verdict->headline] : NULL;
  json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "id", claim->id, "section",
                           claim->section, "sentence", claim->sentence, "translation", claim->translation,
                           "setting", claim->setting, "metric", claim->metric, "denominator",
                           claim->denominator, "rule", claim->rule->name, "trap", claim->trap);
  json_object_set_new(json, "region", node_json(claim->region));
  json_object_set_new(json, "entry_sha256", json_string(claim->hash));
  json_object_set_new(json, "region_commit", claim->commit[0] ? json_string(claim->commit) : json_null());
  json_object_set_new(json, "region_uncommitted", json_boolean(claim->uncommitted));
  json_object_set_new(json, "region_note", json_string(fixed));
  json_object_set_new(json, "verdict", json_string(vl_verdict_name(verdict->verdict)));
  json_object_set_new(json, "scope", json_string(scope));
  json_object_set_new(json, "provenance", json_string(vl_claim_provenance(verdict)));
  json_object_set_new(json, "emulated", json_boolean(headline != NULL && headline->emulated));
  json_object_set_new(json, "numbers", headline ? json_string(verdict->numbers) : json_null());
  json_object_set_new(json, "missing", headline ? json_null() : json_string(verdict->numbers));
  json_object_set_new(json, "command", has_command(claim) ? json_string(claim->command) : json_null());
  json_object_set_new(json, "findings", findings);
  return json;
}
