/* softmax_cross_entropy, its gradient, and correct_count: logits (N, C), plain; a thread takes whole rows.
 *
 * Rows labelled VL_IGNORED_LABEL have a log_p, no part in the loss and no gradient.
 *
 * log_p = (x - max) - log sum exp(x - max). The exponentials are within 2 units in the last place, a lane
 * adds 64 of them in f32, sums and the logarithm are in double: log_p is within 2^-24 (|log_p| + |x - max| +
 * 70). */
#include "kernels/cpu/vector_math.h"

#include <math.h>
#include <omp.h>

VECTOR_CLONES
static float largest(const float *x, int64_t count) {
  float lanes[VECTOR_LANES];
  for (int64_t l = 0; l < VECTOR_LANES; l++)
    lanes[l] = -INFINITY;
  int64_t i = 0;
  for (; i + VECTOR_LANES <= count; i += VECTOR_LANES)
#pragma omp simd
    for (int64_t l = 0; l < VECTOR_LANES; l++)
      lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  for (; i < count; i++)
    lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  for (int64_t l = 1; l < VECTOR_LANES; l++)
    lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
  return lanes[0];
}

VECTOR_CLONES
static void exponentials(float *e, const float *x, float shift, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    e[i] = vector_exp(x[i] - shift);
}

VECTOR_CLONES
static void subtract(float *y, const float *x, float first, float second, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = (x[i] - first) - second;
}

/* Elements of the tile at `at` in a row. */
static int64_t tile_count(int64_t at, int64_t width) {
  return width - at < VECTOR_TILE ? width - at : VECTOR_TILE;
}

/* Returns -log_p[label], 0 for a row that does not count. */
static double row_loss(VectorArray logits, float *log_p, int64_t start, int64_t width, int32_t label) {
  _Alignas(64) float buffer[VECTOR_TILE], e[VECTOR_TILE], lanes[VECTOR_LANES] = {0.0F};
  float shift = -INFINITY;
  for (int64_t i = 0; i < width; i += VECTOR_TILE) {
    int64_t count = tile_count(i, width);
    float most = largest(vector_read(logits, start + i, count, buffer), count);
    shift = most > shift ? most : shift;
  }
  double sum = 0.0;
  for (int64_t i = 0; i < width; i += VECTOR_TILE) {
    int64_t count = tile_count(i, width);
    exponentials(e, vector_read(logits, start + i, count, buffer), shift, count);
    vector_add(lanes, e, count, VECTOR_LANES);
    vector_fold(&sum, lanes, VECTOR_LANES, 1);
  }
  double log_sum = log(sum);
  if (log_p != NULL)
    for (int64_t i = 0; i < width; i += VECTOR_TILE) {
      int64_t count = tile_count(i, width);
      subtract(log_p + start + i, vector_read(logits, start + i, count, buffer), shift, (float)log_sum,
               count);
    }
  if (label == VL_IGNORED_LABEL) return 0.0;
  return log_sum - ((double)vector_element(logits, start + label) - (double)shift);
}

/* Checks the labels and counts the rows that are not ignored. */
static Status count_rows(const Kernel *kernel, const int32_t *labels, int64_t rows, int64_t width,
                         int64_t *counted) {
  *counted = 0;
  for (int64_t i = 0; i < rows; i++) {
    if (labels[i] == VL_IGNORED_LABEL) continue;
    if (labels[i] < 0 || labels[i] >= width)
      return vl_error(VL_INVALID,
                      "%s in %s: label %d of row %lld; must be within 0 and %lld, or %d to ignore it",
                      kernel->op->name, kernel->node->scope, labels[i], (long long)i, (long long)(width - 1),
                      VL_IGNORED_LABEL);
    ++*counted;
  }
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  kernel->workspace_bytes = kernel->node->inputs[0]->shape[0] * 8;
  return vl_ok();
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  VectorArray logits = vector_input(kernel, inputs, 0);
  const int32_t *labels = (const int32_t *)inputs[1];
  float *loss = vector_output(kernel, outputs, 0).address, *log_p = vector_output(kernel, outputs, 1).address;
  int64_t rows = kernel->node->inputs[0]->shape[0], width = kernel->node->inputs[0]->shape[1], counted;
  VL_TRY(count_rows(kernel, labels, rows, width, &counted));
  if (context->counted_rows > 0) counted = context->counted_rows;
  double *losses = (double *)workspace, sum = 0.0;
  int32_t wanted = vector_threads(kernel, 4 * rows * width);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(rows, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t i = share.begin; i < share.end; i++)
      losses[i] = row_loss(logits, log_p, i * width, width, labels[i]);
  }
  for (int64_t i = 0; i < rows; i++)
    sum += losses[i];
  if (loss != NULL) *loss = (float)(sum / (double)counted); /* 0 / 0 when none counts */
  return vl_ok();
}

