/* Figures of several stores side by side: machines, or versions, under labels. */
#include "harness/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BARS = 40, LABEL_COLUMNS = 27 };
/* Names of the key that stand two in a row: gnuplot takes a key to be as narrow as the plot. */
enum { KEY_NAME_COLUMNS = 22 };

/* Of what is drawn, the widths in 1/800 of the figure's: of the plot (plots/compare-bars.gp), and of a
 * character. */
enum { PLOT_WIDTH = 536, CHARACTER_WIDTH = 8 };

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

static void write_number(FILE *out, double value) {
  fputc(' ', out);
  vl_gnuplot_number(out, value);
}

/* Which bar of its group a label has; one that has a cell in none of the groups has no place in them. Groups
 * are so many bars apart that the longest name has room. */
typedef struct Places {
  int32_t of[VL_MAX_LABELS], count;
  double pitch;
} Places;

enum { BAR_PIXELS = 26, LINE_PIXELS = 17 };

static int32_t lines_of(const char *name) {
  char *text = NULL;
  size_t size = 0;
  FILE *scratch = open_memstream(&text, &size);
  int32_t lines = vl_gnuplot_wrapped(scratch, name, LABEL_COLUMNS);
  fclose(scratch);
  free(text);
  return lines;
}

static Places find_places(const Side *side) {
  Places places = {.count = 0};
  for (int32_t l = 0; l < side->input->label_count; l++) {
    bool any = false;
    for (int32_t g = 0; g < side->count; g++)
      any = any || side->groups[g].values[l].record;
    places.of[l] = any ? places.count++ : -1;
  }
  places.pitch = places.count + 0.8;
  for (int32_t g = 0; g < side->count; g++)
    places.pitch = fmax(places.pitch, (lines_of(side->groups[g].name) + 0.5) * LINE_PIXELS / BAR_PIXELS);
  return places;
}

/* Where the bars of a group stand: groups one below the other. */
static double top_of(const Places *places, int32_t group) { return group * places->pitch; }

/* What the bars reach from and to, with their intervals, and the longest word beside one. */
typedef struct Reach {
  double low, high;
  size_t word;
} Reach;

static bool has_interval(const SideValue *value) { return isfinite(value->low) && isfinite(value->high); }

static Reach reach_of(const Side *side) {
  Reach reach = {0, 0, 0};
  double end = 0;
  for (int32_t g = 0; g < side->count; g++)
    for (int32_t l = 0; l < side->input->label_count; l++) {
      const SideValue *value = &side->groups[g].values[l];
      size_t word = strlen(value->word);
      reach.word = word > reach.word ? word : reach.word;
      if (!isfinite(value->value)) continue;
      reach.high = fmax(reach.high, value->value);
      if (has_interval(value)) end = fmax(end, value->high);
      reach.low = fmin(reach.low, has_interval(value) ? value->low : value->value);
    }
  reach.high = vl_figure_reach(reach.high, end);
  return reach;
}

/* A name of the key: what a label's marks are. Returns its width. */
static size_t write_key(const PlotInput *input, int32_t label, const char *what, int32_t series,
                        FigureData *out) {
  char name[200];
  snprintf(name, sizeof name, "%.150s (%s)", input->labels[label], what);
  fprintf(out->variables, "colours[%d] = %d\nnames[%d] = ", series, label + 1, series);
  vl_gnuplot_text(out->variables, name);
  fputc('\n', out->variables);
  return vl_display_columns(name, SIZE_MAX);
}

/* The bars of a label that have one provenance, as a block of data. Returns how many. */
static int32_t write_bars(const Side *side, const Places *places, int32_t label, SideProvenance provenance,
                          bool first, FigureData *out) {
  int32_t bars = 0;
  double most = reach_of(side).high;
  for (int32_t g = 0; g < side->count; g++) {
    const SideValue *value = &side->groups[g].values[label];
    if (!isfinite(value->value) || value->provenance != provenance) continue;
    if (bars++ == 0 && !first) fputs("\n\n", out->data);
    fprintf(out->data, "%.9g", top_of(places, g) + places->of[label]);
    write_number(out->data, value->value);
    write_number(out->data, has_interval(value) ? value->low : NAN);
    write_number(out->data, has_interval(value) ? fmin(value->high, most) : NAN);
    fputc('\n', out->data);
    out->points++;
  }
  return bars;
}

