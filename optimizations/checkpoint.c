/* checkpoint=k, checkpoint=segments:n: runs of blocks keep only their boundary tensors; the rest is
 * recomputed before the run's backward (Chen et al., arXiv:1604.06174). The last run is not recomputed: its
 * backward follows at once. Batch statistics (two numbers per channel) are kept, so running statistics are
 * updated once. */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

/* A count of at least 1 after an optional "segments:". */
static Status parse(const char *value, bool *segments, int32_t *count) {
  static const char prefix[] = "segments:";
  *segments = strncmp(value, prefix, sizeof prefix - 1) == 0;
  const char *number = *segments ? value + sizeof prefix - 1 : value;
  int64_t parsed = 0;
  *count = 0;
  VL_TRY(vl_parse_integer("checkpoint", number, 1, 1000000, &parsed));
  if (*number == '0')
    return vl_error(VL_INVALID, "checkpoint=%s: a number without leading zeros is needed", value);
  *count = (int32_t)parsed;
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  bool segments = false;
  int32_t count = 0;
  VL_TRY(parse(value, &segments, &count));
  if (program && program->graph->block_count == 0) {
    return vl_error(VL_UNSUPPORTED, "checkpoint: %s has no blocks to cut between", program->graph->name);
  }
  if (program && segments && count > program->graph->block_count) {
    return vl_error(VL_INVALID, "checkpoint=segments:%d: %s has only %d blocks", count, program->graph->name,
                    program->graph->block_count);
  }
  return vl_ok();
}

static bool read_outside(const Graph *graph, const Node *node) {
  for (int32_t i = node->position + 1; i < graph->node_count; i++) {
    const Node *reader = graph->nodes[i];
    if (reader->segment != SEGMENT_FORWARD) break;
    if (reader->checkpoint_segment == node->checkpoint_segment || reader->block == node->block) continue;
    for (int32_t k = 0; k < reader->input_count; k++) {
      for (int32_t o = 0; o < node->output_count; o++) {
        if (node->outputs[o] && reader->inputs[k] == node->outputs[o]) return true;
      }
    }
  }
  return false;
}

/* by block (1-based): its segment, 0 for the last one */
static Status segment_of_blocks(int32_t blocks, const char *value, int32_t *segment_of) {
  bool segments = false, clamped = false;
  int32_t wanted = 0, count = 0;
  VL_TRY(parse(value, &segments, &wanted));
  int32_t *sizes = vl_allocate((size_t)blocks * sizeof *sizes);
  Status status = segments ? vl_partition_segments(blocks, wanted, sizes, &count, &clamped)
                           : vl_partition_interval(blocks, wanted, sizes, &count);
  for (int32_t s = 0, block = 1; s < count; s++) {
    for (int32_t i = 0; i < sizes[s]; i++)
      segment_of[block++] = s + 1 < count ? s + 1 : 0;
  }
  free(sizes);
  return status;
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (!program->training) return vl_ok(); /* nothing is saved */
  Graph *graph = program->graph;
  int32_t *segment_of = vl_allocate(((size_t)graph->block_count + 1) * sizeof *segment_of);
  Status status = segment_of_blocks(graph->block_count, value, segment_of);
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    bool keeps = node->op->side_effect || strcmp(node->op->name, "batch_norm_stats") == 0;
    if (node->segment == SEGMENT_FORWARD && !keeps) node->checkpoint_segment = segment_of[node->block];
  }
  /* Found first, cleared after: a boundary must not make its own segment look outside. */
  bool *boundary = vl_allocate((size_t)graph->node_count);
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    boundary[i] = node->checkpoint_segment > 0 && read_outside(graph, node);
  }
  for (int32_t i = graph->node_count - 1; i >= 0; i--) {
    Node *node = graph->nodes[i];
    if (!boundary[i]) continue;
    node->checkpoint_segment = 0;
    /* A view keeps nothing: what it shows has to be kept. */
    if (node->op->is_view && node->inputs[0]->producer) boundary[node->inputs[0]->producer->position] = true;
  }
  free(boundary);
  free(segment_of);
  return status;
}

const Optimization optimization_checkpoint = {
    .name = "checkpoint",
    .also_called = "gradient checkpointing, activation checkpointing, activation recomputation, recompute",
    .turn_on = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    .values = "k (blocks per segment, at least 1) or segments:n",
    .help = "keep only the boundaries of every k blocks; recompute the rest before their backward",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
