/* One run of a node on a device: fenced buffers, the launch, and what came out. */
#include "tests/kernels/trial.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  FENCE_BYTES = 256,
  FENCES_BYTES = 512 /* both sides */,
  FENCE_VALUE = 0xA5,
  UNWRITTEN = 0xFF /* NaN in every float type */
};

/* A fenced piece of device memory. */
typedef struct FencedBuffer {
  uintptr_t address;
  int64_t bytes;
} FencedBuffer;

/* One allocation that a variant's buffers are cut from. */
typedef struct Region {
  Device *device;
  uintptr_t address;
  int64_t bytes, used;
} Region;

/* ---- Device memory ---------------------------------------------------------------------------------------- */

static Storage storage_in(Tensor *tensor, LayoutId layout) {
  return (Storage){.name = tensor->name,
                   .scope = "",
                   .role = tensor->storage->role,
                   .dtype = tensor->dtype,
                   .elements = vl_tensor_elements(tensor),
                   .root = tensor,
                   .layout = layout};
}

/* Raw bytes, as a plain storage of u8. */
static Status move_bytes(Device *device, uintptr_t address, int64_t bytes, void *host, bool up) {
  Tensor tensor = {.name = "bytes", .dtype = DTYPE_U8, .rank = 1, .shape = {bytes}};
  Storage storage = {.name = "bytes", .scope = "", .dtype = DTYPE_U8, .elements = bytes, .root = &tensor};
  tensor.storage = &storage;
  if (bytes == 0) return vl_ok();
  return up ? device->interface->upload(device, &storage, host, address)
            : device->interface->download(device, &storage, address, host);
}

static Status fill_bytes(Device *device, uintptr_t address, int64_t bytes, int value) {
  void *host = vl_allocate((size_t)bytes + 1);
  memset(host, value, (size_t)bytes);
  Status status = move_bytes(device, address, bytes, host, true);
  free(host);
  return status;
}

static Status cut(Region *region, int64_t bytes, FencedBuffer *buffer) {
  buffer->bytes = (bytes + 63) / 64 * 64;
  if (region->used + buffer->bytes + FENCES_BYTES > region->bytes) {
    return vl_error(VL_INTERNAL, "test region too small");
  }
  buffer->address = region->address + (uintptr_t)(region->used + FENCE_BYTES);
  region->used += buffer->bytes + FENCES_BYTES;
  buffer->bytes = bytes;
  VL_TRY(fill_bytes(region->device, buffer->address - FENCE_BYTES, FENCE_BYTES, FENCE_VALUE));
  VL_TRY(fill_bytes(region->device, buffer->address + (uintptr_t)bytes, FENCE_BYTES, FENCE_VALUE));
  return fill_bytes(region->device, buffer->address, bytes, UNWRITTEN);
}

static Status check_fences(Device *device, const FencedBuffer *buffer, const char *what) {
  unsigned char fence[FENCE_BYTES];
  uintptr_t places[] = {buffer->address - FENCE_BYTES, buffer->address + (uintptr_t)buffer->bytes};
  for (int side = 0; side < 2; side++) {
    VL_TRY(move_bytes(device, places[side], FENCE_BYTES, fence, false));
    for (int i = 0; i < FENCE_BYTES; i++) {
      if (fence[i] == FENCE_VALUE) continue;
      return vl_error(VL_INTERNAL, "wrote %d bytes %s its %s of %lld bytes", side ? i + 1 : FENCE_BYTES - i,
                      side ? "past" : "before", what, (long long)buffer->bytes);
    }
  }
  return vl_ok();
}

/* ---- One run --------------------------------------------------------------------------------------------------- */

/* The buffers of a run: one per operand, shared where an output is in place. */
typedef struct RunBuffers {
  Region region;
  FencedBuffer inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS], workspace;
  uintptr_t from[VL_MAX_INPUTS], to[VL_MAX_OUTPUTS];
} RunBuffers;

