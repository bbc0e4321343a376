/* A weight gradient that normalises x while it reads is, bit for bit, the one that reads what
 * batch_norm_apply made of x: with own kernels and the library's, and where numbers are so small that
 * processors may take them for zero. usage: test_conv_weights DEVICE */
#include "tests/kernels/compare.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { X = 0, DY, MEAN, VAR, GAMMA, BETA, NORMALISED, PLAIN_DW, FUSED_DW, PLACES };

typedef struct Shape {
  int64_t x[4], window, outputs, stride, padding;
} Shape;

static const Shape shapes[] = {
    {{3, 32, 9, 11}, 1, 64, 1, 0},    {{5, 16, 9, 8}, 1, 32, 2, 0},   {{2, 48, 5, 3}, 1, 32, 1, 2},
    {{3, 32, 31, 29}, 3, 32, 1, 1},   {{3, 16, 10, 11}, 3, 64, 2, 1}, {{41, 64, 7, 7}, 3, 64, 1, 1},
    {{67, 16, 2, 3}, 5, 32, 1, 2},    {{2, 32, 57, 55}, 1, 32, 1, 0}, {{1, 16, 1, 1}, 3, 32, 1, 1},
    {{2, 128, 14, 13}, 3, 256, 1, 1}, {{3, 13, 9, 11}, 3, 7, 1, 1},   {{2, 24, 9, 7}, 1, 10, 2, 1}};

static const char *device_name = "cpu";
static Device *device;
static Subject subject;

/* A tensor in the device's memory. */
typedef struct Place {
  Tensor *tensor;
  LayoutId layout;
  uintptr_t address;
} Place;

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static Storage storage_of(const Place *place) {
  Storage storage = *place->tensor->storage;
  storage.layout = place->layout;
  return storage;
}

static int64_t bytes_of(const Place *place) {
  Storage storage = storage_of(place);
  return device->interface->storage_bytes(device, place->layout, &storage);
}

static const Backing *backing(void) { return device->interface->backing(device); }

static void reserve(Place *place) {
  require_ok(backing()->reserve(backing()->context, bytes_of(place), &place->address));
}

static void release(Place *place) { backing()->release(backing()->context, place->address, bytes_of(place)); }

/* Something between -1 and 1 that depends on place and element only. */
static double noise(int32_t place, int64_t element) {
  return 2.0 * (double)vl_random_unit(vl_random_word(7, (uint64_t)place, (uint64_t)element)) - 1.0;
}

/* Of a tensor, so that half of what is normalised is negative. */
static double ordinary_value(int32_t place, int64_t element) {
  double value = noise(place, element);
  return place == VAR || place == GAMMA ? 1.0 + 0.75 * value : 2.0 * value;
}

/* Numbers around the least normal one, some of which a scale just below 1 makes the largest subnormal f32,
 * which bf16 rounds to a normal number again; dy brings their products back to size. */
static double tiny_value(int32_t place, int64_t element) {
  static const double multiples[] = {1.0, -1.0, 0.5, 1.5, 0.0, 0x1p-7, -1.75};
  switch (place) {
  case X: return multiples[element % 7] * 0x1p-126;
  case DY: return noise(place, element) * 0x1p100;
  case GAMMA: return 1.0 - 0x1p-23;
  case VAR: return 1.0;
  default: return 0.0;
  }
}

static void fill(Place *place, int32_t which, bool tiny) {
  void *values = vl_allocate((size_t)vl_tensor_bytes(place->tensor));
  for (int64_t i = 0; i < vl_tensor_elements(place->tensor); i++)
    vl_element_set(values, place->tensor->dtype, i, tiny ? tiny_value(which, i) : ordinary_value(which, i));
  Storage storage = storage_of(place);
  require_ok(device->interface->upload(device, &storage, values, place->address));
  free(values);
}

/* Runs a node from and to places given by number. */
static void run(const Node *node, Place *places, const int32_t *from, int32_t to) {
  LayoutId in[VL_MAX_INPUTS], out[VL_MAX_OUTPUTS] = {places[to].layout};
  uintptr_t inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0}, workspace = 0;
  for (int32_t i = 0; i < node->input_count; i++) {
    in[i] = places[from[i]].layout;
    inputs[i] = places[from[i]].address;
  }
  reserve(&places[to]);
  outputs[0] = places[to].address;
  Kernel *kernel = NULL;
  require_ok(device->interface->prepare(device, node, in, out, &kernel));
  require_ok(device->interface->build(device, kernel));
  int64_t bytes = device->interface->workspace_bytes(kernel) + 64;
  LaunchContext context = {.seed = 1};
  require_ok(backing()->reserve(backing()->context, bytes, &workspace));
  memset((void *)workspace, 0xFF, (size_t)bytes); /* NaN */
  require_ok(device->interface->launch(device, kernel, inputs, outputs, workspace, &context));
  require_ok(device->interface->synchronize(device));
  backing()->release(backing()->context, workspace, bytes);
  device->interface->kernel_destroy(device, &kernel);
}

static void *download(const Place *place) {
  Storage storage = storage_of(place);
  void *values = vl_allocate((size_t)vl_tensor_bytes(place->tensor));
  require_ok(device->interface->download(device, &storage, place->address, values));
  return values;
}

static void make_tensors(Graph *graph, const Shape *shape, DType dtype, Place *places) {
  int64_t dy[4] = {shape->x[0], shape->outputs};
  for (int32_t i = 2; i < 4; i++)
    dy[i] = (shape->x[i] + 2 * shape->padding - shape->window) / shape->stride + 1;
  places[X].tensor = vl_graph_tensor(graph, "x", ROLE_INPUT, dtype, 4, shape->x);
  places[DY].tensor = vl_graph_tensor(graph, "dy", ROLE_INPUT, dtype, 4, dy);
  for (int32_t i = MEAN; i <= BETA; i++)
    places[i].tensor = vl_graph_tensor(graph, "channel", ROLE_INPUT, DTYPE_F32, 1, &shape->x[1]);
}

