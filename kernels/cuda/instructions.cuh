/* kernels/cuda: instructions of the PTX ISA that CUDA C++ has no functions for. Foremost products of small
 * matrices that a warp holds in registers (ldmatrix, mma.sync), in the layouts that the ISA gives:
 * nvcuda::wmma does not say where an element is, so what is done row by row between two products would go
 * through shared memory, and its bf16 operands are read word by word. On the host machine they are C++.
 *
 * With g = lane / 4 and t = lane % 4, c is 16 rows by 8 columns: a lane's c[0], c[1] are row g, columns 2t
 * and 2t + 1, and c[2], c[3] are those of row g + 8. Addresses are of shared memory. */
#ifndef VRAMLAB_KERNELS_CUDA_INSTRUCTIONS_CUH
#define VRAMLAB_KERNELS_CUDA_INSTRUCTIONS_CUH

#include "kernels/cuda/kernel.cuh"

#ifdef VRAMLAB_HOST_MACHINE
#include "instructions.h"
#else

/* 2^x within 2 units in the last place; zero below the smallest normal number. */
__device__ inline float exp2_or_zero(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Four matrices of 8 rows of 16 bytes, lane i naming row i % 8 of matrix i / 8: of each, a lane gets the 4
 * bytes from 4t on of row g. */
__device__ inline void load_matrices(uint32_t (&to)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((uint32_t)__cvta_generic_to_shared(row))
               : "memory");
}
/* The same of matrices of 8 by 8 elements of 16 bits, transposed: of rows 2t and 2t + 1 column g. */
__device__ inline void load_transposed(uint32_t (&to)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((uint32_t)__cvta_generic_to_shared(row))
               : "memory");
}

/* c += a b, sums in f32. In 16 bits a is 16 by 16: a[0] has columns 2t and 2t + 1 of row g, a[1] of row g +
 * 8, a[2] and a[3] the same eight columns on; b is 16 by 8: b[0] has rows 2t and 2t + 1 of column g, b[1]
 * those eight rows on. The lower half comes first. */
template <typename T>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <>
__device__ inline void multiply_add<f16>(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma unroll
  for (int side = 0; side < 2; side++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2 * side]), "r"(a[2 * side + 1]), "r"(b[side]));
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
               "{%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
__device__ inline void multiply_add<bf16>(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
               "{%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* c += a b in TF32, as to_tf32 makes it: a is 16 by 8, a[0] column t of row g, a[1] of row g + 8, a[2] and
 * a[3] four columns on; b is 8 by 8, b[0] row t of column g, b[1] four rows on. */
__device__ inline void multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
               "{%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* The bits of a value rounded to TF32, ties away from zero. */
__device__ inline uint32_t to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
#endif
#endif

/* Two values rounded to T, the first in the lower half. */
template <typename T> __device__ inline uint32_t pack_pair(float first, float second) {
  const T pair[2] = {from_float<T>(first), from_float<T>(second)};
  uint32_t bits;
  memcpy(&bits, pair, sizeof bits);
  return bits;
}

#endif
