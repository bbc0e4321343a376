/* Batch norm, forward: statistics, normalisation with residual and ReLU, running statistics. */
#include "kernels/cpu/batch_norm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

float batch_norm_scale(float gamma, float var, double epsilon) {
  return (float)((double)gamma / sqrt((double)var + epsilon));
}

static Status prepare_view(CpuDevice *device, Kernel *kernel) {
  ChannelView *view = vl_allocate(sizeof *view);
  kernel->data = view;
  return cpu_channel_view(device, kernel->inputs[0], kernel->node->inputs[0], view);
}

static int64_t view_elements(const ChannelView *view) {
  return view->n * view->spatial * vector_channels(view);
}

/* ---- Statistics ------------------------------------------------------------------------------------------
 * Of d = x - shift, where shift is the mean of the channel's first points (64 at most): mean = shift + E d,
 * var = E d^2 - (E d)^2. Lanes are summed in f32 for at most 128 values, four at a time as a tree where there
 * are enough, so that fewer than 128 roundings touch a value; the rest is in double, thread after thread.
 * With u = 2^-24 the errors are at most mean: u |mean| + 128 u E|d|      var: 130 u (var + (mean - shift)^2)
 * + u var */

typedef struct StatsWork {
  double *sums; /* [thread][2][channels] */
  float *shift; /* [channels] */
  float *lanes; /* [thread][2][pattern], by cache lines */
} StatsWork;

static int64_t stats_bytes(const ChannelView *view, int64_t threads) {
  int64_t channels = vector_by_lines(vector_channels(view));
  return threads * 2 * channels * 8 + channels * 4 + threads * 2 * vector_by_lines(vector_pattern(view)) * 4;
}

static StatsWork stats_work(const ChannelView *view, int64_t threads, uintptr_t workspace) {
  int64_t channels = vector_by_lines(vector_channels(view));
  StatsWork work = {.sums = (double *)workspace};
  work.shift = (float *)(work.sums + threads * 2 * channels);
  work.lanes = work.shift + channels;
  return work;
}

VECTOR_CLONES
static void add_points(double *sums, const float *x, int64_t count, int64_t block) {
  for (int64_t i = 0; i < count; i += block) {
    int64_t width = count - i < block ? count - i : block;
#pragma omp simd
    for (int64_t lane = 0; lane < width; lane++)
      sums[lane] += (double)x[i + lane];
  }
}

static void find_shift(const ChannelView *view, VectorArray x, Range blocks, double *sums, float *shift) {
  _Alignas(64) float buffer[VECTOR_TILE];
  int64_t points = view->spatial < VECTOR_RUN ? view->spatial : VECTOR_RUN;
  Range channels = {blocks.begin * view->block, blocks.end * view->block};
  for (int64_t c = channels.begin; c < channels.end; c++)
    sums[c] = 0.0;
  VectorWalk walk = vector_walk(view, (VectorPart){.blocks = blocks, .points = {0, points}}, VECTOR_TILE);
  for (VectorTile tile; vector_walk_next(&walk, &tile);)
    add_points(sums + tile.block * view->block + tile.phase, vector_read(x, tile.offset, tile.count, buffer),
               tile.count, view->block);
  for (int64_t c = channels.begin; c < channels.end; c++) {
    double mean = sums[c] / (double)points;
    /* An infinite shift would turn finite differences into NaN. */
    shift[c] = isfinite(mean) ? (float)mean : 0.0F;
  }
}

VECTOR_INLINE VectorPair deviations(const void *x, int64_t i, const float *shift, int64_t l) {
  VectorPair pair = vector_load_pair(x, i);
  return (VectorPair){pair.even - shift[l], pair.odd - shift[VECTOR_PAIRS + l]};
}

