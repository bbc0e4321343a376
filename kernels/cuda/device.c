/* The cuda device: devices/device.h on the CUDA runtime. */
#include "kernels/cuda/addresses.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cupti.h"
#include "kernels/cuda/nvml.h"
#include "kernels/cuda/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CudaDevice *own(Device *device) { return (CudaDevice *)(void *)device; }

/* ---- Errors ----------------------------------------------------------------------------------------------- */

/* What usually stands behind the codes that a missing or mismatched driver gives. */
static const char *reason_of(cudaError_t error, int driver_version) {
  switch (error) {
  case cudaErrorInsufficientDriver: /* 35 */
    return driver_version == 0
               ? "no NVIDIA driver is loaded (libcuda.so.1 not found); install one, or start the "
                 "container with --gpus all"
               : "the driver is older than the runtime this module was built with; update the "
                 "driver or build with an older CUDA";
  case cudaErrorNoDevice: /* 100 */
    return "the driver sees no GPU: none is installed, or CUDA_VISIBLE_DEVICES or the container hides it";
  case cudaErrorSystemDriverMismatch: /* 803 */
    return "the kernel module and libcuda.so.1 are of different versions; reboot after a driver update";
  case cudaErrorSystemNotReady: /* 802 */ return "the fabric manager of this NVSwitch machine is not running";
  case cudaErrorNoKernelImageForDevice: /* 209 */
  case cudaErrorUnsupportedPtxVersion:  /* 222 */
    return "this module holds no code for this GPU; build with -DCMAKE_CUDA_ARCHITECTURES=native";
  case cudaErrorDevicesUnavailable: /* 46 */
    return "the GPU is in exclusive or prohibited compute mode, or in use";
  default: return "see the CUDA runtime documentation of this code";
  }
}

static void format_version(int version, char *text, size_t size) {
  if (version == 0) {
    snprintf(text, size, "none");
  } else {
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
  }
}

/* VL_ENVIRONMENT with the call, code, versions and reason. */
static Status environment_error(const char *call, cudaError_t error) {
  int driver = 0, runtime = 0;
  char driver_text[16], runtime_text[16];
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError(); /* a failed call must not be reported again by the next one */
  format_version(driver, driver_text, sizeof driver_text);
  format_version(runtime, runtime_text, sizeof runtime_text);
  return vl_error(VL_ENVIRONMENT,
                  "cuda: %s gave code %d (%s): %s. CUDA version of the driver: %s, of the runtime: %s", call,
                  (int)error, cudaGetErrorName(error), reason_of(error, driver), driver_text, runtime_text);
}

/* An error after the device was opened: the card or our own use of it is at fault. */
Status cuda_status(cudaError_t error, const char *call, const Node *node) {
  if (error == cudaSuccess) return vl_ok();
  (void)cudaGetLastError();
  return vl_error(error == cudaErrorMemoryAllocation ? VL_OUT_OF_MEMORY : VL_INTERNAL,
                  "cuda: %s gave code %d (%s): %s%s%s", call, (int)error, cudaGetErrorName(error),
                  cudaGetErrorString(error), node ? ", in " : "",
                  !node                           ? ""
                  : node->scope && node->scope[0] ? node->scope
                                                  : node->op->name);
}

/* ---- Describe --------------------------------------------------------------------------------------------- */

static void describe(const Device *device, DeviceDescription *description) {
  *description = ((const CudaDevice *)(const void *)device)->description;
}

static Status find_op(const Node *node, const CudaOp **op) {
  *op = cuda_op_find(node->op->name);
  if (*op) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "the cuda device has no kernel for %s yet (node in %s)", node->op->name,
                  node->scope == NULL || node->scope[0] == '\0' ? "no scope" : node->scope);
}

static Status supports(Device *device, const Node *node) {
  const CudaOp *op;
  VL_TRY(find_op(node, &op));
  return op->supports ? op->supports(own(device), node) : vl_ok();
}

static Status choose_layouts(Device *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  const CudaOp *op;
  VL_TRY(find_op(node, &op));
  return op->choose_layouts(own(device), node, inputs, outputs);
}

/* No layout pads. */
static int64_t storage_bytes(Device *device, LayoutId layout, const Storage *storage) {
  (void)device;
  (void)layout;
  return vl_dtype_bytes(storage->dtype, storage->elements);
}

/* Some channels of a sample are not together in channels last; whole samples are. */
static bool view_is_legal(Device *device, LayoutId layout, const Tensor *view) {
  (void)device;
  const Tensor *root = view->storage->root;
  return layout == LAYOUT_PLAIN || (root && vl_tensor_same_shape(view, root));
}

