/* Where offloading puts its copies: out behind the last use in forward, back ahead of the first in backward,
 * never more of them at once than the window, and nothing that would be back at once. That every launch finds
 * its values is test_schedule's. */
#include "optimizations/optimizations.h"
#include "tests/graph/networks.h"
#include "tests/graph/simulate.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int64_t mib_bytes = INT64_C(1) << 20;

/* 16 layers that save 8 tensors of 1 MiB each: a window holds 8 of them. */
enum { LAYERS = 16, SAVED = 8 * LAYERS, WINDOW = SAVED / 16 };

typedef struct Built {
  Program program;
  Schedule *schedule;
} Built;

static Status apply_recipe(const char *text, Program *program) {
  Recipe recipe;
  Target target = {.ranks = 1};
  VL_TRY(vl_recipe_parse(text, &recipe));
  return vl_recipe_apply(&recipe, program, &target);
}

static void build(const char *recipe, Built *built) {
  require_ok(apply_recipe(recipe, &built->program));
  require_ok(vl_schedule_build(&built->program, &built->schedule));
}

static void build_layers(const char *recipe, Built *built) {
  network_layers(LAYERS, mib_bytes / 4, &built->program);
  build(recipe, built);
}

static void clear(Built *built) {
  vl_schedule_destroy(&built->schedule);
  vl_program_destroy(&built->program);
}

static int64_t peak_bytes_of(const Built *built) {
  Simulation simulation;
  simulate_schedule(&built->program, built->schedule, &simulation);
  simulation_free(&simulation);
  return simulation.peak_bytes;
}

static const Buffer *source(const Schedule *schedule, const Instance *instance) {
  return &schedule->buffers[instance->inputs[0]];
}

static int64_t bytes_of(const Storage *storage) { return vl_dtype_bytes(storage->dtype, storage->elements); }

static bool uses(const Instance *instance, int32_t buffer) {
  if (instance->kind != INSTANCE_LAUNCH) return false;
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    if (instance->inputs[i] == buffer) return true;
  for (int32_t i = 0; i < VL_MAX_OUTPUTS; i++)
    if (instance->outputs[i] == buffer) return true;
  return false;
}

static int32_t count_kind(const Schedule *schedule, InstanceKind kind) {
  int32_t count = 0;
  for (int32_t i = 0; i < schedule->instance_count; i++)
    count += schedule->instances[i].kind == kind;
  return count;
}

/* ---- Activations -------------------------------------------------------------------------------------------- */

/* Between an evict and the last launch before it that uses its buffer there are copies and waits alone, and
 * no launch uses the buffer behind it. A fetch stands in backward, before the first that uses what it brings.
 */
static void copies_stand_beside_the_uses(void **state) {
  (void)state;
  Built built;
  build_layers("offload=activations", &built);
  const Schedule *schedule = built.schedule;
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *it = &schedule->instances[at];
    if (it->kind == INSTANCE_EVICT) {
      int32_t last = at;
      while (schedule->instances[last].kind != INSTANCE_LAUNCH)
        last--;
      assert_true(uses(&schedule->instances[last], it->inputs[0]));
      assert_int_equal(schedule->instances[last].node->segment, SEGMENT_FORWARD);
      for (int32_t i = at; i < schedule->instance_count; i++)
        assert_false(uses(&schedule->instances[i], it->inputs[0]));
    }
    if (it->kind == INSTANCE_FETCH) {
      assert_int_equal(it->node->segment, SEGMENT_BACKWARD);
      for (int32_t i = 0; i < at; i++)
        assert_false(uses(&schedule->instances[i], it->outputs[0]));
    }
  }
  assert_int_equal(count_kind(schedule, INSTANCE_EVICT), SAVED - WINDOW);
  assert_int_equal(count_kind(schedule, INSTANCE_FETCH), SAVED - WINDOW);
  assert_int_equal(schedule->transfers, 2 * (SAVED - WINDOW));
  clear(&built);
}

/* The input of the first layer is saved for nobody's sake but its GELU's; the last layer's tensors are read
 * as soon as backward begins. */
