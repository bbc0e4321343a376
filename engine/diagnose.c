/* The article's flow: the initial state, one step, the difference, the allocation that is anomalous. What
 * lives when a step begins is held against what the program keeps between steps, and the life of every block
 * of the step against the lives of the account, which knows from the graph alone what is needed when. Nothing
 * here knows how a program came to hold more. */
#include "engine/account.h"
#include "engine/cell.h"
#include <stdlib.h>
#include <string.h>

/* A block, and when it lived: positions of the graph, counted on over micro-batches. */
typedef struct Seen {
  uintptr_t address;
  int64_t bytes, requested_bytes;
  const char *name, *scope;
  MemoryCategory category;
  int64_t born, died; /* BEFORE: the step found it there; ALIVE: it left it there */
} Seen;
static const int64_t BEFORE = -1, ALIVE = INT64_MAX;

/* A storage by its name. */
typedef struct Known {
  const char *name, *scope;
  int32_t storage;
  int64_t spare; /* blocks of its name that the program may hold between steps and that were not seen yet */
} Known;

struct Watch {
  const Cell *cell;
  Seen *seen;
  int64_t count, capacity;
  int64_t start_bytes;
  Known *known;
  int32_t known_count;
  Account account;
  bool copies_differ; /* copies to and from the offload tier may stand elsewhere than the account says */
  Diagnosis *result;
};

const char *vl_anomaly_name(AnomalyKind kind) {
  static const char *const names[ANOMALY_KIND_COUNT] = {
      "retained-graph", "kept-loss", "weight-copy", "workspace", "kept-recomputed", "growth", "held", "size"};
  return names[kind];
}

static int64_t rounded(int64_t bytes) {
  return (bytes + VL_BLOCK_BYTES - 1) / VL_BLOCK_BYTES * VL_BLOCK_BYTES;
}

/* ---- What was seen --------------------------------------------------------------------------------------------- */

static Seen *add_seen(Watch *watch) {
  if (watch->count == watch->capacity) {
    watch->capacity = watch->capacity ? 2 * watch->capacity : 1024;
    watch->seen = vl_reallocate(watch->seen, (size_t)watch->capacity * sizeof *watch->seen);
  }
  return &watch->seen[watch->count++];
}

static void add_block(void *context, const Block *block) {
  Watch *watch = context;
  *add_seen(watch) = (Seen){.address = block->address,
                            .bytes = block->bytes,
                            .requested_bytes = block->requested_bytes,
                            .name = block->name ? block->name : "",
                            .scope = block->scope ? block->scope : "",
                            .category = block->category,
                            .born = BEFORE,
                            .died = ALIVE};
  watch->start_bytes += block->bytes;
}

Watch *engine_watch_begin(const Cell *cell) {
  Watch *watch = vl_allocate(sizeof *watch);
  watch->cell = cell;
  vl_heap_each_block(cell->heap, add_block, watch);
  vl_tracker_reset_peaks(cell->tracker);
  vl_tracker_keep_events(cell->tracker, true);
  vl_tracker_clear_events(cell->tracker);
  return watch;
}

/* What lives at an address; the latest blocks die first, mostly. */
static Seen *living_at(Watch *watch, uintptr_t address) {
  for (int64_t i = watch->count - 1; i >= 0; i--)
    if (watch->seen[i].address == address && watch->seen[i].died == ALIVE) return &watch->seen[i];
  return NULL;
}