const CpuOp cpu_op_softmax_cross_entropy = {
    .name = "softmax_cross_entropy",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = launch,
};

/* ---- Gradient: (exp(log_p) - onehot) * dloss / rows that count ------------------------------------------------------------ */

VECTOR_CLONES
static void scaled_exponentials(float *y, const float *x, float factor, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = vector_exp(x[i]) * factor;
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_ok();
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  const float *log_p = (const float *)inputs[1];
  const int32_t *labels = (const int32_t *)inputs[2];
  float *dlogits = (float *)outputs[0];
  int64_t rows = kernel->node->inputs[1]->shape[0], width = kernel->node->inputs[1]->shape[1], counted;
  VL_TRY(count_rows(kernel, labels, rows, width, &counted));
  if (context->counted_rows > 0) counted = context->counted_rows;
  float factor = *(const float *)inputs[0] / (float)counted; /* unused when none counts */
  int32_t wanted = vector_threads(kernel, 4 * rows * width);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(rows, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t i = share.begin; i < share.end; i++) {
      if (labels[i] == VL_IGNORED_LABEL) {
        memset(dlogits + i * width, 0, (size_t)width * sizeof *dlogits);
        continue;
      }
      int64_t at = i * width + labels[i];
      float chosen = (vector_exp(log_p[at]) - 1.0F) * factor; /* before dlogits, which may be log_p */
      scaled_exponentials(dlogits + i * width, log_p + i * width, factor, width);
      dlogits[at] = chosen;
    }
  }
  return vl_ok();
}

static Status supports_f32(CpuDevice *device, const Node *node) {
  (void)device;
  for (int32_t i = 0; i < 2; i++)
    if (node->inputs[i]->dtype != DTYPE_F32)
      return vl_error(VL_UNSUPPORTED, "%s in %s: %s is %s; f32 is possible", node->op->name, node->scope,
                      node->inputs[i]->name, vl_dtype_name(node->inputs[i]->dtype));
  return vl_ok();
}

const CpuOp cpu_op_softmax_cross_entropy_backward = {
    .name = "softmax_cross_entropy_backward",
    .supports = supports_f32,
    .choose_layouts = cpu_choose_plain,
    .prepare = backward_prepare,
    .launch = backward_launch,
};

/* ---- Rows whose first maximum is at the label; NaN is larger than any number, as in PyTorch's argmax ---------- */

static int64_t first_maximum(VectorArray logits, int64_t start, int64_t width) {
  _Alignas(64) float buffer[VECTOR_TILE];
  float best = -INFINITY;
  int64_t at = 0;
  for (int64_t i = 0; i < width; i += VECTOR_TILE) {
    int64_t count = tile_count(i, width);
    const float *x = vector_read(logits, start + i, count, buffer);
    for (int64_t k = 0; k < count; k++) {
      if (isnan(x[k])) return i + k;
      if (x[k] > best) {
        best = x[k];
        at = i + k;
      }
    }
  }
  return at;
}

static Status correct_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  VectorArray logits = vector_input(kernel, inputs, 0);
  const int32_t *labels = (const int32_t *)inputs[1];
  int64_t rows = kernel->node->inputs[0]->shape[0], width = kernel->node->inputs[0]->shape[1], correct = 0;
  for (int64_t i = 0; i < rows; i++)
    correct += first_maximum(logits, i * width, width) == labels[i] ? 1 : 0;
  *(float *)outputs[0] = (float)correct;
  return vl_ok();
}

const CpuOp cpu_op_correct_count = {
    .name = "correct_count",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = backward_prepare,
    .launch = correct_launch,
};
