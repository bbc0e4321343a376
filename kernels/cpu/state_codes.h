/* kernels/cpu: optimizer state as 8-bit codes, as graph/ops/README.md defines them; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_STATE_CODES_H
#define VRAMLAB_KERNELS_CPU_STATE_CODES_H

#include <stdbool.h>
#include <stdint.h>

/* Of the signed map or the unsigned one. */
typedef struct StateCodes {
  /* values[i]: the number of [-1, 1] that codes[i] stands for, times scale. */
  void (*read)(const uint8_t *codes, bool is_signed, float scale, int64_t count, float *values);
  /* codes[i]: that of values[i] times factor, which is of [-1, 1]; of NaN some code. On the unsigned map what
   * is above zero has at least code 1. */
  void (*write)(const float *values, bool is_signed, float factor, int64_t count, uint8_t *codes);
} StateCodes;

/* For any machine. */
extern const StateCodes state_codes_portable;
/* The fastest one for this machine: the same bits. */
const StateCodes *state_codes_choose(void);

#endif
