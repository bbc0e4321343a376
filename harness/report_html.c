/* The report as one HTML file: style, script and figures are in it, nothing is fetched. It reads without the
 * script, which only sorts tables. */
#include "harness/report_html.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void vl_html_text(FILE *out, const char *at) {
  for (; *at != '\0'; at++) {
    switch (*at) {
    case '&': fputs("&amp;", out); break;
    case '<': fputs("&lt;", out); break;
    case '>': fputs("&gt;", out); break;
    case '"': fputs("&quot;", out); break;
    default:
      /* What is no character of XML would make the file unreadable. */
      fputc((unsigned char)*at < 0x20 && *at != '\n' && *at != '\t' ? '?' : *at, out);
    }
  }
}

static void element(FILE *out, const char *open, const char *content, const char *close) {
  fputs(open, out);
  vl_html_text(out, content);
  fputs(close, out);
}

Status vl_html_read(const char *path, char **contents, size_t *whole) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  size_t size = 0, capacity = 1 << 16, bytes;
  *contents = vl_allocate(capacity);
  while ((bytes = fread(*contents + size, 1, capacity - 1 - size, file)) > 0) {
    size += bytes;
    if (size == capacity - 1) *contents = vl_reallocate(*contents, capacity *= 2);
  }
  (*contents)[size] = '\0';
  if (whole != NULL) *whole = size;
  bool failed = ferror(file) != 0;
  fclose(file);
  return failed ? vl_error(VL_ENVIRONMENT, "%s: cannot be read", path) : vl_ok();
}

/* ---- Tables --------------------------------------------------------------------------------------------------------------- */

/* So many rows are not broken over two pages. */
enum { SHORT_TABLE_ROWS = 12 };

static void table_head(FILE *out, const Passage *passage) {
  fprintf(out, "<div class=\"table%s\"", passage->row_count <= SHORT_TABLE_ROWS ? " short" : "");
  element(out, " tabindex=\"0\" role=\"region\" aria-label=\"", passage->text, "\"><table>");
  if (!passage->collapsed) element(out, "<caption><span>", passage->text, "</span></caption>");
  fputs("\n<thead><tr>", out);
  for (int32_t c = 0; c < passage->column_count; c++) {
    const TableColumn *column = &passage->columns[c];
    element(out, column->number ? "<th class=\"number\" scope=\"col\">" : "<th scope=\"col\">", column->name,
            "");
    if (column->unit[0] != '\0') element(out, " <span class=\"unit\">", column->unit, "</span>");
    fputs("</th>", out);
  }
  if (passage->kind == PASSAGE_BARS) fputs("<th aria-hidden=\"true\"></th>", out);
  fputs("</tr></thead>\n<tbody>\n", out);
}

/* What a cell says decides how it looks: missing, failed, a verdict. */
static const char *cell_look(const char *content) {
  static const char *const failures[] = {"oom", "crashed", "diverged", "timeout", "refuted"};
  if (strcmp(content, "n/a") == 0) return "missing";
  if (strcmp(content, "supported") == 0) return "good";
  if (strcmp(content, "undecided") == 0 || strcmp(content, "ambiguous") == 0) return "open";
  if (strncmp(content, "BROKEN", 6) == 0) return "failed";
  for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++)
    if (strcmp(content, failures[i]) == 0) return "failed";
  return "";
}

/* A sentence needs room, a word none. */
enum { LONG_TEXT_BYTES = 40 };

static void table_cell(FILE *out, const Passage *passage, int32_t r, int32_t c) {
  const char *content = passage->rows[r][c], *look = cell_look(content);
  bool is_number = passage->columns[c].number, is_head = c == 0 && !is_number && content[0] != '\0';
  bool is_long = !is_number && strlen(content) > LONG_TEXT_BYTES;
  const char *anchor = c == 0 && passage->anchors != NULL ? passage->anchors[r] : NULL;
  fputs(is_head ? "<th scope=\"row\"" : "<td", out);
  if (is_number || look[0] != '\0' || is_long)
    fprintf(out, " class=\"%s%s%s\"", is_number ? "number " : "", look, is_long ? " long" : "");
  fputc('>', out);
  if (anchor != NULL) element(out, "<a href=\"#", anchor, "\">");
  vl_html_text(out, content);
  if (anchor != NULL) fputs("</a>", out);
  fputs(is_head ? "</th>" : "</td>", out);
}

static void table(FILE *out, const Passage *passage) {
  if (passage->collapsed) {
    element(out, "<details><summary>", passage->text, "");
    fprintf(out, " (%d rows)</summary>\n", passage->row_count);
  }
  table_head(out, passage);
  for (int32_t r = 0; r < passage->row_count; r++) {
    fputs("<tr>", out);
    for (int32_t c = 0; c < passage->column_count; c++)
      table_cell(out, passage, r, c);
    if (passage->kind == PASSAGE_BARS)
      fprintf(out, "<td class=\"bar\" aria-hidden=\"true\"><span style=\"width:%.1f%%\"></span></td>",
              100 * passage->shares[r]);
    fputs("</tr>\n", out);
  }
  fputs("</tbody></table></div>\n", out);
  if (passage->collapsed) fputs("</details>\n", out);
}

