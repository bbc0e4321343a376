/* One table per op. Sizes are small and unlike each other; at least one row of each op has tails in every
 * dimension a kernel may cut into pieces (channels not a multiple of 8, odd rows). */
#include "tests/kernels/rows.h"

#define ACTIVATION(...)                                                                                      \
  {                                                                                                          \
    .kind = OPERAND_ACTIVATION, .shape = { __VA_ARGS__ }                                                     \
  }
#define WEIGHT(...)                                                                                          \
  {                                                                                                          \
    .kind = OPERAND_WEIGHT, .shape = { __VA_ARGS__ }                                                         \
  }
#define F32(...)                                                                                             \
  {                                                                                                          \
    .kind = OPERAND_F32, .shape = { __VA_ARGS__ }                                                            \
  }
#define POSITIVE(...)                                                                                        \
  {                                                                                                          \
    .kind = OPERAND_F32, .values = VALUES_POSITIVE, .shape = { __VA_ARGS__ }                                 \
  }
#define STATE(...)                                                                                           \
  {                                                                                                          \
    .kind = OPERAND_STATE, .values = VALUES_POSITIVE, .shape = { __VA_ARGS__ }                               \
  }
/* Like STATE, of both signs. */
#define STATE_SIGNED(...)                                                                                    \
  {                                                                                                          \
    .kind = OPERAND_STATE, .shape = { __VA_ARGS__ }                                                          \
  }
#define LABELS(samples, classes)                                                                             \
  { .kind = OPERAND_LABELS, .values = VALUES_CLASSES, .shape = {samples}, .count = classes }

#define IGNORABLE_LABELS(samples, classes)                                                                   \
  { .kind = OPERAND_LABELS, .values = VALUES_IGNORABLE, .shape = {samples}, .count = classes }
#define IGNORED_LABELS(samples)                                                                              \
  { .kind = OPERAND_LABELS, .values = VALUES_IGNORED, .shape = {samples}, .count = 1 }
/* Of rank 0. */
#define SCALAR                                                                                               \
  { .kind = OPERAND_F32 }
#define INDICES(limit, ...)                                                                                  \
  {                                                                                                          \
    .kind = OPERAND_LABELS, .values = VALUES_CLASSES, .count = limit, .shape = { __VA_ARGS__ }               \
  }

/* ---- Graphs of more than one op ------------------------------------------------------------------------------- */

/* Operands x, gamma, beta, [residual]: statistics, then application. */
static Status normalised(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y) {
  Node *stats = NULL;
  VL_TRY(vl_graph_add(graph, "batch_norm_stats", NULL, operands, 1, &stats));
  Tensor *inputs[] = {operands[0], stats->outputs[0], stats->outputs[1],
                      operands[1], operands[2],       operands[3]};
  return vl_apply(graph, "batch_norm_apply", &row->params, inputs, operands[3] ? 6 : 5, y);
}

/* Operands x, then what the gradients of conv need; the weight gradient in f32 whatever x is. */
static Status weight_gradient_in_f32(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y) {
  OpParams params = row->params;
  params.dtype = DTYPE_F32;
  return vl_apply(graph, "conv_backward_weights", &params, operands, 2, y);
}

/* Operands table, ids: rows of the table, then their products with all of it. The projection's gradient
 * arrives at the table first. */
static Status tied(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y) {
  (void)row;
  VL_TRY(vl_apply(graph, "embedding", NULL, operands, 2, y));
  VL_TRY(vl_apply(graph, "gelu", NULL, y, 1, y));
  return vl_apply(graph, "linear", NULL, (Tensor *[]){*y, operands[0]}, 2, y);
}

static Status first_output(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y) {
  int32_t count = 0;
  while (operands[count])
    count++;
  Node *node = NULL;
  VL_TRY(vl_graph_add(graph, row->op, &row->params, operands, count, &node));
  *y = node->outputs[0];
  return vl_ok();
}

