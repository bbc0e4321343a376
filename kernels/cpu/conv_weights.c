/* Weight gradient of convolutions, channels in blocks of 16: for each place of the window (tap) a product of
 * matrices, dw = x^T dy over all points of the output, x shifted to the tap.
 *
 * The points are taken in runs that the second-level cache holds. f32 is multiplied where it lies. bf16 is
 * packed first, a run of dy once and a run of x once for each tap, as pairs of points for the dot product of
 * pairs, padding as zeros. Where x is to be normalised, the rows that a run's windows reach are, once, into a
 * buffer that takes x's place. While a run is multiplied, the next one is fetched from memory: where channels
 * are few, waiting for it takes as long as the products.
 *
 * Threads share out the channels of x or of dy, then dw is written in place and nothing is summed up after,
 * or the points, or both, whichever costs least. Every value of dw is a sum in the order of points, parts of
 * threads added in their order: results depend on inputs and thread count only. */
#include "kernels/cpu/conv_weights_parts.h"

#include <omp.h>
#include <string.h>

/* A point of the output, and where the window's first place is in x. Rows count BLOCK values of channel
 * block 0. */
typedef struct Point {
  int64_t row_dy, row_x;
  int32_t at[SPACE]; /* in x; negative in the padding */
} Point;

/* Lines that follow each other in dy, and in x a step apart, by their places from channel block 0. */
typedef struct Stretch {
  int64_t x, dy, lines;
} Stretch;

static int64_t by_line(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }
/* ---- Memory -------------------------------------------------------------------------------------------------- */

/* What a thread has for itself: the points of this run and the next, rows, stretches, packed runs,
 * coefficients and normalised rows. */
static int64_t points_bytes(const ConvWeights *it) { return by_line(it->run * (int64_t)sizeof(Point)); }
static int64_t rows_bytes(const ConvWeights *it) { return by_line(it->run * (int64_t)sizeof(int64_t)); }
static int64_t stretches_bytes(const ConvWeights *it) { return by_line(it->run * (int64_t)sizeof(Stretch)); }
static int64_t packed_bytes(const ConvWeights *it, Range blocks) {
  return it->bf16 ? (blocks.end - blocks.begin) * lines_of(it, it->run) * LINE : 0;
}
static int64_t coefficients_bytes(const ConvWeights *it) {
  return it->normalises ? by_line(batch_norm_coefficients(&it->x) * 4) : 0;
}
static int64_t normalised_bytes(const ConvWeights *it, Range blocks) {
  return by_line((blocks.end - blocks.begin) * it->reached * BLOCK * element_bytes(it));
}
static int64_t thread_bytes(const ConvWeights *it) {
  Range x = conv_weights_blocks_of_x(it, 0), dy = conv_weights_blocks_of_dy(it, 0);
  return 2 * points_bytes(it) + rows_bytes(it) + stretches_bytes(it) + packed_bytes(it, x) +
         packed_bytes(it, dy) + coefficients_bytes(it) + normalised_bytes(it, x);
}

/* ---- The op -------------------------------------------------------------------------------------------------- */

bool cpu_conv_has_instructions(bool bf16) {
#if HAS_CONV_WEIGHTS
  dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  if (isa < dnnl_cpu_isa_avx512_core || !__builtin_cpu_supports("avx512bw")) return false;
  if (!bf16) return true;
  return isa >= dnnl_cpu_isa_avx512_core_bf16 && isa < dnnl_cpu_isa_avx512_core_amx &&
         __builtin_cpu_supports("avx512bf16");
#else
  (void)bf16;
  return false;
#endif
}

bool cpu_conv_weights_takes(const Node *node) {
  const Tensor *x = node->inputs[0], *dy = node->inputs[1], *dw = node->outputs[0];
  if (dw == NULL || x->rank < 4 || node->params.groups > 1) return false;
  if (x->dtype != dy->dtype || dw->dtype != DTYPE_F32) return false;
  if (x->dtype != DTYPE_F32 && x->dtype != DTYPE_BF16) return false;
  if (x->shape[1] % BLOCK != 0 || dy->shape[1] % (2 * BLOCK) != 0) return false;
  return cpu_conv_has_instructions(x->dtype == DTYPE_BF16);
}

