/* Layer norm over the last dimension and its gradient: plain tensors, a thread takes whole rows, and a row is
 * read from memory once.
 *
 * Forward: the mean, then the squared differences from it, so that a large mean costs the variance nothing.
 * With u = 2^-24, fewer than 128 roundings in f32 touch a value in either sum, the rest is in double.
 *
 * Backward, with n = (x - mean) rstd the normal value, g = dy gamma and a row of H values:
 *   dbeta = sum dy, dgamma = sum dy n over rows;  dx = rstd (g - sum g / H - n sum g n / H)
 * Sums over rows are made in f32 for VECTOR_RUN rows and then go to double; threads are added in their order.
 *
 * residual_norm makes a row of the sum it normalises before it reads it, and its gradient drops the row it
 * has made: from the cache, both as dropout.c and elementwise.c compute them.
 *
 * Rows are walked in blocks of VECTOR_LANES values, in bf16 as pairs: what is kept per column (gamma, beta
 * and their gradients while they are summed) is then in pair order within a block. The values after the last
 * whole block are in order. */
#include "kernels/cpu/random.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>

typedef struct RowStatistics {
  float mean, rstd;
} RowStatistics;

static int64_t width_of(const Tensor *x) { return x->shape[x->rank - 1]; }

static int64_t whole_blocks(int64_t width) { return width / VECTOR_LANES * VECTOR_LANES; }

/* The column of place `i` in the order rows are walked in. */
static int64_t column_of(int64_t i, int64_t width, bool bf16) {
  if (!bf16 || i >= whole_blocks(width)) return i;
  int64_t lane = i % VECTOR_LANES;
  return i - lane + (lane < VECTOR_PAIRS ? 2 * lane : 2 * (lane - VECTOR_PAIRS) + 1);
}

/* A parameter as f32 in that order. */
static void order_columns(float *to, VectorArray from, int64_t width, bool bf16) {
  for (int64_t i = 0; i < width; i++)
    to[i] = vector_element(from, column_of(i, width, bf16));
}

/* ---- Dropout of rows --------------------------------------------------------------------------------------- */

typedef struct Mask {
  uint64_t key;
  uint32_t threshold; /* kept when the top 24 bits are at least this; 0: all are, and none is drawn */
  float scale;
  int64_t first_sample, per_sample; /* elements of a sample */
} Mask;

static Mask mask_of(const Kernel *kernel, const LaunchContext *context) {
  const OpParams *params = &kernel->node->params;
  const Tensor *x = kernel->node->inputs[0];
  Mask mask = {.threshold = (uint32_t)ceil(params->rate * 0x1p24),
               .scale = (float)(1.0 / (1.0 - params->rate)),
               .first_sample = context->first_sample,
               .per_sample = vl_tensor_elements(x) / x->shape[0]};
  if (mask.threshold > 0) mask.key = vl_random_key(context->seed, context->step, params->random_scope);
  return mask;
}

/* Words of the elements from `offset` on, all of one sample; zeros where none are drawn. */
static const uint32_t *draw(const Mask *mask, int64_t offset, int64_t count, uint32_t *words) {
  if (mask->threshold > 0)
    return random_words(mask->key, (uint64_t)(mask->first_sample + offset / mask->per_sample),
                        offset % mask->per_sample, count, words);
  memset(words, 0, (size_t)count * sizeof *words);
  return words;
}

/* y = residual + dropout(x), or without a residual the dropout. */
VECTOR_CLONES
static void drop_tile(float *y, const float *x, const float *residual, const uint32_t *restrict words,
                      int64_t count, uint32_t threshold, float scale) {
  if (residual != NULL) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
      y[i] = residual[i] + ((words[i] >> 8) >= threshold ? scale * x[i] : 0.0F);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
      y[i] = (words[i] >> 8) >= threshold ? scale * x[i] : 0.0F;
  }
}

