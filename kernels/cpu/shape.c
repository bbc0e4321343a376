/* reshape, transpose, slice and pad: where values stand. Any element type, all plain. */
#include "kernels/cpu/box.h"

static Status prepare(CpuDevice *device, Kernel *kernel) {
  if (kernel->inputs[0] == LAYOUT_PLAIN && kernel->outputs[0] == LAYOUT_PLAIN) return vl_ok();
  return vl_error(VL_INTERNAL, "%s in %s: layouts %s and %s; only plain is possible", kernel->op->name,
                  kernel->node->scope, cpu_layout_name(device, kernel->inputs[0]),
                  cpu_layout_name(device, kernel->outputs[0]));
}

/* A box of `sizes`, without strides. */
static Box box_of(const Tensor *sizes) {
  Box box = {.rank = sizes->rank, .element_bytes = vl_dtype_bytes(sizes->dtype, 1)};
  for (int32_t i = 0; i < sizes->rank; i++)
    box.dimensions[i].size = sizes->shape[i];
  return box;
}

static void copy(const Kernel *kernel, Box box, uintptr_t to, uintptr_t from) {
  int32_t threads = vector_threads(kernel, vl_tensor_elements(kernel->node->outputs[0]));
  box_simplify(&box);
  box_copy(&box, (void *)to, (const void *)from, threads);
}

/* A view where the engine made it one; else a copy. */
static Status reshape_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  if (inputs[0] == outputs[0]) return vl_ok();
  Tensor flat = {.rank = 1,
                 .dtype = kernel->node->inputs[0]->dtype,
                 .shape = {vl_tensor_elements(kernel->node->inputs[0])}};
  Box box = box_of(&flat);
  box.dimensions[0].to_stride = box.dimensions[0].from_stride = 1;
  copy(kernel, box, outputs[0], inputs[0]);
  return vl_ok();
}

static Status transpose_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  int64_t from[VL_MAX_DIMS], to[VL_MAX_DIMS];
  box_strides(x, from);
  box_strides(y, to);
  Box box = box_of(y);
  for (int32_t i = 0; i < y->rank; i++) {
    box.dimensions[i].to_stride = to[i];
    box.dimensions[i].from_stride = from[kernel->node->params.axes[i]];
  }
  copy(kernel, box, outputs[0], inputs[0]);
  return vl_ok();
}

/* Copies a box of the smaller tensor's sizes; returns where it starts in the larger one, in elements. */
static Box dense_box(const Tensor *x, const Tensor *y) {
  int64_t from[VL_MAX_DIMS], to[VL_MAX_DIMS];
  box_strides(x, from);
  box_strides(y, to);
  Box box = box_of(vl_tensor_elements(x) < vl_tensor_elements(y) ? x : y);
  for (int32_t i = 0; i < x->rank; i++) {
    box.dimensions[i].to_stride = to[i];
    box.dimensions[i].from_stride = from[i];
  }
  return box;
}

static Status slice_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  Box box = dense_box(kernel->node->inputs[0], kernel->node->outputs[0]);
  for (int32_t i = 0; i < box.rank; i++)
    box.from_start += kernel->node->params.start[i] * box.dimensions[i].from_stride;
  copy(kernel, box, outputs[0], inputs[0]);
  return vl_ok();
}

static Status pad_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Tensor *y = kernel->node->outputs[0];
  Box box = dense_box(kernel->node->inputs[0], y);
  for (int32_t i = 0; i < box.rank; i++)
    box.to_start += kernel->node->params.start[i] * box.dimensions[i].to_stride;
  memset((void *)outputs[0], 0, (size_t)vl_tensor_bytes(y));
  copy(kernel, box, outputs[0], inputs[0]);
  return vl_ok();
}

const CpuOp cpu_op_reshape = {
    .name = "reshape",
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = reshape_launch,
};

const CpuOp cpu_op_transpose = {
    .name = "transpose",
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = transpose_launch,
};

const CpuOp cpu_op_slice = {
    .name = "slice",
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = slice_launch,
};

const CpuOp cpu_op_pad = {
    .name = "pad",
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = pad_launch,
};
