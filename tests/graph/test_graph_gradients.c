/* Which nodes the gradients of ops are made of. Their numbers are checked on the reference device. */
#include "graph/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static Tensor *parameter(Graph *graph, const char *name, DType dtype, int32_t rank, const int64_t *shape) {
  return vl_graph_parameter(graph, name, ROLE_PARAMETER, dtype, rank, shape, (Init){0});
}

/* A program whose loss is the sum of y. */
static Program summed(Graph *graph, Tensor *y, DType dtype) {
  Program program;
  vl_program_init(&program, graph);
  OpParams params = {.axis_count = y->rank, .dtype = dtype};
  for (int32_t i = 0; i < y->rank; i++)
    params.axes[i] = i;
  vl_graph_set_scope(graph, "loss");
  expect_ok(vl_apply(graph, "sum", &params, &y, 1, &program.loss));
  return program;
}

/* The n-th backward node of an op; NULL when there are fewer. */
static Node *backward_node(const Graph *graph, const char *op, int32_t n) {
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (node->segment == SEGMENT_BACKWARD && strcmp(node->op->name, op) == 0 && n-- == 0) return node;
  }
  return NULL;
}

/* Every parameter has a gradient of its shape and type, and the graph is sound. */
static void expect_gradients(const Program *program, int32_t count) {
  assert_int_equal(program->gradient_count, count);
  for (int32_t i = 0; i < count; i++) {
    const ParameterGradient *pair = &program->gradients[i];
    assert_true(vl_tensor_same_shape(pair->parameter, pair->gradient));
    assert_int_equal(pair->parameter->dtype, pair->gradient->dtype);
  }
  expect_ok(vl_graph_check(program->graph));
}

/* Weight gradient first lets the saved input go before the data gradient is made. */
static void conv_and_linear_keep_the_order_asked_for(void **state) {
  (void)state;
  for (int weight_first = 0; weight_first < 2; weight_first++) {
    Graph *graph = vl_graph_create("order");
    Tensor *x = parameter(graph, "x", DTYPE_F32, 4, (int64_t[]){2, 3, 5, 5});
    Tensor *w = parameter(graph, "w", DTYPE_F32, 4, (int64_t[]){4, 3, 3, 3});
    Tensor *v = parameter(graph, "v", DTYPE_F32, 2, (int64_t[]){7, 4}), *y;
    vl_graph_set_scope(graph, "conv");
    expect_ok(vl_conv(graph, x, w, 2, 1, 1, &y));
    expect_ok(vl_apply(graph, "global_avg_pool", NULL, &y, 1, &y));
    vl_graph_set_scope(graph, "fc");
    expect_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){y, v}, 2, &y));
    Program program = summed(graph, y, DTYPE_F32);
    program.weight_gradient_first = weight_first == 1;
    expect_ok(vl_program_differentiate(&program));
    expect_gradients(&program, 3);
    const Node *data = backward_node(graph, "conv_backward_data", 0);
    const Node *weights = backward_node(graph, "conv_backward_weights", 0);
    assert_int_equal(weights->position < data->position, weight_first);
    assert_string_equal(weights->scope, "conv");
    const Node *first = backward_node(graph, "matmul", 0);
    assert_int_equal(first->params.transpose_a, weight_first); /* dy^T x is the weights' */
    assert_string_equal(first->scope, "fc");
    vl_program_destroy(&program);
  }
}

/* What an apply node is built with, and what its backward node must read for the mask. */
typedef struct NormCase {
  bool relu, residual;
  int32_t input_count;
  bool beta, y, dresidual;
} NormCase;

static void batch_norm_backward_reads_what_the_mask_needs(void **state) {
  (void)state;
  static const NormCase cases[] = {
      {.relu = false, .residual = false, .input_count = 5},
      {.relu = true, .residual = false, .input_count = 6, .beta = true},
      {.relu = true, .residual = true, .input_count = 7, .y = true, .dresidual = true},
      {.relu = false, .residual = true, .input_count = 5},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("norm");
    Tensor *x = parameter(graph, "x", DTYPE_BF16, 4, (int64_t[]){2, 3, 5, 5});
    Tensor *residual = parameter(graph, "residual", DTYPE_BF16, 4, x->shape);
    Tensor *gamma = parameter(graph, "gamma", DTYPE_F32, 1, (int64_t[]){3});
    Tensor *beta = parameter(graph, "beta", DTYPE_F32, 1, (int64_t[]){3}), *y;
    if (!cases[i].residual) residual->storage->role = ROLE_INPUT;
    Node *stats;
    expect_ok(vl_graph_add(graph, "batch_norm_stats", NULL, &x, 1, &stats));
    OpParams params = {.epsilon = 1e-5, .relu = cases[i].relu};
    Tensor *inputs[] = {x, stats->outputs[0], stats->outputs[1], gamma, beta, residual};
    expect_ok(vl_apply(graph, "batch_norm_apply", &params, inputs, cases[i].residual ? 6 : 5, &y));
    Program program = summed(graph, y, DTYPE_F32);
    expect_ok(vl_program_differentiate(&program));
    expect_gradients(&program, cases[i].residual ? 4 : 3);
    const Node *backward = backward_node(graph, "batch_norm_backward", 0);
    assert_null(backward_node(graph, "batch_norm_backward", 1));
    assert_int_equal(backward->input_count, cases[i].input_count);
    assert_ptr_equal(backward->inputs[5], cases[i].beta ? beta : NULL);
    assert_ptr_equal(backward->inputs[6], cases[i].y ? y : NULL);
    assert_int_equal(backward->output_count, cases[i].dresidual ? 4 : 3);
    /* Without a ReLU the residual's gradient is dy itself. */
    if (cases[i].residual && !cases[i].dresidual)
      assert_ptr_equal(program.gradients[1].gradient, backward->inputs[0]);
    vl_program_destroy(&program);
  }
}

