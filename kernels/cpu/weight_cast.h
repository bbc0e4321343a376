/* kernels/cpu: casts of convolution weights between blocked layouts; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_WEIGHT_CAST_H
#define VRAMLAB_KERNELS_CPU_WEIGHT_CAST_H

#include "kernels/cpu/cpu.h"

/* How f32 weights in blocks of 16 by 16 (input channel, output channel) become bf16 in pairs of channels. */
typedef struct WeightCast {
  int64_t outputs, inputs, taps; /* blocks of output and of input channels; places of the window */
  bool pairs_outputs; /* pairs are of output channels, as the data gradient reads them; else input */
  bool inputs_first;  /* the target's blocks: input channels outermost, else output channels */
} WeightCast;

/* Whether a cast, its layouts chosen, is one of these; fills `cast` if so. */
bool cpu_weight_cast_applies(CpuDevice *device, const Kernel *kernel, WeightCast *cast);
/* Casts the storage of a parameter, `threads` at a time; rounds as vl_bf16_from_f32 does. */
void cpu_weight_cast_run(const WeightCast *cast, int32_t threads, const float *from, uint16_t *to);

#endif
