/* Statistics of small samples. Sorting copies: the callers' raw samples stay in the order they were taken. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 2^-n is a normal long double up to here. */
enum { MANY = 16000 };

static int compare_values(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double *sorted_copy(const double *values, int64_t n) {
  double *copy = vl_allocate((size_t)n * sizeof *copy);
  memcpy(copy, values, (size_t)n * sizeof *copy);
  qsort(copy, (size_t)n, sizeof *copy, compare_values);
  return copy;
}

static double sorted_quantile(const double *sorted, int64_t n, double p) {
  double position = p * (double)(n - 1);
  int64_t below = (int64_t)floor(position);
  if (below >= n - 1) return sorted[n - 1];
  double share = position - (double)below;
  /* Kept apart so that an infinite neighbour that is not used does not make a NaN. */
  if (share <= 0) return sorted[below];
  return sorted[below] + share * (sorted[below + 1] - sorted[below]);
}

double vl_statistics_quantile(const double *values, int64_t n, double p) {
  if (n <= 0) return NAN;
  double *sorted = sorted_copy(values, n);
  double quantile = sorted_quantile(sorted, n, p);
  free(sorted);
  return quantile;
}

double vl_statistics_median(const double *values, int64_t n) {
  return vl_statistics_quantile(values, n, 0.5);
}

double vl_statistics_spread(const double *values, int64_t n) {
  if (n <= 0) return NAN;
  double median = vl_statistics_median(values, n);
  double *deviations = vl_allocate((size_t)n * sizeof *deviations);
  for (int64_t i = 0; i < n; i++)
    deviations[i] = fabs(values[i] - median);
  double spread = vl_statistics_median(deviations, n);
  free(deviations);
  return spread;
}

/* The largest k with P(Binomial(n, 1/2) < k) <= 0.025, and twice that probability; 0 when there is none. */
static int64_t interval_rank(int64_t n, double *outside) {
  /* Of many, what is ten standard deviations below the middle is nothing. */
  int64_t first = n > MANY ? n / 2 - (int64_t)(5 * sqrt((double)n)) : 0, rank = 0;
  long double all = (long double)n, some = (long double)first, below = 0;
  long double term =
      first == 0 ? exp2l(-all)
                 : expl(lgammal(all + 1) - lgammal(some + 1) - lgammal(all - some + 1) - all * logl(2));
  *outside = 1;
  for (int64_t k = first + 1; 2 * k <= n; k++) {
    below += term; /* now P(X < k) */
    if (2 * below > 0.05) break;
    rank = k;
    *outside = (double)(2 * below);
    term *= (long double)(n - k + 1) / (long double)k;
  }
  return rank;
}

Estimate vl_statistics_estimate(const double *values, int64_t n) {
  Estimate estimate = {.median = vl_statistics_median(values, n),
                       .spread = vl_statistics_spread(values, n),
                       .low = NAN,
                       .high = NAN,
                       .coverage = NAN,
                       .samples = n};
  double outside;
  int64_t rank = interval_rank(n, &outside);
  if (rank > 0) {
    double *sorted = sorted_copy(values, n);
    estimate.low = sorted[rank - 1];
    estimate.high = sorted[n - rank];
    estimate.coverage = 1 - outside;
    free(sorted);
  }
  return estimate;
}

double vl_statistics_noise(const double *values, int64_t n) {
  Estimate estimate = vl_statistics_estimate(values, n);
  if (!(estimate.coverage > 0) || !(estimate.median > 0)) return INFINITY;
  return fmax(estimate.high - estimate.median, estimate.median - estimate.low) / estimate.median;
}

Status vl_statistics_drop_warmup(const double *values, int64_t n, int64_t warmup, const double **kept,
                                 int64_t *kept_count) {
  if (warmup < 0 || warmup >= n)
    return vl_error(VL_INVALID, "warm-up of %lld leaves none of %lld samples; it must be from 0 to %lld",
                    (long long)warmup, (long long)n, (long long)(n > 0 ? n - 1 : 0));
  *kept = values + warmup;
  *kept_count = n - warmup;
  return vl_ok();
}

int64_t vl_statistics_outliers(const double *values, int64_t n, bool *flags) {
  if (n <= 0) return 0;
  double *sorted = sorted_copy(values, n);
  double low = sorted_quantile(sorted, n, 0.25), high = sorted_quantile(sorted, n, 0.75);
  double reach = 1.5 * (high - low);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    flags[i] = values[i] < low - reach || values[i] > high + reach;
    count += flags[i];
  }
  free(sorted);
  return count;
}

