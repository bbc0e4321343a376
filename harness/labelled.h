/* Several stores under labels, as plot and report take them. */
#ifndef VRAMLAB_HARNESS_LABELLED_H
#define VRAMLAB_HARNESS_LABELLED_H

#include "harness/plot.h"

#include <argp.h>

typedef struct LabelledStores {
  Store *stores[VL_MAX_LABELS];
  json_t *owned;   /* the copies of records that have labels */
  PlotInput input; /* of all of them */
} LabelledStores;

/* Ends the program (exit code 2) with a message unless there is one label a store, or one store without, no
 * label twice, and the reference, where given, is one of them. */
void vl_labelled_check(struct argp_state *state, int32_t stores, const char *const *labels,
                       int32_t label_count, const char *reference);
/* Opens `count` stores; the labels are borrowed. reference NULL: the first. VL_INVALID: a store is given
 * twice. Close whatever the outcome. */
Status vl_labelled_open(const char *const *paths, const char *const *labels, int32_t count,
                        const char *reference, LabelledStores *labelled) VL_CHECKED;
void vl_labelled_close(LabelledStores *labelled);

#endif
