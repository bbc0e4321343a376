/* attention and attention_backward: every head in tiles of queries and keys, so that nothing of the size of
 * all its scores is kept. Forward keeps a running maximum and sum of each query's exponentials and rescales
 * what it has when the maximum rises; backward repeats the probabilities from the logarithm of that sum, once
 * for blocks of queries (dq) and once for blocks of keys (dk, dv), so that no two blocks add to the same
 * place (Dao et al., FlashAttention, arXiv:2205.14135; Dao, FlashAttention-2, arXiv:2307.08691).
 *
 * A warp has rows of its own, 32 or in wider heads 16, and what it makes of them, scores, probabilities and
 * their gradients, goes in registers from one product to the next. Products are on tensor cores for bf16 and
 * f16, with probabilities and their gradients rounded to that type, and in FMA for f32, or in TF32 where the
 * device is asked for it. Heads are padded with zeros in shared memory to 64 or 128 columns.
 *
 * Whether dropout keeps a probability depends on its place among all probabilities of the sample, (head,
 * query, key), as if they were a tensor: see random_block. Every pass draws again. */
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel.cuh"

#include <cmath>

#ifdef VRAMLAB_HOST_MACHINE
#include "pipeline.h"
#else
#include <cuda_pipeline_primitives.h>
#endif

extern "C" {
extern const CudaOp cuda_op_attention, cuda_op_attention_backward;
}

namespace {

/* ---- Products ---------------------------------------------------------------------------------------------- */

/* Tiles c are 16 rows by 8 columns, as in instructions.cuh, for every kind of product. a is 16 rows by
 * `step`; a pair of b is `step` by 16, either of 16 rows of shared memory, which are its columns, or of
 * `step` rows. from_tiles makes an a of the `step` columns that one or two tiles have; such an a goes with a
 * b of rows, since a kind may have its own order of k there. Strides are in elements; addresses are aligned
 * to 16 bytes.
 */
template <typename T> struct Products {
  static constexpr int step = 16;
  struct A {
    uint32_t x[4];
  };
  struct B {
    uint32_t x[2][2];
  };
  static __device__ inline int lane() { return (int)threadIdx.x % warp_size; }
  static __device__ inline void load(A &to, const T *from, int stride) {
    load_matrices(to.x, from + lane() % 16 * stride + lane() / 16 * 8);
  }
  static __device__ inline void set(B &to, const uint32_t (&x)[4]) {
    to.x[0][0] = x[0], to.x[0][1] = x[1], to.x[1][0] = x[2], to.x[1][1] = x[3];
  }
  static __device__ inline void load_columns(B &to, const T *from, int stride) {
    uint32_t x[4];
    load_matrices(x, from + (lane() / 16 * 8 + lane() % 8) * stride + lane() / 8 % 2 * 8);
    set(to, x);
  }
  static __device__ inline void load_rows(B &to, const T *from, int stride) {
    uint32_t x[4];
    load_transposed(x, from + lane() % 16 * stride + lane() / 16 * 8);
    set(to, x);
  }
  static __device__ inline A from_tiles(const float (*c)[4]) {
    return A{{pack_pair<T>(c[0][0], c[0][1]), pack_pair<T>(c[0][2], c[0][3]), pack_pair<T>(c[1][0], c[1][1]),
              pack_pair<T>(c[1][2], c[1][3])}};
  }
  static __device__ inline void multiply(float (&c)[4], const A &a, const B &b, int side) {
    multiply_add<T>(c, a.x, b.x[side]);
  }
};

/* f32 whose products are of TF32. In from_tiles columns 2t and 2t + 1 are k = t and t + 4. */
struct Tf32 {};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <> struct Products<Tf32> {
  static constexpr int step = 8;
  struct A {
    uint32_t x[4];
  };
  struct B {
    uint32_t x[2][2];
  };
  static __device__ inline int lane() { return (int)threadIdx.x % warp_size; }
  static __device__ inline uint32_t rounded(uint32_t bits) { return to_tf32(__uint_as_float(bits)); }
  static __device__ inline void load(A &to, const float *from, int stride) {
    load_matrices(to.x, from + lane() % 16 * stride + lane() / 16 * 4);
#pragma unroll
    for (int i = 0; i < 4; i++)
      to.x[i] = rounded(to.x[i]);
  }
  static __device__ inline void load_columns(B &to, const float *from, int stride) {
    uint32_t x[4];
    load_matrices(x, from + (lane() / 16 * 8 + lane() % 8) * stride + lane() / 8 % 2 * 4);
#pragma unroll
    for (int i = 0; i < 4; i++)
      to.x[i / 2][i % 2] = rounded(x[i]);
  }
  static __device__ inline void load_rows(B &to, const float *from, int stride) {
    from += lane() % 4 * 2 * stride + lane() / 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
      to.x[i / 2][i % 2] = to_tf32(from[i % 2 * stride + i / 2 * 8]);
  }
  static __device__ inline A from_tiles(const float (*c)[4]) {
    return A{{to_tf32(c[0][0]), to_tf32(c[0][2]), to_tf32(c[0][1]), to_tf32(c[0][3])}};
  }
  static __device__ inline void multiply(float (&c)[4], const A &a, const B &b, int side) {
    multiply_add_tf32(c, a.x, b.x[side]);
  }
};
#endif

/* f32 in FMA: a lane has whole rows of a and columns of b. */
template <> struct Products<float> {
  static constexpr int step = 8;
  struct A {
    float x[2][8]; /* [row][k] */
  };
  struct B {
    float x[2][8][2]; /* [side][k][column] */
  };
  static __device__ inline int lane() { return (int)threadIdx.x % warp_size; }
  static __device__ inline void read_8(float (&to)[8], const float *from) {
    float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
  static __device__ inline void load(A &to, const float *from, int stride) {
    read_8(to.x[0], from + lane() / 4 * stride);
    read_8(to.x[1], from + (lane() / 4 + 8) * stride);
  }
  static __device__ inline void load_columns(B &to, const float *from, int stride) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float column[8];
      read_8(column, from + (i / 2 * 8 + lane() % 4 * 2 + i % 2) * stride);
#pragma unroll
      for (int k = 0; k < 8; k++)
        to.x[i / 2][k][i % 2] = column[k];
    }
  }
  static __device__ inline void load_rows(B &to, const float *from, int stride) {
#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
      for (int side = 0; side < 2; side++) {
        float2 pair = *reinterpret_cast<const float2 *>(from + k * stride + side * 8 + lane() % 4 * 2);
        to.x[side][k][0] = pair.x, to.x[side][k][1] = pair.y;
      }
  }
  static __device__ inline A from_tiles(const float (*c)[4]) {
    A to;
#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
      for (int row = 0; row < 2; row++)
        to.x[row][k] = __shfl_sync(whole_warp, c[0][2 * row + k % 2], lane() / 4 * 4 + k / 2);
    return to;
  }
  static __device__ inline void multiply(float (&c)[4], const A &a, const B &b, int side) {
#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        c[i] = fmaf(a.x[i / 2][k], b.x[side][k][i % 2], c[i]);
  }
};