VECTOR_INLINE void add_deviations(const void *x, int64_t count, int64_t pattern, bool bf16,
                                  const float *restrict shift, float *restrict sum, float *restrict square) {
  int64_t i = 0;
  for (; i + 4 * pattern <= count; i += 4 * pattern) {
    if (pattern == VECTOR_LANES) vector_prefetch(x, i, 4 * VECTOR_LANES, bf16);
#pragma omp simd
    for (int64_t p = 0; p < pattern; p++) {
      float d0 = vector_load(x, i + p, bf16) - shift[p];
      float d1 = vector_load(x, i + pattern + p, bf16) - shift[p];
      float d2 = vector_load(x, i + 2 * pattern + p, bf16) - shift[p];
      float d3 = vector_load(x, i + 3 * pattern + p, bf16) - shift[p];
      sum[p] += (d0 + d1) + (d2 + d3);
      square[p] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  for (; i < count; i += pattern) {
    int64_t width = count - i < pattern ? count - i : pattern;
#pragma omp simd
    for (int64_t p = 0; p < width; p++) {
      float d = vector_load(x, i + p, bf16) - shift[p];
      sum[p] += d;
      square[p] += d * d;
    }
  }
}

/* The same in pairs; shift, sum and square are in pair order. */
VECTOR_INLINE void add_pair_row(const void *x, int64_t first, int64_t count, const float *restrict shift,
                                float *restrict sum, float *restrict square) {
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    VectorPair d = deviations(x, first + p, shift, p);
    sum[p] += d.even;
    sum[VECTOR_PAIRS + p] += d.odd;
    square[p] += d.even * d.even;
    square[VECTOR_PAIRS + p] += d.odd * d.odd;
  }
}

VECTOR_INLINE void add_pairs(const void *x, int64_t count, const float *restrict shift, float *restrict sum,
                             float *restrict square) {
  int64_t i = 0;
  for (; i + 4 * VECTOR_PAIRS <= count / 2; i += 4 * VECTOR_PAIRS) {
    vector_prefetch(x, 2 * i, 4 * VECTOR_LANES, true);
#pragma omp simd
    for (int64_t p = 0; p < VECTOR_PAIRS; p++) {
      VectorPair a = deviations(x, i + p, shift, p), b = deviations(x, i + VECTOR_PAIRS + p, shift, p),
                 c = deviations(x, i + 2 * VECTOR_PAIRS + p, shift, p),
                 d = deviations(x, i + 3 * VECTOR_PAIRS + p, shift, p);
      sum[p] += (a.even + b.even) + (c.even + d.even);
      sum[VECTOR_PAIRS + p] += (a.odd + b.odd) + (c.odd + d.odd);
      square[p] += (a.even * a.even + b.even * b.even) + (c.even * c.even + d.even * d.even);
      square[VECTOR_PAIRS + p] += (a.odd * a.odd + b.odd * b.odd) + (c.odd * c.odd + d.odd * d.odd);
    }
  }
  for (; i + VECTOR_PAIRS <= count / 2; i += VECTOR_PAIRS)
    add_pair_row(x, i, VECTOR_PAIRS, shift, sum, square);
  add_pair_row(x, i, count / 2 - i, shift, sum, square);
  if (count % 2 == 0) return;
  float d = vector_load(x, count - 1, true) - shift[count / 2 - i];
  sum[count / 2 - i] += d;
  square[count / 2 - i] += d * d;
}

VECTOR_CLONES
static void add_tile(const void *x, int64_t count, int64_t pattern, bool bf16, const float *shift, float *sum,
                     float *square) {
  if (bf16 && pattern == VECTOR_LANES) {
    _Alignas(64) float ordered[VECTOR_LANES];
    vector_pair_order(ordered, shift);
    add_pairs(x, count, ordered, sum, square);
  } else if (pattern == VECTOR_LANES)
    add_deviations(x, count, VECTOR_LANES, false, shift, sum, square);
  else if (bf16)
    add_deviations(x, count, pattern, true, shift, sum, square);
  else
    add_deviations(x, count, pattern, false, shift, sum, square);
}

void batch_norm_sums(const ChannelView *view, VectorArray x, VectorPart part, const float *shift,
                     double *sums, float *lanes) {
  _Alignas(64) float repeated[2 * VECTOR_LANES];
  int64_t pattern = vector_pattern(view), channels = vector_by_lines(vector_channels(view));
  float *sum = lanes, *square = lanes + vector_by_lines(pattern);
  const float *block_shift = shift;
  size_t part_bytes = (size_t)((part.blocks.end - part.blocks.begin) * view->block) * sizeof *sums;
  memset(sums + part.blocks.begin * view->block, 0, part_bytes);
  memset(sums + channels + part.blocks.begin * view->block, 0, part_bytes);
  memset(lanes, 0, (size_t)vector_by_lines(pattern) * 2 * sizeof *lanes);
  int64_t run = 0;
  VectorWalk walk = vector_walk(view, part, VECTOR_SPAN);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) block_shift = vector_repeat(view, shift, tile.block, repeated);
    add_tile(vector_at(x, tile.offset), tile.count, pattern, x.dtype == DTYPE_BF16, block_shift + tile.phase,
             sum + tile.phase, square + tile.phase);
    run += vector_values(&tile, pattern);
    if (tile.ends || run >= VECTOR_RUN) {
      double *of_sum = sums + tile.block * view->block, *of_square = of_sum + channels;
      if (x.dtype == DTYPE_BF16 && pattern == VECTOR_LANES) {
        vector_fold_pairs(of_sum, sum, view->block);
        vector_fold_pairs(of_square, square, view->block);
      } else {
        vector_fold(of_sum, sum, pattern, view->block);
        vector_fold(of_square, square, pattern, view->block);
      }
      run = 0;
    }
  }
}

