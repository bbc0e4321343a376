#include "harness/harness.h"

Status vl_bisect(int64_t low, int64_t high, Status (*probe)(void *context, int64_t value, bool *fits),
                 void *context, int64_t *largest) {
  /* All up to `fitting` fit, all from `failing` on do not: as far as we know, both lie outside the range. The
   * top value is a candidate like any other. */
  int64_t fitting = low - 1, failing = high + 1;
  while (failing - fitting > 1) {
    int64_t middle = fitting + (failing - fitting) / 2;
    bool fits = false;
    VL_TRY(probe(context, middle, &fits));
    if (fits)
      fitting = middle;
    else
      failing = middle;
  }
  *largest = fitting;
  return vl_ok();
}
