#include "harness/harness.h"

int vl_command_fail(Status status) {
  fprintf(stderr, "vramlab: %s\n", status.message);
  return vl_status_exit_code(status.code);
}
