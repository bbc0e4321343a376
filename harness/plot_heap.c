/* Selections of the heap itself: where the blocks of one step lie, and how free memory is scattered over
 * steps. */
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Heap map ----------------------------------------------------------------------------------------------------------- */

/* Thinner blocks than one in so many of the height are not seen. */
enum { MAP_ROWS = 1500, MAP_COLUMNS = 1500 };

/* One event at its place; x is where it stands on the axis of time. */
typedef struct Placed {
  const TimelineEvent *event;
  int64_t order;
  double x;
} Placed;

static bool is_segment(const TimelineEvent *event) {
  return event->action == MEMORY_SEGMENT_RESERVE || event->action == MEMORY_SEGMENT_RELEASE ||
         event->action == MEMORY_SEGMENT_HELD;
}

/* A block lies no longer where it lay. */
static bool is_end(const TimelineEvent *event) {
  return event->action == MEMORY_RELEASE || event->action == MEMORY_MOVE_OUT;
}

/* Segments first and in order; blocks by place, then in order: what follows the beginning of a block at its
 * place is its end. */
static int by_place(const void *a, const void *b) {
  const Placed *left = a, *right = b;
  bool left_segment = is_segment(left->event), right_segment = is_segment(right->event);
  if (left_segment != right_segment) return left_segment ? -1 : 1;
  if (left_segment) return left->order < right->order ? -1 : 1;
  if (left->event->heap_segment != right->event->heap_segment)
    return left->event->heap_segment < right->event->heap_segment ? -1 : 1;
  if (left->event->offset != right->event->offset) return left->event->offset < right->event->offset ? -1 : 1;
  return left->order < right->order ? -1 : 1;
}

/* What a map is drawn from. */
typedef struct HeapMap {
  Placed *list; /* events that have a place, by place */
  int64_t count, segment_events;
  double xmax, height;         /* of the axis; of all segments, GiB */
  double reserved;             /* GiB, at most */
  struct MapSegment *segments; /* in order of their numbers */
  int64_t segment_count;
} HeapMap;

/* Segments stand above one another, each as low as those that are there with it leave room. */
typedef struct MapSegment {
  int32_t number;
  bool placed;
  double size, base, held; /* GiB; held: of it now, while they are placed */
} MapSegment;

static void free_map(HeapMap *map) {
  free(map->list);
  free(map->segments);
}

static double gib(int64_t bytes) { return (double)bytes * 0x1p-30; }

