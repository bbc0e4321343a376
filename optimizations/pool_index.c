/* pool-index=u8: max pooling remembers the winner's place in its window in a byte instead of its place in the
 * plane in eight. */
#include "optimizations/internal.h"
#include <string.h>

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_pool_index, value, "u8");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (strcmp(node->op->name, "max_pool") != 0) continue;
    node->params.dtype = DTYPE_U8;
    VL_TRY(vl_graph_infer_again(graph, node));
  }
  return vl_ok();
}

const Optimization optimization_pool_index = {
    .name = "pool-index",
    .also_called = "compact pooling indices",
    .turn_on = "no equivalent",
    .values = "u8",
    .help = "max-pool indices in one byte instead of eight",
    .phase = PHASE_GRAPH,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
