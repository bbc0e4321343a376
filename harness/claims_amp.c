/* The rules of mixed precision: what it saves where fp32 just fits, and whether an overflow is found. */
#include "harness/claims.h"

#include <stdarg.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static void say(Finding *finding, const char *format, ...) {
  size_t used = strlen(finding->numbers);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(finding->numbers + used, sizeof(finding->numbers) - used, format, arguments);
  va_end(arguments);
}

static bool has_text(const json_t *record, const char *path, const char *text) {
  const char *value = vl_record_text(record, path);
  return value != NULL && strcmp(value, text) == 0;
}

static bool same_text(const json_t *a, const json_t *b, const char *path) {
  const char *left = vl_record_text(a, path), *right = vl_record_text(b, path);
  return left == right || (left != NULL && right != NULL && strcmp(left, right) == 0);
}

/* Whether a cell is of a workload: "bert" is bert-base and its like. */
static bool is_of(const json_t *record, const char *workload) {
  const char *name = vl_record_text(record, "case");
  return name != NULL && strncmp(name, workload, strlen(workload)) == 0;
}

/* The cell that ran with that recipe and is otherwise the same. */
static const json_t *twin_of(const RecordSet *cells, const json_t *record, const char *recipe) {
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *other = cells->records[i];
    if (has_text(other, "recipe", recipe) && has_text(other, "status", "ok") &&
        same_text(other, record, "case") && same_text(other, record, "settings") &&
        vl_record_flag(other, "inference") == vl_record_flag(record, "inference") &&
        vl_record_integer(other, "global_batch") == vl_record_integer(record, "global_batch"))
      return other;
  }
  return NULL;
}

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
    bool base = has_text(record, "recipe", "baseline") && has_text(record, "status", "ok");
    if (!base || !is_of(record, workload) || batch <= best.batch || (batch & (batch - 1)) != 0) continue;
    const json_t *low = twin_of(cells, record, "amp=fp16");
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
      say(finding, "%s%s: missing, fp32 and amp=fp16 at a batch of a power of two", between,
          cases->items[i]->text);
      continue;
    }
    known++;
    inside += saving.share >= low && saving.share <= high;
    say(finding, "%s%s: %.1f %% at batch %lld", between, cases->items[i]->text, 100.0 * saving.share,
        (long long)saving.batch);
  }
  if (known < cases->count)
    finding->verdict = VERDICT_UNDECIDED;
  else
    finding->verdict = inside == known ? VERDICT_SUPPORTED
                       : inside == 0   ? VERDICT_REFUTED
                                       : VERDICT_AMBIGUOUS;
}

/* A run that overflows tells where, and goes on. */
void vl_decide_amp_overflow(const Claim *claim, const RecordSet *cells, Finding *finding) {
  const json_t *witness = NULL;
  int32_t found = 0, watched = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    watched += json_array_size(json_object_get(record, "monitor_loss_scale")) > 0;
    bool overflows = vl_record_integer(record, "skipped_steps") > 0 && has_text(record, "status", "ok");
    if (!overflows || vl_record_text(record, "first_nonfinite") == NULL) continue;
    found++;
    if (witness == NULL) witness = record;
  }
  finding->verdict =
      found >= (int32_t)vl_claim_number(claim, "overflows_found") ? VERDICT_SUPPORTED : VERDICT_UNDECIDED;
  if (witness == NULL) {
    say(finding, "missing: a monitored cell that overflows; %d were watched", watched);
    return;
  }
  say(finding, "of %d cells watched %d overflowed and went on; %s %s: %lld steps skipped, first %s", watched,
      found, vl_record_text(witness, "case"), vl_record_text(witness, "recipe"),
      (long long)vl_record_integer(witness, "skipped_steps"), vl_record_text(witness, "first_nonfinite"));
}
