/* optimizer-state=8bit: AdamW's two moments as 8-bit codes with a scale for each block of 256 elements
 * (Dettmers et al., arXiv:2110.02861; block size as in current bitsandbytes): 2.03 bytes a parameter instead
 * of 8. As bitsandbytes is used for language models, tables of embeddings and parameters of fewer than 4096
 * elements keep theirs in fp32; so do convolutions, whose layout is the device's own. */
#include "optimizations/internal.h"

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  VL_TRY(optimization_one_of(&optimization_optimizer_state, value, "8bit"));
  if (!program || !program->training) return vl_ok();
  const Graph *graph = program->graph;
  if (program->optimizer.kind != OPTIMIZER_ADAMW)
    return vl_error(VL_UNSUPPORTED,
                    "optimizer-state=8bit: %s is trained by SGD, whose momentum is of convolutions above all "
                    "and lies in their layout; only AdamW's moments of matrices are kept in 8 bits",
                    graph->name);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    if (storage->role == ROLE_PARAMETER && vl_parameter_takes_8bit(graph, storage->root)) return vl_ok();
  }
  return vl_error(VL_UNSUPPORTED,
                  "optimizer-state=8bit: %s has no matrix of at least %d elements beside its embeddings",
                  graph->name, VL_STATE_LEAST);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  program->optimizer.state_8bit = true;
  return vl_ok();
}

const Optimization optimization_optimizer_state = {
    .name = "optimizer-state",
    .also_called =
        "8-bit Adam, 8-bit optimizer, bitsandbytes, AdamW8bit, adamw_bnb_8bit, quantized optimizer",
    .turn_on = "import bitsandbytes; optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())",
    .values = "8bit",
    .help = "AdamW's moments of matrices as 8-bit codes with a scale for each 256 of them",
    .phase = PHASE_PRECISION,
    .preserves = PRESERVES_TOLERANCE,
    .training_only = "there is no optimizer",
    .check = check,
    .apply = apply,
};
