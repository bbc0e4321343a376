/* Two samples: whether they differ, by how much, and how sure that is. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EXACT = 40 }; /* samples of each side whose ranks are counted out */

/* ---- Mann-Whitney ---------------------------------------------------------------------------------------- */

/* Of all ways to choose n ranks out of n + m, the share whose U is at most u: ways[k] counts, by adding one
 * rank after the other, those of the first ranks with a given sum. (Mann & Whitney 1947, recurrence in
 * section 3.) */
static double exact_lower_tail(int64_t n, int64_t m, int64_t u) {
  int64_t most = n * m;
  double *ways = vl_allocate((size_t)((n + 1) * (most + 1)) * sizeof *ways);
  ways[0] = 1;
  for (int64_t rank = 0; rank < n + m; rank++)
    for (int64_t chosen = n < rank + 1 ? n : rank + 1; chosen >= 1; chosen--) {
      int64_t above = rank - (chosen - 1); /* of the other side, below this rank */
      if (above > m) continue;
      for (int64_t sum = most; sum >= above; sum--)
        ways[chosen * (most + 1) + sum] += ways[(chosen - 1) * (most + 1) + sum - above];
    }
  double below = 0, all = 0;
  for (int64_t sum = 0; sum <= most; sum++) {
    all += ways[n * (most + 1) + sum];
    if (sum <= u) below += ways[n * (most + 1) + sum];
  }
  free(ways);
  return below / all;
}

static int compare_values(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sum of t^3 - t over groups of t equal values. */
static double tie_sum(const double *a, int64_t n, const double *b, int64_t m) {
  double *all = vl_allocate((size_t)(n + m) * sizeof *all), sum = 0;
  memcpy(all, a, (size_t)n * sizeof *all);
  memcpy(all + n, b, (size_t)m * sizeof *all);
  qsort(all, (size_t)(n + m), sizeof *all, compare_values);
  for (int64_t i = 0, j; i < n + m; i = j) {
    for (j = i + 1; j < n + m && !(all[j] > all[i]);)
      j++;
    double group = (double)(j - i);
    sum += group * group * group - group;
  }
  free(all);
  return sum;
}

double vl_statistics_mann_whitney(const double *a, int64_t n, const double *b, int64_t m) {
  if (n < 1 || m < 1) return NAN;
  double u = 0;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < m; j++)
      u += a[i] > b[j] ? 1 : a[i] < b[j] ? 0 : 0.5;
  double ties = tie_sum(a, n, b, m), low = u < (double)(n * m) - u ? u : (double)(n * m) - u;
  if (ties <= 0 && n <= MOST_EXACT && m <= MOST_EXACT)
    return fmin(1, 2 * exact_lower_tail(n, m, (int64_t)floor(low)));
  double size = (double)(n + m), middle = (double)(n * m) / 2;
  double variance = (double)(n * m) / 12 * (size + 1 - ties / (size * (size - 1)));
  if (!(variance > 0)) return 1;
  return fmin(1, erfc(fmax(0, middle - low - 0.5) / sqrt(variance) / sqrt(2)));
}

/* ---- Student and Welch ----------------------------------------------------------------------------------- */

/* The regularised incomplete beta function by its continued fraction (Lentz's method; DLMF 8.17.22). */
static double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incomplete_beta(b, a, 1 - x);
  const double tiny = 1e-300;
  double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (fabs(d) < tiny ? tiny : d);
  double fraction = d;
  for (int i = 1; i < 300; i++) {
    for (int odd = 0; odd < 2; odd++) {
      double term = odd == 0 ? i * (b - i) * x / ((a + 2 * i - 1) * (a + 2 * i))
                             : -(a + i) * (a + b + i) * x / ((a + 2 * i) * (a + 2 * i + 1));
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (fabs(d) < tiny ? tiny : d);
      if (fabs(c) < tiny) c = tiny;
      fraction *= c * d;
    }
    if (fabs(c * d - 1) < 1e-15) break;
  }
  return front * fraction;
}

double vl_statistics_student_p(double t, double degrees) {
  return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

/* Where the two-sided probability is 0.05. */
static double student_quantile(double degrees) {
  double low = 0, high = 1e6;
  for (int i = 0; i < 200 && high - low > 1e-12 * high; i++) {
    double middle = (low + high) / 2;
    *(vl_statistics_student_p(middle, degrees) > 0.05 ? &low : &high) = middle;
  }
  return low;
}

static void moments(const double *values, int64_t n, double *mean, double *variance) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; i++)
    sum += values[i];
  *mean = sum / (double)n;
  for (int64_t i = 0; i < n; i++)
    squares += (values[i] - *mean) * (values[i] - *mean);
  *variance = squares / (double)(n - 1);
}

