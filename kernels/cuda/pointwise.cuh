/* kernels/cuda: functions of one element, or one of each input, at a time; private to the folder, CUDA only.
 * Layouts do not pad, so tensors that share one are walked as one array, in pieces of 16 bytes.
 *
 * A function is a struct with `inputs`, 1 or 2, and operator() on floats. */
#ifndef VRAMLAB_KERNELS_CUDA_POINTWISE_CUH
#define VRAMLAB_KERNELS_CUDA_POINTWISE_CUH

#include "kernels/cuda/kernel.cuh"

constexpr int map_threads = 256;
constexpr int map_blocks = 4; /* on a multiprocessor: what they ask for keeps its memory busy */
constexpr int map_depth = 2;  /* pieces of each input that a thread asks for before it uses the first */

template <typename F> __device__ inline float map_one(const F &function, float a, float b) {
  if constexpr (F::inputs == 2)
    return function(a, b);
  else
    return function(a);
}

/* The first `pieces` pieces of 16 bytes whole, the rest of `count` elements one by one. y may be a or b. */
template <typename T, typename F>
__global__ void __launch_bounds__(map_threads, map_blocks)
    map_elements(F function, T *y, const T *a, const T *b, int64_t pieces, int64_t count) {
  constexpr int width = pack_width<T>;
  constexpr int64_t tile = map_threads * map_depth;
  using Piece = Pack<T, width>;
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < pieces; first += gridDim.x * tile) {
    Piece of_a[map_depth] = {}, of_b[map_depth] = {};
#pragma unroll
    for (int i = 0; i < map_depth; i++) {
      int64_t at = first + i * map_threads;
      if (at >= pieces) continue;
      of_a[i] = ((const Piece *)a)[at];
      if constexpr (F::inputs == 2) of_b[i] = ((const Piece *)b)[at];
    }
#pragma unroll
    for (int i = 0; i < map_depth; i++) {
      int64_t at = first + i * map_threads;
      if (at >= pieces) continue;
      float values[width];
#pragma unroll
      for (int k = 0; k < width; k++)
        values[k] = map_one(function, to_float(of_a[i].at[k]), to_float(of_b[i].at[k]));
      write_floats(y + at * width, values);
    }
  }
  for (int64_t at = pieces * width + global_index(); at < count; at += grid_threads())
    y[at] = from_float<T>(map_one(function, to_float(a[at]), F::inputs == 2 ? to_float(b[at]) : 0.0F));
}

/* Output 0 from input 0, or 0 and 1, all of one type, shape and layout. */
template <typename F> Status map_launch(const Kernel *kernel, const CudaLaunch *launch, F function) {
  const Tensor *tensor = kernel->node->outputs[0];
  uintptr_t y = launch->outputs[0], a = launch->inputs[0], b = F::inputs == 2 ? launch->inputs[1] : 0;
  int64_t count = vl_tensor_elements(tensor);
  cudaError_t error = cudaErrorInvalidValue;
  by_float(tensor->dtype, [&](auto zero) {
    using T = decltype(zero);
    int64_t pieces = (y | a | b) % 16 == 0 ? count / pack_width<T> : 0;
    unsigned blocks = grid_for(pieces > 0 ? pieces : count, map_threads, map_depth);
    error = cuda_launch(map_elements<T, F>, blocks, map_threads, 0, launch->stream, function, (T *)y,
                        (const T *)a, (const T *)b, pieces, count);
  });
  return cuda_status(error, kernel->op->name, kernel->node);
}

#endif
