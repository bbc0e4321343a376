/* AdamW in f32; t is the step's number from 1, c = sqrt(1 - beta2^t):
 *
 *   w = w (1 - learning_rate weight_decay)
 *   dw = factor dw
 *   m = m + (1 - beta1) (dw - m)
 *   v = v beta2 + (1 - beta2) dw dw
 *   w = w - c learning_rate / (1 - beta1^t) m / (sqrt(v) + c epsilon)
 *
 * This is the order of PyTorch's fused AdamW, without its multiply-adds and with c multiplied through: there
 * sqrt(v) is divided by c, and a division an element is more than the memory needs. */
#include "kernels/cpu/update.h"

#include <math.h>

enum { IN_W, IN_DW, IN_M, IN_V };
enum { OUT_W, OUT_M, OUT_V };

VECTOR_CLONES
static void step(float *const *to, const float *const *from, int64_t count, const void *factors) {
  AdamwFactors by = *(const AdamwFactors *)factors;
  const float *w = from[IN_W], *dw = from[IN_DW], *m = from[IN_M], *v = from[IN_V];
  float *new_w = to[OUT_W], *new_m = to[OUT_M], *new_v = to[OUT_V];
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float g = dw[i] * by.gradient;
    float mean = m[i] + by.new_mean * (g - m[i]);
    float square = v[i] * by.old_square + by.new_square * g * g;
    new_m[i] = mean;
    new_v[i] = square;
    new_w[i] = w[i] * by.decay + by.step * mean / (sqrtf(square) + by.epsilon);
  }
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  UpdateFactor update = update_factor(kernel, inputs, context);
  if (update.skip) return vl_ok();
  AdamwFactors by = update_adamw_factors(&kernel->node->params, context, update);
  update_run(kernel, inputs, outputs, step, &by);
  return vl_ok();
}

const CpuOp cpu_op_adamw = {
    .name = "adamw",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = update_choose_layouts,
    .prepare = update_prepare,
    .launch = launch,
};
