/* Several stores side by side: each of the eight figures is drawn, or says why not, whatever the stores hold
 * (fault case I8); what is measured, predicted and modelled is told apart in every one; a label keeps its
 * colour and place; and what differs is named with what each store has. */
#include "harness/report_process.h"
#include "harness/side_by_side.h"
#include "report_records.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[256];

static int make_directory(void **state) {
  (void)state;
  const char *kept = getenv("VRAMLAB_KEEP_FIGURES");
  snprintf(directory, sizeof directory, "%s", kept != NULL ? kept : "/tmp/vramlab-side-XXXXXX");
  return kept == NULL && mkdtemp(directory) == NULL;
}

static int remove_directory(void **state) {
  (void)state;
  if (getenv("VRAMLAB_KEEP_FIGURES") != NULL) return 0;
  DIR *listing = opendir(directory);
  char path[1024];
  for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    if (entry->d_name[0] != '.') unlink(path);
  }
  if (listing != NULL) closedir(listing);
  return rmdir(directory);
}

static const char *const figures[] = {
    "max-batch", "throughput-equal-batch", "throughput-best",   "speedup",
    "tradeoff",  "samples-per-gib",        "samples-per-joule", "prediction-error"};
enum { FIGURES = sizeof figures / sizeof *figures };

/* ---- Stores ------------------------------------------------------------------------------------------------------------ */

static const char *labels[5];

static void add(SyntheticSet *set, json_t *record, int label) {
  json_object_set_new(record, "label", json_string(labels[label]));
  synthetic_add(set, record);
}

/* A cell as measured, its plan, and its largest batch. */
static void add_cell(SyntheticSet *set, int label, const char *recipe, int64_t batch, double rate) {
  Synthetic cell = {.recipe = recipe,
                    .preserves = "bitwise",
                    .batch = batch,
                    .activation_bytes = 100e6,
                    .samples_per_s = rate,
                    .energy_mj = (int64_t)(1000 * 300 * 7 * (double)batch / rate)};
  add(set, synthetic_record(&cell), label);
  cell.predicted = true;
  cell.activation_bytes = 101e6;
  add(set, synthetic_record(&cell), label);
  add(set, synthetic_max_batch("cards", recipe, 0, batch * 8), label);
}

static void put(SyntheticSet *set, const char *column, double value) {
  for (int32_t i = 0; i < set->count; i++)
    json_object_set_new(set->owned[i], column, isfinite(value) ? json_real(value) : json_null());
}

static void nothing(SyntheticSet *set, int count) { (void)set, (void)count; }

static void one_row(SyntheticSet *set, int count) {
  for (int l = 0; l < count; l++)
    add_cell(set, l, "baseline", 32, 100 + l);
}

static void all_equal(SyntheticSet *set, int count) {
  for (int l = 0; l < count; l++)
    for (int r = 0; r < 3; r++)
      add_cell(set, l, r == 0 ? "baseline" : r == 1 ? "checkpoint=1" : "checkpoint=2", 32, 100);
}

static void all_unknown(SyntheticSet *set, int count) {
  all_equal(set, count);
  static const char *const columns[] = {"batch", "samples_per_s", "step_s", "needed_bytes", "energy_mj"};
  for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
    put(set, columns[c], NAN);
}

static void one_missing(SyntheticSet *set, int count) {
  all_equal(set, count);
  static const char *const columns[] = {"batch", "samples_per_s", "needed_bytes", "energy_mj"};
  for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
    for (int32_t i = 0; i < 3; i++) /* of the first label the baseline */
      json_object_set_new(set->owned[i], columns[c], json_null());
}

static void long_names(SyntheticSet *set, int count) {
  for (int l = 0; l < count; l++) {
    add_cell(set, l, "baseline", 32, 100 + 7 * l);
    add_cell(set, l, "a-recipe-of-forty-characters-without-any", 32, 80 + 11 * l);
    add_cell(set, l, "amp=bf16 checkpoint=4 update=in-backward", 64, 120 + 3 * l);
  }
}

/* The first label has no room for what the others run. */
static void one_oom(SyntheticSet *set, int count) {
  all_equal(set, count);
  for (int32_t i = 0; i < set->count; i++) {
    json_t *record = set->owned[i];
    if (strcmp(vl_record_text(record, "label"), labels[0]) != 0 ||
        strcmp(vl_record_text(record, "recipe"), "checkpoint=1") != 0)
      continue;
    json_object_set_new(record, "status", json_string("oom"));
    json_object_set_new(record, "needed_bytes", json_null());
    json_object_set_new(record, "samples_per_s", json_null());
  }
}

