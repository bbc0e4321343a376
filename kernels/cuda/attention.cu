/* attention and attention_backward: every head in tiles of queries and keys, so that nothing of the size of
 * all its scores is kept. Forward keeps a running maximum and sum of each query's exponentials and rescales
 * what it has when the maximum rises; backward repeats the probabilities from the logarithm of that sum, once
 * for blocks of queries (dq) and once for blocks of keys (dk, dv), so that no two blocks add to the same
 * place (Dao et al., FlashAttention, arXiv:2205.14135; Dao, FlashAttention-2, arXiv:2307.08691).
 *
 * Products are of fragments, 16 rows by 16 columns a warp: on tensor cores for bf16 and f16, with
 * probabilities and their gradients rounded to that type, and in FMA for f32, or in TF32 where the device is
 * asked for it. Heads are padded with zeros in shared memory to 64 or 128 columns. A warp has 32 rows of its
 * own, 16 of the wider heads, and what it makes of them goes from one fragment to the next through shared
 * memory that no other warp touches.
 *
 * Whether dropout keeps a probability depends on its place among all probabilities of the sample, (head,
 * query, key), as if they were a tensor: see random_block. Every pass draws again. */
#include "kernels/cuda/kernel.cuh"

#include <cmath>

#ifdef VRAMLAB_HOST_MACHINE
#include "pipeline.h"
#include "wmma.h"
#else
#include <cuda_pipeline_primitives.h>
#include <mma.h>
#endif

extern "C" {
extern const CudaOp cuda_op_attention, cuda_op_attention_backward;
}

namespace {

namespace wmma = nvcuda::wmma;

/* ---- Fragments --------------------------------------------------------------------------------------------- */

/* a is 16 rows by `step` columns, b `step` by 16, c 16 by 16. What lies in memory is by rows; b can be had of
 * its transpose too. Strides are in elements; addresses are aligned to 32 bytes. */
template <typename T> struct Fragments {
  static constexpr int step = 16;
  using A = wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major>;
  using B = wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major>;
  using Transposed = wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major>;
  using C = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
  static __device__ inline void load(A &to, const T *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride);
  }
  static __device__ inline void load(B &to, const T *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride);
  }
  static __device__ inline void load_transposed(Transposed &to, const T *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride);
  }
  static __device__ inline void load(C &to, const float *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride, wmma::mem_row_major);
  }
  static __device__ inline void store(float *to, const C &from, int stride) {
    wmma::store_matrix_sync(to, from, (unsigned)stride, wmma::mem_row_major);
  }
  static __device__ inline void clear(C &c) { wmma::fill_fragment(c, 0.0F); }
  template <typename AnyB> static __device__ inline void multiply(C &c, const A &a, const AnyB &b) {
    wmma::mma_sync(c, a, b, c);
  }
};

/* f32 whose products are of TF32: rounded as they are read from shared memory. */
struct Tf32 {};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <> struct Fragments<Tf32> {
  static constexpr int step = 8;
  using Kind = wmma::precision::tf32;
  using A = wmma::fragment<wmma::matrix_a, 16, 16, 8, Kind, wmma::row_major>;
  using B = wmma::fragment<wmma::matrix_b, 16, 16, 8, Kind, wmma::row_major>;
  using Transposed = wmma::fragment<wmma::matrix_b, 16, 16, 8, Kind, wmma::col_major>;
  using C = wmma::fragment<wmma::accumulator, 16, 16, 8, float>;
  template <typename Operand> static __device__ inline void load(Operand &to, const float *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride);
#pragma unroll
    for (int i = 0; i < (int)to.num_elements; i++)
      to.x[i] = wmma::__float_to_tf32(to.x[i]);
  }
  static __device__ inline void load_transposed(Transposed &to, const float *from, int stride) {
    load(to, from, stride);
  }
  static __device__ inline void load(C &to, const float *from, int stride) {
    wmma::load_matrix_sync(to, from, (unsigned)stride, wmma::mem_row_major);
  }
  static __device__ inline void store(float *to, const C &from, int stride) {
    wmma::store_matrix_sync(to, from, (unsigned)stride, wmma::mem_row_major);
  }
  static __device__ inline void clear(C &c) { wmma::fill_fragment(c, 0.0F); }
  template <typename AnyB> static __device__ inline void multiply(C &c, const A &a, const AnyB &b) {
    wmma::mma_sync(c, a, b, c);
  }
};
#endif

