/* Every bf16 number, NaN, infinities and subnormals included, through the loops that convert two numbers at a
 * time: bit for bit what the same f32 arithmetic gives one number at a time, rounded by base. In every layout
 * of the device, and in a row of an odd number of elements. Which NaN a NaN becomes is the cpu's alone to
 * keep: GPUs have one. usage: test_bf16 DEVICE */
#include "tests/devices/open_device.h"
#include "tests/kernels/compare.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Subject subject;
static bool has_one_nan; /* the device */

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* All numbers but one where there is an odd number of places. */
static uint16_t number(int64_t i) { return (uint16_t)(i + 1); }

/* Finite, so that a NaN has one source: subnormals, ties, and what rounds to infinity. */
static uint16_t other_number(int64_t i) {
  static const uint16_t numbers[] = {0x0000, 0x0001, 0x8001, 0x3F80, 0xBFC1, 0x007F, 0x8080, 0x7F7F, 0xFF7F};
  return numbers[i % 9];
}

/* A node whose tensors lie in memory of the device, those of rank 4 in one layout. */
typedef struct Launch {
  Node *node;
  LayoutId layout;
  uintptr_t inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
} Launch;

static Storage storage_of(const Launch *launch, Tensor *tensor, LayoutId *layout) {
  Storage storage = *tensor->storage;
  *layout = storage.layout = tensor->rank == 4 ? launch->layout : LAYOUT_PLAIN;
  return storage;
}

static uintptr_t reserve(Tensor *tensor, const Launch *launch, LayoutId *layout) {
  Storage storage = storage_of(launch, tensor, layout);
  const Backing *backing = subject.device->interface->backing(subject.device);
  uintptr_t address = 0;
  int64_t bytes = subject.device->interface->storage_bytes(subject.device, *layout, &storage);
  require_ok(backing->reserve(backing->context, bytes, &address));
  return address;
}

static void release(Tensor *tensor, const Launch *launch, uintptr_t address) {
  LayoutId layout;
  Storage storage = storage_of(launch, tensor, &layout);
  const Backing *backing = subject.device->interface->backing(subject.device);
  backing->release(backing->context, address,
                   subject.device->interface->storage_bytes(subject.device, layout, &storage));
}

/* A channel's values, by letter; n is the NaN whose rounding up would give -0. */
static float channel_value(char letter) {
  uint32_t bits = 0x7FFFFFFF;
  float nan;
  memcpy(&nan, &bits, sizeof nan);
  return letter == 'n' ? nan : letter == '1' ? 1.0F : 0.0F;
}

/* Fills inputs: number() for the first of rank 4, other_number() for the last, 0 between. */
static void fill_input(const Launch *launch, const char *operands, int32_t i, int32_t first, int32_t last) {
  Tensor *tensor = launch->node->inputs[i];
  int64_t count = vl_tensor_elements(tensor);
  void *values = vl_allocate((size_t)vl_tensor_bytes(tensor));
  for (int64_t e = 0; e < count; e++) {
    if (tensor->rank == 4)
      ((uint16_t *)values)[e] = i == first ? number(e) : i == last ? other_number(e) : 0;
    else
      ((float *)values)[e] = channel_value(operands[i]);
  }
  LayoutId layout;
  Storage storage = storage_of(launch, tensor, &layout);
  require_ok(subject.device->interface->upload(subject.device, &storage, values, launch->inputs[i]));
  free(values);
}

static void check_output(const Launch *launch, int32_t k, bool nan) {
  Tensor *tensor = launch->node->outputs[k];
  int64_t count = vl_tensor_elements(tensor);
  uint16_t *values = vl_allocate((size_t)vl_tensor_bytes(tensor));
  LayoutId layout;
  Storage storage = storage_of(launch, tensor, &layout);
  require_ok(subject.device->interface->download(subject.device, &storage, launch->outputs[k], values));
  for (int64_t e = 0; e < count; e++) {
    float sum = vl_f32_from_bf16(number(e)) + vl_f32_from_bf16(other_number(e));
    uint16_t expected = nan ? 0x7FFF : vl_bf16_from_f32(sum);
    bool any_nan = nan || (has_one_nan && isnan(sum));
    if (any_nan ? (values[e] & 0x7FFF) <= 0x7F80 : values[e] != expected) {
      fail_msg("%s, %s: element %lld: %04x + %04x gives %04x, expected %04x", launch->node->op->name,
               subject.device->interface->layout_name(subject.device, launch->layout), (long long)e,
               number(e), other_number(e), values[e], expected);
    }
  }
  free(values);
}

