/* The mistake copy-weights: the weights in fp32 a second time. */
#include "engine/cell.h"
#include <stdlib.h>

/* Plain fp32 from whatever type and layout the weight has. */
static Status copy_values(const Cell *cell, const Storage *storage, uintptr_t from, uintptr_t to) {
  const DeviceInterface *interface = cell->device->interface;
  Storage plain = *storage;
  plain.dtype = DTYPE_F32;
  plain.layout = (LayoutId){0};
  void *host = vl_allocate((size_t)vl_dtype_bytes(storage->dtype, storage->elements) + 1);
  float *values = vl_allocate((size_t)storage->elements * sizeof *values + 1);
  Status status = interface->download(cell->device, storage, from, host);
  for (int64_t i = 0; i < storage->elements; i++)
    values[i] = (float)vl_element_get(host, storage->dtype, i);
  if (status.code == VL_OK) status = interface->upload(cell->device, &plain, values, to);
  free(host);
  free(values);
  return status;
}

Status cell_copy_weights(Cell *cell) {
  const Program *program = vl_executable_program(cell->executable);
  if (!program->copies_weights) return vl_ok();
  for (int32_t i = 0; i < program->graph->storage_count; i++) {
    const Storage *storage = program->graph->storages[i];
    if (storage->role != ROLE_PARAMETER) continue;
    Block *block;
    AllocationRequest request = {.bytes = storage->elements * (int64_t)sizeof(float),
                                 .category = MEMORY_PARAMETER,
                                 .name = storage->name,
                                 .scope = storage->scope};
    VL_TRY(vl_heap_obtain(cell->heap, &request, &block));
    engine_retain(&cell->retained, block);
    const StateEntry *entry = engine_state_find(cell->state, storage->name);
    if (cell->result->device.predicts || !entry) continue;
    VL_TRY(copy_values(cell, &entry->storage, entry->block->address, block->address));
  }
  return vl_ok();
}
