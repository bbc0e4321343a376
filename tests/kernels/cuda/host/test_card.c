/* Faults of a card and its driver, on the host machine (MOCK and F1, J4 of the fault cases): what the
 * management library says is read with its holes, an allocation refused at any moment is a result that leaves
 * the heap and the card as they were, a driver that is missing or old is named with both versions.
 *
 * usage: test_card WHAT, with VRAMLAB_HOST_CARD set for the process; see CMakeLists.txt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "devices/device.h"
#include <stdlib.h>
#include <string.h>

static Device *open_card(void) {
  Device *device = NULL;
  Status status = vl_device_open("cuda", NULL, &device);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return device;
}

static void readings_have_holes(void **state) {
  (void)state;
  Device *device = open_card();
  DeviceReadings readings;
  device->interface->read(device, &readings);
  assert_int_equal(readings.process_bytes, (int64_t)400 << 20); /* ours, not the other process's */
  assert_int_equal(readings.card_total_bytes, (int64_t)8 << 30);
  assert_int_equal(readings.card_used_bytes, (int64_t)1000 << 20);
  assert_int_equal(readings.card_reserved_bytes, (int64_t)300 << 20);
  assert_int_equal(readings.clock_mhz, 1980);
  assert_int_equal(readings.memory_clock_mhz, 2619);
  assert_int_equal(readings.temperature_c, 61);
  assert_int_equal(readings.throttled, 1);
  assert_int_equal(readings.power_mw, -1);  /* refused */
  assert_int_equal(readings.energy_mj, -1); /* a function the library does not have */
  assert_int_equal(readings.mig, -1);
  assert_int_equal(readings.clock_max_mhz, 2100);
  assert_int_equal(readings.power_limit_mw, 250500);
  DeviceDescription description;
  device->interface->describe(device, &description);
  assert_string_equal(description.driver, "580.65");
  assert_string_equal(description.mig_profile, "");
  vl_device_close(&device);
}

/* CUDA's name of an instance ends with its kind. */
static void an_instance_has_a_profile(void **state) {
  (void)state;
  Device *device = open_card();
  DeviceDescription description;
  device->interface->describe(device, &description);
  assert_string_equal(description.mig_profile, "1g.10gb");
  vl_device_close(&device);
}

/* F1: 1000 MiB, of which a large batch needs three times 400 and a small one three times 200. */
static Status attempt(Heap *heap, int64_t bytes, Block **blocks) {
  Status status = vl_ok();
  AllocationRequest request = {
      .bytes = bytes, .category = MEMORY_ACTIVATION, .name = "batch", .scope = "test"};
  for (int i = 0; i < 3 && status.code == VL_OK; i++)
    status = vl_heap_obtain(heap, &request, &blocks[i]);
  if (status.code == VL_OK) return status;
  for (int i = 0; i < 3; i++)
    vl_heap_release(heap, &blocks[i]);
  return status;
}

static void retries_start_from_where_they_were(void **state) {
  (void)state;
  const int64_t mib = 1 << 20;
  Device *device = open_card();
  Tracker *tracker = vl_tracker_create(false);
  Heap *heap = NULL;
  HeapOptions options = {.policy = "caching"};
  assert_int_equal(vl_heap_create(device->interface->backing(device), &options, tracker, &heap).code, VL_OK);
  int64_t before = device->interface->driver_bytes(device);
  for (int round = 0; round < 10; round++) {
    Block *blocks[3] = {NULL};
    MemoryStatistics statistics;
    assert_int_equal(attempt(heap, 400 * mib, blocks).code, VL_OUT_OF_MEMORY);
    vl_tracker_statistics(tracker, &statistics);
    assert_int_equal(statistics.allocated.current_bytes, 0);
    Status retried = attempt(heap, 200 * mib, blocks);
    if (retried.code != VL_OK) fail_msg("round %d: %s", round, retried.message);
    vl_tracker_statistics(tracker, &statistics);
    assert_int_equal(statistics.allocated.current_bytes, 600 * mib);
    for (int i = 0; i < 3; i++)
      vl_heap_release(heap, &blocks[i]);
    assert_int_equal(device->interface->synchronize(device).code, VL_OK); /* no error sticks */
  }
  vl_heap_destroy(&heap);
  assert_int_equal(device->interface->driver_bytes(device), before);
  vl_tracker_destroy(&tracker);
  vl_device_close(&device);
}

/* Policy async on 1000 MiB: what the heap says is reserved is what the card has less, refusals leave nothing
 * behind, and memory goes back in the order of the stream: what is copied into a block reads as it was
 * written, though the block that was there before has just been freed and not waited for. */
