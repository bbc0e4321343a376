/* Memory over steps: a step that fails gives everything back, live bytes do not creep, and the peaks of
 * warm-up and of what follows are two figures.
 *
 * usage: test_engine_memory [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *device_name = "reference";
static const int64_t mib_bytes = INT64_C(1) << 20;

static int64_t live_bytes(const Job *job) {
  MemoryStatistics statistics;
  vl_tracker_statistics(job->tracker, &statistics);
  return statistics.allocated.current_bytes;
}

static void open_net(Job *job, int64_t batch, const char *recipe, int64_t capacity_bytes) {
  Program program;
  network_bottlenecks(&(NetOptions){.batch = batch, .size = 32}, &program);
  job_open(job, device_name, &program, recipe, 1, capacity_bytes);
}

/* The same net with another batch on the same heap and State. */
typedef struct Second {
  Executable *executable;
  Inputs *inputs;
  Run run;
} Second;

static void second_open(Job *job, int64_t batch, Second *second) {
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  network_bottlenecks(&(NetOptions){.batch = batch, .size = 32}, &program);
  require_ok(vl_recipe_parse("baseline", &recipe));
  require_ok(vl_recipe_apply(&recipe, &program, &target));
  require_ok(vl_executable_create(&program, job->device, job->state, &second->executable));
  require_ok(vl_state_prepare(job->state, second->executable, 1, true));
  require_ok(vl_executable_build(second->executable));
  require_ok(vl_inputs_create(second->executable, job->device, job->heap, &second->inputs));
  require_ok(vl_inputs_synthesize(second->inputs, 1, 0, 0));
  second->run = job->run;
  second->run.executable = second->executable;
}

static void second_close(Second *second) {
  vl_inputs_destroy(&second->inputs);
  vl_executable_destroy(&second->executable);
}

static int64_t peak_reserved_of(int64_t batch, const char *recipe) {
  Job job;
  MemoryStatistics statistics;
  open_net(&job, batch, recipe, 0);
  job_step(&job, 0);
  vl_tracker_statistics(job.tracker, &statistics);
  job_close(&job);
  return statistics.reserved.peak_bytes;
}

/* Ten rounds of a batch that does not fit and one that does: a failure leaves live bytes as before, the retry
 * runs. */
static void a_failed_step_gives_everything_back_f1(void **state) {
  (void)state;
  int64_t capacity_bytes =
      (peak_reserved_of(16, "baseline") + peak_reserved_of(32, "baseline")) / 2 / mib_bytes * mib_bytes;
  Job job;
  Second large;
  StepResult result;
  open_net(&job, 16, "baseline", capacity_bytes);
  second_open(&job, 32, &large);
  int64_t before_bytes = live_bytes(&job), request_bytes = 0;
  for (int32_t round = 0; round < 10; round++) {
    Status status = vl_run_step(&large.run, large.inputs, &result, NULL);
    assert_int_equal(status.code, VL_OUT_OF_MEMORY);
    assert_int_equal(live_bytes(&job), before_bytes);
    assert_true(vl_heap_last_failure(large.run.heap).request_bytes > 0);
    assert_true(strcmp(large.run.failed_segment, "forward") == 0 ||
                strcmp(large.run.failed_segment, "backward") == 0);
    if (round > 0) assert_int_equal(vl_heap_last_failure(large.run.heap).request_bytes, request_bytes);
    request_bytes = vl_heap_last_failure(large.run.heap).request_bytes;
    job_step(&job, (uint64_t)round);
    assert_int_equal(live_bytes(&job), before_bytes);
  }
  MemoryStatistics statistics;
  vl_tracker_statistics(job.tracker, &statistics);
  assert_int_equal(statistics.ooms, 10);
  assert_true(statistics.reserved.peak_bytes <= capacity_bytes);
  second_close(&large);
  job_close(&job);
}

typedef struct Failures {
  int32_t forward, backward, fits;
} Failures;

