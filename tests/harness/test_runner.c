/* The runner: how each way to end is told apart, and that nothing of a cell is left. This program is its own
 * worker: started as `cell`, it obeys orders instead of running an engine. */
#include "tests/harness/fake_cells.h"
#include "tests/harness/temporary_directory.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct Fixture {
  char *directory, *file;
  Runner *runner;
  int32_t steps_seen;
} Fixture;

static void count_step(void *context, int32_t step, int32_t total) {
  Fixture *fixture = context;
  assert_int_equal(total, 3);
  fixture->steps_seen = step;
}

static int set_up(void **state) {
  Fixture *fixture = vl_allocate(sizeof *fixture);
  fixture->directory = make_temporary_directory();
  fixture->file = path_in(fixture->directory, "file");
  RunnerOptions options = {.grace_s = 1, .step_done = count_step, .context = fixture};
  *state = fixture;
  return vl_runner_create(&options, &fixture->runner).code == VL_OK ? 0 : -1;
}

static int tear_down(void **state) {
  Fixture *fixture = *state;
  vl_runner_destroy(&fixture->runner);
  remove_temporary_directory(fixture->directory);
  free(fixture->directory);
  free(fixture->file);
  free(fixture);
  /* No child of any kind is left. */
  return waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : -1;
}

static json_t *run(Fixture *fixture, const SuiteCell *cell) {
  json_t *record;
  Status status = vl_runner_cell(fixture->runner, cell, &record, NULL, NULL);
  assert_string_equal(status.message, "");
  return record;
}

static void check_status(Fixture *fixture, const char *orders, const char *expected, const char *error_part) {
  SuiteCell cell = fake_cell(2, orders);
  json_t *record = run(fixture, &cell);
  assert_string_equal(vl_record_text(record, "status"), expected);
  const char *error = vl_record_text(record, "error");
  if (error_part) assert_true(error && strstr(error, error_part));
  json_decref(record);
}

static bool process_exists(const char *file) {
  char *text = read_whole_file(file);
  assert_non_null(text);
  pid_t pid = (pid_t)strtol(text, NULL, 10);
  free(text);
  assert_true(pid > 0);
  return kill(pid, 0) == 0 || errno != ESRCH;
}

static void cell_comes_back_with_steps_and_timeline(void **state) {
  Fixture *fixture = *state;
  SuiteCell cell = fake_cell(4, "");
  cell.spec.timeline = true;
  json_t *record;
  TimelineEvent *events, *right = fake_timeline(50);
  int64_t count;
  assert_int_equal(vl_runner_cell(fixture->runner, &cell, &record, &events, &count).code, VL_OK);
  assert_string_equal(vl_record_text(record, "status"), "ok");
  assert_int_equal(vl_record_integer(record, "micro_batch"), 4);
  assert_int_equal(fixture->steps_seen, 3);
  assert_int_equal(count, 50);
  assert_memory_equal(events, right, 50 * sizeof *events);
  free(events);
  free(right);
  json_decref(record);
  OpRecord *right_ops = fake_ops(25);
  const OpRecord *ops = vl_runner_ops(fixture->runner, &count);
  assert_int_equal(count, 25);
  assert_memory_equal(ops, right_ops, 25 * sizeof *ops);
  free(right_ops);
  /* They are that cell's only. */
  cell.spec.timeline = false;
  assert_int_equal(vl_runner_cell(fixture->runner, &cell, &record, NULL, NULL).code, VL_OK);
  assert_null(vl_runner_ops(fixture->runner, &count));
  assert_int_equal(count, 0);
  json_decref(record);
}

static void endings_are_told_apart(void **state) {
  Fixture *fixture = *state;
  check_status(fixture, "crash", "crashed", "signal 11");
  check_status(fixture, "exit", "crashed", "exit code 9");
  check_status(fixture, "oom", "oom", NULL);
  check_status(fixture, "diverged", "diverged", NULL);
  check_status(fixture, "", "ok", NULL); /* and the next one runs */
}

