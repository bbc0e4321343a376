/* Casts of convolution weights, f32 to bf16, from the layout of the parameter to those the convolutions read.
 * Every step casts every weight twice (forward and data gradient), and the library's reorder takes twice as
 * long as the memory needs.
 *
 * A tile is 16 input channels of 16 output channels each. Pairs of input channels lie in two rows: they are
 * interleaved. Pairs of output channels lie side by side: a tile is 16 by 8 pairs, and is transposed. */
#include "kernels/cpu/weight_cast.h"

#include "kernels/cpu/vector.h"

#include <string.h>

enum { BLOCK = 16, TILE = BLOCK * BLOCK, PAIRS = BLOCK / 2 };

bool cpu_weight_cast_applies(CpuDevice *device, const Kernel *kernel, WeightCast *cast) {
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  static const struct {
    const char *from, *to;
    bool pairs_outputs, inputs_first;
  } known[] = {{"ABcd16b16a", "ABcd8b16a2b", false, false},  {"ABcd16b16a", "ABcd8a16b2a", true, false},
               {"ABcd16b16a", "BAcd8a16b2a", true, true},    {"ABcde16b16a", "ABcde8b16a2b", false, false},
               {"ABcde16b16a", "ABcde8a16b2a", true, false}, {"ABcde16b16a", "BAcde8a16b2a", true, true}};
  if (x->dtype != DTYPE_F32 || y->dtype != DTYPE_BF16) return false;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strcmp(cpu_layout_name(device, kernel->inputs[0]), known[i].from) != 0) continue;
    if (strcmp(cpu_layout_name(device, kernel->outputs[0]), known[i].to) != 0) continue;
    *cast = (WeightCast){.outputs = (x->shape[0] + BLOCK - 1) / BLOCK,
                         .inputs = (x->shape[1] + BLOCK - 1) / BLOCK,
                         .taps = 1,
                         .pairs_outputs = known[i].pairs_outputs,
                         .inputs_first = known[i].inputs_first};
    for (int32_t d = 2; d < x->rank; d++)
      cast->taps *= x->shape[d];
    return true;
  }
  return false;
}

VECTOR_INLINE void interleave_tile(const float *from, uint32_t *to) {
  for (int64_t pair = 0; pair < PAIRS; pair++) {
    const float *even = from + 2 * pair * BLOCK, *odd = even + BLOCK;
#pragma omp simd
    for (int64_t o = 0; o < BLOCK; o++)
      to[pair * BLOCK + o] = (uint32_t)vector_bf16(even[o]) | (uint32_t)vector_bf16(odd[o]) << 16;
  }
}

typedef uint32_t Row __attribute__((vector_size(64)));

/* [input channel][pair] to [pair][input channel]: pairs at even places, then those at odd ones, three times.
 */
VECTOR_INLINE void transpose_tile(const float *from, uint32_t *to) {
  const Row evens = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  uint16_t values[TILE];
  Row rows[PAIRS], sorted[PAIRS];
#pragma omp simd
  for (int64_t i = 0; i < TILE; i++)
    values[i] = vector_bf16(from[i]);
  memcpy(rows, values, sizeof rows);
  for (int32_t round = 0; round < 3; round++) {
#pragma GCC unroll 4
    for (int32_t i = 0; i < PAIRS / 2; i++) {
      sorted[i] = __builtin_shuffle(rows[2 * i], rows[2 * i + 1], evens);
      sorted[i + PAIRS / 2] = __builtin_shuffle(rows[2 * i], rows[2 * i + 1], evens + 1);
    }
    memcpy(rows, sorted, sizeof rows);
  }
  memcpy(to, rows, sizeof rows);
}

VECTOR_CLONES
static void cast_blocks(const WeightCast *cast, Range blocks, const float *from, uint16_t *to) {
  for (int64_t block = blocks.begin; block < blocks.end; block++) {
    int64_t output = block / cast->inputs, input = block % cast->inputs;
    int64_t target = cast->inputs_first ? input * cast->outputs + output : block;
    for (int64_t tap = 0; tap < cast->taps; tap++) {
      const float *tile = from + (block * cast->taps + tap) * TILE;
      uint32_t pairs[TILE / 2];
      if (cast->pairs_outputs)
        transpose_tile(tile, pairs);
      else
        interleave_tile(tile, pairs);
      memcpy(to + (target * cast->taps + tap) * TILE, pairs, sizeof pairs);
    }
  }
}

void cpu_weight_cast_run(const WeightCast *cast, int32_t threads, const float *from, uint16_t *to) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int32_t thread = 0; thread < threads; thread++)
    cast_blocks(cast, vector_share(cast->outputs * cast->inputs, threads, thread), from, to);
}
