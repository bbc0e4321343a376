/* 3D U-Net for segmentation of volumes, of the shape nnU-Net plans for medium patches (Isensee et al.,
 * arXiv:1809.10486; Cicek et al., arXiv:1606.06650): five levels of two 3x3x3 convolutions, each with
 * instance norm and ReLU, strided convolutions down, transposed ones up, skips concatenated. Parameters have
 * the names of the PyTorch module they stand for; initial values are PyTorch's.
 *
 * A level of the encoder or the decoder is a block; what the encoder gives to the next level also crosses the
 * blocks in between, to the decoder's level. The smooth twin (GELU) is for tests: its fp32 gradients are
 * reproducible. */
#include "cases/cases.h"
#include <math.h>

enum { MICRO_BATCH = 0, SIZE, DEPTH, HEIGHT, WIDTH, CHANNELS, CLASSES, GROUPS, DICE, SMOOTH, VOLUME };

static const CaseArgument arguments[] = {
    {"micro_batch", 1, 1, 4096, "volumes one rank runs at once"},
    {"size", 64, 16, 1024, "side of a cube in voxels, a multiple of 16"},
    {"depth", 0, 0, 1024, "depth where it is not size, a multiple of 16; 0: size"},
    {"height", 0, 0, 1024, "height likewise"},
    {"width", 0, 0, 1024, "width likewise"},
    {"channels", 1, 1, 64, "images of each volume (4: MR sequences)"},
    {"classes", 3, 2, 1024, "classes of a voxel, background included"},
    {"groups", 1, 1, 64, "groups of the 3x3x3 convolutions whose channels they divide"},
    {"dice", 1, 0, 1, "1: the loss has a soft Dice term; 0: cross entropy alone"},
    {"smooth", 0, 0, 1, "1: the smooth twin for gradient tests"},
    {"volume", 0, 0, 4096, "inference: side of a cube that windows of size slide over; 0: none (or --data)"},
};

enum { LEVELS = 5, SPATIAL = 3, REDUCTION = 1 << (LEVELS - 1) };
static const int64_t widths[LEVELS] = {32, 64, 128, 256, 320};

typedef struct Builder {
  Graph *graph;
  const int64_t *values;
} Builder;

static Tensor *parameter(Graph *graph, const char *scope, const char *name, int32_t rank,
                         const int64_t *shape, double bound) {
  return vl_graph_parameter(graph, vl_arena_format(graph->arena, "%s.%s", scope, name), ROLE_PARAMETER,
                            DTYPE_F32, rank, shape, (Init){INIT_UNIFORM, bound});
}

/* PyTorch's kaiming_uniform with a = sqrt(5), and its bound for biases: 1 / sqrt of the inputs of a sum, by
 * the weights' dimensions from the second on. */
static double uniform_bound(const int64_t *weights) {
  double inputs = 1;
  for (int32_t i = 1; i < 2 + SPATIAL; i++)
    inputs *= (double)weights[i];
  return 1.0 / sqrt(inputs);
}

/* 3x3x3 convolution, instance norm, activation, named <scope>.0 to .2. */
static Status unit(const Builder *builder, const char *scope, int64_t out, int64_t stride, Tensor **x) {
  Graph *graph = builder->graph;
  int64_t in = (*x)->shape[1], groups = builder->values[GROUPS];
  if (in % groups != 0 || out % groups != 0) groups = 1;
  vl_graph_set_scope(graph, "%s.0", scope);
  const int64_t shape[] = {out, in / groups, 3, 3, 3};
  Tensor *weight = parameter(graph, graph->scope, "weight", 5, shape, uniform_bound(shape));
  VL_TRY(vl_conv(graph, *x, weight, stride, 1, groups, x));
  vl_graph_set_scope(graph, "%s.1", scope);
  VL_TRY(vl_instance_norm(graph, *x, 1e-5, x));
  vl_graph_set_scope(graph, "%s.2", scope);
  Node *activation = NULL;
  bool smooth = builder->values[SMOOTH] != 0;
  VL_TRY(vl_graph_add(graph, smooth ? "gelu" : "relu", NULL, x, 1, &activation));
  activation->inplace_hint = !smooth; /* nn.ReLU(inplace=True) */
  *x = activation->outputs[0];
  return vl_ok();
}

/* Two units, the first of which may halve the sides. */
static Status level(const Builder *builder, const char *part, int32_t index, int64_t width, int64_t stride,
                    Tensor **x) {
  for (int32_t i = 0; i < 2; i++) {
    const char *scope = vl_arena_format(builder->graph->arena, "%s.%d.%d", part, index, i);
    VL_TRY(unit(builder, scope, width, i == 0 ? stride : 1, x));
    if (i == 0) (*x)->producer->hold = HOLD_BLOCK; /* an argument of the call of the second */
  }
  return vl_ok();
}

