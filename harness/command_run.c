/* vramlab run and vramlab plan: one cell, or the cells of a suite. */
#include "harness/columns.h"
#include "harness/ctest_print.h"
#include "harness/options.h"
#include "harness/progress.h"
#include "harness/report.h"
#include "harness/suite_run.h"
#include "harness/suite_select.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  KEY_FAILED = 0x200,
  KEY_RESUME,
  KEY_JSON,
  KEY_REPEAT,
  KEY_ORDER_SEED,
  KEY_CELL,
  KEY_SHARD,
  KEY_CTEST,
  KEY_RETRIES
};

typedef struct RunCommand {
  CellOptions cell;
  bool plan; /* called as `plan` */
  const char *suite, *output, *filter, *exclude, *cell_key;
  Shard shard;
  bool json, ctest, quiet, dry_run, failed, resume;
  int64_t repeat, order_seed; /* 0: as the suite says; -1: none */
  int64_t retries;
  char command_line[1024];
} RunCommand;

static const struct argp_option options_table[] = {
    {NULL, 0, NULL, 0, "Suites:", 3},
    {"filter", 'f', "REGEX", 0, "only cells whose line matches (see --dry-run)", 3},
    {"exclude", 'x', "REGEX", 0, "no cells whose line matches", 3},
    {"cell", KEY_CELL, "KEY", 0, "only the cell whose key begins so (see --dry-run --json)", 3},
    {"shard", KEY_SHARD, "I/N", 0, "the I-th of N parts of what is left, all repetitions of a cell in one",
     3},
    {"dry-run", 'n', NULL, 0, "print the cells and run none", 3},
    {"repeat", KEY_REPEAT, "N", 0,
     "every measured cell so often, each time in a process of its own, in rounds", 3},
    {"order-seed", KEY_ORDER_SEED, "N", 0,
     "of the random order of cells within a round (0; without rounds and seed: as the suite lists them)", 3},
    {"retries", KEY_RETRIES, "N", 0,
     "at the end, measure again what was disturbed, up to N times; the last time counts (0)", 3},
    {"resume", KEY_RESUME, NULL, 0, "go on with the suite's newest results (with -o: with those there)", 3},
    {"failed", KEY_FAILED, NULL, 0, "go on, and run again what timed out, crashed, diverged or was skipped",
     3},
    {NULL, 0, NULL, 0, "Output:", 4},
    {"output", 'o', "DIR", 0, "where the results go", 4},
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 4},
    {"ctest", KEY_CTEST, NULL, 0,
     "one cell of a suite as a test: measurements and figures for CTest and CDash", 4},
    {"quiet", 'q', NULL, 0, "no progress", 4},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  RunCommand *command = state->input;
  switch (key) {
  case ARGP_KEY_INIT: state->child_inputs[0] = &command->cell; return 0;
  case 'f': command->filter = text; return 0;
  case 'x': command->exclude = text; return 0;
  case 'n': command->dry_run = true; return 0;
  case 'o': command->output = text; return 0;
  case 'q': command->quiet = true; return 0;
  case KEY_JSON: command->json = true; return 0;
  case KEY_CTEST: command->ctest = true; return 0;
  case KEY_CELL: command->cell_key = text; return 0;
  case KEY_SHARD: {
    Status status = vl_shard_parse(text, &command->shard);
    if (status.code != VL_OK) argp_error(state, "%s", status.message);
    return 0;
  }
  case KEY_REPEAT:
  case KEY_ORDER_SEED: {
    bool repeat = key == KEY_REPEAT;
    Status status = repeat ? vl_parse_integer("--repeat", text, 1, 1000, &command->repeat)
                           : vl_parse_integer("--order-seed", text, 0, INT32_MAX, &command->order_seed);
    if (status.code != VL_OK) argp_error(state, "%s", status.message);
    return 0;
  }
  case KEY_RETRIES: {
    Status status = vl_parse_integer("--retries", text, 0, 1000, &command->retries);
    if (status.code != VL_OK) argp_error(state, "%s", status.message);
    return 0;
  }
  case KEY_RESUME: command->resume = true; return 0;
  case KEY_FAILED: command->failed = command->resume = true; return 0;
  case ARGP_KEY_ARG:
    if (command->suite) argp_error(state, "one suite at a time: %s, then %s", command->suite, text);
    command->suite = text;
    return 0;
  case ARGP_KEY_END:
    if (!command->suite && !(command->cell.given & GIVEN_CASE))
      argp_error(state, "give a suite (vramlab list suites) or --case");
    if (!command->suite && (command->filter || command->exclude || command->dry_run || command->resume ||
                            command->repeat > 0 || command->order_seed >= 0 || command->retries > 0 ||
                            command->cell_key || command->shard.count > 0 || command->ctest))
      argp_error(state, "--filter, --exclude, --cell, --shard, --dry-run, --ctest, --repeat, --order-seed, "
                        "--retries, --resume and --failed go with a suite");
    if (command->cell.recipe_count > 1 || command->cell.capacity_count > 1)
      argp_error(state, "one recipe and one capacity; several are for a suite or max-batch");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {{&vl_cell_argp, 0, NULL, 0}, {0}};
static const struct argp run_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "SUITE\n--case NAME",
    .doc = "Runs a suite, or one cell, and stores or prints what it needs and how fast it is."
           "\vExit codes: 0 done; 1 a cell failed; 2 bad usage or input; 3 the environment lacks something; "
           "4 interrupted, to be resumed; 77 the hardware is not there.\n\n"
           "The first Ctrl-C finishes the current cell and stops, the second one abandons it.",
    .children = children};
