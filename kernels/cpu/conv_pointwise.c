/* 1x1 convolutions in bf16, channels in blocks of 16, forward and data gradient: for each point a product of
 * a vector and a matrix. Here x is what is read and y what is written: the data gradient is a forward pass
 * with weights of another layout, and its stride is of y.
 *
 * Nothing is packed. Two neighbouring channels of a point are one word, which is broadcast; the library's
 * layouts of the weights hold, for a pair of channels read, a block of channels written in one register. A
 * tile of registers is two groups of points, neighbours or not, by two blocks written, and sums over all
 * channels read. While a run of points is multiplied the next one is fetched from memory, and what a tile
 * writes is fetched while it is computed.
 *
 * Measured against the library on ResNet-50's shapes, one core of Zen 5: faster by 1 to 17 % where no more
 * channels are written than read, or with a stride, as long as half the second-level cache holds the weights;
 * equal or slower elsewhere. Those are the shapes taken, if groups fill their lines.
 *
 * Every value of y is a sum in the order of channels: results depend on inputs only. */
#include "kernels/cpu/conv_pointwise.h"

#include "kernels/cpu/conv_weights.h"
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_CONV_POINTWISE 1
#include <immintrin.h>
#define TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,prfchw")))
#else
#define HAS_CONV_POINTWISE 0
#endif

enum {
  BLOCK = 16,                          /* channels of a block */
  POINT_BYTES = 2 * BLOCK,             /* of a block */
  LINE_BYTES = 64,                     /* of a cache line, and of a register of weights */
  WEIGHTS_BYTES = BLOCK * POINT_BYTES, /* of a block by a block */
  GROUP = 7,                           /* points; the sides of images are often multiples */
  SIDES = 2,                           /* groups of a tile, and blocks it writes */
  STRIDE_MOST = 2,
  RUN_BYTES = 32 << 10,    /* of x, in the first-level cache */
  RUN_MOST = 64,           /* groups */
  WEIGHTS_MOST = 512 << 10 /* bytes */
};

/* A line of points is a row of y or x, whichever is smaller, or without a stride all points of a sample.
 * Lines are whole groups. */
typedef struct ConvPointwise {
  ChannelView x, y;
  int64_t lines, line_groups, groups; /* lines of a sample, groups of a line, of all samples */
  int64_t x_pitch, y_pitch;           /* from a point to the next of its line, in points */
  int64_t x_line, y_line;             /* from a line to the next, in points */
  int64_t y_height, y_width;
  int64_t weights_x, weights_y; /* from a block read, a block written, to the next, in bytes */
  int64_t run;                  /* groups */
  int32_t point_parts, channel_parts;
} ConvPointwise;

/* Blocks are written in pairs. */
static int64_t pairs_of(const ConvPointwise *it) { return it->y.channel_blocks / SIDES; }

/* ---- The op -------------------------------------------------------------------------------------------------- */

static bool is_backward(const Node *node) { return strcmp(node->op->name, "conv_backward_data") == 0; }

static bool is_pointwise(const Node *node) {
  const Tensor *x = node->inputs[0], *weights = node->inputs[1], *y = node->outputs[0];
  const OpParams *params = &node->params;
  if (x->rank != 4 || params->groups > 1) return false;
  if (x->dtype != DTYPE_BF16 || weights->dtype != DTYPE_BF16 || y->dtype != DTYPE_BF16) return false;
  if (x->shape[1] % BLOCK != 0 || y->shape[1] % (SIDES * BLOCK) != 0) return false;
  for (int32_t i = 0; i < 2; i++)
    if (weights->shape[2 + i] != 1 || params->padding[i] != 0) return false;
  return params->stride[0] == params->stride[1] && params->stride[0] <= STRIDE_MOST;
}

/* The points of a line: see ConvPointwise. */
static int64_t line_points(const Node *node) {
  const Tensor *smaller = is_backward(node) ? node->inputs[0] : node->outputs[0];
  return node->params.stride[0] == 1 ? smaller->shape[2] * smaller->shape[3] : smaller->shape[3];
}

/* Whether it is faster than the library: see above. */
static bool pays(const Node *node) {
  int64_t read = node->inputs[0]->shape[1], written = node->outputs[0]->shape[1];
  return line_points(node) % GROUP == 0 && read * written * 2 <= WEIGHTS_MOST &&
         (read >= written || node->params.stride[0] > 1);
}

