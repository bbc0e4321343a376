/* fit: how the ladder is climbed, with an engine whose needs are known, and that its own one is in order.
 * This program is its own worker. */
#include "harness/fit.h"
#include "tests/harness/fake_cells.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { PARAMETERS = 1 << 18 }; /* 1 MiB of gradients */
static const int64_t mib = 1 << 20;

/* What each item takes off 16 MiB a sample; recompute=norm adds, weights=on-use takes off when
 * little is left, fuse is refused by its pass and pool-index by a check. update takes off what does not grow
 * with the batch, above a peak of activations. */
static Status fake_plan(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  (void)observer;
  SuiteCell cell = {.spec = *spec};
  Recipe recipe;
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  if (vl_recipe_value(&recipe, "pool-index")) return vl_error(VL_INVALID, "no pooling here");
  const char *checkpoint = vl_recipe_value(&recipe, "checkpoint");
  int64_t sample = 16;
  if (vl_recipe_value(&recipe, "amp")) sample /= 2;
  if (checkpoint) sample /= strcmp(checkpoint, "1") == 0 ? 4 : 2;
  if (vl_recipe_value(&recipe, "recompute")) sample *= 2;
  if (vl_recipe_value(&recipe, "weights") && sample <= 2) sample--;
  int64_t fixed = vl_recipe_value(&recipe, "update") && spec->micro_batch < 8 ? 1 : 2;
  const char *accumulate = vl_recipe_value(&recipe, "accumulate");
  int64_t batch = spec->micro_batch, parts = 1;
  if (accumulate && strcmp(accumulate, "auto") == 0) { /* which keeps gradients: 1 MiB */
    fixed++;
    while (parts < spec->micro_batch && (fixed + sample * batch) * mib > spec->capacity_bytes)
      batch = (spec->micro_batch + parts) / (parts + 1), parts++;
  }
  fake_result(&cell, 1, result);
  result->micro_batch = batch;
  result->accumulate = parts;
  result->parameters = PARAMETERS;
  result->flops_per_step = checkpoint ? 400 : 300;
  result->recompute_flops = checkpoint ? 100 : 0;
  result->needed_bytes = result->needed_low_bytes = (fixed + sample * batch) * mib;
  const char *status = vl_recipe_value(&recipe, "fuse")                                  ? "unsupported"
                       : !spec->unlimited && result->needed_bytes > spec->capacity_bytes ? "oom"
                                                                                         : "ok";
  snprintf(result->status, sizeof result->status, "%s", status);
  if (strcmp(status, "oom") == 0) result->needed_bytes = result->needed_low_bytes = -1;
  if (strcmp(status, "unsupported") == 0) snprintf(result->error, sizeof result->error, "no norm here");
  return vl_ok();
}

static const FitStep steps[] = {
    {.item = "fuse=norm"},
    {.item = "amp=fp16", .where = FIT_WITHOUT_BF16},
    {.item = "amp=bf16", .where = FIT_WITH_BF16},
    {.item = "update=in-backward"},
    {.item = "pool-index=u8"},
    {.item = "checkpoint=2", .turn_on = "by hand"},
    {.item = "amp=bf16"},
    {.item = "recompute=norm"},
    {.item = "update=in-backward"},
    {.item = "checkpoint=1"},
};
enum { STEPS = sizeof steps / sizeof steps[0] };

static int set_up(void **state) {
  RunnerOptions options = {0};
  return vl_runner_create(&options, (Runner **)state).code == VL_OK ? 0 : -1;
}

static int tear_down(void **state) {
  vl_runner_destroy((Runner **)state);
  return 0;
}

/* 10 samples: 162 MiB, 82 with amp, 42 with checkpoint=2, 22 with checkpoint=1. */
static SuiteCell start_cell(int64_t capacity_mib) {
  SuiteCell cell = fake_cell(10, "");
  snprintf(cell.spec.device, sizeof cell.spec.device, "plan");
  cell.spec.capacity_bytes = capacity_mib * mib;
  return cell;
}

static void check_rung(const Rung *rung, const char *recipe, RungEnd end, int64_t needed_mib) {
  assert_string_equal(rung->recipe, recipe);
  assert_int_equal(rung->end, end);
  assert_int_equal(rung->needed_bytes, needed_mib < 0 ? -1 : needed_mib * mib);
}

