/* Opening devices, the plan device's memory and describe half, and the cpu device's memory as the system sees
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "devices/device.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHIPPED VRAMLAB_SOURCE_DIR "/devices/profiles"
#define MIB (INT64_C(1) << 20)

static void assert_ok(Status status) {
  if (status.code != VL_OK) print_message("%s: %s\n", vl_status_name(status.code), status.message);
  assert_int_equal(status.code, VL_OK);
}

static Device *open_device(const char *name, const char *profile) {
  DeviceOptions options = {.threads = 2, .profile = profile, .profile_directory = SHIPPED};
  Device *device = NULL;
  assert_ok(vl_device_open(name, &options, &device));
  assert_non_null(device);
  return device;
}

static void assert_open_fails(const char *name, const DeviceOptions *options, StatusCode code,
                              const char *part) {
  Device *device = (Device *)1;
  Status status = vl_device_open(name, options, &device);
  if (!strstr(status.message, part)) print_message("wanted \"%s\" in \"%s\"\n", part, status.message);
  assert_int_equal(status.code, code);
  assert_non_null(strstr(status.message, part));
  assert_null(device);
}

static void unknown_names_are_refused_with_the_known(void **state) {
  (void)state;
  DeviceOptions options = {.profile = "H200", .profile_directory = SHIPPED};
  assert_open_fails("tpu", NULL, VL_INVALID, "accepted: cpu, cuda, plan");
  assert_open_fails("../cpu", NULL, VL_INVALID, "accepted: cpu, cuda, plan");
  assert_open_fails("cpu", &options, VL_INVALID, "only plan");
  options.profile = "H900";
  assert_open_fails("plan", &options, VL_INVALID, "\"H900\"");
  options = (DeviceOptions){.threads = -1};
  assert_open_fails("cpu", &options, VL_INVALID, "-1 threads");
}

/* A module that is missing or is something else is the environment's fault, and the message says which file.
 */
static void module_that_does_not_load_is_named(void **state) {
  (void)state;
  char folder[] = "/tmp/vramlab-modules-XXXXXX", file[64];
  const char *modules = getenv("VRAMLAB_MODULES");
  char *saved = modules ? vl_copy_text(modules) : NULL;
  assert_non_null(mkdtemp(folder));
  setenv("VRAMLAB_MODULES", folder, 1);
  assert_open_fails("cpu", NULL, VL_ENVIRONMENT, folder);
  assert_open_fails("cpu", NULL, VL_ENVIRONMENT, "oneDNN 3.x");
  snprintf(file, sizeof file, "%s/vramlab_cpu.so", folder);
  FILE *broken = fopen(file, "w");
  assert_non_null(broken);
  fputs("no library\n", broken);
  fclose(broken);
  assert_open_fails("cpu", NULL, VL_ENVIRONMENT, "vramlab_cpu.so");
  unlink(file);
  rmdir(folder);
  if (saved)
    setenv("VRAMLAB_MODULES", saved, 1);
  else
    unsetenv("VRAMLAB_MODULES");
  free(saved);
}

static void plan_hands_out_distinct_addresses(void **state) {
  (void)state;
  Device *device = open_device("plan", "V100-32GB");
  const Backing *backing = device->interface->backing(device);
  uintptr_t first, second;
  assert_ok(backing->reserve(backing->context, 20 * MIB + 1, &first));
  assert_ok(backing->reserve(backing->context, 2 * MIB, &second));
  assert_true(first != 0 && first % 512 == 0 && second % 512 == 0);
  assert_true(second >= first + 20 * (uintptr_t)MIB + 1);
  assert_int_equal(device->interface->driver_bytes(device), -1);
  assert_int_equal(device->interface->driver_peak_bytes(device, true), -1);
  vl_device_close(&device);
  assert_null(device);
}

