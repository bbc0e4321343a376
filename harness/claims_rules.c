/* Decision rules: from cells to a verdict and the numbers that gave it. A new rule is a function and a line
 * in the table; its numbers are data, in the claims file. */
#include "harness/checkpoint_cells.h"
#include "harness/claims_accumulate.h"
#include "harness/claims_diagnose.h"
#include "harness/factorial.h"
#include "harness/growth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of an ok cell; NaN when it did not run or does not know. */
static double bytes_of(const json_t *record, const char *path) {
  int64_t bytes = vl_record_has_status(record, "ok") ? vl_record_integer(record, path) : -1;
  return bytes >= 0 ? (double)bytes : NAN;
}

static const json_t *at_batch(const RecordSet *cells, const char *recipe, double batch) {
  for (int32_t i = 0; i < cells->count; i++) {
    const char *its = vl_record_text(cells->records[i], "recipe");
    if (recipe != NULL && (its == NULL || strcmp(its, recipe) != 0)) continue;
    if ((double)vl_record_integer(cells->records[i], "micro_batch") == batch) return cells->records[i];
  }
  return NULL;
}

static double list_number(const YamlNode *list, int32_t i) {
  double number = NAN;
  Status status = vl_yaml_real(list->items[i], &number);
  return status.code == VL_OK ? number : NAN;
}

/* ---- growth-shape ------------------------------------------------------------------------------------------- */

/* Points of the metric over the batch; count of them. free() it. */
static GrowthPoint *points_of(const RecordSet *cells, const char *metric) {
  GrowthPoint *points = vl_allocate(sizeof(GrowthPoint) * (size_t)(cells->count + 1));
  for (int32_t i = 0; i < cells->count; i++)
    points[i] = (GrowthPoint){.batch = (double)vl_record_integer(cells->records[i], "micro_batch"),
                              .bytes = bytes_of(cells->records[i], metric)};
  return points;
}

/* Names the held-out batches that have no value. */
static bool lacks_held_out(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const YamlNode *held_out = vl_yaml_get(claim->region, "held_out");
  bool lacks = false;
  for (int32_t i = 0; i < held_out->count; i++) {
    double batch = list_number(held_out, i);
    const json_t *record = at_batch(cells, NULL, batch);
    if (record != NULL && isfinite(bytes_of(record, claim->metric))) continue;
    const char *status = record != NULL ? vl_record_text(record, "status") : NULL;
    vl_finding_say(finding, "%sheld-out batch %g %s", lacks ? ", " : "missing: ", batch,
                   status != NULL && strcmp(status, "ok") != 0 ? status : "not run");
    lacks = true;
  }
  return lacks;
}

static void growth_shape(const Claim *claim, const RecordSet *cells, Finding *finding) {
  finding->verdict = VERDICT_UNDECIDED;
  if (lacks_held_out(claim, cells, finding)) return;
  GrowthPoint *points = points_of(cells, claim->metric);
  GrowthFit fits[GROWTH_SHAPE_COUNT];
  bool fitted = true;
  for (int shape = 0; shape < GROWTH_SHAPE_COUNT; shape++) {
    fits[shape] =
        vl_growth_fit((GrowthShape)shape, points, cells->count, vl_claim_number(claim, "fit_at_most"));
    fitted = fitted && fits[shape].fitted;
  }
  free(points);
  if (!fitted) {
    vl_finding_say(finding, "missing: %s", fits[GROWTH_EXPONENTIAL].why);
    return;
  }
  double affine = fits[GROWTH_AFFINE].held_out_error, power = fits[GROWTH_POWER].held_out_error,
         exponential = fits[GROWTH_EXPONENTIAL].held_out_error;
  bool best = exponential < affine && exponential < power;
  if (best && exponential < vl_claim_number(claim, "exponential_error"))
    finding->verdict = VERDICT_SUPPORTED;
  else if (affine <= vl_claim_number(claim, "affine_error") &&
           affine <= vl_claim_number(claim, "affine_to_exponential") * exponential)
    finding->verdict = VERDICT_REFUTED;
  else
    finding->verdict = VERDICT_AMBIGUOUS;
  vl_finding_say(
      finding,
      "fitted up to batch %g, held-out error: affine %.2f %%, power %.1f %%, exponential %.0f %%; the line "
      "is "
      "%.2f GB + %.1f MB an image",
      vl_claim_number(claim, "fit_at_most"), 100 * affine, 100 * power, 100 * exponential,
      fits[GROWTH_AFFINE].a / 1e9, fits[GROWTH_AFFINE].b / 1e6);
}

