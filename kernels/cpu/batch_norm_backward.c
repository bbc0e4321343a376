/* Batch norm, backward in training mode, with the gradient of a ReLU and of a residual that end the forward
 * op. Two incoming gradients are summed as they are read.
 *
 * With g the gradient behind the ReLU, n values a channel, r = 1 / sqrt(var + epsilon), t = x - mean:
 *   dbeta = sum g, dgamma = r sum g t
 *   dx = gamma r (g - dbeta / n - t r dgamma / n) = gain g + (slope t + constant)
 * The sums are made as the statistics are (batch_norm.c): fewer than 128 roundings in f32 touch a value, the
 * rest is in double, so with u = 2^-24 their errors are at most 128 u sum |g| and 130 u sum |g t|.
 *
 * dx needs a channel's sums first, so everything is read twice. Where there are enough channel blocks a
 * thread takes as many at a time as its share of the cache holds, and the second reading comes from there;
 * otherwise the points are shared out and the threads meet in between. */
#include "kernels/cpu/batch_norm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Inputs and outputs as README.md of graph/ops lists them. */
enum { IN_DY, IN_X, IN_MEAN, IN_VAR, IN_GAMMA, IN_BETA, IN_Y, IN_DY2 };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA, OUT_DRESIDUAL };

typedef struct BackwardPlan {
  ChannelView view;
  int64_t channels; /* padded to whole cache lines */
  int64_t group;    /* channel blocks a thread takes at a time; 0: points are shared out */
} BackwardPlan;

/* Coefficients of a tile. */
typedef struct Coefficients {
  const float *of[NORM_COEFFICIENTS];
} Coefficients;

/* One launch. */
typedef struct Backward {
  const Kernel *kernel;
  const BackwardPlan *plan;
  const uintptr_t *inputs, *outputs;
  BatchNormGradient gradient;
  double *sums; /* [thread][2][channels] */
  float *lanes; /* [thread][2][pattern], by cache lines */
} Backward;

/* ---- The gradient behind the ReLU ------------------------------------------------------------------------ */

/* Where the forward output's sign comes from. */
typedef enum Mask { MASK_NONE, MASK_BY_Y, MASK_BY_X } Mask;

/* Tensors of one type, at the start of a tile. */
typedef struct Operands {
  const void *dy, *dy2, *x, *y;
  void *dx, *dresidual;
} Operands;

/* What a loop is specialised for: functions below that end in a call for each value of a member set it to a
 * constant there. */
typedef struct Form {
  bool bf16, pairs; /* elements; taken in pairs, where the pattern is VECTOR_LANES of bf16 */
  bool two;         /* dy2 is there */
  bool residual;    /* dresidual is wanted */
  Mask mask;
  bool leaky;  /* by x alone */
  float below; /* the slope then */
} Form;

/* The gradient d where forward's output was positive, else 0 or the slope's part of it. */
VECTOR_INLINE float masked(float d, float x, float y, Form form, float mean, float scale, float beta,
                           float least) {
  if (form.mask == MASK_NONE) return d;
  bool positive = form.mask == MASK_BY_Y ? y > 0.0F : batch_norm_value(x, mean, scale, beta) > least;
  if (!form.leaky) return vector_where(positive, d);
  return vector_where(positive, d) + form.below * vector_where(!positive, d); /* one of them is 0 */
}

/* Half of bf16's smallest number rounds to zero, and then forward's output was not positive. */
VECTOR_INLINE float least_of(bool bf16) { return bf16 ? 0x1p-134F : 0.0F; }

/* The first `count` of a tile's coefficients, each VECTOR_LANES floats, copied so that no store to a tensor
 * can change them: they stay in registers. In pair order for pairs. */
VECTOR_INLINE Coefficients in_lanes(const Coefficients *by, int count, bool pairs,
                                    float lanes[NORM_COEFFICIENTS][VECTOR_LANES]) {
  Coefficients copies = {{NULL}};
  for (int i = 0; i < count; i++) {
    if (pairs)
      vector_pair_order(lanes[i], by->of[i]);
    else
      memcpy(lanes[i], by->of[i], sizeof lanes[i]);
    copies.of[i] = lanes[i];
  }
  return copies;
}

