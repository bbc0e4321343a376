/* kernels/cuda: the device of NVIDIA GPUs. It owns memory and copies; it has no kernels for ops yet, so
 * `supports` refuses each by name. Buffers are plain (dense, row-major). */
#include "devices/device.h"
#include "addresses.h"
#include "probe.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* How long launches waited for a copy: between two marks around the wait. */
typedef struct Stall {
  cudaEvent_t before, after;
} Stall;

/* Pinned host memory, and a stream of copies beside the launches, which are in the default stream. */
typedef struct Offload {
  Backing backing; /* context NULL: not opened */
  cudaStream_t copies;
  cudaEvent_t *events; /* made once, handed out from the front, all free again after a step */
  int32_t event_count, event_used;
  Stall *stalls; /* since the last call of offload_stall_ns */
  int32_t stall_count, stall_capacity;
} Offload;

typedef struct CudaDevice {
  Device device; /* first: a Device * is a CudaDevice * */
  Backing backing;
  CudaAddresses *addresses; /* NULL: the driver has no virtual memory management */
  void *bounce;             /* what moves over itself goes through it; NULL until then */
  Offload offload;
  DeviceDescription description;
  int64_t used_at_open_bytes; /* by everybody on the card, this process's context included */
} CudaDevice;

static CudaDevice *cuda_of(Device *device) { return (CudaDevice *)device; }

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
static Status execution_error(const char *call, cudaError_t error) {
  (void)cudaGetLastError();
  return vl_error(VL_INTERNAL, "cuda: %s gave code %d (%s): %s", call, (int)error, cudaGetErrorName(error),
                  cudaGetErrorString(error));
}

static Status no_kernel(const Node *node) {
  return vl_error(VL_UNSUPPORTED, "the cuda device has no kernel for %s yet (node in %s)", node->op->name,
                  node->scope == NULL || node->scope[0] == '\0' ? "no scope" : node->scope);
}

/* ---- Describe --------------------------------------------------------------------------------------------- */

static void describe(const Device *device, DeviceDescription *description) {
  *description = ((const CudaDevice *)device)->description;
}

static Status supports(Device *device, const Node *node) {
  (void)device;
  return no_kernel(node);
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
  (void)device;
  (void)layout; /* plain is the only one */
  return vl_dtype_bytes(storage->dtype, storage->elements);
}

static bool view_is_legal(Device *device, LayoutId layout, const Tensor *view) {
  (void)device;
  (void)view;
  return layout == LAYOUT_PLAIN;
}

static const char *layout_name(Device *device, LayoutId layout) {
  (void)device;
  return layout == LAYOUT_PLAIN ? "plain" : "any";
}

static Status prepare(Device *device, const Node *node, const LayoutId *inputs, const LayoutId *outputs,
                      Kernel **kernel) {
  (void)device;
  (void)inputs;
  (void)outputs;
  *kernel = NULL;
  return no_kernel(node);
}

/* `prepare` hands out no kernel, so the functions that take one are never reached with one. */
static int64_t workspace_bytes(const Kernel *kernel) {
  (void)kernel;
  return 0;
}

static const char *implementation(const Kernel *kernel) {
  (void)kernel;
  return "none";
}

static void kernel_destroy(Device *device, Kernel **kernel) {
  (void)device;
  *kernel = NULL;
}

static Status build(Device *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_error(VL_UNSUPPORTED, "the cuda device has no kernels to build yet");
}

static Status launch(Device *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)device;
  (void)kernel;
  (void)inputs;
  (void)outputs;
  (void)workspace;
  (void)context;
  return vl_error(VL_UNSUPPORTED, "the cuda device has no kernels to launch yet");
}

static Status synchronize(Device *device);

/* ---- Memory and copies ------------------------------------------------------------------------------------ */

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  (void)context;
  void *memory = NULL;
  size_t free_bytes = 0, total_bytes = 0;
  cudaError_t error = cudaMalloc(&memory, (size_t)bytes); /* commits: the card has no lazy pages */
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return vl_error(VL_OUT_OF_MEMORY,
                    "cuda: cudaMalloc of %lld bytes refused; the card has %zu of %zu bytes free",
                    (long long)bytes, free_bytes, total_bytes);
  }
  if (error != cudaSuccess) return execution_error("cudaMalloc", error);
  *address = (uintptr_t)memory;
  return vl_ok();
}

static void release(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)bytes;
  /* An error here is an earlier launch's, which synchronize reports. */
  (void)cudaFree((void *)address);
}

static Status reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address) {
  return cuda_addresses_reserve(((CudaDevice *)context)->addresses, bytes, granule_bytes, address);
}

static void release_addresses(void *context, uintptr_t address, int64_t bytes) {
  (void)bytes;
  cuda_addresses_release(((CudaDevice *)context)->addresses, address);
}

static Status commit(void *context, uintptr_t address, int64_t bytes) {
  return cuda_addresses_commit(((CudaDevice *)context)->addresses, address, bytes);
}

