/* conv_transpose: a product and a scatter where windows lie side by side (stride = kernel), else the data
 * gradient of a convolution with the same weights, whose kernels and layouts it takes, with the bias added.
 *
 * Windows side by side: every element of y has one window, so for each tap of the kernel a point of y is a
 * point of x times a matrix. A tile is a few points of x by a block of y's channels for one tap; sums are in
 * registers, over x's channels in order, and the bias is added before the one rounding. Results depend on
 * inputs only. */
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <stdlib.h>

extern const CpuOp cpu_op_conv_backward_data;

enum { X = 0, WEIGHTS, BIAS };

static bool has_bias(const Node *node) { return node->input_count > BIAS && node->inputs[BIAS]; }

/* A bias as floats for all channels of a view; padding stays zero. */
static void fill_bias(const ChannelView *view, VectorArray bias, float *channels) {
  for (int64_t c = 0; c < vector_channels(view); c++)
    channels[c] = bias.address != NULL && c < view->channels ? vector_element(bias, c) : 0.0F;
}

/* ---- Windows side by side ----------------------------------------------------------------------------------- */

enum { LANES = 16 /* channels of a block */, POINTS = 8 /* of a tile */ };

typedef struct Windows {
  ChannelView x, y;
  int64_t x_point, x_block, y_point, y_block; /* elements to the next point, the next LANES channels */
  int64_t x_blocks, y_blocks;                 /* of LANES channels */
  int64_t x_size[3], y_size[3], kernel[3], taps;
  int64_t bias_floats, weights_floats; /* in the workspace, and a buffer a thread after them */
  int64_t buffer_floats;
} Windows;

static bool lie_side_by_side(const Node *node) {
  const OpParams *params = &node->params;
  const Tensor *w = node->inputs[WEIGHTS];
  bool does = params->groups <= 1;
  for (int32_t i = 0; i < w->rank - 2; i++)
    does = does && params->stride[i] == w->shape[2 + i] && params->padding[i] == 0;
  return does;
}

/* Whether an activation in this layout is in blocks of LANES channels. */
static bool has_blocks(CpuDevice *device, LayoutId layout, const Tensor *tensor) {
  if (layout == cpu_layout_blocked(device, tensor->rank, LANES)) return true;
  return layout == cpu_layout_channels_last(device, tensor->rank) && tensor->shape[1] % LANES == 0;
}

static bool is_windows(CpuDevice *device, const Node *node, LayoutId x, LayoutId y) {
  return lie_side_by_side(node) && x == y && has_blocks(device, x, node->inputs[X]) &&
         has_blocks(device, y, node->outputs[0]);
}

static void fill_strides(const ChannelView *view, int64_t *point, int64_t *block, int64_t *blocks) {
  bool is_blocked = view->block == LANES;
  *point = view->block;
  *block = is_blocked ? view->spatial * LANES : LANES;
  *blocks = is_blocked ? view->channel_blocks : view->channels / LANES;
}

static Status prepare_windows(CpuDevice *device, Kernel *kernel) {
  const Tensor *x = kernel->node->inputs[X], *w = kernel->node->inputs[WEIGHTS],
               *y = kernel->node->outputs[0];
  Windows *own = vl_allocate(sizeof *own);
  kernel->data = own;
  VL_TRY(cpu_channel_view(device, kernel->inputs[X], x, &own->x));
  VL_TRY(cpu_channel_view(device, kernel->outputs[0], y, &own->y));
  fill_strides(&own->x, &own->x_point, &own->x_block, &own->x_blocks);
  fill_strides(&own->y, &own->y_point, &own->y_block, &own->y_blocks);
  own->taps = 1;
  for (int32_t d = 0; d < 3; d++) {
    int32_t i = d - (5 - x->rank); /* the tensor's spatial dimension; negative: missing */
    own->x_size[d] = i < 0 ? 1 : x->shape[2 + i];
    own->y_size[d] = i < 0 ? 1 : y->shape[2 + i];
    own->kernel[d] = i < 0 ? 1 : w->shape[2 + i];
    own->taps *= own->kernel[d];
  }
  own->bias_floats = own->y_blocks * LANES;
  own->weights_floats = own->y_blocks * own->taps * own->x_blocks * LANES * LANES;
  own->buffer_floats = own->x_blocks * POINTS * LANES;
  kernel->workspace_bytes =
      4 * (own->bias_floats + own->weights_floats + kernel->threads * own->buffer_floats);
  return vl_ok();
}

