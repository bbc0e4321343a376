/* kernels/cpu: AdamW's factors, for its kernels; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_ADAMW_H
#define VRAMLAB_KERNELS_CPU_ADAMW_H

#include "kernels/cpu/vector.h"

/* What a step multiplies by: computed in double, rounded once. With t the step's number from 1 and
 * c = sqrt(1 - beta2^t). */
typedef struct AdamwFactors {
  float decay;                  /* 1 - learning_rate weight_decay */
  float new_mean;               /* 1 - beta1 */
  float old_square, new_square; /* beta2, 1 - beta2 */
  float epsilon;                /* c epsilon */
  float step;                   /* - c learning_rate / (1 - beta1^t) */
} AdamwFactors;
AdamwFactors cpu_adamw_factors(const OpParams *params, const LaunchContext *context);

#endif
