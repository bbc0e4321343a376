/* What tests of the training loop share: a data file made by a script of scripts/data, and a run on it. */
#ifndef VRAMLAB_TESTS_LEARN_H
#define VRAMLAB_TESTS_LEARN_H

#include "engine/engine.h"

enum { LEARN_SKIPPED = 77 };

/* Runs scripts/data/<script> with the arguments, NULL at the end; false when it or what it imports is
 * missing. */
bool learn_script(const char *python, const char *script, const char *const *arguments);

/* Trains and evaluates, telling the loss now and then; 0, 1 or, without the cpu module, LEARN_SKIPPED. */
int learn_run(const CellSpec *spec, CellResult *result);

#endif
