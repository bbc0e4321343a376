/* attention=fused and attention=materialised on a device: the same y and gradient, from the same dropout
 * mask, within what rounding allows each of them.
 *
 * Both are compared with the fused graph in double. A node's own bound holds for exact inputs; backward reads
 * y and lse as forward left them, so that their bounds come on top: delta, the sum of dy y, is off by
 * `delta_error` = sum |dy| bound(y), which enters ds as p delta_error, and a probability is off by
 * bound(lse), relatively. The graph that is written out sums dp p where the fused one sums dy y. Its error,
 * c(S) u sum p |dy| |v|, is within delta_error, since bound(y) has c(S) u sum p |v|. usage: test_attention
 * [DEVICE]; exits with 77 when the machine does not offer it. */
#include "optimizations/optimizations.h"
#include "tests/devices/open_device.h"
#include "tests/kernels/compare.h"
#include "tests/reference/attention.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, LENGTH = 137, HEADS = 2, SEED = 5 };
static int64_t head_size = 24;

static Device *device;

static void require(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* ---- Programs ------------------------------------------------------------------------------------------------- */

/* The loss is the sum of y times weights, which so are its gradient. */
static void build(DType dtype, const char *value, Program *program) {
  Graph *graph = vl_graph_create("attention");
  vl_program_init(program, graph);
  program->training = true;
  Tensor *qkv = vl_graph_tensor(graph, "qkv", ROLE_PARAMETER, dtype, 5,
                                (int64_t[]){BATCH, LENGTH, 3, HEADS, head_size});
  Tensor *mask = vl_graph_tensor(graph, "mask", ROLE_INPUT, DTYPE_F32, 2, (int64_t[]){BATCH, LENGTH});
  OpParams params = {.rate = 0.1, .random_scope = "layer.dropout"};
  OpParams all = {.axes = {0, 1, 2, 3}, .axis_count = 4, .dtype = DTYPE_F32};
  Node *node;
  vl_graph_set_scope(graph, "layer");
  require(vl_graph_add(graph, "attention", &params, (Tensor *[]){qkv, mask}, 2, &node));
  program->logits = node->outputs[0];
  Tensor *weights = vl_graph_tensor(graph, "weights", ROLE_INPUT, dtype, 4, program->logits->shape), *loss;
  require(vl_apply(graph, "mul", NULL, (Tensor *[]){program->logits, weights}, 2, &loss));
  require(vl_apply(graph, "sum", &all, &loss, 1, &program->loss));
  require(vl_optimization_find("attention")->apply(program, value, NULL));
  require(vl_program_differentiate(program));
}

static Evaluation *draw(const Program *program) {
  Evaluation *evaluation = evaluation_create(program->graph);
  evaluation->context = (LaunchContext){.seed = SEED, .step = 3, .first_sample = 11};
  for (int32_t i = 0; i < program->graph->storage_count; i++) {
    const Storage *storage = program->graph->storages[i];
    bool given = storage->role == ROLE_INPUT || strcmp(storage->name, "qkv") == 0;
    if (given) evaluation_draw(evaluation, storage, SEED, 0.0, sqrt(3.0));
  }
  return evaluation;
}

/* ---- On a device ---------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const Storage *storage) {
  return vl_dtype_bytes(storage->dtype, storage->elements) + 64;
}

/* Plain values from double to the device's memory, and back. */
static void send(const Storage *storage, const double *values, uintptr_t address) {
  Storage plain = *storage;
  void *typed = vl_allocate((size_t)bytes_of(storage));
  plain.layout = LAYOUT_PLAIN;
  for (int64_t e = 0; e < storage->elements; e++)
    vl_element_set(typed, storage->dtype, e, values[e]);
  require(device->interface->upload(device, &plain, typed, address));
  free(typed);
}

static void fetch(const Storage *storage, uintptr_t address, double *values) {
  Storage plain = *storage;
  void *typed = vl_allocate((size_t)bytes_of(storage));
  plain.layout = LAYOUT_PLAIN;
  require(device->interface->download(device, &plain, address, typed));
  for (int64_t e = 0; e < storage->elements; e++)
    values[e] = vl_element_get(typed, storage->dtype, e);
  free(typed);
}

static uintptr_t address_of(uintptr_t *const addresses, const Tensor *tensor) {
  if (!tensor) return 0;
  return addresses[tensor->storage->id] + (uintptr_t)vl_dtype_bytes(tensor->dtype, tensor->offset);
}

static void run_node(const Node *node, uintptr_t *addresses, const LaunchContext *context) {
  const LayoutId plain[VL_MAX_INPUTS + VL_MAX_OUTPUTS] = {LAYOUT_PLAIN};
  const Backing *backing = device->interface->backing(device);
  uintptr_t inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0}, workspace;
  Kernel *kernel;
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = address_of(addresses, node->inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = address_of(addresses, node->outputs[i]);
  if (outputs[0] == inputs[0]) return; /* a view */
  require(device->interface->prepare(device, node, plain, plain, &kernel));
  require(device->interface->build(device, kernel));
  int64_t bytes = device->interface->workspace_bytes(kernel) + 64;
  require(backing->reserve(backing->context, bytes, &workspace));
  require(device->interface->launch(device, kernel, inputs, outputs, workspace, context));
  require(device->interface->synchronize(device));
  backing->release(backing->context, workspace, bytes);
  device->interface->kernel_destroy(device, &kernel);
}

/* Runs the graph in the dtypes it says; the evaluation's values become what the device computed. */
static void run(Evaluation *evaluation) {
  const Graph *graph = evaluation->graph;
  const Backing *backing = device->interface->backing(device);
  uintptr_t *addresses = vl_allocate((size_t)graph->storage_count * sizeof *addresses);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    require(backing->reserve(backing->context, bytes_of(storage), &addresses[storage->id]));
    send(storage, evaluation->values[storage->id], addresses[storage->id]);
  }
  for (int32_t i = 0; i < graph->node_count; i++)
    run_node(graph->nodes[i], addresses, &evaluation->context);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    fetch(storage, addresses[storage->id], evaluation->values[storage->id]);
    backing->release(backing->context, addresses[storage->id], bytes_of(storage));
  }
  free(addresses);
}

