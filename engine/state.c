#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct State {
  Device *device;
  Heap *heap;
  Heap *offload_heap; /* NULL: nothing is kept there */
  Arena *arena;
  StateEntry **entries;
  int32_t count, capacity;
  const char *vocabulary; /* in the arena; "": not known */
  int32_t *slots;         /* open addressing over entries, -1 empty */
  int32_t slot_count;
};

enum { FIRST_SLOTS = 1024 };

State *vl_state_create(Device *device, Heap *heap) {
  State *state = vl_allocate(sizeof *state);
  state->device = device;
  state->heap = heap;
  state->arena = vl_arena_create();
  state->vocabulary = "";
  state->slot_count = FIRST_SLOTS;
  state->slots = vl_allocate(FIRST_SLOTS * sizeof *state->slots);
  memset(state->slots, -1, FIRST_SLOTS * sizeof *state->slots);
  return state;
}

void vl_state_use_offload_heap(State *state, Heap *heap) { state->offload_heap = heap; }

void vl_state_set_vocabulary(State *state, const char *digest) {
  state->vocabulary = vl_arena_copy_text(state->arena, digest);
}

const char *engine_state_vocabulary(const State *state) { return state->vocabulary; }

static Heap *heap_of(const State *state, const Storage *storage) {
  return storage->tier == TIER_OFFLOAD ? state->offload_heap : state->heap;
}

void vl_state_destroy(State **state) {
  State *it = *state;
  if (!it) return;
  for (int32_t i = it->count - 1; i >= 0; i--)
    vl_heap_release(heap_of(it, &it->entries[i]->storage), &it->entries[i]->block);
  free(it->entries);
  free(it->slots);
  vl_arena_destroy(&it->arena);
  free(it);
  *state = NULL;
}

static int32_t slot_of(const State *state, const char *name) {
  uint64_t slot = vl_hash_text(vl_hash_start, name) % (uint64_t)state->slot_count;
  while (state->slots[slot] >= 0 && strcmp(state->entries[state->slots[slot]]->storage.name, name) != 0) {
    slot = (slot + 1) % (uint64_t)state->slot_count;
  }
  return (int32_t)slot;
}

const StateEntry *engine_state_find(const State *state, const char *name) {
  int32_t at = state->slots[slot_of(state, name)];
  return at < 0 ? NULL : state->entries[at];
}

int32_t engine_state_count(const State *state) { return state->count; }
const StateEntry *engine_state_entry(const State *state, int32_t index) { return state->entries[index]; }

static void rehash(State *state) {
  state->slot_count *= 2;
  state->slots = vl_reallocate(state->slots, (size_t)state->slot_count * sizeof *state->slots);
  memset(state->slots, -1, (size_t)state->slot_count * sizeof *state->slots);
  for (int32_t i = 0; i < state->count; i++) {
    state->slots[slot_of(state, state->entries[i]->storage.name)] = i;
  }
}

/* A storage that outlives its graph, and what it is derived from. */
static void copy_storage(Arena *arena, const Storage *from, Storage *to) {
  Tensor *root = vl_arena_allocate(arena, sizeof *root);
  *to = *from;
  to->name = vl_arena_copy_text(arena, from->name);
  to->scope = vl_arena_copy_text(arena, from->scope);
  *root = *from->root;
  root->name = to->name;
  root->storage = to;
  root->producer = NULL;
  to->root = root;
  if (!from->derived) return;
  Derivation *derived = vl_arena_allocate(arena, sizeof *derived);
  *derived = *from->derived;
  for (int32_t i = 0; i < vl_derivation_source_count(derived->kind); i++) {
    derived->sources[i] = vl_arena_allocate(arena, sizeof(Storage));
    copy_storage(arena, from->derived->sources[i], derived->sources[i]);
  }
  to->derived = derived;
}

static StateEntry *add_entry(State *state, const Storage *storage) {
  if (2 * (state->count + 1) > state->slot_count) rehash(state);
  if (state->count == state->capacity) {
    state->capacity = state->capacity ? 2 * state->capacity : 256;
    state->entries = vl_reallocate(state->entries, (size_t)state->capacity * sizeof(StateEntry *));
  }
  StateEntry *entry = vl_arena_allocate(state->arena, sizeof *entry);
  copy_storage(state->arena, storage, &entry->storage);
  state->slots[slot_of(state, storage->name)] = state->count;
  state->entries[state->count++] = entry;
  return entry;
}

MemoryCategory engine_category_of(Role role) {
  switch (role) {
  case ROLE_INPUT: return MEMORY_INPUT;
  case ROLE_PARAMETER:
  case ROLE_STATISTIC: return MEMORY_PARAMETER;
  case ROLE_OPTIMIZER: return MEMORY_OPTIMIZER;
  case ROLE_GRADIENT: return MEMORY_GRADIENT;
  case ROLE_SOURCE:
  case ROLE_ACTIVATION: break;
  }
  return MEMORY_ACTIVATION;
}

