/* What this machine offers. */
#ifndef VRAMLAB_HARNESS_MACHINE_H
#define VRAMLAB_HARNESS_MACHINE_H

#include "base/base.h"

/* What a new process could take without swapping: MemAvailable, or less where a control group says so. -1:
 * the system does not tell. */
int64_t vl_machine_available_bytes(void);
/* MemTotal, or the control group's limit. -1: the system does not tell. */
int64_t vl_machine_total_bytes(void);
/* Model of the processor; "unknown" when the system does not say. */
void vl_machine_cpu_model(char *text, size_t size);

/* The NVIDIA driver, asked without making a context. */
typedef struct GpuFacts {
  bool driver_library;  /* libcuda.so.1 is there */
  int32_t result;       /* of cuInit: 0, 100 no device, 803 driver and library differ, ... */
  int32_t cuda_version; /* the driver's: 13000; 0 unknown */
  int32_t count;
  char name[128];          /* of the first */
  char driver_version[64]; /* from NVML; "" unknown */
  int64_t memory_bytes;
} GpuFacts;
void vl_machine_gpu(GpuFacts *facts);
bool vl_machine_has_gpu(void);

#endif
