/* Schedules: every launch finds the values its graph says in memory that is held, no longer and no shorter
 * than needed; recomputation repeats what backward reads and nothing else; checkpointing saves what it
 * promises. */
#include "cases/cases.h"
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

static void apply_recipe(const char *text, Program *program) {
  Recipe recipe;
  Target target = {.ranks = 1};
  require_ok(vl_recipe_parse(text, &recipe));
  require_ok(vl_recipe_apply(&recipe, program, &target));
}

static const char *const recipes[] = {
    "baseline",
    "amp=bf16",
    "inplace=all",
    "checkpoint=1",
    "checkpoint=2",
    "checkpoint=segments:2",
    "checkpoint=ops:4",
    "checkpoint=model",
    "checkpoint=runs:1,2-3",
    "recompute=norm",
    "recompute=inner-norm",
    "recompute=gelu",
    "update=in-backward",
    "checkpoint=2 recompute=norm",
    "inplace=all checkpoint=1 recompute=norm update=in-backward",
    "amp=bf16 weights=on-use checkpoint=1",
    "stack=vramlab",
    "stack=vramlab recompute=norm",
    "stack=vramlab checkpoint=ops:7 recompute=norm",
    "checkpoint=model recompute=norm",
    "stack=vramlab amp=bf16 recompute=inner-norm",
    "stack=vramlab amp=bf16 fuse=norm+bias-gelu+residual-norm checkpoint=2",
    "accumulate=2",
    "accumulate=3 inplace=all checkpoint=1 recompute=norm",
    "stack=vramlab amp=bf16 accumulate=2 checkpoint=2 recompute=norm",
    "stack=vramlab amp=bf16 checkpoint=2 recompute=norm update=in-backward",
    "offload=activations",
    "offload=activations:2",
    "offload=activations+optimizer",
    "offload=optimizer update=in-backward",
    "accumulate=3 offload=activations+optimizer",
    "stack=vramlab offload=activations+optimizer",
    "stack=vramlab amp=bf16 checkpoint=2 recompute=norm update=in-backward offload=activations+optimizer",
    "inplace=all checkpoint=1 accumulate=2 offload=activations",
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

static void check_schedule(Program *program, const char *recipe) {
  apply_recipe(recipe, program);
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(program, &schedule));
  Simulation simulation;
  simulate_schedule(program, schedule, &simulation);
  simulation_free(&simulation);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(program);
}

static void every_recipe_is_sound_on_bottlenecks(void **state) {
  (void)state;
  for (int32_t i = 0; i < RECIPES; i++) {
    for (int32_t dropout = 0; dropout < 2; dropout++) {
      NetOptions options = {.batch = 2, .size = 16, .dropout = dropout ? 0.25 : 0.0};
      Program program;
      network_bottlenecks(&options, &program);
      check_schedule(&program, recipes[i]);
    }
  }
}

static void every_recipe_is_sound_on_every_case(void **state) {
  (void)state;
  int32_t count;
  const Case *const *cases = vl_case_all(&count);
  for (int32_t c = 0; c < count; c++) {
    int64_t values[VL_MAX_CASE_ARGUMENTS];
    require_ok(vl_case_arguments(cases[c], 2, NULL, 0, values));
    for (int32_t i = 0; i < RECIPES; i++) {
      Program program;
      require_ok(cases[c]->build(values, true, &program));
      check_schedule(&program, recipes[i]);
    }
  }
}

/* An evaluation program keeps nothing for a backward that does not come, and its logits to the end. */
static void evaluation_holds_the_logits_only(void **state) {
  (void)state;
  for (int32_t i = 0; i < RECIPES; i++) {
    NetOptions options = {.batch = 2, .size = 16, .evaluation = true};
    Program program;
    network_bottlenecks(&options, &program);
    apply_recipe(recipes[i], &program);
    Schedule *schedule = NULL;
    require_ok(vl_schedule_build(&program, &schedule));
    assert_int_equal(schedule->recompute_instances, 0);
    bool found = false;
    for (int32_t b = 0; b < schedule->buffer_count; b++) {
      const Buffer *buffer = &schedule->buffers[b];
      if (buffer->storage != program.logits->storage) continue;
      found = true;
      assert_int_equal(buffer->last, schedule->instance_count - 1);
    }
    assert_true(found);
    Simulation simulation;
    simulate_schedule(&program, schedule, &simulation);
    simulation_free(&simulation);
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

/* ---- Accumulation --------------------------------------------------------------------------------------------- */

static int32_t launches_of_segment(const Schedule *schedule, Segment segment) {
  int32_t launches = 0;
  for (int32_t i = 0; i < schedule->instance_count; i++)
    launches += schedule->instances[i].node->segment == segment;
  return launches;
}

/* Each micro-batch runs what a step without accumulation does, all but the first add their gradients and the
 * loss to the sums, and the update comes once, at the end. */
static void accumulation_repeats_all_but_the_update(void **state) {
  (void)state;
  enum { MICRO_BATCHES = 4 };
  Program plain, program;
  Schedule *once = NULL, *schedule = NULL;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &plain);
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  apply_recipe("baseline", &plain);
  apply_recipe("accumulate=4", &program);
  require_ok(vl_schedule_build(&plain, &once));
  require_ok(vl_schedule_build(&program, &schedule));
  int32_t updates = launches_of_segment(once, SEGMENT_UPDATE);
  assert_int_equal(updates, plain.gradient_count);
  assert_int_equal(schedule->instance_count, MICRO_BATCHES * (once->instance_count - updates) +
                                                 (MICRO_BATCHES - 1) * (program.gradient_count + 1) +
                                                 updates);
  for (int32_t i = 0; i < updates; i++) {
    const Instance *instance = &schedule->instances[schedule->instance_count - 1 - i];
    assert_int_equal(instance->node->segment, SEGMENT_UPDATE);
  }
  Simulation one, four;
  simulate_schedule(&plain, once, &one);
  simulate_schedule(&program, schedule, &four);
  assert_int_equal(one.peak_bytes, four.peak_bytes); /* activations of one micro-batch at a time */
  simulation_free(&one);
  simulation_free(&four);
  vl_schedule_destroy(&once);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&plain);
  vl_program_destroy(&program);
}

