/* Softmax cross entropy over space, with a soft Dice term, and its gradient. The probabilities are never
 * stored: backward makes them again from the logits. */
#include "graph/ops/ops.h"

enum { INPUT_LOGITS = 0, INPUT_LABELS };
enum { OUTPUT_LOSS = 0, OUTPUT_SUMS };
enum { BACKWARD_DLOSS = 0, BACKWARD_LOGITS, BACKWARD_LABELS, BACKWARD_SUMS };
enum { SUMS = 3 }; /* of a class: of p where it is the label, of p, of its labels */

static Status check_logits(const Node *node, int32_t index) {
  VL_TRY(op_check_float_input(node, index, "logits", -1));
  const Tensor *logits = node->inputs[index];
  if (logits->rank < 2)
    return op_error(VL_INVALID, node, "logits has %d dimensions; at least 2 (N, C) are needed", logits->rank);
  if (logits->shape[1] < 2)
    return op_error(VL_INVALID, node,
                    "logits has 1 class, whose probability is always 1; at least 2 are needed");
  return vl_ok();
}

/* A class for each place: the logits' sizes without that of the classes. */
static Status check_labels(const Node *node, int32_t index, const Tensor *logits) {
  int64_t sizes[VL_MAX_DIMS] = {logits->shape[0]};
  for (int32_t i = 2; i < logits->rank; i++)
    sizes[i - 1] = logits->shape[i];
  VL_TRY(op_check_sizes(node, index, "labels", logits->rank - 1, sizes));
  if (node->inputs[index]->dtype == DTYPE_I32) return vl_ok();
  return op_error(VL_INVALID, node, "labels is %s; expected i32", vl_dtype_name(node->inputs[index]->dtype));
}

static Status check_weights(const Node *node) {
  if (!(node->params.alpha >= 0))
    return op_error(VL_INVALID, node, "alpha = %g; the weight of the Dice term must be at least 0",
                    node->params.alpha);
  return op_check_epsilon(node);
}

static Status infer(Graph *graph, Node *node) {
  VL_TRY(check_logits(node, INPUT_LOGITS));
  const Tensor *logits = node->inputs[INPUT_LOGITS];
  VL_TRY(check_labels(node, INPUT_LABELS, logits));
  VL_TRY(check_weights(node));
  DType dtype = op_statistics_dtype(logits->dtype);
  VL_TRY(op_add_output(graph, node, "loss", dtype, 0, NULL));
  return op_add_output(graph, node, "sums", dtype, 3, (int64_t[]){logits->shape[0], logits->shape[1], SUMS});
}

static Status infer_backward(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, BACKWARD_DLOSS, "dloss", 0));
  VL_TRY(check_logits(node, BACKWARD_LOGITS));
  const Tensor *logits = node->inputs[BACKWARD_LOGITS];
  VL_TRY(check_labels(node, BACKWARD_LABELS, logits));
  VL_TRY(check_weights(node));
  VL_TRY(
      op_check_sizes(node, BACKWARD_SUMS, "sums", 3, (int64_t[]){logits->shape[0], logits->shape[1], SUMS}));
  const Tensor *dloss = node->inputs[BACKWARD_DLOSS], *sums = node->inputs[BACKWARD_SUMS];
  DType expected = op_statistics_dtype(logits->dtype);
  if (dloss->dtype != expected || sums->dtype != expected)
    return op_error(VL_INVALID, node, "dloss is %s and sums %s; expected %s", vl_dtype_name(dloss->dtype),
                    vl_dtype_name(sums->dtype), vl_dtype_name(expected));
  return op_add_output_like(graph, node, NULL, logits);
}

static Status gradient(Gradients *gradients, Node *node) {
  Tensor *sums = node->outputs[OUTPUT_SUMS];
  if (sums != NULL && vl_gradient_of(gradients, sums) != NULL)
    return op_error(VL_UNSUPPORTED, node, "no gradient through sums; only through the loss");
  Tensor *dloss = vl_gradient_of(gradients, node->outputs[OUTPUT_LOSS]);
  if (dloss == NULL || !op_gradient_wanted(gradients, node, INPUT_LOGITS)) return vl_ok();
  Tensor *inputs[] = {dloss, node->inputs[INPUT_LOGITS], node->inputs[INPUT_LABELS], sums}, *dlogits;
  VL_TRY(
      op_gradient_node(gradients, node, "dice_cross_entropy_backward", &node->params, inputs, 4, &dlogits));
  return op_gradient_give(gradients, node, INPUT_LOGITS, dlogits);
}

/* Maximum, difference, exp, sum, the probability; two sums of it. */
static int64_t flops_forward(const Node *node) {
  return op_multiply(7, vl_tensor_elements(node->inputs[INPUT_LOGITS]));
}

/* Maximum, difference, exp, sum, the probability; its gradient: product and sum; two differences, a product.
 */
static int64_t flops_backward(const Node *node) {
  return op_multiply(10, vl_tensor_elements(node->inputs[BACKWARD_LOGITS]));
}

static const OpField fields[] = {OP_REAL(alpha), OP_REAL(epsilon)};

const Op op_dice_cross_entropy = {.name = "dice_cross_entropy",
                                  OP_FIELDS(fields),
                                  .min_inputs = 2,
                                  .max_inputs = 2,
                                  .precision = PRECISION_FP32,
                                  .infer = infer,
                                  .gradient = gradient,
                                  .flops = flops_forward};

const Op op_dice_cross_entropy_backward = {.name = "dice_cross_entropy_backward",
                                           OP_FIELDS(fields),
                                           .min_inputs = 4,
                                           .max_inputs = 4,
                                           .precision = PRECISION_KEEP,
                                           .inplace = {1U << BACKWARD_LOGITS},
                                           .infer = infer_backward,
                                           .flops = flops_backward};
