/* Reports: one set of numbers in three formats, every number with its one unit, nothing unknown shown as 0.
 */
#include "harness/report.h"
#include "harness/report_process.h"
#include "report_records.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TERM, MARKDOWN, HTML, FORMATS };

/* The three formats of one document; free() each. */
typedef struct Rendered {
  char *text[FORMATS];
} Rendered;

static char *whole(FILE *file) {
  long size = ftell(file);
  char *text = vl_allocate((size_t)size + 1);
  rewind(file);
  assert_int_equal(fread(text, 1, (size_t)size, file), (size_t)size);
  fclose(file);
  return text;
}

static Rendered render(const SyntheticSet *set, const char *suite) {
  ClaimFile *claims = NULL;
  Status status = vl_claims_load(VRAMLAB_SOURCE_DIR "/cases/claims.yaml", &claims);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  json_t *head = json_pack("{s:s, s:s, s:s}", "suite", suite, "command_line", "vramlab run x", "created_utc",
                           "2026-01-31T12:00:00Z");
  ReportInput input = {.records = {.records = (const json_t **)set->owned, .count = set->count},
                       .head = head,
                       .directory = "vramlab-results/x",
                       .page = "vramlab-results/x/report.html",
                       .claims = claims};
  Document *document = NULL;
  assert_int_equal(vl_report_make(&input, &document).code, VL_OK);
  Rendered rendered;
  FILE *files[FORMATS] = {tmpfile(), tmpfile(), tmpfile()};
  vl_report_term(document, files[TERM], 100, false);
  vl_report_markdown(document, files[MARKDOWN]);
  assert_int_equal(vl_report_html(document, ".", files[HTML]).code, VL_OK);
  for (int f = 0; f < FORMATS; f++)
    rendered.text[f] = whole(files[f]);
  vl_document_destroy(&document);
  vl_claims_destroy(&claims);
  json_decref(head);
  return rendered;
}

static void clear(Rendered *rendered) {
  for (int f = 0; f < FORMATS; f++)
    free(rendered->text[f]);
}

static void assert_in_all(const Rendered *rendered, const char *text) {
  for (int f = 0; f < FORMATS; f++)
    if (strstr(rendered->text[f], text) == NULL)
      fail_msg("format %d lacks \"%s\":\n%s", f, text, rendered->text[f]);
}

/* Exits with what xmllint says; skipped where it is not installed. */
static void assert_well_formed(const char *html) {
  char path[] = "/tmp/vramlab-report-XXXXXX";
  int descriptor = mkstemp(path);
  assert_int_equal(write(descriptor, html, strlen(html)), (ssize_t)strlen(html));
  close(descriptor);
  const char *const argv[] = {"xmllint", "--noout", "--nonet", path, NULL};
  char said[512] = "";
  int code = 0;
  Status status = vl_process_run(argv, NULL, NULL, 0, said, sizeof(said), &code);
  unlink(path);
  if (status.code == VL_OK && code != 0) fail_msg("%s", said);
}

/* The needs of the six recipes, computed here from the synthetic model: what every format must show. */
static void numbers_agree_between_formats(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_quick(&set);
  Rendered rendered = render(&set, "quick");
  for (int32_t i = 0; i < set.count; i++) {
    const char *kind = vl_record_text(set.owned[i], "kind");
    char number[64];
    if (kind != NULL && strcmp(kind, "max-batch") == 0)
      snprintf(number, sizeof(number), "%lld", (long long)vl_record_integer(set.owned[i], "batch"));
    else
      snprintf(number, sizeof(number), "%.2f",
               vl_bytes_to_gib(vl_record_integer(set.owned[i], "needed_bytes")));
    assert_in_all(&rendered, number);
  }
  static const char *const shared[] = {
      "within tolerance",
      "bitwise",
      "activation",
      "x baseline",
      "largest",
      "resnet50 training, batch 16, measured on cpu (Example CPU 9000, 2 cores)",
      "vramlab run resnet-growth",
      "the largest batch under that capacity, predicted for plan:cpu"};
  for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
    assert_in_all(&rendered, shared[i]);
  assert_non_null(strstr(rendered.text[TERM], "vramlab-results/x/report.html"));
  assert_well_formed(rendered.text[HTML]);
  clear(&rendered);
  synthetic_clear(&set);
}

