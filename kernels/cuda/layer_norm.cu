/* Layer norm over the last dimension, alone or of a residual's sum with a branch behind dropout, and
 * gradients.
 *
 * A team has a row: a warp where that is enough, else a block. A thread keeps some of its values in
 * registers, 32 where they are read 16 bytes at a time, so that a row of up to 8192 values is read once; a
 * longer one is read again for each step, from the cache, in chunks.
 *
 * The mean is corrected by that of the differences from it, which are exact where all values are one: then y
 * is beta whatever epsilon is. */
#include "kernels/cuda/norm.cuh"

#include <math.h>

extern "C" {
extern const CudaOp cuda_op_layer_norm, cuda_op_layer_norm_backward, cuda_op_residual_norm,
    cuda_op_residual_norm_backward;
}

namespace {

constexpr int block_threads = 256;

/* ---- Work ------------------------------------------------------------------------------------------------ */

/* Values a thread takes at a time: 16 bytes, or 1 where rows or addresses do not allow that. */
template <typename T> constexpr int wide = pack_width<T>;
/* Values of a row a thread keeps, and in how many packs. */
constexpr int kept(int width) { return width == 1 ? 8 : 32; }
template <int width> constexpr int row_values = kept(width);
template <int width> constexpr int packs = row_values<width> / width;

struct Rows {
  int64_t rows, width;
  int32_t team;   /* threads of a row */
  int32_t chunks; /* of a row */
};

Rows rows_of(const Tensor *x, bool packed) {
  Rows rows = {};
  int64_t values = kept(packed ? 4 : 1);
  rows.width = x->shape[x->rank - 1];
  rows.rows = vl_tensor_elements(x) / rows.width;
  rows.team = rows.width <= warp_size * values ? warp_size : block_threads;
  rows.chunks = (int32_t)((rows.width + rows.team * values - 1) / (rows.team * values));
  return rows;
}

/* Whether a row may be moved in pieces, if addresses allow it. */
bool is_wide(const Tensor *x) { return x->shape[x->rank - 1] % (16 / vl_dtype_bytes(x->dtype, 1)) == 0; }

int64_t teams_of(const Rows &rows) { return block_threads / rows.team; }

/* The column of a thread's p-th pack of a chunk; beyond the row's end where there is none. */
template <int width> __device__ inline int64_t column_of(const Rows &rows, int chunk, int p) {
  int lane = (int)threadIdx.x % rows.team;
  return (((int64_t)chunk * packs<width> + p) * rows.team + lane) * width;
}

/* The sum over the team, in every thread. Sums that follow each other have scratches of their own, so that
 * one's barrier is before the other's is used again. */
__device__ inline float team_sum(const Rows &rows, float value, float *scratch) {
  return rows.team == warp_size ? warp_sum(value) : block_sum(value, scratch);
}

/* ---- Dropout ------------------------------------------------------------------------------------------------------- */

struct Dropout {
  uint64_t scope_hash;
  uint32_t threshold; /* kept when the top 24 bits are at least this; 0: all are, and none is drawn */
  float scale;
  int64_t sample_rows;
};

Dropout dropout_of(const Node *node) {
  const OpParams *params = &node->params;
  const Tensor *x = node->inputs[0];
  Dropout dropout = {};
  dropout.threshold = (uint32_t)ceil(params->rate * 0x1p24);
  dropout.scale = (float)(1.0 / (1.0 - params->rate));
  dropout.sample_rows = vl_tensor_elements(x) / x->shape[x->rank - 1] / x->shape[0];
  if (dropout.threshold > 0) dropout.scope_hash = vl_hash_text(vl_hash_start, params->random_scope);
  return dropout;
}

/* Where a row's draws are. */
struct RowDraws {
  uint64_t key, sample, first;
};
__device__ inline RowDraws row_draws(const Dropout &dropout, const CudaStep *step, int64_t row,
                                     int64_t width) {
  RowDraws draws = {};
  if (dropout.threshold == 0) return draws;
  draws.key = random_key(step, dropout.scope_hash);
  draws.sample = (uint64_t)(step->first_sample + row / dropout.sample_rows);
  draws.first = (uint64_t)(row % dropout.sample_rows * width);
  return draws;
}

__device__ inline float dropped(float value, uint32_t word, const Dropout &dropout) {
  return (word >> 8) >= dropout.threshold ? dropout.scale * value : 0.0F;
}

/* value = dropout(value), of neighbours from element `column` of the row on; where there are several, the
 * first one's number is a multiple of four. */
template <int width>
__device__ inline void drop(float (&value)[width], const Dropout &dropout, const RowDraws &draws,
                            int64_t column) {
  if (dropout.threshold == 0) return;
  uint64_t element = draws.first + (uint64_t)column;
  if constexpr (width == 1) {
    uint4 words = random_block(draws.key, draws.sample, element / 4);
    unsigned lane = (unsigned)(element % 4);
    uint32_t word = lane == 0 ? words.x : lane == 1 ? words.y : lane == 2 ? words.z : words.w;
    value[0] = dropped(value[0], word, dropout);
  } else {
#pragma unroll
    for (int i = 0; i < width; i += 4) {
      uint4 words = random_block(draws.key, draws.sample, element / 4 + (unsigned)i / 4);
      value[i] = dropped(value[i], words.x, dropout);
      value[i + 1] = dropped(value[i + 1], words.y, dropout);
      value[i + 2] = dropped(value[i + 2], words.z, dropout);
      value[i + 3] = dropped(value[i + 3], words.w, dropout);
    }
  }
}

/* ---- Forward ------------------------------------------------------------------------------------------------------- */

struct Forward {
  Rows rows;
  const void *x;     /* the residual where there is a branch */
  FloatArray branch; /* NULL: x is what is normalised; else the sum is */
  void *y, *sum;
  float *mean, *rstd; /* NULL: not wanted */
  FloatArray gamma, beta;
  float epsilon;
  Dropout dropout;
};

/* A thread's values of a chunk of a row that begins at `from`; zeros behind the row's end. */
template <typename T, int width>
__device__ inline void read_values(const Rows &rows, const T *from, int chunk,
                                   float (&value)[packs<width>][width]) {
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(rows, chunk, p);
    Pack<T, width> pack = {};
    if (column < rows.width) pack = load_pack<width>(from + column);
#pragma unroll
    for (int i = 0; i < width; i++)
      value[p][i] = to_float(pack.at[i]);
  }
}

