/* Offloading in a running engine: equal results to the bit, less on the device, and clean ends where the tier
 * has no room or cannot be opened. On the reference device a copy is made as late as can be; on the cpu a
 * thread makes it.
 *
 * usage: test_engine_offload [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

enum { STEPS = 3, SEED = 3 };
static const char *device_name = "reference";
static const int64_t mib_bytes = INT64_C(1) << 20;

/* A sanitizer holds on to what was freed, and the process so to more than it uses. */
#ifdef __SANITIZE_ADDRESS__
static const bool frees_are_kept = true;
#else
static const bool frees_are_kept = false;
#endif

static bool on_cpu(void) { return strcmp(device_name, "cpu") == 0; }

/* ---- BERT in small, dropout on -------------------------------------------------------------------------------- */

typedef struct Outcome {
  double losses[STEPS];
  Recording gradients, state;
  Job job; /* owns the names */
} Outcome;

static void build_bert(Program *program) {
  const Case *bert = vl_case_find("bert-base");
  const char *settings[] = {"sequence=16", "layers=2", "hidden=32", "heads=4", "vocabulary=61"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, 4, settings, 5, values));
  require_ok(bert->build(values, true, program));
}

static void outcome_of(const char *recipe, Outcome *outcome) {
  Program program;
  *outcome = (Outcome){0};
  build_bert(&program);
  job_open(&outcome->job, device_name, &program, recipe, SEED, 0);
  for (int32_t step = 0; step < STEPS; step++) {
    if (step == STEPS - 1) job_record_gradients(&outcome->job, &outcome->gradients);
    outcome->losses[step] = job_step(&outcome->job, (uint64_t)step);
  }
  job_read_state(&outcome->job, &outcome->state);
}

static void outcome_clear(Outcome *outcome) {
  recording_clear(&outcome->gradients);
  recording_clear(&outcome->state);
  job_close(&outcome->job);
}

/* Each recipe with offloading against itself without. */
static void bert_is_bitwise_equal(void **state) {
  (void)state;
  static const char *const recipes[] = {"",
                                        "amp=bf16 ",
                                        "amp=fp16 ",
                                        "optimizer-state=8bit ",
                                        "freeze=1 loss-chunks=2 ",
                                        "checkpoint=1 ",
                                        "accumulate=2 ",
                                        "update=in-backward ",
                                        "stack=vramlab amp=bf16 ",
                                        "amp=bf16 checkpoint=1 accumulate=2 "};
  static const char *const values[] = {"activations", "activations:1", "optimizer", "activations+optimizer"};
  for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
    Outcome expected, actual;
    outcome_of(recipes[r], &expected);
    assert_true(expected.losses[0] != expected.losses[1]);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
      char recipe[128];
      snprintf(recipe, sizeof recipe, "%soffload=%s", recipes[r], values[v]);
      outcome_of(recipe, &actual);
      assert_non_null(actual.job.offload_heap);
      if (memcmp(expected.losses, actual.losses, sizeof expected.losses) != 0)
        fail_msg("%s: other losses", recipe);
      assert_recordings_equal(&expected.gradients, &actual.gradients, recipe);
      assert_recordings_equal(&expected.state, &actual.state, recipe);
      outcome_clear(&actual);
    }
    outcome_clear(&expected);
  }
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------ */

static void build_net(Program *program) {
  network_bottlenecks(&(NetOptions){.batch = 16, .size = 32, .adamw = true}, program);
}

static void open_net(Job *job, const char *recipe) {
  Program program;
  build_net(&program);
  job_open(job, device_name, &program, recipe, SEED, 0);
}

static MemoryStatistics statistics_of(const Tracker *tracker) {
  MemoryStatistics statistics;
  vl_tracker_statistics(tracker, &statistics);
  return statistics;
}

static StepResult run_step(Job *job, uint64_t step) {
  StepResult result;
  job->run.step = step;
  require_ok(vl_inputs_synthesize(job->inputs, SEED, step, 0));
  require_ok(vl_run_step(&job->run, job->inputs, &result, NULL));
  return result;
}

/* What goes comes back; the tier holds at its peak what went, and after a step only state. The device holds
 * less by category. */
