/* 3x3 and 3x3x3 convolutions in f32, forward and both gradients, by Winograd's F(2x2, 3x3): a tile of 2x2
 * outputs takes 16 products a channel and depth instead of 36. Along the depth the window's taps are added up
 * among the transformed tiles, so a plane is transformed once for all three.
 *
 * A thread takes runs of a plane's tiles, and goes along the depth with them. The transformed planes stay in
 * a ring in the second-level cache; there are sixteen products of matrices, one a point of a transformed
 * tile, with transformed weights, and their results leave the cache only as outputs.
 *
 * Every output is a sum in the order of taps and channels, and its own transform: results depend on inputs
 * only. They differ from a direct sum's by rounding in the transforms, whose additions are four deep; the
 * bound is in tests/kernels/bound.c. */
#include "kernels/cpu/conv_weights.h"
#include "kernels/cpu/conv_winograd_parts.h"

#include <omp.h>
#include <string.h>

enum {
  RING_BYTES = 512 << 10, /* of transformed tiles, in the second-level cache */
  RUN_MOST = 64,
  UNITS_LEAST = 4,   /* of a thread */
  PLACES_LEAST = 256 /* tiles, below which transforming the weights takes too long */
};

/* ---- What is taken --------------------------------------------------------------------------------------- */

static WinogradPass pass_of(const Node *node) {
  if (strcmp(node->op->name, "conv") == 0) return WINOGRAD_FORWARD;
  return strcmp(node->op->name, "conv_backward_data") == 0 ? WINOGRAD_DATA : WINOGRAD_WEIGHTS;
}

/* The tensors of a node by what they are to the kernel. */
typedef struct Operands {
  const Tensor *read, *written, *weights;
  LayoutId weights_layout;
} Operands;

static Operands operands_of(const Kernel *kernel) {
  const Node *node = kernel->node;
  if (pass_of(node) == WINOGRAD_WEIGHTS)
    return (Operands){node->inputs[0], node->inputs[1], node->outputs[0], kernel->outputs[0]};
  return (Operands){node->inputs[0], node->outputs[0], node->inputs[1], kernel->inputs[1]};
}

static bool keeps_size(const Node *node, const Operands *of) {
  for (int32_t i = 0; i < of->read->rank - 2; i++) {
    int64_t window = of->weights->shape[2 + i];
    bool may_be_1 = i == 0 && of->read->rank == 5;
    if (window != WINDOW && !(may_be_1 && window == 1)) return false;
    if (node->params.stride[i] != 1 || node->params.padding[i] != window / 2) return false;
  }
  return true;
}

/* Blocks of weights of channels read by channels written, whichever come first. */
static bool knows_weights(CpuDevice *device, WinogradPass pass, LayoutId layout) {
  const char *name = cpu_layout_name(device, layout), *inner = strstr(name, "16");
  if (strncmp(name, "ABcd", 4) != 0 && strncmp(name, "BAcd", 4) != 0) return false;
  return inner != NULL && strcmp(inner, pass == WINOGRAD_DATA ? "16a16b" : "16b16a") == 0;
}

static void measure(const Node *node, const Operands *of, ConvWinograd *it) {
  const Tensor *read = of->read;
  bool deep = read->rank == 5;
  it->pass = pass_of(node);
  it->samples = read->shape[0];
  it->read_blocks = read->shape[1] / BLOCK;
  it->written_blocks = of->written->shape[1] / BLOCK;
  it->depth = deep ? read->shape[2] : 1;
  it->taps = deep ? of->weights->shape[2] : 1;
  it->height = read->shape[read->rank - 2];
  it->width = read->shape[read->rank - 1];
  it->tile_columns = (it->width + TILE - 1) / TILE;
  it->tiles = it->tile_columns * ((it->height + TILE - 1) / TILE);
}

