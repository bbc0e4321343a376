/* Losses of the same recipe in two stores: to the bit where nothing that decides bits differs, else up to
 * rounding. */
#include "harness/compare.h"
#include "harness/report_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_program(const json_t *a, const json_t *b) {
  return vl_record_same_text(a, b, "git_commit") && vl_record_same_text(a, b, "tool_version") &&
         !vl_record_flag(a, "git_dirty") && !vl_record_flag(b, "git_dirty");
}

/* A library may choose ways whose sums depend on timing. */
static bool sums_vary(const json_t *record) {
  const char *device = vl_record_text(record, "device"), *recipe = vl_record_text(record, "recipe");
  return device && strcmp(device, "cuda") == 0 && !(recipe && strstr(recipe, "algorithms=deterministic"));
}

/* Why bits may differ; NULL: they may not. A recipe that preserves results bit for bit keeps them from one
 * program to the next; what is within a tolerance of it may be so in another way. */
static const char *reason_to_round(const json_t *base, const json_t *now) {
  const char *preserves = vl_record_text(now, "preserves");
  if (!vl_record_same_text(base, now, "hardware")) return "other hardware";
  if (!vl_record_same_text(base, now, "isa")) return "another instruction set";
  if (!vl_record_same_text(base, now, "library")) return "another library";
  if (vl_record_integer(base, "threads") != vl_record_integer(now, "threads")) return "other threads";
  if (sums_vary(now)) return "sums vary";
  if (preserves && strcmp(preserves, "bitwise") != 0 && !same_program(base, now)) return "another program";
  return NULL;
}

/* Relative, of the first step of both, before an update can amplify it; of the last where a record (of a
 * baseline of an earlier version) keeps no others. */
static double difference_of(const json_t *base, const json_t *now, const Difference *last) {
  int64_t n, m;
  double *of_base = vl_record_list(base, "losses", &n), *of_now = vl_record_list(now, "losses", &m);
  double a = n > 0 && m > 0 ? of_base[0] : last->base, b = n > 0 && m > 0 ? of_now[0] : last->now;
  free(of_base);
  free(of_now);
  return a == b ? 0 : fabs(b - a) / fabs(a);
}

void vl_compare_losses(const json_t *base, const json_t *now, Difference *difference) {
  difference->judgement = JUDGED_SAME;
  if (difference->base == difference->now) return;
  const char *reason = reason_to_round(base, now);
  if (!reason) {
    difference->judgement = JUDGED_CHANGED;
    return;
  }
  double off = difference_of(base, now, difference);
  bool within = off <= vl_record_loss_bound(now);
  if (!within) difference->judgement = JUDGED_CHANGED;
  snprintf(difference->evidence, sizeof difference->evidence, "%s, first loss off by %.1e: %s", reason, off,
           within ? "rounding" : "too much");
}
