/* Convolutions of few channels a group, forward and data gradient: a tile of points of a row by a block
 * written is in registers, and for every place of the window and every word read takes one multiply-add of a
 * vector of weights by the word of each point. Where several groups share the block, a word of each is
 * broadcast together, as one of 64 bits: every lane computes.
 *
 * A value is a sum in the order of chunks, places of the window and words: results depend on inputs only. */
#include "kernels/cpu/conv_narrow_parts.h"

#include <omp.h>

int64_t narrow_forward_workspace(const ConvNarrow *it, int32_t threads) {
  return narrow_weights_bytes(it) + threads * narrow_ring_bytes(it);
}

#if HAS_CONV_NARROW

/* A place of the window, and a chunk: what the first point of a row reads, and the weights' vectors. */
typedef struct Tap {
  const char *read, *weights;
  int64_t words;
} Tap;

typedef struct Tile {
  const Tap *taps;
  int64_t tap_count;
  int64_t read_shift, weights_shift; /* bytes from the taps' */
  char *written;
  int64_t step_bytes; /* between points written */
  int64_t points;     /* written; others are computed only */
  int64_t ahead;      /* points of the next tile */
  bool bf16;
  __m512i lanes; /* that the channels of a block are in */
} Tile;

/* Words of one point, one a group, in turn in all lanes. */
TARGET_F32
static inline __attribute__((always_inline)) __m512i share(const char *words, int32_t sharing) {
  if (sharing == 1) return _mm512_set1_epi32(*(const int32_t *)(const void *)words);
  return _mm512_set1_epi64(*(const int64_t *)(const void *)words);
}

TARGET_BF16
static inline __attribute__((always_inline)) void write(const Tile *tile, int64_t point, __m512 sum) {
  __m512 channels = _mm512_permutexvar_ps(tile->lanes, sum);
  char *to = tile->written + point * tile->step_bytes;
  if (tile->bf16)
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(channels));
  else
    _mm512_storeu_ps(to, channels);
}

/* Inlined with constants. No instruction for bf16 is left in a tile of f32. */
TARGET_BF16
static inline __attribute__((always_inline)) void multiply(const Tile *tile, bool bf16, int32_t sharing,
                                                           int32_t pitch, int32_t points) {
  __m512 sums[TILE_POINTS]; /* registers, once every loop over them is unrolled */
#pragma GCC unroll 16
  for (int32_t i = 0; i < points; i++)
    sums[i] = _mm512_setzero_ps();
  for (int64_t t = 0; t < tile->tap_count; t++) {
    const char *read = tile->taps[t].read + tile->read_shift,
               *weights = tile->taps[t].weights + tile->weights_shift;
    for (const char *end = weights + tile->taps[t].words * LINE; weights < end;
         weights += LINE, read += sharing * 4) {
      __m512 vector = _mm512_load_ps(weights);
#pragma GCC unroll 16
      for (int32_t i = 0; i < points; i++) {
        __m512i word = share(read + i * pitch, sharing);
        if (bf16)
          sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_castps_si512(vector), (__m512bh)word);
        else
          sums[i] = _mm512_fmadd_ps(vector, _mm512_castsi512_ps(word), sums[i]);
      }
    }
  }
#pragma GCC unroll 16
  for (int32_t i = 0; i < points; i++) {
    if (i < tile->points) write(tile, i, sums[i]);
  }
}

typedef void TileFunction(const Tile *tile);

/* Named by type, groups that share a block, and the distance of points read. */
#define TILE(name, bf16, sharing, pitch)                                                                     \
  TARGET_BF16 static void name##_16(const Tile *tile) { multiply(tile, bf16, sharing, pitch, 16); }          \
  TARGET_BF16 static void name##_8(const Tile *tile) { multiply(tile, bf16, sharing, pitch, 8); }
