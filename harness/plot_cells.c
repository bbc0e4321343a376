/* Selections of single cells: recipes side by side at one batch, and the timeline of one step. */
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Recipes side by side --------------------------------------------------------------------------------------------- */

enum { LABEL_COLUMNS = 27 }; /* what axis labels have room for */
enum { MOST_ROWS = 32 };     /* more do not fit on a page */

static void write_field(FILE *out, double value) {
  fputc(' ', out);
  vl_gnuplot_number(out, value);
}

/* What one row of the figure shows. */
typedef struct Bar {
  double memory_gib, speed, speed_low, speed_high;
  const char *status;
} Bar;

static Bar bar_of(const RecordSet *cells, const json_t *record, const char *memory) {
  const char *status = vl_record_text(record, "status");
  bool timed = vl_record_has_status(record, "ok") && !vl_record_is_emulated(record);
  double step = vl_record_real(record, "step_s"), low = vl_record_real(record, "step_s_low"),
         high = vl_record_real(record, "step_s_high");
  Bar bar = {.status = status == NULL               ? "?"
                       : strcmp(status, "oom") == 0 ? "OOM"
                                                    : status,
             .memory_gib = vl_select_median(cells, record, memory) * 0x1p-30,
             .speed = timed ? vl_select_median(cells, record, "samples_per_s") : NAN};
  bar.speed_low = high > 0 ? bar.speed * step / high : NAN;
  bar.speed_high = low > 0 ? bar.speed * step / low : NAN;
  return bar;
}

static double top_speed_of(const Bar *bars, int32_t count) {
  double longest = 0, end = 0;
  for (int32_t i = 0; i < count; i++) {
    if (isfinite(bars[i].speed)) longest = fmax(longest, bars[i].speed);
    if (isfinite(bars[i].speed_high)) end = fmax(end, bars[i].speed_high);
  }
  return vl_figure_reach(longest, end);
}

/* What gnuplot draws of a bar: a length and the word at its end. An undefined number there would end
 * gnuplot 5.4 with a segmentation fault, so a bar without a value has no length and says why. */
static void write_drawn(FILE *out, const Bar *bar, double top_speed) {
  bool memory = isfinite(bar->memory_gib), speed = isfinite(bar->speed);
  bool interval = speed && isfinite(bar->speed_low) && isfinite(bar->speed_high);
  const char *ran = strcmp(bar->status, "ok") == 0 ? "n/a" : bar->status;
  double length = speed ? bar->speed : 0, high = interval ? fmin(bar->speed_high, top_speed) : length;
  if (memory)
    fprintf(out, " %.9g \"%.2f\"", bar->memory_gib, bar->memory_gib);
  else
    fprintf(out, " 0 \"%s\"", ran);
  fprintf(out, " %.9g %.9g %.9g %.9g", length, interval ? bar->speed_low : length, high, high);
  if (speed)
    fprintf(out, " \"%.1f\"", bar->speed);
  else
    fprintf(out, " \"%s\"", ran);
}

/* Colours of the figure's file. */
enum { BAR_BASELINE = 1, BAR_RECIPE, BAR_PEER };

static int bar_colour(const json_t *record) {
  const char *recipe = vl_record_text(record, "recipe");
  if (vl_record_is_peer(record)) return BAR_PEER;
  return recipe != NULL && strcmp(recipe, "baseline") == 0 ? BAR_BASELINE : BAR_RECIPE;
}

/* Returns the lines of its label. */
static int32_t write_bar(FILE *out, int32_t row, const json_t *record, const Bar *bar, double top_speed) {
  char name[VL_RECIPE_BYTES + 128];
  vl_record_name(record, name, sizeof(name));
  fprintf(out, "%d ", row);
  int32_t lines = vl_gnuplot_wrapped(out, name, LABEL_COLUMNS);
  write_field(out, bar->memory_gib);
  write_field(out, bar->speed);
  write_field(out, bar->speed_low);
  write_field(out, bar->speed_high);
  fprintf(out, " \"%s\"", bar->status);
  write_drawn(out, bar, top_speed);
  fprintf(out, " %d\n", bar_colour(record));
  return lines;
}

