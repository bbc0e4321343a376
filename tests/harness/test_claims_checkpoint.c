/* The claims about checkpointing: decided from jobs that differ in the way they checkpoint alone. */
#include "harness/checkpoint_cells.h"
#include "report_records.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A cell of suite checkpoint; 0 or less: not known. */
typedef struct Cell {
  const char *name, *recipe;
  bool predicted;
  double needed_gib, step_s, repeated; /* share of the step without repeating */
  double low_gib;                      /* of a profile; 0: as needed */
  double spread;                       /* of the step's interval, to both sides, as a share of it */
} Cell;

static void add(SyntheticSet *set, const Cell *cell) {
  Synthetic like = {.suite = "checkpoint",
                    .recipe = cell->recipe,
                    .preserves = "bitwise",
                    .predicted = cell->predicted,
                    .batch = 8,
                    .activation_bytes = 1e8,
                    .samples_per_s = cell->step_s > 0 ? 8 / cell->step_s : 0};
  json_t *record = synthetic_record(&like);
  double low = cell->low_gib > 0 ? cell->low_gib : cell->needed_gib;
  const int64_t flops = 1000000000000;
  json_object_set_new(record, "case", json_string(cell->name));
  json_object_set_new(record, "needed_bytes", json_integer((int64_t)(cell->needed_gib * 0x1p30)));
  json_object_set_new(record, "needed_low_bytes", json_integer((int64_t)(low * 0x1p30)));
  json_object_set_new(record, "recompute_flops", json_integer((int64_t)(cell->repeated * (double)flops)));
  json_object_set_new(record, "flops_per_step",
                      json_integer(flops + (int64_t)(cell->repeated * (double)flops)));
  json_object_set_new(record, "checkpoint_blocks_optimum", json_real(0.8));
  json_object_set_new(record, "checkpoint_ops_optimum", json_real(21.7));
  if (cell->step_s > 0) {
    json_object_set_new(record, "step_s", json_real(cell->step_s));
    json_object_set_new(record, "step_s_low", json_real(cell->step_s * (1 - cell->spread)));
    json_object_set_new(record, "step_s_high", json_real(cell->step_s * (1 + cell->spread)));
  }
  synthetic_add(set, record);
}

