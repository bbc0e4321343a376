/* The rules of mixed precision: what it saves where fp32 just fits, what it makes of the step's time and of
 * gradients, and whether an overflow is found. */
#include "harness/claims.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_text(const json_t *record, const char *path, const char *text) {
  const char *value = vl_record_text(record, path);
  return value != NULL && strcmp(value, text) == 0;
}

/* Whether a cell is of a workload: "bert" is bert-base and its like. */
static bool is_of(const json_t *record, const char *workload) {
  const char *name = vl_record_text(record, "case");
  return name != NULL && strncmp(name, workload, strlen(workload)) == 0;
}

static bool is_monitored(const json_t *record) {
  return json_array_size(json_object_get(record, "monitor_gradient_sketch")) >= VL_SKETCH_SUMS;
}

static bool is_ok(const json_t *record) { return vl_record_has_status(record, "ok"); }

/* Ran with its numbers watched, to whatever end. */
static bool is_watched(const json_t *record) {
  return is_monitored(record) && (is_ok(record) || vl_record_has_status(record, "diverged"));
}

static bool is_timed(const json_t *record) {
  return is_ok(record) && vl_record_real(record, "step_s") > 0.0 && !vl_record_is_emulated(record);
}

/* The cell that ran with that recipe and is otherwise the same. */
static const json_t *twin_of(const RecordSet *cells, const json_t *record, const char *recipe,
                             bool (*is_wanted)(const json_t *record)) {
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *other = cells->records[i];
    if (has_text(other, "recipe", recipe) && is_wanted(other) && vl_record_same_text(other, record, "case") &&
        vl_record_same_text(other, record, "settings") &&
        vl_record_flag(other, "inference") == vl_record_flag(record, "inference") &&
        vl_record_integer(other, "global_batch") == vl_record_integer(record, "global_batch"))
      return other;
  }
  return NULL;
}

/* All agree, or what decides is left out. */
static Verdict verdict_of(int32_t held, int32_t known) {
  return held == known ? VERDICT_SUPPORTED : held == 0 ? VERDICT_REFUTED : VERDICT_AMBIGUOUS;
}

/* Ran as the hardware would: what stands in for it saves nothing of its own. */
static bool is_real(const json_t *record) { return is_ok(record) && !vl_record_is_emulated(record); }

/* What fp16 saves at a batch, of a workload's largest power of two that fp32 holds. */
typedef struct Saving {
  int64_t batch; /* 0: none */
  double share;
} Saving;

static Saving saving_of(const RecordSet *cells, const char *workload) {
  Saving best = {0};
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    int64_t batch = vl_record_integer(record, "global_batch");
    bool base = has_text(record, "recipe", "baseline") && is_ok(record);
    if (!base || !is_of(record, workload) || batch <= best.batch || (batch & (batch - 1)) != 0) continue;
    const json_t *low = twin_of(cells, record, "amp=fp16", is_real);
    int64_t wide = vl_record_integer(record, "peak_reserved_bytes");
    if (low == NULL || wide <= 0) continue;
    best.batch = batch;
    best.share = 1.0 - (double)vl_record_integer(low, "peak_reserved_bytes") / (double)wide;
  }
  return best;
}

void vl_decide_amp_saving(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const YamlNode *cases = vl_yaml_get(claim->region, "cases");
  double low = vl_claim_number(claim, "low"), high = vl_claim_number(claim, "high");
  int32_t inside = 0, known = 0;
  for (int32_t i = 0; i < cases->count; i++) {
    Saving saving = saving_of(cells, cases->items[i]->text);
    const char *between = i > 0 ? "; " : "";
    if (saving.batch == 0) {
      vl_finding_say(finding, "%s%s: missing, fp32 and amp=fp16 at a batch of a power of two", between,
                     cases->items[i]->text);
      continue;
    }
    known++;
    inside += saving.share >= low && saving.share <= high;
    vl_finding_say(finding, "%s%s: %.1f %% at batch %lld", between, cases->items[i]->text,
                   100.0 * saving.share, (long long)saving.batch);
  }
  finding->verdict = known < cases->count ? VERDICT_UNDECIDED : verdict_of(inside, known);
}

/* ---- amp-speed ---------------------------------------------------------------------------------------------------- */

/* Compute capability 7.0 and above ("sm_80"). */
static bool has_tensor_cores(const json_t *record) {
  const char *isa = vl_record_text(record, "isa");
  return isa != NULL && strncmp(isa, "sm_", 3) == 0 && strtol(isa + 3, NULL, 10) >= 70;
}

