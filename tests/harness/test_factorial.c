/* The article's three measures for 3D networks: the claim about them, the effects, tables and figures, from
 * cells whose answer is known. */
#include "harness/factorial.h"
#include "harness/report_document.h"
#include "harness/report_process.h"
#include "report_records.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROUNDS = 3, SEEDS = 3 };

/* What eight cells of one mode and precision show. Every factor multiplies what is reserved and the time. */
typedef struct Design {
  bool training, predicted;
  const char *rest, *budget; /* "" and "400MiB" without */
  double reserved[FACTOR_COUNT], time[FACTOR_COUNT];
  double noise; /* of the time, as a share; up and down from round to round, cell to cell */
  int32_t rounds;
  uint32_t missing; /* bits of corners that did not run */
} Design;

static void set_text(json_t *record, const char *key, const char *text) {
  json_object_set_new(record, key, text != NULL ? json_string(text) : json_null());
}

static void canonical(const char *text, char recipe[VL_RECIPE_BYTES]) {
  Recipe parsed;
  assert_int_equal(vl_recipe_parse(text, &parsed).code, VL_OK);
  vl_recipe_format(&parsed, recipe, VL_RECIPE_BYTES);
}

static json_t *unet_record(const char *recipe, bool predicted) {
  Synthetic like = {.suite = "unet-case",
                    .recipe = recipe,
                    .preserves = "different-model",
                    .predicted = predicted,
                    .batch = 2,
                    .activation_bytes = 1e8,
                    .samples_per_s = 8};
  json_t *record = synthetic_record(&like);
  set_text(record, "case", "unet3d");
  return record;
}

static void add_cell(SyntheticSet *set, const Design *design, uint32_t corner, int32_t round) {
  static const char *const parts[FACTOR_COUNT] = {"groups=4", NULL,
                                                  "defragment=every-step allocator=expandable:remap=always"};
  char text[VL_RECIPE_BYTES] = "", recipe[VL_RECIPE_BYTES];
  double reserved = 0x1p30, time = 2;
  snprintf(text, sizeof text, "%s", design->rest != NULL ? design->rest : "");
  for (int32_t i = 0; i < FACTOR_COUNT; i++) {
    size_t used = strlen(text);
    if ((corner >> i & 1U) == 0) continue;
    reserved *= design->reserved[i];
    time *= design->time[i];
    if (i == FACTOR_DYNAMIC_BATCH)
      snprintf(text + used, sizeof text - used, " dynamic-batch=bucketed:%s",
               design->budget != NULL ? design->budget : "400MiB");
    else
      snprintf(text + used, sizeof text - used, " %s", parts[i]);
  }
  canonical(text, recipe);
  json_t *record = unet_record(recipe, design->predicted);
  /* A machine that is slower in later rounds, and noise that no cell or round has as a whole. */
  double drift = 1 + 0.1 * round, sign = (corner + (uint32_t)round) % 2 == 0 ? 1 : -1;
  set_text(record, "queue", "64x64x64:4,48x48x48:8");
  json_object_set_new(record, "inference", json_boolean(!design->training));
  json_object_set_new(record, "repeat", json_integer(round));
  json_object_set_new(record, "peak_reserved_bytes", json_integer((json_int_t)reserved));
  json_object_set_new(record, "step_s",
                      design->predicted ? json_null() : json_real(time * drift * (1 + sign * design->noise)));
  if ((design->missing >> corner & 1U) != 0) set_text(record, "status", "oom");
  synthetic_add(set, record);
}

static void add_design(SyntheticSet *set, const Design *design) {
  for (int32_t round = 0; round < (design->rounds > 0 ? design->rounds : ROUNDS); round++)
    for (uint32_t corner = 0; corner < CORNERS; corner++)
      add_cell(set, design, corner, round);
}

/* Models trained without and with groups; the loss differs from seed to seed and is `loss` on average. */
static void add_dice(SyntheticSet *set, const char *rest, double loss, int32_t seeds) {
  for (int32_t seed = 0; seed < seeds; seed++)
    for (int grouped = 0; grouped < 2; grouped++) {
      char text[VL_RECIPE_BYTES], recipe[VL_RECIPE_BYTES];
      snprintf(text, sizeof text, "%s%s", rest, grouped ? " groups=4" : "");
      canonical(text, recipe);
      json_t *record = unet_record(recipe, false);
      double lost = loss + 0.004 * (seed - 0.5 * (seeds - 1));
      set_text(record, "settings", "size=32 depth=16");
      set_text(record, "data", "phantoms");
      json_object_set_new(record, "seed", json_integer(seed));
      json_object_set_new(record, "dice_mean", json_real(0.9 + 0.01 * seed - (grouped ? lost : 0)));
      synthetic_add(set, record);
    }
}

