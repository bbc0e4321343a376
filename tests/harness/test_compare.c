/* compare says "regressed" when it is true: tests for two samples are those of scipy, noise alone raises no
 * alarm, a slowdown of 5 % is found, memory counts to the byte, and what cannot be decided is called so. */
#include "harness/baseline.h"
#include "harness/compare.h"
#include "tests/harness/report_records.h"
#include "tests/harness/temporary_directory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NEAR(a, b) assert_true(fabs((a) - (double)(b)) <= 1e-9 * fmax(1e-6, fabs((double)(b))))

/* ---- Statistics ------------------------------------------------------------------------------------------------- */

/* scipy 1.17.1: mannwhitneyu(a, b, method="exact"), and method="asymptotic" where there are ties;
 * ttest_ind(b, a, equal_var=False) with its confidence_interval(). */
static void two_samples_are_those_of_scipy(void **state) {
  (void)state;
  double x[] = {3.1, 2.7, 5.5, 4.4, 6.1, 2.2, 7.3}, y[] = {4.9, 8.1, 5.9, 6.6, 9.3, 7.7};
  NEAR(vl_statistics_mann_whitney(x, 7, y, 6), 0.03496503496503496);
  NEAR(vl_statistics_mann_whitney(y, 6, x, 7), 0.03496503496503496);
  Contrast difference;
  NEAR(vl_statistics_welch(x, 7, y, 6, 0, &difference), 0.02118120616217047);
  assert_true(fabs(difference.low - 0.4716211506065848) < 1e-8);
  assert_true(fabs(difference.high - 4.752188373202938) < 1e-8);
  double a[] = {1, 2, 2, 3, 5, 5, 5, 8, 9, 11}, b[] = {2, 4, 5, 6, 6, 9, 10, 12};
  NEAR(vl_statistics_mann_whitney(a, 10, b, 8), 0.2627398543632009);
  NEAR(vl_statistics_student_p(2.5, 3.7), 0.07182202291182678);
  NEAR(vl_statistics_student_p(0.3, 11.2), 0.7696719133380779);
  NEAR(vl_statistics_student_p(-7.9, 8), 4.7801397975812534e-05);
  assert_true(isnan(vl_statistics_mann_whitney(a, 0, b, 8)));
  assert_true(isnan(vl_statistics_welch(a, 1, b, 8, 0, &difference)));
  double same[] = {2, 2, 2};
  NEAR(vl_statistics_welch(same, 3, same, 3, 0, &difference), 1);
  NEAR(vl_statistics_mann_whitney(same, 3, same, 3), 1);
}

/* scipy 1.17.1: ttest_1samp(d, 0) with its confidence_interval(); wilcoxon(d, method="exact"), and
 * method="approx" without continuity correction where there are ties and zeros. */
static void pairs_are_those_of_scipy(void **state) {
  (void)state;
  double d[] = {0.052, 0.031, -0.012, 0.071, 0.044, 0.005, 0.063, -0.027, 0.039};
  double e[] = {3, -1, 2, 2, 0, 5, -2, 4, 7, 1}, none[] = {0, 0, 0};
  Contrast mean;
  NEAR(vl_statistics_paired(d, 9, &mean), 0.03069025728940567);
  assert_true(fabs(mean.low - 0.0035338116036856895) < 1e-9 && fabs(mean.high - 0.05557729950742541) < 1e-9);
  NEAR(vl_statistics_signed_rank(d, 9), 0.0390625);
  NEAR(vl_statistics_signed_rank(e, 10), 0.043085727389296294);
  NEAR(vl_statistics_signed_rank(none, 3), 1);
  NEAR(vl_statistics_paired(none, 3, &mean), 1);
  assert_true(isnan(vl_statistics_signed_rank(d, 0)) && isnan(vl_statistics_paired(d, 1, &mean)));
}

/* Variance that all samples of a side share: ten times as many samples do not make a difference of sittings
 * sure. */
