/* What the files that fill bounds share; README.md derives the form. */
#ifndef VRAMLAB_TESTS_KERNELS_BOUND_H
#define VRAMLAB_TESTS_KERNELS_BOUND_H

#include "devices/device.h"

/* v of a dtype: one rounding to it. */
double roundoff_of(DType dtype);
/* c for a sum of `terms`. */
double sum_roundings(int64_t terms);
/* Of a result that is off by at most `error` before it is rounded to its dtype. */
double rounded_bound(double error, double value, DType dtype);
/* attention and attention_backward. */
void attention_bounds(const Node *node, double *const *inputs, double *const *outputs, double *const *bounds,
                      const LaunchContext *context);
/* adamw_8bit. */
void adamw_8bit_bounds(const Node *node, double *const *inputs, double *const *outputs, double *const *bounds,
                       const LaunchContext *context);
/* instance_norm and instance_norm_backward. */
void instance_norm_bounds(const Node *node, double *const *inputs, double *const *outputs,
                          double *const *bounds);
void instance_norm_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                   double *const *bounds);
/* dice_cross_entropy and dice_cross_entropy_backward. */
void dice_cross_entropy_bounds(const Node *node, double *const *inputs, double *const *outputs,
                               double *const *bounds);
void dice_cross_entropy_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                        double *const *bounds);

#endif
