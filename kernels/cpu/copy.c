/* Conversion of element type and layout in one pass: `cast` and `copy`, by oneDNN's reorder but where it is
 * slow (weight_cast.c). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"
#include "kernels/cpu/weight_cast.h"
#include <stdlib.h>
#include <string.h>

static dnnl_status_t create(CpuDevice *device, const PrimitiveSpec *spec, const dnnl_memory_desc_t *mds,
                            dnnl_primitive_desc_t *descriptor) {
  (void)spec;
  return dnnl_reorder_primitive_desc_create(descriptor, mds[0], device->engine, mds[1], device->engine,
                                            device->attributes);
}

static const PrimitiveKind kind = {
    "reorder", create, {dnnl_query_src_md, dnnl_query_dst_md}, {DNNL_ARG_FROM, DNNL_ARG_TO}, {0}};
static const int32_t sources[] = {0, OPERAND_OUTPUT};

void cpu_reorder_spec(CpuDevice *device, const Tensor *from, LayoutId from_layout, const Tensor *to,
                      LayoutId to_layout, PrimitiveSpec *spec) {
  int64_t groups = cpu_layout_groups(device, from_layout);
  if (groups == 1) groups = cpu_layout_groups(device, to_layout);
  memset(spec, 0, sizeof *spec);
  spec->kind = &kind;
  spec->operand_count = 2;
  cpu_operand_set(&spec->operands[0], from, from_layout, groups);
  cpu_operand_set(&spec->operands[1], to, to_layout, groups);
}

static bool is_accepted(const Tensor *tensor) {
  return tensor->dtype == DTYPE_F32 || tensor->dtype == DTYPE_BF16;
}

/* Whole numbers are copied, never converted; 64 bits are none of the library's. */
static Status supports(CpuDevice *device, const Node *node) {
  (void)device;
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  if (!y || (is_accepted(x) && is_accepted(y)) || (x->dtype == y->dtype && !vl_dtype_is_float(x->dtype)))
    return vl_ok();
  return vl_error(VL_UNSUPPORTED,
                  "cpu: %s of %s from %s to %s; accepted: f32 and bf16 into each other, whole "
                  "numbers into their own type",
                  node->op->name, node->scope, vl_dtype_name(x->dtype), vl_dtype_name(y->dtype));
}

static Status choose_copy(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  (void)node;
  if (inputs[0] == LAYOUT_ANY) inputs[0] = LAYOUT_PLAIN;
  if (outputs[0] == LAYOUT_ANY) outputs[0] = LAYOUT_PLAIN;
  return vl_ok();
}

/* A parameter takes the layout its gradient will come in, and its low-precision twin is left to the first
 * reader; activations stay as they are. */
static Status choose_cast(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  const Tensor *x = node->inputs[0];
  bool weights = x->storage->role == ROLE_PARAMETER && x->rank >= 3;
  if (inputs[0] == LAYOUT_ANY) {
    inputs[0] = LAYOUT_PLAIN;
    if (weights) VL_TRY(cpu_conv_gradient_layout(device, node, &inputs[0]));
  }
  if (outputs[0] == LAYOUT_ANY && !weights) outputs[0] = inputs[0];
  return vl_ok();
}

/* ---- 64-bit whole numbers, which oneDNN does not have: indices of max pooling -------------------------------- */

static int64_t channel_offset(const ChannelView *view, int64_t n, int64_t c, int64_t s) {
  int64_t block = c / view->block;
  return ((n * view->channel_blocks + block) * view->spatial + s) * view->block + c % view->block;
}

void cpu_copy_i64(const ChannelView *from, const ChannelView *to, const int64_t *source, int64_t *target) {
  int64_t padded = to->channel_blocks * to->block;
  for (int64_t n = 0; n < to->n; ++n)
    for (int64_t c = 0; c < padded; ++c)
      for (int64_t s = 0; s < to->spatial; ++s)
        target[channel_offset(to, n, c, s)] = c < to->channels ? source[channel_offset(from, n, c, s)] : 0;
}

/* ---- The kernels ------------------------------------------------------------------------------------------------ */

/* How a node is run when not by the library: as bytes where nothing changes, word by word, or as weights. */
typedef enum CopyWay { COPY_BYTES = 0, COPY_WORDS, COPY_WEIGHTS } CopyWay;

/* Data of the kernels that are not the library's. */
typedef struct OwnCopy {
  CopyWay way;
  int64_t bytes;
  ChannelView from, to;
  WeightCast weights;
} OwnCopy;

static Status launch_own(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context);

static const CpuOp own_copy = {.name = "copy", .launch = launch_own};

/* Between weights of groups and ungrouped ones in blocks, which no descriptor has in one: by way of plain
 * ones in the workspace. */
typedef struct TwoCopies {
  Kernel first, second;
  int64_t plain_bytes;
} TwoCopies;

