/* tests/kernels/cuda/host: a management library for the host machine, built as libnvidia-ml.so.1. It knows
 * one card and two processes, one of them this one, tells no power (as cards do that cannot), and answers to
 * the versioned names alone. */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
} Memory2;
typedef struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
} Process;

enum {
  SUCCESS = 0,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  VERSION_MISMATCH = 25
};

static int card;
static int users;

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device);
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes);
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz);
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons);
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);

int nvmlInit_v2(void) {
  users++;
  return SUCCESS;
}
int nvmlShutdown(void) { return users-- > 0 ? SUCCESS : 1; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
  *device = &card;
  return strcmp(id, "0000:01:00.0") == 0 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory) {
  if (device != &card) return INVALID_ARGUMENT;
  if (memory->version != (unsigned)(sizeof *memory | 2U << 24)) return VERSION_MISMATCH;
  memory->total = 8ULL << 30;
  memory->reserved = 300ULL << 20;
  memory->used = 1000ULL << 20;
  memory->free = memory->total - memory->reserved - memory->used;
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
  if (device != &card) return INVALID_ARGUMENT;
  unsigned room = *count;
  *count = 2;
  if (room < 2) return INSUFFICIENT_SIZE;
  processes[0] = (Process){.pid = 1, .used_bytes = 600ULL << 20};
  processes[1] = (Process){.pid = (unsigned)getpid(), .used_bytes = 400ULL << 20};
  return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) {
  if (device != &card) return INVALID_ARGUMENT;
  *mhz = clock == 1 ? 1980 : 2619;
  return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
  if (device != &card) return INVALID_ARGUMENT;
  *reasons = 0x1 | 0x40; /* idle is no slowdown; heat is */
  return SUCCESS;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
  (void)mw;
  return device == &card ? NOT_SUPPORTED : INVALID_ARGUMENT;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  *celsius = sensor == 0 ? 61 : 0;
  return device == &card ? SUCCESS : INVALID_ARGUMENT;
}
