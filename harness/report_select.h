/* What reports and figures look at: the workloads of a store, and the cells that are compared with one
 * another. */
#ifndef VRAMLAB_HARNESS_REPORT_SELECT_H
#define VRAMLAB_HARNESS_REPORT_SELECT_H

#include "harness/claims.h"

/* A case with its settings, training or inference, and the queue of samples it works through. Text is
 * borrowed from records; settings NULL: the case's own; queue NULL: samples of one size. */
typedef struct Workload {
  const char *case_name, *settings, *queue;
  bool inference;
} Workload;

enum { VL_MAX_WORKLOADS = 16, VL_MAX_RECIPES = 64, VL_MAX_CAPACITIES = 4 };

/* "resnet50 size=96 inference", "resnet50 training". */
void vl_workload_text(const Workload *workload, char *text, size_t size);
Workload vl_record_workload(const json_t *record);
/* The workloads of cells, most cells first; at most VL_MAX_WORKLOADS. */
int32_t vl_select_workloads(const RecordSet *records, Workload *workloads);
/* Whose cells. */
typedef enum Engines { ENGINES_OURS = 0, ENGINES_ALL } Engines;
/* Cells (not other kinds) of a workload, in order. free() records. */
RecordSet vl_select_workload(const RecordSet *records, const Workload *workload, Engines engines);
/* A cell of another engine (vramlab import): shown beside ours, and never in the place of one. */
bool vl_record_is_peer(const json_t *record);
/* What a cell is called: its recipe; a peer its configuration, with its recipe unless that is the baseline:
 * "PyTorch 2.14.1 compile channels-last malloc=keep amp=bf16". */
void vl_record_name(const json_t *record, char *text, size_t size);
/* Cells of one line in a figure: one recipe on one device, by one engine in one configuration. */
bool vl_same_line(const json_t *a, const json_t *b);
/* The same at one batch: repetitions of one cell. */
bool vl_same_cell(const json_t *a, const json_t *b);
/* What a cell ran on: "cpu (Example CPU 9000)", "plan:V100-32GB". */
void vl_device_text(const json_t *record, char *text, size_t size);
bool vl_same_device(const json_t *a, const json_t *b);
bool vl_record_is_predicted(const json_t *record);
/* Samples one optimizer step sees; what recipes are compared at. */
int64_t vl_record_batch(const json_t *record);

/* A quantity of a cell, the median over its repetitions that are ok; NaN when none knows it. */
double vl_select_median(const RecordSet *cells, const json_t *like, const char *column);

/* Cells that differ in the recipe alone: one device, one batch. */
typedef struct Comparison {
  int64_t batch;
  const json_t *rows[VL_MAX_RECIPES]; /* one a recipe, the baseline first; of repetitions the median one */
  int32_t count;
  const json_t *baseline;              /* the ok cell of recipe "baseline"; NULL: none */
  const json_t *peers[VL_MAX_RECIPES]; /* other engines there, one a configuration */
  int32_t peer_count;
} Comparison;
/* The group with the most recipes that ran: measured before predicted, with a baseline before without, the
 * larger batch of two equals. Cells under a capacity are left out. count 0: there are no cells. */
void vl_select_comparison(const RecordSet *cells, Comparison *comparison);

/* Results of a cell against the baseline: what its recipe promises, and what the losses show. */
typedef enum Outcome {
  OUTCOME_UNKNOWN = 0,
  OUTCOME_BITWISE,
  OUTCOME_TOLERANCE,
  OUTCOME_DIFFERENT_MODEL,
  OUTCOME_BROKEN /* the losses differ by more than the recipe promises */
} Outcome;
typedef struct Equality {
  Outcome outcome;
  bool checked;           /* against losses of both; false: only promised */
  double loss_difference; /* largest relative difference over the steps; NaN unless checked */
} Equality;
Equality vl_record_equality(const json_t *record, const json_t *baseline);
/* How far rounding may take the loss of the first step, before any update can amplify a difference, as a
 * share: 1e-4 in fp32 (the bound whole models are held to against PyTorch), 2^-6 where activations are
 * rounded to bf16 or fp16 (8 bits of mantissa and four times that for the depth). */
double vl_record_loss_bound(const json_t *record);
/* "bitwise", "within tolerance", "different model", "BROKEN PROMISE", "n/a". */
const char *vl_outcome_name(Outcome outcome);

/* The recipe that needs the least of those with that outcome against the baseline; none that is a mistake.
 * NULL: there is none. */
const json_t *vl_select_leanest(const Comparison *comparison, Outcome outcome);

/* Capacities of the max-batch records of a workload, ascending; 0: none was looked for. */
int32_t vl_select_capacities(const RecordSet *records, const Workload *workload, int64_t *capacities);
/* The largest batch of a recipe under a capacity; -1 unknown. */
int64_t vl_select_max_batch(const RecordSet *records, const Workload *workload, const char *recipe,
                            int64_t capacity_bytes);

/* Where a cell's needed_bytes go. Parts sum to needed_bytes when `complete`. */
enum { VL_PART_COUNT = MEMORY_CATEGORY_COUNT + 2 };
typedef struct MemoryParts {
  int64_t bytes[VL_PART_COUNT]; /* categories, then cached-free, then libraries; -1 unknown */
  bool complete;
} MemoryParts;
MemoryParts vl_record_parts(const json_t *record);
const char *vl_part_name(int32_t part);

#endif
