/* Runs one node on a device in every layout it accepts and compares with the reference. */
#include "tests/kernels/compare.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  FENCE_BYTES = 256,
  FENCE_VALUE = 0xA5,
  UNWRITTEN = 0xFF /* NaN in every float type */,
  MAX_VARIANTS = 48
};

/* How a node is run once. */
typedef struct Variant {
  LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  int32_t inplace; /* output 0 takes this input's buffer; -1: none */
} Variant;

/* Everything about a node that does not depend on the variant. */
typedef struct Trial {
  const Subject *subject;
  const Node *node;
  const LaunchContext *context;
  double *inputs[VL_MAX_INPUTS]; /* rounded to their dtypes */
  void *typed[VL_MAX_INPUTS];    /* the same in their dtypes, dense */
  double *expected[VL_MAX_OUTPUTS];
  double *bounds[VL_MAX_OUTPUTS];
} Trial;

/* A fenced piece of device memory. */
typedef struct FencedBuffer {
  uintptr_t address;
  int64_t bytes;
} FencedBuffer;

/* One allocation that a variant's buffers are cut from. */
typedef struct Region {
  Device *device;
  uintptr_t address;
  int64_t bytes, used;
} Region;

/* ---- Device memory ---------------------------------------------------------------------------------------- */

static Storage storage_in(const Tensor *tensor, LayoutId layout) {
  return (Storage){.name = tensor->name,
                   .scope = "",
                   .role = tensor->storage->role,
                   .dtype = tensor->dtype,
                   .elements = vl_tensor_elements(tensor),
                   .root = (Tensor *)(uintptr_t)tensor, /* only read */
                   .layout = layout};
}

/* Raw bytes, as a plain storage of u8. */
static Status move_bytes(Device *device, uintptr_t address, int64_t bytes, void *host, bool up) {
  Tensor tensor = {.name = "bytes", .dtype = DTYPE_U8, .rank = 1, .shape = {bytes}};
  Storage storage = {.name = "bytes", .scope = "", .dtype = DTYPE_U8, .elements = bytes, .root = &tensor};
  tensor.storage = &storage;
  if (bytes == 0) return vl_ok();
  return up ? device->interface->upload(device, &storage, host, address)
            : device->interface->download(device, &storage, address, host);
}

static Status fill_bytes(Device *device, uintptr_t address, int64_t bytes, int value) {
  void *host = vl_allocate((size_t)bytes + 1);
  memset(host, value, (size_t)bytes);
  Status status = move_bytes(device, address, bytes, host, true);
  free(host);
  return status;
}

static Status cut(Region *region, int64_t bytes, FencedBuffer *buffer) {
  buffer->bytes = (bytes + 63) / 64 * 64;
  if (region->used + buffer->bytes + 2 * FENCE_BYTES > region->bytes) {
    return vl_error(VL_INTERNAL, "test region too small");
  }
  buffer->address = region->address + (uintptr_t)(region->used + FENCE_BYTES);
  region->used += buffer->bytes + 2 * FENCE_BYTES;
  buffer->bytes = bytes;
  VL_TRY(fill_bytes(region->device, buffer->address - FENCE_BYTES, FENCE_BYTES, FENCE_VALUE));
  VL_TRY(fill_bytes(region->device, buffer->address + (uintptr_t)bytes, FENCE_BYTES, FENCE_VALUE));
  return fill_bytes(region->device, buffer->address, bytes, UNWRITTEN);
}

static Status check_fences(Device *device, const FencedBuffer *buffer, const char *what) {
  unsigned char fence[FENCE_BYTES];
  uintptr_t places[] = {buffer->address - FENCE_BYTES, buffer->address + (uintptr_t)buffer->bytes};
  for (int side = 0; side < 2; side++) {
    VL_TRY(move_bytes(device, places[side], FENCE_BYTES, fence, false));
    for (int i = 0; i < FENCE_BYTES; i++) {
      if (fence[i] == FENCE_VALUE) continue;
      return vl_error(VL_INTERNAL, "wrote %d bytes %s its %s of %lld bytes", side ? i + 1 : FENCE_BYTES - i,
                      side ? "past" : "before", what, (long long)buffer->bytes);
    }
  }
  return vl_ok();
}

