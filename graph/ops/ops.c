/* What ops share: checks with messages that name the place, outputs, and nodes of gradients. */
#include "graph/ops/ops.h"

#include <stdio.h>
#include <string.h>

/* So that bits, and with them bytes, of a tensor fit in 63 bits. */
static const int64_t max_elements = INT64_MAX / 64;
/* Windows larger than this are mistakes; sums of sizes stay far from overflow. */
static const int64_t max_window = INT32_MAX;

Status op_error(StatusCode code, const Node *node, const char *format, ...) {
  char message[VL_STATUS_MESSAGE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  const char *scope = node->scope != NULL && node->scope[0] != '\0' ? node->scope : "the model";
  return vl_error(code, "%s in %.128s: %.320s", node->op->name, scope, message);
}

Status op_check_input(const Node *node, int32_t index, const char *name, int32_t rank) {
  const Tensor *tensor = index < node->input_count ? node->inputs[index] : NULL;
  if (tensor == NULL) return op_error(VL_INVALID, node, "input %s is missing", name);
  if (rank >= 0 && tensor->rank != rank) {
    char text[96];
    vl_tensor_describe(tensor, text, sizeof text);
    return op_error(VL_INVALID, node, "%s has %d dimensions, %s; expected %d", name, tensor->rank, text,
                    rank);
  }
  return vl_ok();
}

Status op_check_float_input(const Node *node, int32_t index, const char *name, int32_t rank) {
  VL_TRY(op_check_input(node, index, name, rank));
  DType dtype = node->inputs[index]->dtype;
  if (!vl_dtype_is_float(dtype))
    return op_error(VL_INVALID, node, "%s is %s; expected a floating-point type", name, vl_dtype_name(dtype));
  return vl_ok();
}

Status op_check_vector(const Node *node, int32_t index, const char *name, int64_t size, DType dtype) {
  VL_TRY(op_check_sizes(node, index, name, 1, &size));
  DType found = node->inputs[index]->dtype;
  if (found != dtype)
    return op_error(VL_INVALID, node, "%s is %s; expected %s", name, vl_dtype_name(found),
                    vl_dtype_name(dtype));
  return vl_ok();
}

Status op_check_alike(const Node *node, int32_t a, int32_t b) {
  VL_TRY(op_check_float_input(node, a, "first input", -1));
  VL_TRY(op_check_float_input(node, b, "second input", -1));
  const Tensor *first = node->inputs[a], *second = node->inputs[b];
  if (!vl_tensor_same_shape(first, second) || first->dtype != second->dtype) {
    char left[96], right[96];
    vl_tensor_describe(first, left, sizeof left);
    vl_tensor_describe(second, right, sizeof right);
    return op_error(VL_INVALID, node, "%s %s and %s %s must agree in shape and type", first->name, left,
                    second->name, right);
  }
  return vl_ok();
}

Status op_check_sizes(const Node *node, int32_t index, const char *name, int32_t rank, const int64_t *shape) {
  VL_TRY(op_check_input(node, index, name, -1));
  const Tensor *tensor = node->inputs[index];
  bool same = tensor->rank == rank;
  for (int32_t i = 0; same && i < rank; i++)
    same = tensor->shape[i] == shape[i];
  if (same) return vl_ok();
  Tensor expected = {.dtype = tensor->dtype, .rank = rank};
  for (int32_t i = 0; i < rank; i++)
    expected.shape[i] = shape[i];
  char found_text[96], expected_text[96];
  vl_tensor_describe(tensor, found_text, sizeof found_text);
  vl_tensor_describe(&expected, expected_text, sizeof expected_text);
  return op_error(VL_INVALID, node, "%s is %s; expected %s", name, found_text, expected_text);
}

Status op_check_shape(const Node *node, int64_t rank, const int64_t *shape) {
  if (rank < 0 || rank > VL_MAX_DIMS)
    return op_error(VL_INVALID, node, "a shape of %lld dimensions; 0 to %d are possible", (long long)rank,
                    VL_MAX_DIMS);
  int64_t elements = 1;
  for (int64_t i = 0; i < rank; i++) {
    if (shape[i] < 1)
      return op_error(VL_INVALID, node, "size %lld of dimension %lld; must be at least 1",
                      (long long)shape[i], (long long)i);
    if (shape[i] > max_elements / elements)
      return op_error(VL_INVALID, node, "size %lld of dimension %lld makes more than %lld elements",
                      (long long)shape[i], (long long)i, (long long)max_elements);
    elements *= shape[i];
  }
  return vl_ok();
}

Status op_check_float_dtype(const Node *node) {
  int64_t dtype = node->params.dtype;
  if (dtype < 0 || dtype >= DTYPE_COUNT || !vl_dtype_is_float((DType)dtype))
    return op_error(VL_INVALID, node, "dtype %lld of the output is not a floating-point type",
                    (long long)dtype);
  return vl_ok();
}

Status op_check_flag(const Node *node, const char *name, int64_t value) {
  if (value == 0 || value == 1) return vl_ok();
  return op_error(VL_INVALID, node, "%s = %lld; must be 0 or 1", name, (long long)value);
}

Status op_check_channels(const Node *node, int32_t index, const char *name, int64_t channels) {
  VL_TRY(op_check_float_input(node, index, name, 1));
  return op_check_sizes(node, index, name, 1, &channels);
}

Status op_check_bias(const Node *node, int32_t index, int64_t channels) {
  if (node->input_count <= index || node->inputs[index] == NULL) return vl_ok();
  VL_TRY(op_check_sizes(node, index, "bias", 1, &channels));
  DType dtype = node->inputs[index]->dtype, of_x = node->inputs[0]->dtype;
  if (dtype == of_x || dtype == DTYPE_F32) return vl_ok();
  return op_error(VL_INVALID, node, "bias is %s; must be %s or f32", vl_dtype_name(dtype),
                  vl_dtype_name(of_x));
}

Status op_check_epsilon(const Node *node) {
  if (node->params.epsilon >= 0) return vl_ok();
  return op_error(VL_INVALID, node, "epsilon = %g; must be at least 0", node->params.epsilon);
}

Status op_check_window(const Node *node, int32_t dimension, int64_t kernel) {
  int64_t stride = node->params.stride[dimension], padding = node->params.padding[dimension];
  if (kernel >= 1 && kernel <= max_window && stride >= 1 && stride <= max_window && padding >= 0 &&
      padding <= max_window)
    return vl_ok();
  return op_error(VL_INVALID, node,
                  "kernel %lld, stride %lld, padding %lld of spatial dimension %d; kernel and stride must "
                  "be at least 1, padding at least 0, none above %lld",
                  (long long)kernel, (long long)stride, (long long)padding, dimension, (long long)max_window);
}

Status op_window_sizes(const Node *node, int32_t spatial, const int64_t *input, const int64_t *kernel,
                       int64_t *output) {
  for (int32_t i = 0; i < spatial; i++) {
    int64_t stride = node->params.stride[i], padding = node->params.padding[i];
    VL_TRY(op_check_window(node, i, kernel[i]));
    if (kernel[i] > input[i] + 2 * padding)
      return op_error(VL_INVALID, node, "kernel %lld is larger than the input %lld with padding %lld, %lld",
                      (long long)kernel[i], (long long)input[i], (long long)padding,
                      (long long)(input[i] + 2 * padding));
    output[i] = (input[i] + 2 * padding - kernel[i]) / stride + 1;
  }
  return vl_ok();
}

/* "<scope>.<op>.<part>" without the parts that are empty. */
static const char *output_name(Graph *graph, const Node *node, const char *part) {
  const char *scope = node->scope != NULL ? node->scope : "";
  return vl_arena_format(graph->arena, "%s%s%s%s%s", scope, scope[0] != '\0' ? "." : "", node->op->name,
                         part != NULL ? "." : "", part != NULL ? part : "");
}

Status op_add_output(Graph *graph, Node *node, const char *part, DType dtype, int64_t rank,
                     const int64_t *shape) {
  VL_TRY(op_check_shape(node, rank, shape));
  node->outputs[node->output_count++] =
      vl_graph_tensor(graph, output_name(graph, node, part), ROLE_ACTIVATION, dtype, (int32_t)rank, shape);
  return vl_ok();
}

Status op_add_output_like(Graph *graph, Node *node, const char *part, const Tensor *like) {
  return op_add_output(graph, node, part, like->dtype, like->rank, like->shape);
}

Status op_add_view(Graph *graph, Node *node, const char *part, Tensor *of, int64_t rank,
                   const int64_t *shape) {
  VL_TRY(op_check_shape(node, rank, shape));
  node->outputs[node->output_count++] =
      vl_graph_view(graph, output_name(graph, node, part), of, (int32_t)rank, shape, 0);
  return vl_ok();
}

Status op_gradient_node(Gradients *gradients, const Node *of, const char *op, const OpParams *params,
                        Tensor *const *inputs, int32_t input_count, Tensor **out) {
  gradients->graph->scope = of->scope;
  Node *node;
  VL_TRY(vl_graph_add(gradients->graph, op, params, inputs, input_count, &node));
  *out = node->outputs[0];
  return vl_ok();
}

Status op_gradient_cast(Gradients *gradients, const Node *of, Tensor *tensor, DType dtype, Tensor **out) {
  *out = tensor;
  if (tensor->dtype == dtype) return vl_ok();
  OpParams params = {.dtype = dtype};
  return op_gradient_node(gradients, of, "cast", &params, &tensor, 1, out);
}

Status op_gradient_give(Gradients *gradients, const Node *of, int32_t index, Tensor *gradient) {
  Tensor *input = of->inputs[index], *converted;
  VL_TRY(op_gradient_cast(gradients, of, gradient, input->dtype, &converted));
  gradients->graph->scope = of->scope;
  return vl_gradient_accumulate(gradients, input, converted);
}

Status op_gradient_give_bias(Gradients *gradients, const Node *of, int32_t index, Tensor *dy,
                             int32_t channels) {
  if (!op_gradient_wanted(gradients, of, index)) return vl_ok();
  OpParams params = {.dtype = of->inputs[index]->dtype};
  for (int32_t i = 0; i < dy->rank; i++)
    if (i != channels) params.axes[params.axis_count++] = i;
  Tensor *db;
  VL_TRY(op_gradient_node(gradients, of, "sum", &params, &dy, 1, &db));
  return op_gradient_give(gradients, of, index, db);
}

bool op_gradient_wanted(const Gradients *gradients, const Node *of, int32_t index) {
  return index < of->input_count && of->inputs[index] != NULL &&
         vl_gradient_needed(gradients, of->inputs[index]);
}

void op_set_shape(OpParams *params, const Tensor *tensor) {
  memset(params->shape, 0, sizeof params->shape);
  for (int32_t i = 0; i < tensor->rank; i++)
    params->shape[i] = tensor->shape[i];
  params->rank = tensor->rank;
}

int64_t op_multiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

DType op_statistics_dtype(DType x) { return x == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32; }

int64_t op_no_flops(const Node *node) {
  (void)node;
  return 0;
}
