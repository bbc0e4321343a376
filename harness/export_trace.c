/* Chrome's trace events in their array form (Trace Event Format), which Perfetto and chrome://tracing open:
 * of every cell with a timeline a process, with counters of bytes by category and of what is reserved, the
 * segments of its step with the ops in them, and the lifetime of every tensor. An event a line.
 *
 * Ops have the time of a step of their own (OpRecord). Where a cell has them, memory is told by their clock:
 * what is obtained for an op when it begins, what is released behind it when it ends. */
#include "harness/export.h"
#include "harness/report_select.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Tracks: a process's number is that of its segments and tensors (Perfetto's main thread; it takes a track 0
 * for that too), then come streams. */
static int32_t track_of_stream(int32_t process, int32_t stream) { return process + 1 + stream; }

typedef struct TraceWriter {
  FILE *out;
  int32_t process;
  bool first;       /* no event yet */
  bool counts_only; /* nothing tells time: events are a microsecond apart */
  int64_t live_bytes[MEMORY_CATEGORY_COUNT];
  OpRecord *ops; /* NULL: none with times */
  int64_t op_count;
} TraceWriter;

static void begin(TraceWriter *trace, const char *phase, const char *name) {
  json_t *text = json_string(name);
  char *quoted = json_dumps(text ? text : json_null(), JSON_ENCODE_ANY);
  fprintf(trace->out, "%s\n{\"ph\":\"%s\",\"pid\":%" PRId32 ",\"name\":%s", trace->first ? "" : ",", phase,
          trace->process, quoted);
  trace->first = false;
  free(quoted);
  json_decref(text);
}

static void put_time(TraceWriter *trace, const char *name, int64_t time_ns) {
  fprintf(trace->out, ",\"%s\":%" PRId64 ".%03d", name, time_ns / 1000, (int)(time_ns % 1000));
}

static void put_text(TraceWriter *trace, const char *name, const char *value) {
  json_t *text = json_string(value);
  char *quoted = json_dumps(text ? text : json_null(), JSON_ENCODE_ANY);
  fprintf(trace->out, "\"%s\":%s", name, quoted);
  free(quoted);
  json_decref(text);
}

/* Its label is its key, so that what reads the trace finds the cell. */
static void name_process(TraceWriter *trace, const json_t *record) {
  const char *key = vl_record_text(record, "cell_key");
  char name[256], text[300];
  vl_store_cell_text(record, name, sizeof name);
  snprintf(text, sizeof text, "%s%s", name, vl_record_is_predicted(record) ? ", predicted" : "");
  begin(trace, "M", "process_name");
  fputs(",\"args\":{", trace->out);
  put_text(trace, "name", text);
  fputs("}}", trace->out);
  snprintf(text, sizeof text, "%s%s", key,
           trace->counts_only ? ",no times: events are a microsecond apart" : "");
  begin(trace, "M", "process_labels");
  fputs(",\"args\":{", trace->out);
  put_text(trace, "labels", text);
  fputs("}}", trace->out);
  begin(trace, "M", "thread_name");
  fprintf(trace->out, ",\"tid\":%" PRId32 ",\"args\":{\"name\":\"step\"}}", trace->process);
}

static void put_slice(TraceWriter *trace, int32_t segment, int64_t start_ns, int64_t end_ns) {
  begin(trace, "X", vl_segment_name((Segment)segment));
  put_time(trace, "ts", start_ns);
  put_time(trace, "dur", end_ns - start_ns);
  fprintf(trace->out, ",\"tid\":%" PRId32 "}", trace->process);
}

