/* amp=bf16, amp=fp16: mixed precision with fp32 weights. Ops of the LOW class read their inputs in the low
 * type through casts made once per tensor, FP32 ops read fp32, PROMOTE ops follow their activations; norm
 * parameters, statistics and the loss stay fp32. Differentiation later turns each cast into a cast of the
 * gradient. (torch.autocast's scheme; Micikevicius et al., arXiv:1710.03740.) */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct Casts {
  Graph *graph;
  Tensor **low, **high; /* by tensor id: the cast made already */
  int32_t room;
} Casts;

/* The groups of a convolution whose weights the input is, 0 for other inputs. */
static int64_t groups_of(const Node *node, int32_t input) {
  bool convolves = strcmp(node->op->name, "conv") == 0 || strcmp(node->op->name, "conv_transpose") == 0;
  return convolves && input == 1 ? node->params.groups : 0;
}

static Status cast_input(Casts *casts, Node *node, int32_t input, DType dtype) {
  Graph *graph = casts->graph;
  Tensor *tensor = node->inputs[input];
  if (!tensor || !vl_dtype_is_float(tensor->dtype) || tensor->dtype == dtype) return vl_ok();
  Tensor **made =
      tensor->id < casts->room ? (dtype == DTYPE_F32 ? casts->high : casts->low) + tensor->id : NULL;
  if (!made || !*made) {
    OpParams params = {.dtype = dtype, .groups = groups_of(node, input)};
    Node *cast = NULL;
    graph->scope = tensor->storage->role == ROLE_PARAMETER ? tensor->storage->scope : node->scope;
    graph->block = node->block;
    VL_TRY(vl_graph_add(graph, "cast", &params, &tensor, 1, &cast));
    vl_graph_move_before(graph, cast, node);
    node->inputs[input] = cast->outputs[0];
    if (made) *made = cast->outputs[0];
    return vl_ok();
  }
  node->inputs[input] = *made;
  return vl_ok();
}

/* The low type when any activation input has it, else fp32. */
static DType widest_or_low(const Node *node, DType low) {
  bool has_low = false, has_high = false;
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *input = node->inputs[i];
    if (!input || input->storage->role != ROLE_ACTIVATION || !vl_dtype_is_float(input->dtype)) continue;
    has_low = has_low || input->dtype == low;
    has_high = has_high || input->dtype == DTYPE_F32;
  }
  return has_low && !has_high ? low : DTYPE_F32;
}

static Status lower_node(Casts *casts, Node *node, DType low) {
  switch (node->op->precision) {
  case PRECISION_LOW: /* operands; a bias may stay fp32, and attention's mask does */
    VL_TRY(cast_input(casts, node, 0, low));
    if (strcmp(node->op->name, "attention") != 0) VL_TRY(cast_input(casts, node, 1, low));
    if (strcmp(node->op->name, "matmul") == 0) node->params.dtype = low;
    if (strcmp(node->op->name, "conv_epilogue") == 0 && node->input_count > 3)
      VL_TRY(cast_input(casts, node, 3, low)); /* the residual is added to the result */
    break;
  case PRECISION_FP32:
    /* A branch is added to an fp32 residual as it is. */
    for (int32_t i = strcmp(node->op->name, "residual_norm") == 0 ? 1 : 0; i < node->input_count; i++)
      VL_TRY(cast_input(casts, node, i, DTYPE_F32));
    break;
  case PRECISION_PROMOTE:
    /* Norms mix a low activation with fp32 statistics; sums of two activations need one type. */
    if (strncmp(node->op->name, "batch_norm", 10) == 0) break;
    if (widest_or_low(node, low) == DTYPE_F32) {
      for (int32_t i = 0; i < node->input_count; i++)
        VL_TRY(cast_input(casts, node, i, DTYPE_F32));
    }
    break;
  case PRECISION_KEEP: break;
  }
  return vl_graph_infer_again(casts->graph, node);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_amp, value, "bf16, fp16");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  DType low = strcmp(value, "fp16") == 0 ? DTYPE_F16 : DTYPE_BF16;
  Graph *graph = program->graph;
  Casts casts = {.graph = graph, .room = graph->tensor_count};
  casts.low = vl_allocate((size_t)casts.room * sizeof(Tensor *));
  casts.high = vl_allocate((size_t)casts.room * sizeof(Tensor *));
  program->amp = low;
  program->cast_cache = true;
  Status status = vl_ok();
  for (int32_t i = 0; i < graph->node_count && status.code == VL_OK;) {
    Node *node = graph->nodes[i];
    status = lower_node(&casts, node, low);
    i = node->position + 1;
  }
  graph->block = 0;
  free(casts.low);
  free(casts.high);
  return status;
}

const Optimization optimization_amp = {
    .name = "amp",
    .also_called =
        "mixed precision, automatic mixed precision, autocast, bf16, fp16, float16, half precision",
    .turn_on = "with torch.autocast(device_type, dtype=torch.bfloat16):",
    .values = "bf16, fp16",
    .help = "convolutions and products in bf16 or fp16; weights, statistics and loss in fp32",
    .phase = PHASE_PRECISION,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
};
