/* What was measured beside what was planned for the same work on the same hardware. */
#include "harness/report_document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const TableColumn columns[] = {
    {"workload", "", false},    {"recipe", "", false},      {"batch", "samples", true},
    {"measured on", "", false}, {"allocated", "GiB", true}, {"allocated, planned", "GiB", true},
    {"off by", "%", true},      {"needed", "GiB", true},    {"needed, from", "GiB", true},
    {"to", "GiB", true},        {"off by", "%", true}};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]) };

typedef struct Pair {
  const json_t *measured, *planned;
} Pair;

/* Whether every part of a profile's name is in the card's, as in "NVIDIA A100-SXM4-80GB" and A100-80GB. */
static bool is_profile_of(const char *profile, const char *hardware) {
  char part[64];
  while (*profile) {
    size_t length = strcspn(profile, "-");
    snprintf(part, sizeof(part), "%.*s", (int)length, profile);
    if (strstr(hardware, part) == NULL) return false;
    profile += length + (profile[length] == '-');
  }
  return true;
}

/* A plan without a profile is of the machine's own cpu. */
static bool is_plan_of(const json_t *planned, const json_t *measured) {
  const char *profile = vl_record_text(planned, "profile"), *device = vl_record_text(measured, "device"),
             *hardware = vl_record_text(measured, "hardware");
  if (profile == NULL)
    return device != NULL && strcmp(device, "cpu") == 0 &&
           vl_record_integer(planned, "threads") == vl_record_integer(measured, "threads");
  return device != NULL && strcmp(device, "cuda") == 0 && hardware != NULL &&
         is_profile_of(profile, hardware);
}

static bool has_numbers(const json_t *record) {
  return vl_record_has_status(record, "ok") && vl_record_integer(record, "peak_allocated_bytes") >= 0 &&
         vl_record_integer(record, "needed_bytes") >= 0;
}

/* Among cells of one workload: the plan of what was measured; NULL: there is none. */
static const json_t *plan_of(const RecordSet *cells, const json_t *measured) {
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (vl_record_is_predicted(record) && has_numbers(record) && is_plan_of(record, measured) &&
        vl_record_same_text(record, measured, "recipe") &&
        vl_record_batch(record) == vl_record_batch(measured) &&
        vl_record_integer(record, "capacity_bytes") == vl_record_integer(measured, "capacity_bytes"))
      return record;
  }
  return NULL;
}

static bool is_repetition(const Pair *pairs, int32_t count, const json_t *measured) {
  for (int32_t i = 0; i < count; i++)
    if (vl_same_cell(pairs[i].measured, measured)) return true;
  return false;
}

/* The pairs of one workload; of repetitions the first. */
static int32_t pairs_of(const RecordSet *cells, Pair *pairs) {
  int32_t count = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *measured = cells->records[i];
    if (vl_record_is_predicted(measured) || !has_numbers(measured) || vl_record_is_emulated(measured) ||
        is_repetition(pairs, count, measured))
      continue;
    const json_t *planned = plan_of(cells, measured);
    if (planned != NULL) pairs[count++] = (Pair){measured, planned};
  }
  return count;
}

/* By how much a plan is off, of what was measured. */
static const char *off_by(Document *document, const Pair *pair, const char *column) {
  double planned = vl_record_real(pair->planned, column), measured = vl_record_real(pair->measured, column);
  return measured > 0 ? vl_document_format(document, "%+.2f", 100.0 * (planned - measured) / measured)
                      : "n/a";
}

static void fill_row(Document *document, const Pair *pair, const char **row) {
  char name[256], device[256];
  Workload workload = vl_record_workload(pair->measured);
  vl_workload_text(&workload, name, sizeof(name));
  vl_device_text(pair->measured, device, sizeof(device));
  const char *recipe = vl_record_text(pair->measured, "recipe");
  int64_t low = vl_record_integer(pair->planned, "needed_low_bytes"),
          high = vl_record_integer(pair->planned, "needed_bytes");
  row[0] = vl_document_format(document, "%s", name);
  row[1] = vl_document_format(document, "%s", recipe != NULL ? recipe : "unnamed");
  row[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(pair->measured));
  row[3] = vl_document_format(document, "%s", device);
  row[4] = vl_document_gib(document, vl_record_integer(pair->measured, "peak_allocated_bytes"));
  row[5] = vl_document_gib(document, vl_record_integer(pair->planned, "peak_allocated_bytes"));
  row[6] = off_by(document, pair, "peak_allocated_bytes");
  row[7] = vl_document_gib(document, vl_record_integer(pair->measured, "needed_bytes"));
  row[8] = vl_document_gib(document, low > 0 ? low : high);
  row[9] = vl_document_gib(document, high);
  row[10] = off_by(document, pair, "needed_bytes");
}