static void put_op(TraceWriter *trace, const OpRecord *op) {
  begin(trace, "X", op->op);
  put_time(trace, "ts", op->start_ns);
  put_time(trace, "dur", op->duration_ns);
  fprintf(trace->out, ",\"cat\":\"%s\",\"tid\":%" PRId32 ",\"args\":{", vl_segment_name((Segment)op->segment),
          track_of_stream(trace->process, op->stream));
  put_text(trace, "scope", op->scope);
  fputc(',', trace->out);
  put_text(trace, "implementation", *op->implementation ? op->implementation : NULL);
  fprintf(trace->out,
          ",\"micro_batch\":%" PRId32 ",\"pass\":%" PRId32 ",\"flops\":%" PRId64 ",\"bytes\":%" PRId64 "}}",
          op->micro_batch, op->pass, op->flops, op->bytes);
}

/* Ops, and as slices around them the segments of the step. */
static void put_ops(TraceWriter *trace) {
  const OpRecord *ops = trace->ops;
  int32_t streams = 0;
  for (int64_t i = 0, first = 0; i < trace->op_count; i++) {
    bool ends = i + 1 == trace->op_count || ops[i + 1].segment != ops[i].segment;
    if (ops[i].stream >= streams) streams = ops[i].stream + 1;
    put_op(trace, &ops[i]);
    if (!ends) continue;
    put_slice(trace, ops[i].segment, ops[first].start_ns, ops[i].start_ns + ops[i].duration_ns);
    first = i + 1;
  }
  for (int32_t s = 0; s < streams; s++) {
    begin(trace, "M", "thread_name");
    fprintf(trace->out, ",\"tid\":%" PRId32 ",\"args\":{\"name\":\"stream %" PRId32 "\"}}",
            track_of_stream(trace->process, s), s);
  }
}

static void put_counters(TraceWriter *trace, const TimelineEvent *event, int64_t time_ns) {
  begin(trace, "C", "allocated bytes");
  put_time(trace, "ts", time_ns);
  fputs(",\"args\":{", trace->out);
  for (int32_t i = 0; i < MEMORY_CATEGORY_COUNT; i++)
    fprintf(trace->out, "%s\"%s\":%" PRId64, i ? "," : "", vl_memory_category_name((MemoryCategory)i),
            trace->live_bytes[i]);
  fputs("}}", trace->out);
  begin(trace, "C", "reserved");
  put_time(trace, "ts", time_ns);
  fprintf(trace->out, ",\"args\":{\"bytes\":%" PRId64 "}}", event->reserved_bytes);
}

/* Where the event's block lies, as the id of its lifetime: of its process alone. */
static void put_lifetime(TraceWriter *trace, const char *phase, const TimelineEvent *event, int64_t time_ns) {
  begin(trace, phase, *event->name ? event->name : "block");
  put_time(trace, "ts", time_ns);
  fprintf(trace->out,
          ",\"cat\":\"%s\",\"tid\":%" PRId32 ",\"id2\":{\"local\":\"%" PRId32 ":%" PRId64
          "\"},\"args\":{\"bytes\":%" PRId64 ",",
          vl_memory_category_name((MemoryCategory)event->category), trace->process, event->heap_segment,
          event->offset, event->bytes);
  put_text(trace, "scope", event->scope);
  fputs("}}", trace->out);
}

static bool changes_memory(int32_t action) {
  return action == MEMORY_OBTAIN || action == MEMORY_RELEASE || action == MEMORY_HELD ||
         action == MEMORY_SEGMENT_RESERVE || action == MEMORY_SEGMENT_RELEASE ||
         action == MEMORY_SEGMENT_HELD;
}

/* When an event was, after one at `before_ns`. */
static int64_t time_of(const TraceWriter *trace, const TimelineEvent *event, int64_t position,
                       int64_t before_ns) {
  if (vl_memory_is_held(event->action)) return 0;
  if (trace->ops) {
    if (event->op < 0) return before_ns;
    const OpRecord *op = &trace->ops[event->op];
    bool after = event->action == MEMORY_RELEASE;
    int64_t time_ns = op->start_ns + (after ? op->duration_ns : 0);
    return time_ns > before_ns ? time_ns : before_ns;
  }
  return trace->counts_only ? position * 1000 : event->time_ns;
}