/* ---- One run --------------------------------------------------------------------------------------------------- */

/* The buffers of a run: one per operand, shared where an output is in place. */
typedef struct RunBuffers {
  Region region;
  FencedBuffer inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS], workspace;
  uintptr_t from[VL_MAX_INPUTS], to[VL_MAX_OUTPUTS];
} RunBuffers;

/* The input whose buffer an output takes: chosen by the variant, or by the op (statistics, weights); -1:
 * none. */
static int32_t input_of_output(const Trial *trial, const Variant *variant, int32_t k) {
  const Node *node = trial->node;
  if (k == 0 && variant->inplace >= 0) return variant->inplace;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (node->inputs[i] && node->inputs[i]->storage == node->outputs[k]->storage && node->op->side_effect)
      return i;
  }
  return -1;
}

static Status reserve_region(const Trial *trial, const Variant *variant, int64_t workspace, Region *region) {
  Device *device = trial->subject->device;
  int64_t bytes = workspace + 64 + 2 * FENCE_BYTES;
  for (int32_t i = 0; i < trial->node->input_count; i++) {
    if (!trial->node->inputs[i]) continue;
    Storage storage = storage_in(trial->node->inputs[i], variant->inputs[i]);
    bytes += device->interface->storage_bytes(device, variant->inputs[i], &storage) + 64 + 2 * FENCE_BYTES;
  }
  for (int32_t k = 0; k < trial->node->output_count; k++) {
    if (!trial->node->outputs[k]) continue;
    Storage storage = storage_in(trial->node->outputs[k], variant->outputs[k]);
    bytes += device->interface->storage_bytes(device, variant->outputs[k], &storage) + 64 + 2 * FENCE_BYTES;
  }
  *region = (Region){.device = device, .bytes = bytes};
  return device->interface->backing(device)->reserve(device->interface->backing(device)->context, bytes,
                                                     &region->address);
}

static Status place_operands(const Trial *trial, const Variant *variant, int64_t workspace, RunBuffers *run) {
  Device *device = trial->subject->device;
  const Node *node = trial->node;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!node->inputs[i]) continue;
    Storage storage = storage_in(node->inputs[i], variant->inputs[i]);
    VL_TRY(cut(&run->region, device->interface->storage_bytes(device, variant->inputs[i], &storage),
               &run->inputs[i]));
    run->from[i] = run->inputs[i].address;
    VL_TRY(device->interface->upload(device, &storage, trial->typed[i], run->from[i]));
  }
  for (int32_t k = 0; k < node->output_count; k++) {
    if (!node->outputs[k]) continue;
    int32_t shared = input_of_output(trial, variant, k);
    Storage storage = storage_in(node->outputs[k], variant->outputs[k]);
    if (shared < 0) {
      VL_TRY(cut(&run->region, device->interface->storage_bytes(device, variant->outputs[k], &storage),
                 &run->outputs[k]));
    } else {
      run->outputs[k] = run->inputs[shared];
    }
    run->to[k] = run->outputs[k].address;
  }
  if (workspace > 0) VL_TRY(cut(&run->region, workspace, &run->workspace));
  return vl_ok();
}

static void element_place(const Tensor *tensor, int64_t index, char *text, size_t size) {
  int64_t at[VL_MAX_DIMS] = {0};
  for (int32_t i = tensor->rank - 1; i >= 0; i--) {
    at[i] = index % tensor->shape[i];
    index /= tensor->shape[i];
  }
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < tensor->rank && used < size; i++) {
    used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? "," : "", (long long)at[i]);
  }
}

