/* Out-of-memory messages as people reported them (tests/goldens/oom_messages.json), and what becomes of them
 * in logs: every figure is read or said to be absent, never another one. */
#include "harness/explain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const OomJob example = {0};

typedef struct Goldens {
  json_t *root, *list;
} Goldens;

static int load(void **state) {
  static Goldens goldens;
  json_error_t error;
  goldens.root = json_load_file(VRAMLAB_SOURCE_DIR "/tests/goldens/oom_messages.json", 0, &error);
  if (!goldens.root) fail_msg("%s:%d: %s", error.source, error.line, error.text);
  goldens.list = json_object_get(goldens.root, "messages");
  assert_true(json_array_size(goldens.list) >= 30);
  *state = &goldens;
  return 0;
}

static int unload(void **state) {
  json_decref(((Goldens *)*state)->root);
  return 0;
}

/* The first message of a text, explained; NULL when there is none. */
static json_t *explained(const char *text, size_t size, int32_t *found) {
  static OomMessage messages[VL_OOM_MAX_MESSAGES];
  *found = vl_oom_messages(text, size, messages);
  return *found > 0 ? vl_oom_json(&messages[0], &example) : NULL;
}

static void check(const char *source, const char *variant, const char *text, const json_t *expect) {
  int32_t found;
  const char *key;
  json_t *value, *json = explained(text, strlen(text), &found);
  if (found != 1) fail_msg("%s, %s: %d messages in \"%s\"", source, variant, (int)found, text);
  json_object_foreach((json_t *)(uintptr_t)expect, key, value) {
    json_t *got = json_object_get(json, key);
    if (got && json_equal(got, value)) continue;
    char *is = json_dumps(got, JSON_ENCODE_ANY), *should = json_dumps(value, JSON_ENCODE_ANY);
    fail_msg("%s, %s: %s is %s, not %s", source, variant, key, is, should);
  }
  json_decref(json);
}

static void public_messages_are_read_and_judged(void **state) {
  size_t i;
  json_t *golden;
  json_array_foreach(((Goldens *)*state)->list, i, golden) {
    const char *source = json_string_value(json_object_get(golden, "source"));
    check(source, "alone", json_string_value(json_object_get(golden, "message")),
          json_object_get(golden, "expect"));
  }
}

/* In a traceback with a prompt of a rank on each line, and with more text behind it. */
static char *in_a_log(const char *message) {
  char *text;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  fprintf(out, "epoch 3, 9.55 GiB free\r\nTraceback (most recent call last):\n"
               "[rank0]:   File \"train.py\", line 42, in step\n[rank0]: ");
  for (const char *c = message; *c; c++) {
    fputc(*c, out);
    if (*c == '\n') fprintf(out, "[rank0]: ");
  }
  fprintf(out, "\nINFO 11.00 GiB free; 3.00 GiB reserved in total by PyTorch)\n");
  fclose(out);
  return text;
}

/* A terminal of so many columns breaks lines anywhere; `colour` puts every tenth character into one. */
static char *broken(const char *message, int columns, bool colour) {
  char *text;
  size_t size;
  int column = 0;
  FILE *out = open_memstream(&text, &size);
  for (const char *c = message; *c; c++) {
    if (column == columns) {
      fputs("\r\n", out);
      column = 0;
    }
    if (colour && (c - message) % 10 == 0)
      fprintf(out, "\033[1;31m%c\033[0m", *c);
    else
      fputc(*c, out);
    column = *c == '\n' ? 0 : column + 1;
  }
  fclose(out);
  return text;
}

/* "10.76 GiB" as a log with decimal commas has it. */
static char *with_commas(const char *message) {
  char *text = vl_copy_text(message);
  for (char *c = text; *c; c++) {
    if (*c != '.' || c == text) continue;
    bool number = c[-1] >= '0' && c[-1] <= '9' && c[1] >= '0' && c[1] <= '9';
    if (number) *c = ',';
  }
  return text;
}

