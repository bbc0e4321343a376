/* checkpoint=...: parts of the forward pass keep only what others read of them; the rest is recomputed before
 * their backward (Chen et al., arXiv:1604.06174). A part, or run, is
 *   k, segments:n   k blocks of the case, or one of n nearly equal shares of them
 *   ops:k           k operators of the forward pass, whatever block they are in
 *   model           everything up to the loss: the whole model in one checkpoint
 *   selective       scores, softmax and dropout of one attention (Korthikanti et al., arXiv:2205.05198)
 *   runs:LIST       what the list says: runs:1-6/2,8 are the runs of blocks 1-2, 3-4, 5-6 and 8
 *   auto[:BUDGET]   the runs of blocks that repeat the fewest operations within the budget
 * (checkpoint_auto.c) The last of k, segments:n and ops:k is not recomputed: its backward follows at once.
 * Batch statistics (two numbers per channel) are kept, so running statistics are updated once. Casts of
 * weights are made again with the run that reads them, as under torch.autocast, whose cache of casts ends
 * with the forward pass. */
#include "optimizations/internal.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef enum Kind {
  EVERY_BLOCKS = 0,
  SEGMENTS,
  EVERY_OPERATORS,
  MODEL,
  SELECTIVE,
  RUNS,
  AUTO,
  KIND_COUNT
} Kind;

static const char *const prefixes[KIND_COUNT] = {"",          "segments:", "ops:", "model",
                                                 "selective", "runs:",     "auto"};

/* A value, parsed. */
typedef struct Choice {
  Kind kind;
  int32_t count;        /* EVERY_BLOCKS, SEGMENTS, EVERY_OPERATORS */
  const char *list;     /* RUNS */
  int64_t budget_bytes; /* AUTO; 0: the target's capacity */
} Choice;

static Status parse_count(const char *value, const char *number, int32_t *count) {
  int64_t parsed = 0;
  VL_TRY(vl_parse_integer("checkpoint", number, 1, 1000000, &parsed));
  if (*number == '0')
    return vl_error(VL_INVALID, "checkpoint=%s: a number without leading zeros is needed", value);
  *count = (int32_t)parsed;
  return vl_ok();
}

static Status unknown_value(const char *value) {
  return vl_error(VL_INVALID, "checkpoint=%s: accepted values are %s", value, optimization_checkpoint.values);
}

static Status parse_auto(const char *value, const char *rest, Choice *choice) {
  if (!*rest) return vl_ok();
  if (*rest != ':') return unknown_value(value);
  Status status = vl_parse_bytes(rest + 1, &choice->budget_bytes);
  if (status.code != VL_OK) return vl_error(VL_INVALID, "checkpoint=%s: %s", value, status.message);
  if (choice->budget_bytes > 0) return vl_ok();
  return vl_error(VL_INVALID, "checkpoint=%s: the budget must be above 0", value);
}

/* The next item of a list of runs, FIRST[-LAST][/K], one after the other. */
static Status next_runs(const char *value, const char **at, int32_t *first, int32_t *last, int32_t *length) {
  long numbers[3] = {0};
  char *end = NULL;
  const char *from = *at;
  for (int32_t i = 0; i < 3; i++) {
    if (i > 0 && *from != (i == 1 ? '-' : '/')) continue;
    if (i > 0) from++;
    if (isdigit((unsigned char)*from)) numbers[i] = strtol(from, &end, 10);
    if (numbers[i] < 1 || numbers[i] > 1000000) {
      return vl_error(VL_INVALID,
                      "checkpoint=%s: '%s' does not begin with blocks as FIRST, FIRST-LAST or FIRST-LAST/K",
                      value, *at);
    }
    from = end;
  }
  int32_t before = *last;
  *first = (int32_t)numbers[0];
  *last = numbers[1] ? (int32_t)numbers[1] : *first;
  *length = numbers[2] ? (int32_t)numbers[2] : *last - *first + 1;
  if ((*from != ',' || !from[1]) && *from != '\0')
    return vl_error(VL_INVALID, "checkpoint=%s: '%s' where a comma and further blocks may come", value, from);
  if (*first <= before || *last < *first)
    return vl_error(VL_INVALID, "checkpoint=%s: blocks %d to %d do not come after block %d", value, *first,
                    *last, before);
  *at = *from ? from + 1 : from;
  return vl_ok();
}

