/* kernels/cuda, inside: what NVIDIA's management library says of the card and of this process; opened at run
 * time, since a machine may have a card and not the library. */
#ifndef VRAMLAB_KERNELS_CUDA_NVML_H
#define VRAMLAB_KERNELS_CUDA_NVML_H

#include "devices/device.h"

typedef struct CudaNvml CudaNvml;
/* The card at a PCI bus address as cudaDeviceGetPCIBusId writes it: its numbers there differ from CUDA's
 * under CUDA_VISIBLE_DEVICES. NULL where the library or the card cannot be found. */
CudaNvml *cuda_nvml_open(const char *pci_bus_id);
void cuda_nvml_close(CudaNvml **nvml);
/* The driver's version, "580.65.06"; "" where it cannot be told. */
void cuda_nvml_driver(const CudaNvml *nvml, char *text, size_t size);
/* Every value it cannot tell is -1. NULL: none can be told. */
void cuda_nvml_read(const CudaNvml *nvml, DeviceReadings *readings);

#endif
