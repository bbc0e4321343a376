/* The claim about the article's flow, decided from cells whose answer is known: all six found with exact
 * bytes and nothing on clean runs supports it; one that is missed, or off by a byte, or a false alarm refutes
 * it. */
#include "harness/claims.h"
#include "report_records.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A cell of suite diagnose; kind NULL: nothing was found. `told`: what else the record says of the bytes. */
typedef struct Cell {
  const char *recipe, *kind;
  int64_t bytes, told;
} Cell;

static const Cell whole[] = {
    {"baseline", NULL, 0, 0},
    {"retain-graph=every-step", "retained-graph", 4096, 4096},
    {"keep-loss=until-update", "kept-loss", 4096, 0},
    {"copy-weights=fp32", "weight-copy", 2048, 2048},
    {"oversize-workspace=64MiB", "workspace", 64 << 20, 0},
    {"checkpoint=1 keep-recomputed=until-update", "kept-recomputed", 512, 0},
    {"grow=1KiB", "growth", 1024, 0},
};
enum { CELLS = sizeof whole / sizeof *whole };

static json_t *record_of(const Cell *cell) {
  Synthetic like = {.suite = "diagnose",
                    .recipe = cell->recipe,
                    .preserves = "bitwise",
                    .batch = 8,
                    .activation_bytes = 1e8};
  json_t *record = synthetic_record(&like), *anomalies = json_array();
  if (cell->kind)
    json_array_append_new(anomalies,
                          json_pack("{ss sI si sI ss ss ss}", "kind", cell->kind, "bytes",
                                    (json_int_t)cell->bytes, "tensors", 1, "largest_bytes",
                                    (json_int_t)cell->bytes, "tensor", "a.out", "op", "conv", "scope", "a"));
  json_object_set_new(record, "anomalies", anomalies);
  json_object_set_new(record, "leak_bytes_per_step", json_integer(cell->told));
  json_object_set_new(record, "diagnosis_start_bytes", json_integer(10000 + cell->told));
  json_object_set_new(record, "diagnosis_expected_start_bytes", json_integer(9000));
  json_object_set_new(record, "diagnosis_rest_bytes", json_integer(1000));
  return record;
}

static void assert_verdict(const Cell *cells, size_t count, Verdict expected, const char *said) {
  SyntheticSet set = {.count = 0};
  ClaimFile *file = NULL;
  ClaimVerdict *verdict = vl_allocate(sizeof *verdict);
  for (size_t i = 0; i < count; i++)
    synthetic_add(&set, record_of(&cells[i]));
  assert_int_equal(vl_claims_load(NULL, &file).code, VL_OK);
  RecordSet records = {.records = (const json_t **)set.owned, .count = set.count};
  vl_claim_decide(vl_claims_find(file, "diagnose"), &records, verdict);
  const char *numbers = verdict->finding_count > 0 ? verdict->findings[0].numbers : verdict->numbers;
  if (verdict->verdict != expected || !strstr(numbers, said))
    fail_msg("%s: \"%s\" (expected \"%s\")", vl_verdict_name(verdict->verdict), numbers, said);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
  free(verdict);
}

static void all_found_and_nothing_else_supports(void **state) {
  (void)state;
  assert_verdict(whole, CELLS, VERDICT_SUPPORTED, "6 of 6 kinds of anomaly found");
  assert_verdict(whole, CELLS, VERDICT_SUPPORTED, "0 of 1 clean runs alarmed");
}

static void one_that_is_missed_or_off_by_a_byte_refutes(void **state) {
  (void)state;
  for (int i = 1; i < CELLS; i++) {
    Cell cells[CELLS];
    memcpy(cells, whole, sizeof cells);
    cells[i].kind = NULL;
    assert_verdict(cells, CELLS, VERDICT_REFUTED, "not found as planted");
    memcpy(cells, whole, sizeof cells);
    cells[i].kind = "held";
    assert_verdict(cells, CELLS, VERDICT_REFUTED, "not found as planted");
    if (strcmp(whole[i].kind, "kept-recomputed") == 0) continue; /* no other figure of the record tells it */
    memcpy(cells, whole, sizeof cells);
    cells[i].bytes++;
    assert_verdict(cells, CELLS, VERDICT_REFUTED, "not found as planted");
  }
}

static void a_false_alarm_refutes(void **state) {
  (void)state;
  Cell cells[CELLS];
  memcpy(cells, whole, sizeof cells);
  cells[0].kind = "growth";
  cells[0].bytes = 512;
  assert_verdict(cells, CELLS, VERDICT_REFUTED, "1 of 1 clean runs alarmed");
}

static void less_than_all_decides_nothing(void **state) {
  (void)state;
  assert_verdict(whole, CELLS - 1, VERDICT_UNDECIDED, "missing: every kind planted");
  assert_verdict(whole + 1, CELLS - 1, VERDICT_UNDECIDED, "a run without");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_found_and_nothing_else_supports),
      cmocka_unit_test(one_that_is_missed_or_off_by_a_byte_refutes),
      cmocka_unit_test(a_false_alarm_refutes),
      cmocka_unit_test(less_than_all_decides_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
