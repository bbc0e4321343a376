/* memory: the heap every byte of device memory comes from, its policy, and the tracker that counts.
 * Knows nobody but base: Backing is what a device implements. */
#ifndef VRAMLAB_MEMORY_H
#define VRAMLAB_MEMORY_H

#include "base/base.h"
#include <stdio.h>

/* What a block is for. Cached-free is what the policy holds and nobody uses: reserved - allocated. */
typedef enum MemoryCategory {
  MEMORY_PARAMETER = 0, /* weights and running statistics */
  MEMORY_GRADIENT,      /* of parameters; gradients of activations are activations */
  MEMORY_OPTIMIZER,
  MEMORY_ACTIVATION,
  MEMORY_INPUT,
  MEMORY_WORKSPACE,
  MEMORY_COMMUNICATION,
  MEMORY_CATEGORY_COUNT
} MemoryCategory;
const char *vl_memory_category_name(MemoryCategory category);

/* What `caching` rounds blocks up to. */
enum { VL_BLOCK_BYTES = 512 };

/* What a block of a pool occupies a multiple of, at least: no address that CUDA allocates is aligned to less
 * (CUDA C++ Programming Guide, "Size and Alignment Requirement"). What a pool rounds up to it does not tell.
 */
enum { VL_POOL_BLOCK_BYTES = 256 };

/* Where segments come from. Implemented by a device (see devices/device.h) and, in tests, by a fake.
 * Addresses of a plan device are numbers that are never dereferenced. */
typedef struct Backing {
  void *context;
  /* A segment of at least `bytes`, committed: every page is resident when this returns, so that what
   * is reserved is what the process holds. VL_OUT_OF_MEMORY when the machine refuses. */
  Status (*reserve)(void *context, int64_t bytes, uintptr_t *address);
  /* Gives the segment back to the system. */
  void (*release)(void *context, uintptr_t address, int64_t bytes);
  /* Optional (NULL where blocks are never freed across streams): a mark in a stream, and whether it
   * was passed. */
  Status (*record_event)(void *context, int stream, uint64_t *event);
  bool (*event_done)(void *context, uint64_t event);
  /* Optional, all four or none: addresses without memory, whose granules are committed (resident when this
   * returns, as above) and decommitted one by one or in runs. Ranges are whole granules; what is still
   * committed goes with the addresses. */
  Status (*reserve_addresses)(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address);
  void (*release_addresses)(void *context, uintptr_t address, int64_t bytes);
  Status (*commit)(void *context, uintptr_t address, int64_t bytes);
  void (*decommit)(void *context, uintptr_t address, int64_t bytes);
  /* Optional: moves bytes to other addresses, or down over themselves; done when this returns. Nothing that
   * was launched still runs. */
  Status (*move)(void *context, uintptr_t to, uintptr_t from, int64_t bytes);
  /* Optional, all four or none: an allocator of the driver's, which takes memory by itself, serves requests
   * in the order of launches and keeps what is released for the next one. Addresses are multiples of
   * VL_POOL_BLOCK_BYTES at least. VL_OUT_OF_MEMORY when the machine refuses. */
  Status (*pool_obtain)(void *context, int64_t bytes, uintptr_t *address);
  void (*pool_release)(void *context, uintptr_t address, int64_t bytes);
  /* What it holds, in use or not. */
  int64_t (*pool_reserved_bytes)(void *context);
  /* Gives back what is not in use, as far as it can. */
  void (*pool_trim)(void *context);
} Backing;

/* ---- Tracker -------------------------------------------------------------------------------------- */

typedef enum MemoryAction {
  MEMORY_OBTAIN = 0,      /* a block handed out */
  MEMORY_RELEASE,         /* a block given back */
  MEMORY_SEGMENT_RESERVE, /* the policy took a segment from the backing */
  MEMORY_SEGMENT_RELEASE,
  MEMORY_OOM,          /* a request that failed; bytes = the request */
  MEMORY_HELD,         /* at the head of a cell's timeline: a block in use when it begins, */
  MEMORY_SEGMENT_HELD, /* and a segment reserved then */
  MEMORY_MOVE_OUT,     /* a compaction moves a block: where it lay, */
  MEMORY_MOVE_IN,      /* and, in the next event, where it lies since */
  MEMORY_STEP          /* in a cell's timeline: a batch of a queue ended */
} MemoryAction;
/* Whether an event (MemoryAction) tells what was there when a timeline began. */
bool vl_memory_is_held(int32_t action);

