/* kernels/cpu: what the files of the own convolutions of few channels a group share; private to
 * conv_narrow*.c. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_NARROW_PARTS_H
#define VRAMLAB_KERNELS_CPU_CONV_NARROW_PARTS_H

#include "kernels/cpu/conv_narrow.h"
#include "kernels/cpu/vector.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_CONV_NARROW 1
#include <immintrin.h>
#define TARGET_F32 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prfchw")))
#define TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,prfchw")))
#else
#define HAS_CONV_NARROW 0
#endif

enum {
  SPACE = 3,       /* spatial dimensions, missing ones first with size 1 */
  BLOCK = 16,      /* channels of a block, words of a line */
  LINE = 64,       /* bytes of a line */
  STRIDE_MOST = 2, /* of what a tile reads; of a data gradient: classes of a dimension */
  SHARING_MOST = 2,
  CHUNKS_MOST = 2,
  TAPS_MOST = 512, /* times chunks */
  TILE_POINTS = 16,
  TILE_LEAST = 8,
  OCTET = 8 /* channels read that a tile of the weight gradient takes */
};

/* What is written at every step-th place of a dimension from `first` on, `count` times: at place q it is the
 * sum over taps of what is read at read_step * q + read_first + tap * read_direction, by the weights of the
 * window's place tap_first + tap * tap_step. Forward has one such class a dimension, the data gradient one
 * for each remainder of the stride. */
typedef struct Axis {
  int64_t first, step, count;
  int64_t read_step, read_first, read_direction;
  int64_t taps, tap_first, tap_step;
} Axis;

typedef enum NarrowPass { NARROW_FORWARD = 0, NARROW_DATA, NARROW_WEIGHTS } NarrowPass;

/* Geometry as forward sees it, but for the data gradient, which reads dy and writes dx. The weight gradient
 * reads x, and dy has the place of what is written. */
typedef struct ConvNarrow {
  NarrowPass pass;
  bool bf16; /* words are pairs: of channels, in the weight gradient of points; else f32 */
  int64_t samples, groups, read_channels, written_channels;
  int64_t read[SPACE], written[SPACE], window[SPACE];
  int64_t window_places, read_places, written_places; /* products of the above */
  int64_t read_each, written_each;                    /* channels of a group */
  /* A bundle is the groups whose written channels share a block, or one group that writes whole blocks. */
  int64_t sharing; /* groups of a bundle */
  int64_t bundles, bundle_blocks;
  int64_t words, chunk_words; /* read of a point by a group; of them in a chunk, at most */
  int64_t chunks;
  Axis axes[SPACE][STRIDE_MOST];
  int32_t classes[SPACE];
  /* Packed rows of what is read, a line a point: points before the first, points in all. */
  int64_t margin, row_points;
  int64_t slab, slabs, slab_reach; /* rows written, of a plane; rows read for them at most */
  DType weights_dtype;
  /* Of the weight gradient: threads share out bundles and, of each, samples and slabs. */
  int32_t bundle_parts, unit_parts;
} ConvNarrow;

static inline int64_t narrow_ring_bytes(const ConvNarrow *it) {
  return it->window[0] * it->slab_reach * it->chunks * it->row_points * LINE;
}

static inline int64_t narrow_read_at(const Axis *axis, int64_t q, int64_t tap) {
  return axis->read_step * q + axis->read_first + tap * axis->read_direction;
}
/* The class of a place written. */
static inline const Axis *narrow_class_of(const ConvNarrow *it, int32_t dimension, int64_t place) {
  for (int32_t i = 0; i + 1 < it->classes[dimension]; i++) {
    const Axis *axis = &it->axes[dimension][i];
    if ((place - axis->first) % axis->step == 0) return axis;
  }
  return &it->axes[dimension][it->classes[dimension] - 1];
}
/* What the places of a range read of a dimension: inside it, possibly nothing. */
Range narrow_reach(const ConvNarrow *it, int32_t dimension, Range places);
static inline Range narrow_slab(const ConvNarrow *it, int64_t slab) {
  int64_t begin = slab * it->slab, end = begin + it->slab;
  return (Range){begin, end < it->written[1] ? end : it->written[1]};
}

/* ---- Packing: conv_narrow_pack.c -------------------------------------------------------------------------- */

/* Where the words of a chunk come from: words or halves of words of the two blocks that hold its channels. */
typedef struct Order {
  _Alignas(LINE) uint16_t halves[2 * BLOCK];
  _Alignas(LINE) uint32_t words[BLOCK];
  uint16_t there; /* by word: whether there is such a channel */
} Order;

/* Packed planes of what a unit (sample, bundle, slab) reads, as many as the window is deep, in a ring. A row
 * is, chunk by chunk, its points with zeros around them, a point a line of words [channel][group]. */
typedef struct Ring {
  Order orders[CHUNKS_MOST];
  const ConvNarrow *it;
  const char *first, *second; /* blocks of the sample */
  char *planes;
  Range rows;     /* read */
  int64_t packed; /* planes before this one have been */
} Ring;

/* Makes a ring for a unit. Margins have to be zero: memory is zeroed once. */
void narrow_ring_start(const ConvNarrow *it, const char *sample, int64_t bundle, Range rows, char *planes,
                       Ring *ring);
/* Packs planes up to `end`. */
void narrow_ring_fill(Ring *ring, int64_t end);
/* The first point of a row, in a plane of the ring. */
const char *narrow_ring_row(const Ring *ring, int64_t plane, int64_t row, int64_t chunk);
/* A row of dy's block, words in the order of the lanes of sums; f32, or pairs of points. */
void narrow_pack_dy(const ConvNarrow *it, const char *row, char *to);
/* Lines that takes. */
static inline int64_t narrow_dy_lines(const ConvNarrow *it) {
  return it->bf16 ? (it->written[2] + 1) / 2 : it->written[2];
}

/* Weights as vectors: [block written][tap][word read][lane]. A range of blocks. */
void narrow_pack_weights(const ConvNarrow *it, const void *weights, Range blocks, char *to);
static inline int64_t narrow_weights_bytes(const ConvNarrow *it) {
  return it->bundles * it->bundle_blocks * it->window_places * it->words * LINE;
}
/* The written channel, in its bundle's group, and the group in the bundle, of a lane of a block. */
static inline int64_t narrow_lane_channel(const ConvNarrow *it, int64_t block_of_bundle, int64_t lane) {
  return block_of_bundle * BLOCK + lane / it->sharing;
}
static inline int64_t narrow_lane_group(const ConvNarrow *it, int64_t lane) { return lane % it->sharing; }

/* ---- Launches ------------------------------------------------------------------------------------------------ */

/* conv_narrow_forward.c: forward and data gradient. */
int64_t narrow_forward_workspace(const ConvNarrow *it, int32_t threads);
void narrow_forward(const ConvNarrow *it, int32_t threads, const void *read, const void *weights,
                    void *written, uintptr_t workspace);
/* conv_narrow_weights.c */
int64_t narrow_weights_workspace(const ConvNarrow *it);
void narrow_weights(const ConvNarrow *it, const void *x, const void *dy, void *dw, uintptr_t workspace);

#endif
