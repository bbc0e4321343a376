/* fuse=norm: batch norm, residual addition and ReLU become one op, so do instance norm and ReLU, leaky or
 * not, and the tensors between them are never made. In backward, where two gradients meet (a residual's or a
 * skip connection's and that of the branch beside it) in front of such a norm, the norm takes both and their
 * sum is never made.
 *
 * fuse=bias-gelu: in backward, the gradient of the bias in front of a GELU is summed as the GELU's gradient
 * is made, which is not read once more for it. Forward the product adds the bias, and the GELU's gradient is
 * made from their sum, which is kept.
 *
 * fuse=residual-norm: dropout of a branch, its addition to the residual and the layer norm behind it become
 * one op. Several are joined by "+", in this order. */
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

static void fuse_instance_norm(Program *program, Node *norm) {
  Node *relu = sole_reader(program, norm, "relu");
  if (!relu || relu->params.alpha > 1.0) return;
  norm->params.relu = 1;
  norm->params.alpha = relu->params.alpha;
  take_over(program, norm, relu);
}

/* ---- residual-norm -------------------------------------------------------------------------------------- */

/* Makes one op of what ends in this norm, if it is a sum's. The branch is what dropout makes, else what is
 * added. */
static Status join_residual(Program *program, Node *norm) {
  Graph *graph = program->graph;
  Node *add = norm->inputs[0]->producer;
  if (!is_op(add, "add") || sole_reader(program, add, "layer_norm") != norm) return vl_ok();
  if (!vl_tensor_same_shape(add->inputs[0], add->inputs[1]) || add->inputs[0]->rank < 2) return vl_ok();
  OpParams params = {.epsilon = norm->params.epsilon};
  Node *drop = NULL;
  int32_t branch = 1;
  for (int32_t i = 0; i < 2 && !drop; i++) {
    Node *maker = add->inputs[i]->producer;
    if (!is_op(maker, "dropout") || maker->output_count > 1 || maker->input_count > 1) continue;
    if (sole_reader(program, maker, "add") != add) continue;
    drop = maker;
    branch = i;
    params.rate = drop->params.rate;
    params.random_scope = drop->params.random_scope;
  }
  Tensor *inputs[] = {drop ? drop->inputs[0] : add->inputs[branch], add->inputs[1 - branch], norm->inputs[1],
                      norm->inputs[2]};
  Node *joined;
  graph->scope = norm->scope;
  graph->block = norm->block;
  VL_TRY(vl_graph_add(graph, "residual_norm", &params, inputs, 4, &joined));
  vl_graph_move_before(graph, joined, norm);
  vl_graph_replace_reads(graph, norm->outputs[0], joined->outputs[0]);
  if (program->logits == norm->outputs[0]) program->logits = joined->outputs[0];
  vl_graph_remove(graph, norm);
  vl_graph_remove(graph, add);
  if (drop) vl_graph_remove(graph, drop);
  return vl_ok();
}

static Status join_residuals(Program *program) {
  Graph *graph = program->graph;
  for (int32_t i = graph->node_count - 1; i >= 0; i--) { /* from the end: only what is before goes */
    if (i < graph->node_count && is_op(graph->nodes[i], "layer_norm"))
      VL_TRY(join_residual(program, graph->nodes[i]));
  }
  graph->block = 0;
  return vl_ok();
}

/* ---- Values ------------------------------------------------------------------------------------------------- */

static const char *const parts[] = {"norm", "bias-gelu", "residual-norm"};

/* Whether `value` begins with a part; *rest: what follows it. */
static bool begins_with(const char *value, const char *part, const char **rest) {
  size_t length = strlen(part);
  if (strncmp(value, part, length) != 0 || (value[length] != '\0' && value[length] != '+')) return false;
  *rest = value + length + (value[length] == '+' ? 1 : 0);
  return true;
}

