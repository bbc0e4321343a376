/* Whether live bytes keep growing. */
#include "memory/memory.h"

#include <stdlib.h>
#include <string.h>

enum { FEWEST_EQUAL = 4, FEWEST = 8 };

static int compare_bytes(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

/* Lowest, median and highest of part of a series, and the middle of where it lies. */
typedef struct Quarter {
  int64_t low, high;
  double median, middle;
} Quarter;

static Quarter quarter_of(const int64_t *live_bytes, int64_t count, int64_t which) {
  int64_t begin = which * count / 4, size = (which + 1) * count / 4 - begin;
  int64_t *sorted = vl_allocate((size_t)size * sizeof *sorted);
  memcpy(sorted, live_bytes + begin, (size_t)size * sizeof *sorted);
  qsort(sorted, (size_t)size, sizeof *sorted, compare_bytes);
  Quarter quarter = {.low = sorted[0],
                     .high = sorted[size - 1],
                     .median = ((double)sorted[(size - 1) / 2] + (double)sorted[size / 2]) / 2.0,
                     .middle = (double)begin + (double)(size - 1) / 2.0};
  free(sorted);
  return quarter;
}

LeakSign vl_leak_find(const int64_t *live_bytes, int64_t count, double *bytes_per_step) {
  *bytes_per_step = 0.0;
  if (count < FEWEST_EQUAL) return LEAK_UNKNOWN;
  int64_t added = live_bytes[1] - live_bytes[0], equal = 1;
  while (equal < count && live_bytes[equal] - live_bytes[equal - 1] == added)
    equal++;
  if (equal == count && added <= 0) return LEAK_NONE;
  if (equal == count) {
    *bytes_per_step = (double)added;
    return LEAK_FOUND;
  }
  if (count < FEWEST) return live_bytes[count - 1] > live_bytes[0] ? LEAK_UNKNOWN : LEAK_NONE;
  Quarter first = quarter_of(live_bytes, count, 0), before = first;
  for (int64_t which = 1; which < 4; which++) {
    Quarter quarter = quarter_of(live_bytes, count, which);
    if (quarter.low < before.high || quarter.median <= before.median) return LEAK_NONE;
    before = quarter;
  }
  *bytes_per_step = (before.median - first.median) / (before.middle - first.middle);
  return LEAK_FOUND;
}
