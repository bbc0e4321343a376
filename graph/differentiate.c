/* Reverse-mode differentiation: forward nodes are visited last to first, and each op adds the nodes that turn
 * the gradients of its outputs into those of its inputs. */
#include "graph/graph.h"
#include <stdlib.h>
#include <string.h>

static void make_room(Gradients *gradients, int32_t id) {
  if (gradients->of && id < gradients->capacity) return;
  int32_t capacity = 2 * (id + 1);
  size_t old = (size_t)gradients->capacity, added = (size_t)(capacity - gradients->capacity);
  gradients->of = vl_reallocate(gradients->of, (size_t)capacity * sizeof(Tensor *));
  gradients->needed = vl_reallocate(gradients->needed, (size_t)capacity * sizeof *gradients->needed);
  memset(gradients->of + old, 0, added * sizeof(Tensor *));
  memset(gradients->needed + old, 0, added * sizeof *gradients->needed);
  gradients->capacity = capacity;
}

Tensor *vl_gradient_of(const Gradients *gradients, const Tensor *tensor) {
  return tensor->id < gradients->capacity ? gradients->of[tensor->id] : NULL;
}

bool vl_gradient_needed(const Gradients *gradients, const Tensor *tensor) {
  return tensor && tensor->id < gradients->capacity && gradients->needed[tensor->id];
}

Status vl_gradient_accumulate(Gradients *gradients, Tensor *tensor, Tensor *gradient) {
  if (!vl_tensor_same_shape(tensor, gradient)) {
    char want[96], got[96];
    vl_tensor_describe(tensor, want, sizeof want);
    vl_tensor_describe(gradient, got, sizeof got);
    return vl_error(VL_INTERNAL, "gradient of %s is %s, the tensor %s", tensor->name, got, want);
  }
  make_room(gradients, tensor->id);
  Tensor *arrived = gradients->of[tensor->id];
  if (arrived) VL_TRY(vl_apply(gradients->graph, "add", NULL, (Tensor *[]){arrived, gradient}, 2, &gradient));
  gradients->of[tensor->id] = gradient;
  return vl_ok();
}

Tensor *vl_gradient_take(Gradients *gradients, const Tensor *tensor) {
  Tensor *arrived = vl_gradient_of(gradients, tensor);
  if (!gradients->onto || !arrived || vl_tensor_elements(arrived) != arrived->storage->elements) return NULL;
  for (int32_t i = 0; i < gradients->capacity; i++) {
    const Tensor *other = gradients->of[i];
    if (i != tensor->id && other && other->storage == arrived->storage) return NULL;
  }
  gradients->of[tensor->id] = NULL;
  return arrived;
}

/* A tensor needs a gradient when it is a parameter that is trained, or made from one by a differentiable op.
 */
static void mark_needed(Gradients *gradients) {
  Graph *graph = gradients->graph;
  make_room(gradients, graph->tensor_count);
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    const Storage *storage = tensor->storage;
    gradients->needed[i] = storage->role == ROLE_PARAMETER && !storage->frozen && !tensor->producer;
  }
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (!node->op->gradient) continue;
    bool needed = false;
    for (int32_t k = 0; k < node->input_count; k++) {
      needed = needed || vl_gradient_needed(gradients, node->inputs[k]);
    }
    for (int32_t k = 0; k < node->output_count; k++) {
      if (node->outputs[k]) gradients->needed[node->outputs[k]->id] = needed;
    }
  }
}

static bool any_output_gradient(const Gradients *gradients, const Node *node) {
  for (int32_t k = 0; k < node->output_count; k++) {
    if (node->outputs[k] && vl_gradient_of(gradients, node->outputs[k])) return true;
  }
  return false;
}

/* The gradient of the loss: 1, or State's loss scale. */
static Status make_seed(Program *program, Tensor **seed) {
  Graph *graph = program->graph;
  OpParams one = {.alpha = 1.0, .dtype = program->loss->dtype};
  graph->scope = "loss";
  if (program->scaling.initial == 0.0) return vl_apply(graph, "fill", &one, NULL, 0, seed);
  if (program->loss->dtype != DTYPE_F32) {
    return vl_error(VL_UNSUPPORTED, "loss scaling: the loss of %s is %s, not f32", graph->name,
                    vl_dtype_name(program->loss->dtype));
  }
  graph->scope = "loss_scale";
  Init init = {.kind = INIT_CONSTANT, .value = program->scaling.initial};
  *seed = vl_graph_parameter(graph, "loss_scale", ROLE_OPTIMIZER, DTYPE_F32, 0, NULL, init);
  program->loss_scale = *seed;
  return vl_ok();
}

static Status walk_back(Gradients *gradients, Program *program) {
  Graph *graph = gradients->graph;
  int32_t forward_count = graph->node_count;
  Tensor *seed = NULL;
  VL_TRY(make_seed(program, &seed));
  VL_TRY(vl_gradient_accumulate(gradients, program->loss, seed));
  for (int32_t i = forward_count - 1; i >= 0; i--) {
    Node *node = graph->nodes[i];
    bool needed = false;
    for (int32_t k = 0; k < node->input_count; k++) {
      needed = needed || vl_gradient_needed(gradients, node->inputs[k]);
    }
    if (!needed || !node->op->gradient || !any_output_gradient(gradients, node)) continue;
    graph->scope = node->scope;
    graph->block = node->block;
    VL_TRY(node->op->gradient(gradients, node));
  }
  graph->block = 0;
  return vl_ok();
}

static Status collect(Program *program, const Gradients *gradients) {
  Graph *graph = program->graph;
  program->gradients =
      vl_arena_allocate(graph->arena, (size_t)graph->storage_count * sizeof *program->gradients);
  program->gradient_count = 0;
  int32_t storages = graph->storage_count; /* copies of gradients add more */
  for (int32_t i = 0; i < storages; i++) {
    Storage *storage = graph->storages[i];
    if (storage->role != ROLE_PARAMETER || storage->frozen) continue;
    Tensor *gradient = vl_gradient_of(gradients, storage->root);
    if (!gradient) return vl_error(VL_INVALID, "parameter %s does not reach the loss", storage->name);
    if (gradient->storage->role == ROLE_GRADIENT) { /* another parameter's too: each has its own */
      graph->scope = storage->scope;
      VL_TRY(vl_apply(graph, "copy", NULL, &gradient, 1, &gradient));
    }
    gradient->storage->role = ROLE_GRADIENT;
    gradient->storage->name = gradient->name = vl_arena_format(graph->arena, "%s.grad", storage->name);
    program->gradients[program->gradient_count++] = (ParameterGradient){storage->root, gradient};
  }
  return vl_ok();
}

Status vl_program_differentiate(Program *program) {
  Graph *graph = program->graph;
  if (!program->loss || program->loss->rank != 0) {
    return vl_error(VL_INVALID, "%s has no scalar loss to differentiate", graph->name);
  }
  Gradients gradients = {
      .graph = graph, .weight_first = program->weight_gradient_first, .onto = program->gradients_onto};
  mark_needed(&gradients);
  graph->segment = SEGMENT_BACKWARD;
  Status status = walk_back(&gradients, program);
  if (status.code == VL_OK) status = collect(program, &gradients);
  free(gradients.of);
  free(gradients.needed);
  return status;
}