/* Operands logits and labels, twice: the sum of both losses. */
static Status sum_of_losses(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y) {
  (void)row;
  Node *first = NULL, *second = NULL;
  VL_TRY(vl_graph_add(graph, "softmax_cross_entropy", NULL, operands, 2, &first));
  VL_TRY(vl_graph_add(graph, "softmax_cross_entropy", NULL, operands + 2, 2, &second));
  return vl_apply(graph, "add", NULL, (Tensor *[]){first->outputs[0], second->outputs[0]}, 2, y);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

const OpRow op_rows[] = {
    {.op = "conv",
     .what = "3x3",
     .params = {.stride = {1, 1}, .padding = {1, 1}, .groups = 1},
     .operands = {ACTIVATION(2, 16, 9, 11), WEIGHT(32, 16, 3, 3)}},
    {.op = "conv",
     .what = "1x1 long sum",
     .params = {.stride = {1, 1}, .groups = 1},
     .operands = {ACTIVATION(2, 96, 7, 5), WEIGHT(64, 96, 1, 1)}},
    {.op = "conv",
     .what = "1x1 stride 2",
     .params = {.stride = {2, 2}, .groups = 1},
     .operands = {ACTIVATION(2, 32, 9, 8), WEIGHT(16, 32, 1, 1)}},
    {.op = "conv",
     .what = "3x3 stride 2",
     .params = {.stride = {2, 2}, .padding = {1, 1}, .groups = 1},
     .operands = {ACTIVATION(2, 16, 10, 9), WEIGHT(16, 16, 3, 3)}},
    {.op = "conv",
     .what = "7x7 stride 2, 3 channels",
     .params = {.stride = {2, 2}, .padding = {3, 3}, .groups = 1},
     .operands = {ACTIVATION(2, 3, 21, 18), WEIGHT(64, 3, 7, 7)}},
    {.op = "conv",
     .what = "odd channels",
     .params = {.stride = {1, 1}, .padding = {1, 1}, .groups = 1},
     .operands = {ACTIVATION(3, 5, 7, 6), WEIGHT(7, 5, 3, 3)}},
    {.op = "conv",
     .what = "one sample, one place",
     .params = {.stride = {1, 1}, .groups = 1},
     .operands = {ACTIVATION(1, 16, 3, 3), WEIGHT(16, 16, 3, 3)}},
    {.op = "conv",
     .what = "kernel 1x5, unequal strides",
     .params = {.stride = {1, 2}, .padding = {0, 2}, .groups = 1},
     .operands = {ACTIVATION(2, 8, 5, 9), WEIGHT(8, 8, 1, 5)}},
    {.op = "conv",
     .what = "groups 4",
     .params = {.stride = {1, 1}, .padding = {1, 1}, .groups = 4},
     .operands = {ACTIVATION(2, 32, 8, 7), WEIGHT(64, 8, 3, 3)}},
    {.op = "conv",
     .what = "groups 4, stride 2, odd groups",
     .params = {.stride = {2, 2}, .padding = {1, 1}, .groups = 4},
     .operands = {ACTIVATION(2, 12, 9, 7), WEIGHT(20, 3, 3, 3)}},
    {.op = "conv",
     .what = "depthwise",
     .params = {.stride = {1, 1}, .padding = {1, 1}, .groups = 32},
     .operands = {ACTIVATION(2, 32, 9, 8), WEIGHT(32, 1, 3, 3)}},
    {.op = "conv",
     .what = "depthwise, stride 2, odd",
     .params = {.stride = {2, 2}, .padding = {1, 1}, .groups = 13},
     .operands = {ACTIVATION(1, 13, 7, 8), WEIGHT(13, 1, 3, 3)}},
    {.op = "conv",
     .what = "3-D",
     .params = {.stride = {1, 1, 1}, .padding = {1, 1, 1}, .groups = 1},
     .operands = {ACTIVATION(1, 16, 5, 6, 7), WEIGHT(16, 16, 3, 3, 3)}},
    {.op = "conv",
     .what = "3-D groups 4",
     .params = {.stride = {2, 2, 2}, .padding = {1, 1, 1}, .groups = 4},
     .operands = {ACTIVATION(2, 16, 6, 5, 4), WEIGHT(32, 4, 3, 3, 3)}},
    {.op = "conv_backward_weights",
     .what = "into f32",
     .params = {.stride = {1, 1}, .padding = {1, 1}, .groups = 1, .shape = {32, 16, 3, 3}, .rank = 4},
     .operands = {ACTIVATION(2, 16, 9, 11), ACTIVATION(2, 32, 9, 11)},
     .build = weight_gradient_in_f32,
     .no_gradient = true},
    {.op = "conv_backward_weights",
     .what = "1x1",
     .params = {.stride = {1, 1}, .groups = 1, .shape = {64, 48, 1, 1}, .rank = 4},
     .operands = {ACTIVATION(2, 48, 9, 11), ACTIVATION(2, 64, 9, 11)},
     .build = weight_gradient_in_f32,
     .no_gradient = true},
    {.op = "conv_backward_weights",
     .what = "1x1, stride 2, odd",
     .params = {.stride = {2, 2}, .groups = 1, .shape = {32, 16, 1, 1}, .rank = 4},
     .operands = {ACTIVATION(3, 16, 9, 11), ACTIVATION(3, 32, 5, 6)},
     .build = weight_gradient_in_f32,
     .no_gradient = true},
    {.op = "conv_backward_weights",
     .what = "3x3, stride 2, odd",
     .params = {.stride = {2, 2}, .padding = {1, 1}, .groups = 1, .shape = {32, 32, 3, 3}, .rank = 4},
     .operands = {ACTIVATION(3, 32, 9, 11), ACTIVATION(3, 32, 5, 6)},
     .build = weight_gradient_in_f32,
     .no_gradient = true},
    {.op = "conv_backward_weights",
     .what = "one point",
     .params = {.stride = {1, 1}, .padding = {1, 1}, .groups = 1, .shape = {32, 16, 3, 3}, .rank = 4},
     .operands = {ACTIVATION(1, 16, 1, 1), ACTIVATION(1, 32, 1, 1)},
     .build = weight_gradient_in_f32,
     .no_gradient = true},
    {.op = "conv_backward_weights",
     .what = "several runs of points",
     .params = {.stride = {1, 1}, .padding = {1, 1}, .groups = 1, .shape = {32, 16, 3, 3}, .rank = 4},
     .operands = {ACTIVATION(3, 16, 29, 31), ACTIVATION(3, 32, 29, 31)},
     .build = weight_gradient_in_f32,
     .no_gradient = true},
    {.op = "conv_backward_weights",
     .what = "3-D, stride 1 2 1",
     .params =
         {.stride = {1, 2, 1}, .padding = {1, 1, 1}, .groups = 1, .shape = {32, 16, 3, 3, 3}, .rank = 5},
     .operands = {ACTIVATION(2, 16, 4, 5, 7), ACTIVATION(2, 32, 4, 3, 7)},
     .build = weight_gradient_in_f32,
     .no_gradient = true},
    {.op = "batch_norm",
     .what = "plain",
     .params = {.epsilon = 1e-5},
     .operands = {ACTIVATION(3, 16, 5, 7), POSITIVE(16), F32(16)},
     .build = normalised},
    {.op = "batch_norm",
     .what = "relu",
     .params = {.epsilon = 1e-5, .relu = 1},
     .operands = {ACTIVATION(2, 32, 6, 5), POSITIVE(32), F32(32)},
     .build = normalised},
    {.op = "batch_norm",
     .what = "residual",
     .params = {.epsilon = 1e-5},
     .operands = {ACTIVATION(2, 24, 4, 4), POSITIVE(24), F32(24), ACTIVATION(2, 24, 4, 4)},
     .build = normalised},
    {.op = "batch_norm",
     .what = "residual and relu",
     .params = {.epsilon = 1e-5, .relu = 1},
     .operands = {ACTIVATION(2, 16, 7, 6), POSITIVE(16), F32(16), ACTIVATION(2, 16, 7, 6)},
     .build = normalised},
    {.op = "batch_norm",
     .what = "odd channels, relu",
     .params = {.epsilon = 1e-3, .relu = 1},
     .operands = {ACTIVATION(3, 13, 3, 5), F32(13), F32(13)},
     .build = normalised},
    {.op = "batch_norm",
     .what = "long sum",
     .params = {.epsilon = 1e-5},
     .operands = {ACTIVATION(4, 8, 40, 37), POSITIVE(8), F32(8)},
     .build = normalised},
    {.op = "batch_norm",
     .what = "without space",
     .params = {.epsilon = 1e-5},
     .operands = {ACTIVATION(9, 10), POSITIVE(10), F32(10)},
     .build = normalised},
    {.op = "batch_norm",
     .what = "3-D, relu",
     .params = {.epsilon = 1e-5, .relu = 1},
     .operands = {ACTIVATION(2, 16, 3, 4, 5), POSITIVE(16), F32(16)},
     .build = normalised},
    {.op = "batch_norm_apply",
     .what = "running statistics",
     .params = {.epsilon = 1e-5, .relu = 1},
     .operands = {ACTIVATION(2, 20, 5, 3), STATE(20), STATE(20), STATE(20), STATE(20)},
     .no_gradient = true},
    {.op = "batch_norm_update",
     .what = "37 values a channel",
     .params = {.momentum = 0.1, .count = 37},
     .operands = {STATE(19), STATE(19), STATE(19), STATE(19), {.kind = OPERAND_COUNTER, .shape = {1}}},
     .no_gradient = true,
     .build = first_output},
    {.op = "relu", .what = "4-D", .operands = {ACTIVATION(2, 17, 5, 3)}},
    {.op = "relu", .what = "2-D", .operands = {ACTIVATION(7, 33)}},
    {.op = "gelu", .what = "4-D", .operands = {ACTIVATION(2, 19, 5, 3)}},
    {.op = "gelu", .what = "2-D", .operands = {ACTIVATION(5, 31)}},
    {.op = "add", .what = "4-D", .operands = {ACTIVATION(2, 18, 5, 3), ACTIVATION(2, 18, 5, 3)}},
    {.op = "add", .what = "1-D", .operands = {ACTIVATION(1021), ACTIVATION(1021)}},
    {.op = "add",
     .what = "two losses",
     .operands = {F32(5, 11), IGNORABLE_LABELS(5, 11), F32(3, 2), LABELS(3, 2)},
     .build = sum_of_losses},
    {.op = "mul", .what = "4-D", .operands = {ACTIVATION(2, 16, 5, 3), ACTIVATION(2, 16, 5, 3)}},
    {.op = "mul", .what = "2-D", .operands = {ACTIVATION(3, 37), ACTIVATION(3, 37)}},
    {.op = "scale",
     .what = "by a third",
     .params = {.alpha = 1.0 / 3.0},
     .operands = {ACTIVATION(2, 16, 3, 5)}},
    {.op = "scale", .what = "by a negative", .params = {.alpha = -2.5}, .operands = {ACTIVATION(41)}},
    {.op = "attention",
     .what = "odd sizes",
     .params = {.rate = 0.0},
     .operands = {ACTIVATION(2, 7, 3, 3, 5)},
     .build = first_output},
    {.op = "attention",
     .what = "one token",
     .params = {.rate = 0.25, .random_scope = "layer.attention"},
     .operands = {ACTIVATION(3, 1, 3, 2, 4)},
     .build = first_output},
    {.op = "attention",
     .what = "mask, dropout, scale",
     .params = {.alpha = 0.7, .rate = 0.1, .random_scope = "layer.attention"},
     .operands = {ACTIVATION(2, 19, 3, 2, 16), STATE_SIGNED(2, 19)},
     .build = first_output},
    {.op = "attention",
     .what = "several tiles of queries and keys",
     .params = {.rate = 0.1, .random_scope = "layer.attention"},
     .operands = {ACTIVATION(1, 277, 3, 1, 33), STATE_SIGNED(1, 277)},
     .build = first_output},
    {.op = "attention",
     .what = "as in BERT",
     .params = {.rate = 0.1, .random_scope = "layer.attention"},
     .operands = {ACTIVATION(1, 128, 3, 2, 64)},
     .build = first_output},
    {.op = "dropout",
     .what = "rate 0.5",
     .params = {.rate = 0.5, .random_scope = "layer.dropout"},
     .operands = {ACTIVATION(3, 16, 5, 7)}},
    {.op = "dropout",
     .what = "rate 0.1, odd",
     .params = {.rate = 0.1, .random_scope = "head.dropout"},
     .operands = {ACTIVATION(5, 13)}},
    {.op = "max_pool",
     .what = "3x3 stride 2, u8",
     .params = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .dtype = DTYPE_U8},
     .operands = {ACTIVATION(2, 16, 12, 11)},
     .build = first_output},
    {.op = "max_pool",
     .what = "3x3 stride 2, i64",
     .params = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .dtype = DTYPE_I64},
     .operands = {ACTIVATION(2, 16, 12, 11)},
     .build = first_output},
    {.op = "max_pool",
     .what = "2x2, odd channels",
     .params = {.kernel = {2, 2}, .stride = {2, 2}, .dtype = DTYPE_U8},
     .operands = {ACTIVATION(3, 5, 7, 9)},
     .build = first_output},
    {.op = "max_pool",
     .what = "2x3, odd channels, i64",
     .params = {.kernel = {2, 3}, .stride = {1, 2}, .padding = {0, 1}, .dtype = DTYPE_I64},
     .operands = {ACTIVATION(1, 7, 6, 9)},
     .build = first_output},
    {.op = "avg_pool",
     .what = "3x3 stride 2",
     .params = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
     .operands = {ACTIVATION(2, 16, 12, 11)}},
    {.op = "avg_pool",
     .what = "2x2, odd channels",
     .params = {.kernel = {2, 2}, .stride = {2, 2}},
     .operands = {ACTIVATION(3, 5, 7, 9)}},
    {.op = "global_avg_pool", .what = "7x7", .operands = {ACTIVATION(3, 48, 7, 7)}},
    {.op = "global_avg_pool", .what = "odd channels", .operands = {ACTIVATION(2, 11, 3, 5)}},
    {.op = "linear", .what = "with bias", .operands = {ACTIVATION(5, 37), WEIGHT(19, 37), F32(19)}},
    {.op = "linear", .what = "without bias", .operands = {ACTIVATION(4, 64), WEIGHT(32, 64)}},
    {.op = "linear", .what = "long sum", .operands = {ACTIVATION(2, 2048), WEIGHT(10, 2048), F32(10)}},
    {.op = "matmul",
     .what = "a b",
     .operands = {ACTIVATION(7, 19), ACTIVATION(19, 11)},
     .dtype_of_run = true},
    {.op = "matmul",
     .what = "a' b",
     .params = {.transpose_a = 1},
     .operands = {ACTIVATION(19, 7), ACTIVATION(19, 11)},
     .dtype_of_run = true},
    {.op = "matmul",
     .what = "a b'",
     .params = {.transpose_b = 1},
     .operands = {ACTIVATION(7, 19), ACTIVATION(11, 19)},
     .dtype_of_run = true},
    {.op = "matmul",
     .what = "a' b'",
     .params = {.transpose_a = 1, .transpose_b = 1},
     .operands = {ACTIVATION(19, 7), ACTIVATION(11, 19)},
     .dtype_of_run = true},
    {.op = "matmul",
     .what = "a' b into f32",
     .params = {.transpose_a = 1, .dtype = DTYPE_F32},
     .operands = {ACTIVATION(16, 7), ACTIVATION(16, 5)}},
    {.op = "matmul",
     .what = "batches",
     .params = {.transpose_b = 1},
     .operands = {ACTIVATION(2, 3, 5, 16), ACTIVATION(2, 3, 6, 16)},
     .dtype_of_run = true},
    {.op = "softmax_cross_entropy",
     .what = "10 classes",
     .operands = {F32(7, 10), LABELS(7, 10)},
     .build = first_output},
    {.op = "softmax_cross_entropy",
     .what = "1000 classes",
     .operands = {F32(3, 1000), LABELS(3, 1000)},
     .build = first_output},
    {.op = "softmax_cross_entropy",
     .what = "ignored rows",
     .operands = {F32(11, 37), IGNORABLE_LABELS(11, 37)},
     .build = first_output},
    {.op = "softmax_cross_entropy",
     .what = "no row counts",
     .operands = {F32(4, 9), IGNORED_LABELS(4)},
     .build = first_output,
     .no_gradient = true},
    {.op = "softmax_cross_entropy_backward",
     .what = "no row counts",
     .operands = {SCALAR, F32(4, 9), IGNORED_LABELS(4)},
     .no_gradient = true},
    {.op = "correct_count",
     .what = "some labels of no class",
     .operands = {F32(9, 13), IGNORABLE_LABELS(9, 13)},
     .no_gradient = true},
    {.op = "correct_count",
     .what = "13 classes",
     .operands = {F32(9, 13), LABELS(9, 13)},
     .no_gradient = true},
    {.op = "sum",
     .what = "rows",
     .params = {.axes = {0}, .axis_count = 1},
     .operands = {ACTIVATION(9, 23)},
     .dtype_of_run = true},
    {.op = "sum",
     .what = "inner and outer axes",
     .params = {.axes = {0, 2, 3}, .axis_count = 3},
     .operands = {ACTIVATION(2, 17, 5, 7)},
     .dtype_of_run = true},
    {.op = "sum",
     .what = "all, into f32",
     .params = {.axes = {0, 1, 2}, .axis_count = 3, .dtype = DTYPE_F32},
     .operands = {ACTIVATION(5, 7, 9)}},
    {.op = "sum",
     .what = "a middle axis",
     .params = {.axes = {1}, .axis_count = 1},
     .operands = {ACTIVATION(3, 6, 5)},
     .dtype_of_run = true},
    {.op = "broadcast",
     .what = "a row",
     .params = {.shape = {5, 17}, .rank = 2},
     .operands = {ACTIVATION(17)}},
    {.op = "broadcast",
     .what = "columns and new axes",
     .params = {.shape = {2, 3, 5, 7}, .rank = 4},
     .operands = {ACTIVATION(3, 1, 7)}},
    {.op = "reshape",
     .what = "flatten",
     .params = {.shape = {3, 60}, .rank = 2},
     .operands = {ACTIVATION(3, 4, 5, 3)}},
    {.op = "transpose", .what = "2-D", .params = {.axes = {1, 0}}, .operands = {ACTIVATION(7, 13)}},
    {.op = "transpose",
     .what = "heads",
     .params = {.axes = {0, 2, 1, 3}},
     .operands = {ACTIVATION(2, 5, 3, 4)}},
    {.op = "slice",
     .what = "a box",
     .params = {.start = {0, 2, 1, 0}, .shape = {2, 5, 3, 4}, .rank = 4},
     .operands = {ACTIVATION(2, 9, 5, 4)}},
    {.op = "pad",
     .what = "a box",
     .params = {.start = {1, 0, 2}, .shape = {4, 5, 9}, .rank = 3},
     .operands = {ACTIVATION(2, 5, 6)}},
    {.op = "embedding", .what = "every row many times", .operands = {ACTIVATION(7, 37), INDICES(7, 5, 3, 4)}},
    {.op = "embedding", .what = "wide, most rows unused", .operands = {F32(131, 261), INDICES(131, 3, 5)}},
    {.op = "embedding", .what = "one column", .operands = {F32(9, 1), INDICES(9, 23)}},
    {.op = "embedding", .what = "large", .operands = {ACTIVATION(301, 72), INDICES(301, 2, 77)}},
    {.op = "embedding",
     .what = "tied",
     .operands = {F32(13, 35), INDICES(13, 29)},
     .build = tied,
     .f32_only = true},
    {.op = "gather_tokens", .what = "odd sizes", .operands = {ACTIVATION(3, 11, 37), INDICES(11, 3, 5)}},
    {.op = "gather_tokens",
     .what = "rows longer than a tile, taken often",
     .operands = {ACTIVATION(2, 3, 1045), INDICES(3, 2, 9)}},
    {.op = "cast", .what = "to bf16", .params = {.dtype = DTYPE_BF16}, .operands = {ACTIVATION(2, 16, 5, 3)}},
    {.op = "cast", .what = "to f32", .params = {.dtype = DTYPE_F32}, .operands = {ACTIVATION(3, 13, 3, 5)}},
    {.op = "copy", .what = "4-D", .operands = {ACTIVATION(2, 21, 5, 3)}},
    {.op = "fill",
     .what = "a tenth",
     .params = {.shape = {3, 5}, .rank = 2, .alpha = 0.1},
     .dtype_of_run = true,
     .no_gradient = true},
    {.op = "sgd",
     .what = "first steps",
     .params = {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 1e-4},
     .operands = {STATE(5, 7, 3), STATE(5, 7, 3), STATE(5, 7, 3)},
     .build = first_output,
     .no_gradient = true,
     .f32_only = true},
    {.op = "adamw",
     .what = "odd sizes",
     .params = {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 1e-2},
     .operands = {STATE_SIGNED(5, 7, 3), STATE_SIGNED(5, 7, 3), STATE_SIGNED(5, 7, 3), STATE(5, 7, 3)},
     .build = first_output,
     .no_gradient = true,
     .f32_only = true},
    {.op = "adamw",
     .what = "several tiles, no decay",
     .params = {.learning_rate = 1e-3, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 0.1},
     .operands = {STATE_SIGNED(3, 5, 691), STATE_SIGNED(3, 5, 691), STATE_SIGNED(3, 5, 691),
                  STATE(3, 5, 691)},
     .build = first_output,
     .no_gradient = true,
     .f32_only = true},
};
const int32_t op_row_count = sizeof op_rows / sizeof *op_rows;
