/* Programs the reports call: gnuplot for figures, git for the commit that fixed a claim's region. */
#ifndef VRAMLAB_HARNESS_REPORT_PROCESS_H
#define VRAMLAB_HARNESS_REPORT_PROCESS_H

#include "base/base.h"

/* Runs argv[0] (found in PATH) in a directory (NULL: this one) with LC_ALL=C, waits for it, and keeps the
 * beginning of what it wrote. out or err may be NULL. exit_code: 128 + the signal's number when one ended it.
 * VL_ENVIRONMENT: it could not be started. */
Status vl_process_run(const char *const *argv, const char *directory, char *out, size_t out_size, char *err,
                      size_t err_size, int *exit_code) VL_CHECKED;

#endif
