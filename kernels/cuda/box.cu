/* Copies between boxes: a walk over the target that reads where each piece comes from, or tiles that are
 * turned in shared memory. */
#include "kernels/cuda/box.cuh"

namespace {

/* ---- A walk over the target ---------------------------------------------------------------------------------- */

constexpr int walk_threads = 256;
constexpr int walk_depth = 4; /* pieces that a thread asks for before it writes the first */

/* A box, for kernels: where elements of both sides lie. */
struct Sides {
  int32_t rank;
  Divisor sizes[VL_MAX_DIMS];
  int64_t to_strides[VL_MAX_DIMS], from_strides[VL_MAX_DIMS];
};

Sides sides_of(const Box *box) {
  Sides sides = {};
  sides.rank = box->rank;
  for (int32_t d = 0; d < box->rank; d++) {
    sides.sizes[d] = divisor_of(box->sizes[d]);
    sides.to_strides[d] = box->to_strides[d];
    sides.from_strides[d] = box->from_strides[d];
  }
  return sides;
}

__device__ inline void find_places(const Sides &sides, int64_t index, int64_t *to, int64_t *from) {
  int64_t to_place = 0, from_place = 0, at;
  for (int d = sides.rank - 1; d > 0; d--) {
    index = divide(index, sides.sizes[d], &at);
    to_place += at * sides.to_strides[d];
    from_place += at * sides.from_strides[d];
  }
  *to = to_place + index * sides.to_strides[0];
  *from = from_place + index * sides.from_strides[0];
}

/* Strides count pieces. */
template <typename Piece>
__global__ void __launch_bounds__(walk_threads)
    walk(const __grid_constant__ Sides sides, Piece *__restrict__ to, const Piece *__restrict__ from,
         int64_t count) {
  constexpr int64_t tile = walk_threads * walk_depth;
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < count; first += gridDim.x * tile) {
    Piece pieces[walk_depth];
    int64_t places[walk_depth];
#pragma unroll
    for (int k = 0; k < walk_depth; k++) {
      int64_t index = first + k * walk_threads, source;
      if (index < count) {
        find_places(sides, index, &places[k], &source);
        pieces[k] = from[source];
      }
    }
#pragma unroll
    for (int k = 0; k < walk_depth; k++) {
      if (first + k * walk_threads < count) to[places[k]] = pieces[k];
    }
  }
}

template <typename Piece>
cudaError_t walk_launch(cudaStream_t stream, const Box *box, uintptr_t to, uintptr_t from, int64_t count) {
  return cuda_launch(walk<Piece>, grid_for(count, walk_threads, walk_depth), walk_threads, 0, stream,
                     sides_of(box), (Piece *)to, (const Piece *)from, count);
}

bool has_runs(const Box *box) {
  return box->to_strides[box->rank - 1] == 1 && box->from_strides[box->rank - 1] == 1;
}

/* The largest piece, up to 16 bytes, that everything is a multiple of. */
int64_t piece_of(const Box *box, int64_t element_bytes, uintptr_t to, uintptr_t from) {
  int32_t last = box->rank - 1;
  if (!has_runs(box)) return element_bytes;
  uint64_t all = 16 | to | from | (uint64_t)(box->sizes[last] * element_bytes);
  for (int32_t d = 0; d < last; d++)
    all |= (uint64_t)(box->to_strides[d] * element_bytes) | (uint64_t)(box->from_strides[d] * element_bytes);
  return (int64_t)(all & -all);
}

cudaError_t walk_pieces(cudaStream_t stream, Box box, int64_t element_bytes, uintptr_t to, uintptr_t from) {
  int64_t piece = piece_of(&box, element_bytes, to, from), elements = piece / element_bytes, count = 1;
  box.sizes[box.rank - 1] /= elements;
  for (int32_t d = 0; d < box.rank; d++) {
    count *= box.sizes[d];
    if (d == box.rank - 1) break;
    box.to_strides[d] /= elements;
    box.from_strides[d] /= elements;
  }
  switch (piece) {
  case 1: return walk_launch<uint8_t>(stream, &box, to, from, count);
  case 2: return walk_launch<uint16_t>(stream, &box, to, from, count);
  case 4: return walk_launch<uint32_t>(stream, &box, to, from, count);
  case 8: return walk_launch<uint64_t>(stream, &box, to, from, count);
  default: return walk_launch<uint4>(stream, &box, to, from, count);
  }
}

/* ---- Tiles that are turned ------------------------------------------------------------------------------------ */

constexpr int tile_side = 64, tile_rows = 4, tile_threads = tile_side * tile_rows;
constexpr int64_t least_side = 16; /* below it, caches serve a walk better than half-empty tiles */

/* Columns are neighbours in `from`, rows are neighbours in `to`; the box has the other dimensions. */
struct Turn {
  int64_t rows, columns, row_stride /* in from */, column_stride /* in to */, tiles;
  Divisor row_tiles, column_tiles;
  Sides others;
};

