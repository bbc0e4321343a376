/* The reference device: device.h over arrays of double. */
#include "tests/reference/ops.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A copy to or from the offload tier. */
typedef struct LateCopy {
  char *to;
  const char *from;
  size_t bytes;
} LateCopy;

typedef struct ReferenceDevice {
  Device base;
  Backing backing;
  LateCopy *copies; /* queued and not made */
  int32_t copy_count;
  uint64_t copied_count;
} ReferenceDevice;

struct Kernel {
  const Node *node;
};

static const LaunchContext start_context = {0};

static Compute find_compute(const char *name) {
  const ReferenceOp *const tables[] = {reference_attention_ops,     reference_convolution_ops,
                                       reference_normalization_ops, reference_elementwise_ops,
                                       reference_pooling_ops,       reference_product_ops,
                                       reference_shape_ops,         reference_adamw_8bit_ops,
                                       reference_dice_ops,          NULL};
  for (const ReferenceOp *const *table = tables; *table; table++) {
    for (const ReferenceOp *op = *table; op->name; op++) {
      if (strcmp(op->name, name) == 0) return op->compute;
    }
  }
  return NULL;
}

Status vl_reference_compute(const Node *node, double *const *inputs, double *const *outputs,
                            const LaunchContext *context) {
  Compute compute = find_compute(node->op->name);
  if (!compute) return vl_error(VL_UNSUPPORTED, "reference device: no op '%s'", node->op->name);
  const Arrays arrays = {inputs, outputs, context ? context : &start_context};
  compute(node, &arrays);
  return vl_ok();
}

/* ---- describe ---- */

static void describe(const Device *device, DeviceDescription *description) {
  (void)device;
  *description = (DeviceDescription){.threads = 1, .memory_bytes = 0};
  snprintf(description->name, sizeof description->name, "reference");
  snprintf(description->hardware, sizeof description->hardware, "double precision");
  snprintf(description->isa, sizeof description->isa, "C");
  snprintf(description->library, sizeof description->library, "none");
}

static Status supports(Device *device, const Node *node) {
  (void)device;
  if (find_compute(node->op->name)) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "reference device: no op '%s'", node->op->name);
}

static Status choose_layouts(Device *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = LAYOUT_PLAIN;
  return vl_ok();
}

static int64_t storage_bytes(Device *device, LayoutId layout, const Storage *storage) {
  (void)device, (void)layout;
  return storage->elements * (int64_t)sizeof(double);
}

/* An offset counts elements of the dtype, ours are doubles: only views from the start need no copy. */
static bool view_is_legal(Device *device, LayoutId layout, const Tensor *view) {
  (void)device, (void)layout;
  return view->offset == 0;
}

static const char *layout_name(Device *device, LayoutId layout) {
  (void)device;
  return layout == LAYOUT_PLAIN ? "plain" : "unknown";
}

static Status prepare(Device *device, const Node *node, const LayoutId *inputs, const LayoutId *outputs,
                      Kernel **kernel) {
  (void)inputs, (void)outputs;
  VL_TRY(supports(device, node));
  *kernel = vl_allocate(sizeof **kernel);
  (*kernel)->node = node;
  return vl_ok();
}

static int64_t workspace_bytes(const Kernel *kernel) {
  (void)kernel;
  return 0;
}

static const char *implementation(const Kernel *kernel) {
  (void)kernel;
  return "reference";
}

static void kernel_destroy(Device *device, Kernel **kernel) {
  (void)device;
  free(*kernel);
  *kernel = NULL;
}

/* ---- execute ---- */

static Status build(Device *device, Kernel *kernel) {
  (void)device, (void)kernel;
  return vl_ok();
}

/* What nobody has written must not pass for a value. */
static void spoil(uintptr_t address, int64_t bytes) {
  double *memory = (double *)address;
  for (int64_t i = 0; i < bytes / (int64_t)sizeof *memory; i++)
    memory[i] = (double)NAN;
}

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  (void)context;
  void *memory = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
  if (!memory) return vl_error(VL_OUT_OF_MEMORY, "reference device: no %lld bytes", (long long)bytes);
  *address = (uintptr_t)memory;
  spoil(*address, bytes);
  return vl_ok();
}

static void release(void *context, uintptr_t address, int64_t bytes) {
  (void)context, (void)bytes;
  free((void *)address);
}

static Status reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address) {
  (void)context, (void)granule_bytes;
  void *map = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED)
    return vl_error(VL_OUT_OF_MEMORY, "reference device: no %lld addresses", (long long)bytes);
  *address = (uintptr_t)map;
  return vl_ok();
}

static void release_addresses(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  munmap((void *)address, (size_t)bytes);
}

