/* The report's first page: what was run, how it ended, and what it says. */
#include "harness/report_document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 12, NAME_BYTES = 320 };

static bool is_kind(const json_t *record, const char *kind) {
  const char *its = vl_record_text(record, "kind");
  return strcmp(its != NULL ? its : "cell", kind) == 0;
}

static const char *plural(int32_t count) { return count == 1 ? "" : "s"; }

static void point(Document *document, const char *text) {
  vl_document_add(document, PASSAGE_POINT, false, text);
}

/* ---- Counted by name ------------------------------------------------------------------------------------------- */

typedef struct Tally {
  char names[MAX_NAMES][NAME_BYTES];
  int32_t counts[MAX_NAMES], count;
  int32_t others; /* for which there was no room */
} Tally;

static void tally(Tally *of, const char *name) {
  int32_t at = 0;
  while (at < of->count && strcmp(of->names[at], name) != 0)
    at++;
  if (at == MAX_NAMES) {
    of->others++;
    return;
  }
  if (at == of->count) snprintf(of->names[of->count++], NAME_BYTES, "%s", name);
  of->counts[at]++;
}

/* "6 measured on cpu (...), 18 predicted for plan:cpu" */
static const char *tally_text(Document *document, const Tally *of) {
  const char *text = "";
  for (int32_t i = 0; i < of->count; i++)
    text = vl_document_format(document, "%s%s%d %s", text, i > 0 ? ", " : "", of->counts[i], of->names[i]);
  return of->others > 0 ? vl_document_format(document, "%s, %d others", text, of->others) : text;
}

/* ---- Points ----------------------------------------------------------------------------------------------------- */

static void add_what(Document *document, const RecordSet *records) {
  Tally *devices = vl_allocate(sizeof(*devices));
  int32_t cells = 0, searches = 0;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    char device[256], name[NAME_BYTES];
    searches += is_kind(record, "max-batch");
    if (!is_kind(record, "cell")) continue;
    cells++;
    vl_device_text(record, device, sizeof(device));
    snprintf(name, sizeof(name), "%s %s", vl_record_is_predicted(record) ? "predicted for" : "measured on",
             device);
    tally(devices, name);
  }
  const char *largest = searches == 0
                            ? ""
                            : vl_document_format(document, ", and %d search%s for the largest batch",
                                                 searches, searches == 1 ? "" : "es");
  point(document, vl_document_format(document, "%d cell%s: %s%s.", cells, plural(cells),
                                     tally_text(document, devices), largest));
  free(devices);
}

static void add_ends(Document *document, const RecordSet *records) {
  Tally *ends = vl_allocate(sizeof(*ends));
  int32_t leaking = 0;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    const char *status = vl_record_text(record, "status");
    if (!is_kind(record, "cell")) continue;
    tally(ends, status != NULL ? status : "of unknown end");
    leaking += vl_record_integer(record, "leak_bytes_per_step") > 0;
  }
  bool all_ok = ends->count == 1 && strcmp(ends->names[0], "ok") == 0;
  point(document, all_ok ? "Every cell ended ok."
                         : vl_document_format(document, "How they ended: %s.", tally_text(document, ends)));
  if (leaking > 0)
    point(document, vl_document_format(document, "%d cell%s hold%s more memory after every step.", leaking,
                                       plural(leaking), leaking == 1 ? "s" : ""));
  free(ends);
}

static void add_claims(Document *document, const ReportClaims *claims) {
  if (claims->count == 0) return;
  Tally *verdicts = vl_allocate(sizeof(*verdicts));
  for (int32_t i = 0; i < claims->count; i++)
    tally(verdicts, claims->claims[i]->verdict);
  point(document, vl_document_format(document, "Claims of the article: %s.", tally_text(document, verdicts)));
  free(verdicts);
}

static void add_gates(Document *document, const RecordSet *records) {
  GateCount gates = vl_report_count_gates(records);
  const char *rest =
      gates.promised > 0 ? vl_document_format(document, "; %d could not be checked", gates.promised) : "";
  if (gates.broken > 0)
    point(document, vl_document_format(document,
                                       "BROKEN: the losses of %d of %d recipes that were held against the "
                                       "baseline's differ by more than they promise%s.",
                                       gates.broken, gates.checked, rest));
  else if (gates.checked > 0)
    point(document, vl_document_format(document,
                                       "Results: %d recipe%s held against the baseline's losses, no promise "
                                       "broken%s.",
                                       gates.checked, plural(gates.checked), rest));
}

static void add_planned(Document *document, const RecordSet *records) {
  double worst;
  int32_t count = vl_report_count_planned(records, &worst);
  if (count > 0)
    point(document,
          vl_document_format(document,
                             "Plans: %d measured cell%s planned too, the allocated peak off by at most "
                             "%.2f %%.",
                             count, plural(count), worst));
}

