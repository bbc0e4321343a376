/* attention.h for any machine: f32 loops that the compiler vectorises; bf16 is converted where it is packed.
 */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

enum { ROWS = ATTENTION_ROWS, PANEL = ATTENTION_PANEL, KEYS = ATTENTION_KEYS, LANES = 16 };

/* ---- Products ------------------------------------------------------------------------------------------------ */

VECTOR_INLINE void multiply_tile(const AttentionProduct *it, const float *a, const float *b, float *c) {
  float sum[ROWS][PANEL];
  for (int64_t i = 0; i < ROWS; i++)
    for (int64_t j = 0; j < PANEL; j++)
      sum[i][j] = it->adds ? c[i * it->c_row + j] : 0.0F;
  for (int64_t k = 0; k < it->steps; k++)
    for (int64_t i = 0; i < ROWS; i++) {
      float value = a[i * it->a_row + k * it->a_step];
#pragma omp simd
      for (int64_t j = 0; j < PANEL; j++)
        sum[i][j] += value * b[k * PANEL + j];
    }
  for (int64_t i = 0; i < ROWS; i++)
    for (int64_t j = 0; j < PANEL; j++)
      c[i * it->c_row + j] = sum[i][j];
}

VECTOR_CLONES
static void multiply(const AttentionProduct *it) {
  for (int64_t j = 0; j < it->columns; j += PANEL)
    for (int64_t i = 0; i < it->rows; i += ROWS)
      multiply_tile(it, (const float *)(const void *)it->a + i * it->a_row,
                    (const float *)(const void *)it->b + j / PANEL * it->b_panel, it->c + i * it->c_row + j);
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

static bool is_kept(const AttentionTile *tile, int64_t query, int64_t key) {
  if (tile->kept == NULL) return true;
  return (tile->kept[query * ATTENTION_KEPT + key / 64] >> (key % 64) & 1U) != 0;
}

/* Scales and masks a row and returns its largest score; what lies behind the keys becomes -infinity. */
VECTOR_CLONES
static float scale_row(const AttentionTile *tile, float *row) {
  float largest[LANES];
  for (int64_t lane = 0; lane < LANES; lane++)
    largest[lane] = -INFINITY;
  for (int64_t k = 0; k < KEYS; k += LANES)
    for (int64_t lane = 0; lane < LANES; lane++) {
      bool inside = k + lane < tile->keys;
      float added = tile->mask != NULL && inside ? tile->mask[k + lane] : 0.0F;
      float score = inside ? row[k + lane] * tile->scale + added : -INFINITY;
      row[k + lane] = score;
      largest[lane] = score < largest[lane] ? largest[lane] : score;
    }
  float top = largest[0];
  for (int64_t lane = 1; lane < LANES; lane++)
    top = largest[lane] < top ? top : largest[lane];
  return top;
}

/* row = exp(row - shift); returns the sum. */
VECTOR_CLONES
static float exp_row(float *row, float shift) {
  float sums[LANES] = {0.0F};
  for (int64_t k = 0; k < KEYS; k += LANES)
    for (int64_t lane = 0; lane < LANES; lane++) {
      row[k + lane] = vector_exp(row[k + lane] - shift);
      sums[lane] += row[k + lane];
    }
  float sum = 0.0F;
  for (int64_t lane = 0; lane < LANES; lane++)
    sum += sums[lane];
  return sum;
}

static void probabilities(const AttentionTile *tile) {
  for (int64_t q = 0; q < tile->queries; q++) {
    float *row = tile->scores + q * KEYS;
    float top = scale_row(tile, row);
    if (!tile->first && top < tile->top[q]) top = tile->top[q];
    /* Where every score so far is -infinity, so that later ones count. */
    float shift = top == -INFINITY ? 0.0F : top;
    float sum = exp_row(row, shift);
    tile->factors[q] = tile->first ? 0.0F : vector_exp(tile->top[q] - shift);
    tile->sum[q] = tile->first ? sum : tile->sum[q] * tile->factors[q] + sum;
    tile->top[q] = top;
    for (int64_t k = 0; k < tile->keys; k++)
      if (!is_kept(tile, q, k)) row[k] = 0.0F;
  }
}

VECTOR_CLONES
static void gradients(const AttentionTile *tile) {
  for (int64_t q = 0; q < tile->queries; q++) {
    float *p = tile->scores + q * KEYS, *ds = tile->dp + q * KEYS;
    for (int64_t k = 0; k < KEYS; k++) {
      bool inside = k < tile->keys;
      float added = tile->mask != NULL && inside ? tile->mask[k] : 0.0F;
      float value = vector_exp((p[k] * tile->scale + added) - tile->lse[q]);
      float keep = is_kept(tile, q, k) ? tile->keep_scale : 0.0F;
      ds[k] = inside ? value * (ds[k] * keep - tile->delta[q]) : 0.0F;
      p[k] = inside ? value * keep : 0.0F;
    }
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
