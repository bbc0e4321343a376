/* tests/reference: a device that computes every op in plain double-precision C, to compare kernels with.
 *
 * Every storage, whatever its dtype, is an array of double in dense row-major order; nothing is rounded to
 * the dtype between nodes, and a cast copies. Whole numbers are exact (up to 2^53). Fresh memory is NaN, so
 * that a value nobody wrote is seen. Loops are simple; OpenMP splits them over outputs, so results do not
 * depend on the number of threads. */
#ifndef VRAMLAB_TESTS_REFERENCE_H
#define VRAMLAB_TESTS_REFERENCE_H

#include "devices/device.h"

/* A new reference device; close it with vl_device_close. */
Status vl_reference_device_create(Device **device) VL_CHECKED;
/* Computes one node on plain arrays: inputs[i] and outputs[i] hold the tensors' elements, NULL where the
 * tensor is absent. context: NULL is seed 0, step 0. VL_UNSUPPORTED: no such op here. */
Status vl_reference_compute(const Node *node, double *const *inputs, double *const *outputs,
                            const LaunchContext *context) VL_CHECKED;

/* The 8-bit code of x of [0, 1] on adamw_8bit's signed or unsigned map; the numbers of [*low, *high) have it.
 */
int32_t vl_reference_code(double x, bool is_signed, double *low, double *high);
/* What a code stands for; on the signed map those above 128 are negative. */
double vl_reference_code_value(int32_t code, bool is_signed);

#endif
