/* Pooling: maximum with the index of the winner, average with counted padding, and their gradients.
 *
 * A point holds `block` channels that are contiguous (one in the plain layout), and goes through a window as
 * groups of 16 lanes. Gradients gather: each input point adds, in the order of the output points, what the
 * windows that cover it give back. So every element is written once, by one thread, and the order of a sum is
 * fixed. */
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>

enum { GROUP = 16 /* lanes a loop takes at a time */ };

/* Positions along one dimension. */
typedef struct Places {
  int32_t begin, end;
} Places;

/* Depth, height, width; dimensions that are missing have size 1. The large side is pooled to the small one.
 */
typedef struct PoolShape {
  ChannelView large, small;
  int64_t large_size[3], small_size[3], kernel[3], stride[3], padding[3];
  Places *window[3];   /* of a small place: the offsets in its window that lie inside the large side */
  Places *covering[3]; /* of a large place: the small places whose windows hold it */
} PoolShape;

/* One launch: sides, and the index that max_pool writes and its gradient reads. */
typedef struct Pool {
  const PoolShape *shape;
  VectorArray large, small;
  uint8_t *offsets; /* within the window; NULL when places are kept, or for averages */
  int64_t *places;  /* within the plane of the large side */
} Pool;

/* A point of the side that is written: where its lanes start, and its place in depth, height and width. */
typedef struct Point {
  int64_t plane; /* sample * channel_blocks + channel block */
  int64_t at[3];
  int64_t lane; /* first of the group */
  int64_t real; /* lanes of the block that are channels, the others being padding */
} Point;

/* ---- Elements -------------------------------------------------------------------------------------------- */

VECTOR_INLINE float load(const void *address, int64_t i, bool bf16) {
  if (!bf16) return ((const float *)address)[i];
  return vector_float_of_bits((uint32_t)((const uint16_t *)address)[i] << 16);
}

VECTOR_INLINE int64_t plane_place(const int64_t size[3], int64_t d, int64_t h, int64_t w) {
  return (d * size[1] + h) * size[2] + w;
}

/* The element of a side where a point's lanes start, given its place in the plane. */
VECTOR_INLINE int64_t element_of(const ChannelView *view, const Point *point, int64_t place) {
  return (point->plane * view->spatial + place) * view->block + point->lane;
}

/* ---- Forward ---------------------------------------------------------------------------------------------- */

/* The first maximum, and NaN before all, as in PyTorch. */
VECTOR_INLINE void maximum(const Pool *pool, const Point *point, int64_t lanes, bool bf16, float *result,
                           int32_t *index) {
  const PoolShape *shape = pool->shape;
  const int64_t *at = point->at, *stride = shape->stride, *padding = shape->padding;
  Places d = shape->window[0][at[0]], h = shape->window[1][at[1]], w = shape->window[2][at[2]];
  for (int64_t l = 0; l < lanes; l++) {
    result[l] = -INFINITY;
    index[l] = 0;
  }
  bool first = true;
  for (int64_t i = d.begin; i < d.end; i++)
    for (int64_t j = h.begin; j < h.end; j++)
      for (int64_t k = w.begin; k < w.end; k++) {
        int64_t place = plane_place(shape->large_size, at[0] * stride[0] - padding[0] + i,
                                    at[1] * stride[1] - padding[1] + j, at[2] * stride[2] - padding[2] + k);
        int32_t code = (int32_t)(pool->places != NULL ? place : plane_place(shape->kernel, i, j, k));
        int64_t from = element_of(&shape->large, point, place);
#pragma omp simd
        for (int64_t l = 0; l < lanes; l++) {
          float value = load(pool->large.address, from + l, bf16);
          bool take = first || value > result[l] || value != value;
          result[l] = take ? value : result[l];
          index[l] = take ? code : index[l];
        }
        first = false;
      }
}

