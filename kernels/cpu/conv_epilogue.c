/* A convolution with bias, residual addition and ReLU on oneDNN, which adds and clips each sum as it is made
 * (post-ops). The residual is what the result's memory holds: where a pass has not put one over the other, it
 * is copied there first. Layouts as in conv.c: activations stay in the family they come in.
 *
 * Where an own kernel makes the sums in about half the library's time (conv_winograd.h, conv_narrow.h) it
 * makes these too, and bias and ReLU follow in a pass over the result; not beside a residual, which would
 * have to be kept. */
#include "kernels/cpu/batch_norm.h"
#include "kernels/cpu/conv_narrow.h"
#include "kernels/cpu/conv_winograd.h"
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { DATA = 0, WEIGHTS, RESULT, BIAS, OPERANDS };
enum { INPUT_BIAS = 2, INPUT_RESIDUAL };

static const dnnl_dims_t no_dilation = {0, 0, 0};

static dnnl_status_t append_steps(dnnl_post_ops_t steps, bool adds, bool relu) {
  dnnl_status_t status = adds ? dnnl_post_ops_append_sum(steps, 1.0F, 0, dnnl_data_type_undef) : dnnl_success;
  if (status == dnnl_success && relu)
    status = dnnl_post_ops_append_eltwise(steps, dnnl_eltwise_relu, 0.0F, 0.0F);
  return status;
}

/* The device's attributes and what follows the sum. */
static dnnl_status_t make_attributes(CpuDevice *device, bool adds, bool relu,
                                     dnnl_primitive_attr_t *attributes) {
  dnnl_post_ops_t steps = NULL;
  dnnl_status_t status = dnnl_primitive_attr_clone(attributes, device->attributes);
  if (status == dnnl_success) status = dnnl_post_ops_create(&steps);
  if (status == dnnl_success) status = append_steps(steps, adds, relu);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attributes, steps);
  if (steps) dnnl_post_ops_destroy(steps);
  return status;
}

static dnnl_status_t create(CpuDevice *device, const PrimitiveSpec *spec, const dnnl_memory_desc_t *mds,
                            bool relu, dnnl_primitive_desc_t *descriptor) {
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_status_t status = make_attributes(device, spec->adds != 0, relu, &attributes);
  if (status == dnnl_success)
    status = dnnl_convolution_forward_primitive_desc_create(
        descriptor, device->engine, dnnl_forward_inference, dnnl_convolution_direct, mds[DATA], mds[WEIGHTS],
        mds[BIAS], mds[RESULT], spec->stride, no_dilation, spec->padding, spec->padding, attributes);
  if (attributes) dnnl_primitive_attr_destroy(attributes);
  return status;
}

static dnnl_status_t create_linear(CpuDevice *device, const PrimitiveSpec *spec,
                                   const dnnl_memory_desc_t *mds, dnnl_primitive_desc_t *descriptor) {
  return create(device, spec, mds, false, descriptor);
}

static dnnl_status_t create_relu(CpuDevice *device, const PrimitiveSpec *spec, const dnnl_memory_desc_t *mds,
                                 dnnl_primitive_desc_t *descriptor) {
  return create(device, spec, mds, true, descriptor);
}

/* The bias is weights 1 to a query. */
#define KIND(creates)                                                                                        \
  {                                                                                                          \
    "convolution with its epilogue", creates,                                                                \
        {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md, dnnl_query_weights_md},                \
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS}, {                                     \
      0, 0, 0, 1                                                                                             \
    }                                                                                                        \
  }
static const PrimitiveKind linear_kind = KIND(create_linear), relu_kind = KIND(create_relu);

static const int32_t sources[OPERANDS] = {0, 1, OPERAND_OUTPUT, INPUT_BIAS};

static bool has_residual(const Node *node) {
  return node->input_count > INPUT_RESIDUAL && node->inputs[INPUT_RESIDUAL] != NULL;
}

static Status supports(CpuDevice *device, const Node *node) {
  VL_TRY(cpu_supports_f32_bf16(device, node));
  if (node->inputs[0]->dtype == node->inputs[1]->dtype) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cpu: %s of %s on %s and %s; accepted: both f32 or both bf16",
                  node->op->name, node->scope, vl_dtype_name(node->inputs[0]->dtype),
                  vl_dtype_name(node->inputs[1]->dtype));
}

/* layouts: of data, weights and result. */
static void fill_spec(const Node *node, const LayoutId *layouts, PrimitiveSpec *spec) {
  int64_t groups = node->params.groups > 1 ? node->params.groups : 1;
  memset(spec, 0, sizeof *spec);
  spec->kind = node->params.relu ? &relu_kind : &linear_kind;
  spec->operand_count = OPERANDS;
  spec->adds = has_residual(node);
  cpu_operand_set(&spec->operands[DATA], node->inputs[0], layouts[DATA], 1);
  cpu_operand_set(&spec->operands[WEIGHTS], node->inputs[1], layouts[WEIGHTS], groups);
  cpu_operand_set(&spec->operands[RESULT], node->outputs[0], layouts[RESULT], 1);
  cpu_operand_set(&spec->operands[BIAS], node->inputs[INPUT_BIAS], LAYOUT_PLAIN, 1);
  for (int32_t i = 0; i < node->inputs[0]->rank - 2; ++i) {
    spec->stride[i] = node->params.stride[i];
    spec->padding[i] = node->params.padding[i];
  }
}

