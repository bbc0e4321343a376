/* conv_transpose: what a convolution's data gradient computes, as a layer. Its weights are (I, O/g, ...),
 * those of the convolution from y to x, by which its own gradients are ops there are: that convolution of dy,
 * and the weight gradient with x and dy in each other's place. */
#include "graph/ops/ops.h"

enum { X = 0, WEIGHTS, BIAS };

static Status check_groups(const Node *node) {
  const Tensor *x = node->inputs[X], *w = node->inputs[WEIGHTS];
  int64_t groups = node->params.groups;
  if (groups < 1 || x->shape[1] % groups != 0)
    return op_error(VL_INVALID, node, "groups = %lld must be at least 1 and divide the input's %lld channels",
                    (long long)groups, (long long)x->shape[1]);
  if (w->shape[0] != x->shape[1])
    return op_error(VL_INVALID, node, "weights are of %lld input channels, x has %lld",
                    (long long)w->shape[0], (long long)x->shape[1]);
  return vl_ok();
}

/* (x - 1) stride + kernel - 2 padding: the smallest size from which the convolution gives x. */
static Status output_size(const Node *node, int32_t dimension, int64_t *size) {
  int64_t kernel = node->inputs[WEIGHTS]->shape[2 + dimension], x = node->inputs[X]->shape[2 + dimension];
  VL_TRY(op_check_window(node, dimension, kernel));
  int64_t stride = node->params.stride[dimension], padding = node->params.padding[dimension];
  int64_t whole = op_multiply(x - 1, stride);
  *size = whole > INT64_MAX - kernel ? INT64_MAX : whole + kernel - 2 * padding;
  if (*size >= 1) return vl_ok();
  return op_error(VL_INVALID, node,
                  "size %lld with kernel %lld, stride %lld and padding %lld leaves %lld of spatial dimension "
                  "%d; must be at least 1",
                  (long long)x, (long long)kernel, (long long)stride, (long long)padding, (long long)*size,
                  dimension);
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, X, "x", -1));
  const Tensor *x = node->inputs[X];
  if (x->rank != 4 && x->rank != 5)
    return op_error(VL_INVALID, node, "x has %d dimensions; 4 (N, C, H, W) or 5 (N, C, D, H, W) are possible",
                    x->rank);
  VL_TRY(op_check_float_input(node, WEIGHTS, "weights", x->rank));
  const Tensor *w = node->inputs[WEIGHTS];
  if (x->dtype != w->dtype)
    return op_error(VL_INVALID, node, "x is %s and weights %s; must be the same type",
                    vl_dtype_name(x->dtype), vl_dtype_name(w->dtype));
  VL_TRY(check_groups(node));
  int64_t y[VL_MAX_DIMS] = {x->shape[0], op_multiply(w->shape[1], node->params.groups)};
  for (int32_t i = 0; i < x->rank - 2; i++)
    VL_TRY(output_size(node, i, &y[2 + i]));
  VL_TRY(op_check_bias(node, BIAS, y[1]));
  return op_add_output(graph, node, NULL, x->dtype, x->rank, y);
}

static Status give_x(Gradients *gradients, const Node *node, Tensor *dy) {
  if (!op_gradient_wanted(gradients, node, X)) return vl_ok();
  Tensor *inputs[] = {dy, node->inputs[WEIGHTS]}, *dx;
  VL_TRY(op_gradient_node(gradients, node, "conv", &node->params, inputs, 2, &dx));
  return op_gradient_give(gradients, node, X, dx);
}

static Status give_weights(Gradients *gradients, const Node *node, Tensor *dy) {
  if (!op_gradient_wanted(gradients, node, WEIGHTS)) return vl_ok();
  OpParams params = node->params;
  op_set_shape(&params, node->inputs[WEIGHTS]);
  params.dtype = node->inputs[WEIGHTS]->dtype;
  Tensor *inputs[] = {dy, node->inputs[X]}, *dw;
  VL_TRY(op_gradient_node(gradients, node, "conv_backward_weights", &params, inputs, 2, &dw));
  return op_gradient_give(gradients, node, WEIGHTS, dw);
}

static Status gradient(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL) return vl_ok();
  if (gradients->weight_first) {
    VL_TRY(give_weights(gradients, node, dy));
    VL_TRY(give_x(gradients, node, dy));
  } else {
    VL_TRY(give_x(gradients, node, dy));
    VL_TRY(give_weights(gradients, node, dy));
  }
  return op_gradient_give_bias(gradients, node, BIAS, dy, 1);
}

/* A multiply-add per element of x and weight of its input channel. */
static int64_t flops(const Node *node) {
  const Tensor *w = node->inputs[WEIGHTS];
  int64_t products = op_multiply(2, vl_tensor_elements(node->inputs[X])), all;
  for (int32_t i = 1; i < w->rank; i++)
    products = op_multiply(products, w->shape[i]);
  bool has_bias = node->input_count > BIAS && node->inputs[BIAS] != NULL;
  if (!has_bias) return products;
  return __builtin_add_overflow(products, vl_tensor_elements(node->outputs[0]), &all) ? INT64_MAX : all;
}

static const OpField fields[] = {OP_SPATIAL(stride), OP_SPATIAL(padding), OP_INTEGER(groups)};

const Op op_conv_transpose = {.name = "conv_transpose",
                              OP_FIELDS(fields),
                              .min_inputs = 2,
                              .max_inputs = 3,
                              .precision = PRECISION_LOW,
                              .infer = infer,
                              .gradient = gradient,
                              .flops = flops};
