/* Opening devices: backends are modules loaded on first use, so that the program starts at once and runs
 * where a library is missing. */
#include "devices/device.h"
#include "devices/modules.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a backend stands on, for the message when it does not load. */
static const struct {
  const char *name;
  const char *needs;
} backends[] = {
    {"cpu", "oneDNN 3.x and OpenMP (scripts/setup fetches them)"},
    {"cuda", "an NVIDIA driver and the CUDA runtime with cuDNN 9 (see vramlab doctor)"},
};

Status vl_module_directory(char *text, size_t size) {
  const char *chosen = getenv("VRAMLAB_MODULES");
  if (chosen && *chosen) {
    if ((size_t)snprintf(text, size, "%s", chosen) < size) return vl_ok();
    return vl_error(VL_INVALID, "VRAMLAB_MODULES is longer than %zu characters", size - 1);
  }
  ssize_t length = readlink("/proc/self/exe", text, size - 1);
  if (length <= 0) return vl_error(VL_ENVIRONMENT, "/proc/self/exe cannot be read: %s", strerror(errno));
  text[length] = '\0';
  char *slash = strrchr(text, '/');
  if (!slash || (size_t)length == size - 1)
    return vl_error(VL_ENVIRONMENT, "the program's path is longer than %zu characters", size - 2);
  *slash = '\0';
  return vl_ok();
}

static Status open_module(const char *name, const char *needs, const DeviceOptions *options,
                          Device **device) {
  char directory[VL_MODULE_PATH_BYTES], path[VL_MODULE_PATH_BYTES + 80];
  VL_TRY(vl_module_directory(directory, sizeof directory));
  snprintf(path, sizeof path, "%s/vramlab_%s.so", directory, name);
  /* Never closed: libraries inside start threads that outlive any device. */
  void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!module)
    return vl_error(VL_ENVIRONMENT,
                    "device %s: %s; it needs %s; VRAMLAB_MODULES names another folder of modules", name,
                    dlerror(), needs);
  void *symbol = dlsym(module, VL_DEVICE_OPEN_SYMBOL);
  if (!symbol)
    return vl_error(VL_ENVIRONMENT, "device %s: %s has no %s: not a module of this program", name, path,
                    VL_DEVICE_OPEN_SYMBOL);
  DeviceOpenFunction open_function;
  memcpy(&open_function, &symbol, sizeof open_function); /* ISO C knows no cast from object to function */
  return open_function(vl_device_interface(), options, device);
}

/* Said before anything is loaded, where CUDA would say "no device". */
static Status check_visible(void) {
  VisibleDevices visible;
  VL_TRY(vl_visible_from_ctest());
  VL_TRY(vl_visible_devices(getenv("CUDA_VISIBLE_DEVICES"), &visible));
  if (visible.all || visible.count > 0) return vl_ok();
  return vl_error(VL_ENVIRONMENT, "cuda: CUDA_VISIBLE_DEVICES=\"%s\" hides every GPU; unset it, or name some",
                  getenv("CUDA_VISIBLE_DEVICES"));
}

static Status open_backend(const char *name, const DeviceOptions *options, Device **device) {
  for (size_t i = 0; i < sizeof backends / sizeof *backends; ++i)
    if (strcmp(backends[i].name, name) == 0) return open_module(name, backends[i].needs, options, device);
  return vl_error(VL_INVALID, "unknown device \"%s\"; accepted: cpu, cuda, plan", name);
}

static Status open_plan(const DeviceOptions *options, Device **device) {
  Device *inner = NULL;
  char name[sizeof((DeviceDescription *)0)->name];
  int64_t capacity_bytes = 0;
  if (options->profile) {
    DeviceProfile profile;
    VL_TRY(vl_profile_load(options->profile_directory, options->profile, &profile));
    VL_TRY(vl_profile_device_create(&profile, options->low_end, &inner));
    /* Predictions err towards needing more: the upper end of what context and handles take is gone. */
    if (!options->unlimited)
      capacity_bytes =
          profile.memory_bytes - (options->low_end ? profile.context_low_bytes : profile.context_high_bytes);
    snprintf(name, sizeof name, "plan:%.58s", profile.name);
  } else {
    VL_TRY(open_backend("cpu", options, &inner));
    snprintf(name, sizeof name, "plan:cpu");
  }
  Status status = vl_plan_device_create(inner, name, capacity_bytes, device);
  if (status.code != VL_OK) vl_device_close(&inner);
  return status;
}

Status vl_device_open(const char *name, const DeviceOptions *options, Device **device) {
  const DeviceOptions defaults = {0};
  *device = NULL;
  if (!options) options = &defaults;
  if (strcmp(name, "plan") == 0) return open_plan(options, device);
  if (options->profile)
    return vl_error(VL_INVALID, "device %s takes no profile (%s); only plan does", name, options->profile);
  if (strcmp(name, "cuda") == 0) VL_TRY(check_visible());
  return open_backend(name, options, device);
}

void vl_device_close(Device **device) {
  if (*device) (*device)->interface->close(*device);
  *device = NULL;
}
