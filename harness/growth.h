/* growth: how bytes grow with the batch. Fits of three shapes, judged on points they have not seen. */
#ifndef VRAMLAB_HARNESS_GROWTH_H
#define VRAMLAB_HARNESS_GROWTH_H

#include "base/base.h"

/* Two parameters each, so that no shape has an advantage. */
typedef enum GrowthShape {
  GROWTH_AFFINE = 0,  /* a + b x: least squares */
  GROWTH_POWER,       /* a x^b: least squares of the logarithms */
  GROWTH_EXPONENTIAL, /* a e^(b x): least squares of the relative error */
  GROWTH_SHAPE_COUNT
} GrowthShape;
/* "affine", "power", "exponential". */
const char *vl_growth_name(GrowthShape shape);

typedef struct GrowthPoint {
  double batch;
  double bytes;
} GrowthPoint;

typedef struct GrowthFit {
  GrowthShape shape;
  bool fitted;           /* false: `why` says what is missing; the numbers are NaN then */
  const char *why;       /* "" when fitted */
  double a, b;           /* as named at the shape */
  double fit_error;      /* largest relative error over the points fitted */
  double held_out_error; /* largest relative error over the points held out; NaN when there is none */
  int32_t fit_count, held_out_count;
} GrowthFit;

/* Fits one shape to the points with batch <= fit_at_most; the rest are held out. At least three different
 * batches are needed, and positive values for the power and the exponential. Points whose value is not finite
 * are left out. */
GrowthFit vl_growth_fit(GrowthShape shape, const GrowthPoint *points, int32_t count, double fit_at_most);
/* The fit's value at a batch; NaN when nothing was fitted. */
double vl_growth_value(const GrowthFit *fit, double batch);
/* Slope of the least-squares line through the points; NaN with fewer than two different batches. */
double vl_growth_slope(const GrowthPoint *points, int32_t count);

#endif
