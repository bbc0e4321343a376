/* attention_backward: once for blocks of queries, once for blocks of keys; see attention.cuh. */
#include "kernels/cuda/attention.cuh"

extern "C" {
extern const CudaOp cuda_op_attention_backward;
}

namespace {

constexpr int delta_threads = 256, delta_lanes = 8;

/* Eight lanes a row of dy and y. */
template <typename T> __global__ void __launch_bounds__(delta_threads) attention_delta(Attention<T> it) {
  constexpr int each = pack_width<T>;
  int64_t row = global_index() / delta_lanes;
  bool valid = row < it.batch * it.length * it.heads;
  float sum = 0.0F;
  for (int column = (int)threadIdx.x % delta_lanes * each; valid && column < it.size;
       column += delta_lanes * each) {
    const T *dy = it.dy + row * it.size + column, *y = it.y + row * it.size + column;
    if (it.packs) {
      Pack<T, each> a = *reinterpret_cast<const Pack<T, each> *>(dy);
      Pack<T, each> b = *reinterpret_cast<const Pack<T, each> *>(y);
#pragma unroll
      for (int j = 0; j < each; j++)
        sum = fmaf(to_float(a.at[j]), to_float(b.at[j]), sum);
    } else {
      for (int j = 0; j < each && column + j < it.size; j++)
        sum = fmaf(to_float(dy[j]), to_float(y[j]), sum);
    }
  }
#pragma unroll
  for (int distance = delta_lanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(whole_warp, sum, distance);
  if (!valid || threadIdx.x % delta_lanes != 0) return;
  int64_t token = row / it.heads;
  Head head = {token / it.length, (int)(row % it.heads), 0};
  it.delta[lse_at(it, head, (int)(token % it.length))] = sum;
}

/* Writes a warp's rows, from `first` on, of a head's dq, dk or dv. */
template <typename Kind, int padded>
__device__ inline void write_gradient(const AttentionOf<Kind> &it,
                                      typename Fragments<Kind>::C (&from)[128 / padded][padded / 16],
                                      float *scratch, float factor, Head head, Part part, int first) {
  using T = typename Memory<Kind>::Type;
  using S = Sizes<T, padded>;
#pragma unroll
  for (int n = 0; n < S::wide; n++) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < S::tall; m++)
      Fragments<Kind>::store(scratch + 16 * m * S::result_pitch, from[m][n], S::result_pitch);
    __syncwarp();
    write_rows<T, S::rows>(it.out + qkv_at(it, head, part, first), qkv_stride(it), scratch, S::result_pitch,
                           factor, it.length - first, 16 * n, it.size, it.packs);
  }
}

/* A key's mask, or a query's shift and delta. Queries that are not there have no probabilities. */
template <typename T, bool key>
__device__ inline float2 stats_of(const Attention<T> &it, Head head, int row) {
  if constexpr (key) return float2{mask_of(it, head, row), 0.0F};
  if (row >= it.length) return float2{INFINITY, 0.0F};
  return float2{shift_of<T>(it.lse[lse_at(it, head, row)]), it.delta[lse_at(it, head, row)]};
}

/* The block's rows are keys, with their values, or queries, with their dy; tiles of the others pass by. For
 * both scores are rows times others, and gradients of probabilities are values of the rows times those of the
 * others.
 */
