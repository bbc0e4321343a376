/* 1 / sqrt(x + epsilon) and its gradient, element by element over plain arrays: zero padding would not stay
 * zero. */
#include "kernels/cpu/vector.h"

#include <math.h>

VECTOR_CLONES
static void rsqrt(float *y, const float *x, const float *unused, int64_t count, float epsilon) {
  (void)unused;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = 1.0F / sqrtf(x[i] + epsilon);
}

/* dx = -dy y^3 / 2 */
VECTOR_CLONES
static void rsqrt_backward(float *dx, const float *dy, const float *y, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    dx[i] = -0.5F * dy[i] * y[i] * (y[i] * y[i]);
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, kernel->node->input_count);
}

static Status rsqrt_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, rsqrt, (float)kernel->node->params.epsilon, vector_output(kernel, outputs, 0),
             vector_input(kernel, inputs, 0), (VectorArray){.address = NULL});
  return vl_ok();
}

static Status rsqrt_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                    uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, rsqrt_backward, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             vector_input(kernel, inputs, 1));
  return vl_ok();
}

const CpuOp cpu_op_rsqrt = {
    .name = "rsqrt",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = rsqrt_launch,
};

const CpuOp cpu_op_rsqrt_backward = {
    .name = "rsqrt_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = rsqrt_backward_launch,
};
