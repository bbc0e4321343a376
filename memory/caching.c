/* The caching policy: PyTorch's CUDA caching allocator with its published constants and options, so that
 * figures are comparable to what its users see. */
#include "memory/internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

typedef struct Caching {
  Pieces pieces;           /* first */
  int64_t max_split_bytes; /* INT64_MAX: no bound */
  double gc_threshold;     /* 0: off */
} Caching;

static int64_t segment_bytes_for(int64_t bytes) {
  if (bytes <= VL_SMALL_REQUEST_BYTES) return VL_SMALL_SEGMENT_BYTES;
  if (bytes < VL_OWN_SEGMENT_BYTES) return VL_LARGE_SEGMENT_BYTES;
  return vl_round_up(bytes, VL_SEGMENT_ROUNDING_BYTES);
}

/* ---- Giving back ---------------------------------------------------------------------------------------- */

static bool is_wholly_free(const PieceSegment *segment) {
  return segment->first->use == PIECE_FREE && segment->first->next == NULL;
}

static int64_t give_back(Caching *caching, PieceSegment *segment) {
  int64_t bytes = segment->bytes;
  assert(is_wholly_free(segment));
  vl_pieces_remove(&caching->pieces, segment->first);
  vl_segment_release(caching->pieces.source, segment->address, bytes, segment->stream);
  vl_pieces_remove_segment(&caching->pieces, segment);
  return bytes;
}

/* Only called when requests fail, on trim and at the end, so a walk over the segments is cheap enough. */
static int64_t trim(void *state) {
  Caching *caching = state;
  int64_t released_bytes = 0;
  for (PieceSegment *segment = caching->pieces.segments; segment != NULL;) {
    PieceSegment *next = segment->next;
    if (is_wholly_free(segment)) released_bytes += give_back(caching, segment);
    segment = next;
  }
  return released_bytes;
}

/* Whether a segment is one that garbage collection may give back, and since how many searches it is free. */
static bool is_garbage(const Caching *caching, const PieceSegment *segment, int64_t *age) {
  if (segment->small || !is_wholly_free(segment)) return false;
  *age = caching->pieces.searches_large - segment->first->free_since;
  return true;
}

/* Before the heap grows: when more than the threshold is reserved, what lay free longer than the mean goes,
 * and so on until the threshold is met. Then it goes on to the end of a round, not to be called again so
 * soon. */
static void collect_garbage(Caching *caching) {
  const SegmentSource *source = caching->pieces.source;
  int64_t threshold_bytes = (int64_t)(caching->gc_threshold * (double)source->capacity_bytes), age = 0;
  if (caching->gc_threshold == 0.0) return;
  while (source->reserved_bytes > threshold_bytes) {
    int64_t count = 0, total_age = 0;
    for (const PieceSegment *segment = caching->pieces.segments; segment != NULL; segment = segment->next) {
      if (!is_garbage(caching, segment, &age)) continue;
      count++;
      total_age += age;
    }
    if (count == 0) return;
    double mean_age = (double)total_age / (double)count;
    for (PieceSegment *segment = caching->pieces.segments; segment != NULL;) {
      PieceSegment *next = segment->next;
      if (is_garbage(caching, segment, &age) && (double)age >= mean_age) (void)give_back(caching, segment);
      segment = next;
    }
  }
}

/* Free blocks of max_split_bytes on, which smaller requests cannot use: one that is large enough, else the
 * largest ones, until a block of `bytes` finds room. */
static bool give_back_oversize(Caching *caching, int64_t bytes, int stream) {
  int64_t bound = caching->max_split_bytes, wanted_bytes = bytes < bound ? bound : bytes;
  const FreeTree *tree = &caching->pieces.free_large;
  if (bound == INT64_MAX || bytes <= VL_SMALL_REQUEST_BYTES) return false;
  FreeNode *node = vl_free_tree_best_fit(tree, stream, wanted_bytes);
  if (node != NULL) {
    (void)give_back(caching, vl_piece_of_node(node)->segment);
    return true;
  }
  int64_t released_bytes = 0;
  while (released_bytes < wanted_bytes) {
    node = vl_free_tree_last_below(tree, stream, INT64_MAX);
    if (node == NULL || node->bytes < bound) return false;
    released_bytes += give_back(caching, vl_piece_of_node(node)->segment);
  }
  return true;
}

/* ---- Blocks ------------------------------------------------------------------------------------------- */

static Status add_segment(Caching *caching, int64_t bytes, int stream, Piece **piece) {
  int64_t segment_bytes = segment_bytes_for(bytes);
  uintptr_t address = 0;
  VL_TRY(vl_segment_reserve(caching->pieces.source, segment_bytes, stream, &address));
  *piece = vl_pieces_add_segment(&caching->pieces, address, segment_bytes, stream,
                                 bytes <= VL_SMALL_REQUEST_BYTES, PIECE_FREE)
               ->first;
  return vl_ok();
}

/* A new segment for a block of `bytes`. When it is refused, oversize blocks are given back and then every
 * wholly free segment, and it is asked for once more. */
static Status grow(Caching *caching, int64_t bytes, int stream, Piece **piece) {
  collect_garbage(caching);
  Status status = add_segment(caching, bytes, stream, piece);
  if (status.code == VL_OUT_OF_MEMORY && give_back_oversize(caching, bytes, stream))
    status = add_segment(caching, bytes, stream, piece);
  if (status.code == VL_OUT_OF_MEMORY && trim(caching) > 0) {
    vl_tracker_count_retry(caching->pieces.source->tracker);
    status = add_segment(caching, bytes, stream, piece);
  }
  return status;
}