/* A plain activation is a starting point, not a wish. */
static LayoutId wish(CpuDevice *device, LayoutId layout) {
  return cpu_layout_is_activation(device, layout) ? layout : LAYOUT_ANY;
}

/* The convolution alone. */
static Node bare_node(const Node *node) {
  Node bare = *node;
  bare.op = vl_op_find("conv");
  bare.input_count = INPUT_BIAS;
  return bare;
}

static bool choose_own(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  Node bare = bare_node(node);
  if (has_residual(node) || !cpu_conv_narrow_choose(device, &bare, inputs, outputs)) return false;
  inputs[INPUT_BIAS] = LAYOUT_PLAIN;
  return true;
}

static Status choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  if (choose_own(device, node, inputs, outputs)) return vl_ok();
  LayoutId x = wish(device, inputs[0]), y = wish(device, outputs[0]);
  if (y == LAYOUT_ANY && has_residual(node)) y = wish(device, inputs[INPUT_RESIDUAL]);
  LayoutId candidates[][BIAS] = {{x, LAYOUT_ANY, y != LAYOUT_ANY ? y : x},
                                 {x, LAYOUT_ANY, LAYOUT_ANY},
                                 {LAYOUT_ANY, LAYOUT_ANY, LAYOUT_ANY}};
  Primitive *chosen = NULL;
  Status status = vl_ok();
  for (size_t i = 0; i < sizeof candidates / sizeof *candidates && (!chosen || chosen->is_reference); ++i) {
    PrimitiveSpec spec;
    Primitive *primitive = NULL;
    fill_spec(node, candidates[i], &spec);
    status = cpu_primitive_find(device, &spec, node, &primitive);
    if (status.code != VL_OK && status.code != VL_UNSUPPORTED) return status;
    if (status.code == VL_OK && (!chosen || !primitive->is_reference)) chosen = primitive;
  }
  if (!chosen) return status;
  inputs[0] = chosen->layouts[DATA];
  inputs[1] = chosen->layouts[WEIGHTS];
  inputs[INPUT_BIAS] = LAYOUT_PLAIN;
  outputs[0] = chosen->layouts[RESULT];
  if (has_residual(node)) inputs[INPUT_RESIDUAL] = outputs[0];
  return vl_ok();
}

static Status prepare_primitive(CpuDevice *device, Kernel *kernel) {
  PrimitiveSpec spec;
  LayoutId layouts[] = {kernel->inputs[0], kernel->inputs[1], kernel->outputs[0]};
  fill_spec(kernel->node, layouts, &spec);
  return cpu_primitive_prepare(device, kernel, &spec, sources);
}

/* ---- Onto a residual ---------------------------------------------------------------------------------------- */

typedef struct Adding {
  Kernel library; /* the node, adding to its result */
  int64_t bytes;  /* of the residual and the result */
} Adding;

static Status prepare_adding(CpuDevice *device, Kernel *kernel) {
  const Tensor *y = kernel->node->outputs[0];
  if (kernel->inputs[INPUT_RESIDUAL] != kernel->outputs[0])
    return vl_error(VL_INTERNAL, "cpu: conv_epilogue of %s: the residual's layout is not the result's",
                    kernel->node->scope);
  Adding *own = vl_allocate(sizeof *own);
  own->library = *kernel;
  own->bytes = vl_dtype_bytes(y->dtype, cpu_padded_elements(device, kernel->outputs[0], y));
  kernel->data = own;
  VL_TRY(prepare_primitive(device, &own->library));
  kernel->workspace_bytes = own->library.workspace_bytes;
  memcpy(kernel->implementation, own->library.implementation, sizeof kernel->implementation);
  return vl_ok();
}

static Status build_adding(CpuDevice *device, Kernel *kernel) {
  Adding *own = kernel->data;
  return cpu_primitive_build(device, &own->library);
}

static void copy_residual(const Kernel *kernel, uintptr_t to, uintptr_t from, int64_t bytes) {
  int64_t lines = (bytes + 63) / 64;
  int32_t threads = vector_threads(kernel, bytes / 4);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(lines, omp_get_num_threads(), omp_get_thread_num());
    int64_t begin = share.begin * 64, end = share.end * 64 < bytes ? share.end * 64 : bytes;
    if (end > begin)
      memcpy((void *)(to + (uintptr_t)begin), (const void *)(from + (uintptr_t)begin), (size_t)(end - begin));
  }
}

