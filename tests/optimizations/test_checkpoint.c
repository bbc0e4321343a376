/* checkpoint: which nodes each of its values drops and repeats, and that checkpoint=auto finds the cheapest
 * runs there are: against every choice, on random chains, and by the peaks of real schedules on the cases. */
#include "cases/cases.h"
#include "optimizations/internal.h"
#include "tests/graph/networks.h"
#include "tests/graph/simulate.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Status apply_recipe(const char *text, const Target *target, Program *program) {
  Recipe recipe;
  VL_TRY(vl_recipe_parse(text, &recipe));
  return vl_recipe_apply(&recipe, program, target);
}

static void build_case(const char *name, const char *const *settings, int32_t count, Program *program) {
  const Case *of = vl_case_find(name);
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(of, 2, settings, count, values));
  require_ok(of->build(values, true, program));
}

static void build_bert(Program *program) {
  static const char *const small[] = {"layers=4", "hidden=32", "heads=2", "vocabulary=100", "sequence=64"};
  build_case("bert-base", small, 5, program);
}

static void build_resnet50(Program *program) {
  build_case("resnet50", (const char *[]){"size=32", "classes=10"}, 2, program);
}

static void apply(const char *recipe, Program *program) {
  Target target = {.ranks = 1};
  require_ok(apply_recipe(recipe, &target, program));
}

/* How often forward nodes of an op are repeated. */
static int32_t repeats_of(const Program *program, const Schedule *schedule, const char *op) {
  int32_t count = 0;
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Node *node = schedule->instances[i].node;
    count += node->segment == SEGMENT_FORWARD && (!op || strcmp(node->op->name, op) == 0);
  }
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    bool launched = launches_of(schedule, node) > 0;
    count -= launched && node->segment == SEGMENT_FORWARD && (!op || strcmp(node->op->name, op) == 0);
  }
  return count;
}

static int64_t sweep_peak(const Program *program, const Schedule *schedule) {
  int64_t peak_bytes = 0, *live = vl_allocate((size_t)schedule->instance_count * sizeof *live);
  vl_schedule_live_bytes(program, schedule, live);
  for (int32_t i = 0; i < schedule->instance_count; i++)
    if (live[i] > peak_bytes) peak_bytes = live[i];
  free(live);
  return peak_bytes;
}

static int64_t forward_flops(const Program *program) {
  int64_t flops = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++)
    if (program->graph->nodes[i]->segment == SEGMENT_FORWARD)
      flops += vl_node_flops(program->graph->nodes[i]);
  return flops;
}

static void build_schedule(const Program *program, Schedule **schedule) {
  Simulation simulation;
  *schedule = NULL;
  require_ok(vl_schedule_build(program, schedule));
  simulate_schedule(program, *schedule, &simulation);
  simulation_free(&simulation);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void values_are_accepted_or_refused_by_name(void **state) {
  (void)state;
  static const char *const accepted[] = {"1",        "segments:3", "ops:7",       "model",  "selective",
                                         "auto",     "auto:12GiB", "auto:4096",   "runs:1", "runs:1-6/2,8",
                                         "runs:1,2", "runs:3-3/1", "auto:0.5GiB", "12"};
  static const char *const refused[][2] = {{"ops:0", "whole number"},
                                           {"ops", "accepted values are"},
                                           {"ops:", "whole number"},
                                           {"models", "accepted values are"},
                                           {"selective:2", "accepted values are"},
                                           {"automatic", "accepted values are"},
                                           {"auto:", "auto:"},
                                           {"auto:much", "much"},
                                           {"auto:0", "above 0"},
                                           {"runs:", "does not begin with blocks"},
                                           {"runs:0", "does not begin with blocks"},
                                           {"runs:1-", "does not begin with blocks"},
                                           {"runs:1,", "a comma and further blocks"},
                                           {"runs:1;2", "a comma and further blocks"},
                                           {"runs:2,1", "do not come after block 2"},
                                           {"runs:4-2", "do not come after"},
                                           {"runs:1-4/0", "does not begin with blocks"},
                                           {"runs:99999999999999999999", "does not begin with blocks"}};
  Recipe recipe;
  char text[64];
  for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
    snprintf(text, sizeof text, "checkpoint=%s", accepted[i]);
    require_ok(vl_recipe_parse(text, &recipe));
  }
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    snprintf(text, sizeof text, "checkpoint=%s", refused[i][0]);
    Status status = vl_recipe_parse(text, &recipe);
    assert_int_equal(status.code, VL_INVALID);
    if (!strstr(status.message, refused[i][1])) fail_msg("%s: %s", text, status.message);
  }
}

