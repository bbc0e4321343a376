/* fuse=norm: batch norm, residual addition and ReLU become one op, so that the tensors between them are never
 * made. In backward, where two gradients meet (a residual's and that of the branch beside it) in front of a
 * batch norm, the norm takes both and their sum is never made.
 *
 * fuse=bias-gelu: in backward, the gradient of the bias in front of a GELU is summed as the GELU's gradient
 * is made, which is not read once more for it. Forward the product adds the bias, and the GELU's gradient is
 * made from their sum, which is kept. fuse=all: both. */
#include "optimizations/internal.h"
#include <string.h>

static bool is_op(const Node *node, const char *name) { return node && strcmp(node->op->name, name) == 0; }

/* The only reader of a node's first output when it is of that op, else NULL. What the caller reads has one
 * more. */
static Node *sole_reader(const Program *program, const Node *node, const char *op) {
  Node *reader = NULL;
  if (node->outputs[0] == program->logits || node->outputs[0] == program->loss) return NULL;
  if (vl_graph_reads(program->graph, node->outputs[0], &reader) != 1) return NULL;
  return is_op(reader, op) ? reader : NULL;
}

/* Replaces `last`, which ends the chain, by `norm` moved to its place. */
static void take_over(Program *program, Node *norm, Node *last) {
  Graph *graph = program->graph;
  if (program->logits == last->outputs[0]) program->logits = norm->outputs[0];
  vl_graph_replace_reads(graph, last->outputs[0], norm->outputs[0]);
  vl_graph_move_before(graph, norm, last);
  vl_graph_remove(graph, last);
}

static void fuse_at(Program *program, Node *norm) {
  Node *relu = sole_reader(program, norm, "relu");
  if (relu && relu->params.alpha != 0.0) return; /* leaky */
  if (relu) {
    norm->params.relu = 1;
    take_over(program, norm, relu);
    return;
  }
  Node *add = sole_reader(program, norm, "add");
  if (!add || add->inputs[0] != norm->outputs[0]) return;
  if (!vl_tensor_same_shape(add->inputs[0], add->inputs[1])) return;
  relu = sole_reader(program, add, "relu");
  if (!relu || relu->params.alpha != 0.0) return;
  norm->inputs[norm->input_count++] = add->inputs[1];
  norm->params.relu = 1;
  take_over(program, norm, add);
  take_over(program, norm, relu);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_fuse, value, "norm, bias-gelu, all");
}

static bool has_part(const char *value, const char *part) {
  return strcmp(value, part) == 0 || strcmp(value, "all") == 0;
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (!has_part(value, "norm")) return vl_ok();
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (!is_op(node, "batch_norm_apply") || node->params.relu) continue;
    int32_t count = graph->node_count;
    fuse_at(program, node);
    if (graph->node_count != count) i--; /* the node moved on; look at what stands here now */
  }
  return vl_ok();
}

/* Inputs of batch_norm_backward, as README.md of graph/ops lists them. */
enum { BACKWARD_DY = 0, BACKWARD_DY2 = 7 };

/* The sum that only this norm reads, as its dy; NULL: there is none, or no room for its second operand. */
static Node *gradient_sum(const Program *program, const Node *backward) {
  Tensor *dy = backward->inputs[BACKWARD_DY];
  if (backward->input_count > BACKWARD_DY2 || !is_op(dy->producer, "add")) return NULL;
  if (dy->producer->segment != SEGMENT_BACKWARD || dy->storage->role != ROLE_ACTIVATION) return NULL;
  return sole_reader(program, dy->producer, "batch_norm_backward") == backward ? dy->producer : NULL;
}

static void sum_in_norms(Program *program) {
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    Node *sum = is_op(node, "batch_norm_backward") ? gradient_sum(program, node) : NULL;
    if (!sum) continue;
    node->inputs[BACKWARD_DY] = sum->inputs[0];
    node->inputs[BACKWARD_DY2] = sum->inputs[1];
    node->input_count = BACKWARD_DY2 + 1;
    vl_graph_remove(graph, sum);
    i--; /* what followed the sum moved up */
  }
}

/* The sum of a GELU's gradient over all but the last dimension, in the type it is made in. */
static Node *bias_sum(const Graph *graph, const Node *gelu) {
  const Tensor *dx = gelu->outputs[0];
  DType made = dx->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
  for (int32_t i = gelu->position + 1; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (!is_op(node, "sum") || node->inputs[0] != dx || node->outputs[0]->dtype != made) continue;
    bool last = node->params.axis_count == dx->rank - 1;
    for (int32_t k = 0; last && k < dx->rank - 1; k++)
      last = node->params.axes[k] == k;
    if (last) return node;
  }
  return NULL;
}

static void sum_in_gelus(Graph *graph) {
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *gelu = graph->nodes[i];
    Node *sum = is_op(gelu, "gelu_backward") && gelu->output_count == 1 ? bias_sum(graph, gelu) : NULL;
    if (!sum) continue;
    gelu->params.alpha = 1.0;
    gelu->outputs[1] = sum->outputs[0];
    gelu->outputs[1]->producer = gelu;
    gelu->output_count = 2;
    sum->output_count = 0;
    vl_graph_remove(graph, sum);
  }
}

static Status apply_to_gradients(Program *program, const char *value, const Target *target) {
  (void)target;
  if (has_part(value, "norm")) sum_in_norms(program);
  if (has_part(value, "bias-gelu")) sum_in_gelus(program->graph);
  return vl_ok();
}

const Optimization optimization_fuse = {
    .name = "fuse",
    .also_called = "kernel fusion, fused batch norm, BN+ReLU, bias+GELU",
    .turn_on = "model = torch.compile(model)",
    .values = "norm, bias-gelu, all",
    .help =
        "one op for batch norm, residual addition and ReLU (norm), for the gradients of GELU and the bias "
        "before it (bias-gelu): no tensors in between",
    .phase = PHASE_GRAPH,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
    .apply_to_gradients = apply_to_gradients,
};
