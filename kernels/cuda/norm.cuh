/* kernels/cuda: how norms read and write; private to the folder, CUDA only. A thread takes `width` neighbours
 * at a time, in pieces of up to 16 bytes; where sizes or addresses do not allow that the kernels are others,
 * of width 1. */
#ifndef VRAMLAB_KERNELS_CUDA_NORM_CUH
#define VRAMLAB_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/kernel.cuh"

#include <type_traits>

/* A tensor whose type is known when the kernel runs: parameters beside activations of another type. */
struct FloatArray {
  void *at; /* NULL: absent */
  DType dtype;
};

inline FloatArray input_array(const Kernel *kernel, const CudaLaunch *launch, int32_t index) {
  const Node *node = kernel->node;
  if (index >= node->input_count || node->inputs[index] == NULL) return FloatArray{NULL, DTYPE_F32};
  return FloatArray{(void *)launch->inputs[index], node->inputs[index]->dtype};
}
inline FloatArray output_array(const Kernel *kernel, const CudaLaunch *launch, int32_t index) {
  const Node *node = kernel->node;
  if (index >= node->output_count || node->outputs[index] == NULL) return FloatArray{NULL, DTYPE_F32};
  return FloatArray{(void *)launch->outputs[index], node->outputs[index]->dtype};
}

/* Whether several neighbours may be moved at once; an absent tensor does not mind. */
inline bool is_aligned(const void *address) { return (uintptr_t)address % 16 == 0; }

/* by_float with a second value, whose ::value is the width: `wide`, or 1 where that does not go. */
template <int wide, typename F> inline bool by_float_and_width(DType dtype, bool packed, F function) {
  return by_float(dtype, [&](auto zero) {
    if (packed)
      function(zero, std::integral_constant<int, wide>());
    else
      function(zero, std::integral_constant<int, 1>());
  });
}

__device__ inline float element_of(FloatArray from, int64_t i) {
  if (from.dtype == DTYPE_F32) return static_cast<const float *>(from.at)[i];
  if (from.dtype == DTYPE_BF16) return to_float(static_cast<const bf16 *>(from.at)[i]);
  return to_float(static_cast<const f16 *>(from.at)[i]);
}

/* The address is aligned to what is moved at once. */
template <int width, typename T> __device__ inline Pack<T, width> load_pack(const T *from) {
  return *reinterpret_cast<const Pack<T, width> *>(from);
}

template <typename T, int width> __device__ inline void load_values(float (&to)[width], const T *from) {
  constexpr int piece = width < pack_width<T> ? width : pack_width<T>;
#pragma unroll
  for (int i = 0; i < width; i += piece) {
    Pack<T, piece> pack = load_pack<piece>(from + i);
#pragma unroll
    for (int k = 0; k < piece; k++)
      to[i + k] = to_float(pack.at[k]);
  }
}

template <typename T, int width> __device__ inline void store_values(T *to, const float (&from)[width]) {
  constexpr int piece = width < pack_width<T> ? width : pack_width<T>;
#pragma unroll
  for (int i = 0; i < width; i += piece) {
    Pack<T, piece> pack;
#pragma unroll
    for (int k = 0; k < piece; k++)
      pack.at[k] = from_float<T>(from[i + k]);
    *reinterpret_cast<Pack<T, piece> *>(to + i) = pack;
  }
}

/* The same for a tensor of any float type, from element `first` on. */
template <int width> __device__ inline void load_values(float (&to)[width], FloatArray from, int64_t first) {
  if (from.dtype == DTYPE_F32)
    load_values(to, static_cast<const float *>(from.at) + first);
  else if (from.dtype == DTYPE_BF16)
    load_values(to, static_cast<const bf16 *>(from.at) + first);
  else
    load_values(to, static_cast<const f16 *>(from.at) + first);
}
template <int width>
__device__ inline void store_values(FloatArray to, int64_t first, const float (&from)[width]) {
  if (to.dtype == DTYPE_F32)
    store_values(static_cast<float *>(to.at) + first, from);
  else if (to.dtype == DTYPE_BF16)
    store_values(static_cast<bf16 *>(to.at) + first, from);
  else
    store_values(static_cast<f16 *>(to.at) + first, from);
}

/* ---- Partial sums of columns ------------------------------------------------------------------------------
 * A block of fold_threads takes fold_columns columns of partial sums, fold_lanes threads to each, which walk
 * its rows in turn; then their sums are added up. */

constexpr int fold_columns = 8, fold_lanes = 32, fold_threads = fold_columns * fold_lanes;
__device__ inline int64_t fold_column() {
  return (int64_t)blockIdx.x * fold_columns + threadIdx.x % fold_columns;
}
__device__ inline int fold_lane() { return (int)threadIdx.x / fold_columns; }
/* The sum of a column's threads, right in those of lane 0. `scratch` is shared and may be used again after
 * the next barrier of the caller's. */
__device__ inline double fold_sum(double value, double (*scratch)[fold_columns]) {
  constexpr int warps = fold_threads / warp_size;
  for (int distance = fold_columns; distance < warp_size; distance *= 2)
    value += __shfl_xor_sync(whole_warp, value, distance);
  int column = (int)threadIdx.x % fold_columns;
  if ((int)threadIdx.x % warp_size < fold_columns) scratch[threadIdx.x / warp_size][column] = value;
  __syncthreads();
  double sum = 0.0;
  for (int warp = 0; warp < warps; warp++)
    sum += scratch[warp][column];
  return sum;
}

#endif