/* ---- level-and-slope ------------------------------------------------------------------------------------------ */

/* One configuration against the article's two levels. */
typedef struct Levels {
  const char *recipe;
  double bytes[2];
  double worst; /* largest relative deviation, in the better reading of GB */
  bool binary;  /* that reading is GiB */
} Levels;

static bool levels_of(const Claim *claim, const RecordSet *cells, const char *recipe, Levels *levels) {
  const YamlNode *batches = vl_yaml_get(claim->region, "batches");
  const YamlNode *stated = vl_yaml_get(claim->region, "gigabytes");
  double worst[2] = {0, 0};
  for (int32_t i = 0; i < 2; i++) {
    const json_t *record = at_batch(cells, recipe, list_number(batches, i));
    levels->bytes[i] = record != NULL ? bytes_of(record, claim->metric) : NAN;
    if (!isfinite(levels->bytes[i])) return false;
    const double unit[2] = {1e9, 1024.0 * 1024 * 1024};
    for (int reading = 0; reading < 2; reading++)
      worst[reading] =
          fmax(worst[reading], fabs(levels->bytes[i] / (list_number(stated, i) * unit[reading]) - 1));
  }
  levels->recipe = recipe;
  levels->binary = worst[1] < worst[0];
  levels->worst = fmin(worst[0], worst[1]);
  return true;
}

static void level_and_slope(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const YamlNode *recipes = vl_yaml_get(claim->cells, "recipe");
  const YamlNode *batches = vl_yaml_get(claim->region, "batches");
  const YamlNode *stated = vl_yaml_get(claim->region, "gigabytes");
  int32_t named = recipes == NULL ? 0 : recipes->kind == YAML_LIST ? recipes->count : 1, found = 0;
  double first = list_number(batches, 0), second = list_number(batches, 1);
  double nearest = INFINITY;
  for (int32_t i = 0; i < named; i++) {
    Levels levels;
    const char *recipe = recipes->kind == YAML_LIST ? recipes->items[i]->text : recipes->text;
    if (!levels_of(claim, cells, recipe, &levels)) {
      vl_finding_say(finding, "%s%s: not run at both batches", i > 0 ? "; " : "", recipe);
      continue;
    }
    found++;
    nearest = fmin(nearest, levels.worst);
    vl_finding_say(
        finding, "%s%s: %.2f and %.2f GB, off by up to %.0f %% (GB read as %s), slope %.1f MB an image",
        i > 0 ? "; " : "", recipe, levels.bytes[0] / 1e9, levels.bytes[1] / 1e9, 100 * levels.worst,
        levels.binary ? "GiB" : "10^9 bytes", (levels.bytes[1] - levels.bytes[0]) / (second - first) / 1e6);
  }
  vl_finding_say(finding, "; the article's slope is %.1f MB",
                 1e3 * (list_number(stated, 1) - list_number(stated, 0)) / (second - first));
  if (nearest <= vl_claim_number(claim, "tolerance"))
    finding->verdict = VERDICT_SUPPORTED;
  else
    finding->verdict = found == named && found > 0 ? VERDICT_REFUTED : VERDICT_UNDECIDED;
}

/* ---- category-slope-zero ---------------------------------------------------------------------------------------- */

/* Slope of one category between the region's batches; equal values have slope 0 exactly. */
static double category_slope(const Claim *claim, const RecordSet *cells, const char *category) {
  GrowthPoint *points = vl_allocate(sizeof(GrowthPoint) * (size_t)(cells->count + 1));
  int32_t count = 0;
  bool equal = true;
  char path[96];
  snprintf(path, sizeof(path), "peak_by_category.%s", category);
  for (int32_t i = 0; i < cells->count; i++) {
    double batch = (double)vl_record_integer(cells->records[i], "micro_batch");
    double bytes = bytes_of(cells->records[i], path);
    if (batch < vl_claim_number(claim, "batch_low") || batch > vl_claim_number(claim, "batch_high")) continue;
    if (!isfinite(bytes)) continue;
    points[count++] = (GrowthPoint){.batch = batch, .bytes = bytes};
    equal = equal && bytes == points[0].bytes;
  }
  double slope = vl_growth_slope(points, count);
  free(points);
  return equal && isfinite(slope) ? 0 : slope;
}

