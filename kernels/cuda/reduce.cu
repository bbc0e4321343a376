/* sum over axes, and broadcast, its opposite. */
#include "kernels/cuda/sum.cuh"

extern "C" {
extern const CudaOp cuda_op_broadcast, cuda_op_sum;
}

namespace {

/* ---- First stage ------------------------------------------------------------------------------------------------ */

/* Where sums go: to y, or as they are to `sums`, [split][output]. Divided before. */
template <typename T> struct SumTarget {
  T *y;
  float *sums;
  float divisor;
  __device__ void write(int64_t at, float sum) const {
    if (y)
      y[at] = from_float<T>(sum / divisor);
    else
      sums[at] = sum / divisor;
  }
};

constexpr int sum_depth = 4; /* pieces that a thread asks for before it adds the first */

/* The last run is kept: `columns` of it, or of some rows as one. */
template <typename T, int width>
__global__ void __launch_bounds__(sum_threads)
    sum_columns(SumTarget<T> target, const T *__restrict__ x, const __grid_constant__ Places kept,
                const __grid_constant__ Places summed, int64_t kept_count, int64_t rows, int64_t rows_each,
                int64_t columns, unsigned column_blocks) {
  using Piece = Pack<T, width>;
  int64_t piece = blockIdx.x / column_blocks, column = sum_column<width>(column_blocks);
  int64_t first = blockIdx.y * rows_each, end = first + rows_each < rows ? first + rows_each : rows;
  const T *from = x + place_of(kept, piece) + column;
  float sums[width] = {};
  for (int64_t row = first + threadIdx.x / sum_lanes; row < end && column < columns;
       row += sum_groups * sum_depth) {
    Piece pieces[sum_depth] = {};
#pragma unroll
    for (int i = 0; i < sum_depth; i++) {
      int64_t at = row + i * sum_groups;
      if (at < end) pieces[i] = *(const Piece *)(from + place_of(summed, at));
    }
#pragma unroll
    for (int i = 0; i < sum_depth; i++) {
#pragma unroll
      for (int k = 0; k < width; k++)
        sums[k] += to_float(pieces[i].at[k]);
    }
  }
  int64_t start = (blockIdx.y * kept_count + piece) * columns;
  sum_over_groups<width>(sums, column_blocks, [&](int64_t at, float sum) {
    if (at < columns) target.write(start + at, sum);
  });
}

/* The last run is summed: a block adds up a share of what goes into one output. Runs are whole pieces of
 * `width`, 1 or that of 16 bytes. */
template <typename T, int width>
__global__ void __launch_bounds__(sum_threads)
    sum_runs(SumTarget<T> target, const T *__restrict__ x, Places kept, Places summed, int64_t count,
             int64_t count_each) {
  using Piece = Pack<T, width>;
  __shared__ float scratch[warp_size];
  int64_t first = blockIdx.y * count_each, end = first + count_each < count ? first + count_each : count;
  int64_t step = (int64_t)blockDim.x * width;
  const T *from = x + place_of(kept, blockIdx.x);
  float sum = 0.0F;
  for (int64_t index = first + (int64_t)threadIdx.x * width; index < end; index += step * sum_depth) {
    Piece pieces[sum_depth] = {};
#pragma unroll
    for (int i = 0; i < sum_depth; i++) {
      int64_t at = index + i * step;
      if (at < end) pieces[i] = *(const Piece *)(from + place_of(summed, at));
    }
#pragma unroll
    for (int i = 0; i < sum_depth; i++) {
#pragma unroll
      for (int k = 0; k < width; k++)
        sum += to_float(pieces[i].at[k]);
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) target.write((int64_t)blockIdx.y * gridDim.x + blockIdx.x, sum);
}

/* ---- Second stage ------------------------------------------------------------------------------------------------- */

constexpr int adding_warps = 32, adding_threads = adding_warps * warp_size;

/* A block makes 32 outputs: warps take turns at their partials, then each adds up one output's. */
template <typename T> __global__ void __launch_bounds__(adding_threads) add_partials(PartialSums from, T *y) {
  __shared__ float scratch[adding_warps][warp_size + 1];
  int lane = (int)threadIdx.x % warp_size, warp = (int)threadIdx.x / warp_size;
  int64_t first = (int64_t)blockIdx.x * warp_size, part = from.outputs * from.folds,
          width = from.width.divisor;
  int64_t column, piece = divide(first + lane, from.width, &column);
  const float *partials = from.partials + piece * from.folds * width + column;
  int count = first + lane < from.outputs ? from.splits * from.folds : 0;
  float sum = 0.0F;
#pragma unroll 8
  for (int i = warp; i < count; i += adding_warps) {
    int split = i / from.folds, fold = i - split * from.folds;
    sum += partials[split * part + fold * width];
  }
  scratch[warp][lane] = sum;
  __syncthreads();
  sum = warp_sum(scratch[lane][warp]);
  if (lane == 0 && first + warp < from.outputs) y[first + warp] = from_float<T>(sum / from.divisor);
}

/* ---- Plans ---------------------------------------------------------------------------------------------------------- */

constexpr int most_folds = 64;

int64_t pieces_of(DType dtype) { return 16 / vl_dtype_bytes(dtype, 1); }

/* Takes rows together, two by two, until lanes have enough columns in whole pieces. */
void fold_rows(SumPlan *plan) {
  int64_t width = pieces_of(plan->from), columns = plan->last;
  int32_t i = plan->summed.rank - 1;
  while (i >= 0 && plan->folds < most_folds && plan->summed.sizes[i].divisor % 2 == 0 &&
         (columns < sum_lanes * width || columns % width != 0)) {
    plan->folds *= 2;
    columns *= 2;
    plan->rows /= 2;
    plan->summed.sizes[i] = divisor_of(plan->summed.sizes[i].divisor / 2);
    plan->summed.strides[i] *= 2;
  }
}

bool is_direct(const SumPlan *plan) {
  return plan->splits.count == 1 && plan->folds == 1 && (plan->to == plan->from || plan->to == DTYPE_F32);
}

} // namespace

SumPlan cuda_sum_plan(int32_t rank, const int64_t *sizes, const bool *summed, DType from, DType to,
                      float divisor) {
  SumPlan plan = {};
  plan.kept_count = plan.rows = plan.last = plan.folds = 1;
  plan.divisor = divisor;
  plan.from = from;
  plan.to = to;
  int64_t strides[VL_MAX_DIMS], stride = 1;
  int32_t inner = rank; /* the last run's first dimension */
  for (int32_t i = rank - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  while (inner > 0 && sizes[inner - 1] == 1)
    inner--;
  plan.last_is_kept = inner == 0 || !summed[inner - 1];
  while (plan.last_is_kept && inner > 0 && (!summed[inner - 1] || sizes[inner - 1] == 1))
    plan.last *= sizes[--inner];
  for (int32_t i = 0; i < inner; i++) {
    (summed[i] ? plan.rows : plan.kept_count) *= sizes[i];
    places_add(summed[i] ? &plan.summed : &plan.kept, sizes[i], strides[i]);
  }
  int64_t width = pieces_of(from);
  if (plan.last_is_kept) {
    fold_rows(&plan);
    int64_t columns = plan.last * plan.folds, wide = columns % width == 0 ? width : 1;
    int64_t blocks = (columns + sum_lanes * wide - 1) / (sum_lanes * wide);
    plan.splits = sum_split_rows(plan.rows, plan.kept_count * blocks);
  } else {
    RowSplits splits = sum_split_rows(plan.rows / (sum_lanes * width), plan.kept_count);
    int64_t each = (plan.rows + splits.count - 1) / splits.count;
    plan.splits.rows = (each + width - 1) / width * width;
    plan.splits.count = (plan.rows + plan.splits.rows - 1) / plan.splits.rows;
  }
  return plan;
}

int64_t cuda_sum_workspace_bytes(const SumPlan *plan) {
  int64_t outputs = plan->kept_count * plan->last;
  return is_direct(plan) ? 0 : plan->splits.count * plan->folds * outputs * (int64_t)sizeof(float);
}

namespace {

template <typename T, int width>
cudaError_t first_stage(cudaStream_t stream, const SumPlan *plan, SumTarget<T> target, const T *x) {
  if (plan->last_is_kept) {
    int64_t columns = plan->last * plan->folds;
    int64_t blocks = (columns + sum_lanes * width - 1) / (sum_lanes * width);
    dim3 grid((unsigned)(plan->kept_count * blocks), (unsigned)plan->splits.count);
    return cuda_launch(sum_columns<T, width>, grid, sum_threads, 0, stream, target, x, plan->kept,
                       plan->summed, plan->kept_count, plan->rows, plan->splits.rows, columns,
                       (unsigned)blocks);
  }
  /* A warp, or more where every thread still has a few pieces. */
  unsigned threads = warp_size;
  while (threads < sum_threads && threads * width * sum_depth < plan->splits.rows)
    threads *= 2;
  dim3 grid((unsigned)plan->kept_count, (unsigned)plan->splits.count);
  return cuda_launch(sum_runs<T, width>, grid, threads, 0, stream, target, x, plan->kept, plan->summed,
                     plan->rows, plan->splits.rows);
}

/* Whether rows, or runs, are whole pieces of 16 bytes. */
bool in_pieces(const SumPlan *plan, uintptr_t x) {
  int64_t width = pieces_of(plan->from);
  if (plan->last_is_kept) return x % 16 == 0 && plan->last * plan->folds % width == 0;
  int32_t last = plan->summed.rank - 1;
  return x % 16 == 0 && last >= 0 && plan->summed.sizes[last].divisor % width == 0;
}

} // namespace

cudaError_t cuda_sum_partials(cudaStream_t stream, const PartialSums *sums, DType dtype, uintptr_t y) {
  cudaError_t error = cudaErrorInvalidValue;
  by_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    error = cuda_launch(add_partials<T>, grid_for(sums->outputs, warp_size, 1, INT32_MAX), adding_threads, 0,
                        stream, *sums, (T *)y);
  });
  return error;
}