/* ---- Passages ------------------------------------------------------------------------------------------------------------- */

static void labelled(FILE *out, const char *label, const char *content) {
  element(out, "<dt>", label, "</dt>");
  element(out, "<dd>", content, "</dd>\n");
}

static void claim(FILE *out, const ClaimPassage *of) {
  element(out, "<article class=\"claim\" id=\"claim-", of->id, "\"><h3>");
  vl_html_text(out, of->id);
  fprintf(out, " <span class=\"verdict %s\">%s</span></h3>\n", of->verdict, of->verdict);
  element(out, "<blockquote><p lang=\"zh\">", of->sentence, "</p>");
  element(out, "<p>", of->translation, "</p></blockquote>\n<dl>\n");
  labelled(out, "Section", of->section);
  labelled(out, "Scope", of->scope);
  labelled(out, "Found", of->numbers);
  labelled(out, "Numbers are", of->provenance);
  for (int32_t i = 0; i < of->finding_count; i++)
    labelled(out, "Also", of->findings[i]);
  labelled(out, "Trap", of->trap);
  labelled(out, "Region", of->region);
  labelled(out, "Fixed", of->fixed);
  element(out, "<dt>Command</dt><dd><code>", of->command, "</code></dd>\n</dl></article>\n");
}

static void heading(FILE *out, const Passage *passage) {
  element(out, "<h2 id=\"", passage->name, "\">");
  element(out, "", passage->text, "</h2>\n");
}

static Status passage_html(FILE *out, const Passage *passage, const char *figure_directory) {
  switch (passage->kind) {
  case PASSAGE_HEADING: heading(out, passage); break;
  case PASSAGE_TEXT: element(out, "<p>", passage->text, "</p>\n"); break;
  case PASSAGE_POINT: element(out, "<li>", passage->text, "</li>\n"); break;
  case PASSAGE_NOTE: element(out, "<p class=\"note\">", passage->text, "</p>\n"); break;
  case PASSAGE_TABLE:
  case PASSAGE_BARS: table(out, passage); break;
  case PASSAGE_FIGURE: return vl_html_figure(out, figure_directory, passage);
  case PASSAGE_CLAIM: claim(out, passage->claim); break;
  case PASSAGE_COMMAND: element(out, "<p class=\"next\">Next: <code>", passage->text, "</code></p>\n"); break;
  case PASSAGE_VERDICT:
  case PASSAGE_PLACE: break; /* of the terminal */
  }
  return vl_ok();
}

/* ---- The page ---------------------------------------------------------------------------------------------------------------- */

/* A file that comes with the program, copied between two tags. */
static Status copied(FILE *out, const char *open, const char *file, const char *close) {
  char path[4096], *contents = NULL;
  VL_TRY(vl_shared_path(file, path, sizeof(path)));
  VL_TRY(vl_html_read(path, &contents, NULL));
  fprintf(out, "%s\n%s%s\n", open, contents, close);
  free(contents);
  return vl_ok();
}

static Status head(const Document *document, FILE *out) {
  fputs("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta "
        "charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
        "<meta name=\"color-scheme\" content=\"light dark\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n",
        out);
  element(out, "<title>", document->title, "</title>\n");
  VL_TRY(copied(out, "<style>", "plots/report.css", "</style>"));
  fputs("</head>\n<body>\n<main>\n", out);
  element(out, "<header><h1>", document->title, "</h1>");
  element(out, "<p class=\"note\">", document->subtitle, "</p></header>\n");
  return vl_ok();
}

static void contents(const Document *document, FILE *out) {
  if (vl_document_headings(document) < VL_CONTENTS_FROM) return;
  fputs("<nav aria-label=\"Contents\"><ul>\n", out);
  for (int32_t i = 0; i < document->count; i++) {
    const Passage *passage = &document->passages[i];
    if (passage->kind != PASSAGE_HEADING) continue;
    element(out, "<li><a href=\"#", passage->name, "\">");
    element(out, "", passage->text, "</a></li>\n");
  }
  fputs("</ul></nav>\n", out);
}

Status vl_report_html(const Document *document, const char *figure_directory, FILE *out) {
  VL_TRY(head(document, out));
  contents(document, out);
  bool in_list = false;
  for (int32_t i = 0; i < document->count; i++) {
    bool is_point = document->passages[i].kind == PASSAGE_POINT;
    if (is_point != in_list) fputs(is_point ? "<ul>\n" : "</ul>\n", out);
    in_list = is_point;
    VL_TRY(passage_html(out, &document->passages[i], figure_directory));
  }
  if (in_list) fputs("</ul>\n", out);
  fputs("</main>\n", out);
  /* In a section of which nothing is XML's. */
  VL_TRY(copied(out, "<script>//<![CDATA[", "plots/report.js", "//]]></script>"));
  fputs("</body>\n</html>\n", out);
  return vl_ok();
}
