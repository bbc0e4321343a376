/* checkpoint_cells: cells that differ in how they checkpoint and in nothing else, for claims and figures. */
#ifndef VRAMLAB_HARNESS_CHECKPOINT_CELLS_H
#define VRAMLAB_HARNESS_CHECKPOINT_CELLS_H

#include "harness/claims.h"

typedef enum Granularity {
  CHECKPOINT_NONE = 0, /* recomputes nothing by a recipe's checkpoint */
  CHECKPOINT_BLOCKS,   /* checkpoint=k */
  CHECKPOINT_OPS,      /* checkpoint=ops:k */
  CHECKPOINT_MODEL,    /* checkpoint=model */
  CHECKPOINT_OTHER
} Granularity;

/* How a cell checkpoints, and its recipe without that. */
typedef struct CheckpointCell {
  Granularity granularity;
  int64_t interval; /* k of the first two */
  char rest[VL_RECIPE_BYTES];
} CheckpointCell;
/* False for a cell that did not run to its end, is no training, or has a recipe that is not ours. */
bool vl_checkpoint_cell(const json_t *record, CheckpointCell *cell);

/* Whether two cells are the same job on the same device but for the way they checkpoint. */
bool vl_checkpoint_same_job(const json_t *a, const json_t *b);
/* The first cell of the job of `like` that checkpoints so; interval 0: any. NULL: there is none. */
const json_t *vl_checkpoint_find(const RecordSet *cells, const json_t *like, Granularity granularity,
                                 int64_t interval);
/* Whether the i-th cell is the first of its job. */
bool vl_checkpoint_is_first(const RecordSet *cells, int32_t i);
/* "bert-base layers=6, batch 8, amp=bf16" */
void vl_checkpoint_job_text(const json_t *record, char *text, size_t size);

/* Operations repeated, over those of the step without repeating; NaN when not counted. */
double vl_checkpoint_counted(const json_t *record);
/* Step time over the baseline's less 1; low and high: from the ends of both intervals, NaN without them. NaN
 * where no time was measured. */
double vl_checkpoint_measured(const RecordSet *cells, const json_t *baseline, const json_t *record,
                              double *low, double *high);

/* ---- Rules: inside the claims files only --------------------------------------------------------------------- */

void vl_decide_checkpoint_cost(const Claim *claim, const RecordSet *cells, Finding *finding);
void vl_decide_checkpoint_snippet(const Claim *claim, const RecordSet *cells, Finding *finding);
void vl_decide_checkpoint_interval(const Claim *claim, const RecordSet *cells, Finding *finding);
void vl_decide_checkpoint_workload(const Claim *claim, const RecordSet *cells, Finding *finding);

#endif
