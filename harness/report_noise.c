/* What the times in the report are worth. */
#include "harness/report_document.h"

#include <math.h>
#include <string.h>

static bool is_timed(const json_t *record) {
  return vl_record_has_status(record, "ok") && !vl_record_is_predicted(record) &&
         !vl_record_is_emulated(record) && isfinite(vl_record_real(record, "step_s"));
}

static double percent(const json_t *record, const char *column) {
  return 100 * vl_record_real(record, column);
}

static const char *count_text(Document *document, const json_t *record, const char *column) {
  int64_t count = vl_record_integer(record, column);
  return count >= 0 ? vl_document_format(document, "%lld", (long long)count) : "n/a";
}

static void fill_row(Document *document, const json_t *record, const char **row) {
  char name[256], cell[VL_RECIPE_BYTES + 128];
  Workload workload = vl_record_workload(record);
  vl_workload_text(&workload, name, sizeof(name));
  vl_record_name(record, cell, sizeof(cell));
  double step = vl_record_real(record, "step_s"), low = vl_record_real(record, "step_s_low"),
         high = vl_record_real(record, "step_s_high");
  const char *disturbed = vl_record_text(record, "disturbed");
  row[0] = vl_document_format(document, "%s", name);
  row[1] = vl_document_format(document, "%s", cell);
  row[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(record));
  row[3] = count_text(document, record, "step_count");
  row[4] = vl_document_number(document, "%.4g", step);
  row[5] = vl_document_number(document, "%+.1f", 100 * (low / step - 1));
  row[6] = vl_document_number(document, "%+.1f", 100 * (high / step - 1));
  row[7] = vl_document_number(document, "%.1f", percent(record, "step_s_coverage"));
  row[8] = count_text(document, record, "step_outliers");
  row[9] = vl_document_number(document, "%+.1f", percent(record, "step_drift"));
  row[10] = vl_document_number(document, "%.1f", percent(record, "steal_share"));
  row[11] = vl_document_number(document, "%.1f", percent(record, "other_cpu_share"));
  row[12] = disturbed != NULL ? vl_document_format(document, "%s", disturbed) : "";
}

void vl_report_noise(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {{"workload", "", false},
                                        {"cell", "", false},
                                        {"batch", "samples", true},
                                        {"measured", "steps", true},
                                        {"step, median", "s", true},
                                        {"median from", "%", true},
                                        {"to", "%", true},
                                        {"covered with", "%", true},
                                        {"outliers", "steps", true},
                                        {"trend", "%", true},
                                        {"hypervisor took", "%", true},
                                        {"others took", "%", true},
                                        {"disturbed", "", false}};
  int32_t count = 0, row = 0;
  for (int32_t i = 0; i < records->count; i++)
    count += is_timed(records->records[i]);
  if (count == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Noise and disturbances");
  Passage *table = vl_document_add(document, PASSAGE_TABLE, false, "What the times are worth");
  vl_document_table(document, table, columns, sizeof(columns) / sizeof(columns[0]), count);
  for (int32_t i = 0; i < records->count; i++)
    if (is_timed(records->records[i])) fill_row(document, records->records[i], table->rows[row++]);
  vl_document_add(
      document, PASSAGE_NOTE, false,
      "From and to are the interval of the median step, as differences from it, and covered with the "
      "probability that it holds the median; fewer than 6 steps have none of 95 %. Trend is the change "
      "from the first to the last measured step. What the hypervisor and other processes took is of "
      "the processors' time.");
}
