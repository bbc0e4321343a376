/* Clocks. Durations come from the monotonic clock only, so a stepped wall clock cannot make one negative
 * (fault case I12). */
#include "base/base.h"

#include <time.h>

int64_t vl_monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void vl_utc_text(char *text, size_t size) {
  if (size == 0) return;
  time_t now = time(NULL);
  struct tm parts;
  if (gmtime_r(&now, &parts) == NULL || strftime(text, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
    text[0] = '\0';
  }
}