/* What memory holds for products of a kind. */
template <typename Kind> struct Memory { using Type = Kind; };
template <> struct Memory<Tf32> { using Type = float; };

/* Whether the architecture being compiled for has products of a kind: Turing has none of bf16 and TF32. */
template <typename Kind> constexpr bool has_products = true;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <> constexpr bool has_products<bf16> = false;
template <> constexpr bool has_products<Tf32> = false;
#endif

/* ---- Sizes ------------------------------------------------------------------------------------------------- */

/* Of a block's work, for heads of up to `padded` columns. */
template <typename T, int padded> struct Sizes {
  static constexpr int warps = sizeof(T) == 4 ? 2 : 4, threads = warps * warp_size;
  static constexpr int tall = 128 / padded; /* tiles one below the other that are a warp's rows */
  static constexpr int wide = padded / 8;   /* tiles beside each other that are a head's columns */
  static constexpr int rows = 16 * tall;    /* of a warp */
  static constexpr int block_rows = warps * rows;
  static constexpr int skew = 16 / (int)sizeof(T); /* keeps rows apart in the banks of shared memory */
  static constexpr int pitch = padded + skew;
  static constexpr int stages = sizeof(T) == 4 ? 1 : 2; /* tiles of the other side at once */
  static constexpr int turns = sizeof(T) == 4 ? 1 : 2;  /* of sums over columns, at once: registers end */
  static constexpr int keys = 32, others = 16;          /* rows of these tiles, forward and backward */
  static_assert(8 * wide == padded && 2 * keys <= threads && others <= threads, "a thread has one's mask");
  static constexpr size_t forward_bytes =
      sizeof(T) * pitch * (block_rows + stages * 2 * keys) + sizeof(float) * 2 * keys;
  static constexpr size_t backward_bytes =
      sizeof(T) * pitch * 2 * (block_rows + stages * others) + sizeof(float2) * 2 * others;
};
template <typename Kind, int padded> using SizesOf = Sizes<typename Memory<Kind>::Type, padded>;

/* ---- What kernels are given -------------------------------------------------------------------------------- */

template <typename T> struct Attention {
  const T *qkv;
  const float *mask; /* NULL: none */
  T *out;            /* y or dqkv */
  float *lse_out;    /* NULL: not wanted */
  /* Backward. delta is the sum of dy y over a head, for every (sample, head, query) like lse. */
  const T *dy, *y;
  const float *lse;
  float *delta;
  int64_t batch;
  int length, heads, size;
  float scale;
  bool packs; /* rows can be read and written 16 bytes at a time */
  bool drops;
  uint32_t drop_limit; /* a word above it is kept */
  float keep_scale;    /* 1 without dropout */
  uint64_t scope_hash;
  const CudaStep *step;
};

