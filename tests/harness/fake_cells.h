/* Results without an engine: what tests of the harness store, and an engine whose cells do as they are told.
 */
#ifndef VRAMLAB_TESTS_FAKE_CELLS_H
#define VRAMLAB_TESTS_FAKE_CELLS_H

#include "harness/harness.h"

/* A cell of resnet50 on cpu that tells the fake engine what to do; batch and orders make its key. */
SuiteCell fake_cell(int64_t micro_batch, const char *orders);
/* A result with `steps` step times 0.5 s + i ms and the same losses as any other. vl_cell_result_clear frees.
 */
void fake_result(const SuiteCell *cell, int32_t steps, CellResult *result);
/* A timeline of `count` events. free() it. */
TimelineEvent *fake_timeline(int64_t count);
OpRecord *fake_ops(int64_t count);

/* vl_cell_run's place taken by orders in spec->data, separated by spaces:
 *   oom, diverged             ends with that status      invalid, environment   is refused
 *   crash, exit               dies of SIGSEGV, exit(9)   hang                   never ends
 *   stubborn:FILE             hangs; it and a child that both ignore SIGTERM; the child's pid goes to FILE
 *   escape:FILE               leaves a child behind that has a session of its own and ignores SIGTERM
 *   leave:FILE                ends well, but leaves a child behind that ignores SIGTERM
 *   slow:MS                   takes that long per step, sleeping        busy:MS   the same, computing
 *   once:FILE                 crashes unless FILE exists, and makes it
 *   log:FILE                  appends a line when it starts
 *   visible:FILE              appends the card it may see (CUDA_VISIBLE_DEVICES) and the time, ns
 * On device plan: needs micro_batch MiB; above the capacity it is oom. */
Status fake_cell_run(const CellSpec *spec, const CellObserver *observer, CellResult *result);

#endif
