/* The expandable policy: PyTorch's expandable segments. One long range of addresses for each stream and pool
 * has memory where it is needed: blocks tile it, the end grows by granules, and before a request fails free
 * granules lose their memory wherever they lie, so that nothing but the rests of granules is lost to
 * fragmentation. */
#include "memory/internal.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct Expandable {
  Pieces pieces;
  bool remap;
} Expandable;

/* More than any machine has; addresses cost nothing. A multiple of every granule. */
static const int64_t address_bytes = INT64_C(52429) * VL_LARGE_SEGMENT_BYTES; /* 1 TiB and a little */

/* What memory comes and goes in. Where granules follow the need, all are the smallest that a driver maps (2
 * MiB): of PyTorch's 20 MiB, most of many stay behind, around whatever lives in them. */
static int64_t granule_bytes(const Expandable *expandable, bool small) {
  return small || expandable->remap ? VL_SMALL_SEGMENT_BYTES : VL_LARGE_SEGMENT_BYTES;
}

/* ---- Giving back ---------------------------------------------------------------------------------------- */

static void forget(Expandable *expandable, PieceSegment *segment) {
  const Backing *backing = expandable->pieces.source->backing;
  backing->release_addresses(backing->context, segment->address, segment->bytes);
  vl_pieces_remove_segment(&expandable->pieces, segment);
}

/* Takes the memory of whole granules in a free piece, no more of them than hold `most_bytes`; returns their
 * bytes. *after: the piece to go on with. */
static int64_t decommit(Expandable *expandable, Piece *piece, int64_t most_bytes, Piece **after) {
  Pieces *pieces = &expandable->pieces;
  PieceSegment *segment = piece->segment;
  int64_t granule = granule_bytes(expandable, segment->small),
          begin = vl_round_up(piece->node.offset, granule);
  int64_t end = (piece->node.offset + piece->node.bytes) / granule * granule;
  *after = piece->next;
  if (begin >= end) return 0;
  if (end - begin > most_bytes) end = begin + vl_round_up(most_bytes, granule);
  vl_pieces_remove(pieces, piece);
  if (begin > piece->node.offset) {
    Piece *middle = vl_pieces_cut(pieces, piece, begin - piece->node.offset);
    vl_pieces_insert(pieces, piece);
    piece = middle;
  }
  if (end - begin < piece->node.bytes) vl_pieces_insert(pieces, vl_pieces_cut(pieces, piece, end - begin));
  vl_segment_decommit(pieces->source, segment->address, begin, end - begin, segment->stream);
  piece->use = PIECE_UNCOMMITTED;
  *after = vl_pieces_merge(pieces, piece)->next;
  return end - begin;
}

static int64_t trim(void *state) {
  Expandable *expandable = state;
  int64_t released_bytes = 0;
  for (PieceSegment *segment = expandable->pieces.segments; segment != NULL;) {
    PieceSegment *next = segment->next;
    for (Piece *piece = segment->first, *after; piece != NULL; piece = after) {
      after = piece->next;
      if (piece->use == PIECE_FREE) released_bytes += decommit(expandable, piece, INT64_MAX, &after);
    }
    if (segment->first->use == PIECE_UNCOMMITTED && segment->first->next == NULL) forget(expandable, segment);
    segment = next;
  }
  return released_bytes;
}

/* ---- Growing -------------------------------------------------------------------------------------------- */

static bool is_room(const Piece *piece) { return piece != NULL && piece->use != PIECE_IN_USE; }

/* Whether addresses from a piece on, free or without memory, have so many bytes. */
static bool has_room(const Piece *piece, int64_t bytes) {
  int64_t room_bytes = 0;
  for (; room_bytes < bytes && is_room(piece); piece = piece->next)
    room_bytes += piece->node.bytes;
  return room_bytes >= bytes;
}

/* The lowest place where a block fits once memory is added: an uncommitted piece, or the free one before it.
 */