template <typename Kind> using AttentionOf = Attention<typename Memory<Kind>::Type>;

/* A head, and the first row of a block in it. */
struct Head {
  int64_t sample;
  int head, first;
};
template <typename T> __device__ inline Head head_of_block(const Attention<T> &it, int block_rows) {
  unsigned blocks = (unsigned)(it.length + block_rows - 1) / (unsigned)block_rows,
           number = blockIdx.x / blocks;
  return Head{number / (unsigned)it.heads, (int)(number % (unsigned)it.heads),
              (int)(blockIdx.x % blocks) * block_rows};
}

enum Part { QUERY = 0, KEY, VALUE };

template <typename T> __device__ inline int qkv_stride(const Attention<T> &it) {
  return 3 * it.heads * it.size;
}
template <typename T>
__device__ inline int64_t qkv_at(const Attention<T> &it, Head head, Part part, int row) {
  return (head.sample * it.length + row) * qkv_stride(it) + (part * it.heads + head.head) * it.size;
}
template <typename T> __device__ inline int y_stride(const Attention<T> &it) { return it.heads * it.size; }
template <typename T> __device__ inline int64_t y_at(const Attention<T> &it, Head head, int row) {
  return (head.sample * it.length + row) * y_stride(it) + head.head * it.size;
}
template <typename T> __device__ inline int64_t lse_at(const Attention<T> &it, Head head, int row) {
  return (head.sample * it.heads + head.head) * it.length + row;
}
template <typename T> __device__ inline float mask_of(const Attention<T> &it, Head head, int key) {
  if (key >= it.length) return -INFINITY;
  return it.mask == nullptr ? 0.0F : it.mask[head.sample * it.length + key];
}

/* ---- Moving rows ------------------------------------------------------------------------------------------- */

/* The block begins to read `rows` rows into shared memory; zeros take the place of those from `valid` on and
 * of columns past the head's size. They are there after arrive. */
template <typename T, int rows, int padded>
__device__ inline void read_rows(T *to, const T *from, int stride, int valid, int size, bool packs) {
  constexpr int each = pack_width<T>, across = padded / each, pitch = Sizes<T, padded>::pitch;
  constexpr int at_once = Sizes<T, padded>::threads / across; /* rows */
  static_assert(rows % at_once == 0, "every thread has as many");
  int row = (int)threadIdx.x / across, column = (int)threadIdx.x % across * each;
  from += (int64_t)row * stride + column;
  to += row * pitch + column;
  if (packs) {
#pragma unroll
    for (int turn = 0; turn < rows / at_once; turn++) {
      T *at = to + turn * at_once * pitch;
      if (row + turn * at_once < valid && column < size)
        __pipeline_memcpy_async(at, from + (int64_t)turn * at_once * stride, 16);
      else
        *reinterpret_cast<float4 *>(at) = float4{0.0F, 0.0F, 0.0F, 0.0F};
    }
    return;
  }
#pragma unroll 1
  for (int turn = 0; turn < rows / at_once; turn++)
#pragma unroll 1
    for (int j = 0; j < each; j++) {
      bool there = row + turn * at_once < valid && column + j < size;
      to[turn * at_once * pitch + j] =
          there ? from[(int64_t)turn * at_once * stride + j] : from_float<T>(0.0F);
    }
}

/* The block has what it began to read, and is done with what it read before. */
__device__ inline void arrive() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
}

/* A warp writes its rows, times a factor for each of the lane's: through shared memory of its own, where
 * another product's rows were. */
template <typename T, int padded>
__device__ inline void write_rows(T *to, int stride, T *own, const float (*from)[padded / 8][4],
                                  const float (*factors)[2], int valid, int size, bool packs) {
  using S = Sizes<T, padded>;
  constexpr int each = pack_width<T>, across = padded / each, at_once = warp_size / across;
  int lane = (int)threadIdx.x % warp_size;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < S::tall; m++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      T *at = own + (16 * m + lane / 4 + i / 2 * 8) * S::pitch + lane % 4 * 2 + i % 2;
#pragma unroll
      for (int n = 0; n < S::wide; n++)
        at[8 * n] = from_float<T>(from[m][n][i] * factors[m][i / 2]);
    }
  __syncwarp();
  int row = lane / across, column = lane % across * each;
  own += row * S::pitch + column;
  to += (int64_t)row * stride + column;
#pragma unroll
  for (int turn = 0; turn < S::rows / at_once; turn++) {
    if (row + turn * at_once >= valid || column >= size) continue;
    const T *values = own + turn * at_once * S::pitch;
    T *at = to + (int64_t)turn * at_once * stride;
    if (packs) {
      *reinterpret_cast<float4 *>(at) = *reinterpret_cast<const float4 *>(values);
    } else {
#pragma unroll 1
      for (int j = 0; j < each && column + j < size; j++)
        at[j] = values[j];
    }
  }
}

/* ---- Probabilities ----------------------------------------------------------------------------------------- */

