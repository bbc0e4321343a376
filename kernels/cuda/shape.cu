/* reshape, transpose, slice, pad and concat: where values stand. Any element type. */
#include "kernels/cuda/box.cuh"

extern "C" {
extern const CudaOp cuda_op_concat, cuda_op_pad, cuda_op_reshape, cuda_op_slice, cuda_op_transpose;
}

namespace {

int64_t element_bytes_of(const Node *node) { return vl_dtype_bytes(node->outputs[0]->dtype, 1); }

Status copy(const Kernel *kernel, const CudaLaunch *launch, const Box *box, uintptr_t to, uintptr_t from) {
  return cuda_status(cuda_box_copy(launch->stream, box, element_bytes_of(kernel->node), to, from),
                     kernel->op->name, kernel->node);
}

/* A view where the engine made it one; else a copy. */
Status reshape_launch(const Kernel *kernel, const CudaLaunch *launch) {
  if (launch->inputs[0] == launch->outputs[0]) return vl_ok();
  Box box = {};
  box_add(&box, vl_tensor_elements(kernel->node->inputs[0]), 1, 1);
  return copy(kernel, launch, &box, launch->outputs[0], launch->inputs[0]);
}

/* The strides of a dense tensor, by its logical dimensions. */
void find_strides(const Tensor *tensor, LayoutId layout, int64_t strides[VL_MAX_DIMS]) {
  int64_t stride = 1;
  if (layout == CUDA_CHANNELS_LAST) {
    strides[1] = 1;
    stride = tensor->shape[1];
  }
  for (int32_t i = tensor->rank - 1; i >= 0; i--) {
    if (layout == CUDA_CHANNELS_LAST && i == 1) continue;
    strides[i] = stride;
    stride *= tensor->shape[i];
  }
}

Status transpose_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  int64_t from[VL_MAX_DIMS], to[VL_MAX_DIMS];
  find_strides(x, LAYOUT_PLAIN, from);
  find_strides(y, LAYOUT_PLAIN, to);
  Box box = {};
  for (int32_t i = 0; i < y->rank; i++)
    box_add(&box, y->shape[i], to[i], from[kernel->node->params.axes[i]]);
  return copy(kernel, launch, &box, launch->outputs[0], launch->inputs[0]);
}

/* ---- Parts: slice, pad, concat -------------------------------------------------------------------------------------- */

/* A part of a whole, both in one layout. */
typedef struct Part {
  Box box;       /* the part's places are those of `to` */
  int64_t start; /* of the part in the whole */
} Part;

Part part_of(const Tensor *whole, const Tensor *part, const int64_t start[VL_MAX_DIMS], LayoutId layout) {
  int64_t of_whole[VL_MAX_DIMS], of_part[VL_MAX_DIMS];
  find_strides(whole, layout, of_whole);
  find_strides(part, layout, of_part);
  Part made = {};
  bool channels_last = layout == CUDA_CHANNELS_LAST;
  for (int32_t i = 0; i < part->rank; i++) {
    made.start += start[i] * of_whole[i];
    if (!channels_last || i != 1) box_add(&made.box, part->shape[i], of_part[i], of_whole[i]);
  }
  if (channels_last) box_add(&made.box, part->shape[1], of_part[1], of_whole[1]);
  return made;
}

Status take_part(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  Part part = part_of(node->inputs[0], node->outputs[0], node->params.start, kernel->outputs[0]);
  return copy(kernel, launch, &part.box, launch->outputs[0],
              launch->inputs[0] + (uintptr_t)(part.start * element_bytes_of(node)));
}

/* Input `index` goes to where `start` says. */
Status place_part(const Kernel *kernel, const CudaLaunch *launch, int32_t index,
                  const int64_t start[VL_MAX_DIMS]) {
  const Node *node = kernel->node;
  Part part = part_of(node->outputs[0], node->inputs[index], start, kernel->outputs[0]);
  for (int32_t d = 0; d < part.box.rank; d++) {
    int64_t of_whole = part.box.from_strides[d];
    part.box.from_strides[d] = part.box.to_strides[d];
    part.box.to_strides[d] = of_whole;
  }
  return copy(kernel, launch, &part.box,
              launch->outputs[0] + (uintptr_t)(part.start * element_bytes_of(node)), launch->inputs[index]);
}

Status pad_launch(const Kernel *kernel, const CudaLaunch *launch) {
  size_t bytes = (size_t)vl_tensor_bytes(kernel->node->outputs[0]);
  VL_TRY(cuda_status(cudaMemsetAsync((void *)launch->outputs[0], 0, bytes, launch->stream), "pad",
                     kernel->node));
  return place_part(kernel, launch, 0, kernel->node->params.start);
}

Status concat_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  int64_t start[VL_MAX_DIMS] = {};
  for (int32_t i = 0; i < node->input_count; i++) {
    VL_TRY(place_part(kernel, launch, i, start));
    start[node->params.axis] += node->inputs[i]->shape[node->params.axis];
  }
  return vl_ok();
}

} // namespace

const CudaOp cuda_op_concat = {
    .name = "concat",
    .choose_layouts = cuda_choose_shared,
    .prepare = cuda_check_shared,
    .launch = concat_launch,
};

const CudaOp cuda_op_pad = {
    .name = "pad",
    .choose_layouts = cuda_choose_shared,
    .prepare = cuda_check_shared,
    .launch = pad_launch,
};

const CudaOp cuda_op_reshape = {
    .name = "reshape",
    .choose_layouts = cuda_choose_plain,
    .launch = reshape_launch,
};

const CudaOp cuda_op_slice = {
    .name = "slice",
    .choose_layouts = cuda_choose_shared,
    .prepare = cuda_check_shared,
    .launch = take_part,
};

const CudaOp cuda_op_transpose = {
    .name = "transpose",
    .choose_layouts = cuda_choose_plain,
    .launch = transpose_launch,
};
