/* Weight gradient of 1x1 convolutions in bf16, channels in blocks of 16: dw = x^T dy over all points, on the
 * dot product of bf16 pairs (AVX512_BF16). The library's kernel reaches 60 % of what its forward pass does
 * here, since pairs must lie along the points: this one interleaves a run of points of every channel block
 * once and then streams over it from the cache.
 *
 * Each thread takes a share of the points and sums into an own f32 copy of dw; the copies are added in thread
 * order, so results depend on inputs and thread count only. */
#include "kernels/cpu/conv_pointwise.h"

#include <omp.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_POINTWISE 1
#include <immintrin.h>
#define POINTWISE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#else
#define HAS_POINTWISE 0
#endif

enum {
  BLOCK = 16,            /* channels of a block */
  PAIR = 2 * BLOCK,      /* bf16 values of two interleaved rows */
  TILE_ROWS = 8,         /* input channels a tile of registers holds: half a block */
  RUN_BYTES = 640 << 10, /* of interleaved points a thread keeps in its second-level cache */
  RUN_LEAST = 64,
  RUN_MOST = 512 /* points of a run; even */
};

typedef struct Pointwise {
  ChannelView x, dy;
  int64_t points;            /* n * output space */
  int64_t width_x, width_dy; /* of a row of space */
  int64_t stride;
  int64_t space_x, space_dy;
  int64_t run;        /* points interleaved at a time */
  bool outputs_first; /* dw's blocks: output channels outermost, else input channels */
} Pointwise;

static int64_t by_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Bytes a thread has for itself: where each point of a run is, the interleaved runs, its copy of dw. */
static int64_t rows_bytes(const Pointwise *it) { return by_line(it->run * (int64_t)sizeof(int64_t)); }
static int64_t packed_bytes(const Pointwise *it, const ChannelView *view) {
  return by_line(view->channel_blocks * it->run * BLOCK * 2);
}
static int64_t gradient_bytes(const Pointwise *it) { return it->x.channels * it->dy.channels * 4; }
static int64_t thread_bytes(const Pointwise *it) {
  return 2 * rows_bytes(it) + packed_bytes(it, &it->x) + packed_bytes(it, &it->dy) + gradient_bytes(it);
}