/* exp(score - shift) in two steps, the first for all scores of a query. In 16-bit types the quotient by ln 2
 * is part of the difference; f32 has no room for its error. */
template <typename T> __device__ inline float shift_of(float value) {
  constexpr float log2_e = 1.44269504F;
  return sizeof(T) == 4 ? value : value * log2_e;
}
template <typename T> __device__ inline float exponential(float score, float shift) {
  constexpr float log2_e = 1.44269504F;
  return sizeof(T) == 4 ? expf(score - shift) : exp2_or_zero(fmaf(score, log2_e, -shift));
}

/* Bits of the four elements of a block: whether dropout keeps them. */
__device__ inline uint32_t draw_4(uint64_t key, uint64_t sample, uint64_t block, uint32_t limit) {
  uint4 words = random_block(key, sample, block);
  return (words.x > limit ? 1U : 0U) | (words.y > limit ? 2U : 0U) | (words.z > limit ? 4U : 0U) |
         (words.w > limit ? 8U : 0U);
}
/* Bits of 16 elements from `first` on: whether dropout keeps them. */
__device__ inline uint32_t draw_16(uint64_t key, uint64_t sample, uint64_t first, uint32_t limit) {
  int before = (int)(first % 4);
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    bits |= draw_4(key, sample, first / 4 + (uint64_t)i, limit) << (4 * i);
  if (before) bits |= draw_4(key, sample, first / 4 + 4, limit) << 16;
  return bits >> before & 0xFFFFU;
}

/* What a block's draws depend on. */
struct Draws {
  uint64_t key, sample, head; /* head: the first element of the head's probabilities */
};
template <typename T> __device__ inline Draws draws_of(const Attention<T> &it, Head head) {
  if (!it.drops) return Draws{0, 0, 0};
  return Draws{random_key(it.step, it.scope_hash), (uint64_t)(it.step->first_sample + head.sample),
               (uint64_t)head.head * (unsigned)it.length * (unsigned)it.length};
}

template <typename T>
__device__ inline uint64_t element_of(const Attention<T> &it, const Draws &draws, int query, int key) {
  return draws.head + (uint64_t)query * (unsigned)it.length + (unsigned)key;
}

/* ---- Forward ----------------------------------------------------------------------------------------------- */