/* The card's memory less the upper end of what its context takes. */
static void plan_refuses_beyond_the_profile(void **state) {
  (void)state;
  DeviceProfile profile;
  assert_ok(vl_profile_load(SHIPPED, "A100-80GB", &profile));
  int64_t capacity = profile.memory_bytes - profile.context_high_bytes;
  Device *device = open_device("plan", "A100-80GB");
  const Backing *backing = device->interface->backing(device);
  uintptr_t address, other;
  assert_ok(backing->reserve(backing->context, capacity, &address));
  Status status = backing->reserve(backing->context, 1, &other);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "plan:A100-80GB"));
  backing->release(backing->context, address, capacity);
  assert_ok(backing->reserve(backing->context, capacity, &other));
  assert_true(other != address);
  DeviceDescription description;
  device->interface->describe(device, &description);
  assert_string_equal(description.name, "plan:A100-80GB");
  assert_true(description.predicts && !description.has_time);
  assert_int_equal(description.memory_bytes, profile.memory_bytes);
  vl_device_close(&device);
}

typedef struct ConvNode {
  Graph *graph;
  Node *node;
} ConvNode;

static ConvNode make_conv(DType dtype) {
  ConvNode conv = {.graph = vl_graph_create("conv")};
  int64_t x_shape[] = {2, 32, 8, 8}, w_shape[] = {48, 32, 3, 3};
  Init zero = {.kind = INIT_ZERO};
  Tensor *x = vl_graph_tensor(conv.graph, "x", ROLE_ACTIVATION, dtype, 4, x_shape), *y;
  Tensor *w = vl_graph_parameter(conv.graph, "w", ROLE_PARAMETER, dtype, 4, w_shape, zero);
  vl_graph_set_scope(conv.graph, "layer");
  assert_ok(vl_conv(conv.graph, x, w, 1, 1, 1, &y));
  conv.node = y->producer;
  return conv;
}

typedef struct Described {
  LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  int64_t workspace_bytes;
  char implementation[64];
} Described;

static void ask(Device *device, const Node *node, Described *described) {
  const DeviceInterface *interface = device->interface;
  Kernel *kernel;
  for (int i = 0; i < VL_MAX_INPUTS; ++i)
    described->inputs[i] = LAYOUT_ANY;
  for (int i = 0; i < VL_MAX_OUTPUTS; ++i)
    described->outputs[i] = LAYOUT_ANY;
  assert_ok(interface->supports(device, node));
  assert_ok(interface->choose_layouts(device, node, described->inputs, described->outputs));
  assert_ok(interface->prepare(device, node, described->inputs, described->outputs, &kernel));
  described->workspace_bytes = interface->workspace_bytes(kernel);
  snprintf(described->implementation, sizeof described->implementation, "%s",
           interface->implementation(kernel));
  assert_ok(interface->build(device, kernel));
  interface->kernel_destroy(device, &kernel);
  assert_null(kernel);
}

/* What makes a planned trace equal a measured one: the same answers to every question. */
static void plan_describes_as_the_cpu_does(void **state) {
  (void)state;
  Device *plan = open_device("plan", NULL), *cpu = open_device("cpu", NULL);
  const DType dtypes[] = {DTYPE_F32, DTYPE_BF16};
  for (size_t i = 0; i < 2; ++i) {
    ConvNode conv = make_conv(dtypes[i]);
    if (cpu->interface->supports(cpu, conv.node).code == VL_OK) {
      Described planned, measured;
      ask(plan, conv.node, &planned);
      ask(cpu, conv.node, &measured);
      assert_memory_equal(planned.inputs, measured.inputs, 2 * sizeof(LayoutId));
      assert_int_equal(planned.outputs[0], measured.outputs[0]);
      assert_int_equal(planned.workspace_bytes, measured.workspace_bytes);
      assert_string_equal(planned.implementation, measured.implementation);
      for (int k = 0; k < 2; ++k)
        assert_int_equal(
            plan->interface->storage_bytes(plan, planned.inputs[k], conv.node->inputs[k]->storage),
            cpu->interface->storage_bytes(cpu, measured.inputs[k], conv.node->inputs[k]->storage));
    }
    vl_graph_destroy(&conv.graph);
  }
  DeviceDescription description;
  plan->interface->describe(plan, &description);
  assert_string_equal(description.name, "plan:cpu");
  assert_int_equal(description.threads, 2);
  vl_device_close(&plan);
  vl_device_close(&cpu);
}

/* Weights of one channel are the same memory in formats of several names; under one that the library does not
 * know it would compute their gradient four hundred times more slowly, by its reference code. */
