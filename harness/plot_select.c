/* Selections over the batch: series of a quantity, stacked categories, growth with its fits. */
#include "harness/growth.h"
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const Selection selections[] = {
    {"series", vl_select_series},   {"categories", vl_select_categories}, {"growth", vl_select_growth},
    {"recipes", vl_select_recipes}, {"timeline", vl_select_timeline},
};

const Selection *vl_selection_find(const char *name) {
  for (size_t i = 0; i < sizeof(selections) / sizeof(selections[0]); i++)
    if (strcmp(selections[i].name, name) == 0) return &selections[i];
  return NULL;
}

const char *vl_selection_names(void) { return "series, categories, growth, recipes, timeline"; }

bool vl_option_text(const char *options, const char *key, char *text, size_t size) {
  size_t length = strlen(key);
  while (*options != '\0') {
    size_t word = strcspn(options, " ");
    if (word > length && strncmp(options, key, length) == 0 && options[length] == '=') {
      snprintf(text, size, "%.*s", (int)(word - length - 1), options + length + 1);
      return true;
    }
    options += word;
    options += strspn(options, " ");
  }
  return false;
}

void vl_gnuplot_text(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text != '\0'; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', out);
    fputc(*text == '\n' ? ' ' : *text, out);
  }
  fputc('"', out);
}

void vl_gnuplot_word(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text != '\0'; text++)
    fputc(*text == '"' ? '\'' : *text == '\\' ? '/' : *text == '\n' ? ' ' : *text, out);
  fputc('"', out);
}

void vl_gnuplot_number(FILE *out, double value) {
  if (isfinite(value))
    fprintf(out, "%.9g", value);
  else
    fputs("NaN", out);
}

/* ---- Series --------------------------------------------------------------------------------------------------------- */

/* One line of a figure: a recipe on a device. */
typedef struct Line {
  const json_t *first;
  char name[192];
  int colour; /* by recipe, so that measured and predicted of one recipe share it */
} Line;

enum { MAX_LINES = 24, MAX_MARKS = 64 };

static const char *recipe_of(const json_t *record) {
  const char *recipe = vl_record_text(record, "recipe");
  return recipe != NULL ? recipe : "unnamed";
}

/* Whether a cell can stand in a figure over the batch: under a capacity it is another question. */
static bool is_plotted(const json_t *record) { return vl_record_integer(record, "capacity_bytes") <= 0; }

static bool on_line(const Line *line, const json_t *record) {
  return strcmp(recipe_of(line->first), recipe_of(record)) == 0 && vl_same_device(line->first, record);
}

/* Lines in order of appearance, and how many were left out. */
static int32_t lines_of(const RecordSet *cells, Line *lines, int32_t *left_out) {
  int32_t count = 0, colours = 0;
  bool several = false;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    bool known = false;
    int colour = 0;
    for (int32_t j = 0; j < count; j++) {
      known = known || on_line(&lines[j], record);
      if (strcmp(recipe_of(lines[j].first), recipe_of(record)) == 0) colour = lines[j].colour;
      several = several || (!vl_same_device(lines[j].first, record) &&
                            vl_record_is_predicted(lines[j].first) == vl_record_is_predicted(record));
    }
    if (known || !is_plotted(record)) continue;
    if (count == MAX_LINES) {
      *left_out += 1;
      continue;
    }
    lines[count++] = (Line){.first = record, .colour = colour > 0 ? colour : ++colours};
  }
  for (int32_t j = 0; j < count; j++) {
    const char *profile = vl_record_text(lines[j].first, "profile");
    const char *device = profile != NULL ? profile : vl_record_text(lines[j].first, "device_name");
    snprintf(lines[j].name, sizeof(lines[j].name), "%s%s%s%s", recipe_of(lines[j].first),
             vl_record_is_predicted(lines[j].first) ? " (predicted)" : "", several ? ", " : "",
             several && device != NULL ? device : "");
  }
  return count;
}

