/* attention.h with AVX-512: f32, and pairs of bf16 with AVX512_BF16, whose conversions and products take
 * subnormal numbers as zeros. */
#include "kernels/cpu/attention.h"

#include <math.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define TARGET_F32 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define INLINE static inline __attribute__((always_inline))

enum { ROWS = ATTENTION_ROWS, PANEL = ATTENTION_PANEL, KEYS = ATTENTION_KEYS, LANES = 16 };

/* ---- Products -------------------------------------------------------------------------------------------------- */

/* A tile of registers: ROWS rows, two registers of columns. Inlined with a constant stride of a's rows or
 * steps. multiply_add: c + a b of whole registers of words. */
#define DEFINE_PRODUCT(target, type, multiply_tile, multiply, multiply_add)                                  \
  target INLINE void multiply_tile(const AttentionProduct *it, const uint32_t *a, int64_t a_row,             \
                                   int64_t a_step, const uint32_t *b, float *c) {                            \
    __m512 sum0[ROWS], sum1[ROWS];                                                                           \
    _Pragma("GCC unroll 8") for (int32_t i = 0; i < ROWS; i++) {                                             \
      sum0[i] = it->adds ? _mm512_load_ps(c + i * it->c_row) : _mm512_setzero_ps();                          \
      sum1[i] = it->adds ? _mm512_load_ps(c + i * it->c_row + LANES) : _mm512_setzero_ps();                  \
    }                                                                                                        \
    for (int64_t k = 0; k < it->steps; k++, a += a_step, b += PANEL) {                                       \
      __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + LANES);                                  \
      _Pragma("GCC unroll 8") for (int32_t i = 0; i < ROWS; i++) {                                           \
        __m512i value = _mm512_set1_epi32((int32_t)a[i * a_row]);                                            \
        sum0[i] = multiply_add(sum0[i], (type)value, (type)b0);                                              \
        sum1[i] = multiply_add(sum1[i], (type)value, (type)b1);                                              \
      }                                                                                                      \
    }                                                                                                        \
    _Pragma("GCC unroll 8") for (int32_t i = 0; i < ROWS; i++) {                                             \
      _mm512_store_ps(c + i * it->c_row, sum0[i]);                                                           \
      _mm512_store_ps(c + i * it->c_row + LANES, sum1[i]);                                                   \
    }                                                                                                        \
  }                                                                                                          \
  target static void multiply(const AttentionProduct *it) {                                                  \
    for (int64_t j = 0; j < it->columns; j += PANEL) {                                                       \
      const uint32_t *b = it->b + j / PANEL * it->b_panel;                                                   \
      for (int64_t i = 0; i < it->rows; i += ROWS) {                                                         \
        attention_fetch(it->ahead);                                                                          \
        if (it->a_step == 1)                                                                                 \
          multiply_tile(it, it->a + i * it->a_row, it->a_row, 1, b, it->c + i * it->c_row + j);              \
        else                                                                                                 \
          multiply_tile(it, it->a + i, 1, it->a_step, b, it->c + i * it->c_row + j);                         \
      }                                                                                                      \
    }                                                                                                        \
  }

#define MULTIPLY_ADD_F32(c, a, b) _mm512_fmadd_ps(a, b, c)
#define MULTIPLY_ADD_BF16(c, a, b) _mm512_dpbf16_ps(c, a, b)
DEFINE_PRODUCT(TARGET_F32, __m512, multiply_tile_f32, multiply_f32, MULTIPLY_ADD_F32)
DEFINE_PRODUCT(TARGET_BF16, __m512bh, multiply_tile_bf16, multiply_bf16, MULTIPLY_ADD_BF16)

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

INLINE __mmask16 lanes_of(int64_t count) { return (__mmask16)(count >= LANES ? 0xFFFF : (1 << count) - 1); }
INLINE __mmask32 lanes32_of(int64_t count) {
  return count >= 2 * LANES ? ~(__mmask32)0 : ((__mmask32)1 << count) - 1;
}

