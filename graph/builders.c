/* Short forms cases use to append nodes. */
#include "graph/graph.h"

Status vl_apply(Graph *graph, const char *op, const OpParams *params, Tensor *const *inputs,
                int32_t input_count, Tensor **out) {
  Node *node;
  VL_TRY(vl_graph_add(graph, op, params, inputs, input_count, &node));
  if (node->output_count != 1)
    return vl_error(VL_INVALID, "%s in %s has %d outputs; vl_apply is for ops with one", op, node->scope,
                    node->output_count);
  *out = node->outputs[0];
  return vl_ok();
}

static OpParams window_params(const Tensor *x, int64_t stride, int64_t padding, int64_t groups) {
  OpParams params = {.groups = groups};
  for (int32_t i = 0; i < x->rank - 2; i++) {
    params.stride[i] = stride;
    params.padding[i] = padding;
  }
  return params;
}

Status vl_conv(Graph *graph, Tensor *x, Tensor *weight, int64_t stride, int64_t padding, int64_t groups,
               Tensor **out) {
  OpParams params = window_params(x, stride, padding, groups);
  return vl_apply(graph, "conv", &params, (Tensor *[]){x, weight}, 2, out);
}

Status vl_conv_transpose(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias, int64_t stride,
                         int64_t padding, int64_t groups, Tensor **out) {
  OpParams params = window_params(x, stride, padding, groups);
  return vl_apply(graph, "conv_transpose", &params, (Tensor *[]){x, weight, bias}, bias ? 3 : 2, out);
}

Status vl_concat(Graph *graph, Tensor *const *inputs, int32_t input_count, int64_t axis, Tensor **out) {
  return vl_apply(graph, "concat", &(OpParams){.axis = axis}, inputs, input_count, out);
}

typedef struct BatchNorm {
  Tensor *gamma, *beta, *running_mean, *running_var, *batches;
} BatchNorm;

static Tensor *add_persistent(Graph *graph, const char *name, Role role, DType dtype, int64_t size,
                              double value) {
  char text[320];
  snprintf(text, sizeof text, "%s%s%s", graph->scope, graph->scope[0] != '\0' ? "." : "", name);
  Init init = {.kind = value == 0 ? INIT_ZERO : INIT_CONSTANT, .value = value};
  return vl_graph_parameter(graph, text, role, dtype, 1, &size, init);
}

/* PyTorch's names and initial values, the same in training and evaluation, so that both share one State. */
static BatchNorm add_state(Graph *graph, const Tensor *x) {
  DType dtype = x->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
  int64_t channels = x->shape[1];
  return (BatchNorm){
      .gamma = add_persistent(graph, "weight", ROLE_PARAMETER, dtype, channels, 1),
      .beta = add_persistent(graph, "bias", ROLE_PARAMETER, dtype, channels, 0),
      .running_mean = add_persistent(graph, "running_mean", ROLE_STATISTIC, dtype, channels, 0),
      .running_var = add_persistent(graph, "running_var", ROLE_STATISTIC, dtype, channels, 1),
      .batches = add_persistent(graph, "num_batches_tracked", ROLE_STATISTIC, DTYPE_I64, 1, 0),
  };
}

static Status add_apply(Graph *graph, Tensor *x, Tensor *mean, Tensor *var, const BatchNorm *state,
                        double epsilon, Tensor **out) {
  OpParams params = {.epsilon = epsilon};
  return vl_apply(graph, "batch_norm_apply", &params, (Tensor *[]){x, mean, var, state->gamma, state->beta},
                  5, out);
}

Status vl_batch_norm(Graph *graph, Tensor *x, bool training, double epsilon, double momentum, Tensor **out) {
  if (x->rank < 2)
    return vl_error(VL_INVALID, "batch norm in %s: %s has %d dimensions; at least 2 (N, C) are needed",
                    graph->scope, x->name, x->rank);
  BatchNorm state = add_state(graph, x);
  if (!training) return add_apply(graph, x, state.running_mean, state.running_var, &state, epsilon, out);
  Node *stats;
  VL_TRY(vl_graph_add(graph, "batch_norm_stats", NULL, &x, 1, &stats));
  Tensor *mean = stats->outputs[0], *var = stats->outputs[1];
  VL_TRY(add_apply(graph, x, mean, var, &state, epsilon, out));
  OpParams update = {.momentum = momentum, .count = vl_tensor_elements(x) / x->shape[1]};
  return vl_graph_add(graph, "batch_norm_update", &update,
                      (Tensor *[]){mean, var, state.running_mean, state.running_var, state.batches}, 5, NULL);
}

Status vl_instance_norm(Graph *graph, Tensor *x, double epsilon, Tensor **out) {
  if (x->rank < 3)
    return vl_error(VL_INVALID, "instance norm in %s: %s has %d dimensions; at least 3 are needed",
                    graph->scope, x->name, x->rank);
  DType dtype = x->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
  OpParams params = {.epsilon = epsilon};
  Tensor *inputs[] = {x, add_persistent(graph, "weight", ROLE_PARAMETER, dtype, x->shape[1], 1),
                      add_persistent(graph, "bias", ROLE_PARAMETER, dtype, x->shape[1], 0)};
  Node *node;
  VL_TRY(vl_graph_add(graph, "instance_norm", &params, inputs, 3, &node));
  *out = node->outputs[0];
  return vl_ok();
}
