/* Pooling: maximum with the index of the winner, average with counted padding, and their gradients.
 *
 * The side that is written is made tile by tile: some points along the width with their `block` contiguous
 * channels (one in the plain layout). For each offset in the window one pass runs over the tile's points,
 * which lie in steps of the stride on the large side and side by side on the small one. Gradients gather:
 * what an input point gets from the windows over it is added in a fixed order, and every element is written
 * once, by one thread. */
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>

enum { GROUP = 16 /* lanes of the usual layout: a constant makes their loop one instruction */ };

/* Depth, height, width; dimensions that are missing have size 1. The large side is pooled to the small one.
 */
typedef struct PoolShape {
  ChannelView large, small;
  int64_t large_size[3], small_size[3], kernel[3], stride[3], padding[3];
} PoolShape;

typedef enum Kind { MAXIMUM, AVERAGE, MAXIMUM_BACKWARD, AVERAGE_BACKWARD } Kind;

/* One launch: sides, and the index that max_pool writes and its gradient reads. */
typedef struct Pool {
  const PoolShape *shape;
  Kind kind;
  VectorArray large, small;
  uint8_t *offsets; /* within the window; NULL when places are kept, or for averages */
  int64_t *places;  /* within the plane of the large side */
} Pool;

static bool is_forward(Kind kind) { return kind == MAXIMUM || kind == AVERAGE; }

/* ---- Passes ------------------------------------------------------------------------------------------------
 * One offset of the window over `points` points of a tile, `lanes` each. */

typedef struct Pass {
  float *to; /* of the tile; the first point's first lane */
  const void *from;
  bool bf16;                  /* type of from */
  int64_t to_step, from_step; /* elements from point to point */
  int64_t points, lanes;
  /* Which place this is: of the first point, and how it grows. */
  int64_t code, code_step;
} Pass;

VECTOR_INLINE void add_pass(const Pass *pass, int64_t lanes, bool bf16) {
  for (int64_t i = 0; i < pass->points; i++) {
    float *to = pass->to + i * pass->to_step;
    int64_t from = i * pass->from_step;
#pragma omp simd
    for (int64_t l = 0; l < lanes; l++)
      to[l] += vector_load(pass->from, from + l, bf16);
  }
}

VECTOR_CLONES
static void add(const Pass *pass) {
  if (pass->lanes == GROUP && pass->bf16)
    add_pass(pass, GROUP, true);
  else if (pass->lanes == GROUP)
    add_pass(pass, GROUP, false);
  else if (pass->bf16)
    add_pass(pass, pass->lanes, true);
  else
    add_pass(pass, pass->lanes, false);
}

/* The first maximum; a NaN before all, the last if there are several: as in PyTorch. */
VECTOR_INLINE void maximum_pass(const Pass *pass, int32_t *codes, int64_t lanes, bool bf16) {
  for (int64_t i = 0; i < pass->points; i++) {
    float *best = pass->to + i * pass->to_step;
    int32_t *code = codes + i * pass->to_step, here = (int32_t)(pass->code + i * pass->code_step);
    int64_t from = i * pass->from_step;
#pragma omp simd
    for (int64_t l = 0; l < lanes; l++) {
      float value = vector_load(pass->from, from + l, bf16);
      int32_t take = (int32_t)(value > best[l]) | (int32_t)(value != value); /* without a branch */
      best[l] = take ? value : best[l];
      code[l] = take ? here : code[l];
    }
  }
}

VECTOR_CLONES
static void maximum(const Pass *pass, int32_t *codes) {
  if (pass->lanes == GROUP && pass->bf16)
    maximum_pass(pass, codes, GROUP, true);
  else if (pass->lanes == GROUP)
    maximum_pass(pass, codes, GROUP, false);
  else if (pass->bf16)
    maximum_pass(pass, codes, pass->lanes, true);
  else
    maximum_pass(pass, codes, pass->lanes, false);
}