Status vl_select_recipes(const PlotInput *input, const Workload *workload, const char *options,
                         FigureData *out) {
  (void)options;
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_ALL);
  Comparison *comparison = vl_allocate(sizeof(*comparison));
  vl_select_comparison(&cells, comparison);
  double top_memory = 0;
  int32_t left_out = comparison->count > MOST_ROWS ? comparison->count - MOST_ROWS : 0;
  comparison->count -= left_out;
  if (left_out > 0)
    snprintf(out->note, sizeof(out->note), "the first %d recipes; the table has %d more.", MOST_ROWS,
             left_out);
  int32_t most_lines = 1, rows = comparison->count + comparison->peer_count;
  bool peers = comparison->peer_count > 0;
  fprintf(out->data,
          "# columns: row name %s_gib samples_per_s low high status, and what is drawn, with its colour\n",
          peers ? "step" : "needed");
  const json_t **records = vl_allocate((size_t)(rows + 1) * sizeof(*records));
  Bar *bars = vl_allocate((size_t)(rows + 1) * sizeof(*bars));
  for (int32_t i = 0; i < rows; i++) {
    records[i] = i < comparison->count ? comparison->rows[i] : comparison->peers[i - comparison->count];
    /* Of another engine only the step's memory is known: then that is what is compared. */
    bars[i] = bar_of(&cells, records[i], peers ? "peak_step_bytes" : "needed_bytes");
    out->points += isfinite(bars[i].memory_gib) + isfinite(bars[i].speed);
    top_memory = fmax(top_memory, isfinite(bars[i].memory_gib) ? bars[i].memory_gib : 0);
  }
  double top_speed = top_speed_of(bars, rows);
  for (int32_t i = 0; i < rows; i++) {
    int32_t lines = write_bar(out->data, i, records[i], &bars[i], top_speed);
    most_lines = lines > most_lines ? lines : most_lines;
  }
  if (comparison->count > 0) {
    char what[96];
    snprintf(what, sizeof(what), "batch %lld%s", (long long)comparison->batch,
             peers ? ", memory of the step above weights and input" : "");
    vl_figure_subtitle(out, what, comparison->rows[0]);
  }
  int32_t row_height = most_lines > 2 ? 12 + 17 * most_lines : 46;
  fprintf(
      out->variables,
      "rows = %d\npeers = %d\npredicted = %d\ntimed = %d\nmemory_max = %.9g\nspeed_max = %.9g\nbody = %d\n",
      rows, comparison->peer_count, comparison->count > 0 && vl_record_is_predicted(comparison->rows[0]),
      top_speed > 0, top_memory > 0 ? top_memory * 1.25 : 1, top_speed > 0 ? top_speed * 1.25 : 1,
      70 + row_height * rows);
  free(records);
  free(bars);
  free(comparison);
  free(cells.records);
  return vl_ok();
}

/* ---- Parts of what each recipe needs, on a device on paper -------------------------------------------------------- */

static bool is_on_paper(const json_t *record) { return vl_record_text(record, "profile") != NULL; }

/* "28" at 28 GB, read as GiB: "SUITE:28,22" where a record belongs to the suite. Then the card's own memory.
 */
static void write_marks(FILE *out, const json_t *record, const char *options) {
  char marks[64] = "", texts[256] = "", places[256] = "";
  const char *suite = vl_record_text(record, "suite");
  int32_t count = 0;
  size_t length = suite != NULL ? strlen(suite) : 0;
  if (vl_option_text(options, "marks", marks, sizeof(marks)) && length > 0 &&
      strncmp(marks, suite, length) == 0 && marks[length] == ':')
    for (char *at = marks + length; *at != '\0';) {
      double value = strtod(at + 1, &at);
      size_t used = strlen(texts), placed = strlen(places);
      snprintf(texts + used, sizeof(texts) - used, "%s\"%g\"", count > 0 ? ", " : "", value);
      snprintf(places + placed, sizeof(places) - placed, "%s%.9g", count > 0 ? ", " : "", value);
      count++;
    }
  int64_t memory = vl_record_integer(record, "memory_bytes");
  if (memory > 0) {
    size_t used = strlen(texts), placed = strlen(places);
    snprintf(texts + used, sizeof(texts) - used, "%s\"card\"", count > 0 ? ", " : "");
    snprintf(places + placed, sizeof(places) - placed, "%s%.9g", count > 0 ? ", " : "",
             (double)memory * 0x1p-30);
    count++;
  }
  fprintf(out, "marks = %d\n", count);
  if (count > 0)
    fprintf(out, "array mark_texts[%d] = [%s]\narray mark_x[%d] = [%s]\n", count, texts, count, places);
}