static void logs_wraps_colours_and_commas_change_nothing(void **state) {
  size_t i;
  json_t *golden;
  json_array_foreach(((Goldens *)*state)->list, i, golden) {
    const char *source = json_string_value(json_object_get(golden, "source"));
    const char *message = json_string_value(json_object_get(golden, "message"));
    const json_t *expect = json_object_get(golden, "expect");
    char *text = in_a_log(message);
    check(source, "in a log", text, expect);
    free(text);
    for (int columns = 7; columns < 120; columns += 9) {
      text = broken(message, columns, columns % 2 == 0);
      check(source, "broken lines", text, expect);
      free(text);
    }
    text = with_commas(message);
    check(source, "decimal commas", text, expect);
    free(text);
  }
}

static const char *const figures[] = {"tried_bytes",        "total_bytes",     "free_bytes",
                                      "this_process_bytes", "allocated_bytes", "allowed_bytes",
                                      "private_pools_bytes"};

/* Whatever a cut message says, the whole one says too; the verdict is the whole one's or none. */
static void a_message_cut_off_anywhere_says_nothing_wrong(void **state) {
  size_t i;
  json_t *golden;
  json_array_foreach(((Goldens *)*state)->list, i, golden) {
    const char *message = json_string_value(json_object_get(golden, "message"));
    int32_t found;
    json_t *whole = explained(message, strlen(message), &found);
    for (size_t length = 0; length < strlen(message); length++) {
      /* What a log goes on with is no part of the message. */
      char *text = vl_allocate(length + 64);
      snprintf(text, length + 64, "%.*s\nINFO 5.00 GiB free; 7.77 MiB cached)\n", (int)length, message);
      json_t *cut = explained(text, strlen(text), &found);
      for (size_t k = 0; cut && k < sizeof figures / sizeof figures[0]; k++) {
        json_t *got = json_object_get(cut, figures[k]), *should = json_object_get(whole, figures[k]);
        if (!json_is_integer(got)) continue;
        /* "2.50GiB (2684354560B)" cut within the parenthesis is 2.50 GiB. */
        int64_t off = json_integer_value(got) - json_integer_value(should);
        int64_t rounding = json_integer_value(json_object_get(cut, "rounding_bytes"));
        if (!json_is_integer(should) || off > rounding || off < -rounding)
          fail_msg("%s: %s is %lld in \"%s\"", json_string_value(json_object_get(golden, "source")),
                   figures[k], (long long)json_integer_value(got), text);
      }
      const char *verdict = cut ? json_string_value(json_object_get(cut, "verdict")) : "unknown";
      if (strcmp(verdict, "unknown") != 0)
        assert_string_equal(verdict, json_string_value(json_object_get(whole, "verdict")));
      json_decref(cut);
      free(text);
    }
    json_decref(whole);
  }
}

static void other_processes_are_counted(void **state) {
  (void)state;
  static const char text[] =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
      "79.15 GiB of which 512.00 MiB is free. Process 4021 has 30.00 GiB memory in use. Including "
      "non-PyTorch "
      "memory, this process has 40.00 GiB memory in use. Process 77 has 8.00 GiB memory in use. Of the "
      "allocated "
      "memory 39.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.";
  OomMessage message;
  OomExplanation it;
  OomMessage *messages = vl_allocate(VL_OOM_MAX_MESSAGES * sizeof *messages);
  assert_int_equal(vl_oom_messages(text, strlen(text), messages), 1);
  message = messages[0];
  free(messages);
  vl_oom_explain(&message, &it);
  assert_int_equal(it.verdict, OOM_SHORTAGE);
  assert_int_equal(message.device, 3);
  assert_int_equal(message.process_count, 2);
  assert_int_equal(message.processes[0].pid, 4021);
  assert_int_equal(message.processes[1].pid, 77);
  assert_int_equal(it.others_bytes, INT64_C(38) << 30);
  assert_int_equal(it.maybe_self_pid, -1);
  assert_int_equal(it.from_model_bytes, (INT64_C(2048) - 512 - 100) << 20);
  /* 79.15 - 0.5 - 78: what nobody is named for. */
  assert_int_equal(it.unnamed_bytes, message.total.bytes - (INT64_C(512) << 20) - (INT64_C(78) << 30));
}

