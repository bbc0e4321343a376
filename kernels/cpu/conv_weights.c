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
#include "kernels/cpu/conv_weights.h"

#include "kernels/cpu/batch_norm.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>
#include <string.h>

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
static int64_t element_bytes(const ConvWeights *it) { return it->bf16 ? 2 : 4; }
static int64_t lines_of(const ConvWeights *it, int64_t points) {
  return it->bf16 ? (points + 1) / 2 : points;
}
static int64_t gradient_elements(const ConvWeights *it) {
  return it->x.channels * it->dy.channels * it->taps;
}

/* Channel blocks of a part. Those of dy are taken in pairs. */
static Range blocks_of_x(const ConvWeights *it, int32_t part) {
  return it->shares_outputs ? (Range){0, it->x.channel_blocks}
                            : vector_share(it->x.channel_blocks, it->channel_parts, part);
}
static Range blocks_of_dy(const ConvWeights *it, int32_t part) {
  if (!it->shares_outputs) return (Range){0, it->dy.channel_blocks};
  Range pairs = vector_share(it->dy.channel_blocks / 2, it->channel_parts, part);
  return (Range){2 * pairs.begin, 2 * pairs.end};
}

/* ---- Shares and runs ---------------------------------------------------------------------------------------- */

/* Cycles that the longest share takes, up to what all ways to share have in common. */
static double cost(const ConvWeights *it) {
  const double read = 3.0, add = 6.0; /* a line, measured: on top of the products, and from another's cache */
  Range x = blocks_of_x(it, 0), dy = blocks_of_dy(it, 0);
  double lines = (double)it->points / it->point_parts * (double)element_bytes(it) * BLOCK / LINE;
  double blocks_x = (double)(x.end - x.begin), blocks_dy = (double)(dy.end - dy.begin);
  double products = lines * blocks_x * blocks_dy * (double)it->taps * BLOCK / 2.0;
  double packs_of_x = it->bf16 ? (double)it->taps : 1.0;
  double copies = (double)(it->point_parts - 1) * (double)gradient_elements(it) / BLOCK;
  return products + read * lines * (blocks_x * packs_of_x + blocks_dy) + add * copies;
}

static void choose_shares(ConvWeights *it, int32_t threads) {
  ConvWeights best = *it;
  double least = -1.0;
  for (int32_t parts = 1; parts <= threads; parts++) {
    for (int32_t outputs = 0; outputs < 2; outputs++) {
      ConvWeights tried = *it;
      tried.channel_parts = parts;
      tried.point_parts = threads / parts;
      tried.shares_outputs = outputs != 0;
      if (parts > (outputs ? it->dy.channel_blocks / 2 : it->x.channel_blocks)) continue;
      if (tried.point_parts > it->points) tried.point_parts = (int32_t)it->points;
      double cycles = cost(&tried);
      if (least >= 0.0 && cycles >= least) continue;
      least = cycles;
      best = tried;
    }
  }
  *it = best;
}

static void choose_run(ConvWeights *it) {
  Range x = blocks_of_x(it, 0), dy = blocks_of_dy(it, 0);
  int64_t line_bytes = (x.end - x.begin + dy.end - dy.begin) * LINE, lines = RUN_BYTES / line_bytes;
  if (lines > LINES_MOST) lines = LINES_MOST;
  if (lines < LINES_LEAST) lines = LINES_LEAST;
  int64_t share = (it->points + it->point_parts - 1) / it->point_parts;
  int64_t most = it->bf16 ? 2 * lines : lines, runs = (share + most - 1) / most;
  it->run = ((share + runs - 1) / runs + 1) / 2 * 2;
}

/* ---- What windows reach -------------------------------------------------------------------------------------- */

/* The first place of the window of an output, in each dimension, and the row of a sample it is: both negative
 * in the padding. */
