/* concat=in-place: parts of a storage written side by side, where that is contiguous and nothing is lost by
 * it. */
#include "programs.h"
#include "tests/graph/networks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHANNELS = 16, SIDE = 4, PART = CHANNELS * SIDE * SIDE };

/* A block's ReLU is skipped to the end of the next, which halves the sides and doubles them again: the
 * U-Net's one level. */
static void build_skip(int64_t batch, const char *recipe, Program *program) {
  Graph *graph = vl_graph_create("skip");
  vl_program_init(program, graph);
  program->training = true;
  const int64_t weights[] = {CHANNELS, CHANNELS, 3, 3}, down[] = {CHANNELS, CHANNELS, 2, 2},
                after[] = {8, 2 * CHANNELS, 1, 1};
  const Init init = {INIT_UNIFORM, 0.1};
  Tensor *w[] = {vl_graph_parameter(graph, "a", ROLE_PARAMETER, DTYPE_F32, 4, weights, init),
                 vl_graph_parameter(graph, "b", ROLE_PARAMETER, DTYPE_F32, 4, down, init),
                 vl_graph_parameter(graph, "c", ROLE_PARAMETER, DTYPE_F32, 4, down, init),
                 vl_graph_parameter(graph, "d", ROLE_PARAMETER, DTYPE_F32, 4, after, init)};
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 4, (int64_t[]){batch, CHANNELS, SIDE, SIDE}, 0), *skip;
  graph->block = graph->block_count = 1;
  vl_graph_set_scope(graph, "enc");
  require_ok(vl_conv(graph, x, w[0], 1, 1, 1, &x));
  require_ok(vl_apply(graph, "relu", NULL, &x, 1, &skip));
  skip->producer->inplace_hint = true;
  graph->block = graph->block_count = 2;
  vl_graph_set_scope(graph, "down");
  require_ok(vl_conv(graph, skip, w[1], 2, 0, 1, &x));
  vl_graph_set_scope(graph, "up");
  require_ok(vl_conv_transpose(graph, x, w[2], NULL, 2, 0, 1, &x));
  vl_graph_set_scope(graph, "cat");
  require_ok(vl_concat(graph, (Tensor *[]){x, skip}, 2, 1, &x));
  vl_graph_set_scope(graph, "dec");
  require_ok(vl_conv(graph, x, w[3], 1, 0, 1, &x));
  graph->block = 0;
  OpParams all = {.axes = {0, 1, 2, 3}, .axis_count = 4, .dtype = DTYPE_F32};
  require_ok(vl_apply(graph, "sum", &all, &x, 1, &program->loss));
  require_ok(apply_recipe(recipe, program));
}

static const Node *find(const Program *program, const char *op) {
  for (int32_t i = 0; i < program->graph->node_count; i++)
    if (is_op(program->graph->nodes[i], op)) return program->graph->nodes[i];
  fail_msg("no %s", op);
  return NULL;
}

static bool is_joined(const Program *program) { return vl_node_is_view(find(program, "concat")); }

static int32_t count_views(const Program *program, const char *op) {
  int32_t views = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    views += is_op(node, op) && vl_node_is_view(node);
  }
  return views;
}

static void one_sample_is_written_side_by_side(void **state) {
  (void)state;
  Program program;
  Schedule *schedule;
  build_skip(1, "concat=in-place", &program);
  const Node *concat = find(&program, "concat");
  assert_true(vl_node_is_view(concat));
  assert_true(vl_storage_is_joined(concat->outputs[0]->storage));
  assert_int_equal(concat->inputs[0]->offset, 0);
  assert_int_equal(concat->inputs[1]->offset, PART);
  /* In place over the convolution's output, which lies there too. */
  assert_int_equal(concat->inputs[1]->producer->inputs[0]->offset, PART);
  assert_int_equal(vl_node_bytes(concat), 0);
  assert_int_equal(count_views(&program, "slice"), 1); /* the other is added to in place */
  build_schedule(&program, &schedule);
  for (int32_t i = 0; i < schedule->instance_count; i++)
    assert_false(vl_node_is_view(schedule->instances[i].node));
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
}

/* Forward: the whole instead of the whole and two parts. */
static void less_is_needed(void **state) {
  (void)state;
  Program copied, joined;
  build_skip(1, "baseline", &copied);
  build_skip(1, "concat=in-place", &joined);
  assert_int_equal(vl_program_saved_bytes(&copied) - vl_program_saved_bytes(&joined), 4 * PART);
  assert_true(peak_bytes_of(&joined) < peak_bytes_of(&copied));
  vl_program_destroy(&copied);
  vl_program_destroy(&joined);
}

static void several_samples_are_copied(void **state) {
  (void)state;
  Program program;
  build_skip(2, "stack=vramlab", &program);
  assert_false(is_joined(&program));
  assert_int_equal(count_views(&program, "slice"), 0);
  vl_program_destroy(&program);
}

/* Micro-batches of one sample do; what is repeated keeps a storage of its own. */
static void recipes_it_goes_with(void **state) {
  (void)state;
  static const struct {
    const char *recipe;
    bool joined;
  } cases[] = {{"stack=vramlab", true},
               {"stack=vramlab amp=bf16", true},
               {"stack=vramlab update=in-backward", true},
               {"stack=vramlab offload=activations", true},
               {"stack=vramlab checkpoint=runs:1", false},
               {"stack=vramlab checkpoint=runs:2", false},
               {"stack=vramlab recompute=norm", false},
               {"stack=vramlab concat=copy", false},
               {"stack=pytorch", false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    Schedule *schedule;
    build_skip(1, cases[i].recipe, &program);
    if (is_joined(&program) != cases[i].joined) fail_msg("%s: joined or not", cases[i].recipe);
    build_schedule(&program, &schedule);
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_sample_is_written_side_by_side),
      cmocka_unit_test(less_is_needed),
      cmocka_unit_test(several_samples_are_copied),
      cmocka_unit_test(recipes_it_goes_with),
  };
  return cmocka_run_group_tests_name("concat", tests, NULL, NULL);
}