/* (I, O, taps) as [block of O][tap][channel of I][LANES], zero where there is no channel. */
static void pack_weights(const Windows *own, VectorArray weights, Range blocks, float *to) {
  int64_t inputs = own->x_blocks * LANES;
  for (int64_t block = blocks.begin; block < blocks.end; block++)
    for (int64_t i = 0; i < inputs; i++)
      for (int64_t lane = 0; lane < LANES; lane++) {
        int64_t o = block * LANES + lane;
        bool is_there = i < own->x.channels && o < own->y.channels;
        for (int64_t tap = 0; tap < own->taps; tap++)
          to[((block * own->taps + tap) * inputs + i) * LANES + lane] =
              is_there ? vector_element(weights, (i * own->y.channels + o) * own->taps + tap) : 0.0F;
      }
}

/* Some points of x: POINTS of them in memory, or fewer copied to a buffer with zeros behind. */
typedef struct Tile {
  const float *x;
  int64_t x_point, x_block;
  int64_t count;
  int64_t y[POINTS]; /* where the windows begin in y, in elements */
} Tile;

/* sums[p][lane] = sum over channels of x[p][channel] w[channel][lane], plus the bias. */
VECTOR_CLONES
static void multiply(const Tile *tile, int64_t blocks, const float *w, const float *bias, float *sums) {
  float sum[POINTS][LANES] = {{0.0F}};
  const float *x = tile->x;
  const int64_t x_point = tile->x_point;
  for (int64_t b = 0; b < blocks; b++, x += tile->x_block)
    for (int64_t k = 0; k < LANES; k++, w += LANES)
#pragma GCC unroll 8
      for (int64_t p = 0; p < POINTS; p++) {
        float value = x[p * x_point + k];
#pragma omp simd
        for (int64_t lane = 0; lane < LANES; lane++)
          sum[p][lane] += value * w[lane];
      }
  for (int64_t p = 0; p < POINTS; p++)
    for (int64_t lane = 0; lane < LANES; lane++)
      sums[p * LANES + lane] = sum[p][lane] + bias[lane];
}

/* `count` points of a sample from `first` on. */
static void take_points(const Windows *own, VectorArray x, int64_t sample, int64_t first, float *buffer,
                        Tile *tile) {
  int64_t start = sample * own->x.spatial * vector_channels(&own->x) + first * own->x_point;
  if (x.dtype == DTYPE_F32 && tile->count == POINTS) {
    tile->x = (const float *)x.address + start;
    tile->x_point = own->x_point;
    tile->x_block = own->x_block;
    return;
  }
  tile->x = buffer;
  tile->x_point = LANES;
  tile->x_block = POINTS * LANES;
  for (int64_t b = 0; b < own->x_blocks; b++)
    for (int64_t p = 0; p < POINTS; p++, buffer += LANES) {
      if (p < tile->count) {
        const float *from = vector_read(x, start + b * own->x_block + p * own->x_point, LANES, buffer);
        if (from != buffer) memcpy(buffer, from, LANES * sizeof *buffer);
      } else {
        memset(buffer, 0, LANES * sizeof *buffer);
      }
    }
}

