/* Statistics against numbers worked out by hand. */
#include "harness/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-12)

static void median_of_odd_even_one_and_none(void **state) {
  (void)state;
  const double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
  NEAR(vl_statistics_median(odd, 3), 2);
  NEAR(vl_statistics_median(even, 4), 2.5);
  NEAR(vl_statistics_median(odd, 1), 3);
  assert_true(isnan(vl_statistics_median(odd, 0)));
  assert_true(odd[0] == 3); /* the raw order stays */
}

/* |x - 3| of 1 2 3 4 100 is 2 1 0 1 97: median 1. */
static void spread_is_the_median_deviation(void **state) {
  (void)state;
  const double values[] = {1, 2, 3, 4, 100};
  NEAR(vl_statistics_spread(values, 5), 1);
  assert_true(isnan(vl_statistics_spread(values, 0)));
}

/* Type 7 at p = 0.25 of 1 2 3 4: position 0.75, so 1.75. */
static void quantile_interpolates(void **state) {
  (void)state;
  const double values[] = {4, 3, 2, 1};
  NEAR(vl_statistics_quantile(values, 4, 0.25), 1.75);
  NEAR(vl_statistics_quantile(values, 4, 0), 1);
  NEAR(vl_statistics_quantile(values, 4, 1), 4);
}

/* n = 5: even the widest covers 1 - 2/32 = 0.9375. n = 6: 1 - 2/64. n = 10: k = 2, 1 - 2 (1 + 10)/1024.
 * n = 20: k = 6, P(X < 6) = (1 + 20 + 190 + 1140 + 4845 + 15504)/2^20. */
static void interval_has_its_true_coverage(void **state) {
  (void)state;
  double values[20];
  for (int i = 0; i < 20; i++)
    values[i] = i + 1;
  Estimate five = vl_statistics_estimate(values, 5);
  assert_true(isnan(five.low) && isnan(five.high) && isnan(five.coverage));
  NEAR(five.median, 3);
  Estimate six = vl_statistics_estimate(values, 6);
  NEAR(six.low, 1);
  NEAR(six.high, 6);
  NEAR(six.coverage, 0.96875);
  Estimate ten = vl_statistics_estimate(values, 10);
  NEAR(ten.low, 2);
  NEAR(ten.high, 9);
  NEAR(ten.coverage, 1 - 22.0 / 1024);
  Estimate twenty = vl_statistics_estimate(values, 20);
  NEAR(twenty.low, 6);
  NEAR(twenty.high, 15);
  NEAR(twenty.coverage, 1 - 2 * 21700.0 / 1048576);
}

/* The most samples a cell can have: coverage near, and not below, 0.95. */
static void interval_of_many_samples(void **state) {
  (void)state;
  static double values[VL_MAX_STEPS];
  for (int i = 0; i < VL_MAX_STEPS; i++)
    values[i] = i;
  for (int64_t n = 4000; n <= VL_MAX_STEPS; n *= 5) {
    Estimate estimate = vl_statistics_estimate(values, n);
    double half = 1.959964 * sqrt((double)n) / 2; /* by the normal distribution */
    assert_true(estimate.coverage >= 0.95 && estimate.coverage < 0.955);
    assert_true(fabs(estimate.median - estimate.low - half) < 1.5);
    assert_true(fabs(estimate.high - estimate.median - half) < 1.5);
  }
}

static void warmup_is_dropped_and_outliers_flagged_i2(void **state) {
  (void)state;
  const double cold[] = {200, 20, 20, 20, 20}, *kept;
  int64_t count;
  assert_int_equal(vl_statistics_drop_warmup(cold, 5, 1, &kept, &count).code, VL_OK);
  NEAR(vl_statistics_median(kept, count), 20);
  NEAR(vl_statistics_spread(kept, count), 0);

  const double noisy[] = {20, 21, 20, 19, 400};
  bool flags[5];
  NEAR(vl_statistics_median(noisy, 5), 20);
  assert_int_equal(vl_statistics_outliers(noisy, 5, flags), 1);
  assert_true(flags[4] && !flags[0] && !flags[1] && !flags[2] && !flags[3]);
  assert_true(noisy[4] == 400);

  assert_int_equal(vl_statistics_drop_warmup(cold, 5, 5, &kept, &count).code, VL_INVALID);
  assert_int_equal(vl_statistics_drop_warmup(cold, 5, 6, &kept, &count).code, VL_INVALID);
}

