/* Policy async on a fake pool that takes memory in chunks of its own: blocks are counted as they occupy at
 * least, what the pool holds is followed, and it stays within the capacity. */
#include "fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t chunk_bytes = 32 * MIB;

typedef struct FakePool {
  Backing backing;
  int64_t machine_bytes; /* 0: no limit */
  int64_t reserved_bytes, used_bytes;
  int64_t stuck_bytes; /* free, but of no use until they are trimmed */
  uintptr_t next;
} FakePool;

static int64_t chunks(int64_t bytes) { return (bytes + chunk_bytes - 1) / chunk_bytes * chunk_bytes; }

static Status pool_obtain(void *context, int64_t bytes, uintptr_t *address) {
  FakePool *pool = context;
  assert_true(bytes > 0 && bytes % VL_POOL_BLOCK_BYTES == 0);
  int64_t held_bytes = chunks(pool->used_bytes + pool->stuck_bytes + bytes);
  if (pool->machine_bytes > 0 && held_bytes > pool->machine_bytes)
    return vl_error(VL_OUT_OF_MEMORY, "the fake card has %lld bytes", (long long)pool->machine_bytes);
  if (held_bytes > pool->reserved_bytes) pool->reserved_bytes = held_bytes;
  pool->used_bytes += bytes;
  *address = pool->next += (uintptr_t)bytes;
  return vl_ok();
}

static void pool_release(void *context, uintptr_t address, int64_t bytes) {
  FakePool *pool = context;
  assert_true(address != 0 && bytes <= pool->used_bytes);
  pool->used_bytes -= bytes;
}

static int64_t pool_reserved_bytes(void *context) { return ((FakePool *)context)->reserved_bytes; }

static void pool_trim(void *context) {
  FakePool *pool = context;
  pool->stuck_bytes = 0;
  pool->reserved_bytes = chunks(pool->used_bytes);
}

typedef struct Room {
  FakePool pool;
  Tracker *tracker;
  Heap *heap;
} Room;

static void room_open(Room *room, int64_t capacity_bytes) {
  HeapOptions options = {.policy = "async", .capacity_bytes = capacity_bytes};
  *room = (Room){.pool = {.next = 1 << 20}};
  room->pool.backing = (Backing){.context = &room->pool,
                                 .pool_obtain = pool_obtain,
                                 .pool_release = pool_release,
                                 .pool_reserved_bytes = pool_reserved_bytes,
                                 .pool_trim = pool_trim};
  room->tracker = vl_tracker_create(true);
  Status status = vl_heap_create(&room->pool.backing, &options, room->tracker, &room->heap);
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static MemoryStatistics statistics_of(const Room *room) {
  MemoryStatistics statistics;
  vl_tracker_statistics(room->tracker, &statistics);
  assert_true(statistics.allocated.current_bytes <= statistics.reserved.current_bytes);
  assert_true(statistics.reserved.current_bytes == room->pool.reserved_bytes);
  return statistics;
}

static void room_close(Room *room) {
  vl_heap_destroy(&room->heap);
  MemoryStatistics statistics = statistics_of(room);
  assert_int_equal(statistics.allocated.current_bytes, 0);
  assert_int_equal(statistics.reserved.current_bytes, 0);
  assert_int_equal(room->pool.used_bytes, 0);
  vl_tracker_destroy(&room->tracker);
}

static Status try_obtain(Room *room, int64_t bytes, Block **block) {
  AllocationRequest request = {
      .bytes = bytes, .category = MEMORY_ACTIVATION, .name = "tensor", .scope = "layer"};
  return vl_heap_obtain(room->heap, &request, block);
}

static Block *obtain(Room *room, int64_t bytes) {
  Block *block = NULL;
  Status status = try_obtain(room, bytes, &block);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return block;
}

static void count_block(void *context, const Block *block) {
  int64_t *total_bytes = context;
  *total_bytes += block->bytes;
}

static void blocks_are_counted_and_the_pool_is_followed(void **state) {
  (void)state;
  Room room;
  room_open(&room, 0);
  Block *blocks[3] = {obtain(&room, 1), obtain(&room, 257), obtain(&room, 33 * MIB)};
  assert_int_equal(blocks[0]->bytes, 256);
  assert_int_equal(blocks[1]->bytes, 512);
  assert_int_equal(blocks[1]->requested_bytes, 257);
  int64_t total_bytes = 0;
  vl_heap_each_block(room.heap, count_block, &total_bytes);
  assert_int_equal(total_bytes, 256 + 512 + 33 * MIB);
  MemoryStatistics statistics = statistics_of(&room);
  assert_int_equal(statistics.allocated.current_bytes, total_bytes);
  assert_int_equal(statistics.reserved.current_bytes, 64 * MIB);
  assert_int_equal(statistics.segment_reserves, 2);
  vl_heap_release(room.heap, &blocks[1]); /* from the middle of the list, */
  vl_heap_release(room.heap, &blocks[2]); /* its head */
  total_bytes = 0;
  vl_heap_each_block(room.heap, count_block, &total_bytes);
  assert_int_equal(total_bytes, 256);
  assert_int_equal(statistics_of(&room).reserved.current_bytes, 64 * MIB); /* kept by the pool */
  assert_int_equal(vl_heap_trim(room.heap), 32 * MIB);
  assert_int_equal(vl_heap_trim(room.heap), 0);
  vl_heap_release(room.heap, &blocks[0]);
  /* What it holds has no place, and so have blocks. */
  int64_t count, segments;
  const MemoryEvent *events = vl_tracker_events(room.tracker, &count);
  assert_int_equal(count, 9);
  for (int64_t i = 0; i < count; i++)
    assert_int_equal(events[i].segment, -1);
  (void)vl_tracker_segments(room.tracker, &segments);
  assert_int_equal(segments, 0);
  room_close(&room);
}

static void what_only_the_pool_knows_is_unknown(void **state) {
  (void)state;
  Room room;
  HeapFreeSpace space;
  HeapMoved moved;
  char text[4096] = "";
  room_open(&room, 0);
  vl_heap_free_space(room.heap, &space);
  assert_true(space.free_bytes == 0 && space.largest_free_bytes == 0 && space.fragmentation <= 0.0);
  Block *block = obtain(&room, MIB);
  vl_heap_free_space(room.heap, &space);
  assert_int_equal(space.free_bytes, 31 * MIB);
  assert_int_equal(space.largest_free_bytes, -1);
  assert_true(isnan(space.fragmentation));
  FILE *out = fmemopen(text, sizeof text, "w");
  vl_memory_summary(room.heap, out);
  fclose(out);
  assert_non_null(strstr(text, "unknown"));
  assert_false(vl_heap_is_planned(room.heap));
  Status status = vl_heap_defragment(room.heap, &moved);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  vl_heap_release(room.heap, &block);
  room_close(&room);
}

/* The pool grows before anybody can forbid it, and shrinks again: peaks stay within the capacity. */
static void the_capacity_holds(void **state) {
  (void)state;
  Room room;
  Block *refused = NULL;
  room_open(&room, 96 * MIB);
  Block *first = obtain(&room, 40 * MIB), *second = obtain(&room, 20 * MIB);
  Status status = try_obtain(&room, 40 * MIB, &refused);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "shortage"));
  assert_non_null(strstr(status.message, "the pool would hold"));
  assert_non_null(strstr(status.message, "largest free block unknown"));
  assert_int_equal(vl_heap_last_failure(room.heap).largest_free_bytes, -1);
  assert_null(refused);
  MemoryStatistics statistics = statistics_of(&room);
  assert_int_equal(statistics.reserved.peak_bytes, 64 * MIB);
  assert_int_equal(statistics.ooms, 1);
  /* Free memory that the pool cannot use makes way. */
  room.pool.stuck_bytes = 32 * MIB;
  Block *third = obtain(&room, 4 * MIB);
  assert_int_equal(statistics_of(&room).reserved.current_bytes, 96 * MIB);
  Block *fourth = obtain(&room, 30 * MIB);
  statistics = statistics_of(&room);
  assert_int_equal(statistics.retries, 1);
  assert_int_equal(statistics.reserved.peak_bytes, 96 * MIB);
  vl_heap_release(room.heap, &first);
  vl_heap_release(room.heap, &second);
  vl_heap_release(room.heap, &third);
  vl_heap_release(room.heap, &fourth);
  room_close(&room);
}

