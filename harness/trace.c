/* Traces: read with every fact checked, made from a cell's timeline, written. */
#include "harness/trace.h"
#include "harness/columns.h"

#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

enum { TRACE_VERSION = 1, LINE_BYTES = 1 << 16, TEXT_BYTES = 1024, MOST_STREAMS = 65536 };
static const int64_t largest_file_bytes = INT64_C(2) << 30;
/* Far beyond any machine, and far from overflow. */
static const int64_t largest_block_bytes = INT64_C(1) << 40, largest_live_bytes = INT64_C(1) << 50,
                     largest_address = INT64_C(1) << 62;

static const char *const action_names[] = {
    [TRACE_OBTAIN] = "obtain", [TRACE_RELEASE] = "release", [TRACE_STEP] = "step", [TRACE_FAILED] = "failed"};
enum { ACTION_COUNT = sizeof action_names / sizeof *action_names };

/* ---- Blocks in use, by where they lie ---------------------------------------------------------------------- */

typedef struct LiveBlock {
  uint64_t address, end;
  int64_t number, bytes;
} LiveBlock;

/* Two that overlap compare equal. Those in the tree never do, so that the order is one. */
static int by_address(const void *a, const void *b) {
  const LiveBlock *left = a, *right = b;
  if (left->end <= right->address) return -1;
  return left->address >= right->end ? 1 : 0;
}

/* What a trace is made with: a block at a time, refusing what cannot have happened. */
typedef struct Builder {
  TraceFile *file;
  int64_t event_capacity, block_capacity;
  void *live; /* search tree of LiveBlock */
  int64_t live_bytes;
  LiveBlock *moving; /* taken out of the tree, on its way */
  bool moved;
} Builder;

static void begin(Builder *builder) {
  *builder = (Builder){.file = vl_allocate(sizeof(TraceFile))};
  builder->file->arena = vl_arena_create();
  builder->file->source = "";
  builder->file->reserved_peak_bytes = -1;
}

static void add_event(Builder *builder, TraceEvent event) {
  Trace *trace = &builder->file->trace;
  if (trace->event_count == builder->event_capacity) {
    builder->event_capacity = builder->event_capacity ? 2 * builder->event_capacity : 1024;
    trace->events = vl_reallocate(trace->events, (size_t)builder->event_capacity * sizeof *trace->events);
  }
  trace->events[trace->event_count++] = event;
  if (event.action == TRACE_STEP) trace->step_count++;
}

static Status add_block(Builder *builder, TraceEvent event, uint64_t address) {
  TraceFile *file = builder->file;
  LiveBlock *block = vl_allocate(sizeof *block);
  *block = (LiveBlock){address, address + (uint64_t)event.bytes, file->trace.block_count, event.bytes};
  const LiveBlock *there = *(LiveBlock **)tsearch(block, &builder->live, by_address);
  if (there != block) {
    free(block);
    return vl_error(VL_INVALID,
                    "the block at %" PRIu64 " of %" PRId64 " bytes overlaps the one at %" PRIu64
                    " of %" PRId64 " bytes, which is still in use",
                    address, event.bytes, there->address, there->bytes);
  }
  builder->live_bytes += event.bytes;
  if (builder->live_bytes > largest_live_bytes)
    return vl_error(VL_INVALID, "%" PRId64 " bytes are in use at once; accepted: up to %" PRId64,
                    builder->live_bytes, largest_live_bytes);
  if (file->trace.block_count == builder->block_capacity) {
    builder->block_capacity = builder->block_capacity ? 2 * builder->block_capacity : 1024;
    file->addresses =
        vl_reallocate(file->addresses, (size_t)builder->block_capacity * sizeof *file->addresses);
  }
  file->addresses[file->trace.block_count] = address;
  event.block = file->trace.block_count++;
  add_event(builder, event);
  return vl_ok();
}

/* The block in use that begins at an address. */
static Status find_block(Builder *builder, uint64_t address, LiveBlock **block) {
  LiveBlock key = {.address = address, .end = address + 1};
  LiveBlock **found = tfind(&key, &builder->live, by_address);
  if (found == NULL)
    return vl_error(VL_INVALID, "no block in use lies at %" PRIu64 ": never obtained, or released before",
                    address);
  *block = *found;
  if ((*block)->address != address)
    return vl_error(VL_INVALID, "%" PRIu64 " lies inside the block at %" PRIu64 " of %" PRId64 " bytes",
                    address, (*block)->address, (*block)->bytes);
  return vl_ok();
}