static Status compare_output(const Trial *trial, int32_t k, const void *typed, CompareTotals *totals) {
  const Tensor *tensor = trial->node->outputs[k];
  for (int64_t i = 0; i < vl_tensor_elements(tensor); i++) {
    double got = vl_element_get(typed, tensor->dtype, i), want = trial->expected[k][i],
           bound = trial->bounds[k][i];
    double error = got == want || (isnan(got) && isnan(want)) ? 0.0 : fabs(got - want);
    if (!(error <= bound)) {
      char place[64];
      element_place(tensor, i, place, sizeof place);
      return vl_error(VL_INTERNAL, "output %d [%s] is %.9g, the reference %.9g: off by %.3g, bound %.3g", k,
                      place, got, want, error, bound);
    }
    if (bound > 0.0 && error / bound > totals->worst) {
      totals->worst = error / bound;
      snprintf(totals->worst_at, sizeof totals->worst_at, "%s output %d in %s", trial->node->op->name, k,
               trial->node->scope ? trial->node->scope : "");
    }
  }
  return vl_ok();
}

static Status check_inputs(const Trial *trial, const Variant *variant, const RunBuffers *run) {
  Device *device = trial->subject->device;
  for (int32_t i = 0; i < trial->node->input_count; i++) {
    if (!trial->node->inputs[i]) continue;
    VL_TRY(check_fences(device, &run->inputs[i], "input"));
    bool overwritten = false;
    for (int32_t k = 0; k < trial->node->output_count; k++) {
      overwritten = overwritten || (trial->node->outputs[k] && run->to[k] == run->from[i]);
    }
    if (overwritten) continue;
    Storage storage = storage_in(trial->node->inputs[i], variant->inputs[i]);
    size_t bytes = (size_t)vl_dtype_bytes(storage.dtype, storage.elements);
    void *back = vl_allocate(bytes + 1);
    Status status = device->interface->download(device, &storage, run->from[i], back);
    if (status.code == VL_OK && memcmp(back, trial->typed[i], bytes) != 0) {
      status = vl_error(VL_INTERNAL, "input %d was changed", i);
    }
    free(back);
    VL_TRY(status);
  }
  return vl_ok();
}

static Status check_outputs(const Trial *trial, const Variant *variant, const RunBuffers *run,
                            CompareTotals *totals) {
  Device *device = trial->subject->device;
  for (int32_t k = 0; k < trial->node->output_count; k++) {
    if (!trial->node->outputs[k]) continue;
    VL_TRY(check_fences(device, &run->outputs[k], "output"));
    Storage storage = storage_in(trial->node->outputs[k], variant->outputs[k]);
    void *typed = vl_allocate((size_t)vl_dtype_bytes(storage.dtype, storage.elements) + 1);
    Status status = device->interface->download(device, &storage, run->to[k], typed);
    if (status.code == VL_OK) status = compare_output(trial, k, typed, totals);
    free(typed);
    VL_TRY(status);
  }
  if (run->workspace.address) VL_TRY(check_fences(device, &run->workspace, "workspace"));
  return vl_ok();
}

static Status launch(const Trial *trial, const Variant *variant, Kernel *kernel, CompareTotals *totals) {
  Device *device = trial->subject->device;
  int64_t workspace = device->interface->workspace_bytes(kernel);
  RunBuffers run = {0};
  VL_TRY(reserve_region(trial, variant, workspace, &run.region));
  Status status = place_operands(trial, variant, workspace, &run);
  if (status.code == VL_OK) {
    status =
        device->interface->launch(device, kernel, run.from, run.to, run.workspace.address, trial->context);
  }
  if (status.code == VL_OK) status = device->interface->synchronize(device);
  if (status.code == VL_OK) status = check_outputs(trial, variant, &run, totals);
  if (status.code == VL_OK) status = check_inputs(trial, variant, &run);
  const Backing *backing = device->interface->backing(device);
  backing->release(backing->context, run.region.address, run.region.bytes);
  return status;
}