/* A quantity of a cell: scaled, NaN when unknown, and never the speed of an emulated cell. */
static double value_of(const json_t *record, const char *column, double scale) {
  const Column *its = vl_column_find(column);
  bool is_speed = its != NULL && its->type == COLUMN_REAL;
  if (!vl_record_has_status(record, "ok") || (is_speed && vl_record_is_emulated(record))) return NAN;
  if (is_speed) return vl_record_real(record, column) * scale;
  int64_t integer = vl_record_integer(record, column);
  return integer >= 0 ? (double)integer * scale : NAN;
}

/* Ends of the throughput's interval, from those of the step time: the faster end of one is the slower of the
 * other. NaN with fewer than 6 samples. */
static void interval_of(const json_t *record, const char *column, double *low, double *high) {
  *low = *high = NAN;
  double step = vl_record_real(record, "step_s"), value = value_of(record, column, 1);
  double step_low = vl_record_real(record, "step_s_low"), step_high = vl_record_real(record, "step_s_high");
  if (strcmp(column, "samples_per_s") != 0 || !isfinite(value) || !(step_low > 0) || !(step_high > 0)) return;
  *low = value * step / step_high;
  *high = value * step / step_low;
}

/* gnuplot arrays of what varies from line to line. */
static void write_lines(FILE *out, const Line *lines, int32_t count) {
  size_t longest = 0;
  for (int32_t i = 0; i < count; i++)
    if (strlen(lines[i].name) > longest) longest = strlen(lines[i].name);
  fprintf(out, "series = %d\nkeys = series\nkey_columns = %d\n", count, longest > 40 ? 1 : 2);
  if (count == 0) return;
  fprintf(out, "array names[%d] = [", count);
  for (int32_t i = 0; i < count; i++) {
    fputs(i > 0 ? ", " : "", out);
    vl_gnuplot_text(out, lines[i].name);
  }
  fprintf(out, "]\narray colours[%d] = [", count);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "%s%d", i > 0 ? ", " : "", (lines[i].colour - 1) % 8 + 1);
  /* Filled and hollow forms of one shape are neighbours in gnuplot's point types. */
  static const int filled[8] = {7, 5, 9, 13, 11, 15, 7, 5};
  fprintf(out, "]\narray points[%d] = [", count);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "%s%d", i > 0 ? ", " : "",
            filled[(lines[i].colour - 1) % 8] - (vl_record_is_predicted(lines[i].first) ? 1 : 0));
  fprintf(out, "]\narray dashes[%d] = [", count);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "%s%d", i > 0 ? ", " : "",
            vl_record_is_predicted(lines[i].first) ? 3
            : (lines[i].colour - 1) % 3 == 0       ? 1
                                                   : (lines[i].colour - 1) % 3 + 3);
  fputs("]\n", out);
}

/* A cell that did not run says so where it would have stood: arrays of labels. */
static void write_marks(const RecordSet *cells, const Line *lines, int32_t count, double top, FILE *out) {
  const json_t *marked[MAX_MARKS];
  int32_t line_of[MAX_MARKS], marks = 0;
  for (int32_t j = 0; j < count; j++)
    for (int32_t i = 0; i < cells->count && marks < MAX_MARKS; i++) {
      const json_t *record = cells->records[i];
      if (!on_line(&lines[j], record) || !is_plotted(record) || vl_record_has_status(record, "ok")) continue;
      line_of[marks] = j;
      marked[marks++] = record;
    }
  fprintf(out, "marks = %d\n", marks);
  if (marks == 0) return;
  fprintf(out, "array mark_texts[%d] = [", marks);
  for (int32_t m = 0; m < marks; m++) {
    const char *status = vl_record_text(marked[m], "status");
    fputs(m > 0 ? ", " : "", out);
    vl_gnuplot_text(out, status == NULL ? "?" : strcmp(status, "oom") == 0 ? "OOM" : status);
  }
  fprintf(out, "]\narray mark_x[%d] = [", marks);
  for (int32_t m = 0; m < marks; m++)
    fprintf(out, "%s%lld", m > 0 ? ", " : "", (long long)vl_record_batch(marked[m]));
  fprintf(out, "]\narray mark_y[%d] = [", marks);
  for (int32_t m = 0; m < marks; m++)
    fprintf(out, "%s%.9g", m > 0 ? ", " : "", top * (0.97 - 0.05 * (double)(line_of[m] % 8)));
  fprintf(out, "]\narray mark_colours[%d] = [", marks);
  for (int32_t m = 0; m < marks; m++)
    fprintf(out, "%s%d", m > 0 ? ", " : "", (lines[line_of[m]].colour - 1) % 8 + 1);
  fputs("]\n", out);
}

