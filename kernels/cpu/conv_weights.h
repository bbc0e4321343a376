/* kernels/cpu: own weight gradient of convolutions; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_WEIGHTS_H
#define VRAMLAB_KERNELS_CPU_CONV_WEIGHTS_H

#include "kernels/cpu/cpu.h"

/* Whether a conv_backward_weights kernel, its layouts chosen, is one of these: f32 or bf16 in channel blocks
 * of 16, f32 gradient in blocks of 16 by 16, no groups, and a processor with AVX-512 (for bf16 with its dot
 * product, but no matrix tiles, with which the library is faster) that the library was not told to hide. */
bool cpu_conv_weights_applies(CpuDevice *device, const Kernel *kernel);
/* In CpuOp's slots. */
Status cpu_conv_weights_prepare(CpuDevice *device, Kernel *kernel) VL_CHECKED;
Status cpu_conv_weights_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) VL_CHECKED;

#endif
