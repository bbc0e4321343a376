/* Progress of a suite on stderr: one line a finished cell, and on a terminal a line that is rewritten
 * meanwhile. */
#ifndef VRAMLAB_HARNESS_PROGRESS_H
#define VRAMLAB_HARNESS_PROGRESS_H

#include "harness/suite_state.h"

typedef struct Progress {
  bool quiet, terminal;
  int64_t total, done;
  int64_t cell_start_ns;
  char label[VL_RECIPE_BYTES + 160]; /* of the running cell */
  /* Per kind, since planning is a thousand times faster than measuring: 0 measured, 1 planned. */
  int64_t left[2], finished[2];
  double spent_s[2];
  int kind;
  /* What `status` is told; nothing is where no store was named. */
  const char *publish_to;
  SuiteState state;
  int64_t published_ns;
} Progress;

/* What a cell is called in lines and filters: "resnet50 batch 16 cpu baseline". */
void vl_cell_label(const SuiteCell *cell, char *label, size_t size);

/* The median step with how far its 95 % interval reaches to both sides, where there is one: "12.3 ms (-0.8 %
 * +1.1
 * %), median of 12". */
void vl_step_time_text(const json_t *record, char *text, size_t size);

void vl_progress_start(Progress *progress, bool quiet);
/* Announces a cell that is going to run. */
void vl_progress_expect(Progress *progress, const SuiteCell *cell);
/* From here on, tells in the store how far it is; of a suite's cells so many were there before. */
void vl_progress_publish(Progress *progress, const char *store, const char *suite, int64_t already_there);
/* Tells how it ended. */
void vl_progress_finish(Progress *progress, const Status *status);
void vl_progress_begin(Progress *progress, const SuiteCell *cell);
/* Callback of the runner; context is the Progress. */
void vl_progress_step(void *context, int32_t step, int32_t total);
void vl_progress_end(Progress *progress, const json_t *record);

#endif
