/* kernels/cpu: random words of base.h (vl_random_word), many at a time; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_RANDOM_H
#define VRAMLAB_KERNELS_CPU_RANDOM_H

#include <stdint.h>

/* Words of blocks [first, first + count), four each, in order. */
void random_blocks(uint64_t key, uint64_t sample, uint64_t first, int64_t count, uint32_t *words);

/* Words of elements [first, first + count) of a sample. Returns the first's place in `words`, which has room
 * for count + 6. */
static inline const uint32_t *random_words(uint64_t key, uint64_t sample, int64_t first, int64_t count,
                                           uint32_t *words) {
  int64_t begin = first / 4, end = (first + count + 3) / 4;
  random_blocks(key, sample, (uint64_t)begin, end - begin, words);
  return words + first % 4;
}

/* Bit i of `bits`, in words of 64: words[i] > limit. Bits of the last word behind count are 0. */
void random_above(const uint32_t *words, int64_t count, uint32_t limit, uint64_t *bits);

#endif
