/* What the optimizers' kernels share: see update.h. */
#include "kernels/cpu/update.h"

#include <math.h>
#include <omp.h>

enum { MAX_ARRAYS = VL_MAX_INPUTS + VL_MAX_OUTPUTS };

typedef struct Update {
  UpdateFunction *function;
  const void *factors;
  VectorArray from[VL_MAX_INPUTS], to[VL_MAX_OUTPUTS];
  int32_t input_count, output_count;
} Update;

static void run_range(const Update *it, Range elements) {
  _Alignas(64) float buffer[MAX_ARRAYS][VECTOR_TILE];
  for (int64_t i = elements.begin; i < elements.end; i += VECTOR_TILE) {
    int64_t count = elements.end - i < VECTOR_TILE ? elements.end - i : VECTOR_TILE;
    const float *from[VL_MAX_INPUTS];
    float *to[VL_MAX_OUTPUTS];
    for (int32_t k = 0; k < it->input_count; k++)
      from[k] = vector_read(it->from[k], i, count, buffer[k]);
    for (int32_t k = 0; k < it->output_count; k++)
      to[k] = vector_target(it->to[k], i, buffer[VL_MAX_INPUTS + k]);
    it->function(to, from, count, it->factors);
    for (int32_t k = 0; k < it->output_count; k++)
      vector_write(it->to[k], i, count, to[k]);
  }
}

/* Weight, gradient and state. */
static int32_t walked_inputs(const Node *node) { return node->output_count + 1; }

void update_run(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                UpdateFunction *function, const void *factors) {
  const Node *node = kernel->node;
  Update it = {.function = function,
               .factors = factors,
               .input_count = walked_inputs(node),
               .output_count = node->output_count};
  for (int32_t i = 0; i < it.input_count; i++)
    it.from[i] = vector_input(kernel, inputs, i);
  for (int32_t i = 0; i < it.output_count; i++)
    it.to[i] = vector_output(kernel, outputs, i);
  int64_t elements = *(const int64_t *)kernel->data, lines = (elements + VECTOR_LANES - 1) / VECTOR_LANES;
  int32_t threads = vector_threads(kernel, elements);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(lines, omp_get_num_threads(), omp_get_thread_num());
    int64_t end = share.end * VECTOR_LANES;
    run_range(&it, (Range){share.begin * VECTOR_LANES, end < elements ? end : elements});
  }
}

Status update_choose_layouts(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  LayoutId layout = inputs[0] != LAYOUT_ANY ? inputs[0] : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = i < walked_inputs(node) ? layout : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = layout;
  return vl_ok();
}

Status update_prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, walked_inputs(kernel->node));
}

UpdateFactor update_factor(const Kernel *kernel, const uintptr_t *inputs, const LaunchContext *context) {
  int32_t count = kernel->node->input_count, at = walked_inputs(kernel->node);
  UpdateFactor update = {.gradient = 1.0F, .steps = (double)context->step + 1.0};
  if (count > at) update.gradient = *(const float *)inputs[at];
  if (count <= at + 1) return update;
  update.steps = (double)((const int64_t *)inputs[at + 1])[SCALER_STEPS];
  update.skip = update.gradient == 0.0F;
  return update;
}

double update_learning_rate(const OpParams *params, const LaunchContext *context) {
  return context->learning_rate > 0.0 ? context->learning_rate : params->learning_rate;
}

AdamwFactors update_adamw_factors(const OpParams *params, const LaunchContext *context, UpdateFactor update) {
  double rate = update_learning_rate(params, context);
  double steps = update.steps, correction = sqrt(1.0 - pow(params->beta2, steps));
  return (AdamwFactors){.gradient = update.gradient,
                        .decay = (float)(1.0 - rate * params->weight_decay),
                        .new_mean = (float)(1.0 - params->beta1),
                        .old_square = (float)params->beta2,
                        .new_square = (float)(1.0 - params->beta2),
                        .epsilon = (float)(correction * params->epsilon),
                        .step = (float)(-rate * correction / (1.0 - pow(params->beta1, steps)))};
}
