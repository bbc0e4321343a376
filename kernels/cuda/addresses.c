/* Device addresses and the memory behind them, apart: cuMemAddressReserve, and for each granule cuMemCreate
 * and cuMemMap. */
#include "addresses.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>
#include <stdlib.h>
#include <string.h>

typedef struct Driver {
  PFN_cuMemAddressReserve_v10020 reserve;
  PFN_cuMemAddressFree_v10020 free;
  PFN_cuMemCreate_v10020 create;
  PFN_cuMemRelease_v10020 release;
  PFN_cuMemMap_v10020 map;
  PFN_cuMemUnmap_v10020 unmap;
  PFN_cuMemSetAccess_v10020 set_access;
  PFN_cuCtxGetDevice_v2000 device;
  PFN_cuDeviceGetAttribute_v2000 attribute;
} Driver;

typedef struct Range {
  struct Range *next;
  uintptr_t address;
  int64_t bytes, granule_bytes;
  CUmemGenericAllocationHandle *handles; /* by granule; 0: no memory */
} Range;

struct CudaAddresses {
  Driver driver;
  CUdevice device;
  Range *ranges;
};

/* ---- The driver ------------------------------------------------------------------------------------------- */

/* Through the runtime, which has the driver open: nothing here links to it. */
static bool load_driver(Driver *driver) {
  const struct {
    const char *name;
    unsigned version; /* of CUDA, in which the function has the type used here */
    void *function;
  } symbols[] = {
      {"cuMemAddressReserve", 10020, &driver->reserve},
      {"cuMemAddressFree", 10020, &driver->free},
      {"cuMemCreate", 10020, &driver->create},
      {"cuMemRelease", 10020, &driver->release},
      {"cuMemMap", 10020, &driver->map},
      {"cuMemUnmap", 10020, &driver->unmap},
      {"cuMemSetAccess", 10020, &driver->set_access},
      {"cuCtxGetDevice", 2000, &driver->device},
      {"cuDeviceGetAttribute", 2000, &driver->attribute},
  };
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *symbol = NULL;
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion(symbols[i].name, &symbol, symbols[i].version,
                                                         cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    memcpy(symbols[i].function, &symbol, sizeof symbol); /* ISO C knows no cast from object to function */
  }
  return true;
}

CudaAddresses *cuda_addresses_open(void) {
  CudaAddresses *addresses = vl_allocate(sizeof *addresses);
  int supported = 0;
  bool usable =
      load_driver(&addresses->driver) && addresses->driver.device(&addresses->device) == CUDA_SUCCESS &&
      addresses->driver.attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                  addresses->device) == CUDA_SUCCESS &&
      supported != 0;
  if (usable) return addresses;
  free(addresses);
  return NULL;
}

static Status driver_error(const char *call, CUresult result) {
  StatusCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? VL_OUT_OF_MEMORY : VL_INTERNAL;
  return vl_error(code, "cuda: %s gave code %d", call, (int)result);
}

/* ---- Ranges ----------------------------------------------------------------------------------------------- */

static Range *range_of(const CudaAddresses *addresses, uintptr_t address) {
  Range *range = addresses->ranges;
  while (range && (address < range->address || address >= range->address + (uintptr_t)range->bytes))
    range = range->next;
  return range;
}

Status cuda_addresses_reserve(CudaAddresses *addresses, int64_t bytes, int64_t granule_bytes,
                              uintptr_t *address) {
  CUdeviceptr pointer = 0;
  CUresult result = addresses->driver.reserve(&pointer, (size_t)bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return driver_error("cuMemAddressReserve", result);
  Range *range = vl_allocate(sizeof *range);
  *range = (Range){.next = addresses->ranges,
                   .address = (uintptr_t)pointer,
                   .bytes = bytes,
                   .granule_bytes = granule_bytes};
  range->handles = vl_allocate((size_t)(bytes / granule_bytes) * sizeof *range->handles);
  addresses->ranges = range;
  *address = range->address;
  return vl_ok();
}

static void take_memory(CudaAddresses *addresses, Range *range, int64_t granule) {
  if (range->handles[granule] == 0) return;
  uintptr_t at = range->address + (uintptr_t)(granule * range->granule_bytes);
  (void)addresses->driver.unmap(at, (size_t)range->granule_bytes);
  (void)addresses->driver.release(range->handles[granule]);
  range->handles[granule] = 0;
}

static Status give_memory(CudaAddresses *addresses, Range *range, int64_t granule) {
  const CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = addresses->device}};
  CUmemGenericAllocationHandle handle = 0;
  uintptr_t at = range->address + (uintptr_t)(granule * range->granule_bytes);
  size_t bytes = (size_t)range->granule_bytes;
  CUresult result = addresses->driver.create(&handle, bytes, &properties, 0);
  if (result != CUDA_SUCCESS) return driver_error("cuMemCreate", result);
  result = addresses->driver.map(at, bytes, 0, handle, 0);
  if (result != CUDA_SUCCESS) {
    (void)addresses->driver.release(handle);
    return driver_error("cuMemMap", result);
  }
  range->handles[granule] = handle;
  return vl_ok();
}

Status cuda_addresses_commit(CudaAddresses *addresses, uintptr_t address, int64_t bytes) {
  Range *range = range_of(addresses, address);
  int64_t first = (int64_t)(address - range->address) / range->granule_bytes;
  int64_t count = bytes / range->granule_bytes;
  Status status = vl_ok();
  for (int64_t i = 0; i < count && status.code == VL_OK; i++)
    status = give_memory(addresses, range, first + i);
  if (status.code == VL_OK) {
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = addresses->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = addresses->driver.set_access(address, (size_t)bytes, &access, 1);
    if (result == CUDA_SUCCESS) return vl_ok();
    status = driver_error("cuMemSetAccess", result);
  }
  cuda_addresses_decommit(addresses, address, bytes);
  return status;
}

void cuda_addresses_decommit(CudaAddresses *addresses, uintptr_t address, int64_t bytes) {
  Range *range = range_of(addresses, address);
  int64_t first = (int64_t)(address - range->address) / range->granule_bytes;
  for (int64_t i = 0; i < bytes / range->granule_bytes; i++)
    take_memory(addresses, range, first + i);
}

void cuda_addresses_release(CudaAddresses *addresses, uintptr_t address) {
  Range **link = &addresses->ranges;
  while (*link && (*link)->address != address)
    link = &(*link)->next;
  Range *range = *link;
  if (!range) return;
  cuda_addresses_decommit(addresses, range->address, range->bytes);
  *link = range->next;
  (void)addresses->driver.free(range->address, (size_t)range->bytes);
  free(range->handles);
  free(range);
}

void cuda_addresses_close(CudaAddresses **addresses) {
  CudaAddresses *it = *addresses;
  if (!it) return;
  while (it->ranges)
    cuda_addresses_release(it, it->ranges->address);
  free(it);
  *addresses = NULL;
}
