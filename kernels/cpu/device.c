/* The cpu device: devices/device.h on oneDNN, its ops, and the memory in memory.c. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/emulate_f16.h"
#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CpuDevice *own(Device *device) { return (CpuDevice *)(void *)device; }
static const CpuDevice *own_const(const Device *device) { return (const CpuDevice *)(const void *)device; }

/* oneDNN reads the number of threads where a descriptor is made and where a primitive runs, from OpenMP's
 * per-thread setting, which another device of this process may have changed. */
static void use_threads(const CpuDevice *device) { omp_set_num_threads(device->threads); }

/* ---- Describe ------------------------------------------------------------------------------------------- */

static const char *isa_name(void) {
  switch (dnnl_get_effective_cpu_isa()) {
  case dnnl_cpu_isa_sse41: return "SSE4.1";
  case dnnl_cpu_isa_avx: return "AVX";
  case dnnl_cpu_isa_avx2: return "AVX2";
  case dnnl_cpu_isa_avx2_vnni: return "AVX2 VNNI";
  case dnnl_cpu_isa_avx2_vnni_2: return "AVX2 VNNI 2";
  case dnnl_cpu_isa_avx512_core: return "AVX-512";
  case dnnl_cpu_isa_avx512_core_vnni: return "AVX-512 VNNI";
  case dnnl_cpu_isa_avx512_core_bf16: return "AVX-512 BF16";
  case dnnl_cpu_isa_avx512_core_fp16: return "AVX-512 FP16";
  case dnnl_cpu_isa_avx512_core_amx: return "AVX-512 AMX";
  case dnnl_cpu_isa_avx512_core_amx_fp16: return "AVX-512 AMX FP16";
  default: return "unknown";
  }
}

static void read_cpu_model(char *text, size_t size) {
  snprintf(text, size, "unknown CPU");
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (!file) return;
  char line[256];
  while (fgets(line, sizeof line, file)) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || !colon) continue;
    line[strcspn(line, "\n")] = '\0';
    snprintf(text, size, "%s", colon + 1 + (colon[1] == ' '));
    break;
  }
  fclose(file);
}

static void describe(const Device *device, DeviceDescription *description) {
  const dnnl_version_t *version = dnnl_version();
  memset(description, 0, sizeof *description);
  snprintf(description->name, sizeof description->name, "cpu");
  snprintf(description->hardware, sizeof description->hardware, "%s", own_const(device)->model);
  snprintf(description->isa, sizeof description->isa, "%s", isa_name());
  snprintf(description->library, sizeof description->library, "oneDNN %d.%d.%d", version->major,
           version->minor, version->patch);
  description->threads = own_const(device)->threads;
  description->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGE_SIZE);
  description->predicts = false;
  description->has_time = true;
}

static Status find_op(const Node *node, const CpuOp **op) {
  *op = cpu_needs_f16(node) ? &cpu_op_emulate_f16 : cpu_op_find(node->op->name);
  if (*op) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cpu: no kernel for %s (%s)", node->op->name,
                  node->scope ? node->scope : "?");
}

static Status supports(Device *device, const Node *node) {
  const CpuOp *op;
  VL_TRY(find_op(node, &op));
  return op->supports ? op->supports(own(device), node) : vl_ok();
}

static Status choose_layouts(Device *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  const CpuOp *op;
  VL_TRY(find_op(node, &op));
  use_threads(own(device));
  return op->choose_layouts(own(device), node, inputs, outputs);
}

static int64_t storage_bytes(Device *device, LayoutId layout, const Storage *storage) {
  if (layout == LAYOUT_PLAIN || layout == LAYOUT_ANY || !storage->root)
    return vl_dtype_bytes(storage->dtype, storage->elements);
  return vl_dtype_bytes(storage->dtype, cpu_padded_elements(own(device), layout, storage->root));
}