/* The input whose buffer an output takes: chosen by the variant, or by the op (statistics, weights, sums
 * of gradients); -1: none. */
static int32_t input_of_output(const Trial *trial, const Variant *variant, int32_t k) {
  const Node *node = trial->node;
  if (variant->inplace[k] >= 0) return variant->inplace[k];
  for (int32_t i = 0; i < node->input_count && !node->op->is_view; i++) {
    bool optional = (node->op->inplace[k] >> i & 1U) != 0; /* a pass may have chosen it: the variant says */
    if (node->inputs[i] && node->inputs[i]->storage == node->outputs[k]->storage && !optional) return i;
  }
  return -1;
}

static Status reserve_region(const Trial *trial, const Variant *variant, int64_t workspace, Region *region) {
  Device *device = trial->subject->device;
  int64_t bytes = workspace + 64 + FENCES_BYTES;
  for (int32_t i = 0; i < trial->node->input_count; i++) {
    if (!trial->node->inputs[i]) continue;
    Storage storage = storage_in(trial->node->inputs[i], variant->inputs[i]);
    bytes += device->interface->storage_bytes(device, variant->inputs[i], &storage) + 64 + FENCES_BYTES;
  }
  for (int32_t k = 0; k < trial->node->output_count; k++) {
    if (!trial->node->outputs[k]) continue;
    Storage storage = storage_in(trial->node->outputs[k], variant->outputs[k]);
    bytes += device->interface->storage_bytes(device, variant->outputs[k], &storage) + 64 + FENCES_BYTES;
  }
  *region = (Region){.device = device, .bytes = bytes};
  return device->interface->backing(device)->reserve(device->interface->backing(device)->context, bytes,
                                                     &region->address);
}

static Status place_operands(const Trial *trial, const Variant *variant, int64_t workspace, RunBuffers *run) {
  Device *device = trial->subject->device;
  const Node *node = trial->node;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!node->inputs[i]) continue;
    Storage storage = storage_in(node->inputs[i], variant->inputs[i]);
    VL_TRY(cut(&run->region, device->interface->storage_bytes(device, variant->inputs[i], &storage),
               &run->inputs[i]));
    run->from[i] = run->inputs[i].address;
    VL_TRY(device->interface->upload(device, &storage, trial->typed[i], run->from[i]));
  }
  for (int32_t k = 0; k < node->output_count; k++) {
    if (!node->outputs[k]) continue;
    int32_t shared = input_of_output(trial, variant, k);
    Storage storage = storage_in(node->outputs[k], variant->outputs[k]);
    if (shared < 0) {
      VL_TRY(cut(&run->region, device->interface->storage_bytes(device, variant->outputs[k], &storage),
                 &run->outputs[k]));
    } else {
      run->outputs[k] = run->inputs[shared];
    }
    run->to[k] = run->outputs[k].address;
  }
  if (workspace > 0) VL_TRY(cut(&run->region, workspace, &run->workspace));
  return vl_ok();
}

static void element_place(const Tensor *tensor, int64_t index, char *text, size_t size) {
  int64_t at[VL_MAX_DIMS] = {0};
  for (int32_t i = tensor->rank - 1; i >= 0; i--) {
    at[i] = index % tensor->shape[i];
    index /= tensor->shape[i];
  }
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < tensor->rank && used < size; i++) {
    used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? "," : "", (long long)at[i]);
  }
}

static Status compare_output(const Trial *trial, int32_t k, const void *typed, CompareTotals *totals) {
  const Tensor *tensor = trial->node->outputs[k];
  for (int64_t i = 0; i < vl_tensor_elements(tensor); i++) {
    double got = vl_element_get(typed, tensor->dtype, i), want = trial->expected[k][i],
           bound = trial->bounds[k][i];
    double error = got == want || (isnan(got) && isnan(want)) ? 0.0 : fabs(got - want);
    if (!(error <= bound)) {
      char place[64];
      element_place(tensor, i, place, sizeof place);
      return vl_error(VL_INTERNAL, "output %d [%s] is %.9g, the reference %.9g: off by %.3g, bound %.3g", k,
                      place, got, want, error, bound);
    }
    if (bound > 0.0 && error / bound > totals->worst) {
      totals->worst = error / bound;
      snprintf(totals->worst_at, sizeof totals->worst_at, "%s output %d in %s", trial->node->op->name, k,
               trial->node->scope ? trial->node->scope : "");
    }
  }
  return vl_ok();
}

