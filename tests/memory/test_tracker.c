/* The tracker's figures: named apart, peaks that survive a reset, splits taken at the peak, a timeline. */
#include "fixture.h"

#include <string.h>

static Block *obtain(Fixture *fixture, int64_t bytes, MemoryCategory category, const char *scope) {
  AllocationRequest request = {.bytes = bytes, .category = category, .name = "t", .scope = scope};
  Block *block = NULL;
  Status status = vl_heap_obtain(fixture->heap, &request, &block);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return block;
}

static void assert_ordered(const MemoryStatistics *statistics) {
  assert_true(statistics->requested.current_bytes <= statistics->allocated.current_bytes);
  assert_true(statistics->allocated.current_bytes <= statistics->reserved.current_bytes);
  assert_true(statistics->allocated.current_bytes <= statistics->allocated.peak_bytes);
  assert_true(statistics->reserved.current_bytes <= statistics->reserved.peak_bytes);
  assert_true(statistics->allocated.peak_bytes <= statistics->reserved.peak_bytes);
}

/* Three segments of 64 MiB, two released, then trimmed: live, peak and reserved are three figures. */
static void live_and_reserved_are_apart_a1(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *blocks[3];
  for (int i = 0; i < 3; i++)
    blocks[i] = fixture_obtain(&fixture, 64 * MIB);
  vl_heap_release(fixture.heap, &blocks[1]);
  vl_heap_release(fixture.heap, &blocks[2]);
  MemoryStatistics statistics = fixture_statistics(&fixture);
  assert_ordered(&statistics);
  assert_int_equal(statistics.allocated.current_bytes, 64 * MIB);
  assert_int_equal(statistics.allocated.peak_bytes, 192 * MIB);
  assert_int_equal(statistics.reserved.current_bytes, 192 * MIB);
  assert_int_equal(vl_heap_trim(fixture.heap), 128 * MIB);
  statistics = fixture_statistics(&fixture);
  assert_ordered(&statistics);
  assert_int_equal(statistics.allocated.current_bytes, 64 * MIB);
  assert_int_equal(statistics.reserved.current_bytes, 64 * MIB);
  assert_int_equal(statistics.allocated.peak_bytes, 192 * MIB);
  assert_int_equal(statistics.reserved.peak_bytes, 192 * MIB);
  assert_int_equal(statistics.cached_free_at_peak_bytes, 0);
  vl_heap_release(fixture.heap, &blocks[0]);
  fixture_close(&fixture);
}

/* 300 kept, 200 released, reset, 50: the peak reads 500, then 300, then 350. */
static void peak_reset_keeps_live_a2(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *kept = fixture_obtain(&fixture, 300 * MIB);
  Block *freed = fixture_obtain(&fixture, 200 * MIB);
  vl_heap_release(fixture.heap, &freed);
  assert_int_equal(fixture_statistics(&fixture).allocated.peak_bytes, 500 * MIB);
  vl_tracker_reset_peaks(fixture.tracker);
  MemoryStatistics statistics = fixture_statistics(&fixture);
  assert_int_equal(statistics.allocated.peak_bytes, 300 * MIB);
  assert_int_equal(statistics.allocated.current_bytes, 300 * MIB);
  assert_int_equal(statistics.reserved.current_bytes, 500 * MIB);
  assert_int_equal(statistics.reserved.peak_bytes, 500 * MIB);
  assert_int_equal(statistics.category_at_peak_bytes[MEMORY_ACTIVATION], 300 * MIB);
  assert_int_equal(statistics.cached_free_at_peak_bytes, 200 * MIB);
  Block *more = fixture_obtain(&fixture, 50 * MIB);
  statistics = fixture_statistics(&fixture);
  assert_int_equal(statistics.allocated.peak_bytes, 350 * MIB);
  assert_int_equal(statistics.cached_free_at_peak_bytes, 150 * MIB);
  vl_heap_release(fixture.heap, &more);
  assert_int_equal(vl_heap_trim(fixture.heap), 200 * MIB);
  assert_int_equal(fixture_statistics(&fixture).reserved.peak_bytes, 500 * MIB);
  vl_tracker_reset_peaks(fixture.tracker);
  assert_int_equal(fixture_statistics(&fixture).reserved.peak_bytes, 300 * MIB);
  vl_heap_release(fixture.heap, &kept);
  fixture_close(&fixture);
}

