/* Layer norm of rows that are one value throughout: exactly the bias, whatever epsilon is, since the mean of
 * equal values is that value and everything between input and output is f32. usage: test_constant_rows
 * DEVICE; exits with 77 when the machine does not offer it. */
#include "tests/devices/open_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ROWS = 3, MAX_WIDTH = 9001 };
static const char *device_name = "cpu";
static Device *device;

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* A case of the table below. */
typedef struct Constant {
  DType dtype;
  int64_t width;
  double value, epsilon, bias;
} Constant;

static uintptr_t reserve(int64_t bytes) {
  const Backing *backing = device->interface->backing(device);
  uintptr_t address = 0;
  require_ok(backing->reserve(backing->context, bytes, &address));
  return address;
}

static uintptr_t upload(const Tensor *tensor, double value) {
  int64_t count = vl_tensor_elements(tensor);
  void *typed = vl_allocate((size_t)vl_dtype_bytes(tensor->dtype, count));
  for (int64_t i = 0; i < count; i++)
    vl_element_set(typed, tensor->dtype, i, value);
  uintptr_t address = reserve(vl_dtype_bytes(tensor->dtype, count));
  require_ok(device->interface->upload(device, tensor->storage, typed, address));
  free(typed);
  return address;
}

static void check(const Constant *of, const Tensor *y, uintptr_t address) {
  int64_t count = vl_tensor_elements(y);
  void *typed = vl_allocate((size_t)vl_dtype_bytes(y->dtype, count));
  require_ok(device->interface->download(device, y->storage, address, typed));
  for (int64_t i = 0; i < count; i++) {
    double got = vl_element_get(typed, y->dtype, i);
    if (got != of->bias)
      fail_msg("%s, rows of %lld times %g, epsilon %g: %.9g, not %g", vl_dtype_name(y->dtype),
               (long long)of->width, of->value, of->epsilon, got, of->bias);
  }
  free(typed);
}

static void normalise(const Constant *of) {
  const DeviceInterface *interface = device->interface;
  const Backing *backing = interface->backing(device);
  Graph *graph = vl_graph_create("constant");
  Tensor *inputs[] = {vl_graph_input(graph, "x", of->dtype, 2, (int64_t[]){ROWS, of->width}, 0),
                      vl_graph_input(graph, "gamma", DTYPE_F32, 1, &of->width, 0),
                      vl_graph_input(graph, "beta", DTYPE_F32, 1, &of->width, 0)};
  Node *node = NULL;
  require_ok(vl_graph_add(graph, "layer_norm", &(OpParams){.epsilon = of->epsilon}, inputs, 3, &node));
  for (int32_t i = 0; i < graph->storage_count; i++)
    graph->storages[i]->layout = LAYOUT_PLAIN;
  LayoutId plain[VL_MAX_INPUTS] = {LAYOUT_PLAIN};
  Kernel *kernel = NULL;
  require_ok(interface->prepare(device, node, plain, plain, &kernel));
  require_ok(interface->build(device, kernel));
  uintptr_t from[VL_MAX_INPUTS] = {upload(inputs[0], of->value), upload(inputs[1], 1.0),
                                   upload(inputs[2], of->bias)};
  uintptr_t to[VL_MAX_OUTPUTS] = {0};
  for (int32_t i = 0; i < 3; i++)
    to[i] = reserve(vl_tensor_bytes(node->outputs[i]));
  int64_t workspace_bytes = interface->workspace_bytes(kernel) + 64;
  uintptr_t workspace = reserve(workspace_bytes);
  require_ok(interface->launch(device, kernel, from, to, workspace, &(LaunchContext){0}));
  require_ok(interface->synchronize(device));
  check(of, node->outputs[0], to[0]);
  for (int32_t i = 0; i < 3; i++) {
    backing->release(backing->context, from[i], vl_tensor_bytes(inputs[i]));
    backing->release(backing->context, to[i], vl_tensor_bytes(node->outputs[i]));
  }
  backing->release(backing->context, workspace, workspace_bytes);
  interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
}

static void constant_rows_are_the_bias_c9(void **state) {
  (void)state;
  static const DType dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
  static const int64_t widths[] = {1, 10, 33, 1025, MAX_WIDTH}; /* the last: longer than any kernel keeps */
  for (int i = 0; i < 3 * 5 * 2 * 2 * 2; i++)
    normalise(&(Constant){.dtype = dtypes[i % 3],
                          .width = widths[i / 3 % 5],
                          .value = i / 15 % 2 ? 3.0 : 0.0,
                          .epsilon = i / 30 % 2 ? 1e-12 : 1e-5,
                          .bias = i / 60 % 2 ? 0.25 : 0.0});
}

int main(int argc, char **argv) {
  if (argc > 1) device_name = argv[1];
  int skipped = open_device_or_skip(device_name, &(DeviceOptions){0}, &device);
  if (skipped != 0) return skipped;
  const struct CMUnitTest tests[] = {cmocka_unit_test(constant_rows_are_the_bias_c9)};
  int failed = cmocka_run_group_tests_name("constant_rows", tests, NULL, NULL);
  vl_device_close(&device);
  return failed;
}
