/* The weights' gradient with fewer products: for each of sixteen points and each tap of the depth a product
 * of matrices, transformed x by transformed gradients of y over all tiles, transformed back once at the end.
 *
 * Threads share out tiles, each with sums of its own, which are added in the threads' order. */
#include "kernels/cpu/conv_weights.h"
#include "kernels/cpu/conv_winograd_parts.h"

#if HAS_CONV_WINOGRAD

#include <omp.h>
#include <string.h>

enum { ROWS = 8 /* channels of x in a tile of registers: half a block */ };

static int64_t slots_of(const ConvWinograd *it) { return it->slices + it->taps - 1; }
static int64_t channels_read(const ConvWinograd *it) { return it->read_blocks * BLOCK; }
static int64_t channels_written(const ConvWinograd *it) { return it->written_blocks * BLOCK; }
static int64_t sums_floats(const ConvWinograd *it) {
  return POINTS * it->taps * channels_read(it) * channels_written(it);
}
static int64_t read_floats(const ConvWinograd *it) { return POINTS * point_pitch(it, it->read_blocks); }
static int64_t written_floats(const ConvWinograd *it) { return POINTS * point_pitch(it, it->written_blocks); }
static int64_t norm_floats(const ConvWinograd *it) {
  return it->normalises ? batch_norm_coefficients(&it->x) : 0;
}
static int64_t thread_floats(const ConvWinograd *it) {
  return norm_floats(it) + sums_floats(it) + slots_of(it) * read_floats(it) + it->slices * written_floats(it);
}

int64_t conv_winograd_gradient_bytes(const ConvWinograd *it) {
  return 4 * it->place_parts * thread_floats(it);
}

/* One thread's work on a launch. */
typedef struct Share {
  const ConvWinograd *it;
  const float *x, *dy;
  float *sums, *read, *written;
  const WinogradNorm *norm; /* of x; NULL: as it is */
} Share;

