/* The report's content, from a store's records alone. */
#include "harness/report_document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *text_or(const char *text, const char *otherwise) {
  return text != NULL ? text : otherwise;
}

/* ---- Recipes --------------------------------------------------------------------------------------------------------- */

enum { RECIPE_COLUMNS = 6 };

/* Saved, speed and results need the baseline; what did not run shows its status where its need would stand.
 */
static void recipe_row(Document *document, const ReportInput *input, const Workload *workload,
                       const Comparison *comparison, int32_t row, const int64_t *capacities,
                       int32_t capacity_count, const char **cells) {
  const json_t *record = comparison->rows[row], *baseline = comparison->baseline;
  bool ok = vl_record_has_status(record, "ok"), emulated = vl_record_is_emulated(record);
  int64_t needed = ok ? vl_record_integer(record, "needed_bytes") : -1;
  double speed = ok && !emulated ? vl_record_real(record, "samples_per_s") : NAN;
  const char *recipe = text_or(vl_record_text(record, "recipe"), "unnamed");
  cells[0] = vl_document_format(document, "%s%s", recipe, emulated ? " (emulated)" : "");
  cells[1] = ok ? vl_document_gib(document, needed) : text_or(vl_record_text(record, "status"), "n/a");
  if (isfinite(speed)) cells[3] = vl_document_format(document, "%.2f", speed);
  if (ok) {
    Equality equality = vl_record_equality(record, baseline);
    cells[5] =
        vl_document_format(document, "%s%s", vl_outcome_name(equality.outcome),
                           equality.checked || equality.outcome == OUTCOME_UNKNOWN ? "" : " (promised)");
  }
  int64_t base_needed = baseline != NULL ? vl_record_integer(baseline, "needed_bytes") : -1;
  double base_speed = baseline != NULL ? vl_record_real(baseline, "samples_per_s") : NAN;
  if (needed >= 0 && base_needed > 0)
    cells[2] = vl_document_format(document, "%.0f", 100 * (1 - (double)needed / (double)base_needed));
  if (isfinite(speed) && base_speed > 0) cells[4] = vl_document_format(document, "%.2f", speed / base_speed);
  for (int32_t c = 0; c < capacity_count; c++) {
    int64_t batch = vl_select_max_batch(&input->records, workload, recipe, capacities[c]);
    if (batch >= 0) cells[RECIPE_COLUMNS + c] = vl_document_format(document, "%lld", (long long)batch);
  }
}

/* Whose largest batches they are. */
static const char *max_batch_source(Document *document, const RecordSet *records) {
  for (int32_t i = 0; i < records->count; i++) {
    const char *kind = vl_record_text(records->records[i], "kind");
    if (kind == NULL || strcmp(kind, "max-batch") != 0) continue;
    char device[256];
    vl_device_text(records->records[i], device, sizeof(device));
    return vl_document_format(document, "Fits: the largest batch under that capacity, %s for %s.",
                              vl_record_is_predicted(records->records[i]) ? "predicted" : "measured", device);
  }
  return "";
}

static void add_recipes(Document *document, const ReportInput *input, const Workload *workload,
                        const Comparison *comparison) {
  int64_t capacities[VL_MAX_CAPACITIES];
  int32_t capacity_count = vl_select_capacities(&input->records, workload, capacities);
  TableColumn columns[RECIPE_COLUMNS + VL_MAX_CAPACITIES] = {
      {"recipe", "", false},    {"needs", "GiB", true},        {"saved", "%", true},
      {"samples", "1/s", true}, {"speed", "x baseline", true}, {"results", "", false}};
  for (int32_t c = 0; c < capacity_count; c++)
    columns[RECIPE_COLUMNS + c] = (TableColumn){
        vl_document_format(document, "fits at %.4g GiB", vl_bytes_to_gib(capacities[c])), "samples", true};
  char name[256], device[256];
  vl_workload_text(workload, name, sizeof(name));
  vl_device_text(comparison->rows[0], device, sizeof(device));
  const char *caption =
      vl_document_format(document, "%s, batch %lld, %s on %s", name, (long long)comparison->batch,
                         vl_record_is_predicted(comparison->rows[0]) ? "predicted" : "measured", device);
  Passage *passage = vl_document_add(document, PASSAGE_TABLE, true, caption);
  vl_document_table(document, passage, columns, RECIPE_COLUMNS + capacity_count, comparison->count);
  for (int32_t r = 0; r < comparison->count; r++)
    recipe_row(document, input, workload, comparison, r, capacities, capacity_count, passage->rows[r]);
  if (capacity_count > 0)
    vl_document_add(document, PASSAGE_NOTE, true, max_batch_source(document, &input->records));
}