/* Adds where the index says that this place won. */
VECTOR_INLINE void add_where_pass(const Pass *pass, const uint8_t *offsets, const int64_t *places,
                                  int64_t lanes, bool bf16) {
  for (int64_t i = 0; i < pass->points; i++) {
    float *to = pass->to + i * pass->to_step;
    int64_t from = i * pass->from_step, place = pass->code + i * pass->code_step;
    int32_t offset = (int32_t)place;
#pragma omp simd
    for (int64_t l = 0; l < lanes; l++) {
      float value = vector_load(pass->from, from + l, bf16);
      bool won = offsets != NULL ? (int32_t)offsets[from + l] == offset : places[from + l] == place;
      to[l] += won ? value : 0.0F;
    }
  }
}

VECTOR_INLINE void add_where_index(const Pass *pass, const uint8_t *offsets, const int64_t *places,
                                   int64_t lanes, bool bf16) {
  if (offsets != NULL)
    add_where_pass(pass, offsets, NULL, lanes, bf16);
  else
    add_where_pass(pass, NULL, places, lanes, bf16);
}

VECTOR_CLONES
static void add_where(const Pass *pass, const uint8_t *offsets, const int64_t *places) {
  if (pass->lanes == GROUP && pass->bf16)
    add_where_index(pass, offsets, places, GROUP, true);
  else if (pass->lanes == GROUP)
    add_where_index(pass, offsets, places, GROUP, false);
  else if (pass->bf16)
    add_where_index(pass, offsets, places, pass->lanes, true);
  else
    add_where_index(pass, offsets, places, pass->lanes, false);
}

/* ---- Geometry ------------------------------------------------------------------------------------------------ */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The offsets in the window of small place `at` that lie inside the large side. */
static Range inside(const PoolShape *shape, int d, int64_t at) {
  int64_t first = at * shape->stride[d] - shape->padding[d];
  return (Range){larger(0, -first), smaller(shape->kernel[d], shape->large_size[d] - first)};
}

/* The small places whose windows hold large place `at`. */
static Range covering(const PoolShape *shape, int d, int64_t at) {
  int64_t from = at + shape->padding[d], stride = shape->stride[d];
  int64_t begin = from < shape->kernel[d] ? 0 : (from - shape->kernel[d]) / stride + 1;
  return (Range){begin, smaller(shape->small_size[d], from / stride + 1)};
}

/* The small places within `small` along the width whose offset k lies within `large`. */
static Range meeting(const PoolShape *shape, int64_t k, Range small, Range large) {
  int64_t stride = shape->stride[2], shift = shape->padding[2] - k;
  int64_t from = large.begin + shift, last = large.end - 1 + shift;
  if (last < 0) return (Range){0, 0};
  int64_t begin = larger(small.begin, from > 0 ? (from + stride - 1) / stride : 0);
  return (Range){begin, larger(begin, smaller(small.end, last / stride + 1))};
}

static int64_t place_in(const int64_t size[3], int64_t d, int64_t h, int64_t w) {
  return (d * size[1] + h) * size[2] + w;
}

/* ---- Tiles of the written side ------------------------------------------------------------------------------- */

/* Points along the width of one row, and lanes of each: all of them unless it is one point. */
typedef struct Tile {
  int64_t plane, depth, height;
  Range points, lanes;
  float *values;  /* [point][lane] */
  int32_t *codes; /* [point][lane], for MAXIMUM */
} Tile;

static int64_t tile_lanes(const Tile *tile) { return tile->lanes.end - tile->lanes.begin; }