template <typename T>
__global__ void __launch_bounds__(tile_threads)
    turn_tiles(const __grid_constant__ Turn turn, T *__restrict__ to, const T *__restrict__ from) {
  /* Neighbours in a column are an odd number of banks apart. */
  constexpr int padding = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1;
  __shared__ T tile[tile_side][tile_side + padding];
  int x = (int)threadIdx.x % tile_side, y = (int)threadIdx.x / tile_side;
  for (int64_t index = blockIdx.x; index < turn.tiles; index += gridDim.x) {
    int64_t row, column, to_start = 0, from_start = 0;
    int64_t other = divide(divide(index, turn.column_tiles, &column), turn.row_tiles, &row);
    if (turn.others.rank > 0) find_places(turn.others, other, &to_start, &from_start);
    row *= tile_side;
    column *= tile_side;
    const T *source = from + from_start + row * turn.row_stride + column;
    T *target = to + to_start + column * turn.column_stride + row;
    bool inside = column + x < turn.columns;
#pragma unroll
    for (int r = 0; r < tile_side; r += tile_rows) {
      if (inside && row + r + y < turn.rows) tile[r + y][x] = source[(r + y) * turn.row_stride + x];
    }
    __syncthreads();
    inside = row + x < turn.rows;
#pragma unroll
    for (int c = 0; c < tile_side; c += tile_rows) {
      if (inside && column + c + y < turn.columns) target[(c + y) * turn.column_stride + x] = tile[x][c + y];
    }
    __syncthreads();
  }
}

/* False where the box is not transposed, or is too narrow. */
bool find_turn(const Box *box, Turn *turn) {
  int32_t last = box->rank - 1, columns = -1;
  for (int32_t d = 0; d < last; d++)
    if (box->from_strides[d] == 1) columns = d;
  if (columns < 0 || box->to_strides[last] != 1 || box->from_strides[last] <= 1) return false;
  if (box->sizes[last] < least_side || box->sizes[columns] < least_side) return false;
  *turn = {};
  turn->rows = box->sizes[last];
  turn->row_stride = box->from_strides[last];
  turn->columns = box->sizes[columns];
  turn->column_stride = box->to_strides[columns];
  turn->row_tiles = divisor_of((turn->rows + tile_side - 1) / tile_side);
  turn->column_tiles = divisor_of((turn->columns + tile_side - 1) / tile_side);
  turn->tiles = turn->row_tiles.divisor * turn->column_tiles.divisor;
  Box others = {};
  for (int32_t d = 0; d < last; d++) {
    if (d == columns) continue;
    box_add(&others, box->sizes[d], box->to_strides[d], box->from_strides[d]);
    turn->tiles *= box->sizes[d];
  }
  turn->others = sides_of(&others);
  return true;
}

template <typename T>
cudaError_t turn_launch(cudaStream_t stream, const Turn *turn, uintptr_t to, uintptr_t from) {
  return cuda_launch(turn_tiles<T>, grid_for(turn->tiles, 1), tile_threads, 0, stream, *turn, (T *)to,
                     (const T *)from);
}

} // namespace

cudaError_t cuda_box_copy(cudaStream_t stream, const Box *box, int64_t element_bytes, uintptr_t to,
                          uintptr_t from) {
  Box own = *box;
  if (own.rank == 0) own = Box{1, {1}, {1}, {1}}; /* one element */
  if (own.rank == 1 && has_runs(&own))
    return cudaMemcpyAsync((void *)to, (const void *)from, (size_t)(own.sizes[0] * element_bytes),
                           cudaMemcpyDeviceToDevice, stream);
  Turn turn;
  if (!find_turn(&own, &turn)) return walk_pieces(stream, own, element_bytes, to, from);
  switch (element_bytes) {
  case 1: return turn_launch<uint8_t>(stream, &turn, to, from);
  case 2: return turn_launch<uint16_t>(stream, &turn, to, from);
  case 4: return turn_launch<uint32_t>(stream, &turn, to, from);
  default: return turn_launch<uint64_t>(stream, &turn, to, from);
  }
}

Box cuda_box_of_layouts(const Tensor *tensor, LayoutId from_layout, LayoutId to_layout) {
  CudaChannels from = cuda_channels(from_layout, tensor), to = cuda_channels(to_layout, tensor);
  int64_t sample = to.channels * to.spatial;
  Box box = {};
  box_add(&box, to.n, sample, sample);
  if (to_layout == LAYOUT_PLAIN) box_add(&box, to.channels, to.channel_stride, from.channel_stride);
  box_add(&box, to.spatial, to.spatial_stride, from.spatial_stride);
  if (to_layout != LAYOUT_PLAIN) box_add(&box, to.channels, to.channel_stride, from.channel_stride);
  return box;
}
