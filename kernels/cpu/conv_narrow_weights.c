/* Convolutions of few channels a group, weight gradient: for a row of the window and OCTET words read, the
 * sums of all its places are in registers, while the points of some rows go by: a vector of dy by a word
 * of x each. Where several groups share a block of dy, a word of each is broadcast together. bf16 is
 * multiplied by the dot product of pairs, of points: x is packed as every point beside the one that the next
 * output reads.
 *
 * Threads share out bundles; where those do not go round, samples and slabs too, and their parts are added in
 * their order: results depend on inputs and thread count only. */
#include "kernels/cpu/conv_narrow_parts.h"

#include <omp.h>

enum {
  COLUMNS = 3,     /* places of a window's row that are summed together, or one */
  RUN_LINES = 256, /* of dy, in the first-level cache */
  RUN_ROWS = 32
};

/* Sums of a bundle: [block][octet][tap][word][lane]. */
static int64_t octets(const ConvNarrow *it) { return (it->read_each + OCTET - 1) / OCTET; }
static int64_t bundle_sums(const ConvNarrow *it) {
  return it->bundle_blocks * octets(it) * it->window_places * OCTET * BLOCK;
}
static int64_t part_bundles(const ConvNarrow *it) { return it->bundles / it->bundle_parts; }
/* Of a plane's slab. */
static int64_t dy_row_bytes(const ConvNarrow *it) { return narrow_dy_lines(it) * LINE; }
static int64_t dy_bytes(const ConvNarrow *it) { return it->slab * dy_row_bytes(it); }
static int64_t thread_bytes(const ConvNarrow *it) {
  return narrow_ring_bytes(it) + dy_bytes(it) + part_bundles(it) * bundle_sums(it) * 4;
}

int64_t narrow_weights_workspace(const ConvNarrow *it) {
  return it->bundle_parts * it->unit_parts * thread_bytes(it);
}

#if HAS_CONV_NARROW

/* ---- Products ------------------------------------------------------------------------------------------------- */

/* Rows of dy, and what their first points read for a row of the window. */
typedef struct Run {
  const char *dy[RUN_ROWS], *x[RUN_ROWS];
  int64_t rows, lines; /* lines of a row */
  int64_t x_step;      /* bytes from what a line reads first to what the next does */
  float *sums;         /* [column][word][lane] */
} Run;

TARGET_F32
static inline __attribute__((always_inline)) __m512i share(const char *words, int32_t sharing) {
  if (sharing == 1) return _mm512_set1_epi32(*(const int32_t *)(const void *)words);
  return _mm512_set1_epi64(*(const int64_t *)(const void *)words);
}

/* Inlined with constants. No instruction for bf16 is left where words are f32. */
TARGET_BF16
static inline __attribute__((always_inline)) void multiply(const Run *run, bool bf16, int32_t sharing,
                                                           int32_t columns) {
  __m512 sums[COLUMNS * OCTET]; /* registers, once the loops over them are unrolled */
#pragma GCC unroll 32
  for (int32_t i = 0; i < columns * OCTET; i++)
    sums[i] = _mm512_load_ps(run->sums + i * BLOCK);
  for (int64_t r = 0; r < run->rows; r++) {
    const char *x = run->x[r], *dy = run->dy[r];
    for (const char *end = dy + run->lines * LINE; dy < end; dy += LINE, x += run->x_step) {
      __m512 vector = _mm512_load_ps(dy);
#pragma GCC unroll 32
      for (int32_t i = 0; i < columns * OCTET; i++) {
        __m512i word = share(x + i / OCTET * LINE + i % OCTET * sharing * 4, sharing);
        if (bf16)
          sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_castps_si512(vector), (__m512bh)word);
        else
          sums[i] = _mm512_fmadd_ps(vector, _mm512_castsi512_ps(word), sums[i]);
      }
    }
  }
#pragma GCC unroll 32
  for (int32_t i = 0; i < columns * OCTET; i++)
    _mm512_store_ps(run->sums + i * BLOCK, sums[i]);
}

typedef void RunFunction(const Run *run);

