/* vramlab export: a store in the formats that other tools read. */
#include "harness/export.h"
#include "harness/options.h"
#include "harness/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const ExportFormat formats[] = {
    {"csv", "all columns of all cells (RFC 4180)", false, vl_export_csv},
    {"jsonl", "records, one JSON object a line", false, vl_export_jsonl},
    {"junit", "cells as tests, in JUnit's XML", false, vl_export_junit},
    {"prometheus", "gauges for node_exporter's textfile collector", false, vl_export_prometheus},
    {"tensorboard", "a directory of runs with losses, times and memory by step (-o DIR)", true,
     vl_export_tensorboard},
    {"torch-snapshot", "a timeline as PyTorch's memory snapshot, for pytorch.org/memory_viz", false,
     vl_export_snapshot},
    {"trace", "timelines as Chrome's trace events, for ui.perfetto.dev", false, vl_export_trace},
};
enum { FORMAT_COUNT = sizeof formats / sizeof *formats };

const ExportFormat *vl_export_all(int32_t *count) {
  *count = FORMAT_COUNT;
  return formats;
}

typedef struct ExportCommand {
  const char *store, *output, *cell;
  const ExportFormat *format;
} ExportCommand;

static const struct argp_option options_table[] = {
    {"format", 'f', "FORMAT", 0, "csv, jsonl, junit, prometheus, tensorboard, torch-snapshot or trace", 0},
    {"output", 'o', "FILE", 0, "where it goes; standard output when not given", 0},
    {"cell", 'c', "KEY", 0, "only the cell whose key begins so", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ExportCommand *command = state->input;
  switch (key) {
  case 'o': command->output = text; return 0;
  case 'c': command->cell = text; return 0;
  case 'f':
    for (int32_t i = 0; i < FORMAT_COUNT; i++)
      if (strcmp(text, formats[i].name) == 0) command->format = &formats[i];
    if (!command->format || strcmp(command->format->name, text) != 0)
      argp_error(
          state,
          "unknown format '%s'; accepted: csv, jsonl, junit, prometheus, tensorboard, torch-snapshot, trace",
          text);
    return 0;
  case ARGP_KEY_ARG:
    if (command->store) argp_error(state, "one store at a time");
    command->store = text;
    return 0;
  case ARGP_KEY_END:
    if (!command->format)
      argp_error(state, "give --format");
    else if (command->format->is_directory && !command->output)
      argp_error(state, "%s is a directory: name it with --output", command->format->name);
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp export_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[STORE]",
    .doc = "Writes a store in a format that other tools read. STORE is a directory, its results.h5, or "
           "latest (the "
           "default). Timelines are there where cells were run with --timeline -o STORE."};

static RecordSet choose_cells(const Store *store, const char *prefix) {
  RecordSet records = vl_store_records(store);
  int32_t kept = 0;
  for (int32_t i = 0; i < records.count; i++) {
    const char *key = vl_record_text(records.records[i], "cell_key");
    if (!prefix || (key && strncmp(key, prefix, strlen(prefix)) == 0))
      records.records[kept++] = records.records[i];
  }
  records.count = kept;
  return records;
}

/* Whole or not at all: to a file beside it, then in its place. */
static Status write_to_file(const ExportCommand *command, const ExportInput *input) {
  char temporary[4200];
  snprintf(temporary, sizeof temporary, "%s.tmp", command->output);
  FILE *out = fopen(temporary, "wb");
  if (!out) return vl_error(VL_ENVIRONMENT, "%s: %s", temporary, strerror(errno));
  Status status = command->format->write(input, out);
  bool failed = fflush(out) != 0 || ferror(out);
  int error = errno;
  failed = fclose(out) != 0 || failed;
  if (status.code == VL_OK && failed)
    status = vl_error(VL_ENVIRONMENT, "%s: %s", command->output, strerror(error));
  if (status.code == VL_OK && rename(temporary, command->output) != 0)
    status = vl_error(VL_ENVIRONMENT, "%s: %s", command->output, strerror(errno));
  if (status.code != VL_OK) (void)unlink(temporary);
  return status;
}

static Status run(const ExportCommand *command) {
  Store *store;
  VL_TRY(vl_store_open(command->store, &store));
  ExportInput input = {.store = store,
                       .records = choose_cells(store, command->cell),
                       .cell = command->cell,
                       .output = command->output};
  Status status;
  if (command->cell && input.records.count == 0)
    status = vl_error(VL_INVALID, "no cell's key begins with '%s'", command->cell);
  else if (command->format->is_directory)
    status = command->format->write(&input, NULL);
  else if (command->output)
    status = write_to_file(command, &input);
  else
    status = command->format->write(&input, stdout);
  if (status.code == VL_OK && !command->output && (fflush(stdout) != 0 || ferror(stdout)))
    status = vl_error(VL_ENVIRONMENT, "standard output: %s", strerror(errno));
  free(input.records.records);
  vl_store_close(&store);
  return status;
}

int vl_command_export(int argc, char **argv) {
  ExportCommand command = {0};
  vl_command_parse(&export_argp, argc, argv, &command);
  Status status = run(&command);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