/* Up to LANES elements as f32, the others 0. */
TARGET_F32 INLINE __m512i load_lanes(const void *from, int64_t at, int64_t count, bool bf16) {
  __mmask16 lanes = lanes_of(count);
  if (!bf16) return _mm512_maskz_loadu_epi32(lanes, (const float *)from + at);
  __m256i half = _mm256_maskz_loadu_epi16(lanes, (const uint16_t *)from + at);
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

TARGET_F32 static void pack_rows_f32(AttentionRows from, uint32_t *to, int64_t to_row) {
  for (int64_t i = 0; i < from.rows; i++)
    for (int64_t j = 0; j < from.columns; j += LANES)
      _mm512_mask_storeu_epi32(to + i * to_row + j, lanes_of(from.columns - j),
                               load_lanes(from.first, i * from.stride + j, from.columns - j, from.bf16));
}

static void pack_rows_bf16(AttentionRows from, uint32_t *to, int64_t to_row) {
  for (int64_t i = 0; i < from.rows; i++) {
    if (from.columns % 2 != 0) to[i * to_row + from.columns / 2] = 0;
    memcpy(to + i * to_row, (const uint16_t *)from.first + i * from.stride,
           (size_t)from.columns * sizeof(uint16_t));
  }
}

/* Row i of `to` takes column i of `from`, both of 16 words; rows `count` and on are left out. */
TARGET_F32 INLINE void transpose(const uint32_t *from, int64_t from_row, uint32_t *to, int64_t to_row,
                                 int64_t count) {
  __m512i a[LANES], b[LANES];
#pragma GCC unroll 16
  for (int32_t i = 0; i < LANES; i++)
    a[i] = _mm512_loadu_si512(from + i * from_row);
#pragma GCC unroll 8
  for (int32_t i = 0; i < LANES; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  /* a[4 i + k]: in each 128-bit lane L, column 4 L + k of rows 4 i to 4 i + 3. */
#pragma GCC unroll 4
  for (int32_t i = 0; i < LANES; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int32_t k = 0; k < 4; k++) {
    __m512i low01 = _mm512_shuffle_i32x4(a[k], a[4 + k], 0x44),
            high01 = _mm512_shuffle_i32x4(a[k], a[4 + k], 0xEE);
    __m512i low23 = _mm512_shuffle_i32x4(a[8 + k], a[12 + k], 0x44),
            high23 = _mm512_shuffle_i32x4(a[8 + k], a[12 + k], 0xEE);
    b[k] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    b[4 + k] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    b[8 + k] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    b[12 + k] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
#pragma GCC unroll 16
  for (int32_t i = 0; i < LANES; i++)
    if (i < count) _mm512_store_si512(to + i * to_row, b[i]);
}

/* Panels of rows, made words in scratch first. */
TARGET_F32 INLINE void pack_transposed(AttentionRows from, int64_t steps, uint32_t *to, uint32_t *scratch,
                                       void (*pack_rows)(AttentionRows, uint32_t *, int64_t)) {
  int64_t row = attention_up(steps, LANES);
  for (int64_t i = 0; i < from.rows; i += PANEL, to += steps * PANEL) {
    AttentionRows panel = from;
    panel.first = (const char *)from.first + i * from.stride * (from.bf16 ? 2 : 4);
    panel.rows = from.rows - i < PANEL ? from.rows - i : PANEL;
    if (panel.rows < PANEL) memset(scratch, 0, (size_t)(PANEL * row) * sizeof *scratch);
    pack_rows(panel, scratch, row);
    for (int64_t k = 0; k < steps; k += LANES)
      for (int64_t half = 0; half < PANEL; half += LANES)
        transpose(scratch + half * row + k, row, to + k * PANEL + half, PANEL, steps - k);
  }
}

TARGET_F32 static void pack_transposed_f32(AttentionRows from, uint32_t *to, uint32_t *scratch) {
  pack_transposed(from, from.columns, to, scratch, pack_rows_f32);
}
TARGET_F32 static void pack_transposed_bf16(AttentionRows from, uint32_t *to, uint32_t *scratch) {
  pack_transposed(from, (from.columns + 1) / 2, to, scratch, pack_rows_bf16);
}

TARGET_F32 static void pack_steps_f32(AttentionRows from, uint32_t *to) {
  for (int64_t i = 0; i < from.rows; i++)
    for (int64_t j = 0; j < from.columns; j += PANEL) {
      uint32_t *line = to + (j * from.rows + i * PANEL);
      int64_t at = i * from.stride + j, rest = from.columns - j;
      _mm512_store_si512(line, load_lanes(from.first, at, rest, from.bf16));
      _mm512_store_si512(line + LANES,
                         load_lanes(from.first, at + LANES, rest > LANES ? rest - LANES : 0, from.bf16));
    }
}

/* Rows by pairs, an odd last one with zeros. */
TARGET_F32 static void pack_steps_bf16(AttentionRows from, uint32_t *to) {
  _Alignas(64) static const uint16_t order[4 * LANES] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  __m512i low = _mm512_load_si512(order), high = _mm512_load_si512(order + 2 * LANES);
  int64_t steps = (from.rows + 1) / 2;
  for (int64_t i = 0; i < from.rows; i += 2)
    for (int64_t j = 0; j < from.columns; j += PANEL) {
      const uint16_t *row = (const uint16_t *)from.first + i * from.stride + j;
      __mmask32 lanes = lanes32_of(from.columns - j), second = i + 1 < from.rows ? lanes : 0;
      __m512i even = _mm512_maskz_loadu_epi16(lanes, row);
      __m512i odd = _mm512_maskz_loadu_epi16(second, row + from.stride);
      uint32_t *line = to + (j * steps + i / 2 * PANEL);
      _mm512_store_si512(line, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_store_si512(line + LANES, _mm512_permutex2var_epi16(even, high, odd));
    }
}

/* ---- Probabilities ------------------------------------------------------------------------------------------------- */

/* e^x within 2 units in the last place, 0 below -104, infinity above 88.73, NaN stays: vector_exp with fused
 * products and the scaling instruction. */
TARGET_F32 INLINE __m512 exp_lanes(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-105.0F), x); /* NaN stays: the second operand */
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1F));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
  return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0F)), n);
}