/* The node's output k is the sum of its inputs `first` and `last`, or NaN everywhere where a channel is. */
static void check_sum(Node *node, LayoutId layout, const char *operands, int32_t first, int32_t last,
                      int32_t k) {
  const DeviceInterface *device = subject.device->interface;
  Launch launch = {.node = node, .layout = layout};
  LayoutId in[VL_MAX_INPUTS] = {LAYOUT_PLAIN}, out[VL_MAX_OUTPUTS] = {LAYOUT_PLAIN};
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!node->inputs[i]) continue;
    launch.inputs[i] = reserve(node->inputs[i], &launch, &in[i]);
    fill_input(&launch, operands, i, first, last);
  }
  for (int32_t i = 0; i < node->output_count; i++)
    launch.outputs[i] = reserve(node->outputs[i], &launch, &out[i]);
  Kernel *kernel = NULL;
  require_ok(device->prepare(subject.device, node, in, out, &kernel));
  require_ok(device->build(subject.device, kernel));
  const Backing *backing = device->backing(subject.device);
  int64_t workspace_bytes = device->workspace_bytes(kernel) + 64;
  uintptr_t workspace = 0;
  LaunchContext context = {.seed = 1};
  require_ok(backing->reserve(backing->context, workspace_bytes, &workspace));
  require_ok(device->launch(subject.device, kernel, launch.inputs, launch.outputs, workspace, &context));
  require_ok(device->synchronize(subject.device));
  check_output(&launch, k, strchr(operands, 'n') != NULL);
  backing->release(backing->context, workspace, workspace_bytes);
  device->kernel_destroy(subject.device, &kernel);
  for (int32_t i = 0; i < node->input_count; i++)
    if (node->inputs[i]) release(node->inputs[i], &launch, launch.inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++)
    release(node->outputs[i], &launch, launch.outputs[i]);
}

/* Whether the device runs the node on activations in that layout. */
static bool takes(const Node *node, LayoutId layout) {
  LayoutId in[VL_MAX_INPUTS] = {LAYOUT_PLAIN}, out[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < node->input_count; i++)
    in[i] = node->inputs[i] && node->inputs[i]->rank == 4 ? layout : LAYOUT_PLAIN;
  for (int32_t i = 0; i < VL_MAX_OUTPUTS; i++)
    out[i] = LAYOUT_ANY;
  require_ok(subject.device->interface->choose_layouts(subject.device, node, in, out));
  for (int32_t i = 0; i < node->input_count; i++)
    if (node->inputs[i] && node->inputs[i]->rank == 4 && in[i] != layout) return false;
  return true;
}

/* An op on tensors by letter: a activation, - absent, others per channel. */
static void check_op(const char *op, const char *operands, const OpParams *params, int32_t last, int32_t k) {
  static const int64_t shapes[][4] = {{1, 1, 255, 257}, {1, 16, 64, 64}};
  for (int32_t l = -1; l < subject.layout_count; l++) {
    if (l >= 0 && subject.ranks[l] != 4) continue;
    const int64_t *shape = shapes[l < 0 ? 0 : 1];
    Graph *graph = vl_graph_create("bf16");
    Tensor *inputs[VL_MAX_INPUTS] = {NULL};
    int32_t count = (int32_t)strlen(operands);
    for (int32_t i = 0; i < count; i++) {
      if (operands[i] == 'a')
        inputs[i] = vl_graph_tensor(graph, "a", ROLE_INPUT, DTYPE_BF16, 4, shape);
      else if (operands[i] != '-')
        inputs[i] = vl_graph_tensor(graph, "channel", ROLE_INPUT, DTYPE_F32, 1, &shape[1]);
    }
    Node *node = NULL;
    require_ok(vl_graph_add(graph, op, params, inputs, count, &node));
    LayoutId layout = l < 0 ? LAYOUT_PLAIN : subject.layouts[l];
    if (takes(node, layout)) check_sum(node, layout, operands, 0, last, k);
    vl_graph_destroy(&graph);
  }
}

static void a_residual_is_added_and_rounded(void **state) {
  (void)state;
  OpParams params = {.epsilon = 0.0};
  check_op("batch_norm_apply", "a0110a", &params, 5, 0);
}

static void a_nan_stays_one(void **state) {
  (void)state;
  OpParams params = {.epsilon = 0.0};
  check_op("batch_norm_apply", "a011na", &params, 5, 0);
}

static void two_gradients_are_added_and_rounded(void **state) {
  (void)state;
  OpParams params = {.alpha = 1.0};
  check_op("batch_norm_backward", "aa011--a", &params, 7, 3);
}

static void gradients_are_added_and_rounded(void **state) {
  (void)state;
  check_op("add", "aa", NULL, 1, 0);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_residual_is_added_and_rounded),
      cmocka_unit_test(a_nan_stays_one),
      cmocka_unit_test(two_gradients_are_added_and_rounded),
      cmocka_unit_test(gradients_are_added_and_rounded),
  };
  Device *device = NULL;
  DeviceOptions options = {0};
  has_one_nan = argc > 1 && strcmp(argv[1], "cpu") != 0;
  int refused = open_device_or_skip(argc > 1 ? argv[1] : "cpu", &options, &device);
  if (refused) return refused;
  Status status = subject_create(device, &subject);
  if (status.code != VL_OK) {
    fprintf(stderr, "%s\n", status.message);
    return 1;
  }
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  vl_device_close(&device);
  return failed ? 1 : 0;
}
