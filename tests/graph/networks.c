#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s: %s", vl_status_name(status.code), status.message);
}

static Tensor *apply(Graph *graph, const char *op, const OpParams *params, Tensor *a, Tensor *b) {
  Tensor *out = NULL;
  require_ok(vl_apply(graph, op, params, (Tensor *[]){a, b}, b ? 2 : 1, &out));
  return out;
}

static Tensor *scoped_parameter(Graph *graph, const char *part, int32_t rank, const int64_t *shape,
                                Init init) {
  const char *name = vl_arena_format(graph->arena, "%s.%s", graph->scope, part);
  return vl_graph_parameter(graph, name, ROLE_PARAMETER, DTYPE_F32, rank, shape, init);
}

/* Convolution and batch norm; the scopes are those of the two modules. */
static Tensor *conv_norm(Program *program, const char *scope, const char *which, Tensor *x, int64_t out,
                         int64_t kernel, int64_t stride) {
  Graph *graph = program->graph;
  vl_graph_set_scope(graph, "%s.conv%s", scope, which);
  double bound = sqrt(3.0) * sqrt(2.0 / (double)(out * kernel * kernel));
  Tensor *weight = scoped_parameter(graph, "weight", 4, (int64_t[]){out, x->shape[1], kernel, kernel},
                                    (Init){INIT_UNIFORM, bound});
  require_ok(vl_conv(graph, x, weight, stride, kernel / 2, 1, &x));
  vl_graph_set_scope(graph, "%s.bn%s", scope, which);
  require_ok(vl_batch_norm(graph, x, program->training, 1e-5, 0.1, &x));
  return x;
}

static Tensor *relu_in_place(Graph *graph, const char *scope, const char *which, Tensor *x) {
  vl_graph_set_scope(graph, "%s.relu%s", scope, which);
  Node *node = NULL;
  require_ok(vl_graph_add(graph, "relu", NULL, &x, 1, &node));
  node->inplace_hint = true;
  return node->outputs[0];
}

static Tensor *bottleneck(Program *program, const NetOptions *options, const char *scope, Tensor *x,
                          int64_t width) {
  Graph *graph = program->graph;
  graph->block = ++graph->block_count;
  Tensor *identity = x;
  Tensor *y = relu_in_place(graph, scope, "1", conv_norm(program, scope, "1", x, width, 1, 1));
  y = relu_in_place(graph, scope, "2", conv_norm(program, scope, "2", y, width, 3, 1));
  y = conv_norm(program, scope, "3", y, 4 * width, 1, 1);
  if (x->shape[1] != 4 * width) identity = conv_norm(program, scope, "_down", x, 4 * width, 1, 1);
  vl_graph_set_scope(graph, "%s.add", scope);
  Node *add = NULL;
  require_ok(vl_graph_add(graph, "add", NULL, (Tensor *[]){y, identity}, 2, &add));
  add->inplace_hint = true;
  y = relu_in_place(graph, scope, "3", add->outputs[0]);
  if (options->dropout > 0 && program->training) {
    vl_graph_set_scope(graph, "%s.dropout", scope);
    OpParams params = {.rate = options->dropout, .random_scope = graph->scope};
    y = apply(graph, "dropout", &params, y, NULL);
  }
  graph->block = 0;
  return y;
}

/* A linear layer "fc<which>" on (N, C) features. */
static Tensor *classifier(Graph *graph, const char *which, Tensor *x, int64_t classes) {
  vl_graph_set_scope(graph, "fc%s", which);
  Init init = {INIT_UNIFORM, 1.0 / sqrt((double)x->shape[1])};
  Tensor *weight = scoped_parameter(graph, "weight", 2, (int64_t[]){classes, x->shape[1]}, init);
  Tensor *bias = scoped_parameter(graph, "bias", 1, &classes, init), *logits = NULL;
  require_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, weight, bias}, 3, &logits));
  return logits;
}

/* Its mean loss on the input "labels<which>". */
static Tensor *classifier_loss(Graph *graph, const char *which, Tensor *logits) {
  vl_graph_set_scope(graph, "loss%s", which);
  const char *name = vl_arena_format(graph->arena, "labels%s", which);
  Tensor *labels = vl_graph_input(graph, name, DTYPE_I32, 1, logits->shape, logits->shape[1]);
  Node *loss = NULL;
  require_ok(vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){logits, labels}, 2, &loss));
  return loss->outputs[0];
}

static void head(Program *program, const NetOptions *options, Tensor *x) {
  Graph *graph = program->graph;
  vl_graph_set_scope(graph, "avgpool");
  Tensor *pooled = apply(graph, "global_avg_pool", NULL, x, NULL);
  program->logits = classifier(graph, "", pooled, 10);
  if (!program->training) return;
  program->loss = classifier_loss(graph, "", program->logits);
  if (!options->two_losses) return;
  Tensor *second = classifier_loss(graph, "2", classifier(graph, "2", pooled, 2));
  vl_graph_set_scope(graph, "loss");
  program->loss = apply(graph, "add", NULL, program->loss, second);
}

