/* Convolutions on oneDNN: forward, gradient of the data, gradient of the weights.
 *
 * Layouts. On this library a convolution runs fastest between activations in channel blocks or channels last,
 * and the two families differ by little (bench_conv.c), so what costs is going from one to the other: the
 * first convolution takes what the library likes best, later ones stay in the family their input is in. The
 * weights are the library's choice each time, and the weights' gradient keeps the parameter's layout where
 * the library can write it.
 *
 * Layouts decided, own kernels take over what they do faster: conv_winograd.h, conv_pointwise.h,
 * conv_weights.h. Those of few channels a group have wishes of their own: conv_narrow.h. */
#include "kernels/cpu/batch_norm.h"
#include "kernels/cpu/conv_narrow.h"
#include "kernels/cpu/conv_pointwise.h"
#include "kernels/cpu/conv_weights.h"
#include "kernels/cpu/conv_winograd.h"
#include "kernels/cpu/cpu.h"
#include <stdlib.h>
#include <string.h>

/* Operands in the order data, weights, result, whichever of them are gradients; then conv's bias, if it has
 * one. */
enum { DATA = 0, WEIGHTS, RESULT, OPERANDS, BIAS = OPERANDS };

static const dnnl_dims_t no_dilation = {0, 0, 0};

static dnnl_status_t create_forward(CpuDevice *device, const PrimitiveSpec *spec,
                                    const dnnl_memory_desc_t *mds, dnnl_primitive_desc_t *descriptor) {
  return dnnl_convolution_forward_primitive_desc_create(
      descriptor, device->engine, dnnl_forward_training, dnnl_convolution_direct, mds[DATA], mds[WEIGHTS],
      spec->operand_count > BIAS ? mds[BIAS] : NULL, mds[RESULT], spec->stride, no_dilation, spec->padding,
      spec->padding, device->attributes);
}

/* The hint stays empty: convolutions do not read it. */
static dnnl_status_t create_backward_data(CpuDevice *device, const PrimitiveSpec *spec,
                                          const dnnl_memory_desc_t *mds, dnnl_primitive_desc_t *descriptor) {
  return dnnl_convolution_backward_data_primitive_desc_create(
      descriptor, device->engine, dnnl_convolution_direct, mds[DATA], mds[WEIGHTS], mds[RESULT], spec->stride,
      no_dilation, spec->padding, spec->padding, NULL, device->attributes);
}

static dnnl_status_t create_backward_weights(CpuDevice *device, const PrimitiveSpec *spec,
                                             const dnnl_memory_desc_t *mds,
                                             dnnl_primitive_desc_t *descriptor) {
  return dnnl_convolution_backward_weights_primitive_desc_create(
      descriptor, device->engine, dnnl_convolution_direct, mds[DATA], mds[WEIGHTS], NULL, mds[RESULT],
      spec->stride, no_dilation, spec->padding, spec->padding, NULL, device->attributes);
}

/* The bias is weights 1 to a query. */
static const PrimitiveKind forward_kind = {
    "convolution",
    create_forward,
    {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md, dnnl_query_weights_md},
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
    {0, 0, 0, 1}};
