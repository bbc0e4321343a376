/* reshape, transpose, slice, pad and concat: where values stand. Any element type. */
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

/* ---- Parts: slice, pad, concat ------------------------------------------------------------------------------
 * In any activation layout whose blocks of channels they do not cut, else plain. */

/* The copies a node is, one after the other. */
typedef struct Parts {
  Box boxes[VL_MAX_INPUTS]; /* from input i */
  int64_t cleared_bytes;    /* of the output, before: pad's zeros */
} Parts;

/* Where concat's input begins in the output. */
static void concat_start(const Node *node, int32_t input, int64_t start[VL_MAX_DIMS]) {
  memset(start, 0, VL_MAX_DIMS * sizeof *start);
  for (int32_t i = 0; i < input; i++)
    start[node->params.axis] += node->inputs[i]->shape[node->params.axis];
}

static Status choose_all(CpuDevice *device, const Node *node, LayoutId layout, LayoutId *inputs,
                         LayoutId *outputs) {
  VL_TRY(cpu_choose_plain(device, node, inputs, outputs));
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = layout;
  outputs[0] = layout;
  return vl_ok();
}

static Status choose_slice(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  bool fits = cpu_layout_is_activation(device, inputs[0]) &&
              box_part_fits(device, inputs[0], node->inputs[0], node->outputs[0], node->params.start);
  return choose_all(device, node, fits ? inputs[0] : LAYOUT_PLAIN, inputs, outputs);
}

static Status choose_pad(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  bool fits = cpu_layout_is_activation(device, inputs[0]) &&
              box_part_fits(device, inputs[0], node->outputs[0], node->inputs[0], node->params.start);
  return choose_all(device, node, fits ? inputs[0] : LAYOUT_PLAIN, inputs, outputs);
}

/* The first layout an input has that fits all. */
static Status choose_concat(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  LayoutId chosen = LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->input_count && chosen == LAYOUT_PLAIN; i++) {
    bool fits = cpu_layout_is_activation(device, inputs[i]);
    for (int32_t k = 0; k < node->input_count && fits; k++) {
      int64_t start[VL_MAX_DIMS];
      concat_start(node, k, start);
      fits = box_part_fits(device, inputs[i], node->outputs[0], node->inputs[k], start);
    }
    if (fits) chosen = inputs[i];
  }
  return choose_all(device, node, chosen, inputs, outputs);
}

static Status prepare_parts(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  const Tensor *y = node->outputs[0];
  Parts *parts = vl_allocate(sizeof *parts);
  kernel->data = parts;
  if (strcmp(node->op->name, "pad") == 0)
    parts->cleared_bytes = vl_dtype_bytes(y->dtype, cpu_padded_elements(device, kernel->outputs[0], y));
  for (int32_t i = 0; i < node->input_count; i++) {
    int64_t start[VL_MAX_DIMS];
    const Tensor *x = node->inputs[i];
    if (kernel->inputs[i] != kernel->outputs[0])
      return vl_error(VL_INTERNAL, "%s in %s: input %d has layout %s, the output %s; they must be one",
                      kernel->op->name, node->scope, i, cpu_layout_name(device, kernel->inputs[i]),
                      cpu_layout_name(device, kernel->outputs[0]));
    if (strcmp(node->op->name, "slice") == 0) {
      VL_TRY(box_part(device, kernel->outputs[0], x, y, node->params.start, &parts->boxes[i]));
      continue;
    }
    bool joins = strcmp(node->op->name, "concat") == 0;
    if (joins) concat_start(node, i, start);
    VL_TRY(box_part(device, kernel->outputs[0], y, x, joins ? start : node->params.start, &parts->boxes[i]));
    parts->boxes[i] = box_reversed(&parts->boxes[i]);
  }
  return vl_ok();
}

static Status launch_parts(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Parts *parts = kernel->data;
  if (parts->cleared_bytes > 0) memset((void *)outputs[0], 0, (size_t)parts->cleared_bytes);
  for (int32_t i = 0; i < kernel->node->input_count; i++) {
    const Tensor *x = kernel->node->inputs[i], *y = kernel->node->outputs[0];
    int64_t moved = vl_tensor_elements(vl_tensor_elements(x) < vl_tensor_elements(y) ? x : y);
    box_copy(&parts->boxes[i], (void *)outputs[0], (const void *)inputs[i], vector_threads(kernel, moved));
  }
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
    .choose_layouts = choose_slice,
    .prepare = prepare_parts,
    .launch = launch_parts,
};

const CpuOp cpu_op_pad = {
    .name = "pad",
    .choose_layouts = choose_pad,
    .prepare = prepare_parts,
    .launch = launch_parts,
};

const CpuOp cpu_op_concat = {
    .name = "concat",
    .choose_layouts = choose_concat,
    .prepare = prepare_parts,
    .launch = launch_parts,
};
