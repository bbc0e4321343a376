/* Whether values that follow one another rise or fall. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST = 6, MOST = 400 }; /* of more, as many are taken, evenly */

static int compare_values(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

Drift vl_statistics_drift(const double *values, int64_t n) {
  Drift drift = {NAN, NAN};
  if (n < LEAST) return drift;
  int64_t count = n < MOST ? n : MOST, pairs = count * (count - 1) / 2, at = 0, rising = 0;
  double *slopes = vl_allocate((size_t)pairs * sizeof *slopes);
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = i + 1; j < count; j++) {
      double early = values[i * (n - 1) / (count - 1)], late = values[j * (n - 1) / (count - 1)];
      rising += (late > early) - (late < early);
      slopes[at++] = (late - early) / (double)(j - i);
    }
  qsort(slopes, (size_t)pairs, sizeof *slopes, compare_values);
  double slope = vl_statistics_quantile(slopes, pairs, 0.5), size = (double)count;
  double deviation = sqrt(size * (size - 1) * (2 * size + 5) / 18);
  drift.change = slope * (size - 1) / vl_statistics_median(values, n);
  drift.p = fmin(1, erfc(fmax(0, fabs((double)rising) - 1) / deviation / sqrt(2)));
  free(slopes);
  return drift;
}
