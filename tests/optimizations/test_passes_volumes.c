/* What the passes do with instance norms, and with a Dice loss. */
#include "tests/graph/networks.h"
#include "tests/optimizations/programs.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, NORMS = 3 };
/* A block's activation, in f32, and the two numbers a sample and channel. */
static const int64_t unit_bytes = BATCH * 16 * 7 * 6 * 5 * 4, statistics_bytes = BATCH * 16 * 2 * 4;

static void build_volumes(const char *recipe, double dice, Program *program) {
  network_volumes(BATCH, dice, program);
  require_ok(apply_recipe(recipe, program));
}

/* The ReLUs go, leaky or not, and the sums of the two gradients that meet behind the first two norms. */
static void norms_take_their_relu_and_two_gradients(void **state) {
  (void)state;
  static const char *const recipes[] = {"fuse=norm", "stack=vramlab", "stack=vramlab amp=bf16"};
  Program program;
  build_volumes("baseline", 1.0, &program);
  assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "relu"), NORMS);
  assert_int_equal(count_ops(&program, SEGMENT_BACKWARD, "add"), 2);
  peak_bytes_of(&program);
  vl_program_destroy(&program);
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    build_volumes(recipes[i], 1.0, &program);
    assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "relu"), 0);
    assert_int_equal(count_ops(&program, SEGMENT_BACKWARD, "relu_backward"), 0);
    assert_int_equal(count_ops(&program, SEGMENT_BACKWARD, "add"), 0);
    int32_t two_gradients = 0, leaky = 0;
    for (int32_t k = 0; k < program.graph->node_count; k++) {
      const Node *node = program.graph->nodes[k];
      two_gradients += is_op(node, "instance_norm_backward") && node->input_count == 7;
      if (!is_op(node, "instance_norm")) continue;
      assert_int_equal(node->params.relu, 1);
      leaky += node->params.alpha == 0.01;
    }
    assert_int_equal(two_gradients, 2);
    assert_int_equal(leaky, 1);
    peak_bytes_of(&program);
    vl_program_destroy(&program);
  }
}

/* The gradient of a norm takes the place of one it reads. */
static void gradients_are_in_place(void **state) {
  (void)state;
  Program program;
  int32_t in_place = 0;
  build_volumes("stack=vramlab", 1.0, &program);
  for (int32_t k = 0; k < program.graph->node_count; k++) {
    const Node *node = program.graph->nodes[k];
    if (!is_op(node, "instance_norm_backward")) continue;
    const Tensor *second = node->input_count == 7 ? node->inputs[6] : node->inputs[0];
    const Storage *dx = node->outputs[0]->storage;
    in_place += dx == node->inputs[0]->storage || dx == second->storage;
  }
  assert_int_equal(in_place, NORMS);
  vl_program_destroy(&program);
}

/* Kept: what convolutions make. That is instead of the ReLUs' outputs, the sum and, of twice the size, the
 * concatenation; fused, the second block's output goes when both have read it. */
static void recomputation_keeps_what_norms_read(void **state) {
  (void)state;
  static const struct {
    const char *base;
    int64_t units; /* that recomputation saves; the statistics are those of the repetition */
  } cases[] = {{"baseline", 5}, {"stack=vramlab", 4}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program plain, program;
    char recipe[64];
    snprintf(recipe, sizeof recipe, "%s recompute=norm", i == 0 ? "" : cases[i].base);
    build_volumes(cases[i].base, 1.0, &plain);
    build_volumes(recipe, 1.0, &program);
    int64_t saved = kept_bytes(&plain) - kept_bytes(&program);
    assert_int_equal(saved, cases[i].units * unit_bytes + NORMS * statistics_bytes);
    peak_bytes_of(&program);
    vl_program_destroy(&plain);
    vl_program_destroy(&program);
  }
}

/* Norms and additions follow their activations, parameters and statistics stay in f32, the loss reads f32. */
static void mixed_precision_leaves_norms_low_and_the_loss_wide(void **state) {
  (void)state;
  Program program;
  build_volumes("amp=bf16", 1.0, &program);
  for (int32_t k = 0; k < program.graph->node_count; k++) {
    const Node *node = program.graph->nodes[k];
    if (is_op(node, "instance_norm") || is_op(node, "instance_norm_backward"))
      assert_int_equal(node->outputs[0]->dtype, DTYPE_BF16);
    if (is_op(node, "instance_norm")) {
      for (int32_t i = 1; i < 3; i++) {
        assert_int_equal(node->inputs[i]->dtype, DTYPE_F32);
        assert_int_equal(node->outputs[i]->dtype, DTYPE_F32);
      }
    }
    if (is_op(node, "dice_cross_entropy")) assert_int_equal(node->inputs[0]->dtype, DTYPE_F32);
  }
  vl_program_destroy(&program);
}

/* A Dice loss is of a micro-batch. */
static void accumulation_says_what_dice_makes_of_it(void **state) {
  (void)state;
  for (int dice = 0; dice < 2; dice++) {
    Program program;
    Recipe recipe;
    build_volumes("accumulate=3", dice, &program);
    require_ok(vl_recipe_parse("accumulate=3", &recipe));
    assert_int_equal(vl_recipe_preserves(&recipe, &program),
                     dice ? PRESERVES_DIFFERENT_MODEL : PRESERVES_TOLERANCE);
    vl_program_destroy(&program);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(norms_take_their_relu_and_two_gradients),
      cmocka_unit_test(gradients_are_in_place),
      cmocka_unit_test(recomputation_keeps_what_norms_read),
      cmocka_unit_test(mixed_precision_leaves_norms_low_and_the_loss_wide),
      cmocka_unit_test(accumulation_says_what_dice_makes_of_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
