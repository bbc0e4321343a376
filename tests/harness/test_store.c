/* The store: what was finished survives anything that happens to its writer. */
#include "harness/h5.h"
#include "tests/harness/fake_cells.h"
#include "tests/harness/temporary_directory.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static json_t *record_of(int64_t batch, double step_s) {
  SuiteCell cell = fake_cell(batch, "");
  CellResult *result = vl_allocate(sizeof *result);
  fake_result(&cell, 6, result);
  for (int32_t i = 0; i < 6; i++)
    result->step_s[i] = step_s;
  json_t *record = vl_record_create(&cell, result);
  vl_cell_result_clear(result);
  free(result);
  return record;
}

static void append(Store *store, int64_t batch, double step_s, int64_t events) {
  json_t *record = record_of(batch, step_s);
  TimelineEvent *timeline = fake_timeline(events);
  OpRecord *ops = fake_ops(events / 2);
  Status status = vl_store_append_step(store, record, timeline, events, ops, events / 2);
  assert_string_equal(status.message, "");
  free(ops);
  free(timeline);
  json_decref(record);
}

static Store *create(const char *directory) {
  Store *store;
  Status status = vl_store_create(directory, "test", "vramlab run test", &store);
  assert_string_equal(status.message, "");
  return store;
}

static Store *open_store(const char *path) {
  Store *store;
  Status status = vl_store_open(path, &store);
  assert_string_equal(status.message, "");
  return store;
}

static void check_records(const Store *store, int64_t first, int64_t last) {
  assert_int_equal(vl_store_count(store), last - first + 1);
  for (int64_t i = first; i <= last; i++) {
    const json_t *record = vl_store_record(store, i - first);
    assert_int_equal(vl_record_integer(record, "micro_batch"), i);
    assert_true(vl_record_real(record, "step_s") == 0.1 * (double)i);
  }
}

static void check_timeline(const Store *store, int64_t row, int64_t expected) {
  TimelineEvent *events, *right = fake_timeline(expected);
  int64_t count;
  const char *key = vl_record_text(vl_store_record(store, row), "cell_key");
  Status status = vl_store_timeline(store, key, &events, &count);
  assert_string_equal(status.message, "");
  assert_int_equal(count, expected);
  for (int64_t i = 0; i < count; i++) {
    assert_int_equal(events[i].time_ns, right[i].time_ns);
    assert_int_equal(events[i].action, right[i].action);
    assert_int_equal(events[i].category, right[i].category);
    assert_int_equal(events[i].bytes, right[i].bytes);
    assert_int_equal(events[i].reserved_bytes, right[i].reserved_bytes);
    assert_int_equal(events[i].segment, right[i].segment);
    assert_int_equal(events[i].op, right[i].op);
    assert_string_equal(events[i].name, right[i].name);
    assert_string_equal(events[i].scope, right[i].scope);
  }
  free(events);
  free(right);
  OpRecord *ops, *right_ops = fake_ops(expected / 2);
  status = vl_store_ops(store, key, &ops, &count);
  assert_string_equal(status.message, "");
  assert_int_equal(count, expected / 2);
  if (count > 0) assert_memory_equal(ops, right_ops, (size_t)count * sizeof *ops);
  free(ops);
  free(right_ops);
}

/* Directory, results.h5 in it, and results.h5 alone elsewhere read the same. */
static void what_is_written_is_read_three_ways(void **state) {
  char *directory = path_in(*state, "a/b/store"), *results = path_in(directory, "results.h5");
  char *alone = path_in(*state, "copy.h5");
  Store *store = create(directory);
  for (int64_t i = 1; i <= 3; i++)
    append(store, i, 0.1 * (double)i, i == 2 ? 40 : 0);
  assert_int_equal(vl_store_rebuild(store).code, VL_OK);
  vl_store_close(&store);
  assert_null(store);

  const char *paths[] = {directory, results, alone};
  for (int i = 0; i < 3; i++) {
    if (i == 2) assert_int_equal(rename(results, alone), 0);
    store = open_store(paths[i]);
    check_records(store, 1, 3);
    check_timeline(store, 1, 40);
    check_timeline(store, 0, 0);
    assert_string_equal(vl_record_text(vl_store_head(store), "suite"), "test");
    assert_string_equal(vl_record_text(vl_store_head(store), "command_line"), "vramlab run test");
    assert_string_equal(vl_store_path(store), i == 2 ? "" : directory);
    vl_store_close(&store);
  }
  free(directory);
  free(results);
  free(alone);
}

