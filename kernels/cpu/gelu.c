/* GELU in its erf form and its gradient, element by element over whole storages: zero padding stays zero.
 *
 * y = x Phi(x), dx = dy (Phi(x) + x phi(x)), where phi and Phi are the normal density and distribution. Below
 * zero Phi(-t) = exp(-t^2 / 2) R(t) keeps its relative precision: R(t) = erfcx(t / sqrt 2) / 2 is smooth, and
 * a polynomial of degree 8 in 1 / (1 + 0.3 t), fitted on 0 <= t <= 14.5, is within 6e-8 of it. With rounding,
 * y is within (1e-6 + 6e-8 x^2) |y| + 1e-44 of the true value.
 *
 * The gradient of a bias, where it is wanted, is summed as dx is made: over VECTOR_RUN rows in f32, the rest
 * in double, threads in their order. */
#include "kernels/cpu/vector_math.h"

#include <omp.h>

/* exp(-x^2 / 2) and from it Phi(x). */
VECTOR_INLINE float bell(float x) { return vector_exp(-0.5F * (x * x)); }

VECTOR_INLINE float distribution(float x, float bell_of_x) {
  float t = x < 0.0F ? -x : x;
  float w = 1.0F / (1.0F + 0.3F * t);
  float p = 3.8407404e-02F;
  p = p * w - 1.6930752e-01F;
  p = p * w + 2.2895189e-01F;
  p = p * w - 7.683977e-02F;
  p = p * w + 1.4276534e-01F;
  p = p * w + 9.4585836e-02F;
  p = p * w + 1.2194527e-01F;
  p = p * w + 1.1948421e-01F;
  p = p * w + 7.3724286e-06F;
  float below = p * bell_of_x;
  return x < 0.0F ? below : 1.0F - below;
}

VECTOR_CLONES
static void gelu(float *y, const float *x, const float *unused, int64_t count, float parameter) {
  (void)unused;
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = x[i] * distribution(x[i], bell(x[i]));
}

VECTOR_INLINE float derivative(float dy, float x) {
  float e = bell(x);
  return dy * (distribution(x, e) + x * (0.398942280F * e));
}

VECTOR_CLONES
static void gelu_backward(float *dx, const float *dy, const float *x, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    dx[i] = derivative(dy[i], x[i]);
}

/* Likewise, and lanes[i] += dx[i]. */
VECTOR_CLONES
static void gelu_backward_adding(float *dx, const float *dy, const float *x, float *lanes, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float value = derivative(dy[i], x[i]);
    dx[i] = value;
    lanes[i] += value;
  }
}

/* ---- With the bias's gradient: plain, a thread takes whole rows ------------------------------------------------ */

/* One launch. */
typedef struct BiasRun {
  VectorArray dy, x, dx;
  int64_t width, rows;
  double *sums; /* [thread][padded] */
  float *lanes; /* likewise, of the last rows */
} BiasRun;

VECTOR_CLONES
static void fold(double *restrict sums, float *restrict lanes, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    sums[i] += (double)lanes[i];
    lanes[i] = 0.0F;
  }
}

static void differentiate_row(const BiasRun *run, int64_t row, float *lanes) {
  _Alignas(64) float buffer[3][VECTOR_TILE];
  for (int64_t i = 0; i < run->width; i += VECTOR_TILE) {
    int64_t count = run->width - i < VECTOR_TILE ? run->width - i : VECTOR_TILE, at = row * run->width + i;
    const float *dy = vector_read(run->dy, at, count, buffer[0]),
                *x = vector_read(run->x, at, count, buffer[1]);
    float *dx = vector_target(run->dx, at, buffer[2]);
    gelu_backward_adding(dx, dy, x, lanes + i, count);
    vector_write(run->dx, at, count, dx);
  }
}

static void differentiate_rows(const BiasRun *run, Range rows, int32_t thread) {
  int64_t padded = vector_by_lines(run->width);
  double *sums = run->sums + padded * thread;
  float *lanes = run->lanes + padded * thread;
  memset(sums, 0, (size_t)padded * sizeof *sums);
  memset(lanes, 0, (size_t)padded * sizeof *lanes);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    differentiate_row(run, row, lanes);
    if ((row - rows.begin) % VECTOR_RUN == VECTOR_RUN - 1 || row == rows.end - 1) fold(sums, lanes, padded);
  }
}

static Status bias_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                          uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const Tensor *x = kernel->node->inputs[1];
  int64_t elements = vl_tensor_elements(x), width = x->shape[x->rank - 1], padded = vector_by_lines(width);
  double *sums = (double *)workspace;
  BiasRun run = {.dy = vector_input(kernel, inputs, 0),
                 .x = vector_input(kernel, inputs, 1),
                 .dx = vector_output(kernel, outputs, 0),
                 .width = width,
                 .rows = elements / width,
                 .sums = sums,
                 .lanes = (float *)(sums + padded * kernel->threads)};
  float *dbias = vector_output(kernel, outputs, 1).address;
  int32_t wanted = vector_threads(kernel, elements);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    differentiate_rows(&run, vector_share(run.rows, threads, thread), thread);
#pragma omp barrier
    Range columns = vector_share(width, threads, thread);
    for (int64_t i = columns.begin; i < columns.end; i++) {
      double sum = 0.0;
      for (int32_t t = 0; t < threads; t++)
        sum += run.sums[padded * t + i];
      dbias[i] = (float)sum;
    }
  }
  return vl_ok();
}

static Status bias_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  const Tensor *x = kernel->node->inputs[1];
  kernel->workspace_bytes =
      kernel->threads * vector_by_lines(x->shape[x->rank - 1]) * (int64_t)(sizeof(double) + sizeof(float));
  return vl_ok();
}

static const CpuOp with_bias = {
    .name = "gelu_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = bias_prepare,
    .launch = bias_launch,
};

/* ---- The ops ------------------------------------------------------------------------------------------------------ */

static bool wants_bias(const Node *node) { return node->output_count > 1 && node->outputs[1] != NULL; }

static Status backward_choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return wants_bias(node) ? cpu_choose_plain(device, node, inputs, outputs)
                          : vector_choose(device, node, inputs, outputs);
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, kernel->node->input_count);
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  if (!wants_bias(kernel->node)) return prepare(device, kernel);
  kernel->op = &with_bias;
  return bias_prepare(device, kernel);
}

static Status gelu_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                          uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, gelu, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             (VectorArray){.address = NULL});
  return vl_ok();
}

static Status gelu_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                   uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, gelu_backward, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             vector_input(kernel, inputs, 1));
  return vl_ok();
}

const CpuOp cpu_op_gelu = {
    .name = "gelu",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = gelu_launch,
};

const CpuOp cpu_op_gelu_backward = {
    .name = "gelu_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = backward_choose,
    .prepare = backward_prepare,
    .launch = gelu_backward_launch,
};
