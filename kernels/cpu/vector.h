/* kernels/cpu: what the kernels that are bound by memory share; private to the folder.
 *
 * They work on tiles: at most VECTOR_TILE elements as f32 in the first-level cache. Types are converted where
 * a tile is read and written, so that the arithmetic in between is written once, in f32, as loops over arrays
 * that the compiler vectorises. f32 tiles are used in place.
 *
 * Results are the same on every instruction set: products and sums are never contracted (-ffp-contract=off),
 * lanes are combined in a fixed order, and bf16 is rounded with integer arithmetic, since the AVX512_BF16
 * conversion flushes subnormal numbers. */
#ifndef VRAMLAB_KERNELS_CPU_VECTOR_H
#define VRAMLAB_KERNELS_CPU_VECTOR_H

#include "kernels/cpu/cpu.h"

#include <string.h>

/* A function compiled for each instruction set and chosen when the module is loaded. Such a function holds
 * the loop over a tile and no OpenMP region, whose body would be compiled for the oldest set only. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTOR_CLONES
#endif
/* A loop body that clones share; called with constants it is specialised. */
#define VECTOR_INLINE static inline __attribute__((always_inline))

VECTOR_INLINE float vector_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The value where a condition holds, else 0; without a branch, which compilers do not always do away with. */
VECTOR_INLINE float vector_where(bool condition, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return vector_float_of_bits(bits & (0U - (uint32_t)condition));
}

/* The upper half is the value as bf16: rounded to nearest even; a NaN keeps its upper bits and becomes quiet,
 * as in vl_bf16_from_f32. The lower half is anything. */
VECTOR_INLINE uint32_t vector_round_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t rounded = bits + 0x7FFFU + (bits >> 16 & 1U);
  return value != value ? bits | 0x400000U : rounded;
}
VECTOR_INLINE uint16_t vector_bf16(float value) { return (uint16_t)(vector_round_to_bf16(value) >> 16); }

enum {
  VECTOR_TILE = 1024,
  VECTOR_SPAN = 4096, /* elements of a tile that needs no buffer: long enough to keep the memory busy */
  VECTOR_LANES = 32,  /* elements a loop takes at a time: a 64-byte register of bf16, two of f32 */
  VECTOR_RUN = 64     /* values after which a lane's f32 sum goes to double; a last tile may make them 128 */
};

/* Elements rounded up so that what follows starts in a cache line of its own. */
static inline int64_t vector_by_lines(int64_t elements) {
  return (elements + VECTOR_LANES - 1) / VECTOR_LANES * VECTOR_LANES;
}

/* ---- Tiles -------------------------------------------------------------------------------------------- */

/* An array of f32 or bf16. */
typedef struct VectorArray {
  void *address;
  DType dtype;
} VectorArray;

/* An input or output of a node; address NULL when it is absent. */
VectorArray vector_input(const Kernel *kernel, const uintptr_t *inputs, int32_t i);
VectorArray vector_output(const Kernel *kernel, const uintptr_t *outputs, int32_t i);

/* The elements [offset, offset + count) as f32: in place when they are, else converted into buffer. */
const float *vector_read(VectorArray array, int64_t offset, int64_t count, float *buffer);
/* One element. */
static inline float vector_element(VectorArray array, int64_t i) {
  return array.dtype == DTYPE_F32 ? ((const float *)array.address)[i]
                                  : vl_f32_from_bf16(((const uint16_t *)array.address)[i]);
}
/* One element of an array known to be bf16 or f32: for loops that convert as they go. */
VECTOR_INLINE float vector_load(const void *address, int64_t i, bool bf16) {
  if (!bf16) return ((const float *)address)[i];
  return vector_float_of_bits((uint32_t)((const uint16_t *)address)[i] << 16);
}
VECTOR_INLINE void vector_store(void *address, int64_t i, float value, bool bf16) {
  if (bf16)
    ((uint16_t *)address)[i] = vector_bf16(value);
  else
    ((float *)address)[i] = value;
}
/* Two neighbours of a bf16 array: elements 2 p and 2 p + 1. Loops over pairs need no shuffles, which make
 * those over single elements slower than the memory: a shift and a mask take a 32-bit word apart. What such a
 * loop keeps per element of a pattern is in pair order. */
typedef struct VectorPair {
  float even, odd;
} VectorPair;
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a word is the earlier element");
enum { VECTOR_PAIRS = VECTOR_LANES / 2 };

/* Of two elements. A type of its own, where memcpy would do, tells that a store changes no coefficient. */
typedef uint32_t VectorWord __attribute__((aligned(2)));

VECTOR_INLINE VectorPair vector_load_pair(const void *address, int64_t p) {
  uint32_t word = ((const VectorWord *)address)[p];
  return (VectorPair){vector_float_of_bits(word << 16), vector_float_of_bits(word & 0xFFFF0000U)};
}
VECTOR_INLINE void vector_store_pair(void *address, int64_t p, VectorPair pair) {
  ((VectorWord *)address)[p] =
      vector_round_to_bf16(pair.even) >> 16 | (vector_round_to_bf16(pair.odd) & 0xFFFF0000U);
}
/* VECTOR_LANES values: the even ones first, then the odd ones. */
VECTOR_INLINE void vector_pair_order(float *restrict to, const float *restrict from) {
#pragma omp simd
  for (int64_t p = 0; p < VECTOR_PAIRS; p++) {
    to[p] = from[2 * p];
    to[VECTOR_PAIRS + p] = from[2 * p + 1];
  }
}
/* Fetches what will be read VECTOR_AHEAD bytes after elements i..i + count - 1. Reading several arrays at
 * once the processor does not look far enough ahead by itself. */
