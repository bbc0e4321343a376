/* Times the convolutions of ResNet-50 or of the 3D U-Net for every layout family and every implementation
 * oneDNN offers in it, and as the cpu device runs them between blocked activations, own kernels included: the
 * measurement behind the choices in conv.c. Prints GFLOP/s per shape, the time of a whole step, and
 * CTestMeasurement lines.
 *
 *   bench-conv [batch] [f32|bf16] [repetitions] [resnet50|unet3d] [groups] [size]
 */
#include "devices/device.h"
#include "oneapi/dnnl/dnnl.h"
#include "oneapi/dnnl/dnnl_debug.h"
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Channels, window, stride, groups, input's sides (all alike), and how many layers have it. */
typedef struct Shape {
  int64_t in, out, kernel, stride, groups, size;
  int32_t count;
} Shape;

static const Shape resnet50[] = {
    {3, 64, 7, 2, 1, 224, 1},    {64, 64, 1, 1, 1, 56, 1},     {256, 64, 1, 1, 1, 56, 2},
    {64, 64, 3, 1, 1, 56, 3},    {64, 256, 1, 1, 1, 56, 4},    {256, 128, 1, 1, 1, 56, 1},
    {512, 128, 1, 1, 1, 28, 3},  {128, 128, 3, 2, 1, 56, 1},   {128, 128, 3, 1, 1, 28, 3},
    {128, 512, 1, 1, 1, 28, 4},  {256, 512, 1, 2, 1, 56, 1},   {512, 256, 1, 1, 1, 28, 1},
    {1024, 256, 1, 1, 1, 14, 5}, {256, 256, 3, 2, 1, 28, 1},   {256, 256, 3, 1, 1, 14, 5},
    {256, 1024, 1, 1, 1, 14, 6}, {512, 1024, 1, 2, 1, 28, 1},  {1024, 512, 1, 1, 1, 14, 1},
    {2048, 512, 1, 1, 1, 7, 2},  {512, 512, 3, 2, 1, 14, 1},   {512, 512, 3, 1, 1, 7, 2},
    {512, 2048, 1, 1, 1, 7, 3},  {1024, 2048, 1, 2, 1, 14, 1},
};

/* Patches of side 64; other sides and groups are set from the command line. */
static const Shape unet3d[] = {
    {1, 32, 3, 1, 1, 64, 1},    {32, 32, 3, 1, 1, 64, 2},   {64, 32, 3, 1, 1, 64, 1},
    {32, 64, 3, 2, 1, 64, 1},   {64, 64, 3, 1, 1, 32, 2},   {128, 64, 3, 1, 1, 32, 1},
    {64, 128, 3, 2, 1, 32, 1},  {128, 128, 3, 1, 1, 16, 2}, {256, 128, 3, 1, 1, 16, 1},
    {128, 256, 3, 2, 1, 16, 1}, {256, 256, 3, 1, 1, 8, 2},  {512, 256, 3, 1, 1, 8, 1},
    {256, 320, 3, 2, 1, 8, 1},  {320, 320, 3, 1, 1, 4, 1},  {32, 3, 1, 1, 1, 64, 1},
};

enum { SHAPES_MOST = 32, IMAGE_CHANNELS = 4 };

typedef enum Pass { FORWARD = 0, BACKWARD_DATA, BACKWARD_WEIGHTS, BACKWARD_WEIGHTS_PRESET, PASSES } Pass;
static const char *const pass_names[PASSES] = {"forward", "backward-data", "backward-weights",
                                               "backward-weights-preset"};
typedef enum Family { BLOCKED = 0, CHANNELS_LAST, ANY, DEVICE, FAMILIES } Family;
static const char *const family_names[FAMILIES] = {"blocked", "channels-last", "any", "device"};

