/* Instance norm, forward and backward: the loops of batch norm over rows. A row is what is contiguous for one
 * sample and channel block, so that all rows are one sample's channel blocks, with channels of their own.
 *
 * Statistics are of deviations from a shift, as batch norm's, but the shift is made of points spread over the
 * row, since the first ones of a volume are often its background, far from the rest. It is the median of
 * three groups' means, so that no single value moves it far. With u = 2^-24 and s the shift the errors are at
 * most mean: u |mean| + 128 u E|x - s|      variance: 130 u (var + (mean - s)^2).
 *
 * Both directions read twice. Where there are enough rows a thread takes as many at a time as its share of
 * the cache holds, and the second reading comes from there; otherwise the points of every row are shared out
 * and the threads meet in between. */
#include "kernels/cpu/batch_norm.h"

#include <math.h>
#include <omp.h>

/* Inputs and outputs as README.md of graph/ops lists them. */
enum { IN_X, IN_GAMMA, IN_BETA };
enum { OUT_Y, OUT_MEAN, OUT_RSTD };
enum { BACK_DY, BACK_X, BACK_MEAN, BACK_RSTD, BACK_GAMMA, BACK_BETA, BACK_DY2 };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA };

/* ---- Rows ------------------------------------------------------------------------------------------------- */

typedef struct RowPlan {
  ChannelView view; /* of x */
  ChannelView rows; /* the same memory as one sample */
  int64_t channels; /* of all rows, padded to whole cache lines */
  int64_t group;    /* rows a thread takes at a time; 0: points are shared out */
} RowPlan;

/* A channel of the rows: where it is in (N, C); -1: padding. */
static int64_t instance_of(const RowPlan *plan, int64_t channel) {
  int64_t padded = vector_channels(&plan->view), sample = channel / padded, c = channel % padded;
  return c < plan->view.channels ? sample * plan->view.channels + c : -1;
}

/* Rows a thread's share of the cache holds of `arrays` tensors; 0 when the threads would not be evenly busy
 * with whole rows. */
static int64_t rows_at_a_time(const Kernel *kernel, const ChannelView *rows, int64_t arrays) {
  int64_t threads = kernel->threads, rounds = (rows->channel_blocks + threads - 1) / threads;
  if (4 * rounds * threads > 5 * rows->channel_blocks) return 0;
  int64_t row_bytes =
      rows->spatial * rows->block * arrays * vl_dtype_bytes(kernel->node->inputs[0]->dtype, 1);
  int64_t budget_bytes = INT64_C(4) << 20; /* as batch norm's */
  int64_t fits = budget_bytes / row_bytes;
  return fits < 1 ? 1 : fits < rounds ? fits : rounds;
}

/* `doubles` and `floats` a channel, and `arrays` tensors that are read twice. */
static Status prepare_rows(CpuDevice *device, Kernel *kernel, int32_t x, int64_t arrays, int64_t doubles,
                           int64_t floats) {
  RowPlan *plan = vl_allocate(sizeof *plan);
  kernel->data = plan;
  VL_TRY(cpu_channel_view(device, kernel->inputs[x], kernel->node->inputs[x], &plan->view));
  plan->rows = plan->view;
  plan->rows.n = 1;
  plan->rows.channel_blocks = plan->view.n * plan->view.channel_blocks;
  plan->rows.channels = vector_channels(&plan->rows);
  plan->channels = vector_by_lines(plan->rows.channels);
  plan->group = rows_at_a_time(kernel, &plan->rows, arrays);
  int64_t lanes = 2 * vector_by_lines(vector_pattern(&plan->rows));
  kernel->workspace_bytes =
      kernel->threads * (2 * plan->channels * 8 + lanes * 4) + plan->channels * (doubles * 8 + floats * 4);
  return vl_ok();
}

static int32_t threads_for(const Kernel *kernel) {
  const RowPlan *plan = kernel->data;
  return vector_threads(kernel, plan->rows.spatial * plan->rows.channels);
}

/* What the two directions do with rows, in this order; the sums of a channel come from threads first to first
 * + threads - 1. */
typedef struct RowSteps {
  void (*begin)(const void *run, Range blocks);
  void (*add)(const void *run, VectorPart part, int32_t thread);
  void (*finish)(const void *run, int32_t first, int32_t threads, Range channels);
  void (*write)(const void *run, VectorPart part);
} RowSteps;

static Range channels_of(const ChannelView *rows, Range blocks) {
  return (Range){blocks.begin * rows->block, blocks.end * rows->block};
}

