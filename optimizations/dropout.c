/* dropout=stored: a dropout leaves the factors of its elements for backward, a tensor of its input's size and
 * type, as eager PyTorch does on a CPU, where it draws a noise tensor and multiplies by it. dropout=mask: a
 * byte an element, as it does on a GPU. dropout=redrawn: backward draws the mask again from the counter-based
 * generator, and nothing is left. The same elements are kept each way. Without any, stack=pytorch stores. */
#include "optimizations/internal.h"
#include <string.h>

/* In its place, one that makes the noise too. */
static Status store(Program *program, Node *node, double form) {
  Graph *graph = program->graph;
  OpParams params = node->params;
  Node *storing = NULL;
  params.alpha = form;
  graph->scope = node->scope;
  graph->segment = node->segment;
  graph->block = node->block;
  VL_TRY(vl_graph_add(graph, "dropout", &params, node->inputs, 1, &storing));
  storing->inplace_hint = node->inplace_hint;
  vl_graph_move_before(graph, storing, node);
  vl_graph_replace_reads(graph, node->outputs[0], storing->outputs[0]);
  if (program->logits == node->outputs[0]) program->logits = storing->outputs[0];
  if (program->loss == node->outputs[0]) program->loss = storing->outputs[0];
  vl_graph_remove(graph, node);
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_dropout, value, "stored, mask, redrawn");
}

/* A rate of 0 draws nothing in PyTorch either. */
static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (strcmp(value, "redrawn") == 0 || !program->training) return vl_ok();
  double form = strcmp(value, "mask") == 0 ? 2.0 : 1.0;
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (strcmp(node->op->name, "dropout") == 0 && node->params.rate > 0.0 && node->output_count == 1)
      VL_TRY(store(program, node, form));
  }
  graph->block = 0;
  return vl_ok();
}

const Optimization optimization_dropout = {
    .name = "dropout",
    .also_called = "stateless dropout, dropout mask recomputation, fused dropout, seed instead of mask",
    .turn_on = "no equivalent by itself (torch.compile's dropout keeps a seed instead of a mask)",
    .values = "stored, mask, redrawn",
    .help = "masks of dropout: kept for backward as eager PyTorch does, as factors (stored; on a CPU) or "
            "bytes (mask; on a GPU), or drawn again there",
    .phase = PHASE_PRECISION,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is dropped",
    .check = check,
    .apply = apply,
};