Estimate vl_statistics_paired_ratio(const double *a, const double *b, int64_t n) {
  double *ratios = vl_allocate((size_t)(n > 0 ? n : 1) * sizeof *ratios);
  for (int64_t i = 0; i < n; i++)
    ratios[i] = a[i] / b[i];
  Estimate estimate = vl_statistics_estimate(ratios, n);
  free(ratios);
  return estimate;
}

/* ---- Factorials ------------------------------------------------------------------------------------------------- */

/* P(|T| < sqrt(degrees) tan(angle)) (Abramowitz and Stegun, 26.7.3 and 26.7.4). */
static double student_probability(int64_t degrees, double angle) {
  bool odd = degrees % 2 != 0;
  double cosine = cos(angle), term = odd ? cosine : 1, sum = 0;
  for (int64_t i = odd ? 2 : 1; i < degrees; i += 2) {
    sum += term;
    term *= cosine * cosine * (double)i / (double)(i + 1);
  }
  return odd ? 2 / acos(-1.0) * (angle + sin(angle) * sum) : sin(angle) * sum;
}

double vl_statistics_student(int64_t degrees) {
  double low = 0, high = acos(-1.0) / 2;
  if (degrees < 1) return NAN;
  for (int i = 0; i < 60; i++) {
    double middle = (low + high) / 2;
    *(student_probability(degrees, middle) < 0.95 ? &low : &high) = middle;
  }
  return sqrt((double)degrees) * tan(low);
}

static double mean_of(const double *values, int32_t count, int32_t stride) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++)
    sum += values[(int64_t)i * stride];
  return sum / count;
}

Contrast vl_statistics_contrast(const double *values, int32_t n, int32_t rounds, const double *weights) {
  Contrast contrast = {.value = NAN, .low = NAN, .high = NAN};
  if (n < 1 || rounds < 1) return contrast;
  double whole = mean_of(values, n * rounds, 1), squares = 0, squared_weights = 0;
  contrast.value = 0;
  for (int32_t c = 0; c < n; c++) {
    double cell = mean_of(values + c, rounds, n);
    contrast.value += weights[c] * cell;
    squared_weights += weights[c] * weights[c];
    for (int32_t round = 0; round < rounds; round++) {
      const double *block = values + (int64_t)round * n;
      double rest = block[c] - cell - mean_of(block, n, 1) + whole;
      squares += rest * rest;
    }
  }
  int64_t degrees = (int64_t)(n - 1) * (rounds - 1);
  if (degrees < 1) return contrast;
  double error = sqrt(squares / (double)degrees * squared_weights / rounds);
  contrast.low = contrast.value - vl_statistics_student(degrees) * error;
  contrast.high = contrast.value + vl_statistics_student(degrees) * error;
  return contrast;
}

void vl_statistics_effect_weights(int32_t factors, uint32_t which, double *weights) {
  for (uint32_t cell = 0; cell < 1U << factors; cell++) {
    double weight = 2.0 / (double)(1U << factors);
    for (int32_t i = 0; i < factors; i++)
      if ((which >> i & 1U) != 0 && (cell >> i & 1U) == 0) weight = -weight;
    weights[cell] = weight;
  }
}

double vl_statistics_rate(int64_t count, double elapsed_s, const char **reason) {
  *reason = NULL;
  if (count <= 0)
    *reason = "nothing was counted";
  else if (!(elapsed_s > 0))
    *reason = "no time elapsed";
  else if (!isfinite(elapsed_s))
    *reason = "elapsed time is not known";
  return *reason ? NAN : (double)count / elapsed_s;
}
