/* Regressions: the cells of one store beside the same cells of another. */
#ifndef VRAMLAB_HARNESS_COMPARE_H
#define VRAMLAB_HARNESS_COMPARE_H

#include "harness/claims.h"

/* Which way of a value is the good one. */
typedef enum Better { BETTER_NEITHER = 0, BETTER_LOWER, BETTER_HIGHER } Better;

/* How two values of a column are compared. */
typedef enum CompareBy {
  COMPARE_EXACT = 0, /* to the byte: the same program on the same device has the same value */
  COMPARE_MARGIN,    /* what the operating system or the driver adds varies: beyond VL_MARGIN of the value */
  COMPARE_TIME,      /* by distribution */
  COMPARE_LOSS,      /* to the bit, or up to rounding: vl_compare_losses */
  COMPARE_TEXT
} CompareBy;
enum { VL_MARGIN_PERCENT = 2 };

/* A column that is compared; those that are not in the list tell what was asked or where it ran. */
typedef struct Metric {
  const char *column;
  Better better;
  CompareBy by;
} Metric;
const Metric *vl_metric_all(int32_t *count);

typedef enum Judgement {
  JUDGED_SAME = 0,
  JUDGED_UNCLEAR, /* not enough data, or a change within the spread from run to run */
  JUDGED_CHANGED, /* different, and neither way is the better one */
  JUDGED_BETTER,
  JUDGED_WORSE
} Judgement;
/* "same", "unclear", "changed", "improved", "regressed". */
const char *vl_judgement_name(Judgement judgement);

typedef struct CompareOptions {
  double min_change; /* of times, as a share: less is no change whatever its evidence */
} CompareOptions;
CompareOptions vl_compare_usual(void); /* 3 % */

enum { VL_MAX_DIFFERENCES = 40, VL_EVIDENCE_BYTES = 192 };

typedef struct Difference {
  const Metric *metric;
  Judgement judgement;
  double base, now; /* numbers; of times the medians */
  const char *base_text, *now_text;
  Contrast ratio; /* of times: now / base, geometric mean with its 95 % interval */
  double p;       /* of times: of Student's or Welch's test on logarithms, for all of the comparison (Holm) */
  double rank_p;  /* and of Wilcoxon's or Mann-Whitney's, by itself */
  bool by_process;                  /* samples are processes, not steps of few */
  char evidence[VL_EVIDENCE_BYTES]; /* "8 and 8 processes", "12 pairs side by side", or why it is unclear */
} Difference;

/* Of a round, the median steps of a process of each store. */
typedef struct TimePair {
  int64_t repeat;
  double base_s, now_s;
} TimePair;

typedef struct CellComparison {
  const json_t *base, *now; /* of repetitions the first; borrowed */
  Judgement judgement;
  Difference differences[VL_MAX_DIFFERENCES]; /* all that are not SAME, and the time */
  int32_t count;
  TimePair *pairs; /* owned; of stores measured in turn (scripts/side-by-side), else none */
  int32_t pair_count;
  struct OpsComparison *ops; /* of kept steps (vl_compare_ops); NULL: not kept by both */
} CellComparison;

/* Times of two stores measured one after the other, as samples: fills in all of *difference but metric and
 * the judgement that Holm's p decides (vl_compare_decide). A sitting counts as one more source of spread, as
 * large as that from process to process (vl_statistics_welch's `shared`). */
void vl_compare_times(const double *base, int64_t n, const double *now, int64_t m, Difference *difference);
/* Processes of the same repeat which ran one right after the other: no other of the two stores ended between
 * them. What the machine did then it did to both. Writes at most base->count, returns how many. */
int32_t vl_compare_pairs(const RecordSet *base, const RecordSet *now, TimePair *pairs);
bool vl_compare_same_machine(const json_t *base, const json_t *now);
/* A cell's times, its records being repetitions: by pairs where there are at least six, which cell keeps,
 * else by processes or steps. A metric of NULL: neither store has a time. */
void vl_compare_cell_times(const RecordSet *base, const RecordSet *now, CellComparison *cell,
                           Difference *difference);
/* What moved all cells that have pairs, by the mean of their logarithms in each round: measured side by side
 * it is not the machine. False when there are not two such cells and six rounds of all. */
bool vl_compare_together(const CellComparison *cells, int32_t count, Difference *difference);
/* WORSE or BETTER (of a quantity whose lower value is the better) needs both tests' evidence and min_change,
 * four times of it from steps of few processes. */
void vl_compare_decide(double min_change, Difference *difference);

enum { VL_MAX_ENVIRONMENT = 24 };
/* What differs in what the two stores ran on: name and both values, each the values of its cells, their
 * median, or in how many of them it was so. */
typedef struct EnvironmentChange {
  const char *name;
  char base[200], now[200];
} EnvironmentChange;

typedef struct StoreComparison {
  EnvironmentChange environment[VL_MAX_ENVIRONMENT];
  int32_t environment_count;
  CellComparison *cells;
  int32_t count;
  const json_t **vanished, **added; /* borrowed */
  int32_t vanished_count, added_count;
  int32_t judged[JUDGED_WORSE + 1]; /* cells by judgement */
  Difference together;              /* of times measured side by side; no evidence: they were not */
  double machine_ratio; /* median ratio of the times of all cells: what moves them all; NaN below 5 cells */
} StoreComparison;

/* Borrows the records of both. */
Status vl_compare_records(const RecordSet *base, const RecordSet *now, const CompareOptions *options,
                          StoreComparison *comparison) VL_CHECKED;
/* Judges the losses of the last step, which *difference has: CHANGED when they are not the same; where
 * something that decides bits differs (hardware, instruction set, library, threads; the program, for a recipe
 * that promises less than bits; a card whose sums vary) only when the first losses differ by more than
 * rounding (vl_record_loss_bound). Evidence says why and by how much. */
void vl_compare_losses(const json_t *base, const json_t *now, Difference *difference);
/* Fills in comparison->environment: what differs between the machines and builds of the two. */
void vl_compare_environments(const RecordSet *base, const RecordSet *now, StoreComparison *comparison);
void vl_compare_free(StoreComparison *comparison);
/* Whether any cell, or all of them together, regressed. */
bool vl_compare_regressed(const StoreComparison *comparison);
/* What was asked of a cell, as text: equal for cells that are compared. free() it. */
char *vl_compare_identity(const json_t *record);
/* What a cell is called: "resnet50 training batch 8 cpu amp=bf16". */
void vl_compare_cell_text(const json_t *record, char *text, size_t size);

/* The comparison for people; wide names are folded. */
void vl_compare_print(const StoreComparison *comparison, bool all, FILE *out);
/* As an object: environment, cells with their differences, vanished, added, summary. The caller owns it. */
json_t *vl_compare_json(const StoreComparison *comparison);
/* As JUnit's XML: a test for each cell, which fails when it regressed and is skipped when unclear. */
void vl_compare_junit(const StoreComparison *comparison, FILE *out);

#endif
