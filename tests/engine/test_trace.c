/* What is planned is what happens: the plan device over the cpu obtains and releases the same blocks in the
 * same order as the cpu does, from the first weight to the last release of the second step. */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 1790 };

static void build_resnet50(Program *program) {
  const Case *resnet = vl_case_find("resnet50");
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(resnet, 2, (const char *[]){"size=64"}, 1, values));
  require_ok(resnet->build(values, true, program));
}

static void run_two_steps(Job *job, const char *device, const char *recipe) {
  Program program;
  build_resnet50(&program);
  job_open(job, device, &program, recipe, 0, 0);
  job_step(job, 0);
  job_step(job, 1);
}

static void assert_events_equal(const MemoryEvent *a, const MemoryEvent *b, int64_t at, const char *recipe) {
  bool same = a->action == b->action && a->category == b->category && a->bytes == b->bytes &&
              a->requested_bytes == b->requested_bytes && a->allocated_bytes == b->allocated_bytes &&
              a->reserved_bytes == b->reserved_bytes && a->stream == b->stream;
  bool segment = a->action == MEMORY_SEGMENT_RESERVE || a->action == MEMORY_SEGMENT_RELEASE;
  if (!segment) same = same && strcmp(a->name, b->name) == 0 && strcmp(a->scope, b->scope) == 0;
  if (same) return;
  fail_msg("%s: event %lld is %d of %s in %s, %s, %lld bytes; planned: %d of %s in %s, %s, %lld bytes",
           recipe, (long long)at, (int)a->action, a->name ? a->name : "", a->scope ? a->scope : "",
           vl_memory_category_name(a->category), (long long)a->bytes, (int)b->action, b->name ? b->name : "",
           b->scope ? b->scope : "", vl_memory_category_name(b->category), (long long)b->bytes);
}

static void assert_same_trace(const Tracker *measured, const Tracker *planned, const char *recipe) {
  int64_t count = 0, planned_count = 0;
  const MemoryEvent *events = vl_tracker_events(measured, &count);
  const MemoryEvent *planned_events = vl_tracker_events(planned, &planned_count);
  for (int64_t i = 0; i < count && i < planned_count; i++) {
    assert_events_equal(&events[i], &planned_events[i], i, recipe);
  }
  assert_int_equal(count, planned_count);
  MemoryStatistics a, b;
  vl_tracker_statistics(measured, &a);
  vl_tracker_statistics(planned, &b);
  assert_memory_equal(&a, &b, sizeof a);
}

static void assert_plan_is_what_happens(const char *recipe) {
  Job measured, planned;
  run_two_steps(&measured, "cpu", recipe);
  run_two_steps(&planned, "plan", recipe);
  assert_true(vl_tracker_event_count(measured.tracker) > 1000);
  assert_same_trace(measured.tracker, planned.tracker, recipe);
  bool offloads = measured.offload_heap != NULL;
  assert_int_equal(offloads, strstr(recipe, "offload") != NULL);
  if (offloads) assert_same_trace(measured.offload_tracker, planned.offload_tracker, recipe);
  job_close(&measured);
  job_close(&planned);
}

static void baseline_is_planned_event_for_event(void **state) {
  (void)state;
  assert_plan_is_what_happens("baseline");
}

static void mixed_precision_is_planned_event_for_event(void **state) {
  (void)state;
  assert_plan_is_what_happens("amp=bf16");
}

static void our_stack_is_planned_event_for_event(void **state) {
  (void)state;
  assert_plan_is_what_happens("stack=vramlab");
}

static void everything_is_planned_event_for_event(void **state) {
  (void)state;
  assert_plan_is_what_happens("stack=vramlab amp=bf16 checkpoint=2 recompute=norm update=in-backward");
}

static void accumulation_is_planned_event_for_event(void **state) {
  (void)state;
  assert_plan_is_what_happens("accumulate=3");
  assert_plan_is_what_happens("stack=vramlab amp=bf16 accumulate=2 checkpoint=2 recompute=norm");
}

static void offloading_is_planned_event_for_event(void **state) {
  (void)state;
  assert_plan_is_what_happens("offload=activations");
  assert_plan_is_what_happens("offload=optimizer update=in-backward");
  assert_plan_is_what_happens("amp=bf16 accumulate=2 checkpoint=1 offload=activations+optimizer");
}

static void every_policy_is_planned_event_for_event(void **state) {
  (void)state;
  assert_plan_is_what_happens("allocator=planned");
  assert_plan_is_what_happens("allocator=expandable");
  assert_plan_is_what_happens("allocator=expandable:round=4 defragment=every-step");
  assert_plan_is_what_happens("allocator=caching:max-split=20MiB,round=4 defragment=every-step");
  assert_plan_is_what_happens(
      "allocator=planned amp=bf16 accumulate=2 checkpoint=1 offload=activations+optimizer");
}

