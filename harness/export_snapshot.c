/* A timeline as PyTorch's memory snapshot: a pickle (protocol 2) of {segments, device_traces, ...} as
 * torch.cuda.memory._snapshot() has it, with the few opcodes that the viewer's own reader knows. Addresses
 * are made up: the heap's segments one after the other. segments is the state when the step had ended,
 * device_traces what led there from nothing; the viewer plays them backwards, so the two must agree. What was
 * held when the step began is obtained first, category by category: of a block that no event obtains the
 * viewer does not tell the category. */
#include "harness/export.h"
#include "harness/report_select.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 1000 }; /* items of a list at once: the viewer spreads them into arguments of a function */
static const int64_t ALIGNED = INT64_C(1) << 21, FIRST_ADDRESS = INT64_C(1) << 40;

/* ---- Pickle ------------------------------------------------------------------------------------------------------- */

static void put_bytes(FILE *out, uint64_t value, int count) {
  for (int i = 0; i < count; i++)
    fputc((int)(value >> (8 * i) & 0xff), out);
}

static void put_text(FILE *out, const char *text) {
  fputc('X', out); /* BINUNICODE */
  put_bytes(out, strlen(text), 4);
  fputs(text, out);
}

/* Always of 8 bytes: the viewer makes a number of that, and something else of more. */
static void put_integer(FILE *out, int64_t value) {
  fputs("\x8a\x08", out); /* LONG1 */
  put_bytes(out, (uint64_t)value, 8);
}

static void put_flag(FILE *out, bool value) { fputc(value ? 0x88 : 0x89, out); }

static void open_map(FILE *out) { fputs("}(", out); }  /* EMPTY_DICT MARK */
static void close_map(FILE *out) { fputc('u', out); }  /* SETITEMS */
static void open_list(FILE *out) { fputs("](", out); } /* EMPTY_LIST MARK */
static void close_list(FILE *out) { fputc('e', out); } /* APPENDS */
static void next_item(FILE *out, int64_t *count) {
  if (*count > 0 && *count % BATCH == 0) fputs("e(", out);
  (*count)++;
}

static void put_named_integer(FILE *out, const char *name, int64_t value) {
  put_text(out, name);
  put_integer(out, value);
}

static void put_named_text(FILE *out, const char *name, const char *value) {
  put_text(out, name);
  put_text(out, value);
}