static Status run_variant(const Trial *trial, const Variant *variant, CompareTotals *totals) {
  Device *device = trial->subject->device;
  Kernel *kernel = NULL;
  VL_TRY(device->interface->prepare(device, trial->node, variant->inputs, variant->outputs, &kernel));
  Status status = device->interface->build(device, kernel);
  if (status.code == VL_OK) status = launch(trial, variant, kernel, totals);
  device->interface->kernel_destroy(device, &kernel);
  totals->runs++;
  return status;
}

/* ---- Variants ------------------------------------------------------------------------------------------------------ */

typedef struct Variants {
  Variant list[MAX_VARIANTS];
  int32_t count;
} Variants;

static bool same_variant(const Node *node, const Variant *a, const Variant *b) {
  bool same = a->inplace == b->inplace;
  for (int32_t i = 0; i < node->input_count; i++) {
    same = same && (!node->inputs[i] || a->inputs[i] == b->inputs[i]);
  }
  for (int32_t k = 0; k < node->output_count; k++) {
    same = same && (!node->outputs[k] || a->outputs[k] == b->outputs[k]);
  }
  return same;
}

/* Keeps a variant if it is new. */
static Status keep_variant(const Node *node, const Variant *variant, Variants *variants) {
  for (int32_t i = 0; i < variants->count; i++) {
    if (same_variant(node, &variants->list[i], variant)) return vl_ok();
  }
  if (variants->count == MAX_VARIANTS) return vl_error(VL_INTERNAL, "more than %d variants", MAX_VARIANTS);
  variants->list[variants->count++] = *variant;
  return vl_ok();
}

/* Resolves layouts the way the engine does. An output the device leaves open (a cast may) is what its first
 * reader wants: it is tried in every layout of its rank. */
static Status add_variant(const Subject *subject, const Node *node, Variant variant, Variants *variants) {
  VL_TRY(subject->device->interface->choose_layouts(subject->device, node, variant.inputs, variant.outputs));
  for (int32_t i = 0; i < node->input_count; i++) {
    if (variant.inputs[i] == LAYOUT_ANY) variant.inputs[i] = LAYOUT_PLAIN;
  }
  int32_t open = -1;
  for (int32_t k = 0; k < node->output_count; k++) {
    if (variant.outputs[k] != LAYOUT_ANY || !node->outputs[k]) continue;
    variant.outputs[k] = LAYOUT_PLAIN;
    open = k;
  }
  VL_TRY(keep_variant(node, &variant, variants));
  for (int32_t l = 0; open >= 0 && l < subject->layout_count; l++) {
    if (subject->ranks[l] != node->outputs[open]->rank) continue;
    variant.outputs[open] = subject->layouts[l];
    VL_TRY(keep_variant(node, &variant, variants));
  }
  return vl_ok();
}

static Variant uniform_variant(LayoutId inputs, LayoutId outputs) {
  Variant variant = {.inplace = -1};
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    variant.inputs[i] = inputs;
  for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++)
    variant.outputs[k] = outputs;
  return variant;
}

/* Plain operands, free ones, and each layout of activations on all operands of its rank, or on one alone. */
static Status find_variants(const Subject *subject, const Node *node, Variants *variants) {
  VL_TRY(add_variant(subject, node, uniform_variant(LAYOUT_PLAIN, LAYOUT_ANY), variants));
  VL_TRY(add_variant(subject, node, uniform_variant(LAYOUT_ANY, LAYOUT_ANY), variants));
  for (int32_t l = 0; l < subject->layout_count; l++) {
    for (int32_t only = -1; only < node->input_count; only++) {
      Variant variant = uniform_variant(LAYOUT_PLAIN, LAYOUT_ANY);
      bool any = false;
      for (int32_t i = 0; i < node->input_count; i++) {
        const Tensor *tensor = node->inputs[i];
        bool activation =
            tensor && tensor->rank == subject->ranks[l] && tensor->storage->role != ROLE_PARAMETER;
        if (!activation) {
          if (tensor && tensor->storage->role == ROLE_PARAMETER && tensor->rank > 1)
            variant.inputs[i] = LAYOUT_ANY;
          continue;
        }
        if (only >= 0 && only != i) continue;
        variant.inputs[i] = subject->layouts[l];
        any = true;
      }
      if (any) VL_TRY(add_variant(subject, node, variant, variants));
    }
  }
  return vl_ok();
}