/* One way to run one pass of one shape. */
typedef struct Candidate {
  int32_t shape;
  Pass pass;
  Family family;
  int32_t variant; /* place in the library's list */
  char implementation[64];
  dnnl_primitive_t primitive;
  dnnl_memory_t memory[4]; /* in execution order; the last is the scratchpad */
  dnnl_exec_arg_t arguments[4];
  Kernel *kernel; /* of the device, instead of a primitive */
  const Node *node;
  int64_t best_ns;
} Candidate;

typedef struct Bench {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  dnnl_primitive_attr_t attributes;
  dnnl_data_type_t type;
  Device *device;
  Graph *graph; /* of the device's kernels */
  int64_t batch;
  int32_t space; /* spatial dimensions */
  Shape shapes[SHAPES_MOST];
  int32_t shape_count;
  void *buffers[4];
  size_t sizes[4];
  Candidate *candidates;
  int32_t count;
} Bench;

static void check(dnnl_status_t status, const char *what) {
  if (status == dnnl_success) return;
  fprintf(stderr, "bench-conv: %s: %s\n", what, dnnl_status2str(status));
  abort();
}

static void check_status(Status status) {
  if (status.code == VL_OK) return;
  fprintf(stderr, "bench-conv: %s\n", status.message);
  exit(vl_status_exit_code(status.code));
}

static int64_t output_size(const Shape *s) {
  return (s->size + 2 * (s->kernel / 2) - s->kernel) / s->stride + 1;
}

static double power(int64_t side, int32_t exponent) {
  double result = 1.0;
  for (int32_t i = 0; i < exponent; ++i)
    result *= (double)side;
  return result;
}

static double flops(const Bench *bench, const Shape *s) {
  double macs = (double)(s->in / s->groups * s->out) * power(s->kernel, bench->space);
  return 2.0 * (double)bench->batch * macs * power(output_size(s), bench->space);
}

/* Weights with groups > 1 have the groups as a dimension of their own. */
static int fill_dims(const Bench *bench, int64_t a, int64_t b, int64_t side, int64_t groups,
                     dnnl_dims_t dims) {
  int rank = 0;
  if (groups > 1) dims[rank++] = groups;
  dims[rank++] = a / groups;
  dims[rank++] = b;
  for (int32_t i = 0; i < bench->space; ++i)
    dims[rank++] = side;
  return rank;
}

static dnnl_memory_desc_t activation(const Bench *bench, int64_t channels, int64_t side,
                                     dnnl_format_tag_t tag) {
  dnnl_memory_desc_t md;
  dnnl_dims_t dims;
  int rank = fill_dims(bench, bench->batch, channels, side, 1, dims);
  check(dnnl_memory_desc_create_with_tag(&md, rank, dims, bench->type, tag), "memory descriptor");
  return md;
}

static dnnl_memory_desc_t weights_of(const Bench *bench, const Shape *s, dnnl_data_type_t type) {
  dnnl_memory_desc_t md;
  dnnl_dims_t dims;
  int rank = fill_dims(bench, s->out, s->in / s->groups, s->kernel, s->groups, dims);
  check(dnnl_memory_desc_create_with_tag(&md, rank, dims, type, dnnl_format_tag_any), "memory descriptor");
  return md;
}

static dnnl_format_tag_t tag_of(const Bench *bench, Family family) {
  bool volumes = bench->space == 3;
  switch (family) {
  case BLOCKED: return volumes ? dnnl_aBcde16b : dnnl_aBcd16b;
  case CHANNELS_LAST: return volumes ? dnnl_acdeb : dnnl_acdb;
  default: return dnnl_format_tag_any;
  }
}