static const char *layout_name(Device *device, LayoutId layout) {
  (void)device;
  return layout == LAYOUT_PLAIN ? "plain" : layout == CUDA_CHANNELS_LAST ? "channels last" : "any";
}

static void kernel_destroy(Device *device, Kernel **kernel) {
  if (!*kernel) return;
  cuda_sequences_drop(own(device));
  if ((*kernel)->op->destroy) (*kernel)->op->destroy(own(device), *kernel);
  free((*kernel)->data);
  free(*kernel);
  *kernel = NULL;
}

static Status prepare(Device *device, const Node *node, const LayoutId *inputs, const LayoutId *outputs,
                      Kernel **kernel) {
  const CudaOp *op;
  *kernel = NULL;
  VL_TRY(find_op(node, &op));
  Kernel *made = vl_allocate(sizeof *made);
  made->device = own(device);
  made->op = op;
  made->node = node;
  snprintf(made->implementation, sizeof made->implementation, "own");
  for (int32_t i = 0; i < node->input_count; i++)
    made->inputs[i] = inputs[i];
  for (int32_t i = 0; i < node->output_count; i++)
    made->outputs[i] = outputs[i];
  Status status = op->prepare ? op->prepare(own(device), made) : vl_ok();
  if (status.code == VL_OK)
    *kernel = made;
  else
    kernel_destroy(device, &made);
  return status;
}

static int64_t workspace_bytes(const Kernel *kernel) { return kernel->workspace_bytes; }
static const char *implementation(const Kernel *kernel) { return kernel->implementation; }

/* ---- Execute ------------------------------------------------------------------------------------------------ */

static Status build(Device *device, Kernel *kernel) {
  return kernel->op->build ? kernel->op->build(own(device), kernel) : vl_ok();
}

static const Backing *backing(Device *device) { return &own(device)->backing; }

static Status wait_for_stream(CudaDevice *device) {
  return cuda_status(cudaStreamSynchronize(device->stream), "cudaStreamSynchronize", NULL);
}

/* The host's memory may be used again when this returns. */
static Status copy_and_wait(CudaDevice *device, void *to, const void *from, size_t bytes, bool to_card) {
  cuda_sequence_flush(device);
  VL_TRY(
      cuda_status(cudaMemcpyAsync(to, from, bytes, to_card ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                  device->stream),
                  to_card ? "cudaMemcpyAsync to the card" : "cudaMemcpyAsync to the host", NULL));
  return wait_for_stream(device);
}

static Status upload(Device *device, const Storage *storage, const void *host, uintptr_t address) {
  size_t bytes = (size_t)vl_dtype_bytes(storage->dtype, storage->elements);
  if (storage->layout == LAYOUT_PLAIN) return copy_and_wait(own(device), (void *)address, host, bytes, true);
  void *laid_out = vl_allocate(bytes);
  cuda_lay_out(storage, host, laid_out);
  Status status = copy_and_wait(own(device), (void *)address, laid_out, bytes, true);
  free(laid_out);
  return status;
}

static Status upload_staged(Device *device, const Storage *storage, const void *staged, uintptr_t address) {
  size_t bytes = (size_t)vl_dtype_bytes(storage->dtype, storage->elements);
  return copy_and_wait(own(device), (void *)address, staged, bytes, true);
}

static Status download(Device *device, const Storage *storage, uintptr_t address, void *host) {
  size_t bytes = (size_t)vl_dtype_bytes(storage->dtype, storage->elements);
  if (storage->layout == LAYOUT_PLAIN)
    return copy_and_wait(own(device), host, (const void *)address, bytes, false);
  void *laid_out = vl_allocate(bytes);
  Status status = copy_and_wait(own(device), laid_out, (const void *)address, bytes, false);
  if (status.code == VL_OK) cuda_host_from_layout(storage->layout, storage, laid_out, host);
  free(laid_out);
  return status;
}

Status cuda_launch_now(CudaDevice *device, StepSlots *slots, Kernel *kernel, const uintptr_t *inputs,
                       const uintptr_t *outputs, uintptr_t workspace, const LaunchContext *context) {
  CudaLaunch launch = {.inputs = inputs,
                       .outputs = outputs,
                       .workspace = workspace,
                       .stream = device->stream,
                       .fault = device->fault_address};
  cuda_ranges_enter(device, kernel->node);
  VL_TRY(cuda_slots_at(device, slots, context, &launch.step));
  return kernel->op->launch(kernel, &launch);
}

static Status launch(Device *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  CudaDevice *cuda = own(device);
  if (cuda_sequence_take(cuda, kernel, inputs, outputs, workspace, context)) return vl_ok();
  return cuda_launch_now(cuda, cuda->slots, kernel, inputs, outputs, workspace, context);
}

