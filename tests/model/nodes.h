/* tests/model: every node of a model's training step on a device, fed with the reference's values of that
 * step, in each layout the device accepts, against the reference within the op's own bound
 * (tests/kernels/README.md). So a whole net of kernels is held to rounding errors of single kernels, which a
 * comparison of final gradients cannot do. */
#ifndef VRAMLAB_TESTS_MODEL_NODES_H
#define VRAMLAB_TESTS_MODEL_NODES_H

#include "tests/kernels/compare.h"
#include "tests/model/step.h"

struct CMUnitTest;

/* What main is: runs the tests, whose state is a Subject on the device that the first argument names, by
 * default the cpu. Returns the exit code, 77 where the machine does not offer it. */
int nodes_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count);
/* Fails the running test unless all nodes, at least `least`, match. */
void nodes_check(const Subject *subject, const StepSpec *spec, int64_t least);

#endif
