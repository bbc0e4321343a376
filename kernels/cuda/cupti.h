/* kernels/cuda, inside: what CUPTI traces of this process, beside what the backend knows itself; opened at
 * run time and only when asked, since it slows every launch and takes memory of the card. */
#ifndef VRAMLAB_KERNELS_CUDA_CUPTI_H
#define VRAMLAB_KERNELS_CUDA_CUPTI_H

#include "devices/device.h"

/* Traces from now on; one at a time in a process. VL_ENVIRONMENT where the library is missing or refuses. */
Status cuda_cupti_open(void) VL_CHECKED;
/* What was traced so far, own_bytes excepted, when the card has ended what was launched. */
Status cuda_cupti_read(DeviceCrossCheck *check) VL_CHECKED;
/* Ends what open began. */
void cuda_cupti_close(void);

#endif
