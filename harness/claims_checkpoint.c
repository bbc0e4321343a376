/* Decision rules about checkpointing. A job is a case with its settings, batch and recipe but for the way it
 * checkpoints; every job of a finding has its say, and where they disagree the claim leaves out what decides.
 */
#include "harness/checkpoint_cells.h"
#include "harness/report_select.h"

#include <math.h>
#include <string.h>

static void say_job(Finding *finding, const json_t *record) {
  char text[VL_RECIPE_BYTES + 128];
  vl_checkpoint_job_text(record, text, sizeof(text));
  vl_finding_say(finding, "%s%s: ", finding->numbers[0] != '\0' ? "; " : "", text);
}

static double gib(double bytes) { return bytes / 0x1p30; }

static double needed(const json_t *record) {
  int64_t bytes = record != NULL ? vl_record_integer(record, "needed_bytes") : -1;
  return bytes >= 0 ? (double)bytes : NAN;
}

/* How many jobs bear the claim out, and how many do not. */
typedef struct Votes {
  int32_t held, failed;
} Votes;

static void count_vote(Votes *votes, bool holds) {
  votes->held += holds;
  votes->failed += !holds;
}

static Verdict verdict_of(Votes votes) {
  if (votes.held + votes.failed == 0) return VERDICT_UNDECIDED;
  return votes.failed == 0 ? VERDICT_SUPPORTED : votes.held == 0 ? VERDICT_REFUTED : VERDICT_AMBIGUOUS;
}

/* ---- checkpoint-cost ---------------------------------------------------------------------------------------------- */

/* A vote needs the whole interval of the measurement on one side of the region's ends; without an interval
 * (fewer than 6 steps) the median has it. */
static bool is_decisive(double low, double high, double region_low, double region_high) {
  bool inside = low >= region_low && high <= region_high, outside = high < region_low || low > region_high;
  return !isfinite(low) || !isfinite(high) || inside || outside;
}

void vl_decide_checkpoint_cost(const Claim *claim, const RecordSet *cells, Finding *finding) {
  Votes votes = {0};
  double region_low = vl_claim_number(claim, "low"), region_high = vl_claim_number(claim, "high");
  for (int32_t i = 0; i < cells->count; i++) {
    if (!vl_checkpoint_is_first(cells, i)) continue;
    const json_t *baseline = vl_checkpoint_find(cells, cells->records[i], CHECKPOINT_NONE, 0);
    const json_t *every = vl_checkpoint_find(cells, cells->records[i], CHECKPOINT_BLOCKS, 1);
    if (baseline == NULL || every == NULL) continue;
    double low, high, cost = vl_checkpoint_measured(cells, baseline, every, &low, &high);
    bool decisive = isfinite(cost) && is_decisive(low, high, region_low, region_high);
    if (decisive) count_vote(&votes, cost >= region_low && cost <= region_high);
    say_job(finding, baseline);
    if (isfinite(cost)) vl_finding_say(finding, "%+.1f %% of the baseline's step time", 100 * cost);
    if (isfinite(low)) vl_finding_say(finding, " (%+.1f to %+.1f)", 100 * low, 100 * high);
    if (isfinite(cost) && !decisive) vl_finding_say(finding, ", too wide to decide");
    vl_finding_say(finding, "%scounted %+.1f %% FLOPs", isfinite(cost) ? ", " : "no time; ",
                   100 * vl_checkpoint_counted(every));
  }
  if (finding->numbers[0] == '\0')
    vl_finding_say(finding, "missing: a job with the baseline and with checkpoint=1");
  finding->verdict = verdict_of(votes);
}

/* ---- checkpoint-snippet -------------------------------------------------------------------------------------------- */

void vl_decide_checkpoint_snippet(const Claim *claim, const RecordSet *cells, Finding *finding) {
  Votes votes = {0};
  for (int32_t i = 0; i < cells->count; i++) {
    if (!vl_checkpoint_is_first(cells, i)) continue;
    const json_t *like = cells->records[i];
    const json_t *model = vl_checkpoint_find(cells, like, CHECKPOINT_MODEL, 0);
    const json_t *every = vl_checkpoint_find(cells, like, CHECKPOINT_BLOCKS, 1);
    double before = needed(vl_checkpoint_find(cells, like, CHECKPOINT_NONE, 0)), after = needed(model);
    if (!isfinite(before) || !isfinite(after)) continue;
    count_vote(&votes, 1 - after / before >= vl_claim_number(claim, "saving"));
    say_job(finding, like);
    vl_finding_say(finding, "%.2f to %.2f GiB (%+.1f %%) for %+.1f %% FLOPs", gib(before), gib(after),
                   100 * (after / before - 1), 100 * vl_checkpoint_counted(model));
    if (isfinite(needed(every)))
      vl_finding_say(finding, ", each block by itself %.2f GiB for %+.1f %%", gib(needed(every)),
                     100 * vl_checkpoint_counted(every));
  }
  if (finding->numbers[0] == '\0')
    vl_finding_say(finding, "missing: a job with the baseline and with checkpoint=model");
  finding->verdict = verdict_of(votes);
}

/* ---- checkpoint-interval -------------------------------------------------------------------------------------------- */

/* The lowest need of a job over the intervals from low to high. */
typedef struct Lowest {
  double bytes; /* NaN: there is none */
  int64_t interval;
  int32_t count; /* cells that know theirs */
} Lowest;