static void what_a_sitting_shares_is_not_averaged_out(void **state) {
  (void)state;
  enum { MANY = 400 };
  double base[MANY], now[MANY];
  Contrast difference;
  for (int i = 0; i < MANY; i++) {
    base[i] = i % 2 ? 1 : -1;
    now[i] = base[i] + 1;
  }
  assert_true(vl_statistics_welch(base, MANY, now, MANY, 0, &difference) < 1e-9);
  assert_true(vl_statistics_welch(base, MANY, now, MANY, 1, &difference) > 0.4);
  NEAR(difference.value, 1);
}

/* A line without noise: slope 1 over 10 values of median 5.5; S = 45, variance 10 * 9 * 25 / 18 = 125, z = 44
 * / sqrt 125. The other way down the same; values that only jump about have none. */
static void drift_is_a_trend(void **state) {
  (void)state;
  double up[10], down[10], about[] = {1, 9, 2, 8, 3, 7, 4, 6, 5, 5.5};
  for (int i = 0; i < 10; i++) {
    up[i] = i + 1;
    down[i] = 10 - i;
  }
  Drift drift = vl_statistics_drift(up, 10);
  NEAR(drift.change, 9 / 5.5);
  NEAR(drift.p, erfc(44 / sqrt(125) / sqrt(2)));
  NEAR(vl_statistics_drift(down, 10).change, -9 / 5.5);
  assert_true(vl_statistics_drift(about, 10).p > 0.5);
  /* scipy 1.17.1: theilslopes(y).slope * 11 / median(y); S = kendalltau(range(12), y).statistic * 66,
   * 2 * norm.sf((S - 1) / sqrt(12 * 11 * 29 / 18)). */
  double warming[] = {1.02, 1.00, 1.05, 1.04, 1.07, 1.06, 1.31, 1.10, 1.09, 1.13, 1.12, 1.16};
  drift = vl_statistics_drift(warming, 12);
  NEAR(drift.change, 0.12590020576131686);
  NEAR(drift.p, 0.0020302944356094107);
  assert_true(isnan(vl_statistics_drift(up, 5).change));
  enum { MANY = 5000 };
  static double many[MANY];
  for (int i = 0; i < MANY; i++)
    many[i] = 1 + 0.1 * i / (MANY - 1);
  drift = vl_statistics_drift(many, MANY);
  assert_true(fabs(drift.change - 0.1 / 1.05) < 1e-6 && drift.p < 1e-9);
}

/* The least times 4, the next times 3, none below one before it. */
static void holm_is_stepwise(void **state) {
  (void)state;
  double p[] = {0.01, NAN, 0.04, 0.03, 0.005}, adjusted[5];
  vl_statistics_holm(p, 5, adjusted);
  NEAR(adjusted[4], 0.02);
  NEAR(adjusted[0], 0.03);
  NEAR(adjusted[3], 0.06);
  NEAR(adjusted[2], 0.06);
  assert_true(isnan(adjusted[1]));
}

/* ---- I14 -------------------------------------------------------------------------------------------------------- */

static Judgement judge(const double *base, int64_t n, const double *now, int64_t m) {
  Difference difference = {.metric = NULL};
  vl_compare_times(base, n, now, m, &difference);
  vl_compare_decide(vl_compare_usual().min_change, &difference);
  return difference.judgement;
}

/* Throughputs of the case as times, 1 / them. */
static void noise_is_no_regression_and_loss_is_i14(void **state) {
  (void)state;
  double base[] = {1 / 100., 1 / 103., 1 / 97., 1 / 101., 1 / 99.};
  double a[] = {1 / 98., 1 / 102., 1 / 100., 1 / 96., 1 / 101.};
  double b[] = {1 / 84., 1 / 86., 1 / 85., 1 / 83., 1 / 87.};
  double single[] = {1 / 93.};
  assert_int_equal(judge(base, 5, a, 5), JUDGED_SAME);
  assert_int_equal(judge(base, 5, b, 5), JUDGED_WORSE);
  assert_int_equal(judge(b, 5, base, 5), JUDGED_BETTER);
  assert_int_equal(judge(base, 1, single, 1), JUDGED_UNCLEAR);
  assert_int_equal(judge(base, 3, b, 3), JUDGED_UNCLEAR); /* ranks of three and three prove nothing */
  assert_int_equal(judge(base, 5, base, 5), JUDGED_SAME);
  assert_int_equal(judge(a, 5, a, 5), JUDGED_SAME);
}