static void all_oom(SyntheticSet *set, int count) {
  all_unknown(set, count);
  for (int32_t i = 0; i < set->count; i++)
    json_object_set_new(set->owned[i], "status", json_string("oom"));
}

static const char *const short_labels[] = {"V100", "A100", "H100", "H200", "B200"};
static const char *const long_labels[] = {
    "NVIDIA H100 PCIe 80 GB of the first rack", "NVIDIA H100 SXM5 80 GB of another rack,",
    "ein Gerät mit Umlauten: größer, schöner!", "显存实验室的第四台服务器显存实验室的第四",
    "0123456789012345678901234567890123456789"};

static const struct {
  const char *name;
  void (*fill)(SyntheticSet *set, int count);
  const char *const *labels;
  bool drawn;
} table[] = {
    {"no rows", nothing, short_labels, false},        {"one row", one_row, short_labels, true},
    {"all equal", all_equal, short_labels, true},     {"all unknown", all_unknown, short_labels, false},
    {"one missing", one_missing, short_labels, true}, {"long names", long_names, long_labels, true},
    {"one OOM", one_oom, short_labels, true},         {"all OOM", all_oom, short_labels, false}};

static PlotInput input_of(const SyntheticSet *set, int count) {
  return (PlotInput){.records = {.records = (const json_t **)set->owned, .count = set->count},
                     .source = "synthetic stores",
                     .labels = labels,
                     .label_count = count};
}

static bool have_gnuplot(void) {
  const char *const argv[] = {"gnuplot", "--version", NULL};
  int code = 0;
  return vl_process_run(argv, NULL, NULL, 0, NULL, 0, &code).code == VL_OK && code == 0;
}

static bool exists(const char *name, const char *ending) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s.%s", directory, name, ending);
  struct stat facts;
  return stat(path, &facts) == 0 && facts.st_size > 0;
}

static char *contents(const char *name, const char *ending) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s.%s", directory, name, ending);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  char *text = vl_allocate(1 << 20);
  text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
  fclose(file);
  return text;
}

