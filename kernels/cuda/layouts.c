/* Layouts of the card: plain and channels last. */
#include "kernels/cuda/cuda.h"

#include <string.h>

static bool may_be_channels_last(const Tensor *tensor) { return tensor && tensor->rank >= 3; }

Status cuda_choose_plain(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = LAYOUT_PLAIN;
  return vl_ok();
}

Status cuda_choose_channels_last(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = may_be_channels_last(node->inputs[i]) ? CUDA_CHANNELS_LAST : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = may_be_channels_last(node->outputs[i]) ? CUDA_CHANNELS_LAST : LAYOUT_PLAIN;
  return vl_ok();
}

Status cuda_choose_follow(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  const Tensor *first = node->inputs[0];
  LayoutId layout = may_be_channels_last(first) && inputs[0] != LAYOUT_ANY ? inputs[0] : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = may_be_channels_last(first) && node->inputs[i] && node->inputs[i]->rank == first->rank
                    ? layout
                    : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = may_be_channels_last(first) && node->outputs[i] && node->outputs[i]->rank == first->rank
                     ? layout
                     : LAYOUT_PLAIN;
  return vl_ok();
}

static Status check_float(const Node *node, const Tensor *tensor) {
  if (!tensor || !vl_dtype_is_float(tensor->dtype) || tensor->dtype != DTYPE_F64) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cuda: %s of %s in %s; accepted: f32, bf16, f16", tensor->name,
                  node->op->name, vl_dtype_name(tensor->dtype));
}

Status cuda_supports_floats(CudaDevice *device, const Node *node) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; i++)
    VL_TRY(check_float(node, node->inputs[i]));
  for (int32_t i = 0; i < node->output_count; i++)
    VL_TRY(check_float(node, node->outputs[i]));
  return vl_ok();
}

CudaChannels cuda_channels(LayoutId layout, const Tensor *tensor) {
  CudaChannels view = {.n = 1, .channels = 1, .spatial = 1, .channel_stride = 1, .spatial_stride = 1};
  if (tensor->rank < 2) {
    view.channels = vl_tensor_elements(tensor);
    view.spatial_stride = view.channels;
    return view;
  }
  view.n = tensor->shape[0];
  view.channels = tensor->shape[1];
  for (int32_t i = 2; i < tensor->rank; i++)
    view.spatial *= tensor->shape[i];
  bool last = layout == CUDA_CHANNELS_LAST || tensor->rank == 2;
  view.channel_stride = last ? 1 : view.spatial;
  view.spatial_stride = last ? view.channels : 1;
  return view;
}

/* ---- On the host ------------------------------------------------------------------------------------------------ */

static void move_elements(CudaChannels to, CudaChannels from, size_t size, char *target, const char *source) {
  int64_t plane = from.channels * from.spatial;
  for (int64_t n = 0; n < from.n; n++)
    for (int64_t c = 0; c < from.channels; c++)
      for (int64_t s = 0; s < from.spatial; s++)
        memcpy(target + (size_t)(n * plane + c * to.channel_stride + s * to.spatial_stride) * size,
               source + (size_t)(n * plane + c * from.channel_stride + s * from.spatial_stride) * size, size);
}

static void convert(const Storage *storage, LayoutId to, LayoutId from, void *target, const void *source) {
  size_t size = (size_t)vl_dtype_bits(storage->dtype) / 8;
  if (to == from)
    memcpy(target, source, (size_t)storage->elements * size);
  else
    move_elements(cuda_channels(to, storage->root), cuda_channels(from, storage->root), size, target, source);
}

void cuda_host_to_layout(LayoutId layout, const Storage *storage, const void *plain, void *laid_out) {
  convert(storage, layout, LAYOUT_PLAIN, laid_out, plain);
}

void cuda_host_from_layout(LayoutId layout, const Storage *storage, const void *laid_out, void *plain) {
  convert(storage, LAYOUT_PLAIN, layout, plain, laid_out);
}