/* Saved and speed of amp=bf16 by hand: 1 - needed / baseline, ratio of samples a second. */
static void saved_and_speed_are_against_the_baseline(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_quick(&set);
  const json_t *baseline = set.owned[0], *amp = set.owned[4];
  assert_string_equal(vl_record_text(amp, "recipe"), "amp=bf16");
  char row[160];
  snprintf(row, sizeof(row), "| amp=bf16 | %.2f | %.0f | %.2f | %.2f | within tolerance |",
           vl_bytes_to_gib(vl_record_integer(amp, "needed_bytes")),
           100 * (1 - (double)vl_record_integer(amp, "needed_bytes") /
                          (double)vl_record_integer(baseline, "needed_bytes")),
           vl_record_real(amp, "samples_per_s"),
           vl_record_real(amp, "samples_per_s") / vl_record_real(baseline, "samples_per_s"));
  Rendered rendered = render(&set, "quick");
  if (strstr(rendered.text[MARKDOWN], row) == NULL)
    fail_msg("no row %s in\n%s", row, rendered.text[MARKDOWN]);
  clear(&rendered);
  synthetic_clear(&set);
}

/* Counted beside reckoned: weights the same, activations 1 % above; what blocks add apart. */
static void parts_stand_beside_what_was_counted(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_quick(&set);
  Rendered rendered = render(&set, "quick");
  static const char *const shown[] = {
      "| resnet50 training | baseline | 16 | conv_backward_weights in layer4.2.conv3 (backward) |",
      "| activation | 1.00 | 0.20 | 0.20 |", "| baseline | parameter | in all |  | 97.49 | 97.49 | 0.00 |",
      "|  |  | weights | 161 | 97.49 |  |  |", "| amp=bf16 | activation | in all |"};
  for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
    if (strstr(rendered.text[MARKDOWN], shown[i]) == NULL)
      fail_msg("no %s in\n%s", shown[i], rendered.text[MARKDOWN]);
  clear(&rendered);
  synthetic_clear(&set);
}

/* A record on a card, or planned for one. */
static json_t *on_card(bool predicted, const char *profile, double activation_bytes) {
  json_t *record = synthetic_record(&(Synthetic){.suite = "gpu-check",
                                                 .recipe = "amp=bf16",
                                                 .preserves = "tolerance",
                                                 .predicted = predicted,
                                                 .batch = 32,
                                                 .activation_bytes = activation_bytes});
  if (!predicted) {
    json_object_set_new(record, "device", json_string("cuda"));
    json_object_set_new(record, "device_name", json_string("cuda"));
    json_object_set_new(record, "hardware", json_string("NVIDIA A100-SXM4-80GB"));
  }
  if (profile != NULL) json_object_set_new(record, "profile", json_string(profile));
  return record;
}

/* A card's cell stands beside the plan for that card, a cpu's beside the plan without a profile. */
static void measured_stands_beside_planned(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_add(&set, on_card(false, NULL, 80e6));
  synthetic_add(&set, on_card(true, NULL, 90e6));
  Rendered rendered = render(&set, "gpu-check");
  for (int f = 0; f < FORMATS; f++)
    assert_null(strstr(rendered.text[f], "Measured beside planned"));
  clear(&rendered);
  synthetic_add(&set, on_card(true, "H200", 120e6));
  synthetic_add(&set, on_card(true, "A100-80GB", 100e6));
  rendered = render(&set, "gpu-check");
  const char *table = strstr(rendered.text[MARKDOWN], "Measured beside planned");
  assert_non_null(table);
  double measured = (double)vl_record_integer(set.owned[0], "peak_allocated_bytes"),
         planned = (double)vl_record_integer(set.owned[3], "peak_allocated_bytes");
  char expected[256];
  snprintf(expected, sizeof(expected),
           "| amp=bf16 | 32 | cuda (NVIDIA A100-SXM4-80GB) | %.2f | %.2f | %+.2f |", measured / 0x1p30,
           planned / 0x1p30, 100.0 * (planned / measured - 1.0));
  if (strstr(table, expected) == NULL) fail_msg("no %s in %s", expected, table);
  assert_null(strstr(strstr(table, expected) + 1, expected));
  clear(&rendered);
  synthetic_clear(&set);
}