/* A copy is asked for by the layout of its output. */
static Status find_copies(const Subject *subject, const Node *node, Variants *variants) {
  for (int32_t from = -1; from < subject->layout_count; from++) {
    for (int32_t to = -1; to < subject->layout_count; to++) {
      int32_t rank = node->inputs[0]->rank;
      if ((from >= 0 && subject->ranks[from] != rank) || (to >= 0 && subject->ranks[to] != rank)) continue;
      Variant variant = uniform_variant(from < 0 ? LAYOUT_PLAIN : subject->layouts[from],
                                        to < 0 ? LAYOUT_PLAIN : subject->layouts[to]);
      VL_TRY(add_variant(subject, node, variant, variants));
    }
  }
  return vl_ok();
}

/* Adds the in-place forms of the variants found so far. */
static void add_inplace(const Node *node, Variants *variants) {
  int32_t count = variants->count;
  const Tensor *y = node->outputs[0];
  for (int32_t v = 0; v < count; v++) {
    for (int32_t i = 0; y && i < node->input_count; i++) {
      const Tensor *x = node->inputs[i];
      if (!(node->op->inplace >> i & 1U) || !x || variants->count == MAX_VARIANTS) continue;
      if (!vl_tensor_same_shape(x, y) || x->dtype != y->dtype) continue;
      Variant variant = variants->list[v];
      if (variant.inputs[i] != variant.outputs[0]) continue;
      variant.inplace = i;
      variants->list[variants->count++] = variant;
    }
  }
}

static void describe_variant(const Subject *subject, const Node *node, const Variant *variant, char *text,
                             size_t size) {
  size_t used = 0;
  for (int32_t i = 0; i < node->input_count + node->output_count && used < size; i++) {
    bool input = i < node->input_count;
    const Tensor *tensor = input ? node->inputs[i] : node->outputs[i - node->input_count];
    LayoutId layout = input ? variant->inputs[i] : variant->outputs[i - node->input_count];
    const char *name = tensor ? subject->device->interface->layout_name(subject->device, layout) : "-";
    used += (size_t)snprintf(text + used, size - used, "%s%s",
                             i == node->input_count ? " -> "
                             : i                    ? " "
                                                    : "",
                             name);
  }
  if (variant->inplace >= 0 && used < size)
    snprintf(text + used, size - used, " over input %d", variant->inplace);
}

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
  bool copies = strcmp(trial->node->op->name, "copy") == 0 || strcmp(trial->node->op->name, "cast") == 0;
  if (copies) VL_TRY(find_copies(trial->subject, trial->node, &variants));
  VL_TRY(find_variants(trial->subject, trial->node, &variants));
  add_inplace(trial->node, &variants);
  for (int32_t v = 0; v < variants.count; v++) {
    Status status = run_variant(trial, &variants.list[v], totals);
    if (status.code == VL_OK) continue;
    char layouts[160] = "";
    describe_variant(trial->subject, trial->node, &variants.list[v], layouts, sizeof layouts);
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
    Variant variant = uniform_variant(LAYOUT_ANY, LAYOUT_ANY);
    status = device->interface->choose_layouts(device, node, variant.inputs, variant.outputs);
    add_layout(subject, variant.inputs[0], rank);
    add_layout(subject, variant.outputs[0], rank);
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