/* Where a segment is among them, or would be. */
static int64_t segment_at(const HeapMap *map, int32_t number) {
  int64_t low = 0, high = map->segment_count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (map->segments[middle].number < number)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Which there are, and how large each becomes. */
static void find_segments(HeapMap *map) {
  map->segments = vl_allocate((size_t)(map->segment_events + 1) * sizeof *map->segments);
  for (int64_t i = 0; i < map->segment_events; i++) {
    const TimelineEvent *event = map->list[i].event;
    int64_t at = segment_at(map, event->heap_segment);
    MapSegment *segment = &map->segments[at];
    if (at == map->segment_count || segment->number != event->heap_segment) {
      memmove(segment + 1, segment, (size_t)(map->segment_count++ - at) * sizeof *segment);
      *segment = (MapSegment){.number = event->heap_segment};
    }
    segment->size = fmax(segment->size, gib(event->offset + event->bytes));
  }
}

/* The lowest place above all that are in the way. */
static double lowest_base(const HeapMap *map, double size) {
  double base = 0, before;
  do {
    before = base;
    for (int64_t i = 0; i < map->segment_count; i++) {
      const MapSegment *other = &map->segments[i];
      bool in_the_way = other->held > 0 && other->base < base + size && base < other->base + other->size;
      if (in_the_way) base = other->base + other->size;
    }
  } while (base > before);
  return base;
}

static void stack_segments(HeapMap *map) {
  find_segments(map);
  for (int64_t i = 0; i < map->segment_events; i++) {
    const TimelineEvent *event = map->list[i].event;
    MapSegment *segment = &map->segments[segment_at(map, event->heap_segment)];
    bool released = event->action == MEMORY_SEGMENT_RELEASE;
    map->reserved = fmax(map->reserved, gib(event->reserved_bytes));
    if (!released && !segment->placed) segment->base = lowest_base(map, segment->size);
    segment->placed = true;
    segment->held += released ? -gib(event->bytes) : gib(event->bytes);
    map->height = fmax(map->height, segment->base + segment->size);
  }
}

static HeapMap map_of(const TimelineEvent *events, int64_t count, bool timed) {
  HeapMap map = {.list = vl_allocate((size_t)(count + 1) * sizeof(Placed))};
  int64_t held = 0;
  while (held < count && vl_memory_is_held(events[held].action))
    held++;
  for (int64_t i = 0; i < count; i++) {
    if (events[i].heap_segment < 0 || events[i].offset < 0 || events[i].action == MEMORY_OOM) continue;
    double x = timed ? (double)events[i].time_ns / 1e6 : i < held ? 0 : (double)(i - held);
    map.list[map.count++] = (Placed){&events[i], i, x};
    map.segment_events += is_segment(&events[i]);
    map.xmax = fmax(map.xmax, x);
  }
  if (map.xmax <= 0) map.xmax = 1;
  qsort(map.list, (size_t)map.count, sizeof(Placed), by_place);
  stack_segments(&map);
  return map;
}

static void write_rectangle(const HeapMap *map, int32_t number, double from, double until, double low,
                            double high, FILE *out) {
  int64_t at = segment_at(map, number);
  double base = at < map->segment_count ? map->segments[at].base : 0;
  until = fmax(until, fmin(from + map->xmax / MAP_COLUMNS, map->xmax));
  fprintf(out, "%.9g %.9g %.9g %.9g\n", from, until, base + low, base + high);
}

/* Memory of a segment that is held, since when. */
typedef struct Held {
  int32_t segment;
  double from, low, high;
} Held;

/* Reserved memory: what an event gives back may be a part of what was taken, or of several. */
static void write_segments(const HeapMap *map, FILE *out) {
  Held *held = vl_allocate((size_t)(2 * map->segment_events + 2) * sizeof *held);
  int64_t count = 0;
  for (int64_t i = 0; i < map->segment_events; i++) {
    const TimelineEvent *event = map->list[i].event;
    double x = map->list[i].x, low = gib(event->offset), high = gib(event->offset + event->bytes);
    if (event->action != MEMORY_SEGMENT_RELEASE) {
      Held *below = count > 0 ? &held[count - 1] : NULL;
      bool grows = below && below->segment == event->heap_segment && below->from >= x && below->high >= low;
      if (grows)
        below->high = high;
      else
        held[count++] = (Held){event->heap_segment, x, low, high};
      continue;
    }
    for (int64_t j = count - 1; j >= 0; j--) {
      Held was = held[j];
      if (was.segment != event->heap_segment || was.high <= low || was.low >= high) continue;
      write_rectangle(map, was.segment, was.from, x, fmax(was.low, low), fmin(was.high, high), out);
      held[j] = held[--count];
      if (was.low < low) held[count++] = (Held){was.segment, was.from, was.low, low};
      if (was.high > high) held[count++] = (Held){was.segment, was.from, high, was.high};
    }
  }
  for (int64_t j = 0; j < count; j++)
    write_rectangle(map, held[j].segment, held[j].from, map->xmax, held[j].low, held[j].high, out);
  fputs("\n\n", out);
  free(held);
}

/* Whether a block is high enough. */
static bool is_seen(const HeapMap *map, const TimelineEvent *event) {
  bool known = event->category >= 0 && event->category < MEMORY_CATEGORY_COUNT;
  return known && gib(event->bytes) * MAP_ROWS >= map->height;
}

/* The blocks of a category. Returns how many. */
static int64_t write_blocks(const HeapMap *map, int32_t category, FILE *out) {
  int64_t written = 0;
  for (int64_t i = map->segment_events; i < map->count; i++) {
    const TimelineEvent *event = map->list[i].event;
    if (is_end(event) || event->category != category || !is_seen(map, event)) continue;
    const Placed *next = i + 1 < map->count ? &map->list[i + 1] : NULL;
    bool ends = next != NULL && is_end(next->event) && next->event->heap_segment == event->heap_segment &&
                next->event->offset == event->offset;
    write_rectangle(map, event->heap_segment, map->list[i].x, ends ? next->x : map->xmax, gib(event->offset),
                    gib(event->offset + event->bytes), out);
    written++;
  }
  return written;
}

/* Recipes of one batch beside one another. */
enum { MOST_PANELS = 3 };

typedef struct Panel {
  const json_t *record;
  TimelineEvent *events;
  HeapMap map;
} Panel;

/* Further cells of the first one's batch and device, with other recipes. */
static Status choose_panels(const PlotInput *input, const Workload *workload, Panel *panels, int32_t *count) {
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  Status status = vl_ok();
  *count = 0;
  for (int32_t i = 0; i < cells.count && *count < MOST_PANELS && status.code == VL_OK; i++) {
    const json_t *record = cells.records[i], *first = panels[0].record;
    const char *key = vl_record_text(record, "cell_key");
    bool beside =
        *count == 0 || (vl_record_batch(record) == vl_record_batch(first) && vl_same_device(record, first));
    for (int32_t p = 0; p < *count; p++)
      beside = beside && !vl_same_cell(record, panels[p].record);
    if (!beside || key == NULL) continue;
    TimelineEvent *events = NULL;
    int64_t events_count = 0;
    status = vl_store_timeline(input->store, key, &events, &events_count);
    if (status.code != VL_OK) break;
    bool timed = events_count > 0 && !vl_record_is_predicted(record) && events[events_count - 1].time_ns > 0;
    Panel panel = {record, events, map_of(events, events_count, timed)};
    if (panel.map.segment_count > 0) {
      panels[(*count)++] = panel;
    } else {
      free_map(&panel.map);
      free(events);
    }
  }
  free(cells.records);
  return status;
}

/* Every panel has a data set of its segments and one of each category that is in some; where it has none of a
 * category, a point stands for it. */
static void write_panels(Panel *panels, int32_t count, FigureData *out) {
  bool shown[MEMORY_CATEGORY_COUNT] = {false};
  int32_t categories = 0;
  double ymax = 0;
  fputs(
      "# columns: event or ms from, until; GiB from, until. Of each cell segments, then blocks a category\n",
      out->data);
  for (int32_t p = 0; p < count; p++) {
    for (int64_t i = panels[p].map.segment_events; i < panels[p].map.count; i++) {
      const TimelineEvent *event = panels[p].map.list[i].event;
      if (is_seen(&panels[p].map, event)) shown[event->category] = true;
    }
    ymax = fmax(ymax, panels[p].map.height);
  }
  for (int32_t p = 0; p < count; p++) {
    write_segments(&panels[p].map, out->data);
    for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
      if (!shown[c]) continue;
      int64_t blocks = write_blocks(&panels[p].map, c, out->data);
      if (blocks == 0) fputs("0 0 0 0\n", out->data);
      fputs("\n\n", out->data);
      out->points += blocks;
    }
  }
  FILE *variables = out->variables;
  fputs("array names[7] = [", variables);
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++)
    if (shown[c])
      fprintf(variables, "%s'%s'", categories++ > 0 ? ", " : "", vl_memory_category_name((MemoryCategory)c));
  fputs("]\narray colours[7] = [", variables);
  for (int32_t c = 0, written = 0; c < MEMORY_CATEGORY_COUNT; c++)
    if (shown[c]) fprintf(variables, "%s%d", written++ > 0 ? ", " : "", c + 1);
  fprintf(variables, "]\npanels = %d\narray panel_xmax[%d] = [", count, count);
  for (int32_t p = 0; p < count; p++)
    fprintf(variables, "%s%.9g", p > 0 ? ", " : "", panels[p].map.xmax);
  fprintf(variables, "]\narray panel_names[%d] = [", count);
  int32_t lines = 1;
  for (int32_t p = 0; p < count; p++) {
    char name[VL_RECIPE_BYTES + 64];
    const char *recipe = vl_record_text(panels[p].record, "recipe");
    bool failed = vl_record_has_status(panels[p].record, "oom");
    snprintf(name, sizeof name, "%s: %s%.2f GiB", recipe != NULL ? recipe : "unnamed",
             failed ? "out of memory at " : "", panels[p].map.reserved);
    fputs(p > 0 ? ", " : "", variables);
    int32_t its = vl_gnuplot_wrapped(variables, name, (size_t)(96 / count));
    if (its > lines) lines = its;
  }
  const json_t *first = panels[0].record;
  bool timed = !vl_record_is_predicted(first);
  fprintf(
      variables,
      "]\npanel_lines = %d\ntimed = %d\nshown = %d\nkeys = %d\nkey_columns = 4\nbody = 520\nymax = %.9g\n",
      lines, timed, categories, categories + 1, ymax);
  char text[64];
  snprintf(text, sizeof text, "batch %lld, one step", (long long)vl_record_batch(first));
  vl_figure_subtitle(out, text, first);
}

