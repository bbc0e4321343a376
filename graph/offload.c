/* Offloading: which buffers leave the device for a while, and where in the schedule the copies stand.
 *
 * An activation that backward reads is evicted right behind its last use in forward and fetched ahead of its
 * first use in backward. Optimizer state that is kept in the offload tier is fetched ahead of the update that
 * uses it and evicted behind it. Copies run beside the launches; a window bounds what they hold: evicts that
 * have not been waited for, and fetches that nobody has read yet. A copy that alone is larger runs alone.
 * What would have to be fetched the moment backward begins stays.
 *
 * Nothing here depends on how long anything takes, so that memory is the same whoever walks the schedule.
 */
#include "graph/offload.h"
#include <stdlib.h>
#include <string.h>

/* The window is this part of what is offloaded: of a micro-batch's activations, of the optimizer's state. */
enum { WINDOW_PART = 16 };
/* So many launches ahead the first state is fetched; there is no earlier one whose use could make room. */
enum { FIRST_FETCH_AHEAD = 16 };
/* Smaller buffers stay: a copy costs more than they occupy. */
static const int64_t smallest_bytes = 1024;

/* An evict or a fetch. */
typedef struct Transfer {
  InstanceKind kind;
  int32_t from, to; /* buffers; of what stays -1 */
  int32_t use;      /* the launch an evict follows, and the one a fetch is for */
  int64_t bytes;
  int32_t index; /* among the instances, in the end */
} Transfer;

/* Where an instance is put in: before launch n at 2n, behind it at 2n + 1. */
typedef enum Place { PLACE_EVICTED, PLACE_LATE_FETCH, PLACE_FETCHED, PLACE_FETCH } Place;
typedef struct Insertion {
  int32_t at;
  Place place; /* among those at the same point */
  int32_t sequence;
  InstanceKind kind;
  int32_t transfer;
} Insertion;

typedef struct Offload {
  const Program *program;
  Schedule *schedule;
  int32_t *turn;          /* by micro-batch: the first launch of its backward; -1: none */
  int32_t *last_use;      /* by buffer: the last launch in forward that uses it, -1 */
  int32_t *next_use;      /* by buffer: the first from the turn on, -1 */
  int32_t *made_at;       /* by buffer: position of the node that makes it */
  int32_t *came_back;     /* by buffer: where it is from next_use on, -1: still there */
  int32_t launch_buffers; /* those of the launches come first */
  int32_t end;            /* position of the last node whose outputs may leave */
  Transfer *transfers;
  int32_t transfer_count, transfer_capacity;
  Insertion *insertions;
  int32_t insertion_count, insertion_capacity;
} Offload;

static int64_t bytes_of(const Storage *storage) { return vl_dtype_bytes(storage->dtype, storage->elements); }

static int32_t add_buffer(Schedule *schedule, const Buffer *like, Tier tier) {
  schedule->buffers =
      vl_reallocate(schedule->buffers, ((size_t)schedule->buffer_count + 1) * sizeof *schedule->buffers);
  int32_t id = schedule->buffer_count++;
  schedule->buffers[id] = *like;
  schedule->buffers[id].id = id;
  schedule->buffers[id].tier = tier;
  schedule->buffers[id].given = false;
  return id;
}

static void add_transfer(Offload *offload, Transfer transfer) {
  if (offload->transfer_count == offload->transfer_capacity) {
    offload->transfer_capacity = offload->transfer_capacity ? 2 * offload->transfer_capacity : 64;
    offload->transfers =
        vl_reallocate(offload->transfers, (size_t)offload->transfer_capacity * sizeof(Transfer));
  }
  offload->transfers[offload->transfer_count++] = transfer;
}

static void put(Offload *offload, int32_t at, Place place, InstanceKind kind, int32_t transfer) {
  if (offload->insertion_count == offload->insertion_capacity) {
    offload->insertion_capacity = offload->insertion_capacity ? 2 * offload->insertion_capacity : 256;
    offload->insertions =
        vl_reallocate(offload->insertions, (size_t)offload->insertion_capacity * sizeof(Insertion));
  }
  int32_t sequence = offload->insertion_count++;
  offload->insertions[sequence] = (Insertion){at, place, sequence, kind, transfer};
}

static int32_t before(int32_t launch) { return 2 * launch; }
static int32_t behind(int32_t launch) { return 2 * launch + 1; }

/* ---- Places ------------------------------------------------------------------------------------------------ */

/* Each evict of a list behind its use, after waiting for the oldest until the window holds both; what is left
 * is waited for before launch `end`. */