static bool crosses_groups(CpuDevice *device, const Kernel *kernel) {
  LayoutId from = kernel->inputs[0], to = kernel->outputs[0];
  return from != LAYOUT_PLAIN && to != LAYOUT_PLAIN &&
         cpu_layout_groups(device, from) != cpu_layout_groups(device, to);
}

static Status prepare_two(CpuDevice *device, Kernel *kernel) {
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  TwoCopies *own = vl_allocate(sizeof *own);
  PrimitiveSpec spec;
  own->first = own->second = *kernel;
  kernel->data = own;
  cpu_reorder_spec(device, x, kernel->inputs[0], x, LAYOUT_PLAIN, &spec);
  VL_TRY(cpu_primitive_prepare(device, &own->first, &spec, sources));
  cpu_reorder_spec(device, x, LAYOUT_PLAIN, y, kernel->outputs[0], &spec);
  VL_TRY(cpu_primitive_prepare(device, &own->second, &spec, sources));
  own->plain_bytes = vl_dtype_bytes(x->dtype, vector_by_lines(vl_tensor_elements(x)));
  int64_t scratch = own->first.workspace_bytes;
  if (scratch < own->second.workspace_bytes) scratch = own->second.workspace_bytes;
  kernel->workspace_bytes = own->plain_bytes + scratch;
  return vl_ok();
}

static Status build_two(CpuDevice *device, Kernel *kernel) {
  TwoCopies *own = kernel->data;
  VL_TRY(cpu_primitive_build(device, &own->first));
  return cpu_primitive_build(device, &own->second);
}

static Status launch_two(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context) {
  const TwoCopies *own = kernel->data;
  uintptr_t scratch = workspace + (uintptr_t)own->plain_bytes;
  VL_TRY(cpu_primitive_launch(&own->first, inputs, &workspace, scratch, context));
  return cpu_primitive_launch(&own->second, &workspace, outputs, scratch, context);
}

static void destroy_two(CpuDevice *device, Kernel *kernel) {
  TwoCopies *own = kernel->data;
  if (!own) return;
  cpu_primitive_destroy(device, &own->first);
  cpu_primitive_destroy(device, &own->second);
  free(own->first.data);
  free(own->second.data);
}

static const CpuOp two_copies = {
    .name = "copy", .build = build_two, .launch = launch_two, .destroy = destroy_two};

static Status prepare(CpuDevice *device, Kernel *kernel) {
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  OwnCopy copy = {.way = COPY_BYTES};
  if (x->dtype == y->dtype && kernel->inputs[0] == kernel->outputs[0]) {
    copy.bytes = vl_dtype_bytes(x->dtype, cpu_padded_elements(device, kernel->inputs[0], x));
  } else if (x->dtype == DTYPE_I64) {
    copy.way = COPY_WORDS;
    VL_TRY(cpu_channel_view(device, kernel->inputs[0], x, &copy.from));
    VL_TRY(cpu_channel_view(device, kernel->outputs[0], y, &copy.to));
  } else if (cpu_weight_cast_applies(device, kernel, &copy.weights)) {
    copy.way = COPY_WEIGHTS;
  } else if (crosses_groups(device, kernel)) {
    kernel->op = &two_copies;
    return prepare_two(device, kernel);
  } else {
    PrimitiveSpec spec;
    cpu_reorder_spec(device, x, kernel->inputs[0], y, kernel->outputs[0], &spec);
    return cpu_primitive_prepare(device, kernel, &spec, sources);
  }
  OwnCopy *data = vl_allocate(sizeof *data);
  *data = copy;
  kernel->data = data;
  kernel->op = &own_copy;
  return vl_ok();
}

static void copy_bytes(const Kernel *kernel, int64_t bytes, const char *from, char *to) {
  int64_t threads = kernel->threads, share = (bytes / threads + 63) / 64 * 64;
#pragma omp parallel for num_threads(kernel->threads) schedule(static)
  for (int64_t i = 0; i < threads; ++i) {
    int64_t start = i * share, end = i == threads - 1 ? bytes : start + share;
    if (end > bytes) end = bytes;
    if (start < end) memcpy(to + start, from + start, (size_t)(end - start));
  }
}

static Status launch_own(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const OwnCopy *copy = kernel->data;
  const void *from = (const void *)inputs[0];
  void *to = (void *)outputs[0];
  switch (copy->way) {
  case COPY_WORDS: cpu_copy_i64(&copy->from, &copy->to, from, to); break;
  case COPY_WEIGHTS: {
    int32_t threads = vector_threads(kernel, vl_tensor_elements(kernel->node->inputs[0]));
    cpu_weight_cast_run(&copy->weights, threads, from, to);
    break;
  }
  default: copy_bytes(kernel, copy->bytes, from, to); break;
  }
  return vl_ok();
}

const CpuOp cpu_op_cast = {
    "cast", supports, choose_cast, prepare, cpu_primitive_build, cpu_primitive_launch, cpu_primitive_destroy};
const CpuOp cpu_op_copy = {
    "copy", supports, choose_copy, prepare, cpu_primitive_build, cpu_primitive_launch, cpu_primitive_destroy};