enum { VECTOR_AHEAD = 4096 };
VECTOR_INLINE void vector_prefetch(const void *address, int64_t i, int64_t count, bool bf16) {
  const int64_t bytes = bf16 ? 2 : 4;
  for (int64_t at = 0; at < count * bytes; at += 64)
    __builtin_prefetch((const void *)((uintptr_t)address + (uintptr_t)(i * bytes + at + VECTOR_AHEAD)));
}
/* Where an element of an array lies; NULL when the array is absent. */
static inline void *vector_at(VectorArray array, int64_t i) {
  return array.address == NULL ? NULL : (char *)array.address + i * (array.dtype == DTYPE_BF16 ? 2 : 4);
}
/* Where to compute the elements from offset: in place, or buffer; vector_write then brings them home. */
float *vector_target(VectorArray array, int64_t offset, float *buffer);
void vector_write(VectorArray array, int64_t offset, int64_t count, const float *from);

/* ---- Threads ------------------------------------------------------------------------------------------- */

/* A run of items. */
typedef struct Range {
  int64_t begin, end;
} Range;
/* Thread `thread`'s part of items 0..count-1: parts differ by at most one and are in thread order. */
static inline Range vector_share(int64_t count, int32_t threads, int32_t thread) {
  int64_t each = count / threads, rest = count % threads;
  int64_t begin = each * thread + (thread < rest ? thread : rest);
  return (Range){begin, begin + each + (thread < rest ? 1 : 0)};
}
/* Threads worth starting for that many elements: a region costs about what one thread does with a few tiles.
 */
int32_t vector_threads(const Kernel *kernel, int64_t elements);

/* ---- Element-wise ops ------------------------------------------------------------------------------------ */

/* Computes y[i] from a[i] and b[i]. y may be a or b. b is NULL where the op has one input. */
typedef void VectorFunction(float *y, const float *a, const float *b, int64_t count, float parameter);
/* Runs a function over whole arrays that share a layout, padding included. */
void vector_map(const Kernel *kernel, VectorFunction *function, float parameter, VectorArray y, VectorArray a,
                VectorArray b);
/* Layouts for ops whose tensors of rank 3 and above share one: the first blocked or channels-last one among
 * the inputs, so that few copies are needed, else plain. Other tensors are plain. */
Status vector_choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) VL_CHECKED;
/* prepare for ops whose inputs 0..count-1 and output 0 are walked as one array: VL_INTERNAL unless they have
 * one layout. data becomes the number of elements. */
Status vector_prepare_map(CpuDevice *device, Kernel *kernel, int32_t count) VL_CHECKED;

/* ---- Activations by channel -------------------------------------------------------------------------------
 * A row is what is contiguous for one sample and channel block: [spatial][block]. Coefficients per channel
 * repeat along it. The pattern is what repeats: block elements, or several blocks where one is shorter than
 * VECTOR_LANES. */

/* Elements of the pattern: a multiple of view.block, at least VECTOR_LANES. */
int64_t vector_pattern(const ChannelView *view);
/* Channels with padding. */
int64_t vector_channels(const ChannelView *view);

/* Channel blocks, and points of all samples (n * spatial), to be visited. */
typedef struct VectorPart {
  Range blocks, points;
} VectorPart;

/* Some elements of a row. */
typedef struct VectorTile {
  int64_t offset, count; /* in the activation */
  int64_t block;         /* channel block */
  int64_t phase; /* place of the first element in the pattern: not 0 only where a pattern exceeds a tile */
  bool begins, ends; /* the first, the last of this row in this part */
} VectorTile;

/* Visits a part in the order of memory, tile by tile. */
typedef struct VectorWalk {
  const ChannelView *view;
  VectorPart part;
  int64_t pattern, tile;
  int64_t sample, block, at, row_offset, row_count;
} VectorWalk;
/* Tiles of at most `most` elements. */
VectorWalk vector_walk(const ChannelView *view, VectorPart part, int64_t most);
bool vector_walk_next(VectorWalk *walk, VectorTile *tile);

/* How many values a tile adds to each lane of the pattern. */
int64_t vector_values(const VectorTile *tile, int64_t pattern);
/* Coefficients of a channel block, repeated to the pattern's length: in place where a block is a pattern,
 * else in buffer, which holds 2 * VECTOR_LANES. */
const float *vector_repeat(const ChannelView *view, const float *channels, int64_t block, float *buffer);
/* lanes[i % pattern] += x[i], four patterns at a time as a tree. */
void vector_add(float *lanes, const float *x, int64_t count, int64_t pattern);
/* The sum of VECTOR_LANES lanes, as a tree. */
VECTOR_INLINE double vector_total(const float *lanes) {
  double sums[VECTOR_LANES / 4];
#pragma omp simd
  for (int64_t i = 0; i < VECTOR_LANES / 4; i++)
    sums[i] = ((double)lanes[i] + (double)lanes[i + VECTOR_LANES / 4]) +
              ((double)lanes[i + VECTOR_LANES / 2] + (double)lanes[i + 3 * VECTOR_LANES / 4]);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}
/* Adds lanes [pattern] to the sums of a block's channels, and zeroes them. */
void vector_fold(double *sums, float *lanes, int64_t pattern, int64_t block);
/* The same for VECTOR_LANES lanes in pair order. */
void vector_fold_pairs(double *sums, float *lanes, int64_t block);

#endif
