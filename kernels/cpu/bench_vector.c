/* bench-vector [batch] [repetitions] [op]: the kernels that are bound by memory, at ResNet-50's sizes, in the
 * layout its convolutions choose on this machine, at BERT's, and at a 3-D U-Net's (an eighth of the batch).
 * For each: GB/s of what must be read and written once, and its ratio to a memcpy of as many bytes by as many
 * threads (1.00: nothing left to gain). Prints CTestMeasurement lines. */
#include "devices/device.h"

#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A node to time. Inputs by letter: a activation, c channel vector, s the pooled side, i its index, n (N, C),
 * w weights, v their squares, W as many in a matrix, q their codes and z the scales of those, t tokens (N,
 * side^2, C), r a number for each token, V a volume, m its (N, C), g logits for it, L their
 * labels, u sums for those, l a loss, - absent. */
typedef struct Row {
  const char *label, *op, *inputs;
  OpParams params;
  bool in_place; /* output 0 over input 0, and a residual's gradient over a second one */
  bool pools;    /* only at the stem's size */
  bool once;     /* only at one size */
  bool tokens;   /* at BERT's sizes */
  bool volumes;  /* at a 3-D U-Net's sizes */
  int64_t classes;
} Row;

static const Row rows[] = {
    {.label = "batch_norm_stats", .op = "batch_norm_stats", .inputs = "a"},
    {.label = "batch_norm_apply", .op = "batch_norm_apply", .inputs = "acccc"},
    {.label = "  in place, ReLU",
     .op = "batch_norm_apply",
     .inputs = "acccc",
     .params.relu = 1,
     .in_place = true},
    {.label = "  residual, ReLU", .op = "batch_norm_apply", .inputs = "acccca", .params.relu = 1},
    {.label = "batch_norm_backward", .op = "batch_norm_backward", .inputs = "aaccc"},
    {.label = "  in place, ReLU from x",
     .op = "batch_norm_backward",
     .inputs = "aacccc",
     .params.relu = 1,
     .in_place = true},
    {.label = "  residual, ReLU from y",
     .op = "batch_norm_backward",
     .inputs = "aaccc-a",
     .params.relu = 1,
     .params.alpha = 1.0},
    {.label = "  two gradients, in place",
     .op = "batch_norm_backward",
     .inputs = "aaccc-aa",
     .params.relu = 1,
     .params.alpha = 1.0,
     .in_place = true},
    {.label = "relu", .op = "relu", .inputs = "a"},
    {.label = "  in place", .op = "relu", .inputs = "a", .in_place = true},
    {.label = "relu_backward", .op = "relu_backward", .inputs = "aa"},
    {.label = "add", .op = "add", .inputs = "aa"},
    {.label = "  in place", .op = "add", .inputs = "aa", .in_place = true},
    {.label = "gelu", .op = "gelu", .inputs = "a", .once = true},
    {.label = "gelu_backward", .op = "gelu_backward", .inputs = "aa", .once = true},
    {.label = "dropout",
     .op = "dropout",
     .inputs = "a",
     .params.rate = 0.5,
     .params.random_scope = "bench",
     .once = true},
    {.label = "max_pool", .op = "max_pool", .inputs = "a", .pools = true},
    {.label = "max_pool_backward", .op = "max_pool_backward", .inputs = "si", .pools = true},
    {.label = "avg_pool", .op = "avg_pool", .inputs = "a", .pools = true},
    {.label = "avg_pool_backward", .op = "avg_pool_backward", .inputs = "s", .pools = true},
    {.label = "global_avg_pool", .op = "global_avg_pool", .inputs = "a", .once = true},
    {.label = "global_avg_pool_backward", .op = "global_avg_pool_backward", .inputs = "n", .once = true},
    {.label = "layer_norm", .op = "layer_norm", .inputs = "tcc", .tokens = true},
    {.label = "layer_norm_backward", .op = "layer_norm_backward", .inputs = "ttrrc", .tokens = true},
    {.label = "  in place", .op = "layer_norm_backward", .inputs = "ttrrc", .in_place = true, .tokens = true},
    {.label = "instance_norm", .op = "instance_norm", .inputs = "Vcc", .volumes = true},
    {.label = "  ReLU", .op = "instance_norm", .inputs = "Vcc", .params.relu = 1, .volumes = true},
    {.label = "  leaky ReLU, in place",
     .op = "instance_norm",
     .inputs = "Vcc",
     .params.relu = 1,
     .params.alpha = 0.01,
     .in_place = true,
     .volumes = true},
    {.label = "instance_norm_backward", .op = "instance_norm_backward", .inputs = "VVmmc", .volumes = true},
    {.label = "  in place, ReLU",
     .op = "instance_norm_backward",
     .inputs = "VVmmcc",
     .params.relu = 1,
     .in_place = true,
     .volumes = true},
    {.label = "  two gradients, ReLU",
     .op = "instance_norm_backward",
     .inputs = "VVmmccV",
     .params.relu = 1,
     .in_place = true,
     .volumes = true},
    {.label = "dice_cross_entropy",
     .op = "dice_cross_entropy",
     .inputs = "gL",
     .params.alpha = 1.0,
     .volumes = true,
     .classes = 3},
    {.label = "  24 classes",
     .op = "dice_cross_entropy",
     .inputs = "gL",
     .params.alpha = 1.0,
     .volumes = true,
     .classes = 24},
    {.label = "  104 classes",
     .op = "dice_cross_entropy",
     .inputs = "gL",
     .params.alpha = 1.0,
     .volumes = true,
     .classes = 104},
    {.label = "dice_cross_entropy_backward",
     .op = "dice_cross_entropy_backward",
     .inputs = "lgLu",
     .params.alpha = 1.0,
     .volumes = true,
     .classes = 3},
    {.label = "  24 classes",
     .op = "dice_cross_entropy_backward",
     .inputs = "lgLu",
     .params.alpha = 1.0,
     .volumes = true,
     .classes = 24},
    {.label = "  104 classes",
     .op = "dice_cross_entropy_backward",
     .inputs = "lgLu",
     .params.alpha = 1.0,
     .volumes = true,
     .classes = 104},
    {.label = "sgd", .op = "sgd", .inputs = "www", .once = true},
    {.label = "adamw",
     .op = "adamw",
     .inputs = "wwwv",
     .params.beta1 = 0.9,
     .params.beta2 = 0.999,
     .once = true},
    {.label = "adamw_8bit",
     .op = "adamw_8bit",
     .inputs = "WWqqz",
     .params.beta1 = 0.9,
     .params.beta2 = 0.999,
     .once = true},
};
enum { ROWS = sizeof rows / sizeof *rows };

