/* Files that come with the program: installed beside it, or in the tree it was built from. */
#include "harness/harness.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The directory the program lies in; "" when the system does not say. */
static void program_directory(char *path, size_t size) {
  ssize_t length = readlink("/proc/self/exe", path, size - 1);
  path[length > 0 ? length : 0] = '\0';
  char *slash = strrchr(path, '/');
  if (slash) *slash = '\0';
}

Status vl_shared_path(const char *relative, char *path, size_t size) {
  char program[PATH_MAX], installed[2 * PATH_MAX], source[2 * PATH_MAX];
  program_directory(program, sizeof program);
  snprintf(installed, sizeof installed, "%s/../share/vramlab/%s", program, relative);
  snprintf(source, sizeof source, "%s/%s", VRAMLAB_SOURCE_DIR, relative);
  const char *places[] = {installed, source};
  for (int i = 0; i < 2; i++) {
    if (access(places[i], R_OK) != 0) continue;
    if (strlen(places[i]) >= size) return vl_error(VL_ENVIRONMENT, "%s: path too long", places[i]);
    snprintf(path, size, "%s", places[i]);
    return vl_ok();
  }
  return vl_error(VL_ENVIRONMENT, "%s is neither in %s nor in %s", relative, installed, source);
}
