/* Shared by the files of optimizations: the table's entries. */
#ifndef VRAMLAB_OPTIMIZATIONS_TABLE_H
#define VRAMLAB_OPTIMIZATIONS_TABLE_H

#include "optimizations/optimizations.h"

extern const Optimization optimization_accumulate, optimization_attention, optimization_fuse,
    optimization_pool_index, optimization_amp, optimization_weights, optimization_inplace,
    optimization_update, optimization_checkpoint, optimization_recompute, optimization_freeze,
    optimization_loss_chunks, optimization_optimizer_state, optimization_dropout, optimization_layer_norm,
    optimization_inplace_abn, optimization_offload, optimization_window_sums, optimization_loss_scale,
    optimization_clip, optimization_accumulate_wrong, optimization_retain_graph, optimization_precision,
    optimization_activation_gradients, optimization_concat, optimization_allocator, optimization_defragment,
    optimization_groups, optimization_fold, optimization_dynamic_batch, optimization_algorithms,
    optimization_keep_loss, optimization_keep_recomputed, optimization_copy_weights,
    optimization_oversize_workspace, optimization_grow;

/* VL_INVALID for a value that is not in the comma-separated list. */
Status optimization_one_of(const Optimization *of, const char *value, const char *accepted) VL_CHECKED;

/* A finite number above 0, with "." whatever the locale; VL_INVALID says what is accepted. */
Status optimization_positive(const Optimization *of, const char *value, double *number) VL_CHECKED;

/* Takes away a cast whose input has its output's type already: its readers read the input, which becomes the
 * parameter's gradient, or the part of one, that the output was. Where the input cannot, since others read it
 * too, the cast becomes a copy. */
Status optimization_remove_cast(Program *program, Node *cast) VL_CHECKED;

/* ---- accumulate ------------------------------------------------------------------------------------------ */

/* A number of micro-batches; 0: auto. */
Status optimization_parse_accumulate(const char *value, int64_t *count) VL_CHECKED;
/* VL_UNSUPPORTED when the program's step cannot be divided. */
Status optimization_check_accumulate(const Program *program, int64_t count) VL_CHECKED;
/* Adds up the loss and the gradients of `count` micro-batches. */
Status optimization_accumulate_sums(Program *program, int64_t count) VL_CHECKED;

/* ---- checkpoint ------------------------------------------------------------------------------------------ */

/* Whether a forward node counts as an operator of ops:k: not what moves nothing (views), belongs to the
 * operator beside it (batch statistics, running statistics) or converts a weight. */
bool optimization_is_operator(const Node *node);
/* Sets which forward nodes are dropped and repeated. run: by position of a node, the run it is in; 0: none,
 * it is kept. What another run reads stays, and so do side effects and batch statistics. */
void optimization_drop_runs(Graph *graph, const int32_t *run);
/* checkpoint=auto; budget_bytes 0: the target's capacity. */
Status optimization_checkpoint_auto(Program *program, int64_t budget_bytes, const Target *target) VL_CHECKED;

/* What recomputation costs and saves in a chain of blocks, in which backward goes through the blocks in
 * reverse: everything adds up. Blocks count from 0 here; a run is [first * blocks + last]. Of a pair the
 * first is for forward, the second for backward: between them the cache of casts is emptied. */
enum { IN_FORWARD = 0, IN_BACKWARD, CHAIN_PASSES };
typedef struct ChainCosts {
  int32_t blocks;
  int64_t *kept_peak_bytes[CHAIN_PASSES]; /* by block: most live in it when all blocks keep theirs */
  int64_t *run_peak_bytes[CHAIN_PASSES];  /* by run: most live in its blocks when it alone is recomputed */
  int64_t *run_saved_bytes[CHAIN_PASSES]; /* by run: what it no longer holds while other blocks run */
  int64_t *run_flops;                     /* by run: repeated */
} ChainCosts;

/* A choice of runs. */
typedef struct ChainPlan {
  int32_t *length; /* by block: of the run that begins with it, 0: none does */
  int64_t peak_bytes, flops;
} ChainPlan;

/* The runs that repeat the fewest operations with a peak of at most limit_bytes; false: there are none.
 * plan->length: room for one a block. Exact, by dynamic programming over the boundaries. */
bool optimization_cheapest_runs(const ChainCosts *costs, int64_t limit_bytes, ChainPlan *plan);
/* The costs of a program's blocks, from the lifetimes of its schedules. */
Status optimization_chain_costs(Program *program, ChainCosts *costs) VL_CHECKED;
void optimization_chain_costs_free(ChainCosts *costs);

#endif