static void stops_at_the_first_that_fits(void **state) {
  static Fit fit;
  SuiteCell cell = start_cell(82);
  assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, false, &fit).code, VL_OK);
  assert_int_equal(fit.rung_count, 3);
  assert_int_equal(fit.answer, 2);
  check_rung(&fit.rungs[0], "baseline", RUNG_TOO_LARGE, 162);
  check_rung(&fit.rungs[1], "fuse=norm", RUNG_REFUSED, -1);
  check_rung(&fit.rungs[2], "amp=bf16", RUNG_FITS, 82); /* exactly the capacity */
  assert_non_null(strstr(fit.rungs[1].reason, "no norm here"));
  assert_string_equal(fit.rungs[2].reason, "");
  assert_int_equal(fit.rungs[0].preserves, PRESERVES_BITWISE);
  assert_int_equal(fit.rungs[2].preserves, PRESERVES_TOLERANCE);
  cell.spec.capacity_bytes = 162 * mib;
  assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, false, &fit).code, VL_OK);
  assert_int_equal(fit.rung_count, 1);
  assert_int_equal(fit.answer, 0);
}

static void each_joins_what_gained_before(void **state) {
  static Fit fit;
  SuiteCell cell = start_cell(42);
  assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, true, &fit).code, VL_OK);
  assert_int_equal(fit.rung_count, 11); /* the second amp says nothing new */
  check_rung(&fit.rungs[3], "amp=bf16 update=in-backward", RUNG_NO_GAIN, 82);
  check_rung(&fit.rungs[4], "pool-index=u8 amp=bf16", RUNG_REFUSED, -1);
  check_rung(&fit.rungs[5], "amp=bf16 checkpoint=2", RUNG_FITS, 42);
  check_rung(&fit.rungs[6], "amp=bf16 checkpoint=2 recompute=norm", RUNG_NO_GAIN, 82);
  check_rung(&fit.rungs[7], "amp=bf16 update=in-backward checkpoint=2", RUNG_NO_GAIN, 42);
  check_rung(&fit.rungs[8], "amp=bf16 checkpoint=1", RUNG_FITS, 22); /* in the other's place */
  check_rung(&fit.rungs[9], "amp=bf16 update=in-backward checkpoint=1", RUNG_NO_GAIN, 22); /* again */
  check_rung(&fit.rungs[10], "amp=bf16 checkpoint=1 recompute=norm", RUNG_NO_GAIN, 42);
  assert_int_equal(fit.answer, 5);
  assert_int_equal(fit.leanest, 8);
  assert_true(vl_rung_extra_flops(&fit.rungs[0]) == 0.0);
  assert_true(vl_rung_extra_flops(&fit.rungs[8]) == 100.0 / 300.0);
  assert_string_equal(vl_fit_turn_on(fit.rungs[5].step), "by hand");
  assert_string_equal(vl_fit_turn_on(fit.rungs[2].step), vl_optimization_find("amp")->turn_on);
}

/* Otherwise a larger batch would fit with a recipe of which the ladder says that none fits. */
static void what_gained_nothing_joins_what_came_later(void **state) {
  static const FitStep two[] = {{.item = "weights=on-use"}, {.item = "checkpoint=1"}};
  static Fit fit;
  SuiteCell cell = start_cell(12);
  snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "amp=bf16");
  assert_int_equal(vl_fit_climb(*state, &cell, two, 2, false, &fit).code, VL_OK);
  assert_int_equal(fit.rung_count, 4);
  check_rung(&fit.rungs[1], "amp=bf16 weights=on-use", RUNG_NO_GAIN, 82);
  check_rung(&fit.rungs[2], "amp=bf16 checkpoint=1", RUNG_TOO_LARGE, 22);
  check_rung(&fit.rungs[3], "amp=bf16 weights=on-use checkpoint=1", RUNG_FITS, 12);
  assert_int_equal(fit.answer, 3);
}

/* A V100 multiplies no bf16. */
static void half_precision_is_what_the_card_has(void **state) {
  static Fit fit;
  static const struct {
    const char *profile, *recipe;
  } cards[] = {{"V100-32GB", "amp=fp16"}, {"A100-80GB", "amp=bf16"}};
  for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
    SuiteCell cell = start_cell(82);
    snprintf(cell.spec.profile, sizeof cell.spec.profile, "%s", cards[i].profile);
    assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, false, &fit).code, VL_OK);
    assert_int_equal(fit.answer, 2);
    check_rung(&fit.rungs[2], cards[i].recipe, RUNG_FITS, 82);
  }
}

