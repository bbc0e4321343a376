/* Compaction: blocks in use are moved to the front of their segment, and out of segments that others can take
 * the blocks of. A block that moves keeps its Piece, so its Block stays where holders know it. */
#include "memory/internal.h"

#include <assert.h>
#include <stdlib.h>

static Status move_block(Pieces *pieces, Piece *piece, uintptr_t to, HeapMoved *moved) {
  const Backing *backing = pieces->source->backing;
  uintptr_t from = piece->block.address;
  VL_TRY(backing->move(backing->context, to, from, piece->block.bytes));
  piece->block.address = to;
  vl_tracker_record_move(pieces->source->tracker, &piece->block, from);
  moved->blocks++;
  moved->bytes += piece->block.bytes;
  return vl_ok();
}

/* ---- Within a segment ----------------------------------------------------------------------------------- */

/* Puts `piece` between two others of its list, or at an end of it. */
static void link_between(Piece *before, Piece *piece, Piece *after) {
  piece->previous = before;
  piece->next = after;
  if (before != NULL) {
    before->next = piece;
  } else {
    piece->segment->first = piece;
  }
  if (after != NULL) after->previous = piece;
}

/* Exchanges a piece in use with the free one on its left. */
static Status exchange_with_left(Pieces *pieces, Piece *piece, HeapMoved *moved) {
  Piece *gap = piece->previous, *before = gap->previous, *after = piece->next;
  VL_TRY(move_block(pieces, piece, piece->segment->address + (uintptr_t)gap->node.offset, moved));
  vl_pieces_remove(pieces, gap);
  piece->node.offset = gap->node.offset;
  gap->node.offset += piece->node.bytes;
  link_between(before, piece, gap);
  link_between(piece, gap, after);
  vl_pieces_insert(pieces, vl_pieces_merge(pieces, gap));
  return vl_ok();
}

/* Gives the addresses on the left of a piece memory, if there is any. */
static bool commit_left(Pieces *pieces, const Piece *piece) {
  Piece *gap = piece->previous;
  const PieceSegment *segment = gap->segment;
  Status status =
      vl_segment_commit(pieces->source, segment->address, gap->node.offset, gap->node.bytes, segment->stream);
  if (status.code != VL_OK) return false;
  gap->use = PIECE_FREE;
  vl_pieces_insert(pieces, vl_pieces_merge(pieces, gap));
  return true;
}

Status vl_pieces_slide(Pieces *pieces, PieceSegment *segment, HeapMoved *moved) {
  for (Piece *piece = segment->first; piece != NULL; piece = piece->next) {
    if (piece->use != PIECE_IN_USE || piece->previous == NULL) continue;
    if (piece->previous->use == PIECE_UNCOMMITTED && !commit_left(pieces, piece)) continue;
    if (piece->previous->use == PIECE_FREE) VL_TRY(exchange_with_left(pieces, piece, moved));
  }
  return vl_ok();
}

/* ---- From segment to segment ---------------------------------------------------------------------------- */

/* A segment with blocks in use, and what is free behind them. */
typedef struct Room {
  PieceSegment *segment;
  int64_t used_bytes, free_bytes;
  int64_t left_bytes; /* of free_bytes, in the attempt that is made */
  bool emptied;
} Room;

static Piece *first_in_use(const PieceSegment *segment) {
  Piece *piece = segment->first;
  while (piece != NULL && piece->use != PIECE_IN_USE)
    piece = piece->next;
  return piece;
}

static Piece *last_of(const PieceSegment *segment) {
  Piece *last = segment->first;
  while (last->next != NULL)
    last = last->next;
  return last;
}

static Room room_of(PieceSegment *segment) {
  Room room = {.segment = segment};
  const Piece *last = last_of(segment);
  for (const Piece *piece = segment->first; piece != NULL; piece = piece->next)
    if (piece->use == PIECE_IN_USE) room.used_bytes += piece->node.bytes;
  if (last->use == PIECE_FREE) room.free_bytes = last->node.bytes;
  return room;
}

/* The emptiest first, the newest among equals. */
static int compare_rooms(const void *a, const void *b) {
  const Room *left = a, *right = b;
  if (left->used_bytes != right->used_bytes) return left->used_bytes < right->used_bytes ? -1 : 1;
  return left->segment->ordinal > right->segment->ordinal ? -1 : 1;
}