static Status parse_list(const char *value, Choice *choice) {
  int32_t first = 0, last = 0, length = 0;
  const char *at = choice->list;
  do
    VL_TRY(next_runs(value, &at, &first, &last, &length));
  while (*at);
  choice->count = last;
  return vl_ok();
}

static Status parse(const char *value, Choice *choice) {
  *choice = (Choice){.kind = KIND_COUNT};
  if (isdigit((unsigned char)*value) || *value == '-' || *value == '+') choice->kind = EVERY_BLOCKS;
  for (Kind kind = SEGMENTS; kind < KIND_COUNT; kind++)
    if (strncmp(value, prefixes[kind], strlen(prefixes[kind])) == 0) choice->kind = kind;
  if (choice->kind == KIND_COUNT) return unknown_value(value);
  const char *rest = value + strlen(prefixes[choice->kind]);
  switch (choice->kind) {
  case MODEL:
  case SELECTIVE: return *rest ? unknown_value(value) : vl_ok();
  case AUTO: return parse_auto(value, rest, choice);
  case RUNS: choice->list = rest; return parse_list(value, choice);
  default: return parse_count(value, rest, &choice->count);
  }
}

/* ---- What a value needs of a program ------------------------------------------------------------------------- */

static bool is_op(const Node *node, const char *op) { return node && strcmp(node->op->name, op) == 0; }

/* Whether a node makes the probabilities of an attention that is written out. */
static bool makes_probabilities(const Node *node) {
  return node->segment == SEGMENT_FORWARD && is_op(node, "softmax") &&
         is_op(node->inputs[0]->producer, "matmul");
}

static Status check_selective(const Graph *graph, const Recipe *recipe) {
  const char *attention = recipe ? vl_recipe_value(recipe, "attention") : NULL;
  bool has_attention = false;
  for (int32_t i = 0; i < graph->node_count; i++)
    has_attention =
        has_attention || is_op(graph->nodes[i], "attention") || makes_probabilities(graph->nodes[i]);
  if (!has_attention)
    return vl_error(VL_UNSUPPORTED, "checkpoint=selective: %s has no attention", graph->name);
  if (attention && strcmp(attention, "fused") == 0)
    return vl_error(VL_UNSUPPORTED,
                    "checkpoint=selective: with attention=fused nothing of size sequence x sequence is kept "
                    "already");
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  Choice choice;
  VL_TRY(parse(value, &choice));
  if (!program) return vl_ok();
  const Graph *graph = program->graph;
  if (choice.kind == SELECTIVE) return check_selective(graph, recipe);
  if (choice.kind == EVERY_OPERATORS || choice.kind == MODEL) return vl_ok();
  if (graph->block_count == 0)
    return vl_error(VL_UNSUPPORTED, "checkpoint=%s: %s has no blocks to cut between", value, graph->name);
  if ((choice.kind == SEGMENTS || choice.kind == RUNS) && choice.count > graph->block_count)
    return vl_error(VL_INVALID, "checkpoint=%s: %s has only %d blocks", value, graph->name,
                    graph->block_count);
  return vl_ok();
}

/* ---- Runs, by position of the forward nodes -------------------------------------------------------------------- */

/* By block (1-based): its run, 0 for those of the last one. */
static Status cut_blocks(int32_t blocks, const Choice *choice, int32_t *run_of) {
  bool clamped = false;
  int32_t count = 0;
  int32_t *sizes = vl_allocate((size_t)blocks * sizeof *sizes);
  Status status = choice->kind == SEGMENTS
                      ? vl_partition_segments(blocks, choice->count, sizes, &count, &clamped)
                      : vl_partition_interval(blocks, choice->count, sizes, &count);
  for (int32_t s = 0, block = 1; s < count; s++) {
    for (int32_t i = 0; i < sizes[s]; i++)
      run_of[block++] = s + 1 < count ? s + 1 : 0;
  }
  free(sizes);
  return status;
}