static const PrimitiveKind backward_data_kind = {
    "convolution's data gradient",
    create_backward_data,
    {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
    {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
    {0}};
static const PrimitiveKind backward_weights_kind = {
    "convolution's weights gradient",
    create_backward_weights,
    {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    {0}};

/* Where the operands of a kind are among a node's tensors: input i, or OPERAND_OUTPUT. */
static const int32_t forward_sources[] = {0, 1, OPERAND_OUTPUT, 2};
static const int32_t backward_data_sources[] = {OPERAND_OUTPUT, 1, 0};
static const int32_t backward_weights_sources[] = {0, OPERAND_OUTPUT, 1};

static const Tensor *tensor_at(const Node *node, int32_t source) {
  return source < OPERAND_OUTPUT ? node->inputs[source] : node->outputs[source - OPERAND_OUTPUT];
}

static LayoutId *layout_at(LayoutId *inputs, LayoutId *outputs, int32_t source) {
  return source < OPERAND_OUTPUT ? &inputs[source] : &outputs[source - OPERAND_OUTPUT];
}

static bool has_bias(const Node *node) {
  return strcmp(node->op->name, "conv") == 0 && node->input_count > 2 && node->inputs[2];
}

static void fill_spec(const Node *node, const PrimitiveKind *kind, const int32_t *sources,
                      const LayoutId *layouts, PrimitiveSpec *spec) {
  memset(spec, 0, sizeof *spec);
  spec->kind = kind;
  spec->operand_count = OPERANDS;
  int64_t groups = node->params.groups > 1 ? node->params.groups : 1;
  for (int32_t i = 0; i < OPERANDS; ++i)
    cpu_operand_set(&spec->operands[i], tensor_at(node, sources[i]), layouts[i], i == WEIGHTS ? groups : 1);
  if (has_bias(node)) {
    cpu_operand_set(&spec->operands[BIAS], node->inputs[2], LAYOUT_PLAIN, 1);
    spec->operand_count = BIAS + 1;
  }
  for (int32_t i = 0; i < spec->operands[DATA].rank - 2; ++i) {
    spec->stride[i] = node->params.stride[i];
    spec->padding[i] = node->params.padding[i];
  }
}

static Status supports(CpuDevice *device, const Node *node) {
  VL_TRY(cpu_supports_f32_bf16(device, node));
  if (node->inputs[0]->dtype != node->inputs[1]->dtype)
    return vl_error(VL_UNSUPPORTED, "cpu: %s of %s on %s and %s; accepted: both f32 or both bf16",
                    node->op->name, node->scope, vl_dtype_name(node->inputs[0]->dtype),
                    vl_dtype_name(node->inputs[1]->dtype));
  return vl_ok();
}

/* Other ops know what the library likes for a convolution's data. Groups of four channels it would have in
 * blocks of four. */
static bool is_known(CpuDevice *device, const Primitive *primitive) {
  LayoutId data = primitive->layouts[DATA], result = primitive->layouts[RESULT];
  return (data == LAYOUT_PLAIN || cpu_layout_is_activation(device, data)) &&
         (result == LAYOUT_PLAIN || cpu_layout_is_activation(device, result));
}

/* Takes the first of the candidates that the library computes with more than its reference code; when there
 * is none, the first it computes at all. */
static Status choose(CpuDevice *device, const Node *node, const PrimitiveKind *kind, const int32_t *sources,
                     LayoutId (*candidates)[OPERANDS], int32_t count, LayoutId *inputs, LayoutId *outputs) {
  Primitive *chosen = NULL;
  Status status = vl_ok();
  for (int32_t i = 0; i < count && (!chosen || chosen->is_reference); ++i) {
    PrimitiveSpec spec;
    Primitive *primitive = NULL;
    fill_spec(node, kind, sources, candidates[i], &spec);
    status = cpu_primitive_find(device, &spec, node, &primitive);
    if (status.code != VL_OK && status.code != VL_UNSUPPORTED) return status;
    if (status.code == VL_OK && !is_known(device, primitive))
      status = vl_error(VL_UNSUPPORTED, "cpu: the library wants %s of %s in %s", node->op->name, node->scope,
                        cpu_layout_name(device, primitive->layouts[DATA]));
    if (status.code == VL_OK && (!chosen || !primitive->is_reference)) chosen = primitive;
  }
  if (!chosen) return status;
  for (int32_t i = 0; i < OPERANDS; ++i)
    *layout_at(inputs, outputs, sources[i]) = chosen->layouts[i];
  if (has_bias(node)) inputs[2] = LAYOUT_PLAIN;
  return vl_ok();
}

/* A plain activation is a starting point, not a wish: few channels stay plain by the library's own choice,
 * and many are worth a copy. */
static LayoutId wish(CpuDevice *device, LayoutId layout) {
  return cpu_layout_is_activation(device, layout) ? layout : LAYOUT_ANY;
}

static Status choose_forward(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  if (cpu_conv_narrow_choose(device, node, inputs, outputs)) return vl_ok();
  LayoutId x = wish(device, inputs[0]), y = wish(device, outputs[0]);
  LayoutId last = cpu_layout_channels_last(device, node->inputs[0]->rank);
  LayoutId candidates[][OPERANDS] = {{x, LAYOUT_ANY, y != LAYOUT_ANY ? y : x},
                                     {x, LAYOUT_ANY, LAYOUT_ANY},
                                     {LAYOUT_ANY, LAYOUT_ANY, LAYOUT_ANY},
                                     {last, LAYOUT_ANY, last}};
  return choose(device, node, &forward_kind, forward_sources, candidates, 4, inputs, outputs);
}

static Status choose_backward_data(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  if (cpu_conv_narrow_choose(device, node, inputs, outputs)) return vl_ok();
  LayoutId dy = wish(device, inputs[0]), dx = outputs[0] != LAYOUT_ANY ? outputs[0] : dy;
  LayoutId last = cpu_layout_channels_last(device, node->inputs[0]->rank);
  LayoutId candidates[][OPERANDS] = {{dx, LAYOUT_ANY, dy},
                                     {LAYOUT_ANY, LAYOUT_ANY, dy},
                                     {LAYOUT_ANY, LAYOUT_ANY, LAYOUT_ANY},
                                     {last, LAYOUT_ANY, last}};
  return choose(device, node, &backward_data_kind, backward_data_sources, candidates, 4, inputs, outputs);
}

/* Weight gradients of volumes less deep than the window, in bf16 and in blocks, are wrong in oneDNN 3.2: of
 * depth 2 the first channels already. In plain layouts they are right. */
static bool is_wrong_in_blocks(const Node *node) {
  const Tensor *x = node->inputs[0], *dw = node->outputs[0];
  return x->rank == 5 && x->dtype == DTYPE_BF16 && x->shape[2] < dw->shape[2] &&
         !cpu_conv_weights_takes(node);
}

static Status choose_backward_weights(CpuDevice *device, const Node *node, LayoutId *inputs,
                                      LayoutId *outputs) {
  if (cpu_conv_narrow_choose(device, node, inputs, outputs)) return vl_ok();
  LayoutId x = inputs[0], dy = inputs[1], dw = outputs[0], family = wish(device, dy);
  LayoutId last = cpu_layout_channels_last(device, node->inputs[0]->rank);
  for (int32_t i = CONV_WEIGHTS_MEAN; i < node->input_count; i++)
    inputs[i] = LAYOUT_PLAIN;
  LayoutId plain[][OPERANDS] = {{LAYOUT_PLAIN, LAYOUT_ANY, LAYOUT_PLAIN}};
  if (is_wrong_in_blocks(node))
    return choose(device, node, &backward_weights_kind, backward_weights_sources, plain, 1, inputs, outputs);
  LayoutId candidates[][OPERANDS] = {{x, dw, dy},
                                     {x, LAYOUT_ANY, dy},
                                     {family, dw, family},
                                     {family, LAYOUT_ANY, family},
                                     {LAYOUT_ANY, LAYOUT_ANY, LAYOUT_ANY},
                                     {last, LAYOUT_ANY, last}};
  return choose(device, node, &backward_weights_kind, backward_weights_sources, candidates, 6, inputs,
                outputs);
}

Status cpu_conv_gradient_layout(CpuDevice *device, const Node *node, LayoutId *layout) {
  const Tensor *weights = node->inputs[0];
  PrimitiveSpec spec;
  Primitive *primitive;
  memset(&spec, 0, sizeof spec);
  spec.kind = &backward_weights_kind;
  spec.operand_count = OPERANDS;
  int64_t groups = node->params.groups > 1 ? node->params.groups : 1;
  cpu_operand_set(&spec.operands[WEIGHTS], weights, LAYOUT_ANY, groups);
  PrimitiveOperand *data = &spec.operands[DATA], *result = &spec.operands[RESULT];
  /* Any size will do: a square no smaller than the window, kept by padding. */
  data->rank = result->rank = weights->rank;
  data->groups = result->groups = 1;
  data->dtype = result->dtype = (int32_t)node->outputs[0]->dtype;
  data->layout = groups == 1 && weights->shape[1] < 4 ? LAYOUT_PLAIN : LAYOUT_ANY; /* images */
  result->layout = LAYOUT_ANY;
  data->shape[0] = result->shape[0] = 1;
  data->shape[1] = weights->shape[1] * groups;
  result->shape[1] = weights->shape[0];
  for (int32_t i = 2; i < weights->rank; ++i) {
    data->shape[i] = 32 + weights->shape[i];
    result->shape[i] = data->shape[i] + 1 - weights->shape[i] + weights->shape[i] / 2 * 2;
    spec.stride[i - 2] = 1;
    spec.padding[i - 2] = weights->shape[i] / 2;
  }
  Status status = cpu_primitive_find(device, &spec, node, &primitive);
  *layout = status.code == VL_OK && !primitive->is_reference ? primitive->layouts[WEIGHTS] : LAYOUT_PLAIN;
  return status.code == VL_UNSUPPORTED ? vl_ok() : status;
}

static Status prepare(CpuDevice *device, Kernel *kernel, const PrimitiveKind *kind, const int32_t *sources) {
  PrimitiveSpec spec;
  LayoutId layouts[OPERANDS];
  for (int32_t i = 0; i < OPERANDS; ++i)
    layouts[i] = *layout_at(kernel->inputs, kernel->outputs, sources[i]);
  fill_spec(kernel->node, kind, sources, layouts, &spec);
  return cpu_primitive_prepare(device, kernel, &spec, sources);
}

/* ---- Own kernels ---------------------------------------------------------------------------------------------- */

/* What takes a kernel over, its layouts chosen. */
typedef struct OwnKernel {
  bool (*applies)(CpuDevice *device, const Kernel *kernel);
  CpuOp op;
} OwnKernel;

static const OwnKernel by_groups = {
    cpu_conv_narrow_applies,
    {.name = "conv by groups", .prepare = cpu_conv_narrow_prepare, .launch = cpu_conv_narrow_launch}};
static const OwnKernel by_tiles = {
    cpu_conv_winograd_applies,
    {.name = "conv by tiles", .prepare = cpu_conv_winograd_prepare, .launch = cpu_conv_winograd_launch}};
static const OwnKernel by_points = {
    cpu_conv_pointwise_applies,
    {.name = "conv by points", .prepare = cpu_conv_pointwise_prepare, .launch = cpu_conv_pointwise_launch}};
static const OwnKernel by_taps = {
    cpu_conv_weights_applies,
    {.name = "conv weights by taps", .prepare = cpu_conv_weights_prepare, .launch = cpu_conv_weights_launch}};

/* The first that applies. */
static const OwnKernel *const own_outputs[] = {&by_groups, &by_tiles, &by_points};
static const OwnKernel *const own_weights[] = {&by_groups, &by_tiles, &by_taps};

static bool take_over(CpuDevice *device, Kernel *kernel, const OwnKernel *const *own, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!own[i]->applies(device, kernel)) continue;
    kernel->op = &own[i]->op;
    return true;
  }
  return false;
}
static bool has_own_outputs(CpuDevice *device, Kernel *kernel) {
  return take_over(device, kernel, own_outputs, sizeof own_outputs / sizeof *own_outputs);
}
static bool has_own_weights(CpuDevice *device, Kernel *kernel) {
  return take_over(device, kernel, own_weights, sizeof own_weights / sizeof *own_weights);
}

static Status prepare_forward(CpuDevice *device, Kernel *kernel) {
  if (!has_bias(kernel->node) && has_own_outputs(device, kernel)) return kernel->op->prepare(device, kernel);
  return prepare(device, kernel, &forward_kind, forward_sources);
}

static Status prepare_backward_data(CpuDevice *device, Kernel *kernel) {
  if (has_own_outputs(device, kernel)) return kernel->op->prepare(device, kernel);
  return prepare(device, kernel, &backward_data_kind, backward_data_sources);
}

/* Weights gradient of a normalised x where the library computes it: x is normalised into the workspace first.
 */
typedef struct NormalisedWeights {
  Kernel library; /* the node, reading from the workspace */
  ChannelView x;
  int64_t x_bytes, coefficients_bytes;
} NormalisedWeights;

static Status prepare_normalised(CpuDevice *device, Kernel *kernel) {
  const Tensor *x = kernel->node->inputs[DATA];
  NormalisedWeights *own = vl_allocate(sizeof *own);
  own->library = *kernel;
  kernel->data = own;
  VL_TRY(prepare(device, &own->library, &backward_weights_kind, backward_weights_sources));
  VL_TRY(cpu_channel_view(device, kernel->inputs[DATA], x, &own->x));
  int64_t elements = cpu_padded_elements(device, kernel->inputs[DATA], x);
  own->x_bytes = vector_by_lines(elements) * (x->dtype == DTYPE_BF16 ? 2 : 4);
  own->coefficients_bytes = 4 * batch_norm_coefficients(&own->x);
  kernel->workspace_bytes = own->x_bytes + own->coefficients_bytes + own->library.workspace_bytes;
  memcpy(kernel->implementation, own->library.implementation, sizeof kernel->implementation);
  return vl_ok();
}

static Status build_normalised(CpuDevice *device, Kernel *kernel) {
  NormalisedWeights *own = kernel->data;
  return cpu_primitive_build(device, &own->library);
}

static Status launch_normalised(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                uintptr_t workspace, const LaunchContext *context) {
  const NormalisedWeights *own = kernel->data;
  uintptr_t coefficients = workspace + (uintptr_t)own->x_bytes;
  VectorArray none = {NULL, DTYPE_F32}, y = {(void *)workspace, kernel->node->inputs[DATA]->dtype};
  batch_norm_whole(kernel, &own->x, inputs, CONV_WEIGHTS_MEAN, none, y, (float *)coefficients);
  uintptr_t normalised[] = {workspace, inputs[1]};
  return cpu_primitive_launch(&own->library, normalised, outputs,
                              coefficients + (uintptr_t)own->coefficients_bytes, context);
}

static void destroy_normalised(CpuDevice *device, Kernel *kernel) {
  NormalisedWeights *own = kernel->data;
  if (!own) return;
  cpu_primitive_destroy(device, &own->library);
  free(own->library.data);
}

static const CpuOp normalised_backward_weights = {
    "conv_backward_weights", supports,          choose_backward_weights, prepare_normalised,
    build_normalised,        launch_normalised, destroy_normalised};

static Status prepare_backward_weights(CpuDevice *device, Kernel *kernel) {
  if (has_own_weights(device, kernel)) return kernel->op->prepare(device, kernel);
  if (kernel->node->input_count > CONV_WEIGHTS_MEAN) {
    kernel->op = &normalised_backward_weights;
    return prepare_normalised(device, kernel);
  }
  return prepare(device, kernel, &backward_weights_kind, backward_weights_sources);
}

const CpuOp cpu_op_conv = {"conv",
                           supports,
                           choose_forward,
                           prepare_forward,
                           cpu_primitive_build,
                           cpu_primitive_launch,
                           cpu_primitive_destroy};
const CpuOp cpu_op_conv_backward_data = {"conv_backward_data", supports,
                                         choose_backward_data, prepare_backward_data,
                                         cpu_primitive_build,  cpu_primitive_launch,
                                         cpu_primitive_destroy};
const CpuOp cpu_op_conv_backward_weights = {"conv_backward_weights", supports,
                                            choose_backward_weights, prepare_backward_weights,
                                            cpu_primitive_build,     cpu_primitive_launch,
                                            cpu_primitive_destroy};