static bool has_bf16_dot(void) {
#if HAS_POINTWISE
  return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_bf16 &&
         __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

static bool is_pointwise(const Node *node) {
  const Tensor *x = node->inputs[0], *dy = node->inputs[1], *dw = node->outputs[0];
  if (dw == NULL || x->rank != 4 || node->params.groups > 1) return false;
  if (dw->shape[2] != 1 || dw->shape[3] != 1) return false;
  if (node->params.padding[0] != 0 || node->params.padding[1] != 0) return false;
  if (node->params.stride[0] != node->params.stride[1]) return false;
  return x->dtype == DTYPE_BF16 && dy->dtype == DTYPE_BF16 && dw->dtype == DTYPE_F32 &&
         x->shape[1] % BLOCK == 0 && dy->shape[1] % (2 * BLOCK) == 0;
}

bool cpu_conv_pointwise_applies(CpuDevice *device, const Kernel *kernel) {
  if (!has_bf16_dot() || !is_pointwise(kernel->node)) return false;
  LayoutId blocked = cpu_layout_blocked(device, 4, BLOCK);
  const char *weights = cpu_layout_name(device, kernel->outputs[0]);
  return kernel->inputs[0] == blocked && kernel->inputs[1] == blocked &&
         (strcmp(weights, "ABcd16b16a") == 0 || strcmp(weights, "BAcd16b16a") == 0);
}

Status cpu_conv_pointwise_prepare(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  Pointwise *it = vl_allocate(sizeof *it);
  kernel->data = it;
  VL_TRY(cpu_channel_view(device, kernel->inputs[0], node->inputs[0], &it->x));
  VL_TRY(cpu_channel_view(device, kernel->inputs[1], node->inputs[1], &it->dy));
  it->width_x = node->inputs[0]->shape[3];
  it->width_dy = node->inputs[1]->shape[3];
  it->stride = node->params.stride[0];
  it->space_x = it->x.spatial;
  it->space_dy = it->dy.spatial;
  it->points = it->dy.n * it->space_dy;
  it->outputs_first = cpu_layout_name(device, kernel->outputs[0])[0] == 'A';
  int64_t run = RUN_BYTES / (2 * (it->x.channels + it->dy.channels)) / 2 * 2;
  it->run = run < RUN_LEAST ? RUN_LEAST : run > RUN_MOST ? RUN_MOST : run;
  kernel->workspace_bytes = kernel->threads * thread_bytes(it);
  snprintf(kernel->implementation, sizeof kernel->implementation, "own:pointwise:avx512_bf16");
  return vl_ok();
}

#if HAS_POINTWISE

/* Where each point of a run lies, in rows of BLOCK values, for channel block 0. */
static void find_rows(const Pointwise *it, int64_t first, int64_t count, int64_t *rows_x, int64_t *rows_dy) {
  for (int64_t k = 0; k < count; k++) {
    int64_t n = (first + k) / it->space_dy, point = (first + k) % it->space_dy;
    int64_t row = point / it->width_dy * it->stride, column = point % it->width_dy * it->stride;
    rows_dy[k] = n * it->dy.channel_blocks * it->space_dy + point;
    rows_x[k] = n * it->x.channel_blocks * it->space_x + row * it->width_x + column;
  }
}

/* Interleaves the points of one channel block by pairs: [pair][channel][2]; an odd last one with zeros. */
POINTWISE_TARGET
static void interleave(const uint16_t *from, const int64_t *rows, int64_t count, uint16_t *to) {
  _Alignas(64) static const uint16_t order[PAIR] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                    21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                    11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i places = _mm512_load_si512(order);
  for (int64_t k = 0; k < count; k += 2) {
    const uint16_t *even = from + rows[k] * BLOCK;
    __m512i pair;
    if (k + 1 < count && rows[k + 1] == rows[k] + 1) {
      pair = _mm512_loadu_si512(even);
    } else {
      __m256i odd = k + 1 < count ? _mm256_loadu_si256((const void *)(from + rows[k + 1] * BLOCK))
                                  : _mm256_setzero_si256();
      pair = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)even)), odd, 1);
    }
    _mm512_store_si512(to + k * BLOCK, _mm512_permutexvar_epi16(places, pair));
  }
}

/* dw of TILE_ROWS input channels and two blocks of output channels grows by the products of a run. */
POINTWISE_TARGET
static void multiply_tile(const uint16_t *x, const uint16_t *dy0, const uint16_t *dy1, int64_t pairs,
                          float *dw0, float *dw1) {
  __m512 sum0[TILE_ROWS], sum1[TILE_ROWS]; /* registers, once every loop over them is unrolled */
#pragma GCC unroll 8
  for (int32_t i = 0; i < TILE_ROWS; i++) {
    sum0[i] = _mm512_load_ps(dw0 + i * BLOCK);
    sum1[i] = _mm512_load_ps(dw1 + i * BLOCK);
  }
  for (int64_t k = 0; k < pairs; k++) {
    __m512bh first = (__m512bh)_mm512_load_si512(dy0 + k * PAIR);
    __m512bh second = (__m512bh)_mm512_load_si512(dy1 + k * PAIR);
    const uint16_t *row = x + k * PAIR;
#pragma GCC unroll 8
    for (int32_t i = 0; i < TILE_ROWS; i++) {
      int32_t both;
      memcpy(&both, row + 2 * i, sizeof both);
      __m512bh value = (__m512bh)_mm512_set1_epi32(both);
      sum0[i] = _mm512_dpbf16_ps(sum0[i], first, value);
      sum1[i] = _mm512_dpbf16_ps(sum1[i], second, value);
    }
  }
#pragma GCC unroll 8
  for (int32_t i = 0; i < TILE_ROWS; i++) {
    _mm512_store_ps(dw0 + i * BLOCK, sum0[i]);
    _mm512_store_ps(dw1 + i * BLOCK, sum1[i]);
  }
}