/* The pairs of all workloads; free() them. */
static Pair *all_pairs(const RecordSet *records, int32_t *count) {
  Workload workloads[VL_MAX_WORKLOADS];
  Pair *pairs = vl_allocate(sizeof(*pairs) * (size_t)(records->count + 1));
  int32_t workload_count = vl_select_workloads(records, workloads);
  *count = 0;
  for (int32_t w = 0; w < workload_count; w++) {
    RecordSet cells = vl_select_workload(records, &workloads[w], ENGINES_OURS);
    *count += pairs_of(&cells, pairs + *count);
    free(cells.records);
  }
  return pairs;
}

/* Of what was measured, without its sign; NaN where one of both is not known, or nothing was measured. */
static double error_percent(const Pair *pair, const char *column) {
  double planned = vl_record_real(pair->planned, column), measured = vl_record_real(pair->measured, column);
  if (planned == measured) return 0;
  return measured > 0 ? 100.0 * fabs(planned - measured) / measured : NAN;
}

int32_t vl_report_count_planned(const RecordSet *records, double *worst) {
  int32_t count;
  Pair *pairs = all_pairs(records, &count);
  *worst = 0;
  for (int32_t i = 0; i < count; i++)
    *worst = fmax(*worst, error_percent(&pairs[i], "peak_allocated_bytes"));
  free(pairs);
  return count;
}

/* ---- By category ------------------------------------------------------------------------------------------------ */

/* What one number of the pairs is off by. */
static void category_row(Document *document, const Pair *pairs, int32_t count, const char *name,
                         const char *column, const char **row) {
  int32_t known = 0, exact = 0;
  int64_t worst = 0;
  double percent = 0;
  for (int32_t i = 0; i < count; i++) {
    int64_t planned = vl_record_integer(pairs[i].planned, column),
            measured = vl_record_integer(pairs[i].measured, column);
    if (planned < 0 || measured < 0) continue;
    known++;
    exact += planned == measured;
    if (llabs(planned - measured) > llabs(worst)) worst = planned - measured;
    percent = fmax(percent, error_percent(&pairs[i], column));
  }
  row[0] = name;
  row[1] = vl_document_format(document, "%d", known);
  row[2] = vl_document_format(document, "%d", exact);
  if (known == 0) return;
  row[3] = vl_document_format(document, "%+.2f", (double)worst / 0x1p20);
  row[4] = vl_document_format(document, "%.2f", percent);
}

static void add_categories(Document *document, const Pair *pairs, int32_t count) {
  static const TableColumn its_columns[] = {{"number", "", false},
                                            {"compared", "cells", true},
                                            {"the same to the byte", "cells", true},
                                            {"farthest off", "MiB", true},
                                            {"farthest off, of the measured", "%", true}};
  Passage *table = vl_document_add(document, PASSAGE_TABLE, false, "Error of the plan by category");
  vl_document_table(document, table, its_columns, sizeof(its_columns) / sizeof(its_columns[0]),
                    MEMORY_CATEGORY_COUNT + 3);
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
    char path[96];
    const char *name = vl_memory_category_name((MemoryCategory)c);
    snprintf(path, sizeof(path), "peak_by_category.%s", name);
    category_row(document, pairs, count, name, path, table->rows[c]);
  }
  const char ***sums = table->rows + MEMORY_CATEGORY_COUNT;
  category_row(document, pairs, count, "peak allocated", "peak_allocated_bytes", sums[0]);
  category_row(document, pairs, count, "peak reserved", "peak_reserved_bytes", sums[1]);
  category_row(document, pairs, count, "needed", "needed_bytes", sums[2]);
}

void vl_report_planned(Document *document, const RecordSet *records) {
  int32_t count;
  Pair *pairs = all_pairs(records, &count);
  if (count > 0) {
    vl_document_add(document, PASSAGE_HEADING, false, "Predictions");
    add_categories(document, pairs, count);
    Passage *passage = vl_document_add(document, PASSAGE_TABLE, false, "Measured beside planned");
    vl_document_table(document, passage, columns, COLUMNS, count);
    for (int32_t r = 0; r < count; r++)
      fill_row(document, &pairs[r], passage->rows[r]);
    vl_document_add(
        document, PASSAGE_NOTE, false,
        "Planned for the same hardware, the machine's own cpu or a profile of the card. A profile says from "
        "what to what context and libraries take; the plan that decides is the upper end, and off by is its "
        "difference to what was measured.");
  }
  free(pairs);
}
