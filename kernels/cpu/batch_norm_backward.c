/* Batch norm, backward in training mode, with the gradient of a ReLU and of a residual that end the forward
 * op.
 *
 * With g the gradient behind the ReLU, n values a channel, r = 1 / sqrt(var + epsilon), t = x - mean:
 *   dbeta = sum g, dgamma = r sum g t
 *   dx = gamma r (g - dbeta / n - t r dgamma / n) = gain g + (slope t + constant)
 * The sums are made as the statistics are (batch_norm.c): fewer than 128 values a lane in f32, the rest in
 * double, so with u = 2^-24 their errors are at most 130 u sum |g| and 131 u sum |g t|.
 *
 * dx needs a channel's sums first, so everything is read twice. Where there are enough channel blocks a
 * thread takes as many at a time as its share of the cache holds, and the second reading comes from there;
 * otherwise the points are shared out and the threads meet in between. */
#include "kernels/cpu/batch_norm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Inputs and outputs as README.md of graph/ops lists them. */
enum { IN_DY, IN_X, IN_MEAN, IN_VAR, IN_GAMMA, IN_BETA, IN_Y };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA, OUT_DRESIDUAL };

typedef struct BackwardPlan {
  ChannelView view;
  int64_t channels; /* padded to whole cache lines */
  int64_t group;    /* channel blocks a thread takes at a time; 0: points are shared out */
} BackwardPlan;

/* What a channel's values are computed with; zero in the padding. The first three are forward's. */
enum { MEAN, SCALE, BETA, GAIN, SLOPE, CONSTANT, COEFFICIENTS };
/* Those of a tile. */
typedef struct Coefficients {
  const float *of[COEFFICIENTS];
} Coefficients;

/* One launch. */
typedef struct Backward {
  const Kernel *kernel;
  const BackwardPlan *plan;
  const uintptr_t *inputs, *outputs;
  VectorArray dy, x, y, dx, dresidual;
  bool relu;
  float least;              /* the largest value the output's type rounds to zero */
  float *all[COEFFICIENTS]; /* [channels] each */
  double *sums;             /* [thread][2][channels] */
  float *lanes;             /* [thread][2][pattern], by cache lines */
} Backward;

/* ---- The gradient behind the ReLU ------------------------------------------------------------------------ */

VECTOR_CLONES
static void mask_by_output(float *g, const float *dy, const float *y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    g[i] = y[i] > 0.0F ? dy[i] : 0.0F;
}

VECTOR_INLINE void mask_patterns(float *g, const float *dy, const float *x, int64_t count, int64_t pattern,
                                 const float *restrict mean, const float *restrict scale,
                                 const float *restrict beta, float least) {
  for (int64_t i = 0; i < count; i += pattern) {
    int64_t width = count - i < pattern ? count - i : pattern;
#pragma omp simd
    for (int64_t p = 0; p < width; p++)
      g[i + p] = batch_norm_value(x[i + p], mean[p], scale[p], beta[p]) > least ? dy[i + p] : 0.0F;
  }
}

VECTOR_CLONES
static void mask_by_input(float *g, const float *dy, const float *x, int64_t count, int64_t pattern,
                          Coefficients by, float least) {
  if (pattern != VECTOR_LANES) {
    mask_patterns(g, dy, x, count, pattern, by.of[MEAN], by.of[SCALE], by.of[BETA], least);
    return;
  }
  int64_t whole = count - count % VECTOR_LANES;
  mask_patterns(g, dy, x, whole, VECTOR_LANES, by.of[MEAN], by.of[SCALE], by.of[BETA], least);
  mask_patterns(g + whole, dy + whole, x + whole, count - whole, pattern, by.of[MEAN], by.of[SCALE],
                by.of[BETA], least);
}

/* dy where the forward output was positive; in place when there was no ReLU, else in buffer. */
static const float *masked(const Backward *run, const VectorTile *tile, Coefficients by, const float *x,
                           float *buffer, float *scratch) {
  const float *dy = vector_read(run->dy, tile->offset, tile->count, buffer);
  if (!run->relu) return dy;
  if (run->y.address != NULL) {
    mask_by_output(buffer, dy, vector_read(run->y, tile->offset, tile->count, scratch), tile->count);
  } else {
    mask_by_input(buffer, dy, x, tile->count, vector_pattern(&run->plan->view), by, run->least);
  }
  return buffer;
}

/* ---- First reading: sums ---------------------------------------------------------------------------------- */

