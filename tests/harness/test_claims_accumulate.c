/* The claims about accumulation and kept graphs, decided from cells whose answer is known. */
#include "harness/claims.h"
#include "report_records.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A cell of suite accumulation: 32 samples. rate < 0: not known. */
typedef struct Cell {
  const char *recipe;
  int64_t accumulate, reserved, allocated, rate, named;
} Cell;

static json_t *record_of(const Cell *cell) {
  Synthetic like = {.suite = "accumulation",
                    .recipe = cell->recipe,
                    .preserves = "tolerance",
                    .batch = 32 / cell->accumulate,
                    .activation_bytes = 1e8,
                    .samples_per_s = 8};
  json_t *record = synthetic_record(&like);
  json_object_set_new(record, "accumulate", json_integer(cell->accumulate));
  json_object_set_new(record, "global_batch", json_integer(32));
  json_object_set_new(record, "peak_reserved_bytes", json_integer(cell->reserved));
  json_object_set_new(record, "peak_allocated_bytes", json_integer(cell->allocated));
  json_object_set_new(record, "leak_bytes_per_step", cell->rate < 0 ? json_null() : json_integer(cell->rate));
  json_object_set_new(record, "leak_named_bytes_per_step",
                      cell->rate < 0 ? json_null() : json_integer(cell->named));
  json_object_set_new(record, "leaks",
                      cell->rate > 0 ? json_pack("[{ss ss sI}]", "name", "block1.out", "scope", "block1",
                                                 "bytes_per_step", (json_int_t)cell->named)
                                     : json_array());
  return record;
}

static void assert_verdict(const char *id, const Cell *cells, size_t count, Verdict expected,
                           const char *said) {
  SyntheticSet set = {.count = 0};
  ClaimFile *file = NULL;
  ClaimVerdict *verdict = vl_allocate(sizeof *verdict);
  for (size_t i = 0; i < count; i++)
    synthetic_add(&set, record_of(&cells[i]));
  assert_int_equal(vl_claims_load(NULL, &file).code, VL_OK);
  RecordSet records = {.records = (const json_t **)set.owned, .count = set.count};
  vl_claim_decide(vl_claims_find(file, id), &records, verdict);
  assert_int_equal(verdict->verdict, expected);
  const char *numbers = verdict->finding_count > 0 ? verdict->findings[0].numbers : verdict->numbers;
  if (!strstr(numbers, said)) fail_msg("\"%s\" does not say \"%s\"", numbers, said);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
  free(verdict);
}
#define ASSERT_VERDICT(id, cells, expected, said)                                                            \
  assert_verdict(id, cells, sizeof(cells) / sizeof *(cells), expected, said)

static void only_the_wrong_one_may_fragment(void **state) {
  (void)state;
  static const Cell supported[] = {{"baseline", 1, 102, 100, 0, 0},
                                   {"accumulate=4", 4, 52, 50, 0, 0},
                                   {"accumulate-wrong=4", 4, 121, 110, 0, 0}};
  static const Cell both[] = {{"accumulate=4", 4, 53, 50, 0, 0}, {"accumulate-wrong=4", 4, 121, 110, 0, 0}};
  static const Cell none[] = {{"accumulate=4", 4, 51, 50, 0, 0}, {"accumulate-wrong=4", 4, 111, 110, 0, 0}};
  static const Cell some[] = {{"accumulate=4", 4, 51, 50, 0, 0},
                              {"accumulate-wrong=4", 4, 121, 110, 0, 0},
                              {"accumulate=8", 8, 51, 50, 0, 0},
                              {"accumulate-wrong=8", 8, 111, 110, 0, 0}};
  static const Cell other_count[] = {{"accumulate=8", 8, 51, 50, 0, 0},
                                     {"accumulate-wrong=4", 4, 121, 110, 0, 0}};
  static const Cell other_recipe[] = {{"amp=bf16 accumulate=4", 4, 51, 50, 0, 0},
                                      {"accumulate-wrong=4", 4, 121, 110, 0, 0}};
  ASSERT_VERDICT("oom-accumulation", supported, VERDICT_SUPPORTED,
                 "+4.0 % right, +10.0 % wrong, +2.0 % as one batch, of whose allocated bytes they take 0.50 "
                 "and 1.10");
  ASSERT_VERDICT("oom-accumulation", both, VERDICT_REFUTED, "+6.0 % right, +10.0 % wrong");
  ASSERT_VERDICT("oom-accumulation", none, VERDICT_REFUTED, "+2.0 % right, +0.9 % wrong");
  ASSERT_VERDICT("oom-accumulation", some, VERDICT_AMBIGUOUS, "batch 32 in 8");
  ASSERT_VERDICT("oom-accumulation", other_count, VERDICT_UNDECIDED, "missing: a job");
  ASSERT_VERDICT("oom-accumulation", other_recipe, VERDICT_UNDECIDED, "missing: a job");
}

static void a_kept_graph_leaks_at_the_rate_of_its_tensors_b5(void **state) {
  (void)state;
  static const Cell supported[] = {{"baseline", 1, 102, 100, 0, 0},
                                   {"retain-graph=every-step", 1, 900, 800, 4096, 4096}};
  static const Cell not_exact[] = {{"baseline", 1, 102, 100, 0, 0},
                                   {"retain-graph=every-step", 1, 900, 800, 4096, 3584}};
  static const Cell not_seen[] = {{"baseline", 1, 102, 100, 0, 0},
                                  {"retain-graph=every-step", 1, 900, 800, 0, 0}};
  static const Cell too_short[] = {{"baseline", 1, 102, 100, -1, -1},
                                   {"retain-graph=every-step", 1, 900, 800, -1, -1}};
  static const Cell clean_leaks[] = {{"baseline", 1, 102, 100, 512, 512},
                                     {"retain-graph=every-step", 1, 900, 800, 4096, 4096}};
  ASSERT_VERDICT("oom-retained-graph", supported, VERDICT_SUPPORTED,
                 "4096 bytes more after every step, 4096 of them in 1 tensors named, most in block1.out of "
                 "block1; none without");
  ASSERT_VERDICT("oom-retained-graph", not_exact, VERDICT_REFUTED, "3584 of them");
  ASSERT_VERDICT("oom-retained-graph", not_seen, VERDICT_REFUTED, "0 bytes more");
  ASSERT_VERDICT("oom-retained-graph", too_short, VERDICT_UNDECIDED, "missing: a run");
  ASSERT_VERDICT("oom-retained-graph", clean_leaks, VERDICT_UNDECIDED, "missing: a run");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_the_wrong_one_may_fragment),
      cmocka_unit_test(a_kept_graph_leaks_at_the_rate_of_its_tensors_b5),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
