/* attention and attention_backward: every head by itself, in tiles of queries and keys, so that nothing of
 * the size of all its scores is kept. Forward keeps a running maximum and sum of each query's exponentials
 * and rescales what it has when the maximum rises; backward repeats the probabilities from the logarithm of
 * that sum (Dao et al., FlashAttention, arXiv:2205.14135; Dao, FlashAttention-2, arXiv:2307.08691). Here a
 * head's packed keys and values lie in the second-level cache and a tile's scores in the first.
 *
 * Whether dropout keeps a probability depends on its place among all probabilities of the sample, (head,
 * query, key), as if they were a tensor: see random.h. Threads share out the heads; a head is computed by
 * one. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/random.h"

#include <math.h>
#include <omp.h>

enum {
  QUERIES = ATTENTION_QUERIES,
  KEYS = ATTENTION_KEYS,
  PANEL = ATTENTION_PANEL,
  LINE_WORDS = 16,
  LANES = 16
};

typedef struct Attention {
  const AttentionParts *parts;
  int64_t batch, length, heads, size;
  float scale;
  bool bf16;
  /* Words of what a thread works with; see forward_memory and backward_memory. */
  int64_t thread_words;
} Attention;

/* What a head's launch reads besides its tensors. */
typedef struct Dropout {
  bool drops;
  uint64_t key;
  uint32_t limit; /* a word above it is kept */
  float scale;
  int64_t first_sample;
} Dropout;

/* ---- A thread's memory ------------------------------------------------------------------------------------------ */

typedef struct Memory {
  uint32_t *at; /* NULL: only counted */
  int64_t words;
} Memory;

static void *take(Memory *memory, int64_t words) {
  uint32_t *address = memory->at == NULL ? NULL : memory->at + memory->words;
  memory->words += attention_up(words, LINE_WORDS);
  return address;
}

/* Words of rows packed for sums over columns, and for sums over rows. */
static int64_t transposed_words(const Attention *it, int64_t rows) {
  return attention_up(rows, PANEL) * attention_steps(it->parts, it->size);
}
static int64_t steps_words(const Attention *it, int64_t rows) {
  return attention_up(it->size, PANEL) * attention_steps(it->parts, rows);
}
/* Floats of rows of results: whole tiles of registers. */
static int64_t results_row(const Attention *it) { return attention_up(it->size, PANEL); }

typedef struct Forward {
  uint32_t *keys, *values, *queries, *scratch, *p;
  float *scores, *results, *top, *sum, *factors;
  uint64_t *kept;
  uint32_t *words;
} Forward;

static Forward forward_memory(const Attention *it, Memory *memory) {
  int64_t row = attention_steps(it->parts, it->size);
  Forward own;
  own.keys = take(memory, transposed_words(it, it->length));
  own.values = take(memory, steps_words(it, it->length));
  own.queries = take(memory, QUERIES * row);
  own.scratch = take(memory, PANEL * attention_up(row, LINE_WORDS));
  own.scores = take(memory, QUERIES * KEYS);
  own.p = it->parts->pairs ? take(memory, QUERIES * KEYS / 2) : (uint32_t *)(void *)own.scores;
  own.results = take(memory, QUERIES * results_row(it));
  own.top = take(memory, QUERIES);
  own.sum = take(memory, QUERIES);
  own.factors = take(memory, QUERIES);
  own.kept = take(memory, 2 * QUERIES * ATTENTION_KEPT);
  own.words = take(memory, KEYS + LINE_WORDS);
  return own;
}

typedef struct Backward {
  uint32_t *keys, *values;          /* for scores and for dp: sums over the head's size */
  uint32_t *key_steps;              /* for dq */
  uint32_t *queries, *dy;           /* of a tile, by rows */
  uint32_t *query_steps, *dy_steps; /* of a tile, for dk and dv */
  uint32_t *scratch;
  float *scores, *dp, *dq, *dk, *dv, *delta;
  uint32_t *p_queries, *ds_queries, *ds_keys;
  uint64_t *kept;
  uint32_t *words;
} Backward;