static void take_events(Watch *watch) {
  int64_t count, nodes = watch->account.graph->node_count, before = 0, passed = 0;
  const MemoryEvent *events = vl_tracker_events(watch->cell->tracker, &count);
  for (int64_t i = 0; i < count; i++) {
    const MemoryEvent *event = &events[i];
    Seen *seen;
    if (event->place < before) passed += nodes; /* the next micro-batch */
    before = event->place;
    switch (event->action) {
    case MEMORY_OBTAIN:
      *add_seen(watch) = (Seen){.address = event->address,
                                .bytes = event->bytes,
                                .requested_bytes = event->requested_bytes,
                                .name = event->name ? event->name : "",
                                .scope = event->scope ? event->scope : "",
                                .category = event->category,
                                .born = passed + event->place,
                                .died = ALIVE};
      break;
    case MEMORY_RELEASE:
      seen = living_at(watch, event->address);
      if (seen) seen->died = passed + event->place;
      break;
    case MEMORY_MOVE_OUT: /* and right after it, MEMORY_MOVE_IN */
      seen = living_at(watch, event->address);
      if (seen && i + 1 < count) seen->address = events[++i].address;
      break;
    default: break;
    }
  }
}

/* ---- What is known --------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
  const Known *left = a, *right = b;
  int by_scope = strcmp(left->scope, right->scope);
  return by_scope ? by_scope : strcmp(left->name, right->name);
}

/* The first of the storages of a name; those that follow may have the same. */
static Known *find_known(const Watch *watch, const char *name, const char *scope) {
  int32_t low = 0, high = watch->known_count;
  Known wanted = {.name = name, .scope = scope};
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (by_name(&watch->known[middle], &wanted) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  bool found = low < watch->known_count && by_name(&watch->known[low], &wanted) == 0;
  return found ? &watch->known[low] : NULL;
}

static bool is_next(const Watch *watch, const Known *known) {
  return known + 1 < watch->known + watch->known_count && by_name(known, known + 1) == 0;
}

static void know_program(Watch *watch) {
  const Graph *graph = watch->account.graph;
  watch->known = vl_allocate(((size_t)graph->storage_count + 1) * sizeof *watch->known);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    int64_t bytes = watch->account.executable->storage_bytes[i];
    bool given = account_is_given(storage) && bytes > 0;
    watch->known[watch->known_count++] =
        (Known){storage->name ? storage->name : "", storage->scope ? storage->scope : "", i, given ? 1 : 0};
    if (given) watch->result->expected_start_bytes += rounded(bytes);
  }
  if (watch->known_count > 0) qsort(watch->known, (size_t)watch->known_count, sizeof *watch->known, by_name);
}

/* The account knows a node in backward that something is made again for, not the launches of making it, by
 * which offloading places its copies: which tensor stays, and when another leaves or comes back, may differ.
 */
static bool copies_may_differ(const Account *account) {
  if (account->executable->program.offload_blocks == 0) return false;
  for (int32_t i = 0; i < account->graph->storage_count; i++)
    if (account->again[i].first <= account->again[i].last) return true;
  return false;
}

/* Takes a block for one that the program keeps between steps. */
static bool take_given(Watch *watch, const Seen *seen) {
  for (Known *known = find_known(watch, seen->name, seen->scope); known; known++) {
    bool fits = watch->account.executable->storage_bytes[known->storage] == seen->requested_bytes;
    if (known->spare > 0 && fits) {
      known->spare--;
      watch->result->rest_bytes += seen->bytes - rounded(seen->requested_bytes);
      return true;
    }
    if (!is_next(watch, known)) return false;
  }
  return false;
}

/* ---- Anomalies ------------------------------------------------------------------------------------------------- */

/* What makes a tensor; of a parameter or an input, what reads it first. */
static const char *op_of(const Watch *watch, const Known *known) {
  const Graph *graph = watch->account.graph;
  if (!known) return "none";
  const Storage *storage = graph->storages[known->storage];
  if (storage->root && storage->root->producer) return storage->root->producer->op->name;
  for (int32_t i = 0; i < graph->node_count; i++)
    for (int32_t k = 0; k < graph->nodes[i]->input_count; k++)
      if (graph->nodes[i]->inputs[k] && graph->nodes[i]->inputs[k]->storage == storage)
        return graph->nodes[i]->op->name;
  return "none";
}

