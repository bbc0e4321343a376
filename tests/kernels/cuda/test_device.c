/* The cuda device on a GPU: memory comes and goes, what is uploaded comes back bit by bit, running out is a
 * result, and an op without a kernel is refused by name. Skips (77) without a usable GPU; fails there when
 * VRAMLAB_REQUIRE names cuda. */
#include "open_module.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77 };

static Device *device_of(void **state) { return *state; }

static void describes_the_card(void **state) {
  Device *device = device_of(state);
  DeviceDescription description;
  device->interface->describe(device, &description);
  assert_string_equal(description.name, "cuda");
  assert_true(strlen(description.hardware) > 0);
  assert_int_equal(strncmp(description.isa, "sm_", 3), 0);
  assert_true(description.memory_bytes > 0);
  assert_false(description.predicts);
}

/* 1 MiB + 3 floats: no round size. The pattern covers every bit of the words. */
static void upload_and_download_are_inverse(void **state) {
  Device *device = device_of(state);
  const Backing *backing = device->interface->backing(device);
  enum { ELEMENTS = 262144 + 3 };
  Storage storage = {.name = "pattern", .dtype = DTYPE_F32, .elements = ELEMENTS, .layout = LAYOUT_PLAIN};
  int64_t bytes = device->interface->storage_bytes(device, LAYOUT_PLAIN, &storage);
  assert_int_equal(bytes, ELEMENTS * 4);
  uint32_t *sent = vl_allocate((size_t)bytes), *received = vl_allocate((size_t)bytes);
  for (uint32_t i = 0; i < ELEMENTS; i++)
    sent[i] = i * 2654435761U;

  uintptr_t address = 0;
  assert_int_equal(backing->reserve(backing->context, bytes, &address).code, VL_OK);
  assert_int_equal(device->interface->upload(device, &storage, sent, address).code, VL_OK);
  assert_int_equal(device->interface->download(device, &storage, address, received).code, VL_OK);
  assert_memory_equal(sent, received, (size_t)bytes);
  backing->release(backing->context, address, bytes);
  assert_int_equal(device->interface->synchronize(device).code, VL_OK);
  free(sent);
  free(received);
}

/* Out, overwritten on the device, and back, on the stream of copies; what is read afterwards waited for it.
 */
static void what_is_offloaded_comes_back(void **state) {
  Device *device = device_of(state);
  const Backing *backing = device->interface->backing(device), *tier = NULL;
  enum { ELEMENTS = 1 << 22 };
  Storage storage = {.name = "pattern", .dtype = DTYPE_F32, .elements = ELEMENTS, .layout = LAYOUT_PLAIN};
  const int64_t bytes = 4 * (int64_t)ELEMENTS;
  uint32_t *sent = vl_allocate((size_t)bytes), *received = vl_allocate((size_t)bytes);
  for (uint32_t i = 0; i < ELEMENTS; i++)
    sent[i] = i * 2654435761U;
  uintptr_t address = 0, kept = 0;
  uint64_t event = 0;
  assert_int_equal(device->interface->offload_open(device, &tier).code, VL_OK);
  assert_int_equal(backing->reserve(backing->context, bytes, &address).code, VL_OK);
  assert_int_equal(tier->reserve(tier->context, bytes, &kept).code, VL_OK);
  assert_int_equal(device->interface->upload(device, &storage, sent, address).code, VL_OK);
  assert_int_equal(device->interface->offload_copy(device, true, address, kept, bytes, &event).code, VL_OK);
  assert_int_equal(device->interface->offload_wait(device, event).code, VL_OK);
  assert_int_equal(device->interface->synchronize(device).code, VL_OK);
  assert_int_equal(device->interface->upload(device, &storage, received, address).code, VL_OK); /* zeros */
  assert_int_equal(device->interface->offload_copy(device, false, address, kept, bytes, &event).code, VL_OK);
  assert_int_equal(device->interface->offload_wait(device, event).code, VL_OK);
  assert_int_equal(device->interface->synchronize(device).code, VL_OK);
  assert_int_equal(device->interface->download(device, &storage, address, received).code, VL_OK);
  assert_memory_equal(sent, received, (size_t)bytes);
  assert_true(device->interface->offload_stall_ns(device) > 0);
  assert_int_equal(device->interface->offload_stall_ns(device), 0);
  tier->release(tier->context, kept, bytes);
  backing->release(backing->context, address, bytes);
  free(sent);
  free(received);
}

