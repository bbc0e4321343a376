#include "graph/graph.h"
#include <stdlib.h>
#include <string.h>

void vl_program_init(Program *program, Graph *graph) {
  *program = (Program){
      .graph = graph,
      .amp = DTYPE_F32,
      .accumulate = 1,
      .allocation_policy = "caching",
      .optimizer = {.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 1e-4},
  };
}

void vl_program_destroy(Program *program) {
  vl_graph_destroy(&program->graph);
  memset(program, 0, sizeof *program);
}

Status vl_program_add_updates(Program *program) {
  Graph *graph = program->graph;
  graph->segment = SEGMENT_UPDATE;
  OpParams settings = {.learning_rate = program->optimizer.learning_rate,
                       .momentum = program->optimizer.momentum,
                       .weight_decay = program->optimizer.weight_decay};
  for (int32_t i = 0; i < program->gradient_count; i++) {
    Tensor *parameter = program->gradients[i].parameter;
    graph->scope = parameter->storage->scope;
    const char *name = vl_arena_format(graph->arena, "%s.momentum", parameter->name);
    Tensor *momentum = vl_graph_parameter(graph, name, ROLE_OPTIMIZER, parameter->dtype, parameter->rank,
                                          parameter->shape, (Init){.kind = INIT_ZERO});
    VL_TRY(vl_graph_add(graph, "sgd", &settings,
                        (Tensor *[]){parameter, program->gradients[i].gradient, momentum}, 3, NULL));
  }
  return vl_ok();
}

int64_t vl_program_saved_bytes(const Program *program) {
  const Graph *graph = program->graph;
  bool *counted = vl_allocate((size_t)graph->storage_count * sizeof *counted);
  int64_t bytes = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->segment == SEGMENT_FORWARD) continue;
    for (int32_t k = 0; k < node->input_count; k++) {
      const Tensor *input = node->inputs[k];
      if (!input || counted[input->storage->id]) continue;
      const Storage *storage = input->storage;
      const Node *producer = input->producer;
      bool of_forward = storage->role == ROLE_ACTIVATION && producer && producer->segment == SEGMENT_FORWARD;
      if (!of_forward && storage->role != ROLE_INPUT) continue;
      counted[storage->id] = true;
      /* A cast or copy of a parameter is a weight, not an activation. */
      bool of_parameter = producer && producer->input_count == 1 && producer->inputs[0] &&
                          producer->inputs[0]->storage->role == ROLE_PARAMETER;
      if (!of_parameter) bytes += vl_dtype_bytes(storage->dtype, storage->elements);
    }
  }
  free(counted);
  return bytes;
}
