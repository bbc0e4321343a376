/* Into the transformed tiles and out of them: Winograd's F(2x2, 3x3) in Lavin and Gray's notation (Fast
 * Algorithms for Convolutional Neural Networks, 2016): y = A^T [(G g G^T) . (B^T d B)] A, and for the
 * gradient of g the same read backwards, G^T [(B^T d B) . (A dy A^T)] G. */
#include "kernels/cpu/conv_winograd_parts.h"

#include <math.h>

#if HAS_CONV_WINOGRAD

/* Where a tile lies: the first row and column of what it writes. */
typedef struct Place {
  int64_t row, column;
} Place;

static inline Place place_of(const ConvWinograd *it, int64_t tile) {
  return (Place){tile / it->tile_columns * TILE, tile % it->tile_columns * TILE};
}

TARGET_WINOGRAD
static inline __attribute__((always_inline)) void store_tile(float *to, int64_t pitch,
                                                             const __m512 m[PATCH][PATCH]) {
#pragma GCC unroll 16
  for (int32_t t = 0; t < POINTS; t++)
    _mm512_store_ps(to + t * pitch, m[t / PATCH][t % PATCH]);
}

/* B^T d B. */
TARGET_WINOGRAD
static inline __attribute__((always_inline)) void transform_read(__m512 d[PATCH][PATCH], float *to,
                                                                 int64_t pitch) {
  __m512 m[PATCH][PATCH];
#pragma GCC unroll 4
  for (int32_t j = 0; j < PATCH; j++) {
    m[0][j] = _mm512_sub_ps(d[0][j], d[2][j]);
    m[1][j] = _mm512_add_ps(d[1][j], d[2][j]);
    m[2][j] = _mm512_sub_ps(d[2][j], d[1][j]);
    m[3][j] = _mm512_sub_ps(d[1][j], d[3][j]);
  }
#pragma GCC unroll 4
  for (int32_t i = 0; i < PATCH; i++) {
    d[i][0] = _mm512_sub_ps(m[i][0], m[i][2]);
    d[i][1] = _mm512_add_ps(m[i][1], m[i][2]);
    d[i][2] = _mm512_sub_ps(m[i][2], m[i][1]);
    d[i][3] = _mm512_sub_ps(m[i][1], m[i][3]);
  }
  store_tile(to, pitch, (const __m512(*)[PATCH])d);
}

typedef struct Normal {
  __m512 mean, scale, beta, least;
} Normal;

TARGET_WINOGRAD
static Normal normal_of(const WinogradNorm *norm, int64_t block) {
  return (Normal){
      _mm512_load_ps(norm->by.mean + block * BLOCK), _mm512_load_ps(norm->by.scale + block * BLOCK),
      _mm512_load_ps(norm->by.beta + block * BLOCK), _mm512_set1_ps(norm->relu ? 0.0F : -INFINITY)};
}

/* batch_norm_value, then the ReLU, with the same result for NaN and -0; by NULL: x. */
TARGET_WINOGRAD
static inline __attribute__((always_inline)) __m512 normal_value(__m512 x, const Normal *by) {
  if (by == NULL) return x;
  __m512 scaled = _mm512_mul_ps(_mm512_sub_ps(x, by->mean), by->scale);
  return _mm512_max_ps(by->least, _mm512_add_ps(scaled, by->beta));
}

/* size x size values from (row, column) on, zeros outside the plane. */
TARGET_WINOGRAD
static inline __attribute__((always_inline)) void load_patch(const ConvWinograd *it, const float *plane,
                                                             int64_t row, int64_t column, int32_t size,
                                                             const Normal *by, __m512 d[PATCH][PATCH]) {
  if (row >= 0 && column >= 0 && row + size <= it->height && column + size <= it->width) {
    const float *from = plane + (row * it->width + column) * BLOCK;
#pragma GCC unroll 4
    for (int32_t i = 0; i < size; i++)
#pragma GCC unroll 4
      for (int32_t j = 0; j < size; j++)
        d[i][j] = normal_value(_mm512_load_ps(from + (i * it->width + j) * BLOCK), by);
    return;
  }
#pragma GCC unroll 4
  for (int32_t i = 0; i < size; i++)
#pragma GCC unroll 4
    for (int32_t j = 0; j < size; j++) {
      bool inside =
          (uint64_t)(row + i) < (uint64_t)it->height && (uint64_t)(column + j) < (uint64_t)it->width;
      const float *from = inside ? plane + ((row + i) * it->width + column + j) * BLOCK : plane;
      d[i][j] = _mm512_maskz_mov_ps(inside ? (__mmask16)0xFFFF : (__mmask16)0,
                                    normal_value(_mm512_load_ps(from), by));
    }
}