static void place_evicts(Offload *offload, int32_t first, int32_t count, int64_t window_bytes, int32_t end) {
  const Transfer *list = offload->transfers + first;
  int32_t oldest = 0;
  int64_t under_way_bytes = 0;
  for (int32_t i = 0; i < count; i++) {
    for (; oldest < i && under_way_bytes + list[i].bytes > window_bytes; oldest++) {
      put(offload, behind(list[i].use), PLACE_EVICTED, INSTANCE_WAIT, first + oldest);
      under_way_bytes -= list[oldest].bytes;
    }
    put(offload, behind(list[i].use), PLACE_EVICTED, INSTANCE_EVICT, first + i);
    under_way_bytes += list[i].bytes;
  }
  for (; oldest < count; oldest++)
    put(offload, before(end), PLACE_EVICTED, INSTANCE_WAIT, first + oldest);
}

/* Each fetch of a list as early as the window allows, but not before launch `begin`, and a wait before its
 * use. What stays takes its part of the window until it is used. */
static void place_fetches(Offload *offload, int32_t first, int32_t count, int64_t window_bytes,
                          int32_t begin) {
  const Transfer *list = offload->transfers + first;
  int32_t used = 0, at = begin;
  int64_t ahead_bytes = 0;
  for (int32_t i = 0; i < count; i++) {
    while (used < i && (list[used].use <= at || ahead_bytes + list[i].bytes > window_bytes)) {
      if (list[used].use > at) at = list[used].use;
      ahead_bytes -= list[used++].bytes;
    }
    ahead_bytes += list[i].bytes;
    if (list[i].from < 0) continue;
    put(offload, before(at), at < list[i].use ? PLACE_FETCH : PLACE_LATE_FETCH, INSTANCE_FETCH, first + i);
    put(offload, before(list[i].use), PLACE_FETCHED, INSTANCE_WAIT, first + i);
  }
}

/* ---- Activations ------------------------------------------------------------------------------------------- */

/* An activation that both passes use. */
typedef struct Candidate {
  int32_t buffer, last_use, next_use;
  int64_t bytes;
} Candidate;

static int compare_next_use(const void *a, const void *b) {
  const Candidate *x = a, *y = b;
  if (x->next_use != y->next_use) return x->next_use < y->next_use ? -1 : 1;
  return x->buffer - y->buffer;
}

static int compare_last_use(const void *a, const void *b) {
  const Candidate *x = a, *y = b;
  if (x->last_use != y->last_use) return x->last_use < y->last_use ? -1 : 1;
  return x->buffer - y->buffer;
}

/* Position of the last forward node that belongs to the blocks. */
static int32_t last_position(const Program *program) {
  if (program->offload_blocks == INT32_MAX) return INT32_MAX;
  int32_t last = -1;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    if (node->segment == SEGMENT_FORWARD && node->block > 0 && node->block <= program->offload_blocks)
      last = i;
  }
  return last;
}

static int32_t find_candidates(const Offload *offload, int32_t micro_batch, Candidate *candidates) {
  const Program *program = offload->program;
  int32_t count = 0;
  for (int32_t i = 0; i < offload->launch_buffers; i++) {
    const Buffer *buffer = &offload->schedule->buffers[i];
    int64_t bytes = bytes_of(buffer->storage);
    bool saved = buffer->storage->role == ROLE_ACTIVATION && buffer->micro_batch == micro_batch &&
                 offload->last_use[i] >= 0 && offload->next_use[i] >= 0;
    bool outlives = program->loss && buffer->storage == program->loss->storage;
    if (!saved || outlives || bytes < smallest_bytes || offload->made_at[i] > offload->end) continue;
    candidates[count++] = (Candidate){i, offload->last_use[i], offload->next_use[i], bytes};
  }
  return count;
}

/* How many of the candidates, by their next use, the window holds when backward begins: they stay. */
static int32_t count_staying(const Candidate *candidates, int32_t count, int64_t window_bytes) {
  int32_t staying = 0;
  for (int64_t bytes = 0; staying < count; staying++) {
    bytes += candidates[staying].bytes;
    if (bytes > window_bytes) break;
  }
  return staying;
}