cudaError_t cuda_sum(cudaStream_t stream, const SumPlan *plan, uintptr_t x, uintptr_t y,
                     uintptr_t workspace) {
  bool direct = is_direct(plan);
  cudaError_t error = cudaErrorInvalidValue;
  by_float(plan->from, [&](auto zero) {
    using T = decltype(zero);
    SumTarget<T> target = {nullptr, (float *)workspace, 1.0F};
    if (direct) target = {nullptr, (float *)y, plan->divisor};
    if (direct && plan->to != DTYPE_F32) target = {(T *)y, nullptr, plan->divisor};
    error = in_pieces(plan, x) ? first_stage<T, pack_width<T>>(stream, plan, target, (const T *)x)
                               : first_stage<T, 1>(stream, plan, target, (const T *)x);
  });
  if (error != cudaSuccess || direct) return error;
  PartialSums sums = {(const float *)workspace, plan->kept_count * plan->last,
                      divisor_of(plan->last),   plan->folds,
                      (int)plan->splits.count,  plan->divisor};
  return cuda_sum_partials(stream, &sums, plan->to, y);
}

namespace {

/* ---- sum -------------------------------------------------------------------------------------------------------------- */

/* Sizes of x in the order of memory, and which of them are summed. */
void sum_dimensions(const Node *node, LayoutId layout, int64_t sizes[VL_MAX_DIMS], bool summed[VL_MAX_DIMS]) {
  const Tensor *x = node->inputs[0];
  bool axis_summed[VL_MAX_DIMS] = {};
  for (int64_t i = 0; i < node->params.axis_count; i++)
    axis_summed[node->params.axes[i]] = true;
  for (int32_t i = 0; i < x->rank; i++) {
    int32_t axis = layout == LAYOUT_PLAIN || i == 0 ? i : i == x->rank - 1 ? 1 : i + 1;
    sizes[i] = x->shape[axis];
    summed[i] = axis_summed[axis];
  }
}

/* Channels last is read where what is kept has the same order in both: space not beside channels. */
bool order_is_kept(const Node *node) {
  int64_t sizes[VL_MAX_DIMS];
  bool summed[VL_MAX_DIMS] = {}, keeps_space = false;
  sum_dimensions(node, LAYOUT_PLAIN, sizes, summed);
  for (int32_t i = 2; i < node->inputs[0]->rank; i++)
    keeps_space = keeps_space || !summed[i];
  return summed[1] || !keeps_space;
}

Status sum_choose(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  LayoutId x = inputs[0];
  VL_TRY(cuda_choose_plain(device, node, inputs, outputs));
  if (x == CUDA_CHANNELS_LAST && node->inputs[0]->rank >= 3 && order_is_kept(node)) inputs[0] = x;
  return vl_ok();
}

Status sum_prepare(CudaDevice *device, Kernel *kernel) {
  (void)device;
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  int64_t sizes[VL_MAX_DIMS];
  bool summed[VL_MAX_DIMS];
  SumPlan *plan = (SumPlan *)vl_allocate(sizeof *plan);
  kernel->data = plan;
  sum_dimensions(kernel->node, kernel->inputs[0], sizes, summed);
  *plan = cuda_sum_plan(x->rank, sizes, summed, x->dtype, y->dtype, 1.0F);
  kernel->workspace_bytes = cuda_sum_workspace_bytes(plan);
  return vl_ok();
}

Status sum_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const SumPlan *plan = (const SumPlan *)kernel->data;
  return cuda_status(cuda_sum(launch->stream, plan, launch->inputs[0], launch->outputs[0], launch->workspace),
                     "sum", kernel->node);
}