typedef struct Size {
  int64_t channels, side;
} Size;
static const Size sizes[] = {{64, 112}, {64, 56}, {256, 56}, {512, 28}, {1024, 14}, {2048, 7}};
/* 64 and 256 tokens a sample, BERT-base's and -large's width. */
static const Size volume_sizes[] = {{32, 64}, {64, 32}, {128, 16}, {256, 8}, {320, 4}};
static const Size token_sizes[] = {{768, 8}, {768, 16}, {1024, 8}, {1024, 16}};
enum {
  SIZES = sizeof sizes / sizeof *sizes,
  TOKEN_SIZES = sizeof token_sizes / sizeof *token_sizes,
  VOLUME_SIZES = sizeof volume_sizes / sizeof *volume_sizes,
  ONCE = 2
};

typedef struct Bench {
  Device *device;
  int64_t batch;
  long repetitions;
  DType dtype;
  Size size;
  int64_t classes;
} Bench;

static void check(Status status) {
  if (status.code == VL_OK) return;
  fprintf(stderr, "bench-vector: %s\n", status.message);
  exit(vl_status_exit_code(status.code));
}

/* ---- Nodes and their memory ------------------------------------------------------------------------------- */

static Tensor *tensor_of(const Bench *bench, Graph *graph, char kind) {
  int64_t small = (bench->size.side - 1) / 2 + 1;
  int64_t activation[] = {bench->batch, bench->size.channels, bench->size.side, bench->size.side};
  int64_t pooled[] = {bench->batch, bench->size.channels, small, small};
  int64_t weights[] = {2048, 512, 3, 3}, matrix[] = {2048, 512 * 3 * 3};
  int64_t scales[] = {2, matrix[0] * matrix[1] / VL_STATE_BLOCK};
  int64_t tokens[] = {bench->batch, bench->size.side * bench->size.side, bench->size.channels};
  int64_t count = tokens[0] * tokens[1];
  int64_t side = bench->size.side, samples = bench->batch > 8 ? bench->batch / 8 : 1;
  int64_t volume[] = {samples, bench->size.channels, side, side, side};
  int64_t logits[] = {samples, bench->classes, side, side, side}, labels[] = {samples, side, side, side};
  int64_t sums[] = {samples, bench->classes, 3};
  switch (kind) {
  case 'a': return vl_graph_tensor(graph, "activation", ROLE_INPUT, bench->dtype, 4, activation);
  case 's': return vl_graph_tensor(graph, "pooled", ROLE_INPUT, bench->dtype, 4, pooled);
  case 'i': return vl_graph_tensor(graph, "index", ROLE_INPUT, DTYPE_U8, 4, pooled);
  case 'n': return vl_graph_tensor(graph, "mean", ROLE_INPUT, bench->dtype, 2, activation);
  case 'c': return vl_graph_tensor(graph, "channels", ROLE_INPUT, DTYPE_F32, 1, &bench->size.channels);
  case 'w': return vl_graph_tensor(graph, "weights", ROLE_INPUT, DTYPE_F32, 4, weights);
  case 'v': return vl_graph_tensor(graph, "squares", ROLE_INPUT, DTYPE_F32, 4, weights);
  case 'W': return vl_graph_tensor(graph, "weights", ROLE_INPUT, DTYPE_F32, 2, matrix);
  case 'q': return vl_graph_tensor(graph, "codes", ROLE_INPUT, DTYPE_U8, 2, matrix);
  case 'z': return vl_graph_tensor(graph, "scales", ROLE_INPUT, DTYPE_F32, 2, scales);
  case 't': return vl_graph_tensor(graph, "tokens", ROLE_INPUT, bench->dtype, 3, tokens);
  case 'r': return vl_graph_tensor(graph, "rows", ROLE_INPUT, DTYPE_F32, 1, &count);
  case 'V': return vl_graph_tensor(graph, "volume", ROLE_INPUT, bench->dtype, 5, volume);
  case 'm': return vl_graph_tensor(graph, "statistic", ROLE_INPUT, DTYPE_F32, 2, volume);
  case 'g': return vl_graph_tensor(graph, "logits", ROLE_INPUT, bench->dtype, 5, logits);
  case 'L': return vl_graph_tensor(graph, "labels", ROLE_INPUT, DTYPE_I32, 4, labels);
  case 'u': return vl_graph_tensor(graph, "sums", ROLE_INPUT, DTYPE_F32, 3, sums);
  case 'l': return vl_graph_tensor(graph, "loss", ROLE_INPUT, DTYPE_F32, 0, NULL);
  default: return NULL;
  }
}

