/* From a claim and a store's records to findings, one a device, and the verdict in the article's setting. */
#include "harness/claims.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *vl_verdict_name(Verdict verdict) {
  static const char *const names[VERDICT_COUNT] = {"supported", "refuted", "ambiguous", "undecided",
                                                   "untestable"};
  return names[verdict];
}

const char *vl_finding_verdict_name(const Finding *finding) {
  bool on_paper = finding->predicted && finding->verdict == VERDICT_SUPPORTED;
  return on_paper ? "predicted to hold" : vl_verdict_name(finding->verdict);
}

/* ---- Which records ------------------------------------------------------------------------------------------ */

static bool matches_value(const json_t *record, const char *path, const char *wanted) {
  const char *text = vl_record_text(record, path);
  if (text != NULL) return strcmp(text, wanted) == 0;
  int64_t number = vl_record_integer(record, path);
  char digits[32];
  snprintf(digits, sizeof(digits), "%lld", (long long)number);
  return number >= 0 && strcmp(digits, wanted) == 0;
}

static bool matches_any(const json_t *record, const char *path, const YamlNode *wanted) {
  if (wanted->kind == YAML_TEXT) return matches_value(record, path, wanted->text);
  for (int32_t i = 0; i < wanted->count; i++)
    if (wanted->items[i]->kind == YAML_TEXT && matches_value(record, path, wanted->items[i]->text))
      return true;
  return false;
}

/* A cell of one of the claim's suites that its `cells` select. Records of other kinds are not cells. */
static bool decides(const Claim *claim, const json_t *record) {
  const char *kind = vl_record_text(record, "kind");
  if (kind != NULL && strcmp(kind, "cell") != 0) return false;
  if (vl_record_text(record, "injected") != NULL) return false; /* a fault was put in */
  if (!matches_any(record, "suite", claim->suites)) return false;
  for (int32_t i = 0; i < claim->cells->count; i++)
    if (!matches_any(record, claim->cells->keys[i], claim->cells->items[i])) return false;
  return true;
}

void vl_finding_say(Finding *finding, const char *format, ...) {
  size_t used = strlen(finding->numbers);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(finding->numbers + used, sizeof(finding->numbers) - used, format, arguments);
  va_end(arguments);
}

/* ---- Which device ---------------------------------------------------------------------------------------------- */

enum { ASPECT_BYTES = VL_RECIPE_BYTES + 32 };

/* A cell that every finding of its device sees. */
static bool is_common(const Claim *claim, const json_t *record) {
  char aspect[ASPECT_BYTES] = "";
  if (claim->rule->aspect == NULL) return false;
  claim->rule->aspect(record, aspect, sizeof(aspect));
  return aspect[0] == '\0';
}

static bool same_aspect(const Claim *claim, const json_t *a, const json_t *b) {
  char left[ASPECT_BYTES] = "", right[ASPECT_BYTES] = "";
  if (claim->rule->aspect == NULL) return true;
  claim->rule->aspect(a, left, sizeof(left));
  claim->rule->aspect(b, right, sizeof(right));
  return strcmp(left, right) == 0;
}

static bool on_one_device(const json_t *a, const json_t *b) {
  static const char *const devices[] = {"provenance", "device", "profile"};
  for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
    if (!vl_record_same_text(a, b, devices[i])) return false;
  /* A cell that was skipped or crashed does not know its hardware. */
  bool known = vl_record_text(a, "hardware") != NULL && vl_record_text(b, "hardware") != NULL;
  return !known || vl_record_same_text(a, b, "hardware");
}

/* Whether two cells are evidence of the same kind: same device; same settings unless the rule looks at them
 * together; same recipe, or the same aspect, where it looks at those apart. */
static bool belong_together(const Claim *claim, const json_t *a, const json_t *b) {
  if (!on_one_device(a, b) || !same_aspect(claim, a, b)) return false;
  if (claim->rule->per_recipe && !vl_record_same_text(a, b, "recipe")) return false;
  if (claim->rule->any_workload) return true;
  return vl_record_same_text(a, b, "settings") &&
         vl_record_flag(a, "inference") == vl_record_flag(b, "inference") &&
         vl_record_same_text(a, b, "queue");
}

static bool contains_word(const char *text, const char *word, size_t length) {
  for (; text != NULL && *text != '\0'; text++)
    if (strncasecmp(text, word, length) == 0) return true;
  return false;
}

