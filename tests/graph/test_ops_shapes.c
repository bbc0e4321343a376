/* What each op makes of shapes and types, what it refuses, and what it costs. */
#include "every_op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static void expect_invalid(Status status, const char *text) {
  if (status.code != VL_INVALID || strstr(status.message, text) == NULL)
    fail_msg("expected a refusal with '%s', got %s: %s", text, vl_status_name(status.code), status.message);
}

static Tensor *given(Graph *graph, DType dtype, int32_t rank, const int64_t *shape) {
  return vl_graph_tensor(graph, "given", ROLE_INPUT, dtype, rank, shape);
}

static void expect_tensor(const Tensor *tensor, DType dtype, int32_t rank, const int64_t *shape) {
  assert_int_equal(tensor->dtype, dtype);
  assert_int_equal(tensor->rank, rank);
  for (int32_t i = 0; i < rank; i++)
    assert_int_equal(tensor->shape[i], shape[i]);
}

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

/* ---- Convolution ------------------------------------------------------------------------------------------ */

/* Fault case E1: groups that are no divisor of both channel counts are refused with the three numbers, never
 * with an arithmetic fault. */
static void groups_divide_both_channel_counts_e1(void **state) {
  (void)state;
  static const struct {
    int64_t groups;
    bool accepted;
  } cases[] = {{4, true}, {1, true}, {3, false}, {12, false}, {8, false}, {0, false}, {-4, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("groups");
    int64_t groups = cases[i].groups, per_group = groups >= 1 && groups <= 8 ? 8 / groups : 1;
    Tensor *x = given(graph, DTYPE_F32, 5, (int64_t[]){1, 8, 4, 4, 4}), *y;
    Tensor *w = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 5,
                                   (int64_t[]){12, per_group, 3, 3, 3}, (Init){0});
    Status status = vl_conv(graph, x, w, 1, 1, groups, &y);
    if (cases[i].accepted) {
      expect_ok(status);
      assert_int_equal(vl_graph_parameter_count(graph), 12 * (8 / groups) * 27);
      if (groups == 4) assert_int_equal(vl_graph_parameter_count(graph), 648);
    } else {
      char numbers[64];
      snprintf(numbers, sizeof numbers, "groups = %lld ", (long long)groups);
      expect_invalid(status, numbers);
      expect_invalid(status, "input 8 and output 12");
      assert_int_equal(vl_status_exit_code(status.code), 2);
    }
    vl_graph_destroy(&graph);
  }
}

/* Fault case E2: weights are divided by the groups once, multiply-adds follow the weights; FLOPs are twice
 * the multiply-adds, in forward and both gradients. */
static void groups_are_divided_once_e2(void **state) {
  (void)state;
  static const struct {
    int64_t groups, weights, multiply_adds;
  } cases[] = {{4, 3456, 1769472}, {1, 13824, 7077888}};
  for (size_t i = 0; i < 2; i++) {
    Graph *graph = vl_graph_create("counts");
    int64_t x_shape[] = {1, 16, 8, 8, 8}, w_shape[] = {32, 16 / cases[i].groups, 3, 3, 3};
    Tensor *x = given(graph, DTYPE_F32, 5, x_shape), *y, *unused;
    Tensor *w = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 5, w_shape, (Init){0});
    expect_ok(vl_conv(graph, x, w, 1, 1, cases[i].groups, &y));
    OpParams params = y->producer->params;
    params.rank = 5;
    memcpy(params.shape, x_shape, sizeof x_shape);
    expect_ok(vl_apply(graph, "conv_backward_data", &params, (Tensor *[]){y, w}, 2, &unused));
    memcpy(params.shape, w_shape, sizeof w_shape);
    expect_ok(vl_apply(graph, "conv_backward_weights", &params, (Tensor *[]){x, y}, 2, &unused));
    assert_int_equal(vl_graph_parameter_count(graph), cases[i].weights);
    for (int32_t k = 0; k < 3; k++)
      assert_int_equal(vl_node_flops(graph->nodes[k]), 2 * cases[i].multiply_adds);
    vl_graph_destroy(&graph);
  }
}