/* A row, tile by tile; y may be x or the residual, whose address is NULL where there is none. */
static void drop_row(const Mask *mask, VectorArray y, VectorArray x, VectorArray residual, int64_t offset,
                     int64_t width) {
  _Alignas(64) float buffer[3][VECTOR_TILE];
  _Alignas(64) uint32_t words[VECTOR_TILE + 8];
  for (int64_t i = offset; i < offset + width; i += VECTOR_TILE) {
    int64_t count = offset + width - i < VECTOR_TILE ? offset + width - i : VECTOR_TILE;
    const bool onto = residual.address != NULL;
    if (onto) { /* what is read next comes from memory */
      vector_prefetch(x.address, i, count, x.dtype == DTYPE_BF16);
      vector_prefetch(residual.address, i, count, residual.dtype == DTYPE_BF16);
    }
    const uint32_t *drawn = draw(mask, i, count, words);
    const float *from = vector_read(x, i, count, buffer[0]);
    const float *other = onto ? vector_read(residual, i, count, buffer[1]) : NULL;
    float *to = vector_target(y, i, buffer[2]);
    drop_tile(to, from, other, drawn, count, mask->threshold, mask->scale);
    vector_write(y, i, count, to);
  }
}

/* ---- Forward: statistics ----------------------------------------------------------------------------------- */

/* What the i-th value brings, or in bf16 the i-th pair of values. */
VECTOR_INLINE float term(const void *x, int64_t i, bool bf16, bool squared, float shift) {
  VectorPair pair = bf16 ? vector_load_pair(x, i) : (VectorPair){vector_load(x, i, false), 0.0F};
  if (!bf16) return squared ? (pair.even - shift) * (pair.even - shift) : pair.even;
  if (!squared) return pair.even + pair.odd;
  return (pair.even - shift) * (pair.even - shift) + (pair.odd - shift) * (pair.odd - shift);
}

/* The sum of at most VECTOR_RUN terms a lane: of values, or of their squared differences from `shift`. The
 * second reading, from the cache, fetches what follows. */
VECTOR_INLINE double sum_run(const void *x, Range run, bool bf16, bool squared, float shift) {
  float lanes[VECTOR_LANES] = {0.0F};
  int64_t i = run.begin;
  for (; i + 4 * VECTOR_LANES <= run.end; i += 4 * VECTOR_LANES) {
    if (squared) vector_prefetch(x, i, 4 * VECTOR_LANES, false); /* a pair has the bytes of an f32 */
#pragma omp simd
    for (int64_t l = i; l < i + VECTOR_LANES; l++)
      lanes[l - i] += (term(x, l, bf16, squared, shift) + term(x, l + VECTOR_LANES, bf16, squared, shift)) +
                      (term(x, l + 2 * VECTOR_LANES, bf16, squared, shift) +
                       term(x, l + 3 * VECTOR_LANES, bf16, squared, shift));
  }
  for (; i < run.end; i += VECTOR_LANES) {
    int64_t end = i + VECTOR_LANES < run.end ? i + VECTOR_LANES : run.end;
#pragma omp simd
    for (int64_t l = i; l < end; l++)
      lanes[l - i] += term(x, l, bf16, squared, shift);
  }
  return vector_total(lanes);
}

VECTOR_INLINE double sum_row(const void *x, int64_t width, bool bf16, bool squared, float shift) {
  const int64_t most = VECTOR_RUN * VECTOR_LANES;
  int64_t terms = bf16 ? width / 2 : width;
  double sum = 0.0;
  for (int64_t i = 0; i < terms; i += most)
    sum += sum_run(x, (Range){i, i + most < terms ? i + most : terms}, bf16, squared, shift);
  if (bf16 && width % 2 == 1) {
    float last = vector_load(x, width - 1, true);
    sum += (double)(squared ? (last - shift) * (last - shift) : last);
  }
  return sum;
}

VECTOR_INLINE RowStatistics row_statistics(const void *x, int64_t width, bool bf16, double epsilon) {
  float mean = (float)(sum_row(x, width, bf16, false, 0.0F) / (double)width);
  double var = sum_row(x, width, bf16, true, mean) / (double)width;
  return (RowStatistics){mean, (float)(1.0 / sqrt(var + epsilon))};
}