static int64_t window_start(const ConvWeights *it, int64_t output, int32_t *at) {
  for (int32_t i = SPACE - 1; i >= 0; i--) {
    at[i] = (int32_t)(output % it->out[i] * it->stride[i] - it->padding[i]);
    output /= it->out[i];
  }
  return (at[0] * it->in[1] + at[1]) * it->in[2] + at[2];
}

/* The first of some points that are in one sample, and what rows of it their windows reach at most. */
typedef struct Reach {
  int64_t sample, points;
  Range rows;
} Reach;

static Reach find_reach(const ConvWeights *it, int64_t first, int64_t end) {
  int64_t sample = first / it->dy.spatial, begin = sample * it->dy.spatial;
  if (end > begin + it->dy.spatial) end = begin + it->dy.spatial;
  int32_t at[SPACE];
  int64_t last = ((it->window[0] - 1) * it->in[1] + it->window[1] - 1) * it->in[2] + it->window[2];
  Range rows = {window_start(it, first - begin, at), window_start(it, end - 1 - begin, at) + last};
  if (rows.begin < 0) rows.begin = 0;
  if (rows.end > it->x.spatial) rows.end = it->x.spatial;
  if (rows.end < rows.begin) rows.end = rows.begin;
  return (Reach){sample, end - first, rows};
}

static int64_t reached_by_run(const ConvWeights *it, int64_t first, int64_t end) {
  int64_t rows = 0;
  while (first < end) {
    Reach reach = find_reach(it, first, end);
    rows += reach.rows.end - reach.rows.begin;
    first += reach.points;
  }
  return rows;
}

static int64_t most_reached(const ConvWeights *it) {
  int64_t most = 0;
  for (int32_t part = 0; part < it->point_parts; part++) {
    Range points = vector_share(it->points, it->point_parts, part);
    for (int64_t first = points.begin; first < points.end; first += it->run) {
      int64_t end = points.end - first < it->run ? points.end : first + it->run;
      int64_t rows = reached_by_run(it, first, end);
      if (rows > most) most = rows;
    }
  }
  return most;
}

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
  Range x = blocks_of_x(it, 0), dy = blocks_of_dy(it, 0);
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

bool cpu_conv_weights_applies(CpuDevice *device, const Kernel *kernel) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0], *dy = node->inputs[1], *dw = node->outputs[0];
  if (dw == NULL || x->rank < 4 || node->params.groups > 1) return false;
  if (x->dtype != dy->dtype || dw->dtype != DTYPE_F32) return false;
  if (x->dtype != DTYPE_F32 && x->dtype != DTYPE_BF16) return false;
  if (x->shape[1] % BLOCK != 0 || dy->shape[1] % (2 * BLOCK) != 0) return false;
  if (!cpu_conv_has_instructions(x->dtype == DTYPE_BF16)) return false;
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
  choose_shares(it, kernel->threads);
  choose_run(it);
  if (it->normalises && !(it->bf16 && it->taps == 1)) it->reached = most_reached(it);
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
    point->row_x = sample * it->x.channel_blocks * it->x.spatial + window_start(it, place, point->at);
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

/* ---- Packing ---------------------------------------------------------------------------------------------------- */

/* What x is normalised with; mean is NULL where it is not. */
typedef struct Normalisation {
  BatchNormCoefficients by; /* from a share's first channel */
  bool relu;
} Normalisation;

TARGET_BF16
static __m256i row_bf16(const uint16_t *from, int64_t row) {
  return row < 0 ? _mm256_setzero_si256() : _mm256_loadu_si256((const void *)(from + row * BLOCK));
}

/* Coefficients of a channel block, and 0 with ReLU, else -infinity. */
typedef struct Normal {
  __m512 mean, scale, beta, least;
} Normal;

TARGET_F32
static inline Normal normal_of(const Normalisation *all, int64_t block) {
  BatchNormCoefficients by = all->by;
  return (Normal){_mm512_loadu_ps(by.mean + block * BLOCK), _mm512_loadu_ps(by.scale + block * BLOCK),
                  _mm512_loadu_ps(by.beta + block * BLOCK), _mm512_set1_ps(all->relu ? 0.0F : -INFINITY)};
}

