/* dice_cross_entropy and its gradient; logits channels last or plain.
 *
 * Forward: a warp takes a tile of one sample's places, of which it knows the softmax's maximum and sum in
 * registers, and goes through the classes: three sums a class and one for the cross entropy, a part. Parts
 * are added in double, column by column, and one block makes the loss of them. Nothing but the logits is as
 * large as the places. The places that count are those of the classes' labels together, so labels are read
 * once.
 *
 * Backward: factors of the classes from the sums, then a thread a place. Channels last, the values of a
 * block's places follow each other: where there is room they go through shared memory, 16 bytes at a time. */
#include "kernels/cuda/indices.cuh"

#include <math.h>

extern "C" {
extern const CudaOp cuda_op_dice_cross_entropy, cuda_op_dice_cross_entropy_backward;
}

namespace {

/* Inputs as README.md of graph/ops lists them. */
enum { IN_LOGITS, IN_LABELS };
enum { BACK_DLOSS, BACK_LOGITS, BACK_LABELS, BACK_SUMS };
/* Of a class, in this order: of p where it is the label, of p, of its labels. */
enum { SUM_BOTH, SUM_P, SUM_LABELS, SUMS };

constexpr int block_threads = 256, column_threads = 1024;
constexpr int places_each = 4, tile_places = places_each * warp_size;

/* Logits and their gradient in the layout that is decided for logits; everything else plain. */
Status choose(CudaDevice *device, const Node *node, int32_t logits, LayoutId *inputs, LayoutId *outputs) {
  LayoutId layout = inputs[logits] != LAYOUT_ANY ? inputs[logits] : (LayoutId)LAYOUT_PLAIN;
  VL_TRY(cuda_choose_plain(device, node, inputs, outputs));
  inputs[logits] = layout;
  const Tensor *first = node->outputs[0];
  if (first != nullptr && vl_tensor_same_shape(first, node->inputs[logits])) outputs[0] = layout;
  return vl_ok();
}

/* ---- Softmax of a place -------------------------------------------------------------------------------- */

constexpr int group = 4; /* classes whose logits are on their way together */

/* Logits of classes from `first` on, which are `stride` apart; -inf beyond the last. */
template <typename T>
__device__ inline void read_group(const T *x, int64_t first, int64_t classes, int64_t stride,
                                  float (&to)[group]) {
#pragma unroll
  for (int k = 0; k < group; k++)
    to[k] = first + k < classes ? to_float(x[(first + k) * stride]) : -INFINITY;
}

struct Softmax {
  float most, sum; /* of exp(x - most) */
};

/* Counts a group in. What was summed is scaled as the maximum grows, by what is returned; e becomes the
 * exponentials. Of nothing but -inf the maximum is -inf and the sum 0. */
__device__ inline float add_group(Softmax &of, float (&e)[group]) {
  float most = of.most;
  for (int k = 0; k < group; k++)
    most = fmaxf(most, e[k]);
  float shift = most == -INFINITY ? 0.0F : most, scale = expf(of.most - shift);
  of.sum *= scale;
  for (int k = 0; k < group; k++)
    of.sum += e[k] = expf(e[k] - shift);
  of.most = most;
  return scale;
}

template <typename T> __device__ inline Softmax softmax_of(const T *x, int64_t classes, int64_t stride) {
  Softmax of = {-INFINITY, 0.0F};
#pragma unroll 1
  for (int64_t c = 0; c < classes; c += group) {
    float e[group];
    read_group(x, c, classes, stride, e);
    add_group(of, e);
  }
  return of;
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

/* A sample's columns: SUMS of each class, then the cross entropy. */
__host__ __device__ inline int64_t columns_of(int64_t classes) { return classes * SUMS + 1; }
int64_t tiles_of(const CudaChannels &view) { return (view.spatial + tile_places - 1) / tile_places; }

/* parts: [sample][column][tile] */
template <typename T>
__global__ void __launch_bounds__(block_threads, 4)
    sum_tiles(const T *logits, CudaChannels view, Indices labels, int64_t tiles, float *parts) {
  int64_t warp = global_index() / warp_size, sample = warp / tiles, tile = warp % tiles;
  int lane = (int)threadIdx.x % warp_size;
  if (sample >= view.n) return;
  int64_t first = tile * tile_places;
  const T *base = logits + sample * view.channels * view.spatial + first * view.spatial_stride;
  float *part = parts + sample * columns_of(view.channels) * tiles + tile;
  float most[places_each], inverse[places_each], entropy = 0.0F;
  int32_t label[places_each];
#pragma unroll
  for (int k = 0; k < places_each; k++) {
    int64_t place = first + k * warp_size + lane;
    label[k] = place < view.spatial ? label_at(labels, sample * view.spatial + place) : -1;
  }
  /* The first class's logit; of the tile's first place where a place does not count, so that all are read. */
  auto logit_of = [&](int k) {
    return base + (label[k] < 0 ? 0 : k * warp_size + lane) * view.spatial_stride;
  };
#pragma unroll
  for (int k = 0; k < places_each; k++) {
    Softmax of = softmax_of(logit_of(k), view.channels, view.channel_stride);
    most[k] = of.most;
    inverse[k] = 1.0F / of.sum;
    if (label[k] >= 0)
      entropy += logf(of.sum) - (to_float(logit_of(k)[label[k] * view.channel_stride]) - of.most);
  }
#pragma unroll 1
  for (int64_t c = 0; c < view.channels; c++) {
    float both = 0.0F, all = 0.0F, count = 0.0F;
#pragma unroll
    for (int k = 0; k < places_each; k++) {
      float e = expf(to_float(logit_of(k)[c * view.channel_stride]) - most[k]);
      float p = label[k] < 0 ? 0.0F : e * inverse[k];
      all += p;
      both += label[k] == c ? p : 0.0F;
      count += label[k] == c ? 1.0F : 0.0F;
    }
    both = warp_sum(both);
    all = warp_sum(all);
    count = warp_sum(count);
    if (lane != 0) continue;
    part[(c * SUMS + SUM_BOTH) * tiles] = both;
    part[(c * SUMS + SUM_P) * tiles] = all;
    part[(c * SUMS + SUM_LABELS) * tiles] = count;
  }
  entropy = warp_sum(entropy);
  if (lane == 0) part[view.channels * SUMS * tiles] = entropy;
}

/* A block a column. sums may be NULL. */
__global__ void __launch_bounds__(column_threads)
    sum_parts(const float *parts, int64_t tiles, int64_t columns, double *totals, float *sums) {
  __shared__ double scratch[warp_size];
  int64_t at = blockIdx.x, sample = at / columns, column = at % columns;
  double sum = 0.0;
#pragma unroll 8
  for (int64_t tile = threadIdx.x; tile < tiles; tile += column_threads)
    sum += (double)parts[at * tiles + tile];
  sum = block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  totals[at] = sum;
  if (sums != nullptr && column < columns - 1) sums[sample * (columns - 1) + column] = (float)sum;
}

/* Numerator and denominator of a class's Dice over all samples; 1 / 1 for 0 / 0. */
struct Dice {
  double above, below;
};

/* sums: of the class in the first sample; those of the next are `stride` further. */
template <typename S>
__device__ inline Dice dice_of(const S *sums, int64_t samples, int64_t stride, double epsilon) {
  Dice dice = {epsilon, epsilon};
  for (int64_t n = 0; n < samples; n++) {
    dice.above += 2.0 * (double)sums[n * stride + SUM_BOTH];
    dice.below += (double)sums[n * stride + SUM_P] + (double)sums[n * stride + SUM_LABELS];
  }
  return dice.below == 0.0 ? Dice{1.0, 1.0} : dice;
}

/* Places that count in this micro-batch. One block; in every thread. */
template <typename S>
__device__ inline double counted_places(const S *sums, int64_t samples, int64_t classes, int64_t stride,
                                        double *scratch) {
  double counted = 0.0;
  for (int64_t i = threadIdx.x; i < samples * classes; i += blockDim.x)
    counted += (double)sums[i / classes * stride + i % classes * SUMS + SUM_LABELS];
  return block_sum(counted, scratch);
}

/* What cross entropy divides by: the whole step's places when those are given. */
__device__ inline double places_of_step(const CudaStep *step, double counted) {
  return step->counted_rows > 0 ? (double)step->counted_rows : counted;
}

__global__ void finish_loss(const double *totals, int64_t samples, int64_t classes, double alpha,
                            double epsilon, const CudaStep *step, float *loss) {
  __shared__ double scratch[3][warp_size];
  int64_t columns = columns_of(classes);
  double counted = counted_places(totals, samples, classes, columns, scratch[0]);
  double entropy = 0.0, sum = 0.0;
  for (int64_t n = threadIdx.x; n < samples; n += blockDim.x)
    entropy += totals[n * columns + classes * SUMS];
  for (int64_t c = threadIdx.x; c < classes; c += blockDim.x) {
    Dice dice = dice_of(totals + c * SUMS, samples, columns, epsilon);
    sum += dice.above / dice.below;
  }
  entropy = block_sum(entropy, scratch[1]);
  sum = block_sum(sum, scratch[2]);
  if (threadIdx.x != 0) return;
  double dice = alpha != 0.0 ? alpha * (1.0 - sum / (double)classes) : 0.0;
  *loss = counted > 0.0 ? (float)((entropy + counted * dice) / places_of_step(step, counted)) : 0.0F;
}

/* Totals, then parts. */
int64_t totals_of(const CudaChannels &view) { return view.n * columns_of(view.channels); }

Status launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  CudaChannels view = cuda_channels(kernel->inputs[IN_LOGITS], node->inputs[IN_LOGITS]);
  Indices labels = indices_of(kernel, launch, IN_LABELS, view.channels);
  int64_t tiles = tiles_of(view);
  double *totals = (double *)launch->workspace;
  float *parts = (float *)(totals + totals_of(view));
  float *loss = (float *)launch->outputs[0], *sums = (float *)launch->outputs[1];
  cudaError_t error = cudaSuccess;
  by_float(node->inputs[IN_LOGITS]->dtype, [&](auto zero) {
    using T = decltype(zero);
    unsigned blocks = (unsigned)((view.n * tiles * warp_size + block_threads - 1) / block_threads);
    error = cuda_launch(sum_tiles<T>, blocks, block_threads, 0, launch->stream,
                        (const T *)launch->inputs[IN_LOGITS], view, labels, tiles, parts);
  });
  if (error == cudaSuccess)
    error = cuda_launch(sum_parts, (unsigned)totals_of(view), column_threads, 0, launch->stream, parts, tiles,
                        columns_of(view.channels), totals, sums);
  if (error == cudaSuccess && loss != nullptr)
    error = cuda_launch(finish_loss, 1, block_threads, 0, launch->stream, totals, view.n, view.channels,
                        node->params.alpha, node->params.epsilon, launch->step, loss);
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

Status choose_forward(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return choose(device, node, IN_LOGITS, inputs, outputs);
}

Status prepare(CudaDevice *, Kernel *kernel) {
  CudaChannels view = cuda_channels(kernel->inputs[IN_LOGITS], kernel->node->inputs[IN_LOGITS]);
  kernel->workspace_bytes = totals_of(view) * (int64_t)(sizeof(double) + tiles_of(view) * sizeof(float));
  return vl_ok();
}

/* ---- Gradient ---------------------------------------------------------------------------------------------
 * With a = dloss / places that count, and for class c of Dice A / B over the batch, weighing w = alpha dloss
 * / classes: u = w A / B^2 and v = 2 w / B are the parts of d loss / d p that all places and those of the
 * label's class have. dlogits = p (a + u - v y - m) - a y with y = 1 for the label, else 0, and m = sum over
 * classes of p (u - v y). */

enum { FACTOR_U, FACTOR_V, FACTORS };

/* factors: u and v of each class, then a. One block. */
__global__ void make_factors(const float *dloss, const float *sums, int64_t samples, int64_t classes,
                             double alpha, double epsilon, const CudaStep *step, float *factors) {
  __shared__ double scratch[warp_size];
  double counted = counted_places(sums, samples, classes, classes * SUMS, scratch);
  double places = places_of_step(step, counted), gradient = (double)*dloss;
  if (threadIdx.x == 0) factors[classes * FACTORS] = (float)(gradient / places); /* unused when none counts */
  for (int64_t c = threadIdx.x; c < classes; c += blockDim.x) {
    Dice dice = dice_of(sums + c * SUMS, samples, classes * SUMS, epsilon);
    double weight = alpha * gradient * counted / places / (double)classes;
    bool has_dice = alpha != 0.0 && counted > 0.0;
    factors[c * FACTORS + FACTOR_U] =
        has_dice ? (float)(weight * dice.above / dice.below / dice.below) : 0.0F;
    factors[c * FACTORS + FACTOR_V] = has_dice ? (float)(2.0 * weight / dice.below) : 0.0F;
  }
}

/* d Dice / d p: u, without v where the class is the label. */
__device__ inline float slope_of(const float *factors, int64_t c, int32_t label) {
  return factors[c * FACTORS + FACTOR_U] - (c == label ? factors[c * FACTORS + FACTOR_V] : 0.0F);
}

/* A place's gradient; x and dx may be one. */
template <typename T>
__device__ inline void differentiate_place(const T *x, T *dx, int64_t classes, int64_t stride, int32_t label,
                                           const float *factors) {
  if (label < 0) {
    for (int64_t c = 0; c < classes; c++)
      dx[c * stride] = from_float<T>(0.0F);
    return;
  }
  Softmax of = {-INFINITY, 0.0F};
  float mean = 0.0F, a = factors[classes * FACTORS], e[group];
#pragma unroll 1
  for (int64_t first = 0; first < classes; first += group) {
    read_group(x, first, classes, stride, e);
    mean *= add_group(of, e);
#pragma unroll
    for (int k = 0; k < group; k++)
      if (first + k < classes) mean += e[k] * slope_of(factors, first + k, label);
  }
  float inverse = 1.0F / of.sum;
  mean *= inverse;
#pragma unroll 1
  for (int64_t first = 0; first < classes; first += group) {
    read_group(x, first, classes, stride, e);
#pragma unroll
    for (int k = 0; k < group; k++) {
      int64_t c = first + k;
      if (c >= classes) continue;
      float p = expf(e[k] - of.most) * inverse, slope = slope_of(factors, c, label) - mean;
      dx[c * stride] = from_float<T>((p - (c == label ? 1.0F : 0.0F)) * a + p * slope);
    }
  }
}

/* Places of all samples, channels last: the block's next places' logits go through shared memory. */
template <typename T>
__global__ void __launch_bounds__(block_threads, 4)
    differentiate_staged(const T *logits, T *dlogits, CudaChannels view, Indices labels,
                         const float *factors) {
  using Whole = Pack<T, pack_width<T>>;
  T *tile = shared_memory<T>();
  Whole *tile_packs = reinterpret_cast<Whole *>(tile);
  int64_t places = view.n * view.spatial;
  for (int64_t first = (int64_t)blockIdx.x * block_threads; first < places;
       first += (int64_t)gridDim.x * block_threads) {
    int64_t count = places - first < block_threads ? places - first : block_threads;
    int64_t elements = count * view.channels, packs = elements / pack_width<T>;
    const T *from = logits + first * view.channels;
    T *to = dlogits + first * view.channels;
    for (int64_t p = threadIdx.x; p < packs; p += block_threads)
      tile_packs[p] = reinterpret_cast<const Whole *>(from)[p];
    for (int64_t i = packs * pack_width<T> + threadIdx.x; i < elements; i += block_threads)
      tile[i] = from[i];
    __syncthreads();
    if (threadIdx.x < count) {
      T *x = tile + threadIdx.x * view.channels;
      differentiate_place(x, x, view.channels, 1, label_at(labels, first + threadIdx.x), factors);
    }
    __syncthreads();
    for (int64_t p = threadIdx.x; p < packs; p += block_threads)
      reinterpret_cast<Whole *>(to)[p] = tile_packs[p];
    for (int64_t i = packs * pack_width<T> + threadIdx.x; i < elements; i += block_threads)
      to[i] = tile[i];
    __syncthreads();
  }
}

template <typename T>
__global__ void __launch_bounds__(block_threads, 4)
    differentiate(const T *logits, T *dlogits, CudaChannels view, Indices labels, const float *factors) {
  int64_t places = view.n * view.spatial;
  for (int64_t i = global_index(); i < places; i += grid_threads()) {
    int64_t at = i / view.spatial * view.channels * view.spatial + i % view.spatial * view.spatial_stride;
    differentiate_place(logits + at, dlogits + at, view.channels, view.channel_stride, label_at(labels, i),
                        factors);
  }
}

constexpr size_t most_staged_bytes = 24 * 1024; /* eight blocks a multiprocessor */

Status launch_backward(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  CudaChannels view = cuda_channels(kernel->inputs[BACK_LOGITS], node->inputs[BACK_LOGITS]);
  Indices labels = indices_of(kernel, launch, BACK_LABELS, view.channels);
  float *factors = (float *)launch->workspace;
  unsigned blocks = grid_for(view.n * view.spatial, block_threads);
  cudaError_t error =
      cuda_launch(make_factors, 1, block_threads, 0, launch->stream,
                  (const float *)launch->inputs[BACK_DLOSS], (const float *)launch->inputs[BACK_SUMS], view.n,
                  view.channels, node->params.alpha, node->params.epsilon, launch->step, factors);
  if (error != cudaSuccess) return cuda_status(error, "cudaLaunchKernelEx", node);
  by_float(node->inputs[BACK_LOGITS]->dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *logits = (const T *)launch->inputs[BACK_LOGITS];
    T *dlogits = (T *)launch->outputs[0];
    size_t staged_bytes = (size_t)(block_threads * view.channels) * sizeof(T);
    bool aligned = (launch->inputs[BACK_LOGITS] | launch->outputs[0]) % 16 == 0;
    if (view.channel_stride == 1 && aligned && staged_bytes <= most_staged_bytes)
      error = cuda_launch(differentiate_staged<T>, blocks, block_threads, staged_bytes, launch->stream,
                          logits, dlogits, view, labels, factors);
    else
      error = cuda_launch(differentiate<T>, blocks, block_threads, 0, launch->stream, logits, dlogits, view,
                          labels, factors);
  });
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

Status choose_backward(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return choose(device, node, BACK_LOGITS, inputs, outputs);
}

Status prepare_backward(CudaDevice *, Kernel *kernel) {
  int64_t classes = kernel->node->inputs[BACK_LOGITS]->shape[1];
  kernel->workspace_bytes = (classes * FACTORS + 1) * (int64_t)sizeof(float);
  return vl_ok();
}

} // namespace

const CudaOp cuda_op_dice_cross_entropy = {
    .name = "dice_cross_entropy",
    .supports = cuda_supports_floats,
    .choose_layouts = choose_forward,
    .prepare = prepare,
    .launch = launch,
};

const CudaOp cuda_op_dice_cross_entropy_backward = {
    .name = "dice_cross_entropy_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = choose_backward,
    .prepare = prepare_backward,
    .launch = launch_backward,
};
