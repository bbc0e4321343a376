/* CUDA_VISIBLE_DEVICES as vramlab reads it (fault cases J1 and J4): order and forms are kept, slips are
 * named, and no entry is ever dropped in silence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "devices/device.h"
#include <stdlib.h>
#include <string.h>

static void accepts(const char *text, int32_t count, const char *const *names) {
  VisibleDevices visible;
  Status status = vl_visible_devices(text, &visible);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  assert_false(visible.all);
  assert_int_equal(visible.count, count);
  for (int32_t i = 0; i < count; i++)
    assert_string_equal(visible.names[i], names[i]);
}

static void keeps_order_and_forms(void **state) {
  (void)state;
  accepts("1,0", 2, (const char *[]){"1", "0"});
  accepts("GPU-aaaa0000", 1, (const char *[]){"GPU-aaaa0000"});
  accepts("MIG-11112222-3333-4444-5555-666677778888", 1,
          (const char *[]){"MIG-11112222-3333-4444-5555-666677778888"});
  accepts("MIG-GPU-aaaa0000-0000-4000-8000-000000000001/1/0", 1,
          (const char *[]){"MIG-GPU-aaaa0000-0000-4000-8000-000000000001/1/0"});
  accepts(" 2 , GPU-bb ", 2, (const char *[]){"2", "GPU-bb"});
}

static void empty_is_none_and_unset_is_all(void **state) {
  (void)state;
  accepts("", 0, NULL);
  accepts("0,-1,1", 1, (const char *[]){"0"});
  accepts("-1", 0, NULL);
  VisibleDevices visible;
  assert_int_equal(vl_visible_devices(NULL, &visible).code, VL_OK);
  assert_true(visible.all);
}

static void refuses(const char *text, const char *entry) {
  VisibleDevices visible;
  Status status = vl_visible_devices(text, &visible);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "CUDA_VISIBLE_DEVICES="));
  assert_non_null(strstr(status.message, entry));
}

static void names_what_is_no_device(void **state) {
  (void)state;
  refuses("0,0", "0 twice");
  refuses("1gpu", "1gpu");
  refuses("0,,1", "\"\"");
  refuses("0,", "\"\"");
  refuses("-2", "-2");
  refuses("GPU-", "GPU-");
  refuses("GPU-xyz", "GPU-xyz");
  refuses("MIG-GPU-aaaa/1", "MIG-GPU-aaaa/1");
  refuses("123456789012345678901234567890", "1234567890");
  refuses("NoDevFiles", "NoDevFiles");
}

/* Hidden GPUs are said before a module is looked for. */
static void hidden_cards_are_an_environment_that_says_so(void **state) {
  (void)state;
  Device *device = NULL;
  assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
  Status status = vl_device_open("cuda", NULL, &device);
  assert_int_equal(status.code, VL_ENVIRONMENT);
  assert_non_null(strstr(status.message, "CUDA_VISIBLE_DEVICES=\"\" hides every GPU"));
  assert_null(device);
  assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,0", 1), 0);
  assert_int_equal(vl_device_open("cuda", NULL, &device).code, VL_INVALID);
  assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
}

/* What CTest gives a test becomes what CUDA shows it: UUIDs by their ids, numbers among the visible ones,
 * once. */
static void given(const char *visible, const char *resources) {
  assert_int_equal(visible ? setenv("CUDA_VISIBLE_DEVICES", visible, 1) : unsetenv("CUDA_VISIBLE_DEVICES"),
                   0);
  assert_int_equal(setenv("CTEST_RESOURCE_GROUP_COUNT", "1", 1), 0);
  assert_int_equal(setenv("CTEST_RESOURCE_GROUP_0_GPUS", resources, 1), 0);
}

static void becomes(const char *visible, const char *resources, const char *names) {
  given(visible, resources);
  for (int twice = 0; twice < 2; twice++) {
    Status status = vl_visible_from_ctest();
    if (status.code != VL_OK) fail_msg("%s", status.message);
    assert_string_equal(getenv("CUDA_VISIBLE_DEVICES"), names);
  }
}

static void ctest_chooses_the_card(void **state) {
  (void)state;
  becomes(NULL, "id:gpu_aaaa0000_0000_4000_8000_000000000001,slots:1",
          "GPU-aaaa0000-0000-4000-8000-000000000001");
  becomes("0", "id:mig_11112222_3333_4444_5555_666677778888,slots:1",
          "MIG-11112222-3333-4444-5555-666677778888");
  becomes(NULL, "id:1,slots:1;id:0,slots:1", "1,0");
  becomes("2,3", "id:1,slots:1", "3");
  given("2,3", "id:2,slots:1");
  assert_non_null(strstr(vl_visible_from_ctest().message, "card 2 is not visible"));
  given(NULL, "id:big_card,slots:1");
  Status status = vl_visible_from_ctest();
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "CTEST_RESOURCE_GROUP_0_GPUS"));
  assert_non_null(strstr(status.message, "big_card"));
  given(NULL, "slots:1");
  assert_int_equal(vl_visible_from_ctest().code, VL_INVALID);
  given("", "id:0,slots:1");
  assert_int_equal(vl_visible_from_ctest().code, VL_INVALID);
  /* A test that asks for other resources than cards is left alone. */
  assert_int_equal(unsetenv("CTEST_RESOURCE_GROUP_0_GPUS"), 0);
  assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "7", 1), 0);
  assert_int_equal(vl_visible_from_ctest().code, VL_OK);
  assert_string_equal(getenv("CUDA_VISIBLE_DEVICES"), "7");
  assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
  assert_int_equal(unsetenv("CTEST_RESOURCE_GROUP_COUNT"), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(keeps_order_and_forms),
      cmocka_unit_test(empty_is_none_and_unset_is_all),
      cmocka_unit_test(names_what_is_no_device),
      cmocka_unit_test(ctest_chooses_the_card),
      cmocka_unit_test(hidden_cards_are_an_environment_that_says_so),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
