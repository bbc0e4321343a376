/* What columns.c and record.c share: a cell seen as a whole while its record is made. */
#ifndef VRAMLAB_HARNESS_COLUMNS_H
#define VRAMLAB_HARNESS_COLUMNS_H

#include "harness/harness.h"

typedef struct CellView {
  const SuiteCell *cell;
  const CellResult *result;
  Estimate step; /* of the measured steps */
  Drift drift;
  int64_t outliers; /* measured steps outside Tukey's fences */
  const char *created_utc;
  const char *key;
} CellView;

/* What --monitor tells of each step, as lists of a record and columns of the store; in the order of
 * StepMonitor. */
typedef struct MonitorColumn {
  const char *list, *column, *unit, *help;
} MonitorColumn;
enum { VL_MONITOR_COUNT = 4 };
extern const MonitorColumn vl_monitors[VL_MONITOR_COUNT];

/* What the build and the machine say of themselves. */
typedef struct BuildFacts {
  const char *version, *git_commit, *compiler;
  bool git_dirty;
} BuildFacts;
BuildFacts vl_build_facts(void);
/* The machine's name; "unknown" when it does not say. */
void vl_host_name(char *text, size_t size);

/* A JSON string of any bytes: what is not UTF-8 becomes "?". */
json_t *vl_json_text(const char *text);
/* A JSON number; NULL when it is not finite. */
json_t *vl_json_real(double value);

#endif
