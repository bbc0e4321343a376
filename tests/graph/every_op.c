#include "every_op.h"

static Tensor *input(Graph *graph, const char *name, DType dtype, int32_t rank, const int64_t *shape) {
  return vl_graph_tensor(graph, name, ROLE_INPUT, dtype, rank, shape);
}

static Tensor *parameter(Graph *graph, const char *name, int32_t rank, const int64_t *shape) {
  Init init = {.kind = INIT_UNIFORM, .value = 0.1}; /* 0.1 is no binary fraction: all its digits matter */
  return vl_graph_parameter(graph, name, ROLE_PARAMETER, DTYPE_F32, rank, shape, init);
}

static Status unary(Graph *graph, const char *op, const OpParams *params, Tensor **x) {
  vl_graph_set_scope(graph, "unary.%s", op);
  return vl_apply(graph, op, params, x, 1, x);
}

/* conv, batch norm and relu in separate nodes, then max pooling: (2, 3, 8, 8) to (2, 4, 4, 4). */
static Status build_stem(Graph *graph, Tensor **x) {
  vl_graph_set_scope(graph, "stem.conv");
  Tensor *w = parameter(graph, "stem.conv.weight", 4, (int64_t[]){4, 3, 3, 3});
  VL_TRY(vl_conv(graph, *x, w, 1, 1, 1, x));
  vl_graph_set_scope(graph, "stem.bn");
  VL_TRY(vl_batch_norm(graph, *x, true, 1e-5, 0.1, x));
  VL_TRY(unary(graph, "relu", NULL, x));
  graph->nodes[graph->node_count - 1]->inplace_hint = true;
  graph->nodes[graph->node_count - 1]->hold = HOLD_FORWARD;
  vl_graph_set_scope(graph, "stem.pool");
  OpParams pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .dtype = DTYPE_U8};
  Node *node;
  VL_TRY(vl_graph_add(graph, "max_pool", &pool, x, 1, &node));
  *x = node->outputs[0];
  return vl_ok();
}

/* A grouped conv and a batch norm that ends in residual addition and ReLU. */
static Status build_block(Graph *graph, Tensor **x) {
  graph->block = graph->block_count = 1;
  Tensor *residual = *x;
  vl_graph_set_scope(graph, "block.conv");
  Tensor *w = parameter(graph, "block.conv.weight", 4, (int64_t[]){4, 2, 3, 3});
  VL_TRY(vl_conv(graph, *x, w, 1, 1, 2, x));
  vl_graph_set_scope(graph, "block.up");
  Tensor *up = parameter(graph, "block.up.weight", 4, (int64_t[]){4, 2, 3, 3}),
         *bias = parameter(graph, "block.up.bias", 1, (int64_t[]){4});
  VL_TRY(vl_conv_transpose(graph, *x, up, bias, 1, 1, 2, x));
  vl_graph_set_scope(graph, "block.bn");
  Node *stats;
  VL_TRY(vl_graph_add(graph, "batch_norm_stats", NULL, x, 1, &stats));
  Tensor *gamma = parameter(graph, "block.bn.weight", 1, (int64_t[]){4});
  Tensor *beta = parameter(graph, "block.bn.bias", 1, (int64_t[]){4});
  OpParams params = {.epsilon = 1e-5, .relu = 1};
  VL_TRY(unary(graph, "magnitude", &(OpParams){.epsilon = 1e-5}, &gamma));
  Tensor *inputs[] = {*x, stats->outputs[0], stats->outputs[1], gamma, beta, residual};
  VL_TRY(vl_apply(graph, "batch_norm_apply", &params, inputs, 6, x));
  VL_TRY(
      vl_graph_add(graph, "batch_norm_invert", &(OpParams){.epsilon = 1e-5, .alpha = 0.01}, inputs, 5, NULL));
  Derivation converted = {DERIVED_CONVERTED, {w->storage}, 0.1};
  w = vl_graph_derived(graph, "block.conv.weight.again", DTYPE_F32, 4, w->shape, &converted);
  w->storage->frozen = true; /* no loss reads it */
  OpParams epilogue = {.stride = {1, 1}, .padding = {1, 1}, .groups = 2, .relu = 1};
  VL_TRY(vl_graph_add(graph, "conv_epilogue", &epilogue, (Tensor *[]){residual, w, beta, residual}, 4, NULL));
  graph->block = 0;
  return vl_ok();
}