static void combinations_without_sense_are_refused_with_the_reason(void **state) {
  (void)state;
  static const struct {
    void (*build)(Program *program);
    const char *recipe, *reason;
    StatusCode code;
  } cases[] = {
      {build_resnet50, "checkpoint=selective", "resnet50 has no attention", VL_UNSUPPORTED},
      {build_bert, "checkpoint=selective attention=fused", "nothing of size sequence x sequence",
       VL_UNSUPPORTED},
      {build_bert, "checkpoint=selective stack=vramlab", "nothing of size sequence x sequence",
       VL_UNSUPPORTED},
      {build_bert, "checkpoint=runs:3-5", "has only 4 blocks", VL_INVALID},
      {build_bert, "checkpoint=segments:5", "has only 4 blocks", VL_INVALID},
      {build_bert, "checkpoint=auto", "needs a capacity", VL_INVALID},
      {network_tied, "checkpoint=selective", "has no attention", VL_UNSUPPORTED},
  };
  Target target = {.ranks = 1};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    cases[i].build(&program);
    Status status = apply_recipe(cases[i].recipe, &target, &program);
    assert_int_equal(status.code, cases[i].code);
    if (!strstr(status.message, cases[i].reason)) fail_msg("%s: %s", cases[i].recipe, status.message);
    vl_program_destroy(&program);
  }
}

/* ---- Operators, the whole model, attention -------------------------------------------------------------------------- */

/* 128 GELUs between an addition and a sum: 130 operators. Runs of k keep one tensor each; the last is not
 * repeated, and of the others the last operator makes what is kept. */