static void step_at_capacity(const char *recipe, int64_t capacity_bytes, Failures *failures) {
  Job job;
  StepResult result;
  open_net(&job, 16, recipe, capacity_bytes);
  require_ok(vl_inputs_synthesize(job.inputs, 1, 0, 0));
  int64_t before_bytes = live_bytes(&job);
  Status status = vl_run_step(&job.run, job.inputs, &result, NULL);
  assert_int_equal(live_bytes(&job), before_bytes);
  if (status.code == VL_OK) {
    failures->fits++;
    assert_int_equal(vl_heap_last_failure(job.run.heap).request_bytes, 0);
    assert_string_equal(job.run.failed_segment, "");
  } else {
    assert_int_equal(status.code, VL_OUT_OF_MEMORY);
    assert_true(vl_heap_last_failure(job.run.heap).request_bytes > 0);
    failures->forward += strcmp(job.run.failed_segment, "forward") == 0;
    failures->backward += strcmp(job.run.failed_segment, "backward") == 0;
  }
  job_close(&job);
}

/* Every capacity from what the start takes to what a step takes: fails, in forward or backward, and then
 * runs; nothing is held after either. Recomputation has its peak in backward, the baseline in forward;
 * planned places are refused before the first of them is used. */
static void steps_fail_cleanly_at_every_capacity_f1(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline", "checkpoint=1 recompute=norm", "allocator=planned"};
  Failures failures = {0};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    int64_t need_bytes = peak_reserved_of(16, recipes[i]), capacity_bytes = 4 * mib_bytes;
    for (; capacity_bytes < need_bytes; capacity_bytes += 2 * mib_bytes) {
      step_at_capacity(recipes[i], capacity_bytes, &failures);
    }
    int32_t before = failures.fits;
    step_at_capacity(recipes[i], need_bytes, &failures);
    assert_int_equal(failures.fits, before + 1);
  }
  print_message("%d failed in forward, %d in backward, %d ran\n", failures.forward, failures.backward,
                failures.fits);
  assert_true(failures.forward > 0 && failures.backward > 0);
}

/* State that does not fit is reported, and the same State can be prepared once there is room. */
static void state_that_did_not_fit_can_be_prepared_later_f1(void **state) {
  (void)state;
  Job job;
  open_net(&job, 2, "baseline", 4 * mib_bytes);
  State *other = vl_state_create(job.device, job.heap);
  AllocationRequest rest = {
      .bytes = mib_bytes, .category = MEMORY_WORKSPACE, .name = "rest", .scope = "test"};
  Block *blocks[64] = {NULL};
  int32_t count = 0;
  while (count < 64 && vl_heap_obtain(job.heap, &rest, &blocks[count]).code == VL_OK)
    count++;
  rest.bytes = 1024;
  Block *small[4096] = {NULL};
  int32_t small_count = 0;
  while (small_count < 4096 && vl_heap_obtain(job.heap, &rest, &small[small_count]).code == VL_OK)
    small_count++;
  assert_int_equal(vl_state_prepare(other, job.executable, 1, true).code, VL_OUT_OF_MEMORY);
  for (int32_t i = 0; i < small_count; i++)
    vl_heap_release(job.heap, &small[i]);
  for (int32_t i = 0; i < count; i++)
    vl_heap_release(job.heap, &blocks[i]);
  require_ok(vl_state_prepare(other, job.executable, 1, true));
  Recording first = {0}, second = {0};
  job_read_state(&job, &first);
  State *mine = job.state;
  job.state = other;
  job_read_state(&job, &second);
  job.state = mine;
  assert_recordings_equal(&first, &second, "State prepared at the second try");
  recording_clear(&first);
  recording_clear(&second);
  vl_state_destroy(&other);
  job_close(&job);
}

/* Beside the parameters, SGD with momentum keeps once their bytes and AdamW twice, in its own category; an
 * update in backward does not change that. */
