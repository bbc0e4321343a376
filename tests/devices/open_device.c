#include "tests/devices/open_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the comma-separated list in VRAMLAB_REQUIRE has the name. */
static bool is_required(const char *name) {
  const char *list = getenv("VRAMLAB_REQUIRE");
  size_t size = strlen(name);
  for (const char *at = list ? strstr(list, name) : NULL; at; at = strstr(at + 1, name)) {
    bool begins = at == list || at[-1] == ',', ends = at[size] == '\0' || at[size] == ',';
    if (begins && ends) return true;
  }
  return false;
}

int open_device_or_skip(const char *name, const DeviceOptions *options, Device **device) {
  Status status = vl_device_open(name, options, device);
  if (status.code == VL_OK) return 0;
  fprintf(stderr, "%s\n", status.message);
  return status.code == VL_ENVIRONMENT && !is_required(name) ? 77 : 1;
}