static Lowest lowest_need(const RecordSet *cells, const json_t *like, const char *column,
                          Granularity granularity, double low, double high) {
  Lowest lowest = {.bytes = NAN};
  CheckpointCell its;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (!vl_checkpoint_cell(record, &its) || its.granularity != granularity) continue;
    if ((double)its.interval < low || (double)its.interval > high || !vl_checkpoint_same_job(record, like))
      continue;
    int64_t bytes = vl_record_integer(record, column);
    lowest.count += bytes >= 0;
    if (bytes < 0 || (double)bytes >= lowest.bytes) continue;
    lowest.bytes = (double)bytes;
    lowest.interval = its.interval;
  }
  return lowest;
}

/* A profile's need has two ends, and the upper one, with the largest workspace a library may take, hides what
 * is smaller than that: where they say different things the profile cannot tell. */
static void decide_interval(const Claim *claim, const RecordSet *cells, const json_t *like,
                            Granularity granularity, Votes *votes, Finding *finding) {
  static const char *const columns[2] = {"needed_bytes", "needed_low_bytes"};
  double low = vl_claim_number(claim, "low"), high = vl_claim_number(claim, "high");
  Lowest lowest[2], recommended[2];
  bool holds[2], ops = granularity == CHECKPOINT_OPS;
  for (int end = 0; end < 2; end++) {
    lowest[end] = lowest_need(cells, like, columns[end], granularity, 1, INFINITY);
    recommended[end] = lowest_need(cells, like, columns[end], granularity, low, high);
    /* Without another interval there is nothing to compare with. */
    if (recommended[end].count == 0 || lowest[end].count <= recommended[end].count) return;
    holds[end] = recommended[end].bytes <= lowest[end].bytes * (1 + vl_claim_number(claim, "tolerance"));
  }
  if (holds[0] == holds[1]) count_vote(votes, holds[0]);
  say_job(finding, like);
  vl_finding_say(finding, "%s %lld (%.2f GiB), %lld %+.1f %%, k* %.1f%s", ops ? "operators" : "blocks",
                 (long long)lowest[1].interval, gib(lowest[1].bytes), (long long)recommended[1].interval,
                 100 * (recommended[1].bytes / lowest[1].bytes - 1),
                 vl_record_real(like, ops ? "checkpoint_ops_optimum" : "checkpoint_blocks_optimum"),
                 holds[0] == holds[1] ? "" : " (no vote: the profile's other end disagrees)");
}

void vl_decide_checkpoint_interval(const Claim *claim, const RecordSet *cells, Finding *finding) {
  Votes votes = {0};
  vl_finding_say(finding, "k with the lowest need, the best of %g to %g against it, and theory's k*",
                 vl_claim_number(claim, "low"), vl_claim_number(claim, "high"));
  size_t head = strlen(finding->numbers);
  for (int32_t i = 0; i < cells->count; i++) {
    if (!vl_checkpoint_is_first(cells, i)) continue;
    decide_interval(claim, cells, cells->records[i], CHECKPOINT_BLOCKS, &votes, finding);
    decide_interval(claim, cells, cells->records[i], CHECKPOINT_OPS, &votes, finding);
  }
  if (finding->numbers[head] == '\0')
    vl_finding_say(finding, "; missing: a job with checkpoint=k, or ops:k, inside and outside of %g to %g",
                   vl_claim_number(claim, "low"), vl_claim_number(claim, "high"));
  finding->verdict = verdict_of(votes);
}

/* ---- checkpoint-workload --------------------------------------------------------------------------------------------- */

/* What the jobs of a case save for each operation they repeat, at a checkpoint every block: from the worst of
 * them to the best. */
typedef struct Saving {
  double low, high;
} Saving;

static Saving saving_of(const RecordSet *cells, const char *name) {
  Saving saving = {INFINITY, -INFINITY};
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *like = cells->records[i];
    const char *its = vl_record_text(like, "case");
    size_t length = strlen(name);
    if (its == NULL || strncmp(its, name, length) != 0 || !vl_checkpoint_is_first(cells, i)) continue;
    if (its[length] != '\0' && its[length] != '-') continue; /* bert: bert-base, bert-large */
    const json_t *every = vl_checkpoint_find(cells, like, CHECKPOINT_BLOCKS, 1);
    double saved = needed(vl_checkpoint_find(cells, like, CHECKPOINT_NONE, 0)) - needed(every);
    int64_t repeated = every != NULL ? vl_record_integer(every, "recompute_flops") : 0;
    if (!isfinite(saved) || repeated <= 0) continue;
    saving.low = fmin(saving.low, saved / (double)repeated);
    saving.high = fmax(saving.high, saved / (double)repeated);
  }
  return saving;
}

void vl_decide_checkpoint_workload(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const YamlNode *cases = vl_yaml_get(claim->region, "cases");
  const char *highest = vl_yaml_get(claim->region, "highest")->items[0]->text;
  Saving expected = saving_of(cells, highest);
  bool beaten = false, level = false, missing = !isfinite(expected.low);
  vl_finding_say(finding, "bytes saved per 1000 repeated FLOPs:");
  for (int32_t i = 0; i < cases->count; i++) {
    const char *name = cases->items[i]->text;
    Saving its = saving_of(cells, name);
    vl_finding_say(finding, "%s %s", i > 0 ? "," : "", name);
    if (!isfinite(its.low)) {
      vl_finding_say(finding, " not there");
      missing = true;
      continue;
    }
    vl_finding_say(finding, its.high > its.low * 1.005 ? " %.3g to %.3g" : " %.3g", 1e3 * its.low,
                   1e3 * its.high);
    if (strcmp(name, highest) == 0) continue;
    beaten = beaten || expected.high < its.low;
    level = level || expected.low <= its.high;
  }
  /* A case that is not there could not turn a defeat into a victory. */
  finding->verdict = beaten    ? VERDICT_REFUTED
                     : missing ? VERDICT_UNDECIDED
                     : level   ? VERDICT_AMBIGUOUS
                               : VERDICT_SUPPORTED;
}
