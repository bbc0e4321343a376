/* Updates of weights: sgd, adamw, and adamw_8bit, in f32 whatever weights are kept in.
 *
 * A graph has one update a parameter, hundreds of them, most of a few elements. sgd and adamw take those that
 * come one after the other in one launch, where they are launched together; their addresses are arguments.
 *
 * What changes from step to step is read from device memory: the learning rate, the number of the step or the
 * scaler's counters, and the factor of the gradients, which is 0 where the step is skipped. One thread of
 * each block makes the factors of it, in double; blocks are few and stay. */
#include "kernels/cuda/state_codes.cuh"

#include <math.h>

extern "C" {
extern const CudaOp cuda_op_adamw, cuda_op_adamw_8bit, cuda_op_sgd;
}

namespace {

constexpr int block_threads = 256, blocks_each = 8; /* of a multiprocessor */

/* Weight, gradient and state; what follows them is a factor and counters, see graph/ops/README.md. */
int32_t walked_inputs(const Node *node) { return node->output_count + 1; }

/* The weight's layout is the convolution's; gradient and state take it. Layouts do not pad. */
Status choose_layouts(CudaDevice *, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  LayoutId layout = inputs[0] != LAYOUT_ANY ? inputs[0] : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = i < walked_inputs(node) ? layout : LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = layout;
  return vl_ok();
}

/* ---- What changes from step to step -------------------------------------------------------------------- */

/* factor and counters may be NULL. */
struct Source {
  const float *factor;
  const int64_t *counters;
  const CudaStep *step;
};

Source source_of(const Kernel *kernel, const CudaLaunch *launch) {
  int32_t count = kernel->node->input_count, at = walked_inputs(kernel->node);
  return Source{count > at ? (const float *)launch->inputs[at] : nullptr,
                count > at + 1 ? (const int64_t *)launch->inputs[at + 1] : nullptr, launch->step};
}

__device__ inline float gradient_factor(const Source &source) {
  return source.factor != nullptr ? *source.factor : 1.0F;
}

/* Outputs stay what they were. */
__device__ inline bool is_skipped(const Source &source) {
  return source.counters != nullptr && *source.factor == 0.0F;
}

/* Steps there are with this one. */
__device__ inline int64_t steps_of(const Source &source) {
  return source.counters != nullptr ? source.counters[SCALER_STEPS] : (int64_t)source.step->step + 1;
}

/* What the run gives, as a schedule of rates does, else the node's own. */
__device__ inline double learning_rate_of(const Source &source, double own) {
  return source.step->learning_rate > 0.0 ? source.step->learning_rate : own;
}

/* The rules of the ops: each has a kind of settings (of the node), of factors (of the step, made by
 * factors_of), and a function that updates an element. */

/* ---- SGD ----------------------------------------------------------------------------------------------- */

struct SgdSettings {
  double learning_rate, momentum, weight_decay;
};

struct SgdFactors {
  float learning_rate, momentum, weight_decay, gradient;
};

__device__ inline SgdFactors factors_of(const SgdSettings &by, const Source &source) {
  return SgdFactors{(float)learning_rate_of(source, by.learning_rate), (float)by.momentum,
                    (float)by.weight_decay, gradient_factor(source)};
}

/* d = factor dw + weight_decay w;  v = momentum v + d;  w = w - learning_rate v */
__device__ inline void update(const SgdFactors &by, float dw, float &w, float (&state)[1]) {
  float velocity = by.momentum * state[0] + (dw * by.gradient + by.weight_decay * w);
  state[0] = velocity;
  w -= by.learning_rate * velocity;
}

/* ---- AdamW --------------------------------------------------------------------------------------------- */

struct AdamwSettings {
  double learning_rate, weight_decay, beta1, beta2, epsilon;
};

/* With t the step's number from 1 and c = sqrt(1 - beta2^t). */
struct AdamwFactors {
  float gradient;               /* what it is multiplied by first */
  float decay;                  /* 1 - learning_rate weight_decay */
  float new_mean;               /* 1 - beta1 */
  float old_square, new_square; /* beta2, 1 - beta2 */
  float epsilon;                /* c epsilon */
  float step;                   /* - c learning_rate / (1 - beta1^t) */
};

/* By squaring: relatively wrong by at most `exponent` units in the last place, where pow takes microseconds.
 */
__device__ inline double power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) result *= base;
    base *= base;
  }
  return result;
}

