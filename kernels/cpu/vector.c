/* Tiles, threads and walks: see vector.h. */
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <string.h>

/* ---- Tiles -------------------------------------------------------------------------------------------- */

static VectorArray array_of(const Tensor *tensor, uintptr_t address) {
  if (tensor == NULL) return (VectorArray){.address = NULL};
  return (VectorArray){.address = (void *)address, .dtype = tensor->dtype};
}

VectorArray vector_input(const Kernel *kernel, const uintptr_t *inputs, int32_t i) {
  const Node *node = kernel->node;
  return i < node->input_count ? array_of(node->inputs[i], inputs[i]) : (VectorArray){.address = NULL};
}

VectorArray vector_output(const Kernel *kernel, const uintptr_t *outputs, int32_t i) {
  const Node *node = kernel->node;
  return i < node->output_count ? array_of(node->outputs[i], outputs[i]) : (VectorArray){.address = NULL};
}

VECTOR_CLONES
static void f32_from_bf16(float *restrict to, const uint16_t *restrict from, int64_t count) {
  uint32_t *bits = (uint32_t *)to;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    bits[i] = (uint32_t)from[i] << 16;
}

VECTOR_CLONES
static void bf16_from_f32(uint16_t *restrict to, const float *restrict from, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    to[i] = vector_bf16(from[i]);
}

const float *vector_read(VectorArray array, int64_t offset, int64_t count, float *buffer) {
  if (array.dtype == DTYPE_F32) return (const float *)array.address + offset;
  f32_from_bf16(buffer, (const uint16_t *)array.address + offset, count);
  return buffer;
}

float *vector_target(VectorArray array, int64_t offset, float *buffer) {
  return array.dtype == DTYPE_F32 ? (float *)array.address + offset : buffer;
}

void vector_write(VectorArray array, int64_t offset, int64_t count, const float *from) {
  if (array.dtype == DTYPE_BF16)
    bf16_from_f32((uint16_t *)array.address + offset, from, count);
  else if ((float *)array.address + offset != from)
    memcpy((float *)array.address + offset, from, (size_t)count * sizeof *from);
}

/* ---- Threads and element-wise ops ---------------------------------------------------------------------- */

int32_t vector_threads(const Kernel *kernel, int64_t elements) {
  int64_t worth = 1 + elements / (INT64_C(4) * VECTOR_TILE);
  return worth < kernel->threads ? (int32_t)worth : kernel->threads;
}

static void map_part(VectorFunction *function, float parameter, VectorArray y, VectorArray a, VectorArray b,
                     Range elements) {
  _Alignas(64) float buffer[3][VECTOR_TILE];
  for (int64_t i = elements.begin; i < elements.end; i += VECTOR_TILE) {
    int64_t count = elements.end - i < VECTOR_TILE ? elements.end - i : VECTOR_TILE;
    const float *from_a = vector_read(a, i, count, buffer[0]);
    const float *from_b = b.address != NULL ? vector_read(b, i, count, buffer[1]) : NULL;
    float *to = vector_target(y, i, buffer[2]);
    function(to, from_a, from_b, count, parameter);
    vector_write(y, i, count, to);
  }
}

void vector_map(const Kernel *kernel, VectorFunction *function, float parameter, VectorArray y, VectorArray a,
                VectorArray b) {
  int64_t elements = *(const int64_t *)kernel->data;
  int64_t tiles = (elements + VECTOR_TILE - 1) / VECTOR_TILE;
  int32_t threads = vector_threads(kernel, elements);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(tiles, omp_get_num_threads(), omp_get_thread_num());
    int64_t end = share.end * VECTOR_TILE;
    map_part(function, parameter, y, a, b,
             (Range){share.begin * VECTOR_TILE, end < elements ? end : elements});
  }
}

static LayoutId shared_layout(const Node *node, const LayoutId *inputs) {
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *tensor = node->inputs[i];
    if (tensor != NULL && tensor->rank >= 3 && inputs[i] != LAYOUT_ANY && inputs[i] != LAYOUT_PLAIN)
      return inputs[i];
  }
  return LAYOUT_PLAIN;
}

