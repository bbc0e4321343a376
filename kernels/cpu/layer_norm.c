/* Layer norm over the last dimension and its gradient: plain tensors, a thread takes whole rows, and a row is
 * read from memory once.
 *
 * Forward: the mean, then the squared differences from it, so that a large mean costs the variance nothing.
 * With u = 2^-24, fewer than 128 roundings in f32 touch a value in either sum, the rest is in double.
 *
 * Backward, with n = (x - mean) rstd the normal value, g = dy gamma and a row of H values:
 *   dbeta = sum dy, dgamma = sum dy n over rows;  dx = rstd (g - sum g / H - n sum g n / H)
 * Sums over rows are made in f32 for VECTOR_RUN rows and then go to double; threads are added in their order.
 */
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>

typedef struct RowStatistics {
  float mean, rstd;
} RowStatistics;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t width_of(const Tensor *x) { return x->shape[x->rank - 1]; }

/* ---- Forward ---------------------------------------------------------------------------------------------- */

VECTOR_INLINE float term(const void *x, int64_t i, bool bf16, bool squared, float shift) {
  float value = vector_load(x, i, bf16);
  return squared ? (value - shift) * (value - shift) : value;
}

/* The sum of at most VECTOR_RUN values a lane, or of their squared differences from `shift`. */
VECTOR_INLINE double sum_run(const void *x, Range run, bool bf16, bool squared, float shift) {
  float lanes[VECTOR_LANES] = {0.0F};
  int64_t i = run.begin;
  for (; i + 4 * VECTOR_LANES <= run.end; i += 4 * VECTOR_LANES)
#pragma omp simd
    for (int64_t l = i; l < i + VECTOR_LANES; l++)
      lanes[l - i] += (term(x, l, bf16, squared, shift) + term(x, l + VECTOR_LANES, bf16, squared, shift)) +
                      (term(x, l + 2 * VECTOR_LANES, bf16, squared, shift) +
                       term(x, l + 3 * VECTOR_LANES, bf16, squared, shift));
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
  double sum = 0.0;
  for (int64_t i = 0; i < width; i += most)
    sum += sum_run(x, (Range){i, i + most < width ? i + most : width}, bf16, squared, shift);
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

/* y may be x. */
VECTOR_INLINE void normalise_values(void *y, const void *x, const float *gamma, const float *beta,
                                    int64_t count, bool bf16, RowStatistics by) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    vector_store(y, i, (vector_load(x, i, bf16) - by.mean) * by.rstd * gamma[i] + beta[i], bf16);
}

VECTOR_CLONES
static void normalise(void *y, const void *x, const float *gamma, const float *beta, int64_t count, bool bf16,
                      RowStatistics by) {
  if (bf16)
    normalise_values(y, x, gamma, beta, count, true, by);
  else
    normalise_values(y, x, gamma, beta, count, false, by);
}

/* One launch. */
typedef struct Forward {
  VectorArray x, gamma, beta, y;
  float *mean, *rstd;
  int64_t width;
  double epsilon;
} Forward;

static void normalise_rows(const Forward *run, Range rows) {
  _Alignas(64) float buffer[2][VECTOR_TILE];
  bool bf16 = run->x.dtype == DTYPE_BF16;
  for (int64_t row = rows.begin; row < rows.end; row++) {
    int64_t start = row * run->width;
    RowStatistics by = statistics_of(vector_at(run->x, start), run->width, bf16, run->epsilon);
    if (run->mean != NULL) run->mean[row] = by.mean;
    if (run->rstd != NULL) run->rstd[row] = by.rstd;
    for (int64_t i = 0; i < run->width; i += VECTOR_TILE) {
      int64_t count = smaller(run->width - i, VECTOR_TILE);
      normalise(vector_at(run->y, start + i), vector_at(run->x, start + i),
                vector_read(run->gamma, i, count, buffer[0]), vector_read(run->beta, i, count, buffer[1]),
                count, bf16, by);
    }
  }
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Tensor *x = kernel->node->inputs[0];
  Forward run = {.x = vector_input(kernel, inputs, 0),
                 .gamma = vector_input(kernel, inputs, 1),
                 .beta = vector_input(kernel, inputs, 2),
                 .y = vector_output(kernel, outputs, 0),
                 .mean = vector_output(kernel, outputs, 1).address,
                 .rstd = vector_output(kernel, outputs, 2).address,
                 .width = width_of(x),
                 .epsilon = kernel->node->params.epsilon};
  int64_t elements = vl_tensor_elements(x);
  int32_t threads = vector_threads(kernel, elements);
#pragma omp parallel num_threads(threads) if (threads > 1)
  normalise_rows(&run, vector_share(elements / run.width, omp_get_num_threads(), omp_get_thread_num()));
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_ok();
}

const CpuOp cpu_op_layer_norm = {
    .name = "layer_norm",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = launch,
};

/* ---- Backward --------------------------------------------------------------------------------------------- */

enum { IN_DY, IN_X, IN_MEAN, IN_RSTD, IN_GAMMA };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA };

/* A tile of a row: at most VECTOR_TILE values. dx may be dy or x. */
typedef struct Tile {
  const void *dy, *x;
  void *dx;
  const float *gamma;
  int64_t count;
} Tile;

/* What a row's values bring to the sums over it, and to those over rows. */
typedef struct RowSums {
  double gradient, product; /* sum g, sum g n */
} RowSums;

VECTOR_INLINE void add_values(const Tile *at, Range values, bool bf16, RowStatistics by, float *sum,
                              float *product, float *restrict dgamma, float *restrict dbeta) {
#pragma omp simd
  for (int64_t i = values.begin; i < values.end; i++) {
    float dy = vector_load(at->dy, i, bf16);
    float normal = (vector_load(at->x, i, bf16) - by.mean) * by.rstd;
    float g = dy * at->gamma[i];
    dgamma[i] += dy * normal;
    dbeta[i] += dy;
    sum[i - values.begin] += g;
    product[i - values.begin] += g * normal;
  }
}