static void category_slope_zero(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const char *zero = vl_yaml_get(claim->region, "zero")->items[0]->text;
  const char *growing = vl_yaml_get(claim->region, "growing")->items[0]->text;
  double total = 0, zero_slope = NAN, growing_slope = NAN;
  vl_finding_say(finding, "bytes an image between batch %g and %g:", vl_claim_number(claim, "batch_low"),
                 vl_claim_number(claim, "batch_high"));
  for (int category = 0; category < MEMORY_CATEGORY_COUNT; category++) {
    const char *name = vl_memory_category_name((MemoryCategory)category);
    double slope = category_slope(claim, cells, name);
    total += isfinite(slope) ? slope : 0;
    if (strcmp(name, zero) == 0) zero_slope = slope;
    if (strcmp(name, growing) == 0) growing_slope = slope;
    if (isfinite(slope) && (slope != 0 || strcmp(name, zero) == 0))
      vl_finding_say(finding, " %s %.0f,", name, slope);
  }
  if (!isfinite(zero_slope) || !isfinite(growing_slope)) {
    finding->verdict = VERDICT_UNDECIDED;
    vl_finding_say(finding, " missing: two batches with their categories");
    return;
  }
  double share = total > 0 ? growing_slope / total : 0;
  vl_finding_say(finding, " %s being %.1f %% of the growth", growing, 100 * share);
  /* Blocks are counted as the policy rounds them, and which block a tensor gets depends on the batch: a slope
   * of a few kilobytes is that, not growth. */
  bool flat = fabs(zero_slope) <= vl_claim_number(claim, "zero_share") * total;
  if (flat)
    vl_finding_say(
        finding,
        "; gradients of parameters do not grow but for the rounding of blocks, those of activations are "
        "transient and counted there");
  bool accepted = flat && share >= vl_claim_number(claim, "share");
  finding->verdict = accepted ? VERDICT_SUPPORTED : VERDICT_REFUTED;
}

/* ---- category-share ----------------------------------------------------------------------------------------------- */

/* Share of the region's parts in needed_bytes of one cell; NaN when unknown. */
static double parts_share(const Claim *claim, const json_t *record) {
  const YamlNode *parts = vl_yaml_get(claim->region, "parts");
  double sum = 0;
  for (int32_t i = 0; i < parts->count; i++) {
    char path[96];
    snprintf(path, sizeof(path), "peak_by_category.%s", parts->items[i]->text);
    sum += bytes_of(record, path);
  }
  return sum / bytes_of(record, "needed_bytes");
}

/* What is not one of the parts, by name, as shares of needed_bytes. */
static void say_remainder(const Claim *claim, const json_t *record, Finding *finding) {
  const YamlNode *parts = vl_yaml_get(claim->region, "parts");
  double needed = bytes_of(record, "needed_bytes"), tracked = 0;
  for (int category = 0; category < MEMORY_CATEGORY_COUNT; category++) {
    const char *name = vl_memory_category_name((MemoryCategory)category);
    char path[96];
    snprintf(path, sizeof(path), "peak_by_category.%s", name);
    double bytes = bytes_of(record, path);
    if (!isfinite(bytes)) continue;
    tracked += bytes;
    bool is_part = false;
    for (int32_t i = 0; i < parts->count; i++)
      is_part = is_part || strcmp(parts->items[i]->text, name) == 0;
    if (!is_part && bytes > 0) vl_finding_say(finding, " %s %.1f %%,", name, 100 * bytes / needed);
  }
  double untracked = bytes_of(record, "untracked_bytes");
  vl_finding_say(finding, " cached-free %.1f %%",
                 100 * (needed - (isfinite(untracked) ? untracked : 0) - tracked) / needed);
  if (isfinite(untracked)) vl_finding_say(finding, ", libraries %.1f %%", 100 * untracked / needed);
}

