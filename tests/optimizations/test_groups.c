/* groups=g makes sure of what the case built, and refuses what cannot be divided. */
#include "tests/optimizations/programs.h"

#include "tests/graph/networks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A convolution of one channel, one of 8 channels to 12 in groups, and one of windows of one place. */
static void build(int64_t groups, Program *program) {
  Graph *graph = vl_graph_create("volumes");
  vl_program_init(program, graph);
  int64_t shapes[][5] = {{8, 1, 3, 3, 3}, {12, 8 / groups, 3, 3, 3}, {3, 12, 1, 1, 1}};
  Tensor *x = vl_graph_tensor(graph, "images", ROLE_INPUT, DTYPE_F32, 5, (int64_t[]){1, 1, 4, 4, 4});
  for (int32_t i = 0; i < 3; i++) {
    vl_graph_set_scope(graph, "layer%d", i);
    Tensor *w = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 5, shapes[i], (Init){0});
    require_ok(vl_conv(graph, x, w, 1, i < 2 ? 1 : 0, i == 1 ? groups : 1, &x));
  }
  program->logits = x;
}

/* Fault case E1: groups have to divide both channel counts, whoever asks; the refusal has all three numbers.
 */
static void recipes_divide_both_channel_counts_e1(void **state) {
  (void)state;
  static const struct {
    const char *recipe;
    int64_t built;
    StatusCode code;
    const char *says;
  } cases[] = {
      {"groups=4", 4, VL_OK, ""},
      {"groups=1", 1, VL_OK, ""},
      {"groups=3", 1, VL_INVALID, "groups=3 must divide both channel counts of the convolution in layer1"},
      {"groups=12", 1, VL_INVALID, "input 8 and output 12"},
      {"groups=8", 1, VL_INVALID, "input 8 and output 12"},
      {"groups=4", 1, VL_UNSUPPORTED, "layer1 was built with 1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    build(cases[i].built, &program);
    Status status = apply_recipe(cases[i].recipe, &program);
    assert_int_equal(status.code, cases[i].code);
    if (!strstr(status.message, cases[i].says))
      fail_msg("%s: '%s' does not say '%s'", cases[i].recipe, status.message, cases[i].says);
    vl_program_destroy(&program);
  }
  static const char *const none[] = {"groups=0", "groups=-4", "groups=04", "groups=four", "groups="};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    Recipe recipe;
    assert_int_equal(vl_recipe_parse(none[i], &recipe).code, VL_INVALID);
  }
}

static void a_network_without_windows_has_nothing_to_divide(void **state) {
  (void)state;
  static const char *const small[] = {"sequence=16", "layers=1", "hidden=32", "heads=4", "vocabulary=61"};
  Program program;
  build_case("bert-base", 2, small, 5, true, &program);
  assert_unsupported(&program, "groups=4", "no convolution to divide");
}

static void groups_are_another_model(void **state) {
  (void)state;
  Recipe recipe;
  require_ok(vl_recipe_parse("groups=4", &recipe));
  assert_int_equal(vl_recipe_preserves(&recipe, NULL), PRESERVES_DIFFERENT_MODEL);
  assert_int_equal(recipe.items[0].optimization->phase, PHASE_CASE);
  Program program;
  build(1, &program);
  require_ok(vl_recipe_parse("groups=1", &recipe));
  assert_int_equal(vl_recipe_preserves(&recipe, &program), PRESERVES_BITWISE);
  vl_program_destroy(&program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recipes_divide_both_channel_counts_e1),
      cmocka_unit_test(a_network_without_windows_has_nothing_to_divide),
      cmocka_unit_test(groups_are_another_model),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
