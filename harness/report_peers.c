/* Other engines beside ours: the same work at the same batch, with the ratios scripts/bench reports. */
#include "harness/report_document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64 };

/* The word "amp=..." or "precision=..." of a recipe; "" without. */
static const char *word_of(const json_t *record, const char *key, int *length) {
  const char *recipe = vl_record_text(record, "recipe");
  const char *at = recipe != NULL ? strstr(recipe, key) : NULL;
  if (at == NULL) at = "";
  *length = (int)strcspn(at, " ");
  return at;
}

static bool same_precision(const json_t *a, const json_t *b) {
  static const char *const keys[] = {"amp=", "precision="};
  bool same = true;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    int a_length, b_length;
    const char *left = word_of(a, keys[i], &a_length), *right = word_of(b, keys[i], &b_length);
    same = same && a_length == b_length && strncmp(left, right, (size_t)a_length) == 0;
  }
  return same;
}

/* Whether two cells did the same work under the same conditions, whoever did it. */
static bool comparable(const json_t *a, const json_t *b) {
  int64_t a_threads = vl_record_integer(a, "threads"), b_threads = vl_record_integer(b, "threads");
  return vl_record_batch(a) == vl_record_batch(b) && vl_same_device(a, b) && same_precision(a, b) &&
         (a_threads < 0 || b_threads < 0 || a_threads == b_threads);
}

static bool is_compared(const json_t *record) {
  const char *preserves = vl_record_text(record, "preserves");
  bool different = preserves != NULL && strcmp(preserves, "different-model") == 0;
  return vl_record_has_status(record, "ok") && !different && !vl_record_is_emulated(record);
}

/* Of runs of the same repetition: they were taken in turn, so what slows the machine slows both. */
static Estimate ratio_of(const RecordSet *cells, const json_t *ours, const json_t *theirs,
                         const char *column) {
  double *pairs = vl_allocate(2 * sizeof(double) * (size_t)(cells->count + 1)),
         *others = pairs + cells->count;
  int64_t count = 0;
  for (int32_t i = 0; i < cells->count && theirs != NULL; i++) {
    const json_t *a = cells->records[i], *b = NULL;
    if (!is_compared(a) || !vl_same_cell(a, ours)) continue;
    for (int32_t j = 0; j < cells->count && b == NULL; j++)
      if (is_compared(cells->records[j]) && vl_same_cell(cells->records[j], theirs) &&
          vl_record_integer(cells->records[j], "repeat") == vl_record_integer(a, "repeat"))
        b = cells->records[j];
    if (b == NULL || !(vl_record_real(a, column) > 0) || !(vl_record_real(b, column) > 0)) continue;
    pairs[count] = vl_record_real(a, column);
    others[count++] = vl_record_real(b, column);
  }
  Estimate estimate = vl_statistics_paired_ratio(pairs, others, count);
  free(pairs);
  return estimate;
}

static const char *ratio_text(Document *document, Estimate ratio) {
  if (!isfinite(ratio.median)) return "n/a";
  if (!isfinite(ratio.low)) return vl_document_format(document, "%.2f", ratio.median);
  return vl_document_format(document, "%.2f [%.2f, %.2f]", ratio.median, ratio.low, ratio.high);
}

/* The peer with the least (sign 1) or the most (sign -1) of a quantity, among those comparable with a cell.
 */
static const json_t *best_peer(const RecordSet *cells, const json_t *like, const char *column, double sign) {
  const json_t *best = NULL;
  double best_value = INFINITY;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (!vl_record_is_peer(record) || !is_compared(record) || !comparable(record, like)) continue;
    double value = sign * vl_select_median(cells, record, column);
    if (!(value < best_value)) continue;
    best = record;
    best_value = value;
  }
  return best;
}

static void fill_row(Document *document, const RecordSet *cells, const json_t *record, const char **row) {
  char name[VL_RECIPE_BYTES + 128];
  const char *engine = vl_record_text(record, "engine");
  double bytes = vl_select_median(cells, record, "peak_step_bytes"),
         speed = vl_select_median(cells, record, "samples_per_s");
  vl_record_name(record, name, sizeof(name));
  row[0] = vl_document_format(document, "%s", name);
  row[1] = vl_document_format(document, "%s", engine != NULL ? engine : "n/a");
  row[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(record));
  if (isfinite(bytes)) row[3] = vl_document_format(document, "%.2f", vl_bytes_to_gib((int64_t)bytes));
  row[4] = ratio_text(
      document, ratio_of(cells, record, best_peer(cells, record, "peak_step_bytes", 1), "peak_step_bytes"));
  if (isfinite(speed)) row[5] = vl_document_format(document, "%.2f", speed);
  row[6] = ratio_text(
      document, ratio_of(cells, record, best_peer(cells, record, "samples_per_s", -1), "samples_per_s"));
}

static void add_row(const json_t **rows, int32_t *count, const json_t *record) {
  for (int32_t i = 0; i < *count; i++)
    if (vl_same_cell(rows[i], record)) return;
  if (*count < MAX_ROWS) rows[(*count)++] = record;
}

/* For each peer in turn what is comparable with it, ours first. */
static int32_t rows_of(const RecordSet *cells, const json_t **rows) {
  int32_t count = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *peer = cells->records[i];
    if (!vl_record_is_peer(peer) || !is_compared(peer)) continue;
    for (int peers = 0; peers < 2; peers++)
      for (int32_t j = 0; j < cells->count; j++) {
        const json_t *record = cells->records[j];
        if (vl_record_is_peer(record) == (peers == 1) && is_compared(record) && comparable(record, peer))
          add_row(rows, &count, record);
      }
  }
  return count;
}

void vl_report_peers(Document *document, const RecordSet *cells, const Workload *workload) {
  static const TableColumn columns[] = {{"configuration", "", false},  {"engine", "", false},
                                        {"batch", "samples", true},    {"step memory", "GiB", true},
                                        {"memory", "x leanest", true}, {"samples", "1/s", true},
                                        {"speed", "x fastest", true}};
  const json_t *rows[MAX_ROWS];
  int32_t count = rows_of(cells, rows);
  if (count == 0) return;
  char name[256], device[256];
  vl_workload_text(workload, name, sizeof(name));
  vl_device_text(rows[0], device, sizeof(device));
  Passage *passage =
      vl_document_add(document, PASSAGE_TABLE, true,
                      vl_document_format(document, "%s beside other engines, measured on %s", name, device));
  vl_document_table(document, passage, columns, sizeof(columns) / sizeof(columns[0]), count);
  for (int32_t r = 0; r < count; r++)
    fill_row(document, cells, rows[r], passage->rows[r]);
  vl_document_add(
      document, PASSAGE_NOTE, true,
      "Step memory: the driver's peak above the process with weights and input ready. Medians over "
      "repetitions; ratios are to the other engines' leanest and fastest configuration of the same "
      "batch and precision, medians over runs of the same repetition [95 % interval].");
}
