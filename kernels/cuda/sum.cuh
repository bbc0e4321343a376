/* kernels/cuda: sums in two stages; private to the folder, CUDA only.
 *
 * First each block adds up a share of the rows in f32, in an order that the shape alone gives, and writes its
 * sums; then those are added, split after split. */
#ifndef VRAMLAB_KERNELS_CUDA_SUM_CUH
#define VRAMLAB_KERNELS_CUDA_SUM_CUH

#include "kernels/cuda/box.cuh"

/* ---- Columns: a block has lanes that each take neighbouring columns, and groups that take turns at rows -------- */

constexpr int sum_lanes = 32, sum_groups = 8, sum_threads = sum_lanes * sum_groups;

/* How rows are cut up, so that `blocks` blocks beside each other become about as many as a card wants. */
struct RowSplits {
  int64_t count, rows /* of each, the last may have fewer */;
};
inline RowSplits sum_split_rows(int64_t rows, int64_t blocks) {
  constexpr int64_t wanted_blocks = 512, least_rows = 8 * sum_groups;
  if (rows < 1) rows = 1;
  int64_t splits = (wanted_blocks + blocks - 1) / blocks, most = rows / least_rows;
  if (splits > most) splits = most;
  if (splits < 1) splits = 1;
  int64_t each = (rows + splits - 1) / splits;
  return RowSplits{(rows + each - 1) / each, each};
}

/* The first column of this thread; blocks beside each other are counted by blockIdx.x % column_blocks. */
template <int width> __device__ inline int64_t sum_column(unsigned column_blocks) {
  return ((int64_t)(blockIdx.x % column_blocks) * sum_lanes + threadIdx.x % sum_lanes) * width;
}

/* The sums of all groups, calling write(column, sum) for each column of the block, by one thread each. */
template <int width, typename F>
__device__ inline void sum_over_groups(const float (&sums)[width], unsigned column_blocks, F write) {
  __shared__ float scratch[sum_groups][sum_lanes * width];
  int lane = (int)threadIdx.x % sum_lanes, group = (int)threadIdx.x / sum_lanes;
#pragma unroll
  for (int k = 0; k < width; k++)
    scratch[group][lane * width + k] = sums[k];
  __syncthreads();
  for (int i = (int)threadIdx.x; i < sum_lanes * width; i += sum_threads) {
    float sum = 0.0F;
    for (int g = 0; g < sum_groups; g++)
      sum += scratch[g][i];
    write((int64_t)(blockIdx.x % column_blocks) * sum_lanes * width + i, sum);
  }
}

/* y[o] = sum of partials / divisor. An output has `folds` partials in each of `splits` parts: number o lies
 * at o / width * folds * width + fold * width + o % width of a part. */
struct PartialSums {
  const float *partials;
  int64_t outputs;
  Divisor width;
  int folds, splits;
  float divisor;
};
cudaError_t cuda_sum_partials(cudaStream_t stream, const PartialSums *sums, DType dtype, uintptr_t y);

/* ---- Any dense tensor -------------------------------------------------------------------------------------------- */

/* Alternating runs of kept and summed dimensions, in the order of memory. */
struct SumPlan {
  Places kept, summed; /* without the last run: where a piece of y, and a row of it, begins in x */
  int64_t kept_count, rows, last;
  bool last_is_kept;
  int folds;        /* so many rows are taken as one where columns are few */
  RowSplits splits; /* of rows; where the last run is summed, of all that goes into one output */
  float divisor;
  DType from, to;
};

/* y = sum over the dimensions that are `summed` / divisor. Sizes are in the order of memory. */
SumPlan cuda_sum_plan(int32_t rank, const int64_t *sizes, const bool *summed, DType from, DType to,
                      float divisor);
int64_t cuda_sum_workspace_bytes(const SumPlan *plan);
cudaError_t cuda_sum(cudaStream_t stream, const SumPlan *plan, uintptr_t x, uintptr_t y, uintptr_t workspace);

#endif