/* ---- False alarms and power -------------------------------------------------------------------------------------- */

static double normal(uint64_t key, uint64_t at) {
  double u = (double)vl_random_unit(vl_random_word(key, at, 0)) + 1e-9;
  double v = (double)vl_random_unit(vl_random_word(key, at, 1));
  return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Medians of processes: lognormal with 2 % from one to the next, now and then one that was disturbed. */
static void draw(uint64_t key, double factor, double *times, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    bool disturbed = vl_random_unit(vl_random_word(key, (uint64_t)i, 7)) < 0.04F;
    times[i] = factor * 0.1 * exp(0.02 * normal(key, (uint64_t)i)) * (disturbed ? 1.15 : 1);
  }
}

/* Stores measured one after the other, each in a minute of its own, which moves all of its processes by 2 %
 * as well: what is called a regression is one. A slowdown far beyond the machine's is found; less wants
 * pairs. */
static void sittings_raise_no_alarms(void **state) {
  (void)state;
  /* Processes spread by sqrt(0.02^2 + 0.04 * 0.96 * ln(1.15)^2) = 3.4 %, so that t(14) = 2.14 times 3.4 % *
   * sqrt(2 * (1 + 1 / 8)) = 10.9 % is allowed for, a third more where a sample's spread came out large. The
   * slowdown that is seen varies by sqrt(2 * (0.02^2 + 0.034^2 / 8)) = 3.3 %: ln(1.25) = 22 % lies beyond
   * both. */
  enum { TRIALS = 2000, PROCESSES = 8 };
  int alarms = 0, found = 0;
  for (uint64_t trial = 0; trial < TRIALS; trial++) {
    double base[PROCESSES], same[PROCESSES], slower[PROCESSES];
    double minutes[] = {exp(0.02 * normal(3, trial)), exp(0.02 * normal(4, trial))};
    draw(vl_random_key(1, trial, "base"), minutes[0], base, PROCESSES);
    draw(vl_random_key(1, trial, "same"), minutes[1], same, PROCESSES);
    draw(vl_random_key(1, trial, "slower"), minutes[1] * 1.25, slower, PROCESSES);
    alarms += judge(base, PROCESSES, same, PROCESSES) == JUDGED_WORSE;
    found += judge(base, PROCESSES, slower, PROCESSES) == JUDGED_WORSE;
  }
  print_message("  %d false alarms in %d; %d slowdowns of 25 %% found\n", alarms, TRIALS, found);
  assert_true(alarms < TRIALS / 40); /* 2.5 %: one side of a test at 5 % */
  assert_true(found > TRIALS * 9 / 10);
}

/* ---- Stores ------------------------------------------------------------------------------------------------------ */

static const Difference *find(const CellComparison *cell, const char *column) {
  for (int32_t i = 0; i < cell->count; i++)
    if (strcmp(cell->differences[i].metric->column, column) == 0) return &cell->differences[i];
  return NULL;
}

static json_t *cell_of(const char *recipe, double activation_bytes, const char *status) {
  Synthetic cell = {.suite = "quick",
                    .recipe = recipe,
                    .preserves = "bitwise",
                    .batch = 8,
                    .activation_bytes = activation_bytes,
                    .status = status,
                    .error = status ? "as planned" : NULL};
  return synthetic_record(&cell);
}

static StoreComparison compare(json_t *const *base, int32_t n, json_t *const *now, int32_t m) {
  StoreComparison comparison;
  RecordSet of_base = {(const json_t **)base, n}, of_now = {(const json_t **)now, m};
  CompareOptions options = vl_compare_usual();
  Status status = vl_compare_records(&of_base, &of_now, &options, &comparison);
  assert_int_equal(status.code, VL_OK);
  return comparison;
}

