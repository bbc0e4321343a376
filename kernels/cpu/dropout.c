/* dropout: y = x / (1 - rate) where the element is kept, else 0; in any layout. The noise, where it is
 * wanted, is 1 / (1 - rate) or 0 likewise, or a byte, 1 or 0; where it is given it says what is kept.
 *
 * Whether it is kept depends on its place in the logical sample: word(key, sample, channel * spatial + place)
 * of base.h, whose top 24 bits are compared with rate. Philox blocks hold four neighbouring elements of a
 * channel, so words are drawn along space, a channel at a time, and put where the layout has them. */
#include "kernels/cpu/random.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>

/* A patch: some places of some channels of one sample, in memory [place][lane]. */
enum { PATCH_LANES = 16, PATCH_PLACES = VECTOR_TILE / PATCH_LANES };

typedef struct Mask {
  uint64_t key;
  uint32_t threshold; /* kept when the top 24 bits are at least this */
  float scale;
} Mask;

VECTOR_CLONES
static void apply(float *y, const float *x, const uint32_t *restrict words, int64_t count, Mask mask) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = (words[i] >> 8) >= mask.threshold ? mask.scale * x[i] : 0.0F;
}

VECTOR_CLONES
static void make_noise(float *noise, const uint32_t *restrict words, int64_t count, Mask mask) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    noise[i] = (words[i] >> 8) >= mask.threshold ? mask.scale : 0.0F;
}

VECTOR_CLONES
static void make_bytes(uint8_t *bytes, const uint32_t *restrict words, int64_t count, Mask mask) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    bytes[i] = (words[i] >> 8) >= mask.threshold;
}

VECTOR_CLONES
static void apply_bytes(float *y, const float *x, const uint8_t *bytes, int64_t count, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = bytes[i] != 0 ? factor * x[i] : 0.0F;
}

VECTOR_CLONES
static void apply_noise(float *y, const float *x, const float *noise, int64_t count, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = noise[i] != 0.0F ? factor * x[i] : 0.0F;
}

/* What a launch reads and writes; noise.address is NULL where it is not wanted. */
typedef struct Arrays {
  VectorArray x, y, noise;
  int64_t first_sample;
} Arrays;

/* `count` elements, of which the first `real` are no padding. */
static void drop(const Arrays *arrays, Mask mask, int64_t offset, int64_t count, int64_t real,
                 const uint32_t *words) {
  _Alignas(64) float buffer[2][VECTOR_TILE];
  const float *from = vector_read(arrays->x, offset, count, buffer[0]);
  float *to = vector_target(arrays->y, offset, buffer[1]);
  apply(to, from, words, count, mask);
  vector_write(arrays->y, offset, count, to);
  if (arrays->noise.address == NULL) return;
  if (arrays->noise.dtype == DTYPE_U8) {
    uint8_t *bytes = (uint8_t *)arrays->noise.address + offset;
    make_bytes(bytes, words, real, mask);
    memset(bytes + real, 0, (size_t)(count - real));
    return;
  }
  float *noise = vector_target(arrays->noise, offset, buffer[0]);
  make_noise(noise, words, real, mask);
  for (int64_t i = real; i < count; i++)
    noise[i] = 0.0F;
  vector_write(arrays->noise, offset, count, noise);
}

/* ---- Dense samples ----------------------------------------------------------------------------------------- */

/* Elements [elements.begin, elements.end) of all samples, one after another. */
static void drop_dense(Mask mask, int64_t per_sample, const Arrays *arrays, Range elements) {
  _Alignas(64) uint32_t words[VECTOR_TILE + 8];
  for (int64_t i = elements.begin; i < elements.end;) {
    int64_t sample = i / per_sample, element = i % per_sample, count = elements.end - i;
    if (count > per_sample - element) count = per_sample - element;
    if (count > VECTOR_TILE) count = VECTOR_TILE;
    const uint32_t *drawn =
        random_words(mask.key, (uint64_t)(arrays->first_sample + sample), element, count, words);
    drop(arrays, mask, i, count, count, drawn);
    i += count;
  }
}

/* ---- Blocks of channels -------------------------------------------------------------------------------------- */

typedef struct Patch {
  int64_t sample, block; /* channel block */
  Range places, lanes;   /* lanes within the block */
} Patch;

/* The words of a patch, [place][lane]; those of padding lanes are any. */
static void draw_patch(const ChannelView *view, Mask mask, int64_t first_sample, const Patch *patch,
                       uint32_t *words) {
  uint32_t drawn[PATCH_PLACES + 8];
  int64_t lanes = patch->lanes.end - patch->lanes.begin, places = patch->places.end - patch->places.begin;
  for (int64_t lane = 0; lane < lanes; lane++) {
    int64_t channel = patch->block * view->block + patch->lanes.begin + lane;
    const uint32_t *along = random_words(mask.key, (uint64_t)(first_sample + patch->sample),
                                         channel * view->spatial + patch->places.begin, places, drawn);
    for (int64_t place = 0; place < places; place++)
      words[place * lanes + lane] = along[place];
  }
}

