#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Input {
  const Storage *storage;
  Block *block;
  void *staged;    /* instead of a block: memory of the host's, laid out as the device has it */
  int64_t counted; /* labels that are not ignored, of what is in the block */
  int64_t of_step; /* the same of the whole step; -1: the caller did not say */
  int64_t seen;    /* of the step's micro-batches so far */
} Input;

struct Inputs {
  Device *device;
  Heap *heap;
  Input *items;
  int32_t count;
  int64_t step_samples;  /* of the step that runs */
  int32_t micro_batches; /* of it so far */
};

static PlaceCursor plan_inputs(const Executable *executable, Heap *heap) {
  const Graph *graph = executable->program.graph;
  int64_t bytes = 0;
  for (int32_t i = 0; i < graph->storage_count; i++)
    if (graph->storages[i]->role == ROLE_INPUT) bytes += engine_place_bytes(executable->storage_bytes[i]);
  return engine_place_begin(heap, bytes);
}

Status vl_inputs_create(const Executable *executable, Device *device, Heap *heap, Inputs **out) {
  const Graph *graph = executable->program.graph;
  Inputs *inputs = vl_allocate(sizeof *inputs);
  inputs->device = device;
  inputs->heap = heap;
  inputs->items = vl_allocate(((size_t)graph->storage_count + 1) * sizeof(Input));
  PlaceCursor cursor = plan_inputs(executable, heap);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    if (storage->role != ROLE_INPUT) continue;
    AllocationRequest request = {.bytes = executable->storage_bytes[i],
                                 .category = MEMORY_INPUT,
                                 .name = storage->name,
                                 .scope = storage->scope};
    engine_place_next(&cursor, &request);
    Input *item = &inputs->items[inputs->count];
    item->storage = storage;
    item->counted = storage->elements;
    item->of_step = -1;
    Status status = vl_heap_obtain(heap, &request, &item->block);
    if (status.code != VL_OK) {
      vl_inputs_destroy(&inputs);
      return status;
    }
    inputs->count++;
  }
  *out = inputs;
  return vl_ok();
}

void vl_inputs_destroy(Inputs **inputs) {
  Inputs *it = *inputs;
  if (!it) return;
  for (int32_t i = 0; i < it->count; i++) {
    if (it->items[i].staged) it->device->interface->staging_release(it->device, it->items[i].staged);
    if (it->items[i].block) vl_heap_release(it->heap, &it->items[i].block);
  }
  free(it->items);
  free(it);
  *inputs = NULL;
}

Status engine_inputs_stage(const Inputs *inputs, Inputs **out) {
  const DeviceInterface *interface = inputs->device->interface;
  *out = NULL;
  if (!interface->staging_obtain) return vl_ok();
  Inputs *staged = vl_allocate(sizeof *staged);
  *staged = (Inputs){.device = inputs->device, .heap = inputs->heap};
  staged->items = vl_allocate(((size_t)inputs->count + 1) * sizeof(Input));
  for (int32_t i = 0; i < inputs->count; i++) {
    const Storage *storage = inputs->items[i].storage;
    Input *item = &staged->items[staged->count++];
    *item = (Input){.storage = storage, .counted = storage->elements, .of_step = -1};
    int64_t bytes = interface->storage_bytes(inputs->device, storage->layout, storage);
    Status status = interface->staging_obtain(inputs->device, bytes, &item->staged);
    if (status.code == VL_OK) continue;
    vl_inputs_destroy(&staged);
    return status;
  }
  *out = staged;
  return vl_ok();
}

Status engine_inputs_deliver(Inputs *staged, Inputs *inputs) {
  for (int32_t i = 0; i < staged->count; i++) {
    Input *from = &staged->items[i];
    Input *to = &inputs->items[i];
    VL_TRY(inputs->device->interface->upload_staged(inputs->device, from->storage, from->staged,
                                                    to->block->address));
    to->counted = from->counted;
    if (from->of_step >= 0) to->of_step = from->of_step;
    from->of_step = -1;
  }
  return vl_ok();
}

/* Plain host data to where the input is. */
static Status put(Inputs *inputs, const Input *item, const void *host) {
  const DeviceInterface *interface = inputs->device->interface;
  if (!item->staged) return interface->upload(inputs->device, item->storage, host, item->block->address);
  interface->lay_out(item->storage, host, item->staged);
  return vl_ok();
}

static Input *find(const Inputs *inputs, const char *name) {
  for (int32_t i = 0; i < inputs->count; i++) {
    if (strcmp(inputs->items[i].storage->name, name) == 0) return &inputs->items[i];
  }
  return NULL;
}

uintptr_t engine_input_address(const Inputs *inputs, const Storage *storage) {
  const Input *item = find(inputs, storage->name);
  return item ? item->block->address : 0;
}

/* ---- Labels that count ---- */

void engine_inputs_begin_step(Inputs *inputs, int64_t samples) {
  inputs->step_samples = samples;
  inputs->micro_batches = 0;
  for (int32_t i = 0; i < inputs->count; i++)
    inputs->items[i].seen = 0;
  engine_inputs_begin_micro_batch(inputs);
}

