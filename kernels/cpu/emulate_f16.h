/* kernels/cpu: f16 by way of f32; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_EMULATE_F16_H
#define VRAMLAB_KERNELS_CPU_EMULATE_F16_H

#include "kernels/cpu/cpu.h"

/* Runs a node that has f16 tensors, whatever its op. */
extern const CpuOp cpu_op_emulate_f16;
/* Whether a node has an f16 tensor. */
bool cpu_needs_f16(const Node *node);
/* Exact, and rounded to nearest even; on the calling thread. */
void cpu_f32_from_f16(float *to, const uint16_t *from, int64_t count);
void cpu_f16_from_f32(uint16_t *to, const float *from, int64_t count);

#endif
