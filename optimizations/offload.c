/* offload=activations, offload=optimizer, or both: what is not needed for a while is kept in the tier the
 * device offloads to (pinned host memory, a file) and comes back before it is used, copied beside the
 * computation (ZeRO-Offload, arXiv:2101.06840, for the optimizer's state). Where the copies stand in the
 * schedule: graph/offload.c. */
#include "optimizations/internal.h"
#include <string.h>

/* Smaller state stays: a copy costs more than it occupies. */
static const int64_t smallest_bytes = 1024;

typedef struct Choice {
  int32_t blocks; /* of activations: 0 none, INT32_MAX all */
  bool optimizer;
} Choice;

static Status refuse(const char *value) {
  return vl_error(VL_INVALID,
                  "offload=%s: accepted values are activations, activations:k (up to the end of block k), "
                  "optimizer, activations+optimizer, activations:k+optimizer",
                  value);
}

static Status parse_blocks(const char *value, char *number, int32_t *blocks) {
  int64_t count = 0;
  char *end = strchr(number, '+');
  if (end) *end = '\0';
  if (*number == '0') return refuse(value);
  VL_TRY(vl_parse_integer("offload=activations", number, 1, 1000000, &count));
  *blocks = (int32_t)count;
  return vl_ok();
}

/* "activations[:k]", "optimizer", or the first + the second. */
static Status parse(const char *value, Choice *choice) {
  static const char activations[] = "activations", optimizer[] = "optimizer";
  char copy[VL_RECIPE_VALUE_BYTES];
  *choice = (Choice){0};
  snprintf(copy, sizeof copy, "%s", value);
  if (strcmp(value, optimizer) == 0) {
    choice->optimizer = true;
    return vl_ok();
  }
  char *rest = copy + sizeof activations - 1;
  const char *plus = strchr(value, '+');
  if (strncmp(value, activations, sizeof activations - 1) != 0) return refuse(value);
  if (plus && strcmp(plus + 1, optimizer) != 0) return refuse(value);
  choice->optimizer = plus != NULL;
  choice->blocks = INT32_MAX;
  if (*rest == ':') return parse_blocks(value, rest + 1, &choice->blocks);
  return *rest == '\0' || *rest == '+' ? vl_ok() : refuse(value);
}

/* Whether a storage is state that one update alone touches: it can be away from one step to the next. */
static bool can_leave(const Graph *graph, const Storage *storage) {
  const Node *only = NULL;
  if (storage->role != ROLE_OPTIMIZER) return false;
  if (vl_dtype_bytes(storage->dtype, storage->elements) < smallest_bytes) return false;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    bool touches = false;
    for (int32_t k = 0; k < node->input_count; k++)
      touches = touches || (node->inputs[k] && node->inputs[k]->storage == storage);
    for (int32_t k = 0; k < node->output_count; k++)
      touches = touches || (node->outputs[k] && node->outputs[k]->storage == storage);
    if (touches && only) return false;
    if (touches) only = node;
  }
  return only && only->segment == SEGMENT_UPDATE;
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  Choice choice;
  VL_TRY(parse(value, &choice));
  if (!program || !program->training) return vl_ok();
  const Graph *graph = program->graph;
  bool limited = choice.blocks > 0 && choice.blocks < INT32_MAX;
  if (limited && graph->block_count == 0)
    return vl_error(VL_UNSUPPORTED, "offload=%s: %s has no blocks to count", value, graph->name);
  if (limited && choice.blocks > graph->block_count)
    return vl_error(VL_INVALID, "offload=%s: %s has only %d blocks", value, graph->name, graph->block_count);
  return vl_ok();
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  Choice choice;
  VL_TRY(parse(value, &choice));
  if (!program->training) return vl_ok(); /* nothing is saved, nothing updated */
  Graph *graph = program->graph;
  program->offload_blocks = choice.blocks;
  for (int32_t i = 0; i < graph->storage_count && choice.optimizer; i++)
    if (can_leave(graph, graph->storages[i])) graph->storages[i]->tier = TIER_OFFLOAD;
  return vl_ok();
}

const Optimization optimization_offload = {
    .name = "offload",
    .also_called = "CPU offload, activation offload, save_on_cpu, ZeRO-Offload, ZeRO-Infinity, NVMe offload, "
                   "paged optimizer, swapping",
    .turn_on = "with torch.autograd.graph.save_on_cpu(pin_memory=True):"
               "  # activations; optimizer: DeepSpeed zero_optimization.offload_optimizer",
    .values = "activations, activations:k (up to the end of block k), optimizer, activations[:k]+optimizer",
    .help = "keep activations until backward, or optimizer state until its update, in host memory or a file",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is kept for a backward pass, and there is no optimizer",
    .check = check,
    .apply = apply,
};