/* The driver does not wait for what still runs there. */
static void decommit(void *context, uintptr_t address, int64_t bytes) {
  (void)cudaDeviceSynchronize();
  cuda_addresses_decommit(((CudaDevice *)context)->addresses, address, bytes);
}

enum { BOUNCE_BYTES = 32 << 20 };

static Status copy_on_device(uintptr_t to, uintptr_t from, int64_t bytes) {
  cudaError_t error = cudaMemcpy((void *)to, (const void *)from, (size_t)bytes, cudaMemcpyDeviceToDevice);
  return error == cudaSuccess ? vl_ok() : execution_error("cudaMemcpy on the device", error);
}

/* Down over itself in parts: as long as the distance, or through a buffer where that is short. */
static Status move_down(CudaDevice *cuda, uintptr_t to, uintptr_t from, int64_t bytes) {
  int64_t distance = (int64_t)(from - to), part = distance < BOUNCE_BYTES ? BOUNCE_BYTES : distance;
  cudaError_t error = cuda->bounce ? cudaSuccess : cudaMalloc(&cuda->bounce, BOUNCE_BYTES);
  if (error != cudaSuccess) return execution_error("cudaMalloc of 32 MiB to move blocks through", error);
  for (int64_t at = 0; at < bytes; at += part) {
    int64_t size = bytes - at < part ? bytes - at : part;
    uintptr_t source = from + (uintptr_t)at;
    if (distance < size) {
      VL_TRY(copy_on_device((uintptr_t)cuda->bounce, source, size));
      source = (uintptr_t)cuda->bounce;
    }
    VL_TRY(copy_on_device(to + (uintptr_t)at, source, size));
  }
  return synchronize(&cuda->device);
}

static Status move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  CudaDevice *cuda = context;
  if (to < from && from - to < (uintptr_t)bytes) return move_down(cuda, to, from, bytes);
  VL_TRY(copy_on_device(to, from, bytes));
  return synchronize(&cuda->device); /* copies within the device do not block the host */
}

static const Backing *backing(Device *device) { return &cuda_of(device)->backing; }

static Status upload(Device *device, const Storage *storage, const void *host, uintptr_t address) {
  size_t bytes = (size_t)storage_bytes(device, LAYOUT_PLAIN, storage);
  cudaError_t error = cudaMemcpy((void *)address, host, bytes, cudaMemcpyHostToDevice);
  return error == cudaSuccess ? vl_ok() : execution_error("cudaMemcpy to the device", error);
}

static Status download(Device *device, const Storage *storage, uintptr_t address, void *host) {
  size_t bytes = (size_t)storage_bytes(device, LAYOUT_PLAIN, storage);
  cudaError_t error = cudaMemcpy(host, (const void *)address, bytes, cudaMemcpyDeviceToHost);
  return error == cudaSuccess ? vl_ok() : execution_error("cudaMemcpy to the host", error);
}

/* ---- Offload tier ------------------------------------------------------------------------------------------- */

static Status offload_reserve(void *context, int64_t bytes, uintptr_t *address) {
  (void)context;
  void *memory = NULL;
  cudaError_t error = cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return vl_error(VL_OUT_OF_MEMORY, "cuda: cudaHostAlloc of %lld bytes of pinned host memory refused",
                    (long long)bytes);
  }
  if (error != cudaSuccess) return execution_error("cudaHostAlloc", error);
  *address = (uintptr_t)memory;
  return vl_ok();
}

static void offload_release(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)bytes;
  (void)cudaFreeHost((void *)address);
}

static Status offload_open(Device *device, const Backing **backing) {
  Offload *offload = &cuda_of(device)->offload;
  *backing = &offload->backing;
  if (offload->backing.context) return vl_ok();
  cudaError_t error = cudaStreamCreateWithFlags(&offload->copies, cudaStreamNonBlocking);
  if (error != cudaSuccess) return execution_error("cudaStreamCreateWithFlags", error);
  offload->backing = (Backing){.context = device, .reserve = offload_reserve, .release = offload_release};
  return vl_ok();
}

static Status take_event(Offload *offload, cudaEvent_t *event) {
  if (offload->event_used == offload->event_count) {
    size_t count = (size_t)offload->event_count + 1;
    cudaError_t error = cudaEventCreate(event);
    if (error != cudaSuccess) return execution_error("cudaEventCreate", error);
    offload->events = vl_reallocate(offload->events, count * sizeof(cudaEvent_t));
    offload->events[offload->event_count++] = *event;
  }
  *event = offload->events[offload->event_used++];
  return vl_ok();
}

static Status record(Offload *offload, cudaStream_t stream, cudaEvent_t *event) {
  VL_TRY(take_event(offload, event));
  cudaError_t error = cudaEventRecord(*event, stream);
  return error == cudaSuccess ? vl_ok() : execution_error("cudaEventRecord", error);
}

