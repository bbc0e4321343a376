/* The hyperbolic tangent and its gradient, element by element over whole storages: zero padding stays zero.
 */
#include "kernels/cpu/vector_math.h"

VECTOR_CLONES
static void tangent(float *y, const float *x, const float *unused, int64_t count, float parameter) {
  (void)unused;
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = vector_tanh(x[i]);
}

/* dx = dy (1 - y^2) */
VECTOR_CLONES
static void tangent_backward(float *dx, const float *dy, const float *y, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    dx[i] = dy[i] * (1.0F - y[i] * y[i]);
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, kernel->node->input_count);
}

static Status tanh_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                          uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, tangent, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             (VectorArray){.address = NULL});
  return vl_ok();
}

static Status tanh_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                   uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, tangent_backward, 0.0F, vector_output(kernel, outputs, 0),
             vector_input(kernel, inputs, 0), vector_input(kernel, inputs, 1));
  return vl_ok();
}

const CpuOp cpu_op_tanh = {
    .name = "tanh",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = tanh_launch,
};

const CpuOp cpu_op_tanh_backward = {
    .name = "tanh_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = tanh_backward_launch,
};