static void operators_are_cut_every_k(void **state) {
  (void)state;
  static const int32_t intervals[] = {1, 2, 3, 10, 64, 65, 129, 130, 500};
  for (size_t i = 0; i < sizeof intervals / sizeof *intervals; i++) {
    Program program;
    Schedule *schedule;
    char recipe[32];
    network_layers(16, 256, &program);
    snprintf(recipe, sizeof recipe, "checkpoint=ops:%d", intervals[i]);
    apply(recipe, &program);
    build_schedule(&program, &schedule);
    int32_t k = intervals[i], runs = (130 + k - 1) / k, expected = (runs - 1) * (k - 1);
    /* Nothing in backward reads what the addition makes but through the first GELU, a run of its own at k
     * = 1. */
    assert_int_equal(schedule->recompute_instances, expected);
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

/* Sound for every interval, and never more than the forward pass again. */
static void every_interval_of_operators_is_sound(void **state) {
  (void)state;
  static void (*const builds[])(Program *) = {build_bert, build_resnet50};
  static const char *const with[] = {"", "amp=bf16", "inplace=all", "stack=vramlab", "accumulate=2"};
  for (size_t b = 0; b < sizeof builds / sizeof *builds; b++) {
    for (size_t w = 0; w < sizeof with / sizeof *with; w++) {
      for (int32_t k = 1; k < 200; k = k < 8 ? k + 1 : k * 3 / 2) {
        Program program;
        Schedule *schedule;
        char recipe[96];
        snprintf(recipe, sizeof recipe, "checkpoint=ops:%d %s", k, with[w]);
        builds[b](&program);
        apply(recipe, &program);
        build_schedule(&program, &schedule);
        assert_true(schedule->recompute_flops <= forward_flops(&program) * program.accumulate);
        vl_schedule_destroy(&schedule);
        vl_program_destroy(&program);
      }
    }
  }
}

/* The article's snippet: all of forward but the loss and what only makes what is kept is paid again, and the
 * peak stays where it was but for what the loss no longer finds beside it. */
static void the_whole_model_in_one_checkpoint_saves_next_to_nothing(void **state) {
  (void)state;
  static void (*const builds[])(Program *) = {build_bert, build_resnet50};
  for (size_t b = 0; b < 2; b++) {
    Program plain, program;
    Schedule *without, *with;
    builds[b](&plain);
    apply("baseline", &plain);
    build_schedule(&plain, &without);
    builds[b](&program);
    apply("checkpoint=model", &program);
    build_schedule(&program, &with);
    int64_t before = sweep_peak(&plain, without), after = sweep_peak(&program, with);
    assert_true(after <= before && after >= before - before / 10);
    assert_true(2 * with->recompute_flops > forward_flops(&program));
    assert_true(with->recompute_flops <= forward_flops(&program));
    assert_int_equal(repeats_of(&program, with, "softmax_cross_entropy"), 0);
    assert_int_equal(repeats_of(&program, with, "batch_norm_update"), 0);
    vl_schedule_destroy(&without);
    vl_schedule_destroy(&with);
    vl_program_destroy(&plain);
    vl_program_destroy(&program);
  }
}

/* Of four layers, scores, softmax and dropout are repeated, nothing else, and none of them lives from forward
 * to backward. */
static void selective_repeats_attention_internals_only(void **state) {
  (void)state;
  static const struct {
    const char *recipe;
    int32_t dropouts;
  } cases[] = {{"checkpoint=selective", 4},
               {"checkpoint=selective attention=materialised", 4},
               {"checkpoint=selective amp=bf16", 4},
               {"checkpoint=selective inplace=all recompute=norm", 5}}; /* the embedding's, behind its norm */
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    Program program;
    Schedule *schedule;
    build_bert(&program);
    apply(cases[c].recipe, &program);
    build_schedule(&program, &schedule);
    assert_int_equal(repeats_of(&program, schedule, "matmul"), 4);
    assert_int_equal(repeats_of(&program, schedule, "softmax"), 4);
    assert_int_equal(repeats_of(&program, schedule, "dropout"), cases[c].dropouts);
    if (!strstr(cases[c].recipe, "recompute"))
      assert_int_equal(schedule->recompute_instances, 4 + 4 + cases[c].dropouts);
    for (int32_t i = 0; i < schedule->buffer_count; i++) {
      const Buffer *buffer = &schedule->buffers[i];
      const Node *maker = buffer->storage->root->producer;
      if (buffer->pass > 0 || !maker || maker->checkpoint_segment == 0) continue;
      assert_int_equal(schedule->instances[buffer->last].node->segment, SEGMENT_FORWARD);
    }
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

/* A list of runs is what the interval and the shares are written out. */
static void a_list_of_runs_says_what_an_interval_says(void **state) {
  (void)state;
  static const char *const same[][2] = {{"checkpoint=1", "checkpoint=runs:1-3/1"},
                                        {"checkpoint=2", "checkpoint=runs:1-2"},
                                        {"checkpoint=3", "checkpoint=runs:1-3"},
                                        {"checkpoint=segments:3", "checkpoint=runs:1-2,3"},
                                        {"checkpoint=4", "baseline"}};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    Program a, b;
    build_bert(&a);
    build_bert(&b);
    apply(same[i][0], &a);
    apply(same[i][1], &b);
    assert_int_equal(a.graph->node_count, b.graph->node_count);
    for (int32_t n = 0; n < a.graph->node_count; n++)
      assert_int_equal(a.graph->nodes[n]->checkpoint_segment, b.graph->nodes[n]->checkpoint_segment);
    vl_program_destroy(&a);
    vl_program_destroy(&b);
  }
}

/* ---- auto ---------------------------------------------------------------------------------------------------------------- */

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
  apply("baseline", program);
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
  static void (*const builds[])(Program *) = {build_bert, build_resnet50};
  static const char *const recipes[] = {"baseline", "amp=bf16", "stack=vramlab", "accumulate=2",
                                        "amp=bf16 weights=on-use update=in-backward"};
  for (size_t b = 0; b < sizeof builds / sizeof *builds; b++) {
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
      Program program;
      builds[b](&program);
      apply(recipes[r], &program);
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
  build_bert(&program);
  apply(recipe, &program);
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
  build_bert(&plain);
  apply("baseline", &plain);
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
    build_bert(&program);
    Status status = apply_recipe("checkpoint=auto", &target, &program);
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
  build_bert(&program);
  require_ok(apply_recipe("checkpoint=auto", &target, &program));
  assert_non_null(strstr(program.checkpoint_chosen, "runs:"));
  vl_program_destroy(&program);
}

/* ---- Theory -------------------------------------------------------------------------------------------------------------- */

/* sqrt(L) where layers keep just what they pass on; below 1 where they keep much more, as blocks of BERT do.
 */
static void the_square_root_rule(void **state) {
  (void)state;
  Program program;
  assert_true(fabs(vl_checkpoint_interval(16, 8, 8) - 4.0) < 1e-12);
  assert_true(fabs(vl_checkpoint_interval(12, 1, 48) - 0.5) < 1e-12);
  assert_true(isnan(vl_checkpoint_interval(0, 1, 1)));
  network_layers(16, 256, &program);
  apply("baseline", &program);
  CheckpointChain blocks = vl_checkpoint_chain(&program, false), ops = vl_checkpoint_chain(&program, true);
  assert_int_equal(blocks.layers, 16);
  assert_true(fabs(blocks.boundary_bytes - 1024) < 1e-9);
  assert_true(fabs(blocks.inner_bytes - (15 * 8 + 7) * 1024 / 16.0) < 1e-9);
  assert_int_equal(ops.layers, 130);
  assert_true(fabs(ops.boundary_bytes - 129 * 1024 / 130.0) < 1e-9);
  assert_true(fabs(ops.inner_bytes - 128 * 1024 / 130.0) < 1e-9);
  vl_program_destroy(&program);
  build_bert(&program);
  apply("baseline", &program);
  blocks = vl_checkpoint_chain(&program, false);
  assert_int_equal(blocks.layers, 4);
  assert_true(vl_checkpoint_interval(blocks.layers, blocks.boundary_bytes, blocks.inner_bytes) < 1.0);
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_are_accepted_or_refused_by_name),
      cmocka_unit_test(combinations_without_sense_are_refused_with_the_reason),
      cmocka_unit_test(operators_are_cut_every_k),
      cmocka_unit_test(every_interval_of_operators_is_sound),
      cmocka_unit_test(the_whole_model_in_one_checkpoint_saves_next_to_nothing),
      cmocka_unit_test(selective_repeats_attention_internals_only),
      cmocka_unit_test(a_list_of_runs_says_what_an_interval_says),
      cmocka_unit_test(auto_is_as_good_as_trying_everything),
      cmocka_unit_test(promised_peaks_are_those_of_the_cases),
      cmocka_unit_test(a_budget_is_met_by_what_the_target_says_is_needed),
      cmocka_unit_test(without_a_limit_the_leanest_is_taken),
      cmocka_unit_test(the_square_root_rule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