static Status end_block(Builder *builder, uint64_t address) {
  LiveBlock *block = NULL;
  VL_TRY(find_block(builder, address, &block));
  add_event(builder, (TraceEvent){.action = TRACE_RELEASE, .block = block->number});
  builder->live_bytes -= block->bytes;
  tdelete(block, &builder->live, by_address);
  free(block);
  return vl_ok();
}

/* The trace, or nothing when the status says so. */
static Status end(Builder *builder, Status status, TraceFile **file) {
  tdestroy(builder->live, free);
  free(builder->moving);
  if (status.code != VL_OK) vl_trace_destroy(&builder->file);
  *file = builder->file;
  return status;
}

void vl_trace_destroy(TraceFile **file) {
  if (*file == NULL) return;
  free((*file)->trace.events);
  free((*file)->addresses);
  vl_arena_destroy(&(*file)->arena);
  free(*file);
  *file = NULL;
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

static Status get_integer(const json_t *line, const char *key, int64_t low, int64_t high, int64_t *value) {
  const json_t *number = json_object_get(line, key);
  if (number == NULL) return vl_error(VL_INVALID, "\"%s\" is missing", key);
  *value = json_integer_value(number);
  if (json_is_integer(number) && *value >= low && *value <= high) return vl_ok();
  char *text = json_dumps(number, JSON_ENCODE_ANY | JSON_COMPACT);
  Status status =
      vl_error(VL_INVALID, "\"%s\" is %.60s; accepted: a whole number from %" PRId64 " to %" PRId64, key,
               text != NULL ? text : "?", low, high);
  free(text);
  return status;
}

/* NULL when there is none. */
static Status get_text(Builder *builder, const json_t *line, const char *key, const char **text) {
  const json_t *value = json_object_get(line, key);
  *text = NULL;
  if (value == NULL) return vl_ok();
  if (!json_is_string(value) || json_string_length(value) > TEXT_BYTES)
    return vl_error(VL_INVALID, "\"%s\" is not a text of up to %d bytes", key, TEXT_BYTES);
  *text = vl_arena_copy_text(builder->file->arena, json_string_value(value));
  return vl_ok();
}

/* Nothing but these keys; a key may be required by whoever reads it. */
static Status check_keys(json_t *line, const char *accepted) {
  const char *key;
  json_t *value;
  json_object_foreach(line, key, value) {
    char word[80];
    if (strlen(key) > 60)
      return vl_error(VL_INVALID, "a key of %zu bytes; accepted:%s", strlen(key), accepted);
    snprintf(word, sizeof word, " %s ", key);
    if (strchr(key, ' ') != NULL || strstr(accepted, word) == NULL)
      return vl_error(VL_INVALID, "unknown key \"%s\"; accepted:%s", key, accepted);
  }
  return vl_ok();
}

static Status get_category(const json_t *line, MemoryCategory *category) {
  const json_t *value = json_object_get(line, "category");
  *category = MEMORY_ACTIVATION;
  if (value == NULL) return vl_ok();
  const char *name = json_string_value(value);
  char names[128] = "";
  for (int c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
    const char *known = vl_memory_category_name((MemoryCategory)c);
    *category = (MemoryCategory)c;
    if (name != NULL && strcmp(name, known) == 0) return vl_ok();
    snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", c > 0 ? ", " : "", known);
  }
  return vl_error(VL_INVALID, "\"category\" is %s%.40s%s; accepted: %s", name ? "\"" : "",
                  name ? name : "no text", name ? "\"" : "", names);
}

static Status get_action(const json_t *line, TraceAction *action) {
  const char *name = json_string_value(json_object_get(line, "action"));
  char names[64] = "";
  for (int a = 0; a < ACTION_COUNT; a++) {
    *action = (TraceAction)a;
    if (name != NULL && strcmp(name, action_names[a]) == 0) return vl_ok();
    snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", a > 0 ? ", " : "", action_names[a]);
  }
  if (name == NULL) return vl_error(VL_INVALID, "\"action\" is missing; accepted: %s", names);
  return vl_error(VL_INVALID, "\"action\" is \"%.40s\"; accepted: %s", name, names);
}

static Status get_request(Builder *builder, const json_t *line, TraceEvent *event) {
  int64_t stream = 0;
  VL_TRY(get_integer(line, "bytes", 1, largest_block_bytes, &event->bytes));
  if (json_object_get(line, "stream") != NULL)
    VL_TRY(get_integer(line, "stream", 0, MOST_STREAMS - 1, &stream));
  event->stream = (int)stream;
  VL_TRY(get_category(line, &event->category));
  VL_TRY(get_text(builder, line, "name", &event->name));
  return get_text(builder, line, "scope", &event->scope);
}

static Status take_event(Builder *builder, json_t *line) {
  static const char *const keys[ACTION_COUNT] = {
      [TRACE_OBTAIN] = " action address bytes category name scope stream time_ns ",
      [TRACE_RELEASE] = " action address time_ns ",
      [TRACE_STEP] = " action time_ns ",
      [TRACE_FAILED] = " action bytes category name scope stream time_ns "};
  TraceEvent event = {.block = -1};
  int64_t address = 0, time_ns = 0;
  VL_TRY(get_action(line, &event.action));
  VL_TRY(check_keys(line, keys[event.action]));
  if (json_object_get(line, "time_ns") != NULL) VL_TRY(get_integer(line, "time_ns", 0, INT64_MAX, &time_ns));
  if (event.action == TRACE_OBTAIN || event.action == TRACE_RELEASE)
    VL_TRY(get_integer(line, "address", 0, largest_address, &address));
  if (event.action == TRACE_OBTAIN || event.action == TRACE_FAILED)
    VL_TRY(get_request(builder, line, &event));
  if (event.action == TRACE_OBTAIN) return add_block(builder, event, (uint64_t)address);
  if (event.action == TRACE_RELEASE) return end_block(builder, (uint64_t)address);
  add_event(builder, event);
  return vl_ok();
}

static Status take_head(Builder *builder, json_t *line) {
  TraceFile *file = builder->file;
  int64_t version = 0;
  const char *source = NULL;
  if (json_object_get(line, "vramlab_trace") == NULL)
    return vl_error(VL_INVALID, "not a trace, which begins with {\"vramlab_trace\":%d}", TRACE_VERSION);
  VL_TRY(check_keys(line, " vramlab_trace source capacity_bytes reserved_peak_bytes "));
  VL_TRY(get_integer(line, "vramlab_trace", 1, TRACE_VERSION, &version));
  VL_TRY(get_text(builder, line, "source", &source));
  if (source != NULL) file->source = source;
  if (json_object_get(line, "capacity_bytes") != NULL)
    VL_TRY(get_integer(line, "capacity_bytes", 1, largest_live_bytes, &file->capacity_bytes));
  if (json_object_get(line, "reserved_peak_bytes") != NULL)
    VL_TRY(get_integer(line, "reserved_peak_bytes", 0, largest_live_bytes, &file->reserved_peak_bytes));
  return vl_ok();
}

static Status take_line(Builder *builder, const char *text, size_t length, bool first) {
  json_error_t problem;
  if (length > LINE_BYTES)
    return vl_error(VL_INVALID, "%zu bytes long; accepted: up to %d", length, LINE_BYTES);
  json_t *line = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
  Status status = vl_ok();
  if (!json_is_object(line))
    status = vl_error(VL_INVALID, "not a JSON object%s%.150s", line ? "" : ": ", line ? "" : problem.text);
  else
    status = first ? take_head(builder, line) : take_event(builder, line);
  json_decref(line);
  return status;
}

static Status take_lines(Builder *builder, const char *text, size_t size) {
  size_t start = 0;
  for (int64_t number = 1; start < size || number == 1; number++) {
    const char *newline = size > start ? memchr(text + start, '\n', size - start) : NULL;
    size_t length = newline != NULL ? (size_t)(newline - (text + start)) : size - start;
    Status status = take_line(builder, text + start, length, number == 1);
    if (status.code != VL_OK) return vl_error(VL_INVALID, "%lld: %s", (long long)number, status.message);
    start += length + 1;
  }
  if (builder->file->trace.block_count > 0) return vl_ok();
  return vl_error(VL_INVALID, " no block is ever obtained");
}

/* PyTorch's snapshots are pickles, of protocol 2 or later. */
static bool is_pickle(const char *text, size_t size) {
  return size > 1 && (unsigned char)text[0] == 0x80 && text[1] >= 2 && text[1] <= 5;
}

Status vl_trace_parse(const char *text, size_t size, const char *name, TraceFile **file) {
  *file = NULL;
  if (is_pickle(text, size))
    return vl_error(
        VL_INVALID,
        "%s: a pickle, as PyTorch's snapshots are; convert it: scripts/data/pytorch_snapshot.py %s "
        "trace.jsonl",
        name, name);
  Builder builder;
  begin(&builder);
  Status status = take_lines(&builder, text, size);
  if (status.code != VL_OK) status = vl_error(VL_INVALID, "%s:%s", name, status.message);
  return end(&builder, status, file);
}

static Status read_all(FILE *in, const char *path, char **text, size_t *size) {
  size_t room = (size_t)1 << 16;
  *size = 0;
  *text = vl_allocate(room);
  for (size_t got; (got = fread(*text + *size, 1, room - *size, in)) > 0;) {
    *size += got;
    if ((int64_t)*size > largest_file_bytes)
      return vl_error(VL_INVALID, "%s: more than %" PRId64 " bytes; accepted: up to that", path,
                      largest_file_bytes);
    if (*size == room) *text = vl_reallocate(*text, room *= 2);
  }
  return ferror(in) ? vl_error(VL_INVALID, "%s: %s", path, strerror(errno)) : vl_ok();
}

Status vl_trace_read(const char *path, TraceFile **file) {
  *file = NULL;
  bool standard_input = strcmp(path, "-") == 0;
  FILE *in = standard_input ? stdin : fopen(path, "rb");
  if (in == NULL) return vl_error(VL_INVALID, "%s: %s", path, strerror(errno));
  char *text = NULL;
  size_t size = 0;
  const char *name = standard_input ? "standard input" : path;
  Status status = read_all(in, name, &text, &size);
  if (!standard_input) fclose(in);
  if (status.code == VL_OK) status = vl_trace_parse(text, size, name, file);
  free(text);
  return status;
}

/* ---- From a timeline -------------------------------------------------------------------------------------------- */

/* Segments of the heap, one after another at distances larger than any. */
static Status place_of(const TimelineEvent *event, uint64_t *address) {
  if (event->heap_segment < 0 || event->heap_segment >= 1 << 20 || event->offset < 0 ||
      event->offset >= largest_block_bytes)
    return vl_error(VL_INVALID, "the timeline does not tell where blocks lay: run the cell again");
  *address = ((uint64_t)event->heap_segment << 41) + (uint64_t)event->offset;
  return vl_ok();
}

/* A compaction moved a block: no request, but it lies elsewhere since. */
static Status move_block(Builder *builder, bool out, uint64_t address) {
  if (out) {
    free(builder->moving);
    builder->moving = NULL;
    VL_TRY(find_block(builder, address, &builder->moving));
    tdelete(builder->moving, &builder->live, by_address);
    return vl_ok();
  }
  LiveBlock *block = builder->moving;
  if (block == NULL)
    return vl_error(VL_INVALID, "the timeline is damaged: nothing moves to %" PRIu64, address);
  block->end += address - block->address;
  block->address = address;
  if (*(LiveBlock **)tsearch(block, &builder->live, by_address) != block)
    return vl_error(VL_INVALID, "the timeline is damaged: a block moves to %" PRIu64 " onto another",
                    address);
  builder->moving = NULL;
  builder->moved = true;
  return vl_ok();
}

/* Where blocks were moved, each gets a place of its own: no address stands for two of them. */
static void tell_apart(TraceFile *file) {
  uint64_t address = 0;
  for (int64_t i = 0; i < file->trace.event_count; i++) {
    const TraceEvent *event = &file->trace.events[i];
    if (event->action != TRACE_OBTAIN) continue;
    file->addresses[event->block] = address;
    address += ((uint64_t)event->bytes + VL_BLOCK_BYTES - 1) / VL_BLOCK_BYTES * VL_BLOCK_BYTES;
  }
}

static Status take_timeline_event(Builder *builder, const TimelineEvent *from) {
  Arena *arena = builder->file->arena;
  TraceEvent event = {.block = -1,
                      .bytes = from->requested_bytes,
                      .stream = from->stream > 0 ? from->stream : 0,
                      .category = (MemoryCategory)from->category};
  uint64_t address = 0;
  switch (from->action) {
  case MEMORY_RELEASE: VL_TRY(place_of(from, &address)); return end_block(builder, address);
  case MEMORY_MOVE_OUT:
  case MEMORY_MOVE_IN:
    VL_TRY(place_of(from, &address));
    return move_block(builder, from->action == MEMORY_MOVE_OUT, address);
  case MEMORY_STEP: add_event(builder, (TraceEvent){.action = TRACE_STEP, .block = -1}); return vl_ok();
  case MEMORY_OBTAIN:
  case MEMORY_HELD: VL_TRY(place_of(from, &address)); break;
  case MEMORY_OOM: event.action = TRACE_FAILED; break;
  default: return vl_ok();
  }
  if (from->category < 0 || from->category >= MEMORY_CATEGORY_COUNT || event.bytes < 1 ||
      event.bytes > largest_block_bytes)
    return vl_error(VL_INVALID, "the timeline is damaged: category %d, %" PRId64 " bytes", from->category,
                    event.bytes);
  event.name = vl_arena_copy_text(arena, from->name);
  event.scope = vl_arena_copy_text(arena, from->scope);
  if (event.action == TRACE_OBTAIN) return add_block(builder, event, address);
  add_event(builder, event);
  return vl_ok();
}

Status vl_trace_from_timeline(const TimelineEvent *events, int64_t count, TraceFile **file) {
  Builder builder;
  begin(&builder);
  Status status = vl_ok();
  for (int64_t i = 0; i < count && status.code == VL_OK; i++) {
    bool step_begins =
        i > 0 && !vl_memory_is_held(events[i].action) && vl_memory_is_held(events[i - 1].action);
    if (step_begins) add_event(&builder, (TraceEvent){.action = TRACE_STEP, .block = -1});
    status = take_timeline_event(&builder, &events[i]);
    if (events[i].reserved_bytes > builder.file->reserved_peak_bytes)
      builder.file->reserved_peak_bytes = events[i].reserved_bytes;
  }
  if (count == 0 || events[count - 1].action != MEMORY_STEP)
    add_event(&builder, (TraceEvent){.action = TRACE_STEP, .block = -1});
  if (builder.moved) tell_apart(builder.file);
  return end(&builder, status, file);
}

/* ---- Writing ------------------------------------------------------------------------------------------------------ */

static void write_line(FILE *out, json_t *line) {
  json_dumpf(line, out, JSON_COMPACT);
  fputc('\n', out);
  json_decref(line);
}

static void set_text(json_t *line, const char *key, const char *text) {
  if (text != NULL && *text != '\0') json_object_set_new(line, key, vl_json_text(text));
}

static json_t *event_line(const TraceFile *file, const TraceEvent *event) {
  json_t *line = json_pack("{s:s}", "action", action_names[event->action]);
  if (event->action == TRACE_OBTAIN || event->action == TRACE_RELEASE)
    json_object_set_new(line, "address", json_integer((json_int_t)file->addresses[event->block]));
  if (event->action != TRACE_OBTAIN && event->action != TRACE_FAILED) return line;
  json_object_set_new(line, "bytes", json_integer(event->bytes));
  if (event->stream != 0) json_object_set_new(line, "stream", json_integer(event->stream));
  json_object_set_new(line, "category", json_string(vl_memory_category_name(event->category)));
  set_text(line, "name", event->name);
  set_text(line, "scope", event->scope);
  return line;
}

Status vl_trace_write(const TraceFile *file, FILE *out) {
  json_t *head = json_pack("{s:i}", "vramlab_trace", TRACE_VERSION);
  set_text(head, "source", file->source);
  if (file->capacity_bytes > 0)
    json_object_set_new(head, "capacity_bytes", json_integer(file->capacity_bytes));
  if (file->reserved_peak_bytes >= 0)
    json_object_set_new(head, "reserved_peak_bytes", json_integer(file->reserved_peak_bytes));
  write_line(out, head);
  for (int64_t i = 0; i < file->trace.event_count; i++)
    write_line(out, event_line(file, &file->trace.events[i]));
  return fflush(out) != 0 || ferror(out)
             ? vl_error(VL_ENVIRONMENT, "the trace cannot be written: %s", strerror(errno))
             : vl_ok();
}
