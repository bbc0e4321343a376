/* The first bad night is found: levels of a noisy series are told apart and dated, noise alone and one wild
 * night are none, exact values change by one byte, and what came back is no regression any more. */
#include "harness/history.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Metric *metric_named(const char *name) {
  int32_t count;
  const Metric *metrics = vl_metric_all(&count);
  for (int32_t i = 0; i < count; i++)
    if (strcmp(metrics[i].column, name) == 0) return &metrics[i];
  fail();
  return NULL;
}

/* A normal deviate: Box and Muller's. */
static double normal(uint64_t key, uint64_t element) {
  double u = (vl_random_word(key, 0, 2 * element) + 0.5) / 4294967296.0;
  double v = vl_random_word(key, 0, 2 * element + 1) / 4294967296.0;
  return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

enum { NIGHTS = 20 };

/* Times with 1.5 % of noise and a wild night now and then (+30 %, one in thirty), longer from `at` on. */
static int32_t series(uint64_t trial, int32_t at, double factor, HistoryLine *line) {
  static HistoryPoint points[NIGHTS];
  uint64_t key = vl_random_key(3, trial, "nights");
  *line = (HistoryLine){.metric = metric_named("step_s"), .points = points, .count = NIGHTS};
  for (int32_t i = 0; i < NIGHTS; i++) {
    double wild = vl_random_word(key, 1, (uint64_t)i) % 30 == 0 ? 1.3 : 1;
    points[i] =
        (HistoryPoint){i, 0.1 * exp(0.015 * normal(key, (uint64_t)i)) * wild * (i >= at ? factor : 1)};
  }
  vl_history_judge(line, false);
  return line->change_count;
}

static void levels_are_found_and_dated(void **state) {
  (void)state;
  enum { TRIALS = 300 };
  int false_alarms = 0, found = 0, dated = 0;
  for (uint64_t trial = 0; trial < TRIALS; trial++) {
    HistoryLine line;
    false_alarms += series(trial, NIGHTS, 1, &line) > 0;
    series(trial, 13, 1.05, &line);
    const HistoryChange *change = vl_history_regression(&line);
    found += change != NULL;
    dated += change && abs(change->point - 13) <= 1;
  }
  print_message("  %d of %d found changes where none is; %d slowdowns of 5 %% found, %d to a night\n",
                false_alarms, TRIALS, found, dated);
  /* False alarms are what makes people stop reading: after seven nights four of five slowdowns are told, the
   * rest later. */
  assert_true(false_alarms <= TRIALS / 100);
  assert_true(found >= TRIALS * 4 / 5);
  assert_true(dated >= found * 9 / 10);
}

/* By hand: of {0, 0, 0, 10, 10, 10} the sides 3 and 3 have distance 2 * 10 - 0 - 0; of 20 orders 2 split as
 * well, which is no evidence. Of 5 and 5 it is 2 in 252. */
static void few_values_are_no_evidence(void **state) {
  (void)state;
  double values[] = {0, 0, 0, 0, 0, 10, 10, 10, 10, 10};
  ChangePoint points[10];
  assert_int_equal(vl_statistics_change_points(values + 2, 6, 0.05, points), 0);
  assert_int_equal(vl_statistics_change_points(values, 10, 0.05, points), 1);
  assert_int_equal(points[0].at, 5);
  assert_true(points[0].p < 0.02 && points[0].p > 0.001);
  for (int64_t n = 0; n < 4; n++)
    assert_int_equal(vl_statistics_change_points(values, n, 0.05, points), 0);
  assert_int_equal(vl_statistics_change_points(values, 5, 0.05, points), 0); /* all the same */
}

static HistoryLine exact(const char *name, const double *values, int32_t count) {
  static HistoryPoint points[16];
  for (int32_t i = 0; i < count; i++)
    points[i] = (HistoryPoint){i, values[i]};
  HistoryLine line = {.metric = metric_named(name), .points = points, .count = count};
  vl_history_judge(&line, true);
  return line;
}

static void bytes_are_exact_and_what_came_back_is_forgiven(void **state) {
  (void)state;
  double more[] = {100, 100, 101, 101}, back[] = {100, 110, 110, 100}, partly[] = {100, 110, 108},
         up[] = {1, 1, 0};
  HistoryLine line = exact("peak_allocated_bytes", more, 4);
  assert_int_equal(line.change_count, 1);
  assert_int_equal(vl_history_regression(&line)->point, 2);
  line = exact("peak_allocated_bytes", back, 4);
  assert_int_equal(line.change_count, 2);
  assert_int_equal(line.changes[1].judgement, JUDGED_BETTER);
  assert_null(vl_history_regression(&line));
  line = exact("peak_allocated_bytes", partly, 3);
  assert_int_equal(vl_history_regression(&line)->point, 1);
  line = exact("status", up, 3);
  assert_int_equal(vl_history_regression(&line)->point, 2);
  line = exact("params", more, 4); /* neither way is the better one */
  assert_int_equal(line.changes[0].judgement, JUDGED_CHANGED);
  assert_null(vl_history_regression(&line));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(levels_are_found_and_dated),
      cmocka_unit_test(few_values_are_no_evidence),
      cmocka_unit_test(bytes_are_exact_and_what_came_back_is_forgiven),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
