/* attention.h for any machine: f32 loops that the compiler vectorises; bf16 is converted where it is packed.
 */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

enum { PANEL = ATTENTION_PANEL, KEYS = ATTENTION_KEYS, LANES = 16 };

/* ---- Products ------------------------------------------------------------------------------------------------ */

/* Part of a tile: what sixteen registers of eight lanes hold. */
enum { PART_ROWS = 4, PART_COLUMNS = 16 };

VECTOR_INLINE void multiply_part(const AttentionProduct *it, const float *a, const float *b, float *c) {
  float sum[PART_ROWS][PART_COLUMNS];
  for (int64_t i = 0; i < PART_ROWS; i++)
    for (int64_t j = 0; j < PART_COLUMNS; j++)
      sum[i][j] = it->adds ? c[i * it->c_row + j] : 0.0F;
  for (int64_t k = 0; k < it->steps; k++)
#pragma GCC unroll 4
    for (int64_t i = 0; i < PART_ROWS; i++) {
      float value = a[i * it->a_row + k * it->a_step];
#pragma omp simd
      for (int64_t j = 0; j < PART_COLUMNS; j++)
        sum[i][j] += value * b[k * PANEL + j];
    }
  for (int64_t i = 0; i < PART_ROWS; i++)
    for (int64_t j = 0; j < PART_COLUMNS; j++)
      c[i * it->c_row + j] = sum[i][j];
}

VECTOR_CLONES
static void multiply(const AttentionProduct *it) {
  const float *a = (const float *)(const void *)it->a, *b = (const float *)(const void *)it->b;
  for (int64_t j = 0; j < it->columns; j += PART_COLUMNS)
    for (int64_t i = 0; i < it->rows; i += PART_ROWS)
      multiply_part(it, a + i * it->a_row, b + j / PANEL * it->b_panel + j % PANEL,
                    it->c + i * it->c_row + j);
}

/* ---- Packing --------------------------------------------------------------------------------------------------- */

VECTOR_CLONES
static void pack_rows(AttentionRows from, uint32_t *to, int64_t to_row) {
  for (int64_t i = 0; i < from.rows; i++)
    for (int64_t j = 0; j < from.columns; j++)
      ((float *)(void *)to)[i * to_row + j] = vector_load(from.first, i * from.stride + j, from.bf16);
}

static void pack_transposed(AttentionRows from, uint32_t *to, uint32_t *scratch) {
  (void)scratch;
  float *panel = (float *)(void *)to;
  for (int64_t i = 0; i < from.rows; i += PANEL, panel += from.columns * PANEL)
    for (int64_t lane = 0; lane < PANEL; lane++)
      for (int64_t j = 0; j < from.columns; j++)
        panel[j * PANEL + lane] =
            i + lane < from.rows ? vector_load(from.first, (i + lane) * from.stride + j, from.bf16) : 0.0F;
}

static void pack_steps(AttentionRows from, uint32_t *to) {
  float *panel = (float *)(void *)to;
  for (int64_t j = 0; j < from.columns; j += PANEL, panel += from.rows * PANEL)
    for (int64_t i = 0; i < from.rows; i++)
      for (int64_t lane = 0; lane < PANEL; lane++)
        panel[i * PANEL + lane] =
            j + lane < from.columns ? vector_load(from.first, i * from.stride + j + lane, from.bf16) : 0.0F;
}

/* ---- Probabilities ----------------------------------------------------------------------------------------------- */

/* What is added to a tile's scaled scores: the mask; behind the keys -infinity, so that nothing comes of
 * them. */
static void fill_added(const AttentionTile *tile, float *added) {
  for (int64_t k = 0; k < KEYS; k++)
    added[k] = k >= tile->keys ? -INFINITY : tile->mask != NULL ? tile->mask[k] : 0.0F;
}