/* x is normalised with all of mean, var, gamma and beta, or with none; that costs what batch_norm_apply does.
 */
static void a_weight_gradient_normalises_with_all_or_nothing(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("normalised");
  OpParams params = {.stride = {1, 1}, .groups = 1, .shape = {7, 5, 3, 3}, .rank = 4};
  Tensor *x = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 5, 4, 6}), *dw;
  Tensor *dy = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 7, 2, 4});
  Tensor *statistic = given(graph, DTYPE_F32, 1, (int64_t[]){5}),
         *low = given(graph, DTYPE_BF16, 1, (int64_t[]){5});
  Tensor *other = given(graph, DTYPE_F32, 1, (int64_t[]){6});
  Tensor *inputs[] = {x, dy, statistic, statistic, low, statistic};
  expect_ok(vl_apply(graph, "conv_backward_weights", &params, inputs, 2, &dw));
  int64_t products = vl_node_flops(dw->producer), bytes = vl_node_bytes(dw->producer);
  params.relu = 1;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 2, &dw), "relu = 1 without mean");
  expect_ok(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw));
  assert_int_equal(vl_node_flops(dw->producer), products + 3 * vl_tensor_elements(x));
  assert_int_equal(vl_node_bytes(dw->producer), bytes + 3 * 5 * 4 + 5 * 2);
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 5, &dw), "beta is missing");
  inputs[2] = low;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "mean is bf16");
  inputs[2] = NULL;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "mean is missing");
  inputs[2] = statistic;
  inputs[5] = other;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw),
                 "beta is (6) f32; expected (5)");
  inputs[5] = statistic;
  params.epsilon = -1.0;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "epsilon = -1");
  params.epsilon = 0.0;
  params.relu = 2;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "relu = 2");
  vl_graph_destroy(&graph);
}

static void windows_count_padding_and_stride(void **state) {
  (void)state;
  static const struct {
    int64_t size, kernel, stride, padding, output;
  } cases[] = {{224, 7, 2, 3, 112}, {56, 3, 1, 1, 56}, {56, 1, 2, 0, 28}, {5, 5, 3, 0, 1}, {4, 3, 2, 0, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("windows");
    int64_t size = cases[i].size, kernel = cases[i].kernel, output = cases[i].output;
    Tensor *x = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 4, size, size}), *y;
    Tensor *w = given(graph, DTYPE_BF16, 4, (int64_t[]){6, 4, kernel, kernel});
    expect_ok(vl_conv(graph, x, w, cases[i].stride, cases[i].padding, 1, &y));
    expect_tensor(y, DTYPE_BF16, 4, (int64_t[]){2, 6, output, output});
    vl_graph_destroy(&graph);
  }
}

/* ---- Other ops ---------------------------------------------------------------------------------------------- */

/* One op on given inputs: what comes out. */
typedef struct Shaped {
  DType dtype;
  int32_t rank;
  int64_t shape[VL_MAX_DIMS];
} Shaped;

typedef struct OpCase {
  const char *op;
  OpParams params;
  Shaped inputs[VL_MAX_INPUTS];
  int32_t input_count;
  Shaped outputs[VL_MAX_OUTPUTS];
  int32_t output_count;
} OpCase;

static Status add_case(Graph *graph, const OpCase *op_case, Node **node) {
  Tensor *inputs[VL_MAX_INPUTS];
  for (int32_t i = 0; i < op_case->input_count; i++)
    inputs[i] = given(graph, op_case->inputs[i].dtype, op_case->inputs[i].rank, op_case->inputs[i].shape);
  vl_graph_set_scope(graph, "layer");
  return vl_graph_add(graph, op_case->op, &op_case->params, inputs, op_case->input_count, node);
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
      {"softmax_cross_entropy",
       {.alpha = 0},
       {{DTYPE_F32, 2, {4, 9}}, {DTYPE_I32, 1, {4}}},
       2,
       {{DTYPE_F32, 0, {0}}, {DTYPE_F32, 2, {4, 9}}},
       2},
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
      assert_int_equal(shared, node->op->is_view);
      assert_ptr_equal(strstr(node->outputs[k]->name, "layer."), node->outputs[k]->name);
    }
    vl_graph_destroy(&graph);
  }
}

