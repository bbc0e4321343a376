/* The map from codes to numbers is a curve of seven straight pieces, one for each power of ten: between codes
 * and edges of bins, n(x) bends downwards and its inverse upwards. So n is the least of seven lines and x the
 * largest of seven: no tables and no branches. Every product and sum is rounded alike on every instruction
 * set.
 *
 * AVX-512 looks up the lines that can be it in a register: of a code the one, of a number at most two. */
#include "kernels/cpu/state_codes.h"

#include "kernels/cpu/vector.h"

enum { DECADES = 7 };

/* Of decade i, from 0.1 unit to unit, in a map with `first` bins in the lowest: its bins, those below it, and
 * the width of one. */
#define BINS(first, i) ((double)((first) << (i)))
#define BELOW(first, i) ((double)(((first) << (i)) - (first)))
#define WIDTH(first, i, unit) (0.9 * (unit) / BINS(first, i))
#define VALUE_SLOPE(first, i, unit) (float)WIDTH(first, i, unit)
#define VALUE_START(first, i, unit) (float)(0.1 * (unit)-WIDTH(first, i, unit) * (BELOW(first, i) + 0.5))
#define CODE_SLOPE(first, i, unit) (float)(1.0 / WIDTH(first, i, unit))
#define CODE_START(first, i, unit) (float)(1.0 + BELOW(first, i) - BINS(first, i) / 9.0)
#define ALL(of, first)                                                                                       \
  {                                                                                                          \
    of(first, 0, 1e-6), of(first, 1, 1e-5), of(first, 2, 1e-4), of(first, 3, 1e-3), of(first, 4, 1e-2),      \
        of(first, 5, 1e-1), of(first, 6, 1.0)                                                                \
  }

typedef struct Lines {
  float slope[DECADES], start[DECADES];
} Lines;
/* value: of code n, the middle between edges n - 1 and n. code: of a number, truncated; code 1 is the first
 * bin. */
typedef struct Map {
  Lines value, code;
  int32_t top; /* the code of 1 */
} Map;
static const Map signed_map = {
    {ALL(VALUE_SLOPE, 1), ALL(VALUE_START, 1)}, {ALL(CODE_SLOPE, 1), ALL(CODE_START, 1)}, 128};
static const Map unsigned_map = {
    {ALL(VALUE_SLOPE, 2), ALL(VALUE_START, 2)}, {ALL(CODE_SLOPE, 2), ALL(CODE_START, 2)}, 255};

/* Above it a number has the top code: half the width of the last bin below 1. */
VECTOR_INLINE float last_edge(const Map *map) { return 1.0F - 0.5F * (0.45F / (float)((map->top + 1) / 2)); }

/* The number of [0, 1] that a code within 0..top stands for. */
VECTOR_INLINE float value_of(int32_t code, const Map *map) {
  float n = (float)code, value = 0.0F;
  for (int i = 0; i < DECADES; i++) {
    float at = n * map->value.slope[i] + map->value.start[i];
    value = at > value ? at : value;
  }
  value = code == map->top ? 1.0F : value;
  return vector_where(code != 0, value);
}

/* The code of a number of [0, 1]. */
VECTOR_INLINE int32_t code_of(float x, const Map *map) {
  float n = (float)map->top - 0.5F;
  for (int i = 0; i < DECADES; i++) {
    float at = x * map->code.slope[i] + map->code.start[i];
    n = at < n ? at : n;
  }
  return (int32_t)n + (x > last_edge(map));
}

VECTOR_CLONES
static void read_signed(const uint8_t *codes, float scale, int64_t count, float *values) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    int32_t code = codes[i] > 128 ? codes[i] - 256 : codes[i];
    float size = value_of(code < 0 ? -code : code, &signed_map) * scale;
    values[i] = code < 0 ? -size : size;
  }
}

VECTOR_CLONES
static void read_unsigned(const uint8_t *codes, float scale, int64_t count, float *values) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    values[i] = value_of(codes[i], &unsigned_map) * scale;
}