/* No bar tells of it where it is from. */
static bool failed_on_paper(const SideValue *value) {
  return value->record && !isfinite(value->value) && value->provenance != SIDE_MEASURED &&
         strcmp(value->word, "n/a") != 0;
}

static void write_words(const Side *side, const Places *places, FigureData *out) {
  double most = reach_of(side).high;
  fputs("\n\n", out->data);
  for (int32_t g = 0; g < side->count; g++)
    for (int32_t l = 0; l < side->input->label_count; l++) {
      if (places->of[l] < 0) continue;
      const SideValue *value = &side->groups[g].values[l];
      double end = !isfinite(value->value) ? 0 : has_interval(value) ? fmin(value->high, most) : value->value;
      fprintf(out->data, "%.9g %.9g ", top_of(places, g) + places->of[l], end > 0 ? end : 0);
      char word[VL_SIDE_WORD_BYTES + 16];
      snprintf(word, sizeof word, "%s", value->record ? value->word : "n/a");
      if (failed_on_paper(value))
        snprintf(word, sizeof word, "%s (%s)", value->word, vl_side_provenance_name(value->provenance));
      vl_gnuplot_word(out->data, word);
      fputc('\n', out->data);
    }
  fputs("\n\n", out->data);
  for (int32_t g = 0; g < side->count; g++) {
    fprintf(out->data, "%.9g ", top_of(places, g) + (places->count - 1) / 2.0);
    (void)vl_gnuplot_wrapped(out->data, side->groups[g].name, LABEL_COLUMNS);
    fputc('\n', out->data);
  }
}

/* The first of what is left out; a report names all. */
static void write_left_out(const Side *side, FigureData *out) {
  enum { MOST = 3 };
  int32_t more = side->left_out_count - MOST;
  for (int32_t i = 0; i < side->left_out_count && i < MOST; i++) {
    const SideLeftOut *entry = &side->left_out[i];
    size_t used = strlen(out->note);
    snprintf(out->note + used, sizeof out->note - used, "%s%.48s (%s: %.70s)",
             used ? "; " : "Not side by side: ", entry->name, entry->differs, entry->why);
  }
  size_t used = strlen(out->note);
  if (more > 0)
    snprintf(out->note + used, sizeof out->note - used, "; and %d more.", more);
  else if (used > 0)
    snprintf(out->note + used, sizeof out->note - used, ".");
}

static void write_side(const Side *side, FigureData *out) {
  int32_t series = 0, labels = side->input->label_count;
  Places places = find_places(side);
  size_t longest = 0;
  fprintf(out->variables, "array colours[%d]\narray names[%d]\narray patterns[%d]\n",
          SIDE_PROVENANCE_COUNT * VL_MAX_LABELS, SIDE_PROVENANCE_COUNT * VL_MAX_LABELS,
          SIDE_PROVENANCE_COUNT * VL_MAX_LABELS);
  for (int32_t l = 0; l < labels; l++) {
    static const int patterns[] = {3, 4, 0}; /* gnuplot's: solid, hatched, an outline */
    bool any = false;
    for (int p = SIDE_MEASURED; p < SIDE_PROVENANCE_COUNT; p++) {
      if (write_bars(side, &places, l, (SideProvenance)p, series == 0, out) == 0) continue;
      any = true;
      size_t width = write_key(side->input, l, vl_side_provenance_name((SideProvenance)p), ++series, out);
      longest = width > longest ? width : longest;
      fprintf(out->variables, "patterns[%d] = %d\n", series, patterns[p]);
    }
    if (any || side->count == 0) continue;
    /* A name of the key all the same, which says that nothing is known. Its bar is where none is seen. */
    fprintf(out->data, "%s-9 0 NaN NaN\n", series > 0 ? "\n\n" : "");
    size_t width = write_key(side->input, l, "n/a", ++series, out);
    longest = width > longest ? width : longest;
    fprintf(out->variables, "patterns[%d] = 0\n", series);
  }
  if (out->points > 0) write_words(side, &places, out);
  double rows = top_of(&places, side->count) - 0.8;
  Reach reach = reach_of(side);
  /* Beside the longest bar there is room for its word. */
  double room = fmin(0.5, (double)(CHARACTER_WIDTH * (reach.word + 2)) / PLOT_WIDTH);
  double left = 1.08 * reach.low, right = reach.high > 0 || reach.low < 0 ? reach.high : 1;
  fprintf(out->variables,
          "series = %d\nrows = %.9g\nxmax = %.9g\nxmin = %.9g\nkeys = %d\nkey_columns = %d\nbody = %.9g\n",
          series, rows, left + (right - left) / (1 - room), left, series, longest > KEY_NAME_COLUMNS ? 1 : 2,
          BAR_PIXELS * rows + 80);
  write_left_out(side, out);
  if (out->points == 0 && out->note[0] == '\0')
    snprintf(out->note, sizeof out->note, "%s",
             side->any_failed ? "no cell ran that two labels have: each is OOM or has another status."
                              : "no label has such figures.");
}

