/* The report's tables of single cells: all of them, and those that offloaded, inferred volumes, were
 * monitored, failed or leak.
 */
#include "harness/report_document.h"

#include <math.h>
#include <string.h>

static const char *text_or(const char *text, const char *otherwise) {
  return text != NULL ? text : otherwise;
}

static bool is_cell(const json_t *record) {
  const char *kind = vl_record_text(record, "kind");
  return kind == NULL || strcmp(kind, "cell") == 0;
}

static const char *workload_name(Document *document, const json_t *record) {
  char name[256];
  Workload workload = vl_record_workload(record);
  vl_workload_text(&workload, name, sizeof(name));
  return vl_document_format(document, "%s", name);
}

static int64_t field_or_status(const json_t *record, const char *path) {
  return vl_record_has_status(record, "ok") ? vl_record_integer(record, path) : -1;
}

static void cell_row(Document *document, const json_t *record, const char **cells) {
  char device[256];
  vl_device_text(record, device, sizeof(device));
  int64_t batch = vl_record_batch(record), capacity = vl_record_integer(record, "capacity_bytes");
  double speed = vl_record_real(record, "samples_per_s"), step = vl_record_real(record, "step_s"),
         spread = vl_record_real(record, "step_s_spread");
  bool timed = vl_record_has_status(record, "ok") && !vl_record_is_emulated(record);
  cells[0] = workload_name(document, record);
  char name[VL_RECIPE_BYTES + 128];
  vl_record_name(record, name, sizeof(name));
  cells[1] = vl_document_format(document, "%s", name);
  if (batch >= 0) cells[2] = vl_document_format(document, "%lld", (long long)batch);
  cells[3] = vl_document_format(document, "%s", device);
  cells[4] = vl_document_format(document, "%s%s", vl_record_is_predicted(record) ? "predicted" : "measured",
                                vl_record_is_emulated(record) ? ", emulated" : "");
  cells[5] = vl_document_format(document, "%s", text_or(vl_record_text(record, "status"), "n/a"));
  cells[6] = capacity > 0 ? vl_document_gib(document, capacity) : "none";
  cells[7] = vl_document_gib(document, field_or_status(record, "needed_bytes"));
  cells[8] = vl_document_gib(document, field_or_status(record, "peak_allocated_bytes"));
  cells[9] = vl_document_gib(document, field_or_status(record, "peak_reserved_bytes"));
  cells[10] = vl_document_gib(document, field_or_status(record, "peak_driver_bytes"));
  cells[11] = vl_document_gib(document, field_or_status(record, "peak_step_bytes"));
  if (timed && isfinite(step)) cells[12] = vl_document_format(document, "%.4g", step);
  if (timed && isfinite(spread)) cells[13] = vl_document_format(document, "%.2g", spread);
  if (timed && isfinite(speed)) cells[14] = vl_document_format(document, "%.2f", speed);
  cells[15] = vl_document_format(document, "%s", text_or(vl_record_text(record, "cell_key"), "n/a"));
}

void vl_report_cells(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {{"workload", "", false},         {"recipe", "", false},
                                        {"batch", "samples", true},      {"device", "", false},
                                        {"numbers are", "", false},      {"status", "", false},
                                        {"capacity", "GiB", true},       {"needed", "GiB", true},
                                        {"peak allocated", "GiB", true}, {"peak reserved", "GiB", true},
                                        {"peak driver", "GiB", true},    {"step memory", "GiB", true},
                                        {"step, median", "s", true},     {"step, spread", "s", true},
                                        {"samples", "1/s", true},        {"key", "", false}};
  enum { COUNT = sizeof(columns) / sizeof(columns[0]) };
  vl_document_add(document, PASSAGE_HEADING, false, "All cells");
  Passage *passage =
      vl_document_add(document, PASSAGE_TABLE, false, "One row a cell, in the order they were run");
  int32_t cells = 0;
  for (int32_t i = 0; i < records->count; i++)
    cells += is_cell(records->records[i]);
  vl_document_table(document, passage, columns, COUNT, cells);
  for (int32_t i = 0, row = 0; i < records->count; i++)
    if (is_cell(records->records[i])) cell_row(document, records->records[i], passage->rows[row++]);
  vl_document_add(
      document, PASSAGE_NOTE, false,
      "A suite's cell is run again, in a new store, by: vramlab run SUITE --cell KEY. All columns of every "
      "cell: vramlab export STORE --format csv.");
}