/* Blocks of max_split_bytes on serve only requests of that size, and no much smaller one, since they are not
 * split. */
static bool serves(const Caching *caching, const FreeNode *node, int64_t bytes) {
  if (bytes < caching->max_split_bytes) return node->bytes < caching->max_split_bytes;
  return node->bytes < bytes + VL_LARGE_SEGMENT_BYTES;
}

static bool is_split(const Caching *caching, const Piece *piece, int64_t bytes) {
  int64_t rest_bytes = piece->node.bytes - bytes;
  if (piece->segment->small) return rest_bytes >= VL_BLOCK_BYTES;
  return bytes < caching->max_split_bytes && rest_bytes > VL_SMALL_REQUEST_BYTES;
}

static Status obtain(void *state, const AllocationRequest *request, Block **block) {
  Caching *caching = state;
  Pieces *pieces = &caching->pieces;
  int64_t bytes = vl_pieces_block_bytes(pieces, request->bytes);
  bool small = bytes <= VL_SMALL_REQUEST_BYTES;
  ++*(small ? &pieces->searches_small : &pieces->searches_large);
  FreeNode *node = vl_free_tree_best_fit(vl_pieces_tree(pieces, small), request->stream, bytes);
  Piece *piece = NULL;
  if (node != NULL && serves(caching, node, bytes)) {
    piece = vl_piece_of_node(node);
    vl_pieces_remove(pieces, piece);
  } else {
    VL_TRY(grow(caching, bytes, request->stream, &piece));
  }
  if (is_split(caching, piece, bytes)) vl_pieces_insert(pieces, vl_pieces_cut(pieces, piece, bytes));
  vl_pieces_use(piece, request, block);
  return vl_ok();
}

static void release(void *state, Block *block) { vl_pieces_release(&((Caching *)state)->pieces, block); }

static void each_block(const void *state, void (*visit)(void *context, const Block *block), void *context) {
  vl_pieces_each_block(&((const Caching *)state)->pieces, visit, context);
}

static void free_space(const void *state, HeapFreeSpace *space) {
  vl_pieces_free_space(&((const Caching *)state)->pieces, space);
}

static int64_t needed_bytes(const void *state, const AllocationRequest *request) {
  return vl_pieces_block_bytes(&((const Caching *)state)->pieces, request->bytes);
}

/* A segment of max_split_bytes on holds one block. */
static bool takes(const void *context, const PieceSegment *segment) {
  return segment->bytes < ((const Caching *)context)->max_split_bytes;
}

static Status defragment(void *state, HeapMoved *moved) {
  Caching *caching = state;
  for (PieceSegment *segment = caching->pieces.segments; segment != NULL; segment = segment->next)
    VL_TRY(vl_pieces_slide(&caching->pieces, segment, moved));
  VL_TRY(vl_pieces_evacuate(&caching->pieces, takes, caching, moved));
  moved->released_bytes += trim(caching);
  return vl_ok();
}

/* ---- Options -------------------------------------------------------------------------------------------- */

static Status check(const Backing *backing, const HeapOptions *options) {
  (void)backing;
  int64_t bound = options->max_split_bytes;
  double threshold = options->gc_threshold;
  if (bound != 0 && bound < VL_LARGE_SEGMENT_BYTES)
    return vl_error(VL_INVALID,
                    "a largest size to split of %" PRId64 " bytes; accepted: 20 MiB and more, or 0 for none",
                    bound);
  if (!(threshold >= 0.0 && threshold < 1.0))
    return vl_error(VL_INVALID,
                    "a garbage collection threshold of %g; accepted: between 0 and 1, or 0 for none",
                    threshold);
  if (options->remap)
    return vl_error(VL_INVALID, "caching takes no remapping: its segments have no granules");
  if (threshold > 0.0 && options->capacity_bytes == 0)
    return vl_error(VL_INVALID,
                    "a garbage collection threshold of %g is a share of the capacity, and there is none",
                    threshold);
  return vl_pieces_check_rounding(options);
}

static void *create(SegmentSource *source, const HeapOptions *options) {
  Caching *caching = vl_allocate(sizeof *caching);
  vl_pieces_open(&caching->pieces, source, options->round_divisions);
  caching->max_split_bytes = options->max_split_bytes > 0 ? options->max_split_bytes : INT64_MAX;
  caching->gc_threshold = options->gc_threshold;
  return caching;
}

static void destroy(void *state) {
  Caching *caching = state;
  for (PieceSegment *segment = caching->pieces.segments; segment != NULL;
       segment = caching->pieces.segments) {
    vl_segment_release(caching->pieces.source, segment->address, segment->bytes, segment->stream);
    vl_pieces_remove_segment(&caching->pieces, segment);
  }
  vl_pieces_close(&caching->pieces);
  free(caching);
}

const AllocationPolicy vl_policy_caching = {
    .name = "caching",
    .check = check,
    .create = create,
    .destroy = destroy,
    .obtain = obtain,
    .release = release,
    .trim = trim,
    .free_space = free_space,
    .each_block = each_block,
    .needed_bytes = needed_bytes,
    .defragment = defragment,
};
