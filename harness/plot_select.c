/* Selections over the batch: series of a quantity, stacked categories, growth with its fits. */
#include "harness/growth.h"
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const Selection selections[] = {
    {"series", vl_select_series},
    {"categories", vl_select_categories},
    {"growth", vl_select_growth},
    {"recipes", vl_select_recipes},
    {"timeline", vl_select_timeline},
    {"parts", vl_select_parts},
    {"checkpoint", vl_select_checkpoint},
    {"heap-map", vl_select_heap_map},
    {"fragmentation", vl_select_fragmentation},
    {"monitors", vl_select_monitors},
    {"factorial", vl_select_factorial},
    {"effects", vl_select_effects},
    {"hardware", vl_select_hardware},
    {"tradeoff", vl_select_tradeoff},
};

const Selection *vl_selection_find(const char *name) {
  for (size_t i = 0; i < sizeof(selections) / sizeof(selections[0]); i++)
    if (strcmp(selections[i].name, name) == 0) return &selections[i];
  return NULL;
}

const char *vl_selection_names(void) {
  return "series, categories, growth, recipes, timeline, parts, checkpoint, heap-map, fragmentation, "
         "monitors, factorial, effects, hardware, tradeoff";
}

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

int vl_figure_key_columns(size_t longest_name) { return longest_name > 38 ? 1 : 2; }

double vl_figure_reach(double longest_bar, double farthest_end) {
  return fmax(longest_bar, fmin(farthest_end, 2 * longest_bar));
}

void vl_figure_subtitle(FigureData *figure, const char *what, const json_t *record) {
  char device[256];
  vl_device_text(record, device, sizeof(device));
  int length =
      snprintf(figure->subtitle, sizeof(figure->subtitle), "%.300s%s%s %s", what, what[0] != '\0' ? ", " : "",
               vl_record_is_predicted(record) ? "predicted for" : "measured on", device);
  /* Where two lines are needed, the second is the device's. */
  if (length > VL_SUBTITLE_COLUMNS && what[0] != '\0') figure->subtitle[strnlen(what, 300) + 1] = '\n';
}

/* ---- Series --------------------------------------------------------------------------------------------------------- */

/* One line of a figure: a recipe on a device. */
typedef struct Line {
  const json_t *first;
  char name[VL_RECIPE_BYTES + 256];
  int colour; /* by recipe, so that measured and predicted of one recipe share it, unless they are of several
                 devices of a kind; peers have their own */
} Line;

enum { MAX_LINES = 24, MAX_MARKS = 64, MARK_ROWS = 8 };
enum { MANY_LINES = 12 }; /* of which single points are not told apart */
/* A name in the key, as wide as the svg terminal takes, and what is left of its beginning and end. */
enum { KEY_BYTES = 76, KEY_BEGIN_BYTES = 44, KEY_END_BYTES = KEY_BYTES - KEY_BEGIN_BYTES - 5 };

static const char *recipe_of(const json_t *record) {
  const char *recipe = vl_record_text(record, "recipe");
  return recipe != NULL ? recipe : "unnamed";
}

/* Whether a cell can stand in a figure over the batch: under a capacity it is another question. */
static bool is_plotted(const json_t *record) { return vl_record_integer(record, "capacity_bytes") <= 0; }

static bool on_line(const Line *line, const json_t *record) { return vl_same_line(line->first, record); }

/* A quantity of a cell: scaled, NaN when unknown, and never the speed of an emulated cell. */
static double value_of(const json_t *record, const char *column, double scale) {
  const Column *its = vl_column_find(column);
  bool is_speed = its != NULL && its->type == COLUMN_REAL;
  if (!vl_record_has_status(record, "ok") || (is_speed && vl_record_is_emulated(record))) return NAN;
  if (is_speed) return vl_record_real(record, column) * scale;
  int64_t integer = vl_record_integer(record, column);
  return integer >= 0 ? (double)integer * scale : NAN;
}

/* Lines with a value, in order of appearance; plan, for one, knows no speed of some devices. */
static int32_t lines_of(const RecordSet *cells, const char *column, Line *lines, FigureData *out) {
  int32_t count = 0, colours[2] = {0, 0};
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (!is_plotted(record) || !isfinite(value_of(record, column, 1))) continue;
    bool known = false, peer = vl_record_is_peer(record);
    int colour = 0;
    for (int32_t j = 0; j < count; j++) {
      known = known || on_line(&lines[j], record);
      if (!peer && !vl_record_is_peer(lines[j].first) &&
          strcmp(recipe_of(lines[j].first), recipe_of(record)) == 0)
        colour = lines[j].colour;
    }
    if (known) continue;
    if (count == MAX_LINES) {
      snprintf(out->note, sizeof(out->note), "only the first %d lines are drawn.", MAX_LINES);
      break;
    }
    lines[count++] = (Line){.first = record, .colour = colour > 0 ? colour : ++colours[peer]};
  }
  return count;
}