static Status offload_copy(Device *device, bool out, uintptr_t address, uintptr_t tier_address, int64_t bytes,
                           uint64_t *event) {
  Offload *offload = &cuda_of(device)->offload;
  cudaEvent_t launched, copied;
  VL_TRY(record(offload, cudaStreamLegacy, &launched));
  cudaError_t error = cudaStreamWaitEvent(offload->copies, launched, 0);
  if (error != cudaSuccess) return execution_error("cudaStreamWaitEvent", error);
  error =
      cudaMemcpyAsync((void *)(out ? tier_address : address), (const void *)(out ? address : tier_address),
                      (size_t)bytes, out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, offload->copies);
  if (error != cudaSuccess) return execution_error("cudaMemcpyAsync", error);
  VL_TRY(record(offload, offload->copies, &copied));
  *event = (uint64_t)(uintptr_t)copied;
  return vl_ok();
}

static Status offload_wait(Device *device, uint64_t event) {
  Offload *offload = &cuda_of(device)->offload;
  Stall stall;
  VL_TRY(record(offload, cudaStreamLegacy, &stall.before));
  cudaError_t error = cudaStreamWaitEvent(cudaStreamLegacy, (cudaEvent_t)(uintptr_t)event, 0);
  if (error != cudaSuccess) return execution_error("cudaStreamWaitEvent", error);
  VL_TRY(record(offload, cudaStreamLegacy, &stall.after));
  if (offload->stall_count == offload->stall_capacity) {
    offload->stall_capacity = offload->stall_capacity ? 2 * offload->stall_capacity : 256;
    offload->stalls =
        vl_reallocate(offload->stalls, (size_t)offload->stall_capacity * sizeof *offload->stalls);
  }
  offload->stalls[offload->stall_count++] = stall;
  return vl_ok();
}

/* What an event takes itself, a few microseconds, is in it. */
static int64_t offload_stall_ns(Device *device) {
  Offload *offload = &cuda_of(device)->offload;
  double total_ms = 0.0;
  for (int32_t i = 0; i < offload->stall_count; i++) {
    float ms = 0.0F;
    if (cudaEventElapsedTime(&ms, offload->stalls[i].before, offload->stalls[i].after) == cudaSuccess)
      total_ms += (double)ms;
  }
  offload->stall_count = offload->event_used = 0;
  return (int64_t)(total_ms * 1e6);
}

static void offload_close(Offload *offload) {
  for (int32_t i = 0; i < offload->event_count; i++)
    (void)cudaEventDestroy(offload->events[i]);
  if (offload->backing.context) (void)cudaStreamDestroy(offload->copies);
  free(offload->events);
  free(offload->stalls);
}

static Status synchronize(Device *device) {
  (void)device;
  cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? vl_ok() : execution_error("cudaDeviceSynchronize", error);
}

/* What the card's use has grown by since opening. The runtime tells no process's own share, so what others
 * take meanwhile is in it; the context itself, there at opening, is not. */
static int64_t driver_bytes(Device *device) {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  return (int64_t)(total_bytes - free_bytes) - cuda_of(device)->used_at_open_bytes;
}

static int64_t driver_peak_bytes(Device *device, bool reset) {
  (void)device;
  (void)reset;
  return -1; /* the runtime keeps no high-water mark of cudaMalloc */
}

static void close_device(Device *device) {
  /* The context is the process's, shared with other devices opened on this card: it stays. */
  offload_close(&cuda_of(device)->offload);
  cuda_addresses_close(&cuda_of(device)->addresses);
  (void)cudaFree(cuda_of(device)->bounce);
  free(cuda_of(device));
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
  snprintf(description->isa, sizeof description->isa, "sm_%d%d", properties.major, properties.minor);
  snprintf(description->library, sizeof description->library, "CUDA runtime %s, driver %s", runtime_text,
           driver_text);
  description->memory_bytes = (int64_t)total_bytes;
  description->has_time = true;
  cuda->used_at_open_bytes = (int64_t)(total_bytes - free_bytes);
  return vl_ok();
}

/* The module's one exported symbol: DeviceOpenFunction of devices/device.h. */
Status vl_module_device_open(uint64_t version, const DeviceOptions *options, Device **device);

Status vl_module_device_open(uint64_t version, const DeviceOptions *options, Device **device) {
  if (version != vl_device_interface())
    return vl_error(VL_ENVIRONMENT,
                    "the module of device %s was built from other headers than the program: build both again",
                    "cuda");
  (void)options; /* threads and profiles are not a card's; CUDA_VISIBLE_DEVICES chooses the card */
  int count = 0;
  *device = NULL;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return environment_error("cudaGetDeviceCount", error);
  if (count == 0) return environment_error("cudaGetDeviceCount", cudaErrorNoDevice);

  CudaDevice *cuda = vl_allocate(sizeof *cuda);
  Status status = open_card(cuda);
  if (status.code != VL_OK) {
    free(cuda);
    return status;
  }
  cuda->backing = (Backing){.context = cuda, .reserve = reserve, .release = release, .move = move};
  cuda->addresses = cuda_addresses_open();
  if (cuda->addresses) {
    cuda->backing.reserve_addresses = reserve_addresses;
    cuda->backing.release_addresses = release_addresses;
    cuda->backing.commit = commit;
    cuda->backing.decommit = decommit;
  }
  cuda->device.interface = &cuda_interface;
  *device = &cuda->device;
  return vl_ok();
}
