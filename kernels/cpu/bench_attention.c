/* bench-attention [batch] [length] [heads] [size] [repetitions] [threads]: attention with dropout 0.1, fused
 * and as the chain of products, softmax and dropout it replaces, f32 and bf16, at BERT-base's sizes unless
 * given. For forward and backward: the shortest time, and GFLOP/s of the products. Prints CTestMeasurement
 * lines. */
#include "devices/device.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Bench {
  Device *device;
  int64_t batch, length, heads, size;
  long repetitions;
  int32_t threads;
  DType dtype;
} Bench;

static void check(Status status) {
  if (status.code == VL_OK) return;
  fprintf(stderr, "bench-attention: %s\n", status.message);
  exit(vl_status_exit_code(status.code));
}

static const double rate = 0.1;
static const char *const scope = "attention";

/* ---- Graphs -------------------------------------------------------------------------------------------------- */

static Tensor *build_fused(const Bench *bench, Graph *graph, Tensor *qkv) {
  (void)bench;
  OpParams params = {.rate = rate, .random_scope = scope};
  Node *node;
  check(vl_graph_add(graph, "attention", &params, &qkv, 1, &node));
  return node->outputs[0];
}

static Tensor *apply(Graph *graph, const char *op, const OpParams *params, Tensor *a, Tensor *b) {
  Tensor *y;
  check(vl_apply(graph, op, params, (Tensor *[]){a, b}, b == NULL ? 1 : 2, &y));
  return y;
}

/* Queries, keys or values as (B, A, S, D). */
static Tensor *part_of(const Bench *bench, Graph *graph, Tensor *qkv, int64_t part) {
  OpParams slice = {
      .start = {0, 0, part}, .shape = {bench->batch, bench->length, 1, bench->heads, bench->size}, .rank = 5};
  OpParams reshape = {.shape = {bench->batch, bench->length, bench->heads, bench->size}, .rank = 4};
  OpParams transpose = {.axes = {0, 2, 1, 3}};
  Tensor *y = apply(graph, "slice", &slice, qkv, NULL);
  y = apply(graph, "reshape", &reshape, y, NULL);
  return apply(graph, "transpose", &transpose, y, NULL);
}

static Tensor *build_chain(const Bench *bench, Graph *graph, Tensor *qkv) {
  OpParams scores = {.transpose_b = 1, .dtype = bench->dtype}, values = {.dtype = bench->dtype};
  OpParams softmax = {.alpha = 1.0 / sqrt((double)bench->size)};
  OpParams dropout = {.rate = rate, .random_scope = scope}, transpose = {.axes = {0, 2, 1, 3}};
  Tensor *p = apply(graph, "matmul", &scores, part_of(bench, graph, qkv, 0), part_of(bench, graph, qkv, 1));
  p = apply(graph, "dropout", &dropout, apply(graph, "softmax", &softmax, p, NULL), NULL);
  p = apply(graph, "matmul", &values, p, part_of(bench, graph, qkv, 2));
  return apply(graph, "transpose", &transpose, p, NULL);
}

/* Attention's nodes lie in its scope; the loss that asks for the gradient does not count. */
static void build(const Bench *bench, bool fused, Program *program) {
  Graph *graph = vl_graph_create("bench");
  vl_program_init(program, graph);
  program->training = true;
  int64_t shape[] = {bench->batch, bench->length, 3, bench->heads, bench->size};
  Tensor *qkv = vl_graph_parameter(graph, "qkv", ROLE_PARAMETER, bench->dtype, 5, shape, (Init){0});
  vl_graph_set_scope(graph, "%s", scope);
  Tensor *y = fused ? build_fused(bench, graph, qkv) : build_chain(bench, graph, qkv);
  vl_graph_set_scope(graph, "loss");
  Tensor *weights = vl_graph_tensor(graph, "weights", ROLE_INPUT, y->dtype, y->rank, y->shape);
  OpParams all = {.axes = {0, 1, 2, 3}, .axis_count = 4, .dtype = DTYPE_F32};
  program->loss = apply(graph, "sum", &all, apply(graph, "mul", NULL, y, weights), NULL);
  check(vl_program_differentiate(program));
}

/* ---- Running ---------------------------------------------------------------------------------------------------- */

typedef struct Step {
  const Node *node;
  Kernel *kernel;
  uintptr_t inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
} Step;

typedef struct Run {
  Step *steps;
  int32_t count;
  uintptr_t *storages;
  uintptr_t workspace;
  int64_t workspace_bytes;
} Run;

static uintptr_t reserve(const Bench *bench, int64_t bytes) {
  const Backing *backing = bench->device->interface->backing(bench->device);
  uintptr_t address;
  check(backing->reserve(backing->context, bytes > 64 ? bytes : 64, &address));
  return address;
}

static void release(const Bench *bench, uintptr_t address, int64_t bytes) {
  const Backing *backing = bench->device->interface->backing(bench->device);
  backing->release(backing->context, address, bytes > 64 ? bytes : 64);
}

static int64_t bytes_of(const Storage *storage) { return vl_dtype_bytes(storage->dtype, storage->elements); }

static uintptr_t address_of(const Run *run, const Tensor *tensor) {
  if (tensor == NULL) return 0;
  return run->storages[tensor->storage->id] + (uintptr_t)vl_dtype_bytes(tensor->dtype, tensor->offset);
}