/* The block of dw for output block o and input block i: [input channel][output channel]. */
static float *gradient_block(const Pointwise *it, float *dw, int64_t o, int64_t i) {
  int64_t index = it->outputs_first ? o * it->x.channel_blocks + i : i * it->dy.channel_blocks + o;
  return dw + index * BLOCK * BLOCK;
}

static void multiply_run(const Pointwise *it, const uint16_t *x, const uint16_t *dy, int64_t count,
                         float *dw) {
  int64_t pairs = (count + 1) / 2, stride = it->run * BLOCK;
  for (int64_t o = 0; o < it->dy.channel_blocks; o += 2) {
    for (int64_t i = 0; i < it->x.channel_blocks; i++) {
      float *dw0 = gradient_block(it, dw, o, i), *dw1 = gradient_block(it, dw, o + 1, i);
      for (int64_t half = 0; half < BLOCK; half += TILE_ROWS) {
        multiply_tile(x + i * stride + 2 * half, dy + o * stride, dy + (o + 1) * stride, pairs,
                      dw0 + half * BLOCK, dw1 + half * BLOCK);
      }
    }
  }
}

/* One thread's points, into its own copy of dw. */
static void multiply_share(const Pointwise *it, const uint16_t *x, const uint16_t *dy, int64_t begin,
                           int64_t end, uintptr_t memory) {
  int64_t *rows_x = (int64_t *)memory, *rows_dy = (int64_t *)(memory + (uintptr_t)rows_bytes(it));
  uintptr_t packed = memory + 2 * (uintptr_t)rows_bytes(it);
  uint16_t *packed_x = (uint16_t *)packed;
  uint16_t *packed_dy = (uint16_t *)(packed + (uintptr_t)packed_bytes(it, &it->x));
  float *dw = (float *)(packed + (uintptr_t)(packed_bytes(it, &it->x) + packed_bytes(it, &it->dy)));
  memset(dw, 0, (size_t)gradient_bytes(it));
  for (int64_t first = begin; first < end; first += it->run) {
    int64_t count = end - first < it->run ? end - first : it->run;
    find_rows(it, first, count, rows_x, rows_dy);
    for (int64_t b = 0; b < it->x.channel_blocks; b++)
      interleave(x + b * it->space_x * BLOCK, rows_x, count, packed_x + b * it->run * BLOCK);
    for (int64_t b = 0; b < it->dy.channel_blocks; b++)
      interleave(dy + b * it->space_dy * BLOCK, rows_dy, count, packed_dy + b * it->run * BLOCK);
    multiply_run(it, packed_x, packed_dy, count, dw);
  }
}

Status cpu_conv_pointwise_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                 uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const Pointwise *it = kernel->data;
  int64_t elements = it->x.channels * it->dy.channels, own = thread_bytes(it);
  float *dw = (float *)outputs[0];
#pragma omp parallel num_threads(kernel->threads)
  {
    int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    multiply_share(it, (const uint16_t *)inputs[0], (const uint16_t *)inputs[1],
                   it->points * thread / threads, it->points * (thread + 1) / threads,
                   workspace + (uintptr_t)(thread * own));
#pragma omp barrier
    int64_t from = elements * thread / threads, to = elements * (thread + 1) / threads;
    for (int64_t t = 0; t < threads; t++) {
      const float *part = (const float *)(workspace + (uintptr_t)((t + 1) * own - gradient_bytes(it)));
      for (int64_t e = from; e < to; e++)
        dw[e] = t == 0 ? part[e] : dw[e] + part[e];
    }
  }
  return vl_ok();
}

#else

Status cpu_conv_pointwise_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                 uintptr_t workspace, const LaunchContext *context) {
  (void)kernel, (void)inputs, (void)outputs, (void)workspace, (void)context;
  return vl_error(VL_INTERNAL, "this build has no kernel for pointwise weight gradients");
}

#endif
