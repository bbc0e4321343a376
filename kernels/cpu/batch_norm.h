/* kernels/cpu: what forward and backward of batch norm share; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_BATCH_NORM_H
#define VRAMLAB_KERNELS_CPU_BATCH_NORM_H

#include "kernels/cpu/vector.h"

/* gamma / sqrt(var + epsilon), rounded once. */
float batch_norm_scale(float gamma, float var, double epsilon);

/* The normalised value. The one expression for it: backward finds the sign of forward's output by repeating
 * it. x - mean comes first, so that a mean of many deviations costs no digits; it is the same number in every
 * clone since nothing is contracted. */
VECTOR_INLINE float batch_norm_value(float x, float mean, float scale, float beta) {
  return (x - mean) * scale + beta;
}

#endif
