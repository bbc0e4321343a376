/* Rows picked by number: embedding (rows of a table), gather_tokens (places of a sequence), and their
 * gradients, which add rows up where they came from. */
#include "graph/ops/ops.h"

#include <string.h>

/* Input `index` is there, i32, of `least` to `most` dimensions. */
static Status check_indices(const Node *node, int32_t index, const char *name, int32_t least, int32_t most) {
  VL_TRY(op_check_input(node, index, name, -1));
  const Tensor *tensor = node->inputs[index];
  if (tensor->dtype == DTYPE_I32 && tensor->rank >= least && tensor->rank <= most) return vl_ok();
  char text[96];
  vl_tensor_describe(tensor, text, sizeof text);
  return op_error(VL_INVALID, node, "%s is %s; expected i32 of %d to %d dimensions", name, text, least, most);
}

/* One addition for each element of dy. */
static int64_t flops_backward(const Node *node) { return vl_tensor_elements(node->inputs[0]); }

/* ---- embedding ------------------------------------------------------------------------------------------- */

/* ids.shape + (width); returns its rank. */
static int32_t rows_shape(const Tensor *ids, int64_t width, int64_t shape[VL_MAX_DIMS]) {
  memcpy(shape, ids->shape, (size_t)ids->rank * sizeof *shape);
  shape[ids->rank] = width;
  return ids->rank + 1;
}

static Status infer_embedding(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "table", 2));
  VL_TRY(check_indices(node, 1, "ids", 1, 3));
  const Tensor *table = node->inputs[0];
  int64_t shape[VL_MAX_DIMS];
  int32_t rank = rows_shape(node->inputs[1], table->shape[1], shape);
  return op_add_output(graph, node, NULL, table->dtype, rank, shape);
}

/* Added to what has arrived at the table, a tied projection's gradient for one, so that there is one gradient
 * of the table's size and not two. */
static Status gradient_embedding(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]), *table = node->inputs[0];
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  OpParams params = {.dtype = op_statistics_dtype(table->dtype)};
  op_set_shape(&params, table);
  Tensor *onto = (DType)params.dtype == table->dtype ? vl_gradient_take(gradients, table) : NULL;
  Tensor *inputs[] = {dy, node->inputs[1], onto}, *dtable;
  VL_TRY(op_gradient_node(gradients, node, "embedding_backward", &params, inputs, onto != NULL ? 3 : 2,
                          &dtable));
  return op_gradient_give(gradients, node, 0, dtable);
}

static Status infer_embedding_backward(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "dy", -1));
  VL_TRY(check_indices(node, 1, "ids", 1, 3));
  const OpParams *params = &node->params;
  VL_TRY(op_check_float_dtype(node));
  VL_TRY(op_check_shape(node, params->rank, params->shape));
  if (params->rank != 2)
    return op_error(VL_INVALID, node, "the table has %lld dimensions; expected 2", (long long)params->rank);
  int64_t shape[VL_MAX_DIMS];
  int32_t rank = rows_shape(node->inputs[1], params->shape[1], shape);
  VL_TRY(op_check_sizes(node, 0, "dy", rank, shape));
  Tensor *onto = node->input_count > 2 ? node->inputs[2] : NULL;
  if (onto == NULL) return op_add_output(graph, node, NULL, (DType)params->dtype, 2, params->shape);
  VL_TRY(op_check_sizes(node, 2, "onto", 2, params->shape));
  if (onto->dtype != (DType)params->dtype)
    return op_error(VL_INVALID, node, "onto is %s; expected %s, the gradient's type",
                    vl_dtype_name(onto->dtype), vl_dtype_name((DType)params->dtype));
  return op_add_view(graph, node, NULL, onto, 2, onto->shape);
}

/* ---- gather_tokens --------------------------------------------------------------------------------------- */

static Status infer_gather(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "x", 3));
  VL_TRY(check_indices(node, 1, "positions", 2, 2));
  const Tensor *x = node->inputs[0], *positions = node->inputs[1];
  if (positions->shape[0] != x->shape[0])
    return op_error(VL_INVALID, node, "positions of %lld samples and x of %lld; must be as many",
                    (long long)positions->shape[0], (long long)x->shape[0]);
  return op_add_output(graph, node, NULL, x->dtype, 3,
                       (const int64_t[]){x->shape[0], positions->shape[1], x->shape[2]});
}

static Status gradient_gather(Gradients *gradients, Node *node) {
  Tensor *dy = vl_gradient_of(gradients, node->outputs[0]);
  if (dy == NULL || !op_gradient_wanted(gradients, node, 0)) return vl_ok();
  OpParams params = {0};
  op_set_shape(&params, node->inputs[0]);
  Tensor *inputs[] = {dy, node->inputs[1]}, *dx;
  VL_TRY(op_gradient_node(gradients, node, "gather_tokens_backward", &params, inputs, 2, &dx));
  return op_gradient_give(gradients, node, 0, dx);
}

static Status infer_gather_backward(Graph *graph, Node *node) {
  VL_TRY(op_check_float_input(node, 0, "dy", 3));
  VL_TRY(check_indices(node, 1, "positions", 2, 2));
  const OpParams *params = &node->params;
  VL_TRY(op_check_shape(node, params->rank, params->shape));
  if (params->rank != 3)
    return op_error(VL_INVALID, node, "x has %lld dimensions; expected 3", (long long)params->rank);
  int64_t picked = node->inputs[1]->shape[1];
  VL_TRY(op_check_sizes(node, 1, "positions", 2, (const int64_t[]){params->shape[0], picked}));
  VL_TRY(op_check_sizes(node, 0, "dy", 3, (const int64_t[]){params->shape[0], picked, params->shape[2]}));
  return op_add_output(graph, node, NULL, node->inputs[0]->dtype, 3, params->shape);
}

static const OpField embedding_backward_fields[] = {OP_SIZES(shape), OP_INTEGER(rank),
                                                    OP_FIELD(FIELD_DTYPE, dtype, 1)};
static const OpField gather_backward_fields[] = {OP_SIZES(shape), OP_INTEGER(rank)};

/* KEEP, since a table in fp32 is read where it lies: the rows are few, a low copy of it is all of them. */
const Op op_embedding = {.name = "embedding",
                         .min_inputs = 2,
                         .max_inputs = 2,
                         .precision = PRECISION_KEEP,
                         .infer = infer_embedding,
                         .gradient = gradient_embedding,
                         .flops = op_no_flops};

const Op op_embedding_backward = {.name = "embedding_backward",
                                  OP_FIELDS(embedding_backward_fields),
                                  .min_inputs = 2,
                                  .max_inputs = 3,
                                  .precision = PRECISION_KEEP,
                                  .infer = infer_embedding_backward,
                                  .flops = flops_backward};

const Op op_gather_tokens = {.name = "gather_tokens",
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .precision = PRECISION_PROMOTE,
                             .infer = infer_gather,
                             .gradient = gradient_gather,
                             .flops = op_no_flops};

const Op op_gather_tokens_backward = {.name = "gather_tokens_backward",
                                      OP_FIELDS(gather_backward_fields),
                                      .min_inputs = 2,
                                      .max_inputs = 2,
                                      .precision = PRECISION_KEEP,
                                      .infer = infer_gather_backward,
                                      .flops = flops_backward};