VECTOR_INLINE void window_sum(const Pool *pool, const Point *point, int64_t lanes, bool bf16, float *result) {
  const PoolShape *shape = pool->shape;
  const int64_t *at = point->at, *stride = shape->stride, *padding = shape->padding;
  Places d = shape->window[0][at[0]], h = shape->window[1][at[1]], w = shape->window[2][at[2]];
  for (int64_t l = 0; l < lanes; l++)
    result[l] = 0.0F;
  for (int64_t i = d.begin; i < d.end; i++)
    for (int64_t j = h.begin; j < h.end; j++)
      for (int64_t k = w.begin; k < w.end; k++) {
        int64_t place = plane_place(shape->large_size, at[0] * stride[0] - padding[0] + i,
                                    at[1] * stride[1] - padding[1] + j, at[2] * stride[2] - padding[2] + k);
        int64_t from = element_of(&shape->large, point, place);
#pragma omp simd
        for (int64_t l = 0; l < lanes; l++)
          result[l] += load(pool->large.address, from + l, bf16);
      }
}

/* ---- Backward --------------------------------------------------------------------------------------------- */

/* The gradients of the windows whose maximum this point was. */
VECTOR_INLINE void gather_maximum(const Pool *pool, const Point *point, int64_t lanes, bool bf16,
                                  float *result) {
  const PoolShape *shape = pool->shape;
  const int64_t *at = point->at, *stride = shape->stride, *padding = shape->padding;
  Places d = shape->covering[0][at[0]], h = shape->covering[1][at[1]], w = shape->covering[2][at[2]];
  int64_t here = plane_place(shape->large_size, at[0], at[1], at[2]);
  for (int64_t l = 0; l < lanes; l++)
    result[l] = 0.0F;
  for (int64_t i = d.begin; i < d.end; i++)
    for (int64_t j = h.begin; j < h.end; j++)
      for (int64_t k = w.begin; k < w.end; k++) {
        int64_t from = element_of(&shape->small, point, plane_place(shape->small_size, i, j, k));
        int64_t offset = plane_place(shape->kernel, at[0] + padding[0] - i * stride[0],
                                     at[1] + padding[1] - j * stride[1], at[2] + padding[2] - k * stride[2]);
        if (pool->offsets != NULL) {
#pragma omp simd
          for (int64_t l = 0; l < lanes; l++)
            result[l] +=
                pool->offsets[from + l] == (uint8_t)offset ? load(pool->small.address, from + l, bf16) : 0.0F;
        } else {
#pragma omp simd
          for (int64_t l = 0; l < lanes; l++)
            result[l] += pool->places[from + l] == here ? load(pool->small.address, from + l, bf16) : 0.0F;
        }
      }
}

VECTOR_INLINE void gather_sum(const Pool *pool, const Point *point, int64_t lanes, bool bf16, float *result) {
  const PoolShape *shape = pool->shape;
  const int64_t *at = point->at;
  Places d = shape->covering[0][at[0]], h = shape->covering[1][at[1]], w = shape->covering[2][at[2]];
  for (int64_t l = 0; l < lanes; l++)
    result[l] = 0.0F;
  for (int64_t i = d.begin; i < d.end; i++)
    for (int64_t j = h.begin; j < h.end; j++)
      for (int64_t k = w.begin; k < w.end; k++) {
        int64_t from = element_of(&shape->small, point, plane_place(shape->small_size, i, j, k));
#pragma omp simd
        for (int64_t l = 0; l < lanes; l++)
          result[l] += load(pool->small.address, from + l, bf16);
      }
}

/* ---- Rows of the written side ------------------------------------------------------------------------------- */

typedef enum Kind { MAXIMUM, AVERAGE, MAXIMUM_BACKWARD, AVERAGE_BACKWARD } Kind;

static bool is_forward(Kind kind) { return kind == MAXIMUM || kind == AVERAGE; }

/* Zero in the padding. */
VECTOR_INLINE void write_index(const Pool *pool, const Point *point, int64_t to, const int32_t *index,
                               int64_t lanes) {
  int64_t real = point->real - point->lane;
  for (int64_t l = 0; pool->places != NULL && l < lanes; l++)
    pool->places[to + l] = l < real ? index[l] : 0;
  for (int64_t l = 0; pool->offsets != NULL && l < lanes; l++)
    pool->offsets[to + l] = (uint8_t)(l < real ? index[l] : 0);
}

