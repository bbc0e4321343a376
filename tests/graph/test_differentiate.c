/* Differentiation as a transformation of graphs: which tensors get gradients, how they meet, what is named
 * how, and what has no gradient. The numbers are checked per op in tests/kernels and for whole nets in
 * tests/engine. */
#include "tests/graph/networks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const int64_t size = 4;

static Program start(void) {
  Program program;
  vl_program_init(&program, vl_graph_create("small"));
  program.training = true;
  return program;
}

static Tensor *parameter(Program *program, const char *name) {
  return vl_graph_parameter(program->graph, name, ROLE_PARAMETER, DTYPE_F32, 1, &size, (Init){0});
}

static Tensor *apply(Program *program, const char *op, Tensor *a, Tensor *b) {
  Tensor *out = NULL;
  require_ok(vl_apply(program->graph, op, NULL, (Tensor *[]){a, b}, b ? 2 : 1, &out));
  return out;
}

static void sum_up(Program *program, Tensor *x) {
  OpParams sum = {.axis_count = 1, .dtype = DTYPE_F32};
  require_ok(vl_apply(program->graph, "sum", &sum, &x, 1, &program->loss));
}

static int32_t count_ops(const Graph *graph, const char *op, Segment segment) {
  int32_t count = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    count += graph->nodes[i]->segment == segment && strcmp(graph->nodes[i]->op->name, op) == 0;
  }
  return count;
}

static void gradients_are_named_after_parameters(void **state) {
  (void)state;
  NetOptions options = {.batch = 2, .size = 16};
  Program program;
  network_bottlenecks(&options, &program);
  int32_t forward = program.graph->node_count;
  require_ok(vl_program_differentiate(&program));
  require_ok(vl_graph_check(program.graph));
  int32_t parameters = 0;
  for (int32_t i = 0; i < program.graph->storage_count; i++) {
    const Storage *storage = program.graph->storages[i];
    if (storage->role != ROLE_PARAMETER) continue;
    const ParameterGradient *entry = &program.gradients[parameters++];
    char name[128];
    snprintf(name, sizeof name, "%s.grad", storage->name);
    assert_ptr_equal(entry->parameter, storage->root);
    assert_string_equal(entry->gradient->name, name);
    assert_string_equal(entry->gradient->storage->name, name);
    assert_int_equal(entry->gradient->storage->role, ROLE_GRADIENT);
    assert_true(vl_tensor_same_shape(entry->gradient, entry->parameter));
    assert_int_equal(entry->gradient->dtype, entry->parameter->dtype);
  }
  assert_int_equal(program.gradient_count, parameters);
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    assert_int_equal(program.graph->nodes[i]->segment, i < forward ? SEGMENT_FORWARD : SEGMENT_BACKWARD);
  }
  vl_program_destroy(&program);
}

/* Images need no gradient: the first convolution makes only that of its weight. */
static void inputs_get_no_gradient(void **state) {
  (void)state;
  NetOptions options = {.batch = 2, .size = 16};
  Program program;
  network_bottlenecks(&options, &program);
  require_ok(vl_program_differentiate(&program));
  int32_t convs = count_ops(program.graph, "conv", SEGMENT_FORWARD);
  assert_int_equal(count_ops(program.graph, "conv_backward_weights", SEGMENT_BACKWARD), convs);
  assert_int_equal(count_ops(program.graph, "conv_backward_data", SEGMENT_BACKWARD), convs - 1);
  vl_program_destroy(&program);
}

/* A tensor read three times sums three gradients: two additions. */
static void gradients_meet_in_additions(void **state) {
  (void)state;
  Program program = start();
  Tensor *p = parameter(&program, "p");
  Tensor *a = apply(&program, "gelu", p, NULL), *b = apply(&program, "relu", p, NULL);
  Tensor *c = apply(&program, "mul", a, b);
  sum_up(&program, apply(&program, "mul", c, p));
  require_ok(vl_program_differentiate(&program));
  require_ok(vl_graph_check(program.graph));
  assert_int_equal(count_ops(program.graph, "add", SEGMENT_BACKWARD), 2);
  assert_int_equal(program.gradient_count, 1);
  vl_program_destroy(&program);
}

static void weight_gradients_come_first_when_asked(void **state) {
  (void)state;
  for (int32_t first = 0; first < 2; first++) {
    NetOptions options = {.batch = 2, .size = 16};
    Program program;
    network_bottlenecks(&options, &program);
    program.weight_gradient_first = first == 1;
    require_ok(vl_program_differentiate(&program));
    const Graph *graph = program.graph;
    for (int32_t i = 0; i + 1 < graph->node_count; i++) {
      const Node *node = graph->nodes[i], *next = graph->nodes[i + 1];
      bool pair = strncmp(node->op->name, "conv_backward", 13) == 0 &&
                  strcmp(next->scope, node->scope) == 0 && strncmp(next->op->name, "conv_backward", 13) == 0;
      if (!pair) continue;
      assert_string_equal(node->op->name, first ? "conv_backward_weights" : "conv_backward_data");
    }
    vl_program_destroy(&program);
  }
}

static void a_parameter_off_the_path_is_named(void **state) {
  (void)state;
  Program program = start();
  Tensor *p = parameter(&program, "p");
  parameter(&program, "unused");
  sum_up(&program, apply(&program, "relu", p, NULL));
  Status status = vl_program_differentiate(&program);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "unused"));
  vl_program_destroy(&program);
}

