/* dropout: y = x / (1 - rate) where the element is kept, else 0; in any layout. The noise, where it is
 * wanted, is 1 / (1 - rate) or 0 likewise, or a byte, 1 or 0; where it is given it says what is kept.
 *
 * Whether it is kept depends on its place in the logical sample: word(key, sample, channel * spatial + place)
 * of base.h, whose top 24 bits are compared with rate. Philox blocks hold four neighbouring elements of a
 * sample: plain, a thread takes 16 bytes of x and draws one or two blocks; channels last it takes the places
 * of one block, and its neighbours the neighbouring channels. */
#include "kernels/cuda/kernel.cuh"

#include <math.h>

extern "C" {
extern const CudaOp cuda_op_dropout;
}

namespace {

constexpr int block_threads = 256;
constexpr int block_words = 4; /* of Philox */

/* What is kept, and what it is multiplied by. */
struct Mask {
  uint64_t scope_hash;
  uint32_t threshold; /* kept when the top 24 bits are at least this */
  float scale;
};

/* Either noise, or both, may be NULL. */
template <typename T> struct Arrays {
  const T *x;
  T *y, *noise;
  uint8_t *bytes;
};

__device__ inline bool is_kept(const Mask &mask, uint32_t word) { return (word >> 8) >= mask.threshold; }

__device__ inline uint32_t word_of(const uint4 &words, int lane) {
  return lane == 0 ? words.x : lane == 1 ? words.y : lane == 2 ? words.z : words.w;
}

template <typename T>
__device__ inline void drop(const Arrays<T> &on, const Mask &mask, int64_t i, uint32_t word) {
  bool kept = is_kept(mask, word);
  on.y[i] = from_float<T>(kept ? mask.scale * to_float(on.x[i]) : 0.0F);
  if (on.noise != nullptr) on.noise[i] = from_float<T>(kept ? mask.scale : 0.0F);
  if (on.bytes != nullptr) on.bytes[i] = kept ? 1 : 0;
}

/* ---- Plain: elements of a sample follow each other ----------------------------------------------------- */

template <typename T>
constexpr int group_width = pack_width<T>; /* elements of a thread, whole Philox blocks */

/* aligned: groups are whole packs. */
template <typename T>
__global__ void __launch_bounds__(block_threads)
    drop_plain(Arrays<T> on, Mask mask, int64_t samples, int64_t per_sample, bool aligned,
               const CudaStep *step) {
  constexpr int wide = group_width<T>;
  using Whole = Pack<T, wide>;
  uint64_t key = random_key(step, mask.scope_hash);
  int64_t groups = (per_sample + wide - 1) / wide;
  for (int64_t g = global_index(); g < samples * groups; g += grid_threads()) {
    int64_t sample = g / groups, element = g % groups * wide, at = sample * per_sample + element;
    uint4 words[wide / block_words];
    for (int b = 0; b < wide / block_words; b++)
      words[b] =
          random_block(key, (uint64_t)(step->first_sample + sample), (uint64_t)(element / block_words + b));
    if (!aligned) {
      for (int k = 0; k < wide; k++)
        if (element + k < per_sample)
          drop(on, mask, at + k, word_of(words[k / block_words], k % block_words));
      continue;
    }
    Whole x = *reinterpret_cast<const Whole *>(on.x + at), y, noise;
    Pack<uint8_t, wide> bytes;
    for (int k = 0; k < wide; k++) {
      bool kept = is_kept(mask, word_of(words[k / block_words], k % block_words));
      y.at[k] = from_float<T>(kept ? mask.scale * to_float(x.at[k]) : 0.0F);
      noise.at[k] = from_float<T>(kept ? mask.scale : 0.0F);
      bytes.at[k] = kept ? 1 : 0;
    }
    *reinterpret_cast<Whole *>(on.y + at) = y;
    if (on.noise != nullptr) *reinterpret_cast<Whole *>(on.noise + at) = noise;
    if (on.bytes != nullptr) *reinterpret_cast<Pack<uint8_t, wide> *>(on.bytes + at) = bytes;
  }
}

/* ---- Channels last ------------------------------------------------------------------------------------- */

/* A channel's elements begin anywhere in a Philox block, so its places may touch one block more. */
template <typename T>
__global__ void __launch_bounds__(block_threads)
    drop_channels_last(Arrays<T> on, Mask mask, CudaChannels view, const CudaStep *step) {
  uint64_t key = random_key(step, mask.scope_hash);
  int64_t groups = (view.spatial + 2 * block_words - 2) / block_words;
  for (int64_t i = global_index(); i < view.n * groups * view.channels; i += grid_threads()) {
    int64_t channel = i % view.channels, group = i / view.channels % groups;
    int64_t sample = i / view.channels / groups, first = channel * view.spatial;
    int64_t block = first / block_words + group;
    uint4 words = random_block(key, (uint64_t)(step->first_sample + sample), (uint64_t)block);
    for (int k = 0; k < block_words; k++) {
      int64_t place = block * block_words + k - first;
      if (place < 0 || place >= view.spatial) continue;
      int64_t at = (sample * view.spatial + place) * view.channels + channel;
      drop(on, mask, at, word_of(words, k));
    }
  }
}

/* ---- With noise that is given -------------------------------------------------------------------------- */

template <typename N> __device__ inline bool is_some(N noise) { return to_float(noise) != 0.0F; }
template <> __device__ inline bool is_some<uint8_t>(uint8_t noise) { return noise != 0; }

/* whole: elements in packs that are aligned. */
template <typename T, typename N>
__global__ void __launch_bounds__(block_threads)
    apply_noise(T *y, const T *x, const N *noise, float factor, int64_t elements, int64_t whole) {
  constexpr int wide = pack_width<T>;
  using Whole = Pack<T, wide>;
  using Noise = Pack<N, wide>;
  for (int64_t p = global_index(); p < whole / wide; p += grid_threads()) {
    Whole pack = reinterpret_cast<const Whole *>(x)[p];
    Noise keeps = reinterpret_cast<const Noise *>(noise)[p];
    for (int k = 0; k < wide; k++)
      pack.at[k] = from_float<T>(is_some(keeps.at[k]) ? factor * to_float(pack.at[k]) : 0.0F);
    reinterpret_cast<Whole *>(y)[p] = pack;
  }
  for (int64_t i = whole + global_index(); i < elements; i += grid_threads())
    y[i] = from_float<T>(is_some(noise[i]) ? factor * to_float(x[i]) : 0.0F);
}

/* ---- The op -------------------------------------------------------------------------------------------- */

bool has_noise(const Node *node) { return node->input_count > 1 && node->inputs[1] != nullptr; }

Status launch_with_noise(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  int64_t elements = vl_tensor_elements(node->inputs[0]);
  float factor = (float)(1.0 / (1.0 - node->params.rate));
  bool aligned = (launch->inputs[0] | launch->inputs[1] | launch->outputs[0]) % 16 == 0;
  cudaError_t error = cudaSuccess;
  by_float(node->inputs[0]->dtype, [&](auto zero) {
    using T = decltype(zero);
    int64_t whole = aligned ? elements / pack_width<T> * pack_width<T> : 0;
    unsigned blocks = grid_for(elements, block_threads, pack_width<T>);
    T *y = (T *)launch->outputs[0];
    const T *x = (const T *)launch->inputs[0];
    if (node->inputs[1]->dtype == DTYPE_U8)
      error = cuda_launch(apply_noise<T, uint8_t>, blocks, block_threads, 0, launch->stream, y, x,
                          (const uint8_t *)launch->inputs[1], factor, elements, whole);
    else
      error = cuda_launch(apply_noise<T, T>, blocks, block_threads, 0, launch->stream, y, x,
                          (const T *)launch->inputs[1], factor, elements, whole);
  });
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

template <typename T> cudaError_t launch_drop(const Kernel *kernel, const CudaLaunch *launch, Mask mask) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[0];
  bool makes_bytes =
      node->output_count > 1 && node->outputs[1] != nullptr && node->outputs[1]->dtype == DTYPE_U8;
  uintptr_t noise = launch->outputs[1];
  Arrays<T> on = {(const T *)launch->inputs[0], (T *)launch->outputs[0], makes_bytes ? nullptr : (T *)noise,
                  makes_bytes ? (uint8_t *)noise : nullptr};
  /* Enough for each thread to pay for its key. */
  int64_t most = (int64_t)kernel->device->multiprocessors * 16, elements = vl_tensor_elements(x);
  if (kernel->inputs[0] == CUDA_CHANNELS_LAST)
    return cuda_launch(drop_channels_last<T>, grid_for(elements, block_threads, block_words, most),
                       block_threads, 0, launch->stream, on, mask, cuda_channels(kernel->inputs[0], x),
                       launch->step);
  int64_t per_sample = elements / x->shape[0]; /* whatever the other dimensions mean */
  bool aligned =
      (launch->inputs[0] | launch->outputs[0] | noise) % 16 == 0 && per_sample % group_width<T> == 0;
  return cuda_launch(drop_plain<T>, grid_for(elements, block_threads, group_width<T>, most), block_threads, 0,
                     launch->stream, on, mask, x->shape[0], per_sample, aligned, launch->step);
}

Status launch(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const OpParams *params = &node->params;
  if (has_noise(node)) return launch_with_noise(kernel, launch);
  /* unit >= rate, and unit is a whole number of 2^-24. */
  Mask mask = {vl_hash_text(vl_hash_start, params->random_scope), (uint32_t)ceil(params->rate * 0x1p24),
               (float)(1.0 / (1.0 - params->rate))};
  cudaError_t error = cudaSuccess;
  by_float(node->inputs[0]->dtype,
           [&](auto zero) { error = launch_drop<decltype(zero)>(kernel, launch, mask); });
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

Status prepare(CudaDevice *, Kernel *kernel) {
  const Node *node = kernel->node;
  LayoutId layout = kernel->inputs[0];
  bool alike = kernel->outputs[0] == layout;
  if (has_noise(node)) alike = alike && kernel->inputs[1] == layout;
  if (node->output_count > 1 && node->outputs[1] != nullptr) alike = alike && kernel->outputs[1] == layout;
  if (alike) return vl_ok();
  return vl_error(VL_INTERNAL, "dropout in %s: tensors in several layouts; they must be in one", node->scope);
}

} // namespace

const CudaOp cuda_op_dropout = {
    .name = "dropout",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_follow,
    .prepare = prepare,
    .launch = launch,
};
