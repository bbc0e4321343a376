/* Figures: the list in plots/, the files each one leaves, and gnuplot. */
#include "harness/plot.h"
#include "harness/report_process.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_KINDS = 32 };

/* ---- The list --------------------------------------------------------------------------------------------------------- */

/* "# key: value" into text; false when the line is another. */
static bool header_value(const char *line, const char *key, char *text, size_t size) {
  size_t length = strlen(key);
  if (strncmp(line, "# ", 2) != 0 || strncmp(line + 2, key, length) != 0 || line[2 + length] != ':')
    return false;
  snprintf(text, size, "%.*s", (int)strcspn(line + 4 + length, "\n"), line + 4 + length);
  return true;
}

static Status read_header(FigureKind *kind) {
  FILE *file = fopen(kind->path, "r");
  if (file == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", kind->path, strerror(errno));
  char line[512], select[320] = "", stores[32] = "";
  while (fgets(line, sizeof(line), file) != NULL && line[0] == '#') {
    (void)header_value(line, "title", kind->title, sizeof(kind->title));
    (void)header_value(line, "help", kind->help, sizeof(kind->help));
    (void)header_value(line, "select", select, sizeof(select));
    (void)header_value(line, "stores", stores, sizeof(stores));
    (void)header_value(line, "draws", kind->draws, sizeof(kind->draws));
  }
  fclose(file);
  kind->several = strcmp(stores, "several") == 0;
  size_t word = strcspn(select, " ");
  snprintf(kind->select, sizeof(kind->select), "%.*s", (int)word, select);
  snprintf(kind->options, sizeof(kind->options), "%.255s", select + word + strspn(select + word, " "));
  if (kind->title[0] == '\0' || kind->help[0] == '\0')
    return vl_error(VL_INVALID, "%s: the header needs \"# title:\" and \"# help:\"", kind->path);
  if (vl_selection_find(kind->select) == NULL)
    return vl_error(VL_INVALID, "%s: \"# select: %s\" is no selection; accepted: %s", kind->path,
                    kind->select, vl_selection_names());
  return vl_ok();
}

static Status read_kinds(FILE *file, FigureKind *kinds, int32_t *count) {
  char line[128];
  while (fgets(line, sizeof(line), file) != NULL) {
    line[strcspn(line, "\r\n")] = '\0';
    if (line[0] == '\0' || line[0] == '#') continue;
    if (*count == MAX_KINDS)
      return vl_error(VL_INVALID, "plots/figures lists more than %d figures", MAX_KINDS);
    FigureKind *kind = &kinds[*count];
    snprintf(kind->name, sizeof(kind->name), "%.63s", line);
    char relative[128];
    snprintf(relative, sizeof(relative), "plots/%s.gp", kind->name);
    VL_TRY(vl_shared_path(relative, kind->path, sizeof(kind->path)));
    VL_TRY(read_header(kind));
    *count += 1;
  }
  return vl_ok();
}

Status vl_plot_kinds(FigureKind **kinds, int32_t *count) {
  char path[4096];
  *count = 0;
  VL_TRY(vl_shared_path("plots/figures", path, sizeof(path)));
  FILE *file = fopen(path, "r");
  if (file == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  *kinds = vl_allocate(sizeof(FigureKind) * MAX_KINDS);
  Status status = read_kinds(file, *kinds, count);
  fclose(file);
  if (status.code != VL_OK) {
    free(*kinds);
    *kinds = NULL;
  }
  return status;
}

Status vl_plot_each(void (*visit)(const char *name, const char *help, void *context), void *context) {
  FigureKind *kinds = NULL;
  int32_t count = 0;
  VL_TRY(vl_plot_kinds(&kinds, &count));
  for (int32_t i = 0; i < count; i++)
    visit(kinds[i].name, kinds[i].help, context);
  free(kinds);
  return vl_ok();
}

/* ---- Files ------------------------------------------------------------------------------------------------------------ */

static Status append_file(FILE *out, const char *path) {
  FILE *in = fopen(path, "r");
  if (in == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  char buffer[4096];
  size_t bytes;
  while ((bytes = fread(buffer, 1, sizeof(buffer), in)) > 0)
    fwrite(buffer, 1, bytes, out);
  fclose(in);
  return vl_ok();
}

static Status close_file(FILE *file, const char *path, Status status) {
  bool failed = ferror(file) != 0;
  failed = fclose(file) != 0 || failed;
  if (status.code == VL_OK && failed) return vl_error(VL_ENVIRONMENT, "%s: cannot be written", path);
  return status;
}

enum { TITLE_COLUMNS = 84 }; /* what fits into the width of a figure in bold */

/* A title that is too wide leaves the workload to the line below it. */
static void write_titles(FILE *out, const FigureKind *kind, const Figure *figure, const char *subtitle) {
  char below[sizeof(figure->title) + 640];
  bool fits = vl_display_columns(figure->title, SIZE_MAX) <= TITLE_COLUMNS;
  size_t workload = strlen(figure->title) - strlen(kind->title);
  snprintf(below, sizeof(below), "%.*s%s", fits ? 0 : (int)workload, figure->title, subtitle);
  if (!fits && *subtitle == '\0') below[workload - 2] = '\0'; /* ": " */
  fprintf(out, "figure_title = ");
  vl_gnuplot_text(out, fits ? figure->title : kind->title);
  fputs("\nsubtitle = ", out);
  fprintf(out, "\nsubtitle_lines = %d\n", vl_gnuplot_balanced(out, below, VL_SUBTITLE_COLUMNS));
}

/* The gnuplot file: variables of this store first, then the style and the figure as they are in plots/. */
static Status write_script(const FigureKind *kind, const Figure *figure, const char *source,
                           const FigureData *data, const char *path) {
  char style[4096];
  VL_TRY(vl_shared_path("plots/style.gp", style, sizeof(style)));
  FILE *out = fopen(path, "w");
  if (out == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  fprintf(out,
          "# Made from %s; edit and draw again with: gnuplot %s.gp\nname = \"%s\"\ndat = name . \".dat\"\n",
          source, figure->name, figure->name);
  write_titles(out, kind, figure, data->subtitle);
  rewind(data->variables);
  char buffer[4096];
  size_t bytes;
  while ((bytes = fread(buffer, 1, sizeof(buffer), data->variables)) > 0)
    fwrite(buffer, 1, bytes, out);
  fputc('\n', out);
  Status status = append_file(out, style);
  fputc('\n', out);
  if (status.code == VL_OK) status = append_file(out, kind->path);
  if (status.code == VL_OK && kind->draws[0] != '\0') {
    char relative[128], path_of_rest[4096];
    snprintf(relative, sizeof(relative), "plots/%s.gp", kind->draws);
    status = vl_shared_path(relative, path_of_rest, sizeof(path_of_rest));
    if (status.code == VL_OK) status = append_file(out, path_of_rest);
  }
  fprintf(out, "set output\n");
  return close_file(out, path, status);
}

/* gnuplot's word on a figure; anything it says is a failure, so that no warning goes unseen. */
static Status run_gnuplot(const char *directory, const Figure *figure, const char *terminal) {
  char option[64], script[128], said[512] = "";
  snprintf(option, sizeof(option), "term=\"%s\"", terminal);
  snprintf(script, sizeof(script), "%s.gp", figure->name);
  const char *const argv[] = {"gnuplot", "-e", option, script, NULL};
  int code = 0;
  Status status = vl_process_run(argv, directory, NULL, 0, said, sizeof(said), &code);
  if (status.code != VL_OK)
    return vl_error(VL_ENVIRONMENT, "figures need gnuplot (apt-get install gnuplot-nox): %s", status.message);
  for (char *at = said; *at != '\0'; at++)
    if (*at == '\n') *at = ' ';
  if (code != 0 || said[0] != '\0')
    return vl_error(VL_ENVIRONMENT, "gnuplot %s/%s: exit code %d, %.300s", directory, script, code, said);
  return vl_ok();
}

static Status draw_formats(const char *directory, const Figure *figure, const char *formats) {
  static const struct {
    const char *format, *terminal;
  } terminals[] = {{"png", "pngcairo"}, {"svg", "svg"}, {"pdf", "pdfcairo"}};
  const char *at = formats;
  while (*at != '\0') {
    size_t word = strcspn(at, " ,"), found = 3;
    for (size_t i = 0; i < 3; i++)
      if (strlen(terminals[i].format) == word && strncmp(at, terminals[i].format, word) == 0) found = i;
    if (found == 3)
      return vl_error(VL_INVALID, "unknown format \"%.*s\"; accepted: png, svg, pdf", (int)word, at);
    VL_TRY(run_gnuplot(directory, figure, terminals[found].terminal));
    at += word;
    at += strspn(at, " ,");
  }
  return vl_ok();
}

/* ---- One figure ------------------------------------------------------------------------------------------------------- */

static void remove_files(const char *directory, const char *name) {
  static const char *const endings[] = {"gp", "dat", "png", "svg", "pdf"};
  char path[4300];
  for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
    snprintf(path, sizeof(path), "%s/%s.%s", directory, name, endings[i]);
    unlink(path);
  }
}

static Status draw(const PlotInput *input, const Workload *workload, const FigureKind *kind,
                   const char *directory, const char *formats, Figure *figure) {
  char data_path[4300], script_path[4300];
  snprintf(data_path, sizeof(data_path), "%s/%s.dat", directory, figure->name);
  snprintf(script_path, sizeof(script_path), "%s/%s.gp", directory, figure->name);
  /* What an earlier store left must not look like this one's. */
  remove_files(directory, figure->name);
  FigureData data = {.data = fopen(data_path, "w"), .variables = tmpfile()};
  if (data.data == NULL || data.variables == NULL) {
    if (data.data != NULL) fclose(data.data);
    if (data.variables != NULL) fclose(data.variables);
    return vl_error(VL_ENVIRONMENT, "%s: %s", data_path, strerror(errno));
  }
  fprintf(data.data, "# %s: %s, from %s\n", figure->name, figure->title, input->source);
  Status status = vl_selection_find(kind->select)->write(input, workload, kind->options, &data);
  status = close_file(data.data, data_path, status);
  figure->drawn = data.points > 0;
  figure->sparse = data.sparse;
  snprintf(figure->note, sizeof(figure->note), "%s", data.note);
  if (status.code == VL_OK && figure->drawn) {
    status = write_script(kind, figure, input->source, &data, script_path);
    if (status.code == VL_OK) status = draw_formats(directory, figure, formats);
  } else {
    remove_files(directory, figure->name);
    if (figure->note[0] == '\0') snprintf(figure->note, sizeof(figure->note), "no data.");
  }
  fclose(data.variables);
  return status;
}

static Status draw_kind(const PlotInput *input, const FigureKind *kind, const char *formats, FigureSet *set) {
  Workload workloads[VL_MAX_WORKLOADS];
  int32_t count = vl_select_workloads(&input->records, workloads);
  for (int32_t w = 0; (w < count || w == 0) && set->count < VL_MAX_FIGURES; w++) {
    Figure *figure = &set->figures[set->count++];
    memset(figure, 0, sizeof(*figure));
    snprintf(figure->name, sizeof(figure->name), "%s", kind->name);
    if (w > 0) snprintf(figure->name, sizeof(figure->name), "%s-%d", kind->name, w + 1);
    char text[128] = "";
    if (count > 0) vl_workload_text(&workloads[w], text, sizeof(text));
    snprintf(figure->title, sizeof(figure->title), "%s%s%s", text, count > 0 ? ": " : "", kind->title);
    if (count == 0) {
      remove_files(set->directory, figure->name);
      snprintf(figure->note, sizeof(figure->note), "no data.");
      return vl_ok();
    }
    VL_TRY(draw(input, &workloads[w], kind, set->directory, formats, figure));
  }
  return vl_ok();
}

static Status draw_all(const PlotInput *input, const FigureKind *kinds, int32_t count, const char *figure,
                       const char *formats, FigureSet *set) {
  bool found = false;
  for (int32_t i = 0; i < count; i++) {
    if (figure != NULL && strcmp(figure, kinds[i].name) != 0) continue;
    found = true;
    if (figure == NULL && kinds[i].several != (input->label_count > 0)) continue;
    if (kinds[i].several != (input->label_count > 0))
      return vl_error(VL_INVALID, "figure %s is of %s", figure,
                      kinds[i].several ? "several stores: name two or more" : "one store");
    VL_TRY(draw_kind(input, &kinds[i], formats, set));
  }
  if (found) return vl_ok();
  char names[512] = "";
  for (int32_t i = 0; i < count; i++)
    snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i > 0 ? ", " : "", kinds[i].name);
  return vl_error(VL_INVALID, "unknown figure \"%s\"; accepted: %s", figure, names);
}

Status vl_plot_draw(const PlotInput *input, const char *directory, const char *figure, const char *formats,
                    FigureSet *set) {
  memset(set, 0, sizeof(*set));
  snprintf(set->directory, sizeof(set->directory), "%s", directory);
  VL_TRY(vl_make_directories(directory));
  FigureKind *kinds = NULL;
  int32_t count = 0;
  VL_TRY(vl_plot_kinds(&kinds, &count));
  /* Numbers in files have a point whatever the user's language. */
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(c);
  Status status = draw_all(input, kinds, count, figure, formats, set);
  uselocale(before);
  freelocale(c);
  free(kinds);
  return status;
}