static void results_are_rebuilt_when_the_journal_is_ahead(void **state) {
  char *directory = path_in(*state, "store"), *results = path_in(directory, "results.h5");
  Store *store = create(directory);
  append(store, 1, 0.1, 0);
  assert_int_equal(vl_store_rebuild(store).code, VL_OK);
  append(store, 2, 0.2, 0);
  vl_store_close(&store);
  struct stat before, after, again;
  assert_int_equal(stat(results, &before), 0);
  store = open_store(directory);
  vl_store_close(&store);
  assert_int_equal(stat(results, &after), 0);
  assert_true(before.st_ino != after.st_ino);
  store = open_store(results);
  check_records(store, 1, 2);
  vl_store_close(&store);
  assert_int_equal(stat(results, &again), 0);
  assert_true(after.st_ino == again.st_ino); /* up to date: left alone */
  free(directory);
  free(results);
}

/* 6 configurations; stopped after 3; resumed twice; then the second one again. */
static void one_row_a_key_the_latest_counts_i10(void **state) {
  char *directory = path_in(*state, "store");
  Store *store = create(directory);
  for (int64_t i = 1; i <= 3; i++)
    append(store, i, 0.1 * (double)i, 0);
  vl_store_close(&store);
  for (int again = 0; again < 2; again++) {
    assert_int_equal(vl_store_open_append(directory, &store).code, VL_OK);
    for (int64_t i = 1; i <= 6; i++) {
      json_t *record = record_of(i, 0.1 * (double)i);
      if (!vl_store_find(store, vl_record_text(record, "cell_key"))) append(store, i, 0.1 * (double)i, 0);
      json_decref(record);
    }
    check_records(store, 1, 6);
    vl_store_close(&store);
  }
  assert_int_equal(vl_store_open_append(directory, &store).code, VL_OK);
  append(store, 2, 9.0, 0);
  vl_store_close(&store);
  store = open_store(directory);
  assert_int_equal(vl_store_count(store), 6);
  assert_true(vl_record_real(vl_store_record(store, 1), "step_s") == 9.0); /* its place is kept */
  vl_store_close(&store);
  free(directory);
}

static void unfinished_last_line_is_left_out_then_cut_off_i6(void **state) {
  char *directory = path_in(*state, "store"), *journal = path_in(directory, "journal.jsonl");
  Store *store = create(directory);
  append(store, 1, 0.1, 0);
  append(store, 2, 0.2, 0);
  vl_store_close(&store);
  char *whole = read_whole_file(journal);
  size_t length = strlen(whole);
  FILE *file = fopen(journal, "a");
  fputs("{\"cell_key\":\"123\",\"sta", file);
  fclose(file);
  store = open_store(directory);
  check_records(store, 1, 2);
  vl_store_close(&store);
  char *now = read_whole_file(journal);
  assert_true(strlen(now) > length); /* reading touches nothing */
  free(now);
  assert_int_equal(vl_store_open_append(directory, &store).code, VL_OK);
  append(store, 3, 0.3 - 0.3 + 0.1 * 3.0, 0);
  vl_store_close(&store);
  store = open_store(directory);
  check_records(store, 1, 3);
  vl_store_close(&store);
  free(whole);
  free(directory);
  free(journal);
}

/* ---- SIGKILL ------------------------------------------------------------------------------------------------ */

/* Adds cells from 6 on with timelines until killed; a byte to `ready` once it writes. */
static void write_until_killed(const char *directory, int ready) {
  Store *store;
  if (vl_store_open_append(directory, &store).code != VL_OK) _exit(1);
  if (write(ready, "x", 1) != 1) _exit(1);
  for (int64_t i = vl_store_count(store) + 1;; i++) {
    json_t *record = record_of(i, 0.1 * (double)i);
    TimelineEvent *timeline = fake_timeline(200);
    OpRecord *ops = fake_ops(100);
    if (vl_store_append_step(store, record, timeline, 200, ops, 100).code != VL_OK) _exit(2);
    free(ops);
    if (i % 3 == 0 && vl_store_rebuild(store).code != VL_OK) _exit(3);
    free(timeline);
    json_decref(record);
  }
}