/* What is normalised; makes the sum and writes it. */
template <typename T, int width>
__device__ inline void read_chunk(const Forward &run, const RowDraws &draws, int64_t row, int chunk,
                                  float (&value)[packs<width>][width]) {
  const T *x = static_cast<const T *>(run.x) + row * run.rows.width;
  if (run.branch.at == NULL) {
    read_values(run.rows, x, chunk, value);
    return;
  }
  int64_t first = row * run.rows.width;
  if (run.branch.dtype == DTYPE_F32)
    read_values(run.rows, static_cast<const float *>(run.branch.at) + first, chunk, value);
  else if (run.branch.dtype == DTYPE_BF16)
    read_values(run.rows, static_cast<const bf16 *>(run.branch.at) + first, chunk, value);
  else
    read_values(run.rows, static_cast<const f16 *>(run.branch.at) + first, chunk, value);
  Pack<T, width> residual[packs<width>] = {};
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(run.rows, chunk, p);
    if (column < run.rows.width) residual[p] = load_pack<width>(x + column);
  }
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(run.rows, chunk, p);
    if (column >= run.rows.width) continue;
    drop(value[p], run.dropout, draws, column);
#pragma unroll
    for (int i = 0; i < width; i++) /* what is stored is what is normalised */
      value[p][i] = to_float(from_float<T>(to_float(residual[p].at[i]) + value[p][i]));
    store_values(static_cast<T *>(run.sum) + first + column, value[p]);
  }
}

template <typename T, int width>
__device__ inline void write_chunk(const Forward &run, int64_t row, int chunk, float mean, float rstd,
                                   const float (&value)[packs<width>][width]) {
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(run.rows, chunk, p);
    if (column >= run.rows.width) continue;
    float gamma[width], beta[width], y[width];
    load_values(gamma, run.gamma, column);
    load_values(beta, run.beta, column);
#pragma unroll
    for (int i = 0; i < width; i++)
      y[i] = fmaf((value[p][i] - mean) * rstd, gamma[i], beta[i]);
    store_values(static_cast<T *>(run.y) + row * run.rows.width + column, y);
  }
}

