/* Which cells of a suite are run. */
#ifndef VRAMLAB_HARNESS_SUITE_SELECT_H
#define VRAMLAB_HARNESS_SUITE_SELECT_H

#include "harness/harness.h"

/* Keeps the cells whose line (vl_cell_label) matches an extended regular expression, or does not. NULL keeps
 * all. VL_INVALID: the pattern is none. */
Status vl_suite_keep_matching(Suite *suite, const char *pattern, bool matching) VL_CHECKED;
/* Keeps the one cell whose key begins so. VL_INVALID: none does, or several. */
Status vl_suite_keep_cell(Suite *suite, const char *key) VL_CHECKED;

/* One of several parts of a suite, whose union is the suite: for as many machines. */
typedef struct Shard {
  int32_t index, count; /* from 1; count 0: the whole */
} Shard;
/* "2/8". VL_INVALID names what is accepted. */
Status vl_shard_parse(const char *text, Shard *shard) VL_CHECKED;
/* Keeps every count-th cell, from the index-th on; repetitions of a cell stay together, since only those of
 * one machine may be compared. A part may be empty. */
void vl_suite_keep_shard(Suite *suite, Shard shard);

/* What was chosen as JSON (a new object): {"suite", "cells": [{"cell_key", "label", "case", "device", "kind",
 * "timeout_s"}]}. */
json_t *vl_suite_listing(const Suite *suite);

#endif
