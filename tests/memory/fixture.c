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
  *fixture = (Fixture){.fake = {.placement = placement}};
  fixture->fake.segments = vl_allocate(FAKE_SEGMENT_LIMIT * sizeof(FakeSegment));
  fixture->fake.backing =
      (Backing){.context = &fixture->fake, .reserve = fake_reserve, .release = fake_release};
  fixture->tracker = vl_tracker_create(true);
  HeapOptions options = {.policy = "caching", .capacity_bytes = capacity_bytes};
  Status status = vl_heap_create(&fixture->fake.backing, &options, fixture->tracker, &fixture->heap);
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
  assert_true(statistics.segment_reserves == statistics.segment_releases);
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