__device__ inline AdamwFactors factors_of(const AdamwSettings &by, const Source &source) {
  double rate = learning_rate_of(source, by.learning_rate);
  int64_t steps = steps_of(source);
  double correction = sqrt(1.0 - power(by.beta2, steps));
  return AdamwFactors{gradient_factor(source),
                      (float)(1.0 - rate * by.weight_decay),
                      (float)(1.0 - by.beta1),
                      (float)by.beta2,
                      (float)(1.0 - by.beta2),
                      (float)(correction * by.epsilon),
                      (float)(-rate * correction / (1.0 - power(by.beta1, steps)))};
}

/* w = w (1 - learning_rate weight_decay);  m = m + (1 - beta1) (dw - m);  v = v beta2 + (1 - beta2) dw dw
 * w = w - c learning_rate / (1 - beta1^t) m / (sqrt(v) + c epsilon) */
__device__ inline void update(const AdamwFactors &by, float dw, float &w, float (&state)[2]) {
  float g = dw * by.gradient;
  float mean = state[0] + by.new_mean * (g - state[0]);
  float square = state[1] * by.old_square + by.new_square * g * g;
  state[0] = mean;
  state[1] = square;
  w = w * by.decay + by.step * mean / (sqrtf(square) + by.epsilon);
}

AdamwSettings adamw_settings(const OpParams *params) {
  return AdamwSettings{params->learning_rate, params->weight_decay, params->beta1, params->beta2,
                       params->epsilon};
}

/* ---- Element by element -------------------------------------------------------------------------------- */

template <typename T, int states> struct Arrays {
  const T *w, *dw, *state[states];
  T *new_w, *new_state[states];
};

template <typename T, int states, typename Factors, int wide>
__device__ inline void update_pack(const Arrays<T, states> &on, const Factors &by, int64_t p) {
  using Whole = Pack<T, wide>;
  Whole w = reinterpret_cast<const Whole *>(on.w)[p], dw = reinterpret_cast<const Whole *>(on.dw)[p];
  Whole state[states];
  for (int s = 0; s < states; s++)
    state[s] = reinterpret_cast<const Whole *>(on.state[s])[p];
  for (int k = 0; k < wide; k++) {
    float new_w = to_float(w.at[k]), of_element[states];
    for (int s = 0; s < states; s++)
      of_element[s] = to_float(state[s].at[k]);
    update(by, to_float(dw.at[k]), new_w, of_element);
    w.at[k] = from_float<T>(new_w);
    for (int s = 0; s < states; s++)
      state[s].at[k] = from_float<T>(of_element[s]);
  }
  reinterpret_cast<Whole *>(on.new_w)[p] = w;
  for (int s = 0; s < states; s++)
    reinterpret_cast<Whole *>(on.new_state[s])[p] = state[s];
}

constexpr int most_joined = 32, chunk_elements = 4096;

/* Parameters of one launch, cut into chunks. Arguments of a kernel may take 4 KiB. */
template <typename T, int states> struct Joined {
  Arrays<T, states> on[most_joined];
  int64_t elements[most_joined];
  int32_t first_chunk[most_joined + 1]; /* of each; and how many there are */
  uint32_t aligned;                     /* a bit each: in packs, all but what is left over at the end */
  int32_t count;
};

template <typename T, int states, typename Settings>
__global__ void __launch_bounds__(block_threads)
    update_elements(const __grid_constant__ Joined<T, states> joined, Settings settings, Source source) {
  using Factors = decltype(factors_of(settings, source));
  constexpr int wide = pack_width<T>;
  __shared__ Factors factors;
  if (is_skipped(source)) return;
  if (threadIdx.x == 0) factors = factors_of(settings, source);
  __syncthreads();
  Factors by = factors;
  int which = 0;
  for (int chunk = (int)blockIdx.x; chunk < joined.first_chunk[joined.count]; chunk += (int)gridDim.x) {
    while (chunk >= joined.first_chunk[which + 1])
      which++;
    const Arrays<T, states> &on = joined.on[which];
    int64_t begin = (int64_t)(chunk - joined.first_chunk[which]) * chunk_elements;
    int64_t end = min(begin + chunk_elements, joined.elements[which]);
    int64_t whole = joined.aligned >> which & 1U ? end / wide * wide : begin;
    for (int64_t p = begin / wide + threadIdx.x; p < whole / wide; p += block_threads)
      update_pack<T, states, Factors, wide>(on, by, p);
    for (int64_t i = whole + threadIdx.x; i < end; i += block_threads)
      update_pack<T, states, Factors, 1>(on, by, i);
  }
}

