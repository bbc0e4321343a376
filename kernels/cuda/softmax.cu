/* softmax over the last dimension and its gradient; plain. A warp or a block takes a row and keeps it in
 * registers, in f32; a row that has no room there is read twice. Everything is read before what lies in the
 * same place is written, by the same thread: y may be x, and dx may be dy or y. */
#include "kernels/cuda/kernel.cuh"

#include <cmath>

extern "C" {
extern const CudaOp cuda_op_softmax, cuda_op_softmax_backward;
}

namespace {

/* Elements of a row that a thread keeps, and what rows can thus be. */
constexpr int kept = 16, most_threads = 1024, most_kept = kept * most_threads, warps_of_block = 4;

/* A dimension along which the mask is not repeated: how many rows of x share an index of it. */
struct MaskDimension {
  uint32_t rows, size;
  int64_t stride;
};

template <typename T> struct Softmax {
  const T *x;        /* or dy */
  const T *y;        /* of backward */
  const float *mask; /* NULL: none */
  T *out;
  uint32_t rows;
  int width;
  float scale;
  bool packs; /* rows can be read and written 16 bytes at a time */
  int dimension_count;
  MaskDimension dimensions[VL_MAX_DIMS];
};

/* Neighbours from `at` on, in f32; past the row's end what `filler` is. */
template <typename T, int each>
__device__ inline void read(float (&values)[each], const T *row, int at, int width, bool packs,
                            float filler) {
  if (packs && at < width) {
    Pack<T, each> pack = *reinterpret_cast<const Pack<T, each> *>(row + at);
#pragma unroll
    for (int j = 0; j < each; j++)
      values[j] = to_float(pack.at[j]);
    return;
  }
#pragma unroll
  for (int j = 0; j < each; j++)
    values[j] = at + j < width ? to_float(row[at + j]) : filler;
}

template <typename T, int each>
__device__ inline void write(T *row, int at, int width, bool packs, const float (&values)[each]) {
  if (packs && at < width) {
    Pack<T, each> pack;
#pragma unroll
    for (int j = 0; j < each; j++)
      pack.at[j] = from_float<T>(values[j]);
    *reinterpret_cast<Pack<T, each> *>(row + at) = pack;
    return;
  }
#pragma unroll
  for (int j = 0; j < each; j++)
    if (at + j < width) row[at + j] = from_float<T>(values[j]);
}

/* As block_sum: the largest over all threads of a row. */
__device__ inline float row_max(float value, float *scratch) {
  value = warp_max(value);
  int warps = (int)blockDim.x / warp_size, lane = (int)threadIdx.x % warp_size;
  if (warps == 1) return value;
  if (lane == 0) scratch[threadIdx.x / warp_size] = value;
  __syncthreads();
  return warp_max(lane < warps ? scratch[lane] : -INFINITY);
}

template <typename T> __device__ inline const float *mask_of_row(const Softmax<T> &it, uint32_t row) {
  if (it.mask == nullptr) return nullptr;
  int64_t start = 0;
  for (int i = 0; i < it.dimension_count; i++)
    start += row / it.dimensions[i].rows % it.dimensions[i].size * it.dimensions[i].stride;
  return it.mask + start;
}

/* z = scale x + mask; -inf past the row's end. */
template <typename T, int each>
__device__ inline void read_scores(float (&z)[each], const Softmax<T> &it, const T *x, const float *mask,
                                   int at) {
  read<T, each>(z, x, at, it.width, it.packs, -INFINITY);
#pragma unroll
  for (int j = 0; j < each; j++) {
    if (at + j >= it.width)
      z[j] = -INFINITY; /* whatever the sign of the scale */
    else
      z[j] = mask != nullptr ? fmaf(it.scale, z[j], mask[at + j]) : it.scale * z[j];
  }
}

/* Threads along x have a row; those along y others. */
template <typename T, bool keeps>
__global__ void __launch_bounds__(most_threads) softmax_forward(Softmax<T> it) {
  constexpr int each = pack_width<T>, count = kept / each;
  __shared__ float tops[warp_size], sums[warp_size];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= it.rows) return; /* with its whole warp, which then has a row of its own */
  const T *x = it.x + (int64_t)row * it.width;
  T *y = it.out + (int64_t)row * it.width;
  const float *mask = mask_of_row(it, row);
  int first = (int)threadIdx.x * each, stride = (int)blockDim.x * each;
  float z[keeps ? count : 1][each], top = -INFINITY, sum = 0.0F;
  if constexpr (keeps) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      read_scores<T, each>(z[i], it, x, mask, first + i * stride);
#pragma unroll
      for (int j = 0; j < each; j++)
        top = fmaxf(top, z[i][j]);
    }
  } else {
    for (int at = first; at < it.width; at += stride) {
      read_scores<T, each>(z[0], it, x, mask, at);
#pragma unroll
      for (int j = 0; j < each; j++)
        top = fmaxf(top, z[0][j]);
    }
  }
  top = row_max(top, tops);
  if constexpr (keeps) {
#pragma unroll
    for (int i = 0; i < count; i++)
#pragma unroll
      for (int j = 0; j < each; j++) {
        z[i][j] = expf(z[i][j] - top);
        /* Past the end there is nothing, in a row of -inf too, where this is NaN. */
        if (first + i * stride + j < it.width) sum += z[i][j];
      }
  } else {
    for (int at = first; at < it.width; at += stride) {
      read_scores<T, each>(z[0], it, x, mask, at);
#pragma unroll
      for (int j = 0; j < each; j++)
        if (at + j < it.width) sum += expf(z[0][j] - top);
    }
  }
  float factor = 1.0F / block_sum(sum, sums);
  if constexpr (keeps) {
#pragma unroll
    for (int i = 0; i < count; i++) {
#pragma unroll
      for (int j = 0; j < each; j++)
        z[i][j] *= factor;
      write<T, each>(y, first + i * stride, it.width, it.packs, z[i]);
    }
  } else {
    for (int at = first; at < it.width; at += stride) {
      read_scores<T, each>(z[0], it, x, mask, at);
#pragma unroll
      for (int j = 0; j < each; j++)
        z[0][j] = expf(z[0][j] - top) * factor;
      write<T, each>(y, at, it.width, it.packs, z[0]);
    }
  }
}

