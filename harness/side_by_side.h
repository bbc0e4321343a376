/* Cells of several stores side by side, under labels: only what is the same work with the same results. */
#ifndef VRAMLAB_HARNESS_SIDE_BY_SIDE_H
#define VRAMLAB_HARNESS_SIDE_BY_SIDE_H

#include "harness/plot.h"

enum { VL_SIDE_WORD_BYTES = 40 };

/* What one label has of a group. */
typedef struct SideValue {
  double value, low, high; /* NaN: none; low and high: of the 95 % interval */
  bool predicted, there;
  char word[VL_SIDE_WORD_BYTES]; /* beside a bar: the value, "OOM", another status, or "n/a" */
} SideValue;

/* What stands side by side: one recipe, and one batch where that must be equal. */
typedef struct SideGroup {
  char name[VL_RECIPE_BYTES + 64];
  const char *recipe;     /* of a record */
  const char *preserves;  /* what it says of results: the same for all */
  int64_t batch;          /* 0: any */
  int64_t capacity_bytes; /* that was set for all; 0: each has its own memory */
  SideValue values[VL_MAX_LABELS];
} SideGroup;

/* What does not stand beside anything, and why. */
typedef struct SideLeftOut {
  char name[128], why[96];
} SideLeftOut;

typedef struct Side {
  const PlotInput *input;
  const Workload *workload;
  SideGroup *groups; /* the baseline's first */
  int32_t count, capacity;
  SideLeftOut *left_out;
  int32_t left_out_count, left_out_capacity;
} Side;

typedef struct SideMetric {
  const char *name, *kind; /* of the records it is of */
  bool equal_batch, best;  /* best: of all batches the one with the highest value */
  const char *unit;
  double (*of)(const json_t *record, double *low, double *high); /* NaN: unknown */
  const char *format;                                            /* of SideValue.word */
} SideMetric;

/* max-batch, throughput-equal-batch, throughput-best, samples-per-gib, samples-per-joule, speedup (over the
 * reference), needed (GiB), prediction-error (of needed memory, percent of what was measured); NULL: unknown.
 */
const SideMetric *vl_side_metric(const char *name);
/* Groups of a workload of which at least two labels have a cell, or the one label there is, and one of them a
 * value. vl_side_clear() it. */
void vl_side_gather(const PlotInput *input, const Workload *workload, const SideMetric *metric, Side *side);
void vl_side_clear(Side *side);
/* Which label a record has; -1: none. */
int32_t vl_side_label(const PlotInput *input, const json_t *record);
/* Whether a record is of the workload and of that kind, and ran in vramlab itself. */
bool vl_side_is_of(const Workload *workload, const json_t *record, const char *kind);
/* Samples a second; NaN where the speed is not that of the hardware meant. */
double vl_side_throughput(const json_t *record, double *low, double *high);

#endif