/* "0, 1, 2": where the element at `place` is. */
static void describe_place(const Tensor *tensor, int64_t place, char *text, size_t size) {
  int64_t stride = vl_tensor_elements(tensor);
  size_t used = 0;
  for (int32_t d = 0; d < tensor->rank && used < size; d++) {
    stride /= tensor->shape[d];
    used += (size_t)snprintf(text + used, size - used, "%s%lld", d == 0 ? "" : ", ",
                             (long long)(place / stride % tensor->shape[d]));
  }
}

static Status report_fault(CudaDevice *device) {
  CudaFault fault = *device->fault;
  memset(device->fault, 0, sizeof *device->fault);
  char place[80] = "";
  describe_place(fault.tensor, fault.place, place, sizeof place);
  return vl_error(VL_INVALID, "%s in %s: %s[%s] is %lld; must be within 0 and %lld", fault.node->op->name,
                  fault.node->scope, fault.tensor->name, place, (long long)fault.value,
                  (long long)(fault.below - 1));
}

static Status synchronize(Device *device) {
  CudaDevice *cuda = own(device);
  cuda_sequence_flush(cuda);
  cuda_ranges_end(cuda);
  VL_TRY(wait_for_stream(cuda));
  VL_TRY(cuda_offload_synchronize(cuda->offload));
  cuda->slots->used = 0;         /* everything queued has run */
  (void)cuda_driver_bytes(cuda); /* what libraries took meanwhile */
  return cuda->fault->raised ? report_fault(cuda) : vl_ok();
}

static int64_t driver_bytes(Device *device) { return cuda_driver_bytes(own(device)); }

/* Memory grows where the heap reserves, and where libraries do, between synchronizations: looked at there. */
static int64_t driver_peak_bytes(Device *device, bool reset) {
  CudaDevice *cuda = own(device);
  int64_t now = cuda_driver_bytes(cuda), peak = cuda->peak_bytes;
  if (reset) cuda->peak_bytes = now;
  return now < 0 ? -1 : peak;
}

static void read_card(Device *device, DeviceReadings *readings) {
  cuda_nvml_read(own(device)->nvml, readings);
}

static Status cross_check(Device *device, DeviceCrossCheck *check) {
  CudaDevice *cuda = own(device);
  if (!cuda->cross_check) return vl_error(VL_INVALID, "cuda: the device was not opened for a cross-check");
  VL_TRY(synchronize(device));
  VL_TRY(cuda_cupti_read(check));
  check->own_bytes = cuda_own_bytes(cuda);
  return vl_ok();
}

/* The context is the process's, shared with other devices opened on this card: it stays. */
static void close_device(Device *device) {
  CudaDevice *cuda = own(device);
  if (cuda->stream) (void)cudaStreamSynchronize(cuda->stream);
  if (cuda->cross_check) cuda_cupti_close();
  cuda_offload_close(&cuda->offload);
  cuda_cudnn_plans_close(&cuda->convolutions);
  cuda_libraries_close(&cuda->libraries);
  cuda_sequences_close(cuda);
  cuda_ranges_close(cuda);
  if (cuda->slots) cuda_slots_close(cuda->slots);
  free(cuda->slots);
  cuda_addresses_close(&cuda->addresses);
  cuda_nvml_close(&cuda->nvml);
  if (cuda->pool) (void)cudaMemPoolDestroy(cuda->pool);
  (void)cudaFree(cuda->bounce);
  (void)cudaFreeHost(cuda->fault);
  if (cuda->stream) (void)cudaStreamDestroy(cuda->stream);
  free(cuda);
}

/* ---- Opening ---------------------------------------------------------------------------------------------- */

static const DeviceInterface cuda_interface = {
    .describe = describe,
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
    .staging_obtain = cuda_staging_obtain,
    .staging_release = cuda_staging_release,
    .lay_out = cuda_lay_out,
    .upload_staged = upload_staged,
    .window_add = cuda_window_add,
    .launch = launch,
    .synchronize = synchronize,
    .sequence_begin = cuda_sequence_begin,
    .sequence_end = cuda_sequence_end,
    .graphs = cuda_sequence_graphs,
    .offload_open = cuda_offload_open,
    .offload_copy = cuda_offload_copy,
    .offload_wait = cuda_offload_wait,
    .offload_stall_ns = cuda_offload_stall_ns,
    .driver_bytes = driver_bytes,
    .driver_peak_bytes = driver_peak_bytes,
    .read = read_card,
    .cross_check = cross_check,
    .close = close_device,
};

