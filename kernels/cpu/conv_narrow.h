/* kernels/cpu: own convolutions of few channels a group; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_CONV_NARROW_H
#define VRAMLAB_KERNELS_CPU_CONV_NARROW_H

#include "kernels/cpu/cpu.h"

/* Replaces every entry by the layouts these kernels take, where the node (conv or one of its gradients) is
 * one of theirs: conv_narrow.c says which. false, and nothing is changed, where it is not. */
bool cpu_conv_narrow_choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs);
/* Whether a kernel, its layouts chosen, is one of these. */
bool cpu_conv_narrow_applies(CpuDevice *device, const Kernel *kernel);
/* In CpuOp's slots, for all three. */
Status cpu_conv_narrow_prepare(CpuDevice *device, Kernel *kernel) VL_CHECKED;
Status cpu_conv_narrow_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) VL_CHECKED;

#endif
