/* What the memory of each cell should be, reckoned from what is needed when, beside what was asked for: in
 * all for every cell, category by category and term by term for the recipes of one batch. */
#include "harness/report_document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t in_category(const json_t *record, const char *group, int32_t category) {
  char path[96];
  snprintf(path, sizeof(path), "%s.%s", group, vl_memory_category_name((MemoryCategory)category));
  return vl_record_integer(record, path);
}

static bool is_reckoned(const json_t *record) {
  return vl_record_has_status(record, "ok") && !vl_record_is_peer(record) &&
         in_category(record, "analytic_by_category", MEMORY_PARAMETER) >= 0;
}

/* In percent of the parts; NaN where there is nothing. */
static double difference_in(const json_t *record, int32_t category) {
  int64_t asked = in_category(record, "requested_by_category", category),
          parts = in_category(record, "analytic_by_category", category);
  if (asked < 0 || parts < 0 || (asked == 0 && parts == 0)) return NAN;
  return parts > 0 ? 100.0 * (double)(asked - parts) / (double)parts : 100.0;
}

static const char *mib(Document *document, int64_t bytes) {
  return vl_document_format(document, "%.2f", (double)bytes / 0x1p20);
}

static const char *recipe_of(Document *document, const json_t *record) {
  const char *recipe = vl_record_text(record, "recipe");
  return vl_document_format(document, "%s", recipe != NULL ? recipe : "unnamed");
}

/* ---- Every cell ------------------------------------------------------------------------------------------------- */

static const TableColumn cell_columns[] = {{"workload", "", false},          {"recipe", "", false},
                                           {"micro-batch", "samples", true}, {"peak at", "", false},
                                           {"asked for", "GiB", true},       {"sum of parts", "GiB", true},
                                           {"worst category", "", false},    {"off by", "%", true},
                                           {"blocks add", "MiB", true},      {"of it rounding", "MiB", true}};
enum { CELL_COLUMNS = sizeof(cell_columns) / sizeof(cell_columns[0]) };

static int64_t rounding_of(const json_t *record) {
  const json_t *terms = json_object_get(record, "analytic_terms");
  int64_t rounding = 0;
  for (size_t i = 0; i < json_array_size(terms); i++)
    rounding += vl_record_integer(json_array_get(terms, i), "rounding_bytes");
  return rounding;
}

static void cell_row(Document *document, const json_t *record, const char **cells) {
  char name[256];
  Workload workload = vl_record_workload(record);
  vl_workload_text(&workload, name, sizeof(name));
  const char *peak = vl_record_text(record, "analytic_peak");
  int64_t asked = 0, parts = 0, allocated = 0;
  int32_t worst = MEMORY_PARAMETER;
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
    asked += in_category(record, "requested_by_category", c);
    parts += in_category(record, "analytic_by_category", c);
    allocated += in_category(record, "peak_by_category", c);
    if (fabs(difference_in(record, c)) > fabs(difference_in(record, worst))) worst = c;
  }
  double off = difference_in(record, worst);
  cells[0] = vl_document_format(document, "%s", name);
  cells[1] = recipe_of(document, record);
  cells[2] = vl_document_format(document, "%lld", (long long)vl_record_integer(record, "micro_batch"));
  cells[3] = vl_document_format(document, "%s", peak != NULL ? peak : "n/a");
  cells[4] = vl_document_format(document, "%.3f", vl_bytes_to_gib(asked));
  cells[5] = vl_document_format(document, "%.3f", vl_bytes_to_gib(parts));
  cells[6] = off != 0 ? vl_memory_category_name((MemoryCategory)worst) : "none";
  cells[7] = vl_document_format(document, "%.2f", off);
  cells[8] = mib(document, allocated - asked);
  cells[9] = mib(document, rounding_of(record));
}

static void add_cells(Document *document, const RecordSet *records, int32_t count) {
  Passage *passage =
      vl_document_add(document, PASSAGE_TABLE, false,
                      "What each cell asked for at its allocated peak, and the sum of its parts");
  vl_document_table(document, passage, cell_columns, CELL_COLUMNS, count);
  for (int32_t i = 0, row = 0; i < records->count; i++)
    if (is_reckoned(records->records[i])) cell_row(document, records->records[i], passage->rows[row++]);
}

