/* Values in another type or layout: cast and copy, and what uploads and downloads do. Also the layout that
 * element-wise ops share. */
#include "kernels/cuda/box.cuh"

extern "C" {
extern const CudaOp cuda_op_cast, cuda_op_copy;
}

namespace {

/* ---- Element types ------------------------------------------------------------------------------------------------ */

constexpr int cast_threads = 256, cast_width = 8;

/* The first `pieces` pieces of 8 elements whole, the rest one by one. */
template <typename To, typename From>
__global__ void __launch_bounds__(cast_threads)
    cast_elements(To *__restrict__ to, const From *__restrict__ from, int64_t pieces, int64_t count) {
  for (int64_t at = global_index(); at < pieces; at += grid_threads()) {
    Pack<From, cast_width> read = ((const Pack<From, cast_width> *)from)[at];
    float values[cast_width];
#pragma unroll
    for (int k = 0; k < cast_width; k++)
      values[k] = to_float(read.at[k]);
    write_floats(to + at * cast_width, values);
  }
  for (int64_t at = pieces * cast_width + global_index(); at < count; at += grid_threads())
    to[at] = from_float<To>(to_float(from[at]));
}

template <typename To, typename From>
cudaError_t cast_launch_as(cudaStream_t stream, uintptr_t to, uintptr_t from, int64_t count) {
  bool whole = to % sizeof(Pack<To, cast_width>) == 0 && from % sizeof(Pack<From, cast_width>) == 0;
  int64_t pieces = whole ? count / cast_width : 0;
  return cuda_launch(cast_elements<To, From>, grid_for(pieces > 0 ? pieces : count, cast_threads),
                     cast_threads, 0, stream, (To *)to, (const From *)from, pieces, count);
}

template <typename A, typename B> constexpr bool is_same = false;
template <typename A> constexpr bool is_same<A, A> = true;

/* The order of elements stays. */
cudaError_t cast(cudaStream_t stream, const Tensor *to_tensor, const Tensor *from_tensor, uintptr_t to,
                 uintptr_t from) {
  cudaError_t error = cudaErrorInvalidValue;
  if (to_tensor->dtype == from_tensor->dtype)
    return cudaMemcpyAsync((void *)to, (const void *)from, (size_t)vl_tensor_bytes(to_tensor),
                           cudaMemcpyDeviceToDevice, stream);
  by_float(from_tensor->dtype, [&](auto from_zero) {
    using From = decltype(from_zero);
    by_float(to_tensor->dtype, [&](auto to_zero) {
      using To = decltype(to_zero);
      if constexpr (!is_same<To, From>)
        error = cast_launch_as<To, From>(stream, to, from, vl_tensor_elements(to_tensor));
    });
  });
  return error;
}

/* ---- cast and copy -------------------------------------------------------------------------------------------------- */

bool is_computed(DType dtype) { return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16; }

/* Whole numbers are copied, never converted. */
Status supports(CudaDevice *device, const Node *node) {
  (void)device;
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  if (y == nullptr || x->dtype == y->dtype || (is_computed(x->dtype) && is_computed(y->dtype)))
    return vl_ok();
  return vl_error(VL_UNSUPPORTED,
                  "cuda: %s of %s from %s to %s; accepted: f32, bf16 and f16 into each other, others into "
                  "their own type",
                  node->op->name, node->scope, vl_dtype_name(x->dtype), vl_dtype_name(y->dtype));
}

/* A convolution's weights are channels last, and so is their low-precision twin. That of images or volumes,
 * which are plain where the caller writes them, is as its first reader wants it. */
Status choose_cast(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  const Tensor *x = node->inputs[0];
  bool weights = x->storage->role == ROLE_PARAMETER && x->rank >= 3 && node->params.groups > 0;
  bool images = x->storage->role == ROLE_INPUT && x->rank >= 4;
  if (inputs[0] == LAYOUT_ANY) inputs[0] = weights ? (LayoutId)CUDA_CHANNELS_LAST : (LayoutId)LAYOUT_PLAIN;
  if (outputs[0] == LAYOUT_ANY && !images) outputs[0] = inputs[0];
  return vl_ok();
}

Status choose_copy(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  (void)node;
  if (inputs[0] == LAYOUT_ANY) inputs[0] = LAYOUT_PLAIN;
  if (outputs[0] == LAYOUT_ANY) outputs[0] = LAYOUT_PLAIN;
  return vl_ok();
}

/* Where both type and layout change, the type changes first, in the workspace. */
bool takes_two(const Kernel *kernel) {
  return kernel->inputs[0] != kernel->outputs[0] &&
         kernel->node->inputs[0]->dtype != kernel->node->outputs[0]->dtype;
}

Status prepare(CudaDevice *device, Kernel *kernel) {
  (void)device;
  if (takes_two(kernel)) kernel->workspace_bytes = vl_tensor_bytes(kernel->node->outputs[0]);
  return vl_ok();
}

Status launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  uintptr_t from = launch->inputs[0], to = launch->outputs[0];
  if (kernel->inputs[0] == kernel->outputs[0])
    return cuda_status(cast(launch->stream, y, x, to, from), node->op->name, node);
  if (takes_two(kernel)) {
    from = launch->workspace;
    VL_TRY(cuda_status(cast(launch->stream, y, x, from, launch->inputs[0]), node->op->name, node));
  }
  return cuda_convert(launch->stream, y->dtype, y, kernel->inputs[0], kernel->outputs[0], from, to);
}