bool cpu_conv_weights_applies(CpuDevice *device, const Kernel *kernel) {
  const Node *node = kernel->node;
  if (!cpu_conv_weights_takes(node)) return false;
  const Tensor *x = node->inputs[0];
  LayoutId blocked = cpu_layout_blocked(device, x->rank, BLOCK);
  const char *weights = cpu_layout_name(device, kernel->outputs[0]);
  static const char *const known[] = {"ABcd16b16a", "BAcd16b16a", "ABcde16b16a", "BAcde16b16a"};
  bool is_known = false;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    is_known = is_known || strcmp(weights, known[i]) == 0;
  return is_known && kernel->inputs[0] == blocked && kernel->inputs[1] == blocked;
}

Status cpu_conv_weights_prepare(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0], *dy = node->inputs[1], *dw = node->outputs[0];
  ConvWeights *it = vl_allocate(sizeof *it);
  kernel->data = it;
  VL_TRY(cpu_channel_view(device, kernel->inputs[0], x, &it->x));
  VL_TRY(cpu_channel_view(device, kernel->inputs[1], dy, &it->dy));
  it->bf16 = x->dtype == DTYPE_BF16;
  it->normalises = node->input_count > CONV_WEIGHTS_MEAN;
  it->taps = 1;
  int32_t missing = SPACE - (x->rank - 2);
  for (int32_t i = 0; i < SPACE; i++) {
    bool there = i >= missing;
    it->in[i] = there ? x->shape[2 + i - missing] : 1;
    it->out[i] = there ? dy->shape[2 + i - missing] : 1;
    it->window[i] = there ? dw->shape[2 + i - missing] : 1;
    it->stride[i] = there ? node->params.stride[i - missing] : 1;
    it->padding[i] = there ? node->params.padding[i - missing] : 0;
    it->taps *= it->window[i];
  }
  it->points = it->dy.n * it->dy.spatial;
  it->outputs_first = cpu_layout_name(device, kernel->outputs[0])[0] == 'A';
  conv_weights_choose_shares(it, kernel->threads);
  conv_weights_choose_run(it);
  if (it->normalises && !(it->bf16 && it->taps == 1)) it->reached = conv_weights_most_reached(it);
  kernel->workspace_bytes = it->channel_parts * it->point_parts * thread_bytes(it) +
                            (it->point_parts - 1) * gradient_elements(it) * 4;
  snprintf(kernel->implementation, sizeof kernel->implementation, "own:%s",
           it->bf16 ? "avx512_bf16" : "avx512");
  return vl_ok();
}

#if HAS_CONV_WEIGHTS

static void find_points(const ConvWeights *it, int64_t first, int64_t count, Point *points) {
  for (int64_t k = 0; k < count; k++) {
    int64_t sample = (first + k) / it->dy.spatial, place = (first + k) % it->dy.spatial;
    Point *point = &points[k];
    point->row_dy = sample * it->dy.channel_blocks * it->dy.spatial + place;
    point->row_x =
        sample * it->x.channel_blocks * it->x.spatial + conv_weights_window_start(it, place, point->at);
  }
}

/* Where each point's value for a tap lies in x; -1 in the padding. */
static void find_rows(const ConvWeights *it, const Point *points, int64_t count, int64_t tap, int64_t *rows) {
  int64_t place[SPACE] = {tap / (it->window[1] * it->window[2]), tap / it->window[2] % it->window[1],
                          tap % it->window[2]};
  int64_t step = (place[0] * it->in[1] + place[1]) * it->in[2] + place[2];
  for (int64_t k = 0; k < count; k++) {
    bool inside = true;
    for (int32_t i = 0; i < SPACE; i++)
      inside = inside && (uint64_t)(points[k].at[i] + place[i]) < (uint64_t)it->in[i];
    rows[k] = inside ? points[k].row_x + step : -1;
  }
}

/* ---- Stretches ------------------------------------------------------------------------------------------------- */