/* vl_plot_draw fails on anything gnuplot writes to stderr. */
static void draw(const SyntheticSet *set, int count, const char *figure, const char *formats,
                 FigureSet *drawn) {
  if (!have_gnuplot()) skip();
  PlotInput input = input_of(set, count);
  Status status = vl_plot_draw(&input, directory, figure, formats, drawn);
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static void use_labels(const char *const *which) {
  for (int i = 0; i < 5; i++)
    labels[i] = which[i];
}

/* ---- Tests ------------------------------------------------------------------------------------------------------------- */

/* I8, for 2 labels and for 5: a picture, or a reason; never both, never a warning. */
static void each_figure_of_whatever_the_stores_hold(void **state) {
  (void)state;
  FigureSet *drawn = vl_allocate(sizeof *drawn);
  for (size_t t = 0; t < sizeof table / sizeof *table; t++)
    for (int count = 2; count <= 5; count += 3) {
      SyntheticSet set = {.count = 0};
      use_labels(table[t].labels);
      table[t].fill(&set, count);
      draw(&set, count, NULL, "png", drawn);
      assert_int_equal(drawn->count, FIGURES);
      for (int32_t i = 0; i < drawn->count; i++) {
        const Figure *figure = &drawn->figures[i];
        if (figure->drawn != table[t].drawn)
          fail_msg("%s, %d labels: %s: drawn %d: %s", table[t].name, count, figure->name, figure->drawn,
                   figure->note);
        assert_int_equal(exists(figure->name, "png"), table[t].drawn);
        if (!figure->drawn) assert_true(strlen(figure->note) > 0);
      }
      synthetic_clear(&set);
    }
  free(drawn);
}

/* Bars begin at 0 also where all are equal or there is one. */
static void bars_begin_at_zero(void **state) {
  (void)state;
  FigureSet *drawn = vl_allocate(sizeof *drawn);
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  all_equal(&set, 3);
  draw(&set, 3, "samples-per-gib", "svg", drawn);
  char *script = contents("samples-per-gib", "gp");
  assert_non_null(strstr(script, "\nxmin = 0\n"));
  free(script);
  synthetic_clear(&set);
  free(drawn);
}

/* "OOM" stands in the place of the bar of one store beside the other's bar, in every figure of cells. */
static void out_of_memory_stands_in_the_place_of_a_bar(void **state) {
  (void)state;
  FigureSet *drawn = vl_allocate(sizeof *drawn);
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  one_oom(&set, 2);
  draw(&set, 2, NULL, "svg", drawn);
  for (size_t f = 0; f < FIGURES; f++) {
    if (strcmp(figures[f], "tradeoff") == 0) continue;
    bool over_reference =
        strcmp(figures[f], "speedup") == 0; /* nothing to divide by: said below the figure */
    char *data = contents(figures[f], "dat");
    const char *said = strcmp(figures[f], "max-batch") == 0 ? "\"OOM (predicted)\"" : "\"OOM\"";
    if ((strstr(data, said) != NULL) == over_reference) fail_msg("%s: %s", figures[f], data);
    free(data);
    for (int32_t i = 0; i < drawn->count; i++)
      if (over_reference && strcmp(drawn->figures[i].name, figures[f]) == 0)
        assert_non_null(strstr(drawn->figures[i].note, "has no time: OOM"));
  }
  synthetic_clear(&set);
  free(drawn);
}

/* Of three labels the second has no cell: it is in the key, but takes no place in the groups. */
static void a_label_without_cells_takes_no_place(void **state) {
  (void)state;
  FigureSet *drawn = vl_allocate(sizeof *drawn);
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  for (int i = 0; i < 2; i++) {
    add_cell(&set, 0, i ? "inplace=all" : "baseline", 16, 100);
    add_cell(&set, 2, i ? "inplace=all" : "baseline", 16, 150);
  }
  draw(&set, 3, "max-batch", "svg", drawn);
  char *data = contents("max-batch", "dat"), *script = contents("max-batch", "gp");
  assert_non_null(strstr(script, "'A100 (n/a)'"));
  assert_non_null(strstr(data, "\n0 128 \"128\"\n1 128 \"128\"\n2.8 128 \"128\"\n3.8 128 \"128\"\n"));
  free(data);
  free(script);
  synthetic_clear(&set);
  free(drawn);
}

/* A name of three lines beside one bar takes the room of three lines, so that the next does not touch it. */
static void long_names_have_room(void **state) {
  (void)state;
  FigureSet *drawn = vl_allocate(sizeof *drawn);
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  add_cell(&set, 0, "baseline", 16, 100);
  add_cell(&set, 0, "stack=vramlab amp=bf16 update=in-backward recompute=norm", 16, 100);
  draw(&set, 1, "prediction-error", "svg", drawn);
  char *data = contents("prediction-error", "dat");
  const char *name = strstr(data, "\n0 \"baseline");
  assert_non_null(name);
  double next = strtod(strchr(name + 1, '\n'), NULL);
  const char *line = strchr(name + 1, '\n') + 1;
  int breaks = 0;
  for (const char *at = line; (at = strstr(at, "\\n")) != NULL; at += 2)
    breaks++;
  assert_true(breaks >= 2 && 26 * next >= 17 * (breaks + 1)); /* pixels of a bar and of a line */
  free(data);
  synthetic_clear(&set);
  free(drawn);
}

/* One label each, and their cells in another order: the key and the fillings stay. */
static void provenance_is_told_and_colours_stay(void **state) {
  (void)state;
  FigureSet *drawn = vl_allocate(sizeof *drawn);
  use_labels(short_labels);
  for (int turn = 0; turn < 2; turn++) {
    SyntheticSet set = {.count = 0};
    for (int i = 0; i < 3; i++) {
      int l = turn == 0 ? i : 2 - i;
      Synthetic cell = {.recipe = "baseline",
                        .preserves = "bitwise",
                        .batch = 32,
                        .activation_bytes = 100e6,
                        .samples_per_s = 100 + 10 * l,
                        .energy_mj = 1000000};
      json_t *record = synthetic_record(&cell),
             *largest = synthetic_max_batch("cards", "baseline", 0, 64 + l);
      static const char *const from[] = {"predicted", "measured", "modelled"};
      json_object_set_new(record, "provenance", json_string(from[l]));
      json_object_set_new(largest, "provenance", json_string(from[l]));
      add(&set, record, l);
      add(&set, largest, l);
    }
    draw(&set, 3, NULL, "svg", drawn);
    for (size_t f = 0; f < FIGURES; f++) {
      if (strcmp(figures[f], "prediction-error") == 0) continue; /* of what has both */
      char *script = contents(figures[f], "gp"), *picture = contents(figures[f], "svg");
      bool of_predicted = strcmp(figures[f], "speedup") == 0; /* over V100, which is predicted */
      static const char *const names[] = {"V100 (predicted)", "A100 (measured)", "H100 (modelled)"};
      for (int l = 0; l < 3; l++) {
        const char *name = of_predicted && l == 1 ? "A100 (predicted)" : names[l];
        char line[80];
        snprintf(line, sizeof line, "colours[%d] = %d\n", l + 1, l + 1);
        assert_non_null(strstr(script, line));
        snprintf(line, sizeof line, "names[%d] = '%s'\n", l + 1, name);
        if (strstr(script, line) == NULL) fail_msg("%s: no %s", figures[f], line);
        assert_non_null(strstr(picture, name));
      }
      if (strcmp(figures[f], "tradeoff") != 0 && !of_predicted) {
        assert_non_null(strstr(script, "patterns[1] = 4\n"));
        assert_non_null(strstr(script, "patterns[2] = 3\n"));
        assert_non_null(strstr(script, "patterns[3] = 0\n"));
      }
      free(script);
      free(picture);
    }
    synthetic_clear(&set);
  }
  free(drawn);
}

/* The energy of the card over the measured steps: 7 steps of 32 samples in 2,240 J. */
static void energy_is_of_the_measured_steps(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  for (int l = 0; l < 2; l++) {
    Synthetic cell = {.recipe = "baseline",
                      .preserves = "bitwise",
                      .batch = 32,
                      .activation_bytes = 100e6,
                      .samples_per_s = 100,
                      .energy_mj = 2240000 * (l + 1)};
    add(&set, synthetic_record(&cell), l);
  }
  PlotInput input = input_of(&set, 2);
  Workload workload = {.case_name = "resnet50"};
  Side side;
  vl_side_gather(&input, &workload, vl_side_metric("samples-per-joule"), &side);
  assert_int_equal(side.count, 1);
  assert_float_equal(side.groups[0].values[0].value, 0.1, 1e-12);
  assert_float_equal(side.groups[0].values[1].value, 0.05, 1e-12);
  vl_side_clear(&side);
  synthetic_clear(&set);
}

static const SideLeftOut *left_out(const Side *side, const char *name) {
  for (int32_t i = 0; i < side->left_out_count; i++)
    if (strcmp(side->left_out[i].name, name) == 0) return &side->left_out[i];
  fail_msg("%s is not among what is left out", name);
  return NULL;
}

/* What differs, and what each has: recipe, gate, global batch, capacity, hardware. */
static void what_differs_is_named(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  const struct {
    int label;
    const char *recipe, *preserves;
    int64_t batch, capacity_bytes;
  } cells[] = {{0, "baseline", "bitwise", 32, 0},
               {1, "baseline", "bitwise", 32, 0},
               {0, "checkpoint=1", "bitwise", 32, 0},
               {0, "amp=bf16", "tolerance", 32, 0},
               {1, "amp=bf16", "different-model", 32, 0},
               {0, "inplace=all", "bitwise", 16, 0},
               {1, "inplace=all", "bitwise", 32, 0},
               {1, "inplace=all", "bitwise", 64, 0},
               {0, "checkpoint=2", "bitwise", 32, (int64_t)8 << 30},
               {1, "checkpoint=2", "bitwise", 32, 0}};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
    Synthetic cell = {.recipe = cells[i].recipe,
                      .preserves = cells[i].preserves,
                      .batch = cells[i].batch,
                      .activation_bytes = 100e6,
                      .samples_per_s = 100,
                      .capacity_bytes = cells[i].capacity_bytes};
    add(&set, synthetic_record(&cell), cells[i].label);
  }
  json_t *elsewhere = json_deep_copy(set.owned[0]);
  json_object_set_new(elsewhere, "hardware", json_string("Another CPU"));
  synthetic_add(&set, elsewhere);
  PlotInput input = input_of(&set, 2);
  Workload workload = {.case_name = "resnet50"};
  Side side;
  vl_side_gather(&input, &workload, vl_side_metric("throughput-equal-batch"), &side);
  assert_int_equal(side.count, 1);
  assert_string_equal(side.groups[0].name, "baseline, batch 32");
  static const struct {
    const char *name, *differs, *why;
  } expected[] = {
      {"checkpoint=1, batch 32", "recipe", "V100: checkpoint=1; A100: not run"},
      {"amp=bf16, batch 32", "gate", "V100: tolerance; A100: different-model"},
      {"inplace=all, batch 16", "global batch", "V100: 16; A100: 32, 64"},
      {"inplace=all, batch 64", "global batch", "A100: 64; V100: 16"},
      {"checkpoint=2, batch 32 in 8.000 GiB", "capacity", "V100: 8.000 GiB; A100: its own memory"},
      {"baseline, batch 32", "device", "V100: Example CPU 9000, 2 cores shown, Another CPU not"}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    const SideLeftOut *entry = left_out(&side, expected[i].name);
    assert_string_equal(entry->differs, expected[i].differs);
    assert_string_equal(entry->why, expected[i].why);
  }
  vl_side_clear(&side);
  synthetic_clear(&set);
}

