/* checkpoint=auto finds the cheapest runs there are: against every choice, on random chains, and by the peaks
 * of real schedules on the cases. */
#include "optimizations/internal.h"
#include "tests/graph/networks.h"
#include "tests/optimizations/programs.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t draw(uint64_t *stream, uint32_t below) { return vl_random_word(7, 0, ++*stream) % below; }

/* Blocks of one to three operators of random widths, some with an addition around them. */
static void build_chain(uint64_t seed, int32_t blocks, Program *program) {
  uint64_t stream = seed << 20;
  Graph *graph = vl_graph_create("chain");
  vl_program_init(program, graph);
  program->training = true;
  int64_t width = 4 + draw(&stream, 60);
  Init init = {INIT_UNIFORM, 0.5};
  vl_graph_set_scope(graph, "stem");
  Tensor *x = vl_graph_parameter(graph, "x", ROLE_PARAMETER, DTYPE_F32, 2, (int64_t[]){32, width}, init);
  require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
  for (int32_t block = 0; block < blocks; block++) {
    graph->block = ++graph->block_count;
    vl_graph_set_scope(graph, "block%d", block + 1);
    Tensor *entry = x;
    for (uint32_t i = 0, count = 1 + draw(&stream, 3); i < count; i++) {
      uint32_t op = draw(&stream, 3);
      if (op < 2) {
        require_ok(vl_apply(graph, op == 0 ? "gelu" : "relu", NULL, &x, 1, &x));
        continue;
      }
      int64_t outputs = 4 + draw(&stream, 60);
      const char *name = vl_arena_format(graph->arena, "w%d.%u", block, i);
      Tensor *w =
          vl_graph_parameter(graph, name, ROLE_PARAMETER, DTYPE_F32, 2, (int64_t[]){outputs, width}, init);
      require_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, w}, 2, &x));
      width = outputs;
    }
    if (vl_tensor_same_shape(x, entry) && draw(&stream, 2))
      require_ok(vl_apply(graph, "add", NULL, (Tensor *[]){x, entry}, 2, &x));
  }
  graph->block = 0;
  vl_graph_set_scope(graph, "loss");
  OpParams all = {.axes = {0, 1}, .axis_count = 2, .dtype = DTYPE_F32};
  require_ok(vl_apply(graph, "sum", &all, &x, 1, &program->loss));
  require_ok(apply_recipe("baseline", program));
}

/* Peak and repeated operations of a real schedule with these runs. */
static void measure(Program *program, const int32_t *length, int64_t *peak_bytes, int64_t *flops) {
  Graph *graph = program->graph;
  int32_t *run_of_block = vl_allocate(((size_t)graph->block_count + 1) * sizeof *run_of_block);
  int32_t *run = vl_allocate((size_t)graph->node_count * sizeof *run), runs = 0;
  for (int32_t block = 0; block < graph->block_count; block++) {
    runs += length[block] > 0;
    for (int32_t i = 0; i < length[block]; i++)
      run_of_block[block + i + 1] = runs;
  }
  for (int32_t i = 0; i < graph->node_count; i++)
    run[i] = run_of_block[graph->nodes[i]->block];
  optimization_drop_runs(graph, run);
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(program, &schedule));
  *peak_bytes = sweep_peak(program, schedule);
  *flops = schedule->recompute_flops;
  vl_schedule_destroy(&schedule);
  free(run);
  free(run_of_block);
}

enum { MAX_BLOCKS = 7, MAX_CHOICES = 4096 };

typedef struct Tried {
  int64_t peak_bytes[MAX_CHOICES], flops[MAX_CHOICES];
  int32_t count;
} Tried;

/* Every choice there is: a block is kept or begins a run of any length. */
static void try_all(Program *program, int32_t block, int32_t *length, Tried *tried) {
  int32_t blocks = program->graph->block_count;
  if (block == blocks) {
    assert_true(tried->count < MAX_CHOICES);
    measure(program, length, &tried->peak_bytes[tried->count], &tried->flops[tried->count]);
    tried->count++;
    return;
  }
  length[block] = 0;
  try_all(program, block + 1, length, tried);
  for (int32_t run = 1; block + run <= blocks; run++) {
    length[block] = run;
    for (int32_t i = 1; i < run; i++)
      length[block + i] = 0;
    try_all(program, block + run, length, tried);
  }
  length[block] = 0;
}

/* For every limit that some choice just meets, the cheapest of those under it; and its peak is the one
 * promised. */
static void auto_is_as_good_as_trying_everything(void **state) {
  (void)state;
  Tried *tried = vl_allocate(sizeof *tried);
  for (uint64_t seed = 1; seed <= 12; seed++) {
    Program program;
    int32_t length[MAX_BLOCKS] = {0}, blocks = 3 + (int32_t)(seed % (MAX_BLOCKS - 2));
    build_chain(seed, blocks, &program);
    tried->count = 0;
    try_all(&program, 0, length, tried);
    ChainCosts costs;
    require_ok(optimization_chain_costs(&program, &costs));
    ChainPlan plan = {.length = length};
    for (int32_t i = 0; i < tried->count; i++) {
      int64_t limit = tried->peak_bytes[i] - (i % 2), best = INT64_MAX, peak_bytes, flops;
      for (int32_t j = 0; j < tried->count; j++)
        if (tried->peak_bytes[j] <= limit && tried->flops[j] < best) best = tried->flops[j];
      bool found = optimization_cheapest_runs(&costs, limit, &plan);
      assert_int_equal(found, best < INT64_MAX);
      if (!found) continue;
      assert_int_equal(plan.flops, best);
      if (i % 16) continue;
      measure(&program, plan.length, &peak_bytes, &flops);
      assert_int_equal(peak_bytes, plan.peak_bytes);
      assert_int_equal(flops, plan.flops);
    }
    optimization_chain_costs_free(&costs);
    vl_program_destroy(&program);
  }
  free(tried);
}