/* A refusal names the op, its scope and the number that is wrong; nothing is added to the graph. */
static void ops_refuse_what_clashes(void **state) {
  (void)state;
  static const struct {
    OpCase op_case;
    const char *text;
  } cases[] = {
      {{.op = "add", .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {4}}}, .input_count = 2},
       "(3) f32 and given.2 (4) f32"},
      {{.op = "mul", .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_BF16, 1, {3}}}, .input_count = 2},
       "agree in shape and type"},
      {{.op = "add", .inputs = {{DTYPE_F32, 2, {3, 1}}, {DTYPE_F32, 2, {3, 4}}}, .input_count = 2},
       "agree in shape and type"},
      {{.op = "mul", .inputs = {{DTYPE_F32, 1, {4}}, {DTYPE_F32, 2, {1, 4}}}, .input_count = 2},
       "agree in shape and type"},
      {{.op = "rsqrt", .params = {.epsilon = -1}, .inputs = {{DTYPE_F32, 1, {3}}}, .input_count = 1},
       "epsilon = -1"},
      {{.op = "relu", .inputs = {{DTYPE_I32, 1, {3}}}, .input_count = 1}, "floating-point"},
      {{.op = "batch_norm_stats", .inputs = {{DTYPE_F32, 1, {3}}}, .input_count = 1}, "1 dimensions"},
      {{.op = "batch_norm_update",
        .params = {.momentum = 0.1, .count = 1},
        .inputs = {{DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_I64, 1, {1}}},
        .input_count = 5},
       "count = 1"},
      {{.op = "batch_norm_backward",
        .params = {.relu = 1},
        .inputs = {{DTYPE_F32, 2, {2, 3}},
                   {DTYPE_F32, 2, {2, 3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}}},
        .input_count = 5},
       "needs y, or beta"},
      {{.op = "batch_norm_backward",
        .inputs = {{DTYPE_BF16, 2, {2, 3}},
                   {DTYPE_BF16, 2, {2, 3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_BF16, 2, {2, 3}},
                   {DTYPE_F32, 2, {2, 3}}},
        .input_count = 8},
       "agree in shape and type"},
      {{.op = "layer_norm",
        .inputs = {{DTYPE_F32, 2, {2, 3}}, {DTYPE_F32, 1, {2}}, {DTYPE_F32, 1, {3}}},
        .input_count = 3},
       "gamma is (2) f32; expected (3) f32"},
      {{.op = "layer_norm",
        .inputs = {{DTYPE_F32, 0, {0}}, {DTYPE_F32, 1, {1}}, {DTYPE_F32, 1, {1}}},
        .input_count = 3},
       "x is a scalar"},
      {{.op = "layer_norm",
        .params = {.epsilon = -1},
        .inputs = {{DTYPE_F32, 2, {2, 3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
        .input_count = 3},
       "epsilon = -1"},
      {{.op = "layer_norm_backward",
        .inputs = {{DTYPE_F32, 2, {2, 3}},
                   {DTYPE_F32, 2, {2, 3}},
                   {DTYPE_F32, 1, {3}},
                   {DTYPE_F32, 1, {2}},
                   {DTYPE_F32, 1, {3}}},
        .input_count = 5},
       "mean is (3) f32; expected (2) f32"},
      {{.op = "max_pool",
        .params = {.kernel = {3, 3}, .stride = {2, 2}, .dtype = DTYPE_F32},
        .inputs = {{DTYPE_F32, 4, {1, 1, 8, 8}}},
        .input_count = 1},
       "must be u8 or i64"},
      {{.op = "max_pool",
        .params = {.kernel = {17, 17}, .stride = {1, 1}, .dtype = DTYPE_U8},
        .inputs = {{DTYPE_F32, 4, {1, 1, 32, 32}}},
        .input_count = 1},
       "289"},
      {{.op = "avg_pool",
        .params = {.kernel = {2, 2}, .stride = {2, 2}, .padding = {2, 2}},
        .inputs = {{DTYPE_F32, 4, {1, 1, 8, 8}}},
        .input_count = 1},
       "padding 2 is more than half of kernel 2"},
      {{.op = "avg_pool",
        .params = {.kernel = {2, 2}, .stride = {0, 2}},
        .inputs = {{DTYPE_F32, 4, {1, 1, 8, 8}}},
        .input_count = 1},
       "stride 0"},
      {{.op = "avg_pool",
        .params = {.kernel = {9, 9}, .stride = {1, 1}},
        .inputs = {{DTYPE_F32, 4, {1, 1, 8, 8}}},
        .input_count = 1},
       "larger than the input 8"},
      {{.op = "linear", .inputs = {{DTYPE_F32, 2, {2, 3}}, {DTYPE_F32, 2, {5, 4}}}, .input_count = 2},
       "expected (5, 3)"},
      {{.op = "linear", .inputs = {{DTYPE_F32, 1, {4}}, {DTYPE_F32, 2, {5, 4}}}, .input_count = 2},
       "x has 1 dimensions"},
      {{.op = "matmul",
        .params = {.transpose_a = 1},
        .inputs = {{DTYPE_F32, 3, {2, 3, 4}}, {DTYPE_F32, 2, {3, 5}}},
        .input_count = 2},
       "where a is not transposed"},
      {{.op = "matmul", .inputs = {{DTYPE_F32, 3, {2, 3, 4}}, {DTYPE_F32, 2, {3, 5}}}, .input_count = 2},
       "inner sizes"},
      {{.op = "matmul", .inputs = {{DTYPE_F32, 2, {2, 3}}, {DTYPE_F32, 2, {4, 5}}}, .input_count = 2},
       "inner sizes"},
      {{.op = "matmul", .inputs = {{DTYPE_F32, 1, {2}}, {DTYPE_F32, 1, {2}}}, .input_count = 2},
       "at least 2"},
      {{.op = "sum",
        .params = {.axes = {1, 0}, .axis_count = 2},
        .inputs = {{DTYPE_F32, 2, {2, 3}}},
        .input_count = 1},
       "ascend"},
      {{.op = "broadcast",
        .params = {.shape = {4}, .rank = 1},
        .inputs = {{DTYPE_F32, 1, {3}}},
        .input_count = 1},
       "size 3"},
      {{.op = "reshape",
        .params = {.shape = {4}, .rank = 1},
        .inputs = {{DTYPE_F32, 1, {3}}},
        .input_count = 1},
       "3 and 4 elements"},
      {{.op = "transpose", .params = {.axes = {0, 0}}, .inputs = {{DTYPE_F32, 2, {2, 3}}}, .input_count = 1},
       "each of 0 to 1 once"},
      {{.op = "slice",
        .params = {.start = {2}, .shape = {2}, .rank = 1},
        .inputs = {{DTYPE_F32, 1, {3}}},
        .input_count = 1},
       "2 elements from 2"},
      {{.op = "attention", .inputs = {{DTYPE_F32, 5, {2, 7, 2, 4, 5}}}, .input_count = 1},
       "queries, keys and values"},
      {{.op = "attention",
        .inputs = {{DTYPE_F32, 5, {2, 7, 3, 4, 5}}, {DTYPE_F32, 2, {2, 8}}},
        .input_count = 2},
       "mask is (2, 8) f32; expected (2, 7) f32"},
      {{.op = "attention",
        .inputs = {{DTYPE_BF16, 5, {2, 7, 3, 4, 5}}, {DTYPE_BF16, 2, {2, 7}}},
        .input_count = 2},
       "mask is bf16; expected f32"},
      {{.op = "attention",
        .params = {.alpha = -1},
        .inputs = {{DTYPE_F32, 5, {2, 7, 3, 4, 5}}},
        .input_count = 1},
       "alpha = -1"},
      {{.op = "attention",
        .params = {.rate = 0.5},
        .inputs = {{DTYPE_F32, 5, {2, 7, 3, 4, 5}}},
        .input_count = 1},
       "random_scope is missing"},
      {{.op = "dropout",
        .params = {.rate = 0.5, .alpha = 3, .random_scope = "mask"},
        .inputs = {{DTYPE_F32, 1, {3}}},
        .input_count = 1},
       "alpha = 3; must be 0, or 1 or 2 to make the noise"},
      {{.op = "dropout",
        .params = {.rate = 0.5, .alpha = 1, .random_scope = "mask"},
        .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
        .input_count = 2},
       "alpha = 1; must be 0, or 1 or 2 to make the noise where none is given"},
      {{.op = "attention_backward",
        .inputs = {{DTYPE_F32, 4, {2, 7, 4, 5}},
                   {DTYPE_F32, 5, {2, 7, 3, 4, 5}},
                   {DTYPE_BF16, 4, {2, 7, 4, 5}},
                   {DTYPE_F32, 3, {2, 4, 7}}},
        .input_count = 4},
       "y bf16"},
      {{.op = "dropout",
        .params = {.rate = 1, .random_scope = "mask"},
        .inputs = {{DTYPE_F32, 1, {3}}},
        .input_count = 1},
       "rate = 1"},
      {{.op = "dropout", .params = {.rate = 0.5}, .inputs = {{DTYPE_F32, 1, {3}}}, .input_count = 1},
       "random_scope is missing"},
      {{.op = "softmax_cross_entropy",
        .inputs = {{DTYPE_F32, 2, {4, 9}}, {DTYPE_I64, 1, {4}}},
        .input_count = 2},
       "labels is i64; expected i32"},
      {{.op = "residual_norm",
        .inputs = {{DTYPE_F32, 2, {3, 4}}, {DTYPE_BF16, 2, {3, 4}}, {DTYPE_F32, 1, {4}}, {DTYPE_F32, 1, {4}}},
        .input_count = 4},
       "residual is bf16; must be f32 or f32"},
      {{.op = "residual_norm",
        .params = {.rate = 0.5},
        .inputs = {{DTYPE_BF16, 2, {3, 4}}, {DTYPE_F32, 2, {3, 4}}, {DTYPE_F32, 1, {4}}, {DTYPE_F32, 1, {4}}},
        .input_count = 4},
       "random_scope is missing"},
      {{.op = "residual_norm",
        .inputs = {{DTYPE_F32, 1, {4}}, {DTYPE_F32, 1, {4}}, {DTYPE_F32, 1, {4}}, {DTYPE_F32, 1, {4}}},
        .input_count = 4},
       "x has 1 dimensions"},
      {{.op = "softmax", .inputs = {{DTYPE_F32, 0, {0}}}, .input_count = 1}, "x is a scalar"},
      {{.op = "softmax", .inputs = {{DTYPE_F32, 3, {2, 3, 4}}, {DTYPE_F32, 2, {3, 1}}}, .input_count = 2},
       "does not repeat to x (2, 3, 4)"},
      {{.op = "softmax", .inputs = {{DTYPE_F32, 3, {2, 3, 4}}, {DTYPE_F32, 2, {2, 4}}}, .input_count = 2},
       "does not repeat to x (2, 3, 4)"},
      {{.op = "softmax", .inputs = {{DTYPE_BF16, 2, {3, 4}}, {DTYPE_BF16, 1, {4}}}, .input_count = 2},
       "mask is bf16; expected f32"},
      {{.op = "embedding", .inputs = {{DTYPE_F32, 2, {9, 4}}, {DTYPE_I64, 1, {3}}}, .input_count = 2},
       "ids is (3) i64; expected i32 of 1 to 3 dimensions"},
      {{.op = "embedding",
        .inputs = {{DTYPE_F32, 2, {9, 4}}, {DTYPE_I32, 4, {1, 1, 1, 3}}},
        .input_count = 2},
       "expected i32 of 1 to 3"},
      {{.op = "embedding_backward",
        .params = {.shape = {9, 5}, .rank = 2, .dtype = DTYPE_F32},
        .inputs = {{DTYPE_F32, 2, {3, 4}}, {DTYPE_I32, 1, {3}}},
        .input_count = 2},
       "expected (3, 5)"},
      {{.op = "embedding_backward",
        .params = {.shape = {9, 4}, .rank = 2, .dtype = DTYPE_F32},
        .inputs = {{DTYPE_BF16, 2, {3, 4}}, {DTYPE_I32, 1, {3}}, {DTYPE_BF16, 2, {9, 4}}},
        .input_count = 3},
       "onto is bf16; expected f32"},
      {{.op = "gather_tokens",
        .inputs = {{DTYPE_F32, 3, {2, 9, 4}}, {DTYPE_I32, 2, {3, 5}}},
        .input_count = 2},
       "positions of 3 samples and x of 2"},
      {{.op = "gather_tokens_backward",
        .params = {.shape = {2, 9, 4}, .rank = 3},
        .inputs = {{DTYPE_F32, 3, {2, 6, 4}}, {DTYPE_I32, 2, {2, 5}}},
        .input_count = 2},
       "expected (2, 5, 4)"},
      {{.op = "fill", .params = {.shape = {1 << 30, 1 << 30}, .rank = 2}}, "makes more than"},
      {{.op = "fill", .params = {.shape = {1}, .rank = 6}}, "6 dimensions"},
      {{.op = "sgd",
        .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_BF16, 1, {3}}, {DTYPE_F32, 1, {3}}},
        .input_count = 3},
       "agree"},
      {{.op = "adamw",
        .params = {.epsilon = 1e-8},
        .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {4}}},
        .input_count = 4},
       "agree"},
      {{.op = "adamw",
        .params = {.beta2 = 1, .epsilon = 1e-8},
        .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
        .input_count = 4},
       "beta2 = 1"},
      {{.op = "adamw",
        .params = {.epsilon = 1e-50},
        .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}},
        .input_count = 4},
       "epsilon = 1e-50"},
      {{.op = "adamw_8bit",
        .params = {.epsilon = 1e-8},
        .inputs = {{DTYPE_F32, 2, {3, 9}},
                   {DTYPE_F32, 2, {3, 9}},
                   {DTYPE_U8, 2, {3, 9}},
                   {DTYPE_F32, 2, {3, 9}},
                   {DTYPE_F32, 2, {2, 1}}},
        .input_count = 5},
       "v is f32; must be u8"},
      {{.op = "adamw_8bit",
        .params = {.epsilon = 1e-8},
        .inputs = {{DTYPE_F32, 2, {30, 9}},
                   {DTYPE_F32, 2, {30, 9}},
                   {DTYPE_U8, 2, {30, 9}},
                   {DTYPE_U8, 2, {30, 9}},
                   {DTYPE_F32, 2, {2, 1}}},
        .input_count = 5},
       "expected (2, 2)"},
      {{.op = "sgd",
        .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F32, 1, {3}}, {DTYPE_F64, 0, {0}}},
        .input_count = 4},
       "factor is f64; expected f32"},
      {{.op = "square_sum", .inputs = {{DTYPE_F32, 1, {3}}, {DTYPE_F32, 0, {0}}}, .input_count = 2},
       "onto is f32; expected f64"},
      {{.op = "gradient_factor", .inputs = {{DTYPE_F32, 0, {0}}}, .input_count = 1}, "squares is f32"},
      {{.op = "gradient_factor",
        .params = {.growth = 2, .backoff = 0, .interval = 4},
        .inputs = {{DTYPE_F64, 0, {0}}, {DTYPE_F32, 0, {0}}, {DTYPE_I64, 1, {3}}},
        .input_count = 3},
       "backoff = 0"},
      {{.op = "gradient_factor",
        .params = {.growth = 2, .backoff = 0.5, .interval = 4},
        .inputs = {{DTYPE_F64, 0, {0}}, {DTYPE_F32, 0, {0}}, {DTYPE_I64, 1, {2}}},
        .input_count = 3},
       "expected (3)"},
      {{.op = "gradient_factor",
        .params = {.max_norm = -1},
        .inputs = {{DTYPE_F64, 0, {0}}},
        .input_count = 1},
       "max_norm = -1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("case");
    Node *node;
    Status status = add_case(graph, &cases[i].op_case, &node);
    char place[64];
    snprintf(place, sizeof place, "%s in layer: ", cases[i].op_case.op);
    expect_invalid(status, place);
    expect_invalid(status, cases[i].text);
    assert_int_equal(graph->node_count, 0);
    assert_int_equal(graph->tensor_count, cases[i].op_case.input_count);
    vl_graph_destroy(&graph);
  }
}

