/* The async policy: every block comes from a pool of the driver's, CUDA's stream-ordered allocator. Nothing
 * is cut or cached here; what there is to do is to count, and to keep the pool within the capacity. */
#include "memory/internal.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct PoolBlock {
  Block block; /* first, so that a Block handed out leads back to its PoolBlock */
  struct PoolBlock *previous, *next;
} PoolBlock;

typedef struct Async {
  SegmentSource *source;
  PoolBlock *blocks; /* in use, the newest first */
  int64_t allocated_bytes;
} Async;

static int64_t block_bytes(int64_t bytes) { return vl_round_up(bytes, VL_POOL_BLOCK_BYTES); }

static int64_t trim(void *state) {
  Async *async = state;
  const Backing *backing = async->source->backing;
  int64_t before_bytes = async->source->reserved_bytes;
  backing->pool_trim(backing->context);
  vl_segment_follow_pool(async->source, 0);
  return before_bytes - async->source->reserved_bytes;
}

/* Only the pool knows what it takes for a block, so the capacity is looked at afterwards. What was taken
 * beyond it is not counted: the block goes back, and the next trim gives the memory back. */
static Status take(Async *async, int64_t bytes, uintptr_t *address) {
  SegmentSource *source = async->source;
  const Backing *backing = source->backing;
  Status status = backing->pool_obtain(backing->context, bytes, address);
  source->backing_refused = status.code != VL_OK;
  if (status.code != VL_OK || source->capacity_bytes == 0) return status;
  int64_t held_bytes = backing->pool_reserved_bytes(backing->context);
  if (held_bytes <= source->capacity_bytes) return status;
  backing->pool_release(backing->context, *address, bytes);
  return vl_error(VL_OUT_OF_MEMORY, "with it the pool would hold %" PRId64 " bytes", held_bytes);
}

static Status obtain(void *state, const AllocationRequest *request, Block **block) {
  Async *async = state;
  int64_t bytes = block_bytes(request->bytes);
  uintptr_t address = 0;
  Status status = take(async, bytes, &address);
  if (status.code == VL_OUT_OF_MEMORY && trim(async) > 0) {
    vl_tracker_count_retry(async->source->tracker);
    status = take(async, bytes, &address);
    if (status.code == VL_OUT_OF_MEMORY) (void)trim(async);
  }
  if (status.code != VL_OK) return status;
  vl_segment_follow_pool(async->source, request->stream);
  PoolBlock *made = vl_allocate(sizeof *made);
  made->block = (Block){.address = address,
                        .bytes = bytes,
                        .requested_bytes = request->bytes,
                        .category = request->category,
                        .name = request->name,
                        .scope = request->scope,
                        .stream = request->stream};
  made->next = async->blocks;
  if (made->next != NULL) made->next->previous = made;
  async->blocks = made;
  async->allocated_bytes += bytes;
  *block = &made->block;
  return vl_ok();
}

static void release(void *state, Block *block) {
  Async *async = state;
  const Backing *backing = async->source->backing;
  PoolBlock *gone = (PoolBlock *)block;
  int stream = block->stream;
  backing->pool_release(backing->context, block->address, block->bytes);
  async->allocated_bytes -= block->bytes;
  if (gone->previous != NULL)
    gone->previous->next = gone->next;
  else
    async->blocks = gone->next;
  if (gone->next != NULL) gone->next->previous = gone->previous;
  free(gone);
  vl_segment_follow_pool(async->source, stream);
}

static void free_space(const void *state, HeapFreeSpace *space) {
  const Async *async = state;
  int64_t free_bytes = async->source->reserved_bytes - async->allocated_bytes;
  *space = (HeapFreeSpace){.free_bytes = free_bytes, .largest_free_bytes = free_bytes > 0 ? -1 : 0};
}

static void each_block(const void *state, void (*visit)(void *context, const Block *block), void *context) {
  const Async *async = state;
  for (const PoolBlock *at = async->blocks; at != NULL; at = at->next)
    visit(context, &at->block);
}

static int64_t needed_bytes(const void *state, const AllocationRequest *request) {
  (void)state;
  return block_bytes(request->bytes);
}

/* ---- Options -------------------------------------------------------------------------------------------- */

static Status check(const Backing *backing, const HeapOptions *options) {
  bool plain = options->max_split_bytes == 0 && options->gc_threshold == 0.0 &&
               options->round_divisions == 0 && !options->remap;
  if (!plain) return vl_error(VL_INVALID, "async takes no options: the driver's pool has its own rules");
  if (backing->pool_obtain != NULL) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "async: this memory has no stream-ordered pools; that of cuda has");
}

static void *create(SegmentSource *source, const HeapOptions *options) {
  (void)options;
  Async *async = vl_allocate(sizeof *async);
  async->source = source;
  return async;
}

/* Blocks are gone, by vl_heap_destroy's rule. */
static void destroy(void *state) {
  (void)trim(state);
  free(state);
}

const AllocationPolicy vl_policy_async = {
    .name = "async",
    .check = check,
    .create = create,
    .destroy = destroy,
    .obtain = obtain,
    .release = release,
    .trim = trim,
    .free_space = free_space,
    .each_block = each_block,
    .needed_bytes = needed_bytes,
};
