/* linear and matmul: products of matrices, whose rows may have several leading dimensions. */
#include "graph/ops/ops.h"

#include <string.h>

/* ---- linear ------------------------------------------------------------------------------------------------- */

static bool has_bias(const Node *node) { return node->input_count > 2 && node->inputs[2] != NULL; }

static int64_t last_size(const Tensor *tensor) { return tensor->shape[tensor->rank - 1]; }

static Status infer_linear(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", -1));
  VL_TRY(op_check_float_input(node, 1, "weights", 2));
  const Tensor *x = node->inputs[0], *w = node->inputs[1];
  if (x->rank < 2) return op_error(VL_INVALID, node, "x has %d dimensions; at least 2 are needed", x->rank);
  int64_t outputs = w->shape[0], shape[VL_MAX_DIMS];
  VL_TRY(op_check_sizes(node, 1, "weights", 2, (const int64_t[]){outputs, last_size(x)}));
  if (w->dtype != x->dtype)
    return op_error(VL_INVALID, node, "x is %s and weights %s; must be the same type",
                    vl_dtype_name(x->dtype), vl_dtype_name(w->dtype));
  VL_TRY(op_check_bias(node, 2, outputs));
  memcpy(shape, x->shape, sizeof shape);
  shape[x->rank - 1] = outputs;
  return op_add_output(graph, node, NULL, x->dtype, x->rank, shape);
}

/* The matrix of a tensor's last dimension and all others: a view. */
static Status as_matrix(Gradients *gradients, const Node *node, Tensor *tensor, Tensor **matrix) {
  *matrix = tensor;
  if (tensor->rank == 2) return vl_ok();
  OpParams params = {.rank = 2, .shape = {vl_tensor_elements(tensor) / last_size(tensor), last_size(tensor)}};
  return op_gradient_node(gradients, node, "reshape", &params, &tensor, 1, matrix);
}

static Status give_product(Gradients *gradients, Node *node, int32_t index, Tensor *a, Tensor *b,
                           int64_t transpose_a, int64_t transpose_b) {
  if (!op_gradient_wanted(gradients, node, index)) return vl_ok();
  OpParams params = {
      .transpose_a = transpose_a, .transpose_b = transpose_b, .dtype = node->inputs[index]->dtype};
  Tensor *inputs[] = {a, b}, *product;
  VL_TRY(op_gradient_node(gradients, node, "matmul", &params, inputs, 2, &product));
  return op_gradient_give(gradients, node, index, product);
}

/* dw = dy' x summed over all rows, which met the same w. */
static Status give_weights(Gradients *gradients, Node *node, int32_t index, Tensor *dy, Tensor *x) {
  if (!op_gradient_wanted(gradients, node, index)) return vl_ok();
  VL_TRY(as_matrix(gradients, node, dy, &dy));
  VL_TRY(as_matrix(gradients, node, x, &x));
  return give_product(gradients, node, index, dy, x, 1, 0);
}

static Status gradient_linear(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL) return vl_ok();
  Tensor *x = node->inputs[0], *w = node->inputs[1];
  if (gradients->weight_first) {
    VL_TRY(give_weights(gradients, node, 1, dy, x));
    VL_TRY(give_product(gradients, node, 0, dy, w, 0, 0));
  } else {
    VL_TRY(give_product(gradients, node, 0, dy, w, 0, 0));
    VL_TRY(give_weights(gradients, node, 1, dy, x));
  }
  return op_gradient_give_bias(gradients, node, 2, dy, dy->rank - 1);
}

static int64_t flops_linear(const Node *node) {
  int64_t y = vl_tensor_elements(node->outputs[0]);
  return op_multiply(op_multiply(2, last_size(node->inputs[0])) + (has_bias(node) ? 1 : 0), y);
}

/* ---- matmul ------------------------------------------------------------------------------------------------- */

/* b is one matrix for every row of a, whatever a's leading dimensions. */
static bool is_shared(const Node *node) { return node->inputs[1]->rank == 2 && node->inputs[0]->rank > 2; }

