/* The table of ops, what each makes of shapes and types, what it costs, and how graphs are printed. What ops
 * refuse is in test_ops_refusals.c. */
#include "every_op.h"
#include "op_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The contract, graph/ops/README.md, and the table list the same ops in the same order. */
static void table_is_the_contract(void **state) {
  (void)state;
  FILE *file = fopen(VRAMLAB_SOURCE_DIR "/graph/ops/README.md", "r");
  assert_non_null(file);
  int32_t count, row = 0;
  const Op *const *ops = vl_op_all(&count);
  char line[1024], name[64];
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "| `%63[a-z_0-9]`", name) != 1) continue;
    assert_true(row < count);
    assert_string_equal(ops[row]->name, name);
    assert_ptr_equal(vl_op_find(name), ops[row]);
    row++;
  }
  fclose(file);
  assert_int_equal(row, count);
  assert_null(vl_op_find("convolution"));
}

/* So that the tests of JSON and printing, which use that graph, reach every op. */
static void every_op_is_in_the_sample(void **state) {
  (void)state;
  Program program;
  expect_ok(build_every_op(&program));
  int32_t count;
  const Op *const *ops = vl_op_all(&count);
  for (int32_t i = 0; i < count; i++) {
    bool found = false;
    for (int32_t k = 0; k < program.graph->node_count; k++)
      found = found || program.graph->nodes[k]->op == ops[i];
    if (!found) fail_msg("%s is missing", ops[i]->name);
  }
  expect_ok(vl_graph_check(program.graph));
  vl_program_destroy(&program);
}

