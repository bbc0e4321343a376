/* The bias of a convolution and a ReLU, in a pass over its result. */
#include "kernels/cuda/conv_bias.h"
#include "kernels/cuda/kernel.cuh"

namespace {

/* The bias stays in cache: a thread reads its channels one by one. */
template <typename T, int width>
__global__ void add_bias(T *y, const float *bias_f32, const T *bias, bool relu, int64_t packs,
                         int64_t channels) {
  for (int64_t i = global_index(); i < packs; i += grid_threads()) {
    Pack<T, width> pack = reinterpret_cast<Pack<T, width> *>(y)[i];
    int64_t channel = i * width % channels;
    for (int k = 0; k < width; k++) {
      float value = to_float(pack.at[k]);
      if (bias_f32) value += bias_f32[channel];
      if (bias) value += to_float(bias[channel]);
      if (relu && value < 0.0F) value = 0.0F; /* NaN stays */
      pack.at[k] = from_float<T>(value);
      if (++channel == channels) channel = 0;
    }
    reinterpret_cast<Pack<T, width> *>(y)[i] = pack;
  }
}

constexpr int threads = 256;

/* In packs of 16 bytes where the tensor is made of whole ones. */
template <typename T>
cudaError_t launch(uintptr_t to, int64_t elements, int64_t channels, const Tensor *bias, uintptr_t from,
                   bool relu, cudaStream_t stream) {
  bool is_f32 = bias && bias->dtype == DTYPE_F32;
  const float *bias_f32 = is_f32 ? reinterpret_cast<const float *>(from) : nullptr;
  const T *bias_low = bias && !is_f32 ? reinterpret_cast<const T *>(from) : nullptr;
  T *y = reinterpret_cast<T *>(to);
  constexpr int width = pack_width<T>;
  if (to % 16 != 0 || elements % width != 0)
    return cuda_launch(add_bias<T, 1>, dim3(grid_for(elements, threads)), dim3(threads), 0, stream, y,
                       bias_f32, bias_low, relu, elements, channels);
  return cuda_launch(add_bias<T, width>, dim3(grid_for(elements / width, threads)), dim3(threads), 0, stream,
                     y, bias_f32, bias_low, relu, elements / width, channels);
}

} // namespace

extern "C" cudaError_t cuda_conv_bias(const Tensor *y, uintptr_t to, const Tensor *bias, uintptr_t from,
                                      bool relu, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  int64_t elements = vl_tensor_elements(y);
  by_float(y->dtype, [&](auto zero) {
    error = launch<decltype(zero)>(to, elements, y->shape[1], bias, from, relu, stream);
  });
  return error;
}