/* A comparison is too close only by the figures that take part in it. */
static void figures_are_rounded_each_by_its_own_digit(void **state) {
  (void)state;
  static const struct {
    const char *free, *verdict;
  } cases[] = {{"10.69 MiB", "fragmentation"}, {"19.99 MiB", "too-close"}, {"20.02 MiB", "refused"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[300];
    int32_t found;
    snprintf(
        text, sizeof text,
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.55 GiB already "
        "allocated; %s free; 9.60 GiB reserved in total by PyTorch)",
        cases[i].free);
    json_t *json = explained(text, strlen(text), &found);
    assert_string_equal(json_string_value(json_object_get(json, "verdict")), cases[i].verdict);
    json_decref(json);
  }
}

/* CUDA's own pool counts what is in use against the limit, so that what is missing is known. */
static void a_limit_on_cudas_pool_is_one(void **state) {
  (void)state;
  static const char text[] =
      "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\n"
      "Currently allocated     : 7.50 GiB\nRequested               : 1.00 GiB\n"
      "Device limit            : 24.00 GiB\nFree (according to CUDA): 15.00 GiB\n"
      "PyTorch limit (set by user-supplied memory fraction)\n                        : 8.00 GiB\n";
  int32_t found;
  json_t *json = explained(text, strlen(text), &found);
  assert_int_equal(found, 1);
  assert_string_equal(json_string_value(json_object_get(json, "verdict")), "limit");
  assert_int_equal(json_integer_value(json_object_get(json, "missing_bytes")), INT64_C(512) << 20);
  assert_int_equal(json_integer_value(json_object_get(json, "from_model_bytes")), INT64_C(512) << 20);
  assert_int_equal(json_integer_value(json_object_get(json, "device")), 1);
  json_decref(json);
}

static void several_messages_are_told_apart(void **state) {
  (void)state;
  static const char a[] =
      "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 1.00 GiB total capacity; 900.00 "
      "MiB already allocated; 5.00 MiB free; 930.00 MiB reserved in total by PyTorch)\n";
  static const char b[] =
      "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 1.00 GiB total capacity; 900.00 "
      "MiB already allocated; 5.00 MiB free; 930.00 MiB reserved in total by PyTorch)\n";
  char text[2000];
  OomMessage *messages = vl_allocate(VL_OOM_MAX_MESSAGES * sizeof *messages);
  snprintf(text, sizeof text, "we often run out: CUDA out of memory. So:\n%s%s%s%s", a, b, a, a);
  assert_int_equal(vl_oom_messages(text, strlen(text), messages), 2);
  assert_int_equal(messages[0].times, 3);
  assert_int_equal(messages[0].line, 2);
  assert_int_equal(messages[1].times, 1);
  assert_int_equal(messages[1].line, 3);
  assert_int_equal(messages[1].device, 1);
  free(messages);
}

static void what_is_no_message_is_none(void **state) {
  (void)state;
  static const char *const texts[] = {
      "",
      "Tried to allocate 20.00 MiB",
      "out of memory",
      "CUDA error: invalid device ordinal",
      "\033[",
      "\\n",
      "2022-03-03 14:59:00.303723: W tensorflow/core/common_runtime/bfc_allocator.cc:239] Allocator "
      "(GPU_0_bfc) ran "
      "out of memory trying to allocate 3.34GiB with freed_by_count=0. The caller indicates that this is not "
      "a "
      "failure, but may mean that there could be performance gains if more memory were available.",
      "failed to allocate 3 seats",
      "Allocation on device 0 succeeded",
      "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=405 error=11 : invalid argument",
      "NCCL WARN Cuda failure 'invalid argument'"};
  OomMessage *messages = vl_allocate(VL_OOM_MAX_MESSAGES * sizeof *messages);
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    if (vl_oom_messages(texts[i], strlen(texts[i]), messages) != 0) fail_msg("found one in \"%s\"", texts[i]);
  free(messages);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(public_messages_are_read_and_judged),
      cmocka_unit_test(logs_wraps_colours_and_commas_change_nothing),
      cmocka_unit_test(a_message_cut_off_anywhere_says_nothing_wrong),
      cmocka_unit_test(other_processes_are_counted),
      cmocka_unit_test(figures_are_rounded_each_by_its_own_digit),
      cmocka_unit_test(a_limit_on_cudas_pool_is_one),
      cmocka_unit_test(several_messages_are_told_apart),
      cmocka_unit_test(what_is_no_message_is_none),
  };
  return cmocka_run_group_tests(tests, load, unload);
}
