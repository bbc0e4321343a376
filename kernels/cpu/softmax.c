/* softmax over the last dimension and its gradient; plain, a thread takes whole rows.
 *
 * y = exp(z - max z) / sum of them, z = scale x + mask. Nothing overflows, and z of -inf is 0; a row of -inf
 * alone is NaN, as is one that holds NaN or +inf, like PyTorch's. Exponentials are within 2 units in the last
 * place; a lane adds at most VECTOR_RUN of them in f32, sums are in double. */
#include "kernels/cpu/vector_math.h"

#include <math.h>
#include <omp.h>

/* ---- Forward ----------------------------------------------------------------------------------------------- */

/* A dimension along which the mask is not repeated: how many rows of x share an index of it. */
typedef struct MaskDimension {
  int64_t rows, size, stride;
} MaskDimension;

typedef struct Softmax {
  int64_t rows, width;
  MaskDimension dimensions[VL_MAX_DIMS];
  int32_t dimension_count;
} Softmax;

/* z and the largest of it. z may be x. */
VECTOR_INLINE float scores_as(float *z, const void *x, const float *mask, float scale, int64_t width,
                              bool bf16, bool masked) {
  float lanes[VECTOR_LANES];
  for (int64_t l = 0; l < VECTOR_LANES; l++)
    lanes[l] = -INFINITY;
  int64_t i = 0;
  for (; i + VECTOR_LANES <= width; i += VECTOR_LANES) {
#pragma omp simd
    for (int64_t l = 0; l < VECTOR_LANES; l++) {
      float value = scale * vector_load(x, i + l, bf16);
      if (masked) value += mask[i + l];
      z[i + l] = value;
      lanes[l] = value > lanes[l] ? value : lanes[l];
    }
  }
  for (; i < width; i++) {
    float value = scale * vector_load(x, i, bf16);
    if (masked) value += mask[i];
    z[i] = value;
    lanes[0] = value > lanes[0] ? value : lanes[0];
  }
  for (int64_t l = 1; l < VECTOR_LANES; l++)
    lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
  return lanes[0];
}

/* Lanes added in pairs at equal distances. */
VECTOR_INLINE double fold(float *lanes) {
  double sums[VECTOR_LANES];
  for (int64_t l = 0; l < VECTOR_LANES; l++) {
    sums[l] = (double)lanes[l];
    lanes[l] = 0.0F;
  }
  for (int64_t half = VECTOR_LANES / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; l++)
      sums[l] += sums[l + half];
  return sums[0];
}

/* Elements after which lanes are folded. */
enum { FOLD = VECTOR_RUN * VECTOR_LANES };

/* z becomes exp(z - shift); returns the sum. */
VECTOR_INLINE double exponentials(float *z, float shift, int64_t width) {
  float lanes[VECTOR_LANES] = {0.0F};
  double sum = 0.0;
  for (int64_t first = 0; first < width; first += FOLD) {
    int64_t end = first + FOLD < width ? first + FOLD : width, i = first;
    for (; i + VECTOR_LANES <= end; i += VECTOR_LANES) {
#pragma omp simd
      for (int64_t l = 0; l < VECTOR_LANES; l++) {
        z[i + l] = vector_exp(z[i + l] - shift);
        lanes[l] += z[i + l];
      }
    }
    int64_t rest = end - i;
#pragma omp simd
    for (int64_t l = 0; l < rest; l++) {
      z[i + l] = vector_exp(z[i + l] - shift);
      lanes[l] += z[i + l];
    }
    sum += fold(lanes);
  }
  return sum;
}

/* One row; z is y where that is f32, else room for a row. */
VECTOR_CLONES
static void softmax_row(void *y, float *z, const void *x, const float *mask, float scale, int64_t width,
                        bool bf16) {
  float shift = mask == NULL ? (bf16 ? scores_as(z, x, mask, scale, width, true, false)
                                     : scores_as(z, x, mask, scale, width, false, false))
                             : (bf16 ? scores_as(z, x, mask, scale, width, true, true)
                                     : scores_as(z, x, mask, scale, width, false, true));
  float factor = (float)(1.0 / exponentials(z, shift, width));
  if (bf16) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++)
      vector_store(y, i, factor * z[i], true);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; i++)
      z[i] *= factor;
  }
}

static float scale_of(const Kernel *kernel) {
  double alpha = kernel->node->params.alpha;
  return alpha != 0.0 ? (float)alpha : 1.0F;
}

static int64_t width_of(const Tensor *tensor) { return tensor->shape[tensor->rank - 1]; }

