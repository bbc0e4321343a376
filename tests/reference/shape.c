/* Ops that move elements or add them over axes. */
#include "tests/reference/ops.h"

/* The coordinates of element `index` of a dense array. */
static void unravel(const Tensor *tensor, int64_t index, int64_t at[VL_MAX_DIMS]) {
  for (int32_t i = tensor->rank - 1; i >= 0; i--) {
    at[i] = index % tensor->shape[i];
    index /= tensor->shape[i];
  }
}

static int64_t ravel(const Tensor *tensor, const int64_t at[VL_MAX_DIMS]) {
  int64_t index = 0;
  for (int32_t i = 0; i < tensor->rank; i++)
    index = index * tensor->shape[i] + at[i];
  return index;
}

static bool is_axis(const OpParams *params, int32_t dim) {
  for (int64_t i = 0; i < params->axis_count; i++) {
    if (params->axes[i] == dim) return true;
  }
  return false;
}

static void sum(const Node *node, const Arrays *arrays) {
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  for (int64_t i = 0; i < vl_tensor_elements(y); i++)
    arrays->outputs[0][i] = 0.0;
  for (int64_t i = 0; i < vl_tensor_elements(x); i++) {
    int64_t at[VL_MAX_DIMS] = {0}, kept[VL_MAX_DIMS] = {0};
    int32_t rank = 0;
    unravel(x, i, at);
    for (int32_t dim = 0; dim < x->rank; dim++) {
      if (!is_axis(&node->params, dim)) kept[rank++] = at[dim];
    }
    arrays->outputs[0][ravel(y, kept)] += arrays->inputs[0][i];
  }
}

static void broadcast(const Node *node, const Arrays *arrays) {
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  for (int64_t i = 0; i < vl_tensor_elements(y); i++) {
    int64_t at[VL_MAX_DIMS] = {0}, from[VL_MAX_DIMS] = {0};
    unravel(y, i, at);
    for (int32_t dim = 0; dim < x->rank; dim++) {
      from[dim] = x->shape[dim] == 1 ? 0 : at[dim + y->rank - x->rank];
    }
    arrays->outputs[0][i] = arrays->inputs[0][ravel(x, from)];
  }
}

static void reshape(const Node *node, const Arrays *arrays) {
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++) {
    arrays->outputs[0][i] = arrays->inputs[0][i]; /* a view reads and writes the same place */
  }
}

static void transpose(const Node *node, const Arrays *arrays) {
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  for (int64_t i = 0; i < vl_tensor_elements(y); i++) {
    int64_t at[VL_MAX_DIMS] = {0}, from[VL_MAX_DIMS] = {0};
    unravel(y, i, at);
    for (int32_t dim = 0; dim < y->rank; dim++)
      from[node->params.axes[dim]] = at[dim];
    arrays->outputs[0][i] = arrays->inputs[0][ravel(x, from)];
  }
}

static void slice(const Node *node, const Arrays *arrays) {
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  for (int64_t i = 0; i < vl_tensor_elements(y); i++) {
    int64_t at[VL_MAX_DIMS] = {0};
    unravel(y, i, at);
    for (int32_t dim = 0; dim < y->rank; dim++)
      at[dim] += node->params.start[dim];
    arrays->outputs[0][i] = arrays->inputs[0][ravel(x, at)];
  }
}

static void pad(const Node *node, const Arrays *arrays) {
  const Tensor *x = node->inputs[0], *y = node->outputs[0];
  for (int64_t i = 0; i < vl_tensor_elements(y); i++)
    arrays->outputs[0][i] = 0.0;
  for (int64_t i = 0; i < vl_tensor_elements(x); i++) {
    int64_t at[VL_MAX_DIMS] = {0};
    unravel(x, i, at);
    for (int32_t dim = 0; dim < x->rank; dim++)
      at[dim] += node->params.start[dim];
    arrays->outputs[0][ravel(y, at)] = arrays->inputs[0][i];
  }
}

static void concat(const Node *node, const Arrays *arrays) {
  const Tensor *y = node->outputs[0];
  int64_t first = 0, axis = node->params.axis;
  for (int32_t input = 0; input < node->input_count; input++) {
    const Tensor *x = node->inputs[input];
    for (int64_t i = 0; i < vl_tensor_elements(x); i++) {
      int64_t at[VL_MAX_DIMS] = {0};
      unravel(x, i, at);
      at[axis] += first;
      arrays->outputs[0][ravel(y, at)] = arrays->inputs[input][i];
    }
    first += x->shape[axis];
  }
}

/* Rows by number: every `each` indices pick from `rows` rows of their own. */
static void pick(const Node *node, const Arrays *arrays, int64_t each, int64_t rows) {
  int64_t count = vl_tensor_elements(node->inputs[1]);
  int64_t width = vl_tensor_elements(node->outputs[0]) / count;
  for (int64_t i = 0; i < count; i++) {
    int64_t from = i / each * rows + (int64_t)arrays->inputs[1][i];
    for (int64_t k = 0; k < width; k++)
      arrays->outputs[0][i * width + k] = arrays->inputs[0][from * width + k];
  }
}

/* The opposite of pick, on top of what the output holds. */
static void put(const Node *node, const Arrays *arrays, int64_t each, int64_t rows) {
  int64_t count = vl_tensor_elements(node->inputs[1]);
  int64_t width = vl_tensor_elements(node->inputs[0]) / count;
  for (int64_t i = 0; i < count; i++) {
    int64_t to = i / each * rows + (int64_t)arrays->inputs[1][i];
    for (int64_t k = 0; k < width; k++)
      arrays->outputs[0][to * width + k] += arrays->inputs[0][i * width + k];
  }
}

static void embedding(const Node *node, const Arrays *arrays) {
  pick(node, arrays, vl_tensor_elements(node->inputs[1]), node->inputs[0]->shape[0]);
}

static void embedding_backward(const Node *node, const Arrays *arrays) {
  const double *onto = node->input_count > 2 ? arrays->inputs[2] : NULL; /* may be the output */
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++)
    arrays->outputs[0][i] = onto ? onto[i] : 0.0;
  put(node, arrays, vl_tensor_elements(node->inputs[1]), node->outputs[0]->shape[0]);
}

static void gather_tokens(const Node *node, const Arrays *arrays) {
  pick(node, arrays, node->inputs[1]->shape[1], node->inputs[0]->shape[1]);
}

static void gather_tokens_backward(const Node *node, const Arrays *arrays) {
  for (int64_t i = 0; i < vl_tensor_elements(node->outputs[0]); i++)
    arrays->outputs[0][i] = 0.0;
  put(node, arrays, node->inputs[1]->shape[1], node->outputs[0]->shape[1]);
}

const ReferenceOp reference_shape_ops[] = {{"sum", sum},
                                           {"broadcast", broadcast},
                                           {"embedding", embedding},
                                           {"embedding_backward", embedding_backward},
                                           {"gather_tokens", gather_tokens},
                                           {"gather_tokens_backward", gather_tokens_backward},
                                           {"reshape", reshape},
                                           {"transpose", transpose},
                                           {"slice", slice},
                                           {"pad", pad},
                                           {"concat", concat},
                                           {NULL, NULL}};
