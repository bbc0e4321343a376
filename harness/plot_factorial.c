/* Selections of factorials: every cell's memory and speed, and what each factor and each interaction does. */
#include "harness/factorial.h"
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SETS = 4, LABEL_COLUMNS = 30 };

/* Alone, in pairs, all three. */
static const uint32_t order[CORNERS] = {0, 1, 2, 4, 3, 5, 6, 7};

/* Factorials of one device that differ in the rest of the recipe or in how a factor is there. */
typedef struct Sets {
  Factorial *list;
  int32_t count;
} Sets;

/* Those of the first device that measured some, else of the first that predicted. */
static Sets find_sets(const RecordSet *cells, FigureData *out) {
  Sets sets = {.list = vl_allocate(MOST_SETS * sizeof(Factorial))};
  Factorial *factorial = vl_allocate(sizeof *factorial);
  const json_t *device = NULL;
  for (int pass = 0; pass < 2 && sets.count == 0; pass++)
    for (int32_t i = 0; i < cells->count && sets.count < MOST_SETS; i++) {
      const json_t *record = cells->records[i];
      if (vl_record_is_predicted(record) != (pass == 1) || !vl_factorial_begins(cells, i)) continue;
      vl_factorial_gather(cells, record, factorial);
      if (!factorial->complete || (device != NULL && !vl_same_device(device, record))) continue;
      device = record;
      sets.list[sets.count++] = *factorial;
    }
  free(factorial);
  if (sets.count == 0)
    snprintf(out->note, sizeof(out->note),
             "no cells of a queue with and without groups=, dynamic-batch= and defragment=, all eight.");
  return sets;
}

static void write_numbers(FILE *out, const double *values, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    fputc(' ', out);
    vl_gnuplot_number(out, values[i]);
  }
}

/* "amp=bf16", and the dynamic batch's value where others have the same rest. */
static void name_set(const Sets *sets, int32_t at, char *text, size_t size) {
  const char *rest = sets->list[at].rest,
             *recipe = vl_record_text(sets->list[at].corners[ALL_FACTORS], "recipe");
  Recipe parsed;
  bool alone = true;
  for (int32_t s = 0; s < sets->count; s++)
    alone = alone && (s == at || strcmp(sets->list[s].rest, rest) != 0);
  const char *value = NULL;
  if (!alone && vl_recipe_parse(recipe, &parsed).code == VL_OK)
    value = vl_recipe_value(&parsed, "dynamic-batch");
  snprintf(text, size, "%s%s%s", strcmp(rest, "baseline") == 0 ? "fp32" : rest,
           value != NULL ? ", dynamic batch " : "", value != NULL ? value : "");
}

/* Names of the rows, of the sets, and where a set's marks stand within a row. */
static void write_names(const Sets *sets, const uint32_t *rows, int32_t count, const char *between,
                        FigureData *out) {
  char text[64];
  size_t longest = 0;
  fprintf(out->variables, "rows = %d\narray row_names[%d] = [", count, count);
  for (int32_t r = 0; r < count; r++) {
    vl_factors_text(rows[r], between, text, sizeof(text));
    fputs(r > 0 ? ", " : "", out->variables);
    (void)vl_gnuplot_wrapped(out->variables, text, LABEL_COLUMNS);
  }
  fprintf(out->variables, "]\nsets = %d\narray set_names[%d] = [", sets->count, sets->count);
  for (int32_t s = 0; s < sets->count; s++) {
    char name[2 * VL_RECIPE_BYTES];
    name_set(sets, s, name, sizeof(name));
    fputs(s > 0 ? ", " : "", out->variables);
    vl_gnuplot_text(out->variables, name);
    if (strlen(name) > longest) longest = strlen(name);
  }
  fprintf(out->variables, "]\nkeys = sets\nkey_columns = %d\n", vl_figure_key_columns(longest));
}

/* How the factors are there, but for what the sets differ in, and where it ran. */
static void describe(const Sets *sets, FigureData *out) {
  const json_t *whole = sets->list[0].corners[ALL_FACTORS];
  const char *recipe = vl_record_text(whole, "recipe");
  char text[VL_RECIPE_BYTES + 32];
  Recipe parsed, kept = {.count = 0};
  if (vl_recipe_parse(recipe, &parsed).code == VL_OK)
    for (int32_t i = 0; i < parsed.count; i++) {
      bool differs = false;
      for (int32_t s = 1; s < sets->count; s++) {
        Recipe other;
        const char *value = NULL, *name = parsed.items[i].optimization->name;
        if (vl_recipe_parse(vl_record_text(sets->list[s].corners[ALL_FACTORS], "recipe"), &other).code ==
            VL_OK)
          value = vl_recipe_value(&other, name);
        differs = differs || value == NULL || strcmp(value, parsed.items[i].value) != 0;
      }
      if (!differs) kept.items[kept.count++] = parsed.items[i];
    }
  char same[VL_RECIPE_BYTES];
  vl_recipe_format(&kept, same, sizeof(same));
  snprintf(text, sizeof(text), "all three: %s", same);
  vl_figure_subtitle(out, text, whole);
}

/* ---- Cells -------------------------------------------------------------------------------------------------------- */

/* Samples a second, from the seconds of a pass: the faster end of one is the slower of the other. */
static Contrast speed_of(const Factorial *factorial, uint32_t corner) {
  double samples = (double)vl_record_batch(factorial->corners[corner]);
  Contrast time = vl_factorial_level(&factorial->time, corner);
  return (Contrast){samples / time.value, samples / time.high, samples / time.low};
}

