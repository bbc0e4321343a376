#include "kernels/cuda/channel_norm.cuh"

#include <math.h>

namespace {

constexpr int block_threads = 256, block_warps = block_threads / warp_size;
constexpr int wide = 4;                           /* channels of a thread; 1 where they do not allow it */
constexpr int most_across = 32;                   /* threads of a block along channels */
constexpr int most_channels = most_across * wide; /* of a block */

/* ---- Work ---------------------------------------------------------------------------------------------- */

/* How a tensor's rows are cut. The grid is (tiles of channels of all groups, parts of rows). */
struct ChannelTiles {
  int64_t rows, channels;
  int64_t part_rows;
  int32_t across; /* a power of two; the other threads of a block are along rows */
  int32_t tiles, parts, groups;
};

/* `most_blocks` are enough to keep a card busy, or a part of few rows gives each thread `least_rows`. */
ChannelTiles cut_rows(const ChannelRows *rows, int width, int64_t least_rows, int64_t most_blocks) {
  int64_t packs = (rows->channels + width - 1) / width;
  ChannelTiles tiles = {};
  tiles.rows = rows->rows;
  tiles.channels = rows->channels;
  tiles.groups = (int32_t)rows->groups;
  tiles.across = most_across;
  while (tiles.across > 1 && tiles.across / 2 >= packs)
    tiles.across /= 2;
  /* Fewer side by side where more than an eighth of them would have no channels. */
  while (tiles.across > 8 && 8 * ((packs + tiles.across - 1) / tiles.across * tiles.across - packs) > packs)
    tiles.across /= 2;
  tiles.tiles = (int32_t)((packs + tiles.across - 1) / tiles.across);
  int64_t along = block_threads / tiles.across;
  int64_t most = (rows->rows + along * least_rows - 1) / (along * least_rows);
  int64_t parts = most_blocks / ((int64_t)tiles.tiles * rows->groups);
  parts = parts < 1 ? 1 : parts > most ? most : parts;
  tiles.part_rows = (rows->rows + parts - 1) / parts;
  tiles.part_rows = (tiles.part_rows + along - 1) / along * along;
  tiles.parts = (int32_t)((rows->rows + tiles.part_rows - 1) / tiles.part_rows);
  return tiles;
}

/* Sums are made by few blocks, since each writes what it has found. */
ChannelTiles sum_tiles(const ChannelRows *rows, int width) { return cut_rows(rows, width, 16, 1024); }
ChannelTiles write_tiles(const ChannelRows *rows, int width) { return cut_rows(rows, width, 8, 4096); }

dim3 grid_of(const ChannelTiles &tiles) {
  return dim3((unsigned)tiles.tiles * (unsigned)tiles.groups, (unsigned)tiles.parts);
}

/* Floats of one number for each part, group and channel. */
int64_t plane_of(const ChannelTiles &tiles) { return (int64_t)tiles.parts * tiles.groups * tiles.channels; }

/* Of whichever kernel: addresses, which decide, are not known ahead. */
int64_t largest_plane(const ChannelRows *rows) {
  int64_t narrow = plane_of(sum_tiles(rows, 1)), of_wide = plane_of(sum_tiles(rows, wide));
  return narrow > of_wide ? narrow : of_wide;
}

bool is_wide(const ChannelRows *rows) { return rows->channels % wide == 0; }

__device__ inline int64_t end_of_part(const ChannelTiles &tiles, int64_t part) {
  int64_t end = (part + 1) * tiles.part_rows;
  return end < tiles.rows ? end : tiles.rows;
}

/* What a thread takes. */
struct Place {
  int64_t row, end;  /* of the group: every `step`-th; none where the thread has no channel */
  int64_t at;        /* element of the first of them */
  int64_t next;      /* elements from one to the other */
  int64_t statistic; /* of the first channel, in [group][channel] */
  int64_t channel;
  int step, part;
};

/* `backwards`: the last rows come first. What was read last is what a cache still holds. */
template <int width> __device__ inline Place place_of(const ChannelTiles &tiles, bool backwards) {
  Place place;
  int group = (int)blockIdx.x / tiles.tiles, tile = (int)blockIdx.x % tiles.tiles;
  place.part = (int)(backwards ? gridDim.y - 1 - blockIdx.y : blockIdx.y);
  place.step = block_threads / tiles.across;
  place.next = place.step * tiles.channels;
  place.channel = ((int64_t)tile * tiles.across + (int)threadIdx.x % tiles.across) * width;
  place.row = place.part * tiles.part_rows + (int)threadIdx.x / tiles.across;
  place.end = place.channel < tiles.channels ? end_of_part(tiles, place.part) : 0;
  place.at = (group * tiles.rows + place.row) * tiles.channels + place.channel;
  place.statistic = group * tiles.channels + place.channel;
  return place;
}

/* How many rows a thread has. */
__device__ inline int rows_of(const Place &place) {
  return place.row < place.end ? (int)((place.end - place.row + place.step - 1) / place.step) : 0;
}

/* Of a power of two of values, whose places it uses. */
template <int count> __device__ inline float tree_sum(float (&value)[count]) {
  for (int half = count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++)
      value[i] += value[i + half];
  return value[0];
}

/* ---- Sums of a block ----------------------------------------------------------------------------------- */

/* Adds up what the block's threads have for the same channels, two numbers each, and writes it to planes. */
template <int width>
__device__ inline void write_sums(const ChannelTiles &tiles, const Place &place, float (&a)[width],
                                  float (&b)[width], float *of_a, float *of_b) {
  __shared__ float of_warps[2][block_warps][most_channels];
  for (int distance = warp_size / 2; distance >= tiles.across; distance /= 2) {
    for (int i = 0; i < width; i++) {
      a[i] += __shfl_xor_sync(whole_warp, a[i], distance);
      b[i] += __shfl_xor_sync(whole_warp, b[i], distance);
    }
  }
  int lane = (int)threadIdx.x % warp_size, warp = (int)threadIdx.x / warp_size;
  if (lane < tiles.across) {
    for (int i = 0; i < width; i++) {
      of_warps[0][warp][lane * width + i] = a[i];
      of_warps[1][warp][lane * width + i] = b[i];
    }
  }
  __syncthreads();
  int k = (int)threadIdx.x, tile = (int)blockIdx.x % tiles.tiles, group = (int)blockIdx.x / tiles.tiles;
  int64_t channel = (int64_t)tile * tiles.across * width + k;
  if (k >= tiles.across * width || channel >= tiles.channels) return;
  int64_t at = ((int64_t)place.part * tiles.groups + group) * tiles.channels + channel;
  float sum_a = 0.0F, sum_b = 0.0F;
  for (int w = 0; w < block_warps; w++) {
    sum_a += of_warps[0][w][k];
    sum_b += of_warps[1][w][k];
  }
  of_a[at] = sum_a;
  of_b[at] = sum_b;
}

/* ---- Statistics ------------------------------------------------------------------------------------------
 * Of d = x - shift, where a thread's shift is the mean of its first rows: sum d and sum d^2. Then all shifts
 * of a block give way to one, and in the second kernel all blocks' to the first block's. With n rows, and e
 * from the one shift to the other:
 *   sum (d + e) = sum d + n e
 *   sum (d + e)^2 = sum d^2 + e (2 sum d + n e)
 * Every shift is a mean of values of the group, so that its square distance from the group's mean is at most
 * the farthest value's (tests/kernels/README.md, instance_norm). */

template <typename T, int width>
__global__ void __launch_bounds__(block_threads, 3)
    add_deviations(ChannelTiles tiles, const T *x, float *shifts, float *sums, float *squares) {
  __shared__ float shift_of_block[most_channels];
  Place place = place_of<width>(tiles, false);
  int rows = rows_of(place);
  float shift[width] = {}, sum[width] = {}, square[width] = {};
  constexpr int at_once = 16 / (int)sizeof(T); /* rows that are read before the first of them is used */
  const T *from = x + place.at;
  for (int row = 0; row < rows; row += at_once, from += at_once * place.next) {
    Pack<T, width> packs[at_once] = {};
    for (int k = 0; k < at_once; k++)
      if (row + k < rows) packs[k] = load_pack<width>(from + k * place.next);
    for (int i = 0; i < width; i++) {
      float d[at_once], squares_of[at_once];
      if (row == 0 && rows < at_once) shift[i] = to_float(packs[0].at[i]);
      if (row == 0 && rows >= at_once) { /* products that cannot overflow */
        for (int k = 0; k < at_once; k++)
          d[k] = 1.0F / at_once * to_float(packs[k].at[i]);
        shift[i] = tree_sum(d);
      }
      for (int k = 0; k < at_once; k++) {
        d[k] = row + k < rows ? to_float(packs[k].at[i]) - shift[i] : 0.0F;
        squares_of[k] = d[k] * d[k];
      }
      sum[i] += tree_sum(d);
      square[i] += tree_sum(squares_of);
    }
  }
  /* The block's shift is that of its first row's threads, which have rows where any has. */
  int across = (int)threadIdx.x % tiles.across;
  if ((int)threadIdx.x < tiles.across) {
    int64_t at = (int64_t)place.part * tiles.groups * tiles.channels + place.statistic;
    for (int i = 0; i < width; i++) {
      shift_of_block[across * width + i] = shift[i];
      if (rows > 0) shifts[at + i] = shift[i];
    }
  }
  __syncthreads();
  for (int i = 0; i < width; i++) {
    float e = rows > 0 ? shift[i] - shift_of_block[across * width + i] : 0.0F;
    square[i] += e * (2.0F * sum[i] + (float)rows * e);
    sum[i] += (float)rows * e;
  }
  write_sums(tiles, place, sum, square, sums, squares);
}

/* mean, and var or rstd, from the parts. */
__global__ void __launch_bounds__(fold_threads)
    combine_deviations(ChannelTiles tiles, const float *shifts, const float *sums, const float *squares,
                       float *mean, float *var, float *rstd, double epsilon) {
  __shared__ double scratch[2][fold_threads / warp_size][fold_columns];
  int64_t statistics = (int64_t)tiles.groups * tiles.channels, k = fold_column();
  double sum = 0.0, square = 0.0, shift = k < statistics ? (double)shifts[k] : 0.0;
  for (int64_t part = fold_lane(); k < statistics && part < tiles.parts; part += fold_lanes) {
    int64_t at = part * statistics + k;
    double rows = (double)(end_of_part(tiles, part) - part * tiles.part_rows);
    double e = (double)shifts[at] - shift, d = (double)sums[at];
    square += (double)squares[at] + e * (2.0 * d + rows * e);
    sum += d + rows * e;
  }
  sum = fold_sum(sum, scratch[0]);
  square = fold_sum(square, scratch[1]);
  if (k >= statistics || fold_lane() != 0) return;
  double rows = (double)tiles.rows, difference = sum / rows;
  double variance = square / rows - difference * difference;
  variance = variance < 0.0 ? 0.0 : variance; /* NaN stays */
  if (mean != NULL) mean[k] = (float)(shift + difference);
  if (var != NULL) var[k] = (float)variance;
  if (rstd != NULL) rstd[k] = (float)(1.0 / sqrt(variance + epsilon));
}

/* ---- Factors --------------------------------------------------------------------------------------------- */

/* As kernels have them. */
struct Factors {
  const float *mean, *var, *rstd;
  FloatArray gamma, beta;
  float epsilon;
};

Factors factors_of(const ChannelFactors &by) {
  return Factors{by.mean, by.var, by.rstd, by.gamma, by.beta, (float)by.epsilon};
}

template <int width> struct Coefficients { float mean[width], scale[width], beta[width]; };

/* Of a thread that has channels; beta is 0 where there is none. */
template <int width>
__device__ inline Coefficients<width> coefficients_of(const Factors &by, const Place &place) {
  Coefficients<width> all;
  for (int i = 0; i < width; i++) {
    float gamma = element_of(by.gamma, place.channel + i);
    all.mean[i] = by.mean[place.statistic + i];
    all.scale[i] = by.rstd != NULL ? gamma * by.rstd[place.statistic + i]
                                   : gamma / sqrtf(by.var[place.statistic + i] + by.epsilon);
    all.beta[i] = by.beta.at != NULL ? element_of(by.beta, place.channel + i) : 0.0F;
  }
  return all;
}

/* The normalised value. The one expression for it: backward finds the sign of forward's result by repeating
 * it. x - mean comes first, so that a mean of many deviations costs no digits. */
__device__ inline float normalised(float x, float mean, float scale, float beta) {
  return fmaf(x - mean, scale, beta);
}

/* Below zero a slope of 1 changes nothing, and one of 0 gives 0 whatever it is multiplied by; NaN stays. */
__device__ inline float activated(float value, float slope) {
  return value < 0.0F ? (slope == 0.0F ? 0.0F : slope * value) : value;
}

/* ---- Application ----------------------------------------------------------------------------------------- */

template <typename T> struct Application {
  const T *x, *residual;
  T *y;
  float slope; /* below zero */
};

template <typename T, int width>
__global__ void __launch_bounds__(block_threads, 4) apply(ChannelTiles tiles, Application<T> of, Factors by) {
  Place place = place_of<width>(tiles, true);
  int rows = rows_of(place);
  if (rows == 0) return;
  Coefficients<width> all = coefficients_of<width>(by, place);
  constexpr int at_once = 4;
  int64_t at = place.at;
  for (int row = 0; row < rows; row += at_once, at += at_once * place.next) {
    Pack<T, width> packs[at_once] = {}, others[at_once] = {};
    for (int k = 0; k < at_once; k++) {
      if (row + k >= rows) continue;
      packs[k] = load_pack<width>(of.x + at + k * place.next);
      if (of.residual != NULL) others[k] = load_pack<width>(of.residual + at + k * place.next);
    }
    for (int k = 0; k < at_once; k++) {
      if (row + k >= rows) continue;
      float y[width];
      for (int i = 0; i < width; i++) {
        y[i] = normalised(to_float(packs[k].at[i]), all.mean[i], all.scale[i], all.beta[i]);
        y[i] = activated(y[i] + to_float(others[k].at[i]), of.slope);
      }
      store_values(of.y + at + k * place.next, y);
    }
  }
}

/* Its inverse, for any type: x = (z - beta) / scale + mean, by the reciprocal. */
template <int width>
__global__ void __launch_bounds__(block_threads)
    invert(ChannelTiles tiles, FloatArray y, FloatArray x, Factors by, float steepness) {
  Place place = place_of<width>(tiles, true);
  int rows = rows_of(place);
  if (rows == 0) return;
  float mean[width], inverse[width], beta[width];
  for (int i = 0; i < width; i++) {
    float deviation = (float)sqrt((double)by.var[place.statistic + i] + (double)by.epsilon);
    inverse[i] = deviation / element_of(by.gamma, place.channel + i);
    mean[i] = by.mean[place.statistic + i];
    beta[i] = element_of(by.beta, place.channel + i);
  }
  constexpr int at_once = 4;
  int64_t at = place.at;
  for (int row = 0; row < rows; row += at_once, at += at_once * place.next) {
    float value[at_once][width];
    for (int k = 0; k < at_once; k++)
      if (row + k < rows) load_values(value[k], y, at + k * place.next);
    for (int k = 0; k < at_once; k++) {
      if (row + k >= rows) continue;
      for (int i = 0; i < width; i++)
        value[k][i] = fmaf(activated(value[k][i], steepness) - beta[i], inverse[i], mean[i]);
      store_values(x, at + k * place.next, value[k]);
    }
  }
}

/* ---- Gradient ----------------------------------------------------------------------------------------------
 * With g the gradient behind the activation, t = x - mean, r = rstd and n rows a group:
 *   dbeta = sum g, dgamma = sum r g t, over groups
 *   dx = gamma r (g - E g - t r^2 E(g t)) = scale g + (slope t + constant) */

template <typename T> struct Operands {
  const T *x, *dy, *dy2, *y;
  T *dx, *dresidual;
  ChannelMask mask;
  float below; /* see ChannelGradient.slope */
};

/* Rows a thread reads at once, of up to four tensors. */
template <typename T> constexpr int gradient_batch = 8 / (int)sizeof(T);

/* What a thread reads of a row. */
template <typename T, int width> struct RowPacks { Pack<T, width> x, dy, dy2, y; };

template <typename T, int width>
__device__ inline void read_row(const Operands<T> &of, int64_t at, RowPacks<T, width> &row) {
  row.x = load_pack<width>(of.x + at);
  row.dy = load_pack<width>(of.dy + at);
  if (of.dy2 != NULL) row.dy2 = load_pack<width>(of.dy2 + at);
  if (of.mask == CHANNEL_MASK_BY_Y) row.y = load_pack<width>(of.y + at);
}

/* The gradient behind the activation. */
template <typename T, int width>
__device__ inline void masked(const Operands<T> &of, const RowPacks<T, width> &row,
                              const Coefficients<width> &all, float (&g)[width]) {
  for (int i = 0; i < width; i++)
    g[i] = to_float(row.dy.at[i]) + (of.dy2 != NULL ? to_float(row.dy2.at[i]) : 0.0F);
  if (of.mask == CHANNEL_MASK_NONE) return;
  for (int i = 0; i < width; i++) {
    float y = to_float(row.y.at[i]);
    if (of.mask == CHANNEL_MASK_BY_X) { /* forward's result, rounded as it was: it may have become zero */
      y = normalised(to_float(row.x.at[i]), all.mean[i], all.scale[i], all.beta[i]);
      y = to_float(from_float<T>(y));
    }
    if (!(y > 0.0F)) g[i] = of.below == 0.0F ? 0.0F : of.below * g[i];
  }
}

/* sum g and sum g t; the gradient itself where there is a place for it. */
template <typename T, int width>
__global__ void __launch_bounds__(block_threads, sizeof(T) == 4 ? 3 : 2)
    add_gradients(ChannelTiles tiles, Operands<T> of, Factors by, float *sums, float *products) {
  constexpr int at_once = gradient_batch<T>;
  Place place = place_of<width>(tiles, false);
  int rows = rows_of(place);
  Coefficients<width> all = {};
  if (rows > 0) all = coefficients_of<width>(by, place);
  float sum[width] = {}, product[width] = {};
  int64_t at = place.at;
  for (int row = 0; row < rows; row += at_once, at += at_once * place.next) {
    RowPacks<T, width> packs[at_once] = {};
    for (int k = 0; k < at_once; k++)
      if (row + k < rows) read_row(of, at + k * place.next, packs[k]);
    for (int k = 0; k < at_once; k++) {
      if (row + k >= rows) continue;
      float g[width];
      masked(of, packs[k], all, g);
      for (int i = 0; i < width; i++) {
        sum[i] += g[i];
        product[i] += g[i] * (to_float(packs[k].x.at[i]) - all.mean[i]);
      }
      if (of.dresidual != NULL) store_values(of.dresidual + at + k * place.next, g);
    }
  }
  write_sums(tiles, place, sum, product, sums, products);
}

/* What dx needs of the sums, [group][channel]. */
struct GradientMeans {
  float *slope, *constant;
};

__global__ void __launch_bounds__(fold_threads)
    combine_gradients(ChannelTiles tiles, const float *sums, const float *products, Factors by,
                      double epsilon, GradientMeans to, float *dgamma, float *dbeta) {
  __shared__ double scratch[2][fold_threads / warp_size][fold_columns];
  int64_t statistics = (int64_t)tiles.groups * tiles.channels, channel = fold_column();
  bool real = channel < tiles.channels;
  double of_gamma = 0.0, of_beta = 0.0;
  for (int group = 0; group < tiles.groups; group++) {
    int64_t k = group * tiles.channels + channel;
    double sum = 0.0, product = 0.0;
    for (int part = fold_lane(); real && part < tiles.parts; part += fold_lanes) {
      sum += (double)sums[part * statistics + k];
      product += (double)products[part * statistics + k];
    }
    sum = fold_sum(sum, scratch[0]);
    product = fold_sum(product, scratch[1]);
    if (real && fold_lane() == 0) {
      double r = by.rstd != NULL ? (double)by.rstd[k] : 1.0 / sqrt((double)by.var[k] + epsilon);
      double scale = (double)element_of(by.gamma, channel) * r, rows = (double)tiles.rows;
      to.slope[k] = (float)(-scale * r * r * product / rows);
      to.constant[k] = (float)(-scale * sum / rows);
      of_gamma += r * product;
      of_beta += sum;
    }
    __syncthreads(); /* scratch is used again */
  }
  if (!real || fold_lane() != 0) return;
  if (dgamma != NULL) dgamma[channel] = (float)of_gamma;
  if (dbeta != NULL) dbeta[channel] = (float)of_beta;
}

template <typename T, int width>
__global__ void __launch_bounds__(block_threads, sizeof(T) == 4 ? 3 : 2)
    differentiate(ChannelTiles tiles, Operands<T> of, Factors by, GradientMeans means) {
  constexpr int at_once = gradient_batch<T>;
  Place place = place_of<width>(tiles, true);
  int rows = rows_of(place);
  if (rows == 0) return;
  Coefficients<width> all = coefficients_of<width>(by, place);
  float slope[width], constant[width];
  for (int i = 0; i < width; i++) {
    slope[i] = means.slope[place.statistic + i];
    constant[i] = means.constant[place.statistic + i];
  }
  int64_t at = place.at;
  for (int row = 0; row < rows; row += at_once, at += at_once * place.next) {
    RowPacks<T, width> packs[at_once] = {};
    for (int k = 0; k < at_once; k++)
      if (row + k < rows) read_row(of, at + k * place.next, packs[k]);
    for (int k = 0; k < at_once; k++) {
      if (row + k >= rows) continue;
      float g[width], dx[width];
      masked(of, packs[k], all, g);
      for (int i = 0; i < width; i++) {
        float t = to_float(packs[k].x.at[i]) - all.mean[i];
        dx[i] = fmaf(all.scale[i], g[i], fmaf(t, slope[i], constant[i]));
      }
      if (of.dresidual != NULL) store_values(of.dresidual + at + k * place.next, g);
      if (of.dx != NULL) store_values(of.dx + at + k * place.next, dx);
    }
  }
}

} // namespace

