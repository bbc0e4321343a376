/* kernels/cpu: what attention.c (the walk over heads and tiles) is made of, once for each instruction set;
 * private to the folder.
 *
 * Factors of products are packed as words of 32 bits: a value in f32, or two neighbouring values in bf16. A
 * sum over n values has `steps(n)` words, and the same product of words serves both. */
#ifndef VRAMLAB_KERNELS_CPU_ATTENTION_H
#define VRAMLAB_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/vector.h"

enum {
  ATTENTION_ROWS = 8,                  /* of a product's tile of registers */
  ATTENTION_PANEL = 32,                /* columns of that tile: two registers of f32 */
  ATTENTION_QUERIES = 64,              /* of a tile */
  ATTENTION_KEYS = 128,                /* of a tile; a multiple of 64 */
  ATTENTION_KEPT = ATTENTION_KEYS / 64 /* words of 64 bits, one bit a key */
};

/* Rows of a tensor: columns contiguous, `stride` elements from row to row. */
typedef struct AttentionRows {
  const void *first;
  int64_t stride, rows, columns;
  bool bf16;
} AttentionRows;

/* Lines of the next head's tensors, fetched from memory a few at a time while this one's are multiplied: its
 * rows lie far apart, which no hardware foresees. */
typedef struct AttentionAhead {
  AttentionRows tensors[8];
  int32_t tensor, count, written; /* the first ones are written */
  int64_t row, byte;              /* of the next line */
  int64_t lines_each;
} AttentionAhead;

static inline void attention_fetch(AttentionAhead *ahead) {
  const int64_t line_bytes = 64;
  for (int64_t i = 0; i < ahead->lines_each && ahead->tensor < ahead->count; i++) {
    const AttentionRows *from = &ahead->tensors[ahead->tensor];
    int64_t element_bytes = from->bf16 ? 2 : 4;
    const char *line = (const char *)from->first + ahead->row * from->stride * element_bytes + ahead->byte;
    if (ahead->tensor < ahead->written)
      __builtin_prefetch(line, 1, 2);
    else
      __builtin_prefetch(line, 0, 2);
    ahead->byte += line_bytes;
    if (ahead->byte < from->columns * element_bytes) continue;
    ahead->byte = 0;
    if (++ahead->row < from->rows) continue;
    ahead->row = 0;
    ahead->tensor++;
  }
}

/* c = a b, or c += a b, for `rows` rows and `columns` columns; c is written up to whole tiles of registers.
 */
typedef struct AttentionProduct {
  const uint32_t *a; /* word of row i and step k: a[i * a_row + k * a_step]; one of the two is 1 */
  int64_t a_row, a_step;
  const uint32_t *b; /* [columns / PANEL][steps][PANEL], panels b_panel words apart */
  int64_t b_panel;
  float *c;
  int64_t c_row;
  int64_t rows, columns, steps;
  bool adds;
  AttentionAhead *ahead; /* to fetch at every tile of registers */
} AttentionProduct;

/* Scores of a tile of queries and keys, [query][ATTENTION_KEYS], and how they become probabilities. */
typedef struct AttentionTile {
  float *scores;
  int64_t queries, keys;
  float scale;
  const float *mask;    /* of the tile's keys; NULL: none */
  const uint64_t *kept; /* [query][ATTENTION_KEPT], a bit a key; NULL: all are kept */
  /* Forward: exp(score - top), those that are not kept as zeros, for the product with values. top and sum are
   * what was found so far; `factors` is what results found so far are to be multiplied by. */
  bool first;
  float *top, *sum, *factors;
  uint32_t *p; /* [query][ATTENTION_KEYS] in words by steps of keys; f32: over the scores */
  /* Backward: p = exp(score - lse), ds = p (dp - delta). */
  float keep_scale; /* of dropout */
  float *dp;        /* [query][ATTENTION_KEYS] */
  const float *lse, *delta;
  uint32_t *p_queries, *ds_queries; /* [steps of queries][ATTENTION_KEYS] */
  uint32_t *ds_keys;                /* [query][ATTENTION_KEYS], by steps of keys; f32: both ds are dp */
} AttentionTile;

typedef struct AttentionParts {
  const char *name;
  bool pairs; /* words are two bf16, else one f32 */
  void (*multiply)(const AttentionProduct *product);
  /* Words by steps of columns, [row][to_row]. */
  void (*pack_rows)(AttentionRows from, uint32_t *to, int64_t to_row);
  /* For sums over columns: rows become the columns of b, [rows / PANEL][steps of columns][PANEL]. `scratch`
   * holds PANEL rows of as many words, rounded up to 16. */
  void (*pack_transposed)(AttentionRows from, uint32_t *to, uint32_t *scratch);
  /* For sums over rows: [columns / PANEL][steps of rows][PANEL]. */
  void (*pack_steps)(AttentionRows from, uint32_t *to);
  void (*probabilities)(const AttentionTile *tile);
  void (*gradients)(const AttentionTile *tile);
} AttentionParts;

/* Runs anywhere, in f32. */
extern const AttentionParts attention_portable;
/* The best for this machine and type. */
const AttentionParts *attention_parts(bool bf16);

static inline int64_t attention_steps(const AttentionParts *parts, int64_t count) {
  return parts->pairs ? (count + 1) / 2 : count;
}
static inline int64_t attention_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

#endif