/* Other settings are other work: said once, not cell by cell. */
static void other_workloads_are_named(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  all_equal(&set, 2);
  for (int32_t i = 0; i < set.count; i++)
    if (strcmp(vl_record_text(set.owned[i], "label"), labels[1]) == 0)
      json_object_set_new(set.owned[i], "settings", json_string("size=64"));
  PlotInput input = input_of(&set, 3);
  Workload workload = {.case_name = "resnet50"};
  Side side;
  vl_side_gather(&input, &workload, vl_side_metric("throughput-equal-batch"), &side);
  assert_int_equal(side.count, 0);
  assert_int_equal(side.left_out_count, 1);
  assert_string_equal(side.left_out[0].name, "all of resnet50 training");
  assert_string_equal(side.left_out[0].differs, "workload");
  assert_string_equal(side.left_out[0].why,
                      "V100: resnet50 training; A100: resnet50 size=64 training; H100: none of the case");
  vl_side_clear(&side);
  synthetic_clear(&set);
}

/* Three stores of which two have the same gate: those two stand side by side. */
static void two_of_three_gates_agree(void **state) {
  (void)state;
  SyntheticSet set = {.count = 0};
  use_labels(short_labels);
  for (int l = 0; l < 3; l++) {
    Synthetic cell = {.recipe = "amp=bf16",
                      .preserves = l == 0 ? "different-model" : "tolerance",
                      .batch = 32,
                      .activation_bytes = 100e6,
                      .samples_per_s = 100};
    add(&set, synthetic_record(&cell), l);
  }
  PlotInput input = input_of(&set, 3);
  Workload workload = {.case_name = "resnet50"};
  Side side;
  vl_side_gather(&input, &workload, vl_side_metric("throughput-equal-batch"), &side);
  assert_int_equal(side.count, 1);
  assert_null(side.groups[0].values[0].record);
  assert_true(isfinite(side.groups[0].values[1].value) && isfinite(side.groups[0].values[2].value));
  assert_string_equal(left_out(&side, "amp=bf16, batch 32")->differs, "gate");
  vl_side_clear(&side);
  synthetic_clear(&set);
}

