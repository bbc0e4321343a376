/* recompute=norm: what is cheap to repeat (batch norm from its saved statistics, the addition and the
 * activation after it) is not kept but repeated where backward needs it; only the convolutions' outputs are
 * saved. Roughly halves the saved activations of a convolution net. */
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

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  if (!program->training) return vl_ok(); /* nothing is saved */
  const Graph *graph = program->graph;
  bool *checkpointed = vl_allocate((size_t)graph->block_count + 1);
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->checkpoint_segment > 0) checkpointed[node->block] = true;
  }
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    /* The boundaries of checkpoint segments stay: repeating one would take the whole segment before it. */
    bool boundary = checkpointed[node->block] && node->checkpoint_segment == 0;
    if (node->segment == SEGMENT_FORWARD && is_cheap(node) && !boundary && can_repeat(node)) {
      node->recompute_on_use = true;
    }
  }
  free(checkpointed);
  return vl_ok();
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
