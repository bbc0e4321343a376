/* The caching policy keeps PyTorch's published constants and rules, and fails without losing anything. */
#include "fixture.h"

#include <string.h>

static int64_t reserved_bytes(const Fixture *fixture) {
  return fixture_statistics(fixture).reserved.current_bytes;
}
static int64_t allocated_bytes(const Fixture *fixture) {
  return fixture_statistics(fixture).allocated.current_bytes;
}

/* What one request on an empty heap occupies and reserves, at and around every bound. */
static void sizes_and_segments_follow_the_constants(void **state) {
  (void)state;
  const struct {
    int64_t request, block, segment;
  } rows[] = {
      {1, 512, 2 * MIB},
      {512, 512, 2 * MIB},
      {513, 1024, 2 * MIB},
      {MIB - 1, MIB, 2 * MIB},
      {MIB, MIB, 2 * MIB},
      {MIB + 1, MIB + 512, 20 * MIB},
      {10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
      {10 * MIB - 511, 10 * MIB, 10 * MIB}, /* rounds to 10 MiB, which has a segment of its own */
      {10 * MIB, 10 * MIB, 10 * MIB},
      {10 * MIB + 1, 10 * MIB + 512, 12 * MIB}, /* a rest of more than 1 MiB: cut off */
      {11 * MIB, 12 * MIB, 12 * MIB},           /* a rest of 1 MiB is not more than 1 MiB: not cut off */
      {100 * MIB - 7, 100 * MIB, 100 * MIB},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    Fixture fixture;
    fixture_open(&fixture, 0, FAKE_ASCENDING);
    Block *block = fixture_obtain(&fixture, rows[i].request);
    assert_int_equal(block->bytes, rows[i].block);
    assert_int_equal(block->requested_bytes, rows[i].request);
    assert_int_equal(reserved_bytes(&fixture), rows[i].segment);
    assert_int_equal(allocated_bytes(&fixture), rows[i].block);
    assert_int_equal(fixture_statistics(&fixture).requested.current_bytes, rows[i].request);
    vl_heap_release(fixture.heap, &block);
    assert_null(block);
    fixture_close(&fixture);
  }
}

/* Small pool: a rest of 512 B is kept. Large pool: a rest of exactly 1 MiB is not, one of more is. */
static void rest_is_split_off_by_the_pool_s_rule(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *a = fixture_obtain(&fixture, MIB);
  Block *b = fixture_obtain(&fixture, MIB - 512);
  Block *c = fixture_obtain(&fixture, 512); /* the last 512 B of the same segment */
  assert_int_equal(reserved_bytes(&fixture), 2 * MIB);
  assert_true(b->address == a->address + MIB);
  assert_true(c->address == b->address + (uintptr_t)(MIB - 512));
  Block *d = fixture_obtain(&fixture, 9 * MIB);
  Block *e = fixture_obtain(&fixture, 9 * MIB + MIB / 2); /* 11 left: 1.5 MiB are cut off */
  assert_int_equal(e->bytes, 9 * MIB + MIB / 2);
  vl_heap_release(fixture.heap, &e);
  e = fixture_obtain(&fixture, 10 * MIB - 512); /* 11 left: the rest is 1 MiB and 512 B: cut off */
  assert_int_equal(e->bytes, 10 * MIB - 512);
  vl_heap_release(fixture.heap, &e);
  e = fixture_obtain(&fixture, 10 * MIB); /* 11 left: a rest of 1 MiB stays with the block */
  assert_int_equal(e->bytes, 11 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 22 * MIB);
  Block **blocks[] = {&a, &b, &c, &d, &e};
  for (size_t i = 0; i < 5; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  fixture_close(&fixture);
}

/* Four quarters of a segment, released in every order, always become one piece again. */
static void neighbours_merge_in_every_order(void **state) {
  (void)state;
  for (int order = 0; order < 24; order++) {
    Fixture fixture;
    fixture_open(&fixture, 0, FAKE_ASCENDING);
    Block *blocks[4];
    for (int i = 0; i < 4; i++)
      blocks[i] = fixture_obtain(&fixture, 5 * MIB);
    assert_int_equal(reserved_bytes(&fixture), 20 * MIB);
    int left = order;
    for (int count = 4; count > 0; count--) {
      int pick = left % count;
      left /= count;
      vl_heap_release(fixture.heap, &blocks[pick]);
      blocks[pick] = blocks[count - 1];
    }
    HeapFreeSpace space;
    vl_heap_free_space(fixture.heap, &space);
    assert_int_equal(space.largest_free_bytes, 20 * MIB);
    assert_true(space.fragmentation == 0.0);
    Block *whole = fixture_obtain(&fixture, 20 * MIB);
    assert_int_equal(reserved_bytes(&fixture), 20 * MIB);
    vl_heap_release(fixture.heap, &whole);
    fixture_close(&fixture);
  }
}

/* The smallest hole that holds the request wins; among equal ones the lowest place. */
static void best_fit_takes_smallest_then_lowest(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_DESCENDING);
  Block *blocks[7];
  const int64_t sizes[7] = {64 * KIB, KIB, 32 * KIB, KIB, 32 * KIB, KIB, 48 * KIB};
  for (int i = 0; i < 7; i++)
    blocks[i] = fixture_obtain(&fixture, sizes[i]);
  Block *end = fixture_obtain(&fixture, MIB); /* keeps the tail of the segment away from the last hole */
  uintptr_t lower = blocks[2]->address, higher = blocks[4]->address, middle = blocks[6]->address;
  for (int i = 0; i < 7; i += 2)
    vl_heap_release(fixture.heap, &blocks[i]);
  Block *first = fixture_obtain(&fixture, 32 * KIB);
  Block *second = fixture_obtain(&fixture, 32 * KIB);
  Block *third = fixture_obtain(&fixture, 32 * KIB);
  assert_true(first->address == lower);
  assert_true(second->address == higher);
  assert_true(third->address == middle);
  Block **rest[] = {&first, &second, &third, &end, &blocks[1], &blocks[3], &blocks[5]};
  for (size_t i = 0; i < 7; i++)
    vl_heap_release(fixture.heap, rest[i]);
  fixture_close(&fixture);
}

/* A free block of another stream, or of the other pool, is not used. */
static void streams_and_pools_stay_apart(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *large = fixture_obtain(&fixture, 5 * MIB);
  vl_heap_release(fixture.heap, &large);
  AllocationRequest request = {.bytes = 5 * MIB, .category = MEMORY_WORKSPACE, .stream = 1};
  Block *other = NULL;
  assert_int_equal(vl_heap_obtain(fixture.heap, &request, &other).code, VL_OK);
  assert_int_equal(other->stream, 1);
  assert_int_equal(reserved_bytes(&fixture), 40 * MIB);
  Block *small = fixture_obtain(&fixture, KIB);
  assert_int_equal(reserved_bytes(&fixture), 42 * MIB);
  vl_heap_release(fixture.heap, &other);
  vl_heap_release(fixture.heap, &small);
  assert_int_equal(vl_heap_trim(fixture.heap), 42 * MIB);
  fixture_close(&fixture);
}

static void trim_gives_back_wholly_free_segments_only(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_SCATTERED);
  Block *kept = fixture_obtain(&fixture, 2 * MIB); /* in a 20 MiB segment, the rest of it free */
  Block *freed = fixture_obtain(&fixture, 30 * MIB);
  vl_heap_release(fixture.heap, &freed);
  assert_int_equal(vl_heap_trim(fixture.heap), 30 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 20 * MIB);
  assert_int_equal(vl_heap_trim(fixture.heap), 0);
  vl_heap_release(fixture.heap, &kept);
  assert_int_equal(vl_heap_trim(fixture.heap), 20 * MIB);
  assert_int_equal(fixture.fake.reserved_bytes, 0);
  fixture_close(&fixture);
}