/* The pass's primitive descriptor, NULL when the library has none. `weights` is taken over; NULL: any. */
static dnnl_primitive_desc_t describe(const Bench *bench, const Shape *s, Pass pass, Family family,
                                      dnnl_memory_desc_t weights) {
  dnnl_format_tag_t tag = tag_of(bench, family), plain = bench->space == 3 ? dnnl_abcde : dnnl_abcd;
  /* Few channels are the image: plain in a blocked network. */
  dnnl_format_tag_t source_tag = s->in <= IMAGE_CHANNELS && family == BLOCKED ? plain : tag;
  dnnl_data_type_t weight_type = pass >= BACKWARD_WEIGHTS ? dnnl_f32 : bench->type;
  dnnl_memory_desc_t x = activation(bench, s->in, s->size, source_tag);
  dnnl_memory_desc_t y = activation(bench, s->out, output_size(s), tag);
  dnnl_memory_desc_t w = weights ? weights : weights_of(bench, s, weight_type);
  int64_t middle = s->kernel / 2;
  dnnl_dims_t stride = {s->stride, s->stride, s->stride}, dilation = {0, 0, 0},
              padding = {middle, middle, middle};
  dnnl_primitive_desc_t pd = NULL;
  dnnl_status_t status;
  /* The hint stays empty: convolutions do not read it. */
  if (pass == FORWARD)
    status = dnnl_convolution_forward_primitive_desc_create(&pd, bench->engine, dnnl_forward_training,
                                                            dnnl_convolution_direct, x, w, NULL, y, stride,
                                                            dilation, padding, padding, bench->attributes);
  else if (pass == BACKWARD_DATA)
    status = dnnl_convolution_backward_data_primitive_desc_create(&pd, bench->engine, dnnl_convolution_direct,
                                                                  x, w, y, stride, dilation, padding, padding,
                                                                  NULL, bench->attributes);
  else
    status = dnnl_convolution_backward_weights_primitive_desc_create(
        &pd, bench->engine, dnnl_convolution_direct, x, w, NULL, y, stride, dilation, padding, padding, NULL,
        bench->attributes);
  dnnl_memory_desc_destroy(x);
  dnnl_memory_desc_destroy(y);
  dnnl_memory_desc_destroy(w);
  return status == dnnl_success ? pd : NULL;
}

