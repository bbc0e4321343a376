/* attention and its gradient: softmax(alpha q k^T + mask) v for every head, with dropout on the
 * probabilities. What lies between q k^T and y is never a tensor: backward reads the logarithm of each row's
 * sum and repeats the probabilities (Dao et al., FlashAttention, arXiv:2205.14135). The dropout mask is the
 * one a `dropout` node of the same random_scope would draw on probabilities (B, A, S, S), so that an
 * attention made of several nodes has the same. */
#include "graph/ops/ops.h"

#include <math.h>

enum { QKV = 0, MASK = 1 };
enum { DY = 0, BACKWARD_QKV, BACKWARD_Y, BACKWARD_LSE, BACKWARD_MASK };

static Status check_params(Graph *graph, Node *node) {
  OpParams *params = &node->params;
  if (!(params->alpha >= 0 && params->alpha < (double)INFINITY))
    return op_error(VL_INVALID, node, "alpha = %g; must be a positive scale, or 0 for 1/sqrt(D)",
                    params->alpha);
  if (!(params->rate >= 0 && params->rate < 1))
    return op_error(VL_INVALID, node, "rate = %g; must be at least 0 and below 1", params->rate);
  bool is_named = params->random_scope != NULL && params->random_scope[0] != '\0';
  if (params->rate > 0 && !is_named)
    return op_error(VL_INVALID, node, "random_scope is missing; it names the mask of dropout");
  params->random_scope = is_named ? vl_arena_copy_text(graph->arena, params->random_scope) : "";
  return vl_ok();
}

/* qkv at input `qkv` and the optional mask at input `mask`. */
static Status check_inputs(const Node *node, int32_t qkv, int32_t mask) {
  VL_TRY(op_check_float_input(node, qkv, "qkv", 5));
  const int64_t *shape = node->inputs[qkv]->shape;
  if (shape[2] != 3) {
    char text[96];
    vl_tensor_describe(node->inputs[qkv], text, sizeof text);
    return op_error(VL_INVALID, node,
                    "qkv is %s; expected (batch, sequence, 3, heads, head size): queries, keys and values",
                    text);
  }
  if (mask >= node->input_count || node->inputs[mask] == NULL) return vl_ok();
  VL_TRY(op_check_sizes(node, mask, "mask", 2, shape));
  DType dtype = op_statistics_dtype(node->inputs[qkv]->dtype);
  if (node->inputs[mask]->dtype != dtype)
    return op_error(VL_INVALID, node, "mask is %s; expected %s", vl_dtype_name(node->inputs[mask]->dtype),
                    vl_dtype_name(dtype));
  return vl_ok();
}

static void shape_of_y(const Tensor *qkv, int64_t *shape) {
  shape[0] = qkv->shape[0];
  shape[1] = qkv->shape[1];
  shape[2] = qkv->shape[3];
  shape[3] = qkv->shape[4];
}

