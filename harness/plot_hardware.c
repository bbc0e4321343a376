/* Figures of several stores side by side: machines, or versions, under labels. */
#include "harness/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 14, LABEL_COLUMNS = 27 };

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
      const SideValue *value = &side->groups[g].values[l];
      if (!isfinite(value->value) || value->predicted != predicted) continue;
      if (bars++ == 0 && first + series > 0) fputs("\n\n", out->data);
      bool interval = isfinite(value->low) && isfinite(value->high);
      fprintf(out->data, "%.9g", place_of(side, g, l));
      write_number(out->data, value->value);
      write_number(out->data, interval ? value->low : NAN);
      write_number(out->data, interval ? value->high : NAN);
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
      const SideValue *value = &side->groups[g].values[l];
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

/* The first of what is left out; a report names all. */
static void write_left_out(const Side *side, FigureData *out) {
  enum { MOST = 4 };
  size_t used = 0;
  int32_t more = side->left_out_count - MOST;
  for (int32_t i = 0; i < side->left_out_count && i < MOST; i++) {
    used = strlen(out->note);
    snprintf(out->note + used, sizeof out->note - used, "%s%.56s (%.48s)",
             used ? "; " : "Not side by side: ", side->left_out[i].name, side->left_out[i].why);
  }
  used = strlen(out->note);
  if (more > 0)
    snprintf(out->note + used, sizeof out->note - used, "; and %d more.", more);
  else if (used > 0)
    snprintf(out->note + used, sizeof out->note - used, ".");
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
  write_left_out(side, out);
  if (out->points == 0 && out->note[0] == '\0')
    snprintf(out->note, sizeof out->note, "no label has such figures.");
  return vl_ok();
}

static bool side_has_interval(const Side *side) {
  for (int32_t g = 0; g < side->count; g++)
    for (int32_t l = 0; l < side->input->label_count; l++)
      if (isfinite(side->groups[g].values[l].low) && isfinite(side->groups[g].values[l].high)) return true;
  return false;
}

Status vl_select_hardware(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  char name[64] = "", text[400];
  (void)vl_option_text(options, "metric", name, sizeof name);
  const SideMetric *metric = vl_side_metric(name);
  if (!metric) return vl_error(VL_INVALID, "hardware: no metric '%s'", name);
  Side side;
  vl_side_gather(input, workload, metric, &side);
  int32_t groups = side.count;
  if (groups > MOST_GROUPS) side.count = MOST_GROUPS;
  if (!metric->of)
    snprintf(text, sizeof text,
             "predicted needed memory against what was measured, of the same cell on the same device");
  else
    snprintf(text, sizeof text, "%s%s; %shatched: predicted",
             metric->equal_batch ? "same recipe and global batch"
             : metric->best      ? "each at its best batch"
                                 : "in the memory named, else all of it",
             strcmp(name, "speedup") == 0 ? ", times the reference" : "",
             side_has_interval(&side) ? "lines: 95 % interval of the median; " : "");
  if (groups > side.count) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "; the first %d of %d", side.count, groups);
  }
  Status status = write_side(&side, text, out);
  vl_side_clear(&side);
  return status;
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
    if (vl_side_label(side->input, record) != label || !vl_side_is_of(side->workload, record, "cell") ||
        vl_record_is_predicted(record) != predicted || !vl_record_has_status(record, "ok"))
      continue;
    double low, high;
    Point point = {vl_record_real(record, "needed_bytes") * 0x1p-30, vl_side_throughput(record, &low, &high)};
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
