/* Cells of several stores side by side, under labels: only what is the same work with the same results. */
#ifndef VRAMLAB_HARNESS_SIDE_BY_SIDE_H
#define VRAMLAB_HARNESS_SIDE_BY_SIDE_H

#include "harness/plot.h"

enum { VL_SIDE_WORD_BYTES = 40 };

/* Where a number is from; of what is made of two numbers the later of both. */
typedef enum SideProvenance {
  SIDE_MEASURED = 0,
  SIDE_PREDICTED, /* by plan */
  SIDE_MODELLED,  /* from cited constants */
  SIDE_PROVENANCE_COUNT
} SideProvenance;
SideProvenance vl_side_provenance(const json_t *record);
/* "measured", "predicted", "modelled". */
const char *vl_side_provenance_name(SideProvenance provenance);

/* A record of the workload; texts are the record's. */
typedef struct SideCell {
  const json_t *record;
  const char *recipe;
  const char *gate; /* what the recipe preserves of results; NULL: unknown, as of a cell that did not run */
  int64_t batch, capacity_bytes;
  int32_t label;
  SideProvenance provenance;
} SideCell;

/* What one label has of a group. */
typedef struct SideValue {
  double value, low, high; /* NaN: none; low and high: of the 95 % interval */
  SideProvenance provenance;
  const json_t *record;          /* one of those it is from; NULL: the label has no such cell */
  char word[VL_SIDE_WORD_BYTES]; /* beside a bar: the value, "OOM", another status, or "n/a" */
} SideValue;

/* What stands side by side: one recipe with one gate, and one batch where that must be equal. */
typedef struct SideGroup {
  char name[VL_RECIPE_BYTES + 64];
  const char *recipe, *gate;
  int64_t batch;          /* 0: any */
  int64_t capacity_bytes; /* that was set for all; 0: each has its own memory */
  SideValue values[VL_MAX_LABELS];
} SideGroup;

/* What does not stand beside anything: what differs ("global batch"), and what each has ("A: 4; B: 8, 16").
 */
typedef struct SideLeftOut {
  char name[128], differs[24], why[240];
} SideLeftOut;

typedef struct Side {
  const PlotInput *input;
  const Workload *workload;
  SideCell *cells; /* whose results are not known to be wrong; measured before predicted before modelled */
  int32_t cell_count;
  SideGroup *groups; /* the baseline's first */
  int32_t count, capacity;
  bool any_failed; /* a group was left out in which no label has a value, and one a status that is not ok */
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
/* Groups of a workload of which at least two labels have a cell; of prediction-error one, as where there is
 * only one label. None unless one of them has a value. vl_side_clear() it. */
void vl_side_gather(const PlotInput *input, const Workload *workload, const SideMetric *metric, Side *side);
/* The cells alone, of records of a kind. vl_side_clear() it. */
void vl_side_collect(const PlotInput *input, const Workload *workload, const char *kind, Side *side);
void vl_side_clear(Side *side);
/* Whether two records are not of different hardware: one that did not run may not know its own. */
bool vl_side_same_hardware(const json_t *a, const json_t *b);
/* "amp=bf16, batch 16 in 8.000 GiB"; batch and capacity only where above 0. */
void vl_side_name_cell(const char *recipe, int64_t batch, int64_t capacity_bytes, char *name, size_t size);
/* Adds to left_out, what is already there not again. */
void vl_side_leave_out(Side *side, const char *name, const char *differs, const char *why);
/* Whether two cells are repetitions of one: label, recipe, gate, batch, limit, provenance and hardware. */
bool vl_side_same_cell(const SideCell *a, const SideCell *b);
/* The median of a metric over the repetitions of a cell, and its interval; NaN: none has it. */
double vl_side_median(const Side *side, const SideCell *cell, const SideMetric *metric, double *low,
                      double *high);
/* Which label a record has; -1: none. */
int32_t vl_side_label(const PlotInput *input, const json_t *record);
/* Samples a second; NaN where the speed is not that of the hardware meant. */
double vl_side_throughput(const json_t *record, double *low, double *high);

#endif