static void only_scalars_are_differentiated(void **state) {
  (void)state;
  Program program = start();
  Tensor *p = parameter(&program, "p");
  assert_int_equal(vl_program_differentiate(&program).code, VL_INVALID);
  program.loss = apply(&program, "relu", p, NULL);
  assert_int_equal(vl_program_differentiate(&program).code, VL_INVALID);
  vl_program_destroy(&program);
}

/* Two parameters whose gradient is the very same value each have a gradient of their own name. */
static void equal_gradients_keep_their_names(void **state) {
  (void)state;
  Program program = start();
  Tensor *p = parameter(&program, "p"), *q = parameter(&program, "q");
  sum_up(&program, apply(&program, "add", p, q));
  require_ok(vl_program_differentiate(&program));
  require_ok(vl_graph_check(program.graph));
  assert_int_equal(program.gradient_count, 2);
  assert_string_equal(program.gradients[0].gradient->name, "p.grad");
  assert_string_equal(program.gradients[1].gradient->name, "q.grad");
  require_ok(vl_program_add_updates(&program));
  require_ok(vl_graph_check(program.graph));
  vl_program_destroy(&program);
}

/* A gradient that a parameter shares with an activation still goes on through the activation. */
static void a_gradient_shared_with_an_activation_goes_on(void **state) {
  (void)state;
  Program program = start();
  Tensor *p = parameter(&program, "p"), *q = parameter(&program, "q");
  sum_up(&program, apply(&program, "add", apply(&program, "gelu", p, NULL), q));
  require_ok(vl_program_differentiate(&program));
  assert_int_equal(program.gradient_count, 2);
  assert_string_equal(program.gradients[0].gradient->name, "p.grad");
  assert_string_equal(program.gradients[1].gradient->name, "q.grad");
  assert_ptr_not_equal(program.gradients[0].gradient, program.gradients[1].gradient);
  vl_program_destroy(&program);
}

static void updates_follow_in_order_of_parameters(void **state) {
  (void)state;
  NetOptions options = {.batch = 2, .size = 16};
  Program program;
  network_bottlenecks(&options, &program);
  program.optimizer = (OptimizerSettings){.learning_rate = 0.25, .momentum = 0.5, .weight_decay = 0.125};
  require_ok(vl_program_differentiate(&program));
  int32_t before = program.graph->node_count;
  require_ok(vl_program_add_updates(&program));
  require_ok(vl_graph_check(program.graph));
  assert_int_equal(program.graph->node_count - before, program.gradient_count);
  for (int32_t i = 0; i < program.gradient_count; i++) {
    const Node *node = program.graph->nodes[before + i];
    char name[128];
    snprintf(name, sizeof name, "%s.momentum", program.gradients[i].parameter->name);
    assert_string_equal(node->op->name, "sgd");
    assert_int_equal(node->segment, SEGMENT_UPDATE);
    assert_ptr_equal(node->inputs[0], program.gradients[i].parameter);
    assert_ptr_equal(node->inputs[1], program.gradients[i].gradient);
    assert_string_equal(node->inputs[2]->name, name);
    assert_int_equal(node->inputs[2]->storage->role, ROLE_OPTIMIZER);
    assert_true(node->params.learning_rate == 0.25 && node->params.momentum == 0.5);
    assert_true(node->params.weight_decay == 0.125);
  }
  vl_program_destroy(&program);
}

/* PyTorch's names and defaults, and decay of every parameter. */
static void adamw_keeps_two_moments(void **state) {
  (void)state;
  NetOptions options = {.batch = 2, .size = 16};
  Program program;
  network_bottlenecks(&options, &program);
  program.optimizer = vl_optimizer_adamw();
  require_ok(vl_program_differentiate(&program));
  int32_t before = program.graph->node_count;
  require_ok(vl_program_add_updates(&program));
  require_ok(vl_graph_check(program.graph));
  assert_int_equal(program.graph->node_count - before, program.gradient_count);
  for (int32_t i = 0; i < program.gradient_count; i++) {
    static const char *const states[] = {"exp_avg", "exp_avg_sq"};
    const Node *node = program.graph->nodes[before + i];
    const Tensor *parameter = program.gradients[i].parameter;
    assert_string_equal(node->op->name, "adamw");
    assert_ptr_equal(node->inputs[0], parameter);
    assert_ptr_equal(node->inputs[1], program.gradients[i].gradient);
    for (int32_t s = 0; s < 2; s++) {
      const Tensor *kept = node->inputs[2 + s];
      char name[128];
      snprintf(name, sizeof name, "%s.%s", parameter->name, states[s]);
      assert_string_equal(kept->name, name);
      assert_int_equal(kept->storage->role, ROLE_OPTIMIZER);
      assert_true(vl_tensor_same_shape(kept, parameter));
      assert_ptr_equal(node->outputs[1 + s]->storage, kept->storage);
    }
    assert_true(node->params.learning_rate == 1e-3 && node->params.weight_decay == 1e-2);
    assert_true(node->params.beta1 == 0.9 && node->params.beta2 == 0.999 && node->params.epsilon == 1e-8);
  }
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_named_after_parameters),
      cmocka_unit_test(inputs_get_no_gradient),
      cmocka_unit_test(gradients_meet_in_additions),
      cmocka_unit_test(weight_gradients_come_first_when_asked),
      cmocka_unit_test(a_parameter_off_the_path_is_named),
      cmocka_unit_test(only_scalars_are_differentiated),
      cmocka_unit_test(equal_gradients_keep_their_names),
      cmocka_unit_test(a_gradient_shared_with_an_activation_goes_on),
      cmocka_unit_test(updates_follow_in_order_of_parameters),
      cmocka_unit_test(adamw_keeps_two_moments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
