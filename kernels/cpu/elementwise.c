/* Sum, product and multiple, element by element over whole storages (zero padding stays zero), and a
 * constant. */
#include "kernels/cpu/vector.h"

#include <string.h>

VECTOR_CLONES
static void add(float *y, const float *a, const float *b, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = a[i] + b[i];
}

VECTOR_CLONES
static void multiply(float *y, const float *a, const float *b, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = a[i] * b[i];
}

VECTOR_CLONES
static void scale(float *y, const float *x, const float *unused, int64_t count, float factor) {
  (void)unused;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = factor * x[i];
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, kernel->node->input_count);
}

static Status add_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, add, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             vector_input(kernel, inputs, 1));
  return vl_ok();
}

static Status multiply_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, multiply, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             vector_input(kernel, inputs, 1));
  return vl_ok();
}

static Status scale_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, scale, (float)kernel->node->params.alpha, vector_output(kernel, outputs, 0),
             vector_input(kernel, inputs, 0), (VectorArray){.address = NULL});
  return vl_ok();
}

const CpuOp cpu_op_add = {
    .name = "add",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = add_launch,
};

const CpuOp cpu_op_mul = {
    .name = "mul",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = multiply_launch,
};

const CpuOp cpu_op_scale = {
    .name = "scale",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = scale_launch,
};

/* ---- Constant: any type, plain, since padding would have to stay zero -------------------------------------- */

static Status fill_prepare(CpuDevice *device, Kernel *kernel) {
  if (kernel->outputs[0] == LAYOUT_PLAIN) return vl_ok();
  return vl_error(VL_INTERNAL, "fill in %s: layout %s; only plain is possible", kernel->node->scope,
                  cpu_layout_name(device, kernel->outputs[0]));
}

static Status fill_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                          uintptr_t workspace, const LaunchContext *context) {
  (void)inputs;
  (void)workspace;
  (void)context;
  const Tensor *y = kernel->node->outputs[0];
  char *to = (char *)outputs[0];
  int64_t element_bytes = vl_dtype_bytes(y->dtype, 1), bytes = vl_tensor_bytes(y);
  vl_element_set(to, y->dtype, 0, kernel->node->params.alpha);
  /* What is filled doubles each time. */
  for (int64_t done = element_bytes; done < bytes; done *= 2)
    memcpy(to + done, to, (size_t)(done < bytes - done ? done : bytes - done));
  return vl_ok();
}

const CpuOp cpu_op_fill = {
    .name = "fill",
    .choose_layouts = cpu_choose_plain,
    .prepare = fill_prepare,
    .launch = fill_launch,
};