static int64_t find_stretches(const ConvWeights *it, const Point *points, const int64_t *rows, int64_t count,
                              Stretch *stretches) {
  int64_t found = 0, step = it->stride[SPACE - 1];
  for (int64_t k = 0; k < count; k++) {
    if (rows[k] < 0) continue;
    bool follows = k > 0 && found > 0 && rows[k - 1] >= 0 && rows[k] == rows[k - 1] + step &&
                   points[k].row_dy == points[k - 1].row_dy + 1 && stretches[found - 1].lines < STRETCH_MOST;
    if (follows)
      stretches[found - 1].lines++;
    else
      stretches[found++] = (Stretch){.x = rows[k], .dy = points[k].row_dy, .lines = 1};
  }
  return found;
}

static int64_t packed_stretches(int64_t lines, Stretch *stretches) {
  int64_t found = 0;
  for (int64_t k = 0; k < lines; k += STRETCH_MOST) {
    int64_t rest = lines - k;
    stretches[found++] = (Stretch){k, k, rest < STRETCH_MOST ? rest : STRETCH_MOST};
  }
  return found;
}

/* ---- Fetching ahead ------------------------------------------------------------------------------------------- */

/* Lines of the next run still to fetch. */
typedef struct Stream {
  const char *base; /* of channel block 0 */
  int64_t block_bytes, row_bytes;
  int64_t block, blocks_end, k, step; /* step: points that share a line */
  bool is_x;
} Stream;

typedef struct Ahead {
  const Point *points;
  int64_t count;
  Stream streams[2];
  int32_t stream;
  int64_t lines_each; /* at a time */
} Ahead;

static inline void fetch(Ahead *ahead) {
  for (int64_t i = 0; i < ahead->lines_each && ahead->stream < 2; i++) {
    Stream *s = &ahead->streams[ahead->stream];
    const Point *point = &ahead->points[s->k];
    int64_t row = s->is_x ? point->row_x : point->row_dy;
    __builtin_prefetch(s->base + s->block * s->block_bytes + row * s->row_bytes, 0, 2);
    s->k += s->step;
    if (s->k >= ahead->count) {
      s->k = 0;
      if (++s->block >= s->blocks_end) ahead->stream++;
    }
  }
}

/* ---- Products ----------------------------------------------------------------------------------------------------- */

/* One tile: TILE_ROWS input channels, two blocks of output channels. */
typedef struct Tile {
  const char *x, *dy[2];
  const Stretch *stretches;
  int64_t stretch_count, step_bytes; /* step: of x in a stretch */
  float *dw[2];
  bool first; /* dw holds nothing yet */
} Tile;