static void memory_counts_to_the_byte(void **state) {
  (void)state;
  json_t *base[] = {cell_of("baseline", 1e6, NULL)}, *now[] = {cell_of("baseline", 1e6, NULL)};
  StoreComparison comparison = compare(base, 1, now, 1);
  assert_int_equal(comparison.judged[JUDGED_WORSE], 0);
  vl_compare_free(&comparison);
  json_t *parts = json_object_get(now[0], "peak_by_category");
  json_int_t bytes = json_integer_value(json_object_get(parts, "activation"));
  json_object_set_new(parts, "activation", json_integer(bytes + 1));
  comparison = compare(base, 1, now, 1);
  assert_int_equal(comparison.judged[JUDGED_WORSE], 1);
  const Difference *difference = find(&comparison.cells[0], "peak_activation_bytes");
  assert_non_null(difference);
  assert_true(difference->judgement == JUDGED_WORSE && difference->now - difference->base == 1);
  vl_compare_free(&comparison);
  comparison = compare(now, 1, base, 1);
  assert_int_equal(comparison.judged[JUDGED_BETTER], 1);
  vl_compare_free(&comparison);
  json_decref(base[0]);
  json_decref(now[0]);
}

static void what_no_longer_runs_regressed(void **state) {
  (void)state;
  json_t *base[] = {cell_of("baseline", 1e6, NULL), cell_of("checkpoint=1", 1e6, "oom"),
                    cell_of("amp=bf16", 1e6, NULL)};
  json_t *now[] = {cell_of("baseline", 1e6, "oom"), cell_of("checkpoint=1", 1e6, NULL),
                   cell_of("amp=fp16", 1e6, NULL)};
  StoreComparison comparison = compare(base, 3, now, 3);
  assert_int_equal(comparison.count, 2);
  assert_int_equal(comparison.cells[0].judgement, JUDGED_WORSE);
  assert_string_equal(find(&comparison.cells[0], "status")->now_text, "oom");
  assert_string_equal(find(&comparison.cells[0], "status")->evidence, "as planned"); /* the error */
  assert_int_equal(comparison.cells[0].count, 1); /* nothing else of it can be compared */
  assert_int_equal(find(&comparison.cells[1], "status")->judgement, JUDGED_BETTER);
  assert_int_equal(comparison.vanished_count, 1);
  assert_string_equal(vl_record_text(comparison.vanished[0], "recipe"), "amp=bf16");
  assert_int_equal(comparison.added_count, 1);
  assert_string_equal(vl_record_text(comparison.added[0], "recipe"), "amp=fp16");
  vl_compare_free(&comparison);
  for (int i = 0; i < 3; i++) {
    json_decref(base[i]);
    json_decref(now[i]);
  }
}

/* Eight processes each, 10 % slower; on another machine that is no regression. */
static void times_need_the_same_machine(void **state) {
  (void)state;
  enum { PROCESSES = 8 };
  json_t *base[PROCESSES], *now[PROCESSES];
  for (int i = 0; i < PROCESSES; i++)
    for (int side = 0; side < 2; side++) {
      json_t *record = cell_of("baseline", 1e6, NULL);
      json_object_set_new(record, "repeat", json_integer(i));
      json_object_set_new(record, "step_s", json_real((side ? 1.1 : 1.0) + 0.003 * i));
      json_object_set_new(record, "hardware", json_string("CPU A"));
      json_object_set_new(record, "created_utc",
                          json_string(side ? "2026-01-02T00:00:00Z" : "2026-01-01T00:00:00Z"));
      (side ? now : base)[i] = record;
    }
  StoreComparison comparison = compare(base, PROCESSES, now, PROCESSES);
  assert_int_equal(comparison.count, 1);
  const Difference *difference = find(&comparison.cells[0], "step_s");
  assert_int_equal(difference->judgement, JUDGED_WORSE);
  assert_string_equal(difference->evidence, "8 and 8 processes");
  assert_true(difference->ratio.low < 1.1 && difference->ratio.high > 1.09 && difference->ratio.low > 1.07);
  vl_compare_free(&comparison);
  for (int i = 0; i < PROCESSES; i++)
    json_object_set_new(now[i], "hardware", json_string("CPU B"));
  comparison = compare(base, PROCESSES, now, PROCESSES);
  assert_int_equal(find(&comparison.cells[0], "step_s")->judgement, JUDGED_CHANGED);
  assert_string_equal(comparison.environment[0].name, "hardware");
  vl_compare_free(&comparison);
  for (int i = 0; i < PROCESSES; i++) {
    json_decref(base[i]);
    json_decref(now[i]);
  }
}

/* ---- Side by side ------------------------------------------------------------------------------------------------ */