static const struct argp plan_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "SUITE\n--case NAME",
    .doc = "Predicts what a suite, or one cell, needs, without running it: `run` with --device plan.",
    .children = children};

/* ---- One cell ----------------------------------------------------------------------------------------------- */

static void print_bytes(const char *name, int64_t bytes) {
  char text[32] = "not known";
  if (bytes >= 0) vl_format_bytes(bytes, text, sizeof text);
  printf("%-12s %s\n", name, text);
}

static void print_losses(const json_t *record) {
  double last = vl_record_real(record, "last_loss"), held_out = vl_record_real(record, "held_out_loss");
  if (!isnan(last)) printf("%-12s %.4f in the last step\n", "loss", last);
  if (isnan(held_out)) return;
  printf("%-12s %.4f, %.2f %% predicted right\n", "held out", held_out,
         100.0 * vl_record_real(record, "accuracy"));
}

/* Of each class of volumes, and their mean; classes that were neither predicted nor true are left out. */
static void print_dice(const json_t *record) {
  double mean = vl_record_real(record, "dice_mean"), volume_s = vl_record_real(record, "volume_s");
  json_t *dice = json_object_get(record, "dice"), *value;
  size_t c;
  if (json_array_size(dice) == 0) return;
  printf("%-12s", "dice");
  if (!isnan(mean)) printf(" %.4f on average", mean);
  const char *before = isnan(mean) ? " " : "; ";
  json_array_foreach(dice, c, value) {
    if (c == 0 || !json_is_number(value)) continue;
    printf("%sclass %zu %.4f", before, c, json_number_value(value));
    before = ", ";
  }
  printf("\n%-12s %.3f s a volume\n", "inferred in", volume_s);
}

/* How the batch was divided. */
static void print_division(const json_t *record) {
  int64_t count = vl_record_integer(record, "accumulate"), micro = vl_record_integer(record, "micro_batch");
  int64_t batch = vl_record_integer(record, "global_batch");
  int64_t last = batch / vl_record_integer(record, "ranks") - (count - 1) * micro;
  if (vl_record_text(record, "queue")) return;
  if (count <= 1 && !strstr(vl_record_text(record, "recipe"), "accumulate=auto")) return;
  printf("%-12s %lld samples, accumulate=%lld of %lld", "batch", (long long)batch, (long long)count,
         (long long)micro);
  if (last != micro) printf(", the last of %lld", (long long)last);
  putchar('\n');
}