/* Whether a line has cells of several batches. */
static bool is_long(const RecordSet *cells, const Line *line) {
  for (int32_t i = 0; i < cells->count; i++)
    if (on_line(line, cells->records[i]) &&
        vl_record_batch(cells->records[i]) != vl_record_batch(line->first))
      return true;
  return false;
}

/* Of many lines over several batches, those that are single points are left to the figure of recipes; how
 * many remain. */
static int32_t leave_out_points(const RecordSet *cells, Line *lines, int32_t count, FigureData *out) {
  bool several = false;
  for (int32_t i = 0; i < count; i++)
    several = several || is_long(cells, &lines[i]) ||
              vl_record_batch(lines[i].first) != vl_record_batch(lines[0].first);
  if (count <= MANY_LINES || !several) return count;
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++)
    if (is_long(cells, &lines[i])) lines[kept++] = lines[i];
  if (kept < count)
    snprintf(out->note, sizeof(out->note), "recipes that ran at one batch only are left out.");
  return kept;
}

/* What all lines have in common is said once, above; what they differ in, in their names. */
static void name_lines(Line *lines, int32_t count, FigureData *out) {
  bool one_device = true, one_a_kind = true;
  for (int32_t j = 0; j < count; j++)
    for (int32_t k = 0; k < j; k++) {
      bool same = vl_same_device(lines[j].first, lines[k].first);
      one_device = one_device && same;
      one_a_kind = one_a_kind &&
                   (same || vl_record_is_predicted(lines[j].first) != vl_record_is_predicted(lines[k].first));
    }
  int ours = 0;
  for (int32_t j = 0; j < count; j++) {
    const json_t *record = lines[j].first;
    if (!one_a_kind && !vl_record_is_peer(record)) lines[j].colour = ++ours; /* cards have to be told apart */
    const char *profile = vl_record_text(record, "profile");
    const char *device = profile != NULL ? profile : vl_record_text(record, "device_name");
    char name[VL_RECIPE_BYTES + 128];
    vl_record_name(record, name, sizeof(name));
    snprintf(lines[j].name, sizeof(lines[j].name), "%s%s%s%s", name,
             !one_device && vl_record_is_predicted(record) ? " (predicted)" : "",
             !one_a_kind && device != NULL ? ", " : "", !one_a_kind && device != NULL ? device : "");
  }
  if (one_device && count > 0) vl_figure_subtitle(out, "", lines[0].first);
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

/* Which of the style's linetypes: 1 to 8, and 9 to 12 of peers; further lines repeat them with other shapes.
 */
static int colour_of(const Line *line) {
  return vl_record_is_peer(line->first) ? (line->colour - 1) % 4 + 9 : (line->colour - 1) % 8 + 1;
}

/* gnuplot's point types: strokes for peers, then pairs, hollow for predicted, filled for measured. */
static int shape_of(const Line *line) {
  static const int filled[6] = {7, 5, 9, 13, 11, 15}, strokes[3] = {3, 2, 1};
  if (vl_record_is_peer(line->first)) return strokes[(line->colour - 1) % 3];
  int turn = (line->colour - 1) / 8;
  return filled[((line->colour - 1) % 8 + 2 * turn) % 6] - (vl_record_is_predicted(line->first) ? 1 : 0);
}

/* Dots for predicted beside measured; else dashes tell neighbours apart, and peers from ours. */
static int dash_of(const Line *line, bool any_measured) {
  if (vl_record_is_peer(line->first)) return 2;
  if (any_measured && vl_record_is_predicted(line->first)) return 3;
  int third = (line->colour - 1) % 3;
  return third == 0 ? 1 : third + 3;
}

/* gnuplot arrays of what varies from line to line. */
static void write_lines(FILE *out, const Line *lines, int32_t count) {
  size_t longest = 0;
  bool any_measured = false;
  for (int32_t i = 0; i < count; i++) {
    if (strlen(lines[i].name) > longest) longest = strlen(lines[i].name);
    any_measured = any_measured || !vl_record_is_predicted(lines[i].first);
  }
  fprintf(out, "series = %d\nkeys = series\nkey_columns = %d\n", count, vl_figure_key_columns(longest));
  if (count == 0) return;
  fprintf(out, "array names[%d] = [", count);
  for (int32_t i = 0; i < count; i++) {
    char name[KEY_BYTES + 8];
    size_t length = strlen(lines[i].name);
    if (length <= KEY_BYTES)
      snprintf(name, sizeof(name), "%.*s", KEY_BYTES, lines[i].name);
    else
      snprintf(name, sizeof(name), "%.*s ... %s", KEY_BEGIN_BYTES, lines[i].name,
               lines[i].name + length - KEY_END_BYTES);
    fputs(i > 0 ? ", " : "", out);
    vl_gnuplot_text(out, name);
  }
  fprintf(out, "]\narray colours[%d] = [", count);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "%s%d", i > 0 ? ", " : "", colour_of(&lines[i]));
  fprintf(out, "]\narray points[%d] = [", count);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "%s%d", i > 0 ? ", " : "", shape_of(&lines[i]));
  fprintf(out, "]\narray dashes[%d] = [", count);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "%s%d", i > 0 ? ", " : "", dash_of(&lines[i], any_measured));
  fputs("]\n", out);
}