template <typename T, int width>
__global__ void __launch_bounds__(block_threads) normalise_rows(Forward run, const CudaStep *step) {
  __shared__ float scratch[3][warp_size];
  const Rows &rows = run.rows;
  int64_t teams = block_threads / rows.team, row = (int64_t)blockIdx.x * teams + (int)threadIdx.x / rows.team;
  float count = (float)rows.width;
  for (; row < rows.rows; row += gridDim.x * teams) {
    RowDraws draws = row_draws(run.dropout, step, row, rows.width);
    float value[packs<width>][width], sum = 0.0F, square = 0.0F;
    for (int chunk = 0; chunk < rows.chunks; chunk++) {
      read_chunk<T, width>(run, draws, row, chunk, value);
#pragma unroll
      for (int k = 0; k < row_values<width>; k++)
        sum += value[k / width][k % width];
    }
    float mean = team_sum(rows, sum, scratch[0]) / count;
    sum = 0.0F;
    for (int chunk = 0; chunk < rows.chunks; chunk++) {
      if (rows.chunks > 1) read_chunk<T, width>(run, draws, row, chunk, value);
#pragma unroll
      for (int k = 0; k < row_values<width>; k++) {
        bool real = column_of<width>(rows, chunk, k / width) < rows.width;
        float d = real ? value[k / width][k % width] - mean : 0.0F;
        sum += d;
        square += d * d;
      }
    }
    float difference = team_sum(rows, sum, scratch[1]) / count;
    float var = team_sum(rows, square, scratch[2]) / count - difference * difference;
    float rstd = 1.0F / sqrtf((var < 0.0F ? 0.0F : var) + run.epsilon); /* NaN stays */
    mean += difference;
    for (int chunk = 0; chunk < rows.chunks; chunk++) {
      if (rows.chunks > 1) read_chunk<T, width>(run, draws, row, chunk, value);
      write_chunk<T, width>(run, row, chunk, mean, rstd, value);
    }
    if ((int)threadIdx.x % rows.team != 0) continue;
    if (run.mean != NULL) run.mean[row] = mean;
    if (run.rstd != NULL) run.rstd[row] = rstd;
  }
}

/* All but what is normalised; `gamma`: the input it is. */
Forward forward_run(const Kernel *kernel, const CudaLaunch *launch, int32_t gamma) {
  Forward run = {};
  run.y = output_array(kernel, launch, 0).at;
  run.mean = (float *)output_array(kernel, launch, 1).at;
  run.rstd = (float *)output_array(kernel, launch, 2).at;
  run.gamma = input_array(kernel, launch, gamma);
  run.beta = input_array(kernel, launch, gamma + 1);
  run.epsilon = (float)kernel->node->params.epsilon;
  return run;
}

Status forward(const Kernel *kernel, const CudaLaunch *launch, const Tensor *x, Forward run) {
  bool packed = is_wide(x) && is_aligned(run.x) && is_aligned(run.branch.at) && is_aligned(run.y) &&
                is_aligned(run.sum) && is_aligned(run.gamma.at) && is_aligned(run.beta.at);
  run.rows = rows_of(x, packed);
  unsigned blocks = grid_for(run.rows.rows, 1, teams_of(run.rows));
  cudaError_t error = cudaErrorInvalidValue;
  by_float(x->dtype, [&](auto zero) {
    using T = decltype(zero);
    error = cuda_launch(packed ? normalise_rows<T, wide<T>> : normalise_rows<T, 1>, blocks, block_threads, 0,
                        launch->stream, run, launch->step);
  });
  return cuda_status(error, "layer norm", kernel->node);
}

Status norm_launch(const Kernel *kernel, const CudaLaunch *launch) {
  Forward run = forward_run(kernel, launch, 1);
  run.x = (const void *)launch->inputs[0];
  return forward(kernel, launch, kernel->node->inputs[0], run);
}

