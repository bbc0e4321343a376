/* Traces are read strictly, and replayed as the same requests to a heap would go. */
#include "harness/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (INT64_C(1) << 20)
#define HEAD "{\"vramlab_trace\":1}\n"

static TraceFile *parse(const char *text) {
  TraceFile *file;
  Status status = vl_trace_parse(text, strlen(text), "t", &file);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return file;
}

/* Refused, with every part of what it says, the place first. */
static void refused(const char *text, const char *place, const char *says) {
  TraceFile *file;
  Status status = vl_trace_parse(text, strlen(text), "t", &file);
  assert_int_equal(status.code, VL_INVALID);
  assert_null(file);
  if (strncmp(status.message, place, strlen(place)) != 0 || strstr(status.message, says) == NULL)
    fail_msg("\"%s\" says neither \"%s\" first nor \"%s\"", status.message, place, says);
}

static void what_is_wrong_is_told_with_its_line(void **state) {
  (void)state;
  refused("", "t:1: ", "not a JSON object");
  refused("{}", "t:1: ", "not a trace");
  refused("[]\n", "t:1: ", "not a JSON object");
  refused("{\"vramlab_trace\":2}\n", "t:1: ", "accepted: a whole number from 1 to 1");
  refused("{\"vramlab_trace\":1,\"sauce\":\"x\"}\n",
          "t:1: ", "unknown key \"sauce\"; accepted: vramlab_trace source");
  refused(HEAD, "t:", "no block is ever obtained");
  refused("\x80\x04}.", "t: ", "scripts/data/pytorch_snapshot.py");
  static const struct {
    const char *line, *says;
  } lines[] = {
      {"", "not a JSON object"},
      {"{\"action\":\"obtain\",\"action\":\"step\"}", "duplicate"},
      {"{\"address\":0}", "\"action\" is missing; accepted: obtain, release, step, failed"},
      {"{\"action\":\"malloc\"}", "\"action\" is \"malloc\"; accepted: obtain, release"},
      {"{\"action\":\"obtain\",\"address\":0}", "\"bytes\" is missing"},
      {"{\"action\":\"obtain\",\"bytes\":1}", "\"address\" is missing"},
      {"{\"action\":\"obtain\",\"address\":0,\"bytes\":0}",
       "\"bytes\" is 0; accepted: a whole number from 1 to 1099511627776"},
      {"{\"action\":\"obtain\",\"address\":0,\"bytes\":-512}", "\"bytes\" is -512"},
      {"{\"action\":\"obtain\",\"address\":0,\"bytes\":1099511627777}", "\"bytes\" is 1099511627777"},
      {"{\"action\":\"obtain\",\"address\":0,\"bytes\":1e30}", "\"bytes\" is 1"},
      {"{\"action\":\"obtain\",\"address\":0,\"bytes\":99999999999999999999}", "too big"},
      {"{\"action\":\"obtain\",\"address\":0,\"bytes\":\"512\"}", "\"bytes\" is \"512\""},
      {"{\"action\":\"obtain\",\"address\":-1,\"bytes\":1}", "\"address\" is -1"},
      {"{\"action\":\"obtain\",\"address\":9223372036854775807,\"bytes\":1}",
       "\"address\" is 9223372036854775807"},
      {"{\"action\":\"obtain\",\"address\":4096,\"bytes\":1,\"stream\":65536}", "\"stream\" is 65536"},
      {"{\"action\":\"obtain\",\"address\":4096,\"bytes\":1,\"category\":\"weights\"}",
       "\"category\" is \"weights\"; accepted: parameter, gradient"},
      {"{\"action\":\"obtain\",\"address\":4096,\"bytes\":1,\"name\":7}", "\"name\" is not a text"},
      {"{\"action\":\"obtain\",\"address\":1023,\"bytes\":1}",
       "the block at 1023 of 1 bytes overlaps the one at 0 of 1024 bytes, which is still in use"},
      {"{\"action\":\"release\",\"address\":0,\"bytes\":1024}",
       "unknown key \"bytes\"; accepted: action address time_ns"},
      {"{\"action\":\"release\",\"address\":512}", "512 lies inside the block at 0 of 1024 bytes"},
      {"{\"action\":\"release\",\"address\":1024}",
       "no block in use lies at 1024: never obtained, or released before"},
      {"{\"action\":\"step\",\"address\":0}", "unknown key \"address\"; accepted: action time_ns"},
      {"{\"action\":\"failed\"}", "\"bytes\" is missing"},
      {"{\"action\":\"step\",\"time_ns\":-1}", "\"time_ns\" is -1"},
      {"{\"action\":\"step\"} {}", "end of file expected"}};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    char text[512];
    snprintf(text, sizeof text, HEAD "{\"action\":\"obtain\",\"address\":0,\"bytes\":1024}\n%s\n{}\n",
             lines[i].line);
    refused(text, "t:3: ", lines[i].says);
  }
  refused(HEAD "{\"action\":\"obtain\",\"address\":0,\"bytes\":8}\n{\"action\":\"release\",\"address\":0}\n"
               "{\"action\":\"release\",\"address\":0}\n",
          "t:4: ", "released before");
}

