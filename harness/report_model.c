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

/* ---- Where the peak goes ------------------------------------------------------------------------------------------- */

static void add_parts(Document *document, const json_t *record) {
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
  Passage *passage = vl_document_add(document, PASSAGE_BARS, true, caption);
  vl_document_table(document, passage, columns, 3, known);
  for (int32_t r = 0; r < known; r++) {
    passage->shares[r] = needed > 0 ? (double)parts.bytes[order[r]] / (double)needed : 0;
    passage->rows[r][0] = vl_part_name(order[r]);
    passage->rows[r][1] = vl_document_gib(document, parts.bytes[order[r]]);
    passage->rows[r][2] = needed > 0 ? vl_document_format(document, "%.1f", 100 * passage->shares[r]) : "n/a";
  }
  if (!parts.complete)
    vl_document_add(document, PASSAGE_NOTE, true, "Not every category is known, so they do not add up.");
}

/* ---- Claims -------------------------------------------------------------------------------------------------------------- */

static void fill_claim(Document *document, const ClaimVerdict *verdict, Passage *passage) {
  ClaimPassage *claim = vl_arena_allocate(document->arena, sizeof(*claim));
  const Claim *of = verdict->claim;
  char scope[2 * VL_SCOPE_BYTES], fixed[VL_SCOPE_BYTES];
  vl_claim_scope(verdict, scope, sizeof(scope));
  vl_claim_fixed_text(verdict, fixed, sizeof(fixed));
  /* Borrowed text belongs to the claims file, which outlives the document only by the caller's promise: copy.
   */
  claim->id = vl_document_format(document, "%s", of->id);
  claim->verdict = vl_verdict_name(verdict->verdict);
  claim->section = vl_document_format(document, "%s", of->section);
  claim->sentence = vl_document_format(document, "%s", of->sentence);
  claim->translation = vl_document_format(document, "%s", of->translation);
  claim->scope = vl_document_format(document, "%s", scope);
  claim->numbers = vl_document_format(document, "%s", verdict->numbers);
  claim->command = vl_document_format(document, "%s", of->command);
  claim->trap = vl_document_format(document, "%s", of->trap);
  claim->region = vl_document_format(document, "%s", fixed);
  claim->findings = vl_arena_allocate(document->arena, sizeof(char *) * (VL_MAX_FINDINGS + 1));
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    const Finding *finding = &verdict->findings[i];
    if (i == verdict->headline) continue;
    claim->findings[claim->finding_count++] = vl_document_format(
        document, "%s%s: %s. %s", finding->scope, finding->in_setting ? "" : " (elsewhere)",
        vl_finding_verdict_name(finding), finding->numbers);
  }
  passage->claim = claim;
  passage->name = claim->id;
}

static bool has_suite(const ReportInput *input, const Claim *claim) {
  for (int32_t s = 0; s < claim->suites->count; s++)
    for (int32_t i = 0; i < input->records.count; i++) {
      const char *suite = vl_record_text(input->records.records[i], "suite");
      if (suite != NULL && strcmp(suite, text_or(claim->suites->items[s]->text, "")) == 0) return true;
    }
  return false;
}

/* Claims of this store's suites; how many. */
static int32_t add_claims(Document *document, const ReportInput *input, PassageKind kind) {
  int32_t added = 0;
  ClaimVerdict *verdict = vl_allocate(sizeof(*verdict));
  for (int32_t i = 0; input->claims != NULL && i < input->claims->count; i++) {
    const Claim *claim = &input->claims->claims[i];
    if (!has_suite(input, claim)) continue;
    vl_claim_decide(claim, &input->records, verdict);
    Passage *passage = vl_document_add(document, kind, kind == PASSAGE_VERDICT, claim->translation);
    fill_claim(document, verdict, passage);
    added++;
  }
  free(verdict);
  return added;
}

/* ---- All cells ------------------------------------------------------------------------------------------------------------- */

/* ---- Provenance ------------------------------------------------------------------------------------------------------------ */

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
    const char *at = strstr(text, word);
    size_t length = strlen(word);
    bool known = at != NULL && (at == text || at[-1] == ' ') && (at[length] == '\0' || at[length] == ',');
    if (known || strlen(text) + length + 4 > sizeof(text)) continue;
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