static Backward backward_memory(const Attention *it, Memory *memory) {
  int64_t row = attention_steps(it->parts, it->size);
  int64_t all_rows = attention_up(it->length, ATTENTION_ROWS);
  Backward own;
  own.keys = take(memory, transposed_words(it, it->length));
  own.values = take(memory, transposed_words(it, it->length));
  own.key_steps = take(memory, steps_words(it, it->length));
  own.queries = take(memory, QUERIES * row);
  own.dy = take(memory, QUERIES * row);
  own.query_steps = take(memory, steps_words(it, QUERIES));
  own.dy_steps = take(memory, steps_words(it, QUERIES));
  own.scratch = take(memory, PANEL * attention_up(row, LINE_WORDS));
  own.scores = take(memory, QUERIES * KEYS);
  own.dp = take(memory, QUERIES * KEYS);
  own.dq = take(memory, QUERIES * results_row(it));
  own.dk = take(memory, all_rows * results_row(it));
  own.dv = take(memory, all_rows * results_row(it));
  own.delta = take(memory, QUERIES);
  bool pairs = it->parts->pairs;
  own.p_queries = pairs ? take(memory, QUERIES / 2 * KEYS) : (uint32_t *)(void *)own.scores;
  own.ds_queries = pairs ? take(memory, QUERIES / 2 * KEYS) : (uint32_t *)(void *)own.dp;
  own.ds_keys = pairs ? take(memory, QUERIES * KEYS / 2) : (uint32_t *)(void *)own.dp;
  own.kept = take(memory, 2 * QUERIES * ATTENTION_KEPT);
  own.words = take(memory, KEYS + LINE_WORDS);
  return own;
}

/* ---- Places and small loops -------------------------------------------------------------------------------------- */

typedef enum Part { QUERY = 0, KEY, VALUE } Part;

/* A head of qkv, dqkv, y or dy. */
typedef struct Head {
  int64_t sample, head;
} Head;

static AttentionRows rows_of_qkv(const Attention *it, const void *qkv, Head head, Part part) {
  int64_t row = 3 * it->heads * it->size, bytes = it->bf16 ? 2 : 4;
  int64_t at = head.sample * it->length * row + ((int64_t)part * it->heads + head.head) * it->size;
  return (AttentionRows){(const char *)qkv + at * bytes, row, it->length, it->size, it->bf16};
}

static AttentionRows rows_of_y(const Attention *it, const void *y, Head head) {
  int64_t row = it->heads * it->size, bytes = it->bf16 ? 2 : 4;
  int64_t at = head.sample * it->length * row + head.head * it->size;
  return (AttentionRows){(const char *)y + at * bytes, row, it->length, it->size, it->bf16};
}

static AttentionRows some_rows(AttentionRows rows, Range range) {
  rows.first = (const char *)rows.first + range.begin * rows.stride * (rows.bf16 ? 2 : 4);
  rows.rows = range.end - range.begin;
  return rows;
}

static Range tile_range(int64_t begin, int64_t size, int64_t end) {
  return (Range){begin, begin + size < end ? begin + size : end};
}

VECTOR_INLINE void store_values(const float *from, float factor, int64_t count, void *to, int64_t at,
                                bool bf16) {
#pragma omp simd
  for (int64_t j = 0; j < count; j++)
    vector_store(to, at + j, from[j] * factor, bf16);
}

/* Writes results [row][from_row], multiplied by factors[row], where `to` describes. */
VECTOR_CLONES
static void store_rows(const float *from, int64_t from_row, const float *factors, AttentionRows to) {
  void *first = (void *)(uintptr_t)to.first;
  for (int64_t i = 0; i < to.rows; i++) {
    if (to.bf16)
      store_values(from + i * from_row, factors[i], to.columns, first, i * to.stride, true);
    else
      store_values(from + i * from_row, factors[i], to.columns, first, i * to.stride, false);
  }
}

VECTOR_CLONES
static void scale_rows(float *rows, int64_t count, int64_t row, const float *factors) {
  for (int64_t i = 0; i < count; i++) {
    if (factors[i] == 1.0F) continue;
#pragma omp simd
    for (int64_t j = 0; j < row; j++)
      rows[i * row + j] *= factors[i];
  }
}