/* What the claim asks for, and more. */
static const Design good = {.reserved = {0.9, 0.7, 0.8}, .time = {0.55, 0.9, 1.05}};

static void decide(const SyntheticSet *set, ClaimVerdict *verdict) {
  ClaimFile *file = NULL;
  RecordSet records = {.records = (const json_t **)set->owned, .count = set->count};
  assert_int_equal(vl_claims_load(NULL, &file).code, VL_OK);
  vl_claim_decide(vl_claims_find(file, "unet-case"), &records, verdict);
  vl_claims_destroy(&file);
}

static void assert_verdict(SyntheticSet *set, Verdict expected, const char *said) {
  ClaimVerdict *verdict = vl_allocate(sizeof *verdict);
  decide(set, verdict);
  const char *numbers = verdict->finding_count > 0 ? verdict->findings[0].numbers : verdict->numbers;
  if (verdict->verdict != expected || strstr(numbers, said) == NULL)
    fail_msg("%s, without \"%s\": %s", vl_verdict_name(verdict->verdict), said, numbers);
  free(verdict);
  synthetic_clear(set);
}

/* ---- The claim -------------------------------------------------------------------------------------------------------- */

static void all_three_parts_have_to_hold(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  add_design(&set, &good);
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(
      &set, VERDICT_SUPPORTED,
      "reserved 1.000 to 0.504 GiB (-49.6 %), speed 1.92 x (1.92 to 1.92, 3 rounds), Dice 0.9100 to "
      "0.9050 (loss 0.0050, 0.0010 to 0.0090 over 3 seeds); effects on memory: groups -10.0 %, dynamic "
      "batch -30.0 %, defragmentation -20.0 %; effects on time: groups -45.0 %, dynamic batch -10.0 %, "
      "defragmentation +5.0 %");

  Design hungry = good, slow = good;
  hungry.reserved[FACTOR_DYNAMIC_BATCH] = 0.9; /* 0.648: 35.2 % saved */
  add_design(&set, &hungry);
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(&set, VERDICT_REFUTED, "reserved 1.000 to 0.648 GiB (-35.2 %)");

  slow.time[FACTOR_GROUPS] = 0.66; /* 1.60 x */
  add_design(&set, &slow);
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(&set, VERDICT_REFUTED, "speed 1.60 x");

  add_design(&set, &good);
  add_dice(&set, "", 0.011, SEEDS);
  assert_verdict(&set, VERDICT_REFUTED, "loss 0.0110");
}

static void what_is_missing_decides_nothing(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  assert_verdict(&set, VERDICT_UNDECIDED, "no cell of suite unet-case is here");
  add_design(&set, &good);
  add_dice(&set, "", 0.005, 2);
  assert_verdict(&set, VERDICT_UNDECIDED, "Dice missing: 2 of 3 seeds");
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(&set, VERDICT_UNDECIDED, "no cell of suite unet-case is here");

  Design without = good;
  without.missing = 1U;
  add_design(&set, &without);
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(&set, VERDICT_UNDECIDED, "no cell with none of the three ran");
  without.missing = 1U << ALL_FACTORS;
  add_design(&set, &without);
  assert_verdict(&set, VERDICT_UNDECIDED, "no cell with all of the three ran");

  /* Of corners in between the verdict needs nothing; without them there is no interval. */
  without.missing = 1U << 3;
  add_design(&set, &without);
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(&set, VERDICT_SUPPORTED, "speed 1.92 x, Dice");

  /* A part that fails needs no other. */
  Design hungry = good;
  hungry.reserved[FACTOR_DYNAMIC_BATCH] = 1;
  hungry.predicted = true;
  add_design(&set, &hungry);
  assert_verdict(&set, VERDICT_REFUTED, "(-28.0 %), speed not known, Dice missing: 0 of 3");
}

