/* Reports of a store: the files in its directory, the first screen, and the command. */
#include "harness/report.h"
#include "harness/history.h"
#include "harness/labelled.h"
#include "harness/options.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

RecordSet vl_store_records(const Store *store) {
  int64_t count = vl_store_count(store);
  RecordSet records = {.records = vl_allocate(sizeof(json_t *) * (size_t)(count + 1)),
                       .count = (int32_t)count};
  for (int64_t i = 0; i < count; i++)
    records.records[i] = vl_store_record(store, i);
  return records;
}

int vl_terminal_width(FILE *out) {
  struct winsize size;
  if (!isatty(fileno(out)) || ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 100;
  return size.ws_col < 60 ? 60 : size.ws_col;
}

bool vl_terminal_color(FILE *out) { return isatty(fileno(out)) && getenv("NO_COLOR") == NULL; }

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

typedef enum ReportFormat { REPORT_TERM = 0, REPORT_MARKDOWN, REPORT_HTML } ReportFormat;

/* Before anything is made, so that a place that cannot be is said once. */
static Status make_directory_of(const char *path) {
  char directory[4200];
  const char *slash = strrchr(path, '/');
  if (slash == NULL || slash == path) return vl_ok();
  snprintf(directory, sizeof(directory), "%.*s", (int)(slash - path), path);
  return vl_make_directories(directory);
}

/* Writes beside the file and renames: a reader never sees half a report. */
static Status write_file(const Document *document, ReportFormat format, const char *figure_directory,
                         const char *path) {
  char unfinished[4200];
  snprintf(unfinished, sizeof(unfinished), "%.4090s.tmp", path);
  FILE *out = fopen(unfinished, "w");
  if (out == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", unfinished, strerror(errno));
  Status status = vl_ok();
  if (format == REPORT_HTML)
    status = vl_report_html(document, figure_directory, out);
  else if (format == REPORT_MARKDOWN)
    vl_report_markdown(document, out);
  else
    vl_report_term(document, out, 100, false);
  bool failed = ferror(out) != 0;
  failed = fclose(out) != 0 || failed;
  if (status.code == VL_OK && (failed || rename(unfinished, path) != 0))
    status = vl_error(VL_ENVIRONMENT, "%s: cannot be written: %s", path, strerror(errno));
  if (status.code != VL_OK) unlink(unfinished);
  return status;
}

/* A report of one store in progress. */
typedef struct Making {
  const Store *store;
  RecordSet records;
  ClaimFile *claims;
  FigureSet *figures; /* NULL: none */
  Document *document;
} Making;

static void making_clear(Making *making) {
  vl_document_destroy(&making->document);
  vl_claims_destroy(&making->claims);
  free(making->figures);
  free(making->records.records);
}

/* Figures are worth having and never worth the report: without gnuplot it is made without them, and says so.
 */
static Status draw_input(Making *making, const PlotInput *input, const char *directory) {
  making->figures = vl_allocate(sizeof(*making->figures));
  Status status = vl_plot_draw(input, directory, NULL, "png svg", making->figures);
  if (status.code != VL_ENVIRONMENT) return status;
  fprintf(stderr, "vramlab: the report has no figures: %s\n", status.message);
  free(making->figures);
  making->figures = NULL;
  return vl_ok();
}

static Status draw_figures(Making *making, const char *directory) {
  PlotInput input = {
      .records = making->records, .store = making->store, .source = vl_store_path(making->store)};
  return draw_input(making, &input, directory);
}

static Status make(Making *making, const char *figure_directory) {
  char page[4200];
  snprintf(page, sizeof(page), "%.4000s/report.html", vl_store_path(making->store));
  making->records = vl_store_records(making->store);
  VL_TRY(vl_claims_load(NULL, &making->claims));
  if (figure_directory != NULL) VL_TRY(draw_figures(making, figure_directory));
  ReportInput input = {.records = making->records,
                       .head = vl_store_head(making->store),
                       .directory = vl_store_path(making->store),
                       .page = figure_directory != NULL || access(page, F_OK) == 0 ? page : NULL,
                       .claims = making->claims,
                       .figures = making->figures};
  return vl_report_make(&input, &making->document);
}

static Status write_into_store(Store *store, FILE *screen) {
  char figures[4200], path[4200];
  snprintf(figures, sizeof(figures), "%.4000s/figures", vl_store_path(store));
  snprintf(path, sizeof(path), "%.4000s/report.html", vl_store_path(store));
  Making making = {.store = store};
  Status status = make(&making, figures);
  if (status.code == VL_OK) status = write_file(making.document, REPORT_HTML, figures, path);
  if (status.code == VL_OK && screen != NULL)
    vl_report_term(making.document, screen, vl_terminal_width(screen), vl_terminal_color(screen));
  making_clear(&making);
  return status;
}

Status vl_report_write(Store *store, FILE *screen) {
  if (vl_store_path(store)[0] == '\0')
    return vl_error(VL_INVALID,
                    "a results file on its own has no directory for a report; name one with --output");
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(c);
  Status status = write_into_store(store, screen);
  uselocale(before);
  freelocale(c);
  return status;
}

/* ---- The command ------------------------------------------------------------------------------------------------------- */

typedef struct ReportCommand {
  const char *stores[VL_MAX_LABELS], *labels[VL_MAX_LABELS];
  int32_t store_count, label_count;
  const char *output, *reference, *history;
  ReportFormat format;
} ReportCommand;

enum { KEY_HISTORY = 0x200 };

static const struct argp_option options_table[] = {
    {"format", 'f', "FORMAT", 0, "term (the default): the first screen; html, md: the whole report", 0},
    {"output", 'o', "FILE", 0, "write there instead of report.html or report.md in the store, - for stdout",
     0},
    {"label", 'l', "TEXT", 0,
     "what a store is called beside others, in the order of the stores; its device when not given", 0},
    {"reference", 'r', "LABEL", 0, "which label the others are divided by (the first)", 0},
    {"history", KEY_HISTORY, "DIR", 0,
     "all stores in a directory, as of nightly runs: a line a cell and metric, and the first night of each "
     "change; term or html",
     0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ReportCommand *command = state->input;
  static const char *const formats[] = {"term", "md", "html"};
  switch (key) {
  case 'f':
    for (int i = 0; i < 3; i++)
      if (strcmp(text, formats[i]) == 0) {
        command->format = (ReportFormat)i;
        return 0;
      }
    argp_error(state, "unknown format '%s'; accepted: term, md, html", text);
    return 0;
  case 'o': command->output = text; return 0;
  case ARGP_KEY_ARG:
    if (command->store_count == VL_MAX_LABELS) argp_error(state, "more than %d stores", VL_MAX_LABELS);
    command->stores[command->store_count++] = text;
    return 0;
  case 'r': command->reference = text; return 0;
  case 'l':
    if (command->label_count == VL_MAX_LABELS) argp_error(state, "more than %d labels", VL_MAX_LABELS);
    command->labels[command->label_count++] = text;
    return 0;
  case KEY_HISTORY: command->history = text; return 0;
  case ARGP_KEY_END:
    if (command->history != NULL && (command->store_count > 0 || command->label_count > 0))
      argp_error(state, "--history goes without stores and labels: it takes all in its directory");
    if (command->history != NULL && command->format == REPORT_MARKDOWN)
      argp_error(state, "--history: accepted formats: term, html");
    vl_labelled_check(state, command->store_count, command->labels, command->label_count, command->reference);
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp report_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[STORE]\nSTORE STORE... [--label A --label B...]\n--history DIR",
    .doc = "Reports a store of results: what each recipe needs and costs, where the memory goes, and what it "
           "says about the article's claims. STORE is a directory, its results.h5, or latest (the default). "
           "Several stores, of several machines or versions, are compared."};

/* Where the report goes, and its figures beside it. */
static Status places(const ReportCommand *command, const Store *store, char *path, char *figures,
                     size_t size) {
  const char *directory = vl_store_path(store);
  if (command->output != NULL) {
    snprintf(path, size, "%s", command->output);
    const char *slash = strrchr(command->output, '/');
    snprintf(figures, size, "%.*sfigures", slash != NULL ? (int)(slash - command->output) + 1 : 0,
             command->output);
    return vl_ok();
  }
  if (directory[0] == '\0')
    return vl_error(VL_INVALID,
                    "a results file on its own has no directory for a report; name one with --output");
  snprintf(path, size, "%s/report.%s", directory, command->format == REPORT_HTML ? "html" : "md");
  snprintf(figures, size, "%s/figures", directory);
  return vl_ok();
}

/* A document to its file, or to stdout. */
static Status write_out(const Document *document, ReportFormat format, const char *figures,
                        const char *path) {
  if (strcmp(path, "-") != 0) {
    VL_TRY(write_file(document, format, figures, path));
    printf("%s\n", path);
    return vl_ok();
  }
  if (format == REPORT_HTML) return vl_report_html(document, figures, stdout);
  vl_report_markdown(document, stdout);
  return vl_ok();
}

static Status report_file(const ReportCommand *command, Making *making) {
  char path[4200], figures[4200];
  VL_TRY(places(command, making->store, path, figures, sizeof(path)));
  VL_TRY(make_directory_of(path));
  VL_TRY(make(making, figures));
  return write_out(making->document, command->format, figures, path);
}

static Status report(const ReportCommand *command) {
  Store *store = NULL;
  VL_TRY(vl_store_open(command->store_count > 0 ? command->stores[0] : NULL, &store));
  Making making = {.store = store};
  Status status = vl_ok();
  if (command->format == REPORT_TERM && command->output == NULL) {
    status = make(&making, NULL);
    if (status.code == VL_OK)
      vl_report_term(making.document, stdout, vl_terminal_width(stdout), vl_terminal_color(stdout));
  } else {
    status = report_file(command, &making);
  }
  making_clear(&making);
  vl_store_close(&store);
  return status;
}

/* Figures of several stores beside the file; on the screen none. */
static Status compare_file(const ReportCommand *command, const PlotInput *input) {
  char figures[4200];
  bool screen = command->format == REPORT_TERM && command->output == NULL;
  const char *path = command->output,
             *named = command->format == REPORT_MARKDOWN ? "report.md" : "report.html";
  if (path == NULL) path = named;
  const char *slash = strrchr(path, '/');
  snprintf(figures, sizeof(figures), "%.*sfigures", slash != NULL ? (int)(slash - path) + 1 : 0, path);
  Making making = {.figures = NULL};
  if (!screen) VL_TRY(make_directory_of(path));
  Status status = screen ? vl_ok() : draw_input(&making, input, figures);
  if (status.code == VL_OK) {
    making.document = vl_report_compare(input, making.figures);
    if (screen)
      vl_report_term(making.document, stdout, vl_terminal_width(stdout), vl_terminal_color(stdout));
    else
      status = write_out(making.document, command->format, figures, path);
  }
  making_clear(&making);
  return status;
}

static Status report_compare(const ReportCommand *command) {
  LabelledStores labelled;
  Status status = vl_labelled_open(command->stores, command->store_count, command->labels,
                                   command->label_count, command->reference, &labelled);
  if (status.code == VL_OK) status = compare_file(command, &labelled.input);
  vl_labelled_close(&labelled);
  return status;
}

/* To stdout, or to a file that is whole or not there. */
static Status write_history(const ReportCommand *command, const History *history) {
  bool page = command->format == REPORT_HTML;
  char usual[4200], unfinished[4300];
  snprintf(usual, sizeof(usual), "%.4090s/history.html", command->history);
  const char *path = command->output != NULL ? command->output : page ? usual : "-";
  if (strcmp(path, "-") == 0) {
    if (page) return vl_history_html(history, command->history, stdout);
    vl_history_term(history, command->history, stdout);
    return vl_ok();
  }
  snprintf(unfinished, sizeof(unfinished), "%.4200s.tmp", path);
  FILE *out = fopen(unfinished, "w");
  if (out == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", unfinished, strerror(errno));
  Status status = vl_ok();
  if (page)
    status = vl_history_html(history, command->history, out);
  else
    vl_history_term(history, command->history, out);
  bool failed = ferror(out) != 0;
  failed = fclose(out) != 0 || failed;
  if (status.code == VL_OK && (failed || rename(unfinished, path) != 0))
    status = vl_error(VL_ENVIRONMENT, "%s: cannot be written: %s", path, strerror(errno));
  if (status.code == VL_OK)
    printf("%s\n", path);
  else
    unlink(unfinished);
  return status;
}

/* Exit code 1 where something got worse and stayed so. */
static Status report_history(const ReportCommand *command, int *code) {
  History history;
  Status status = vl_history_load(command->history, &history);
  if (status.code == VL_OK) status = write_history(command, &history);
  *code = vl_history_regressions(&history) > 0;
  vl_history_free(&history);
  return status;
}

int vl_command_report(int argc, char **argv) {
  ReportCommand command = {.format = REPORT_TERM};
  vl_command_parse(&report_argp, argc, argv, &command);
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(c);
  int code = 0;
  Status status = command.history != NULL                              ? report_history(&command, &code)
                  : command.store_count > 1 || command.label_count > 0 ? report_compare(&command)
                                                                       : report(&command);
  uselocale(before);
  freelocale(c);
  return status.code == VL_OK ? code : vl_command_fail(status);
}