static void pools_are_counted_and_ordered(void **state) {
  (void)state;
  const int64_t mib = 1 << 20;
  enum { ELEMENTS = 1 << 18 };
  Device *device = open_card();
  const Backing *backing = device->interface->backing(device);
  Tracker *tracker = vl_tracker_create(false);
  Heap *heap = NULL;
  HeapOptions options = {.policy = "async"};
  assert_int_equal(vl_heap_create(backing, &options, tracker, &heap).code, VL_OK);
  int64_t before = device->interface->driver_bytes(device);
  MemoryStatistics statistics;
  for (int round = 0; round < 3; round++) {
    Block *blocks[3] = {NULL};
    Status failed = attempt(heap, 400 * mib, blocks);
    assert_int_equal(failed.code, VL_OUT_OF_MEMORY);
    assert_non_null(strstr(failed.message, "bytes free"));
    Status retried = attempt(heap, 200 * mib, blocks);
    if (retried.code != VL_OK) fail_msg("round %d: %s", round, retried.message);
    vl_tracker_statistics(tracker, &statistics);
    assert_int_equal(statistics.allocated.current_bytes, 600 * mib);
    assert_int_equal(device->interface->driver_bytes(device) - before, statistics.reserved.current_bytes);
    for (int i = 0; i < 3; i++)
      vl_heap_release(heap, &blocks[i]);
    assert_int_equal(device->interface->synchronize(device).code, VL_OK); /* no error sticks */
  }
  assert_true(vl_heap_trim(heap) > 0);
  assert_int_equal(device->interface->driver_bytes(device), before);

  Storage storage = {.name = "pattern", .dtype = DTYPE_F32, .elements = ELEMENTS, .layout = LAYOUT_PLAIN};
  float *sent = vl_allocate(4 * ELEMENTS), *received = vl_allocate(4 * ELEMENTS);
  uintptr_t first = 0;
  for (int round = 0; round < 3; round++) {
    AllocationRequest request = {.bytes = 4 * ELEMENTS, .category = MEMORY_ACTIVATION, .name = "pattern"};
    Block *block = NULL;
    assert_int_equal(vl_heap_obtain(heap, &request, &block).code, VL_OK);
    if (round == 0) first = block->address;
    assert_int_equal(block->address, first); /* on the host machine; the same memory at once */
    for (int i = 0; i < ELEMENTS; i++)
      sent[i] = (float)(i + round);
    assert_int_equal(device->interface->upload(device, &storage, sent, block->address).code, VL_OK);
    assert_int_equal(device->interface->download(device, &storage, block->address, received).code, VL_OK);
    assert_memory_equal(sent, received, 4 * ELEMENTS);
    vl_heap_release(heap, &block);
  }
  free(sent);
  free(received);
  vl_heap_destroy(&heap);
  assert_int_equal(device->interface->driver_bytes(device), before);
  vl_tracker_destroy(&tracker);
  vl_device_close(&device);
}

/* A block that goes back while launches are still collected is freed after those of them that read it: on the
 * host machine what is read later is NaN. */
static void collected_launches_come_before_the_free(void **state) {
  (void)state;
  enum { ELEMENTS = 1000 };
  static const int64_t shape[] = {ELEMENTS};
  float host[ELEMENTS], got[ELEMENTS];
  Device *device = open_card();
  const DeviceInterface *interface = device->interface;
  const Backing *backing = interface->backing(device);
  Graph *graph = vl_graph_create("sequence");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_ACTIVATION, DTYPE_F32, 1, shape);
  Node *node = NULL;
  Kernel *kernel = NULL;
  LayoutId inputs[VL_MAX_INPUTS] = {LAYOUT_PLAIN}, outputs[VL_MAX_OUTPUTS] = {LAYOUT_PLAIN};
  assert_int_equal(vl_graph_add(graph, "relu", &(OpParams){.dtype = DTYPE_F32}, &x, 1, &node).code, VL_OK);
  assert_int_equal(interface->choose_layouts(device, node, inputs, outputs).code, VL_OK);
  assert_int_equal(interface->prepare(device, node, inputs, outputs, &kernel).code, VL_OK);
  assert_int_equal(interface->build(device, kernel).code, VL_OK);
  uintptr_t from[VL_MAX_INPUTS] = {0}, to[VL_MAX_OUTPUTS] = {0};
  assert_int_equal(backing->reserve(backing->context, (int64_t)sizeof got, &to[0]).code, VL_OK);
  for (int i = 0; i < ELEMENTS; i++)
    host[i] = (float)(i + 1);
  for (int step = 0; step < 4; step++) { /* as often as it takes to capture */
    assert_int_equal(backing->pool_obtain(backing->context, 4096, &from[0]).code, VL_OK);
    assert_int_equal(interface->upload(device, x->storage, host, from[0]).code, VL_OK);
    interface->sequence_begin(device, graph);
    assert_int_equal(interface->launch(device, kernel, from, to, 0, &(LaunchContext){0}).code, VL_OK);
    backing->pool_release(backing->context, from[0], 4096);
    assert_int_equal(interface->sequence_end(device).code, VL_OK);
    assert_int_equal(interface->synchronize(device).code, VL_OK);
    assert_int_equal(interface->download(device, node->outputs[0]->storage, to[0], got).code, VL_OK);
    assert_memory_equal(got, host, sizeof got);
  }
  backing->release(backing->context, to[0], (int64_t)sizeof got);
  interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
  vl_device_close(&device);
}