static bool view_is_legal(Device *device, LayoutId layout, const Tensor *view) {
  const Tensor *root = view->storage->root;
  if (layout == LAYOUT_PLAIN) return true;
  return root && (vl_tensor_same_shape(view, root) || cpu_is_channel_part(own(device), layout, root, view));
}

static const char *layout_name(Device *device, LayoutId layout) {
  return cpu_layout_name(own(device), layout);
}

static void kernel_destroy(Device *device, Kernel **kernel) {
  if (!*kernel) return;
  if ((*kernel)->op->destroy) (*kernel)->op->destroy(own(device), *kernel);
  free((*kernel)->data);
  free(*kernel);
  *kernel = NULL;
}

static Status prepare(Device *device, const Node *node, const LayoutId *inputs, const LayoutId *outputs,
                      Kernel **kernel) {
  const CpuOp *op;
  *kernel = NULL;
  VL_TRY(find_op(node, &op));
  use_threads(own(device));
  Kernel *made = vl_allocate(sizeof *made);
  made->op = op;
  made->node = node;
  made->threads = own(device)->threads;
  made->stream = own(device)->stream;
  snprintf(made->implementation, sizeof made->implementation, "own");
  for (int32_t i = 0; i < node->input_count; ++i)
    made->inputs[i] = inputs[i];
  for (int32_t i = 0; i < node->output_count; ++i)
    made->outputs[i] = outputs[i];
  Status status = op->prepare(own(device), made);
  if (status.code == VL_OK)
    *kernel = made;
  else
    kernel_destroy(device, &made);
  return status;
}

static int64_t workspace_bytes(const Kernel *kernel) { return kernel->workspace_bytes; }
static const char *implementation(const Kernel *kernel) { return kernel->implementation; }
static bool is_emulated(const Kernel *kernel) { return kernel->op == &cpu_op_emulate_f16; }

/* ---- Execute ------------------------------------------------------------------------------------------------ */

static Status build(Device *device, Kernel *kernel) {
  if (!kernel->op->build) return vl_ok();
  use_threads(own(device));
  return kernel->op->build(own(device), kernel);
}

static const Backing *backing(Device *device) { return &own(device)->backing; }

static Status convert_i64(CpuDevice *device, const Storage *storage, LayoutId from_layout, LayoutId to_layout,
                          const void *from, void *to) {
  ChannelView from_view, to_view;
  VL_TRY(cpu_channel_view(device, from_layout, storage->root, &from_view));
  VL_TRY(cpu_channel_view(device, to_layout, storage->root, &to_view));
  cpu_copy_i64(&from_view, &to_view, from, to);
  return vl_ok();
}

static Status convert(CpuDevice *device, const Storage *storage, LayoutId from_layout, LayoutId to_layout,
                      const void *from, void *to);

/* The library moves f16 on few machines only: by way of f32, which changes no number. */
static Status convert_f16(CpuDevice *device, const Storage *storage, LayoutId from_layout, LayoutId to_layout,
                          const void *from, void *to) {
  Storage wide = *storage;
  Tensor root = *storage->root;
  root.dtype = wide.dtype = DTYPE_F32;
  int64_t from_count = cpu_padded_elements(device, from_layout, storage->root);
  int64_t to_count = cpu_padded_elements(device, to_layout, storage->root);
  wide.root = &root;
  float *wide_from = vl_allocate((size_t)from_count * sizeof *wide_from);
  float *wide_to = vl_allocate((size_t)to_count * sizeof *wide_to);
  cpu_f32_from_f16(wide_from, from, from_count);
  Status status = convert(device, &wide, from_layout, to_layout, wide_from, wide_to);
  if (status.code == VL_OK) cpu_f16_from_f32(to, wide_to, to_count);
  free(wide_from);
  free(wide_to);
  return status;
}

