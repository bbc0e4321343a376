/* Whether a series of live bytes leaks: growth that goes on, not noise and not a step that happens once. */
#include "base/base.h"
#include "memory/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { STEPS = 200 };
static const double mib = 1 << 20;

/* Within a quarter MiB either way. */
static double noise(int32_t i) {
  return (2.0 * (double)vl_random_unit(vl_random_word(7, 0, (uint64_t)i)) - 1.0) * 0.25;
}

static LeakSign find(double (*value_mib)(int32_t i), int64_t count, double *bytes_per_step) {
  int64_t live_bytes[STEPS];
  for (int32_t i = 0; i < count; i++)
    live_bytes[i] = (int64_t)(value_mib(i) * mib);
  return vl_leak_find(live_bytes, count, bytes_per_step);
}

static double steady(int32_t i) {
  (void)i;
  return 100.0;
}
static double leak(int32_t i) { return 100.0 + 0.5 * i; }
static double noisy(int32_t i) { return 100.0 + noise(i); }
static double one_step(int32_t i) { return i < 5 ? 100.0 : 120.0; }
static double noisy_leak(int32_t i) { return leak(i) + noise(i); }
static double shrinking(int32_t i) { return 100.0 - 0.5 * i; }
static double late_steps(int32_t i) { return 100.0 + (i >= 40) + (i >= 120) + (i >= 121); }
static double every_third(int32_t i) { return 100.0 + 1.5 * (i / 3); }

static void series_of_the_case_b5(void **state) {
  (void)state;
  double rate;
  assert_int_equal(find(leak, STEPS, &rate), LEAK_FOUND);
  assert_true(rate == 0.5 * mib);
  assert_int_equal(find(noisy, STEPS, &rate), LEAK_NONE);
  assert_true(rate == 0.0);
  assert_int_equal(find(one_step, STEPS, &rate), LEAK_NONE);
}

static void other_series_b5(void **state) {
  (void)state;
  double rate;
  assert_int_equal(find(steady, STEPS, &rate), LEAK_NONE);
  assert_int_equal(find(shrinking, STEPS, &rate), LEAK_NONE);
  assert_int_equal(find(late_steps, STEPS, &rate), LEAK_NONE);
  assert_int_equal(find(noisy_leak, STEPS, &rate), LEAK_FOUND);
  assert_true(fabs(rate - 0.5 * mib) < 0.005 * mib); /* two medians, 150 steps apart, off by the noise */
  assert_int_equal(find(every_third, STEPS, &rate), LEAK_FOUND);
  assert_true(fabs(rate - 0.5 * mib) < 0.01 * mib);
}

/* Exact from four samples on when all steps add the same; else undecided before eight when it grew. */
static void short_series_are_not_guessed_b5(void **state) {
  (void)state;
  double rate;
  for (int64_t count = 0; count < 4; count++)
    assert_int_equal(find(leak, count, &rate), LEAK_UNKNOWN);
  assert_int_equal(find(leak, 4, &rate), LEAK_FOUND);
  assert_true(rate == 0.5 * mib);
  assert_int_equal(find(steady, 4, &rate), LEAK_NONE);
  assert_int_equal(find(one_step, 6, &rate), LEAK_UNKNOWN);
  assert_int_equal(find(one_step, 8, &rate), LEAK_NONE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(series_of_the_case_b5),
      cmocka_unit_test(other_series_b5),
      cmocka_unit_test(short_series_are_not_guessed_b5),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
