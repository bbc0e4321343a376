/* ResNet-50 v1.5 (He et al., arXiv:1512.03385; stride in the 3x3 convolution, as torchvision builds it), with
 * torchvision's parameter names. The smooth twin (GELU, average pool, last norm of a block scaled by 0.25) is
 * for tests: its fp32 gradients are reproducible, which those of a deep ReLU net are not. */
#include "cases/cases.h"
#include <math.h>
#include <string.h>

enum { MICRO_BATCH = 0, SIZE, CLASSES, SMOOTH };

static const CaseArgument arguments[] = {
    {"micro_batch", 1, 1, 65536, "images one rank runs at once"},
    {"size", 224, 32, 1024, "image side in pixels"},
    {"classes", 1000, 2, 100000, "classes of the last layer"},
    {"smooth", 0, 0, 1, "1: the smooth twin for gradient tests"},
};

typedef struct Builder {
  Graph *graph;
  bool training, smooth;
} Builder;

static Status convolution(Builder *builder, const char *scope, Tensor *x, int64_t out, int64_t kernel,
                          int64_t stride, Tensor **y) {
  Graph *graph = builder->graph;
  vl_graph_set_scope(graph, "%s", scope);
  double fan_out = (double)(out * kernel * kernel);
  Tensor *weight = vl_graph_parameter(
      graph, vl_arena_format(graph->arena, "%s.weight", scope), ROLE_PARAMETER, DTYPE_F32, 4,
      (int64_t[]){out, x->shape[1], kernel, kernel}, (Init){INIT_UNIFORM, sqrt(3.0) * sqrt(2.0 / fan_out)});
  return vl_conv(graph, x, weight, stride, kernel / 2, 1, y);
}

static Status norm(Builder *builder, const char *scope, double weight, Tensor *x, Tensor **y) {
  Graph *graph = builder->graph;
  vl_graph_set_scope(graph, "%s", scope);
  int32_t before = graph->storage_count;
  VL_TRY(vl_batch_norm(graph, x, builder->training, 1e-5, 0.1, y));
  const char *name = vl_arena_format(graph->arena, "%s.weight", scope);
  for (int32_t i = before; i < graph->storage_count; i++) {
    Storage *storage = graph->storages[i];
    if (strcmp(storage->name, name) == 0) storage->init = (Init){INIT_CONSTANT, weight};
  }
  return vl_ok();
}

/* The activation, written in place in the source (nn.ReLU(inplace=True)). */
static Status activate(Builder *builder, const char *scope, Tensor *x, Tensor **y) {
  vl_graph_set_scope(builder->graph, "%s", scope);
  Node *node = NULL;
  VL_TRY(vl_graph_add(builder->graph, builder->smooth ? "gelu" : "relu", NULL, &x, 1, &node));
  node->inplace_hint = !builder->smooth;
  *y = node->outputs[0];
  return vl_ok();
}

static Status bottleneck(Builder *builder, const char *scope, Tensor *x, int64_t width, int64_t stride,
                         Tensor **out) {
  Graph *graph = builder->graph;
  graph->block = ++graph->block_count;
  const char *names[8];
  static const char *const parts[8] = {"conv1", "bn1",   "relu1", "conv2",
                                       "bn2",   "conv3", "bn3",   "downsample.0"};
  for (int32_t i = 0; i < 8; i++)
    names[i] = vl_arena_format(graph->arena, "%s.%s", scope, parts[i]);
  const char *norm_down = vl_arena_format(graph->arena, "%s.downsample.1", scope);
  Tensor *y = x, *identity = x;
  VL_TRY(convolution(builder, names[0], y, width, 1, 1, &y));
  VL_TRY(norm(builder, names[1], 1.0, y, &y));
  VL_TRY(activate(builder, names[2], y, &y));
  VL_TRY(convolution(builder, names[3], y, width, 3, stride, &y));
  VL_TRY(norm(builder, names[4], 1.0, y, &y));
  VL_TRY(activate(builder, vl_arena_format(graph->arena, "%s.relu2", scope), y, &y));
  VL_TRY(convolution(builder, names[5], y, 4 * width, 1, 1, &y));
  VL_TRY(norm(builder, names[6], builder->smooth ? 0.25 : 1.0, y, &y));
  if (x->shape[1] != 4 * width || stride != 1) {
    VL_TRY(convolution(builder, names[7], x, 4 * width, 1, stride, &identity));
    VL_TRY(norm(builder, norm_down, 1.0, identity, &identity));
  }
  vl_graph_set_scope(graph, "%s.add", scope);
  Node *add = NULL;
  VL_TRY(vl_graph_add(graph, "add", NULL, (Tensor *[]){y, identity}, 2, &add));
  add->inplace_hint = true; /* out += identity */
  VL_TRY(activate(builder, vl_arena_format(graph->arena, "%s.relu3", scope), add->outputs[0], out));
  graph->block = 0;
  return vl_ok();
}