bool cpu_conv_pointwise_applies(CpuDevice *device, const Kernel *kernel) {
  const Node *node = kernel->node;
  if (node->outputs[0] == NULL || !is_pointwise(node) || !pays(node)) return false;
  if (!cpu_conv_has_instructions(true)) return false;
  LayoutId blocked = cpu_layout_blocked(device, 4, BLOCK);
  if (kernel->inputs[0] != blocked || kernel->outputs[0] != blocked) return false;
  const char *weights = cpu_layout_name(device, kernel->inputs[1]);
  if (is_backward(node)) return strcmp(weights, "ABcd8a16b2a") == 0 || strcmp(weights, "BAcd8a16b2a") == 0;
  return strcmp(weights, "ABcd8b16a2b") == 0 || strcmp(weights, "BAcd8b16a2b") == 0;
}

/* Threads share out points, and where those do not go round, blocks written too. */
static void choose_shares(ConvPointwise *it, int32_t threads) {
  int64_t least = INT64_MAX;
  for (int32_t parts = 1; parts <= threads && parts <= pairs_of(it); parts++) {
    int32_t point_parts = threads / parts;
    if (point_parts > it->groups) point_parts = (int32_t)it->groups;
    Range pairs = vector_share(pairs_of(it), parts, 0), groups = vector_share(it->groups, point_parts, 0);
    int64_t tiles = (pairs.end - pairs.begin) * ((groups.end - groups.begin + 1) / SIDES);
    if (tiles >= least) continue;
    least = tiles;
    it->channel_parts = parts;
    it->point_parts = point_parts;
  }
}

Status cpu_conv_pointwise_prepare(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  bool backward = is_backward(node);
  int64_t stride = node->params.stride[0], points = line_points(node);
  ConvPointwise *it = vl_allocate(sizeof *it);
  kernel->data = it;
  VL_TRY(cpu_channel_view(device, kernel->inputs[0], x, &it->x));
  VL_TRY(cpu_channel_view(device, kernel->outputs[0], y, &it->y));
  it->lines = (backward ? it->x.spatial : it->y.spatial) / points;
  it->line_groups = points / GROUP;
  it->groups = it->x.n * it->lines * it->line_groups;
  it->x_pitch = backward ? 1 : stride;
  it->y_pitch = backward ? stride : 1;
  it->x_line = backward ? points : stride * x->shape[3];
  it->y_line = backward ? stride * y->shape[3] : points;
  it->y_height = y->shape[2];
  it->y_width = y->shape[3];
  bool read_first = (cpu_layout_name(device, kernel->inputs[1])[0] == 'A') == backward;
  it->weights_x = WEIGHTS_BYTES * (read_first ? it->y.channel_blocks : 1);
  it->weights_y = WEIGHTS_BYTES * (read_first ? 1 : it->x.channel_blocks);
  int64_t run = RUN_BYTES / (it->x.channels * 2 * GROUP) / SIDES * SIDES;
  it->run = run < SIDES ? SIDES : run > RUN_MOST ? RUN_MOST : run;
  choose_shares(it, kernel->threads);
  snprintf(kernel->implementation, sizeof kernel->implementation, "own:avx512_bf16");
  return vl_ok();
}

#if HAS_CONV_POINTWISE

/* ---- Products --------------------------------------------------------------------------------------------------- */

/* Two groups of points by two blocks written. Distances in bytes. */
typedef struct Tile {
  const char *x[SIDES], *weights[SIDES];
  char *y[SIDES][SIDES]; /* of a group, of a block */
  int64_t blocks;        /* read */
  int64_t x_block, weights_block, y_point, y_row;
  int64_t y_rows;           /* to write, those between the points' own included */
  const char *fetch[SIDES]; /* groups of the next run */
  int64_t fetch_blocks;
} Tile;

/* Asks for what block b of the work on a tile has to bring: a channel block of the next run, and a row of y.
 */