/* Each category has its own peak, at its own time; the split is that of the moment of the total's peak. */
static void categories_split_at_the_total_s_peak(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *weights = obtain(&fixture, 20 * MIB, MEMORY_PARAMETER, "net");
  Block *activations = obtain(&fixture, 100 * MIB, MEMORY_ACTIVATION, "net");
  Block *gradients = obtain(&fixture, 10 * MIB, MEMORY_GRADIENT, "net"); /* the peak: 130 */
  vl_heap_release(fixture.heap, &activations);
  Block *moments = obtain(&fixture, 40 * MIB, MEMORY_OPTIMIZER, "net");
  Block *buckets = obtain(&fixture, 30 * MIB, MEMORY_GRADIENT, "net"); /* 100 in all, gradients at 40 */
  MemoryStatistics statistics = fixture_statistics(&fixture);
  const int64_t at_peak[MEMORY_CATEGORY_COUNT] = {20 * MIB, 10 * MIB, 0, 100 * MIB, 0, 0, 0};
  const int64_t own_peak[MEMORY_CATEGORY_COUNT] = {20 * MIB, 40 * MIB, 40 * MIB, 100 * MIB, 0, 0, 0};
  int64_t sum_bytes = 0;
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    assert_int_equal(statistics.category_at_peak_bytes[i], at_peak[i]);
    assert_int_equal(statistics.by_category[i].peak_bytes, own_peak[i]);
    sum_bytes += statistics.category_at_peak_bytes[i];
  }
  assert_int_equal(sum_bytes, statistics.allocated.peak_bytes);
  Block **blocks[] = {&weights, &gradients, &moments, &buckets};
  for (size_t i = 0; i < 4; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  fixture_close(&fixture);
}

/* Scopes at the peak, though blocks of them come and go afterwards; equal names at different addresses
 * are one scope; largest first; what fits is filled in and the whole number returned. */
static void scopes_split_at_the_peak(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  const char first_name[] = "conv1";
  const char same_name[] = "conv1";
  Block *a = obtain(&fixture, 20 * MIB, MEMORY_ACTIVATION, first_name);
  Block *b = obtain(&fixture, 12 * MIB, MEMORY_PARAMETER, same_name);
  Block *c = obtain(&fixture, 40 * MIB, MEMORY_ACTIVATION, "conv2");
  Block *d = obtain(&fixture, 10 * MIB, MEMORY_WORKSPACE, NULL); /* the peak: 82 */
  vl_heap_release(fixture.heap, &c);
  vl_heap_release(fixture.heap, &a);
  Block *e = obtain(&fixture, 30 * MIB, MEMORY_ACTIVATION, "late"); /* 52: no peak */
  ScopeBytes scopes[3];
  assert_int_equal(vl_tracker_scopes_at_peak(fixture.tracker, scopes, 3), 3);
  assert_string_equal(scopes[0].scope, "conv2");
  assert_int_equal(scopes[0].bytes, 40 * MIB);
  assert_string_equal(scopes[1].scope, "conv1");
  assert_int_equal(scopes[1].bytes, 32 * MIB);
  assert_int_equal(scopes[1].bytes_by_category[MEMORY_ACTIVATION], 20 * MIB);
  assert_int_equal(scopes[1].bytes_by_category[MEMORY_PARAMETER], 12 * MIB);
  assert_string_equal(scopes[2].scope, "");
  assert_int_equal(scopes[2].bytes, 10 * MIB);
  vl_tracker_reset_peaks(fixture.tracker);
  assert_int_equal(vl_tracker_scopes_at_peak(fixture.tracker, scopes, 1), 3);
  assert_string_equal(scopes[0].scope, "late");
  assert_string_equal(scopes[1].scope, "conv1"); /* beyond the capacity of 1: left as it was */
  assert_int_equal(scopes[1].bytes, 32 * MIB);
  Block **blocks[] = {&b, &d, &e};
  for (size_t i = 0; i < 3; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  fixture_close(&fixture);
}

/* Cached-free at the reserved peak is what was not in use even at the fullest moment meanwhile. */
static void cached_free_is_measured_at_the_reserved_peak(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *a = fixture_obtain(&fixture, 5 * MIB); /* reserves 20 */
  assert_int_equal(fixture_statistics(&fixture).cached_free_at_peak_bytes, 15 * MIB);
  Block *b = fixture_obtain(&fixture, 5 * MIB); /* fills 10 of them */
  assert_int_equal(fixture_statistics(&fixture).cached_free_at_peak_bytes, 10 * MIB);
  vl_heap_release(fixture.heap, &a);
  assert_int_equal(fixture_statistics(&fixture).cached_free_at_peak_bytes, 10 * MIB);
  Block *c = fixture_obtain(&fixture, 100 * MIB); /* a new peak of 120 with 105 in use */
  assert_int_equal(fixture_statistics(&fixture).cached_free_at_peak_bytes, 15 * MIB);
  vl_heap_release(fixture.heap, &b);
  vl_heap_release(fixture.heap, &c);
  fixture_close(&fixture);
}

/* Every event is kept, in order, with the totals after it; names are those of the request. */
static void timeline_replays_to_the_counters(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 30 * MIB, FAKE_ASCENDING);
  Block *a = fixture_obtain(&fixture, 1000);
  Block *b = fixture_obtain(&fixture, 9 * MIB);
  Block *c = NULL;
  assert_int_equal(fixture_try_obtain(&fixture, 25 * MIB, &c).code, VL_OUT_OF_MEMORY);
  vl_heap_release(fixture.heap, &b);
  vl_heap_trim(fixture.heap);
  const MemoryAction actions[] = {MEMORY_SEGMENT_RESERVE, MEMORY_OBTAIN, MEMORY_SEGMENT_RESERVE,
                                  MEMORY_OBTAIN,          MEMORY_OOM,    MEMORY_RELEASE,
                                  MEMORY_SEGMENT_RELEASE};
  int64_t count = 0;
  const MemoryEvent *events = vl_tracker_events(fixture.tracker, &count);
  assert_int_equal(count, 7);
  int64_t allocated_bytes = 0, reserved_bytes = 0, before_ns = 0;
  for (int64_t i = 0; i < count; i++) {
    const MemoryEvent *event = &events[i];
    assert_int_equal(event->action, actions[i]);
    if (event->action == MEMORY_OBTAIN) allocated_bytes += event->bytes;
    if (event->action == MEMORY_RELEASE) allocated_bytes -= event->bytes;
    if (event->action == MEMORY_SEGMENT_RESERVE) reserved_bytes += event->bytes;
    if (event->action == MEMORY_SEGMENT_RELEASE) reserved_bytes -= event->bytes;
    assert_int_equal(event->allocated_bytes, allocated_bytes);
    assert_int_equal(event->reserved_bytes, reserved_bytes);
    assert_true(event->time_ns >= before_ns);
    before_ns = event->time_ns;
  }
  assert_int_equal(events[1].bytes, 1024);
  assert_int_equal(events[1].requested_bytes, 1000);
  assert_string_equal(events[1].name, "tensor");
  assert_string_equal(events[1].scope, "layer");
  assert_true(events[1].address == a->address);
  assert_int_equal(events[4].bytes, 25 * MIB);
  vl_heap_release(fixture.heap, &a);
  fixture_close(&fixture);
}