/* Fetches what will be read after elements i..i + count - 1. */
VECTOR_INLINE void prefetch(const Operands *at, int64_t i, int64_t count, Form form) {
  vector_prefetch(at->x, i, count, form.bf16);
  vector_prefetch(at->dy, i, count, form.bf16);
  if (form.two) vector_prefetch(at->dy2, i, count, form.bf16);
  if (form.mask == MASK_BY_Y) vector_prefetch(at->y, i, count, form.bf16);
}

/* The masked gradient of element i; l is its place among the coefficients. */
VECTOR_INLINE float gradient(const Operands *at, int64_t i, int64_t l, float x, Form form,
                             const Coefficients *by) {
  float d = vector_load(at->dy, i, form.bf16);
  if (form.two) d += vector_load(at->dy2, i, form.bf16);
  float y = form.mask == MASK_BY_Y ? vector_load(at->y, i, form.bf16) : 0.0F;
  return masked(d, x, y, form, by->of[NORM_MEAN][l], by->of[NORM_SCALE][l], by->of[NORM_BETA][l],
                least_of(form.bf16));
}

/* The same for elements 2 i and 2 i + 1. */
VECTOR_INLINE VectorPair gradient_pair(const Operands *at, int64_t i, int64_t l, VectorPair x, Form form,
                                       const Coefficients *by) {
  VectorPair d = vector_load_pair(at->dy, i), y = {0.0F, 0.0F};
  if (form.two) {
    VectorPair second = vector_load_pair(at->dy2, i);
    d = (VectorPair){d.even + second.even, d.odd + second.odd};
  }
  if (form.mask == MASK_BY_Y) y = vector_load_pair(at->y, i);
  int64_t h = VECTOR_PAIRS + l;
  return (VectorPair){masked(d.even, x.even, y.even, form, by->of[NORM_MEAN][l], by->of[NORM_SCALE][l],
                             by->of[NORM_BETA][l], least_of(true)),
                      masked(d.odd, x.odd, y.odd, form, by->of[NORM_MEAN][h], by->of[NORM_SCALE][h],
                             by->of[NORM_BETA][h], least_of(true))};
}

/* ---- First reading: sums ---------------------------------------------------------------------------------- */

/* What an element adds to the two sums. */
typedef struct Term {
  float gradient, product;
} Term;
typedef struct TermPair {
  Term even, odd;
} TermPair;

VECTOR_INLINE Term term_of(const Operands *at, int64_t i, int64_t l, Form form, const Coefficients *by) {
  float x = vector_load(at->x, i, form.bf16), g = gradient(at, i, l, x, form, by);
  return (Term){g, g * (x - by->of[NORM_MEAN][l])};
}

VECTOR_INLINE TermPair terms_of(const Operands *at, int64_t i, int64_t l, Form form, const Coefficients *by) {
  VectorPair x = vector_load_pair(at->x, i), g = gradient_pair(at, i, l, x, form, by);
  return (TermPair){{g.even, g.even * (x.even - by->of[NORM_MEAN][l])},
                    {g.odd, g.odd * (x.odd - by->of[NORM_MEAN][VECTOR_PAIRS + l])}};
}

VECTOR_INLINE Term plus(Term a, Term b) { return (Term){a.gradient + b.gradient, a.product + b.product}; }

VECTOR_INLINE void add_row(const Operands *at, int64_t first, int64_t count, Form form,
                           const Coefficients *by, float *restrict sum, float *restrict product) {
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    Term term = term_of(at, first + p, p, form, by);
    sum[p] += term.gradient;
    product[p] += term.product;
  }
}

