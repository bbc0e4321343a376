/* BERT, one training step without dropout, against PyTorch in float64 (tests/goldens, made by
 * scripts/goldens): two narrow layers whole, and one layer of BERT-base at full width. The nets are smooth,
 * so that f32 and bf16 runs are held to the float64 gradients directly. */
#include "tests/model/truth.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int load_truths(void **state) {
  static Truth truths[2] = {{.name = "bert_small",
                             .spec = {.case_name = "bert-base",
                                      .settings = {"sequence=24", "layers=2", "hidden=64", "heads=4",
                                                   "vocabulary=500", "dropout=0"},
                                      .setting_count = 6}},
                            {.name = "bert_layer",
                             .spec = {.case_name = "bert-base",
                                      .settings = {"sequence=32", "layers=1", "vocabulary=1000", "dropout=0"},
                                      .setting_count = 4}}};
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

static const Truth *small(void **state) { return &((const Truth *)*state)[0]; }
static const Truth *layer(void **state) { return &((const Truth *)*state)[1]; }

static void graphs_are_pytorch_float64(void **state) {
  truth_check_graph(small(state), 174070);
  truth_check_graph(layer(state), 9437418);
}

static void losses_of_three_adamw_steps_are_pytorch_float64(void **state) {
  truth_check_trajectory(small(state));
  truth_check_trajectory(layer(state));
}

/* Recipes of one stack: stack=vramlab sums the tied table's gradient in another order. */
static void recipes_keep_every_bit_in_double(void **state) {
  static const char *const recipes[] = {"checkpoint=1", "amp=bf16 checkpoint=1", "update=in-backward",
                                        "amp=bf16 update=in-backward"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
    truth_check_every_bit(small(state), recipes[i]);
}

/* The gradient of a key's bias is zero: what rounding leaves of it is compared with the whole bias it is part
 * of. */
static void f32_within_1e_4(void **state) {
  static const char *const recipes[] = {"", "stack=vramlab"};
  for (size_t i = 0; i < 2; i++) {
    TruthErrors errors[] = {truth_run(small(state), recipes[i]), truth_run(layer(state), recipes[i])};
    for (size_t k = 0; k < 2; k++) {
      assert_true(errors[k].worst_gradient <= 1e-4);
      assert_true(errors[k].loss <= 1e-4);
    }
  }
}

static void bf16_within_twice_pytorch(void **state) {
  static const char *const recipes[] = {"amp=bf16", "stack=vramlab amp=bf16"};
  for (size_t i = 0; i < 2; i++) {
    assert_true(truth_run(small(state), recipes[i]).worst_ratio <= 2.0);
    assert_true(truth_run(layer(state), recipes[i]).worst_ratio <= 2.0);
  }
}

enum { GRAPH_TESTS = 3 };

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(graphs_are_pytorch_float64),
      cmocka_unit_test(losses_of_three_adamw_steps_are_pytorch_float64),
      cmocka_unit_test(recipes_keep_every_bit_in_double),
      cmocka_unit_test(f32_within_1e_4),
      cmocka_unit_test(bf16_within_twice_pytorch),
  };
  return truth_main(argc, argv, "bert_golden", tests, sizeof tests / sizeof *tests, GRAPH_TESTS, load_truths,
                    free_truths);
}