static const char *mib(Document *document, int64_t bytes) {
  return bytes >= 0 ? vl_document_format(document, "%.1f", (double)bytes / 0x1p20) : "n/a";
}

static bool moved(const json_t *record) {
  return is_cell(record) && vl_record_has_status(record, "ok") &&
         vl_record_integer(record, "evicted_bytes") > 0;
}

/* What recipes that offload moved, and what it cost. */
void vl_report_offloads(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {{"workload", "", false},      {"recipe", "", false},
                                        {"batch", "samples", true},   {"numbers are", "", false},
                                        {"needed", "GiB", true},      {"moved out a step", "GiB", true},
                                        {"moved back", "GiB", true},  {"held there", "GiB", true},
                                        {"waited a step", "s", true}, {"step, median", "s", true}};
  int32_t count = 0, row = 0;
  for (int32_t i = 0; i < records->count; i++)
    count += moved(records->records[i]);
  if (count == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Offloaded");
  Passage *passage = vl_document_add(document, PASSAGE_TABLE, false,
                                     "Copied to host memory or a file and back; no part of what is needed");
  vl_document_table(document, passage, columns, sizeof(columns) / sizeof(columns[0]), count);
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (!moved(record)) continue;
    const char **cells = passage->rows[row++];
    double waited = vl_record_real(record, "offload_stall_s"), step = vl_record_real(record, "step_s");
    cells[0] = workload_name(document, record);
    cells[1] = vl_document_format(document, "%s", text_or(vl_record_text(record, "recipe"), "n/a"));
    cells[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(record));
    cells[3] = vl_record_is_predicted(record) ? "predicted" : "measured";
    cells[4] = vl_document_gib(document, vl_record_integer(record, "needed_bytes"));
    cells[5] = vl_document_gib(document, vl_record_integer(record, "evicted_bytes"));
    cells[6] = vl_document_gib(document, vl_record_integer(record, "fetched_bytes"));
    cells[7] = vl_document_gib(document, vl_record_integer(record, "peak_offload_bytes"));
    if (isfinite(waited)) cells[8] = vl_document_format(document, "%.3f", waited);
    if (isfinite(step)) cells[9] = vl_document_format(document, "%.4g", step);
  }
}

/* "0.8123 (class 4)": the class with the lowest Dice, of all but the first. */
static const char *lowest_dice(Document *document, const json_t *dice) {
  double lowest = NAN;
  size_t at = 0;
  for (size_t c = 1; c < json_array_size(dice); c++) {
    const json_t *value = json_array_get(dice, c);
    if (!json_is_number(value) || lowest <= json_number_value(value)) continue;
    lowest = json_number_value(value);
    at = c;
  }
  return isnan(lowest) ? "n/a" : vl_document_format(document, "%.4f (class %zu)", lowest, at);
}

/* How well volumes that were held out were told apart, and how fast. */
void vl_report_volumes(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {{"workload", "", false},     {"recipe", "", false},
                                        {"batch", "samples", true},  {"steps", "", true},
                                        {"held-out loss", "", true}, {"Dice, mean", "", true},
                                        {"Dice, lowest", "", true},  {"voxels right", "%", true},
                                        {"needed", "GiB", true},     {"a volume", "s", true}};
  int32_t count = 0, row = 0;
  for (int32_t i = 0; i < records->count; i++)
    count += json_array_size(json_object_get(records->records[i], "dice")) > 0;
  if (count == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Held-out volumes");
  Passage *passage = vl_document_add(
      document, PASSAGE_TABLE, false,
      "Inferred by sliding windows; Dice is the mean over the volumes in which a class is predicted or true");
  vl_document_table(document, passage, columns, sizeof(columns) / sizeof(columns[0]), count);
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i], *dice = json_object_get(record, "dice");
    if (json_array_size(dice) == 0) continue;
    const char **cells = passage->rows[row++];
    double loss = vl_record_real(record, "held_out_loss"), mean = vl_record_real(record, "dice_mean"),
           right = vl_record_real(record, "accuracy"), volume_s = vl_record_real(record, "volume_s");
    cells[0] = workload_name(document, record);
    cells[1] = vl_document_format(document, "%s", text_or(vl_record_text(record, "recipe"), "n/a"));
    cells[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(record));
    long long steps = vl_record_integer(record, "steps"), warmup = vl_record_integer(record, "warmup");
    cells[3] = vl_document_format(document, "%lld", steps + warmup);
    if (isfinite(loss)) cells[4] = vl_document_format(document, "%.4f", loss);
    if (isfinite(mean)) cells[5] = vl_document_format(document, "%.4f", mean);
    cells[6] = lowest_dice(document, dice);
    if (isfinite(right)) cells[7] = vl_document_format(document, "%.2f", 100.0 * right);
    cells[8] = vl_document_gib(document, vl_record_integer(record, "needed_bytes"));
    if (isfinite(volume_s)) cells[9] = vl_document_format(document, "%.3f", volume_s);
  }
}

