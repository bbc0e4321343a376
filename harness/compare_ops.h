/* The ops of two kept steps of a cell beside one another (run --timeline): which run another implementation,
 * and where in the model time and traffic changed. One step each is little evidence: nothing here judges. */
#ifndef VRAMLAB_HARNESS_COMPARE_OPS_H
#define VRAMLAB_HARNESS_COMPARE_OPS_H

#include "harness/compare.h"

/* Launches of one kind in one layer that run another implementation than before. */
typedef struct OpChange {
  char op[VL_NAME_BYTES], scope[VL_NAME_BYTES];
  char base[VL_NAME_BYTES], now[VL_NAME_BYTES]; /* implementations, as the device names them */
  int32_t segment;                              /* Segment */
  int64_t launches;                             /* of a step */
  double base_s, now_s;                         /* of them all; NaN: nothing tells time */
} OpChange;

/* What a layer, or all layers below a scope, do in one segment of a step. */
typedef struct ScopeChange {
  char scope[VL_NAME_BYTES]; /* "" with several layers: all of them */
  int32_t segment, layers;
  double base_s, now_s;          /* of repetitions the median; 0: not there; NaN: nothing tells time */
  int64_t base_bytes, now_bytes; /* read and written, counted from shapes */
} ScopeChange;

typedef struct OpsComparison {
  int32_t base_steps, now_steps;       /* kept, one a repetition */
  int64_t base_launches, now_launches; /* of a step */
  double base_s, now_s;                /* of all ops; NaN: nothing tells time */
  OpChange *implementations;           /* the largest time first */
  int32_t implementation_count;
  ScopeChange *times; /* by how much their time changed; layers that moved alike are one */
  int32_t time_count;
  ScopeChange *traffic; /* layers whose bytes differ, by how much */
  int32_t traffic_count;
} OpsComparison;

/* Of two lists of steps of the same cell, ops[i] having counts[i]; the result is for vl_compare_ops_free. */
typedef struct KeptSteps {
  OpRecord **ops;
  int64_t *counts;
  int32_t count;
} KeptSteps;
OpsComparison *vl_compare_steps(const KeptSteps *base, const KeptSteps *now);
/* Sets `ops` of every compared cell of which both stores kept a step. VL_INVALID: a damaged file. */
Status vl_compare_ops(const Store *base, const Store *now, StoreComparison *comparison) VL_CHECKED;
void vl_compare_ops_free(OpsComparison *ops);

/* Merges rows of one segment, sorted by scope, where all layers below a scope moved alike: a row stands for
 * many when each layer that has at least a twentieth of their time changed by between half and double the
 * share that they did together. In place; returns how many are left. */
int32_t vl_scopes_merge(ScopeChange *rows, int32_t count);

/* Which ops of all cells run another implementation: those from one to the same other in one line, by time.
 */
void vl_compare_print_implementations(const StoreComparison *comparison, FILE *out);
/* Where a cell's time changed (where `times`), its traffic, and what it holds at the peak (where `memory`).
 */
void vl_compare_print_ops(const CellComparison *cell, bool times, bool memory, FILE *out);
json_t *vl_compare_ops_json(const OpsComparison *ops);
/* The layers whose bytes at the allocated peak differ, the ten that differ most; empty where a record tells
 * none. */
json_t *vl_compare_held_json(const CellComparison *cell);

#endif
