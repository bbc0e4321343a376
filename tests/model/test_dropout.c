/* Dropout under checkpointing: the repeated forward must draw the mask of the first (fault case D1). */
#include "tests/model/step.h"
#include "tests/reference/reference.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ELEMENTS = 64 };

static void assert_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* 64 ones, dropout 0.5, summed; `squared`: the square is summed, whose gradient reads dropout's output, so
 * that checkpointing has something to repeat. */
static Status build(bool squared, Program *program) {
  Graph *graph = vl_graph_create("dropout");
  vl_program_init(program, graph);
  program->training = true;
  vl_graph_set_scope(graph, "layer");
  Tensor *x = vl_graph_parameter(graph, "x", ROLE_PARAMETER, DTYPE_F32, 2, (int64_t[]){1, ELEMENTS},
                                 (Init){INIT_CONSTANT, 1.0});
  OpParams dropout = {.rate = 0.5, .random_scope = "layer.dropout"}, once = {.alpha = 1.0};
  OpParams sum = {.axes = {0, 1}, .axis_count = 2, .dtype = DTYPE_F32};
  Tensor *y = NULL, *z = NULL;
  graph->block = ++graph->block_count;
  VL_TRY(vl_apply(graph, "dropout", &dropout, &x, 1, &y));
  if (squared) {
    VL_TRY(vl_apply(graph, "mul", NULL, (Tensor *[]){y, y}, 2, &z));
  } else {
    VL_TRY(vl_apply(graph, "scale", &once, &y, 1, &z));
  }
  graph->block = ++graph->block_count;
  VL_TRY(vl_apply(graph, "scale", &once, &z, 1, &z));
  graph->block = 0;
  return vl_apply(graph, "sum", &sum, &z, 1, &program->loss);
}

static void record(Device *device, const char *recipe_text, bool squared, uint64_t seed, StepRecord *out) {
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  StepSpec spec = {.seed = seed, .steps = 1};
  assert_ok(build(squared, &program));
  assert_ok(vl_recipe_parse(recipe_text, &recipe));
  assert_ok(vl_recipe_apply(&recipe, &program, &target));
  assert_ok(step_record_program(&spec, &program, device, out));
}

static bool is_kept(uint64_t seed, int64_t element) {
  uint64_t key = vl_random_key(seed, 0, "layer.dropout");
  return vl_random_unit(vl_random_word(key, 0, (uint64_t)element)) >= 0.5F;
}

static void check_seed(Device *device, bool squared, uint64_t seed) {
  StepRecord plain, checkpointed;
  record(device, "", squared, seed, &plain);
  record(device, "checkpoint=1", squared, seed, &checkpointed);
  assert_int_equal(plain.recomputed, 0);
  if (squared) assert_true(checkpointed.recomputed > 0);
  const StepTensor *a = step_find(&plain, "x"), *b = step_find(&checkpointed, "x");
  assert_non_null(a);
  assert_non_null(b);
  assert_int_equal(a->elements, ELEMENTS);
  double kept_gradient = squared ? 8.0 : 2.0; /* d(2x)^2/dx at 1; d(2x)/dx */
  int kept = 0;
  for (int64_t i = 0; i < ELEMENTS; i++) {
    assert_true(a->values[i] == (is_kept(seed, i) ? kept_gradient : 0.0));
    kept += is_kept(seed, i);
  }
  assert_memory_equal(a->values, b->values, ELEMENTS * sizeof *a->values);
  assert_true(plain.losses[0] == (squared ? 4.0 : 2.0) * kept);
  assert_true(plain.losses[0] == checkpointed.losses[0]);
  step_clear(&plain);
  step_clear(&checkpointed);
}

static void check_device(Device *device) {
  for (uint64_t seed = 7; seed <= 9; seed++) {
    check_seed(device, false, seed);
    check_seed(device, true, seed);
  }
}

static void recompute_draws_the_same_mask_on_reference_d1(void **state) {
  (void)state;
  Device *device = NULL;
  assert_ok(vl_reference_device_create(&device));
  check_device(device);
  vl_device_close(&device);
}

static void recompute_draws_the_same_mask_on_cpu_d1(void **state) {
  (void)state;
  DeviceOptions options = {0};
  Device *device = NULL;
  assert_ok(vl_device_open("cpu", &options, &device));
  check_device(device);
  vl_device_close(&device);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recompute_draws_the_same_mask_on_reference_d1),
      cmocka_unit_test(recompute_draws_the_same_mask_on_cpu_d1),
  };
  return cmocka_run_group_tests_name("dropout", tests, NULL, NULL);
}
