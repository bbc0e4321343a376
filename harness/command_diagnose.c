/* vramlab diagnose: the initial state, one step, the difference, the allocation that is anomalous. */
#include "harness/options.h"
#include "harness/progress.h"
#include "harness/report.h"
#include "harness/suite_run.h"

#include <stdlib.h>
#include <string.h>

typedef struct DiagnoseCommand {
  CellOptions cell;
  const char *store;
  bool json, quiet;
} DiagnoseCommand;

enum { KEY_JSON = 0x200 };

static const struct argp_option options_table[] = {
    {"quiet", 'q', NULL, 0, "no progress on stderr", 3}, {"json", KEY_JSON, NULL, 0, "print JSON", 4}, {0}};

static void check_options(const DiagnoseCommand *command, struct argp_state *state) {
  uint32_t given = command->cell.given;
  bool cell = (given & GIVEN_CASE) != 0;
  if (command->store && given) argp_error(state, "a store has its cells already: give no options of a cell");
  if (!command->store && !cell) argp_error(state, "give --case (vramlab list cases), or a store");
  if (command->cell.recipe_count > 1 || command->cell.capacity_count > 1)
    argp_error(state, "one recipe and one capacity at a time");
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  DiagnoseCommand *command = state->input;
  switch (key) {
  case ARGP_KEY_INIT: state->child_inputs[0] = &command->cell; return 0;
  case KEY_JSON: command->json = true; return 0;
  case 'q': command->quiet = true; return 0;
  case ARGP_KEY_ARG:
    if (command->store) argp_error(state, "one store at a time");
    command->store = text;
    return 0;
  case ARGP_KEY_END: check_options(command, state); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {{&vl_cell_argp, 0, NULL, 0}, {0}};
static const struct argp diagnose_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "--case NAME [--recipe RECIPE]\nSTORE",
    .doc =
        "Runs a few steps and holds the last against the account of its program, which knows from the graph "
        "alone what is needed when: what lives when the step begins, what it holds at most, what it leaves "
        "behind. What is anomalous is named with op, scope and bytes, and with what to do about it. Of a "
        "store, the diagnoses of its cells (suites whose cells have `diagnose: true`, as `vramlab run "
        "diagnose`)."
        "\vExit codes: 0 nothing anomalous; 1 something is; 2 bad usage or input; 3 the environment lacks "
        "something; 4 interrupted; 77 skipped, the hardware is not here.",
    .children = children};

/* ---- In words -------------------------------------------------------------------------------------------------- */

static const struct {
  const char *kind, *what, *advice;
} kinds[] = {
    {"retained-graph", "what each step saved for its backward stays",
     "keep loss.item() or loss.detach(), not the loss; no retain_graph=True where one backward is enough"},
    {"kept-loss", "what forward saved lives beyond its last reader",
     "call backward() on each loss as it comes and add up loss.item(); del loss before the optimizer's step"},
    {"weight-copy", "parameters live twice on the device",
     "keep copies (state_dict, averages, masters of weights that are fp32 already) on the host: .cpu()"},
    {"workspace", "a kernel was given more workspace than it needs",
     "bound the search for algorithms: torch.backends.cudnn.benchmark_limit, CUDNN_CONV_WSCAP_DBG, "
     "CUBLAS_WORKSPACE_CONFIG"},
    {"kept-recomputed", "what was made again lives beyond its last reader",
     "hold no reference to activations inside checkpointed code (lists, hooks, attributes of modules)"},
    {"growth", "every step leaves something behind",
     "keep numbers, not tensors: history.append(metric.item()); .detach().cpu() where the tensor is needed"},
    {"held", "something is held that is not of the program",
     "find who holds it: torch.cuda.memory._snapshot()"},
    {"size", "a tensor takes other bytes than it should",
     "compare its shape and type with what the model says"},
};

static const char *told(const char *kind, bool advice) {
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
    if (strcmp(kinds[i].kind, kind) == 0) return advice ? kinds[i].advice : kinds[i].what;
  return "";
}

static bool per_step(const char *kind) {
  return strcmp(kind, "retained-graph") == 0 || strcmp(kind, "growth") == 0;
}

static bool is_diagnosed(const json_t *record) { return json_is_array(json_object_get(record, "anomalies")); }

static bool is_anomalous(const json_t *record) {
  return json_array_size(json_object_get(record, "anomalies")) > 0;
}

/* "+4.350 GiB", "0 B". */
static const char *difference(Document *document, int64_t bytes) {
  char text[32];
  vl_format_bytes(bytes < 0 ? -bytes : bytes, text, sizeof text);
  return vl_document_format(document, "%s%s", bytes > 0 ? "+" : bytes < 0 ? "-" : "", text);
}

static const char *size_text(Document *document, int64_t bytes) {
  return bytes < 0 ? "n/a" : difference(document, bytes) + (bytes > 0 ? 1 : 0);
}

static void fill_row(Document *document, const char **row, const char *part, const char *what, int64_t bytes,
                     int64_t expected) {
  row[0] = part;
  row[1] = what;
  row[2] = size_text(document, bytes);
  row[3] = size_text(document, expected);
  row[4] = difference(document, bytes - expected);
}

static void add_flow(Document *document, const json_t *record) {
  static const TableColumn columns[] = {{"flow", "", false},
                                        {"what", "", false},
                                        {"is", "", true},
                                        {"should be", "", true},
                                        {"difference", "", true}};
  const char *recipe = vl_record_text(record, "recipe"), *device = vl_record_text(record, "device");
  int64_t start = vl_record_integer(record, "diagnosis_start_bytes");
  int64_t rest = vl_record_integer(record, "diagnosis_rest_bytes");
  Passage *table = vl_document_add(
      document, PASSAGE_TABLE, true,
      vl_document_format(document, "%s %s, batch %lld, on %s, %s", vl_record_text(record, "case"),
                         vl_record_flag(record, "inference") ? "inference" : "training",
                         (long long)vl_record_integer(record, "global_batch"), device ? device : "?",
                         recipe && *recipe ? recipe : "baseline"));
  vl_document_table(document, table, columns, 5, 3);
  fill_row(document, table->rows[0], "1 initial state", "live when the step begins", start,
           vl_record_integer(record, "diagnosis_expected_start_bytes") + rest);
  fill_row(document, table->rows[1], "2 one step", "live at most",
           vl_record_integer(record, "diagnosis_peak_bytes"),
           vl_record_integer(record, "diagnosis_expected_peak_bytes") + rest);
  fill_row(document, table->rows[2], "3 difference", "left behind",
           vl_record_integer(record, "diagnosis_end_bytes") - start, 0);
}

static void add_anomaly(Document *document, const json_t *anomaly) {
  const char *kind = vl_record_text(anomaly, "kind"), *scope = vl_record_text(anomaly, "scope");
  long long bytes = vl_record_integer(anomaly, "bytes"), tensors = vl_record_integer(anomaly, "tensors");
  vl_document_add(document, PASSAGE_TEXT, true,
                  vl_document_format(document, "4 anomaly: %s, %lld bytes%s (%s)", kind, bytes,
                                     per_step(kind) ? " a step" : "", size_text(document, bytes)));
  vl_document_add(
      document, PASSAGE_NOTE, true,
      vl_document_format(
          document, "%s: %lld tensor%s%s; op %s, scope %s, tensor %s%s.", told(kind, false), tensors,
          tensors == 1 ? "" : "s", tensors == 1 ? "" : ", the largest first", vl_record_text(anomaly, "op"),
          *scope ? scope : "(the model)", vl_record_text(anomaly, "tensor"),
          tensors == 1 ? ""
                       : vl_document_format(document, ", %lld bytes",
                                            (long long)vl_record_integer(anomaly, "largest_bytes"))));
  vl_document_add(document, PASSAGE_NOTE, true,
                  vl_document_format(document, "What to do: %s.", told(kind, true)));
}

static void print_record(const json_t *record) {
  Document *document = vl_document_create();
  size_t i;
  json_t *anomaly;
  add_flow(document, record);
  json_array_foreach(json_object_get(record, "anomalies"), i, anomaly) add_anomaly(document, anomaly);
  if (!is_anomalous(record)) vl_document_add(document, PASSAGE_TEXT, true, "4 nothing anomalous");
  vl_report_term(document, stdout, vl_terminal_width(stdout), vl_terminal_color(stdout));
  vl_document_destroy(&document);
}

/* ---- As JSON --------------------------------------------------------------------------------------------------- */

static json_t *diagnosis_json(const json_t *record) {
  static const char *const members[] = {"cell_key",
                                        "status",
                                        "case",
                                        "inference",
                                        "recipe",
                                        "device",
                                        "device_name",
                                        "provenance",
                                        "batch",
                                        "global_batch",
                                        "error",
                                        "diagnosis_start_bytes",
                                        "diagnosis_expected_start_bytes",
                                        "diagnosis_rest_bytes",
                                        "diagnosis_peak_bytes",
                                        "diagnosis_expected_peak_bytes",
                                        "diagnosis_end_bytes"};
  json_t *json = json_object(), *anomalies = json_array(), *anomaly;
  size_t i;
  for (i = 0; i < sizeof members / sizeof members[0]; i++) {
    json_t *value = json_object_get(record, members[i]);
    if (value) json_object_set(json, members[i], value);
  }
  json_array_foreach(json_object_get(record, "anomalies"), i, anomaly) {
    json_t *copy = json_copy(anomaly);
    const char *kind = vl_record_text(anomaly, "kind");
    json_object_set_new(copy, "per_step", json_boolean(per_step(kind)));
    json_object_set_new(copy, "advice", json_string(told(kind, true)));
    json_array_append_new(anomalies, copy);
  }
  if (is_diagnosed(record))
    json_object_set_new(json, "anomalies", anomalies);
  else
    json_decref(anomalies);
  return json;
}

static void print_json(json_t *json) {
  char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  puts(text);
  free(text);
  json_decref(json);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

static Status run(const DiagnoseCommand *command, json_t **record) {
  const CellOptions *options = &command->cell;
  SuiteCell cell = {.spec = options->spec, .timeout_s = options->timeout_s};
  Progress progress;
  Runner *runner;
  bool fits;
  char reason[256];
  cell.spec.diagnose = true;
  if (!(options->given & GIVEN_STEPS)) cell.spec.steps = 2; /* the second has all that the first left */
  vl_progress_start(&progress, command->quiet || command->json);
  vl_progress_expect(&progress, &cell);
  RunnerOptions runner_options = {.step_done = vl_progress_step, .context = &progress};
  VL_TRY(vl_runner_create(&runner_options, &runner));
  vl_progress_begin(&progress, &cell);
  Status status = vl_check_room(runner, &cell, &fits, reason, sizeof reason);
  if (status.code == VL_OK && fits) status = vl_runner_cell(runner, &cell, record, NULL, NULL);
  if (status.code == VL_OK && !fits) *record = vl_record_create_failure(&cell, "skipped", reason);
  vl_runner_destroy(&runner);
  if (status.code == VL_OK) vl_progress_end(&progress, *record);
  return status;
}

static Status diagnose_cell(const DiagnoseCommand *command, int *exit_code) {
  json_t *record = NULL;
  VL_TRY(run(command, &record));
  *exit_code = vl_cell_exit_code(record);
  bool diagnosed = is_diagnosed(record);
  if (command->json)
    print_json(diagnosis_json(record));
  else if (diagnosed)
    print_record(record);
  const char *error = vl_record_text(record, "error");
  if (!diagnosed && *exit_code != 0)
    fprintf(stderr, "vramlab: no step to diagnose: %s%s%s\n", vl_record_text(record, "status"),
            error ? ": " : "", error ? error : "");
  if (*exit_code == 0 && is_anomalous(record)) *exit_code = 1;
  json_decref(record);
  return vl_ok();
}

static Status diagnose_store(const DiagnoseCommand *command, int *exit_code) {
  Store *store;
  json_t *list = json_array();
  int64_t diagnosed = 0;
  VL_TRY(vl_store_open(command->store, &store));
  for (int64_t i = 0; i < vl_store_count(store); i++) {
    const json_t *record = vl_store_record(store, i);
    if (!is_diagnosed(record)) continue;
    if (is_anomalous(record)) *exit_code = 1;
    if (command->json)
      json_array_append_new(list, diagnosis_json(record));
    else
      print_record(record);
    diagnosed++;
  }
  int64_t count = vl_store_count(store);
  vl_store_close(&store);
  if (diagnosed > 0 && command->json)
    print_json(list);
  else
    json_decref(list);
  return diagnosed > 0
             ? vl_ok()
             : vl_error(VL_INVALID,
                        "%s: none of its %lld cells was diagnosed (`diagnose: true` in a suite; vramlab "
                        "run diagnose)",
                        command->store, (long long)count);
}

int vl_command_diagnose(int argc, char **argv) {
  DiagnoseCommand command = {0};
  int exit_code = 0;
  vl_cell_options_init(&command.cell);
  vl_command_parse(&diagnose_argp, argc, argv, &command);
  Status status = command.store ? vl_ok() : vl_cell_options_resolve(&command.cell);
  if (status.code == VL_OK)
    status = command.store ? diagnose_store(&command, &exit_code) : diagnose_cell(&command, &exit_code);
  return status.code == VL_OK ? exit_code : vl_command_fail(status);
}
