/* Selections of several stores side by side: machines, or versions, under labels. */
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 14, WORD_BYTES = 40, LABEL_COLUMNS = 27 };

/* What one label has of a group. */
typedef struct Value {
  double value, low, high; /* NaN: none; low and high: of the 95 % interval */
  bool predicted, there;
  char word[WORD_BYTES]; /* beside the bar */
} Value;

/* What stands side by side: one recipe, and one batch where that must be equal. */
typedef struct Group {
  char name[VL_RECIPE_BYTES + 64];
  const char *recipe;
  int64_t batch;          /* 0: any */
  int64_t capacity_bytes; /* that was set for all; 0: each has its own memory */
  Value values[VL_MAX_LABELS];
} Group;

typedef struct Side {
  const PlotInput *input;
  const Workload *workload;
  Group *groups;
  int32_t count, capacity;
  char left_out[400]; /* what does not stand beside anything, and why */
  int32_t left_out_count;
} Side;

static bool same_text(const char *a, const char *b) { return strcmp(a ? a : "", b ? b : "") == 0; }

static int32_t label_of(const PlotInput *input, const json_t *record) {
  const char *label = vl_record_text(record, "label");
  for (int32_t i = 0; label && i < input->label_count; i++)
    if (strcmp(input->labels[i], label) == 0) return i;
  return -1;
}

static bool is_ours(const Side *side, const json_t *record, const char *kind) {
  Workload its = vl_record_workload(record);
  const char *its_kind = vl_record_text(record, "kind");
  return its_kind && strcmp(its_kind, kind) == 0 && same_text(its.case_name, side->workload->case_name) &&
         same_text(its.settings, side->workload->settings) && same_text(its.queue, side->workload->queue) &&
         its.inference == side->workload->inference && !vl_record_is_peer(record);
}

static Group *group_of(Side *side, const char *recipe, int64_t batch, int64_t capacity_bytes) {
  for (int32_t i = 0; i < side->count; i++)
    if (same_text(side->groups[i].recipe, recipe) && side->groups[i].batch == batch &&
        side->groups[i].capacity_bytes == capacity_bytes)
      return &side->groups[i];
  if (side->count == side->capacity) {
    side->capacity = side->capacity ? 2 * side->capacity : 16;
    side->groups = vl_reallocate(side->groups, (size_t)side->capacity * sizeof *side->groups);
  }
  Group *group = &side->groups[side->count++];
  *group = (Group){.recipe = recipe, .batch = batch, .capacity_bytes = capacity_bytes};
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
    group->values[l] = (Value){.value = NAN, .low = NAN, .high = NAN};
  return group;
}

/* ---- Metrics of a cell --------------------------------------------------------------------------------------------- */

typedef struct Measure {
  double value, low, high;
} Measure;

static double real_of(const json_t *record, const char *column) { return vl_record_real(record, column); }

static Measure throughput_of(const json_t *record) {
  double rate = real_of(record, "samples_per_s"), step = real_of(record, "step_s");
  double low = real_of(record, "step_s_low"), high = real_of(record, "step_s_high");
  if (vl_record_is_emulated(record)) rate = NAN; /* its speed is not that of the hardware meant */
  return (Measure){rate, high > 0 ? rate * step / high : NAN, low > 0 ? rate * step / low : NAN};
}

static Measure per_gib(const json_t *record) {
  Measure rate = throughput_of(record);
  double gib = real_of(record, "needed_bytes") * 0x1p-30;
  if (!(gib > 0)) gib = NAN;
  return (Measure){rate.value / gib, rate.low / gib, rate.high / gib};
}

static Measure per_joule(const json_t *record) {
  double samples = (double)vl_record_batch(record) * real_of(record, "step_count");
  double joules = real_of(record, "energy_mj") * 1e-3;
  return (Measure){joules > 0 && !vl_record_is_emulated(record) ? samples / joules : NAN, NAN, NAN};
}