static void a_format_has_many_names(void **state) {
  (void)state;
  Device *device = open_device("cpu", NULL);
  Graph *graph = vl_graph_create("first convolution");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 5, (int64_t[]){2, 1, 18, 18, 18});
  Tensor *w = vl_graph_tensor(graph, "w", ROLE_PARAMETER, DTYPE_F32, 5, (int64_t[]){32, 1, 3, 3, 3});
  OpParams params = {.stride = {1, 1, 1}, .padding = {1, 1, 1}, .groups = 1};
  Tensor *y;
  assert_ok(vl_apply(graph, "conv", &params, (Tensor *[]){x, w}, 2, &y));
  Described forward;
  ask(device, y->producer, &forward);
  params.rank = 5;
  memcpy(params.shape, w->shape, sizeof w->shape);
  Node *node;
  assert_ok(vl_graph_add(graph, "conv_backward_weights", &params, (Tensor *[]){x, y}, 2, &node));
  LayoutId inputs[VL_MAX_INPUTS] = {forward.inputs[0], forward.outputs[0]},
           outputs[VL_MAX_OUTPUTS] = {forward.inputs[1]};
  Kernel *kernel;
  assert_ok(device->interface->prepare(device, node, inputs, outputs, &kernel));
  assert_null(strstr(device->interface->implementation(kernel), "ref"));
  device->interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
  vl_device_close(&device);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
/* Where the processor has what they need, own kernels compute weight gradients, unless the library has matrix
 * tiles: else the tests of their results would say nothing. */
static void weight_gradients_run_on_own_kernels(void **state) {
  (void)state;
  Device *device = open_device("cpu", NULL);
  const DType dtypes[] = {DTYPE_F32, DTYPE_BF16};
  const bool offered[] = {__builtin_cpu_supports("avx512bw"), __builtin_cpu_supports("avx512bf16")};
  for (size_t i = 0; i < 2; ++i) {
    if (!offered[i]) continue;
    Graph *graph = vl_graph_create("gradient");
    Tensor *operands[] = {
        vl_graph_tensor(graph, "x", ROLE_ACTIVATION, dtypes[i], 4, (int64_t[]){2, 32, 9, 9}),
        vl_graph_tensor(graph, "dy", ROLE_ACTIVATION, dtypes[i], 4, (int64_t[]){2, 64, 9, 9})};
    OpParams params = {.stride = {1, 1},
                       .padding = {1, 1},
                       .groups = 1,
                       .shape = {64, 32, 3, 3},
                       .rank = 4,
                       .dtype = DTYPE_F32};
    Node *node;
    Described described;
    assert_ok(vl_graph_add(graph, "conv_backward_weights", &params, operands, 2, &node));
    ask(device, node, &described);
    print_message("  %s: %s\n", vl_dtype_name(dtypes[i]), described.implementation);
    assert_true(strncmp(described.implementation, "own:", 4) == 0 ||
                (dtypes[i] == DTYPE_BF16 && strstr(described.implementation, "amx")));
    vl_graph_destroy(&graph);
  }
  vl_device_close(&device);
}

/* nChw16c, in which a 3x3 convolution of many channels leaves its result. */
static LayoutId blocked_layout(Device *device) {
  for (LayoutId layout = 1;; ++layout)
    if (strcmp(device->interface->layout_name(device, layout), "nChw16c") == 0) return layout;
}

/* So do own kernels 1x1 convolutions in bf16 and their data gradients, where they write no more channels than
 * they read or have a stride. */