static int compare_batches(const void *a, const void *b) {
  int64_t left = vl_record_batch(*(const json_t *const *)a),
          right = vl_record_batch(*(const json_t *const *)b);
  return (left > right) - (left < right);
}

Status vl_select_series(const PlotInput *input, const Workload *workload, const char *options,
                        FigureData *out) {
  char column[64] = "", unit[32] = "";
  if (!vl_option_text(options, "y", column, sizeof(column)) || vl_column_find(column) == NULL)
    return vl_error(VL_INVALID, "selection series: y=\"%s\" is no column of the results", column);
  double scale =
      vl_option_text(options, "unit", unit, sizeof(unit)) && strcmp(unit, "GiB") == 0 ? 0x1p-30 : 1;
  RecordSet cells = vl_select_workload(&input->records, workload);
  qsort(cells.records, (size_t)cells.count, sizeof(*cells.records), compare_batches);
  Line lines[MAX_LINES];
  int32_t left_out = 0, count = lines_of(&cells, lines, &left_out), kept = 0;
  double top = 0, right = 0, left = INFINITY;
  fprintf(out->data, "# columns: recipe batch value low high\n");
  for (int32_t j = 0; j < count; j++) {
    int64_t finite = 0;
    for (int32_t i = 0; i < cells.count; i++)
      finite += on_line(&lines[j], cells.records[i]) && isfinite(value_of(cells.records[i], column, scale));
    /* plan knows no speed of some devices: a line without a point would only lengthen the key. */
    if (finite == 0) continue;
    for (int32_t i = 0; i < cells.count; i++) {
      const json_t *record = cells.records[i];
      if (!on_line(&lines[j], record) || !is_plotted(record)) continue;
      double low, high, value = value_of(record, column, scale), batch = (double)vl_record_batch(record);
      interval_of(record, column, &low, &high);
      vl_gnuplot_word(out->data, lines[j].name);
      fprintf(out->data, " %.9g ", batch);
      vl_gnuplot_number(out->data, value);
      fputc(' ', out->data);
      vl_gnuplot_number(out->data, low);
      fputc(' ', out->data);
      vl_gnuplot_number(out->data, high);
      fputc('\n', out->data);
      right = fmax(right, batch);
      left = fmin(left, batch);
      out->points += isfinite(value);
      if (isfinite(value)) top = fmax(top, fmax(value, isfinite(high) ? high : value));
    }
    fputs("\n\n", out->data);
    lines[kept++] = lines[j];
  }
  double ceiling = top > 0 ? top * 1.15 : 1;
  write_lines(out->variables, lines, kept);
  write_marks(&cells, lines, kept, ceiling, out->variables);
  fprintf(out->variables, "xmax = %.9g\nymax = %.9g\n", right > 0 ? right * 1.04 : 1, ceiling);
  out->sparse = left >= right;
  if (left_out > 0) snprintf(out->note, sizeof(out->note), "%d further lines are left out.", left_out);
  free(cells.records);
  return vl_ok();
}

/* ---- Categories over the batch ------------------------------------------------------------------------------------------- */