/* What a step copied to the offload tier and back, and waited for it. */
static void print_offload(const json_t *record) {
  int64_t evicted = vl_record_integer(record, "evicted_bytes");
  double stall_s = vl_record_real(record, "offload_stall_s");
  if (evicted < 0) return;
  print_bytes("moved out", evicted);
  print_bytes("moved back", vl_record_integer(record, "fetched_bytes"));
  print_bytes("held there", vl_record_integer(record, "peak_offload_bytes"));
  if (!isnan(stall_s)) printf("%-12s %.3f s a step for copies\n", "waited", stall_s);
}

/* Of a queue, what each size needed. */
static void print_shapes(const json_t *record) {
  json_t *shapes = json_object_get(record, "shapes"), *shape;
  size_t i;
  json_array_foreach(shapes, i, shape) {
    char allocated[32] = "not known", reserved[32] = "not known";
    int64_t live = vl_record_integer(shape, "peak_allocated_bytes");
    int64_t held = vl_record_integer(shape, "peak_reserved_bytes");
    double rate = vl_record_real(shape, "samples_per_s");
    if (live >= 0) vl_format_bytes(live, allocated, sizeof allocated);
    if (held >= 0) vl_format_bytes(held, reserved, sizeof reserved);
    printf("%-12s %lld in %lld batches of at most %lld: allocated %s, reserved %s",
           vl_record_text(shape, "shape"), (long long)vl_record_integer(shape, "samples"),
           (long long)vl_record_integer(shape, "batches"), (long long)vl_record_integer(shape, "batch"),
           allocated, reserved);
    if (!isnan(rate)) printf(", %.2f samples/s", rate);
    putchar('\n');
  }
}

/* A leak and where to look. */
static void print_leak(const json_t *record) {
  int64_t rate = vl_record_integer(record, "leak_bytes_per_step");
  if (rate <= 0) return;
  json_t *leaks = json_object_get(record, "leaks"), *leak;
  char bytes[32];
  size_t i, shown = 0, most = 3;
  vl_format_bytes(rate, bytes, sizeof bytes);
  printf("%-12s %s more after every step, in\n", "leak", bytes);
  json_array_foreach(leaks, i, leak) {
    if (shown++ == most) break;
    vl_format_bytes(vl_record_integer(leak, "bytes_per_step"), bytes, sizeof bytes);
    printf("%-12s %s of %s in %s\n", "", bytes, vl_record_text(leak, "name"), vl_record_text(leak, "scope"));
  }
  if (json_array_size(leaks) > most) printf("%-12s and %zu others\n", "", json_array_size(leaks) - most);
}

static void print_cell(const SuiteCell *cell, const json_t *record) {
  char label[VL_RECIPE_BYTES + 160];
  const char *status = vl_record_text(record, "status"), *error = vl_record_text(record, "error");
  double rate = vl_record_real(record, "samples_per_s");
  vl_cell_label(cell, label, sizeof label);
  printf("%s\n%-12s %s%s%s\n", label, "status", status, error ? ": " : "", error ? error : "");
  printf("%-12s %s\n", "numbers are", vl_record_text(record, "provenance"));
  print_division(record);
  print_leak(record);
  print_bytes("needs", vl_record_integer(record, "needed_bytes"));
  print_bytes("allocated", vl_record_integer(record, "peak_allocated_bytes"));
  print_bytes("reserved", vl_record_integer(record, "peak_reserved_bytes"));
  print_bytes("driver", vl_record_integer(record, "peak_driver_bytes"));
  print_shapes(record);
  print_offload(record);
  print_losses(record);
  print_dice(record);
  if (isnan(rate)) return;
  char text[128];
  vl_step_time_text(record, text, sizeof text);
  double tokens = vl_record_real(record, "tokens_per_s");
  const char *disturbed = vl_record_text(record, "disturbed");
  if (disturbed) printf("%-12s %s\n", "disturbed", disturbed);
  printf("%-12s %.2f samples/s, ", "speed", rate);
  if (!isnan(tokens)) printf("%.0f tokens/s, ", tokens);
  bool queue = vl_record_text(record, "queue") != NULL;
  printf("%s %s\n", queue ? "a pass in" : cell->spec.inference ? "a batch in" : "a step in", text);
}

