/* ReLU, leaky where a slope below zero is given, and its gradient, element by element over whole storages:
 * zero padding stays zero. */
#include "kernels/cpu/box.h"

/* max(x, 0) with NaN kept: NaN is not below zero. */
VECTOR_CLONES
static void relu(float *y, const float *x, const float *unused, int64_t count, float parameter) {
  (void)unused;
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = x[i] < 0.0F ? 0.0F : x[i];
}

/* dx = y > 0 ? dy : 0 */
VECTOR_CLONES
static void relu_backward(float *dx, const float *dy, const float *y, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    dx[i] = y[i] > 0.0F ? dy[i] : 0.0F;
}

VECTOR_CLONES
static void leaky_relu(float *y, const float *x, const float *unused, int64_t count, float slope) {
  (void)unused;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = x[i] < 0.0F ? slope * x[i] : x[i];
}

/* dx = y > 0 ? dy : slope dy */
VECTOR_CLONES
static void leaky_relu_backward(float *dx, const float *dy, const float *y, int64_t count, float slope) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    dx[i] = y[i] > 0.0F ? dy[i] : slope * dy[i];
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, kernel->node->input_count);
}

static Status relu_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                          uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  float slope = (float)kernel->node->params.alpha;
  vector_map(kernel, slope > 0.0F ? leaky_relu : relu, slope, vector_output(kernel, outputs, 0),
             vector_input(kernel, inputs, 0), (VectorArray){.address = NULL});
  return vl_ok();
}

/* The copies of dy that were asked for. */
static void copy_gradient(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs) {
  int64_t elements = *(const int64_t *)kernel->data;
  Box box = {.rank = 1,
             .dimensions = {{elements, 1, 1}},
             .element_bytes = vl_dtype_bytes(kernel->node->inputs[0]->dtype, 1)};
  for (int32_t k = 1; k < kernel->node->output_count; k++)
    if (outputs[k])
      box_copy(&box, (void *)outputs[k], (const void *)inputs[0], vector_threads(kernel, elements));
}

static Status relu_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                   uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  float slope = (float)kernel->node->params.alpha;
  copy_gradient(kernel, inputs, outputs); /* dx may be over dy */
  vector_map(kernel, slope > 0.0F ? leaky_relu_backward : relu_backward, slope,
             vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             vector_input(kernel, inputs, 1));
  return vl_ok();
}

const CpuOp cpu_op_relu = {
    .name = "relu",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = relu_launch,
};

const CpuOp cpu_op_relu_backward = {
    .name = "relu_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = relu_backward_launch,
};