static Status list_blocks(const char *value, const Choice *choice, int32_t *run_of) {
  int32_t first = 0, last = 0, length = 0, runs = 0;
  for (const char *at = choice->list; *at;) {
    VL_TRY(next_runs(value, &at, &first, &last, &length));
    for (int32_t block = first; block <= last; block++)
      run_of[block] = runs + 1 + (block - first) / length;
    runs = run_of[last];
  }
  return vl_ok();
}

/* What is in no block stays. */
static void spread_blocks(const Graph *graph, const int32_t *run_of_block, int32_t *run) {
  for (int32_t i = 0; i < graph->node_count; i++)
    run[i] = run_of_block[graph->nodes[i]->block];
}

/* By position: whether a run may end with this node: nothing it or an earlier one wrote is written over
 * later, or a repetition would read what is no longer there. */
static bool *find_cuts(const Graph *graph) {
  bool *may_end = vl_allocate((size_t)graph->node_count + 1);
  int32_t *first_write = vl_allocate(((size_t)graph->storage_count + 1) * sizeof *first_write);
  int32_t open_from = INT32_MAX; /* first write of what is written over after the node */
  for (int32_t i = 0; i < graph->storage_count; i++)
    first_write[i] = -1;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    for (int32_t k = 0; k < node->output_count && node->segment == SEGMENT_FORWARD; k++) {
      int32_t *first = node->outputs[k] ? &first_write[node->outputs[k]->storage->id] : NULL;
      if (first && *first < 0) *first = i;
    }
  }
  for (int32_t i = graph->node_count - 1; i >= 0; i--) {
    const Node *node = graph->nodes[i];
    may_end[i] = open_from > i;
    for (int32_t k = 0; k < node->output_count && node->segment == SEGMENT_FORWARD && !vl_node_is_view(node);
         k++) {
      int32_t first = node->outputs[k] ? first_write[node->outputs[k]->storage->id] : i;
      if (first < i && first < open_from) open_from = first;
    }
  }
  free(first_write);
  return may_end;
}

static void cut_operators(const Graph *graph, int32_t interval, int32_t *run) {
  bool *may_end = find_cuts(graph);
  int32_t at = 1, operators = 0, last = 0;
  for (int32_t i = 0; i < graph->node_count && graph->nodes[i]->segment == SEGMENT_FORWARD; i++) {
    operators += optimization_is_operator(graph->nodes[i]);
    run[i] = last = at;
    if (operators < interval || !may_end[i]) continue;
    at++;
    operators = 0;
  }
  for (int32_t i = 0; i < graph->node_count; i++)
    if (run[i] == last) run[i] = 0;
  free(may_end);
}

/* All but the loss: what counts labels and what is made from that. */
static void take_model(const Program *program, int32_t *run) {
  const Graph *graph = program->graph;
  bool *of_loss = vl_allocate((size_t)graph->tensor_count + 1);
  for (int32_t i = 0; i < graph->node_count && graph->nodes[i]->segment == SEGMENT_FORWARD; i++) {
    const Node *node = graph->nodes[i];
    bool loss = vl_labels_of(node) != NULL || node->outputs[0] == program->loss;
    for (int32_t k = 0; k < node->input_count; k++)
      loss = loss || (node->inputs[k] && of_loss[node->inputs[k]->id]);
    for (int32_t k = 0; k < node->output_count; k++)
      if (node->outputs[k]) of_loss[node->outputs[k]->id] = loss;
    run[i] = !loss;
  }
  free(of_loss);
}

/* ---- From runs to what is dropped ------------------------------------------------------------------------------- */

static bool is_forward(const Node *node) { return node && node->segment == SEGMENT_FORWARD; }

