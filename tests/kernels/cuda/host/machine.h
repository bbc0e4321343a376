/* tests/kernels/cuda/host: the host as a machine that own kernels run on, for kernel.cuh in place of the CUDA
 * compiler's language. Blocks run one after the other; the threads of a block are fibers. Those of a warp
 * take turns at its collectives, and a warp runs on to the next barrier before another begins, both in an
 * order that is turned round again and again, so that a missing barrier shows as a wrong number. A barrier
 * that not all reach, a collective of lanes that have ended, and more shared memory than a block may have
 * stop the program with the place. Shared memory holds NaN when a block begins. */
#ifndef VRAMLAB_HOST_MACHINE_H
#define VRAMLAB_HOST_MACHINE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#undef __shared__
#undef __launch_bounds__
#undef __align__
#undef __forceinline__
#undef __noinline__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

/* ---- The machine (machine.cpp) ----------------------------------------------------------------------------------- */

struct MachineThread {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  int lane;
};
extern MachineThread machine_thread; /* of the thread that runs now */
extern unsigned char *machine_shared;

/* Waits until every thread of the block that has not ended is here. */
void machine_barrier();
/* A collective of the lanes in `mask`, which must all come: lane i's `bytes` bytes at value are put at
 * all + i * bytes, for every lane of the mask; what lies there for other lanes is left. */
void machine_gather(unsigned mask, const void *value, size_t bytes, void *all);
/* Queues a kernel on a stream of runtime.cpp. `key` stands for the kernel in the list of those that ran. */
cudaError_t machine_queue(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, void (*key)(),
                          std::function<void()> thread);

template <typename T> inline T *shared_memory() { return reinterpret_cast<T *>(machine_shared); }

template <typename... P, typename... A>
inline cudaError_t cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                               cudaStream_t stream, A &&...arguments) {
  std::tuple<P...> values{static_cast<P>(arguments)...};
  return machine_queue(stream, grid, block, shared_bytes, reinterpret_cast<void (*)()>(kernel),
                       [kernel, values] { std::apply(kernel, values); });
}

/* ---- The language ---------------------------------------------------------------------------------------------------- */

#define threadIdx machine_thread.thread
#define blockIdx machine_thread.block
#define blockDim machine_thread.block_dim
#define gridDim machine_thread.grid_dim

using std::max;
using std::min;

inline void __syncthreads() { machine_barrier(); }
inline void __threadfence() {}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) {
  char nothing = 0, all[32];
  machine_gather(mask, &nothing, 1, all);
}
template <typename T> inline T machine_exchange(unsigned mask, T value, int source) {
  T all[32];
  machine_gather(mask, &value, sizeof value, all);
  return (unsigned)source < 32U && (mask >> source & 1U) ? all[source] : value;
}
template <typename T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  int lane = machine_thread.lane;
  return machine_exchange(mask, value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32) {
  int lane = machine_thread.lane, source = lane ^ distance;
  return machine_exchange(mask, value, (source & ~(width - 1)) > (lane & ~(width - 1)) ? lane : source);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  int lane = machine_thread.lane, source = lane + (int)distance;
  return machine_exchange(mask, value, (lane & (width - 1)) + (int)distance >= width ? lane : source);
}
template <typename T> inline T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  int lane = machine_thread.lane, source = lane - (int)distance;
  return machine_exchange(mask, value, (lane & (width - 1)) < (int)distance ? lane : source);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  int all[32] = {0};
  unsigned bits = 0;
  machine_gather(mask, &predicate, sizeof predicate, all);
  for (int i = 0; i < 32; i++)
    bits |= (mask >> i & 1U) && all[i] ? 1U << i : 0U;
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

/* Threads take turns at barriers only, so that nothing comes between. */
template <typename T> inline T atomicAdd(T *at, T value) {
  T old = *at;
  *at = (T)(old + value);
  return old;
}
template <typename T> inline T atomicMax(T *at, T value) {
  T old = *at;
  *at = old < value ? value : old;
  return old;
}
template <typename T> inline T atomicMin(T *at, T value) {
  T old = *at;
  *at = value < old ? value : old;
  return old;
}
template <typename T> inline T atomicCAS(T *at, T compare, T value) {
  T old = *at;
  if (old == compare) *at = value;
  return old;
}
template <typename T> inline T atomicExch(T *at, T value) {
  T old = *at;
  *at = value;
  return old;
}

template <typename T> inline T __ldg(const T *at) { return *at; }
template <typename T> inline void __stwb(T *at, T value) {
  std::memcpy(static_cast<void *>(at), &value, sizeof value);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0F / x; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __saturatef(float x) { return x < 0.0F ? 0.0F : x > 1.0F ? 1.0F : x; }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
inline int __float_as_int(float value) { return (int)__float_as_uint(value); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz((unsigned)bits) : 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

#endif