VECTOR_CLONES
static RowStatistics statistics_of(const void *x, int64_t width, bool bf16, double epsilon) {
  return bf16 ? row_statistics(x, width, true, epsilon) : row_statistics(x, width, false, epsilon);
}

/* ---- Forward: application ---------------------------------------------------------------------------------- */

VECTOR_INLINE float normalised(float x, RowStatistics by, float gamma, float beta) {
  return (x - by.mean) * by.rstd * gamma + beta;
}

/* y may be x. */
VECTOR_INLINE void normalise_values(void *y, const void *x, const float *gamma, const float *beta, Range at,
                                    bool bf16, RowStatistics by) {
#pragma omp simd
  for (int64_t i = at.begin; i < at.end; i++)
    vector_store(y, i, normalised(vector_load(x, i, bf16), by, gamma[i], beta[i]), bf16);
}

VECTOR_INLINE void normalise_pairs(void *y, const void *x, const float *gamma, const float *beta,
                                   int64_t first, RowStatistics by) {
#pragma omp simd
  for (int64_t p = 0; p < VECTOR_PAIRS; p++) {
    int64_t even = first + p, odd = even + VECTOR_PAIRS;
    VectorPair pair = vector_load_pair(x, first / 2 + p);
    vector_store_pair(y, first / 2 + p,
                      (VectorPair){normalised(pair.even, by, gamma[even], beta[even]),
                                   normalised(pair.odd, by, gamma[odd], beta[odd])});
  }
}

VECTOR_CLONES
static void normalise(void *y, const void *x, const float *gamma, const float *beta, int64_t width, bool bf16,
                      RowStatistics by) {
  if (!bf16) {
    normalise_values(y, x, gamma, beta, (Range){0, width}, false, by);
    return;
  }
  int64_t i = 0;
  for (; i + VECTOR_LANES <= width; i += VECTOR_LANES)
    normalise_pairs(y, x, gamma, beta, i, by);
  normalise_values(y, x, gamma, beta, (Range){i, width}, true, by);
}

/* One launch. */
typedef struct Forward {
  VectorArray x, y;
  VectorArray branch, residual; /* what x is first made of; address NULL: it is there */
  Mask mask;
  float *gamma, *beta, *mean, *rstd;
  int64_t width;
  double epsilon;
} Forward;

static void normalise_rows(const Forward *run, Range rows) {
  bool bf16 = run->x.dtype == DTYPE_BF16;
  for (int64_t row = rows.begin; row < rows.end; row++) {
    if (run->branch.address != NULL)
      drop_row(&run->mask, run->x, run->branch, run->residual, row * run->width, run->width);
    const void *x = vector_at(run->x, row * run->width);
    RowStatistics by = statistics_of(x, run->width, bf16, run->epsilon);
    if (run->mean != NULL) run->mean[row] = by.mean;
    if (run->rstd != NULL) run->rstd[row] = by.rstd;
    normalise(vector_at(run->y, row * run->width), x, run->gamma, run->beta, run->width, bf16, by);
  }
}

/* Everything but what x is. `parameters`: the input gamma is. */
static Forward forward_run(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, VectorArray x, int32_t parameters) {
  int64_t width = width_of(kernel->node->inputs[0]);
  Forward run = {.x = x,
                 .y = vector_output(kernel, outputs, 0),
                 .gamma = (float *)workspace,
                 .beta = (float *)workspace + vector_by_lines(width),
                 .mean = vector_output(kernel, outputs, 1).address,
                 .rstd = vector_output(kernel, outputs, 2).address,
                 .width = width,
                 .epsilon = kernel->node->params.epsilon};
  bool bf16 = x.dtype == DTYPE_BF16;
  order_columns(run.gamma, vector_input(kernel, inputs, parameters), width, bf16);
  order_columns(run.beta, vector_input(kernel, inputs, parameters + 1), width, bf16);
  return run;
}