/* The layout a convolution wants its input in. */
static LayoutId convolution_layout(const Bench *bench, Graph *graph, bool volumes) {
  int64_t shape[] = {bench->size.channels, bench->size.channels, 3, 3, 3};
  Tensor *inputs[] = {tensor_of(bench, graph, volumes ? 'V' : 'a'),
                      vl_graph_tensor(graph, "filter", ROLE_PARAMETER, bench->dtype, volumes ? 5 : 4, shape)};
  OpParams params = {.stride = {1, 1, volumes}, .padding = {1, 1, volumes}, .groups = 1};
  Node *node;
  check(vl_graph_add(graph, "conv", &params, inputs, 2, &node));
  LayoutId in[VL_MAX_INPUTS], out[VL_MAX_OUTPUTS];
  for (int i = 0; i < VL_MAX_INPUTS; i++)
    in[i] = LAYOUT_ANY;
  for (int i = 0; i < VL_MAX_OUTPUTS; i++)
    out[i] = LAYOUT_ANY;
  check(bench->device->interface->choose_layouts(bench->device, node, in, out));
  return in[0];
}

static Node *node_of(const Bench *bench, Graph *graph, const Row *row) {
  Tensor *inputs[VL_MAX_INPUTS] = {NULL};
  int32_t count = (int32_t)strlen(row->inputs);
  for (int32_t i = 0; i < count; i++)
    inputs[i] = tensor_of(bench, graph, row->inputs[i]);
  OpParams params = row->params;
  params.epsilon = 1e-5;
  params.dtype = DTYPE_U8; /* of an index */
  for (int i = 0; row->pools && i < 2; i++) {
    params.kernel[i] = 3;
    params.stride[i] = 2;
    params.padding[i] = 1;
  }
  if (strstr(row->op, "pool_backward") != NULL) {
    params.rank = 4;
    params.shape[0] = bench->batch;
    params.shape[1] = bench->size.channels;
    params.shape[2] = params.shape[3] = bench->size.side;
  }
  Node *node;
  check(vl_graph_add(graph, row->op, &params, inputs, count, &node));
  return node;
}