/* Element i is (2u - 1) b with u from lane i % 4 of block i / 4, as vl_random_word defines it; a block at a
 * time, since a model has tens of millions of weights. */
static void fill_uniform(const Storage *storage, uint64_t seed, void *host) {
  uint64_t key = vl_random_key(seed, 0, storage->name);
  uint32_t words[4], key_words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
  for (int64_t i = 0; i < storage->elements; i++) {
    uint64_t block = (uint64_t)i / 4;
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
    if (i % 4 == 0) vl_philox(counter, key_words, words);
    double value = storage->init.value * (2.0 * (double)vl_random_unit(words[i % 4]) - 1.0);
    vl_element_set(host, storage->dtype, i, value);
  }
}

bool engine_state_is_derived(const State *state) {
  for (int32_t i = 0; i < state->count; i++)
    if (state->entries[i]->storage.derived) return true;
  return false;
}

/* gamma / sqrt(var + epsilon) of a channel. */
static double channel_scale(const Derivation *derived, int32_t gamma, int32_t var, void *const *sources,
                            int64_t channel) {
  double variance = vl_element_get(sources[var], derived->sources[var]->dtype, channel);
  double factor = vl_element_get(sources[gamma], derived->sources[gamma]->dtype, channel);
  return factor / sqrt(variance + derived->epsilon);
}

void engine_derive(const Storage *storage, void *const *sources, void *host) {
  const Derivation *derived = storage->derived;
  int64_t per_channel = storage->elements / (storage->root->rank > 0 ? storage->root->shape[0] : 1);
  for (int64_t i = 0; i < storage->elements; i++) {
    double value = vl_element_get(sources[0], derived->sources[0]->dtype, i);
    if (derived->kind == DERIVED_SCALED) value *= channel_scale(derived, 1, 2, sources, i / per_channel);
    if (derived->kind == DERIVED_SHIFT)
      value -= vl_element_get(sources[1], derived->sources[1]->dtype, i) *
               channel_scale(derived, 2, 3, sources, i);
    vl_element_set(host, storage->dtype, i, value);
  }
}

static void initial_value(const Storage *storage, uint64_t seed, void *host);

static void derive_initial_value(const Storage *storage, uint64_t seed, void *host) {
  const Derivation *derived = storage->derived;
  void *sources[VL_MAX_SOURCES] = {NULL};
  for (int32_t i = 0; i < vl_derivation_source_count(derived->kind); i++) {
    const Storage *source = derived->sources[i];
    sources[i] = vl_allocate((size_t)vl_dtype_bytes(source->dtype, source->elements) + 1);
    initial_value(source, seed, sources[i]);
  }
  engine_derive(storage, sources, host);
  for (int32_t i = 0; i < VL_MAX_SOURCES; i++)
    free(sources[i]);
}

/* Fills host memory of the storage's dtype, zeroed before, with its initial value. */
static void initial_value(const Storage *storage, uint64_t seed, void *host) {
  if (storage->derived) {
    derive_initial_value(storage, seed, host);
    return;
  }
  if (storage->init.kind == INIT_UNIFORM) fill_uniform(storage, seed, host);
  for (int64_t i = 0; storage->init.kind == INIT_CONSTANT && i < storage->elements; i++) {
    vl_element_set(host, storage->dtype, i, storage->init.value);
  }
}

/* Between a block of the device and one of the offload tier; waits for it. */
static Status copy_and_wait(Device *device, bool out, const Block *on_device, const Block *in_tier) {
  uint64_t event;
  VL_TRY(device->interface->offload_copy(device, out, on_device->address, in_tier->address,
                                         in_tier->requested_bytes, &event));
  VL_TRY(device->interface->offload_wait(device, event));
  return device->interface->synchronize(device);
}

/* An entry's value on the device while it is copied in or out: the entry's own block, or one beside it. */
static Status begin_copy(State *state, const StateEntry *entry, Block **beside) {
  *beside = NULL;
  if (entry->storage.tier == TIER_DEVICE) return vl_ok();
  AllocationRequest request = {.bytes = entry->block->requested_bytes,
                               .category = engine_category_of(entry->storage.role),
                               .name = entry->storage.name,
                               .scope = entry->storage.scope};
  return vl_heap_obtain(state->heap, &request, beside);
}

static Status upload(State *state, const StateEntry *entry, const void *host) {
  Device *device = state->device;
  Block *beside;
  VL_TRY(begin_copy(state, entry, &beside));
  const Block *block = beside ? beside : entry->block;
  Status status = device->interface->upload(device, &entry->storage, host, block->address);
  if (status.code == VL_OK && beside) status = copy_and_wait(device, true, beside, entry->block);
  vl_heap_release(state->heap, &beside);
  return status;
}