Status vl_select_heap_map(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  (void)options;
  Panel panels[MOST_PANELS];
  int32_t count = 0;
  Status status = input->store != NULL ? choose_panels(input, workload, panels, &count) : vl_ok();
  if (status.code == VL_OK && count > 0) write_panels(panels, count, out);
  if (count == 0)
    snprintf(out->note, sizeof(out->note),
             "no cell kept a timeline that tells where blocks lay (timeline: true).");
  for (int32_t p = 0; p < count; p++) {
    free_map(&panels[p].map);
    free(panels[p].events);
  }
  return status;
}

/* ---- Fragmentation over steps -------------------------------------------------------------------------------------------- */

enum { MOST_LINES = 8, FEWEST_STEPS = 3, NAME_COLUMNS = 76 };

/* What each step of a cell reserved for what it had in use, and how scattered what is free was after it. */
typedef struct Steps {
  double *reserved, *allocated, *fragmentation;
  int64_t count;
} Steps;

static void free_steps(Steps *steps) {
  free(steps->reserved);
  free(steps->allocated);
  free(steps->fragmentation);
}

static Steps steps_of(const json_t *record) {
  int64_t reserved, allocated, fragmentation;
  Steps steps = {.reserved = vl_record_list(record, "step_reserved_bytes", &reserved),
                 .allocated = vl_record_list(record, "step_peaks_bytes", &allocated),
                 .fragmentation = vl_record_list(record, "step_fragmentation", &fragmentation)};
  steps.count = reserved < allocated ? reserved : allocated;
  if (fragmentation < steps.count) steps.count = fragmentation;
  return steps;
}

