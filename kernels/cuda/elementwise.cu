/* add, mul and scale, element by element; sum and product with what is repeated; and a constant. */
#include "kernels/cuda/box.cuh"
#include "kernels/cuda/pointwise.cuh"

#include <cstring>

extern "C" {
extern const CudaOp cuda_op_add, cuda_op_fill, cuda_op_mul, cuda_op_scale;
}

namespace {

struct Sum {
  static constexpr int inputs = 2;
  __device__ float operator()(float a, float b) const { return a + b; }
};

struct Product {
  static constexpr int inputs = 2;
  __device__ float operator()(float a, float b) const { return a * b; }
};

struct Multiple {
  static constexpr int inputs = 1;
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};

/* ---- Sum and product with a repeated b -------------------------------------------------------------------------- */

/* The first `pieces` pieces of 16 bytes of a meet a piece of b (`runs`), or one element of it; the rest goes
 * one by one. y may be a. */
template <typename T, typename F>
__global__ void __launch_bounds__(map_threads)
    map_repeated(F function, T *y, const T *a, const T *b, const __grid_constant__ Places of_b, bool runs,
                 int64_t pieces, int64_t count) {
  constexpr int width = pack_width<T>;
  using Piece = Pack<T, width>;
  for (int64_t at = global_index(); at < pieces; at += grid_threads()) {
    Piece piece = ((const Piece *)a)[at], other;
    const T *from = b + place_of(of_b, at * width);
    if (runs) {
      other = *(const Piece *)from;
    } else {
#pragma unroll
      for (int k = 0; k < width; k++)
        other.at[k] = from[0];
    }
    float values[width];
#pragma unroll
    for (int k = 0; k < width; k++)
      values[k] = function(to_float(piece.at[k]), to_float(other.at[k]));
    write_floats(y + at * width, values);
  }
  for (int64_t at = pieces * width + global_index(); at < count; at += grid_threads())
    y[at] = from_float<T>(function(to_float(a[at]), to_float(b[place_of(of_b, at)])));
}

/* Where b's elements are for those of a. */
Places places_of_b(const Tensor *a, const Tensor *b) {
  int64_t strides[VL_MAX_DIMS], stride = 1;
  for (int32_t i = a->rank - 1; i >= 0; i--) {
    int32_t of_b = i - (a->rank - b->rank);
    strides[i] = of_b >= 0 && b->shape[of_b] > 1 ? stride : 0;
    if (of_b >= 0) stride *= b->shape[of_b];
  }
  Places places = {};
  for (int32_t i = 0; i < a->rank; i++)
    places_add(&places, a->shape[i], strides[i]);
  return places;
}

/* Whether pieces of `width` elements of a lie within its last run, and meet whole ones of b. */
bool runs_fit(const Places *places, int64_t width) {
  int32_t last = places->rank - 1;
  if (last < 0 || places->sizes[last].divisor % width != 0) return false;
  for (int32_t i = 0; places->strides[last] == 1 && i < last; i++)
    if (places->strides[i] % width != 0) return false;
  return places->strides[last] <= 1;
}

template <typename F> Status repeated_launch(const Kernel *kernel, const CudaLaunch *launch, F function) {
  const Tensor *a = kernel->node->inputs[0];
  Places places = places_of_b(a, kernel->node->inputs[1]);
  bool runs = places.rank > 0 && places.strides[places.rank - 1] == 1;
  uintptr_t addresses = launch->outputs[0] | launch->inputs[0] | (runs ? launch->inputs[1] : 0);
  int64_t count = vl_tensor_elements(a);
  cudaError_t error = cudaErrorInvalidValue;
  by_float(a->dtype, [&](auto zero) {
    using T = decltype(zero);
    bool fits = addresses % 16 == 0 && runs_fit(&places, pack_width<T>);
    int64_t pieces = fits ? count / pack_width<T> : 0;
    error = cuda_launch(map_repeated<T, F>, grid_for(fits ? pieces : count, map_threads), map_threads, 0,
                        launch->stream, function, (T *)launch->outputs[0], (const T *)launch->inputs[0],
                        (const T *)launch->inputs[1], places, runs, pieces, count);
  });
  return cuda_status(error, kernel->op->name, kernel->node);
}

bool repeats(const Node *node) { return !vl_tensor_same_shape(node->inputs[0], node->inputs[1]); }

Status choose(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return repeats(node) ? cuda_choose_plain(device, node, inputs, outputs)
                       : cuda_choose_shared(device, node, inputs, outputs);
}

/* ---- The ops -------------------------------------------------------------------------------------------------------- */

Status add_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return repeats(kernel->node) ? repeated_launch(kernel, launch, Sum{}) : map_launch(kernel, launch, Sum{});
}

Status multiply_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return repeats(kernel->node) ? repeated_launch(kernel, launch, Product{})
                               : map_launch(kernel, launch, Product{});
}

Status scale_launch(const Kernel *kernel, const CudaLaunch *launch) {
  return map_launch(kernel, launch, Multiple{(float)kernel->node->params.alpha});
}

/* ---- Constant ------------------------------------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(map_threads) fill_elements(T *y, T value, int64_t pieces, int64_t count) {
  Pack<T, pack_width<T>> piece;
#pragma unroll
  for (int k = 0; k < pack_width<T>; k++)
    piece.at[k] = value;
  for (int64_t at = global_index(); at < pieces; at += grid_threads())
    ((Pack<T, pack_width<T>> *)y)[at] = piece;
  for (int64_t at = pieces * pack_width<T> + global_index(); at < count; at += grid_threads())
    y[at] = value;
}

/* Elements as whole numbers of their size. */
template <typename T> Status fill_as(const Kernel *kernel, const CudaLaunch *launch) {
  const Tensor *y = kernel->node->outputs[0];
  T value = 0;
  vl_element_set(&value, y->dtype, 0, kernel->node->params.alpha);
  int64_t count = vl_tensor_elements(y), pieces = launch->outputs[0] % 16 == 0 ? count / pack_width<T> : 0;
  unsigned blocks = grid_for(pieces > 0 ? pieces : count, map_threads);
  return cuda_status(cuda_launch(fill_elements<T>, blocks, map_threads, 0, launch->stream,
                                 (T *)launch->outputs[0], value, pieces, count),
                     "fill", kernel->node);
}

Status fill_launch(const Kernel *kernel, const CudaLaunch *launch) {
  switch (vl_dtype_bytes(kernel->node->outputs[0]->dtype, 1)) {
  case 1: return fill_as<uint8_t>(kernel, launch);
  case 2: return fill_as<uint16_t>(kernel, launch);
  case 4: return fill_as<uint32_t>(kernel, launch);
  default: return fill_as<uint64_t>(kernel, launch);
  }
}

} // namespace

const CudaOp cuda_op_add = {
    .name = "add",
    .supports = cuda_supports_floats,
    .choose_layouts = choose,
    .prepare = cuda_check_shared,
    .launch = add_launch,
};

const CudaOp cuda_op_fill = {
    .name = "fill",
    .choose_layouts = cuda_choose_shared,
    .launch = fill_launch,
};

const CudaOp cuda_op_mul = {
    .name = "mul",
    .supports = cuda_supports_floats,
    .choose_layouts = choose,
    .prepare = cuda_check_shared,
    .launch = multiply_launch,
};

const CudaOp cuda_op_scale = {
    .name = "scale",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_shared,
    .prepare = cuda_check_shared,
    .launch = scale_launch,
};
