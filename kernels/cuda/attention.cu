/* attention: a running maximum and sum of each query's exponentials; see attention.cuh. */
#include "kernels/cuda/attention.cuh"

extern "C" {
extern const CudaOp cuda_op_attention;
}

namespace {

template <typename Kind, int padded> __device__ inline void attend(const AttentionOf<Kind> &it) {
  using T = typename Memory<Kind>::Type;
  using S = Sizes<T, padded>;
  using F = Fragments<Kind>;
  constexpr int columns = S::keys / 16;                /* fragments of scores beside each other */
  constexpr int share = S::keys * S::rows / warp_size; /* scores of a lane: a row's, or half of them */
  T *queries = shared_memory<T>(), *keys = queries + S::block_rows * S::pitch,
    *values = keys + S::keys * S::pitch;
  float *all_scores = reinterpret_cast<float *>(values + S::keys * S::pitch);
  float *added = all_scores + S::block_rows * S::score_pitch, *all_factors = added + 2 * S::keys;
  int warp = (int)threadIdx.x / warp_size, lane = (int)threadIdx.x % warp_size;
  float *scores = all_scores + warp * S::rows * S::score_pitch, *factors = all_factors + warp * S::rows;
  T *p = reinterpret_cast<T *>(scores);
  Head head = head_of_block(it, S::block_rows);
  Draws draws = draws_of(it, head);
  int first = head.first + warp * S::rows;
  int row = lane % S::rows, from = lane / S::rows * share;

  read_rows<T, S::block_rows, padded>(queries, it.qkv + qkv_at(it, head, QUERY, head.first), qkv_stride(it),
                                      it.length - head.first, it.size, it.packs);
  queries += warp * S::rows * S::pitch;
  Places places = find_places<Kind>(scores, S::score_pitch);
  typename F::C results[S::tall][S::wide];
#pragma unroll
  for (int m = 0; m < S::tall; m++)
#pragma unroll
    for (int n = 0; n < S::wide; n++)
      F::clear(results[m][n]);
  float top = -INFINITY, sum = 0.0F; /* of the lane's row; the sum of its share */

  /* Values are on their way while scores are computed, the next keys from then on. */
  const T *all_keys = it.qkv + qkv_at(it, head, KEY, 0), *all_values = it.qkv + qkv_at(it, head, VALUE, 0);
  read_rows<T, S::keys, padded>(keys, all_keys, qkv_stride(it), it.length, it.size, it.packs);
  if (threadIdx.x < S::keys) added[threadIdx.x] = mask_of(it, head, (int)threadIdx.x);
  for (int key = 0; key < it.length; key += S::keys) {
    arrive();
    read_rows<T, S::keys, padded>(values, all_values + (int64_t)key * qkv_stride(it), qkv_stride(it),
                                  it.length - key, it.size, it.packs);
    bool more = key + S::keys < it.length;
    float next_added = 0.0F;
    if (more && threadIdx.x < S::keys) next_added = mask_of(it, head, key + S::keys + (int)threadIdx.x);

    /* Drawn while registers are free. */
    uint32_t kept = 0;
    if (it.drops) {
#pragma unroll
      for (int group = 0; group < share; group += 16)
        kept |= draw_16(draws.key, draws.sample, element_of(it, draws, first + row, key + from + group),
                        it.drop_limit)
                << group;
    }
    {
      typename F::C s[S::tall][columns];
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int n = 0; n < columns; n++)
          F::clear(s[m][n]);
#pragma unroll S::turns
      for (int step = 0; step < padded; step += F::step) {
        typename F::A a[S::tall];
        typename F::Transposed b;
#pragma unroll
        for (int m = 0; m < S::tall; m++)
          F::load(a[m], queries + 16 * m * S::pitch + step, S::pitch);
#pragma unroll
        for (int n = 0; n < columns; n++) {
          F::load_transposed(b, keys + 16 * n * S::pitch + step, S::pitch);
#pragma unroll
          for (int m = 0; m < S::tall; m++)
            F::multiply(s[m][n], a[m], b);
        }
      }
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int n = 0; n < columns; n++)
          F::store(scores + 16 * m * S::score_pitch + 16 * n, s[m][n], S::score_pitch);
    }
    arrive();
    if (more) {
      read_rows<T, S::keys, padded>(keys, all_keys + (int64_t)(key + S::keys) * qkv_stride(it),
                                    qkv_stride(it), it.length - key - S::keys, it.size, it.packs);
      if (threadIdx.x < S::keys) added[(key / S::keys + 1) % 2 * S::keys + (int)threadIdx.x] = next_added;
    }
    const float *added_now = added + key / S::keys % 2 * S::keys + from;