static void bad_spec_and_environment_are_no_results(void **state) {
  Fixture *fixture = *state;
  json_t *record;
  SuiteCell cell = fake_cell(2, "invalid");
  Status status = vl_runner_cell(fixture->runner, &cell, &record, NULL, NULL);
  assert_int_equal(status.code, VL_INVALID);
  assert_string_equal(status.message, "this order is invalid");
  assert_null(record);
  cell = fake_cell(2, "environment");
  assert_int_equal(vl_runner_cell(fixture->runner, &cell, &record, NULL, NULL).code, VL_ENVIRONMENT);
}

/* The cell and a child of it ignore SIGTERM: 2 s limit, 1 s grace, all gone within 4 s, and the next one
 * starts after that. */
static void timeout_ends_the_whole_group_i16(void **state) {
  Fixture *fixture = *state;
  char orders[512];
  snprintf(orders, sizeof orders, "stubborn:%s", fixture->file);
  SuiteCell cell = fake_cell(2, orders);
  cell.timeout_s = 2;
  int64_t start = vl_monotonic_ns();
  json_t *record = run(fixture, &cell);
  double elapsed_s = (double)(vl_monotonic_ns() - start) * 1e-9;
  assert_string_equal(vl_record_text(record, "status"), "timeout");
  assert_true(elapsed_s >= 2 && elapsed_s <= 4);
  assert_false(process_exists(fixture->file));
  json_decref(record);
  check_status(fixture, "", "ok", NULL);
}

static void what_a_good_cell_leaves_behind_is_ended_i16(void **state) {
  Fixture *fixture = *state;
  char orders[512];
  snprintf(orders, sizeof orders, "leave:%s", fixture->file);
  check_status(fixture, orders, "ok", NULL);
  assert_false(process_exists(fixture->file));
}

/* One that has a session of its own is in no group of ours, and is ended all the same; processes that are
 * none of a cell's are not, be they children of ours or in our group. */
static void what_leaves_the_group_is_ended_and_nobody_else_i16(void **state) {
  Fixture *fixture = *state;
  pid_t ours = fork();
  if (ours == 0) {
    sleep(60);
    _exit(0);
  }
  usleep(50000); /* started before the cells, by more than the system's clock tells apart */
  char orders[512];
  static const char *const endings[] = {"", " hang", " crash"};
  static const char *const statuses[] = {"ok", "timeout", "crashed"};
  for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
    unlink(fixture->file);
    snprintf(orders, sizeof orders, "escape:%s slow:20%s", fixture->file, endings[i]);
    SuiteCell cell = fake_cell(2, orders);
    cell.timeout_s = 1;
    json_t *record = run(fixture, &cell);
    assert_string_equal(vl_record_text(record, "status"), statuses[i]);
    assert_false(process_exists(fixture->file));
    json_decref(record);
  }
  assert_int_equal(kill(ours, 0), 0);
  assert_int_equal(waitpid(ours, NULL, WNOHANG), 0);
  kill(ours, SIGKILL);
  waitpid(ours, NULL, 0);
}

/* Two stops while a cell hangs: it is abandoned, with all it started. */
static void second_interrupt_abandons_the_cell_i16(void **state) {
  Fixture *fixture = *state;
  char orders[512];
  snprintf(orders, sizeof orders, "stubborn:%s", fixture->file);
  SuiteCell cell = fake_cell(2, orders);
  json_t *record;
  pid_t me = getpid(), helper = fork();
  if (helper == 0) {
    for (int i = 0; i < 2; i++) {
      usleep(300000);
      kill(me, SIGINT);
    }
    _exit(0);
  }
  Status status = vl_runner_cell(fixture->runner, &cell, &record, NULL, NULL);
  assert_int_equal(status.code, VL_INTERRUPTED);
  assert_null(record);
  assert_false(process_exists(fixture->file));
  assert_true(vl_runner_stop_requested(fixture->runner));
  waitpid(helper, NULL, 0);
}

static void first_interrupt_lets_the_cell_finish(void **state) {
  Fixture *fixture = *state;
  SuiteCell cell = fake_cell(2, "slow:200");
  pid_t me = getpid(), helper = fork();
  if (helper == 0) {
    usleep(100000);
    kill(me, SIGINT);
    _exit(0);
  }
  json_t *record = run(fixture, &cell);
  assert_string_equal(vl_record_text(record, "status"), "ok");
  assert_true(vl_runner_stop_requested(fixture->runner));
  json_decref(record);
  waitpid(helper, NULL, 0);
}