VECTOR_INLINE void add_products(const float *g, const float *x, int64_t count, int64_t pattern,
                                const float *restrict mean, float *restrict sum, float *restrict product) {
  int64_t i = 0;
  for (; i + 4 * pattern <= count; i += 4 * pattern) {
    const float *g0 = g + i, *g1 = g0 + pattern, *g2 = g1 + pattern, *g3 = g2 + pattern;
    const float *x0 = x + i, *x1 = x0 + pattern, *x2 = x1 + pattern, *x3 = x2 + pattern;
#pragma omp simd
    for (int64_t p = 0; p < pattern; p++) {
      sum[p] += (g0[p] + g1[p]) + (g2[p] + g3[p]);
      product[p] += (g0[p] * (x0[p] - mean[p]) + g1[p] * (x1[p] - mean[p])) +
                    (g2[p] * (x2[p] - mean[p]) + g3[p] * (x3[p] - mean[p]));
    }
  }
  for (; i < count; i += pattern) {
    int64_t width = count - i < pattern ? count - i : pattern;
#pragma omp simd
    for (int64_t p = 0; p < width; p++) {
      sum[p] += g[i + p];
      product[p] += g[i + p] * (x[i + p] - mean[p]);
    }
  }
}

VECTOR_CLONES
static void add_tile(const float *g, const float *x, int64_t count, int64_t pattern, const float *mean,
                     float *sum, float *product) {
  if (pattern == VECTOR_LANES)
    add_products(g, x, count, VECTOR_LANES, mean, sum, product);
  else
    add_products(g, x, count, pattern, mean, sum, product);
}

/* Repeats the first `count` coefficients of a tile's channel block. */
static void repeat_row(const Backward *run, const VectorTile *tile, int count,
                       float repeated[COEFFICIENTS][2 * VECTOR_LANES], Coefficients *row) {
  for (int i = 0; i < count; i++)
    row->of[i] = vector_repeat(&run->plan->view, run->all[i], tile->block, repeated[i]);
}

static Coefficients coefficients_at(const Coefficients *row, int64_t phase, int count) {
  Coefficients at = {{NULL}};
  for (int i = 0; i < count; i++)
    at.of[i] = row->of[i] + phase;
  return at;
}

static void sum_part(const Backward *run, VectorPart part, double *sums, float *lanes) {
  _Alignas(64) float buffer[3][VECTOR_TILE], repeated[COEFFICIENTS][2 * VECTOR_LANES];
  const ChannelView *view = &run->plan->view;
  int64_t pattern = vector_pattern(view), channels = run->plan->channels, block = view->block, values = 0;
  float *sum = lanes, *product = lanes + vector_by_lines(pattern);
  memset(lanes, 0, (size_t)vector_by_lines(pattern) * 2 * sizeof *lanes);
  size_t part_bytes = (size_t)((part.blocks.end - part.blocks.begin) * block) * sizeof *sums;
  memset(sums + part.blocks.begin * block, 0, part_bytes);
  memset(sums + channels + part.blocks.begin * block, 0, part_bytes);
  Coefficients row;
  VectorWalk walk = vector_walk(view, part);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) repeat_row(run, &tile, GAIN, repeated, &row);
    Coefficients by = coefficients_at(&row, tile.phase, GAIN);
    const float *x = vector_read(run->x, tile.offset, tile.count, buffer[0]);
    const float *g = masked(run, &tile, by, x, buffer[1], buffer[2]);
    add_tile(g, x, tile.count, pattern, by.of[MEAN], sum + tile.phase, product + tile.phase);
    values += vector_values(&tile, pattern);
    if (tile.ends || values >= VECTOR_RUN) {
      vector_fold(sums + tile.block * block, sum, pattern, block);
      vector_fold(sums + channels + tile.block * block, product, pattern, block);
      values = 0;
    }
  }
}

/* ---- Between the readings: coefficients -------------------------------------------------------------------- */

static void fill_forward(const Backward *run, Range channels) {
  const Kernel *kernel = run->kernel;
  const float *mean = (const float *)run->inputs[IN_MEAN], *var = (const float *)run->inputs[IN_VAR];
  VectorArray gamma = vector_input(kernel, run->inputs, IN_GAMMA);
  VectorArray beta = vector_input(kernel, run->inputs, IN_BETA);
  for (int64_t c = channels.begin; c < channels.end; c++) {
    bool real = c < run->plan->view.channels;
    run->all[MEAN][c] = real ? mean[c] : 0.0F;
    run->all[SCALE][c] =
        real ? batch_norm_scale(vector_element(gamma, c), var[c], kernel->node->params.epsilon) : 0.0F;
    run->all[BETA][c] = real && beta.address != NULL ? vector_element(beta, c) : 0.0F;
  }
}

