/* Tables of factorials: every cell with its Dice, and what each factor and each interaction does. */
#include "harness/factorial.h"
#include "harness/report_document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Alone, in pairs, all three. */
static const uint32_t order[CORNERS] = {0, 1, 2, 4, 3, 5, 6, 7};

static const char *number(Document *document, const char *format, double value) {
  return isfinite(value) ? vl_document_format(document, format, value) : "n/a";
}

static const char *factors(Document *document, uint32_t which, const char *between) {
  char name[64];
  vl_factors_text(which, between, name, sizeof name);
  return vl_document_format(document, "%s", name);
}

/* "unet3d inference, amp=bf16, measured on cpu (...)" */
static const char *caption(Document *document, const Factorial *factorial, const char *what) {
  char name[256], device[256];
  const json_t *none = factorial->corners[0];
  Workload workload = vl_record_workload(none);
  workload.queue = NULL; /* long, and in every other table */
  vl_workload_text(&workload, name, sizeof name);
  vl_device_text(none, device, sizeof device);
  return vl_document_format(document, "%s: %s, %s, %s on %s", what, name,
                            strcmp(factorial->rest, "baseline") == 0 ? "fp32" : factorial->rest,
                            vl_record_is_predicted(none) ? "predicted" : "measured", device);
}

static void add_cells(Document *document, const RecordSet *records, const Factorial *factorial,
                      bool first_screen) {
  static const TableColumn columns[] = {
      {"cell", "", false},          {"reserved", "GiB", true}, {"saved", "%", true},
      {"over allocated", "", true}, {"a pass", "s", true},     {"speed", "x", true},
      {"from", "x", true},          {"to", "x", true},         {"Dice, mean", "", true},
      {"Dice, lowest", "", true},   {"seeds", "", true}};
  Passage *passage =
      vl_document_add(document, PASSAGE_TABLE, first_screen, caption(document, factorial, "Factorial"));
  vl_document_table(document, passage, columns, sizeof columns / sizeof columns[0], CORNERS);
  double before = (double)vl_record_integer(factorial->corners[0], "peak_reserved_bytes");
  for (int32_t r = 0; r < CORNERS; r++) {
    const char **cells = passage->rows[r];
    const json_t *record = factorial->corners[order[r]];
    double reserved = (double)vl_record_integer(record, "peak_reserved_bytes");
    Contrast speed = vl_factorial_ratio(&factorial->time, 0, order[r]);
    SeedTable dice = vl_factorial_dice(records, factorial, order[r]);
    cells[0] = factors(document, order[r], " + ");
    cells[1] = number(document, "%.3f", reserved * 0x1p-30);
    cells[2] = number(document, "%.1f", 100 * (1 - reserved / before));
    cells[3] = number(document, "%.3f", vl_record_real(record, "reserved_over_allocated"));
    cells[4] = number(document, "%.3f", vl_factorial_level(&factorial->time, order[r]).value);
    cells[5] = number(document, "%.2f", speed.value);
    if (r > 0) cells[6] = number(document, "%.2f", speed.low);
    if (r > 0) cells[7] = number(document, "%.2f", speed.high);
    cells[8] = number(document, "%.4f", vl_seeds_spread(&dice).value);
    cells[9] = number(document, "%.4f", vl_seeds_spread(&dice).low);
    cells[10] = vl_document_format(document, "%d", dice.count);
  }
}

static void add_effects(Document *document, const Factorial *factorial, bool first_screen) {
  static const TableColumn columns[] = {{"effect", "", false},
                                        {"on memory", "%", true},
                                        {"on time", "%", true},
                                        {"from", "%", true},
                                        {"to", "%", true}};
  Passage *passage = vl_document_add(document, PASSAGE_TABLE, first_screen,
                                     caption(document, factorial, "Effects and interactions"));
  vl_document_table(document, passage, columns, sizeof columns / sizeof columns[0], CORNERS - 1);
  for (int32_t r = 1; r < CORNERS; r++) {
    const char **cells = passage->rows[r - 1];
    Contrast memory = vl_factorial_effect(&factorial->reserved, order[r]);
    Contrast time = vl_factorial_effect(&factorial->time, order[r]);
    cells[0] = factors(document, order[r], " x ");
    cells[1] = number(document, "%+.1f", 100 * memory.value);
    cells[2] = number(document, "%+.1f", 100 * time.value);
    cells[3] = number(document, "%+.1f", 100 * time.low);
    cells[4] = number(document, "%+.1f", 100 * time.high);
  }
}

/* Samples of its largest batch. */
static int64_t largest_batch(const json_t *record) {
  const json_t *shapes = json_object_get(record, "shapes");
  int64_t largest = 0;
  for (size_t i = 0; i < json_array_size(shapes); i++) {
    int64_t batch = vl_record_integer(json_array_get(shapes, i), "batch");
    if (batch > largest) largest = batch;
  }
  return largest;
}

static void add_levels(Document *document, const Factorial *factorial, bool first_screen) {
  const char *recipe = vl_record_text(factorial->corners[ALL_FACTORS], "recipe");
  const char *queue = vl_record_text(factorial->corners[ALL_FACTORS], "queue");
  vl_document_add(document, PASSAGE_NOTE, first_screen,
                  vl_document_format(
                      document, "All three: %s, of the queue %s; without dynamic batch at most %lld at once.",
                      recipe, queue, (long long)largest_batch(factorial->corners[0])));
}

static void add_method(Document *document) {
  vl_document_add(
      document, PASSAGE_NOTE, true,
      "Effects are contrasts of the eight cells' logarithms, given as a change: of a factor the mean of the "
      "four cells with it over that of those without, of an interaction the square root of the factor by "
      "which "
      "the one changes the other's effect. Intervals are 95 %, from rounds in which every cell ran once, as "
      "blocks (Montgomery, "
      "Design and Analysis of Experiments, 4.1, 6.3 and 7.2); what is reserved is the same in every round.");
  vl_document_add(
      document, PASSAGE_NOTE, true,
      "Dice is measured once for each number of groups, precision and seed, on generated volumes, and stands "
      "beside all cells of these: where blocks lie changes no bit of a result, and in inference how many "
      "samples share a batch changes rounding only. Training with dynamic batches takes other optimizer "
      "steps; its Dice is not measured.");
}

/* The i-th record's, when it begins one that is complete. */
static bool gather(const RecordSet *records, int32_t i, Factorial *factorial) {
  if (!vl_factorial_begins(records, i)) return false;
  vl_factorial_gather(records, records->records[i], factorial);
  return factorial->complete;
}

/* On the first screen is what was measured, without that the first. */
void vl_report_factorials(Document *document, const RecordSet *records) {
  Factorial *factorial = vl_allocate(sizeof *factorial);
  int32_t first = -1, measured = 0;
  for (int32_t i = records->count - 1; i >= 0; i--)
    if (gather(records, i, factorial)) {
      first = i;
      measured += !vl_record_is_predicted(records->records[i]);
    }
  for (int32_t i = first; i >= 0 && i < records->count; i++) {
    bool first_screen = measured > 0 ? !vl_record_is_predicted(records->records[i]) : i == first;
    if (!gather(records, i, factorial)) continue;
    add_cells(document, records, factorial, first_screen);
    add_effects(document, factorial, first_screen);
    add_levels(document, factorial, first_screen);
  }
  if (first >= 0) add_method(document);
  free(factorial);
}