/* ---- Building blocks, costs, printing ------------------------------------------------------------------------ */

/* PyTorch's names and initial values; training adds the update in place, evaluation reads what it keeps. */
static void batch_norm_has_its_state(void **state) {
  (void)state;
  static const struct {
    const char *name;
    double value;
  } expected[] = {{"bn1.weight", 1},
                  {"bn1.bias", 0},
                  {"bn1.running_mean", 0},
                  {"bn1.running_var", 1},
                  {"bn1.num_batches_tracked", 0}};
  for (int training = 0; training < 2; training++) {
    Graph *graph = vl_graph_create("norm");
    Tensor *x = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 3, 4, 5}), *y;
    vl_graph_set_scope(graph, "bn1");
    expect_ok(vl_batch_norm(graph, x, training == 1, 1e-5, 0.1, &y));
    expect_tensor(y, DTYPE_BF16, 4, x->shape);
    for (int32_t i = 0; i < 5; i++) {
      const Storage *storage = graph->storages[1 + i];
      assert_string_equal(storage->name, expected[i].name);
      assert_true(storage->init.value == expected[i].value);
      assert_int_equal(storage->dtype, i == 4 ? DTYPE_I64 : DTYPE_F32);
      assert_int_equal(storage->role, i < 2 ? ROLE_PARAMETER : ROLE_STATISTIC);
    }
    assert_int_equal(graph->node_count, training ? 3 : 1);
    const Node *last = graph->nodes[graph->node_count - 1];
    if (training) {
      assert_int_equal(last->params.count, 40);
      for (int32_t i = 0; i < 3; i++)
        assert_ptr_equal(last->outputs[i]->storage, graph->storages[3 + i]);
    } else {
      assert_ptr_equal(last->inputs[1]->storage, graph->storages[3]);
    }
    assert_int_equal(vl_graph_parameter_count(graph), 6);
    vl_graph_destroy(&graph);
  }
}