/* One group of lanes of one point; `to` is its first element on the written side. */
VECTOR_INLINE void point_lanes(const Pool *pool, Kind kind, const Point *point, int64_t lanes, bool bf16,
                               int64_t to, float *result) {
  const int64_t *kernel = pool->shape->kernel;
  float count = (float)(kernel[0] * kernel[1] * kernel[2]);
  int32_t index[GROUP];
  if (kind == MAXIMUM) {
    maximum(pool, point, lanes, bf16, result, index);
    write_index(pool, point, to, index, lanes);
  } else if (kind == MAXIMUM_BACKWARD) {
    gather_maximum(pool, point, lanes, bf16, result);
  } else {
    if (kind == AVERAGE)
      window_sum(pool, point, lanes, bf16, result);
    else
      gather_sum(pool, point, lanes, bf16, result);
    for (int64_t l = 0; l < lanes; l++)
      result[l] /= count;
  }
}

/* A run of points along the width, and of lanes of each; all lanes unless it is one point. */
typedef struct Run {
  Range points, lanes;
} Run;

/* Computes a run; `point` is the row's start and `to` the run's first element. */
VECTOR_INLINE void run_points(const Pool *pool, Kind kind, Point point, Run run, bool bf16, int64_t to,
                              float *result) {
  int64_t lanes = run.lanes.end - run.lanes.begin;
  for (int64_t w = run.points.begin; w < run.points.end; w++) {
    point.at[2] = w;
    int64_t whole = lanes - lanes % GROUP, first = (w - run.points.begin) * lanes, i = 0;
    for (; i < whole; i += GROUP) { /* a constant number of lanes needs no loop */
      point.lane = run.lanes.begin + i;
      point_lanes(pool, kind, &point, GROUP, bf16, to + first + i, result + first + i);
    }
    point.lane = run.lanes.begin + i;
    if (lanes - whole == 1)
      point_lanes(pool, kind, &point, 1, bf16, to + first + i, result + first + i);
    else if (lanes > whole)
      point_lanes(pool, kind, &point, lanes - whole, bf16, to + first + i, result + first + i);
  }
}

typedef void RunFunction(const Pool *pool, Point point, Run run, int64_t to, float *result);

VECTOR_CLONES
static void maximum_run(const Pool *pool, Point point, Run run, int64_t to, float *result) {
  if (pool->large.dtype == DTYPE_BF16)
    run_points(pool, MAXIMUM, point, run, true, to, result);
  else
    run_points(pool, MAXIMUM, point, run, false, to, result);
}

VECTOR_CLONES
static void average_run(const Pool *pool, Point point, Run run, int64_t to, float *result) {
  if (pool->large.dtype == DTYPE_BF16)
    run_points(pool, AVERAGE, point, run, true, to, result);
  else
    run_points(pool, AVERAGE, point, run, false, to, result);
}

VECTOR_CLONES
static void maximum_backward_run(const Pool *pool, Point point, Run run, int64_t to, float *result) {
  if (pool->small.dtype == DTYPE_BF16)
    run_points(pool, MAXIMUM_BACKWARD, point, run, true, to, result);
  else
    run_points(pool, MAXIMUM_BACKWARD, point, run, false, to, result);
}

VECTOR_CLONES
static void average_backward_run(const Pool *pool, Point point, Run run, int64_t to, float *result) {
  if (pool->small.dtype == DTYPE_BF16)
    run_points(pool, AVERAGE_BACKWARD, point, run, true, to, result);
  else
    run_points(pool, AVERAGE_BACKWARD, point, run, false, to, result);
}

static RunFunction *const run_functions[] = {
    [MAXIMUM] = maximum_run,
    [AVERAGE] = average_run,
    [MAXIMUM_BACKWARD] = maximum_backward_run,
    [AVERAGE_BACKWARD] = average_backward_run,
};

/* Row `row` of the written side: sample, channel block, depth, height, in the order of memory. */
static void pool_row(const Pool *pool, Kind kind, int64_t row) {
  _Alignas(64) float result[VECTOR_TILE];
  const PoolShape *shape = pool->shape;
  const ChannelView *view = is_forward(kind) ? &shape->small : &shape->large;
  const int64_t *size = is_forward(kind) ? shape->small_size : shape->large_size;
  VectorArray written = is_forward(kind) ? pool->small : pool->large;
  Point point = {.plane = row / (size[0] * size[1]), .at = {row / size[1] % size[0], row % size[1], 0}};
  int64_t real = view->channels - point.plane % view->channel_blocks * view->block;
  point.real = real < view->block ? real : view->block;
  int64_t block = view->block, points = block < VECTOR_TILE ? VECTOR_TILE / block : 1;
  int64_t step = block < VECTOR_TILE ? block : VECTOR_TILE;
  for (int64_t w = 0; w < size[2]; w += points)
    for (int64_t lane = 0; lane < block; lane += step) {
      Run run = {{w, w + points < size[2] ? w + points : size[2]},
                 {lane, lane + step < block ? lane + step : block}};
      int64_t to = (row * size[2] + w) * block + lane;
      float *target = vector_target(written, to, result);
      run_functions[kind](pool, point, run, to, target);
      vector_write(written, to, (run.points.end - w) * (run.lanes.end - lane), target);
    }
}

