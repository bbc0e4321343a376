/* Opens the cuda module the way devices does, for the tests beside this file. */
#ifndef VRAMLAB_TESTS_OPEN_MODULE_H
#define VRAMLAB_TESTS_OPEN_MODULE_H

#include "devices/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* The module's handle, or NULL with dlerror() set. */
static inline void *load_cuda_module(void) {
  char path[4096];
  const char *folder = getenv("VRAMLAB_MODULES");
  snprintf(path, sizeof path, "%s/vramlab_cuda.so", folder == NULL ? "." : folder);
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static inline DeviceOpenFunction find_open(void *module) {
  DeviceOpenFunction open = NULL;
  *(void **)&open =
      dlsym(module, VL_DEVICE_OPEN_SYMBOL); /* POSIX's way from an object to a function pointer */
  return open;
}

#endif
