/* The rule of the article's BERT: two levels of memory, in one configuration.
 *
 * What a configuration is besides (model, sequence, micro-batch, other items of the recipe) the article
 * leaves out: one that has both levels supports it, several leave it ambiguous, none refutes it. */
#include "harness/claims.h"
#include "harness/report_select.h"

#include <math.h>
#include <string.h>

/* Bytes of a cell that ran; else NaN. */
static double bytes_of(const json_t *record, const char *column) {
  int64_t bytes = vl_record_has_status(record, "ok") ? vl_record_integer(record, column) : -1;
  return bytes >= 0 ? (double)bytes : NAN;
}

static double needed(const json_t *record) { return bytes_of(record, "needed_bytes"); }

static bool is_item(const char *item, const char *key) { return strncmp(item, key, strlen(key)) == 0; }

/* The recipe without mixed precision and checkpointing; which of the two it had. */
typedef struct Configuration {
  char rest[VL_RECIPE_BYTES];
  bool mixed, checkpointed;
} Configuration;

static Configuration configuration_of(const json_t *record) {
  Configuration of = {.rest = ""};
  const char *recipe = vl_record_text(record, "recipe");
  size_t used = 0;
  for (const char *item = recipe != NULL ? recipe : ""; *item != '\0';) {
    size_t length = strcspn(item, " ");
    bool mixed = is_item(item, "amp="), checkpointed = is_item(item, "checkpoint=");
    of.mixed = of.mixed || mixed;
    of.checkpointed = of.checkpointed || checkpointed;
    if (!mixed && !checkpointed && !is_item(item, "baseline") && used < sizeof(of.rest))
      used += (size_t)snprintf(of.rest + used, sizeof(of.rest) - used, "%s%.*s", used > 0 ? " " : "",
                               (int)length, item);
    item += length;
    item += strspn(item, " ");
  }
  return of;
}

static bool same_configuration(const json_t *a, const json_t *b) {
  Configuration left = configuration_of(a), right = configuration_of(b);
  return vl_record_same_text(a, b, "case") && vl_record_same_text(a, b, "settings") &&
         strcmp(left.rest, right.rest) == 0 &&
         vl_record_flag(a, "inference") == vl_record_flag(b, "inference") &&
         vl_record_integer(a, "micro_batch") == vl_record_integer(b, "micro_batch") &&
         vl_record_integer(a, "capacity_bytes") == vl_record_integer(b, "capacity_bytes");
}

/* A configuration's two cells and how far they are from the levels. */
typedef struct LevelPair {
  const json_t *baseline, *optimized;
  double bytes[2];
  double off_gb; /* the larger deviation, in the better reading of GB */
  bool binary;   /* that reading is GiB */
} LevelPair;

static LevelPair pair_of(const Claim *claim, const json_t *baseline, const json_t *optimized,
                         const char *column) {
  LevelPair pair = {.baseline = baseline, .optimized = optimized};
  pair.bytes[0] = bytes_of(baseline, column);
  pair.bytes[1] = bytes_of(optimized, column);
  const double unit[2] = {1e9, 0x1p30};
  double off[2];
  for (int reading = 0; reading < 2; reading++)
    off[reading] = fmax(fabs(pair.bytes[0] / unit[reading] - vl_claim_number(claim, "baseline_gb")),
                        fabs(pair.bytes[1] / unit[reading] - vl_claim_number(claim, "optimized_gb")));
  pair.binary = off[1] < off[0];
  pair.off_gb = pair.binary ? off[1] : off[0];
  return pair;
}

static void say_pair(const LevelPair *pair, Finding *finding) {
  const char *settings = vl_record_text(pair->baseline, "settings");
  double unit = pair->binary ? 0x1p30 : 1e9;
  vl_finding_say(
      finding, "%s%s%s micro-batch %lld, %s: %.1f to %.1f %s", vl_record_text(pair->baseline, "case"),
      settings != NULL ? " " : "", settings != NULL ? settings : "",
      (long long)vl_record_integer(pair->baseline, "micro_batch"), vl_record_text(pair->optimized, "recipe"),
      pair->bytes[0] / unit, pair->bytes[1] / unit, pair->binary ? "GiB" : "GB");
}

/* Pairs of the article's batch (`of_batch`) or of others, whose levels are not its own. */
typedef struct Pairing {
  int32_t pairs, saving_alike, configurations, with_mixed_alone;
  int32_t at_low_ends; /* configurations, by the lower ends of a profile's intervals */
  double least_saving, most_saving;
  LevelPair nearest;
} Pairing;

