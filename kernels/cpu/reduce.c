/* sum over axes, and broadcast, its opposite; plain, but that sums per channel read any activation layout.
 *
 * A lane adds fewer than 128 values in f32, the rest is in double: with u = 2^-24 a sum is within
 * 128 u sum |x|, plus its rounding. The order depends on the shape alone. */
#include "kernels/cpu/box.h"

#include <omp.h>
#include <string.h>

/* x as alternating runs of kept and summed dimensions. */
typedef struct SumPlan {
  Box kept, summed; /* without the last run; from_stride in x */
  int64_t last;     /* size of the last run */
  bool last_is_kept;
  int64_t tile, tiles; /* of the last run, where it is kept */
} SumPlan;

static bool is_summed(const OpParams *params, int32_t axis) {
  for (int64_t i = 0; i < params->axis_count; i++)
    if (params->axes[i] == axis) return true;
  return false;
}

static int64_t box_size(const Box *box) {
  int64_t size = 1;
  for (int32_t i = 0; i < box->rank; i++)
    size *= box->dimensions[i].size;
  return size;
}

/* Where item `index` of a box starts in x. */
static int64_t start_of(const Box *box, int64_t index) {
  int64_t start = 0;
  for (int32_t i = box->rank - 1; i >= 0; i--) {
    start += index % box->dimensions[i].size * box->dimensions[i].from_stride;
    index /= box->dimensions[i].size;
  }
  return start;
}

static Status prepare_rows(Kernel *kernel) {
  const Tensor *x = kernel->node->inputs[0];
  SumPlan *plan = vl_allocate(sizeof *plan);
  kernel->data = plan;
  int64_t strides[VL_MAX_DIMS];
  box_strides(x, strides);
  int32_t i = x->rank - 1;
  plan->last_is_kept = !is_summed(&kernel->node->params, i);
  plan->last = 1;
  while (i >= 0 && is_summed(&kernel->node->params, i) != plan->last_is_kept)
    plan->last *= x->shape[i--];
  for (int32_t d = 0; d <= i; d++) {
    Box *box = is_summed(&kernel->node->params, d) ? &plan->summed : &plan->kept;
    box->dimensions[box->rank++] = (BoxDimension){.size = x->shape[d], .from_stride = strides[d]};
  }
  int64_t each = vector_by_lines((plan->last + kernel->threads - 1) / kernel->threads);
  plan->tile = each < VECTOR_TILE ? each : VECTOR_TILE;
  plan->tiles = plan->last_is_kept ? (plan->last + plan->tile - 1) / plan->tile : 1;
  return vl_ok();
}

/* y[i] = sum of rows of x, for a tile of the last run. */
static void sum_rows(const SumPlan *plan, VectorArray x, VectorArray y, int64_t kept, int64_t first) {
  _Alignas(64) float buffer[VECTOR_TILE], lanes[VECTOR_TILE] = {0.0F};
  _Alignas(64) double sums[VECTOR_TILE] = {0.0};
  int64_t count = plan->last - first < plan->tile ? plan->last - first : plan->tile;
  int64_t from = start_of(&plan->kept, kept) + first, rows = box_size(&plan->summed);
  for (int64_t row = 0; row < rows; row++) {
    vector_add(lanes, vector_read(x, from + start_of(&plan->summed, row), count, buffer), count, count);
    if ((row + 1) % VECTOR_RUN == 0 || row + 1 == rows) vector_fold(sums, lanes, count, count);
  }
  for (int64_t i = 0; i < count; i++)
    lanes[i] = (float)sums[i];
  vector_write(y, kept * plan->last + first, count, lanes);
}

/* One element of y, whose last run is summed. */
static void sum_run(const SumPlan *plan, VectorArray x, VectorArray y, int64_t kept) {
  _Alignas(64) float buffer[VECTOR_TILE], lanes[VECTOR_LANES] = {0.0F};
  double sum = 0.0;
  int64_t from = start_of(&plan->kept, kept), rows = box_size(&plan->summed);
  for (int64_t row = 0; row < rows; row++) {
    int64_t start = from + start_of(&plan->summed, row);
    for (int64_t i = 0; i < plan->last; i += VECTOR_TILE) {
      int64_t count = plan->last - i < VECTOR_TILE ? plan->last - i : VECTOR_TILE;
      vector_add(lanes, vector_read(x, start + i, count, buffer), count, VECTOR_LANES);
      vector_fold(&sum, lanes, VECTOR_LANES, 1);
    }
  }
  float result = (float)sum;
  vector_write(y, kept, 1, &result);
}