/* Bits of a query, one 16-bit mask a register; all ones where there is no dropout. */
INLINE const uint16_t *kept_row(const AttentionTile *tile, int64_t query) {
  _Alignas(8) static const uint16_t all[KEYS / LANES] = {0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF,
                                                         0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF};
  return tile->kept == NULL ? all : (const uint16_t *)(const void *)(tile->kept + query * ATTENTION_KEPT);
}

/* Scales and masks a query's scores and finds the largest so far. What lies behind the keys becomes
 * -infinity. */
TARGET_F32 INLINE void scale_row(const AttentionTile *tile, int64_t query) {
  float *row = tile->scores + query * KEYS;
  __m512 scale = _mm512_set1_ps(tile->scale), lowest = _mm512_set1_ps(-INFINITY), largest = lowest;
  for (int64_t k = 0; k < tile->keys; k += LANES) {
    __mmask16 lanes = lanes_of(tile->keys - k);
    __m512 x = _mm512_load_ps(row + k);
    if (tile->mask == NULL)
      x = _mm512_mask_mul_ps(lowest, lanes, x, scale);
    else
      x = _mm512_mask_mov_ps(lowest, lanes,
                             _mm512_fmadd_ps(x, scale, _mm512_maskz_loadu_ps(lanes, tile->mask + k)));
    _mm512_store_ps(row + k, x);
    largest = _mm512_max_ps(largest, x);
  }
  float top = _mm512_reduce_max_ps(largest);
  tile->factors[query] = tile->first ? top : tile->top[query]; /* the largest before */
  tile->top[query] = top < tile->factors[query] ? tile->factors[query] : top;
}

/* A query's scaled scores become its probabilities, in place. */
TARGET_F32 INLINE void exp_row(const AttentionTile *tile, int64_t query) {
  float *row = tile->scores + query * KEYS;
  const uint16_t *kept = kept_row(tile, query);
  /* Where every score so far is -infinity, so that later ones count. */
  float shift = tile->top[query] == -INFINITY ? 0.0F : tile->top[query];
  __m512 sums = _mm512_setzero_ps(), shifts = _mm512_set1_ps(shift);
  for (int64_t k = 0; k < tile->keys; k += LANES) {
    __m512 p = exp_lanes(_mm512_sub_ps(_mm512_load_ps(row + k), shifts));
    sums = _mm512_add_ps(sums, p);
    _mm512_store_ps(row + k, _mm512_maskz_mov_ps(kept[k / LANES], p));
  }
  float sum = _mm512_reduce_add_ps(sums);
  if (!tile->first) {
    tile->factors[query] = _mm512_cvtss_f32(exp_lanes(_mm512_set1_ps(tile->factors[query] - shift)));
    sum += tile->sum[query] * tile->factors[query];
  }
  tile->sum[query] = sum;
}

/* All rows are scaled before the first one's exponentials, which would wait for its maximum. */
TARGET_F32 INLINE void scale_rows(const AttentionTile *tile) {
  for (int64_t q = 0; q < tile->queries; q++)
    scale_row(tile, q);
}

TARGET_F32 static void probabilities_f32(const AttentionTile *tile) {
  scale_rows(tile);
  for (int64_t q = 0; q < tile->queries; q++)
    exp_row(tile, q);
}

TARGET_BF16 static void probabilities_bf16(const AttentionTile *tile) {
  scale_rows(tile);
  for (int64_t q = 0; q < tile->queries; q++) {
    exp_row(tile, q);
    const float *row = tile->scores + q * KEYS;
    for (int64_t k = 0; k < tile->keys; k += LANES)
      _mm256_store_si256((void *)(tile->p + (q * KEYS + k) / 2),
                         (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(row + k)));
  }
}

