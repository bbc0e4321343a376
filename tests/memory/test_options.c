/* The options of caching have PyTorch's semantics, expandable grows and shrinks by granules, and what cannot
 * be combined is refused. */
#include "fixture.h"

#include <math.h>
#include <string.h>

static int64_t reserved_bytes(const Fixture *fixture) {
  return fixture_statistics(fixture).reserved.current_bytes;
}

static Block *obtain_on(Fixture *fixture, int64_t bytes, int stream) {
  AllocationRequest request = {.bytes = bytes, .category = MEMORY_ACTIVATION, .name = "t", .stream = stream};
  Block *block = NULL;
  Status status = vl_heap_obtain(fixture->heap, &request, &block);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return block;
}

/* ---- What is refused -------------------------------------------------------------------------------------- */

static Status commit_nothing(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)address;
  (void)bytes;
  return vl_ok();
}

static void combinations_are_refused_with_a_reason(void **state) {
  (void)state;
  const struct {
    HeapOptions options;
    const char *reason;
  } rows[] = {
      {{.policy = "caching", .max_split_bytes = 19 * MIB}, "20 MiB and more"},
      {{.policy = "caching", .max_split_bytes = -1}, "20 MiB and more"},
      {{.policy = "caching", .gc_threshold = 1.0, .capacity_bytes = MIB}, "between 0 and 1"},
      {{.policy = "caching", .gc_threshold = -0.5, .capacity_bytes = MIB}, "between 0 and 1"},
      {{.policy = "caching", .gc_threshold = (double)NAN, .capacity_bytes = MIB}, "between 0 and 1"},
      {{.policy = "caching", .gc_threshold = 0.5}, "share of the capacity"},
      {{.policy = "caching", .round_divisions = 3}, "2, 4, 8"},
      {{.policy = "caching", .round_divisions = 128}, "2, 4, 8"},
      {{.policy = "caching", .round_divisions = -4}, "2, 4, 8"},
      {{.policy = "caching", .remap = true}, "no granules"},
      {{.policy = "planned", .remap = true}, "no options"},
      {{.policy = "expandable", .max_split_bytes = 20 * MIB}, "never be used again"},
      {{.policy = "expandable", .gc_threshold = 0.5, .capacity_bytes = MIB}, "garbage collection"},
      {{.policy = "expandable", .round_divisions = 5}, "2, 4, 8"},
      {{.policy = "planned", .round_divisions = 4}, "no options"},
      {{.policy = "planned", .max_split_bytes = 20 * MIB}, "no options"},
      {{.policy = "planned", .gc_threshold = 0.5, .capacity_bytes = MIB}, "no options"},
      {{.policy = "paged"}, "caching, expandable, planned, async"},
      {{.policy = "async", .round_divisions = 4}, "no options"},
      {{.policy = "async", .remap = true}, "no options"},
      {{.policy = "async", .max_split_bytes = 20 * MIB}, "no options"},
      {{.policy = "async", .gc_threshold = 0.5, .capacity_bytes = MIB}, "no options"},
  };
  FakeBacking fake = {0};
  fake.backing.commit = commit_nothing;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    Heap *heap = NULL;
    Status status = vl_heap_create(&fake.backing, &rows[i].options, NULL, &heap);
    assert_int_equal(status.code, VL_INVALID);
    assert_null(heap);
    if (!strstr(status.message, rows[i].reason)) fail_msg("no '%s' in: %s", rows[i].reason, status.message);
  }
  fake.backing.commit = NULL;
  Heap *heap = NULL;
  HeapOptions expandable = {.policy = "expandable"};
  assert_int_equal(vl_heap_create(&fake.backing, &expandable, NULL, &heap).code, VL_UNSUPPORTED);
  HeapOptions async = {.policy = "async"};
  assert_int_equal(vl_heap_create(&fake.backing, &async, NULL, &heap).code, VL_UNSUPPORTED);
}

/* ---- round ------------------------------------------------------------------------------------------------ */