static Status build_elementwise(Graph *graph, Tensor **x) {
  VL_TRY(unary(graph, "gelu", NULL, x));
  VL_TRY(unary(graph, "tanh", NULL, x));
  VL_TRY(unary(graph, "rsqrt", &(OpParams){.epsilon = 3.0}, x));
  VL_TRY(unary(graph, "scale", &(OpParams){.alpha = 1.0 / 3.0}, x));
  Node *dropout;
  vl_graph_set_scope(graph, "unary.dropout");
  OpParams stored = {.rate = 0.1, .alpha = 1, .random_scope = "block.dropout"};
  VL_TRY(vl_graph_add(graph, "dropout", &stored, x, 1, &dropout));
  *x = dropout->outputs[0];
  VL_TRY(unary(graph, "copy", NULL, x));
  vl_graph_set_scope(graph, "block.ln");
  Tensor *gamma = parameter(graph, "block.ln.weight", 1, (int64_t[]){4});
  Tensor *beta = parameter(graph, "block.ln.bias", 1, (int64_t[]){4});
  Node *norm;
  VL_TRY(vl_graph_add(graph, "layer_norm", &(OpParams){.epsilon = 1e-12}, (Tensor *[]){*x, gamma, beta}, 3,
                      &norm));
  *x = norm->outputs[0];
  OpParams dropped = {.epsilon = 1e-12, .rate = 0.1, .random_scope = "block.branch"};
  VL_TRY(vl_graph_add(graph, "residual_norm", &dropped, (Tensor *[]){*x, *x, gamma, beta}, 4, &norm));
  *x = norm->outputs[0];
  vl_graph_set_scope(graph, "twice");
  VL_TRY(vl_apply(graph, "mul", NULL, (Tensor *[]){*x, *x}, 2, x));
  VL_TRY(vl_apply(graph, "add", NULL, (Tensor *[]){*x, *x}, 2, x));
  vl_graph_set_scope(graph, "block.in");
  VL_TRY(vl_instance_norm(graph, *x, 1e-5, x));
  OpParams pool = {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}};
  VL_TRY(unary(graph, "avg_pool", &pool, x));
  return unary(graph, "global_avg_pool", NULL, x);
}

/* (2, 3, 4) as a token of queries, keys and values. */
static Status build_attention(Graph *graph, Tensor **x) {
  VL_TRY(unary(graph, "reshape", &(OpParams){.shape = {2, 1, 3, 2, 2}, .rank = 5}, x));
  vl_graph_set_scope(graph, "attention");
  Tensor *mask = input(graph, "mask", DTYPE_F32, 2, (int64_t[]){2, 1});
  OpParams params = {.alpha = 0.1, .rate = 0.1, .random_scope = "attention.dropout"};
  Node *node;
  VL_TRY(vl_graph_add(graph, "attention", &params, (Tensor *[]){*x, mask}, 2, &node));
  *x = node->outputs[0];
  VL_TRY(unary(graph, "reshape", &(OpParams){.shape = {2, 1, 4}, .rank = 3}, x));
  return unary(graph, "broadcast", &(OpParams){.shape = {2, 3, 4}, .rank = 3}, x);
}

/* (2, 4) there and back through every op that moves values. */
static Status build_moves(Graph *graph, Tensor **x) {
  VL_TRY(unary(graph, "cast", &(OpParams){.dtype = DTYPE_BF16}, x));
  VL_TRY(unary(graph, "cast", &(OpParams){.dtype = DTYPE_F32}, x));
  VL_TRY(unary(graph, "slice", &(OpParams){.start = {0, 1}, .shape = {2, 2}, .rank = 2}, x));
  VL_TRY(unary(graph, "pad", &(OpParams){.start = {0, 1}, .shape = {2, 4}, .rank = 2}, x));
  vl_graph_set_scope(graph, "joined");
  VL_TRY(vl_concat(graph, (Tensor *[]){*x, *x}, 2, 0, x));
  VL_TRY(unary(graph, "slice", &(OpParams){.start = {1, 0}, .shape = {2, 4}, .rank = 2}, x));
  VL_TRY(unary(graph, "reshape", &(OpParams){.shape = {2, 1, 4}, .rank = 3}, x));
  VL_TRY(unary(graph, "broadcast", &(OpParams){.shape = {2, 3, 4}, .rank = 3}, x));
  VL_TRY(build_attention(graph, x));
  Tensor *other = *x;
  VL_TRY(unary(graph, "transpose", &(OpParams){.axes = {0, 2, 1}}, &other));
  vl_graph_set_scope(graph, "product");
  OpParams product = {.transpose_a = 1, .transpose_b = 1, .dtype = DTYPE_F32};
  VL_TRY(vl_apply(graph, "matmul", &product, (Tensor *[]){*x, other}, 2, x));
  return unary(graph, "sum", &(OpParams){.axes = {2}, .axis_count = 1, .dtype = DTYPE_F32}, x);
}

