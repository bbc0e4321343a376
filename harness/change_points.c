/* Where a series of numbers changes its level for good. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_SEGMENT = 2, PERMUTATIONS = 999 };

/* The split of n values whose sides differ most: scaled energy distance of the sides, m n / (m + n) times
 * (2 mean |x - y| - mean |x - x'| - mean |y - y'|). Returns the first index of the right side; 0: too few. */
static int64_t best_split(const double *x, int64_t n, double *statistic) {
  double left = 0, right = 0, total = 0;
  int64_t best = 0;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = i + 1; j < n; j++)
      total += fabs(x[i] - x[j]);
  right = total;
  *statistic = 0;
  for (int64_t split = 1; split <= n - LEAST_SEGMENT; split++) {
    double value = x[split - 1]; /* moves to the left side */
    for (int64_t i = 0; i < split - 1; i++)
      left += fabs(value - x[i]);
    for (int64_t i = split; i < n; i++)
      right -= fabs(value - x[i]);
    if (split < LEAST_SEGMENT) continue;
    double of_left = (double)split, of_right = (double)(n - split), across = total - left - right;
    double distance = 2 * across / (of_left * of_right) - 2 * left / (of_left * (of_left - 1)) -
                      2 * right / (of_right * (of_right - 1));
    double scaled = distance * of_left * of_right / (double)n;
    if (best == 0 || scaled > *statistic) {
      best = split;
      *statistic = scaled;
    }
  }
  return best;
}

static void shuffle(double *values, int64_t n, uint64_t key) {
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t other = (int64_t)(((uint64_t)vl_random_word(key, 0, (uint64_t)i) * (uint64_t)(i + 1)) >> 32);
    double value = values[i];
    values[i] = values[other];
    values[other] = value;
  }
}

/* The share of orders of the same values that split at least as well. It stops as soon as it is above `level`
 * (Besag & Clifford 1991, sequential Monte Carlo p-values). */
static double permutation_p(const double *x, int64_t n, double statistic, double level) {
  double *values = vl_allocate((size_t)n * sizeof *values);
  int64_t as_good = 1, tried = 1, most = (int64_t)(level * (PERMUTATIONS + 1));
  memcpy(values, x, (size_t)n * sizeof *values);
  for (; tried <= PERMUTATIONS && as_good <= most; tried++) {
    double other;
    shuffle(values, n, vl_random_key((uint64_t)n, (uint64_t)tried, "change points"));
    best_split(values, n, &other);
    if (other >= statistic * (1 - 1e-12)) as_good++;
  }
  free(values);
  return (double)as_good / (double)tried;
}

static int64_t split_segment(const double *x, int64_t from, int64_t to, double level, ChangePoint *points) {
  double statistic;
  int64_t n = to - from, split = n >= 2 * LEAST_SEGMENT ? best_split(x + from, n, &statistic) : 0;
  if (split == 0 || !(statistic > 0)) return 0;
  double p = permutation_p(x + from, n, statistic, level);
  if (p > level) return 0;
  int64_t count = split_segment(x, from, from + split, level, points);
  points[count++] = (ChangePoint){.at = from + split, .p = p};
  return count + split_segment(x, from + split, to, level, points + count);
}

int64_t vl_statistics_change_points(const double *values, int64_t n, double level, ChangePoint *points) {
  return split_segment(values, 0, n, level, points);
}
