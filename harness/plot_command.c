/* vramlab plot: figures of a store. */
#include "harness/options.h"
#include "harness/report.h"

#include <stdlib.h>
#include <string.h>

typedef struct PlotCommand {
  const char *store, *figure, *output;
  char formats[64];
} PlotCommand;

static const struct argp_option options_table[] = {
    {"figure", 'F', "NAME", 0, "only this one (vramlab list)", 0},
    {"format", 'f', "FORMAT", 0, "png, svg or pdf, may be repeated; png and svg when not given", 0},
    {"output", 'o', "DIRECTORY", 0, "instead of figures/ in the store", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  PlotCommand *command = state->input;
  size_t used = strlen(command->formats);
  switch (key) {
  case 'F': command->figure = text; return 0;
  case 'o': command->output = text; return 0;
  case 'f':
    if (strcmp(text, "png") != 0 && strcmp(text, "svg") != 0 && strcmp(text, "pdf") != 0)
      argp_error(state, "unknown format '%s'; accepted: png, svg, pdf", text);
    if (used + 5 < sizeof(command->formats))
      snprintf(command->formats + used, sizeof(command->formats) - used, "%s%s", used > 0 ? " " : "", text);
    return 0;
  case ARGP_KEY_ARG:
    if (command->store != NULL) argp_error(state, "one store at a time");
    command->store = text;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp plot_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[STORE]",
    .doc = "Draws the figures of a store, and leaves the gnuplot files and data they were drawn from beside "
           "them. STORE is a directory, its results.h5, or latest (the default)."};

/* What was drawn on stdout, what was not and why on stderr. */
static void tell(const FigureSet *set, const char *formats) {
  for (int32_t i = 0; i < set->count; i++) {
    const Figure *figure = &set->figures[i];
    if (!figure->drawn) {
      fprintf(stderr, "vramlab: %s was not drawn: %s\n", figure->name, figure->note);
      continue;
    }
    const char *at = formats;
    while (*at != '\0') {
      int word = (int)strcspn(at, " ");
      printf("%s/%s.%.*s\n", set->directory, figure->name, word, at);
      at += word;
      at += strspn(at, " ");
    }
  }
}

static Status plot(const PlotCommand *command) {
  Store *store = NULL;
  VL_TRY(vl_store_open(command->store, &store));
  char directory[4200];
  const char *formats = command->formats[0] != '\0' ? command->formats : "png svg";
  snprintf(directory, sizeof(directory), "%s%s",
           command->output != NULL ? command->output : vl_store_path(store),
           command->output != NULL ? "" : "/figures");
  Status status = vl_ok();
  if (command->output == NULL && vl_store_path(store)[0] == '\0')
    status = vl_error(VL_INVALID,
                      "a results file on its own has no directory for figures; name one with --output");
  FigureSet *set = vl_allocate(sizeof(*set));
  PlotInput input = {.records = vl_store_records(store), .store = store, .source = vl_store_path(store)};
  if (status.code == VL_OK) status = vl_plot_draw(&input, directory, command->figure, formats, set);
  if (status.code == VL_OK) tell(set, formats);
  free(input.records.records);
  free(set);
  vl_store_close(&store);
  return status;
}

int vl_command_plot(int argc, char **argv) {
  PlotCommand command = {.figure = NULL};
  vl_command_parse(&plot_argp, argc, argv, &command);
  Status status = plot(&command);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