static Status infer_matmul(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "a", -1));
  VL_TRY(op_check_float_input(node, 1, "b", -1));
  VL_TRY(op_check_flag(node, "transpose_a", node->params.transpose_a));
  VL_TRY(op_check_flag(node, "transpose_b", node->params.transpose_b));
  VL_TRY(op_check_float_dtype(node));
  const Tensor *a = node->inputs[0], *b = node->inputs[1];
  bool shared = is_shared(node) && !node->params.transpose_a;
  bool agree = a->rank >= 2 && (a->rank == b->rank || shared) && a->dtype == b->dtype;
  int64_t y[VL_MAX_DIMS] = {0};
  int32_t rows = a->rank - 2, b_rows = b->rank - 2;
  for (int32_t i = 0; agree && i < rows; i++) {
    agree = shared || a->shape[i] == b->shape[i];
    y[i] = a->shape[i];
  }
  if (!agree ||
      a->shape[rows + 1 - node->params.transpose_a] != b->shape[b_rows + node->params.transpose_b]) {
    char left[96], right[96];
    vl_tensor_describe(a, left, sizeof left);
    vl_tensor_describe(b, right, sizeof right);
    return op_error(VL_INVALID, node,
                    "a %s%s and b %s%s: leading sizes, inner sizes and types must be equal, with at least 2 "
                    "dimensions (b may have just 2 where a is not transposed)",
                    left, node->params.transpose_a ? " transposed" : "", right,
                    node->params.transpose_b ? " transposed" : "");
  }
  y[rows] = a->shape[rows + node->params.transpose_a];
  y[rows + 1] = b->shape[b_rows + 1 - node->params.transpose_b];
  Tensor *onto = node->input_count > 2 ? node->inputs[2] : NULL;
  if (onto == NULL) return op_add_output(graph, node, NULL, (DType)node->params.dtype, a->rank, y);
  VL_TRY(op_check_sizes(node, 2, "onto", a->rank, y));
  if (onto->dtype != (DType)node->params.dtype)
    return op_error(VL_INVALID, node, "onto is %s; expected %s, the product's type",
                    vl_dtype_name(onto->dtype), vl_dtype_name((DType)node->params.dtype));
  return op_add_view(graph, node, NULL, onto, a->rank, y);
}

/* y = A B with A = a or its transpose, B likewise; dA = dy B', dB = A' dy, transposed back where needed. */
static Status gradient_matmul(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !(op_gradient_wanted(gradients, node, 0) || op_gradient_wanted(gradients, node, 1)))
    return vl_ok();
  if (node->input_count > 2) return op_error(VL_UNSUPPORTED, node, "no gradient of a product onto another");
  Tensor *a = node->inputs[0], *b = node->inputs[1];
  int64_t ta = node->params.transpose_a, tb = node->params.transpose_b;
  VL_TRY(op_gradient_cast(gradients, node, dy, a->dtype, &dy));
  if (is_shared(node)) {
    VL_TRY(give_product(gradients, node, 0, dy, b, 0, 1 - tb));
    return tb ? give_weights(gradients, node, 1, dy, a) : give_weights(gradients, node, 1, a, dy);
  }
  if (ta)
    VL_TRY(give_product(gradients, node, 0, b, dy, tb, 1));
  else
    VL_TRY(give_product(gradients, node, 0, dy, b, 0, 1 - tb));
  if (tb) return give_product(gradients, node, 1, dy, a, 1, ta);
  return give_product(gradients, node, 1, a, dy, 1 - ta, 0);
}

static int64_t flops_matmul(const Node *node) {
  const Tensor *a = node->inputs[0];
  int64_t inner = a->shape[a->rank - 1 - node->params.transpose_a];
  return op_multiply(op_multiply(2, inner), vl_tensor_elements(node->outputs[0]));
}

static const OpField matmul_fields[] = {OP_INTEGER(transpose_a), OP_INTEGER(transpose_b),
                                        OP_FIELD(FIELD_DTYPE, dtype, 1)};

const Op op_linear = {.name = "linear",
                      .min_inputs = 2,
                      .max_inputs = 3,
                      .precision = PRECISION_LOW,
                      .infer = infer_linear,
                      .gradient = gradient_linear,
                      .flops = flops_linear};

const Op op_matmul = {.name = "matmul",
                      OP_FIELDS(matmul_fields),
                      .min_inputs = 2,
                      .max_inputs = 3,
                      .precision = PRECISION_LOW,
                      .infer = infer_matmul,
                      .gradient = gradient_matmul,
                      .flops = flops_matmul};
