/* activation-gradients=fp32: with amp, every node of backward computes in fp32. What forward left in the low
 * type is cast once, before its first reader in backward, and the casts autocast's gradients go through
 * convert nothing any more. Weights are those that forward used, rounded; the gradients of activations are
 * never rounded to the low type. */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct Widening {
  Program *program;
  Tensor **wide; /* by id of a tensor in the low type: its fp32 cast in backward, or NULL */
} Widening;

/* The fp32 cast of a low tensor, which stands before its first reader. */
static Status wide_of(Widening *widening, const Node *reader, Tensor *low, Tensor **wide) {
  Graph *graph = widening->program->graph;
  Tensor **made = &widening->wide[low->id];
  if (!*made) {
    OpParams params = {.dtype = DTYPE_F32};
    Node *cast;
    graph->scope = reader->scope;
    graph->block = reader->block;
    VL_TRY(vl_graph_add(graph, "cast", &params, &low, 1, &cast));
    vl_graph_move_before(graph, cast, reader);
    *made = cast->outputs[0];
  }
  *wide = *made;
  return vl_ok();
}

static void widen_dtype(Node *node, DType low) {
  for (int32_t i = 0; i < node->op->field_count; i++) {
    bool is_output_type = node->op->fields[i].type == FIELD_DTYPE && node->params.dtype == (int64_t)low;
    if (is_output_type) node->params.dtype = DTYPE_F32;
  }
}

static Status widen_node(Widening *widening, Node *node) {
  DType low = widening->program->amp;
  bool is_view = vl_node_is_view(node);
  for (int32_t k = 0; k < node->input_count; k++) {
    Tensor *input = node->inputs[k];
    if (input && input->dtype == low) VL_TRY(wide_of(widening, node, input, &node->inputs[k]));
  }
  if (is_view) { /* lies where what it shows now lies */
    node->outputs[0]->storage = node->inputs[0]->storage;
    node->outputs[0]->offset = node->inputs[0]->offset;
  }
  widen_dtype(node, low);
  Status status = vl_graph_infer_again(widening->program->graph, node);
  if (status.code == VL_OK) return status;
  return vl_error(VL_UNSUPPORTED, "activation-gradients=fp32: %s", status.message);
}

/* A cast to fp32: of a low tensor it is that tensor's cast, the first time; of fp32 it is nothing. */
static Status widen_cast(Widening *widening, Node *cast) {
  Tensor *input = cast->inputs[0];
  bool is_low = input->dtype == widening->program->amp;
  cast->params.dtype = DTYPE_F32;
  VL_TRY(vl_graph_infer_again(widening->program->graph, cast));
  if (is_low && !widening->wide[input->id]) {
    widening->wide[input->id] = cast->outputs[0];
    return vl_ok();
  }
  if (is_low) cast->inputs[0] = widening->wide[input->id];
  return optimization_remove_cast(widening->program, cast);
}

/* Between the two types. */
static bool converts(const Node *node, DType low) {
  if (strcmp(node->op->name, "cast") != 0) return false;
  DType from = node->inputs[0]->dtype, to = (DType)node->params.dtype;
  return (from == low || from == DTYPE_F32) && (to == low || to == DTYPE_F32);
}

/* In order, so that what a node reads of backward is fp32 already. */
static Status widen_backward(Widening *widening) {
  Graph *graph = widening->program->graph;
  for (int32_t i = 0; i < graph->node_count;) {
    Node *node = graph->nodes[i], *next = i + 1 < graph->node_count ? graph->nodes[i + 1] : NULL;
    if (node->segment == SEGMENT_BACKWARD && converts(node, widening->program->amp))
      VL_TRY(widen_cast(widening, node));
    else if (node->segment == SEGMENT_BACKWARD)
      VL_TRY(widen_node(widening, node));
    if (!next) break; /* casts are put before a node, and a cast may go: only the next one stays in sight */
    i = next->position;
  }
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  VL_TRY(optimization_one_of(&optimization_activation_gradients, value, "fp32"));
  bool is_low = program ? program->amp != DTYPE_F32 : vl_recipe_value(recipe, "amp") != NULL;
  if (is_low) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "activation-gradients=%s without amp: backward computes in fp32 by itself",
                  value);
}

/* The gradients do not exist before differentiation, and are in place afterwards. */
static Status apply(Program *program, const char *value, const Target *target) {
  (void)program;
  (void)value;
  (void)target;
  return vl_ok();
}

static Status apply_to_gradients(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  Graph *graph = program->graph;
  if (program->amp == DTYPE_F32) return vl_ok(); /* check refuses it */
  /* Only fp32 tensors are added. */
  Widening widening = {.program = program};
  widening.wide = vl_allocate((size_t)(graph->tensor_count + 1) * sizeof(Tensor *));
  graph->segment = SEGMENT_BACKWARD;
  Status status = widen_backward(&widening);
  graph->block = 0;
  free(widening.wide);
  return status;
}

const Optimization optimization_activation_gradients = {
    .name = "activation-gradients",
    .also_called = "fp32 activation gradients, full-precision backward",
    .turn_on = "no equivalent (PyTorch runs the backward of an op in the type of its forward)",
    .values = "fp32",
    .help = "with amp: backward computes in fp32, so that no gradient of an activation is rounded to the low "
            "type",
    .phase = PHASE_BACKWARD,
    .preserves = PRESERVES_TOLERANCE,
    .training_only = "there are no gradients",
    .check = check,
    .apply = apply,
    .apply_to_gradients = apply_to_gradients,
};
