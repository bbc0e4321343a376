#include "engine/internal.h"
#include <stdlib.h>

static Status prepare_kernels(Executable *executable) {
  const Graph *graph = executable->program.graph;
  Device *device = executable->device;
  int32_t highest_id = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    if (graph->nodes[i]->id > highest_id) highest_id = graph->nodes[i]->id;
  }
  executable->kernels = vl_allocate(((size_t)highest_id + 1) * sizeof(Kernel *));
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (vl_node_is_view(node)) continue;
    LayoutId inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0};
    for (int32_t k = 0; k < node->input_count; k++) {
      if (node->inputs[k]) inputs[k] = node->inputs[k]->storage->layout;
    }
    for (int32_t k = 0; k < node->output_count; k++) {
      if (node->outputs[k]) outputs[k] = node->outputs[k]->storage->layout;
    }
    VL_TRY(device->interface->prepare(device, node, inputs, outputs, &executable->kernels[node->id]));
  }
  executable->storage_bytes = vl_allocate(((size_t)graph->storage_count + 1) * sizeof(int64_t));
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    executable->storage_bytes[i] = device->interface->storage_bytes(device, storage->layout, storage);
  }
  return vl_ok();
}

/* The launch of forward with the most FLOPs, the first of several. */
static const Node *largest_launch(const Graph *graph) {
  const Node *largest = NULL;
  int64_t most = -1;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->segment != SEGMENT_FORWARD || vl_node_is_view(node) || vl_node_flops(node) <= most) continue;
    most = vl_node_flops(node);
    largest = node;
  }
  return largest;
}

Status vl_executable_create(Program *program, Device *device, const State *state, Executable **out) {
  Executable *executable = vl_allocate(sizeof *executable);
  executable->program = *program;
  executable->device = device;
  *program = (Program){0};
  Status status = engine_assign_layouts(&executable->program, device, state);
  if (status.code == VL_OK) status = vl_schedule_build(&executable->program, &executable->schedule);
  if (status.code == VL_OK && executable->schedule->transfers > 0 && !device->interface->offload_open)
    status = vl_error(VL_UNSUPPORTED, "the device has no tier to offload to");
  if (status.code == VL_OK) status = prepare_kernels(executable);
  if (status.code != VL_OK) {
    vl_executable_destroy(&executable);
    return status;
  }
  if (executable->program.oversize_bytes > 0)
    executable->oversized = largest_launch(executable->program.graph);
  *out = executable;
  return vl_ok();
}

Status vl_executable_build(Executable *executable) {
  const Graph *graph = executable->program.graph;
  Device *device = executable->device;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Kernel *kernel = executable->kernels[graph->nodes[i]->id];
    if (kernel) VL_TRY(device->interface->build(device, kernel));
  }
  return vl_ok();
}

void vl_executable_destroy(Executable **executable) {
  Executable *it = *executable;
  if (!it) return;
  const Graph *graph = it->program.graph;
  for (int32_t i = 0; it->kernels && i < graph->node_count; i++) {
    Kernel **kernel = &it->kernels[graph->nodes[i]->id];
    if (*kernel) it->device->interface->kernel_destroy(it->device, kernel);
  }
  free(it->kernels);
  free(it->storage_bytes);
  engine_places_destroy(&it->places);
  vl_schedule_destroy(&it->schedule);
  vl_program_destroy(&it->program);
  free(it);
  *executable = NULL;
}

bool vl_executable_is_emulated(const Executable *executable) {
  const Graph *graph = executable->program.graph;
  const DeviceInterface *interface = executable->device->interface;
  for (int32_t i = 0; interface->is_emulated && i < graph->node_count; i++) {
    const Kernel *kernel = executable->kernels[graph->nodes[i]->id];
    if (kernel && interface->is_emulated(kernel)) return true;
  }
  return false;
}

HeapOptions vl_program_heap_options(const Program *program) {
  return (HeapOptions){.policy = program->allocation_policy,
                       .max_split_bytes = program->max_split_bytes,
                       .gc_threshold = program->gc_threshold,
                       .round_divisions = program->round_divisions,
                       .remap = program->remap};
}

const Program *vl_executable_program(const Executable *executable) { return &executable->program; }
const Schedule *vl_executable_schedule(const Executable *executable) { return executable->schedule; }