/* "V100-32GB" names "Tesla V100-SXM2-32GB" and the profile V100-32GB: every part is in the device's names. */
static bool is_in_setting(const char *setting, const json_t *record) {
  if (strcmp(setting, "unnamed") == 0) return true;
  static const char *const paths[] = {"device_name", "hardware", "profile"};
  while (*setting != '\0') {
    size_t length = strcspn(setting, "- ");
    bool found = false;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
      found = found || contains_word(vl_record_text(record, paths[i]), setting, length);
    if (!found) return false;
    setting += length;
    setting += strspn(setting, "- ");
  }
  return true;
}

static void describe_scope(const Claim *claim, const json_t *record, Finding *finding) {
  const char *profile = vl_record_text(record, "profile"), *hardware = vl_record_text(record, "hardware");
  const char *name = vl_record_text(record, "device_name"), *settings = vl_record_text(record, "settings");
  if (claim->rule->any_workload) settings = NULL;
  const char *where = profile != NULL ? profile : hardware != NULL ? hardware : name;
  char aspect[VL_SCOPE_BYTES / 2] = "";
  if (claim->rule->aspect != NULL) claim->rule->aspect(record, aspect, sizeof(aspect));
  snprintf(finding->scope, sizeof(finding->scope), "%s %s%s%s%s%s%s%s%s",
           finding->predicted ? "predicted for" : "measured on", where != NULL ? where : "an unnamed device",
           aspect[0] != '\0' ? ", " : "", aspect, claim->rule->per_recipe ? ", recipe " : "",
           claim->rule->per_recipe ? vl_record_text(record, "recipe") : "", settings != NULL ? ", " : "",
           settings != NULL ? settings : "", finding->emulated ? ", emulated" : "");
}

bool vl_record_is_emulated(const json_t *record) {
  const char *device = vl_record_text(record, "device"), *recipe = vl_record_text(record, "recipe");
  if (vl_record_flag(record, "emulated")) return true;
  if (device == NULL || strcmp(device, "plan") == 0) return false;
  if (vl_record_integer(record, "capacity_bytes") > 0) return true;
  return strcmp(device, "cpu") == 0 && recipe != NULL && strstr(recipe, "amp=fp16") != NULL;
}

/* ---- Findings ------------------------------------------------------------------------------------------------------ */

static void check_hashes(const Claim *claim, const RecordSet *cells, Finding *finding) {
  char path[160];
  snprintf(path, sizeof(path), "claims.%s", claim->id);
  for (int32_t i = 0; i < cells->count; i++) {
    const char *hash = vl_record_text(cells->records[i], path);
    finding->build_changed = finding->build_changed || vl_record_flag(cells->records[i], "git_dirty");
    finding->region_unknown = finding->region_unknown || hash == NULL;
    finding->region_changed = finding->region_changed || (hash != NULL && strcmp(hash, claim->hash) != 0);
  }
}

static void make_finding(const Claim *claim, const RecordSet *cells, Finding *finding) {
  memset(finding, 0, sizeof(*finding));
  const json_t *first = cells->records[0];
  const char *provenance = vl_record_text(first, "provenance");
  finding->in_setting = is_in_setting(claim->setting, first);
  finding->predicted = provenance == NULL || strcmp(provenance, "measured") != 0;
  for (int32_t i = 0; i < cells->count; i++)
    finding->emulated = finding->emulated || vl_record_is_emulated(cells->records[i]);
  describe_scope(claim, first, finding);
  check_hashes(claim, cells, finding);
  finding->verdict = VERDICT_UNDECIDED;
  claim->rule->decide(claim, cells, finding);
}

/* Splits the cells by device and decides each part. */
static void find_all(const Claim *claim, const RecordSet *cells, ClaimVerdict *verdict) {
  const json_t **part = vl_allocate(sizeof(json_t *) * (size_t)(cells->count + 1));
  bool *taken = vl_allocate(sizeof(bool) * (size_t)(cells->count + 1));
  for (int32_t i = 0; i < cells->count; i++) {
    if (taken[i] || is_common(claim, cells->records[i])) continue;
    RecordSet together = {.records = part};
    for (int32_t j = i; j < cells->count; j++) {
      if (taken[j] || !belong_together(claim, cells->records[i], cells->records[j])) continue;
      taken[j] = true;
      part[together.count++] = cells->records[j];
    }
    for (int32_t j = 0; j < cells->count; j++)
      if (is_common(claim, cells->records[j]) && on_one_device(cells->records[i], cells->records[j]))
        part[together.count++] = cells->records[j];
    if (verdict->finding_count < VL_MAX_FINDINGS)
      make_finding(claim, &together, &verdict->findings[verdict->finding_count++]);
    else
      verdict->findings_left_out++;
  }
  free(taken);
  free(part);
}

