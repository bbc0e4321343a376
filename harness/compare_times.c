/* Times of a cell in two stores: whether its steps take longer than they did. */
#include "harness/compare.h"
#include "harness/report_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENOUGH_PROCESSES = 4, ENOUGH_PAIRS = 6 };

static const double SIGNIFICANT = 0.05;
/* Steps of one process share its memory, its cores and its minute: they tell apart less than they seem to. */
static const double STEPS_NEED = 4;
/* Stores measured one after the other: how much of the variance between processes all of a store share. On a
 * shared machine the means of stores lay as far apart as processes of one store (results/bench-compare.json).
 */
static const double SITTING_SHARE = 1;

/* ---- Samples of one store --------------------------------------------------------------------------------------- */

typedef struct Samples {
  double *values;
  int64_t count, processes;
} Samples;

static double median_step(const json_t *record) {
  double step_s = vl_record_real(record, "step_s");
  return vl_record_has_status(record, "ok") && step_s > 0 ? step_s : NAN;
}

static Samples samples_of(const RecordSet *records, bool by_process) {
  Samples samples = {.values = vl_allocate(sizeof(double))};
  for (int32_t i = 0; i < records->count; i++) {
    int64_t count;
    double *steps = vl_record_list(records->records[i], "step_times_s", &count);
    double median = median_step(records->records[i]);
    if (!isnan(median)) {
      const double *from = by_process || count == 0 ? &median : steps;
      int64_t more = by_process || count == 0 ? 1 : count;
      samples.values = vl_reallocate(samples.values, (size_t)(samples.count + more) * sizeof *samples.values);
      for (int64_t k = 0; k < more; k++)
        if (from[k] > 0) samples.values[samples.count++] = from[k];
      samples.processes++;
    }
    free(steps);
  }
  return samples;
}

/* The least two-sided p that ranks of so many samples can give: 2 / (n + m choose n). */
static double least_rank_p(int64_t n, int64_t m) {
  return 2 * exp(lgamma((double)n + 1) + lgamma((double)m + 1) - lgamma((double)(n + m) + 1));
}

static double *logarithms(const double *values, int64_t n) {
  double *logs = vl_allocate((size_t)(n + 1) * sizeof *logs);
  for (int64_t i = 0; i < n; i++)
    logs[i] = log(values[i]);
  return logs;
}

void vl_compare_times(const double *base, int64_t n, const double *now, int64_t m, Difference *difference) {
  double *of_base = logarithms(base, n), *of_now = logarithms(now, m);
  Contrast logs;
  difference->p = vl_statistics_welch(of_base, n, of_now, m, SITTING_SHARE, &logs);
  difference->rank_p = vl_statistics_mann_whitney(base, n, now, m);
  difference->ratio = (Contrast){exp(logs.value), exp(logs.low), exp(logs.high)};
  difference->base = vl_statistics_median(base, n);
  difference->now = vl_statistics_median(now, m);
  free(of_base);
  free(of_now);
  if (n < 1 || m < 1 || least_rank_p(n, m) > SIGNIFICANT) {
    difference->p = NAN;
    snprintf(difference->evidence, sizeof difference->evidence, "not enough data: %lld and %lld samples",
             (long long)n, (long long)m);
  }
}

/* ---- Pairs of two stores measured in turn ------------------------------------------------------------------------- */

typedef struct Process {
  int64_t repeat;
  double step_s;
  const char *ended; /* ISO 8601: text in order of time */
} Process;

static int compare_repeats(const void *a, const void *b) {
  const Process *one = a, *other = b;
  return (one->repeat > other->repeat) - (one->repeat < other->repeat);
}

/* What ran, by repeat; a repeat that is there twice, as in stores that were joined, is left out. */
static int32_t processes_of(const RecordSet *records, Process *processes) {
  int32_t count = 0, kept = 0;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    Process process = {vl_record_integer(record, "repeat"), median_step(record),
                       vl_record_text(record, "created_utc")};
    if (process.repeat >= 0 && !isnan(process.step_s) && process.ended) processes[count++] = process;
  }
  qsort(processes, (size_t)count, sizeof *processes, compare_repeats);
  for (int32_t i = 0, j; i < count; i = j) {
    for (j = i + 1; j < count && processes[j].repeat == processes[i].repeat;)
      j++;
    if (j == i + 1) processes[kept++] = processes[i];
  }
  return kept;
}

/* Whether another of these ended between the two, or within the same second. */
static bool parts(const Process *a, const Process *b, const Process *processes, int32_t count) {
  bool in_order = strcmp(a->ended, b->ended) <= 0;
  const char *first = in_order ? a->ended : b->ended, *last = in_order ? b->ended : a->ended;
  for (int32_t i = 0; i < count; i++) {
    const Process *other = &processes[i];
    if (other != a && other != b && strcmp(other->ended, first) >= 0 && strcmp(other->ended, last) <= 0)
      return true;
  }
  return false;
}

