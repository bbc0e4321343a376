/* The tracker: the one place that counts bytes. An event costs a few additions and compares; the clock is
 * read only when the event is kept. */
#include "memory/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_EVENT_CAPACITY = 1024 };

struct Tracker {
  MemoryStatistics statistics; /* cached_free_at_peak_bytes is filled in on reading */
  int64_t allocated_at_reserved_peak_bytes;
  int64_t requested_bytes[MEMORY_CATEGORY_COUNT];
  int64_t place;
  ScopeTable *scopes;
  bool keep;
  int64_t recorded_count; /* kept or not */
  MemoryEvent *events;
  int64_t event_count, event_capacity;
  MemorySegment *segments; /* in order of address */
  int64_t segment_count, segment_capacity;
  int32_t next_segment;
};

const char *vl_memory_category_name(MemoryCategory category) {
  static const char *const names[MEMORY_CATEGORY_COUNT] = {
      [MEMORY_PARAMETER] = "parameter",
      [MEMORY_GRADIENT] = "gradient",
      [MEMORY_OPTIMIZER] = "optimizer",
      [MEMORY_ACTIVATION] = "activation",
      [MEMORY_INPUT] = "input",
      [MEMORY_WORKSPACE] = "workspace",
      [MEMORY_COMMUNICATION] = "communication",
  };
  assert((unsigned)category < MEMORY_CATEGORY_COUNT);
  return names[category];
}

bool vl_memory_is_held(int32_t action) { return action == MEMORY_HELD || action == MEMORY_SEGMENT_HELD; }

Tracker *vl_tracker_create(bool timeline) {
  Tracker *tracker = vl_allocate(sizeof *tracker);
  tracker->scopes = vl_scope_table_create();
  tracker->keep = timeline;
  return tracker;
}

void vl_tracker_destroy(Tracker **tracker) {
  if (*tracker == NULL) return;
  vl_scope_table_destroy(&(*tracker)->scopes);
  free((*tracker)->events);
  free((*tracker)->segments);
  free(*tracker);
  *tracker = NULL;
}

/* ---- Recording ------------------------------------------------------------------------------------- */

static void counter_change(MemoryCounter *counter, int64_t bytes) {
  counter->current_bytes += bytes;
  if (counter->current_bytes > counter->peak_bytes) counter->peak_bytes = counter->current_bytes;
}

static void save_split_at_peak(Tracker *tracker) {
  MemoryStatistics *statistics = &tracker->statistics;
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    statistics->category_at_peak_bytes[i] = statistics->by_category[i].current_bytes;
    statistics->requested_at_peak_bytes[i] = tracker->requested_bytes[i];
  }
  statistics->place_at_peak = tracker->place;
  vl_scope_table_mark_peak(tracker->scopes);
}

/* Reserved stays at its peak for a while: what counts is the most that was in use meanwhile, else the
 * segment just taken would always count as free. */
static void follow_reserved_peak(Tracker *tracker) {
  const MemoryStatistics *statistics = &tracker->statistics;
  if (statistics->reserved.current_bytes == statistics->reserved.peak_bytes &&
      statistics->allocated.current_bytes > tracker->allocated_at_reserved_peak_bytes) {
    tracker->allocated_at_reserved_peak_bytes = statistics->allocated.current_bytes;
  }
}

/* ---- Segments: few, so an array in order of address will do ---------------------------------------- */

