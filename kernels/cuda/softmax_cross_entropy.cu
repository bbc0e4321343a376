/* softmax_cross_entropy, its gradient, and correct_count: logits (N, C), plain; a block takes whole rows.
 *
 * Rows labelled VL_IGNORED_LABEL have a log_p, no part in the loss and no gradient.
 *
 * One reading of a row gives its maximum and the sum of its exponentials: what a thread has summed is scaled
 * whenever its maximum grows. log_p = (x - max) - log sum exp(x - max) is a second reading, from the cache.
 * Rows are added in double by one block. */
#include "kernels/cuda/indices.cuh"

#include <math.h>

extern "C" {
extern const CudaOp cuda_op_correct_count, cuda_op_softmax_cross_entropy;
extern const CudaOp cuda_op_softmax_cross_entropy_backward;
}

namespace {

constexpr int most_threads = 512, finish_threads = 512;

/* For a row of that width: 16 bytes of f32 a thread, as long as there are threads. */
unsigned threads_for(int64_t width) {
  int64_t warps = (width + 4 * warp_size - 1) / (4 * warp_size), most = most_threads / warp_size;
  return (unsigned)((warps < most ? warps : most) * warp_size);
}

/* ---- Rows, which begin anywhere ------------------------------------------------------------------------ */

/* Calls visit(first, values) for this thread's elements of a row, as packs of f32: 16 bytes at a time where
 * the row is aligned to them, its two ends by ones. */
template <typename T, typename Visit>
__device__ inline void visit_row(const T *row, int64_t width, Visit visit) {
  constexpr int wide = pack_width<T>;
  int64_t head = (int64_t)((16 - (uintptr_t)row % 16) % 16 / sizeof(T));
  if (head > width) head = width;
  int64_t packs = (width - head) / wide, tail = head + packs * wide;
  for (int64_t i = threadIdx.x; i < head; i += blockDim.x)
    visit(i, Pack<float, 1>{{to_float(row[i])}});
  const Pack<T, wide> *whole = reinterpret_cast<const Pack<T, wide> *>(row + head);
  for (int64_t p = threadIdx.x; p < packs; p += blockDim.x) {
    Pack<T, wide> pack = whole[p];
    Pack<float, wide> values;
    for (int k = 0; k < wide; k++)
      values.at[k] = to_float(pack.at[k]);
    visit(head + p * wide, values);
  }
  for (int64_t i = tail + threadIdx.x; i < width; i += blockDim.x)
    visit(i, Pack<float, 1>{{to_float(row[i])}});
}

template <int count> __device__ inline void write_floats(float *to, const Pack<float, count> &from) {
  if constexpr (count % 4 == 0) {
    if ((uintptr_t)to % 16 == 0) {
      for (int k = 0; k < count; k += 4)
        *reinterpret_cast<Pack<float, 4> *>(to + k) =
            Pack<float, 4>{{from.at[k], from.at[k + 1], from.at[k + 2], from.at[k + 3]}};
      return;
    }
  }
  for (int k = 0; k < count; k++)
    to[k] = from.at[k];
}

/* ---- Sums of exponentials ------------------------------------------------------------------------------ */

/* Of exp(x - most) over what has been seen. */
struct Exponentials {
  float most, sum;
};

/* What is subtracted; of nothing but -inf, or of nothing, the maximum is -inf and the sum 0. */
__device__ inline float shift_of(float most) { return most == -INFINITY ? 0.0F : most; }

template <int count> __device__ inline void add(Exponentials &seen, const Pack<float, count> &x) {
  float most = seen.most;
  for (int k = 0; k < count; k++)
    most = fmaxf(most, x.at[k]);
  float shift = shift_of(most);
  seen.sum *= expf(seen.most - shift);
  for (int k = 0; k < count; k++)
    seen.sum += expf(x.at[k] - shift);
  seen.most = most;
}

__device__ inline Exponentials warp_total(Exponentials own) {
  float most = warp_max(own.most);
  return Exponentials{most, warp_sum(own.sum * expf(own.most - shift_of(most)))};
}

/* As block_sum. */
__device__ inline Exponentials block_total(Exponentials own, Exponentials *scratch) {
  own = warp_total(own);
  int warps = (int)blockDim.x / warp_size, lane = (int)threadIdx.x % warp_size;
  if (warps == 1) return own;
  if (lane == 0) scratch[threadIdx.x / warp_size] = own;
  __syncthreads();
  return warp_total(lane < warps ? scratch[lane] : Exponentials{-INFINITY, 0.0F});
}

/* ---- The loss ------------------------------------------------------------------------------------------ */

/* log_p may be NULL. losses: -log_p[label] of each row, 0 where it does not count. */
template <typename T>
__global__ void row_losses(const T *logits, Indices labels, int64_t rows, int64_t width, float *log_p,
                           float *losses) {
  __shared__ Exponentials scratch[warp_size];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *x = logits + row * width;
    Exponentials seen = {-INFINITY, 0.0F};
    visit_row(x, width, [&](int64_t, const auto &values) { add(seen, values); });
    seen = block_total(seen, scratch);
    float log_sum = logf(seen.sum);
    if (log_p != nullptr)
      visit_row(x, width, [&](int64_t first, auto &&values) {
        for (float &value : values.at)
          value = (value - seen.most) - log_sum;
        write_floats(log_p + row * width + first, values);
      });
    if (threadIdx.x == 0) {
      int32_t label = label_at(labels, row);
      losses[row] = label < 0 ? 0.0F : log_sum - (to_float(x[label]) - seen.most);
    }
    __syncthreads(); /* scratch is read */
  }
}