/* The capacity is a limit on reserved bytes: reached exactly it is fine, one byte less it is not. */
static void capacity_is_exact_in_reserved_bytes(void **state) {
  (void)state;
  for (int64_t missing = 0; missing <= 1; missing++) {
    Fixture fixture;
    fixture_open(&fixture, 142 * MIB - missing, FAKE_ASCENDING);
    Block *a = fixture_obtain(&fixture, 100 * MIB);
    Block *b = fixture_obtain(&fixture, 9 * MIB);
    Block *c = fixture_obtain(&fixture, KIB);
    Block *d = NULL;
    Status status = fixture_try_obtain(&fixture, 20 * MIB, &d);
    assert_int_equal(status.code, missing == 0 ? VL_OK : VL_OUT_OF_MEMORY);
    assert_int_equal(reserved_bytes(&fixture), missing == 0 ? 142 * MIB : 122 * MIB);
    Block **blocks[] = {&a, &b, &c, &d};
    for (size_t i = 0; i < 4; i++)
      vl_heap_release(fixture.heap, blocks[i]);
    fixture_close(&fixture);
  }
}

/* Free segments of other sizes make way for a request that fits no free block. */
static void cached_segments_make_way_before_failing(void **state) {
  (void)state;
  for (int by_machine = 0; by_machine <= 1; by_machine++) {
    Fixture fixture;
    fixture_open(&fixture, by_machine ? 0 : 100 * MIB, FAKE_ASCENDING);
    if (by_machine) fixture.fake.machine_bytes = 100 * MIB;
    Block *a = fixture_obtain(&fixture, 40 * MIB);
    Block *b = fixture_obtain(&fixture, 50 * MIB);
    vl_heap_release(fixture.heap, &a);
    vl_heap_release(fixture.heap, &b);
    Block *c = fixture_obtain(&fixture, 60 * MIB);
    MemoryStatistics statistics = fixture_statistics(&fixture);
    assert_int_equal(statistics.retries, 1);
    assert_int_equal(statistics.ooms, 0);
    assert_int_equal(statistics.segment_releases, 2);
    assert_int_equal(statistics.reserved.current_bytes, 60 * MIB);
    assert_int_equal(statistics.reserved.peak_bytes, 90 * MIB);
    vl_heap_release(fixture.heap, &c);
    fixture_close(&fixture);
  }
}