static void offload_activations(Offload *offload, int32_t micro_batch) {
  Schedule *schedule = offload->schedule;
  int32_t buffers = offload->launch_buffers, turn = offload->turn[micro_batch];
  Candidate *candidates = vl_allocate(((size_t)buffers + 1) * sizeof *candidates);
  int32_t count = find_candidates(offload, micro_batch, candidates);
  int64_t window_bytes = 0;
  for (int32_t i = 0; i < count; i++)
    window_bytes += candidates[i].bytes;
  window_bytes /= WINDOW_PART;
  qsort(candidates, (size_t)count, sizeof *candidates, compare_next_use);
  int32_t staying = count_staying(candidates, count, window_bytes), fetches = offload->transfer_count;
  for (int32_t i = 0; i < count; i++) {
    Candidate *it = &candidates[i];
    Transfer fetch = {INSTANCE_FETCH, -1, -1, it->next_use, it->bytes, -1};
    if (i >= staying) {
      Buffer on_device = schedule->buffers[it->buffer];
      fetch.from = add_buffer(schedule, &on_device, TIER_OFFLOAD);
      fetch.to = add_buffer(schedule, &on_device, TIER_DEVICE);
      offload->came_back[it->buffer] = fetch.to;
    }
    add_transfer(offload, fetch);
  }
  place_fetches(offload, fetches, count, window_bytes, turn);
  /* Their fetches know where in the tier each goes. */
  int32_t leaving = count - staying, evicts = offload->transfer_count;
  int32_t *tier = vl_allocate(((size_t)buffers + 1) * sizeof *tier);
  for (int32_t i = staying; i < count; i++)
    tier[candidates[i].buffer] = offload->transfers[fetches + i].from;
  qsort(candidates + staying, (size_t)leaving, sizeof *candidates, compare_last_use);
  for (int32_t i = staying; i < count; i++) {
    const Candidate *it = &candidates[i];
    add_transfer(offload,
                 (Transfer){INSTANCE_EVICT, it->buffer, tier[it->buffer], it->last_use, it->bytes, -1});
  }
  place_evicts(offload, evicts, leaving, window_bytes, turn);
  free(tier);
  free(candidates);
}

/* ---- Optimizer state ------------------------------------------------------------------------------------------ */

static void replace(int32_t *ids, int32_t count, int32_t from, int32_t to) {
  for (int32_t i = 0; i < count; i++)
    if (ids[i] == from) ids[i] = to;
}

/* The buffers in the tier that a launch uses, each once. */
static int32_t find_tier_buffers(const Schedule *schedule, const Instance *launch,
                                 int32_t found[VL_MAX_INPUTS]) {
  int32_t count = 0;
  for (int32_t k = 0; k < VL_MAX_INPUTS; k++) {
    int32_t id = launch->inputs[k];
    bool known = false;
    for (int32_t i = 0; i < count; i++)
      known = known || found[i] == id;
    if (id >= 0 && !known && schedule->buffers[id].given && schedule->buffers[id].tier == TIER_OFFLOAD)
      found[count++] = id;
  }
  return count;
}

/* Where state may first be fetched for launch `use`. With accumulation only where updates are: any
 * micro-batch may be the last that runs. */
static int32_t first_fetch(const Offload *offload, int32_t use) {
  int32_t first = use > FIRST_FETCH_AHEAD ? use - FIRST_FETCH_AHEAD : 0;
  const Instance *instances = offload->schedule->instances;
  while (offload->program->accumulate > 1 && instances[first].node->segment != SEGMENT_UPDATE)
    first++;
  return first;
}

static void offload_state(Offload *offload) {
  Schedule *schedule = offload->schedule;
  int32_t fetches = offload->transfer_count, found[VL_MAX_INPUTS];
  int64_t window_bytes = 0;
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    Buffer *buffer = &schedule->buffers[i];
    if (!buffer->given) continue;
    buffer->tier = buffer->storage->tier;
    if (buffer->tier == TIER_OFFLOAD) window_bytes += bytes_of(buffer->storage);
  }
  window_bytes /= WINDOW_PART;
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    Instance *launch = &schedule->instances[at];
    int32_t count = find_tier_buffers(schedule, launch, found);
    for (int32_t i = 0; i < count; i++) {
      Buffer kept = schedule->buffers[found[i]];
      kept.micro_batch = launch->micro_batch;
      int32_t to = add_buffer(schedule, &kept, TIER_DEVICE);
      add_transfer(offload, (Transfer){INSTANCE_FETCH, found[i], to, at, bytes_of(kept.storage), -1});
      replace(launch->inputs, VL_MAX_INPUTS, found[i], to);
      replace(launch->outputs, VL_MAX_OUTPUTS, found[i], to);
    }
  }
  int32_t evicts = offload->transfer_count, count = evicts - fetches;
  if (count == 0) return;
  for (int32_t i = fetches; i < evicts; i++) {
    Transfer back = offload->transfers[i];
    add_transfer(offload, (Transfer){INSTANCE_EVICT, back.to, back.from, back.use, back.bytes, -1});
  }
  place_fetches(offload, fetches, count, window_bytes, first_fetch(offload, offload->transfers[fetches].use));
  place_evicts(offload, evicts, count, window_bytes, schedule->instance_count);
}

/* ---- The new list of instances ---------------------------------------------------------------------------------- */

static int compare_insertions(const void *a, const void *b) {
  const Insertion *x = a, *y = b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  if (x->place != y->place) return x->place < y->place ? -1 : 1;
  return x->sequence < y->sequence ? -1 : 1;
}