static void what_is_read_soon_stays(void **state) {
  (void)state;
  Built built;
  build_layers("offload=activations", &built);
  for (int32_t at = 0; at < built.schedule->instance_count; at++) {
    const Instance *it = &built.schedule->instances[at];
    if (it->kind != INSTANCE_EVICT) continue;
    const Buffer *buffer = source(built.schedule, it);
    assert_int_equal(buffer->storage->role, ROLE_ACTIVATION);
    assert_true(buffer->storage->root->producer->block < LAYERS);
  }
  clear(&built);
}

/* Evicts not waited for, and fetches not used: at most the window of each. Before backward begins everything
 * that leaves has left. */
static void the_window_bounds_what_copies_hold(void **state) {
  (void)state;
  Built built;
  build_layers("offload=activations", &built);
  int32_t leaving = 0, ahead = 0, most_leaving = 0, most_ahead = 0;
  for (int32_t at = 0; at < built.schedule->instance_count; at++) {
    const Instance *it = &built.schedule->instances[at];
    bool launch = it->kind == INSTANCE_LAUNCH;
    if (it->kind == INSTANCE_EVICT) leaving++;
    if (it->kind == INSTANCE_FETCH) ahead++;
    if (it->kind == INSTANCE_WAIT) {
      bool evict = built.schedule->instances[it->transfer].kind == INSTANCE_EVICT;
      *(evict ? &leaving : &ahead) -= 1;
    }
    if (launch && it->node->segment == SEGMENT_BACKWARD) assert_int_equal(leaving, 0);
    if (launch && it->node->segment == SEGMENT_FORWARD) assert_int_equal(ahead, 0);
    most_leaving = leaving > most_leaving ? leaving : most_leaving;
    most_ahead = ahead > most_ahead ? ahead : most_ahead;
  }
  assert_int_equal(most_leaving, WINDOW);
  assert_int_equal(most_ahead, WINDOW);
  /* On the device: the window, what stays, and what a launch reads and writes. */
  assert_in_range(peak_bytes_of(&built), WINDOW * mib_bytes, (2 * WINDOW + 4) * mib_bytes);
  clear(&built);
}

static void blocks_say_how_much(void **state) {
  (void)state;
  Built half, all, without;
  build_layers("offload=activations:8", &half);
  build_layers("offload=activations:16", &all);
  build_layers("baseline", &without);
  for (int32_t at = 0; at < half.schedule->instance_count; at++) {
    const Instance *it = &half.schedule->instances[at];
    if (it->kind == INSTANCE_EVICT)
      assert_true(source(half.schedule, it)->storage->root->producer->block <= 8);
  }
  assert_in_range(peak_bytes_of(&half), peak_bytes_of(&without) / 2, peak_bytes_of(&without) * 5 / 8);
  assert_true(peak_bytes_of(&all) < peak_bytes_of(&half) / 2);
  assert_int_equal(without.schedule->transfers, 0);
  clear(&half);
  clear(&all);
  clear(&without);
}

/* With checkpointing what is kept is the boundaries, and they are what leaves. */
static void boundaries_leave_with_checkpointing(void **state) {
  (void)state;
  Built built;
  build_layers("checkpoint=1 offload=activations", &built);
  int32_t evicts = count_kind(built.schedule, INSTANCE_EVICT);
  assert_in_range(evicts, LAYERS - 4, LAYERS + 8); /* 15 boundaries and the last layer's 8, less what stays */
  int64_t with = peak_bytes_of(&built);
  Built only;
  build_layers("checkpoint=1", &only);
  assert_true(with < peak_bytes_of(&only) - 8 * mib_bytes);
  clear(&only);
  clear(&built);
}

/* Each micro-batch moves what one alone would. */
static void micro_batches_move_the_same(void **state) {
  (void)state;
  Built one, three;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &one.program);
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &three.program);
  build("offload=activations", &one);
  build("accumulate=3 offload=activations", &three);
  assert_true(one.schedule->transfers > 0);
  assert_int_equal(three.schedule->transfers, 3 * one.schedule->transfers);
  clear(&one);
  clear(&three);
}

static void evaluation_moves_nothing(void **state) {
  (void)state;
  Built built;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16, .evaluation = true}, &built.program);
  build("offload=activations+optimizer", &built);
  assert_int_equal(built.schedule->transfers, 0);
  clear(&built);
}

/* ---- Optimizer state ------------------------------------------------------------------------------------------ */

