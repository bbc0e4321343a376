/* stack=pytorch allocates what eager PyTorch allocates: the peak of the tensors of a training step, and of a
 * forward pass under no_grad, of ResNet-50, BERT-base and the 3D U-Net, against PyTorch's own count
 * (tests/goldens/pytorch_allocations.json, made by scripts/goldens), within 3 %.
 *
 * Ours is planned on a device with plain layouts and no workspace, so that it counts tensors and nothing a
 * library adds; both counts are of bytes as requested, in a step after the first. */
#include "tests/model/step.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* The second step's peak and split. */
static Status plan_two_steps(Executable *executable, Device *device, MemoryStatistics *statistics) {
  Tracker *tracker = vl_tracker_create(false);
  HeapOptions options = vl_program_heap_options(vl_executable_program(executable));
  Heap *heap = NULL;
  Inputs *inputs = NULL;
  VL_TRY(vl_heap_create(device->interface->backing(device), &options, tracker, &heap));
  State *state = vl_state_create(device, heap);
  Run run = {.executable = executable, .state = state, .heap = heap, .tracker = tracker, .device = device};
  Status status = vl_state_prepare(state, executable, 0, true);
  if (status.code == VL_OK) status = vl_inputs_create(executable, device, heap, &inputs);
  for (run.step = 0; run.step < 2 && status.code == VL_OK; run.step++) {
    StepResult result;
    vl_tracker_reset_peaks(tracker);
    status = vl_run_step(&run, inputs, &result, NULL);
  }
  vl_tracker_statistics(tracker, statistics);
  vl_inputs_destroy(&inputs);
  vl_state_destroy(&state);
  vl_heap_destroy(&heap);
  vl_tracker_destroy(&tracker);
  return status;
}

static void plan(const char *case_name, int64_t batch, const char *recipe, bool inference,
                 MemoryStatistics *statistics) {
  static const DeviceProfile paper = {.name = "plain", .describes = "plain layouts, no workspace"};
  StepSpec spec = {.case_name = case_name, .recipe = recipe, .micro_batch = batch, .inference = inference};
  if (strcmp(case_name, "unet3d") == 0) spec.settings[spec.setting_count++] = "dice=0"; /* as the peer */
  Device *described = NULL, *device = NULL;
  Executable *executable = NULL;
  Program program = {0};
  assert_ok(vl_profile_device_create(&paper, false, &described));
  assert_ok(vl_plan_device_create(described, "plan:plain", 0, &device));
  assert_ok(step_build(&spec, &program));
  assert_ok(vl_executable_create(&program, device, NULL, &executable));
  assert_ok(plan_two_steps(executable, device, statistics));
  vl_executable_destroy(&executable);
  vl_device_close(&device);
}

static void check_row(const json_t *row) {
  int64_t batch = json_integer_value(json_object_get(row, "batch"));
  int64_t theirs = json_integer_value(json_object_get(row, "peak_total_without_library_bytes"));
  const char *amp = json_string_value(json_object_get(row, "amp"));
  MemoryStatistics statistics = {0};
  const char *case_name = json_string_value(json_object_get(row, "case"));
  bool inference = json_is_true(json_object_get(row, "infer"));
  plan(case_name, batch, amp ? "amp=bf16" : "", inference, &statistics);
  int64_t ours = statistics.requested.peak_bytes;
  double off = ((double)ours - (double)theirs) / (double)theirs;
  print_message("  %s %s, batch %lld %s: %lld bytes, PyTorch %lld, %+.2f %%; allocated", case_name,
                inference ? "inference" : "training", (long long)batch, amp ? amp : "f32", (long long)ours,
                (long long)theirs, 100.0 * off);
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
    print_message(" %s %lld", vl_memory_category_name((MemoryCategory)c),
                  (long long)statistics.category_at_peak_bytes[c]);
  }
  print_message("\n");
  assert_true(off >= -0.03 && off <= 0.03);
}

static void stack_pytorch_within_3_percent_of_pytorch(void **state) {
  (void)state;
  json_error_t error;
  json_t *root = json_load_file(VRAMLAB_SOURCE_DIR "/tests/goldens/pytorch_allocations.json", 0, &error);
  if (!root) fail_msg("%s:%d: %s", error.source, error.line, error.text);
  const json_t *rows = json_object_get(root, "rows");
  assert_int_equal(json_array_size(rows), 14);
  for (size_t i = 0; i < json_array_size(rows); i++)
    check_row(json_array_get(rows, i));
  json_decref(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(stack_pytorch_within_3_percent_of_pytorch)};
  return cmocka_run_group_tests_name("pytorch_allocations", tests, NULL, NULL);
}