/* ---- Queues ------------------------------------------------------------------------------------------------------ */

static size_t shapes_of(const json_t *record) {
  return is_cell(record) ? json_array_size(json_object_get(record, "shapes")) : 0;
}

static void shape_row(Document *document, const json_t *record, const json_t *shape, const char **cells) {
  double rate = vl_record_real(shape, "samples_per_s"), batch_s = vl_record_real(shape, "batch_s");
  bool timed = !vl_record_is_emulated(record);
  cells[0] = workload_name(document, record);
  cells[1] = vl_document_format(document, "%s", text_or(vl_record_text(record, "recipe"), "n/a"));
  cells[2] = vl_record_is_predicted(record) ? "predicted" : "measured";
  cells[3] = vl_document_format(document, "%s", text_or(vl_record_text(shape, "shape"), "n/a"));
  cells[4] = vl_document_format(document, "%lld", (long long)vl_record_integer(shape, "samples"));
  cells[5] = vl_document_format(document, "%lld", (long long)vl_record_integer(shape, "batch"));
  cells[6] = vl_document_format(document, "%lld", (long long)vl_record_integer(shape, "batches"));
  cells[7] = vl_document_gib(document, vl_record_integer(shape, "peak_allocated_bytes"));
  cells[8] = vl_document_gib(document, vl_record_integer(shape, "peak_reserved_bytes"));
  if (timed && isfinite(batch_s)) cells[9] = vl_document_format(document, "%.4g", batch_s);
  if (timed && isfinite(rate)) cells[10] = vl_document_format(document, "%.2f", rate);
}

static void queue_row(Document *document, const json_t *record, const char **cells) {
  int64_t capacity = vl_record_integer(record, "capacity_bytes"), batches = 0;
  json_t *shapes = json_object_get(record, "shapes"), *shape;
  size_t i;
  json_array_foreach(shapes, i, shape) batches += vl_record_integer(shape, "batches");
  double ratio = vl_record_real(record, "reserved_over_allocated"), pass_s = vl_record_real(record, "step_s"),
         rate = vl_record_real(record, "samples_per_s");
  cells[0] = workload_name(document, record);
  cells[1] = vl_document_format(document, "%s", text_or(vl_record_text(record, "recipe"), "n/a"));
  cells[2] = vl_record_is_predicted(record) ? "predicted" : "measured";
  cells[3] = capacity > 0 ? vl_document_gib(document, capacity) : "none";
  cells[4] = vl_document_format(document, "%lld", (long long)batches);
  cells[5] = vl_document_gib(document, field_or_status(record, "needed_bytes"));
  cells[6] = vl_document_gib(document, field_or_status(record, "peak_allocated_bytes"));
  if (isfinite(ratio)) cells[7] = vl_document_format(document, "%.3f", ratio);
  if (!vl_record_is_emulated(record) && isfinite(pass_s))
    cells[8] = vl_document_format(document, "%.4g", pass_s);
  if (isfinite(rate)) cells[9] = vl_document_format(document, "%.2f", rate);
}

/* What queues needed in all. */
static void report_whole_queues(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {
      {"workload", "", false},         {"recipe", "", false},
      {"numbers are", "", false},      {"capacity", "GiB", true},
      {"batches", "", true},           {"needed", "GiB", true},
      {"peak allocated", "GiB", true}, {"reserved over allocated", "", true},
      {"a pass", "s", true},           {"samples", "1/s", true}};
  int32_t count = 0, row = 0;
  for (int32_t i = 0; i < records->count; i++)
    count += shapes_of(records->records[i]) > 0;
  Passage *passage = vl_document_add(document, PASSAGE_TABLE, false, "What a pass over the queue needed");
  vl_document_table(document, passage, columns, sizeof(columns) / sizeof(columns[0]), count);
  for (int32_t i = 0; i < records->count; i++)
    if (shapes_of(records->records[i]) > 0) queue_row(document, records->records[i], passage->rows[row++]);
}

