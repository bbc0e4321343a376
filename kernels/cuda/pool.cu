/* Pooling: maximum with the index of the winner, average with counted padding, the mean over space, and their
 * gradients.
 *
 * A thread makes one piece of what is written: neighbouring channels of a point in channels last, 16 bytes
 * where addresses allow, or one element. Gradients gather: what an input point gets from the windows over it
 * is added in a fixed order, and every element is written once. */
#include "kernels/cuda/sum.cuh"

extern "C" {
extern const CudaOp cuda_op_avg_pool, cuda_op_avg_pool_backward;
extern const CudaOp cuda_op_global_avg_pool, cuda_op_global_avg_pool_backward;
extern const CudaOp cuda_op_max_pool, cuda_op_max_pool_backward;
}

namespace {

constexpr int pool_threads = 256, pool_blocks = 4 /* at a time on a multiprocessor: 64 registers a thread */;

/* Depth, height, width; dimensions that are missing have size 1. The large side is pooled to the small one.
 */
struct PoolShape {
  CudaChannels large, small;
  int large_size[3], small_size[3], kernel[3], stride[3], padding[3];
};

/* Which input won: as the offset in the window, or as the place in the plane of the large side. Neither: not
 * asked for. */
struct PoolIndex {
  uint8_t *offsets;
  int64_t *places;
};

/* The pieces of one side in the order of memory. */
struct PoolOrder {
  bool channels_last;
  Divisor inner, outer; /* pieces of a point and points, or points of a channel and channels */
  int64_t count;
};

PoolOrder order_of(const CudaChannels *side, int width) {
  int64_t groups = side->channels / width;
  bool channels_last = side->channel_stride == 1;
  return {channels_last, divisor_of(channels_last ? groups : side->spatial),
          divisor_of(channels_last ? side->spatial : groups), side->n * side->spatial * groups};
}

/* A piece of one side: its sample, its first channel and its point. */
struct PoolPiece {
  int64_t n, channel;
  int at[3];
};

template <int width>
__device__ inline PoolPiece piece_of(const PoolOrder &order, const int size[3], int64_t index) {
  PoolPiece piece;
  int64_t inner, outer;
  piece.n = divide(divide(index, order.inner, &inner), order.outer, &outer);
  piece.channel = (order.channels_last ? inner : outer) * width;
  int point = (int)(order.channels_last ? outer : inner), row = point / size[2];
  piece.at[2] = point - row * size[2];
  piece.at[0] = row / size[1];
  piece.at[1] = row - piece.at[0] * size[1];
  return piece;
}

__device__ inline int64_t place_in(const CudaChannels &side, const PoolPiece &piece, int point) {
  return (piece.n * side.channels * side.spatial + piece.channel * side.channel_stride) +
         point * side.spatial_stride;
}

__device__ inline int point_of(const int size[3], const int at[3]) {
  return (at[0] * size[1] + at[1]) * size[2] + at[2];
}

/* The points of one dimension, first to before end, that a point of the other side meets. */
struct Reach {
  int first, end;
};

/* Of the large side, within the window of small point `at`. */
__device__ inline Reach window_of(const PoolShape &shape, int d, int at) {
  int start = at * shape.stride[d] - shape.padding[d];
  return {max(start, 0), min(start + shape.kernel[d], shape.large_size[d])};
}

/* Of the small side, whose windows hold large point `at`. */
__device__ inline Reach windows_over(const PoolShape &shape, int d, int at) {
  int from = at + shape.padding[d];
  int first = from < shape.kernel[d] ? 0 : (from - shape.kernel[d]) / shape.stride[d] + 1;
  return {first, min(shape.small_size[d], from / shape.stride[d] + 1)};
}

template <int width>
__device__ inline void write_index(const PoolIndex &index, int64_t at, const int *codes) {
  if (index.offsets) {
    Pack<uint8_t, width> offsets;
#pragma unroll
    for (int k = 0; k < width; k++)
      offsets.at[k] = (uint8_t)codes[k];
    *(Pack<uint8_t, width> *)(index.offsets + at) = offsets;
  } else if (index.places) {
    constexpr int pair = width > 1 ? 2 : 1;
#pragma unroll
    for (int k = 0; k < width; k += pair) {
      Pack<int64_t, pair> places;
#pragma unroll
      for (int j = 0; j < pair; j++)
        places.at[j] = codes[k + j];
      *(Pack<int64_t, pair> *)(index.places + at + k) = places;
    }
  }
}

/* y = the first maximum of each window, a NaN before all (the last, if there are several: as in PyTorch). */
template <typename T, int width>
__global__ void __launch_bounds__(pool_threads, pool_blocks)
    max_pool(PoolShape shape, T *__restrict__ y, const T *__restrict__ x, PoolIndex index, PoolOrder order) {
  using Piece = Pack<T, width>;
  for (int64_t i = global_index(); i < order.count; i += grid_threads()) {
    PoolPiece piece = piece_of<width>(order, shape.small_size, i);
    Reach d = window_of(shape, 0, piece.at[0]), h = window_of(shape, 1, piece.at[1]),
          w = window_of(shape, 2, piece.at[2]);
    int64_t at = place_in(shape.small, piece, point_of(shape.small_size, piece.at));
    /* Codes are places in the plane, or in the window, counted from its start. */
    const int *size = index.offsets ? shape.kernel : shape.large_size;
    int start = 0;
    if (index.offsets) {
      for (int axis = 0; axis < 3; axis++)
        start = start * size[axis] + piece.at[axis] * shape.stride[axis] - shape.padding[axis];
    }
    int rows = size[1], columns = size[2], first = (d.first * rows + h.first) * columns + w.first - start;
    float best[width];
    int codes[width];
#pragma unroll
    for (int k = 0; k < width; k++) {
      best[k] = -INFINITY;
      codes[k] = first;
    }
    for (int z = d.first; z < d.end; z++)
      for (int row = h.first; row < h.end; row++)
        for (int column = w.first; column < w.end; column++) {
          int point = (z * shape.large_size[1] + row) * shape.large_size[2] + column;
          int code = (z * rows + row) * columns + column - start;
          Piece values = *(const Piece *)(x + place_in(shape.large, piece, point));
#pragma unroll
          for (int k = 0; k < width; k++) {
            float value = to_float(values.at[k]);
            bool wins = value > best[k] || value != value;
            best[k] = wins ? value : best[k];
            codes[k] = wins ? code : codes[k];
          }
        }
    write_floats(y + at, best);
    write_index<width>(index, at, codes);
  }
}

template <typename T, int width>
__global__ void __launch_bounds__(pool_threads, pool_blocks)
    avg_pool(PoolShape shape, T *__restrict__ y, const T *__restrict__ x, PoolOrder order) {
  using Piece = Pack<T, width>;
  float taps = (float)(shape.kernel[0] * shape.kernel[1] * shape.kernel[2]);
  for (int64_t i = global_index(); i < order.count; i += grid_threads()) {
    PoolPiece piece = piece_of<width>(order, shape.small_size, i);
    Reach d = window_of(shape, 0, piece.at[0]), h = window_of(shape, 1, piece.at[1]),
          w = window_of(shape, 2, piece.at[2]);
    float sums[width] = {};
    for (int z = d.first; z < d.end; z++)
      for (int row = h.first; row < h.end; row++)
#pragma unroll 2 /* of four, registers end */
        for (int column = w.first; column < w.end; column++) {
          int point = (z * shape.large_size[1] + row) * shape.large_size[2] + column;
          Piece values = *(const Piece *)(x + place_in(shape.large, piece, point));
#pragma unroll
          for (int k = 0; k < width; k++)
            sums[k] += to_float(values.at[k]);
        }
#pragma unroll
    for (int k = 0; k < width; k++)
      sums[k] /= taps;
    write_floats(y + place_in(shape.small, piece, point_of(shape.small_size, piece.at)), sums);
  }
}

/* Adds dy where the index says that this place won. */
template <int width, typename T>
__device__ inline void add_where_won(float *sums, const Pack<T, width> &dy, const PoolIndex &index,
                                     int64_t at, int code) {
  if (index.offsets) {
    Pack<uint8_t, width> offsets = *(const Pack<uint8_t, width> *)(index.offsets + at);
#pragma unroll
    for (int k = 0; k < width; k++)
      sums[k] += offsets.at[k] == code ? to_float(dy.at[k]) : 0.0F;
  } else {
    constexpr int pair = width > 1 ? 2 : 1;
#pragma unroll
    for (int k = 0; k < width; k += pair) {
      Pack<int64_t, pair> places = *(const Pack<int64_t, pair> *)(index.places + at + k);
#pragma unroll
      for (int j = 0; j < pair; j++)
        sums[k + j] += places.at[j] == code ? to_float(dy.at[k + j]) : 0.0F;
    }
  }
}

/* dx of both: with an index of the maximum, without one of the average. */
template <typename T, int width, bool maximum>
__global__ void __launch_bounds__(pool_threads, pool_blocks)
    pool_backward(PoolShape shape, T *__restrict__ dx, const T *__restrict__ dy, PoolIndex index,
                  PoolOrder order) {
  using Piece = Pack<T, width>;
  float taps = (float)(shape.kernel[0] * shape.kernel[1] * shape.kernel[2]);
  for (int64_t i = global_index(); i < order.count; i += grid_threads()) {
    PoolPiece piece = piece_of<width>(order, shape.large_size, i);
    Reach d = windows_over(shape, 0, piece.at[0]), h = windows_over(shape, 1, piece.at[1]),
          w = windows_over(shape, 2, piece.at[2]);
    int here = point_of(shape.large_size, piece.at), offset = 0;
    for (int axis = 0; axis < 3; axis++)
      offset = offset * shape.kernel[axis] + piece.at[axis] + shape.padding[axis];
    float sums[width] = {};
    for (int z = d.first; z < d.end; z++)
      for (int row = h.first; row < h.end; row++)
#pragma unroll 2 /* more would spill */
        for (int column = w.first; column < w.end; column++) {
          int point = (z * shape.small_size[1] + row) * shape.small_size[2] + column;
          int64_t at = place_in(shape.small, piece, point);
          Piece gradient = *(const Piece *)(dy + at);
          if constexpr (maximum) {
            int start = (z * shape.stride[0] * shape.kernel[1] + row * shape.stride[1]) * shape.kernel[2];
            int code = index.offsets ? offset - start - column * shape.stride[2] : here;
            add_where_won<width>(sums, gradient, index, at, code);
          } else {
#pragma unroll
            for (int k = 0; k < width; k++)
              sums[k] += to_float(gradient.at[k]);
          }
        }
#pragma unroll
    for (int k = 0; k < width && !maximum; k++)
      sums[k] /= taps;
    write_floats(dx + place_in(shape.large, piece, here), sums);
  }
}

/* ---- Windows: the ops ------------------------------------------------------------------------------------------------- */

enum PoolKind { MAXIMUM, AVERAGE, MAXIMUM_BACKWARD, AVERAGE_BACKWARD };

bool is_forward(PoolKind kind) { return kind == MAXIMUM || kind == AVERAGE; }

/* Of one launch: addresses of the large side, the small one, and the index. */
struct Pool {
  PoolKind kind;
  PoolShape shape;
  uintptr_t large, small;
  PoolIndex index;
};

template <typename T, int width> cudaError_t pool_launch_as(const Pool *pool, cudaStream_t stream) {
  const CudaChannels *written = is_forward(pool->kind) ? &pool->shape.small : &pool->shape.large;
  PoolOrder order = order_of(written, width);
  unsigned blocks = grid_for(order.count, pool_threads);
  T *large = (T *)pool->large, *small = (T *)pool->small;
  switch (pool->kind) {
  case MAXIMUM:
    return cuda_launch(max_pool<T, width>, blocks, pool_threads, 0, stream, pool->shape, small, large,
                       pool->index, order);
  case AVERAGE:
    return cuda_launch(avg_pool<T, width>, blocks, pool_threads, 0, stream, pool->shape, small, large, order);
  case MAXIMUM_BACKWARD:
    return cuda_launch(pool_backward<T, width, true>, blocks, pool_threads, 0, stream, pool->shape, large,
                       small, pool->index, order);
  default:
    return cuda_launch(pool_backward<T, width, false>, blocks, pool_threads, 0, stream, pool->shape, large,
                       small, pool->index, order);
  }
}

Status pool_launch(const Kernel *kernel, const CudaLaunch *launch, Pool *pool) {
  cudaError_t error = cudaErrorInvalidValue;
  pool->shape = *(const PoolShape *)kernel->data;
  pool->large = is_forward(pool->kind) ? launch->inputs[0] : launch->outputs[0];
  pool->small = is_forward(pool->kind) ? launch->outputs[0] : launch->inputs[0];
  by_float(kernel->node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    bool whole = pool->shape.large.channel_stride == 1 && pool->shape.large.channels % pack_width<T> == 0 &&
                 (pool->large | pool->small | (uintptr_t)pool->index.places) % 16 == 0 &&
                 (uintptr_t)pool->index.offsets % pack_width<T> == 0;
    error = whole ? pool_launch_as<T, pack_width<T>>(pool, launch->stream)
                  : pool_launch_as<T, 1>(pool, launch->stream);
  });
  return cuda_status(error, kernel->op->name, kernel->node);
}

