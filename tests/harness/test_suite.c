/* Suites: expansion, and that every mistake is named with its place. */
#include "tests/harness/temporary_directory.h"

#include "harness/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Suite *load(const char *directory, const char *text) {
  char *path = path_in(directory, "suite.yaml");
  Suite *suite;
  write_whole_file(path, text);
  Status status = vl_suite_load(path, &suite);
  assert_string_equal(status.message, "");
  free(path);
  return suite;
}

/* The message holds the place and each of the parts. */
static void refuse(const char *directory, const char *text, const char *place, const char *part) {
  char *path = path_in(directory, "suite.yaml"), full[4400];
  Suite *suite;
  write_whole_file(path, text);
  Status status = vl_suite_load(path, &suite);
  assert_int_equal(status.code, VL_INVALID);
  assert_null(suite);
  snprintf(full, sizeof full, "%s:%s", path, place);
  if (!strstr(status.message, full) || !strstr(status.message, part))
    fail_msg("expected \"%s\" and \"%s\" in: %s", full, part, status.message);
  free(path);
}

static void axes_are_multiplied_the_last_fastest(void **state) {
  Suite *suite = load(*state, "name: t\n"
                              "defaults: {case: resnet50, device: plan, settings: {size: 96}}\n"
                              "axes:\n  batch: [8, 16]\n  recipe: [baseline, amp=bf16]\n"
                              "exclude:\n  - {batch: 16, recipe: amp=bf16}\n"
                              "cells:\n  - {batch: 4, device: cpu, timeout_s: 2.5, repeat: 2}\n"
                              "  - {batch: 8}\n"); /* named already */
  assert_int_equal(suite->cell_count, 5);
  assert_int_equal(suite->cells[0].spec.micro_batch, 8);
  assert_string_equal(suite->cells[1].spec.recipe, "amp=bf16");
  assert_int_equal(suite->cells[2].spec.micro_batch, 16);
  assert_string_equal(suite->cells[2].spec.recipe, "baseline");
  assert_string_equal(suite->cells[0].spec.settings[0], "size=96");
  assert_string_equal(suite->cells[3].spec.device, "cpu");
  assert_true(suite->cells[3].timeout_s == 2.5);
  assert_int_equal(suite->cells[4].repeat, 1);
  vl_suite_destroy(&suite);
  assert_null(suite);
}

static void lists_in_cells_and_settings_are_axes(void **state) {
  Suite *suite = load(*state, "name: t\n"
                              "cells:\n"
                              "  - {case: resnet50, batch: [1, 2, 4], settings: {size: [64, 96]}}\n");
  assert_int_equal(suite->cell_count, 6);
  assert_string_equal(suite->cells[1].spec.settings[0], "size=96");
  vl_suite_destroy(&suite);
}

/* Every choice among three parts, of which one is there in two ways; repetitions in rounds. */
static void factors_are_chosen_in_every_way(void **state) {
  Suite *suite =
      load(*state, "name: t\n"
                   "cells:\n"
                   "  - {case: resnet50, batch: 4, repeat: 2, recipe: [baseline, amp=bf16],\n"
                   "     factors: [checkpoint=1, [update=in-backward, recompute=norm], inplace=all]}\n");
  assert_int_equal(suite->cell_count, 2 * 2 * 12);
  for (int i = 0; i < 48; i++) {
    Recipe recipe;
    assert_int_equal(vl_recipe_parse(suite->cells[i].spec.recipe, &recipe).code, VL_OK);
    int choice = i % 12;
    assert_int_equal(suite->cells[i].repeat, i / 24);
    assert_int_equal(vl_recipe_value(&recipe, "amp") != NULL, i / 12 % 2);
    assert_int_equal(vl_recipe_value(&recipe, "checkpoint") != NULL, choice % 2);
    assert_int_equal(vl_recipe_value(&recipe, "update") != NULL, choice / 2 % 3 == 1);
    assert_int_equal(vl_recipe_value(&recipe, "recompute") != NULL, choice / 2 % 3 == 2);
    assert_int_equal(vl_recipe_value(&recipe, "inplace") != NULL, choice / 6);
  }
  assert_string_equal(suite->cells[0].spec.recipe, "baseline");
  vl_suite_destroy(&suite);
}

static void searches_are_cells_of_their_own_kind(void **state) {
  Suite *suite = load(*state, "name: t\n"
                              "defaults: {case: resnet50, device: cpu, batch: 16}\n"
                              "max_batch:\n  - {recipe: [baseline, amp=bf16], capacity: [8GiB, 16GiB]}\n");
  assert_int_equal(suite->cell_count, 4);
  for (int i = 0; i < 4; i++) {
    assert_true(suite->cells[i].max_batch);
    assert_string_equal(suite->cells[i].spec.device, "plan");
  }
  assert_true(suite->cells[1].spec.capacity_bytes == INT64_C(16) << 30);
  vl_suite_destroy(&suite);
}