/* A row of places where parts begin and end; returns where the last ends. */
static double write_parts(FILE *out, int32_t row, const json_t *record, bool *used, int32_t *lines) {
  MemoryParts parts = vl_record_parts(record);
  bool ok = vl_record_has_status(record, "ok") && parts.complete;
  const char *recipe = vl_record_text(record, "recipe"), *status = vl_record_text(record, "status");
  double end = 0;
  fprintf(out, "%d ", row);
  *lines = vl_gnuplot_wrapped(out, recipe != NULL ? recipe : "unnamed", LABEL_COLUMNS + 6);
  fprintf(out, " 0");
  for (int32_t p = 0; p < VL_PART_COUNT; p++) {
    int64_t bytes = ok && parts.bytes[p] > 0 ? parts.bytes[p] : 0;
    used[p] = used[p] || bytes > 0;
    end += (double)bytes * 0x1p-30;
    fprintf(out, " %.9g", end);
  }
  if (ok)
    fprintf(out, " \"%.1f\"\n", end);
  else
    fprintf(out, " \"%s\"\n", status == NULL ? "n/a" : strcmp(status, "oom") == 0 ? "OOM" : status);
  return end;
}

Status vl_select_parts(const PlotInput *input, const Workload *workload, const char *options,
                       FigureData *out) {
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  int32_t on_paper = 0, rows = 0, most_lines = 1, keys = 0;
  for (int32_t i = 0; i < cells.count; i++)
    if (is_on_paper(cells.records[i])) cells.records[on_paper++] = cells.records[i];
  cells.count = on_paper;
  Comparison *comparison = vl_allocate(sizeof(*comparison));
  vl_select_comparison(&cells, comparison);
  bool used[VL_PART_COUNT] = {false};
  double top = 0;
  fprintf(out->data, "# columns: row name begin");
  for (int32_t p = 0; p < VL_PART_COUNT; p++)
    fprintf(out->data, " %s", vl_part_name(p));
  fprintf(out->data, " (ends, GiB) text\n");
  for (; rows < comparison->count && rows < MOST_ROWS; rows++) {
    int32_t lines = 1;
    double end = write_parts(out->data, rows, comparison->rows[rows], used, &lines);
    top = fmax(top, end);
    out->points += end > 0;
    most_lines = lines > most_lines ? lines : most_lines;
  }
  if (comparison->count == 0)
    snprintf(out->note, sizeof(out->note), "no cell was planned for a device on paper.");
  if (comparison->count > MOST_ROWS)
    snprintf(out->note, sizeof(out->note), "the first %d of %d recipes; the table has all.", MOST_ROWS,
             comparison->count);
  if (comparison->count > 0) {
    char what[96];
    snprintf(what, sizeof(what), "batch %lld", (long long)comparison->batch);
    vl_figure_subtitle(out, what, comparison->rows[0]);
    write_marks(out->variables, comparison->rows[0], options);
    int64_t memory = vl_record_integer(comparison->rows[0], "memory_bytes");
    top = fmax(top, memory > 0 ? (double)memory * 0x1p-30 : 0);
  }
  fprintf(out->variables, "array parts_names[%d] = [", VL_PART_COUNT);
  for (int32_t p = 0; p < VL_PART_COUNT; p++)
    fprintf(out->variables, "%s\"%s\"", p > 0 ? ", " : "", vl_part_name(p));
  fputs("]\nused = \" ", out->variables);
  for (int32_t p = 0; p < VL_PART_COUNT; p++) {
    if (used[p]) fprintf(out->variables, "%d ", p + 1);
    keys += used[p];
  }
  int32_t row_height = most_lines > 1 ? 8 + 17 * most_lines : 30;
  fprintf(out->variables, "\"\nkeys = %d\nrows = %d\nmemory_max = %.9g\nbody = %d\n", keys + 2, rows,
          top > 0 ? top * 1.1 : 1, 70 + row_height * rows);
  free(comparison);
  free(cells.records);
  return vl_ok();
}

