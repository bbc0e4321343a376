/* Fits of bytes over the batch: known curves give their parameters back, and points that decide nothing are
 * said to. */
#include "harness/growth.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { COUNT = 9 };
static const double batches[COUNT] = {1, 8, 16, 32, 64, 96, 128, 192, 256};

static void fill(GrowthPoint points[COUNT], GrowthShape shape, double a, double b) {
  GrowthFit truth = {.shape = shape, .fitted = true, .a = a, .b = b};
  for (int i = 0; i < COUNT; i++)
    points[i] = (GrowthPoint){.batch = batches[i], .bytes = vl_growth_value(&truth, batches[i])};
}

/* Each shape is recovered from its own curve, to the rounding of sums of nine terms (2^-53 each, amplified by
 * the logarithm of 10^9 and by batches up to 128: 1e-10 is ample). */
static void every_shape_recovers_its_parameters(void **state) {
  (void)state;
  static const struct {
    GrowthShape shape;
    double a, b;
  } curves[] = {
      {GROWTH_AFFINE, 4.1e8, 84.3e6}, {GROWTH_POWER, 2.5e8, 0.8}, {GROWTH_EXPONENTIAL, 2.26e9, 0.00967}};
  for (size_t i = 0; i < sizeof(curves) / sizeof(curves[0]); i++) {
    GrowthPoint points[COUNT];
    fill(points, curves[i].shape, curves[i].a, curves[i].b);
    for (int shape = 0; shape < GROWTH_SHAPE_COUNT; shape++) {
      GrowthFit fit = vl_growth_fit((GrowthShape)shape, points, COUNT, 128);
      assert_true(fit.fitted);
      assert_int_equal(fit.fit_count, 7);
      assert_int_equal(fit.held_out_count, 2);
      if ((GrowthShape)shape == curves[i].shape) {
        assert_true(fabs(fit.a / curves[i].a - 1) < 1e-10);
        assert_true(fabs(fit.b / curves[i].b - 1) < 1e-10);
        assert_true(fit.held_out_error < 1e-9);
      } else {
        assert_true(fit.held_out_error > 0.05);
      }
    }
  }
}

/* (1, 1), (2, 2), (3, 2): slope 1/2, intercept 2/3; held out (4, 4): 2 2/3 is off by a third. */
static void affine_by_hand(void **state) {
  (void)state;
  const GrowthPoint points[] = {{1, 1}, {2, 2}, {3, 2}, {4, 4}};
  GrowthFit fit = vl_growth_fit(GROWTH_AFFINE, points, 4, 3);
  assert_true(fabs(fit.b - 0.5) < 1e-15);
  assert_true(fabs(fit.a - 2.0 / 3) < 1e-15);
  assert_true(fabs(fit.held_out_error - 1.0 / 3) < 1e-15);
  assert_true(fabs(fit.fit_error - 1.0 / 6) < 1e-15); /* 7/6 for 1, 5/3 for 2, 13/6 for 2 */
  assert_true(fabs(vl_growth_slope(points, 3) - 0.5) < 1e-15);
}

/* The refined exponential is a minimum of the relative error: nudging either parameter makes it worse. */
static void exponential_minimises_relative_error(void **state) {
  (void)state;
  GrowthPoint points[COUNT];
  fill(points, GROWTH_AFFINE, 4.1e8, 84.3e6);
  GrowthFit fit = vl_growth_fit(GROWTH_EXPONENTIAL, points, COUNT, 128);
  double sums[5];
  const double nudges[5][2] = {{0, 0}, {1e-3, 0}, {-1e-3, 0}, {0, 1e-5}, {0, -1e-5}};
  for (int n = 0; n < 5; n++) {
    GrowthFit nudged = fit;
    nudged.a *= 1 + nudges[n][0];
    nudged.b += nudges[n][1];
    sums[n] = 0;
    for (int i = 0; i < 7; i++)
      sums[n] += pow(vl_growth_value(&nudged, points[i].batch) / points[i].bytes - 1, 2);
    assert_true(sums[n] >= sums[0]);
  }
}

static void too_few_batches_are_not_fitted(void **state) {
  (void)state;
  const GrowthPoint points[] = {{64, 4.2e9}, {128, 7.8e9}, {64, 4.3e9}, {256, 1e10}};
  for (int count = 0; count <= 4; count++) {
    GrowthFit fit = vl_growth_fit(GROWTH_AFFINE, points, count, 128);
    assert_false(fit.fitted);
    assert_string_equal(fit.why, "fewer than three different batches");
    assert_true(isnan(fit.a) && isnan(fit.held_out_error) && isnan(vl_growth_value(&fit, 64)));
  }
  assert_true(isnan(vl_growth_slope(points, 1)));
}

/* Equal values are fitted by every shape: no growth, no error. */
static void equal_values_grow_by_nothing(void **state) {
  (void)state;
  const GrowthPoint points[] = {{1, 5e8}, {2, 5e8}, {4, 5e8}, {8, 5e8}};
  for (int shape = 0; shape < GROWTH_SHAPE_COUNT; shape++) {
    GrowthFit fit = vl_growth_fit((GrowthShape)shape, points, 4, 4);
    assert_true(fit.fitted);
    assert_true(fabs(fit.b) < 1e-12);
    assert_true(fit.held_out_error < 1e-12);
  }
}

/* What was not measured is left out, and zero has no logarithm. */
static void missing_and_zero_values(void **state) {
  (void)state;
  const GrowthPoint gaps[] = {{1, 10}, {2, NAN}, {3, 30}, {4, 40}, {5, NAN}};
  GrowthFit fit = vl_growth_fit(GROWTH_AFFINE, gaps, 5, 4);
  assert_true(fit.fitted);
  assert_int_equal(fit.fit_count, 3);
  assert_int_equal(fit.held_out_count, 0);
  assert_true(isnan(fit.held_out_error));
  assert_true(fabs(fit.b - 10) < 1e-12);
  const GrowthPoint zero[] = {{1, 0}, {2, 2}, {3, 3}};
  assert_false(vl_growth_fit(GROWTH_POWER, zero, 3, 3).fitted);
  assert_false(vl_growth_fit(GROWTH_EXPONENTIAL, zero, 3, 3).fitted);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_shape_recovers_its_parameters),
      cmocka_unit_test(affine_by_hand),
      cmocka_unit_test(exponential_minimises_relative_error),
      cmocka_unit_test(too_few_batches_are_not_fitted),
      cmocka_unit_test(equal_values_grow_by_nothing),
      cmocka_unit_test(missing_and_zero_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
