/* vramlab max-batch: the largest batch per recipe and capacity, from plans; --verify runs it and the next
 * one. */
#include "harness/options.h"
#include "harness/suite_run.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_VERIFY = 0x200, KEY_JSON };

typedef struct MaxBatchCommand {
  CellOptions cell;
  bool verify, json;
} MaxBatchCommand;

static const struct argp_option options_table[] = {
    {"verify", KEY_VERIFY, NULL, 0, "run the largest batch and the next one on this cpu", 3},
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 4},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  MaxBatchCommand *command = state->input;
  switch (key) {
  case ARGP_KEY_INIT: state->child_inputs[0] = &command->cell; return 0;
  case KEY_VERIFY: command->verify = true; return 0;
  case KEY_JSON: command->json = true; return 0;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument: %s", text); return 0;
  case ARGP_KEY_END:
    if (!(command->cell.given & GIVEN_CASE)) argp_error(state, "give --case");
    if (command->cell.given & (GIVEN_BATCH | GIVEN_MICRO_BATCH))
      argp_error(state, "the batch is what is looked for");
    if (command->cell.given & GIVEN_QUEUE)
      argp_error(state, "the largest batch is of one size; dynamic-batch finds those of a queue");
    if ((command->cell.given & GIVEN_DEVICE) && strcmp(command->cell.spec.device, "plan") != 0)
      argp_error(state, "the search plans; --verify runs its answer on the cpu");
    if (command->verify && (command->cell.given & GIVEN_PROFILE))
      argp_error(state, "--verify needs this machine, not a profile");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {{&vl_cell_argp, 0, NULL, 0}, {0}};
static const struct argp max_batch_argp = {
    .options = options_table,
    .parser = parse_option,
    .doc =
        "Prints the largest batch that fits, for each --recipe and --capacity given (both may be repeated). "
        "Without --capacity it is the profile's memory, or what this machine has available.",
    .children = children};

/* Runs a micro-batch for real; *as_planned: it ended as the plan says. */
static Status verify_one(Runner *runner, const SuiteCell *cell, int64_t micro_batch, const char *expected,
                         json_t *row, const char *name, bool *as_planned) {
  SuiteCell measured = *cell;
  json_t *record;
  bool fits;
  char reason[256];
  snprintf(measured.spec.device, sizeof measured.spec.device, "cpu");
  measured.max_batch = false;
  measured.spec.micro_batch = micro_batch;
  VL_TRY(vl_check_room(runner, &measured, &fits, reason, sizeof reason));
  if (fits)
    VL_TRY(vl_runner_cell(runner, &measured, &record, NULL, NULL));
  else
    record = vl_record_create_failure(&measured, "skipped", reason);
  *as_planned = strcmp(vl_record_text(record, "status"), expected) == 0;
  json_object_set(row, name, json_object_get(record, "status"));
  json_decref(record);
  return vl_ok();
}

static Status verify(Runner *runner, const SuiteCell *cell, json_t *row, bool *as_planned) {
  int64_t micro_batch = json_integer_value(json_object_get(row, "micro_batch"));
  const Case *of = vl_case_find(cell->spec.case_name);
  bool here = true, next = true;
  if (micro_batch > 0) VL_TRY(verify_one(runner, cell, micro_batch, "ok", row, "verified", &here));
  if (micro_batch < of->arguments[0].high)
    VL_TRY(verify_one(runner, cell, micro_batch + 1, "oom", row, "verified_next", &next));
  *as_planned = *as_planned && here && next;
  return vl_ok();
}

static json_t *make_row(const SuiteCell *cell, const json_t *record) {
  int64_t batch = vl_record_integer(record, "batch"), accumulate = vl_record_integer(record, "accumulate");
  return json_pack("{sO sI sI sI sI sO}", "recipe", json_object_get(record, "recipe"), "capacity_bytes",
                   (json_int_t)cell->spec.capacity_bytes, "batch", (json_int_t)batch, "micro_batch",
                   (json_int_t)(batch / accumulate), "accumulate", (json_int_t)accumulate, "needed_bytes",
                   batch > 0 ? json_object_get(record, "needed_bytes") : json_null());
}

static void print_row(const json_t *row) {
  char capacity[32], needed[32] = "-";
  vl_format_bytes(vl_record_integer(row, "capacity_bytes"), capacity, sizeof capacity);
  int64_t bytes = vl_record_integer(row, "needed_bytes"), batch = vl_record_integer(row, "batch");
  if (bytes >= 0) vl_format_bytes(bytes, needed, sizeof needed);
  printf("%-12s %8lld  %-12s %s", capacity, (long long)batch, needed, vl_record_text(row, "recipe"));
  if (batch == 0) printf("  (not even one sample fits)");
  const char *verified = vl_record_text(row, "verified"), *next = vl_record_text(row, "verified_next");
  if (verified) printf("  run: %s", verified);
  if (next) printf("  next one: %s", next);
  putchar('\n');
  fflush(stdout);
}

static Status search_all(MaxBatchCommand *command, Runner *runner, json_t *rows, bool *as_planned) {
  CellOptions *options = &command->cell;
  for (int32_t r = 0; r < options->recipe_count; r++) {
    for (int32_t c = 0; c < options->capacity_count; c++) {
      SuiteCell cell = {.spec = options->spec, .timeout_s = options->timeout_s, .max_batch = true};
      json_t *record;
      snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "%s", options->recipes[r]);
      cell.spec.capacity_bytes = options->capacities[c];
      VL_TRY(vl_runner_max_batch(runner, &cell, &record));
      json_t *row = make_row(&cell, record);
      json_decref(record);
      json_array_append_new(rows, row);
      if (command->verify) VL_TRY(verify(runner, &cell, row, as_planned));
      if (!command->json) print_row(row);
    }
  }
  return vl_ok();
}

static Status search(MaxBatchCommand *command, bool *as_planned) {
  CellOptions *options = &command->cell;
  Runner *runner;
  RunnerOptions runner_options = {0};
  VL_TRY(vl_cell_options_usual_capacity(options));
  if (options->recipe_count == 0) options->recipes[options->recipe_count++] = "baseline";
  VL_TRY(vl_runner_create(&runner_options, &runner));
  if (!command->json) printf("%-12s %8s  %-12s %s\n", "capacity", "batch", "needs", "recipe");
  json_t *rows = json_array();
  Status status = search_all(command, runner, rows, as_planned);
  vl_runner_destroy(&runner);
  if (status.code == VL_OK && command->json) {
    json_t *json =
        json_pack("{ss sb ss ss sO}", "case", options->spec.case_name, "inference", options->spec.inference,
                  "profile", options->spec.profile, "provenance", "predicted", "rows", rows);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    puts(text);
    free(text);
    json_decref(json);
  }
  json_decref(rows);
  return status;
}

int vl_command_max_batch(int argc, char **argv) {
  MaxBatchCommand command = {0};
  bool as_planned = true;
  vl_cell_options_init(&command.cell);
  vl_command_parse(&max_batch_argp, argc, argv, &command);
  snprintf(command.cell.spec.device, sizeof command.cell.spec.device, "plan");
  Status status = vl_cell_options_resolve(&command.cell);
  if (status.code == VL_OK) status = search(&command, &as_planned);
  if (status.code != VL_OK) return vl_command_fail(status);
  return as_planned ? 0 : 1;
}