static void a_machine_that_refuses_is_named(void **state) {
  (void)state;
  Room room;
  Block *refused = NULL;
  room_open(&room, 0);
  room.pool.machine_bytes = 64 * MIB;
  Block *first = obtain(&room, 30 * MIB);
  room.pool.stuck_bytes = 10 * MIB;
  Status status = try_obtain(&room, 40 * MIB, &refused);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "the fake card has"));
  Block *second = obtain(&room, 34 * MIB);
  assert_int_equal(statistics_of(&room).allocated.current_bytes, 64 * MIB);
  vl_heap_release(room.heap, &first);
  vl_heap_release(room.heap, &second);
  room_close(&room);
}

/* After every operation what is allocated lies within what is reserved, and that within the capacity. */
static void traffic_stays_within_bounds(void **state) {
  (void)state;
  enum { LIVE = 64, OPERATIONS = 4000 };
  Room room;
  Block *blocks[LIVE] = {NULL};
  uint64_t random = 20260101;
  int64_t refusals = 0;
  room_open(&room, 128 * MIB);
  for (int i = 0; i < OPERATIONS; i++) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    Block **block = &blocks[random >> 33 & (LIVE - 1)];
    if (*block)
      vl_heap_release(room.heap, block);
    else if (try_obtain(&room, (int64_t)(random >> 40) % (8 * MIB) + 1, block).code != VL_OK)
      refusals++;
    if (i % 100 == 0) room.pool.stuck_bytes = room.pool.reserved_bytes - room.pool.used_bytes;
    assert_true(statistics_of(&room).reserved.peak_bytes <= 128 * MIB);
  }
  MemoryStatistics statistics = statistics_of(&room);
  assert_true(refusals > 0 && statistics.retries > 0);
  assert_int_equal(statistics.ooms, refusals);
  for (int i = 0; i < LIVE; i++)
    vl_heap_release(room.heap, &blocks[i]);
  room_close(&room);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_are_counted_and_the_pool_is_followed),
      cmocka_unit_test(what_only_the_pool_knows_is_unknown),
      cmocka_unit_test(the_capacity_holds),
      cmocka_unit_test(a_machine_that_refuses_is_named),
      cmocka_unit_test(traffic_stays_within_bounds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
