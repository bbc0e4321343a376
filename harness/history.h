/* Nights one after the other: how every cell's figures went, and where they changed for the worse. */
#ifndef VRAMLAB_HARNESS_HISTORY_H
#define VRAMLAB_HARNESS_HISTORY_H

#include "harness/compare.h"
#include "harness/report_document.h"

/* The report of a directory of stores, or of nights (scripts/nightly) that hold stores, in the order of their
 * names: a line a cell and metric, with the night of the last change of its level; `*bad`: how many got worse
 * and stayed so. VL_INVALID: fewer than two nights. */
Status vl_history(const char *directory, Document **document, int32_t *bad) VL_CHECKED;

#endif
