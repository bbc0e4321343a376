/* The timeline of a cell's last step, or of the first when that runs out of memory: what was held when it
 * began, and every event since. */
#include "engine/cell.h"
#include <stdlib.h>

void cell_mark_segment(Cell *cell, const Instance *instance) {
  if (cell->mark_count == cell->mark_capacity) {
    cell->mark_capacity = cell->mark_capacity ? 2 * cell->mark_capacity : 1024;
    cell->marks = vl_reallocate(cell->marks, (size_t)cell->mark_capacity * sizeof *cell->marks);
  }
  int64_t events = 0;
  vl_tracker_events(cell->tracker, &events);
  cell->marks[cell->mark_count++] = (Mark){events, instance->node->segment};
}

void cell_mark_batch(Cell *cell) {
  if (!cell->marks_segments) return;
  if (cell->batch_end_count == cell->batch_end_capacity) {
    cell->batch_end_capacity = cell->batch_end_capacity ? 2 * cell->batch_end_capacity : 64;
    cell->batch_ends =
        vl_reallocate(cell->batch_ends, (size_t)cell->batch_end_capacity * sizeof *cell->batch_ends);
  }
  int64_t *end = &cell->batch_ends[cell->batch_end_count++];
  (void)vl_tracker_events(cell->tracker, end);
}

static void set_names(TimelineEvent *event, const char *name, const char *scope) {
  snprintf(event->name, sizeof event->name, "%s", name ? name : "");
  snprintf(event->scope, sizeof event->scope, "%s", scope ? scope : "");
}

/* ---- What is held -------------------------------------------------------------------------------------- */

typedef struct Held {
  const Tracker *tracker;
  TimelineEvent *events;
  int64_t count, capacity;
} Held;

static void add_held(Held *held, TimelineEvent event, uintptr_t address) {
  if (held->count == held->capacity) {
    held->capacity = held->capacity ? 2 * held->capacity : 1024;
    held->events = vl_reallocate(held->events, (size_t)held->capacity * sizeof *held->events);
  }
  const MemorySegment *segment = vl_tracker_segment_of(held->tracker, address);
  event.heap_segment = segment ? segment->number : -1;
  event.offset = segment ? segment->offset + (int64_t)(address - segment->address) : 0;
  held->events[held->count++] = event;
}

static void add_block(void *context, const Block *block) {
  Held *held = context;
  TimelineEvent event = {.action = MEMORY_HELD,
                         .category = (int32_t)block->category,
                         .bytes = block->bytes,
                         .requested_bytes = block->requested_bytes,
                         .stream = block->stream,
                         .op = -1};
  set_names(&event, block->name, block->scope);
  add_held(held, event, block->address);
}

static int by_place(const void *a, const void *b) {
  const TimelineEvent *left = a, *right = b;
  if (left->action != right->action) return left->action == MEMORY_SEGMENT_HELD ? -1 : 1;
  if (left->heap_segment != right->heap_segment) return left->heap_segment < right->heap_segment ? -1 : 1;
  return (left->offset > right->offset) - (left->offset < right->offset);
}

void cell_begin_timeline(Cell *cell) {
  Held held = {.tracker = cell->tracker};
  MemoryStatistics statistics;
  vl_tracker_statistics(cell->tracker, &statistics);
  int64_t segments;
  const MemorySegment *segment = vl_tracker_segments(cell->tracker, &segments);
  for (int64_t i = 0; i < segments; i++)
    add_held(&held, (TimelineEvent){.action = MEMORY_SEGMENT_HELD, .bytes = segment[i].bytes, .op = -1},
             segment[i].address);
  vl_heap_each_block(cell->heap, add_block, &held);
  for (int64_t i = 0; i < held.count; i++) {
    held.events[i].allocated_bytes = statistics.allocated.current_bytes;
    held.events[i].reserved_bytes = statistics.reserved.current_bytes;
  }
  if (held.count > 0) qsort(held.events, (size_t)held.count, sizeof *held.events, by_place);
  free(cell->held);
  cell->held = held.events;
  cell->held_count = held.count;
  vl_tracker_keep_events(cell->tracker, true);
  cell->marks_segments = true;
}

void cell_drop_timeline(Cell *cell) {
  vl_tracker_keep_events(cell->tracker, false);
  vl_tracker_clear_events(cell->tracker);
  cell->marks_segments = false;
  cell->mark_count = cell->batch_end_count = 0;
}

/* ---- What happened --------------------------------------------------------------------------------------- */

/* Nothing changes but the batch. */
static TimelineEvent batch_end(const TimelineEvent *before) {
  TimelineEvent event = {.action = MEMORY_STEP, .heap_segment = -1, .op = -1};
  if (!before) return event;
  event.time_ns = before->time_ns;
  event.allocated_bytes = before->allocated_bytes;
  event.reserved_bytes = before->reserved_bytes;
  event.segment = before->segment;
  return event;
}

void cell_end_timeline(Cell *cell) {
  int64_t count = 0, mark = 0, ended = 0;
  const MemoryEvent *events = vl_tracker_events(cell->tracker, &count);
  CellResult *result = cell->result;
  result->timeline_count = cell->held_count + count + cell->batch_end_count;
  result->timeline =
      vl_reallocate(cell->held, (size_t)(result->timeline_count + 1) * sizeof *result->timeline);
  cell->held = NULL;
  TimelineEvent *to = result->timeline + cell->held_count;
  for (int64_t i = 0; i < count; i++) {
    for (; ended < cell->batch_end_count && cell->batch_ends[ended] <= i; ended++, to++)
      *to = batch_end(to == result->timeline ? NULL : to - 1);
    /* A mark is set after the launch: the releases that follow it are still its instance's. */
    bool is_release = events[i].action == MEMORY_RELEASE;
    while (mark + 1 < cell->mark_count &&
           (cell->marks[mark + 1].event_count <= i || (cell->marks[mark].event_count <= i && !is_release)))
      mark++;
    *to = (TimelineEvent){.time_ns = events[i].time_ns - events[0].time_ns,
                          .action = (int32_t)events[i].action,
                          .category = (int32_t)events[i].category,
                          .bytes = events[i].bytes,
                          .requested_bytes = events[i].requested_bytes,
                          .allocated_bytes = events[i].allocated_bytes,
                          .reserved_bytes = events[i].reserved_bytes,
                          .offset = events[i].offset,
                          .heap_segment = events[i].segment,
                          .segment = cell->mark_count ? (int32_t)cell->marks[mark].segment : 0,
                          .stream = events[i].stream,
                          .op = cell->mark_count ? (int32_t)mark : -1};
    set_names(to++, events[i].name, events[i].scope);
  }
  for (; ended < cell->batch_end_count; ended++, to++)
    *to = batch_end(to == result->timeline ? NULL : to - 1);
  cell_drop_timeline(cell);
}
