/* f16, for which the device has no kernels: every node that has an f16 tensor is run by its twin in f32, the
 * same node and layouts. f16 inputs are converted into buffers of the twin, and each f16 output is rounded
 * once from where the twin left it: f16 inputs, f32 in between, one rounding a result, overflow to infinity.
 * Buffers and the twin's own workspace are the kernel's workspace.
 *
 * Conversions are integer arithmetic, so that they are the same on every instruction set. */
#include "kernels/cpu/emulate_f16.h"
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <string.h>

/* ---- Conversion ------------------------------------------------------------------------------------------- */

/* As vl_f32_from_f16. */
VECTOR_INLINE float float_of_f16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000U) << 16, magnitude = half & 0x7FFFU;
  float small = (float)(int32_t)magnitude * 0x1p-24F; /* zero and subnormals, exactly */
  uint32_t bits;
  memcpy(&bits, &small, sizeof bits);
  uint32_t normal = (magnitude << 13) + (112U << 23);
  uint32_t large = magnitude << 13 | 0x7F800000U; /* infinity and NaN */
  bits = magnitude < 0x0400U ? bits : magnitude < 0x7C00U ? normal : large;
  return vector_float_of_bits(sign | bits);
}

/* As vl_f16_from_f32: to nearest, ties to even. */
VECTOR_INLINE uint16_t f16_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7FFFFFFFU;
  /* The sum's last bit is 2^-24, a subnormal's unit: the addition rounds. */
  float shifted = vector_float_of_bits(magnitude < 0x38800000U ? magnitude : 0) + 0.5F;
  uint32_t small;
  memcpy(&small, &shifted, sizeof small);
  small -= 0x3F000000U;
  /* A carry out of the mantissa is the next binade, and out of the largest one infinity. */
  uint32_t normal = (magnitude - (112U << 23) + 0x0FFFU + (magnitude >> 13 & 1U)) >> 13;
  uint32_t nan = 0x7E00U | (magnitude >> 13 & 0x01FFU);
  uint32_t half = magnitude < 0x38800000U    ? small
                  : magnitude < 0x47800000U  ? normal
                  : magnitude <= 0x7F800000U ? 0x7C00U
                                             : nan;
  return (uint16_t)(sign | half);
}

VECTOR_CLONES
static void f32_from_f16(float *restrict to, const uint16_t *restrict from, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    to[i] = float_of_f16(from[i]);
}

VECTOR_CLONES
static void f16_from_f32(uint16_t *restrict to, const float *restrict from, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    to[i] = f16_of_float(from[i]);
}

/* How many of the values are zero in f16 and were not. */
VECTOR_CLONES
static int64_t count_flushed(const uint16_t *restrict to, const float *restrict from, int64_t count) {
  int64_t flushed = 0;
  for (int64_t i = 0; i < count; i++)
    flushed += (to[i] & 0x7FFFU) == 0 && from[i] != 0.0F;
  return flushed;
}

typedef enum Direction { TO_F32 = 0, TO_F16 } Direction;

static void convert(const Kernel *kernel, Direction direction, uintptr_t half, uintptr_t single,
                    int64_t count) {
  int64_t tiles = (count + VECTOR_TILE - 1) / VECTOR_TILE;
  int32_t threads = vector_threads(kernel, count);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(tiles, omp_get_num_threads(), omp_get_thread_num());
    int64_t begin = share.begin * VECTOR_TILE, end = share.end * VECTOR_TILE;
    if (end > count) end = count;
    if (end > begin && direction == TO_F32)
      f32_from_f16((float *)single + begin, (const uint16_t *)half + begin, end - begin);
    if (end > begin && direction == TO_F16)
      f16_from_f32((uint16_t *)half + begin, (const float *)single + begin, end - begin);
  }
}

void cpu_f32_from_f16(float *to, const uint16_t *from, int64_t count) { f32_from_f16(to, from, count); }
void cpu_f16_from_f32(uint16_t *to, const float *from, int64_t count) { f16_from_f32(to, from, count); }

/* ---- Twins ------------------------------------------------------------------------------------------------- */

enum { OPERANDS = VL_MAX_INPUTS + VL_MAX_OUTPUTS };

/* A node whose f16 tensors are f32. Other tensors are the node's own. */
typedef struct Twin {
  Node node;
  Tensor tensors[OPERANDS];
  Storage storages[OPERANDS];
} Twin;

static bool is_f16(const Tensor *tensor) { return tensor && tensor->dtype == DTYPE_F16; }

bool cpu_needs_f16(const Node *node) {
  bool any = false;
  for (int32_t i = 0; i < node->input_count; i++)
    any = any || is_f16(node->inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++)
    any = any || is_f16(node->outputs[i]);
  return any;
}

static void widen(Twin *twin, int32_t slot, Tensor **tensor) {
  if (!is_f16(*tensor)) return;
  twin->storages[slot] = *(*tensor)->storage;
  twin->storages[slot].dtype = DTYPE_F32;
  twin->tensors[slot] = **tensor;
  twin->tensors[slot].dtype = DTYPE_F32;
  twin->tensors[slot].storage = &twin->storages[slot];
  *tensor = &twin->tensors[slot];
}

