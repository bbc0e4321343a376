/* What an event costs, with and without the timeline: obtain and release of a step-like pattern. Prints
 * numbers and asserts none; the budget is that a step's events cost under 1 % of the step. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 200, STEPS = 200, REPEATS = 7, BLOCKS = 2 * LAYERS };

static char scope_names[LAYERS][32];

/* A forward pass that keeps an activation a layer and a workspace that goes at once, then a backward pass
 * that releases them. Returns the time of all steps. */
static int64_t run_steps(Fixture *fixture) {
  Block *kept[LAYERS];
  int64_t begin_ns = vl_monotonic_ns();
  for (int step = 0; step < STEPS; step++) {
    vl_tracker_clear_events(fixture->tracker);
    vl_tracker_reset_peaks(fixture->tracker);
    for (int layer = 0; layer < LAYERS; layer++) {
      AllocationRequest request = {.bytes = (64 + layer % 7 * 300) * KIB,
                                   .category = MEMORY_ACTIVATION,
                                   .name = "y",
                                   .scope = scope_names[layer]};
      Block *workspace = NULL;
      if (vl_heap_obtain(fixture->heap, &request, &kept[layer]).code != VL_OK) fail();
      request.category = MEMORY_WORKSPACE;
      if (vl_heap_obtain(fixture->heap, &request, &workspace).code != VL_OK) fail();
      vl_heap_release(fixture->heap, &workspace);
    }
    for (int layer = LAYERS - 1; layer >= 0; layer--)
      vl_heap_release(fixture->heap, &kept[layer]);
  }
  return vl_monotonic_ns() - begin_ns;
}

static int compare_doubles(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return left < right ? -1 : left > right;
}

static void measure(bool timeline, const char *name) {
  Fixture fixture;
  fixture_open(&fixture, 0, FAKE_ASCENDING);
  vl_tracker_keep_events(fixture.tracker, timeline);
  run_steps(&fixture); /* warm-up: reserves every segment and grows the timeline */
  double per_event_ns[REPEATS];
  for (int i = 0; i < REPEATS; i++) {
    int64_t events = vl_tracker_event_count(fixture.tracker);
    int64_t ns = run_steps(&fixture);
    per_event_ns[i] = (double)ns / (double)(vl_tracker_event_count(fixture.tracker) - events);
  }
  qsort(per_event_ns, REPEATS, sizeof per_event_ns[0], compare_doubles);
  printf("%s: median %.1f ns, lowest %.1f ns, highest %.1f ns an event (heap and tracker)\n", name,
         per_event_ns[REPEATS / 2], per_event_ns[0], per_event_ns[REPEATS - 1]);
  printf("<CTestMeasurement type=\"numeric/double\" name=\"%s_ns_per_event\">%.3f</CTestMeasurement>\n", name,
         per_event_ns[REPEATS / 2]);
  fixture_close(&fixture);
}

static void event_cost(void **state) {
  (void)state;
  for (int i = 0; i < LAYERS; i++)
    snprintf(scope_names[i], sizeof scope_names[i], "layer%d", i);
  measure(false, "counters");
  measure(true, "timeline");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(event_cost)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