/* Rows that count: of the whole step when that is given. One block; in every thread. */
__device__ inline double counted_rows(Indices labels, int64_t rows, const CudaStep *step, double *scratch) {
  if (step->counted_rows > 0) return (double)step->counted_rows;
  double counted = 0.0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
    counted += label_at(labels, row) >= 0 ? 1.0 : 0.0;
  return block_sum(counted, scratch);
}

__global__ void mean_loss(const float *losses, Indices labels, int64_t rows, const CudaStep *step,
                          float *loss) {
  __shared__ double scratch[2][warp_size];
  double counted = counted_rows(labels, rows, step, scratch[0]), sum = 0.0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
    sum += (double)losses[row];
  sum = block_sum(sum, scratch[1]);
  if (threadIdx.x == 0) *loss = (float)(sum / counted); /* 0 / 0 when none counts */
}

Status prepare_rows(CudaDevice *, Kernel *kernel) {
  kernel->workspace_bytes = kernel->node->inputs[0]->shape[0] * (int64_t)sizeof(float);
  return vl_ok();
}

Status launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  int64_t rows = node->inputs[0]->shape[0], width = node->inputs[0]->shape[1];
  Indices labels = indices_of(kernel, launch, 1, width);
  float *loss = (float *)launch->outputs[0], *log_p = (float *)launch->outputs[1];
  float *losses = (float *)launch->workspace;
  cudaError_t error = cudaSuccess;
  by_float(node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    error = cuda_launch(row_losses<T>, grid_for(rows, 1), threads_for(width), 0, launch->stream,
                        (const T *)launch->inputs[0], labels, rows, width, log_p, losses);
  });
  if (error == cudaSuccess && loss != nullptr)
    error = cuda_launch(mean_loss, 1, finish_threads, 0, launch->stream, losses, labels, rows, launch->step,
                        loss);
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

/* ---- Gradient: (exp(log_p) - onehot) * dloss / rows that count ----------------------------------------- */

__global__ void gradient_factor_of_rows(const float *dloss, Indices labels, int64_t rows,
                                        const CudaStep *step, float *factor) {
  __shared__ double scratch[warp_size];
  double counted = counted_rows(labels, rows, step, scratch);
  if (threadIdx.x == 0) *factor = (float)((double)*dloss / counted); /* unused when none counts */
}

__global__ void row_gradients(const float *log_p, Indices labels, const float *factor, int64_t rows,
                              int64_t width, float *dlogits) {
  float by = *factor;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    int32_t label = label_at(labels, row);
    visit_row(log_p + row * width, width, [&](int64_t first, auto &&values) {
      int64_t at = first;
      for (float &value : values.at) {
        float onehot = at++ == label ? 1.0F : 0.0F;
        value = label < 0 ? 0.0F : (expf(value) - onehot) * by;
      }
      write_floats(dlogits + row * width + first, values);
    });
  }
}

Status prepare_backward(CudaDevice *, Kernel *kernel) {
  kernel->workspace_bytes = (int64_t)sizeof(float);
  return vl_ok();
}