static bool is_baseline_of(const Claim *claim, const RecordSet *cells, int32_t i, bool of_batch) {
  const json_t *record = cells->records[i];
  Configuration its = configuration_of(record);
  if (its.mixed || its.checkpointed || !isfinite(needed(record))) return false;
  if (((double)vl_record_integer(record, "global_batch") == vl_claim_number(claim, "batch")) != of_batch)
    return false;
  for (int32_t k = 0; k < i; k++) { /* repetitions count once */
    Configuration other = configuration_of(cells->records[k]);
    if (!other.mixed && !other.checkpointed && same_configuration(cells->records[k], record)) return false;
  }
  return true;
}

/* One configuration's pairs. Says those that have both levels, the first few of them. */
static void match(const Claim *claim, const RecordSet *cells, const json_t *baseline, bool of_batch,
                  Pairing *pairing, Finding *finding) {
  enum { MOST_SAID = 4 };
  double tolerance = vl_claim_number(claim, "tolerance_gb"), low = vl_claim_number(claim, "baseline_gb"),
         high = vl_claim_number(claim, "optimized_gb");
  bool matches = false, mixed_alone = false, low_ends = false;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    Configuration its = configuration_of(record);
    if (!its.mixed || !same_configuration(baseline, record)) continue;
    LevelPair pair = pair_of(claim, baseline, record, "needed_bytes");
    if (!isfinite(pair.bytes[1])) continue;
    LevelPair low_end = pair_of(claim, baseline, record, "needed_low_bytes");
    low_ends = low_ends || (of_batch && its.checkpointed && low_end.off_gb <= tolerance);
    bool has_levels = of_batch && pair.off_gb <= tolerance;
    mixed_alone = mixed_alone || (has_levels && !its.checkpointed);
    if (!its.checkpointed) continue;
    double saving = 1 - pair.bytes[1] / pair.bytes[0];
    pairing->least_saving = pairing->pairs == 0 ? saving : fmin(pairing->least_saving, saving);
    pairing->most_saving = pairing->pairs == 0 ? saving : fmax(pairing->most_saving, saving);
    pairing->saving_alike += saving >= 1 - (high + tolerance) / (low - tolerance) &&
                             saving <= 1 - (high - tolerance) / (low + tolerance);
    if (pairing->pairs == 0 || pair.off_gb < pairing->nearest.off_gb) pairing->nearest = pair;
    pairing->pairs++;
    if (!has_levels || matches) continue;
    matches = true;
    if (pairing->configurations < MOST_SAID) {
      if (pairing->configurations > 0) vl_finding_say(finding, "; ");
      say_pair(&pair, finding);
    }
    if (pairing->configurations == MOST_SAID) vl_finding_say(finding, "; ...");
  }
  pairing->configurations += matches;
  pairing->with_mixed_alone += mixed_alone;
  pairing->at_low_ends += low_ends;
}

static void say_saving(const Claim *claim, const Pairing *pairing, Finding *finding) {
  vl_finding_say(
      finding,
      "; the saving of %.0f %% by itself: %d of %d pairs within what the two levels span, all of them save "
      "%.0f to %.0f %%",
      100 * vl_claim_number(claim, "saving"), pairing->saving_alike, pairing->pairs,
      100 * pairing->least_saving, 100 * pairing->most_saving);
}

void vl_decide_level_pairs(const Claim *claim, const RecordSet *cells, Finding *finding) {
  Pairing own = {0}, others = {0};
  for (int32_t i = 0; i < cells->count; i++)
    if (is_baseline_of(claim, cells, i, true)) match(claim, cells, cells->records[i], true, &own, finding);
  if (own.pairs > 0) {
    finding->verdict = own.configurations == 0   ? VERDICT_REFUTED
                       : own.configurations == 1 ? VERDICT_SUPPORTED
                                                 : VERDICT_AMBIGUOUS;
    if (own.configurations == 0) {
      vl_finding_say(finding, "of %d pairs none has both levels; nearest ", own.pairs);
      say_pair(&own.nearest, finding);
    } else {
      vl_finding_say(finding, "; %d configuration%s with both levels among %d pairs", own.configurations,
                     own.configurations > 1 ? "s" : "", own.pairs);
    }
    vl_finding_say(finding, "; with mixed precision alone: %d", own.with_mixed_alone);
    if (finding->predicted)
      vl_finding_say(finding, "; at the lower ends of what the card's libraries take: %d", own.at_low_ends);
    say_saving(claim, &own, finding);
    return;
  }
  finding->verdict = VERDICT_UNDECIDED;
  vl_finding_say(finding,
                 "missing: a configuration at batch %g that ran with and without mixed precision and "
                 "checkpointing",
                 vl_claim_number(claim, "batch"));
  for (int32_t i = 0; i < cells->count; i++)
    if (is_baseline_of(claim, cells, i, false))
      match(claim, cells, cells->records[i], false, &others, finding);
  if (others.pairs > 0) {
    vl_finding_say(finding, "; at batch %lld",
                   (long long)vl_record_integer(others.nearest.baseline, "global_batch"));
    say_saving(claim, &others, finding);
  }
}
