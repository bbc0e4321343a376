/* The summary table: every figure under its own name, one unit a column, named in the heading. */
#include "fixture.h"

#include <string.h>

enum { TEXT_BYTES = 4096 };

static void read_summary(const Fixture *fixture, char text[TEXT_BYTES]) {
  memset(text, 0, TEXT_BYTES);
  FILE *out = fmemopen(text, TEXT_BYTES, "w");
  assert_non_null(out);
  vl_memory_summary(fixture->heap, out);
  assert_int_equal(fclose(out), 0);
  assert_true(strlen(text) < TEXT_BYTES - 1);
}

static int count_of(const char *text, const char *part) {
  int count = 0;
  for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
    count++;
  return count;
}

static void assert_line(const char *text, const char *line) {
  if (strstr(text, line) == NULL) fail_msg("no line '%s' in:\n%s", line, text);
}

/* Units stand in the heading and nowhere else, all columns of bytes have the same, and a binary divisor
 * has a binary name. */
static void summary_has_one_unit_per_column_a6(void **state) {
  (void)state;
  const struct {
    int64_t block_bytes;
    const char *unit;
  } rows[] = {{512, "KiB"}, {64 * MIB, "MiB"}, {12282 * MIB, "GiB"}}; /* the first has a segment of 2 MiB */
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    Fixture fixture;
    fixture_open(&fixture, 0, FAKE_ASCENDING);
    Block *block = fixture_obtain(&fixture, rows[i].block_bytes);
    char text[TEXT_BYTES];
    read_summary(&fixture, text);
    char heading[32];
    snprintf(heading, sizeof heading, "[%s]", rows[i].unit);
    assert_int_equal(count_of(text, heading), 3);
    assert_int_equal(count_of(text, "iB"), 3);
    assert_int_equal(count_of(text, "MB") + count_of(text, "GB"), 0);
    vl_heap_release(fixture.heap, &block);
    fixture_close(&fixture);
  }
}

static void summary_names_every_figure(void **state) {
  (void)state;
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  Block *kept = fixture_obtain(&fixture, 64 * MIB);
  Block *freed = fixture_obtain(&fixture, 32 * MIB);
  vl_heap_release(fixture.heap, &freed);
  char text[TEXT_BYTES];
  read_summary(&fixture, text);
  assert_line(text, "memory            current [MiB]       peak [MiB]    at peak [MiB]\n");
  assert_line(text, "\nallocated                 64.00            96.00            96.00\n");
  assert_line(text, "\nactivation                64.00            96.00            96.00\n");
  assert_line(text, "\nparameter                  0.00             0.00             0.00\n");
  assert_line(text, "\nrequested                 64.00            96.00\n");
  assert_line(text, "\nreserved                  96.00            96.00\n");
  assert_line(text, "\ncached-free               32.00             0.00\n");
  assert_line(text, "\nlargest free              32.00\n");
  assert_line(text, "\nobtains                           2\n");
  assert_line(text, "\nout of memory                     0\n");
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    assert_int_equal(count_of(text, vl_memory_category_name((MemoryCategory)i)), 1);
  }
  vl_heap_release(fixture.heap, &kept);
  fixture_close(&fixture);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(summary_has_one_unit_per_column_a6),
      cmocka_unit_test(summary_names_every_figure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
