/* A cell as a test of CTest. */
#ifndef VRAMLAB_HARNESS_CTEST_PRINT_H
#define VRAMLAB_HARNESS_CTEST_PRINT_H

#include "harness/harness.h"

/* Prints the record's status and numbers as <CTestMeasurement> and the PNG figures of the store's directory
 * as <CTestMeasurementFile>, which CTest takes from a test's output and CDash draws over time, and why a cell
 * is not ok. Returns the exit code. 0: ok, and oom, which is a result (of a cell that was ok before, compare
 * says that it regressed); 77: unsupported or skipped, but 1 where the cell was skipped and VRAMLAB_REQUIRE
 * names its device; 1: everything else. */
int vl_ctest_print(const json_t *record, const char *directory);

#endif
