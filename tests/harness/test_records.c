/* Records: what the column table makes of a result, and that files hold numbers any reader takes. */
#include "tests/harness/fake_cells.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *make_record(void (*change)(SuiteCell *, CellResult *), int32_t steps) {
  SuiteCell cell = fake_cell(4, "");
  CellResult *result = vl_allocate(sizeof *result);
  fake_result(&cell, steps, result);
  if (change) change(&cell, result);
  json_t *record = vl_record_create(&cell, result);
  vl_cell_result_clear(result);
  free(result);
  return record;
}

/* Every column of the table is in the object, either a value or null with a reason. */
static void record_has_every_column(void **state) {
  (void)state;
  json_t *record = make_record(NULL, 6);
  int32_t count;
  const Column *columns = vl_column_all(&count);
  for (int32_t i = 0; i < count; i++) {
    json_t *at = record;
    char path[64], *rest = path;
    snprintf(path, sizeof path, "%s", columns[i].path);
    for (char *name; (name = strsep(&rest, ".")) != NULL;)
      at = json_object_get(at, name);
    assert_non_null(at);
    const char *reason =
        json_string_value(json_object_get(json_object_get(record, "null_reasons"), columns[i].name));
    assert_true(json_is_null(at) == (reason != NULL));
  }
  /* What scripts rely on. */
  static const char *const promised[] = {"status",
                                         "case",
                                         "micro_batch",
                                         "accumulate",
                                         "ranks",
                                         "global_batch",
                                         "recipe",
                                         "stack",
                                         "device",
                                         "provenance",
                                         "samples_per_s",
                                         "step_s",
                                         "needed_bytes",
                                         "peak_allocated_bytes",
                                         "peak_reserved_bytes",
                                         "peak_driver_bytes",
                                         "peak_step_bytes",
                                         "peak_by_category",
                                         "params",
                                         "flops_per_step",
                                         "losses",
                                         "error",
                                         "step_times_s"};
  for (size_t i = 0; i < sizeof promised / sizeof promised[0]; i++)
    assert_non_null(json_object_get(record, promised[i]));
  json_decref(record);
}

static void column_names_are_unique(void **state) {
  (void)state;
  int32_t count;
  const Column *columns = vl_column_all(&count);
  for (int32_t i = 0; i < count; i++)
    for (int32_t j = 0; j < i; j++) {
      assert_string_not_equal(columns[i].name, columns[j].name);
      assert_string_not_equal(columns[i].path, columns[j].path);
    }
}

static void eight_micro_batches_two_ranks(SuiteCell *cell, CellResult *result) {
  (void)cell;
  result->micro_batch = 4;
  result->accumulate = 8;
  result->ranks = 2;
  result->global_batch = 64;
  result->tokens_per_sample = 128;
  for (int32_t i = 0; i < result->step_count; i++)
    result->step_s[i] = 0.5;
}

static void accumulate_less(SuiteCell *cell, CellResult *result) {
  eight_micro_batches_two_ranks(cell, result);
  result->micro_batch = 8;
  result->accumulate = 4;
}

static void a_smaller_last_micro_batch(SuiteCell *cell, CellResult *result) {
  eight_micro_batches_two_ranks(cell, result);
  result->global_batch = 60;
  result->tokens_per_sample = -1;
}

/* 4 x 8 x 2 / 0.5 s = 128 samples, 64 a rank, 128 x 128 tokens. */
static void throughput_counts_accumulation_and_ranks_once_i13(void **state) {
  (void)state;
  json_t *record = make_record(eight_micro_batches_two_ranks, 6);
  assert_true(fabs(vl_record_real(record, "samples_per_s") - 128) <= 1e-9);
  assert_true(fabs(vl_record_real(record, "samples_per_s_per_rank") - 64) <= 1e-9);
  assert_true(fabs(vl_record_real(record, "tokens_per_s") - 16384) <= 1e-6);
  json_decref(record);
  record = make_record(accumulate_less, 6);
  assert_true(fabs(vl_record_real(record, "samples_per_s") - 128) <= 1e-9);
  json_decref(record);
  record = make_record(a_smaller_last_micro_batch, 6);
  assert_true(fabs(vl_record_real(record, "samples_per_s") - 120) <= 1e-9);
  assert_true(isnan(vl_record_real(record, "tokens_per_s")));
  json_decref(record);
}

