/* Every f16 number into f32, and f32 numbers of every exponent and every way to round into f16: bit for bit
 * what base's conversions give. usage: test_f16 DEVICE */
#include "devices/device.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Device *device;

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* Casts plain values on the device. */
static void cast(DType from_dtype, DType to_dtype, int64_t count, void *from, void *to) {
  const Backing *backing = device->interface->backing(device);
  Graph *graph = vl_graph_create("cast");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, from_dtype, 1, &count);
  Node *node;
  require_ok(vl_graph_add(graph, "cast", &(OpParams){.dtype = to_dtype}, &x, 1, &node));
  LayoutId inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0};
  x->storage->layout = node->outputs[0]->storage->layout = LAYOUT_PLAIN;
  Kernel *kernel = NULL;
  require_ok(device->interface->prepare(device, node, inputs, outputs, &kernel));
  require_ok(device->interface->build(device, kernel));
  int64_t bytes[] = {vl_tensor_bytes(x), vl_tensor_bytes(node->outputs[0]),
                     device->interface->workspace_bytes(kernel) + 64};
  uintptr_t at[3];
  for (int i = 0; i < 3; i++)
    require_ok(backing->reserve(backing->context, bytes[i], &at[i]));
  LaunchContext context = {0};
  require_ok(device->interface->upload(device, x->storage, from, at[0]));
  require_ok(device->interface->launch(device, kernel, &at[0], &at[1], at[2], &context));
  require_ok(device->interface->synchronize(device));
  require_ok(device->interface->download(device, node->outputs[0]->storage, at[1], to));
  for (int i = 0; i < 3; i++)
    backing->release(backing->context, at[i], bytes[i]);
  device->interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
}

static void every_f16_becomes_its_f32(void **state) {
  (void)state;
  enum { COUNT = 65536 };
  uint16_t *from = vl_allocate(COUNT * sizeof *from);
  float *to = vl_allocate(COUNT * sizeof *to);
  for (int32_t i = 0; i < COUNT; i++)
    from[i] = (uint16_t)i;
  cast(DTYPE_F16, DTYPE_F32, COUNT, from, to);
  for (int32_t i = 0; i < COUNT; i++) {
    float expected = vl_f32_from_f16(from[i]);
    if (memcmp(&expected, &to[i], sizeof expected) != 0)
      fail_msg("%04x: %a, not %a", (unsigned)from[i], (double)to[i], (double)expected);
  }
  free(from);
  free(to);
}

/* Sign, exponent and the upper ten bits of the mantissa, with what is below a half, a half, above it,
 * nothing, or all of the rest: ties both ways, subnormals, overflow, infinities and NaN. */
static void f32_is_rounded_to_f16_as_by_base(void **state) {
  (void)state;
  static const uint32_t rests[] = {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x1FFF};
  enum { UPPER = 1 << 19, RESTS = 6, COUNT = UPPER * RESTS };
  float *from = vl_allocate(COUNT * sizeof *from);
  uint16_t *to = vl_allocate(COUNT * sizeof *to);
  for (uint32_t i = 0; i < COUNT; i++) {
    uint32_t bits = i / RESTS << 13 | rests[i % RESTS];
    memcpy(&from[i], &bits, sizeof bits);
  }
  cast(DTYPE_F32, DTYPE_F16, COUNT, from, to);
  for (uint32_t i = 0; i < COUNT; i++)
    if (to[i] != vl_f16_from_f32(from[i]))
      fail_msg("%a: %04x, not %04x", (double)from[i], (unsigned)to[i], (unsigned)vl_f16_from_f32(from[i]));
  free(from);
  free(to);
}

/* What becomes zero is counted; what was zero, or becomes a subnormal, is not. */
static void flushed_values_are_counted(void **state) {
  (void)state;
  const Backing *backing = device->interface->backing(device);
  float from[] = {0.0F, -0.0F, 1e-8F, -1e-8F, 6e-8F, 1.0F, 2.98e-8F, 2.99e-8F};
  int64_t count = sizeof from / sizeof *from;
  Graph *graph = vl_graph_create("cast");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, &count);
  Node *node;
  require_ok(vl_graph_add(graph, "cast", &(OpParams){.dtype = DTYPE_F16}, &x, 1, &node));
  LayoutId inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0};
  x->storage->layout = LAYOUT_PLAIN;
  Kernel *kernel = NULL;
  require_ok(device->interface->prepare(device, node, inputs, outputs, &kernel));
  require_ok(device->interface->build(device, kernel));
  uintptr_t at[3];
  for (int i = 0; i < 3; i++)
    require_ok(backing->reserve(backing->context, 4096, &at[i]));
  assert_true(device->interface->workspace_bytes(kernel) <= 4096);
  Rounding rounding = {0};
  LaunchContext context = {.rounding = &rounding};
  require_ok(device->interface->upload(device, x->storage, from, at[0]));
  require_ok(device->interface->launch(device, kernel, &at[0], &at[1], at[2], &context));
  assert_int_equal(rounding.values, count);
  assert_int_equal(rounding.flushed, 3); /* 2.98e-8 is below 2^-25, half the smallest; 2.99e-8 above */
  for (int i = 0; i < 3; i++)
    backing->release(backing->context, at[i], 4096);
  device->interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_f16_becomes_its_f32),
      cmocka_unit_test(f32_is_rounded_to_f16_as_by_base),
      cmocka_unit_test(flushed_values_are_counted),
  };
  DeviceOptions options = {.threads = 2};
  Status status = vl_device_open(argc > 1 ? argv[1] : "cpu", &options, &device);
  if (status.code != VL_OK) {
    fprintf(stderr, "%s\n", status.message);
    return status.code == VL_ENVIRONMENT ? 77 : 1;
  }
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  vl_device_close(&device);
  return failed;
}
