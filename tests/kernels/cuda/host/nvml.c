/* tests/kernels/cuda/host: a management library for the host machine, built as libnvidia-ml.so.1. It knows
 * one card and two processes, one of them this one, tells no power (as cards do that cannot), and answers to
 * the versioned names alone. VRAMLAB_HOST_NVML=cards=N lists N cards, ",mig=M" cuts the last into M
 * instances, with an empty place before each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *mhz);
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw);

typedef struct Memory {
  unsigned long long total, free, used;
} Memory;
int nvmlSystemGetDriverVersion(char *text, unsigned size);
int nvmlSystemGetNVMLVersion(char *text, unsigned size);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetUUID(void *device, char *text, unsigned size);
int nvmlDeviceGetName(void *device, char *text, unsigned size);
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory);
int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode);
int nvmlDeviceGetMigMode(void *device, unsigned *mode, unsigned *pending);
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count);
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance);

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
int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *mhz) {
  if (device != &card) return INVALID_ARGUMENT;
  *mhz = clock == 1 ? 2100 : 2700;
  return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw) {
  *mw = 250500;
  return device == &card ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  *celsius = sensor == 0 ? 61 : 0;
  return device == &card ? SUCCESS : INVALID_ARGUMENT;
}

/* ---- The list ------------------------------------------------------------------------------------------------------ */

enum { MOST = 8, FIRST_INSTANCE = MOST };
static char listed[2 * MOST]; /* cards, then instances of the last one: an address each */

static unsigned asked_for(const char *what, unsigned otherwise) {
  const char *text = getenv("VRAMLAB_HOST_NVML"), *at = text ? strstr(text, what) : NULL;
  unsigned value = at ? (unsigned)atoi(at + strlen(what)) : otherwise;
  return value < MOST ? value : MOST;
}
static unsigned cards(void) { return asked_for("cards=", 1); }
static unsigned instances(void) { return asked_for("mig=", 0); }
static unsigned place(const void *device) { return (unsigned)((const char *)device - listed); }
static int is_cut(const void *device) { return instances() > 0 && place(device) == cards() - 1; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  snprintf(text, size, "580.65");
  return SUCCESS;
}
int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
  snprintf(text, size, "13.580.65");
  return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = cards();
  return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index >= cards()) return INVALID_ARGUMENT;
  *device = &listed[index];
  return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
  unsigned at = place(device);
  if (at < FIRST_INSTANCE)
    snprintf(text, size, "GPU-aaaa0000-0000-4000-8000-%012u", at + 1);
  else
    snprintf(text, size, "MIG-bbbb0000-0000-5000-8000-%012u", at - FIRST_INSTANCE + 1);
  return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
  snprintf(text, size, "%s", place(device) < FIRST_INSTANCE ? "Host Card" : "Host Card MIG 1g.1gb");
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  memory->total = place(device) < FIRST_INSTANCE ? 8ULL << 30 : 1ULL << 30;
  memory->free = memory->total;
  memory->used = 0;
  return SUCCESS;
}
int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) {
  *mode = place(device) == 0;
  return SUCCESS;
}
int nvmlDeviceGetMigMode(void *device, unsigned *mode, unsigned *pending) {
  if (device == &card) return NOT_SUPPORTED;
  *mode = *pending = (unsigned)is_cut(device);
  return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
  *count = is_cut(device) ? 2 * instances() : 0;
  return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance) {
  if (!is_cut(device)) return INVALID_ARGUMENT;
  if (index % 2 == 0) return NOT_FOUND;
  *instance = &listed[FIRST_INSTANCE + index / 2];
  return SUCCESS;
}