/* How many of them begin at an address or below. */
static int64_t segments_up_to(const Tracker *tracker, uintptr_t address) {
  int64_t low = 0, high = tracker->segment_count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (tracker->segments[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void insert_segment(Tracker *tracker, MemorySegment segment) {
  if (tracker->segment_count == tracker->segment_capacity) {
    tracker->segment_capacity = tracker->segment_capacity ? 2 * tracker->segment_capacity : 64;
    tracker->segments =
        vl_reallocate(tracker->segments, (size_t)tracker->segment_capacity * sizeof *tracker->segments);
  }
  int64_t at = segments_up_to(tracker, segment.address);
  MemorySegment *place = tracker->segments + at;
  memmove(place + 1, place, (size_t)(tracker->segment_count - at) * sizeof *place);
  *place = segment;
  tracker->segment_count++;
}

/* A range that begins at `origin` keeps its number while any of it has memory. */
static void add_segment(Tracker *tracker, uintptr_t origin, uintptr_t address, int64_t bytes) {
  MemorySegment segment = {
      .address = address, .bytes = bytes, .offset = (int64_t)(address - origin), .number = -1};
  for (int64_t i = 0; i < tracker->segment_count && segment.number < 0; i++) {
    const MemorySegment *other = &tracker->segments[i];
    if (other->address - (uintptr_t)other->offset == origin) segment.number = other->number;
  }
  if (segment.number < 0) segment.number = tracker->next_segment++;
  insert_segment(tracker, segment);
}

/* What of a segment lies in a part of it. */
static MemorySegment part_of(const MemorySegment *segment, uintptr_t from, uintptr_t until) {
  return (MemorySegment){.address = from,
                         .bytes = (int64_t)(until - from),
                         .offset = segment->offset + (int64_t)(from - segment->address),
                         .number = segment->number};
}

/* Takes a range out of those there are; it may end inside of one, and span several. */
static void remove_segments(Tracker *tracker, uintptr_t address, int64_t bytes) {
  uintptr_t end = address + (uintptr_t)bytes;
  for (int64_t at = segments_up_to(tracker, end - 1) - 1; at >= 0; at--) {
    MemorySegment segment = tracker->segments[at];
    uintptr_t segment_end = segment.address + (uintptr_t)segment.bytes;
    if (segment_end <= address) break;
    MemorySegment *place = tracker->segments + at;
    memmove(place, place + 1, (size_t)(tracker->segment_count - at - 1) * sizeof *place);
    tracker->segment_count--;
    if (segment_end > end) insert_segment(tracker, part_of(&segment, end, segment_end));
    if (segment.address < address) insert_segment(tracker, part_of(&segment, segment.address, address));
  }
}

const MemorySegment *vl_tracker_segments(const Tracker *tracker, int64_t *count) {
  *count = tracker->segment_count;
  return tracker->segments;
}

const MemorySegment *vl_tracker_segment_of(const Tracker *tracker, uintptr_t address) {
  int64_t count = segments_up_to(tracker, address);
  const MemorySegment *below = count > 0 ? &tracker->segments[count - 1] : NULL;
  return below != NULL && address - below->address < (uintptr_t)below->bytes ? below : NULL;
}

/* Counts the event and keeps it when a timeline is wanted; totals are those after the event. */
static void append_event(Tracker *tracker, MemoryEvent event) {
  tracker->recorded_count++;
  if (!tracker->keep) return;
  if (tracker->event_count == tracker->event_capacity) {
    int64_t capacity = tracker->event_capacity == 0 ? FIRST_EVENT_CAPACITY : 2 * tracker->event_capacity;
    tracker->events = vl_reallocate(tracker->events, (size_t)capacity * sizeof(MemoryEvent));
    tracker->event_capacity = capacity;
  }
  event.time_ns = vl_monotonic_ns();
  event.place = tracker->place;
  event.allocated_bytes = tracker->statistics.allocated.current_bytes;
  event.reserved_bytes = tracker->statistics.reserved.current_bytes;
  const MemorySegment *segment = vl_tracker_segment_of(tracker, event.address);
  event.segment = segment != NULL ? segment->number : -1;
  event.offset = segment != NULL ? segment->offset + (int64_t)(event.address - segment->address) : 0;
  tracker->events[tracker->event_count++] = event;
}

static MemoryEvent event_of(MemoryAction action, const Block *block) {
  return (MemoryEvent){.action = action,
                       .category = block->category,
                       .address = block->address,
                       .bytes = block->bytes,
                       .requested_bytes = block->requested_bytes,
                       .name = block->name,
                       .scope = block->scope,
                       .stream = block->stream};
}

void vl_tracker_record_move(Tracker *tracker, const Block *block, uintptr_t from) {
  MemoryEvent out = event_of(MEMORY_MOVE_OUT, block);
  out.address = from;
  append_event(tracker, out);
  append_event(tracker, event_of(MEMORY_MOVE_IN, block));
}

void vl_tracker_record_block(Tracker *tracker, MemoryAction action, const Block *block) {
  MemoryStatistics *statistics = &tracker->statistics;
  bool obtained = action == MEMORY_OBTAIN;
  int64_t change_bytes = obtained ? block->bytes : -block->bytes;
  int64_t requested_change_bytes = obtained ? block->requested_bytes : -block->requested_bytes;
  int64_t peak_before_bytes = statistics->allocated.peak_bytes;
  tracker->requested_bytes[block->category] += requested_change_bytes;
  counter_change(&statistics->requested, requested_change_bytes);
  counter_change(&statistics->allocated, change_bytes);
  counter_change(&statistics->by_category[block->category], change_bytes);
  vl_scope_table_change(tracker->scopes, block->scope, block->category, change_bytes);
  if (obtained) {
    statistics->obtains++;
    if (statistics->allocated.peak_bytes > peak_before_bytes) save_split_at_peak(tracker);
    follow_reserved_peak(tracker);
  } else {
    statistics->releases++;
  }
  append_event(tracker, event_of(action, block));
}

void vl_tracker_record_segment(Tracker *tracker, MemoryAction action, uintptr_t origin, uintptr_t address,
                               int64_t bytes, int stream) {
  MemoryStatistics *statistics = &tracker->statistics;
  if (action == MEMORY_SEGMENT_RESERVE) {
    int64_t peak_before_bytes = statistics->reserved.peak_bytes;
    counter_change(&statistics->reserved, bytes);
    statistics->segment_reserves++;
    if (address != 0) add_segment(tracker, origin, address, bytes);
    if (statistics->reserved.peak_bytes > peak_before_bytes) {
      tracker->allocated_at_reserved_peak_bytes = statistics->allocated.current_bytes;
    }
  } else {
    counter_change(&statistics->reserved, -bytes);
    statistics->segment_releases++;
  }
  append_event(
      tracker,
      (MemoryEvent){
          .action = action, .address = address, .bytes = bytes, .requested_bytes = bytes, .stream = stream});
  if (action == MEMORY_SEGMENT_RELEASE && address != 0) remove_segments(tracker, address, bytes);
}

void vl_tracker_record_failure(Tracker *tracker, const AllocationRequest *request, int64_t bytes) {
  tracker->statistics.ooms++;
  append_event(tracker, (MemoryEvent){.action = MEMORY_OOM,
                                      .category = request->category,
                                      .bytes = bytes,
                                      .requested_bytes = request->bytes,
                                      .name = request->name,
                                      .scope = request->scope,
                                      .stream = request->stream});
}

void vl_tracker_set_place(Tracker *tracker, int64_t place) { tracker->place = place; }

void vl_tracker_count_retry(Tracker *tracker) { tracker->statistics.retries++; }

/* ---- Reading ------------------------------------------------------------------------------------------ */

void vl_tracker_statistics(const Tracker *tracker, MemoryStatistics *statistics) {
  *statistics = tracker->statistics;
  statistics->cached_free_at_peak_bytes =
      statistics->reserved.peak_bytes - tracker->allocated_at_reserved_peak_bytes;
}

void vl_tracker_reset_peaks(Tracker *tracker) {
  MemoryStatistics *statistics = &tracker->statistics;
  statistics->requested.peak_bytes = statistics->requested.current_bytes;
  statistics->allocated.peak_bytes = statistics->allocated.current_bytes;
  statistics->reserved.peak_bytes = statistics->reserved.current_bytes;
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    statistics->by_category[i].peak_bytes = statistics->by_category[i].current_bytes;
  }
  tracker->allocated_at_reserved_peak_bytes = statistics->allocated.current_bytes;
  save_split_at_peak(tracker);
}

const MemoryEvent *vl_tracker_events(const Tracker *tracker, int64_t *count) {
  *count = tracker->event_count;
  return tracker->event_count > 0 ? tracker->events : NULL;
}

void vl_tracker_clear_events(Tracker *tracker) { tracker->event_count = 0; }

void vl_tracker_keep_events(Tracker *tracker, bool keep) { tracker->keep = keep; }

int64_t vl_tracker_event_count(const Tracker *tracker) { return tracker->recorded_count; }

int64_t vl_tracker_scopes_at_peak(const Tracker *tracker, ScopeBytes *scopes, int64_t capacity) {
  return vl_scope_table_at_peak(tracker->scopes, scopes, capacity);
}