/* ---- Time and categories ---------------------------------------------------------------------------------------- */

enum { TIME_COLUMNS = 4 };

/* Parts that any of the recipes has; how many. */
static int32_t parts_of_any(const Comparison *comparison, int32_t *parts) {
  int32_t count = 0;
  for (int32_t p = 0; p < VL_PART_COUNT; p++) {
    bool any = false;
    for (int32_t r = 0; r < comparison->count; r++)
      any = any || vl_record_parts(comparison->rows[r]).bytes[p] > 0;
    if (any) parts[count++] = p;
  }
  return count;
}

/* The step with its interval, and where the needed bytes of every recipe go. */
static void add_times_and_parts(Document *document, const Comparison *comparison) {
  TableColumn columns[TIME_COLUMNS + VL_PART_COUNT] = {
      {"recipe", "", false}, {"step, median", "s", true}, {"from", "s", true}, {"to", "s", true}};
  int32_t parts[VL_PART_COUNT], part_count = parts_of_any(comparison, parts);
  for (int32_t p = 0; p < part_count; p++)
    columns[TIME_COLUMNS + p] = (TableColumn){vl_part_name(parts[p]), "GiB", true};
  Passage *table = vl_document_add(document, PASSAGE_TABLE, false,
                                   "How long a step takes, and where the needed memory of each recipe goes");
  vl_document_table(document, table, columns, TIME_COLUMNS + part_count, comparison->count);
  for (int32_t r = 0; r < comparison->count; r++) {
    const json_t *record = comparison->rows[r];
    const char **row = table->rows[r];
    row[0] = vl_document_format(document, "%s", text_or(vl_record_text(record, "recipe"), "unnamed"));
    if (!vl_record_has_status(record, "ok")) continue;
    bool timed = !vl_record_is_emulated(record);
    row[1] = vl_document_number(document, "%.4g", timed ? vl_record_real(record, "step_s") : NAN);
    row[2] = vl_document_number(document, "%.4g", timed ? vl_record_real(record, "step_s_low") : NAN);
    row[3] = vl_document_number(document, "%.4g", timed ? vl_record_real(record, "step_s_high") : NAN);
    for (int32_t p = 0; p < part_count; p++) {
      int64_t bytes = vl_record_parts(record).bytes[parts[p]];
      if (bytes >= 0) row[TIME_COLUMNS + p] = vl_document_format(document, "%.3f", vl_bytes_to_gib(bytes));
    }
  }
}

/* ---- Where the peak goes ------------------------------------------------------------------------------------------- */

