/* The instructions of kernels/cuda/instructions.cuh on the host machine: which lane holds what is the PTX
 * ISA's, and matrix.cuh says it. Sums are in f32, from the first column on, products exact. */
#ifndef VRAMLAB_TESTS_HOST_INSTRUCTIONS_H
#define VRAMLAB_TESTS_HOST_INSTRUCTIONS_H

#include "machine.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace host_instructions {

constexpr unsigned all_lanes = 0xFFFFFFFFU;

/* Of every lane: the row it names. */
struct Rows {
  const unsigned char *at[32];
  explicit Rows(const void *row) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
      fprintf(stderr, "ldmatrix: the row at %p is not aligned to 16 bytes\n", row);
      abort();
    }
    machine_gather(all_lanes, &row, sizeof row, at);
  }
};

struct Operands {
  uint32_t a[4], b[2];
};

inline float half_of(uint32_t word, int side, __half) {
  __half_raw raw;
  raw.x = (unsigned short)(word >> (16 * side));
  return __half2float(__half(raw));
}
inline float half_of(uint32_t word, int side, __nv_bfloat16) {
  __nv_bfloat16_raw raw;
  raw.x = (unsigned short)(word >> (16 * side));
  return __bfloat162float(__nv_bfloat16(raw));
}
/* The multiplier reads ten bits of the mantissa. */
inline float tf32_of(uint32_t word) {
  uint32_t bits = word & 0xFFFFE000U;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Adds sum over k < depth of a(row, k) b(k, column) to a lane's four elements. */
template <typename A, typename B> inline void add_products(float (&c)[4], int depth, A a, B b) {
  int g = machine_thread.lane / 4, t = machine_thread.lane % 4;
  for (int i = 0; i < 4; i++) {
    int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    float sum = 0.0F;
    for (int k = 0; k < depth; k++)
      sum += a(row, k) * b(k, column);
    c[i] += sum;
  }
}

} // namespace host_instructions

inline float exp2_or_zero(float x) {
  float y = std::exp2(x);
  return y < 0x1p-126F ? 0.0F : y;
}

inline void load_matrices(uint32_t (&to)[4], const void *row) {
  host_instructions::Rows rows(row);
  int g = machine_thread.lane / 4, t = machine_thread.lane % 4;
  for (int i = 0; i < 4; i++)
    memcpy(&to[i], rows.at[8 * i + g] + 4 * t, 4);
}

inline void load_transposed(uint32_t (&to)[4], const void *row) {
  host_instructions::Rows rows(row);
  int g = machine_thread.lane / 4, t = machine_thread.lane % 4;
  for (int i = 0; i < 4; i++) {
    unsigned short pair[2];
    for (int side = 0; side < 2; side++)
      memcpy(&pair[side], rows.at[8 * i + 2 * t + side] + 2 * g, 2);
    memcpy(&to[i], pair, 4);
  }
}

template <typename T>
inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  host_instructions::Operands own = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[32];
  machine_gather(host_instructions::all_lanes, &own, sizeof own, all);
  host_instructions::add_products(
      c, 16,
      [&](int row, int k) {
        return host_instructions::half_of(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2, T{});
      },
      [&](int k, int column) {
        return host_instructions::half_of(all[column * 4 + k % 8 / 2].b[k / 8], k % 2, T{});
      });
}

inline void multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  host_instructions::Operands own = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[32];
  machine_gather(host_instructions::all_lanes, &own, sizeof own, all);
  host_instructions::add_products(
      c, 8,
      [&](int row, int k) {
        return host_instructions::tf32_of(all[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2]);
      },
      [&](int k, int column) { return host_instructions::tf32_of(all[column * 4 + k % 4].b[k / 4]); });
}

inline uint32_t to_tf32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7F800000U) == 0x7F800000U ? bits : (bits + 0x1000U) & 0xFFFFE000U;
}

#endif
