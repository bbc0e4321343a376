/* Places planned ahead: what a step obtains and how long it lives follows from the schedule, so one walk
 * along it that runs nothing tells where everything can lie. */
#include "engine/internal.h"
#include <stdlib.h>

/* A micro-batch begins here: the first of its blocks, and the time. */
typedef struct MicroBatch {
  int64_t block, time;
} MicroBatch;

struct StepPlaces {
  StepPlaces *next;
  int32_t whole; /* micro-batches of the program */
  const Executable *tail;
  Lifetime *lifetimes; /* in the order of obtaining */
  int64_t count, capacity, time;
  MicroBatch *micro_batches; /* all but the first */
  int64_t micro_batch_count;
  int64_t *offsets, bytes;
};

/* Stands for a block while a step is recorded. */
typedef struct Recorded {
  Block block;   /* first */
  int64_t index; /* -1: it has no place */
} Recorded;

StepPlaces *engine_places_find(const Executable *executable, int32_t whole, const Executable *tail) {
  for (StepPlaces *places = executable->places; places; places = places->next)
    if (places->whole == whole && places->tail == tail) return places;
  return NULL;
}

StepPlaces *engine_places_create(int32_t whole, const Executable *tail) {
  StepPlaces *places = vl_allocate(sizeof *places);
  places->whole = whole;
  places->tail = tail;
  return places;
}

void engine_places_destroy(StepPlaces **places) {
  for (StepPlaces *it = *places, *next; it; it = next) {
    next = it->next;
    free(it->lifetimes);
    free(it->micro_batches);
    free(it->offsets);
    free(it);
  }
  *places = NULL;
}

/* ---- Recording ------------------------------------------------------------------------------------------ */

static int64_t add_lifetime(StepPlaces *places, const AllocationRequest *request) {
  if (places->count == places->capacity) {
    places->capacity = places->capacity ? 2 * places->capacity : 1024;
    places->lifetimes = vl_reallocate(places->lifetimes, (size_t)places->capacity * sizeof(Lifetime));
  }
  places->lifetimes[places->count] =
      (Lifetime){.bytes = request->bytes, .first = places->time++, .stream = request->stream};
  return places->count++;
}

Block *engine_places_obtain(StepPlaces *places, const AllocationRequest *request, bool placed) {
  Recorded *recorded = vl_allocate(sizeof *recorded);
  recorded->block.bytes = request->bytes;
  recorded->index = placed ? add_lifetime(places, request) : -1;
  return &recorded->block;
}

void engine_places_release(StepPlaces *places, Block **block) {
  Recorded *recorded = (Recorded *)*block;
  if (!recorded) return;
  if (recorded->index >= 0) places->lifetimes[recorded->index].last = places->time++;
  free(recorded);
  *block = NULL;
}

void engine_places_begin_micro_batch(StepPlaces *places) {
  size_t count = (size_t)places->micro_batch_count + 1;
  places->micro_batches = vl_reallocate(places->micro_batches, count * sizeof(MicroBatch));
  places->micro_batches[places->micro_batch_count++] = (MicroBatch){places->count, places->time};
}

/* ---- Packing -------------------------------------------------------------------------------------------- */

/* Whether a micro-batch repeats the one after the first: what it obtains lives within it, as long as there.
 */
static bool repeats(const StepPlaces *places, int64_t micro_batch) {
  const MicroBatch *model = places->micro_batches, *it = &places->micro_batches[micro_batch];
  int64_t count = it[1].block - it->block, shift = it->time - model->time;
  if (model[1].block - model->block != count || model[1].time + shift != it[1].time) return false;
  for (int64_t i = 0; i < count; i++) {
    const Lifetime *a = &places->lifetimes[model->block + i], *b = &places->lifetimes[it->block + i];
    if (a->bytes != b->bytes || a->stream != b->stream || a->first + shift != b->first ||
        a->last + shift != b->last || b->last >= it[1].time)
      return false;
  }
  return true;
}

/* Whether all micro-batches between the second and the last repeat the second. Only then may they be left
 * out: nothing that begins in one of them lives on into another. */
static bool all_repeat(const StepPlaces *places) {
  for (int64_t i = 1; i + 1 < places->micro_batch_count; i++)
    if (!repeats(places, i)) return false;
  return places->micro_batch_count > 2;
}

/* What only repeats is left out and lies where its model does: the more micro-batches, the less to be gained
 * by looking at each. Returns how many lifetimes are left; model[i] is the one of them that i lies with. */
static int64_t leave_out_repetitions(const StepPlaces *places, Lifetime *left, int64_t *model) {
  const MicroBatch *second = places->micro_batches;
  int64_t count = 0, from = places->count, to = places->count, period = 0;
  if (all_repeat(places)) {
    from = second[1].block;
    to = second[places->micro_batch_count - 1].block;
    period = from - second->block;
  }
  for (int64_t i = 0; i < places->count; i++) {
    bool repeated = i >= from && i < to;
    if (!repeated) left[count] = places->lifetimes[i];
    model[i] = repeated ? model[i - period] : count++;
  }
  return count;
}

void engine_places_pack(StepPlaces *places) {
  size_t count = (size_t)places->count + 1;
  Lifetime *left = vl_allocate(count * sizeof *left);
  int64_t *model = vl_allocate(count * sizeof *model), *offsets = vl_allocate(count * sizeof *offsets);
  int64_t left_count = leave_out_repetitions(places, left, model);
  places->bytes = vl_lifetimes_pack(left, left_count, offsets);
  places->offsets = vl_allocate(count * sizeof(int64_t));
  for (int64_t i = 0; i < places->count; i++)
    places->offsets[i] = offsets[model[i]];
  free(left);
  free(model);
  free(offsets);
}

/* ---- Using ---------------------------------------------------------------------------------------------- */

int64_t engine_places_bytes(const StepPlaces *places) { return places->bytes; }

void engine_places_keep(Executable *executable, StepPlaces *places) {
  places->next = executable->places;
  executable->places = places;
}

Status engine_places_of(const StepPlaces *places, int64_t index, AllocationRequest *request) {
  if (index >= places->count || places->lifetimes[index].bytes != request->bytes)
    return vl_error(VL_INTERNAL, "%s in %s: the step does not go as it was planned", request->name,
                    request->scope);
  request->region = VL_STEP_REGION;
  request->offset = places->offsets[index];
  return vl_ok();
}

int64_t engine_place_bytes(int64_t bytes) {
  return (bytes + VL_BLOCK_BYTES - 1) / VL_BLOCK_BYTES * VL_BLOCK_BYTES;
}

PlaceCursor engine_place_begin(Heap *heap, int64_t bytes) {
  return (PlaceCursor){.region = bytes > 0 ? vl_heap_add_region(heap, bytes) : VL_UNPLANNED};
}

void engine_place_next(PlaceCursor *cursor, AllocationRequest *request) {
  request->region = cursor->region;
  request->offset = cursor->offset;
  cursor->offset += engine_place_bytes(request->bytes);
}