static void add_parts(Document *document, const json_t *record, bool first_screen) {
  static const TableColumn columns[] = {{"category", "", false}, {"peak", "GiB", true}, {"share", "%", true}};
  MemoryParts parts = vl_record_parts(record);
  int64_t needed = vl_record_integer(record, "needed_bytes");
  int32_t order[VL_PART_COUNT], known = 0;
  for (int32_t p = 0; p < VL_PART_COUNT; p++) {
    if (parts.bytes[p] <= 0) continue;
    int32_t at = known++;
    for (; at > 0 && parts.bytes[order[at - 1]] < parts.bytes[p]; at--)
      order[at] = order[at - 1];
    order[at] = p;
  }
  const char *caption = vl_document_format(
      document, "Where the %s GiB of %s go (at its peak, batch %lld%s)", vl_document_gib(document, needed),
      text_or(vl_record_text(record, "recipe"), "unnamed"), (long long)vl_record_batch(record),
      vl_record_is_predicted(record) ? ", predicted" : "");
  Passage *passage = vl_document_add(document, PASSAGE_BARS, first_screen, caption);
  vl_document_table(document, passage, columns, 3, known);
  for (int32_t r = 0; r < known; r++) {
    passage->shares[r] = needed > 0 ? (double)parts.bytes[order[r]] / (double)needed : 0;
    passage->rows[r][0] = vl_part_name(order[r]);
    passage->rows[r][1] = vl_document_gib(document, parts.bytes[order[r]]);
    passage->rows[r][2] = needed > 0 ? vl_document_format(document, "%.1f", 100 * passage->shares[r]) : "n/a";
  }
  if (!parts.complete)
    vl_document_add(document, PASSAGE_NOTE, first_screen,
                    "Not every category is known, so they do not add up.");
}

/* ---- Provenance ------------------------------------------------------------------------------------------------------------ */

/* Whether a word stands in a comma-separated list, whole: "cpu" is not in "plan:cpu". */
static bool is_listed(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *at = strstr(list, word); at != NULL; at = strstr(at + 1, word)) {
    bool begins = at == list || (at - list >= 2 && at[-1] == ' ' && at[-2] == ',');
    if (begins && (at[length] == '\0' || at[length] == ',')) return true;
  }
  return false;
}

/* Distinct values of a field over all cells, comma-separated. */
static const char *distinct(Document *document, const RecordSet *records, const char *path) {
  char text[1024] = "";
  for (int32_t i = 0; i < records->count; i++) {
    char digits[32], word[256];
    const char *value = vl_record_text(records->records[i], path);
    int64_t number = vl_record_integer(records->records[i], path);
    snprintf(digits, sizeof(digits), "%lld", (long long)number);
    if (value == NULL && number >= 0) value = digits;
    if (value == NULL) continue;
    snprintf(word, sizeof(word), "%s", value);
    if (word[0] == '\0' || is_listed(text, word) || strlen(text) + strlen(word) + 4 > sizeof(text)) continue;
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", text[0] != '\0' ? ", " : "", word);
  }
  return vl_document_format(document, "%s", text[0] != '\0' ? text : "n/a");
}

static void add_provenance(Document *document, const ReportInput *input) {
  static const TableColumn columns[] = {{"what", "", false}, {"value", "", false}};
  static const struct {
    const char *name, *path;
  } facts[] = {{"suite", "suite"},
               {"devices", "device_name"},
               {"hardware", "hardware"},
               {"instruction set", "isa"},
               {"library", "library"},
               {"threads", "threads"},
               {"seed", "seed"},
               {"hosts", "hostname"},
               {"vramlab", "tool_version"},
               {"git commit", "git_commit"}};
  enum { FACTS = sizeof(facts) / sizeof(facts[0]) };
  vl_document_add(document, PASSAGE_HEADING, false, "Provenance");
  Passage *passage = vl_document_add(document, PASSAGE_TABLE, false, "What the numbers were made with");
  vl_document_table(document, passage, columns, 2, FACTS + 3);
  for (int32_t i = 0; i < FACTS; i++) {
    passage->rows[i][0] = facts[i].name;
    passage->rows[i][1] = distinct(document, &input->records, facts[i].path);
  }
  const char *command = input->head != NULL ? vl_record_text(input->head, "command_line") : NULL;
  const char *created = input->head != NULL ? vl_record_text(input->head, "created_utc") : NULL;
  passage->rows[FACTS][0] = "command line";
  passage->rows[FACTS][1] = vl_document_format(document, "%s", text_or(command, "n/a"));
  passage->rows[FACTS + 1][0] = "created";
  passage->rows[FACTS + 1][1] = vl_document_format(document, "%s", text_or(created, "n/a"));
  passage->rows[FACTS + 2][0] = "store";
  passage->rows[FACTS + 2][1] =
      vl_document_format(document, "%s", input->directory[0] ? input->directory : "n/a");
  vl_document_add(
      document, PASSAGE_NOTE, false,
      "GiB is 2^30 bytes. Needed is the larger of the warm-up and the steady reserved peak, plus what "
      "libraries hold: what decides whether it fits. Step memory is the driver's peak above the process with "
      "weights and input ready. Measured numbers come from a run, predicted ones "
      "from the planner, which runs nothing; emulated cells stand in for hardware that is not there, "
      "and their speed is left out. n/a: not known.");
}