void network_bottlenecks(const NetOptions *options, Program *program) {
  Graph *graph = vl_graph_create("bottlenecks");
  vl_program_init(program, graph);
  program->training = !options->evaluation;
  if (options->adamw) program->optimizer = vl_optimizer_adamw();
  int64_t shape[] = {options->batch, 3, options->size, options->size};
  Tensor *x = vl_graph_input(graph, "images", DTYPE_F32, 4, shape, 0);
  x = relu_in_place(graph, "stem", "", conv_norm(program, "stem", "", x, 16, 3, 1));
  vl_graph_set_scope(graph, "maxpool");
  OpParams pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .dtype = DTYPE_I64};
  Node *node = NULL;
  require_ok(vl_graph_add(graph, "max_pool", &pool, &x, 1, &node));
  x = node->outputs[0];
  static const char *const scopes[] = {"layer1.0", "layer1.1", "layer1.2"};
  for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++) {
    x = bottleneck(program, options, scopes[i], x, 8);
  }
  head(program, options, x);
  require_ok(vl_graph_check(graph));
}

/* The sum of everything: a scalar loss. */
static void sum_to_loss(Program *program, Tensor *x) {
  Graph *graph = program->graph;
  vl_graph_set_scope(graph, "loss");
  OpParams sum = {.axis_count = x->rank, .dtype = DTYPE_F32};
  for (int32_t i = 0; i < x->rank; i++)
    sum.axes[i] = i;
  program->loss = apply(graph, "sum", &sum, x, NULL);
  require_ok(vl_graph_check(graph));
}

/* 3x3x3, or 1x1x1 without what follows. */
static Tensor *conv_volume(Graph *graph, const char *scope, Tensor *x, int64_t out, int64_t kernel) {
  vl_graph_set_scope(graph, "%s.conv", scope);
  int64_t fan_in = x->shape[1] * kernel * kernel * kernel;
  Tensor *weight = scoped_parameter(graph, "weight", 5, (int64_t[]){out, x->shape[1], kernel, kernel, kernel},
                                    (Init){INIT_UNIFORM, sqrt(6.0 / (double)fan_in)});
  require_ok(vl_conv(graph, x, weight, 1, kernel / 2, 1, &x));
  return x;
}

static Tensor *volume_block(Graph *graph, const char *scope, Tensor *x, double slope) {
  graph->block = ++graph->block_count;
  x = conv_volume(graph, scope, x, 16, 3);
  vl_graph_set_scope(graph, "%s.norm", scope);
  require_ok(vl_instance_norm(graph, x, 1e-5, &x));
  Node *relu = NULL;
  vl_graph_set_scope(graph, "%s.relu", scope);
  require_ok(vl_graph_add(graph, "relu", &(OpParams){.alpha = slope}, &x, 1, &relu));
  relu->inplace_hint = true;
  graph->block = 0;
  return relu->outputs[0];
}

void network_volumes(int64_t batch, double dice, Program *program) {
  Graph *graph = vl_graph_create("volumes");
  vl_program_init(program, graph);
  program->training = true;
  Tensor *x = vl_graph_input(graph, "images", DTYPE_F32, 5, (int64_t[]){batch, 2, 7, 6, 5}, 0);
  Tensor *skip = volume_block(graph, "enc1", x, 0.0);
  Tensor *second = volume_block(graph, "enc2", skip, 0.0);
  vl_graph_set_scope(graph, "skip");
  x = conv_volume(graph, "up", apply(graph, "add", NULL, second, skip), 16, 1);
  vl_graph_set_scope(graph, "concat");
  require_ok(vl_concat(graph, (Tensor *[]){x, second}, 2, 1, &x));
  x = volume_block(graph, "dec", x, 0.01);
  program->logits = conv_volume(graph, "head", x, 3, 1);
  vl_graph_set_scope(graph, "loss");
  Tensor *labels = vl_graph_input(graph, "labels", DTYPE_I32, 4, (int64_t[]){batch, 7, 6, 5}, 3);
  OpParams params = {.alpha = dice, .epsilon = 1e-5};
  Node *loss = NULL;
  require_ok(
      vl_graph_add(graph, "dice_cross_entropy", &params, (Tensor *[]){program->logits, labels}, 2, &loss));
  program->loss = loss->outputs[0];
}

void network_layers(int32_t layers, int64_t elements, Program *program) {
  Graph *graph = vl_graph_create("layers");
  vl_program_init(program, graph);
  program->training = true;
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 1, &elements, 0);
  vl_graph_set_scope(graph, "shift");
  Tensor *shift = scoped_parameter(graph, "weight", 1, &elements, (Init){INIT_UNIFORM, 0.1});
  x = apply(graph, "add", NULL, x, shift);
  for (int32_t layer = 0; layer < layers; layer++) {
    graph->block = ++graph->block_count;
    vl_graph_set_scope(graph, "layer%d", layer + 1);
    for (int32_t i = 0; i < 8; i++)
      x = apply(graph, "gelu", NULL, x, NULL);
  }
  graph->block = 0;
  sum_to_loss(program, x);
}

