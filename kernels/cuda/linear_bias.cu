/* A bias rounded to the type that cuBLASLt's epilogue takes: see matmul.c. */
#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/linear_bias.h"

template <typename T> static __global__ void round_bias(const float *bias, int64_t count, T *rounded) {
  for (int64_t i = global_index(); i < count; i += grid_threads())
    rounded[i] = from_float<T>(bias[i]);
}

cudaError_t cuda_round_bias(const float *bias, int64_t count, DType dtype, void *rounded,
                            cudaStream_t stream) {
  constexpr int threads = 256;
  unsigned blocks = grid_for(count, threads);
  if (dtype == DTYPE_BF16)
    return cuda_launch(round_bias<bf16>, blocks, threads, 0, stream, bias, count,
                       static_cast<bf16 *>(rounded));
  return cuda_launch(round_bias<f16>, blocks, threads, 0, stream, bias, count, static_cast<f16 *>(rounded));
}
