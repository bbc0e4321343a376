/* inplace-abn=slope: a batch norm and the ReLU behind it, leaky from now on, keep only what the next layer
 * reads, their output. Backward makes the norm's input from it again, since both can be inverted: the slope
 * below zero is not 0, nor is gamma, whose magnitude plus epsilon takes its place. So it is another model:
 * leaky, with gammas of one sign. Norms in front of an addition and the ReLU after it stay as they are. (Rota
 * Bulo, Porzi, Kontschieder, In-Place Activated BatchNorm, CVPR 2018.) */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

/* Inputs as README.md of graph/ops lists them. */
enum { NORM_X = 0, NORM_MEAN, NORM_VAR, NORM_GAMMA, NORM_BETA, NORM_RESIDUAL, BACKWARD_X = 1 };

static bool is_op(const Node *node, const char *name) { return node && strcmp(node->op->name, name) == 0; }

/* More than 0, at most 1. */
static Status parse(const char *value, double *slope) {
  char *end;
  *slope = strtod(value, &end);
  if (end != value && *end == '\0' && *slope > 0.0 && *slope <= 1.0) return vl_ok();
  return vl_error(VL_INVALID, "inplace-abn=%s: accepted values are slopes above 0 and up to 1", value);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  double slope;
  VL_TRY(parse(value, &slope));
  const char *recompute = vl_recipe_value(recipe, "recompute");
  if (program && recompute && strcmp(recompute, "gelu") != 0)
    return vl_error(
        VL_UNSUPPORTED,
        "inplace-abn with recompute=%s: one keeps what a norm makes and inverts it, the other what "
        "it reads and repeats it; leave one of them out",
        recompute);
  return vl_ok();
}

/* The norm whose output only this node, a ReLU, reads; else NULL. */
static Node *norm_before(const Program *program, const Node *relu) {
  if (!is_op(relu, "relu")) return NULL;
  Tensor *x = relu->inputs[0];
  Node *norm = x->producer;
  if (!is_op(norm, "batch_norm_apply") || norm->params.relu != 0 || x == program->logits) return NULL;
  if (norm->input_count > NORM_RESIDUAL && norm->inputs[NORM_RESIDUAL]) return NULL;
  return vl_graph_reads(program->graph, x, NULL) == 1 ? norm : NULL;
}

/* A gamma that is not 0. */
static Status bound_gamma(Graph *graph, Node *norm) {
  OpParams params = {.epsilon = norm->params.epsilon};
  Node *magnitude;
  graph->scope = norm->scope;
  graph->block = norm->block;
  VL_TRY(vl_graph_add(graph, "magnitude", &params, &norm->inputs[NORM_GAMMA], 1, &magnitude));
  vl_graph_move_before(graph, magnitude, norm);
  norm->inputs[NORM_GAMMA] = magnitude->outputs[0];
  return vl_ok();
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  Graph *graph = program->graph;
  double slope;
  VL_TRY(parse(value, &slope));
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *relu = graph->nodes[i], *norm = norm_before(program, relu);
    if (!norm || relu->params.alpha > 0.0) continue;
    relu->params.alpha = slope;
    VL_TRY(bound_gamma(graph, norm));
  }
  graph->block = 0;
  return vl_ok();
}

/* The norm's gradient reads its input as the ReLU's output gives it. */
static Status invert_for(Graph *graph, const Node *norm, const Node *relu, Node *backward) {
  OpParams params = {.epsilon = norm->params.epsilon, .alpha = relu->params.alpha};
  Tensor *inputs[] = {relu->outputs[0], norm->inputs[NORM_MEAN], norm->inputs[NORM_VAR],
                      norm->inputs[NORM_GAMMA], norm->inputs[NORM_BETA]};
  Node *invert;
  graph->scope = norm->scope;
  graph->segment = SEGMENT_BACKWARD;
  VL_TRY(vl_graph_add(graph, "batch_norm_invert", &params, inputs, 5, &invert));
  vl_graph_move_before(graph, invert, backward);
  backward->inputs[BACKWARD_X] = invert->outputs[0];
  return vl_ok();
}

static Status apply_to_gradients(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *backward = graph->nodes[i];
    if (!is_op(backward, "batch_norm_backward")) continue;
    for (int32_t k = 0; k < i; k++) {
      const Node *relu = graph->nodes[k], *norm = is_op(relu, "relu") ? relu->inputs[0]->producer : NULL;
      if (!is_op(norm, "batch_norm_apply") || !(relu->params.alpha > 0.0)) continue;
      if (norm->inputs[NORM_MEAN] != backward->inputs[2]) continue;
      VL_TRY(invert_for(graph, norm, relu, backward));
      i++; /* the gradient moved up */
      break;
    }
  }
  return vl_ok();
}

const Optimization optimization_inplace_abn = {
    .name = "inplace-abn",
    .also_called = "InPlace-ABN, in-place activated batch norm, invertible normalization",
    .turn_on = "import inplace_abn; inplace_abn.InPlaceABN(channels, activation='leaky_relu')"
               "  # for norm and ReLU",
    .values = "slope (of the leaky ReLU below zero, above 0 and up to 1; the paper's: 0.01)",
    .help = "batch norm and a leaky ReLU keep their output alone and invert it in backward: another model",
    .phase = PHASE_GRAPH,
    .preserves = PRESERVES_DIFFERENT_MODEL,
    .check = check,
    .apply = apply,
    .apply_to_gradients = apply_to_gradients,
};
