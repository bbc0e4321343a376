/* Convolutions of few channels a group, forward and both gradients, on volumes and images. Where a group's
 * channels do not fill blocks the library is up to ten times slower than where they do, weight gradients
 * most; bench_conv.c.
 *
 * What is read is packed, a plane of a slab of rows at a time, with zeros around it: channels of the groups
 * that share a block written lie side by side, so that one broadcast gives every lane of a vector its group's
 * channel. Then no product is wasted, whatever lane belongs to whom, and there is no border left to look
 * after in a row. Planes are kept in a ring as deep as the window.
 *
 * Taken are f32 and bf16 in channel blocks of 16, of groups that write 8 channels or whole blocks and read
 * multiples of 8, of which those of a block come from two blocks at most; where both are whole blocks the
 * library is faster. The weights are plain, and so is their gradient. */
#include "kernels/cpu/conv_narrow_parts.h"

#include "kernels/cpu/conv_weights.h"

enum {
  RING_BYTES = 320 << 10, /* in the second-level cache */
  UNITS_LEAST = 4         /* of a thread */
};

/* ---- What is taken --------------------------------------------------------------------------------------------- */

static NarrowPass pass_of(const Node *node) {
  if (strcmp(node->op->name, "conv") == 0) return NARROW_FORWARD;
  return strcmp(node->op->name, "conv_backward_data") == 0 ? NARROW_DATA : NARROW_WEIGHTS;
}

/* The tensors of a node by what they are to the kernel. */
typedef struct Operands {
  const Tensor *read, *written, *weights;
} Operands;

static Operands operands_of(const Node *node) {
  const Tensor *output = node->outputs[0];
  if (pass_of(node) == NARROW_WEIGHTS) return (Operands){node->inputs[0], node->inputs[1], output};
  return (Operands){node->inputs[0], output, node->inputs[1]};
}

static bool types_are_known(const ConvNarrow *it, const Operands *of) {
  DType type = of->read->dtype, weights = of->weights->dtype;
  if ((type != DTYPE_F32 && type != DTYPE_BF16) || of->written->dtype != type) return false;
  if (it->pass != NARROW_WEIGHTS) return weights == type;
  return weights == DTYPE_F32 || weights == DTYPE_BF16;
}

static bool channels_are_known(const ConvNarrow *it) {
  if (it->read_each % BLOCK == 0 && it->written_each % BLOCK == 0) return false;
  if (it->groups == 1 || it->read_channels % BLOCK != 0 || it->written_channels % BLOCK != 0) return false;
  if (it->read_each % 8 != 0 || it->sharing * it->read_each > 2 * BLOCK) return false;
  return it->written_each == BLOCK / SHARING_MOST || it->written_each % BLOCK == 0;
}

static void read_geometry(const Node *node, const Operands *of, ConvNarrow *it) {
  int32_t missing = SPACE - (of->read->rank - 2);
  it->window_places = it->read_places = it->written_places = 1;
  for (int32_t i = 0; i < SPACE; i++) {
    bool there = i >= missing;
    it->read[i] = there ? of->read->shape[2 + i - missing] : 1;
    it->written[i] = there ? of->written->shape[2 + i - missing] : 1;
    it->window[i] = there ? of->weights->shape[2 + i - missing] : 1;
    it->window_places *= it->window[i];
    it->read_places *= it->read[i];
    it->written_places *= it->written[i];
  }
  it->samples = of->read->shape[0];
  it->read_channels = of->read->shape[1];
  it->written_channels = of->written->shape[1];
  it->groups = node->params.groups > 1 ? node->params.groups : 1;
  it->read_each = it->read_channels / it->groups;
  it->written_each = it->written_channels / it->groups;
  it->sharing = it->written_each < BLOCK ? BLOCK / it->written_each : 1;
}

static int64_t stride_of(const Node *node, int32_t missing, int32_t i) {
  return i < missing ? 1 : node->params.stride[i - missing];
}
static int64_t padding_of(const Node *node, int32_t missing, int32_t i) {
  return i < missing ? 0 : node->params.padding[i - missing];
}