static int64_t step_count(const json_t *record) {
  Steps steps = steps_of(record);
  free_steps(&steps);
  return vl_record_has_status(record, "ok") ? steps.count : 0;
}

/* Whether a step needed more than another: of a queue of inputs of several sizes. */
static bool varies(const json_t *record) {
  Steps steps = steps_of(record);
  double low = INFINITY, high = 0;
  for (int64_t i = 1; i < steps.count; i++) {
    low = fmin(low, steps.allocated[i]);
    high = fmax(high, steps.allocated[i]);
  }
  free_steps(&steps);
  return high > 1.01 * low;
}

/* A cell whose allocations are the question: by its recipe or by its inputs. */
static bool is_asked(const json_t *record) {
  const char *recipe = vl_record_text(record, "recipe");
  bool named =
      recipe != NULL && (strstr(recipe, "allocator=") != NULL || strstr(recipe, "defragment=") != NULL);
  return step_count(record) >= FEWEST_STEPS && (named || varies(record));
}

/* Those that are asked about, on the device of the first, and what they are compared with: at their batches.
 */
static int32_t choose_lines(const RecordSet *cells, const json_t **lines, FigureData *out) {
  const json_t *first = NULL;
  int32_t count = 0, left_out = 0;
  for (int32_t i = 0; i < cells->count && first == NULL; i++)
    if (is_asked(cells->records[i])) first = cells->records[i];
  for (int32_t i = 0; i < cells->count && first != NULL; i++) {
    const json_t *record = cells->records[i];
    bool beside = is_asked(record), repeated = false;
    for (int32_t j = 0; j < cells->count && !beside; j++)
      beside = vl_record_batch(cells->records[j]) == vl_record_batch(record) && is_asked(cells->records[j]);
    for (int32_t j = 0; j < count; j++)
      repeated = repeated || vl_same_cell(lines[j], record);
    if (!beside || repeated || step_count(record) < FEWEST_STEPS || !vl_same_device(record, first)) continue;
    if (count < MOST_LINES)
      lines[count++] = record;
    else
      left_out++;
  }
  if (left_out > 0)
    snprintf(out->note, sizeof(out->note), "%d further recipes are left out.", left_out);
  else if (first == NULL)
    snprintf(out->note, sizeof(out->note),
             "no cell of %d or more steps has a recipe with allocator= or defragment=, or steps that differ.",
             FEWEST_STEPS);
  return count;
}