static void combine_sums(const Kernel *kernel, const StatsWork *work, int32_t threads, Range channels,
                         float *mean, float *var) {
  const ChannelView *view = kernel->data;
  int64_t padded = vector_by_lines(vector_channels(view));
  double points = (double)(view->n * view->spatial);
  for (int64_t c = channels.begin; c < channels.end; c++) {
    double sum = 0.0, square = 0.0;
    for (int32_t t = 0; t < threads; t++) {
      sum += work->sums[2 * padded * t + c];
      square += work->sums[2 * padded * t + padded + c];
    }
    double difference = sum / points;
    double variance = square / points - difference * difference;
    mean[c] = (float)((double)work->shift[c] + difference);
    var[c] = variance < 0.0 ? 0.0F : (float)variance; /* NaN stays */
  }
}

static Status stats_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ChannelView *view = kernel->data;
  VectorArray x = vector_input(kernel, inputs, 0);
  int32_t wanted = vector_threads(kernel, view_elements(view));
  StatsWork work = stats_work(view, kernel->threads, workspace);
  int64_t padded = vector_by_lines(vector_channels(view)), lanes = 2 * vector_by_lines(vector_pattern(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    double *sums = work.sums + 2 * padded * thread;
    find_shift(view, x, vector_share(view->channel_blocks, threads, thread), sums, work.shift);
#pragma omp barrier
    VectorPart part = {{0, view->channel_blocks}, vector_share(view->n * view->spatial, threads, thread)};
    batch_norm_sums(view, x, part, work.shift, sums, work.lanes + thread * lanes);
#pragma omp barrier
    combine_sums(kernel, &work, threads, vector_share(view->channels, threads, thread), (float *)outputs[0],
                 (float *)outputs[1]);
  }
  return vl_ok();
}

static Status stats_prepare(CpuDevice *device, Kernel *kernel) {
  VL_TRY(prepare_view(device, kernel));
  kernel->workspace_bytes = stats_bytes(kernel->data, kernel->threads);
  return vl_ok();
}

const CpuOp cpu_op_batch_norm_stats = {
    .name = "batch_norm_stats",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = stats_prepare,
    .launch = stats_launch,
};

/* ---- Normalisation --------------------------------------------------------------------------------------- */

BatchNormCoefficients batch_norm_fill(const Kernel *kernel, const ChannelView *view, const uintptr_t *inputs,
                                      int32_t first, Range channels, float *to) {
  const float *mean = (const float *)inputs[first], *var = (const float *)inputs[first + 1];
  VectorArray gamma = vector_input(kernel, inputs, first + 2), beta = vector_input(kernel, inputs, first + 3);
  int64_t padded = vector_by_lines(vector_channels(view));
  for (int64_t c = channels.begin; c < channels.end; c++) {
    bool real = c < view->channels;
    to[c] = real ? mean[c] : 0.0F;
    to[padded + c] =
        real ? batch_norm_scale(vector_element(gamma, c), var[c], kernel->node->params.epsilon) : 0.0F;
    to[2 * padded + c] = real ? vector_element(beta, c) : 0.0F;
  }
  return (BatchNormCoefficients){to, to + padded, to + 2 * padded};
}

BatchNormRelu batch_norm_relu(bool relu, double below) {
  /* Nothing is smaller than -infinity, and NaN stays NaN. */
  return (BatchNormRelu){
      .leaky = relu && below != 0.0, .least = relu ? 0.0F : -INFINITY, .below = (float)below};
}