static void forward(const Kernel *kernel, const Forward *run) {
  int64_t elements = vl_tensor_elements(kernel->node->inputs[0]);
  int32_t threads = vector_threads(kernel, elements);
#pragma omp parallel num_threads(threads) if (threads > 1)
  normalise_rows(run, vector_share(elements / run->width, omp_get_num_threads(), omp_get_thread_num()));
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  Forward run = forward_run(kernel, inputs, outputs, workspace, vector_input(kernel, inputs, 0), 1);
  forward(kernel, &run);
  return vl_ok();
}

static Status residual_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  Forward run = forward_run(kernel, inputs, outputs, workspace, vector_output(kernel, outputs, 3), 2);
  run.branch = vector_input(kernel, inputs, 0);
  run.residual = vector_input(kernel, inputs, 1);
  run.mask = mask_of(kernel, context);
  forward(kernel, &run);
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  kernel->workspace_bytes = 2 * vector_by_lines(width_of(kernel->node->inputs[0])) * (int64_t)sizeof(float);
  return vl_ok();
}

const CpuOp cpu_op_layer_norm = {
    .name = "layer_norm",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = launch,
};

/* The sum has to be there to be normalised. */
static Status residual_supports(CpuDevice *device, const Node *node) {
  if (node->outputs[3] == NULL)
    return vl_error(VL_UNSUPPORTED, "residual_norm in %s: the sum is wanted by nobody", node->scope);
  return cpu_supports_f32_bf16(device, node);
}

const CpuOp cpu_op_residual_norm = {
    .name = "residual_norm",
    .supports = residual_supports,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = residual_launch,
};

/* ---- Backward: sums ------------------------------------------------------------------------------------------ */

enum { IN_DY, IN_X, IN_MEAN, IN_RSTD, IN_GAMMA };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA, OUT_DROPPED };

/* A row. dx may be dy or x. */
typedef struct Row {
  const void *dy, *x;
  void *dx;
  const float *gamma;
  int64_t width;
  RowStatistics by;
} Row;

/* sum g and sum g n of a row; dgamma and dbeta of rows. */
typedef struct RowSums {
  double gradient, product;
} RowSums;

/* Where a value is added: its lane and its column. */
VECTOR_INLINE void add_value(float dy, float x, const Row *row, int64_t lane, int64_t column, float *gradient,
                             float *product, float *dgamma, float *dbeta) {
  float normal = (x - row->by.mean) * row->by.rstd, g = dy * row->gamma[column];
  dgamma[column] += dy * normal;
  dbeta[column] += dy;
  gradient[lane] += g;
  product[lane] += g * normal;
}

/* At most VECTOR_LANES values. */
VECTOR_INLINE void add_values(const Row *row, Range at, bool bf16, float *gradient, float *product,
                              float *dgamma, float *dbeta) {
#pragma omp simd
  for (int64_t i = at.begin; i < at.end; i++)
    add_value(vector_load(row->dy, i, bf16), vector_load(row->x, i, bf16), row, i - at.begin, i, gradient,
              product, dgamma, dbeta);
}

VECTOR_INLINE void add_pairs(const Row *row, int64_t first, float *gradient, float *product, float *dgamma,
                             float *dbeta) {
#pragma omp simd
  for (int64_t p = 0; p < VECTOR_PAIRS; p++) {
    VectorPair dy = vector_load_pair(row->dy, first / 2 + p), x = vector_load_pair(row->x, first / 2 + p);
    add_value(dy.even, x.even, row, p, first + p, gradient, product, dgamma, dbeta);
    int64_t odd = p + VECTOR_PAIRS;
    add_value(dy.odd, x.odd, row, odd, first + odd, gradient, product, dgamma, dbeta);
  }
}

VECTOR_INLINE void add_block(const Row *row, int64_t first, bool bf16, float *gradient, float *product,
                             float *dgamma, float *dbeta) {
  vector_prefetch(row->dy, first, VECTOR_LANES, bf16);
  vector_prefetch(row->x, first, VECTOR_LANES, bf16);
  if (bf16)
    add_pairs(row, first, gradient, product, dgamma, dbeta);
  else
    add_values(row, (Range){first, first + VECTOR_LANES}, false, gradient, product, dgamma, dbeta);
}