/* dropout(p) and ds of a query over its scores and dp. */
TARGET_F32 INLINE void backward_row(const AttentionTile *tile, int64_t query) {
  float *scores = tile->scores + query * KEYS, *dp = tile->dp + query * KEYS;
  const uint16_t *kept = kept_row(tile, query);
  __m512 scale = _mm512_set1_ps(tile->scale), keep = _mm512_set1_ps(tile->keep_scale);
  __m512 lse = _mm512_set1_ps(tile->lse[query]), delta = _mm512_set1_ps(tile->delta[query]);
  for (int64_t k = 0; k < tile->keys; k += LANES) {
    __mmask16 lanes = lanes_of(tile->keys - k);
    __m512 shift = lse;
    if (tile->mask != NULL) shift = _mm512_sub_ps(lse, _mm512_maskz_loadu_ps(lanes, tile->mask + k));
    __m512 p = exp_lanes(_mm512_fmsub_ps(_mm512_load_ps(scores + k), scale, shift));
    p = _mm512_maskz_mov_ps(lanes, p);
    __m512 given = _mm512_maskz_mul_ps(kept[k / LANES], _mm512_load_ps(dp + k), keep);
    __m512 ds = _mm512_maskz_mul_ps(lanes, p, _mm512_sub_ps(given, delta));
    _mm512_store_ps(scores + k, _mm512_maskz_mul_ps(kept[k / LANES], p, keep));
    _mm512_store_ps(dp + k, ds);
  }
}

TARGET_F32 static void gradients_f32(const AttentionTile *tile) {
  for (int64_t q = 0; q < tile->queries; q++)
    backward_row(tile, q);
}

/* Values of two queries as pairs. */
TARGET_BF16 INLINE __m512i pair_lanes(__m512 first, __m512 second) {
  _Alignas(64) static const uint16_t order[2 * LANES] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                         21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                         11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(order), (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

TARGET_BF16 static void gradients_bf16(const AttentionTile *tile) {
  for (int64_t q = 0; q < tile->queries; q += 2) {
    bool both = q + 1 < tile->queries;
    backward_row(tile, q);
    if (both) backward_row(tile, q + 1);
    for (int64_t k = 0; k < tile->keys; k += LANES) {
      int64_t at = q * KEYS + k;
      __m512 zero = _mm512_setzero_ps();
      __m512 ds0 = _mm512_load_ps(tile->dp + at), ds1 = both ? _mm512_load_ps(tile->dp + at + KEYS) : zero;
      __m512 p0 = _mm512_load_ps(tile->scores + at),
             p1 = both ? _mm512_load_ps(tile->scores + at + KEYS) : zero;
      _mm512_store_si512(tile->p_queries + q / 2 * KEYS + k, pair_lanes(p0, p1));
      _mm512_store_si512(tile->ds_queries + q / 2 * KEYS + k, pair_lanes(ds0, ds1));
      _mm256_store_si256((void *)(tile->ds_keys + at / 2), (__m256i)_mm512_cvtneps_pbh(ds0));
      _mm256_store_si256((void *)(tile->ds_keys + (at + KEYS) / 2), (__m256i)_mm512_cvtneps_pbh(ds1));
    }
  }
}

/* ---- Choice ----------------------------------------------------------------------------------------------------------- */

static const AttentionParts parts_f32 = {.name = "own:avx512",
                                         .pairs = false,
                                         .multiply = multiply_f32,
                                         .pack_rows = pack_rows_f32,
                                         .pack_transposed = pack_transposed_f32,
                                         .pack_steps = pack_steps_f32,
                                         .probabilities = probabilities_f32,
                                         .gradients = gradients_f32};

static const AttentionParts parts_bf16 = {.name = "own:avx512_bf16",
                                          .pairs = true,
                                          .multiply = multiply_bf16,
                                          .pack_rows = pack_rows_bf16,
                                          .pack_transposed = pack_transposed_bf16,
                                          .pack_steps = pack_steps_bf16,
                                          .probabilities = probabilities_bf16,
                                          .gradients = gradients_bf16};

/* The library's choice of instruction set, which a user may lower, holds for own kernels too. */
const AttentionParts *attention_parts(bool bf16) {
  dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  if (isa < dnnl_cpu_isa_avx512_core || !__builtin_cpu_supports("avx512bw")) return &attention_portable;
  bool has_pairs = isa >= dnnl_cpu_isa_avx512_core_bf16 && __builtin_cpu_supports("avx512bf16");
  return bf16 && has_pairs ? &parts_bf16 : &parts_f32;
}

#else

const AttentionParts *attention_parts(bool bf16) {
  (void)bf16;
  return &attention_portable;
}

#endif
