/* Offsets planned ahead. Blocks are rectangles in time and address, to be packed as low as can be (dynamic
 * storage allocation, which is NP-hard). Blocks are placed one after the other, each in the lowest or the
 * tightest gap that what is placed leaves it; several orders are tried, and that of the best is then improved
 * from where its arena is highest.
 *
 * The order that mostly does it: what lives when most lives comes first, the oldest lowest. Training frees in
 * the reverse order of saving, so at any other time it is a lower part of these that lives, and the rest
 * finds room above. */
#include "memory/internal.h"

#include <stdlib.h>
#include <string.h>

/* An arena 1/1000 above the bound is near enough; comparisons of blocks are what is spent on trying. */
enum { NEAR_ENOUGH = 1000, MOST_COMPARISONS = 60 * 1000 * 1000 };

typedef struct Placed {
  int64_t offset, end, first, last;
} Placed;

/* The blocks of one stream. */
typedef struct Packing {
  int64_t count;
  const Lifetime **items;
  int64_t *bytes;   /* rounded */
  int64_t *highest; /* by item: the most that lives at any time in its life */
  int64_t peak_bytes;
  Placed *placed; /* in order of offset */
  int64_t placed_count;
  int64_t *order, *offsets; /* of the attempt that is made */
  int64_t *best_order, *best_offsets;
  int64_t best_bytes;
  bool best_is_tightest; /* how it chose among gaps */
  int64_t comparisons;
} Packing;

/* ---- Sorting -------------------------------------------------------------------------------------------- */

/* By three keys, then by index. */
typedef struct Key {
  int64_t keys[3], index;
} Key;

static int compare_keys(const void *a, const void *b) {
  const Key *left = a, *right = b;
  for (int i = 0; i < 3; i++)
    if (left->keys[i] != right->keys[i]) return left->keys[i] < right->keys[i] ? -1 : 1;
  return left->index < right->index ? -1 : left->index > right->index;
}

static Key *sorted_times(const Packing *packing, bool ends) {
  Key *times = vl_allocate(((size_t)packing->count + 1) * sizeof *times);
  for (int64_t i = 0; i < packing->count; i++)
    times[i] = (Key){.keys = {ends ? packing->items[i]->last : packing->items[i]->first}, .index = i};
  qsort(times, (size_t)packing->count, sizeof *times, compare_keys);
  return times;
}

/* ---- What lives when ------------------------------------------------------------------------------------ */

/* What lives when each item begins, in the order of `begins`; the most of it. */
static int64_t live_at_begins(const Packing *packing, const Key *begins, int64_t *live_bytes) {
  int64_t count = packing->count, ended = 0, live = 0, peak = 0;
  Key *ends = sorted_times(packing, true);
  for (int64_t i = 0; i < count; i++) {
    for (; ends[ended].keys[0] < begins[i].keys[0]; ended++)
      live -= packing->bytes[ends[ended].index];
    live += packing->bytes[begins[i].index];
    live_bytes[i] = live;
    if (live > peak) peak = live;
  }
  for (int64_t i = count - 2; i >= 0; i--) /* with all that begin at the same time */
    if (begins[i].keys[0] == begins[i + 1].keys[0]) live_bytes[i] = live_bytes[i + 1];
  free(ends);
  return peak;
}