/* Memory is given to addresses and taken away granule by granule, and the driver counts it. */
static void addresses_get_and_lose_memory(void **state) {
  Device *device = device_of(state);
  const Backing *backing = device->interface->backing(device);
  const int64_t granule = 20 << 20, range = 100 * granule;
  uintptr_t address = 0;
  if (backing->commit == NULL) skip(); /* a card or driver without virtual memory management */
  int64_t before = device->interface->driver_bytes(device);
  assert_int_equal(backing->reserve_addresses(backing->context, range, granule, &address).code, VL_OK);
  assert_int_equal(backing->commit(backing->context, address, 3 * granule).code, VL_OK);
  assert_int_equal(backing->commit(backing->context, address + (uintptr_t)(10 * granule), 2 * granule).code,
                   VL_OK);
  assert_true(device->interface->driver_bytes(device) - before >= 5 * granule);
  backing->decommit(backing->context, address + (uintptr_t)granule, 2 * granule);
  assert_true(device->interface->driver_bytes(device) - before < 5 * granule);
  assert_int_equal(backing->commit(backing->context, address + (uintptr_t)granule, granule).code, VL_OK);
  backing->release_addresses(backing->context, address, range);
  assert_int_equal(device->interface->synchronize(device).code, VL_OK);
}

/* Elsewhere, and down over themselves by much and by little. */
static void bytes_are_moved_whole(void **state) {
  Device *device = device_of(state);
  const Backing *backing = device->interface->backing(device);
  enum { ELEMENTS = 20 << 20 };
  const int64_t bytes = 4 * (int64_t)ELEMENTS, shifts[] = {512, 1 << 20, 50 << 20, 100 << 20};
  Storage storage = {.name = "pattern", .dtype = DTYPE_F32, .elements = ELEMENTS, .layout = LAYOUT_PLAIN};
  uint32_t *sent = vl_allocate((size_t)bytes), *received = vl_allocate((size_t)bytes);
  for (uint32_t i = 0; i < ELEMENTS; i++)
    sent[i] = i * 2654435761U;
  uintptr_t address = 0;
  assert_int_equal(backing->reserve(backing->context, 256 << 20, &address).code, VL_OK);
  for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
    uintptr_t from = address + (uintptr_t)shifts[i];
    assert_int_equal(device->interface->upload(device, &storage, sent, from).code, VL_OK);
    assert_int_equal(backing->move(backing->context, address, from, bytes).code, VL_OK);
    assert_int_equal(device->interface->download(device, &storage, address, received).code, VL_OK);
    assert_memory_equal(sent, received, (size_t)bytes);
  }
  backing->release(backing->context, address, 256 << 20);
  free(sent);
  free(received);
}

/* A window whose classes are each longer than the buffer they go through, in a volume that ends inside it and
 * begins before it: every voxel once, times its weight, bit by bit. */
static void windows_of_any_size_are_added(void **state) {
  Device *device = device_of(state);
  const Backing *backing = device->interface->backing(device);
  enum { CLASSES = 2, DEPTH = 3, SIDE = 1701, HEIGHT = 1695, START = -2, WIDTH = 7 };
  const int64_t window_voxels = (int64_t)DEPTH * SIDE * SIDE, voxels = (int64_t)DEPTH * HEIGHT * WIDTH;
  Storage storage = {
      .name = "sums", .dtype = DTYPE_F32, .elements = (CLASSES + 1) * voxels, .layout = LAYOUT_PLAIN};
  float *logits = vl_allocate((size_t)(CLASSES * window_voxels) * sizeof *logits);
  float *sums = vl_allocate((size_t)storage.elements * sizeof *sums), factors[SIDE];
  for (int64_t i = 0; i < CLASSES * window_voxels; i++)
    logits[i] = (float)(i * 2654435761 % 20011) / 20011.0F - 0.5F;
  for (int32_t i = 0; i < SIDE; i++)
    factors[i] = 1.0F / (float)(i + 3);
  uintptr_t address = 0;
  assert_int_equal(backing->reserve(backing->context, storage.elements * 4, &address).code, VL_OK);
  assert_int_equal(device->interface->upload(device, &storage, sums, address).code, VL_OK);
  DeviceWindow window = {.sums = address,
                         .logits = logits,
                         .factors = {factors, factors, factors},
                         .classes = CLASSES,
                         .size = {DEPTH, HEIGHT, WIDTH},
                         .side = {DEPTH, SIDE, SIDE},
                         .start = {0, START, START}};
  for (int32_t i = 0; i < 2; i++)
    assert_int_equal(device->interface->window_add(device, &window).code, VL_OK);
  assert_int_equal(device->interface->download(device, &storage, address, sums).code, VL_OK);
  for (int64_t i = 0; i < storage.elements; i++) {
    int64_t z = i / (HEIGHT * WIDTH) % DEPTH, y = i / WIDTH % HEIGHT - START, x = i % WIDTH - START;
    int64_t c = i / voxels;
    volatile float value = factors[z] * factors[y]; /* each product rounded */
    value = value * factors[x];
    if (c < CLASSES) value = value * logits[((c * DEPTH + z) * SIDE + y) * SIDE + x];
    assert_true(sums[i] == value + value);
  }
  backing->release(backing->context, address, storage.elements * 4);
  assert_int_equal(device->interface->synchronize(device).code, VL_OK);
  free(logits);
  free(sums);
}