/* The cases are no chains of equal layers, have two ends and side effects: what is promised of each choice on
 * the way from the cheapest to the leanest is still what its schedule does. */
static void promised_peaks_are_those_of_the_cases(void **state) {
  (void)state;
  static void (*const builds[])(Program *) = {build_deep_bert, build_small_resnet50};
  static const char *const recipes[] = {"baseline", "amp=bf16", "stack=vramlab", "accumulate=2",
                                        "amp=bf16 weights=on-use update=in-backward"};
  for (size_t b = 0; b < sizeof builds / sizeof *builds; b++) {
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
      Program program;
      builds[b](&program);
      require_ok(apply_recipe(recipes[r], &program));
      ChainCosts costs;
      require_ok(optimization_chain_costs(&program, &costs));
      int32_t *length = vl_allocate((size_t)costs.blocks * sizeof *length), count = 0;
      ChainPlan plan = {.length = length};
      for (int64_t limit = INT64_MAX; count < 40 && optimization_cheapest_runs(&costs, limit, &plan);
           limit = plan.peak_bytes - 1, count++) {
        int64_t peak_bytes, flops;
        measure(&program, plan.length, &peak_bytes, &flops);
        if (peak_bytes != plan.peak_bytes)
          fail_msg("%s, %s, choice %d: peak %lld, promised %lld", program.graph->name, recipes[r], count,
                   (long long)peak_bytes, (long long)plan.peak_bytes);
        assert_int_equal(flops, plan.flops);
      }
      assert_true(count > 0);
      free(length);
      optimization_chain_costs_free(&costs);
      vl_program_destroy(&program);
    }
  }
}

typedef struct Asked {
  int32_t times;
  char value[VL_RECIPE_VALUE_BYTES];
} Asked;

/* A device on which everything takes a quarter more than its schedule holds. */
static Status needed_by_a_quarter_more(void *context, const char *key, const char *value, int64_t *bytes) {
  Asked *asked = context;
  char recipe[VL_RECIPE_VALUE_BYTES + 16];
  Program program;
  Schedule *schedule = NULL;
  assert_string_equal(key, "checkpoint");
  snprintf(recipe, sizeof recipe, "checkpoint=%s", value);
  snprintf(asked->value, sizeof asked->value, "%s", value);
  asked->times++;
  build_deep_bert(&program);
  require_ok(apply_recipe(recipe, &program));
  require_ok(vl_schedule_build(&program, &schedule));
  *bytes = sweep_peak(&program, schedule) * 5 / 4;
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
  return vl_ok();
}

static void a_budget_is_met_by_what_the_target_says_is_needed(void **state) {
  (void)state;
  Program plain;
  Schedule *schedule;
  build_deep_bert(&plain);
  require_ok(apply_recipe("baseline", &plain));
  build_schedule(&plain, &schedule);
  int64_t most = sweep_peak(&plain, schedule) * 5 / 4, flops = -1;
  for (int32_t percent = 100; percent >= 60; percent -= 5) {
    Asked asked = {0};
    Program program;
    Schedule *chosen = NULL;
    Target target = {.ranks = 1,
                     .capacity_bytes = most * percent / 100,
                     .needed = needed_by_a_quarter_more,
                     .context = &asked};
    build_deep_bert(&program);
    Status status = apply_recipe_on("checkpoint=auto", &target, &program);
    if (status.code != VL_OK) {
      assert_int_equal(status.code, VL_OUT_OF_MEMORY);
      assert_non_null(strstr(status.message, "the leanest choice, runs:"));
      assert_true(flops > 0);
      vl_program_destroy(&program);
      break;
    }
    require_ok(vl_schedule_build(&program, &chosen));
    assert_true(sweep_peak(&program, chosen) * 5 / 4 <= target.capacity_bytes);
    assert_true(chosen->recompute_flops >= flops);
    assert_string_equal(program.checkpoint_chosen, asked.value);
    if (percent == 100) {
      assert_string_equal(asked.value, "segments:1");
      assert_int_equal(chosen->recompute_flops, 0);
    }
    flops = chosen->recompute_flops;
    vl_schedule_destroy(&chosen);
    vl_program_destroy(&program);
  }
  assert_true(flops > 0);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&plain);
}

/* Past the capacity the leanest choice is wanted, to tell what it needs. */
static void without_a_limit_the_leanest_is_taken(void **state) {
  (void)state;
  Target target = {.ranks = 1, .capacity_bytes = 1, .unlimited = true};
  Program program;
  build_deep_bert(&program);
  require_ok(apply_recipe_on("checkpoint=auto", &target, &program));
  assert_non_null(strstr(program.checkpoint_chosen, "runs:"));
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(auto_is_as_good_as_trying_everything),
      cmocka_unit_test(promised_peaks_are_those_of_the_cases),
      cmocka_unit_test(a_budget_is_met_by_what_the_target_says_is_needed),
      cmocka_unit_test(without_a_limit_the_leanest_is_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
