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
 * next. */
enum { BLOCKS = 8 };

TARGET
static void draw_avx512(uint64_t key, uint64_t sample, uint64_t first, int64_t count, uint32_t *words) {
  __m512i m0 = _mm512_set1_epi64((long long)multiplier0), m1 = _mm512_set1_epi64((long long)multiplier1);
  /* In each 128-bit lane a block of the first four and one of the others: unpacking then sorts them. */
  __m512i block =
      _mm512_add_epi64(_mm512_set1_epi64((long long)first), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
  for (int64_t i = 0; i < count; i += BLOCKS, words += 4 * BLOCKS) {
    __m512i c0 = block, c1 = _mm512_srli_epi64(block, 32);
    __m512i c2 = _mm512_set1_epi64((long long)sample), c3 = _mm512_set1_epi64((long long)(sample >> 32));
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; round++) {
      __m512i product0 = _mm512_mul_epu32(c0, m0), product1 = _mm512_mul_epu32(c2, m1);
      __m512i key0 = _mm512_set1_epi64((long long)k0), key1 = _mm512_set1_epi64((long long)k1);
      c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1, key0, 0x96);
      c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3, key1, 0x96);
      c1 = product1;
      c3 = product0;
      k0 += step0;
      k1 += step1;
    }
    __m512i words01 = _mm512_mask_blend_epi32(0xAAAA, c0, _mm512_slli_epi64(c1, 32));
    __m512i words23 = _mm512_mask_blend_epi32(0xAAAA, c2, _mm512_slli_epi64(c3, 32));
    _mm512_storeu_si512(words, _mm512_unpacklo_epi64(words01, words23));
    _mm512_storeu_si512(words + 2 * BLOCKS, _mm512_unpackhi_epi64(words01, words23));
    block = _mm512_add_epi64(block, _mm512_set1_epi64(BLOCKS));
  }
}

void random_blocks(uint64_t key, uint64_t sample, uint64_t first, int64_t count, uint32_t *words) {
  if (!__builtin_cpu_supports("avx512dq")) {
    draw_portably(key, sample, first, count, words);
    return;
  }
  int64_t whole = count / BLOCKS * BLOCKS;
  draw_avx512(key, sample, first, whole, words);
  if (whole == count) return;
  _Alignas(64) uint32_t last[4 * BLOCKS];
  draw_avx512(key, sample, first + (uint64_t)whole, BLOCKS, last);
  memcpy(words + 4 * whole, last, (size_t)(count - whole) * 4 * sizeof *words);
}

TARGET
static void compare_avx512(const uint32_t *words, int64_t count, uint32_t limit, uint64_t *bits) {
  const int64_t lanes = 16;
  __m512i limits = _mm512_set1_epi32((int32_t)limit);
  for (int64_t first = 0; first < count; first += 64) {
    uint64_t found = 0;
    for (int64_t i = first; i < count && i < first + 64; i += lanes) {
      __mmask16 inside = (__mmask16)(count - i >= lanes ? 0xFFFF : (1 << (count - i)) - 1);
      __m512i some = _mm512_maskz_loadu_epi32(inside, words + i);
      found |= (uint64_t)_mm512_mask_cmpgt_epu32_mask(inside, some, limits) << (i - first);
    }
    bits[first / 64] = found;
  }
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