static void optimizer_state_is_counted(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline", "update=in-backward"};
  for (int i = 0; i < 4; i++) {
    Job job;
    Program program;
    MemoryStatistics statistics;
    bool adamw = i % 2 == 1;
    network_bottlenecks(&(NetOptions){.batch = 2, .size = 32, .adamw = adamw}, &program);
    job_open(&job, device_name, &program, recipes[i / 2], 1, 0);
    const Graph *graph = vl_executable_program(job.executable)->graph;
    int64_t parameter_bytes = 0;
    for (int32_t s = 0; s < graph->storage_count; s++) {
      if (graph->storages[s]->role != ROLE_PARAMETER) continue;
      int64_t bytes =
          job.device->interface->storage_bytes(job.device, graph->storages[s]->layout, graph->storages[s]);
      parameter_bytes += (bytes + 511) / 512 * 512;
    }
    job_step(&job, 0);
    vl_tracker_statistics(job.tracker, &statistics);
    assert_int_equal(statistics.category_at_peak_bytes[MEMORY_OPTIMIZER], (adamw ? 2 : 1) * parameter_bytes);
    job_close(&job);
  }
}

/* ---- B5 ------------------------------------------------------------------------------------------------------------ */

typedef struct Samples {
  const Node *at;     /* where in the step */
  int64_t bytes;      /* the last sample */
  int64_t most_bytes; /* over the step */
} Samples;

static void sample(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  (void)outputs;
  Samples *samples = context;
  MemoryStatistics statistics;
  vl_tracker_statistics(run->tracker, &statistics);
  int64_t bytes = statistics.allocated.current_bytes;
  if (instance->node == samples->at) samples->bytes = bytes;
  if (bytes > samples->most_bytes) samples->most_bytes = bytes;
}

static void live_bytes_are_the_same_in_every_iteration_b5(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline",
                                        "stack=vramlab checkpoint=1 recompute=norm update=in-backward"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    Job job;
    Program program;
    network_bottlenecks(&(NetOptions){.batch = 2, .size = 8, .dropout = 0.1}, &program);
    job_open(&job, device_name, &program, recipes[i], 1, 0);
    const Graph *graph = vl_executable_program(job.executable)->graph;
    Samples samples = {.at = graph->nodes[graph->node_count * 2 / 3]};
    job.run.observe = sample;
    job.run.observe_context = &samples;
    int64_t inside_bytes = 0, most_bytes = 0, after_bytes = 0, reserved_bytes = 0;
    for (int32_t iteration = 1; iteration <= 200; iteration++) {
      samples.bytes = samples.most_bytes = 0;
      job_step(&job, (uint64_t)iteration);
      vl_tracker_clear_events(job.tracker);
      MemoryStatistics statistics;
      vl_tracker_statistics(job.tracker, &statistics);
      if (iteration == 1) {
        inside_bytes = samples.bytes;
        most_bytes = samples.most_bytes;
        after_bytes = statistics.allocated.current_bytes;
        reserved_bytes = statistics.reserved.current_bytes;
      }
      assert_true(samples.bytes > after_bytes);
      assert_int_equal(samples.bytes, inside_bytes);
      assert_int_equal(samples.most_bytes, most_bytes);
      assert_int_equal(statistics.allocated.current_bytes, after_bytes);
      assert_int_equal(statistics.reserved.current_bytes, reserved_bytes);
    }
    job_close(&job);
  }
}

/* Bytes of what the schedule never releases, as blocks. */
static int64_t leaking_bytes(const Job *job) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < job->run.retained->count; i++)
    bytes += job->run.retained->blocks[i]->bytes;
  return bytes;
}