/* A lane has rows lane / 4 and lane / 4 + 8 of c, and four columns from 4 (lane % 4) on. */
template <> struct Fragments<float> {
  static constexpr int step = 4;
  struct A {
    float x[2][4];
  };
  struct B {
    float x[4][4];
  }; /* [k][column] */
  struct Transposed {
    float x[4][4];
  };
  struct C {
    float x[8];
  };
  static __device__ inline int row() { return (int)threadIdx.x % warp_size / 4; }
  static __device__ inline int column() { return (int)threadIdx.x % 4 * 4; }
  static __device__ inline float4 four(const float *from) { return *reinterpret_cast<const float4 *>(from); }
  static __device__ inline void load(A &to, const float *from, int stride) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float4 at = four(from + (row() + 8 * i) * stride);
      to.x[i][0] = at.x, to.x[i][1] = at.y, to.x[i][2] = at.z, to.x[i][3] = at.w;
    }
  }
  static __device__ inline void load(B &to, const float *from, int stride) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float4 at = four(from + k * stride + column());
      to.x[k][0] = at.x, to.x[k][1] = at.y, to.x[k][2] = at.z, to.x[k][3] = at.w;
    }
  }
  static __device__ inline void load_transposed(Transposed &to, const float *from, int stride) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float4 at = four(from + (column() + j) * stride);
      to.x[0][j] = at.x, to.x[1][j] = at.y, to.x[2][j] = at.z, to.x[3][j] = at.w;
    }
  }
  static __device__ inline void load(C &to, const float *from, int stride) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      to.x[i] = from[(row() + 8 * (i / 4)) * stride + column() + i % 4];
  }
  static __device__ inline void store(float *to, const C &from, int stride) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      to[(row() + 8 * (i / 4)) * stride + column() + i % 4] = from.x[i];
  }
  static __device__ inline void clear(C &c) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      c.x[i] = 0.0F;
  }
  template <typename AnyB> static __device__ inline void multiply(C &c, const A &a, const AnyB &b) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int i = 0; i < 8; i++)
        c.x[i] = fmaf(a.x[i / 4][k], b.x[k][i % 4], c.x[i]);
  }
};

/* What memory holds for products of a kind. */
template <typename Kind> struct Memory { using Type = Kind; };
template <> struct Memory<Tf32> { using Type = float; };

/* Whether the architecture being compiled for has products of a kind: Turing has none of bf16 and TF32. */
template <typename Kind> constexpr bool has_fragments = true;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <> constexpr bool has_fragments<bf16> = false;
template <> constexpr bool has_fragments<Tf32> = false;
#endif

/* Elements of c that a lane holds, and where they are: which is found out, since nothing says it. */
constexpr int held = 8;
struct Places {
  uint32_t rows, columns; /* four bits each */
  __device__ inline int row(int i) const { return (int)(rows >> (4 * i) & 15U); }
  __device__ inline int column(int i) const { return (int)(columns >> (4 * i) & 15U); }
};

/* ---- Sizes ------------------------------------------------------------------------------------------------- */

/* Of a block's work, for heads of up to `padded` columns. */
template <typename T, int padded> struct Sizes {
  static constexpr int warps = sizeof(T) == 4 ? 2 : 4, threads = warps * warp_size;
  static constexpr int tall = 128 / padded; /* fragments one below the other that are a warp's rows */
  static constexpr int wide = padded / 16;  /* fragments beside each other that are a head's columns */
  static constexpr int rows = 16 * tall;    /* of a warp */
  static constexpr int block_rows = warps * rows;
  static constexpr int blocks = sizeof(T) == 4 ? 4 : 3; /* on a multiprocessor, so many at least */
  static constexpr int turns =
      sizeof(T) == 4 || padded > 64 ? 1 : 2;       /* of loops over fragments, at once: registers end */
  static constexpr int skew = 16 / (int)sizeof(T); /* keeps rows apart in the banks of shared memory */
  static constexpr int pitch = padded + skew;
  /* Forward: keys of a tile, and its scores as f32, in whose place their probabilities come as T: those of 16
   * keys begin where the scores of these keys did. */
  static constexpr int keys = 32, score_pitch = keys + 4;
  static constexpr int p_pitch = score_pitch * (4 / (int)sizeof(T)), p_group = 16 * (4 / (int)sizeof(T));
  static_assert(16 * wide == padded && turns > 0 && 2 * p_group <= p_pitch, "tiles have their places");
  static constexpr size_t forward_bytes = sizeof(T) * pitch * (block_rows + 2 * keys) +
                                          sizeof(float) * (block_rows * score_pitch + 2 * keys + block_rows);
  /* Backward: rows of a tile on the other side, and a warp's 16 columns of probabilities and gradients of
   * scores, both in T. There its results pass through as f32, 16 columns at a time. */
  static constexpr int others = 16, stages = sizeof(T) == 4 ? 1 : 2; /* tiles at once */
  static constexpr int pair_pitch = 16 + skew, pair_elements = rows * pair_pitch;
  static constexpr int result_pitch = 20;
  static_assert(2 * pair_elements * sizeof(T) >= rows * result_pitch * sizeof(float), "results fit");
  static constexpr int kept_words = 32; /* of 16 bits: a lane's */
  static constexpr size_t backward_bytes =
      sizeof(T) * (pitch * 2 * (block_rows + stages * others) + warps * 2 * pair_elements) +
      sizeof(float2) * (block_rows + 2 * others) + sizeof(uint16_t) * warps * kept_words +
      sizeof(Places) * threads;
};