/* 2^50 bytes in use at once are too many; one after the other they are not. */
static void what_is_in_use_has_a_bound(void **state) {
  (void)state;
  char *text = NULL;
  size_t size = 0;
  for (int released = 0; released < 2; released++) {
    FILE *out = open_memstream(&text, &size);
    fputs(HEAD, out);
    for (int64_t i = 0; i < 1025; i++) {
      fprintf(out, "{\"action\":\"obtain\",\"address\":%lld,\"bytes\":1099511627776}\n", (long long)i << 40);
      if (released) fprintf(out, "{\"action\":\"release\",\"address\":%lld}\n", (long long)i << 40);
    }
    fclose(out);
    if (released)
      vl_trace_destroy(&(TraceFile *){parse(text)});
    else
      refused(text, "t:1026: ", "are in use at once; accepted: up to 1125899906842624");
    free(text);
  }
}

static void what_is_written_is_read(void **state) {
  (void)state;
  TraceFile *file =
      parse("{\"vramlab_trace\":1,\"source\":\"by \\\"hand\\\"\",\"capacity_bytes\":4194304,"
            "\"reserved_peak_bytes\":0}\n"
            "{\"action\":\"obtain\",\"address\":4096,\"bytes\":3,\"category\":\"input\",\"stream\":7,"
            "\"name\":\"x\",\"scope\":\"a/b\",\"time_ns\":5}\n"
            "{\"action\":\"step\"}\n{\"action\":\"failed\",\"bytes\":77}\n"
            "{\"action\":\"release\",\"address\":4096}");
  char *text = NULL;
  size_t size = 0;
  for (int round = 0; round < 2; round++) {
    assert_string_equal(file->source, "by \"hand\"");
    assert_true(file->capacity_bytes == 4 * MIB && file->reserved_peak_bytes == 0);
    assert_true(file->trace.event_count == 4 && file->trace.block_count == 1 && file->trace.step_count == 1);
    const TraceEvent *event = file->trace.events;
    assert_true(event->action == TRACE_OBTAIN && event->bytes == 3 && event->stream == 7 &&
                event->block == 0);
    assert_true(event->category == MEMORY_INPUT && file->addresses[0] == 4096);
    assert_string_equal(event->name, "x");
    assert_string_equal(event->scope, "a/b");
    assert_true(event[2].action == TRACE_FAILED && event[2].bytes == 77 && event[3].block == 0);
    if (round == 1) break;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(vl_trace_write(file, out).code, VL_OK);
    fclose(out);
    vl_trace_destroy(&file);
    file = parse(text);
    free(text);
  }
  vl_trace_destroy(&file);
}

static Replay default_row(const TraceFile *file, int64_t capacity_bytes, TracePeak *peak) {
  ReplaySet set;
  Status status = vl_replay_run(file, "caching", capacity_bytes, false, &set);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  Replay row = set.rows[0];
  *peak = set.peak;
  vl_replay_free(&set);
  return row;
}

/* 12, 2 and 20 MiB; in the place of the first 4, in that of the last 22 or so it should be: there is no piece
 * of 22. */
static const char pieces[] = HEAD "{\"action\":\"obtain\",\"address\":0,\"bytes\":12582912}\n"
                                  "{\"action\":\"obtain\",\"address\":16777216,\"bytes\":2097152}\n"
                                  "{\"action\":\"obtain\",\"address\":33554432,\"bytes\":20971520}\n"
                                  "{\"action\":\"release\",\"address\":0}\n"
                                  "{\"action\":\"obtain\",\"address\":67108864,\"bytes\":4194304}\n"
                                  "{\"action\":\"step\"}\n"
                                  "{\"action\":\"release\",\"address\":33554432}\n"
                                  "{\"action\":\"obtain\",\"address\":83886080,\"bytes\":23068672}\n";

