/* Claims: the file is read strictly, hashes follow the numbers and not the spelling, and every rule decides
 * as claims.md says on cells whose answer is known. */
#include "harness/claims.h"
#include "report_records.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static ClaimFile *shipped(void) {
  ClaimFile *file = NULL;
  Status status = vl_claims_load(VRAMLAB_SOURCE_DIR "/cases/claims.yaml", &file);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return file;
}

static void decide(const ClaimFile *file, const char *id, const SyntheticSet *set, ClaimVerdict *verdict) {
  RecordSet records = {.records = (const json_t **)set->owned, .count = set->count};
  const Claim *claim = vl_claims_find(file, id);
  assert_non_null(claim);
  vl_claim_decide(claim, &records, verdict);
}

static void set_provenance(SyntheticSet *set, const char *provenance) {
  for (int32_t i = 0; i < set->count; i++)
    json_object_set_new(set->owned[i], "provenance", json_string(provenance));
}

/* Predicted cells that meet the region leave the claim undecided; the same, measured, support it. */
static void supported_once_measured(const ClaimFile *file, const char *id, SyntheticSet *set,
                                    ClaimVerdict *verdict) {
  set_provenance(set, "predicted");
  decide(file, id, set, verdict);
  assert_int_equal(verdict->verdict, VERDICT_UNDECIDED);
  assert_non_null(strstr(verdict->numbers, "predicted to hold, not measured"));
  assert_string_equal(vl_claim_provenance(verdict), "predicted");
  assert_string_equal(vl_finding_verdict_name(&verdict->findings[verdict->headline]), "predicted to hold");
  set_provenance(set, "measured");
  decide(file, id, set, verdict);
  assert_int_equal(verdict->verdict, VERDICT_SUPPORTED);
  assert_string_equal(vl_claim_provenance(verdict), "measured");
  set_provenance(set, "predicted");
}

/* ---- Reading ------------------------------------------------------------------------------------------------ */

static const char *const sound =
    "article: a test\nclaims:\n- id: shape\n  section: one\n  sentence: \"指数级\"\n  translation: "
    "exponential\n"
    "  setting: unnamed\n  suites: [resnet-growth]\n  cells: {recipe: baseline}\n  metric: needed_bytes\n"
    "  denominator: none\n  rule: category-share\n  region: {share: 0.90, parts: [activation], cases: [a]}\n"
    "  trap: none\n  command: vramlab run x\n";

static Status load_text(const char *text, ClaimFile **file) {
  char path[] = "/tmp/vramlab-claims-XXXXXX";
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  assert_int_equal(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
  close(descriptor);
  Status status = vl_claims_load(path, file);
  unlink(path);
  return status;
}

/* The sound text with one piece replaced. free() it. */
static char *with(const char *from, const char *to) {
  const char *at = strstr(sound, from);
  assert_non_null(at);
  size_t size = strlen(sound) + strlen(to) + 1;
  char *text = malloc(size);
  snprintf(text, size, "%.*s%s%s", (int)(at - sound), sound, to, at + strlen(from));
  return text;
}

static void hash_follows_numbers_not_spelling(void **state) {
  (void)state;
  static const struct {
    const char *from, *to;
    bool same;
  } changes[] = {{"share: 0.90, ", "share: \"0.90\", ", true},
                 {"  metric: needed_bytes\n", "  metric: needed_bytes # a comment\n", true},
                 {"{share: 0.90, parts: [activation]", "{parts: [activation], share: 0.90", true},
                 {"share: 0.90", "share: 0.91", false},
                 {"parts: [activation]", "parts: [activation, gradient]", false},
                 {"trap: none", "trap: some", false}};
  ClaimFile *file = NULL;
  assert_int_equal(load_text(sound, &file).code, VL_OK);
  char hash[VL_CLAIM_HASH_BYTES];
  memcpy(hash, file->claims[0].hash, sizeof(hash));
  assert_int_equal(strlen(hash), 64);
  vl_claims_destroy(&file);
  for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
    char *text = with(changes[i].from, changes[i].to);
    assert_int_equal(load_text(text, &file).code, VL_OK);
    assert_int_equal(strcmp(file->claims[0].hash, hash) == 0, changes[i].same);
    vl_claims_destroy(&file);
    free(text);
  }
}

