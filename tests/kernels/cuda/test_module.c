/* The cuda module on any machine: it loads without a driver, keeps its copies of shared code to itself, and
 * where no GPU can be used says why, with both versions. */
#include "open_module.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void module_exports_one_symbol(void **state) {
  (void)state;
  void *module = load_cuda_module();
  if (module == NULL) fail_msg("%s", dlerror());
  assert_non_null(dlsym(module, VL_DEVICE_OPEN_SYMBOL));
  assert_null(dlsym(module, "vl_cuda_probe"));
  assert_null(dlsym(module, "vl_error"));
  dlclose(module);
}

static void opening_works_or_says_why_not(void **state) {
  (void)state;
  void *module = load_cuda_module();
  if (module == NULL) fail_msg("%s", dlerror());
  Device *device = NULL;
  Status status = find_open(module)(vl_device_interface(), &(DeviceOptions){0}, &device);
  if (status.code == VL_OK) {
    assert_non_null(device);
    device->interface->close(device);
  } else {
    assert_null(device);
    assert_int_equal(status.code, VL_ENVIRONMENT);
    assert_non_null(strstr(status.message, "gave code"));
    assert_non_null(strstr(status.message, "of the driver: "));
    assert_non_null(strstr(status.message, "of the runtime: "));
    assert_true(strlen(status.message) < VL_STATUS_MESSAGE_BYTES - 1); /* nothing was cut off */
  }
  dlclose(module);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(module_exports_one_symbol),
      cmocka_unit_test(opening_works_or_says_why_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
