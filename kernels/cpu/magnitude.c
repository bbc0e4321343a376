/* abs(x) + epsilon and its gradient, element by element over plain arrays: zero padding would not stay zero.
 */
#include "kernels/cpu/vector.h"

VECTOR_CLONES
static void magnitude(float *y, const float *x, const float *unused, int64_t count, float epsilon) {
  (void)unused;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = (x[i] < 0.0F ? -x[i] : x[i]) + epsilon;
}

VECTOR_CLONES
static void magnitude_backward(float *dx, const float *dy, const float *x, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    dx[i] = x[i] < 0.0F ? -dy[i] : dy[i];
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, kernel->node->input_count);
}

static Status magnitude_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, magnitude, (float)kernel->node->params.epsilon, vector_output(kernel, outputs, 0),
             vector_input(kernel, inputs, 0), (VectorArray){.address = NULL});
  return vl_ok();
}

static Status magnitude_backward_launch(const Kernel *kernel, const uintptr_t *inputs,
                                        const uintptr_t *outputs, uintptr_t workspace,
                                        const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, magnitude_backward, 0.0F, vector_output(kernel, outputs, 0),
             vector_input(kernel, inputs, 0), vector_input(kernel, inputs, 1));
  return vl_ok();
}

const CpuOp cpu_op_magnitude = {
    .name = "magnitude",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = magnitude_launch,
};

const CpuOp cpu_op_magnitude_backward = {
    .name = "magnitude_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = magnitude_backward_launch,
};