static void rate_is_unknown_without_count_or_time_i17(void **state) {
  (void)state;
  const char *reason;
  assert_true(isnan(vl_statistics_rate(0, 0, &reason)));
  assert_non_null(reason);
  assert_true(isnan(vl_statistics_rate(10, 0, &reason)));
  assert_non_null(reason);
  assert_true(isnan(vl_statistics_rate(0, 1000e-9, &reason)));
  assert_non_null(reason);
  assert_true(fabs(vl_statistics_rate(10, 1000e-9, &reason) - 1e7) <= 1e-6);
  assert_null(reason);
  assert_true(isnan(vl_statistics_rate(10, NAN, &reason)));
  assert_true(isnan(vl_statistics_rate(10, INFINITY, &reason)));
}

/* Ratios 2 2 2 3 1 2: median 2, interval from 1 to 3. A drift both share does not matter. */
static void paired_ratio_is_of_pairs(void **state) {
  (void)state;
  const double a[] = {2, 4, 6, 12, 5, 12}, b[] = {1, 2, 3, 4, 5, 6};
  Estimate ratio = vl_statistics_paired_ratio(a, b, 6);
  NEAR(ratio.median, 2);
  NEAR(ratio.low, 1);
  NEAR(ratio.high, 3);
  NEAR(ratio.coverage, 0.96875);
}

/* From tables; of 1 and 2 degrees in closed form: tan(0.475 pi), and sqrt(2) p / sqrt(1 - p^2) at p = 0.95.
 */
static void student_is_that_of_the_tables(void **state) {
  (void)state;
  static const struct {
    int64_t degrees;
    double quantile;
  } rows[] = {{1, 12.7062047362}, {2, 4.3026527297},  {3, 3.1824463053},  {7, 2.3646242516},
              {14, 2.1447866879}, {30, 2.0422724563}, {121, 1.9797637626}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    assert_true(fabs(vl_statistics_student(rows[i].degrees) - rows[i].quantile) < 1e-9);
  assert_true(fabs(vl_statistics_student(1000000) - 1.95996635682) < 1e-6);
  assert_true(isnan(vl_statistics_student(0)));
}

/* Cells none, A, B, AB, C, AC, BC, ABC. One round: A is 22/4 - 6/4 = 4, B 20/4 - 8/4 = 3, AB 18/4 - 10/4 = 2,
 * and C does nothing. The second round is 1 above, A's cells 0.4 less than that and the others 0.4 more: A is
 * (4 + 3.2) / 2. What is left over is 0.2 in each of 16 runs, of 7 degrees: 0.64 / 7; the error of an effect
 * sqrt(0.64 / 7 * 8 / 16 / 2) = 0.151186, and t is 2.364624. */
static void effects_are_differences_of_halves(void **state) {
  (void)state;
  double values[16] = {1, 3, 2, 8, 1, 3, 2, 8}, weights[8];
  static const struct {
    uint32_t which;
    double value;
  } effects[] = {{1, 4}, {2, 3}, {3, 2}, {4, 0}, {5, 0}, {6, 0}, {7, 0}};
  for (size_t i = 0; i < sizeof effects / sizeof effects[0]; i++) {
    vl_statistics_effect_weights(3, effects[i].which, weights);
    Contrast effect = vl_statistics_contrast(values, 8, 1, weights);
    NEAR(effect.value, effects[i].value);
    assert_true(isnan(effect.low) && isnan(effect.high));
  }
  for (int c = 0; c < 8; c++)
    values[8 + c] = values[c] + 1 + (c % 2 == 0 ? 0.4 : -0.4);
  vl_statistics_effect_weights(3, 1, weights);
  Contrast effect = vl_statistics_contrast(values, 8, 2, weights);
  NEAR(effect.value, 3.6);
  assert_true(fabs(effect.high - 3.6 - 2.3646242516 * 0.1511857892) < 1e-9);
  assert_true(fabs(effect.low - 3.6 + 2.3646242516 * 0.1511857892) < 1e-9);
  /* A round that is slower as a whole is no error. */
  for (int c = 0; c < 8; c++)
    values[8 + c] = values[c] + 100;
  effect = vl_statistics_contrast(values, 8, 2, weights);
  NEAR(effect.value, 4);
  assert_true(effect.high - effect.low < 1e-9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(median_of_odd_even_one_and_none),
      cmocka_unit_test(spread_is_the_median_deviation),
      cmocka_unit_test(quantile_interpolates),
      cmocka_unit_test(interval_has_its_true_coverage),
      cmocka_unit_test(interval_of_many_samples),
      cmocka_unit_test(warmup_is_dropped_and_outliers_flagged_i2),
      cmocka_unit_test(rate_is_unknown_without_count_or_time_i17),
      cmocka_unit_test(paired_ratio_is_of_pairs),
      cmocka_unit_test(student_is_that_of_the_tables),
      cmocka_unit_test(effects_are_differences_of_halves),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