/* For each batch the measured cell where it ran, else the predicted one, else the one that failed. */
static const json_t *best_at(const RecordSet *cells, const char *recipe, int64_t batch) {
  const json_t *best = NULL;
  int best_rank = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (vl_record_batch(record) != batch || strcmp(recipe_of(record), recipe) != 0 || !is_plotted(record))
      continue;
    bool ok = vl_record_has_status(record, "ok");
    int rank = ok ? (vl_record_is_predicted(record) ? 2 : 3) : 1;
    if (rank > best_rank) {
      best_rank = rank;
      best = record;
    }
  }
  return best;
}

Status vl_select_categories(const PlotInput *input, const Workload *workload, const char *options,
                            FigureData *out) {
  char recipe[VL_RECIPE_BYTES] = "baseline";
  (void)vl_option_text(options, "recipe", recipe, sizeof(recipe));
  RecordSet cells = vl_select_workload(&input->records, workload);
  qsort(cells.records, (size_t)cells.count, sizeof(*cells.records), compare_batches);
  int64_t last = -1;
  int32_t bars = 0;
  double top = 0;
  fprintf(out->data, "# columns: batch label");
  for (int32_t p = 0; p < VL_PART_COUNT; p++)
    fprintf(out->data, " %s", vl_part_name(p));
  fprintf(out->data, " (GiB)\n");
  for (int32_t i = 0; i < cells.count; i++) {
    int64_t batch = vl_record_batch(cells.records[i]);
    const json_t *record = batch != last ? best_at(&cells, recipe, batch) : NULL;
    last = batch;
    if (record == NULL) continue;
    bool ok = vl_record_has_status(record, "ok");
    MemoryParts parts = vl_record_parts(record);
    char label[96];
    const char *status = vl_record_text(record, "status");
    snprintf(label, sizeof(label), "%lld%s", (long long)batch,
             ok                           ? (vl_record_is_predicted(record) ? "*" : "")
             : strcmp(status, "oom") == 0 ? " OOM"
                                          : " skipped");
    fprintf(out->data, "%lld ", (long long)batch);
    vl_gnuplot_word(out->data, label);
    double sum = 0;
    for (int32_t p = 0; p < VL_PART_COUNT; p++) {
      double gib = ok && parts.bytes[p] >= 0 ? (double)parts.bytes[p] * 0x1p-30 : NAN;
      fputc(' ', out->data);
      vl_gnuplot_number(out->data, gib);
      out->points += isfinite(gib);
      sum += isfinite(gib) ? gib : 0;
    }
    fputc('\n', out->data);
    top = fmax(top, sum);
    bars++;
  }
  out->sparse = bars < 2;
  fprintf(out->variables, "recipe = ");
  vl_gnuplot_text(out->variables, recipe);
  fprintf(out->variables, "\nbars = %d\nymax = %.9g\nkeys = 9\nparts = %d\narray parts_names[%d] = [", bars,
          top > 0 ? top * 1.1 : 1, VL_PART_COUNT, VL_PART_COUNT);
  for (int32_t p = 0; p < VL_PART_COUNT; p++)
    fprintf(out->variables, "%s\"%s\"", p > 0 ? ", " : "", vl_part_name(p));
  fputs("]\n", out->variables);
  free(cells.records);
  return vl_ok();
}

/* ---- Growth with its fits ------------------------------------------------------------------------------------------------ */

/* Points of one recipe on one device: the device with the most of them, measured before predicted of equals.
 */
static RecordSet growth_points(const RecordSet *cells, const char *recipe) {
  RecordSet best = {.records = vl_allocate(sizeof(json_t *) * (size_t)(cells->count + 1))};
  const json_t **candidate = vl_allocate(sizeof(json_t *) * (size_t)(cells->count + 1));
  for (int32_t i = 0; i < cells->count; i++) {
    int32_t count = 0;
    for (int32_t j = 0; j < cells->count; j++) {
      const json_t *record = cells->records[j];
      if (strcmp(recipe_of(record), recipe) == 0 && is_plotted(record) &&
          vl_same_device(record, cells->records[i]) && isfinite(value_of(record, "needed_bytes", 1)))
        candidate[count++] = record;
    }
    bool better = count == best.count && count > 0 && vl_record_is_predicted(best.records[0]) &&
                  !vl_record_is_predicted(candidate[0]);
    if (count <= best.count && !better) continue;
    memcpy(best.records, candidate, sizeof(*candidate) * (size_t)count);
    best.count = count;
  }
  free(candidate);
  return best;
}