enum { ROUNDS = 12, CELLS = 3, PAIRED_TRIALS = 100 };

/* Two stores measured in turn on a machine that wanders by 10 % from round to round, and 3 % from one process
 * to the next; apart: the second an hour after the first. */
static StoreComparison side_by_side(uint64_t trial, double factor, bool apart, json_t **base, json_t **now) {
  static const char *const recipes[CELLS] = {"baseline", "amp=bf16", "checkpoint=1"};
  for (int i = 0; i < ROUNDS * CELLS; i++) {
    int round = i / CELLS;
    double wander = exp(0.1 * normal(trial, (uint64_t)round));
    for (int side = 0; side < 2; side++) {
      json_t *record = cell_of(recipes[i % CELLS], 1e6, NULL);
      char ended[32];
      snprintf(ended, sizeof ended, "2026-01-01T%02d:%02d:%02dZ", apart && side ? 1 : 0, round,
               2 * (i % CELLS) + side);
      json_object_set_new(record, "repeat", json_integer(round));
      json_object_set_new(record, "created_utc", json_string(ended));
      json_object_set_new(record, "step_s",
                          json_real(0.1 * wander * (side ? factor : 1) *
                                    exp(0.03 * normal(trial + 1000 * (uint64_t)(side + 1), (uint64_t)i))));
      (side ? now : base)[i] = record;
    }
  }
  return compare(base, ROUNDS * CELLS, now, ROUNDS * CELLS);
}

static void pairs_see_through_a_machine_that_wanders(void **state) {
  (void)state;
  int alarms = 0, found = 0, found_apart = 0;
  for (uint64_t trial = 0; trial < PAIRED_TRIALS; trial++)
    for (int slower = 0; slower < 3; slower++) {
      json_t *base[ROUNDS * CELLS], *now[ROUNDS * CELLS];
      StoreComparison comparison = side_by_side(trial, slower ? 1.05 : 1, slower == 2, base, now);
      *(slower == 0 ? &alarms : slower == 1 ? &found : &found_apart) += vl_compare_regressed(&comparison);
      assert_int_equal(comparison.count, CELLS);
      assert_int_equal(comparison.cells[0].pair_count, slower == 2 ? 0 : ROUNDS);
      vl_compare_free(&comparison);
      for (int i = 0; i < ROUNDS * CELLS; i++) {
        json_decref(base[i]);
        json_decref(now[i]);
      }
    }
  print_message("  %d false alarms in %d; %d slowdowns of 5 %% found side by side, %d apart\n", alarms,
                PAIRED_TRIALS, found, found_apart);
  assert_true(alarms < PAIRED_TRIALS / 20);
  assert_true(found > PAIRED_TRIALS * 9 / 10);
  assert_true(found_apart < PAIRED_TRIALS / 10);
}

static json_t *process_of(int64_t repeat, const char *ended, double step_s) {
  json_t *record = cell_of("baseline", 1e6, NULL);
  json_object_set_new(record, "repeat", json_integer(repeat));
  json_object_set_new(record, "created_utc", json_string(ended));
  json_object_set_new(record, "step_s", json_real(step_s));
  return record;
}

/* Repeat 1 was measured again later on one side, 2 is missing on the other, 3 is there twice: no pairs. */
static void only_neighbours_are_pairs(void **state) {
  (void)state;
  json_t *base[] = {process_of(0, "2026-01-01T00:00:01Z", 1), process_of(1, "2026-01-01T00:00:03Z", 2),
                    process_of(2, "2026-01-01T00:00:05Z", 3), process_of(3, "2026-01-01T00:00:07Z", 4),
                    process_of(3, "2026-01-01T00:00:08Z", 5), process_of(4, "2026-01-01T00:00:12Z", 6)};
  json_t *now[] = {process_of(0, "2026-01-01T00:00:02Z", 1.5), process_of(1, "2026-01-01T00:01:00Z", 2.5),
                   process_of(3, "2026-01-01T00:00:09Z", 4.5), process_of(4, "2026-01-01T00:00:11Z", 6.5)};
  TimePair pairs[6];
  RecordSet of_base = {(const json_t **)base, 6}, of_now = {(const json_t **)now, 4};
  assert_int_equal(vl_compare_pairs(&of_base, &of_now, pairs), 2);
  assert_true(pairs[0].repeat == 0 && pairs[1].repeat == 4);
  NEAR(pairs[1].base_s, 6);
  NEAR(pairs[1].now_s, 6.5);
  for (int i = 0; i < 6; i++)
    json_decref(base[i]);
  for (int i = 0; i < 4; i++)
    json_decref(now[i]);
}

