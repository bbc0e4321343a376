/* kernels/cpu: updates of weights, for the optimizers' kernels; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_UPDATE_H
#define VRAMLAB_KERNELS_CPU_UPDATE_H

#include "kernels/cpu/vector.h"

/* Computes `count` elements of every output from those of every input, in f32; an output may be an input. */
typedef void UpdateFunction(float *const *to, const float *const *from, int64_t count, const void *factors);
/* Runs it over whole storages, which share a layout: zero padding must stay zero. Inputs are weight, gradient
 * and state, one more than outputs; what follows them, see below, is not walked. */
void update_run(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                UpdateFunction *function, const void *factors);

/* The weight's layout is the convolution's; gradient and state take it. */
Status update_choose_layouts(CpuDevice *device, const Node *node, LayoutId *inputs,
                             LayoutId *outputs) VL_CHECKED;
Status update_prepare(CpuDevice *device, Kernel *kernel) VL_CHECKED;

/* The inputs of an update after those, as graph/ops/README.md says: what the gradient is multiplied by (1
 * when absent), how many steps there are with this one, and whether it is skipped and outputs stay what they
 * were. */
typedef struct UpdateFactor {
  float gradient;
  double steps;
  bool skip;
} UpdateFactor;
UpdateFactor update_factor(const Kernel *kernel, const uintptr_t *inputs, const LaunchContext *context);

/* What the run gives, as a schedule of rates does, else the node's own. */
double update_learning_rate(const OpParams *params, const LaunchContext *context);

/* AdamW's factors: computed in double, rounded once. With t the step's number from 1 and
 * c = sqrt(1 - beta2^t). */
typedef struct AdamwFactors {
  float gradient;               /* what it is multiplied by first */
  float decay;                  /* 1 - learning_rate weight_decay */
  float new_mean;               /* 1 - beta1 */
  float old_square, new_square; /* beta2, 1 - beta2 */
  float epsilon;                /* c epsilon */
  float step;                   /* - c learning_rate / (1 - beta1^t) */
} AdamwFactors;
AdamwFactors update_adamw_factors(const OpParams *params, const LaunchContext *context, UpdateFactor update);

#endif