template <typename Kind, int padded> __device__ inline void attend(const AttentionOf<Kind> &it) {
  using T = typename Memory<Kind>::Type;
  using S = Sizes<T, padded>;
  using P = Products<Kind>;
  constexpr int columns = S::keys / 8, steps = padded / P::step, tile = 2 * S::keys * S::pitch;
  T *queries = shared_memory<T>(), *tiles = queries + S::block_rows * S::pitch;
  float *added = reinterpret_cast<float *>(tiles + S::stages * tile);
  int warp = (int)threadIdx.x / warp_size, lane = (int)threadIdx.x % warp_size, g = lane / 4, t = lane % 4;
  Head head = head_of_block(it, S::block_rows);
  Draws draws = draws_of(it, head);
  int first = head.first + warp * S::rows, stride = qkv_stride(it);
  const T *all_keys = it.qkv + qkv_at(it, head, KEY, 0), *all_values = it.qkv + qkv_at(it, head, VALUE, 0);
  auto read_tile = [&](T *to, int key) {
    read_rows<T, S::keys, padded>(to, all_keys + (int64_t)key * stride, stride, it.length - key, it.size,
                                  it.packs);
    read_rows<T, S::keys, padded>(to + S::keys * S::pitch, all_values + (int64_t)key * stride, stride,
                                  it.length - key, it.size, it.packs);
  };

  read_rows<T, S::block_rows, padded>(queries, it.qkv + qkv_at(it, head, QUERY, head.first), stride,
                                      it.length - head.first, it.size, it.packs);
  read_tile(tiles, 0);
  bool has_key = threadIdx.x < S::keys; /* of a tile, one */
  if (has_key) added[threadIdx.x] = mask_of(it, head, (int)threadIdx.x);
  queries += warp * S::rows * S::pitch;
  float results[S::tall][S::wide][4] = {};
  float top[S::tall][2], sum[S::tall][2]; /* of rows g and g + 8; a sum of the lane's columns */
#pragma unroll
  for (int m = 0; m < S::tall; m++)
#pragma unroll
    for (int r = 0; r < 2; r++)
      top[m][r] = -INFINITY, sum[m][r] = 0.0F;

  for (int key = 0, stage = 0; key < it.length; key += S::keys, stage ^= 1) {
    arrive();
    const T *keys = tiles + stage % S::stages * tile, *values = keys + S::keys * S::pitch;
    bool more = key + S::keys < it.length;
    float next_added = 0.0F;
    if (more && S::stages == 2) read_tile(tiles + (stage ^ 1) * tile, key + S::keys);
    if (more && has_key) next_added = mask_of(it, head, key + S::keys + (int)threadIdx.x);
    float s[S::tall][columns][4] = {};
#pragma unroll S::turns
    for (int k = 0; k < steps; k++) {
      typename P::A a[S::tall];
#pragma unroll
      for (int m = 0; m < S::tall; m++)
        P::load(a[m], queries + 16 * m * S::pitch + k * P::step, S::pitch);
#pragma unroll
      for (int n = 0; n < columns; n += 2) {
        typename P::B b;
        P::load_columns(b, keys + 8 * n * S::pitch + k * P::step, S::pitch);
#pragma unroll
        for (int m = 0; m < S::tall; m++)
#pragma unroll
          for (int side = 0; side < 2; side++)
            P::multiply(s[m][n + side], a[m], b, side);
      }
    }

    const float *added_now = added + stage * S::keys + 2 * t;
    bool raised = false;
    float factors[S::tall][2];
#pragma unroll
    for (int n = 0; n < columns; n++) {
      float2 of_keys = *reinterpret_cast<const float2 *>(added_now + 8 * n);
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          s[m][n][i] = fmaf(s[m][n][i], it.scale, i % 2 ? of_keys.y : of_keys.x);
    }
#pragma unroll
    for (int m = 0; m < S::tall; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float high = top[m][r];
#pragma unroll
        for (int n = 0; n < columns; n++)
          high = fmaxf(high, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
        high = fmaxf(high, __shfl_xor_sync(whole_warp, high, 1));
        high = fmaxf(high, __shfl_xor_sync(whole_warp, high, 2));
        /* Keys that are all masked out leave no maximum to subtract. */
        float shift = shift_of<T>(high == -INFINITY ? 0.0F : high), factor = exponential<T>(top[m][r], shift);
        top[m][r] = high;
        sum[m][r] *= factor;
        factors[m][r] = factor;
        raised = raised || factor != 1.0F;
#pragma unroll
        for (int n = 0; n < columns; n++)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; i++) {
            s[m][n][i] = exponential<T>(s[m][n][i], shift);
            sum[m][r] += s[m][n][i];
          }
      }
    if (__any_sync(whole_warp, raised)) {
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int n = 0; n < S::wide; n++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            results[m][n][i] *= factors[m][i / 2];
    }
    if (it.drops) {
      /* A lane draws for 32 keys of a row, or for 16. */
      int row = lane % S::rows, from = lane / S::rows * 16;
      uint64_t element = element_of(it, draws, first + row, key + from);
      uint32_t kept = draw_16(draws.key, draws.sample, element, it.drop_limit) << from;
      if (S::tall == 2) kept |= draw_16(draws.key, draws.sample, element + 16, it.drop_limit) << 16;
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          uint32_t bits = __shfl_sync(whole_warp, kept, 16 * m + g + 8 * r);
          if (S::tall == 1) bits |= __shfl_sync(whole_warp, kept, 16 + g + 8 * r);
          bits >>= 2 * t;
#pragma unroll
          for (int n = 0; n < columns; n++) {
            if (!(bits >> (8 * n) & 1U)) s[m][n][2 * r] = 0.0F;
            if (!(bits >> (8 * n) & 2U)) s[m][n][2 * r + 1] = 0.0F;
          }
        }
    }

#pragma unroll
    for (int k = 0; k < S::keys / P::step; k++) {
      typename P::A a[S::tall];
#pragma unroll
      for (int m = 0; m < S::tall; m++)
        a[m] = P::from_tiles(&s[m][k * P::step / 8]);
#pragma unroll
      for (int n = 0; n < S::wide; n += 2) {
        typename P::B b;
        P::load_rows(b, values + k * P::step * S::pitch + 8 * n, S::pitch);
#pragma unroll
        for (int m = 0; m < S::tall; m++)
#pragma unroll
          for (int side = 0; side < 2; side++)
            P::multiply(results[m][n + side], a[m], b, side);
      }
    }
    if (more && has_key) added[(stage ^ 1) * S::keys + (int)threadIdx.x] = next_added;
    if (more && S::stages == 1) {
      __syncthreads();
      read_tile(tiles, key + S::keys);
    }
  }

  float factors[S::tall][2];
#pragma unroll
  for (int m = 0; m < S::tall; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float all = sum[m][r];
      all += __shfl_xor_sync(whole_warp, all, 1);
      all += __shfl_xor_sync(whole_warp, all, 2);
      factors[m][r] = it.keep_scale / all;
      int row = first + 16 * m + g + 8 * r;
      if (it.lse_out != nullptr && t == 0 && row < it.length)
        it.lse_out[lse_at(it, head, row)] = top[m][r] + logf(all);
    }
  write_rows<T, padded>(it.out + y_at(it, head, first), y_stride(it), queries, results, factors,
                        it.length - first, it.size, it.packs);
}

template <typename Kind, int padded>
__global__ void __launch_bounds__(SizesOf<Kind, padded>::threads, SizesOf<Kind, padded>::warps < 4 ? 4 : 3)
    attention_forward(AttentionOf<Kind> it) {
  if constexpr (has_products<Kind>) attend<Kind, padded>(it);
}