static void report(Watch *watch, AnomalyKind kind, const Seen *seen, const char *op, int64_t bytes) {
  Anomaly *anomaly = &watch->result->anomalies[kind];
  anomaly->kind = kind;
  anomaly->tensors++;
  anomaly->bytes += bytes;
  int first = strcmp(seen->scope, anomaly->scope);
  if (first == 0) first = strcmp(seen->name, anomaly->tensor);
  /* Of several as large the first by name, since blocks come in no order. */
  bool larger = llabs(bytes) > llabs(anomaly->largest_bytes);
  if (!larger && (llabs(bytes) < llabs(anomaly->largest_bytes) || first >= 0)) return;
  anomaly->largest_bytes = bytes;
  snprintf(anomaly->tensor, sizeof anomaly->tensor, "%s", seen->name);
  snprintf(anomaly->scope, sizeof anomaly->scope, "%s", seen->scope);
  snprintf(anomaly->op, sizeof anomaly->op, "%s", op);
}

static bool is_saved(const Watch *watch, const Known *known) {
  if (!known) return false;
  const Storage *storage = watch->account.graph->storages[known->storage];
  const Node *maker = storage->root ? storage->root->producer : NULL;
  return storage->role == ROLE_ACTIVATION && maker && maker->segment == SEGMENT_FORWARD &&
         watch->account.next_use[known->storage] >= 0;
}

/* Of a name, what the step leaves there less what it found. */
static int64_t grown(const Watch *watch, const Seen *seen) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < watch->count; i++) {
    const Seen *other = &watch->seen[i];
    if (other->requested_bytes != seen->requested_bytes || strcmp(other->name, seen->name) != 0 ||
        strcmp(other->scope, seen->scope) != 0)
      continue;
    blocks +=
        (other->born != BEFORE && other->died == ALIVE) - (other->born == BEFORE && other->died != ALIVE);
  }
  return blocks;
}

/* What lives between steps and is not the program's. */
static void judge_held(Watch *watch, const Seen *seen) {
  const Known *known = find_known(watch, seen->name, seen->scope);
  const char *op = op_of(watch, known);
  bool weight = known && watch->account.graph->storages[known->storage]->role == ROLE_PARAMETER;
  if (grown(watch, seen) > 0) {
    /* Counted once: the block that this step adds. */
    if (seen->born == BEFORE) return;
    bool graph = is_saved(watch, known) &&
                 seen->requested_bytes == watch->account.executable->storage_bytes[known->storage];
    report(watch, graph ? ANOMALY_RETAINED_GRAPH : ANOMALY_GROWTH, seen, op, rounded(seen->requested_bytes));
  } else if (seen->born == BEFORE) {
    report(watch, weight ? ANOMALY_WEIGHT_COPY : ANOMALY_HELD, seen, op, rounded(seen->requested_bytes));
  }
}

static void judge_workspace(Watch *watch, const Seen *seen) {
  const Graph *graph = watch->account.graph;
  int64_t needed = -1;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (strcmp(node->op->name, seen->name) != 0 || strcmp(node->scope, seen->scope) != 0) continue;
    int64_t its = account_workspace(watch->account.executable, node);
    bool exact = i == seen->born % graph->node_count;
    if (exact || its > needed) needed = its;
    if (exact) break;
  }
  if (seen->requested_bytes > needed)
    report(watch, ANOMALY_WORKSPACE, seen, seen->name, seen->requested_bytes - (needed > 0 ? needed : 0));
}

static int64_t later(const Life *life, int64_t born, int64_t last) {
  bool covers = life->first <= life->last && life->first <= born && life->last > last;
  return covers ? life->last : last;
}

/* A block of a step of several micro-batches may be a sum, which lives on. */
static bool may_be_sum(const Watch *watch, const Storage *storage) {
  const Program *program = &watch->account.executable->program;
  return program->accumulate > 1 &&
         (storage->role == ROLE_GRADIENT || (program->loss && storage == program->loss->storage));
}

/* The last position at which something may still need a block that was born when it was; again: it is of
 * recomputation. A node made again makes all its outputs, so one of them may be there before its account
 * says. */