/* How many items have begun by a time. */
static int64_t begun_by(const Key *begins, int64_t count, int64_t time) {
  int64_t low = 0, high = count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (begins[middle].keys[0] <= time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The largest of leaves [from, to) of a tree of maxima over `count` of them. */
static int64_t largest_of(const int64_t *tree, int64_t count, int64_t from, int64_t to) {
  int64_t largest = 0;
  for (from += count, to += count; from < to; from /= 2, to /= 2) {
    if (from % 2 == 1) {
      if (tree[from] > largest) largest = tree[from];
      from++;
    }
    if (to % 2 == 1) {
      to--;
      if (tree[to] > largest) largest = tree[to];
    }
  }
  return largest;
}

/* Fills `highest` and the peak. What lives is most at some begin. */
static void find_peaks(Packing *packing) {
  int64_t count = packing->count;
  Key *begins = sorted_times(packing, false);
  int64_t *tree = vl_allocate((2 * (size_t)count + 1) * sizeof *tree);
  packing->peak_bytes = live_at_begins(packing, begins, tree + count);
  for (int64_t i = count - 1; i > 0; i--)
    tree[i] = tree[2 * i] > tree[2 * i + 1] ? tree[2 * i] : tree[2 * i + 1];
  for (int64_t i = 0; i < count; i++) {
    int64_t item = begins[i].index;
    packing->highest[item] = largest_of(tree, count, i, begun_by(begins, count, packing->items[item]->last));
  }
  free(begins);
  free(tree);
}

/* ---- Placing in an order -------------------------------------------------------------------------------- */

/* Where an item goes among those placed: into the lowest gap, or the tightest, or behind all that live with
 * it. */
static int64_t find_gap(Packing *packing, int64_t item, bool tightest) {
  const Lifetime *life = packing->items[item];
  int64_t bytes = packing->bytes[item], end = 0, found = -1, found_bytes = INT64_MAX;
  for (int64_t i = 0; i < packing->placed_count; i++) {
    const Placed *other = &packing->placed[i];
    if (other->first > life->last || other->last < life->first) continue;
    int64_t gap_bytes = other->offset - end;
    if (gap_bytes >= bytes && gap_bytes < found_bytes) {
      found = end;
      found_bytes = gap_bytes;
      if (!tightest) break;
    }
    if (other->end > end) end = other->end;
  }
  packing->comparisons += packing->placed_count;
  return found >= 0 ? found : end;
}

static void place(Packing *packing, int64_t item, int64_t offset) {
  const Lifetime *life = packing->items[item];
  int64_t at = packing->placed_count++;
  for (; at > 0 && packing->placed[at - 1].offset > offset; at--)
    packing->placed[at] = packing->placed[at - 1];
  packing->placed[at] = (Placed){offset, offset + packing->bytes[item], life->first, life->last};
  packing->offsets[item] = offset;
}

/* Places all items in the order; keeps the attempt when it is the best. Returns the bytes of its arena. */
static int64_t place_in_order(Packing *packing, bool tightest) {
  int64_t arena_bytes = 0;
  packing->placed_count = 0;
  for (int64_t i = 0; i < packing->count && arena_bytes < packing->best_bytes; i++) {
    int64_t item = packing->order[i], offset = find_gap(packing, item, tightest);
    place(packing, item, offset);
    if (offset + packing->bytes[item] > arena_bytes) arena_bytes = offset + packing->bytes[item];
  }
  if (arena_bytes >= packing->best_bytes) return arena_bytes; /* not finished either */
  size_t size = (size_t)packing->count * sizeof(int64_t);
  packing->best_bytes = arena_bytes;
  packing->best_is_tightest = tightest;
  memcpy(packing->best_order, packing->order, size);
  memcpy(packing->best_offsets, packing->offsets, size);
  return arena_bytes;
}

static bool is_near_enough(const Packing *packing) {
  return packing->best_bytes <= packing->peak_bytes + packing->peak_bytes / NEAR_ENOUGH;
}

/* ---- Orders --------------------------------------------------------------------------------------------- */

typedef enum Order {
  ORDER_HIGHEST_OLDEST = 0, /* what lives when most lives; of that, what began first */
  ORDER_HIGHEST_LONGEST,
  ORDER_HIGHEST_LARGEST,
  ORDER_LARGEST,
  ORDER_AREA,
  ORDER_LONGEST,
  ORDER_COUNT
} Order;

static Key key_of(const Packing *packing, Order order, int64_t item) {
  const Lifetime *life = packing->items[item];
  int64_t bytes = packing->bytes[item], length = life->last - life->first + 1,
          highest = packing->highest[item];
  /* In units of blocks, so that a product of bytes and time stays far from overflow. */
  int64_t area = bytes / VL_BLOCK_BYTES * length;
  switch (order) {
  case ORDER_HIGHEST_OLDEST: return (Key){{-highest, life->first, -length}, item};
  case ORDER_HIGHEST_LONGEST: return (Key){{-highest, -length, -bytes}, item};
  case ORDER_HIGHEST_LARGEST: return (Key){{-highest, -bytes, -length}, item};
  case ORDER_LARGEST: return (Key){{-bytes, -length, life->first}, item};
  case ORDER_AREA: return (Key){{-area, -bytes, life->first}, item};
  case ORDER_LONGEST:
  case ORDER_COUNT: break;
  }
  return (Key){{-length, -bytes, life->first}, item};
}

static void sort_items(Packing *packing, Order order, Key *keys) {
  for (int64_t i = 0; i < packing->count; i++)
    keys[i] = key_of(packing, order, i);
  qsort(keys, (size_t)packing->count, sizeof *keys, compare_keys);
  for (int64_t i = 0; i < packing->count; i++)
    packing->order[i] = keys[i].index;
}

static void try_orders(Packing *packing) {
  Key *keys = vl_allocate((size_t)packing->count * sizeof *keys);
  for (int order = 0; order < ORDER_COUNT; order++) {
    for (int tightest = 0; tightest <= 1 && !is_near_enough(packing); tightest++) {
      if (packing->comparisons > MOST_COMPARISONS && order > 0) break;
      sort_items(packing, (Order)order, keys);
      (void)place_in_order(packing, tightest == 1);
    }
  }
  free(keys);
}

/* ---- Improving ------------------------------------------------------------------------------------------ */

/* Numbers without a pattern, the same every time (splitmix64). */
static uint64_t next_number(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* The place in the best order of an item at the top of its arena. */
static int64_t highest_in_order(const Packing *packing) {
  for (int64_t i = packing->count - 1; i > 0; i--) {
    int64_t item = packing->best_order[i];
    if (packing->best_offsets[item] + packing->bytes[item] == packing->best_bytes) return i;
  }
  return 0;
}

/* Takes what is at the top of the best arena to an earlier place in its order, again and again. */
static void improve(Packing *packing) {
  uint64_t state = (uint64_t)packing->count;
  while (!is_near_enough(packing) && packing->comparisons < MOST_COMPARISONS) {
    int64_t from = highest_in_order(packing);
    if (from == 0) return;
    int64_t to = (int64_t)(next_number(&state) % (uint64_t)from), item = packing->best_order[from];
    memcpy(packing->order, packing->best_order, (size_t)packing->count * sizeof(int64_t));
    memmove(packing->order + to + 1, packing->order + to, (size_t)(from - to) * sizeof(int64_t));
    packing->order[to] = item;
    (void)place_in_order(packing, packing->best_is_tightest);
    packing->comparisons += packing->count; /* moving costs too */
  }
}

/* ---- One stream after the other --------------------------------------------------------------------------- */

static void packing_open(Packing *packing, int64_t count) {
  size_t room = (size_t)count + 1;
  *packing = (Packing){.best_bytes = INT64_MAX};
  packing->items = vl_allocate(room * sizeof *packing->items);
  packing->placed = vl_allocate(room * sizeof(Placed));
  int64_t **lists[] = {&packing->bytes,   &packing->highest,    &packing->order,
                       &packing->offsets, &packing->best_order, &packing->best_offsets};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    *lists[i] = vl_allocate(room * sizeof(int64_t));
}

static void packing_close(Packing *packing) {
  free(packing->items);
  free(packing->placed);
  int64_t *lists[] = {packing->bytes,   packing->highest,    packing->order,
                      packing->offsets, packing->best_order, packing->best_offsets};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    free(lists[i]);
}

/* Takes in the items of a stream; returns the next greater stream, or the stream when there is none. */
static int packing_fill(Packing *packing, const Lifetime *lifetimes, int64_t count, int stream) {
  int next = stream;
  packing->count = 0;
  packing->best_bytes = INT64_MAX;
  for (int64_t i = 0; i < count; i++) {
    int of = lifetimes[i].stream;
    if (of > stream && (next == stream || of < next)) next = of;
    if (of != stream) continue;
    packing->bytes[packing->count] = vl_round_up(lifetimes[i].bytes, VL_BLOCK_BYTES);
    packing->items[packing->count++] = &lifetimes[i];
  }
  find_peaks(packing);
  return next;
}

static int first_stream(const Lifetime *lifetimes, int64_t count) {
  int first = count > 0 ? lifetimes[0].stream : 0;
  for (int64_t i = 1; i < count; i++)
    if (lifetimes[i].stream < first) first = lifetimes[i].stream;
  return first;
}

int64_t vl_lifetimes_peak(const Lifetime *lifetimes, int64_t count) {
  Packing packing;
  packing_open(&packing, count);
  int64_t peak_bytes = 0;
  for (int stream = first_stream(lifetimes, count), next = stream, more = count > 0; more; stream = next) {
    next = packing_fill(&packing, lifetimes, count, stream);
    peak_bytes += packing.peak_bytes;
    more = next != stream;
  }
  packing_close(&packing);
  return peak_bytes;
}

int64_t vl_lifetimes_pack(const Lifetime *lifetimes, int64_t count, int64_t *offsets) {
  Packing packing;
  packing_open(&packing, count);
  int64_t arena_bytes = 0;
  for (int stream = first_stream(lifetimes, count), next = stream, more = count > 0; more; stream = next) {
    next = packing_fill(&packing, lifetimes, count, stream);
    try_orders(&packing);
    improve(&packing);
    for (int64_t i = 0; i < packing.count; i++)
      offsets[packing.items[i] - lifetimes] = arena_bytes + packing.best_offsets[i];
    arena_bytes += packing.best_bytes;
    more = next != stream;
  }
  packing_close(&packing);
  return arena_bytes;
}
