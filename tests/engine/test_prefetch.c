/* Inputs made ahead by a thread are those of their step, as if the caller had made them: a step on them has
 * the same loss to the bit, and how many labels count in a step comes with them. What was not begun is made
 * by the caller. Devices that compute on the host's own cores prefetch nothing.
 *
 * usage: test_engine_prefetch [DEVICE] */
#include "engine/internal.h"
#include "tests/engine/job.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SEED = 4, COUNTED = 3 };
static const char *device_name = "reference";

typedef struct Filling {
  pthread_t caller;
  int by_thread, by_caller;
  Status fails;
} Filling;

/* Every step's own samples; the labels of odd steps do not all count. */
static Status fill(void *context, Inputs *inputs, uint64_t step, int64_t first_sample) {
  Filling *filling = context;
  if (pthread_equal(pthread_self(), filling->caller))
    filling->by_caller++;
  else
    filling->by_thread++;
  VL_TRY(filling->fails);
  VL_TRY(vl_inputs_synthesize(inputs, SEED, step, first_sample));
  return step % 2 == 1 ? vl_inputs_set_counted(inputs, "labels", COUNTED) : vl_ok();
}

static void open_job(Job *job) {
  Program program;
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  const Case *of = vl_case_find("bert-base");
  require_ok(
      vl_case_arguments(of, 2, (const char *[]){"layers=1", "sequence=8", "vocabulary=50"}, 3, values));
  require_ok(of->build(values, true, &program));
  job_open(job, device_name, &program, "baseline", SEED, 0);
}

/* Labels that are said to count decide what the mean divides by, so the step would refuse to go on without:
 * only forward and backward of one micro-batch come before that. */
static double loss_of(Job *job, uint64_t step) {
  StepResult result;
  Run run = job->run;
  run.step = step;
  require_ok(vl_run_step(&run, job->inputs, &result, NULL));
  return result.loss;
}

static void prefetched_is_the_same(void **state) {
  (void)state;
  Job with, without;
  Filling filling = {.caller = pthread_self()}, plain = filling;
  Prefetch *prefetch;
  open_job(&with);
  open_job(&without);
  require_ok(engine_prefetch_open(with.inputs, fill, &filling, &prefetch));
  bool has_staging = with.device->interface->staging_obtain != NULL;
  assert_true((prefetch != NULL) == has_staging);
  for (uint64_t step = 0; has_staging && step < 4; step++) {
    if (step != 2) engine_prefetch_begin(prefetch, step, 0);
    require_ok(engine_prefetch_take(prefetch, with.inputs, step, 0));
    require_ok(fill(&plain, without.inputs, step, 0));
    const Storage *labels = NULL;
    const Graph *graph = vl_executable_program(with.executable)->graph;
    for (int32_t i = 0; i < graph->node_count && !labels; i++)
      labels = vl_labels_of(graph->nodes[i]);
    int64_t counted = engine_inputs_counted(with.inputs, labels);
    assert_int_equal(counted, engine_inputs_counted(without.inputs, labels));
    if (step % 2 == 1) {
      assert_int_equal(counted, COUNTED);
      engine_inputs_end_step(with.inputs); /* all of them count after all: the step checks it */
      engine_inputs_end_step(without.inputs);
    }
    double loss = loss_of(&with, step);
    assert_true(loss == loss_of(&without, step) && loss > 1.0);
  }
  assert_int_equal(filling.by_thread, has_staging ? 3 : 0);
  assert_int_equal(filling.by_caller, has_staging ? 1 : 0);
  engine_prefetch_close(&prefetch);
  assert_null(prefetch);
  job_close(&with);
  job_close(&without);
}

static void only_what_was_begun_is_taken(void **state) {
  (void)state;
  Job job;
  Inputs *others;
  Filling filling = {.caller = pthread_self()};
  Prefetch *prefetch;
  open_job(&job);
  require_ok(vl_inputs_create(job.executable, job.device, job.heap, &others));
  require_ok(engine_prefetch_open(job.inputs, fill, &filling, &prefetch));
  if (prefetch) {
    engine_prefetch_begin(prefetch, 2, 0);
    require_ok(engine_prefetch_take(prefetch, job.inputs, 2, 4)); /* another micro-batch */
    require_ok(engine_prefetch_take(prefetch, job.inputs, 4, 0)); /* another step */
    require_ok(engine_prefetch_take(prefetch, others, 2, 0));     /* other inputs */
    assert_int_equal(filling.by_caller, 3);
    require_ok(engine_prefetch_take(prefetch, job.inputs, 2, 0)); /* it, at last */
    require_ok(engine_prefetch_take(prefetch, job.inputs, 2, 0)); /* once */
    assert_int_equal(filling.by_caller, 4);
    assert_int_equal(filling.by_thread, 1);
    filling.fails = vl_error(VL_INVALID, "sample 7 is torn");
    engine_prefetch_begin(prefetch, 6, 0);
    Status status = engine_prefetch_take(prefetch, job.inputs, 6, 0);
    assert_int_equal(status.code, VL_INVALID);
    assert_string_equal(status.message, "sample 7 is torn");
    engine_prefetch_begin(prefetch, 8, 0); /* and is not taken */
  }
  engine_prefetch_close(&prefetch);
  vl_inputs_destroy(&others);
  job_close(&job);
}

int main(int argc, char **argv) {
  if (argc > 1) device_name = argv[1];
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(prefetched_is_the_same),
      cmocka_unit_test(only_what_was_begun_is_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