static int64_t last_needed(const Watch *watch, const Known *known, int64_t born, bool *again) {
  const Account *account = &watch->account;
  int64_t last = born;
  for (;; known++) {
    int32_t i = known->storage;
    const Life *made_again = &account->again[i];
    if (may_be_sum(watch, account->graph->storages[i])) return ALIVE;
    last = later(&account->kept[i], born, last);
    last = later(&account->fetched[i], watch->copies_differ ? INT32_MAX : born, last);
    last = later(&account->parts[i], born, last);
    if (born > account->last_use[i]) {
      *again = true;
      if (made_again->first <= made_again->last && made_again->last > last) last = made_again->last;
    }
    if (!is_next(watch, known)) return last;
  }
}

static void judge_life(Watch *watch, const Seen *seen) {
  const Known *known = find_known(watch, seen->name, seen->scope);
  int64_t nodes = watch->account.graph->node_count, passed = seen->born / nodes * nodes;
  bool again = false;
  if (!known) {
    report(watch, ANOMALY_HELD, seen, "none", rounded(seen->requested_bytes));
    return;
  }
  int64_t last = last_needed(watch, known, seen->born - passed, &again);
  /* What is made again is needed for a node, by the account up to the one before it. */
  if (last != ALIVE && seen->died > passed + last + 1)
    report(watch, again ? ANOMALY_KEPT_RECOMPUTED : ANOMALY_KEPT_LOSS, seen, op_of(watch, known),
           rounded(seen->requested_bytes));
}

static void judge_size(Watch *watch, const Seen *seen) {
  int64_t off = 0;
  for (const Known *known = find_known(watch, seen->name, seen->scope); known; known++) {
    off = seen->requested_bytes - watch->account.executable->storage_bytes[known->storage];
    if (off == 0 || !is_next(watch, known)) break;
  }
  if (off != 0)
    report(watch, ANOMALY_SIZE, seen, op_of(watch, find_known(watch, seen->name, seen->scope)), off);
}

static void judge(Watch *watch) {
  for (int64_t i = 0; i < watch->count; i++) {
    const Seen *seen = &watch->seen[i];
    bool held = seen->born == BEFORE || seen->died == ALIVE;
    if (seen->born == BEFORE && take_given(watch, seen)) continue;
    if (held) {
      judge_held(watch, seen);
    } else if (seen->category == MEMORY_WORKSPACE) {
      judge_workspace(watch, seen);
    } else {
      judge_size(watch, seen);
      judge_life(watch, seen);
    }
  }
}

static void keep_found(Diagnosis *result) {
  for (int32_t kind = 0; kind < ANOMALY_KIND_COUNT; kind++)
    if (result->anomalies[kind].tensors > 0)
      result->anomalies[result->anomaly_count++] = result->anomalies[kind];
}

void engine_watch_end(Watch **it, bool ended_well, Diagnosis *result) {
  Watch *watch = *it;
  const Cell *cell = watch->cell;
  MemoryStatistics statistics;
  MemoryAccount account = {0};
  if (ended_well) {
    *result = (Diagnosis){.made = true, .start_bytes = watch->start_bytes};
    watch->result = result;
    account_open(cell->executable, &account, &watch->account);
    know_program(watch);
    watch->copies_differ = copies_may_differ(&watch->account);
    take_events(watch);
    vl_tracker_statistics(cell->tracker, &statistics);
    result->peak_bytes = statistics.allocated.peak_bytes;
    result->end_bytes = statistics.allocated.current_bytes;
    (void)account_find_peak(&watch->account);
    result->expected_peak_bytes =
        account.highest_bytes + rounded(engine_window_sums_bytes(&cell->executable->program));
    judge(watch);
    keep_found(result);
    account_close(&watch->account);
  }
  vl_tracker_keep_events(cell->tracker, false);
  vl_tracker_clear_events(cell->tracker);
  free(watch->known);
  free(watch->seen);
  free(watch);
  *it = NULL;
}