/* Four rows as a tree. */
VECTOR_INLINE void add_rows(const Operands *at, int64_t first, int64_t pattern, Form form,
                            const Coefficients *by, float *restrict sum, float *restrict product) {
#pragma omp simd
  for (int64_t p = 0; p < pattern; p++) {
    int64_t i = first + p;
    Term a = term_of(at, i, p, form, by), b = term_of(at, i + pattern, p, form, by),
         c = term_of(at, i + 2 * pattern, p, form, by), d = term_of(at, i + 3 * pattern, p, form, by);
    Term four = plus(plus(a, b), plus(c, d));
    sum[p] += four.gradient;
    product[p] += four.product;
  }
}

/* The same in pairs. */
VECTOR_INLINE void add_pair_row(const Operands *at, int64_t first, int64_t count, Form form,
                                const Coefficients *by, float *restrict sum, float *restrict product) {
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    TermPair terms = terms_of(at, first + p, p, form, by);
    sum[p] += terms.even.gradient;
    sum[VECTOR_PAIRS + p] += terms.odd.gradient;
    product[p] += terms.even.product;
    product[VECTOR_PAIRS + p] += terms.odd.product;
  }
}

VECTOR_INLINE void add_pair_rows(const Operands *at, int64_t first, Form form, const Coefficients *by,
                                 float *restrict sum, float *restrict product) {
  const int64_t row = VECTOR_PAIRS;
#pragma omp simd
  for (int64_t p = 0; p < VECTOR_PAIRS; p++) {
    int64_t i = first + p;
    TermPair a = terms_of(at, i, p, form, by), b = terms_of(at, i + row, p, form, by),
             c = terms_of(at, i + 2 * row, p, form, by), d = terms_of(at, i + 3 * row, p, form, by);
    Term even = plus(plus(a.even, b.even), plus(c.even, d.even));
    Term odd = plus(plus(a.odd, b.odd), plus(c.odd, d.odd));
    sum[p] += even.gradient;
    sum[row + p] += odd.gradient;
    product[p] += even.product;
    product[row + p] += odd.product;
  }
}

VECTOR_INLINE void add_pairs(const Operands *at, int64_t count, Form form, const Coefficients *by, float *sum,
                             float *product) {
  int64_t i = 0, pairs = count / 2;
  for (; i + 4 * VECTOR_PAIRS <= pairs; i += 4 * VECTOR_PAIRS) {
    prefetch(at, 2 * i, 4 * VECTOR_LANES, form);
    add_pair_rows(at, i, form, by, sum, product);
  }
  for (; i + VECTOR_PAIRS <= pairs; i += VECTOR_PAIRS)
    add_pair_row(at, i, VECTOR_PAIRS, form, by, sum, product);
  add_pair_row(at, i, pairs - i, form, by, sum, product);
  if (count % 2 == 0) return;
  Term last = term_of(at, count - 1, pairs - i, form, by);
  sum[pairs - i] += last.gradient;
  product[pairs - i] += last.product;
}

VECTOR_INLINE void add_products(const Operands *at, int64_t count, int64_t pattern, Form form,
                                const Coefficients *by, float *sum, float *product) {
  if (form.pairs) {
    add_pairs(at, count, form, by, sum, product);
    return;
  }
  int64_t i = 0;
  for (; i + 4 * pattern <= count; i += 4 * pattern) {
    if (pattern == VECTOR_LANES) prefetch(at, i, 4 * VECTOR_LANES, form);
    add_rows(at, i, pattern, form, by, sum, product);
  }
  for (; i < count; i += pattern)
    add_row(at, i, count - i < pattern ? count - i : pattern, form, by, sum, product);
}

VECTOR_INLINE void add_masked(const Operands *at, int64_t count, int64_t pattern, Form form,
                              const Coefficients *by, float *sum, float *product) {
  if (form.leaky) {
    form.mask = MASK_BY_X, form.leaky = true;
    add_products(at, count, pattern, form, by, sum, product);
    return;
  }
  form.leaky = false;
  if (form.mask == MASK_BY_Y) {
    form.mask = MASK_BY_Y;
    add_products(at, count, pattern, form, by, sum, product);
  } else if (form.mask == MASK_BY_X) {
    form.mask = MASK_BY_X;
    add_products(at, count, pattern, form, by, sum, product);
  } else {
    form.mask = MASK_NONE;
    add_products(at, count, pattern, form, by, sum, product);
  }
}