VECTOR_INLINE float dot(AttentionRows a, AttentionRows b, int64_t row, bool bf16) {
  float lanes[LANES] = {0.0F}, sum = 0.0F;
  int64_t whole = a.columns / LANES * LANES;
  for (int64_t j = 0; j < whole; j += LANES) {
#pragma omp simd
    for (int64_t lane = 0; lane < LANES; lane++)
      lanes[lane] += vector_load(a.first, row * a.stride + j + lane, bf16) *
                     vector_load(b.first, row * b.stride + j + lane, bf16);
  }
  for (int64_t j = whole; j < a.columns; j++)
    sum += vector_load(a.first, row * a.stride + j, bf16) * vector_load(b.first, row * b.stride + j, bf16);
  for (int64_t lane = 0; lane < LANES; lane++)
    sum += lanes[lane];
  return sum;
}

/* The products of rows of a with those of b. */
VECTOR_CLONES
static void dot_rows(AttentionRows a, AttentionRows b, float *products) {
  for (int64_t i = 0; i < a.rows; i++)
    products[i] = a.bf16 ? dot(a, b, i, true) : dot(a, b, i, false);
}

/* ---- Fetching ahead ---------------------------------------------------------------------------------------------- */

typedef struct Tensors {
  const void *qkv, *dy, *y;
  const float *mask, *lse;
  void *out; /* y or dqkv */
  float *lse_out;
} Tensors;

static void add_ahead(AttentionAhead *ahead, AttentionRows rows) { ahead->tensors[ahead->count++] = rows; }

/* For head number `now` of those up to `end`. Nothing where the second-level cache holds no more than the
 * head. */
static AttentionAhead ahead_of(const Attention *it, const Tensors *tensors, int64_t now, int64_t end) {
  const int64_t cache_bytes = 1 << 20, line_bytes = 64;
  AttentionAhead ahead = {.count = 0};
  bool backward = tensors->dy != NULL;
  int64_t row_bytes = it->size * (it->bf16 ? 2 : 4), head_bytes = it->length * row_bytes;
  if (it->thread_words * 4 + (backward ? 8 : 4) * head_bytes > cache_bytes) return ahead;
  Head this = {now / it->heads, now % it->heads}, next = {(now + 1) / it->heads, (now + 1) % it->heads};
  for (Part part = QUERY; backward && part <= VALUE; part++)
    add_ahead(&ahead, rows_of_qkv(it, tensors->out, this, part));
  if (!backward) add_ahead(&ahead, rows_of_y(it, tensors->out, this));
  ahead.written = ahead.count;
  for (Part part = QUERY; now + 1 < end && part <= VALUE; part++)
    add_ahead(&ahead, rows_of_qkv(it, tensors->qkv, next, part));
  if (now + 1 < end && backward) {
    add_ahead(&ahead, rows_of_y(it, tensors->dy, next));
    add_ahead(&ahead, rows_of_y(it, tensors->y, next));
  }
  /* Tiles of registers of a head's products: those of scores and those of results. */
  int64_t blocks = attention_up(it->length, ATTENTION_ROWS) / ATTENTION_ROWS;
  int64_t of_scores = blocks * attention_up(it->length, PANEL) / PANEL;
  int64_t of_results = blocks * results_row(it) / PANEL;
  int64_t tiles = backward ? 2 * of_scores + 3 * of_results : of_scores + of_results;
  int64_t lines = ahead.count * it->length * ((row_bytes + line_bytes - 1) / line_bytes);
  ahead.lines_each = (lines + tiles - 1) / tiles;
  return ahead;
}

/* ---- Dropout ------------------------------------------------------------------------------------------------------ */

/* Which probabilities of a tile dropout keeps, as AttentionTile wants them. */
static const uint64_t *draw_tile(const Attention *it, const Dropout *dropout, Head head, Range queries,
                                 Range keys, uint32_t *words, uint64_t *kept) {
  if (!dropout->drops) return NULL;
  for (int64_t q = queries.begin; q < queries.end; q++) {
    int64_t element = (head.head * it->length + q) * it->length + keys.begin, count = keys.end - keys.begin;
    const uint32_t *drawn =
        random_words(dropout->key, (uint64_t)(dropout->first_sample + head.sample), element, count, words);
    random_above(drawn, count, dropout->limit, kept + (q - queries.begin) * ATTENTION_KEPT);
  }
  return kept;
}

