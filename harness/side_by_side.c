/* Which cells of several stores stand side by side, and what each label has there. */
#include "harness/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b) { return strcmp(a ? a : "", b ? b : "") == 0; }

int32_t vl_side_label(const PlotInput *input, const json_t *record) {
  const char *label = vl_record_text(record, "label");
  for (int32_t i = 0; label && i < input->label_count; i++)
    if (strcmp(input->labels[i], label) == 0) return i;
  return -1;
}

bool vl_side_is_of(const Workload *workload, const json_t *record, const char *kind) {
  Workload its = vl_record_workload(record);
  const char *its_kind = vl_record_text(record, "kind");
  return its_kind && strcmp(its_kind, kind) == 0 && same_text(its.case_name, workload->case_name) &&
         same_text(its.settings, workload->settings) && same_text(its.queue, workload->queue) &&
         its.inference == workload->inference && !vl_record_is_peer(record);
}

static SideGroup *group_of(Side *side, const char *recipe, int64_t batch, int64_t capacity_bytes) {
  for (int32_t i = 0; i < side->count; i++)
    if (same_text(side->groups[i].recipe, recipe) && side->groups[i].batch == batch &&
        side->groups[i].capacity_bytes == capacity_bytes)
      return &side->groups[i];
  if (side->count == side->capacity) {
    side->capacity = side->capacity ? 2 * side->capacity : 16;
    side->groups = vl_reallocate(side->groups, (size_t)side->capacity * sizeof *side->groups);
  }
  SideGroup *group = &side->groups[side->count++];
  *group = (SideGroup){.recipe = recipe, .batch = batch, .capacity_bytes = capacity_bytes};
  if (capacity_bytes > 0) {
    char capacity[32];
    vl_format_bytes(capacity_bytes, capacity, sizeof capacity);
    snprintf(group->name, sizeof group->name, "%s in %s", recipe ? recipe : "baseline", capacity);
  } else if (batch > 0)
    snprintf(group->name, sizeof group->name, "%s, batch %lld", recipe ? recipe : "baseline",
             (long long)batch);
  else
    snprintf(group->name, sizeof group->name, "%s", recipe ? recipe : "baseline");
  for (int32_t l = 0; l < VL_MAX_LABELS; l++)
    group->values[l] = (SideValue){.value = NAN, .low = NAN, .high = NAN};
  return group;
}

/* ---- Metrics of a cell --------------------------------------------------------------------------------------------- */

static double real_of(const json_t *record, const char *column) { return vl_record_real(record, column); }

double vl_side_throughput(const json_t *record, double *low, double *high) {
  double rate = real_of(record, "samples_per_s"), step = real_of(record, "step_s");
  double step_low = real_of(record, "step_s_low"), step_high = real_of(record, "step_s_high");
  if (vl_record_is_emulated(record)) rate = NAN; /* its speed is not that of the hardware meant */
  *low = step_high > 0 ? rate * step / step_high : NAN;
  *high = step_low > 0 ? rate * step / step_low : NAN;
  return rate;
}

static double needed(const json_t *record, double *low, double *high) {
  double gib = real_of(record, "needed_bytes") * 0x1p-30;
  *low = *high = NAN;
  return gib > 0 ? gib : NAN;
}

static double per_gib(const json_t *record, double *low, double *high) {
  double rate = vl_side_throughput(record, low, high), none;
  double gib = needed(record, &none, &none);
  *low /= gib, *high /= gib;
  return rate / gib;
}

static double per_joule(const json_t *record, double *low, double *high) {
  double samples = (double)vl_record_batch(record) * real_of(record, "step_count");
  double joules = real_of(record, "energy_mj") * 1e-3;
  *low = *high = NAN;
  return joules > 0 && !vl_record_is_emulated(record) ? samples / joules : NAN;
}

static double largest_batch(const json_t *record, double *low, double *high) {
  *low = *high = NAN;
  return real_of(record, "batch");
}

static const SideMetric metrics[] = {
    {"max-batch", "max-batch", false, false, "samples", largest_batch, "%.0f"},
    {"throughput-equal-batch", "cell", true, false, "1/s", vl_side_throughput, "%.4g"},
    {"throughput-best", "cell", false, true, "1/s", vl_side_throughput, "%.4g"},
    {"speedup", "cell", true, false, "x", vl_side_throughput, "%.2f"},
    {"needed", "cell", true, false, "GiB", needed, "%.2f"},
    {"samples-per-gib", "cell", true, false, "1/s and GiB", per_gib, "%.4g"},
    {"samples-per-joule", "cell", true, false, "1/J", per_joule, "%.3g"},
    {"prediction-error", "cell", true, false, "%", NULL, "%+.1f"},
};

