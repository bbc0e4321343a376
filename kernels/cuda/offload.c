/* Pinned host memory, and a stream of copies beside the stream of launches. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

/* How long launches waited for a copy: between two marks around the wait. */
typedef struct Stall {
  cudaEvent_t before, after;
} Stall;

struct CudaOffload {
  Backing backing;
  cudaStream_t copies;
  cudaEvent_t *events; /* made once, handed out from the front, all free again after a step */
  int32_t event_count, event_used;
  Stall *stalls; /* since the last call of cuda_offload_stall_ns */
  int32_t stall_count, stall_capacity;
};

static CudaDevice *own(Device *device) { return (CudaDevice *)(void *)device; }

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  (void)context;
  void *memory = NULL;
  cudaError_t error = cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return vl_error(VL_OUT_OF_MEMORY, "cuda: cudaHostAlloc of %lld bytes of pinned host memory refused",
                    (long long)bytes);
  }
  VL_TRY(cuda_status(error, "cudaHostAlloc", NULL));
  *address = (uintptr_t)memory;
  return vl_ok();
}

static void release(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)bytes;
  (void)cudaFreeHost((void *)address);
}

Status cuda_offload_open(Device *device, const Backing **backing) {
  CudaDevice *cuda = own(device);
  if (!cuda->offload) {
    CudaOffload *offload = vl_allocate(sizeof *offload);
    Status status = cuda_status(cudaStreamCreateWithFlags(&offload->copies, cudaStreamNonBlocking),
                                "cudaStreamCreateWithFlags", NULL);
    if (status.code != VL_OK) {
      free(offload);
      return status;
    }
    offload->backing = (Backing){.context = device, .reserve = reserve, .release = release};
    cuda->offload = offload;
  }
  *backing = &cuda->offload->backing;
  return vl_ok();
}

static Status record(CudaOffload *offload, cudaStream_t stream, cudaEvent_t *event) {
  if (offload->event_used == offload->event_count) {
    size_t count = (size_t)offload->event_count + 1;
    VL_TRY(cuda_status(cudaEventCreate(event), "cudaEventCreate", NULL));
    offload->events = vl_reallocate(offload->events, count * sizeof(cudaEvent_t));
    offload->events[offload->event_count++] = *event;
  }
  *event = offload->events[offload->event_used++];
  return cuda_status(cudaEventRecord(*event, stream), "cudaEventRecord", NULL);
}

Status cuda_offload_copy(Device *device, bool out, uintptr_t address, uintptr_t tier_address, int64_t bytes,
                         uint64_t *event) {
  CudaOffload *offload = own(device)->offload;
  cudaEvent_t launched, copied;
  cuda_sequence_flush(own(device));
  VL_TRY(record(offload, own(device)->stream, &launched));
  VL_TRY(cuda_status(cudaStreamWaitEvent(offload->copies, launched, 0), "cudaStreamWaitEvent", NULL));
  VL_TRY(cuda_status(cudaMemcpyAsync((void *)(out ? tier_address : address),
                                     (const void *)(out ? address : tier_address), (size_t)bytes,
                                     out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, offload->copies),
                     "cudaMemcpyAsync", NULL));
  VL_TRY(record(offload, offload->copies, &copied));
  *event = (uint64_t)(uintptr_t)copied;
  return vl_ok();
}

Status cuda_offload_wait(Device *device, uint64_t event) {
  CudaOffload *offload = own(device)->offload;
  cudaStream_t stream = own(device)->stream;
  Stall stall;
  cuda_sequence_flush(own(device));
  VL_TRY(record(offload, stream, &stall.before));
  VL_TRY(cuda_status(cudaStreamWaitEvent(stream, (cudaEvent_t)(uintptr_t)event, 0), "cudaStreamWaitEvent",
                     NULL));
  VL_TRY(record(offload, stream, &stall.after));
  if (offload->stall_count == offload->stall_capacity) {
    offload->stall_capacity = offload->stall_capacity ? 2 * offload->stall_capacity : 256;
    offload->stalls =
        vl_reallocate(offload->stalls, (size_t)offload->stall_capacity * sizeof *offload->stalls);
  }
  offload->stalls[offload->stall_count++] = stall;
  return vl_ok();
}

Status cuda_offload_synchronize(CudaOffload *offload) {
  return offload ? cuda_status(cudaStreamSynchronize(offload->copies), "cudaStreamSynchronize", NULL)
                 : vl_ok();
}

/* What an event takes itself, a few microseconds, is in it. */
int64_t cuda_offload_stall_ns(Device *device) {
  CudaOffload *offload = own(device)->offload;
  double total_ms = 0.0;
  if (!offload) return 0;
  for (int32_t i = 0; i < offload->stall_count; i++) {
    float ms = 0.0F;
    if (cudaEventElapsedTime(&ms, offload->stalls[i].before, offload->stalls[i].after) == cudaSuccess)
      total_ms += (double)ms;
    else
      (void)cudaGetLastError(); /* recorded into a graph: it has no time of its own */
  }
  offload->stall_count = offload->event_used = 0;
  return (int64_t)(total_ms * 1e6);
}

void cuda_offload_close(CudaOffload **offload) {
  if (!*offload) return;
  (void)cudaStreamSynchronize((*offload)->copies);
  for (int32_t i = 0; i < (*offload)->event_count; i++)
    (void)cudaEventDestroy((*offload)->events[i]);
  (void)cudaStreamDestroy((*offload)->copies);
  free((*offload)->events);
  free((*offload)->stalls);
  free(*offload);
  *offload = NULL;
}