Status launch_backward(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  int64_t rows = node->inputs[1]->shape[0], width = node->inputs[1]->shape[1];
  Indices labels = indices_of(kernel, launch, 2, width);
  float *factor = (float *)launch->workspace;
  cudaError_t error = cuda_launch(gradient_factor_of_rows, 1, finish_threads, 0, launch->stream,
                                  (const float *)launch->inputs[0], labels, rows, launch->step, factor);
  if (error == cudaSuccess)
    error = cuda_launch(row_gradients, grid_for(rows, 1), threads_for(width), 0, launch->stream,
                        (const float *)launch->inputs[1], labels, factor, rows, width,
                        (float *)launch->outputs[0]);
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

Status supports_f32(CudaDevice *, const Node *node) {
  for (int32_t i = 0; i < 2; i++)
    if (node->inputs[i]->dtype != DTYPE_F32)
      return vl_error(VL_UNSUPPORTED, "%s in %s: %s is %s; f32 is possible", node->op->name, node->scope,
                      node->inputs[i]->name, vl_dtype_name(node->inputs[i]->dtype));
  return vl_ok();
}

/* ---- Rows whose first maximum is at the label; NaN is larger than any number, as in PyTorch's argmax --- */

struct Largest {
  float value;
  int32_t at;
};

__device__ inline Largest larger(Largest a, Largest b) {
  bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  bool is_tie = a.value == b.value || (a_is_nan && b_is_nan);
  if (is_tie) return a.at < b.at ? a : b;
  return a_is_nan || a.value > b.value ? a : b;
}

__device__ inline Largest warp_largest(Largest own) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2)
    own = larger(own, Largest{__shfl_xor_sync(whole_warp, own.value, distance),
                              __shfl_xor_sync(whole_warp, own.at, distance)});
  return own;
}

/* hits: 1 where the row is right, else 0. A label may be any number. */
template <typename T>
__global__ void row_hits(const T *logits, const int32_t *labels, int64_t rows, int64_t width, float *hits) {
  __shared__ Largest scratch[warp_size];
  const Largest nothing = {-INFINITY, INT32_MAX};
  int warps = (int)blockDim.x / warp_size, lane = (int)threadIdx.x % warp_size;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Largest own = nothing;
    visit_row(logits + row * width, width, [&](int64_t first, const auto &values) {
      int32_t at = (int32_t)first;
      for (float value : values.at)
        own = larger(own, Largest{value, at++});
    });
    own = warp_largest(own);
    if (lane == 0) scratch[threadIdx.x / warp_size] = own;
    __syncthreads();
    own = warp_largest(lane < warps ? scratch[lane] : nothing);
    if (threadIdx.x == 0) hits[row] = own.at == labels[row] ? 1.0F : 0.0F;
    __syncthreads(); /* scratch is read */
  }
}

__global__ void sum_hits(const float *hits, int64_t rows, float *count) {
  __shared__ double scratch[warp_size];
  double sum = 0.0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
    sum += (double)hits[row];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *count = (float)sum;
}

Status launch_correct(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  int64_t rows = node->inputs[0]->shape[0], width = node->inputs[0]->shape[1];
  float *hits = (float *)launch->workspace;
  cudaError_t error = cudaSuccess;
  by_float(node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    error = cuda_launch(row_hits<T>, grid_for(rows, 1), threads_for(width), 0, launch->stream,
                        (const T *)launch->inputs[0], (const int32_t *)launch->inputs[1], rows, width, hits);
  });
  if (error == cudaSuccess)
    error =
        cuda_launch(sum_hits, 1, finish_threads, 0, launch->stream, hits, rows, (float *)launch->outputs[0]);
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

} // namespace

const CudaOp cuda_op_softmax_cross_entropy = {
    .name = "softmax_cross_entropy",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .prepare = prepare_rows,
    .launch = launch,
};

const CudaOp cuda_op_softmax_cross_entropy_backward = {
    .name = "softmax_cross_entropy_backward",
    .supports = supports_f32,
    .choose_layouts = cuda_choose_plain,
    .prepare = prepare_backward,
    .launch = launch_backward,
};

const CudaOp cuda_op_correct_count = {
    .name = "correct_count",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .prepare = prepare_rows,
    .launch = launch_correct,
};