/* One event of the timeline. `bytes` is what the block occupies; `requested_bytes` as asked. */
typedef struct MemoryEvent {
  int64_t time_ns;
  MemoryAction action;
  MemoryCategory category;
  uintptr_t address;
  int64_t bytes;
  int64_t requested_bytes;
  int64_t allocated_bytes; /* after the event */
  int64_t reserved_bytes;  /* after the event */
  const char *name;        /* the tensor; owned by whoever asked, outlives the tracker */
  const char *scope;       /* the layer */
  int stream;
  int32_t segment; /* MemorySegment.number of where the block lies; -1: nowhere */
  int64_t offset;  /* from that segment's beginning */
  int64_t place;   /* vl_tracker_set_place */
} MemoryEvent;

/* Memory the heap holds: a segment, or, where memory is committed bit by bit, a run of its range of
 * addresses. */
typedef struct MemorySegment {
  uintptr_t address;
  int64_t bytes;
  int64_t offset; /* of the run in the range of addresses; 0 of a segment */
  int32_t number; /* of the segment or range, in order of reservation, from 0: stands for the address, which
                     differs from run to run */
} MemorySegment;

/* current <= peak for each; allocated <= reserved. A reset sets peak := current. */
typedef struct MemoryCounter {
  int64_t current_bytes;
  int64_t peak_bytes;
} MemoryCounter;

typedef struct MemoryStatistics {
  MemoryCounter requested;
  MemoryCounter allocated;
  MemoryCounter reserved;
  MemoryCounter by_category[MEMORY_CATEGORY_COUNT];       /* each category's own peak */
  int64_t category_at_peak_bytes[MEMORY_CATEGORY_COUNT];  /* the split at the allocated peak; sums to it */
  int64_t requested_at_peak_bytes[MEMORY_CATEGORY_COUNT]; /* the same blocks as asked for */
  int64_t place_at_peak;                                  /* vl_tracker_set_place */
  int64_t cached_free_at_peak_bytes; /* the reserved peak, less the most allocated while it stood there */
  int64_t obtains, releases, segment_reserves, segment_releases, retries, ooms;
} MemoryStatistics;

typedef struct Tracker Tracker;
/* timeline: keep every event (else counters only). */
Tracker *vl_tracker_create(bool timeline);
void vl_tracker_destroy(Tracker **tracker);
/* Counters since creation or the last vl_tracker_reset_peaks. */
void vl_tracker_statistics(const Tracker *tracker, MemoryStatistics *statistics);
/* Peaks start again from the current values; current values stay (fault case A2). */
void vl_tracker_reset_peaks(Tracker *tracker);
/* The timeline so far; valid until the next event. NULL and 0 without a timeline. */
const MemoryEvent *vl_tracker_events(const Tracker *tracker, int64_t *count);
/* Where the run is, a number of its own: 0 until set. The one at the allocated peak is in the statistics,
 * an event's in the event. */
void vl_tracker_set_place(Tracker *tracker, int64_t place);
/* Drops the events kept so far; counters stay. */
void vl_tracker_clear_events(Tracker *tracker);
void vl_tracker_keep_events(Tracker *tracker, bool keep);
int64_t vl_tracker_event_count(const Tracker *tracker); /* counted even when events are not kept */

/* The segments held now, in order of address; valid until the next event. */
const MemorySegment *vl_tracker_segments(const Tracker *tracker, int64_t *count);
/* The one that holds an address; NULL: none does. */
const MemorySegment *vl_tracker_segment_of(const Tracker *tracker, uintptr_t address);