/* Converts a whole storage between host order and its layout. */
static Status convert(CpuDevice *device, const Storage *storage, LayoutId from_layout, LayoutId to_layout,
                      const void *from, void *to) {
  if (storage->dtype == DTYPE_I64) return convert_i64(device, storage, from_layout, to_layout, from, to);
  if (storage->dtype == DTYPE_F16) return convert_f16(device, storage, from_layout, to_layout, from, to);
  PrimitiveSpec spec;
  Primitive *primitive;
  cpu_reorder_spec(device, storage->root, from_layout, storage->root, to_layout, &spec);
  VL_TRY(cpu_primitive_find(device, &spec, NULL, &primitive));
  VL_TRY(cpu_primitive_compile(primitive, NULL));
  void *handles[] = {(void *)(uintptr_t)from, to, NULL};
  if (primitive->scratchpad_bytes > 0) handles[2] = vl_allocate((size_t)primitive->scratchpad_bytes);
  const dnnl_query_t queries[] = {dnnl_query_src_md, dnnl_query_dst_md, dnnl_query_scratchpad_md};
  dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, NULL}, {DNNL_ARG_TO, NULL}, {DNNL_ARG_SCRATCHPAD, NULL}};
  int count = primitive->scratchpad_bytes > 0 ? 3 : 2;
  dnnl_status_t status = dnnl_success;
  for (int i = 0; i < count && status == dnnl_success; ++i)
    status = dnnl_memory_create(&arguments[i].memory,
                                dnnl_primitive_desc_query_md(primitive->descriptor, queries[i], 0),
                                device->engine, handles[i]);
  if (status == dnnl_success)
    status = dnnl_primitive_execute(primitive->primitive, device->stream, count, arguments);
  for (int i = 0; i < count; ++i)
    if (arguments[i].memory) dnnl_memory_destroy(arguments[i].memory);
  free(handles[2]);
  return cpu_dnnl_status(status, "conversion", NULL);
}

static Status check_layout(const CpuDevice *device, const Storage *storage) {
  (void)device;
  if (storage->layout >= LAYOUT_PLAIN && storage->root) return vl_ok();
  return vl_error(VL_INTERNAL, "cpu: storage %s has no layout yet", storage->name);
}

static Status upload(Device *device, const Storage *storage, const void *host, uintptr_t address) {
  VL_TRY(check_layout(own(device), storage));
  use_threads(own(device));
  if (storage->layout != LAYOUT_PLAIN)
    return convert(own(device), storage, LAYOUT_PLAIN, storage->layout, host, (void *)address);
  memcpy((void *)address, host, (size_t)vl_dtype_bytes(storage->dtype, storage->elements));
  return vl_ok();
}

static void *host_view(Device *device, uintptr_t address) {
  (void)device;
  return (void *)address;
}

static Status download(Device *device, const Storage *storage, uintptr_t address, void *host) {
  VL_TRY(check_layout(own(device), storage));
  use_threads(own(device));
  if (storage->layout != LAYOUT_PLAIN)
    return convert(own(device), storage, storage->layout, LAYOUT_PLAIN, (const void *)address, host);
  memcpy(host, (const void *)address, (size_t)vl_dtype_bytes(storage->dtype, storage->elements));
  return vl_ok();
}

static Status launch(Device *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  use_threads(own(device));
  return kernel->op->launch(kernel, inputs, outputs, workspace, context);
}

static Status synchronize(Device *device) {
  VL_TRY(cpu_dnnl_status(dnnl_stream_wait(own(device)->stream), "stream", NULL));
  return own(device)->offload ? cpu_offload_drain(own(device)->offload) : vl_ok();
}

static Status offload_open(Device *device, const Backing **backing) {
  CpuDevice *cpu = own(device);
  if (!cpu->offload) VL_TRY(cpu_offload_open(cpu->offload_directory, &cpu->offload));
  *backing = cpu_offload_backing(cpu->offload);
  return vl_ok();
}

/* A launch has ended when it returns: every copy begins after those before it. */
static Status offload_copy(Device *device, bool out, uintptr_t address, uintptr_t tier_address, int64_t bytes,
                           uint64_t *event) {
  *event = cpu_offload_copy(own(device)->offload, out, address, tier_address, bytes);
  return vl_ok();
}

