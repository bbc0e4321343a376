/* layer-norm=composed: layer norms as code that does without the library's writes them, of a mean,
 * differences, their squares, another mean, a reciprocal root, two products and a sum, each a node that makes
 * a tensor. Backward keeps the differences and the normal values where the one op keeps its input.
 * layer-norm=fused leaves the op, which is what F.layer_norm runs. Comes after amp, whose policy is for the
 * whole norm: fp32. */
#include "optimizations/internal.h"
#include <string.h>

/* The nodes that take a norm's place. */
typedef struct Chain {
  Graph *graph;
  const Node *norm;
} Chain;

static Status add(const Chain *chain, const char *op, const OpParams *params, Tensor *a, Tensor *b,
                  Tensor **y) {
  Graph *graph = chain->graph;
  Node *node = NULL;
  graph->scope = chain->norm->scope;
  graph->segment = chain->norm->segment;
  graph->block = chain->norm->block;
  VL_TRY(vl_graph_add(graph, op, params, (Tensor *[]){a, b}, b ? 2 : 1, &node));
  vl_graph_move_before(graph, node, chain->norm);
  *y = node->outputs[0];
  return vl_ok();
}

/* `factor` times the mean over the last dimension, which stays with size 1. */
static Status add_mean(const Chain *chain, Tensor *x, double factor, Tensor **y) {
  OpParams sum = {.axes = {x->rank - 1}, .axis_count = 1, .dtype = x->dtype};
  OpParams part = {.alpha = factor / (double)x->shape[x->rank - 1]}, shape = {.rank = x->rank};
  memcpy(shape.shape, x->shape, sizeof shape.shape);
  shape.shape[x->rank - 1] = 1;
  VL_TRY(add(chain, "sum", &sum, x, NULL, y));
  VL_TRY(add(chain, "scale", &part, *y, NULL, y));
  return add(chain, "reshape", &shape, *y, NULL, y);
}

static Status add_chain(const Chain *chain, Tensor **y) {
  const Node *norm = chain->norm;
  Tensor *difference, *square, *scale;
  VL_TRY(add_mean(chain, norm->inputs[0], -1.0, &scale));
  VL_TRY(add(chain, "add", NULL, norm->inputs[0], scale, &difference));
  VL_TRY(add(chain, "mul", NULL, difference, difference, &square));
  VL_TRY(add_mean(chain, square, 1.0, &scale));
  VL_TRY(add(chain, "rsqrt", &(OpParams){.epsilon = norm->params.epsilon}, scale, NULL, &scale));
  VL_TRY(add(chain, "mul", NULL, difference, scale, y));
  VL_TRY(add(chain, "mul", NULL, *y, norm->inputs[1], y));
  return add(chain, "add", NULL, *y, norm->inputs[2], y);
}

static Status compose(Program *program, Node *node) {
  Graph *graph = program->graph;
  Chain chain = {.graph = graph, .norm = node};
  Tensor *result = node->outputs[0], *y;
  for (int32_t i = 1; i < node->output_count; i++) {
    Node *reader = NULL;
    if (node->outputs[i] && vl_graph_reads(graph, node->outputs[i], &reader) > 0)
      return vl_error(VL_UNSUPPORTED, "layer-norm=composed: %s in %s reads %s, which is not made",
                      reader->op->name, reader->scope, node->outputs[i]->name);
  }
  VL_TRY(add_chain(&chain, &y));
  vl_graph_replace_reads(graph, result, y);
  if (program->logits == result) program->logits = y;
  vl_graph_remove(graph, node);
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_layer_norm, value, "composed, fused");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (strcmp(value, "composed") != 0) return vl_ok();
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (strcmp(node->op->name, "layer_norm") == 0) VL_TRY(compose(program, node));
  }
  graph->block = 0;
  return vl_ok();
}

const Optimization optimization_layer_norm = {
    .name = "layer-norm",
    .also_called = "fused layer norm, FusedLayerNorm, apex layer norm",
    .turn_on = "F.layer_norm(x, (width,), weight, bias, epsilon)  # fused; not mean, var and rsqrt",
    .values = "composed, fused",
    .help = "layer norms: of primitives that each make a tensor, or one op (the default)",
    .phase = PHASE_PRECISION,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
};
