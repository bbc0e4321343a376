/* BERT pretraining (Devlin et al., arXiv:1810.04805): masked tokens and next sentence, the masked-token head
 * tied to the token embedding. Post-norm layers, erf-GELU, one projection for query, key and value. The head
 * sees the masked positions only, gathered before it. Weights are drawn uniformly with the variance of the
 * paper's initialisation. */
#include "cases/cases.h"

#include <math.h>
#include <string.h>

enum { MICRO_BATCH = 0, SEQUENCE, LAYERS, HIDDEN, HEADS, VOCABULARY, DROPOUT, PADDING, ARGUMENTS };
enum { POSITIONS = 512, SEGMENTS = 2 };

#define BERT_ARGUMENTS(layers, hidden, heads)                                                                \
  {                                                                                                          \
    {"micro_batch", 1, 1, 65536, "sequences one rank runs at once"},                                         \
        {"sequence", 128, 8, POSITIONS, "tokens of a sequence"},                                             \
        {"layers", layers, 1, 96, "encoder layers"},                                                         \
        {"hidden", hidden, 16, 16384, "width of the residual stream; heads must divide it"},                 \
        {"heads", heads, 1, 256, "attention heads"}, {"vocabulary", 30522, 16, 1000000, "tokens there are"}, \
        {"dropout", 10, 0, 99, "percent of values that dropout zeroes in training"},                         \
        {"padding", 0, 0, 1, "1: attention leaves out what a mask says, as with a data file"},               \
  }

static const CaseArgument base_arguments[ARGUMENTS] = BERT_ARGUMENTS(12, 768, 12);
static const CaseArgument large_arguments[ARGUMENTS] = BERT_ARGUMENTS(24, 1024, 16);

typedef struct Builder {
  Graph *graph;
  Program *program;
  const int64_t *values;
  double rate;  /* of dropout; 0 in evaluation */
  Tensor *mask; /* (batch, sequence), added to the scores of every key; NULL: none */
} Builder;

static Tensor *parameter(Builder *builder, const char *name, int32_t rank, const int64_t *shape, Init init) {
  return vl_graph_parameter(builder->graph, name, ROLE_PARAMETER, DTYPE_F32, rank, shape, init);
}

static Tensor *scoped(Builder *builder, const char *part, int32_t rank, const int64_t *shape, Init init) {
  const char *name = vl_arena_format(builder->graph->arena, "%s.%s", builder->graph->scope, part);
  return parameter(builder, name, rank, shape, init);
}

/* x w' + b over the last dimension, in the current scope. */
static Status project(Builder *builder, Tensor *x, int64_t outputs, Tensor **y) {
  int64_t inputs = x->shape[x->rank - 1];
  Init init = {INIT_UNIFORM, 1.0 / sqrt((double)inputs)};
  Tensor *weight = scoped(builder, "weight", 2, (int64_t[]){outputs, inputs}, init);
  Tensor *bias = scoped(builder, "bias", 1, &outputs, init);
  return vl_apply(builder->graph, "linear", NULL, (Tensor *[]){x, weight, bias}, 3, y);
}

static Status norm(Builder *builder, Tensor *x, Tensor **y) {
  const int64_t *width = &x->shape[x->rank - 1];
  Tensor *weight = scoped(builder, "weight", 1, width, (Init){INIT_CONSTANT, 1.0});
  Tensor *bias = scoped(builder, "bias", 1, width, (Init){INIT_ZERO, 0.0});
  OpParams params = {.epsilon = 1e-12};
  Node *node;
  VL_TRY(vl_graph_add(builder->graph, "layer_norm", &params, (Tensor *[]){x, weight, bias}, 3, &node));
  *y = node->outputs[0];
  return vl_ok();
}

static Status drop(Builder *builder, Tensor *x, Tensor **y) {
  *y = x;
  if (builder->rate == 0.0) return vl_ok();
  OpParams params = {.rate = builder->rate, .random_scope = builder->graph->scope};
  return vl_apply(builder->graph, "dropout", &params, &x, 1, y);
}

static Status reshape(Builder *builder, Tensor *x, int32_t rank, const int64_t *shape, Tensor **y) {
  OpParams params = {.rank = rank};
  memcpy(params.shape, shape, (size_t)rank * sizeof *shape);
  return vl_apply(builder->graph, "reshape", &params, &x, 1, y);
}

static Status add(Builder *builder, Tensor *a, Tensor *b, Tensor **y) {
  return vl_apply(builder->graph, "add", NULL, (Tensor *[]){a, b}, 2, y);
}