static void add_figures(Document *document, const ReportInput *input) {
  int32_t opening = opening_figure(input);
  if (input->figures == NULL || input->figures->count < 2) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Figures");
  for (int32_t i = 0; i < input->figures->count; i++) {
    const Figure *figure = &input->figures->figures[i];
    if (is_shown(figure) && i != opening) vl_report_figure(document, figure, false);
  }
  for (int32_t i = 0; i < input->figures->count; i++) {
    const Figure *figure = &input->figures->figures[i];
    if (!figure->drawn)
      vl_document_add(document, PASSAGE_NOTE, false,
                      vl_document_format(document, "Not drawn: %s: %s", figure->title, figure->note));
    else if (figure->sparse)
      vl_document_add(document, PASSAGE_NOTE, false,
                      vl_document_format(document, "In figures/%s.png only: %s: there is one batch.",
                                         figure->name, figure->title));
  }
}

static bool is_mistake(const json_t *record) {
  Recipe recipe;
  const char *text = vl_record_text(record, "recipe");
  return text != NULL && vl_recipe_parse(text, &recipe).code == VL_OK && vl_recipe_mistake(&recipe) != NULL;
}

/* The recipe that needs the least of those with the baseline's results. */
static const json_t *best_of(const Comparison *comparison) {
  const json_t *best = NULL;
  for (int32_t i = 0; i < comparison->count; i++) {
    const json_t *record = comparison->rows[i];
    Outcome outcome = vl_record_equality(record, comparison->baseline).outcome;
    if (is_mistake(record)) continue;
    int64_t needed = vl_record_integer(record, "needed_bytes");
    if (needed < 0 || (outcome != OUTCOME_BITWISE && outcome != OUTCOME_TOLERANCE)) continue;
    if (best == NULL || needed < vl_record_integer(best, "needed_bytes")) best = record;
  }
  return best;
}

static void add_place_and_next(Document *document, const ReportInput *input, const Comparison *comparison) {
  if (input->directory[0] != '\0')
    vl_document_add(document, PASSAGE_PLACE, true,
                    vl_document_format(document, "Report: %s/report.html", input->directory));
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

Status vl_report_make(const ReportInput *input, Document **made) {
  Document *document = *made = vl_document_create();
  set_titles(document, input);
  Workload workloads[VL_MAX_WORKLOADS];
  int32_t count = vl_select_workloads(&input->records, workloads);
  Comparison *comparison = vl_allocate(sizeof(*comparison)), *first = vl_allocate(sizeof(*first));
  if (count == 0) vl_document_add(document, PASSAGE_TEXT, true, "The store holds no finished cell.");
  for (int32_t w = 0; w < count; w++) {
    RecordSet cells = vl_select_workload(&input->records, &workloads[w], ENGINES_ALL);
    vl_select_comparison(&cells, comparison);
    if (w == 0) *first = *comparison;
    if (comparison->count > 0) add_recipes(document, input, &workloads[w], comparison);
    vl_report_peers(document, &cells, &workloads[w]);
    if (w == 0 && comparison->baseline != NULL) add_parts(document, comparison->baseline);
    free(cells.records);
  }
  vl_report_factorials(document, &input->records);
  if (opening_figure(input) >= 0)
    vl_report_figure(document, &input->figures->figures[opening_figure(input)], true);
  if (add_claims(document, input, PASSAGE_VERDICT) == 0)
    vl_document_add(document, PASSAGE_NOTE, true,
                    "No claim of the article is decided by this store's suite.");
  add_place_and_next(document, input, first);
  add_figures(document, input);
  vl_document_add(document, PASSAGE_HEADING, false, "Claims");
  if (add_claims(document, input, PASSAGE_CLAIM) == 0) document->count--;
  vl_report_offloads(document, &input->records);
  vl_report_volumes(document, &input->records);
  vl_report_queues(document, &input->records);
  vl_report_monitors(document, input);
  vl_report_failures(document, &input->records);
  vl_report_planned(document, &input->records);
  vl_report_account(document, &input->records, first);
  vl_report_leaks(document, &input->records);
  if (count > 0) vl_report_cells(document, &input->records);
  vl_report_errors(document, &input->records);
  add_provenance(document, input);
  free(comparison);
  free(first);
  return vl_ok();
}