static Piece *lowest_room(const Pieces *pieces, int64_t bytes, int stream, bool small) {
  Piece *lowest = NULL;
  for (const PieceSegment *segment = pieces->segments; segment != NULL; segment = segment->next) {
    if (segment->stream != stream || segment->small != small) continue;
    for (Piece *piece = segment->first; piece != NULL; piece = piece->next) {
      if (piece->use != PIECE_UNCOMMITTED) continue;
      Piece *from = is_room(piece->previous) ? piece->previous : piece;
      if (!has_room(from, bytes)) continue;
      lowest = from; /* segments come newest first: the last one found is the oldest's */
      break;
    }
  }
  return lowest;
}

static Status add_segment(Expandable *expandable, int stream, bool small, Piece **piece) {
  Pieces *pieces = &expandable->pieces;
  const Backing *backing = pieces->source->backing;
  uintptr_t address = 0;
  int64_t granule = granule_bytes(expandable, small);
  VL_TRY(backing->reserve_addresses(backing->context, address_bytes, granule, &address));
  *piece = vl_pieces_add_segment(pieces, address, address_bytes, stream, small, PIECE_UNCOMMITTED)->first;
  return vl_ok();
}

/* Takes granules that hold so many bytes from free pieces. spared: what is about to grow. */
static void take_free_granules(Expandable *expandable, int64_t bytes, const Piece *spared) {
  for (PieceSegment *segment = expandable->pieces.segments; segment != NULL; segment = segment->next) {
    for (Piece *piece = segment->first, *after; piece != NULL && bytes > 0; piece = after) {
      after = piece->next;
      if (piece->use == PIECE_FREE && piece != spared) bytes -= decommit(expandable, piece, bytes, &after);
    }
  }
}

/* Gives memory to the front of an uncommitted piece, `bytes` of it rounded up to granules, and joins it with
 * what is free around it. */
static Status commit(Expandable *expandable, Piece *piece, int64_t bytes, Piece **free_piece) {
  Pieces *pieces = &expandable->pieces;
  const PieceSegment *segment = piece->segment;
  int64_t whole_bytes = vl_round_up(bytes, granule_bytes(expandable, segment->small));
  if (expandable->remap) take_free_granules(expandable, whole_bytes, piece->previous);
  VL_TRY(
      vl_segment_commit(pieces->source, segment->address, piece->node.offset, whole_bytes, segment->stream));
  if (whole_bytes < piece->node.bytes) (void)vl_pieces_cut(pieces, piece, whole_bytes);
  piece->use = PIECE_FREE;
  *free_piece = vl_pieces_merge(pieces, piece);
  vl_pieces_insert(pieces, *free_piece);
  return vl_ok();
}

/* A free piece of at least `bytes`, in its tree. What was committed on the way to a refusal stays free. */
static Status grow(Expandable *expandable, int64_t bytes, int stream, bool small, Piece **grown) {
  Piece *piece = lowest_room(&expandable->pieces, bytes, stream, small);
  if (piece == NULL) VL_TRY(add_segment(expandable, stream, small, &piece));
  while (piece->use == PIECE_UNCOMMITTED || piece->node.bytes < bytes) {
    int64_t have_bytes = piece->use == PIECE_FREE ? piece->node.bytes : 0;
    Piece *next = piece->use == PIECE_FREE ? piece->next : piece;
    int64_t wanted_bytes = bytes - have_bytes;
    if (wanted_bytes > next->node.bytes) wanted_bytes = next->node.bytes;
    VL_TRY(commit(expandable, next, wanted_bytes, &piece));
  }
  *grown = piece;
  return vl_ok();
}

static Status grow_or_make_way(Expandable *expandable, int64_t bytes, int stream, bool small, Piece **piece) {
  Status status = grow(expandable, bytes, stream, small, piece);
  if (status.code != VL_OUT_OF_MEMORY || trim(expandable) == 0) return status;
  vl_tracker_count_retry(expandable->pieces.source->tracker);
  return grow(expandable, bytes, stream, small, piece);
}

/* ---- Blocks ------------------------------------------------------------------------------------------- */

/* What a free piece can become: where memory can be added to its end, much. */
static int64_t possible_bytes(FreeNode *node) {
  const Piece *next = vl_piece_of_node(node)->next;
  return node->bytes + (next != NULL && next->use == PIECE_UNCOMMITTED ? next->node.bytes : 0);
}