static double cpu_s(int who) {
  struct rusage usage;
  getrusage(who, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Waiting costs less than 1 % of what the cell computes: measuring does not disturb. */
static void parent_sleeps_while_a_cell_runs(void **state) {
  Fixture *fixture = *state;
  double own = cpu_s(RUSAGE_SELF), children = cpu_s(RUSAGE_CHILDREN);
  check_status(fixture, "busy:700", "ok", NULL);
  own = cpu_s(RUSAGE_SELF) - own;
  children = cpu_s(RUSAGE_CHILDREN) - children;
  assert_true(children > 0.5); /* unless the machine is so busy that this says nothing */
  assert_true(own < 0.01 * children);
}

static void plan_cells_share_a_worker_that_is_replaced_when_it_dies(void **state) {
  Fixture *fixture = *state;
  SuiteCell cell = fake_cell(3, "");
  snprintf(cell.spec.device, sizeof cell.spec.device, "plan");
  int64_t start = vl_monotonic_ns();
  for (int i = 0; i < 200; i++) {
    json_t *record = run(fixture, &cell);
    assert_string_equal(vl_record_text(record, "provenance"), "predicted");
    json_decref(record);
  }
  /* A process each would take at least a millisecond each, and far longer under a sanitizer. */
  assert_true(vl_monotonic_ns() - start < INT64_C(20) * 1000000000);
}

static void largest_batch_under_a_capacity(void **state) {
  Fixture *fixture = *state;
  static const int64_t mib[] = {1, 2, 3, 37, 64, 100};
  for (size_t i = 0; i < sizeof mib / sizeof mib[0]; i++) {
    SuiteCell cell = fake_cell(1, "");
    json_t *record;
    snprintf(cell.spec.device, sizeof cell.spec.device, "plan");
    cell.spec.capacity_bytes = mib[i] << 20;
    cell.max_batch = true;
    assert_int_equal(vl_runner_max_batch(fixture->runner, &cell, &record).code, VL_OK);
    assert_int_equal(vl_record_integer(record, "batch"), mib[i]);
    assert_int_equal(vl_record_integer(record, "needed_bytes"), mib[i] << 20);
    assert_string_equal(vl_record_text(record, "kind"), "max-batch");
    json_decref(record);
  }
  SuiteCell cell = fake_cell(1, "");
  json_t *record;
  snprintf(cell.spec.device, sizeof cell.spec.device, "plan");
  cell.spec.capacity_bytes = 1000;
  assert_int_equal(vl_runner_max_batch(fixture->runner, &cell, &record).code, VL_OK);
  assert_int_equal(vl_record_integer(record, "batch"), 0);
  assert_string_equal(vl_record_text(record, "status"), "oom");
  json_decref(record);
}

/* A program that is not there: an error, no hang. */
static void program_that_cannot_start(void **state) {
  (void)state;
  Runner *runner;
  RunnerOptions options = {.program = "/nonexistent/program"};
  SuiteCell cell = fake_cell(1, "");
  json_t *record;
  assert_int_equal(vl_runner_create(&options, &runner).code, VL_OK);
  assert_int_equal(vl_runner_cell(runner, &cell, &record, NULL, NULL).code, VL_ENVIRONMENT);
  vl_runner_destroy(&runner);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "cell") == 0) return vl_worker_serve(stdin, 3, fake_cell_run);
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(cell_comes_back_with_steps_and_timeline),
      TEST(endings_are_told_apart),
      TEST(bad_spec_and_environment_are_no_results),
      TEST(timeout_ends_the_whole_group_i16),
      TEST(what_a_good_cell_leaves_behind_is_ended_i16),
      TEST(what_leaves_the_group_is_ended_and_nobody_else_i16),
      TEST(second_interrupt_abandons_the_cell_i16),
      TEST(first_interrupt_lets_the_cell_finish),
      TEST(parent_sleeps_while_a_cell_runs),
      TEST(plan_cells_share_a_worker_that_is_replaced_when_it_dies),
      TEST(largest_batch_under_a_capacity),
      TEST(program_that_cannot_start),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
