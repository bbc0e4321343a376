/* NVML by its versioned names. The toolkit has no nvml.h: the few types used are declared here as the NVML
 * API Reference Manual has them. */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct nvmlDevice_st *NvmlDevice;
typedef int NvmlReturn; /* 0: success */

enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_TEMPERATURE_GPU = 0, NVML_INSUFFICIENT_SIZE = 7 };

typedef struct NvmlMemory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
} NvmlMemory2;

typedef struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes; /* all ones: not available */
  unsigned gpu_instance, compute_instance;
} NvmlProcess;

typedef struct NvmlFunctions {
  NvmlReturn (*init)(void);
  NvmlReturn (*shut_down)(void);
  NvmlReturn (*handle)(const char *, NvmlDevice *);
  NvmlReturn (*memory)(NvmlDevice, NvmlMemory2 *);
  NvmlReturn (*processes)(NvmlDevice, unsigned *, NvmlProcess *);
  NvmlReturn (*clock)(NvmlDevice, int, unsigned *);
  NvmlReturn (*throttle)(NvmlDevice, unsigned long long *);
  NvmlReturn (*power)(NvmlDevice, unsigned *);
  NvmlReturn (*energy)(NvmlDevice, unsigned long long *);
  NvmlReturn (*temperature)(NvmlDevice, int, unsigned *);
  NvmlReturn (*mig_mode)(NvmlDevice, unsigned *, unsigned *);
  NvmlReturn (*highest_clock)(NvmlDevice, int, unsigned *);
  NvmlReturn (*power_limit)(NvmlDevice, unsigned *);
  NvmlReturn (*driver_version)(char *, unsigned);
} NvmlFunctions;

struct CudaNvml {
  void *library;
  NvmlFunctions call; /* NULL where the library has none of that name */
  NvmlDevice device;
};

/* Bits of the clocks' event reasons that slow a card down: software power cap, hardware slowdown, software
 * and hardware thermal slowdown, power brake. */
static const unsigned long long slows_down = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

static void load(CudaNvml *nvml) {
  NvmlFunctions *call = &nvml->call;
  const struct {
    const char *name;
    void *function;
  } symbols[] = {
      {"nvmlInit_v2", &call->init},
      {"nvmlShutdown", &call->shut_down},
      {"nvmlDeviceGetHandleByPciBusId_v2", &call->handle},
      {"nvmlDeviceGetMemoryInfo_v2", &call->memory},
      {"nvmlDeviceGetComputeRunningProcesses_v3", &call->processes},
      {"nvmlDeviceGetClockInfo", &call->clock},
      {"nvmlDeviceGetCurrentClocksEventReasons", &call->throttle},
      {"nvmlDeviceGetPowerUsage", &call->power},
      {"nvmlDeviceGetTotalEnergyConsumption", &call->energy},
      {"nvmlDeviceGetTemperature", &call->temperature},
      {"nvmlDeviceGetMigMode", &call->mig_mode},
      {"nvmlDeviceGetMaxClockInfo", &call->highest_clock},
      {"nvmlDeviceGetPowerManagementLimit", &call->power_limit},
      {"nvmlSystemGetDriverVersion", &call->driver_version},
  };
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *symbol = dlsym(nvml->library, symbols[i].name);
    memcpy(symbols[i].function, &symbol, sizeof symbol); /* ISO C knows no cast from object to function */
  }
}

CudaNvml *cuda_nvml_open(const char *pci_bus_id) {
  CudaNvml *nvml = vl_allocate(sizeof *nvml);
  nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml->library) load(nvml);
  bool ready = nvml->call.init && nvml->call.shut_down && nvml->call.handle && nvml->call.init() == 0;
  if (ready && nvml->call.handle(pci_bus_id, &nvml->device) == 0) return nvml;
  if (ready) (void)nvml->call.shut_down();
  if (nvml->library) dlclose(nvml->library);
  free(nvml);
  return NULL;
}

void cuda_nvml_close(CudaNvml **nvml) {
  if (!*nvml) return;
  (void)(*nvml)->call.shut_down();
  dlclose((*nvml)->library);
  free(*nvml);
  *nvml = NULL;
}

/* This process's own memory on the card: by its number, which in a container is not the one NVML knows. */
static int64_t process_bytes(const CudaNvml *nvml) {
  unsigned count = 0;
  if (!nvml->call.processes) return -1;
  NvmlReturn result = nvml->call.processes(nvml->device, &count, NULL);
  if (result != NVML_INSUFFICIENT_SIZE || count == 0) return -1;
  count += 16; /* others may start meanwhile */
  NvmlProcess *processes = vl_allocate(count * sizeof *processes);
  int64_t bytes = -1;
  if (nvml->call.processes(nvml->device, &count, processes) == 0)
    for (unsigned i = 0; i < count; i++)
      if (processes[i].pid == (unsigned)getpid() && processes[i].used_bytes != ~0ULL)
        bytes = (int64_t)processes[i].used_bytes;
  free(processes);
  return bytes;
}

void cuda_nvml_driver(const CudaNvml *nvml, char *text, size_t size) {
  bool told = nvml && nvml->call.driver_version && nvml->call.driver_version(text, (unsigned)size) == 0;
  if (!told) text[0] = '\0';
}

void cuda_nvml_read(const CudaNvml *nvml, DeviceReadings *readings) {
  *readings = vl_no_readings();
  if (!nvml) return;
  unsigned value = 0, pending = 0;
  unsigned long long wide = 0;
  NvmlMemory2 memory = {.version = (unsigned)(sizeof memory | 2U << 24)};
  if (nvml->call.memory && nvml->call.memory(nvml->device, &memory) == 0) {
    readings->card_total_bytes = (int64_t)memory.total;
    readings->card_reserved_bytes = (int64_t)memory.reserved;
    readings->card_used_bytes = (int64_t)memory.used;
  }
  readings->process_bytes = process_bytes(nvml);
  if (nvml->call.clock && nvml->call.clock(nvml->device, NVML_CLOCK_SM, &value) == 0)
    readings->clock_mhz = (int32_t)value;
  if (nvml->call.clock && nvml->call.clock(nvml->device, NVML_CLOCK_MEM, &value) == 0)
    readings->memory_clock_mhz = (int32_t)value;
  if (nvml->call.highest_clock && nvml->call.highest_clock(nvml->device, NVML_CLOCK_SM, &value) == 0)
    readings->clock_max_mhz = (int32_t)value;
  if (nvml->call.power_limit && nvml->call.power_limit(nvml->device, &value) == 0)
    readings->power_limit_mw = (int64_t)value;
  if (nvml->call.throttle && nvml->call.throttle(nvml->device, &wide) == 0)
    readings->throttled = (wide & slows_down) != 0;
  if (nvml->call.power && nvml->call.power(nvml->device, &value) == 0) readings->power_mw = (int64_t)value;
  if (nvml->call.energy && nvml->call.energy(nvml->device, &wide) == 0) readings->energy_mj = (int64_t)wide;
  if (nvml->call.temperature && nvml->call.temperature(nvml->device, NVML_TEMPERATURE_GPU, &value) == 0)
    readings->temperature_c = (int32_t)value;
  if (nvml->call.mig_mode && nvml->call.mig_mode(nvml->device, &value, &pending) == 0)
    readings->mig = value != 0;
}
