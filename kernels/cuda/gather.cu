/* Rows picked by number: embedding, gather_tokens, and their gradients; plain.
 *
 * Picking moves whole rows, a warp each, in the widest units that fit. The gradient of gather_tokens has a
 * warp for each row of x, which looks through the sample's positions: they are few.
 *
 * The gradient of an embedding has as many positions as a batch has tokens, any number of which may point to
 * one row: [PAD], or the two rows of token types. So positions are first sorted by row, and by position
 * within a row, by counting: how often each row is named in each chunk of positions, the same before each
 * chunk, where each row's positions begin. Then every 32 neighbours of that order are added up by one block,
 * and what of a row's sum lies in several of these pieces is put together in their order. All is decided by
 * the ids alone, nothing by the order in which blocks run; work does not depend on how ids are spread, but
 * for the pieces of one row, added one after another. */
#include "kernels/cuda/indices.cuh"

extern "C" {
extern const CudaOp cuda_op_embedding, cuda_op_embedding_backward;
extern const CudaOp cuda_op_gather_tokens, cuda_op_gather_tokens_backward;
}

namespace {

constexpr int block_threads = 256, scan_threads = 1024;

/* ---- Rows picked --------------------------------------------------------------------------------------- */

/* to[i] = from[i / each * rows + indices[i]]: every `each` indices have `rows` rows of their own to pick
 * from. Rows are of `units` units. */
template <typename Unit>
__global__ void pick_rows(Unit *__restrict__ to, const Unit *__restrict__ from, Indices indices,
                          int64_t count, int64_t each, int64_t rows, int64_t units) {
  int64_t warps = grid_threads() / warp_size;
  int lane = (int)threadIdx.x % warp_size;
  for (int64_t i = global_index() / warp_size; i < count; i += warps) {
    int32_t index = index_at(indices, i);
    const Unit *row = from + (i / each * rows + (index < 0 ? 0 : index)) * units;
    for (int64_t u = lane; u < units; u += warp_size)
      to[i * units + u] = row[u];
  }
}

Status pick(const Kernel *kernel, const CudaLaunch *launch, int64_t each, int64_t rows) {
  const Node *node = kernel->node;
  uintptr_t to = launch->outputs[0], from = launch->inputs[0];
  int64_t count = vl_tensor_elements(node->inputs[1]), row_bytes = vl_tensor_bytes(node->outputs[0]) / count;
  Indices indices = indices_of(kernel, launch, 1, rows);
  unsigned blocks = grid_for(count * warp_size, block_threads);
  cudaError_t error = cudaSuccess;
  auto launch_as = [&](auto unit) {
    using Unit = decltype(unit);
    error = cuda_launch(pick_rows<Unit>, blocks, block_threads, 0, launch->stream, (Unit *)to,
                        (const Unit *)from, indices, count, each, rows, row_bytes / (int64_t)sizeof(Unit));
  };
  uintptr_t divides = to | from | (uintptr_t)row_bytes;
  if (divides % 16 == 0)
    launch_as(Pack<uint32_t, 4>{});
  else if (divides % 4 == 0)
    launch_as(uint32_t{});
  else
    launch_as(uint16_t{});
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

Status launch_embedding(const Kernel *kernel, const CudaLaunch *launch) {
  return pick(kernel, launch, vl_tensor_elements(kernel->node->inputs[1]), kernel->node->inputs[0]->shape[0]);
}

Status launch_gather(const Kernel *kernel, const CudaLaunch *launch) {
  return pick(kernel, launch, kernel->node->inputs[1]->shape[1], kernel->node->inputs[0]->shape[1]);
}

/* ---- Columns: a thread has `wide` neighbours of a row -------------------------------------------------- */

template <typename T, int wide>
__device__ inline void add_pack(float (&sums)[wide], const Pack<T, wide> &from) {
  for (int k = 0; k < wide; k++)
    sums[k] += to_float(from.at[k]);
}

/* Calls function(pack<T, wide>) with the widest pack that rows of a width, at these addresses, divide into.
 */
template <typename T, typename F> inline void by_pack(int64_t width, uintptr_t addresses, F function) {
  bool aligned = width % pack_width<T> == 0 && addresses % 16 == 0;
  if (aligned)
    function(Pack<T, pack_width<T>>{});
  else
    function(Pack<T, 1>{});
}

template <typename P> constexpr int width_of_pack = (int)(sizeof(P::at) / sizeof(P::at[0]));

/* ---- Gradient of gather_tokens ------------------------------------------------------------------------- */

/* picked, length, width: rows of dy and of dx in a sample, and their elements. */
template <typename T, int wide>
__global__ void sum_taken_rows(const T *dy, Indices positions, T *dx, int64_t samples, int64_t picked,
                               int64_t length, int64_t width) {
  int64_t warps = grid_threads() / warp_size;
  int lane = (int)threadIdx.x % warp_size;
  for (int64_t row = global_index() / warp_size; row < samples * length; row += warps) {
    int64_t first = row / length * picked;
    int32_t place = (int32_t)(row % length);
    for (int64_t column = lane * wide; column - lane * wide < width; column += warp_size * wide) {
      float sums[wide] = {};
      for (int64_t m = 0; m < picked; m += warp_size) {
        int32_t taken = m + lane < picked ? index_at(positions, first + m + lane) : -1;
        unsigned matches = __ballot_sync(whole_warp, taken == place);
        for (; matches != 0; matches &= matches - 1) {
          const T *from = dy + (first + m + __ffs((int)matches) - 1) * width + column;
          if (column >= width) continue;
          Pack<T, wide> pack = *reinterpret_cast<const Pack<T, wide> *>(from);
          add_pack(sums, pack);
        }
      }
      if (column >= width) continue;
      Pack<T, wide> sum;
      for (int k = 0; k < wide; k++)
        sum.at[k] = from_float<T>(sums[k]);
      *reinterpret_cast<Pack<T, wide> *>(dx + row * width + column) = sum;
    }
  }
}

Status launch_gather_backward(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const int64_t *shape = node->outputs[0]->shape;
  int64_t samples = shape[0], length = shape[1], width = shape[2], picked = node->inputs[1]->shape[1];
  Indices positions = indices_of(kernel, launch, 1, length);
  unsigned blocks = grid_for(samples * length * warp_size, block_threads);
  cudaError_t error = cudaSuccess;
  by_float(node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    by_pack<T>(width, launch->inputs[0] | launch->outputs[0], [&](auto pack) {
      constexpr int wide = width_of_pack<decltype(pack)>;
      error = cuda_launch(sum_taken_rows<T, wide>, blocks, block_threads, 0, launch->stream,
                          (const T *)launch->inputs[0], positions, (T *)launch->outputs[0], samples, picked,
                          length, width);
    });
  });
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

/* ---- Positions in the order of rows -------------------------------------------------------------------- */

/* What the sort works with; arrays are in the workspace. */
struct Order {
  int64_t count, rows;   /* positions, and rows of the table */
  int64_t chunk, chunks; /* positions of a chunk */
  int32_t *ranks;        /* [count]: earlier ones of its chunk with the same id; -1: out of range */
  int32_t *before;       /* [chunk][row]: of the row, in the chunk; then in those before it */
  int32_t *counts;       /* [row] */
  int32_t *starts;       /* [row + 1]: how many come before the row's first */
  int32_t *sorted;       /* [count]: positions, of which starts[rows] are in range */
};

constexpr int64_t least_chunk = 1024, most_chunks = 64;
constexpr int piece = warp_size; /* neighbours in that order */

Order order_of(int64_t count, int64_t rows) {
  Order order = {};
  order.count = count;
  order.rows = rows;
  order.chunk = (count + most_chunks - 1) / most_chunks;
  if (order.chunk < least_chunk) order.chunk = least_chunk;
  order.chunks = (count + order.chunk - 1) / order.chunk;
  return order;
}

int64_t pieces_of(const Order &order) { return (order.count + piece - 1) / piece; }
int64_t whole_lines(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t integers_bytes(int64_t count) { return whole_lines(count * (int64_t)sizeof(int32_t)); }

/* The workspace's beginning, up to the sums of pieces. */
int64_t order_bytes(const Order &order) {
  return 2 * integers_bytes(order.count) + integers_bytes(order.chunks * order.rows) +
         integers_bytes(order.rows) + integers_bytes(order.rows + 1);
}

void place_order(Order *order, uintptr_t workspace) {
  auto take = [&](int64_t count) {
    int32_t *at = (int32_t *)workspace;
    workspace += (uintptr_t)integers_bytes(count);
    return at;
  };
  order->ranks = take(order->count);
  order->sorted = take(order->count);
  order->counts = take(order->rows);
  order->starts = take(order->rows + 1);
  order->before = take(order->chunks * order->rows);
}

/* `before` is zero. */
__global__ void count_in_chunks(Indices ids, Order order) {
  int64_t i = global_index();
  if (i >= order.count) return;
  int32_t id = index_at(ids, i), earlier = 0, all = 0;
  order.ranks[i] = -1;
  if (id < 0) return;
  int64_t first = i / order.chunk * order.chunk, end = first + order.chunk;
  if (end > order.count) end = order.count;
#pragma unroll 8
  for (int64_t j = first; j < end; j++) {
    int32_t same = ids.at[j] == id ? 1 : 0;
    all += same;
    earlier += j < i ? same : 0;
  }
  order.ranks[i] = earlier;
  if (earlier == 0) order.before[i / order.chunk * order.rows + id] = all;
}

/* `before` from counts to sums of those before; fills `counts`. */
__global__ void count_before_chunks(Order order) {
  constexpr int at_once = 8; /* loads on their way */
  for (int64_t row = global_index(); row < order.rows; row += grid_threads()) {
    int32_t sum = 0;
    for (int64_t first = 0; first < order.chunks; first += at_once) {
      int32_t own[at_once];
      int32_t *before = order.before + first * order.rows + row;
#pragma unroll
      for (int k = 0; k < at_once; k++)
        own[k] = first + k < order.chunks ? before[k * order.rows] : 0;
#pragma unroll
      for (int k = 0; k < at_once; k++) {
        if (first + k < order.chunks) before[k * order.rows] = sum;
        sum += own[k];
      }
    }
    order.counts[row] = sum;
  }
}

/* The sum of what this lane and lower ones have. */
__device__ inline int32_t sum_to_lane(int32_t own) {
  int lane = (int)threadIdx.x % warp_size;
  for (int distance = 1; distance < warp_size; distance *= 2) {
    int32_t lower = __shfl_up_sync(whole_warp, own, distance);
    if (lane >= distance) own += lower;
  }
  return own;
}

/* One block, whose warps have as many neighbouring rows each. */
__global__ void __launch_bounds__(scan_threads)
    sum_counts(const int32_t *__restrict__ counts, int64_t rows, int32_t *__restrict__ starts) {
  __shared__ int32_t totals[scan_threads / warp_size];
  int lane = (int)threadIdx.x % warp_size, warp = (int)threadIdx.x / warp_size;
  int64_t each = (rows + scan_threads - 1) / scan_threads * warp_size, first = warp * each;
  int64_t end = first + each < rows ? first + each : rows;
  int32_t own = 0, sum = 0;
#pragma unroll 8
  for (int64_t row = first + lane; row < end; row += warp_size)
    own += counts[row];
  own = warp_sum(own);
  if (lane == 0) totals[warp] = own;
  __syncthreads();
  for (int w = 0; w < warp; w++)
    sum += totals[w];
  if (threadIdx.x == scan_threads - 1) starts[rows] = sum + own;
#pragma unroll 4
  for (int64_t row = first; row < end; row += warp_size) {
    int32_t count = row + lane < end ? counts[row + lane] : 0, to_here = sum_to_lane(count);
    if (row + lane < end) starts[row + lane] = sum + to_here - count;
    sum += __shfl_sync(whole_warp, to_here, warp_size - 1);
  }
}

__global__ void sort_positions(Indices ids, Order order) {
  int64_t i = global_index();
  if (i >= order.count || order.ranks[i] < 0) return;
  int64_t id = ids.at[i];
  int32_t before = order.before[i / order.chunk * order.rows + id];
  order.sorted[order.starts[id] + before + order.ranks[i]] = (int32_t)i;
}

cudaError_t sort(Indices ids, const Order &order, cudaStream_t stream) {
  size_t bytes = (size_t)(order.chunks * order.rows) * sizeof(int32_t);
  unsigned blocks = grid_for(order.count, block_threads, 1, INT32_MAX);
  cudaError_t error = cudaMemsetAsync(order.before, 0, bytes, stream);
  if (error == cudaSuccess)
    error = cuda_launch(count_in_chunks, blocks, block_threads, 0, stream, ids, order);
  if (error == cudaSuccess)
    error = cuda_launch(count_before_chunks, grid_for(order.rows, block_threads), block_threads, 0, stream,
                        order);
  if (error == cudaSuccess)
    error = cuda_launch(sum_counts, 1, scan_threads, 0, stream, order.counts, order.rows, order.starts);
  if (error == cudaSuccess) error = cuda_launch(sort_positions, blocks, block_threads, 0, stream, ids, order);
  return error;
}

/* ---- Gradient of embedding ----------------------------------------------------------------------------- */

/* Sums of rows that do not lie in one piece alone: [piece][2][width]; first of a row that began before, then
 * of one that goes on after it. */
enum { BEGAN_BEFORE, GOES_ON, PARTS };

struct Target {
  float *table, *parts;
  int64_t width;
};

/* to[k] = sums[k], or with `onto` += */
template <int wide> __device__ inline void put_floats(float *to, const float (&sums)[wide], bool onto) {
  constexpr int unit = wide % 4 == 0 ? 4 : 1;
  for (int k = 0; k < wide; k += unit) {
    Pack<float, unit> *at = reinterpret_cast<Pack<float, unit> *>(to + k), value = {};
    if (onto) value = *at;
    for (int i = 0; i < unit; i++)
      value.at[i] += sums[k + i];
    *at = value;
  }
}

/* Adds what a piece has of a row to the table, or keeps it. */
template <int wide>
__device__ inline void put_sum(const Order &order, const Target &to, int64_t index, int32_t row,
                               int64_t column, const float (&sums)[wide]) {
  bool began_before = order.starts[row] < index * piece;
  bool goes_on = order.starts[row + 1] > (index + 1) * piece;
  if (began_before || goes_on) {
    int64_t part = index * PARTS + (began_before ? BEGAN_BEFORE : GOES_ON);
    put_floats(to.parts + part * to.width + column, sums, false);
  } else {
    put_floats(to.table + row * to.width + column, sums, true);
  }
}

/* A block takes a piece, or some columns of one. */
template <typename T, int wide>
__global__ void sum_pieces(const T *__restrict__ dy, const int32_t *ids, Order order, Target to) {
  constexpr int at_once = 4; /* rows on their way */
  int lane = (int)threadIdx.x % warp_size;
  int64_t index = blockIdx.x, first = index * piece,
          column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * wide;
  int64_t left = order.starts[order.rows] - first;
  int count = left < piece ? (int)left : piece;
  if (count <= 0) return;
  int32_t position = lane < count ? order.sorted[first + lane] : 0, row = ids[position], current = -1;
  float sums[wide] = {};
  for (int j = 0; j < count; j += at_once) {
    Pack<T, wide> packs[at_once];
#pragma unroll
    for (int k = 0; k < at_once; k++) {
      int32_t from = __shfl_sync(whole_warp, position, j + k);
      if (j + k < count && column < to.width)
        packs[k] = *reinterpret_cast<const Pack<T, wide> *>(dy + from * to.width + column);
    }
#pragma unroll
    for (int k = 0; k < at_once; k++) {
      int32_t next = __shfl_sync(whole_warp, row, j + k);
      if (j + k >= count || column >= to.width) continue;
      if (next != current) {
        if (current >= 0) put_sum(order, to, index, current, column, sums);
        for (float &sum : sums)
          sum = 0.0F;
        current = next;
      }
      add_pack(sums, packs[k]);
    }
  }
  if (column < to.width) put_sum(order, to, index, current, column, sums);
}

/* The block of the piece in which a row begins that goes on after it puts the row's parts together. */
__global__ void sum_parts(const int32_t *ids, Order order, Target to) {
  int64_t index = blockIdx.x, last = (index + 1) * piece - 1;
  int64_t column = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
  if (last >= order.starts[order.rows] || column >= to.width) return;
  int32_t row = ids[order.sorted[last]];
  int64_t end = order.starts[row + 1];
  if (order.starts[row] < index * piece || end <= last + 1) return;
  float sum = to.parts[(index * PARTS + GOES_ON) * to.width + column];
#pragma unroll 8
  for (int64_t p = index + 1; p * piece < end; p++)
    sum += to.parts[(p * PARTS + BEGAN_BEFORE) * to.width + column];
  to.table[row * to.width + column] += sum;
}

/* Threads of a block for that many, whole warps. */
unsigned threads_for(int64_t count) {
  int64_t warps = (count + warp_size - 1) / warp_size;
  return (unsigned)(warps < block_threads / warp_size ? warps * warp_size : block_threads);
}

Status launch_embedding_backward(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  int64_t rows = node->params.shape[0], width = node->params.shape[1];
  Indices ids = indices_of(kernel, launch, 1, rows);
  Order order = order_of(vl_tensor_elements(node->inputs[1]), rows);
  place_order(&order, launch->workspace);
  Target to = {(float *)launch->outputs[0], (float *)(launch->workspace + (uintptr_t)order_bytes(order)),
               width};
  bool fresh = node->input_count < 3 || node->inputs[2] == nullptr;
  cudaError_t error = cudaSuccess;
  if (fresh) error = cudaMemsetAsync(to.table, 0, (size_t)(rows * width) * sizeof(float), launch->stream);
  if (error == cudaSuccess) error = sort(ids, order, launch->stream);
  if (error != cudaSuccess) return cuda_status(error, "cudaLaunchKernelEx", node);
  unsigned pieces = (unsigned)pieces_of(order);
  by_float(node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    by_pack<T>(width, launch->inputs[0] | launch->outputs[0], [&](auto pack) {
      constexpr int wide = width_of_pack<decltype(pack)>;
      unsigned threads = threads_for(width / wide), parts = grid_for(width / wide, (int)threads);
      error = cuda_launch(sum_pieces<T, wide>, dim3(pieces, parts), threads, 0, launch->stream,
                          (const T *)launch->inputs[0], ids.at, order, to);
    });
  });
  unsigned threads = threads_for(width);
  if (error == cudaSuccess)
    error = cuda_launch(sum_parts, dim3(pieces, grid_for(width, (int)threads)), threads, 0, launch->stream,
                        ids.at, order, to);
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

Status prepare_embedding_backward(CudaDevice *, Kernel *kernel) {
  const Node *node = kernel->node;
  Order order = order_of(vl_tensor_elements(node->inputs[1]), node->params.shape[0]);
  kernel->workspace_bytes =
      order_bytes(order) + pieces_of(order) * PARTS * node->params.shape[1] * (int64_t)sizeof(float);
  return vl_ok();
}

/* The sum is kept in f32. */
Status supports_f32_table(CudaDevice *device, const Node *node) {
  VL_TRY(cuda_supports_floats(device, node));
  if (node->params.dtype != DTYPE_F32)
    return vl_error(VL_UNSUPPORTED, "%s in %s: the gradient as %s; f32 is possible", node->op->name,
                    node->scope, vl_dtype_name((DType)node->params.dtype));
  if (vl_tensor_elements(node->inputs[1]) > INT32_MAX)
    return vl_error(VL_UNSUPPORTED, "%s in %s: %lld ids; at most %d are possible", node->op->name,
                    node->scope, (long long)vl_tensor_elements(node->inputs[1]), INT32_MAX);
  return vl_ok();
}

} // namespace

const CudaOp cuda_op_embedding = {
    .name = "embedding",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .launch = launch_embedding,
};

const CudaOp cuda_op_embedding_backward = {
    .name = "embedding_backward",
    .supports = supports_f32_table,
    .choose_layouts = cuda_choose_plain,
    .prepare = prepare_embedding_backward,
    .launch = launch_embedding_backward,
};

const CudaOp cuda_op_gather_tokens = {
    .name = "gather_tokens",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .launch = launch_gather,
};

const CudaOp cuda_op_gather_tokens_backward = {
    .name = "gather_tokens_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .launch = launch_gather_backward,
};