TILE(f32_1_near, false, 1, LINE)
TILE(f32_1_far, false, 1, 2 * LINE)
TILE(f32_2_near, false, 2, LINE)
TILE(f32_2_far, false, 2, 2 * LINE)
TILE(bf16_1_near, true, 1, LINE)
TILE(bf16_1_far, true, 1, 2 * LINE)
TILE(bf16_2_near, true, 2, LINE)
TILE(bf16_2_far, true, 2, 2 * LINE)
#undef TILE

/* For whole tiles, and for half ones. */
static TileFunction *tile_function(const ConvNarrow *it, int64_t read_step, bool whole) {
  static TileFunction *const functions[2][SHARING_MOST][STRIDE_MOST][2] = {
      {{{f32_1_near_8, f32_1_near_16}, {f32_1_far_8, f32_1_far_16}},
       {{f32_2_near_8, f32_2_near_16}, {f32_2_far_8, f32_2_far_16}}},
      {{{bf16_1_near_8, bf16_1_near_16}, {bf16_1_far_8, bf16_1_far_16}},
       {{bf16_2_near_8, bf16_2_near_16}, {bf16_2_far_8, bf16_2_far_16}}}};
  return functions[it->bf16][it->sharing - 1][read_step - 1][whole];
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* A thread's work on a unit: a sample, a bundle, a slab. */
typedef struct Unit {
  const ConvNarrow *it;
  const char *weights; /* of the bundle */
  char *written;       /* of the bundle */
  int64_t block_bytes; /* between blocks written */
  __m512i lanes;
  Ring ring;
} Unit;

/* The taps of a row written, of which points are a class of theirs. */
static int64_t find_taps(const Unit *unit, const int64_t *place, const Axis *columns, Tap *taps) {
  const ConvNarrow *it = unit->it;
  const Axis *planes = narrow_class_of(it, 0, place[0]), *rows = narrow_class_of(it, 1, place[1]);
  int64_t plane_q = (place[0] - planes->first) / planes->step, row_q = (place[1] - rows->first) / rows->step;
  int64_t count = 0;
  for (int64_t chunk = 0; chunk < it->chunks; chunk++) {
    int64_t word = chunk * it->chunk_words, rest = it->words - word;
    for (int64_t p = 0; p < planes->taps; p++) {
      int64_t plane = narrow_read_at(planes, plane_q, p);
      if (plane < 0 || plane >= it->read[0]) continue;
      for (int64_t r = 0; r < rows->taps; r++) {
        int64_t row = narrow_read_at(rows, row_q, r);
        if (row < 0 || row >= it->read[1]) continue;
        const char *points = narrow_ring_row(&unit->ring, plane, row, chunk);
        int64_t tap =
            (planes->tap_first + p * planes->tap_step) * it->window[1] + rows->tap_first + r * rows->tap_step;
        for (int64_t c = 0; c < columns->taps; c++) {
          int64_t place_of = tap * it->window[2] + columns->tap_first + c * columns->tap_step;
          taps[count++] = (Tap){.read = points + narrow_read_at(columns, 0, c) * LINE,
                                .weights = unit->weights + (place_of * it->words + word) * LINE,
                                .words = rest < it->chunk_words ? rest : it->chunk_words};
        }
      }
    }
  }
  return count;
}

TARGET_F32
static void write_row(const Unit *unit, const int64_t *place, const Axis *columns, const Tap *taps,
                      int64_t tap_count) {
  const ConvNarrow *it = unit->it;
  int64_t point_bytes = it->bf16 ? LINE / 2 : LINE;
  char *row = unit->written + ((place[0] * it->written[1] + place[1]) * it->written[2]) * point_bytes;
  Tile tile = {.taps = taps,
               .tap_count = tap_count,
               .step_bytes = columns->step * point_bytes,
               .bf16 = it->bf16,
               .lanes = unit->lanes};
  for (int64_t block = 0; block < it->bundle_blocks; block++) {
    tile.weights_shift = block * it->window_places * it->words * LINE;
    for (int64_t q = 0; q < columns->count; q += TILE_POINTS) {
      int64_t rest = columns->count - q;
      tile.points = rest < TILE_POINTS ? rest : TILE_POINTS;
      tile.read_shift = q * columns->read_step * LINE;
      tile.written = row + block * unit->block_bytes + (columns->first + q * columns->step) * point_bytes;
      for (int64_t i = 0; i < tile.points; i++)
        __builtin_prefetch(tile.written + i * tile.step_bytes, 1, 3);
      tile_function(it, columns->read_step, rest > TILE_LEAST)(&tile);
    }
  }
}

static void run_unit(Unit *unit, Range rows) {
  const ConvNarrow *it = unit->it;
  Tap taps[TAPS_MOST];
  int64_t place[2];
  for (place[0] = 0; place[0] < it->written[0]; place[0]++) {
    narrow_ring_fill(&unit->ring, narrow_reach(it, 0, (Range){place[0], place[0] + 1}).end);
    for (place[1] = rows.begin; place[1] < rows.end; place[1]++) {
      for (int32_t c = 0; c < it->classes[2]; c++) {
        const Axis *columns = &it->axes[2][c];
        write_row(unit, place, columns, taps, find_taps(unit, place, columns, taps));
      }
    }
  }
}

/* ---- Launch -------------------------------------------------------------------------------------------------------- */

TARGET_F32
static __m512i lanes_of(const ConvNarrow *it) {
  _Alignas(LINE) uint32_t order[BLOCK];
  for (uint32_t channel = 0; channel < BLOCK; channel++) {
    uint32_t each = it->sharing == 1 ? BLOCK : (uint32_t)it->written_each;
    order[channel] = channel % each * (uint32_t)it->sharing + channel / each;
  }
  return _mm512_load_si512(order);
}

TARGET_F32
static void run_units(const ConvNarrow *it, Range units, const char *read, const char *weights, char *written,
                      char *planes) {
  int64_t element_bytes = it->bf16 ? 2 : 4;
  memset(planes, 0, (size_t)narrow_ring_bytes(it));
  Unit unit = {.it = it, .block_bytes = it->written_places * BLOCK * element_bytes, .lanes = lanes_of(it)};
  for (int64_t u = units.begin; u < units.end; u++) {
    int64_t slab = u % it->slabs, bundle = u / it->slabs % it->bundles, sample = u / it->slabs / it->bundles;
    Range rows = narrow_slab(it, slab);
    int64_t block = bundle * it->bundle_blocks;
    unit.weights = weights + block * it->window_places * it->words * LINE;
    unit.written = written + sample * it->written_channels * it->written_places * element_bytes +
                   block * unit.block_bytes;
    narrow_ring_start(it, read + sample * it->read_channels * it->read_places * element_bytes, bundle,
                      narrow_reach(it, 1, rows), planes, &unit.ring);
    run_unit(&unit, rows);
  }
}

void narrow_forward(const ConvNarrow *it, int32_t threads, const void *read, const void *weights,
                    void *written, uintptr_t workspace) {
  char *packed = (char *)workspace, *rings = packed + narrow_weights_bytes(it);
  int64_t blocks = it->bundles * it->bundle_blocks, units = it->samples * it->bundles * it->slabs;
#pragma omp parallel num_threads(threads)
  {
    /* Should the runtime give fewer threads than asked for, each does several threads' work. */
    int32_t given = omp_get_num_threads(), self = omp_get_thread_num();
    narrow_pack_weights(it, weights, vector_share(blocks, given, self), packed);
#pragma omp barrier
    run_units(it, vector_share(units, given, self), read, packed, written,
              rings + self * narrow_ring_bytes(it));
  }
}

#else

void narrow_forward(const ConvNarrow *it, int32_t threads, const void *read, const void *weights,
                    void *written, uintptr_t workspace) {
  (void)it, (void)threads, (void)read, (void)weights, (void)written, (void)workspace;
}

#endif