Status residual_launch(const Kernel *kernel, const CudaLaunch *launch) {
  Forward run = forward_run(kernel, launch, 2);
  run.x = (const void *)launch->inputs[1];
  run.branch = input_array(kernel, launch, 0);
  run.sum = output_array(kernel, launch, 3).at;
  run.dropout = dropout_of(kernel->node);
  return forward(kernel, launch, kernel->node->inputs[1], run);
}

/* ---- Backward --------------------------------------------------------------------------------------------------------
 * With n = (x - mean) rstd, g = dy gamma and a row of H values:
 *   dx = rstd (g - sum g / H - n sum g n / H);   dgamma = sum dy n, dbeta = sum dy over rows
 * A block keeps what its rows bring to dgamma and dbeta in registers, its warps' are added up at its end, and
 * all blocks' by the second kernel. Rows of several chunks add theirs to the block's place in memory instead.
 */

enum { IN_DY, IN_X, IN_MEAN, IN_RSTD, IN_GAMMA };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA, OUT_DROPPED };

struct Backward {
  Rows rows;
  const void *dy, *x;
  const float *mean, *rstd;
  FloatArray gamma;
  void *dx;           /* may be dy or x; NULL: not wanted */
  FloatArray dropped; /* dropout(dx); NULL: not wanted */
  float *sums;        /* [block][2][width]: dgamma, dbeta */
  Dropout dropout;
};

template <typename T, int width> struct RowChunk { Pack<T, width> dy[packs<width>], x[packs<width>]; };

template <typename T, int width>
__device__ inline void read_chunk(const Backward &run, int64_t row, int chunk, RowChunk<T, width> &read) {
  const T *dy = static_cast<const T *>(run.dy) + row * run.rows.width;
  const T *x = static_cast<const T *>(run.x) + row * run.rows.width;
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(run.rows, chunk, p);
    bool real = column < run.rows.width;
    read.dy[p] = real ? load_pack<width>(dy + column) : Pack<T, width>{};
    read.x[p] = real ? load_pack<width>(x + column) : Pack<T, width>{};
  }
}

/* What a thread adds up: of its columns, and of its row. */
template <int width> struct ColumnSums { float gamma[row_values<width>], beta[row_values<width>]; };
struct RowSums {
  float gradient, product;
};

template <typename T, int width>
__device__ inline void add_chunk(const Backward &run, int chunk, float mean, float rstd,
                                 const RowChunk<T, width> &read, RowSums &of_row,
                                 ColumnSums<width> &of_columns) {
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(run.rows, chunk, p);
    if (column >= run.rows.width) continue;
    float gamma[width];
    load_values(gamma, run.gamma, column);
#pragma unroll
    for (int i = 0; i < width; i++) {
      float dy = to_float(read.dy[p].at[i]), normal = (to_float(read.x[p].at[i]) - mean) * rstd;
      float g = dy * gamma[i];
      of_row.gradient += g;
      of_row.product += g * normal;
      of_columns.gamma[p * width + i] += dy * normal;
      of_columns.beta[p * width + i] += dy;
    }
  }
}

template <typename T, int width>
__device__ inline void write_chunk(const Backward &run, const RowDraws &draws, int64_t row, int chunk,
                                   float mean, float rstd, const RowChunk<T, width> &read, RowSums means) {
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(run.rows, chunk, p), at = row * run.rows.width + column;
    if (column >= run.rows.width) continue;
    float gamma[width], dx[width];
    load_values(gamma, run.gamma, column);
#pragma unroll
    for (int i = 0; i < width; i++) {
      float normal = (to_float(read.x[p].at[i]) - mean) * rstd;
      dx[i] = rstd * (to_float(read.dy[p].at[i]) * gamma[i] - means.gradient - normal * means.product);
    }
    if (run.dx != NULL) store_values(static_cast<T *>(run.dx) + at, dx);
    if (run.dropped.at == NULL) continue;
#pragma unroll
    for (int i = 0; i < width; i++)
      dx[i] = to_float(from_float<T>(dx[i])); /* what is stored is what is dropped */
    drop(dx, run.dropout, draws, column);
    store_values(run.dropped, at, dx);
  }
}