static void put_cell(TraceWriter *trace, const TimelineEvent *events, int64_t count) {
  int64_t slice_start_ns = 0, time_ns = 0;
  int32_t slice = -1;
  memset(trace->live_bytes, 0, sizeof trace->live_bytes);
  for (int64_t i = 0; i < count; i++) {
    const TimelineEvent *event = &events[i];
    bool held = vl_memory_is_held(event->action);
    time_ns = time_of(trace, event, i, time_ns);
    if (!trace->ops && !held && event->segment != slice) {
      if (slice >= 0) put_slice(trace, slice, slice_start_ns, time_ns);
      slice = event->segment;
      slice_start_ns = time_ns;
    }
    switch (event->action) {
    case MEMORY_OBTAIN:
    case MEMORY_HELD:
      trace->live_bytes[event->category] += event->bytes;
      put_lifetime(trace, "b", event, time_ns);
      break;
    case MEMORY_RELEASE:
      trace->live_bytes[event->category] -= event->bytes;
      put_lifetime(trace, "e", event, time_ns);
      break;
    case MEMORY_MOVE_IN: put_lifetime(trace, "b", event, time_ns); break;
    case MEMORY_MOVE_OUT: put_lifetime(trace, "e", event, time_ns); break;
    case MEMORY_OOM:
      begin(trace, "i", "out of memory");
      put_time(trace, "ts", time_ns);
      fprintf(trace->out, ",\"tid\":%" PRId32 ",\"s\":\"p\",\"args\":{\"request_bytes\":%" PRId64 "}}",
              trace->process, event->bytes);
      break;
    default: break;
    }
    /* What was held comes all at once. */
    bool last_held = held && (i + 1 == count || !vl_memory_is_held(events[i + 1].action));
    if (changes_memory(event->action) && (!held || last_held)) put_counters(trace, event, time_ns);
  }
  if (slice >= 0) put_slice(trace, slice, slice_start_ns, time_ns);
}

/* A cell's ops, if they have times and are those of its events. */
static Status take_ops(const Store *store, const char *key, const TimelineEvent *events, int64_t count,
                       TraceWriter *trace) {
  VL_TRY(vl_store_ops(store, key, &trace->ops, &trace->op_count));
  bool fit = trace->op_count > 0;
  for (int64_t i = 0; i < trace->op_count && fit; i++)
    fit = trace->ops[i].start_ns >= 0 && trace->ops[i].duration_ns >= 0 && trace->ops[i].stream >= 0;
  for (int64_t i = 0; i < count && fit; i++)
    fit = events[i].op < trace->op_count;
  if (fit) return vl_ok();
  free(trace->ops);
  trace->ops = NULL;
  trace->op_count = 0;
  return vl_ok();
}

Status vl_export_trace(const ExportInput *input, FILE *out) {
  TraceWriter trace = {.out = out, .first = true};
  fputc('[', out);
  for (int32_t i = 0; i < input->records.count; i++) {
    const json_t *record = input->records.records[i];
    const char *key = vl_record_text(record, "cell_key");
    TimelineEvent *events;
    int64_t count;
    if (!key) continue;
    VL_TRY(vl_store_timeline(input->store, key, &events, &count));
    if (count > 0) {
      trace.process++;
      Status status = take_ops(input->store, key, events, count, &trace);
      /* A plan walks the step as fast as it can: only its ops have times of the hardware. */
      trace.counts_only = !trace.ops && (vl_record_is_predicted(record) || events[count - 1].time_ns == 0);
      name_process(&trace, record);
      if (status.code == VL_OK) put_ops(&trace);
      if (status.code == VL_OK) put_cell(&trace, events, count);
      free(trace.ops);
      trace.ops = NULL;
      if (status.code != VL_OK) {
        free(events);
        return status;
      }
    }
    free(events);
  }
  fputs("\n]\n", out);
  if (trace.process > 0) return vl_ok();
  return vl_error(VL_INVALID, "no cell of the store kept its timeline (run --timeline -o STORE)");
}
