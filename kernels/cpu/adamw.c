/* AdamW, element by element over whole storages: zero padding stays zero. In f32; t is the step's number from
 * 1, c = sqrt(1 - beta2^t):
 *
 *   w = w (1 - learning_rate weight_decay)
 *   m = m + (1 - beta1) (dw - m)
 *   v = v beta2 + (1 - beta2) dw dw
 *   w = w - c learning_rate / (1 - beta1^t) m / (sqrt(v) + c epsilon)
 *
 * This is the order of PyTorch's fused AdamW, without its multiply-adds and with c multiplied through: there
 * sqrt(v) is divided by c, and a division an element is more than the memory needs. */
#include "kernels/cpu/adamw.h"

#include <math.h>
#include <omp.h>

enum { IN_W, IN_DW, IN_M, IN_V, INPUTS };
enum { OUT_W, OUT_M, OUT_V, OUTPUTS };

VECTOR_CLONES
static void step(float *const to[OUTPUTS], const float *const from[INPUTS], int64_t count, AdamwFactors by) {
  const float *w = from[IN_W], *dw = from[IN_DW], *m = from[IN_M], *v = from[IN_V];
  float *new_w = to[OUT_W], *new_m = to[OUT_M], *new_v = to[OUT_V];
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float g = dw[i];
    float mean = m[i] + by.new_mean * (g - m[i]);
    float square = v[i] * by.old_square + by.new_square * g * g;
    new_m[i] = mean;
    new_v[i] = square;
    new_w[i] = w[i] * by.decay + by.step * mean / (sqrtf(square) + by.epsilon);
  }
}

static void step_range(const VectorArray inputs[INPUTS], const VectorArray outputs[OUTPUTS], Range elements,
                       AdamwFactors by) {
  _Alignas(64) float buffer[INPUTS + OUTPUTS][VECTOR_TILE];
  for (int64_t i = elements.begin; i < elements.end; i += VECTOR_TILE) {
    int64_t count = elements.end - i < VECTOR_TILE ? elements.end - i : VECTOR_TILE;
    const float *from[INPUTS];
    float *to[OUTPUTS];
    for (int k = 0; k < INPUTS; k++)
      from[k] = vector_read(inputs[k], i, count, buffer[k]);
    for (int k = 0; k < OUTPUTS; k++)
      to[k] = vector_target(outputs[k], i, buffer[INPUTS + k]);
    step(to, from, count, by);
    for (int k = 0; k < OUTPUTS; k++)
      vector_write(outputs[k], i, count, to[k]);
  }
}

AdamwFactors cpu_adamw_factors(const OpParams *params, const LaunchContext *context) {
  double rate = context->learning_rate > 0.0 ? context->learning_rate : params->learning_rate;
  double steps = (double)context->step + 1.0, correction = sqrt(1.0 - pow(params->beta2, steps));
  return (AdamwFactors){.decay = (float)(1.0 - rate * params->weight_decay),
                        .new_mean = (float)(1.0 - params->beta1),
                        .old_square = (float)params->beta2,
                        .new_square = (float)(1.0 - params->beta2),
                        .epsilon = (float)(correction * params->epsilon),
                        .step = (float)(-rate * correction / (1.0 - pow(params->beta1, steps)))};
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  AdamwFactors by = cpu_adamw_factors(&kernel->node->params, context);
  VectorArray from[INPUTS], to[OUTPUTS];
  for (int32_t i = 0; i < INPUTS; i++)
    from[i] = vector_input(kernel, inputs, i);
  for (int32_t i = 0; i < OUTPUTS; i++)
    to[i] = vector_output(kernel, outputs, i);
  int64_t elements = *(const int64_t *)kernel->data, lines = (elements + VECTOR_LANES - 1) / VECTOR_LANES;
  int32_t threads = vector_threads(kernel, elements);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(lines, omp_get_num_threads(), omp_get_thread_num());
    int64_t end = share.end * VECTOR_LANES;
    step_range(from, to, (Range){share.begin * VECTOR_LANES, end < elements ? end : elements}, by);
  }
  return vl_ok();
}

/* The weight's layout is the convolution's; gradient and moments take it. */
static Status choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  LayoutId layout = inputs[IN_W] != LAYOUT_ANY ? inputs[IN_W] : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = layout;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = layout;
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, INPUTS);
}

const CpuOp cpu_op_adamw = {
    .name = "adamw",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose,
    .prepare = prepare,
    .launch = launch,
};
