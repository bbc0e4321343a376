/* Status, arena, host memory, hash and clocks do what base.h promises. */
#include "base/base.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static void status_has_name_and_exit_code(void **state) {
  (void)state;
  const struct {
    const char *name;
    StatusCode code;
    int exit_code;
  } rows[] = {{"ok", VL_OK, 0},
              {"invalid", VL_INVALID, 2},
              {"out-of-memory", VL_OUT_OF_MEMORY, 1},
              {"unsupported", VL_UNSUPPORTED, 1},
              {"environment", VL_ENVIRONMENT, 3},
              {"diverged", VL_DIVERGED, 1},
              {"interrupted", VL_INTERRUPTED, 4},
              {"internal", VL_INTERNAL, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_string_equal(vl_status_name(rows[i].code), rows[i].name);
    assert_int_equal(vl_status_exit_code(rows[i].code), rows[i].exit_code);
  }
}

static void status_message_is_truncated_to_fit(void **state) {
  (void)state;
  char text[2 * VL_STATUS_MESSAGE_BYTES];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  Status status = vl_error(VL_INVALID, "%s", text);
  assert_int_equal(strlen(status.message), VL_STATUS_MESSAGE_BYTES - 1);
  assert_string_equal(vl_ok().message, "");
}

static Status fail_after_counting(int *calls) {
  VL_TRY((*calls)++ == 0 ? vl_ok() : vl_error(VL_DIVERGED, "call %d", *calls));
  return vl_ok();
}

static void try_evaluates_once_and_passes_failures_on(void **state) {
  (void)state;
  int calls = 0;
  assert_int_equal(fail_after_counting(&calls).code, VL_OK);
  Status status = fail_after_counting(&calls);
  assert_int_equal(status.code, VL_DIVERGED);
  assert_string_equal(status.message, "call 2");
}

/* Pieces of every size are zeroed, aligned, apart from each other, and keep what is written to them. */
static void arena_pieces_are_zeroed_aligned_and_apart(void **state) {
  (void)state;
  enum { COUNT = 2000 };
  Arena *arena = vl_arena_create();
  unsigned char *pieces[COUNT];
  for (int i = 0; i < COUNT; i++) {
    size_t bytes = i % 97 == 0 ? 100000 : (size_t)(i % 300);
    pieces[i] = vl_arena_allocate(arena, bytes);
    assert_int_equal((uintptr_t)pieces[i] % 16, 0);
    for (size_t b = 0; b < bytes; b++)
      assert_int_equal(pieces[i][b], 0);
    memset(pieces[i], i % 251, bytes);
  }
  for (int i = 0; i < COUNT; i++) {
    size_t bytes = i % 97 == 0 ? 100000 : (size_t)(i % 300);
    for (size_t b = 0; b < bytes; b++)
      assert_int_equal(pieces[i][b], i % 251);
  }
  vl_arena_destroy(&arena);
  assert_null(arena);
  vl_arena_destroy(&arena);
}

static void arena_makes_texts(void **state) {
  (void)state;
  Arena *arena = vl_arena_create();
  assert_string_equal(vl_arena_copy_text(arena, "conv1"), "conv1");
  assert_string_equal(vl_arena_format(arena, "%s.%d", "layer", 12), "layer.12");
  assert_string_equal(vl_arena_format(arena, "%s", ""), "");
  vl_arena_destroy(&arena);
}

static void host_memory_is_zeroed_and_never_null(void **state) {
  (void)state;
  char *memory = vl_allocate(0);
  assert_non_null(memory);
  memory = vl_reallocate(memory, 64);
  assert_non_null(memory);
  free(memory);
  int *numbers = vl_allocate(100 * sizeof(int));
  for (int i = 0; i < 100; i++)
    assert_int_equal(numbers[i], 0);
  free(numbers);
  char *text = vl_copy_text("copy");
  assert_string_equal(text, "copy");
  free(text);
}

/* The published test vectors of FNV-1a, 64 bits. */
static void hash_matches_published_vectors(void **state) {
  (void)state;
  assert_true(vl_hash_text(vl_hash_start, "") == UINT64_C(0xcbf29ce484222325));
  assert_true(vl_hash_text(vl_hash_start, "a") == UINT64_C(0xaf63dc4c8601ec8c));
  assert_true(vl_hash_text(vl_hash_start, "foobar") == UINT64_C(0x85944171f73967e8));
  assert_true(vl_hash_bytes(vl_hash_text(vl_hash_start, "foo"), "bar", 3) == UINT64_C(0x85944171f73967e8));
}

static void monotonic_clock_does_not_run_backwards(void **state) {
  (void)state;
  int64_t before_ns = vl_monotonic_ns();
  for (int i = 0; i < 1000; i++) {
    int64_t now_ns = vl_monotonic_ns();
    assert_true(now_ns >= before_ns);
    before_ns = now_ns;
  }
}

static void utc_text_has_date_time_and_zone(void **state) {
  (void)state;
  char text[32];
  vl_utc_text(text, sizeof text);
  struct tm parts = {0};
  const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  assert_non_null(end);
  assert_string_equal(end, "");
  assert_int_equal(strlen(text), 20);
  char small[8];
  vl_utc_text(small, sizeof small);
  assert_string_equal(small, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(status_has_name_and_exit_code),
      cmocka_unit_test(status_message_is_truncated_to_fit),
      cmocka_unit_test(try_evaluates_once_and_passes_failures_on),
      cmocka_unit_test(arena_pieces_are_zeroed_aligned_and_apart),
      cmocka_unit_test(arena_makes_texts),
      cmocka_unit_test(host_memory_is_zeroed_and_never_null),
      cmocka_unit_test(hash_matches_published_vectors),
      cmocka_unit_test(monotonic_clock_does_not_run_backwards),
      cmocka_unit_test(utc_text_has_date_time_and_zone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
