/* Compaction keeps every byte, makes one hole, and gives back what is free in whole; under every policy and
 * option, in traffic without a plan. */
#include "fixture.h"
#include "real.h"

#include <string.h>

typedef struct Room {
  Tracker *tracker;
  Heap *heap;
} Room;

static void room_open(Room *room, const HeapOptions *options) {
  room->tracker = vl_tracker_create(false);
  Status status = vl_heap_create(&real_backing, options, room->tracker, &room->heap);
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static void room_close(Room *room) {
  MemoryStatistics statistics;
  vl_heap_destroy(&room->heap);
  vl_tracker_statistics(room->tracker, &statistics);
  assert_int_equal(statistics.reserved.current_bytes, 0);
  assert_int_equal(statistics.allocated.current_bytes, 0);
  vl_tracker_destroy(&room->tracker);
}

static Status try_obtain(const Room *room, int64_t bytes, int stream, Block **block) {
  AllocationRequest request = {.bytes = bytes, .category = MEMORY_ACTIVATION, .name = "t", .stream = stream};
  return vl_heap_obtain(room->heap, &request, block);
}

static Block *obtain(const Room *room, int64_t bytes) {
  Block *block = NULL;
  Status status = try_obtain(room, bytes, 0, &block);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return block;
}

static HeapMoved defragment(const Room *room) {
  HeapMoved moved;
  Status status = vl_heap_defragment(room->heap, &moved);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return moved;
}

static int64_t reserved_bytes(const Room *room) {
  MemoryStatistics statistics;
  vl_tracker_statistics(room->tracker, &statistics);
  return statistics.reserved.current_bytes;
}

/* An arena of 100: 10, 20 and 30 are allocated, 10 and 20 freed, 50 asked for. */
static void one_hole_after_defragmenting_g2(void **state) {
  (void)state;
  Room room;
  HeapOptions options = {.policy = "caching", .capacity_bytes = 100 * MIB};
  room_open(&room, &options);
  HeapFreeSpace space;
  vl_heap_free_space(room.heap, &space);
  assert_true(space.fragmentation == 0.0); /* empty: 0, not NaN */
  Block *arena = obtain(&room, 100 * MIB);
  vl_heap_free_space(room.heap, &space);
  assert_true(space.fragmentation == 0.0); /* full: 0 too */
  vl_heap_release(room.heap, &arena);
  Block *first = obtain(&room, 10 * MIB), *second = obtain(&room, 20 * MIB), *third = obtain(&room, 30 * MIB);
  real_fill(third, 7);
  vl_heap_release(room.heap, &first);
  vl_heap_release(room.heap, &second);
  vl_heap_free_space(room.heap, &space);
  assert_int_equal(space.free_bytes, 70 * MIB);
  assert_int_equal(space.largest_free_bytes, 40 * MIB);
  assert_true(space.fragmentation > 0.42855 && space.fragmentation < 0.42858); /* 3/7 */
  Block *more = NULL;
  Status status = try_obtain(&room, 50 * MIB, 0, &more);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "fragmented"));
  HeapMoved moved = defragment(&room);
  assert_int_equal(moved.blocks, 1);
  assert_int_equal(moved.bytes, 30 * MIB);
  assert_int_equal(moved.released_bytes, 0);
  vl_heap_free_space(room.heap, &space);
  assert_int_equal(space.free_bytes, 70 * MIB);
  assert_int_equal(space.largest_free_bytes, 70 * MIB);
  assert_true(space.fragmentation == 0.0);
  assert_true(real_is_filled(third, 7));
  more = obtain(&room, 50 * MIB);
  real_fill(more, 8);
  assert_true(real_is_filled(third, 7));
  assert_int_equal(defragment(&room).blocks, 0); /* nothing is left to move */
  vl_heap_release(room.heap, &more);
  vl_heap_release(room.heap, &third);
  room_close(&room);
}

/* Five segments with a little in use each become one, and the others are given back. */
static void nearly_empty_segments_are_emptied(void **state) {
  (void)state;
  Room room;
  HeapOptions options = {.policy = "caching"};
  room_open(&room, &options);
  Block *large[5], *small[5];
  for (int i = 0; i < 5; i++) {
    large[i] = obtain(&room, 14 * MIB);
    vl_heap_release(room.heap, &large[i]);
    large[i] = obtain(&room, 12 * MIB);
    small[i] = obtain(&room, 2 * MIB);
    real_fill(small[i], (uint64_t)i);
  }
  assert_int_equal(reserved_bytes(&room), 5 * 14 * MIB);
  for (int i = 0; i < 5; i++)
    vl_heap_release(room.heap, &large[i]);
  HeapMoved moved = defragment(&room);
  assert_int_equal(reserved_bytes(&room), 14 * MIB);
  assert_int_equal(moved.released_bytes, 4 * 14 * MIB);
  for (int i = 0; i < 5; i++) {
    assert_true(real_is_filled(small[i], (uint64_t)i));
    vl_heap_release(room.heap, &small[i]);
  }
  room_close(&room);
}

