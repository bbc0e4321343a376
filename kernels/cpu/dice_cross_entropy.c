/* dice_cross_entropy and its gradient. Works on tiles of places of one sample: the logits of all classes as
 * f32, class after class, so that every loop runs along places whatever the layout. Places past the end of a
 * sample's share, and those that do not count, are labelled VL_IGNORED_LABEL: tiles are whole lanes.
 *
 * Exponentials and the logarithm are within 2 units in the last place. A lane adds at most VECTOR_TILE /
 * VECTOR_LANES = 32 values in f32, sums are in double, thread after thread. */
#include "kernels/cpu/vector_math.h"

#include <math.h>
#include <omp.h>

/* Inputs as README.md of graph/ops lists them. */
enum { IN_LOGITS, IN_LABELS };
enum { BACK_DLOSS, BACK_LOGITS, BACK_LABELS, BACK_SUMS };
/* Of a class, in this order: of p where it is the label, of p, of its labels. */
enum { SUM_BOTH, SUM_P, SUM_LABELS, SUMS };

typedef struct DicePlan {
  ChannelView view; /* of the logits */
  int64_t tile;     /* places, whole lanes */
} DicePlan;

/* A thread's room for a tile. */
typedef struct Room {
  float *e;       /* [classes][tile]: logits, exponentials, probabilities */
  float *most;    /* [tile], as what follows: the largest logit */
  float *inverse; /* of the sum of exponentials, 0 where a place does not count */
  float *chosen;  /* forward: -log p of the label; backward: what is taken from every class's gradient */
  int32_t *labels;
} Room;
enum { ROOM_ROWS = 4 }; /* beside e */

static int64_t room_elements(const DicePlan *plan) { return (plan->view.channels + ROOM_ROWS) * plan->tile; }

static Room room_of(const DicePlan *plan, float *at) {
  Room room = {.e = at};
  room.most = at + plan->view.channels * plan->tile;
  room.inverse = room.most + plan->tile;
  room.chosen = room.inverse + plan->tile;
  room.labels = (int32_t *)(room.chosen + plan->tile);
  return room;
}

static DicePlan *prepare_plan(CpuDevice *device, Kernel *kernel, int32_t logits, Status *status) {
  DicePlan *plan = vl_allocate(sizeof *plan);
  kernel->data = plan;
  *status = cpu_channel_view(device, kernel->inputs[logits], kernel->node->inputs[logits], &plan->view);
  int64_t budget = 16 * VECTOR_TILE, fits = budget / plan->view.channels / VECTOR_LANES * VECTOR_LANES;
  int64_t most = vector_by_lines(plan->view.spatial);
  plan->tile = fits < VECTOR_LANES ? VECTOR_LANES : fits < VECTOR_TILE ? fits : VECTOR_TILE;
  if (plan->tile > most) plan->tile = most;
  return plan;
}

/* Logits and their gradient in the layout that is decided for logits; everything else plain. */
static Status choose(CpuDevice *device, const Node *node, int32_t logits, LayoutId *inputs,
                     LayoutId *outputs) {
  LayoutId layout = inputs[logits];
  VL_TRY(cpu_choose_plain(device, node, inputs, outputs));
  if (!cpu_layout_is_activation(device, layout)) return vl_ok();
  inputs[logits] = layout;
  const Tensor *first = node->outputs[0];
  if (first != NULL && vl_tensor_same_shape(first, node->inputs[logits])) outputs[0] = layout;
  return vl_ok();
}

/* ---- Labels ----------------------------------------------------------------------------------------------- */

/* What a run of labels holds: how many count, and whether one is neither a class nor ignored. */
typedef struct LabelCount {
  int64_t counted;
  bool invalid;
} LabelCount;

VECTOR_CLONES
static void count_run(const int32_t *labels, int64_t count, int32_t classes, LabelCount *found) {
  int32_t ignored = 0, outside = 0;
  for (int64_t i = 0; i < count; i++) {
    ignored += labels[i] == VL_IGNORED_LABEL;
    outside += (labels[i] < 0) | (labels[i] >= classes);
  }
  found->counted += count - ignored;
  found->invalid |= outside != ignored;
}

static Status refuse(const Kernel *kernel, const ChannelView *view, const int32_t *labels) {
  int64_t i = 0;
  while (labels[i] == VL_IGNORED_LABEL || (labels[i] >= 0 && labels[i] < view->channels))
    i++;
  return vl_error(
      VL_INVALID,
      "%s in %s: label %d of sample %lld, place %lld; must be within 0 and %lld, or %d to ignore it",
      kernel->op->name, kernel->node->scope, labels[i], (long long)(i / view->spatial),
      (long long)(i % view->spatial), (long long)(view->channels - 1), VL_IGNORED_LABEL);
}