template <typename T, bool keeps>
__global__ void __launch_bounds__(most_threads) softmax_backward(Softmax<T> it) {
  constexpr int each = pack_width<T>, count = kept / each;
  __shared__ float sums[warp_size];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= it.rows) return;
  const T *dy = it.x + (int64_t)row * it.width, *y = it.y + (int64_t)row * it.width;
  T *dx = it.out + (int64_t)row * it.width;
  int first = (int)threadIdx.x * each, stride = (int)blockDim.x * each;
  float of_dy[keeps ? count : 1][each], of_y[keeps ? count : 1][each], sum = 0.0F;
  if constexpr (keeps) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      read<T, each>(of_dy[i], dy, first + i * stride, it.width, it.packs, 0.0F);
      read<T, each>(of_y[i], y, first + i * stride, it.width, it.packs, 0.0F);
#pragma unroll
      for (int j = 0; j < each; j++)
        sum = fmaf(of_dy[i][j], of_y[i][j], sum);
    }
  } else {
    for (int at = first; at < it.width; at += stride) {
      read<T, each>(of_dy[0], dy, at, it.width, it.packs, 0.0F);
      read<T, each>(of_y[0], y, at, it.width, it.packs, 0.0F);
#pragma unroll
      for (int j = 0; j < each; j++)
        sum = fmaf(of_dy[0][j], of_y[0][j], sum);
    }
  }
  float mean = block_sum(sum, sums);
  if constexpr (keeps) {
#pragma unroll
    for (int i = 0; i < count; i++) {
#pragma unroll
      for (int j = 0; j < each; j++)
        of_dy[i][j] = it.scale * of_y[i][j] * (of_dy[i][j] - mean);
      write<T, each>(dx, first + i * stride, it.width, it.packs, of_dy[i]);
    }
  } else {
    for (int at = first; at < it.width; at += stride) {
      read<T, each>(of_dy[0], dy, at, it.width, it.packs, 0.0F);
      read<T, each>(of_y[0], y, at, it.width, it.packs, 0.0F);
#pragma unroll
      for (int j = 0; j < each; j++)
        of_dy[0][j] = it.scale * of_y[0][j] * (of_dy[0][j] - mean);
      write<T, each>(dx, at, it.width, it.packs, of_dy[0]);
    }
  }
}

/* ---- The ops ----------------------------------------------------------------------------------------------- */

