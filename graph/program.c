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

OptimizerSettings vl_optimizer_adamw(void) {
  return (OptimizerSettings){.kind = OPTIMIZER_ADAMW,
                             .learning_rate = 1e-3,
                             .weight_decay = 1e-2,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .epsilon = 1e-8};
}

LossScaling vl_loss_scaling_dynamic(void) {
  return (LossScaling){.initial = 65536.0, .growth = 2.0, .backoff = 0.5, .interval = 2000};
}

/* The op that updates a parameter, and what it keeps of each. */
typedef struct Updater {
  const char *op;
  const char *states[2]; /* "<parameter>.<state>"; NULL: fewer */
} Updater;

static const Updater updaters[] = {
    [OPTIMIZER_SGD] = {"sgd", {"momentum"}}, [OPTIMIZER_ADAMW] = {"adamw", {"exp_avg", "exp_avg_sq"}}};

static Tensor *add_state(Graph *graph, const Tensor *parameter, const char *state, DType dtype, int32_t rank,
                         const int64_t *shape) {
  const char *name = vl_arena_format(graph->arena, "%s.%s", parameter->name, state);
  return vl_graph_parameter(graph, name, ROLE_OPTIMIZER, dtype, rank, shape, (Init){.kind = INIT_ZERO});
}

static bool is_table(const Graph *graph, const Tensor *parameter) {
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    bool looks_up = strcmp(node->op->name, "embedding") == 0 || strcmp(node->op->name, "slice") == 0;
    if (looks_up && node->inputs[0] == parameter) return true;
  }
  return false;
}

bool vl_parameter_takes_8bit(const Graph *graph, const Tensor *parameter) {
  return parameter->rank == 2 && vl_tensor_elements(parameter) >= VL_STATE_LEAST &&
         !is_table(graph, parameter);
}

static Status add_update(Graph *graph, const ParameterGradient *entry, const Updater *updater,
                         const OpParams *params, bool in_8bit, Tensor *const factor[2]) {
  const Tensor *parameter = entry->parameter;
  Tensor *inputs[VL_MAX_INPUTS] = {entry->parameter, entry->gradient};
  int32_t count = 2;
  DType dtype = in_8bit ? DTYPE_U8 : parameter->dtype;
  for (int32_t s = 0; s < 2 && updater->states[s]; s++)
    inputs[count++] =
        add_state(graph, parameter, updater->states[s], dtype, parameter->rank, parameter->shape);
  int64_t scales[] = {2, (vl_tensor_elements(parameter) + VL_STATE_BLOCK - 1) / VL_STATE_BLOCK};
  if (in_8bit) inputs[count++] = add_state(graph, parameter, "absmax", DTYPE_F32, 2, scales);
  for (int32_t k = 0; k < 2 && factor[k]; k++)
    inputs[count++] = factor[k];
  return vl_graph_add(graph, in_8bit ? "adamw_8bit" : updater->op, params, inputs, count, NULL);
}

/* The sum of the squares of all gradients. */
static Status add_square_sum(const Program *program, Tensor **sum) {
  Tensor *inputs[2] = {NULL, NULL};
  for (int32_t i = 0; i < program->gradient_count; i++) {
    inputs[0] = program->gradients[i].gradient;
    program->graph->scope = program->gradients[i].parameter->storage->scope;
    VL_TRY(vl_apply(program->graph, "square_sum", NULL, inputs, i > 0 ? 2 : 1, &inputs[1]));
  }
  *sum = inputs[1];
  return vl_ok();
}

/* What an update reads beside gradient and state: the factor and, where steps may be skipped, the counters;
 * NULL where there is none. */
static Status add_factor(const Program *program, Tensor *factor[2]) {
  Graph *graph = program->graph;
  if ((!program->loss_scale && program->max_norm == 0.0) || program->gradient_count == 0) return vl_ok();
  const LossScaling *scaling = &program->scaling;
  OpParams params = {.max_norm = program->max_norm};
  Tensor *of[3] = {NULL, program->loss_scale, NULL};
  VL_TRY(add_square_sum(program, &of[0]));
  graph->scope = "loss_scale";
  if (program->loss_scale) {
    params.growth = scaling->growth;
    params.backoff = scaling->backoff;
    params.interval = scaling->interval;
    of[2] = vl_graph_parameter(graph, "loss_scale.counters", ROLE_OPTIMIZER, DTYPE_I64, 1,
                               (int64_t[]){SCALER_COUNTERS}, (Init){.kind = INIT_ZERO});
  }
  Node *node;
  VL_TRY(vl_graph_add(graph, "gradient_factor", &params, of, program->loss_scale ? 3 : 1, &node));
  factor[0] = node->outputs[0];
  if (program->loss_scale) factor[1] = node->outputs[3];
  return vl_ok();
}

Status vl_program_add_updates(Program *program) {
  Graph *graph = program->graph;
  const OptimizerSettings *optimizer = &program->optimizer;
  const Updater *updater = &updaters[optimizer->kind];
  graph->segment = SEGMENT_UPDATE;
  OpParams params = {.learning_rate = optimizer->learning_rate,
                     .weight_decay = optimizer->weight_decay,
                     .momentum = optimizer->momentum,
                     .beta1 = optimizer->beta1,
                     .beta2 = optimizer->beta2,
                     .epsilon = optimizer->epsilon};
  Tensor *factor[2] = {NULL, NULL};
  VL_TRY(add_factor(program, factor));
  for (int32_t i = 0; i < program->gradient_count; i++) {
    const ParameterGradient *entry = &program->gradients[i];
    bool in_8bit = optimizer->kind == OPTIMIZER_ADAMW && optimizer->state_8bit &&
                   vl_parameter_takes_8bit(graph, entry->parameter);
    graph->scope = entry->parameter->storage->scope;
    VL_TRY(add_update(graph, entry, updater, &params, in_8bit, factor));
  }
  return vl_ok();
}

int64_t vl_program_samples(const Program *program) {
  int64_t samples = -1;
  for (int32_t i = 0; i < program->graph->storage_count; i++) {
    const Storage *storage = program->graph->storages[i];
    if (storage->role != ROLE_INPUT) continue;
    if (storage->root->rank == 0 || (samples >= 0 && samples != storage->root->shape[0])) return -1;
    samples = storage->root->shape[0];
  }
  return samples;
}

/* The labels that a loss or its gradient reads; NULL for another node. */
static const Tensor *labels_read(const Node *node) {
  static const char *const losses[] = {"softmax_cross_entropy", "dice_cross_entropy"};
  for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
    size_t length = strlen(losses[i]);
    if (strncmp(node->op->name, losses[i], length) != 0) continue;
    return node->inputs[node->op->name[length] == '\0' ? 1 : 2];
  }
  return NULL;
}

const Storage *vl_labels_of(const Node *node) {
  const Tensor *labels = labels_read(node);
  if (!labels) return NULL;
  int64_t rows = vl_tensor_elements(labels);
  for (; labels->producer; labels = labels->producer->inputs[0]) {
    const Op *op = labels->producer->op;
    bool part = strcmp(op->name, "slice") == 0 && labels->rank == 1;
    if (part)
      rows = vl_tensor_elements(labels->producer->inputs[0]);
    else if (!vl_node_is_view(labels->producer) && strcmp(op->name, "copy") != 0)
      return NULL;
  }
  return labels->storage->role == ROLE_INPUT && labels->storage->elements == rows ? labels->storage : NULL;
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