/* ---- On the host ----------------------------------------------------------------------------------------- */

Status channel_norm_check(const Kernel *kernel, int32_t activation) {
  const Node *node = kernel->node;
  int32_t rank = node->inputs[activation]->rank;
  for (int32_t i = 0; rank > 2 && i < node->input_count + node->output_count; i++) {
    bool input = i < node->input_count;
    const Tensor *tensor = input ? node->inputs[i] : node->outputs[i - node->input_count];
    LayoutId layout = input ? kernel->inputs[i] : kernel->outputs[i - node->input_count];
    if (tensor == NULL || tensor->rank < rank || layout == CUDA_CHANNELS_LAST) continue;
    return vl_error(VL_INTERNAL, "%s in %s: %s is in layout %d; its channels must be last", node->op->name,
                    node->scope, tensor->name, (int)layout);
  }
  return vl_ok();
}

ChannelRows channel_rows(const Tensor *activation, bool by_sample) {
  ChannelRows rows = {1, 1, activation->shape[1]};
  for (int32_t i = 0; i < activation->rank; i++) {
    if (i == 0 && by_sample)
      rows.groups = activation->shape[0];
    else if (i != 1)
      rows.rows *= activation->shape[i];
  }
  return rows;
}

int64_t channel_statistics_bytes(const ChannelRows *rows) {
  return 3 * largest_plane(rows) * (int64_t)sizeof(float);
}

