/* relu (leaky where a slope is given), gelu, tanh, rsqrt, magnitude and their gradients. */
#include "kernels/cuda/pointwise.cuh"
#include "kernels/cuda/sum.cuh"

extern "C" {
extern const CudaOp cuda_op_gelu, cuda_op_gelu_backward, cuda_op_magnitude, cuda_op_magnitude_backward;
extern const CudaOp cuda_op_relu, cuda_op_relu_backward, cuda_op_rsqrt, cuda_op_rsqrt_backward;
extern const CudaOp cuda_op_tanh, cuda_op_tanh_backward;
}

namespace {

/* ---- ReLU ----------------------------------------------------------------------------------------------------------- */

/* 0 times infinity would be NaN. */
struct Slope {
  float slope;
  __device__ float below(float value) const { return slope > 0.0F ? slope * value : 0.0F; }
};

/* NaN is not below zero: it stays. */
struct Relu : Slope {
  static constexpr int inputs = 1;
  __device__ float operator()(float x) const { return x < 0.0F ? below(x) : x; }
};

struct ReluBackward : Slope {
  static constexpr int inputs = 2;
  __device__ float operator()(float dy, float y) const { return y > 0.0F ? dy : below(dy); }
};

Status relu_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, Relu{{(float)kernel->node->params.alpha}});
}

Status relu_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  size_t bytes = (size_t)vl_tensor_bytes(kernel->node->inputs[0]);
  for (int32_t k = 1; k < kernel->node->output_count; k++) { /* before dx, which may be over dy */
    if (launch->outputs[k] == 0) continue;
    VL_TRY(cuda_status(cudaMemcpyAsync((void *)launch->outputs[k], (const void *)launch->inputs[0], bytes,
                                       cudaMemcpyDeviceToDevice, launch->stream),
                       "copy of dy", kernel->node));
  }
  return map_launch(kernel, launch, ReluBackward{{(float)kernel->node->params.alpha}});
}

/* ---- GELU -----------------------------------------------------------------------------------------------------------
 * y = x Phi(x), dx = dy (Phi(x) + x phi(x)) for the normal density phi and distribution Phi. As on the cpu:
 * Phi(-t) = exp(-t^2 / 2) R(t), where R(t) = erfcx(t / sqrt 2) / 2 is a polynomial of degree 8 in
 * 1 / (1 + 0.3 t) within 6e-8 of it. The fast exponential is relatively off by 2 + 1.2 |argument| units,
 * which times exp(argument) is below 3 units of 1; the fast quotient by 2. */

__device__ inline float bell(float x) { return __expf(-0.5F * (x * x)); }

__device__ inline float distribution(float x, float bell_of_x) {
  float w = __fdividef(1.0F, 1.0F + 0.3F * fabsf(x));
  float p = 3.8407404e-02F;
  p = p * w - 1.6930752e-01F;
  p = p * w + 2.2895189e-01F;
  p = p * w - 7.683977e-02F;
  p = p * w + 1.4276534e-01F;
  p = p * w + 9.4585836e-02F;
  p = p * w + 1.2194527e-01F;
  p = p * w + 1.1948421e-01F;
  p = p * w + 7.3724286e-06F;
  float below = p * bell_of_x;
  return x < 0.0F ? below : 1.0F - below;
}

struct Gelu {
  static constexpr int inputs = 1;
  __device__ float operator()(float x) const { return x * distribution(x, bell(x)); }
};

struct GeluBackward {
  static constexpr int inputs = 2;
  __device__ float operator()(float dy, float x) const {
    float e = bell(x);
    return dy * (distribution(x, e) + x * (0.398942280F * e));
  }
};

Status gelu_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, Gelu{});
}

/* With the bias's gradient: dx as it is before rounding, summed over rows. dx may be dy. */
template <typename T, int width>
__global__ void __launch_bounds__(sum_threads)
    gelu_backward_rows(T *dx, const T *dy, const T *x, float *partials, int64_t rows, int64_t rows_each,
                       int64_t columns) {
  using Piece = Pack<T, width>;
  int64_t column = sum_column<width>(gridDim.x), first = blockIdx.y * rows_each;
  int64_t end = first + rows_each < rows ? first + rows_each : rows;
  float sums[width] = {};
  for (int64_t row = first + threadIdx.x / sum_lanes; row < end && column < columns; row += sum_groups) {
    int64_t at = row * columns + column;
    Piece of_dy = *(const Piece *)(dy + at), of_x = *(const Piece *)(x + at);
    float values[width];
#pragma unroll
    for (int k = 0; k < width; k++) {
      values[k] = GeluBackward{}(to_float(of_dy.at[k]), to_float(of_x.at[k]));
      sums[k] += values[k];
    }
    write_floats(dx + at, values);
  }
  sum_over_groups<width>(sums, gridDim.x, [&](int64_t at, float sum) {
    if (at < columns) partials[blockIdx.y * columns + at] = sum;
  });
}

bool wants_bias(const Node *node) { return node->output_count > 1 && node->outputs[1] != nullptr; }

/* Rows of the last dimension, and how they are cut up: for whole pieces of 16 bytes, so that the order of
 * sums does not depend on where tensors lie. */
