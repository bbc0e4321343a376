/* Selection monitors: what the steps of monitored cells did to their numbers. */
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 8, NAME_BYTES = 132 }; /* as many as there are colours; recipe, batch and device */

/* A quantity of every step, in a panel of its own. */
typedef struct Quantity {
  const char *list; /* of the record */
  double scale;
  bool is_logarithmic;
} Quantity;
enum { LOSS, NORM, SCALE, FLUSHED, PANELS };
static const Quantity quantities[PANELS] = {[LOSS] = {"losses", 1, false},
                                            [NORM] = {"monitor_gradient_norm", 1, true},
                                            [SCALE] = {"monitor_loss_scale", 1, true},
                                            [FLUSHED] = {"monitor_flushed_share", 100, false}};

/* What is drawn in a panel. */
typedef struct Panel {
  bool has[MAX_CELLS];
  double low, high; /* low > high: nothing */
} Panel;

static size_t steps_of(const json_t *record) {
  return json_array_size(json_object_get(record, "monitor_loss_scale"));
}

static double at_step(const json_t *record, const char *list, size_t step) {
  const json_t *value = json_array_get(json_object_get(record, list), step);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool is_skipped(const json_t *record, size_t step) {
  return at_step(record, "monitor_skipped", step) > 0;
}

/* Without loss scaling the scale is 1 throughout: nothing to see. */
static bool is_scaled(const json_t *record) {
  for (size_t i = 0; i < steps_of(record); i++)
    if (at_step(record, "monitor_loss_scale", i) != 1.0) return true;
  return false;
}

/* One cell of a line at a batch, that of the most steps. */
static int32_t choose_cells(const RecordSet *cells, const json_t **chosen, FigureData *out) {
  int32_t count = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    int32_t j = 0;
    if (steps_of(record) < 2) continue;
    while (j < count && !vl_same_cell(chosen[j], record))
      j++;
    if (j == MAX_CELLS) {
      snprintf(out->note, sizeof(out->note), "only the first %d cells are drawn.", MAX_CELLS);
      break;
    }
    if (j == count || steps_of(record) > steps_of(chosen[j])) chosen[j] = record;
    count += j == count;
  }
  return count;
}

/* NaN where there is nothing to draw. */
static double drawn_value(const json_t *record, int32_t panel, size_t step) {
  const Quantity *its = &quantities[panel];
  double value = its->scale * at_step(record, its->list, step);
  if (!isfinite(value) || (its->is_logarithmic && value <= 0)) return NAN;
  return panel == SCALE && !is_scaled(record) ? NAN : value;
}

static void write_cell(const json_t *record, int32_t cell, Panel *panels, FigureData *out) {
  for (size_t i = 0; i < steps_of(record); i++) {
    fprintf(out->data, "%zu", i + 1);
    for (int32_t p = 0; p < PANELS; p++) {
      double value = drawn_value(record, p, i);
      fputc(' ', out->data);
      vl_gnuplot_number(out->data, value);
      if (isnan(value)) continue;
      panels[p].has[cell] = true;
      panels[p].low = fmin(panels[p].low, value);
      panels[p].high = fmax(panels[p].high, value);
      out->points++;
    }
    fprintf(out->data, " %d\n", is_skipped(record, i));
  }
  fputs("\n\n", out->data);
}

/* Whether a panel's axis is logarithmic: norms only where they differ much. */
static bool is_logarithmic(const Panel *panels, int32_t panel) {
  if (panel == NORM) return panels[NORM].high > 20 * panels[NORM].low;
  return quantities[panel].is_logarithmic;
}

/* The axes have room at their ends, so that they are never one and the same. */
static void write_ends(const Panel *panels, FILE *out) {
  fprintf(out, "wide = %d\n", is_logarithmic(panels, NORM));
  for (int32_t end = 0; end < 2; end++) {
    fprintf(out, "array %s[%d] = [", end == 0 ? "lows" : "highs", PANELS);
    for (int32_t p = 0; p < PANELS; p++) {
      double low = panels[p].low, high = panels[p].high;
      if (low > high) low = high = 1;
      double room = high > low ? 0.08 * (high - low) : 0.5 * fabs(high) + 0.1;
      bool factor = is_logarithmic(panels, p);
      double value = end == 0 ? (p == FLUSHED ? 0
                                 : factor     ? low / 2
                                              : low - room)
                     : factor ? high * 2
                              : high + room;
      fprintf(out, "%s%.9g", p > 0 ? ", " : "", value);
    }
    fputs("]\n", out);
  }
}