/* Live bytes per scope at the allocated peak since the last reset, largest first. Returns the number
 * of scopes; fills at most `capacity`. Names are borrowed from those who asked for the blocks. */
typedef struct ScopeBytes {
  const char *scope;
  int64_t bytes_by_category[MEMORY_CATEGORY_COUNT];
  int64_t bytes;
} ScopeBytes;
int64_t vl_tracker_scopes_at_peak(const Tracker *tracker, ScopeBytes *scopes, int64_t capacity);

/* ---- Heap ------------------------------------------------------------------------------------------- */

/* A block in use. Fields are read-only outside memory. */
typedef struct Block {
  uintptr_t address;
  int64_t bytes;           /* as rounded, with a rest too small to split off; what `allocated` counts */
  int64_t requested_bytes; /* as asked */
  MemoryCategory category;
  const char *name;
  const char *scope;
  int stream;
} Block;

typedef struct AllocationRequest {
  int64_t bytes; /* 0 is allowed: a block without memory */
  MemoryCategory category;
  const char *name;
  const char *scope;
  int stream;
  int32_t region; /* VL_UNPLANNED: the policy chooses the place; else see "Places planned ahead" */
  int64_t offset; /* in the region */
} AllocationRequest;

/* How blocks are cut from segments.
 *
 * `caching` follows PyTorch's CUDA caching allocator and its published constants
 * (c10/cuda/CUDACachingAllocator): sizes rounded to 512 B; blocks up to 1 MiB cut from 2 MiB segments;
 * requests of 1-10 MiB from 20 MiB segments; larger ones from segments rounded up to 2 MiB; best fit
 * (smallest block that holds it, lowest address); a block is split when the rest is at least 512 B (small
 * pool) or more than 1 MiB (large pool); neighbours merge on release; when the backing or the capacity
 * refuses, wholly free cached segments are given back and the request is tried once more.
 *
 * `expandable` follows its expandable segments: one range of addresses for each stream and pool, committed in
 * granules of 2 MiB (small pool) or 20 MiB as it grows, any rest of 512 B split off; before failing, free
 * granules are decommitted, wherever they lie.
 *
 * `planned` puts a block where the request says, see "Places planned ahead"; a request that says nothing is
 * served as by `caching`, beside it.
 *
 * `async` asks a pool of the driver's (cudaMallocAsync) for every block. Which memory the pool takes and
 * where blocks lie in it is its own affair: reserved is what it says it holds, allocated what the blocks
 * occupy at least, and of its free memory only the sum is known. Its growth is known afterwards, so what
 * exceeds the capacity is given back before the request is refused. */
typedef struct HeapOptions {
  const char *policy;     /* "caching", "expandable", "planned", "async" */
  int64_t capacity_bytes; /* most the heap may reserve; 0: no limit but the backing's */
  const char *tier;       /* for messages: what memory this is; NULL: the device's */
  /* Of caching, with PyTorch's semantics: */
  int64_t max_split_bytes; /* max_split_size_mb: blocks of this size on are not split and serve no smaller
                              request; of them, as many as needed are given back first. 0: no bound, else at
                              least 20 MiB */
  double gc_threshold;     /* garbage_collection_threshold: before growing beyond this share of the capacity,
                              which must be set, wholly free segments that lay unused longest are given back.
                              0: off, else below 1 */
  int32_t round_divisions; /* roundup_power2_divisions: sizes are rounded up to the next of so many steps
                              between powers of two; also of expandable. 0: off, else 2, 4, ..., 64 */
  /* Ours, of expandable: free granules go where memory is needed before more is taken, not only before a
   * request fails, and all are of 2 MiB. */
  bool remap;
} HeapOptions;

typedef struct Heap Heap;
/* Borrows backing and tracker. VL_INVALID names the accepted policies, or what cannot be combined.
 * VL_UNSUPPORTED: the backing lacks what the policy takes. */
Status vl_heap_create(const Backing *backing, const HeapOptions *options, Tracker *tracker,
                      Heap **heap) VL_CHECKED;