static void set_losses(json_t *record, double first, double last) {
  json_object_set_new(record, "losses", json_pack("[f f]", first, last));
  json_object_set_new(record, "last_loss", json_real(last));
}

/* The loss after a few steps has amplified a difference in the last bit of the first. On the same machine a
 * recipe that keeps bits keeps them from one commit to the next; one that keeps them up to rounding only
 * within one program.
 */
static void losses_are_the_same_as_far_as_the_recipe_keeps_them(void **state) {
  (void)state;
  enum { BITS, TOLERANCE, PROGRAM, MACHINE, LOW, WRONG, KINDS };
  static const struct {
    const char *recipe, *preserves, *commit, *isa;
    double first, last;
    Judgement judgement;
  } kinds[KINDS] = {
      [BITS] = {"baseline", "bitwise", "b", "AVX-512", 7.000001, 5.01, JUDGED_CHANGED},
      [TOLERANCE] = {"attention=fused", "tolerance", "a", "AVX-512", 7.000001, 5.01, JUDGED_CHANGED},
      [PROGRAM] = {"attention=fused", "tolerance", "b", "AVX-512", 7.000001, 5.01, JUDGED_SAME},
      [MACHINE] = {"baseline", "bitwise", "a", "AVX2", 7.000001, 5.01, JUDGED_SAME},
      [LOW] = {"amp=bf16", "tolerance", "b", "AVX-512", 7.05, 5.5, JUDGED_SAME},
      [WRONG] = {"baseline", "bitwise", "a", "AVX2", 7.01, 5.01, JUDGED_CHANGED},
  };
  for (int i = 0; i < KINDS; i++) {
    json_t *base[] = {cell_of(kinds[i].recipe, 1e6, NULL)}, *now[] = {cell_of(kinds[i].recipe, 1e6, NULL)};
    for (int side = 0; side < 2; side++) {
      json_t *record = side ? now[0] : base[0];
      json_object_set_new(record, "preserves", json_string(kinds[i].preserves));
      json_object_set_new(record, "git_commit", json_string(side ? kinds[i].commit : "a"));
      json_object_set_new(record, "isa", json_string(side ? kinds[i].isa : "AVX-512"));
      json_object_set_new(record, "git_dirty", json_false());
    }
    set_losses(base[0], 7, 5);
    set_losses(now[0], 7, 5);
    StoreComparison comparison = compare(base, 1, now, 1);
    assert_null(find(&comparison.cells[0], "last_loss")); /* the same bits are the same */
    vl_compare_free(&comparison);
    set_losses(now[0], kinds[i].first, kinds[i].last);
    comparison = compare(base, 1, now, 1);
    const Difference *difference = find(&comparison.cells[0], "last_loss");
    assert_non_null(difference); /* with its evidence even where it is the same */
    assert_int_equal(difference->judgement, kinds[i].judgement);
    if (i >= PROGRAM) assert_non_null(strstr(difference->evidence, i == WRONG ? "too much" : "rounding"));
    assert_int_equal(comparison.judged[JUDGED_WORSE], 0);
    vl_compare_free(&comparison);
    json_decref(base[0]);
    json_decref(now[0]);
  }
}

static const EnvironmentChange *changed(const StoreComparison *comparison, const char *name) {
  for (int32_t i = 0; i < comparison->environment_count; i++)
    if (strcmp(comparison->environment[i].name, name) == 0) return &comparison->environment[i];
  return NULL;
}

/* Facts differ or do not; clocks and heat vary by a little from run to run; what only one side kept is no
 * difference, but nothing is an answer where there may be none. */