static Measure batch_of(const json_t *record) {
  double batch = real_of(record, "batch");
  return (Measure){batch, NAN, NAN};
}

typedef struct HardwareMetric {
  const char *name, *kind;
  bool equal_batch, best;
  Measure (*of)(const json_t *record);
  const char *format; /* of the word beside a bar */
} HardwareMetric;

static const HardwareMetric metrics[] = {
    {"max-batch", "max-batch", false, false, batch_of, "%.0f"},
    {"throughput-equal-batch", "cell", true, false, throughput_of, "%.4g"},
    {"throughput-best", "cell", false, true, throughput_of, "%.4g"},
    {"samples-per-gib", "cell", true, false, per_gib, "%.4g"},
    {"samples-per-joule", "cell", true, false, per_joule, "%.3g"},
    {"speedup", "cell", true, false, throughput_of, "%.2f"},
};

/* ---- Gathering --------------------------------------------------------------------------------------------------------- */

static void leave_out(Side *side, const char *name, const char *why) {
  size_t used = strlen(side->left_out);
  if (side->left_out_count++ < 4)
    snprintf(side->left_out + used, sizeof side->left_out - used, "%s%.60s (%.60s)", used ? "; " : "", name,
             why);
}

/* Of one label the measured cell goes before the predicted one; of several batches the best. */
static void take(const HardwareMetric *metric, const json_t *record, Value *value) {
  const char *status = vl_record_text(record, "status");
  bool ran = vl_record_has_status(record, "ok"), predicted = vl_record_is_predicted(record);
  Measure measure = ran ? metric->of(record) : (Measure){NAN, NAN, NAN};
  bool known = isfinite(measure.value), first = !value->there;
  bool better = metric->best ? !(value->value >= measure.value) : false;
  bool sooner = value->there && value->predicted && !predicted;
  if (!first && !sooner && !(known && (better || !isfinite(value->value)))) return;
  if (!first && !sooner && predicted && !value->predicted) return;
  *value = (Value){measure.value, measure.low, measure.high, predicted, true, ""};
  if (known && metric->best)
    snprintf(value->word, sizeof value->word, "%.4g at %lld", measure.value,
             (long long)vl_record_batch(record));
  else if (known)
    snprintf(value->word, sizeof value->word, metric->format, measure.value);
  else
    snprintf(value->word, sizeof value->word, "%s",
             !status || ran               ? "n/a"
             : strcmp(status, "oom") == 0 ? "OOM"
                                          : status);
}

