/* Bytes and seconds are read and printed with the right unit, under every locale. */
#include "base/base.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (INT64_C(1) << 20)

static void assert_parses(const char *text, int64_t expected_bytes) {
  int64_t bytes = -1;
  Status status = vl_parse_bytes(text, &bytes);
  if (status.code != VL_OK) fail_msg("%s: %s", text, status.message);
  if (bytes != expected_bytes) fail_msg("%s: read %lld", text, (long long)bytes);
}

static void assert_formats(int64_t bytes, const char *expected) {
  char text[32];
  vl_format_bytes(bytes, text, sizeof text);
  assert_string_equal(text, expected);
}

static void bytes_are_read_in_every_accepted_form(void **state) {
  (void)state;
  assert_parses("4096", 4096);
  assert_parses("0", 0);
  assert_parses("17B", 17);
  assert_parses("512MiB", 512 * MIB);
  assert_parses("16GiB", 16384 * MIB);
  assert_parses("16GB", INT64_C(16000000000));
  assert_parses("16 GB", INT64_C(16000000000));
  assert_parses("24G", 24576 * MIB);
  assert_parses("24M", 24 * MIB);
  assert_parses("24K", 24576);
  assert_parses("2TiB", INT64_C(2) << 40);
  assert_parses("1.5KiB", 1536);
  assert_parses("0.5GB", 500000000);
  assert_parses("0.1GiB", 107374182); /* 107374182.4 */
  assert_parses("1.000000000000000000000000001KiB", 1024);
  assert_parses("9223372036854775807", INT64_MAX);
}

static void other_texts_are_refused_with_the_text_and_the_forms(void **state) {
  (void)state;
  const char *texts[] = {"",          "GiB",    "-1GiB",  "+1",         "1,5GiB",
                         "1.5.5GiB",  "1.GiB",  "16gib",  "1e9",        "0x10",
                         "inf",       "16GiBs", " 16GiB", "16  GiB",    "16GiB ",
                         "8Gib",      "nanGiB", ".5GB",   "9999999TiB", "9223372036854775808",
                         "8388608TiB"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    int64_t bytes = 42;
    Status status = vl_parse_bytes(texts[i], &bytes);
    if (status.code != VL_INVALID) fail_msg("'%s' was accepted", texts[i]);
    assert_int_equal(bytes, 42);
    char quoted[64];
    snprintf(quoted, sizeof quoted, "'%s'", texts[i]);
    assert_non_null(strstr(status.message, quoted));
    assert_non_null(strstr(status.message, "GiB"));
  }
}

static void integers_are_read_within_their_range(void **state) {
  (void)state;
  int64_t value = -1;
  assert_int_equal(vl_parse_integer("--steps", "17", 1, 100, &value).code, VL_OK);
  assert_int_equal(value, 17);
  const char *texts[] = {"", "0", "101", "1.5", "12x", "-3", " 5", "99999999999999999999"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    Status status = vl_parse_integer("--steps", texts[i], 1, 100, &value);
    assert_int_equal(status.code, VL_INVALID);
    assert_non_null(strstr(status.message, "--steps"));
    assert_non_null(strstr(status.message, "1 to 100"));
    assert_int_equal(value, 17);
  }
}

/* 12,282 MiB is 12,878,610,432 bytes, 12,878.61 MB and 11.994 GiB; never "12282 MB". */
static void label_matches_divisor_a6(void **state) {
  (void)state;
  int64_t bytes;
  assert_int_equal(vl_parse_bytes("12282MiB", &bytes).code, VL_OK);
  assert_true(bytes == INT64_C(12878610432));
  assert_true(vl_bytes_to_mb(bytes) == 12878.610432);
  assert_true(vl_bytes_to_gb(bytes) == 12.878610432);
  assert_true(vl_bytes_to_gib(bytes) == 12282.0 / 1024.0);
  assert_formats(bytes, "11.994 GiB");
}

static void bytes_are_printed_in_the_fitting_unit(void **state) {
  (void)state;
  assert_formats(0, "0 B");
  assert_formats(512, "512 B");
  assert_formats(1023, "1023 B");
  assert_formats(1536, "1.50 KiB");
  assert_formats(25 * MIB / 2, "12.50 MiB");
  assert_formats(1024 * MIB, "1.000 GiB");
  assert_formats(1263616 * INT64_C(1024), "1.205 GiB");
  assert_formats(INT64_C(3) << 40, "3.000 TiB");
  assert_formats(-1536, "-1.50 KiB");
  assert_formats(INT64_MAX, "8388608.000 TiB");
  assert_formats(INT64_MIN, "-8388608.000 TiB");
}

