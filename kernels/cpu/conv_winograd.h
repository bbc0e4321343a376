/* kernels/cpu: own 3x3 and 3x3x3 convolutions in f32 with fewer products; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_WINOGRAD_H
#define VRAMLAB_KERNELS_CPU_CONV_WINOGRAD_H

#include "kernels/cpu/cpu.h"

/* Whether a kernel of conv or of one of its gradients, its layouts chosen, is one of these: f32, a window of
 * 3x3 or 3x3x3 that moves by 1 and keeps the size, no groups, channels in blocks of 16, enough places to pay
 * for transforming the weights, and a processor with AVX-512. */
bool cpu_conv_winograd_applies(CpuDevice *device, const Kernel *kernel);
/* In CpuOp's slots, for all three. */
Status cpu_conv_winograd_prepare(CpuDevice *device, Kernel *kernel) VL_CHECKED;
Status cpu_conv_winograd_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                uintptr_t workspace, const LaunchContext *context) VL_CHECKED;

#endif
