/* memory, inside: what its files share. Nobody else includes this. */
#ifndef VRAMLAB_MEMORY_INTERNAL_H
#define VRAMLAB_MEMORY_INTERNAL_H

#include "memory/memory.h"

/* ---- Recording (tracker.c) -------------------------------------------------------------------- */

/* MEMORY_OBTAIN or MEMORY_RELEASE of a block. */
void vl_tracker_record_block(Tracker *tracker, MemoryAction action, const Block *block);
/* MEMORY_MOVE_OUT and MEMORY_MOVE_IN of a block that is already where it goes. */
void vl_tracker_record_move(Tracker *tracker, const Block *block, uintptr_t from);
/* MEMORY_SEGMENT_RESERVE or MEMORY_SEGMENT_RELEASE. origin: where the range of addresses begins that this is
 * memory of; of a segment, its address. Both 0: memory of a pool, which is counted and has no place. */
void vl_tracker_record_segment(Tracker *tracker, MemoryAction action, uintptr_t origin, uintptr_t address,
                               int64_t bytes, int stream);
/* A request that failed; `bytes` as the policy would have rounded it. */
void vl_tracker_record_failure(Tracker *tracker, const AllocationRequest *request, int64_t bytes);
/* A request that was tried once more after free segments were given back. */
void vl_tracker_count_retry(Tracker *tracker);

/* ---- Live bytes per scope (scopes.c) --------------------------------------------------------------
 * Keeps, for each scope and category, the live bytes now and at the last marked peak. Marking a peak is
 * one increment: an entry saves its value only when it is about to change for the first time after it. */

typedef struct ScopeTable ScopeTable;
ScopeTable *vl_scope_table_create(void);
void vl_scope_table_destroy(ScopeTable **table);
void vl_scope_table_change(ScopeTable *table, const char *scope, MemoryCategory category, int64_t bytes);
/* What is live now is the peak. */
void vl_scope_table_mark_peak(ScopeTable *table);
/* As vl_tracker_scopes_at_peak. */
int64_t vl_scope_table_at_peak(const ScopeTable *table, ScopeBytes *scopes, int64_t capacity);

/* ---- Segments (segments.c) ------------------------------------------------------------------------ */

/* Where a policy takes segments from: the backing, under the capacity, counted by the tracker. */
typedef struct SegmentSource {
  const Backing *backing;
  Tracker *tracker;
  int64_t capacity_bytes; /* 0: no limit but the backing's */
  int64_t reserved_bytes;
  bool backing_refused; /* the last refusal came from the backing, not from the capacity */
} SegmentSource;

/* VL_OUT_OF_MEMORY when the capacity or the backing refuses; other codes are the backing's failures. */
Status vl_segment_reserve(SegmentSource *source, int64_t bytes, int stream, uintptr_t *address) VL_CHECKED;
void vl_segment_release(SegmentSource *source, uintptr_t address, int64_t bytes, int stream);
/* The same for granules of a range of addresses, which begins at `origin`. */
Status vl_segment_commit(SegmentSource *source, uintptr_t origin, int64_t offset, int64_t bytes,
                         int stream) VL_CHECKED;
void vl_segment_decommit(SegmentSource *source, uintptr_t origin, int64_t offset, int64_t bytes, int stream);
/* Counts what the backing's pool took or gave back since the last call. */
void vl_segment_follow_pool(SegmentSource *source, int stream);

/* ---- Policies (policies.c) ------------------------------------------------------------------------- */

/* How blocks are cut from segments. A policy is one file and one line in policies.c. It does not count:
 * the heap records blocks, the source records segments. */