static Status embed(Builder *builder, Tensor *words, Tensor **x) {
  Graph *graph = builder->graph;
  const int64_t *values = builder->values, hidden = values[HIDDEN];
  const int64_t batch = values[MICRO_BATCH], sequence = values[SEQUENCE];
  const Init init = {INIT_UNIFORM, sqrt(3.0) * 0.02};
  Tensor *tokens =
      vl_graph_input(graph, "tokens", DTYPE_I32, 2, (int64_t[]){batch, sequence}, values[VOCABULARY]);
  Tensor *segments = vl_graph_input(graph, "segments", DTYPE_I32, 2, (int64_t[]){batch, sequence}, SEGMENTS);
  if (values[PADDING]) {
    builder->mask = vl_graph_input(graph, "mask", DTYPE_F32, 2, (int64_t[]){batch, sequence}, 0);
    builder->mask->storage->init = (Init){INIT_ZERO, 0.0}; /* synthetic sequences have no padding */
  }
  Tensor *places = parameter(builder, "p.weight", 2, (int64_t[]){POSITIONS, hidden}, init);
  Tensor *kinds = parameter(builder, "t.weight", 2, (int64_t[]){SEGMENTS, hidden}, init);
  Tensor *word, *place, *kind;
  vl_graph_set_scope(graph, "w");
  VL_TRY(vl_apply(graph, "embedding", NULL, (Tensor *[]){words, tokens}, 2, &word));
  vl_graph_set_scope(graph, "p");
  OpParams rows = {.shape = {sequence, hidden}, .rank = 2};
  VL_TRY(vl_apply(graph, "slice", &rows, &places, 1, &place));
  OpParams spread = {.shape = {batch, sequence, hidden}, .rank = 3};
  VL_TRY(vl_apply(graph, "broadcast", &spread, &place, 1, &place));
  VL_TRY(add(builder, word, place, &word));
  vl_graph_set_scope(graph, "t");
  VL_TRY(vl_apply(graph, "embedding", NULL, (Tensor *[]){kinds, segments}, 2, &kind));
  VL_TRY(add(builder, word, kind, &word));
  vl_graph_set_scope(graph, "ln");
  VL_TRY(norm(builder, word, &word));
  vl_graph_set_scope(graph, "d");
  return drop(builder, word, x);
}

static Status attend(Builder *builder, int64_t layer, Tensor *x, Tensor **y) {
  Graph *graph = builder->graph;
  int64_t batch = x->shape[0], sequence = x->shape[1], hidden = x->shape[2], heads = builder->values[HEADS];
  Tensor *packed;
  vl_graph_set_scope(graph, "layers.%lld.qkv", (long long)layer);
  VL_TRY(project(builder, x, 3 * hidden, &packed));
  packed->producer->hold = HOLD_BLOCK; /* q, k and v */
  VL_TRY(reshape(builder, packed, 5, (int64_t[]){batch, sequence, 3, heads, hidden / heads}, &packed));
  vl_graph_set_scope(graph, "layers.%lld.attention", (long long)layer);
  OpParams params = {.rate = builder->rate, .random_scope = builder->rate > 0.0 ? graph->scope : NULL};
  Node *node;
  Tensor *inputs[] = {packed, builder->mask};
  VL_TRY(vl_graph_add(graph, "attention", &params, inputs, builder->mask ? 2 : 1, &node));
  node->hold = HOLD_BLOCK; /* the context */
  return reshape(builder, node->outputs[0], 3, (int64_t[]){batch, sequence, hidden}, y);
}

/* x becomes norm(x + dropout(branch)). */
static Status close_branch(Builder *builder, int64_t layer, const char *which, Tensor *branch, Tensor **x) {
  Graph *graph = builder->graph;
  vl_graph_set_scope(graph, "layers.%lld.d%s", (long long)layer, which);
  VL_TRY(drop(builder, branch, &branch));
  VL_TRY(add(builder, *x, branch, &branch));
  vl_graph_set_scope(graph, "layers.%lld.l%s", (long long)layer, which);
  return norm(builder, branch, x);
}

static Status encode(Builder *builder, int64_t layer, Tensor **x) {
  Graph *graph = builder->graph;
  int64_t hidden = builder->values[HIDDEN];
  Tensor *y;
  graph->block = ++graph->block_count;
  VL_TRY(attend(builder, layer, *x, &y));
  vl_graph_set_scope(graph, "layers.%lld.o", (long long)layer);
  VL_TRY(project(builder, y, hidden, &y));
  VL_TRY(close_branch(builder, layer, "1", y, x));
  vl_graph_set_scope(graph, "layers.%lld.f1", (long long)layer);
  VL_TRY(project(builder, *x, 4 * hidden, &y));
  VL_TRY(vl_apply(graph, "gelu", NULL, &y, 1, &y));
  vl_graph_set_scope(graph, "layers.%lld.f2", (long long)layer);
  VL_TRY(project(builder, y, hidden, &y));
  VL_TRY(close_branch(builder, layer, "2", y, x));
  graph->block = 0;
  return vl_ok();
}

