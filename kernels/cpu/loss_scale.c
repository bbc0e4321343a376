/* square_sum and gradient_factor: the norm of all gradients, and with it what the update multiplies them by.
 *
 * Squares are added in double, where those of finite f32 neither overflow nor vanish: a sum that is not
 * finite means an element that is not. Lanes and threads are combined in a fixed order. */
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>

/* ---- square_sum ------------------------------------------------------------------------------------------------- */

VECTOR_CLONES
static double sum_squares(const float *x, int64_t count) {
  double lanes[VECTOR_LANES] = {0.0};
  int64_t whole = count / VECTOR_LANES * VECTOR_LANES;
  for (int64_t i = 0; i < whole; i += VECTOR_LANES) {
#pragma omp simd
    for (int64_t k = 0; k < VECTOR_LANES; k++)
      lanes[k] += (double)x[i + k] * (double)x[i + k];
  }
  for (int64_t k = 0; whole + k < count; k++)
    lanes[k] += (double)x[whole + k] * (double)x[whole + k];
  for (int64_t width = VECTOR_LANES / 2; width > 0; width /= 2)
    for (int64_t k = 0; k < width; k++)
      lanes[k] += lanes[k + width];
  return lanes[0];
}

static double sum_range(VectorArray x, Range elements) {
  _Alignas(64) float buffer[VECTOR_TILE];
  double sum = 0.0;
  for (int64_t i = elements.begin; i < elements.end; i += VECTOR_SPAN) {
    int64_t end = elements.end - i < VECTOR_SPAN ? elements.end : i + VECTOR_SPAN;
    if (x.dtype == DTYPE_F32) {
      sum += sum_squares((const float *)x.address + i, end - i);
      continue;
    }
    for (int64_t at = i; at < end; at += VECTOR_TILE) {
      int64_t count = end - at < VECTOR_TILE ? end - at : VECTOR_TILE;
      sum += sum_squares(vector_read(x, at, count, buffer), count);
    }
  }
  return sum;
}

static Status square_sum_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  VectorArray x = vector_input(kernel, inputs, 0);
  double *sums = (double *)workspace;
  int64_t elements = *(const int64_t *)kernel->data, lines = (elements + VECTOR_LANES - 1) / VECTOR_LANES;
  int32_t threads = vector_threads(kernel, elements);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int32_t thread = 0; thread < threads; thread++) {
    Range share = vector_share(lines, threads, thread);
    int64_t end = share.end * VECTOR_LANES;
    sums[thread] = sum_range(x, (Range){share.begin * VECTOR_LANES, end < elements ? end : elements});
  }
  double sum = kernel->node->input_count > 1 ? *(const double *)inputs[1] : 0.0;
  for (int32_t thread = 0; thread < threads; thread++)
    sum += sums[thread];
  *(double *)outputs[0] = sum;
  return vl_ok();
}

/* The gradient as it lies, its padding zero. */
static Status square_sum_choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  (void)node;
  if (inputs[0] == LAYOUT_ANY) inputs[0] = LAYOUT_PLAIN;
  inputs[1] = outputs[0] = LAYOUT_PLAIN;
  return vl_ok();
}

static Status square_sum_prepare(CpuDevice *device, Kernel *kernel) {
  int64_t *elements = vl_allocate(sizeof *elements);
  *elements = cpu_padded_elements(device, kernel->inputs[0], kernel->node->inputs[0]);
  kernel->data = elements;
  kernel->workspace_bytes = vector_by_lines(kernel->threads) * (int64_t)sizeof(double);
  return vl_ok();
}

static Status square_sum_supports(CpuDevice *device, const Node *node) {
  DType dtype = node->inputs[0]->dtype;
  (void)device;
  if (dtype == DTYPE_F32 || dtype == DTYPE_BF16) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cpu: square_sum of %s: x is %s; accepted: f32, bf16", node->scope,
                  vl_dtype_name(dtype));
}

const CpuOp cpu_op_square_sum = {
    .name = "square_sum",
    .supports = square_sum_supports,
    .choose_layouts = square_sum_choose,
    .prepare = square_sum_prepare,
    .launch = square_sum_launch,
};

/* ---- gradient_factor ------------------------------------------------------------------------------------------------ */

/* Returns what unscales: 0 when the step is to be skipped. */
static double update_scale(const OpParams *params, bool finite, float *scale, int64_t *counters) {
  float used = *scale;
  if (!finite) {
    *scale = used * (float)params->backoff;
    counters[SCALER_CLEAN] = 0;
    counters[SCALER_SKIPPED]++;
    return 0.0;
  }
  counters[SCALER_STEPS]++;
  if (++counters[SCALER_CLEAN] >= params->interval) {
    float grown = used * (float)params->growth;
    if (isfinite(grown)) *scale = grown;
    counters[SCALER_CLEAN] = 0;
  }
  return 1.0 / (double)used;
}

static Status factor_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                            uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Node *node = kernel->node;
  const OpParams *params = &node->params;
  double squares = *(const double *)inputs[0], norm = sqrt(squares), factor = 1.0;
  if (node->input_count > 1) {
    norm /= (double)*(const float *)inputs[1];
    factor = update_scale(params, isfinite(squares), (float *)outputs[2], (int64_t *)outputs[3]);
  }
  if (params->max_norm > 0.0 && factor != 0.0) {
    double clip = params->max_norm / (norm + 1e-6); /* clip_grad_norm_'s epsilon */
    factor *= clip > 1.0 ? 1.0 : clip;              /* NaN stays */
  }
  *(float *)outputs[0] = (float)factor;
  *(float *)outputs[1] = (float)norm;
  return vl_ok();
}

static Status factor_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_ok();
}

const CpuOp cpu_op_gradient_factor = {
    .name = "gradient_factor",
    .choose_layouts = cpu_choose_plain,
    .prepare = factor_prepare,
    .launch = factor_launch,
};
