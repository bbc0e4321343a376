/* The rule of the claim about the article's flow: whether planted anomalies are found, and nothing else is.
 */
#include "harness/claims_diagnose.h"

#include <string.h>

/* A mistake of a recipe, and what its diagnosis has to be. */
typedef struct Plant {
  const char *mistake, *kind;
} Plant;
static const Plant plants[] = {
    {"retain-graph", "retained-graph"},     {"keep-loss", "kept-loss"},
    {"copy-weights", "weight-copy"},        {"oversize-workspace", "workspace"},
    {"keep-recomputed", "kept-recomputed"}, {"grow", "growth"},
};
enum { PLANTS = sizeof plants / sizeof plants[0] };

/* The mistake of a record's recipe; NULL: it makes none. */
static const RecipeItem *mistake_of(const json_t *record, Recipe *recipe) {
  const char *text = vl_record_text(record, "recipe");
  if (!text || vl_recipe_parse(text, recipe).code != VL_OK) return NULL;
  return vl_recipe_mistake(recipe);
}

static bool same_job(const json_t *a, const json_t *b) {
  return vl_record_same_text(a, b, "case") && vl_record_same_text(a, b, "settings") &&
         vl_record_same_text(a, b, "device") && vl_record_same_text(a, b, "profile") &&
         vl_record_integer(a, "global_batch") == vl_record_integer(b, "global_batch");
}

/* The bytes that another anomaly of the same job has; -1: there is none. */
static int64_t bytes_of_kind(const RecordSet *cells, const json_t *record, const char *kind) {
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *anomaly = json_array_get(json_object_get(cells->records[i], "anomalies"), 0);
    const char *its = anomaly ? vl_record_text(anomaly, "kind") : NULL;
    if (its && strcmp(its, kind) == 0 && same_job(record, cells->records[i]))
      return vl_record_integer(anomaly, "bytes");
  }
  return -1;
}

static int64_t planted_bytes(const RecipeItem *mistake, int64_t multiple) {
  int64_t bytes;
  if (vl_parse_bytes(mistake->value, &bytes).code != VL_OK) return -1;
  return (bytes + multiple - 1) / multiple * multiple;
}

/* What the anomaly's bytes have to be, from figures that the diagnosis has no part in: what the recipe
 * planted, the growth and the excess that the heap counted. -1: nothing tells (what is made again and kept is
 * held against the timelines by a test). */
static int64_t bytes_expected(const RecordSet *cells, const json_t *record, const RecipeItem *mistake) {
  const char *name = mistake->optimization->name;
  if (strcmp(name, "oversize-workspace") == 0) return planted_bytes(mistake, 1);
  if (strcmp(name, "grow") == 0) return planted_bytes(mistake, VL_BLOCK_BYTES);
  if (strcmp(name, "retain-graph") == 0) return vl_record_integer(record, "leak_bytes_per_step");
  if (strcmp(name, "keep-loss") == 0) return bytes_of_kind(cells, record, "retained-graph");
  if (strcmp(name, "copy-weights") == 0)
    return vl_record_integer(record, "diagnosis_start_bytes") -
           vl_record_integer(record, "diagnosis_expected_start_bytes") -
           vl_record_integer(record, "diagnosis_rest_bytes");
  return -1;
}

static bool is_found(const RecordSet *cells, const json_t *record, const RecipeItem *mistake,
                     const Plant *plant) {
  const json_t *anomalies = json_object_get(record, "anomalies"), *anomaly = json_array_get(anomalies, 0);
  if (json_array_size(anomalies) != 1) return false;
  const char *kind = vl_record_text(anomaly, "kind"), *op = vl_record_text(anomaly, "op");
  int64_t bytes = vl_record_integer(anomaly, "bytes"), expected = bytes_expected(cells, record, mistake);
  bool named = op && *op && strcmp(op, "none") != 0 && vl_record_text(anomaly, "scope");
  bool exact = expected < 0 ? bytes > 0 && strcmp(plant->mistake, "keep-recomputed") == 0 : bytes == expected;
  return named && kind && strcmp(kind, plant->kind) == 0 && exact;
}

void vl_decide_planted_anomalies(const Claim *claim, const RecordSet *cells, Finding *finding) {
  int32_t found[PLANTS] = {0}, in_all = 0, missed = 0, clean = 0, alarms = 0, kinds = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i], *anomalies = json_object_get(record, "anomalies");
    Recipe recipe;
    if (!json_is_array(anomalies) || !vl_record_has_status(record, "ok")) continue;
    const RecipeItem *mistake = mistake_of(record, &recipe);
    if (!mistake) {
      clean++;
      alarms += json_array_size(anomalies) > 0;
      continue;
    }
    for (int32_t k = 0; k < PLANTS; k++) {
      if (strcmp(mistake->optimization->name, plants[k].mistake) != 0) continue;
      bool right = is_found(cells, record, mistake, &plants[k]);
      found[k] += right;
      in_all += right;
      missed += !right;
      if (!right)
        vl_finding_say(finding, "not found as planted: %s of %s; ", plants[k].kind,
                       vl_record_text(record, "case"));
    }
  }
  for (int32_t k = 0; k < PLANTS; k++)
    kinds += found[k] > 0;
  vl_finding_say(
      finding,
      "%d of %d kinds of anomaly found with op, scope and bytes, in %d cells; %d of %d clean runs alarmed",
      (int)kinds, (int)PLANTS, (int)in_all, (int)alarms, (int)clean);
  bool whole = kinds >= vl_claim_number(claim, "anomalies") && clean > 0;
  finding->verdict = missed > 0 || alarms > vl_claim_number(claim, "false_alarms") ? VERDICT_REFUTED
                     : whole                                                       ? VERDICT_SUPPORTED
                                                                                   : VERDICT_UNDECIDED;
  if (finding->verdict == VERDICT_UNDECIDED)
    vl_finding_say(finding, "; missing: every kind planted, and a run without");
}
