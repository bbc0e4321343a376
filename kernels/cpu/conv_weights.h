/* kernels/cpu: own weight gradient of convolutions; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_WEIGHTS_H
#define VRAMLAB_KERNELS_CPU_CONV_WEIGHTS_H

#include "kernels/cpu/cpu.h"

/* Whether the processor has AVX-512, and for bf16 its dot product of pairs but no matrix tiles, with which
 * the library is faster; what the library was told to hide counts as missing. */
bool cpu_conv_has_instructions(bool bf16);

/* Inputs of the node: x, dy, and what x is to be normalised with, if it is: mean, var, gamma and beta. */
enum { CONV_WEIGHTS_MEAN = 2 };

/* Whether a conv_backward_weights node is one of these, in the layouts below. */
bool cpu_conv_weights_takes(const Node *node);
/* Whether a conv_backward_weights kernel, its layouts chosen, is one of these: f32 or bf16 in channel blocks
 * of 16, f32 gradient in blocks of 16 by 16, no groups, and a processor with the instructions. */
bool cpu_conv_weights_applies(CpuDevice *device, const Kernel *kernel);
/* In CpuOp's slots. */
Status cpu_conv_weights_prepare(CpuDevice *device, Kernel *kernel) VL_CHECKED;
Status cpu_conv_weights_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) VL_CHECKED;

#endif