/* The pass of offset k along the width, between a row of the large side and one of the small side. */
static void run_pass(const Pool *pool, const Tile *tile, const int64_t small_row[2],
                     const int64_t large_row[2], int64_t k) {
  const PoolShape *shape = pool->shape;
  bool forward = is_forward(pool->kind);
  Range small = {0, shape->small_size[2]}, large = {0, shape->large_size[2]};
  if (forward)
    small = tile->points;
  else
    large = tile->points;
  Range meet = meeting(shape, k, small, large);
  if (meet.begin == meet.end) return;
  int64_t lanes = tile_lanes(tile), stride = shape->stride[2],
          w = meet.begin * stride - shape->padding[2] + k;
  int64_t small_place = place_in(shape->small_size, small_row[0], small_row[1], meet.begin);
  int64_t large_place = place_in(shape->large_size, large_row[0], large_row[1], w);
  int64_t small_at =
      (tile->plane * shape->small.spatial + small_place) * shape->small.block + tile->lanes.begin;
  int64_t large_at =
      (tile->plane * shape->large.spatial + large_place) * shape->large.block + tile->lanes.begin;
  VectorArray from = forward ? pool->large : pool->small;
  int64_t to_at = (forward ? meet.begin : w) - tile->points.begin;
  Pass pass = {.to = tile->values + to_at * lanes,
               .from = vector_at(from, forward ? large_at : small_at),
               .bf16 = from.dtype == DTYPE_BF16,
               .to_step = forward ? lanes : lanes * stride,
               .from_step = forward ? shape->large.block * stride : shape->small.block,
               .points = meet.end - meet.begin,
               .lanes = lanes};
  if (pool->places != NULL) {
    pass.code = large_place;
    pass.code_step = stride;
  } else {
    pass.code = place_in(shape->kernel, large_row[0] - small_row[0] * shape->stride[0] + shape->padding[0],
                         large_row[1] - small_row[1] * shape->stride[1] + shape->padding[1], k);
  }
  if (pool->kind == MAXIMUM)
    maximum(&pass, tile->codes + to_at * lanes);
  else if (pool->kind == MAXIMUM_BACKWARD)
    add_where(&pass, pool->offsets != NULL ? pool->offsets + small_at : NULL,
              pool->places != NULL ? pool->places + small_at : NULL);
  else
    add(&pass);
}

static void forward_passes(const Pool *pool, const Tile *tile) {
  const PoolShape *shape = pool->shape;
  const int64_t small_row[2] = {tile->depth, tile->height};
  Range d = inside(shape, 0, tile->depth), h = inside(shape, 1, tile->height);
  for (int64_t i = d.begin; i < d.end; i++)
    for (int64_t j = h.begin; j < h.end; j++) {
      const int64_t large_row[2] = {tile->depth * shape->stride[0] - shape->padding[0] + i,
                                    tile->height * shape->stride[1] - shape->padding[1] + j};
      for (int64_t k = 0; k < shape->kernel[2]; k++)
        run_pass(pool, tile, small_row, large_row, k);
    }
}

static void backward_passes(const Pool *pool, const Tile *tile) {
  const PoolShape *shape = pool->shape;
  const int64_t large_row[2] = {tile->depth, tile->height};
  Range d = covering(shape, 0, tile->depth), h = covering(shape, 1, tile->height);
  for (int64_t i = d.begin; i < d.end; i++)
    for (int64_t j = h.begin; j < h.end; j++) {
      const int64_t small_row[2] = {i, j};
      for (int64_t k = 0; k < shape->kernel[2]; k++)
        run_pass(pool, tile, small_row, large_row, k);
    }
}

VECTOR_CLONES
static void fill_values(float *values, float value, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    values[i] = value;
}

VECTOR_CLONES
static void divide(float *values, float divisor, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    values[i] /= divisor;
}

/* Before anything is larger than -infinity, the first place inside is the maximum's. */
static void first_codes(const Pool *pool, const Tile *tile) {
  const PoolShape *shape = pool->shape;
  int64_t lanes = tile_lanes(tile);
  Range d = inside(shape, 0, tile->depth), h = inside(shape, 1, tile->height);
  for (int64_t w = tile->points.begin; w < tile->points.end; w++) {
    Range k = inside(shape, 2, w);
    int64_t code = place_in(shape->kernel, d.begin, h.begin, k.begin);
    if (pool->places != NULL)
      code = place_in(shape->large_size, tile->depth * shape->stride[0] - shape->padding[0] + d.begin,
                      tile->height * shape->stride[1] - shape->padding[1] + h.begin,
                      w * shape->stride[2] - shape->padding[2] + k.begin);
    for (int64_t l = 0; l < lanes; l++)
      tile->codes[(w - tile->points.begin) * lanes + l] = (int32_t)code;
  }
}

VECTOR_CLONES
static void narrow_codes(uint8_t *to, const int32_t *codes, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    to[i] = (uint8_t)codes[i];
}

