/* What a node costs in operations and traffic, from shapes alone. Sums stop at INT64_MAX instead of wrapping.
 */
#include "graph/graph.h"

static int64_t add_counts(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

int64_t vl_node_flops(const Node *node) {
  if (node->op->flops != NULL) return node->op->flops(node);
  int64_t elements = 0;
  for (int32_t i = 0; i < node->output_count; i++) {
    if (node->outputs[i] != NULL) elements = add_counts(elements, vl_tensor_elements(node->outputs[i]));
  }
  return elements;
}

int64_t vl_node_bytes(const Node *node) {
  if (vl_node_is_view(node)) return 0; /* nothing moves */
  int64_t bytes = 0;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (node->inputs[i] != NULL) bytes = add_counts(bytes, vl_tensor_bytes(node->inputs[i]));
  }
  for (int32_t i = 0; i < node->output_count; i++) {
    if (node->outputs[i] != NULL) bytes = add_counts(bytes, vl_tensor_bytes(node->outputs[i]));
  }
  return bytes;
}

int64_t vl_graph_parameter_count(const Graph *graph) {
  int64_t count = 0;
  for (int32_t i = 0; i < graph->storage_count; i++) {
    if (graph->storages[i]->role == ROLE_PARAMETER) count = add_counts(count, graph->storages[i]->elements);
  }
  return count;
}
