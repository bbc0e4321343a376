/* kernels/cpu: what the files of the own weight gradient share; private to conv_weights*.c. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_WEIGHTS_PARTS_H
#define VRAMLAB_KERNELS_CPU_CONV_WEIGHTS_PARTS_H

#include "kernels/cpu/batch_norm.h"
#include "kernels/cpu/conv_weights.h"
#include "kernels/cpu/vector.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_CONV_WEIGHTS 1
#include <immintrin.h>
#define TARGET_F32 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#else
#define HAS_CONV_WEIGHTS 0
#endif

enum {
  SPACE = 3,         /* spatial dimensions, missing ones first with size 1 */
  BLOCK = 16,        /* channels of a block */
  LINE = 64,         /* bytes of BLOCK channels: a point in f32, a pair of points in packed bf16 */
  TILE_ROWS = 8,     /* input channels a tile of registers holds: half a block */
  STRETCH_MOST = 28, /* lines multiplied between two rounds of fetching */
  LINES_MOST = 192,  /* of a run: three blocks of them fit into the first-level cache */
  LINES_LEAST = 16,
  RUN_BYTES = 640 << 10 /* of a run, in the second-level cache */
};

typedef struct ConvWeights {
  ChannelView x, dy;
  int64_t in[SPACE], out[SPACE], window[SPACE], stride[SPACE], padding[SPACE];
  int64_t taps, points;
  bool bf16, normalises;
  bool outputs_first;  /* dw's blocks: output channels outermost, else input channels */
  bool shares_outputs; /* channel parts are of dy, else of x */
  int32_t channel_parts, point_parts;
  int64_t run; /* points packed at a time; even */
  /* Rows of x, at most, that the windows of a run reach; 0 unless they are normalised into a buffer: with one
   * tap packing does it. */
  int64_t reached;
} ConvWeights;

static inline int64_t element_bytes(const ConvWeights *it) { return it->bf16 ? 2 : 4; }
static inline int64_t lines_of(const ConvWeights *it, int64_t points) {
  return it->bf16 ? (points + 1) / 2 : points;
}
static inline int64_t gradient_elements(const ConvWeights *it) {
  return it->x.channels * it->dy.channels * it->taps;
}

/* ---- How the work is shared out: conv_weights_plan.c ------------------------------------------------------ */

/* Channel blocks of a part. Those of dy are taken in pairs. */
Range conv_weights_blocks_of_x(const ConvWeights *it, int32_t part);
Range conv_weights_blocks_of_dy(const ConvWeights *it, int32_t part);
/* Sets the parts of channels and points that take `threads` threads the fewest cycles. */
void conv_weights_choose_shares(ConvWeights *it, int32_t threads);
/* Sets the points of a run to what the second-level cache holds of a share. */
void conv_weights_choose_run(ConvWeights *it);
/* Rows of x, at most, that the windows of a run reach. */
int64_t conv_weights_most_reached(const ConvWeights *it);
/* The first place of the window of an output, in each dimension, and the row of a sample it is: both negative
 * in the padding. */
int64_t conv_weights_window_start(const ConvWeights *it, int64_t output, int32_t *at);

/* The first of some points that are in one sample, and what rows of it their windows reach at most. */
typedef struct Reach {
  int64_t sample, points;
  Range rows;
} Reach;

Reach conv_weights_reach(const ConvWeights *it, int64_t first, int64_t end);

/* ---- Values as they are multiplied: conv_weights_pack.c --------------------------------------------------- */

/* What x is normalised with; mean is NULL where it is not. */
typedef struct Normalisation {
  BatchNormCoefficients by; /* from a share's first channel */
  bool relu;
} Normalisation;

/* Channel blocks of a share of x or dy. */
typedef struct Operand {
  const char *rows;            /* of its first block */
  int64_t block_rows;          /* from one block to the next */
  char *packed;                /* in bf16: a run of points */
  Normalisation normalisation; /* while packing */
} Operand;

/* Packs so many points of the operand's channel blocks, whose rows are given, -1 for the padding; normalises
 * them on the way where the operand says so. bf16. */
void conv_weights_pack(const ConvWeights *it, const Operand *operand, int64_t blocks, const int64_t *rows,
                       int64_t count);
/* Normalises rows of a channel block, in x's type. */
void conv_weights_normalise(const ConvWeights *it, const char *from, int64_t rows, const Normalisation *all,
                            int64_t block, char *to);

#endif