static bool side_has_interval(const Side *side) {
  for (int32_t g = 0; g < side->count; g++)
    for (int32_t l = 0; l < side->input->label_count; l++)
      if (has_interval(&side->groups[g].values[l])) return true;
  return false;
}

static void append(char *text, size_t size, const char *more) {
  size_t used = strlen(text);
  snprintf(text + used, size - used, "%s", more);
}

static bool compares(const Side *side, const SideGroup *group) {
  int32_t values = 0;
  for (int32_t l = 0; l < side->input->label_count; l++)
    values += isfinite(group->values[l].value);
  return values > 1;
}

static int32_t groups_of_recipe(const Side *side, int32_t group) {
  int32_t count = 0;
  for (int32_t g = 0; g < side->count; g++)
    count += strcmp(side->groups[g].recipe, side->groups[group].recipe) == 0;
  return count;
}

/* No more groups than a figure has room for: of the recipe with the most of them one goes, first those in
 * which less than two labels have a value, then the smallest batch. */
static void thin_out(Side *side) {
  int32_t shown = find_places(side).count, most = shown > 0 ? MOST_BARS / shown : 0;
  while (side->count > most) {
    int32_t gone = side->count - 1;
    for (int32_t g = side->count - 1; g >= 0; g--) {
      int32_t its = groups_of_recipe(side, g), of_gone = groups_of_recipe(side, gone);
      bool same = strcmp(side->groups[g].recipe, side->groups[gone].recipe) == 0;
      bool worse = compares(side, &side->groups[g]) <= compares(side, &side->groups[gone]);
      if (its > of_gone || (same && its > 1 && worse)) gone = g;
    }
    side->count--;
    memmove(&side->groups[gone], &side->groups[gone + 1],
            (size_t)(side->count - gone) * sizeof *side->groups);
  }
}

static void describe(const Side *side, const SideMetric *metric, int32_t groups, FigureData *out) {
  bool speedup = strcmp(metric->name, "speedup") == 0;
  char more[128];
  if (!metric->of)
    append(out->subtitle, sizeof out->subtitle,
           "plan's needed memory against what was measured, same cell and device");
  else if (speedup)
    snprintf(out->subtitle, sizeof out->subtitle, "same recipe and global batch, over %.60s",
             side->input->labels[side->input->reference]);
  else
    append(out->subtitle, sizeof out->subtitle,
           metric->equal_batch ? "same recipe and global batch"
           : metric->best      ? "each at its best batch"
                               : "in the memory named, else all of it");
  if (side_has_interval(side))
    append(out->subtitle, sizeof out->subtitle,
           speedup ? "; lines: from both 95 % intervals" : "; lines: 95 % interval");
  if (groups <= side->count) return;
  snprintf(more, sizeof more, "; %d of %d groups", side->count, groups);
  append(out->subtitle, sizeof out->subtitle, more);
}

Status vl_select_hardware(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  char name[64] = "";
  (void)vl_option_text(options, "metric", name, sizeof name);
  const SideMetric *metric = vl_side_metric(name);
  if (!metric) return vl_error(VL_INVALID, "hardware: no metric '%s'", name);
  Side side;
  vl_side_gather(input, workload, metric, &side);
  int32_t groups = side.count;
  thin_out(&side);
  describe(&side, metric, groups, out);
  write_side(&side, out);
  vl_side_clear(&side);
  return vl_ok();
}
