/* recompute=norm: what is cheap to repeat (batch norm from its saved statistics, the addition and the
 * activation after it) is not kept but repeated where backward needs it; only the convolutions' outputs are
 * saved. Roughly halves the saved activations of a convolution net.
 *
 * A norm without addition is not even repeated where only the weight gradients of the convolutions after it
 * read its output: they normalise its input, which its own gradient needs anyway, while they read it. */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_recompute, value, "norm");
}

static bool is_cheap(const Node *node) {
  static const char *const cheap[] = {"batch_norm_apply", "relu", "gelu", "add"};
  for (size_t i = 0; i < sizeof cheap / sizeof *cheap; i++) {
    if (strcmp(node->op->name, cheap[i]) == 0) return true;
  }
  return false;
}

/* What a node writes over has to be made again before it: only where that is repeated too. */
static bool can_repeat(const Node *node) {
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *input = node->inputs[i];
    if (!input || !node->outputs[0] || input->storage != node->outputs[0]->storage) continue;
    const Node *maker = input->producer;
    if (!maker || !(maker->recompute_on_use || maker->checkpoint_segment > 0)) return false;
  }
  return true;
}

/* Inputs of conv_backward_weights and of batch_norm_apply, as README.md of graph/ops lists them. */
enum { WEIGHTS_X = 0, WEIGHTS_DY, WEIGHTS_MEAN, NORM_X = 0, NORM_MEAN, NORM_BETA = 4, NORM_RESIDUAL };

static bool reads(const Node *node, const Tensor *tensor, int32_t first_input) {
  for (int32_t k = first_input; k < node->input_count; k++) {
    if (node->inputs[k] == tensor) return true;
  }
  return false;
}

/* Whether a node reads norm's output, in backward or in what is repeated there, other than as a weight
 * gradient's x. */
static bool reads_otherwise(const Node *node, const Node *norm) {
  const Tensor *y = norm->outputs[0];
  if (node->segment == SEGMENT_FORWARD) return is_cheap(node) && reads(node, y, 0);
  bool weights = strcmp(node->op->name, "conv_backward_weights") == 0 && node->input_count == WEIGHTS_MEAN;
  return reads(node, y, weights ? WEIGHTS_DY : WEIGHTS_X);
}

/* Makes the weight gradients that read norm's output normalise its input, if nothing else reads it in
 * backward. The input must be there: kept, and not overwritten, for the norm's gradient, which comes later.
 */
static Status normalise_while_reading(Graph *graph, const Node *norm) {
  const Node *last = NULL, *gradient = NULL;
  for (int32_t i = norm->position + 1; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (reads_otherwise(node, norm)) return vl_ok();
    if (node->segment == SEGMENT_FORWARD) continue;
    if (reads(node, norm->outputs[0], 0)) last = node;
    if (strcmp(node->op->name, "batch_norm_backward") == 0 && reads(node, norm->inputs[NORM_X], 0))
      gradient = node;
  }
  if (!last || !gradient || gradient->position < last->position) return vl_ok();
  for (int32_t i = norm->position + 1; i <= last->position; i++) {
    Node *node = graph->nodes[i];
    if (node->segment == SEGMENT_FORWARD || !reads(node, norm->outputs[0], 0)) continue;
    node->inputs[WEIGHTS_X] = norm->inputs[NORM_X];
    for (int32_t k = NORM_MEAN; k <= NORM_BETA; k++)
      node->inputs[node->input_count++] = norm->inputs[k];
    node->params.epsilon = norm->params.epsilon;
    node->params.relu = norm->params.relu;
    VL_TRY(vl_graph_infer_again(graph, node));
  }
  return vl_ok();
}

static bool has_residual(const Node *norm) {
  return norm->input_count > NORM_RESIDUAL && norm->inputs[NORM_RESIDUAL];
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  if (!program->training) return vl_ok(); /* nothing is saved */
  Graph *graph = program->graph;
  bool *checkpointed = vl_allocate((size_t)graph->block_count + 1);
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->checkpoint_segment > 0) checkpointed[node->block] = true;
  }
  Status status = vl_ok();
  for (int32_t i = 0; i < graph->node_count && status.code == VL_OK; i++) {
    Node *node = graph->nodes[i];
    /* The boundaries of checkpoint segments stay: repeating one would take the whole segment before it. */
    bool boundary = checkpointed[node->block] && node->checkpoint_segment == 0;
    if (node->segment != SEGMENT_FORWARD || !is_cheap(node) || boundary || !can_repeat(node)) continue;
    node->recompute_on_use = true;
    bool norm = strcmp(node->op->name, "batch_norm_apply") == 0;
    if (norm && !has_residual(node)) status = normalise_while_reading(graph, node);
  }
  free(checkpointed);
  return status;
}

const Optimization optimization_recompute = {
    .name = "recompute",
    .also_called = "memory-efficient batch norm, norm recomputation, selective recomputation",
    .turn_on = "no equivalent (torch.utils.checkpoint around each norm and activation)",
    .values = "norm",
    .help = "repeat batch norm, addition and activation in backward instead of keeping their outputs",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