/* x times rows of a table: two of three tokens, added up. */
static Status build_tokens(Graph *graph, Tensor **x) {
  vl_graph_set_scope(graph, "tokens");
  Tensor *table = parameter(graph, "tokens.weight", 2, (int64_t[]){7, 4}), *rows;
  Tensor *ids = input(graph, "ids", DTYPE_I32, 2, (int64_t[]){2, 3});
  Tensor *positions = input(graph, "positions", DTYPE_I32, 2, (int64_t[]){2, 2});
  VL_TRY(vl_apply(graph, "embedding", NULL, (Tensor *[]){table, ids}, 2, &rows));
  VL_TRY(vl_apply(graph, "gather_tokens", NULL, (Tensor *[]){rows, positions}, 2, &rows));
  OpParams params = {.axes = {1}, .axis_count = 1, .dtype = DTYPE_F32};
  VL_TRY(vl_apply(graph, "sum", &params, &rows, 1, &rows));
  VL_TRY(unary(graph, "softmax", &(OpParams){.alpha = 1.0 / 7.0}, &rows));
  return vl_apply(graph, "mul", NULL, (Tensor *[]){*x, rows}, 2, x);
}

static Status build_head(Graph *graph, Tensor *x, Program *program) {
  vl_graph_set_scope(graph, "head");
  Tensor *w = parameter(graph, "head.weight", 2, (int64_t[]){5, 4});
  Tensor *b = parameter(graph, "head.bias", 1, (int64_t[]){5});
  VL_TRY(vl_apply(graph, "linear", NULL, (Tensor *[]){x, w, b}, 3, &program->logits));
  Tensor *labels = input(graph, "labels", DTYPE_I32, 1, (int64_t[]){2});
  Tensor *inputs[] = {program->logits, labels}, *count;
  VL_TRY(vl_apply(graph, "correct_count", NULL, inputs, 2, &count));
  Node *loss, *dice;
  VL_TRY(vl_graph_add(graph, "softmax_cross_entropy", NULL, inputs, 2, &loss));
  OpParams dice_params = {.alpha = 1.0 / 3.0, .epsilon = 1e-5};
  VL_TRY(vl_graph_add(graph, "dice_cross_entropy", &dice_params, inputs, 2, &dice));
  return vl_apply(graph, "add", NULL, (Tensor *[]){loss->outputs[0], dice->outputs[0]}, 2, &program->loss);
}

/* A matrix that no loss reads, since those that do are too small for moments in 8 bits. */
static Status build_8bit_update(Graph *graph) {
  const int64_t shape[] = {3, 100}, scales[] = {2, 2};
  vl_graph_set_scope(graph, "coded");
  Tensor *inputs[] = {
      parameter(graph, "coded.weight", 2, shape), input(graph, "coded.weight.grad", DTYPE_F32, 2, shape),
      vl_graph_parameter(graph, "coded.weight.exp_avg", ROLE_OPTIMIZER, DTYPE_U8, 2, shape, (Init){0}),
      vl_graph_parameter(graph, "coded.weight.exp_avg_sq", ROLE_OPTIMIZER, DTYPE_U8, 2, shape, (Init){0}),
      vl_graph_parameter(graph, "coded.weight.absmax", ROLE_OPTIMIZER, DTYPE_F32, 2, scales, (Init){0})};
  OptimizerSettings adamw = vl_optimizer_adamw();
  OpParams params = {.learning_rate = adamw.learning_rate,
                     .weight_decay = adamw.weight_decay,
                     .beta1 = adamw.beta1,
                     .beta2 = adamw.beta2,
                     .epsilon = adamw.epsilon};
  return vl_graph_add(graph, "adamw_8bit", &params, inputs, 5, NULL);
}

/* SGD with clipping for the first half of the parameters, AdamW with a scaler for the others. */
static Status build_updates(const Program *program) {
  Program half = *program;
  half.gradient_count /= 2;
  half.max_norm = 0.1;
  VL_TRY(vl_program_add_updates(&half));
  half.gradients += half.gradient_count;
  half.gradient_count = program->gradient_count - half.gradient_count;
  half.optimizer = vl_optimizer_adamw();
  half.scaling = vl_loss_scaling_dynamic();
  half.loss_scale = vl_graph_parameter(program->graph, "loss_scale", ROLE_OPTIMIZER, DTYPE_F32, 0, NULL,
                                       (Init){INIT_CONSTANT, half.scaling.initial});
  VL_TRY(vl_program_add_updates(&half));
  return build_8bit_update(program->graph);
}

static Status build(Program *program) {
  Graph *graph = program->graph;
  Tensor *x = input(graph, "images", DTYPE_F32, 4, (int64_t[]){2, 3, 8, 8});
  VL_TRY(build_stem(graph, &x));
  VL_TRY(build_block(graph, &x));
  VL_TRY(build_elementwise(graph, &x));
  VL_TRY(build_moves(graph, &x));
  VL_TRY(build_tokens(graph, &x));
  VL_TRY(build_head(graph, x, program));
  VL_TRY(vl_program_differentiate(program));
  return build_updates(program);
}

Status build_every_op(Program *program) {
  vl_program_init(program, vl_graph_create("every op"));
  program->training = true;
  Status status = build(program);
  if (status.code != VL_OK) vl_program_destroy(program);
  return status;
}