    float z[share], high = top;
#pragma unroll
    for (int j = 0; j < share; j += 4) {
      float4 s = *reinterpret_cast<const float4 *>(scores + row * S::score_pitch + from + j);
      float4 m = *reinterpret_cast<const float4 *>(added_now + j);
      z[j] = fmaf(s.x, it.scale, m.x), z[j + 1] = fmaf(s.y, it.scale, m.y);
      z[j + 2] = fmaf(s.z, it.scale, m.z), z[j + 3] = fmaf(s.w, it.scale, m.w);
    }
#pragma unroll
    for (int j = 0; j < share; j++)
      high = fmaxf(high, z[j]);
    if (S::rows < warp_size) high = fmaxf(high, __shfl_xor_sync(whole_warp, high, warp_size / 2));
    /* Keys that are all masked out leave no maximum to subtract. */
    float shift = shift_of<T>(high == -INFINITY ? 0.0F : high), factor = exponential<T>(top, shift);
    sum *= factor;
    top = high;
#pragma unroll
    for (int j = 0; j < share; j++) {
      z[j] = exponential<T>(z[j], shift);
      sum += z[j];
    }
    if (it.drops) {
#pragma unroll
      for (int j = 0; j < share; j++)
        if (!(kept >> j & 1U)) z[j] = 0.0F;
    }
#pragma unroll
    for (int j = 0; j < share; j += pack_width<T>) {
      Pack<T, pack_width<T>> pack;
#pragma unroll
      for (int i = 0; i < pack_width<T>; i++)
        pack.at[i] = from_float<T>(z[j + i]);
      T *to = p + row * S::p_pitch + (from + j) / 16 * S::p_group + j % 16;
      *reinterpret_cast<Pack<T, pack_width<T>> *>(to) = pack;
    }
    bool raised = __any_sync(whole_warp, factor != 1.0F);
    if (raised && lane < S::rows) factors[row] = factor;
    __syncwarp();
    if (raised) {
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int i = 0; i < held; i++) {
          float of_row = factors[16 * m + places.row(i)];
#pragma unroll
          for (int n = 0; n < S::wide; n++)
            results[m][n].x[i] *= of_row;
        }
    }

#pragma unroll S::turns
    for (int step = 0; step < S::keys; step += F::step) {
      typename F::A a[S::tall];
      typename F::B b;
#pragma unroll
      for (int m = 0; m < S::tall; m++)
        F::load(a[m], p + 16 * m * S::p_pitch + step / 16 * S::p_group + step % 16, S::p_pitch);
#pragma unroll
      for (int n = 0; n < S::wide; n++) {
        F::load(b, values + step * S::pitch + 16 * n, S::pitch);
#pragma unroll
        for (int m = 0; m < S::tall; m++)
          F::multiply(results[m][n], a[m], b);
      }
    }
  }

  if (S::rows < warp_size) sum += __shfl_xor_sync(whole_warp, sum, warp_size / 2);
  if (it.lse_out != nullptr && lane < S::rows && first + row < it.length)
    it.lse_out[lse_at(it, head, first + row)] = top + logf(sum);
  __syncwarp();
  if (lane < S::rows) factors[row] = it.keep_scale / sum;
#pragma unroll
  for (int n = 0; n < S::wide; n++) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < S::tall; m++) {
#pragma unroll
      for (int i = 0; i < held; i++)
        results[m][n].x[i] *= factors[16 * m + places.row(i)];
      F::store(scores + 16 * m * S::score_pitch, results[m][n], S::score_pitch);
    }
    __syncwarp();
    write_rows<T, S::rows>(it.out + y_at(it, head, first), y_stride(it), scores, S::score_pitch, 1.0F,
                           it.length - first, 16 * n, it.size, it.packs);
  }
}

template <typename Kind, int padded>
__global__ void __launch_bounds__(SizesOf<Kind, padded>::threads,
                                  resident_blocks(SizesOf<Kind, padded>::forward_bytes,
                                                  SizesOf<Kind, padded>::blocks))
    attention_forward(AttentionOf<Kind> it) {
  if constexpr (has_fragments<Kind>) attend<Kind, padded>(it);
}

Status launch_forward(const Kernel *kernel, const CudaLaunch *launch) {
  cudaError_t error = cudaSuccess;
  by_kind(qkv_of(kernel->node), kernel->device->tf32, [&](auto kind, auto padded) {
    using Kind = decltype(kind);
    using T = typename Memory<Kind>::Type;
    constexpr int columns = decltype(padded)::value;
    using S = Sizes<T, columns>;
    Attention<T> it = attention_of<T>(kernel, launch);
    error = cuda_launch(attention_forward<Kind, columns>, blocks_of(it, S::block_rows), dim3(S::threads),
                        S::forward_bytes, launch->stream, it);
  });
  return cuda_status(error, "attention", kernel->node);
}

} // namespace

const CudaOp cuda_op_attention = {
    .name = "attention",
    .supports = attention_supports,
    .choose_layouts = cuda_choose_plain,
    .prepare = attention_prepare,
    .build = nullptr,
    .launch = launch_forward,
    .destroy = nullptr,
};
