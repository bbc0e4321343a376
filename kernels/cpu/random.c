/* Philox 4x32-10 as vl_philox computes it, many blocks at a time. */
#include "kernels/cpu/random.h"

#include "kernels/cpu/vector.h"

enum { ROUNDS = 10 };
static const uint32_t multiplier0 = 0xD2511F53U, multiplier1 = 0xCD9E8D57U;
static const uint32_t step0 = 0x9E3779B9U, step1 = 0xBB67AE85U; /* of the key, from round to round */

VECTOR_CLONES
static void draw_portably(uint64_t key, uint64_t sample, uint64_t first, int64_t count,
                          uint32_t *restrict words) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    uint64_t block = first + (uint64_t)i;
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)sample, c3 = (uint32_t)(sample >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; round++) {
      uint64_t product0 = (uint64_t)multiplier0 * c0, product1 = (uint64_t)multiplier1 * c2;
      c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
      c1 = (uint32_t)product1;
      c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
      c3 = (uint32_t)product0;
      k0 += step0;
      k1 += step1;
    }
    words[4 * i] = c0;
    words[4 * i + 1] = c1;
    words[4 * i + 2] = c2;
    words[4 * i + 3] = c3;
  }
}

static void compare_portably(const uint32_t *words, int64_t count, uint32_t limit, uint64_t *bits) {
  for (int64_t first = 0; first < count; first += 64) {
    int64_t end = count - first < 64 ? count - first : 64;
    uint64_t found = 0;
    for (int64_t i = 0; i < end; i++)
      found |= (uint64_t)(words[first + i] > limit) << i;
    bits[first / 64] = found;
  }
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define TARGET __attribute__((target("avx512f,avx512dq")))

/* Blocks of a register: each counter word lies in the lower half of a 64-bit lane. What the upper half holds
 * does not matter to the product that reads it, so that the product of one round is, as it is, a word of the
 * next. Several registers go through the rounds side by side, since each waits for its products. */
enum { BLOCKS = 8, SIDE_BY_SIDE = 4 };

TARGET static inline __attribute__((always_inline)) void
draw_registers(const int32_t registers, uint64_t key, uint64_t sample, uint64_t first, uint32_t *words) {
  __m512i m0 = _mm512_set1_epi64((long long)multiplier0), m1 = _mm512_set1_epi64((long long)multiplier1);
  __m512i c0[SIDE_BY_SIDE], c1[SIDE_BY_SIDE], c2[SIDE_BY_SIDE], c3[SIDE_BY_SIDE];
  /* In each 128-bit lane a block of the first four and one of the others: unpacking then sorts them. */
  __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 4
  for (int32_t r = 0; r < registers; r++) {
    c0[r] = _mm512_add_epi64(_mm512_set1_epi64((long long)first + r * BLOCKS), order);
    c1[r] = _mm512_srli_epi64(c0[r], 32);
    c2[r] = _mm512_set1_epi64((long long)sample);
    c3[r] = _mm512_set1_epi64((long long)(sample >> 32));
  }
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < ROUNDS; round++) {
    __m512i key0 = _mm512_set1_epi64((long long)k0), key1 = _mm512_set1_epi64((long long)k1);
#pragma GCC unroll 4
    for (int32_t r = 0; r < registers; r++) {
      __m512i product0 = _mm512_mul_epu32(c0[r], m0), product1 = _mm512_mul_epu32(c2[r], m1);
      c0[r] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1[r], key0, 0x96);
      c2[r] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3[r], key1, 0x96);
      c1[r] = product1;
      c3[r] = product0;
    }
    k0 += step0;
    k1 += step1;
  }
#pragma GCC unroll 4
  for (int32_t r = 0; r < registers; r++) {
    __m512i words01 = _mm512_mask_blend_epi32(0xAAAA, c0[r], _mm512_slli_epi64(c1[r], 32));
    __m512i words23 = _mm512_mask_blend_epi32(0xAAAA, c2[r], _mm512_slli_epi64(c3[r], 32));
    uint32_t *to = words + r * 4 * BLOCKS;
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(words01, words23));
    _mm512_storeu_si512(to + 2 * BLOCKS, _mm512_unpackhi_epi64(words01, words23));
  }
}

TARGET
static void draw_avx512(uint64_t key, uint64_t sample, uint64_t first, int64_t count, uint32_t *words) {
  int64_t i = 0;
  for (; i + SIDE_BY_SIDE * BLOCKS <= count; i += SIDE_BY_SIDE * BLOCKS)
    draw_registers(SIDE_BY_SIDE, key, sample, first + (uint64_t)i, words + 4 * i);
  for (; i + BLOCKS <= count; i += BLOCKS)
    draw_registers(1, key, sample, first + (uint64_t)i, words + 4 * i);
  if (i == count) return;
  _Alignas(64) uint32_t last[4 * BLOCKS];
  draw_registers(1, key, sample, first + (uint64_t)i, last);
  memcpy(words + 4 * i, last, (size_t)(count - i) * 4 * sizeof *words);
}

void random_blocks(uint64_t key, uint64_t sample, uint64_t first, int64_t count, uint32_t *words) {
  if (__builtin_cpu_supports("avx512dq"))
    draw_avx512(key, sample, first, count, words);
  else
    draw_portably(key, sample, first, count, words);
}

/* One bit for each of 16 words. */
TARGET static inline __attribute__((always_inline)) uint64_t
compare_register(const uint32_t *words, __mmask16 inside, __m512i limits) {
  return _mm512_mask_cmpgt_epu32_mask(inside, _mm512_maskz_loadu_epi32(inside, words), limits);
}

TARGET
static void compare_avx512(const uint32_t *words, int64_t count, uint32_t limit, uint64_t *bits) {
  __m512i limits = _mm512_set1_epi32((int32_t)limit);
  int64_t first = 0;
  for (; first + 64 <= count; first += 64) {
    const uint32_t *at = words + first;
    bits[first / 64] =
        compare_register(at, 0xFFFF, limits) | compare_register(at + 16, 0xFFFF, limits) << 16 |
        compare_register(at + 32, 0xFFFF, limits) << 32 | compare_register(at + 48, 0xFFFF, limits) << 48;
  }
  if (first == count) return;
  uint64_t found = 0;
  for (int64_t i = first; i < count; i += 16) {
    __mmask16 inside = (__mmask16)(count - i >= 16 ? 0xFFFF : (1 << (count - i)) - 1);
    found |= compare_register(words + i, inside, limits) << (i - first);
  }
  bits[first / 64] = found;
}

void random_above(const uint32_t *words, int64_t count, uint32_t limit, uint64_t *bits) {
  if (__builtin_cpu_supports("avx512dq"))
    compare_avx512(words, count, limit, bits);
  else
    compare_portably(words, count, limit, bits);
}

#else

void random_above(const uint32_t *words, int64_t count, uint32_t limit, uint64_t *bits) {
  compare_portably(words, count, limit, bits);
}

void random_blocks(uint64_t key, uint64_t sample, uint64_t first, int64_t count, uint32_t *words) {
  draw_portably(key, sample, first, count, words);
}

#endif
