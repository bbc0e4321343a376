/* AdamW with its moments in 8 bits: each block of VL_STATE_BLOCK elements is read, updated and written in one
 * pass while it is in the first-level cache; a thread takes whole blocks. graph/ops/README.md says what the
 * codes stand for.
 *
 * The map from codes to numbers is a curve of seven straight pieces, one for each power of ten: between codes
 * and edges of bins, n(x) bends downwards and its inverse upwards. So n is the least of seven lines and x the
 * largest of seven: no tables and no branches. Every product and sum is rounded alike on every instruction
 * set. */
#include "kernels/cpu/update.h"

#include <math.h>
#include <omp.h>

enum { IN_W, IN_DW, IN_M, IN_V, IN_SCALES, INPUTS };
enum { OUT_W, OUT_M, OUT_V, OUT_SCALES, OUTPUTS };
enum { DECADES = 7, BLOCK = VL_STATE_BLOCK };

/* Of decade i, from 0.1 unit to unit, in a map with `first` bins in the lowest: its bins, those below it, and
 * the width of one. */
#define BINS(first, i) ((double)((first) << (i)))
#define BELOW(first, i) ((double)(((first) << (i)) - (first)))
#define WIDTH(first, i, unit) (0.9 * (unit) / BINS(first, i))
#define VALUE_LINE(first, i, unit)                                                                           \
  { (float)WIDTH(first, i, unit), (float)(0.1 * (unit)-WIDTH(first, i, unit) * (BELOW(first, i) + 0.5)) }
#define CODE_LINE(first, i, unit)                                                                            \
  { (float)(1.0 / WIDTH(first, i, unit)), (float)(1.0 + BELOW(first, i) - BINS(first, i) / 9.0) }
#define LINES(line, first)                                                                                   \
  {                                                                                                          \
    line(first, 0, 1e-6), line(first, 1, 1e-5), line(first, 2, 1e-4), line(first, 3, 1e-3),                  \
        line(first, 4, 1e-2), line(first, 5, 1e-1), line(first, 6, 1.0)                                      \
  }

typedef struct Line {
  float slope, start;
} Line;
/* value: of code n, the middle between edges n - 1 and n. code: of a number, truncated; code 1 is the first
 * bin. */
static const Line signed_value[DECADES] = LINES(VALUE_LINE, 1), signed_code[DECADES] = LINES(CODE_LINE, 1);
static const Line unsigned_value[DECADES] = LINES(VALUE_LINE, 2),
                  unsigned_code[DECADES] = LINES(CODE_LINE, 2);
enum { SIGNED_TOP = 128, UNSIGNED_TOP = 255 }; /* codes of 1 */

/* The number of [0, 1] that a code within 0..top stands for. */
VECTOR_INLINE float value_of(int32_t code, const Line lines[DECADES], int32_t top) {
  float n = (float)code, value = 0.0F;
  for (int i = 0; i < DECADES; i++) {
    float at = n * lines[i].slope + lines[i].start;
    value = at > value ? at : value;
  }
  value = code == top ? 1.0F : value;
  return vector_where(code != 0, value);
}

/* The code of a number of [0, 1]; of NaN some code. */
VECTOR_INLINE int32_t code_of(float x, const Line lines[DECADES], int32_t top) {
  const float last = 0.45F / (float)((top + 1) / 2); /* half the width of the last bin */
  float n = (float)top - 0.5F;
  for (int i = 0; i < DECADES; i++) {
    float at = x * lines[i].slope + lines[i].start;
    n = at < n ? at : n;
  }
  return (int32_t)n + (x > 1.0F - 0.5F * last);
}

/* A block's moments as numbers. */
typedef struct Moments {
  _Alignas(64) float mean[BLOCK], square[BLOCK];
} Moments;
typedef struct Scales {
  float mean, square;
} Scales;

