/* kernels/cuda: products of 16 rows by 16 columns a warp; private to the folder, CUDA only.
 *
 * On tensor cores for bf16 and f16, in FMA for f32, or in TF32: one interface for all, so that what is made
 * of them is written once. */
#ifndef VRAMLAB_KERNELS_CUDA_FRAGMENTS_CUH
#define VRAMLAB_KERNELS_CUDA_FRAGMENTS_CUH

#include "kernels/cuda/kernel.cuh"

#ifdef VRAMLAB_HOST_MACHINE
#include "wmma.h"
#else
#include <mma.h>
#endif

namespace wmma = nvcuda::wmma;

/* a is 16 rows by `step` columns, b `step` by 16, c 16 by 16. What lies in memory is by rows; b can be had of
 * its transpose too. Strides are in elements; addresses are aligned to 32 bytes. Elements of TF32 lie in
 * memory as f32 and are rounded as they are read. */
template <typename Element, typename Kind, int depth> struct TensorCores {
  static constexpr int step = depth;
  using A = wmma::fragment<wmma::matrix_a, 16, 16, depth, Kind, wmma::row_major>;
  using B = wmma::fragment<wmma::matrix_b, 16, 16, depth, Kind, wmma::row_major>;
  using Transposed = wmma::fragment<wmma::matrix_b, 16, 16, depth, Kind, wmma::col_major>;
  using C = wmma::fragment<wmma::accumulator, 16, 16, depth, float>;
  template <typename Operand>
  static __device__ inline void load(Operand &to, const Element *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800 /* those before have no TF32 */
    if constexpr (sizeof(Element) == 4) {
#pragma unroll
      for (int i = 0; i < (int)to.num_elements; i++)
        to.x[i] = wmma::__float_to_tf32(to.x[i]);
    }
#endif
  }
  static __device__ inline void load_transposed(Transposed &to, const Element *from, int stride) {
    load(to, from, stride);
  }
  static __device__ inline void load(C &to, const float *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride, wmma::mem_row_major);
  }
  static __device__ inline void store(float *to, const C &from, int stride) {
    wmma::store_matrix_sync(to, from, (unsigned)stride, wmma::mem_row_major);
  }
  static __device__ inline void clear(C &c) { wmma::fill_fragment(c, 0.0F); }
  template <typename AnyB> static __device__ inline void multiply(C &c, const A &a, const AnyB &b) {
    wmma::mma_sync(c, a, b, c);
  }
};

/* f32 whose products are of TF32. */
struct Tf32 {};

template <typename T> struct Fragments : TensorCores<T, T, 16> {};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <> struct Fragments<Tf32> : TensorCores<float, wmma::precision::tf32, 8> {};
#endif

/* A lane has rows lane / 4 and lane / 4 + 8 of c, and four columns from 4 (lane % 4) on. */
template <> struct Fragments<float> {
  static constexpr int step = 4;
  struct A {
    float x[2][4];
  };
  struct B {
    float x[4][4];
  }; /* [k][column] */
  struct Transposed {
    float x[4][4];
  };
  struct C {
    float x[8];
  };
  static __device__ inline int row() { return (int)threadIdx.x % warp_size / 4; }
  static __device__ inline int column() { return (int)threadIdx.x % 4 * 4; }
  static __device__ inline float4 four(const float *from) { return *reinterpret_cast<const float4 *>(from); }
  static __device__ inline void load(A &to, const float *from, int stride) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float4 at = four(from + (row() + 8 * i) * stride);
      to.x[i][0] = at.x, to.x[i][1] = at.y, to.x[i][2] = at.z, to.x[i][3] = at.w;
    }
  }
  static __device__ inline void load(B &to, const float *from, int stride) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float4 at = four(from + k * stride + column());
      to.x[k][0] = at.x, to.x[k][1] = at.y, to.x[k][2] = at.z, to.x[k][3] = at.w;
    }
  }
  static __device__ inline void load_transposed(Transposed &to, const float *from, int stride) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float4 at = four(from + (column() + j) * stride);
      to.x[0][j] = at.x, to.x[1][j] = at.y, to.x[2][j] = at.z, to.x[3][j] = at.w;
    }
  }
  static __device__ inline void load(C &to, const float *from, int stride) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      to.x[i] = from[(row() + 8 * (i / 4)) * stride + column() + i % 4];
  }
  static __device__ inline void store(float *to, const C &from, int stride) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      to[(row() + 8 * (i / 4)) * stride + column() + i % 4] = from.x[i];
  }
  static __device__ inline void clear(C &c) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      c.x[i] = 0.0F;
  }
  template <typename AnyB> static __device__ inline void multiply(C &c, const A &a, const AnyB &b) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int i = 0; i < 8; i++)
        c.x[i] = fmaf(a.x[i / 4][k], b.x[k][i % 4], c.x[i]);
  }
};

/* What memory holds for products of a kind. */
template <typename Kind> struct Memory { using Type = Kind; };
template <> struct Memory<Tf32> { using Type = float; };

/* Whether the architecture being compiled for has products of a kind: Turing has none of bf16 and TF32. */
template <typename Kind> constexpr bool has_fragments = true;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <> constexpr bool has_fragments<bf16> = false;
template <> constexpr bool has_fragments<Tf32> = false;
#endif

/* Elements of c that a lane holds, and where they are: which is found out, since nothing says it. */
constexpr int held = 8;
struct Places {
  uint32_t rows, columns; /* four bits each */
  __device__ inline int row(int i) const { return (int)(rows >> (4 * i) & 15U); }
  __device__ inline int column(int i) const { return (int)(columns >> (4 * i) & 15U); }
};

/* scratch: of the warp, 16 rows. */
template <typename Kind> __device__ inline Places find_places(float *scratch, int pitch) {
  typename Fragments<Kind>::C numbers;
  for (int i = (int)threadIdx.x % warp_size; i < 256; i += warp_size)
    scratch[i / 16 * pitch + i % 16] = (float)i;
  __syncwarp();
  Fragments<Kind>::load(numbers, scratch, pitch);
  __syncwarp();
  Places places = {0, 0};
#pragma unroll
  for (int i = 0; i < held; i++) {
    uint32_t number = (uint32_t)numbers.x[i];
    places.rows |= number / 16 << (4 * i);
    places.columns |= number % 16 << (4 * i);
  }
  return places;
}

#endif