static void print_json(const json_t *json) {
  char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  puts(text);
  free(text);
}

/* Opens the store of -o: goes on with one that is there. */
static Status open_store(const char *directory, const char *suite, const char *command_line, Store **store) {
  VL_TRY(vl_store_begin(directory, suite, command_line, store));
  const char *theirs = vl_record_text(vl_store_head(*store), "suite");
  if (theirs && strcmp(theirs, suite) == 0) return vl_ok();
  Status status =
      vl_error(VL_INVALID, "%s holds results of suite \"%s\", not \"%s\"; choose another directory",
               directory, theirs ? theirs : "?", suite);
  vl_store_close(store);
  return status;
}

/* Whether -o can be written, before a cell runs that may take hours. */
static Status check_store(const RunCommand *command) {
  Store *store;
  if (!command->output) return vl_ok();
  VL_TRY(open_store(command->output, "cells", command->command_line, &store));
  vl_store_close(&store);
  return vl_ok();
}

static Status store_cell(const RunCommand *command, const Runner *runner, const json_t *record,
                         const TimelineEvent *events, int64_t event_count) {
  Store *store;
  int64_t op_count;
  const OpRecord *ops = vl_runner_ops(runner, &op_count);
  if (!command->output) return vl_ok();
  VL_TRY(open_store(command->output, "cells", command->command_line, &store));
  Status status =
      vl_store_append_step(store, record, events, event_count, ops, event_count > 0 ? op_count : 0);
  if (status.code == VL_OK) status = vl_store_rebuild(store);
  vl_store_close(&store);
  return status;
}

static Status run_one(RunCommand *command, int *exit_code) {
  SuiteCell cell = {.spec = command->cell.spec, .timeout_s = command->cell.timeout_s};
  Progress progress;
  Runner *runner;
  json_t *record = NULL;
  TimelineEvent *events = NULL;
  int64_t event_count = 0;
  bool fits;
  char reason[256];
  if (cell.spec.timeline && !command->output)
    return vl_error(VL_INVALID, "--timeline needs -o: a timeline is kept in a store");
  VL_TRY(check_store(command));
  vl_progress_start(&progress, command->quiet || command->json);
  vl_progress_expect(&progress, &cell);
  RunnerOptions options = {.step_done = vl_progress_step, .context = &progress};
  VL_TRY(vl_runner_create(&options, &runner));
  vl_progress_begin(&progress, &cell);
  Status status = vl_check_room(runner, &cell, &fits, reason, sizeof reason);
  if (status.code == VL_OK && fits) status = vl_runner_cell(runner, &cell, &record, &events, &event_count);
  if (status.code == VL_OK && !fits) record = vl_record_create_failure(&cell, "skipped", reason);
  if (status.code != VL_OK) {
    vl_runner_destroy(&runner);
    return status;
  }
  vl_progress_end(&progress, record);
  status = store_cell(command, runner, record, events, event_count);
  vl_runner_destroy(&runner);
  if (command->json)
    print_json(record);
  else
    print_cell(&cell, record);
  *exit_code = vl_cell_exit_code(record);
  json_decref(record);
  free(events);
  return status;
}

/* ---- A suite -------------------------------------------------------------------------------------------------- */

