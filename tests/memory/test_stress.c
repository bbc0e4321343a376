/* Random traffic with a fixed seed against an independent model: arrays and linear scans in place of the
 * tree and the lists, written from the rules in memory.h. Placement, refusals, counters and splits must
 * agree after every operation, blocks must never overlap, and where the machine puts segments must not
 * matter. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPERATIONS = 20000, LIVE_LIMIT = 300, PIECE_LIMIT = 4096, SCOPES = 12, STREAMS = 3 };
static const int64_t capacity_bytes = 700 * MIB;
static const uint64_t seed = 20260101;

/* ---- The model ---------------------------------------------------------------------------------------- */

typedef struct ModelPiece {
  int64_t segment, offset, bytes, segment_bytes;
  int stream;
  bool small, used;
} ModelPiece;

typedef struct Model {
  ModelPiece pieces[PIECE_LIMIT]; /* sorted by (segment, offset) */
  int count;
  int64_t segments, reserved_bytes;
  int64_t scope_live[SCOPES][MEMORY_CATEGORY_COUNT], scope_at_peak[SCOPES][MEMORY_CATEGORY_COUNT];
  int64_t allocated_bytes, peak_bytes;
} Model;

static void model_insert(Model *model, int at, ModelPiece piece) {
  assert_true(model->count < PIECE_LIMIT);
  memmove(&model->pieces[at + 1], &model->pieces[at], (size_t)(model->count - at) * sizeof(ModelPiece));
  model->pieces[at] = piece;
  model->count++;
}

static void model_erase(Model *model, int at) {
  model->count--;
  memmove(&model->pieces[at], &model->pieces[at + 1], (size_t)(model->count - at) * sizeof(ModelPiece));
}

