/* What recomputation must not change, by the numbers of the fault cases: the dropout mask and running
 * statistics.
 *
 * usage: test_engine_recompute [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *device_name = "reference";
enum { ELEMENTS = 64 };

static void dropout_gradients(const char *recipe, uint64_t seed, int32_t repeats, Job *job,
                              Recording *gradients) {
  Program program;
  network_dropout(&program);
  job_open(job, device_name, &program, recipe, seed, 0);
  assert_int_equal(vl_executable_schedule(job->executable)->recompute_instances, repeats);
  job_record_gradients(job, gradients);
  job_step(job, 0);
}

/* Backward of p draws the mask a second time; the gradient of q is the output of the forward that was
 * repeated. Both are 2 where the forward kept the element and 0 elsewhere. */
static void the_mask_is_drawn_again_the_same_d1(void **state) {
  (void)state;
  for (uint64_t seed = 7; seed <= 10; seed++) {
    static const char *const recipes[] = {"checkpoint=1", "checkpoint=model", "checkpoint=runs:1",
                                          "checkpoint=ops:2"};
    const char *recipe = recipes[seed % 4];
    Job plain, checkpointed;
    Recording expected = {0}, actual = {0};
    dropout_gradients("baseline", seed, 0, &plain, &expected);
    dropout_gradients(recipe, seed, 1, &checkpointed, &actual);
    assert_recordings_equal(&expected, &actual, recipe);
    uint64_t key = vl_random_key(seed, 0, "dropout");
    const float *of_p = recording_find(&actual, "p.weight.grad")->data;
    const float *of_q = recording_find(&actual, "q.weight.grad")->data;
    int32_t mismatches = 0, kept = 0;
    for (int32_t i = 0; i < ELEMENTS; i++) {
      bool keep = vl_random_unit(vl_random_word(key, 0, (uint64_t)i)) >= 0.5F;
      float right = keep ? 2.0F : 0.0F;
      mismatches += of_p[i] != right || of_q[i] != right;
      kept += keep;
    }
    assert_int_equal(mismatches, 0);
    assert_in_range(kept, 1, ELEMENTS - 1);
    recording_clear(&expected);
    recording_clear(&actual);
    job_close(&plain);
    job_close(&checkpointed);
  }
}

static void masks_differ_between_steps_and_seeds_d1(void **state) {
  (void)state;
  Job job, other;
  Recording first = {0}, second = {0}, reseeded = {0};
  dropout_gradients("baseline", 7, 0, &job, &first);
  job_record_gradients(&job, &second);
  job_step(&job, 1);
  dropout_gradients("baseline", 8, 0, &other, &reseeded);
  const Item *a = recording_find(&first, "p.weight.grad"), *b = recording_find(&second, "p.weight.grad"),
             *c = recording_find(&reseeded, "p.weight.grad");
  assert_memory_not_equal(a->data, b->data, (size_t)a->bytes);
  assert_memory_not_equal(a->data, c->data, (size_t)a->bytes);
  recording_clear(&first);
  recording_clear(&second);
  recording_clear(&reseeded);
  job_close(&job);
  job_close(&other);
}

/* Device memory for one storage, filled with ones where asked. */
static uintptr_t fill(Device *device, const Storage *storage, int64_t bytes, bool ones) {
  const Backing *backing = device->interface->backing(device);
  uintptr_t address = 0;
  require_ok(backing->reserve(backing->context, bytes, &address));
  float values[2 * ELEMENTS];
  for (int32_t i = 0; i < 2 * ELEMENTS; i++)
    values[i] = ones ? 1.0F : -1.0F;
  require_ok(device->interface->upload(device, storage, values, address));
  return address;
}

