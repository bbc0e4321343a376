/* vramlab compare: whether a store regressed against another, or against the baseline of its machine. */
#include "harness/baseline.h"
#include "harness/compare_ops.h"
#include "harness/options.h"
#include "harness/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct CompareCommand {
  const char *stores[2], *junit, *baselines;
  int32_t store_count;
  bool json, all, baseline;
  CompareOptions options;
} CompareCommand;

enum { KEY_JSON = 0x200, KEY_JUNIT, KEY_ALL, KEY_MIN_CHANGE, KEY_BASELINES };

static const struct argp_option options_table[] = {
    {"baseline", 'b', NULL, 0, "compare with the baseline of the machine the store ran on (vramlab baseline)",
     1},
    {"baselines", KEY_BASELINES, "DIR", 0, "where baselines are (results/baselines)", 1},
    {"min-change", KEY_MIN_CHANGE, "PERCENT", 0,
     "times that differ by less are the same (3; four times that where only steps of few processes are "
     "there)",
     2},
    {"all", KEY_ALL, NULL, 0, "also what stayed the same", 3},
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 3},
    {"junit", KEY_JUNIT, "FILE", 0, "write JUnit's XML there as well", 3},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  CompareCommand *command = state->input;
  switch (key) {
  case 'b': command->baseline = true; return 0;
  case KEY_BASELINES: command->baselines = text; return 0;
  case KEY_ALL: command->all = true; return 0;
  case KEY_JSON: command->json = true; return 0;
  case KEY_JUNIT: command->junit = text; return 0;
  case KEY_MIN_CHANGE: {
    json_t *number = json_loads(text, JSON_DECODE_ANY, NULL);
    double percent = json_is_number(number) ? json_number_value(number) : -1;
    json_decref(number);
    if (!(percent >= 0 && percent <= 100))
      argp_error(state, "--min-change '%s': accepted: 0 to 100 percent", text);
    command->options.min_change = percent / 100;
    return 0;
  }
  case ARGP_KEY_ARG:
    if (command->store_count == 2) argp_error(state, "two stores, the base first");
    command->stores[command->store_count++] = text;
    return 0;
  case ARGP_KEY_END:
    if (command->store_count != (command->baseline ? 1 : 2))
      argp_error(state, command->baseline ? "--baseline goes with one store"
                                          : "give two stores, the base first; or --baseline and one");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp compare_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "BASE NEW",
    .doc =
        "Compares the cells of two stores: memory to the byte, times by distribution, losses, counts and "
        "how cells "
        "ended. Exits 1 when something regressed."
        "\vA time regressed when it is longer by --min-change and both Welch's test on logarithms (corrected "
        "for "
        "the number of cells by Holm's method) and Mann-Whitney's say that this is not chance. Samples are "
        "processes, the median step of each, where there are at least four on both sides (repeat in a "
        "suite); "
        "steps of one process resemble one another, so that with them alone four times the change is needed. "
        "Fewer say nothing. Two stores measured one after the other may differ by what the machine did "
        "meanwhile: as much as its processes differ is allowed for. Stores measured in turn "
        "(scripts/side-by-side) are compared round by round instead, which finds less on a shared machine, "
        "and what moved all cells alike as well. "
        "Of cells that kept their ops (run --timeline) on both sides it also tells which ops run another "
        "implementation "
        "and where in the model time changed; that is no verdict."};

static Status write_junit(const StoreComparison *comparison, const char *path) {
  FILE *out = fopen(path, "w");
  if (!out) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  vl_compare_junit(comparison, out);
  bool failed = ferror(out) != 0;
  return fclose(out) == 0 && !failed ? vl_ok() : vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
}

/* base_store: NULL for a baseline, which keeps no ops. */
static Status show(const CompareCommand *command, const RecordSet *base, const Store *base_store,
                   const RecordSet *now, const Store *now_store, int *code) {
  StoreComparison comparison;
  Status status = vl_compare_records(base, now, &command->options, &comparison);
  if (status.code == VL_OK && base_store) status = vl_compare_ops(base_store, now_store, &comparison);
  if (status.code == VL_OK && command->json) {
    json_t *json = vl_compare_json(&comparison);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    puts(text);
    free(text);
    json_decref(json);
  } else if (status.code == VL_OK) {
    vl_compare_print(&comparison, command->all, stdout);
  }
  if (status.code == VL_OK && command->junit) status = write_junit(&comparison, command->junit);
  *code = status.code == VL_OK && vl_compare_regressed(&comparison);
  vl_compare_free(&comparison);
  return status;
}

static Status compare(const CompareCommand *command, int *code) {
  Store *base = NULL, *now = NULL;
  Baseline baseline = {0};
  RecordSet of_base = {0}, of_now = {0};
  Status status = vl_store_open(command->stores[command->store_count - 1], &now);
  if (status.code == VL_OK) of_now = vl_store_records(now);
  if (status.code == VL_OK && command->baseline) {
    status = vl_baseline_load(command->baselines, &of_now, &baseline);
    of_base = baseline.records;
    if (status.code == VL_OK && !command->json) printf("Baseline %s: %s\n", baseline.path, baseline.reason);
  } else if (status.code == VL_OK) {
    status = vl_store_open(command->stores[0], &base);
    if (status.code == VL_OK) of_base = vl_store_records(base);
  }
  if (status.code == VL_OK) status = show(command, &of_base, base, &of_now, now, code);
  if (!command->baseline) free(of_base.records);
  free(of_now.records);
  vl_baseline_free(&baseline);
  vl_store_close(&base);
  vl_store_close(&now);
  return status;
}

int vl_command_compare(int argc, char **argv) {
  CompareCommand command = {.options = vl_compare_usual()};
  int code = 0;
  vl_command_parse(&compare_argp, argc, argv, &command);
  Status status = compare(&command, &code);
  return status.code == VL_OK ? code : vl_command_fail(status);
}