/* A graph kept over each step: the detector sees just the bytes of the blocks kept, and nothing without. */
static void a_kept_graph_is_found_at_its_exact_rate_b5(void **state) {
  (void)state;
  enum { STEPS = 12 };
  static const char *const recipes[] = {"retain-graph=every-step", "accumulate=2 retain-graph=every-step",
                                        "checkpoint=1 retain-graph=every-step", "accumulate=2", "baseline"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    Job job;
    Retained retained = {0};
    int64_t bytes[STEPS], first_bytes = 0;
    double rate;
    open_net(&job, 2, recipes[i], 0);
    job.run.retained = &retained;
    for (int32_t step = 0; step < STEPS; step++) {
      job_step(&job, (uint64_t)step);
      bytes[step] = live_bytes(&job);
      if (step == 0) first_bytes = leaking_bytes(&job);
    }
    bool leaks = strstr(recipes[i], "retain-graph") != NULL;
    assert_int_equal(vl_leak_find(bytes, STEPS, &rate), leaks ? LEAK_FOUND : LEAK_NONE);
    assert_int_equal(first_bytes > 0, leaks);
    assert_true(rate == (double)first_bytes);
    assert_int_equal(leaking_bytes(&job), STEPS * first_bytes);
    vl_retained_release(&retained, job.heap);
    job_close(&job);
  }
}

/* ---- A5 ------------------------------------------------------------------------------------------------------------- */

static int64_t peak_since_reset(Job *job) {
  MemoryStatistics statistics;
  vl_tracker_statistics(job->tracker, &statistics);
  vl_tracker_reset_peaks(job->tracker);
  return statistics.allocated.peak_bytes;
}

/* A large first step: the warm-up peak keeps it, the steady peak does not. A large step later is in the
 * steady one. */
static void warmup_and_steady_peaks_are_apart_a5(void **state) {
  (void)state;
  Job job;
  Second large;
  StepResult result;
  open_net(&job, 8, "baseline", 0);
  second_open(&job, 32, &large);
  vl_tracker_reset_peaks(job.tracker);
  require_ok(vl_run_step(&large.run, large.inputs, &result, NULL));
  int64_t warmup_bytes = peak_since_reset(&job);
  for (uint64_t step = 0; step < 4; step++)
    job_step(&job, step);
  int64_t steady_bytes = peak_since_reset(&job);
  assert_true(2 * steady_bytes < warmup_bytes);
  job_step(&job, 4);
  require_ok(vl_run_step(&large.run, large.inputs, &result, NULL));
  job_step(&job, 5);
  assert_int_equal(peak_since_reset(&job), warmup_bytes);
  second_close(&large);
  job_close(&job);
}

/* Live <= reserved, peak >= current, and categories that sum to the whole, at every instance of a step. */
static void check_order(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  (void)context;
  (void)instance;
  (void)outputs;
  MemoryStatistics s;
  vl_tracker_statistics(run->tracker, &s);
  assert_true(s.requested.current_bytes <= s.allocated.current_bytes);
  assert_true(s.allocated.current_bytes <= s.reserved.current_bytes);
  assert_true(s.allocated.current_bytes <= s.allocated.peak_bytes &&
              s.reserved.current_bytes <= s.reserved.peak_bytes);
  int64_t now_bytes = 0, peak_bytes = 0;
  for (int32_t i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    now_bytes += s.by_category[i].current_bytes;
    peak_bytes += s.category_at_peak_bytes[i];
  }
  assert_int_equal(now_bytes, s.allocated.current_bytes);
  assert_int_equal(peak_bytes, s.allocated.peak_bytes);
}

static void figures_keep_their_order_a1(void **state) {
  (void)state;
  Job job;
  open_net(&job, 4, "baseline", 0);
  job.run.observe = check_order;
  job_step(&job, 0);
  job_step(&job, 1);
  job_close(&job);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(optimizer_state_is_counted),
      cmocka_unit_test(a_failed_step_gives_everything_back_f1),
      cmocka_unit_test(steps_fail_cleanly_at_every_capacity_f1),
      cmocka_unit_test(state_that_did_not_fit_can_be_prepared_later_f1),
      cmocka_unit_test(live_bytes_are_the_same_in_every_iteration_b5),
      cmocka_unit_test(a_kept_graph_is_found_at_its_exact_rate_b5),
      cmocka_unit_test(warmup_and_steady_peaks_are_apart_a5),
      cmocka_unit_test(figures_keep_their_order_a1),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