static void choose_axes(const Node *node, int32_t missing, ConvNarrow *it) {
  for (int32_t i = 0; i < SPACE; i++) {
    int64_t stride = stride_of(node, missing, i), padding = padding_of(node, missing, i);
    it->classes[i] = it->pass == NARROW_DATA ? (int32_t)stride : 1;
    if (it->pass != NARROW_DATA) {
      it->axes[i][0] = (Axis){.step = 1,
                              .count = it->written[i],
                              .read_step = stride,
                              .read_first = -padding,
                              .read_direction = 1,
                              .taps = it->window[i],
                              .tap_step = 1};
      continue;
    }
    /* Place p of dx takes the taps k with which p + padding - k is a multiple of the stride. */
    for (int64_t rest = 0; rest < stride; rest++) {
      int64_t first = ((rest - padding) % stride + stride) % stride;
      it->axes[i][rest] =
          (Axis){.first = first,
                 .step = stride,
                 .count = first < it->written[i] ? (it->written[i] - 1 - first) / stride + 1 : 0,
                 .read_step = 1,
                 .read_first = (first + padding - rest) / stride,
                 .read_direction = -1,
                 .taps = rest < it->window[i] ? (it->window[i] - 1 - rest) / stride + 1 : 0,
                 .tap_first = rest,
                 .tap_step = stride};
    }
  }
}

/* Places of a row that are computed, those beyond it included. */
static int64_t computed(const ConvNarrow *it, int64_t count) {
  if (it->pass == NARROW_WEIGHTS) return it->bf16 ? (count + 1) / 2 * 2 : count;
  int64_t rest = count % TILE_POINTS;
  return count - rest + (rest == 0 ? 0 : rest > TILE_LEAST ? TILE_POINTS : TILE_LEAST);
}

static void choose_rows(ConvNarrow *it) {
  int64_t least = 0, most = it->read[2] - 1;
  for (int32_t c = 0; c < it->classes[2]; c++) {
    const Axis *axis = &it->axes[2][c];
    for (int64_t tap = 0; tap < axis->taps && axis->count > 0; tap++) {
      int64_t first = narrow_read_at(axis, 0, tap);
      int64_t last = narrow_read_at(axis, computed(it, axis->count) - 1, tap);
      if (first < least) least = first;
      if (last > most) most = last;
    }
  }
  it->margin = -least;
  it->row_points = most + 1 - least;
}

Range narrow_reach(const ConvNarrow *it, int32_t dimension, Range places) {
  Range reach = {it->read[dimension], 0};
  for (int64_t place = places.begin; place < places.end; place++) {
    const Axis *axis = narrow_class_of(it, dimension, place);
    for (int64_t tap = 0; tap < axis->taps; tap++) {
      int64_t at = narrow_read_at(axis, (place - axis->first) / axis->step, tap);
      if (at < 0 || at >= it->read[dimension]) continue;
      if (at < reach.begin) reach.begin = at;
      if (at >= reach.end) reach.end = at + 1;
    }
  }
  if (reach.end < reach.begin) reach.begin = reach.end;
  return reach;
}

static void set_slabs(ConvNarrow *it, int64_t slabs) {
  it->slab = (it->written[1] + slabs - 1) / slabs;
  it->slabs = (it->written[1] + it->slab - 1) / it->slab;
  it->slab_reach = 1;
  for (int64_t slab = 0; slab < it->slabs; slab++) {
    Range reach = narrow_reach(it, 1, narrow_slab(it, slab));
    if (reach.end - reach.begin > it->slab_reach) it->slab_reach = reach.end - reach.begin;
  }
}

/* Slabs whose rings fit into the cache, and enough of them for all threads. */
static void choose_slabs(ConvNarrow *it, int32_t threads) {
  int64_t others = it->samples * (it->pass == NARROW_WEIGHTS ? 1 : it->bundles);
  for (int64_t slabs = 1; slabs <= it->written[1]; slabs++) {
    set_slabs(it, slabs);
    if (narrow_ring_bytes(it) <= RING_BYTES && others * it->slabs >= UNITS_LEAST * threads) return;
  }
}

static int32_t common_divisor(int64_t a, int64_t b) {
  return (int32_t)(b == 0 ? a : common_divisor(b, a % b));
}