Status vector_choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  LayoutId shared = shared_layout(node, inputs);
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = node->inputs[i] != NULL && node->inputs[i]->rank >= 3 ? shared : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = node->outputs[i] != NULL && node->outputs[i]->rank >= 3 ? shared : LAYOUT_PLAIN;
  return vl_ok();
}

Status vector_prepare_map(CpuDevice *device, Kernel *kernel, int32_t count) {
  const Node *node = kernel->node;
  for (int32_t i = 0; i < count; i++)
    if (kernel->inputs[i] != kernel->outputs[0])
      return vl_error(VL_INTERNAL, "%s in %s: input %d has layout %s, output 0 %s; they must be one",
                      node->op->name, node->scope, i, cpu_layout_name(device, kernel->inputs[i]),
                      cpu_layout_name(device, kernel->outputs[0]));
  int64_t *elements = vl_allocate(sizeof *elements);
  *elements = cpu_padded_elements(device, kernel->outputs[0], node->outputs[0]);
  kernel->data = elements;
  return vl_ok();
}

/* ---- Activations by channel ------------------------------------------------------------------------------ */

int64_t vector_pattern(const ChannelView *view) {
  return view->block >= VECTOR_LANES ? view->block
                                     : (VECTOR_LANES + view->block - 1) / view->block * view->block;
}

int64_t vector_channels(const ChannelView *view) { return view->channel_blocks * view->block; }

/* Places the walk at the row of walk->sample and walk->block. */
static void enter_row(VectorWalk *walk) {
  const ChannelView *view = walk->view;
  int64_t first = walk->sample * view->spatial;
  int64_t begin = walk->part.points.begin > first ? walk->part.points.begin - first : 0;
  int64_t end = walk->part.points.end < first + view->spatial ? walk->part.points.end - first : view->spatial;
  int64_t row = walk->sample * view->channel_blocks + walk->block;
  walk->row_offset = (row * view->spatial + begin) * view->block;
  walk->row_count = (end - begin) * view->block;
  walk->at = 0;
}

VectorWalk vector_walk(const ChannelView *view, VectorPart part, int64_t most) {
  int64_t pattern = vector_pattern(view);
  VectorWalk walk = {.view = view, .part = part, .pattern = pattern};
  walk.tile = pattern <= most ? most / pattern * pattern : most;
  walk.sample = part.points.begin / view->spatial;
  walk.block = part.blocks.begin;
  if (part.points.begin < part.points.end && part.blocks.begin < part.blocks.end) enter_row(&walk);
  return walk;
}

bool vector_walk_next(VectorWalk *walk, VectorTile *tile) {
  if (walk->at == walk->row_count) {
    if (walk->row_count == 0) return false;
    if (++walk->block == walk->part.blocks.end) {
      walk->block = walk->part.blocks.begin;
      walk->sample++;
    }
    if (walk->sample * walk->view->spatial >= walk->part.points.end) return false;
    enter_row(walk);
  }
  int64_t phase = walk->pattern > walk->tile ? walk->at % walk->pattern : 0;
  int64_t count = walk->row_count - walk->at;
  if (count > walk->tile) count = walk->tile;
  /* A tile shorter than the pattern does not run past the pattern's end. */
  if (walk->pattern > walk->tile && count > walk->pattern - phase) count = walk->pattern - phase;
  *tile = (VectorTile){.offset = walk->row_offset + walk->at,
                       .count = count,
                       .block = walk->block,
                       .phase = phase,
                       .begins = walk->at == 0,
                       .ends = walk->at + count == walk->row_count};
  walk->at += count;
  return true;
}

int64_t vector_values(const VectorTile *tile, int64_t pattern) {
  if (tile->count >= pattern) return (tile->count + pattern - 1) / pattern;
  return tile->phase + tile->count == pattern || tile->ends ? 1 : 0; /* counted with a pattern's last tile */
}

