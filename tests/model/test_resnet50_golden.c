/* ResNet-50, one training step at batch 2 and 96 x 96, against PyTorch in float64 (tests/goldens, made by
 * scripts/goldens). Weights and inputs come from Philox on both sides; nothing is stored but what is
 * compared.
 *
 * float32 gradients of a deep ReLU net are not reproducible (a sign flips where an activation is near zero,
 * and everything behind it changes), so that one comparison cannot do. In four parts: the graph: run in
 * double on the reference device, it agrees with PyTorch's float64 to 1e-9; the kernels: tests of each node
 * are in test_resnet50_kernels; the smooth twin (no kinks): in f32 and bf16 on a device, as one; the real
 * net: loss within 1e-4, gradients within 15 %, PyTorch's own distance printed beside ours. */
#include "tests/model/truth.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int load_truths(void **state) {
  static Truth truths[2] = {
      {.name = "resnet50_real",
       .spec = {.case_name = "resnet50", .settings = {"size=96"}, .setting_count = 1}},
      {.name = "resnet50_smooth",
       .spec = {.case_name = "resnet50", .settings = {"size=96", "smooth=1"}, .setting_count = 2}}};
  truth_load(&truths[0]);
  truth_load(&truths[1]);
  *state = truths;
  return 0;
}

static int free_truths(void **state) {
  Truth *truths = *state;
  truth_clear(&truths[0]);
  truth_clear(&truths[1]);
  return 0;
}

static const Truth *real_net(void **state) { return &((const Truth *)*state)[0]; }
static const Truth *smooth_twin(void **state) { return &((const Truth *)*state)[1]; }

/* ---- The graph ------------------------------------------------------------------------------------------------ */

/* Shapes, names, every gradient and statistic: the graph is ResNet-50. */
static void graph_of_real_net_is_pytorch_float64(void **state) {
  truth_check_graph(real_net(state), 25557032);
}
static void graph_of_smooth_twin_is_pytorch_float64(void **state) {
  truth_check_graph(smooth_twin(state), 25557032);
}

/* A value read after its memory went elsewhere, a recomputation that updates statistics again (fault case D3)
 * or a gradient that arrived twice would show. */
static void recipes_keep_every_bit_in_double(void **state) {
  static const char *const recipes[] = {"amp=bf16 checkpoint=segments:3", "recompute=norm update=in-backward",
                                        "fuse=norm recompute=norm", "stack=vramlab update=in-backward",
                                        "stack=vramlab amp=bf16 checkpoint=2"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
    truth_check_every_bit(real_net(state), recipes[i]);
}

/* Three optimizer steps, so that update and running state are what PyTorch's SGD does. A step multiplies
 * rounding errors by what training does to a perturbation: measured 1e2 a step on the real net. */
static void losses_of_three_steps_are_pytorch_float64(void **state) {
  truth_check_trajectory(real_net(state));
  truth_check_trajectory(smooth_twin(state));
}

/* ---- The device ------------------------------------------------------------------------------------------------- */

static void check_smooth_f32(const Truth *truth, const char *recipe) {
  TruthErrors errors = truth_run(truth, recipe);
  assert_true(errors.worst_gradient <= 1e-4);
  assert_true(errors.worst_statistic <= 1e-4);
  assert_true(errors.loss <= 1e-4);
}

static void smooth_twin_f32_within_1e_4(void **state) { check_smooth_f32(smooth_twin(state), ""); }
static void smooth_twin_f32_vramlab_within_1e_4(void **state) {
  check_smooth_f32(smooth_twin(state), "stack=vramlab");
}

static void check_smooth_bf16(const Truth *truth, const char *recipe) {
  TruthErrors errors = truth_run(truth, recipe);
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
  TruthErrors errors = truth_run(truth, recipe);
  assert_true(errors.loss <= 1e-4);
  assert_true(errors.worst_gradient <= 0.15);
}

static void real_net_f32_loss_within_1e_4(void **state) { check_real_f32(real_net(state), ""); }
static void real_net_f32_vramlab_loss_within_1e_4(void **state) {
  check_real_f32(real_net(state), "stack=vramlab");
}

/* Only told: bf16 gradients of the real net are noise in PyTorch as well. */
static void real_net_bf16_is_told(void **state) {
  TruthErrors errors = truth_run(real_net(state), "amp=bf16");
  assert_true(isfinite(errors.loss));
}

enum { GRAPH_TESTS = 4 };

int main(int argc, char **argv) {
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
  return truth_main(argc, argv, "resnet50_golden", tests, sizeof tests / sizeof *tests, GRAPH_TESTS,
                    load_truths, free_truths);
}
