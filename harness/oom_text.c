#include "harness/oom_text.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* The length of a control sequence (ECMA-48: CSI ... final byte, OSC ... BEL) at `at`; 0 when there is none.
 */
size_t vl_control_sequence(const char *text, size_t size, size_t at) {
  if (text[at] != '\033' || at + 1 >= size) return text[at] == '\033';
  size_t end = at + 2;
  if (text[at + 1] == '[') {
    while (end < size && !(text[end] >= 0x40 && text[end] <= 0x7e))
      end++;
  } else if (text[at + 1] == ']') {
    while (end < size && text[end] != '\a' && text[end] != '\033' && text[end] != '\n')
      end++;
  } else {
    return 2;
  }
  return (end < size ? end + 1 : size) - at;
}

/* What stands before a line that something else wraps or quotes: "> ", "| ", "# ", "[rank0]: ". */
static size_t line_prefix(const char *text, size_t size, size_t at) {
  size_t end = at;
  for (;;) {
    size_t close = end + 5;
    if (end < size && text[end] != '\0' && strchr(" \t>|#", text[end])) {
      end++;
      continue;
    }
    if (close >= size || memcmp(text + end, "[rank", 5) != 0) return end - at;
    while (close < size && isdigit((unsigned char)text[close]))
      close++;
    if (close + 1 >= size || text[close] != ']' || text[close + 1] != ':') return end - at;
    end = close + 2;
  }
}

/* An escape of a JSON or Python string: its line breaks are line breaks. */
static bool escaped_break(const char *text, size_t size, size_t at) {
  return text[at] == '\\' && at + 1 < size && strchr("nrt", text[at + 1]) != NULL && text[at + 1] != '\0';
}

void vl_squeeze(const char *text, size_t size, Squeezed *squeezed) {
  *squeezed = (Squeezed){.text = vl_allocate(size + 1),
                         .at = vl_allocate((size + 1) * sizeof(uint32_t)),
                         .original = text,
                         .original_size = size};
  for (size_t i = 0; i < size;) {
    size_t skip = vl_control_sequence(text, size, i);
    if (skip == 0 && (i == 0 || text[i - 1] == '\n')) skip = line_prefix(text, size, i);
    if (skip == 0 && escaped_break(text, size, i)) skip = 2;
    unsigned char c = (unsigned char)text[i];
    if (skip == 0 && (c <= ' ' || c >= 0x7f)) skip = 1;
    if (skip > 0) {
      i += skip;
      continue;
    }
    squeezed->at[squeezed->length] = (uint32_t)i++;
    squeezed->text[squeezed->length++] = (char)tolower(c);
  }
  squeezed->at[squeezed->length] = (uint32_t)size;
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------- */

bool vl_starts(const char *text, const char *word) { return strncmp(text, word, strlen(word)) == 0; }

/* A word among the next `limit` characters, so that a long log is not searched again for every message. */
const char *vl_find_near(const char *text, const char *word, int limit) {
  for (int i = 0; i < limit && text[i] != '\0'; i++)
    if (vl_starts(text + i, word)) return text + i;
  return NULL;
}

/* Whole bytes, with an optional unit after them; binary units whatever they are called. */
static const char *read_unit(const char *text, double *unit) {
  static const struct {
    const char *name;
    double bytes;
  } units[] = {{"bytes", 1},    {"byte", 1},    {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30},
               {"tib", 0x1p40}, {"kb", 0x1p10}, {"mb", 0x1p20},  {"gb", 0x1p30},  {"tb", 0x1p40}};
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (!vl_starts(text, units[i].name)) continue;
    *unit = units[i].bytes;
    return text + strlen(units[i].name);
  }
  return NULL;
}

/* Digits with a decimal point or comma. Where both occur the last is the decimal one; a single comma before
 * exactly three digits divides thousands, since PyTorch prints two decimals. NULL when there is no number. */
const char *vl_read_number(const char *text, double *value, int *decimals) {
  const char *end = text, *last = NULL;
  int marks = 0;
  while (isdigit((unsigned char)*end) ||
         ((*end == '.' || *end == ',') && end > text && isdigit((unsigned char)end[1]))) {
    if (!isdigit((unsigned char)*end)) {
      last = end;
      marks++;
    }
    end++;
  }
  if (end == text) return NULL;
  bool thousands = last && (marks == 1 ? *last == ',' && end - last == 4 : false);
  if (thousands) last = NULL;
  *value = 0;
  *decimals = last ? (int)(end - last - 1) : 0;
  double scale = 1;
  for (const char *c = text; c < end; c++) {
    if (!isdigit((unsigned char)*c)) continue;
    if (last && c > last)
      *value += (*c - '0') * (scale /= 10);
    else
      *value = *value * 10 + (*c - '0');
  }
  return end;
}

const char *vl_read_figure(const char *text, OomFigure *figure) {
  double value, unit;
  int decimals;
  const char *end = vl_read_number(text, &value, &decimals);
  if (end) end = read_unit(end, &unit);
  if (!end || !(value * unit < 0x1p60)) return NULL;
  figure->bytes = llrint(value * unit);
  figure->half_digit_bytes = unit > 1 ? (int64_t)ceil(unit * pow(10, -decimals) / 2) : 0;
  return end;
}
