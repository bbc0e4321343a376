/* The report as one HTML file: style, figures and the script that sorts tables are in it, nothing is fetched.
 */
#include "harness/report_document.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void text(FILE *out, const char *at) {
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
  text(out, content);
  fputs(close, out);
}

static Status read_whole(const char *path, char **contents) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  size_t size = 0, capacity = 1 << 16, bytes;
  *contents = vl_allocate(capacity);
  while ((bytes = fread(*contents + size, 1, capacity - 1 - size, file)) > 0) {
    size += bytes;
    if (size == capacity - 1) *contents = vl_reallocate(*contents, capacity *= 2);
  }
  (*contents)[size] = '\0';
  fclose(file);
  return vl_ok();
}

/* ---- Figures ------------------------------------------------------------------------------------------------------------ */

/* A gnuplot SVG without its prolog. Several in one page must not share identifiers, so each gets the figure's
 * name in front, where it is defined and where it is referred to. */
static Status figure(FILE *out, const char *directory, const Passage *passage) {
  static const char *const places[] = {" id=\"", " id='", "href=\"#", "href='#", "url(#"};
  char path[4300], *contents = NULL;
  snprintf(path, sizeof(path), "%s/%s.svg", directory, passage->name);
  VL_TRY(read_whole(path, &contents));
  const char *at = strstr(contents, "<svg");
  Status status = vl_ok();
  if (at == NULL) status = vl_error(VL_ENVIRONMENT, "%s: not an SVG file", path);
  fputs("<figure>", out);
  while (status.code == VL_OK && *at != '\0') {
    const char *found = NULL;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && found == NULL; i++)
      if (strncmp(at, places[i], strlen(places[i])) == 0) found = places[i];
    if (found != NULL) {
      fprintf(out, "%s%s-", found, passage->name);
      at += strlen(found);
    } else {
      fputc(*at++, out);
    }
  }
  element(out, "<figcaption>", passage->text, "</figcaption></figure>\n");
  free(contents);
  return status;
}

/* ---- Passages ------------------------------------------------------------------------------------------------------------- */