RowSplits bias_splits(const Tensor *x, int64_t *rows, int64_t *columns) {
  *columns = x->shape[x->rank - 1];
  *rows = vl_tensor_elements(x) / *columns;
  int64_t wide = sum_lanes * 16 / vl_dtype_bytes(x->dtype, 1);
  return sum_split_rows(*rows, (*columns + wide - 1) / wide);
}

Status bias_launch(const Kernel *kernel, const CudaLaunch *launch) {
  int64_t rows, columns;
  RowSplits splits = bias_splits(kernel->node->inputs[1], &rows, &columns);
  uintptr_t addresses = launch->outputs[0] | launch->inputs[0] | launch->inputs[1];
  cudaError_t error = cudaErrorInvalidValue;
  by_float(kernel->node->inputs[1]->dtype, [&](auto zero) {
    using T = decltype(zero);
    bool wide = addresses % 16 == 0 && columns % pack_width<T> == 0;
    auto function = wide ? gelu_backward_rows<T, pack_width<T>> : gelu_backward_rows<T, 1>;
    int64_t width = sum_lanes * (wide ? pack_width<T> : 1);
    error = cuda_launch(function, dim3((unsigned)((columns + width - 1) / width), (unsigned)splits.count),
                        sum_threads, 0, launch->stream, (T *)launch->outputs[0], (const T *)launch->inputs[0],
                        (const T *)launch->inputs[1], (float *)launch->workspace, rows, splits.rows, columns);
  });
  VL_TRY(cuda_status(error, "gelu_backward", kernel->node));
  PartialSums sums = {
      (const float *)launch->workspace, columns, divisor_of(columns), 1, (int)splits.count, 1.0F};
  return cuda_status(
      cuda_sum_partials(launch->stream, &sums, kernel->node->outputs[1]->dtype, launch->outputs[1]),
      "gelu_backward", kernel->node);
}

Status gelu_backward_choose(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return wants_bias(node) ? cuda_choose_plain(device, node, inputs, outputs)
                          : cuda_choose_shared(device, node, inputs, outputs);
}

Status gelu_backward_prepare(CudaDevice *device, Kernel *kernel) {
  VL_TRY(cuda_check_shared(device, kernel));
  if (!wants_bias(kernel->node)) return vl_ok();
  int64_t rows, columns;
  RowSplits splits = bias_splits(kernel->node->inputs[1], &rows, &columns);
  kernel->workspace_bytes = splits.count * columns * (int64_t)sizeof(float);
  return vl_ok();
}

Status gelu_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return wants_bias(kernel->node) ? bias_launch(kernel, launch) : map_launch(kernel, launch, GeluBackward{});
}

/* ---- tanh, rsqrt, magnitude ----------------------------------------------------------------------------------------- */

struct Tanh {
  static constexpr int inputs = 1;
  __device__ float operator()(float x) const { return tanhf(x); }
};

struct TanhBackward {
  static constexpr int inputs = 2;
  __device__ float operator()(float dy, float y) const { return dy * (1.0F - y * y); }
};

struct Rsqrt {
  static constexpr int inputs = 1;
  float epsilon;
  __device__ float operator()(float x) const { return 1.0F / sqrtf(x + epsilon); }
};

struct RsqrtBackward {
  static constexpr int inputs = 2;
  __device__ float operator()(float dy, float y) const { return -0.5F * dy * (y * y * y); }
};

struct Magnitude {
  static constexpr int inputs = 1;
  float epsilon;
  __device__ float operator()(float x) const { return fabsf(x) + epsilon; }
};

struct MagnitudeBackward {
  static constexpr int inputs = 2;
  __device__ float operator()(float dy, float x) const { return x < 0.0F ? -dy : dy; }
};

Status tanh_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, Tanh{});
}

Status tanh_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, TanhBackward{});
}

Status rsqrt_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, Rsqrt{(float)kernel->node->params.epsilon});
}

Status rsqrt_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, RsqrtBackward{});
}

Status magnitude_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, Magnitude{(float)kernel->node->params.epsilon});
}

Status magnitude_backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, MagnitudeBackward{});
}

constexpr CudaOp pointwise(const char *name, Status (*launch)(const Kernel *, const CudaLaunch *)) {
  return {.name = name,
          .supports = cuda_supports_floats,
          .choose_layouts = cuda_choose_shared,
          .prepare = cuda_check_shared,
          .launch = launch};
}

} // namespace

const CudaOp cuda_op_gelu = pointwise("gelu", gelu_launch);

const CudaOp cuda_op_gelu_backward = {
    .name = "gelu_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = gelu_backward_choose,
    .prepare = gelu_backward_prepare,
    .launch = gelu_backward_launch,
};

const CudaOp cuda_op_magnitude = pointwise("magnitude", magnitude_launch);
const CudaOp cuda_op_magnitude_backward = pointwise("magnitude_backward", magnitude_backward_launch);
const CudaOp cuda_op_relu = pointwise("relu", relu_launch);
const CudaOp cuda_op_relu_backward = pointwise("relu_backward", relu_backward_launch);
const CudaOp cuda_op_rsqrt = pointwise("rsqrt", rsqrt_launch);
const CudaOp cuda_op_rsqrt_backward = pointwise("rsqrt_backward", rsqrt_backward_launch);
const CudaOp cuda_op_tanh = pointwise("tanh", tanh_launch);
const CudaOp cuda_op_tanh_backward = pointwise("tanh_backward", tanh_backward_launch);
