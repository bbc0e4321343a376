/* Layers are cut into segments whose sizes differ by at most one, or every k layers; counts that make no
 * sense are refused before work starts. */
#include "graph/graph.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 64 };

static void assert_sizes(const int32_t *sizes, int32_t count, const int32_t *expected,
                         int32_t expected_count) {
  assert_int_equal(count, expected_count);
  for (int32_t i = 0; i < count; i++)
    assert_int_equal(sizes[i], expected[i]);
}

static void leftover_layers_are_spread_d5(void **state) {
  (void)state;
  int32_t sizes[MOST], count = 0;
  bool clamped = true;
  assert_int_equal(vl_partition_segments(11, 4, sizes, &count, &clamped).code, VL_OK);
  assert_sizes(sizes, count, (int32_t[]){3, 3, 3, 2}, 4);
  assert_false(clamped);
  assert_int_equal(vl_partition_segments(8, 4, sizes, &count, &clamped).code, VL_OK);
  assert_sizes(sizes, count, (int32_t[]){2, 2, 2, 2}, 4);
}

static void more_segments_than_layers_is_noted_d5(void **state) {
  (void)state;
  int32_t sizes[MOST], count = 0;
  bool clamped = false;
  assert_int_equal(vl_partition_segments(3, 5, sizes, &count, &clamped).code, VL_OK);
  assert_sizes(sizes, count, (int32_t[]){1, 1, 1}, 3);
  assert_true(clamped);
}

static void counts_below_one_are_refused_d5(void **state) {
  (void)state;
  int32_t sizes[MOST], count = 0;
  bool clamped;
  Status status = vl_partition_segments(11, 0, sizes, &count, &clamped);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "11 layers into 0 segments"));
  assert_int_equal(vl_partition_segments(0, 4, sizes, &count, &clamped).code, VL_INVALID);
  assert_int_equal(vl_partition_segments(4, -1, sizes, &count, &clamped).code, VL_INVALID);
  status = vl_partition_interval(11, 0, sizes, &count);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "11 layers every 0"));
  assert_int_equal(vl_partition_interval(0, 3, sizes, &count).code, VL_INVALID);
}

static void an_interval_covers_every_layer_once_d5(void **state) {
  (void)state;
  int32_t sizes[MOST], count = 0;
  assert_int_equal(vl_partition_interval(11, 3, sizes, &count).code, VL_OK);
  assert_sizes(sizes, count, (int32_t[]){3, 3, 3, 2}, 4);
}

static void every_cut_covers_all_layers_evenly(void **state) {
  (void)state;
  for (int32_t layers = 1; layers <= MOST; layers++) {
    for (int32_t wanted = 1; wanted <= MOST + 3; wanted++) {
      int32_t sizes[MOST], count = 0, sum = 0, low = MOST, high = 0;
      bool clamped;
      assert_int_equal(vl_partition_segments(layers, wanted, sizes, &count, &clamped).code, VL_OK);
      for (int32_t i = 0; i < count; i++) {
        sum += sizes[i];
        low = sizes[i] < low ? sizes[i] : low;
        high = sizes[i] > high ? sizes[i] : high;
      }
      assert_int_equal(sum, layers);
      assert_true(low >= 1 && high - low <= 1);
      assert_int_equal(count, wanted < layers ? wanted : layers);
      assert_int_equal(clamped, wanted > layers);
      assert_int_equal(vl_partition_interval(layers, wanted, sizes, &count).code, VL_OK);
      sum = 0;
      for (int32_t i = 0; i < count; i++) {
        assert_true(sizes[i] == wanted || (i == count - 1 && sizes[i] >= 1 && sizes[i] <= wanted));
        sum += sizes[i];
      }
      assert_int_equal(sum, layers);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(leftover_layers_are_spread_d5),
      cmocka_unit_test(more_segments_than_layers_is_noted_d5),
      cmocka_unit_test(counts_below_one_are_refused_d5),
      cmocka_unit_test(an_interval_covers_every_layer_once_d5),
      cmocka_unit_test(every_cut_covers_all_layers_evenly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