static void claims_stand_with_original_numbers_and_command(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_growth(&set);
  Rendered rendered = render(&set, "resnet-growth");
  assert_in_all(&rendered, "refuted");
  assert_in_all(&rendered, "resnet-shape");
  assert_in_all(&rendered, "memory-parts");
  for (int f = MARKDOWN; f <= HTML; f++) {
    assert_non_null(strstr(rendered.text[f], "而当batch_size增至128时显存需求呈指数级增长至7.8GB。"));
    assert_non_null(strstr(rendered.text[f], "held-out error: affine"));
    assert_non_null(strstr(rendered.text[f], "vramlab run resnet-growth"));
    assert_null(strstr(rendered.text[f], "amp-memory")); /* another suite's */
  }
  assert_well_formed(rendered.text[HTML]);
  clear(&rendered);
  synthetic_clear(&set);
}

/* Another engine stands beside ours with its ratios, by hand: 1.25 of the fastest's speed in every
 * repetition, 0.75 of the leanest's GiB. Its run without options is not our baseline, nor are its losses ours
 * to keep. */
static void peers_stand_beside_ours_with_ratios(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_beside_peers(&set);
  Rendered rendered = render(&set, "");
  assert_in_all(&rendered,
                "resnet50 training beside other engines, measured on cpu (Example CPU 9000, 2 cores)");
  assert_in_all(&rendered, "PyTorch 2.14.1 compile");
  static const char *const rows[] = {
      "| stack=vramlab recompute=norm update=in-backward | vramlab | 16 | 0.75 | 0.75 | 10.00 | 1.25 |",
      "| PyTorch 2.14.1 compile channels-last malloc=keep | torch | 16 | 2.00 | 2.00 | 8.00 | 1.00 |",
      "| PyTorch 2.14.1 eager malloc=huge | torch | 16 | 1.00 | 1.00 | 6.00 | 0.75 |",
      "| stack=vramlab amp=bf16 recompute=norm update=in-backward | vramlab | 16 | 0.75 | 0.75 | 20.00 | "
      "1.25 |",
      "| PyTorch 2.14.1 eager malloc=huge amp=bf16 | torch | 16 | 1.00 | 1.00 | 12.00 | 0.75 |"};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
    if (strstr(rendered.text[MARKDOWN], rows[i]) == NULL)
      fail_msg("no row %s in\n%s", rows[i], rendered.text[MARKDOWN]);
  for (int f = 0; f < FORMATS; f++) {
    assert_null(strstr(rendered.text[f], "BROKEN"));
    assert_null(strstr(rendered.text[f], "of baseline go"));
  }
  assert_well_formed(rendered.text[HTML]);
  clear(&rendered);
  synthetic_clear(&set);
}

/* ---- Unknown, failed, emulated ----------------------------------------------------------------------------------------- */

static Synthetic cell_of(const char *recipe, const char *preserves, double shift) {
  return (Synthetic){.suite = "quick",
                     .recipe = recipe,
                     .preserves = preserves,
                     .batch = 16,
                     .activation_bytes = 105e6,
                     .samples_per_s = 5,
                     .loss_shift = shift};
}

static void unknown_is_na_and_never_zero(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Synthetic baseline = cell_of("baseline", "bitwise", 0);
  synthetic_add(&set, synthetic_record(&baseline));
  json_object_set_new(set.owned[0], "needed_bytes", json_null());
  json_object_set_new(set.owned[0], "samples_per_s", json_null());
  Synthetic failed = cell_of("amp=bf16", "tolerance", 0);
  failed.status = "oom";
  failed.error = "no <room> & none";
  synthetic_add(&set, synthetic_record(&failed));
  Rendered rendered = render(&set, "quick");
  assert_non_null(strstr(rendered.text[MARKDOWN], "| baseline | n/a | n/a | n/a | n/a | bitwise |\n"));
  assert_null(strstr(rendered.text[MARKDOWN], "fits at")); /* nobody looked for largest batches */
  assert_non_null(strstr(rendered.text[MARKDOWN], "| amp=bf16 | oom | n/a | n/a | n/a | n/a |"));
  assert_non_null(strstr(rendered.text[HTML], "no &lt;room&gt; &amp; none"));
  assert_null(strstr(rendered.text[HTML], ">nan<"));
  assert_well_formed(rendered.text[HTML]);
  clear(&rendered);
  synthetic_clear(&set);
}

