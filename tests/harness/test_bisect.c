/* The search for the largest batch. */
#include "harness/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct Threshold {
  int64_t largest;
  int64_t low, high;
  int32_t probes;
  int64_t broken; /* a value whose probe fails for another reason; 0: none */
} Threshold;

static Status probe(void *context, int64_t value, bool *fits) {
  Threshold *threshold = context;
  threshold->probes++;
  assert_true(value >= threshold->low && value <= threshold->high);
  if (value == threshold->broken) return vl_error(VL_UNSUPPORTED, "not a question of memory");
  *fits = value <= threshold->largest;
  return vl_ok();
}

static void finds_every_threshold_within_eight_probes_f3(void **state) {
  (void)state;
  for (int64_t t = 0; t <= 65; t++) {
    int64_t largest;
    Threshold threshold = {.largest = t == 65 ? 1000 : t, .low = 1, .high = 64};
    assert_int_equal(vl_bisect(1, 64, probe, &threshold, &largest).code, VL_OK);
    assert_int_equal(largest, t == 65 ? 64 : t); /* 0, below the range: none fits */
    assert_true(threshold.probes <= 8);
  }
}

static void other_errors_are_passed_on_f3(void **state) {
  (void)state;
  int64_t largest;
  Threshold threshold = {.largest = 10, .low = 1, .high = 64, .broken = 32};
  assert_int_equal(vl_bisect(1, 64, probe, &threshold, &largest).code, VL_UNSUPPORTED);
}

static void ranges_of_one_and_none(void **state) {
  (void)state;
  int64_t largest;
  Threshold threshold = {.largest = 7, .low = 7, .high = 7};
  assert_int_equal(vl_bisect(7, 7, probe, &threshold, &largest).code, VL_OK);
  assert_int_equal(largest, 7);
  assert_int_equal(vl_bisect(7, 6, probe, &threshold, &largest).code, VL_OK);
  assert_int_equal(largest, 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_every_threshold_within_eight_probes_f3),
      cmocka_unit_test(other_errors_are_passed_on_f3),
      cmocka_unit_test(ranges_of_one_and_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
