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

/* Per channel, zero in the padding, so that padding stays zero. */
typedef struct BatchNormCoefficients {
  const float *mean, *scale, *beta;
} BatchNormCoefficients;

/* Floats that those of all channels take. */
static inline int64_t batch_norm_coefficients(const ChannelView *view) {
  return 3 * vector_by_lines(vector_channels(view));
}
/* Writes those of a range of channels. The node has mean, var, gamma and beta as inputs `first` to first + 3,
 * and params.epsilon. */
BatchNormCoefficients batch_norm_fill(const Kernel *kernel, const ChannelView *view, const uintptr_t *inputs,
                                      int32_t first, Range channels, float *to);
/* y = x (input 0) normalised, plus a residual (address NULL: none), then a ReLU where params.relu is set. The
 * statistics and parameters as for batch_norm_fill; workspace holds the coefficients. */
void batch_norm_whole(const Kernel *kernel, const ChannelView *view, const uintptr_t *inputs, int32_t first,
                      VectorArray residual, VectorArray y, float *workspace);

#endif
