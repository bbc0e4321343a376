/* recompute=norm: what is cheap to repeat (norms from their saved input, the addition, concatenation and
 * activation after them) is not kept but repeated where backward needs it; of a convolution net only the
 * convolutions' outputs are saved, which roughly halves the saved activations. inner-norm keeps additions and
 * the activations after them: the outputs of residual blocks. gelu repeats only that.
 *
 * A batch norm without addition is not even repeated where only the weight gradients of the convolutions
 * after it read its output: they normalise its input, which its own gradient needs anyway, while they read
 * it.
 *
 * A layer or instance norm is repeated from its input, which its own gradient needs too: of the two, the
 * input is what is kept, and with it chains of residual additions end there.
 *
 * A concatenation with what is repeated is repeated too: at a skip connection what comes from below is kept,
 * not both side by side. */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_recompute, value, "norm, inner-norm, gelu");
}

static bool is_op(const Node *node, const char *name) { return node && strcmp(node->op->name, name) == 0; }

/* Inputs of conv_backward_weights and of batch_norm_apply, as README.md of graph/ops lists them. */
enum { WEIGHTS_X = 0, WEIGHTS_DY, WEIGHTS_MEAN, NORM_X = 0, NORM_MEAN, NORM_BETA = 4, NORM_RESIDUAL };

static bool has_residual(const Node *norm) {
  return norm->input_count > NORM_RESIDUAL && norm->inputs[NORM_RESIDUAL];
}

static bool reads(const Node *node, const Tensor *tensor, int32_t first_input) {
  for (int32_t k = first_input; k < node->input_count; k++) {
    if (node->inputs[k] == tensor) return true;
  }
  return false;
}

/* An addition, or what follows one. */
static bool ends_block(const Node *node) {
  bool activation = is_op(node, "relu") || is_op(node, "gelu");
  if (activation && is_op(node->inputs[0]->producer, "add")) return true;
  return is_op(node, "add") || (is_op(node, "batch_norm_apply") && has_residual(node));
}

/* Cheap by itself: its inputs are kept, or cheap too. */
static bool is_cheap(const Node *node, const char *value) {
  static const char *const cheap[] = {
      "batch_norm_apply", "layer_norm", "instance_norm", "relu", "gelu", "add", "concat"};
  if (strcmp(value, "gelu") == 0) return is_op(node, "gelu");
  if (strcmp(value, "inner-norm") == 0 && ends_block(node)) return false;
  for (size_t i = 0; i < sizeof cheap / sizeof *cheap; i++) {
    if (is_op(node, cheap[i])) return true;
  }
  return false;
}

/* Copies its inputs, changed element by element at most. */
static bool passes_on(const Node *node) {
  return is_op(node, "cast") || is_op(node, "dropout") || is_op(node, "concat");
}

/* Repeated where an input is repeated anyway, so that it need not be kept in its stead. */
static bool carries_on(const Node *node) {
  for (int32_t i = 0; i < node->input_count && passes_on(node); i++) {
    const Node *maker = node->inputs[i] ? node->inputs[i]->producer : NULL;
    while (maker && vl_node_is_view(maker))
      maker = maker->inputs[0]->producer;
    if (maker && maker->recompute_on_use) return true;
  }
  return false;
}

/* Makes its statistics itself. */
static bool is_whole_norm(const Node *node) {
  return is_op(node, "layer_norm") || is_op(node, "instance_norm");
}

static bool feeds_whole_norm(const Graph *graph, const Node *node) {
  for (int32_t i = node->position + 1; i < graph->node_count; i++) {
    if (is_whole_norm(graph->nodes[i]) && graph->nodes[i]->inputs[0] == node->outputs[0]) return true;
  }
  return false;
}

/* Whether a forward node is worth repeating. */
static bool is_repeatable(const Graph *graph, const Node *node, const char *value) {
  return is_cheap(node, value) && !feeds_whole_norm(graph, node);
}

/* Whether backward reads what is in a forward tensor's storage, itself or through what is repeated too. */
static bool is_needed(const Graph *graph, const Tensor *tensor, const char *value) {
  for (int32_t i = tensor->producer->position + 1; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    bool repeated = passes_on(node) || is_repeatable(graph, node, value);
    if (node->segment == SEGMENT_FORWARD && !repeated) continue;
    for (int32_t k = 0; k < node->input_count; k++) {
      if (!node->inputs[k] || node->inputs[k]->storage != tensor->storage) continue;
      if (node->segment != SEGMENT_FORWARD || is_needed(graph, node->outputs[0], value)) return true;
    }
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

/* Whether a node reads norm's output, in backward or in what is repeated there, other than as a weight
 * gradient's x. */
static bool reads_otherwise(const Node *node, const Node *norm, const char *value) {
  const Tensor *y = norm->outputs[0];
  if (node->segment == SEGMENT_FORWARD) return is_cheap(node, value) && reads(node, y, 0);
  bool weights = is_op(node, "conv_backward_weights") && node->input_count == WEIGHTS_MEAN;
  return reads(node, y, weights ? WEIGHTS_DY : WEIGHTS_X);
}

/* Makes the weight gradients that read norm's output normalise its input, if nothing else reads it in
 * backward. The input must be there: kept, and not overwritten, for the norm's gradient, which comes later.
 */
static Status normalise_while_reading(Graph *graph, const Node *norm, const char *value) {
  const Node *last = NULL, *gradient = NULL;
  for (int32_t i = norm->position + 1; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (reads_otherwise(node, norm, value)) return vl_ok();
    if (node->segment == SEGMENT_FORWARD) continue;
    if (reads(node, norm->outputs[0], 0)) last = node;
    if (is_op(node, "batch_norm_backward") && reads(node, norm->inputs[NORM_X], 0)) gradient = node;
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

/* Decides whether a forward node is repeated, those before it being decided. */
static Status decide(Graph *graph, Node *node, const char *value) {
  bool norm = is_op(node, "batch_norm_apply");
  if (!is_repeatable(graph, node, value) && !(carries_on(node) && !feeds_whole_norm(graph, node)))
    return vl_ok();
  /* Its statistics, which backward reads in any case, would be repeated too. */
  if (is_whole_norm(node) && !is_needed(graph, node->outputs[0], value)) return vl_ok();
  if (!can_repeat(node)) return vl_ok();
  node->recompute_on_use = true;
  /* What normalises while it reads rounds in between, and emulated fp16 rounds only results: the same bits
   * take a norm of its own. */
  bool reads = norm && !has_residual(node) && node->outputs[0]->dtype != DTYPE_F16;
  return reads ? normalise_while_reading(graph, node, value) : vl_ok();
}

static Status apply(Program *program, const char *value, const Target *target) {
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
    if (node->segment == SEGMENT_FORWARD && !boundary) status = decide(graph, node, value);
  }
  free(checkpointed);
  return status;
}

const Optimization optimization_recompute = {
    .name = "recompute",
    .also_called =
        "memory-efficient batch norm, norm recomputation, selective recomputation, activation cache policy",
    .turn_on = "no equivalent (torch.utils.checkpoint around each norm and activation)",
    .values = "norm, inner-norm, gelu",
    .help = "repeat norms, additions, concatenations and activations in backward instead of keeping their "
            "outputs (inner-norm: "
            "not the additions that end a block; gelu: only that)",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is kept for a backward pass, so nothing can be made again",
    .check = check,
    .apply = apply,
};