static void an_empty_store_is_said(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Rendered rendered = render(&set, "quick");
  assert_in_all(&rendered, "The store holds no finished cell.");
  assert_well_formed(rendered.text[HTML]);
  clear(&rendered);
}

/* A promise the losses break is shown, and a different model is never called equal. */
static void equality_is_checked_against_losses(void **state) {
  (void)state;
  static const struct {
    const char *recipe, *preserves;
    double shift;
    Outcome outcome;
  } cells[] = {{"checkpoint=1", "bitwise", 0, OUTCOME_BITWISE},
               {"checkpoint=1", "bitwise", 1e-9, OUTCOME_BROKEN},
               {"stack=vramlab", "tolerance", 1e-5, OUTCOME_TOLERANCE},
               {"stack=vramlab", "tolerance", 1e-2, OUTCOME_BROKEN},
               {"amp=bf16", "tolerance", 1e-2, OUTCOME_TOLERANCE},
               {"groups=4", "different-model", 0, OUTCOME_DIFFERENT_MODEL}};
  Synthetic cell = cell_of("baseline", "bitwise", 0);
  json_t *baseline = synthetic_record(&cell);
  for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
    cell = cell_of(cells[i].recipe, cells[i].preserves, cells[i].shift);
    json_t *record = synthetic_record(&cell);
    Equality equality = vl_record_equality(record, baseline);
    assert_int_equal(equality.outcome, cells[i].outcome);
    assert_int_equal(equality.checked, cells[i].outcome != OUTCOME_DIFFERENT_MODEL);
    json_decref(record);
  }
  cell = cell_of("checkpoint=1", "bitwise", 0);
  cell.predicted = true;
  json_t *record = synthetic_record(&cell);
  Equality equality = vl_record_equality(record, baseline);
  assert_int_equal(equality.outcome, OUTCOME_BITWISE);
  assert_false(equality.checked);
  json_decref(record);
  json_decref(baseline);
}

/* Under a capacity a measured cell stands in for a smaller card: its bytes are shown, its speed is not. */
static void emulated_cells_have_no_speed(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Synthetic cell = cell_of("baseline", "bitwise", 0);
  cell.capacity_bytes = (int64_t)4 << 30;
  synthetic_add(&set, synthetic_record(&cell));
  Rendered rendered = render(&set, "quick");
  assert_non_null(strstr(rendered.text[MARKDOWN], "| measured, emulated | ok | 4.00 |"));
  assert_non_null(strstr(rendered.text[MARKDOWN], "| n/a | n/a | n/a | "));
  clear(&rendered);
  synthetic_clear(&set);
}

/* ---- Units (A6) and language (I4) ------------------------------------------------------------------------------------------ */

/* 12,282 MiB are 11.994 GiB: two decimals of GiB in every view, and no MB anywhere near them. */
/* The skipped step has no gradient norm: the first that has one counts. */
static void monitored_cells_show_scale_norm_and_the_first_that_was_not_finite(void **state) {
  (void)state;
  SyntheticSet set = {0};
  json_t *record = synthetic_record(
      &(Synthetic){.suite = "amp", .recipe = "amp=fp16", .preserves = "tolerance", .batch = 16});
  json_object_set_new(record, "monitor_loss_scale", json_pack("[f, f, f]", 65536.0, 32768.0, 32768.0));
  json_object_set_new(record, "monitor_gradient_norm", json_pack("[n, f, f]", 4.5, 2.25));
  json_object_set_new(record, "monitor_flushed_share", json_pack("[f, f, f]", 0.001, 0.0321, 0.0));
  json_object_set_new(record, "skipped_steps", json_integer(1));
  json_object_set_new(record, "first_nonfinite", json_string("fc.grad of matmul in fc"));
  synthetic_add(&set, record);
  Rendered rendered = render(&set, "amp");
  const char *shown[] = {"Monitored precision", "65536 to 32768", "4.5 to 2.25", "3.21",
                         "fc.grad of matmul in fc"};
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
    for (int f = MARKDOWN; f < FORMATS; f++)
      if (!strstr(rendered.text[f], shown[i])) fail_msg("format %d lacks \"%s\"", f, shown[i]);
  clear(&rendered);
  synthetic_clear(&set);
}