/* Each update finds its own state on the device, alone with what the window holds; state of less than 1 KiB
 * stays. */
static void state_is_there_for_its_update(void **state) {
  (void)state;
  static const char *const recipes[] = {"offload=optimizer", "offload=optimizer update=in-backward"};
  for (size_t r = 0; r < 2; r++) {
    Built built;
    network_bottlenecks(&(NetOptions){.batch = 2, .size = 16, .adamw = true}, &built.program);
    build(recipes[r], &built);
    const Graph *graph = built.program.graph;
    int32_t moved = 0;
    int64_t total_bytes = 0, held_bytes = 0, most_bytes = 0, largest_bytes = 0;
    for (int32_t i = 0; i < graph->storage_count; i++) {
      const Storage *storage = graph->storages[i];
      if (storage->role != ROLE_OPTIMIZER) continue;
      assert_int_equal(storage->tier, bytes_of(storage) < 1024 ? TIER_DEVICE : TIER_OFFLOAD);
      if (storage->tier == TIER_DEVICE) continue;
      moved++;
      total_bytes += bytes_of(storage);
      if (bytes_of(storage) > largest_bytes) largest_bytes = bytes_of(storage);
    }
    assert_true(moved > 4);
    assert_int_equal(built.schedule->transfers, 2 * moved);
    for (int32_t at = 0; at < built.schedule->instance_count; at++) {
      const Instance *it = &built.schedule->instances[at];
      for (int32_t i = 0; i < it->obtain_count; i++) {
        const Buffer *buffer = &built.schedule->buffers[it->obtain[i]];
        assert_int_equal(buffer->tier, TIER_DEVICE);
        if (buffer->storage->role == ROLE_OPTIMIZER) held_bytes += bytes_of(buffer->storage);
      }
      if (held_bytes > most_bytes) most_bytes = held_bytes;
      for (int32_t i = 0; i < it->release_count; i++) {
        const Buffer *buffer = &built.schedule->buffers[it->release[i]];
        if (buffer->storage->role == ROLE_OPTIMIZER) held_bytes -= bytes_of(buffer->storage);
      }
    }
    assert_int_equal(held_bytes, 0);
    /* Two of a parameter in use, and a window, or the two of one parameter where those are more, each way. */
    int64_t window_bytes = total_bytes / 16 > 2 * largest_bytes ? total_bytes / 16 : 2 * largest_bytes;
    assert_in_range(most_bytes, 1, 2 * largest_bytes + 2 * window_bytes);
    clear(&built);
  }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void assert_refused(const char *value, const char *place) {
  char recipe[96];
  Program program;
  snprintf(recipe, sizeof recipe, "offload=%s", value);
  network_layers(2, 64, &program);
  Status status = apply_recipe(recipe, &program);
  assert_int_equal(status.code, VL_INVALID);
  if (!strstr(status.message, place)) fail_msg("%s: %s", recipe, status.message);
  vl_program_destroy(&program);
}

static void refusals_name_what_is_accepted(void **state) {
  (void)state;
  assert_refused("everything", "accepted values are activations, activations:k");
  assert_refused("activation", "accepted values are");
  assert_refused("activations:", "activations");
  assert_refused("activations:0", "accepted values are");
  assert_refused("activations:01", "accepted values are");
  assert_refused("activations:3", "only 2 blocks");
  assert_refused("activations:2x", "2x");
  assert_refused("activations+", "accepted values are");
  assert_refused("optimizer+activations", "accepted values are");
  assert_refused("activations+optimizer+", "accepted values are");
  Program program;
  network_tied(&program);
  program.graph->block_count = 0;
  assert_int_equal(apply_recipe("offload=activations:1", &program).code, VL_UNSUPPORTED);
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies_stand_beside_the_uses),
      cmocka_unit_test(what_is_read_soon_stays),
      cmocka_unit_test(the_window_bounds_what_copies_hold),
      cmocka_unit_test(blocks_say_how_much),
      cmocka_unit_test(boundaries_leave_with_checkpointing),
      cmocka_unit_test(micro_batches_move_the_same),
      cmocka_unit_test(evaluation_moves_nothing),
      cmocka_unit_test(state_is_there_for_its_update),
      cmocka_unit_test(refusals_name_what_is_accepted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