static void faulty_files_are_refused_with_their_place(void **state) {
  (void)state;
  static const struct {
    const char *from, *to, *said;
  } faults[] = {{"  trap: none\n", "", "has no trap"},
                {"trap: none", "trip: none", ":14:"},
                {"rule: category-share", "rule: guess", "unknown rule \"guess\"; accepted: growth-shape"},
                {"share: 0.90, ", "", "needs the number share"},
                {"share: 0.90, ", "share: many, ", ":13:"},
                {"share: 0.90, ", "share: 0.90, shore: 1, ", "knows no shore"},
                {"parts: [activation]", "parts: []", "needs the list parts"},
                {"suites: [resnet-growth]", "suites: []", "at least one suite"},
                {"trap: none", "trap: none\n  missing: much", "says itself what is missing"},
                {"rule: category-share\n  region: {share: 0.90, parts: [activation], cases: [a]}",
                 "rule: awaiting-suite\n  region: {}", "has no missing"},
                {"cells: {recipe: baseline}", "cells: all", "a map, {} for all"}};
  for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
    char *text = with(faults[i].from, faults[i].to);
    ClaimFile *file = NULL;
    Status status = load_text(text, &file);
    assert_int_equal(status.code, VL_INVALID);
    if (strstr(status.message, faults[i].said) == NULL) fail_msg("%s", status.message);
    assert_null(file);
    free(text);
  }
  char *twice = malloc(2 * strlen(sound));
  sprintf(twice, "%s%s", sound, strstr(sound, "- id"));
  ClaimFile *file = NULL;
  Status status = load_text(twice, &file);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "is there twice"));
  free(twice);
}

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

static void growth_cells(SyntheticSet *set, const char *recipe, double (*activation)(int64_t batch)) {
  static const int64_t batches[] = {1, 8, 16, 32, 64, 96, 128, 192, 256};
  for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
    Synthetic cell = {.suite = "resnet-growth",
                      .recipe = recipe,
                      .preserves = "bitwise",
                      .predicted = true,
                      .batch = batches[i],
                      .activation_bytes = activation(batches[i])};
    synthetic_add(set, synthetic_record(&cell));
  }
}

static double linear(int64_t batch) {
  (void)batch;
  return 105e6;
}
/* needed = 1.0e9 e^(0.01 batch) or close to it once the constant part is small against it. */
static double exponential(int64_t batch) {
  double value = 60e9;
  for (int64_t i = 0; i < batch; i++)
    value *= 1.01;
  return value / (double)batch;
}
static double stepped(int64_t batch) { return batch % 3 == 0 ? 160e6 : 90e6; }

static void shape_is_refuted_supported_or_ambiguous(void **state) {
  (void)state;
  static const struct {
    double (*activation)(int64_t batch);
    Verdict verdict;
  } curves[] = {{linear, VERDICT_REFUTED}, {exponential, VERDICT_SUPPORTED}, {stepped, VERDICT_AMBIGUOUS}};
  ClaimFile *file = shipped();
  for (size_t i = 0; i < sizeof(curves) / sizeof(curves[0]); i++) {
    SyntheticSet set = {.count = 0};
    growth_cells(&set, "baseline", curves[i].activation);
    ClaimVerdict verdict;
    if (curves[i].verdict == VERDICT_SUPPORTED) supported_once_measured(file, "resnet-shape", &set, &verdict);
    decide(file, "resnet-shape", &set, &verdict);
    if (curves[i].verdict != VERDICT_SUPPORTED) assert_int_equal(verdict.verdict, curves[i].verdict);
    assert_int_equal(verdict.finding_count, 1);
    assert_true(verdict.findings[0].predicted);
    assert_non_null(strstr(verdict.findings[0].scope, "predicted for Example CPU 9000"));
    synthetic_clear(&set);
  }
  vl_claims_destroy(&file);
}