/* Up by two, beside the skip, two units. */
static Status decoder_level(const Builder *builder, int32_t index, Tensor *skip, Tensor **x) {
  Graph *graph = builder->graph;
  vl_graph_set_scope(graph, "up.%d", index);
  const int64_t width = skip->shape[1], shape[] = {(*x)->shape[1], width, 2, 2, 2};
  double bound = uniform_bound(shape);
  Tensor *weight = parameter(graph, graph->scope, "weight", 5, shape, bound);
  Tensor *bias = parameter(graph, graph->scope, "bias", 1, &width, bound);
  VL_TRY(vl_conv_transpose(graph, *x, weight, bias, 2, 0, 1, x));
  vl_graph_set_scope(graph, "cat.%d", index);
  VL_TRY(vl_concat(graph, (Tensor *[]){*x, skip}, 2, 1, x));
  (*x)->producer->hold = HOLD_BLOCK; /* an argument of the level's call */
  return level(builder, "dec", index, width, 1, x);
}

static Status head(const Builder *builder, Tensor *x, bool training, Program *program) {
  Graph *graph = builder->graph;
  vl_graph_set_scope(graph, "head");
  const int64_t classes = builder->values[CLASSES], shape[] = {classes, x->shape[1], 1, 1, 1};
  double bound = uniform_bound(shape);
  Tensor *weight = parameter(graph, graph->scope, "weight", 5, shape, bound);
  Tensor *bias = parameter(graph, graph->scope, "bias", 1, &classes, bound);
  OpParams pointwise = {.stride = {1, 1, 1}, .groups = 1};
  VL_TRY(vl_apply(graph, "conv", &pointwise, (Tensor *[]){x, weight, bias}, 3, &program->logits));
  if (!training) return vl_ok();
  vl_graph_set_scope(graph, "loss");
  Tensor *labels = vl_graph_input(graph, "labels", DTYPE_I32, 4,
                                  (int64_t[]){x->shape[0], x->shape[2], x->shape[3], x->shape[4]}, classes);
  OpParams params = {.alpha = (double)builder->values[DICE], .epsilon = 1e-5};
  Node *loss = NULL;
  VL_TRY(vl_graph_add(graph, "dice_cross_entropy", &params, (Tensor *[]){program->logits, labels}, 2, &loss));
  program->loss = loss->outputs[0];
  return vl_ok();
}

/* Depth, height and width, which the levels halve four times. */
static Status find_sizes(const int64_t *values, int64_t sizes[SPATIAL]) {
  bool is_one_voxel = true;
  for (int32_t i = 0; i < SPATIAL; i++) {
    sizes[i] = values[DEPTH + i] > 0 ? values[DEPTH + i] : values[SIZE];
    is_one_voxel = is_one_voxel && sizes[i] == REDUCTION;
    if (sizes[i] % REDUCTION != 0)
      return vl_error(VL_INVALID, "unet3d: %s is %lld; a multiple of %d is needed",
                      arguments[values[DEPTH + i] > 0 ? DEPTH + i : SIZE].name, (long long)sizes[i],
                      REDUCTION);
  }
  if (is_one_voxel)
    return vl_error(
        VL_INVALID,
        "unet3d: of a cube of %d voxels the lowest level is one, which instance norm makes 0; one "
        "side of at least %d is needed",
        REDUCTION, 2 * REDUCTION);
  return vl_ok();
}

static Status build_graph(const Builder *builder, bool training, Program *program) {
  Graph *graph = builder->graph;
  Tensor *skips[LEVELS];
  int64_t shape[2 + SPATIAL] = {builder->values[MICRO_BATCH], builder->values[CHANNELS]};
  VL_TRY(find_sizes(builder->values, shape + 2));
  Tensor *x = vl_graph_input(graph, "images", DTYPE_F32, 2 + SPATIAL, shape, 0);
  for (int32_t i = 0; i < LEVELS; i++) {
    graph->block = ++graph->block_count;
    VL_TRY(level(builder, "enc", i, widths[i], i == 0 ? 1 : 2, &x));
    skips[i] = x;
    x->producer->hold = HOLD_FORWARD; /* in a list */
  }
  for (int32_t i = 0; i < LEVELS - 1; i++) {
    graph->block = ++graph->block_count;
    VL_TRY(decoder_level(builder, i, skips[LEVELS - 2 - i], &x));
  }
  graph->block = 0;
  return head(builder, x, training, program);
}

static Status build(const int64_t *values, bool training, Program *program) {
  Builder builder = {vl_graph_create("unet3d"), values};
  vl_program_init(program, builder.graph);
  program->training = training;
  program->optimizer.weight_decay = 0;
  if (!training) program->window_voxels = values[VOLUME] * values[VOLUME] * values[VOLUME];
  Status status = build_graph(&builder, training, program);
  if (status.code == VL_OK) status = vl_graph_check(builder.graph);
  if (status.code != VL_OK) vl_program_destroy(program);
  return status;
}

const Case case_unet3d = {
    .name = "unet3d",
    .also_called = "unet, u-net, 3d u-net, 3d unet",
    .help = "3D U-Net segmentation of volumes, 16.5 M parameters (4.9 M at groups=4)",
    .arguments = arguments,
    .argument_count = sizeof arguments / sizeof *arguments,
    .shape_arguments = {"depth", "height", "width"},
    .build = build,
};
