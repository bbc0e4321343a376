/* AdamW with its moments in 8 bits: each block of VL_STATE_BLOCK elements is read, updated and written in one
 * pass while it is in the first-level cache; a thread takes whole blocks. */
#include "kernels/cpu/state_codes.h"
#include "kernels/cpu/update.h"

#include <math.h>
#include <omp.h>

enum { IN_W, IN_DW, IN_M, IN_V, IN_SCALES, INPUTS };
enum { OUT_W, OUT_M, OUT_V, OUT_SCALES, OUTPUTS };
enum { BLOCK = VL_STATE_BLOCK };

/* A block's moments as numbers. */
typedef struct Moments {
  _Alignas(64) float mean[BLOCK], square[BLOCK];
} Moments;

typedef struct Scales {
  float mean, square;
} Scales;

/* Updates w and the moments, and returns their largest magnitudes, which are the same in any order. */
VECTOR_CLONES
static Scales update_moments(float *new_w, Moments *moments, const float *w, const float *dw, int64_t count,
                             AdamwFactors by) {
  float *means = moments->mean, *squares = moments->square;
  float most_mean = 0.0F, most_square = 0.0F;
#pragma omp simd reduction(max : most_mean, most_square)
  for (int64_t i = 0; i < count; i++) {
    float g = dw[i] * by.gradient;
    float mean = means[i] + by.new_mean * (g - means[i]);
    float square = squares[i] * by.old_square + by.new_square * g * g;
    means[i] = mean;
    squares[i] = square;
    float magnitude = mean < 0.0F ? -mean : mean;
    most_mean = magnitude > most_mean ? magnitude : most_mean;
    most_square = square > most_square ? square : most_square;
    new_w[i] = w[i] * by.decay + by.step * mean / (sqrtf(square) + by.epsilon);
  }
  return (Scales){most_mean, most_square};
}

/* 1 / scale; 0 where that is no number: such a block is zero but for what no f32 product keeps. */
static float inverse(float scale) { return scale >= 0x1p-120F && scale <= 0x1p120F ? 1.0F / scale : 0.0F; }

typedef struct Update {
  VectorArray w, dw, new_w;
  const uint8_t *m, *v;
  uint8_t *new_m, *new_v;
  const float *scales;
  float *new_scales; /* of means, then of squares */
  int64_t blocks, elements;
  AdamwFactors by;
  const StateCodes *codes;
} Update;

static void update_block(const Update *it, int64_t block) {
  _Alignas(64) float buffer[3][BLOCK];
  Moments moments;
  int64_t at = block * BLOCK, count = it->elements - at < BLOCK ? it->elements - at : BLOCK;
  const float *w = vector_read(it->w, at, count, buffer[0]), *dw = vector_read(it->dw, at, count, buffer[1]);
  float *new_w = vector_target(it->new_w, at, buffer[2]);
  it->codes->read(it->m + at, true, it->scales[block], count, moments.mean);
  it->codes->read(it->v + at, false, it->scales[it->blocks + block], count, moments.square);
  Scales scales = update_moments(new_w, &moments, w, dw, count, it->by);
  vector_write(it->new_w, at, count, new_w);
  it->codes->write(moments.mean, true, inverse(scales.mean), count, it->new_m + at);
  it->codes->write(moments.square, false, inverse(scales.square), count, it->new_v + at);
  it->new_scales[block] = scales.mean;
  it->new_scales[it->blocks + block] = scales.square;
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  const Node *node = kernel->node;
  UpdateFactor factor = update_factor(kernel, inputs, context);
  if (factor.skip) return vl_ok();
  Update it = {.w = vector_input(kernel, inputs, IN_W),
               .dw = vector_input(kernel, inputs, IN_DW),
               .new_w = vector_output(kernel, outputs, OUT_W),
               .m = (const uint8_t *)inputs[IN_M],
               .v = (const uint8_t *)inputs[IN_V],
               .new_m = (uint8_t *)outputs[OUT_M],
               .new_v = (uint8_t *)outputs[OUT_V],
               .scales = (const float *)inputs[IN_SCALES],
               .new_scales = (float *)outputs[OUT_SCALES],
               .blocks = node->inputs[IN_SCALES]->shape[1],
               .elements = vl_tensor_elements(node->inputs[IN_W]),
               .by = update_adamw_factors(&node->params, context, factor),
               .codes = state_codes_choose()};
  int32_t threads = vector_threads(kernel, it.elements);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(it.blocks, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t block = share.begin; block < share.end; block++)
      update_block(&it, block);
  }
  return vl_ok();
}

/* Blocks are of neighbours in the logical order. */
static Status prepare(CpuDevice *device, Kernel *kernel) {
  if (kernel->inputs[IN_W] == LAYOUT_PLAIN) return vl_ok();
  return vl_error(VL_INTERNAL, "adamw_8bit in %s: layout %s; only plain is possible", kernel->node->scope,
                  cpu_layout_name(device, kernel->inputs[IN_W]));
}

const CpuOp cpu_op_adamw_8bit = {
    .name = "adamw_8bit",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = launch,
};