/* Batch 64 needs 3 x 400 of 1000 MiB, batch 32 needs 3 x 200: ten failures leave nothing behind. */
static void failed_attempt_leaves_live_bytes_f1(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 1000 * MIB, FAKE_ASCENDING);
  for (int round = 0; round < 10; round++) {
    Block *blocks[3] = {NULL, NULL, NULL};
    Status status = vl_ok();
    for (int i = 0; i < 3 && status.code == VL_OK; i++) {
      status = fixture_try_obtain(&fixture, 400 * MIB, &blocks[i]);
    }
    assert_int_equal(status.code, VL_OUT_OF_MEMORY);
    assert_null(blocks[2]);
    assert_int_equal(allocated_bytes(&fixture), 800 * MIB);
    for (int i = 0; i < 3; i++)
      vl_heap_release(fixture.heap, &blocks[i]);
    assert_int_equal(allocated_bytes(&fixture), 0);
    for (int i = 0; i < 3; i++)
      blocks[i] = fixture_obtain(&fixture, 200 * MIB);
    assert_int_equal(allocated_bytes(&fixture), 600 * MIB);
    assert_true(reserved_bytes(&fixture) <= 1000 * MIB);
    for (int i = 0; i < 3; i++)
      vl_heap_release(fixture.heap, &blocks[i]);
  }
  assert_int_equal(fixture_statistics(&fixture).ooms, 10);
  assert_int_equal(fixture_statistics(&fixture).allocated.peak_bytes, 800 * MIB);
  fixture_close(&fixture);
}

/* 60, 30, a pin of 1 MiB, 60 and 30 released, thirty times: reserved stays near the highest live amount. */
static void pins_between_cycles_do_not_grow_reserved_g1(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *pins[30];
  int64_t after_fifth = 0;
  for (int cycle = 0; cycle < 30; cycle++) {
    Block *a = fixture_obtain(&fixture, 60 * MIB);
    Block *b = fixture_obtain(&fixture, 30 * MIB);
    pins[cycle] = fixture_obtain(&fixture, MIB);
    vl_heap_release(fixture.heap, &a);
    vl_heap_release(fixture.heap, &b);
    int64_t without_pins = reserved_bytes(&fixture) - MIB * 2 * ((cycle + 2) / 2); /* two pins a segment */
    if (cycle == 4) after_fifth = without_pins;
    if (cycle > 4) assert_int_equal(without_pins, after_fifth);
  }
  MemoryStatistics statistics = fixture_statistics(&fixture);
  assert_int_equal(statistics.allocated.current_bytes, 30 * MIB);
  assert_int_equal(statistics.allocated.peak_bytes, 120 * MIB);
  assert_true(statistics.reserved.peak_bytes <= 160 * MIB);
  for (int i = 0; i < 30; i++)
    vl_heap_release(fixture.heap, &pins[i]);
  fixture_close(&fixture);
}