/* Checks the labels and counts those that are not ignored. found: room for one a thread. */
static Status count_labels(const Kernel *kernel, const ChannelView *view, const int32_t *labels,
                           LabelCount *found, int64_t *counted) {
  int64_t places = view->n * view->spatial, run = INT64_C(1) << 20; /* few enough for 32-bit counts */
  int32_t wanted = vector_threads(kernel, places), threads = 1;
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t thread = omp_get_thread_num();
    if (thread == 0) threads = omp_get_num_threads();
    Range share = vector_share(places, omp_get_num_threads(), thread);
    LabelCount own = {0};
    for (int64_t i = share.begin; i < share.end; i += run)
      count_run(labels + i, share.end - i < run ? share.end - i : run, (int32_t)view->channels, &own);
    found[thread] = own;
  }
  *counted = 0;
  for (int32_t t = 0; t < threads; t++) {
    if (found[t].invalid) return refuse(kernel, view, labels);
    *counted += found[t].counted;
  }
  return vl_ok();
}

/* ---- Tiles ------------------------------------------------------------------------------------------------ */

/* Places of one sample. */
typedef struct Places {
  int64_t sample, first, count;
} Places;

/* Where a class's value at the first of some places is; the next place's is view->block further. */
static int64_t class_offset(const ChannelView *view, Places places, int64_t class) {
  int64_t row = places.sample * view->channel_blocks + class / view->block;
  return (row * view->spatial + places.first) * view->block + class % view->block;
}

VECTOR_INLINE void read_as(float *restrict to, const void *from, int64_t count, int64_t step, bool bf16,
                           float *restrict most) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float value = vector_load(from, i * step, bf16);
    to[i] = value;
    most[i] = value > most[i] ? value : most[i];
  }
}

VECTOR_CLONES
static void read_class(float *to, const void *from, int64_t count, int64_t step, bool bf16, float *most) {
  if (step == 1)
    bf16 ? read_as(to, from, count, 1, true, most) : read_as(to, from, count, 1, false, most);
  else
    bf16 ? read_as(to, from, count, step, true, most) : read_as(to, from, count, step, false, most);
}

/* e becomes exp(e - most), of which `sum` gets more; what it was of the label's class stays in chosen. */
VECTOR_CLONES
static void raise_class(float *restrict e, const float *restrict most, float *restrict sum,
                        float *restrict chosen, const int32_t *restrict labels, int32_t class,
                        int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    float difference = e[i] - most[i], power = vector_exp(difference);
    e[i] = power;
    sum[i] += power;
    chosen[i] = labels[i] == class ? difference : chosen[i];
  }
}

VECTOR_CLONES
static void invert(float *inverse, const int32_t *labels, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    inverse[i] = vector_where(labels[i] != VL_IGNORED_LABEL, 1.0F / inverse[i]);
}

/* Fills the room with exponentials, chosen differences and sums (in `inverse`); returns the tile's places in
 * whole lanes. */
static int64_t raise_tile(const DicePlan *plan, Room room, VectorArray logits, const int32_t *labels,
                          Places places) {
  const ChannelView *view = &plan->view;
  int64_t count = vector_by_lines(places.count);
  for (int64_t i = 0; i < count; i++) {
    room.labels[i] =
        i < places.count ? labels[places.sample * view->spatial + places.first + i] : VL_IGNORED_LABEL;
    room.most[i] = i < places.count ? -INFINITY : 0.0F;
    room.inverse[i] = room.chosen[i] = 0.0F;
  }
  for (int64_t c = 0; c < view->channels; c++) {
    float *e = room.e + c * plan->tile;
    for (int64_t i = places.count; i < count; i++)
      e[i] = 0.0F;
    read_class(e, vector_at(logits, class_offset(view, places, c)), places.count, view->block,
               logits.dtype == DTYPE_BF16, room.most);
  }
  for (int64_t c = 0; c < view->channels; c++)
    raise_class(room.e + c * plan->tile, room.most, room.inverse, room.chosen, room.labels, (int32_t)c,
                count);
  return count;
}

/* The next places of a share of all, at most a tile; false: there are none. */
static bool next_places(const DicePlan *plan, Range share, Places *places) {
  int64_t at = places->sample * plan->view.spatial + places->first + places->count;
  if (at >= share.end) return false;
  places->sample = at / plan->view.spatial;
  places->first = at % plan->view.spatial;
  int64_t of_share = share.end - at, of_sample = plan->view.spatial - places->first;
  int64_t count = of_share < of_sample ? of_share : of_sample;
  places->count = count < plan->tile ? count : plan->tile;
  return true;
}

