/* The report as Markdown. */
#include "harness/report_document.h"

#include <string.h>

/* A cell of a table: a pipe would end it, the others begin markup. */
static void cell(FILE *out, const char *text) {
  for (; *text != '\0'; text++) {
    if (strchr("|<>`\\", *text) != NULL) fputc('\\', out);
    fputc(*text == '\n' ? ' ' : *text, out);
  }
}

/* Running text: characters that would be read as markup are escaped. */
static void plain(FILE *out, const char *text) {
  for (; *text != '\0'; text++) {
    if (strchr("*_`<>#[]\\", *text) != NULL) fputc('\\', out);
    fputc(*text, out);
  }
}

static void table(FILE *out, const Passage *passage) {
  fputs("**", out);
  plain(out, passage->text);
  fputs("**\n\n|", out);
  for (int32_t c = 0; c < passage->column_count; c++) {
    const TableColumn *column = &passage->columns[c];
    fputc(' ', out);
    cell(out, column->name);
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
      cell(out, passage->rows[r][c]);
      fputs(" |", out);
    }
  }
  fputs("\n\n", out);
}

static void labelled(FILE *out, const char *label, const char *text) {
  fprintf(out, "- %s: ", label);
  plain(out, text);
  fputc('\n', out);
}

static void claim(FILE *out, const ClaimPassage *of) {
  fprintf(out, "### %s: %s\n\n> %s\n>\n> ", of->id, of->verdict, of->sentence);
  plain(out, of->translation);
  fprintf(out, "\n\n");
  labelled(out, "Section", of->section);
  labelled(out, "Scope", of->scope);
  labelled(out, "Numbers", of->numbers);
  for (int32_t i = 0; i < of->finding_count; i++)
    labelled(out, "Also", of->findings[i]);
  labelled(out, "Trap", of->trap);
  labelled(out, "Region", of->region);
  fprintf(out, "- Command: `%s`\n\n", of->command);
}

static void passage_text(FILE *out, const Passage *passage) {
  switch (passage->kind) {
  case PASSAGE_HEADING: fprintf(out, "## %s\n\n", passage->text); break;
  case PASSAGE_TABLE:
  case PASSAGE_BARS: table(out, passage); break;
  case PASSAGE_FIGURE: fprintf(out, "![%s](figures/%s.png)\n\n", passage->text, passage->name); break;
  case PASSAGE_VERDICT:
    fprintf(out, "- **%s** %s: ", passage->claim->verdict, passage->claim->id);
    plain(out, passage->claim->translation);
    fputs(" (", out);
    plain(out, passage->claim->scope);
    fputs(")\n", out);
    break;
  case PASSAGE_CLAIM: claim(out, passage->claim); break;
  case PASSAGE_PLACE: break;
  case PASSAGE_COMMAND: fprintf(out, "Next: `%s`\n\n", passage->text); break;
  default:
    plain(out, passage->text);
    fputs("\n\n", out);
    break;
  }
}

void vl_report_markdown(const Document *document, FILE *out) {
  fprintf(out, "# %s\n\n%s\n\n", document->title, document->subtitle);
  for (int32_t i = 0; i < document->count; i++) {
    bool list_ends = i > 0 && document->passages[i - 1].kind == PASSAGE_VERDICT &&
                     document->passages[i].kind != PASSAGE_VERDICT;
    if (list_ends) fputc('\n', out);
    passage_text(out, &document->passages[i]);
  }
}
