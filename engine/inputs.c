#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Input {
  const Storage *storage;
  Block *block;
} Input;

struct Inputs {
  Device *device;
  Heap *heap;
  Input *items;
  int32_t count;
};

Status vl_inputs_create(const Executable *executable, Device *device, Heap *heap, Inputs **out) {
  const Graph *graph = executable->program.graph;
  Inputs *inputs = vl_allocate(sizeof *inputs);
  inputs->device = device;
  inputs->heap = heap;
  inputs->items = vl_allocate(((size_t)graph->storage_count + 1) * sizeof(Input));
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    if (storage->role != ROLE_INPUT) continue;
    AllocationRequest request = {.bytes = executable->storage_bytes[i],
                                 .category = MEMORY_INPUT,
                                 .name = storage->name,
                                 .scope = storage->scope};
    Input *item = &inputs->items[inputs->count];
    item->storage = storage;
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
  for (int32_t i = 0; i < it->count; i++)
    vl_heap_release(it->heap, &it->items[i].block);
  free(it->items);
  free(it);
  *inputs = NULL;
}

uintptr_t engine_input_address(const Inputs *inputs, const Storage *storage) {
  for (int32_t i = 0; i < inputs->count; i++) {
    if (inputs->items[i].storage == storage || strcmp(inputs->items[i].storage->name, storage->name) == 0) {
      return inputs->items[i].block->address;
    }
  }
  return 0;
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
    const Input *item = &inputs->items[i];
    uint64_t key = vl_random_key(seed, step, item->storage->name);
    void *view = interface->host_view ? interface->host_view(inputs->device, item->block->address) : NULL;
    if (view) {
      synthesize(item->storage, key, first_sample, view);
      continue;
    }
    void *host = vl_allocate((size_t)vl_dtype_bytes(item->storage->dtype, item->storage->elements) + 1);
    synthesize(item->storage, key, first_sample, host);
    Status status = interface->upload(inputs->device, item->storage, host, item->block->address);
    free(host);
    VL_TRY(status);
  }
  return vl_ok();
}

Status vl_inputs_write(Inputs *inputs, const char *name, const void *host, int64_t bytes) {
  for (int32_t i = 0; i < inputs->count; i++) {
    const Storage *storage = inputs->items[i].storage;
    if (strcmp(storage->name, name) != 0) continue;
    int64_t held = vl_dtype_bytes(storage->dtype, storage->elements);
    if (held != bytes) {
      return vl_error(VL_INVALID, "input %s has %lld bytes, not %lld", name, (long long)held,
                      (long long)bytes);
    }
    return inputs->device->interface->upload(inputs->device, storage, host, inputs->items[i].block->address);
  }
  return vl_error(VL_INVALID, "the program has no input '%s'", name);
}