/* Fills the description of card 0 of those visible and proves that it runs our code. */
static Status open_card(CudaDevice *cuda) {
  int driver = 0, runtime = 0, right = 0;
  size_t free_bytes = 0, total_bytes = 0;
  struct cudaDeviceProp properties;
  cudaError_t error = cudaSetDevice(0);
  if (error != cudaSuccess) return environment_error("cudaSetDevice", error);
  error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) return environment_error("cudaGetDeviceProperties", error);
  error = (cudaError_t)vl_cuda_probe(&right);
  if (error != cudaSuccess) return environment_error("the first kernel", error);
  if (!right)
    return vl_error(VL_ENVIRONMENT, "cuda: a kernel on %s did not write what it should", properties.name);
  error = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (error != cudaSuccess) return environment_error("cudaMemGetInfo", error);

  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  char driver_text[16], runtime_text[16];
  format_version(driver, driver_text, sizeof driver_text);
  format_version(runtime, runtime_text, sizeof runtime_text);
  DeviceDescription *description = &cuda->description;
  snprintf(description->name, sizeof description->name, "cuda");
  snprintf(description->hardware, sizeof description->hardware, "%.*s", (int)sizeof description->hardware - 1,
           properties.name);
  const char *instance = strstr(properties.name, " MIG ");
  if (instance)
    snprintf(description->mig_profile, sizeof description->mig_profile, "%.31s", instance + strlen(" MIG "));
  snprintf(description->isa, sizeof description->isa, "sm_%d%d", properties.major, properties.minor);
  char *library = description->library;
  size_t used = (size_t)snprintf(library, sizeof description->library, "CUDA %s, driver %s, ", runtime_text,
                                 driver_text);
  cuda_libraries_describe(library + used, sizeof description->library - used);
  description->memory_bytes = (int64_t)total_bytes;
#ifndef VRAMLAB_HOST_MACHINE
  description->has_time = true; /* the host machine's is nobody's */
#endif
  description->has_tf32 = properties.major >= 8;
  description->has_trials = true;
  cuda->major = properties.major;
  cuda->minor = properties.minor;
  cuda->multiprocessors = properties.multiProcessorCount;
  cuda->shared_bytes = (int64_t)properties.sharedMemPerBlockOptin;
  cuda->used_at_open_bytes = (int64_t)(total_bytes - free_bytes);
  return vl_ok();
}

enum { STEP_SLOTS = 256 }; /* distinct contexts between two synchronizations, before launches wait */

static Status open_resources(CudaDevice *cuda) {
  VL_TRY(cuda_status(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags", NULL));
  VL_TRY(cuda_status(cudaHostAlloc((void **)&cuda->fault, sizeof *cuda->fault, cudaHostAllocMapped),
                     "cudaHostAlloc", NULL));
  memset(cuda->fault, 0, sizeof *cuda->fault);
  VL_TRY(cuda_status(cudaHostGetDevicePointer((void **)&cuda->fault_address, cuda->fault, 0),
                     "cudaHostGetDevicePointer", NULL));
  cuda->slots = vl_allocate(sizeof *cuda->slots);
  VL_TRY(cuda_slots_open(cuda->slots, STEP_SLOTS));
  char pci_bus_id[32];
  if (cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, 0) == cudaSuccess)
    cuda->nvml = cuda_nvml_open(pci_bus_id);
  cuda_nvml_driver(cuda->nvml, cuda->description.driver, sizeof cuda->description.driver);
  cuda->addresses = cuda_addresses_open();
  cuda->backing = cuda_backing(cuda);
  return vl_ok();
}

/* The module's one exported symbol: DeviceOpenFunction of devices/device.h. */
Status vl_module_device_open(uint64_t version, const DeviceOptions *options, Device **device);

Status vl_module_device_open(uint64_t version, const DeviceOptions *options, Device **device) {
  if (version != vl_device_interface())
    return vl_error(VL_ENVIRONMENT,
                    "the module of device %s was built from other headers than the program: build both again",
                    "cuda");
  /* Threads and profiles are not a card's; CUDA_VISIBLE_DEVICES chooses the card. */
  int count = 0;
  *device = NULL;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return environment_error("cudaGetDeviceCount", error);
  if (count == 0) return environment_error("cudaGetDeviceCount", cudaErrorNoDevice);

  CudaDevice *cuda = vl_allocate(sizeof *cuda);
  cuda->device.interface = &cuda_interface;
  Status status = open_card(cuda);
  cuda->tf32 = options->tf32 && cuda->description.has_tf32;
  cuda->deterministic = options->deterministic;
  cuda->timed = options->timed;
  /* After the probe and before what is held: what lives is what is traced. */
  if (status.code == VL_OK && options->cross_check) {
    status = cuda_cupti_open();
    cuda->cross_check = status.code == VL_OK;
  }
  if (status.code == VL_OK) status = open_resources(cuda);
  if (status.code == VL_OK)
    *device = &cuda->device;
  else
    close_device(&cuda->device);
  return status;
}
