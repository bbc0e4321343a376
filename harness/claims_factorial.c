/* The rule of the article's 3D network: three measures together, against none of them. Each finding is one
 * mode (training or inference) in one precision on one device; each has to save memory, be faster and tell
 * volumes apart as well as before. */
#include "harness/factorial.h"
#include "harness/report_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEWEST_SEEDS = 3 };

typedef enum Part { PART_UNKNOWN = 0, PART_HOLDS, PART_FAILS } Part;

void vl_factorial_aspect(const json_t *record, char *text, size_t size) {
  char rest[VL_RECIPE_BYTES];
  text[0] = '\0';
  if (vl_record_text(record, "queue") == NULL || !vl_factors_rest(record, rest)) return;
  snprintf(text, size, "%s, %s", vl_record_flag(record, "inference") ? "inference" : "training",
           strcmp(rest, "baseline") == 0 ? "fp32" : rest);
}

static Part part_of(bool holds) { return holds ? PART_HOLDS : PART_FAILS; }

static double gib(double bytes) { return bytes * 0x1p-30; }

static Part judge_memory(const Claim *claim, const Factorial *factorial, Finding *finding) {
  double before = (double)vl_record_integer(factorial->corners[0], "peak_reserved_bytes");
  double after = (double)vl_record_integer(factorial->corners[ALL_FACTORS], "peak_reserved_bytes");
  if (!(before > 0) || !(after > 0)) {
    vl_finding_say(finding, "reserved memory not known");
    return PART_UNKNOWN;
  }
  vl_finding_say(finding, "reserved %.3f to %.3f GiB (%+.1f %%)", gib(before), gib(after),
                 100 * (after / before - 1));
  return part_of(1 - after / before >= vl_claim_number(claim, "saving"));
}

/* The whole interval has to be on one side of the region's end; without one, the value. */
static Part judge_speed(const Claim *claim, const Factorial *factorial, Finding *finding) {
  double least = vl_claim_number(claim, "speedup");
  Contrast speed = vl_factorial_ratio(&factorial->time, 0, ALL_FACTORS);
  if (isnan(speed.value) && !vl_record_is_emulated(factorial->corners[ALL_FACTORS]))
    speed.value = vl_record_real(factorial->corners[0], "step_s") /
                  vl_record_real(factorial->corners[ALL_FACTORS], "step_s");
  if (isnan(speed.value)) {
    vl_finding_say(finding, ", speed not known");
    return PART_UNKNOWN;
  }
  vl_finding_say(finding, ", speed %.2f x", speed.value);
  if (isnan(speed.low)) return part_of(speed.value >= least);
  vl_finding_say(finding, " (%.2f to %.2f, %d rounds)", speed.low, speed.high, factorial->time.rounds);
  if (speed.low >= least || speed.high < least) return part_of(speed.value >= least);
  vl_finding_say(finding, " too wide to decide");
  return PART_UNKNOWN;
}

static Part judge_dice(const Claim *claim, const RecordSet *cells, const Factorial *factorial,
                       Finding *finding) {
  SeedTable before = vl_factorial_dice(cells, factorial, 0);
  SeedTable after = vl_factorial_dice(cells, factorial, ALL_FACTORS);
  int32_t count;
  Contrast loss = vl_seeds_loss(&before, &after, &count);
  if (count < FEWEST_SEEDS) {
    vl_finding_say(finding, ", Dice missing: %d of %d seeds", count, FEWEST_SEEDS);
    return PART_UNKNOWN;
  }
  vl_finding_say(finding, ", Dice %.4f to %.4f (loss %.4f, %.4f to %.4f over %d seeds)",
                 vl_seeds_spread(&before).value, vl_seeds_spread(&after).value, loss.value, loss.low,
                 loss.high, count);
  return part_of(loss.value <= vl_claim_number(claim, "dice_loss"));
}

/* Below a thousandth an interval is rounding: what is reserved is the same in every round. */
static bool has_interval(Contrast effect) { return effect.high - effect.low > 0.001; }

/* An interaction of a percent or more that its interval, where it has one, tells from nothing; the report has
 * the others. */
static bool is_worth_saying(Contrast effect) {
  bool told = !has_interval(effect) || effect.low > 0 || effect.high < 0;
  return told && fabs(effect.value) >= 0.01;
}

/* "; effects on time: groups -38.2 % (-39.0 to -37.4), ...". */
static void say_effects(const char *quantity, const RoundTable *table, Finding *finding) {
  static const uint32_t order[] = {1, 2, 4, 3, 5, 6, 7};
  if (table->rounds == 0) return;
  vl_finding_say(finding, "; effects on %s:", quantity);
  for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
    char name[64];
    Contrast effect = vl_factorial_effect(table, order[i]);
    if (i >= FACTOR_COUNT && !is_worth_saying(effect)) continue;
    vl_factors_text(order[i], " x ", name, sizeof name);
    vl_finding_say(finding, "%s %s %+.1f %%", i > 0 ? "," : "", name, 100 * effect.value);
    if (has_interval(effect))
      vl_finding_say(finding, " (%+.1f to %+.1f)", 100 * effect.low, 100 * effect.high);
  }
}

static Verdict judge(const Claim *claim, const RecordSet *cells, const json_t *whole, Finding *finding) {
  Factorial *factorial = vl_allocate(sizeof *factorial);
  Verdict verdict = VERDICT_UNDECIDED;
  vl_factorial_gather(cells, whole, factorial);
  const char *recipe = vl_record_text(whole, "recipe");
  vl_finding_say(finding, "%s%s: ", finding->numbers[0] != '\0' ? ". " : "", recipe);
  if (factorial->corners[0] == NULL || factorial->corners[ALL_FACTORS] == NULL) {
    vl_finding_say(finding, "missing: %s ran to its end",
                   factorial->corners[0] == NULL ? "no cell with none of the three"
                                                 : "no cell with all of the three");
  } else {
    Part parts[] = {judge_memory(claim, factorial, finding), judge_speed(claim, factorial, finding),
                    judge_dice(claim, cells, factorial, finding)};
    bool holds = true, fails = false;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
      holds = holds && parts[i] == PART_HOLDS;
      fails = fails || parts[i] == PART_FAILS;
    }
    /* One part that fails is enough, whatever the others would say. */
    verdict = fails ? VERDICT_REFUTED : holds ? VERDICT_SUPPORTED : VERDICT_UNDECIDED;
    say_effects("memory", &factorial->reserved, finding);
    say_effects("time", &factorial->time, finding);
  }
  free(factorial);
  return verdict;
}

/* Of several levels of a factor (two budgets of the dynamic batch) each makes a factorial; where they
 * disagree the article leaves out what decides. */
void vl_decide_factorial(const Claim *claim, const RecordSet *cells, Finding *finding) {
  int32_t counts[VERDICT_COUNT] = {0};
  for (int32_t i = 0; i < cells->count; i++)
    if (vl_factorial_begins(cells, i)) counts[judge(claim, cells, cells->records[i], finding)]++;
  bool supported = counts[VERDICT_SUPPORTED] > 0, refuted = counts[VERDICT_REFUTED] > 0;
  finding->verdict = supported && refuted            ? VERDICT_AMBIGUOUS
                     : counts[VERDICT_UNDECIDED] > 0 ? VERDICT_UNDECIDED
                     : refuted                       ? VERDICT_REFUTED
                     : supported                     ? VERDICT_SUPPORTED
                                                     : VERDICT_UNDECIDED;
  if (finding->numbers[0] == '\0')
    vl_finding_say(finding, "missing: a cell with groups, dynamic batch and defragmentation");
}