void take_index(Pool *pool, const Tensor *index, uintptr_t address) {
  if (index == nullptr) return;
  if (index->dtype == DTYPE_U8)
    pool->index.offsets = (uint8_t *)address;
  else
    pool->index.places = (int64_t *)address;
}

Status max_launch(const Kernel *kernel, const CudaLaunch *launch) {
  Pool pool = {.kind = MAXIMUM};
  take_index(&pool, kernel->node->outputs[1], launch->outputs[1]);
  return pool_launch(kernel, launch, &pool);
}

Status max_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  Pool pool = {.kind = MAXIMUM_BACKWARD};
  take_index(&pool, kernel->node->inputs[1], launch->inputs[1]);
  return pool_launch(kernel, launch, &pool);
}

Status average_launch(const Kernel *kernel, const CudaLaunch *launch) {
  Pool pool = {.kind = AVERAGE};
  return pool_launch(kernel, launch, &pool);
}

Status average_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  Pool pool = {.kind = AVERAGE_BACKWARD};
  return pool_launch(kernel, launch, &pool);
}

Status prepare(CudaDevice *device, Kernel *kernel, bool forward) {
  VL_TRY(cuda_check_shared(device, kernel));
  const OpParams *params = &kernel->node->params;
  const Tensor *input = kernel->node->inputs[0], *output = kernel->node->outputs[0];
  const Tensor *large = forward ? input : output, *small = forward ? output : input;
  PoolShape *shape = (PoolShape *)vl_allocate(sizeof *shape);
  kernel->data = shape;
  shape->large = cuda_channels(kernel->inputs[0], large);
  shape->small = cuda_channels(kernel->inputs[0], small);
  for (int32_t d = 0; d < 3; d++) {
    int32_t i = d - (5 - large->rank); /* the tensor's spatial dimension; negative: missing */
    shape->large_size[d] = i < 0 ? 1 : (int)large->shape[2 + i];
    shape->small_size[d] = i < 0 ? 1 : (int)small->shape[2 + i];
    shape->kernel[d] = i < 0 ? 1 : (int)params->kernel[i];
    shape->stride[d] = i < 0 ? 1 : (int)params->stride[i];
    shape->padding[d] = i < 0 ? 0 : (int)params->padding[i];
  }
  return vl_ok();
}