static Status prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0], *mask = node->input_count > 1 ? node->inputs[1] : NULL;
  Softmax *own = vl_allocate(sizeof *own);
  kernel->data = own;
  *own = (Softmax){.rows = vl_tensor_elements(x) / width_of(x), .width = width_of(x)};
  if (x->dtype == DTYPE_BF16)
    kernel->workspace_bytes = kernel->threads * vector_by_lines(own->width) * (int64_t)sizeof(float);
  int64_t rows = 1, stride = own->width;
  for (int32_t i = 2; mask != NULL && i <= mask->rank; i++) {
    int64_t size = mask->shape[mask->rank - i];
    if (size > 1) own->dimensions[own->dimension_count++] = (MaskDimension){rows, size, stride};
    rows *= x->shape[x->rank - i];
    stride *= size;
  }
  return vl_ok();
}

static const float *mask_of(const Softmax *own, const float *mask, int64_t row) {
  int64_t start = 0;
  for (int32_t i = 0; i < own->dimension_count; i++) {
    const MaskDimension *dimension = &own->dimensions[i];
    start += row / dimension->rows % dimension->size * dimension->stride;
  }
  return mask != NULL ? mask + start : NULL;
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const Softmax *own = kernel->data;
  VectorArray x = vector_input(kernel, inputs, 0), y = vector_output(kernel, outputs, 0);
  const float *mask = vector_input(kernel, inputs, 1).address;
  float scale = scale_of(kernel);
  int32_t wanted = vector_threads(kernel, 4 * own->rows * own->width);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(own->rows, omp_get_num_threads(), omp_get_thread_num());
    float *room = (float *)workspace + omp_get_thread_num() * vector_by_lines(own->width);
    for (int64_t row = share.begin; row < share.end; row++) {
      void *to = vector_at(y, row * own->width);
      bool bf16 = y.dtype == DTYPE_BF16;
      softmax_row(to, bf16 ? room : to, vector_at(x, row * own->width), mask_of(own, mask, row), scale,
                  own->width, bf16);
    }
  }
  return vl_ok();
}

/* ---- Gradient: scale y (dy - sum of dy y) --------------------------------------------------------------------- */

VECTOR_INLINE void backward_row_as(void *dx, const void *dy, const void *y, float scale, int64_t width,
                                   bool bf16) {
  float lanes[VECTOR_LANES] = {0.0F};
  double sum = 0.0;
  for (int64_t first = 0; first < width; first += FOLD) {
    int64_t end = first + FOLD < width ? first + FOLD : width, i = first;
    for (; i + VECTOR_LANES <= end; i += VECTOR_LANES) {
#pragma omp simd
      for (int64_t l = 0; l < VECTOR_LANES; l++)
        lanes[l] += vector_load(dy, i + l, bf16) * vector_load(y, i + l, bf16);
    }
    int64_t rest = end - i;
#pragma omp simd
    for (int64_t l = 0; l < rest; l++)
      lanes[l] += vector_load(dy, i + l, bf16) * vector_load(y, i + l, bf16);
    sum += fold(lanes);
  }
  float mean = (float)sum;
#pragma omp simd
  for (int64_t i = 0; i < width; i++)
    vector_store(dx, i, scale * vector_load(y, i, bf16) * (vector_load(dy, i, bf16) - mean), bf16);
}

/* dx may be dy or y. */
VECTOR_CLONES
static void backward_row(void *dx, const void *dy, const void *y, float scale, int64_t width, bool bf16) {
  if (bf16)
    backward_row_as(dx, dy, y, scale, width, true);
  else
    backward_row_as(dx, dy, y, scale, width, false);
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_ok();
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  VectorArray dy = vector_input(kernel, inputs, 0), y = vector_input(kernel, inputs, 1);
  VectorArray dx = vector_output(kernel, outputs, 0);
  int64_t width = width_of(kernel->node->inputs[0]);
  int64_t rows = vl_tensor_elements(kernel->node->inputs[0]) / width;
  float scale = scale_of(kernel);
  int32_t wanted = vector_threads(kernel, 2 * rows * width);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(rows, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t row = share.begin; row < share.end; row++)
      backward_row(vector_at(dx, row * width), vector_at(dy, row * width), vector_at(y, row * width), scale,
                   width, dx.dtype == DTYPE_BF16);
  }
  return vl_ok();
}

const CpuOp cpu_op_softmax = {
    .name = "softmax",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = launch,
};

const CpuOp cpu_op_softmax_backward = {
    .name = "softmax_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