/* ---- Backward ---------------------------------------------------------------------------------------------- */

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

/* A key's mask, or a query's shift and delta. Queries that are not there have no probabilities. */
template <typename T, bool key>
__device__ inline float2 stats_of(const Attention<T> &it, Head head, int row) {
  if constexpr (key) return float2{mask_of(it, head, row), 0.0F};
  if (row >= it.length) return float2{INFINITY, 0.0F};
  return float2{shift_of<T>(it.lse[lse_at(it, head, row)]), it.delta[lse_at(it, head, row)]};
}

/* The block's rows are keys, with their values, or queries, with their dy; tiles of the others pass by. For
 * both scores are rows times others, and gradients of probabilities are values of the rows times those of the
 * others. */
template <typename Kind, int padded, bool of_keys>
__device__ inline void differentiate(const AttentionOf<Kind> &it) {
  using T = typename Memory<Kind>::Type;
  using S = Sizes<T, padded>;
  using P = Products<Kind>;
  constexpr int tile = 2 * S::others * S::pitch;
  T *rows = shared_memory<T>(), *row_values = rows + S::block_rows * S::pitch;
  T *tiles = row_values + S::block_rows * S::pitch; /* others and their values, of each stage */
  float2 *tile_stats = reinterpret_cast<float2 *>(tiles + S::stages * tile);
  int warp = (int)threadIdx.x / warp_size, lane = (int)threadIdx.x % warp_size, g = lane / 4, t = lane % 4;
  Head head = head_of_block(it, S::block_rows);
  int first = head.first + warp * S::rows;
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
  bool has_stats = threadIdx.x < S::others; /* of a tile's rows, one */
  if (has_stats) tile_stats[threadIdx.x] = stats_of<T, !of_keys>(it, head, (int)threadIdx.x);
  rows += warp * S::rows * S::pitch;
  row_values += warp * S::rows * S::pitch;
  float2 row_stats[S::tall][2];
#pragma unroll
  for (int m = 0; m < S::tall; m++)
#pragma unroll
    for (int r = 0; r < 2; r++)
      row_stats[m][r] = stats_of<T, of_keys>(it, head, first + 16 * m + g + 8 * r);
  /* Of rows, and of row_values where these are a key's. */
  float gradient[S::tall][S::wide][4] = {};
  float value_gradient[of_keys ? S::tall : 1][of_keys ? S::wide : 1][4] = {};

  for (int other = 0, stage = 0; other < it.length; other += S::others, stage ^= 1) {
    arrive();
    const T *others = tiles + stage % S::stages * tile, *other_values = others + S::others * S::pitch;
    const float2 *other_stats = tile_stats + stage * S::others;
    bool more = other + S::others < it.length;
    float2 next_stats = {0.0F, 0.0F};
    if (more && S::stages == 2) read_tile(tiles + (stage ^ 1) * tile, other + S::others);
    if (more && has_stats) next_stats = stats_of<T, !of_keys>(it, head, other + S::others + (int)threadIdx.x);

    float s[S::tall][2][4] = {}, dp[S::tall][2][4] = {};
#pragma unroll S::turns
    for (int step = 0; step < padded; step += P::step) {
      typename P::A a;
      typename P::B b;
      P::load_columns(b, others + step, S::pitch);
#pragma unroll
      for (int m = 0; m < S::tall; m++) {
        P::load(a, rows + 16 * m * S::pitch + step, S::pitch);
#pragma unroll
        for (int side = 0; side < 2; side++)
          P::multiply(s[m][side], a, b, side);
      }
      P::load_columns(b, other_values + step, S::pitch);
#pragma unroll
      for (int m = 0; m < S::tall; m++) {
        P::load(a, row_values + 16 * m * S::pitch + step, S::pitch);
#pragma unroll
        for (int side = 0; side < 2; side++)
          P::multiply(dp[m][side], a, b, side);
      }
    }

    /* Bits of whether dropout keeps a lane's probabilities, by their places in s. */
    uint32_t kept = 0xFFFFFFFFU;
    if (it.drops) {
      /* A lane draws for 16 keys of a query. */
      constexpr int queries = of_keys ? S::others : S::rows;
      Draws draws = draws_of(it, head);
      uint64_t element = element_of(it, draws, (of_keys ? other : first) + lane % queries,
                                    (of_keys ? first : other) + lane / queries * 16);
      uint32_t drawn = lane < S::rows ? draw_16(draws.key, draws.sample, element, it.drop_limit) : 0U;
      kept = 0;
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            int row = g + i / 2 * 8, column = 8 * n + 2 * t + i % 2;
            uint32_t bits = __shfl_sync(whole_warp, drawn, 16 * m + (of_keys ? column : row));
            kept |= (bits >> (of_keys ? row : column) & 1U) << (8 * m + 4 * n + i);
          }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
      float4 stats = *reinterpret_cast<const float4 *>(other_stats + 8 * n + 2 * t);
#pragma unroll
      for (int m = 0; m < S::tall; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float2 of_other = i % 2 ? float2{stats.z, stats.w} : float2{stats.x, stats.y};
          float2 of_key = of_keys ? row_stats[m][i / 2] : of_other;
          float2 of_query = of_keys ? of_other : row_stats[m][i / 2];
          float keep = kept >> (8 * m + 4 * n + i) & 1U ? it.keep_scale : 0.0F;
          float probability = exponential<T>(fmaf(s[m][n][i], it.scale, of_key.x), of_query.x);
          s[m][n][i] = keep * probability;
          dp[m][n][i] = probability * fmaf(keep, dp[m][n][i], -of_query.y);
        }
    }
#pragma unroll
    for (int k16 = 0; k16 < S::others / P::step; k16++) {
      typename P::A a[S::tall];
      typename P::B b;
      int step = k16 * P::step;
      if constexpr (of_keys) {
#pragma unroll
        for (int m = 0; m < S::tall; m++)
          a[m] = P::from_tiles(&s[m][step / 8]);
#pragma unroll
        for (int w = 0; w < S::wide; w += 2) {
          P::load_rows(b, other_values + step * S::pitch + 8 * w, S::pitch);
#pragma unroll
          for (int m = 0; m < S::tall; m++)
#pragma unroll
            for (int side = 0; side < 2; side++)
              P::multiply(value_gradient[m][w + side], a[m], b, side);
        }
      }
#pragma unroll
      for (int m = 0; m < S::tall; m++)
        a[m] = P::from_tiles(&dp[m][step / 8]);
#pragma unroll
      for (int w = 0; w < S::wide; w += 2) {
        P::load_rows(b, others + step * S::pitch + 8 * w, S::pitch);
#pragma unroll
        for (int m = 0; m < S::tall; m++)
#pragma unroll
          for (int side = 0; side < 2; side++)
            P::multiply(gradient[m][w + side], a[m], b, side);
      }
    }
    if (more && has_stats) tile_stats[(stage ^ 1) * S::others + (int)threadIdx.x] = next_stats;
    if (more && S::stages == 1) {
      __syncthreads();
      read_tile(tiles, other + S::others);
    }
  }

  float factors[S::tall][2];
