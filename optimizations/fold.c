/* fold=norm: in inference a batch norm behind a convolution is part of it. The norm's statistics do not
 * change, so it is a factor and an addend for every channel: the weights are multiplied by the one when they
 * are loaded, and the other becomes the convolution's bias. Residual and ReLU that `fuse` has put into the
 * norm go along. What is left of the norm's four vectors is the bias; the others are sources and not kept. */
#include "optimizations/internal.h"
#include <string.h>

/* Inputs of batch_norm_apply. */
enum { NORM_X = 0, NORM_MEAN, NORM_VAR, NORM_GAMMA, NORM_BETA, NORM_RESIDUAL };

static bool is_op(const Node *node, const char *name) { return node && strcmp(node->op->name, name) == 0; }

/* A whole parameter or statistic as State has it, whose own value is not derived. */
static bool is_kept_value(const Tensor *tensor) {
  const Storage *storage = tensor->storage;
  return !tensor->producer && storage->root == tensor && vl_role_is_persistent(storage->role) &&
         !storage->derived;
}

/* The convolution this norm alone reads; NULL: there is none, or something is computed that it would need to
 * be known. */
static Node *convolution_before(const Program *program, const Node *norm) {
  Tensor *x = norm->inputs[NORM_X];
  Node *conv = x->producer;
  if (!is_op(conv, "conv") || conv->input_count > 2 || x == program->logits) return NULL;
  if (vl_graph_reads(program->graph, x, NULL) != 1 || !is_kept_value(conv->inputs[1])) return NULL;
  for (int32_t i = NORM_MEAN; i <= NORM_BETA; i++)
    if (!is_kept_value(norm->inputs[i])) return NULL;
  return conv;
}

/* Weights and statistics that nothing reads any more, the counter of batches among them. */
static void release(Graph *graph, Storage *weight, const char *norm_scope) {
  vl_graph_release_parameter(graph, weight);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    Storage *storage = graph->storages[i];
    if (strcmp(storage->scope, norm_scope) == 0 && !storage->derived)
      vl_graph_release_parameter(graph, storage);
  }
}

static Status fold_norm(Program *program, Node *conv, Node *norm) {
  Graph *graph = program->graph;
  Tensor *weight = conv->inputs[1], *beta = norm->inputs[NORM_BETA];
  Storage *mean = norm->inputs[NORM_MEAN]->storage, *var = norm->inputs[NORM_VAR]->storage,
          *gamma = norm->inputs[NORM_GAMMA]->storage;
  double epsilon = norm->params.epsilon;
  Derivation scaled = {DERIVED_SCALED, {weight->storage, gamma, var}, epsilon};
  Derivation shift = {DERIVED_SHIFT, {beta->storage, mean, gamma, var}, epsilon};
  graph->scope = conv->scope;
  graph->block = norm->block;
  const char *weight_name = vl_arena_format(graph->arena, "%s.folded", weight->storage->name);
  const char *bias_name = vl_arena_format(graph->arena, "%s.folded", beta->storage->name);
  Tensor *inputs[] = {
      conv->inputs[0],
      vl_graph_derived(graph, weight_name, weight->dtype, weight->rank, weight->shape, &scaled),
      vl_graph_derived(graph, bias_name, beta->dtype, beta->rank, beta->shape, &shift),
      norm->input_count > NORM_RESIDUAL ? norm->inputs[NORM_RESIDUAL] : NULL};
  OpParams params = conv->params;
  params.relu = norm->params.relu;
  Node *folded;
  VL_TRY(vl_graph_add(graph, "conv_epilogue", &params, inputs, inputs[3] ? 4 : 3, &folded));
  vl_graph_move_before(graph, folded, norm);
  vl_graph_replace_reads(graph, norm->outputs[0], folded->outputs[0]);
  if (program->logits == norm->outputs[0]) program->logits = folded->outputs[0];
  vl_graph_remove(graph, norm);
  vl_graph_remove(graph, conv);
  release(graph, weight->storage, norm->scope);
  return vl_ok();
}

static bool has_foldable(const Program *program) {
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    if (is_op(node, "batch_norm_apply") && convolution_before(program, node)) return true;
  }
  return false;
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  VL_TRY(optimization_one_of(&optimization_fold, value, "norm"));
  if (!program || recipe->stack_vramlab || has_foldable(program)) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "fold=norm: %s has no batch norm behind a convolution",
                  program->graph->name);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  Graph *graph = program->graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *norm = graph->nodes[i];
    Node *conv = is_op(norm, "batch_norm_apply") ? convolution_before(program, norm) : NULL;
    if (!conv) continue;
    VL_TRY(fold_norm(program, conv, norm));
    i--; /* what followed stands one place earlier */
  }
  graph->block = 0;
  return vl_ok();
}

const Optimization optimization_fold = {
    .name = "fold",
    .also_called = "batch norm folding, BN folding, conv-bn fusion, fuse_conv_bn_eval, fuse_modules",
    .turn_on = "no equivalent in training; in inference: "
               "model = torch.fx.experimental.optimization.fuse(model.eval())",
    .values = "norm",
    .help = "in inference: batch norms become factors of the weights in front of them and a bias, once, when "
            "weights are loaded",
    .phase = PHASE_GRAPH,
    .preserves = PRESERVES_TOLERANCE,
    .inference_only = "the statistics of batch norms change in every step",
    .check = check,
    .apply = apply,
};
