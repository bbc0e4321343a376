/* Replay: a recorded sequence of requests, served by a heap of any policy on memory that is only numbers. */
#include "memory/internal.h"

#include <stdlib.h>

/* ---- Memory that is only numbers ------------------------------------------------------------------ */

typedef struct NumberLine {
  uintptr_t next_address;
} NumberLine;

/* Where segments begin: the alignment of a GPU's allocations. A gap keeps neighbours apart. */
static const uintptr_t segment_alignment_bytes = (uintptr_t)2 << 20;

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  NumberLine *line = context;
  uintptr_t aligned =
      ((uintptr_t)bytes + segment_alignment_bytes - 1) / segment_alignment_bytes * segment_alignment_bytes;
  *address = line->next_address;
  line->next_address += aligned + segment_alignment_bytes;
  return vl_ok();
}

static Status reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address) {
  (void)granule_bytes;
  return reserve(context, bytes, address);
}

static void release(void *context, uintptr_t address, int64_t bytes) {
  (void)context, (void)address, (void)bytes;
}

static Status commit(void *context, uintptr_t address, int64_t bytes) {
  (void)context, (void)address, (void)bytes;
  return vl_ok();
}

static Status move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  (void)context, (void)to, (void)from, (void)bytes;
  return vl_ok();
}

/* ---- Peak ------------------------------------------------------------------------------------------- */

TracePeak vl_trace_peak(const Trace *trace) {
  TracePeak peak = {.event = -1};
  int64_t live_bytes = 0, *block_bytes = vl_allocate((size_t)(trace->block_count + 1) * sizeof(int64_t));
  for (int64_t i = 0; i < trace->event_count; i++) {
    const TraceEvent *event = &trace->events[i];
    int64_t bytes = vl_round_up(event->bytes, VL_BLOCK_BYTES);
    if (event->action == TRACE_OBTAIN) live_bytes += block_bytes[event->block] = bytes;
    if (event->action == TRACE_RELEASE) live_bytes -= block_bytes[event->block];
    int64_t now_bytes = live_bytes + (event->action == TRACE_FAILED ? bytes : 0);
    if (now_bytes > peak.bytes) peak = (TracePeak){now_bytes, i};
  }
  free(block_bytes);
  return peak;
}

/* ---- Plan ------------------------------------------------------------------------------------------- */

TracePlan vl_trace_plan(const Trace *trace) {
  Lifetime *lifetimes = vl_allocate((size_t)(trace->event_count + 1) * sizeof *lifetimes);
  int64_t count = trace->block_count;
  for (int64_t i = 0; i < trace->event_count; i++) {
    const TraceEvent *event = &trace->events[i];
    Lifetime lifetime = {
        .bytes = event->bytes, .first = i, .last = trace->event_count, .stream = event->stream};
    if (event->action == TRACE_OBTAIN) lifetimes[event->block] = lifetime;
    if (event->action == TRACE_RELEASE) lifetimes[event->block].last = i - 1;
    if (event->action != TRACE_FAILED) continue;
    lifetime.last = i;
    lifetimes[count++] = lifetime;
  }
  TracePlan plan = {.offsets = vl_allocate((size_t)(count + 1) * sizeof(int64_t))};
  plan.bytes = vl_lifetimes_pack(lifetimes, count, plan.offsets);
  free(lifetimes);
  return plan;
}

/* ---- Walk ------------------------------------------------------------------------------------------- */

typedef struct Walk {
  const Trace *trace;
  const ReplayOptions *options;
  Heap *heap;
  Block **blocks;
  int64_t failed_requests; /* so far */
  ReplayResult *result;
} Walk;

static AllocationRequest request_of(const Walk *walk, const TraceEvent *event) {
  AllocationRequest request = {.bytes = event->bytes,
                               .category = event->category,
                               .name = event->name,
                               .scope = event->scope,
                               .stream = event->stream};
  if (walk->options->plan == NULL) return request;
  int64_t at = event->block >= 0 ? event->block : walk->trace->block_count + walk->failed_requests;
  request.region = VL_STEP_REGION;
  request.offset = walk->options->plan->offsets[at];
  return request;
}

static Status try_failed(Walk *walk, const AllocationRequest *request) {
  Block *block = NULL;
  walk->failed_requests++;
  VL_TRY(vl_heap_obtain(walk->heap, request, &block));
  vl_heap_release(walk->heap, &block);
  return vl_ok();
}

static Status end_step(Walk *walk) {
  HeapMoved moved;
  if (!walk->options->defragment) return vl_ok();
  VL_TRY(vl_heap_defragment(walk->heap, &moved));
  walk->result->moved_bytes += moved.bytes;
  return vl_ok();
}

static Status serve(Walk *walk, const TraceEvent *event) {
  AllocationRequest request;
  switch (event->action) {
  case TRACE_OBTAIN:
    request = request_of(walk, event);
    return vl_heap_obtain(walk->heap, &request, &walk->blocks[event->block]);
  case TRACE_RELEASE: vl_heap_release(walk->heap, &walk->blocks[event->block]); return vl_ok();
  case TRACE_FAILED: request = request_of(walk, event); return try_failed(walk, &request);
  case TRACE_STEP: return end_step(walk);
  }
  return vl_ok();
}

static Status walk_events(Walk *walk) {
  ReplayResult *result = walk->result;
  int64_t start_ns = vl_monotonic_ns();
  Status status = vl_ok();
  int64_t i = 0;
  if (walk->options->plan != NULL) vl_heap_extend_step_region(walk->heap, walk->options->plan->bytes);
  for (; i < walk->trace->event_count && status.code == VL_OK; i++)
    status = serve(walk, &walk->trace->events[i]);
  result->time_ns = vl_monotonic_ns() - start_ns;
  if (status.code != VL_OUT_OF_MEMORY) return status;
  result->failed_event = i - 1;
  result->fragmented = vl_heap_last_failure(walk->heap).fragmented;
  result->failure = status;
  return vl_ok();
}

Status vl_trace_replay(const Trace *trace, const ReplayOptions *options, ReplayResult *result) {
  NumberLine line = {.next_address = segment_alignment_bytes};
  Backing backing = {.context = &line,
                     .reserve = reserve,
                     .release = release,
                     .reserve_addresses = reserve_addresses,
                     .release_addresses = release,
                     .commit = commit,
                     .decommit = release,
                     .move = move};
  Tracker *tracker = vl_tracker_create(false);
  Walk walk = {.trace = trace, .options = options, .result = result};
  *result = (ReplayResult){.failed_event = -1};
  Status status = vl_heap_create(&backing, &options->heap, tracker, &walk.heap);
  if (status.code == VL_OK) {
    walk.blocks = vl_allocate((size_t)(trace->block_count + 1) * sizeof *walk.blocks);
    status = walk_events(&walk);
    vl_tracker_statistics(tracker, &result->statistics);
    for (int64_t b = 0; b < trace->block_count; b++)
      vl_heap_release(walk.heap, &walk.blocks[b]);
    free(walk.blocks);
    vl_heap_destroy(&walk.heap);
  }
  vl_tracker_destroy(&tracker);
  return status;
}