static void evaluation_batch_norm_has_no_gradient(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("norm");
  Tensor *x = parameter(graph, "x", DTYPE_F32, 2, (int64_t[]){2, 3}), *y;
  vl_graph_set_scope(graph, "bn");
  expect_ok(vl_batch_norm(graph, x, false, 1e-5, 0.1, &y));
  Program program = summed(graph, y, DTYPE_F32);
  Status status = vl_program_differentiate(&program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "batch_norm_apply in bn"));
  assert_non_null(strstr(status.message, "evaluation mode"));
  vl_program_destroy(&program);
}

/* Sizes that all differ: a transposition in the wrong place does not fit. */
static void matmul_gradients_fit_for_every_transposition(void **state) {
  (void)state;
  for (int64_t bits = 0; bits < 4; bits++) {
    int64_t ta = bits & 1, tb = bits >> 1;
    Graph *graph = vl_graph_create("matmul");
    int64_t a_shape[] = {2, ta ? 5 : 3, ta ? 3 : 5}, b_shape[] = {2, tb ? 7 : 5, tb ? 5 : 7};
    Tensor *a = parameter(graph, "a", DTYPE_BF16, 3, a_shape),
           *b = parameter(graph, "b", DTYPE_BF16, 3, b_shape);
    OpParams params = {.transpose_a = ta, .transpose_b = tb, .dtype = DTYPE_F32};
    Tensor *y;
    expect_ok(vl_apply(graph, "matmul", &params, (Tensor *[]){a, b}, 2, &y));
    Program program = summed(graph, y, DTYPE_F32);
    expect_ok(vl_program_differentiate(&program));
    expect_gradients(&program, 2);
    vl_program_destroy(&program);
  }
}

/* However a linear layer's rows are counted: the input's gradient is made in its own shape, the weights' is
 * one product. */
static void rows_of_any_shape_are_one_product(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("rows");
  Tensor *x = parameter(graph, "x", DTYPE_F32, 4, (int64_t[]){2, 3, 4, 5});
  Tensor *w = parameter(graph, "w", DTYPE_F32, 2, (int64_t[]){7, 5});
  Tensor *b = parameter(graph, "b", DTYPE_F32, 1, (int64_t[]){7}), *y;
  expect_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, w, b}, 3, &y));
  Program program = summed(graph, y, DTYPE_F32);
  expect_ok(vl_program_differentiate(&program));
  expect_gradients(&program, 3);
  for (int32_t i = 0; i < 2; i++)
    assert_string_equal(program.gradients[i].gradient->producer->op->name, "matmul");
  assert_int_equal(vl_node_flops(program.gradients[1].gradient->producer), 2 * 24 * 5 * 7);
  assert_int_equal(program.gradients[1].gradient->producer->inputs[1]->storage->id, x->storage->id);
  vl_program_destroy(&program);
}

/* fp32 weights used in bf16: their gradients arrive in fp32, through the cast's own gradient. */
static void casts_are_undone(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("cast");
  Tensor *x = parameter(graph, "x", DTYPE_F32, 2, (int64_t[]){2, 3});
  Tensor *w = parameter(graph, "w", DTYPE_F32, 2, (int64_t[]){5, 3});
  Tensor *b = parameter(graph, "b", DTYPE_F32, 1, (int64_t[]){5}), *low_x, *low_w, *y;
  OpParams low = {.dtype = DTYPE_BF16};
  expect_ok(vl_apply(graph, "cast", &low, &x, 1, &low_x));
  expect_ok(vl_apply(graph, "cast", &low, &w, 1, &low_w));
  expect_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){low_x, low_w, b}, 3, &y));
  Program program = summed(graph, y, DTYPE_F32);
  expect_ok(vl_program_differentiate(&program));
  expect_gradients(&program, 3);
  assert_int_equal(backward_node(graph, "sum", 0)->outputs[0]->dtype, DTYPE_F32); /* the bias needs no cast */
  vl_program_destroy(&program);
}

