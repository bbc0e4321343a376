/* Whether a node that came from elsewhere is what its op says. */
#include "graph/ops/ops.h"

#include <string.h>

static bool is_given(const Tensor *tensor) {
  return tensor->storage->role == ROLE_INPUT || vl_role_is_persistent(tensor->storage->role);
}

/* Inputs exist when the node runs. */
static Status check_inputs(const Node *node) {
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *input = node->inputs[i];
    if (input != NULL && input->producer == NULL && !is_given(input))
      return op_error(VL_INVALID, node, "input %d, tensor %d, is read before a node makes it", i, input->id);
  }
  return vl_ok();
}

/* Outputs are made once, and not over what is given or kept. */
static Status check_outputs(const Node *node) {
  for (int32_t i = 0; i < node->output_count; i++) {
    const Tensor *output = node->outputs[i];
    if (output == NULL) continue;
    if (output->producer != NULL)
      return op_error(VL_INVALID, node, "output %d, tensor %d, is made by an earlier node", i, output->id);
    bool may_change = node->op->side_effect || vl_node_is_view(node);
    if (is_given(output) && (output->storage->root == output || !may_change))
      return op_error(VL_INVALID, node, "output %d, tensor %d, is given and not this op's to make", i,
                      output->id);
    for (int32_t k = 0; k < i; k++) {
      if (node->outputs[k] == output)
        return op_error(VL_INVALID, node, "outputs %d and %d are both tensor %d", k, i, output->id);
      if (node->outputs[k] != NULL && node->outputs[k]->storage == output->storage)
        return op_error(VL_INVALID, node, "outputs %d and %d, tensors %d and %d, share a storage", k, i,
                        node->outputs[k]->id, output->id);
    }
  }
  return vl_ok();
}

/* Output `index` has the storage the op says: its input's for views and updates; else its own, or that of an
 * input it may overwrite. */
static Status check_storage(const Node *node, const Tensor *inferred, int32_t index) {
  const Tensor *output = node->outputs[index];
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *input = node->inputs[i];
    if (input == NULL) continue;
    bool expected = inferred->storage == input->storage;
    bool shared = output->storage == input->storage;
    bool allowed = expected || vl_node_is_view(node) || (node->op->inplace[index] >> i & 1U) != 0;
    if ((expected && (!shared || output->offset != inferred->offset)) || (shared && !allowed))
      return op_error(VL_INVALID, node, "output %d, tensor %d, must%s be in the storage of input %d", index,
                      output->id, expected ? "" : " not", i);
  }
  return vl_ok();
}

static Status check_output(const Node *node, const Tensor *inferred, int32_t index) {
  const Tensor *output = node->outputs[index];
  if (output == NULL && index > 0) return vl_ok(); /* nobody asked for it */
  if (output == NULL || inferred == NULL)
    return op_error(VL_INVALID, node, "output %d is %s", index, output == NULL ? "missing" : "one too many");
  if (!vl_tensor_same_shape(output, inferred) || output->dtype != inferred->dtype) {
    char found[96], expected[96];
    vl_tensor_describe(output, found, sizeof found);
    vl_tensor_describe(inferred, expected, sizeof expected);
    return op_error(VL_INVALID, node, "output %d, tensor %d, is %s; expected %s", index, output->id, found,
                    expected);
  }
  return check_storage(node, inferred, index);
}

Status op_verify(const Node *node, Graph *scratch) {
  VL_TRY(check_inputs(node));
  VL_TRY(check_outputs(node));
  scratch->storage_count = scratch->tensor_count = 0;
  scratch->scope = node->scope;
  Node copy = *node;
  memset(copy.outputs, 0, sizeof copy.outputs);
  copy.output_count = 0;
  VL_TRY(node->op->infer(scratch, &copy));
  if (copy.output_count != node->output_count)
    return op_error(VL_INVALID, node, "%d outputs; expected %d", node->output_count, copy.output_count);
  for (int32_t i = 0; i < node->output_count; i++)
    VL_TRY(check_output(node, copy.outputs[i], i));
  return vl_ok();
}
