/* Numbers that pick rows are checked before they are used: one out of range is an error that says which, of
 * the launch, before which nothing is written, or of synchronize, once. usage: test_indices DEVICE; exits
 * with 77 when the machine does not offer it. */
#include "tests/devices/open_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static Device *device;

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

enum { MOST_BYTES = 65536, UNWRITTEN = 0x5A };

/* A node whose input 1 holds whole numbers, and its plain memory. */
typedef struct Launch {
  Graph *graph;
  Node *node;
  Kernel *kernel;
  uintptr_t inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS], workspace;
} Launch;

static uintptr_t reserve(void) {
  const Backing *backing = device->interface->backing(device);
  uintptr_t address;
  require_ok(backing->reserve(backing->context, MOST_BYTES, &address));
  return address;
}

static void release(uintptr_t address) {
  const Backing *backing = device->interface->backing(device);
  if (address != 0) backing->release(backing->context, address, MOST_BYTES);
}

static Storage plain(const Tensor *tensor) {
  Storage storage = *tensor->storage;
  storage.layout = LAYOUT_PLAIN;
  return storage;
}

static void prepare(Launch *launch, const int32_t *indices) {
  const DeviceInterface *interface = device->interface;
  Node *node = launch->node;
  unsigned char bytes[MOST_BYTES] = {0};
  LayoutId layouts[VL_MAX_INPUTS] = {LAYOUT_PLAIN};
  for (int32_t i = 0; i < node->input_count; i++) {
    Storage storage = plain(node->inputs[i]);
    launch->inputs[i] = reserve();
    require_ok(
        interface->upload(device, &storage, i == 1 ? (const void *)indices : bytes, launch->inputs[i]));
  }
  memset(bytes, UNWRITTEN, sizeof bytes);
  for (int32_t i = 0; i < node->output_count; i++) {
    Storage storage = plain(node->outputs[i]);
    launch->outputs[i] = reserve();
    require_ok(interface->upload(device, &storage, bytes, launch->outputs[i]));
  }
  require_ok(interface->prepare(device, node, layouts, layouts, &launch->kernel));
  require_ok(interface->build(device, launch->kernel));
  launch->workspace = reserve();
  assert_true(interface->workspace_bytes(launch->kernel) <= MOST_BYTES);
}

static void clean(Launch *launch) {
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    release(launch->inputs[i]);
  for (int32_t i = 0; i < VL_MAX_OUTPUTS; i++)
    release(launch->outputs[i]);
  release(launch->workspace);
  device->interface->kernel_destroy(device, &launch->kernel);
  vl_graph_destroy(&launch->graph);
}

static void expect_unwritten(const Launch *launch) {
  for (int32_t i = 0; i < launch->node->output_count; i++) {
    unsigned char bytes[MOST_BYTES];
    Storage storage = plain(launch->node->outputs[i]);
    require_ok(device->interface->download(device, &storage, launch->outputs[i], bytes));
    for (int64_t b = 0; b < vl_tensor_bytes(launch->node->outputs[i]); b++)
      assert_int_equal(bytes[b], UNWRITTEN);
  }
}

typedef struct IndexCase {
  const char *op;
  OpParams params;
  int32_t rank;
  int64_t shape[3];
  int32_t index_rank;
  int64_t index_shape[3];
  int32_t limit;               /* the first number out of range */
  const char *place, *element; /* as a launch names it, and as synchronize does */
} IndexCase;

static const IndexCase cases[] = {
    {"embedding", {.alpha = 0}, 2, {9, 4}, 3, {1, 2, 3}, 9, "ids[0, 1, 2]", "indices[0, 1, 2]"},
    {"embedding_backward",
     {.shape = {9, 4}, .rank = 2, .dtype = DTYPE_F32},
     3,
     {2, 3, 4},
     2,
     {2, 3},
     9,
     "ids[1, 2]",
     "indices[1, 2]"},
    {"gather_tokens", {.alpha = 0}, 3, {2, 7, 4}, 2, {2, 3}, 7, "positions[1, 2]", "indices[1, 2]"},
    {"gather_tokens_backward",
     {.shape = {2, 7, 4}, .rank = 3},
     3,
     {2, 3, 4},
     2,
     {2, 3},
     7,
     "positions[1, 2]",
     "indices[1, 2]"},
    {"softmax_cross_entropy", {.alpha = 0}, 2, {6, 5}, 1, {6}, 5, "row 5", "indices[5]"},
    {"dice_cross_entropy", {.alpha = 1}, 3, {2, 5, 3}, 2, {2, 3}, 5, "sample 1, place 2", "indices[1, 2]"},
};

/* Launches with the last index replaced. */
static void launch_with(const IndexCase *index_case, int32_t value, bool valid) {
  Launch launch = {.graph = vl_graph_create("indices")};
  vl_graph_set_scope(launch.graph, "layer");
  int32_t indices[6] = {0, 1, 2, 3, 4, value};
  Tensor *inputs[] = {
      vl_graph_tensor(launch.graph, "data", ROLE_INPUT, DTYPE_F32, index_case->rank, index_case->shape),
      vl_graph_tensor(launch.graph, "indices", ROLE_INPUT, DTYPE_I32, index_case->index_rank,
                      index_case->index_shape)};
  require_ok(vl_graph_add(launch.graph, index_case->op, &index_case->params, inputs, 2, &launch.node));
  prepare(&launch, indices);
  Status status = device->interface->launch(device, launch.kernel, launch.inputs, launch.outputs,
                                            launch.workspace, &(LaunchContext){0});
  bool launched = status.code == VL_OK;
  if (launched) status = device->interface->synchronize(device);
  if (valid) {
    require_ok(status);
  } else {
    char start[64], number[32];
    snprintf(start, sizeof start, "%s in layer: ", index_case->op);
    snprintf(number, sizeof number, "%d", value);
    assert_int_equal(status.code, VL_INVALID);
    assert_ptr_equal(strstr(status.message, start), status.message);
    assert_non_null(strstr(status.message, launched ? index_case->element : index_case->place));
    assert_non_null(strstr(status.message, number));
    if (!launched) expect_unwritten(&launch);
    require_ok(device->interface->synchronize(device));
  }
  clean(&launch);
}

static void indices_out_of_range_are_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    launch_with(&cases[i], cases[i].limit - 1, true);
    launch_with(&cases[i], cases[i].limit, false);
    launch_with(&cases[i], -1, false);
    launch_with(&cases[i], INT32_MAX, false);
    launch_with(&cases[i], INT32_MIN, false);
  }
}

int main(int argc, char **argv) {
  DeviceOptions options = {0};
  int refused = open_device_or_skip(argc > 1 ? argv[1] : "cpu", &options, &device);
  if (refused) return refused;
  const struct CMUnitTest tests[] = {cmocka_unit_test(indices_out_of_range_are_named)};
  int failed = cmocka_run_group_tests_name("indices", tests, NULL, NULL);
  vl_device_close(&device);
  return failed ? 1 : 0;
}