static void pointwise_convolutions_run_on_own_kernels(void **state) {
  (void)state;
  if (!__builtin_cpu_supports("avx512bf16")) skip();
  Device *device = open_device("cpu", NULL);
  const struct {
    const char *op;
    int64_t first, written, stride; /* channels of the operand, of the result */
    bool own;
  } cases[] = {{"conv", 256, 64, 1, true},
               {"conv", 64, 128, 2, true},
               {"conv", 64, 128, 1, false},
               {"conv_backward_data", 256, 64, 1, true},
               {"conv_backward_data", 128, 64, 2, true},
               {"conv_backward_data", 64, 256, 1, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    bool backward = strcmp(cases[i].op, "conv") != 0;
    int64_t small = 14, large = small * cases[i].stride;
    int64_t first = cases[i].first, written = cases[i].written;
    int64_t operand[] = {2, first, backward ? small : large, backward ? small : large};
    int64_t weights[] = {backward ? first : written, backward ? written : first, 1, 1};
    Graph *graph = vl_graph_create("pointwise");
    Tensor *operands[] = {vl_graph_tensor(graph, "x", ROLE_ACTIVATION, DTYPE_BF16, 4, operand),
                          vl_graph_tensor(graph, "w", ROLE_PARAMETER, DTYPE_BF16, 4, weights)};
    OpParams params = {.stride = {cases[i].stride, cases[i].stride}, .groups = 1};
    if (backward) params.rank = 4, memcpy(params.shape, (int64_t[]){2, written, large, large}, 32);
    Node *node;
    assert_ok(vl_graph_add(graph, cases[i].op, &params, operands, 2, &node));
    LayoutId inputs[VL_MAX_INPUTS] = {LAYOUT_ANY, LAYOUT_ANY}, outputs[VL_MAX_OUTPUTS] = {LAYOUT_ANY};
    Kernel *kernel;
    inputs[0] = outputs[0] = blocked_layout(device);
    assert_ok(device->interface->choose_layouts(device, node, inputs, outputs));
    assert_ok(device->interface->prepare(device, node, inputs, outputs, &kernel));
    const char *implementation = device->interface->implementation(kernel);
    print_message("  %s %d to %d, stride %d: %s\n", cases[i].op, (int)first, (int)written,
                  (int)cases[i].stride, implementation);
    if (strstr(implementation, "amx") == NULL)
      assert_int_equal(strncmp(implementation, "own:", 4) == 0, cases[i].own);
    device->interface->kernel_destroy(device, &kernel);
    vl_graph_destroy(&graph);
  }
  vl_device_close(&device);
}
#endif

/* The layout a convolution (or its data gradient) in bf16 reads those weights in. */
static LayoutId layout_read(Device *device, const char *op, const int64_t *shape) {
  Graph *graph = vl_graph_create("reader");
  bool backward = strcmp(op, "conv") != 0;
  int64_t x_shape[] = {2, shape[backward ? 0 : 1], 8, 8};
  Tensor *operands[] = {vl_graph_tensor(graph, "x", ROLE_ACTIVATION, DTYPE_BF16, 4, x_shape),
                        vl_graph_tensor(graph, "w", ROLE_ACTIVATION, DTYPE_BF16, 4, shape)};
  OpParams params = {.stride = {1, 1},
                     .padding = {shape[2] / 2, shape[2] / 2},
                     .groups = 1,
                     .shape = {2, shape[1], 8, 8},
                     .rank = 4};
  Node *node;
  Described described;
  assert_ok(vl_graph_add(graph, op, &params, operands, 2, &node));
  ask(device, node, &described);
  vl_graph_destroy(&graph);
  return described.inputs[1];
}

static uintptr_t reserve_storage(Device *device, const Storage *storage) {
  const Backing *backing = device->interface->backing(device);
  uintptr_t address;
  assert_ok(backing->reserve(backing->context,
                             device->interface->storage_bytes(device, storage->layout, storage), &address));
  return address;
}

static void release_storage(Device *device, const Storage *storage, uintptr_t address) {
  const Backing *backing = device->interface->backing(device);
  backing->release(backing->context, address,
                   device->interface->storage_bytes(device, storage->layout, storage));
}

/* Casts parameters of that shape into a reader's layout, and compares with the conversion of one value. */
static void assert_cast_for(Device *device, const char *reader, const int64_t *shape) {
  enum { MOST = 48 * 64 * 9 };
  static float from[MOST];
  static uint16_t to[MOST];
  const DeviceInterface *interface = device->interface;
  Graph *graph = vl_graph_create("cast");
  Tensor *w = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 4, shape, (Init){.kind = INIT_ZERO});
  OpParams params = {.dtype = DTYPE_BF16};
  Node *node;
  assert_ok(vl_graph_add(graph, "cast", &params, &w, 1, &node));
  LayoutId inputs[VL_MAX_INPUTS] = {LAYOUT_ANY},
           outputs[VL_MAX_OUTPUTS] = {layout_read(device, reader, shape)};
  assert_ok(interface->choose_layouts(device, node, inputs, outputs));
  Storage *source = w->storage, *target = node->outputs[0]->storage;
  source->layout = inputs[0];
  target->layout = outputs[0];
  int64_t elements = vl_tensor_elements(w);
  assert_true(elements <= MOST);
  /* Every upper half of an f32, so every exponent, infinities and NaNs, and lower halves around a tie; no
   * subnormal numbers, which the library's conversion may flush. */
  for (int64_t i = 0; i < elements; ++i) {
    uint32_t upper = (uint32_t)(i * 40503 % 65536), lower = (uint32_t[]){0x7FFF, 0x8000, 0x8001, 0}[i % 4];
    if ((upper & 0x7F80U) == 0) upper = lower = 0;
    uint32_t bits = upper << 16 | lower;
    memcpy(&from[i], &bits, sizeof bits);
  }
  Kernel *kernel;
  assert_ok(interface->prepare(device, node, inputs, outputs, &kernel));
  print_message("  %s %d -> %d: %s to %s by %s\n", reader, (int)shape[1], (int)shape[0],
                interface->layout_name(device, inputs[0]), interface->layout_name(device, outputs[0]),
                interface->implementation(kernel));
  assert_ok(interface->build(device, kernel));
  uintptr_t addresses[] = {reserve_storage(device, source), reserve_storage(device, target)};
  assert_ok(interface->upload(device, source, from, addresses[0]));
  assert_ok(interface->launch(device, kernel, addresses, addresses + 1, 0, &(LaunchContext){0}));
  assert_ok(interface->download(device, target, addresses[1], to));
  for (int64_t i = 0; i < elements; ++i)
    assert_int_equal(to[i], vl_bf16_from_f32(from[i]));
  release_storage(device, source, addresses[0]);
  release_storage(device, target, addresses[1]);
  interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&graph);
}

