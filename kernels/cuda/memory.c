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

/* ---- The driver's pool ------------------------------------------------------------------------------------ */

static bool has_pools(void) {
  int card = 0, supported = 0;
  if (cudaGetDevice(&card) == cudaSuccess &&
      cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, card) == cudaSuccess)
    return supported != 0;
  (void)cudaGetLastError();
  return false;
}

/* Of our own, since libraries may use the device's default one. It keeps what is freed until it is trimmed.
 */
static Status open_pool(CudaDevice *device) {
  if (device->pool) return vl_ok();
  struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                        .handleTypes = cudaMemHandleTypeNone,
                                        .location = {.type = cudaMemLocationTypeDevice}};
  uint64_t threshold = UINT64_MAX;
  VL_TRY(cuda_status(cudaGetDevice(&properties.location.id), "cudaGetDevice", NULL));
  VL_TRY(cuda_status(cudaMemPoolCreate(&device->pool, &properties), "cudaMemPoolCreate", NULL));
  return cuda_status(cudaMemPoolSetAttribute(device->pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                     "cudaMemPoolSetAttribute", NULL);
}

static int64_t pool_reserved_bytes(void *context) {
  CudaDevice *device = context;
  uint64_t bytes = 0;
  if (device->pool &&
      cudaMemPoolGetAttribute(device->pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess)
    (void)cudaGetLastError(); /* an earlier launch's, which synchronize reports */
  if ((int64_t)bytes > device->pool_bytes) (void)cuda_driver_bytes(device);
  device->pool_bytes = (int64_t)bytes;
  return device->pool_bytes;
}

/* The block is there for what is queued from now on, and so for launches that are still collected. */
static Status pool_obtain(void *context, int64_t bytes, uintptr_t *address) {
  CudaDevice *device = context;
  void *memory = NULL;
  VL_TRY(open_pool(device));
  cudaError_t error = cudaMallocFromPoolAsync(&memory, (size_t)bytes, device->pool, device->stream);
  if (error == cudaErrorMemoryAllocation) {
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaGetLastError(); /* handled: the next call must not report it */
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return vl_error(VL_OUT_OF_MEMORY,
                    "cuda: cudaMallocFromPoolAsync of %lld bytes refused; the card has %zu of %zu bytes free",
                    (long long)bytes, free_bytes, total_bytes);
  }
  VL_TRY(cuda_status(error, "cudaMallocFromPoolAsync", NULL));
  *address = (uintptr_t)memory;
  (void)pool_reserved_bytes(device);
  return vl_ok();
}

/* The block goes back where the stream is now, so launches that are still collected, and may use it, are
 * queued before. A sequence in which blocks go back is thus launched piece by piece and never captured, which
 * a graph would ask for the same addresses in every step anyway: no pool promises them. */
static void pool_release(void *context, uintptr_t address, int64_t bytes) {
  CudaDevice *device = context;
  (void)bytes;
  cuda_sequence_flush(device);
  if (cudaFreeAsync((void *)address, device->stream) != cudaSuccess)
    (void)cudaGetLastError(); /* an earlier launch's, which synchronize reports */
}

/* What the host has not seen being freed may stay in the pool. */
static void pool_trim(void *context) {
  CudaDevice *device = context;
  if (!device->pool) return;
  cuda_sequence_flush(device);
  (void)cudaStreamSynchronize(device->stream);
  if (cudaMemPoolTrimTo(device->pool, 0) != cudaSuccess) (void)cudaGetLastError();
}

/* ---- Moving ----------------------------------------------------------------------------------------------- */

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
  if (has_pools()) {
    backing.pool_obtain = pool_obtain;
    backing.pool_release = pool_release;
    backing.pool_reserved_bytes = pool_reserved_bytes;
    backing.pool_trim = pool_trim;
  }
  if (!device->addresses) return backing;
  backing.reserve_addresses = reserve_addresses;
  backing.release_addresses = release_addresses;
  backing.commit = commit;
  backing.decommit = decommit;
  return backing;
}
