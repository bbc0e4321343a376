/* History: the same cells in many stores, as of nightly runs, and the nights that changed them for good. */
#ifndef VRAMLAB_HARNESS_HISTORY_H
#define VRAMLAB_HARNESS_HISTORY_H

#include "harness/compare.h"

enum { VL_MOST_CHANGES = 8, VL_NIGHT_BYTES = 24 };

/* A store; when it was begun, "2026-11-28 23:00". */
typedef struct HistoryNight {
  char when[VL_NIGHT_BYTES], path[1024];
  bool injected; /* has cells with a fault on purpose */
} HistoryNight;

typedef struct HistoryPoint {
  int32_t night;
  double value; /* of a status 1 for ok, 0 for anything else */
} HistoryPoint;

/* A new level: from `point` on. */
typedef struct HistoryChange {
  int32_t point;
  Judgement judgement;
  double before, after; /* medians of the levels */
  double p;             /* of the permutation test; NaN where values are exact */
} HistoryChange;

/* A metric of a cell over the nights that know it. */
typedef struct HistoryLine {
  const Metric *metric;
  HistoryPoint *points;
  int32_t count;
  HistoryChange changes[VL_MOST_CHANGES]; /* the latest ones, in order */
  int32_t change_count;
} HistoryLine;

typedef struct HistoryCell {
  char text[1024];
  bool predicted;
  HistoryLine *lines; /* one for each metric (vl_metric_all) */
} HistoryCell;

typedef struct History {
  HistoryNight *nights; /* the oldest first */
  int32_t night_count;
  HistoryCell *cells;
  int32_t cell_count;
  HistoryLine machine; /* median over cells of a night's time over the cell's median of all nights; no points
                          where a night has fewer than 5 cells */
} History;

/* Reads every store in a directory, down to three folders deep ("DATE/SUITE"); links are not followed, so
 * that `latest` counts once. VL_INVALID: no store there. */
Status vl_history_load(const char *directory, History *history) VL_CHECKED;
void vl_history_free(History *history);
/* Where a line changes its level; for tests. `exact`: any difference is one. */
void vl_history_judge(HistoryLine *line, bool exact);
/* The last change that made it worse and that no later one made good; NULL: none. */
const HistoryChange *vl_history_regression(const HistoryLine *line);
/* How many lines have one. */
int32_t vl_history_regressions(const History *history);
/* Whether a report shows the line: the time and the memory needed always, others where they changed. */
bool vl_history_shows(const HistoryLine *line);

/* For a terminal, and as a page of its own. */
void vl_history_term(const History *history, const char *directory, FILE *out);
Status vl_history_html(const History *history, const char *directory, FILE *out) VL_CHECKED;

#endif