/* A cell that did not run says so at its batch, above all that is drawn, each line's in a row of its own:
 * arrays of labels. Returns where the axis ends, with room for them. */
static double write_marks(const RecordSet *cells, const Line *lines, int32_t count, double top, FILE *out) {
  const json_t *marked[MAX_MARKS];
  int32_t line_of[MAX_MARKS], row_of[MAX_MARKS], marks = 0, rows = 0;
  for (int32_t j = 0; j < count; j++) {
    int32_t before = marks;
    for (int32_t i = 0; i < cells->count && marks < MAX_MARKS; i++) {
      const json_t *record = cells->records[i];
      if (!on_line(&lines[j], record) || !is_plotted(record) || vl_record_has_status(record, "ok")) continue;
      line_of[marks] = j;
      row_of[marks] = rows % MARK_ROWS;
      marked[marks++] = record;
    }
    rows += marks > before;
  }
  double ceiling = top > 0 ? top * 1.15 : 1;
  fprintf(out, "marks = %d\n", marks);
  if (marks == 0) return ceiling;
  ceiling = fmax(ceiling, top / (0.94 - 0.05 * (rows < MARK_ROWS ? rows : MARK_ROWS)));
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
    fprintf(out, "%s%.9g", m > 0 ? ", " : "", ceiling * (0.97 - 0.05 * row_of[m]));
  fprintf(out, "]\narray mark_colours[%d] = [", marks);
  for (int32_t m = 0; m < marks; m++)
    fprintf(out, "%s%d", m > 0 ? ", " : "", colour_of(&lines[line_of[m]]));
  fputs("]\n", out);
  return ceiling;
}

static int compare_batches(const void *a, const void *b) {
  int64_t left = vl_record_batch(*(const json_t *const *)a),
          right = vl_record_batch(*(const json_t *const *)b);
  return (left > right) - (left < right);
}

/* A value at one batch of a line; over repetitions their median and its interval. */
static Estimate estimate_at(const RecordSet *cells, const json_t *like, const char *column, double scale) {
  Estimate estimate = {.median = NAN, .low = NAN, .high = NAN};
  double *values = vl_allocate(sizeof(double) * (size_t)(cells->count + 1));
  int64_t count = 0;
  const json_t *last = NULL;
  for (int32_t i = 0; i < cells->count; i++) {
    double value = value_of(cells->records[i], column, scale);
    if (!isfinite(value) || !vl_same_cell(cells->records[i], like)) continue;
    values[count++] = value;
    last = cells->records[i];
  }
  if (count > 0) estimate = vl_statistics_estimate(values, count);
  if (count == 1) interval_of(last, column, &estimate.low, &estimate.high);
  free(values);
  return estimate;
}

/* Whether an earlier cell is a repetition of this one. */
static bool is_repetition(const RecordSet *cells, int32_t at) {
  for (int32_t i = at - 1;
       i >= 0 && vl_record_batch(cells->records[i]) == vl_record_batch(cells->records[at]); i--)
    if (vl_same_cell(cells->records[i], cells->records[at])) return true;
  return false;
}