static Status launch_adding(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                            uintptr_t workspace, const LaunchContext *context) {
  const Adding *own = kernel->data;
  if (inputs[INPUT_RESIDUAL] != outputs[0])
    copy_residual(kernel, outputs[0], inputs[INPUT_RESIDUAL], own->bytes);
  return cpu_primitive_launch(&own->library, inputs, outputs, workspace, context);
}

static void destroy_adding(CpuDevice *device, Kernel *kernel) {
  Adding *own = kernel->data;
  if (!own) return;
  cpu_primitive_destroy(device, &own->library);
  free(own->library.data);
}

static const CpuOp adding_op = {"conv_epilogue", supports,      choose,        prepare_adding,
                                build_adding,    launch_adding, destroy_adding};

/* ---- After an own kernel ------------------------------------------------------------------------------------ */

extern const CpuOp cpu_op_conv;

typedef struct Following {
  Node node;   /* the convolution alone */
  Kernel sums; /* of it; its op is the own one */
  ChannelView y;
} Following;

/* Whether an own kernel makes these sums, worth a pass more. */
static bool takes_over(CpuDevice *device, const Kernel *kernel, Following *own) {
  own->node = bare_node(kernel->node);
  own->sums = *kernel;
  own->sums.node = &own->node;
  own->sums.op = &cpu_op_conv;
  return !has_residual(kernel->node) &&
         (cpu_conv_narrow_applies(device, &own->sums) || cpu_conv_winograd_applies(device, &own->sums));
}

static Status prepare_following(CpuDevice *device, Kernel *kernel) {
  Following *own = vl_allocate(sizeof *own);
  (void)takes_over(device, kernel, own);
  kernel->data = own;
  VL_TRY(cpu_op_conv.prepare(device, &own->sums));
  VL_TRY(cpu_channel_view(device, kernel->outputs[0], kernel->node->outputs[0], &own->y));
  kernel->workspace_bytes = 4 * batch_norm_coefficients(&own->y) + own->sums.workspace_bytes;
  memcpy(kernel->implementation, own->sums.implementation, sizeof kernel->implementation);
  return vl_ok();
}

/* As a norm's: no mean, a scale of 1, and zero in the padding. */
static BatchNormCoefficients fill_coefficients(const ChannelView *view, VectorArray bias, Range channels,
                                               float *to) {
  int64_t padded = vector_by_lines(vector_channels(view));
  for (int64_t c = channels.begin; c < channels.end; c++) {
    to[c] = 0.0F;
    to[padded + c] = c < view->channels ? 1.0F : 0.0F;
    to[2 * padded + c] = c < view->channels ? vector_element(bias, c) : 0.0F;
  }
  return (BatchNormCoefficients){to, to + padded, to + 2 * padded};
}

static void add_bias(const Kernel *kernel, const ChannelView *view, VectorArray bias, VectorArray y,
                     float *coefficients) {
  BatchNormRelu relu = batch_norm_relu(kernel->node->params.relu != 0, 0.0);
  VectorArray none = {NULL, DTYPE_F32};
  int32_t wanted = vector_threads(kernel, view->n * view->spatial * vector_channels(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    Range channels = vector_share(vector_channels(view), threads, thread);
    BatchNormCoefficients all = fill_coefficients(view, bias, channels, coefficients);
#pragma omp barrier
    VectorPart part = {{0, view->channel_blocks}, vector_share(view->n * view->spatial, threads, thread)};
    batch_norm_normalise(view, all, y, y, none, relu, part);
  }
}

static Status launch_following(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) {
  const Following *own = kernel->data;
  uintptr_t of_sums = workspace + (uintptr_t)(4 * batch_norm_coefficients(&own->y));
  VL_TRY(own->sums.op->launch(&own->sums, inputs, outputs, of_sums, context));
  add_bias(kernel, &own->y, vector_input(kernel, inputs, INPUT_BIAS), vector_output(kernel, outputs, 0),
           (float *)workspace);
  return vl_ok();
}

static Status build_following(CpuDevice *device, Kernel *kernel) {
  Following *own = kernel->data;
  return own->sums.op->build ? own->sums.op->build(device, &own->sums) : vl_ok();
}

static void destroy_following(CpuDevice *device, Kernel *kernel) {
  Following *own = kernel->data;
  if (!own) return;
  if (own->sums.op->destroy) own->sums.op->destroy(device, &own->sums);
  free(own->sums.data);
}

static const CpuOp following_op = {"conv_epilogue", supports,         choose,           prepare_following,
                                   build_following, launch_following, destroy_following};

static Status prepare(CpuDevice *device, Kernel *kernel) {
  Following own;
  if (takes_over(device, kernel, &own)) {
    kernel->op = &following_op;
    return prepare_following(device, kernel);
  }
  if (!has_residual(kernel->node)) return prepare_primitive(device, kernel);
  kernel->op = &adding_op;
  return prepare_adding(device, kernel);
}

const CpuOp cpu_op_conv_epilogue = {
    "conv_epilogue",      supports, choose, prepare, cpu_primitive_build, cpu_primitive_launch,
    cpu_primitive_destroy};
