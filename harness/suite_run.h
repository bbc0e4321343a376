/* Running the cells of a suite into a store. */
#ifndef VRAMLAB_HARNESS_SUITE_RUN_H
#define VRAMLAB_HARNESS_SUITE_RUN_H

#include "harness/harness.h"

typedef struct SuiteRunOptions {
  bool quiet;
  int64_t retries;   /* so often, after the last cell, those are measured again whose times are doubtful */
  bool rerun_failed; /* timeout, crashed, diverged and skipped cells of an earlier run are run again */
} SuiteRunOptions;

/* How many cells of the suite the store holds, by how they ended. */
typedef struct SuiteRunCounts {
  int64_t cells, already_there, ran;
  int64_t failed; /* timeout, crashed, diverged, among all of the suite */
  int64_t skipped;
} SuiteRunCounts;

/* Every measured cell so often, each time in a process of its own; predictions and searches once. */
void vl_suite_repeat(Suite *suite, int64_t times);
/* What is not measured first, as the suite lists it; then rounds: every measured cell once, then again. Where
 * there are several rounds, or a seed >= 0 is given, cells go in random order within each, drawn from the
 * seed (-1: 0) and the cell's key, so that a drift of the machine falls on no axis of the suite, and what is
 * resumed goes on in the same order. */
void vl_suite_order(Suite *suite, int64_t seed);

/* Runs what the store does not have yet. VL_INTERRUPTED: stopped on request, everything finished is stored.
 */
Status vl_suite_run(const Suite *suite, Store *store, const SuiteRunOptions *options,
                    SuiteRunCounts *counts) VL_CHECKED;

/* Whether the cell would fit into this machine's memory now; when not, the reason, in bytes. Plans it first.
 */
Status vl_check_room(Runner *runner, const SuiteCell *cell, bool *fits, char *reason, size_t size) VL_CHECKED;

/* "vramlab-results/<suite>/<UTC>-<host>", which does not exist yet. */
void vl_default_directory(const char *suite, char *path, size_t size);
/* Points vramlab-results/latest and vramlab-results/<suite>/latest to a directory that vl_default_directory
 * named. */
Status vl_mark_latest(const char *suite, const char *directory) VL_CHECKED;

#endif
