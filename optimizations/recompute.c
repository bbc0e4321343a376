/* recompute=norm: what is cheap to repeat (batch norm from its saved statistics, the addition and the
 * activation after it) is not kept but repeated where backward needs it; only the convolutions' outputs are
 * saved. Roughly halves the saved activations of a convolution net. */
#include "optimizations/internal.h"
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

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  if (!program->training) return vl_ok(); /* nothing is saved */
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    Node *node = program->graph->nodes[i];
    if (node->segment == SEGMENT_FORWARD && is_cheap(node)) node->recompute_on_use = true;
  }
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