/* Two lines of a subtitle are about one length. */
static void no_line_has_one_word(void **state) {
  (void)state;
  char *written = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&written, &bytes);
  assert_int_equal(vl_gnuplot_balanced(out, "one two three four five six seven eight nine ten eleven", 50),
                   2);
  fclose(out);
  assert_string_equal(written, "\"one two three four five six\\nseven eight nine ten eleven\"");
  free(written);
  out = open_memstream(&written, &bytes);
  assert_int_equal(vl_gnuplot_wrapped(out, "显存实验室 abcdefghij", 6), 4);
  fclose(out);
  assert_string_equal(written, "\"显存实\\n验室\\nabcdef\\nghij\"");
  free(written);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_differs_is_named),
      cmocka_unit_test(two_of_three_gates_agree),
      cmocka_unit_test(other_workloads_are_named),
      cmocka_unit_test(energy_is_of_the_measured_steps),
      cmocka_unit_test(no_line_has_one_word),
      cmocka_unit_test(bars_begin_at_zero),
      cmocka_unit_test(out_of_memory_stands_in_the_place_of_a_bar),
      cmocka_unit_test(a_label_without_cells_takes_no_place),
      cmocka_unit_test(long_names_have_room),
      cmocka_unit_test(provenance_is_told_and_colours_stay),
      cmocka_unit_test(each_figure_of_whatever_the_stores_hold),
  };
  return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
