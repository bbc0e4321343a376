/* What changes from step to step, handed to kernels through device memory. */
#include "kernels/cuda/cuda.h"

#include <string.h>

Status cuda_slots_open(StepSlots *slots, int32_t count) {
  size_t bytes = (size_t)count * sizeof(CudaStep);
  VL_TRY(
      cuda_status(cudaHostAlloc((void **)&slots->host, bytes, cudaHostAllocDefault), "cudaHostAlloc", NULL));
  slots->count = count;
  return cuda_status(cudaMalloc((void **)&slots->on_card, bytes), "cudaMalloc", NULL);
}

int64_t cuda_slots_bytes(const StepSlots *slots) { return slots->count * (int64_t)sizeof(CudaStep); }

void cuda_slots_close(StepSlots *slots) {
  (void)cudaFreeHost(slots->host);
  (void)cudaFree(slots->on_card);
  *slots = (StepSlots){0};
}

void cuda_step_set(CudaStep *step, const LaunchContext *context) {
  memset(step, 0, sizeof *step); /* compared as bytes */
  step->seed = context->seed;
  step->step = context->step;
  step->first_sample = context->first_sample;
  step->counted_rows = context->counted_rows;
  step->learning_rate = context->learning_rate;
}

Status cuda_slots_at(CudaDevice *device, StepSlots *slots, const LaunchContext *context,
                     const CudaStep **step) {
  CudaStep wanted;
  cuda_step_set(&wanted, context);
  int32_t last = slots->used - 1;
  if (last >= 0 && memcmp(&slots->host[last], &wanted, sizeof wanted) == 0) {
    *step = &slots->on_card[last];
    return vl_ok();
  }
  if (slots->used == slots->count) {
    VL_TRY(cuda_status(cudaStreamSynchronize(device->stream), "cudaStreamSynchronize", NULL));
    slots->used = 0;
  }
  int32_t next = slots->used++;
  slots->host[next] = wanted;
  *step = &slots->on_card[next];
  return cuda_status(cudaMemcpyAsync(&slots->on_card[next], &slots->host[next], sizeof wanted,
                                     cudaMemcpyHostToDevice, device->stream),
                     "cudaMemcpyAsync", NULL);
}