typedef struct AllocationPolicy {
  const char *name;
  /* VL_INVALID when it does not take these options, VL_UNSUPPORTED when the backing does not suffice. */
  Status (*check)(const Backing *backing, const HeapOptions *options);
  /* Borrows the source. */
  void *(*create)(SegmentSource *source, const HeapOptions *options);
  /* Gives every segment back. */
  void (*destroy)(void *state);
  /* A block of request->bytes > 0. VL_OUT_OF_MEMORY after the policy tried all it can; the source's
   * message says who refused. Every block in use is then as it was. */
  Status (*obtain)(void *state, const AllocationRequest *request, Block **block);
  void (*release)(void *state, Block *block);
  /* Gives back what is wholly free; returns its bytes. */
  int64_t (*trim)(void *state);
  void (*free_space)(const void *state, HeapFreeSpace *space);
  /* Every block in use. */
  void (*each_block)(const void *state, void (*visit)(void *context, const Block *block), void *context);
  /* What a request takes at least, in one piece. */
  int64_t (*needed_bytes)(const void *state, const AllocationRequest *request);
  /* Optional: as vl_heap_defragment. */
  Status (*defragment)(void *state, HeapMoved *moved);
  /* Optional, all or none: as vl_heap_add_region, vl_heap_extend_step_region and vl_heap_unplanned. */
  int32_t (*add_region)(void *state, int64_t bytes);
  void (*extend_step_region)(void *state, int64_t bytes);
  HeapUnplanned (*unplanned)(const void *state);
} AllocationPolicy;

extern const AllocationPolicy vl_policy_async, vl_policy_caching, vl_policy_expandable, vl_policy_planned;

/* NULL when there is no policy of that name. */
const AllocationPolicy *vl_policy_find(const char *name);
/* "caching, ...": for messages. */
void vl_policy_names(char *text, size_t size);

/* ---- Free blocks in order (free_tree.c) -------------------------------------------------------------
 * A treap: a search tree by key that is a heap by priority, and balanced because priorities are hashes. */

/* Key: stream, then size, then place (segment in order of reservation, offset within). Places are not
 * addresses, so what is chosen does not depend on where the backing puts segments. */
typedef struct FreeNode {
  struct FreeNode *left, *right;
  uint64_t priority;
  int64_t bytes;
  int64_t segment;
  int64_t offset;
  int stream;
} FreeNode;

typedef struct FreeTree {
  FreeNode *root;
} FreeTree;

/* The key fields are set by the caller and stay unchanged while the node is in the tree. */
void vl_free_tree_insert(FreeTree *tree, FreeNode *node);
/* The node must be in the tree. */
void vl_free_tree_remove(FreeTree *tree, FreeNode *node);
/* The smallest node of that stream with at least `bytes`, the lowest place among equals, or NULL. */
FreeNode *vl_free_tree_best_fit(const FreeTree *tree, int stream, int64_t bytes);
/* The node after one of the tree, or NULL; the last one before a node of that stream and size, or NULL. */
FreeNode *vl_free_tree_next(const FreeTree *tree, const FreeNode *node);
FreeNode *vl_free_tree_last_below(const FreeTree *tree, int stream, int64_t bytes);

/* ---- Pieces of segments (pieces.c) ---------------------------------------------------------------------
 * What `caching` and `expandable` share: segments in two pools, cut into pieces that are in use or free, or
 * addresses without memory. */

enum { VL_MIB = 1 << 20 };
/* Names in c10/cuda/CUDACachingAllocator in the comments. */
enum {
  VL_SMALL_REQUEST_BYTES = VL_MIB,       /* kSmallSize */
  VL_SMALL_SEGMENT_BYTES = 2 * VL_MIB,   /* kSmallBuffer */
  VL_LARGE_SEGMENT_BYTES = 20 * VL_MIB,  /* kLargeBuffer */
  VL_OWN_SEGMENT_BYTES = 10 * VL_MIB,    /* kMinLargeAlloc */
  VL_SEGMENT_ROUNDING_BYTES = 2 * VL_MIB /* kRoundLarge */
};

typedef enum PieceUse { PIECE_FREE = 0, PIECE_IN_USE, PIECE_UNCOMMITTED } PieceUse;