static void weights_are_cast_into_what_convolutions_read(void **state) {
  (void)state;
  Device *device = open_device("cpu", NULL);
  const int64_t shapes[][4] = {
      {64, 32, 1, 1}, {32, 64, 3, 3}, {48, 64, 3, 3}, {256, 32, 1, 1}, {40, 24, 3, 3}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    assert_cast_for(device, "conv", shapes[i]);
    assert_cast_for(device, "conv_backward_data", shapes[i]);
  }
  vl_device_close(&device);
}

static void profile_charges_its_upper_workspace(void **state) {
  (void)state;
  DeviceProfile profile;
  assert_ok(vl_profile_load(SHIPPED, "H200", &profile));
  Device *device = open_device("plan", "H200");
  ConvNode conv = make_conv(DTYPE_F16);
  Described described;
  ask(device, conv.node, &described);
  assert_int_equal(described.workspace_bytes, profile.workspace_high_bytes);
  assert_int_equal(described.inputs[0], LAYOUT_PLAIN);
  assert_int_equal(described.outputs[0], LAYOUT_PLAIN);
  assert_int_equal(device->interface->storage_bytes(device, LAYOUT_PLAIN, conv.node->inputs[0]->storage),
                   2 * 32 * 8 * 8 * 2);
  vl_graph_destroy(&conv.graph);
  vl_device_close(&device);
}

/* A message that names the type and the accepted ones. */
static void cpu_refuses_types_it_has_no_kernels_for(void **state) {
  (void)state;
  Device *device = open_device("cpu", NULL);
  ConvNode conv = make_conv(DTYPE_F64);
  Status status = device->interface->supports(device, conv.node);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "f64"));
  assert_non_null(strstr(status.message, "accepted: f32, bf16"));
  vl_graph_destroy(&conv.graph);
  vl_device_close(&device);
}