static Status check_inputs(const Trial *trial, const Variant *variant, const RunBuffers *run) {
  Device *device = trial->subject->device;
  for (int32_t i = 0; i < trial->node->input_count; i++) {
    if (!trial->node->inputs[i]) continue;
    VL_TRY(check_fences(device, &run->inputs[i], "input"));
    bool overwritten = false;
    for (int32_t k = 0; k < trial->node->output_count; k++) {
      overwritten = overwritten || (trial->node->outputs[k] && run->to[k] == run->from[i]);
    }
    if (overwritten) continue;
    Storage storage = storage_in(trial->node->inputs[i], variant->inputs[i]);
    size_t bytes = (size_t)vl_dtype_bytes(storage.dtype, storage.elements);
    void *back = vl_allocate(bytes + 1);
    Status status = device->interface->download(device, &storage, run->from[i], back);
    if (status.code == VL_OK && memcmp(back, trial->typed[i], bytes) != 0) {
      status = vl_error(VL_INTERNAL, "input %d was changed", i);
    }
    free(back);
    VL_TRY(status);
  }
  return vl_ok();
}

static Status check_outputs(const Trial *trial, const Variant *variant, const RunBuffers *run,
                            CompareTotals *totals) {
  Device *device = trial->subject->device;
  for (int32_t k = 0; k < trial->node->output_count; k++) {
    if (!trial->node->outputs[k]) continue;
    VL_TRY(check_fences(device, &run->outputs[k], "output"));
    Storage storage = storage_in(trial->node->outputs[k], variant->outputs[k]);
    void *typed = vl_allocate((size_t)vl_dtype_bytes(storage.dtype, storage.elements) + 1);
    Status status = device->interface->download(device, &storage, run->to[k], typed);
    if (status.code == VL_OK) status = compare_output(trial, k, typed, totals);
    free(typed);
    VL_TRY(status);
  }
  if (run->workspace.address) VL_TRY(check_fences(device, &run->workspace, "workspace"));
  return vl_ok();
}

static Status launch(const Trial *trial, const Variant *variant, Kernel *kernel, CompareTotals *totals) {
  Device *device = trial->subject->device;
  int64_t workspace = device->interface->workspace_bytes(kernel);
  RunBuffers run = {0};
  VL_TRY(reserve_region(trial, variant, workspace, &run.region));
  Status status = place_operands(trial, variant, workspace, &run);
  if (status.code == VL_OK) {
    status =
        device->interface->launch(device, kernel, run.from, run.to, run.workspace.address, trial->context);
  }
  if (status.code == VL_OK) status = device->interface->synchronize(device);
  if (status.code == VL_OK) status = check_outputs(trial, variant, &run, totals);
  if (status.code == VL_OK) status = check_inputs(trial, variant, &run);
  const Backing *backing = device->interface->backing(device);
  backing->release(backing->context, run.region.address, run.region.bytes);
  return status;
}

Status trial_run(const Trial *trial, const Variant *variant, CompareTotals *totals) {
  Device *device = trial->subject->device;
  Kernel *kernel = NULL;
  VL_TRY(device->interface->prepare(device, trial->node, variant->inputs, variant->outputs, &kernel));
  Status status = device->interface->build(device, kernel);
  if (status.code == VL_OK) status = launch(trial, variant, kernel, totals);
  device->interface->kernel_destroy(device, &kernel);
  totals->runs++;
  return status;
}
