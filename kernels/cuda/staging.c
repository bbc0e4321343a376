/* Inputs on their way to the card: pinned memory of the host's, which a thread of its own may write while the
 * card computes, since nothing here but the copy asks anything of CUDA's streams. */
#include "kernels/cuda/cuda.h"

#include <string.h>

Status cuda_staging_obtain(Device *device, int64_t bytes, void **memory) {
  (void)device;
  cudaError_t error = cudaHostAlloc(memory, (size_t)bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return vl_error(VL_OUT_OF_MEMORY,
                    "cuda: cudaHostAlloc of %lld bytes of pinned host memory for inputs refused",
                    (long long)bytes);
  }
  return cuda_status(error, "cudaHostAlloc", NULL);
}

void cuda_staging_release(Device *device, void *memory) {
  (void)device;
  (void)cudaFreeHost(memory);
}

void cuda_lay_out(const Storage *storage, const void *host, void *staged) {
  if (storage->layout == LAYOUT_PLAIN)
    memcpy(staged, host, (size_t)vl_dtype_bytes(storage->dtype, storage->elements));
  else
    cuda_host_to_layout(storage->layout, storage, host, staged);
}