static void sizes_are_rounded_to_steps_between_powers_of_two(void **state) {
  (void)state;
  const struct {
    int32_t divisions;
    int64_t request, block;
  } rows[] = {
      {4, 1, 512},
      {4, 1200, 1536},
      {4, 2048, 2048},
      {4, 2049, 2560},
      {4, 2560, 2560},
      {4, 3000, 3072},
      {4, 4096, 4096},
      {4, 5000, 5120},
      {4, MIB + 1, 1280 * KIB},
      {4, 9 * MIB, 10 * MIB},
      {8, 9 * MIB, 9 * MIB},
      {2, 9 * MIB, 12 * MIB},
      {2, 1025, 1536},
      {64, 40000, 40448},
      {16, 33 * MIB, 34 * MIB},
  };
  static const char *const policies[] = {"caching", "expandable"};
  for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
    Fixture fixture;
    HeapOptions options = {.policy = policies[i % 2], .round_divisions = rows[i / 2].divisions};
    fixture_open_with(&fixture, &options, FAKE_ASCENDING);
    Block *block = fixture_obtain(&fixture, rows[i / 2].request);
    if (block->bytes != rows[i / 2].block)
      fail_msg("%lld in %d steps: %lld", (long long)rows[i / 2].request, (int)rows[i / 2].divisions,
               (long long)block->bytes);
    vl_heap_release(fixture.heap, &block);
    fixture_close(&fixture);
  }
}

/* ---- max_split -------------------------------------------------------------------------------------------- */

/* A block of the bound's size serves no smaller request, is not split, and serves no much smaller one of its
 * kind; one below the bound is split as ever. */
static void oversize_blocks_are_kept_whole(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "caching", .max_split_bytes = 40 * MIB};
  fixture_open_with(&fixture, &options, FAKE_ASCENDING);
  Block *large = fixture_obtain(&fixture, 60 * MIB);
  vl_heap_release(fixture.heap, &large);
  Block *small = fixture_obtain(&fixture, 30 * MIB); /* not from the 60 */
  assert_int_equal(reserved_bytes(&fixture), 90 * MIB);
  large = fixture_obtain(&fixture, 41 * MIB); /* from the 60, which stays whole */
  assert_int_equal(large->bytes, 60 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 90 * MIB);
  vl_heap_release(fixture.heap, &large);
  large = fixture_obtain(&fixture, 40 * MIB); /* 20 more than asked for is too much */
  assert_int_equal(large->bytes, 40 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 130 * MIB);
  vl_heap_release(fixture.heap, &small);
  small = fixture_obtain(&fixture, 12 * MIB);
  assert_int_equal(small->bytes, 12 * MIB);
  Block *rest = fixture_obtain(&fixture, 18 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 130 * MIB);
  Block **blocks[] = {&large, &small, &rest};
  for (size_t i = 0; i < 3; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  fixture_close(&fixture);
}

/* When memory is short, one oversize block that is large enough goes, or the largest ones; others stay
 * cached. */
static void oversize_blocks_are_given_back_as_needed(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "caching", .max_split_bytes = 40 * MIB, .capacity_bytes = 200 * MIB};
  fixture_open_with(&fixture, &options, FAKE_ASCENDING);
  const int64_t sizes[] = {60 * MIB, 44 * MIB, 80 * MIB};
  Block *blocks[3];
  for (int i = 0; i < 3; i++)
    blocks[i] = fixture_obtain(&fixture, sizes[i]);
  for (int i = 0; i < 3; i++)
    vl_heap_release(fixture.heap, &blocks[i]);
  assert_int_equal(reserved_bytes(&fixture), 184 * MIB);
  Block *small = fixture_obtain(&fixture, 30 * MIB); /* the least oversize one that suffices goes: the 44 */
  assert_int_equal(reserved_bytes(&fixture), (184 - 44 + 30) * MIB);
  Block *large = fixture_obtain(&fixture, 110 * MIB); /* no single one: 80, then 60 */
  assert_int_equal(reserved_bytes(&fixture), (30 + 110) * MIB);
  assert_int_equal(fixture_statistics(&fixture).retries, 0);
  vl_heap_release(fixture.heap, &small);
  vl_heap_release(fixture.heap, &large);
  fixture_close(&fixture);
}

/* ---- gc --------------------------------------------------------------------------------------------------- */

/* Above the threshold, segments that lay unused longest go before the heap grows; below, none. */
static void oldest_free_segments_go_above_the_threshold(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "caching", .gc_threshold = 0.5, .capacity_bytes = 200 * MIB};
  fixture_open_with(&fixture, &options, FAKE_ASCENDING);
  Block *a = fixture_obtain(&fixture, 40 * MIB), *b = fixture_obtain(&fixture, 42 * MIB);
  vl_heap_release(fixture.heap, &a);             /* free since the second search */
  Block *c = fixture_obtain(&fixture, 50 * MIB); /* 82 of 200 reserved: nothing goes */
  assert_int_equal(reserved_bytes(&fixture), 132 * MIB);
  vl_heap_release(fixture.heap, &b);             /* free since the third */
  Block *d = fixture_obtain(&fixture, 60 * MIB); /* 132 of 200: a is older than the mean, b is not */
  assert_int_equal(reserved_bytes(&fixture), (132 - 40 + 60) * MIB);
  Block *e = fixture_obtain(&fixture, 44 * MIB); /* 152: b is the only one left */
  assert_int_equal(reserved_bytes(&fixture), (152 - 42 + 44) * MIB);
  assert_int_equal(fixture_statistics(&fixture).retries, 0);
  Block **blocks[] = {&c, &d, &e};
  for (size_t i = 0; i < 3; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  fixture_close(&fixture);
}