static Status offload_wait(Device *device, uint64_t event) {
  return cpu_offload_wait(own(device)->offload, event);
}

static int64_t offload_stall_ns(Device *device) { return cpu_offload_stall_ns(own(device)->offload); }

static int64_t driver_bytes(Device *device) {
  (void)device;
  return cpu_resident_bytes();
}

static int64_t driver_peak_bytes(Device *device, bool reset) {
  (void)device;
  return cpu_resident_peak_bytes(reset);
}

static void close_device(Device *device) {
  CpuDevice *cpu = own(device);
  cpu_offload_close(&cpu->offload);
  free(cpu->offload_directory);
  cpu_primitives_destroy(&cpu->primitives);
  cpu_layouts_destroy(&cpu->layouts);
  if (cpu->attributes) dnnl_primitive_attr_destroy(cpu->attributes);
  if (cpu->stream) dnnl_stream_destroy(cpu->stream);
  if (cpu->engine) dnnl_engine_destroy(cpu->engine);
  free(cpu);
}

static const DeviceInterface interface = {
    .describe = describe,
    .supports = supports,
    .choose_layouts = choose_layouts,
    .storage_bytes = storage_bytes,
    .view_is_legal = view_is_legal,
    .layout_name = layout_name,
    .prepare = prepare,
    .workspace_bytes = workspace_bytes,
    .implementation = implementation,
    .is_emulated = is_emulated,
    .kernel_destroy = kernel_destroy,
    .build = build,
    .backing = backing,
    .upload = upload,
    .download = download,
    .host_view = host_view,
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

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

static Status open_library(CpuDevice *cpu) {
  /* Kernels hold their primitives: the library's own cache would keep those of finished programs. */
  VL_TRY(cpu_dnnl_status(dnnl_set_primitive_cache_capacity(0), "cache capacity", NULL));
  VL_TRY(cpu_dnnl_status(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0), "engine", NULL));
  VL_TRY(cpu_dnnl_status(dnnl_stream_create(&cpu->stream, cpu->engine, dnnl_stream_default_flags), "stream",
                         NULL));
  VL_TRY(cpu_dnnl_status(dnnl_primitive_attr_create(&cpu->attributes), "attributes", NULL));
  return cpu_dnnl_status(dnnl_primitive_attr_set_scratchpad_mode(cpu->attributes, dnnl_scratchpad_mode_user),
                         "scratchpad mode", NULL);
}

/* The module's only symbol; declared by DeviceOpenFunction in devices/device.h. */
Status vl_module_device_open(uint64_t version, const DeviceOptions *options, Device **device);

Status vl_module_device_open(uint64_t version, const DeviceOptions *options, Device **device) {
  if (version != vl_device_interface())
    return vl_error(VL_ENVIRONMENT,
                    "the module of device %s was built from other headers than the program: build both again",
                    "cpu");
  *device = NULL;
  int32_t processors = omp_get_num_procs();
  if (options->threads < 0 || options->threads > 4 * processors)
    return vl_error(VL_INVALID, "cpu: %d threads; accepted: 0 (all) to %d", options->threads, 4 * processors);
  CpuDevice *cpu = vl_allocate(sizeof *cpu);
  cpu->device.interface = &interface;
  cpu->threads = options->threads > 0 ? options->threads : processors;
  read_cpu_model(cpu->model, sizeof cpu->model);
  cpu->layouts = cpu_layouts_create();
  cpu->primitives = cpu_primitives_create();
  cpu->backing = cpu_backing();
  if (options->offload_directory) cpu->offload_directory = vl_copy_text(options->offload_directory);
  use_threads(cpu);
  Status status = open_library(cpu);
  if (status.code == VL_OK)
    *device = &cpu->device;
  else
    close_device(&cpu->device);
  return status;
}
