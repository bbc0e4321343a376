/* adamw: PyTorch's, Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101). adamw_8bit:
 * the same with both moments as 8-bit codes and a scale for each block (Dettmers et al., arXiv:2110.02861).
 */
#include "graph/ops/ops.h"

/* epsilon 0 would make 0 / 0 of weights that never had a gradient, padding included; so would one that
 * becomes 0 in f32, alone or times the bias correction. */
static const double least_epsilon = 1e-30;

static Status check_params(const Node *node) {
  const OpParams *params = &node->params;
  if (!(params->learning_rate >= 0) || !(params->weight_decay >= 0))
    return op_error(VL_INVALID, node, "learning_rate = %g, weight_decay = %g; must be at least 0",
                    params->learning_rate, params->weight_decay);
  if (!(params->beta1 >= 0 && params->beta1 < 1) || !(params->beta2 >= 0 && params->beta2 < 1))
    return op_error(VL_INVALID, node, "beta1 = %g, beta2 = %g; must be at least 0 and below 1", params->beta1,
                    params->beta2);
  if (!(params->epsilon >= least_epsilon))
    return op_error(VL_INVALID, node, "epsilon = %g; must be at least %g", params->epsilon, least_epsilon);
  return vl_ok();
}

static Status infer(Graph *graph, Node *node) {
  for (int32_t i = 1; i < 4; i++)
    VL_TRY(op_check_alike(node, 0, i));
  VL_TRY(op_check_factor(node, 4));
  VL_TRY(check_params(node));
  static const char *const parts[] = {"w", "m", "v"};
  static const int32_t updated[] = {0, 2, 3};
  for (int32_t i = 0; i < 3; i++) {
    Tensor *state = node->inputs[updated[i]];
    VL_TRY(op_add_view(graph, node, parts[i], state, state->rank, state->shape));
  }
  return vl_ok();
}

static Status infer_8bit(Graph *graph, Node *node) {
  VL_TRY(op_check_alike(node, 0, 1));
  const Tensor *w = node->inputs[0];
  for (int32_t i = 2; i < 4; i++) {
    VL_TRY(op_check_input(node, i, i == 2 ? "m" : "v", w->rank));
    VL_TRY(op_check_sizes(node, i, i == 2 ? "m" : "v", w->rank, w->shape));
    if (node->inputs[i]->dtype != DTYPE_U8)
      return op_error(VL_INVALID, node, "%s is %s; must be u8", i == 2 ? "m" : "v",
                      vl_dtype_name(node->inputs[i]->dtype));
  }
  int64_t blocks = (vl_tensor_elements(w) + VL_STATE_BLOCK - 1) / VL_STATE_BLOCK;
  VL_TRY(op_check_float_input(node, 4, "absmax", 2));
  VL_TRY(op_check_sizes(node, 4, "absmax", 2, (const int64_t[]){2, blocks}));
  if (node->inputs[4]->dtype != DTYPE_F32)
    return op_error(VL_INVALID, node, "absmax is %s; must be f32", vl_dtype_name(node->inputs[4]->dtype));
  VL_TRY(op_check_factor(node, 5));
  VL_TRY(check_params(node));
  static const char *const parts[] = {"w", "m", "v", "absmax"};
  static const int32_t updated[] = {0, 2, 3, 4};
  for (int32_t i = 0; i < 4; i++) {
    Tensor *state = node->inputs[updated[i]];
    VL_TRY(op_add_view(graph, node, parts[i], state, state->rank, state->shape));
  }
  return vl_ok();
}

/* Weight decay; m: difference, product, sum; v: three products and a sum; root, quotient, sum; step: product,
 * quotient, sum. */
static int64_t flops(const Node *node) { return op_multiply(14, vl_tensor_elements(node->inputs[0])); }

static const OpField fields[] = {OP_REAL(learning_rate), OP_REAL(beta1), OP_REAL(beta2), OP_REAL(epsilon),
                                 OP_REAL(weight_decay)};

const Op op_adamw = {.name = "adamw",
                     OP_FIELDS(fields),
                     .min_inputs = 4,
                     .max_inputs = 6,
                     .precision = PRECISION_KEEP,
                     .side_effect = true,
                     .infer = infer,
                     .flops = flops};

/* Moments to numbers and back: a product each to and from the scale, and a line of the map. */
static int64_t flops_8bit(const Node *node) {
  return op_multiply(14 + 2 * 6, vl_tensor_elements(node->inputs[0]));
}

const Op op_adamw_8bit = {.name = "adamw_8bit",
                          OP_FIELDS(fields),
                          .min_inputs = 5,
                          .max_inputs = 7,
                          .precision = PRECISION_KEEP,
                          .side_effect = true,
                          .infer = infer_8bit,
                          .flops = flops_8bit};