/* The fp16 twin of a timed fp32 cell on such a device. */
static const json_t *faster_of(const RecordSet *cells, const json_t *record) {
  bool base = has_text(record, "recipe", "baseline") && is_timed(record) && has_tensor_cores(record) &&
              !vl_record_flag(record, "inference");
  return base ? twin_of(cells, record, "amp=fp16", is_timed) : NULL;
}

/* No larger batch of the workload has both. */
static bool is_largest(const RecordSet *cells, const json_t *record) {
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *other = cells->records[i];
    if (vl_record_same_text(other, record, "case") && vl_record_same_text(other, record, "settings") &&
        vl_record_integer(other, "global_batch") > vl_record_integer(record, "global_batch") &&
        faster_of(cells, other) != NULL)
      return false;
  }
  return true;
}

/* Each workload at the largest batch that was timed in both types. The interval has the ends of the two
 * medians' intervals; with fewer than 6 steps there is none, and no vote. */
void vl_decide_amp_speed(const Claim *claim, const RecordSet *cells, Finding *finding) {
  int32_t inside = 0, known = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *wide = cells->records[i], *low = faster_of(cells, wide);
    if (low == NULL || !is_largest(cells, wide)) continue;
    double least = vl_record_real(wide, "step_s_low") / vl_record_real(low, "step_s_high");
    double most = vl_record_real(wide, "step_s_high") / vl_record_real(low, "step_s_low");
    vl_finding_say(finding, "%s%s batch %lld: %.2f times", finding->numbers[0] != '\0' ? "; " : "",
                   vl_record_text(wide, "case"), (long long)vl_record_integer(wide, "global_batch"),
                   vl_record_real(wide, "step_s") / vl_record_real(low, "step_s"));
    if (!isfinite(least) || !isfinite(most)) {
      vl_finding_say(finding, ", fewer than 6 steps");
      continue;
    }
    known++;
    inside += least <= vl_claim_number(claim, "high") && most >= vl_claim_number(claim, "low");
    vl_finding_say(finding, " (%.2f to %.2f)", least, most);
  }
  if (finding->numbers[0] == '\0')
    vl_finding_say(finding, "missing: fp32 and amp=fp16 timed on a device with tensor cores: %s",
                   claim->command);
  finding->verdict = known == 0 ? VERDICT_UNDECIDED : verdict_of(inside, known);
}

/* ---- amp-gradients ------------------------------------------------------------------------------------------------ */

/* One run against the fp32 one. */
typedef struct Deviation {
  double gradient; /* relative error at the first step, whose weights are the same; NaN: it overflowed */
  double flushed;  /* share at the first step; NaN: nothing was low, or the kernels do not tell */
  double loss;     /* largest difference over the run */
  bool diverged;
} Deviation;

static double first_of(const json_t *record, const char *path) {
  int64_t count;
  double *values = vl_record_list(record, path, &count), first = count > 0 ? values[0] : (double)NAN;
  free(values);
  return first;
}

static double largest_difference(const json_t *a, const json_t *b, const char *path) {
  int64_t count, other;
  double *left = vl_record_list(a, path, &count), *right = vl_record_list(b, path, &other), largest = 0.0;
  for (int64_t i = 0; i < count && i < other; i++)
    largest = fmax(largest, fabs(left[i] - right[i])); /* fmax leaves NaN out */
  free(left);
  free(right);
  return largest;
}

static double gradient_error(const json_t *record, const json_t *base) {
  int64_t count;
  double *sketch = vl_record_list(record, "monitor_gradient_sketch", &count);
  double *of = vl_record_list(base, "monitor_gradient_sketch", &count);
  double error = vl_sketch_error(sketch, of);
  free(sketch);
  free(of);
  return error;
}

static Deviation deviation_of(const json_t *record, const json_t *base) {
  return (Deviation){.gradient = gradient_error(record, base),
                     .flushed = first_of(record, "monitor_flushed_share"),
                     .loss = largest_difference(record, base, "losses"),
                     .diverged = vl_record_has_status(record, "diverged")};
}

static bool leaves(const Claim *claim, const Deviation *its) {
  return its->diverged || its->gradient > vl_claim_number(claim, "gradient_error");
}

static void say_deviation(Finding *finding, const char *what, const Deviation *its) {
  vl_finding_say(finding, " %s ", what);
  if (isfinite(its->gradient))
    vl_finding_say(finding, "%.2g %%", 100.0 * its->gradient);
  else
    vl_finding_say(finding, "overflowed");
  if (isfinite(its->flushed)) vl_finding_say(finding, ", %.2g %% flushed", 100.0 * its->flushed);
  if (its->diverged)
    vl_finding_say(finding, ", diverged");
  else
    vl_finding_say(finding, ", loss off by %.2g", its->loss);
}

