/* The card's memory as the heap's Backing, and what the driver says is taken. */
#include "kernels/cuda/addresses.h"
#include "kernels/cuda/cuda.h"

int64_t cuda_driver_bytes(CudaDevice *device) {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  int64_t bytes = (int64_t)(total_bytes - free_bytes) - device->used_at_open_bytes;
  if (bytes > device->peak_bytes) device->peak_bytes = bytes;
  return bytes;
}

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  void *memory = NULL;
  size_t free_bytes = 0, total_bytes = 0;
  cudaError_t error = cudaMalloc(&memory, (size_t)bytes); /* commits: the card has no lazy pages */
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError(); /* handled: the next call must not report it */
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return vl_error(VL_OUT_OF_MEMORY,
                    "cuda: cudaMalloc of %lld bytes refused; the card has %zu of %zu bytes free",
                    (long long)bytes, free_bytes, total_bytes);
  }
  VL_TRY(cuda_status(error, "cudaMalloc", NULL));
  *address = (uintptr_t)memory;
  (void)cuda_driver_bytes(context);
  return vl_ok();
}

/* cudaFree waits for the card, so nothing still runs there. */
static void release(void *context, uintptr_t address, int64_t bytes) {
  cuda_sequence_flush(context);
  (void)bytes;
  if (cudaFree((void *)address) != cudaSuccess)
    (void)cudaGetLastError(); /* an earlier launch's, which synchronize reports */
}

static Status reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address) {
  return cuda_addresses_reserve(((CudaDevice *)context)->addresses, bytes, granule_bytes, address);
}

static void release_addresses(void *context, uintptr_t address, int64_t bytes) {
  CudaDevice *device = context;
  (void)bytes;
  cuda_sequence_flush(device);
  (void)cudaStreamSynchronize(device->stream);
  cuda_addresses_release(device->addresses, address);
}

static Status commit(void *context, uintptr_t address, int64_t bytes) {
  VL_TRY(cuda_addresses_commit(((CudaDevice *)context)->addresses, address, bytes));
  (void)cuda_driver_bytes(context);
  return vl_ok();
}

/* The driver does not wait for what still runs there. */
static void decommit(void *context, uintptr_t address, int64_t bytes) {
  CudaDevice *device = context;
  cuda_sequence_flush(device);
  (void)cudaDeviceSynchronize();
  cuda_addresses_decommit(device->addresses, address, bytes);
}

Status cuda_bounce_open(CudaDevice *device) {
  if (device->bounce) return vl_ok();
  return cuda_status(cudaMalloc(&device->bounce, CUDA_BOUNCE_BYTES),
                     "cudaMalloc of 32 MiB to move blocks through", NULL);
}

int64_t cuda_own_bytes(const CudaDevice *device) {
  return cuda_slots_bytes(device->slots) + cuda_sequences_bytes(device) +
         (device->bounce ? CUDA_BOUNCE_BYTES : 0);
}

static Status copy(CudaDevice *device, uintptr_t to, uintptr_t from, int64_t bytes) {
  cuda_sequence_flush(device);
  return cuda_status(cudaMemcpyAsync((void *)to, (const void *)from, (size_t)bytes, cudaMemcpyDeviceToDevice,
                                     device->stream),
                     "cudaMemcpyAsync on the device", NULL);
}

/* Down over itself in parts: as long as the distance, or through a buffer where that is short. */
static Status move_down(CudaDevice *device, uintptr_t to, uintptr_t from, int64_t bytes) {
  int64_t distance = (int64_t)(from - to), part = distance < CUDA_BOUNCE_BYTES ? CUDA_BOUNCE_BYTES : distance;
  VL_TRY(cuda_bounce_open(device));
  for (int64_t at = 0; at < bytes; at += part) {
    int64_t size = bytes - at < part ? bytes - at : part;
    uintptr_t source = from + (uintptr_t)at;
    if (distance < size) {
      VL_TRY(copy(device, (uintptr_t)device->bounce, source, size));
      source = (uintptr_t)device->bounce;
    }
    VL_TRY(copy(device, to + (uintptr_t)at, source, size));
  }
  return vl_ok();
}

static Status move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  CudaDevice *device = context;
  bool overlaps = to < from && from - to < (uintptr_t)bytes;
  VL_TRY(overlaps ? move_down(device, to, from, bytes) : copy(device, to, from, bytes));
  return cuda_status(cudaStreamSynchronize(device->stream), "cudaStreamSynchronize", NULL);
}

Backing cuda_backing(CudaDevice *device) {
  Backing backing = {.context = device, .reserve = reserve, .release = release, .move = move};
  if (!device->addresses) return backing;
  backing.reserve_addresses = reserve_addresses;
  backing.release_addresses = release_addresses;
  backing.commit = commit;
  backing.decommit = decommit;
  return backing;
}