static void shape_of_lse(const Tensor *qkv, int64_t *shape) {
  shape[0] = qkv->shape[0];
  shape[1] = qkv->shape[3];
  shape[2] = qkv->shape[1];
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(check_params(graph, node));
  VL_TRY(check_inputs(node, QKV, MASK));
  const Tensor *qkv = node->inputs[QKV];
  int64_t y[VL_MAX_DIMS], lse[VL_MAX_DIMS];
  shape_of_y(qkv, y);
  shape_of_lse(qkv, lse);
  VL_TRY(op_add_output(graph, node, "y", qkv->dtype, 4, y));
  return op_add_output(graph, node, "lse", op_statistics_dtype(qkv->dtype), 3, lse);
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(check_params(graph, node));
  VL_TRY(check_inputs(node, BACKWARD_QKV, BACKWARD_MASK));
  const Tensor *qkv = node->inputs[BACKWARD_QKV];
  int64_t y[VL_MAX_DIMS], lse[VL_MAX_DIMS];
  shape_of_y(qkv, y);
  shape_of_lse(qkv, lse);
  VL_TRY(op_check_sizes(node, DY, "dy", 4, y));
  VL_TRY(op_check_sizes(node, BACKWARD_Y, "y", 4, y));
  VL_TRY(op_check_sizes(node, BACKWARD_LSE, "lse", 3, lse));
  DType dy_dtype = node->inputs[DY]->dtype, y_dtype = node->inputs[BACKWARD_Y]->dtype,
        lse_dtype = node->inputs[BACKWARD_LSE]->dtype;
  if (dy_dtype != qkv->dtype || y_dtype != qkv->dtype || lse_dtype != op_statistics_dtype(qkv->dtype))
    return op_error(VL_INVALID, node, "dy is %s, y %s and lse %s; expected %s, %s and %s",
                    vl_dtype_name(dy_dtype), vl_dtype_name(y_dtype), vl_dtype_name(lse_dtype),
                    vl_dtype_name(qkv->dtype), vl_dtype_name(qkv->dtype),
                    vl_dtype_name(op_statistics_dtype(qkv->dtype)));
  return op_add_output_like(graph, node, NULL, qkv);
}

static Status gradient(Gradients *gradients, Node *node) {
  Tensor *y = node->outputs[0], *lse = node->outputs[1];
  if (lse != NULL && vl_gradient_of(gradients, lse) != NULL)
    return op_error(VL_UNSUPPORTED, node, "no gradient through lse; only through y");
  Tensor *dy = vl_gradient_of(gradients, y);
  if (dy == NULL) return vl_ok();
  if (op_gradient_wanted(gradients, node, MASK))
    return op_error(VL_UNSUPPORTED, node, "no gradient of the mask; only of qkv");
  if (!op_gradient_wanted(gradients, node, QKV)) return vl_ok();
  Tensor *mask = node->input_count > MASK ? node->inputs[MASK] : NULL, *dqkv;
  Tensor *inputs[] = {dy, node->inputs[QKV], y, lse, mask};
  VL_TRY(op_gradient_node(gradients, node, "attention_backward", &node->params, inputs, mask ? 5 : 4, &dqkv));
  return op_gradient_give(gradients, node, QKV, dqkv);
}

/* A product of (S, D) and (D, S), and so on, in every head: `products` of them, and `each` operations on
 * every probability. */
static int64_t flops_of(const Tensor *qkv, int64_t products, int64_t each) {
  int64_t length = qkv->shape[1], heads = op_multiply(qkv->shape[0], qkv->shape[3]);
  int64_t probabilities = op_multiply(heads, op_multiply(length, length));
  return op_multiply(probabilities, products * 2 * qkv->shape[4] + each);
}

/* q k^T and p v; scale, mask, maximum, difference, exp, sum, quotient, dropout. */
static int64_t flops_forward(const Node *node) { return flops_of(node->inputs[QKV], 2, 8); }

/* q k^T again, dy v^T, p^T dy, ds k, ds^T q; scale, mask, difference, exp, dropout twice, difference,
 * product.
 */
static int64_t flops_backward(const Node *node) { return flops_of(node->inputs[BACKWARD_QKV], 5, 8); }

static const OpField fields[] = {OP_REAL(alpha), OP_REAL(rate), OP_FIELD(FIELD_TEXT, random_scope, 1)};

const Op op_attention = {.name = "attention",
                         OP_FIELDS(fields),
                         .min_inputs = 1,
                         .max_inputs = 2,
                         .precision = PRECISION_LOW,
                         .infer = infer,
                         .gradient = gradient,
                         .flops = flops_forward};

const Op op_attention_backward = {.name = "attention_backward",
                                  OP_FIELDS(fields),
                                  .min_inputs = 4,
                                  .max_inputs = 5,
                                  .precision = PRECISION_KEEP,
                                  .infer = infer_backward,
                                  .flops = flops_backward};