/* How the pairs of low and fp32 activation gradients came out. */
typedef struct Pairs {
  int32_t missing, overflowed;
  int32_t inside;  /* the low one stays */
  int32_t helped;  /* it leaves, the fp32 one stays */
  int32_t neither; /* both leave: the forward does it */
} Pairs;

static void weigh_pair(const Claim *claim, const RecordSet *cells, const json_t *base, const char *type,
                       Pairs *pairs, Finding *finding) {
  char recipe[64];
  snprintf(recipe, sizeof(recipe), "amp=%s", type);
  const json_t *low = twin_of(cells, base, recipe, is_watched);
  snprintf(recipe, sizeof(recipe), "amp=%s activation-gradients=fp32", type);
  const json_t *wide = twin_of(cells, base, recipe, is_watched);
  vl_finding_say(finding, "%s%s %s:", finding->numbers[0] != '\0' ? "; " : "", vl_record_text(base, "case"),
                 type);
  if (low == NULL || wide == NULL) {
    pairs->missing++;
    vl_finding_say(finding, " missing, monitored amp=%s%s", type,
                   low != NULL ? " activation-gradients=fp32" : "");
    return;
  }
  Deviation of_low = deviation_of(low, base), of_wide = deviation_of(wide, base);
  bool unknown =
      (isnan(of_low.gradient) && !of_low.diverged) || (isnan(of_wide.gradient) && !of_wide.diverged);
  bool low_leaves = leaves(claim, &of_low), wide_leaves = leaves(claim, &of_wide);
  pairs->overflowed += unknown;
  pairs->inside += !unknown && !low_leaves;
  pairs->helped += !unknown && low_leaves && !wide_leaves;
  pairs->neither += !unknown && low_leaves && wide_leaves;
  say_deviation(finding, "low", &of_low);
  say_deviation(finding, "| fp32", &of_wide);
  double bytes = (double)vl_record_integer(low, "peak_allocated_bytes");
  vl_finding_say(finding, ", %+.0f %% bytes",
                 100.0 * ((double)vl_record_integer(wide, "peak_allocated_bytes") / bytes - 1.0));
}

/* The gradients of amp with low and with fp32 activation gradients, against fp32 throughout. */
void vl_decide_amp_gradients(const Claim *claim, const RecordSet *cells, Finding *finding) {
  static const char *const types[] = {"fp16", "bf16"};
  Pairs pairs = {0};
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *base = cells->records[i];
    if (!has_text(base, "recipe", "baseline") || !is_monitored(base) || !is_ok(base)) continue;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
      weigh_pair(claim, cells, base, types[t], &pairs, finding);
  }
  int32_t known = pairs.inside + pairs.helped + pairs.neither;
  if (known + pairs.missing + pairs.overflowed == 0) vl_finding_say(finding, "missing: a monitored baseline");
  if (known == 0 || pairs.missing + pairs.overflowed > 0)
    finding->verdict = VERDICT_UNDECIDED;
  else
    finding->verdict = pairs.neither > 0 ? VERDICT_AMBIGUOUS : verdict_of(pairs.helped, known);
}

/* ---- amp-overflow ------------------------------------------------------------------------------------------------- */

/* A run that overflows tells where, and goes on. */
void vl_decide_amp_overflow(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const json_t *witness = NULL;
  int32_t found = 0, watched = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    watched += json_array_size(json_object_get(record, "monitor_loss_scale")) > 0;
    bool overflows = vl_record_integer(record, "skipped_steps") > 0 && is_ok(record);
    if (!overflows || vl_record_text(record, "first_nonfinite") == NULL) continue;
    found++;
    if (witness == NULL) witness = record;
  }
  finding->verdict =
      found >= (int32_t)vl_claim_number(claim, "overflows_found") ? VERDICT_SUPPORTED : VERDICT_UNDECIDED;
  if (witness == NULL) {
    vl_finding_say(finding, "missing: a monitored cell that overflows; %d were watched", watched);
    return;
  }
  vl_finding_say(
      finding, "of %d cells watched %d overflowed and went on; %s %s: %lld steps skipped, first %s", watched,
      found, vl_record_text(witness, "case"), vl_record_text(witness, "recipe"),
      (long long)vl_record_integer(witness, "skipped_steps"), vl_record_text(witness, "first_nonfinite"));
}