#pragma unroll
  for (int m = 0; m < S::tall; m++)
    factors[m][0] = factors[m][1] = it.scale;
  write_rows<T, padded>(it.out + qkv_at(it, head, of_keys ? KEY : QUERY, first), stride, rows, gradient,
                        factors, it.length - first, it.size, it.packs);
  if constexpr (of_keys) {
#pragma unroll
    for (int m = 0; m < S::tall; m++)
      factors[m][0] = factors[m][1] = 1.0F;
    write_rows<T, padded>(it.out + qkv_at(it, head, VALUE, first), stride, row_values, value_gradient,
                          factors, it.length - first, it.size, it.packs);
  }
}

template <typename Kind, int padded, bool of_keys>
__global__ void __launch_bounds__(SizesOf<Kind, padded>::threads,
                                  of_keys || SizesOf<Kind, padded>::warps < 4 ? 2 : 3)
    attention_backward(AttentionOf<Kind> it) {
  if constexpr (has_products<Kind>) differentiate<Kind, padded, of_keys>(it);
}

/* ---- The ops ----------------------------------------------------------------------------------------------- */

enum { QKV = 0, MASK = 1 };
enum { DY = 0, BACKWARD_QKV, BACKWARD_Y, BACKWARD_LSE, BACKWARD_MASK };

bool is_backward(const Node *node) { return node->inputs[0]->rank == 4; }
const Tensor *qkv_of(const Node *node) {
  return node->inputs[is_backward(node) ? (int)BACKWARD_QKV : (int)QKV];
}

const float *optional(const Node *node, const uintptr_t *inputs, int32_t i) {
  return i < node->input_count && node->inputs[i] != nullptr ? reinterpret_cast<const float *>(inputs[i])
                                                             : nullptr;
}

/* Calls function(kind, padded) with the kind of products and the columns that heads are padded to, both as
 * the types of values. */
template <int columns> struct Padded { static constexpr int value = columns; };
template <typename F> void by_kind(const Tensor *qkv, bool tf32, F function) {
  auto by_size = [&](auto kind) {
    if (qkv->shape[4] <= 64)
      function(kind, Padded<64>{});
    else
      function(kind, Padded<128>{});
  };
  if (tf32 && qkv->dtype == DTYPE_F32)
    by_size(Tf32{});
  else
    (void)by_float(qkv->dtype, by_size);
}