VECTOR_INLINE float activated(float value, BatchNormRelu relu) {
  if (relu.leaky) return value < 0.0F ? relu.below * value : value;
  return value < relu.least ? relu.least : value;
}

VECTOR_INLINE void normalise_values(void *y, const void *x, const void *residual, int64_t first,
                                    int64_t count, bool bf16, BatchNormCoefficients by, BatchNormRelu relu) {
  const float *restrict mean = by.mean, *restrict scale = by.scale, *restrict beta = by.beta;
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    float value = batch_norm_value(vector_load(x, first + p, bf16), mean[p], scale[p], beta[p]);
    if (residual != NULL) value += vector_load(residual, first + p, bf16);
    vector_store(y, first + p, activated(value, relu), bf16);
  }
}

VECTOR_INLINE void normalise_patterns(void *y, const void *x, const void *residual, int64_t count,
                                      int64_t pattern, bool bf16, BatchNormCoefficients by,
                                      BatchNormRelu relu) {
  int64_t i = 0;
  for (; i + pattern <= count; i += pattern)
    normalise_values(y, x, residual, i, pattern, bf16, by, relu);
  normalise_values(y, x, residual, i, count - i, bf16, by, relu);
}

/* The same in pairs; the coefficients are in pair order. */
VECTOR_INLINE void normalise_pair_values(void *y, const void *x, const void *residual, int64_t first,
                                         int64_t count, BatchNormCoefficients by, BatchNormRelu relu) {
  const int64_t odd = VECTOR_PAIRS;
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    VectorPair from = vector_load_pair(x, first + p);
    VectorPair to = {batch_norm_value(from.even, by.mean[p], by.scale[p], by.beta[p]),
                     batch_norm_value(from.odd, by.mean[odd + p], by.scale[odd + p], by.beta[odd + p])};
    if (residual != NULL) {
      VectorPair other = vector_load_pair(residual, first + p);
      to = (VectorPair){to.even + other.even, to.odd + other.odd};
    }
    vector_store_pair(y, first + p, (VectorPair){activated(to.even, relu), activated(to.odd, relu)});
  }
}

VECTOR_INLINE void normalise_pairs(void *y, const void *x, const void *residual, int64_t count,
                                   BatchNormCoefficients by, BatchNormRelu relu) {
  _Alignas(64) float ordered[3][VECTOR_LANES];
  vector_pair_order(ordered[0], by.mean);
  vector_pair_order(ordered[1], by.scale);
  vector_pair_order(ordered[2], by.beta);
  BatchNormCoefficients pairs = {ordered[0], ordered[1], ordered[2]};
  int64_t i = 0;
  for (; i + VECTOR_PAIRS <= count / 2; i += VECTOR_PAIRS)
    normalise_pair_values(y, x, residual, i, VECTOR_PAIRS, pairs, relu);
  normalise_pair_values(y, x, residual, i, count / 2 - i, pairs, relu);
  if (count % 2 == 0) return;
  int64_t last = (count - 1) % VECTOR_LANES;
  BatchNormCoefficients of_last = {by.mean + last, by.scale + last, by.beta + last};
  normalise_values(y, x, residual, count - 1, 1, true, of_last, relu);
}

VECTOR_INLINE void normalise_either(void *y, const void *x, const void *residual, int64_t count,
                                    int64_t pattern, bool bf16, BatchNormCoefficients by,
                                    BatchNormRelu relu) {
  if (bf16 && pattern == VECTOR_LANES)
    normalise_pairs(y, x, residual, count, by, relu);
  else if (bf16)
    normalise_patterns(y, x, residual, count, pattern, true, by, relu);
  else
    normalise_patterns(y, x, residual, count, pattern, false, by, relu);
}

VECTOR_CLONES
static void normalise_tile(void *y, const void *x, const void *residual, int64_t count, int64_t pattern,
                           bool bf16, BatchNormCoefficients by, BatchNormRelu relu) {
  if (pattern != VECTOR_LANES) {
    normalise_either(y, x, residual, count, pattern, bf16, by, relu);
  } else if (relu.leaky) { /* never with a residual */
    relu.leaky = true;
    normalise_either(y, x, NULL, count, VECTOR_LANES, bf16, by, relu);
  } else {
    relu.leaky = false;
    if (residual != NULL)
      normalise_either(y, x, residual, count, VECTOR_LANES, bf16, by, relu);
    else
      normalise_either(y, x, NULL, count, VECTOR_LANES, bf16, by, relu);
  }
}

