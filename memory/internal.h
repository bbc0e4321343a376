/* memory, inside: what its files share. Nobody else includes this. */
#ifndef VRAMLAB_MEMORY_INTERNAL_H
#define VRAMLAB_MEMORY_INTERNAL_H

#include "memory/memory.h"

/* ---- Recording (tracker.c) -------------------------------------------------------------------- */

/* MEMORY_OBTAIN or MEMORY_RELEASE of a block. */
void vl_tracker_record_block(Tracker *tracker, MemoryAction action, const Block *block);
/* MEMORY_SEGMENT_RESERVE or MEMORY_SEGMENT_RELEASE. */
void vl_tracker_record_segment(Tracker *tracker, MemoryAction action, uintptr_t address, int64_t bytes,
                               int stream);
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

/* ---- Policies (policies.c) ------------------------------------------------------------------------- */

/* How blocks are cut from segments. A policy is one file and one line in policies.c. It does not count:
 * the heap records blocks, the source records segments. */
typedef struct AllocationPolicy {
  const char *name;
  /* Borrows the source. */
  void *(*create)(SegmentSource *source);
  /* Gives every segment back. */
  void (*destroy)(void *state);
  /* A block of request->bytes > 0. VL_OUT_OF_MEMORY after the policy tried all it can; the source's
   * message says who refused. Every block in use is then as it was. */
  Status (*obtain)(void *state, const AllocationRequest *request, Block **block);
  void (*release)(void *state, Block *block);
  /* Gives wholly free segments back; returns their bytes. */
  int64_t (*trim)(void *state);
  void (*free_space)(const void *state, HeapFreeSpace *space);
  /* Every block in use. */
  void (*each_block)(const void *state, void (*visit)(void *context, const Block *block), void *context);
  /* What a request of `bytes` occupies at least. */
  int64_t (*rounded_bytes)(int64_t bytes);
} AllocationPolicy;

extern const AllocationPolicy vl_policy_caching;

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

/* For the summary. */
const Tracker *vl_heap_tracker(const Heap *heap);

#endif