static void what_goes_comes_back(void **state) {
  (void)state;
  Job plain, with;
  open_net(&plain, "baseline");
  open_net(&with, "offload=activations+optimizer");
  run_step(&plain, 0);
  int64_t kept_bytes = statistics_of(with.offload_tracker).allocated.current_bytes;
  assert_true(kept_bytes > 0);
  for (uint64_t step = 0; step < 2; step++) {
    StepResult result = run_step(&with, step);
    assert_true(result.evicted_bytes > 0 && result.stall_ns >= 0);
    assert_int_equal(result.evicted_bytes, result.fetched_bytes);
    MemoryStatistics tier = statistics_of(with.offload_tracker);
    assert_int_equal(tier.allocated.current_bytes, kept_bytes);
    assert_int_equal(tier.requested.peak_bytes, result.evicted_bytes);
  }
  MemoryStatistics before = statistics_of(plain.tracker), after = statistics_of(with.tracker);
  assert_true(2 * after.by_category[MEMORY_ACTIVATION].peak_bytes <
              before.by_category[MEMORY_ACTIVATION].peak_bytes);
  assert_true(after.allocated.peak_bytes < before.allocated.peak_bytes);
  assert_true(after.reserved.peak_bytes < before.reserved.peak_bytes);
  job_close(&plain);
  job_close(&with);
}

/* ---- No room ------------------------------------------------------------------------------------------------------ */

static int64_t tier_need_bytes(const char *recipe) {
  Job job;
  open_net(&job, recipe);
  run_step(&job, 0);
  int64_t bytes = statistics_of(job.offload_tracker).reserved.peak_bytes;
  job_close(&job);
  return bytes;
}

/* At every capacity of the tier, from none to what it takes: out of memory names the tier, in set-up or in
 * the step, and leaves what was there before; then it runs. */
static void a_full_tier_is_a_result(void **state) {
  (void)state;
  static const char *const recipe = "offload=activations+optimizer";
  int64_t need_bytes = tier_need_bytes(recipe);
  int32_t in_setup = 0, in_step = 0, ran = 0;
  for (int64_t bytes = 2 * mib_bytes; bytes <= need_bytes; bytes += 2 * mib_bytes) {
    Job job;
    Program program;
    StepResult result;
    build_net(&program);
    Status status = job_try_open(&job, device_name, &program, recipe, SEED, 0, bytes);
    in_setup += status.code != VL_OK;
    if (status.code == VL_OK) {
      int64_t device_bytes = statistics_of(job.tracker).allocated.current_bytes;
      int64_t tier_bytes = statistics_of(job.offload_tracker).allocated.current_bytes;
      require_ok(vl_inputs_synthesize(job.inputs, SEED, 0, 0));
      status = vl_run_step(&job.run, job.inputs, &result, NULL);
      in_step += status.code != VL_OK;
      ran += status.code == VL_OK;
      assert_int_equal(statistics_of(job.tracker).allocated.current_bytes, device_bytes);
      assert_int_equal(statistics_of(job.offload_tracker).allocated.current_bytes, tier_bytes);
    }
    if (status.code != VL_OK) {
      assert_int_equal(status.code, VL_OUT_OF_MEMORY);
      if (!strstr(status.message, "no room in the offload tier")) fail_msg("%s", status.message);
    }
    job_close(&job);
  }
  print_message("%d failed in set-up, %d in a step, %d ran\n", in_setup, in_step, ran);
  assert_true(in_step > 0 && ran == 1);
}

/* A limit to the size of files stands for a full disk: the system refuses, and says why. Once there is room
 * the same job goes on. */
static void a_full_disk_is_out_of_memory(void **state) {
  (void)state;
  if (!on_cpu()) skip();
  struct rlimit before, tiny;
  Job job;
  StepResult result;
  open_net(&job, "offload=activations");
  require_ok(vl_inputs_synthesize(job.inputs, SEED, 0, 0));
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &before);
  tiny = before;
  tiny.rlim_cur = (rlim_t)(3 * mib_bytes);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
  Status status = vl_run_step(&job.run, job.inputs, &result, NULL);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "no room in the offload tier"));
  assert_non_null(strstr(status.message, "asked for in a file of"));
  assert_string_equal(job.run.failed_segment, "forward");
  require_ok(vl_run_step(&job.run, job.inputs, &result, NULL));
  job_close(&job);
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static void a_folder_that_cannot_be_written_is_named(void **state) {
  (void)state;
  if (!on_cpu()) skip();
  static const char *const folders[] = {"/nowhere/at/all", "/proc"};
  for (size_t i = 0; i < 2; i++) {
    CellSpec spec;
    CellResult result;
    vl_cell_spec_init(&spec);
    snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
    snprintf(spec.settings[0], sizeof spec.settings[0], "size=32");
    spec.setting_count = 1;
    spec.micro_batch = 2;
    snprintf(spec.recipe, sizeof spec.recipe, "offload=activations");
    snprintf(spec.offload_directory, sizeof spec.offload_directory, "%s", folders[i]);
    Status status = vl_cell_run(&spec, NULL, &result);
    assert_int_equal(status.code, VL_ENVIRONMENT);
    assert_non_null(strstr(status.message, folders[i]));
    vl_cell_result_clear(&result);
  }
}

