/* Status: how a call ended, with the numbers that decide it. */
#include "base/base.h"

#include <stdio.h>

Status vl_ok(void) {
  /* Not an initializer: that would clear the whole message on every successful call. */
  Status status;
  status.code = VL_OK;
  status.message[0] = '\0';
  return status;
}

Status vl_error(StatusCode code, const char *format, ...) {
  Status status = {.code = code};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(status.message, sizeof status.message, format, arguments);
  va_end(arguments);
  return status;
}

const char *vl_status_name(StatusCode code) {
  switch (code) {
  case VL_OK: return "ok";
  case VL_INVALID: return "invalid";
  case VL_OUT_OF_MEMORY: return "out-of-memory";
  case VL_UNSUPPORTED: return "unsupported";
  case VL_ENVIRONMENT: return "environment";
  case VL_DIVERGED: return "diverged";
  case VL_INTERRUPTED: return "interrupted";
  case VL_INTERNAL: return "internal";
  }
  return "unknown";
}

int vl_status_exit_code(StatusCode code) {
  switch (code) {
  case VL_OK: return 0;
  case VL_INVALID: return 2;
  case VL_ENVIRONMENT: return 3;
  case VL_INTERRUPTED: return 4;
  case VL_OUT_OF_MEMORY:
  case VL_UNSUPPORTED:
  case VL_DIVERGED:
  case VL_INTERNAL: return 1;
  }
  return 1;
}