TARGET_F32
static void multiply_f32(const Tile *tile, Ahead *ahead) {
  __m512 sum0[TILE_ROWS], sum1[TILE_ROWS]; /* registers, once every loop over them is unrolled */
#pragma GCC unroll 8
  for (int32_t i = 0; i < TILE_ROWS; i++) {
    sum0[i] = tile->first ? _mm512_setzero_ps() : _mm512_load_ps(tile->dw[0] + i * BLOCK);
    sum1[i] = tile->first ? _mm512_setzero_ps() : _mm512_load_ps(tile->dw[1] + i * BLOCK);
  }
  for (int64_t s = 0; s < tile->stretch_count; s++, fetch(ahead)) {
    const Stretch *stretch = &tile->stretches[s];
    const char *dy0 = tile->dy[0] + stretch->dy * LINE, *dy1 = tile->dy[1] + stretch->dy * LINE;
    const char *x = tile->x + stretch->x * LINE;
    for (int64_t k = 0; k < stretch->lines; k++, x += tile->step_bytes) {
      __m512 first = _mm512_loadu_ps(dy0 + k * LINE), second = _mm512_loadu_ps(dy1 + k * LINE);
      const float *row = (const float *)(const void *)x;
#pragma GCC unroll 8
      for (int32_t i = 0; i < TILE_ROWS; i++) {
        __m512 value = _mm512_set1_ps(row[i]);
        sum0[i] = _mm512_fmadd_ps(first, value, sum0[i]);
        sum1[i] = _mm512_fmadd_ps(second, value, sum1[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int32_t i = 0; i < TILE_ROWS; i++) {
    _mm512_store_ps(tile->dw[0] + i * BLOCK, sum0[i]);
    _mm512_store_ps(tile->dw[1] + i * BLOCK, sum1[i]);
  }
}

TARGET_BF16
static void multiply_bf16(const Tile *tile, Ahead *ahead) {
  __m512 sum0[TILE_ROWS], sum1[TILE_ROWS];
#pragma GCC unroll 8
  for (int32_t i = 0; i < TILE_ROWS; i++) {
    sum0[i] = tile->first ? _mm512_setzero_ps() : _mm512_load_ps(tile->dw[0] + i * BLOCK);
    sum1[i] = tile->first ? _mm512_setzero_ps() : _mm512_load_ps(tile->dw[1] + i * BLOCK);
  }
  for (int64_t s = 0; s < tile->stretch_count; s++, fetch(ahead)) {
    const Stretch *stretch = &tile->stretches[s];
    const char *dy0 = tile->dy[0] + stretch->dy * LINE, *dy1 = tile->dy[1] + stretch->dy * LINE;
    const char *x = tile->x + stretch->x * LINE;
    for (int64_t k = 0; k < stretch->lines; k++, x += tile->step_bytes) {
      __m512bh first = (__m512bh)_mm512_load_si512(dy0 + k * LINE),
               second = (__m512bh)_mm512_load_si512(dy1 + k * LINE);
      const int32_t *row = (const int32_t *)(const void *)x;
#pragma GCC unroll 8
      for (int32_t i = 0; i < TILE_ROWS; i++) {
        __m512bh value = (__m512bh)_mm512_set1_epi32(row[i]);
        sum0[i] = _mm512_dpbf16_ps(sum0[i], first, value);
        sum1[i] = _mm512_dpbf16_ps(sum1[i], second, value);
      }
    }
  }
#pragma GCC unroll 8
  for (int32_t i = 0; i < TILE_ROWS; i++) {
    _mm512_store_ps(tile->dw[0] + i * BLOCK, sum0[i]);
    _mm512_store_ps(tile->dw[1] + i * BLOCK, sum1[i]);
  }
}

/* The block of dw for output block o and input block i: [input channel][output channel]. */
static float *gradient_block(const ConvWeights *it, float *dw, int64_t o, int64_t i, int64_t tap) {
  int64_t index = it->outputs_first ? o * it->x.channel_blocks + i : i * it->dy.channel_blocks + o;
  return dw + (index * it->taps + tap) * BLOCK * BLOCK;
}

/* One thread's launch. */
typedef struct Share {
  const ConvWeights *it;
  const char *x, *dy;
  Range points, blocks_x, blocks_dy;
  Operand from_x, from_dy;
  Point *these, *next;
  int64_t *rows;
  Stretch *stretches;
  char *normalised;
  Normalisation normalisation; /* into the buffer */
  float *dw;
} Share;

/* Where the values of a channel block are, packed or not. */
static const char *values_of(const ConvWeights *it, const Operand *operand, int64_t block) {
  return it->bf16 ? operand->packed + block * lines_of(it, it->run) * LINE
                  : operand->rows + block * operand->block_rows * LINE;
}

static void multiply_tap(const Share *share, int64_t tap, int64_t stretch_count, bool first, Ahead *ahead) {
  const ConvWeights *it = share->it;
  Tile tile = {.stretches = share->stretches,
               .stretch_count = stretch_count,
               .step_bytes = it->bf16 ? LINE : it->stride[SPACE - 1] * LINE,
               .first = first};
  for (int64_t o = share->blocks_dy.begin; o < share->blocks_dy.end; o += 2) {
    for (int64_t side = 0; side < 2; side++)
      tile.dy[side] = values_of(it, &share->from_dy, o + side - share->blocks_dy.begin);
    for (int64_t i = share->blocks_x.begin; i < share->blocks_x.end; i++) {
      const char *x = values_of(it, &share->from_x, i - share->blocks_x.begin);
      for (int64_t half = 0; half < BLOCK; half += TILE_ROWS) {
        tile.x = x + half * LINE / BLOCK;
        for (int64_t side = 0; side < 2; side++)
          tile.dw[side] = gradient_block(it, share->dw, o + side, i, tap) + half * BLOCK;
        if (it->bf16)
          multiply_bf16(&tile, ahead);
        else
          multiply_f32(&tile, ahead);
      }
    }
  }
}

/* What to fetch while a run of so many stretches a tap is multiplied: the values of the next run, x's at the
 * window's middle. */
static Ahead ahead_of(const Share *share, int64_t count, int64_t stretches) {
  const ConvWeights *it = share->it;
  int64_t row_bytes = BLOCK * element_bytes(it);
  Ahead ahead = {.points = share->next, .count = count};
  int64_t middle = 0;
  for (int32_t i = 0; i < SPACE; i++)
    middle = middle * it->in[i] + it->padding[i];
  ahead.streams[0] = (Stream){.base = share->dy,
                              .block_bytes = it->dy.spatial * row_bytes,
                              .row_bytes = row_bytes,
                              .block = share->blocks_dy.begin,
                              .blocks_end = share->blocks_dy.end,
                              .step = it->bf16 ? 2 : 1};
  ahead.streams[1] = (Stream){.base = share->x + middle * row_bytes,
                              .block_bytes = it->x.spatial * row_bytes,
                              .row_bytes = row_bytes,
                              .block = share->blocks_x.begin,
                              .blocks_end = share->blocks_x.end,
                              .step = it->bf16 && it->stride[SPACE - 1] == 1 ? 2 : 1,
                              .is_x = true};
  if (count == 0) ahead.stream = 2;
  int64_t blocks_x = share->blocks_x.end - share->blocks_x.begin;
  int64_t blocks_dy = share->blocks_dy.end - share->blocks_dy.begin;
  int64_t rounds = it->taps * blocks_x * blocks_dy * (stretches > 0 ? stretches : 1);
  int64_t lines_ahead = blocks_x * count / ahead.streams[1].step + blocks_dy * count / ahead.streams[0].step;
  ahead.lines_each = (lines_ahead + rounds - 1) / rounds;
  return ahead;
}

/* Normalises the rows that the windows of this run reach; its points are then in the buffer. */
static void normalise_run(const Share *share, int64_t first, int64_t count) {
  const ConvWeights *it = share->it;
  int64_t blocks = share->blocks_x.end - share->blocks_x.begin, row = 0;
  int64_t row_bytes = BLOCK * element_bytes(it);
  for (int64_t k = 0; k < count;) {
    Reach reach = conv_weights_reach(it, first + k, first + count);
    int64_t rows = reach.rows.end - reach.rows.begin;
    int64_t from = reach.sample * it->x.channel_blocks * it->x.spatial + reach.rows.begin;
    for (int64_t b = 0; b < blocks; b++) {
      int64_t to = (b * it->reached + row) * row_bytes;
      int64_t at = (from + (share->blocks_x.begin + b) * it->x.spatial) * row_bytes;
      conv_weights_normalise(it, share->x + at, rows, &share->normalisation, b, share->normalised + to);
    }
    for (int64_t end = k + reach.points; k < end; k++)
      share->these[k].row_x += row - from;
    row += rows;
  }
}

static void run_share(Share *share) {
  const ConvWeights *it = share->it;
  Range points = share->points;
  int64_t blocks_x = share->blocks_x.end - share->blocks_x.begin;
  int64_t blocks_dy = share->blocks_dy.end - share->blocks_dy.begin;
  int64_t count = points.end - points.begin < it->run ? points.end - points.begin : it->run;
  find_points(it, points.begin, count, share->next);
  for (int64_t first = points.begin; first < points.end;) {
    Point *these = share->next;
    share->next = share->these;
    share->these = these;
    int64_t after = first + count, rest = points.end - after, next_count = rest < it->run ? rest : it->run;
    find_points(it, after, next_count, share->next);
    for (int64_t k = 0; k < count; k++)
      share->rows[k] = these[k].row_dy;
    if (it->bf16) conv_weights_pack(it, &share->from_dy, blocks_dy, share->rows, count);
    if (it->reached > 0) normalise_run(share, first, count);
    Ahead ahead = ahead_of(share, next_count, lines_of(it, count) / STRETCH_MOST);
    for (int64_t tap = 0; tap < it->taps; tap++) {
      int64_t stretches;
      find_rows(it, these, count, tap, share->rows);
      if (it->bf16) {
        conv_weights_pack(it, &share->from_x, blocks_x, share->rows, count);
        stretches = packed_stretches(lines_of(it, count), share->stretches);
      } else {
        stretches = find_stretches(it, these, share->rows, count, share->stretches);
      }
      multiply_tap(share, tap, stretches, first == points.begin, &ahead);
    }
    first = after;
    count = next_count;
  }
}

static Share share_of(const Kernel *kernel, const uintptr_t *inputs, int32_t thread, uintptr_t memory,
                      float *dw) {
  const ConvWeights *it = kernel->data;
  int32_t channel_part = thread % it->channel_parts, point_part = thread / it->channel_parts;
  Share share = {.it = it, .x = (const char *)inputs[0], .dy = (const char *)inputs[1], .dw = dw};
  share.points = vector_share(it->points, it->point_parts, point_part);
  share.blocks_x = conv_weights_blocks_of_x(it, channel_part);
  share.blocks_dy = conv_weights_blocks_of_dy(it, channel_part);
  share.these = (Point *)memory;
  share.next = (Point *)(memory + (uintptr_t)points_bytes(it));
  share.rows = (int64_t *)(memory + 2 * (uintptr_t)points_bytes(it));
  share.stretches = (Stretch *)((uintptr_t)share.rows + (uintptr_t)rows_bytes(it));
  share.from_x.packed = (char *)share.stretches + stretches_bytes(it);
  share.from_dy.packed = share.from_x.packed + packed_bytes(it, conv_weights_blocks_of_x(it, 0));
  int64_t row_bytes = BLOCK * element_bytes(it);
  share.from_dy.rows = share.dy + share.blocks_dy.begin * it->dy.spatial * row_bytes;
  share.from_dy.block_rows = it->dy.spatial;
  share.from_x.rows = share.x + share.blocks_x.begin * it->x.spatial * row_bytes;
  share.from_x.block_rows = it->x.spatial;
  if (!it->normalises) return share;
  float *coefficients =
      (float *)(void *)(share.from_dy.packed + packed_bytes(it, conv_weights_blocks_of_dy(it, 0)));
  Range channels = {share.blocks_x.begin * BLOCK, share.blocks_x.end * BLOCK};
  BatchNormCoefficients by =
      batch_norm_fill(kernel, &it->x, inputs, CONV_WEIGHTS_MEAN, channels, coefficients);
  Normalisation normalisation = {
      {by.mean + channels.begin, by.scale + channels.begin, by.beta + channels.begin},
      kernel->node->params.relu == 1};
  if (it->reached == 0) {
    share.from_x.normalisation = normalisation;
    return share;
  }
  share.normalisation = normalisation;
  share.normalised = (char *)coefficients + coefficients_bytes(it);
  share.from_x.rows = share.normalised;
  share.from_x.block_rows = it->reached;
  return share;
}

/* Adds the parts of the points to dw, in their order. */
static void add_parts(float *restrict dw, const float *restrict parts, int64_t elements, int32_t count,
                      Range range) {
  for (int32_t part = 0; part < count; part++) {
    for (int64_t e = range.begin; e < range.end; e++)
      dw[e] += parts[part * elements + e];
  }
}

Status cpu_conv_weights_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ConvWeights *it = kernel->data;
  int64_t elements = gradient_elements(it);
  float *dw = (float *)outputs[0];
  float *parts = (float *)(workspace + (uintptr_t)(it->channel_parts * it->point_parts * thread_bytes(it)));
#pragma omp parallel num_threads(kernel->threads)
  {
    /* Should the runtime give fewer threads than asked for, each does several threads' work. */
    int32_t given = omp_get_num_threads(), self = omp_get_thread_num();
    for (int32_t thread = self; thread < it->channel_parts * it->point_parts; thread += given) {
      int32_t part = thread / it->channel_parts;
      Share share = share_of(kernel, inputs, thread, workspace + (uintptr_t)(thread * thread_bytes(it)),
                             part == 0 ? dw : parts + (part - 1) * elements);
      run_share(&share);
    }
    if (it->point_parts > 1) {
#pragma omp barrier
      add_parts(dw, parts, elements, it->point_parts - 1, vector_share(elements, given, self));
    }
  }
  return vl_ok();
}

#else

Status cpu_conv_weights_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) {
  (void)kernel, (void)inputs, (void)outputs, (void)workspace, (void)context;
  return vl_error(VL_INTERNAL, "this build has no own kernel for weight gradients");
}

#endif