/* ---- The verdict --------------------------------------------------------------------------------------------------- */

/* First decided finding in the article's setting; measured before predicted. -1: none. */
static int32_t headline_of(const ClaimVerdict *verdict, bool predicted) {
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    const Finding *finding = &verdict->findings[i];
    if (finding->in_setting && finding->predicted == predicted && finding->verdict != VERDICT_UNDECIDED)
      return i;
  }
  return -1;
}

/* What is only predicted may refute a claim; to support one it has to be seen. */
static void require_measurement(const Finding *headline, ClaimVerdict *verdict) {
  if (!headline->predicted || verdict->verdict != VERDICT_SUPPORTED) return;
  verdict->verdict = VERDICT_UNDECIDED;
  snprintf(verdict->numbers, sizeof(verdict->numbers), "predicted to hold, not measured: %.*s",
           VL_NUMBERS_BYTES - 40, headline->numbers);
}

/* Findings of the headline's kind must agree; where they do not, the article leaves out what decides. */
static void weigh(ClaimVerdict *verdict) {
  const Finding *headline = &verdict->findings[verdict->headline];
  verdict->verdict = headline->verdict;
  snprintf(verdict->numbers, sizeof(verdict->numbers), "%s", headline->numbers);
  require_measurement(headline, verdict);
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    const Finding *other = &verdict->findings[i];
    if (!other->in_setting || other->predicted != headline->predicted) continue;
    if (other->verdict == VERDICT_UNDECIDED || other->verdict == headline->verdict) continue;
    verdict->verdict = VERDICT_AMBIGUOUS;
    snprintf(verdict->numbers, sizeof(verdict->numbers), "%s: %s; %s: %s", headline->scope,
             vl_finding_verdict_name(headline), other->scope, vl_finding_verdict_name(other));
    return;
  }
}

/* Nothing decided it: what is missing. */
static void say_missing(ClaimVerdict *verdict) {
  const Claim *claim = verdict->claim;
  verdict->verdict = VERDICT_UNDECIDED;
  for (int32_t i = 0; i < verdict->finding_count; i++)
    if (verdict->findings[i].in_setting) {
      snprintf(verdict->numbers, sizeof(verdict->numbers), "%.*s: %.*s", VL_SCOPE_BYTES - 1,
               verdict->findings[i].scope, VL_NUMBERS_BYTES - VL_SCOPE_BYTES - 3,
               verdict->findings[i].numbers);
      return;
    }
  bool named = strcmp(claim->setting, "unnamed") != 0;
  snprintf(verdict->numbers, sizeof(verdict->numbers), "no cell of suite %s%s%s is here",
           claim->suites->items[0]->text, named ? " on " : "", named ? claim->setting : "");
}

void vl_claim_decide(const Claim *claim, const RecordSet *records, ClaimVerdict *verdict) {
  memset(verdict, 0, sizeof(*verdict));
  verdict->claim = claim;
  verdict->headline = -1;
  if (claim->rule->decide == NULL) {
    verdict->verdict = claim->rule->verdict;
    snprintf(verdict->numbers, sizeof(verdict->numbers), "%s", claim->missing);
    return;
  }
  const json_t **chosen = vl_allocate(sizeof(json_t *) * (size_t)(records->count + 1));
  RecordSet cells = {.records = chosen};
  for (int32_t i = 0; i < records->count; i++)
    if (decides(claim, records->records[i])) chosen[cells.count++] = records->records[i];
  find_all(claim, &cells, verdict);
  free(chosen);
  verdict->headline = headline_of(verdict, false);
  if (verdict->headline < 0) verdict->headline = headline_of(verdict, true);
  if (verdict->headline >= 0)
    weigh(verdict);
  else
    say_missing(verdict);
}

void vl_claim_scope(const ClaimVerdict *verdict, char *text, size_t size) {
  const char *setting = verdict->claim->setting;
  bool named = strcmp(setting, "unnamed") != 0;
  if (verdict->headline >= 0)
    snprintf(text, size, "%s%s; %s", named ? "the article's setting, " : "the article names no hardware",
             named ? setting : "", verdict->findings[verdict->headline].scope);
  else
    snprintf(text, size, "%s%s; nothing decides it here",
             named ? "the article's setting, " : "the article names no hardware", named ? setting : "");
}

const char *vl_claim_provenance(const ClaimVerdict *verdict) {
  if (verdict->verdict == VERDICT_UNTESTABLE) return "modelled";
  if (verdict->headline < 0) return "none";
  return verdict->findings[verdict->headline].predicted ? "predicted" : "measured";
}