Status prepare_forward(CudaDevice *device, Kernel *kernel) { return prepare(device, kernel, true); }
Status prepare_backward(CudaDevice *device, Kernel *kernel) { return prepare(device, kernel, false); }

/* Places in a plane are counted in 32 bits, padding and window included. */
Status pool_supports(CudaDevice *device, const Node *node) {
  VL_TRY(cuda_supports_floats(device, node));
  const Tensor *sides[] = {node->inputs[0], node->outputs[0]};
  for (const Tensor *side : sides) {
    int64_t places = vl_tensor_elements(side) / (side->shape[0] * side->shape[1]);
    if (places > INT32_MAX)
      return vl_error(VL_UNSUPPORTED, "cuda: %s in %s: a plane of %lld elements; at most %d are possible",
                      node->op->name, node->scope, (long long)places, INT32_MAX);
  }
  return vl_ok();
}

/* ---- The mean over space ------------------------------------------------------------------------------------------------- */

Status global_prepare(CudaDevice *device, Kernel *kernel) {
  (void)device;
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  CudaChannels view = cuda_channels(kernel->inputs[0], x);
  bool channels_last = kernel->inputs[0] == CUDA_CHANNELS_LAST;
  int64_t sizes[3] = {view.n, channels_last ? view.spatial : view.channels,
                      channels_last ? view.channels : view.spatial};
  bool summed[3] = {false, channels_last, !channels_last};
  SumPlan *plan = (SumPlan *)vl_allocate(sizeof *plan);
  kernel->data = plan;
  *plan = cuda_sum_plan(3, sizes, summed, x->dtype, y->dtype, (float)view.spatial);
  kernel->workspace_bytes = cuda_sum_workspace_bytes(plan);
  return vl_ok();
}