static void kill_writer_after(const char *directory, long delay_ns) {
  int ready[2];
  char byte;
  assert_int_equal(pipe(ready), 0);
  pid_t writer = fork();
  if (writer == 0) write_until_killed(directory, ready[1]);
  assert_int_equal(read(ready[0], &byte, 1), 1);
  struct timespec delay = {.tv_nsec = delay_ns};
  nanosleep(&delay, NULL);
  kill(writer, SIGKILL);
  int status;
  assert_int_equal(waitpid(writer, &status, 0), writer);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  close(ready[0]);
  close(ready[1]);
}

/* After each of 20 kills at random moments the store opens both ways and has every cell finished before. A
 * machine under load may need longer moments before it finishes a cell at all. */
static void kills_at_random_moments_lose_no_finished_cell_i6(void **state) {
  char *directory = path_in(*state, "store");
  Store *store = create(directory);
  for (int64_t i = 1; i <= 5; i++)
    append(store, i, 0.1 * (double)i, 10);
  vl_store_close(&store);
  int64_t before = 5;
  float longest_ns = 30e6f;
  for (uint64_t round = 0; round < 20 || (before == 5 && round < 60); round++) {
    uint32_t word = vl_random_word(vl_random_key(6, 0, "kill"), round, 0);
    if (round >= 20 && longest_ns < 480e6f) longest_ns *= 2;
    kill_writer_after(directory, (long)(vl_random_unit(word) * longest_ns));
    store = open_store(directory);
    int64_t count = vl_store_count(store);
    assert_true(count >= before);
    check_records(store, 1, count);
    check_timeline(store, 0, 10);
    check_timeline(store, count - 1, count > 5 ? 200 : 10);
    vl_store_close(&store);
    before = count;
  }
  assert_true(before > 5);
  free(directory);
}

/* ---- What is not ours, and what does not fit ----------------------------------------------------------------------- */

static void refuse(const char *path, StatusCode code, const char *part) {
  Store *store;
  Status status = vl_store_open(path, &store);
  assert_int_equal(status.code, code);
  assert_null(store);
  assert_non_null(strstr(status.message, part));
}

static void foreign_and_truncated_stores_are_refused_untouched(void **state) {
  char *directory = path_in(*state, "store"), *journal = path_in(directory, "journal.jsonl");
  char *foreign = path_in(*state, "foreign.h5");
  Store *store = create(directory);
  append(store, 1, 0.1, 0);
  append(store, 2, 0.2, 0);
  assert_int_equal(vl_store_rebuild(store).code, VL_OK);
  vl_store_close(&store);

  char *nowhere = path_in(*state, "nowhere");
  refuse(nowhere, VL_INVALID, "no results at");
  free(nowhere);
  refuse(*state, VL_INVALID, "not a result directory");
  write_whole_file(foreign, "not HDF5 at all");
  refuse(foreign, VL_INVALID, "not an HDF5 file");
  char *kept = read_whole_file(foreign);
  assert_string_equal(kept, "not HDF5 at all");
  free(kept);

  /* results.h5 on its own, cut short. */
  char *results = path_in(directory, "results.h5");
  assert_int_equal(rename(results, foreign), 0);
  assert_int_equal(truncate(foreign, 3000), 0);
  refuse(foreign, VL_INVALID, "truncated");

  char *good = read_whole_file(journal);
  write_whole_file(journal, "{\"some\":\"other\"}\n");
  refuse(directory, VL_INVALID, "not a vramlab journal");
  write_whole_file(journal, "");
  refuse(directory, VL_INVALID, "empty");
  write_whole_file(journal, "{\"vramlab_journal\":99}\n");
  refuse(directory, VL_INVALID, "newer");
  /* Damage that is not at the end is not what a kill leaves. */
  char *second = strchr(good, '\n') + 20;
  *second = '\n';
  write_whole_file(journal, good);
  refuse(directory, VL_INVALID, "damaged line");
  free(good);

  /* A directory with something else in it is nobody's new store. */
  Status status = vl_store_create(*state, "test", "", &store);
  assert_int_equal(status.code, VL_INVALID);
  free(directory);
  free(journal);
  free(foreign);
  free(results);
}

