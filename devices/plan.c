/* The device that computes nothing: describes as another device does, hands out addresses nobody reads, and
 * launches nothing. Where the other is a profile, launches and copies each advance a clock of theirs by what
 * the profile's rates say, and a wait brings launches up to the copy: so much they are held up. */
#include "devices/device.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct PlanDevice {
  Device device; /* first */
  Device *inner;
  char name[sizeof((DeviceDescription *)0)->name];
  int64_t capacity_bytes; /* 0: no limit */
  int64_t reserved_bytes;
  uintptr_t next_address;
  Backing backing, offload_backing;
  double host_bytes_per_s;                  /* 0: no copy takes time, and no wait */
  int64_t launches_ns, copies_ns, stall_ns; /* the clocks, and what the first waited for the second */
  /* Its own table: workspace_bytes, implementation and is_emulated read kernels of the inner device and are
   * given no device to ask, so they are the inner one's functions. */
  DeviceInterface interface;
} PlanDevice;

/* Addresses start above zero, where absent tensors are, and keep the alignment segments have on devices. */
static const uintptr_t first_address = (uintptr_t)1 << 32;
static const uintptr_t alignment_bytes = (uintptr_t)1 << 21;

static PlanDevice *own(Device *device) { return (PlanDevice *)(void *)device; }
static Device *inner(Device *device) { return own(device)->inner; }

static void describe(const Device *device, DeviceDescription *description) {
  const PlanDevice *plan = (const PlanDevice *)(const void *)device;
  plan->inner->interface->describe(plan->inner, description);
  snprintf(description->name, sizeof description->name, "%s", plan->name);
  description->predicts = true;
  description->has_time = false; /* until there is a cost model */
}

static Status supports(Device *device, const Node *node) {
  return inner(device)->interface->supports(inner(device), node);
}

static Status choose_layouts(Device *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return inner(device)->interface->choose_layouts(inner(device), node, inputs, outputs);
}

static int64_t storage_bytes(Device *device, LayoutId layout, const Storage *storage) {
  return inner(device)->interface->storage_bytes(inner(device), layout, storage);
}

static bool view_is_legal(Device *device, LayoutId layout, const Tensor *view) {
  return inner(device)->interface->view_is_legal(inner(device), layout, view);
}

static const char *layout_name(Device *device, LayoutId layout) {
  return inner(device)->interface->layout_name(inner(device), layout);
}

static Status prepare(Device *device, const Node *node, const LayoutId *inputs, const LayoutId *outputs,
                      Kernel **kernel) {
  return inner(device)->interface->prepare(inner(device), node, inputs, outputs, kernel);
}

static void kernel_destroy(Device *device, Kernel **kernel) {
  inner(device)->interface->kernel_destroy(inner(device), kernel);
}

static Status build(Device *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_ok();
}

static const Backing *backing(Device *device) { return &own(device)->backing; }

static uintptr_t take_addresses(PlanDevice *plan, int64_t bytes) {
  uintptr_t address = plan->next_address;
  uintptr_t step = ((uintptr_t)bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  /* A gap keeps neighbours apart, as separate segments are. */
  plan->next_address += step + alignment_bytes;
  return address;
}

static Status commit(void *context, uintptr_t address, int64_t bytes) {
  PlanDevice *plan = context;
  (void)address;
  if (plan->capacity_bytes > 0 && bytes > plan->capacity_bytes - plan->reserved_bytes)
    return vl_error(VL_OUT_OF_MEMORY, "%s: %" PRId64 " bytes asked for, %" PRId64 " of %" PRId64 " reserved",
                    plan->name, bytes, plan->reserved_bytes, plan->capacity_bytes);
  plan->reserved_bytes += bytes;
  return vl_ok();
}

static void decommit(void *context, uintptr_t address, int64_t bytes) {
  PlanDevice *plan = context;
  (void)address;
  plan->reserved_bytes -= bytes;
}

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  VL_TRY(commit(context, 0, bytes));
  *address = take_addresses(context, bytes);
  return vl_ok();
}

static Status reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address) {
  (void)granule_bytes;
  *address = take_addresses(context, bytes);
  return vl_ok();
}

static void release_addresses(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)address;
  (void)bytes;
}

static Status move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  (void)context;
  (void)to;
  (void)from;
  (void)bytes;
  return vl_ok();
}

static Status upload(Device *device, const Storage *storage, const void *host, uintptr_t address) {
  (void)device;
  (void)storage;
  (void)host;
  (void)address;
  return vl_ok();
}

static Status download(Device *device, const Storage *storage, uintptr_t address, void *host) {
  (void)address;
  (void)host;
  return vl_error(VL_UNSUPPORTED, "%s computes nothing: %s has no values", own(device)->name, storage->name);
}

