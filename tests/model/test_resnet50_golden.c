/* ResNet-50, one training step at batch 2 and 96 x 96, against PyTorch in float64 (tests/goldens, made by
 * scripts/goldens). Weights and inputs come from Philox on both sides; nothing is stored but what is
 * compared.
 *
 * float32 gradients of a deep ReLU net are not reproducible (a sign flips where an activation is near zero,
 * and everything behind it changes), so that one comparison cannot do. In four parts: the graph: run in
 * double on the reference device, it agrees with PyTorch's float64 to 1e-9; the kernels: tests of each node
 * are in test_resnet50_kernels; the smooth twin (no kinks): in f32 and bf16 on the cpu, as one; the real net:
 * loss within 1e-4, gradients within 15 %, PyTorch's own distance printed beside ours. */
#include "tests/model/golden.h"
#include "tests/model/step.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The golden values and the reference's own step, which every test below compares with. */
typedef struct Truth {
  const char *name;
  bool smooth;
  Golden golden;
  StepRecord reference;
} Truth;

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
  return (StepSpec){.case_name = "resnet50",
                    .recipe = recipe,
                    .settings = {"size=96", truth->smooth ? "smooth=1" : "smooth=0"},
                    .setting_count = 2,
                    .micro_batch = truth->golden.batch,
                    .seed = truth->golden.seed,
                    .steps = steps};
}

static void load(Truth *truth) {
  char path[512];
  snprintf(path, sizeof path, "%s/tests/goldens/resnet50_%s.json", VRAMLAB_SOURCE_DIR, truth->name);
  assert_ok(golden_load(path, &truth->golden));
  StepSpec spec = spec_of(truth, "", GOLDEN_STEPS);
  Device *device = NULL;
  assert_ok(vl_reference_device_create(&device));
  Status status = step_record(&spec, device, &truth->reference);
  vl_device_close(&device);
  assert_ok(status);
}

static int load_truths(void **state) {
  static Truth truths[2] = {{.name = "real", .smooth = false}, {.name = "smooth", .smooth = true}};
  load(&truths[0]);
  load(&truths[1]);
  *state = truths;
  return 0;
}

static int free_truths(void **state) {
  Truth *truths = *state;
  for (int i = 0; i < 2; i++) {
    golden_clear(&truths[i].golden);
    step_clear(&truths[i].reference);
  }
  return 0;
}

static const Truth *real_net(void **state) { return &((const Truth *)*state)[0]; }
static const Truth *smooth_twin(void **state) { return &((const Truth *)*state)[1]; }

/* ---- The graph ------------------------------------------------------------------------------------------------ */

static const double graph_tolerance = 1e-9;

/* Every golden tensor is there and agrees. */
static void check_tensors(const Truth *truth, const StepRecord *record, const char *recipe) {
  assert_int_equal(record->tensor_count, truth->golden.tensor_count);
  double worst = 0.0;
  for (int32_t i = 0; i < truth->golden.tensor_count; i++) {
    const GoldenTensor *golden = &truth->golden.tensors[i];
    const StepTensor *ours = need(record, golden->name);
    assert_int_equal(ours->elements, golden->elements);
    assert_int_equal(ours->is_gradient, golden->is_gradient);
    double distance = golden_distance(&truth->golden, golden, ours->values);
    if (!(distance <= graph_tolerance)) {
      fail_msg("'%s': %s is off by %.3g of its norm", recipe, golden->name, distance);
    }
    worst = fmax(worst, distance);
  }
  double loss = fabs(record->losses[0] - truth->golden.loss);
  print_message("  %s '%s': %d tensors within %.2g of their norms, loss within %.2g\n", truth->name, recipe,
                truth->golden.tensor_count, worst, loss);
  assert_true(loss <= graph_tolerance * fabs(truth->golden.loss));
}

/* Shapes, names, every gradient and statistic: the graph is ResNet-50. */
static void check_graph(const Truth *truth) {
  assert_int_equal(truth->golden.parameters, 25557032);
  assert_int_equal(truth->reference.parameters, truth->golden.parameters);
  check_tensors(truth, &truth->reference, "");
}

static void graph_of_real_net_is_pytorch_float64(void **state) { check_graph(real_net(state)); }
static void graph_of_smooth_twin_is_pytorch_float64(void **state) { check_graph(smooth_twin(state)); }

/* Passes that keep results keep these, to the bit: in double nothing hides behind rounding, casts do nothing,
 * and a value read after its memory went elsewhere, a recomputation that updates statistics again (fault case
 * D3) or a gradient that arrived twice would show. */
static void recipes_keep_every_bit_in_double(void **state) {
  static const char *const recipes[] = {"amp=bf16 checkpoint=segments:3", "recompute=norm update=in-backward",
                                        "stack=vramlab update=in-backward",
                                        "stack=vramlab amp=bf16 checkpoint=2"};
  const Truth *truth = real_net(state);
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    StepSpec spec = spec_of(truth, recipes[i], 1);
    StepRecord record;
    Device *device = NULL;
    assert_ok(vl_reference_device_create(&device));
    Status status = step_record(&spec, device, &record);
    vl_device_close(&device);
    assert_ok(status);
    for (int32_t t = 0; t < truth->reference.tensor_count; t++) {
      const StepTensor *want = &truth->reference.tensors[t], *got = need(&record, want->name);
      if (memcmp(got->values, want->values, (size_t)want->elements * sizeof *want->values) != 0) {
        fail_msg("'%s': %s differs by %.3g of its norm", recipes[i], want->name,
                 step_relative_error(got, want));
      }
    }
    assert_true(record.losses[0] == truth->reference.losses[0]);
    bool repeats = strstr(recipes[i], "checkpoint") || strstr(recipes[i], "recompute");
    if (repeats) assert_true(record.recomputed > 0);
    step_clear(&record);
  }
}

