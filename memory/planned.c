/* The planned policy: blocks lie where the request says, in regions that whoever knows the schedule has laid
 * out ahead. It chooses nothing and searches nothing. What comes without a place is served by `caching`,
 * beside. */
#include "memory/internal.h"

#include <stdlib.h>

/* What systems hand out memory in. */
static const int64_t page_bytes = 4096;

typedef struct PlacedBlock {
  Block block; /* first */
  struct PlacedBlock *previous, *next;
  int32_t region;
} PlacedBlock;

typedef struct Region {
  int64_t bytes; /* as planned, whole pages; 0: may be used anew */
  uintptr_t address;
  int64_t reserved_bytes; /* 0: not reserved */
  PlacedBlock *first;     /* in use, in no order */
} Region;

typedef struct Planned {
  SegmentSource *source;
  Region *regions; /* VL_UNPLANNED, which is none, VL_STEP_REGION, and those that were added */
  int32_t region_count;
  PlacedBlock *spare; /* structures to use again, linked by next */
  Arena *arena;
  void *beside; /* of vl_policy_caching */
  HeapUnplanned unplanned;
  int64_t unplanned_bytes, largest_unplanned_bytes; /* in use; of one block so far */
} Planned;

/* ---- Regions -------------------------------------------------------------------------------------------- */

static int32_t add_region(void *state, int64_t bytes) {
  Planned *planned = state;
  int32_t at = VL_STEP_REGION + 1;
  while (at < planned->region_count && planned->regions[at].bytes > 0)
    at++;
  if (at >= planned->region_count) {
    planned->region_count = at + 1;
    planned->regions = vl_reallocate(planned->regions, (size_t)planned->region_count * sizeof(Region));
  }
  planned->regions[at] = (Region){.bytes = vl_round_up(bytes, page_bytes)};
  return at;
}

static void extend_step_region(void *state, int64_t bytes) {
  Region *region = &((Planned *)state)->regions[VL_STEP_REGION];
  int64_t whole_bytes = vl_round_up(bytes, page_bytes);
  if (whole_bytes > region->bytes) region->bytes = whole_bytes;
}

static int64_t give_back(Planned *planned, Region *region) {
  int64_t bytes = region->reserved_bytes;
  if (bytes == 0 || region->first != NULL) return 0;
  vl_segment_release(planned->source, region->address, bytes, 0);
  region->reserved_bytes = 0;
  return bytes;
}

static int64_t trim(void *state) {
  Planned *planned = state;
  int64_t bytes = vl_policy_caching.trim(planned->beside);
  for (int32_t i = 0; i < planned->region_count; i++)
    bytes += give_back(planned, &planned->regions[i]);
  return bytes;
}

/* Gives back what is free and counts the second try that follows; false: there was nothing. */
static bool make_way(Planned *planned) {
  if (trim(planned) == 0) return false;
  vl_tracker_count_retry(planned->source->tracker);
  return true;
}

/* Reserves a region, as large as it is planned where nothing in it lives. */
static Status prepare(Planned *planned, Region *region) {
  if (region->reserved_bytes >= region->bytes || region->first != NULL) return vl_ok();
  (void)give_back(planned, region);
  Status status = vl_segment_reserve(planned->source, region->bytes, 0, &region->address);
  if (status.code == VL_OUT_OF_MEMORY && make_way(planned))
    status = vl_segment_reserve(planned->source, region->bytes, 0, &region->address);
  if (status.code == VL_OK) region->reserved_bytes = region->bytes;
  return status;
}

/* ---- Blocks ------------------------------------------------------------------------------------------- */

static int64_t block_bytes(const AllocationRequest *request) {
  return vl_round_up(request->bytes, VL_BLOCK_BYTES);
}

static Region *region_of(const Planned *planned, const AllocationRequest *request) {
  bool exists = request->region > VL_UNPLANNED && request->region < planned->region_count;
  return exists ? &planned->regions[request->region] : NULL;
}

static Block *place(Planned *planned, Region *region, const AllocationRequest *request) {
  PlacedBlock *placed = planned->spare;
  if (placed != NULL) {
    planned->spare = placed->next;
  } else {
    placed = vl_arena_allocate(planned->arena, sizeof *placed);
  }
  *placed = (PlacedBlock){.block = {.address = region->address + (uintptr_t)request->offset,
                                    .bytes = block_bytes(request),
                                    .requested_bytes = request->bytes,
                                    .category = request->category,
                                    .name = request->name,
                                    .scope = request->scope,
                                    .stream = request->stream},
                          .next = region->first,
                          .region = request->region};
  if (placed->next != NULL) placed->next->previous = placed;
  region->first = placed;
  return &placed->block;
}

static Status obtain_beside(Planned *planned, const AllocationRequest *request, Block **block) {
  Status status = vl_policy_caching.obtain(planned->beside, request, block);
  if (status.code == VL_OUT_OF_MEMORY && make_way(planned))
    status = vl_policy_caching.obtain(planned->beside, request, block);
  if (status.code != VL_OK) return status;
  HeapUnplanned *unplanned = &planned->unplanned;
  int64_t bytes = (*block)->bytes;
  unplanned->blocks++;
  planned->unplanned_bytes += bytes;
  if (planned->unplanned_bytes > unplanned->peak_bytes) unplanned->peak_bytes = planned->unplanned_bytes;
  if (bytes > planned->largest_unplanned_bytes) {
    planned->largest_unplanned_bytes = bytes;
    unplanned->name = request->name;
    unplanned->scope = request->scope;
  }
  return status;
}

