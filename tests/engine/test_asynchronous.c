/* I1: a device whose launches return at once and whose work is done 5 ms later. A step's time is that of the
 * work, not of launching it. */
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static const int64_t delay_ns = 5 * 1000 * 1000;

static DeviceInterface delayed;
static Status (*launch)(Device *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                        uintptr_t workspace, const LaunchContext *context);
static Status (*synchronize)(Device *device);
static int64_t done_ns; /* when what was launched last is done */

static Status launch_and_return(Device *device, Kernel *kernel, const uintptr_t *inputs,
                                const uintptr_t *outputs, uintptr_t workspace, const LaunchContext *context) {
  done_ns = vl_monotonic_ns() + delay_ns;
  return launch(device, kernel, inputs, outputs, workspace, context);
}

static Status wait_until_done(Device *device) {
  struct timespec piece = {.tv_nsec = 100000};
  while (vl_monotonic_ns() < done_ns)
    nanosleep(&piece, NULL);
  return synchronize(device);
}

Status __real_vl_device_open(const char *name, const DeviceOptions *options, Device **device);
Status __wrap_vl_device_open(const char *name, const DeviceOptions *options, Device **device);
Status __wrap_vl_device_open(const char *name, const DeviceOptions *options, Device **device) {
  VL_TRY(__real_vl_device_open(name, options, device));
  delayed = *(*device)->interface;
  launch = delayed.launch;
  synchronize = delayed.synchronize;
  delayed.launch = launch_and_return;
  delayed.synchronize = wait_until_done;
  (*device)->interface = &delayed;
  return vl_ok();
}

static void check_steps(const char *recipe, double least_s) {
  static const char *const settings[] = {"layers=1", "hidden=32", "heads=4", "vocabulary=61", "sequence=16"};
  CellSpec spec;
  CellResult *result = vl_allocate(sizeof *result);
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "bert-base");
  for (spec.setting_count = 0; spec.setting_count < 5; spec.setting_count++)
    snprintf(spec.settings[spec.setting_count], sizeof spec.settings[0], "%s", settings[spec.setting_count]);
  spec.micro_batch = spec.threads = 1;
  spec.steps = 5;
  snprintf(spec.recipe, sizeof spec.recipe, "%s", recipe);
  Status status = vl_cell_run(&spec, NULL, result);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  assert_int_equal(result->step_count, 5);
  for (int32_t i = 0; i < 5; i++)
    assert_true(result->step_s[i] >= least_s);
  vl_cell_result_clear(result);
  free(result);
}

static void steps_take_as_long_as_their_work_i1(void **state) {
  (void)state;
  check_steps("", 5e-3);
}

/* The inputs of the next micro-batch wait for the one that may still read them. */
static void micro_batches_take_as_long_as_their_work_i1(void **state) {
  (void)state;
  check_steps("accumulate=3", 15e-3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(steps_take_as_long_as_their_work_i1),
                                     cmocka_unit_test(micro_batches_take_as_long_as_their_work_i1)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