/* A class that no volume has does not count, the first class is no organ. */
static void dice_of_volumes_stands_beside_what_they_need(void **state) {
  (void)state;
  SyntheticSet set = {0};
  json_t *record = synthetic_record(
      &(Synthetic){.suite = "volumes", .recipe = "baseline", .preserves = "bitwise", .batch = 2});
  json_object_set_new(record, "dice", json_pack("[f, f, n, f]", 0.1234, 0.9111, 0.8222));
  json_object_set_new(record, "dice_mean", json_real(0.86665));
  json_object_set_new(record, "volume_s", json_real(1.25));
  synthetic_add(&set, record);
  Rendered rendered = render(&set, "volumes");
  const char *shown[] = {"Held-out volumes", "0.8667", "0.8222 (class 3)", "1.250"};
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
    for (int f = MARKDOWN; f < FORMATS; f++)
      if (!strstr(rendered.text[f], shown[i])) fail_msg("format %d lacks \"%s\"", f, shown[i]);
  clear(&rendered);
  synthetic_clear(&set);
}

static void gib_is_divided_by_two_to_the_thirty_a6(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  Synthetic cell = cell_of("baseline", "bitwise", 0);
  synthetic_add(&set, synthetic_record(&cell));
  json_object_set_new(set.owned[0], "needed_bytes", json_integer(12878610432));
  Rendered rendered = render(&set, "quick");
  assert_in_all(&rendered, "11.99");
  for (int f = 0; f < FORMATS; f++) {
    assert_null(strstr(rendered.text[f], "12282"));
    assert_null(strstr(rendered.text[f], "12.88"));
  }
  clear(&rendered);
  synthetic_clear(&set);
}

/* Each numeric column names one unit. */
static void every_numeric_column_has_one_unit_a6(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_quick(&set);
  synthetic_beside_peers(&set);
  ReportInput input = {.records = {.records = (const json_t **)set.owned, .count = set.count},
                       .directory = ""};
  Document *document = NULL;
  assert_int_equal(vl_report_make(&input, &document).code, VL_OK);
  static const char *const units[] = {"GiB", "MiB",       "%",         "1/s",     "x baseline", "samples",
                                      "s",   "x leanest", "x fastest", "tensors", "steps",      "cells"};
  int32_t columns = 0;
  for (int32_t p = 0; p < document->count; p++)
    for (int32_t c = 0; c < document->passages[p].column_count; c++) {
      const TableColumn *column = &document->passages[p].columns[c];
      bool known = false;
      for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++)
        known = known || strcmp(column->unit, units[u]) == 0;
      assert_int_equal(column->number, known);
      columns += column->number;
      assert_null(strchr(column->name, '('));
    }
  assert_true(columns > 10);
  vl_document_destroy(&document);
  synthetic_clear(&set);
}

/* Parts of a peak sum to what is needed, as integers. */
static void parts_sum_to_needed(void **state) {
  (void)state;
  Synthetic cell = cell_of("baseline", "bitwise", 0);
  json_t *record = synthetic_record(&cell);
  MemoryParts parts = vl_record_parts(record);
  int64_t sum = 0;
  for (int32_t p = 0; p < VL_PART_COUNT; p++)
    sum += parts.bytes[p];
  assert_true(parts.complete);
  assert_int_equal(sum, vl_record_integer(record, "needed_bytes"));
  json_object_set_new(json_object_get(record, "peak_by_category"), "workspace", json_null());
  parts = vl_record_parts(record);
  assert_false(parts.complete);
  assert_int_equal(parts.bytes[MEMORY_CATEGORY_COUNT], -1);
  json_decref(record);
}

/* ---- The comparison ---------------------------------------------------------------------------------------------------------- */

/* Measured cells are compared before predicted ones, at the largest batch all of them ran. */
static void comparison_prefers_measured_and_complete(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  synthetic_growth(&set);
  RecordSet cells = {.records = (const json_t **)set.owned, .count = set.count};
  Comparison *comparison = vl_allocate(sizeof(*comparison));
  vl_select_comparison(&cells, comparison);
  assert_int_equal(comparison->batch, 128);
  assert_int_equal(comparison->count, 4);
  assert_string_equal(vl_record_text(comparison->rows[0], "recipe"), "baseline");
  assert_ptr_equal(comparison->rows[0], comparison->baseline);
  assert_false(vl_record_is_predicted(comparison->rows[0]));
  free(comparison);
  synthetic_clear(&set);
}