/* The same bytes asked for twice: once there is room in pieces only, once there is none. */
static void failure_says_fragmented_or_shortage_g2(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 100 * MIB, FAKE_ASCENDING);
  Block *blocks[5];
  for (int i = 0; i < 5; i++)
    blocks[i] = fixture_obtain(&fixture, 20 * MIB);
  HeapFreeSpace space;
  vl_heap_free_space(fixture.heap, &space);
  assert_true(space.free_bytes == 0 && space.fragmentation == 0.0); /* full: 0, not NaN */
  Block *more = NULL;
  Status status = fixture_try_obtain(&fixture, 50 * MIB, &more);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "shortage"));
  /* 12 MiB in use in each segment: 40 MiB free in all, none of it releasable, 8 the largest. */
  Block *small[5];
  for (int i = 0; i < 5; i++) {
    vl_heap_release(fixture.heap, &blocks[i]);
    small[i] = fixture_obtain(&fixture, 12 * MIB);
  }
  vl_heap_free_space(fixture.heap, &space);
  assert_int_equal(space.free_bytes, 40 * MIB);
  assert_int_equal(space.largest_free_bytes, 8 * MIB);
  assert_true(space.fragmentation == 1.0 - 8.0 / 40.0);
  status = fixture_try_obtain(&fixture, 30 * MIB, &more);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  const char *parts[] = {"fragmented: 40.00 MiB",
                         "30.00 MiB (31457280 bytes)",
                         "'tensor'",
                         "'layer'",
                         "activation",
                         "allocated 60.00 MiB",
                         "reserved 100.00 MiB",
                         "capacity 100.00 MiB",
                         "largest free block 8.00 MiB"};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (strstr(status.message, parts[i]) == NULL) fail_msg("no '%s' in: %s", parts[i], status.message);
  }
  for (int i = 0; i < 5; i++)
    vl_heap_release(fixture.heap, &small[i]);
  vl_heap_trim(fixture.heap);
  vl_heap_free_space(fixture.heap, &space);
  assert_true(space.free_bytes == 0 && space.fragmentation == 0.0); /* empty: 0, not NaN */
  fixture_close(&fixture);
}

/* Unreserved capacity is room only while the machine can serve it. */
static void machine_s_refusal_is_a_shortage_whatever_the_capacity(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 1000 * MIB, FAKE_ASCENDING);
  fixture.fake.machine_bytes = 100 * MIB;
  Block *a = fixture_obtain(&fixture, 80 * MIB);
  Block *b = NULL;
  Status status = fixture_try_obtain(&fixture, 40 * MIB, &b);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "shortage"));
  assert_non_null(strstr(status.message, "the fake machine has"));
  vl_heap_release(fixture.heap, &a);
  fixture_close(&fixture);
}

/* A broken driver is not out of memory: it is passed on, and nothing is given back for it. */
static void other_failures_of_the_backing_are_passed_on(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *cached = fixture_obtain(&fixture, 30 * MIB);
  vl_heap_release(fixture.heap, &cached);
  fixture.fake.failure = VL_ENVIRONMENT;
  Block *block = NULL;
  Status status = fixture_try_obtain(&fixture, 40 * MIB, &block);
  assert_int_equal(status.code, VL_ENVIRONMENT);
  assert_null(block);
  assert_int_equal(fixture_statistics(&fixture).ooms, 0);
  assert_int_equal(reserved_bytes(&fixture), 30 * MIB);
  fixture_close(&fixture);
}

static void empty_and_invalid_requests(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *empty = fixture_obtain(&fixture, 0);
  assert_true(empty->address == 0 && empty->bytes == 0);
  assert_string_equal(empty->name, "tensor");
  assert_int_equal(reserved_bytes(&fixture), 0);
  vl_heap_release(fixture.heap, &empty);
  assert_null(empty);
  vl_heap_release(fixture.heap, &empty); /* NULL is allowed */
  const int64_t invalid[] = {-1, INT64_MIN, INT64_MAX};
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(fixture_try_obtain(&fixture, invalid[i], &empty).code, VL_INVALID);
    assert_null(empty);
  }
  fixture_close(&fixture);
  Heap *heap = NULL;
  HeapOptions options = {.policy = "bump"};
  Status status = vl_heap_create(&fixture.fake.backing, &options, NULL, &heap);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "'bump'"));
  assert_non_null(strstr(status.message, "caching"));
  options = (HeapOptions){.policy = "caching", .capacity_bytes = -1};
  assert_int_equal(vl_heap_create(&fixture.fake.backing, &options, NULL, &heap).code, VL_INVALID);
  assert_null(heap);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_and_segments_follow_the_constants),
      cmocka_unit_test(rest_is_split_off_by_the_pool_s_rule),
      cmocka_unit_test(neighbours_merge_in_every_order),
      cmocka_unit_test(best_fit_takes_smallest_then_lowest),
      cmocka_unit_test(streams_and_pools_stay_apart),
      cmocka_unit_test(trim_gives_back_wholly_free_segments_only),
      cmocka_unit_test(capacity_is_exact_in_reserved_bytes),
      cmocka_unit_test(cached_segments_make_way_before_failing),
      cmocka_unit_test(failed_attempt_leaves_live_bytes_f1),
      cmocka_unit_test(pins_between_cycles_do_not_grow_reserved_g1),
      cmocka_unit_test(failure_says_fragmented_or_shortage_g2),
      cmocka_unit_test(machine_s_refusal_is_a_shortage_whatever_the_capacity),
      cmocka_unit_test(other_failures_of_the_backing_are_passed_on),
      cmocka_unit_test(empty_and_invalid_requests),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
