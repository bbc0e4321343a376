/* Runs a graph on the reference device's functions, one array of double per storage. */
#include "tests/kernels/compare.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <stdlib.h>

double round_to(DType dtype, double value) {
  unsigned char bytes[8] = {0};
  vl_element_set(bytes, dtype, 0, value);
  return vl_element_get(bytes, dtype, 0);
}

Evaluation *evaluation_create(const Graph *graph) {
  Evaluation *evaluation = vl_allocate(sizeof *evaluation);
  evaluation->graph = graph;
  evaluation->values = vl_allocate((size_t)graph->storage_count * sizeof *evaluation->values);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    int64_t elements = graph->storages[i]->elements;
    double *values = vl_allocate((size_t)elements * sizeof *values);
    for (int64_t e = 0; e < elements; e++)
      values[e] = (double)NAN;
    evaluation->values[graph->storages[i]->id] = values;
  }
  return evaluation;
}

void evaluation_destroy(Evaluation **evaluation) {
  if (!*evaluation) return;
  for (int32_t i = 0; i < (*evaluation)->graph->storage_count; i++)
    free((*evaluation)->values[i]);
  free((*evaluation)->values);
  free(*evaluation);
  *evaluation = NULL;
}

double *evaluation_of(const Evaluation *evaluation, const Tensor *tensor) {
  return tensor ? evaluation->values[tensor->storage->id] + tensor->offset : NULL;
}

void evaluation_draw(Evaluation *evaluation, const Storage *storage, uint64_t seed, double center,
                     double bound) {
  uint64_t key = vl_random_key(seed, 0, storage->name);
  for (int64_t i = 0; i < storage->elements; i++) {
    double unit = (double)vl_random_unit(vl_random_word(key, 0, (uint64_t)i));
    evaluation->values[storage->id][i] = round_to(storage->dtype, center + (2.0 * unit - 1.0) * bound);
  }
}

void evaluation_draw_whole(Evaluation *evaluation, const Storage *storage, uint64_t seed, int64_t count) {
  uint64_t key = vl_random_key(seed, 0, storage->name);
  for (int64_t i = 0; i < storage->elements; i++) {
    double unit = (double)vl_random_unit(vl_random_word(key, 0, (uint64_t)i));
    evaluation->values[storage->id][i] = floor(unit * (double)count);
  }
}

void evaluation_initialise(Evaluation *evaluation, uint64_t seed) {
  for (int32_t i = 0; i < evaluation->graph->storage_count; i++) {
    const Storage *storage = evaluation->graph->storages[i];
    if (!vl_role_is_persistent(storage->role)) continue;
    double center = storage->init.kind == INIT_CONSTANT ? storage->init.value : 0.0;
    double bound = storage->init.kind == INIT_UNIFORM ? storage->init.value : 0.0;
    evaluation_draw(evaluation, storage, seed, center, bound);
  }
}

Status evaluation_run_node(Evaluation *evaluation, const Node *node) {
  double *inputs[VL_MAX_INPUTS], *outputs[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < node->input_count; i++)
    inputs[i] = evaluation_of(evaluation, node->inputs[i]);
  for (int32_t i = 0; i < node->output_count; i++)
    outputs[i] = evaluation_of(evaluation, node->outputs[i]);
  return vl_reference_compute(node, inputs, outputs, &evaluation->context);
}

Status evaluation_run(Evaluation *evaluation) {
  for (int32_t i = 0; i < evaluation->graph->node_count; i++) {
    VL_TRY(evaluation_run_node(evaluation, evaluation->graph->nodes[i]));
  }
  return vl_ok();
}
