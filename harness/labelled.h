/* Several stores under labels, as plot and report take them. */
#ifndef VRAMLAB_HARNESS_LABELLED_H
#define VRAMLAB_HARNESS_LABELLED_H

#include "harness/plot.h"

#include <argp.h>

typedef struct LabelledStores {
  Store *stores[VL_MAX_LABELS];
  json_t *owned; /* the copies of records that have labels */
  char *names[VL_MAX_LABELS];
  PlotInput input; /* of all of them */
} LabelledStores;

/* Ends the program (exit code 2) with a message unless there is one label a store, or none at all, no label
 * twice, and the reference, where both are given, one of the labels. */
void vl_labelled_check(struct argp_state *state, int32_t stores, const char *const *labels,
                       int32_t label_count, const char *reference);
/* Opens `count` stores. label_count is that, or 0: each is called after its device, as in "H200", two of one
 * name with the store's own beside it, "H200 (tuesday)". reference NULL: the first. VL_INVALID: a store is
 * given twice, or the reference is no label. Close whatever the outcome. */
Status vl_labelled_open(const char *const *paths, int32_t count, const char *const *labels,
                        int32_t label_count, const char *reference, LabelledStores *labelled) VL_CHECKED;
void vl_labelled_close(LabelledStores *labelled);

#endif