void vl_report_queues(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {
      {"workload", "", false}, {"recipe", "", false},           {"numbers are", "", false},
      {"size", "", false},     {"in a pass", "samples", true},  {"largest batch", "samples", true},
      {"batches", "", true},   {"peak allocated", "GiB", true}, {"peak reserved", "GiB", true},
      {"a batch", "s", true},  {"samples", "1/s", true}};
  int32_t count = 0, row = 0;
  for (int32_t i = 0; i < records->count; i++)
    count += (int32_t)shapes_of(records->records[i]);
  if (count == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Queues of several sizes");
  report_whole_queues(document, records);
  Passage *passage = vl_document_add(document, PASSAGE_TABLE, false, "What each size of sample needed");
  vl_document_table(document, passage, columns, sizeof(columns) / sizeof(columns[0]), count);
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i], *list = json_object_get(record, "shapes");
    for (size_t k = 0; k < shapes_of(record); k++)
      shape_row(document, record, json_array_get(list, k), passage->rows[row++]);
  }
}

/* ---- Monitored cells ------------------------------------------------------------------------------------------- */

/* Of a list of a cell's steps; NaN where it has no such element. */
static double step_value(const json_t *record, const char *list, size_t step) {
  const json_t *value = json_array_get(json_object_get(record, list), step);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static size_t monitored_steps(const json_t *record) {
  return is_cell(record) ? json_array_size(json_object_get(record, "monitor_loss_scale")) : 0;
}

/* "65536 to 4096": the first and the last step that tell, or one number where nothing changed. */
static const char *from_to(Document *document, const json_t *record, const char *list) {
  double first = NAN, last = NAN;
  for (size_t i = 0; i < monitored_steps(record); i++) {
    double value = step_value(record, list, i);
    if (isnan(first)) first = value;
    if (!isnan(value)) last = value;
  }
  if (isnan(first)) return "n/a";
  if (first == last) return vl_document_format(document, "%.5g", first);
  return vl_document_format(document, "%.5g to %.5g", first, last);
}

static double largest(const json_t *record, const char *list) {
  double most = NAN;
  for (size_t i = 0; i < monitored_steps(record); i++)
    most = fmax(most, step_value(record, list, i));
  return most;
}

bool vl_report_is_of_monitors(const Figure *figure) {
  return figure->drawn && strncmp(figure->name, "monitors", 8) == 0;
}

/* What mixed precision did to the gradients of monitored cells. */
void vl_report_monitors(Document *document, const ReportInput *input) {
  const RecordSet *records = &input->records;
  static const TableColumn columns[] = {
      {"workload", "", false},        {"recipe", "", false},
      {"batch", "samples", true},     {"steps", "", true},
      {"loss scale", "", true},       {"skipped", "steps", true},
      {"gradient norm", "", true},    {"flushed to zero, at most", "%", true},
      {"first not finite", "", false}};
  int32_t count = 0, row = 0;
  for (int32_t i = 0; i < records->count; i++)
    count += monitored_steps(records->records[i]) > 0;
  if (count == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Monitored precision");
  Passage *passage =
      vl_document_add(document, PASSAGE_TABLE, false,
                      "From the first to the last step; gradients as they are after unscaling");
  vl_document_table(document, passage, columns, sizeof(columns) / sizeof(columns[0]), count);
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (monitored_steps(record) == 0) continue;
    const char **cells = passage->rows[row++];
    double flushed = largest(record, "monitor_flushed_share");
    cells[0] = workload_name(document, record);
    cells[1] = vl_document_format(document, "%s", text_or(vl_record_text(record, "recipe"), "n/a"));
    cells[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(record));
    cells[3] = vl_document_format(document, "%zu", monitored_steps(record));
    cells[4] = from_to(document, record, "monitor_loss_scale");
    cells[5] = vl_document_format(document, "%lld", (long long)vl_record_integer(record, "skipped_steps"));
    cells[6] = from_to(document, record, "monitor_gradient_norm");
    if (isfinite(flushed)) cells[7] = vl_document_format(document, "%.3g", 100.0 * flushed);
    cells[8] = vl_document_format(document, "%s", text_or(vl_record_text(record, "first_nonfinite"), "none"));
  }
  for (int32_t i = 0; input->figures != NULL && i < input->figures->count; i++)
    if (vl_report_is_of_monitors(&input->figures->figures[i]))
      vl_report_figure(document, &input->figures->figures[i], false);
}

/* Cells that ran out of memory: running out is a result, with what was asked and what was live. */
void vl_report_failures(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {{"workload", "", false},     {"recipe", "", false},
                                        {"batch", "samples", true},  {"capacity", "GiB", true},
                                        {"numbers are", "", false},  {"ran out in", "", false},
                                        {"asked", "MiB", true},      {"allocated", "GiB", true},
                                        {"parameters", "GiB", true}, {"what the heap said", "", false}};
  int32_t failures = 0, row = 0;
  for (int32_t i = 0; i < records->count; i++)
    failures += is_cell(records->records[i]) && vl_record_has_status(records->records[i], "oom");
  if (failures == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Out of memory");
  Passage *passage =
      vl_document_add(document, PASSAGE_TABLE, false, "Cells that did not fit, and where they stopped");
  vl_document_table(document, passage, columns, sizeof(columns) / sizeof(columns[0]), failures);
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (!is_cell(record) || !vl_record_has_status(record, "oom")) continue;
    const char **cells = passage->rows[row++];
    int64_t capacity = vl_record_integer(record, "capacity_bytes");
    cells[0] = workload_name(document, record);
    cells[1] = vl_document_format(document, "%s", text_or(vl_record_text(record, "recipe"), "n/a"));
    cells[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(record));
    cells[3] = capacity > 0 ? vl_document_gib(document, capacity) : "none";
    cells[4] = vl_record_is_predicted(record) ? "predicted" : "measured";
    cells[5] = vl_document_format(document, "%s", text_or(vl_record_text(record, "oom_segment"), "n/a"));
    cells[6] = mib(document, vl_record_integer(record, "oom_request_bytes"));
    cells[7] = vl_document_gib(document, vl_record_integer(record, "peak_allocated_bytes"));
    cells[8] = vl_document_gib(document, vl_record_integer(record, "peak_by_category.parameter"));
    cells[9] = vl_document_format(document, "%s", text_or(vl_record_text(record, "error"), "n/a"));
  }
}

/* Cells whose live bytes keep growing, and where to look. */
void vl_report_leaks(Document *document, const RecordSet *records) {
  bool headed = false;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    int64_t rate = vl_record_integer(record, "leak_bytes_per_step");
    if (!is_cell(record) || rate <= 0) continue;
    if (!headed) vl_document_add(document, PASSAGE_HEADING, false, "Leaks");
    headed = true;
    const json_t *leaks = json_object_get(record, "leaks"), *largest = json_array_get(leaks, 0);
    char bytes[32];
    vl_format_bytes(rate, bytes, sizeof bytes);
    vl_document_add(
        document, PASSAGE_NOTE, true,
        vl_document_format(
            document, "Leak: %s, %s: %s more after every step, in %zu%s tensors, most in %s of %s",
            workload_name(document, record), text_or(vl_record_text(record, "recipe"), "n/a"), bytes,
            json_array_size(leaks), json_array_size(leaks) == VL_MAX_LEAKS ? " and more" : "",
            text_or(vl_record_text(largest, "name"), "n/a"),
            text_or(vl_record_text(largest, "scope"), "n/a")));
  }
}

/* Why other cells have no numbers. */
void vl_report_errors(Document *document, const RecordSet *records) {
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    const char *error = vl_record_text(record, "error"), *status = vl_record_text(record, "status");
    if (error == NULL || error[0] == '\0' || vl_record_has_status(record, "oom")) continue;
    vl_document_add(document, PASSAGE_NOTE, false,
                    vl_document_format(document, "%s at batch %lld: %s: %s",
                                       text_or(vl_record_text(record, "recipe"), "unnamed"),
                                       (long long)vl_record_batch(record), text_or(status, "n/a"), error));
  }
}
