#include "tests/devices/run_node.h"

#include <stdlib.h>

/* A tensor's place on the device; bytes 0: absent. */
typedef struct Place {
  uintptr_t address;
  int64_t bytes;
} Place;

static Status reserve(Device *device, int64_t bytes, Place *place) {
  const Backing *backing = device->interface->backing(device);
  VL_TRY(backing->reserve(backing->context, bytes, &place->address));
  place->bytes = bytes;
  return vl_ok();
}

static void release(Device *device, const Place *place) {
  const Backing *backing = device->interface->backing(device);
  if (place->bytes > 0) backing->release(backing->context, place->address, place->bytes);
}

/* Everything of a run that has to go again. */
typedef struct Run {
  Place inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS], workspace;
  Kernel *kernel;
} Run;

static Status reserve_tensor(Device *device, Tensor *tensor, LayoutId layout, Place *place) {
  tensor->storage->layout = layout;
  return reserve(device, device->interface->storage_bytes(device, layout, tensor->storage), place);
}

static Status upload(Device *device, const Tensor *tensor, const void *values, uintptr_t address) {
  void *zeros = values ? NULL : vl_allocate((size_t)vl_tensor_bytes(tensor) + 1);
  Status status = device->interface->upload(device, tensor->storage, values ? values : zeros, address);
  free(zeros);
  return status;
}

static Status prepare(Device *device, const Node *node, const void *const *values, Run *run) {
  const DeviceInterface *interface = device->interface;
  LayoutId inputs[VL_MAX_INPUTS] = {LAYOUT_PLAIN}, outputs[VL_MAX_OUTPUTS] = {LAYOUT_PLAIN};
  VL_TRY(interface->supports(device, node));
  VL_TRY(interface->choose_layouts(device, node, inputs, outputs));
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!node->inputs[i]) continue;
    VL_TRY(reserve_tensor(device, node->inputs[i], inputs[i], &run->inputs[i]));
    VL_TRY(upload(device, node->inputs[i], values[i], run->inputs[i].address));
  }
  for (int32_t k = 0; k < node->output_count; k++)
    if (node->outputs[k]) VL_TRY(reserve_tensor(device, node->outputs[k], outputs[k], &run->outputs[k]));
  VL_TRY(interface->prepare(device, node, inputs, outputs, &run->kernel));
  VL_TRY(interface->build(device, run->kernel));
  return reserve(device, interface->workspace_bytes(run->kernel) + 64, &run->workspace);
}

static Status launch(Device *device, const Node *node, const Run *run, void *const *results) {
  const DeviceInterface *interface = device->interface;
  uintptr_t inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    inputs[i] = run->inputs[i].address;
  for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++)
    outputs[k] = run->outputs[k].address;
  LaunchContext context = {0};
  VL_TRY(interface->launch(device, run->kernel, inputs, outputs, run->workspace.address, &context));
  VL_TRY(interface->synchronize(device));
  for (int32_t k = 0; k < node->output_count; k++)
    if (results[k]) VL_TRY(interface->download(device, node->outputs[k]->storage, outputs[k], results[k]));
  return vl_ok();
}

Status run_node(Device *device, const Node *node, const void *const *inputs, void *const *outputs) {
  Run run = {0};
  Status status = prepare(device, node, inputs, &run);
  if (status.code == VL_OK) status = launch(device, node, &run, outputs);
  if (run.kernel) device->interface->kernel_destroy(device, &run.kernel);
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    release(device, &run.inputs[i]);
  for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++)
    release(device, &run.outputs[k]);
  release(device, &run.workspace);
  return status;
}