static Status sum_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const SumPlan *plan = kernel->data;
  VectorArray x = vector_input(kernel, inputs, 0), y = vector_output(kernel, outputs, 0);
  int64_t items = box_size(&plan->kept) * plan->tiles;
  int32_t threads = vector_threads(kernel, vl_tensor_elements(kernel->node->inputs[0]));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(items, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t item = share.begin; item < share.end; item++) {
      if (plan->last_is_kept)
        sum_rows(plan, x, y, item / plan->tiles, item % plan->tiles * plan->tile);
      else
        sum_run(plan, x, y, item);
    }
  }
  return vl_ok();
}

/* ---- Per channel: the gradient of a convolution's bias -------------------------------------------------------- */

static bool keeps_channels(const Node *node) {
  int32_t rank = node->inputs[0]->rank;
  return rank >= 3 && node->params.axis_count == rank - 1 && !is_summed(&node->params, 1);
}

/* Adds a thread's points to its sums. */
static void sum_points(const ChannelView *view, VectorArray x, VectorPart part, double *sums, float *lanes) {
  _Alignas(64) float buffer[VECTOR_TILE];
  int64_t pattern = vector_pattern(view), run = 0;
  memset(sums, 0, (size_t)vector_channels(view) * sizeof *sums);
  memset(lanes, 0, (size_t)pattern * sizeof *lanes);
  VectorWalk walk = vector_walk(view, part, VECTOR_TILE);
  for (VectorTile tile; vector_walk_next(&walk, &tile);) {
    vector_add(lanes + tile.phase, vector_read(x, tile.offset, tile.count, buffer), tile.count, pattern);
    run += vector_values(&tile, pattern);
    if (!tile.ends && run < VECTOR_RUN) continue;
    vector_fold(sums + tile.block * view->block, lanes, pattern, view->block);
    run = 0;
  }
}

static Status channels_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const ChannelView *view = kernel->data;
  VectorArray x = vector_input(kernel, inputs, 0), y = vector_output(kernel, outputs, 0);
  int64_t points = view->n * view->spatial, channels = vector_by_lines(vector_channels(view)),
          pattern = vector_by_lines(vector_pattern(view));
  double *sums = (double *)workspace;
  float *lanes = (float *)(sums + kernel->threads * channels);
  int32_t wanted = vector_threads(kernel, points * vector_channels(view)), threads = 1;
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t thread = omp_get_thread_num();
#pragma omp master
    threads = omp_get_num_threads();
    VectorPart part = {{0, view->channel_blocks}, vector_share(points, omp_get_num_threads(), thread)};
    sum_points(view, x, part, sums + thread * channels, lanes + thread * pattern);
  }
  for (int64_t c = 0; c < view->channels; c++) {
    double sum = 0.0;
    for (int32_t t = 0; t < threads; t++)
      sum += sums[t * channels + c];
    float result = (float)sum;
    vector_write(y, c, 1, &result);
  }
  return vl_ok();
}

static const CpuOp channels_op = {.name = "sum", .launch = channels_launch};

static Status choose_sum(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  LayoutId x = inputs[0];
  VL_TRY(cpu_choose_plain(device, node, inputs, outputs));
  if (keeps_channels(node) && cpu_layout_is_activation(device, x)) inputs[0] = x;
  return vl_ok();
}

static Status prepare_sum(CpuDevice *device, Kernel *kernel) {
  if (!keeps_channels(kernel->node)) return prepare_rows(kernel);
  ChannelView *view = vl_allocate(sizeof *view);
  kernel->data = view;
  kernel->op = &channels_op;
  VL_TRY(cpu_channel_view(device, kernel->inputs[0], kernel->node->inputs[0], view));
  kernel->workspace_bytes = kernel->threads * (8 * vector_by_lines(vector_channels(view)) +
                                               4 * vector_by_lines(vector_pattern(view)));
  return vl_ok();
}

const CpuOp cpu_op_sum = {
    .name = "sum",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose_sum,
    .prepare = prepare_sum,
    .launch = sum_launch,
};

static Status broadcast_prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  int64_t from[VL_MAX_DIMS], to[VL_MAX_DIMS];
  box_strides(x, from);
  box_strides(y, to);
  Box *box = vl_allocate(sizeof *box);
  kernel->data = box;
  *box = (Box){.rank = y->rank, .element_bytes = vl_dtype_bytes(y->dtype, 1)};
  for (int32_t i = 0; i < y->rank; i++) {
    int32_t of_x = i - (y->rank - x->rank);
    bool repeats = of_x < 0 || x->shape[of_x] == 1;
    box->dimensions[i] = (BoxDimension){y->shape[i], to[i], repeats ? 0 : from[of_x]};
  }
  box_simplify(box);
  return vl_ok();
}

static Status broadcast_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  int32_t threads = vector_threads(kernel, vl_tensor_elements(kernel->node->outputs[0]));
  box_copy(kernel->data, (void *)outputs[0], (const void *)inputs[0], threads);
  return vl_ok();
}

const CpuOp cpu_op_broadcast = {
    .name = "broadcast",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = broadcast_prepare,
    .launch = broadcast_launch,
};