/* Through a real store: files appear, the first screen is printed, and it is the same in another language. */
static void a_store_gets_its_report_i4(void **state) {
  (void)state;
  char directory[] = "/tmp/vramlab-store-XXXXXX", path[128], *screens[2];
  assert_non_null(mkdtemp(directory));
  Store *store = NULL;
  Status status = vl_store_create(directory, "quick", "vramlab run quick", &store);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  Synthetic cell = cell_of("baseline", "bitwise", 0);
  json_t *record = synthetic_record(&cell);
  assert_int_equal(vl_store_append(store, record, NULL, 0).code, VL_OK);
  char *was = vl_copy_text(setlocale(LC_ALL, NULL));
  for (int i = 0; i < 2; i++) {
    if (i == 1) (void)setlocale(LC_ALL, "de_DE.UTF-8");
    FILE *screen = tmpfile();
    status = vl_report_write(store, screen);
    if (status.code != VL_OK) fail_msg("%s", status.message);
    screens[i] = whole(screen);
  }
  (void)setlocale(LC_ALL, was);
  free(was);
  assert_string_equal(screens[0], screens[1]);
  free(screens[0]);
  free(screens[1]);
  snprintf(path, sizeof(path), "%s/report.html", directory);
  assert_int_equal(access(path, R_OK), 0);
  json_decref(record);
  vl_store_close(&store);
  const char *const clean[] = {"rm", "-r", directory, NULL};
  int code = 0;
  assert_int_equal(vl_process_run(clean, NULL, NULL, 0, NULL, 0, &code).code, VL_OK);
}

/* What a name holds is text in a cell of a table too, in both formats that know markup. */
static void no_name_is_markup(void **state) {
  (void)state;
  static const TableColumn columns[] = {{"name", "", false}};
  Document *document = vl_document_create();
  document->title = document->subtitle = "x";
  Passage *table = vl_document_add(document, PASSAGE_TABLE, true, "Names");
  vl_document_table(document, table, columns, 1, 1);
  table->rows[0][0] = "<script>a\\|`b`</script>";
  FILE *markdown = tmpfile(), *html = tmpfile();
  vl_report_markdown(document, markdown);
  assert_int_equal(vl_report_html(document, ".", html).code, VL_OK);
  char *texts[] = {whole(markdown), whole(html)};
  assert_null(strstr(texts[0], " <script>"));
  assert_non_null(strstr(texts[0], "| \\<script\\>a\\\\\\|\\`b\\`\\</script\\> |"));
  assert_null(strstr(texts[1], "<script>a"));
  assert_non_null(strstr(texts[1], "&lt;script&gt;a"));
  free(texts[0]);
  free(texts[1]);
  vl_document_destroy(&document);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_name_is_markup),
      cmocka_unit_test(numbers_agree_between_formats),
      cmocka_unit_test(saved_and_speed_are_against_the_baseline),
      cmocka_unit_test(peers_stand_beside_ours_with_ratios),
      cmocka_unit_test(parts_stand_beside_what_was_counted),
      cmocka_unit_test(measured_stands_beside_planned),
      cmocka_unit_test(claims_stand_with_original_numbers_and_command),
      cmocka_unit_test(unknown_is_na_and_never_zero),
      cmocka_unit_test(an_empty_store_is_said),
      cmocka_unit_test(equality_is_checked_against_losses),
      cmocka_unit_test(emulated_cells_have_no_speed),
      cmocka_unit_test(monitored_cells_show_scale_norm_and_the_first_that_was_not_finite),
      cmocka_unit_test(dice_of_volumes_stands_beside_what_they_need),
      cmocka_unit_test(gib_is_divided_by_two_to_the_thirty_a6),
      cmocka_unit_test(every_numeric_column_has_one_unit_a6),
      cmocka_unit_test(parts_sum_to_needed),
      cmocka_unit_test(comparison_prefers_measured_and_complete),
      cmocka_unit_test(a_store_gets_its_report_i4),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