static Status stem(Builder *builder, Tensor *x, Tensor **y) {
  Graph *graph = builder->graph;
  VL_TRY(convolution(builder, "conv1", x, 64, 7, 2, y));
  VL_TRY(norm(builder, "bn1", 1.0, *y, y));
  VL_TRY(activate(builder, "relu", *y, y));
  OpParams pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .dtype = DTYPE_I64};
  vl_graph_set_scope(graph, "maxpool");
  Node *node = NULL;
  VL_TRY(vl_graph_add(graph, builder->smooth ? "avg_pool" : "max_pool", &pool, y, 1, &node));
  *y = node->outputs[0];
  return vl_ok();
}

static Status head(Builder *builder, Tensor *x, int64_t classes, Program *program) {
  Graph *graph = builder->graph;
  Tensor *pooled = NULL;
  vl_graph_set_scope(graph, "avgpool");
  VL_TRY(vl_apply(graph, "global_avg_pool", NULL, &x, 1, &pooled));
  vl_graph_set_scope(graph, "fc");
  int64_t features = pooled->shape[1];
  Init init = {INIT_UNIFORM, 1.0 / sqrt((double)features)};
  Tensor *weight = vl_graph_parameter(graph, "fc.weight", ROLE_PARAMETER, DTYPE_F32, 2,
                                      (int64_t[]){classes, features}, init);
  Tensor *bias = vl_graph_parameter(graph, "fc.bias", ROLE_PARAMETER, DTYPE_F32, 1, &classes, init);
  VL_TRY(vl_apply(graph, "linear", NULL, (Tensor *[]){pooled, weight, bias}, 3, &program->logits));
  if (!builder->training) return vl_ok();
  vl_graph_set_scope(graph, "loss");
  Tensor *labels = vl_graph_input(graph, "labels", DTYPE_I32, 1, x->shape, classes);
  Node *loss = NULL;
  VL_TRY(vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){program->logits, labels}, 2, &loss));
  program->loss = loss->outputs[0];
  return vl_ok();
}

static Status build_graph(const int64_t *values, Builder *builder, Program *program) {
  static const int64_t widths[] = {64, 128, 256, 512}, depths[] = {3, 4, 6, 3};
  Graph *graph = builder->graph;
  int64_t size = values[SIZE];
  Tensor *x =
      vl_graph_input(graph, "images", DTYPE_F32, 4, (int64_t[]){values[MICRO_BATCH], 3, size, size}, 0);
  VL_TRY(stem(builder, x, &x));
  for (int32_t stage = 0; stage < 4; stage++) {
    for (int32_t i = 0; i < depths[stage]; i++) {
      char scope[32];
      snprintf(scope, sizeof scope, "layer%d.%d", stage + 1, i);
      VL_TRY(bottleneck(builder, scope, x, widths[stage], stage > 0 && i == 0 ? 2 : 1, &x));
    }
  }
  return head(builder, x, values[CLASSES], program);
}

static Status build(const int64_t *values, bool training, Program *program) {
  Builder builder = {vl_graph_create("resnet50"), training, values[SMOOTH] != 0};
  vl_program_init(program, builder.graph);
  program->training = training;
  Status status = build_graph(values, &builder, program);
  if (status.code == VL_OK) status = vl_graph_check(builder.graph);
  if (status.code != VL_OK) vl_program_destroy(program);
  return status;
}

const Case case_resnet50 = {
    .name = "resnet50",
    .also_called = "resnet, resnet-50",
    .help = "ResNet-50 v1.5 image classification, 25.6 M parameters at 1000 classes",
    .arguments = arguments,
    .argument_count = sizeof arguments / sizeof *arguments,
    .shape_arguments = {"size"},
    .build = build,
};
