/* vramlab replay: a recorded allocation trace under every policy. */
#include "harness/options.h"
#include "harness/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct ReplayCommand {
  const char *trace, *policy, *cell, *write;
  int64_t capacity_bytes; /* -1: the trace's */
  bool quick, json;
} ReplayCommand;

enum { KEY_POLICY = 0x200, KEY_CAPACITY, KEY_CELL, KEY_WRITE, KEY_QUICK, KEY_JSON };

static const struct argp_option options_table[] = {
    {"policy", KEY_POLICY, "NAME", 0, "only this one, with all its options", 1},
    {"capacity", KEY_CAPACITY, "SIZE", 0,
     "most that may be reserved, 0 for no limit; when not given, what the trace says", 1},
    {"quick", KEY_QUICK, NULL, 0, "leave out the search for the least capacity", 1},
    {"cell", KEY_CELL, "KEY", 0, "of a store: which cell, by the beginning of its key", 2},
    {"write", KEY_WRITE, "FILE", 0, "write the trace of a store's cell there as well", 2},
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 3},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ReplayCommand *command = state->input;
  switch (key) {
  case KEY_POLICY: command->policy = text; return 0;
  case KEY_CAPACITY: {
    Status status = vl_parse_bytes(text, &command->capacity_bytes);
    if (status.code != VL_OK) argp_error(state, "--capacity: %s", status.message);
    return 0;
  }
  case KEY_CELL: command->cell = text; return 0;
  case KEY_WRITE: command->write = text; return 0;
  case KEY_QUICK: command->quick = true; return 0;
  case KEY_JSON: command->json = true; return 0;
  case ARGP_KEY_ARG:
    if (command->trace) argp_error(state, "one trace at a time");
    command->trace = text;
    return 0;
  case ARGP_KEY_END:
    if (!command->trace) argp_error(state, "give a trace, or a store with a cell that kept its timeline");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp replay_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "TRACE",
    .doc =
        "Replays an allocation trace under every allocation policy but async, on memory that is only "
        "numbers: what "
        "each "
        "reserves, beside the most that was in use at once, whether it runs out of memory under a capacity "
        "and "
        "why, and what the settings of PyTorch's allocator would have given."
        "\vTRACE is a file of JSON lines (results/TRACE.md), - for standard input, or a store: then the last "
        "step "
        "of a cell that kept its timeline (vramlab run or plan --timeline -o STORE). A snapshot of PyTorch "
        "(torch.cuda.memory._dump_snapshot) becomes a trace by scripts/data/pytorch_snapshot.py."};

/* ---- The cell of a store ------------------------------------------------------------------------------------------- */

/* A directory, or a file of HDF5. */
static bool is_store(const char *path) {
  static const char signature[] = "\211HDF\r\n\032\n";
  struct stat facts;
  char start[8] = "";
  if (strcmp(path, "latest") == 0) return true;
  if (strcmp(path, "-") == 0 || stat(path, &facts) != 0) return false;
  if (S_ISDIR(facts.st_mode)) return true;
  FILE *file = S_ISREG(facts.st_mode) ? fopen(path, "rb") : NULL;
  if (!file) return false;
  bool same =
      fread(start, 1, sizeof start, file) == sizeof start && memcmp(start, signature, sizeof start) == 0;
  fclose(file);
  return same;
}

static Status trace_of_store(const ReplayCommand *command, TraceFile **file) {
  Store *store;
  TimelineEvent *events;
  int64_t count;
  const json_t *record = NULL;
  *file = NULL;
  VL_TRY(vl_store_open(command->trace, &store));
  Status status = vl_store_find_timeline(store, command->cell, &events, &count, &record);
  if (status.code == VL_OK) {
    status = vl_trace_from_timeline(events, count, file);
    free(events);
  }
  if (status.code == VL_OK) {
    char text[160];
    vl_store_cell_text(record, text, sizeof text);
    bool failed = vl_record_has_status(record, "oom");
    (*file)->source = vl_arena_format((*file)->arena, "the %s step of %s, %s", failed ? "failed" : "last",
                                      text, vl_record_text(record, "provenance"));
    int64_t capacity_bytes = vl_record_integer(record, "capacity_bytes");
    (*file)->capacity_bytes = capacity_bytes > 0 ? capacity_bytes : 0;
  }
  vl_store_close(&store);
  return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------------- */

static Status write_trace(const TraceFile *file, const char *path) {
  FILE *out = fopen(path, "w");
  if (!out) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  Status status = vl_trace_write(file, out);
  return fclose(out) == 0 || status.code != VL_OK ? status
                                                  : vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
}

static Status replay(const ReplayCommand *command, const TraceFile *file) {
  ReplaySet set;
  int64_t capacity_bytes = command->capacity_bytes >= 0 ? command->capacity_bytes : file->capacity_bytes;
  VL_TRY(vl_replay_run(file, command->policy, capacity_bytes, !command->quick, &set));
  if (command->json) {
    json_t *json = vl_replay_json(&set);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    puts(text);
    free(text);
    json_decref(json);
  } else {
    vl_replay_print(&set, stdout);
  }
  vl_replay_free(&set);
  return vl_ok();
}

int vl_command_replay(int argc, char **argv) {
  ReplayCommand command = {.capacity_bytes = -1};
  TraceFile *file = NULL;
  vl_command_parse(&replay_argp, argc, argv, &command);
  bool store = is_store(command.trace);
  Status status = vl_ok();
  if (!store && (command.cell || command.write))
    status = vl_error(VL_INVALID, "--cell and --write are for a store; %s is not one", command.trace);
  if (status.code == VL_OK)
    status = store ? trace_of_store(&command, &file) : vl_trace_read(command.trace, &file);
  if (status.code == VL_OK && command.write) status = write_trace(file, command.write);
  if (status.code == VL_OK) status = replay(&command, file);
  vl_trace_destroy(&file);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