typedef struct Memory {
  uintptr_t address[VL_MAX_INPUTS + VL_MAX_OUTPUTS + 1];
  int64_t bytes[VL_MAX_INPUTS + VL_MAX_OUTPUTS + 1];
  int32_t count;
} Memory;

static uintptr_t reserve(const Bench *bench, Memory *memory, int64_t bytes) {
  const Backing *backing = bench->device->interface->backing(bench->device);
  int32_t i = memory->count++;
  memory->bytes[i] = bytes > 64 ? bytes : 64;
  check(backing->reserve(backing->context, memory->bytes[i], &memory->address[i]));
  return memory->address[i];
}

static void release(const Bench *bench, Memory *memory) {
  const Backing *backing = bench->device->interface->backing(bench->device);
  for (int32_t i = 0; i < memory->count; i++)
    backing->release(backing->context, memory->address[i], memory->bytes[i]);
}

/* Numbers of both signs around 1, so that nothing is subnormal and a ReLU has something to do. */
static void fill(const Tensor *tensor, uintptr_t address, int64_t bytes) {
  int64_t count = bytes / vl_dtype_bytes(tensor->dtype, 1);
  for (int64_t i = 0; i < count; i++) {
    int64_t place = i % 1021;
    double value = tensor->dtype == DTYPE_U8 ? (double)(place % 9) : (double)(place - 400) / 512.0;
    if (strncmp(tensor->name, "squares", 7) == 0) value *= value;
    if (tensor->dtype == DTYPE_I32) value = (double)(place % 3);
    vl_element_set((void *)address, tensor->dtype, i, tensor->rank == 1 ? 1.0 : value);
  }
}

/* ---- Timing -------------------------------------------------------------------------------------------------- */

/* The shortest time of a memcpy that reads and writes `bytes` in total, by all threads. */
static double memcpy_ns(const Bench *bench, int64_t bytes) {
  Memory memory = {.count = 0};
  int64_t half = (bytes + 1) / 2;
  char *to = (char *)reserve(bench, &memory, half), *from = (char *)reserve(bench, &memory, half);
  memset(to, 1, (size_t)half);
  memset(from, 2, (size_t)half);
  int64_t best = INT64_MAX;
  for (long r = 0; r < bench->repetitions + 1; r++) {
    int64_t start = vl_monotonic_ns();
#pragma omp parallel
    {
      int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
      int64_t begin = half * thread / threads, end = half * (thread + 1) / threads;
      memcpy(to + begin, from + begin, (size_t)(end - begin));
    }
    int64_t elapsed = vl_monotonic_ns() - start;
    if (r > 0 && elapsed < best) best = elapsed;
  }
  release(bench, &memory);
  return (double)best;
}

static double kernel_ns(const Bench *bench, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                        uintptr_t workspace) {
  LaunchContext context = {.seed = 1};
  int64_t best = INT64_MAX;
  for (long r = 0; r < bench->repetitions + 1; r++) {
    int64_t start = vl_monotonic_ns();
    check(bench->device->interface->launch(bench->device, kernel, inputs, outputs, workspace, &context));
    int64_t elapsed = vl_monotonic_ns() - start;
    if (r > 0 && elapsed < best) best = elapsed;
  }
  return (double)best;
}

/* A line that CDash draws: the ratio to memcpy, under the op and what its label adds. */
static void print_measurement(const Row *row, const char *type, double ratio) {
  char name[96];
  snprintf(name, sizeof name, "%s_%s_%s", row->op, row->label[0] == ' ' ? row->label + 2 : "", type);
  for (char *c = name; *c != '\0'; c++)
    if (*c == ' ' || *c == ',') *c = '_';
  printf("<CTestMeasurement type=\"numeric/double\" name=\"%s\">%.3f</CTestMeasurement>\n", name, ratio);
}

static bool is_state(const Row *row) {
  return strcmp(row->op, "sgd") == 0 || strncmp(row->op, "adamw", 5) == 0;
}

/* The input that an output is written over; -1: none. */
static int32_t input_of_output(const Row *row, const Node *node, int32_t output) {
  if (is_state(row)) return output == 0 ? 0 : output + 1; /* all but the gradient, input 1 */
  if (!row->in_place) return -1;
  for (int32_t i = output == 0 ? 0 : 1; i < node->input_count; i++)
    if ((node->op->inplace[output] >> i & 1U) != 0) return i;
  return -1;
}

/* Activations are in a convolution's layout, logits plain. */
static LayoutId layout_of(const Row *row, const Tensor *tensor, LayoutId wanted) {
  if (tensor == NULL || tensor->rank != (row->volumes ? 5 : 4)) return LAYOUT_PLAIN;
  return row->classes > 0 ? LAYOUT_PLAIN : wanted;
}