int64_t width_of(const Tensor *tensor) { return tensor->shape[tensor->rank - 1]; }

Status supports(CudaDevice *device, const Node *node) {
  VL_TRY(cuda_supports_floats(device, node));
  const Tensor *x = node->inputs[0];
  int64_t width = width_of(x), rows = vl_tensor_elements(x) / width;
  if (rows > INT32_MAX || width > INT32_MAX / 2)
    return vl_error(VL_UNSUPPORTED, "%s '%s': %lld rows of %lld; the cuda device takes %d of up to %d",
                    node->op->name, node->scope, (long long)rows, (long long)width, INT32_MAX, INT32_MAX / 2);
  return vl_ok();
}

template <typename T> Softmax<T> softmax_of(const Kernel *kernel, const CudaLaunch *launch, bool backward) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0], *mask = !backward && node->input_count > 1 ? node->inputs[1] : nullptr;
  Softmax<T> it = {};
  it.x = reinterpret_cast<const T *>(launch->inputs[0]);
  if (backward) it.y = reinterpret_cast<const T *>(launch->inputs[1]);
  if (mask != nullptr) it.mask = reinterpret_cast<const float *>(launch->inputs[1]);
  it.out = reinterpret_cast<T *>(launch->outputs[0]);
  it.width = (int)width_of(x);
  it.rows = (uint32_t)(vl_tensor_elements(x) / width_of(x));
  it.scale = node->params.alpha != 0.0 ? (float)node->params.alpha : 1.0F;
  uintptr_t addresses = (uintptr_t)it.x | (uintptr_t)it.y | (uintptr_t)it.out;
  it.packs = it.width % pack_width<T> == 0 && addresses % 16 == 0;
  int64_t rows = 1, stride = it.width;
  for (int32_t i = 2; mask != nullptr && i <= mask->rank; i++) {
    int64_t size = mask->shape[mask->rank - i];
    if (size > 1) it.dimensions[it.dimension_count++] = MaskDimension{(uint32_t)rows, (uint32_t)size, stride};
    rows *= x->shape[x->rank - i];
    stride *= size;
  }
  return it;
}

/* Queues `keeping` for rows that fit into the registers of a warp or block, else `reading`. */
template <typename T>
cudaError_t launch_rows(void (*keeping)(Softmax<T>), void (*reading)(Softmax<T>), const Softmax<T> &it,
                        cudaStream_t stream) {
  if (it.width <= kept * warp_size) {
    dim3 block(warp_size, warps_of_block);
    return cuda_launch(keeping, dim3((it.rows + warps_of_block - 1) / warps_of_block), block, 0, stream, it);
  }
  if (it.width > most_kept) return cuda_launch(reading, dim3(it.rows), dim3(most_threads), 0, stream, it);
  int threads = (it.width + kept * warp_size - 1) / (kept * warp_size) * warp_size;
  return cuda_launch(keeping, dim3(it.rows), dim3((unsigned)threads), 0, stream, it);
}

Status launch_forward(const Kernel *kernel, const CudaLaunch *launch) {
  cudaError_t error = cudaSuccess;
  (void)by_float(kernel->node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    error = launch_rows<T>(softmax_forward<T, true>, softmax_forward<T, false>,
                           softmax_of<T>(kernel, launch, false), launch->stream);
  });
  return cuda_status(error, "softmax", kernel->node);
}

Status launch_backward(const Kernel *kernel, const CudaLaunch *launch) {
  cudaError_t error = cudaSuccess;
  (void)by_float(kernel->node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    error = launch_rows<T>(softmax_backward<T, true>, softmax_backward<T, false>,
                           softmax_of<T>(kernel, launch, true), launch->stream);
  });
  return cuda_status(error, "softmax_backward", kernel->node);
}

} // namespace

const CudaOp cuda_op_softmax = {
    .name = "softmax",
    .supports = supports,
    .choose_layouts = cuda_choose_plain,
    .prepare = nullptr,
    .build = nullptr,
    .launch = launch_forward,
    .destroy = nullptr,
};

const CudaOp cuda_op_softmax_backward = {
    .name = "softmax_backward",
    .supports = supports,
    .choose_layouts = cuda_choose_plain,
    .prepare = nullptr,
    .build = nullptr,
    .launch = launch_backward,
    .destroy = nullptr,
};