VECTOR_INLINE void add_gradients(const Operands *at, int64_t count, int64_t pattern, Form form,
                                 const Coefficients *by, float *sum, float *product) {
  if (form.two) {
    form.two = true;
    add_masked(at, count, pattern, form, by, sum, product);
  } else {
    form.two = false;
    add_masked(at, count, pattern, form, by, sum, product);
  }
}

VECTOR_CLONES
static void add_tile(const Operands *operands, int64_t count, int64_t pattern, Form form,
                     const Coefficients *coefficients, float *sum, float *product) {
  /* Copies, which no store to a tensor can change. */
  const Operands here = *operands, *at = &here;
  const Coefficients near = *coefficients, *by = &near;
  _Alignas(64) float lanes[NORM_COEFFICIENTS][VECTOR_LANES];
  if (form.pairs) {
    const Coefficients copies = in_lanes(by, NORM_GAIN, true, lanes);
    form.pairs = form.bf16 = true;
    add_gradients(at, count, VECTOR_LANES, form, &copies, sum, product);
  } else if (form.bf16) {
    form.pairs = false, form.bf16 = true;
    add_gradients(at, count, pattern, form, by, sum, product);
  } else if (pattern == VECTOR_LANES) {
    const Coefficients copies = in_lanes(by, NORM_GAIN, false, lanes);
    form.pairs = form.bf16 = false;
    add_gradients(at, count, VECTOR_LANES, form, &copies, sum, product);
  } else {
    form.pairs = form.bf16 = false;
    add_gradients(at, count, pattern, form, by, sum, product);
  }
}

static Operands operands_at(const BatchNormGradient *of, int64_t offset) {
  return (Operands){.dy = vector_at(of->dy, offset),
                    .dy2 = vector_at(of->dy2, offset),
                    .x = vector_at(of->x, offset),
                    .y = vector_at(of->y, offset),
                    .dx = vector_at(of->dx, offset),
                    .dresidual = vector_at(of->dresidual, offset)};
}

static Form form_of(const BatchNormGradient *of) {
  bool bf16 = of->x.dtype == DTYPE_BF16;
  return (Form){.bf16 = bf16,
                .pairs = bf16 && vector_pattern(of->view) == VECTOR_LANES,
                .two = of->dy2.address != NULL,
                .residual = of->dresidual.address != NULL,
                .mask = !of->relu               ? MASK_NONE
                        : of->y.address != NULL ? MASK_BY_Y
                                                : MASK_BY_X,
                .leaky = of->relu && of->below != 0.0F,
                .below = of->below};
}

/* Repeats the first `count` coefficients of a tile's channel block. */
static void repeat_row(const BatchNormGradient *of, const VectorTile *tile, int count,
                       float repeated[NORM_COEFFICIENTS][2 * VECTOR_LANES], Coefficients *row) {
  for (int i = 0; i < count; i++)
    row->of[i] = vector_repeat(of->view, of->all[i], tile->block, repeated[i]);
}

static Coefficients coefficients_at(const Coefficients *row, int64_t phase, int count) {
  Coefficients at = {{NULL}};
  for (int i = 0; i < count; i++)
    at.of[i] = row->of[i] + phase;
  return at;
}