/* ---- Timeline ----------------------------------------------------------------------------------------------------------- */

enum { MAX_SAMPLES = 900, HELD = MEMORY_CATEGORY_COUNT, BANDS = MEMORY_CATEGORY_COUNT + 1 };

/* Live bytes after an event: by category what the step itself obtained, and what was held before it. */
typedef struct Moment {
  double time_ms;
  int64_t bands[BANDS];
  int64_t allocated, reserved;
  int64_t event;
} Moment;

/* What each category held when the step began. A timeline without MEMORY_HELD tells only what it must have
 * been at least, so that releases never go below nothing; the rest of what was allocated then is one band. */
static void held_before(const TimelineEvent *events, int64_t count, int64_t held, int64_t bands[BANDS]) {
  for (int64_t i = 0; i < held; i++) {
    int32_t category = events[i].category;
    bool known = events[i].action == MEMORY_HELD && category >= 0 && category < MEMORY_CATEGORY_COUNT;
    if (known) bands[category] += events[i].bytes;
  }
  if (held > 0) return;
  int64_t change[MEMORY_CATEGORY_COUNT] = {0};
  int64_t first = events[0].allocated_bytes;
  if (events[0].action == MEMORY_OBTAIN) first -= events[0].bytes;
  if (events[0].action == MEMORY_RELEASE) first += events[0].bytes;
  for (int64_t i = 0; i < count; i++) {
    int32_t category = events[i].category;
    if (category < 0 || category >= MEMORY_CATEGORY_COUNT) continue;
    if (events[i].action == MEMORY_OBTAIN) change[category] += events[i].bytes;
    if (events[i].action == MEMORY_RELEASE) change[category] -= events[i].bytes;
    if (-change[category] > bands[category]) bands[category] = -change[category];
  }
  bands[HELD] = first;
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++)
    bands[HELD] -= bands[c];
}

/* Moments after obtains and releases, which follow `held` events of what was there; free() them. */
static Moment *moments_of(const TimelineEvent *events, int64_t count, int64_t held, int64_t *moments) {
  Moment *list = vl_allocate(sizeof(Moment) * (size_t)(count + 1));
  Moment now = {.time_ms = 0};
  held_before(events, count, held, now.bands);
  *moments = 0;
  for (int64_t i = 0; i < count - held; i++) {
    const TimelineEvent *event = &events[held + i];
    now.time_ms = (double)event->time_ns / 1e6;
    now.allocated = event->allocated_bytes;
    now.reserved = event->reserved_bytes;
    now.event = i;
    bool counted = event->category >= 0 && event->category < MEMORY_CATEGORY_COUNT;
    if (counted && event->action == MEMORY_OBTAIN) now.bands[event->category] += event->bytes;
    if (counted && event->action == MEMORY_RELEASE) now.bands[event->category] -= event->bytes;
    list[(*moments)++] = now;
  }
  return list;
}

const json_t *vl_record_with_timeline(const PlotInput *input, const Workload *workload,
                                      TimelineEvent **events, int64_t *count, Status *status) {
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  const json_t *found = NULL;
  *status = vl_ok();
  for (int32_t i = 0; i < cells.count && found == NULL && status->code == VL_OK; i++) {
    const char *key = vl_record_text(cells.records[i], "cell_key");
    if (key == NULL) continue;
    *status = vl_store_timeline(input->store, key, events, count);
    if (status->code == VL_OK && *count > 0) found = cells.records[i];
  }
  free(cells.records);
  return found;
}