/* From the end: what was read last is what the cache still holds. */
static void write_back(const RowPlan *plan, const RowSteps *steps, const void *run, VectorPart part) {
  int64_t most = 16 * VECTOR_SPAN / plan->rows.block + 1;
  for (int64_t row = part.blocks.end - 1; row >= part.blocks.begin; row--)
    for (int64_t end = part.points.end; end > part.points.begin; end -= most) {
      int64_t begin = end - most > part.points.begin ? end - most : part.points.begin;
      steps->write(run, (VectorPart){{row, row + 1}, {begin, end}});
    }
}

/* Called by every thread of a region. */
static void walk_rows(const RowPlan *plan, const RowSteps *steps, const void *run) {
  const ChannelView *rows = &plan->rows;
  int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  Range own = vector_share(rows->channel_blocks, threads, thread);
  if (plan->group == 0) {
    VectorPart part = {{0, rows->channel_blocks}, vector_share(rows->spatial, threads, thread)};
    steps->begin(run, own);
#pragma omp barrier
    steps->add(run, part, thread);
#pragma omp barrier
    steps->finish(run, 0, threads, channels_of(rows, own));
#pragma omp barrier
    write_back(plan, steps, run, part);
    return;
  }
  for (int64_t i = own.begin; i < own.end; i += plan->group) {
    int64_t end = i + plan->group < own.end ? i + plan->group : own.end;
    VectorPart part = {{i, end}, {0, rows->spatial}};
    steps->begin(run, part.blocks);
    steps->add(run, part, thread);
    steps->finish(run, thread, 1, channels_of(rows, part.blocks));
    write_back(plan, steps, run, part);
  }
}

/* The sums of a channel from threads first..first + threads - 1, in that order. */
static void combine(const RowPlan *plan, const double *sums, int32_t first, int32_t threads, int64_t channel,
                    double total[2]) {
  total[0] = total[1] = 0.0;
  for (int32_t t = first; t < first + threads; t++) {
    total[0] += sums[2 * plan->channels * t + channel];
    total[1] += sums[2 * plan->channels * t + plan->channels + channel];
  }
}

/* ---- Forward ---------------------------------------------------------------------------------------------- */

typedef struct Forward {
  const RowPlan *plan;
  VectorArray x, y, gamma, beta;
  float *mean_out, *rstd_out;
  double epsilon;
  BatchNormRelu relu;
  double *sums; /* [thread][2][channels] */
  float *shift; /* [channels], as the next three */
  float *mean, *scale, *offset;
  float *lanes; /* [thread][2][pattern], by cache lines */
} Forward;

/* Points that a shift is made of: those of a short row all, else GROUPS times GROUP. */
enum { GROUPS = 3, GROUP = VECTOR_RUN / GROUPS };

/* Adds `points` points from `at` on, `step` apart around the row. */
VECTOR_CLONES
static void add_points(double *sums, const void *row, bool bf16, int64_t block, int64_t spatial,
                       int64_t points, int64_t at, int64_t step) {
  for (int64_t p = 0; p < points; p++) {
#pragma omp simd
    for (int64_t lane = 0; lane < block; lane++)
      sums[lane] += (double)vector_load(row, at * block + lane, bf16);
    at = at + step < spatial ? at + step : at + step - spatial;
  }
}

/* The mean of some points of a row, in its channels' places. */
static void mean_of_points(const Forward *run, int64_t row, int64_t points, int64_t at, int64_t step,
                           float *means) {
  const ChannelView *rows = &run->plan->rows;
  double *sums = run->sums + row * rows->block; /* the first thread's, which nobody uses yet for this row */
  for (int64_t lane = 0; lane < rows->block; lane++)
    sums[lane] = 0.0;
  add_points(sums, vector_at(run->x, row * rows->spatial * rows->block), run->x.dtype == DTYPE_BF16,
             rows->block, rows->spatial, points, at, step);
  for (int64_t lane = 0; lane < rows->block; lane++) {
    double mean = sums[lane] / (double)points;
    /* An infinite shift would turn finite differences into NaN. */
    means[row * rows->block + lane] = isfinite(mean) ? (float)mean : 0.0F;
  }
}

static float median(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }

/* Multiples of the golden ratio are spread evenly, whatever the sizes of a plane and a line. The
 * coefficients' places hold the groups' means. */