bool cpu_conv_winograd_applies(CpuDevice *device, const Kernel *kernel) {
  const Node *node = kernel->node;
  if (node->outputs[0] == NULL || node->params.groups > 1) return false;
  if (pass_of(node) != WINOGRAD_WEIGHTS && node->input_count > 2) return false;
  Operands of = operands_of(kernel);
  if (of.read->rank != 4 && of.read->rank != 5) return false;
  if (of.read->dtype != DTYPE_F32 || of.written->dtype != DTYPE_F32 || of.weights->dtype != DTYPE_F32)
    return false;
  if (of.read->shape[1] % BLOCK != 0 || of.written->shape[1] % (PAIR * BLOCK) != 0) return false;
  if (!keeps_size(node, &of) || !knows_weights(device, pass_of(node), of.weights_layout)) return false;
  LayoutId blocked = cpu_layout_blocked(device, of.read->rank, BLOCK);
  LayoutId written = pass_of(node) == WINOGRAD_WEIGHTS ? kernel->inputs[1] : kernel->outputs[0];
  if (kernel->inputs[0] != blocked || written != blocked) return false;
  ConvWinograd it;
  measure(node, &of, &it);
  return it.samples * it.depth * it.tiles >= PLACES_LEAST && cpu_conv_has_instructions(false);
}

/* ---- Memory ---------------------------------------------------------------------------------------------- */

static int64_t slots_of(const ConvWinograd *it) { return it->slices + it->taps - 1; }
static int64_t slot_floats(const ConvWinograd *it) { return POINTS * point_pitch(it, it->read_blocks); }
static int64_t weights_floats(const ConvWinograd *it) {
  return POINTS * it->taps * it->read_blocks * BLOCK * it->written_blocks * BLOCK;
}
static int64_t product_pitch(const ConvWinograd *it) { return PAIR * it->slices * it->run * BLOCK + BLOCK; }
static int64_t thread_floats(const ConvWinograd *it) {
  return slots_of(it) * slot_floats(it) + POINTS * product_pitch(it);
}

/* As many tiles as the ring has room for, and as many depths at once as make a product worth its weights. */
static void choose_run(ConvWinograd *it, int64_t blocks) {
  int64_t most = RING_BYTES / (POINTS * BLOCK * 4), whole = (it->tiles + COLUMNS - 1) / COLUMNS * COLUMNS;
  it->run = whole < RUN_MOST ? whole : RUN_MOST;
  while (it->run > COLUMNS && it->run * blocks * it->taps > most)
    it->run -= COLUMNS;
  it->runs = (it->tiles + it->run - 1) / it->run;
  /* Runs of one length. */
  it->run = ((it->tiles + it->runs - 1) / it->runs + COLUMNS - 1) / COLUMNS * COLUMNS;
  it->slices = 1;
  while (it->slices < it->depth && (it->slices + 1) * it->run <= TILES_MOST &&
         it->run * blocks * (it->slices + it->taps) <= most)
    it->slices++;
}

Unit conv_winograd_unit(const ConvWinograd *it, int64_t index) {
  int64_t part = index % it->depth_parts, run = index / it->depth_parts;
  return (Unit){.sample = run / it->runs,
                .first = run % it->runs * it->run,
                .depths = vector_share(it->depth, (int32_t)it->depth_parts, (int32_t)part)};
}

Status cpu_conv_winograd_prepare(CpuDevice *device, Kernel *kernel) {
  Operands of = operands_of(kernel);
  ConvWinograd *it = vl_allocate(sizeof *it);
  kernel->data = it;
  measure(kernel->node, &of, it);
  char outermost = cpu_layout_name(device, of.weights_layout)[0];
  it->read_first = outermost == (it->pass == WINOGRAD_DATA ? 'A' : 'B');
  choose_run(it, it->read_blocks + (it->pass == WINOGRAD_WEIGHTS ? it->written_blocks : 0));
  it->depth_parts = 1;
  while (it->depth_parts * it->slices < it->depth && units_of(it) < UNITS_LEAST * kernel->threads)
    it->depth_parts++;
  it->place_parts = kernel->threads < units_of(it) ? kernel->threads : (int32_t)units_of(it);
  it->normalises = it->pass == WINOGRAD_WEIGHTS && kernel->node->input_count > CONV_WEIGHTS_MEAN;
  if (it->normalises) VL_TRY(cpu_channel_view(device, kernel->inputs[0], of.read, &it->x));
#if HAS_CONV_WINOGRAD
  kernel->workspace_bytes = it->pass == WINOGRAD_WEIGHTS
                                ? conv_winograd_gradient_bytes(it)
                                : 4 * (weights_floats(it) + it->place_parts * thread_floats(it));
#endif
  snprintf(kernel->implementation, sizeof kernel->implementation, "own:avx512:winograd");
  return vl_ok();
}