Status supports(CudaDevice *device, const Node *node) {
  VL_TRY(cuda_supports_floats(device, node));
  const Tensor *qkv = qkv_of(node);
  long long size = qkv->shape[4];
  if (size > 128)
    return vl_error(VL_UNSUPPORTED, "%s '%s': heads of %lld; the cuda device takes up to 128", node->op->name,
                    node->scope, size);
  /* Rows of blocks are counted in 32 bits, and there is at most a block for 16 of them. */
  long long most = 1 << 30, tokens = qkv->shape[0] * qkv->shape[1], row = 3 * qkv->shape[3] * size;
  if (qkv->shape[1] > most || tokens * qkv->shape[3] > most * 16 || row > most)
    return vl_error(
        VL_UNSUPPORTED,
        "%s '%s': %lld tokens of %lld heads, %lld in a sequence; the cuda device counts in 32 bits",
        node->op->name, node->scope, tokens, (long long)qkv->shape[3], (long long)qkv->shape[1]);
  if (qkv->dtype == DTYPE_BF16 && device->major < 8)
    return vl_error(VL_UNSUPPORTED,
                    "%s '%s': bf16 needs compute capability 8.0; this card has %d.%d, which does f16 and f32",
                    node->op->name, node->scope, device->major, device->minor);
  size_t needed = 0;
  by_kind(qkv, device->tf32, [&](auto kind, auto padded) {
    using S = SizesOf<decltype(kind), decltype(padded)::value>;
    needed = is_backward(node) ? S::backward_bytes : S::forward_bytes;
  });
  if ((int64_t)needed > device->shared_bytes)
    return vl_error(VL_UNSUPPORTED,
                    "%s '%s': heads of %lld in %s need %zu bytes of shared memory; a block has %lld",
                    node->op->name, node->scope, size, vl_dtype_name(qkv->dtype), needed,
                    (long long)device->shared_bytes);
  return vl_ok();
}

Status prepare(CudaDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  const Tensor *qkv = qkv_of(node);
  if (is_backward(node)) /* delta */
    kernel->workspace_bytes = qkv->shape[0] * qkv->shape[1] * qkv->shape[3] * (int64_t)sizeof(float);
  snprintf(kernel->implementation, sizeof kernel->implementation, "own, %s",
           qkv->dtype != DTYPE_F32 ? "tensor cores"
           : device->tf32          ? "TF32"
                                   : "FMA");
  return vl_ok();
}

template <typename T> Attention<T> attention_of(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const OpParams *params = &node->params;
  const Tensor *qkv = qkv_of(node);
  bool backward = is_backward(node);
  Attention<T> it = {};
  it.qkv = reinterpret_cast<const T *>(launch->inputs[backward ? (int)BACKWARD_QKV : (int)QKV]);
  it.mask = optional(node, launch->inputs, backward ? (int)BACKWARD_MASK : (int)MASK);
  it.out = reinterpret_cast<T *>(launch->outputs[0]);
  if (backward) {
    it.dy = reinterpret_cast<const T *>(launch->inputs[DY]);
    it.y = reinterpret_cast<const T *>(launch->inputs[BACKWARD_Y]);
    it.lse = reinterpret_cast<const float *>(launch->inputs[BACKWARD_LSE]);
    it.delta = reinterpret_cast<float *>(launch->workspace);
  } else {
    it.lse_out = node->outputs[1] != nullptr ? reinterpret_cast<float *>(launch->outputs[1]) : nullptr;
  }
  it.batch = qkv->shape[0];
  it.length = (int)qkv->shape[1];
  it.heads = (int)qkv->shape[3];
  it.size = (int)qkv->shape[4];
  it.scale = (float)(params->alpha > 0.0 ? params->alpha : 1.0 / sqrt((double)it.size));
  uintptr_t addresses = (uintptr_t)it.qkv | (uintptr_t)it.out | (uintptr_t)it.dy | (uintptr_t)it.y;
  it.packs = it.size % pack_width<T> == 0 && addresses % 16 == 0;
  it.drops = params->rate > 0.0;
  it.keep_scale = it.drops ? (float)(1.0 / (1.0 - params->rate)) : 1.0F;
  /* unit >= rate, and unit is the word's upper 24 bits as a whole number of 2^-24. */
  if (it.drops) it.drop_limit = (uint32_t)(((uint64_t)ceil(params->rate * 0x1p24) << 8) - 1);
  if (it.drops) it.scope_hash = vl_hash_text(vl_hash_start, params->random_scope);
  it.step = launch->step;
  return it;
}

/* Blocks of rows in all heads. */
template <typename T> dim3 blocks_of(const Attention<T> &it, int block_rows) {
  return dim3((unsigned)(it.batch * it.heads * ((it.length + block_rows - 1) / block_rows)));
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

const CudaOp cuda_op_attention = {
    .name = "attention",
    .supports = supports,
    .choose_layouts = cuda_choose_plain,
    .prepare = prepare,
    .build = nullptr,
    .launch = launch_forward,
    .destroy = nullptr,
};

const CudaOp cuda_op_attention_backward = {
    .name = "attention_backward",
    .supports = supports,
    .choose_layouts = cuda_choose_plain,
    .prepare = prepare,
    .build = nullptr,
    .launch = launch_backward,
    .destroy = nullptr,
};