/* From the sums of threads first..first + threads - 1, in that order. */
static void fill_backward(const Backward *run, int32_t first, int32_t threads, Range channels) {
  const float *var = (const float *)run->inputs[IN_VAR];
  VectorArray gamma = vector_input(run->kernel, run->inputs, IN_GAMMA);
  float *dgamma = vector_output(run->kernel, run->outputs, OUT_DGAMMA).address;
  float *dbeta = vector_output(run->kernel, run->outputs, OUT_DBETA).address;
  int64_t padded = run->plan->channels;
  const ChannelView *view = &run->plan->view;
  double points = (double)(view->n * view->spatial);
  for (int64_t c = channels.begin; c < channels.end; c++) {
    run->all[GAIN][c] = run->all[SLOPE][c] = run->all[CONSTANT][c] = 0.0F;
    if (c >= view->channels) continue;
    double sum = 0.0, product = 0.0;
    for (int32_t t = first; t < first + threads; t++) {
      sum += run->sums[2 * t * padded + c];
      product += run->sums[(2 * t + 1) * padded + c];
    }
    double r = 1.0 / sqrt((double)var[c] + run->kernel->node->params.epsilon);
    double gain = (double)vector_element(gamma, c) * r;
    run->all[GAIN][c] = (float)gain;
    run->all[SLOPE][c] = (float)(-gain * r * r * product / points);
    run->all[CONSTANT][c] = (float)(-gain * sum / points);
    if (dgamma != NULL) dgamma[c] = (float)(r * product);
    if (dbeta != NULL) dbeta[c] = (float)sum;
  }
}

/* ---- Second reading: dx ------------------------------------------------------------------------------------ */

VECTOR_INLINE void differentiate_values(float *dx, const float *g, const float *x, int64_t count,
                                        const float *restrict mean, const float *restrict gain,
                                        const float *restrict slope, const float *restrict constant) {
#pragma omp simd
  for (int64_t p = 0; p < count; p++)
    dx[p] = gain[p] * g[p] + ((x[p] - mean[p]) * slope[p] + constant[p]);
}

VECTOR_INLINE void differentiate_patterns(float *dx, const float *g, const float *x, int64_t count,
                                          int64_t pattern, Coefficients by) {
  int64_t i = 0;
  for (; i + pattern <= count; i += pattern)
    differentiate_values(dx + i, g + i, x + i, pattern, by.of[MEAN], by.of[GAIN], by.of[SLOPE],
                         by.of[CONSTANT]);
  differentiate_values(dx + i, g + i, x + i, count - i, by.of[MEAN], by.of[GAIN], by.of[SLOPE],
                       by.of[CONSTANT]);
}

VECTOR_CLONES
static void differentiate_tile(float *dx, const float *g, const float *x, int64_t count, int64_t pattern,
                               Coefficients by) {
  if (pattern == VECTOR_LANES)
    differentiate_patterns(dx, g, x, count, VECTOR_LANES, by);
  else
    differentiate_patterns(dx, g, x, count, pattern, by);
}

static void differentiate_part(const Backward *run, VectorPart part) {
  _Alignas(64) float buffer[4][VECTOR_TILE], repeated[COEFFICIENTS][2 * VECTOR_LANES];
  const ChannelView *view = &run->plan->view;
  int64_t pattern = vector_pattern(view);
  Coefficients row;
  VectorWalk walk = vector_walk(view, part);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) repeat_row(run, &tile, COEFFICIENTS, repeated, &row);
    Coefficients by = coefficients_at(&row, tile.phase, COEFFICIENTS);
    const float *x = vector_read(run->x, tile.offset, tile.count, buffer[0]);
    const float *g = masked(run, &tile, by, x, buffer[1], buffer[2]);
    if (run->dresidual.address != NULL) vector_write(run->dresidual, tile.offset, tile.count, g);
    if (run->dx.address != NULL) { /* last, since it may be dy */
      float *dx = vector_target(run->dx, tile.offset, buffer[3]);
      differentiate_tile(dx, g, x, tile.count, pattern, by);
      vector_write(run->dx, tile.offset, tile.count, dx);
    }
  }
  vector_write_end(run->dx);
  vector_write_end(run->dresidual);
}

/* ---- The op ------------------------------------------------------------------------------------------------ */

static void run_by_blocks(const Backward *run, Range blocks, int32_t thread) {
  const ChannelView *view = &run->plan->view;
  int64_t lanes = 2 * vector_by_lines(vector_pattern(view));
  for (int64_t i = blocks.begin; i < blocks.end; i += run->plan->group) {
    int64_t end = i + run->plan->group < blocks.end ? i + run->plan->group : blocks.end;
    VectorPart part = {{i, end}, {0, view->n * view->spatial}};
    Range channels = {i * view->block, end * view->block};
    fill_forward(run, channels);
    sum_part(run, part, run->sums + 2 * thread * run->plan->channels, run->lanes + thread * lanes);
    fill_backward(run, thread, 1, channels);
    differentiate_part(run, part);
  }
}