VECTOR_CLONES
static void write_signed(const float *values, float factor, int64_t count, uint8_t *codes) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float x = values[i] * factor;
    int32_t code = code_of(x < 0.0F ? -x : x, &signed_map);
    int32_t negative = code == 128 ? -127 : -code; /* -1 has no code */
    codes[i] = (uint8_t)(x < 0.0F ? negative : code);
  }
}

VECTOR_CLONES
static void write_unsigned(const float *values, float factor, int64_t count, uint8_t *codes) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    int32_t code = code_of(values[i] * factor, &unsigned_map);
    codes[i] = (uint8_t)(code == 0 && values[i] > 0.0F ? 1 : code);
  }
}

static void read_portably(const uint8_t *codes, bool is_signed, float scale, int64_t count, float *values) {
  (is_signed ? read_signed : read_unsigned)(codes, scale, count, values);
}

static void write_portably(const float *values, bool is_signed, float factor, int64_t count, uint8_t *codes) {
  (is_signed ? write_signed : write_unsigned)(values, factor, count, codes);
}

const StateCodes state_codes_portable = {read_portably, write_portably};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
enum { LANES = 16 };

/* By the last four bits of a number's exponent, 127 + e: of n on the signed map, where decade i has the codes
 * from 2^i on and the top one is 2^7; of n + 1 on the unsigned one, where they end at 2^(i + 2) - 2. */
TARGET VECTOR_INLINE __m512 value_table(const float line[DECADES], float top, bool is_signed) {
  return is_signed ? _mm512_setr_ps(line[1], line[2], line[3], line[4], line[5], line[6], top, 0, 0, 0, 0, 0,
                                    0, 0, 0, line[0])
                   : _mm512_setr_ps(line[0], line[1], line[2], line[3], line[4], line[5], line[6], top, 0, 0,
                                    0, 0, 0, 0, 0, 0);
}

TARGET VECTOR_INLINE void read_register(const uint8_t *codes, bool is_signed, float scale, float *values) {
  const Lines *lines = is_signed ? &signed_map.value : &unsigned_map.value;
  __m512 slopes = value_table(lines->slope, 0.0F, is_signed);
  __m512 starts = value_table(lines->start, 1.0F, is_signed);
  __m512i n = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
  __mmask16 is_some = _mm512_test_epi32_mask(n, n), is_negative = 0;
  if (is_signed) {
    is_negative = _mm512_cmpgt_epi32_mask(n, _mm512_set1_epi32(128));
    n = _mm512_mask_sub_epi32(n, is_negative, _mm512_set1_epi32(256), n);
  }
  __m512 x = _mm512_cvtepi32_ps(n), key = is_signed ? x : _mm512_add_ps(x, _mm512_set1_ps(1.0F));
  __m512i decade = _mm512_srli_epi32(_mm512_castps_si512(key), 23);
  __m512 product = _mm512_mul_ps(x, _mm512_permutexvar_ps(decade, slopes));
  __m512 size = _mm512_maskz_add_ps(is_some, product, _mm512_permutexvar_ps(decade, starts));
  __m512i bits = _mm512_castps_si512(_mm512_mul_ps(size, _mm512_set1_ps(scale)));
  bits = _mm512_mask_xor_epi32(bits, is_negative, bits, _mm512_set1_epi32(INT32_MIN));
  _mm512_storeu_si512(values, bits);
}

/* The line of the lowest decade, or with `next` the highest one, in [4^k, 4^(k + 1)), by the last four bits
 * of 64 + k from 4^-16 on. Such an interval has at most one power of ten in it. */
TARGET VECTOR_INLINE __m512 code_table(const float line[DECADES], bool next) {
  return next ? _mm512_setr_ps(line[0], line[0], line[0], line[0], line[0], line[1], line[1], line[2],
                               line[3], line[3], line[4], line[4], line[5], line[6], line[6], line[6])
              : _mm512_setr_ps(line[0], line[0], line[0], line[0], line[0], line[0], line[1], line[1],
                               line[2], line[3], line[3], line[4], line[4], line[5], line[6], line[6]);
}