VECTOR_INLINE RowSums add_row(const Row *row, bool bf16, float *dgamma, float *dbeta) {
  const int64_t most = VECTOR_RUN * VECTOR_LANES;
  RowSums sums = {0.0, 0.0};
  for (int64_t begin = 0; begin < row->width; begin += most) {
    float gradient[VECTOR_LANES] = {0.0F}, product[VECTOR_LANES] = {0.0F};
    int64_t i = begin, end = begin + most < row->width ? begin + most : row->width;
    for (; i + VECTOR_LANES <= end; i += VECTOR_LANES)
      add_block(row, i, bf16, gradient, product, dgamma, dbeta);
    add_values(row, (Range){i, end}, bf16, gradient, product, dgamma, dbeta);
    sums.gradient += vector_total(gradient);
    sums.product += vector_total(product);
  }
  return sums;
}

VECTOR_CLONES
static RowSums sums_of(const Row *row, bool bf16, float *dgamma, float *dbeta) {
  return bf16 ? add_row(row, true, dgamma, dbeta) : add_row(row, false, dgamma, dbeta);
}

/* ---- Backward: dx -------------------------------------------------------------------------------------------- */

/* dx = rstd g - (constant + n slope) */
VECTOR_INLINE float derivative(float dy, float x, float gamma, RowStatistics by, float constant,
                               float slope) {
  return by.rstd * (dy * gamma) - (constant + (x - by.mean) * by.rstd * slope);
}

VECTOR_INLINE void differentiate_values(const Row *row, Range at, bool bf16, float constant, float slope) {
#pragma omp simd
  for (int64_t i = at.begin; i < at.end; i++)
    vector_store(row->dx, i,
                 derivative(vector_load(row->dy, i, bf16), vector_load(row->x, i, bf16), row->gamma[i],
                            row->by, constant, slope),
                 bf16);
}

VECTOR_INLINE void differentiate_pairs(const Row *row, int64_t first, float constant, float slope) {
#pragma omp simd
  for (int64_t p = 0; p < VECTOR_PAIRS; p++) {
    int64_t even = first + p, odd = even + VECTOR_PAIRS;
    VectorPair dy = vector_load_pair(row->dy, first / 2 + p), x = vector_load_pair(row->x, first / 2 + p);
    vector_store_pair(row->dx, first / 2 + p,
                      (VectorPair){derivative(dy.even, x.even, row->gamma[even], row->by, constant, slope),
                                   derivative(dy.odd, x.odd, row->gamma[odd], row->by, constant, slope)});
  }
}

VECTOR_CLONES
static void differentiate(const Row *row, bool bf16, float constant, float slope) {
  if (!bf16) {
    differentiate_values(row, (Range){0, row->width}, false, constant, slope);
    return;
  }
  int64_t i = 0;
  for (; i + VECTOR_LANES <= row->width; i += VECTOR_LANES)
    differentiate_pairs(row, i, constant, slope);
  differentiate_values(row, (Range){i, row->width}, true, constant, slope);
}

/* ---- Backward: the op ---------------------------------------------------------------------------------------- */

/* One launch. */
typedef struct Backward {
  VectorArray dy, x, dx;
  VectorArray dropped; /* dropout of dx; address NULL: not wanted */
  Mask mask;
  const float *mean, *rstd;
  float *dgamma, *dbeta;
  int64_t width, padded; /* padded: to whole cache lines */
  double *sums;          /* [thread][2][padded]: dgamma, dbeta */
  float *lanes;          /* likewise, of the last rows */
  float *gamma;          /* [padded] */
} Backward;

static void differentiate_row(const Backward *run, int64_t i, float *lanes) {
  int64_t offset = i * run->width;
  bool bf16 = run->x.dtype == DTYPE_BF16;
  Row row = {.dy = vector_at(run->dy, offset),
             .x = vector_at(run->x, offset),
             .dx = vector_at(run->dx, offset),
             .gamma = run->gamma,
             .width = run->width,
             .by = {run->mean[i], run->rstd[i]}};
  RowSums sums = sums_of(&row, bf16, lanes, lanes + run->padded);
  double scale = (double)row.by.rstd / (double)run->width;
  if (row.dx != NULL)
    differentiate(&row, bf16, (float)(scale * sums.gradient), (float)(scale * sums.product));
  if (run->dropped.address != NULL)
    drop_row(&run->mask, run->dropped, run->dx, (VectorArray){.address = NULL}, offset, run->width);
}