/* At most what the card holds at once. */
unsigned blocks_for(const Kernel *kernel, int64_t pieces) {
  int64_t most = (int64_t)kernel->device->multiprocessors * blocks_each;
  return (unsigned)(pieces < 1 ? 1 : pieces < most ? pieces : most);
}

template <typename T, int states>
void join(Joined<T, states> *joined, const Kernel *kernel, const CudaLaunch *launch) {
  int at = joined->count++;
  Arrays<T, states> &on = joined->on[at];
  on.w = (const T *)launch->inputs[0];
  on.dw = (const T *)launch->inputs[1];
  on.new_w = (T *)launch->outputs[0];
  uintptr_t addresses = launch->inputs[0] | launch->inputs[1] | launch->outputs[0];
  for (int s = 0; s < states; s++) {
    on.state[s] = (const T *)launch->inputs[2 + s];
    on.new_state[s] = (T *)launch->outputs[1 + s];
    addresses |= launch->inputs[2 + s] | launch->outputs[1 + s];
  }
  int64_t elements = vl_tensor_elements(kernel->node->inputs[0]);
  joined->elements[at] = elements;
  joined->first_chunk[at + 1] =
      joined->first_chunk[at] + (int32_t)((elements + chunk_elements - 1) / chunk_elements);
  if (addresses % 16 == 0) joined->aligned |= 1U << at;
}

/* Whether what a launch writes is what it reads, so that another launch may go before or beside it. */
bool is_in_place(const Kernel *kernel, const CudaLaunch *launch) {
  bool same = launch->outputs[0] == launch->inputs[0];
  for (int32_t k = 1; k < kernel->node->output_count; k++)
    same = same && launch->outputs[k] == launch->inputs[k + 1];
  return same;
}

bool is_same(const AdamwSettings &a, const AdamwSettings &b) {
  return a.learning_rate == b.learning_rate && a.weight_decay == b.weight_decay && a.beta1 == b.beta1 &&
         a.beta2 == b.beta2 && a.epsilon == b.epsilon;
}
bool is_same(const SgdSettings &a, const SgdSettings &b) {
  return a.learning_rate == b.learning_rate && a.momentum == b.momentum && a.weight_decay == b.weight_decay;
}
bool is_same(const Source &a, const Source &b) {
  return a.factor == b.factor && a.counters == b.counters && a.step == b.step;
}

/* The first launches of `count` that agree in type, settings and what changes from step to step. */
template <int states, typename Settings>
Status launch_elements(const Kernel *const *kernels, const CudaLaunch *launches, int32_t count,
                       Settings (*settings_of)(const OpParams *), int32_t *queued) {
  DType dtype = kernels[0]->node->inputs[0]->dtype;
  Settings settings = settings_of(&kernels[0]->node->params);
  Source source = source_of(kernels[0], &launches[0]);
  cudaError_t error = cudaSuccess;
  by_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    static_assert(sizeof(Joined<T, states>) + sizeof(Settings) + sizeof(Source) <= 4096, "arguments");
    Joined<T, states> joined = {};
    join(&joined, kernels[0], &launches[0]);
    bool alone = !is_in_place(kernels[0], &launches[0]);
    for (int32_t i = 1; !alone && i < count && i < most_joined; i++) {
      const Node *node = kernels[i]->node;
      if (node->inputs[0]->dtype != dtype || !is_same(settings, settings_of(&node->params)) ||
          !is_same(source, source_of(kernels[i], &launches[i])) || !is_in_place(kernels[i], &launches[i]))
        break;
      join(&joined, kernels[i], &launches[i]);
    }
    *queued = joined.count;
    unsigned blocks = blocks_for(kernels[0], joined.first_chunk[joined.count]);
    error = cuda_launch(update_elements<T, states, Settings>, blocks, block_threads, 0, launches[0].stream,
                        joined, settings, source);
  });
  return cuda_status(error, "cudaLaunchKernelEx", kernels[0]->node);
}