static void a_card_may_have_no_pools(void **state) {
  (void)state;
  Device *device = open_card();
  Heap *heap = NULL;
  HeapOptions options = {.policy = "async"};
  Status status = vl_heap_create(device->interface->backing(device), &options, NULL, &heap);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "pools"));
  assert_null(heap);
  vl_device_close(&device);
}

/* Whichever allocation of the process is refused, opening included: a Status, and nothing is left behind. */
static void any_refusal_is_a_result(void **state) {
  (void)state;
  Device *device = NULL;
  Status status = vl_device_open("cuda", NULL, &device);
  if (status.code != VL_OK) {
    assert_true(status.code == VL_OUT_OF_MEMORY || status.code == VL_ENVIRONMENT);
    assert_null(device);
    assert_int_equal(vl_device_open("cuda", NULL, &device).code, VL_OK); /* and the next attempt works */
  }
  const Backing *backing = device->interface->backing(device);
  uintptr_t addresses[4] = {0};
  int refused = 0;
  for (int i = 0; i < 4; i++) {
    status = backing->reserve(backing->context, 1 << 20, &addresses[i]);
    if (status.code != VL_OK) {
      assert_int_equal(status.code, VL_OUT_OF_MEMORY);
      assert_non_null(strstr(status.message, "bytes free"));
      refused++;
    }
  }
  assert_true(refused <= 1);
  for (int i = 0; i < 4; i++)
    if (addresses[i]) backing->release(backing->context, addresses[i], 1 << 20);
  assert_int_equal(device->interface->synchronize(device).code, VL_OK);
  vl_device_close(&device);
}

static void no_driver_is_named(void **state) {
  (void)state;
  Device *device = NULL;
  Status status = vl_device_open("cuda", NULL, &device);
  assert_int_equal(status.code, VL_ENVIRONMENT);
  assert_null(device);
  const char *card = getenv("VRAMLAB_HOST_CARD");
  const char *code = strcmp(card, "cards=0") == 0 ? "code 100" : "code 35";
  const char *version = strcmp(card, "driver=12080") == 0 ? "of the driver: 12.8"
                        : strcmp(card, "driver=0") == 0   ? "of the driver: none"
                                                          : "of the driver: 13.0";
  assert_non_null(strstr(status.message, code));
  assert_non_null(strstr(status.message, version));
  assert_non_null(strstr(status.message, "of the runtime: 13.0"));
}

int main(int argc, char **argv) {
  const struct CMUnitTest readings[] = {cmocka_unit_test(readings_have_holes)};
  const struct CMUnitTest instance[] = {cmocka_unit_test(an_instance_has_a_profile)};
  const struct CMUnitTest memory[] = {cmocka_unit_test(retries_start_from_where_they_were)};
  const struct CMUnitTest pools[] = {cmocka_unit_test(pools_are_counted_and_ordered),
                                     cmocka_unit_test(collected_launches_come_before_the_free)};
  const struct CMUnitTest no_pools[] = {cmocka_unit_test(a_card_may_have_no_pools)};
  const struct CMUnitTest refusal[] = {cmocka_unit_test(any_refusal_is_a_result)};
  const struct CMUnitTest driver[] = {cmocka_unit_test(no_driver_is_named)};
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "readings") == 0) return cmocka_run_group_tests(readings, NULL, NULL);
  if (strcmp(what, "instance") == 0) return cmocka_run_group_tests(instance, NULL, NULL);
  if (strcmp(what, "memory") == 0) return cmocka_run_group_tests(memory, NULL, NULL);
  if (strcmp(what, "pools") == 0) return cmocka_run_group_tests(pools, NULL, NULL);
  if (strcmp(what, "no-pools") == 0) return cmocka_run_group_tests(no_pools, NULL, NULL);
  if (strcmp(what, "refusal") == 0) return cmocka_run_group_tests(refusal, NULL, NULL);
  if (strcmp(what, "driver") == 0) return cmocka_run_group_tests(driver, NULL, NULL);
  return 2;
}
