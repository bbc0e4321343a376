/* softmax_cross_entropy and its gradient; correct_count, which evaluation reads. */
#include "graph/ops/ops.h"

static Status infer(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "logits", 2));
  const Tensor *logits = node->inputs[0];
  VL_TRY(op_check_vector(node, 1, "labels", logits->shape[0], DTYPE_I32));
  DType dtype = op_statistics_dtype(logits->dtype);
  VL_TRY(op_add_output(graph, node, "loss", dtype, 0, NULL));
  return op_add_output(graph, node, "log_p", dtype, 2, logits->shape);
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "dloss", 0));
  VL_TRY(op_check_float_input(node, 1, "log_p", 2));
  const Tensor *log_p = node->inputs[1];
  VL_TRY(op_check_vector(node, 2, "labels", log_p->shape[0], DTYPE_I32));
  if (node->inputs[0]->dtype != log_p->dtype)
    return op_error(VL_INVALID, node, "dloss is %s and log_p %s; must be the same type",
                    vl_dtype_name(node->inputs[0]->dtype), vl_dtype_name(log_p->dtype));
  return op_add_output_like(graph, node, NULL, log_p);
}

static Status gradient(Gradients *gradients, Node *node) {
  Tensor *log_p = node->outputs[1];
  if (log_p != NULL && vl_gradient_of(gradients, log_p) != NULL)
    return op_error(VL_UNSUPPORTED, node, "no gradient through log_p; only through the loss");
  Tensor *dloss = vl_gradient_of(gradients, node->outputs[0]);
  if (dloss == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  Tensor *inputs[] = {dloss, log_p, node->inputs[1]}, *dlogits;
  VL_TRY(op_gradient_node(gradients, node, "softmax_cross_entropy_backward", NULL, inputs, 3, &dlogits));
  return op_gradient_give(gradients, node, 0, dlogits);
}

static Status infer_correct(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "logits", 2));
  VL_TRY(op_check_vector(node, 1, "labels", node->inputs[0]->shape[0], DTYPE_I32));
  return op_add_output(graph, node, NULL, DTYPE_F32, 0, NULL);
}

/* Maximum, difference, exp, sum, difference. */
static int64_t flops_forward(const Node *node) { return op_multiply(5, vl_tensor_elements(node->inputs[0])); }

/* exp, difference, product. */
static int64_t flops_backward(const Node *node) {
  return op_multiply(3, vl_tensor_elements(node->inputs[1]));
}

static int64_t flops_correct(const Node *node) { return vl_tensor_elements(node->inputs[0]); }

const Op op_softmax_cross_entropy = {.name = "softmax_cross_entropy",
                                     .min_inputs = 2,
                                     .max_inputs = 2,
                                     .precision = PRECISION_FP32,
                                     .infer = infer,
                                     .gradient = gradient,
                                     .flops = flops_forward};

const Op op_softmax_cross_entropy_backward = {.name = "softmax_cross_entropy_backward",
                                              .min_inputs = 3,
                                              .max_inputs = 3,
                                              .precision = PRECISION_KEEP,
                                              .infer = infer_backward,
                                              .flops = flops_backward};

const Op op_correct_count = {.name = "correct_count",
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .precision = PRECISION_KEEP,
                             .infer = infer_correct,
                             .flops = flops_correct};