SgdSettings sgd_settings(const OpParams *params) {
  return SgdSettings{params->learning_rate, params->momentum, params->weight_decay};
}

Status launch_sgds(const Kernel *const *kernels, const CudaLaunch *launches, int32_t count, int32_t *queued) {
  return launch_elements<1>(kernels, launches, count, sgd_settings, queued);
}
Status launch_sgd(const Kernel *kernel, const CudaLaunch *launch) {
  int32_t queued;
  return launch_sgds(&kernel, launch, 1, &queued);
}

Status launch_adamws(const Kernel *const *kernels, const CudaLaunch *launches, int32_t count,
                     int32_t *queued) {
  return launch_elements<2>(kernels, launches, count, adamw_settings, queued);
}
Status launch_adamw(const Kernel *kernel, const CudaLaunch *launch) {
  int32_t queued;
  return launch_adamws(&kernel, launch, 1, &queued);
}

/* ---- Moments as codes: a warp takes a block of elements that share a scale ----------------------------- */

enum { IN_W, IN_DW, IN_M, IN_V, IN_SCALES };
enum { OUT_W, OUT_M, OUT_V, OUT_SCALES };

constexpr int lane_elements = VL_STATE_BLOCK / warp_size;

template <typename T> struct Coded {
  const T *w, *dw;
  T *new_w;
  const uint8_t *m, *v;
  uint8_t *new_m, *new_v;
  const float *scales; /* of means, then of squares */
  float *new_scales;
  int64_t elements, blocks;
  bool aligned; /* to 16 bytes, all of them */
};

/* A lane's elements, of which `count` are there. */
template <typename T>
__device__ inline void read_lane(const T *from, int count, bool aligned, T (&to)[lane_elements]) {
  constexpr int wide = pack_width<T> < lane_elements ? pack_width<T> : lane_elements;
  for (int k = 0; k < lane_elements; k += wide) {
    Pack<T, wide> pack = {};
    if (aligned && count == lane_elements) {
      pack = *reinterpret_cast<const Pack<T, wide> *>(from + k);
    } else {
      for (int i = 0; i < wide; i++)
        if (k + i < count) pack.at[i] = from[k + i];
    }
    for (int i = 0; i < wide; i++)
      to[k + i] = pack.at[i];
  }
}

template <typename T>
__device__ inline void write_lane(T *to, int count, bool aligned, const T (&from)[lane_elements]) {
  constexpr int wide = pack_width<T> < lane_elements ? pack_width<T> : lane_elements;
  for (int k = 0; k < lane_elements; k += wide) {
    Pack<T, wide> pack;
    for (int i = 0; i < wide; i++)
      pack.at[i] = from[k + i];
    if (aligned && count == lane_elements) {
      *reinterpret_cast<Pack<T, wide> *>(to + k) = pack;
    } else {
      for (int i = 0; i < wide; i++)
        if (k + i < count) to[k + i] = pack.at[i];
    }
  }
}

/* 1 / scale; 0 where that is no number: such a block is zero but for what no f32 product keeps. */
__device__ inline float inverse(float scale) {
  return scale >= 0x1p-120F && scale <= 0x1p120F ? 1.0F / scale : 0.0F;
}

