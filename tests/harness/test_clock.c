/* Durations while the wall clock jumps. Linked with --wrap: the wall clock is this file's. The cell runs in
 * this process, since a child would have its own. */
#include "tests/harness/fake_cells.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static int64_t wall_offset_s, wall_calls;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
  int result = __real_clock_gettime(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
    now->tv_sec += wall_offset_s;
    wall_calls++;
  }
  return result;
}

time_t __real_time(time_t *now);
time_t __wrap_time(time_t *now);
time_t __wrap_time(time_t *now) {
  time_t result = __real_time(NULL) + wall_offset_s;
  wall_calls++;
  if (now) *now = result;
  return result;
}

int __real_gettimeofday(struct timeval *now, void *zone);
int __wrap_gettimeofday(struct timeval *now, void *zone);
int __wrap_gettimeofday(struct timeval *now, void *zone) {
  int result = __real_gettimeofday(now, zone);
  now->tv_sec += wall_offset_s;
  wall_calls++;
  return result;
}

/* Half a second, in the middle of which the wall clock jumps. Returns what the monotonic clock says of it. */
static double measure_with_step_of(int64_t jump_s) {
  struct timespec quarter = {.tv_nsec = 250000000};
  wall_offset_s = 0;
  int64_t start = vl_monotonic_ns();
  nanosleep(&quarter, NULL);
  wall_offset_s = jump_s;
  nanosleep(&quarter, NULL);
  return (double)(vl_monotonic_ns() - start) * 1e-9;
}

/* Asleep for 0.5 s it can be no less; a loaded machine may wake it later, so only the lower side is exact and
 * the upper one far from what either jump would give. */
static void durations_do_not_follow_the_wall_clock_i12(void **state) {
  (void)state;
  static const int64_t jumps_s[] = {-2, 3600};
  for (int i = 0; i < 2; i++) {
    double seconds = measure_with_step_of(jumps_s[i]);
    assert_true(seconds >= 0.5 && seconds < 0.5 * 1.1 + 1.0);
  }
}

/* The timestamp is the wall clock's, with its zone, and apart from every duration. */
static void timestamps_follow_it_with_a_zone_i12(void **state) {
  (void)state;
  char before[32], after[32];
  wall_offset_s = 0;
  vl_utc_text(before, sizeof before);
  wall_offset_s = 3600;
  vl_utc_text(after, sizeof after);
  assert_true(wall_calls > 0);
  assert_string_not_equal(before, after);
  assert_int_equal(after[strlen(after) - 1], 'Z');

  SuiteCell cell = fake_cell(1, "");
  CellResult *result = vl_allocate(sizeof *result);
  assert_int_equal(fake_cell_run(&cell.spec, NULL, result).code, VL_OK);
  json_t *record = vl_record_create(&cell, result);
  assert_memory_equal(vl_record_text(record, "created_utc"), after, 13); /* to the hour */
  assert_true(vl_record_real(record, "step_s") > 0);
  json_decref(record);
  vl_cell_result_clear(result);
  free(result);
}

/* Time-outs too: with the wall clock an hour ahead a cell of 5 s keeps its time. */
static void time_limits_do_not_follow_the_wall_clock_i12(void **state) {
  (void)state;
  Runner *runner;
  RunnerOptions options = {.grace_s = 0.1};
  SuiteCell cell = fake_cell(1, "slow:100");
  json_t *record;
  cell.timeout_s = 30;
  wall_offset_s = 0;
  assert_int_equal(vl_runner_create(&options, &runner).code, VL_OK);
  wall_offset_s = 3600;
  assert_int_equal(vl_runner_cell(runner, &cell, &record, NULL, NULL).code, VL_OK);
  assert_string_equal(vl_record_text(record, "status"), "ok");
  json_decref(record);
  vl_runner_destroy(&runner);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "cell") == 0) return vl_worker_serve(stdin, 3, fake_cell_run);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(durations_do_not_follow_the_wall_clock_i12),
      cmocka_unit_test(timestamps_follow_it_with_a_zone_i12),
      cmocka_unit_test(time_limits_do_not_follow_the_wall_clock_i12),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