/* f16 runs by way of f32, on a cpu and in plans for it, and says so; a card has it. */
static void f16_is_emulated_on_the_cpu_only(void **state) {
  (void)state;
  static const struct {
    const char *device, *profile;
    bool emulated;
  } cases[] = {{"cpu", NULL, true}, {"plan", NULL, true}, {"plan", "H200", false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    Device *device = open_device(cases[i].device, cases[i].profile);
    for (int type = 0; type < 2; ++type) {
      ConvNode conv = make_conv(type ? DTYPE_F16 : DTYPE_BF16);
      const DeviceInterface *interface = device->interface;
      LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
      for (int k = 0; k < VL_MAX_INPUTS; ++k)
        inputs[k] = LAYOUT_ANY;
      for (int k = 0; k < VL_MAX_OUTPUTS; ++k)
        outputs[k] = LAYOUT_ANY;
      Kernel *kernel = NULL;
      assert_ok(interface->supports(device, conv.node));
      assert_ok(interface->choose_layouts(device, conv.node, inputs, outputs));
      assert_ok(interface->prepare(device, conv.node, inputs, outputs, &kernel));
      bool emulated = interface->is_emulated && interface->is_emulated(kernel);
      assert_int_equal(emulated, type && cases[i].emulated);
      interface->kernel_destroy(device, &kernel);
      vl_graph_destroy(&conv.graph);
    }
    vl_device_close(&device);
  }
}

/* RSS grows by what is reserved and falls by what is released. Tolerance: the kernel counts resident pages
 * per thread in batches and hands them in late (up to 64 pages a thread and counter), and printing touches
 * some. */
static void cpu_reserves_resident_pages(void **state) {
  (void)state;
  Device *device = open_device("cpu", NULL);
  const DeviceInterface *interface = device->interface;
  const Backing *backing = interface->backing(device);
  const int64_t bytes = 96 * MIB, tolerance = 2 * MIB;
  uintptr_t address;
  int64_t before = interface->driver_bytes(device);
  if (interface->driver_peak_bytes(device, true) < 0) skip(); /* no clear_refs here */
  assert_ok(backing->reserve(backing->context, bytes, &address));
  assert_int_equal(address % (2 * MIB), 0);
  int64_t held = interface->driver_bytes(device);
  assert_in_range(held - before, bytes - tolerance, bytes + tolerance);
  ((volatile char *)address)[bytes - 1] = 1;
  backing->release(backing->context, address, bytes);
  int64_t after = interface->driver_bytes(device);
  assert_in_range(held - after, bytes - tolerance, bytes + tolerance);
  /* The peak remembers; a reset forgets. */
  assert_true(interface->driver_peak_bytes(device, true) >= held - tolerance);
  assert_true(interface->driver_peak_bytes(device, false) <= after + tolerance);
  vl_device_close(&device);
}

static void cpu_refuses_more_than_the_machine_has(void **state) {
  (void)state;
  Device *device = open_device("cpu", NULL);
  const Backing *backing = device->interface->backing(device);
  DeviceDescription description;
  device->interface->describe(device, &description);
  uintptr_t address;
  Status status = backing->reserve(backing->context, description.memory_bytes, &address);
  assert_int_equal(status.code, VL_OUT_OF_MEMORY);
  assert_non_null(strstr(status.message, "GiB"));
  assert_true(strstr(status.message, "MemAvailable") || strstr(status.message, "memory.max"));
  vl_device_close(&device);
}

/* Plain data comes back from a padded layout as it went in, and the padding holds zeros. */
static void upload_and_download_are_inverse(void **state) {
  (void)state;
  Device *device = open_device("cpu", NULL);
  const DeviceInterface *interface = device->interface;
  const Backing *backing = interface->backing(device);
  enum { N = 2, C = 20, H = 3, ELEMENTS = N * C * H * H, PADDED_C = 32 };
  Graph *graph = vl_graph_create("upload");
  int64_t shape[] = {N, C, H, H};
  Storage *storage = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 4, shape)->storage;
  for (LayoutId layout = LAYOUT_PLAIN; layout < 64; ++layout)
    if (strcmp(interface->layout_name(device, layout), "nChw16c") == 0) storage->layout = layout;
  assert_true(storage->layout > LAYOUT_PLAIN);
  int64_t bytes = interface->storage_bytes(device, storage->layout, storage);
  assert_int_equal(bytes, N * PADDED_C * H * H * 4);
  float in[ELEMENTS], out[ELEMENTS] = {0};
  for (int i = 0; i < ELEMENTS; ++i)
    in[i] = (float)(i + 1);
  uintptr_t address;
  assert_ok(backing->reserve(backing->context, bytes, &address));
  float *memory = (float *)address;
  memset(memory, 0xff, (size_t)bytes);
  assert_ok(interface->upload(device, storage, in, address));
  double sum = 0.0;
  for (int64_t i = 0; i < bytes / 4; ++i)
    sum += (double)memory[i];
  assert_true(sum == ELEMENTS * (ELEMENTS + 1) / 2); /* exact in double; NaN where padding was left alone */
  assert_true(memory[1] == (float)(H * H + 1));      /* channel 1 of the first pixel */
  assert_ok(interface->download(device, storage, address, out));
  assert_memory_equal(in, out, sizeof in);
  backing->release(backing->context, address, bytes);
  vl_graph_destroy(&graph);
  vl_device_close(&device);
}