void batch_norm_gradient_sums(const BatchNormGradient *of, VectorPart part, double *sums, float *lanes) {
  _Alignas(64) float repeated[NORM_COEFFICIENTS][2 * VECTOR_LANES];
  const ChannelView *view = of->view;
  int64_t pattern = vector_pattern(view), channels = vector_by_lines(vector_channels(view)),
          block = view->block, values = 0;
  float *sum = lanes, *product = lanes + vector_by_lines(pattern);
  memset(lanes, 0, (size_t)vector_by_lines(pattern) * 2 * sizeof *lanes);
  size_t part_bytes = (size_t)((part.blocks.end - part.blocks.begin) * block) * sizeof *sums;
  memset(sums + part.blocks.begin * block, 0, part_bytes);
  memset(sums + channels + part.blocks.begin * block, 0, part_bytes);
  Coefficients row = {{NULL}};
  Form form = form_of(of);
  VectorWalk walk = vector_walk(view, part, VECTOR_SPAN);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) repeat_row(of, &tile, NORM_GAIN, repeated, &row);
    Coefficients by = coefficients_at(&row, tile.phase, NORM_GAIN);
    Operands at = operands_at(of, tile.offset);
    add_tile(&at, tile.count, pattern, form, &by, sum + tile.phase, product + tile.phase);
    values += vector_values(&tile, pattern);
    if (tile.ends || values >= VECTOR_RUN) {
      double *of_sum = sums + tile.block * block, *of_product = sums + channels + tile.block * block;
      if (form.pairs) {
        vector_fold_pairs(of_sum, sum, block);
        vector_fold_pairs(of_product, product, block);
      } else {
        vector_fold(of_sum, sum, pattern, block);
        vector_fold(of_product, product, pattern, block);
      }
      values = 0;
    }
  }
}

/* ---- Between the readings: coefficients -------------------------------------------------------------------- */

static void fill_forward(const Backward *run, Range channels) {
  const Kernel *kernel = run->kernel;
  const float *mean = (const float *)run->inputs[IN_MEAN], *var = (const float *)run->inputs[IN_VAR];
  VectorArray gamma = vector_input(kernel, run->inputs, IN_GAMMA);
  VectorArray beta = vector_input(kernel, run->inputs, IN_BETA);
  for (int64_t c = channels.begin; c < channels.end; c++) {
    bool real = c < run->plan->view.channels;
    run->gradient.all[NORM_MEAN][c] = real ? mean[c] : 0.0F;
    run->gradient.all[NORM_SCALE][c] =
        real ? batch_norm_scale(vector_element(gamma, c), var[c], kernel->node->params.epsilon) : 0.0F;
    run->gradient.all[NORM_BETA][c] = real && beta.address != NULL ? vector_element(beta, c) : 0.0F;
  }
}

/* From the sums of threads first..first + threads - 1, in that order. */
static void fill_backward(const Backward *run, int32_t first, int32_t threads, Range channels) {
  const float *var = (const float *)run->inputs[IN_VAR];
  VectorArray gamma = vector_input(run->kernel, run->inputs, IN_GAMMA);
  float *dgamma = vector_output(run->kernel, run->outputs, OUT_DGAMMA).address;
  float *dbeta = vector_output(run->kernel, run->outputs, OUT_DBETA).address;
  int64_t padded = run->plan->channels;
  const ChannelView *view = &run->plan->view;
  double points = (double)(view->n * view->spatial);
  for (int64_t c = channels.begin; c < channels.end; c++) {
    run->gradient.all[NORM_GAIN][c] = run->gradient.all[NORM_SLOPE][c] = run->gradient.all[NORM_CONSTANT][c] =
        0.0F;
    if (c >= view->channels) continue;
    double sum = 0.0, product = 0.0;
    for (int32_t t = first; t < first + threads; t++) {
      sum += run->sums[2 * padded * t + c];
      product += run->sums[2 * padded * t + padded + c];
    }
    double r = 1.0 / sqrt((double)var[c] + run->kernel->node->params.epsilon);
    double gain = (double)vector_element(gamma, c) * r;
    run->gradient.all[NORM_GAIN][c] = (float)gain;
    run->gradient.all[NORM_SLOPE][c] = (float)(-gain * r * r * product / points);
    run->gradient.all[NORM_CONSTANT][c] = (float)(-gain * sum / points);
    if (dgamma != NULL) dgamma[c] = (float)(r * product);
    if (dbeta != NULL) dbeta[c] = (float)sum;
  }
}

