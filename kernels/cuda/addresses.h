/* kernels/cuda, inside: ranges of device addresses whose granules are given memory one by one, by the
 * driver's virtual memory management. */
#ifndef VRAMLAB_KERNELS_CUDA_ADDRESSES_H
#define VRAMLAB_KERNELS_CUDA_ADDRESSES_H

#include "base/base.h"

typedef struct CudaAddresses CudaAddresses;
/* NULL where the driver or the card has none. The card must have been opened. */
CudaAddresses *cuda_addresses_open(void);
/* Gives every range back. */
void cuda_addresses_close(CudaAddresses **addresses);
Status cuda_addresses_reserve(CudaAddresses *addresses, int64_t bytes, int64_t granule_bytes,
                              uintptr_t *address) VL_CHECKED;
void cuda_addresses_release(CudaAddresses *addresses, uintptr_t address);
/* Whole granules of a range. */
Status cuda_addresses_commit(CudaAddresses *addresses, uintptr_t address, int64_t bytes) VL_CHECKED;
void cuda_addresses_decommit(CudaAddresses *addresses, uintptr_t address, int64_t bytes);

#endif
