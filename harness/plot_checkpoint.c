/* Selection checkpoint: what each interval between checkpoints needs and costs, beside the theory's best. */
#include "harness/checkpoint_cells.h"
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many intervals of its job a cell's granularity has. */
static int32_t count_intervals(const RecordSet *cells, const json_t *like, Granularity granularity) {
  CheckpointCell its;
  int32_t count = 0;
  for (int32_t i = 0; i < cells->count; i++)
    count += vl_checkpoint_cell(cells->records[i], &its) && its.granularity == granularity &&
             vl_checkpoint_same_job(cells->records[i], like);
  return count;
}

/* The job to draw: the one with the most intervals, of equals a measured one. NULL: none has three. */
static const json_t *choose_job(const RecordSet *cells, Granularity granularity) {
  const json_t *best = NULL;
  int32_t most = 2;
  for (int32_t i = 0; i < cells->count; i++) {
    if (!vl_checkpoint_is_first(cells, i)) continue;
    int32_t count = count_intervals(cells, cells->records[i], granularity);
    bool measured =
        best != NULL && vl_record_is_predicted(best) && !vl_record_is_predicted(cells->records[i]);
    if (count < most || (count == most && !measured)) continue;
    most = count;
    best = cells->records[i];
  }
  return best;
}

static int compare_intervals(const void *a, const void *b) {
  CheckpointCell left, right;
  vl_checkpoint_cell(*(const json_t *const *)a, &left);
  vl_checkpoint_cell(*(const json_t *const *)b, &right);
  return (left.interval > right.interval) - (left.interval < right.interval);
}

/* One cell an interval, in order. free() the records. */
static RecordSet sorted_intervals(const RecordSet *cells, const json_t *like, Granularity granularity) {
  RecordSet chosen = {.records = vl_allocate(sizeof(json_t *) * (size_t)(cells->count + 1))};
  CheckpointCell its;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (vl_checkpoint_cell(record, &its) && its.granularity == granularity &&
        vl_checkpoint_same_job(record, like) &&
        vl_checkpoint_find(cells, like, granularity, its.interval) == record)
      chosen.records[chosen.count++] = record;
  }
  qsort(chosen.records, (size_t)chosen.count, sizeof(*chosen.records), compare_intervals);
  return chosen;
}

static double gib(const json_t *record, const char *column) {
  int64_t bytes = record != NULL ? vl_record_integer(record, column) : -1;
  return bytes >= 0 ? (double)bytes * 0x1p-30 : NAN;
}

/* What the points of a figure reach. */
typedef struct Reach {
  double interval, gib, share, least_share;
  double lowest_gib, best; /* lower ends; the interval there */
  bool timed, banded;
} Reach;

static void write_interval(const RecordSet *cells, const json_t *baseline, const json_t *record,
                           FigureData *out, Reach *reach) {
  CheckpointCell its;
  double low = NAN, high = NAN, measured = NAN, counted = vl_checkpoint_counted(record);
  vl_checkpoint_cell(record, &its);
  if (baseline != NULL) measured = vl_checkpoint_measured(cells, baseline, record, &low, &high);
  double values[] = {gib(record, "needed_bytes"),
                     gib(record, "needed_low_bytes"),
                     100 * counted,
                     100 * measured,
                     100 * low,
                     100 * high};
  fprintf(out->data, "%lld", (long long)its.interval);
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    fputc(' ', out->data);
    vl_gnuplot_number(out->data, values[i]);
  }
  fputc('\n', out->data);
  out->points += isfinite(values[0]);
  reach->interval = (double)its.interval;
  reach->gib = fmax(reach->gib, isfinite(values[0]) ? values[0] : 0);
  if (values[1] < reach->lowest_gib) {
    reach->lowest_gib = values[1];
    reach->best = (double)its.interval;
  }
  for (int i = 2; i < 6; i++) {
    reach->share = fmax(reach->share, isfinite(values[i]) ? values[i] : 0);
    reach->least_share = fmin(reach->least_share, isfinite(values[i]) ? values[i] : 0);
  }
  reach->timed = reach->timed || isfinite(measured);
  reach->banded = reach->banded || values[1] < values[0];
}

static void write_number(FILE *out, const char *name, double value) {
  fprintf(out, "%s = ", name);
  vl_gnuplot_number(out, value);
  fputc('\n', out);
}

Status vl_select_checkpoint(const PlotInput *input, const Workload *workload, const char *options,
                            FigureData *out) {
  char layer[16] = "block";
  (void)vl_option_text(options, "layer", layer, sizeof(layer));
  bool ops = strcmp(layer, "operator") == 0;
  Granularity granularity = ops ? CHECKPOINT_OPS : CHECKPOINT_BLOCKS;
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  const json_t *job = choose_job(&cells, granularity);
  Reach reach = {.share = 1, .lowest_gib = INFINITY};
  fprintf(out->data, "# columns: k needed_gib low_gib counted_percent measured_percent low high\n");
  if (job == NULL) {
    snprintf(out->note, sizeof(out->note), "no job has checkpoint=%sk at three intervals.",
             ops ? "ops:" : "");
  } else {
    RecordSet intervals = sorted_intervals(&cells, job, granularity);
    const json_t *baseline = vl_checkpoint_find(&cells, job, CHECKPOINT_NONE, 0);
    for (int32_t i = 0; i < intervals.count; i++)
      write_interval(&cells, baseline, intervals.records[i], out, &reach);
    double without = gib(baseline, "needed_bytes");
    reach.gib = fmax(reach.gib, isfinite(without) ? without : 0);
    char what[VL_RECIPE_BYTES + 128];
    vl_checkpoint_job_text(job, what, sizeof(what));
    vl_figure_subtitle(out, what, job);
    write_number(out->variables, "baseline_gib", without);
    write_number(out->variables, "model_gib",
                 gib(vl_checkpoint_find(&cells, job, CHECKPOINT_MODEL, 0), "needed_bytes"));
    double optimum =
        vl_record_real(intervals.records[0], ops ? "checkpoint_ops_optimum" : "checkpoint_blocks_optimum");
    write_number(out->variables, "optimum", optimum);
    snprintf(out->note, sizeof(out->note),
             "Lowest at k = %.0f; theory, for equal layers that pass on one tensor each, has k* = %.1f "
             "(below 1: every "
             "layer). What moves it: cuts inside blocks, through which several tensors pass; blocks of "
             "unequal size; "
             "the last run, which is not repeated.",
             reach.best, optimum);
    free(intervals.records);
  }
  fprintf(out->variables,
          "banded = %d\ntimed = %d\npredicted = %d\nbody = 560\nkmax = %.9g\nymax = %.9g\nsharemin = "
          "%.9g\nsharemax = "
          "%.9g\n",
          reach.banded, reach.timed, job != NULL && vl_record_is_predicted(job),
          reach.interval > 0 ? reach.interval : 1, reach.gib > 0 ? reach.gib * 1.15 : 1,
          reach.least_share * 1.1, reach.share * 1.3);
  free(cells.records);
  return vl_ok();
}
