/* How a device was opened reaches its kernels: TF32 where it was opened for that, and no rounding of what is
 * multiplied where it was not; algorithms that are deterministic, or chosen by trial. Skips (77) without a
 * usable GPU; fails there when VRAMLAB_REQUIRE names cuda. */
#include "devices/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77, SIZE = 64 };

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* A tensor's memory, filled with one value. */
static uintptr_t filled(Device *device, const Tensor *tensor, float value) {
  const Backing *backing = device->interface->backing(device);
  uintptr_t address = 0;
  float *host = vl_allocate((size_t)vl_tensor_bytes(tensor));
  for (int64_t i = 0; i < vl_tensor_elements(tensor); i++)
    host[i] = value;
  require_ok(backing->reserve(backing->context, vl_tensor_bytes(tensor), &address));
  require_ok(device->interface->upload(device, tensor->storage, host, address));
  free(host);
  return address;
}

static uintptr_t workspace_of(Device *device, int64_t bytes) {
  const Backing *backing = device->interface->backing(device);
  uintptr_t address = 0;
  if (bytes > 0) require_ok(backing->reserve(backing->context, bytes, &address));
  return address;
}

/* A product, or a convolution over one place whose weights stand in b's place. */
static Node *product_node(Graph *graph, bool convolution) {
  static const int64_t square[] = {SIZE, SIZE, 1, 1};
  int32_t rank = convolution ? 4 : 2;
  OpParams params = {.dtype = DTYPE_F32, .stride = {1, 1}, .groups = 1};
  Tensor *inputs[] = {vl_graph_tensor(graph, "a", ROLE_ACTIVATION, DTYPE_F32, rank, square),
                      vl_graph_tensor(graph, "b", ROLE_ACTIVATION, DTYPE_F32, rank, square)};
  Node *node = NULL;
  require_ok(vl_graph_add(graph, convolution ? "conv" : "matmul", &params, inputs, 2, &node));
  return node;
}

/* Element 0 of a product whose a is `value` everywhere and whose b is 1 / SIZE. */
static double product_of(Device *device, bool convolution, float value, char *implementation, size_t size) {
  const Backing *backing = device->interface->backing(device);
  Graph *graph = vl_graph_create("tf32");
  Node *node = product_node(graph, convolution);
  Tensor *const *inputs = node->inputs;
  Kernel *kernel = NULL;
  LayoutId layouts[VL_MAX_INPUTS] = {LAYOUT_ANY, LAYOUT_ANY}, output[VL_MAX_OUTPUTS] = {LAYOUT_ANY};
  require_ok(device->interface->choose_layouts(device, node, layouts, output));
  require_ok(device->interface->prepare(device, node, layouts, output, &kernel));
  require_ok(device->interface->build(device, kernel));
  snprintf(implementation, size, "%s", device->interface->implementation(kernel));
  int64_t workspace_bytes = device->interface->workspace_bytes(kernel);
  uintptr_t from[VL_MAX_INPUTS] = {filled(device, inputs[0], value), filled(device, inputs[1], 1.0F / SIZE)};
  uintptr_t to[VL_MAX_OUTPUTS] = {filled(device, node->outputs[0], 0.0F)};
  uintptr_t workspace = workspace_of(device, workspace_bytes);
  require_ok(device->interface->launch(device, kernel, from, to, workspace, &(LaunchContext){0}));
  require_ok(device->interface->synchronize(device));
  float y[SIZE * SIZE];
  require_ok(device->interface->download(device, node->outputs[0]->storage, to[0], y));
  for (int i = 0; i < 2; i++)
    backing->release(backing->context, from[i], vl_tensor_bytes(inputs[i]));
  backing->release(backing->context, to[0], vl_tensor_bytes(node->outputs[0]));
  if (workspace_bytes > 0) backing->release(backing->context, workspace, workspace_bytes);
  device->interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
  return y[0];
}

/* Twelve bits behind the point: exact in f32, whatever the order of the sum; TF32 keeps ten. */
static void products_are_rounded_when_asked(void **state) {
  const float value = 1.0F + 0x1p-12F;
  char implementation[64];
  (void)state;
  for (int tf32 = 0; tf32 < 2; tf32++) {
    Device *device = NULL;
    DeviceDescription description;
    require_ok(vl_device_open("cuda", &(DeviceOptions){.tf32 = tf32 != 0}, &device));
    device->interface->describe(device, &description);
    double got = product_of(device, false, value, implementation, sizeof implementation);
    print_message("  %s: %.9g by %s\n", tf32 ? "TF32" : "f32", got, implementation);
    if (tf32 && description.has_tf32) {
      assert_non_null(strstr(implementation, "tf32"));
      assert_true(got == 1.0 || got == (double)value); /* it is allowed, not ordered */
      if (strstr(description.hardware, "host machine")) assert_true(got == 1.0);
    } else {
      assert_null(strstr(implementation, "tf32"));
      assert_true(got == (double)value);
    }
    vl_device_close(&device);
  }
}

static void convolutions_are_rounded_when_asked(void **state) {
  const float value = 1.0F + 0x1p-12F;
  char implementation[64];
  (void)state;
  for (int tf32 = 0; tf32 < 2; tf32++) {
    Device *device = NULL;
    DeviceDescription description;
    require_ok(vl_device_open("cuda", &(DeviceOptions){.tf32 = tf32 != 0}, &device));
    device->interface->describe(device, &description);
    double got = product_of(device, true, value, implementation, sizeof implementation);
    print_message("  %s: %.9g by %s\n", tf32 ? "TF32" : "f32", got, implementation);
    bool rounded = got == 1.0;
    assert_true(rounded || got == (double)value); /* it is allowed, not ordered */
    assert_int_equal(rounded, strstr(implementation, "tf32") != NULL);
    if (!tf32 || !description.has_tf32) assert_false(rounded);
    if (description.has_tf32 && strstr(description.hardware, "host machine")) assert_int_equal(rounded, tf32);
    vl_device_close(&device);
  }
}

/* Whatever is chosen computes the same; of the host machine's engines the first sums in no fixed order. */
static void algorithms_are_chosen_as_asked(void **state) {
  static const DeviceOptions options[] = {
      {.deterministic = true}, {.timed = true}, {.tf32 = true, .timed = true}};
  const float value = 1.0F + 0x1p-8F; /* exact in TF32 too */
  char implementation[64];
  (void)state;
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    Device *device = NULL;
    DeviceDescription description;
    require_ok(vl_device_open("cuda", &options[i], &device));
    device->interface->describe(device, &description);
    assert_true(description.has_trials);
    double got = product_of(device, true, value, implementation, sizeof implementation);
    print_message("  %s: %s\n", options[i].timed ? "timed" : "deterministic", implementation);
    assert_true(got == (double)value);
    if (options[i].deterministic && strstr(description.hardware, "host machine"))
      assert_string_not_equal(implementation, "cuDNN engine 0");
    vl_device_close(&device);
  }
}

static bool is_required(void) {
  const char *list = getenv("VRAMLAB_REQUIRE");
  return list && strstr(list, "cuda");
}

int main(void) {
  Device *device = NULL;
  Status status = vl_device_open("cuda", &(DeviceOptions){0}, &device);
  if (status.code != VL_OK) {
    fprintf(stderr, "%s\n", status.message);
    return status.code == VL_ENVIRONMENT && !is_required() ? SKIPPED : 1;
  }
  vl_device_close(&device);
  const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_rounded_when_asked),
                                     cmocka_unit_test(convolutions_are_rounded_when_asked),
                                     cmocka_unit_test(algorithms_are_chosen_as_asked)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
