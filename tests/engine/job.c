#include "tests/engine/job.h"
#include "tests/reference/reference.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void job_device_open(const char *name, Device **device) {
  if (strcmp(name, "reference") == 0) {
    require_ok(vl_reference_device_create(device));
    return;
  }
  DeviceOptions options = {.threads = 2};
  Status status = vl_device_open(name, &options, device);
  if (status.code == VL_ENVIRONMENT) {
    fprintf(stderr, "skipped: %s\n", status.message);
    exit(77);
  }
  require_ok(status);
}

static Status synthesize(void *context, Inputs *inputs, int64_t first_sample) {
  const Run *run = context;
  return vl_inputs_synthesize(inputs, run->seed, run->step, first_sample);
}

static Status open_offload_heap(Job *job, int64_t capacity_bytes) {
  if (vl_executable_schedule(job->executable)->transfers == 0) return vl_ok();
  HeapOptions options = {.policy = "caching", .capacity_bytes = capacity_bytes, .tier = "the offload tier"};
  const Backing *backing;
  VL_TRY(job->device->interface->offload_open(job->device, &backing));
  job->offload_tracker = vl_tracker_create(true);
  return vl_heap_create(backing, &options, job->offload_tracker, &job->offload_heap);
}

Status job_try_open(Job *job, const char *device, Program *program, const char *recipe_text, uint64_t seed,
                    int64_t capacity_bytes, int64_t offload_capacity_bytes) {
  *job = (Job){0};
  Recipe recipe;
  Target target = {.ranks = 1};
  job_device_open(device, &job->device);
  require_ok(vl_recipe_parse(recipe_text, &recipe));
  require_ok(vl_recipe_apply(&recipe, program, &target));
  VL_TRY(vl_executable_create(program, job->device, NULL, &job->executable));
  HeapOptions options = vl_program_heap_options(vl_executable_program(job->executable));
  options.capacity_bytes = capacity_bytes;
  job->tracker = vl_tracker_create(true);
  VL_TRY(vl_heap_create(job->device->interface->backing(job->device), &options, job->tracker, &job->heap));
  VL_TRY(open_offload_heap(job, offload_capacity_bytes));
  job->state = vl_state_create(job->device, job->heap);
  vl_state_use_offload_heap(job->state, job->offload_heap);
  VL_TRY(vl_state_prepare(job->state, job->executable, seed, true));
  VL_TRY(vl_inputs_create(job->executable, job->device, job->heap, &job->inputs));
  VL_TRY(vl_executable_build(job->executable));
  job->run = (Run){.executable = job->executable,
                   .state = job->state,
                   .heap = job->heap,
                   .offload_heap = job->offload_heap,
                   .tracker = job->tracker,
                   .device = job->device,
                   .seed = seed,
                   .fill = synthesize,
                   .fill_context = &job->run};
  return vl_ok();
}

void job_open(Job *job, const char *device, Program *program, const char *recipe, uint64_t seed,
              int64_t capacity_bytes) {
  require_ok(job_try_open(job, device, program, recipe, seed, capacity_bytes, 0));
}

/* A heap that holds nothing goes, and then has reserved nothing. */
static void close_heap(Heap **heap, Tracker **tracker) {
  if (!*heap) {
    vl_tracker_destroy(tracker);
    return;
  }
  MemoryStatistics statistics;
  vl_tracker_statistics(*tracker, &statistics);
  assert_int_equal(statistics.allocated.current_bytes, 0);
  vl_heap_destroy(heap);
  vl_tracker_statistics(*tracker, &statistics);
  assert_int_equal(statistics.reserved.current_bytes, 0);
  vl_tracker_destroy(tracker);
}

void job_close(Job *job) {
  vl_inputs_destroy(&job->inputs);
  vl_state_destroy(&job->state);
  vl_executable_destroy(&job->executable);
  close_heap(&job->heap, &job->tracker);
  close_heap(&job->offload_heap, &job->offload_tracker);
  vl_device_close(&job->device);
}

double job_step(Job *job, uint64_t step) {
  StepResult result;
  job->run.step = step;
  require_ok(vl_inputs_synthesize(job->inputs, job->run.seed, step, 0));
  require_ok(vl_run_step(&job->run, job->inputs, &result, NULL));
  return result.loss;
}

void recording_clear(Recording *recording) {
  for (int32_t i = 0; i < recording->count; i++)
    free(recording->items[i].data);
  free(recording->items);
  *recording = (Recording){0};
}

const Item *recording_find(const Recording *recording, const char *name) {
  for (int32_t i = 0; i < recording->count; i++) {
    if (strcmp(recording->items[i].name, name) == 0) return &recording->items[i];
  }
  return NULL;
}

/* The entry for a name, with room for the bytes. The name outlives the recording's use: it is the graph's. */
static Item *entry(Recording *recording, const Storage *storage) {
  int64_t bytes = vl_dtype_bytes(storage->dtype, storage->elements);
  Item *found = (Item *)(uintptr_t)recording_find(recording, storage->name);
  if (found) return found;
  if (recording->count == recording->capacity) {
    recording->capacity = recording->capacity ? 2 * recording->capacity : 64;
    recording->items = vl_reallocate(recording->items, (size_t)recording->capacity * sizeof(Item));
  }
  found = &recording->items[recording->count++];
  *found = (Item){storage->name, vl_allocate((size_t)bytes), bytes, storage->dtype};
  return found;
}

void job_read_state(Job *job, Recording *recording) {
  const Graph *graph = vl_executable_program(job->executable)->graph;
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    if (!vl_role_is_persistent(storage->role)) continue;
    Item *item = entry(recording, storage);
    require_ok(vl_state_read(job->state, item->name, item->data, item->bytes));
  }
}

static void take_gradients(void *context, const Run *run, const Instance *instance,
                           const uintptr_t *outputs) {
  Recording *recording = context;
  for (int32_t i = 0; i < instance->node->output_count; i++) {
    const Tensor *output = instance->node->outputs[i];
    if (!output || output->storage->role != ROLE_GRADIENT) continue;
    Item *item = entry(recording, output->storage);
    require_ok(run->device->interface->download(run->device, output->storage, outputs[i], item->data));
  }
}

void job_record_gradients(Job *job, Recording *recording) {
  job->run.observe = take_gradients;
  job->run.observe_context = recording;
}

void assert_recordings_equal(const Recording *a, const Recording *b, const char *what) {
  assert_true(a->count > 0);
  if (a->count != b->count) fail_msg("%s: %d and %d entries", what, a->count, b->count);
  for (int32_t i = 0; i < a->count; i++) {
    const Item *x = &a->items[i], *y = recording_find(b, x->name);
    if (!y) fail_msg("%s: %s is missing", what, x->name);
    assert_int_equal(x->bytes, y->bytes);
    if (memcmp(x->data, y->data, (size_t)x->bytes) == 0) continue;
    int64_t elements = x->bytes * 8 / vl_dtype_bits(x->dtype), first = 0;
    while (first < elements - 1 &&
           vl_element_get(x->data, x->dtype, first) == vl_element_get(y->data, y->dtype, first)) {
      first++;
    }
    fail_msg("%s: %s differs, first at element %lld: %.17g and %.17g", what, x->name, (long long)first,
             vl_element_get(x->data, x->dtype, first), vl_element_get(y->data, y->dtype, first));
  }
}
