/* Stochastic gradient descent with momentum and weight decay, in f32 and in this order, as PyTorch's SGD with
 * dampening 0:
 *   d = factor dw + weight_decay w;  v = momentum v + d;  w = w - learning_rate v */
#include "kernels/cpu/update.h"

enum { IN_W, IN_DW, IN_V };

typedef struct SgdFactors {
  float learning_rate, momentum, weight_decay, gradient;
} SgdFactors;

VECTOR_CLONES
static void step(float *const *to, const float *const *from, int64_t count, const void *factors) {
  SgdFactors by = *(const SgdFactors *)factors;
  const float *w = from[IN_W], *dw = from[IN_DW], *v = from[IN_V];
  float *new_w = to[0], *new_v = to[1];
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float d = dw[i] * by.gradient + by.weight_decay * w[i];
    float velocity = by.momentum * v[i] + d;
    new_v[i] = velocity;
    new_w[i] = w[i] - by.learning_rate * velocity;
  }
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  const OpParams *params = &kernel->node->params;
  UpdateFactor update = update_factor(kernel, inputs, context);
  if (update.skip) return vl_ok();
  SgdFactors by = {(float)update_learning_rate(params, context), (float)params->momentum,
                   (float)params->weight_decay, update.gradient};
  update_run(kernel, inputs, outputs, step, &by);
  return vl_ok();
}

const CpuOp cpu_op_sgd = {
    .name = "sgd",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = update_choose_layouts,
    .prepare = update_prepare,
    .launch = launch,
};
