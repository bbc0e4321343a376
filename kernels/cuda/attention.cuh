/* kernels/cuda: what attention.cu and attention_backward.cu share; private to the folder, CUDA only. Every
 * head in tiles of queries and keys, so that nothing of the size of all its scores is kept. Forward keeps a
 * running maximum and sum of each query's exponentials and rescales what it has when the maximum rises;
 * backward repeats the probabilities from the logarithm of that sum, once for blocks of queries (dq) and once
 * for blocks of keys (dk, dv), so that no two blocks add to the same place (Dao et al., FlashAttention,
 * arXiv:2205.14135; Dao, FlashAttention-2, arXiv:2307.08691).
 *
 * Products are of fragments, 16 rows by 16 columns a warp: on tensor cores for bf16 and f16, with
 * probabilities and their gradients rounded to that type, and in FMA for f32, or in TF32 where the device is
 * asked for it. Heads are padded with zeros in shared memory to 64 or 128 columns. A warp has 32 rows of its
 * own, 16 of the wider heads, and what it makes of them goes from one fragment to the next through shared
 * memory that no other warp touches.
 *
 * Whether dropout keeps a probability depends on its place among all probabilities of the sample, (head,
 * query, key), as if they were a tensor: see random_block. Every pass draws again. */
#ifndef VRAMLAB_KERNELS_CUDA_ATTENTION_CUH
#define VRAMLAB_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/fragments.cuh"

#include <cmath>

#ifdef VRAMLAB_HOST_MACHINE
#include "pipeline.h"
#else
#include <cuda_pipeline_primitives.h>
#endif

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

/* ---- What both ops share ----------------------------------------------------------------------------------------------- */

enum { QKV = 0, MASK = 1 };
enum { DY = 0, BACKWARD_QKV, BACKWARD_Y, BACKWARD_LSE, BACKWARD_MASK };

inline bool is_backward(const Node *node) { return node->inputs[0]->rank == 4; }
inline const Tensor *qkv_of(const Node *node) {
  return node->inputs[is_backward(node) ? (int)BACKWARD_QKV : (int)QKV];
}

inline const float *optional(const Node *node, const uintptr_t *inputs, int32_t i) {
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

inline Status attention_supports(CudaDevice *device, const Node *node) {
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

inline Status attention_prepare(CudaDevice *device, Kernel *kernel) {
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

#endif
