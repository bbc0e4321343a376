/* Chrome's trace events in their array form (Trace Event Format), which Perfetto and chrome://tracing open:
 * of every cell with a timeline a process, with counters of bytes by category and of what is reserved, the
 * segments of its step, and the lifetime of every tensor. */
#include "harness/export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct TraceWriter {
  FILE *out;
  int32_t process;
  bool first;       /* no event yet */
  bool counts_only; /* nothing tells time: events are a microsecond apart */
  int64_t live_bytes[MEMORY_CATEGORY_COUNT];
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

static void name_process(TraceWriter *trace, const char *name) {
  begin(trace, "M", "process_name");
  fputs(",\"args\":{", trace->out);
  put_text(trace, "name", name);
  fputs("}}", trace->out);
  begin(trace, "M", "thread_name");
  fputs(",\"tid\":0,\"args\":{\"name\":\"step\"}}", trace->out);
}

static void put_counters(TraceWriter *trace, const TimelineEvent *event, int64_t time_ns) {
  begin(trace, "C", "allocated bytes");
  put_time(trace, "ts", time_ns);
  fputs(",\"args\":{", trace->out);
  for (int32_t i = 0; i < MEMORY_CATEGORY_COUNT; i++)
    fprintf(trace->out, "%s\"%s\":%" PRId64, i ? "," : "", vl_memory_category_name((MemoryCategory)i),
            trace->live_bytes[i]);
  fputs("}}", trace->out);
  begin(trace, "C", "reserved bytes");
  put_time(trace, "ts", time_ns);
  fprintf(trace->out, ",\"args\":{\"reserved\":%" PRId64 "}}", event->reserved_bytes);
}

/* Where the event's block lies, as the id of its lifetime. */
static void put_lifetime(TraceWriter *trace, const char *phase, const TimelineEvent *event, int64_t time_ns) {
  begin(trace, phase, *event->name ? event->name : "block");
  put_time(trace, "ts", time_ns);
  fprintf(trace->out,
          ",\"cat\":\"%s\",\"tid\":0,\"id\":\"%" PRId32 ":%" PRId64 "\",\"args\":{\"bytes\":%" PRId64 ",",
          vl_memory_category_name((MemoryCategory)event->category), event->heap_segment, event->offset,
          event->bytes);
  put_text(trace, "scope", event->scope);
  fputs("}}", trace->out);
}

static void put_slice(TraceWriter *trace, int32_t segment, int64_t start_ns, int64_t end_ns) {
  begin(trace, "X", vl_segment_name((Segment)segment));
  put_time(trace, "ts", start_ns);
  put_time(trace, "dur", end_ns - start_ns);
  fputs(",\"tid\":0}", trace->out);
}

static bool changes_memory(int32_t action) {
  return action == MEMORY_OBTAIN || action == MEMORY_RELEASE || action == MEMORY_HELD ||
         action == MEMORY_SEGMENT_RESERVE || action == MEMORY_SEGMENT_RELEASE ||
         action == MEMORY_SEGMENT_HELD;
}

static void put_cell(TraceWriter *trace, const TimelineEvent *events, int64_t count) {
  int64_t slice_start_ns = 0, time_ns = 0;
  int32_t slice = -1;
  trace->counts_only = events[count - 1].time_ns == 0;
  memset(trace->live_bytes, 0, sizeof trace->live_bytes);
  for (int64_t i = 0; i < count; i++) {
    const TimelineEvent *event = &events[i];
    bool held = vl_memory_is_held(event->action);
    time_ns = trace->counts_only ? i * 1000 : event->time_ns;
    if (!held && event->segment != slice) {
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
      fprintf(trace->out, ",\"tid\":0,\"s\":\"p\",\"args\":{\"request_bytes\":%" PRId64 "}}", event->bytes);
      break;
    default: break;
    }
    /* What was held comes all at once. */
    bool last_held = held && (i + 1 == count || !vl_memory_is_held(events[i + 1].action));
    if (changes_memory(event->action) && (!held || last_held)) put_counters(trace, event, time_ns);
  }
  if (slice >= 0) put_slice(trace, slice, slice_start_ns, time_ns);
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
      char text[256];
      trace.process++;
      vl_store_cell_text(record, text, sizeof text);
      name_process(&trace, text);
      put_cell(&trace, events, count);
    }
    free(events);
  }
  fputs("\n]\n", out);
  if (trace.process > 0) return vl_ok();
  return vl_error(VL_INVALID, "no cell of the store kept its timeline (run --timeline -o STORE)");
}