VECTOR_INLINE RowSums add_row(const Tile *at, bool bf16, RowStatistics by, float *dgamma, float *dbeta) {
  float sum[VECTOR_LANES] = {0.0F}, product[VECTOR_LANES] = {0.0F};
  int64_t i = 0;
  for (; i + VECTOR_LANES <= at->count; i += VECTOR_LANES)
    add_values(at, (Range){i, i + VECTOR_LANES}, bf16, by, sum, product, dgamma, dbeta);
  add_values(at, (Range){i, at->count}, bf16, by, sum, product, dgamma, dbeta);
  return (RowSums){vector_total(sum), vector_total(product)};
}

VECTOR_CLONES
static RowSums add_tile(const Tile *at, bool bf16, RowStatistics by, float *dgamma, float *dbeta) {
  return bf16 ? add_row(at, true, by, dgamma, dbeta) : add_row(at, false, by, dgamma, dbeta);
}

/* By what dx = rstd g - (constant + n slope). */
VECTOR_INLINE void differentiate_values(const Tile *at, bool bf16, RowStatistics by, float constant,
                                        float slope) {
#pragma omp simd
  for (int64_t i = 0; i < at->count; i++) {
    float normal = (vector_load(at->x, i, bf16) - by.mean) * by.rstd;
    float g = vector_load(at->dy, i, bf16) * at->gamma[i];
    vector_store(at->dx, i, by.rstd * g - (constant + normal * slope), bf16);
  }
}

VECTOR_CLONES
static void differentiate(const Tile *at, bool bf16, RowStatistics by, float constant, float slope) {
  if (bf16)
    differentiate_values(at, true, by, constant, slope);
  else
    differentiate_values(at, false, by, constant, slope);
}

/* One launch. */
typedef struct Backward {
  VectorArray dy, x, gamma, dx;
  const float *mean, *rstd;
  float *dgamma, *dbeta;
  int64_t width, padded; /* padded: to whole cache lines */
  double *sums;          /* [thread][2][padded]: dgamma, dbeta */
  float *lanes;          /* likewise, of the last rows */
} Backward;

static Tile tile_at(const Backward *run, int64_t row, int64_t first, float *buffer) {
  int64_t count = smaller(run->width - first, VECTOR_TILE), offset = row * run->width + first;
  return (Tile){.dy = vector_at(run->dy, offset),
                .x = vector_at(run->x, offset),
                .dx = vector_at(run->dx, offset),
                .gamma = vector_read(run->gamma, first, count, buffer),
                .count = count};
}

static void differentiate_row(const Backward *run, int64_t row, float *lanes) {
  _Alignas(64) float buffer[VECTOR_TILE];
  bool bf16 = run->x.dtype == DTYPE_BF16;
  RowStatistics by = {run->mean[row], run->rstd[row]};
  double gradient = 0.0, product = 0.0;
  for (int64_t i = 0; i < run->width; i += VECTOR_TILE) {
    Tile tile = tile_at(run, row, i, buffer);
    RowSums sums = add_tile(&tile, bf16, by, lanes + i, lanes + run->padded + i);
    gradient += sums.gradient;
    product += sums.product;
  }
  if (run->dx.address == NULL) return;
  double scale = (double)by.rstd / (double)run->width;
  for (int64_t i = 0; i < run->width; i += VECTOR_TILE) {
    Tile tile = tile_at(run, row, i, buffer);
    differentiate(&tile, bf16, by, (float)(scale * gradient), (float)(scale * product));
  }
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

static void combine(const Backward *run, int32_t threads, Range columns) {
  for (int64_t i = columns.begin; i < columns.end; i++) {
    double dgamma = 0.0, dbeta = 0.0;
    for (int32_t t = 0; t < threads; t++) {
      dgamma += run->sums[2 * run->padded * t + i];
      dbeta += run->sums[2 * run->padded * t + run->padded + i];
    }
    if (run->dgamma != NULL) run->dgamma[i] = (float)dgamma;
    if (run->dbeta != NULL) run->dbeta[i] = (float)dbeta;
  }
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const Tensor *x = kernel->node->inputs[IN_X];
  int64_t elements = vl_tensor_elements(x), width = width_of(x), padded = vector_by_lines(width);
  Backward run = {.dy = vector_input(kernel, inputs, IN_DY),
                  .x = vector_input(kernel, inputs, IN_X),
                  .gamma = vector_input(kernel, inputs, IN_GAMMA),
                  .dx = vector_output(kernel, outputs, OUT_DX),
                  .mean = (const float *)inputs[IN_MEAN],
                  .rstd = (const float *)inputs[IN_RSTD],
                  .dgamma = vector_output(kernel, outputs, OUT_DGAMMA).address,
                  .dbeta = vector_output(kernel, outputs, OUT_DBETA).address,
                  .width = width,
                  .padded = padded,
                  .sums = (double *)workspace,
                  .lanes = (float *)((double *)workspace + 2 * padded * kernel->threads)};
  int32_t wanted = vector_threads(kernel, elements);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    differentiate_rows(&run, vector_share(elements / width, threads, thread), thread);
#pragma omp barrier
    combine(&run, threads, vector_share(width, threads, thread));
  }
  return vl_ok();
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  int64_t padded = vector_by_lines(width_of(kernel->node->inputs[IN_X]));
  kernel->workspace_bytes = kernel->threads * 2 * padded * (int64_t)(sizeof(double) + sizeof(float));
  return vl_ok();
}

const CpuOp cpu_op_layer_norm_backward = {
    .name = "layer_norm_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
