/* conv_transpose: the data gradient of a convolution with the same weights, whose kernels and layouts it
 * takes, and a bias added to what that made. Where windows lie side by side it is a product and a scatter;
 * the library's data gradient was faster than one written as such, f32 and bf16. */
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <stdlib.h>

extern const CpuOp cpu_op_conv_backward_data;

enum { BIAS = 2 };

static bool has_bias(const Node *node) { return node->input_count > BIAS && node->inputs[BIAS]; }

/* A bias as floats for all channels of a view; padding stays zero. */
static void fill_bias(const ChannelView *view, VectorArray bias, float *channels) {
  for (int64_t c = 0; c < vector_channels(view); c++)
    channels[c] = bias.address != NULL && c < view->channels ? vector_element(bias, c) : 0.0F;
}

typedef struct ConvTranspose {
  Node node; /* as a data gradient */
  Kernel gradient;
  ChannelView y;
} ConvTranspose;

static Node as_gradient(const Node *node) {
  Node gradient = *node;
  gradient.op = vl_op_find(cpu_op_conv_backward_data.name);
  gradient.input_count = BIAS;
  gradient.params.rank = node->inputs[0]->rank;
  for (int32_t i = 0; node->outputs[0] && i < node->outputs[0]->rank; i++)
    gradient.params.shape[i] = node->outputs[0]->shape[i];
  return gradient;
}

static Status supports(CpuDevice *device, const Node *node) {
  Node gradient = as_gradient(node);
  return cpu_op_conv_backward_data.supports(device, &gradient);
}

static Status choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  Node gradient = as_gradient(node);
  VL_TRY(cpu_op_conv_backward_data.choose_layouts(device, &gradient, inputs, outputs));
  if (has_bias(node)) inputs[BIAS] = LAYOUT_PLAIN;
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  ConvTranspose *own = vl_allocate(sizeof *own);
  own->node = as_gradient(kernel->node);
  own->gradient = *kernel;
  own->gradient.node = &own->node;
  own->gradient.op = &cpu_op_conv_backward_data;
  kernel->data = own;
  VL_TRY(own->gradient.op->prepare(device, &own->gradient));
  kernel->workspace_bytes = own->gradient.workspace_bytes;
  memcpy(kernel->implementation, own->gradient.implementation, sizeof kernel->implementation);
  if (!has_bias(kernel->node)) return vl_ok();
  VL_TRY(cpu_channel_view(device, kernel->outputs[0], kernel->node->outputs[0], &own->y));
  int64_t bias_bytes = 4 * vector_channels(&own->y); /* when the gradient is done */
  if (kernel->workspace_bytes < bias_bytes) kernel->workspace_bytes = bias_bytes;
  return vl_ok();
}

static Status build(CpuDevice *device, Kernel *kernel) {
  ConvTranspose *own = kernel->data;
  return own->gradient.op->build ? own->gradient.op->build(device, &own->gradient) : vl_ok();
}

VECTOR_CLONES
static void add_pattern(float *y, const float *x, int64_t count, const float *bias, int64_t pattern) {
  for (int64_t i = 0; i < count; i += pattern) {
    int64_t width = count - i < pattern ? count - i : pattern;
#pragma omp simd
    for (int64_t p = 0; p < width; p++)
      y[i + p] = x[i + p] + bias[p];
  }
}

static void add_bias_part(const ChannelView *view, VectorArray y, const float *bias, VectorPart part) {
  _Alignas(64) float buffer[VECTOR_TILE], repeated[2 * VECTOR_LANES];
  int64_t pattern = vector_pattern(view);
  const float *of_block = bias;
  VectorWalk walk = vector_walk(view, part, VECTOR_TILE);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) of_block = vector_repeat(view, bias, tile.block, repeated);
    const float *from = vector_read(y, tile.offset, tile.count, buffer);
    float *to = vector_target(y, tile.offset, buffer);
    add_pattern(to, from, tile.count, of_block + tile.phase, pattern);
    vector_write(y, tile.offset, tile.count, to);
  }
}

static void add_bias(const Kernel *kernel, const ChannelView *view, VectorArray y, const float *bias) {
  int64_t points = view->n * view->spatial;
  int32_t wanted = vector_threads(kernel, points * vector_channels(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(points, omp_get_num_threads(), omp_get_thread_num());
    add_bias_part(view, y, bias, (VectorPart){{0, view->channel_blocks}, share});
  }
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  const ConvTranspose *own = kernel->data;
  VL_TRY(own->gradient.op->launch(&own->gradient, inputs, outputs, workspace, context));
  if (!has_bias(kernel->node)) return vl_ok();
  fill_bias(&own->y, vector_input(kernel, inputs, BIAS), (float *)workspace);
  add_bias(kernel, &own->y, vector_output(kernel, outputs, 0), (const float *)workspace);
  return vl_ok();
}

static void destroy(CpuDevice *device, Kernel *kernel) {
  ConvTranspose *own = kernel->data;
  if (!own) return;
  if (own->gradient.op->destroy) own->gradient.op->destroy(device, &own->gradient);
  free(own->gradient.data);
}

const CpuOp cpu_op_conv_transpose = {"conv_transpose", supports, choose, prepare, build, launch, destroy};
