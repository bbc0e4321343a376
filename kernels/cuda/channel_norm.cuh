/* kernels/cuda: statistics, application and gradient of norms whose numbers belong to channels, in the
 * channels last; private to the folder, CUDA only. Batch norm has one group of rows, those of all samples;
 * instance norm one for each sample.
 *
 * A block takes a tile of channels and a part of a group's rows; a thread 4 channels, the same in every
 * row it comes to, so that what belongs to a channel stays in registers. What parts give is added up by
 * a second kernel, in double and in their order. How rows are cut depends on shapes, and
 * on whether addresses are aligned. */
#ifndef VRAMLAB_KERNELS_CUDA_CHANNEL_NORM_CUH
#define VRAMLAB_KERNELS_CUDA_CHANNEL_NORM_CUH

#include "kernels/cuda/norm.cuh"

/* Element (group, row, channel) lies at (group * rows + row) * channels + channel. */
typedef struct ChannelRows {
  int64_t groups, rows, channels;
} ChannelRows;

/* Every activation is in the channels last, else VL_INTERNAL. */
Status channel_norm_check(const Kernel *kernel, int32_t activation) VL_CHECKED;
/* `by_sample`: a group is a sample. */
ChannelRows channel_rows(const Tensor *activation, bool by_sample);

/* What a value is normalised by. The statistics are [group][channel], gamma and beta [channel]. */
typedef struct ChannelFactors {
  const float *mean;
  const float *var;  /* with epsilon; or */
  const float *rstd; /* NULL: var is there */
  FloatArray gamma, beta;
  double epsilon;
} ChannelFactors;

/* ---- Statistics: mean, and var or rstd (the other one NULL), [group][channel] ------------------------------- */

int64_t channel_statistics_bytes(const ChannelRows *rows);
Status channel_statistics(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                          FloatArray x, float *mean, float *var, float *rstd) VL_CHECKED;

/* ---- Application --------------------------------------------------------------------------------------- */

/* y = activated((x - mean) * scale + beta + residual); y may be x or the residual. */
typedef struct ChannelApply {
  FloatArray x, y;
  void *residual; /* NULL: none */
  ChannelFactors by;
  float slope; /* below zero: 1 without an activation, 0 for a ReLU */
} ChannelApply;
Status channel_apply(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                     const ChannelApply *apply) VL_CHECKED;
/* The x that such a y was made of, with var, without a residual and with params.alpha as its slope. x may be
 * y. */
Status channel_invert(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                      const ChannelApply *apply) VL_CHECKED;

/* ---- Gradient -------------------------------------------------------------------------------------------------- */

typedef enum ChannelMask {
  CHANNEL_MASK_NONE = 0, /* no activation ended forward */
  CHANNEL_MASK_BY_Y,     /* y tells its sign */
  CHANNEL_MASK_BY_X      /* it is computed again */
} ChannelMask;

/* Tensors of x's type; dx and dresidual may be dy, dy2 or (dx) x. NULL: absent, or not wanted. */
typedef struct ChannelGradient {
  FloatArray x;
  const void *dy, *dy2, *y;
  void *dx, *dresidual;
  float *dgamma, *dbeta; /* [channel] */
  ChannelFactors by;     /* beta is there for CHANNEL_MASK_BY_X */
  ChannelMask mask;
  float slope; /* what is left of the gradient where forward's result was not positive */
} ChannelGradient;
int64_t channel_gradient_bytes(const ChannelRows *rows);
Status channel_gradient(const Kernel *kernel, const CudaLaunch *launch, const ChannelRows *rows,
                        const ChannelGradient *gradient) VL_CHECKED;

#endif