/* `samples` samples from `first` on through a dropout node of that batch; room for samples x 16 in out. */
static void drop_samples(int64_t samples, int64_t first, float *out) {
  Device *device = NULL;
  job_device_open(device_name, &device);
  Graph *graph = vl_graph_create("samples");
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 4, (int64_t[]){samples, 4, 2, 2}, 0);
  OpParams params = {.rate = 0.5, .random_scope = "layer"};
  Node *node = NULL;
  require_ok(vl_graph_add(graph, "dropout", &params, &x, 1, &node));
  const Storage *from = x->storage, *to = node->outputs[0]->storage;
  x->storage->layout = node->outputs[0]->storage->layout = LAYOUT_PLAIN;
  LayoutId plain[VL_MAX_INPUTS] = {0};
  Kernel *kernel = NULL;
  require_ok(device->interface->prepare(device, node, plain, plain, &kernel));
  require_ok(device->interface->build(device, kernel));
  int64_t bytes = device->interface->storage_bytes(device, LAYOUT_PLAIN, from);
  uintptr_t input = fill(device, from, bytes, true), output = fill(device, to, bytes, false);
  LaunchContext context = {.seed = 5, .step = 3, .first_sample = first};
  require_ok(device->interface->launch(device, kernel, &input, &output, 0, &context));
  require_ok(device->interface->synchronize(device));
  require_ok(device->interface->download(device, to, output, out));
  const Backing *backing = device->interface->backing(device);
  backing->release(backing->context, input, bytes);
  backing->release(backing->context, output, bytes);
  device->interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
  vl_device_close(&device);
}

/* Samples 0 to 7 at once and as micro-batches of 4 and of 1 get the same masks. */
static void the_mask_does_not_depend_on_the_micro_batch(void **state) {
  (void)state;
  float whole[8 * 16], part[4 * 16];
  drop_samples(8, 0, whole);
  for (int64_t first = 0; first < 8; first += 4) {
    drop_samples(4, first, part);
    assert_memory_equal(part, whole + first * 16, sizeof part);
  }
  for (int64_t first = 0; first < 8; first++) {
    drop_samples(1, first, part);
    assert_memory_equal(part, whole + first * 16, 16 * sizeof *part);
  }
}

static void assert_statistics(Job *job, double mean, int64_t batches) {
  float running;
  int64_t count;
  require_ok(vl_state_read(job->state, "bn.running_mean", &running, sizeof running));
  require_ok(vl_state_read(job->state, "bn.num_batches_tracked", &count, sizeof count));
  /* Three roundings of values below 4: two units of 2^-23 each. */
  if (fabs((double)running - mean) > 6.0 * ldexp(1.0, -23))
    fail_msg("running mean %.9g, not %g", (double)running, mean);
  assert_int_equal(count, batches);
}

/* Constant batches of 10, momentum 0.1: 1.0 after a step and 2.71 after three, however often the norm is
 * repeated; 1.9 and 4.686 would be two updates a step. */
static void running_statistics_are_updated_once_a_step_d3(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline",         "checkpoint=1",
                                        "checkpoint=ops:3", "checkpoint=model",
                                        "recompute=norm",   "checkpoint=1 recompute=norm update=in-backward",
                                        "stack=vramlab",    "stack=vramlab checkpoint=1 recompute=norm"};
  float images[ELEMENTS];
  for (int32_t i = 0; i < ELEMENTS; i++)
    images[i] = 10.0F;
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    Job job;
    Program program;
    StepResult result;
    network_running_mean(&program);
    job_open(&job, device_name, &program, recipes[i], 0, 0);
    bool repeats = strstr(recipes[i], "checkpoint") || strstr(recipes[i], "recompute");
    assert_int_equal(vl_executable_schedule(job.executable)->recompute_instances > 0, repeats);
    require_ok(vl_inputs_write(job.inputs, "images", images, sizeof images));
    for (uint64_t step = 0; step < 3; step++) {
      job.run.step = step;
      require_ok(vl_run_step(&job.run, job.inputs, &result, NULL));
      if (step == 0) assert_statistics(&job, 1.0, 1);
    }
    assert_statistics(&job, 2.71, 3);
    job_close(&job);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_mask_is_drawn_again_the_same_d1),
      cmocka_unit_test(masks_differ_between_steps_and_seeds_d1),
      cmocka_unit_test(the_mask_does_not_depend_on_the_micro_batch),
      cmocka_unit_test(running_statistics_are_updated_once_a_step_d3),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