static Places before(Range share) { return (Places){.sample = 0, .first = share.begin, .count = 0}; }

/* ---- Forward ---------------------------------------------------------------------------------------------- */

/* Of places that count: log sum exp - (x - max) of the label. */
VECTOR_CLONES
static double cross_entropy(const float *restrict sum, const float *restrict chosen,
                            const int32_t *restrict labels, int64_t count) {
  float lanes[VECTOR_LANES] = {0.0F};
  for (int64_t first = 0; first < count; first += VECTOR_LANES) {
#pragma omp simd
    for (int64_t l = 0; l < VECTOR_LANES; l++) {
      float own = vector_log(sum[first + l]) - chosen[first + l];
      lanes[l] += vector_where(labels[first + l] != VL_IGNORED_LABEL, own);
    }
  }
  return vector_total(lanes);
}

VECTOR_CLONES
static void sum_class(const float *restrict e, const float *restrict inverse, const int32_t *restrict labels,
                      int32_t class, int64_t count, double *sums) {
  float lanes[SUMS][VECTOR_LANES] = {{0.0F}};
  for (int64_t first = 0; first < count; first += VECTOR_LANES) {
#pragma omp simd
    for (int64_t l = 0; l < VECTOR_LANES; l++) {
      int64_t i = first + l;
      bool own = labels[i] == class;
      float p = vector_where(labels[i] != VL_IGNORED_LABEL, e[i] * inverse[i]);
      lanes[SUM_BOTH][l] += vector_where(own, p);
      lanes[SUM_P][l] += p;
      lanes[SUM_LABELS][l] += vector_where(own, 1.0F);
    }
  }
  for (int k = 0; k < SUMS; k++)
    sums[k] += vector_total(lanes[k]);
}

/* Numerator and denominator of a class's Dice over all samples; 1 / 1 for 0 / 0. */
typedef struct Dice {
  double above, below;
} Dice;

static Dice dice_of(double both, double p, double labels, double epsilon) {
  Dice dice = {2.0 * both + epsilon, p + labels + epsilon};
  return dice.below == 0.0 ? (Dice){1.0, 1.0} : dice;
}

/* A thread's part: sums [n][class][SUMS], then the cross entropy. */
static int64_t part_doubles(const ChannelView *view) {
  return vector_by_lines(view->n * view->channels * SUMS + 1);
}

static void add_share(const DicePlan *plan, Room room, VectorArray logits, const int32_t *labels, Range share,
                      double *part) {
  const ChannelView *view = &plan->view;
  int64_t outer = view->n * view->channels;
  memset(part, 0, (size_t)part_doubles(view) * sizeof *part);
  Places places = before(share);
  while (next_places(plan, share, &places)) {
    int64_t count = raise_tile(plan, room, logits, labels, places);
    part[outer * SUMS] += cross_entropy(room.inverse, room.chosen, room.labels, count);
    invert(room.inverse, room.labels, count);
    for (int64_t c = 0; c < view->channels; c++)
      sum_class(room.e + c * plan->tile, room.inverse, room.labels, (int32_t)c, count,
                part + (places.sample * view->channels + c) * SUMS);
  }
}

/* 1 - the mean of the classes' Dice. */
static double dice_loss(const ChannelView *view, const double *sums, double epsilon) {
  double mean = 0.0;
  for (int64_t c = 0; c < view->channels; c++) {
    double of_batch[SUMS] = {0.0};
    for (int64_t n = 0; n < view->n; n++)
      for (int k = 0; k < SUMS; k++)
        of_batch[k] += sums[(n * view->channels + c) * SUMS + k];
    Dice dice = dice_of(of_batch[SUM_BOTH], of_batch[SUM_P], of_batch[SUM_LABELS], epsilon);
    mean += dice.above / dice.below;
  }
  return 1.0 - mean / (double)view->channels;
}

