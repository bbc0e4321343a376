/* Places planned ahead: no two blocks that live at once overlap, by a test of its own that looks at every
 * pair; the arena is near the most that lives at once. */
#include "fixture.h"

#include <stdlib.h>
#include <string.h>

static int64_t rounded(int64_t bytes) { return (bytes + 511) / 512 * 512; }

static bool live_together(const Lifetime *a, const Lifetime *b) {
  return a->stream != b->stream || (a->first <= b->last && b->first <= a->last);
}

static void check_places(const Lifetime *lives, int64_t count, const int64_t *offsets, int64_t arena_bytes) {
  for (int64_t i = 0; i < count; i++) {
    assert_true(offsets[i] >= 0 && offsets[i] % 512 == 0);
    assert_true(offsets[i] + rounded(lives[i].bytes) <= arena_bytes);
    for (int64_t k = 0; k < i; k++) {
      bool apart = offsets[i] + rounded(lives[i].bytes) <= offsets[k] ||
                   offsets[k] + rounded(lives[k].bytes) <= offsets[i];
      if (live_together(&lives[i], &lives[k]) && !apart)
        fail_msg("%lld and %lld overlap", (long long)i, (long long)k);
    }
  }
}

/* By looking at every block for every begin. */
static int64_t peak_of(const Lifetime *lives, int64_t count, int stream) {
  int64_t peak_bytes = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t live_bytes = 0, time = lives[i].first;
    for (int64_t k = 0; k < count; k++)
      if (lives[k].stream == stream && lives[k].first <= time && time <= lives[k].last)
        live_bytes += rounded(lives[k].bytes);
    if (live_bytes > peak_bytes) peak_bytes = live_bytes;
  }
  return peak_bytes;
}

static int64_t pack(const Lifetime *lives, int64_t count) {
  int64_t *offsets = vl_allocate(((size_t)count + 1) * sizeof *offsets);
  int64_t *again = vl_allocate(((size_t)count + 1) * sizeof *again);
  int64_t arena_bytes = vl_lifetimes_pack(lives, count, offsets), peak_bytes = 0;
  check_places(lives, count, offsets, arena_bytes);
  for (int stream = -1; stream <= 2; stream++)
    peak_bytes += peak_of(lives, count, stream);
  assert_int_equal(vl_lifetimes_peak(lives, count), peak_bytes);
  assert_true(arena_bytes >= peak_bytes);
  assert_int_equal(vl_lifetimes_pack(lives, count, again), arena_bytes);
  assert_memory_equal(offsets, again, (size_t)count * sizeof *offsets);
  free(offsets);
  free(again);
  return arena_bytes;
}

static void few_blocks(void **state) {
  (void)state;
  assert_int_equal(pack(NULL, 0), 0);
  const Lifetime one[] = {{.bytes = 1, .first = 5, .last = 5}};
  assert_int_equal(pack(one, 1), 512);
  /* One after the other, then at once; a life that ends where another begins overlaps it. */
  const Lifetime apart[] = {{.bytes = 1000, .first = 0, .last = 1}, {.bytes = 1000, .first = 2, .last = 3}};
  assert_int_equal(pack(apart, 2), 1024);
  const Lifetime together[] = {{.bytes = 1000, .first = 0, .last = 2},
                               {.bytes = 1000, .first = 2, .last = 3}};
  assert_int_equal(pack(together, 2), 2048);
  /* Two streams share nothing, whenever they live. */
  const Lifetime streams[] = {{.bytes = 1000, .first = 0, .last = 1, .stream = 2},
                              {.bytes = 3000, .first = 2, .last = 3, .stream = -1}};
  assert_int_equal(pack(streams, 2), 1024 + 3072);
}