static void a_replay_reserves_as_a_heap_does(void **state) {
  (void)state;
  TraceFile *file = parse(pieces);
  TracePeak peak;
  Replay row = default_row(file, 0, &peak);
  /* 12 + 2 + 20 MiB in the beginning. Segments: 12, where the 4 go when it is free, 20 for the 2, 20 and 22.
   */
  assert_true(peak.bytes == 34 * MIB && peak.event == 2);
  assert_int_equal(row.result.failed_event, -1);
  assert_true(row.result.statistics.reserved.peak_bytes == (12 + 20 + 20 + 22) * MIB);
  assert_true(row.result.statistics.allocated.peak_bytes == 34 * MIB);
  assert_true(row.result.statistics.segment_reserves == 4 && row.result.statistics.retries == 0);
  vl_trace_destroy(&file);
}

static void a_replay_ends_where_there_is_no_room(void **state) {
  (void)state;
  TraceFile *file = parse(pieces);
  TracePeak peak;
  Replay row = default_row(file, 51 * MIB, &peak);
  assert_int_equal(row.result.failed_event, 2); /* 12 + 20 + 20 at once are more */
  assert_true(row.result.fragmented);
  /* The free segment of 20 is given back for the one of 22; that of 12 has the 4 in it. */
  row = default_row(file, 54 * MIB, &peak);
  assert_int_equal(row.result.failed_event, -1);
  assert_true(row.result.statistics.retries == 1 && row.result.statistics.segment_releases == 1);
  row = default_row(file, 53 * MIB, &peak);
  assert_int_equal(row.result.failed_event, 7);
  assert_true(row.result.fragmented);
  row = default_row(file, 16 * MIB, &peak);
  assert_int_equal(row.result.failed_event, 1);
  assert_true(row.result.fragmented); /* 4 MiB are left, and a segment would be of 20 */
  row = default_row(file, 8 * MIB, &peak);
  assert_int_equal(row.result.failed_event, 0);
  assert_false(row.result.fragmented);
  assert_non_null(strstr(row.result.failure.message, "shortage"));
  vl_trace_destroy(&file);
}

/* A request that failed when it was recorded is tried, and leaves nothing behind. */
static void failed_requests_are_tried(void **state) {
  (void)state;
  TraceFile *file = parse(HEAD "{\"action\":\"obtain\",\"address\":0,\"bytes\":1048577}\n"
                               "{\"action\":\"failed\",\"bytes\":52428800}\n"
                               "{\"action\":\"failed\",\"bytes\":41943040}\n");
  TracePeak peak;
  Replay row = default_row(file, 0, &peak);
  assert_true(peak.bytes == MIB + 512 + 50 * MIB && peak.event == 1);
  assert_true(row.result.statistics.obtains == 3 && row.result.statistics.releases == 2);
  assert_true(row.result.statistics.reserved.peak_bytes == 70 * MIB);
  row = default_row(file, 50 * MIB, &peak);
  assert_int_equal(row.result.failed_event, 1);
  assert_false(row.result.fragmented);
  vl_trace_destroy(&file);
}

/* The least capacity serves, and 2 MiB less does not. */
static void check_least(const ReplaySet *set, const Replay *row) {
  ReplayOptions options = {.heap = row->policy->options, .defragment = row->policy->defragment};
  ReplayResult result;
  if (strcmp(options.heap.policy, "planned") == 0) options.plan = &set->plan;
  assert_true(row->least_bytes > 0 && row->least_bytes <= row->result.statistics.reserved.peak_bytes);
  options.heap.capacity_bytes = row->least_bytes;
  assert_int_equal(vl_trace_replay(&set->file->trace, &options, &result).code, VL_OK);
  assert_int_equal(result.failed_event, -1);
  options.heap.capacity_bytes -= 2 * MIB;
  assert_int_equal(vl_trace_replay(&set->file->trace, &options, &result).code, VL_OK);
  assert_true(result.failed_event >= 0);
}

/* Every row serves a trace without a limit, and none reserves less than was in use at once. */
static void every_policy_is_told(void **state) {
  (void)state;
  TraceFile *file = parse(pieces);
  ReplaySet set;
  Status status = vl_replay_run(file, NULL, 0, true, &set);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  int32_t count;
  (void)vl_replay_policies(&count);
  assert_true(set.count > 0 && set.count <= count);
  for (int32_t i = 0; i < set.count; i++) {
    assert_int_equal(set.rows[i].result.failed_event, -1);
    assert_true(set.rows[i].result.statistics.reserved.peak_bytes >= set.peak.bytes);
    check_least(&set, &set.rows[i]);
  }
  /* 20 MiB are given back for 22: 12 + 20 + 22, found to a granule of 2. */
  assert_true(set.rows[0].least_bytes >= 54 * MIB && set.rows[0].least_bytes <= 56 * MIB);
  json_t *json = vl_replay_json(&set);
  assert_int_equal(json_array_size(json_object_get(json, "policies")), set.count);
  assert_true(vl_record_integer(json, "lower_bound_bytes") == 34 * MIB);
  json_decref(json);
  vl_replay_free(&set);
  status = vl_replay_run(file, "cashing", 0, true, &set);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "--policy cashing is unknown; accepted: caching"));
  status = vl_replay_run(file, "async", 0, true, &set);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "--policy async: the driver's pools"));
  vl_trace_destroy(&file);
}

