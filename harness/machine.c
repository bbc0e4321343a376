#include "harness/machine.h"
#include "harness/control_group.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory and processor ------------------------------------------------------------------------------------ */

/* The value of "name: value" in a file of such lines; false when it is not there. */
static bool read_entry(const char *path, const char *name, char *value, size_t size) {
  FILE *file = fopen(path, "r");
  char line[512];
  bool found = false;
  while (file && !found && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (!colon) continue;
    char *end = colon;
    while (end > line && (end[-1] == ' ' || end[-1] == '\t'))
      end--;
    if ((size_t)(end - line) != strlen(name) || strncmp(line, name, strlen(name)) != 0) continue;
    colon++;
    colon += strspn(colon, " \t");
    colon[strcspn(colon, "\n")] = '\0';
    snprintf(value, size, "%s", colon);
    found = true;
  }
  if (file) fclose(file);
  return found;
}

static int64_t memory_entry(const char *name) {
  char value[64];
  if (!read_entry("/proc/meminfo", name, value, sizeof value)) return -1;
  return strtoll(value, NULL, 10) * 1024;
}

int64_t vl_machine_available_bytes(void) {
  ControlGroup group;
  int64_t available = memory_entry("MemAvailable");
  vl_control_group_read("", &group);
  if (group.memory_free_bytes < 0) return available;
  return available < 0 || group.memory_free_bytes < available ? group.memory_free_bytes : available;
}

int64_t vl_machine_total_bytes(void) {
  ControlGroup group;
  int64_t total = memory_entry("MemTotal");
  vl_control_group_read("", &group);
  return group.memory_limit_bytes >= 0 && (total < 0 || group.memory_limit_bytes < total)
             ? group.memory_limit_bytes
             : total;
}

void vl_machine_cpu_model(char *text, size_t size) {
  if (!read_entry("/proc/cpuinfo", "model name", text, size)) snprintf(text, size, "unknown");
}

/* ---- GPU ------------------------------------------------------------------------------------------------------- */

/* ISO C knows no cast from object to function. */
static bool find(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

static void ask_driver(void *library, GpuFacts *facts) {
  int (*init)(unsigned), (*version)(int *), (*count)(int *), (*get)(int *, int), (*name)(char *, int, int);
  int (*memory)(size_t *, int);
  int device;
  size_t bytes;
  facts->result = -1;
  if (!find(library, "cuInit", &init)) return;
  facts->result = init(0);
  if (find(library, "cuDriverGetVersion", &version)) version(&facts->cuda_version);
  if (facts->result != 0 || !find(library, "cuDeviceGetCount", &count) || count(&facts->count) != 0) return;
  if (facts->count == 0 || !find(library, "cuDeviceGet", &get) || get(&device, 0) != 0) return;
  if (find(library, "cuDeviceGetName", &name)) name(facts->name, (int)sizeof facts->name, device);
  if (find(library, "cuDeviceTotalMem_v2", &memory) && memory(&bytes, device) == 0)
    facts->memory_bytes = (int64_t)bytes;
}

static void ask_management(GpuFacts *facts) {
  int (*init)(void), (*shutdown)(void), (*version)(char *, unsigned);
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  if (find(library, "nvmlInit_v2", &init) && init() == 0) {
    if (find(library, "nvmlSystemGetDriverVersion", &version))
      version(facts->driver_version, (unsigned)sizeof facts->driver_version);
    if (find(library, "nvmlShutdown", &shutdown)) shutdown();
  }
  dlclose(library);
}

void vl_machine_gpu(GpuFacts *facts) {
  *facts = (GpuFacts){.memory_bytes = -1};
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  facts->driver_library = true;
  ask_driver(library, facts);
  ask_management(facts);
  dlclose(library);
}

bool vl_machine_has_gpu(void) {
  GpuFacts facts;
  vl_machine_gpu(&facts);
  return facts.count > 0;
}
