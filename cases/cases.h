/* cases: one file per workload, which builds its forward graph. Knows only graph. */
#ifndef VRAMLAB_CASES_H
#define VRAMLAB_CASES_H

#include "graph/graph.h"

enum { VL_MAX_CASE_ARGUMENTS = 12, VL_SHAPE_ARGUMENTS = 3 };

/* One named integer a case takes (`--set size=96`). */
typedef struct CaseArgument {
  const char *name;
  int64_t default_value, low, high;
  const char *help;
} CaseArgument;

typedef struct Case {
  const char *name;              /* "resnet50" */
  const char *also_called;       /* comma-separated synonyms */
  const char *help;              /* one line */
  const CaseArgument *arguments; /* argument 0 is always micro_batch */
  int32_t argument_count;
  /* Arguments that are the size of a sample, which a queue of different ones sets; NULL: fewer. */
  const char *shape_arguments[VL_SHAPE_ARGUMENTS];
  /* Builds the forward graph into program (graph, loss, logits, training, optimizer defaults).
   * values: one per argument, already within range. training: false builds the evaluation graph. */
  Status (*build)(const int64_t *values, bool training, Program *program);
} Case;

/* By name or synonym; NULL when unknown. */
const Case *vl_case_find(const char *name);
const Case *const *vl_case_all(int32_t *count);
/* Fills defaults, then applies "name=value" pairs; VL_INVALID names the case, the name or value, and what is
 * accepted. */
Status vl_case_arguments(const Case *of, int64_t micro_batch, const char *const *settings,
                         int32_t setting_count, int64_t *values) VL_CHECKED;

#endif
