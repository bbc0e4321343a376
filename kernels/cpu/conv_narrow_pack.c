/* Convolutions of few channels a group: what is read, dy and the weights in the order in which they are
 * multiplied. */
#include "kernels/cpu/conv_narrow_parts.h"

#if HAS_CONV_NARROW

static int64_t element_bytes(const ConvNarrow *it) { return it->bf16 ? 2 : 4; }

/* ---- Orders -------------------------------------------------------------------------------------------------- */

/* Word w of a chunk is channel `at` of group `group` of the bundle, in a pair of channels the first. */
static void order_chunk(const ConvNarrow *it, int64_t bundle, int64_t chunk, Order *order) {
  bool channel_pairs = it->bf16 && it->pass != NARROW_WEIGHTS;
  int64_t offset = bundle * it->sharing * it->read_each % BLOCK;
  memset(order, 0, sizeof *order);
  for (int64_t w = 0; w < BLOCK; w++) {
    int64_t group = w % it->sharing, at = chunk * it->chunk_words + w / it->sharing;
    if (at >= it->words) continue;
    int64_t channel = offset + group * it->read_each + at * (channel_pairs ? 2 : 1);
    order->there |= (uint16_t)(1 << w);
    order->words[w] = (uint32_t)(channel_pairs ? channel / 2 : channel);
    order->halves[2 * w] = (uint16_t)channel;                   /* of a point */
    order->halves[2 * w + 1] = (uint16_t)(channel + 2 * BLOCK); /* of the one a stride further */
  }
}

/* ---- Rows of what is read -------------------------------------------------------------------------------------- */

TARGET_F32
static void pack_f32(const Ring *ring, const Order *order, int64_t at, char *to) {
  const float *first = (const float *)(const void *)ring->first + at,
              *second = (const float *)(const void *)ring->second + at;
  __m512i places = _mm512_load_si512(order->words);
  for (int64_t k = 0; k < ring->it->read[2]; k++) {
    __m512 a = _mm512_loadu_ps(first + k * BLOCK), b = _mm512_loadu_ps(second + k * BLOCK);
    _mm512_store_ps(to + k * LINE, _mm512_maskz_permutex2var_ps(order->there, a, places, b));
  }
}

/* A point of both blocks. */
TARGET_BF16
static inline __m512i load_bf16(const uint16_t *first, const uint16_t *second, int64_t k) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)(first + k * BLOCK))),
                            _mm256_loadu_si256((const void *)(second + k * BLOCK)), 1);
}

TARGET_BF16
static void pack_channel_pairs(const Ring *ring, const Order *order, int64_t at, char *to) {
  const uint16_t *first = (const uint16_t *)(const void *)ring->first + at,
                 *second = (const uint16_t *)(const void *)ring->second + at;
  __m512i places = _mm512_load_si512(order->words);
  for (int64_t k = 0; k < ring->it->read[2]; k++) {
    __m512i point = load_bf16(first, second, k);
    _mm512_store_si512(to + k * LINE, _mm512_maskz_permutexvar_epi32(order->there, places, point));
  }
}

/* A point beside the one a stride further, zeros where there is none: also the points before the row whose
 * partner is in it. */
TARGET_BF16
static void pack_point_pairs(const Ring *ring, const Order *order, int64_t at, char *to) {
  const uint16_t *first = (const uint16_t *)(const void *)ring->first + at,
                 *second = (const uint16_t *)(const void *)ring->second + at;
  const ConvNarrow *it = ring->it;
  int64_t count = it->read[2], apart = it->axes[2][0].read_step;
  __m512i places = _mm512_load_si512(order->halves);
  for (int64_t k = apart < it->margin ? -apart : -it->margin; k < count; k++) {
    __m512i even = k < 0 ? _mm512_setzero_si512() : load_bf16(first, second, k);
    __m512i odd =
        k + apart < 0 || k + apart >= count ? _mm512_setzero_si512() : load_bf16(first, second, k + apart);
    __m512i pair = _mm512_permutex2var_epi16(even, places, odd);
    _mm512_store_si512(to + k * LINE, _mm512_maskz_mov_epi32(order->there, pair));
  }
}

static void pack_row(const Ring *ring, int64_t plane, int64_t row, int64_t chunk, char *to) {
  const ConvNarrow *it = ring->it;
  int64_t at = (plane * it->read[1] + row) * it->read[2] * BLOCK;
  const Order *order = &ring->orders[chunk];
  if (!it->bf16)
    pack_f32(ring, order, at, to);
  else if (it->pass == NARROW_WEIGHTS)
    pack_point_pairs(ring, order, at, to);
  else
    pack_channel_pairs(ring, order, at, to);
}

/* ---- Rings -------------------------------------------------------------------------------------------------------- */

void narrow_ring_start(const ConvNarrow *it, const char *sample, int64_t bundle, Range rows, char *planes,
                       Ring *ring) {
  int64_t span = it->sharing * it->read_each, block = bundle * span / BLOCK;
  int64_t block_bytes = it->read_places * BLOCK * element_bytes(it);
  bool two = bundle * span % BLOCK + span > BLOCK;
  ring->it = it;
  ring->first = sample + block * block_bytes;
  ring->second = ring->first + (two ? block_bytes : 0);
  ring->planes = planes;
  ring->rows = rows;
  ring->packed = 0;
  for (int64_t chunk = 0; chunk < it->chunks; chunk++)
    order_chunk(it, bundle, chunk, &ring->orders[chunk]);
}