int32_t vl_compare_pairs(const RecordSet *base, const RecordSet *now, TimePair *pairs) {
  Process *a = vl_allocate((size_t)(base->count + 1) * sizeof *a),
          *b = vl_allocate((size_t)(now->count + 1) * sizeof *b);
  int32_t n = processes_of(base, a), m = processes_of(now, b), count = 0;
  for (int32_t i = 0, j = 0; i < n && j < m;) {
    if (a[i].repeat != b[j].repeat) {
      *(a[i].repeat < b[j].repeat ? &i : &j) += 1;
      continue;
    }
    if (!parts(&a[i], &b[j], a, n) && !parts(&a[i], &b[j], b, m))
      pairs[count++] = (TimePair){a[i].repeat, a[i].step_s, b[j].step_s};
    i++;
    j++;
  }
  free(a);
  free(b);
  return count;
}

bool vl_compare_same_machine(const json_t *a, const json_t *b) {
  return vl_record_same_text(a, b, "hardware") && vl_record_same_text(a, b, "hostname") &&
         vl_record_integer(a, "threads") == vl_record_integer(b, "threads");
}

static void judge_logarithms(const double *log_ratios, int32_t count, Difference *difference) {
  Contrast logs;
  difference->p = vl_statistics_paired(log_ratios, count, &logs);
  difference->rank_p = vl_statistics_signed_rank(log_ratios, count);
  difference->ratio = (Contrast){exp(logs.value), exp(logs.low), exp(logs.high)};
  difference->by_process = true;
}

static void judge_pairs(const TimePair *pairs, int32_t count, Difference *difference) {
  double *logs = vl_allocate((size_t)count * sizeof *logs), *base = vl_allocate((size_t)count * sizeof *base),
         *now = vl_allocate((size_t)count * sizeof *now);
  for (int32_t i = 0; i < count; i++) {
    base[i] = pairs[i].base_s;
    now[i] = pairs[i].now_s;
    logs[i] = log(now[i] / base[i]);
  }
  judge_logarithms(logs, count, difference);
  difference->base = vl_statistics_median(base, count);
  difference->now = vl_statistics_median(now, count);
  snprintf(difference->evidence, sizeof difference->evidence, "%d pairs side by side", count);
  free(logs);
  free(base);
  free(now);
}

/* ---- A cell, all cells, the verdict -------------------------------------------------------------------------------- */

void vl_compare_cell_times(const RecordSet *base, const RecordSet *now, CellComparison *cell,
                           Difference *difference) {
  cell->pairs = vl_allocate((size_t)(base->count + 1) * sizeof *cell->pairs);
  if (vl_compare_same_machine(cell->base, cell->now))
    cell->pair_count = vl_compare_pairs(base, now, cell->pairs);
  if (cell->pair_count >= ENOUGH_PAIRS) {
    judge_pairs(cell->pairs, cell->pair_count, difference);
    return;
  }
  cell->pair_count = 0;
  Samples a = samples_of(base, true), b = samples_of(now, true);
  bool by_process = a.processes >= ENOUGH_PROCESSES && b.processes >= ENOUGH_PROCESSES;
  if (!by_process) {
    free(a.values);
    free(b.values);
    a = samples_of(base, false);
    b = samples_of(now, false);
  }
  difference->by_process = by_process;
  snprintf(difference->evidence, sizeof difference->evidence, "%lld and %lld %s", (long long)a.count,
           (long long)b.count, by_process ? "processes" : "steps of few processes");
  vl_compare_times(a.values, a.count, b.values, b.count, difference);
  if (a.count == 0 && b.count == 0) difference->metric = NULL; /* neither has a time */
  free(a.values);
  free(b.values);
}

/* The logarithm of a cell's ratio in a round; NaN where it has none. */
static double log_ratio_in(const CellComparison *cell, int64_t repeat) {
  for (int32_t k = 0; k < cell->pair_count; k++)
    if (cell->pairs[k].repeat == repeat) return log(cell->pairs[k].now_s / cell->pairs[k].base_s);
  return NAN;
}

bool vl_compare_together(const CellComparison *cells, int32_t count, Difference *difference) {
  const CellComparison *first = NULL;
  int32_t paired = 0, rounds = 0;
  for (int32_t i = 0; i < count; i++)
    if (cells[i].pair_count > 0 && paired++ == 0) first = &cells[i];
  if (paired < 2) return false;
  double *means = vl_allocate((size_t)first->pair_count * sizeof *means);
  for (int32_t k = 0; k < first->pair_count; k++) {
    double sum = 0;
    for (int32_t i = 0; i < count; i++)
      if (cells[i].pair_count > 0) sum += log_ratio_in(&cells[i], first->pairs[k].repeat);
    if (!isnan(sum)) means[rounds++] = sum / paired; /* a round without one of the cells has another mean */
  }
  if (rounds >= ENOUGH_PAIRS) {
    judge_logarithms(means, rounds, difference);
    difference->base = difference->now = NAN;
    snprintf(difference->evidence, sizeof difference->evidence, "%d rounds of %d cells side by side", rounds,
             paired);
  }
  free(means);
  return rounds >= ENOUGH_PAIRS;
}

void vl_compare_decide(double min_change, Difference *difference) {
  double change = difference->ratio.value - 1;
  difference->judgement = JUDGED_UNCLEAR;
  if (isnan(difference->p)) return;
  difference->judgement = JUDGED_SAME;
  if (fabs(change) < min_change * (difference->by_process ? 1 : STEPS_NEED)) return;
  bool sure = difference->p < SIGNIFICANT && difference->rank_p < SIGNIFICANT;
  difference->judgement = !sure ? JUDGED_UNCLEAR : change > 0 ? JUDGED_WORSE : JUDGED_BETTER;
}