/* ---- Second reading: dx ------------------------------------------------------------------------------------ */

/* l is the element's place among the coefficients. */
VECTOR_INLINE float derivative(float x, float g, int64_t l, const Coefficients *by) {
  return by->of[NORM_GAIN][l] * g +
         ((x - by->of[NORM_MEAN][l]) * by->of[NORM_SLOPE][l] + by->of[NORM_CONSTANT][l]);
}

VECTOR_INLINE void differentiate_values(const Operands *at, int64_t first, int64_t count, Form form,
                                        const Coefficients *by) {
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    int64_t i = first + p;
    float x = vector_load(at->x, i, form.bf16), g = gradient(at, i, p, x, form, by);
    /* dx and dresidual may be dy and dy2, or the other way round. */
    if (form.residual) vector_store(at->dresidual, i, g, form.bf16);
    vector_store(at->dx, i, derivative(x, g, p, by), form.bf16);
  }
}

/* The same in pairs. */
VECTOR_INLINE void differentiate_pairs(const Operands *at, int64_t first, int64_t count, Form form,
                                       const Coefficients *by) {
#pragma omp simd
  for (int64_t p = 0; p < count; p++) {
    int64_t i = first + p;
    VectorPair x = vector_load_pair(at->x, i), g = gradient_pair(at, i, p, x, form, by);
    if (form.residual) vector_store_pair(at->dresidual, i, g);
    vector_store_pair(
        at->dx, i,
        (VectorPair){derivative(x.even, g.even, p, by), derivative(x.odd, g.odd, VECTOR_PAIRS + p, by)});
  }
}

VECTOR_INLINE void differentiate(const Operands *at, int64_t count, int64_t pattern, Form form,
                                 const Coefficients *by) {
  int64_t i = 0;
  if (!form.pairs) {
    for (; i + pattern <= count; i += pattern) {
      if (pattern == VECTOR_LANES) prefetch(at, i, VECTOR_LANES, form);
      differentiate_values(at, i, pattern, form, by);
    }
    differentiate_values(at, i, count - i, form, by);
    return;
  }
  for (; i + VECTOR_PAIRS <= count / 2; i += VECTOR_PAIRS) {
    prefetch(at, 2 * i, VECTOR_LANES, form);
    differentiate_pairs(at, i, VECTOR_PAIRS, form, by);
  }
  differentiate_pairs(at, i, count / 2 - i, form, by);
  if (count % 2 == 0) return;
  Coefficients last = coefficients_at(by, count / 2 - i, NORM_COEFFICIENTS);
  differentiate_values(at, count - 1, 1, form, &last);
}

VECTOR_INLINE void differentiate_masked(const Operands *at, int64_t count, int64_t pattern, Form form,
                                        const Coefficients *by) {
  if (form.leaky) {
    form.mask = MASK_BY_X, form.leaky = true, form.residual = false;
    differentiate(at, count, pattern, form, by);
    return;
  }
  form.leaky = false;
  if (form.mask == MASK_BY_Y) {
    form.mask = MASK_BY_Y;
    differentiate(at, count, pattern, form, by);
  } else if (form.mask == MASK_BY_X) {
    form.mask = MASK_BY_X;
    form.residual = false; /* supports() */
    differentiate(at, count, pattern, form, by);
  } else {
    form.mask = MASK_NONE;
    differentiate(at, count, pattern, form, by);
  }
}

VECTOR_INLINE void differentiate_residual(const Operands *at, int64_t count, int64_t pattern, Form form,
                                          const Coefficients *by) {
  if (form.residual) {
    form.residual = true;
    differentiate_masked(at, count, pattern, form, by);
  } else {
    form.residual = false;
    differentiate_masked(at, count, pattern, form, by);
  }
}

VECTOR_INLINE void differentiate_gradients(const Operands *at, int64_t count, int64_t pattern, Form form,
                                           const Coefficients *by) {
  if (form.two) {
    form.two = true;
    differentiate_residual(at, count, pattern, form, by);
  } else {
    form.two = false;
    differentiate_residual(at, count, pattern, form, by);
  }
}

