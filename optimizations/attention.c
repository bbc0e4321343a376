/* attention=materialised: scores and probabilities become tensors, as where attention is written out:
 * products, softmax and dropout, each a node. attention=fused leaves the op, which keeps none of them.
 * Without either, stack=pytorch has what scaled_dot_product_attention chooses on a CPU: its fused kernel
 * knows no dropout, so that attention with dropout is written out, in fp32 whatever its inputs are
 * (_scaled_dot_product_attention_math). */
#include "optimizations/internal.h"
#include <math.h>
#include <string.h>

/* The nodes that take an attention node's place. */
typedef struct Chain {
  Graph *graph;
  const Node *attention;
} Chain;

static Status add(const Chain *chain, const char *op, const OpParams *params, Tensor *a, Tensor *b,
                  Tensor **y) {
  Graph *graph = chain->graph;
  Node *node = NULL;
  graph->scope = chain->attention->scope;
  graph->segment = chain->attention->segment;
  graph->block = chain->attention->block;
  VL_TRY(vl_graph_add(graph, op, params, (Tensor *[]){a, b}, b ? 2 : 1, &node));
  vl_graph_move_before(graph, node, chain->attention);
  *y = node->outputs[0];
  return vl_ok();
}

static Status convert(const Chain *chain, DType dtype, Tensor **tensor) {
  if ((*tensor)->dtype == dtype) return vl_ok();
  return add(chain, "cast", &(OpParams){.dtype = dtype}, *tensor, NULL, tensor);
}

static const OpParams heads_first = {.axes = {0, 2, 1, 3}};

/* Queries (0), keys or values as (B, A, S, D). */
static Status add_part(const Chain *chain, int64_t part, DType dtype, Tensor **y) {
  Tensor *qkv = chain->attention->inputs[0];
  int64_t batch = qkv->shape[0], length = qkv->shape[1], heads = qkv->shape[3], size = qkv->shape[4];
  OpParams slice = {.start = {0, 0, part}, .shape = {batch, length, 1, heads, size}, .rank = 5};
  OpParams reshape = {.shape = {batch, length, heads, size}, .rank = 4};
  VL_TRY(add(chain, "slice", &slice, qkv, NULL, y));
  VL_TRY(add(chain, "reshape", &reshape, *y, NULL, y));
  VL_TRY(add(chain, "transpose", &heads_first, *y, NULL, y));
  return convert(chain, dtype, y);
}

static Status add_chain(const Chain *chain, Tensor **y) {
  const Node *node = chain->attention;
  const Tensor *qkv = node->inputs[0];
  Tensor *mask = node->input_count > 1 ? node->inputs[1] : NULL, *q, *k, *v;
  DType dtype = qkv->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
  double scale = node->params.alpha > 0.0 ? node->params.alpha : 1.0 / sqrt((double)qkv->shape[4]);
  OpParams scores = {.transpose_b = 1, .dtype = dtype}, values = {.dtype = dtype}, softmax = {.alpha = scale};
  OpParams dropout = {.rate = node->params.rate, .random_scope = node->params.random_scope};
  VL_TRY(add_part(chain, 0, dtype, &q));
  VL_TRY(add_part(chain, 1, dtype, &k));
  VL_TRY(add_part(chain, 2, dtype, &v));
  if (mask) { /* (B, S) as (B, 1, 1, S): the same for all heads and queries */
    OpParams shape = {.shape = {qkv->shape[0], 1, 1, qkv->shape[1]}, .rank = 4};
    VL_TRY(add(chain, "reshape", &shape, mask, NULL, &mask));
  }
  VL_TRY(add(chain, "matmul", &scores, q, k, y));
  VL_TRY(add(chain, "softmax", &softmax, *y, mask, y));
  if (dropout.rate > 0.0) VL_TRY(add(chain, "dropout", &dropout, *y, NULL, y));
  VL_TRY(add(chain, "matmul", &values, *y, v, y));
  VL_TRY(add(chain, "transpose", &heads_first, *y, NULL, y));
  return convert(chain, qkv->dtype, y);
}

static Status materialise(Program *program, Node *node) {
  Graph *graph = program->graph;
  Chain chain = {.graph = graph, .attention = node};
  Tensor *result = node->outputs[0], *y;
  Node *reader = NULL;
  if (node->outputs[1] && vl_graph_reads(graph, node->outputs[1], &reader) > 0)
    return vl_error(VL_UNSUPPORTED,
                    "attention=materialised: %s in %s reads lse of %s, which it does not make",
                    reader->op->name, reader->scope, node->scope);
  VL_TRY(add_chain(&chain, &y));
  vl_graph_replace_reads(graph, result, y);
  if (program->logits == result) program->logits = y;
  if (program->loss == result) program->loss = y;
  vl_graph_remove(graph, node);
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_attention, value, "materialised, fused");
}

/* value "source": what PyTorch materialises. */
static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (strcmp(value, "fused") == 0) return vl_ok();
  Graph *graph = program->graph;
  bool all = strcmp(value, "materialised") == 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (strcmp(node->op->name, "attention") != 0 || !(all || node->params.rate > 0.0)) continue;
    VL_TRY(materialise(program, node));
  }
  graph->block = 0;
  return vl_ok();
}

const Optimization optimization_attention = {
    .name = "attention",
    .also_called = "flash attention, memory-efficient attention, scaled dot product attention, SDPA",
    .turn_on = "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):"
               "  # fused; on a GPU, or without dropout",
    .values = "materialised, fused",
    .help = "probabilities of attention: tensors of their own, or repeated in backward tile by tile",
    .phase = PHASE_PRECISION,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
};