/* Of a value and its squared standard error: the interval, and the probability of as much from nothing. */
static double test(double value, double square, double degrees, Contrast *contrast) {
  *contrast = (Contrast){value, value, value};
  if (!(square > 0)) return fabs(value) > 0 ? 0 : 1; /* no sample differs from its neighbours */
  double half = student_quantile(degrees) * sqrt(square);
  contrast->low = value - half;
  contrast->high = value + half;
  return vl_statistics_student_p(value / sqrt(square), degrees);
}

double vl_statistics_welch(const double *a, int64_t n, const double *b, int64_t m, double shared,
                           Contrast *difference) {
  *difference = (Contrast){NAN, NAN, NAN};
  if (n < 1 || m < 1) return NAN;
  double of_a, of_b, mean_a, mean_b;
  moments(a, n, &mean_a, &of_a);
  moments(b, m, &mean_b, &of_b);
  difference->value = mean_b - mean_a;
  if (n < 2 || m < 2) return NAN;
  of_a *= shared + 1 / (double)n;
  of_b *= shared + 1 / (double)m;
  double square = of_a + of_b;
  return test(difference->value, square,
              square * square / (of_a * of_a / (double)(n - 1) + of_b * of_b / (double)(m - 1)), difference);
}

/* ---- Pairs ----------------------------------------------------------------------------------------------- */

double vl_statistics_paired(const double *differences, int64_t n, Contrast *mean) {
  *mean = (Contrast){NAN, NAN, NAN};
  if (n < 1) return NAN;
  double variance;
  moments(differences, n, &mean->value, &variance);
  return n < 2 ? NAN : test(mean->value, variance / (double)n, (double)(n - 1), mean);
}

static int compare_sizes(const void *a, const void *b) {
  double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
  return (x > y) - (x < y);
}

/* Of all 2^n ways to give ranks 1 to n a sign, the share whose positive ranks sum to `most` or less. */
static double signed_rank_tail(int64_t n, int64_t most) {
  int64_t all = n * (n + 1) / 2;
  double *ways = vl_allocate((size_t)(all + 1) * sizeof *ways), below = 0;
  ways[0] = 1;
  for (int64_t rank = 1; rank <= n; rank++)
    for (int64_t sum = all; sum >= rank; sum--)
      ways[sum] += ways[sum - rank];
  for (int64_t sum = 0; sum <= most; sum++)
    below += ways[sum];
  free(ways);
  return ldexp(below, -(int)n);
}

double vl_statistics_signed_rank(const double *differences, int64_t n) {
  double *sorted = vl_allocate((size_t)(n + 1) * sizeof *sorted), positive = 0, ties = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++)
    if (fabs(differences[i]) > 0) sorted[count++] = differences[i];
  qsort(sorted, (size_t)count, sizeof *sorted, compare_sizes);
  for (int64_t i = 0, j; i < count; i = j) {
    for (j = i + 1; j < count && !(fabs(sorted[j]) > fabs(sorted[i]));)
      j++;
    double group = (double)(j - i), rank = (double)(i + 1 + j) / 2;
    ties += group * group * group - group;
    for (int64_t k = i; k < j; k++)
      positive += sorted[k] > 0 ? rank : 0;
  }
  free(sorted);
  if (n < 1) return NAN;
  if (count == 0) return 1;
  double all = (double)(count * (count + 1)) / 2, low = fmin(positive, all - positive);
  if (ties <= 0 && count == n && n <= MOST_EXACT)
    return fmin(1, 2 * signed_rank_tail(n, (int64_t)floor(low)));
  double variance = (double)(count * (count + 1) * (2 * count + 1)) / 24 - ties / 48;
  return erfc(fmax(0, all / 2 - low) / sqrt(variance) / sqrt(2));
}

/* ---- Many at once ---------------------------------------------------------------------------------------- */

void vl_statistics_holm(const double *p, int64_t count, double *adjusted) {
  double highest = 0;
  bool *done = vl_allocate((size_t)(count + 1) * sizeof *done);
  int64_t known = 0;
  for (int64_t i = 0; i < count; i++) {
    adjusted[i] = NAN;
    if (!isnan(p[i])) known++;
  }
  for (int64_t left = known; left > 0; left--) {
    int64_t least = -1;
    for (int64_t i = 0; i < count; i++)
      if (!done[i] && !isnan(p[i]) && (least < 0 || p[i] < p[least])) least = i;
    highest = fmax(highest, fmin(1, p[least] * (double)left));
    adjusted[least] = highest;
    done[least] = true;
  }
  free(done);
}
