#include "fixture.h"

#include <stdlib.h>

static uintptr_t place(const FakeBacking *fake, int64_t ordinal) {
  /* Slots of 64 GiB; the scattered order is a permutation because the factor is odd. */
  uint64_t slot = (uint64_t)ordinal;
  if (fake->placement == FAKE_DESCENDING) slot = FAKE_SEGMENT_LIMIT - 1 - slot;
  if (fake->placement == FAKE_SCATTERED) slot = slot * 40503 % FAKE_SEGMENT_LIMIT;
  return (uintptr_t)((slot + 1) << 36);
}

static Status fake_reserve(void *context, int64_t bytes, uintptr_t *address) {
  FakeBacking *fake = context;
  if (fake->failure != VL_OK) {
    StatusCode code = fake->failure;
    fake->failure = VL_OK;
    return vl_error(code, "the fake backing fails as told");
  }
  if (fake->machine_bytes > 0 && fake->reserved_bytes + bytes > fake->machine_bytes) {
    return vl_error(VL_OUT_OF_MEMORY, "the fake machine has %lld bytes", (long long)fake->machine_bytes);
  }
  assert_true(bytes > 0 && bytes < INT64_C(1) << 36);
  assert_true(fake->segment_count < FAKE_SEGMENT_LIMIT);
  FakeSegment *segment = &fake->segments[fake->segment_count];
  *segment = (FakeSegment){.address = place(fake, fake->segment_count), .bytes = bytes};
  fake->segment_count++;
  fake->reserved_bytes += bytes;
  *address = segment->address;
  return vl_ok();
}

static void fake_release(void *context, uintptr_t address, int64_t bytes) {
  FakeBacking *fake = context;
  int64_t at = fake_segment_of(fake, address, bytes);
  assert_true(at >= 0);
  assert_true(fake->segments[at].address == address && fake->segments[at].bytes == bytes);
  fake->segments[at].bytes = 0;
  fake->reserved_bytes -= bytes;
}

/* ---- Addresses without memory ---- */

static FakeRange *range_of(FakeBacking *fake, uintptr_t address, int64_t bytes) {
  for (int64_t i = 0; i < fake->range_count; i++) {
    FakeRange *range = &fake->ranges[i];
    if (range->bytes > 0 && address >= range->address &&
        address + (uintptr_t)bytes <= range->address + (uintptr_t)range->bytes)
      return range;
  }
  fail_msg("%lld bytes at %llx lie in no range", (long long)bytes, (unsigned long long)address);
  return NULL;
}

static Status fake_reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes,
                                     uintptr_t *address) {
  FakeBacking *fake = context;
  assert_true(fake->range_count < FAKE_RANGE_LIMIT);
  assert_true(bytes > 0 && bytes % granule_bytes == 0);
  FakeRange *range = &fake->ranges[fake->range_count++];
  *range = (FakeRange){.address = (uintptr_t)fake->range_count << 48,
                       .bytes = bytes,
                       .granule_bytes = granule_bytes,
                       .committed = vl_allocate((size_t)(bytes / granule_bytes))};
  *address = range->address;
  return vl_ok();
}

static void fake_release_addresses(void *context, uintptr_t address, int64_t bytes) {
  FakeRange *range = range_of(context, address, bytes);
  assert_true(range->address == address && range->bytes == bytes);
  for (int64_t i = 0; i < bytes / range->granule_bytes; i++)
    assert_false(range->committed[i]);
  free(range->committed);
  range->bytes = 0;
}

/* Whole granules, each of which was the other way before. */
static void set_committed(FakeBacking *fake, uintptr_t address, int64_t bytes, bool committed) {
  FakeRange *range = range_of(fake, address, bytes);
  int64_t offset = (int64_t)(address - range->address), granule = range->granule_bytes;
  assert_true(bytes > 0 && offset % granule == 0 && bytes % granule == 0);
  for (int64_t i = offset / granule; i < (offset + bytes) / granule; i++) {
    assert_true(range->committed[i] != committed);
    range->committed[i] = committed;
  }
  fake->reserved_bytes += committed ? bytes : -bytes;
}

