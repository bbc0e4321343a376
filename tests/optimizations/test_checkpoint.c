/* checkpoint: which nodes each of its values drops and repeats. checkpoint=auto is in test_checkpoint_auto.c.
 */
#include "tests/graph/networks.h"
#include "tests/graph/simulate.h"
#include "tests/optimizations/programs.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

static int64_t forward_flops(const Program *program) {
  int64_t flops = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++)
    if (program->graph->nodes[i]->segment == SEGMENT_FORWARD)
      flops += vl_node_flops(program->graph->nodes[i]);
  return flops;
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
      {build_small_resnet50, "checkpoint=selective", "resnet50 has no attention", VL_UNSUPPORTED},
      {build_deep_bert, "checkpoint=selective attention=fused", "nothing of size sequence x sequence",
       VL_UNSUPPORTED},
      {build_deep_bert, "checkpoint=selective stack=vramlab", "nothing of size sequence x sequence",
       VL_UNSUPPORTED},
      {build_deep_bert, "checkpoint=runs:3-5", "has only 4 blocks", VL_INVALID},
      {build_deep_bert, "checkpoint=segments:5", "has only 4 blocks", VL_INVALID},
      {build_deep_bert, "checkpoint=auto", "needs a capacity", VL_INVALID},
      {network_tied, "checkpoint=selective", "has no attention", VL_UNSUPPORTED},
  };
  Target target = {.ranks = 1};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    cases[i].build(&program);
    Status status = apply_recipe_on(cases[i].recipe, &target, &program);
    assert_int_equal(status.code, cases[i].code);
    if (!strstr(status.message, cases[i].reason)) fail_msg("%s: %s", cases[i].recipe, status.message);
    vl_program_destroy(&program);
  }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static void checkpoint_refuses_more_segments_than_blocks_d5(void **state) {
  (void)state;
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  Status status = apply_recipe("checkpoint=segments:4", &program);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "segments:4"));
  assert_non_null(strstr(status.message, "only 3 blocks"));
  vl_program_destroy(&program);
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  require_ok(apply_recipe("checkpoint=segments:3", &program));
  vl_program_destroy(&program);
}

static void checkpoint_needs_blocks(void **state) {
  (void)state;
  Program program;
  network_dropout(&program);
  for (int32_t i = 0; i < program.graph->node_count; i++)
    program.graph->nodes[i]->block = 0;
  program.graph->block_count = 0;
  Status status = apply_recipe("checkpoint=1", &program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "dropout has no blocks"));
  vl_program_destroy(&program);
}

/* One segment, or an interval of all blocks, is the last segment: nothing is repeated. */
static void one_segment_repeats_nothing(void **state) {
  (void)state;
  static const char *const recipes[] = {"checkpoint=segments:1", "checkpoint=16", "checkpoint=1000"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    Program program;
    Schedule *schedule = NULL;
    build_resnet50(recipes[i], &program);
    require_ok(vl_schedule_build(&program, &schedule));
    assert_int_equal(schedule->recompute_instances, 0);
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

/* A block that ends in a view: the storage behind the view is the boundary, and is kept. */
static void boundaries_are_kept_behind_views(void **state) {
  (void)state;
  Program program;
  Graph *graph = vl_graph_create("views");
  vl_program_init(&program, graph);
  program.training = true;
  int64_t size = 8;
  Tensor *x = vl_graph_parameter(graph, "p", ROLE_PARAMETER, DTYPE_F32, 1, &size, (Init){INIT_UNIFORM, 1.0});
  OpParams sum = {.axis_count = 1, .dtype = DTYPE_F32};
  for (int32_t block = 1; block <= 3; block++) {
    graph->block = ++graph->block_count;
    vl_graph_set_scope(graph, "block%d", block);
    require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
    require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
    OpParams shape = {.rank = x->rank == 1 ? 2 : 1, .shape = {x->rank == 1 ? 2 : 8, 4}};
    require_ok(vl_apply(graph, "reshape", &shape, &x, 1, &x));
  }
  graph->block = 0;
  OpParams flat = {.rank = 1, .shape = {8}};
  require_ok(vl_apply(graph, "reshape", &flat, &x, 1, &x));
  require_ok(vl_apply(graph, "sum", &sum, &x, 1, &program.loss));
  require_ok(apply_recipe("checkpoint=1", &program));
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(&program, &schedule));
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->segment != SEGMENT_FORWARD || !is_op(node, "gelu")) continue;
    bool ends_block = is_op(graph->nodes[i + 1], "reshape");
    assert_int_equal(launches_of(schedule, node), ends_block || node->block == 3 ? 1 : 2);
  }
  vl_schedule_destroy(&schedule);
  peak_bytes_of(&program);
  vl_program_destroy(&program);
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
    build_deep_bert(&a);
    build_deep_bert(&b);
    require_ok(apply_recipe(same[i][0], &a));
    require_ok(apply_recipe(same[i][1], &b));
    assert_int_equal(a.graph->node_count, b.graph->node_count);
    for (int32_t n = 0; n < a.graph->node_count; n++)
      assert_int_equal(a.graph->nodes[n]->checkpoint_segment, b.graph->nodes[n]->checkpoint_segment);
    vl_program_destroy(&a);
    vl_program_destroy(&b);
  }
}