static Status launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                     uintptr_t workspace, const LaunchContext *context) {
  const DicePlan *plan = kernel->data;
  const ChannelView *view = &plan->view;
  const OpParams *params = &kernel->node->params;
  VectorArray logits = vector_input(kernel, inputs, IN_LOGITS);
  const int32_t *labels = (const int32_t *)inputs[IN_LABELS];
  int64_t counted, doubles = part_doubles(view), values = view->n * view->channels * SUMS;
  double *parts = (double *)workspace; /* [thread][doubles] */
  VL_TRY(count_labels(kernel, view, labels, (LabelCount *)parts, &counted));
  float *rooms = (float *)(parts + kernel->threads * doubles);
  int32_t wanted = vector_threads(kernel, 8 * view->n * view->spatial * view->channels), threads = 1;
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t thread = omp_get_thread_num();
    if (thread == 0) threads = omp_get_num_threads();
    Range share = vector_share(view->n * view->spatial, omp_get_num_threads(), thread);
    Room room = room_of(plan, rooms + thread * room_elements(plan));
    add_share(plan, room, logits, labels, share, parts + thread * doubles);
  }
  for (int32_t t = 1; t < threads; t++)
    for (int64_t i = 0; i <= values; i++)
      parts[i] += parts[t * doubles + i];
  float *loss = vector_output(kernel, outputs, 0).address, *sums = vector_output(kernel, outputs, 1).address;
  for (int64_t i = 0; sums != NULL && i < values; i++)
    sums[i] = (float)parts[i];
  if (loss == NULL) return vl_ok();
  double all = (double)(context->counted_rows > 0 ? context->counted_rows : counted);
  double dice = params->alpha != 0.0 ? params->alpha * dice_loss(view, parts, params->epsilon) : 0.0;
  *loss = counted > 0 ? (float)((parts[values] + (double)counted * dice) / all) : 0.0F;
  return vl_ok();
}

static Status choose_forward(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return choose(device, node, IN_LOGITS, inputs, outputs);
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  Status status;
  const DicePlan *plan = prepare_plan(device, kernel, IN_LOGITS, &status);
  kernel->workspace_bytes = kernel->threads * (part_doubles(&plan->view) * 8 + room_elements(plan) * 4);
  return status;
}

const CpuOp cpu_op_dice_cross_entropy = {
    .name = "dice_cross_entropy",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose_forward,
    .prepare = prepare,
    .launch = launch,
};

/* ---- Gradient ----------------------------------------------------------------------------------------------
 * With a = dloss / places that count, and for class c of Dice A / B over the batch, weighing w = alpha dloss
 * / classes: u = w A / B^2 and v = 2 w / B are the parts of d loss / d p that all places and those of the
 * label's class have. dlogits = p (a + u - v y - m) - a y with y = 1 for the label, else 0, and m = sum over
 * classes of p (u - v y). */

enum { FACTOR_U, FACTOR_V, FACTORS };

VECTOR_CLONES
static void add_to_mean(float *restrict mean, const float *restrict e, const float *restrict inverse,
                        const int32_t *restrict labels, int32_t class, float u, float v, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    mean[i] += e[i] * inverse[i] * (u - vector_where(labels[i] == class, v));
}

/* The logits' gradient, in e. */
VECTOR_CLONES
static void differentiate_class(float *restrict e, const float *restrict inverse, const float *restrict mean,
                                const int32_t *restrict labels, int32_t class, float a, float u, float v,
                                int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    bool own = labels[i] == class;
    float p = e[i] * inverse[i], slope = (u - vector_where(own, v)) - mean[i];
    float value = (p - vector_where(own, 1.0F)) * a + p * slope;
    e[i] = vector_where(labels[i] != VL_IGNORED_LABEL, value);
  }
}

VECTOR_CLONES
static void write_steps(void *to, const float *from, int64_t count, int64_t step, bool bf16) {
  if (bf16)
    for (int64_t i = 0; i < count; i++)
      vector_store(to, i * step, from[i], true);
  else
    for (int64_t i = 0; i < count; i++)
      vector_store(to, i * step, from[i], false);
}

static void write_tile(const DicePlan *plan, Room room, VectorArray dlogits, Places places) {
  const ChannelView *view = &plan->view;
  if (view->channels % view->block != 0) { /* the last block's padding */
    int64_t first = (view->channel_blocks - 1) * view->block;
    size_t bytes = (size_t)(places.count * view->block * (dlogits.dtype == DTYPE_BF16 ? 2 : 4));
    memset(vector_at(dlogits, class_offset(view, places, first)), 0, bytes);
  }
  for (int64_t c = 0; c < view->channels; c++) {
    int64_t offset = class_offset(view, places, c);
    if (view->block == 1)
      vector_write(dlogits, offset, places.count, room.e + c * plan->tile);
    else
      write_steps(vector_at(dlogits, offset), room.e + c * plan->tile, places.count, view->block,
                  dlogits.dtype == DTYPE_BF16);
  }
}

