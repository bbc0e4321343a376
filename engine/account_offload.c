/* What offloading leaves on the device. An activation is there until its last use in forward and some time
 * longer, and again some time before its first use in backward; optimizer state some time around its update.
 * How long is what the window says: copies under way, or ahead of their use, are at most a sixteenth of what
 * is offloaded, each by itself apart. Reckoned from the order of uses alone; graph/offload.c places the
 * copies. */
#include "engine/account.h"
#include <stdlib.h>

enum { WINDOW_PART = 16, FIRST_FETCH_AHEAD = 16 };
static const int64_t smallest_bytes = 1024;

/* What is away for a while, or might be. */
typedef struct Guest {
  int32_t storage, last_use, next_use;
  int64_t bytes;
  bool leaves;
} Guest;

typedef struct Guests {
  Guest *list;
  int32_t count;
  int64_t window_bytes;
} Guests;

static int64_t bytes_of(const Storage *storage) { return vl_dtype_bytes(storage->dtype, storage->elements); }

static void add(Guests *guests, const Storage *storage, int32_t last_use, int32_t next_use) {
  guests->list[guests->count++] = (Guest){storage->id, last_use, next_use, bytes_of(storage), true};
  guests->window_bytes += bytes_of(storage); /* divided in the end */
}

static int by_next_use(const void *a, const void *b) {
  const Guest *x = a, *y = b;
  return x->next_use != y->next_use ? x->next_use - y->next_use : x->storage - y->storage;
}

static int by_last_use(const void *a, const void *b) {
  const Guest *x = a, *y = b;
  return x->last_use != y->last_use ? x->last_use - y->last_use : x->storage - y->storage;
}

/* In the order of their last use: each is gone when what is used after it fills the window, all are behind
 * `end`. */
static void send(const Guests *guests, Life *lives, int32_t end) {
  int32_t oldest = 0;
  int64_t under_way = 0;
  for (int32_t i = 0; i < guests->count; i++) {
    const Guest *guest = &guests->list[i];
    if (!guest->leaves) continue;
    for (; oldest < i && under_way + guest->bytes > guests->window_bytes; oldest++) {
      if (!guests->list[oldest].leaves) continue;
      lives[guests->list[oldest].storage].last = guest->last_use;
      under_way -= guests->list[oldest].bytes;
    }
    under_way += guest->bytes;
  }
  for (; oldest < guests->count; oldest++)
    if (guests->list[oldest].leaves) lives[guests->list[oldest].storage].last = end;
}

/* In the order of their next use: each comes from `begin` on, as soon as the window holds it beside what is
 * there and not used yet. */
static void fetch(const Guests *guests, Life *lives, int32_t begin) {
  int32_t used = 0, at = begin;
  int64_t ahead = 0;
  for (int32_t i = 0; i < guests->count; i++) {
    const Guest *guest = &guests->list[i];
    while (used < i && (guests->list[used].next_use <= at || ahead + guest->bytes > guests->window_bytes)) {
      const Guest *first = &guests->list[used++];
      if (first->next_use > at) at = first->next_use;
      ahead -= first->bytes;
    }
    ahead += guest->bytes;
    if (guest->leaves) lives[guest->storage].first = at;
  }
}

/* ---- Activations ------------------------------------------------------------------------------------------- */

/* Position of the last forward node that belongs to the blocks whose activations leave. */
static int32_t end_of_blocks(const Program *program) {
  int32_t end = -1;
  if (program->offload_blocks == INT32_MAX) return INT32_MAX;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    bool belongs =
        node->segment == SEGMENT_FORWARD && node->block > 0 && node->block <= program->offload_blocks;
    if (belongs) end = i;
  }
  return end;
}

/* The first in backward would have to come back at once: as much as the window holds stays. */
static void keep_first(Guests *guests) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < guests->count; i++) {
    bytes += guests->list[i].bytes;
    if (bytes > guests->window_bytes) return;
    guests->list[i].leaves = false;
  }
}

static void offload_activations(Account *account, Guests *guests) {
  const Program *program = &account->executable->program;
  int32_t end = end_of_blocks(program), turn = 0;
  while (turn < account->graph->node_count && account->graph->nodes[turn]->segment != SEGMENT_BACKWARD)
    turn++;
  for (int32_t i = 0; i < account->graph->storage_count; i++) {
    const Storage *storage = account->graph->storages[i];
    bool is_saved =
        storage->role == ROLE_ACTIVATION && account->last_use[i] >= 0 && account->next_use[i] >= 0;
    bool outlives = program->loss && storage == program->loss->storage;
    if (is_saved && !outlives && bytes_of(storage) >= smallest_bytes && account->kept[i].first <= end)
      add(guests, storage, account->last_use[i], account->next_use[i]);
  }
  guests->window_bytes /= WINDOW_PART;
  qsort(guests->list, (size_t)guests->count, sizeof *guests->list, by_next_use);
  keep_first(guests);
  for (int32_t i = 0; i < guests->count; i++) {
    int32_t storage = guests->list[i].storage;
    if (guests->list[i].leaves) account->fetched[storage].last = account->kept[storage].last;
  }
  fetch(guests, account->fetched, turn);
  qsort(guests->list, (size_t)guests->count, sizeof *guests->list, by_last_use);
  send(guests, account->kept, turn - 1);
}

/* ---- Optimizer state ------------------------------------------------------------------------------------------ */

/* So many launches ahead the first state comes; with accumulation not before the updates begin. */
static int32_t first_fetch(const Account *account, int32_t use) {
  const Graph *graph = account->graph;
  int32_t first = use;
  for (int32_t ahead = 0; first > 0 && ahead < FIRST_FETCH_AHEAD;)
    if (!vl_node_is_view(graph->nodes[--first])) ahead++;
  while (account->executable->program.accumulate > 1 && graph->nodes[first]->segment != SEGMENT_UPDATE)
    first++;
  return first;
}

static void offload_state(Account *account, Guests *guests) {
  const Graph *graph = account->graph;
  for (int32_t at = 0; at < graph->node_count; at++) {
    for (int32_t k = 0; k < graph->nodes[at]->input_count; k++) {
      const Tensor *tensor = graph->nodes[at]->inputs[k];
      if (tensor && tensor->storage->tier == TIER_OFFLOAD) add(guests, tensor->storage, at, at);
    }
  }
  guests->window_bytes /= WINDOW_PART;
  if (guests->count == 0) return;
  fetch(guests, account->fetched, first_fetch(account, guests->list[0].next_use));
  send(guests, account->fetched, graph->node_count - 1);
}

void account_offload(Account *account) {
  Guests guests = {.list = vl_allocate(((size_t)account->graph->storage_count + 1) * sizeof *guests.list)};
  if (account->executable->program.offload_blocks > 0) offload_activations(account, &guests);
  guests.count = 0;
  guests.window_bytes = 0;
  offload_state(account, &guests);
  free(guests.list);
}
