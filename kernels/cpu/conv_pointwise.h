/* kernels/cpu: own 1x1 convolutions in bf16, forward and data gradient; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_POINTWISE_H
#define VRAMLAB_KERNELS_CPU_CONV_POINTWISE_H

#include "kernels/cpu/cpu.h"

/* Whether a conv or conv_backward_data kernel, its layouts chosen, is one of these: 1x1, bf16 in channel
 * blocks of 16, no groups, no padding, a shape with which it is faster than the library (conv_pointwise.c
 * says which), and a processor with the instructions. */
bool cpu_conv_pointwise_applies(CpuDevice *device, const Kernel *kernel);
/* In CpuOp's slots. */
Status cpu_conv_pointwise_prepare(CpuDevice *device, Kernel *kernel) VL_CHECKED;
Status cpu_conv_pointwise_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                 uintptr_t workspace, const LaunchContext *context) VL_CHECKED;

#endif