/* Adds a thread's columns to the block's in memory, or with `begins` writes them there. */
template <int width>
__device__ inline void add_columns(const Backward &run, int chunk, const ColumnSums<width> &sums,
                                   bool begins) {
  float *gamma = run.sums + (int64_t)blockIdx.x * 2 * run.rows.width, *beta = gamma + run.rows.width;
#pragma unroll
  for (int k = 0; k < row_values<width>; k++) {
    int64_t column = column_of<width>(run.rows, chunk, k / width) + k % width;
    if (column >= run.rows.width) continue;
    gamma[column] = (begins ? 0.0F : gamma[column]) + sums.gamma[k];
    beta[column] = (begins ? 0.0F : beta[column]) + sums.beta[k];
  }
}

/* The columns of a block whose teams are warps, from what each has. */
template <int width>
__device__ inline void add_teams(const Rows &rows, const float (&columns)[row_values<width>], float *sums) {
  constexpr int warps = block_threads / warp_size;
  __align__(16) __shared__ float of_warps[warps][warp_size * row_values<width>];
  int warp = (int)threadIdx.x / warp_size;
#pragma unroll
  for (int p = 0; p < packs<width>; p++) {
    int64_t column = column_of<width>(rows, 0, p);
#pragma unroll
    for (int i = 0; i < width; i++)
      of_warps[warp][column + i] = columns[p * width + i];
  }
  __syncthreads();
  for (int column = (int)threadIdx.x; column < rows.width; column += block_threads) {
    float sum = 0.0F;
    for (int w = 0; w < warps; w++)
      sum += of_warps[w][column];
    sums[column] = sum;
  }
  __syncthreads(); /* of_warps is used again */
}

template <typename T, int width>
__global__ void __launch_bounds__(block_threads) differentiate_rows(Backward run, const CudaStep *step) {
  __shared__ float scratch[2][warp_size];
  const Rows &rows = run.rows;
  int64_t teams = block_threads / rows.team;
  int64_t first = (int64_t)blockIdx.x * teams + (int)threadIdx.x / rows.team;
  float count = (float)rows.width;
  ColumnSums<width> columns = {};
  /* The next row is on its way while this one is summed, where registers hold both. */
  constexpr bool ahead = sizeof(T) == 2;
  RowChunk<T, width> read, next = {};
  if (first < rows.rows) read_chunk(run, first, 0, read);
  for (int64_t row = first, following; row < rows.rows; row = following) {
    float mean = run.mean[row], rstd = run.rstd[row];
    RowSums sums = {0.0F, 0.0F};
    following = row + gridDim.x * teams;
    if (ahead && following < rows.rows) read_chunk(run, following, 0, next);
    for (int chunk = 0; chunk < rows.chunks; chunk++) {
      if (chunk > 0) read_chunk(run, row, chunk, read);
      if (rows.chunks > 1) columns = ColumnSums<width>{};
      add_chunk(run, chunk, mean, rstd, read, sums, columns);
      if (rows.chunks > 1) add_columns<width>(run, chunk, columns, row == first);
    }
    RowSums means = {team_sum(rows, sums.gradient, scratch[0]) / count,
                     team_sum(rows, sums.product, scratch[1]) / count};
    RowDraws draws = row_draws(run.dropout, step, row, rows.width);
    for (int chunk = 0; chunk < rows.chunks; chunk++) {
      if (rows.chunks > 1) read_chunk(run, row, chunk, read);
      write_chunk(run, draws, row, chunk, mean, rstd, read, means);
    }
    if (ahead)
      read = next;
    else if (following < rows.rows)
      read_chunk(run, following, 0, read);
  }
  if (rows.chunks > 1) return;
  if (rows.team == block_threads) {
    add_columns<width>(run, 0, columns, true);
  } else {
    float *sums_of_block = run.sums + (int64_t)blockIdx.x * 2 * rows.width;
    add_teams<width>(rows, columns.gamma, sums_of_block);
    add_teams<width>(rows, columns.beta, sums_of_block + rows.width);
  }
}