const float *vector_repeat(const ChannelView *view, const float *channels, int64_t block, float *buffer) {
  const float *first = channels + block * view->block;
  if (view->block >= VECTOR_LANES) return first;
  /* The usual layouts: constant sizes make it a few moves. */
  if (view->block == VECTOR_LANES / 2) {
    memcpy(buffer, first, VECTOR_LANES / 2 * sizeof *first);
    memcpy(buffer + VECTOR_LANES / 2, first, VECTOR_LANES / 2 * sizeof *first);
    return buffer;
  }
  if (view->block == 1) {
    for (int64_t i = 0; i < VECTOR_LANES; i++)
      buffer[i] = first[0];
    return buffer;
  }
  int64_t pattern = vector_pattern(view);
  for (int64_t i = 0; i < pattern; i += view->block)
    for (int64_t lane = 0; lane < view->block; lane++)
      buffer[i + lane] = first[lane];
  return buffer;
}

VECTOR_INLINE void add_patterns(float *restrict sums, const float *x, int64_t count, int64_t pattern) {
  int64_t i = 0;
  for (; i + 4 * pattern <= count; i += 4 * pattern) {
#pragma omp simd
    for (int64_t p = 0; p < pattern; p++)
      sums[p] += (x[i + p] + x[i + pattern + p]) + (x[i + 2 * pattern + p] + x[i + 3 * pattern + p]);
  }
  for (; i < count; i += pattern) {
    int64_t width = count - i < pattern ? count - i : pattern;
#pragma omp simd
    for (int64_t p = 0; p < width; p++)
      sums[p] += x[i + p];
  }
}

VECTOR_CLONES
void vector_add(float *sums, const float *x, int64_t count, int64_t pattern) {
  if (pattern == VECTOR_LANES)
    add_patterns(sums, x, count, VECTOR_LANES);
  else
    add_patterns(sums, x, count, pattern);
}

VECTOR_INLINE void fold(double *sums, float *lanes, int64_t pattern, int64_t block) {
  for (int64_t first = 0; first < pattern; first += block) {
#pragma omp simd
    for (int64_t i = 0; i < block; i++) {
      sums[i] += (double)lanes[first + i];
      lanes[first + i] = 0.0F;
    }
  }
}

/* All lanes into one sum, four at a time. */
VECTOR_INLINE void fold_plain(double *sum, float *lanes) {
  double four[4] = {0.0};
  for (int64_t i = 0; i < VECTOR_LANES; i += 4)
    for (int64_t k = 0; k < 4; k++)
      four[k] += (double)lanes[i + k];
  sum[0] += (four[0] + four[1]) + (four[2] + four[3]);
  memset(lanes, 0, VECTOR_LANES * sizeof *lanes);
}

VECTOR_INLINE void fold_lanes(double *sums, float *lanes, int64_t pattern, int64_t block) {
  if (pattern == VECTOR_LANES && block == VECTOR_LANES / 2)
    fold(sums, lanes, VECTOR_LANES, VECTOR_LANES / 2);
  else if (pattern == VECTOR_LANES && block == 1)
    fold_plain(sums, lanes);
  else
    fold(sums, lanes, pattern, block);
}

VECTOR_CLONES
void vector_fold(double *sums, float *lanes, int64_t pattern, int64_t block) {
  fold_lanes(sums, lanes, pattern, block);
}

VECTOR_CLONES
void vector_fold_pairs(double *sums, float *lanes, int64_t block) {
  float pairs[VECTOR_LANES];
  memcpy(pairs, lanes, sizeof pairs);
#pragma omp simd
  for (int64_t p = 0; p < VECTOR_PAIRS; p++) {
    lanes[2 * p] = pairs[p];
    lanes[2 * p + 1] = pairs[VECTOR_PAIRS + p];
  }
  fold_lanes(sums, lanes, VECTOR_LANES, block);
}