/* means, squares: what codes stand for. */
template <typename T>
__device__ inline void update_block(const Coded<T> &on, const AdamwFactors &by, const float *means,
                                    const float *squares, int64_t block, int lane) {
  int64_t at = block * VL_STATE_BLOCK + lane * lane_elements, left = on.elements - at;
  int count = left < 0 ? 0 : left < lane_elements ? (int)left : lane_elements;
  T w[lane_elements], dw[lane_elements];
  uint8_t m[lane_elements], v[lane_elements];
  float mean[lane_elements], square[lane_elements], most_mean = 0.0F, most_square = 0.0F;
  read_lane(on.w + at, count, on.aligned, w);
  read_lane(on.dw + at, count, on.aligned, dw);
  read_lane(on.m + at, count, on.aligned, m);
  read_lane(on.v + at, count, on.aligned, v);
  float of_means = on.scales[block], of_squares = on.scales[on.blocks + block];
  for (int k = 0; k < lane_elements; k++) {
    float state[2] = {__fmul_rn(means[m[k]], of_means), __fmul_rn(squares[v[k]], of_squares)};
    float new_w = to_float(w[k]);
    update(by, to_float(dw[k]), new_w, state);
    w[k] = from_float<T>(new_w);
    mean[k] = k < count ? state[0] : 0.0F;
    square[k] = k < count ? state[1] : 0.0F;
    most_mean = fmaxf(most_mean, fabsf(mean[k]));
    most_square = fmaxf(most_square, square[k]);
  }
  most_mean = warp_max(most_mean);
  most_square = warp_max(most_square);
  float by_mean = inverse(most_mean), by_square = inverse(most_square);
  for (int k = 0; k < lane_elements; k++) {
    m[k] = code_of_value<true>(mean[k], by_mean);
    v[k] = code_of_value<false>(square[k], by_square);
  }
  write_lane(on.new_w + at, count, on.aligned, w);
  write_lane(on.new_m + at, count, on.aligned, m);
  write_lane(on.new_v + at, count, on.aligned, v);
  if (lane != 0) return;
  on.new_scales[block] = most_mean;
  on.new_scales[on.blocks + block] = most_square;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    update_blocks(Coded<T> on, AdamwSettings settings, Source source) {
  static_assert(block_threads == 256, "a thread for each code");
  __shared__ AdamwFactors factors;
  __shared__ float means[256], squares[256];
  if (is_skipped(source)) return;
  means[threadIdx.x] = value_of_code<true>((uint8_t)threadIdx.x);
  squares[threadIdx.x] = value_of_code<false>((uint8_t)threadIdx.x);
  if (threadIdx.x == 0) factors = factors_of(settings, source);
  __syncthreads();
  AdamwFactors by = factors;
  int lane = (int)threadIdx.x % warp_size;
  for (int64_t block = global_index() / warp_size; block < on.blocks; block += grid_threads() / warp_size)
    update_block(on, by, means, squares, block, lane);
}

Status launch_8bit(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  uintptr_t addresses = 0;
  for (int32_t i = IN_W; i <= IN_V; i++)
    addresses |= launch->inputs[i];
  for (int32_t i = OUT_W; i <= OUT_V; i++)
    addresses |= launch->outputs[i];
  cudaError_t error = cudaSuccess;
  by_float(node->inputs[IN_W]->dtype, [&](auto zero) {
    using T = decltype(zero);
    Coded<T> on = {(const T *)launch->inputs[IN_W],       (const T *)launch->inputs[IN_DW],
                   (T *)launch->outputs[OUT_W],           (const uint8_t *)launch->inputs[IN_M],
                   (const uint8_t *)launch->inputs[IN_V], (uint8_t *)launch->outputs[OUT_M],
                   (uint8_t *)launch->outputs[OUT_V],     (const float *)launch->inputs[IN_SCALES],
                   (float *)launch->outputs[OUT_SCALES],  vl_tensor_elements(node->inputs[IN_W]),
                   node->inputs[IN_SCALES]->shape[1],     addresses % 16 == 0};
    error = cuda_launch(
        update_blocks<T>, blocks_for(kernel, (on.blocks * warp_size + block_threads - 1) / block_threads),
        block_threads, 0, launch->stream, on, adamw_settings(&node->params), source_of(kernel, launch));
  });
  return cuda_status(error, "cudaLaunchKernelEx", node);
}

/* Blocks are of neighbours in the logical order. */
Status prepare_8bit(CudaDevice *, Kernel *kernel) {
  if (kernel->inputs[IN_W] == LAYOUT_PLAIN) return vl_ok();
  return vl_error(VL_INTERNAL, "adamw_8bit in %s: channels last; only plain is possible",
                  kernel->node->scope);
}

} // namespace

const CudaOp cuda_op_sgd = {
    .name = "sgd",
    .supports = cuda_supports_floats,
    .choose_layouts = choose_layouts,
    .launch = launch_sgd,
    .launch_together = launch_sgds,
};

const CudaOp cuda_op_adamw = {
    .name = "adamw",
    .supports = cuda_supports_floats,
    .choose_layouts = choose_layouts,
    .launch = launch_adamw,
    .launch_together = launch_adamws,
};

const CudaOp cuda_op_adamw_8bit = {
    .name = "adamw_8bit",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .prepare = prepare_8bit,
    .launch = launch_8bit,
};