static bool model_reserve(Model *model, int64_t bytes, int stream, bool small) {
  int64_t segment_bytes = small              ? 2 * MIB
                          : bytes < 10 * MIB ? 20 * MIB
                                             : (bytes + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
  if (model->reserved_bytes + segment_bytes > capacity_bytes) return false;
  model->reserved_bytes += segment_bytes;
  model_insert(model, model->count,
               (ModelPiece){.segment = model->segments++,
                            .bytes = segment_bytes,
                            .segment_bytes = segment_bytes,
                            .stream = stream,
                            .small = small});
  return true;
}

static void model_trim(Model *model) {
  for (int i = model->count - 1; i >= 0; i--) {
    const ModelPiece *piece = &model->pieces[i];
    if (piece->used || piece->bytes != piece->segment_bytes) continue;
    model->reserved_bytes -= piece->bytes;
    model_erase(model, i);
  }
}

static int model_best(const Model *model, int64_t bytes, int stream, bool small) {
  int best = -1;
  for (int i = 0; i < model->count; i++) {
    const ModelPiece *piece = &model->pieces[i];
    if (piece->used || piece->small != small || piece->stream != stream || piece->bytes < bytes) continue;
    if (best < 0 || piece->bytes < model->pieces[best].bytes) best = i;
  }
  return best;
}

/* The index of the piece handed out, -1 when there is no room. */
static int model_obtain(Model *model, int64_t request, int stream) {
  int64_t bytes = (request + 511) / 512 * 512;
  bool small = bytes <= MIB;
  int at = model_best(model, bytes, stream, small);
  if (at < 0) {
    if (!model_reserve(model, bytes, stream, small)) {
      model_trim(model);
      if (!model_reserve(model, bytes, stream, small)) return -1;
    }
    at = model->count - 1;
  }
  int64_t rest = model->pieces[at].bytes - bytes;
  if (small ? rest >= 512 : rest > MIB) {
    ModelPiece tail = model->pieces[at];
    tail.offset += bytes;
    tail.bytes = rest;
    model->pieces[at].bytes = bytes;
    model_insert(model, at + 1, tail);
  }
  model->pieces[at].used = true;
  return at;
}

static bool model_joins(const Model *model, int left) {
  const ModelPiece *a = &model->pieces[left], *b = a + 1;
  return !a->used && !b->used && a->segment == b->segment;
}

static void model_release(Model *model, int64_t segment, int64_t offset) {
  int at = 0;
  while (model->pieces[at].segment != segment || model->pieces[at].offset != offset)
    at++;
  assert_true(model->pieces[at].used);
  model->pieces[at].used = false;
  for (int left = at; left >= at - 1 && left >= 0; left--) {
    if (left + 1 < model->count && model_joins(model, left)) {
      model->pieces[left].bytes += model->pieces[left + 1].bytes;
      model_erase(model, left + 1);
    }
  }
}

static void model_count(Model *model, int scope, MemoryCategory category, int64_t bytes) {
  model->allocated_bytes += bytes;
  model->scope_live[scope][category] += bytes;
  if (model->allocated_bytes > model->peak_bytes) {
    model->peak_bytes = model->allocated_bytes;
    memcpy(model->scope_at_peak, model->scope_live, sizeof model->scope_live);
  }
}

/* ---- The traffic ---------------------------------------------------------------------------------------- */

typedef struct Live {
  Block *block;
  int64_t segment, offset;
  int scope;
} Live;

typedef struct Traffic {
  Fixture fixture;
  Model *model;
  Live live[LIVE_LIMIT];
  int live_count;
  uint64_t key, drawn;
  uint64_t placements; /* hash of every placement and refusal so far */
} Traffic;

static uint32_t draw(Traffic *traffic) { return vl_random_word(traffic->key, 0, traffic->drawn++); }

/* Small, medium and large requests, around the bounds as well as anywhere between. */
static int64_t draw_bytes(Traffic *traffic) {
  uint32_t kind = draw(traffic) % 8;
  int64_t value = (int64_t)draw(traffic);
  if (kind < 3) return 1 + value % (64 * KIB);
  if (kind == 3) return 1 + value % MIB;
  if (kind == 4) return MIB - 2 + value % 4;
  if (kind < 7) return 1 + value % (10 * MIB);
  return 1 + value % (48 * MIB);
}

static const char *scope_name(int scope) {
  static const char *const names[SCOPES] = {"s0", "s1", "s2", "s3", "s4",  "s5",
                                            "s6", "s7", "s8", "s9", "s10", "s11"};
  return names[scope];
}

static void check_no_overlap(const Traffic *traffic, const Block *block) {
  for (int i = 0; i < traffic->live_count; i++) {
    const Block *other = traffic->live[i].block;
    assert_true(block->address + (uintptr_t)block->bytes <= other->address ||
                other->address + (uintptr_t)other->bytes <= block->address);
  }
}

static void obtain_one(Traffic *traffic) {
  int scope = (int)(draw(traffic) % SCOPES);
  AllocationRequest request = {.bytes = draw_bytes(traffic),
                               .category = (MemoryCategory)(draw(traffic) % MEMORY_CATEGORY_COUNT),
                               .name = "t",
                               .scope = scope_name(scope),
                               .stream = (int)(draw(traffic) % STREAMS)};
  Block *block = NULL;
  Status status = vl_heap_obtain(traffic->fixture.heap, &request, &block);
  int at = model_obtain(traffic->model, request.bytes, request.stream);
  if (at < 0) {
    assert_int_equal(status.code, VL_OUT_OF_MEMORY);
    traffic->placements = vl_hash_text(traffic->placements, "oom");
    return;
  }
  if (status.code != VL_OK) fail_msg("%s", status.message);
  const ModelPiece *expected = &traffic->model->pieces[at];
  int64_t segment = fake_segment_of(&traffic->fixture.fake, block->address, block->bytes);
  int64_t offset = (int64_t)(block->address - traffic->fixture.fake.segments[segment].address);
  assert_int_equal(segment, expected->segment);
  assert_int_equal(offset, expected->offset);
  assert_int_equal(block->bytes, expected->bytes);
  check_no_overlap(traffic, block);
  const int64_t place[3] = {segment, offset, block->bytes};
  traffic->placements = vl_hash_bytes(traffic->placements, place, sizeof place);
  traffic->live[traffic->live_count++] =
      (Live){.block = block, .segment = segment, .offset = offset, .scope = scope};
  model_count(traffic->model, scope, request.category, block->bytes);
}

static void release_one(Traffic *traffic, int at) {
  Live *live = &traffic->live[at];
  model_count(traffic->model, live->scope, live->block->category, -live->block->bytes);
  model_release(traffic->model, live->segment, live->offset);
  vl_heap_release(traffic->fixture.heap, &live->block);
  *live = traffic->live[--traffic->live_count];
}

static void check_counters(const Traffic *traffic) {
  MemoryStatistics statistics = fixture_statistics(&traffic->fixture);
  assert_int_equal(statistics.allocated.current_bytes, traffic->model->allocated_bytes);
  assert_int_equal(statistics.allocated.peak_bytes, traffic->model->peak_bytes);
  assert_int_equal(statistics.reserved.current_bytes, traffic->model->reserved_bytes);
  assert_int_equal(traffic->fixture.fake.reserved_bytes, traffic->model->reserved_bytes);
  assert_true(statistics.reserved.peak_bytes <= capacity_bytes);
}

static void check_scopes(const Traffic *traffic) {
  ScopeBytes scopes[SCOPES];
  int64_t count = vl_tracker_scopes_at_peak(traffic->fixture.tracker, scopes, SCOPES);
  assert_true(count <= SCOPES);
  int64_t sum_bytes = 0;
  for (int64_t i = 0; i < count; i++) {
    int scope = atoi(scopes[i].scope + 1);
    assert_memory_equal(scopes[i].bytes_by_category, traffic->model->scope_at_peak[scope],
                        sizeof scopes[i].bytes_by_category);
    assert_true(i == 0 || scopes[i].bytes <= scopes[i - 1].bytes);
    sum_bytes += scopes[i].bytes;
  }
  assert_int_equal(sum_bytes, traffic->model->peak_bytes);
}

/* Runs the traffic; returns the hash of all placements. */
static uint64_t run_traffic(FakePlacement placement, int64_t *ooms) {
  Traffic *traffic = vl_allocate(sizeof *traffic);
  traffic->model = vl_allocate(sizeof *traffic->model);
  traffic->key = vl_random_key(seed, 0, "stress");
  traffic->placements = vl_hash_start;
  fixture_open(&traffic->fixture, capacity_bytes, placement);
  for (int i = 0; i < OPERATIONS; i++) {
    /* Waves: mostly growing, then mostly shrinking. */
    bool growing = i / 500 % 2 == 0;
    bool obtains = draw(traffic) % 10 < (growing ? 7U : 3U);
    if (traffic->live_count == 0 || (obtains && traffic->live_count < LIVE_LIMIT)) {
      obtain_one(traffic);
    } else {
      release_one(traffic, (int)(draw(traffic) % (uint32_t)traffic->live_count));
    }
    if (i % 1777 == 0) {
      vl_heap_trim(traffic->fixture.heap);
      model_trim(traffic->model);
    }
    check_counters(traffic);
    if (i % 100 == 0) check_scopes(traffic);
  }
  while (traffic->live_count > 0)
    release_one(traffic, traffic->live_count - 1);
  check_counters(traffic);
  check_scopes(traffic);
  *ooms = fixture_statistics(&traffic->fixture).ooms;
  fixture_close(&traffic->fixture);
  uint64_t placements = traffic->placements;
  free(traffic->model);
  free(traffic);
  return placements;
}

static void random_traffic_agrees_with_the_model(void **state) {
  (void)state;
  print_message("seed %llu\n", (unsigned long long)seed);
  int64_t ooms = 0;
  run_traffic(FAKE_ASCENDING, &ooms);
  assert_true(ooms > 100); /* else the traffic hardly exercises refusals */
}

/* What a plan device with made-up addresses needs: the same places as on the real machine. */
static void placement_does_not_depend_on_addresses(void **state) {
  (void)state;
  int64_t ooms[FAKE_PLACEMENT_COUNT];
  uint64_t ascending = run_traffic(FAKE_ASCENDING, &ooms[FAKE_ASCENDING]);
  for (int placement = FAKE_DESCENDING; placement < FAKE_PLACEMENT_COUNT; placement++) {
    assert_true(run_traffic((FakePlacement)placement, &ooms[placement]) == ascending);
    assert_int_equal(ooms[placement], ooms[FAKE_ASCENDING]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_traffic_agrees_with_the_model),
      cmocka_unit_test(placement_does_not_depend_on_addresses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