static void mistakes_are_named_with_their_place(void **state) {
  static const struct {
    const char *text, *place, *part;
  } mistakes[] = {
      {"name: t\naxis: {}\n", "2:1: ", "accepted: name, title"},
      {"name: t\ncells:\n  - {case: resnet50, bacth: 4}\n",
       "3:22: ", "unknown key \"bacth\"; accepted: case, batch"},
      {"name: t\ncells:\n  - {case: resnet50, batch: 0}\n", "3:29: ", "'0'"},
      {"name: t\ncells:\n  - {case: resnet50, batch: many}\n", "3:29: ", "'many'"},
      {"name: t\ncells:\n  - {case: resnet5}\n", "3:5: ", "resnet5"},
      {"name: t\ncells:\n  - {batch: 4}\n", "3:5: ", "needs a case"},
      {"name: t\ncells:\n  - {case: resnet50, recipe: amp=f32x}\n", "3:30: ", "amp"},
      {"name: t\ncells:\n  - {case: resnet50, settings: {width: 9}}\n", "3:5: ", "width"},
      {"name: t\ncells:\n  - {case: resnet50, device: tpu}\n", "3:5: ", "tpu"},
      {"name: t\ncells:\n  - {case: resnet50, capacity: lots}\n", "3:32: ", "lots"},
      {"name: t\ncells:\n  - {case: resnet50, steps: 0}\n", "3:29: ", "'0'"},
      {"name: t\ncells:\n  - {case: resnet50, timeout_s: -1}\n", "3:33: ", "above 0"},
      {"name: t\ncells:\n  - {case: resnet50, inference: maybe}\n", "3:33: ", "true nor false"},
      {"name: t\ncells:\n  - {case: resnet50, factors: amp=bf16}\n", "3:31: ", "a list"},
      {"name: t\ncells:\n  - {case: resnet50, factors: [amp=bf17]}\n", "3:32: ", "amp"},
      {"name: t\ncells:\n  - {case: resnet50, factors: [baseline]}\n", "3:32: ", "changes nothing"},
      {"name: t\ncells:\n  - {case: resnet50, recipe: amp=bf16, factors: [amp=fp16]}\n",
       "3:50: ", "amp is given twice"},
      {"name: t\ncells:\n  - {case: resnet50, batch: []}\n", "3:29: ", "no values"},
      {"name: t\ncells:\n  - {case: resnet50, batch: 4, micro_batch: 2}\n", "3:5: ", "one of them"},
      {"name: t\ncells: 7\n", "2:8: ", "list"},
      {"name: t\ncells:\n  - 7\n", "3:5: ", "expected a map"},
      {"name: A b\ncells: []\n", "1:7: ", "lower-case"},
      {"name: t\n", "1:1: ", "needs axes, cells or max_batch"},
      {"name: t\nname: u\n", "2:1: ", "twice"},
      {"name: t\nmax_batch:\n  - {case: resnet50}\n", "3:5: ", "needs a capacity"},
      {"name: t\naxes: {case: [resnet50]}\nexclude:\n  - {batch: 9}\n", "4:5: ", "leaves nothing out"},
      {"name: t\ncells:\n  - {case: [resnet50\n", "4:1: ", "did not find"},
      {"- 1\n", "1:1: ", "expected a map"},
      {"name: &a [*a]\n", "1:7: ", "too deep"},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++)
    refuse(*state, mistakes[i].text, mistakes[i].place, mistakes[i].part);
}

/* Aliases of aliases: ten to the eighth values from eight lines. */
static void a_file_cannot_multiply_itself(void **state) {
  char text[1024] = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 8; i++) {
    size_t used = strlen(text);
    int p = i - 1;
    snprintf(text + used, sizeof text - used,
             "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, p, p, p, p, p, p, p, p,
             p, p);
  }
  refuse(*state, text, "", "too many values");
}

static void suites_that_come_with_the_program_load(void **state) {
  (void)state;
  Suite *suite;
  Status status = vl_suite_load("nowhere", &suite);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "quick"));
  static const char *const names[] = {"quick", "resnet-growth", "unet-case", "checkpoint", "amp"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    status = vl_suite_load(names[i], &suite);
    assert_string_equal(status.message, "");
    assert_string_equal(suite->name, names[i]);
    vl_suite_destroy(&suite);
  }
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up_directory, tear_down_directory)
  const struct CMUnitTest tests[] = {
      TEST(axes_are_multiplied_the_last_fastest),   TEST(lists_in_cells_and_settings_are_axes),
      TEST(factors_are_chosen_in_every_way),        TEST(searches_are_cells_of_their_own_kind),
      TEST(mistakes_are_named_with_their_place),    TEST(a_file_cannot_multiply_itself),
      TEST(suites_that_come_with_the_program_load),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
