/* The ways to run a node: combinations of layouts that the device resolves, and outputs over inputs. */
#include "tests/kernels/trial.h"
#include <stdio.h>
#include <string.h>

static bool same_variant(const Node *node, const Variant *a, const Variant *b) {
  bool same = memcmp(a->inplace, b->inplace, sizeof a->inplace) == 0;
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
  Variant variant;
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    variant.inputs[i] = inputs;
  for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++) {
    variant.outputs[k] = outputs;
    variant.inplace[k] = -1;
  }
  return variant;
}

/* A convolution's weights, which have layouts of their own. */
static bool is_weight(const Node *node, int32_t input) {
  bool reads_weights = strcmp(node->op->name, "conv") == 0 || strcmp(node->op->name, "conv_epilogue") == 0 ||
                       strcmp(node->op->name, "conv_backward_data") == 0;
  return reads_weights && input == 1;
}

/* The layout on all operands of its rank, or with `only` >= 0 on that one; false when nothing takes it. */
static bool set_layout(const Subject *subject, const Node *node, int32_t l, int32_t only, Variant *variant) {
  bool any = false;
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *tensor = node->inputs[i];
    if (!tensor || (only >= 0 && only != i)) continue;
    if (is_weight(node, i)) {
      variant->inputs[i] = LAYOUT_ANY;
    } else if (tensor->rank == subject->ranks[l]) {
      variant->inputs[i] = subject->layouts[l];
      any = true;
    }
  }
  return any;
}

/* Plain operands, free ones, and each layout of activations. */
static Status find_operands(const Subject *subject, const Node *node, Variants *variants) {
  VL_TRY(add_variant(subject, node, uniform_variant(LAYOUT_PLAIN, LAYOUT_ANY), variants));
  VL_TRY(add_variant(subject, node, uniform_variant(LAYOUT_ANY, LAYOUT_ANY), variants));
  for (int32_t l = 0; l < subject->layout_count; l++) {
    for (int32_t only = -1; only < node->input_count; only++) {
      Variant variant = uniform_variant(LAYOUT_PLAIN, LAYOUT_ANY);
      if (set_layout(subject, node, l, only, &variant)) VL_TRY(add_variant(subject, node, variant, variants));
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

static bool may_take(const Node *node, const Variant *variant, int32_t output, int32_t input) {
  const Tensor *from = node->inputs[input], *to = node->outputs[output];
  if (!from || !to || !(node->op->inplace[output] >> input & 1U)) return false;
  for (int32_t k = 0; k < output; k++) {
    if (variant->inplace[k] == input) return false;
  }
  return vl_tensor_same_shape(from, to) && from->dtype == to->dtype &&
         variant->inputs[input] == variant->outputs[output];
}

/* Adds the in-place forms of the variants found so far: one output after the other, so that those of a later
 * one come with and without those of the earlier. */
static Status add_inplace(const Node *node, Variants *variants) {
  for (int32_t k = 0; k < node->output_count; k++) {
    int32_t count = variants->count;
    for (int32_t v = 0; v < count; v++) {
      for (int32_t i = 0; i < node->input_count; i++) {
        Variant variant = variants->list[v];
        if (!may_take(node, &variant, k, i)) continue;
        variant.inplace[k] = i;
        VL_TRY(keep_variant(node, &variant, variants));
      }
    }
  }
  return vl_ok();
}

void variant_describe(const Subject *subject, const Node *node, const Variant *variant, char *text,
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
  for (int32_t k = 0; k < node->output_count && used < size; k++) {
    if (variant->inplace[k] < 0) continue;
    used += (size_t)snprintf(text + used, size - used, ", output %d over input %d", k, variant->inplace[k]);
  }
}

Status variants_find(const Subject *subject, const Node *node, Variants *variants) {
  bool copies = strcmp(node->op->name, "copy") == 0 || strcmp(node->op->name, "cast") == 0;
  if (copies) VL_TRY(find_copies(subject, node, variants));
  VL_TRY(find_operands(subject, node, variants));
  return add_inplace(node, variants);
}