static void drop_patch(const ChannelView *view, Mask mask, const Arrays *arrays, const Patch *patch) {
  _Alignas(64) uint32_t words[PATCH_LANES * PATCH_PLACES];
  draw_patch(view, mask, arrays->first_sample, patch, words);
  int64_t lanes = patch->lanes.end - patch->lanes.begin;
  int64_t real = view->channels - (patch->block * view->block + patch->lanes.begin);
  real = real < 0 ? 0 : real < lanes ? real : lanes;
  int64_t row = patch->sample * view->channel_blocks + patch->block;
  for (int64_t place = patch->places.begin; place < patch->places.end; place++) {
    int64_t at = (row * view->spatial + place) * view->block + patch->lanes.begin;
    drop(arrays, mask, at, lanes, real, words + (place - patch->places.begin) * lanes);
  }
}

static void drop_blocks(const ChannelView *view, Mask mask, const Arrays *arrays, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; row++)
    for (int64_t place = 0; place < view->spatial; place += PATCH_PLACES)
      for (int64_t lane = 0; lane < view->block; lane += PATCH_LANES) {
        int64_t places = view->spatial - place, lanes = view->block - lane;
        Patch patch = {row / view->channel_blocks,
                       row % view->channel_blocks,
                       {place, place + (places < PATCH_PLACES ? places : PATCH_PLACES)},
                       {lane, lane + (lanes < PATCH_LANES ? lanes : PATCH_LANES)}};
        drop_patch(view, mask, arrays, &patch);
      }
}

/* ---- The op --------------------------------------------------------------------------------------------------- */

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  const ChannelView *view = kernel->data;
  const OpParams *params = &kernel->node->params;
  Arrays arrays = {.x = vector_input(kernel, inputs, 0),
                   .y = vector_output(kernel, outputs, 0),
                   .noise = vector_output(kernel, outputs, 1),
                   .first_sample = context->first_sample};
  /* unit >= rate, and unit is a whole number of 2^-24. */
  Mask mask = {.key = vl_random_key(context->seed, context->step, params->random_scope),
               .threshold = (uint32_t)ceil(params->rate * 0x1p24),
               .scale = (float)(1.0 / (1.0 - params->rate))};
  int64_t elements = vl_tensor_elements(kernel->node->inputs[0]);
  int32_t wanted = vector_threads(kernel, 8 * elements); /* a word costs about as much as eight elements */
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    if (view->block == 1)
      drop_dense(mask, view->channels * view->spatial, &arrays, vector_share(elements, threads, thread));
    else
      drop_blocks(view, mask, &arrays, vector_share(view->n * view->channel_blocks, threads, thread));
  }
  return vl_ok();
}

static void apply_mask(VectorArray y, VectorArray x, const uint8_t *bytes, Range elements, float factor) {
  _Alignas(64) float buffer[2][VECTOR_TILE];
  for (int64_t i = elements.begin; i < elements.end; i += VECTOR_TILE) {
    int64_t count = elements.end - i < VECTOR_TILE ? elements.end - i : VECTOR_TILE;
    const float *from = vector_read(x, i, count, buffer[0]);
    float *to = vector_target(y, i, buffer[1]);
    apply_bytes(to, from, bytes + i, count, factor);
    vector_write(y, i, count, to);
  }
}

static Status launch_with_noise(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  VectorArray y = vector_output(kernel, outputs, 0), x = vector_input(kernel, inputs, 0),
              noise = vector_input(kernel, inputs, 1);
  float factor = (float)(1.0 / (1.0 - kernel->node->params.rate));
  if (noise.dtype != DTYPE_U8) {
    vector_map(kernel, apply_noise, factor, y, x, noise);
    return vl_ok();
  }
  int64_t elements = *(const int64_t *)kernel->data;
  int32_t threads = vector_threads(kernel, elements);
#pragma omp parallel num_threads(threads) if (threads > 1)
  apply_mask(y, x, noise.address, vector_share(elements, omp_get_num_threads(), omp_get_thread_num()),
             factor);
  return vl_ok();
}

static Status prepare_with_noise(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, 2);
}

static const CpuOp with_noise = {
    .name = "dropout",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare_with_noise,
    .launch = launch_with_noise,
};

static Status prepare(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  if (node->input_count > 1 && node->inputs[1] != NULL) {
    kernel->op = &with_noise;
    return with_noise.prepare(device, kernel);
  }
  const Tensor *x = node->inputs[0];
  ChannelView *view = vl_allocate(sizeof *view);
  kernel->data = view;
  bool noise = node->output_count > 1 && node->outputs[1] != NULL;
  if (kernel->inputs[0] != kernel->outputs[0] || (noise && kernel->outputs[1] != kernel->outputs[0]))
    return vl_error(VL_INTERNAL, "dropout in %s: layouts %s and %s; they must be one", kernel->node->scope,
                    cpu_layout_name(device, kernel->inputs[0]), cpu_layout_name(device, kernel->outputs[0]));
  if (kernel->inputs[0] != LAYOUT_PLAIN) return cpu_channel_view(device, kernel->inputs[0], x, view);
  /* Plain: the first dimension is the sample, whatever the others mean. */
  int64_t per_sample = vl_tensor_elements(x) / x->shape[0];
  *view = (ChannelView){
      .n = x->shape[0], .channels = per_sample, .channel_blocks = per_sample, .spatial = 1, .block = 1};
  return vl_ok();
}

const CpuOp cpu_op_dropout = {
    .name = "dropout",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = launch,
};