/* Updates w and gives the new moments. */
VECTOR_CLONES
static void update_moments(float *new_w, Moments *moments, const float *w, const float *dw, const uint8_t *m,
                           const uint8_t *v, Scales scales, int64_t count, AdamwFactors by) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    int32_t code = m[i] > SIGNED_TOP ? m[i] - 256 : m[i];
    float size = value_of(code < 0 ? -code : code, signed_value, SIGNED_TOP) * scales.mean;
    float mean = code < 0 ? -size : size;
    float square = value_of(v[i], unsigned_value, UNSIGNED_TOP) * scales.square;
    float g = dw[i] * by.gradient;
    mean = mean + by.new_mean * (g - mean);
    square = square * by.old_square + by.new_square * g * g;
    moments->mean[i] = mean;
    moments->square[i] = square;
    new_w[i] = w[i] * by.decay + by.step * mean / (sqrtf(square) + by.epsilon);
  }
}

/* The largest magnitude; lanes are in no order that matters to it. */
VECTOR_CLONES
static float largest(const float *x, int64_t count) {
  float lanes[VECTOR_LANES] = {0.0F};
  int64_t i = 0;
  for (; i + VECTOR_LANES <= count; i += VECTOR_LANES)
#pragma omp simd
    for (int64_t l = 0; l < VECTOR_LANES; l++) {
      float magnitude = x[i + l] < 0.0F ? -x[i + l] : x[i + l];
      lanes[l] = magnitude > lanes[l] ? magnitude : lanes[l];
    }
  for (; i < count; i++)
    lanes[0] = fabsf(x[i]) > lanes[0] ? fabsf(x[i]) : lanes[0];
  for (int64_t l = 1; l < VECTOR_LANES; l++)
    lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
  return lanes[0];
}

/* 1 / scale; 0 where that is no number: such a block is zero but for what no f32 product keeps. */
static float inverse(float scale) { return scale >= 0x1p-120F && scale <= 0x1p120F ? 1.0F / scale : 0.0F; }

VECTOR_CLONES
static void encode(uint8_t *m, uint8_t *v, const Moments *moments, float per_mean, float per_square,
                   int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float x = moments->mean[i] * per_mean, y = moments->square[i] * per_square;
    int32_t code = code_of(x < 0.0F ? -x : x, signed_code, SIGNED_TOP);
    int32_t negative = code == SIGNED_TOP ? 1 - SIGNED_TOP : -code; /* -1 has no code */
    m[i] = (uint8_t)(x < 0.0F ? negative : code);
    code = code_of(y, unsigned_code, UNSIGNED_TOP);
    v[i] = (uint8_t)(code == 0 && moments->square[i] > 0.0F ? 1 : code);
  }
}

typedef struct Update {
  VectorArray w, dw, new_w;
  const uint8_t *m, *v;
  uint8_t *new_m, *new_v;
  const float *scales;
  float *new_scales; /* of means, then of squares */
  int64_t blocks, elements;
  AdamwFactors by;
} Update;

static void update_block(const Update *it, int64_t block) {
  _Alignas(64) float buffer[3][BLOCK];
  Moments moments;
  int64_t at = block * BLOCK, count = it->elements - at < BLOCK ? it->elements - at : BLOCK;
  const float *w = vector_read(it->w, at, count, buffer[0]), *dw = vector_read(it->dw, at, count, buffer[1]);
  float *new_w = vector_target(it->new_w, at, buffer[2]);
  Scales scales = {it->scales[block], it->scales[it->blocks + block]};
  update_moments(new_w, &moments, w, dw, it->m + at, it->v + at, scales, count, it->by);
  scales = (Scales){largest(moments.mean, count), largest(moments.square, count)};
  vector_write(it->new_w, at, count, new_w);
  encode(it->new_m + at, it->new_v + at, &moments, inverse(scales.mean), inverse(scales.square), count);
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
               .by = update_adamw_factors(&node->params, context, factor)};
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