static void add_step(const Bench *bench, const Node *node, Run *run) {
  const DeviceInterface *device = bench->device->interface;
  Step *step = &run->steps[run->count++];
  LayoutId plain[VL_MAX_INPUTS + VL_MAX_OUTPUTS] = {LAYOUT_PLAIN};
  step->node = node;
  for (int32_t i = 0; i < node->input_count; i++)
    step->inputs[i] = address_of(run, node->inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++)
    step->outputs[i] = address_of(run, node->outputs[i]);
  if (node->outputs[0]->storage == (node->input_count > 0 ? node->inputs[0]->storage : NULL)) return;
  check(device->prepare(bench->device, node, plain, plain, &step->kernel));
  check(device->build(bench->device, step->kernel));
  int64_t workspace = device->workspace_bytes(step->kernel);
  if (workspace > run->workspace_bytes) run->workspace_bytes = workspace;
}

static Run prepare(const Bench *bench, const Program *program) {
  const Graph *graph = program->graph;
  Run run = {.steps = vl_allocate((size_t)graph->node_count * sizeof(Step)),
             .storages = vl_allocate((size_t)graph->storage_count * sizeof(uintptr_t))};
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    run.storages[i] = reserve(bench, bytes_of(storage));
    for (int64_t e = 0; e < storage->elements; e++)
      vl_element_set((void *)run.storages[i], storage->dtype, e, (double)(e * 37 % 1021 - 510) / 512.0);
  }
  for (int32_t i = 0; i < graph->node_count; i++)
    add_step(bench, graph->nodes[i], &run);
  run.workspace = reserve(bench, run.workspace_bytes);
  return run;
}

static void finish(const Bench *bench, const Program *program, Run *run) {
  for (int32_t i = 0; i < run->count; i++)
    if (run->steps[i].kernel != NULL)
      bench->device->interface->kernel_destroy(bench->device, &run->steps[i].kernel);
  for (int32_t i = 0; i < program->graph->storage_count; i++)
    release(bench, run->storages[i], bytes_of(program->graph->storages[i]));
  release(bench, run->workspace, run->workspace_bytes);
  free(run->steps);
  free(run->storages);
}

/* Of one thread the time it ran, which others on the machine do not change. */
static int64_t clock_ns(const Bench *bench) {
  if (bench->threads != 1) return vl_monotonic_ns();
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Runs all nodes; nanoseconds of attention's, forward and backward. */
static void run_once(const Bench *bench, const Run *run, int64_t ns[2]) {
  LaunchContext context = {.seed = 1};
  ns[0] = ns[1] = 0;
  for (int32_t i = 0; i < run->count; i++) {
    const Step *step = &run->steps[i];
    if (step->kernel == NULL) continue;
    int64_t start = clock_ns(bench);
    check(bench->device->interface->launch(bench->device, step->kernel, step->inputs, step->outputs,
                                           run->workspace, &context));
    int64_t elapsed = clock_ns(bench) - start;
    if (strcmp(step->node->scope, scope) == 0) ns[step->node->segment == SEGMENT_BACKWARD] += elapsed;
  }
}

static void time_attention(const Bench *bench, bool fused) {
  Program program;
  build(bench, fused, &program);
  Run run = prepare(bench, &program);
  int64_t best[2] = {INT64_MAX, INT64_MAX}, ns[2];
  for (long r = 0; r < bench->repetitions + 1; r++) {
    run_once(bench, &run, ns);
    for (int side = 0; r > 0 && side < 2; side++)
      if (ns[side] < best[side]) best[side] = ns[side];
  }
  double product =
      2.0 * (double)(bench->batch * bench->heads * bench->size) * (double)(bench->length * bench->length);
  const char *name = fused ? "fused" : "chain", *type = vl_dtype_name(bench->dtype);
  printf("%-6s %-5s %9.3f %9.3f %9.3f   %7.1f %7.1f   %8.2f\n", name, type, (double)best[0] * 1e-6,
         (double)best[1] * 1e-6, (double)(best[0] + best[1]) * 1e-6, 2.0 * product / (double)best[0],
         5.0 * product / (double)best[1], vl_bytes_to_mb(vl_program_saved_bytes(&program)));
  printf("<CTestMeasurement type=\"numeric/double\" name=\"attention_%s_%s_%" PRId64 "_ms\">%.3f"
         "</CTestMeasurement>\n",
         name, type, bench->length, (double)(best[0] + best[1]) * 1e-6);
  fflush(stdout);
  finish(bench, &program, &run);
  vl_program_destroy(&program);
}

int main(int argc, char **argv) {
  int64_t values[] = {8, 128, 12, 64, 9, 0};
  static const char *const names[] = {"batch", "length", "heads", "size", "repetitions", "threads"};
  for (int i = 1; i < argc && i <= 6; i++)
    check(vl_parse_integer(names[i - 1], argv[i], i == 6 ? 0 : 1, 100000, &values[i - 1]));
  Bench bench = {.batch = values[0],
                 .length = values[1],
                 .heads = values[2],
                 .size = values[3],
                 .repetitions = (long)values[4],
                 .threads = (int32_t)values[5]};
  DeviceOptions options = {.threads = bench.threads};
  check(vl_device_open("cpu", &options, &bench.device));
  printf("%-6s %-5s %9s %9s %9s   %7s %7s   %8s\n", "", "type", "fwd ms", "bwd ms", "both ms", "GFLOP/s",
         "GFLOP/s", "saved MB");
  for (int d = 0; d < 2; d++) {
    bench.dtype = d == 0 ? DTYPE_F32 : DTYPE_BF16;
    time_attention(&bench, true);
    if (vl_op_find("softmax") != NULL) time_attention(&bench, false);
  }
  vl_device_close(&bench.device);
  return 0;
}