TARGET_WINOGRAD
static void store_zeros(float *to, int64_t pitch) {
  for (int32_t t = 0; t < POINTS; t++)
    _mm512_store_ps(to + t * pitch, _mm512_setzero_ps());
}

TARGET_WINOGRAD
static inline __attribute__((always_inline)) void read_block(const ConvWinograd *it, const float *plane,
                                                             int64_t first, const Normal *by, float *to,
                                                             int64_t pitch) {
  for (int64_t k = 0; k < it->run; k++, to += BLOCK) {
    if (first + k >= it->tiles) {
      store_zeros(to, pitch);
      continue;
    }
    Place at = place_of(it, first + k);
    __m512 d[PATCH][PATCH];
    load_patch(it, plane, at.row - WINDOW / 2, at.column - WINDOW / 2, PATCH, by, d);
    transform_read(d, to, pitch);
  }
}

TARGET_WINOGRAD
void conv_winograd_read(const ConvWinograd *it, const float *plane, int64_t block_places, int64_t blocks,
                        int64_t first, const WinogradNorm *norm, float *to) {
  int64_t pitch = point_pitch(it, blocks);
  for (int64_t b = 0; b < blocks; b++, plane += block_places * BLOCK, to += it->run * BLOCK) {
    if (norm == NULL) {
      read_block(it, plane, first, NULL, to, pitch);
    } else {
      Normal by = normal_of(norm, b);
      read_block(it, plane, first, &by, to, pitch);
    }
  }
}

/* A dy A^T. */
TARGET_WINOGRAD
void conv_winograd_read_gradient(const ConvWinograd *it, const float *plane, int64_t block_places,
                                 int64_t blocks, int64_t first, float *to) {
  int64_t pitch = point_pitch(it, blocks);
  for (int64_t b = 0; b < blocks; b++, plane += block_places * BLOCK) {
    for (int64_t k = 0; k < it->run; k++, to += BLOCK) {
      if (first + k >= it->tiles) {
        store_zeros(to, pitch);
        continue;
      }
      Place at = place_of(it, first + k);
      __m512 d[PATCH][PATCH], rows[PATCH][TILE], m[PATCH][PATCH];
      load_patch(it, plane, at.row, at.column, TILE, NULL, d);
#pragma GCC unroll 2
      for (int32_t j = 0; j < TILE; j++) {
        rows[0][j] = d[0][j];
        rows[1][j] = _mm512_add_ps(d[0][j], d[1][j]);
        rows[2][j] = _mm512_sub_ps(d[0][j], d[1][j]);
        rows[3][j] = _mm512_sub_ps(_mm512_setzero_ps(), d[1][j]);
      }
#pragma GCC unroll 4
      for (int32_t i = 0; i < PATCH; i++) {
        m[i][0] = rows[i][0];
        m[i][1] = _mm512_add_ps(rows[i][0], rows[i][1]);
        m[i][2] = _mm512_sub_ps(rows[i][0], rows[i][1]);
        m[i][3] = _mm512_sub_ps(_mm512_setzero_ps(), rows[i][1]);
      }
      store_tile(to, pitch, (const __m512(*)[PATCH])m);
    }
  }
}