/* ---- Terms ------------------------------------------------------------------------------------------------------ */

static const TableColumn term_columns[] = {
    {"recipe", "", false},  {"category", "", false},    {"part", "", false},      {"count", "tensors", true},
    {"parts", "MiB", true}, {"asked for", "MiB", true}, {"difference", "%", true}};
enum { TERM_COLUMNS = sizeof(term_columns) / sizeof(term_columns[0]) };

static bool is_in(const json_t *term, int32_t category) {
  const char *its = vl_record_text(term, "category");
  return its != NULL && strcmp(its, vl_memory_category_name((MemoryCategory)category)) == 0;
}

/* The category's sum, then its terms. rows NULL: only how many there are. */
static int32_t category_rows(Document *document, const json_t *record, int32_t category, const char ***rows) {
  const json_t *terms = json_object_get(record, "analytic_terms");
  int32_t count = 0;
  for (size_t i = 0; i < json_array_size(terms); i++) {
    const json_t *term = json_array_get(terms, i);
    const char *name = vl_record_text(term, "term");
    if (!is_in(term, category)) continue;
    count++;
    if (rows == NULL) continue;
    const char **cells = rows[count];
    cells[0] = cells[1] = cells[5] = cells[6] = "";
    cells[2] = vl_document_format(document, "%s", name != NULL ? name : "n/a");
    cells[3] = vl_document_format(document, "%lld", (long long)vl_record_integer(term, "count"));
    cells[4] = mib(document, vl_record_integer(term, "bytes"));
  }
  if (rows != NULL && count > 0) {
    const char **cells = rows[0];
    cells[0] = recipe_of(document, record);
    cells[1] = vl_memory_category_name((MemoryCategory)category);
    cells[2] = "in all";
    cells[3] = "";
    cells[4] = mib(document, in_category(record, "analytic_by_category", category));
    cells[5] = mib(document, in_category(record, "requested_by_category", category));
    cells[6] = vl_document_format(document, "%.2f", difference_in(record, category));
  }
  return count > 0 ? count + 1 : 0;
}

enum { MOST_RECIPES = 12 }; /* whose terms are told; results.h5 has those of every cell */

static void add_terms(Document *document, const Comparison *comparison) {
  int32_t count = 0, row = 0;
  int32_t recipes = comparison->count < MOST_RECIPES ? comparison->count : MOST_RECIPES;
  for (int32_t r = 0; r < recipes; r++)
    for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT && is_reckoned(comparison->rows[r]); c++)
      count += category_rows(document, comparison->rows[r], c, NULL);
  if (count == 0) return;
  Passage *passage = vl_document_add(document, PASSAGE_TABLE, false,
                                     vl_document_format(document, "The parts of %s recipe%s, batch %lld",
                                                        recipes < comparison->count ? "the first" : "every",
                                                        recipes < comparison->count ? "s" : "",
                                                        (long long)comparison->batch));
  vl_document_table(document, passage, term_columns, TERM_COLUMNS, count);
  for (int32_t r = 0; r < recipes; r++)
    for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT && is_reckoned(comparison->rows[r]); c++)
      row += category_rows(document, comparison->rows[r], c, &passage->rows[row]);
}

void vl_report_account(Document *document, const RecordSet *records, const Comparison *comparison) {
  int32_t count = 0;
  for (int32_t i = 0; i < records->count; i++)
    count += is_reckoned(records->records[i]);
  if (count == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Every byte explained");
  add_cells(document, records, count);
  add_terms(document, comparison);
  vl_document_add(
      document, PASSAGE_NOTE, false,
      "Parts are reckoned from the program: a tensor counts from the node that makes it to the last "
      "that needs it. Saved: made in the forward pass and needed later. Made again: by "
      "recomputation. Passing: made and used up in backward. Blocks add what they are rounded up by, "
      "and rests that are too small to be split off.");
}
