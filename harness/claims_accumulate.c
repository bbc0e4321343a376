/* Decision rules about accumulation done rightly and wrongly, and about graphs that are kept. */
#include "harness/claims_accumulate.h"
#include "harness/claims.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool recipe_of(const json_t *record, Recipe *recipe) {
  const char *text = vl_record_text(record, "recipe"), *status = vl_record_text(record, "status");
  return text != NULL && status != NULL && strcmp(status, "ok") == 0 &&
         vl_recipe_parse(text, recipe).code == VL_OK;
}

/* The recipe without what a rule compares. */
static void rest_of(const Recipe *recipe, const char *const *without, char *text, size_t size) {
  Recipe rest = {.stack_vramlab = recipe->stack_vramlab};
  for (int32_t i = 0; i < recipe->count; i++) {
    bool left_out = false;
    for (const char *const *key = without; *key != NULL; key++)
      left_out = left_out || strcmp(recipe->items[i].optimization->name, *key) == 0;
    if (!left_out) rest.items[rest.count++] = recipe->items[i];
  }
  vl_recipe_format(&rest, text, size);
}

/* Whether both are the same job on the same device but for keys of the recipe. */
static bool same_job(const json_t *a, const json_t *b, const char *const *without) {
  static const char *const same[] = {"case", "settings", "device_name", "profile", "hardware"};
  Recipe left, right;
  char left_text[VL_RECIPE_BYTES], right_text[VL_RECIPE_BYTES];
  if (!recipe_of(a, &left) || !recipe_of(b, &right)) return false;
  for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
    const char *x = vl_record_text(a, same[i]), *y = vl_record_text(b, same[i]);
    if (strcmp(x != NULL ? x : "", y != NULL ? y : "") != 0) return false;
  }
  rest_of(&left, without, left_text, sizeof(left_text));
  rest_of(&right, without, right_text, sizeof(right_text));
  return strcmp(left_text, right_text) == 0 &&
         vl_record_integer(a, "global_batch") == vl_record_integer(b, "global_batch");
}

static bool has(const json_t *record, const char *key) {
  Recipe recipe;
  return recipe_of(record, &recipe) && vl_recipe_value(&recipe, key) != NULL;
}

/* ---- accumulation-fragmentation ---------------------------------------------------------------------------------- */

static const char *const accumulations[] = {"accumulate", "accumulate-wrong", NULL};

/* A job done wrongly, rightly in as many micro-batches, and as one batch. */
typedef struct Sides {
  const json_t *wrong, *right, *whole;
} Sides;

static Sides sides_of(const RecordSet *cells, const json_t *wrong) {
  Sides sides = {.wrong = wrong};
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (!same_job(wrong, record, accumulations) || has(record, "accumulate-wrong")) continue;
    if (!has(record, "accumulate"))
      sides.whole = record;
    else if (vl_record_integer(record, "accumulate") == vl_record_integer(wrong, "accumulate"))
      sides.right = record;
  }
  return sides;
}

static double reserved_over_allocated(const json_t *record) {
  int64_t reserved = vl_record_integer(record, "peak_reserved_bytes");
  int64_t allocated = vl_record_integer(record, "peak_allocated_bytes");
  return reserved > 0 && allocated > 0 ? (double)reserved / (double)allocated - 1 : NAN;
}

/* Largest relative difference of the losses; NaN when one has none. */
static double loss_difference(const json_t *a, const json_t *b) {
  int64_t left_count, right_count;
  double *left = vl_record_list(a, "losses", &left_count), *right = vl_record_list(b, "losses", &right_count);
  double worst = left_count > 0 && left_count == right_count ? 0 : NAN;
  for (int64_t i = 0; i < left_count && isfinite(worst); i++)
    worst = fmax(worst, fabs(left[i] - right[i]) / fabs(right[i]));
  free(left);
  free(right);
  return worst;
}