/* ---- Bounds ---------------------------------------------------------------------------------------------------- */

typedef struct Truth {
  Program program;
  Evaluation *evaluation;
  const Node *forward, *backward;
  double *y_bounds, *lse_bounds, *gradient_bounds;
} Truth;

static void node_bounds(const Truth *truth, const Node *node, double *const *bounds) {
  double *inputs[VL_MAX_INPUTS], *outputs[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = evaluation_of(truth->evaluation, node->inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = evaluation_of(truth->evaluation, node->outputs[i]);
  require(bound_outputs(node, inputs, outputs, bounds, &truth->evaluation->context));
}

/* What errors of y and lse add to the gradients of all queries and keys of a head. */
static void add_forward_errors(const Truth *truth, int64_t b, int64_t h) {
  const Node *node = truth->backward;
  const double *in[VL_MAX_INPUTS];
  for (int32_t i = 0; i < node->input_count; i++)
    in[i] = evaluation_of(truth->evaluation, node->inputs[i]);
  AttentionShape shape = attention_shape(&node->params, node->inputs[1]);
  for (int64_t pair = 0; pair < LENGTH * LENGTH; pair++) {
    int64_t q = pair / LENGTH, k = pair % LENGTH, row = attention_row(&shape, b, q, h);
    const double *dy = in[0] + row, *y = in[2] + row;
    int64_t at[3] = {attention_at(&shape, b, q, 0, h), attention_at(&shape, b, k, 1, h),
                     attention_at(&shape, b, k, 2, h)};
    double lse = in[3][(b * HEADS + h) * LENGTH + q],
           lse_error = truth->lse_bounds[(b * HEADS + h) * LENGTH + q];
    double score =
        shape.scale * attention_dot(in[1] + at[0], in[1] + at[1], head_size) + in[4][b * LENGTH + k];
    double keep = attention_keep(&shape, &node->params, &truth->evaluation->context, b, h, q, k);
    double p = exp(score - lse), delta_error = 0.0;
    double ds = p * (keep * attention_dot(dy, in[1] + at[2], head_size) - attention_dot(dy, y, head_size));
    for (int64_t d = 0; d < head_size; d++)
      delta_error += fabs(dy[d]) * truth->y_bounds[row + d];
    double ds_error = shape.scale * (p * delta_error + fabs(ds) * lse_error);
    for (int64_t d = 0; d < head_size; d++) {
      truth->gradient_bounds[at[0] + d] += ds_error * fabs(in[1][at[1] + d]);
      truth->gradient_bounds[at[1] + d] += ds_error * fabs(in[1][at[0] + d]);
      truth->gradient_bounds[at[2] + d] += keep * p * lse_error * fabs(dy[d]);
    }
  }
}

static double *room_for(const Tensor *tensor) {
  return vl_allocate((size_t)vl_tensor_elements(tensor) * sizeof(double));
}

static void find_truth(DType dtype, Truth *truth) {
  build(dtype, "fused", &truth->program);
  truth->evaluation = draw(&truth->program);
  require(evaluation_run(truth->evaluation));
  for (int32_t i = 0; i < truth->program.graph->node_count; i++) {
    const Node *node = truth->program.graph->nodes[i];
    if (strcmp(node->op->name, "attention") == 0) truth->forward = node;
    if (strcmp(node->op->name, "attention_backward") == 0) truth->backward = node;
  }
  truth->y_bounds = room_for(truth->forward->outputs[0]);
  truth->lse_bounds = room_for(truth->forward->outputs[1]);
  truth->gradient_bounds = room_for(truth->backward->outputs[0]);
  node_bounds(truth, truth->forward, (double *[]){truth->y_bounds, truth->lse_bounds});
  node_bounds(truth, truth->backward, (double *[]){truth->gradient_bounds});
  for (int64_t i = 0; i < BATCH * HEADS; i++)
    add_forward_errors(truth, i / HEADS, i % HEADS);
}

static void forget_truth(Truth *truth) {
  evaluation_destroy(&truth->evaluation);
  vl_program_destroy(&truth->program);
  free(truth->y_bounds);
  free(truth->lse_bounds);
  free(truth->gradient_bounds);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

/* The largest error over its bound. */
static double compare(const Evaluation *found, const Tensor *tensor, const Evaluation *wanted,
                      const Tensor *of_truth, const double *bounds) {
  const double *a = evaluation_of(found, tensor), *b = evaluation_of(wanted, of_truth);
  double worst = 0.0;
  for (int64_t i = 0; i < vl_tensor_elements(tensor); i++) {
    double error = fabs(a[i] - b[i]);
    if (!(error <= bounds[i]))
      fail_msg("element %lld is %g, not %g: bound %g", (long long)i, a[i], b[i], bounds[i]);
    worst = fmax(worst, error / bounds[i]);
  }
  return worst;
}

/* As far from the truth as f32 and its bounds allow, times `factor`. Returns the largest share of the bounds.
 */
static double both_are_within(DType dtype, double factor) {
  static const char *const values[] = {"fused", "materialised"};
  double worst = 0.0;
  Truth truth = {.evaluation = NULL};
  find_truth(dtype, &truth);
  for (int64_t i = 0; i < vl_tensor_elements(truth.forward->outputs[0]); i++)
    truth.y_bounds[i] *= factor;
  for (int64_t i = 0; i < vl_tensor_elements(truth.backward->outputs[0]); i++)
    truth.gradient_bounds[i] *= factor;
  for (int32_t v = 0; v < 2; v++) {
    Program program;
    build(dtype, values[v], &program);
    Evaluation *evaluation = draw(&program);
    run(evaluation);
    double y = compare(evaluation, program.logits, truth.evaluation, truth.program.logits, truth.y_bounds);
    double dqkv = compare(evaluation, program.gradients[0].gradient, truth.evaluation,
                          truth.program.gradients[0].gradient, truth.gradient_bounds);
    print_message("  %s %s: at worst y %.2f, gradient %.2f of the bound\n", values[v], vl_dtype_name(dtype),
                  y, dqkv);
    worst = fmax(worst, fmax(y, dqkv));
    evaluation_destroy(&evaluation);
    vl_program_destroy(&program);
  }
  forget_truth(&truth);
  return worst;
}

/* Whether the device has the ops of either way in that type. */
static bool runs(DType dtype) {
  bool supported = true;
  Program program;
  build(dtype, "fused", &program);
  for (int32_t i = 0; i < program.graph->node_count && supported; i++)
    supported = device->interface->supports(device, program.graph->nodes[i]).code == VL_OK;
  vl_program_destroy(&program);
  return supported;
}

static void fused_is_materialised_in_f32(void **state) {
  (void)state;
  both_are_within(DTYPE_F32, 1.0);
}
static void fused_is_materialised_in_bf16(void **state) {
  (void)state;
  both_are_within(DTYPE_BF16, 1.0);
}
static void fused_is_materialised_in_f16(void **state) {
  (void)state;
  if (!runs(DTYPE_F16)) skip();
  both_are_within(DTYPE_F16, 1.0);
}

/* TF32 rounds the factors of all products, by 2^-11 where f32 rounds sums and products by 2^-24: the bounds
 * count more of these roundings than a product has factors. More than f32 allows, or it was not TF32. */
static void fused_is_materialised_in_tf32(void **state) {
  const char *name = *state;
  const double coarser = 0x1p13;
  Device *in_f32 = device;
  DeviceDescription description;
  device->interface->describe(device, &description);
  if (!description.has_tf32) skip();
  require(vl_device_open(name, &(DeviceOptions){.tf32 = true}, &device));
  for (head_size = 24; head_size <= 96; head_size *= 4) {
    double worst = both_are_within(DTYPE_F32, coarser);
    assert_true(worst * coarser > 1.0);
  }
  head_size = 24;
  vl_device_close(&device);
  device = in_f32;
}

/* In double nothing is rounded but the sums: the same mask, the same function. */
static void fused_is_materialised_in_double(void **state) {
  (void)state;
  Truth truth = {.evaluation = NULL};
  Program program;
  find_truth(DTYPE_F32, &truth);
  build(DTYPE_F32, "materialised", &program);
  Evaluation *evaluation = draw(&program);
  require(evaluation_run(evaluation));
  for (int64_t i = 0; i < vl_tensor_elements(program.logits); i++)
    truth.y_bounds[i] = 1e-12;
  for (int64_t i = 0; i < vl_tensor_elements(program.gradients[0].gradient); i++)
    truth.gradient_bounds[i] = 1e-12;
  compare(evaluation, program.logits, truth.evaluation, truth.program.logits, truth.y_bounds);
  compare(evaluation, program.gradients[0].gradient, truth.evaluation, truth.program.gradients[0].gradient,
          truth.gradient_bounds);
  evaluation_destroy(&evaluation);
  vl_program_destroy(&program);
  forget_truth(&truth);
}

int main(int argc, char **argv) {
  char *name = argc > 1 ? argv[1] : "cpu";
  int refused = open_device_or_skip(name, &(DeviceOptions){0}, &device);
  if (refused) return refused;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fused_is_materialised_in_double),
      cmocka_unit_test(fused_is_materialised_in_f32),
      cmocka_unit_test(fused_is_materialised_in_bf16),
      cmocka_unit_test(fused_is_materialised_in_f16),
      cmocka_unit_test_prestate(fused_is_materialised_in_tf32, name),
  };
  int failed = cmocka_run_group_tests_name("attention", tests, NULL, NULL);
  vl_device_close(&device);
  return failed;
}