/* The gradient's layouts, as the device wants them for activations in a given one. */
static void choose(const Node *fused, const Node *plain, LayoutId layout, Place *places) {
  LayoutId in[VL_MAX_INPUTS], out[VL_MAX_OUTPUTS], again[VL_MAX_INPUTS], out_again[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    in[i] = i <= DY ? layout : LAYOUT_ANY;
  for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++)
    out[k] = LAYOUT_ANY;
  require_ok(device->interface->choose_layouts(device, fused, in, out));
  memcpy(again, in, sizeof in);
  memcpy(out_again, out, sizeof out);
  require_ok(device->interface->choose_layouts(device, plain, again, out_again));
  assert_true(again[X] == in[X] && again[DY] == in[DY] && out_again[0] == out[0]);
  for (int32_t i = MEAN; i <= BETA; i++)
    assert_int_equal(in[i], LAYOUT_PLAIN);
  places[X].layout = places[NORMALISED].layout = in[X];
  places[DY].layout = in[DY];
  places[PLAIN_DW].layout = places[FUSED_DW].layout = out[0];
}

static void check(const Shape *shape, DType dtype, LayoutId layout, bool relu, bool tiny) {
  Graph *graph = vl_graph_create("gradient");
  Place places[PLACES] = {{0}};
  make_tensors(graph, shape, dtype, places);
  Tensor *operands[] = {places[X].tensor,   places[DY].tensor,    places[MEAN].tensor,
                        places[VAR].tensor, places[GAMMA].tensor, places[BETA].tensor};
  OpParams norm = {.epsilon = tiny ? 0.0 : 1e-5, .relu = relu};
  OpParams params = {.groups = 1,
                     .rank = 4,
                     .dtype = DTYPE_F32,
                     .stride = {shape->stride, shape->stride},
                     .padding = {shape->padding, shape->padding},
                     .shape = {shape->outputs, shape->x[1], shape->window, shape->window}};
  Node *apply, *plain, *fused;
  require_ok(vl_graph_add(
      graph, "batch_norm_apply", &norm,
      (Tensor *[]){operands[X], operands[MEAN], operands[VAR], operands[GAMMA], operands[BETA]}, 5, &apply));
  require_ok(vl_graph_add(graph, "conv_backward_weights", &params,
                          (Tensor *[]){apply->outputs[0], operands[DY]}, 2, &plain));
  params.epsilon = norm.epsilon;
  params.relu = norm.relu;
  require_ok(vl_graph_add(graph, "conv_backward_weights", &params, operands, 6, &fused));
  places[NORMALISED].tensor = apply->outputs[0];
  places[PLAIN_DW].tensor = plain->outputs[0];
  places[FUSED_DW].tensor = fused->outputs[0];
  choose(fused, plain, layout, places);
  for (int32_t i = X; i <= BETA; i++) {
    reserve(&places[i]);
    fill(&places[i], i, tiny);
  }
  run(apply, places, (int32_t[]){X, MEAN, VAR, GAMMA, BETA}, NORMALISED);
  run(plain, places, (int32_t[]){NORMALISED, DY}, PLAIN_DW);
  run(fused, places, (int32_t[]){X, DY, MEAN, VAR, GAMMA, BETA}, FUSED_DW);
  float *expected = download(&places[PLAIN_DW]), *found = download(&places[FUSED_DW]);
  bool zero = true;
  for (int64_t i = 0; i < vl_tensor_elements(fused->outputs[0]); i++) {
    zero = zero && found[i] == 0.0F;
    if (memcmp(&expected[i], &found[i], sizeof *found) != 0)
      fail_msg("%lld x %lld x %lld x %lld, window %lld, %s: element %lld is %a, unfused %a",
               (long long)shape->x[0], (long long)shape->x[1], (long long)shape->x[2], (long long)shape->x[3],
               (long long)shape->window, vl_dtype_name(dtype), (long long)i, (double)found[i],
               (double)expected[i]);
  }
  assert_false(zero && !tiny);
  free(expected);
  free(found);
  for (int32_t i = 0; i < PLACES; i++)
    release(&places[i]);
  vl_graph_destroy(&graph);
}

static void check_shape(const Shape *shape, DType dtype, bool tiny) {
  for (int32_t relu = 0; relu < 2; relu++) {
    check(shape, dtype, LAYOUT_PLAIN, relu != 0, tiny);
    for (int32_t l = 0; l < subject.layout_count; l++) {
      if (subject.ranks[l] == 4) check(shape, dtype, subject.layouts[l], relu != 0, tiny);
    }
  }
}

static void check_all(bool tiny) {
  static const int32_t threads[] = {1, 3};
  for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
    DeviceOptions options = {.threads = threads[t]};
    require_ok(vl_device_open(device_name, &options, &device));
    require_ok(subject_create(device, &subject));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      check_shape(&shapes[i], DTYPE_F32, tiny);
      check_shape(&shapes[i], DTYPE_BF16, tiny);
    }
    vl_device_close(&device);
  }
}

static void reading_normalises_as_the_op_does(void **state) {
  (void)state;
  check_all(false);
}

static void subnormal_numbers_round_as_the_op_rounds_them(void **state) {
  (void)state;
  check_all(true);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reading_normalises_as_the_op_does),
      cmocka_unit_test(subnormal_numbers_round_as_the_op_rounds_them),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