static int32_t entries_of(const char *folder) {
  DIR *opened = opendir(folder);
  int32_t count = 0;
  assert_non_null(opened);
  while (readdir(opened))
    count++;
  closedir(opened);
  return count;
}

/* The file has no name while it is used, and is closed when the device is. */
static void nothing_is_left_of_the_file(void **state) {
  (void)state;
  if (!on_cpu()) skip();
  char folder[] = "/tmp/vramlab-offload-test-XXXXXX";
  assert_non_null(mkdtemp(folder));
  const char *before = getenv("TMPDIR");
  char *kept = before ? vl_copy_text(before) : NULL;
  setenv("TMPDIR", folder, 1);
  int32_t files = entries_of("/proc/self/fd");
  Job job;
  open_net(&job, "offload=activations");
  run_step(&job, 0);
  assert_int_equal(entries_of(folder), 2); /* itself and the one above */
  assert_int_equal(entries_of("/proc/self/fd"), files + 1);
  job_close(&job);
  assert_int_equal(entries_of("/proc/self/fd"), files);
  if (kept)
    setenv("TMPDIR", kept, 1);
  else
    unsetenv("TMPDIR");
  free(kept);
  assert_int_equal(rmdir(folder), 0);
}

/* ---- Cells ------------------------------------------------------------------------------------------------------- */

static CellResult run_cell(const char *device, const char *recipe) {
  CellSpec spec;
  CellResult result;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=64");
  spec.setting_count = 1;
  snprintf(spec.recipe, sizeof spec.recipe, "%s", recipe);
  snprintf(spec.device, sizeof spec.device, "%s", device);
  spec.micro_batch = 16;
  spec.threads = 2;
  spec.steps = 1;
  require_ok(vl_cell_run(&spec, NULL, &result));
  assert_string_equal(result.status, "ok");
  return result;
}

/* What the process holds falls by as much as what the heap reserves, within the larger of 1 % and what a
 * process varies by; the plan says the same bytes, without a time. */
static void resident_memory_falls(void **state) {
  (void)state;
  if (!on_cpu()) skip();
  CellResult first = run_cell("cpu", ""); /* what the library takes once is its */
  vl_cell_result_clear(&first);
  CellResult with = run_cell("cpu", "offload=activations+optimizer"), without = run_cell("cpu", "");
  CellResult planned = run_cell("plan", "offload=activations+optimizer");
  int64_t saved_bytes = without.peak_reserved_bytes - with.peak_reserved_bytes;
  int64_t resident_bytes = without.peak_driver_bytes - with.peak_driver_bytes;
  print_message("reserved falls by %lld MiB, resident by %lld MiB\n", (long long)(saved_bytes / mib_bytes),
                (long long)(resident_bytes / mib_bytes));
  assert_true(saved_bytes > without.peak_reserved_bytes / 3);
  if (!frees_are_kept)
    assert_in_range(resident_bytes, saved_bytes - 16 * mib_bytes, saved_bytes + 16 * mib_bytes);
  assert_true(with.needed_bytes < without.needed_bytes);
  assert_true(with.evicted_bytes > 0 && with.offload_stall_s >= 0.0);
  assert_int_equal(without.evicted_bytes, -1);
  assert_int_equal(without.peak_offload_bytes, -1);
  assert_int_equal(planned.evicted_bytes, with.evicted_bytes);
  assert_int_equal(planned.fetched_bytes, with.fetched_bytes);
  assert_int_equal(planned.peak_offload_bytes, with.peak_offload_bytes);
  assert_int_equal(planned.peak_reserved_bytes, with.peak_reserved_bytes);
  assert_true(planned.offload_stall_s != planned.offload_stall_s);
  vl_cell_result_clear(&with);
  vl_cell_result_clear(&without);
  vl_cell_result_clear(&planned);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(resident_memory_falls), /* first: nothing is resident from before */
      cmocka_unit_test(bert_is_bitwise_equal),
      cmocka_unit_test(what_goes_comes_back),
      cmocka_unit_test(a_full_tier_is_a_result),
      cmocka_unit_test(a_full_disk_is_out_of_memory),
      cmocka_unit_test(a_folder_that_cannot_be_written_is_named),
      cmocka_unit_test(nothing_is_left_of_the_file),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
