/* The report as Markdown. */
#include "harness/report_document.h"

#include <ctype.h>
#include <string.h>

/* What would be read as markup is escaped, but for an underscore within a name, which is none; a line break
 * would end a paragraph, a list or a table's row. */
static void plain(FILE *out, const char *text) {
  for (const char *at = text; *at != '\0'; at++) {
    bool within = *at == '_' && at > text && isalnum((unsigned char)at[-1]) && isalnum((unsigned char)at[1]);
    if (strchr("|*_`<>#[]\\&", *at) != NULL && !within) fputc('\\', out);
    fputc((unsigned char)*at < 0x20 ? ' ' : *at, out);
  }
}

/* Inside an HTML element, where a backslash escapes nothing. */
static void in_html(FILE *out, const char *text) {
  for (; *text != '\0'; text++) {
    if (strchr("<>&\"", *text) != NULL)
      fprintf(out, "&#%d;", *text);
    else
      fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
  }
}

/* Text as code: a backtick inside would end it. */
static void code(FILE *out, const char *text) {
  const char *fence = strchr(text, '`') != NULL ? "``" : "`", *space = fence[1] != '\0' ? " " : "";
  fprintf(out, "%s%s", fence, space);
  for (; *text != '\0'; text++)
    fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
  fprintf(out, "%s%s", space, fence);
}

static void in_a_line(FILE *out, const char *open, const char *text, const char *close) {
  fputs(open, out);
  plain(out, text);
  fputs(close, out);
}

static void table(FILE *out, const Passage *passage) {
  if (passage->collapsed) {
    fputs("<details><summary>", out);
    in_html(out, passage->text);
    fprintf(out, " (%d rows)</summary>\n\n|", passage->row_count);
  } else {
    in_a_line(out, "**", passage->text, "**\n\n|");
  }
  for (int32_t c = 0; c < passage->column_count; c++) {
    const TableColumn *column = &passage->columns[c];
    fputc(' ', out);
    plain(out, column->name);
    if (column->unit[0] != '\0') fprintf(out, " (%s)", column->unit);
    fputs(" |", out);
  }
  fputs("\n|", out);
  for (int32_t c = 0; c < passage->column_count; c++)
    fputs(passage->columns[c].number ? "---:|" : "---|", out);
  for (int32_t r = 0; r < passage->row_count; r++) {
    fputs("\n|", out);
    for (int32_t c = 0; c < passage->column_count; c++) {
      fputc(' ', out);
      const char *anchor = c == 0 && passage->anchors != NULL ? passage->anchors[r] : NULL;
      if (anchor != NULL) fputc('[', out);
      plain(out, passage->rows[r][c]);
      if (anchor != NULL) fprintf(out, "](#%s)", anchor);
      fputs(" |", out);
    }
  }
  fputs(passage->collapsed ? "\n\n</details>\n\n" : "\n\n", out);
}

static void labelled(FILE *out, const char *label, const char *text) {
  fprintf(out, "- %s: ", label);
  plain(out, text);
  fputc('\n', out);
}

static void claim(FILE *out, const ClaimPassage *of) {
  fprintf(out, "<a id=\"claim-%s\"></a>\n\n### %s: %s\n\n", of->id, of->id, of->verdict);
  in_a_line(out, "> ", of->sentence, "\n>\n");
  in_a_line(out, "> ", of->translation, "\n\n");
  labelled(out, "Section", of->section);
  labelled(out, "Scope", of->scope);
  labelled(out, "Found", of->numbers);
  labelled(out, "Numbers are", of->provenance);
  for (int32_t i = 0; i < of->finding_count; i++)
    labelled(out, "Also", of->findings[i]);
  labelled(out, "Trap", of->trap);
  labelled(out, "Region", of->region);
  labelled(out, "Fixed", of->fixed);
  fputs("- Command: ", out);
  code(out, of->command);
  fputs("\n\n", out);
}

static void passage_text(FILE *out, const Passage *passage) {
  switch (passage->kind) {
  case PASSAGE_HEADING: in_a_line(out, "## ", passage->text, "\n\n"); break;
  case PASSAGE_TEXT:
  case PASSAGE_NOTE: in_a_line(out, "", passage->text, "\n\n"); break;
  case PASSAGE_POINT: in_a_line(out, "- ", passage->text, "\n"); break;
  case PASSAGE_TABLE:
  case PASSAGE_BARS: table(out, passage); break;
  case PASSAGE_FIGURE:
    in_a_line(out, "![", passage->text, "](figures/");
    fprintf(out, "%s.png)\n\n", passage->name);
    break;
  case PASSAGE_CLAIM: claim(out, passage->claim); break;
  case PASSAGE_COMMAND:
    fputs("Next: ", out);
    code(out, passage->text);
    fputs("\n\n", out);
    break;
  case PASSAGE_VERDICT:
  case PASSAGE_PLACE: break; /* of the terminal */
  }
}

static void contents(FILE *out, const Document *document) {
  if (vl_document_headings(document) < VL_CONTENTS_FROM) return;
  for (int32_t i = 0; i < document->count; i++) {
    const Passage *passage = &document->passages[i];
    if (passage->kind != PASSAGE_HEADING) continue;
    in_a_line(out, "- [", passage->text, "]");
    fprintf(out, "(#%s)\n", passage->name);
  }
  fputc('\n', out);
}

void vl_report_markdown(const Document *document, FILE *out) {
  in_a_line(out, "# ", document->title, "\n\n");
  in_a_line(out, "", document->subtitle, "\n\n");
  contents(out, document);
  for (int32_t i = 0; i < document->count; i++) {
    bool list_ends = i > 0 && document->passages[i - 1].kind == PASSAGE_POINT &&
                     document->passages[i].kind != PASSAGE_POINT;
    if (list_ends) fputc('\n', out);
    passage_text(out, &document->passages[i]);
  }
}
