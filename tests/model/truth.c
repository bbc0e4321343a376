#include "tests/model/truth.h"
#include "tests/devices/open_device.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Device *device; /* under test */
static bool checks_graph;

static void assert_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* The record's tensor of that name; fails the test when it has none. */
static const StepTensor *need(const StepRecord *record, const char *name) {
  const StepTensor *tensor = step_find(record, name);
  if (tensor) return tensor;
  fail_msg("the step has no %s", name);
  abort();
}

static StepSpec spec_of(const Truth *truth, const char *recipe, int32_t steps) {
  StepSpec spec = truth->spec;
  spec.recipe = recipe;
  spec.micro_batch = truth->golden.batch;
  spec.seed = truth->golden.seed;
  spec.steps = steps;
  return spec;
}

static void record_on_reference(const Truth *truth, const char *recipe, int32_t steps, StepRecord *record) {
  StepSpec spec = spec_of(truth, recipe, steps);
  Device *reference = NULL;
  assert_ok(vl_reference_device_create(&reference));
  Status status = step_record(&spec, reference, record);
  vl_device_close(&reference);
  assert_ok(status);
}

void truth_load(Truth *truth) {
  char path[512];
  snprintf(path, sizeof path, "%s/tests/goldens/%s.json", VRAMLAB_SOURCE_DIR, truth->name);
  assert_ok(golden_load(path, &truth->golden));
  record_on_reference(truth, "", checks_graph ? GOLDEN_STEPS : 1, &truth->reference);
}

void truth_clear(Truth *truth) {
  golden_clear(&truth->golden);
  step_clear(&truth->reference);
}

static const double graph_tolerance = 1e-9;

/* Every golden tensor is there and agrees. */
static void check_tensors(const Truth *truth, const StepRecord *record) {
  assert_int_equal(record->tensor_count, truth->golden.tensor_count);
  double worst = 0.0;
  for (int32_t i = 0; i < truth->golden.tensor_count; i++) {
    const GoldenTensor *golden = &truth->golden.tensors[i];
    const StepTensor *ours = need(record, golden->name);
    assert_int_equal(ours->elements, golden->elements);
    assert_int_equal(ours->is_gradient, golden->is_gradient);
    double distance = golden_distance(&truth->golden, golden, ours->values);
    if (!(distance <= graph_tolerance)) {
      fail_msg("%s is off by %.3g of its norm", golden->name, distance);
    }
    worst = fmax(worst, distance);
  }
  double loss = fabs(record->losses[0] - truth->golden.loss);
  print_message("  %s: %d tensors within %.2g of their norms, loss within %.2g\n", truth->name,
                truth->golden.tensor_count, worst, loss);
  assert_true(loss <= graph_tolerance * fabs(truth->golden.loss));
}

void truth_check_graph(const Truth *truth, int64_t parameters) {
  assert_int_equal(truth->golden.parameters, parameters);
  assert_int_equal(truth->reference.parameters, parameters);
  check_tensors(truth, &truth->reference);
}

void truth_check_every_bit(const Truth *truth, const char *recipe) {
  StepRecord record;
  record_on_reference(truth, recipe, 1, &record);
  for (int32_t t = 0; t < truth->reference.tensor_count; t++) {
    const StepTensor *want = &truth->reference.tensors[t], *got = need(&record, want->name);
    if (memcmp(got->values, want->values, (size_t)want->elements * sizeof *want->values) != 0)
      fail_msg("'%s': %s differs by %.3g of its norm", recipe, want->name, step_relative_error(got, want));
  }
  assert_true(record.losses[0] == truth->reference.losses[0]);
  bool repeats = strstr(recipe, "checkpoint") || strstr(recipe, "recompute");
  if (repeats) assert_true(record.recomputed > 0);
  step_clear(&record);
}

void truth_check_trajectory(const Truth *truth) {
  for (int step = 0; step < GOLDEN_STEPS; step++) {
    double want = truth->golden.losses[step], got = truth->reference.losses[step];
    print_message("  %s step %d: loss %.12f, PyTorch float64 %.12f\n", truth->name, step, got, want);
    assert_true(fabs(got - want) <= 1e-9 * fabs(want));
  }
}

static TruthErrors measure(const Truth *truth, const StepRecord *record, bool bf16) {
  TruthErrors errors = {
      .loss = fabs(record->losses[0] - truth->golden.loss), .worst_name = "", .worst_ratio_name = ""};
  for (int32_t i = 0; i < truth->golden.tensor_count; i++) {
    const GoldenTensor *golden = &truth->golden.tensors[i];
    double error = step_relative_error(need(record, golden->name), need(&truth->reference, golden->name));
    /* Where PyTorch happens to hit closer than one unit of the type, the unit is what to compare with. */
    double peer = bf16 ? fmax(golden->pytorch_bf16_error, 0x1p-8) : fmax(golden->pytorch_f32_error, 0x1p-23);
    assert_true(isfinite(error));
    if (!golden->is_gradient) {
      errors.worst_statistic = fmax(errors.worst_statistic, error);
      continue;
    }
    if (error > errors.worst_gradient) {
      errors.worst_gradient = error;
      errors.worst_name = golden->name;
    }
    if (error / peer > errors.worst_ratio) {
      errors.worst_ratio = error / peer;
      errors.worst_ratio_name = golden->name;
    }
  }
  double peer_loss = bf16 ? truth->golden.pytorch_bf16_loss_error : truth->golden.pytorch_f32_loss_error;
  print_message(
      "  %s %s: gradients within %.3g (%s), at most %.2f times PyTorch's own error (%s); statistics "
      "within %.3g; loss off by %.3g, PyTorch's by %.3g\n",
      truth->name, bf16 ? "bf16" : "f32", errors.worst_gradient, errors.worst_name, errors.worst_ratio,
      errors.worst_ratio_name, errors.worst_statistic, errors.loss, peer_loss);
  return errors;
}

TruthErrors truth_run(const Truth *truth, const char *recipe) {
  StepSpec spec = spec_of(truth, recipe, 1);
  StepRecord record;
  assert_ok(step_record(&spec, device, &record));
  TruthErrors errors = measure(truth, &record, strstr(recipe, "bf16") != NULL);
  step_clear(&record);
  return errors;
}

int truth_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count,
               size_t graph_count, int (*load)(void **state), int (*clear)(void **state)) {
  checks_graph = argc < 2;
  int refused = open_device_or_skip(checks_graph ? "cpu" : argv[1], &(DeviceOptions){0}, &device);
  if (refused) return refused;
  size_t first = checks_graph ? 0 : graph_count;
  int failed = _cmocka_run_group_tests(name, tests + first, count - first, load, clear);
  vl_device_close(&device);
  return failed;
}