TARGET VECTOR_INLINE __m512 line_at(const Lines *lines, bool next, __m512i interval, __m512 x) {
  __m512 slope = _mm512_permutexvar_ps(interval, code_table(lines->slope, next));
  __m512 start = _mm512_permutexvar_ps(interval, code_table(lines->start, next));
  return _mm512_add_ps(_mm512_mul_ps(x, slope), start);
}

TARGET VECTOR_INLINE void write_register(const float *values, bool is_signed, float factor, uint8_t *codes) {
  const Map *map = is_signed ? &signed_map : &unsigned_map;
  const __m512i none = _mm512_setzero_si512(), one = _mm512_set1_epi32(1);
  __m512 value = _mm512_loadu_ps(values), x = _mm512_mul_ps(value, _mm512_set1_ps(factor));
  __m512 size = is_signed ? _mm512_abs_ps(x) : x;
  __m512 key = _mm512_max_ps(size, _mm512_set1_ps(0x1p-24F)); /* of NaN too a number */
  __m512i interval = _mm512_srli_epi32(_mm512_castps_si512(key), 24);
  __m512 n = _mm512_set1_ps((float)map->top - 0.5F);
  n = _mm512_min_ps(line_at(&map->code, false, interval, size), n);
  n = _mm512_min_ps(line_at(&map->code, true, interval, size), n);
  __mmask16 is_top = _mm512_cmp_ps_mask(size, _mm512_set1_ps(last_edge(map)), _CMP_GT_OQ);
  __m512i code = _mm512_cvttps_epi32(n);
  code = _mm512_mask_add_epi32(code, is_top, code, one);
  if (is_signed) {
    __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    code = _mm512_mask_sub_epi32(code, is_negative, none, _mm512_min_epi32(code, _mm512_set1_epi32(127)));
  } else {
    __mmask16 is_some = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_GT_OQ);
    code = _mm512_mask_max_epi32(code, is_some, code, one);
  }
  _mm_storeu_si128((__m128i *)codes, _mm512_cvtepi32_epi8(code));
}

TARGET VECTOR_INLINE void read_all(const uint8_t *codes, bool is_signed, float scale, int64_t count,
                                   float *values) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    read_register(codes + i, is_signed, scale, values + i);
  if (i == count) return;
  uint8_t last_codes[LANES] = {0};
  float last[LANES];
  memcpy(last_codes, codes + i, (size_t)(count - i));
  read_register(last_codes, is_signed, scale, last);
  memcpy(values + i, last, (size_t)(count - i) * sizeof *values);
}

TARGET VECTOR_INLINE void write_all(const float *values, bool is_signed, float factor, int64_t count,
                                    uint8_t *codes) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    write_register(values + i, is_signed, factor, codes + i);
  if (i == count) return;
  uint8_t last_codes[LANES];
  float last[LANES] = {0.0F};
  memcpy(last, values + i, (size_t)(count - i) * sizeof *values);
  write_register(last, is_signed, factor, last_codes);
  memcpy(codes + i, last_codes, (size_t)(count - i));
}

TARGET static void read_avx512(const uint8_t *codes, bool is_signed, float scale, int64_t count,
                               float *values) {
  if (is_signed)
    read_all(codes, true, scale, count, values);
  else
    read_all(codes, false, scale, count, values);
}

TARGET static void write_avx512(const float *values, bool is_signed, float factor, int64_t count,
                                uint8_t *codes) {
  if (is_signed)
    write_all(values, true, factor, count, codes);
  else
    write_all(values, false, factor, count, codes);
}

const StateCodes *state_codes_choose(void) {
  static const StateCodes avx512 = {read_avx512, write_avx512};
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? &avx512
                                                                                  : &state_codes_portable;
}
#else
const StateCodes *state_codes_choose(void) { return &state_codes_portable; }
#endif