const SideMetric *vl_side_metric(const char *name) {
  for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
    if (strcmp(metrics[i].name, name) == 0) return &metrics[i];
  return NULL;
}

/* ---- Gathering --------------------------------------------------------------------------------------------------------- */

/* Once each. */
static void leave_out(Side *side, const char *name, const char *why) {
  SideLeftOut entry;
  snprintf(entry.name, sizeof entry.name, "%.120s", name);
  snprintf(entry.why, sizeof entry.why, "%.90s", why);
  for (int32_t i = 0; i < side->left_out_count; i++)
    if (strcmp(side->left_out[i].name, entry.name) == 0 && strcmp(side->left_out[i].why, entry.why) == 0)
      return;
  if (side->left_out_count == side->left_out_capacity) {
    side->left_out_capacity = side->left_out_capacity ? 2 * side->left_out_capacity : 16;
    side->left_out = vl_reallocate(side->left_out, (size_t)side->left_out_capacity * sizeof *side->left_out);
  }
  side->left_out[side->left_out_count++] = entry;
}

/* Of one label the measured cell goes before the predicted one; of several batches the best. */
static void take(const SideMetric *metric, const json_t *record, SideValue *value) {
  const char *status = vl_record_text(record, "status");
  bool ran = vl_record_has_status(record, "ok"), predicted = vl_record_is_predicted(record);
  double low = NAN, high = NAN, measure = ran ? metric->of(record, &low, &high) : NAN;
  bool known = isfinite(measure), first = !value->there;
  bool better = metric->best ? !(value->value >= measure) : false;
  bool sooner = value->there && value->predicted && !predicted;
  if (!first && !sooner && !(known && (better || !isfinite(value->value)))) return;
  if (!first && !sooner && predicted && !value->predicted) return;
  *value = (SideValue){measure, low, high, predicted, true, ""};
  if (known && metric->best)
    snprintf(value->word, sizeof value->word, "%.4g at %lld", measure, (long long)vl_record_batch(record));
  else if (known)
    snprintf(value->word, sizeof value->word, metric->format, measure);
  else
    snprintf(value->word, sizeof value->word, "%s",
             !status || ran               ? "n/a"
             : strcmp(status, "oom") == 0 ? "OOM"
                                          : status);
}

/* Repetitions: the median of what they say. */
static void take_repetitions(const Side *side, const SideMetric *metric, SideGroup *group, int32_t label) {
  SideValue *value = &group->values[label];
  const RecordSet *records = &side->input->records;
  double *values = vl_allocate((size_t)(records->count + 1) * sizeof *values);
  int64_t count = 0;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (!vl_side_is_of(side->workload, record, metric->kind) || vl_side_label(side->input, record) != label ||
        !same_text(vl_record_text(record, "recipe"), group->recipe) ||
        vl_record_batch(record) != group->batch || vl_record_is_predicted(record) != value->predicted ||
        !vl_record_has_status(record, "ok"))
      continue;
    double low, high, each = metric->of(record, &low, &high);
    if (isfinite(each)) values[count++] = each;
  }
  if (count > 1) {
    Estimate estimate = vl_statistics_estimate(values, count);
    value->value = estimate.median;
    value->low = estimate.low;
    value->high = estimate.high;
    snprintf(value->word, sizeof value->word, metric->format, estimate.median);
  }
  free(values);
}

/* The label's baseline at a batch, to hold a recipe's results against. */
static const json_t *baseline_of(const Side *side, const json_t *record) {
  for (int32_t i = 0; i < side->input->records.count; i++) {
    const json_t *other = side->input->records.records[i];
    if (vl_side_is_of(side->workload, other, "cell") &&
        vl_side_label(side->input, other) == vl_side_label(side->input, record) &&
        same_text(vl_record_text(other, "recipe"), "baseline") &&
        vl_record_batch(other) == vl_record_batch(record) &&
        vl_record_is_predicted(other) == vl_record_is_predicted(record) && vl_record_has_status(other, "ok"))
      return other;
  }
  return NULL;
}

/* A limit that is not the device's own memory. */
static int64_t capacity_of(const json_t *record) {
  int64_t capacity = vl_record_integer(record, "capacity_bytes"),
          memory = vl_record_integer(record, "memory_bytes");
  return capacity <= 0 || llabs(capacity - memory) < memory / 64 ? 0 : capacity;
}