/* Three optimizer steps, so that update and running state are what PyTorch's SGD does. A step multiplies
 * rounding errors by what training does to a perturbation: measured 1e2 a step on the real net. */
static void check_trajectory(const Truth *truth) {
  for (int step = 0; step < GOLDEN_STEPS; step++) {
    double want = truth->golden.losses[step], got = truth->reference.losses[step];
    print_message("  %s step %d: loss %.12f, PyTorch float64 %.12f\n", truth->name, step, got, want);
    assert_true(fabs(got - want) <= 1e-9 * fabs(want));
  }
}

static void losses_of_three_steps_are_pytorch_float64(void **state) {
  check_trajectory(real_net(state));
  check_trajectory(smooth_twin(state));
}

/* ---- The device ------------------------------------------------------------------------------------------------- */

static void record_on_cpu(const Truth *truth, const char *recipe, StepRecord *record) {
  DeviceOptions options = {0};
  Device *device = NULL;
  assert_ok(vl_device_open("cpu", &options, &device));
  StepSpec spec = spec_of(truth, recipe, 1);
  Status status = step_record(&spec, device, record);
  vl_device_close(&device);
  assert_ok(status);
}

/* How far a record's gradients and statistics are from the truth, beside PyTorch's own. */
typedef struct Errors {
  double worst_gradient, worst_statistic, loss;
  double worst_ratio; /* ours over PyTorch's bf16, gradients */
  const char *worst_name, *worst_ratio_name;
} Errors;

static Errors measure(const Truth *truth, const StepRecord *record, bool bf16) {
  Errors errors = {
      .loss = fabs(record->losses[0] - truth->golden.loss), .worst_name = "", .worst_ratio_name = ""};
  for (int32_t i = 0; i < truth->golden.tensor_count; i++) {
    const GoldenTensor *golden = &truth->golden.tensors[i];
    double error = step_relative_error(need(record, golden->name), need(&truth->reference, golden->name));
    double peer = bf16 ? golden->pytorch_bf16_error : golden->pytorch_f32_error;
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

static Errors run_on_cpu(const Truth *truth, const char *recipe, bool bf16) {
  StepRecord record;
  record_on_cpu(truth, recipe, &record);
  Errors errors = measure(truth, &record, bf16);
  step_clear(&record);
  return errors;
}

static void check_smooth_f32(const Truth *truth, const char *recipe) {
  Errors errors = run_on_cpu(truth, recipe, false);
  assert_true(errors.worst_gradient <= 1e-4);
  assert_true(errors.worst_statistic <= 1e-4);
  assert_true(errors.loss <= 1e-4);
}

static void smooth_twin_f32_within_1e_4(void **state) { check_smooth_f32(smooth_twin(state), ""); }
static void smooth_twin_f32_vramlab_within_1e_4(void **state) {
  check_smooth_f32(smooth_twin(state), "stack=vramlab");
}

static void check_smooth_bf16(const Truth *truth, const char *recipe) {
  Errors errors = run_on_cpu(truth, recipe, true);
  assert_true(errors.worst_ratio <= 2.0);
  assert_true(errors.loss <= 2.0 * truth->golden.pytorch_bf16_loss_error);
}

static void smooth_twin_bf16_within_twice_pytorch(void **state) {
  check_smooth_bf16(smooth_twin(state), "amp=bf16");
}
static void smooth_twin_bf16_vramlab_within_twice_pytorch(void **state) {
  check_smooth_bf16(smooth_twin(state), "stack=vramlab amp=bf16");
}

static void check_real_f32(const Truth *truth, const char *recipe) {
  Errors errors = run_on_cpu(truth, recipe, false);
  assert_true(errors.loss <= 1e-4);
  assert_true(errors.worst_gradient <= 0.15);
}

static void real_net_f32_loss_within_1e_4(void **state) { check_real_f32(real_net(state), ""); }
static void real_net_f32_vramlab_loss_within_1e_4(void **state) {
  check_real_f32(real_net(state), "stack=vramlab");
}

/* Only told: bf16 gradients of the real net are noise in PyTorch as well. */
static void real_net_bf16_is_told(void **state) {
  Errors errors = run_on_cpu(real_net(state), "amp=bf16", true);
  assert_true(isfinite(errors.loss));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(graph_of_real_net_is_pytorch_float64),
      cmocka_unit_test(graph_of_smooth_twin_is_pytorch_float64),
      cmocka_unit_test(recipes_keep_every_bit_in_double),
      cmocka_unit_test(losses_of_three_steps_are_pytorch_float64),
      cmocka_unit_test(smooth_twin_f32_within_1e_4),
      cmocka_unit_test(smooth_twin_f32_vramlab_within_1e_4),
      cmocka_unit_test(smooth_twin_bf16_within_twice_pytorch),
      cmocka_unit_test(smooth_twin_bf16_vramlab_within_twice_pytorch),
      cmocka_unit_test(real_net_f32_loss_within_1e_4),
      cmocka_unit_test(real_net_f32_vramlab_loss_within_1e_4),
      cmocka_unit_test(real_net_bf16_is_told),
  };
  return cmocka_run_group_tests_name("resnet50_golden", tests, load_truths, free_truths);
}