static Status commit(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  if (mprotect((void *)address, (size_t)bytes, PROT_READ | PROT_WRITE) != 0)
    return vl_error(VL_OUT_OF_MEMORY, "reference device: no %lld bytes", (long long)bytes);
  spoil(address, bytes);
  return vl_ok();
}

/* Whoever still reads there ends the test. */
static void decommit(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)mmap((void *)address, (size_t)bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Where blocks have moved from there is nothing to be read any more. */
static Status move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  (void)context;
  memmove((void *)to, (const void *)from, (size_t)bytes);
  int64_t distance = to < from ? (int64_t)(from - to) : (int64_t)(to - from);
  if (distance >= bytes) {
    spoil(from, bytes);
  } else if (to < from) {
    spoil(from + (uintptr_t)(bytes - distance), distance);
  }
  return vl_ok();
}

static const Backing *backing(Device *device) { return &((ReferenceDevice *)device)->backing; }

static Status upload(Device *device, const Storage *storage, const void *host, uintptr_t address) {
  (void)device;
  double *values = (double *)address;
  for (int64_t i = 0; i < storage->elements; i++)
    values[i] = vl_element_get(host, storage->dtype, i);
  return vl_ok();
}

static Status download(Device *device, const Storage *storage, uintptr_t address, void *host) {
  (void)device;
  const double *values = (const double *)address;
  for (int64_t i = 0; i < storage->elements; i++)
    vl_element_set(host, storage->dtype, i, values[i]);
  return vl_ok();
}

static Status launch(Device *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)device, (void)workspace;
  double *from[VL_MAX_INPUTS], *to[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < kernel->node->input_count; i++)
    from[i] = (double *)inputs[i];
  for (int32_t i = 0; i < kernel->node->output_count; i++)
    to[i] = (double *)outputs[i];
  return vl_reference_compute(kernel->node, from, to, context);
}

/* ---- The offload tier is memory like the device's. A copy is made as late as can be, when it is waited for:
 * whoever reads too early, or changes or frees its source too early, sees it. */

static Status offload_open(Device *device, const Backing **backing) {
  *backing = &((ReferenceDevice *)device)->backing;
  return vl_ok();
}

static Status offload_copy(Device *device, bool out, uintptr_t address, uintptr_t tier_address, int64_t bytes,
                           uint64_t *event) {
  ReferenceDevice *it = (ReferenceDevice *)device;
  it->copies = vl_reallocate(it->copies, ((size_t)it->copy_count + 1) * sizeof *it->copies);
  it->copies[it->copy_count++] = (LateCopy){(char *)(out ? tier_address : address),
                                            (const char *)(out ? address : tier_address), (size_t)bytes};
  *event = it->copied_count + (uint64_t)it->copy_count;
  return vl_ok();
}

static Status offload_wait(Device *device, uint64_t event) {
  ReferenceDevice *it = (ReferenceDevice *)device;
  int32_t made = 0;
  for (; it->copied_count < event; it->copied_count++, made++)
    memcpy(it->copies[made].to, it->copies[made].from, it->copies[made].bytes);
  it->copy_count -= made;
  if (made > 0) memmove(it->copies, it->copies + made, (size_t)it->copy_count * sizeof *it->copies);
  return vl_ok();
}

static int64_t offload_stall_ns(Device *device) {
  (void)device;
  return 0;
}

static Status synchronize(Device *device) {
  const ReferenceDevice *it = (const ReferenceDevice *)device;
  return offload_wait(device, it->copied_count + (uint64_t)it->copy_count);
}

static int64_t driver_bytes(Device *device) {
  (void)device;
  return -1;
}

static int64_t driver_peak_bytes(Device *device, bool reset) {
  (void)device, (void)reset;
  return -1;
}

static void close_device(Device *device) {
  free(((ReferenceDevice *)device)->copies);
  free(device);
}

static const DeviceInterface interface = {.describe = describe,
                                          .supports = supports,
                                          .choose_layouts = choose_layouts,
                                          .storage_bytes = storage_bytes,
                                          .view_is_legal = view_is_legal,
                                          .layout_name = layout_name,
                                          .prepare = prepare,
                                          .workspace_bytes = workspace_bytes,
                                          .implementation = implementation,
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
                                          .close = close_device};

Status vl_reference_device_create(Device **device) {
  ReferenceDevice *reference = vl_allocate(sizeof *reference);
  reference->base.interface = &interface;
  reference->backing = (Backing){.reserve = reserve,
                                 .release = release,
                                 .reserve_addresses = reserve_addresses,
                                 .release_addresses = release_addresses,
                                 .commit = commit,
                                 .decommit = decommit,
                                 .move = move};
  *device = &reference->base;
  return vl_ok();
}
