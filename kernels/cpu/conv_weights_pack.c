/* Weight gradient of convolutions: values of x and dy normalised, and packed for the dot product of pairs. */
#include "kernels/cpu/conv_weights_parts.h"

#include <math.h>

#if HAS_CONV_WEIGHTS

TARGET_BF16
static __m256i row_bf16(const uint16_t *from, int64_t row) {
  return row < 0 ? _mm256_setzero_si256() : _mm256_loadu_si256((const void *)(from + row * BLOCK));
}

/* Coefficients of a channel block, and 0 with ReLU, else -infinity. */
typedef struct Normal {
  __m512 mean, scale, beta, least;
} Normal;

TARGET_F32
static inline Normal normal_of(const Normalisation *all, int64_t block) {
  BatchNormCoefficients by = all->by;
  return (Normal){_mm512_loadu_ps(by.mean + block * BLOCK), _mm512_loadu_ps(by.scale + block * BLOCK),
                  _mm512_loadu_ps(by.beta + block * BLOCK), _mm512_set1_ps(all->relu ? 0.0F : -INFINITY)};
}

/* batch_norm_value, then the ReLU, with the same result for NaN and -0. */
TARGET_F32
static inline __m512 normal_values(__m512 x, const Normal *by) {
  __m512 scaled = _mm512_mul_ps(_mm512_sub_ps(x, by->mean), by->scale);
  return _mm512_max_ps(by->least, _mm512_add_ps(scaled, by->beta));
}

TARGET_BF16
static inline __m512 row_f32(const uint16_t *row) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)row)), 16));
}

TARGET_BF16
static __m256i rounded_one_by_one(__m512 values) {
  _Alignas(64) float from[BLOCK];
  _Alignas(32) uint16_t to[BLOCK];
  _mm512_store_ps(from, values);
  for (int32_t i = 0; i < BLOCK; i++)
    to[i] = vector_bf16(from[i]);
  return _mm256_load_si256((const void *)to);
}

/* Two rows normalised, side by side. The processor's rounding takes subnormal numbers for zero, and so does
 * its dot product; but the largest of them round to a normal one. */
TARGET_BF16
static inline __m512i normal_pair(const uint16_t *even, const uint16_t *odd, const Normal *by) {
  enum { SUBNORMAL = 0x20 };
  __m512 low = normal_values(row_f32(even), by), high = normal_values(row_f32(odd), by);
  __mmask16 subnormal = _mm512_fpclass_ps_mask(low, SUBNORMAL) | _mm512_fpclass_ps_mask(high, SUBNORMAL);
  if (__builtin_expect(subnormal != 0, 0))
    return _mm512_inserti64x4(_mm512_castsi256_si512(rounded_one_by_one(low)), rounded_one_by_one(high), 1);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

TARGET_BF16
static void normalise_bf16(const uint16_t *from, int64_t rows, const Normalisation *all, int64_t block,
                           uint16_t *to) {
  Normal by = normal_of(all, block);
  int64_t k = 0;
  for (; k + 2 <= rows; k += 2)
    _mm512_storeu_si512(to + k * BLOCK, normal_pair(from + k * BLOCK, from + (k + 1) * BLOCK, &by));
  if (k == rows) return;
  __m512i last = normal_pair(from + k * BLOCK, from + k * BLOCK, &by);
  _mm256_storeu_si256((void *)(to + k * BLOCK), _mm512_castsi512_si256(last));
}

TARGET_F32
static void normalise_f32(const float *from, int64_t rows, const Normalisation *all, int64_t block,
                          float *to) {
  Normal by = normal_of(all, block);
  for (int64_t k = 0; k < rows; k++)
    _mm512_storeu_ps(to + k * BLOCK, normal_values(_mm512_loadu_ps(from + k * BLOCK), &by));
}

/* Two rows, normalised unless `by` is NULL; zeros in the padding. */
TARGET_BF16
static inline __m512i pair_bf16(const uint16_t *from, int64_t even, int64_t odd, const Normal *by) {
  if (by != NULL) {
    __m512i pair = normal_pair(from + (even < 0 ? 0 : even) * BLOCK, from + (odd < 0 ? 0 : odd) * BLOCK, by);
    return _mm512_maskz_mov_epi32((__mmask16)((even < 0 ? 0 : 0xFF) | (odd < 0 ? 0 : 0xFF00)), pair);
  }
  if (odd == even + 1 && even >= 0) return _mm512_loadu_si512(from + even * BLOCK);
  return _mm512_inserti64x4(_mm512_castsi256_si512(row_bf16(from, even)), row_bf16(from, odd), 1);
}

/* The points of one channel block by pairs: [pair][channel][2]; an odd last one with zeros. */
TARGET_BF16 __attribute__((always_inline)) static inline void
pack_bf16(const uint16_t *from, const int64_t *rows, int64_t count, const Normal *by, uint16_t *to) {
  _Alignas(64) static const uint16_t order[2 * BLOCK] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                         21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                         11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i places = _mm512_load_si512(order);
  for (int64_t k = 0; k < count; k += 2) {
    int64_t even = rows[k], odd = k + 1 < count ? rows[k + 1] : -1;
    _mm512_store_si512(to + k * BLOCK, _mm512_permutexvar_epi16(places, pair_bf16(from, even, odd, by)));
  }
}

TARGET_BF16
void conv_weights_pack(const ConvWeights *it, const Operand *operand, int64_t blocks, const int64_t *rows,
                       int64_t count) {
  for (int64_t b = 0; b < blocks; b++) {
    const uint16_t *from = (const uint16_t *)(const void *)operand->rows + b * operand->block_rows * BLOCK;
    uint16_t *to = (uint16_t *)(void *)(operand->packed + b * lines_of(it, it->run) * LINE);
    if (operand->normalisation.by.mean == NULL) {
      pack_bf16(from, rows, count, NULL, to);
    } else {
      Normal by = normal_of(&operand->normalisation, b);
      pack_bf16(from, rows, count, &by, to);
    }
  }
}

void conv_weights_normalise(const ConvWeights *it, const char *from, int64_t rows, const Normalisation *all,
                            int64_t block, char *to) {
  if (it->bf16)
    normalise_bf16((const uint16_t *)(const void *)from, rows, all, block, (uint16_t *)(void *)to);
  else
    normalise_f32((const float *)(const void *)from, rows, all, block, (float *)(void *)to);
}

#endif
