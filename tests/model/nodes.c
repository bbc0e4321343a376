#include "tests/model/nodes.h"
#include "tests/devices/open_device.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The inputs of step 0 as the engine makes them: Philox by name, sample and element. */
static void draw_inputs(Evaluation *evaluation) {
  for (int32_t i = 0; i < evaluation->graph->storage_count; i++) {
    const Storage *storage = evaluation->graph->storages[i];
    if (storage->role != ROLE_INPUT) continue;
    uint64_t key = vl_random_key(0, 0, storage->name);
    int64_t samples = storage->root->shape[0], elements = storage->elements / samples;
    for (int64_t e = 0; e < storage->elements; e++) {
      double unit =
          (double)vl_random_unit(vl_random_word(key, (uint64_t)(e / elements), (uint64_t)(e % elements)));
      double bound = storage->init.value;
      evaluation->values[storage->id][e] = vl_dtype_is_float(storage->dtype)
                                               ? round_to(storage->dtype, (2.0 * unit - 1.0) * bound)
                                               : floor(unit * bound);
    }
  }
}

void nodes_check(const Subject *subject, const StepSpec *spec, int64_t least) {
  Program program;
  Status status = step_build(spec, &program);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  Evaluation *evaluation = evaluation_create(program.graph);
  evaluation_initialise(evaluation, 0);
  draw_inputs(evaluation);
  CompareTotals totals = {0};
  status = compare_graph(subject, evaluation, &totals);
  evaluation_destroy(&evaluation);
  vl_program_destroy(&program);
  print_message("  '%s': %lld nodes, %lld runs, at worst %.2f of the bound (%s)\n", spec->recipe,
                (long long)totals.nodes, (long long)totals.runs, totals.worst, totals.worst_at);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  assert_int_equal(totals.unsupported, 0);
  assert_true(totals.nodes >= least);
}

static Subject subject;

static int give_subject(void **state) {
  *state = &subject;
  return 0;
}

int nodes_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count) {
  Device *device = NULL;
  int refused = open_device_or_skip(argc > 1 ? argv[1] : "cpu", &(DeviceOptions){0}, &device);
  if (refused) return refused;
  Status status = subject_create(device, &subject);
  if (status.code != VL_OK) fprintf(stderr, "%s\n", status.message);
  int failed = status.code != VL_OK || _cmocka_run_group_tests(name, tests, count, give_subject, NULL) != 0;
  vl_device_close(&device);
  return failed;
}