/* The index of a tile that starts at element `to`; zero in the padding of the channels. */
static void write_codes(const Pool *pool, const Tile *tile, int64_t to) {
  const ChannelView *view = &pool->shape->small;
  int64_t lanes = tile_lanes(tile), points = tile->points.end - tile->points.begin;
  int64_t real = view->channels - tile->plane % view->channel_blocks * view->block - tile->lanes.begin;
  for (int64_t i = 0; real < lanes && i < points; i++)
    memset(tile->codes + i * lanes + real, 0, (size_t)(lanes - real) * sizeof *tile->codes);
  if (pool->offsets != NULL) narrow_codes(pool->offsets + to, tile->codes, points * lanes);
  for (int64_t i = 0; pool->places != NULL && i < points * lanes; i++)
    pool->places[to + i] = tile->codes[i];
}

static void pool_tile(const Pool *pool, const Tile *tile, int64_t to) {
  const int64_t *kernel = pool->shape->kernel;
  int64_t count = (tile->points.end - tile->points.begin) * tile_lanes(tile);
  fill_values(tile->values, pool->kind == MAXIMUM ? -INFINITY : 0.0F, count);
  if (pool->kind == MAXIMUM) first_codes(pool, tile);
  if (is_forward(pool->kind))
    forward_passes(pool, tile);
  else
    backward_passes(pool, tile);
  if (pool->kind == AVERAGE || pool->kind == AVERAGE_BACKWARD)
    divide(tile->values, (float)(kernel[0] * kernel[1] * kernel[2]), count);
  if (pool->kind == MAXIMUM) write_codes(pool, tile, to);
  vector_write(is_forward(pool->kind) ? pool->small : pool->large, to, count, tile->values);
}

/* Row `row` of the written side: sample, channel block, depth, height, in the order of memory. */
static void pool_row(const Pool *pool, int64_t row) {
  _Alignas(64) float values[VECTOR_TILE];
  _Alignas(64) int32_t codes[VECTOR_TILE];
  const PoolShape *shape = pool->shape;
  bool forward = is_forward(pool->kind);
  int64_t block = forward ? shape->small.block : shape->large.block;
  const int64_t *size = forward ? shape->small_size : shape->large_size;
  int64_t points = larger(1, VECTOR_TILE / block), lanes = smaller(block, VECTOR_TILE);
  Tile tile = {.plane = row / (size[0] * size[1]),
               .depth = row / size[1] % size[0],
               .height = row % size[1],
               .values = values,
               .codes = codes};
  for (int64_t w = 0; w < size[2]; w += points)
    for (int64_t lane = 0; lane < block; lane += lanes) {
      tile.points = (Range){w, smaller(w + points, size[2])};
      tile.lanes = (Range){lane, smaller(lane + lanes, block)};
      pool_tile(pool, &tile, (row * size[2] + w) * block + lane);
    }
}

static void pool_all(const Kernel *kernel, const Pool *pool) {
  const ChannelView *large = &pool->shape->large;
  const ChannelView *view = is_forward(pool->kind) ? &pool->shape->small : large;
  const int64_t *size = is_forward(pool->kind) ? pool->shape->small_size : pool->shape->large_size;
  int64_t rows = view->n * view->channel_blocks * size[0] * size[1];
  int32_t wanted = vector_threads(kernel, large->n * large->spatial * vector_channels(large));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(rows, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t row = share.begin; row < share.end; row++)
      pool_row(pool, row);
  }
}

/* ---- The ops ------------------------------------------------------------------------------------------------ */

