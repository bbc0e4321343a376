/* vramlab explain: what an out-of-memory message means. */
#include "harness/explain.h"
#include "harness/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 0x200, KEY_CASE, KEY_BATCH, KEY_MESSAGE };
enum { MAX_TEXT_BYTES = 64 << 20 };

typedef struct ExplainCommand {
  const char *path;
  OomJob job;
  int64_t message; /* from 1 */
  bool json;
} ExplainCommand;

static const struct argp_option options_table[] = {
    {"case", KEY_CASE, "NAME", 0, "the case nearest to your model, for the command to type next", 1},
    {"global-batch", KEY_BATCH, "N", 0, "the samples of your step, for the same", 1},
    {"batch", KEY_BATCH, NULL, OPTION_ALIAS, NULL, 1},
    {"message", KEY_MESSAGE, "N", 0, "of several different messages the N-th; the first when not given", 2},
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 3},
    {0}};

static void take_number(const char *what, const char *text, int64_t high, int64_t *value,
                        struct argp_state *state) {
  Status status = vl_parse_integer(what, text, 1, high, value);
  if (status.code != VL_OK) argp_error(state, "%s", status.message);
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ExplainCommand *command = state->input;
  switch (key) {
  case KEY_CASE: {
    const Case *found = vl_case_find(text);
    if (!found) argp_error(state, "--case: no case is named \"%s\" (vramlab list cases)", text);
    command->job.case_name = found->name;
    return 0;
  }
  case KEY_BATCH: take_number("--global-batch", text, INT64_C(1) << 31, &command->job.batch, state); return 0;
  case KEY_MESSAGE: take_number("--message", text, VL_OOM_MAX_MESSAGES, &command->message, state); return 0;
  case KEY_JSON: command->json = true; return 0;
  case ARGP_KEY_ARG:
    if (command->path) argp_error(state, "one text at a time");
    command->path = text;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp explain_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[FILE|-]",
    .doc =
        "Finds an out-of-memory message in a file or, with - or nothing, on standard input, and says what it "
        "means: shortage or fragmentation, and by which rule; the bytes that are missing; what a setting of "
        "the allocator could return at most, and what has to come from the model; who else is on the card; "
        "what to type next."
        "\vThe text may be a whole log, with colours and lines broken anywhere. Understood are the messages "
        "of PyTorch (every version; CUDA, HIP, MPS, CPU), of JAX and TensorFlow, and the error codes of CUDA "
        "and its libraries; what a message does not say is not guessed. Exit codes: 0 explained; 2 no "
        "message "
        "found, or bad usage."};

static Status read_all(FILE *file, const char *name, char **text, size_t *size) {
  size_t capacity = 1 << 16;
  *text = vl_allocate(capacity);
  *size = 0;
  for (;;) {
    *size += fread(*text + *size, 1, capacity - *size, file);
    if (ferror(file)) return vl_error(VL_INVALID, "%s: %s", name, strerror(errno));
    if (*size < capacity) return vl_ok();
    if (capacity >= MAX_TEXT_BYTES)
      return vl_error(VL_INVALID, "%s: longer than 64 MiB; give the part around the message (tail -c 1M)",
                      name);
    capacity *= 2;
    *text = vl_reallocate(*text, capacity);
  }
}

static Status read_text(const char *path, char **text, size_t *size) {
  bool standard = !path || strcmp(path, "-") == 0;
  *text = NULL;
  FILE *file = standard ? stdin : fopen(path, "rb");
  if (!file) return vl_error(VL_INVALID, "%s: %s", path, strerror(errno));
  Status status = read_all(file, standard ? "standard input" : path, text, size);
  if (!standard) fclose(file);
  return status;
}

static Status explain(const ExplainCommand *command, const char *text, size_t size) {
  OomMessage *messages = vl_allocate(VL_OOM_MAX_MESSAGES * sizeof *messages);
  int32_t found = vl_oom_messages(text, size, messages);
  int64_t which = command->message > 0 ? command->message : 1;
  Status status = vl_ok();
  if (found == 0)
    status = vl_error(VL_INVALID, "no out-of-memory message in %s; looked for %s",
                      command->path ? command->path : "standard input", vl_oom_looked_for());
  else if (which > found)
    status = vl_error(VL_INVALID, "--message %lld: there are %d different messages", (long long)which, found);
  if (status.code == VL_OK && command->json) {
    json_t *json = vl_oom_json(&messages[which - 1], &command->job);
    json_object_set_new(json, "messages", json_integer(found));
    char *dump = json_dumps(json, JSON_INDENT(2));
    puts(dump);
    free(dump);
    json_decref(json);
  } else if (status.code == VL_OK) {
    vl_oom_print(&messages[which - 1], &command->job, found, stdout);
  }
  free(messages);
  return status;
}

int vl_command_explain(int argc, char **argv) {
  ExplainCommand command = {0};
  char *text;
  size_t size = 0;
  vl_command_parse(&explain_argp, argc, argv, &command);
  Status status = read_text(command.path, &text, &size);
  if (status.code == VL_OK) status = explain(&command, text, size);
  free(text);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