static void the_environment_is_compared(void **state) {
  (void)state;
  static const char *const recipes[CELLS] = {"baseline", "amp=bf16", "checkpoint=1"};
  static const int64_t base_mhz[CELLS] = {3000, 3010, 2000}, now_mhz[CELLS] = {2500, 2510, 2500};
  json_t *base[CELLS], *now[CELLS];
  for (int i = 0; i < CELLS; i++)
    for (int side = 0; side < 2; side++) {
      json_t *record = cell_of(recipes[i], 1e6, NULL);
      json_object_set_new(record, "driver_version", json_string(side ? "590.10" : "580.65"));
      json_object_set_new(record, "power_limit_w", json_integer(side ? 300 : 700));
      json_object_set_new(record, "git_commit", json_string("c0ffee"));
      json_object_set_new(record, "git_dirty", json_boolean(side == 1));
      json_object_set_new(record, "clock_mhz", json_integer(side ? now_mhz[i] : base_mhz[i]));
      json_object_set_new(record, "memory_clock_mhz", json_integer(side ? 2600 : 2619)); /* 0.7 % */
      json_object_set_new(record, "temperature_c", json_integer(side ? 61 : 58));
      if (side) json_object_set_new(record, "governor", json_string("powersave"));
      if (side) json_object_set_new(record, "memory_limit_bytes", json_integer(INT64_C(1) << 30));
      if (side && i == 0) json_object_set_new(record, "disturbed", json_string("the hypervisor"));
      (side ? now : base)[i] = record;
    }
  StoreComparison comparison = compare(base, CELLS, now, CELLS);
  assert_string_equal(changed(&comparison, "driver_version")->base, "580.65");
  assert_string_equal(changed(&comparison, "driver_version")->now, "590.10");
  assert_string_equal(changed(&comparison, "power_limit_w")->now, "300");
  assert_string_equal(changed(&comparison, "git_commit")->now, "c0ffee and changes");
  assert_string_equal(changed(&comparison, "clock_mhz")->base, "3000");
  assert_string_equal(changed(&comparison, "clock_mhz")->now, "2500");
  assert_null(changed(&comparison, "memory_clock_mhz"));
  assert_null(changed(&comparison, "temperature_c"));
  assert_null(changed(&comparison, "governor"));
  assert_string_equal(changed(&comparison, "memory_limit_bytes")->base, "none");
  assert_string_equal(changed(&comparison, "memory_limit_bytes")->now, "1073741824");
  assert_string_equal(changed(&comparison, "disturbed")->now, "1 of 3 cells");
  assert_null(changed(&comparison, "throttled"));
  vl_compare_free(&comparison);
  comparison = compare(now, CELLS, now, CELLS);
  assert_int_equal(comparison.environment_count, 0);
  vl_compare_free(&comparison);
  for (int i = 0; i < CELLS; i++) {
    json_decref(base[i]);
    json_decref(now[i]);
  }
}

/* The same two libraries, the cells in another order: the same environment. Many values are cut, and differ
 * all the same where the cut would hide it. */
static void environments_do_not_depend_on_the_order_of_cells(void **state) {
  (void)state;
  enum { LIBRARIES = 30 };
  json_t *base[LIBRARIES], *now[LIBRARIES];
  for (int i = 0; i < LIBRARIES; i++)
    for (int side = 0; side < 2; side++) {
      json_t *record = cell_of("baseline", 1e6, NULL);
      char library[64];
      snprintf(library, sizeof library, "library of some length, number %02d", side ? LIBRARIES - 1 - i : i);
      json_object_set_new(record, "library", json_string(library));
      (side ? now : base)[i] = record;
    }
  StoreComparison comparison = compare(base, LIBRARIES, now, LIBRARIES);
  assert_int_equal(comparison.environment_count, 0);
  vl_compare_free(&comparison);
  json_object_set_new(now[0], "library", json_string("z"));
  comparison = compare(base, LIBRARIES, now, LIBRARIES);
  assert_int_equal(comparison.environment_count, 1);
  assert_string_equal(comparison.environment[0].name, "library");
  const char *shown = comparison.environment[0].now;
  assert_string_equal(shown + strlen(shown) - 3, "...");
  vl_compare_free(&comparison);
  for (int i = 0; i < LIBRARIES; i++) {
    json_decref(base[i]);
    json_decref(now[i]);
  }
}