static void spike_in_warmup(SuiteCell *cell, CellResult *result) {
  (void)cell;
  result->warmup_peak_reserved_bytes = result->needed_bytes = INT64_C(7300) << 20;
  result->steady_peak_reserved_bytes = INT64_C(2054) << 20;
}

/* Both figures are there, and the larger one plans. */
static void warmup_and_steady_peaks_stay_apart_a5(void **state) {
  (void)state;
  json_t *record = make_record(spike_in_warmup, 4);
  assert_int_equal(vl_record_integer(record, "warmup_peak_reserved_bytes"), INT64_C(7300) << 20);
  assert_int_equal(vl_record_integer(record, "steady_peak_reserved_bytes"), INT64_C(2054) << 20);
  assert_int_equal(vl_record_integer(record, "needed_bytes"), INT64_C(7300) << 20);
  json_decref(record);
}

static void not_finite(SuiteCell *cell, CellResult *result) {
  (void)cell;
  result->build_s = NAN;
  result->accuracy = INFINITY;
  result->tracker_share = -INFINITY;
  result->losses[1] = NAN;
  result->losses[2] = -INFINITY;
  result->losses[3] = 0.1 + 0.2;
}

/* jansson's strict parser here, Python's with NaN refused in tests/cli. */
static void numbers_that_are_not_finite_are_null_with_a_reason_i3(void **state) {
  (void)state;
  json_t *record = make_record(not_finite, 4);
  char *line = vl_record_format(record);
  json_decref(record);
  for (const char *word = "nan\0NaN\0inf\0Inf\0"; *word; word += strlen(word) + 1) {
    /* As a value; words in reasons are between quotes. */
    char value[16];
    snprintf(value, sizeof value, ":%s", word);
    assert_null(strstr(line, value));
    snprintf(value, sizeof value, ",%s", word);
    assert_null(strstr(line, value));
  }
  json_t *back = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(back);
  const json_t *reasons = json_object_get(back, "null_reasons");
  static const char *const nulls[] = {"build_s", "accuracy", "tracker_share"};
  for (size_t i = 0; i < 3; i++) {
    assert_true(json_is_null(json_object_get(back, nulls[i])));
    assert_true(json_is_string(json_object_get(reasons, nulls[i])));
  }
  assert_true(json_is_string(json_object_get(reasons, "losses")));
  const json_t *losses = json_object_get(back, "losses");
  assert_true(json_is_null(json_array_get(losses, 1)) && json_is_null(json_array_get(losses, 2)));
  assert_true(json_real_value(json_array_get(losses, 3)) == 0.1 + 0.2);
  json_decref(back);
  free(line);
}

/* No samples: no median, no rate, and no empty minimum passed off as one. */
static void no_samples_give_nulls_i3_i17(void **state) {
  (void)state;
  json_t *record = make_record(NULL, 0);
  static const char *const nulls[] = {"step_s", "step_s_low", "step_s_spread", "samples_per_s",
                                      "step_outliers"};
  for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++) {
    assert_true(json_is_null(json_object_get(record, nulls[i])));
    assert_true(json_is_string(json_object_get(json_object_get(record, "null_reasons"), nulls[i])));
  }
  json_decref(record);
}

static void exact_step(SuiteCell *cell, CellResult *result) {
  cell->spec.learning_rate = 1234.5;
  (void)result;
}

/* Makes a comma locale when the system has none. */
static bool comma_locale(void) {
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (setlocale(LC_ALL, names[i])) return true;
  if (system("localedef -i de_DE -f UTF-8 ./test_locale_de >/dev/null 2>&1") != 0) return false;
  setenv("LOCPATH", ".", 1);
  return setlocale(LC_ALL, "test_locale_de") != NULL;
}