static Instance make_instance(Offload *offload, const Insertion *insertion, const Instance *beside,
                              int32_t index) {
  Transfer *transfer = &offload->transfers[insertion->transfer];
  Instance made = {.kind = insertion->kind,
                   .node = beside->node,
                   .micro_batch = beside->micro_batch,
                   .pass = beside->pass,
                   .transfer = -1};
  memset(made.inputs, -1, sizeof made.inputs);
  memset(made.outputs, -1, sizeof made.outputs);
  made.inputs[0] = transfer->from;
  if (insertion->kind == INSTANCE_WAIT) {
    made.transfer = transfer->index;
    return made;
  }
  made.outputs[0] = transfer->to;
  made.stream = STREAM_COPY;
  transfer->index = index;
  offload->schedule->transfers++;
  return made;
}

static void insert(Offload *offload) {
  Schedule *schedule = offload->schedule;
  int32_t launches = schedule->instance_count, count = 0, next = 0;
  if (offload->insertion_count == 0) return;
  qsort(offload->insertions, (size_t)offload->insertion_count, sizeof(Insertion), compare_insertions);
  Instance *instances = vl_allocate((size_t)(launches + offload->insertion_count) * sizeof *instances);
  for (int32_t at = 0; at <= 2 * launches; at++) {
    int32_t launch = at / 2;
    const Instance *beside = &schedule->instances[launch < launches ? launch : launches - 1];
    for (; next < offload->insertion_count && offload->insertions[next].at == at; next++, count++)
      instances[count] = make_instance(offload, &offload->insertions[next], beside, count);
    if (at % 2 == 0 && launch < launches) instances[count++] = *beside;
  }
  free(schedule->instances);
  schedule->instances = instances;
  schedule->instance_count = count;
}

/* ---- Uses ----------------------------------------------------------------------------------------------------------- */

static void find_turns(const Offload *offload) {
  const Schedule *schedule = offload->schedule;
  memset(offload->turn, -1, (size_t)offload->program->accumulate * sizeof *offload->turn);
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *launch = &schedule->instances[at];
    int32_t *turn = &offload->turn[launch->micro_batch];
    if (*turn < 0 && launch->node->segment == SEGMENT_BACKWARD) *turn = at;
  }
}

static void use(const Offload *offload, int32_t id, int32_t at) {
  if (id < 0) return;
  const Buffer *buffer = &offload->schedule->buffers[id];
  int32_t turn = offload->turn[buffer->micro_batch];
  if (turn < 0 || at < turn)
    offload->last_use[id] = at;
  else if (offload->next_use[id] < 0)
    offload->next_use[id] = at;
}

static void find_uses(const Offload *offload) {
  const Schedule *schedule = offload->schedule;
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *launch = &schedule->instances[at];
    for (int32_t k = 0; k < VL_MAX_INPUTS; k++)
      use(offload, launch->inputs[k], at);
    for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++) {
      int32_t id = launch->outputs[k];
      use(offload, id, at);
      if (id >= 0 && offload->made_at[id] < 0) offload->made_at[id] = launch->node->position;
    }
  }
}

/* From its next use on, what was away is where it came back to. */
static void redirect(const Offload *offload, int32_t *ids, int32_t count, int32_t at) {
  for (int32_t k = 0; k < count; k++) {
    int32_t id = ids[k];
    if (id >= 0 && offload->came_back[id] >= 0 && at >= offload->next_use[id])
      ids[k] = offload->came_back[id];
  }
}

static void offload_all_activations(Offload *offload) {
  const Program *program = offload->program;
  Schedule *schedule = offload->schedule;
  size_t bytes = ((size_t)schedule->buffer_count + 1) * sizeof(int32_t);
  offload->launch_buffers = schedule->buffer_count;
  offload->end = last_position(program);
  int32_t **lists[] = {&offload->last_use, &offload->next_use, &offload->made_at, &offload->came_back};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    memset(*lists[i] = vl_allocate(bytes), -1, bytes);
  offload->turn = vl_allocate((size_t)program->accumulate * sizeof *offload->turn);
  find_turns(offload);
  find_uses(offload);
  for (int32_t m = 0; m < program->accumulate; m++)
    if (offload->turn[m] >= 0) offload_activations(offload, m);
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    redirect(offload, schedule->instances[at].inputs, VL_MAX_INPUTS, at);
    redirect(offload, schedule->instances[at].outputs, VL_MAX_OUTPUTS, at);
  }
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    free(*lists[i]);
  free(offload->turn);
}

void graph_offload(const Program *program, Schedule *schedule) {
  Offload offload = {.program = program, .schedule = schedule};
  if (program->offload_blocks > 0) offload_all_activations(&offload);
  offload_state(&offload);
  insert(&offload);
  free(offload.transfers);
  free(offload.insertions);
}