/* A^T m A. */
TARGET_WINOGRAD
void conv_winograd_write(const ConvWinograd *it, const float *from, int64_t pitch, int64_t first,
                         float *plane) {
  int64_t count = it->tiles - first < it->run ? it->tiles - first : it->run;
  for (int64_t k = 0; k < count; k++, from += BLOCK) {
    Place at = place_of(it, first + k);
    __m512 rows[TILE][PATCH], y[TILE][TILE];
#pragma GCC unroll 4
    for (int32_t j = 0; j < PATCH; j++) {
      __m512 m0 = _mm512_load_ps(from + j * pitch), m1 = _mm512_load_ps(from + (PATCH + j) * pitch),
             m2 = _mm512_load_ps(from + (2 * PATCH + j) * pitch),
             m3 = _mm512_load_ps(from + (3 * PATCH + j) * pitch);
      rows[0][j] = _mm512_add_ps(_mm512_add_ps(m0, m1), m2);
      rows[1][j] = _mm512_sub_ps(_mm512_sub_ps(m1, m2), m3);
    }
#pragma GCC unroll 2
    for (int32_t i = 0; i < TILE; i++) {
      y[i][0] = _mm512_add_ps(_mm512_add_ps(rows[i][0], rows[i][1]), rows[i][2]);
      y[i][1] = _mm512_sub_ps(_mm512_sub_ps(rows[i][1], rows[i][2]), rows[i][3]);
    }
    float *to = plane + (at.row * it->width + at.column) * BLOCK;
    bool right = at.column + 1 < it->width, below = at.row + 1 < it->height;
    _mm512_store_ps(to, y[0][0]);
    if (right) _mm512_store_ps(to + BLOCK, y[0][1]);
    if (below) _mm512_store_ps(to + it->width * BLOCK, y[1][0]);
    if (right && below) _mm512_store_ps(to + (it->width + 1) * BLOCK, y[1][1]);
  }
}

/* G g, of a column or row of three. */
TARGET_WINOGRAD
static inline __attribute__((always_inline)) void expand(__m512 g0, __m512 g1, __m512 g2, __m512 to[PATCH]) {
  const __m512 half = _mm512_set1_ps(0.5F);
  __m512 ends = _mm512_add_ps(g0, g2);
  to[0] = g0;
  to[1] = _mm512_mul_ps(half, _mm512_add_ps(ends, g1));
  to[2] = _mm512_mul_ps(half, _mm512_sub_ps(ends, g1));
  to[3] = g2;
}

/* G g G^T; flipped: of the window turned by half a turn. */
TARGET_WINOGRAD
void conv_winograd_weights(const float *window, int64_t step, bool flipped, float *points, int64_t pitch) {
  __m512 columns[WINDOW][PATCH];
  for (int32_t j = 0; j < WINDOW; j++) {
    __m512 g[WINDOW];
    for (int32_t i = 0; i < WINDOW; i++) {
      int32_t place = i * WINDOW + j;
      g[i] = _mm512_load_ps(window + (flipped ? WINDOW * WINDOW - 1 - place : place) * step);
    }
    expand(g[0], g[1], g[2], columns[j]);
  }
  for (int32_t i = 0; i < PATCH; i++) {
    __m512 row[PATCH];
    expand(columns[0][i], columns[1][i], columns[2][i], row);
    for (int32_t j = 0; j < PATCH; j++)
      _mm512_store_ps(points + (i * PATCH + j) * pitch, row[j]);
  }
}

/* G^T m, of a column or row of four. */
TARGET_WINOGRAD
static inline __attribute__((always_inline)) void reduce(__m512 m0, __m512 m1, __m512 m2, __m512 m3,
                                                         __m512 to[WINDOW]) {
  const __m512 half = _mm512_set1_ps(0.5F);
  __m512 sum = _mm512_mul_ps(half, _mm512_add_ps(m1, m2));
  to[0] = _mm512_add_ps(m0, sum);
  to[1] = _mm512_mul_ps(half, _mm512_sub_ps(m1, m2));
  to[2] = _mm512_add_ps(sum, m3);
}

/* G^T m G. */
TARGET_WINOGRAD
void conv_winograd_window(const float *points, int64_t pitch, float *window, int64_t step) {
  __m512 columns[PATCH][WINDOW];
  for (int32_t j = 0; j < PATCH; j++)
    reduce(_mm512_load_ps(points + j * pitch), _mm512_load_ps(points + (PATCH + j) * pitch),
           _mm512_load_ps(points + (2 * PATCH + j) * pitch), _mm512_load_ps(points + (3 * PATCH + j) * pitch),
           columns[j]);
  for (int32_t i = 0; i < WINDOW; i++) {
    __m512 row[WINDOW];
    reduce(columns[0][i], columns[1][i], columns[2][i], columns[3][i], row);
    for (int32_t j = 0; j < WINDOW; j++)
      _mm512_store_ps(window + (i * WINDOW + j) * step, row[j]);
  }
}

#endif