/* ---- expandable ------------------------------------------------------------------------------------------- */

/* Blocks tile one range for each pool and stream, which grows by 20 MiB, or 2 MiB for small ones. */
static void a_range_grows_by_granules(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "expandable"};
  fixture_open_with(&fixture, &options, FAKE_ASCENDING);
  Block *a = fixture_obtain(&fixture, 15 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 20 * MIB);
  Block *b = fixture_obtain(&fixture, 15 * MIB); /* 5 are there, 10 are added: a granule */
  assert_int_equal(reserved_bytes(&fixture), 40 * MIB);
  assert_true(b->address == a->address + (uintptr_t)(15 * MIB));
  Block *c = fixture_obtain(&fixture, 600); /* the small pool */
  assert_int_equal(reserved_bytes(&fixture), 42 * MIB);
  Block *d = obtain_on(&fixture, 3 * MIB, 1); /* another stream */
  assert_int_equal(reserved_bytes(&fixture), 62 * MIB);
  Block *e = fixture_obtain(&fixture, 10 * MIB - 512); /* the rest of 512 B is split off */
  assert_int_equal(e->bytes, 10 * MIB - 512);
  assert_int_equal(reserved_bytes(&fixture), 62 * MIB);
  Block **blocks[] = {&a, &b, &c, &d, &e};
  for (size_t i = 0; i < 5; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  assert_int_equal(reserved_bytes(&fixture), 62 * MIB); /* cached */
  assert_int_equal(vl_heap_trim(fixture.heap), 62 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 0);
  fixture_close(&fixture);
}

/* A hole is taken before the growing end, however large that has become. */
static void the_growing_end_is_taken_last(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "expandable"};
  fixture_open_with(&fixture, &options, FAKE_ASCENDING);
  Block *a = fixture_obtain(&fixture, 12 * MIB), *b = fixture_obtain(&fixture, 2 * MIB);
  Block *c = fixture_obtain(&fixture, 2 * MIB); /* 4 MiB are left at the end, 12 will be free before */
  uintptr_t hole = a->address;
  vl_heap_release(fixture.heap, &a);
  Block *d = fixture_obtain(&fixture, 3 * MIB);
  assert_true(d->address == hole);
  Block **blocks[] = {&b, &c, &d};
  for (size_t i = 0; i < 3; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  fixture_close(&fixture);
}

/* Where caching fails for want of one piece, granules in the middle lose their memory to the end; the next
 * block that fits takes the addresses in the middle again. */
static void granules_move_before_a_request_fails(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "expandable", .capacity_bytes = 100 * MIB};
  fixture_open_with(&fixture, &options, FAKE_ASCENDING);
  Block *blocks[5];
  for (int i = 0; i < 5; i++)
    blocks[i] = fixture_obtain(&fixture, 20 * MIB);
  uintptr_t start = blocks[0]->address;
  vl_heap_release(fixture.heap, &blocks[1]);
  vl_heap_release(fixture.heap, &blocks[3]);
  blocks[1] = fixture_obtain(&fixture, 40 * MIB);
  assert_true(blocks[1]->address == start + (uintptr_t)(100 * MIB));
  assert_int_equal(reserved_bytes(&fixture), 100 * MIB);
  assert_int_equal(fixture_statistics(&fixture).retries, 1);
  Status status = fixture_try_obtain(&fixture, 2 * MIB, &blocks[3]);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "shortage"));
  vl_heap_release(fixture.heap, &blocks[1]);
  assert_int_equal(vl_heap_trim(fixture.heap), 40 * MIB);
  blocks[1] = fixture_obtain(&fixture, 20 * MIB);
  assert_true(blocks[1]->address == start + (uintptr_t)(20 * MIB));
  for (int i = 0; i < 5; i++)
    vl_heap_release(fixture.heap, &blocks[i]);
  fixture_close(&fixture);
}