__global__ void __launch_bounds__(fold_threads)
    combine_columns(int64_t width, int64_t blocks, const float *sums, float *dgamma, float *dbeta) {
  __shared__ double scratch[2][fold_threads / warp_size][fold_columns];
  int64_t column = fold_column();
  double gamma = 0.0, beta = 0.0;
  for (int64_t block = fold_lane(); column < width && block < blocks; block += fold_lanes) {
    gamma += (double)sums[block * 2 * width + column];
    beta += (double)sums[(block * 2 + 1) * width + column];
  }
  gamma = fold_sum(gamma, scratch[0]);
  beta = fold_sum(beta, scratch[1]);
  if (column >= width || fold_lane() != 0) return;
  if (dgamma != NULL) dgamma[column] = (float)gamma;
  if (dbeta != NULL) dbeta[column] = (float)beta;
}

/* Each writes two rows of sums: so many keep a card busy. */
unsigned backward_blocks(const Rows &rows) { return grid_for(rows.rows, 1, teams_of(rows), 256); }

Status backward_prepare(CudaDevice *, Kernel *kernel) {
  const Tensor *x = kernel->node->inputs[IN_X];
  int64_t blocks = 0; /* of whichever kernel: addresses, which decide, are not known ahead */
  for (int packed = 0; packed < 2; packed++) {
    int64_t wanted = backward_blocks(rows_of(x, packed != 0));
    blocks = wanted > blocks ? wanted : blocks;
  }
  kernel->workspace_bytes = blocks * 2 * x->shape[x->rank - 1] * (int64_t)sizeof(float);
  return vl_ok();
}

/* With the dropout's gradient where the node has one. */
Status backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[IN_X];
  Backward run = {};
  run.dy = (const void *)launch->inputs[IN_DY];
  run.x = (const void *)launch->inputs[IN_X];
  run.mean = (const float *)launch->inputs[IN_MEAN];
  run.rstd = (const float *)launch->inputs[IN_RSTD];
  run.gamma = input_array(kernel, launch, IN_GAMMA);
  run.dx = output_array(kernel, launch, OUT_DX).at;
  run.dropped = output_array(kernel, launch, OUT_DROPPED);
  run.sums = (float *)launch->workspace;
  if (run.dropped.at != NULL) run.dropout = dropout_of(node);
  bool packed = is_wide(x) && is_aligned(run.dy) && is_aligned(run.x) && is_aligned(run.gamma.at) &&
                is_aligned(run.dx) && is_aligned(run.dropped.at);
  run.rows = rows_of(x, packed);
  unsigned blocks = backward_blocks(run.rows);
  cudaError_t error = cudaErrorInvalidValue;
  by_float(x->dtype, [&](auto zero) {
    using T = decltype(zero);
    error = cuda_launch(packed ? differentiate_rows<T, wide<T>> : differentiate_rows<T, 1>, blocks,
                        block_threads, 0, launch->stream, run, launch->step);
  });
  VL_TRY(cuda_status(error, "gradient of layer norm", node));
  error =
      cuda_launch(combine_columns, grid_for(run.rows.width, fold_columns), fold_threads, 0, launch->stream,
                  run.rows.width, blocks, run.sums, (float *)output_array(kernel, launch, OUT_DGAMMA).at,
                  (float *)output_array(kernel, launch, OUT_DBETA).at);
  return cuda_status(error, "gradient of parameters", node);
}

/* The sum has to be there to be normalised. */
Status residual_supports(CudaDevice *device, const Node *node) {
  if (node->outputs[3] == NULL)
    return vl_error(VL_UNSUPPORTED, "residual_norm in %s: the sum is wanted by nobody", node->scope);
  return cuda_supports_floats(device, node);
}

} // namespace

const CudaOp cuda_op_layer_norm = {
    .name = "layer_norm",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .launch = norm_launch,
};

const CudaOp cuda_op_layer_norm_backward = {
    .name = "layer_norm_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .prepare = backward_prepare,
    .launch = backward_launch,
};

const CudaOp cuda_op_residual_norm = {
    .name = "residual_norm",
    .supports = residual_supports,
    .choose_layouts = cuda_choose_plain,
    .launch = residual_launch,
};

const CudaOp cuda_op_residual_norm_backward = {
    .name = "residual_norm_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