static void forward_begin(const void *context, Range blocks) {
  const Forward *run = context;
  const ChannelView *rows = &run->plan->rows;
  float *const means[GROUPS] = {run->mean, run->scale, run->offset};
  int64_t step = (int64_t)(0.6180339887498949 * (double)rows->spatial);
  for (int64_t row = blocks.begin; row < blocks.end; row++) {
    if (rows->spatial <= VECTOR_RUN) {
      mean_of_points(run, row, rows->spatial, 0, 1, run->shift);
      continue;
    }
    for (int64_t g = 0; g < GROUPS; g++)
      mean_of_points(run, row, GROUP, g * GROUP * step % rows->spatial, step, means[g]);
    for (int64_t k = row * rows->block; k < (row + 1) * rows->block; k++)
      run->shift[k] = median(run->mean[k], run->scale[k], run->offset[k]);
  }
}

static void forward_add(const void *context, VectorPart part, int32_t thread) {
  const Forward *run = context;
  int64_t lanes = 2 * vector_by_lines(vector_pattern(&run->plan->rows));
  batch_norm_sums(&run->plan->rows, run->x, part, run->shift, run->sums + 2 * run->plan->channels * thread,
                  run->lanes + thread * lanes);
}

static void forward_finish(const void *context, int32_t first, int32_t threads, Range channels) {
  const Forward *run = context;
  const RowPlan *plan = run->plan;
  double points = (double)plan->rows.spatial;
  for (int64_t k = channels.begin; k < channels.end; k++) {
    int64_t instance = instance_of(plan, k), c = instance % plan->view.channels;
    run->mean[k] = run->scale[k] = run->offset[k] = 0.0F;
    if (instance < 0) continue;
    double total[2];
    combine(plan, run->sums, first, threads, k, total);
    double difference = total[0] / points, variance = total[1] / points - difference * difference;
    variance = variance < 0.0 ? 0.0 : variance; /* NaN stays */
    float rstd = (float)(1.0 / sqrt(variance + run->epsilon));
    run->mean[k] = (float)((double)run->shift[k] + difference);
    run->scale[k] = vector_element(run->gamma, c) * rstd;
    run->offset[k] = vector_element(run->beta, c);
    if (run->mean_out != NULL) run->mean_out[instance] = run->mean[k];
    if (run->rstd_out != NULL) run->rstd_out[instance] = rstd;
  }
}

static void forward_write(const void *context, VectorPart part) {
  const Forward *run = context;
  VectorArray none = {.address = NULL};
  BatchNormCoefficients all = {run->mean, run->scale, run->offset};
  batch_norm_normalise(&run->plan->rows, all, run->y, run->x, none, run->relu, part);
}

static const RowSteps forward_steps = {forward_begin, forward_add, forward_finish, forward_write};

static Status forward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const RowPlan *plan = kernel->data;
  const OpParams *params = &kernel->node->params;
  Forward run = {.plan = plan,
                 .x = vector_input(kernel, inputs, IN_X),
                 .y = vector_output(kernel, outputs, OUT_Y),
                 .gamma = vector_input(kernel, inputs, IN_GAMMA),
                 .beta = vector_input(kernel, inputs, IN_BETA),
                 .mean_out = vector_output(kernel, outputs, OUT_MEAN).address,
                 .rstd_out = vector_output(kernel, outputs, OUT_RSTD).address,
                 .epsilon = params->epsilon,
                 .relu = batch_norm_relu(params->relu != 0, params->alpha),
                 .sums = (double *)workspace};
  run.shift = (float *)(run.sums + 2 * plan->channels * kernel->threads);
  run.mean = run.shift + plan->channels;
  run.scale = run.mean + plan->channels;
  run.offset = run.scale + plan->channels;
  run.lanes = run.offset + plan->channels;
  int32_t wanted = threads_for(kernel);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  walk_rows(plan, &forward_steps, &run);
  return vl_ok();
}

static Status forward_prepare(CpuDevice *device, Kernel *kernel) {
  return prepare_rows(device, kernel, IN_X, 1, 0, 4);
}

const CpuOp cpu_op_instance_norm = {
    .name = "instance_norm",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = forward_prepare,
    .launch = forward_launch,
};

/* ---- Backward ----------------------------------------------------------------------------------------------
 * With g the gradient behind the ReLU, n values an instance, r its rstd, t = x - mean:
 *   dbeta = sum g, dgamma = sum r g t, over the instances of a channel
 *   dx = gamma r (g - E g - t r^2 E(g t)) = gain g + (slope t + constant) */

typedef struct Backward {
  const RowPlan *plan;
  BatchNormGradient gradient;
  VectorArray gamma, beta;
  const float *mean, *rstd;
  double *sums;   /* [thread][2][channels] */
  double *totals; /* [2][channels]: what an instance brings to dgamma and dbeta */
  float *lanes;   /* [thread][2][pattern], by cache lines */
} Backward;