/* Of 1.62: noise whose interval has it inside; a capped device's speed is not that of the hardware. */
static void a_speed_that_is_not_known_well_decides_nothing(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Design noisy = good;
  noisy.time[FACTOR_GROUPS] = 0.65;
  noisy.time[FACTOR_DYNAMIC_BATCH] = 0.9;
  noisy.time[FACTOR_DEFRAGMENT] = 1.05;
  noisy.noise = 0.05;
  add_design(&set, &noisy);
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(&set, VERDICT_UNDECIDED, "too wide to decide");
  add_design(&set, &good);
  add_dice(&set, "", 0.005, SEEDS);
  for (int32_t i = 0; i < set.count; i++)
    json_object_set_new(set.owned[i], "emulated", json_true());
  assert_verdict(&set, VERDICT_UNDECIDED, "speed not known");
}

static void training_inference_and_precisions_are_findings_of_their_own(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  ClaimVerdict *verdict = vl_allocate(sizeof *verdict);
  Design training = good, half = good;
  training.training = true;
  training.reserved[FACTOR_DYNAMIC_BATCH] = 1;
  half.rest = "amp=bf16";
  add_design(&set, &good);
  add_design(&set, &half);
  add_design(&set, &training);
  add_dice(&set, "", 0.005, SEEDS);
  add_dice(&set, "amp=bf16", 0.005, SEEDS);
  decide(&set, verdict);
  assert_int_equal(verdict->finding_count, 3);
  assert_int_equal(verdict->findings[0].verdict, VERDICT_SUPPORTED);
  assert_int_equal(verdict->findings[1].verdict, VERDICT_SUPPORTED);
  assert_int_equal(verdict->findings[2].verdict, VERDICT_REFUTED);
  assert_int_equal(verdict->verdict, VERDICT_AMBIGUOUS);
  assert_non_null(strstr(verdict->findings[0].scope, "inference, fp32"));
  assert_non_null(strstr(verdict->findings[1].scope, "inference, amp=bf16"));
  assert_non_null(strstr(verdict->findings[2].scope, "training, fp32"));
  synthetic_clear(&set);
  free(verdict);
}

/* What one budget of the dynamic batch shows and another does not, the article leaves out. */
static void budgets_that_disagree_are_ambiguous(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Design large = good;
  large.budget = "1GiB";
  large.reserved[FACTOR_DYNAMIC_BATCH] = 1;
  add_design(&set, &good);
  add_design(&set, &large);
  add_dice(&set, "", 0.005, SEEDS);
  assert_verdict(&set, VERDICT_AMBIGUOUS, "dynamic-batch=bucketed:1GiB");
}

/* ---- Effects ----------------------------------------------------------------------------------------------------------- */

/* Time: groups halve it, dynamic batch takes a fifth, both together a further factor f = 1.21, half of which
 * (its root) is in each of their effects and the interaction: 0.5 x 1.1, 0.8 x 1.1, 1.1. */
static void effects_multiply(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Design design = {.reserved = {0.5, 1, 0.8}, .time = {0.5, 0.8, 1}};
  add_design(&set, &design);
  for (int32_t i = 0; i < set.count; i++) {
    bool both = i % CORNERS == 3 || i % CORNERS == 7;
    double time = vl_record_real(set.owned[i], "step_s") * (both ? 1.21 : 1);
    json_object_set_new(set.owned[i], "step_s", json_real(time));
  }
  RecordSet records = {.records = (const json_t **)set.owned, .count = set.count};
  Factorial *factorial = vl_allocate(sizeof *factorial);
  int32_t begins = 0;
  for (int32_t i = 0; i < records.count; i++)
    begins += vl_factorial_begins(&records, i);
  assert_int_equal(begins, 1);
  vl_factorial_gather(&records, records.records[ALL_FACTORS], factorial);
  assert_true(factorial->complete);
  assert_int_equal(factorial->time.rounds, ROUNDS);
  assert_string_equal(factorial->rest, "baseline");
  static const double time[CORNERS] = {0, -0.45, -0.12, 0.1, 0, 0, 0, 0};
  static const double memory[CORNERS] = {0, -0.5, 0, 0, -0.2, 0, 0, 0};
  for (uint32_t which = 1; which < CORNERS; which++) {
    assert_true(fabs(vl_factorial_effect(&factorial->time, which).value - time[which]) < 1e-9);
    assert_true(fabs(vl_factorial_effect(&factorial->reserved, which).value - memory[which]) < 1e-6);
  }
  Contrast speed = vl_factorial_ratio(&factorial->time, 0, ALL_FACTORS);
  assert_true(fabs(speed.value - 1 / (0.5 * 0.8 * 1.21)) < 1e-9 && speed.high - speed.low < 1e-9);
  /* Rounds in which a cell is missing have no part in it. */
  set_text(set.owned[5], "status", "crashed");
  vl_factorial_gather(&records, records.records[ALL_FACTORS], factorial);
  assert_int_equal(factorial->time.rounds, ROUNDS - 1);
  free(factorial);
  synthetic_clear(&set);
}

