/* The mean over space and its gradient. Sums as in batch_norm.c: fewer than 128 values a lane in f32, the
 * rest in double, so the mean is within 129 * 2^-24 * mean |x|, plus its rounding. */
#include "kernels/cpu/vector.h"

#include <omp.h>

/* One row: a sample's channel block. sums [block] and lanes [pattern] are scratch. */
static void mean_of_row(const ChannelView *view, VectorArray x, VectorArray y, int64_t row, double *sums,
                        float *lanes) {
  _Alignas(64) float buffer[VECTOR_TILE];
  int64_t pattern = vector_pattern(view), run = 0;
  int64_t sample = row / view->channel_blocks, block = row % view->channel_blocks;
  memset(sums, 0, (size_t)view->block * sizeof *sums);
  memset(lanes, 0, (size_t)pattern * sizeof *lanes);
  VectorPart part = {{block, block + 1}, {sample * view->spatial, (sample + 1) * view->spatial}};
  VectorWalk walk = vector_walk(view, part, VECTOR_TILE);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    vector_add(lanes + tile.phase, vector_read(x, tile.offset, tile.count, buffer), tile.count, pattern);
    run += vector_values(&tile, pattern);
    if (tile.ends || run >= VECTOR_RUN) {
      vector_fold(sums, lanes, pattern, view->block);
      run = 0;
    }
  }
  for (int64_t lane = 0; lane < view->block; lane++) {
    int64_t channel = block * view->block + lane;
    float mean = (float)(sums[lane] / (double)view->spatial);
    if (channel < view->channels) vector_write(y, sample * view->channels + channel, 1, &mean);
  }
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ChannelView *view = kernel->data;
  VectorArray x = vector_input(kernel, inputs, 0), y = vector_output(kernel, outputs, 0);
  int64_t block = vector_by_lines(view->block), pattern = vector_by_lines(vector_pattern(view));
  int32_t wanted = vector_threads(kernel, view->n * view->spatial * vector_channels(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t thread = omp_get_thread_num();
    double *sums = (double *)workspace + thread * block;
    float *lanes = (float *)((double *)workspace + kernel->threads * block) + thread * pattern;
    Range share = vector_share(view->n * view->channel_blocks, omp_get_num_threads(), thread);
    for (int64_t row = share.begin; row < share.end; row++)
      mean_of_row(view, x, y, row, sums, lanes);
  }
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  ChannelView *view = vl_allocate(sizeof *view);
  kernel->data = view;
  VL_TRY(cpu_channel_view(device, kernel->inputs[0], kernel->node->inputs[0], view));
  kernel->workspace_bytes =
      kernel->threads * (vector_by_lines(view->block) * 8 + vector_by_lines(vector_pattern(view)) * 4);
  return vl_ok();
}

const CpuOp cpu_op_global_avg_pool = {
    .name = "global_avg_pool",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = launch,
};

/* ---- Gradient: dy / space in every place ------------------------------------------------------------------ */

VECTOR_CLONES
static void repeat_tile(float *dx, int64_t count, int64_t pattern, const float *restrict values) {
  for (int64_t i = 0; i < count; i += pattern) {
    int64_t width = count - i < pattern ? count - i : pattern;
#pragma omp simd
    for (int64_t p = 0; p < width; p++)
      dx[i + p] = values[p];
  }
}

/* A sample's gradients by channel, zero in the padding. */
static void sample_values(const ChannelView *view, VectorArray dy, int64_t sample, float *values) {
  memset(values, 0, (size_t)vector_channels(view) * sizeof *values);
  for (int64_t c = 0; c < view->channels; c++) {
    values[c] = vector_element(dy, sample * view->channels + c) / (float)view->spatial;
  }
}

static void repeat_sample(const ChannelView *view, VectorArray dx, int64_t sample, const float *values) {
  _Alignas(64) float buffer[VECTOR_TILE], repeated[2 * VECTOR_LANES];
  int64_t pattern = vector_pattern(view);
  const float *row = values;
  VectorPart part = {{0, view->channel_blocks}, {sample * view->spatial, (sample + 1) * view->spatial}};
  VectorWalk walk = vector_walk(view, part, VECTOR_TILE);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) row = vector_repeat(view, values, tile.block, repeated);
    float *to = vector_target(dx, tile.offset, buffer);
    repeat_tile(to, tile.count, pattern, row + tile.phase);
    vector_write(dx, tile.offset, tile.count, to);
  }
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ChannelView *view = kernel->data;
  VectorArray dy = vector_input(kernel, inputs, 0), dx = vector_output(kernel, outputs, 0);
  int32_t wanted = vector_threads(kernel, view->n * view->spatial * vector_channels(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t thread = omp_get_thread_num();
    float *values = (float *)workspace + thread * vector_by_lines(vector_channels(view));
    Range samples = vector_share(view->n, omp_get_num_threads(), thread);
    for (int64_t sample = samples.begin; sample < samples.end; sample++) {
      sample_values(view, dy, sample, values);
      repeat_sample(view, dx, sample, values);
    }
  }
  return vl_ok();
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  ChannelView *view = vl_allocate(sizeof *view);
  kernel->data = view;
  VL_TRY(cpu_channel_view(device, kernel->outputs[0], kernel->node->outputs[0], view));
  kernel->workspace_bytes = kernel->threads * vector_by_lines(vector_channels(view)) * 4;
  return vl_ok();
}

/* dx takes the layout it is preset to; left open, the one that convolutions before it most likely have: a
 * wrong guess costs a copy. */
static Status backward_choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  inputs[0] = LAYOUT_PLAIN;
  if (outputs[0] != LAYOUT_ANY) return vl_ok();
  const Tensor *dx = node->outputs[0];
  dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  if (isa >= dnnl_cpu_isa_avx512_core_amx)
    outputs[0] = cpu_layout_channels_last(device, dx->rank);
  else if (isa >= dnnl_cpu_isa_avx2)
    outputs[0] = cpu_layout_blocked(device, dx->rank, isa >= dnnl_cpu_isa_avx512_core ? 16 : 8);
  else
    outputs[0] = LAYOUT_PLAIN;
  return vl_ok();
}

const CpuOp cpu_op_global_avg_pool_backward = {
    .name = "global_avg_pool_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = backward_choose,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