static void category_share(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const YamlNode *cases = vl_yaml_get(claim->region, "cases");
  bool below = false, missing = false;
  for (int32_t c = 0; c < cases->count; c++) {
    const json_t *lowest = NULL;
    double share = INFINITY;
    for (int32_t i = 0; i < cells->count; i++) {
      const char *name = vl_record_text(cells->records[i], "case");
      double its = parts_share(claim, cells->records[i]);
      if (name == NULL || strcmp(name, cases->items[c]->text) != 0 || !(its < share)) continue;
      share = its;
      lowest = cells->records[i];
    }
    vl_finding_say(finding, "%s%s: ", c > 0 ? "; " : "", cases->items[c]->text);
    if (lowest == NULL) {
      missing = true;
      vl_finding_say(finding, "not run");
      continue;
    }
    below = below || share < vl_claim_number(claim, "share");
    vl_finding_say(finding, "the three hold %.1f %% at batch %lld; remainder", 100 * share,
                   (long long)vl_record_integer(lowest, "micro_batch"));
    say_remainder(claim, lowest, finding);
  }
  finding->verdict = below ? VERDICT_REFUTED : missing ? VERDICT_UNDECIDED : VERDICT_SUPPORTED;
}

/* ---- oom-phases and oom-parameter-share ------------------------------------------------------------------------------ */

/* Why a cell ran out. "optimizer": what did not fit is optimizer state, which PyTorch takes in its first
 * optimizer step and this engine before the first step, or anything in the update. "fragmentation": what is
 * not in use would have sufficed in one piece. Else the segment: forward, backward or setup. NULL: it did not
 * run out. */
static const char *phase_of(const json_t *record) {
  const char *status = vl_record_text(record, "status"), *error = vl_record_text(record, "error");
  const char *segment = vl_record_text(record, "oom_segment");
  if (status == NULL || strcmp(status, "oom") != 0) return NULL;
  if (error != NULL && strstr(error, " of optimizer '") != NULL) return "optimizer";
  if (segment != NULL && strcmp(segment, "update") == 0) return "optimizer";
  if (error != NULL && strstr(error, "fragmented") != NULL) return "fragmentation";
  return segment;
}

/* What shows that the phase is the reason: the same cell with one sample fewer ran; for optimizer state,
 * which does not depend on the batch, the same cell ran without training. */
static const json_t *counterpart(const RecordSet *cells, const json_t *failed, const char *phase) {
  static const char *const same[] = {"case", "settings", "device_name", "profile", "hardware", "recipe"};
  bool untrained = strcmp(phase, "optimizer") == 0;
  int64_t batch = vl_record_integer(failed, "micro_batch") - (untrained ? 0 : 1);
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    bool equal = vl_record_has_status(record, "ok") && vl_record_flag(record, "inference") == untrained;
    for (size_t f = 0; f < sizeof(same) / sizeof(same[0]); f++)
      equal = equal && vl_record_same_text(record, failed, same[f]);
    equal =
        equal && vl_record_integer(record, "capacity_bytes") == vl_record_integer(failed, "capacity_bytes");
    if (equal && vl_record_integer(record, "micro_batch") == batch) return record;
  }
  return NULL;
}

/* Optimizer state counts in the first step only. */
static bool shows_phase(const RecordSet *cells, const json_t *record, const char *wanted) {
  const char *phase = phase_of(record);
  if (phase == NULL || strcmp(phase, wanted) != 0 || vl_record_flag(record, "inference")) return false;
  int64_t steps = 0;
  free(vl_record_list(record, "losses", &steps));
  if (strcmp(wanted, "optimizer") == 0 && steps > 1) return false;
  return counterpart(cells, record, wanted) != NULL;
}

/* Quotes what follows `begin` in the heap's own message, up to `end`: it was written at the moment of the
 * failure, before the step's blocks were given back. */
static void quote(const char *error, const char *begin, const char *end, Finding *finding) {
  const char *from = error != NULL ? strstr(error, begin) : NULL;
  const char *until = from != NULL ? strstr(from, end) : NULL;
  if (until != NULL) vl_finding_say(finding, ", %.*s", (int)(until - from), from);
}

