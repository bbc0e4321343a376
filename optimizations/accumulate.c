/* accumulate=n: a step runs n micro-batches, forward and backward each, adds up their gradients in place and
 * updates once. A loss is the mean over the step's labels that count, so each micro-batch divides by their
 * number in all of them (LaunchContext.counted_rows), and gradients and losses simply add up. With batch norm
 * the statistics, with a Dice loss its sums are those of a micro-batch: another model. */
#include "optimizations/internal.h"
#include <string.h>

/* 0: auto, for whoever knows the capacity to replace. */
Status optimization_parse_accumulate(const char *value, int64_t *count) {
  *count = 0;
  if (strcmp(value, "auto") == 0) return vl_ok();
  VL_TRY(vl_parse_integer("accumulate", value, 1, 65536, count));
  if (*value == '0')
    return vl_error(VL_INVALID, "accumulate=%s: a number without leading zeros is needed", value);
  return vl_ok();
}

/* Whether a scalar is a sum of means over labels that count, scaled or not: only of such a loss it is known
 * what its parts over micro-batches weigh. */
static Status check_loss(const Tensor *loss) {
  const Node *node = loss->producer;
  const char *op = node ? node->op->name : "nothing";
  bool sum = strcmp(op, "add") == 0;
  if (sum || strcmp(op, "scale") == 0) {
    for (int32_t i = 0; i < node->input_count; i++)
      VL_TRY(check_loss(node->inputs[i]));
    return vl_ok();
  }
  if (node && vl_labels_of(node)) return vl_ok();
  return vl_error(VL_UNSUPPORTED,
                  "accumulate: %s is made by %s; only sums of cross entropies over an input's labels are "
                  "known to be means over samples",
                  loss->name, op);
}

Status optimization_check_accumulate(const Program *program, int64_t count) {
  if (!program || !program->training || count == 1) return vl_ok();
  if (count == 0)
    return vl_error(VL_INVALID, "accumulate=auto stands for a number that is not decided here; give one");
  if (vl_program_samples(program) < 1) {
    return vl_error(VL_UNSUPPORTED, "accumulate: the inputs of %s do not agree on a number of samples",
                    program->graph->name);
  }
  return check_loss(program->loss);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  int64_t count;
  VL_TRY(optimization_parse_accumulate(value, &count));
  return optimization_check_accumulate(program, count);
}

/* The last node before the update that touches a storage. */
static Node *last_touch(const Graph *graph, const Storage *storage) {
  Node *last = NULL;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    bool touches = false;
    for (int32_t k = 0; k < node->input_count; k++)
      touches = touches || (node->inputs[k] && node->inputs[k]->storage == storage);
    for (int32_t k = 0; k < node->output_count; k++)
      touches = touches || (node->outputs[k] && node->outputs[k]->storage == storage);
    if (touches && node->segment != SEGMENT_UPDATE) last = node;
  }
  return last;
}

/* From the last node that touches it on, *value is the sum over micro-batches, in the same storage. */
static Status accumulate(Graph *graph, Tensor **value) {
  Tensor *part = *value;
  const Node *last = last_touch(graph, part->storage);
  if (part->offset != 0)
    return vl_error(VL_UNSUPPORTED, "accumulate: %s is a part of %s", part->name, part->storage->name);
  Node *sum;
  graph->scope = part->storage->scope;
  graph->segment = last->segment;
  graph->block = 0;
  VL_TRY(vl_graph_add(graph, "add", NULL, (Tensor *[]){part, part}, 2, &sum));
  sum->accumulates = true;
  *value = sum->outputs[0];
  vl_graph_move_storage(graph, (*value)->storage, part->storage);
  if (last->position + 1 < sum->position) vl_graph_move_before(graph, sum, graph->nodes[last->position + 1]);
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    for (int32_t k = 0; k < node->input_count && node->segment == SEGMENT_UPDATE; k++)
      if (node->inputs[k] == part) node->inputs[k] = *value;
  }
  return vl_ok();
}

Status vl_accumulate_micro_batch(int64_t samples, int64_t count, int64_t *micro_batch) {
  *micro_batch = (samples + count - 1) / count;
  int64_t filled = (samples + *micro_batch - 1) / *micro_batch;
  if (filled == count) return vl_ok();
  return vl_error(VL_INVALID,
                  "%lld samples do not divide into accumulate=%lld micro-batches that are alike but for a "
                  "smaller last one; into %lld of %lld they do",
                  (long long)samples, (long long)count, (long long)filled, (long long)*micro_batch);
}

int64_t vl_accumulate_count(const Recipe *recipe) {
  const char *value = vl_recipe_value(recipe, "accumulate");
  if (!value) value = vl_recipe_value(recipe, "accumulate-wrong");
  int64_t count = 1;
  if (value && optimization_parse_accumulate(value, &count).code != VL_OK) return 1; /* refused elsewhere */
  return count;
}

Status optimization_accumulate_sums(Program *program, int64_t count) {
  if (!program->training || count == 1) return vl_ok(); /* evaluation has nothing to add up */
  program->accumulate = (int32_t)count;
  VL_TRY(accumulate(program->graph, &program->loss));
  for (int32_t i = 0; i < program->gradient_count; i++)
    VL_TRY(accumulate(program->graph, &program->gradients[i].gradient));
  return vl_ok();
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  int64_t count;
  VL_TRY(optimization_parse_accumulate(value, &count));
  return optimization_accumulate_sums(program, count);
}

static Preserves preserves_in(const Program *program, const char *value) {
  (void)value;
  if (program->accumulate == 1) return PRESERVES_BITWISE;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    bool statistics = strcmp(node->op->name, "batch_norm_stats") == 0;
    bool dice = strcmp(node->op->name, "dice_cross_entropy") == 0 && node->params.alpha != 0;
    if (statistics || dice) return PRESERVES_DIFFERENT_MODEL;
  }
  return PRESERVES_TOLERANCE;
}

const Optimization optimization_accumulate = {
    .name = "accumulate",
    .also_called = "gradient accumulation, micro-batching, gradient_accumulation_steps, virtual batch",
    .turn_on =
        "(loss * counted_tokens / tokens_of_the_step).backward()  # n times, then optimizer.step(); loss / n "
        "only where every micro-batch has as many labels that count",
    .values = "n (micro-batches per step, at least 1) or auto (the fewest that fit the capacity)",
    .help =
        "divide the batch into n micro-batches and add up their gradients (batch norm, Dice: another model)",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_TOLERANCE,
    .training_only = "there are no gradients to add up",
    .check = check,
    .apply = apply,
    .preserves_in = preserves_in,
};
