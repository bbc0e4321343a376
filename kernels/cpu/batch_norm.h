/* kernels/cpu: what forward and backward of batch norm share, and instance norm with both, which is batch
 * norm of one sample whose channels are those of all samples; private to the folder. */
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

/* ---- Parts: what a thread does between two barriers ------------------------------------------------------- */

/* Adds up deviations from a shift per channel, and their squares: sums [2][channels], of the part's blocks
 * only. lanes: room for [2][pattern], by cache lines. */
void batch_norm_sums(const ChannelView *view, VectorArray x, VectorPart part, const float *shift,
                     double *sums, float *lanes);

/* What ends the normalisation. */
typedef struct BatchNormRelu {
  bool leaky;
  float least; /* not leaky: smaller values become it */
  float below; /* leaky: the slope below zero */
} BatchNormRelu;
BatchNormRelu batch_norm_relu(bool relu, double below);
/* y = x normalised, plus a residual (address NULL: none; none beside a leaky ReLU), then the ReLU. */
void batch_norm_normalise(const ChannelView *view, BatchNormCoefficients all, VectorArray y, VectorArray x,
                          VectorArray residual, BatchNormRelu relu, VectorPart part);

/* What backward computes a channel's values with; zero in the padding. The first three are forward's; the
 * others make dx = gain g + (slope (x - mean) + constant) of the gradient g behind the ReLU. */
enum { NORM_MEAN, NORM_SCALE, NORM_BETA, NORM_GAIN, NORM_SLOPE, NORM_CONSTANT, NORM_COEFFICIENTS };

/* Backward's tensors, address NULL where one is absent: dy2 is added to dy, y tells where the ReLU let values
 * through (else x does), dresidual is g. */
typedef struct BatchNormGradient {
  const ChannelView *view;
  VectorArray dy, dy2, x, y, dx, dresidual;
  bool relu;
  float below;                   /* the ReLU's slope below zero; not 0 only without y and dresidual */
  float *all[NORM_COEFFICIENTS]; /* [channels] each */
} BatchNormGradient;
/* Adds up g and g (x - mean) per channel, likewise. Reads the first three coefficients. */
void batch_norm_gradient_sums(const BatchNormGradient *of, VectorPart part, double *sums, float *lanes);
/* dx and dresidual. */
void batch_norm_differentiate(const BatchNormGradient *of, VectorPart part);

#endif