/* A measured baseline that ran out at 192 decides nothing; a measured bf16 and the prediction do, and the
 * measured one is the headline. */
static void measured_before_predicted_and_missing_is_named(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  synthetic_growth(&set);
  ClaimVerdict verdict;
  decide(file, "resnet-shape", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  assert_int_equal(verdict.finding_count, 4);
  const Finding *headline = &verdict.findings[verdict.headline];
  assert_false(headline->predicted);
  assert_non_null(strstr(headline->scope, "recipe amp=bf16"));
  bool named = false;
  for (int32_t i = 0; i < verdict.finding_count; i++)
    named = named || strstr(verdict.findings[i].numbers,
                            "missing: held-out batch 192 oom, held-out batch 256 skipped");
  assert_true(named);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

/* 4.2 and 7.8 GB: needed = 0.6e9 + 56.25e6 a sample. The synthetic cell's constant part is subtracted. */
static double as_stated(int64_t batch) {
  double constant = 2 * 102228128.0 + 212480 + (9 + 16 + 30 + 12) * 1048576.0;
  double input = 3 * 224 * 224 * 4;
  return (0.6e9 - constant) / 1.02 / (double)batch + (56.25e6 - input) / 1.02;
}

static void levels_hold_in_one_configuration_or_are_refuted(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  growth_cells(&set, "baseline", linear);
  decide(file, "resnet-level", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_UNDECIDED); /* bf16 is named by the claim and missing */
  assert_non_null(strstr(verdict.numbers, "amp=bf16: not run at both batches"));
  growth_cells(&set, "amp=bf16", linear);
  decide(file, "resnet-level", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  synthetic_clear(&set);
  growth_cells(&set, "baseline", as_stated);
  supported_once_measured(file, "resnet-level", &set, &verdict);
  assert_non_null(strstr(verdict.numbers, "4.20 and 7.80 GB"));
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

static void growth_is_activations_and_gradients_stay(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  growth_cells(&set, "baseline", linear);
  supported_once_measured(file, "resnet-cause", &set, &verdict);
  assert_non_null(strstr(verdict.numbers, "gradient 0,"));
  for (int32_t i = 0; i < set.count; i++)
    if (vl_record_integer(set.owned[i], "micro_batch") == 96) {
      json_t *categories = json_object_get(set.owned[i], "peak_by_category");
      json_int_t bytes = json_integer_value(json_object_get(categories, "gradient"));
      json_object_set_new(categories, "gradient", json_integer(bytes + 512));
    }
  supported_once_measured(file, "resnet-cause", &set, &verdict);
  /* 2 % of the growth in gradients is growth; the rounding of blocks is not. */
  for (int32_t i = 0; i < set.count; i++)
    if (vl_record_integer(set.owned[i], "micro_batch") == 128) {
      json_t *categories = json_object_get(set.owned[i], "peak_by_category");
      json_int_t bytes = json_integer_value(json_object_get(categories, "gradient"));
      json_object_set_new(categories, "gradient", json_integer(bytes + (json_int_t)(0.02 * 64 * 105e6)));
    }
  decide(file, "resnet-cause", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

/* One case alone cannot support a claim about three, but can refute it. */
static void parts_need_all_cases_to_support(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  Synthetic cell = {.suite = "resnet-growth",
                    .recipe = "baseline",
                    .preserves = "bitwise",
                    .batch = 64,
                    .activation_bytes = 105e6,
                    .samples_per_s = 5};
  synthetic_add(&set, synthetic_record(&cell));
  decide(file, "memory-parts", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_UNDECIDED);
  assert_non_null(strstr(verdict.numbers, "bert-base: not run"));
  cell.activation_bytes = 1e6;
  synthetic_add(&set, synthetic_record(&cell));
  decide(file, "memory-parts", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  assert_non_null(strstr(verdict.numbers, "optimizer"));
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

static void oom_pair(SyntheticSet *set, int64_t capacity, const char *segment, const char *error) {
  Synthetic fits = {.suite = "oom",
                    .recipe = "baseline",
                    .preserves = "bitwise",
                    .predicted = true,
                    .batch = 4,
                    .activation_bytes = 105e6,
                    .capacity_bytes = capacity};
  Synthetic fails = fits;
  fails.batch = 5;
  fails.status = "oom";
  fails.oom_segment = segment;
  fails.error = error;
  synthetic_add(set, synthetic_record(&fits));
  synthetic_add(set, synthetic_record(&fails));
}

static void four_places_of_failure(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  oom_pair(&set, (int64_t)1 << 30, "forward", "shortage");
  oom_pair(&set, (int64_t)2 << 30, "backward", "shortage");
  oom_pair(&set, (int64_t)3 << 30, "backward", "fragmented: would suffice in one piece");
  decide(file, "oom-batch", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_UNDECIDED);
  assert_non_null(strstr(verdict.numbers, "optimizer: no cell fails for that reason"));
  oom_pair(&set, (int64_t)4 << 30, "setup", "no room for 2.00 MiB of optimizer 'x'; fragmented");
  decide(file, "oom-batch", &set, &verdict);
  assert_int_equal(verdict.verdict,
                   VERDICT_UNDECIDED); /* one sample fewer is no counterpart of optimizer state */
  Synthetic untrained = {.suite = "oom",
                         .recipe = "baseline",
                         .preserves = "bitwise",
                         .predicted = true,
                         .batch = 5,
                         .activation_bytes = 105e6,
                         .capacity_bytes = (int64_t)4 << 30};
  synthetic_add(&set, synthetic_record(&untrained));
  json_object_set_new(set.owned[set.count - 1], "inference", json_true());
  supported_once_measured(file, "oom-batch", &set, &verdict);
  assert_non_null(strstr(verdict.numbers, "1.00 GiB holds batch 4, not 5"));
  /* 97.7 MiB of parameters in 4 GiB: far below half. */
  decide(file, "oom-parameters", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  synthetic_clear(&set);
  oom_pair(&set, (int64_t)110 << 20, "setup", "shortage");
  supported_once_measured(file, "oom-parameters", &set, &verdict);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

/* A planned BERT of 256 sequences a step (or of another number) on a V100, whose need is given. */
static void bert_cell(SyntheticSet *set, const char *settings, const char *recipe, int64_t micro_batch,
                      int64_t batch, double needed_bytes) {
  Synthetic cell = {.suite = "bert-case",
                    .recipe = recipe,
                    .preserves = "tolerance",
                    .predicted = true,
                    .batch = micro_batch};
  json_t *record = synthetic_record(&cell);
  json_object_set_new(record, "case", json_string("bert-base"));
  json_object_set_new(record, "settings", json_string(settings));
  json_object_set_new(record, "hardware", json_string("NVIDIA V100 32 GB"));
  json_object_set_new(record, "device_name", json_string("plan:V100-32GB"));
  json_object_set_new(record, "profile", json_string("V100-32GB"));
  json_object_set_new(record, "global_batch", json_integer((json_int_t)batch));
  if (needed_bytes > 0)
    json_object_set_new(record, "needed_bytes", json_integer((json_int_t)needed_bytes));
  else
    json_object_set_new(record, "status", json_string("oom"));
  synthetic_add(set, record);
}

/* One configuration with both levels supports, several leave open which was meant, none refutes; without
 * pairs of the article's batch nothing is decided. */
static void two_levels_in_one_configuration(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  bert_cell(&set, "sequence=128", "baseline", 8, 8, 28e9);
  bert_cell(&set, "sequence=128", "amp=fp16 checkpoint=1", 8, 8, 22e9);
  decide(file, "bert-case", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_UNDECIDED);
  assert_non_null(strstr(verdict.numbers, "at batch 8; the saving of 21 % by itself: 1 of 1 pairs"));

  bert_cell(&set, "sequence=128", "accumulate=4", 64, 256, 40e9);
  bert_cell(&set, "sequence=128", "accumulate=4 amp=fp16", 64, 256, 22e9);
  decide(file, "bert-case", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_UNDECIDED); /* nothing with both */
  bert_cell(&set, "sequence=128", "accumulate=4 amp=fp16 checkpoint=1", 64, 256, 12e9);
  decide(file, "bert-case", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  assert_non_null(strstr(verdict.numbers, "of 1 pairs none has both levels; nearest bert-base sequence=128"));
  assert_non_null(
      strstr(verdict.numbers, "0 of 1 pairs within what the two levels span, all of them save 70 to 70 %"));

  /* Read as GiB. Another micro-batch is another configuration, what did not fit is none. */
  bert_cell(&set, "sequence=512", "accumulate=16", 16, 256, 28.9 * 0x1p30);
  bert_cell(&set, "sequence=512", "accumulate=16 amp=fp16 checkpoint=2", 16, 256, 22.9 * 0x1p30);
  bert_cell(&set, "sequence=512", "accumulate=16 amp=fp16", 16, 256, 22.0 * 0x1p30);
  bert_cell(&set, "sequence=512", "accumulate=16 amp=fp16 checkpoint=1", 16, 256, 24.1 * 0x1p30);
  bert_cell(&set, "sequence=512", "accumulate=8", 32, 256, -1);
  bert_cell(&set, "sequence=512", "accumulate=8 amp=fp16 checkpoint=1", 32, 256, 22e9);
  supported_once_measured(file, "bert-case", &set, &verdict);
  assert_non_null(strstr(verdict.numbers, "bert-base sequence=512 micro-batch 16, accumulate=16 amp=fp16 "
                                          "checkpoint=2: 28.9 to 22.9 GiB; 1 configuration with both levels "
                                          "among 3 pairs; with mixed precision alone: 1"));

  bert_cell(&set, "sequence=128", "accumulate=2 layer-norm=fused", 128, 256, 28e9);
  bert_cell(&set, "sequence=128", "accumulate=2 amp=fp16 checkpoint=4", 128, 256, 22e9);
  supported_once_measured(file, "bert-case", &set, &verdict); /* another item: another configuration */
  bert_cell(&set, "sequence=128", "accumulate=2 amp=fp16 layer-norm=fused checkpoint=4", 128, 256, 22e9);
  decide(file, "bert-case", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_AMBIGUOUS);
  assert_non_null(strstr(verdict.numbers, "2 configurations with both levels among 4 pairs"));
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

/* One workload's cell of suite amp, planned for a card. reserved_bytes < 0: it did not fit. */
static void amp_cell(SyntheticSet *set, const char *of, const char *recipe, int64_t batch,
                     double reserved_bytes) {
  Synthetic cell = {
      .suite = "amp", .recipe = recipe, .preserves = "tolerance", .predicted = true, .batch = batch};
  json_t *record = synthetic_record(&cell);
  json_object_set_new(record, "case", json_string(of));
  json_object_set_new(record, "profile", json_string("A100-80GB"));
  json_object_set_new(record, "peak_reserved_bytes", json_integer((json_int_t)reserved_bytes));
  if (reserved_bytes < 0) json_object_set_new(record, "status", json_string("oom"));
  synthetic_add(set, record);
}

/* At the largest power of two that fp32 holds, in every workload the region names. */
static void fp16_saves_what_it_saves_where_fp32_just_fits(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  static const char *const cases[] = {"resnet50", "bert-base", "unet3d"};
  for (int i = 0; i < 3; i++) {
    amp_cell(&set, cases[i], "baseline", 64, 10e9);
    amp_cell(&set, cases[i], "amp=fp16", 64, 9e9);
    amp_cell(&set, cases[i], "baseline", 128, 20e9);
    amp_cell(&set, cases[i], "amp=fp16", 128, i == 1 ? 14e9 : 10e9);
    amp_cell(&set, cases[i], "baseline", 192, 30e9); /* no power of two */
    amp_cell(&set, cases[i], "amp=fp16", 192, 9e9);
    amp_cell(&set, cases[i], "baseline", 256, -1);
    amp_cell(&set, cases[i], "amp=fp16", 256, 20e9);
    decide(file, "amp-memory", &set, &verdict);
    assert_int_equal(verdict.findings[0].verdict, i < 2 ? VERDICT_UNDECIDED : VERDICT_AMBIGUOUS);
  }
  assert_non_null(
      strstr(verdict.findings[0].numbers, "resnet50: 50.0 % at batch 128; bert-base: 30.0 % at batch 128"));
  /* What is computed in another type than it stands for has saved nothing. */
  amp_cell(&set, "resnet50", "baseline", 512, 40e9);
  amp_cell(&set, "resnet50", "amp=fp16", 512, 4e9);
  json_object_set_new(set.owned[set.count - 1], "emulated", json_true());
  decide(file, "amp-memory", &set, &verdict);
  assert_non_null(strstr(verdict.findings[0].numbers, "resnet50: 50.0 % at batch 128;"));
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

/* A monitored run that overflowed, said where, and went on. */
static void an_overflow_is_found(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  Synthetic cell = {
      .suite = "amp", .recipe = "amp=fp16", .preserves = "tolerance", .batch = 4, .samples_per_s = 1};
  synthetic_add(&set, synthetic_record(&cell));
  json_object_set_new(set.owned[0], "monitor_loss_scale", json_pack("[f]", 65536.0));
  decide(file, "amp-stability", &set, &verdict);
  assert_int_equal(verdict.findings[0].verdict, VERDICT_UNDECIDED);
  json_object_set_new(set.owned[0], "skipped_steps", json_integer(3));
  json_object_set_new(set.owned[0], "first_nonfinite",
                      json_string("x.cast of cast in x, backward of step 1"));
  decide(file, "amp-stability", &set, &verdict);
  assert_int_equal(verdict.findings[0].verdict, VERDICT_SUPPORTED);
  assert_non_null(strstr(verdict.findings[0].numbers, "3 steps skipped, first x.cast of cast"));
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

/* A watched cell whose first gradients are off by `error`; NaN: they overflowed. */
static void watched_cell(SyntheticSet *set, const char *recipe, double error, double flushed) {
  Synthetic cell = {.suite = "amp",
                    .recipe = recipe,
                    .preserves = "tolerance",
                    .batch = 4,
                    .samples_per_s = 1,
                    .loss_shift = error > 0 ? 0.25 : 0};
  json_t *record = synthetic_record(&cell), *sketch = json_array();
  for (int s = 0; s < 2 * VL_SKETCH_SUMS; s++) /* only the first step counts */
    json_array_append_new(sketch,
                          isnan(error) ? json_null() : json_real(s < VL_SKETCH_SUMS ? 2 + 2 * error : 9));
  json_object_set_new(record, "monitor_gradient_sketch", sketch);
  json_object_set_new(record, "monitor_flushed_share", json_pack("[f, f]", flushed, 0.5));
  synthetic_add(set, record);
}

/* What low and fp32 activation gradients are off by, in fp16 and in bf16. */
static void expect_gradients(const ClaimFile *file, const double errors[4], Verdict expected,
                             const char *said) {
  static const char *const recipes[] = {"amp=fp16", "amp=fp16 activation-gradients=fp32", "amp=bf16",
                                        "amp=bf16 activation-gradients=fp32"};
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  watched_cell(&set, "baseline", 0, 0);
  for (int i = 0; i < 4; i++)
    if (errors[i] >= 0 || isnan(errors[i])) watched_cell(&set, recipes[i], errors[i], 0.03);
  decide(file, "amp-grad-fp32", &set, &verdict);
  const Finding *finding = &verdict.findings[0];
  if (finding->verdict != expected || strstr(finding->numbers, said) == NULL)
    fail_msg("%s: %s", vl_verdict_name(finding->verdict), finding->numbers);
  synthetic_clear(&set);
}

static void low_activation_gradients_are_needed_or_not(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  const double nan_ = (double)NAN;
  expect_gradients(file, (const double[]){0.02, 0.01, 0.14, 0.03}, VERDICT_REFUTED,
                   "resnet50 bf16: low 14 %, 3 % flushed, loss off by 0.25 | fp32 3 %");
  expect_gradients(file, (const double[]){0.2, 0.01, 0.3, 0.03}, VERDICT_SUPPORTED, "fp16: low 20 %");
  expect_gradients(file, (const double[]){0.02, 0.01, 0.3, 0.03}, VERDICT_AMBIGUOUS, "bf16: low 30 %");
  expect_gradients(file, (const double[]){0.02, 0.01, 0.3, 0.3}, VERDICT_AMBIGUOUS, "| fp32 30 %");
  expect_gradients(file, (const double[]){0.02, -1, 0.02, 0.01}, VERDICT_UNDECIDED,
                   "fp16: missing, monitored amp=fp16 activation-gradients=fp32");
  expect_gradients(file, (const double[]){-1, -1, 0.02, 0.01}, VERDICT_UNDECIDED,
                   "fp16: missing, monitored amp=fp16;");
  expect_gradients(file, (const double[]){nan_, 0.01, 0.02, 0.01}, VERDICT_UNDECIDED, "low overflowed");
  /* A run that diverged has left, whatever its first gradients. */
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  watched_cell(&set, "baseline", 0, 0);
  watched_cell(&set, "amp=fp16", 0.01, 0);
  watched_cell(&set, "amp=fp16 activation-gradients=fp32", 0.01, 0);
  watched_cell(&set, "amp=bf16", 0.2, 0);
  watched_cell(&set, "amp=bf16 activation-gradients=fp32", 0.01, 0);
  json_object_set_new(set.owned[1], "status", json_string("diverged"));
  decide(file, "amp-grad-fp32", &set, &verdict);
  assert_int_equal(verdict.findings[0].verdict, VERDICT_SUPPORTED);
  assert_non_null(strstr(verdict.findings[0].numbers, "diverged"));
  synthetic_clear(&set);
  Synthetic unwatched = {
      .suite = "amp", .recipe = "baseline", .preserves = "bitwise", .batch = 4, .samples_per_s = 1};
  synthetic_add(&set, synthetic_record(&unwatched));
  decide(file, "amp-grad-fp32", &set, &verdict);
  assert_int_equal(verdict.findings[0].verdict, VERDICT_UNDECIDED);
  assert_string_equal(verdict.findings[0].numbers, "missing: a monitored baseline");
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

static void timed_cell(SyntheticSet *set, const char *of, const char *recipe, int64_t batch, double speed) {
  Synthetic cell = {
      .suite = "amp", .recipe = recipe, .preserves = "tolerance", .batch = batch, .samples_per_s = speed};
  json_t *record = synthetic_record(&cell);
  json_object_set_new(record, "case", json_string(of));
  json_object_set_new(record, "device", json_string("cuda"));
  json_object_set_new(record, "isa", json_string("sm_80"));
  json_object_set_new(record, "hardware", json_string("NVIDIA A100-SXM4-80GB"));
  synthetic_add(set, record);
}

/* At the largest batch timed in both types, on a device that has tensor cores. */
static void fp16_speed_is_told_of_tensor_cores(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  timed_cell(&set, "resnet50", "baseline", 32, 10);
  timed_cell(&set, "resnet50", "amp=fp16", 32, 11);
  timed_cell(&set, "resnet50", "baseline", 64, 10);
  timed_cell(&set, "resnet50", "amp=fp16", 64, 24);
  timed_cell(&set, "resnet50", "baseline", 128, 10);
  decide(file, "amp-speed", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_SUPPORTED);
  assert_non_null(strstr(verdict.numbers, "resnet50 batch 64: 2.40 times (2.3"));
  assert_null(strstr(verdict.numbers, "batch 32"));
  timed_cell(&set, "bert-base", "baseline", 16, 10);
  timed_cell(&set, "bert-base", "amp=fp16", 16, 40);
  decide(file, "amp-speed", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_AMBIGUOUS);
  SyntheticSet only = {.owned = {set.owned[5], set.owned[6]}, .count = 2};
  decide(file, "amp-speed", &only, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  for (int32_t i = 0; i < 2; i++)
    json_object_set_new(only.owned[i], i == 0 ? "step_s_low" : "step_s_high", json_null());
  decide(file, "amp-speed", &only, &verdict);
  assert_int_equal(verdict.findings[0].verdict, VERDICT_UNDECIDED);
  assert_non_null(strstr(verdict.findings[0].numbers, "fewer than 6 steps"));
  /* No tensor cores; emulated. */
  for (int32_t pass = 0; pass < 2; pass++) {
    for (int32_t i = 0; i < set.count; i++) {
      json_object_set_new(set.owned[i], "isa", json_string(pass == 0 ? "sm_61" : "sm_80"));
      json_object_set_new(set.owned[i], "emulated", json_boolean(pass == 1));
    }
    decide(file, "amp-speed", &set, &verdict);
    assert_int_equal(verdict.findings[0].verdict, VERDICT_UNDECIDED);
    assert_non_null(strstr(verdict.findings[0].numbers, "vramlab run amp --device cuda"));
  }
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

/* ---- Scope ------------------------------------------------------------------------------------------- */

/* Evidence from elsewhere stands beside the verdict and does not change it. */
static void elsewhere_does_not_decide(void **state) {
  (void)state;
  char *text = with("setting: unnamed", "setting: V100-32GB");
  ClaimFile *file = NULL;
  assert_int_equal(load_text(text, &file).code, VL_OK);
  free(text);
  SyntheticSet set = {.count = 0};
  Synthetic cell = {.suite = "resnet-growth",
                    .recipe = "baseline",
                    .preserves = "bitwise",
                    .batch = 64,
                    .activation_bytes = 1e6,
                    .samples_per_s = 5};
  synthetic_add(&set, synthetic_record(&cell));
  json_object_set_new(set.owned[0], "case", json_string("a"));
  ClaimVerdict verdict;
  decide(file, "shape", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_UNDECIDED);
  assert_int_equal(verdict.findings[0].verdict, VERDICT_REFUTED);
  assert_false(verdict.findings[0].in_setting);
  json_object_set_new(set.owned[0], "hardware", json_string("Tesla V100-SXM2-32GB"));
  decide(file, "shape", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hash_follows_numbers_not_spelling),
      cmocka_unit_test(faulty_files_are_refused_with_their_place),
      cmocka_unit_test(shape_is_refuted_supported_or_ambiguous),
      cmocka_unit_test(measured_before_predicted_and_missing_is_named),
      cmocka_unit_test(levels_hold_in_one_configuration_or_are_refuted),
      cmocka_unit_test(growth_is_activations_and_gradients_stay),
      cmocka_unit_test(parts_need_all_cases_to_support),
      cmocka_unit_test(four_places_of_failure),
      cmocka_unit_test(two_levels_in_one_configuration),
      cmocka_unit_test(fp16_saves_what_it_saves_where_fp32_just_fits),
      cmocka_unit_test(an_overflow_is_found),
      cmocka_unit_test(low_activation_gradients_are_needed_or_not),
      cmocka_unit_test(fp16_speed_is_told_of_tensor_cores),
      cmocka_unit_test(elsewhere_does_not_decide),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