/* What is free in the middle goes to the end, and no more memory is taken; without remapping it is. */
static void free_granules_are_remapped_before_memory_is_taken(void **state) {
  (void)state;
  for (int remap = 0; remap <= 1; remap++) {
    Fixture fixture;
    HeapOptions options = {.policy = "expandable", .remap = remap == 1};
    fixture_open_with(&fixture, &options, FAKE_ASCENDING);
    Block *blocks[5];
    for (int i = 0; i < 5; i++)
      blocks[i] = fixture_obtain(&fixture, 20 * MIB);
    uintptr_t start = blocks[0]->address;
    vl_heap_release(fixture.heap, &blocks[1]);
    vl_heap_release(fixture.heap, &blocks[3]);
    blocks[1] = fixture_obtain(&fixture, 35 * MIB);
    assert_true(blocks[1]->address == start + (uintptr_t)(100 * MIB));
    assert_int_equal(reserved_bytes(&fixture), remap ? 100 * MIB : 140 * MIB);
    blocks[3] = fixture_obtain(&fixture, 10 * MIB); /* the lowest addresses again, or the hole there */
    assert_true(blocks[3]->address == start + (uintptr_t)(20 * MIB));
    assert_int_equal(reserved_bytes(&fixture),
                     remap ? 106 * MIB : 140 * MIB); /* 4 MiB were left of the holes */
    for (int i = 0; i < 5; i++)
      vl_heap_release(fixture.heap, &blocks[i]);
    fixture_close(&fixture);
  }
}

/* ---- G1 --------------------------------------------------------------------------------------------------- */

/* 60, 30, a pin of 1 MiB, 60 and 30 released, thirty times, under every combination there is. */
static void run_cycles_g1(const HeapOptions *options, bool defragments) {
  Fixture fixture;
  fixture_open_with(&fixture, options, FAKE_ASCENDING);
  Block *pins[30];
  int64_t after_fifth = 0;
  for (int cycle = 0; cycle < 30; cycle++) {
    Block *a = fixture_obtain(&fixture, 60 * MIB), *b = fixture_obtain(&fixture, 30 * MIB);
    pins[cycle] = fixture_obtain(&fixture, MIB);
    vl_heap_release(fixture.heap, &a);
    vl_heap_release(fixture.heap, &b);
    HeapMoved moved;
    if (defragments) assert_int_equal(vl_heap_defragment(fixture.heap, &moved).code, VL_OK);
    int64_t without_pins = reserved_bytes(&fixture) - MIB * 2 * ((cycle + 2) / 2); /* two pins a segment */
    if (cycle == 4) after_fifth = without_pins;
    if (cycle > 4) assert_int_equal(without_pins, after_fifth);
  }
  MemoryStatistics statistics = fixture_statistics(&fixture);
  assert_int_equal(statistics.allocated.current_bytes, 30 * MIB);
  assert_true(statistics.allocated.peak_bytes >= 120 * MIB);
  if (statistics.reserved.peak_bytes > 160 * MIB)
    fail_msg("%s max_split %lld gc %g round %d defragment %d: reserved %lld", options->policy,
             (long long)options->max_split_bytes, options->gc_threshold, (int)options->round_divisions,
             (int)defragments, (long long)statistics.reserved.peak_bytes);
  for (int i = 0; i < 30; i++)
    vl_heap_release(fixture.heap, &pins[i]);
  fixture_close(&fixture);
}

static void pins_do_not_grow_reserved_under_any_option_g1(void **state) {
  (void)state;
  for (int i = 0; i < 16; i++) {
    HeapOptions options = {.policy = "caching",
                           .capacity_bytes = 200 * MIB,
                           .max_split_bytes = i & 1 ? 20 * MIB : 0,
                           .gc_threshold = i & 2 ? 0.5 : 0.0,
                           .round_divisions = i & 4 ? 4 : 0};
    run_cycles_g1(&options, i & 8);
  }
  for (int i = 0; i < 8; i++) {
    HeapOptions options = {.policy = "expandable", .round_divisions = i & 1 ? 4 : 0, .remap = (i & 4) != 0};
    run_cycles_g1(&options, i & 2);
  }
  HeapOptions planned = {.policy = "planned"};
  run_cycles_g1(&planned, false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(combinations_are_refused_with_a_reason),
      cmocka_unit_test(sizes_are_rounded_to_steps_between_powers_of_two),
      cmocka_unit_test(oversize_blocks_are_kept_whole),
      cmocka_unit_test(oversize_blocks_are_given_back_as_needed),
      cmocka_unit_test(oldest_free_segments_go_above_the_threshold),
      cmocka_unit_test(a_range_grows_by_granules),
      cmocka_unit_test(the_growing_end_is_taken_last),
      cmocka_unit_test(granules_move_before_a_request_fails),
      cmocka_unit_test(free_granules_are_remapped_before_memory_is_taken),
      cmocka_unit_test(pins_do_not_grow_reserved_under_any_option_g1),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