static void table_head(FILE *out, const Passage *passage) {
  element(out, "<div class=\"table\"><table><caption>", passage->text, "</caption>\n<thead><tr>");
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

/* What a cell says decides how it looks: missing, failed, predicted. */
static const char *cell_class(const TableColumn *column, const char *content) {
  bool missing = strcmp(content, "n/a") == 0;
  bool failed = strcmp(content, "oom") == 0 || strcmp(content, "crashed") == 0 ||
                strcmp(content, "diverged") == 0 || strcmp(content, "timeout") == 0 ||
                strncmp(content, "BROKEN", 6) == 0;
  if (column->number) return missing ? "number missing" : failed ? "number failed" : "number";
  return missing ? "missing" : failed ? "failed" : "";
}

static void table(FILE *out, const Passage *passage) {
  table_head(out, passage);
  for (int32_t r = 0; r < passage->row_count; r++) {
    fputs("<tr>", out);
    for (int32_t c = 0; c < passage->column_count; c++) {
      const char *look = cell_class(&passage->columns[c], passage->rows[r][c]);
      fprintf(out, look[0] != '\0' ? "<td class=\"%s\">" : "<td>", look);
      text(out, passage->rows[r][c]);
      fputs("</td>", out);
    }
    if (passage->kind == PASSAGE_BARS)
      fprintf(out, "<td class=\"bar\"><span style=\"width:%.1f%%\"></span></td>", 100 * passage->shares[r]);
    fputs("</tr>\n", out);
  }
  fputs("</tbody></table></div>\n", out);
}

static void labelled(FILE *out, const char *label, const char *content) {
  element(out, "<dt>", label, "</dt>");
  element(out, "<dd>", content, "</dd>\n");
}

static void claim(FILE *out, const ClaimPassage *of) {
  fprintf(out, "<article class=\"claim\" id=\"claim-%s\"><h3>", of->id);
  text(out, of->id);
  fprintf(out, " <span class=\"verdict %s\">%s</span></h3>\n", of->verdict, of->verdict);
  element(out, "<blockquote><p lang=\"zh\">", of->sentence, "</p>");
  element(out, "<p>", of->translation, "</p></blockquote>\n<dl>\n");
  labelled(out, "Section", of->section);
  labelled(out, "Scope", of->scope);
  labelled(out, "Numbers", of->numbers);
  for (int32_t i = 0; i < of->finding_count; i++)
    labelled(out, "Also", of->findings[i]);
  labelled(out, "Trap", of->trap);
  labelled(out, "Region", of->region);
  element(out, "<dt>Command</dt><dd><code>", of->command, "</code></dd>\n</dl></article>\n");
}

static void verdict(FILE *out, const ClaimPassage *of) {
  fprintf(out, "<li><span class=\"verdict %s\">%s</span> <a href=\"#claim-%s\">%s</a> ", of->verdict,
          of->verdict, of->id, of->id);
  text(out, of->translation);
  element(out, " <span class=\"scope\">", of->scope, "</span></li>\n");
}

static Status passage_html(FILE *out, const Passage *passage, const char *figure_directory) {
  switch (passage->kind) {
  case PASSAGE_HEADING: element(out, "<h2>", passage->text, "</h2>\n"); break;
  case PASSAGE_PLACE: break;
  case PASSAGE_TEXT: element(out, "<p>", passage->text, "</p>\n"); break;
  case PASSAGE_NOTE: element(out, "<p class=\"note\">", passage->text, "</p>\n"); break;
  case PASSAGE_TABLE:
  case PASSAGE_BARS: table(out, passage); break;
  case PASSAGE_FIGURE: return figure(out, figure_directory, passage);
  case PASSAGE_VERDICT: verdict(out, passage->claim); break;
  case PASSAGE_CLAIM: claim(out, passage->claim); break;
  case PASSAGE_COMMAND: element(out, "<p class=\"next\">Next: <code>", passage->text, "</code></p>\n"); break;
  }
  return vl_ok();
}

/* ---- The page ---------------------------------------------------------------------------------------------------------------- */

static Status head(const Document *document, FILE *out) {
  char path[4096], *style = NULL;
  VL_TRY(vl_shared_path("plots/report.css", path, sizeof(path)));
  VL_TRY(read_whole(path, &style));
  fputs("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta "
        "charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
        "<meta name=\"color-scheme\" content=\"light dark\"/>\n",
        out);
  element(out, "<title>", document->title, "</title>\n");
  fprintf(out, "<style>\n%s</style>\n</head>\n<body>\n<main>\n", style);
  element(out, "<header><h1>", document->title, "</h1>");
  element(out, "<p class=\"note\">", document->subtitle, "</p></header>\n");
  free(style);
  return vl_ok();
}

/* The script as it is, in a section of which nothing is XML's. */
static Status foot(FILE *out) {
  char path[4096], *script = NULL;
  VL_TRY(vl_shared_path("plots/report.js", path, sizeof(path)));
  VL_TRY(read_whole(path, &script));
  fprintf(out, "</main>\n<script>//<![CDATA[\n%s//]]></script>\n</body>\n</html>\n", script);
  free(script);
  return vl_ok();
}

Status vl_report_html(const Document *document, const char *figure_directory, FILE *out) {
  VL_TRY(head(document, out));
  for (int32_t i = 0; i < document->count; i++) {
    bool is_verdict = document->passages[i].kind == PASSAGE_VERDICT;
    bool was_verdict = i > 0 && document->passages[i - 1].kind == PASSAGE_VERDICT;
    if (is_verdict && !was_verdict) fputs("<h2>The article's claims</h2>\n<ul class=\"verdicts\">\n", out);
    if (!is_verdict && was_verdict) fputs("</ul>\n", out);
    VL_TRY(passage_html(out, &document->passages[i], figure_directory));
  }
  if (document->count > 0 && document->passages[document->count - 1].kind == PASSAGE_VERDICT)
    fputs("</ul>\n", out);
  return foot(out);
}
