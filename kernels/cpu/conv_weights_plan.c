/* Weight gradient of convolutions: who takes which channels and points, how long a run is, and which rows of
 * x the windows of a run reach. */
#include "kernels/cpu/conv_weights_parts.h"

Range conv_weights_blocks_of_x(const ConvWeights *it, int32_t part) {
  return it->shares_outputs ? (Range){0, it->x.channel_blocks}
                            : vector_share(it->x.channel_blocks, it->channel_parts, part);
}
Range conv_weights_blocks_of_dy(const ConvWeights *it, int32_t part) {
  if (!it->shares_outputs) return (Range){0, it->dy.channel_blocks};
  Range pairs = vector_share(it->dy.channel_blocks / 2, it->channel_parts, part);
  return (Range){2 * pairs.begin, 2 * pairs.end};
}

/* ---- Shares and runs ---------------------------------------------------------------------------------------- */

/* Cycles that the longest share takes, up to what all ways to share have in common. */
static double cost(const ConvWeights *it) {
  const double read = 3.0, add = 6.0; /* a line, measured: on top of the products, and from another's cache */
  Range x = conv_weights_blocks_of_x(it, 0), dy = conv_weights_blocks_of_dy(it, 0);
  double lines = (double)it->points / it->point_parts * (double)element_bytes(it) * BLOCK / LINE;
  double blocks_x = (double)(x.end - x.begin), blocks_dy = (double)(dy.end - dy.begin);
  double products = lines * blocks_x * blocks_dy * (double)it->taps * BLOCK / 2.0;
  double packs_of_x = it->bf16 ? (double)it->taps : 1.0;
  double copies = (double)(it->point_parts - 1) * (double)gradient_elements(it) / BLOCK;
  return products + read * lines * (blocks_x * packs_of_x + blocks_dy) + add * copies;
}

void conv_weights_choose_shares(ConvWeights *it, int32_t threads) {
  ConvWeights best = *it;
  double least = -1.0;
  for (int32_t parts = 1; parts <= threads; parts++) {
    for (int32_t outputs = 0; outputs < 2; outputs++) {
      ConvWeights tried = *it;
      tried.channel_parts = parts;
      tried.point_parts = threads / parts;
      tried.shares_outputs = outputs != 0;
      if (parts > (outputs ? it->dy.channel_blocks / 2 : it->x.channel_blocks)) continue;
      if (tried.point_parts > it->points) tried.point_parts = (int32_t)it->points;
      double cycles = cost(&tried);
      if (least >= 0.0 && cycles >= least) continue;
      least = cycles;
      best = tried;
    }
  }
  *it = best;
}

void conv_weights_choose_run(ConvWeights *it) {
  Range x = conv_weights_blocks_of_x(it, 0), dy = conv_weights_blocks_of_dy(it, 0);
  int64_t line_bytes = (x.end - x.begin + dy.end - dy.begin) * LINE, lines = RUN_BYTES / line_bytes;
  if (lines > LINES_MOST) lines = LINES_MOST;
  if (lines < LINES_LEAST) lines = LINES_LEAST;
  int64_t share = (it->points + it->point_parts - 1) / it->point_parts;
  int64_t most = it->bf16 ? 2 * lines : lines, runs = (share + most - 1) / most;
  it->run = ((share + runs - 1) / runs + 1) / 2 * 2;
}

/* ---- What windows reach -------------------------------------------------------------------------------------- */

int64_t conv_weights_window_start(const ConvWeights *it, int64_t output, int32_t *at) {
  for (int32_t i = SPACE - 1; i >= 0; i--) {
    at[i] = (int32_t)(output % it->out[i] * it->stride[i] - it->padding[i]);
    output /= it->out[i];
  }
  return (at[0] * it->in[1] + at[1]) * it->in[2] + at[2];
}

Reach conv_weights_reach(const ConvWeights *it, int64_t first, int64_t end) {
  int64_t sample = first / it->dy.spatial, begin = sample * it->dy.spatial;
  if (end > begin + it->dy.spatial) end = begin + it->dy.spatial;
  int32_t at[SPACE];
  int64_t last = ((it->window[0] - 1) * it->in[1] + it->window[1] - 1) * it->in[2] + it->window[2];
  Range rows = {conv_weights_window_start(it, first - begin, at),
                conv_weights_window_start(it, end - 1 - begin, at) + last};
  if (rows.begin < 0) rows.begin = 0;
  if (rows.end > it->x.spatial) rows.end = it->x.spatial;
  if (rows.end < rows.begin) rows.end = rows.begin;
  return (Reach){sample, end - first, rows};
}

static int64_t reached_by_run(const ConvWeights *it, int64_t first, int64_t end) {
  int64_t rows = 0;
  while (first < end) {
    Reach reach = conv_weights_reach(it, first, end);
    rows += reach.rows.end - reach.rows.begin;
    first += reach.points;
  }
  return rows;
}

int64_t conv_weights_most_reached(const ConvWeights *it) {
  int64_t most = 0;
  for (int32_t part = 0; part < it->point_parts; part++) {
    Range points = vector_share(it->points, it->point_parts, part);
    for (int64_t first = points.begin; first < points.end; first += it->run) {
      int64_t end = points.end - first < it->run ? points.end : first + it->run;
      int64_t rows = reached_by_run(it, first, end);
      if (rows > most) most = rows;
    }
  }
  return most;
}