#if HAS_CONV_WINOGRAD

/* ---- Weights --------------------------------------------------------------------------------------------- */

/* Where a channel read, of a block, meets a pair of blocks written: [point][pair][tap][channel read][PAIR]
 * [BLOCK]. */
static int64_t weights_at(const ConvWinograd *it, int64_t point, int64_t pair, int64_t tap) {
  return ((point * pairs_of(it) + pair) * it->taps + tap) * it->read_blocks * BLOCK * PAIR * BLOCK;
}

static void transform_weights(const ConvWinograd *it, const float *weights, Range pairs, float *to) {
  int64_t area = WINDOW * WINDOW, pitch = weights_at(it, 1, 0, 0);
  bool flipped = it->pass == WINOGRAD_DATA;
  for (int64_t w = pairs.begin * PAIR; w < pairs.end * PAIR; w++)
    for (int64_t r = 0; r < it->read_blocks; r++)
      for (int64_t tap = 0; tap < it->taps; tap++) {
        int64_t block = it->read_first ? r * it->written_blocks + w : w * it->read_blocks + r;
        int64_t from = flipped ? it->taps - 1 - tap : tap;
        const float *window = weights + (block * it->taps + from) * area * BLOCK * BLOCK;
        float *points = to + weights_at(it, 0, w / PAIR, tap) + (r * BLOCK * PAIR + w % PAIR) * BLOCK;
        for (int64_t channel = 0; channel < BLOCK; channel++)
          conv_winograd_weights(window + channel * BLOCK, BLOCK * BLOCK, flipped,
                                points + channel * PAIR * BLOCK, pitch);
      }
}

/* ---- Products -------------------------------------------------------------------------------------------- */

/* COLUMNS tiles by a pair of blocks, summed over taps and all channels read. */
typedef struct Product {
  const float *weights;
  const float *read[WINDOW]; /* of a tap */
  int64_t taps, blocks, block_pitch;
  float *to[PAIR];
} Product;

TARGET_WINOGRAD
static void multiply(const Product *product) {
  __m512 sum0[COLUMNS], sum1[COLUMNS]; /* registers, once every loop over them is unrolled */
#pragma GCC unroll 14
  for (int32_t i = 0; i < COLUMNS; i++)
    sum0[i] = sum1[i] = _mm512_setzero_ps();
  const float *weights = product->weights;
  for (int64_t tap = 0; tap < product->taps; tap++) {
    const float *read = product->read[tap];
    for (int64_t b = 0; b < product->blocks; b++, read += product->block_pitch) {
#pragma GCC unroll 4
      for (int32_t r = 0; r < BLOCK; r++, weights += PAIR * BLOCK) {
        __m512 first = _mm512_load_ps(weights), second = _mm512_load_ps(weights + BLOCK);
#pragma GCC unroll 14
        for (int32_t i = 0; i < COLUMNS; i++) {
          __m512 value = _mm512_set1_ps(read[i * BLOCK + r]);
          sum0[i] = _mm512_fmadd_ps(first, value, sum0[i]);
          sum1[i] = _mm512_fmadd_ps(second, value, sum1[i]);
        }
      }
    }
  }
#pragma GCC unroll 14
  for (int32_t i = 0; i < COLUMNS; i++) {
    _mm512_store_ps(product->to[0] + i * BLOCK, sum0[i]);
    _mm512_store_ps(product->to[1] + i * BLOCK, sum1[i]);
  }
}

/* One thread's work on a launch. */
typedef struct Share {
  const ConvWinograd *it;
  const float *read, *weights; /* transformed */
  float *written, *ring, *products;
} Share;

static const float *slot_of(const Share *share, int64_t slice) {
  return share->ring + slice % slots_of(share->it) * slot_floats(share->it);
}