static void every_metric_is_a_column(void **state) {
  (void)state;
  int32_t count;
  const Metric *metrics = vl_metric_all(&count);
  for (int32_t i = 0; i < count; i++)
    assert_non_null(vl_column_find(metrics[i].column));
}

/* ---- Baselines ---------------------------------------------------------------------------------------------------- */

static void a_baseline_keeps_records_and_reasons(void **state) {
  (void)state;
  char key[256], path[600], *directory = make_temporary_directory();
  json_t *first = cell_of("baseline", 1e6, NULL), *other = cell_of("amp=bf16", 1e6, NULL);
  json_object_set_new(first, "hardware", json_string("AMD EPYC 9B45 (64/core)"));
  json_object_set_new(other, "hardware", json_string("AMD EPYC 9B45 (64/core)"));
  json_object_set_new(other, "cell_key", json_string("00000000000000aa"));
  vl_baseline_key(first, key, sizeof key);
  assert_non_null(strstr(key, "amd-epyc-9b45-64-core"));
  FILE *null = fopen("/dev/null", "w");
  RecordSet one = {(const json_t **)&first, 1}, two = {(const json_t **)&other, 1};
  assert_int_equal(vl_baseline_update(directory, &one, "first", null).code, VL_OK);
  assert_int_equal(vl_baseline_update(directory, &two, "more \"cells\"", null).code, VL_OK);
  assert_int_equal(vl_baseline_update(directory, &one, "again", null).code, VL_OK);
  Baseline baseline;
  assert_int_equal(vl_baseline_load(directory, &one, &baseline).code, VL_OK);
  assert_int_equal(baseline.records.count, 2);
  assert_non_null(strstr(baseline.reason, "again"));
  StoreComparison comparison;
  CompareOptions options = vl_compare_usual();
  assert_int_equal(vl_compare_records(&baseline.records, &one, &options, &comparison).code, VL_OK);
  assert_int_equal(comparison.count, 1);
  assert_int_equal(comparison.cells[0].judgement, JUDGED_SAME);
  vl_compare_free(&comparison);
  vl_baseline_free(&baseline);
  json_object_set_new(first, "injected", json_string("slowdown=0.05"));
  assert_int_equal(vl_baseline_update(directory, &one, "never", null).code, VL_INVALID);
  json_object_del(first, "injected");
  snprintf(path, sizeof path, "%s/%s.jsonl", directory, key);
  FILE *file = fopen(path, "a");
  fputs("{\"torn\": \n", file);
  fclose(file);
  Status status = vl_baseline_load(directory, &one, &baseline);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, ".jsonl:4: "));
  vl_baseline_free(&baseline);
  json_object_set_new(first, "hardware", json_string("another"));
  status = vl_baseline_load(directory, &one, &baseline);
  assert_int_equal(status.code, VL_ENVIRONMENT);
  assert_non_null(strstr(status.message, "baseline update"));
  vl_baseline_free(&baseline);
  fclose(null);
  json_decref(first);
  json_decref(other);
  remove_temporary_directory(directory);
  free(directory);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_samples_are_those_of_scipy),
      cmocka_unit_test(drift_is_a_trend),
      cmocka_unit_test(holm_is_stepwise),
      cmocka_unit_test(noise_is_no_regression_and_loss_is_i14),
      cmocka_unit_test(pairs_are_those_of_scipy),
      cmocka_unit_test(what_a_sitting_shares_is_not_averaged_out),
      cmocka_unit_test(sittings_raise_no_alarms),
      cmocka_unit_test(pairs_see_through_a_machine_that_wanders),
      cmocka_unit_test(only_neighbours_are_pairs),
      cmocka_unit_test(memory_counts_to_the_byte),
      cmocka_unit_test(what_no_longer_runs_regressed),
      cmocka_unit_test(times_need_the_same_machine),
      cmocka_unit_test(losses_are_the_same_as_far_as_the_recipe_keeps_them),
      cmocka_unit_test(the_environment_is_compared),
      cmocka_unit_test(environments_do_not_depend_on_the_order_of_cells),
      cmocka_unit_test(every_metric_is_a_column),
      cmocka_unit_test(a_baseline_keeps_records_and_reasons),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