void network_dropout(Program *program) {
  Graph *graph = vl_graph_create("dropout");
  vl_program_init(program, graph);
  program->training = true;
  program->optimizer = (OptimizerSettings){0};
  int64_t shape[] = {1, 64};
  Init ones = {INIT_CONSTANT, 1.0};
  vl_graph_set_scope(graph, "p");
  Tensor *p = scoped_parameter(graph, "weight", 2, shape, ones);
  vl_graph_set_scope(graph, "q");
  Tensor *q = scoped_parameter(graph, "weight", 2, shape, ones);
  graph->block = ++graph->block_count;
  vl_graph_set_scope(graph, "dropout");
  OpParams params = {.rate = 0.5, .random_scope = graph->scope};
  Tensor *y = apply(graph, "dropout", &params, p, NULL);
  Tensor *z = apply(graph, "mul", NULL, y, q);
  graph->block = ++graph->block_count;
  vl_graph_set_scope(graph, "scale");
  OpParams one = {.alpha = 1.0};
  z = apply(graph, "scale", &one, z, NULL);
  graph->block = 0;
  sum_to_loss(program, z);
}

void network_running_mean(Program *program) {
  Graph *graph = vl_graph_create("running-mean");
  vl_program_init(program, graph);
  program->training = true;
  int64_t shape[] = {4, 1, 4, 4};
  Tensor *x = vl_graph_input(graph, "images", DTYPE_F32, 4, shape, 0);
  vl_graph_set_scope(graph, "factor");
  Tensor *factor = scoped_parameter(graph, "weight", 4, shape, (Init){INIT_CONSTANT, 1.0});
  graph->block = ++graph->block_count;
  vl_graph_set_scope(graph, "bn");
  require_ok(vl_batch_norm(graph, x, true, 1e-5, 0.1, &x));
  x = relu_in_place(graph, "block", "", x);
  x = apply(graph, "mul", NULL, x, factor);
  graph->block = ++graph->block_count;
  vl_graph_set_scope(graph, "scale");
  OpParams half = {.alpha = 0.5};
  x = apply(graph, "scale", &half, x, NULL);
  graph->block = 0;
  sum_to_loss(program, x);
}

static Tensor *gated_layer(Graph *graph, int32_t number, Tensor *x) {
  int64_t width = x->shape[x->rank - 1];
  graph->block = ++graph->block_count;
  vl_graph_set_scope(graph, "layer%d", number);
  Tensor *weight = scoped_parameter(graph, "weight", 2, (int64_t[]){width, width}, (Init){INIT_UNIFORM, 0.5});
  Tensor *bias = scoped_parameter(graph, "bias", 1, &width, (Init){INIT_UNIFORM, 0.5}), *y;
  require_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, weight, bias}, 3, &y));
  Tensor *gate = apply(graph, "softmax", &(OpParams){.alpha = 2.0}, y, NULL);
  y = apply(graph, "mul", NULL, gate, apply(graph, "gelu", NULL, y, NULL));
  y = apply(graph, "add", NULL, x, y);
  graph->block = 0;
  return y;
}

void network_tied(Program *program) {
  enum { SAMPLES = 3, LENGTH = 7, PICKED = 4, WORDS = 37, WIDTH = 20 };
  Graph *graph = vl_graph_create("tied");
  vl_program_init(program, graph);
  program->training = true;
  vl_graph_set_scope(graph, "words");
  Tensor *table = scoped_parameter(graph, "weight", 2, (int64_t[]){WORDS, WIDTH}, (Init){INIT_UNIFORM, 1.0});
  Tensor *ids = vl_graph_input(graph, "ids", DTYPE_I32, 2, (int64_t[]){SAMPLES, LENGTH}, WORDS);
  Tensor *x = apply(graph, "embedding", NULL, table, ids);
  x = gated_layer(graph, 2, gated_layer(graph, 1, x));
  vl_graph_set_scope(graph, "head");
  Tensor *places = vl_graph_input(graph, "places", DTYPE_I32, 2, (int64_t[]){SAMPLES, PICKED}, LENGTH);
  x = apply(graph, "tanh", NULL, apply(graph, "gather_tokens", NULL, x, places), NULL);
  x = apply(graph, "linear", NULL, x, table);
  OpParams rows = {.shape = {SAMPLES * PICKED, WORDS}, .rank = 2};
  program->logits = apply(graph, "reshape", &rows, x, NULL);
  Tensor *labels = vl_graph_input(graph, "labels", DTYPE_I32, 1, rows.shape, WORDS);
  Node *loss = NULL;
  require_ok(
      vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){program->logits, labels}, 2, &loss));
  program->loss = loss->outputs[0];
}