static void pool_all(const Kernel *kernel, const Pool *pool, Kind kind) {
  const ChannelView *view = is_forward(kind) ? &pool->shape->small : &pool->shape->large;
  const int64_t *size = is_forward(kind) ? pool->shape->small_size : pool->shape->large_size;
  int64_t rows = view->n * view->channel_blocks * size[0] * size[1];
  int32_t wanted = vector_threads(kernel, vector_channels(&pool->shape->large) * pool->shape->large.spatial *
                                              pool->shape->large.n);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(rows, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t row = share.begin; row < share.end; row++)
      pool_row(pool, kind, row);
  }
}

/* ---- The ops ------------------------------------------------------------------------------------------------ */

static void fill_places(PoolShape *shape, Places *places) {
  for (int d = 0; d < 3; d++) {
    int64_t kernel = shape->kernel[d], stride = shape->stride[d], padding = shape->padding[d];
    shape->window[d] = places;
    for (int64_t i = 0; i < shape->small_size[d]; i++) {
      int64_t first = i * stride - padding, end = shape->large_size[d] - first;
      *places++ = (Places){(int32_t)(first < 0 ? -first : 0), (int32_t)(end < kernel ? end : kernel)};
    }
    shape->covering[d] = places;
    for (int64_t i = 0; i < shape->large_size[d]; i++) {
      int64_t from = i + padding, end = from / stride + 1;
      *places++ = (Places){(int32_t)(from < kernel ? 0 : (from - kernel) / stride + 1),
                           (int32_t)(end < shape->small_size[d] ? end : shape->small_size[d])};
    }
  }
}

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
  int64_t places = 0;
  for (int32_t d = 0; d < 3; d++) {
    int32_t i = d - (5 - large->rank); /* the tensor's spatial dimension; negative: missing */
    shape.large_size[d] = i < 0 ? 1 : large->shape[2 + i];
    shape.small_size[d] = i < 0 ? 1 : small->shape[2 + i];
    shape.kernel[d] = i < 0 ? 1 : params->kernel[i];
    shape.stride[d] = i < 0 ? 1 : params->stride[i];
    shape.padding[d] = i < 0 ? 0 : params->padding[i];
    places += shape.large_size[d] + shape.small_size[d];
  }
  PoolShape *kept = vl_allocate(sizeof *kept + (size_t)places * sizeof(Places));
  *kept = shape;
  fill_places(kept, (Places *)(kept + 1));
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
               .large = vector_input(kernel, inputs, 0),
               .small = vector_output(kernel, outputs, 0)};
  if (kernel->node->outputs[1] != NULL) take_index(&pool, kernel->node->outputs[1], outputs[1]);
  pool_all(kernel, &pool, MAXIMUM);
  return vl_ok();
}

static Status max_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                  uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Pool pool = {.shape = kernel->data,
               .large = vector_output(kernel, outputs, 0),
               .small = vector_input(kernel, inputs, 0)};
  take_index(&pool, kernel->node->inputs[1], inputs[1]);
  pool_all(kernel, &pool, MAXIMUM_BACKWARD);
  return vl_ok();
}

static Status average_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Pool pool = {.shape = kernel->data,
               .large = vector_input(kernel, inputs, 0),
               .small = vector_output(kernel, outputs, 0)};
  pool_all(kernel, &pool, AVERAGE);
  return vl_ok();
}

static Status average_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                      uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Pool pool = {.shape = kernel->data,
               .large = vector_output(kernel, outputs, 0),
               .small = vector_input(kernel, inputs, 0)};
  pool_all(kernel, &pool, AVERAGE_BACKWARD);
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