static Status download(State *state, const StateEntry *entry, void *host) {
  Device *device = state->device;
  Block *beside;
  VL_TRY(begin_copy(state, entry, &beside));
  const Block *block = beside ? beside : entry->block;
  Status status = beside ? copy_and_wait(device, false, beside, entry->block) : vl_ok();
  if (status.code == VL_OK)
    status = device->interface->download(device, &entry->storage, block->address, host);
  vl_heap_release(state->heap, &beside);
  return status;
}

/* Plan writes nothing, and obtains what writing takes. */
static Status initialise(State *state, const StateEntry *entry, uint64_t seed) {
  const Storage *storage = &entry->storage;
  DeviceDescription description;
  state->device->interface->describe(state->device, &description);
  if (description.predicts) return upload(state, entry, NULL);
  void *host = vl_allocate((size_t)vl_dtype_bytes(storage->dtype, storage->elements) + 1);
  initial_value(storage, seed, host);
  Status status = upload(state, entry, host);
  free(host);
  return status;
}

static Status add_storage(State *state, const Executable *executable, const Storage *storage, uint64_t seed,
                          PlaceCursor *cursor) {
  AllocationRequest request = {.bytes = executable->storage_bytes[storage->id],
                               .category = engine_category_of(storage->role)};
  if (storage->tier == TIER_DEVICE) engine_place_next(cursor, &request);
  StateEntry *entry = add_entry(state, storage);
  request.name = entry->storage.name;
  request.scope = entry->storage.scope;
  if (!heap_of(state, storage))
    return vl_error(VL_INTERNAL, "%s is kept in the offload tier, which has no heap", storage->name);
  Status status = vl_heap_obtain(heap_of(state, storage), &request, &entry->block);
  if (status.code == VL_OK) status = initialise(state, entry, seed);
  if (status.code != VL_OK) { /* as if it had never been asked for; its slot ends its chain */
    vl_heap_release(heap_of(state, storage), &entry->block);
    state->slots[slot_of(state, entry->storage.name)] = -1;
    state->count--;
  }
  return status;
}

/* Whether State is to have a storage that it has not. */
static bool is_missing(const State *state, const Storage *storage, bool optimizer) {
  bool wanted = vl_role_is_persistent(storage->role) && (optimizer || storage->role != ROLE_OPTIMIZER);
  return wanted && !engine_state_find(state, storage->name);
}

/* A region for what is missing. */
static PlaceCursor plan_missing(const State *state, const Executable *executable, bool optimizer) {
  const Graph *graph = executable->program.graph;
  int64_t bytes = 0;
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    if (storage->tier == TIER_DEVICE && is_missing(state, storage, optimizer))
      bytes += engine_place_bytes(executable->storage_bytes[storage->id]);
  }
  return engine_place_begin(state->heap, bytes);
}

static Status check_present(const State *state, const Graph *graph, const Storage *storage) {
  const StateEntry *entry = engine_state_find(state, storage->name);
  if (!entry || (entry->storage.elements == storage->elements && entry->storage.dtype == storage->dtype))
    return vl_ok();
  return vl_error(VL_INVALID, "%s has %lld elements in State and %lld in %s", storage->name,
                  (long long)entry->storage.elements, (long long)storage->elements, graph->name);
}

Status vl_state_prepare(State *state, const Executable *executable, uint64_t seed, bool optimizer) {
  const Graph *graph = executable->program.graph;
  PlaceCursor cursor = plan_missing(state, executable, optimizer);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    if (is_missing(state, storage, optimizer)) {
      VL_TRY(add_storage(state, executable, storage, seed, &cursor));
    } else if (vl_role_is_persistent(storage->role) && (storage->role != ROLE_OPTIMIZER || optimizer)) {
      VL_TRY(check_present(state, graph, storage));
    }
  }
  /* What copies to the offload tier went through has no place in any step. */
  if (vl_heap_is_planned(state->heap) && state->offload_heap) (void)vl_heap_trim(state->heap);
  return vl_ok();
}

static Status find_for_copy(const State *state, const char *name, int64_t bytes, const StateEntry **entry) {
  *entry = engine_state_find(state, name);
  if (!*entry) return vl_error(VL_INVALID, "State has no '%s'", name);
  int64_t held = vl_dtype_bytes((*entry)->storage.dtype, (*entry)->storage.elements);
  if (held != bytes) {
    return vl_error(VL_INVALID, "'%s' has %lld bytes, not %lld", name, (long long)held, (long long)bytes);
  }
  return vl_ok();
}

Status vl_state_read(State *state, const char *name, void *host, int64_t bytes) {
  const StateEntry *entry;
  VL_TRY(find_for_copy(state, name, bytes, &entry));
  return download(state, entry, host);
}

Status vl_state_write(State *state, const char *name, const void *host, int64_t bytes) {
  const StateEntry *entry;
  VL_TRY(find_for_copy(state, name, bytes, &entry));
  return upload(state, entry, host);
}
