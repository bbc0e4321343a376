/* vramlab fit: the least intrusive recipe under which a job fits, from plans. */
#include "harness/cell_json.h"
#include "harness/fit.h"
#include "harness/options.h"
#include "harness/report.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_ALL = 0x200, KEY_JSON };

typedef struct FitCommand {
  CellOptions cell;
  bool all, json;
} FitCommand;

static const struct argp_option options_table[] = {
    {"all", KEY_ALL, NULL, 0, "go on to the top of the ladder when a recipe fits", 3},
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 4},
    {0}};

static void check_options(const CellOptions *cell, struct argp_state *state) {
  if (!(cell->given & GIVEN_CASE)) argp_error(state, "give --case (vramlab list cases)");
  if (cell->given & GIVEN_MICRO_BATCH)
    argp_error(state, "--global-batch is what fit holds fixed; the micro-batch follows from the recipe");
  if (!(cell->given & GIVEN_BATCH)) argp_error(state, "give --global-batch, the samples of a step");
  if (cell->recipe_count > 1 || cell->capacity_count > 1)
    argp_error(state, "one recipe to start from and one capacity; several are for max-batch");
  if ((cell->given & GIVEN_DEVICE) && strcmp(cell->spec.device, "plan") != 0)
    argp_error(state, "fit plans; `vramlab run` runs its answer on %s", cell->spec.device);
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  FitCommand *command = state->input;
  switch (key) {
  case ARGP_KEY_INIT: state->child_inputs[0] = &command->cell; return 0;
  case KEY_ALL: command->all = true; return 0;
  case KEY_JSON: command->json = true; return 0;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument: %s", text); return 0;
  case ARGP_KEY_END: check_options(&command->cell, state); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {{&vl_cell_argp, 0, NULL, 0}, {0}};
static const struct argp fit_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "--case NAME --global-batch N",
    .doc = "Tries recipes from the least to the most intrusive until the job fits under --capacity, and says "
           "how to turn each on. Begins with --recipe (what you run today; the baseline when not given). "
           "Without --capacity it is the profile's memory, or what this machine has available."
           "\vExit codes: 0 a recipe fits; 1 none does; 2 bad usage or input; 3 the environment lacks "
           "something; 4 interrupted.",
    .children = children};

/* ---- What was found, in words ------------------------------------------------------------------------------- */

typedef struct Answer {
  const SuiteCell *start;
  Fit fit;
  FitBatch whole, part; /* when nothing fits */
  char command[1024];   /* to type next; "" when nothing fits */
} Answer;

static double gib(int64_t bytes) { return (double)bytes / (1024.0 * 1024.0 * 1024.0); }

/* As an option takes it: "16GiB", else "100MiB", else bytes. */
static void size_text(int64_t bytes, char *text, size_t size) {
  int64_t mib = INT64_C(1) << 20, in_gib = bytes % (mib << 10) == 0, in_mib = bytes % mib == 0;
  int64_t unit = in_gib ? mib << 10 : in_mib ? mib : 1;
  snprintf(text, size, "%lld%s", (long long)(bytes / unit), in_gib ? "GiB" : in_mib ? "MiB" : "");
}

/* The command that does what the answer says: on this machine it runs, for a card on paper it plans. */
static void make_command(Answer *answer, const char *recipe) {
  const CellSpec *spec = &answer->start->spec;
  char capacity[32];
  size_t size = sizeof answer->command;
  size_text(spec->capacity_bytes, capacity, sizeof capacity);
  size_t used = (size_t)snprintf(
      answer->command, size, "vramlab %s --case %s --global-batch %lld --recipe \"%s\" --capacity %s",
      *spec->profile ? "plan" : "run", spec->case_name, (long long)spec->micro_batch, recipe, capacity);
  for (int32_t i = 0; i < spec->setting_count && used < size; i++)
    used += (size_t)snprintf(answer->command + used, size - used, " --set %s", spec->settings[i]);
  if (spec->inference && used < size)
    used += (size_t)snprintf(answer->command + used, size - used, " --infer");
  if (*spec->profile && used < size)
    snprintf(answer->command + used, size - used, " --profile %s", spec->profile);
}

static Status find_answer(Runner *runner, bool all, Answer *answer) {
  int32_t count;
  const FitStep *steps = vl_fit_ladder(&count);
  VL_TRY(vl_fit_climb(runner, answer->start, steps, count, all, &answer->fit));
  if (answer->fit.answer < 0)
    return vl_fit_largest(runner, answer->start, &answer->fit, &answer->whole, &answer->part);
  make_command(answer, answer->fit.rungs[answer->fit.answer].recipe);
  return vl_ok();
}

/* ---- On a terminal -------------------------------------------------------------------------------------------- */

static const TableColumn columns[] = {{"recipe", "", false},     {"needs", "GiB", true},
                                      {"headroom", "GiB", true}, {"extra FLOPs", "%", true},
                                      {"results", "", false},    {"fits", "", false}};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static const char *results_text(Preserves preserves) {
  static const char *const names[] = {"bitwise", "within tolerance", "different model"};
  return names[preserves];
}

static void fill_row(Document *document, const Answer *answer, const Rung *rung, const char **row) {
  int64_t capacity = answer->start->spec.capacity_bytes;
  bool interval = rung->needed_low_bytes >= 0 && rung->needed_low_bytes < rung->needed_bytes;
  row[0] = vl_document_format(document, "%s", rung->recipe);
  row[1] = interval ? vl_document_format(document, "%.2f to %.2f", gib(rung->needed_low_bytes),
                                         gib(rung->needed_bytes))
                    : vl_document_format(document, "%.2f", gib(rung->needed_bytes));
  row[2] = vl_document_format(document, "%.2f", gib(capacity - rung->needed_bytes));
  row[3] = vl_document_format(document, "%.1f", 100.0 * vl_rung_extra_flops(rung));
  row[4] = results_text(rung->preserves);
  row[5] = rung->end == RUNG_FITS ? "yes" : "no";
}

static bool is_shown(const Rung *rung) { return rung->end == RUNG_FITS || rung->end == RUNG_TOO_LARGE; }

static void add_table(Document *document, const Answer *answer) {
  const CellSpec *spec = &answer->start->spec;
  const Fit *fit = &answer->fit;
  char capacity[32];
  int32_t shown = 0;
  vl_format_bytes(spec->capacity_bytes, capacity, sizeof capacity);
  for (int32_t i = 0; i < fit->rung_count; i++)
    shown += is_shown(&fit->rungs[i]);
  Passage *table =
      vl_document_add(document, PASSAGE_TABLE, true,
                      vl_document_format(document, "%s %s, %lld samples a step, under %s, predicted for %s",
                                         spec->case_name, spec->inference ? "inference" : "training",
                                         (long long)spec->micro_batch, capacity, fit->device));
  vl_document_table(document, table, columns, COLUMNS, shown);
  for (int32_t i = 0, row = 0; i < fit->rung_count; i++)
    if (is_shown(&fit->rungs[i])) fill_row(document, answer, &fit->rungs[i], table->rows[row++]);
}

/* Adds an item to a list of them; once. */
static void list_item(char *list, size_t size, const char *item) {
  size_t used = strlen(list);
  if (!strstr(list, item)) snprintf(list + used, size - used, "%s%s", used ? ", " : "", item);
}

/* Whether a step is in a recipe that is shown. */
static bool is_advised(const Answer *answer, const Rung *rung) {
  return rung->step && (is_shown(rung) || strstr(answer->whole.recipe, rung->step->item));
}

/* A line, for all steps that it turns on. */
static void add_turn_on(Document *document, const Answer *answer) {
  const Fit *fit = &answer->fit;
  const char *seen[VL_MAX_RUNGS];
  int32_t seen_count = 0;
  for (int32_t i = 0; i < fit->rung_count; i++) {
    if (!is_advised(answer, &fit->rungs[i])) continue;
    const char *line = vl_fit_turn_on(fit->rungs[i].step);
    char items[VL_NAME_BYTES * 4] = "";
    bool again = false;
    for (int32_t k = 0; k < seen_count; k++)
      again = again || strcmp(seen[k], line) == 0;
    if (again) continue;
    if (seen_count == 0) vl_document_add(document, PASSAGE_TEXT, true, "In PyTorch:");
    seen[seen_count++] = line;
    for (int32_t k = i; k < fit->rung_count; k++) {
      const Rung *rung = &fit->rungs[k];
      if (is_advised(answer, rung) && strcmp(vl_fit_turn_on(rung->step), line) == 0)
        list_item(items, sizeof items, rung->step->item);
    }
    vl_document_add(document, PASSAGE_NOTE, true, vl_document_format(document, "%s: %s", items, line));
  }
}

static bool joined_later(const Fit *fit, int32_t rung) {
  for (int32_t i = rung + 1; i < fit->rung_count; i++)
    if (fit->rungs[i].step == fit->rungs[rung].step && is_shown(&fit->rungs[i])) return true;
  return false;
}

/* What joined nothing, so that nobody wonders where it is. */
static void add_left_out(Document *document, const Fit *fit) {
  char items[512] = "";
  for (int32_t i = 0; i < fit->rung_count; i++)
    if (fit->rungs[i].end == RUNG_NO_GAIN && !joined_later(fit, i))
      list_item(items, sizeof items, fit->rungs[i].step->item);
  if (!*items) return;
  vl_document_add(document, PASSAGE_NOTE, true,
                  vl_document_format(document, "Left out where it saved nothing: %s.", items));
}

/* The same step in parts. */
static void add_part(Document *document, const Answer *answer) {
  const FitBatch *part = &answer->part;
  long long global = answer->start->spec.micro_batch, batch = part->batch, count = part->accumulate;
  if (batch == 0) return;
  const char *last = batch * count == global
                         ? ""
                         : vl_document_format(document, " (the last has %lld)", global - batch * (count - 1));
  vl_document_add(
      document, PASSAGE_NOTE, true,
      vl_document_format(
          document,
          "For %lld samples a step, gradients have to be accumulated over %lld micro-batches of "
          "%lld%s with %s: %.2f GiB. In PyTorch: multiply each loss by its share of the step's "
          "labels that count (1/%lld only where all micro-batches have as many) and call step and "
          "zero_grad every %lld backward passes.",
          global, count, batch, last, part->recipe, gib(part->needed_bytes), count, count));
}

static void add_answer(Document *document, const Answer *answer) {
  const Fit *fit = &answer->fit;
  int64_t capacity = answer->start->spec.capacity_bytes;
  if (fit->answer >= 0) {
    const Rung *rung = &fit->rungs[fit->answer];
    vl_document_add(document, PASSAGE_TEXT, true,
                    vl_document_format(document, "Run:    %s (%.2f GiB of room left)", rung->recipe,
                                       gib(capacity - rung->needed_bytes)));
    vl_document_add(document, PASSAGE_COMMAND, true, answer->command);
    return;
  }
  const FitBatch *whole = &answer->whole;
  if (whole->batch == 0)
    vl_document_add(document, PASSAGE_TEXT, true, "Nothing fits, not even one sample.");
  else
    vl_document_add(
        document, PASSAGE_TEXT, true,
        vl_document_format(document,
                           "Nothing fits. The largest batch that does: %lld samples (%.2f GiB) with\n"
                           "%s",
                           (long long)whole->batch, gib(whole->needed_bytes), whole->recipe));
  add_part(document, answer);
}

/* Which blocks checkpoint=auto means, in the answer or, when nothing fits, in the leanest recipe. */
static void add_chosen(Document *document, const Fit *fit) {
  const Rung *rung = &fit->rungs[fit->answer >= 0 ? fit->answer : fit->leanest];
  int first = 0, last = 0, length = 0;
  if (!*rung->checkpoint_chosen) return;
  int parts = sscanf(rung->checkpoint_chosen, "runs:%d-%d/%d", &first, &last, &length);
  const char *example =
      parts == 3 ? vl_document_format(document, " (blocks %d to %d, %d a checkpoint)", first, last, length)
                 : "";
  bool more = strchr(rung->checkpoint_chosen, ',') != NULL;
  vl_document_add(document, PASSAGE_NOTE, true,
                  vl_document_format(document,
                                     "checkpoint=auto is checkpoint=%s here%s: of the choices of "
                                     "blocks that fit the one with the fewest extra FLOPs.",
                                     rung->checkpoint_chosen, more ? "" : example));
}

static void print_answer(const Answer *answer) {
  Document *document = vl_document_create();
  add_table(document, answer);
  add_left_out(document, &answer->fit);
  add_turn_on(document, answer);
  add_chosen(document, &answer->fit);
  add_answer(document, answer);
  vl_report_term(document, stdout, vl_terminal_width(stdout), vl_terminal_color(stdout));
  vl_document_destroy(&document);
}

/* ---- As JSON ---------------------------------------------------------------------------------------------------- */

/* -1: not known. */
static json_t *known(int64_t value) { return value < 0 ? json_null() : json_integer((json_int_t)value); }

static json_t *rung_json(const Rung *rung, int64_t capacity) {
  bool planned = rung->needed_bytes >= 0;
  json_t *json = json_pack("{ss ss ss sb ss}", "recipe", rung->recipe, "end", vl_rung_end_name(rung->end),
                           "results", vl_preserves_name(rung->preserves), "fits",
                           planned && rung->needed_bytes <= capacity, "reason", rung->reason);
  json_object_set_new(json, "step", rung->step ? json_string(rung->step->item) : json_null());
  json_object_set_new(json, "turn_on", rung->step ? json_string(vl_fit_turn_on(rung->step)) : json_null());
  json_object_set_new(json, "needed_bytes", known(rung->needed_bytes));
  json_object_set_new(json, "needed_low_bytes", known(rung->needed_low_bytes));
  json_object_set_new(json, "headroom_bytes",
                      planned ? json_integer((json_int_t)(capacity - rung->needed_bytes)) : json_null());
  json_object_set_new(json, "flops_per_step", known(rung->flops_per_step));
  json_object_set_new(json, "recompute_flops", known(rung->recompute_flops));
  json_object_set_new(json, "checkpoint_chosen",
                      *rung->checkpoint_chosen ? json_string(rung->checkpoint_chosen) : json_null());
  json_object_set_new(json, "extra_flops_ratio",
                      planned ? json_real(vl_rung_extra_flops(rung)) : json_null());
  return json;
}

static json_t *batch_json(const FitBatch *found) {
  return json_pack("{ss sI so}", "recipe", found->recipe, "batch", (json_int_t)found->batch, "needed_bytes",
                   known(found->batch > 0 ? found->needed_bytes : -1));
}

static json_t *part_json(const Answer *answer) {
  const FitBatch *part = &answer->part;
  if (part->batch == 0) return json_null();
  return json_pack("{ss sI sI sI}", "recipe", part->recipe, "micro_batch", (json_int_t)part->batch,
                   "accumulate", (json_int_t)part->accumulate, "needed_bytes",
                   (json_int_t)part->needed_bytes);
}

static void print_json(const Answer *answer) {
  const CellSpec *spec = &answer->start->spec;
  const Fit *fit = &answer->fit;
  char settings[VL_SETTINGS_BYTES];
  json_t *rungs = json_array();
  bool fits = fit->answer >= 0;
  vl_settings_text(spec, settings);
  for (int32_t i = 0; i < fit->rung_count; i++)
    json_array_append_new(rungs, rung_json(&fit->rungs[i], spec->capacity_bytes));
  json_t *json = json_pack("{ss ss sb sI sI ss ss ss so}", "case", spec->case_name, "settings", settings,
                           "inference", spec->inference, "global_batch", (json_int_t)spec->micro_batch,
                           "capacity_bytes", (json_int_t)spec->capacity_bytes, "profile", spec->profile,
                           "device", fit->device, "provenance", "predicted", "rungs", rungs);
  json_object_set_new(json, "fits", json_boolean(fits));
  json_object_set_new(json, "recipe", fits ? json_string(fit->rungs[fit->answer].recipe) : json_null());
  json_object_set_new(json, "command", fits ? json_string(answer->command) : json_null());
  json_object_set_new(json, "largest", fits ? json_null() : batch_json(&answer->whole));
  json_object_set_new(json, "accumulation", fits ? json_null() : part_json(answer));
  char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  puts(text);
  free(text);
  json_decref(json);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

/* A capacity is a cap: a card does not become larger by it. */
static Status check_capacity(const CellSpec *spec) {
  DeviceProfile profile;
  if (!*spec->profile) return vl_ok();
  VL_TRY(vl_profile_load(NULL, spec->profile, &profile));
  if (spec->capacity_bytes <= profile.memory_bytes) return vl_ok();
  char capacity[32], memory[32];
  vl_format_bytes(spec->capacity_bytes, capacity, sizeof capacity);
  vl_format_bytes(profile.memory_bytes, memory, sizeof memory);
  return vl_error(VL_INVALID, "--capacity is %s; %s accepts up to the %s it has", capacity, spec->profile,
                  memory);
}

static Status fit(FitCommand *command, Answer *answer) {
  Runner *runner;
  RunnerOptions runner_options = {0};
  CellOptions *options = &command->cell;
  VL_TRY(vl_cell_options_usual_capacity(options));
  SuiteCell start = {.spec = options->spec, .timeout_s = options->timeout_s};
  start.spec.capacity_bytes = options->capacities[0];
  start.spec.micro_batch = options->batch; /* the whole: recipes divide it */
  VL_TRY(check_capacity(&start.spec));
  VL_TRY(vl_runner_create(&runner_options, &runner));
  answer->start = &start;
  Status status = find_answer(runner, command->all, answer);
  vl_runner_destroy(&runner);
  VL_TRY(status);
  if (command->json)
    print_json(answer);
  else
    print_answer(answer);
  return vl_ok();
}

int vl_command_fit(int argc, char **argv) {
  FitCommand command = {0};
  vl_cell_options_init(&command.cell);
  vl_command_parse(&fit_argp, argc, argv, &command);
  snprintf(command.cell.spec.device, sizeof command.cell.spec.device, "plan");
  Answer *answer = vl_allocate(sizeof *answer);
  Status status = vl_cell_options_resolve(&command.cell);
  if (status.code == VL_OK) status = fit(&command, answer);
  bool fits = answer->fit.answer >= 0;
  free(answer);
  if (status.code != VL_OK) return vl_command_fail(status);
  return fits ? 0 : 1;
}
