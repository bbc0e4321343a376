/* kernels/cuda: optimizer state as 8-bit codes, as graph/ops/README.md defines them; private to the folder,
 * CUDA only. The same numbers as kernels/cpu/state_codes.c, to the bit: the same lines, and every product and
 * sum rounded by itself.
 *
 * The map from codes to numbers is a curve of seven straight pieces, one for each power of ten: between codes
 * and edges of bins, n(x) bends downwards and its inverse upwards. So n is the least of seven lines and x the
 * largest of seven. */
#ifndef VRAMLAB_KERNELS_CUDA_STATE_CODES_CUH
#define VRAMLAB_KERNELS_CUDA_STATE_CODES_CUH

#include "kernels/cuda/kernel.cuh"

constexpr int code_decades = 7;

struct CodeLines {
  float slope[code_decades], start[code_decades];
};

/* value: of code n, the middle between edges n - 1 and n. code: of a number, truncated; code 1 is the first
 * bin. */
struct CodeMap {
  CodeLines value, code;
  int32_t top;     /* the code of 1 */
  float last_edge; /* a number above it has the top code: half the width of the last bin below 1 */
};

/* A map with `first` bins in the lowest decade. */
__host__ __device__ constexpr CodeMap make_code_map(int first, int32_t top) {
  CodeMap map = {};
  const double units[code_decades] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  for (int i = 0; i < code_decades; i++) {
    double bins = (double)(first << i), below = (double)((first << i) - first), width = 0.9 * units[i] / bins;
    map.value.slope[i] = (float)width;
    map.value.start[i] = (float)(0.1 * units[i] - width * (below + 0.5));
    map.code.slope[i] = (float)(1.0 / width);
    map.code.start[i] = (float)(1.0 + below - bins / 9.0);
  }
  map.top = top;
  map.last_edge = 1.0F - 0.5F * (0.45F / (float)((top + 1) / 2));
  return map;
}

/* The map of m, which has a sign, or of v. */
template <bool is_signed> __device__ inline constexpr CodeMap code_map() {
  return is_signed ? make_code_map(1, 128) : make_code_map(2, 255);
}

/* The number of [0, 1] that a code within 0..top stands for. */
template <bool is_signed> __device__ inline float value_of_size(int32_t code) {
  constexpr CodeMap map = code_map<is_signed>();
  float n = (float)code, value = 0.0F;
#pragma unroll
  for (int i = 0; i < code_decades; i++) {
    float at = __fadd_rn(__fmul_rn(n, map.value.slope[i]), map.value.start[i]);
    value = at > value ? at : value;
  }
  value = code == map.top ? 1.0F : value;
  return code != 0 ? value : 0.0F;
}

/* The code of a number of [0, 1]. */
template <bool is_signed> __device__ inline int32_t size_of_value(float x) {
  constexpr CodeMap map = code_map<is_signed>();
  float n = (float)map.top - 0.5F;
#pragma unroll
  for (int i = 0; i < code_decades; i++) {
    float at = __fadd_rn(__fmul_rn(x, map.code.slope[i]), map.code.start[i]);
    n = at < n ? at : n;
  }
  return (int32_t)n + (x > map.last_edge ? 1 : 0);
}

/* The number of [-1, 1] that a code stands for. */
template <bool is_signed> __device__ inline float value_of_code(uint8_t code) {
  if constexpr (!is_signed) return value_of_size<false>(code);
  int32_t n = code > 128 ? code - 256 : code;
  float size = value_of_size<true>(n < 0 ? -n : n);
  return n < 0 ? -size : size;
}

/* The code of value times factor, which is of [-1, 1]; of NaN some code. On the unsigned map what is above
 * zero has at least code 1. */
template <bool is_signed> __device__ inline uint8_t code_of_value(float value, float factor) {
  float x = __fmul_rn(value, factor);
  if constexpr (!is_signed) {
    int32_t code = size_of_value<false>(x);
    return (uint8_t)(code == 0 && value > 0.0F ? 1 : code);
  }
  int32_t code = size_of_value<true>(x < 0.0F ? -x : x);
  int32_t negative = code == 128 ? -127 : -code; /* -1 has no code */
  return (uint8_t)(x < 0.0F ? negative : code);
}

#endif