void batch_norm_normalise(const ChannelView *view, BatchNormCoefficients all, VectorArray y, VectorArray x,
                          VectorArray residual, BatchNormRelu relu, VectorPart part) {
  _Alignas(64) float repeated[3][2 * VECTOR_LANES];
  int64_t pattern = vector_pattern(view);
  BatchNormCoefficients row = all;
  VectorWalk walk = vector_walk(view, part, VECTOR_SPAN);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) {
      row.mean = vector_repeat(view, all.mean, tile.block, repeated[0]);
      row.scale = vector_repeat(view, all.scale, tile.block, repeated[1]);
      row.beta = vector_repeat(view, all.beta, tile.block, repeated[2]);
    }
    BatchNormCoefficients at = {row.mean + tile.phase, row.scale + tile.phase, row.beta + tile.phase};
    normalise_tile(vector_at(y, tile.offset), vector_at(x, tile.offset), vector_at(residual, tile.offset),
                   tile.count, pattern, x.dtype == DTYPE_BF16, at, relu);
  }
}

void batch_norm_whole(const Kernel *kernel, const ChannelView *view, const uintptr_t *inputs, int32_t first,
                      VectorArray residual, VectorArray y, float *workspace) {
  VectorArray x = vector_input(kernel, inputs, 0);
  BatchNormRelu relu = batch_norm_relu(kernel->node->params.relu != 0, 0.0);
  int32_t wanted = vector_threads(kernel, view_elements(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    Range channels = vector_share(vector_channels(view), threads, thread);
    BatchNormCoefficients all = batch_norm_fill(kernel, view, inputs, first, channels, workspace);
#pragma omp barrier
    VectorPart part = {{0, view->channel_blocks}, vector_share(view->n * view->spatial, threads, thread)};
    batch_norm_normalise(view, all, y, x, residual, relu, part);
  }
}

static Status apply_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  batch_norm_whole(kernel, kernel->data, inputs, 1, vector_input(kernel, inputs, 5),
                   vector_output(kernel, outputs, 0), (float *)workspace);
  return vl_ok();
}

static Status apply_prepare(CpuDevice *device, Kernel *kernel) {
  VL_TRY(prepare_view(device, kernel));
  kernel->workspace_bytes = 4 * batch_norm_coefficients(kernel->data);
  return vl_ok();
}

const CpuOp cpu_op_batch_norm_apply = {
    .name = "batch_norm_apply",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = apply_prepare,
    .launch = apply_launch,
};

/* ---- Running statistics ------------------------------------------------------------------------------------
 * r = (1 - momentum) r + momentum s in double, rounded once; s of the variance is var * count / (count - 1).
 */

static Status update_supports(CpuDevice *device, const Node *node) {
  if (node->params.count < 2)
    return vl_error(VL_UNSUPPORTED,
                    "batch_norm_update in %s: count = %lld; the unbiased variance needs 2 values",
                    node->scope, (long long)node->params.count);
  return cpu_supports_f32_bf16(device, node);
}

static Status update_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_ok();
}

static Status update_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                            uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const OpParams *params = &kernel->node->params;
  double momentum = params->momentum, unbiased = (double)params->count / (double)(params->count - 1);
  int64_t channels = vl_tensor_elements(kernel->node->inputs[0]);
  const float *mean = (const float *)inputs[0], *var = (const float *)inputs[1];
  const float *old_mean = (const float *)inputs[2], *old_var = (const float *)inputs[3];
  float *new_mean = (float *)outputs[0], *new_var = (float *)outputs[1];
  for (int64_t c = 0; c < channels; c++) {
    new_mean[c] = (float)((1.0 - momentum) * (double)old_mean[c] + momentum * (double)mean[c]);
    new_var[c] = (float)((1.0 - momentum) * (double)old_var[c] + momentum * unbiased * (double)var[c]);
  }
  *(int64_t *)outputs[2] = *(const int64_t *)inputs[4] + 1;
  return vl_ok();
}

const CpuOp cpu_op_batch_norm_update = {
    .name = "batch_norm_update",
    .supports = update_supports,
    .choose_layouts = cpu_choose_plain,
    .prepare = update_prepare,
    .launch = update_launch,
};
