/* kernels/cpu: what the files of the convolutions with fewer products share; private to conv_winograd*.c. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_WINOGRAD_PARTS_H
#define VRAMLAB_KERNELS_CPU_CONV_WINOGRAD_PARTS_H

#include "kernels/cpu/batch_norm.h"
#include "kernels/cpu/conv_winograd.h"
#include "kernels/cpu/vector.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_CONV_WINOGRAD 1
#include <immintrin.h>
#define TARGET_WINOGRAD __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#else
#define HAS_CONV_WINOGRAD 0
#endif

enum {
  BLOCK = 16, /* channels of a block, values of a register */
  PAIR = 2,   /* blocks written at once */
  TILE = 2,   /* outputs of a tile, each way */
  WINDOW = 3,
  PATCH = TILE + WINDOW - 1, /* inputs of a tile, each way */
  POINTS = PATCH * PATCH,    /* of a transformed tile */
  COLUMNS = 8,               /* tiles multiplied at once */
  TILES_MOST = 128,          /* of a run over its depths */
  DEPTHS_MOST = TILES_MOST / COLUMNS
};

typedef enum WinogradPass { WINOGRAD_FORWARD = 0, WINOGRAD_DATA, WINOGRAD_WEIGHTS } WinogradPass;

/* What is read is x, or dy for the data gradient; what is written y, or dx. For the weights' gradient x is
 * read, and dy stands where the others write. */
typedef struct ConvWinograd {
  WinogradPass pass;
  int64_t samples, read_blocks, written_blocks;
  int64_t depth, height, width, taps; /* places; of the window's depth, 3 or 1 */
  int64_t tile_columns, tiles;        /* of a row, of a plane */
  int64_t run, runs;                  /* tiles taken at a time, a multiple of COLUMNS; of a plane */
  int64_t slices;                     /* whose tiles are multiplied together: so many depths */
  int64_t depth_parts;
  int32_t place_parts; /* of the threads */
  bool normalises;     /* x, as it is read for the weights' gradient */
  ChannelView x;       /* where it does */
  bool read_first;     /* blocks read are the outermost of the weights */
} ConvWinograd;

static inline int64_t units_of(const ConvWinograd *it) { return it->samples * it->runs * it->depth_parts; }
static inline int64_t pairs_of(const ConvWinograd *it) { return it->written_blocks / PAIR; }

/* Floats from a point of a transformed tile to the next, for so many blocks of a run. A line more than they
 * take, since the sixteen points of a tile are written together and would fall into one set of the cache. */
static inline int64_t point_pitch(const ConvWinograd *it, int64_t blocks) {
  return blocks * it->run * BLOCK + BLOCK;
}

/* A run of a sample's tiles over some depths. */
typedef struct Unit {
  int64_t sample, first; /* tile */
  Range depths;
} Unit;
Unit conv_winograd_unit(const ConvWinograd *it, int64_t index);

#if HAS_CONV_WINOGRAD

/* What is read is normalised first: (x - mean) scale + beta, then the ReLU. */
typedef struct WinogradNorm {
  BatchNormCoefficients by;
  bool relu;
} WinogradNorm;

/* What is read of a run of tiles of a plane, transformed: [point][block of `blocks`][tile of run][BLOCK].
 * plane: of its first block; block_places: from one block to the next; norm NULL: as it is. */
void conv_winograd_read(const ConvWinograd *it, const float *plane, int64_t block_places, int64_t blocks,
                        int64_t first, const WinogradNorm *norm, float *to);
/* The same of the gradient of what is written. */
void conv_winograd_read_gradient(const ConvWinograd *it, const float *plane, int64_t block_places,
                                 int64_t blocks, int64_t first, float *to);
/* A run of tiles of one block, from [point][...][tile][BLOCK] with `pitch` floats between points. */
void conv_winograd_write(const ConvWinograd *it, const float *from, int64_t pitch, int64_t first,
                         float *plane);
/* 3x3 windows of BLOCK lanes to POINTS, and gradients back. Windows are `step` floats apart, points
 * `pitch`. */
void conv_winograd_weights(const float *window, int64_t step, bool flipped, float *points, int64_t pitch);
void conv_winograd_window(const float *points, int64_t pitch, float *window, int64_t step);

/* The weights' gradient: conv_winograd_weights.c. */
int64_t conv_winograd_gradient_bytes(const ConvWinograd *it);
void conv_winograd_gradient(const Kernel *kernel, const uintptr_t *inputs, float *dw, uintptr_t workspace);

#endif

#endif