/* The tiles of some depths, for a pair of blocks: all points' products, then the outputs. */
static void multiply_pair(const Share *share, const Unit *unit, Range depths, int64_t pair) {
  const ConvWinograd *it = share->it;
  int64_t side_floats = it->slices * it->run * BLOCK, read_channels = it->read_blocks * BLOCK;
  Product product = {.blocks = it->read_blocks, .block_pitch = it->run * BLOCK};
  for (int64_t point = 0; point < POINTS; point++) {
    for (int64_t d = depths.begin; d < depths.end; d++) {
      int64_t above = d - it->taps / 2, from = above < 0 ? -above : 0;
      int64_t end = above + it->taps > it->depth ? it->depth - above : it->taps;
      product.taps = end - from;
      product.weights = share->weights + weights_at(it, point, pair, 0) + from * read_channels * PAIR * BLOCK;
      float *to = share->products + point * product_pitch(it) + (d - depths.begin) * it->run * BLOCK;
      for (int64_t k = 0; k < it->run; k += COLUMNS) {
        for (int64_t tap = from; tap < end; tap++)
          product.read[tap - from] =
              slot_of(share, above + tap) + point * point_pitch(it, it->read_blocks) + k * BLOCK;
        product.to[0] = to + k * BLOCK;
        product.to[1] = to + side_floats + k * BLOCK;
        multiply(&product);
      }
    }
  }
  int64_t plane = it->height * it->width;
  for (int64_t side = 0; side < PAIR; side++)
    for (int64_t d = depths.begin; d < depths.end; d++) {
      int64_t block = unit->sample * it->written_blocks + pair * PAIR + side;
      conv_winograd_write(it, share->products + side * side_floats + (d - depths.begin) * it->run * BLOCK,
                          product_pitch(it), unit->first,
                          share->written + (block * it->depth + d) * plane * BLOCK);
    }
}

static void run_unit(const Share *share, const Unit *unit) {
  const ConvWinograd *it = share->it;
  int64_t plane = it->height * it->width, ready = unit->depths.begin - it->taps / 2;
  if (ready < 0) ready = 0;
  for (int64_t d = unit->depths.begin; d < unit->depths.end; d += it->slices) {
    Range depths = {d, d + it->slices < unit->depths.end ? d + it->slices : unit->depths.end};
    int64_t reach = depths.end + it->taps / 2;
    for (; ready < reach && ready < it->depth; ready++)
      conv_winograd_read(it,
                         share->read + (unit->sample * it->read_blocks * it->depth + ready) * plane * BLOCK,
                         it->depth * plane, it->read_blocks, unit->first, NULL,
                         share->ring + ready % slots_of(it) * slot_floats(it));
    for (int64_t pair = 0; pair < pairs_of(it); pair++)
      multiply_pair(share, unit, depths, pair);
  }
}

static void launch_outputs(const Kernel *kernel, const float *read, const float *weights, float *written,
                           float *memory) {
  const ConvWinograd *it = kernel->data;
  float *transformed = memory, *own = memory + weights_floats(it);
#pragma omp parallel num_threads(kernel->threads)
  {
    /* Should the runtime give fewer threads than asked for, each does several threads' work. */
    int32_t given = omp_get_num_threads(), self = omp_get_thread_num();
    transform_weights(it, weights, vector_share(pairs_of(it), given, self), transformed);
#pragma omp barrier
    for (int32_t part = self; part < it->place_parts; part += given) {
      float *ring = own + part * thread_floats(it);
      Share share = {it, read, transformed, written, ring, ring + slots_of(it) * slot_floats(it)};
      Range units = vector_share(units_of(it), it->place_parts, part);
      for (int64_t i = units.begin; i < units.end; i++) {
        Unit unit = conv_winograd_unit(it, i);
        run_unit(&share, &unit);
      }
    }
  }
}

Status cpu_conv_winograd_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ConvWinograd *it = kernel->data;
  if (it->pass == WINOGRAD_WEIGHTS)
    conv_winograd_gradient(kernel, inputs, (float *)outputs[0], workspace);
  else
    launch_outputs(kernel, (const float *)inputs[0], (const float *)inputs[1], (float *)outputs[0],
                   (float *)workspace);
  return vl_ok();
}

#else

Status cpu_conv_winograd_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                uintptr_t workspace, const LaunchContext *context) {
  (void)kernel, (void)inputs, (void)outputs, (void)workspace, (void)context;
  return vl_error(VL_INTERNAL, "this build has no own kernel for 3x3 convolutions in f32");
}

#endif