/* Called by every thread of a region. */
static void run_by_points(const Backward *run, int32_t threads, int32_t thread) {
  const ChannelView *view = &run->plan->view;
  int64_t lanes = 2 * vector_by_lines(vector_pattern(view));
  VectorPart part = {{0, view->channel_blocks}, vector_share(view->n * view->spatial, threads, thread)};
  Range channels = vector_share(vector_channels(view), threads, thread);
  fill_forward(run, channels);
#pragma omp barrier
  sum_part(run, part, run->sums + 2 * thread * run->plan->channels, run->lanes + thread * lanes);
#pragma omp barrier
  fill_backward(run, 0, threads, channels);
#pragma omp barrier
  differentiate_part(run, part);
}

static Backward backward_run(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace) {
  const BackwardPlan *plan = kernel->data;
  Backward run = {.kernel = kernel, .plan = plan, .inputs = inputs, .outputs = outputs};
  run.dy = vector_input(kernel, inputs, IN_DY);
  run.x = vector_input(kernel, inputs, IN_X);
  run.y = vector_input(kernel, inputs, IN_Y);
  run.dx = vector_output(kernel, outputs, OUT_DX);
  run.dresidual = vector_output(kernel, outputs, OUT_DRESIDUAL);
  run.relu = kernel->node->params.relu != 0;
  /* Half of bf16's smallest number rounds to zero, and then forward's output was not positive. */
  run.least = run.x.dtype == DTYPE_BF16 ? 0x1p-134F : 0.0F;
  run.sums = (double *)workspace;
  float *next = (float *)(run.sums + 2 * kernel->threads * plan->channels);
  for (int i = 0; i < COEFFICIENTS; i++, next += plan->channels)
    run.all[i] = next;
  run.lanes = next;
  return run;
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  Backward run = backward_run(kernel, inputs, outputs, workspace);
  const ChannelView *view = &run.plan->view;
  int32_t wanted = vector_threads(kernel, view->n * view->spatial * vector_channels(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    if (run.plan->group > 0)
      run_by_blocks(&run, vector_share(view->channel_blocks, threads, thread), thread);
    else
      run_by_points(&run, threads, thread);
  }
  return vl_ok();
}

/* Channel blocks a thread's share of the cache holds of dy, x and y; 0 when the threads would not be evenly
 * busy with whole blocks. */
static int64_t blocks_at_a_time(const Kernel *kernel, const ChannelView *view) {
  int64_t threads = kernel->threads, rounds = (view->channel_blocks + threads - 1) / threads;
  if (4 * rounds * threads > 5 * view->channel_blocks) return 0;
  int64_t element_bytes = 0;
  for (int32_t i = 0; i < kernel->node->input_count; i++) {
    const Tensor *tensor = kernel->node->inputs[i];
    if (tensor != NULL && (i == IN_DY || i == IN_X || i == IN_Y))
      element_bytes += vl_dtype_bytes(tensor->dtype, 1);
  }
  int64_t block_bytes = view->n * view->spatial * view->block * element_bytes;
  int64_t budget_bytes = INT64_C(2) << 20;
  int64_t fits = budget_bytes / block_bytes;
  return fits < 1 ? 1 : fits < rounds ? fits : rounds;
}

static Status backward_supports(CpuDevice *device, const Node *node) {
  bool from_output = node->input_count > IN_Y && node->inputs[IN_Y] != NULL;
  bool from_input = node->input_count > IN_BETA && node->inputs[IN_BETA] != NULL && node->params.alpha == 0.0;
  if (node->params.relu != 0 && !from_output && !from_input)
    return vl_error(VL_UNSUPPORTED,
                    "batch_norm_backward in %s: the ReLU's sign needs y, or beta where there was no residual",
                    node->scope);
  return cpu_supports_f32_bf16(device, node);
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  BackwardPlan *plan = vl_allocate(sizeof *plan);
  kernel->data = plan;
  VL_TRY(cpu_channel_view(device, kernel->inputs[IN_X], kernel->node->inputs[IN_X], &plan->view));
  plan->channels = vector_by_lines(vector_channels(&plan->view));
  plan->group = blocks_at_a_time(kernel, &plan->view);
  int64_t lanes = 2 * vector_by_lines(vector_pattern(&plan->view));
  kernel->workspace_bytes =
      kernel->threads * (2 * plan->channels * 8 + lanes * 4) + COEFFICIENTS * plan->channels * 4;
  return vl_ok();
}

const CpuOp cpu_op_batch_norm_backward = {
    .name = "batch_norm_backward",
    .supports = backward_supports,
    .choose_layouts = vector_choose,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