/* The shapes that moving and repeating ops give back, scalars among them. */
static void moves_are_undone(void **state) {
  (void)state;
  static const struct {
    const char *op;
    OpParams params;
  } cases[] = {
      {"reshape", {.shape = {6, 4}, .rank = 2}},
      {"transpose", {.axes = {2, 0, 1}}},
      {"slice", {.start = {0, 1, 1}, .shape = {2, 2, 1}, .rank = 3}},
      {"pad", {.start = {1, 0, 2}, .shape = {4, 3, 9}, .rank = 3}},
      {"broadcast", {.shape = {7, 2, 3, 4}, .rank = 4}},
      {"sum", {.axes = {0, 2}, .axis_count = 2, .dtype = DTYPE_F32}},
      {"sum", {.axes = {0, 1, 2}, .axis_count = 3, .dtype = DTYPE_F64}},
      {"copy", {.alpha = 0}},
      {"scale", {.alpha = 3}},
      {"gelu", {.alpha = 0}},
      {"tanh", {.alpha = 0}},
      {"rsqrt", {.epsilon = 3}},
      {"softmax", {.alpha = 2}},
      {"dropout", {.rate = 0.5, .random_scope = "mask"}},
      {"global_avg_pool", {.alpha = 0}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("moves");
    Tensor *x = parameter(graph, "x", DTYPE_F32, 3, (int64_t[]){2, 3, 4}), *y;
    expect_ok(vl_apply(graph, cases[i].op, &cases[i].params, &x, 1, &y));
    Program program;
    if (y->rank > 0)
      program = summed(graph, y, y->dtype);
    else
      vl_program_init(&program, graph);
    program.loss = y->rank > 0 ? program.loss : y;
    expect_ok(vl_program_differentiate(&program));
    expect_gradients(&program, 1);
    vl_program_destroy(&program);
  }
}

/* The mask of backward is that of forward: same op, same rate, same name. */
static void dropout_is_its_own_gradient(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("dropout");
  Tensor *x = parameter(graph, "x", DTYPE_F32, 2, (int64_t[]){2, 3}), *y;
  OpParams params = {.rate = 0.25, .random_scope = "layer.mask"};
  vl_graph_set_scope(graph, "layer");
  expect_ok(vl_apply(graph, "dropout", &params, &x, 1, &y));
  Program program = summed(graph, y, DTYPE_F32);
  expect_ok(vl_program_differentiate(&program));
  const Node *backward = backward_node(graph, "dropout", 0);
  assert_true(backward->params.rate == 0.25);
  assert_string_equal(backward->params.random_scope, "layer.mask");
  assert_string_equal(backward->scope, "layer");
  vl_program_destroy(&program);
}

/* What backward of attention reads: the result and the logarithm of each row's sum, no probabilities. */
static void attention_saves_no_probabilities(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("attention");
  Tensor *qkv = parameter(graph, "qkv", DTYPE_BF16, 5, (int64_t[]){2, 7, 3, 4, 5});
  Tensor *mask = vl_graph_tensor(graph, "mask", ROLE_INPUT, DTYPE_F32, 2, (int64_t[]){2, 7});
  OpParams params = {.alpha = 0.5, .rate = 0.25, .random_scope = "layer.mask"};
  Node *node;
  vl_graph_set_scope(graph, "layer");
  expect_ok(vl_graph_add(graph, "attention", &params, (Tensor *[]){qkv, mask}, 2, &node));
  Program program = summed(graph, node->outputs[0], DTYPE_F32);
  expect_ok(vl_program_differentiate(&program));
  expect_gradients(&program, 1);
  const Node *backward = backward_node(graph, "attention_backward", 0);
  Tensor *expected[] = {qkv, node->outputs[0], node->outputs[1], mask};
  for (int32_t i = 0; i < 4; i++)
    assert_ptr_equal(backward->inputs[1 + i], expected[i]);
  assert_true(backward->params.rate == 0.25 && backward->params.alpha == 0.5);
  assert_string_equal(backward->params.random_scope, "layer.mask");
  /* bf16: y; f32: lse and the mask; qkv is a parameter here. */
  assert_int_equal(vl_program_saved_bytes(&program), 2 * 2 * 7 * 4 * 5 + 4 * 2 * 4 * 7 + 4 * 2 * 7);
  vl_program_destroy(&program);
}

static void attention_has_no_gradient_of_its_mask(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("attention");
  Tensor *qkv = parameter(graph, "qkv", DTYPE_F32, 5, (int64_t[]){2, 7, 3, 4, 5});
  Tensor *mask = parameter(graph, "mask", DTYPE_F32, 2, (int64_t[]){2, 7});
  Node *node;
  vl_graph_set_scope(graph, "layer");
  expect_ok(vl_graph_add(graph, "attention", NULL, (Tensor *[]){qkv, mask}, 2, &node));
  Program program = summed(graph, node->outputs[0], DTYPE_F32);
  Status status = vl_program_differentiate(&program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "attention in layer: no gradient of the mask"));
  vl_program_destroy(&program);
}

