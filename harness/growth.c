#include "harness/growth.h"

#include <math.h>

enum { MIN_BATCHES = 3, MAX_ROUNDS = 100 };

const char *vl_growth_name(GrowthShape shape) {
  static const char *const names[GROWTH_SHAPE_COUNT] = {"affine", "power", "exponential"};
  return names[shape];
}

double vl_growth_value(const GrowthFit *fit, double batch) {
  if (!fit->fitted) return NAN;
  switch (fit->shape) {
  case GROWTH_AFFINE: return fit->a + fit->b * batch;
  case GROWTH_POWER: return fit->a * pow(batch, fit->b);
  default: return fit->a * exp(fit->b * batch);
  }
}

/* A straight line through (x, y) pairs; sums are of differences from the mean, so that bytes in the billions
 * keep their digits. */
typedef struct Line {
  double intercept, slope;
} Line;

typedef double (*Scale)(double);
static double as_is(double value) { return value; }

static Line line_through(const GrowthPoint *points, int32_t count, double at_most, Scale scale_x,
                         Scale scale_y) {
  double mean_x = 0, mean_y = 0, used = 0;
  for (int32_t i = 0; i < count; i++) {
    if (points[i].batch > at_most || !isfinite(points[i].bytes)) continue;
    mean_x += scale_x(points[i].batch);
    mean_y += scale_y(points[i].bytes);
    used += 1;
  }
  mean_x /= used;
  mean_y /= used;
  double xx = 0, xy = 0;
  for (int32_t i = 0; i < count; i++) {
    if (points[i].batch > at_most || !isfinite(points[i].bytes)) continue;
    double dx = scale_x(points[i].batch) - mean_x;
    xx += dx * dx;
    xy += dx * (scale_y(points[i].bytes) - mean_y);
  }
  Line line = {.intercept = NAN, .slope = NAN};
  if (xx > 0) {
    line.slope = xy / xx;
    line.intercept = mean_y - line.slope * mean_x;
  }
  return line;
}

double vl_growth_slope(const GrowthPoint *points, int32_t count) {
  return line_through(points, count, INFINITY, as_is, as_is).slope;
}

/* Sum of squared relative errors of a e^(b x). */
static double relative_squares(const GrowthPoint *points, int32_t count, double at_most, double log_a,
                               double b) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++) {
    if (points[i].batch > at_most || !isfinite(points[i].bytes)) continue;
    double error = exp(log_a + b * points[i].batch) / points[i].bytes - 1;
    sum += error * error;
  }
  return sum;
}

/* Gauss-Newton from the line through the logarithms. The logarithms alone favour small batches; the claim is
 * judged by relative error, so the fit minimises it and the exponential gets its best chance. */
static void refine_exponential(const GrowthPoint *points, int32_t count, double at_most, double *log_a,
                               double *b) {
  double best = relative_squares(points, count, at_most, *log_a, *b);
  for (int round = 0; round < MAX_ROUNDS; round++) {
    double aa = 0, ab = 0, bb = 0, ar = 0, br = 0;
    for (int32_t i = 0; i < count; i++) {
      if (points[i].batch > at_most || !isfinite(points[i].bytes)) continue;
      double x = points[i].batch;
      double ratio = exp(*log_a + *b * x) / points[i].bytes;
      aa += ratio * ratio;
      ab += ratio * ratio * x;
      bb += ratio * ratio * x * x;
      ar += ratio * (ratio - 1);
      br += ratio * x * (ratio - 1);
    }
    double determinant = aa * bb - ab * ab;
    if (!(determinant > 0)) return;
    double step_a = -(bb * ar - ab * br) / determinant, step_b = -(aa * br - ab * ar) / determinant;
    double length = 1;
    double next = relative_squares(points, count, at_most, *log_a + step_a, *b + step_b);
    while (!(next < best) && length > 1e-6) {
      length /= 2;
      next = relative_squares(points, count, at_most, *log_a + length * step_a, *b + length * step_b);
    }
    if (!(next < best)) return;
    *log_a += length * step_a;
    *b += length * step_b;
    best = next;
  }
}

/* NULL when the points can be fitted, else what is missing. */
static const char *why_not(GrowthShape shape, const GrowthPoint *points, int32_t count, double at_most) {
  double seen[MIN_BATCHES];
  int different = 0;
  for (int32_t i = 0; i < count; i++) {
    if (points[i].batch > at_most || !isfinite(points[i].bytes)) continue;
    if (shape != GROWTH_AFFINE && !(points[i].bytes > 0 && points[i].batch > 0))
      return "a value is zero or less, which has no logarithm";
    bool known = false;
    for (int j = 0; j < different; j++)
      known = known || seen[j] == points[i].batch;
    if (!known && different < MIN_BATCHES) seen[different++] = points[i].batch;
  }
  return different < MIN_BATCHES ? "fewer than three different batches" : NULL;
}

static void judge(GrowthFit *fit, const GrowthPoint *points, int32_t count, double at_most) {
  fit->fit_error = 0;
  for (int32_t i = 0; i < count; i++) {
    if (!isfinite(points[i].bytes)) continue;
    double error = fabs(vl_growth_value(fit, points[i].batch) / points[i].bytes - 1);
    bool held_out = points[i].batch > at_most;
    double *worst = held_out ? &fit->held_out_error : &fit->fit_error;
    *(held_out ? &fit->held_out_count : &fit->fit_count) += 1;
    if (isnan(*worst) || !(error <= *worst)) *worst = error;
  }
}

GrowthFit vl_growth_fit(GrowthShape shape, const GrowthPoint *points, int32_t count, double fit_at_most) {
  GrowthFit fit = {.shape = shape, .why = "", .a = NAN, .b = NAN, .fit_error = NAN, .held_out_error = NAN};
  const char *missing = why_not(shape, points, count, fit_at_most);
  if (missing != NULL) {
    fit.why = missing;
    return fit;
  }
  Line line = line_through(points, count, fit_at_most, shape == GROWTH_POWER ? log : as_is,
                           shape == GROWTH_AFFINE ? as_is : log);
  if (shape == GROWTH_EXPONENTIAL)
    refine_exponential(points, count, fit_at_most, &line.intercept, &line.slope);
  fit.a = shape == GROWTH_AFFINE ? line.intercept : exp(line.intercept);
  fit.b = line.slope;
  fit.fitted = true;
  judge(&fit, points, count, fit_at_most);
  return fit;
}