/* What dropout multiplies a query's probabilities by: `scale` or 0. */
VECTOR_CLONES
static void fill_keep(const AttentionTile *tile, int64_t query, float scale, float *keep) {
  for (int64_t word = 0; word < ATTENTION_KEPT; word++) {
    uint64_t bits = tile->kept == NULL ? ~UINT64_C(0) : tile->kept[query * ATTENTION_KEPT + word];
#pragma omp simd
    for (int64_t i = 0; i < 64; i++)
      keep[word * 64 + i] = (bits >> i & 1U) != 0 ? scale : 0.0F;
  }
}

/* Scales and masks a row and returns its largest score. */
VECTOR_CLONES
static float scale_row(float *row, float scale, const float *added) {
  float largest[LANES];
  for (int64_t lane = 0; lane < LANES; lane++)
    largest[lane] = -INFINITY;
  for (int64_t k = 0; k < KEYS; k += LANES)
#pragma omp simd
    for (int64_t lane = 0; lane < LANES; lane++) {
      float score = added[k + lane] == -INFINITY ? -INFINITY : row[k + lane] * scale + added[k + lane];
      row[k + lane] = score;
      largest[lane] = score < largest[lane] ? largest[lane] : score;
    }
  float top = largest[0];
  for (int64_t lane = 1; lane < LANES; lane++)
    top = largest[lane] < top ? top : largest[lane];
  return top;
}

/* row = keep exp(row - shift); returns the sum of the exponentials. */
VECTOR_CLONES
static float exp_row(float *row, float shift, const float *keep) {
  float sums[LANES] = {0.0F};
  for (int64_t k = 0; k < KEYS; k += LANES)
#pragma omp simd
    for (int64_t lane = 0; lane < LANES; lane++) {
      float p = vector_exp(row[k + lane] - shift);
      sums[lane] += p;
      row[k + lane] = p * keep[k + lane];
    }
  float sum = 0.0F;
  for (int64_t lane = 0; lane < LANES; lane++)
    sum += sums[lane];
  return sum;
}

static void probabilities(const AttentionTile *tile) {
  float added[KEYS], keep[KEYS];
  fill_added(tile, added);
  for (int64_t q = 0; q < tile->queries; q++) {
    float *row = tile->scores + q * KEYS;
    float top = scale_row(row, tile->scale, added);
    if (!tile->first && top < tile->top[q]) top = tile->top[q];
    /* Where every score so far is -infinity, so that later ones count. */
    float shift = top == -INFINITY ? 0.0F : top;
    fill_keep(tile, q, 1.0F, keep);
    float sum = exp_row(row, shift, keep);
    tile->factors[q] = tile->first ? 0.0F : vector_exp(tile->top[q] - shift);
    tile->sum[q] = tile->first ? sum : tile->sum[q] * tile->factors[q] + sum;
    tile->top[q] = top;
  }
}

/* dropout(p) and ds of a query over its scores and dp. What lies there behind the keys may be anything. */
VECTOR_CLONES
static void gradient_row(const AttentionTile *tile, int64_t query, const float *added, const float *keep) {
  float *p = tile->scores + query * KEYS, *ds = tile->dp + query * KEYS;
  float lse = tile->lse[query], delta = tile->delta[query];
#pragma omp simd
  for (int64_t k = 0; k < KEYS; k++) {
    float value = vector_exp((p[k] * tile->scale + added[k]) - lse);
    float given = value * (ds[k] * keep[k] - delta);
    bool inside = added[k] > -INFINITY;
    ds[k] = inside ? given : 0.0F;
    p[k] = inside ? value * keep[k] : 0.0F;
  }
}

static void gradients(const AttentionTile *tile) {
  float added[KEYS], keep[KEYS];
  fill_added(tile, added);
  for (int64_t q = 0; q < tile->queries; q++) {
    fill_keep(tile, q, tile->keep_scale, keep);
    gradient_row(tile, q, added, keep);
  }
}

const AttentionParts attention_portable = {.name = "own",
                                           .pairs = false,
                                           .multiply = multiply,
                                           .pack_rows = pack_rows,
                                           .pack_transposed = pack_transposed,
                                           .pack_steps = pack_steps,
                                           .probabilities = probabilities,
                                           .gradients = gradients};
