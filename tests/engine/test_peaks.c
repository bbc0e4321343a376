/* A5: warm-up and steady peaks stay apart, the larger one is what is needed, and a spike is told with its
 * step. */
#include "engine/cell.h"
#include "tests/memory/fixture.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6 };

/* What a peak is made of is a matter of programs, and there is none here. */
void __wrap_vl_executable_account(const Executable *executable, int64_t place, MemoryAccount *account);
void __wrap_vl_executable_account(const Executable *executable, int64_t place, MemoryAccount *account) {
  (void)executable, (void)place, (void)account;
}

static int64_t no_driver(Device *device, bool reset) {
  (void)device, (void)reset;
  return -1;
}

/* A cell whose steps need so many MiB each, taken as those of a real one are. */
static void run_steps(const int64_t *mib, int32_t steps, int32_t warmup, CellResult *result) {
  Fixture fixture;
  DeviceInterface interface = {.driver_peak_bytes = no_driver};
  Device device = {.interface = &interface};
  Cell cell = {.result = result, .device = &device};
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  vl_cell_result_init(result);
  result->step_peak_bytes = vl_allocate(STEPS * sizeof(int64_t));
  result->live_bytes = vl_allocate(STEPS * sizeof(int64_t));
  result->step_reserved_bytes = vl_allocate(STEPS * sizeof(int64_t));
  result->step_fragmentation = vl_allocate(STEPS * sizeof(double));
  cell.tracker = fixture.tracker;
  cell.heap = fixture.heap;
  for (int32_t i = 0; i < steps; i++) {
    /* Segments have whole 2 MiB, which a block of odd size would take whole. */
    Block *even = fixture_obtain(&fixture, (mib[i] - mib[i] % 2) * MIB);
    Block *odd = fixture_obtain(&fixture, mib[i] % 2 * MIB);
    vl_heap_release(fixture.heap, &even);
    vl_heap_release(fixture.heap, &odd);
    vl_heap_trim(fixture.heap);
    cell_take_step_peak(&cell, i >= warmup);
  }
  cell_take_driver(&cell);
  engine_live_names_destroy(&cell.names_before);
  fixture_close(&fixture);
}

static void the_spike_of_the_first_step_is_needed_and_apart_a5(void **state) {
  (void)state;
  static const int64_t mib[] = {7300, 2051, 2054, 2052, 2052};
  CellResult *result = vl_allocate(sizeof *result);
  run_steps(mib, 5, 1, result);
  assert_int_equal(result->warmup_peak_allocated_bytes, 7300 * MIB);
  assert_int_equal(result->warmup_peak_reserved_bytes, 7300 * MIB);
  assert_int_equal(result->steady_peak_allocated_bytes, 2054 * MIB);
  assert_int_equal(result->steady_peak_reserved_bytes, 2054 * MIB);
  assert_int_equal(result->needed_bytes, 7300 * MIB);
  for (int32_t i = 0; i < 5; i++)
    assert_int_equal(result->step_peak_bytes[i], mib[i] * MIB);
  vl_cell_result_clear(result);
  free(result);
}

/* After a warm-up like the rest, a new shape in the fourth measured step. */
static void a_later_spike_is_needed_and_has_its_step_a5(void **state) {
  (void)state;
  static const int64_t mib[] = {2051, 2051, 2054, 2052, 5000, 2052};
  CellResult *result = vl_allocate(sizeof *result);
  run_steps(mib, 6, 1, result);
  assert_int_equal(result->needed_bytes, 5000 * MIB);
  assert_int_equal(result->steady_peak_reserved_bytes, 5000 * MIB);
  assert_int_equal(result->warmup_peak_allocated_bytes, 2051 * MIB);
  int32_t highest = 0;
  for (int32_t i = 0; i < result->peak_count; i++)
    if (result->step_peak_bytes[i] > result->step_peak_bytes[highest]) highest = i;
  assert_int_equal(result->peak_count, 6);
  assert_int_equal(highest - 1, 3); /* the fourth after the warm-up */
  assert_int_equal(result->step_peak_bytes[highest], 5000 * MIB);
  assert_int_equal(result->step_peak_bytes[highest + 1], 2052 * MIB);
  vl_cell_result_clear(result);
  free(result);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_spike_of_the_first_step_is_needed_and_apart_a5),
      cmocka_unit_test(a_later_spike_is_needed_and_has_its_step_a5),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
