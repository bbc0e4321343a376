/* vramlab plot: figures of a store. */
#include "harness/labelled.h"
#include "harness/options.h"
#include "harness/report.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct PlotCommand {
  const char *stores[VL_MAX_LABELS], *labels[VL_MAX_LABELS];
  int32_t store_count, label_count;
  const char *figure, *output, *reference;
  char formats[64];
} PlotCommand;

static const struct argp_option options_table[] = {
    {"label", 'l', "TEXT", 0,
     "what a store is called beside others, in the order of the stores; its device when not given", 0},
    {"reference", 'r', "LABEL", 0, "which label speedup divides by (the first)", 0},
    {"figure", 'F', "NAME", 0, "only this one (vramlab list)", 0},
    {"format", 'f', "FORMAT", 0, "png, svg or pdf, may be repeated; png and svg when not given", 0},
    {"output", 'o', "DIRECTORY", 0, "instead of figures/ in the store", 0},
    {0}};

/* Whether a word names a figure, and no store of that name lies here. */
typedef struct Search {
  const char *name;
  bool found;
} Search;

static void look(const char *name, const char *help, void *context) {
  Search *search = context;
  (void)help;
  search->found = search->found || strcmp(name, search->name) == 0;
}

static bool is_figure(const char *word) {
  Search search = {.name = word};
  return access(word, F_OK) != 0 && vl_plot_each(look, &search).code == VL_OK && search.found;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  PlotCommand *command = state->input;
  size_t used = strlen(command->formats);
  switch (key) {
  case 'F': command->figure = text; return 0;
  case 'r': command->reference = text; return 0;
  case 'l':
    if (command->label_count == VL_MAX_LABELS) argp_error(state, "more than %d labels", VL_MAX_LABELS);
    command->labels[command->label_count++] = text;
    return 0;
  case 'o': command->output = text; return 0;
  case 'f':
    if (strcmp(text, "png") != 0 && strcmp(text, "svg") != 0 && strcmp(text, "pdf") != 0)
      argp_error(state, "unknown format '%s'; accepted: png, svg, pdf", text);
    if (used + 5 < sizeof(command->formats))
      snprintf(command->formats + used, sizeof(command->formats) - used, "%s%s", used > 0 ? " " : "", text);
    return 0;
  case ARGP_KEY_ARG:
    if (command->store_count == 0 && command->figure == NULL && is_figure(text)) {
      command->figure = text;
      return 0;
    }
    if (command->store_count == VL_MAX_LABELS) argp_error(state, "more than %d stores", VL_MAX_LABELS);
    command->stores[command->store_count++] = text;
    return 0;
  case ARGP_KEY_END:
    vl_labelled_check(state, command->store_count, command->labels, command->label_count, command->reference);
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp plot_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[FIGURE] [STORE]\n[FIGURE] STORE STORE... [--label A --label B...]",
    .doc = "Draws the figures of a store, and leaves the gnuplot files and data they were drawn from beside "
           "them. STORE is a directory, its results.h5, or latest (the default). Several stores, of several "
           "machines "
           "or versions, stand side by side in figures of their own."};

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

static Status draw(const PlotCommand *command, const PlotInput *input, const char *directory) {
  const char *formats = command->formats[0] != '\0' ? command->formats : "png svg";
  FigureSet *set = vl_allocate(sizeof(*set));
  Status status = vl_plot_draw(input, directory, command->figure, formats, set);
  if (status.code == VL_OK) tell(set, formats);
  free(set);
  return status;
}

static Status plot_several(const PlotCommand *command) {
  LabelledStores labelled;
  Status status = vl_labelled_open(command->stores, command->store_count, command->labels,
                                   command->label_count, command->reference, &labelled);
  if (status.code == VL_OK)
    status = draw(command, &labelled.input, command->output != NULL ? command->output : "figures");
  vl_labelled_close(&labelled);
  return status;
}

static Status plot_one(const PlotCommand *command) {
  Store *store = NULL;
  VL_TRY(vl_store_open(command->store_count > 0 ? command->stores[0] : NULL, &store));
  char directory[4200];
  snprintf(directory, sizeof(directory), "%s%s",
           command->output != NULL ? command->output : vl_store_path(store),
           command->output != NULL ? "" : "/figures");
  Status status = vl_ok();
  if (command->output == NULL && vl_store_path(store)[0] == '\0')
    status = vl_error(VL_INVALID,
                      "a results file on its own has no directory for figures; name one with --output");
  PlotInput input = {.records = vl_store_records(store), .store = store, .source = vl_store_path(store)};
  if (status.code == VL_OK) status = draw(command, &input, directory);
  free(input.records.records);
  vl_store_close(&store);
  return status;
}

int vl_command_plot(int argc, char **argv) {
  PlotCommand command = {.figure = NULL};
  vl_command_parse(&plot_argp, argc, argv, &command);
  Status status =
      command.store_count > 1 || command.label_count > 0 ? plot_several(&command) : plot_one(&command);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