/* Of a timeline: what was held comes first and does not overlap what follows. */
static void a_timeline_becomes_a_trace(void **state) {
  (void)state;
  TimelineEvent events[] = {
      {.action = MEMORY_SEGMENT_HELD, .bytes = 2 * MIB, .reserved_bytes = 2 * MIB, .heap_segment = 4},
      {.action = MEMORY_HELD,
       .bytes = 1024,
       .requested_bytes = 1000,
       .heap_segment = 4,
       .reserved_bytes = 2 * MIB,
       .name = "weight"},
      {.action = MEMORY_OBTAIN,
       .category = MEMORY_WORKSPACE,
       .bytes = 512,
       .requested_bytes = 8,
       .heap_segment = 4,
       .offset = 1024,
       .reserved_bytes = 2 * MIB},
      {.action = MEMORY_OOM, .bytes = 2 * MIB, .requested_bytes = 2 * MIB - 1, .heap_segment = -1},
      {.action = MEMORY_RELEASE,
       .category = MEMORY_WORKSPACE,
       .bytes = 512,
       .requested_bytes = 8,
       .heap_segment = 4,
       .offset = 1024},
  };
  TraceFile *file;
  Status status = vl_trace_from_timeline(events, 5, &file);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  const TraceAction right[] = {TRACE_OBTAIN, TRACE_STEP,    TRACE_OBTAIN,
                               TRACE_FAILED, TRACE_RELEASE, TRACE_STEP};
  assert_int_equal(file->trace.event_count, 6);
  for (int i = 0; i < 6; i++)
    assert_int_equal(file->trace.events[i].action, right[i]);
  assert_true(file->trace.events[0].bytes == 1000 && file->trace.events[2].bytes == 8);
  assert_true(file->addresses[1] - file->addresses[0] == 1024 && file->reserved_peak_bytes == 2 * MIB);
  vl_trace_destroy(&file);
  events[1].heap_segment = -1; /* a store of before places were kept */
  status = vl_trace_from_timeline(events, 5, &file);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "does not tell where blocks lay"));
}

/* A compaction is no request: two blocks that lay at one address one after the other are told apart. */
static void moves_are_followed(void **state) {
  (void)state;
  const TimelineEvent at0 = {.bytes = 1024, .requested_bytes = 1024};
  const TimelineEvent at2k = {.bytes = 1024, .requested_bytes = 1024, .offset = 2048};
  TimelineEvent events[] = {at0, at2k, at0, at2k, at0, at2k, at0, at0};
  const int32_t actions[] = {MEMORY_HELD,    MEMORY_HELD,   MEMORY_RELEASE, MEMORY_MOVE_OUT,
                             MEMORY_MOVE_IN, MEMORY_OBTAIN, MEMORY_RELEASE, MEMORY_STEP};
  for (int i = 0; i < 8; i++)
    events[i].action = actions[i];
  TraceFile *file;
  Status status = vl_trace_from_timeline(events, 8, &file);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  assert_int_equal(file->trace.event_count, 7); /* 3 obtains, 2 releases, 2 steps */
  assert_true(file->trace.events[5].action == TRACE_RELEASE && file->trace.events[5].block == 1);
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  assert_int_equal(vl_trace_write(file, out).code, VL_OK);
  fclose(out);
  vl_trace_destroy(&file);
  file = parse(text);
  vl_trace_destroy(&file);
  free(text);
  events[5].action = MEMORY_MOVE_IN;
  status = vl_trace_from_timeline(events, 8, &file);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "damaged"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_wrong_is_told_with_its_line),
      cmocka_unit_test(what_is_in_use_has_a_bound),
      cmocka_unit_test(what_is_written_is_read),
      cmocka_unit_test(a_replay_reserves_as_a_heap_does),
      cmocka_unit_test(a_replay_ends_where_there_is_no_room),
      cmocka_unit_test(failed_requests_are_tried),
      cmocka_unit_test(every_policy_is_told),
      cmocka_unit_test(a_timeline_becomes_a_trace),
      cmocka_unit_test(moves_are_followed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