TARGET_BF16 static void f32_1_row(const Run *run) { multiply(run, false, 1, COLUMNS); }
TARGET_BF16 static void f32_1_place(const Run *run) { multiply(run, false, 1, 1); }
TARGET_BF16 static void f32_2_row(const Run *run) { multiply(run, false, 2, COLUMNS); }
TARGET_BF16 static void f32_2_place(const Run *run) { multiply(run, false, 2, 1); }
TARGET_BF16 static void bf16_1_row(const Run *run) { multiply(run, true, 1, COLUMNS); }
TARGET_BF16 static void bf16_1_place(const Run *run) { multiply(run, true, 1, 1); }
TARGET_BF16 static void bf16_2_row(const Run *run) { multiply(run, true, 2, COLUMNS); }
TARGET_BF16 static void bf16_2_place(const Run *run) { multiply(run, true, 2, 1); }

static RunFunction *run_function(const ConvNarrow *it, int64_t columns) {
  static RunFunction *const functions[2][SHARING_MOST][2] = {
      {{f32_1_place, f32_1_row}, {f32_2_place, f32_2_row}},
      {{bf16_1_place, bf16_1_row}, {bf16_2_place, bf16_2_row}}};
  return functions[it->bf16][it->sharing - 1][columns == COLUMNS];
}

/* ---- Units: a sample and a slab of a bundle -------------------------------------------------------------------- */

typedef struct Unit {
  const ConvNarrow *it;
  Ring ring;
  char *dy;    /* packed */
  float *sums; /* of the bundle's block */
} Unit;

/* Where the words of an octet begin in a row; NULL outside. */
static const char *octet_row(const Unit *unit, int64_t octet, int64_t plane, int64_t row) {
  const ConvNarrow *it = unit->it;
  int64_t word = octet * OCTET, chunk = word / it->chunk_words;
  if (plane < 0 || plane >= it->read[0] || row < 0 || row >= it->read[1]) return NULL;
  return narrow_ring_row(&unit->ring, plane, row, chunk) + word % it->chunk_words * it->sharing * 4;
}

/* A row of the window, for rows of dy of a plane. rows: written; begin: of the slab. */
static void multiply_rows(const Unit *unit, int64_t plane, Range rows, int64_t begin, int64_t octet,
                          int64_t window_row) {
  const ConvNarrow *it = unit->it;
  const Axis *axes[SPACE] = {&it->axes[0][0], &it->axes[1][0], &it->axes[2][0]};
  Run run = {.lines = narrow_dy_lines(it), .x_step = axes[2]->read_step * (it->bf16 ? 2 : 1) * LINE};
  int64_t plane_read = narrow_read_at(axes[0], plane, window_row / it->window[1]);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    int64_t row_read = narrow_read_at(axes[1], row, window_row % it->window[1]);
    const char *x = octet_row(unit, octet, plane_read, row_read);
    if (x == NULL) continue;
    run.x[run.rows] = x + axes[2]->read_first * LINE;
    run.dy[run.rows++] = unit->dy + (row - begin) * dy_row_bytes(it);
  }
  run.sums = unit->sums + (octet * it->window_places + window_row * it->window[2]) * OCTET * BLOCK;
  for (int64_t column = 0; column < it->window[2];) {
    int64_t columns = column + COLUMNS <= it->window[2] ? COLUMNS : 1;
    run_function(it, columns)(&run);
    column += columns;
    run.sums += columns * OCTET * BLOCK;
    for (int64_t r = 0; r < run.rows; r++)
      run.x[r] += columns * LINE;
  }
}

/* Rows of dy that the first-level cache holds beside x's. */
static int64_t run_rows(const ConvNarrow *it) {
  int64_t rows = RUN_LINES / narrow_dy_lines(it);
  return rows < 1 ? 1 : rows > RUN_ROWS ? RUN_ROWS : rows;
}

static void multiply_plane(const Unit *unit, int64_t plane, Range slab) {
  const ConvNarrow *it = unit->it;
  int64_t each = run_rows(it);
  for (int64_t row = slab.begin; row < slab.end; row += each) {
    Range rows = {row, row + each < slab.end ? row + each : slab.end};
    for (int64_t window_row = 0; window_row < it->window[0] * it->window[1]; window_row++) {
      for (int64_t octet = 0; octet < octets(it); octet++)
        multiply_rows(unit, plane, rows, slab.begin, octet, window_row);
    }
  }
}

