/* Units: parsing and printing of bytes and seconds. Whole numbers throughout and no strtod or %f, so the
 * decimal point is "." under every locale (fault case I4) and a label always matches its divisor (A6). */
#include "base/base.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct ByteUnit {
  const char *name;
  int64_t bytes;
} ByteUnit;

static const ByteUnit byte_units[] = {
    {"", 1},
    {"B", 1},
    {"K", INT64_C(1) << 10},
    {"M", INT64_C(1) << 20},
    {"G", INT64_C(1) << 30},
    {"T", INT64_C(1) << 40},
    {"KiB", INT64_C(1) << 10},
    {"MiB", INT64_C(1) << 20},
    {"GiB", INT64_C(1) << 30},
    {"TiB", INT64_C(1) << 40},
    {"KB", 1000},
    {"kB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", INT64_C(1000000000000)},
};

static const ByteUnit *find_byte_unit(const char *name) {
  for (size_t i = 0; i < sizeof byte_units / sizeof byte_units[0]; i++) {
    if (strcmp(name, byte_units[i].name) == 0) return &byte_units[i];
  }
  return NULL;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads digits into value; false when the number does not fit. Moves text past them. */
static bool read_digits(const char **text, int64_t *value) {
  *value = 0;
  for (; is_digit(**text); (*text)++) {
    if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, **text - '0', value)) {
      return false;
    }
  }
  return true;
}

static Status bytes_error(const char *text) {
  return vl_error(VL_INVALID,
                  "'%s' is not an amount of memory; accepted: a number with an optional fraction and one of "
                  "KiB MiB GiB TiB (binary), K M G T (binary), KB MB GB TB (decimal), B or nothing (bytes), "
                  "below 2^63 bytes, for example 16GiB",
                  text);
}

Status vl_parse_bytes(const char *text, int64_t *bytes) {
  const char *at = text;
  int64_t whole;
  if (!is_digit(*at) || !read_digits(&at, &whole)) return bytes_error(text);
  const char *fraction = at;
  const char *fraction_end = at;
  if (*at == '.') {
    fraction = at + 1;
    fraction_end = fraction + strspn(fraction, "0123456789");
    if (fraction_end == fraction) return bytes_error(text);
    at = fraction_end;
  }
  if (*at == ' ') at++;
  const ByteUnit *unit = find_byte_unit(at);
  if (unit == NULL) return bytes_error(text);
  /* From the last digit to the first; flooring at each step gives the floor of the whole. */
  int64_t part = 0;
  for (const char *digit = fraction_end; digit > fraction; digit--) {
    part = ((digit[-1] - '0') * unit->bytes + part) / 10;
  }
  int64_t total;
  if (__builtin_mul_overflow(whole, unit->bytes, &total) || __builtin_add_overflow(total, part, &total)) {
    return bytes_error(text);
  }
  *bytes = total;
  return vl_ok();
}

Status vl_parse_integer(const char *what, const char *text, int64_t low, int64_t high, int64_t *value) {
  const char *at = text;
  int64_t number;
  bool valid = is_digit(*at) && read_digits(&at, &number) && *at == '\0';
  if (!valid || number < low || number > high) {
    return vl_error(VL_INVALID, "%s '%s' is not a whole number from %" PRId64 " to %" PRId64, what, text, low,
                    high);
  }
  *value = number;
  return vl_ok();
}

void vl_format_quotient(int64_t value, int64_t divisor, int decimals, char *text, size_t size) {
  int64_t scale = 1;
  for (int i = 0; i < decimals; i++)
    scale *= 10;
  int64_t whole = value / divisor;
  int64_t fraction = (value % divisor * scale + divisor / 2) / divisor;
  if (fraction == scale) {
    whole++;
    fraction = 0;
  }
  if (decimals == 0) {
    snprintf(text, size, "%" PRId64, whole);
  } else {
    snprintf(text, size, "%" PRId64 ".%0*" PRId64, whole, decimals, fraction);
  }
}

static void format_quotient(int64_t value, int64_t divisor, int decimals, const char *label, char *text,
                            size_t size) {
  char number[32];
  vl_format_quotient(value, divisor, decimals, number, sizeof number);
  snprintf(text, size, "%s %s", number, label);
}

void vl_format_bytes(int64_t bytes, char *text, size_t size) {
  if (bytes < 0 && size > 1) {
    *text++ = '-';
    size--;
    bytes = bytes == INT64_MIN ? INT64_MAX : -bytes;
  }
  if (bytes < INT64_C(1) << 10) {
    format_quotient(bytes, 1, 0, "B", text, size);
  } else if (bytes < INT64_C(1) << 20) {
    format_quotient(bytes, INT64_C(1) << 10, 2, "KiB", text, size);
  } else if (bytes < INT64_C(1) << 30) {
    format_quotient(bytes, INT64_C(1) << 20, 2, "MiB", text, size);
  } else if (bytes < INT64_C(1) << 40) {
    format_quotient(bytes, INT64_C(1) << 30, 3, "GiB", text, size);
  } else {
    format_quotient(bytes, INT64_C(1) << 40, 3, "TiB", text, size);
  }
}

double vl_bytes_to_gib(int64_t bytes) { return (double)bytes / 0x1p30; }
double vl_bytes_to_gb(int64_t bytes) { return (double)bytes / 1e9; }
double vl_bytes_to_mb(int64_t bytes) { return (double)bytes / 1e6; }

void vl_format_seconds(double seconds, char *text, size_t size) {
  /* Beyond this the count of nanoseconds does not fit; nothing we time lasts 200 years. */
  if (!isfinite(seconds) || seconds < 0.0 || seconds > 6e9) {
    snprintf(text, size, "n/a");
    return;
  }
  int64_t ns = (int64_t)(seconds * 1e9 + 0.5);
  /* The bounds are where the smaller unit would round up to the larger one. */
  if (ns < 1000) {
    format_quotient(ns, 1, 0, "ns", text, size);
  } else if (ns < 999500) {
    format_quotient(ns, 1000, 0, "us", text, size);
  } else if (ns < 999500000) {
    format_quotient(ns, 1000000, 0, "ms", text, size);
  } else if (ns < INT64_C(59950000000)) {
    format_quotient(ns, 1000000000, 1, "s", text, size);
  } else {
    int64_t whole_s = (ns + 500000000) / 1000000000;
    if (whole_s < 3600) {
      snprintf(text, size, "%" PRId64 " min %" PRId64 " s", whole_s / 60, whole_s % 60);
    } else {
      int64_t minutes = (whole_s + 30) / 60;
      snprintf(text, size, "%" PRId64 " h %" PRId64 " min", minutes / 60, minutes % 60);
    }
  }
}