static void say_witness(const json_t *witness, const char *phase, Finding *finding) {
  long long batch = (long long)vl_record_integer(witness, "micro_batch");
  double capacity = (double)vl_record_integer(witness, "capacity_bytes") / 0x1p30;
  const char *error = vl_record_text(witness, "error");
  if (strcmp(phase, "optimizer") == 0)
    vl_finding_say(finding, "%.2f GiB holds batch %lld without training, not with it", capacity, batch);
  else
    vl_finding_say(finding, "%.2f GiB holds batch %lld, not %lld", capacity, batch - 1, batch);
  quote(error, "no room for", " (", finding);
  quote(error, "largest free block", ";", finding);
}

static void oom_phases(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const YamlNode *phases = vl_yaml_get(claim->region, "phases");
  int32_t shown = 0;
  for (int32_t p = 0; p < phases->count; p++) {
    const char *phase = phases->items[p]->text;
    const json_t *witness = NULL;
    for (int32_t i = 0; i < cells->count && witness == NULL; i++)
      if (shows_phase(cells, cells->records[i], phase)) witness = cells->records[i];
    vl_finding_say(finding, "%s%s: ", p > 0 ? "; " : "", phase);
    if (witness == NULL)
      vl_finding_say(finding, "no cell fails for that reason while its counterpart runs");
    else
      say_witness(witness, phase, finding);
    shown += witness != NULL;
  }
  finding->verdict = shown == phases->count ? VERDICT_SUPPORTED : VERDICT_UNDECIDED;
}

static void oom_parameter_share(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const json_t *lowest = NULL;
  double share = INFINITY;
  int32_t failures = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    int64_t parameters = vl_record_integer(cells->records[i], "peak_by_category.parameter");
    int64_t capacity = vl_record_integer(cells->records[i], "capacity_bytes");
    if (phase_of(cells->records[i]) == NULL || parameters < 0 || capacity <= 0) continue;
    failures++;
    if ((double)parameters / (double)capacity >= share) continue;
    share = (double)parameters / (double)capacity;
    lowest = cells->records[i];
  }
  if (lowest == NULL) {
    finding->verdict = VERDICT_UNDECIDED;
    vl_finding_say(finding,
                   "missing: a cell that ran out of memory under a known capacity, with its categories");
    return;
  }
  finding->verdict = share < vl_claim_number(claim, "share") ? VERDICT_REFUTED : VERDICT_SUPPORTED;
  int64_t live = vl_record_integer(lowest, "peak_allocated_bytes");
  vl_finding_say(
      finding,
      "of %d failures the one with the smallest share: %s at batch %lld, parameters %.1f %% of the "
      "capacity",
      failures, vl_record_text(lowest, "case"), (long long)vl_record_integer(lowest, "micro_batch"),
      100 * share);
  if (live > 0)
    vl_finding_say(finding, " and %.1f %% of what was live",
                   100 * (double)vl_record_integer(lowest, "peak_by_category.parameter") / (double)live);
}

/* ---- The table ------------------------------------------------------------------------------------------------------- */

static const char *const shape_numbers[] = {"fit_at_most", "exponential_error", "affine_error",
                                            "affine_to_exponential", NULL};
static const char *const shape_lists[] = {"held_out", NULL};
static const char *const level_numbers[] = {"tolerance", NULL};
static const char *const level_lists[] = {"batches", "gigabytes", NULL};
static const char *const slope_numbers[] = {"batch_low", "batch_high", "share", "zero_share", NULL};
static const char *const slope_lists[] = {"zero", "growing", NULL};
static const char *const share_numbers[] = {"share", NULL};
static const char *const share_lists[] = {"parts", "cases", NULL};
static const char *const phase_lists[] = {"phases", NULL};
static const char *const cost_numbers[] = {"low", "high", NULL};
static const char *const snippet_numbers[] = {"saving", NULL};
static const char *const interval_numbers[] = {"low", "high", "tolerance", NULL};
static const char *const workload_lists[] = {"highest", "cases", NULL};
static const char *const pair_numbers[] = {"batch",        "baseline_gb", "optimized_gb",
                                           "tolerance_gb", "saving",      NULL};