static void say_sides(const Sides *sides, Finding *finding) {
  const char *settings = vl_record_text(sides->wrong, "settings");
  vl_finding_say(finding,
                 "%s%s%s%s, batch %lld in %lld: reserved over allocated %+.1f %% right, %+.1f %% wrong",
                 finding->numbers[0] != '\0' ? "; " : "", vl_record_text(sides->wrong, "case"),
                 settings != NULL ? " " : "", settings != NULL ? settings : "",
                 (long long)vl_record_integer(sides->wrong, "global_batch"),
                 (long long)vl_record_integer(sides->wrong, "accumulate"),
                 100 * reserved_over_allocated(sides->right), 100 * reserved_over_allocated(sides->wrong));
  if (sides->whole == NULL) return;
  double whole = (double)vl_record_integer(sides->whole, "peak_allocated_bytes");
  vl_finding_say(finding, ", %+.1f %% as one batch, of whose allocated bytes they take %.2f and %.2f",
                 100 * reserved_over_allocated(sides->whole),
                 (double)vl_record_integer(sides->right, "peak_allocated_bytes") / whole,
                 (double)vl_record_integer(sides->wrong, "peak_allocated_bytes") / whole);
  double right = loss_difference(sides->right, sides->whole),
         wrong = loss_difference(sides->wrong, sides->whole);
  if (isfinite(right)) vl_finding_say(finding, ", losses off by %.1e and %.1e", right, wrong);
}

void vl_decide_accumulation_fragmentation(const Claim *claim, const RecordSet *cells, Finding *finding) {
  double limit = vl_claim_number(claim, "fragmentation");
  int32_t held = 0, failed = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    if (!has(cells->records[i], "accumulate-wrong")) continue;
    Sides sides = sides_of(cells, cells->records[i]);
    if (sides.right == NULL) continue;
    bool holds =
        reserved_over_allocated(sides.wrong) > limit && reserved_over_allocated(sides.right) <= limit;
    held += holds;
    failed += !holds;
    say_sides(&sides, finding);
  }
  if (held + failed == 0) vl_finding_say(finding, "missing: a job accumulated rightly and wrongly");
  finding->verdict = held + failed == 0 ? VERDICT_UNDECIDED
                     : failed == 0      ? VERDICT_SUPPORTED
                     : held == 0        ? VERDICT_REFUTED
                                        : VERDICT_AMBIGUOUS;
}

/* ---- retained-graph ----------------------------------------------------------------------------------------------- */

/* A run of the same job that keeps nothing and was seen not to leak. */
static const json_t *clean_run(const RecordSet *cells, const json_t *leaking) {
  static const char *const retentions[] = {"retain-graph", NULL};
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (!has(record, "retain-graph") && same_job(leaking, record, retentions) &&
        vl_record_integer(record, "leak_bytes_per_step") == 0)
      return record;
  }
  return NULL;
}

void vl_decide_retained_graph(const Claim *claim, const RecordSet *cells, Finding *finding) {
  int32_t exact = 0, other = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (!has(record, "retain-graph") || clean_run(cells, record) == NULL) continue;
    int64_t rate = vl_record_integer(record, "leak_bytes_per_step");
    int64_t named = vl_record_integer(record, "leak_named_bytes_per_step");
    if (rate < 0) continue;
    double error = named > 0 ? fabs((double)(rate - named)) / (double)named : NAN;
    bool holds = rate > 0 && error <= vl_claim_number(claim, "rate_error");
    exact += holds;
    other += !holds;
    const json_t *leaks = json_object_get(record, "leaks"), *largest = json_array_get(leaks, 0);
    size_t count = json_array_size(leaks);
    const char *name = vl_record_text(largest, "name"), *scope = vl_record_text(largest, "scope");
    vl_finding_say(
        finding,
        "%s%s, batch %lld: %lld bytes more after every step, %lld of them in %zu%s tensors named, most in "
        "%s of %s; none without retain-graph",
        finding->numbers[0] != '\0' ? "; " : "", vl_record_text(record, "case"),
        (long long)vl_record_integer(record, "global_batch"), (long long)rate, (long long)named, count,
        count == VL_MAX_LEAKS ? " and more" : "", name != NULL ? name : "nothing",
        scope != NULL ? scope : "nothing");
  }
  if (exact + other == 0)
    vl_finding_say(finding, "missing: a run that keeps its graphs beside one that does not");
  finding->verdict = exact + other == 0 ? VERDICT_UNDECIDED
                     : other == 0       ? VERDICT_SUPPORTED
                     : exact == 0       ? VERDICT_REFUTED
                                        : VERDICT_AMBIGUOUS;
}