static void write_steps(const json_t *record, FigureData *out, double *ratio_max, int64_t *steps_max) {
  Steps steps = steps_of(record);
  for (int64_t i = 0; i < steps.count; i++) {
    double ratio = steps.allocated[i] > 0 ? steps.reserved[i] / steps.allocated[i] : NAN;
    fprintf(out->data, "%lld ", (long long)i + 1);
    vl_gnuplot_number(out->data, ratio);
    fputc(' ', out->data);
    vl_gnuplot_number(out->data, steps.fragmentation[i]);
    fputc('\n', out->data);
    if (isfinite(ratio)) *ratio_max = fmax(*ratio_max, ratio);
    out->points++;
  }
  fputs("\n\n", out->data);
  if (steps.count > *steps_max) *steps_max = steps.count;
  free_steps(&steps);
}

Status vl_select_fragmentation(const PlotInput *input, const Workload *workload, const char *options,
                               FigureData *out) {
  (void)options;
  const json_t *lines[MOST_LINES];
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_OURS);
  int32_t count = choose_lines(&cells, lines, out);
  double ratio_max = 1;
  int64_t steps_max = 1, longest = 0;
  bool one_batch = true;
  for (int32_t i = 1; i < count; i++)
    one_batch = one_batch && vl_record_batch(lines[i]) == vl_record_batch(lines[0]);
  fprintf(out->data,
          "# columns: step, reserved / allocated at its peak, 1 - largest free block / free after it\n");
  if (count > 0) fprintf(out->variables, "array names[%d] = [", count);
  for (int32_t i = 0; i < count; i++) {
    char name[VL_RECIPE_BYTES + 32], text[NAME_COLUMNS + 1];
    const char *recipe = vl_record_text(lines[i], "recipe");
    snprintf(name, sizeof name, "%s", recipe != NULL ? recipe : "unnamed");
    if (!one_batch)
      snprintf(name + strlen(name), sizeof name - strlen(name), ", batch %lld",
               (long long)vl_record_batch(lines[i]));
    snprintf(text, sizeof text, "%.*s", NAME_COLUMNS, name);
    if ((int64_t)strlen(text) > longest) longest = (int64_t)strlen(text);
    fputs(i > 0 ? ", " : "", out->variables);
    vl_gnuplot_text(out->variables, text);
    write_steps(lines[i], out, &ratio_max, &steps_max);
  }
  if (count > 0) {
    char text[64] = "";
    if (one_batch) snprintf(text, sizeof text, "batch %lld", (long long)vl_record_batch(lines[0]));
    vl_figure_subtitle(out, text, lines[0]);
    fprintf(out->variables,
            "]\nseries = %d\nkeys = %d\nkey_columns = %d\nxmax = %lld\nratio_max = %.9g\nbody = 520\n", count,
            count, vl_figure_key_columns((size_t)longest), (long long)steps_max,
            1 + 1.15 * (ratio_max - 1) + 0.02);
  }
  free(cells.records);
  return vl_ok();
}
