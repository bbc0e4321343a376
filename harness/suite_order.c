/* How often the cells of a suite run, and in what order. */
#include "harness/suite_run.h"

#include <stdlib.h>
#include <string.h>

static bool is_measured(const SuiteCell *cell) {
  return strcmp(cell->spec.device, "plan") != 0 && !cell->max_batch;
}

void vl_suite_repeat(Suite *suite, int64_t times) {
  int64_t count = 0, room = suite->cell_count * times + 1;
  SuiteCell *cells = vl_allocate((size_t)room * sizeof *cells);
  for (int64_t i = 0; i < suite->cell_count; i++) {
    if (is_measured(&suite->cells[i]) && suite->cells[i].repeat > 0)
      continue; /* those of the suite's own number */
    int64_t repeats = is_measured(&suite->cells[i]) ? times : 1;
    for (int64_t repeat = 0; repeat < repeats; repeat++) {
      cells[count] = suite->cells[i];
      if (repeats > 1) cells[count].repeat = (int32_t)repeat;
      count++;
    }
  }
  free(suite->cells);
  suite->cells = cells;
  suite->cell_count = count;
}

typedef struct Place {
  SuiteCell cell;
  int64_t round; /* -1: not measured */
  uint64_t key;  /* order within the round */
} Place;

static int compare_places(const void *a, const void *b) {
  const Place *one = a, *other = b;
  if (one->round != other->round) return one->round < other->round ? -1 : 1;
  return (one->key > other->key) - (one->key < other->key);
}

void vl_suite_order(Suite *suite, int64_t seed) {
  int32_t rounds = 0;
  Place *places = vl_allocate((size_t)(suite->cell_count + 1) * sizeof *places);
  for (int64_t i = 0; i < suite->cell_count; i++)
    if (is_measured(&suite->cells[i]) && suite->cells[i].repeat >= rounds)
      rounds = suite->cells[i].repeat + 1;
  bool shuffles = rounds > 1 || seed >= 0;
  for (int64_t i = 0; i < suite->cell_count; i++) {
    char key[17];
    bool measured = is_measured(&suite->cells[i]);
    suite->cells[i].shuffled = measured && shuffles;
    suite->cells[i].order_seed = seed < 0 ? 0 : seed;
    vl_cell_key(&suite->cells[i], key);
    places[i] =
        (Place){.cell = suite->cells[i],
                .round = measured ? suite->cells[i].repeat : -1,
                .key = suite->cells[i].shuffled ? vl_random_key((uint64_t)suite->cells[i].order_seed, 0, key)
                                                : (uint64_t)i};
  }
  qsort(places, (size_t)suite->cell_count, sizeof *places, compare_places);
  for (int64_t i = 0; i < suite->cell_count; i++)
    suite->cells[i] = places[i].cell;
  free(places);
}
