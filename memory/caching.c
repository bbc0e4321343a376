/* The caching policy: PyTorch's CUDA caching allocator with its published constants, so that figures are
 * comparable to what its users see. Obtain and release are O(log n) in the number of free blocks. */
#include "memory/internal.h"

#include <assert.h>
#include <stdlib.h>

#define KIB INT64_C(1024)
#define MIB (KIB * 1024)

/* Names in c10/cuda/CUDACachingAllocator in the comments. */
static const int64_t minimum_block_bytes = VL_BLOCK_BYTES; /* kMinBlockSize */
static const int64_t small_request_bytes = MIB;            /* kSmallSize */
static const int64_t small_segment_bytes = 2 * MIB;        /* kSmallBuffer */
static const int64_t large_segment_bytes = 20 * MIB;       /* kLargeBuffer */
static const int64_t own_segment_bytes = 10 * MIB;         /* kMinLargeAlloc */
static const int64_t segment_rounding_bytes = 2 * MIB;     /* kRoundLarge */

typedef struct Segment Segment;

/* A piece of a segment, in use or free. Pieces of a segment form a list in order of offset. */
typedef struct Piece {
  Block block;   /* first, so that a Block handed out leads back to its Piece */
  FreeNode node; /* size and place, always valid; linked into a tree while the piece is free */
  Segment *segment;
  struct Piece *previous, *next;
  bool in_use;
} Piece;

struct Segment {
  Segment *previous, *next;
  uintptr_t address;
  int64_t bytes;
  int64_t ordinal; /* in order of reservation; stands for the address wherever order matters */
  Piece *first;
  int stream;
  bool small; /* the pool it belongs to */
};

typedef struct Caching {
  SegmentSource *source;
  FreeTree free_small, free_large;
  Segment *segments;
  int64_t next_ordinal;
  Piece *spare; /* Piece structures to use again, linked by next: no malloc in a steady state */
  Arena *arena;
} Caching;