/* ---- Operators, the whole model, attention ----------------------------------------------------------------------- */

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
    require_ok(apply_recipe(recipe, &program));
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
  static void (*const builds[])(Program *) = {build_deep_bert, build_small_resnet50};
  static const char *const with[] = {"", "amp=bf16", "inplace=all", "stack=vramlab", "accumulate=2"};
  for (size_t b = 0; b < sizeof builds / sizeof *builds; b++) {
    for (size_t w = 0; w < sizeof with / sizeof *with; w++) {
      for (int32_t k = 1; k < 200; k = k < 8 ? k + 1 : k * 3 / 2) {
        Program program;
        Schedule *schedule;
        char recipe[96];
        snprintf(recipe, sizeof recipe, "checkpoint=ops:%d %s", k, with[w]);
        builds[b](&program);
        require_ok(apply_recipe(recipe, &program));
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
  static void (*const builds[])(Program *) = {build_deep_bert, build_small_resnet50};
  for (size_t b = 0; b < 2; b++) {
    Program plain, program;
    Schedule *without, *with;
    builds[b](&plain);
    require_ok(apply_recipe("baseline", &plain));
    build_schedule(&plain, &without);
    builds[b](&program);
    require_ok(apply_recipe("checkpoint=model", &program));
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
    build_deep_bert(&program);
    require_ok(apply_recipe(cases[c].recipe, &program));
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

/* ---- Theory ------------------------------------------------------------------------------------------------------ */

/* sqrt(L) where layers keep just what they pass on; below 1 where they keep much more, as blocks of BERT do.
 */
static void the_square_root_rule(void **state) {
  (void)state;
  Program program;
  assert_true(fabs(vl_checkpoint_interval(16, 8, 8) - 4.0) < 1e-12);
  assert_true(fabs(vl_checkpoint_interval(12, 1, 48) - 0.5) < 1e-12);
  assert_true(isnan(vl_checkpoint_interval(0, 1, 1)));
  network_layers(16, 256, &program);
  require_ok(apply_recipe("baseline", &program));
  CheckpointChain blocks = vl_checkpoint_chain(&program, false), ops = vl_checkpoint_chain(&program, true);
  assert_int_equal(blocks.layers, 16);
  assert_true(fabs(blocks.boundary_bytes - 1024) < 1e-9);
  assert_true(fabs(blocks.inner_bytes - (15 * 8 + 7) * 1024 / 16.0) < 1e-9);
  assert_int_equal(ops.layers, 130);
  assert_true(fabs(ops.boundary_bytes - 129 * 1024 / 130.0) < 1e-9);
  assert_true(fabs(ops.inner_bytes - 128 * 1024 / 130.0) < 1e-9);
  vl_program_destroy(&program);
  build_deep_bert(&program);
  require_ok(apply_recipe("baseline", &program));
  blocks = vl_checkpoint_chain(&program, false);
  assert_int_equal(blocks.layers, 4);
  assert_true(vl_checkpoint_interval(blocks.layers, blocks.boundary_bytes, blocks.inner_bytes) < 1.0);
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_are_accepted_or_refused_by_name),
      cmocka_unit_test(combinations_without_sense_are_refused_with_the_reason),
      cmocka_unit_test(checkpoint_refuses_more_segments_than_blocks_d5),
      cmocka_unit_test(checkpoint_needs_blocks),
      cmocka_unit_test(one_segment_repeats_nothing),
      cmocka_unit_test(boundaries_are_kept_behind_views),
      cmocka_unit_test(a_list_of_runs_says_what_an_interval_says),
      cmocka_unit_test(operators_are_cut_every_k),
      cmocka_unit_test(every_interval_of_operators_is_sound),
      cmocka_unit_test(the_whole_model_in_one_checkpoint_saves_next_to_nothing),
      cmocka_unit_test(selective_repeats_attention_internals_only),
      cmocka_unit_test(the_square_root_rule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
