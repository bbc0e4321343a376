/* kernels/cuda: the bias of `linear` where it is f32 beside low-precision factors; private to the folder. */
#ifndef VRAMLAB_KERNELS_CUDA_LINEAR_BIAS_H
#define VRAMLAB_KERNELS_CUDA_LINEAR_BIAS_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the rounding of `count` numbers to bf16 or f16. */
cudaError_t cuda_round_bias(const float *bias, int64_t count, DType dtype, void *rounded,
                            cudaStream_t stream) VL_CHECKED;

#ifdef __cplusplus
}
#endif

#endif