/* Items of a recipe that the cell with all factors does not have make another cell of it. */
static void other_recipes_are_no_corners(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  add_design(&set, &(Design){.reserved = {0.5, 1, 0.8}, .time = {0.5, 0.8, 1}, .rounds = 1});
  char recipe[VL_RECIPE_BYTES];
  canonical("defragment=every-step", recipe); /* without the allocator of the pair */
  set_text(set.owned[1U << FACTOR_DEFRAGMENT], "recipe", recipe);
  RecordSet records = {.records = (const json_t **)set.owned, .count = set.count};
  Factorial *factorial = vl_allocate(sizeof *factorial);
  vl_factorial_gather(&records, records.records[ALL_FACTORS], factorial);
  assert_false(factorial->complete);
  assert_null(factorial->corners[1U << FACTOR_DEFRAGMENT]);
  assert_int_equal(factorial->time.rounds, 0);
  free(factorial);
  synthetic_clear(&set);
}

/* What a cell of a suite would leave, had it run. */
static json_t *as_if_run(const SuiteCell *cell) {
  const CellSpec *spec = &cell->spec;
  char recipe[VL_RECIPE_BYTES];
  bool planned = strcmp(spec->device, "plan") == 0;
  canonical(spec->recipe, recipe);
  json_t *record =
      json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:i, s:I}", "suite", "unet-case", "case", spec->case_name,
                "recipe", recipe, "device", spec->device, "status", "ok", "inference", spec->inference,
                "repeat", cell->repeat, "seed", (json_int_t)spec->seed);
  set_text(record, "profile", *spec->profile ? spec->profile : NULL);
  set_text(record, "queue", *spec->queue ? spec->queue : NULL);
  set_text(record, "provenance", planned ? "predicted" : "measured");
  json_object_set_new(record, "peak_reserved_bytes", json_integer(1 << 20));
  if (!planned) json_object_set_new(record, "step_s", json_real(1));
  if (*spec->data) json_object_set_new(record, "dice_mean", json_real(0.9));
  return record;
}

/* On a CPU, planned for it and for a card: training and inference, two precisions, two budgets, all corners.
 */
static void the_suite_has_every_corner(void **state) {
  (void)state;
  Suite *suite = NULL;
  assert_int_equal(vl_suite_load("unet-case", &suite).code, VL_OK);
  RecordSet records = {.records = vl_allocate((size_t)suite->cell_count * sizeof(json_t *)),
                       .count = (int32_t)suite->cell_count};
  Factorial *factorial = vl_allocate(sizeof *factorial);
  for (int32_t i = 0; i < records.count; i++)
    records.records[i] = as_if_run(&suite->cells[i]);
  int32_t measured = 0, predicted = 0;
  for (int32_t i = 0; i < records.count; i++) {
    if (!vl_factorial_begins(&records, i)) continue;
    vl_factorial_gather(&records, records.records[i], factorial);
    SeedTable dice = vl_factorial_dice(&records, factorial, ALL_FACTORS);
    bool on_cpu = strcmp(vl_record_text(records.records[i], "device"), "cpu") == 0;
    assert_true(factorial->complete);
    assert_int_equal(factorial->time.rounds, on_cpu ? 3 : 0);
    assert_int_equal(dice.count, on_cpu ? 3 : 0);
    measured += on_cpu;
    predicted += !on_cpu;
  }
  assert_int_equal(measured, 8);
  assert_int_equal(predicted, 16);
  for (int32_t i = 0; i < records.count; i++)
    json_decref((json_t *)records.records[i]);
  free(records.records);
  free(factorial);
  vl_suite_destroy(&suite);
}

/* ---- Tables and figures ------------------------------------------------------------------------------------------------- */