/* Options over the suite's own values; cells that become the same are one. */
static Status override_cells(const RunCommand *command, Suite *suite) {
  json_t *seen = json_object();
  Status status = vl_ok();
  int64_t kept = 0;
  for (int64_t i = 0; i < suite->cell_count && status.code == VL_OK; i++) {
    char key[17];
    SuiteCell cell = suite->cells[i];
    if (command->plan) snprintf(cell.spec.device, sizeof cell.spec.device, "plan");
    if (command->plan) cell.spec.data[0] = '\0';
    status = vl_cell_options_override(&command->cell, &cell);
    vl_cell_key(&cell, key);
    if (json_object_get(seen, key)) continue;
    json_object_set_new(seen, key, json_true());
    suite->cells[kept++] = cell;
  }
  json_decref(seen);
  suite->cell_count = kept;
  return status;
}

static void print_cells(const Suite *suite, bool as_json) {
  if (as_json) {
    json_t *listing = vl_suite_listing(suite);
    print_json(listing);
    json_decref(listing);
    return;
  }
  for (int64_t i = 0; i < suite->cell_count; i++) {
    char label[VL_RECIPE_BYTES + 160];
    vl_cell_label(&suite->cells[i], label, sizeof label);
    puts(label);
  }
}

static Status suite_directory(const RunCommand *command, const Suite *suite, char *directory, size_t size) {
  if (command->output) {
    size_t length = strlen(command->output);
    if (length >= size)
      return vl_error(VL_INVALID, "path too long (%zu characters): %.80s...", length, command->output);
    memcpy(directory, command->output, length + 1);
    return vl_ok();
  }
  if (!command->resume) {
    vl_default_directory(suite->name, directory, size);
    return vl_ok();
  }
  char link[PATH_MAX], target[NAME_MAX + 1];
  snprintf(link, sizeof link, "vramlab-results/%s/latest", suite->name);
  ssize_t length = readlink(link, target, sizeof target - 1);
  if (length < 0) return vl_error(VL_INVALID, "nothing to resume: there is no %s here", link);
  target[length] = '\0';
  snprintf(directory, size, "vramlab-results/%s/%s", suite->name, target);
  return vl_ok();
}

static json_t *summary(const Suite *suite, const Store *store, const SuiteRunCounts *counts, Status status) {
  return json_pack("{ss so si sI sI sI sI sI sb}", "suite", suite->name, "store",
                   vl_json_text(vl_store_path(store)), "schema_version", VL_SCHEMA_VERSION, "cells",
                   (json_int_t)counts->cells, "ran", (json_int_t)counts->ran, "already_there",
                   (json_int_t)counts->already_there, "failed", (json_int_t)counts->failed, "skipped",
                   (json_int_t)counts->skipped, "interrupted", status.code == VL_INTERRUPTED);
}

static Status finish_suite(const RunCommand *command, const Suite *suite, Store *store,
                           const SuiteRunCounts *counts, Status status) {
  Status rebuilt = vl_store_rebuild(store);
  if (status.code == VL_OK) status = rebuilt;
  if (status.code == VL_INTERRUPTED)
    fprintf(stderr, "vramlab: to go on: %s%s%s\n", command->command_line, command->output ? "" : " -o ",
            command->output ? "" : vl_store_path(store));
  if (status.code == VL_OK) status = vl_report_write(store, command->json || command->ctest ? NULL : stdout);
  if (!command->json) return status;
  json_t *json = summary(suite, store, counts, status);
  print_json(json);
  json_decref(json);
  return status;
}

/* One cell's record instead of the suite's account. Figures of a store with other cells are not the cell's.
 */
static int print_test(const Suite *suite, const Store *store) {
  char key[17];
  vl_cell_key(&suite->cells[0], key);
  const json_t *record = vl_store_find(store, key);
  RecordSet all = vl_store_records(store);
  const char *figures_of = all.count == 1 ? vl_store_path(store) : NULL;
  free(all.records);
  return record ? vl_ctest_print(record, figures_of) : 1;
}