static void time_row(const Bench *bench, const Row *row) {
  const DeviceInterface *device = bench->device->interface;
  Graph *graph = vl_graph_create("bench");
  LayoutId wanted = convolution_layout(bench, graph, row->volumes);
  Node *node = node_of(bench, graph, row);
  LayoutId in[VL_MAX_INPUTS], out[VL_MAX_OUTPUTS];
  for (int i = 0; i < VL_MAX_INPUTS; i++)
    in[i] = i < node->input_count ? layout_of(row, node->inputs[i], wanted) : LAYOUT_PLAIN;
  for (int i = 0; i < VL_MAX_OUTPUTS; i++)
    out[i] = i < node->output_count ? layout_of(row, node->outputs[i], wanted) : LAYOUT_PLAIN;
  Kernel *kernel;
  check(device->prepare(bench->device, node, in, out, &kernel));
  check(device->build(bench->device, kernel));

  Memory memory = {.count = 0};
  uintptr_t inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0};
  int64_t bytes = 0;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (node->inputs[i] == NULL) continue;
    int64_t size = device->storage_bytes(bench->device, in[i], node->inputs[i]->storage);
    inputs[i] = reserve(bench, &memory, size);
    fill(node->inputs[i], inputs[i], size);
    bytes += size;
  }
  for (int32_t i = 0; i < node->output_count; i++) {
    int64_t size = device->storage_bytes(bench->device, out[i], node->outputs[i]->storage);
    int32_t over = input_of_output(row, node, i);
    outputs[i] = over >= 0 ? inputs[over] : reserve(bench, &memory, size);
    bytes += size;
  }
  uintptr_t workspace = reserve(bench, &memory, device->workspace_bytes(kernel));
  double ns = kernel_ns(bench, kernel, inputs, outputs, workspace), copy_ns = memcpy_ns(bench, bytes);
  printf("%-27s %-5s %5" PRId64 " x %3" PRId64 "^%d  %8.1f %9.0f %7.1f %7.1f %6.2f\n", row->label,
         vl_dtype_name(is_state(row) ? DTYPE_F32 : bench->dtype),
         row->classes > 0 ? row->classes : bench->size.channels, bench->size.side, row->volumes ? 3 : 2,
         vl_bytes_to_mb(bytes), ns * 1e-3, (double)bytes / ns, (double)bytes / copy_ns, copy_ns / ns);
  bool measured = row->volumes  ? bench->size.side == 64
                  : row->tokens ? bench->size.channels == 768 && bench->size.side == 16
                                : row->pools || bench->size.channels == sizes[ONCE].channels;
  if (measured) print_measurement(row, vl_dtype_name(bench->dtype), copy_ns / ns);
  fflush(stdout);
  release(bench, &memory);
  device->kernel_destroy(bench->device, &kernel);
  vl_graph_destroy(&graph);
}

static int size_count(const Row *row) {
  if (row->volumes) return row->classes > 0 ? 1 : VOLUME_SIZES;
  return row->tokens ? TOKEN_SIZES : SIZES;
}

int main(int argc, char **argv) {
  Bench bench = {.batch = argc > 1 ? atol(argv[1]) : 16, .repetitions = argc > 2 ? atol(argv[2]) : 7};
  const char *only = argc > 3 ? argv[3] : NULL;
  DeviceOptions options = {.threads = 0};
  check(vl_device_open("cpu", &options, &bench.device));
  printf("%-27s %-5s %11s  %8s %9s %7s %7s %6s\n", "kernel", "type", "size", "MB", "us", "GB/s", "memcpy",
         "ratio");
  for (int i = 0; i < ROWS; i++)
    for (int d = 0; d < 2; d++)
      for (int s = 0; s < size_count(&rows[i]); s++) {
        if (only != NULL && strcmp(rows[i].op, only) != 0) continue;
        if ((rows[i].pools && s != 0) || (rows[i].once && s != ONCE)) continue;
        bench.dtype = d == 0 ? DTYPE_F32 : DTYPE_BF16;
        bench.size = rows[i].volumes ? volume_sizes[s] : rows[i].tokens ? token_sizes[s] : sizes[s];
        bench.classes = rows[i].classes;
        if (d == 1 && is_state(&rows[i])) continue;
        time_row(&bench, &rows[i]);
      }
  vl_device_close(&bench.device);
  return 0;
}