static int64_t round_up(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

static int64_t rounded_bytes(int64_t bytes) { return round_up(bytes, minimum_block_bytes); }

static int64_t segment_bytes_for(int64_t bytes) {
  if (bytes <= small_request_bytes) return small_segment_bytes;
  if (bytes < own_segment_bytes) return large_segment_bytes;
  return round_up(bytes, segment_rounding_bytes);
}

static bool is_worth_splitting(const Segment *segment, int64_t rest_bytes) {
  return segment->small ? rest_bytes >= minimum_block_bytes : rest_bytes > small_request_bytes;
}

static FreeTree *free_tree_of(Caching *caching, const Segment *segment) {
  return segment->small ? &caching->free_small : &caching->free_large;
}

static Piece *piece_of_node(FreeNode *node) { return (Piece *)((char *)node - offsetof(Piece, node)); }

static Piece *piece_create(Caching *caching, Segment *segment, int64_t offset, int64_t bytes) {
  Piece *piece = caching->spare;
  if (piece != NULL) {
    caching->spare = piece->next;
  } else {
    piece = vl_arena_allocate(caching->arena, sizeof *piece);
  }
  *piece = (Piece){
      .node = {.stream = segment->stream, .bytes = bytes, .segment = segment->ordinal, .offset = offset},
      .segment = segment};
  return piece;
}

static void piece_recycle(Caching *caching, Piece *piece) {
  piece->next = caching->spare;
  caching->spare = piece;
}

/* ---- Segments --------------------------------------------------------------------------------------- */

static Status segment_create(Caching *caching, int64_t bytes, int stream, bool small, Segment **created) {
  uintptr_t address = 0;
  VL_TRY(vl_segment_reserve(caching->source, bytes, stream, &address));
  Segment *segment = vl_allocate(sizeof *segment);
  *segment = (Segment){.next = caching->segments,
                       .address = address,
                       .bytes = bytes,
                       .ordinal = caching->next_ordinal++,
                       .stream = stream,
                       .small = small};
  if (segment->next != NULL) segment->next->previous = segment;
  caching->segments = segment;
  segment->first = piece_create(caching, segment, 0, bytes);
  *created = segment;
  return vl_ok();
}

static void segment_destroy(Caching *caching, Segment *segment) {
  if (segment->previous != NULL) {
    segment->previous->next = segment->next;
  } else {
    caching->segments = segment->next;
  }
  if (segment->next != NULL) segment->next->previous = segment->previous;
  vl_segment_release(caching->source, segment->address, segment->bytes, segment->stream);
  free(segment);
}

/* Only called when requests fail, on trim and at the end, so a walk over the segments is cheap enough. */
static int64_t trim(void *state) {
  Caching *caching = state;
  int64_t released_bytes = 0;
  for (Segment *segment = caching->segments; segment != NULL;) {
    Segment *next = segment->next;
    Piece *first = segment->first;
    if (!first->in_use && first->next == NULL) {
      released_bytes += segment->bytes;
      vl_free_tree_remove(free_tree_of(caching, segment), &first->node);
      piece_recycle(caching, first);
      segment_destroy(caching, segment);
    }
    segment = next;
  }
  return released_bytes;
}

/* A new segment for a block of `bytes`. When it is refused, wholly free segments are given back and it is
 * asked for once more. */
static Status grow(Caching *caching, int64_t bytes, int stream, Piece **piece) {
  int64_t segment_bytes = segment_bytes_for(bytes);
  bool small = bytes <= small_request_bytes;
  Segment *segment = NULL;
  Status status = segment_create(caching, segment_bytes, stream, small, &segment);
  if (status.code == VL_OUT_OF_MEMORY && trim(caching) > 0) {
    vl_tracker_count_retry(caching->source->tracker);
    status = segment_create(caching, segment_bytes, stream, small, &segment);
  }
  if (status.code == VL_OK) *piece = segment->first;
  return status;
}

/* ---- Blocks ------------------------------------------------------------------------------------------- */

/* Cuts the piece, which is in no tree, to `bytes` when the rest is worth keeping. */
static void split_piece(Caching *caching, Piece *piece, int64_t bytes) {
  Segment *segment = piece->segment;
  int64_t rest_bytes = piece->node.bytes - bytes;
  if (!is_worth_splitting(segment, rest_bytes)) return;
  Piece *rest = piece_create(caching, segment, piece->node.offset + bytes, rest_bytes);
  rest->previous = piece;
  rest->next = piece->next;
  if (rest->next != NULL) rest->next->previous = rest;
  piece->next = rest;
  piece->node.bytes = bytes;
  vl_free_tree_insert(free_tree_of(caching, segment), &rest->node);
}

static Status obtain(void *state, const AllocationRequest *request, Block **block) {
  Caching *caching = state;
  int64_t bytes = rounded_bytes(request->bytes);
  FreeTree *tree = bytes <= small_request_bytes ? &caching->free_small : &caching->free_large;
  FreeNode *node = vl_free_tree_best_fit(tree, request->stream, bytes);
  Piece *piece = NULL;
  if (node != NULL) {
    piece = piece_of_node(node);
    vl_free_tree_remove(tree, node);
  } else {
    VL_TRY(grow(caching, bytes, request->stream, &piece));
  }
  split_piece(caching, piece, bytes);
  piece->in_use = true;
  piece->block = (Block){.address = piece->segment->address + (uintptr_t)piece->node.offset,
                         .bytes = piece->node.bytes,
                         .requested_bytes = request->bytes,
                         .category = request->category,
                         .name = request->name,
                         .scope = request->scope,
                         .stream = request->stream};
  *block = &piece->block;
  return vl_ok();
}

/* Joins a free piece that is in no tree with its right neighbour when that is free too. */
static void merge_with_next(Caching *caching, Piece *piece) {
  Piece *next = piece->next;
  if (next == NULL || next->in_use) return;
  vl_free_tree_remove(free_tree_of(caching, piece->segment), &next->node);
  piece->node.bytes += next->node.bytes;
  piece->next = next->next;
  if (piece->next != NULL) piece->next->previous = piece;
  piece_recycle(caching, next);
}

static void release(void *state, Block *block) {
  Caching *caching = state;
  Piece *piece = (Piece *)block;
  assert(piece->in_use);
  piece->in_use = false;
  merge_with_next(caching, piece);
  FreeTree *tree = free_tree_of(caching, piece->segment);
  Piece *previous = piece->previous;
  if (previous != NULL && !previous->in_use) {
    /* The left piece is in the tree under its old size: take it out before it grows. */
    vl_free_tree_remove(tree, &previous->node);
    previous->node.bytes += piece->node.bytes;
    previous->next = piece->next;
    if (previous->next != NULL) previous->next->previous = previous;
    piece_recycle(caching, piece);
    piece = previous;
  }
  vl_free_tree_insert(tree, &piece->node);
}

static void each_block(const void *state, void (*visit)(void *context, const Block *block), void *context) {
  const Caching *caching = state;
  for (const Segment *segment = caching->segments; segment != NULL; segment = segment->next) {
    for (const Piece *piece = segment->first; piece != NULL; piece = piece->next)
      if (piece->in_use) visit(context, &piece->block);
  }
}

static void free_space(const void *state, HeapFreeSpace *space) {
  const Caching *caching = state;
  *space = (HeapFreeSpace){0};
  for (const Segment *segment = caching->segments; segment != NULL; segment = segment->next) {
    for (const Piece *piece = segment->first; piece != NULL; piece = piece->next) {
      if (piece->in_use) continue;
      space->free_bytes += piece->node.bytes;
      if (piece->node.bytes > space->largest_free_bytes) space->largest_free_bytes = piece->node.bytes;
    }
  }
  if (space->free_bytes > 0) {
    space->fragmentation = 1.0 - (double)space->largest_free_bytes / (double)space->free_bytes;
  }
}

static void *create(SegmentSource *source) {
  Caching *caching = vl_allocate(sizeof *caching);
  caching->source = source;
  caching->arena = vl_arena_create();
  return caching;
}

static void destroy(void *state) {
  Caching *caching = state;
  for (Segment *segment = caching->segments; segment != NULL;) {
    Segment *next = segment->next;
    segment_destroy(caching, segment);
    segment = next;
  }
  vl_arena_destroy(&caching->arena);
  free(caching);
}

const AllocationPolicy vl_policy_caching = {
    .name = "caching",
    .create = create,
    .destroy = destroy,
    .obtain = obtain,
    .release = release,
    .trim = trim,
    .free_space = free_space,
    .each_block = each_block,
    .rounded_bytes = rounded_bytes,
};