static bool has_part(const char *value, const char *part) {
  for (const char *at = value; *at; at += strcspn(at, "+") + (strchr(at, '+') ? 1 : 0)) {
    const char *rest;
    if (begins_with(at, part, &rest)) return true;
  }
  return false;
}

/* In their order, each at most once: one text for one recipe. */
static bool is_list_of_parts(const char *value) {
  const char *at = value;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    begins_with(at, parts[i], &at);
  return at != value && *at == '\0' && at[-1] != '+';
}

static Status refuse_beside(const Recipe *recipe, const char *key, const char *value, const char *why) {
  const char *given = vl_recipe_value(recipe, key);
  if (!given || (value && strcmp(given, value) != 0)) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "fuse=residual-norm with %s=%s: %s", key, given, why);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  if (!is_list_of_parts(value))
    return vl_error(
        VL_INVALID,
        "fuse=%s: accepted values are norm, bias-gelu, residual-norm, and several of them in this "
        "order, joined by +",
        value);
  if (!program || !has_part(value, "residual-norm")) return vl_ok();
  VL_TRY(refuse_beside(recipe, "dropout", "stored", "one op draws its masks again, none is left"));
  VL_TRY(refuse_beside(recipe, "dropout", "mask", "one op draws its masks again, none is left"));
  VL_TRY(refuse_beside(recipe, "layer-norm", "composed", "one op is no primitives"));
  VL_TRY(refuse_beside(recipe, "recompute", "norm",
                       "a norm that made its own input cannot be repeated from it"));
  return refuse_beside(recipe, "recompute", "inner-norm",
                       "a norm that made its own input cannot be repeated from it");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (has_part(value, "residual-norm")) VL_TRY(join_residuals(program));
  if (!has_part(value, "norm")) return vl_ok();
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    bool instance = is_op(node, "instance_norm");
    if ((!instance && !is_op(node, "batch_norm_apply")) || node->params.relu) continue;
    int32_t count = graph->node_count;
    instance ? fuse_instance_norm(program, node) : fuse_at(program, node);
    if (graph->node_count != count) i--; /* the node moved on; look at what stands here now */
  }
  return vl_ok();
}

/* Input 0 of a norm's gradient is dy; where the second one goes, as README.md of graph/ops lists them, the
 * last of its inputs. -1: not such a node. */
static int32_t second_gradient(const Node *node) {
  bool norm = is_op(node, "batch_norm_backward") || is_op(node, "instance_norm_backward");
  return norm ? node->op->max_inputs - 1 : -1;
}

/* The sum that only this norm reads, as its dy; NULL: there is none, or no room for its second operand. */
static Node *gradient_sum(const Program *program, const Node *backward) {
  Tensor *dy = backward->inputs[0];
  if (backward->input_count == backward->op->max_inputs || !is_op(dy->producer, "add")) return NULL;
  if (dy->producer->segment != SEGMENT_BACKWARD || dy->storage->role != ROLE_ACTIVATION) return NULL;
  if (!vl_tensor_same_shape(dy->producer->inputs[0], dy->producer->inputs[1])) return NULL;
  return sole_reader(program, dy->producer, backward->op->name) == backward ? dy->producer : NULL;
}

static void sum_in_norms(Program *program) {
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    int32_t second = second_gradient(node);
    Node *sum = second >= 0 ? gradient_sum(program, node) : NULL;
    if (!sum) continue;
    node->inputs[0] = sum->inputs[0];
    node->inputs[second] = sum->inputs[1];
    node->input_count = second + 1;
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
    .values = "norm, bias-gelu, residual-norm, or several in this order: norm+bias-gelu",
    .help = "one op for batch norm, residual addition and ReLU, or instance norm and ReLU (norm), for the "
            "gradients of GELU and the bias before it (bias-gelu), for dropout, residual addition and layer "
            "norm (residual-norm)",
    .phase = PHASE_GRAPH,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
    .apply_to_gradients = apply_to_gradients,
};
