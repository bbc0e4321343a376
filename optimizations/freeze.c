/* freeze=embeddings, freeze=k: what stands before the first block, or that and the first k blocks, is not
 * trained: no gradients, no optimizer state, no update, and backward stops above it. Another training, said
 * so. Parameters stay in State and evaluation is what it was. A table that is frozen is frozen wherever it is
 * read: a head tied to it keeps its weights too. Batch norms below keep counting their running statistics, as
 * PyTorch's requires_grad_(False) leaves them in train mode. */
#include "optimizations/internal.h"
#include <string.h>

/* How many blocks; 0: the embeddings alone. */
static Status parse(const char *value, int64_t *blocks) {
  *blocks = 0;
  if (strcmp(value, "embeddings") == 0) return vl_ok();
  if (*value < '0' || *value > '9')
    return vl_error(VL_INVALID, "freeze=%s: accepted values are %s", value, optimization_freeze.values);
  VL_TRY(vl_parse_integer("freeze", value, 1, 1000000, blocks));
  if (*value == '0')
    return vl_error(VL_INVALID, "freeze=%s: a number without leading zeros is needed", value);
  return vl_ok();
}

/* The place of the first node that stays trained: a later block's, or what follows the last one. */
static int32_t end_of(const Graph *graph, int64_t blocks) {
  int32_t end = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    if (graph->nodes[i]->block > blocks) return i;
    if (graph->nodes[i]->block > 0) end = i + 1;
  }
  return end;
}

static bool has_embedding(const Graph *graph, int32_t end) {
  for (int32_t i = 0; i < end; i++) {
    if (strcmp(graph->nodes[i]->op->name, "embedding") == 0) return true;
  }
  return false;
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  int64_t blocks;
  VL_TRY(parse(value, &blocks));
  if (!program) return vl_ok();
  const Graph *graph = program->graph;
  if (graph->block_count == 0)
    return vl_error(VL_UNSUPPORTED, "freeze: %s has no blocks to count", graph->name);
  if (blocks > graph->block_count)
    return vl_error(VL_INVALID, "freeze=%s: %s has only %d blocks", value, graph->name, graph->block_count);
  if (blocks == 0 && !has_embedding(graph, end_of(graph, 0)))
    return vl_error(VL_UNSUPPORTED, "freeze=embeddings: %s has none before its first block (freeze=k)",
                    graph->name);
  return vl_ok();
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  const Graph *graph = program->graph;
  int64_t blocks;
  VL_TRY(parse(value, &blocks));
  for (int32_t i = 0, end = end_of(graph, blocks); i < end; i++) {
    const Node *node = graph->nodes[i];
    for (int32_t k = 0; k < node->input_count; k++) {
      Storage *storage = node->inputs[k] ? node->inputs[k]->storage : NULL;
      if (storage && storage->role == ROLE_PARAMETER) storage->frozen = true;
    }
  }
  return vl_ok();
}

const Optimization optimization_freeze = {
    .name = "freeze",
    .also_called =
        "frozen layers, layer freezing, requires_grad False, transfer learning, partial fine-tuning",
    .turn_on = "frozen.requires_grad_(False)",
    .values = "embeddings, or k (they and the first k blocks, at least 1)",
    .help = "train only what follows: no gradients and no optimizer state below (another training)",
    .phase = PHASE_GRAPH,
    .preserves = PRESERVES_DIFFERENT_MODEL,
    .training_only = "nothing is trained",
    .check = check,
    .apply = apply,
};
