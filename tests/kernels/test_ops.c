/* Every op of graph/ops/README.md and its gradients on one device, against the reference in double precision,
 * in f32, bf16 and f16, in every layout the device accepts, in place where allowed. README.md says within
 * what. usage: test_ops DEVICE [all|some [THREADS [WITHOUT]]]; `all`: the device runs every op, else what it
 * cannot run is skipped; WITHOUT: a regular expression of ops to leave out. Exits with 77 when the machine
 * does not offer the device, with 1 when VRAMLAB_REQUIRE names it. */
#include "tests/devices/open_device.h"
#include "tests/kernels/rows.h"
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A test for one op: all its rows, in one dtype. */
typedef struct OpTest {
  const char *op;
  Subject *subject;
  DType dtype;
  bool all;
} OpTest;

static void op_matches_reference(void **state) {
  const OpTest *test = *state;
  CompareTotals totals = {0};
  const OpRow *row;
  for (int32_t i = 0; (row = op_row(i)); i++) {
    if (strcmp(row->op, test->op) != 0 || (row->f32_only && test->dtype != DTYPE_F32)) continue;
    RowProgram made;
    Status status = row_program_create(row, test->dtype, false, 7, &made);
    if (status.code != VL_OK) fail_msg("%s (%s): %s", row->op, row->what, status.message);
    status = compare_graph(test->subject, made.evaluation, &totals);
    row_program_destroy(&made);
    if (status.code != VL_OK) fail_msg("%s: %s", vl_dtype_name(test->dtype), status.message);
  }
  print_message("  %s %s: %lld nodes, %lld runs, at worst %.2f of the bound (%s)\n", test->op,
                vl_dtype_name(test->dtype), (long long)totals.nodes, (long long)totals.runs, totals.worst,
                totals.worst_at);
  if (test->all) assert_int_equal(totals.unsupported, 0);
  if (totals.unsupported > 0) skip();
}

/* The device offers more than one layout for activations, or the tests above said little. Only told, not
 * asserted: a device may have one. */
static void layouts_are_told(void **state) {
  const OpTest *test = *state;
  for (int32_t i = 0; i < test->subject->layout_count; i++) {
    print_message(
        "  rank %d: %s\n", test->subject->ranks[i],
        test->subject->device->interface->layout_name(test->subject->device, test->subject->layouts[i]));
  }
}

enum { MAX_TESTS = 256 };

/* The rows' ops but those that `without` (NULL: none) matches, each once, in every dtype. */
static int32_t list_tests(Subject *subject, bool all, const regex_t *without, OpTest *tests,
                          struct CMUnitTest *units) {
  static const DType dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  static char names[MAX_TESTS][64];
  int32_t count = 0;
  tests[count] = (OpTest){.subject = subject};
  units[count] = (struct CMUnitTest){"layouts_are_told", layouts_are_told, NULL, NULL, &tests[count]};
  count++;
  const OpRow *row;
  for (int32_t i = 0; (row = op_row(i)); i++) {
    if (i > 0 && strcmp(row->op, op_row(i - 1)->op) == 0) continue;
    if (without && regexec(without, row->op, 0, NULL, 0) == 0) continue;
    for (int d = 0; d < 3 && count < MAX_TESTS; d++) {
      DType dtype = dtypes[d];
      if (row->f32_only && dtype != DTYPE_F32) continue;
      tests[count] = (OpTest){row->op, subject, dtype, all};
      snprintf(names[count], sizeof names[count], "%s_%s_matches_reference", row->op, vl_dtype_name(dtype));
      units[count] = (struct CMUnitTest){names[count], op_matches_reference, NULL, NULL, &tests[count]};
      count++;
    }
  }
  return count;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "cpu";
  Device *device = NULL;
  DeviceOptions options = {.threads = argc > 3 ? atoi(argv[3]) : 0};
  int refused = open_device_or_skip(name, &options, &device);
  if (refused) return refused;
  Subject subject;
  Status status = subject_create(device, &subject);
  if (status.code != VL_OK) {
    fprintf(stderr, "%s\n", status.message);
    return 1;
  }
  regex_t without;
  bool leaves_out = argc > 4;
  if (leaves_out && regcomp(&without, argv[4], REG_EXTENDED | REG_NOSUB) != 0) {
    fprintf(stderr, "%s is not a regular expression\n", argv[4]);
    return 1;
  }
  static OpTest tests[MAX_TESTS];
  static struct CMUnitTest units[MAX_TESTS];
  bool all = argc > 2 && strcmp(argv[2], "all") == 0;
  int32_t count = list_tests(&subject, all, leaves_out ? &without : NULL, tests, units);
  if (leaves_out) regfree(&without);
  int failed = _cmocka_run_group_tests(name, units, (size_t)count, NULL, NULL);
  vl_device_close(&device);
  return failed ? 1 : 0;
}