Status channel_statistics(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                          FloatArray x, float *mean, float *var, float *rstd) {
  float *shifts = (float *)launch->workspace;
  cudaError_t error = cudaErrorInvalidValue;
  by_float_and_width<wide>(x.dtype, is_wide(rows) && is_aligned(x.at), [&](auto zero, auto width) {
    using T = decltype(zero);
    ChannelTiles tiles = sum_tiles(rows, width);
    float *sums = shifts + plane_of(tiles), *squares = sums + plane_of(tiles);
    error = cuda_launch(add_deviations<T, width>, grid_of(tiles), block_threads, 0, launch->stream, tiles,
                        (const T *)x.at, shifts, sums, squares);
    if (error != cudaSuccess) return;
    error = cuda_launch(combine_deviations, grid_for(rows->groups * rows->channels, fold_columns),
                        fold_threads, 0, launch->stream, tiles, shifts, sums, squares, mean, var, rstd,
                        kernel->node->params.epsilon);
  });
  return cuda_status(error, "statistics", kernel->node);
}

Status channel_apply(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                     const ChannelApply *run) {
  cudaError_t error = cudaErrorInvalidValue;
  bool packed = is_wide(rows) && is_aligned(run->x.at) && is_aligned(run->y.at) && is_aligned(run->residual);
  by_float_and_width<wide>(run->x.dtype, packed, [&](auto zero, auto width) {
    using T = decltype(zero);
    ChannelTiles tiles = write_tiles(rows, width);
    Application<T> of = {(const T *)run->x.at, (const T *)run->residual, (T *)run->y.at, run->slope};
    error = cuda_launch(apply<T, width>, grid_of(tiles), block_threads, 0, launch->stream, tiles, of,
                        factors_of(run->by));
  });
  return cuda_status(error, "application", kernel->node);
}