Status global_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const SumPlan *plan = (const SumPlan *)kernel->data;
  return cuda_status(cuda_sum(launch->stream, plan, launch->inputs[0], launch->outputs[0], launch->workspace),
                     "global_avg_pool", kernel->node);
}

/* dy / space in every place. A piece is neighbouring channels, of channels last, or places of one channel. */
template <typename T, int width>
__global__ void __launch_bounds__(pool_threads, pool_blocks)
    global_backward(T *__restrict__ dx, const T *__restrict__ dy, PoolOrder order, float space) {
  for (int64_t i = global_index(); i < order.count; i += grid_threads()) {
    int64_t inner, outer, row = divide(i, order.inner, &inner);
    int64_t from = order.channels_last ? divide(row, order.outer, &outer) * order.inner.divisor + inner : row;
    float values[width];
#pragma unroll
    for (int k = 0; k < width; k++)
      values[k] = to_float(dy[order.channels_last ? from * width + k : from]) / space;
    write_floats(dx + i * width, values);
  }
}

template <typename T, int width>
cudaError_t global_backward_as(const CudaChannels *side, cudaStream_t stream, T *dx, const T *dy) {
  PoolOrder order = order_of(side, side->channel_stride == 1 ? width : 1);
  if (!order.channels_last) {
    order.inner = divisor_of(side->spatial / width);
    order.count /= width;
  }
  return cuda_launch(global_backward<T, width>, grid_for(order.count, pool_threads), pool_threads, 0, stream,
                     dx, dy, order, (float)side->spatial);
}