/* One set of gradients lives through the step; of a later micro-batch there is one gradient at a time. */
static void gradients_add_up_in_place(void **state) {
  (void)state;
  Program program;
  Schedule *schedule = NULL;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  apply_recipe("accumulate=3", &program);
  require_ok(vl_schedule_build(&program, &schedule));
  int32_t held_later = 0;
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    for (int32_t i = 0; i < instance->obtain_count; i++) {
      const Buffer *buffer = &schedule->buffers[instance->obtain[i]];
      held_later += buffer->storage->role == ROLE_GRADIENT && buffer->micro_batch > 0;
    }
    assert_true(held_later <= 2); /* batch norm makes those of weight and bias at once */
    for (int32_t i = 0; i < instance->release_count; i++) {
      const Buffer *buffer = &schedule->buffers[instance->release[i]];
      held_later -= buffer->storage->role == ROLE_GRADIENT && buffer->micro_batch > 0;
    }
  }
  assert_int_equal(held_later, 0);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
}

/* ---- Fault case D4 ------------------------------------------------------------------------------------------- */

enum { LAYERS = 16 };

static void build_layers(const char *recipe, Program *program, Schedule **schedule) {
  network_layers(LAYERS, mib_bytes / 4, program);
  apply_recipe(recipe, program);
  require_ok(vl_schedule_build(program, schedule));
}

static void checkpointing_frees_each_layer_d4(void **state) {
  (void)state;
  Program program, checkpointed;
  Schedule *schedule = NULL, *repeated = NULL;
  Simulation without, with;
  build_layers("baseline", &program, &schedule);
  build_layers("checkpoint=1", &checkpointed, &repeated);
  assert_int_equal(vl_program_saved_bytes(&program), 128 * mib_bytes);
  simulate_schedule(&program, schedule, &without);
  simulate_schedule(&checkpointed, repeated, &with);
  /* Beyond what is saved: the gradients a GELU's backward reads and makes, and the loss with its own. */
  assert_in_range(without.peak_bytes, 128 * mib_bytes, 130 * mib_bytes + 8);
  assert_in_range(with.peak_bytes, 23 * mib_bytes, 32 * mib_bytes);
  assert_true(2 * with.peak_bytes <= without.peak_bytes);
  simulation_free(&without);
  simulation_free(&with);
  vl_schedule_destroy(&schedule);
  vl_schedule_destroy(&repeated);
  vl_program_destroy(&program);
  vl_program_destroy(&checkpointed);
}

/* 15 of the 16 layers run again, once each: the last one's backward follows its forward. Of a layer's 8
 * launches the last makes the next boundary, which is kept. */
static void fifteen_layers_run_again_d4(void **state) {
  (void)state;
  Program program;
  Schedule *schedule = NULL;
  build_layers("checkpoint=1", &program, &schedule);
  int32_t layers_again = 0;
  for (int32_t layer = 1; layer <= LAYERS; layer++) {
    int32_t again = 0;
    for (int32_t i = 0; i < program.graph->node_count; i++) {
      const Node *node = program.graph->nodes[i];
      if (node->segment == SEGMENT_FORWARD && node->block == layer) again += launches_of(schedule, node) - 1;
    }
    assert_int_equal(again, layer < LAYERS ? 7 : 0);
    layers_again += again > 0;
  }
  assert_int_equal(layers_again, 15);
  assert_int_equal(schedule->recompute_instances, 15 * 7);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
}