Status vl_select_series(const PlotInput *input, const Workload *workload, const char *options,
                        FigureData *out) {
  char column[64] = "", unit[32] = "", only[32] = "";
  if (!vl_option_text(options, "y", column, sizeof(column)) || vl_column_find(column) == NULL)
    return vl_error(VL_INVALID, "selection series: y=\"%s\" is no column of the results", column);
  double scale =
      vl_option_text(options, "unit", unit, sizeof(unit)) && strcmp(unit, "GiB") == 0 ? 0x1p-30 : 1;
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_ALL);
  qsort(cells.records, (size_t)cells.count, sizeof(*cells.records), compare_batches);
  Line lines[MAX_LINES];
  int32_t count = lines_of(&cells, column, lines, out), peers = 0;
  count = leave_out_points(&cells, lines, count, out);
  for (int32_t j = 0; j < count; j++)
    peers += vl_record_is_peer(lines[j].first);
  if (peers == 0 && vl_option_text(options, "only", only, sizeof(only)) &&
      strcmp(only, "beside-peers") == 0) {
    snprintf(out->note, sizeof(out->note), "no cell of another engine (vramlab import).");
    count = 0;
  }
  name_lines(lines, count, out);
  double top = 0, right = 0, left = INFINITY;
  fprintf(out->data, "# columns: name batch value low high\n");
  for (int32_t j = 0; j < count; j++) {
    for (int32_t i = 0; i < cells.count; i++) {
      const json_t *record = cells.records[i];
      if (!on_line(&lines[j], record) || !is_plotted(record) || is_repetition(&cells, i)) continue;
      Estimate value = estimate_at(&cells, record, column, scale);
      double batch = (double)vl_record_batch(record);
      vl_gnuplot_word(out->data, lines[j].name);
      fprintf(out->data, " %.9g ", batch);
      vl_gnuplot_number(out->data, value.median);
      fputc(' ', out->data);
      vl_gnuplot_number(out->data, value.low);
      fputc(' ', out->data);
      vl_gnuplot_number(out->data, value.high);
      fputc('\n', out->data);
      right = fmax(right, batch);
      left = fmin(left, batch);
      out->points += isfinite(value.median);
      if (isfinite(value.median))
        top = fmax(top, isfinite(value.high) ? fmax(value.high, value.median) : value.median);
    }
    fputs("\n\n", out->data);
  }
  write_lines(out->variables, lines, count);
  double ceiling = write_marks(&cells, lines, count, top, out->variables);
  out->sparse = left >= right;
  /* A single batch stands in the middle. */
  fprintf(out->variables, "xmax = %.9g\nymax = %.9g\n", right > 0 ? right * (out->sparse ? 2 : 1.04) : 1,
          ceiling);
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
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  qsort(cells.records, (size_t)cells.count, sizeof(*cells.records), compare_batches);
  int64_t last = -1;
  int32_t bars = 0;
  bool predicted = false, used[VL_PART_COUNT] = {false};
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
    const char *mark = ok                           ? (vl_record_is_predicted(record) ? "*" : "")
                       : strcmp(status, "oom") == 0 ? " OOM"
                                                    : status;
    snprintf(label, sizeof(label), "%lld%s%s", (long long)batch, ok || *mark == ' ' ? "" : " ", mark);
    predicted = predicted || (ok && vl_record_is_predicted(record));
    fprintf(out->data, "%lld ", (long long)batch);
    vl_gnuplot_word(out->data, label);
    double sum = 0;
    for (int32_t p = 0; p < VL_PART_COUNT; p++) {
      double gib = ok && parts.bytes[p] >= 0 ? (double)parts.bytes[p] * 0x1p-30 : NAN;
      fputc(' ', out->data);
      vl_gnuplot_number(out->data, gib);
      out->points += isfinite(gib);
      used[p] = used[p] || gib > 0;
      sum += isfinite(gib) ? gib : 0;
    }
    fputc('\n', out->data);
    top = fmax(top, sum);
    bars++;
  }
  out->sparse = bars < 2;
  snprintf(out->subtitle, sizeof(out->subtitle), "%s", recipe);
  fprintf(out->variables, "bars = %d\npredicted = %d\nymax = %.9g\narray parts_names[%d] = [", bars,
          predicted, top > 0 ? top * 1.1 : 1, VL_PART_COUNT);
  for (int32_t p = 0; p < VL_PART_COUNT; p++)
    fprintf(out->variables, "%s\"%s\"", p > 0 ? ", " : "", vl_part_name(p));
  fputs("]\nused = \" ", out->variables);
  int32_t keys = 0;
  for (int32_t p = 0; p < VL_PART_COUNT; p++) {
    if (used[p]) fprintf(out->variables, "%d ", p + 1);
    keys += used[p];
  }
  fprintf(out->variables, "\"\nkeys = %d\n", keys);
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
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
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
  if (chosen.count > 0) vl_figure_subtitle(out, recipe, chosen.records[0]);
  fprintf(out->variables, "keys = 5\npredicted = %d\nfit_at_most = %.9g\nxmax = %.9g\nymax = %.9g\n",
          chosen.count > 0 && vl_record_is_predicted(chosen.records[0]), fit_at_most, right * 1.04,
          top > 0 ? 1.3 * top : 1);
  free(points);
  free(chosen.records);
  free(cells.records);
  return vl_ok();
}