typedef struct PieceSegment PieceSegment;

/* Pieces of a segment form a list in order of offset. */
typedef struct Piece {
  Block block;   /* first, so that a Block handed out leads back to its Piece */
  FreeNode node; /* size and place, always valid; linked into a tree while the piece is free */
  PieceSegment *segment;
  struct Piece *previous, *next;
  PieceUse use;
  int64_t free_since; /* a free piece: searches of its pool before it was */
} Piece;

struct PieceSegment {
  PieceSegment *previous, *next;
  uintptr_t address;
  int64_t bytes;
  int64_t ordinal; /* in order of reservation; stands for the address wherever order matters */
  Piece *first;
  int stream;
  bool small; /* the pool it belongs to */
};

typedef struct Pieces {
  SegmentSource *source;
  FreeTree free_small, free_large;
  int64_t searches_small, searches_large; /* of the pools */
  PieceSegment *segments;                 /* the newest first */
  int64_t next_ordinal;
  int32_t round_divisions;
  Piece *spare; /* Piece structures to use again, linked by next: no malloc in a steady state */
  Arena *arena;
} Pieces;

int64_t vl_round_up(int64_t bytes, int64_t multiple);
void vl_pieces_open(Pieces *pieces, SegmentSource *source, int32_t round_divisions);
/* Segments must be gone. */
void vl_pieces_close(Pieces *pieces);
/* What a request occupies at least. */
int64_t vl_pieces_block_bytes(const Pieces *pieces, int64_t bytes);
/* VL_INVALID when round_divisions is none of those accepted. */
Status vl_pieces_check_rounding(const HeapOptions *options) VL_CHECKED;

/* A segment of one piece, which is in no tree. */
PieceSegment *vl_pieces_add_segment(Pieces *pieces, uintptr_t address, int64_t bytes, int stream, bool small,
                                    PieceUse use);
/* Of a piece that is in no tree; its memory is the caller's to give back. */
void vl_pieces_remove_segment(Pieces *pieces, PieceSegment *segment);

FreeTree *vl_pieces_tree(Pieces *pieces, bool small);
Piece *vl_piece_of_node(FreeNode *node);
/* Into and out of the tree of its pool. */
void vl_pieces_insert(Pieces *pieces, Piece *piece);
void vl_pieces_remove(Pieces *pieces, Piece *piece);
/* Cuts a piece in two; returns the upper one, of the same use and like the lower one in no tree. */
Piece *vl_pieces_cut(Pieces *pieces, Piece *piece, int64_t bytes);
/* Joins a piece that is in no tree with neighbours of the same use (taken out of theirs when free); returns
 * the whole. */
Piece *vl_pieces_merge(Pieces *pieces, Piece *piece);
/* Hands a piece out. */
void vl_pieces_use(Piece *piece, const AllocationRequest *request, Block **block);
/* Takes a block back: merges it and puts it into its tree. */
void vl_pieces_release(Pieces *pieces, Block *block);
void vl_pieces_free_space(const Pieces *pieces, HeapFreeSpace *space);
void vl_pieces_each_block(const Pieces *pieces, void (*visit)(void *context, const Block *block),
                          void *context);

/* Moves what is in use to the front of its segment (compact.c). Addresses without memory in between are
 * committed as they are needed, while that succeeds. */
Status vl_pieces_slide(Pieces *pieces, PieceSegment *segment, HeapMoved *moved) VL_CHECKED;
/* Empties segments whose blocks find room behind those of others of their pool and stream, the emptiest
 * first. takes: whether a segment may take blocks in. All have been slid. */
Status vl_pieces_evacuate(Pieces *pieces, bool (*takes)(const void *context, const PieceSegment *segment),
                          const void *context, HeapMoved *moved) VL_CHECKED;

/* For the summary. */
const Tracker *vl_heap_tracker(const Heap *heap);

#endif