static Status run_cells(const RunCommand *command, const Suite *suite, int *exit_code) {
  char directory[PATH_MAX];
  Store *store;
  SuiteRunCounts counts;
  VL_TRY(suite_directory(command, suite, directory, sizeof directory));
  VL_TRY(open_store(directory, suite->name, command->command_line, &store));
  Status status = command->output || command->resume ? vl_ok() : vl_mark_latest(suite->name, directory);
  SuiteRunOptions options = {
      .quiet = command->quiet, .rerun_failed = command->failed, .retries = command->retries};
  if (status.code == VL_OK) {
    status = vl_suite_run(suite, store, &options, &counts);
    status = finish_suite(command, suite, store, &counts, status);
    *exit_code = counts.failed > 0 ? 1 : counts.skipped > 0 && counts.skipped == counts.cells ? 77 : 0;
    if (status.code == VL_OK && command->ctest) *exit_code = print_test(suite, store);
  }
  vl_store_close(&store);
  return status;
}

static Status run_suite(const RunCommand *command, int *exit_code) {
  Suite *suite;
  VL_TRY(vl_suite_load(command->suite, &suite));
  Status status = override_cells(command, suite);
  if (status.code == VL_OK) status = vl_suite_keep_matching(suite, command->filter, true);
  if (status.code == VL_OK) status = vl_suite_keep_matching(suite, command->exclude, false);
  if (status.code == VL_OK) status = vl_suite_keep_cell(suite, command->cell_key);
  if (status.code == VL_OK) vl_suite_keep_shard(suite, command->shard);
  if (status.code == VL_OK && command->repeat > 0) vl_suite_repeat(suite, command->repeat);
  if (status.code == VL_OK) vl_suite_order(suite, command->order_seed);
  if (status.code == VL_OK && suite->cell_count == 0)
    status =
        vl_error(VL_INVALID, "--filter, --exclude and --shard leave no cell of suite \"%s\"", suite->name);
  if (status.code == VL_OK && command->ctest && suite->cell_count != 1)
    status = vl_error(VL_INVALID, "--ctest takes one cell, not %lld of suite \"%s\"; --cell chooses it",
                      (long long)suite->cell_count, suite->name);
  if (status.code == VL_OK && command->dry_run)
    print_cells(suite, command->json);
  else if (status.code == VL_OK)
    status = run_cells(command, suite, exit_code);
  vl_suite_destroy(&suite);
  return status;
}

/* What was typed, for the store's head. */
static void join_arguments(int argc, char **argv, char *line, size_t size) {
  line[0] = '\0';
  for (int i = 0; i < argc; i++) {
    size_t used = strlen(line);
    const char *quote = strpbrk(argv[i], " \"$&;*?<>|(){}") && i > 0 ? "'" : "";
    snprintf(line + used, size - used, "%s%s%s%s", i ? " " : "", quote, argv[i], quote);
  }
}

int vl_command_run(int argc, char **argv) {
  RunCommand command = {.order_seed = -1};
  const char *name = strrchr(argv[0], ' ');
  command.plan = strcmp(name ? name + 1 : argv[0], "plan") == 0;
  vl_cell_options_init(&command.cell);
  join_arguments(argc, argv, command.command_line, sizeof command.command_line);
  vl_command_parse(command.plan ? &plan_argp : &run_argp, argc, argv, &command);
  if (command.plan && (command.cell.given & GIVEN_DEVICE) && strcmp(command.cell.spec.device, "plan") != 0)
    return vl_command_fail(
        vl_error(VL_INVALID, "plan predicts; for device %s there is run", command.cell.spec.device));
  int exit_code = 0;
  Status status;
  if (command.suite) {
    status = run_suite(&command, &exit_code);
  } else {
    if (command.plan) snprintf(command.cell.spec.device, sizeof command.cell.spec.device, "plan");
    status = vl_cell_options_resolve(&command.cell);
    if (status.code == VL_OK) status = run_one(&command, &exit_code);
  }
  if (status.code == VL_OK) return exit_code;
  int failure = vl_command_fail(status);
  /* The one thing that is nobody's mistake: the hardware is not here. */
  return status.code == VL_ENVIRONMENT && strcmp(command.cell.spec.device, "cuda") == 0 ? 77 : failure;
}