void engine_inputs_go_on(Inputs *inputs, const Inputs *from) {
  inputs->step_samples = from->step_samples;
  inputs->micro_batches = from->micro_batches;
  for (int32_t i = 0; i < inputs->count; i++) {
    Input *item = &inputs->items[i];
    const Input *before = find(from, item->storage->name);
    item->seen = before ? before->seen : 0;
    item->of_step = before ? before->of_step : -1;
  }
}

void engine_inputs_begin_micro_batch(Inputs *inputs) {
  inputs->micro_batches++;
  for (int32_t i = 0; i < inputs->count; i++)
    inputs->items[i].seen += inputs->items[i].counted;
}

void engine_inputs_end_step(Inputs *inputs) {
  for (int32_t i = 0; i < inputs->count; i++)
    inputs->items[i].of_step = -1;
}

int64_t engine_inputs_counted(const Inputs *inputs, const Storage *labels) {
  const Input *item = find(inputs, labels->name);
  if (item && item->of_step >= 0) return item->of_step;
  int64_t samples = labels->root->rank > 0 ? labels->root->shape[0] : 1;
  if (item && inputs->step_samples == samples) return item->counted; /* what is there is all */
  return labels->elements / samples * inputs->step_samples;
}

int64_t engine_inputs_counted_here(const Inputs *inputs, const Storage *labels) {
  const Input *item = find(inputs, labels->name);
  return item ? item->counted : labels->elements;
}

Status engine_inputs_check_counted(const Inputs *inputs, const Storage *labels) {
  const Input *item = find(inputs, labels->name);
  int64_t expected = engine_inputs_counted(inputs, labels);
  if (!item || item->seen == expected) return vl_ok();
  return vl_error(VL_INVALID, "%s: %lld labels count in the step's %d micro-batches, not %lld as was said",
                  labels->name, (long long)item->seen, inputs->micro_batches, (long long)expected);
}

Status vl_inputs_set_counted(Inputs *inputs, const char *name, int64_t counted) {
  Input *item = find(inputs, name);
  if (!item) return vl_error(VL_INVALID, "the program has no input '%s'", name);
  if (counted < 0) return vl_error(VL_INVALID, "input %s: %lld labels count", name, (long long)counted);
  item->of_step = counted;
  return vl_ok();
}

static int64_t count_labels(const Storage *storage, const void *host) {
  int64_t counted = 0;
  const int32_t *labels = host;
  if (storage->dtype != DTYPE_I32) return storage->elements;
  for (int64_t i = 0; i < storage->elements; i++)
    counted += labels[i] != VL_IGNORED_LABEL;
  return counted;
}

static double synthetic_value(const Storage *storage, uint32_t word) {
  double unit = (double)vl_random_unit(word), value = storage->init.value;
  if (storage->init.kind != INIT_UNIFORM) return storage->init.kind == INIT_CONSTANT ? value : 0.0;
  return vl_dtype_is_float(storage->dtype) ? (2.0 * unit - 1.0) * value : floor(unit * value);
}

static void synthesize(const Storage *storage, uint64_t key, int64_t first_sample, void *host) {
  int64_t samples = storage->root->rank > 0 ? storage->root->shape[0] : 1;
  int64_t per_sample = storage->elements / samples;
  for (int64_t n = 0; n < samples; n++) {
    for (int64_t e = 0; e < per_sample; e++) {
      uint32_t word = vl_random_word(key, (uint64_t)(first_sample + n), (uint64_t)e);
      vl_element_set(host, storage->dtype, n * per_sample + e, synthetic_value(storage, word));
    }
  }
}

Status vl_inputs_synthesize(Inputs *inputs, uint64_t seed, uint64_t step, int64_t first_sample) {
  const DeviceInterface *interface = inputs->device->interface;
  for (int32_t i = 0; i < inputs->count; i++) {
    Input *item = &inputs->items[i];
    item->counted = item->storage->elements; /* none is VL_IGNORED_LABEL */
    uint64_t key = vl_random_key(seed, step, item->storage->name);
    void *view = interface->host_view && item->block
                     ? interface->host_view(inputs->device, item->block->address)
                     : NULL;
    if (view) {
      synthesize(item->storage, key, first_sample, view);
      continue;
    }
    void *host = vl_allocate((size_t)vl_dtype_bytes(item->storage->dtype, item->storage->elements) + 1);
    synthesize(item->storage, key, first_sample, host);
    Status status = put(inputs, item, host);
    free(host);
    VL_TRY(status);
  }
  return vl_ok();
}

Status vl_inputs_write(Inputs *inputs, const char *name, const void *host, int64_t bytes) {
  Input *item = find(inputs, name);
  if (!item) return vl_error(VL_INVALID, "the program has no input '%s'", name);
  const Storage *storage = item->storage;
  int64_t held = vl_dtype_bytes(storage->dtype, storage->elements);
  if (held != bytes) {
    return vl_error(VL_INVALID, "input %s has %lld bytes, not %lld", name, (long long)held, (long long)bytes);
  }
  item->counted = count_labels(storage, host);
  return put(inputs, item, host);
}