TARGET_BF16
static inline void fetch(const Tile *tile, int64_t b, int32_t x_pitch) {
  if (b < tile->fetch_blocks) {
    for (int32_t at = 0; at < GROUP * x_pitch * POINT_BYTES; at += LINE_BYTES) {
      __builtin_prefetch(tile->fetch[0] + b * tile->x_block + at, 0, 2);
      __builtin_prefetch(tile->fetch[1] + b * tile->x_block + at, 0, 2);
    }
  }
  if (b < SIDES * SIDES * tile->y_rows) {
    const char *row = tile->y[b / SIDES % SIDES][b % SIDES] + b / (SIDES * SIDES) * tile->y_row;
    for (int64_t at = 0; at < GROUP * tile->y_point; at += LINE_BYTES)
      __builtin_prefetch(row + at, 1, 3);
  }
}

/* Inlined with a constant distance between the points of x. */
TARGET_BF16
static inline __attribute__((always_inline)) void multiply(const Tile *tile, int32_t x_pitch) {
  __m512 sum0[SIDES * GROUP], sum1[SIDES * GROUP]; /* registers, once every loop over them is unrolled */
#pragma GCC unroll 14
  for (int32_t i = 0; i < SIDES * GROUP; i++)
    sum0[i] = sum1[i] = _mm512_setzero_ps();
  const char *x0 = tile->x[0], *x1 = tile->x[1], *w0 = tile->weights[0], *w1 = tile->weights[1];
  for (int64_t b = 0; b < tile->blocks; b++) {
    fetch(tile, b, x_pitch);
#pragma GCC unroll 8
    for (int32_t k = 0; k < BLOCK / 2; k++) {
      __m512bh first = (__m512bh)_mm512_load_si512(w0 + k * LINE_BYTES),
               second = (__m512bh)_mm512_load_si512(w1 + k * LINE_BYTES);
#pragma GCC unroll 14
      for (int32_t i = 0; i < SIDES * GROUP; i++) {
        const char *point = (i < GROUP ? x0 : x1) + i % GROUP * x_pitch * POINT_BYTES;
        __m512bh value = (__m512bh)_mm512_set1_epi32(((const int32_t *)(const void *)point)[k]);
        sum0[i] = _mm512_dpbf16_ps(sum0[i], first, value);
        sum1[i] = _mm512_dpbf16_ps(sum1[i], second, value);
      }
    }
    x0 += tile->x_block;
    x1 += tile->x_block;
    w0 += tile->weights_block;
    w1 += tile->weights_block;
  }
#pragma GCC unroll 14
  for (int32_t i = 0; i < SIDES * GROUP; i++) {
    int64_t at = i % GROUP * tile->y_point;
    _mm256_store_si256((void *)(tile->y[i / GROUP][0] + at), (__m256i)_mm512_cvtneps_pbh(sum0[i]));
    _mm256_store_si256((void *)(tile->y[i / GROUP][1] + at), (__m256i)_mm512_cvtneps_pbh(sum1[i]));
  }
}

TARGET_BF16 static void multiply_dense(const Tile *tile) { multiply(tile, 1); }
TARGET_BF16 static void multiply_strided(const Tile *tile) { multiply(tile, STRIDE_MOST); }

/* ---- Runs --------------------------------------------------------------------------------------------------------- */

/* Where a group begins in channel block 0: bytes, and the place in y. */
typedef struct Group {
  int64_t x, y;
  int64_t row, column;
} Group;

static void find_groups(const ConvPointwise *it, int64_t first, int64_t count, Group *groups) {
  for (int64_t k = 0; k < count; k++) {
    int64_t place = (first + k) % it->line_groups * GROUP, line = (first + k) / it->line_groups;
    int64_t sample = line / it->lines, x = sample * it->x.channel_blocks * it->x.spatial,
            y = sample * it->y.channel_blocks * it->y.spatial;
    line %= it->lines;
    groups[k] = (Group){.x = (x + line * it->x_line + place * it->x_pitch) * POINT_BYTES,
                        .y = (y + line * it->y_line + place * it->y_pitch) * POINT_BYTES,
                        .row = line * it->y_pitch,
                        .column = place * it->y_pitch};
  }
}

/* Zeros to the right of a group's points and below them, which the products do not reach. */
static void zero_between(const ConvPointwise *it, const Group *group, char *y) {
  int64_t columns = it->y_width - group->column;
  if (columns > GROUP * it->y_pitch) columns = GROUP * it->y_pitch;
  for (int64_t column = 1; column < columns; column += STRIDE_MOST)
    memset(y + column * POINT_BYTES, 0, POINT_BYTES);
  if (group->row + 1 < it->y_height)
    memset(y + it->y_width * POINT_BYTES, 0, (size_t)(columns * POINT_BYTES));
}

