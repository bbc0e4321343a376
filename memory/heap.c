/* The heap: every byte of device memory passes here. It asks the policy for blocks, has the tracker count
 * them, and words what went wrong when there is no room. */
#include "memory/internal.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct Heap {
  SegmentSource source;
  const AllocationPolicy *policy;
  void *state;
  const char *tier; /* NULL: the device's memory */
  int64_t live_blocks;
  HeapFailure last_failure;
};

/* Keeps rounding to segments far from overflow; no machine has this much. */
static const int64_t largest_request_bytes = INT64_MAX / 4;

Status vl_heap_create(const Backing *backing, const HeapOptions *options, Tracker *tracker, Heap **heap) {
  const AllocationPolicy *policy = vl_policy_find(options->policy);
  if (policy == NULL) {
    char names[128];
    vl_policy_names(names, sizeof names);
    return vl_error(VL_INVALID, "allocation policy '%s' is unknown; accepted: %s", options->policy, names);
  }
  if (options->capacity_bytes < 0) {
    return vl_error(VL_INVALID,
                    "heap capacity %" PRId64
                    " bytes is negative; accepted: a number of bytes, or 0 for no limit",
                    options->capacity_bytes);
  }
  VL_TRY(policy->check(backing, options));
  Heap *created = vl_allocate(sizeof *created);
  created->source =
      (SegmentSource){.backing = backing, .tracker = tracker, .capacity_bytes = options->capacity_bytes};
  created->policy = policy;
  created->tier = options->tier;
  created->state = policy->create(&created->source, options);
  *heap = created;
  return vl_ok();
}

void vl_heap_destroy(Heap **heap) {
  if (*heap == NULL) return;
  assert((*heap)->live_blocks == 0);
  (*heap)->policy->destroy((*heap)->state);
  free(*heap);
  *heap = NULL;
}

/* Says what is missing and why: a shortage, or room enough but in pieces. */
static Status describe_failure(Heap *heap, const AllocationRequest *request, const Status *cause) {
  const SegmentSource *source = &heap->source;
  HeapFreeSpace space;
  heap->policy->free_space(heap->state, &space);
  int64_t allocated_bytes = source->reserved_bytes - space.free_bytes;
  /* What the capacity still allows is room only when it was not the backing that refused. */
  bool unreserved_is_room = source->capacity_bytes > 0 && !source->backing_refused;
  int64_t limit_bytes = unreserved_is_room ? source->capacity_bytes : source->reserved_bytes;
  int64_t unused_bytes = limit_bytes - allocated_bytes;
  bool fragmented = unused_bytes >= heap->policy->needed_bytes(heap->state, request);
  heap->last_failure = (HeapFailure){request->bytes, space.largest_free_bytes, fragmented};
  char wanted[32], allocated[32], reserved[32], capacity[32] = "none", largest[32] = "unknown", unused[32];
  vl_format_bytes(request->bytes, wanted, sizeof wanted);
  vl_format_bytes(allocated_bytes, allocated, sizeof allocated);
  vl_format_bytes(source->reserved_bytes, reserved, sizeof reserved);
  if (space.largest_free_bytes >= 0) vl_format_bytes(space.largest_free_bytes, largest, sizeof largest);
  vl_format_bytes(unused_bytes, unused, sizeof unused);
  if (source->capacity_bytes > 0) vl_format_bytes(source->capacity_bytes, capacity, sizeof capacity);
  return vl_error(VL_OUT_OF_MEMORY,
                  "no room%s%s for %s (%" PRId64 " bytes) of %s '%s' in '%s': allocated %s, reserved %s, "
                  "capacity %s, largest free block %s; %s: %s not in use %s have sufficed in one piece "
                  "(%.160s)",
                  heap->tier ? " in " : "", heap->tier ? heap->tier : "", wanted, request->bytes,
                  vl_memory_category_name(request->category), request->name != NULL ? request->name : "",
                  request->scope != NULL ? request->scope : "", allocated, reserved, capacity, largest,
                  fragmented ? "fragmented" : "shortage", unused, fragmented ? "would" : "would not",
                  cause->message);
}