static void begins_with_what_one_runs_today(void **state) {
  static Fit fit;
  SuiteCell cell = start_cell(42);
  snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "checkpoint=2  amp=bf16");
  assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, false, &fit).code, VL_OK);
  assert_int_equal(fit.rung_count, 1);
  check_rung(&fit.rungs[0], "amp=bf16 checkpoint=2", RUNG_FITS, 42);
  /* A start that is refused has no ladder. */
  snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "fuse=norm");
  assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, false, &fit).code, VL_UNSUPPORTED);
  snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "pool-index=u8");
  assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, false, &fit).code, VL_INVALID);
}

static void largest_batches_when_nothing_fits(void **state) {
  static Fit fit;
  FitBatch whole, part;
  SuiteCell cell = start_cell(15);
  assert_int_equal(vl_fit_climb(*state, &cell, steps, STEPS, false, &fit).code, VL_OK);
  assert_int_equal(fit.answer, -1);
  assert_int_equal(vl_fit_largest(*state, &cell, &fit, &whole, &part).code, VL_OK);
  /* 7 samples need 1 + 14 MiB with update=in-backward, which gained nothing for 10. */
  assert_string_equal(whole.recipe, "amp=bf16 update=in-backward checkpoint=1");
  assert_int_equal(whole.batch, 7);
  assert_int_equal(whole.needed_bytes, 15 * mib);
  /* It excludes accumulation. With 1 MiB of gradients kept there is room for 6, and two parts are 5 each. */
  assert_string_equal(part.recipe, "amp=bf16 accumulate=2 checkpoint=1");
  assert_int_equal(part.batch, 5);
  assert_int_equal(part.accumulate, 2);
  assert_int_equal(part.needed_bytes, 13 * mib);
  cell.spec.capacity_bytes = mib;
  assert_int_equal(vl_fit_largest(*state, &cell, &fit, &whole, &part).code, VL_OK);
  assert_int_equal(whole.batch, 0);
  assert_int_equal(part.batch, 0);
}

/* A mistake is no start, and so in no answer. */
static void nothing_is_advised_beside_a_mistake(void **state) {
  static const char *const mistakes[] = {"accumulate-wrong=2", "amp=bf16 retain-graph=every-step"};
  static Fit fit;
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    SuiteCell cell = start_cell(82);
    snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "%s", mistakes[i]);
    Status status = vl_fit_climb(*state, &cell, steps, STEPS, false, &fit);
    assert_int_equal(status.code, VL_INVALID);
    assert_non_null(strstr(status.message, "is a mistake, made to be measured"));
  }
}

/* Every line names an item that recipes take, and what was cheaper in operations comes first. */
static void own_ladder_is_in_order(void **state) {
  (void)state;
  int32_t count, stack = -1, recompute = -1;
  const FitStep *own = vl_fit_ladder(&count);
  assert_true(count > 0 && count < VL_MAX_RUNGS);
  for (int32_t i = 0; i < count; i++) {
    Recipe recipe;
    assert_int_equal(vl_recipe_parse(own[i].item, &recipe).code, VL_OK);
    assert_true(strlen(vl_fit_turn_on(&own[i])) > 0);
    assert_true(vl_recipe_preserves(&recipe, NULL) != PRESERVES_DIFFERENT_MODEL);
    assert_null(vl_recipe_mistake(&recipe));
    if (strncmp(own[i].item, "checkpoint", 10) == 0 && recompute < 0) recompute = i;
    if (strncmp(own[i].item, "stack", 5) == 0) stack = i;
    if (strncmp(own[i].item, "amp=", 4) == 0) assert_true(recompute < 0);
  }
  assert_int_equal(stack, count - 1);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "cell") == 0) return vl_worker_serve(stdin, 3, fake_plan);
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(stops_at_the_first_that_fits),
      TEST(each_joins_what_gained_before),
      TEST(what_gained_nothing_joins_what_came_later),
      TEST(half_precision_is_what_the_card_has),
      TEST(begins_with_what_one_runs_today),
      TEST(nothing_is_advised_beside_a_mistake),
      TEST(largest_batches_when_nothing_fits),
      cmocka_unit_test(own_ladder_is_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
