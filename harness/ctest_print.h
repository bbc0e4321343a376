/* A cell as a test of CTest. */
#ifndef VRAMLAB_HARNESS_CTEST_PRINT_H
#define VRAMLAB_HARNESS_CTEST_PRINT_H

#include "harness/harness.h"

/* Prints the record's numbers as <CTestMeasurement> and the PNG figures of the store's directory as
 * <CTestMeasurementFile>, which CTest takes from a test's output and CDash draws over time, and why a cell is
 * not ok. Returns the exit code: 0 ok; 77 skipped, but 1 where VRAMLAB_REQUIRE names the cell's device; 1
 * everything else. */
int vl_ctest_print(const json_t *record, const char *directory);

#endif