/* Blocks on a multiprocessor: `wanted`, or what its shared memory holds, since registers are given up for
 * each. (CUDA C++ Programming Guide, technical specifications by compute capability; a block costs 1 KiB
 * more.) */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr size_t multiprocessor_bytes = 228 * 1024;
#elif __CUDA_ARCH__ == 800
constexpr size_t multiprocessor_bytes = 164 * 1024;
#elif __CUDA_ARCH__ == 750
constexpr size_t multiprocessor_bytes = 64 * 1024;
#else
constexpr size_t multiprocessor_bytes = 100 * 1024;
#endif
constexpr int resident_blocks(size_t bytes, int wanted) {
  int most = (int)(multiprocessor_bytes / (bytes + 1024));
  return most < 1 ? 1 : most < wanted ? most : wanted;
}

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
#pragma unroll(sizeof(T) == 4 ? 1 : rows / at_once)
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

/* A warp writes `rows` rows of 16 columns of results, from column `first` of the head on. */
template <typename T, int rows>
__device__ inline void write_rows(T *to, int stride, const float *from, int pitch, float factor, int valid,
                                  int first, int size, bool packs) {
  constexpr int each = pack_width<T>, across = 16 / each, at_once = warp_size / across;
  int lane = (int)threadIdx.x % warp_size, row = lane / across, column = lane % across * each;
  from += row * pitch + column;
  to += (int64_t)row * stride + first + column;
#pragma unroll
  for (int turn = 0; turn < rows / at_once; turn++) {
    if (row + turn * at_once >= valid || first + column >= size) continue;
    const float *values = from + turn * at_once * pitch;
    T *at = to + (int64_t)turn * at_once * stride;
    if (packs) {
      Pack<T, each> pack;
#pragma unroll
      for (int j = 0; j < each; j++)
        pack.at[j] = from_float<T>(values[j] * factor);
      *reinterpret_cast<Pack<T, each> *>(at) = pack;
    } else {
#pragma unroll 1
      for (int j = 0; j < each && first + column + j < size; j++)
        at[j] = from_float<T>(values[j] * factor);
    }
  }
}

/* scratch: of the warp, 16 rows. */
template <typename Kind> __device__ inline Places find_places(float *scratch, int pitch) {
  typename Fragments<Kind>::C numbers;
  for (int i = (int)threadIdx.x % warp_size; i < 256; i += warp_size)
    scratch[i / 16 * pitch + i % 16] = (float)i;
  __syncwarp();
  Fragments<Kind>::load(numbers, scratch, pitch);
  __syncwarp();
  Places places = {0, 0};
#pragma unroll
  for (int i = 0; i < held; i++) {
    uint32_t number = (uint32_t)numbers.x[i];
    places.rows |= number / 16 << (4 * i);
    places.columns |= number % 16 << (4 * i);
  }
  return places;
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
  return sizeof(T) == 4 ? expf(score - shift) : exp2f(fmaf(score, log2_e, -shift));
}

/* Bits of the four elements of a block: whether dropout keeps them. */
__device__ inline uint32_t draw_4(uint64_t key, uint64_t sample, uint64_t block, uint32_t limit) {
  uint4 words = random_block(key, sample, block);
  return (words.x > limit ? 1U : 0U) | (words.y > limit ? 2U : 0U) | (words.z > limit ? 4U : 0U) |
         (words.w > limit ? 8U : 0U);
}
/* Bits of 16 elements from `first` on: four blocks side by side, and one more where they begin within one. */
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