Status global_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Tensor *tensor = kernel->node->outputs[0];
  CudaChannels side = cuda_channels(kernel->outputs[0], tensor);
  int64_t run = side.channel_stride == 1 ? side.channels : side.spatial;
  cudaError_t error = cudaErrorInvalidValue;
  by_float(tensor->dtype, [&](auto zero) {
    using T = decltype(zero);
    T *dx = (T *)launch->outputs[0];
    const T *dy = (const T *)launch->inputs[0];
    bool whole = run % pack_width<T> == 0 && launch->outputs[0] % 16 == 0;
    error = whole ? global_backward_as<T, pack_width<T>>(&side, launch->stream, dx, dy)
                  : global_backward_as<T, 1>(&side, launch->stream, dx, dy);
  });
  return cuda_status(error, "global_avg_pool_backward", kernel->node);
}

/* dx as it is preset, else as convolutions before it have theirs. */
Status global_backward_choose(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  (void)node;
  inputs[0] = LAYOUT_PLAIN;
  if (outputs[0] == LAYOUT_ANY) outputs[0] = CUDA_CHANNELS_LAST;
  return vl_ok();
}

} // namespace

const CudaOp cuda_op_avg_pool = {
    .name = "avg_pool",
    .supports = pool_supports,
    .choose_layouts = cuda_choose_shared,
    .prepare = prepare_forward,
    .launch = average_launch,
};

const CudaOp cuda_op_avg_pool_backward = {
    .name = "avg_pool_backward",
    .supports = pool_supports,
    .choose_layouts = cuda_choose_shared,
    .prepare = prepare_backward,
    .launch = average_backward_launch,
};

const CudaOp cuda_op_global_avg_pool = {
    .name = "global_avg_pool",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_shared,
    .prepare = global_prepare,
    .launch = global_launch,
};

const CudaOp cuda_op_global_avg_pool_backward = {
    .name = "global_avg_pool_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = global_backward_choose,
    .prepare = cuda_check_shared,
    .launch = global_backward_launch,
};

const CudaOp cuda_op_max_pool = {
    .name = "max_pool",
    .supports = pool_supports,
    .choose_layouts = cuda_choose_shared,
    .prepare = prepare_forward,
    .launch = max_launch,
};

const CudaOp cuda_op_max_pool_backward = {
    .name = "max_pool_backward",
    .supports = pool_supports,
    .choose_layouts = cuda_choose_shared,
    .prepare = prepare_backward,
    .launch = max_backward_launch,
};