static Status prepare(CpuDevice *device, Kernel *kernel, bool forward) {
  const OpParams *params = &kernel->node->params;
  const Tensor *input = kernel->node->inputs[0], *output = kernel->node->outputs[0];
  ChannelView in, out;
  VL_TRY(cpu_channel_view(device, kernel->inputs[0], input, &in));
  VL_TRY(cpu_channel_view(device, kernel->outputs[0], output, &out));
  if (in.block != out.block)
    return vl_error(VL_INTERNAL, "%s in %s: layouts %s and %s; both sides must have one", kernel->op->name,
                    kernel->node->scope, cpu_layout_name(device, kernel->inputs[0]),
                    cpu_layout_name(device, kernel->outputs[0]));
  PoolShape shape = {.large = forward ? in : out, .small = forward ? out : in};
  const Tensor *large = forward ? input : output, *small = forward ? output : input;
  for (int32_t d = 0; d < 3; d++) {
    int32_t i = d - (5 - large->rank); /* the tensor's spatial dimension; negative: missing */
    shape.large_size[d] = i < 0 ? 1 : large->shape[2 + i];
    shape.small_size[d] = i < 0 ? 1 : small->shape[2 + i];
    shape.kernel[d] = i < 0 ? 1 : params->kernel[i];
    shape.stride[d] = i < 0 ? 1 : params->stride[i];
    shape.padding[d] = i < 0 ? 0 : params->padding[i];
  }
  PoolShape *kept = vl_allocate(sizeof *kept);
  *kept = shape;
  kernel->data = kept;
  return vl_ok();
}

static Status prepare_forward(CpuDevice *device, Kernel *kernel) { return prepare(device, kernel, true); }
static Status prepare_backward(CpuDevice *device, Kernel *kernel) { return prepare(device, kernel, false); }

static Status supports(CpuDevice *device, const Node *node) {
  VL_TRY(cpu_supports_f32_bf16(device, node));
  const Tensor *sides[] = {node->inputs[0], node->outputs[0]};
  for (int i = 0; i < 2; i++) {
    int64_t places = vl_tensor_elements(sides[i]) / (sides[i]->shape[0] * sides[i]->shape[1]);
    if (places > INT32_MAX)
      return vl_error(VL_UNSUPPORTED, "%s in %s: a plane of %lld elements; at most %d are possible",
                      node->op->name, node->scope, (long long)places, INT32_MAX);
  }
  return vl_ok();
}

static void take_index(Pool *pool, const Tensor *index, uintptr_t address) {
  if (index->dtype == DTYPE_U8)
    pool->offsets = (uint8_t *)address;
  else
    pool->places = (int64_t *)address;
}

static Status max_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Pool pool = {.shape = kernel->data,
               .kind = MAXIMUM,
               .large = vector_input(kernel, inputs, 0),
               .small = vector_output(kernel, outputs, 0)};
  if (kernel->node->outputs[1] != NULL) take_index(&pool, kernel->node->outputs[1], outputs[1]);
  pool_all(kernel, &pool);
  return vl_ok();
}

static Status max_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                  uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Pool pool = {.shape = kernel->data,
               .kind = MAXIMUM_BACKWARD,
               .large = vector_output(kernel, outputs, 0),
               .small = vector_input(kernel, inputs, 0)};
  take_index(&pool, kernel->node->inputs[1], inputs[1]);
  pool_all(kernel, &pool);
  return vl_ok();
}

static Status average_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Pool pool = {.shape = kernel->data,
               .kind = AVERAGE,
               .large = vector_input(kernel, inputs, 0),
               .small = vector_output(kernel, outputs, 0)};
  pool_all(kernel, &pool);
  return vl_ok();
}

static Status average_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                      uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Pool pool = {.shape = kernel->data,
               .kind = AVERAGE_BACKWARD,
               .large = vector_output(kernel, outputs, 0),
               .small = vector_input(kernel, inputs, 0)};
  pool_all(kernel, &pool);
  return vl_ok();
}

const CpuOp cpu_op_max_pool = {
    .name = "max_pool",
    .supports = supports,
    .choose_layouts = vector_choose,
    .prepare = prepare_forward,
    .launch = max_launch,
};

const CpuOp cpu_op_max_pool_backward = {
    .name = "max_pool_backward",
    .supports = supports,
    .choose_layouts = vector_choose,
    .prepare = prepare_backward,
    .launch = max_backward_launch,
};

const CpuOp cpu_op_avg_pool = {
    .name = "avg_pool",
    .supports = supports,
    .choose_layouts = vector_choose,
    .prepare = prepare_forward,
    .launch = average_launch,
};

const CpuOp cpu_op_avg_pool_backward = {
    .name = "avg_pool_backward",
    .supports = supports,
    .choose_layouts = vector_choose,
    .prepare = prepare_backward,
    .launch = average_backward_launch,
};