/* Where the windows of a tile's points begin in y, for its first channels. */
static void find_windows(const Windows *own, int64_t sample, int64_t first, Tile *tile) {
  const int64_t *size = own->x_size, *kernel = own->kernel;
  for (int64_t p = 0; p < tile->count; p++) {
    int64_t point = first + p, w = point % size[2], h = point / size[2] % size[1],
            d = point / (size[2] * size[1]);
    int64_t place = (d * kernel[0] * own->y_size[1] + h * kernel[1]) * own->y_size[2] + w * kernel[2];
    tile->y[p] = sample * own->y.spatial * vector_channels(&own->y) + place * own->y_point;
  }
}

static void multiply_tile(const Windows *own, const Tile *tile, const float *weights, const float *bias,
                          VectorArray y) {
  _Alignas(64) float sums[POINTS * LANES];
  int64_t tap_floats = own->x_blocks * LANES * LANES;
  for (int64_t block = 0; block < own->y_blocks; block++)
    for (int64_t tap = 0; tap < own->taps; tap++, weights += tap_floats) {
      int64_t kw = tap % own->kernel[2], kh = tap / own->kernel[2] % own->kernel[1],
              kd = tap / (own->kernel[2] * own->kernel[1]);
      int64_t shift = ((kd * own->y_size[1] + kh) * own->y_size[2] + kw) * own->y_point;
      multiply(tile, own->x_blocks, weights, bias + block * LANES, sums);
      for (int64_t p = 0; p < tile->count; p++)
        vector_write(y, tile->y[p] + shift + block * own->y_block, LANES, sums + p * LANES);
    }
}

static Status launch_windows(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const Windows *own = kernel->data;
  VectorArray x = vector_input(kernel, inputs, X), weights = vector_input(kernel, inputs, WEIGHTS),
              y = vector_output(kernel, outputs, 0);
  float *bias = (float *)workspace, *packed = bias + own->bias_floats,
        *buffers = packed + own->weights_floats;
  int64_t tiles = (own->x.spatial + POINTS - 1) / POINTS;
  int32_t wanted = vector_threads(kernel, own->y.n * own->y.spatial * vector_channels(&own->y));
  fill_bias(&own->y, vector_input(kernel, inputs, BIAS), bias);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    pack_weights(own, weights, vector_share(own->y_blocks, threads, thread), packed);
#pragma omp barrier
    Range share = vector_share(own->x.n * tiles, threads, thread);
    for (int64_t i = share.begin; i < share.end; i++) {
      int64_t sample = i / tiles, first = i % tiles * POINTS, left = own->x.spatial - first;
      Tile tile = {.count = left < POINTS ? left : POINTS};
      take_points(own, x, sample, first, buffers + thread * own->buffer_floats, &tile);
      find_windows(own, sample, first, &tile);
      multiply_tile(own, &tile, packed, bias, y);
    }
  }
  return vl_ok();
}

static const CpuOp windows_op = {.name = "conv_transpose", .launch = launch_windows};

/* ---- Any windows ---------------------------------------------------------------------------------------------- */

typedef struct ConvTranspose {
  Kernel gradient; /* the node, as a data gradient */
  ChannelView y;
} ConvTranspose;

static Status supports(CpuDevice *device, const Node *node) {
  return cpu_op_conv_backward_data.supports(device, node);
}

static Status choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  LayoutId x = inputs[X];
  VL_TRY(cpu_op_conv_backward_data.choose_layouts(device, node, inputs, outputs));
  if (cpu_layout_is_activation(device, x) && is_windows(device, node, x, x)) inputs[X] = outputs[0] = x;
  if (is_windows(device, node, inputs[X], outputs[0])) inputs[WEIGHTS] = LAYOUT_PLAIN;
  if (has_bias(node)) inputs[BIAS] = LAYOUT_PLAIN;
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  if (is_windows(device, kernel->node, kernel->inputs[X], kernel->outputs[0])) {
    kernel->op = &windows_op;
    return prepare_windows(device, kernel);
  }
  ConvTranspose *own = vl_allocate(sizeof *own);
  own->gradient = *kernel;
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