/* ---- The whole ---------------------------------------------------------------------------------------------------------------- */

void vl_report_figure(Document *document, const Figure *figure, bool first_screen) {
  Passage *passage = vl_document_add(document, PASSAGE_FIGURE, first_screen, figure->title);
  passage->name = vl_document_format(document, "%s", figure->name);
  if (figure->note[0] != '\0') vl_document_add(document, PASSAGE_NOTE, false, figure->note);
}

/* Among the figures. */
static bool is_shown(const Figure *figure) {
  return figure->drawn && !figure->sparse && !vl_report_is_of_monitors(figure);
}

/* The figure the report opens with; -1: there is none. */
static int32_t opening_figure(const ReportInput *input) {
  for (int32_t i = 0; input->figures != NULL && i < input->figures->count; i++)
    if (is_shown(&input->figures->figures[i])) return i;
  return -1;
}

/* Figures that the report leaves out, and why. */
static void add_not_drawn(Document *document, const ReportInput *input) {
  static const TableColumn columns[] = {{"figure", "", false}, {"why it is not here", "", false}};
  int32_t count = 0, row = 0;
  for (int32_t i = 0; i < input->figures->count; i++)
    count += !input->figures->figures[i].drawn || input->figures->figures[i].sparse;
  if (count == 0) return;
  Passage *table = vl_document_add(document, PASSAGE_TABLE, false, "Figures that are not here");
  vl_document_table(document, table, columns, 2, count);
  table->collapsed = true;
  for (int32_t i = 0; i < input->figures->count; i++) {
    const Figure *figure = &input->figures->figures[i];
    if (figure->drawn && !figure->sparse) continue;
    table->rows[row][0] = vl_document_format(document, "%s", figure->title);
    table->rows[row++][1] =
        figure->drawn
            ? vl_document_format(document, "there is one batch; it is in figures/%s.png", figure->name)
            : vl_document_format(document, "%s", figure->note);
  }
}

static void add_figures(Document *document, const ReportInput *input) {
  int32_t opening = opening_figure(input);
  if (input->figures == NULL || input->figures->count < 2) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Figures");
  for (int32_t i = 0; i < input->figures->count; i++) {
    const Figure *figure = &input->figures->figures[i];
    if (is_shown(figure) && i != opening) vl_report_figure(document, figure, false);
  }
  add_not_drawn(document, input);
}

/* The recipe that needs the least of those with the baseline's results. */
static const json_t *best_of(const Comparison *comparison) {
  const json_t *bitwise = vl_select_leanest(comparison, OUTCOME_BITWISE),
               *close = vl_select_leanest(comparison, OUTCOME_TOLERANCE);
  if (bitwise == NULL || close == NULL) return bitwise != NULL ? bitwise : close;
  return vl_record_integer(close, "needed_bytes") < vl_record_integer(bitwise, "needed_bytes") ? close
                                                                                               : bitwise;
}