static Status obtain(void *state, const AllocationRequest *request, Block **block) {
  Planned *planned = state;
  Region *region = region_of(planned, request);
  if (region == NULL) return obtain_beside(planned, request, block);
  VL_TRY(prepare(planned, region));
  if (request->offset < 0 || request->offset + block_bytes(request) > region->reserved_bytes)
    return obtain_beside(planned, request, block);
  *block = place(planned, region, request);
  return vl_ok();
}

/* The region a block lies in; NULL: beside. */
static Region *region_with(const Planned *planned, const Block *block) {
  for (int32_t i = 0; i < planned->region_count; i++) {
    Region *region = &planned->regions[i];
    if (block->address >= region->address &&
        block->address < region->address + (uintptr_t)region->reserved_bytes)
      return region;
  }
  return NULL;
}

static void release(void *state, Block *block) {
  Planned *planned = state;
  Region *region = region_with(planned, block);
  if (region == NULL) {
    planned->unplanned_bytes -= block->bytes;
    vl_policy_caching.release(planned->beside, block);
    return;
  }
  PlacedBlock *placed = (PlacedBlock *)block;
  if (placed->previous != NULL) {
    placed->previous->next = placed->next;
  } else {
    region->first = placed->next;
  }
  if (placed->next != NULL) placed->next->previous = placed->previous;
  placed->next = planned->spare;
  planned->spare = placed;
  if (region->first != NULL || region == &planned->regions[VL_STEP_REGION]) return;
  (void)give_back(planned, region); /* its end: nothing that was planned for it comes any more */
  region->bytes = 0;
}

static void each_block(const void *state, void (*visit)(void *context, const Block *block), void *context) {
  const Planned *planned = state;
  vl_policy_caching.each_block(planned->beside, visit, context);
  for (int32_t i = 0; i < planned->region_count; i++) {
    for (const PlacedBlock *placed = planned->regions[i].first; placed != NULL; placed = placed->next)
      visit(context, &placed->block);
  }
}

static int compare_addresses(const void *a, const void *b) {
  const Block *left = *(const Block *const *)a, *right = *(const Block *const *)b;
  return left->address < right->address ? -1 : left->address > right->address;
}

static void count_hole(HeapFreeSpace *space, int64_t bytes) {
  space->free_bytes += bytes;
  if (bytes > space->largest_free_bytes) space->largest_free_bytes = bytes;
}

static void free_space_of(const Region *region, HeapFreeSpace *space) {
  size_t count = 0;
  for (const PlacedBlock *placed = region->first; placed != NULL; placed = placed->next)
    count++;
  const Block **blocks = vl_allocate((count + 1) * sizeof *blocks);
  count = 0;
  for (const PlacedBlock *placed = region->first; placed != NULL; placed = placed->next)
    blocks[count++] = &placed->block;
  qsort(blocks, count, sizeof *blocks, compare_addresses);
  uintptr_t end = region->address;
  for (size_t i = 0; i < count; i++) {
    count_hole(space, (int64_t)(blocks[i]->address - end));
    end = blocks[i]->address + (uintptr_t)blocks[i]->bytes;
  }
  count_hole(space, (int64_t)(region->address + (uintptr_t)region->reserved_bytes - end));
  free(blocks);
}

static void free_space(const void *state, HeapFreeSpace *space) {
  const Planned *planned = state;
  vl_policy_caching.free_space(planned->beside, space);
  for (int32_t i = 0; i < planned->region_count; i++)
    free_space_of(&planned->regions[i], space);
}

/* A region is reserved as a whole. */
static int64_t needed_bytes(const void *state, const AllocationRequest *request) {
  const Region *region = region_of(state, request);
  return region != NULL && region->reserved_bytes == 0 ? region->bytes : block_bytes(request);
}

static HeapUnplanned unplanned(const void *state) { return ((const Planned *)state)->unplanned; }

/* ---- Options -------------------------------------------------------------------------------------------- */

static Status check(const Backing *backing, const HeapOptions *options) {
  (void)backing;
  if (options->max_split_bytes == 0 && options->gc_threshold == 0.0 && options->round_divisions == 0 &&
      !options->remap)
    return vl_ok();
  return vl_error(VL_INVALID,
                  "planned takes no options: places are planned, and nothing is split, collected or "
                  "rounded");
}

static void *create(SegmentSource *source, const HeapOptions *options) {
  Planned *planned = vl_allocate(sizeof *planned);
  planned->source = source;
  planned->arena = vl_arena_create();
  planned->beside = vl_policy_caching.create(source, options);
  planned->region_count = VL_STEP_REGION + 1;
  planned->regions = vl_allocate((size_t)planned->region_count * sizeof(Region));
  return planned;
}

static void destroy(void *state) {
  Planned *planned = state;
  for (int32_t i = 0; i < planned->region_count; i++) {
    Region *region = &planned->regions[i];
    if (region->reserved_bytes > 0)
      vl_segment_release(planned->source, region->address, region->reserved_bytes, 0);
  }
  vl_policy_caching.destroy(planned->beside);
  vl_arena_destroy(&planned->arena);
  free(planned->regions);
  free(planned);
}

const AllocationPolicy vl_policy_planned = {
    .name = "planned",
    .check = check,
    .create = create,
    .destroy = destroy,
    .obtain = obtain,
    .release = release,
    .trim = trim,
    .free_space = free_space,
    .each_block = each_block,
    .needed_bytes = needed_bytes,
    .add_region = add_region,
    .extend_step_region = extend_step_region,
    .unplanned = unplanned,
};
