/* kernels/cuda: what own kernels share; private to the folder, CUDA only.
 *
 * A kernel is compiled by nvcc for GPUs and by the host's compiler for the host machine of
 * tests/kernels/cuda/host, which runs blocks one after the other and threads in turns. So kernels are
 * launched by cuda_launch, dynamic shared memory is asked for by shared_memory, and intrinsics are those that
 * the host machine has (tests/kernels/cuda/host/machine.h). Sums are in f32 whatever the inputs are, in an
 * order that depends on shapes alone: no floating-point atomics. */
#ifndef VRAMLAB_KERNELS_CUDA_KERNEL_CUH
#define VRAMLAB_KERNELS_CUDA_KERNEL_CUH

#include "kernels/cuda/cuda.h"

#ifdef VRAMLAB_HOST_MACHINE
#include "machine.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Dynamic shared memory of the block, aligned to 128 bytes. */
template <typename T> __device__ inline T *shared_memory() {
  extern __shared__ __align__(128) unsigned char vl_shared[];
  return reinterpret_cast<T *>(vl_shared);
}

/* Queues kernel<<<grid, block, shared_bytes, stream>>>(arguments...); arguments are converted to the kernel's
 * own types. More than 48 KiB of shared memory are asked for here. */
template <typename... P, typename... A>
inline cudaError_t cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                               cudaStream_t stream, A &&...arguments) {
  if (shared_bytes > 48 * 1024) {
    cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t configuration = {};
  configuration.gridDim = grid;
  configuration.blockDim = block;
  configuration.dynamicSmemBytes = shared_bytes;
  configuration.stream = stream;
  return cudaLaunchKernelEx(&configuration, kernel, static_cast<P>(arguments)...);
}
#endif

using bf16 = __nv_bfloat16;
using f16 = __half;

constexpr int warp_size = 32;
constexpr unsigned whole_warp = 0xFFFFFFFFU;

/* ---- Element types: read as f32, written rounded once to nearest even ---------------------------------------- */

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bf16 value) { return __bfloat162float(value); }
__device__ inline float to_float(f16 value) { return __half2float(value); }
template <typename T> __device__ inline T from_float(float value);
template <> __device__ inline float from_float<float>(float value) { return value; }
template <> __device__ inline bf16 from_float<bf16>(float value) { return __float2bfloat16_rn(value); }
template <> __device__ inline f16 from_float<f16>(float value) { return __float2half_rn(value); }

/* `count` neighbours of one type, moved as one piece where the address allows: Pack<bf16, 8> is 16 bytes. */
template <typename T, int count> struct alignas(sizeof(T) * count) Pack { T at[count]; };
/* Elements of a type in 16 bytes. */
template <typename T> constexpr int pack_width = 16 / (int)sizeof(T);

/* Two neighbours, each rounded once, as they lie in memory. */
template <typename T> __device__ inline unsigned two_floats(float first, float second);
template <> __device__ inline unsigned two_floats<bf16>(float first, float second) {
  __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
  unsigned bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}
template <> __device__ inline unsigned two_floats<f16>(float first, float second) {
  __half2 both = __floats2half2_rn(first, second);
  unsigned bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}
/* Writes 1, or 4 to 8, neighbours, each rounded once, in pieces of 16 bytes where there are as many. (A Pack
 * that is put together from elements the compiler may also write one by one.) */
template <typename T, int count> __device__ inline void write_floats(T *to, const float (&values)[count]) {
  static_assert(count == 1 || count == 4 || count == 8, "");
  if constexpr (count == 1) {
    to[0] = from_float<T>(values[0]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int k = 0; k < count; k += 4)
      __stwb(reinterpret_cast<float4 *>(to + k),
             float4{values[k], values[k + 1], values[k + 2], values[k + 3]});
  } else if constexpr (count == 4) {
    __stwb(reinterpret_cast<uint2 *>(to),
           uint2{two_floats<T>(values[0], values[1]), two_floats<T>(values[2], values[3])});
  } else {
    __stwb(reinterpret_cast<uint4 *>(to),
           uint4{two_floats<T>(values[0], values[1]), two_floats<T>(values[2], values[3]),
                 two_floats<T>(values[4], values[5]), two_floats<T>(values[6], values[7])});
  }
}

/* Calls function with a value of the C++ type of a float dtype: by_float(dtype, [&](auto zero) { using T =
 * decltype(zero); ... }). False where the dtype is none of f32, bf16 and f16. */
template <typename F> inline bool by_float(DType dtype, F function) {
  switch (dtype) {
  case DTYPE_F32: function(float{}); return true;
  case DTYPE_BF16: function(bf16{}); return true;
  case DTYPE_F16: function(f16{}); return true;
  default: return false;
  }
}

/* ---- Reductions ------------------------------------------------------------------------------------------------ */

/* The sum over the warp, in every lane; of numbers of any kind. */
template <typename S> __device__ inline S warp_sum(S value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(whole_warp, value, distance);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, distance));
  return value;
}
/* The sum over a block of whole warps (1-D), in every thread. `scratch` is shared and has room for 32; it may
 * be used again after the next barrier of the caller's. */
template <typename S> __device__ inline S block_sum(S value, S *scratch) {
  value = warp_sum(value);
  int warps = (int)blockDim.x / warp_size, lane = (int)threadIdx.x % warp_size;
  if (warps == 1) return value;
  if (lane == 0) scratch[threadIdx.x / warp_size] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : S(0));
}

/* ---- Work and grids ----------------------------------------------------------------------------------------------- */

/* Blocks of `threads` for `count` elements, each thread taking `each`; at most `most` (grid-stride loops do
 * the rest). */
inline unsigned grid_for(int64_t count, int threads, int64_t each = 1, int64_t most = 65535 * 16) {
  int64_t blocks = (count + threads * each - 1) / (threads * each);
  return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}
__device__ inline int64_t global_index() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int64_t grid_threads() { return (int64_t)gridDim.x * blockDim.x; }

/* Says that an index is out of range; the first one stays. Only `raised` is atomic: a second fault of the
 * same moment may mix its numbers in, each of them true of some element. */
__device__ inline void raise_fault(CudaFault *fault, const Node *node, const Tensor *tensor, int64_t place,
                                   int64_t value, int64_t below) {
  if (atomicCAS(&fault->raised, 0, 1) != 0) return;
  fault->node = node;
  fault->tensor = tensor;
  fault->place = place;
  fault->value = value;
  fault->below = below;
}

/* ---- Randomness: base.h's Philox 4x32-10, word for word ------------------------------------------------------------ */

/* SplitMix64's output, as vl_random_key uses it. */
__device__ inline uint64_t random_mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}
/* vl_random_key of a scope whose FNV-1a hash (vl_hash_text(vl_hash_start, scope)) is given. */
__device__ inline uint64_t random_key(const CudaStep *step, uint64_t scope_hash) {
  return random_mix(random_mix(random_mix(step->seed) ^ step->step) ^ scope_hash);
}
/* The four words of block `block` of a sample. */
__device__ inline uint4 random_block(uint64_t key, uint64_t sample, uint64_t block) {
  uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)sample,
           c3 = (uint32_t)(sample >> 32);
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; round++) {
    uint32_t high0 = __umulhi(0xD2511F53U, c0), low0 = 0xD2511F53U * c0;
    uint32_t high1 = __umulhi(0xCD9E8D57U, c2), low1 = 0xCD9E8D57U * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return uint4{c0, c1, c2, c3};
}
/* vl_random_unit. */
__device__ inline float random_unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24F; }

#endif
