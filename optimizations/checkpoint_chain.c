/* A program read as a chain of equal layers, to which the square-root rule applies (Chen et al.,
 * arXiv:1604.06174; vl_checkpoint_interval). */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

bool optimization_is_operator(const Node *node) {
  bool of_weight = strcmp(node->op->name, "cast") == 0 && node->inputs[0]->storage->role == ROLE_PARAMETER;
  return node->segment == SEGMENT_FORWARD && !vl_node_is_view(node) && !node->op->side_effect && !of_weight &&
         strcmp(node->op->name, "batch_norm_stats") != 0;
}

/* By storage: the layer that first writes it in forward, 1 and up; 0: none does. */
static int32_t *find_makers(const Program *program, bool operators, int32_t *layer_of_node, int32_t *layers) {
  const Graph *graph = program->graph;
  int32_t *maker = vl_allocate(((size_t)graph->storage_count + 1) * sizeof *maker);
  *layers = 0;
  for (int32_t i = 0; i < graph->node_count && graph->nodes[i]->segment == SEGMENT_FORWARD; i++) {
    const Node *node = graph->nodes[i];
    bool weight = strcmp(node->op->name, "cast") == 0 && node->inputs[0]->storage->role == ROLE_PARAMETER;
    if (operators)
      *layers += optimization_is_operator(node);
    else if (node->block > *layers)
      *layers = node->block;
    layer_of_node[i] = operators ? *layers : node->block;
    for (int32_t k = 0; k < node->output_count && !weight; k++) {
      const Tensor *output = node->outputs[k];
      if (output && output->storage->role == ROLE_ACTIVATION && maker[output->storage->id] == 0)
        maker[output->storage->id] = layer_of_node[i];
    }
  }
  return maker;
}

CheckpointChain vl_checkpoint_chain(const Program *program, bool operators) {
  const Graph *graph = program->graph;
  CheckpointChain chain = {0};
  int32_t *layer_of_node = vl_allocate(((size_t)graph->node_count + 1) * sizeof *layer_of_node);
  int32_t *maker = find_makers(program, operators, layer_of_node, &chain.layers);
  bool *crosses = vl_allocate((size_t)graph->storage_count + 1);
  bool *saved = vl_allocate((size_t)graph->storage_count + 1);
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    for (int32_t k = 0; k < node->input_count; k++) {
      const Tensor *input = node->inputs[k];
      if (!input || !input->producer || input->producer->segment != SEGMENT_FORWARD) continue;
      int32_t id = input->storage->id;
      if (maker[id] == 0) continue;
      if (node->segment != SEGMENT_FORWARD)
        saved[id] = true;
      else if (layer_of_node[i] != maker[id])
        crosses[id] = true;
    }
  }
  for (int32_t i = 0; i < graph->storage_count && chain.layers > 0; i++) {
    const Storage *storage = graph->storages[i];
    double share = (double)vl_dtype_bytes(storage->dtype, storage->elements) / chain.layers;
    if (crosses[i]) chain.boundary_bytes += share;
    if (saved[i]) chain.inner_bytes += share;
  }
  free(layer_of_node);
  free(maker);
  free(crosses);
  free(saved);
  return chain;
}
