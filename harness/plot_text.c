/* Text and numbers as gnuplot reads them. */
#include "harness/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void vl_gnuplot_text(FILE *out, const char *text) {
  fputc('\'', out);
  for (; *text != '\0'; text++) {
    if (*text == '\'') fputc('\'', out);
    fputc(*text == '\n' ? ' ' : *text, out);
  }
  fputc('\'', out);
}

static char plain(char c) { return c == '"' || c == '`' ? '\'' : c == '\\' ? '/' : c == '\n' ? ' ' : c; }

void vl_gnuplot_word(FILE *out, const char *text) { (void)vl_gnuplot_wrapped(out, text, SIZE_MAX); }

int32_t vl_gnuplot_wrapped(FILE *out, const char *text, size_t width) {
  size_t column = 0;
  int32_t lines = *text != '\0';
  fputc('"', out);
  while (*text != '\0') {
    size_t word = strcspn(text, " \n"), its = vl_display_columns(text, word);
    if (column > 0 && (text[-1] == '\n' || column + 1 + its > width)) {
      fputs("\\n", out);
      lines++;
      column = 0;
    } else if (column > 0) {
      fputc(' ', out);
      column++;
    }
    while (its > width) { /* a word too long for any line goes on in the next */
      size_t part = vl_display_prefix(text, word, width);
      if (part == 0) break;
      for (size_t i = 0; i < part; i++)
        fputc(plain(text[i]), out);
      fputs("\\n", out);
      lines++;
      text += part;
      word -= part;
      its = vl_display_columns(text, word);
    }
    for (size_t i = 0; i < word; i++)
      fputc(plain(text[i]), out);
    column += its;
    text += word;
    text += *text != '\0';
  }
  fputc('"', out);
  return lines;
}

/* How text falls into lines at a width, without writing it. */
typedef struct Fall {
  int32_t lines;
  size_t last;   /* columns of the last line */
  bool at_stops; /* each line but the last ends with a comma, a colon or a semicolon */
} Fall;

static Fall fall_of(const char *text, size_t width) {
  Fall fall = {.at_stops = true};
  char *written = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&written, &bytes);
  if (out == NULL) return fall;
  fall.lines = vl_gnuplot_wrapped(out, text, width);
  fclose(out);
  const char *line = written + 1; /* behind the quote */
  for (const char *end; (end = strstr(line, "\\n")) != NULL; line = end + 2)
    fall.at_stops = fall.at_stops && end > line && strchr(",:;", end[-1]) != NULL;
  fall.last = vl_display_columns(line, strcspn(line, "\""));
  free(written);
  return fall;
}

int32_t vl_gnuplot_balanced(FILE *out, const char *text, size_t width) {
  int32_t lines = fall_of(text, width).lines;
  size_t chosen = width, narrowest = width / 2;
  for (; chosen > narrowest; chosen--) {
    Fall fall = fall_of(text, chosen);
    if (lines <= 1 || (fall.lines == lines && fall.at_stops && fall.last >= width / 4))
      return vl_gnuplot_wrapped(out, text, chosen);
  }
  while (chosen < width && fall_of(text, chosen).lines > lines)
    chosen++;
  return vl_gnuplot_wrapped(out, text, chosen);
}

void vl_gnuplot_number(FILE *out, double value) {
  if (isfinite(value))
    fprintf(out, "%.9g", value);
  else
    fputs("NaN", out);
}