static char *row_of(const Ring *ring, int64_t plane, int64_t row, int64_t chunk) {
  const ConvNarrow *it = ring->it;
  int64_t slot = plane % it->window[0], index = slot * it->slab_reach + row - ring->rows.begin;
  return ring->planes + ((index * it->chunks + chunk) * it->row_points + it->margin) * LINE;
}

const char *narrow_ring_row(const Ring *ring, int64_t plane, int64_t row, int64_t chunk) {
  return row_of(ring, plane, row, chunk);
}

void narrow_ring_fill(Ring *ring, int64_t end) {
  const ConvNarrow *it = ring->it;
  if (ring->packed < end - it->window[0]) ring->packed = end - it->window[0];
  for (; ring->packed < end; ring->packed++) {
    for (int64_t row = ring->rows.begin; row < ring->rows.end; row++) {
      for (int64_t chunk = 0; chunk < it->chunks; chunk++)
        pack_row(ring, ring->packed, row, chunk, row_of(ring, ring->packed, row, chunk));
    }
  }
}

/* ---- dy --------------------------------------------------------------------------------------------------------- */

/* The channel of a block of dy that a lane of sums is for. */
static int64_t lane_place(const ConvNarrow *it, int64_t lane) {
  return it->sharing == 1 ? lane : narrow_lane_group(it, lane) * it->written_each + lane / it->sharing;
}

TARGET_F32
static void pack_dy_f32(const ConvNarrow *it, const char *row, char *to) {
  _Alignas(LINE) uint32_t order[BLOCK];
  for (int64_t lane = 0; lane < BLOCK; lane++)
    order[lane] = (uint32_t)lane_place(it, lane);
  __m512i places = _mm512_load_si512(order);
  for (int64_t k = 0; k < it->written[2]; k++) {
    _mm512_store_ps(to + k * LINE, _mm512_permutexvar_ps(places, _mm512_loadu_ps(row + k * LINE)));
  }
}

/* An odd last point beside zeros. */
TARGET_BF16
static void pack_dy_pairs(const ConvNarrow *it, const char *row, char *to) {
  _Alignas(LINE) uint16_t order[2 * BLOCK];
  for (int64_t lane = 0; lane < BLOCK; lane++) {
    order[2 * lane] = (uint16_t)lane_place(it, lane);
    order[2 * lane + 1] = (uint16_t)(BLOCK + lane_place(it, lane));
  }
  __m512i places = _mm512_load_si512(order);
  int64_t pairs = it->written[2] / 2;
  for (int64_t k = 0; k < pairs; k++)
    _mm512_store_si512(to + k * LINE, _mm512_permutexvar_epi16(places, _mm512_loadu_si512(row + k * LINE)));
  if (it->written[2] % 2 == 0) return;
  __m512i last = _mm512_zextsi256_si512(_mm256_loadu_si256((const void *)(row + pairs * LINE)));
  _mm512_store_si512(to + pairs * LINE, _mm512_permutexvar_epi16(places, last));
}

void narrow_pack_dy(const ConvNarrow *it, const char *row, char *to) {
  if (it->bf16)
    pack_dy_pairs(it, row, to);
  else
    pack_dy_f32(it, row, to);
}

/* ---- Weights ---------------------------------------------------------------------------------------------------------- */

/* Weights (O, I/g, window): the data gradient reads output channels and writes input channels. */
static int64_t weight_index(const ConvNarrow *it, int64_t group, int64_t written, int64_t read, int64_t tap) {
  int64_t index = it->pass == NARROW_DATA ? (group * it->read_each + read) * it->written_each + written
                                          : (group * it->written_each + written) * it->read_each + read;
  return index * it->window_places + tap;
}

static void pack_weight(const ConvNarrow *it, const void *weights, int64_t group, int64_t written,
                        int64_t word, int64_t tap, void *to) {
  if (!it->bf16) {
    float *value = to;
    *value = ((const float *)weights)[weight_index(it, group, written, word, tap)];
    return;
  }
  uint16_t *pair = to;
  for (int64_t side = 0; side < 2; side++)
    pair[side] = ((const uint16_t *)weights)[weight_index(it, group, written, 2 * word + side, tap)];
}

void narrow_pack_weights(const ConvNarrow *it, const void *weights, Range blocks, char *to) {
  to += blocks.begin * it->window_places * it->words * LINE;
  for (int64_t block = blocks.begin; block < blocks.end; block++) {
    int64_t first_group = block / it->bundle_blocks * it->sharing, place = block % it->bundle_blocks;
    for (int64_t tap = 0; tap < it->window_places; tap++) {
      for (int64_t word = 0; word < it->words; word++, to += LINE) {
        for (int64_t lane = 0; lane < BLOCK; lane++)
          pack_weight(it, weights, first_group + narrow_lane_group(it, lane),
                      narrow_lane_channel(it, place, lane), word, tap, to + lane * LINE / BLOCK);
      }
    }
  }
}

#endif