static void driver_counts_what_is_reserved(void **state) {
  Device *device = device_of(state);
  const Backing *backing = device->interface->backing(device);
  const int64_t bytes = 256 << 20;
  uintptr_t address = 0;
  int64_t before = device->interface->driver_bytes(device);
  assert_int_equal(backing->reserve(backing->context, bytes, &address).code, VL_OK);
  assert_true(device->interface->driver_bytes(device) - before >= bytes);
  backing->release(backing->context, address, bytes);
}

static void too_large_a_request_is_out_of_memory_and_leaves_the_card_usable(void **state) {
  Device *device = device_of(state);
  const Backing *backing = device->interface->backing(device);
  uintptr_t address = 0;
  Status status = backing->reserve(backing->context, INT64_C(1) << 50, &address);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "1125899906842624"));
  assert_int_equal(device->interface->synchronize(device).code, VL_OK);
  assert_int_equal(backing->reserve(backing->context, 4096, &address).code, VL_OK);
  backing->release(backing->context, address, 4096);
}

static void op_without_kernel_is_refused_by_name(void **state) {
  Device *device = device_of(state);
  Op op = {.name = "no_such_op"};
  Node node = {.op = &op, .scope = "layer1.0.conv1"};
  Status status = device->interface->supports(device, &node);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "no_such_op"));
  assert_non_null(strstr(status.message, "layer1.0.conv1"));
}

/* Whether the comma-separated list in VRAMLAB_REQUIRE names cuda. */
static bool cuda_is_required(void) {
  const char *list = getenv("VRAMLAB_REQUIRE");
  for (const char *at = list; at != NULL && *at != '\0';) {
    size_t length = strcspn(at, ",");
    if (length == strlen("cuda") && strncmp(at, "cuda", length) == 0) return true;
    at += length + (at[length] == ',');
  }
  return false;
}

int main(void) {
  Device *device = NULL;
  Status status = vl_visible_from_ctest();
  void *module = status.code == VL_OK ? load_cuda_module() : NULL;
  if (status.code == VL_OK)
    status = module == NULL ? vl_error(VL_ENVIRONMENT, "the cuda module is not built: %s", dlerror())
                            : find_open(module)(vl_device_interface(), &(DeviceOptions){0}, &device);
  if (status.code != VL_OK) {
    bool fails = cuda_is_required() || status.code == VL_INVALID;
    fprintf(stderr, "%s: %s\n",
            cuda_is_required() ? "required by VRAMLAB_REQUIRE"
            : fails            ? "failed"
                               : "skipped",
            status.message);
    return fails ? 1 : SKIPPED;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_prestate(describes_the_card, device),
      cmocka_unit_test_prestate(upload_and_download_are_inverse, device),
      cmocka_unit_test_prestate(what_is_offloaded_comes_back, device),
      cmocka_unit_test_prestate(addresses_get_and_lose_memory, device),
      cmocka_unit_test_prestate(bytes_are_moved_whole, device),
      cmocka_unit_test_prestate(windows_of_any_size_are_added, device),
      cmocka_unit_test_prestate(driver_counts_what_is_reserved, device),
      cmocka_unit_test_prestate(too_large_a_request_is_out_of_memory_and_leaves_the_card_usable, device),
      cmocka_unit_test_prestate(op_without_kernel_is_refused_by_name, device),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  device->interface->close(device);
  return failed;
}
