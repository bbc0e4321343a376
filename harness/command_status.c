/* vramlab status: a running suite, seen from another terminal. */
#include "harness/columns.h"
#include "harness/options.h"
#include "harness/suite_state.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct StatusCommand {
  const char *store;
  int64_t watch_s; /* 0: once */
  bool json;
} StatusCommand;

enum { KEY_JSON = 0x200, USUAL_WATCH_S = 2 };

static const struct argp_option options_table[] = {
    {"watch", 'w', "SECONDS", OPTION_ARG_OPTIONAL,
     "again every so many seconds (2), until the suite has ended", 1},
    {"json", KEY_JSON, NULL, 0, "print one JSON object (with --watch one a line)", 2},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  StatusCommand *command = state->input;
  switch (key) {
  case 'w':
    command->watch_s = USUAL_WATCH_S;
    if (text) {
      Status status = vl_parse_integer("--watch", text, 1, 86400, &command->watch_s);
      if (status.code != VL_OK) argp_error(state, "%s", status.message);
    }
    return 0;
  case KEY_JSON: command->json = true; return 0;
  case ARGP_KEY_ARG:
    if (command->store) argp_error(state, "one store at a time");
    command->store = text;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp status_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[STORE]",
    .doc =
        "Tells how far a suite is, while it runs or after: cells done, failed and left, what runs now, the "
        "memory of its processes now and at most, the time left. STORE is a directory or latest (the "
        "default)."
        "\vExit codes: 0 it runs, or has ended well; 1 it ended with failed cells, or its process died; 2 "
        "bad "
        "usage, or no suite there; 4 it was interrupted (run again with --resume)."};

/* ---- What is going on ------------------------------------------------------------------------------------------ */

typedef struct View {
  SuiteState state;
  const char *now; /* running, finished, interrupted, failed, died, elsewhere */
  double age_s;    /* of what the suite last told; NaN: not known, of another machine or boot */
  int64_t now_bytes, peak_bytes;
} View;

static Status look(const char *directory, View *view) {
  char host[256];
  *view = (View){.now_bytes = -1, .peak_bytes = -1};
  VL_TRY(vl_suite_state_read(directory, &view->state));
  const SuiteState *state = &view->state;
  vl_host_name(host, sizeof host);
  ProcessId self = vl_process_self();
  bool here = strcmp(host, state->host) == 0 && strcmp(self.boot, state->process.boot) == 0;
  view->age_s = here ? (double)(vl_monotonic_ns() - state->updated_ns) * 1e-9 : NAN;
  if (*state->end)
    view->now = state->end;
  else if (strcmp(host, state->host) != 0)
    view->now = "elsewhere";
  else if (!vl_process_is_alive(&state->process))
    view->now = "died";
  else
    view->now = "running";
  if (strcmp(view->now, "running") == 0)
    vl_process_descendants_memory(state->process.pid, &view->now_bytes, &view->peak_bytes);
  return vl_ok();
}

static bool goes_on(const View *view) {
  return strcmp(view->now, "running") == 0 || strcmp(view->now, "elsewhere") == 0;
}

/* The estimate, less the time since it was made. */
static double left_s(const View *view) {
  double left = view->state.left_s - (isnan(view->age_s) ? 0 : view->age_s);
  return !goes_on(view) ? NAN : left > 0 || isnan(left) ? left : 0;
}

static int exit_code(const View *view) {
  if (strcmp(view->now, "interrupted") == 0) return 4;
  bool bad = strcmp(view->now, "died") == 0 || strcmp(view->now, "failed") == 0;
  return bad || (!goes_on(view) && view->state.failed > 0) ? 1 : 0;
}

/* ---- Telling it ------------------------------------------------------------------------------------------------ */

static const char *seconds(double value, char text[32]) {
  vl_format_seconds(value, text, 32);
  return text;
}

static void print_state(const char *directory, const View *view) {
  const SuiteState *state = &view->state;
  char text[32], bytes[32];
  printf("suite %s in %s: ", state->suite, directory);
  if (strcmp(view->now, "running") == 0)
    printf("running (pid %lld)\n", (long long)state->process.pid);
  else if (strcmp(view->now, "elsewhere") == 0)
    printf("runs on %s (pid %lld), which cannot be looked at from here\n", state->host,
           (long long)state->process.pid);
  else if (strcmp(view->now, "died") == 0)
    printf("its process (pid %lld) died without ending it; what was finished is stored, run again with "
           "--resume\n",
           (long long)state->process.pid);
  else
    printf("%s%s\n", view->now, strcmp(view->now, "interrupted") == 0 ? "; run again with --resume" : "");
  /* One that died may have stored more than it had told. */
  printf("  cells      %s%lld of %lld done, %lld failed, %lld skipped, %lld left",
         strcmp(view->now, "died") == 0 ? "at least " : "", (long long)state->done, (long long)state->total,
         (long long)state->failed, (long long)state->skipped, (long long)(state->total - state->done));
  if (state->already_there > 0) printf("; %lld were there before", (long long)state->already_there);
  putchar('\n');
  if (goes_on(view) && *state->label) {
    printf("  now        %s", state->label);
    if (state->steps > 0) printf(", step %d of %d", (int)state->step, (int)state->steps);
    printf(", for %s\n", seconds(state->cell_s + (isnan(view->age_s) ? 0 : view->age_s), text));
  }
  if (view->now_bytes >= 0) {
    vl_format_bytes(view->now_bytes, bytes, sizeof bytes);
    vl_format_bytes(view->peak_bytes, text, sizeof text);
    printf("  memory     %s now, %s peak (resident, of the processes of cells)\n", bytes, text);
  }
  if (goes_on(view))
    printf("  time left  %s\n",
           isnan(left_s(view)) ? "not known before the first cell of its kind" : seconds(left_s(view), text));
  printf("  told       %s", state->updated_utc);
  if (!isnan(view->age_s)) printf(", %s ago", seconds(view->age_s, text));
  putchar('\n');
  fflush(stdout);
}

static json_t *known(int64_t value) { return value < 0 ? json_null() : json_integer((json_int_t)value); }
static json_t *real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static void print_json(const char *directory, const View *view, bool lines) {
  const SuiteState *state = &view->state;
  json_t *json = json_pack("{ss ss ss ss sI sI sI sI sI sI}", "state", view->now, "suite", state->suite,
                           "store", directory, "host", state->host, "pid", (json_int_t)state->process.pid,
                           "cells", (json_int_t)state->total, "done", (json_int_t)state->done, "failed",
                           (json_int_t)state->failed, "skipped", (json_int_t)state->skipped, "left",
                           (json_int_t)(state->total - state->done));
  bool cell = goes_on(view) && *state->label;
  json_object_set_new(json, "already_there", json_integer((json_int_t)state->already_there));
  json_object_set_new(json, "now", cell ? json_string(state->label) : json_null());
  json_object_set_new(json, "step", cell && state->steps > 0 ? json_integer(state->step) : json_null());
  json_object_set_new(json, "steps", cell && state->steps > 0 ? json_integer(state->steps) : json_null());
  json_object_set_new(json, "cell_s", cell ? real(state->cell_s + view->age_s) : json_null());
  json_object_set_new(json, "memory_bytes", known(view->now_bytes));
  json_object_set_new(json, "peak_memory_bytes", known(view->peak_bytes));
  json_object_set_new(json, "left_s", real(left_s(view)));
  json_object_set_new(json, "told_utc", json_string(state->updated_utc));
  json_object_set_new(json, "told_s_ago", real(view->age_s));
  char *text = json_dumps(json, (lines ? 0U : JSON_INDENT(2)) | JSON_REAL_PRECISION(17));
  puts(text);
  fflush(stdout);
  free(text);
  json_decref(json);
}

/* A store's directory; its results.h5 stands for it. */
static void directory_of(const char *store, char directory[PATH_MAX]) {
  struct stat facts;
  bool latest = !store || strcmp(store, "latest") == 0;
  snprintf(directory, PATH_MAX, "%s", latest ? "vramlab-results/latest" : store);
  if (stat(directory, &facts) != 0 || !S_ISREG(facts.st_mode)) return;
  char *slash = strrchr(directory, '/');
  if (slash)
    *slash = '\0';
  else
    snprintf(directory, PATH_MAX, ".");
}

int vl_command_status(int argc, char **argv) {
  StatusCommand command = {0};
  char directory[PATH_MAX];
  vl_command_parse(&status_argp, argc, argv, &command);
  directory_of(command.store, directory);
  for (;;) {
    View view;
    Status status = look(directory, &view);
    if (status.code != VL_OK) return vl_command_fail(status);
    if (command.json) {
      print_json(directory, &view, command.watch_s > 0);
    } else {
      if (command.watch_s > 0 && isatty(STDOUT_FILENO)) fputs("\033[H\033[J", stdout);
      print_state(directory, &view);
    }
    if (command.watch_s == 0 || !goes_on(&view)) return exit_code(&view);
    sleep((unsigned)command.watch_s);
  }
}