/* Saved in forward, freed in the reverse order in backward, with temporaries beside: exactly the peak. */
static void saved_activations_and_temporaries_take_the_peak(void **state) {
  (void)state;
  enum { LAYERS = 50 };
  Lifetime lives[4 * LAYERS];
  int64_t count = 0;
  for (int64_t i = 0; i < LAYERS; i++) {
    int64_t bytes = (1 + i * 7 % 13) * 64 * KIB;
    lives[count++] = (Lifetime){.bytes = bytes, .first = 2 * i, .last = 4 * LAYERS - 2 * i};
    lives[count++] = (Lifetime){.bytes = bytes / 2, .first = 2 * i, .last = 2 * i + 1};
    lives[count++] = (Lifetime){.bytes = bytes, .first = 4 * LAYERS - 2 * i, .last = 4 * LAYERS - 2 * i + 2};
    lives[count++] = (Lifetime){.bytes = 4 * KIB, .first = 4 * LAYERS - 2 * i, .last = 4 * LAYERS + 10};
  }
  int64_t arena_bytes = pack(lives, count), peak_bytes = vl_lifetimes_peak(lives, count);
  assert_true((double)arena_bytes <= 1.002 * (double)peak_bytes);
}

/* Whatever the lives: of any length, or mostly short ones; sizes of one kind or of many. */
static void random_lives(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 60; seed++) {
    uint64_t key = vl_random_key(seed, 0, "lives");
    int64_t count = 1 + (int64_t)(vl_random_word(key, 0, 0) % 300);
    Lifetime *lives = vl_allocate((size_t)count * sizeof *lives);
    for (int64_t i = 0; i < count; i++) {
      uint32_t words[4];
      for (uint64_t k = 0; k < 4; k++)
        words[k] = vl_random_word(key, 1 + (uint64_t)i, k);
      int64_t length = seed % 2 ? words[1] % 200 : words[1] % 8;
      lives[i] = (Lifetime){.bytes = 1 + words[0] % (seed % 3 ? 1000000 : 4000),
                            .first = words[2] % 200,
                            .stream = seed % 5 ? 0 : (int)(words[3] % 3)};
      lives[i].last = lives[i].first + length;
    }
    int64_t arena_bytes = pack(lives, count), peak_bytes = vl_lifetimes_peak(lives, count);
    double over = (double)arena_bytes / (double)peak_bytes - 1.0;
    if (over > 0.12) fail_msg("seed %d: %.1f %% above the peak", (int)seed, 100.0 * over);
    free(lives);
  }
}

/* ---- The policy that puts blocks there -------------------------------------------------------------------- */

static Block *obtain_at(Fixture *fixture, int64_t bytes, int32_t region, int64_t offset) {
  AllocationRequest request = {.bytes = bytes,
                               .category = MEMORY_ACTIVATION,
                               .name = "t",
                               .scope = "s",
                               .region = region,
                               .offset = offset};
  Block *block = NULL;
  Status status = vl_heap_obtain(fixture->heap, &request, &block);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return block;
}

static int64_t reserved_bytes(const Fixture *fixture) {
  return fixture_statistics(fixture).reserved.current_bytes;
}