static void ops_make_their_outputs(void **state) {
  (void)state;
  static const OpCase cases[] = {
      {"batch_norm_stats",
       {.alpha = 0},
       {{DTYPE_BF16, 4, {2, 3, 4, 4}}},
       1,
       {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
       2},
      {"batch_norm_stats",
       {.alpha = 0},
       {{DTYPE_F64, 2, {2, 3}}},
       1,
       {{DTYPE_F64, 1, {3}}, {DTYPE_F64, 1, {3}}},
       2},
      {"batch_norm_backward",
       {.epsilon = 1e-5, .alpha = 1},
       {{DTYPE_BF16, 3, {2, 3, 4}},
        {DTYPE_BF16, 3, {2, 3, 4}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_F32, 1, {3}}},
       5,
       {{DTYPE_BF16, 3, {2, 3, 4}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_BF16, 3, {2, 3, 4}}},
       4},
      {"batch_norm_backward", /* of two gradients */
       {.epsilon = 1e-5, .alpha = 1, .relu = 1},
       {{DTYPE_BF16, 3, {2, 3, 4}},
        {DTYPE_BF16, 3, {2, 3, 4}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_BF16, 3, {2, 3, 4}},
        {DTYPE_BF16, 3, {2, 3, 4}}},
       8,
       {{DTYPE_BF16, 3, {2, 3, 4}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_BF16, 3, {2, 3, 4}}},
       4},
      {"layer_norm",
       {.epsilon = 1e-12},
       {{DTYPE_BF16, 3, {2, 5, 3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
       3,
       {{DTYPE_BF16, 3, {2, 5, 3}}, {DTYPE_F32, 1, {10}}, {DTYPE_F32, 1, {10}}},
       3},
      {"layer_norm_backward",
       {.alpha = 0},
       {{DTYPE_BF16, 2, {5, 3}},
        {DTYPE_BF16, 2, {5, 3}},
        {DTYPE_F32, 1, {5}},
        {DTYPE_F32, 1, {5}},
        {DTYPE_F32, 1, {3}}},
       5,
       {{DTYPE_BF16, 2, {5, 3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
       3},
      {"instance_norm",
       {.epsilon = 1e-5, .relu = 1, .alpha = 0.01},
       {{DTYPE_BF16, 5, {2, 3, 4, 5, 6}}, {DTYPE_F32, 1, {3}}, {DTYPE_BF16, 1, {3}}},
       3,
       {{DTYPE_BF16, 5, {2, 3, 4, 5, 6}}, {DTYPE_F32, 2, {2, 3}}, {DTYPE_F32, 2, {2, 3}}},
       3},
      {"instance_norm_backward", /* of two gradients, without a ReLU */
       {.alpha = 0},
       {{DTYPE_BF16, 3, {2, 3, 4}},
        {DTYPE_BF16, 3, {2, 3, 4}},
        {DTYPE_F32, 2, {2, 3}},
        {DTYPE_F32, 2, {2, 3}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_F32, 1, {3}},
        {DTYPE_BF16, 3, {2, 3, 4}}},
       7,
       {{DTYPE_BF16, 3, {2, 3, 4}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
       3},
      {"max_pool",
       {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .dtype = DTYPE_I64},
       {{DTYPE_F32, 4, {1, 2, 112, 112}}},
       1,
       {{DTYPE_F32, 4, {1, 2, 56, 56}}, {DTYPE_I64, 4, {1, 2, 56, 56}}},
       2},
      {"avg_pool",
       {.kernel = {2, 2, 2}, .stride = {2, 2, 2}},
       {{DTYPE_F32, 5, {1, 2, 4, 6, 7}}},
       1,
       {{DTYPE_F32, 5, {1, 2, 2, 3, 3}}},
       1},
      {"global_avg_pool", {.alpha = 0}, {{DTYPE_BF16, 5, {2, 3, 4, 4, 4}}}, 1, {{DTYPE_BF16, 2, {2, 3}}}, 1},
      {"linear",
       {.alpha = 0},
       {{DTYPE_BF16, 2, {8, 5}}, {DTYPE_BF16, 2, {7, 5}}, {DTYPE_F32, 1, {7}}},
       3,
       {{DTYPE_BF16, 2, {8, 7}}},
       1},
      {"linear",
       {.alpha = 0},
       {{DTYPE_F32, 4, {2, 3, 4, 5}}, {DTYPE_F32, 2, {7, 5}}},
       2,
       {{DTYPE_F32, 4, {2, 3, 4, 7}}},
       1},
      {"matmul",
       {.transpose_b = 1, .dtype = DTYPE_F32},
       {{DTYPE_BF16, 3, {2, 5, 3}}, {DTYPE_BF16, 2, {4, 3}}},
       2,
       {{DTYPE_F32, 3, {2, 5, 4}}},
       1},
      {"matmul",
       {.transpose_a = 1, .dtype = DTYPE_F32},
       {{DTYPE_BF16, 3, {2, 5, 3}}, {DTYPE_BF16, 3, {2, 5, 4}}},
       2,
       {{DTYPE_F32, 3, {2, 3, 4}}},
       1},
      {"sum",
       {.axes = {0, 1}, .axis_count = 2, .dtype = DTYPE_F64},
       {{DTYPE_F32, 2, {3, 4}}},
       1,
       {{DTYPE_F64, 0, {0}}},
       1},
      {"broadcast",
       {.shape = {2, 3, 4}, .rank = 3},
       {{DTYPE_F32, 2, {3, 1}}},
       1,
       {{DTYPE_F32, 3, {2, 3, 4}}},
       1},
      {"reshape", {.shape = {3, 8}, .rank = 2}, {{DTYPE_U8, 3, {2, 3, 4}}}, 1, {{DTYPE_U8, 2, {3, 8}}}, 1},
      {"transpose", {.axes = {2, 0, 1}}, {{DTYPE_F32, 3, {2, 3, 4}}}, 1, {{DTYPE_F32, 3, {4, 2, 3}}}, 1},
      {"slice",
       {.start = {1, 1}, .shape = {1, 3}, .rank = 2},
       {{DTYPE_F32, 2, {2, 4}}},
       1,
       {{DTYPE_F32, 2, {1, 3}}},
       1},
      {"pad",
       {.start = {1, 1}, .shape = {2, 4}, .rank = 2},
       {{DTYPE_F32, 2, {1, 3}}},
       1,
       {{DTYPE_F32, 2, {2, 4}}},
       1},
      {"attention",
       {.rate = 0.1, .random_scope = "mask"},
       {{DTYPE_BF16, 5, {2, 7, 3, 4, 5}}, {DTYPE_F32, 2, {2, 7}}},
       2,
       {{DTYPE_BF16, 4, {2, 7, 4, 5}}, {DTYPE_F32, 3, {2, 4, 7}}},
       2},
      {"attention_backward",
       {.alpha = 0},
       {{DTYPE_F32, 4, {2, 7, 4, 5}},
        {DTYPE_F32, 5, {2, 7, 3, 4, 5}},
        {DTYPE_F32, 4, {2, 7, 4, 5}},
        {DTYPE_F32, 3, {2, 4, 7}}},
       4,
       {{DTYPE_F32, 5, {2, 7, 3, 4, 5}}},
       1},
      {"softmax",
       {.alpha = 0.5},
       {{DTYPE_BF16, 4, {2, 3, 4, 5}}, {DTYPE_F32, 4, {2, 1, 1, 5}}},
       2,
       {{DTYPE_BF16, 4, {2, 3, 4, 5}}},
       1},
      {"embedding",
       {.alpha = 0},
       {{DTYPE_F32, 2, {9, 4}}, {DTYPE_I32, 3, {2, 3, 5}}},
       2,
       {{DTYPE_F32, 4, {2, 3, 5, 4}}},
       1},
      {"embedding_backward",
       {.shape = {9, 4}, .rank = 2, .dtype = DTYPE_F32},
       {{DTYPE_BF16, 3, {2, 3, 4}}, {DTYPE_I32, 2, {2, 3}}},
       2,
       {{DTYPE_F32, 2, {9, 4}}},
       1},
      {"gather_tokens",
       {.alpha = 0},
       {{DTYPE_BF16, 3, {2, 9, 4}}, {DTYPE_I32, 2, {2, 3}}},
       2,
       {{DTYPE_BF16, 3, {2, 3, 4}}},
       1},
      {"gather_tokens_backward",
       {.shape = {2, 9, 4}, .rank = 3},
       {{DTYPE_BF16, 3, {2, 3, 4}}, {DTYPE_I32, 2, {2, 3}}},
       2,
       {{DTYPE_BF16, 3, {2, 9, 4}}},
       1},
      {"conv_transpose",
       {.stride = {2, 3, 1}, .padding = {0, 1, 2}, .groups = 2},
       {{DTYPE_BF16, 5, {2, 6, 4, 5, 7}}, {DTYPE_BF16, 5, {6, 4, 2, 3, 5}}, {DTYPE_F32, 1, {8}}},
       3,
       {{DTYPE_BF16, 5, {2, 8, 8, 13, 7}}},
       1},
      {"concat",
       {.axis = 1},
       {{DTYPE_I32, 3, {2, 3, 4}}, {DTYPE_I32, 3, {2, 1, 4}}, {DTYPE_I32, 3, {2, 5, 4}}},
       3,
       {{DTYPE_I32, 3, {2, 9, 4}}},
       1},
      {"softmax_cross_entropy",
       {.alpha = 0},
       {{DTYPE_F32, 2, {4, 9}}, {DTYPE_I32, 1, {4}}},
       2,
       {{DTYPE_F32, 0, {0}}, {DTYPE_F32, 2, {4, 9}}},
       2},
      {"dice_cross_entropy",
       {.alpha = 1, .epsilon = 1e-5},
       {{DTYPE_BF16, 5, {2, 3, 4, 5, 6}}, {DTYPE_I32, 4, {2, 4, 5, 6}}},
       2,
       {{DTYPE_F32, 0, {0}}, {DTYPE_F32, 3, {2, 3, 3}}},
       2},
      {"dice_cross_entropy_backward",
       {.alpha = 1, .epsilon = 1e-5},
       {{DTYPE_F32, 0, {0}}, {DTYPE_F32, 2, {4, 9}}, {DTYPE_I32, 1, {4}}, {DTYPE_F32, 3, {4, 9, 3}}},
       4,
       {{DTYPE_F32, 2, {4, 9}}},
       1},
      {"correct_count",
       {.alpha = 0},
       {{DTYPE_BF16, 2, {4, 9}}, {DTYPE_I32, 1, {4}}},
       2,
       {{DTYPE_F32, 0, {0}}},
       1},
      {"cast", {.dtype = DTYPE_BF16}, {{DTYPE_F32, 0, {0}}}, 1, {{DTYPE_BF16, 0, {0}}}, 1},
      {"fill",
       {.shape = {2, 3}, .rank = 2, .dtype = DTYPE_I64},
       {{.rank = 0}},
       0,
       {{DTYPE_I64, 2, {2, 3}}},
       1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("case");
    Node *node;
    expect_ok(add_case(graph, &cases[i], &node));
    assert_int_equal(node->output_count, cases[i].output_count);
    for (int32_t k = 0; k < node->output_count; k++) {
      const Shaped *expected = &cases[i].outputs[k];
      expect_tensor(node->outputs[k], expected->dtype, expected->rank, expected->shape);
      bool shared = node->input_count > 0 && node->outputs[k]->storage == node->inputs[0]->storage;
      assert_int_equal(shared, strcmp(node->op->name, "reshape") == 0);
      assert_int_equal(shared, vl_node_is_view(node));
      assert_ptr_equal(strstr(node->outputs[k]->name, "layer."), node->outputs[k]->name);
    }
    vl_graph_destroy(&graph);
  }
}

/* ---- Costs, printing --------------------------------------------------------------------------------------------- */

static void costs_follow_shapes(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("costs");
  Tensor *x = given(graph, DTYPE_F32, 2, (int64_t[]){8, 5}),
         *w = given(graph, DTYPE_F32, 2, (int64_t[]){7, 5});
  Tensor *b = given(graph, DTYPE_F32, 1, (int64_t[]){7}), *y, *view;
  expect_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, w, b}, 3, &y));
  assert_int_equal(vl_node_flops(y->producer), 2 * 8 * 7 * 5 + 8 * 7);
  assert_int_equal(vl_node_bytes(y->producer), 4 * (8 * 5 + 7 * 5 + 7 + 8 * 7));
  Tensor *volume = given(graph, DTYPE_F32, 5, (int64_t[]){2, 6, 4, 5, 7}), *up;
  Tensor *windows = given(graph, DTYPE_F32, 5, (int64_t[]){6, 4, 2, 2, 2});
  expect_ok(vl_conv_transpose(graph, volume, windows, NULL, 2, 0, 2, &up));
  assert_int_equal(vl_node_flops(up->producer), 2 * (2 * 6 * 4 * 5 * 7) * (4 * 2 * 2 * 2));
  expect_ok(vl_apply(graph, "reshape", &(OpParams){.shape = {56}, .rank = 1}, &y, 1, &view));
  assert_int_equal(vl_node_flops(view->producer), 0);
  assert_int_equal(vl_node_bytes(view->producer), 0);
  expect_ok(vl_apply(graph, "relu", NULL, &view, 1, &y));
  assert_int_equal(vl_node_flops(y->producer), 56);
  /* Counts that do not fit stop at the largest number. */
  Tensor *large = given(graph, DTYPE_F32, 2, (int64_t[]){INT64_C(1) << 28, INT64_C(1) << 28}), *square;
  OpParams product = {.dtype = DTYPE_F32};
  expect_ok(vl_apply(graph, "matmul", &product, (Tensor *[]){large, large}, 2, &square));
  assert_int_equal(vl_node_flops(square->producer), INT64_MAX);
  vl_graph_destroy(&graph);
}

/* To be freed. */
static char *printed(const Graph *graph, const Schedule *schedule, bool dot) {
  char *text;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  assert_non_null(out);
  if (schedule != NULL)
    vl_schedule_print(schedule, out);
  else if (dot)
    vl_graph_print_dot(graph, out);
  else
    vl_graph_print(graph, out);
  fclose(out);
  return text;
}

static size_t count_text(const char *text, const char *piece) {
  size_t count = 0;
  while ((text = strstr(text, piece)) != NULL) {
    text++;
    count++;
  }
  return count;
}

static void prints_have_a_line_for_each(void **state) {
  (void)state;
  Program program;
  expect_ok(build_every_op(&program));
  size_t nodes = (size_t)program.graph->node_count;
  char *text = printed(program.graph, NULL, false);
  assert_int_equal(count_text(text, " FLOP, "), nodes);
  assert_non_null(strstr(text, "stride=1,1,0 padding=1,1,0 groups=2 block=1"));
  assert_non_null(strstr(text, "rate=0.1 random_scope=block.dropout"));
  free(text);
  text = printed(program.graph, NULL, true);
  assert_int_equal(count_text(text, "tooltip="), nodes);
  assert_string_equal(text + strlen(text) - 2, "}\n");
  free(text);
  Schedule *schedule;
  expect_ok(vl_schedule_build(&program, &schedule));
  text = printed(NULL, schedule, false);
  assert_int_equal(count_text(text, "\n"), schedule->instance_count + 1);
  free(text);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(table_is_the_contract),       cmocka_unit_test(every_op_is_in_the_sample),
      cmocka_unit_test(ops_make_their_outputs),      cmocka_unit_test(costs_follow_shapes),
      cmocka_unit_test(prints_have_a_line_for_each),
  };
  return cmocka_run_group_tests_name("ops_shapes", tests, NULL, NULL);
}