/* Statistics of one element per channel have no unbiased variance: said, not divided by zero. */
static void batch_norm_of_one_element_is_refused(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("norm");
  Tensor *x = given(graph, DTYPE_F32, 4, (int64_t[]){1, 3, 1, 1}), *y;
  expect_invalid(vl_batch_norm(graph, x, true, 1e-5, 0.1, &y), "count = 1");
  vl_graph_destroy(&graph);
}

static void costs_follow_shapes(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("costs");
  Tensor *x = given(graph, DTYPE_F32, 2, (int64_t[]){8, 5}),
         *w = given(graph, DTYPE_F32, 2, (int64_t[]){7, 5});
  Tensor *b = given(graph, DTYPE_F32, 1, (int64_t[]){7}), *y, *view;
  expect_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, w, b}, 3, &y));
  assert_int_equal(vl_node_flops(y->producer), 2 * 8 * 7 * 5 + 8 * 7);
  assert_int_equal(vl_node_bytes(y->producer), 4 * (8 * 5 + 7 * 5 + 7 + 8 * 7));
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
      cmocka_unit_test(table_is_the_contract),
      cmocka_unit_test(every_op_is_in_the_sample),
      cmocka_unit_test(groups_divide_both_channel_counts_e1),
      cmocka_unit_test(groups_are_divided_once_e2),
      cmocka_unit_test(a_weight_gradient_normalises_with_all_or_nothing),
      cmocka_unit_test(windows_count_padding_and_stride),
      cmocka_unit_test(ops_make_their_outputs),
      cmocka_unit_test(ops_refuse_what_clashes),
      cmocka_unit_test(batch_norm_has_its_state),
      cmocka_unit_test(batch_norm_of_one_element_is_refused),
      cmocka_unit_test(costs_follow_shapes),
      cmocka_unit_test(prints_have_a_line_for_each),
  };
  return cmocka_run_group_tests_name("ops_shapes", tests, NULL, NULL);
}