static Status fake_commit(void *context, uintptr_t address, int64_t bytes) {
  FakeBacking *fake = context;
  if (fake->machine_bytes > 0 && fake->reserved_bytes + bytes > fake->machine_bytes)
    return vl_error(VL_OUT_OF_MEMORY, "the fake machine has %lld bytes", (long long)fake->machine_bytes);
  set_committed(fake, address, bytes, true);
  return vl_ok();
}

static void fake_decommit(void *context, uintptr_t address, int64_t bytes) {
  set_committed(context, address, bytes, false);
}

static Status fake_move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  (void)context;
  assert_true(to != from && bytes > 0);
  return vl_ok();
}

int64_t fake_segment_of(const FakeBacking *fake, uintptr_t address, int64_t bytes) {
  for (int64_t i = 0; i < fake->segment_count; i++) {
    const FakeSegment *segment = &fake->segments[i];
    if (segment->bytes > 0 && address >= segment->address &&
        address + (uintptr_t)bytes <= segment->address + (uintptr_t)segment->bytes) {
      return i;
    }
  }
  return -1;
}

int64_t fake_live_segments(const FakeBacking *fake) {
  int64_t count = 0;
  for (int64_t i = 0; i < fake->segment_count; i++)
    count += fake->segments[i].bytes > 0 ? 1 : 0;
  return count;
}

void fixture_open(Fixture *fixture, int64_t capacity_bytes, FakePlacement placement) {
  HeapOptions options = {.policy = "caching", .capacity_bytes = capacity_bytes};
  fixture_open_with(fixture, &options, placement);
}

void fixture_open_with(Fixture *fixture, const HeapOptions *options, FakePlacement placement) {
  *fixture = (Fixture){.fake = {.placement = placement}};
  fixture->fake.segments = vl_allocate(FAKE_SEGMENT_LIMIT * sizeof(FakeSegment));
  fixture->fake.backing = (Backing){.context = &fixture->fake,
                                    .reserve = fake_reserve,
                                    .release = fake_release,
                                    .reserve_addresses = fake_reserve_addresses,
                                    .release_addresses = fake_release_addresses,
                                    .commit = fake_commit,
                                    .decommit = fake_decommit,
                                    .move = fake_move};
  fixture->tracker = vl_tracker_create(true);
  Status status = vl_heap_create(&fixture->fake.backing, options, fixture->tracker, &fixture->heap);
  assert_int_equal(status.code, VL_OK);
}

void fixture_close(Fixture *fixture) {
  vl_heap_destroy(&fixture->heap);
  assert_null(fixture->heap);
  MemoryStatistics statistics = fixture_statistics(fixture);
  assert_true(statistics.allocated.current_bytes == 0);
  assert_true(statistics.requested.current_bytes == 0);
  assert_true(statistics.reserved.current_bytes == 0);
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    assert_true(statistics.by_category[i].current_bytes == 0);
  }
  assert_true(statistics.obtains == statistics.releases);
  /* Granules come and go in runs of their own. */
  if (fixture->fake.range_count == 0) assert_true(statistics.segment_reserves == statistics.segment_releases);
  for (int64_t i = 0; i < fixture->fake.range_count; i++)
    assert_true(fixture->fake.ranges[i].bytes == 0);
  assert_true(fixture->fake.reserved_bytes == 0);
  assert_true(fake_live_segments(&fixture->fake) == 0);
  vl_tracker_destroy(&fixture->tracker);
  assert_null(fixture->tracker);
  free(fixture->fake.segments);
}

Status fixture_try_obtain(Fixture *fixture, int64_t bytes, Block **block) {
  AllocationRequest request = {
      .bytes = bytes, .category = MEMORY_ACTIVATION, .name = "tensor", .scope = "layer"};
  return vl_heap_obtain(fixture->heap, &request, block);
}

Block *fixture_obtain(Fixture *fixture, int64_t bytes) {
  Block *block = NULL;
  Status status = fixture_try_obtain(fixture, bytes, &block);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return block;
}

MemoryStatistics fixture_statistics(const Fixture *fixture) {
  MemoryStatistics statistics;
  vl_tracker_statistics(fixture->tracker, &statistics);
  return statistics;
}