void optimization_drop_runs(Graph *graph, const int32_t *run) {
  bool *boundary = vl_allocate((size_t)graph->node_count + 1);
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (!is_forward(node)) continue;
    bool keeps = node->op->side_effect || is_op(node, "batch_norm_stats");
    node->checkpoint_segment = keeps ? 0 : run[i];
    for (int32_t k = 0; k < node->input_count; k++) {
      const Node *maker = node->inputs[k] ? node->inputs[k]->producer : NULL;
      if (is_forward(maker) && run[maker->position] != run[i]) boundary[maker->position] = true;
    }
  }
  for (int32_t i = graph->node_count - 1; i >= 0; i--) {
    Node *node = graph->nodes[i];
    if (!boundary[i] || node->checkpoint_segment == 0) continue;
    node->checkpoint_segment = 0;
    /* A view keeps nothing: what it shows has to be kept. */
    if (vl_node_is_view(node) && node->inputs[0]->producer)
      boundary[node->inputs[0]->producer->position] = true;
  }
  free(boundary);
}

/* Scores, softmax and dropout of each attention are a run of their own; their last result is dropped too, the
 * product behind it reads it once more in backward. */
static Status drop_scores(Graph *graph) {
  int32_t runs = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *softmax = graph->nodes[i];
    if (!makes_probabilities(softmax)) continue;
    softmax->inputs[0]->producer->checkpoint_segment = softmax->checkpoint_segment = ++runs;
    for (int32_t j = i + 1; j < graph->node_count && is_forward(graph->nodes[j]); j++) {
      Node *node = graph->nodes[j];
      bool follows = is_op(node, "dropout") || is_op(node, "cast");
      if (follows && node->inputs[0]->producer && node->inputs[0]->producer->checkpoint_segment == runs)
        node->checkpoint_segment = runs;
    }
  }
  if (runs > 0) return vl_ok();
  return vl_error(
      VL_UNSUPPORTED,
      "checkpoint=selective: the attention of %s is fused: nothing of size sequence x sequence is "
      "kept already (attention=materialised writes it out)",
      graph->name);
}

static Status apply(Program *program, const char *value, const Target *target) {
  if (!program->training) return vl_ok(); /* nothing is saved */
  Choice choice;
  Graph *graph = program->graph;
  Status status = parse(value, &choice);
  VL_TRY(status);
  if (choice.kind == SELECTIVE) return drop_scores(graph);
  if (choice.kind == AUTO) return optimization_checkpoint_auto(program, choice.budget_bytes, target);
  int32_t *run = vl_allocate(((size_t)graph->node_count + 1) * sizeof *run);
  int32_t *run_of_block = vl_allocate(((size_t)graph->block_count + 1) * sizeof *run_of_block);
  switch (choice.kind) {
  case EVERY_OPERATORS: cut_operators(graph, choice.count, run); break;
  case MODEL: take_model(program, run); break;
  case RUNS: status = list_blocks(value, &choice, run_of_block); break;
  default: status = cut_blocks(graph->block_count, &choice, run_of_block); break;
  }
  if (choice.kind == RUNS || choice.kind == EVERY_BLOCKS || choice.kind == SEGMENTS)
    spread_blocks(graph, run_of_block, run);
  if (status.code == VL_OK) optimization_drop_runs(graph, run);
  free(run_of_block);
  free(run);
  return status;
}

const Optimization optimization_checkpoint = {
    .name = "checkpoint",
    .also_called = "gradient checkpointing, activation checkpointing, activation recomputation, recompute, "
                   "selective activation recomputation",
    .turn_on = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    .values =
        "k (blocks per run, at least 1), segments:n, ops:k (operators per run), selective (attention), "
        "model (all in one), runs:1-6/2,8 (blocks), auto or auto:12GiB (fewest FLOPs under the capacity "
        "or a budget)",
    .help = "keep only the boundaries of every k blocks; recompute the rest before their backward",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is kept for a backward pass, so nothing can be made again",
    .check = check,
    .apply = apply,
};
