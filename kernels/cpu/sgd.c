/* Stochastic gradient descent with momentum and weight decay, element by element over whole storages: zero
 * padding stays zero. In f32 and in this order, as PyTorch's SGD with dampening 0:
 *   d = dw + weight_decay w;  v = momentum v + d;  w = w - learning_rate v */
#include "kernels/cpu/vector.h"

#include <omp.h>

enum { IN_W, IN_DW, IN_V };

typedef struct SgdParameters {
  float learning_rate, momentum, weight_decay;
} SgdParameters;

VECTOR_CLONES
static void step(float *new_w, float *new_v, const float *w, const float *dw, const float *v, int64_t count,
                 SgdParameters by) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float d = dw[i] + by.weight_decay * w[i];
    float velocity = by.momentum * v[i] + d;
    new_v[i] = velocity;
    new_w[i] = w[i] - by.learning_rate * velocity;
  }
}

static void step_range(const VectorArray inputs[3], const VectorArray outputs[2], Range elements,
                       SgdParameters by) {
  _Alignas(64) float buffer[5][VECTOR_TILE];
  for (int64_t i = elements.begin; i < elements.end; i += VECTOR_TILE) {
    int64_t count = elements.end - i < VECTOR_TILE ? elements.end - i : VECTOR_TILE;
    const float *from[3];
    for (int k = 0; k < 3; k++)
      from[k] = vector_read(inputs[k], i, count, buffer[k]);
    float *w = vector_target(outputs[0], i, buffer[3]), *v = vector_target(outputs[1], i, buffer[4]);
    step(w, v, from[IN_W], from[IN_DW], from[IN_V], count, by);
    vector_write(outputs[0], i, count, w);
    vector_write(outputs[1], i, count, v);
  }
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  const OpParams *params = &kernel->node->params;
  double rate = context->learning_rate > 0.0 ? context->learning_rate : params->learning_rate;
  SgdParameters by = {(float)rate, (float)params->momentum, (float)params->weight_decay};
  VectorArray from[3], to[2];
  for (int32_t i = 0; i < 3; i++)
    from[i] = vector_input(kernel, inputs, i);
  for (int32_t i = 0; i < 2; i++)
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

/* The weight's layout is the convolution's; gradient and momentum take it. */
static Status choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  LayoutId layout = inputs[IN_W] != LAYOUT_ANY ? inputs[IN_W] : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = layout;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = layout;
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) { return vector_prepare_map(device, kernel, 3); }

const CpuOp cpu_op_sgd = {
    .name = "sgd",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose,
    .prepare = prepare,
    .launch = launch,
};