static Dropout dropout_of(const OpParams *params, const LaunchContext *context) {
  Dropout dropout = {.drops = params->rate > 0.0, .scale = 1.0F, .first_sample = context->first_sample};
  if (!dropout.drops) return dropout;
  dropout.key = vl_random_key(context->seed, context->step, params->random_scope);
  /* unit >= rate, and unit is the word's upper 24 bits as a whole number of 2^-24. */
  dropout.limit = (uint32_t)(((uint64_t)ceil(params->rate * 0x1p24) << 8) - 1);
  dropout.scale = (float)(1.0 / (1.0 - params->rate));
  return dropout;
}

/* ---- Forward ------------------------------------------------------------------------------------------------------- */

/* a b for tiles: rows of a by steps of the head's size, b packed transposed. */
static void multiply_scores(const Attention *it, const uint32_t *a, const uint32_t *b, Range keys,
                            int64_t queries, float *c, AttentionAhead *ahead) {
  int64_t steps = attention_steps(it->parts, it->size);
  it->parts->multiply(&(AttentionProduct){.a = a,
                                          .a_row = steps,
                                          .a_step = 1,
                                          .b = b + keys.begin * steps,
                                          .b_panel = PANEL * steps,
                                          .c = c,
                                          .c_row = KEYS,
                                          .rows = queries,
                                          .columns = keys.end - keys.begin,
                                          .steps = steps,
                                          .ahead = ahead});
}

/* Sums over the keys of a tile: of all the head's keys in b. */
static void multiply_keys(const Attention *it, const uint32_t *a, const uint32_t *b, Range keys,
                          int64_t queries, float *c, bool adds, AttentionAhead *ahead) {
  int64_t all = attention_steps(it->parts, it->length), first = attention_steps(it->parts, keys.begin);
  it->parts->multiply(&(AttentionProduct){.a = a,
                                          .a_row = attention_steps(it->parts, KEYS),
                                          .a_step = 1,
                                          .b = b + first * PANEL,
                                          .b_panel = PANEL * all,
                                          .c = c,
                                          .c_row = results_row(it),
                                          .rows = queries,
                                          .columns = it->size,
                                          .steps = attention_steps(it->parts, keys.end) - first,
                                          .adds = adds,
                                          .ahead = ahead});
}

static const float *mask_of(const Attention *it, const Tensors *tensors, Head head, int64_t key) {
  return tensors->mask == NULL ? NULL : tensors->mask + head.sample * it->length + key;
}

static void finish_queries(const Attention *it, const Dropout *dropout, const Forward *own, Head head,
                           Range queries, const Tensors *tensors) {
  int64_t first = (head.sample * it->heads + head.head) * it->length + queries.begin;
  for (int64_t q = 0; q < queries.end - queries.begin; q++) {
    if (tensors->lse_out != NULL) tensors->lse_out[first + q] = own->top[q] + logf(own->sum[q]);
    own->factors[q] = dropout->scale / own->sum[q];
  }
  store_rows(own->results, results_row(it), own->factors,
             some_rows(rows_of_y(it, tensors->out, head), queries));
}

static void attend_head(const Attention *it, const Dropout *dropout, const Forward *own, Head head,
                        const Tensors *tensors, AttentionAhead *ahead) {
  const AttentionParts *parts = it->parts;
  parts->pack_transposed(rows_of_qkv(it, tensors->qkv, head, KEY), own->keys, own->scratch);
  parts->pack_steps(rows_of_qkv(it, tensors->qkv, head, VALUE), own->values);
  for (int64_t q = 0; q < it->length; q += QUERIES) {
    Range queries = tile_range(q, QUERIES, it->length);
    int64_t count = queries.end - queries.begin;
    parts->pack_rows(some_rows(rows_of_qkv(it, tensors->qkv, head, QUERY), queries), own->queries,
                     attention_steps(parts, it->size));
    for (int64_t k = 0; k < it->length; k += KEYS) {
      Range keys = tile_range(k, KEYS, it->length);
      multiply_scores(it, own->queries, own->keys, keys, count, own->scores, ahead);
      parts->probabilities(
          &(AttentionTile){.scores = own->scores,
                           .queries = count,
                           .keys = keys.end - keys.begin,
                           .scale = it->scale,
                           .mask = mask_of(it, tensors, head, k),
                           .kept = draw_tile(it, dropout, head, queries, keys, own->words, own->kept),
                           .first = k == 0,
                           .top = own->top,
                           .sum = own->sum,
                           .factors = own->factors,
                           .p = own->p});
      if (k > 0) scale_rows(own->results, count, results_row(it), own->factors);
      multiply_keys(it, own->p, own->values, keys, count, own->results, k > 0, ahead);
    }
    finish_queries(it, dropout, own, head, queries, tensors);
  }
}