/* ROWS channels of x by a pair of blocks of y, over the tiles of some depths. */
TARGET_WINOGRAD
static void multiply(const float *const *read, const float *const *written, int64_t depths, int64_t run,
                     int64_t block_pitch, float *sums, int64_t row_pitch) {
  __m512 sum0[ROWS], sum1[ROWS]; /* registers, once every loop over them is unrolled */
#pragma GCC unroll 8
  for (int32_t i = 0; i < ROWS; i++) {
    sum0[i] = _mm512_load_ps(sums + i * row_pitch);
    sum1[i] = _mm512_load_ps(sums + i * row_pitch + BLOCK);
  }
  for (int64_t d = 0; d < depths; d++) {
    const float *x = read[d], *dy = written[d];
    for (int64_t k = 0; k < run; k++, x += BLOCK, dy += BLOCK) {
      __m512 first = _mm512_load_ps(dy), second = _mm512_load_ps(dy + block_pitch);
#pragma GCC unroll 8
      for (int32_t i = 0; i < ROWS; i++) {
        __m512 value = _mm512_set1_ps(x[i]);
        sum0[i] = _mm512_fmadd_ps(first, value, sum0[i]);
        sum1[i] = _mm512_fmadd_ps(second, value, sum1[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int32_t i = 0; i < ROWS; i++) {
    _mm512_store_ps(sums + i * row_pitch, sum0[i]);
    _mm512_store_ps(sums + i * row_pitch + BLOCK, sum1[i]);
  }
}

static void multiply_point(const Share *share, Range depths, int64_t point, int64_t tap) {
  const ConvWinograd *it = share->it;
  const float *read[DEPTHS_MOST], *written[DEPTHS_MOST];
  int64_t count = 0, run_floats = it->run * BLOCK;
  for (int64_t d = depths.begin; d < depths.end; d++) {
    int64_t slice = d + tap - it->taps / 2;
    if (slice < 0 || slice >= it->depth) continue;
    read[count] =
        share->read + slice % slots_of(it) * read_floats(it) + point * point_pitch(it, it->read_blocks);
    written[count++] = share->written + (d - depths.begin) * written_floats(it) +
                       point * point_pitch(it, it->written_blocks);
  }
  float *sums = share->sums + (point * it->taps + tap) * channels_read(it) * channels_written(it);
  for (int64_t pair = 0; pair < pairs_of(it); pair++) {
    const float *x[DEPTHS_MOST], *dy[DEPTHS_MOST];
    for (int64_t d = 0; d < count; d++)
      dy[d] = written[d] + pair * PAIR * run_floats;
    for (int64_t r = 0; r < channels_read(it); r += ROWS) {
      for (int64_t d = 0; d < count; d++)
        x[d] = read[d] + r / BLOCK * run_floats + r % BLOCK;
      multiply(x, dy, count, it->run, run_floats, sums + r * channels_written(it) + pair * PAIR * BLOCK,
               channels_written(it));
    }
  }
}

static void run_unit(const Share *share, const Unit *unit) {
  const ConvWinograd *it = share->it;
  int64_t plane = it->height * it->width, ready = unit->depths.begin - it->taps / 2;
  if (ready < 0) ready = 0;
  for (int64_t d = unit->depths.begin; d < unit->depths.end; d += it->slices) {
    Range depths = {d, d + it->slices < unit->depths.end ? d + it->slices : unit->depths.end};
    int64_t reach = depths.end + it->taps / 2;
    for (; ready < reach && ready < it->depth; ready++)
      conv_winograd_read(it, share->x + (unit->sample * it->read_blocks * it->depth + ready) * plane * BLOCK,
                         it->depth * plane, it->read_blocks, unit->first, share->norm,
                         share->read + ready % slots_of(it) * read_floats(it));
    for (int64_t at = depths.begin; at < depths.end; at++)
      conv_winograd_read_gradient(
          it, share->dy + (unit->sample * it->written_blocks * it->depth + at) * plane * BLOCK,
          it->depth * plane, it->written_blocks, unit->first,
          share->written + (at - depths.begin) * written_floats(it));
    for (int64_t point = 0; point < POINTS; point++)
      for (int64_t tap = 0; tap < it->taps; tap++)
        multiply_point(share, depths, point, tap);
  }
}

/* Adds the threads' sums to the first's, in their order. */
static void add_parts(const ConvWinograd *it, float *sums, Range range) {
  for (int32_t part = 1; part < it->place_parts; part++) {
    const float *other = sums + part * thread_floats(it);
    for (int64_t e = range.begin; e < range.end; e++)
      sums[e] += other[e];
  }
}

static void transform_back(const ConvWinograd *it, const float *sums, Range blocks, float *dw) {
  int64_t area = WINDOW * WINDOW, tap_floats = channels_read(it) * channels_written(it);
  for (int64_t w = blocks.begin; w < blocks.end; w++)
    for (int64_t r = 0; r < it->read_blocks; r++)
      for (int64_t tap = 0; tap < it->taps; tap++) {
        int64_t block = it->read_first ? r * it->written_blocks + w : w * it->read_blocks + r;
        float *window = dw + (block * it->taps + tap) * area * BLOCK * BLOCK;
        for (int64_t channel = 0; channel < BLOCK; channel++)
          conv_winograd_window(sums + tap * tap_floats + (r * BLOCK + channel) * channels_written(it) +
                                   w * BLOCK,
                               it->taps * tap_floats, window + channel * BLOCK, BLOCK * BLOCK);
      }
}

void conv_winograd_gradient(const Kernel *kernel, const uintptr_t *inputs, float *dw, uintptr_t workspace) {
  const ConvWinograd *it = kernel->data;
  float *memory = (float *)workspace;
#pragma omp parallel num_threads(kernel->threads)
  {
    /* Should the runtime give fewer threads than asked for, each does several threads' work. */
    int32_t given = omp_get_num_threads(), self = omp_get_thread_num();
    for (int32_t part = self; part < it->place_parts; part += given) {
      float *sums = memory + part * thread_floats(it), *read = sums + sums_floats(it);
      Share share = {.it = it,
                     .x = (const float *)inputs[0],
                     .dy = (const float *)inputs[1],
                     .sums = sums,
                     .read = read,
                     .written = read + slots_of(it) * read_floats(it)};
      WinogradNorm norm = {.relu = kernel->node->params.relu == 1};
      if (it->normalises) {
        float *to = share.written + it->slices * written_floats(it);
        Range channels = {0, channels_read(it)};
        norm.by = batch_norm_fill(kernel, &it->x, inputs, CONV_WEIGHTS_MEAN, channels, to);
        share.norm = &norm;
      }
      memset(sums, 0, sizeof(float) * (size_t)sums_floats(it));
      Range units = vector_share(units_of(it), it->place_parts, part);
      for (int64_t i = units.begin; i < units.end; i++) {
        Unit unit = conv_winograd_unit(it, i);
        run_unit(&share, &unit);
      }
    }
#pragma omp barrier
    add_parts(it, memory, vector_share(sums_floats(it), given, self));
#pragma omp barrier
    transform_back(it, memory, vector_share(it->written_blocks, given, self), dw);
  }
}

#endif