/* Fills `it` for a node that is taken. */
static bool describe(const Node *node, ConvNarrow *it) {
  memset(it, 0, sizeof *it);
  if (node->input_count != 2 || node->outputs[0] == NULL) return false;
  Operands of = operands_of(node);
  it->pass = pass_of(node);
  if (of.read->rank < 4 || !types_are_known(it, &of)) return false;
  read_geometry(node, &of, it);
  if (!channels_are_known(it)) return false;
  int32_t missing = SPACE - (of.read->rank - 2);
  for (int32_t i = 0; i < SPACE; i++) {
    if (stride_of(node, missing, i) > STRIDE_MOST) return false;
  }
  it->bf16 = of.read->dtype == DTYPE_BF16;
  if (!cpu_conv_has_instructions(it->bf16)) return false;
  it->weights_dtype = of.weights->dtype;
  it->bundles = it->groups / it->sharing;
  it->bundle_blocks = it->written_each < BLOCK ? 1 : it->written_each / BLOCK;
  it->words = it->bf16 && it->pass != NARROW_WEIGHTS ? it->read_each / 2 : it->read_each;
  it->chunk_words = BLOCK / it->sharing;
  it->chunks = (it->words + it->chunk_words - 1) / it->chunk_words;
  if (it->chunks * it->window_places > TAPS_MOST) return false;
  choose_axes(node, missing, it);
  choose_rows(it);
  return true;
}

/* ---- The op ---------------------------------------------------------------------------------------------------- */

/* Neither decided otherwise nor channels last. */
static bool is_free(CpuDevice *device, LayoutId layout, LayoutId wanted) {
  return layout == wanted || !cpu_layout_is_activation(device, layout);
}

bool cpu_conv_narrow_choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  ConvNarrow it;
  if (!describe(node, &it)) return false;
  LayoutId blocked = cpu_layout_blocked(device, node->inputs[0]->rank, BLOCK);
  LayoutId *written = it.pass == NARROW_WEIGHTS ? &inputs[1] : &outputs[0];
  if (!is_free(device, inputs[0], blocked) || !is_free(device, *written, blocked)) return false;
  inputs[0] = blocked;
  inputs[1] = outputs[0] = LAYOUT_PLAIN;
  *written = blocked;
  return true;
}

bool cpu_conv_narrow_applies(CpuDevice *device, const Kernel *kernel) {
  ConvNarrow it;
  if (!describe(kernel->node, &it)) return false;
  LayoutId blocked = cpu_layout_blocked(device, kernel->node->inputs[0]->rank, BLOCK);
  bool backward_weights = it.pass == NARROW_WEIGHTS;
  LayoutId written = backward_weights ? kernel->inputs[1] : kernel->outputs[0];
  LayoutId weights = backward_weights ? kernel->outputs[0] : kernel->inputs[1];
  return kernel->inputs[0] == blocked && written == blocked && weights == LAYOUT_PLAIN;
}

Status cpu_conv_narrow_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  ConvNarrow *it = vl_allocate(sizeof *it);
  kernel->data = it;
  if (!describe(kernel->node, it))
    return vl_error(VL_INTERNAL, "cpu: %s of %s is no convolution of few channels", kernel->node->op->name,
                    kernel->node->scope ? kernel->node->scope : "?");
  choose_slabs(it, kernel->threads);
  it->bundle_parts = common_divisor(it->bundles, kernel->threads);
  it->unit_parts = kernel->threads / it->bundle_parts;
  kernel->workspace_bytes = it->pass == NARROW_WEIGHTS ? narrow_weights_workspace(it)
                                                       : narrow_forward_workspace(it, kernel->threads);
  snprintf(kernel->implementation, sizeof kernel->implementation, "own:%s",
           it->bf16 ? "avx512_bf16" : "avx512");
  return vl_ok();
}

Status cpu_conv_narrow_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ConvNarrow *it = kernel->data;
  if (it->pass == NARROW_WEIGHTS)
    narrow_weights(it, (const void *)inputs[0], (const void *)inputs[1], (void *)outputs[0], workspace);
  else
    narrow_forward(it, kernel->threads, (const void *)inputs[0], (const void *)inputs[1], (void *)outputs[0],
                   workspace);
  return vl_ok();
}