VECTOR_CLONES
static void differentiate_tile(const Operands *operands, int64_t count, int64_t pattern, Form form,
                               const Coefficients *coefficients) {
  const Operands here = *operands, *at = &here;
  const Coefficients near = *coefficients, *by = &near;
  _Alignas(64) float lanes[NORM_COEFFICIENTS][VECTOR_LANES];
  if (form.pairs) {
    const Coefficients copies = in_lanes(by, NORM_COEFFICIENTS, true, lanes);
    form.pairs = form.bf16 = true;
    differentiate_gradients(at, count, VECTOR_LANES, form, &copies);
  } else if (form.bf16) {
    form.pairs = false, form.bf16 = true;
    differentiate_gradients(at, count, pattern, form, by);
  } else if (pattern == VECTOR_LANES) {
    const Coefficients copies = in_lanes(by, NORM_COEFFICIENTS, false, lanes);
    form.pairs = form.bf16 = false;
    differentiate_gradients(at, count, VECTOR_LANES, form, &copies);
  } else {
    form.pairs = form.bf16 = false;
    differentiate_gradients(at, count, pattern, form, by);
  }
}

void batch_norm_differentiate(const BatchNormGradient *of, VectorPart part) {
  if (of->dx.address == NULL) return;
  _Alignas(64) float repeated[NORM_COEFFICIENTS][2 * VECTOR_LANES];
  Coefficients row = {{NULL}};
  Form form = form_of(of);
  VectorWalk walk = vector_walk(of->view, part, VECTOR_SPAN);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    if (tile.begins) repeat_row(of, &tile, NORM_COEFFICIENTS, repeated, &row);
    Coefficients by = coefficients_at(&row, tile.phase, NORM_COEFFICIENTS);
    Operands at = operands_at(of, tile.offset);
    differentiate_tile(&at, tile.count, vector_pattern(of->view), form, &by);
  }
}

/* ---- The op ------------------------------------------------------------------------------------------------ */

static void run_by_blocks(const Backward *run, Range blocks, int32_t thread) {
  const ChannelView *view = &run->plan->view;
  int64_t lanes = 2 * vector_by_lines(vector_pattern(view));
  for (int64_t i = blocks.begin; i < blocks.end; i += run->plan->group) {
    int64_t end = i + run->plan->group < blocks.end ? i + run->plan->group : blocks.end;
    VectorPart part = {{i, end}, {0, view->n * view->spatial}};
    Range channels = {i * view->block, end * view->block};
    fill_forward(run, channels);
    batch_norm_gradient_sums(&run->gradient, part, run->sums + 2 * run->plan->channels * thread,
                             run->lanes + thread * lanes);
    fill_backward(run, thread, 1, channels);
    batch_norm_differentiate(&run->gradient, part);
  }
}

/* Called by every thread of a region. */
static void run_by_points(const Backward *run, int32_t threads, int32_t thread) {
  const ChannelView *view = &run->plan->view;
  int64_t lanes = 2 * vector_by_lines(vector_pattern(view));
  VectorPart part = {{0, view->channel_blocks}, vector_share(view->n * view->spatial, threads, thread)};
  Range channels = vector_share(vector_channels(view), threads, thread);
  fill_forward(run, channels);
#pragma omp barrier
  batch_norm_gradient_sums(&run->gradient, part, run->sums + 2 * run->plan->channels * thread,
                           run->lanes + thread * lanes);
#pragma omp barrier
  fill_backward(run, 0, threads, channels);
#pragma omp barrier
  batch_norm_differentiate(&run->gradient, part);
}

