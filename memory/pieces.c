/* Segments cut into pieces: lists in order of offset, and trees of the free ones. Everything but walks over
 * all segments is O(log n) in the number of free pieces. */
#include "memory/internal.h"

#include <assert.h>
#include <stdlib.h>

int64_t vl_round_up(int64_t bytes, int64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

void vl_pieces_open(Pieces *pieces, SegmentSource *source, int32_t round_divisions) {
  *pieces = (Pieces){.source = source, .round_divisions = round_divisions, .arena = vl_arena_create()};
}

void vl_pieces_close(Pieces *pieces) {
  assert(pieces->segments == NULL);
  vl_arena_destroy(&pieces->arena);
}

/* ---- Sizes ------------------------------------------------------------------------------------------- */

Status vl_pieces_check_rounding(const HeapOptions *options) {
  int32_t divisions = options->round_divisions;
  bool power_of_two = divisions > 0 && (divisions & (divisions - 1)) == 0;
  if (divisions == 0 || (power_of_two && divisions >= 2 && divisions <= 64)) return vl_ok();
  return vl_error(VL_INVALID,
                  "sizes in %d steps between powers of two: accepted are 2, 4, 8, 16, 32, 64, or 0 for none",
                  (int)divisions);
}

int64_t vl_pieces_block_bytes(const Pieces *pieces, int64_t bytes) {
  int64_t divisions = pieces->round_divisions, step = VL_BLOCK_BYTES;
  if (divisions > 0 && bytes > divisions * VL_BLOCK_BYTES) {
    while (2 * step * divisions <= bytes) /* the largest power of two in bytes, divided */
      step *= 2;
  }
  return vl_round_up(bytes, step);
}

/* ---- Trees -------------------------------------------------------------------------------------------- */

FreeTree *vl_pieces_tree(Pieces *pieces, bool small) {
  return small ? &pieces->free_small : &pieces->free_large;
}

Piece *vl_piece_of_node(FreeNode *node) { return (Piece *)((char *)node - offsetof(Piece, node)); }

void vl_pieces_insert(Pieces *pieces, Piece *piece) {
  bool small = piece->segment->small;
  piece->use = PIECE_FREE;
  piece->free_since = small ? pieces->searches_small : pieces->searches_large;
  vl_free_tree_insert(vl_pieces_tree(pieces, small), &piece->node);
}

void vl_pieces_remove(Pieces *pieces, Piece *piece) {
  vl_free_tree_remove(vl_pieces_tree(pieces, piece->segment->small), &piece->node);
}

/* ---- Segments --------------------------------------------------------------------------------------- */

static Piece *piece_create(Pieces *pieces, PieceSegment *segment, int64_t offset, int64_t bytes) {
  Piece *piece = pieces->spare;
  if (piece != NULL) {
    pieces->spare = piece->next;
  } else {
    piece = vl_arena_allocate(pieces->arena, sizeof *piece);
  }
  *piece = (Piece){
      .node = {.stream = segment->stream, .bytes = bytes, .segment = segment->ordinal, .offset = offset},
      .segment = segment};
  return piece;
}

static void piece_recycle(Pieces *pieces, Piece *piece) {
  piece->next = pieces->spare;
  pieces->spare = piece;
}

PieceSegment *vl_pieces_add_segment(Pieces *pieces, uintptr_t address, int64_t bytes, int stream, bool small,
                                    PieceUse use) {
  PieceSegment *segment = vl_allocate(sizeof *segment);
  *segment = (PieceSegment){.next = pieces->segments,
                            .address = address,
                            .bytes = bytes,
                            .ordinal = pieces->next_ordinal++,
                            .stream = stream,
                            .small = small};
  if (segment->next != NULL) segment->next->previous = segment;
  pieces->segments = segment;
  segment->first = piece_create(pieces, segment, 0, bytes);
  segment->first->use = use;
  return segment;
}

void vl_pieces_remove_segment(Pieces *pieces, PieceSegment *segment) {
  piece_recycle(pieces, segment->first); /* the others, at the end of a heap, go with the arena */
  if (segment->previous != NULL) {
    segment->previous->next = segment->next;
  } else {
    pieces->segments = segment->next;
  }
  if (segment->next != NULL) segment->next->previous = segment->previous;
  free(segment);
}

/* ---- Cutting and merging -------------------------------------------------------------------------------- */

Piece *vl_pieces_cut(Pieces *pieces, Piece *piece, int64_t bytes) {
  assert(bytes > 0 && bytes < piece->node.bytes);
  Piece *rest = piece_create(pieces, piece->segment, piece->node.offset + bytes, piece->node.bytes - bytes);
  rest->use = piece->use;
  rest->previous = piece;
  rest->next = piece->next;
  if (rest->next != NULL) rest->next->previous = rest;
  piece->next = rest;
  piece->node.bytes = bytes;
  return rest;
}

/* Appends the right neighbour, in no tree, to a piece in no tree. */
static void absorb_next(Pieces *pieces, Piece *piece) {
  Piece *next = piece->next;
  piece->node.bytes += next->node.bytes;
  piece->next = next->next;
  if (piece->next != NULL) piece->next->previous = piece;
  piece_recycle(pieces, next);
}

Piece *vl_pieces_merge(Pieces *pieces, Piece *piece) {
  Piece *previous = piece->previous, *next = piece->next;
  if (next != NULL && next->use == piece->use) {
    if (next->use == PIECE_FREE) vl_pieces_remove(pieces, next);
    absorb_next(pieces, piece);
  }
  if (previous == NULL || previous->use != piece->use) return piece;
  /* It is in the tree under its old size: out of it before it grows. */
  if (previous->use == PIECE_FREE) vl_pieces_remove(pieces, previous);
  absorb_next(pieces, previous);
  return previous;
}

/* ---- Blocks ------------------------------------------------------------------------------------------- */

void vl_pieces_use(Piece *piece, const AllocationRequest *request, Block **block) {
  piece->use = PIECE_IN_USE;
  piece->block = (Block){.address = piece->segment->address + (uintptr_t)piece->node.offset,
                         .bytes = piece->node.bytes,
                         .requested_bytes = request->bytes,
                         .category = request->category,
                         .name = request->name,
                         .scope = request->scope,
                         .stream = request->stream};
  *block = &piece->block;
}

void vl_pieces_release(Pieces *pieces, Block *block) {
  Piece *piece = (Piece *)block;
  assert(piece->use == PIECE_IN_USE);
  piece->use = PIECE_FREE;
  vl_pieces_insert(pieces, vl_pieces_merge(pieces, piece));
}

void vl_pieces_each_block(const Pieces *pieces, void (*visit)(void *context, const Block *block),
                          void *context) {
  for (const PieceSegment *segment = pieces->segments; segment != NULL; segment = segment->next) {
    for (const Piece *piece = segment->first; piece != NULL; piece = piece->next)
      if (piece->use == PIECE_IN_USE) visit(context, &piece->block);
  }
}

void vl_pieces_free_space(const Pieces *pieces, HeapFreeSpace *space) {
  *space = (HeapFreeSpace){0};
  for (const PieceSegment *segment = pieces->segments; segment != NULL; segment = segment->next) {
    for (const Piece *piece = segment->first; piece != NULL; piece = piece->next) {
      if (piece->use != PIECE_FREE) continue;
      space->free_bytes += piece->node.bytes;
      if (piece->node.bytes > space->largest_free_bytes) space->largest_free_bytes = piece->node.bytes;
    }
  }
}