/* ---- Backward ------------------------------------------------------------------------------------------------------- */

/* Sums over the queries of a tile, for the gradients of some keys or values. */
static void multiply_queries(const Attention *it, const uint32_t *a, const uint32_t *b, Range keys,
                             int64_t queries, float *c, bool adds, AttentionAhead *ahead) {
  int64_t steps = attention_steps(it->parts, queries), row = results_row(it);
  it->parts->multiply(&(AttentionProduct){.a = a,
                                          .a_row = 1,
                                          .a_step = KEYS,
                                          .b = b,
                                          .b_panel = PANEL * steps,
                                          .c = c + keys.begin * row,
                                          .c_row = row,
                                          .rows = keys.end - keys.begin,
                                          .columns = it->size,
                                          .steps = steps,
                                          .adds = adds,
                                          .ahead = ahead});
}

static void pack_queries(const Attention *it, const Backward *own, AttentionRows queries, AttentionRows dy) {
  int64_t row = attention_steps(it->parts, it->size);
  it->parts->pack_rows(queries, own->queries, row);
  it->parts->pack_steps(queries, own->query_steps);
  it->parts->pack_rows(dy, own->dy, row);
  it->parts->pack_steps(dy, own->dy_steps);
}

/* Writes rows of the head's part of dqkv. */
static void store_gradient(const Attention *it, const float *from, float factor, const Tensors *tensors,
                           Head head, Part part, Range rows) {
  float factors[QUERIES];
  for (int64_t i = 0; i < QUERIES; i++)
    factors[i] = factor;
  for (int64_t i = rows.begin; i < rows.end; i += QUERIES)
    store_rows(from + (i - rows.begin) * results_row(it), results_row(it), factors,
               some_rows(rows_of_qkv(it, tensors->out, head, part), tile_range(i, QUERIES, rows.end)));
}

static void differentiate_head(const Attention *it, const Dropout *dropout, const Backward *own, Head head,
                               const Tensors *tensors, AttentionAhead *ahead) {
  const AttentionParts *parts = it->parts;
  AttentionRows all_keys = rows_of_qkv(it, tensors->qkv, head, KEY);
  parts->pack_transposed(all_keys, own->keys, own->scratch);
  parts->pack_steps(all_keys, own->key_steps);
  parts->pack_transposed(rows_of_qkv(it, tensors->qkv, head, VALUE), own->values, own->scratch);
  const float *lse = tensors->lse + (head.sample * it->heads + head.head) * it->length;
  for (int64_t q = 0; q < it->length; q += QUERIES) {
    Range queries = tile_range(q, QUERIES, it->length);
    int64_t count = queries.end - queries.begin;
    AttentionRows dy = some_rows(rows_of_y(it, tensors->dy, head), queries);
    pack_queries(it, own, some_rows(rows_of_qkv(it, tensors->qkv, head, QUERY), queries), dy);
    dot_rows(dy, some_rows(rows_of_y(it, tensors->y, head), queries), own->delta);
    for (int64_t k = 0; k < it->length; k += KEYS) {
      Range keys = tile_range(k, KEYS, it->length);
      multiply_scores(it, own->queries, own->keys, keys, count, own->scores, ahead);
      multiply_scores(it, own->dy, own->values, keys, count, own->dp, ahead);
      parts->gradients(
          &(AttentionTile){.scores = own->scores,
                           .queries = count,
                           .keys = keys.end - keys.begin,
                           .scale = it->scale,
                           .mask = mask_of(it, tensors, head, k),
                           .kept = draw_tile(it, dropout, head, queries, keys, own->words, own->kept),
                           .keep_scale = dropout->scale,
                           .dp = own->dp,
                           .lse = lse + q,
                           .delta = own->delta,
                           .p_queries = own->p_queries,
                           .ds_queries = own->ds_queries,
                           .ds_keys = own->ds_keys});
      multiply_queries(it, own->p_queries, own->dy_steps, keys, count, own->dv, q > 0, ahead);
      multiply_queries(it, own->ds_queries, own->query_steps, keys, count, own->dk, q > 0, ahead);
      multiply_keys(it, own->ds_keys, own->key_steps, keys, count, own->dq, k > 0, ahead);
    }
    store_gradient(it, own->dq, it->scale, tensors, head, QUERY, queries);
  }
  store_gradient(it, own->dk, it->scale, tensors, head, KEY, (Range){0, it->length});
  store_gradient(it, own->dv, 1.0F, tensors, head, VALUE, (Range){0, it->length});
}