/* ---- broadcast ---------------------------------------------------------------------------------------------------------- */

Status broadcast_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Tensor *x = kernel->node->inputs[0], *y = kernel->node->outputs[0];
  int64_t to_strides[VL_MAX_DIMS], from_strides[VL_MAX_DIMS];
  int64_t to_stride = 1, from_stride = 1;
  for (int32_t i = y->rank - 1; i >= 0; i--) {
    int32_t of_x = i - (y->rank - x->rank);
    bool repeats = of_x < 0 || x->shape[of_x] == 1;
    to_strides[i] = to_stride;
    from_strides[i] = repeats ? 0 : from_stride;
    to_stride *= y->shape[i];
    if (of_x >= 0) from_stride *= x->shape[of_x];
  }
  Box box = {};
  for (int32_t i = 0; i < y->rank; i++)
    box_add(&box, y->shape[i], to_strides[i], from_strides[i]);
  return cuda_status(
      cuda_box_copy(launch->stream, &box, vl_dtype_bytes(y->dtype, 1), launch->outputs[0], launch->inputs[0]),
      "broadcast", kernel->node);
}

} // namespace

const CudaOp cuda_op_broadcast = {
    .name = "broadcast",
    .choose_layouts = cuda_choose_plain,
    .launch = broadcast_launch,
};

const CudaOp cuda_op_sum = {
    .name = "sum",
    .supports = cuda_supports_floats,
    .choose_layouts = sum_choose,
    .prepare = sum_prepare,
    .launch = sum_launch,
};