static void planned_and_unmovable_memory_are_refused(void **state) {
  (void)state;
  Room room;
  HeapMoved moved;
  HeapOptions options = {.policy = "planned"};
  room_open(&room, &options);
  assert_int_equal(vl_heap_defragment(room.heap, &moved).code, VL_UNSUPPORTED);
  room_close(&room);
  Backing fixed = real_backing;
  fixed.move = NULL;
  options.policy = "caching";
  room.tracker = vl_tracker_create(false);
  assert_int_equal(vl_heap_create(&fixed, &options, room.tracker, &room.heap).code, VL_OK);
  assert_int_equal(vl_heap_defragment(room.heap, &moved).code, VL_UNSUPPORTED);
  room_close(&room);
}

/* ---- Traffic -------------------------------------------------------------------------------------------- */

enum { LIVE = 160, OPERATIONS = 1200 };

typedef struct Traffic {
  Room room;
  Block *live[LIVE];
  uint64_t owner[LIVE];
  uint64_t key, drawn;
  int count;
} Traffic;

static uint32_t draw(Traffic *traffic) { return vl_random_word(traffic->key, 0, traffic->drawn++); }

static void check_contents(const Traffic *traffic) {
  for (int i = 0; i < traffic->count; i++)
    if (!real_is_filled(traffic->live[i], traffic->owner[i])) fail_msg("a block of %d lost its bytes", i);
}

/* A block with a heap's size of contents, mostly small. */
static void obtain_one(Traffic *traffic) {
  static const int64_t most[] = {4 * KIB, 64 * KIB, 700 * KIB, 3 * MIB, 12 * MIB, 30 * MIB};
  int64_t bytes = 1 + (int64_t)draw(traffic) % most[draw(traffic) % 6];
  Block *block = NULL;
  Status status = try_obtain(&traffic->room, bytes, (int)(draw(traffic) % 2), &block);
  if (status.code == VL_OUT_OF_MEMORY) return;
  assert_int_equal(status.code, VL_OK);
  traffic->owner[traffic->count] = traffic->drawn;
  real_fill(block, traffic->drawn);
  traffic->live[traffic->count++] = block;
}

static void release_one(Traffic *traffic) {
  int at = (int)(draw(traffic) % (uint32_t)traffic->count);
  assert_true(real_is_filled(traffic->live[at], traffic->owner[at]));
  vl_heap_release(traffic->room.heap, &traffic->live[at]);
  traffic->count--;
  traffic->live[at] = traffic->live[traffic->count];
  traffic->owner[at] = traffic->owner[traffic->count];
}

static void run_traffic(const HeapOptions *options) {
  Traffic traffic = {.key = vl_random_key(11, 0, "defragment")};
  bool movable = strcmp(options->policy, "planned") != 0;
  room_open(&traffic.room, options);
  for (int i = 0; i < OPERATIONS; i++) {
    bool obtains = draw(&traffic) % 10 < (i / 300 % 2 == 0 ? 7U : 3U);
    if (traffic.count == 0 || (obtains && traffic.count < LIVE)) {
      obtain_one(&traffic);
    } else {
      release_one(&traffic);
    }
    if (i % 250 != 249) continue;
    if (movable) (void)defragment(&traffic.room);
    check_contents(&traffic);
    if (options->capacity_bytes > 0) assert_true(reserved_bytes(&traffic.room) <= options->capacity_bytes);
  }
  while (traffic.count > 0)
    release_one(&traffic);
  room_close(&traffic.room);
}

static void contents_survive_traffic_under_every_policy(void **state) {
  (void)state;
  const HeapOptions rows[] = {
      {.policy = "caching", .capacity_bytes = 300 * MIB},
      {.policy = "caching", .max_split_bytes = 20 * MIB, .capacity_bytes = 300 * MIB},
      {.policy = "caching",
       .max_split_bytes = 24 * MIB,
       .gc_threshold = 0.6,
       .round_divisions = 4,
       .capacity_bytes = 400 * MIB},
      {.policy = "expandable", .capacity_bytes = 300 * MIB},
      {.policy = "expandable", .round_divisions = 8, .capacity_bytes = 200 * MIB},
      {.policy = "expandable", .remap = true},
      {.policy = "expandable", .remap = true, .capacity_bytes = 200 * MIB},
      {.policy = "planned", .capacity_bytes = 300 * MIB},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    run_traffic(&rows[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_hole_after_defragmenting_g2),
      cmocka_unit_test(nearly_empty_segments_are_emptied),
      cmocka_unit_test(planned_and_unmovable_memory_are_refused),
      cmocka_unit_test(contents_survive_traffic_under_every_policy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