/* Gives every segment back. Blocks still in use are our own bug: asserted in debug builds. */
void vl_heap_destroy(Heap **heap);
/* VL_OUT_OF_MEMORY names the request, what is allocated, reserved, the capacity, the largest free block
 * and whether what is not in use would have sufficed in one piece ("fragmented") or not ("shortage").
 * A failed request leaves every block as it was; free segments given back on the way stay given back.
 * A block of 0 bytes has address 0 and is not counted. The block stays owned by the heap until released. */
Status vl_heap_obtain(Heap *heap, const AllocationRequest *request, Block **block) VL_CHECKED;
/* Gives a block back and sets the pointer to NULL; NULL is allowed. */
void vl_heap_release(Heap *heap, Block **block);
/* Calls visit for every block in use that has memory, in no order. */
void vl_heap_each_block(const Heap *heap, void (*visit)(void *context, const Block *block), void *context);
/* Gives wholly free segments back to the system (torch.cuda.empty_cache). Returns the bytes given back. */
int64_t vl_heap_trim(Heap *heap);

/* The last request that found no room, and the largest free block then; zeros when none failed. */
typedef struct HeapFailure {
  int64_t request_bytes;
  int64_t largest_free_bytes; /* -1: not known, as in HeapFreeSpace */
  bool fragmented;            /* what was not in use would have sufficed in one piece */
} HeapFailure;
HeapFailure vl_heap_last_failure(const Heap *heap);

typedef struct HeapFreeSpace {
  int64_t free_bytes;         /* reserved and not allocated */
  int64_t largest_free_bytes; /* largest single free block; -1: `async` does not know it */
  double fragmentation;       /* 1 - largest/free; 0 when nothing is free; NaN: not known */
} HeapFreeSpace;
void vl_heap_free_space(const Heap *heap, HeapFreeSpace *space);

/* ---- Defragmentation ------------------------------------------------------------------------------------- */

/* What a compaction did. */
typedef struct HeapMoved {
  int64_t blocks, bytes;  /* moved */
  int64_t released_bytes; /* given back to the system */
} HeapMoved;
/* Moves blocks in use together, those of nearly empty segments into others, and gives back what is then free
 * in whole (segments; of `expandable` granules). A block keeps its bytes and its Block; Block.address is
 * where it is now, so whoever copied the address must read it again. Between steps only: nothing may run on
 * the device. VL_UNSUPPORTED: the backing cannot move, or the policy does not choose where blocks lie:
 * `planned` has them planned, `async` leaves it to the pool. */
Status vl_heap_defragment(Heap *heap, HeapMoved *moved) VL_CHECKED;

/* ---- Places planned ahead -------------------------------------------------------------------------------- */

/* A block of a schedule that is known: it lives from event `first` to event `last`, both included. */
typedef struct Lifetime {
  int64_t bytes;
  int64_t first, last;
  int stream;
} Lifetime;
/* The most bytes that live at once, each block rounded up to VL_BLOCK_BYTES; of several streams the sum,
 * since they share none. No arena can be smaller. */
int64_t vl_lifetimes_peak(const Lifetime *lifetimes, int64_t count);
/* An offset for each, so that blocks that live at the same time do not overlap, nor ones of different
 * streams. Returns the bytes of the arena they take, near the smallest possible. The same for the same input.
 */
int64_t vl_lifetimes_pack(const Lifetime *lifetimes, int64_t count, int64_t *offsets);

/* Regions of a `planned` heap. */
enum {
  VL_UNPLANNED = 0,
  VL_STEP_REGION = 1 /* shared by programs that run one after another */
};
/* Whether places are planned; with other policies a request's region is not looked at. */
bool vl_heap_is_planned(const Heap *heap);
/* A new region of so many bytes, reserved as a whole with its first block and given back with its last.
 * VL_UNPLANNED where places are not planned. */
int32_t vl_heap_add_region(Heap *heap, int64_t bytes);
/* VL_STEP_REGION has at least so many bytes from now on; it stays reserved when nothing lives in it, until
 * memory is short. Where it was reserved smaller and blocks live in it, what lies beyond its end is served
 * unplanned. */