/* Repetitions: the median of what they say. */
static void take_repetitions(const Side *side, const HardwareMetric *metric, Group *group, int32_t label) {
  Value *value = &group->values[label];
  const RecordSet *records = &side->input->records;
  double *values = vl_allocate((size_t)(records->count + 1) * sizeof *values);
  int64_t count = 0;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (!is_ours(side, record, metric->kind) || label_of(side->input, record) != label ||
        !same_text(vl_record_text(record, "recipe"), group->recipe) ||
        vl_record_batch(record) != group->batch || vl_record_is_predicted(record) != value->predicted ||
        !vl_record_has_status(record, "ok"))
      continue;
    double each = metric->of(record).value;
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
    if (is_ours(side, other, "cell") && label_of(side->input, other) == label_of(side->input, record) &&
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

static void gather(Side *side, const HardwareMetric *metric) {
  const RecordSet *records = &side->input->records;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    int32_t label = label_of(side->input, record);
    if (label < 0 || !is_ours(side, record, metric->kind)) continue;
    const char *recipe = vl_record_text(record, "recipe");
    if (vl_record_equality(record, baseline_of(side, record)).outcome == OUTCOME_BROKEN) {
      leave_out(side, recipe ? recipe : "baseline", "results are not what the recipe promises");
      continue;
    }
    Group *group =
        group_of(side, recipe, metric->equal_batch ? vl_record_batch(record) : 0, capacity_of(record));
    take(metric, record, &group->values[label]);
  }
  for (int32_t g = 0; metric->equal_batch && g < side->count; g++)
    for (int32_t l = 0; l < side->input->label_count; l++)
      if (side->groups[g].values[l].there) take_repetitions(side, metric, &side->groups[g], l);
}

static bool is_baseline(const Group *group) { return same_text(group->recipe, "baseline"); }

/* Keeps what at least two labels have (or one, where there is one alone), the baseline first. */
static void keep_common(Side *side) {
  int32_t kept = 0;
  for (int32_t g = 0; g < side->count; g++) {
    Group group = side->groups[g];
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
  for (int32_t g = MOST_GROUPS; g < kept; g++)
    leave_out(side, side->groups[g].name, "no room");
  side->count = kept < MOST_GROUPS ? kept : MOST_GROUPS;
}

/* Each over the reference's of the same group; without that there is nothing to say. */
static void divide_by_reference(Side *side) {
  int32_t reference = side->input->reference, kept = 0;
  for (int32_t g = 0; g < side->count; g++) {
    Group *group = &side->groups[g];
    double by = group->values[reference].value;
    if (!(by > 0)) {
      leave_out(side, group->name, "the reference has no such time");
      continue;
    }
    for (int32_t l = 0; l < side->input->label_count; l++) {
      Value *value = &group->values[l];
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
    int32_t label = label_of(side->input, measured);
    if (label < 0 || !is_ours(side, measured, "cell") || vl_record_is_predicted(measured)) continue;
    double bytes = real_of(measured, "needed_bytes");
    for (int32_t j = 0; j < records->count && bytes > 0; j++) {
      const json_t *predicted = records->records[j];
      if (label_of(side->input, predicted) != label || !is_ours(side, predicted, "cell") ||
          !vl_record_is_predicted(predicted) || capacity_of(predicted) != capacity_of(measured) ||
          vl_record_batch(predicted) != vl_record_batch(measured) ||
          !vl_record_same_text(predicted, measured, "recipe") || !(real_of(predicted, "needed_bytes") > 0))
        continue;
      Value *value = &group_of(side, vl_record_text(measured, "recipe"), vl_record_batch(measured),
                               capacity_of(measured))
                          ->values[label];
      double error = 100 * (real_of(predicted, "needed_bytes") / bytes - 1);
      *value = (Value){.value = error, .low = NAN, .high = NAN, .there = true};
      snprintf(value->word, sizeof value->word, "%+.1f", error);
    }
  }
}

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

static void write_number(FILE *out, double value) {
  fputc(' ', out);
  vl_gnuplot_number(out, value);
}

/* Where a bar stands: groups one below the other, labels within. */
static double place_of(const Side *side, int32_t group, int32_t label) {
  return group * (side->input->label_count + 0.8) + label;
}

/* One block of data for the bars of each label that are measured, and for those that are predicted. */
static int32_t write_bars(const Side *side, bool predicted, FigureData *out, int32_t first, double *highest,
                          double *lowest) {
  int32_t series = 0;
  for (int32_t l = 0; l < side->input->label_count; l++) {
    int32_t bars = 0;
    for (int32_t g = 0; g < side->count; g++) {
      const Value *value = &side->groups[g].values[l];
      if (!isfinite(value->value) || value->predicted != predicted) continue;
      if (bars++ == 0 && first + series > 0) fputs("\n\n", out->data);
      bool interval = isfinite(value->low) && isfinite(value->high);
      fprintf(out->data, "%.9g", place_of(side, g, l));
      write_number(out->data, value->value);
      write_number(out->data, interval ? value->low : value->value);
      write_number(out->data, interval ? value->high : value->value);
      fputc('\n', out->data);
      *highest = fmax(*highest, interval ? value->high : value->value);
      *lowest = fmin(*lowest, value->value);
      out->points++;
    }
    if (bars == 0) continue;
    series++;
    fprintf(out->variables, "colours[%d] = %d\nnames[%d] = ", first + series, l + 1, first + series);
    char name[200];
    snprintf(name, sizeof name, "%.150s%s", side->input->labels[l], predicted ? " (predicted)" : "");
    vl_gnuplot_text(out->variables, name);
    fputc('\n', out->variables);
  }
  return series;
}

static void write_words(const Side *side, FigureData *out) {
  fputs("\n\n", out->data);
  for (int32_t g = 0; g < side->count; g++)
    for (int32_t l = 0; l < side->input->label_count; l++) {
      const Value *value = &side->groups[g].values[l];
      bool known = isfinite(value->value);
      double end = known ? (isfinite(value->high) ? value->high : value->value) : 0;
      fprintf(out->data, "%.9g %.9g ", place_of(side, g, l), end > 0 ? end : 0);
      vl_gnuplot_word(out->data, value->there ? value->word : "n/a");
      fputc('\n', out->data);
    }
  fputs("\n\n", out->data);
  for (int32_t g = 0; g < side->count; g++) {
    fprintf(out->data, "%.9g ", place_of(side, g, 0) + (side->input->label_count - 1) / 2.0);
    (void)vl_gnuplot_wrapped(out->data, side->groups[g].name, LABEL_COLUMNS);
    fputc('\n', out->data);
  }
}

static Status write_side(Side *side, const char *what, FigureData *out) {
  double highest = 0, lowest = 0;
  size_t longest = 0;
  for (int32_t l = 0; l < side->input->label_count; l++)
    if (strlen(side->input->labels[l]) > longest) longest = strlen(side->input->labels[l]);
  fprintf(out->variables, "array colours[%d]\narray names[%d]\n", 2 * VL_MAX_LABELS, 2 * VL_MAX_LABELS);
  int32_t measured = write_bars(side, false, out, 0, &highest, &lowest);
  int32_t predicted = write_bars(side, true, out, measured, &highest, &lowest);
  if (out->points > 0) write_words(side, out);
  double rows = place_of(side, side->count, 0) - 0.8;
  fprintf(out->variables,
          "measured = %d\npredicted = %d\nrows = %.9g\nxmax = %.9g\nxmin = %.9g\nkeys = %d\nkey_columns = "
          "%d\nbody = %.9g\n",
          measured, predicted, rows, highest > 0 ? 1.18 * highest : 1, lowest < 0 ? 1.3 * lowest : 0,
          measured + predicted, vl_figure_key_columns(longest + 2 * strlen(" (predicted)")), 26 * rows + 80);
  snprintf(out->subtitle, sizeof out->subtitle, "%s", what);
  if (side->left_out_count > 0)
    snprintf(out->note, sizeof out->note, "Not side by side: %s%s.", side->left_out,
             side->left_out_count > 4 ? "; ..." : "");
  if (out->points == 0 && out->note[0] == '\0')
    snprintf(out->note, sizeof out->note, "no label has such figures.");
  free(side->groups);
  return vl_ok();
}

Status vl_select_hardware(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  char name[64] = "", text[400];
  Side side = {.input = input, .workload = workload};
  const HardwareMetric *metric = NULL;
  (void)vl_option_text(options, "metric", name, sizeof name);
  for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
    if (strcmp(metrics[i].name, name) == 0) metric = &metrics[i];
  if (strcmp(name, "prediction-error") == 0) {
    gather_errors(&side);
    keep_common(&side);
    return write_side(
        &side, "predicted needed memory against what was measured, of the same cell on the same device", out);
  }
  if (!metric) return vl_error(VL_INVALID, "hardware: no metric '%s'", name);
  gather(&side, metric);
  keep_common(&side);
  if (strcmp(name, "speedup") == 0) divide_by_reference(&side);
  snprintf(text, sizeof text, "%s%s; lines: 95 %% interval of the median; hatched: predicted",
           metric->equal_batch ? "same recipe and global batch"
           : metric->best      ? "each at its best batch"
                               : "under the memory in the name, else each one's own",
           strcmp(name, "speedup") == 0 ? ", times the reference" : "");
  return write_side(&side, text, out);
}

/* ---- What speed costs in memory ------------------------------------------------------------------------------------------ */

typedef struct Point {
  double gib, rate;
} Point;

static int by_memory(const void *a, const void *b) {
  const Point *one = a, *other = b;
  if (one->gib < other->gib || one->gib > other->gib) return one->gib < other->gib ? -1 : 1;
  return (one->rate < other->rate) - (one->rate > other->rate);
}

/* Points of a label, then those that no other beats in both (its Pareto front), as blocks. */
static int32_t write_points(const Side *side, int32_t label, bool predicted, bool first, FigureData *out,
                            Point *most) {
  const RecordSet *records = &side->input->records;
  Point *points = vl_allocate((size_t)(records->count + 1) * sizeof *points);
  int32_t count = 0;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (label_of(side->input, record) != label || !is_ours(side, record, "cell") ||
        vl_record_is_predicted(record) != predicted || !vl_record_has_status(record, "ok"))
      continue;
    Point point = {real_of(record, "needed_bytes") * 0x1p-30, throughput_of(record).value};
    if (isfinite(point.gib) && isfinite(point.rate)) points[count++] = point;
  }
  qsort(points, (size_t)count, sizeof *points, by_memory);
  if (count > 0 && !first) fputs("\n\n", out->data);
  for (int32_t i = 0; i < count; i++) {
    fprintf(out->data, "%.9g %.9g\n", points[i].gib, points[i].rate);
    most->gib = fmax(most->gib, points[i].gib);
    most->rate = fmax(most->rate, points[i].rate);
    out->points++;
  }
  double best = 0;
  if (count > 0) fputs("\n\n", out->data);
  for (int32_t i = 0; i < count; i++)
    if (points[i].rate > best) {
      best = points[i].rate;
      fprintf(out->data, "%.9g %.9g\n", points[i].gib, points[i].rate);
    }
  free(points);
  return count;
}

Status vl_select_tradeoff(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  (void)options;
  Side side = {.input = input, .workload = workload};
  Point most = {0, 0};
  int32_t series = 0;
  size_t longest = 0;
  fprintf(out->variables, "array colours[%d]\narray names[%d]\narray points[%d]\n", 2 * VL_MAX_LABELS,
          2 * VL_MAX_LABELS, 2 * VL_MAX_LABELS);
  for (int32_t l = 0; l < input->label_count; l++)
    for (int32_t predicted = 0; predicted < 2; predicted++) {
      if (write_points(&side, l, predicted == 1, series == 0, out, &most) == 0) continue;
      char name[200];
      series++;
      snprintf(name, sizeof name, "%.150s%s", input->labels[l], predicted ? " (predicted)" : "");
      if (strlen(name) > longest) longest = strlen(name);
      fprintf(out->variables, "colours[%d] = %d\npoints[%d] = %d\nnames[%d] = ", series, l + 1, series,
              predicted ? 6 : 7, series);
      vl_gnuplot_text(out->variables, name);
      fputc('\n', out->variables);
    }
  fprintf(out->variables, "series = %d\nxmax = %.9g\nymax = %.9g\nkeys = %d\nkey_columns = %d\n", series,
          most.gib > 0 ? 1.08 * most.gib : 1, most.rate > 0 ? 1.08 * most.rate : 1, series,
          vl_figure_key_columns(longest));
  snprintf(out->subtitle, sizeof out->subtitle,
           "every recipe and batch that ran; line: what no other of the same label beats in both; hollow: "
           "predicted");
  if (out->points == 0) snprintf(out->note, sizeof out->note, "no label has both memory and speed.");
  return vl_ok();
}