static Status launch(Device *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  PlanDevice *plan = own(device);
  (void)inputs;
  (void)outputs;
  (void)workspace;
  (void)context;
  if (plan->interface.launch_ns) plan->launches_ns += plan->interface.launch_ns(kernel);
  return vl_ok();
}

static Status synchronize(Device *device) {
  (void)device;
  return vl_ok();
}

/* The tier's end is the heap's capacity to set: what a host has beside the device is no part of a profile. */
static Status offload_reserve(void *context, int64_t bytes, uintptr_t *address) {
  PlanDevice *plan = context;
  *address = plan->next_address;
  plan->next_address += ((uintptr_t)bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  return vl_ok();
}

static void offload_release(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)address;
  (void)bytes;
}

static Status offload_open(Device *device, const Backing **backing) {
  *backing = &own(device)->offload_backing;
  return vl_ok();
}

/* An event is the time its copy ends. */
static Status offload_copy(Device *device, bool out, uintptr_t address, uintptr_t tier_address, int64_t bytes,
                           uint64_t *event) {
  PlanDevice *plan = own(device);
  (void)out;
  (void)address;
  (void)tier_address;
  if (plan->copies_ns < plan->launches_ns) plan->copies_ns = plan->launches_ns;
  if (plan->host_bytes_per_s > 0) plan->copies_ns += (int64_t)(1e9 * (double)bytes / plan->host_bytes_per_s);
  *event = (uint64_t)plan->copies_ns;
  return vl_ok();
}

static Status offload_wait(Device *device, uint64_t event) {
  PlanDevice *plan = own(device);
  int64_t late_ns = (int64_t)event - plan->launches_ns;
  if (late_ns <= 0) return vl_ok();
  plan->launches_ns += late_ns;
  plan->stall_ns += late_ns;
  return vl_ok();
}

static int64_t offload_stall_ns(Device *device) {
  PlanDevice *plan = own(device);
  int64_t stall_ns = plan->stall_ns;
  plan->stall_ns = 0;
  return plan->host_bytes_per_s > 0 ? stall_ns : -1;
}

static int64_t driver_bytes(Device *device) {
  (void)device;
  return -1;
}

static int64_t driver_peak_bytes(Device *device, bool reset) {
  (void)device;
  (void)reset;
  return -1;
}

static void close_device(Device *device) {
  vl_device_close(&own(device)->inner);
  free(own(device));
}

Status vl_plan_device_create(Device *wrapped, const char *name, int64_t capacity_bytes, Device **device) {
  *device = NULL;
  if (capacity_bytes < 0)
    return vl_error(VL_INVALID, "%s: a capacity of %" PRId64 " bytes; accepted: 0 (no limit) or more", name,
                    capacity_bytes);
  PlanDevice *plan = vl_allocate(sizeof *plan);
  plan->interface = (DeviceInterface){
      .describe = describe,
      .supports = supports,
      .choose_layouts = choose_layouts,
      .storage_bytes = storage_bytes,
      .view_is_legal = view_is_legal,
      .layout_name = layout_name,
      .prepare = prepare,
      .workspace_bytes = wrapped->interface->workspace_bytes,
      .launch_ns = wrapped->interface->launch_ns,
      .implementation = wrapped->interface->implementation,
      .is_emulated = wrapped->interface->is_emulated,
      .kernel_destroy = kernel_destroy,
      .build = build,
      .backing = backing,
      .upload = upload,
      .download = download,
      .launch = launch,
      .synchronize = synchronize,
      .offload_open = offload_open,
      .offload_copy = offload_copy,
      .offload_wait = offload_wait,
      .offload_stall_ns = offload_stall_ns,
      .driver_bytes = driver_bytes,
      .driver_peak_bytes = driver_peak_bytes,
      .close = close_device,
  };
  plan->device.interface = &plan->interface;
  DeviceDescription description;
  wrapped->interface->describe(wrapped, &description);
  plan->host_bytes_per_s = description.host_bytes_per_s;
  plan->inner = wrapped;
  plan->capacity_bytes = capacity_bytes;
  plan->next_address = first_address;
  plan->backing = (Backing){.context = plan,
                            .reserve = reserve,
                            .release = decommit,
                            .reserve_addresses = reserve_addresses,
                            .release_addresses = release_addresses,
                            .commit = commit,
                            .decommit = decommit,
                            .move = move};
  plan->offload_backing = (Backing){.context = plan, .reserve = offload_reserve, .release = offload_release};
  snprintf(plan->name, sizeof plan->name, "%s", name);
  *device = &plan->device;
  return vl_ok();
}
