/* The first screen on a terminal. */
#include "harness/report_document.h"

#include <string.h>

enum { WRAP_COLUMNS = 30, MIN_HEADER = 5, MAX_COLUMNS = 24 };

static const char *emphasis(bool color, const char *code) { return color ? code : ""; }

void vl_report_term_wrapped(FILE *out, const char *text, int indent, int column, int width) {
  while (*text != '\0') {
    int word = (int)strcspn(text, " "), its = (int)vl_display_columns(text, (size_t)word);
    if (column > indent && column + 1 + its > width) {
      fprintf(out, "\n%*s", indent, "");
      column = indent;
    } else if (column > indent) {
      fputc(' ', out);
      column++;
    }
    fprintf(out, "%.*s", word, text);
    column += its;
    text += word;
    text += strspn(text, " ");
  }
  fputc('\n', out);
}

/* The next line of at most `width` columns, broken at a space; moves text on. Returns its bytes. */
static int next_line(const char **text, int width, const char **line) {
  *line = *text;
  int length = (int)strlen(*text);
  if ((int)vl_display_columns(*text, SIZE_MAX) > width) {
    length = (int)vl_display_prefix(*text, SIZE_MAX, (size_t)width);
    while (length > 0 && (*text)[length] != ' ')
      length--;
    if (length == 0) length = (int)strcspn(*text, " ");
  }
  *text += length;
  *text += strspn(*text, " ");
  return length;
}

static int longest_word(const char *text) {
  int longest = 0;
  while (*text != '\0') {
    int word = (int)strcspn(text, " ");
    int its = (int)vl_display_columns(text, (size_t)word);
    longest = its > longest ? its : longest;
    text += word;
    text += strspn(text, " ");
  }
  return longest;
}

static void column_widths(const Passage *passage, int *widths) {
  for (int32_t c = 0; c < passage->column_count; c++) {
    int header = longest_word(passage->columns[c].name),
        unit = (int)vl_display_columns(passage->columns[c].unit, SIZE_MAX);
    widths[c] = header > unit ? header : unit;
    if (passage->columns[c].number && widths[c] < MIN_HEADER) widths[c] = MIN_HEADER;
    for (int32_t r = 0; r < passage->row_count; r++) {
      int cell = (int)vl_display_columns(passage->rows[r][c], SIZE_MAX);
      if (cell > WRAP_COLUMNS && c == 0) cell = WRAP_COLUMNS;
      if (cell > widths[c]) widths[c] = cell;
    }
  }
}

/* One row of cells over as many lines as its longest wrapped cell needs. Spaces wait for what follows them,
 * so that no line ends in any. */
static void print_row(FILE *out, const Passage *passage, const int *widths, const char *const *cells) {
  const char *rest[MAX_COLUMNS];
  memcpy(rest, cells, sizeof(*rest) * (size_t)passage->column_count);
  for (bool more = true; more;) {
    int spaces = 2;
    more = false;
    for (int32_t c = 0; c < passage->column_count; c++) {
      const char *line = "";
      int length = next_line(&rest[c], widths[c], &line);
      int its = (int)vl_display_columns(line, (size_t)length), pad = widths[c] > its ? widths[c] - its : 0;
      if (passage->columns[c].number) spaces += pad;
      if (length > 0) {
        fprintf(out, "%*s%.*s", spaces, "", length, line);
        spaces = 0;
      }
      spaces += 2 + (length > 0 ? 0 : passage->columns[c].number ? 0 : widths[c]);
      if (!passage->columns[c].number && length > 0) spaces += pad;
      more = more || *rest[c] != '\0';
    }
    fputc('\n', out);
  }
}

static void print_table(FILE *out, const Passage *passage, bool color) {
  int widths[MAX_COLUMNS];
  const char *names[MAX_COLUMNS], *units[MAX_COLUMNS];
  bool any_unit = false;
  column_widths(passage, widths);
  for (int32_t c = 0; c < passage->column_count; c++) {
    names[c] = passage->columns[c].name;
    units[c] = passage->columns[c].unit;
    any_unit = any_unit || units[c][0] != '\0';
  }
  fprintf(out, "%s%s%s\n", emphasis(color, "\033[1m"), passage->text, emphasis(color, "\033[0m"));
  print_row(out, passage, widths, names);
  if (any_unit) print_row(out, passage, widths, units);
  for (int32_t r = 0; r < passage->row_count; r++)
    print_row(out, passage, widths, passage->rows[r]);
}

static void print_bars(FILE *out, const Passage *passage, bool color) {
  enum { BAR = 40 };
  fprintf(out, "\n%s%s%s\n", emphasis(color, "\033[1m"), passage->text, emphasis(color, "\033[0m"));
  for (int32_t r = 0; r < passage->row_count; r++) {
    int length = (int)(passage->shares[r] * BAR + 0.5);
    fprintf(out, "  %-14s %8s %s %6s %s", passage->rows[r][0], passage->rows[r][1], passage->columns[1].unit,
            passage->rows[r][2], passage->columns[2].unit);
    fputs(length > 0 ? "  " : "", out);
    for (int i = 0; i < length; i++)
      fputc('#', out);
    fputc('\n', out);
  }
}

static const char *verdict_color(const char *verdict) {
  if (strcmp(verdict, "supported") == 0) return "\033[1;32m";
  if (strcmp(verdict, "refuted") == 0) return "\033[1;31m";
  return "\033[1;33m";
}

void vl_report_term_verdict(const char *verdict, const char *id, FILE *out, bool color) {
  fprintf(out, "  %s%-11s%s %s", emphasis(color, verdict_color(verdict)), verdict, emphasis(color, "\033[0m"),
          id);
}

void vl_report_term_claim(const ClaimPassage *claim, FILE *out, int width, bool color) {
  enum { INDENT = 14 };
  vl_report_term_verdict(claim->verdict, claim->id, out, color);
  fputs(": ", out);
  vl_report_term_wrapped(out, claim->translation, INDENT, INDENT + (int)strlen(claim->id) + 1, width);
  fprintf(out, "%*s", INDENT, "");
  char line[VL_NUMBERS_BYTES + 2 * VL_SCOPE_BYTES + 8];
  snprintf(line, sizeof(line), "%s. %s.", claim->scope, claim->numbers);
  vl_report_term_wrapped(out, line, INDENT, INDENT, width);
}

void vl_report_term(const Document *document, FILE *out, int width, bool color) {
  bool verdicts = false, begun = false;
  for (int32_t i = 0; i < document->count; i++) {
    const Passage *passage = &document->passages[i];
    if (!passage->first_screen) continue;
    switch (passage->kind) {
    case PASSAGE_TABLE:
      if (begun) fputc('\n', out);
      print_table(out, passage, color);
      break;
    case PASSAGE_BARS: print_bars(out, passage, color); break;
    case PASSAGE_VERDICT:
      if (!verdicts)
        fprintf(out, "\n%sThe article's claims%s\n", emphasis(color, "\033[1m"), emphasis(color, "\033[0m"));
      verdicts = true;
      vl_report_term_claim(passage->claim, out, width, color);
      break;
    case PASSAGE_NOTE:
      fputs("  ", out);
      vl_report_term_wrapped(out, passage->text, 2, 2, width);
      break;
    case PASSAGE_PLACE:
    case PASSAGE_TEXT: fprintf(out, "\n%s\n", passage->text); break;
    case PASSAGE_COMMAND: fprintf(out, "Next:   %s\n", passage->text); break;
    default: break; /* headings, figures and whole claims are for the other formats */
    }
    begun = true;
  }
}