/* One thread's work on a launch. */
typedef struct Share {
  const ConvPointwise *it;
  const char *x, *weights;
  char *y;
  Range groups, pairs;
} Share;

static void multiply_tile(const Share *share, Tile *tile, int64_t pair, const Group *const groups[SIDES]) {
  const ConvPointwise *it = share->it;
  for (int32_t side = 0; side < SIDES; side++) {
    tile->x[side] = share->x + groups[side]->x;
    for (int32_t block = 0; block < SIDES; block++)
      tile->y[side][block] =
          share->y + groups[side]->y + (SIDES * pair + block) * it->y.spatial * POINT_BYTES;
  }
  if (it->x_pitch == 1)
    multiply_dense(tile);
  else
    multiply_strided(tile);
  if (it->y_pitch == 1) return;
  for (int32_t side = 0; side < SIDES; side++) {
    for (int32_t block = 0; block < SIDES; block++)
      zero_between(it, groups[side], tile->y[side][block]);
  }
}

/* A run; each pair of blocks written fetches its part of the blocks that the next run reads. */
static void multiply_run(const Share *share, const Group *groups, int64_t count, const Group *next,
                         int64_t next_count) {
  const ConvPointwise *it = share->it;
  Range pairs = share->pairs;
  Tile tile = {.blocks = it->x.channel_blocks,
               .x_block = it->x.spatial * POINT_BYTES,
               .weights_block = it->weights_x,
               .y_point = it->y_pitch * POINT_BYTES,
               .y_row = it->y_width * POINT_BYTES,
               .y_rows = it->y_pitch};
  for (int64_t pair = pairs.begin; pair < pairs.end; pair++) {
    Range ahead =
        vector_share(it->x.channel_blocks, (int32_t)(pairs.end - pairs.begin), (int32_t)(pair - pairs.begin));
    for (int32_t block = 0; block < SIDES; block++)
      tile.weights[block] = share->weights + (SIDES * pair + block) * it->weights_y;
    for (int64_t k = 0; k < count; k += SIDES) {
      tile.fetch_blocks = k + 1 < next_count ? ahead.end - ahead.begin : 0;
      for (int32_t side = 0; side < SIDES && tile.fetch_blocks > 0; side++)
        tile.fetch[side] = share->x + next[k + side].x + ahead.begin * tile.x_block;
      /* A last group without a partner is its own. */
      multiply_tile(share, &tile, pair,
                    (const Group *const[SIDES]){&groups[k], &groups[k + 1 < count ? k + 1 : k]});
    }
  }
}

static void run_share(const Share *share) {
  Group memory[2][RUN_MOST], *groups = memory[0], *next = memory[1];
  const int64_t run = share->it->run, end = share->groups.end;
  int64_t first = share->groups.begin, count = end - first < run ? end - first : run;
  find_groups(share->it, first, count, groups);
  while (count > 0) {
    first += count;
    int64_t next_count = end - first < run ? end - first : run;
    find_groups(share->it, first, next_count, next);
    multiply_run(share, groups, count, next, next_count);
    Group *done = groups;
    groups = next;
    next = done;
    count = next_count;
  }
}

Status cpu_conv_pointwise_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                 uintptr_t workspace, const LaunchContext *context) {
  (void)workspace, (void)context;
  const ConvPointwise *it = kernel->data;
  int32_t parts = it->point_parts * it->channel_parts;
#pragma omp parallel num_threads(parts)
  {
    /* Should the runtime give fewer threads than asked for, each does several threads' work. */
    for (int32_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) {
      Share share = {.it = it,
                     .x = (const char *)inputs[0],
                     .weights = (const char *)inputs[1],
                     .y = (char *)outputs[0],
                     .groups = vector_share(it->groups, it->point_parts, part / it->channel_parts),
                     .pairs = vector_share(pairs_of(it), it->channel_parts, part % it->channel_parts)};
      run_share(&share);
    }
  }
  return vl_ok();
}

#else

Status cpu_conv_pointwise_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                 uintptr_t workspace, const LaunchContext *context) {
  (void)kernel, (void)inputs, (void)outputs, (void)workspace, (void)context;
  return vl_error(VL_INTERNAL, "this build has no own kernel for 1x1 convolutions");
}

#endif
