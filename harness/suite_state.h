/* suite_state: where a running suite stands, in a small file of its store that is always whole; for `status`
 * in another terminal. */
#ifndef VRAMLAB_HARNESS_SUITE_STATE_H
#define VRAMLAB_HARNESS_SUITE_STATE_H

#include "harness/harness.h"

enum { VL_STATE_LABEL_BYTES = VL_RECIPE_BYTES + 160 };

/* A process, told apart from a later one with its pid by when it started. */
typedef struct ProcessId {
  int64_t pid, start_ticks; /* since boot; proc(5), field 22 of stat */
  char boot[40];            /* which boot; "" where that is not told */
} ProcessId;
/* Of this process. start_ticks is -1 where /proc does not tell. */
ProcessId vl_process_self(void);
/* Whether it still runs (a zombie does not). */
bool vl_process_is_alive(const ProcessId *process);
/* Resident memory of all that descends from a process, now and at most: sums over those that live; -1, -1
 * when there are none. */
void vl_process_descendants_memory(int64_t pid, int64_t *now_bytes, int64_t *peak_bytes);

typedef struct SuiteState {
  char suite[VL_NAME_BYTES], host[256];
  char end[16]; /* "" while it runs; finished, interrupted, failed */
  ProcessId process;
  int64_t total, done, failed, skipped; /* of this run's cells */
  int64_t already_there;                /* of the suite's cells, before this run */
  char label[VL_STATE_LABEL_BYTES];     /* of the running cell; "" between cells */
  int32_t step, steps;                  /* of it; 0, 0: not known */
  double cell_s;                        /* it has been running for */
  double left_s;                        /* all there is to do; NaN: not known */
  int64_t updated_ns;                   /* vl_monotonic_ns, which all processes of a boot share */
  char updated_utc[32];
} SuiteState;

/* Replaces the store's file. Nothing waits for the disk, and that it cannot be written is nobody's failure.
 */
void vl_suite_state_write(const char *directory, const SuiteState *state);
/* VL_INVALID: the directory is no store, no suite wrote there, or the file is not understood. */
Status vl_suite_state_read(const char *directory, SuiteState *state) VL_CHECKED;

#endif