/* Forward's coefficients, as it made them. */
static void backward_begin(const void *context, Range blocks) {
  const Backward *run = context;
  const RowPlan *plan = run->plan;
  float *const *all = run->gradient.all;
  Range channels = channels_of(&plan->rows, blocks);
  for (int64_t k = channels.begin; k < channels.end; k++) {
    int64_t instance = instance_of(plan, k), c = instance % plan->view.channels;
    bool real = instance >= 0;
    all[NORM_MEAN][k] = real ? run->mean[instance] : 0.0F;
    all[NORM_SCALE][k] = real ? vector_element(run->gamma, c) * run->rstd[instance] : 0.0F;
    all[NORM_BETA][k] = real && run->beta.address != NULL ? vector_element(run->beta, c) : 0.0F;
  }
}

static void backward_add(const void *context, VectorPart part, int32_t thread) {
  const Backward *run = context;
  int64_t lanes = 2 * vector_by_lines(vector_pattern(&run->plan->rows));
  batch_norm_gradient_sums(&run->gradient, part, run->sums + 2 * run->plan->channels * thread,
                           run->lanes + thread * lanes);
}

static void backward_finish(const void *context, int32_t first, int32_t threads, Range channels) {
  const Backward *run = context;
  const RowPlan *plan = run->plan;
  float *const *all = run->gradient.all;
  double points = (double)plan->rows.spatial;
  for (int64_t k = channels.begin; k < channels.end; k++) {
    int64_t instance = instance_of(plan, k), c = instance % plan->view.channels;
    all[NORM_GAIN][k] = all[NORM_SLOPE][k] = all[NORM_CONSTANT][k] = 0.0F;
    if (instance < 0) continue;
    double total[2], r = (double)run->rstd[instance];
    combine(plan, run->sums, first, threads, k, total);
    double gain = (double)vector_element(run->gamma, c) * r;
    all[NORM_GAIN][k] = (float)gain;
    all[NORM_SLOPE][k] = (float)(-gain * r * r * total[1] / points);
    all[NORM_CONSTANT][k] = (float)(-gain * total[0] / points);
    run->totals[k] = r * total[1];
    run->totals[plan->channels + k] = total[0];
  }
}

static void backward_write(const void *context, VectorPart part) {
  const Backward *run = context;
  batch_norm_differentiate(&run->gradient, part);
}

static const RowSteps backward_steps = {backward_begin, backward_add, backward_finish, backward_write};

/* Over the samples, in their order. */
static void sum_instances(const RowPlan *plan, const double *totals, float *to) {
  int64_t padded = vector_channels(&plan->view);
  for (int64_t c = 0; to != NULL && c < plan->view.channels; c++) {
    double sum = 0.0;
    for (int64_t n = 0; n < plan->view.n; n++)
      sum += totals[n * padded + c];
    to[c] = (float)sum;
  }
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const RowPlan *plan = kernel->data;
  const OpParams *params = &kernel->node->params;
  Backward run = {.plan = plan,
                  .gradient = {.view = &plan->rows,
                               .dy = vector_input(kernel, inputs, BACK_DY),
                               .dy2 = vector_input(kernel, inputs, BACK_DY2),
                               .x = vector_input(kernel, inputs, BACK_X),
                               .dx = vector_output(kernel, outputs, OUT_DX),
                               .relu = params->relu != 0,
                               .below = (float)params->alpha},
                  .gamma = vector_input(kernel, inputs, BACK_GAMMA),
                  .beta = vector_input(kernel, inputs, BACK_BETA),
                  .mean = (const float *)inputs[BACK_MEAN],
                  .rstd = (const float *)inputs[BACK_RSTD],
                  .sums = (double *)workspace};
  run.totals = run.sums + 2 * plan->channels * kernel->threads;
  float *next = (float *)(run.totals + 2 * plan->channels);
  for (int i = 0; i < NORM_COEFFICIENTS; i++, next += plan->channels)
    run.gradient.all[i] = next;
  run.lanes = next;
  int32_t wanted = threads_for(kernel);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  walk_rows(plan, &backward_steps, &run);
  sum_instances(plan, run.totals, vector_output(kernel, outputs, OUT_DGAMMA).address);
  sum_instances(plan, run.totals + plan->channels, vector_output(kernel, outputs, OUT_DBETA).address);
  return vl_ok();
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  bool two = node->input_count > BACK_DY2 && node->inputs[BACK_DY2] != NULL;
  return prepare_rows(device, kernel, BACK_X, two ? 3 : 2, 2, NORM_COEFFICIENTS);
}

const CpuOp cpu_op_instance_norm_backward = {
    .name = "instance_norm_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
