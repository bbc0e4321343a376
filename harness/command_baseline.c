/* vramlab baseline: what stores are compared with. */
#include "harness/baseline.h"
#include "harness/options.h"
#include "harness/report.h"

#include <stdlib.h>
#include <string.h>

typedef struct BaselineCommand {
  const char *verb, *store, *reason, *baselines;
} BaselineCommand;

enum { KEY_BASELINES = 0x200 };

static const struct argp_option options_table[] = {
    {"reason", 'r', "TEXT", 0, "why this is how it should be from now on; kept in the file", 0},
    {"baselines", KEY_BASELINES, "DIR", 0, "where they are (results/baselines)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  BaselineCommand *command = state->input;
  switch (key) {
  case 'r': command->reason = text; return 0;
  case KEY_BASELINES: command->baselines = text; return 0;
  case ARGP_KEY_ARG:
    if (!command->verb)
      command->verb = text;
    else if (!command->store)
      command->store = text;
    else
      argp_error(state, "one store at a time");
    return 0;
  case ARGP_KEY_END:
    if (!command->verb || (strcmp(command->verb, "update") != 0 && strcmp(command->verb, "show") != 0))
      argp_error(state, "say what to do: update or show");
    if (strcmp(command->verb, "update") == 0 &&
        (!command->reason || !command->reason[strspn(command->reason, " ")]))
      argp_error(state, "update needs --reason: who finds another figure tonight wants to know");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp baseline_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "update [STORE]\nshow [STORE]",
    .doc = "Keeps the records of a store as the baseline of the machine they ran on (update), or names the "
           "baseline that "
           "a store would be compared with and why it is what it is (show). STORE is a directory, its "
           "results.h5, or "
           "latest (the default). `vramlab compare --baseline STORE` compares."};

static Status run(const BaselineCommand *command) {
  Store *store;
  VL_TRY(vl_store_open(command->store, &store));
  RecordSet records = vl_store_records(store);
  Status status;
  if (strcmp(command->verb, "update") == 0) {
    status = vl_baseline_update(command->baselines, &records, command->reason, stdout);
  } else {
    Baseline baseline;
    status = vl_baseline_load(command->baselines, &records, &baseline);
    if (status.code == VL_OK) {
      printf("%s: %d records\n", baseline.path, baseline.records.count);
      printf("last updated %s\n", baseline.reason);
    }
    vl_baseline_free(&baseline);
  }
  free(records.records);
  vl_store_close(&store);
  return status;
}

int vl_command_baseline(int argc, char **argv) {
  BaselineCommand command = {0};
  vl_command_parse(&baseline_argp, argc, argv, &command);
  Status status = run(&command);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