/* dy: of the bundle. */
static void run_unit(Unit *unit, const char *dy, Range slab, float *sums) {
  const ConvNarrow *it = unit->it;
  int64_t point_bytes = it->bf16 ? LINE / 2 : LINE;
  for (int64_t plane = 0; plane < it->written[0]; plane++) {
    narrow_ring_fill(&unit->ring, narrow_reach(it, 0, (Range){plane, plane + 1}).end);
    for (int64_t block = 0; block < it->bundle_blocks; block++) {
      const char *from =
          dy + (block * it->written_places + plane * it->written[1] * it->written[2]) * point_bytes;
      for (int64_t row = slab.begin; row < slab.end; row++)
        narrow_pack_dy(it, from + row * it->written[2] * point_bytes,
                       unit->dy + (row - slab.begin) * dy_row_bytes(it));
      unit->sums = sums + block * (bundle_sums(it) / it->bundle_blocks);
      multiply_plane(unit, plane, slab);
    }
  }
}

/* ---- Launch --------------------------------------------------------------------------------------------------------- */

static float *sums_of(const ConvNarrow *it, uintptr_t workspace, int32_t part) {
  return (float *)(workspace +
                   (uintptr_t)((part + 1) * thread_bytes(it) - part_bundles(it) * bundle_sums(it) * 4));
}

/* A part: some bundles, some units of each. */
static void run_part(const ConvNarrow *it, const char *x, const char *dy, uintptr_t workspace, int32_t part) {
  char *planes = (char *)workspace + part * thread_bytes(it);
  float *sums = sums_of(it, workspace, part);
  int64_t element_bytes = it->bf16 ? 2 : 4, first = part / it->unit_parts * part_bundles(it);
  Range units = vector_share(it->samples * it->slabs, it->unit_parts, part % it->unit_parts);
  Unit unit = {.it = it, .dy = (char *)sums - dy_bytes(it)};
  memset(planes, 0, (size_t)narrow_ring_bytes(it));
  memset(sums, 0, (size_t)(part_bundles(it) * bundle_sums(it) * 4));
  for (int64_t bundle = first; bundle < first + part_bundles(it); bundle++) {
    for (int64_t u = units.begin; u < units.end; u++) {
      int64_t sample = u / it->slabs;
      Range slab = narrow_slab(it, u % it->slabs);
      narrow_ring_start(it, x + sample * it->read_channels * it->read_places * element_bytes, bundle,
                        narrow_reach(it, 1, slab), planes, &unit.ring);
      int64_t block = sample * (it->written_channels / BLOCK) + bundle * it->bundle_blocks;
      run_unit(&unit, dy + block * BLOCK * it->written_places * element_bytes, slab,
               sums + (bundle - first) * bundle_sums(it));
    }
  }
}

/* A bundle's sums over the parts, as weights (O, I/g, window). */
static void write_bundle(const ConvNarrow *it, uintptr_t workspace, int64_t bundle, void *dw) {
  int64_t part = bundle / part_bundles(it) * it->unit_parts;
  int64_t at = bundle % part_bundles(it) * bundle_sums(it), places = it->window_places;
  for (int64_t i = 0; i < bundle_sums(it); i++) {
    int64_t lane = i % BLOCK, word = i / BLOCK % OCTET, row = i / BLOCK / OCTET;
    int64_t tap = row % places, octet = row / places % octets(it), block = row / places / octets(it);
    int64_t read = octet * OCTET + word, written = narrow_lane_channel(it, block, lane);
    if (read >= it->read_each) continue;
    int64_t channel = (bundle * it->sharing + narrow_lane_group(it, lane)) * it->written_each + written;
    float sum = 0.0F;
    for (int32_t p = 0; p < it->unit_parts; p++)
      sum += sums_of(it, workspace, (int32_t)part + p)[at + i];
    vector_store(dw, (channel * it->read_each + read) * places + tap, sum, it->weights_dtype == DTYPE_BF16);
  }
}

void narrow_weights(const ConvNarrow *it, const void *x, const void *dy, void *dw, uintptr_t workspace) {
  int32_t parts = it->bundle_parts * it->unit_parts;
#pragma omp parallel num_threads(parts)
  {
    /* Should the runtime give fewer threads than asked for, each does several threads' work. */
    int32_t given = omp_get_num_threads(), self = omp_get_thread_num();
    for (int32_t part = self; part < parts; part += given)
      run_part(it, x, dy, workspace, part);
#pragma omp barrier
    for (int64_t bundle = self; bundle < it->bundles; bundle += given)
      write_bundle(it, workspace, bundle, dw);
  }
}

#else

void narrow_weights(const ConvNarrow *it, const void *x, const void *dy, void *dw, uintptr_t workspace) {
  (void)it, (void)x, (void)dy, (void)dw, (void)workspace;
}

#endif