/* Best fit, by what pieces can become: the growing end is the last to be taken. */
static FreeNode *best_fit(const FreeTree *tree, int stream, int64_t bytes) {
  FreeNode *node = vl_free_tree_best_fit(tree, stream, bytes);
  while (node != NULL) {
    FreeNode *next = vl_free_tree_next(tree, node);
    if (next == NULL || next->stream != stream || possible_bytes(next) >= possible_bytes(node)) break;
    node = next;
  }
  return node;
}

static Status obtain(void *state, const AllocationRequest *request, Block **block) {
  Expandable *expandable = state;
  Pieces *pieces = &expandable->pieces;
  int64_t bytes = vl_pieces_block_bytes(pieces, request->bytes);
  bool small = bytes <= VL_SMALL_REQUEST_BYTES;
  FreeNode *node = best_fit(vl_pieces_tree(pieces, small), request->stream, bytes);
  Piece *piece = node != NULL ? vl_piece_of_node(node) : NULL;
  if (piece == NULL) VL_TRY(grow_or_make_way(expandable, bytes, request->stream, small, &piece));
  vl_pieces_remove(pieces, piece);
  if (piece->node.bytes - bytes >= VL_BLOCK_BYTES)
    vl_pieces_insert(pieces, vl_pieces_cut(pieces, piece, bytes));
  vl_pieces_use(piece, request, block);
  return vl_ok();
}

static void release(void *state, Block *block) { vl_pieces_release(&((Expandable *)state)->pieces, block); }

static void each_block(const void *state, void (*visit)(void *context, const Block *block), void *context) {
  vl_pieces_each_block(&((const Expandable *)state)->pieces, visit, context);
}

static void free_space(const void *state, HeapFreeSpace *space) {
  vl_pieces_free_space(&((const Expandable *)state)->pieces, space);
}

static int64_t needed_bytes(const void *state, const AllocationRequest *request) {
  return vl_pieces_block_bytes(&((const Expandable *)state)->pieces, request->bytes);
}

static Status defragment(void *state, HeapMoved *moved) {
  Expandable *expandable = state;
  for (PieceSegment *segment = expandable->pieces.segments; segment != NULL; segment = segment->next)
    VL_TRY(vl_pieces_slide(&expandable->pieces, segment, moved));
  moved->released_bytes += trim(expandable);
  return vl_ok();
}

/* ---- Options -------------------------------------------------------------------------------------------- */

static Status check(const Backing *backing, const HeapOptions *options) {
  if (options->max_split_bytes != 0)
    return vl_error(VL_INVALID,
                    "expandable takes no largest size to split (%" PRId64
                    " bytes): blocks that merge beyond it would never be used again",
                    options->max_split_bytes);
  if (options->gc_threshold != 0.0)
    return vl_error(
        VL_INVALID,
        "expandable takes no garbage collection threshold (%g): it has no segments that are free as "
        "a whole",
        options->gc_threshold);
  VL_TRY(vl_pieces_check_rounding(options));
  if (backing->commit != NULL) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "expandable: this memory cannot be committed piece by piece");
}

static void *create(SegmentSource *source, const HeapOptions *options) {
  Expandable *expandable = vl_allocate(sizeof *expandable);
  vl_pieces_open(&expandable->pieces, source, options->round_divisions);
  expandable->remap = options->remap;
  return expandable;
}

static void destroy(void *state) {
  Expandable *expandable = state;
  Pieces *pieces = &expandable->pieces;
  for (PieceSegment *segment = pieces->segments; segment != NULL; segment = pieces->segments) {
    for (Piece *piece = segment->first; piece != NULL;) {
      int64_t bytes = 0, offset = piece->node.offset;
      for (; piece != NULL && piece->use != PIECE_UNCOMMITTED; piece = piece->next)
        bytes += piece->node.bytes;
      if (bytes > 0) vl_segment_decommit(pieces->source, segment->address, offset, bytes, segment->stream);
      if (piece != NULL) piece = piece->next;
    }
    forget(expandable, segment);
  }
  vl_pieces_close(pieces);
  free(expandable);
}

const AllocationPolicy vl_policy_expandable = {
    .name = "expandable",
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