static void gather(Side *side, const SideMetric *metric) {
  const RecordSet *records = &side->input->records;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    int32_t label = vl_side_label(side->input, record);
    if (label < 0 || !vl_side_is_of(side->workload, record, metric->kind)) continue;
    const char *recipe = vl_record_text(record, "recipe");
    if (vl_record_equality(record, baseline_of(side, record)).outcome == OUTCOME_BROKEN) {
      leave_out(side, recipe ? recipe : "baseline", "results are not what the recipe promises");
      continue;
    }
    SideGroup *group =
        group_of(side, recipe, metric->equal_batch ? vl_record_batch(record) : 0, capacity_of(record));
    const char *preserves = vl_record_text(record, "preserves");
    if (group->preserves == NULL) group->preserves = preserves;
    if (!same_text(group->preserves, preserves)) {
      char why[96];
      snprintf(why, sizeof why, "results: %.30s in one, %.30s in the other", group->preserves,
               preserves != NULL ? preserves : "unknown");
      leave_out(side, group->name, why);
      continue;
    }
    take(metric, record, &group->values[label]);
  }
  for (int32_t g = 0; metric->equal_batch && g < side->count; g++)
    for (int32_t l = 0; l < side->input->label_count; l++)
      if (side->groups[g].values[l].there) take_repetitions(side, metric, &side->groups[g], l);
}

static bool is_baseline(const SideGroup *group) { return same_text(group->recipe, "baseline"); }

/* Keeps what at least two labels have (or one, where there is one alone), the baseline first. */
static void keep_common(Side *side) {
  int32_t kept = 0;
  for (int32_t g = 0; g < side->count; g++) {
    SideGroup group = side->groups[g];
    int32_t labels = 0, only = 0;
    bool finite = false;
    for (int32_t l = 0; l < side->input->label_count; l++) {
      labels += group.values[l].there;
      if (group.values[l].there) only = l;
      finite = finite || isfinite(group.values[l].value);
    }
    if (labels < 2 && side->input->label_count > 1) {
      char why[160];
      snprintf(why, sizeof why, "only %.40s has it", side->input->labels[only]);
      leave_out(side, group.name, why);
    } else if (finite) {
      int32_t at = kept++;
      for (; at > 0 && is_baseline(&group) && !is_baseline(&side->groups[at - 1]); at--)
        side->groups[at] = side->groups[at - 1];
      side->groups[at] = group;
    }
  }
  side->count = kept;
}

/* Each over the reference's of the same group; without that there is nothing to say. */
static void divide_by_reference(Side *side) {
  int32_t reference = side->input->reference, kept = 0;
  for (int32_t g = 0; g < side->count; g++) {
    SideGroup *group = &side->groups[g];
    double by = group->values[reference].value;
    if (!(by > 0)) {
      leave_out(side, group->name, "the reference has no such time");
      continue;
    }
    for (int32_t l = 0; l < side->input->label_count; l++) {
      SideValue *value = &group->values[l];
      if (!isfinite(value->value)) continue;
      value->value /= by, value->low /= by, value->high /= by;
      snprintf(value->word, sizeof value->word, "%.2f", value->value);
    }
    side->groups[kept++] = *group;
  }
  side->count = kept;
}

/* Needed memory, predicted against measured, of the same cell of one label; in percent of what was measured.
 */
static void gather_errors(Side *side) {
  const RecordSet *records = &side->input->records;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *measured = records->records[i];
    int32_t label = vl_side_label(side->input, measured);
    if (label < 0 || !vl_side_is_of(side->workload, measured, "cell") || vl_record_is_predicted(measured))
      continue;
    double bytes = real_of(measured, "needed_bytes");
    for (int32_t j = 0; j < records->count && bytes > 0; j++) {
      const json_t *predicted = records->records[j];
      if (vl_side_label(side->input, predicted) != label ||
          !vl_side_is_of(side->workload, predicted, "cell") || !vl_record_is_predicted(predicted) ||
          capacity_of(predicted) != capacity_of(measured) ||
          vl_record_batch(predicted) != vl_record_batch(measured) ||
          !vl_record_same_text(predicted, measured, "recipe") || !(real_of(predicted, "needed_bytes") > 0))
        continue;
      SideValue *value = &group_of(side, vl_record_text(measured, "recipe"), vl_record_batch(measured),
                                   capacity_of(measured))
                              ->values[label];
      double error = 100 * (real_of(predicted, "needed_bytes") / bytes - 1);
      *value = (SideValue){.value = error, .low = NAN, .high = NAN, .there = true};
      snprintf(value->word, sizeof value->word, "%+.1f", error);
    }
  }
}

void vl_side_gather(const PlotInput *input, const Workload *workload, const SideMetric *metric, Side *side) {
  *side = (Side){.input = input, .workload = workload};
  if (metric->of)
    gather(side, metric);
  else
    gather_errors(side);
  keep_common(side);
  if (strcmp(metric->name, "speedup") == 0) divide_by_reference(side);
}

void vl_side_clear(Side *side) {
  free(side->groups);
  free(side->left_out);
}