template <typename Kind, int padded, bool of_keys>
__device__ inline void differentiate(const AttentionOf<Kind> &it) {
  using T = typename Memory<Kind>::Type;
  using S = Sizes<T, padded>;
  using F = Fragments<Kind>;
  T *rows = shared_memory<T>(), *row_values = rows + S::block_rows * S::pitch;
  T *tiles = row_values + S::block_rows * S::pitch; /* others and their values, of each stage */
  constexpr int tile = 2 * S::others * S::pitch;
  T *pairs = tiles + S::stages * tile;
  float2 *tile_stats = reinterpret_cast<float2 *>(pairs + S::warps * 2 * S::pair_elements);
  float2 *all_row_stats = tile_stats + 2 * S::others;
  uint16_t *all_kept = reinterpret_cast<uint16_t *>(all_row_stats + S::block_rows);
  int warp = (int)threadIdx.x / warp_size, lane = (int)threadIdx.x % warp_size;
  T *p = pairs + warp * 2 * S::pair_elements, *ds = p + S::pair_elements;
  float *scratch = reinterpret_cast<float *>(p);
  const float2 *row_stats = all_row_stats + warp * S::rows;
  uint16_t *kept = all_kept + warp * S::kept_words;
  Head head = head_of_block(it, S::block_rows);
  int first = head.first + warp * S::rows;
  constexpr Part row_part = of_keys ? KEY : QUERY;

  const T *q = it.qkv + qkv_at(it, head, QUERY, 0), *k = it.qkv + qkv_at(it, head, KEY, 0);
  const T *v = it.qkv + qkv_at(it, head, VALUE, 0), *dy = it.dy + y_at(it, head, 0);
  const T *of_rows = of_keys ? k : q, *of_row_values = of_keys ? v : dy;
  const T *of_others = of_keys ? q : k, *of_other_values = of_keys ? dy : v;
  int stride = qkv_stride(it), row_value_stride = of_keys ? stride : y_stride(it);
  int other_value_stride = of_keys ? y_stride(it) : stride;
  auto read_tile = [&](T *to, int other) {
    read_rows<T, S::others, padded>(to, of_others + (int64_t)other * stride, stride, it.length - other,
                                    it.size, it.packs);
    read_rows<T, S::others, padded>(to + S::others * S::pitch,
                                    of_other_values + (int64_t)other * other_value_stride, other_value_stride,
                                    it.length - other, it.size, it.packs);
  };
  read_rows<T, S::block_rows, padded>(rows, of_rows + (int64_t)head.first * stride, stride,
                                      it.length - head.first, it.size, it.packs);
  read_rows<T, S::block_rows, padded>(row_values, of_row_values + (int64_t)head.first * row_value_stride,
                                      row_value_stride, it.length - head.first, it.size, it.packs);
  read_tile(tiles, 0);
  for (int i = (int)threadIdx.x; i < S::block_rows; i += S::threads)
    all_row_stats[i] = stats_of<T, of_keys>(it, head, head.first + i);
  bool has_stats = threadIdx.x < S::others; /* of a tile's rows, one */
  if (has_stats) tile_stats[threadIdx.x] = stats_of<T, !of_keys>(it, head, (int)threadIdx.x);
  rows += warp * S::rows * S::pitch;
  row_values += warp * S::rows * S::pitch;
  /* In shared memory where addresses made of them once would take more registers than there are. */
  Places *own_places = reinterpret_cast<Places *>(all_kept + S::warps * S::kept_words) + threadIdx.x;
  Places places = find_places<Kind>(scratch, S::result_pitch);
  *own_places = places;

  /* Of rows, and of row_values where these are a key's. */
  typename F::C gradient[S::tall][S::wide], value_gradient[of_keys ? S::tall : 1][of_keys ? S::wide : 1];
#pragma unroll
  for (int m = 0; m < S::tall; m++)
#pragma unroll
    for (int n = 0; n < S::wide; n++) {
      F::clear(gradient[m][n]);
      if constexpr (of_keys) F::clear(value_gradient[m][n]);
    }

  for (int other = 0, stage = 0; other < it.length; other += S::others, stage ^= 1) {
    arrive();
    const T *others = tiles + stage % S::stages * tile, *other_values = others + S::others * S::pitch;
    const float2 *other_stats = tile_stats + stage * S::others;
    bool more = other + S::others < it.length;
    float2 next_stats = {0.0F, 0.0F};
    if (more && S::stages == 2) read_tile(tiles + (stage ^ 1) * tile, other + S::others);
    if (more && has_stats) next_stats = stats_of<T, !of_keys>(it, head, other + S::others + (int)threadIdx.x);
    if (it.drops) {
      /* 16 keys of a query each: [query], or [key / 16][query]. */
      constexpr int queries = of_keys ? S::others : S::rows, groups = of_keys ? S::tall : 1;
      Draws draws = draws_of(it, head);
      int first_query = of_keys ? other : first, first_key = of_keys ? first : other;
      if (lane < queries * groups) {
        uint64_t element =
            element_of(it, draws, first_query + lane % queries, first_key + lane / queries * 16);
        kept[lane] = (uint16_t)draw_16(draws.key, draws.sample, element, it.drop_limit);
      }
    }
    typename F::C s[S::tall], dp[S::tall];
#pragma unroll
    for (int m = 0; m < S::tall; m++) {
      F::clear(s[m]);
      F::clear(dp[m]);
    }
#pragma unroll of_keys ? 1 : S::turns
    for (int step = 0; step < padded; step += F::step) {
      typename F::A a;
      typename F::Transposed b;
      F::load_transposed(b, others + step, S::pitch);
#pragma unroll
      for (int m = 0; m < S::tall; m++) {
        F::load(a, rows + 16 * m * S::pitch + step, S::pitch);
        F::multiply(s[m], a, b);
      }
      F::load_transposed(b, other_values + step, S::pitch);
#pragma unroll
      for (int m = 0; m < S::tall; m++) {
        F::load(a, row_values + 16 * m * S::pitch + step, S::pitch);
        F::multiply(dp[m], a, b);
      }
    }
    __syncwarp(); /* the tile before has been read */
    if (sizeof(T) == 4 || padded > 64) places = *own_places;
#pragma unroll
    for (int i = 0; i < held; i++) {
      int row = places.row(i), column = places.column(i);
      float2 of_other = other_stats[column];
#pragma unroll
      for (int m = 0; m < S::tall; m++) {
        float2 of_row = row_stats[16 * m + row], of_key = of_keys ? of_row : of_other;
        float2 of_query = of_keys ? of_other : of_row;
        float keep = it.keep_scale;
        if (it.drops) {
          uint32_t bits =
              of_keys ? (uint32_t)kept[16 * m + column] >> row : (uint32_t)kept[16 * m + row] >> column;
          if (!(bits & 1U)) keep = 0.0F;
        }
        float probability = exponential<T>(fmaf(s[m].x[i], it.scale, of_key.x), of_query.x);
        int at = (16 * m + row) * S::pair_pitch + column;
        if constexpr (of_keys) p[at] = from_float<T>(keep * probability);
        ds[at] = from_float<T>(probability * fmaf(keep, dp[m].x[i], -of_query.y));
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int step = 0; step < 16; step += F::step) {
      typename F::A a[S::tall];
      typename F::B b;
      if constexpr (of_keys) {
#pragma unroll
        for (int m = 0; m < S::tall; m++)
          F::load(a[m], p + 16 * m * S::pair_pitch + step, S::pair_pitch);
#pragma unroll
        for (int w = 0; w < S::wide; w++) {
          F::load(b, other_values + step * S::pitch + 16 * w, S::pitch);
#pragma unroll
          for (int m = 0; m < S::tall; m++)
            F::multiply(value_gradient[m][w], a[m], b);
        }
      }
#pragma unroll
      for (int m = 0; m < S::tall; m++)
        F::load(a[m], ds + 16 * m * S::pair_pitch + step, S::pair_pitch);
#pragma unroll
      for (int w = 0; w < S::wide; w++) {
        F::load(b, others + step * S::pitch + 16 * w, S::pitch);
#pragma unroll
        for (int m = 0; m < S::tall; m++)
          F::multiply(gradient[m][w], a[m], b);
      }
    }
    if (more && has_stats) tile_stats[(stage ^ 1) * S::others + (int)threadIdx.x] = next_stats;
    if (more && S::stages == 1) {
      __syncthreads();
      read_tile(tiles, other + S::others);
    }
  }
  write_gradient<Kind, padded>(it, gradient, scratch, it.scale, head, row_part, first);
  if constexpr (of_keys) write_gradient<Kind, padded>(it, value_gradient, scratch, 1.0F, head, VALUE, first);
}

template <typename Kind, int padded, bool of_keys>
__global__ void __launch_bounds__(SizesOf<Kind, padded>::threads,
                                  resident_blocks(SizesOf<Kind, padded>::backward_bytes,
                                                  of_keys || SizesOf<Kind, padded>::warps < 4 ? 2 : 3))
    attention_backward(AttentionOf<Kind> it) {
  if constexpr (has_fragments<Kind>) differentiate<Kind, padded, of_keys>(it);
}

Status launch_backward(const Kernel *kernel, const CudaLaunch *launch) {
  cudaError_t error = cudaSuccess;
  by_kind(qkv_of(kernel->node), kernel->device->tf32, [&](auto kind, auto padded) {
    using Kind = decltype(kind);
    using T = typename Memory<Kind>::Type;
    constexpr int columns = decltype(padded)::value;
    using S = Sizes<T, columns>;
    Attention<T> it = attention_of<T>(kernel, launch);
    dim3 blocks = blocks_of(it, S::block_rows);
    unsigned rows = grid_for(it.batch * it.length * it.heads * delta_lanes, delta_threads, 1, INT32_MAX);
    error = cuda_launch(attention_delta<T>, dim3(rows), dim3(delta_threads), 0, launch->stream, it);
    if (error != cudaSuccess) return;
    error = cuda_launch(attention_backward<Kind, columns, false>, blocks, dim3(S::threads), S::backward_bytes,
                        launch->stream, it);
    if (error != cudaSuccess) return;
    error = cuda_launch(attention_backward<Kind, columns, true>, blocks, dim3(S::threads), S::backward_bytes,
                        launch->stream, it);
  });
  return cuda_status(error, "attention_backward", kernel->node);
}

} // namespace

const CudaOp cuda_op_attention_backward = {
    .name = "attention_backward",
    .supports = attention_supports,
    .choose_layouts = cuda_choose_plain,
    .prepare = attention_prepare,
    .build = nullptr,
    .launch = launch_backward,
    .destroy = nullptr,
};