static void differentiate_rows(const Backward *run, Range rows, int32_t thread) {
  double *sums = run->sums + 2 * run->padded * thread;
  float *lanes = run->lanes + 2 * run->padded * thread;
  memset(sums, 0, (size_t)(2 * run->padded) * sizeof *sums);
  memset(lanes, 0, (size_t)(2 * run->padded) * sizeof *lanes);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    differentiate_row(run, row, lanes);
    if ((row - rows.begin) % VECTOR_RUN == VECTOR_RUN - 1 || row == rows.end - 1)
      vector_fold(sums, lanes, 2 * run->padded, 2 * run->padded);
  }
}

static void combine(const Backward *run, int32_t threads, Range places) {
  for (int64_t i = places.begin; i < places.end; i++) {
    int64_t column = column_of(i, run->width, run->x.dtype == DTYPE_BF16);
    double dgamma = 0.0, dbeta = 0.0;
    for (int32_t t = 0; t < threads; t++) {
      dgamma += run->sums[2 * run->padded * t + i];
      dbeta += run->sums[2 * run->padded * t + run->padded + i];
    }
    if (run->dgamma != NULL) run->dgamma[column] = (float)dgamma;
    if (run->dbeta != NULL) run->dbeta[column] = (float)dbeta;
  }
}

static Backward backward_run(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace) {
  int64_t width = width_of(kernel->node->inputs[IN_X]), padded = vector_by_lines(width);
  Backward run = {.dy = vector_input(kernel, inputs, IN_DY),
                  .x = vector_input(kernel, inputs, IN_X),
                  .dx = vector_output(kernel, outputs, OUT_DX),
                  .mean = (const float *)inputs[IN_MEAN],
                  .rstd = (const float *)inputs[IN_RSTD],
                  .dgamma = vector_output(kernel, outputs, OUT_DGAMMA).address,
                  .dbeta = vector_output(kernel, outputs, OUT_DBETA).address,
                  .width = width,
                  .padded = padded,
                  .sums = (double *)workspace};
  run.lanes = (float *)(run.sums + 2 * padded * kernel->threads);
  run.gamma = run.lanes + 2 * padded * kernel->threads;
  order_columns(run.gamma, vector_input(kernel, inputs, IN_GAMMA), width, run.x.dtype == DTYPE_BF16);
  return run;
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  Backward run = backward_run(kernel, inputs, outputs, workspace);
  run.dropped = vector_output(kernel, outputs, OUT_DROPPED);
  if (run.dropped.address != NULL) run.mask = mask_of(kernel, context);
  int64_t elements = vl_tensor_elements(kernel->node->inputs[IN_X]);
  int32_t wanted = vector_threads(kernel, elements);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    differentiate_rows(&run, vector_share(elements / run.width, threads, thread), thread);
#pragma omp barrier
    combine(&run, threads, vector_share(run.width, threads, thread));
  }
  return vl_ok();
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  int64_t padded = vector_by_lines(width_of(kernel->node->inputs[IN_X]));
  kernel->workspace_bytes =
      padded * (kernel->threads * 2 * (int64_t)(sizeof(double) + sizeof(float)) + (int64_t)sizeof(float));
  return vl_ok();
}

const CpuOp cpu_op_layer_norm_backward = {
    .name = "layer_norm_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = backward_prepare,
    .launch = backward_launch,
};

static Status residual_backward_supports(CpuDevice *device, const Node *node) {
  if (node->outputs[OUT_DX] == NULL)
    return vl_error(VL_UNSUPPORTED, "residual_norm_backward in %s: dx without dresidual", node->scope);
  return cpu_supports_f32_bf16(device, node);
}

const CpuOp cpu_op_residual_norm_backward = {
    .name = "residual_norm_backward",
    .supports = residual_backward_supports,
    .choose_layouts = cpu_choose_plain,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