static void add_disturbed(Document *document, const RecordSet *records) {
  int32_t timed = 0, disturbed = 0;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (!isfinite(vl_record_real(record, "step_s")) || vl_record_is_predicted(record)) continue;
    timed++;
    disturbed += vl_record_text(record, "disturbed") != NULL;
  }
  if (disturbed > 0)
    point(document, vl_document_format(document, "Disturbed while they were timed: %d of %d cell%s.",
                                       disturbed, timed, plural(timed)));
}

/* ---- Savings ---------------------------------------------------------------------------------------------------- */

static void fill_saving(Document *document, const Comparison *comparison, const json_t *record,
                        const char **row) {
  char name[256];
  const json_t *baseline = comparison->baseline;
  Workload workload = vl_record_workload(record);
  vl_workload_text(&workload, name, sizeof(name));
  int64_t needed = vl_record_integer(record, "needed_bytes"),
          before = vl_record_integer(baseline, "needed_bytes");
  bool timed = !vl_record_is_emulated(record) && !vl_record_is_emulated(baseline);
  double speed = vl_record_real(record, "samples_per_s") / vl_record_real(baseline, "samples_per_s");
  Equality equality = vl_record_equality(record, baseline);
  row[0] = vl_document_format(document, "%s", name);
  row[1] = vl_document_format(document, "%lld", (long long)comparison->batch);
  row[2] = vl_document_format(document, "%s", vl_record_text(record, "recipe"));
  row[3] = vl_document_gib(document, before);
  row[4] = vl_document_gib(document, needed);
  row[5] = vl_document_number(document, "%.0f", 100 * (1 - (double)needed / (double)before));
  row[6] = vl_document_number(document, "%.2f", timed ? speed : NAN);
  row[7] = vl_document_format(document, "%s%s", vl_outcome_name(equality.outcome),
                              equality.checked ? "" : " (promised)");
  row[8] = vl_record_is_predicted(record) ? "predicted" : "measured";
}

enum { SAVINGS = 2 };

/* The leanest recipe with the baseline's results bit for bit, and the leanest within tolerance where that
 * needs less still. */
static int32_t savings_of(const Comparison *comparison, const json_t *savings[SAVINGS]) {
  static const Outcome outcomes[SAVINGS] = {OUTCOME_BITWISE, OUTCOME_TOLERANCE};
  int32_t count = 0;
  if (comparison->baseline == NULL) return 0;
  int64_t least = vl_record_integer(comparison->baseline, "needed_bytes");
  for (int32_t i = 0; i < SAVINGS; i++) {
    const json_t *leanest = vl_select_leanest(comparison, outcomes[i]);
    if (leanest == NULL || vl_record_integer(leanest, "needed_bytes") >= least) continue;
    least = vl_record_integer(leanest, "needed_bytes");
    savings[count++] = leanest;
  }
  return count;
}

static void add_savings(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {
      {"workload", "", false},       {"batch", "samples", true}, {"recipe", "", false},
      {"before", "GiB", true},       {"needs", "GiB", true},     {"saved", "%", true},
      {"speed", "x baseline", true}, {"results", "", false},     {"numbers are", "", false}};
  Workload workloads[VL_MAX_WORKLOADS];
  Comparison *comparisons = vl_allocate(sizeof(*comparisons) * VL_MAX_WORKLOADS);
  int32_t count = vl_select_workloads(records, workloads), rows = 0, row = 0;
  const json_t *savings[SAVINGS];
  for (int32_t w = 0; w < count; w++) {
    RecordSet cells = vl_select_workload(records, &workloads[w], ENGINES_OURS);
    vl_select_comparison(&cells, &comparisons[w]);
    rows += savings_of(&comparisons[w], savings);
    free(cells.records);
  }
  if (rows > 0) {
    Passage *table =
        vl_document_add(document, PASSAGE_TABLE, false, "The largest savings, and what they cost");
    vl_document_table(document, table, columns, sizeof(columns) / sizeof(columns[0]), rows);
    for (int32_t w = 0; w < count; w++) {
      int32_t its = savings_of(&comparisons[w], savings);
      for (int32_t i = 0; i < its; i++)
        fill_saving(document, &comparisons[w], savings[i], table->rows[row++]);
    }
  }
  free(comparisons);
}

void vl_report_summary(Document *document, const ReportInput *input, const ReportClaims *claims) {
  const RecordSet *records = &input->records;
  vl_document_add(document, PASSAGE_HEADING, false, "Summary");
  add_what(document, records);
  add_ends(document, records);
  add_claims(document, claims);
  add_gates(document, records);
  add_planned(document, records);
  add_disturbed(document, records);
  add_savings(document, records);
}
