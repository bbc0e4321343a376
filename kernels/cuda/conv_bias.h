/* kernels/cuda: what follows a convolution that no engine of the library ends with. */
#ifndef VRAMLAB_KERNELS_CUDA_CONV_BIAS_H
#define VRAMLAB_KERNELS_CUDA_CONV_BIAS_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues y = y + bias by channel (NULL: none), then a ReLU if relu. y is channels last, and rounded once; the
 * bias is of y's dtype or f32. */
cudaError_t cuda_conv_bias(const Tensor *y, uintptr_t to, const Tensor *bias, uintptr_t from, bool relu,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