static void live_bytes_fall_through_backward_d4(void **state) {
  (void)state;
  Program program;
  Schedule *schedule = NULL;
  Simulation simulation;
  build_layers("checkpoint=1", &program, &schedule);
  simulate_schedule(&program, schedule, &simulation);
  int64_t before_bytes = INT64_MAX;
  for (int32_t layer = LAYERS; layer >= 1; layer--) {
    char scope[16];
    snprintf(scope, sizeof scope, "layer%d", layer);
    int64_t after_bytes = -1;
    for (int32_t i = 0; i < schedule->instance_count; i++) {
      const Node *node = schedule->instances[i].node;
      if (node->segment == SEGMENT_BACKWARD && strcmp(node->scope, scope) == 0)
        after_bytes = simulation.held_bytes[i];
    }
    assert_true(after_bytes >= 0 && after_bytes < before_bytes);
    before_bytes = after_bytes;
  }
  simulation_free(&simulation);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
}

/* A boundary has one buffer, alive from forward to its own segment's backward; what lies inside has two. */
static void boundaries_are_kept(void **state) {
  (void)state;
  Program program;
  Schedule *schedule = NULL;
  network_layers(6, 16, &program);
  apply_recipe("checkpoint=2", &program);
  require_ok(vl_schedule_build(&program, &schedule));
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    const Node *node = program.graph->nodes[i];
    if (node->segment != SEGMENT_FORWARD || node->block == 0) continue;
    bool ends_layer = program.graph->nodes[i + 1]->block != node->block;
    bool boundary = ends_layer && node->block % 2 == 0;
    bool last_segment = node->block > 4;
    assert_int_equal(launches_of(schedule, node), boundary || last_segment ? 1 : 2);
  }
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
}

/* ---- Overwritten values ---------------------------------------------------------------------------------------- */

/* relu over its input, which `add` still reads: refused, with the reader and the value named. */
static void reading_an_overwritten_value_is_refused(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("overwritten");
  Program program;
  vl_program_init(&program, graph);
  int64_t size = 8;
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, &size), *a, *b, *c;
  OpParams two = {.alpha = 2.0};
  vl_graph_set_scope(graph, "first");
  require_ok(vl_apply(graph, "scale", &two, &x, 1, &a));
  require_ok(vl_apply(graph, "relu", NULL, &a, 1, &b));
  vl_graph_set_scope(graph, "second");
  require_ok(vl_apply(graph, "add", NULL, (Tensor *[]){a, b}, 2, &c));
  program.logits = c;
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(&program, &schedule));
  vl_schedule_destroy(&schedule);
  b->storage = a->storage;
  Status status = vl_schedule_build(&program, &schedule);
  assert_int_equal(status.code, VL_INTERNAL);
  assert_non_null(
      strstr(status.message, "add in second reads first.scale after it was overwritten by first.relu"));
  assert_null(schedule);
  vl_program_destroy(&program);
}

/* b is written over a, both are dropped, and backward reads b and then a: a is made once more, not taken for
 * b. */
static void a_repeated_value_that_was_overwritten_is_made_again(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("again");
  Program program;
  vl_program_init(&program, graph);
  int64_t size = 8;
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, &size);
  Node *scale = NULL, *relu = NULL, *of_b = NULL, *of_a = NULL;
  OpParams two = {.alpha = 2.0};
  require_ok(vl_graph_add(graph, "scale", &two, &x, 1, &scale));
  require_ok(vl_graph_add(graph, "relu", NULL, &scale->outputs[0], 1, &relu));
  relu->outputs[0]->storage = scale->outputs[0]->storage;
  scale->recompute_on_use = relu->recompute_on_use = true;
  graph->segment = SEGMENT_BACKWARD;
  require_ok(vl_graph_add(graph, "gelu", NULL, &relu->outputs[0], 1, &of_b));
  require_ok(vl_graph_add(graph, "gelu", NULL, &scale->outputs[0], 1, &of_a));
  Schedule *schedule = NULL;
  Simulation simulation;
  require_ok(vl_schedule_build(&program, &schedule));
  simulate_schedule(&program, schedule, &simulation);
  assert_int_equal(launches_of(schedule, scale), 3);
  assert_int_equal(launches_of(schedule, relu), 2);
  simulation_free(&simulation);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_recipe_is_sound_on_bottlenecks),
      cmocka_unit_test(every_recipe_is_sound_on_every_case),
      cmocka_unit_test(accumulation_repeats_all_but_the_update),
      cmocka_unit_test(gradients_add_up_in_place),
      cmocka_unit_test(evaluation_holds_the_logits_only),
      cmocka_unit_test(checkpointing_frees_each_layer_d4),
      cmocka_unit_test(fifteen_layers_run_again_d4),
      cmocka_unit_test(live_bytes_fall_through_backward_d4),
      cmocka_unit_test(boundaries_are_kept),
      cmocka_unit_test(reading_an_overwritten_value_is_refused),
      cmocka_unit_test(a_repeated_value_that_was_overwritten_is_made_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