/* batch_norm_value, then the ReLU, with the same result for NaN and -0. */
TARGET_F32
static inline __m512 normal_values(__m512 x, const Normal *by) {
  __m512 scaled = _mm512_mul_ps(_mm512_sub_ps(x, by->mean), by->scale);
  return _mm512_max_ps(by->least, _mm512_add_ps(scaled, by->beta));
}

TARGET_BF16
static inline __m512 row_f32(const uint16_t *row) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)row)), 16));
}

TARGET_BF16
static __m256i rounded_one_by_one(__m512 values) {
  _Alignas(64) float from[BLOCK];
  _Alignas(32) uint16_t to[BLOCK];
  _mm512_store_ps(from, values);
  for (int32_t i = 0; i < BLOCK; i++)
    to[i] = vector_bf16(from[i]);
  return _mm256_load_si256((const void *)to);
}

/* Two rows normalised, side by side. The processor's rounding takes subnormal numbers for zero, and so does
 * its dot product; but the largest of them round to a normal one. */
TARGET_BF16
static inline __m512i normal_pair(const uint16_t *even, const uint16_t *odd, const Normal *by) {
  enum { SUBNORMAL = 0x20 };
  __m512 low = normal_values(row_f32(even), by), high = normal_values(row_f32(odd), by);
  __mmask16 subnormal = _mm512_fpclass_ps_mask(low, SUBNORMAL) | _mm512_fpclass_ps_mask(high, SUBNORMAL);
  if (__builtin_expect(subnormal != 0, 0))
    return _mm512_inserti64x4(_mm512_castsi256_si512(rounded_one_by_one(low)), rounded_one_by_one(high), 1);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

TARGET_BF16
static void normalise_bf16(const uint16_t *from, int64_t rows, const Normalisation *all, int64_t block,
                           uint16_t *to) {
  Normal by = normal_of(all, block);
  int64_t k = 0;
  for (; k + 2 <= rows; k += 2)
    _mm512_storeu_si512(to + k * BLOCK, normal_pair(from + k * BLOCK, from + (k + 1) * BLOCK, &by));
  if (k == rows) return;
  __m512i last = normal_pair(from + k * BLOCK, from + k * BLOCK, &by);
  _mm256_storeu_si256((void *)(to + k * BLOCK), _mm512_castsi512_si256(last));
}

TARGET_F32
static void normalise_f32(const float *from, int64_t rows, const Normalisation *all, int64_t block,
                          float *to) {
  Normal by = normal_of(all, block);
  for (int64_t k = 0; k < rows; k++)
    _mm512_storeu_ps(to + k * BLOCK, normal_values(_mm512_loadu_ps(from + k * BLOCK), &by));
}

/* Two rows, normalised unless `by` is NULL; zeros in the padding. */
TARGET_BF16
static inline __m512i pair_bf16(const uint16_t *from, int64_t even, int64_t odd, const Normal *by) {
  if (by != NULL) {
    __m512i pair = normal_pair(from + (even < 0 ? 0 : even) * BLOCK, from + (odd < 0 ? 0 : odd) * BLOCK, by);
    return _mm512_maskz_mov_epi32((__mmask16)((even < 0 ? 0 : 0xFF) | (odd < 0 ? 0 : 0xFF00)), pair);
  }
  if (odd == even + 1 && even >= 0) return _mm512_loadu_si512(from + even * BLOCK);
  return _mm512_inserti64x4(_mm512_castsi256_si512(row_bf16(from, even)), row_bf16(from, odd), 1);
}

/* The points of one channel block by pairs: [pair][channel][2]; an odd last one with zeros. */
TARGET_BF16 __attribute__((always_inline)) static inline void
pack_bf16(const uint16_t *from, const int64_t *rows, int64_t count, const Normal *by, uint16_t *to) {
  _Alignas(64) static const uint16_t order[2 * BLOCK] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                         21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                         11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i places = _mm512_load_si512(order);
  for (int64_t k = 0; k < count; k += 2) {
    int64_t even = rows[k], odd = k + 1 < count ? rows[k + 1] : -1;
    _mm512_store_si512(to + k * BLOCK, _mm512_permutexvar_epi16(places, pair_bf16(from, even, odd, by)));
  }
}

/* Channel blocks of a share of x or dy. */
typedef struct Operand {
  const char *rows;            /* of its first block */
  int64_t block_rows;          /* from one block to the next */
  char *packed;                /* in bf16: a run of points */
  Normalisation normalisation; /* while packing */
} Operand;

TARGET_BF16
static void pack(const ConvWeights *it, const Operand *operand, int64_t blocks, const int64_t *rows,
                 int64_t count) {
  for (int64_t b = 0; b < blocks; b++) {
    const uint16_t *from = (const uint16_t *)(const void *)operand->rows + b * operand->block_rows * BLOCK;
    uint16_t *to = (uint16_t *)(void *)(operand->packed + b * lines_of(it, it->run) * LINE);
    if (operand->normalisation.by.mean == NULL) {
      pack_bf16(from, rows, count, NULL, to);
    } else {
      Normal by = normal_of(&operand->normalisation, b);
      pack_bf16(from, rows, count, &by, to);
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
  for (int64_t k = 0; k < count;) {
    Reach reach = find_reach(it, first + k, first + count);
    int64_t rows = reach.rows.end - reach.rows.begin;
    int64_t from = reach.sample * it->x.channel_blocks * it->x.spatial + reach.rows.begin;
    for (int64_t b = 0; b < blocks; b++) {
      int64_t to = (b * it->reached + row) * BLOCK;
      int64_t at = (from + (share->blocks_x.begin + b) * it->x.spatial) * BLOCK;
      if (it->bf16)
        normalise_bf16((const uint16_t *)(const void *)share->x + at, rows, &share->normalisation, b,
                       (uint16_t *)(void *)share->normalised + to);
      else
        normalise_f32((const float *)(const void *)share->x + at, rows, &share->normalisation, b,
                      (float *)(void *)share->normalised + to);
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
    if (it->bf16) pack(it, &share->from_dy, blocks_dy, share->rows, count);
    if (it->reached > 0) normalise_run(share, first, count);
    Ahead ahead = ahead_of(share, next_count, lines_of(it, count) / STRETCH_MOST);
    for (int64_t tap = 0; tap < it->taps; tap++) {
      int64_t stretches;
      find_rows(it, these, count, tap, share->rows);
      if (it->bf16) {
        pack(it, &share->from_x, blocks_x, share->rows, count);
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
  share.blocks_x = blocks_of_x(it, channel_part);
  share.blocks_dy = blocks_of_dy(it, channel_part);
  share.these = (Point *)memory;
  share.next = (Point *)(memory + (uintptr_t)points_bytes(it));
  share.rows = (int64_t *)(memory + 2 * (uintptr_t)points_bytes(it));
  share.stretches = (Stretch *)((uintptr_t)share.rows + (uintptr_t)rows_bytes(it));
  share.from_x.packed = (char *)share.stretches + stretches_bytes(it);
  share.from_dy.packed = share.from_x.packed + packed_bytes(it, blocks_of_x(it, 0));
  int64_t row_bytes = BLOCK * element_bytes(it);
  share.from_dy.rows = share.dy + share.blocks_dy.begin * it->dy.spatial * row_bytes;
  share.from_dy.block_rows = it->dy.spatial;
  share.from_x.rows = share.x + share.blocks_x.begin * it->x.spatial * row_bytes;
  share.from_x.block_rows = it->x.spatial;
  if (!it->normalises) return share;
  float *coefficients = (float *)(void *)(share.from_dy.packed + packed_bytes(it, blocks_of_dy(it, 0)));
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