/* The least room that takes a block of the source, among equals that of the fullest segment; or NULL. */
static Room *best_room(Room *rooms, int64_t count, const Room *source, int64_t bytes) {
  Room *best = NULL;
  for (int64_t i = 0; i < count; i++) {
    Room *room = &rooms[i];
    bool same_pool =
        room->segment->stream == source->segment->stream && room->segment->small == source->segment->small;
    if (room == source || room->emptied || !same_pool || room->left_bytes < bytes) continue;
    if (best == NULL || room->left_bytes <= best->left_bytes) best = room;
  }
  return best;
}

/* Whether all blocks of the source find room; takes it from left_bytes. */
static bool find_room(Room *rooms, int64_t count, const Room *source) {
  for (const Piece *piece = source->segment->first; piece != NULL; piece = piece->next) {
    if (piece->use != PIECE_IN_USE) continue;
    Room *room = best_room(rooms, count, source, piece->node.bytes);
    if (room == NULL) return false;
    room->left_bytes -= piece->node.bytes;
  }
  return true;
}

/* Two pieces of different segments take each other's place. */
static void swap_places(Piece *a, Piece *b) {
  FreeNode node = a->node;
  PieceSegment *segment = a->segment;
  Piece *before = a->previous, *after = a->next, *other_before = b->previous, *other_after = b->next;
  a->node = b->node;
  a->segment = b->segment;
  b->node = node;
  b->segment = segment;
  link_between(other_before, a, other_after);
  link_between(before, b, after);
}

static Status move_into(Pieces *pieces, Piece *piece, Room *room, HeapMoved *moved) {
  Piece *slot = last_of(room->segment);
  assert(slot->use == PIECE_FREE && slot->node.bytes >= piece->node.bytes);
  VL_TRY(move_block(pieces, piece, room->segment->address + (uintptr_t)slot->node.offset, moved));
  vl_pieces_remove(pieces, slot);
  if (slot->node.bytes > piece->node.bytes)
    vl_pieces_insert(pieces, vl_pieces_cut(pieces, slot, piece->node.bytes));
  swap_places(piece, slot);
  vl_pieces_insert(pieces, vl_pieces_merge(pieces, slot));
  room->free_bytes -= piece->node.bytes;
  return vl_ok();
}

static Status empty(Pieces *pieces, Room *rooms, int64_t count, Room *source, HeapMoved *moved) {
  for (int64_t i = 0; i < count; i++)
    rooms[i].left_bytes = rooms[i].free_bytes;
  if (!find_room(rooms, count, source)) return vl_ok();
  for (int64_t i = 0; i < count; i++)
    rooms[i].left_bytes = rooms[i].free_bytes;
  for (Piece *piece = first_in_use(source->segment); piece != NULL; piece = first_in_use(source->segment)) {
    Room *room = best_room(rooms, count, source, piece->node.bytes);
    room->left_bytes -= piece->node.bytes;
    VL_TRY(move_into(pieces, piece, room, moved));
  }
  return vl_ok();
}

Status vl_pieces_evacuate(Pieces *pieces, bool (*takes)(const void *context, const PieceSegment *segment),
                          const void *context, HeapMoved *moved) {
  int64_t count = 0;
  for (const PieceSegment *segment = pieces->segments; segment != NULL; segment = segment->next)
    count++;
  Room *rooms = vl_allocate(((size_t)count + 1) * sizeof *rooms);
  count = 0;
  for (PieceSegment *segment = pieces->segments; segment != NULL; segment = segment->next) {
    Room room = room_of(segment);
    if (!takes(context, segment)) room.free_bytes = 0;
    if (room.used_bytes > 0) rooms[count++] = room;
  }
  qsort(rooms, (size_t)count, sizeof *rooms, compare_rooms);
  Status status = vl_ok();
  for (int64_t i = 0; i < count && status.code == VL_OK; i++) {
    status = empty(pieces, rooms, count, &rooms[i], moved);
    rooms[i].emptied = first_in_use(rooms[i].segment) == NULL;
  }
  free(rooms);
  return status;
}