static void write_fits(const GrowthPoint *points, int32_t count, double fit_at_most, FILE *out) {
  for (int shape = 0; shape < GROWTH_SHAPE_COUNT; shape++) {
    GrowthFit fit = vl_growth_fit((GrowthShape)shape, points, count, fit_at_most);
    const char *name = vl_growth_name((GrowthShape)shape);
    fprintf(out, "%s_fitted = %d\n%s_a = ", name, fit.fitted, name);
    vl_gnuplot_number(out, fit.a);
    fprintf(out, "\n%s_b = ", name);
    vl_gnuplot_number(out, fit.b);
    if (isnan(fit.held_out_error))
      fprintf(out, "\n%s_title = \"%s\"\n", name, name);
    else
      fprintf(out, "\n%s_title = \"%s (held-out error %.*f %%)\"\n", name, name,
              fit.held_out_error < 0.1 ? 2 : 0, 100 * fit.held_out_error);
  }
}

Status vl_select_growth(const PlotInput *input, const Workload *workload, const char *options,
                        FigureData *out) {
  char recipe[VL_RECIPE_BYTES] = "baseline", text[32] = "128";
  (void)vl_option_text(options, "recipe", recipe, sizeof(recipe));
  (void)vl_option_text(options, "fit_at_most", text, sizeof(text));
  double fit_at_most = strtod(text, NULL), top = 0, right = 0;
  RecordSet cells = vl_select_workload(&input->records, workload);
  RecordSet chosen = growth_points(&cells, recipe);
  qsort(chosen.records, (size_t)chosen.count, sizeof(*chosen.records), compare_batches);
  GrowthPoint *points = vl_allocate(sizeof(GrowthPoint) * (size_t)(chosen.count + 1));
  fprintf(out->data, "# columns: batch needed_gib held_out\n");
  int32_t held_out = 0;
  for (int32_t i = 0; i < chosen.count; i++) {
    points[i] = (GrowthPoint){.batch = (double)vl_record_batch(chosen.records[i]),
                              .bytes = value_of(chosen.records[i], "needed_bytes", 1)};
    held_out += points[i].batch > fit_at_most;
    fprintf(out->data, "%.9g %.9g %d\n", points[i].batch, points[i].bytes * 0x1p-30,
            points[i].batch > fit_at_most);
    top = fmax(top, points[i].bytes * 0x1p-30);
    right = fmax(right, points[i].batch);
  }
  GrowthFit affine = vl_growth_fit(GROWTH_AFFINE, points, chosen.count, fit_at_most);
  if (affine.fitted && held_out > 0)
    out->points = chosen.count;
  else
    snprintf(out->note, sizeof(out->note), "needs three batches up to %g and one above it; %s has %d and %d.",
             fit_at_most, recipe, chosen.count - held_out, held_out);
  write_fits(points, chosen.count, fit_at_most, out->variables);
  char device[256] = "";
  if (chosen.count > 0) vl_device_text(chosen.records[0], device, sizeof(device));
  fprintf(out->variables, "keys = 5\npredicted = %d\nfit_at_most = %.9g\nxmax = %.9g\nymax = %.9g\nrecipe = ",
          chosen.count > 0 && vl_record_is_predicted(chosen.records[0]), fit_at_most, right * 1.04,
          top > 0 ? 1.3 * top : 1);
  vl_gnuplot_text(out->variables, recipe);
  fputc('\n', out->variables);
  free(points);
  free(chosen.records);
  free(cells.records);
  return vl_ok();
}
