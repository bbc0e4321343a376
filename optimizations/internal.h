/* Shared by the files of optimizations: the table's entries. */
#ifndef VRAMLAB_OPTIMIZATIONS_TABLE_H
#define VRAMLAB_OPTIMIZATIONS_TABLE_H

#include "optimizations/optimizations.h"

extern const Optimization optimization_accumulate, optimization_attention, optimization_fuse,
    optimization_pool_index, optimization_amp, optimization_weights, optimization_inplace,
    optimization_update, optimization_checkpoint, optimization_recompute;

/* VL_INVALID for a value that is not in the comma-separated list. */
Status optimization_one_of(const Optimization *of, const char *value, const char *accepted) VL_CHECKED;

#endif