static void make_twin(const Node *node, Twin *twin) {
  twin->node = *node;
  for (int32_t i = 0; i < node->input_count; i++)
    widen(twin, i, &twin->node.inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++)
    widen(twin, VL_MAX_INPUTS + i, &twin->node.outputs[i]);
  if (twin->node.params.dtype == DTYPE_F16) twin->node.params.dtype = DTYPE_F32;
}

static Status supports(CpuDevice *device, const Node *node) {
  Twin twin;
  make_twin(node, &twin);
  return device->device.interface->supports(&device->device, &twin.node);
}

static Status choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  Twin twin;
  make_twin(node, &twin);
  return device->device.interface->choose_layouts(&device->device, &twin.node, inputs, outputs);
}

/* ---- The kernel ----------------------------------------------------------------------------------------------- */

/* Where an f16 operand is in f32 while the twin runs. */
typedef struct Buffer32 {
  int64_t offset;   /* in the workspace */
  int64_t elements; /* 0: not an f16 operand */
} Buffer32;

typedef struct Emulation {
  Twin twin;
  Kernel *kernel; /* of the twin */
  Buffer32 inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  int64_t own_offset; /* of the twin's own workspace */
} Emulation;

static Buffer32 cut(Kernel *kernel, CpuDevice *device, LayoutId layout, const Tensor *tensor) {
  Buffer32 buffer = {.offset = kernel->workspace_bytes,
                     .elements = cpu_padded_elements(device, layout, tensor)};
  kernel->workspace_bytes += vector_by_lines(buffer.elements) * (int64_t)sizeof(float);
  return buffer;
}

/* What an op updates is its input's storage: one buffer for both. */
static int32_t updated_input(const Node *node, const Tensor *output) {
  for (int32_t i = 0; i < node->input_count; i++)
    if (is_f16(node->inputs[i]) && node->inputs[i]->storage == output->storage) return i;
  return -1;
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  Emulation *own = vl_allocate(sizeof *own);
  kernel->data = own;
  make_twin(node, &own->twin);
  VL_TRY(device->device.interface->prepare(&device->device, &own->twin.node, kernel->inputs, kernel->outputs,
                                           &own->kernel));
  for (int32_t i = 0; i < node->input_count; i++)
    if (is_f16(node->inputs[i])) own->inputs[i] = cut(kernel, device, kernel->inputs[i], node->inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++) {
    if (!is_f16(node->outputs[i])) continue;
    int32_t updated = updated_input(node, node->outputs[i]);
    own->outputs[i] =
        updated >= 0 ? own->inputs[updated] : cut(kernel, device, kernel->outputs[i], node->outputs[i]);
  }
  own->own_offset = kernel->workspace_bytes;
  kernel->workspace_bytes += own->kernel->workspace_bytes;
  snprintf(kernel->implementation, sizeof kernel->implementation, "f16 by %.55s",
           own->kernel->implementation);
  return vl_ok();
}

static Status build(CpuDevice *device, Kernel *kernel) {
  const Emulation *own = kernel->data;
  return device->device.interface->build(&device->device, own->kernel);
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  const Emulation *own = kernel->data;
  uintptr_t from[VL_MAX_INPUTS] = {0}, to[VL_MAX_OUTPUTS] = {0};
  for (int32_t i = 0; i < kernel->node->input_count; i++) {
    const Buffer32 *buffer = &own->inputs[i];
    from[i] = buffer->elements > 0 ? workspace + (uintptr_t)buffer->offset : inputs[i];
    if (buffer->elements > 0) convert(kernel, TO_F32, inputs[i], from[i], buffer->elements);
  }
  for (int32_t i = 0; i < kernel->node->output_count; i++)
    to[i] = own->outputs[i].elements > 0 ? workspace + (uintptr_t)own->outputs[i].offset : outputs[i];
  VL_TRY(own->kernel->op->launch(own->kernel, from, to, workspace + (uintptr_t)own->own_offset, context));
  for (int32_t i = 0; i < kernel->node->output_count; i++) {
    int64_t count = own->outputs[i].elements;
    if (count == 0) continue;
    convert(kernel, TO_F16, outputs[i], to[i], count);
    if (!context->rounding) continue;
    context->rounding->values += count;
    context->rounding->flushed += count_flushed((const uint16_t *)outputs[i], (const float *)to[i], count);
  }
  return vl_ok();
}

static void destroy(CpuDevice *device, Kernel *kernel) {
  Emulation *own = kernel->data;
  if (own) device->device.interface->kernel_destroy(&device->device, &own->kernel);
}

const CpuOp cpu_op_emulate_f16 = {
    .name = "f16",
    .supports = supports,
    .choose_layouts = choose,
    .prepare = prepare,
    .build = build,
    .launch = launch,
    .destroy = destroy,
};