Status channel_invert(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                      const ChannelApply *run) {
  bool packed = is_wide(rows) && is_aligned(run->x.at) && is_aligned(run->y.at);
  ChannelTiles tiles = write_tiles(rows, packed ? wide : 1);
  cudaError_t error =
      cuda_launch(packed ? invert<wide> : invert<1>, grid_of(tiles), block_threads, 0, launch->stream, tiles,
                  run->y, run->x, factors_of(run->by), (float)(1.0 / kernel->node->params.alpha));
  return cuda_status(error, "inverse", kernel->node);
}

int64_t channel_gradient_bytes(const ChannelRows *rows) {
  return 2 * (largest_plane(rows) + rows->groups * rows->channels) * (int64_t)sizeof(float);
}

/* Where dresidual is dy or 0 the sums' kernel writes it and dx is made of it, so that y is read once. */
Status channel_gradient(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                        const ChannelGradient *run) {
  float *slopes = (float *)launch->workspace, *constants = slopes + rows->groups * rows->channels;
  float *sums = constants + rows->groups * rows->channels;
  GradientMeans means = {slopes, constants};
  bool early = run->dresidual != NULL && run->dy2 == NULL && run->slope == 0.0F;
  bool late = run->dx != NULL || (run->dresidual != NULL && !early);
  Factors by = factors_of(run->by);
  cudaError_t error = cudaErrorInvalidValue;
  bool packed = is_wide(rows) && is_aligned(run->x.at) && is_aligned(run->dy) && is_aligned(run->dy2) &&
                is_aligned(run->y) && is_aligned(run->dx) && is_aligned(run->dresidual);
  by_float_and_width<wide>(run->x.dtype, packed, [&](auto zero, auto width) {
    using T = decltype(zero);
    ChannelTiles tiles = sum_tiles(rows, width), writes = write_tiles(rows, width);
    float *products = sums + plane_of(tiles);
    Operands<T> of = {(const T *)run->x.at,
                      (const T *)run->dy,
                      (const T *)run->dy2,
                      (const T *)run->y,
                      (T *)run->dx,
                      early ? (T *)run->dresidual : NULL,
                      run->mask,
                      run->slope};
    error = cuda_launch(add_gradients<T, width>, grid_of(tiles), block_threads, 0, launch->stream, tiles, of,
                        by, sums, products);
    if (error != cudaSuccess) return;
    error = cuda_launch(combine_gradients, grid_for(rows->channels, fold_columns), fold_threads, 0,
                        launch->stream, tiles, sums, products, by, run->by.epsilon, means, run->dgamma,
                        run->dbeta);
    if (error != cudaSuccess || !late) return;
    of.dresidual = early ? NULL : (T *)run->dresidual;
    if (early) of.dy = (const T *)run->dresidual, of.mask = CHANNEL_MASK_NONE;
    error = cuda_launch(differentiate<T, width>, grid_of(writes), block_threads, 0, launch->stream, writes,
                        of, by, means);
  });
  return cuda_status(error, "gradient", kernel->node);
}