/* ---- The ops ---------------------------------------------------------------------------------------------------------- */

static bool is_backward(const Node *node) { return node->inputs[0]->rank == 4; }

static const float *optional(const Node *node, const uintptr_t *inputs, int32_t i) {
  return i < node->input_count && node->inputs[i] != NULL ? (const float *)inputs[i] : NULL;
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  const Node *node = kernel->node;
  const Tensor *qkv = node->inputs[is_backward(node) ? 1 : 0];
  Attention *it = vl_allocate(sizeof *it);
  kernel->data = it;
  it->bf16 = qkv->dtype == DTYPE_BF16;
  it->parts = attention_parts(it->bf16);
  it->batch = qkv->shape[0];
  it->length = qkv->shape[1];
  it->heads = qkv->shape[3];
  it->size = qkv->shape[4];
  double scale = node->params.alpha;
  it->scale = (float)(scale > 0.0 ? scale : 1.0 / sqrt((double)it->size));
  Memory counted = {.at = NULL};
  if (is_backward(node))
    (void)backward_memory(it, &counted);
  else
    (void)forward_memory(it, &counted);
  it->thread_words = counted.words;
  kernel->workspace_bytes = kernel->threads * it->thread_words * (int64_t)sizeof(uint32_t);
  snprintf(kernel->implementation, sizeof kernel->implementation, "%s", it->parts->name);
  return vl_ok();
}

static Memory memory_of(const Attention *it, uintptr_t workspace, int32_t thread) {
  return (Memory){.at = (uint32_t *)workspace + thread * it->thread_words};
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  const Attention *it = kernel->data;
  const Node *node = kernel->node;
  Dropout dropout = dropout_of(&node->params, context);
  Tensors tensors = {.qkv = (const void *)inputs[0],
                     .mask = optional(node, inputs, 1),
                     .out = (void *)outputs[0],
                     .lse_out = node->outputs[1] != NULL ? (float *)outputs[1] : NULL};
#pragma omp parallel num_threads(kernel->threads)
  {
    Memory memory = memory_of(it, workspace, omp_get_thread_num());
    Forward own = forward_memory(it, &memory);
    Range heads = vector_share(it->batch * it->heads, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t i = heads.begin; i < heads.end; i++) {
      AttentionAhead ahead = ahead_of(it, &tensors, i, heads.end);
      attend_head(it, &dropout, &own, (Head){i / it->heads, i % it->heads}, &tensors, &ahead);
    }
  }
  return vl_ok();
}

static Status launch_backward(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  const Attention *it = kernel->data;
  const Node *node = kernel->node;
  Dropout dropout = dropout_of(&node->params, context);
  Tensors tensors = {.dy = (const void *)inputs[0],
                     .qkv = (const void *)inputs[1],
                     .y = (const void *)inputs[2],
                     .lse = (const float *)inputs[3],
                     .mask = optional(node, inputs, 4),
                     .out = (void *)outputs[0]};
#pragma omp parallel num_threads(kernel->threads)
  {
    Memory memory = memory_of(it, workspace, omp_get_thread_num());
    Backward own = backward_memory(it, &memory);
    Range heads = vector_share(it->batch * it->heads, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t i = heads.begin; i < heads.end; i++) {
      AttentionAhead ahead = ahead_of(it, &tensors, i, heads.end);
      differentiate_head(it, &dropout, &own, (Head){i / it->heads, i % it->heads}, &tensors, &ahead);
    }
  }
  return vl_ok();
}

const CpuOp cpu_op_attention = {
    .name = "attention",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = launch,
};

const CpuOp cpu_op_attention_backward = {
    .name = "attention_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = launch_backward,
};