/* 64 MB over a link of 64 GB/s take 1 ms, less what is launched meanwhile; copies follow each other. Where no
 * rate is known nothing is said. */
static void plan_counts_what_launches_wait_for_copies(void **state) {
  (void)state;
  enum { BYTES = 64000000, COPY_NS = 1000000 };
  Device *device = open_device("plan", "H200");
  const DeviceInterface *interface = device->interface;
  const Backing *tier;
  uint64_t first, second;
  assert_ok(interface->offload_open(device, &tier));
  assert_ok(interface->offload_copy(device, true, 1, 1, BYTES, &first));
  assert_ok(interface->offload_copy(device, false, 1, 1, BYTES, &second));
  assert_ok(interface->offload_wait(device, first));
  assert_int_equal(interface->offload_stall_ns(device), COPY_NS);
  ConvNode conv = make_conv(DTYPE_F32);
  LayoutId inputs[2] = {LAYOUT_PLAIN, LAYOUT_PLAIN}, output = LAYOUT_PLAIN;
  Kernel *kernel;
  LaunchContext context = {0};
  uintptr_t addresses[2] = {0};
  assert_ok(interface->prepare(device, conv.node, inputs, &output, &kernel));
  int64_t launch_ns = interface->launch_ns(kernel);
  assert_true(launch_ns > 0 && launch_ns < COPY_NS);
  assert_ok(interface->launch(device, kernel, addresses, addresses, 0, &context));
  assert_ok(interface->offload_wait(device, second));
  assert_int_equal(interface->offload_stall_ns(device), COPY_NS - launch_ns);
  assert_ok(interface->offload_wait(device, second));
  assert_int_equal(interface->offload_stall_ns(device), 0);
  interface->kernel_destroy(device, &kernel);
  vl_graph_destroy(&conv.graph);
  vl_device_close(&device);
  device = open_device("plan", NULL);
  assert_ok(device->interface->offload_copy(device, true, 1, 1, BYTES, &first));
  assert_ok(device->interface->offload_wait(device, first));
  assert_int_equal(device->interface->offload_stall_ns(device), -1);
  vl_device_close(&device);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(unknown_names_are_refused_with_the_known),
    cmocka_unit_test(module_that_does_not_load_is_named),
    cmocka_unit_test(plan_hands_out_distinct_addresses),
    cmocka_unit_test(plan_refuses_beyond_the_profile),
    cmocka_unit_test(plan_describes_as_the_cpu_does),
    cmocka_unit_test(a_format_has_many_names),
    cmocka_unit_test(weights_are_cast_into_what_convolutions_read),
    cmocka_unit_test(profile_charges_its_upper_workspace),
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    cmocka_unit_test(weight_gradients_run_on_own_kernels),
    cmocka_unit_test(pointwise_convolutions_run_on_own_kernels),
#endif
    cmocka_unit_test(cpu_refuses_types_it_has_no_kernels_for),
    cmocka_unit_test(f16_is_emulated_on_the_cpu_only),
    cmocka_unit_test(cpu_reserves_resident_pages),
    cmocka_unit_test(cpu_refuses_more_than_the_machine_has),
    cmocka_unit_test(upload_and_download_are_inverse),
    cmocka_unit_test(plan_counts_what_launches_wait_for_copies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