static void decide(const char *id, const Cell *cells, size_t count, ClaimVerdict *verdict) {
  SyntheticSet set = {.count = 0};
  ClaimFile *file = NULL;
  for (size_t i = 0; i < count; i++)
    add(&set, &cells[i]);
  assert_int_equal(vl_claims_load(NULL, &file).code, VL_OK);
  const Claim *claim = vl_claims_find(file, id);
  assert_non_null(claim);
  RecordSet records = {.records = (const json_t **)set.owned, .count = set.count};
  vl_claim_decide(claim, &records, verdict);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define ASSERT_VERDICT(id, cells, expected, said)                                                            \
  do {                                                                                                       \
    ClaimVerdict verdict;                                                                                    \
    decide(id, cells, COUNT(cells), &verdict);                                                               \
    if (verdict.verdict != (expected) || strstr(verdict.numbers, said) == NULL)                              \
      fail_msg("%s: %s, %s", id, vl_verdict_name(verdict.verdict), verdict.numbers);                         \
  } while (0)

static void cost_is_step_time_over_the_baselines(void **state) {
  (void)state;
  static const Cell third[] = {
      {"bert-base", "baseline", .needed_gib = 4, .step_s = 0.30},
      {"bert-base", "checkpoint=1", .needed_gib = 2, .step_s = 0.40, .repeated = 0.3},
      {"bert-base", "checkpoint=2", .needed_gib = 2, .step_s = 0.90, .repeated = 0.3}};
  static const Cell half[] = {
      {"bert-base", "baseline", .needed_gib = 4, .step_s = 0.30},
      {"bert-base", "checkpoint=1", .needed_gib = 2, .step_s = 0.45, .repeated = 0.3}};
  static const Cell both[] = {{"bert-base", "baseline", .needed_gib = 4, .step_s = 0.30},
                              {"bert-base", "checkpoint=1", .needed_gib = 2, .step_s = 0.40, .repeated = 0.3},
                              {"resnet50", "baseline", .needed_gib = 4, .step_s = 0.30},
                              {"resnet50", "checkpoint=1", .needed_gib = 2, .step_s = 0.45, .repeated = 0.3}};
  /* 1.33 x 0.95 / 1.05 to 1.33 x 1.05 / 0.95: from 21 to 47 %, beyond both ends of the region. */
  static const Cell noisy[] = {
      {"bert-base", "baseline", .needed_gib = 4, .step_s = 0.30, .spread = 0.05},
      {"bert-base", "checkpoint=1", .needed_gib = 2, .step_s = 0.40, .repeated = 0.3, .spread = 0.05}};
  static const Cell steady[] = {
      {"bert-base", "baseline", .needed_gib = 4, .step_s = 0.30, .spread = 0.01},
      {"bert-base", "checkpoint=1", .needed_gib = 2, .step_s = 0.40, .repeated = 0.3, .spread = 0.01}};
  static const Cell untimed[] = {
      {"bert-base", "baseline", .predicted = true, .needed_gib = 4},
      {"bert-base", "checkpoint=1", .predicted = true, .needed_gib = 2, .repeated = 0.3}};
  static const Cell other_precision[] = {
      {"bert-base", "amp=bf16", .needed_gib = 4, .step_s = 0.30},
      {"bert-base", "checkpoint=1", .needed_gib = 2, .step_s = 0.40, .repeated = 0.3}};
  ASSERT_VERDICT("ckpt-cost", third, VERDICT_SUPPORTED, "+33.3 % of the baseline's step time");
  ASSERT_VERDICT("ckpt-cost", third, VERDICT_SUPPORTED, "counted +30.0 % FLOPs");
  ASSERT_VERDICT("ckpt-cost", half, VERDICT_REFUTED, "+50.0 %");
  ASSERT_VERDICT("ckpt-cost", both, VERDICT_AMBIGUOUS, "resnet50");
  ASSERT_VERDICT("ckpt-cost", noisy, VERDICT_UNDECIDED, "(+20.6 to +47.4), too wide to decide");
  ASSERT_VERDICT("ckpt-cost", steady, VERDICT_SUPPORTED, "(+30.7 to +36.0), counted");
  ASSERT_VERDICT("ckpt-cost", untimed, VERDICT_UNDECIDED, "no time; counted +30.0 % FLOPs");
  ASSERT_VERDICT("ckpt-cost", other_precision, VERDICT_UNDECIDED, "missing: a job with the baseline");
}

static void the_snippet_saves_a_tenth_or_not(void **state) {
  (void)state;
  static const Cell nothing[] = {{"bert-base", "baseline", .needed_gib = 4},
                                 {"bert-base", "checkpoint=model", .needed_gib = 3.9, .repeated = 0.33},
                                 {"bert-base", "checkpoint=1", .needed_gib = 2, .repeated = 0.3}};
  static const Cell something[] = {{"bert-base", "baseline", .needed_gib = 4},
                                   {"bert-base", "checkpoint=model", .needed_gib = 3.5, .repeated = 0.33}};
  static const Cell without[] = {{"bert-base", "checkpoint=model", .needed_gib = 3.5, .repeated = 0.33}};
  ASSERT_VERDICT("ckpt-snippet", nothing, VERDICT_REFUTED, "4.00 to 3.90 GiB (-2.5 %) for +33.0 % FLOPs");
  ASSERT_VERDICT("ckpt-snippet", nothing, VERDICT_REFUTED, "each block by itself 2.00 GiB for +30.0 %");
  ASSERT_VERDICT("ckpt-snippet", something, VERDICT_SUPPORTED, "");
  ASSERT_VERDICT("ckpt-snippet", without, VERDICT_UNDECIDED, "missing");
}

static void the_recommended_interval_is_near_the_lowest_or_not(void **state) {
  (void)state;
  static const Cell near[] = {{"bert-base", "checkpoint=1", .needed_gib = 2.00},
                              {"bert-base", "checkpoint=4", .needed_gib = 2.03},
                              {"bert-base", "checkpoint=8", .needed_gib = 3.00}};
  static const Cell far[] = {{"bert-base", "checkpoint=1", .needed_gib = 2.00},
                             {"bert-base", "checkpoint=4", .needed_gib = 2.05},
                             {"bert-base", "checkpoint=model", .needed_gib = 1.00}};
  /* A layer read as a block and as an operator. */
  static const Cell readings[] = {{"bert-base", "checkpoint=1", .needed_gib = 2.00},
                                  {"bert-base", "checkpoint=4", .needed_gib = 2.50},
                                  {"bert-base", "checkpoint=ops:4", .needed_gib = 2.00},
                                  {"bert-base", "checkpoint=ops:20", .needed_gib = 2.50}};
  /* The lower end of a profile's need sees what the upper one hides. */
  static const Cell hidden[] = {
      {"bert-base", "checkpoint=1", .predicted = true, .needed_gib = 4, .low_gib = 2.0},
      {"bert-base", "checkpoint=4", .predicted = true, .needed_gib = 4, .low_gib = 2.5}};
  static const Cell alone[] = {{"bert-base", "checkpoint=3", .needed_gib = 2},
                               {"bert-base", "checkpoint=4", .needed_gib = 2}};
  ASSERT_VERDICT("ckpt-interval", near, VERDICT_SUPPORTED, "blocks 1 (2.00 GiB), 4 +1.5 %, k* 0.8");
  ASSERT_VERDICT("ckpt-interval", far, VERDICT_REFUTED, "4 +2.5 %");
  ASSERT_VERDICT("ckpt-interval", readings, VERDICT_AMBIGUOUS, "operators 4 (2.00 GiB), 4 +0.0 %, k* 21.7");
  ASSERT_VERDICT("ckpt-interval", hidden, VERDICT_UNDECIDED, "the profile's other end disagrees");
  ASSERT_VERDICT("ckpt-interval", alone, VERDICT_UNDECIDED, "missing");
}

/* A case that is not there leaves a victory open, but not a defeat. */
static void the_workload_that_saves_most_for_a_flop(void **state) {
  (void)state;
  static const Cell behind[] = {
      {"bert-base", "baseline", .predicted = true, .needed_gib = 4},
      {"bert-base", "checkpoint=1", .predicted = true, .needed_gib = 3, .repeated = 0.3},
      {"resnet50", "baseline", .predicted = true, .needed_gib = 4},
      {"resnet50", "checkpoint=1", .predicted = true, .needed_gib = 2, .repeated = 0.3}};
  static const Cell ahead[] = {
      {"bert-base", "baseline", .predicted = true, .needed_gib = 4},
      {"bert-base", "checkpoint=1", .predicted = true, .needed_gib = 1, .repeated = 0.3},
      {"resnet50", "baseline", .predicted = true, .needed_gib = 4},
      {"resnet50", "checkpoint=1", .predicted = true, .needed_gib = 2, .repeated = 0.3}};
  static const Cell three[] = {
      {"bert-base", "baseline", .predicted = true, .needed_gib = 4},
      {"bert-base", "checkpoint=1", .predicted = true, .needed_gib = 1, .repeated = 0.3},
      {"resnet50", "baseline", .predicted = true, .needed_gib = 4},
      {"resnet50", "checkpoint=1", .predicted = true, .needed_gib = 2, .repeated = 0.3},
      {"unet3d", "baseline", .predicted = true, .needed_gib = 4},
      {"unet3d", "checkpoint=1", .predicted = true, .needed_gib = 2, .repeated = 0.3}};
  ASSERT_VERDICT("ckpt-transformer", behind, VERDICT_REFUTED, "unet3d not there");
  ASSERT_VERDICT("ckpt-transformer", ahead, VERDICT_UNDECIDED, "unet3d not there");
  /* Plans alone support nothing. */
  ASSERT_VERDICT("ckpt-transformer", three, VERDICT_UNDECIDED, "predicted to hold, not measured");
  ASSERT_VERDICT("ckpt-transformer", three, VERDICT_UNDECIDED, "bert 10.7");
}

static void recipes_are_read_as_they_checkpoint(void **state) {
  (void)state;
  static const struct {
    const char *recipe, *rest;
    Granularity granularity;
    int64_t interval;
  } cases[] = {{"baseline", "baseline", CHECKPOINT_NONE, 0},
               {"checkpoint=3", "baseline", CHECKPOINT_BLOCKS, 3},
               {"amp=bf16 checkpoint=ops:12 recompute=norm", "amp=bf16 recompute=norm", CHECKPOINT_OPS, 12},
               {"stack=vramlab checkpoint=model", "stack=vramlab", CHECKPOINT_MODEL, 0},
               {"checkpoint=segments:2", "baseline", CHECKPOINT_OTHER, 0},
               {"checkpoint=runs:1-4", "baseline", CHECKPOINT_OTHER, 0}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    Synthetic like = {.suite = "checkpoint", .recipe = cases[i].recipe, .preserves = "bitwise", .batch = 8};
    json_t *record = synthetic_record(&like);
    CheckpointCell cell;
    assert_true(vl_checkpoint_cell(record, &cell));
    assert_int_equal(cell.granularity, cases[i].granularity);
    assert_int_equal(cell.interval, cases[i].interval);
    assert_string_equal(cell.rest, cases[i].rest);
    json_decref(record);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cost_is_step_time_over_the_baselines),
      cmocka_unit_test(the_snippet_saves_a_tenth_or_not),
      cmocka_unit_test(the_recommended_interval_is_near_the_lowest_or_not),
      cmocka_unit_test(the_workload_that_saves_most_for_a_flop),
      cmocka_unit_test(recipes_are_read_as_they_checkpoint),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