static void seconds_are_printed_in_the_fitting_unit(void **state) {
  (void)state;
  const struct {
    double seconds;
    const char *expected;
  } rows[] = {{0, "0 ns"},           {250e-9, "250 ns"},   {850e-6, "850 us"},   {0.25, "250 ms"},
              {0.9999, "1.0 s"},     {12.34, "12.3 s"},    {59.96, "1 min 0 s"}, {250, "4 min 10 s"},
              {3599.7, "1 h 0 min"}, {8000, "2 h 13 min"}, {NAN, "n/a"},         {-1, "n/a"},
              {INFINITY, "n/a"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char text[32];
    vl_format_seconds(rows[i].seconds, text, sizeof text);
    assert_string_equal(text, rows[i].expected);
  }
}

static bool decimal_point_is_comma(void) { return strcmp(localeconv()->decimal_point, ",") == 0; }

/* An installed locale with a decimal comma, else one compiled into a folder of our own. */
static bool set_comma_locale(const char *folder) {
  if (setlocale(LC_ALL, "de_DE.UTF-8") != NULL && decimal_point_is_comma()) return true;
  char command[256];
  snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
  if (system(command) != 0) return false;
  setenv("LOCPATH", folder, 1);
  return setlocale(LC_ALL, "de_DE.UTF-8") != NULL && decimal_point_is_comma();
}

static void comma_locale_changes_nothing_i4(void **state) {
  (void)state;
  char folder[] = "/tmp/vramlab-locale-XXXXXX";
  assert_non_null(mkdtemp(folder));
  bool found = set_comma_locale(folder);
  if (found) {
    char text[32];
    snprintf(text, sizeof text, "%.1f", 1234.5);
    assert_string_equal(text, "1234,5"); /* the locale does what this test is about */
    assert_parses("1.5GiB", 1536 * MIB);
    assert_formats(1536 * MIB, "1.500 GiB");
    vl_format_seconds(12.34, text, sizeof text);
    assert_string_equal(text, "12.3 s");
    vl_format_quotient(12345, 10, 1, text, sizeof text);
    assert_string_equal(text, "1234.5");
    int64_t bytes;
    assert_int_equal(vl_parse_bytes("1,5GiB", &bytes).code, VL_INVALID);
  }
  setlocale(LC_ALL, "C");
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  assert_int_equal(system(command), 0);
  if (!found) skip();
}

/* Text is as wide as it looks: a wide character two columns, a combining mark none, whatever the locale. */
static void text_has_the_width_it_takes_on_a_screen(void **state) {
  (void)state;
  assert_int_equal(vl_display_columns("plain", SIZE_MAX), 5);
  assert_int_equal(vl_display_columns("größer", SIZE_MAX), 6);
  assert_int_equal(vl_display_columns("显存", SIZE_MAX), 4);
  assert_int_equal(vl_display_columns("e\xcc\x81", SIZE_MAX), 1); /* e with a combining accent */
  assert_int_equal(vl_display_columns("a\xff"
                                      "b",
                                      SIZE_MAX),
                   3); /* not UTF-8 */
  assert_int_equal(vl_display_columns("größer", 2), 2);
  assert_int_equal(vl_display_prefix("显存", SIZE_MAX, 3), 3); /* one whole character */
  assert_int_equal(vl_display_prefix("plain", SIZE_MAX, 9), 5);
  assert_int_equal(vl_display_prefix("", SIZE_MAX, 9), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_are_read_in_every_accepted_form),
      cmocka_unit_test(other_texts_are_refused_with_the_text_and_the_forms),
      cmocka_unit_test(integers_are_read_within_their_range),
      cmocka_unit_test(label_matches_divisor_a6),
      cmocka_unit_test(bytes_are_printed_in_the_fitting_unit),
      cmocka_unit_test(seconds_are_printed_in_the_fitting_unit),
      cmocka_unit_test(comma_locale_changes_nothing_i4),
      cmocka_unit_test(text_has_the_width_it_takes_on_a_screen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