/* One launch. */
typedef struct Backward {
  const DicePlan *plan;
  VectorArray logits, dlogits;
  const int32_t *labels;
  float a;
  const float *factors; /* [class][FACTORS]; NULL: no Dice */
} Backward;

static void differentiate_share(const Backward *run, Room room, Range share) {
  const DicePlan *plan = run->plan;
  int64_t classes = plan->view.channels;
  Places places = before(share);
  while (next_places(plan, share, &places)) {
    int64_t count = raise_tile(plan, room, run->logits, run->labels, places);
    invert(room.inverse, room.labels, count);
    memset(room.chosen, 0, (size_t)count * sizeof *room.chosen);
    for (int64_t c = 0; run->factors != NULL && c < classes; c++)
      add_to_mean(room.chosen, room.e + c * plan->tile, room.inverse, room.labels, (int32_t)c,
                  run->factors[c * FACTORS + FACTOR_U], run->factors[c * FACTORS + FACTOR_V], count);
    for (int64_t c = 0; c < classes; c++) {
      float u = run->factors != NULL ? run->factors[c * FACTORS + FACTOR_U] : 0.0F;
      float v = run->factors != NULL ? run->factors[c * FACTORS + FACTOR_V] : 0.0F;
      differentiate_class(room.e + c * plan->tile, room.inverse, room.chosen, room.labels, (int32_t)c, run->a,
                          u, v, count);
    }
    write_tile(plan, room, run->dlogits, places);
  }
}

/* weight: alpha dloss, in this micro-batch's share. */
static void fill_factors(const ChannelView *view, const float *sums, double epsilon, double weight,
                         float *factors) {
  for (int64_t c = 0; c < view->channels; c++) {
    double of_batch[SUMS] = {0.0};
    for (int64_t n = 0; n < view->n; n++)
      for (int k = 0; k < SUMS; k++)
        of_batch[k] += (double)sums[(n * view->channels + c) * SUMS + k];
    Dice dice = dice_of(of_batch[SUM_BOTH], of_batch[SUM_P], of_batch[SUM_LABELS], epsilon);
    double w = weight / (double)view->channels;
    factors[c * FACTORS + FACTOR_U] = (float)(w * dice.above / dice.below / dice.below);
    factors[c * FACTORS + FACTOR_V] = (float)(2.0 * w / dice.below);
  }
}

static Status backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  const DicePlan *plan = kernel->data;
  const ChannelView *view = &plan->view;
  const OpParams *params = &kernel->node->params;
  Backward run = {.plan = plan,
                  .logits = vector_input(kernel, inputs, BACK_LOGITS),
                  .dlogits = vector_output(kernel, outputs, 0),
                  .labels = (const int32_t *)inputs[BACK_LABELS]};
  LabelCount *found = (LabelCount *)workspace;
  float *factors = (float *)(found + vector_by_lines(kernel->threads));
  float *rooms = factors + vector_by_lines(view->channels * FACTORS);
  int64_t counted;
  VL_TRY(count_labels(kernel, view, run.labels, found, &counted));
  double all = (double)(context->counted_rows > 0 ? context->counted_rows : counted);
  double dloss = (double)*(const float *)inputs[BACK_DLOSS];
  run.a = (float)(dloss / all); /* unused when none counts */
  if (params->alpha != 0.0 && counted > 0) {
    fill_factors(view, (const float *)inputs[BACK_SUMS], params->epsilon,
                 params->alpha * dloss * (double)counted / all, factors);
    run.factors = factors;
  }
  int32_t wanted = vector_threads(kernel, 8 * view->n * view->spatial * view->channels);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t thread = omp_get_thread_num();
    Range share = vector_share(view->n * view->spatial, omp_get_num_threads(), thread);
    differentiate_share(&run, room_of(plan, rooms + thread * room_elements(plan)), share);
  }
  return vl_ok();
}

static Status choose_backward(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return choose(device, node, BACK_LOGITS, inputs, outputs);
}

static Status backward_prepare(CpuDevice *device, Kernel *kernel) {
  Status status;
  const DicePlan *plan = prepare_plan(device, kernel, BACK_LOGITS, &status);
  kernel->workspace_bytes = vector_by_lines(kernel->threads) * (int64_t)sizeof(LabelCount) +
                            vector_by_lines(plan->view.channels * FACTORS) * 4 +
                            kernel->threads * room_elements(plan) * 4;
  return status;
}

const CpuOp cpu_op_dice_cross_entropy_backward = {
    .name = "dice_cross_entropy_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose_backward,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