/* The same through the cell, as `run` and `plan` do: the last step's timeline and every planned figure. */
static void cells_agree_on_memory(void **state) {
  (void)state;
  CellSpec spec;
  CellResult measured, planned;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=2 checkpoint=2");
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=64");
  spec.setting_count = 1;
  spec.micro_batch = 2;
  spec.threads = 2;
  spec.steps = 2;
  spec.timeline = true;
  require_ok(vl_cell_run(&spec, NULL, &measured));
  snprintf(spec.device, sizeof spec.device, "plan");
  require_ok(vl_cell_run(&spec, NULL, &planned));
  assert_string_equal(measured.status, "ok");
  assert_string_equal(planned.status, "ok");
  assert_string_equal(planned.provenance, "predicted");
  assert_string_equal(measured.provenance, "measured");
  assert_int_equal(measured.timeline_count, planned.timeline_count);
  for (int64_t i = 0; i < measured.timeline_count; i++) {
    const TimelineEvent *a = &measured.timeline[i], *b = &planned.timeline[i];
    assert_int_equal(a->action, b->action);
    assert_int_equal(a->category, b->category);
    assert_int_equal(a->segment, b->segment);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->allocated_bytes, b->allocated_bytes);
    assert_int_equal(a->reserved_bytes, b->reserved_bytes);
    assert_int_equal(a->requested_bytes, b->requested_bytes);
    assert_int_equal(a->heap_segment, b->heap_segment);
    assert_int_equal(a->offset, b->offset);
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->scope, b->scope);
  }
  assert_int_equal(measured.peak_requested_bytes, planned.peak_requested_bytes);
  assert_int_equal(measured.peak_allocated_bytes, planned.peak_allocated_bytes);
  assert_int_equal(measured.peak_reserved_bytes, planned.peak_reserved_bytes);
  assert_int_equal(measured.warmup_peak_allocated_bytes, planned.warmup_peak_allocated_bytes);
  assert_int_equal(measured.steady_peak_reserved_bytes, planned.steady_peak_reserved_bytes);
  assert_memory_equal(measured.peak_by_category, planned.peak_by_category, sizeof measured.peak_by_category);
  assert_int_equal(measured.events_per_step, planned.events_per_step);
  assert_int_equal(planned.peak_driver_bytes, -1);
  assert_true(measured.flops_per_step == planned.flops_per_step && measured.recompute_flops > 0);
  vl_cell_result_clear(&measured);
  vl_cell_result_clear(&planned);
}

/* ---- A4 ------------------------------------------------------------------------------------------------------------- */

/* Ten million weights, 40 MB, with as much of gradients that are kept, and AdamW's moments, 80 MB. */
static void build_ten_million(Program *program) {
  const int64_t rows = ROWS;
  Graph *graph = vl_graph_create("ten-million");
  vl_program_init(program, graph);
  program->training = true;
  program->optimizer = vl_optimizer_adamw();
  vl_graph_set_scope(graph, "fc");
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 2, (int64_t[]){rows, 4000}, 0);
  Tensor *labels = vl_graph_input(graph, "labels", DTYPE_I32, 1, &rows, 2500);
  Tensor *weight = vl_graph_parameter(graph, "weight", ROLE_PARAMETER, DTYPE_F32, 2, (int64_t[]){2500, 4000},
                                      (Init){INIT_UNIFORM, 0.01});
  Node *loss;
  require_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, weight}, 2, &x));
  require_ok(vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){x, labels}, 2, &loss));
  program->loss = loss->outputs[0];
}

/* Two full planned steps; the peak of what is live, and without the optimizer's state. */
static StatusCode plan_ten_million(int64_t capacity_bytes, int64_t *peak_bytes, int64_t *without_bytes) {
  Job job;
  Program program;
  StepResult result;
  MemoryStatistics statistics;
  build_ten_million(&program);
  Status status = job_try_open(&job, "plan", &program, "baseline", 0, capacity_bytes, 0);
  for (uint64_t step = 0; step < 2 && status.code == VL_OK; step++) {
    job.run.step = step;
    status = vl_run_step(&job.run, job.inputs, &result, NULL);
  }
  vl_tracker_statistics(job.tracker, &statistics);
  *peak_bytes = statistics.allocated.peak_bytes;
  *without_bytes = *peak_bytes - statistics.category_at_peak_bytes[MEMORY_OPTIMIZER];
  job_close(&job);
  return status.code;
}

/* 40 + 40 + 80 MB and 50 of activations: 210 decide, not the 130 of a first forward and backward. */
static void two_full_steps_decide_whether_it_fits_a4(void **state) {
  (void)state;
  int64_t peak_bytes, without_bytes;
  assert_int_equal(plan_ten_million(0, &peak_bytes, &without_bytes), VL_OK);
  print_message("peak %lld, without moments %lld\n", (long long)peak_bytes, (long long)without_bytes);
  assert_in_range(peak_bytes, 208000000, 212000000);
  assert_in_range(without_bytes, 128000000, 132000000);
  assert_int_equal(plan_ten_million(200000000, &peak_bytes, &without_bytes), VL_OUT_OF_MEMORY);
  assert_int_equal(plan_ten_million(220000000, &peak_bytes, &without_bytes), VL_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(baseline_is_planned_event_for_event),
      cmocka_unit_test(mixed_precision_is_planned_event_for_event),
      cmocka_unit_test(our_stack_is_planned_event_for_event),
      cmocka_unit_test(everything_is_planned_event_for_event),
      cmocka_unit_test(accumulation_is_planned_event_for_event),
      cmocka_unit_test(offloading_is_planned_event_for_event),
      cmocka_unit_test(every_policy_is_planned_event_for_event),
      cmocka_unit_test(cells_agree_on_memory),
      cmocka_unit_test(two_full_steps_decide_whether_it_fits_a4),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