/* A tensor as the innermost frame, its layer as the one around it; none where there is no event. */
static void put_frames(FILE *out, const TimelineEvent *event) {
  const char *const names[] = {event ? event->name : NULL, event ? event->scope : NULL};
  put_text(out, "frames");
  open_list(out);
  for (size_t i = 0; i < 2; i++) {
    if (!names[i] || !*names[i]) continue;
    open_map(out);
    put_named_text(out, "name", names[i]);
    put_named_text(out, "filename", i == 0 ? "tensor" : "layer");
    put_named_integer(out, "line", 0);
    close_map(out);
  }
  close_list(out);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------- */

/* Bytes of a heap's segment that have memory, and blocks that lie there, in order. */
typedef struct Range {
  int64_t begin, end;
} Range;

typedef struct Layout {
  int64_t *bases; /* the made-up address of each of the heap's segments */
  bool *parts;    /* of each: memory comes and goes in parts (expandable) */
  int64_t stream; /* of everything. The viewer joins parts of one stream, but forgets the streams of events
                   * where all are 0: not 0 where parts that go leave parts behind */
  int32_t count;
  Range **committed; /* of each: disjoint, in order */
  int32_t *committed_count;
  const TimelineEvent **live; /* blocks in use when the step had ended */
  int64_t live_count;
} Layout;

static int64_t address_of(const Layout *layout, const TimelineEvent *event) {
  return event->heap_segment < 0 ? 0 : layout->bases[event->heap_segment] + event->offset;
}

static void commit(Layout *layout, const TimelineEvent *event, bool commits) {
  int32_t s = event->heap_segment, kept = 0, count = layout->committed_count[s];
  Range *old = layout->committed[s], *made = vl_allocate((size_t)(count + 2) * sizeof *made);
  Range change = {event->offset, event->offset + event->bytes};
  /* What touches a new range becomes one with it; of what goes, both ends stay. */
  for (int32_t i = 0; i < count; i++) {
    bool apart = commits ? old[i].end < change.begin || old[i].begin > change.end
                         : old[i].end <= change.begin || old[i].begin >= change.end;
    if (apart) {
      made[kept++] = old[i];
    } else if (commits) {
      if (old[i].begin < change.begin) change.begin = old[i].begin;
      if (old[i].end > change.end) change.end = old[i].end;
    } else {
      if (old[i].begin < change.begin) made[kept++] = (Range){old[i].begin, change.begin};
      if (old[i].end > change.end) made[kept++] = (Range){change.end, old[i].end};
    }
  }
  if (commits) made[kept++] = change;
  free(old);
  layout->committed[s] = made;
  layout->committed_count[s] = kept;
}

static int by_begin(const void *a, const void *b) {
  const Range *one = a, *other = b;
  return (one->begin > other->begin) - (one->begin < other->begin);
}

static int by_place(const void *a, const void *b) {
  const TimelineEvent *one = *(const TimelineEvent *const *)a, *other = *(const TimelineEvent *const *)b;
  if (one->heap_segment != other->heap_segment) return one->heap_segment < other->heap_segment ? -1 : 1;
  return (one->offset > other->offset) - (one->offset < other->offset);
}

/* Blocks begin and end in turn at each place, so that sorted by place and order each is beside its end. */
typedef struct Use {
  const TimelineEvent *event;
  int64_t order;
} Use;

static int by_use(const void *a, const void *b) {
  const Use *one = a, *other = b;
  int place = by_place(&one->event, &other->event);
  return place ? place : (one->order > other->order) - (one->order < other->order);
}

static bool begins_block(int32_t action) {
  return action == MEMORY_OBTAIN || action == MEMORY_HELD || action == MEMORY_MOVE_IN;
}

static bool ends_block(int32_t action) { return action == MEMORY_RELEASE || action == MEMORY_MOVE_OUT; }

static void find_live(Layout *layout, const TimelineEvent *events, int64_t count) {
  Use *uses = vl_allocate((size_t)(count + 1) * sizeof *uses);
  int64_t used = 0;
  layout->live = vl_allocate((size_t)(count + 1) * sizeof *layout->live);
  for (int64_t i = 0; i < count; i++)
    if ((begins_block(events[i].action) || ends_block(events[i].action)) && events[i].heap_segment >= 0)
      uses[used++] = (Use){&events[i], i};
  qsort(uses, (size_t)used, sizeof *uses, by_use);
  for (int64_t i = 0; i < used; i++) {
    bool last = i + 1 == used || by_place(&uses[i].event, &uses[i + 1].event) != 0;
    if (last && begins_block(uses[i].event->action)) layout->live[layout->live_count++] = uses[i].event;
  }
  free(uses);
}

static bool is_segment(int32_t action, bool *commits) {
  *commits = action == MEMORY_SEGMENT_RESERVE || action == MEMORY_SEGMENT_HELD;
  return *commits || action == MEMORY_SEGMENT_RELEASE;
}

static Layout lay_out(const TimelineEvent *events, int64_t count) {
  Layout layout = {0};
  for (int64_t i = 0; i < count; i++)
    if (events[i].heap_segment >= layout.count) layout.count = events[i].heap_segment + 1;
  size_t size = (size_t)layout.count + 1;
  int64_t *ends = vl_allocate(size * sizeof *ends), address = FIRST_ADDRESS;
  layout.bases = vl_allocate(size * sizeof *layout.bases);
  layout.parts = vl_allocate(size * sizeof *layout.parts);
  layout.committed = vl_allocate(size * sizeof *layout.committed);
  layout.committed_count = vl_allocate(size * sizeof *layout.committed_count);
  for (int64_t i = 0; i < count; i++) {
    bool commits;
    int32_t s = events[i].heap_segment;
    if (s < 0) continue;
    if (events[i].offset + events[i].bytes > ends[s]) ends[s] = events[i].offset + events[i].bytes;
    if (is_segment(events[i].action, &commits)) commit(&layout, &events[i], commits);
  }
  for (int64_t i = 0; i < count; i++) {
    bool commits;
    int32_t s = events[i].heap_segment;
    if (s < 0 || !is_segment(events[i].action, &commits) || events[i].bytes == ends[s]) continue;
    layout.parts[s] = true;
    if (!commits) layout.stream = 1;
  }
  for (int32_t s = 0; s < layout.count; s++) {
    layout.bases[s] = address;
    address += (ends[s] / ALIGNED + 2) * ALIGNED; /* never side by side: those would be one */
    qsort(layout.committed[s], (size_t)layout.committed_count[s], sizeof(Range), by_begin);
  }
  free(ends);
  find_live(&layout, events, count);
  qsort(layout.live, (size_t)layout.live_count, sizeof *layout.live, by_place);
  return layout;
}

static void layout_free(Layout *layout) {
  for (int32_t s = 0; s < layout->count; s++)
    free(layout->committed[s]);
  free(layout->committed);
  free(layout->committed_count);
  free(layout->bases);
  free(layout->parts);
  free(layout->live);
}

/* ---- Segments ------------------------------------------------------------------------------------------------------ */

static void put_block(FILE *out, int64_t address, int64_t bytes, const TimelineEvent *event) {
  open_map(out);
  put_named_integer(out, "address", address);
  put_named_integer(out, "size", bytes);
  put_named_integer(out, "requested_size", event ? event->requested_bytes : 0);
  put_named_text(out, "state", event ? "active_allocated" : "inactive");
  put_frames(out, event);
  close_map(out);
}

/* A range with memory, its blocks and what is free between them. */
static void put_segment(FILE *out, const Layout *layout, int32_t s, const Range *range, int64_t *at) {
  int64_t from = *at, active = 0, requested = 0, place = range->begin, blocks = 0;
  while (*at < layout->live_count && layout->live[*at]->heap_segment == s &&
         layout->live[*at]->offset < range->end) {
    active += layout->live[*at]->bytes;
    requested += layout->live[*at]->requested_bytes;
    (*at)++;
  }
  open_map(out);
  put_named_integer(out, "device", 0);
  put_named_integer(out, "address", layout->bases[s] + range->begin);
  put_named_integer(out, "total_size", range->end - range->begin);
  put_named_integer(out, "allocated_size", active);
  put_named_integer(out, "active_size", active);
  put_named_integer(out, "requested_size", requested);
  put_named_integer(out, "stream", layout->stream);
  put_named_text(out, "segment_type", range->end - range->begin <= ALIGNED ? "small" : "large");
  put_text(out, "segment_pool_id");
  put_integer(out, 0);
  put_integer(out, 0);
  fputc(0x86, out); /* TUPLE2 */
  put_text(out, "is_expandable");
  put_flag(out, layout->parts[s]);
  put_text(out, "frames");
  fputc(']', out);
  put_text(out, "blocks");
  open_list(out);
  for (int64_t i = from; i < *at; i++) {
    const TimelineEvent *event = layout->live[i];
    if (event->offset > place) {
      next_item(out, &blocks);
      put_block(out, layout->bases[s] + place, event->offset - place, NULL);
    }
    next_item(out, &blocks);
    put_block(out, layout->bases[s] + event->offset, event->bytes, event);
    place = event->offset + event->bytes;
  }
  if (range->end > place) {
    next_item(out, &blocks);
    put_block(out, layout->bases[s] + place, range->end - place, NULL);
  }
  close_list(out);
  close_map(out);
}

static void put_segments(FILE *out, const Layout *layout) {
  int64_t at = 0, count = 0;
  put_text(out, "segments");
  open_list(out);
  for (int32_t s = 0; s < layout->count; s++)
    for (int32_t r = 0; r < layout->committed_count[s]; r++) {
      next_item(out, &count);
      put_segment(out, layout, s, &layout->committed[s][r], &at);
    }
  close_list(out);
}

/* ---- Events -------------------------------------------------------------------------------------------------------- */

typedef struct EventWriter {
  FILE *out;
  const Layout *layout;
  int64_t count;
} EventWriter;

/* `category`: NULL for none. */
static void put_event(EventWriter *to, const char *action, const TimelineEvent *event, int64_t time_us,
                      const char *category) {
  bool failed = strcmp(action, "oom") == 0;
  next_item(to->out, &to->count);
  open_map(to->out);
  put_named_text(to->out, "action", action);
  put_named_integer(to->out, failed ? "device_free" : "addr",
                    failed || !event ? 0 : address_of(to->layout, event));
  put_named_integer(to->out, "size", event ? event->bytes : 0);
  put_named_integer(to->out, "stream", to->layout->stream);
  put_named_integer(to->out, "time_us", time_us);
  if (category) put_named_text(to->out, "category", category);
  put_frames(to->out, event);
  close_map(to->out);
}

/* Memory that comes to a segment or goes from it: of one that has it in parts what lies side by side is one.
 */
static void put_segment_event(EventWriter *to, const TimelineEvent *event, int64_t time_us) {
  bool comes = event->action != MEMORY_SEGMENT_RELEASE;
  bool part = event->heap_segment >= 0 && to->layout->parts[event->heap_segment];
  const char *action = part    ? (comes ? "segment_map" : "segment_unmap")
                       : comes ? "segment_alloc"
                               : "segment_free";
  put_event(to, action, event, time_us, NULL);
}

static void put_memory_event(EventWriter *to, const TimelineEvent *event, int64_t time_us) {
  const char *category = vl_memory_category_name((MemoryCategory)event->category);
  bool commits;
  if (event->action == MEMORY_OOM) {
    put_event(to, "oom", event, time_us, category);
  } else if (is_segment(event->action, &commits)) {
    put_segment_event(to, event, time_us);
  } else if (begins_block(event->action)) {
    put_event(to, "alloc", event, time_us, category);
  } else if (ends_block(event->action)) {
    put_event(to, "free_requested", event, time_us, category);
    put_event(to, "free_completed", event, time_us, category);
  }
}

/* What is held at the head of the events: segments, then blocks by category. */
static void put_held(EventWriter *to, const TimelineEvent *events, int64_t held) {
  for (int64_t i = 0; i < held; i++)
    if (events[i].action == MEMORY_SEGMENT_HELD) put_segment_event(to, &events[i], 0);
  for (int32_t category = 0; category < MEMORY_CATEGORY_COUNT; category++)
    for (int64_t i = 0; i < held; i++)
      if (events[i].action == MEMORY_HELD && events[i].category == category)
        put_memory_event(to, &events[i], 0);
}

/* Where nothing tells time, events are a microsecond apart. */
static void put_trace(FILE *out, const Layout *layout, const TimelineEvent *events, int64_t count,
                      bool timed) {
  EventWriter to = {.out = out, .layout = layout};
  int64_t held = 0, time_us = 0;
  while (held < count && vl_memory_is_held(events[held].action))
    held++;
  put_text(out, "device_traces");
  open_list(out);
  open_list(out);
  put_held(&to, events, held);
  for (int64_t i = held; i < count; i++) {
    time_us = timed ? events[i].time_ns / 1000 : i - held;
    put_memory_event(&to, &events[i], time_us);
  }
  /* One event of category unknown at least: viewers that colour by category count on it. */
  put_event(&to, "snapshot", NULL, time_us, "unknown");
  close_list(out);
  close_list(out);
}

Status vl_export_snapshot(const ExportInput *input, FILE *out) {
  TimelineEvent *events;
  int64_t count;
  const json_t *record;
  VL_TRY(vl_store_find_timeline(input->store, input->cell, &events, &count, &record));
  Layout layout = lay_out(events, count);
  fputs("\x80\x02", out); /* PROTO 2 */
  open_map(out);
  put_segments(out, &layout);
  put_trace(out, &layout, events, count, !vl_record_is_predicted(record) && events[count - 1].time_ns > 0);
  put_text(out, "allocator_settings");
  fputc('}', out);
  close_map(out);
  fputc('.', out);
  layout_free(&layout);
  free(events);
  return vl_ok();
}
