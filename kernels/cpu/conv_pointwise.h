/* kernels/cpu: own weight gradient of 1x1 convolutions in bf16; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_POINTWISE_H
#define VRAMLAB_KERNELS_CPU_CONV_POINTWISE_H

#include "kernels/cpu/cpu.h"

/* Whether a conv_backward_weights kernel, its layouts chosen, is one of these: bf16 in nChw16c, f32 gradient
 * in blocks of 16 by 16, no groups or padding, and a processor with AVX512_BF16 that the library was not told
 * to hide. */
bool cpu_conv_pointwise_applies(CpuDevice *device, const Kernel *kernel);
/* In CpuOp's slots. */
Status cpu_conv_pointwise_prepare(CpuDevice *device, Kernel *kernel) VL_CHECKED;
Status cpu_conv_pointwise_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                 uintptr_t workspace, const LaunchContext *context) VL_CHECKED;

#endif