static void numbers_have_points_in_every_locale_i4(void **state) {
  (void)state;
  json_t *record = make_record(exact_step, 6);
  char *plain = vl_record_format(record);
  if (!comma_locale()) {
    json_decref(record);
    free(plain);
    skip();
  }
  char number[16];
  snprintf(number, sizeof number, "%.1f", 1234.5);
  assert_string_equal(number, "1234,5");
  char *comma = vl_record_format(record);
  json_t *back = json_loads(comma, 0, NULL);
  double read = vl_record_real(back, "learning_rate");
  setlocale(LC_ALL, "C");
  assert_string_equal(plain, comma);
  assert_non_null(strstr(comma, "\"learning_rate\":1234.5"));
  assert_true(read == 1234.5);
  json_decref(back);
  json_decref(record);
  free(plain);
  free(comma);
}

/* The key is of what was asked: equal recipes and settings in another order are the same, all else is not. */
static void key_is_of_the_resolved_cell(void **state) {
  (void)state;
  SuiteCell a = fake_cell(4, ""), b = a;
  char key_a[17], key_b[17];
  snprintf(a.spec.recipe, sizeof a.spec.recipe, "checkpoint=1 amp=bf16");
  snprintf(b.spec.recipe, sizeof b.spec.recipe, "amp=bf16 checkpoint=1");
  a.spec.setting_count = b.spec.setting_count = 2;
  snprintf(a.spec.settings[0], VL_NAME_BYTES, "size=96");
  snprintf(a.spec.settings[1], VL_NAME_BYTES, "classes=10");
  snprintf(b.spec.settings[0], VL_NAME_BYTES, "classes=10");
  snprintf(b.spec.settings[1], VL_NAME_BYTES, "size=96");
  b.timeout_s = 5; /* how long we wait changes no result */
  vl_cell_key(&a, key_a);
  vl_cell_key(&b, key_b);
  assert_string_equal(key_a, key_b);
  b.spec.micro_batch = 5;
  vl_cell_key(&b, key_b);
  assert_string_not_equal(key_a, key_b);
  b = a;
  b.repeat = 1;
  vl_cell_key(&b, key_b);
  assert_string_not_equal(key_a, key_b);
  b = a;
  b.max_batch = true;
  vl_cell_key(&b, key_b);
  assert_string_not_equal(key_a, key_b);
}

static void failure_has_the_same_columns(void **state) {
  (void)state;
  SuiteCell cell = fake_cell(4, "");
  json_t *record = vl_record_create_failure(&cell, "skipped", "needs 9 bytes and 8 are there");
  assert_string_equal(vl_record_text(record, "status"), "skipped");
  assert_string_equal(vl_record_text(record, "skip_reason"), "needs 9 bytes and 8 are there");
  assert_string_equal(vl_record_text(record, "recipe"), "baseline");
  assert_int_equal(vl_record_integer(record, "global_batch"), 4);
  assert_int_equal(vl_record_integer(record, "needed_bytes"), -1);
  assert_true(isnan(vl_record_real(record, "samples_per_s")));
  int32_t count;
  const Column *columns = vl_column_all(&count);
  for (int32_t i = 0; i < count; i++)
    if (!strchr(columns[i].path, '.')) assert_non_null(json_object_get(record, columns[i].path));
  json_decref(record);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(record_has_every_column),
      cmocka_unit_test(column_names_are_unique),
      cmocka_unit_test(throughput_counts_accumulation_and_ranks_once_i13),
      cmocka_unit_test(warmup_and_steady_peaks_stay_apart_a5),
      cmocka_unit_test(numbers_that_are_not_finite_are_null_with_a_reason_i3),
      cmocka_unit_test(no_samples_give_nulls_i3_i17),
      cmocka_unit_test(numbers_have_points_in_every_locale_i4),
      cmocka_unit_test(key_is_of_the_resolved_cell),
      cmocka_unit_test(failure_has_the_same_columns),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
