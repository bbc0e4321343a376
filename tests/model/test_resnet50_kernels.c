/* Every node of ResNet-50's training step (batch 2, 96 x 96), fed with the reference's values of that step,
 * run on the cpu in each layout it accepts, against the reference within the op's own bound
 * (tests/kernels/README.md). So a whole net of kernels is held to rounding errors of single kernels, which a
 * comparison of final gradients cannot do. In f32 and bf16, as eager PyTorch runs it and with what
 * stack=vramlab fuses. */
#include "tests/kernels/compare.h"
#include "tests/model/step.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The inputs of step 0 as the engine makes them: Philox by name, sample and element. */
static void draw_inputs(Evaluation *evaluation) {
  for (int32_t i = 0; i < evaluation->graph->storage_count; i++) {
    const Storage *storage = evaluation->graph->storages[i];
    if (storage->role != ROLE_INPUT) continue;
    uint64_t key = vl_random_key(0, 0, storage->name);
    int64_t samples = storage->root->shape[0], elements = storage->elements / samples;
    for (int64_t e = 0; e < storage->elements; e++) {
      double unit =
          (double)vl_random_unit(vl_random_word(key, (uint64_t)(e / elements), (uint64_t)(e % elements)));
      double bound = storage->init.value;
      evaluation->values[storage->id][e] = vl_dtype_is_float(storage->dtype)
                                               ? round_to(storage->dtype, (2.0 * unit - 1.0) * bound)
                                               : floor(unit * bound);
    }
  }
}

static void every_node_matches(const Subject *subject, const char *recipe, bool smooth) {
  StepSpec spec = {.case_name = "resnet50",
                   .recipe = recipe,
                   .settings = {"size=96", smooth ? "smooth=1" : "smooth=0"},
                   .setting_count = 2,
                   .micro_batch = 2};
  Program program;
  Status status = step_build(&spec, &program);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  Evaluation *evaluation = evaluation_create(program.graph);
  evaluation_initialise(evaluation, 0);
  draw_inputs(evaluation);
  CompareTotals totals = {0};
  status = compare_graph(subject, evaluation, &totals);
  evaluation_destroy(&evaluation);
  vl_program_destroy(&program);
  print_message("  '%s': %lld nodes, %lld runs, at worst %.2f of the bound (%s)\n", recipe,
                (long long)totals.nodes, (long long)totals.runs, totals.worst, totals.worst_at);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  assert_int_equal(totals.unsupported, 0);
  assert_true(totals.nodes > 500);
}

static void f32_nodes_match(void **state) { every_node_matches(*state, "", false); }
static void bf16_nodes_match(void **state) { every_node_matches(*state, "amp=bf16", false); }
static void bf16_vramlab_nodes_match(void **state) {
  every_node_matches(*state, "stack=vramlab amp=bf16", false);
}
static void bf16_smooth_nodes_match(void **state) { every_node_matches(*state, "amp=bf16", true); }

static int open_cpu(void **state) {
  static Subject subject;
  DeviceOptions options = {0};
  Device *device = NULL;
  Status status = vl_device_open("cpu", &options, &device);
  if (status.code == VL_OK) status = subject_create(device, &subject);
  if (status.code != VL_OK) {
    print_error("%s\n", status.message);
    return -1;
  }
  *state = &subject;
  return 0;
}

static int close_cpu(void **state) {
  Subject *subject = *state;
  if (subject) vl_device_close(&subject->device);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f32_nodes_match),
      cmocka_unit_test(bf16_nodes_match),
      cmocka_unit_test(bf16_vramlab_nodes_match),
      cmocka_unit_test(bf16_smooth_nodes_match),
  };
  return cmocka_run_group_tests_name("resnet50_kernels", tests, open_cpu, close_cpu);
}