static Backward backward_run(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                             uintptr_t workspace) {
  const BackwardPlan *plan = kernel->data;
  Backward run = {.kernel = kernel, .plan = plan, .inputs = inputs, .outputs = outputs};
  run.gradient = (BatchNormGradient){.view = &plan->view,
                                     .dy = vector_input(kernel, inputs, IN_DY),
                                     .dy2 = vector_input(kernel, inputs, IN_DY2),
                                     .x = vector_input(kernel, inputs, IN_X),
                                     .y = vector_input(kernel, inputs, IN_Y),
                                     .dx = vector_output(kernel, outputs, OUT_DX),
                                     .dresidual = vector_output(kernel, outputs, OUT_DRESIDUAL),
                                     .relu = kernel->node->params.relu != 0};
  run.sums = (double *)workspace;
  float *next = (float *)(run.sums + 2 * plan->channels * kernel->threads);
  for (int i = 0; i < NORM_COEFFICIENTS; i++, next += plan->channels)
    run.gradient.all[i] = next;
  run.lanes = next;
  return run;
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  Backward run = backward_run(kernel, inputs, outputs, workspace);
  const ChannelView *view = &run.plan->view;
  int32_t wanted = vector_threads(kernel, view->n * view->spatial * vector_channels(view));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    if (run.plan->group > 0)
      run_by_blocks(&run, vector_share(view->channel_blocks, threads, thread), thread);
    else
      run_by_points(&run, threads, thread);
  }
  return vl_ok();
}

static bool has_input(const Node *node, int32_t i) {
  return node->input_count > i && node->inputs[i] != NULL;
}

/* Channel blocks a thread's share of the cache holds of what is read twice; 0 when the threads would not be
 * evenly busy with whole blocks. */
static int64_t blocks_at_a_time(const Kernel *kernel, const ChannelView *view) {
  int64_t threads = kernel->threads, rounds = (view->channel_blocks + threads - 1) / threads;
  if (4 * rounds * threads > 5 * view->channel_blocks) return 0;
  const Node *node = kernel->node;
  int64_t read = 2 + has_input(node, IN_Y) + has_input(node, IN_DY2);
  int64_t element_bytes = read * vl_dtype_bytes(node->inputs[IN_X]->dtype, 1);
  int64_t block_bytes = view->n * view->spatial * view->block * element_bytes;
  int64_t budget_bytes = INT64_C(4) << 20; /* measured: 1 to 8 MiB differ little, none or all cost 10 % */
  int64_t fits = budget_bytes / block_bytes;
  return fits < 1 ? 1 : fits < rounds ? fits : rounds;
}

static Status backward_supports(CpuDevice *device, const Node *node) {
  bool from_output = has_input(node, IN_Y);
  bool from_input = has_input(node, IN_BETA) && node->params.alpha == 0.0;
  if (node->params.relu != 0 && !from_output && !from_input)
    return vl_error(VL_UNSUPPORTED,
                    "batch_norm_backward in %s: the ReLU's sign needs y, or beta where there was no residual",
                    node->scope);
  if (node->outputs[OUT_DX] == NULL && node->output_count > OUT_DRESIDUAL &&
      node->outputs[OUT_DRESIDUAL] != NULL)
    return vl_error(VL_UNSUPPORTED, "batch_norm_backward in %s: dresidual without dx", node->scope);
  return cpu_supports_f32_bf16(device, node);
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  BackwardPlan *plan = vl_allocate(sizeof *plan);
  kernel->data = plan;
  VL_TRY(cpu_channel_view(device, kernel->inputs[IN_X], kernel->node->inputs[IN_X], &plan->view));
  plan->channels = vector_by_lines(vector_channels(&plan->view));
  plan->group = blocks_at_a_time(kernel, &plan->view);
  int64_t lanes = 2 * vector_by_lines(vector_pattern(&plan->view));
  kernel->workspace_bytes =
      kernel->threads * (2 * plan->channels * 8 + lanes * 4) + NORM_COEFFICIENTS * plan->channels * 4;
  return vl_ok();
}

const CpuOp cpu_op_batch_norm_backward = {
    .name = "batch_norm_backward",
    .supports = backward_supports,
    .choose_layouts = vector_choose,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
