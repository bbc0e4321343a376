/* The 3D U-Net's arguments, parameters and blocks: those of the PyTorch module
 * (scripts/peers/pytorch_step.py). */
#include "cases/cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_SETTINGS = 6 };

static Status build(int64_t micro_batch, const char *const *settings, bool training, Program *program) {
  const Case *of = vl_case_find("unet");
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  int32_t count = 0;
  assert_non_null(of);
  while (count < MAX_SETTINGS && settings[count])
    count++;
  VL_TRY(vl_case_arguments(of, micro_batch, settings, count, values));
  return of->build(values, training, program);
}

static void expect_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static const Tensor *parameter(const Graph *graph, const char *name) {
  for (int32_t i = 0; i < graph->storage_count; i++)
    if (strcmp(graph->storages[i]->name, name) == 0) return graph->storages[i]->root;
  fail_msg("no %s", name);
  return NULL;
}

static void expect_shape(const Tensor *tensor, int32_t rank, const int64_t *shape) {
  assert_int_equal(tensor->rank, rank);
  for (int32_t i = 0; i < rank; i++)
    assert_int_equal(tensor->shape[i], shape[i]);
}

/* The sums of numel() over the module's parameters, groups where PyTorch's module has them: where they divide
 * both channel counts. */
static void parameters_are_those_of_the_module(void **state) {
  (void)state;
  static const struct {
    const char *settings[MAX_SETTINGS];
    int64_t parameters;
  } cases[] = {
      {{"groups=1"}, 16544163},
      {{"groups=4"}, 4890531},
      {{"size=128"}, 16544163},
      {{"channels=4"}, 16546755},
      {{"channels=4", "groups=4"}, 4890531}, /* the first convolution has groups then */
      {{"groups=32"}, 1491555},
      {{"classes=24"}, 16544856},
      {{"classes=104", "depth=16", "height=32", "width=48"}, 16547496},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    expect_ok(build(1, cases[i].settings, true, &program));
    assert_int_equal(vl_graph_parameter_count(program.graph), cases[i].parameters);
    vl_program_destroy(&program);
  }
}

static void names_shapes_and_initial_values_are_pytorchs(void **state) {
  (void)state;
  static const char *const settings[MAX_SETTINGS] = {"depth=32", "height=16", "width=48", "groups=4",
                                                     "classes=5"};
  Program program;
  expect_ok(build(2, settings, true, &program));
  const Graph *graph = program.graph;
  expect_shape(parameter(graph, "images"), 5, (int64_t[]){2, 1, 32, 16, 48});
  expect_shape(parameter(graph, "labels"), 4, (int64_t[]){2, 32, 16, 48});
  expect_shape(program.logits, 5, (int64_t[]){2, 5, 32, 16, 48});
  expect_shape(parameter(graph, "enc.0.0.0.weight"), 5, (int64_t[]){32, 1, 3, 3, 3});
  expect_shape(parameter(graph, "enc.4.1.0.weight"), 5, (int64_t[]){320, 80, 3, 3, 3});
  expect_shape(parameter(graph, "enc.4.1.1.bias"), 1, (int64_t[]){320});
  expect_shape(parameter(graph, "up.0.weight"), 5, (int64_t[]){320, 256, 2, 2, 2});
  expect_shape(parameter(graph, "dec.3.0.0.weight"), 5, (int64_t[]){32, 16, 3, 3, 3});
  expect_shape(parameter(graph, "head.weight"), 5, (int64_t[]){5, 32, 1, 1, 1});
  /* kaiming_uniform with a = sqrt(5) is 1 / sqrt of the inputs of an output. */
  assert_true(fabs(parameter(graph, "enc.4.1.0.weight")->storage->init.value - 1 / sqrt(80 * 27)) < 1e-15);
  assert_true(fabs(parameter(graph, "up.0.bias")->storage->init.value - 1 / sqrt(256 * 8)) < 1e-15);
  assert_true(program.optimizer.learning_rate == 0.01 && program.optimizer.momentum == 0.9);
  assert_true(program.optimizer.weight_decay == 0);
  vl_program_destroy(&program);
}

/* Every level is a block; the loss and the head are in none. Every node has a layer's name. */
static void levels_are_blocks(void **state) {
  (void)state;
  Program program;
  expect_ok(build(1, (const char *const[MAX_SETTINGS]){NULL}, true, &program));
  assert_int_equal(program.graph->block_count, 9);
  int32_t before = 0;
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    const Node *node = program.graph->nodes[i];
    assert_true(node->scope[0] != '\0');
    if (node->block == 0) continue;
    assert_true(node->block == before || node->block == before + 1);
    before = node->block;
  }
  assert_int_equal(before, 9);
  assert_int_equal(program.logits->producer->block, 0);
  vl_program_destroy(&program);
}

static void evaluation_has_no_labels(void **state) {
  (void)state;
  Program program;
  expect_ok(build(1, (const char *const[MAX_SETTINGS]){NULL}, false, &program));
  assert_null(program.loss);
  assert_non_null(program.logits);
  for (int32_t i = 0; i < program.graph->storage_count; i++)
    assert_string_not_equal(program.graph->storages[i]->name, "labels");
  vl_program_destroy(&program);
}

static void sizes_it_cannot_halve_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *settings[MAX_SETTINGS];
    const char *text;
  } cases[] = {
      {{"size=40"}, "size is 40; a multiple of 16 is needed"},
      {{"height=24"}, "height is 24; a multiple of 16"},
      {{"size=16"}, "of a cube of 16 voxels the lowest level is one"},
      {{"depth=16", "height=16", "width=16"}, "one side of at least 32"},
      {{"width=-16"}, "width"},
      {{"groups=0"}, "groups"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    Status status = build(1, cases[i].settings, true, &program);
    assert_int_equal(status.code, VL_INVALID);
    if (!strstr(status.message, cases[i].text)) fail_msg("'%s' is not in: %s", cases[i].text, status.message);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameters_are_those_of_the_module),
      cmocka_unit_test(names_shapes_and_initial_values_are_pytorchs),
      cmocka_unit_test(levels_are_blocks),
      cmocka_unit_test(evaluation_has_no_labels),
      cmocka_unit_test(sizes_it_cannot_halve_are_refused),
  };
  return cmocka_run_group_tests_name("unet3d", tests, NULL, NULL);
}