/* One moment in each of MAX_SAMPLES spans: the one with the most allocated, so that no peak is lost. */
static void write_moments(const Moment *moments, int64_t count, bool timed, FigureData *out) {
  int64_t spans = count < MAX_SAMPLES ? count : MAX_SAMPLES;
  for (int64_t s = 0; s < spans; s++) {
    int64_t from = s * count / spans, until = (s + 1) * count / spans, best = from;
    for (int64_t i = from; i < until; i++)
      if (moments[i].allocated > moments[best].allocated) best = i;
    fprintf(out->data, "%.9g", timed ? moments[best].time_ms : (double)moments[best].event);
    double sum = (double)moments[best].bands[HELD] * 0x1p-30;
    fprintf(out->data, " %.6g", sum);
    for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
      sum += (double)moments[best].bands[c] * 0x1p-30;
      fprintf(out->data, " %.6g", sum);
    }
    fprintf(out->data, " %.6g\n", (double)moments[best].reserved * 0x1p-30);
    out->points++;
  }
}

static void write_timeline(const json_t *record, const TimelineEvent *events, int64_t count,
                           FigureData *out) {
  int64_t moments_count = 0, peak = 0, held = 0;
  double reserved = 0;
  while (held < count - 1 && vl_memory_is_held(events[held].action))
    held++;
  Moment *moments = moments_of(events, count, held, &moments_count);
  for (int64_t i = 0; i < moments_count; i++) {
    if (moments[i].allocated > moments[peak].allocated) peak = i;
    reserved = fmax(reserved, (double)moments[i].reserved * 0x1p-30);
  }
  /* What the planner takes to walk a step is not the step's time. */
  bool timed = !vl_record_is_predicted(record) && moments[moments_count - 1].time_ms > 0;
  fprintf(out->data, "# columns: %s held-before-the-step", timed ? "ms" : "event");
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++)
    fprintf(out->data, " +%s", vl_memory_category_name((MemoryCategory)c));
  fprintf(out->data, " reserved (GiB; each band added to those before it)\n");
  write_moments(moments, moments_count, timed, out);
  const TimelineEvent *at = &events[held + moments[peak].event];
  fprintf(out->variables, "timed = %d\nbands = %d\narray band_names[%d] = [\"held before the step\"", timed,
          BANDS, BANDS);
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++)
    fprintf(out->variables, ", \"%s\"", vl_memory_category_name((MemoryCategory)c));
  bool unnamed = moments[0].bands[HELD] > 0;
  int32_t keys = 1 + unnamed;
  fprintf(out->variables, "]\nused = \" %s", unnamed ? "1 " : "");
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
    bool used = false;
    for (int64_t i = 0; i < moments_count && !used; i++)
      used = moments[i].bands[c] > 0;
    if (used) fprintf(out->variables, "%d ", c + 2);
    keys += used;
  }
  fprintf(out->variables, "\"\nkeys = %d\npeak_x = %.9g\npeak_y = %.9g\nymax = %.9g\npeak_text = ", keys,
          timed ? moments[peak].time_ms : (double)moments[peak].event,
          (double)moments[peak].allocated * 0x1p-30, reserved > 0 ? reserved * 1.15 : 1);
  char text[256];
  snprintf(text, sizeof(text), "peak %.2f GiB, in %s", (double)moments[peak].allocated * 0x1p-30,
           at->scope[0] != '\0' ? at->scope : at->name);
  vl_gnuplot_text(out->variables, text);
  fprintf(out->variables, "\nxmax = %.9g\n",
          timed ? moments[moments_count - 1].time_ms : (double)moments[moments_count - 1].event);
  const char *recipe = vl_record_text(record, "recipe");
  snprintf(text, sizeof(text), "%.200s, batch %lld", recipe != NULL ? recipe : "unnamed",
           (long long)vl_record_batch(record));
  vl_figure_subtitle(out, text, record);
  free(moments);
}

Status vl_select_timeline(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  (void)options;
  TimelineEvent *events = NULL;
  int64_t count = 0;
  Status status = vl_ok();
  const json_t *record = NULL;
  if (input->store != NULL) record = vl_record_with_timeline(input, workload, &events, &count, &status);
  if (status.code == VL_OK && record != NULL) write_timeline(record, events, count, out);
  if (record == NULL) snprintf(out->note, sizeof(out->note), "no cell kept its timeline (timeline: true).");
  free(events);
  return status;
}