static void add_everything(SyntheticSet *set) {
  Design design = good;
  design.noise = 0.02;
  static const char *const rests[] = {"", "amp=bf16"}, *const budgets[] = {"400MiB", "1GiB"};
  for (int i = 0; i < 4; i++) {
    design.rest = rests[i / 2];
    design.budget = budgets[i % 2];
    add_design(set, &design);
    if (i % 2 == 0) add_dice(set, rests[i / 2], 0.005, SEEDS);
  }
}

static void the_report_has_every_cell_and_effect(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Document *document = NULL;
  char *text = NULL;
  size_t size;
  add_everything(&set);
  ReportInput input = {.records = {.records = (const json_t **)set.owned, .count = set.count},
                       .directory = ""};
  assert_int_equal(vl_report_make(&input, &document).code, VL_OK);
  FILE *out = open_memstream(&text, &size);
  vl_report_markdown(document, out);
  fclose(out);
  static const char *const wanted[] = {
      "Factorial: unet3d inference, amp=bf16, measured on cpu",
      "| groups + dynamic batch + defragmentation | 0.504 | 49.6 |",
      "| 0.9050 | 0.8990 | 3 |", /* 0.9 - 0.001, 0.91 - 0.005, 0.92 - 0.009 */
      "Effects and interactions: unet3d inference, fp32",
      "| groups x dynamic batch | +0.0 | ",
      "dynamic-batch=bucketed:400MiB",
      "Montgomery"};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
    if (strstr(text, wanted[i]) == NULL) fail_msg("no \"%s\" in:\n%s", wanted[i], text);
  free(text);
  vl_document_destroy(&document);
  synthetic_clear(&set);
}

static void remove_files(const char *directory) {
  char path[512];
  DIR *listing = opendir(directory);
  for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    if (entry->d_name[0] != '.') unlink(path);
  }
  closedir(listing);
  rmdir(directory);
}

static void figures_of_cells_and_effects_are_drawn(void **state) {
  (void)state;
  const char *const version[] = {"gnuplot", "--version", NULL};
  int code = 0;
  if (vl_process_run(version, NULL, NULL, 0, NULL, 0, &code).code != VL_OK || code != 0) skip();
  static const char *const names[] = {"factorial", "effects"};
  const char *kept = getenv("VRAMLAB_KEEP_FIGURES");
  SyntheticSet set = {.count = 0};
  add_everything(&set);
  for (size_t i = 0; i < 4; i++) {
    char directory[256] = "/tmp/vramlab-factorial-XXXXXX";
    if (kept != NULL)
      snprintf(directory, sizeof directory, "%.255s", kept);
    else
      assert_non_null(mkdtemp(directory));
    /* Without some corner there is nothing to compare; without time memory alone is drawn. */
    if (i == 2)
      for (int32_t k = 0; k < set.count; k++)
        json_object_set_new(set.owned[k], "step_s", json_null());
    PlotInput input = {.records = {.records = (const json_t **)set.owned, .count = set.count},
                       .source = "test"};
    FigureSet *figures = vl_allocate(sizeof *figures);
    Status status = vl_plot_draw(&input, directory, names[i % 2], "png svg pdf", figures);
    if (status.code != VL_OK) fail_msg("%s", status.message);
    assert_true(figures->figures[0].drawn);
    assert_false(figures->figures[1].drawn); /* the models trained for their Dice */
    assert_non_null(strstr(figures->figures[1].note, "all eight"));
    free(figures);
    if (kept == NULL) remove_files(directory);
  }
  synthetic_clear(&set);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_three_parts_have_to_hold),
      cmocka_unit_test(what_is_missing_decides_nothing),
      cmocka_unit_test(a_speed_that_is_not_known_well_decides_nothing),
      cmocka_unit_test(training_inference_and_precisions_are_findings_of_their_own),
      cmocka_unit_test(budgets_that_disagree_are_ambiguous),
      cmocka_unit_test(effects_multiply),
      cmocka_unit_test(other_recipes_are_no_corners),
      cmocka_unit_test(the_suite_has_every_corner),
      cmocka_unit_test(the_report_has_every_cell_and_effect),
      cmocka_unit_test(figures_of_cells_and_effects_are_drawn),
  };
  return cmocka_run_group_tests_name("factorial", tests, NULL, NULL);
}
