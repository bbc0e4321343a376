/* square_sum and gradient_factor: the norm of all gradients, and with it what the update multiplies them by.
 *
 * Squares are added in double, where those of finite f32 neither overflow nor vanish: a sum that is not
 * finite means an element that is not. Blocks and threads are combined in a fixed order. */
#include "kernels/cuda/kernel.cuh"

#include <math.h>

extern "C" {
extern const CudaOp cuda_op_gradient_factor, cuda_op_square_sum;
}

namespace {

/* ---- square_sum ---------------------------------------------------------------------------------------- */

constexpr int block_threads = 256;
constexpr int64_t packs_each = 4, most_blocks = 1024;

/* Blocks for that many elements; of shapes alone, like the sums. */
unsigned blocks_for(const Tensor *x) {
  int64_t wide = x->dtype == DTYPE_F32 ? pack_width<float> : pack_width<f16>;
  return grid_for(vl_tensor_elements(x), block_threads, wide * packs_each, most_blocks);
}

/* What a grid of one block has is the result, else a part of it. The first `whole` elements are in packs that
 * are aligned. onto may be NULL. */
template <typename T>
__global__ void __launch_bounds__(block_threads)
    sum_squares(const T *x, int64_t elements, int64_t whole, const double *onto, double *sums) {
  constexpr int wide = pack_width<T>;
  __shared__ double scratch[warp_size];
  double sum = 0.0;
#pragma unroll 4
  for (int64_t p = global_index(); p < whole / wide; p += grid_threads()) {
    Pack<T, wide> pack = reinterpret_cast<const Pack<T, wide> *>(x)[p];
    for (int k = 0; k < wide; k++) {
      double value = (double)to_float(pack.at[k]);
      sum += value * value;
    }
  }
  for (int64_t i = whole + global_index(); i < elements; i += grid_threads()) {
    double value = (double)to_float(x[i]);
    sum += value * value;
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = (onto != nullptr ? *onto : 0.0) + sum;
}

__global__ void __launch_bounds__(block_threads)
    add_parts(const double *parts, int64_t count, const double *onto, double *sum) {
  __shared__ double scratch[warp_size];
  double own = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += block_threads)
    own += parts[i];
  own = block_sum(own, scratch);
  if (threadIdx.x == 0) *sum = (onto != nullptr ? *onto : 0.0) + own;
}

Status launch_square_sum(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0];
  int64_t elements = vl_tensor_elements(x);
  unsigned blocks = blocks_for(x);
  const double *onto = node->input_count > 1 ? (const double *)launch->inputs[1] : nullptr;
  double *sum = (double *)launch->outputs[0], *parts = (double *)launch->workspace;
  cudaError_t error = cudaSuccess;
  by_float(x->dtype, [&](auto zero) {
    using T = decltype(zero);
    int64_t whole = launch->inputs[0] % 16 == 0 ? elements / pack_width<T> * pack_width<T> : 0;
    error =
        cuda_launch(sum_squares<T>, blocks, block_threads, 0, launch->stream, (const T *)launch->inputs[0],
                    elements, whole, blocks == 1 ? onto : nullptr, blocks == 1 ? sum : parts);
  });
  if (error == cudaSuccess && blocks > 1)
    error = cuda_launch(add_parts, 1, block_threads, 0, launch->stream, parts, (int64_t)blocks, onto, sum);
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

/* The gradient as it lies. */
Status choose_square_sum(CudaDevice *, const Node *, LayoutId *inputs, LayoutId *outputs) {
  if (inputs[0] == LAYOUT_ANY) inputs[0] = LAYOUT_PLAIN;
  inputs[1] = outputs[0] = LAYOUT_PLAIN;
  return vl_ok();
}

Status prepare_square_sum(CudaDevice *, Kernel *kernel) {
  unsigned blocks = blocks_for(kernel->node->inputs[0]);
  kernel->workspace_bytes = blocks > 1 ? blocks * (int64_t)sizeof(double) : 0;
  return vl_ok();
}

Status supports_square_sum(CudaDevice *, const Node *node) {
  DType dtype = node->inputs[0]->dtype;
  if (by_float(dtype, [](auto) {})) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cuda: square_sum in %s: x is %s; accepted: f32, bf16, f16", node->scope,
                  vl_dtype_name(dtype));
}

/* ---- gradient_factor ----------------------------------------------------------------------------------- */

template <typename T> __device__ inline bool is_finite(T value) { return value - value == (T)0; }

/* torch.amp.GradScaler's settings; counters NULL: nothing is scaled. */
struct Scaling {
  float growth, backoff;
  int64_t interval;
  float *scale;
  int64_t *counters;
};

/* Returns what unscales: 0 when the step is to be skipped. */
__device__ inline double update_scale(const Scaling &scaling, bool finite) {
  float used = *scaling.scale;
  if (!finite) {
    *scaling.scale = used * scaling.backoff;
    scaling.counters[SCALER_CLEAN] = 0;
    scaling.counters[SCALER_SKIPPED]++;
    return 0.0;
  }
  scaling.counters[SCALER_STEPS]++;
  if (++scaling.counters[SCALER_CLEAN] >= scaling.interval) {
    float grown = used * scaling.growth;
    if (is_finite(grown)) *scaling.scale = grown;
    scaling.counters[SCALER_CLEAN] = 0;
  }
  return 1.0 / (double)used;
}

/* One thread. */
__global__ void decide(const double *squares, double max_norm, Scaling scaling, float *factor_out,
                       float *norm_out) {
  double norm = sqrt(*squares), factor = 1.0;
  if (scaling.counters != nullptr) {
    norm /= (double)*scaling.scale;
    factor = update_scale(scaling, is_finite(*squares));
  }
  if (max_norm > 0.0 && factor != 0.0) {
    double clip = max_norm / (norm + 1e-6); /* clip_grad_norm_'s epsilon */
    factor *= clip > 1.0 ? 1.0 : clip;      /* NaN stays */
  }
  *factor_out = (float)factor;
  *norm_out = (float)norm;
}

Status launch_factor(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const OpParams *params = &node->params;
  bool scales = node->input_count > 1;
  Scaling scaling = {(float)params->growth, (float)params->backoff, params->interval,
                     scales ? (float *)launch->outputs[2] : nullptr,
                     scales ? (int64_t *)launch->outputs[3] : nullptr};
  cudaError_t error =
      cuda_launch(decide, 1, 1, 0, launch->stream, (const double *)launch->inputs[0], params->max_norm,
                  scaling, (float *)launch->outputs[0], (float *)launch->outputs[1]);
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

} // namespace

const CudaOp cuda_op_square_sum = {
    .name = "square_sum",
    .supports = supports_square_sum,
    .choose_layouts = choose_square_sum,
    .prepare = prepare_square_sum,
    .launch = launch_square_sum,
};

const CudaOp cuda_op_gradient_factor = {
    .name = "gradient_factor",
    .choose_layouts = cuda_choose_plain,
    .launch = launch_factor,
};