static const char *const amp_lists[] = {"cases", NULL};
static const char *const gradient_numbers[] = {"gradient_error", NULL};
static const char *const overflow_numbers[] = {"overflows_found", NULL};
static const char *const fragmentation_numbers[] = {"fragmentation", NULL};
static const char *const retained_numbers[] = {"rate_error", NULL};
static const char *const planted_numbers[] = {"anomalies", "false_alarms", NULL};
static const char *const factorial_numbers[] = {"saving", "speedup", "dice_loss", NULL};

static const ClaimRule rules[] = {
    {.name = "growth-shape",
     .numbers = shape_numbers,
     .lists = shape_lists,
     .per_recipe = true,
     .decide = growth_shape},
    {.name = "level-and-slope",
     .numbers = level_numbers,
     .lists = level_lists,
     .list_length = 2,
     .decide = level_and_slope},
    {.name = "category-slope-zero",
     .numbers = slope_numbers,
     .lists = slope_lists,
     .list_length = 1,
     .decide = category_slope_zero},
    {.name = "category-share", .numbers = share_numbers, .lists = share_lists, .decide = category_share},
    {.name = "oom-phases", .any_workload = true, .lists = phase_lists, .decide = oom_phases},
    {.name = "oom-parameter-share",
     .any_workload = true,
     .numbers = share_numbers,
     .decide = oom_parameter_share},
    {.name = "checkpoint-cost",
     .any_workload = true,
     .numbers = cost_numbers,
     .decide = vl_decide_checkpoint_cost},
    {.name = "checkpoint-snippet",
     .any_workload = true,
     .numbers = snippet_numbers,
     .decide = vl_decide_checkpoint_snippet},
    {.name = "checkpoint-interval",
     .any_workload = true,
     .numbers = interval_numbers,
     .decide = vl_decide_checkpoint_interval},
    {.name = "checkpoint-workload",
     .any_workload = true,
     .lists = workload_lists,
     .decide = vl_decide_checkpoint_workload},
    {.name = "level-pairs", .any_workload = true, .numbers = pair_numbers, .decide = vl_decide_level_pairs},
    {.name = "accumulation-fragmentation",
     .any_workload = true,
     .numbers = fragmentation_numbers,
     .decide = vl_decide_accumulation_fragmentation},
    {.name = "amp-saving",
     .any_workload = true,
     .numbers = cost_numbers,
     .lists = amp_lists,
     .decide = vl_decide_amp_saving},
    {.name = "amp-speed", .any_workload = true, .numbers = cost_numbers, .decide = vl_decide_amp_speed},
    {.name = "amp-gradients",
     .any_workload = true,
     .numbers = gradient_numbers,
     .decide = vl_decide_amp_gradients},
    {.name = "amp-overflow",
     .any_workload = true,
     .numbers = overflow_numbers,
     .decide = vl_decide_amp_overflow},
    {.name = "retained-graph",
     .any_workload = true,
     .numbers = retained_numbers,
     .decide = vl_decide_retained_graph},
    {.name = "planted-anomalies",
     .any_workload = true,
     .numbers = planted_numbers,
     .decide = vl_decide_planted_anomalies},
    {.name = "factorial",
     .numbers = factorial_numbers,
     .aspect = vl_factorial_aspect,
     .decide = vl_decide_factorial},
    {.name = "awaiting-suite", .open_region = true, .verdict = VERDICT_UNDECIDED},
    {.name = "never-a-verdict", .open_region = true, .verdict = VERDICT_UNTESTABLE},
};

const ClaimRule *vl_claim_rule_find(const char *name) {
  for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
    if (strcmp(rules[i].name, name) == 0) return &rules[i];
  return NULL;
}

const char *vl_claim_rule_names(void) {
  return "growth-shape, level-and-slope, category-slope-zero, category-share, "
         "oom-phases, "
         "oom-parameter-share, checkpoint-cost, checkpoint-snippet, checkpoint-interval, "
         "checkpoint-workload, level-pairs, accumulation-fragmentation, retained-graph, "
         "amp-saving, amp-speed, amp-gradients, amp-overflow, planted-anomalies, factorial, awaiting-suite, "
         "never-a-verdict";
}