static void operands(Pass pass, dnnl_query_t queries[4], int arguments[4]) {
  static const dnnl_query_t query_table[3][3] = {
      {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
      {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
      {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
  static const int argument_table[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                           {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                           {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  int32_t row = pass > BACKWARD_WEIGHTS ? BACKWARD_WEIGHTS : (int32_t)pass;
  for (int32_t i = 0; i < 3; ++i) {
    queries[i] = query_table[row][i];
    arguments[i] = argument_table[row][i];
  }
  queries[3] = dnnl_query_scratchpad_md;
  arguments[3] = DNNL_ARG_SCRATCHPAD;
}

static Candidate *new_candidate(Bench *bench, int32_t shape, Pass pass, Family family) {
  bench->candidates = vl_reallocate(bench->candidates, (size_t)(bench->count + 1) * sizeof(Candidate));
  Candidate *candidate = &bench->candidates[bench->count++];
  memset(candidate, 0, sizeof *candidate);
  candidate->shape = shape;
  candidate->pass = pass;
  candidate->family = family;
  candidate->best_ns = INT64_MAX;
  return candidate;
}

static void add(Bench *bench, int32_t shape, Pass pass, Family family, int32_t variant,
                const_dnnl_primitive_desc_t pd) {
  Candidate *candidate = new_candidate(bench, shape, pass, family);
  candidate->variant = variant;
  const char *implementation = "?";
  check(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &implementation), "implementation");
  snprintf(candidate->implementation, sizeof candidate->implementation, "%s", implementation);
  check(dnnl_primitive_create(&candidate->primitive, pd), "primitive");
  dnnl_query_t queries[4];
  int arguments[4];
  operands(pass, queries, arguments);
  for (int32_t i = 0; i < 4; ++i) {
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, queries[i], 0);
    size_t bytes = dnnl_memory_desc_get_size(md);
    if (bytes > bench->sizes[i]) bench->sizes[i] = bytes;
    check(dnnl_memory_create(&candidate->memory[i], md, bench->engine, DNNL_MEMORY_NONE), "memory");
    candidate->arguments[i] = (dnnl_exec_arg_t){arguments[i], candidate->memory[i]};
  }
}

/* Reference implementations take minutes and are never a choice. */
static bool is_worth_timing(const_dnnl_primitive_desc_t pd) {
  const char *implementation = "";
  check(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &implementation), "implementation");
  return strncmp(implementation, "ref", 3) != 0 && strncmp(implementation, "gemm:ref", 8) != 0;
}

static dnnl_memory_desc_t forward_weights(const Bench *bench, const Shape *s, Family family) {
  dnnl_primitive_desc_t pd = describe(bench, s, FORWARD, family, NULL);
  dnnl_memory_desc_t md = NULL;
  if (!pd) return NULL;
  /* The gradient is f32 and laid out as the weights are; only the name of the layout carries over. */
  for (int tag = dnnl_a; tag < dnnl_format_tag_last && !md; ++tag) {
    dnnl_dims_t dims;
    int rank = fill_dims(bench, s->out, s->in / s->groups, s->kernel, s->groups, dims);
    dnnl_memory_desc_t guess = NULL;
    if (dnnl_memory_desc_create_with_tag(&guess, rank, dims, bench->type, (dnnl_format_tag_t)tag) !=
        dnnl_success)
      continue;
    if (dnnl_memory_desc_equal(guess, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0)))
      check(dnnl_memory_desc_create_with_tag(&md, rank, dims, dnnl_f32, (dnnl_format_tag_t)tag), "weights");
    dnnl_memory_desc_destroy(guess);
  }
  dnnl_primitive_desc_destroy(pd);
  return md;
}

static void add_all(Bench *bench, int32_t shape, Pass pass, Family family, bool variants) {
  const Shape *s = &bench->shapes[shape];
  if (pass == BACKWARD_DATA && s->in <= IMAGE_CHANNELS) return; /* images need no gradient */
  dnnl_memory_desc_t weights = NULL;
  if (pass == BACKWARD_WEIGHTS_PRESET) {
    if (bench->type != dnnl_f32) return; /* the weights of low precision are not the parameter */
    weights = forward_weights(bench, s, family);
    if (!weights) return;
  }
  dnnl_primitive_desc_t pd = describe(bench, s, pass, family, weights);
  if (!pd) {
    printf("none: %s %s of %" PRId64 " -> %" PRId64 ", window %" PRId64 ", %" PRId64 " groups\n",
           pass_names[pass], family_names[family], s->in, s->out, s->kernel, s->groups);
    return;
  }
  int32_t variant = 0;
  do {
    if (is_worth_timing(pd)) add(bench, shape, pass, family, variant, pd);
    ++variant;
  } while (variants && dnnl_primitive_desc_next_impl(pd) == dnnl_success);
  dnnl_primitive_desc_destroy(pd);
}

/* ---- As the device runs them --------------------------------------------------------------------------------- */

static LayoutId layout_named(const Bench *bench, const char *name) {
  for (LayoutId id = 1;; ++id) {
    const char *found = bench->device->interface->layout_name(bench->device, id);
    if (strcmp(found, name) == 0) return id;
    if (strcmp(found, "unknown") == 0) return LAYOUT_ANY;
  }
}

static Node *device_node(const Bench *bench, const Shape *s, Pass pass, DType dtype) {
  static const char *const ops[] = {"conv", "conv_backward_data", "conv_backward_weights"};
  int64_t x_shape[VL_MAX_DIMS] = {bench->batch, s->in}, y_shape[VL_MAX_DIMS] = {bench->batch, s->out};
  int64_t w_shape[VL_MAX_DIMS] = {s->out, s->in / s->groups};
  int32_t rank = 2 + bench->space;
  OpParams params = {.groups = s->groups, .rank = rank, .dtype = DTYPE_F32};
  for (int32_t i = 0; i < bench->space; ++i) {
    params.stride[i] = s->stride;
    params.padding[i] = s->kernel / 2;
    x_shape[2 + i] = s->size;
    y_shape[2 + i] = output_size(s);
    w_shape[2 + i] = s->kernel;
  }
  Tensor *x = vl_graph_tensor(bench->graph, "x", ROLE_ACTIVATION, dtype, rank, x_shape);
  Tensor *y = vl_graph_tensor(bench->graph, "y", ROLE_ACTIVATION, dtype, rank, y_shape);
  Tensor *w = vl_graph_tensor(bench->graph, "w", ROLE_ACTIVATION, dtype, rank, w_shape);
  Tensor *inputs[PASSES][2] = {{x, w}, {y, w}, {x, y}};
  memcpy(params.shape, pass == BACKWARD_DATA ? x_shape : w_shape, sizeof params.shape);
  Node *node;
  check_status(vl_graph_add(bench->graph, ops[pass], &params, inputs[pass], 2, &node));
  return node;
}

/* Between blocked activations, the image plain; weights as the device wants them. */
static void add_device(Bench *bench, int32_t shape, Pass pass) {
  const DeviceInterface *interface = bench->device->interface;
  const Shape *s = &bench->shapes[shape];
  if (pass == BACKWARD_WEIGHTS_PRESET || (pass == BACKWARD_DATA && s->in <= IMAGE_CHANNELS)) return;
  DType dtype = bench->type == dnnl_bf16 ? DTYPE_BF16 : DTYPE_F32;
  Node *node = device_node(bench, s, pass, dtype);
  LayoutId blocked = layout_named(bench, bench->space == 3 ? "nCdhw16c" : "nChw16c");
  LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < VL_MAX_INPUTS; ++i)
    inputs[i] = LAYOUT_ANY;
  for (int32_t i = 0; i < VL_MAX_OUTPUTS; ++i)
    outputs[i] = LAYOUT_ANY;
  inputs[0] = pass != BACKWARD_DATA && s->in <= IMAGE_CHANNELS ? LAYOUT_PLAIN : blocked;
  if (pass == BACKWARD_WEIGHTS) inputs[1] = blocked;
  Candidate *candidate = new_candidate(bench, shape, pass, DEVICE);
  candidate->node = node;
  check_status(interface->choose_layouts(bench->device, node, inputs, outputs));
  check_status(interface->prepare(bench->device, node, inputs, outputs, &candidate->kernel));
  check_status(interface->build(bench->device, candidate->kernel));
  snprintf(candidate->implementation, sizeof candidate->implementation, "%s",
           interface->implementation(candidate->kernel));
  LayoutId layouts[] = {inputs[0], inputs[1], outputs[0]};
  const Tensor *tensors[] = {node->inputs[0], node->inputs[1], node->outputs[0]};
  for (int32_t i = 0; i < 4; ++i) {
    int64_t bytes = i == 3 ? interface->workspace_bytes(candidate->kernel)
                           : interface->storage_bytes(bench->device, layouts[i], tensors[i]->storage);
    if ((size_t)bytes > bench->sizes[i]) bench->sizes[i] = (size_t)bytes;
  }
}

static void fill_buffers(Bench *bench) {
  for (int32_t i = 0; i < 4; ++i) {
    size_t bytes = (bench->sizes[i] + 4095) / 4096 * 4096;
    if (bytes == 0) bytes = 4096;
    bench->buffers[i] = aligned_alloc(4096, bytes);
    if (!bench->buffers[i]) check(dnnl_out_of_memory, "buffers");
    /* 0x3c3c is 0.0115 in bf16 and 0x3c3c3c3c 0.0115 in f32: ordinary numbers. */
    memset(bench->buffers[i], 0x3c, bytes);
  }
}

static void run_primitive(const Bench *bench, Candidate *candidate) {
  check(dnnl_primitive_execute(candidate->primitive, bench->stream, 4, candidate->arguments), "execute");
  check(dnnl_stream_wait(bench->stream), "wait");
}

static void run_kernel(const Bench *bench, Candidate *candidate) {
  LaunchContext context = {0};
  uintptr_t inputs[VL_MAX_INPUTS] = {(uintptr_t)bench->buffers[0], (uintptr_t)bench->buffers[1]};
  uintptr_t outputs[VL_MAX_OUTPUTS] = {(uintptr_t)bench->buffers[2]};
  check_status(bench->device->interface->launch(bench->device, candidate->kernel, inputs, outputs,
                                                (uintptr_t)bench->buffers[3], &context));
  check_status(bench->device->interface->synchronize(bench->device));
}

static void time_candidate(Bench *bench, Candidate *candidate) {
  for (int32_t i = 0; i < 4 && candidate->primitive; ++i)
    check(dnnl_memory_set_data_handle(candidate->memory[i], bench->buffers[i]), "handle");
  int64_t start = vl_monotonic_ns();
  if (candidate->primitive)
    run_primitive(bench, candidate);
  else
    run_kernel(bench, candidate);
  int64_t elapsed = vl_monotonic_ns() - start;
  if (elapsed < candidate->best_ns) candidate->best_ns = elapsed;
}

static const Candidate *best(const Bench *bench, int32_t shape, Pass pass, Family family, bool first_only) {
  const Candidate *found = NULL;
  for (int32_t i = 0; i < bench->count; ++i) {
    const Candidate *c = &bench->candidates[i];
    if (c->shape != shape || c->pass != pass || c->family != family) continue;
    if (first_only && c->variant != 0) continue;
    if (!found || c->best_ns < found->best_ns) found = c;
  }
  return found;
}

static void print_table(const Bench *bench) {
  for (Pass pass = FORWARD; pass < PASSES; ++pass) {
    printf("\n%s, GFLOP/s of the library's first choice (of its fastest, where another is 3 %% faster)\n",
           pass_names[pass]);
    for (int32_t i = 0; i < bench->shape_count; ++i) {
      const Shape *s = &bench->shapes[i];
      printf("%4" PRId64 " ->%4" PRId64 " /%" PRId64 "  %" PRId64 "/%" PRId64 " at %3" PRId64 " x%d", s->in,
             s->out, s->groups, s->kernel, s->stride, s->size, s->count);
      for (Family family = BLOCKED; family < FAMILIES; ++family) {
        const Candidate *first = best(bench, i, pass, family, true);
        const Candidate *fastest = best(bench, i, pass, family, false);
        if (!fastest) continue;
        if (!first) first = fastest;
        printf("  %s %.0f %s", family_names[family], flops(bench, s) / (double)first->best_ns,
               first->implementation);
        if ((double)fastest->best_ns < 0.97 * (double)first->best_ns)
          printf(" (%.0f %s)", flops(bench, s) / (double)fastest->best_ns, fastest->implementation);
      }
      printf("\n");
    }
  }
}

/* Milliseconds of a pass over all layers. */
static double pass_ms(const Bench *bench, Pass pass, Family family, bool first_only) {
  double ms = 0.0;
  for (int32_t i = 0; i < bench->shape_count; ++i) {
    const Candidate *found = best(bench, i, pass, family, first_only);
    if (!found) found = best(bench, i, pass, family, false);
    if (found) ms += (double)found->best_ns * 1e-6 * bench->shapes[i].count;
  }
  return ms;
}

static void print_totals(const Bench *bench) {
  printf("\nall convolutions of a step, ms: the library's first choice / its fastest\n");
  for (Family family = BLOCKED; family < FAMILIES; ++family) {
    printf("%-8s", family_names[family]);
    double first_ms = 0.0, fastest_ms = 0.0;
    for (Pass pass = FORWARD; pass < PASSES; ++pass) {
      double first = pass_ms(bench, pass, family, true), fastest = pass_ms(bench, pass, family, false);
      printf("  %s %.1f / %.1f", pass_names[pass], first, fastest);
      if (pass == BACKWARD_WEIGHTS_PRESET) continue; /* the same work again */
      first_ms += first;
      fastest_ms += fastest;
    }
    printf("  step %.1f / %.1f\n", first_ms, fastest_ms);
    printf("<CTestMeasurement type=\"numeric/double\" name=\"conv_step_%s_ms\">%.3f</CTestMeasurement>\n",
           family_names[family], first_ms);
  }
}

/* A convolution whose channels do not divide by the groups has none, as in the case. */
static void choose_shapes(Bench *bench, const Shape *shapes, size_t count, int64_t groups, int64_t size) {
  bench->shape_count = (int32_t)count;
  for (size_t i = 0; i < count; ++i) {
    Shape *s = &bench->shapes[i];
    *s = shapes[i];
    s->size = s->size * size / shapes[0].size;
    if (s->kernel > 1 && s->in % groups == 0 && s->out % groups == 0) s->groups = groups;
  }
}

static void usage(void) {
  fprintf(stderr, "usage: bench-conv [batch, at least 1] [f32|bf16] [repetitions, at least 1] "
                  "[resnet50|unet3d] [groups, at least 1] [size, at least 16]\n");
  exit(2);
}

int main(int argc, char **argv) {
  Bench bench = {.batch = argc > 1 ? atol(argv[1]) : 16, .type = dnnl_f32};
  bool bf16 = argc > 2 && strcmp(argv[2], "bf16") == 0, f32 = argc < 3 || strcmp(argv[2], "f32") == 0;
  long repetitions = argc > 3 ? atol(argv[3]) : 3;
  const char *net = argc > 4 ? argv[4] : "resnet50";
  bool volumes = strcmp(net, "unet3d") == 0;
  int64_t groups = argc > 5 ? atol(argv[5]) : 1, size = argc > 6 ? atol(argv[6]) : volumes ? 64 : 224;
  if (argc > 7 || bench.batch < 1 || repetitions < 1 || groups < 1 || size < 16) usage();
  if (!(bf16 || f32) || !(volumes || strcmp(net, "resnet50") == 0)) usage();
  if (bf16) bench.type = dnnl_bf16;
  bench.space = volumes ? 3 : 2;
  bench.graph = vl_graph_create("bench");
  if (volumes)
    choose_shapes(&bench, unet3d, sizeof unet3d / sizeof *unet3d, groups, size);
  else
    choose_shapes(&bench, resnet50, sizeof resnet50 / sizeof *resnet50, groups, size);
  check_status(vl_device_open("cpu", &(DeviceOptions){.threads = omp_get_max_threads()}, &bench.device));
  check(dnnl_engine_create(&bench.engine, dnnl_cpu, 0), "engine");
  check(dnnl_stream_create(&bench.stream, bench.engine, dnnl_stream_default_flags), "stream");
  check(dnnl_primitive_attr_create(&bench.attributes), "attributes");
  check(dnnl_primitive_attr_set_scratchpad_mode(bench.attributes, dnnl_scratchpad_mode_user), "scratchpad");
  for (int32_t shape = 0; shape < bench.shape_count; ++shape) {
    for (Pass pass = FORWARD; pass < PASSES; ++pass) {
      for (Family family = BLOCKED; family < DEVICE; ++family)
        add_all(&bench, shape, pass, family, family != ANY);
      add_device(&bench, shape, pass);
    }
  }
  fill_buffers(&bench);
  for (long repetition = 0; repetition < repetitions; ++repetition)
    for (int32_t i = 0; i < bench.count; ++i)
      time_candidate(&bench, &bench.candidates[i]);
  print_table(&bench);
  print_totals(&bench);
  return 0;
}