void vl_heap_extend_step_region(Heap *heap, int64_t bytes);
/* What a `planned` heap served without a place. */
typedef struct HeapUnplanned {
  int64_t blocks;     /* so far */
  int64_t peak_bytes; /* most at once */
  const char *name;   /* of the largest; NULL: none */
  const char *scope;
} HeapUnplanned;
HeapUnplanned vl_heap_unplanned(const Heap *heap);

/* ---- Leaks -------------------------------------------------------------------------------------------- */

/* What a series of live bytes, sampled at the same point of every step after warm-up, says. */
typedef enum LeakSign { LEAK_UNKNOWN = 0 /* too few samples */, LEAK_NONE, LEAK_FOUND } LeakSign;
/* A leak goes on: noise and one-off steps are none. From 4 samples on when every step adds the same number of
 * bytes; else from 8 on, when each quarter lies above the one before it (its
 * lowest not below the highest there, its median above). *bytes_per_step: of a leak; exact in
 * the first case, between the medians of the first and the last quarter in the second. (Fault case B5.) */
LeakSign vl_leak_find(const int64_t *live_bytes, int64_t count, double *bytes_per_step);

/* ---- Replay ------------------------------------------------------------------------------------------ */

typedef enum TraceAction {
  TRACE_OBTAIN = 0,
  TRACE_RELEASE,
  TRACE_STEP,  /* a step ended */
  TRACE_FAILED /* a request that found no room when it was recorded: tried, and given back at once */
} TraceAction;

/* What was asked of a heap, whatever its policy. */
typedef struct TraceEvent {
  TraceAction action;
  MemoryCategory category;
  int stream;
  int64_t block; /* of an obtain and its release: which, from 0 in order of obtaining */
  int64_t bytes; /* of an obtain or a failed request: as asked for, more than 0 */
  const char *name, *scope;
} TraceEvent;

typedef struct Trace {
  TraceEvent *events;
  int64_t event_count, block_count, step_count;
} Trace;

/* The most a trace has in use at once, each block rounded up to VL_BLOCK_BYTES: no policy reserves less. */
typedef struct TracePeak {
  int64_t bytes;
  int64_t event; /* the first after which they are; -1: nothing is ever in use */
} TracePeak;
TracePeak vl_trace_peak(const Trace *trace);

/* Places for a trace's blocks and failed requests, which a `planned` heap takes from one region. */
typedef struct TracePlan {
  int64_t *offsets; /* of blocks, then of failed requests in their order; NULL: not planned */
  int64_t bytes;    /* of the region */
} TracePlan;
/* As vl_lifetimes_pack has them; free() the offsets. */
TracePlan vl_trace_plan(const Trace *trace);

typedef struct ReplayOptions {
  HeapOptions heap;
  bool defragment;       /* where steps end */
  const TracePlan *plan; /* of policy planned; else NULL */
} ReplayOptions;

typedef struct ReplayResult {
  MemoryStatistics statistics; /* up to the event it ended at */
  int64_t failed_event;        /* that found no room; -1: all were served */
  bool fragmented;             /* why: pieces, or a shortage */
  Status failure;              /* what the heap said */
  int64_t moved_bytes;         /* by compactions */
  int64_t time_ns;             /* all events took */
} ReplayResult;
/* Walks a trace through a heap of its own, on memory that is only numbers, and stops at the first request
 * that finds no room. Blocks not released in the trace are at its end. VL_INVALID: the options are;
 * VL_UNSUPPORTED: `async`, whose rules are the driver's and not published, so that no numbers can follow it.
 */
Status vl_trace_replay(const Trace *trace, const ReplayOptions *options, ReplayResult *result) VL_CHECKED;

/* A table like torch.cuda.memory_summary(): current and peak of allocated, requested, reserved,
 * cached-free and each category, counts, one unit per column, named. */
void vl_memory_summary(const Heap *heap, FILE *out);

#endif