static void add_place_and_next(Document *document, const ReportInput *input, const Comparison *comparison) {
  if (input->page != NULL)
    vl_document_add(document, PASSAGE_PLACE, true, vl_document_format(document, "Report: %s", input->page));
  const json_t *best = comparison->count > 0 ? best_of(comparison) : NULL;
  const char *suite = input->head != NULL ? vl_record_text(input->head, "suite") : NULL;
  const char *command = "vramlab claims";
  if (best != NULL && vl_record_text(best, "queue") == NULL) /* which are of one size */
    command = vl_document_format(document, "vramlab max-batch --case %s --recipe \"%s\" --capacity 16GiB%s",
                                 text_or(vl_record_text(best, "case"), "resnet50"),
                                 text_or(vl_record_text(best, "recipe"), "baseline"),
                                 vl_record_flag(best, "inference") ? " --infer" : "");
  if (suite != NULL && strcmp(suite, "quick") == 0) command = "vramlab run resnet-growth";
  vl_document_add(document, PASSAGE_COMMAND, true, command);
}

static void set_titles(Document *document, const ReportInput *input) {
  const char *suite = distinct(document, &input->records, "suite");
  const char *created = input->head != NULL ? vl_record_text(input->head, "created_utc") : NULL;
  document->title =
      vl_document_format(document, "vramlab: %s", strcmp(suite, "n/a") != 0 ? suite : "single runs");
  document->subtitle = vl_document_format(document, "%d records, %s", input->records.count,
                                          text_or(created, "of an unknown date"));
}

/* One workload's chapter. first: NULL, or where the comparison of the first workload is kept, whose
 * baseline's parts are on the first screen. */
static void add_workload(Document *document, const ReportInput *input, const Workload *workload,
                         Comparison *first) {
  char name[256];
  RecordSet cells = vl_select_workload(&input->records, workload, ENGINES_ALL);
  Comparison *comparison = vl_allocate(sizeof(*comparison));
  vl_select_comparison(&cells, comparison);
  vl_workload_text(workload, name, sizeof(name));
  vl_document_add(document, PASSAGE_HEADING, false, name);
  if (comparison->count > 0) {
    add_recipes(document, input, workload, comparison);
    add_times_and_parts(document, comparison);
  } else {
    vl_document_add(
        document, PASSAGE_NOTE, false,
        "No cell of it is compared with others: each ran under a capacity, or by another engine. The "
        "tables of cells below have them all.");
  }
  vl_report_peers(document, &cells, workload);
  if (comparison->baseline != NULL) add_parts(document, comparison->baseline, first != NULL);
  if (first != NULL) *first = *comparison;
  free(comparison);
  free(cells.records);
}

Status vl_report_make(const ReportInput *input, Document **made) {
  Document *document = *made = vl_document_create();
  set_titles(document, input);
  Workload workloads[VL_MAX_WORKLOADS];
  int32_t count = vl_select_workloads(&input->records, workloads);
  Comparison *first = vl_allocate(sizeof(*first));
  ReportClaims claims = vl_report_decide(document, input);
  if (count == 0)
    vl_document_add(document, PASSAGE_TEXT, true, "The store holds no finished cell.");
  else
    vl_report_summary(document, input, &claims);
  if (opening_figure(input) >= 0)
    vl_report_figure(document, &input->figures->figures[opening_figure(input)], true);
  if (claims.count > 0) vl_report_claims(document, &claims);
  for (int32_t w = 0; w < count; w++)
    add_workload(document, input, &workloads[w], w == 0 ? first : NULL);
  vl_report_factorials(document, &input->records);
  if (claims.count == 0) vl_report_claims(document, &claims);
  vl_report_claims_lines(document, &claims);
  add_place_and_next(document, input, first);
  add_figures(document, input);
  vl_report_claims_whole(document, &claims);
  vl_report_gates(document, &input->records);
  vl_report_planned(document, &input->records);
  vl_report_account(document, &input->records, first);
  vl_report_noise(document, &input->records);
  vl_report_offloads(document, &input->records);
  vl_report_volumes(document, &input->records);
  vl_report_queues(document, &input->records);
  vl_report_monitors(document, input);
  vl_report_failures(document, &input->records);
  vl_report_leaks(document, &input->records);
  vl_report_errors(document, &input->records);
  if (count > 0) vl_report_cells(document, &input->records);
  add_provenance(document, input);
  free(first);
  return vl_ok();
}