/* An event tells the segment and the offset its block lies at, wherever the system put the segments. */
static void events_tell_where_blocks_lie(void **state) {
  (void)state;
  for (int placement = 0; placement < FAKE_PLACEMENT_COUNT; placement++) {
    Fixture fixture;
    fixture_open(&fixture, 0, (FakePlacement)placement);
    Block *blocks[60];
    for (int i = 0; i < 60; i++) {
      blocks[i] = fixture_obtain(&fixture, (i % 5 + 1) * 3 * MIB);
      if (i % 3 == 2) vl_heap_release(fixture.heap, &blocks[i - 1]);
      if (i % 20 == 19) vl_heap_trim(fixture.heap);
    }
    int64_t count = 0, segments = 0;
    const MemoryEvent *events = vl_tracker_events(fixture.tracker, &count);
    for (int64_t i = 0; i < count; i++) {
      /* The fake's numbers are in order of reservation too, and it never gives an address twice. */
      const FakeSegment *segment = &fixture.fake.segments[events[i].segment];
      assert_true(events[i].segment >= 0 && events[i].segment < fixture.fake.segment_count);
      assert_true(events[i].address == segment->address + (uintptr_t)events[i].offset);
    }
    const MemorySegment *held = vl_tracker_segments(fixture.tracker, &segments);
    assert_int_equal(segments, fake_live_segments(&fixture.fake));
    for (int64_t i = 0; i < segments; i++) {
      assert_int_equal(held[i].number, fake_segment_of(&fixture.fake, held[i].address, held[i].bytes));
      assert_true(vl_tracker_segment_of(fixture.tracker, held[i].address + (uintptr_t)held[i].bytes - 1) ==
                  &held[i]);
      assert_null(vl_tracker_segment_of(fixture.tracker, held[i].address + (uintptr_t)held[i].bytes));
    }
    for (int i = 0; i < 60; i++)
      vl_heap_release(fixture.heap, &blocks[i]);
    fixture_close(&fixture);
  }
}

