/* A device on paper: plain layouts, every op, and the profile's workspace for convolutions and products. It
 * describes only; vl_plan_device_create adds the execute half. */
#include "devices/device.h"
#include <stdlib.h>
#include <string.h>

typedef struct ProfileDevice {
  Device device; /* first */
  DeviceProfile profile;
  bool low_end;
} ProfileDevice;

struct Kernel {
  int64_t workspace_bytes;
  int64_t launch_ns;
};

static void describe(const Device *device, DeviceDescription *description) {
  const ProfileDevice *it = (const ProfileDevice *)(const void *)device;
  const DeviceProfile *profile = &it->profile;
  memset(description, 0, sizeof *description);
  snprintf(description->name, sizeof description->name, "%s", profile->name);
  snprintf(description->hardware, sizeof description->hardware, "%s", profile->describes);
  snprintf(description->isa, sizeof description->isa, "none");
  snprintf(description->library, sizeof description->library, "none");
  description->memory_bytes = profile->memory_bytes;
  description->context_bytes = it->low_end ? profile->context_low_bytes : profile->context_high_bytes;
  description->host_bytes_per_s = profile->host_bytes_per_s;
  description->predicts = true;
  description->has_time = profile->has_time;
  description->has_tf32 = profile->has_bf16; /* both from compute capability 8.0 on */
}

static Status supports(Device *device, const Node *node) {
  (void)device;
  (void)node;
  return vl_ok();
}

static Status choose_layouts(Device *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; ++i)
    inputs[i] = LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; ++i)
    outputs[i] = LAYOUT_PLAIN;
  return vl_ok();
}

static int64_t storage_bytes(Device *device, LayoutId layout, const Storage *storage) {
  (void)device;
  (void)layout;
  return vl_dtype_bytes(storage->dtype, storage->elements);
}

static bool view_is_legal(Device *device, LayoutId layout, const Tensor *view) {
  (void)device;
  (void)layout;
  (void)view;
  return true;
}

static const char *layout_name(Device *device, LayoutId layout) {
  (void)device;
  return layout == LAYOUT_ANY ? "any" : "plain";
}

/* The ops whose library picks among algorithms with different workspaces. */
static bool takes_workspace(const Node *node) {
  static const char *const names[] = {
      "conv",   "conv_epilogue", "conv_backward_data", "conv_backward_weights", "conv_transpose",
      "linear", "matmul"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (strcmp(node->op->name, names[i]) == 0) return true;
  return false;
}

/* What bounds it: operations, or bytes read and written. */
static int64_t launch_time_ns(const DeviceProfile *profile, const Node *node) {
  const Tensor *first = node->inputs[0] ? node->inputs[0] : node->outputs[0];
  bool low = first && vl_dtype_is_float(first->dtype) && vl_dtype_bits(first->dtype) == 16;
  double flops_s = (double)vl_node_flops(node) / (low ? profile->flops_low_per_s : profile->flops_f32_per_s);
  double bytes_s = (double)vl_node_bytes(node) / profile->memory_bytes_per_s;
  return (int64_t)(1e9 * (flops_s > bytes_s ? flops_s : bytes_s));
}

static Status prepare(Device *device, const Node *node, const LayoutId *inputs, const LayoutId *outputs,
                      Kernel **kernel) {
  const ProfileDevice *it = (const ProfileDevice *)(void *)device;
  (void)inputs;
  (void)outputs;
  *kernel = vl_allocate(sizeof **kernel);
  (*kernel)->launch_ns = launch_time_ns(&it->profile, node);
  if (takes_workspace(node)) {
    const DeviceProfile *profile = &it->profile;
    (*kernel)->workspace_bytes = it->low_end ? profile->workspace_low_bytes : profile->workspace_high_bytes;
  }
  return vl_ok();
}

static int64_t workspace_bytes(const Kernel *kernel) { return kernel->workspace_bytes; }

static int64_t launch_ns(const Kernel *kernel) { return kernel->launch_ns; }

static const char *implementation(const Kernel *kernel) {
  (void)kernel;
  return "profile";
}

static void kernel_destroy(Device *device, Kernel **kernel) {
  (void)device;
  free(*kernel);
  *kernel = NULL;
}

static void close_device(Device *device) { free(device); }

static const DeviceInterface interface = {
    .describe = describe,
    .supports = supports,
    .choose_layouts = choose_layouts,
    .storage_bytes = storage_bytes,
    .view_is_legal = view_is_legal,
    .layout_name = layout_name,
    .prepare = prepare,
    .workspace_bytes = workspace_bytes,
    .launch_ns = launch_ns,
    .implementation = implementation,
    .kernel_destroy = kernel_destroy,
    .close = close_device,
};

Status vl_profile_device_create(const DeviceProfile *profile, bool low_end, Device **device) {
  ProfileDevice *made = vl_allocate(sizeof *made);
  made->device.interface = &interface;
  made->profile = *profile;
  made->low_end = low_end;
  *device = &made->device;
  return vl_ok();
}