static void blocks_lie_where_they_were_planned(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "planned"};
  fixture_open_with(&fixture, &options, FAKE_SCATTERED);
  assert_true(vl_heap_is_planned(fixture.heap));
  int32_t weights = vl_heap_add_region(fixture.heap, 10000);
  assert_int_equal(reserved_bytes(&fixture), 0);
  Block *a = obtain_at(&fixture, 5000, weights, 0), *b = obtain_at(&fixture, 4500, weights, 5120);
  assert_int_equal(reserved_bytes(&fixture), 12288); /* whole pages */
  assert_true(b->address == a->address + 5120 && b->bytes == 4608);
  vl_heap_extend_step_region(fixture.heap, 20 * MIB);
  Block *c = obtain_at(&fixture, 4 * MIB, VL_STEP_REGION, 6 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 12288 + 20 * MIB);
  HeapFreeSpace space;
  vl_heap_free_space(fixture.heap, &space);
  assert_int_equal(space.free_bytes, 16 * MIB + 12288 - 5120 - 4608);
  assert_int_equal(space.largest_free_bytes, 10 * MIB);
  /* Without a place, or one beyond the region: beside, and named. */
  assert_int_equal(vl_heap_unplanned(fixture.heap).blocks, 0);
  Block *d = obtain_at(&fixture, 600, VL_UNPLANNED, 0);
  Block *e = obtain_at(&fixture, 2 * MIB, VL_STEP_REGION, 19 * MIB);
  HeapUnplanned unplanned = vl_heap_unplanned(fixture.heap);
  assert_int_equal(unplanned.blocks, 2);
  assert_int_equal(unplanned.peak_bytes, 1024 + 2 * MIB);
  assert_string_equal(unplanned.name, "t");
  assert_int_equal(reserved_bytes(&fixture), 12288 + 20 * MIB + 22 * MIB);
  /* A larger plan takes effect once nothing lives in the region; the last block of another gives it back. */
  vl_heap_extend_step_region(fixture.heap, 30 * MIB);
  vl_heap_release(fixture.heap, &c);
  c = obtain_at(&fixture, MIB, VL_STEP_REGION, 29 * MIB);
  assert_int_equal(reserved_bytes(&fixture), 12288 + 30 * MIB + 22 * MIB);
  vl_heap_release(fixture.heap, &a);
  vl_heap_release(fixture.heap, &b);
  assert_int_equal(reserved_bytes(&fixture), 30 * MIB + 22 * MIB);
  assert_int_equal(vl_heap_add_region(fixture.heap, 100), weights); /* its number is free again */
  Block **blocks[] = {&c, &d, &e};
  for (size_t i = 0; i < 3; i++)
    vl_heap_release(fixture.heap, blocks[i]);
  assert_int_equal(vl_heap_trim(fixture.heap), 52 * MIB);
  fixture_close(&fixture);
}

/* A region that does not fit is a shortage of its size, however small the block that came first. */
static void a_region_that_does_not_fit_is_a_shortage(void **state) {
  (void)state;
  Fixture fixture;
  HeapOptions options = {.policy = "planned", .capacity_bytes = 50 * MIB};
  fixture_open_with(&fixture, &options, FAKE_ASCENDING);
  vl_heap_extend_step_region(fixture.heap, 60 * MIB);
  AllocationRequest request = {.bytes = 512, .category = MEMORY_ACTIVATION, .region = VL_STEP_REGION};
  Block *block = NULL;
  Status status = vl_heap_obtain(fixture.heap, &request, &block);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "shortage"));
  assert_non_null(strstr(status.message, "62914560"));
  /* What is free beside makes way. */
  block = fixture_obtain(&fixture, 30 * MIB);
  vl_heap_release(fixture.heap, &block);
  assert_int_equal(reserved_bytes(&fixture), 30 * MIB);
  int32_t region = vl_heap_add_region(fixture.heap, 40 * MIB);
  block = obtain_at(&fixture, 512, region, 0);
  assert_int_equal(reserved_bytes(&fixture), 40 * MIB);
  assert_int_equal(fixture_statistics(&fixture).retries, 1);
  vl_heap_release(fixture.heap, &block);
  fixture_close(&fixture);
}

/* Other policies choose as ever. */
static void other_policies_do_not_look_at_places(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  assert_false(vl_heap_is_planned(fixture.heap));
  assert_int_equal(vl_heap_add_region(fixture.heap, 100), VL_UNPLANNED);
  vl_heap_extend_step_region(fixture.heap, 100);
  Block *a = obtain_at(&fixture, 512, VL_STEP_REGION, 0), *b = obtain_at(&fixture, 512, VL_STEP_REGION, 0);
  assert_true(a->address != b->address);
  assert_int_equal(vl_heap_unplanned(fixture.heap).blocks, 0);
  vl_heap_release(fixture.heap, &a);
  vl_heap_release(fixture.heap, &b);
  fixture_close(&fixture);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(few_blocks),
      cmocka_unit_test(saved_activations_and_temporaries_take_the_peak),
      cmocka_unit_test(random_lives),
      cmocka_unit_test(blocks_lie_where_they_were_planned),
      cmocka_unit_test(a_region_that_does_not_fit_is_a_shortage),
      cmocka_unit_test(other_policies_do_not_look_at_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