/* What is drawn is 0 where nothing is known: gnuplot 5.4 does not take undefined numbers here. */
static double drawn(double value) { return isfinite(value) ? value : 0; }

static void write_cell(const Factorial *factorial, uint32_t corner, double low, double high, double tops[2],
                       FigureData *out) {
  double reserved = (double)vl_record_integer(factorial->corners[corner], "peak_reserved_bytes");
  double before = (double)vl_record_integer(factorial->corners[0], "peak_reserved_bytes");
  Contrast speed = speed_of(factorial, corner), ratio = vl_factorial_ratio(&factorial->time, 0, corner);
  double gib = reserved * 0x1p-30, slow = isfinite(speed.low) ? speed.low : speed.value,
         fast = isfinite(speed.high) ? speed.high : speed.value;
  const double numbers[] = {low, high, drawn(gib), drawn(speed.value), drawn(slow), drawn(fast)};
  write_numbers(out->data, numbers, 6);
  fprintf(out->data, " \"%.3f", gib);
  if (corner != 0) fprintf(out->data, " (%+.0f %%)", round(100 * (reserved / before - 1)) + 0.0);
  if (!isfinite(speed.value))
    fputs("\" \"n/a\"\n", out->data);
  else if (corner == 0)
    fprintf(out->data, "\" \"%.2f\"\n", speed.value);
  else
    fprintf(out->data, "\" \"%.2f (%.2f x)\"\n", speed.value, ratio.value);
  tops[0] = fmax(tops[0], drawn(gib));
  tops[1] = fmax(tops[1], drawn(fast));
  out->points += isfinite(gib) + isfinite(speed.value);
}

Status vl_select_factorial(const PlotInput *input, const Workload *workload, const char *options,
                           FigureData *out) {
  (void)options;
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  Sets sets = find_sets(&cells, out);
  double tops[2] = {0, 0};
  fprintf(out->data, "# columns: from and to within the rows, reserved GiB, samples/s, low, high, texts; a "
                     "data set a precision, a row a cell\n");
  for (int32_t s = 0; s < sets.count; s++) {
    double height = 0.8 / sets.count;
    for (int32_t r = 0; r < CORNERS; r++)
      write_cell(&sets.list[s], order[r], r - 0.4 + height * s, r - 0.4 + height * (s + 0.92), tops, out);
    fputs("\n\n", out->data);
  }
  if (sets.count > 0) {
    write_names(&sets, order, CORNERS, " + ", out);
    describe(&sets, out);
    fprintf(out->variables, "predicted = %d\ntimed = %d\nmemory_max = %.9g\nspeed_max = %.9g\nbody = %d\n",
            vl_record_is_predicted(sets.list[0].corners[0]), tops[1] > 0, 1.6 * tops[0],
            tops[1] > 0 ? 1.6 * tops[1] : 1, 70 + CORNERS * (18 * sets.count + 8));
  }
  free(sets.list);
  free(cells.records);
  return vl_ok();
}

/* ---- Effects ------------------------------------------------------------------------------------------------------- */

/* The least and the most that is drawn, in percent. */
typedef struct Reach {
  double low, high;
} Reach;

static void write_effect(Contrast effect, Reach *reach, FigureData *out) {
  double value = 100 * effect.value;
  const double numbers[] = {drawn(value), isfinite(effect.low) ? 100 * effect.low : drawn(value),
                            isfinite(effect.high) ? 100 * effect.high : drawn(value)};
  write_numbers(out->data, numbers, 3);
  reach->low = fmin(reach->low, numbers[1]);
  reach->high = fmax(reach->high, numbers[2]);
  out->points += isfinite(value);
}

static void write_reach(FILE *out, const char *name, Reach reach) {
  double room = 0.08 * (reach.high - reach.low) + 0.5;
  fprintf(out, "%s_low = %.9g\n%s_high = %.9g\n", name, reach.low - room, name, reach.high + room);
}

Status vl_select_effects(const PlotInput *input, const Workload *workload, const char *options,
                         FigureData *out) {
  (void)options;
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  Sets sets = find_sets(&cells, out);
  Reach memory = {0, 0}, time = {0, 0};
  bool timed = false;
  fprintf(out->data,
          "# columns: place within the rows; effect on memory, low, high; on time, low, high (%%); "
          "a data set a precision\n");
  for (int32_t s = 0; s < sets.count; s++) {
    const Factorial *factorial = &sets.list[s];
    timed = timed || factorial->time.rounds > 0;
    for (int32_t r = 1; r < CORNERS; r++) {
      fprintf(out->data, "%.9g", r - 1 + 0.24 * (s - 0.5 * (sets.count - 1)));
      write_effect(vl_factorial_effect(&factorial->reserved, order[r]), &memory, out);
      write_effect(vl_factorial_effect(&factorial->time, order[r]), &time, out);
      fputc('\n', out->data);
    }
    fputs("\n\n", out->data);
  }
  if (sets.count > 0) {
    write_names(&sets, order + 1, CORNERS - 1, " x ", out);
    describe(&sets, out);
    write_reach(out->variables, "memory", memory);
    write_reach(out->variables, "time", time);
    fprintf(out->variables, "predicted = %d\ntimed = %d\nbody = %d\n",
            vl_record_is_predicted(sets.list[0].corners[0]), timed, 70 + 36 * (CORNERS - 1));
  }
  free(sets.list);
  free(cells.records);
  return vl_ok();
}