/* A block without memory: no address, no event, nothing to count. */
static Block *empty_block(const AllocationRequest *request) {
  Block *block = vl_allocate(sizeof *block);
  *block = (Block){.category = request->category,
                   .name = request->name,
                   .scope = request->scope,
                   .stream = request->stream};
  return block;
}

Status vl_heap_obtain(Heap *heap, const AllocationRequest *request, Block **block) {
  if (request->bytes < 0 || request->bytes > largest_request_bytes) {
    return vl_error(VL_INVALID, "'%s' asks for %" PRId64 " bytes; accepted: 0 to %" PRId64,
                    request->name != NULL ? request->name : "", request->bytes, largest_request_bytes);
  }
  if (request->bytes == 0) {
    *block = empty_block(request);
    heap->live_blocks++;
    return vl_ok();
  }
  Status status = heap->policy->obtain(heap->state, request, block);
  if (status.code == VL_OUT_OF_MEMORY) {
    vl_tracker_record_failure(heap->source.tracker, request,
                              heap->policy->needed_bytes(heap->state, request));
    return describe_failure(heap, request, &status);
  }
  if (status.code != VL_OK) return status;
  heap->live_blocks++;
  vl_tracker_record_block(heap->source.tracker, MEMORY_OBTAIN, *block);
  return vl_ok();
}

void vl_heap_release(Heap *heap, Block **block) {
  Block *released = *block;
  if (released == NULL) return;
  *block = NULL;
  heap->live_blocks--;
  if (released->bytes == 0) {
    free(released);
    return;
  }
  vl_tracker_record_block(heap->source.tracker, MEMORY_RELEASE, released);
  heap->policy->release(heap->state, released);
}

void vl_heap_each_block(const Heap *heap, void (*visit)(void *context, const Block *block), void *context) {
  heap->policy->each_block(heap->state, visit, context);
}

int64_t vl_heap_trim(Heap *heap) { return heap->policy->trim(heap->state); }

void vl_heap_free_space(const Heap *heap, HeapFreeSpace *space) {
  heap->policy->free_space(heap->state, space);
  if (space->largest_free_bytes < 0)
    space->fragmentation = (double)NAN;
  else if (space->free_bytes > 0)
    space->fragmentation = 1.0 - (double)space->largest_free_bytes / (double)space->free_bytes;
}

Status vl_heap_defragment(Heap *heap, HeapMoved *moved) {
  *moved = (HeapMoved){0};
  if (heap->policy->defragment == NULL)
    return vl_error(VL_UNSUPPORTED, "policy %s has nothing to move: it does not choose where its blocks lie",
                    heap->policy->name);
  if (heap->source.backing->move == NULL)
    return vl_error(VL_UNSUPPORTED, "the device's memory cannot be moved");
  return heap->policy->defragment(heap->state, moved);
}

bool vl_heap_is_planned(const Heap *heap) { return heap->policy->add_region != NULL; }

int32_t vl_heap_add_region(Heap *heap, int64_t bytes) {
  return vl_heap_is_planned(heap) ? heap->policy->add_region(heap->state, bytes) : VL_UNPLANNED;
}

void vl_heap_extend_step_region(Heap *heap, int64_t bytes) {
  if (vl_heap_is_planned(heap)) heap->policy->extend_step_region(heap->state, bytes);
}

HeapUnplanned vl_heap_unplanned(const Heap *heap) {
  return vl_heap_is_planned(heap) ? heap->policy->unplanned(heap->state) : (HeapUnplanned){0};
}

HeapFailure vl_heap_last_failure(const Heap *heap) { return heap->last_failure; }

const Tracker *vl_heap_tracker(const Heap *heap) { return heap->source.tracker; }