/* A results.h5 on its own says which schema it has, as a journal does. */
static void results_of_a_newer_vramlab_are_refused(void **state) {
  char *directory = path_in(*state, "store"), *results = path_in(directory, "results.h5");
  char *alone = path_in(*state, "alone.h5");
  Store *store = create(directory);
  append(store, 1, 0.1, 0);
  assert_int_equal(vl_store_rebuild(store).code, VL_OK);
  vl_store_close(&store);
  assert_int_equal(rename(results, alone), 0);
  H5Writer writer = {.file = H5Fopen(alone, H5F_ACC_RDWR, H5P_DEFAULT)};
  assert_true(writer.file >= 0 && H5Adelete(writer.file, "head_json") >= 0);
  vl_h5_text_attribute(&writer, writer.file, "head_json", "{\"vramlab_journal\":99}");
  assert_false(writer.failed);
  H5Fclose(writer.file);
  refuse(alone, VL_INVALID, "newer vramlab (schema 99");
  free(directory);
  free(results);
  free(alone);
}

/* A record of before a column was there: null from then on, with that as the reason. */
static void columns_that_an_old_record_lacks_are_null(void **state) {
  char *directory = path_in(*state, "store");
  Store *store = create(directory);
  json_t *record = record_of(4, 0.4);
  json_object_del(record, "params");
  json_object_del(record, "analytic_by_category");
  json_object_del(json_object_get(record, "peak_by_category"), "activation");
  assert_int_equal(vl_store_append(store, record, NULL, 0).code, VL_OK);
  json_decref(record);
  vl_store_close(&store);
  store = open_store(directory);
  const json_t *old = vl_store_record(store, 0), *reasons = json_object_get(old, "null_reasons");
  static const char *const lacking[] = {"params", "analytic_parameter_bytes", "peak_activation_bytes"};
  for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++) {
    assert_int_equal(vl_record_integer(old, lacking[i]), -1);
    assert_string_equal(json_string_value(json_object_get(reasons, lacking[i])),
                        "not kept by the vramlab that wrote this");
  }
  assert_true(json_is_null(json_object_get(old, "params")));
  assert_true(json_is_null(json_object_get(json_object_get(old, "analytic_by_category"), "gradient")));
  assert_true(vl_record_integer(old, "needed_bytes") > 0);
  assert_null(json_object_get(reasons, "needed_bytes"));
  vl_store_close(&store);
  free(directory);
}

static void second_writer_is_refused(void **state) {
  char *directory = path_in(*state, "store");
  Store *store = create(directory), *second;
  assert_int_equal(vl_store_open_append(directory, &second).code, VL_ENVIRONMENT);
  assert_null(second);
  vl_store_close(&store);
  free(directory);
}

/* A full disk, played by the limit on a file's size: the append fails with a message, what was there stays,
 * and the store goes on once there is room. */
static void full_disk_keeps_finished_cells(void **state) {
  char *directory = path_in(*state, "store"), *journal = path_in(directory, "journal.jsonl");
  Store *store = create(directory);
  append(store, 1, 0.1, 0);
  struct stat facts;
  stat(journal, &facts);
  pid_t child = fork();
  if (child == 0) {
    struct rlimit limit = {(rlim_t)facts.st_size + 100, (rlim_t)facts.st_size + 100};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    json_t *record = record_of(2, 0.2);
    Status status = vl_store_append(store, record, NULL, 0);
    bool good = status.code == VL_ENVIRONMENT && strstr(status.message, "1 finished cells are intact") &&
                vl_store_count(store) == 1 && vl_status_exit_code(status.code) == 3;
    TimelineEvent *timeline = fake_timeline(4000);
    status = vl_store_append(store, record, timeline, 4000);
    _exit(good && status.code == VL_ENVIRONMENT ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  struct stat after;
  stat(journal, &after);
  assert_int_equal(after.st_size, facts.st_size); /* the part that fitted was taken back */
  append(store, 2, 0.2, 0);
  vl_store_close(&store);
  store = open_store(directory);
  check_records(store, 1, 2);
  vl_store_close(&store);
  free(directory);
  free(journal);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up_directory, tear_down_directory)
  const struct CMUnitTest tests[] = {
      TEST(what_is_written_is_read_three_ways),
      TEST(results_are_rebuilt_when_the_journal_is_ahead),
      TEST(one_row_a_key_the_latest_counts_i10),
      TEST(unfinished_last_line_is_left_out_then_cut_off_i6),
      TEST(kills_at_random_moments_lose_no_finished_cell_i6),
      TEST(foreign_and_truncated_stores_are_refused_untouched),
      TEST(results_of_a_newer_vramlab_are_refused),
      TEST(columns_that_an_old_record_lacks_are_null),
      TEST(second_writer_is_refused),
      TEST(full_disk_keeps_finished_cells),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