/* In each panel the numbers of its lines; gnuplot complains of empty ones. */
static void write_shown(const Panel *panels, int32_t cells, FILE *out) {
  int32_t drawn = 0;
  fprintf(out, "array shown[%d] = [", PANELS);
  for (int32_t p = 0; p < PANELS; p++) {
    fputs(p > 0 ? ", '" : "'", out);
    for (int32_t i = 0; i < cells; i++)
      if (panels[p].has[i]) fprintf(out, " %d", i + 1);
    fputc('\'', out);
    drawn += panels[p].low <= panels[p].high;
  }
  fprintf(out, "]\npanels = %d\nbody = 60 + 150 * panels\n", drawn);
}

/* What all cells have in common is said once, above; what they differ in, in their names. */
static void write_names(const json_t *const *cells, int32_t count, FigureData *out) {
  bool one_batch = true, one_device = true;
  size_t longest = 0;
  for (int32_t i = 1; i < count; i++) {
    one_batch = one_batch && vl_record_batch(cells[i]) == vl_record_batch(cells[0]);
    one_device = one_device && vl_same_device(cells[i], cells[0]);
  }
  fprintf(out->variables, "array names[%d] = [", count);
  for (int32_t i = 0; i < count; i++) {
    char recipe[VL_RECIPE_BYTES + 128], device[256] = "", batch[48] = "", name[NAME_BYTES + 1];
    vl_record_name(cells[i], recipe, sizeof(recipe));
    if (!one_device) vl_device_text(cells[i], device, sizeof(device));
    if (!one_batch) snprintf(batch, sizeof(batch), ", batch %lld", (long long)vl_record_batch(cells[i]));
    snprintf(name, sizeof(name), "%.60s%s%s%.*s", recipe, batch, one_device ? "" : ", ", 20, device);
    fputs(i > 0 ? ", " : "", out->variables);
    vl_gnuplot_text(out->variables, name);
    if (strlen(name) > longest) longest = strlen(name);
  }
  fprintf(out->variables, "]\nkey_columns = %d\n", vl_figure_key_columns(longest));
  char what[48] = "";
  if (one_batch) snprintf(what, sizeof(what), "batch %lld", (long long)vl_record_batch(cells[0]));
  if (one_device)
    vl_figure_subtitle(out, what, cells[0]);
  else
    snprintf(out->subtitle, sizeof(out->subtitle), "%s", what);
}

/* "2 4": the lines with skipped steps. Returns how many there are. */
static int32_t write_skipped(const json_t *const *cells, int32_t count, FILE *out) {
  int32_t skipping = 0;
  fputs("skips = '", out);
  for (int32_t i = 0; i < count; i++) {
    bool skips = false;
    for (size_t step = 0; step < steps_of(cells[i]); step++)
      skips = skips || (is_skipped(cells[i], step) && isfinite(drawn_value(cells[i], SCALE, step)));
    if (skips) fprintf(out, " %d", i + 1);
    skipping += skips;
  }
  fputs("'\n", out);
  return skipping;
}

Status vl_select_monitors(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  (void)options;
  Panel panels[PANELS];
  const json_t *chosen[MAX_CELLS];
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  int32_t count = choose_cells(&cells, chosen, out);
  size_t steps = 0;
  for (int32_t p = 0; p < PANELS; p++)
    panels[p] = (Panel){.low = INFINITY, .high = -INFINITY};
  fprintf(out->data, "# columns: step loss gradient_norm loss_scale flushed_percent skipped\n");
  for (int32_t i = 0; i < count; i++) {
    write_cell(chosen[i], i, panels, out);
    if (steps_of(chosen[i]) > steps) steps = steps_of(chosen[i]);
  }
  write_ends(panels, out->variables);
  write_shown(panels, count, out->variables);
  int32_t skipping = write_skipped(chosen, count, out->variables);
  fprintf(out->variables, "steps = %zu\nkeys = %d\n", steps, count + (skipping > 0));
  if (count > 0)
    write_names(chosen, count, out);
  else
    snprintf(out->note, sizeof(out->note), "no cell with two monitored steps (--monitor).");
  free(cells.records);
  return vl_ok();
}