/* Padding is given, not learned: its gradient would be a sum nobody asked for. */
static void softmax_has_no_gradient_of_its_mask(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("softmax");
  Tensor *x = parameter(graph, "x", DTYPE_F32, 2, (int64_t[]){3, 4});
  Tensor *mask = parameter(graph, "mask", DTYPE_F32, 1, (int64_t[]){4}), *y;
  vl_graph_set_scope(graph, "layer");
  expect_ok(vl_apply(graph, "softmax", NULL, (Tensor *[]){x, mask}, 2, &y));
  Program program = summed(graph, y, DTYPE_F32);
  Status status = vl_program_differentiate(&program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "softmax in layer: no gradient of the mask"));
  vl_program_destroy(&program);
}

static Tensor *lookup(Graph *graph, Tensor *table, const char *name) {
  Tensor *ids = vl_graph_tensor(graph, name, ROLE_INPUT, DTYPE_I32, 1, (int64_t[]){7}), *rows;
  expect_ok(vl_apply(graph, "embedding", NULL, (Tensor *[]){table, ids}, 2, &rows));
  return rows;
}

/* What arrives at a table after the first gradient is added to it where it lies if so asked, unless another
 * tensor has that gradient too. */
static void embeddings_add_onto_what_has_arrived(void **state) {
  (void)state;
  for (int way = 0; way < 3; way++) {
    bool asked = way > 0, shared = way == 2;
    Graph *graph = vl_graph_create("tied");
    Tensor *table = parameter(graph, "table", DTYPE_F32, 2, (int64_t[]){7, 4});
    Tensor *other = parameter(graph, "other", DTYPE_F32, 2, table->shape), *whole, *y;
    Tensor *first = lookup(graph, table, "ids1"), *second = lookup(graph, table, "ids2");
    expect_ok(vl_apply(graph, "mul", NULL, (Tensor *[]){first, second}, 2, &y));
    expect_ok(vl_apply(graph, shared ? "add" : "mul", NULL, (Tensor *[]){table, other}, 2, &whole));
    expect_ok(vl_apply(graph, "mul", NULL, (Tensor *[]){whole, y}, 2, &y));
    Program program = summed(graph, y, DTYPE_F32);
    program.gradients_onto = asked;
    expect_ok(vl_program_differentiate(&program));
    expect_gradients(&program, 2);
    const Node *of_second = backward_node(graph, "embedding_backward", 0);
    const Node *of_first = backward_node(graph, "embedding_backward", 1);
    assert_int_equal(of_second->input_count, asked && !shared ? 3 : 2);
    assert_int_equal(of_first->input_count, asked ? 3 : 2);
    if (!asked) {
      assert_non_null(backward_node(graph, "add", 1));
      vl_program_destroy(&program);
      continue;
    }
    const Tensor *onto = shared ? backward_node(graph, "add", 0)->outputs[0] : of_second->outputs[0];
    assert_ptr_equal(of_first->inputs[2], onto);
    assert_ptr_equal(of_first->outputs[0]->storage, onto->storage);
    assert_ptr_equal(program.gradients[0].gradient, of_first->outputs[0]);
    assert_ptr_not_equal(program.gradients[1].gradient->storage, onto->storage);
    Schedule *schedule;
    expect_ok(vl_schedule_build(&program, &schedule));
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(conv_and_linear_keep_the_order_asked_for),
      cmocka_unit_test(batch_norm_backward_reads_what_the_mask_needs),
      cmocka_unit_test(evaluation_batch_norm_has_no_gradient),
      cmocka_unit_test(matmul_gradients_fit_for_every_transposition),
      cmocka_unit_test(rows_of_any_shape_are_one_product),
      cmocka_unit_test(casts_are_undone),
      cmocka_unit_test(moves_are_undone),
      cmocka_unit_test(dropout_is_its_own_gradient),
      cmocka_unit_test(attention_saves_no_probabilities),
      cmocka_unit_test(attention_has_no_gradient_of_its_mask),
      cmocka_unit_test(softmax_has_no_gradient_of_its_mask),
      cmocka_unit_test(embeddings_add_onto_what_has_arrived),
  };
  return cmocka_run_group_tests_name("graph_gradients", tests, NULL, NULL);
}