/* Where memory is committed bit by bit, offsets are those in the range of addresses, and what is held is what
 * is committed, whichever parts are given back. */
static void events_tell_where_blocks_of_ranges_lie(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "expandable"};
  fixture_open_with(&fixture, &options, FAKE_SCATTERED);
  Block *blocks[40];
  for (int i = 0; i < 40; i++)
    blocks[i] = fixture_obtain(&fixture, i % 4 == 0 ? 3 * KIB * (i + 1) : (i % 5 + 1) * 7 * MIB);
  for (int i = 0; i < 40; i++)
    if (i % 8 < 5) vl_heap_release(fixture.heap, &blocks[i]);
  vl_heap_trim(fixture.heap); /* holes within both ranges */
  for (int i = 0; i < 40; i++)
    if (i % 8 == 1) blocks[i] = fixture_obtain(&fixture, 30 * MIB);
  int64_t count = 0, segments = 0, held_bytes = 0;
  const MemoryEvent *events = vl_tracker_events(fixture.tracker, &count);
  for (int64_t i = 0; i < count; i++) {
    assert_true(events[i].segment >= 0 && events[i].segment < fixture.fake.range_count);
    assert_true(events[i].address ==
                fixture.fake.ranges[events[i].segment].address + (uintptr_t)events[i].offset);
  }
  const MemorySegment *held = vl_tracker_segments(fixture.tracker, &segments);
  for (int64_t i = 0; i < segments; i++) {
    const FakeRange *range = &fixture.fake.ranges[held[i].number];
    held_bytes += held[i].bytes;
    assert_true(i == 0 || held[i].address >= held[i - 1].address + (uintptr_t)held[i - 1].bytes);
    for (int64_t at = held[i].offset; at < held[i].offset + held[i].bytes; at += range->granule_bytes)
      assert_true(range->committed[at / range->granule_bytes]);
  }
  assert_true(held_bytes == fixture_statistics(&fixture).reserved.current_bytes);
  for (int i = 0; i < 40; i++)
    vl_heap_release(fixture.heap, &blocks[i]);
  fixture_close(&fixture);
}

static void events_can_be_left_out_and_dropped(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  int64_t count = -1;
  vl_tracker_keep_events(fixture.tracker, false);
  Block *a = fixture_obtain(&fixture, KIB);
  assert_null(vl_tracker_events(fixture.tracker, &count));
  assert_int_equal(count, 0);
  assert_int_equal(vl_tracker_event_count(fixture.tracker), 2);
  vl_tracker_keep_events(fixture.tracker, true);
  for (int i = 0; i < 5000; i++) { /* past several doublings of the timeline */
    Block *b = fixture_obtain(&fixture, KIB);
    vl_heap_release(fixture.heap, &b);
  }
  const MemoryEvent *events = vl_tracker_events(fixture.tracker, &count);
  assert_int_equal(count, 10000);
  assert_int_equal(events[9999].action, MEMORY_RELEASE);
  vl_tracker_clear_events(fixture.tracker);
  assert_null(vl_tracker_events(fixture.tracker, &count));
  assert_int_equal(count, 0);
  assert_int_equal(vl_tracker_event_count(fixture.tracker), 10002);
  assert_int_equal(fixture_statistics(&fixture).obtains, 5001);
  vl_heap_release(fixture.heap, &a);
  fixture_close(&fixture);
}

static void categories_have_names(void **state) {
  (void)state;
  const char *names[MEMORY_CATEGORY_COUNT] = {"parameter", "gradient",  "optimizer",    "activation",
                                              "input",     "workspace", "communication"};
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    assert_string_equal(vl_memory_category_name((MemoryCategory)i), names[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(live_and_reserved_are_apart_a1),
      cmocka_unit_test(peak_reset_keeps_live_a2),
      cmocka_unit_test(categories_split_at_the_total_s_peak),
      cmocka_unit_test(scopes_split_at_the_peak),
      cmocka_unit_test(cached_free_is_measured_at_the_reserved_peak),
      cmocka_unit_test(timeline_replays_to_the_counters),
      cmocka_unit_test(events_tell_where_blocks_lie),
      cmocka_unit_test(events_tell_where_blocks_of_ranges_lie),
      cmocka_unit_test(events_can_be_left_out_and_dropped),
      cmocka_unit_test(categories_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