LayoutId shared_layout(const Node *node, const LayoutId *inputs, const LayoutId *outputs) {
  for (int32_t i = 0; i < node->output_count; i++)
    if (node->outputs[i] != nullptr && node->outputs[i]->rank >= 3 && outputs[i] != LAYOUT_ANY)
      return outputs[i];
  for (int32_t i = 0; i < node->input_count; i++)
    if (node->inputs[i] != nullptr && node->inputs[i]->rank >= 3 && inputs[i] == CUDA_CHANNELS_LAST)
      return CUDA_CHANNELS_LAST;
  return LAYOUT_PLAIN;
}

} // namespace

const CudaOp cuda_op_cast = {
    .name = "cast",
    .supports = supports,
    .choose_layouts = choose_cast,
    .prepare = prepare,
    .launch = launch,
};

const CudaOp cuda_op_copy = {
    .name = "copy",
    .supports = supports,
    .choose_layouts = choose_copy,
    .prepare = prepare,
    .launch = launch,
};

extern "C" Status cuda_convert(cudaStream_t stream, DType dtype, const Tensor *shape, LayoutId from_layout,
                               LayoutId to_layout, uintptr_t from, uintptr_t to) {
  Box box = cuda_box_of_layouts(shape, from_layout, to_layout);
  return cuda_status(cuda_box_copy(stream, &box, vl_dtype_bytes(dtype, 1), to, from), "change of layout",
                     nullptr);
}

/* ---- The layout that tensors share ---------------------------------------------------------------------------------- */

extern "C" Status cuda_choose_shared(CudaDevice *device, const Node *node, LayoutId *inputs,
                                     LayoutId *outputs) {
  (void)device;
  LayoutId shared = shared_layout(node, inputs, outputs);
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = node->inputs[i] != nullptr && node->inputs[i]->rank >= 3 ? shared : (LayoutId)LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = node->outputs[i] != nullptr && node->outputs[i]->rank >= 3 ? shared : (LayoutId)LAYOUT_PLAIN;
  return vl_ok();
}

extern "C" Status cuda_check_shared(CudaDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  int32_t first = -1;
  for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
    bool is_input = i < node->input_count;
    int32_t k = is_input ? i : i - node->input_count;
    const Tensor *tensor = is_input ? node->inputs[k] : node->outputs[k];
    if (tensor == nullptr || tensor->rank < 3) continue;
    LayoutId layout = is_input ? kernel->inputs[k] : kernel->outputs[k];
    if (first < 0) first = layout;
    if (first != layout)
      return vl_error(VL_INTERNAL, "cuda: %s in %s: %s has layout %s, another tensor %s; they must share one",
                      node->op->name, node->scope, tensor->name,
                      device->device.interface->layout_name(&device->device, layout),
                      device->device.interface->layout_name(&device->device, first));
  }
  return vl_ok();
}