/* Scores of the vocabulary at the masked positions: (batch * predictions, vocabulary). */
static Status predict_tokens(Builder *builder, Tensor *x, Tensor *words, int64_t predictions,
                             Tensor **scores) {
  Graph *graph = builder->graph;
  int64_t batch = x->shape[0], hidden = x->shape[2], vocabulary = builder->values[VOCABULARY];
  Tensor *places = vl_graph_input(graph, "positions", DTYPE_I32, 2, (int64_t[]){batch, predictions},
                                  builder->values[SEQUENCE]);
  Tensor *y;
  vl_graph_set_scope(graph, "tr");
  VL_TRY(vl_apply(graph, "gather_tokens", NULL, (Tensor *[]){x, places}, 2, &y));
  VL_TRY(project(builder, y, hidden, &y));
  VL_TRY(vl_apply(graph, "gelu", NULL, &y, 1, &y));
  vl_graph_set_scope(graph, "trn");
  VL_TRY(norm(builder, y, &y));
  VL_TRY(reshape(builder, y, 2, (int64_t[]){batch * predictions, hidden}, &y));
  vl_graph_set_scope(graph, "mlm");
  Tensor *bias = parameter(builder, "bias", 1, &vocabulary, (Init){INIT_ZERO, 0.0});
  return vl_apply(graph, "linear", NULL, (Tensor *[]){y, words, bias}, 3, scores);
}

/* Scores of "the second sentence follows the first", from the first token: (batch, 2). */
static Status predict_order(Builder *builder, Tensor *x, Tensor **scores) {
  Graph *graph = builder->graph;
  int64_t batch = x->shape[0], hidden = x->shape[2];
  Tensor *first;
  vl_graph_set_scope(graph, "pool");
  OpParams slice = {.shape = {batch, 1, hidden}, .rank = 3};
  VL_TRY(vl_apply(graph, "slice", &slice, &x, 1, &first));
  VL_TRY(reshape(builder, first, 2, (int64_t[]){batch, hidden}, &first));
  VL_TRY(project(builder, first, hidden, &first));
  VL_TRY(vl_apply(graph, "tanh", NULL, &first, 1, &first));
  vl_graph_set_scope(graph, "nsp");
  return project(builder, first, 2, scores);
}

static Status loss_of(Builder *builder, const char *scope, Tensor *scores, Tensor *labels, Tensor **loss) {
  Node *node;
  vl_graph_set_scope(builder->graph, "%s", scope);
  if (labels->rank > 1) VL_TRY(reshape(builder, labels, 1, &scores->shape[0], &labels));
  VL_TRY(vl_graph_add(builder->graph, "softmax_cross_entropy", NULL, (Tensor *[]){scores, labels}, 2, &node));
  *loss = node->outputs[0];
  return vl_ok();
}

static Status build_graph(Builder *builder) {
  Graph *graph = builder->graph;
  const int64_t *values = builder->values;
  int64_t batch = values[MICRO_BATCH], predictions = values[SEQUENCE] * 15 / 100 + 1;
  Tensor *words = parameter(builder, "w.weight", 2, (int64_t[]){values[VOCABULARY], values[HIDDEN]},
                            (Init){INIT_UNIFORM, sqrt(3.0) * 0.02});
  Tensor *x, *order, *token_loss, *order_loss;
  VL_TRY(embed(builder, words, &x));
  for (int64_t layer = 0; layer < values[LAYERS]; layer++)
    VL_TRY(encode(builder, layer, &x));
  VL_TRY(predict_tokens(builder, x, words, predictions, &builder->program->logits));
  if (!builder->program->training) return vl_ok();
  VL_TRY(predict_order(builder, x, &order));
  Tensor *labels =
      vl_graph_input(graph, "labels", DTYPE_I32, 2, (int64_t[]){batch, predictions}, values[VOCABULARY]);
  Tensor *follows = vl_graph_input(graph, "follows", DTYPE_I32, 1, &batch, 2);
  VL_TRY(loss_of(builder, "mlm_loss", builder->program->logits, labels, &token_loss));
  VL_TRY(loss_of(builder, "nsp_loss", order, follows, &order_loss));
  vl_graph_set_scope(graph, "loss");
  return add(builder, token_loss, order_loss, &builder->program->loss);
}

static Status build(const int64_t *values, bool training, Program *program) {
  if (values[HIDDEN] % values[HEADS] != 0)
    return vl_error(VL_INVALID, "hidden = %lld is not a multiple of heads = %lld", (long long)values[HIDDEN],
                    (long long)values[HEADS]);
  Builder builder = {.graph = vl_graph_create("bert"),
                     .program = program,
                     .values = values,
                     .rate = training ? (double)values[DROPOUT] / 100.0 : 0.0};
  vl_program_init(program, builder.graph);
  program->training = training;
  program->optimizer = vl_optimizer_adamw();
  program->optimizer.learning_rate = 1e-4;
  Status status = build_graph(&builder);
  if (status.code == VL_OK) status = vl_graph_check(builder.graph);
  if (status.code != VL_OK) vl_program_destroy(program);
  return status;
}

const Case case_bert_base = {
    .name = "bert-base",
    .also_called = "bert, bert base",
    .help = "BERT-base pretraining, 110.1 M parameters: masked tokens and next sentence",
    .arguments = base_arguments,
    .argument_count = ARGUMENTS,
    .shape_arguments = {"sequence"},
    .build = build,
};

const Case case_bert_large = {
    .name = "bert-large",
    .also_called = "bert large",
    .help = "BERT-large pretraining, 336.2 M parameters: masked tokens and next sentence",
    .arguments = large_arguments,
    .argument_count = ARGUMENTS,
    .shape_arguments = {"sequence"},
    .build = build,
};
