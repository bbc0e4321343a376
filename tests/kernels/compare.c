/* Compares nodes and graphs on a device with the reference. */
#include "tests/kernels/trial.h"
#include "tests/reference/reference.h"
#include <stdlib.h>
#include <string.h>

/* ---- Nodes and graphs ------------------------------------------------------------------------------------------------ */

static void trial_prepare(Trial *trial, double *const *inputs) {
  for (int32_t i = 0; i < trial->node->input_count; i++) {
    const Tensor *tensor = trial->node->inputs[i];
    if (!tensor) continue;
    int64_t count = vl_tensor_elements(tensor);
    trial->typed[i] = vl_allocate((size_t)vl_dtype_bytes(tensor->dtype, count) + 8);
    trial->inputs[i] = vl_allocate((size_t)count * sizeof(double));
    for (int64_t e = 0; e < count; e++) {
      vl_element_set(trial->typed[i], tensor->dtype, e, inputs[i][e]);
      trial->inputs[i][e] = vl_element_get(trial->typed[i], tensor->dtype, e);
    }
  }
  for (int32_t k = 0; k < trial->node->output_count; k++) {
    if (!trial->node->outputs[k]) continue;
    size_t bytes = (size_t)vl_tensor_elements(trial->node->outputs[k]) * sizeof(double);
    trial->expected[k] = vl_allocate(bytes);
    trial->bounds[k] = vl_allocate(bytes);
  }
}

static void trial_clear(Trial *trial) {
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++) {
    free(trial->inputs[i]);
    free(trial->typed[i]);
  }
  for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++) {
    free(trial->expected[k]);
    free(trial->bounds[k]);
  }
}

static Status run_trial(const Trial *trial, CompareTotals *totals) {
  Variants variants = {.count = 0};
  VL_TRY(bound_outputs(trial->node, trial->inputs, trial->expected, trial->bounds, trial->context));
  VL_TRY(variants_find(trial->subject, trial->node, &variants));
  for (int32_t v = 0; v < variants.count; v++) {
    Status status = trial_run(trial, &variants.list[v], totals);
    if (status.code == VL_OK) continue;
    char layouts[160] = "";
    variant_describe(trial->subject, trial->node, &variants.list[v], layouts, sizeof layouts);
    return vl_error(status.code, "%s in %s, layouts %s: %s", trial->node->op->name,
                    trial->node->scope ? trial->node->scope : "", layouts, status.message);
  }
  return vl_ok();
}

static Status compute_results(const Trial *trial, double *const *results) {
  VL_TRY(vl_reference_compute(trial->node, trial->inputs, trial->expected, trial->context));
  for (int32_t k = 0; k < trial->node->output_count; k++) {
    const Tensor *tensor = trial->node->outputs[k];
    if (tensor) memcpy(results[k], trial->expected[k], (size_t)vl_tensor_elements(tensor) * sizeof(double));
  }
  return vl_ok();
}

Status compare_node(const Subject *subject, const Node *node, double *const *inputs,
                    const LaunchContext *context, double *const *results, CompareTotals *totals) {
  Trial trial = {.subject = subject, .node = node, .context = context};
  trial_prepare(&trial, inputs);
  Status supported = subject->device->interface->supports(subject->device, node);
  Status status = compute_results(&trial, results);
  if (status.code == VL_OK && supported.code == VL_UNSUPPORTED) {
    if (!node->op->is_view) totals->unsupported++; /* a view needs no kernel */
  } else if (status.code == VL_OK) {
    status = supported.code == VL_OK ? run_trial(&trial, totals) : supported;
    totals->nodes++;
  }
  trial_clear(&trial);
  return status;
}

Status compare_graph(const Subject *subject, Evaluation *evaluation, CompareTotals *totals) {
  const Graph *graph = evaluation->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    double *inputs[VL_MAX_INPUTS], *results[VL_MAX_OUTPUTS];
    for (int32_t k = 0; k < node->input_count; k++)
      inputs[k] = evaluation_of(evaluation, node->inputs[k]);
    for (int32_t k = 0; k < node->output_count; k++)
      results[k] = evaluation_of(evaluation, node->outputs[k]);
    VL_TRY(compare_node(subject, node, inputs, &evaluation->context, results, totals));
  }
  return vl_ok();
}

/* ---- Layouts a device likes ---------------------------------------------------------------------------------------------- */

static void add_layout(Subject *subject, LayoutId layout, int32_t rank) {
  for (int32_t i = 0; i < subject->layout_count; i++) {
    if (subject->layouts[i] == layout && subject->ranks[i] == rank) return;
  }
  if (layout == LAYOUT_PLAIN || layout == LAYOUT_ANY || subject->layout_count == COMPARE_MAX_LAYOUTS) return;
  subject->layouts[subject->layout_count] = layout;
  subject->ranks[subject->layout_count++] = rank;
}

/* The layouts of x and y that a convolution of `channels` gets when nothing is decided. */
static Status ask_convolution(Subject *subject, int32_t rank, int64_t channels, int64_t kernel, DType dtype) {
  Graph *graph = vl_graph_create("layouts");
  int64_t x_shape[VL_MAX_DIMS] = {2, channels, 14, 14, 14};
  int64_t w_shape[VL_MAX_DIMS] = {64, channels, kernel, kernel, kernel};
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, dtype, rank, x_shape);
  Tensor *w = vl_graph_tensor(graph, "w", ROLE_PARAMETER, dtype, rank, w_shape);
  OpParams params = {.stride = {1, 1, 1}, .groups = 1};
  Node *node = NULL;
  Status status = vl_graph_add(graph, "conv", &params, (Tensor *[]){x, w}, 2, &node);
  Device *device = subject->device;
  if (status.code == VL_OK && device->interface->supports(device, node).code == VL_OK) {
    LayoutId inputs[VL_MAX_INPUTS] = {LAYOUT_ANY, LAYOUT_ANY}, outputs[VL_MAX_OUTPUTS] = {LAYOUT_ANY};
    status = device->interface->choose_layouts(device, node, inputs, outputs);
    add_layout(subject, inputs[0], rank);
    add_layout(subject, outputs[0], rank);
  }
  vl_graph_destroy(&graph);
  return status;
}

Status subject_create(Device *device, Subject *subject) {
  *subject = (Subject){.device = device};
  for (int32_t rank = 4; rank <= 5; rank++) {
    VL_TRY(ask_convolution(subject, rank, 64, 3, DTYPE_F32));
    VL_TRY(ask_convolution(subject, rank, 64, 1, DTYPE_BF16));
    VL_TRY(ask_convolution(subject, rank, 3, 3, DTYPE_F32));
    VL_TRY(ask_convolution(subject, rank, 3, 3, DTYPE_BF16));
  }
  return vl_ok();
}
