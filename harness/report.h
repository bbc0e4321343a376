/* report: what commands that read stores share. */
#ifndef VRAMLAB_HARNESS_REPORT_H
#define VRAMLAB_HARNESS_REPORT_H

#include "harness/report_document.h"

/* Records of a store, borrowed from it. free() records. */
RecordSet vl_store_records(const Store *store);
/* Columns of a terminal, 100 where there is none or it does not tell; at least 60. */
int vl_terminal_width(FILE *out);
/* Whether emphasis may be used: a terminal, and NO_COLOR is not set. */
bool vl_terminal_color(FILE *out);

#endif
