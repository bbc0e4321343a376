/* batch_norm_invert: x = (z - beta) / scale + mean where z = y, or y / slope below zero, in any layout.
 * Padding channels have inverse, shift and mean zero, so that padding stays zero. */
#include "kernels/cpu/batch_norm.h"

#include <math.h>
#include <omp.h>

/* Per channel: 1 / scale, beta, mean. */
enum { INVERSE, SHIFT, MEAN, COEFFICIENTS };

typedef struct Coefficients {
  const float *of[COEFFICIENTS];
} Coefficients;

/* x may be y. */
VECTOR_INLINE void invert_values(void *x, const void *y, int64_t first, int64_t count, bool bf16,
                                 Coefficients by, float steepness) {
  const float *restrict inverse = by.of[INVERSE], *restrict shift = by.of[SHIFT],
                        *restrict mean = by.of[MEAN];
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    float z = vector_load(y, first + p, bf16);
    z = z < 0.0F ? z * steepness : z;
    vector_store(x, first + p, (z - shift[p]) * inverse[p] + mean[p], bf16);
  }
}

VECTOR_INLINE void invert_patterns(void *x, const void *y, int64_t count, int64_t pattern, bool bf16,
                                   Coefficients by, float steepness) {
  int64_t i = 0;
  for (; i + pattern <= count; i += pattern)
    invert_values(x, y, i, pattern, bf16, by, steepness);
  invert_values(x, y, i, count - i, bf16, by, steepness);
}

VECTOR_CLONES
static void invert_tile(void *x, const void *y, int64_t count, int64_t pattern, bool bf16, Coefficients by,
                        float steepness) {
  if (bf16)
    invert_patterns(x, y, count, pattern, true, by, steepness);
  else
    invert_patterns(x, y, count, pattern, false, by, steepness);
}

static void invert_part(const ChannelView *view, Coefficients all, VectorArray x, VectorArray y,
                        float steepness, VectorPart part) {
  _Alignas(64) float repeated[COEFFICIENTS][2 * VECTOR_LANES];
  Coefficients row = all, at;
  VectorWalk walk = vector_walk(view, part, VECTOR_SPAN);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    for (int i = 0; i < COEFFICIENTS; i++) {
      if (tile.begins) row.of[i] = vector_repeat(view, all.of[i], tile.block, repeated[i]);
      at.of[i] = row.of[i] + tile.phase;
    }
    invert_tile(vector_at(x, tile.offset), vector_at(y, tile.offset), tile.count, vector_pattern(view),
                y.dtype == DTYPE_BF16, at, steepness);
  }
}

/* Writes those of a range of channels. */
static void fill(const Kernel *kernel, const ChannelView *view, const uintptr_t *inputs, Range channels,
                 float *to) {
  const float *mean = (const float *)inputs[1], *var = (const float *)inputs[2];
  VectorArray gamma = vector_input(kernel, inputs, 3), beta = vector_input(kernel, inputs, 4);
  int64_t padded = vector_by_lines(vector_channels(view));
  for (int64_t c = channels.begin; c < channels.end; c++) {
    bool real = c < view->channels;
    double deviation = real ? sqrt((double)var[c] + kernel->node->params.epsilon) : 0.0;
    to[INVERSE * padded + c] = real ? (float)(deviation / (double)vector_element(gamma, c)) : 0.0F;
    to[SHIFT * padded + c] = real ? vector_element(beta, c) : 0.0F;
    to[MEAN * padded + c] = real ? mean[c] : 0.0F;
  }
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ChannelView *view = kernel->data;
  VectorArray y = vector_input(kernel, inputs, 0), x = vector_output(kernel, outputs, 0);
  int64_t padded = vector_by_lines(vector_channels(view));
  float *to = (float *)workspace, steepness = (float)(1.0 / kernel->node->params.alpha);
  Coefficients all = {{to + INVERSE * padded, to + SHIFT * padded, to + MEAN * padded}};
  int32_t wanted = vector_threads(kernel, view->n * view->spatial * vector_channels(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    fill(kernel, view, inputs, vector_share(vector_channels(view), threads, thread), to);
#pragma omp barrier
    VectorPart part = {{0, view->channel_blocks}, vector_share(view->n * view->spatial, threads, thread)};
    invert_part(view, all, x, y, steepness, part);
  }
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  ChannelView *view = vl_allocate(sizeof *view);
  kernel->data = view;
  VL_TRY(cpu_channel_view(device, kernel->inputs[0], kernel->node->inputs[0], view));
  if (kernel->inputs[0] != kernel->outputs[0])
    return vl_error(VL_INTERNAL, "batch_norm_invert in %s: layouts %s and %s; they must be one",
                    kernel->node->scope, cpu_layout_name(device, kernel->inputs[0]),
                    cpu_layout_name(device, kernel->outputs[0]));
  kernel->workspace_bytes = COEFFICIENTS * vector_by_lines(vector_channels(view)) * (int64_t)sizeof(float);
  return vl_ok();
}

const CpuOp cpu_op_batch_norm_invert = {
    .name = "batch_norm_invert",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = launch,
};
