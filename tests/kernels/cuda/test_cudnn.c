/* What conv.c describes to cuDNN, told to a library without a GPU: tensors, windows and operations are
 * finalized by the real one, and by its double in host/, which must agree about what is right and what is
 * not. Built once with each. */
#include "kernels/cuda/cudnn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of libraries.c, for plans, which need a GPU and are not made here. */
Status cuda_cudnn(CudaDevice *device, struct cudnnContext **handle) {
  (void)device;
  *handle = NULL;
  return vl_error(VL_ENVIRONMENT, "no handle in this test");
}
Status cuda_cudnn_status(int status, const char *call, const Node *node) {
  (void)node;
  return status == CUDNN_STATUS_SUCCESS ? vl_ok() : vl_error(VL_INTERNAL, "%s gave code %d", call, status);
}

/* ---- Problems ------------------------------------------------------------------------------------------------ */

/* A tensor of its own storage, or `offset` elements into one. */
static Tensor tensor_of(DType dtype, int32_t rank, const int64_t *shape, int64_t offset) {
  Tensor tensor = {.dtype = dtype, .rank = rank, .offset = offset};
  memcpy(tensor.shape, shape, (size_t)rank * sizeof *shape);
  return tensor;
}

typedef struct Case {
  const char *what;
  int32_t rank, groups;
  int64_t x[5], w[5], stride[3], padding[3];
} Case;

static const Case cases[] = {
    {"3x3", 4, 1, {2, 16, 9, 11}, {32, 16, 3, 3}, {1, 1}, {1, 1}},
    {"7x7 stride 2, 3 channels", 4, 1, {2, 3, 21, 18}, {64, 3, 7, 7}, {2, 2}, {3, 3}},
    {"1x1, one place", 4, 1, {1, 5, 1, 1}, {7, 5, 1, 1}, {1, 1}, {0, 0}},
    {"groups 4", 4, 4, {2, 32, 8, 7}, {64, 8, 3, 3}, {1, 1}, {1, 1}},
    {"depthwise", 4, 13, {1, 13, 7, 8}, {13, 1, 3, 3}, {2, 2}, {1, 1}},
    {"3-D", 5, 1, {1, 16, 5, 6, 7}, {16, 16, 3, 3, 3}, {1, 2, 1}, {1, 1, 1}},
    {"3-D, one channel", 5, 1, {2, 1, 5, 6, 19}, {32, 1, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}},
    {"1x1x1, 3 classes", 5, 1, {2, 32, 3, 5, 4}, {3, 32, 1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
};

static CudnnProblem problem_of(const Case *of, ConvDirection direction, DType dtype, DType weights,
                               int64_t offset) {
  CudaDevice device = {.tf32 = false};
  Node node = {.params = {.groups = of->groups}};
  int64_t y[5] = {of->x[0], of->w[0]};
  for (int32_t i = 0; i < of->rank - 2; i++) {
    node.params.stride[i] = of->stride[i];
    node.params.padding[i] = of->padding[i];
    y[i + 2] = (of->x[i + 2] + 2 * of->padding[i] - of->w[i + 2]) / of->stride[i] + 1;
  }
  Tensor tensors[] = {tensor_of(dtype, of->rank, of->x, offset), tensor_of(weights, of->rank, of->w, 0),
                      tensor_of(dtype, of->rank, y, 0)};
  CudnnProblem problem;
  cudnn_problem(&device, &node, direction, &tensors[0], &tensors[1], &tensors[2], &problem);
  return problem;
}

static void add_bias(CudnnProblem *problem, DType dtype) {
  Tensor bias = tensor_of(dtype, 1, &problem->y[1], 0);
  cudnn_problem_add(problem, CONV_BIAS, &bias);
}

static void add_residual(CudnnProblem *problem) {
  Tensor residual = tensor_of((DType)problem->dtype[CONV_Y], problem->rank, problem->y, 0);
  cudnn_problem_add(problem, CONV_RESIDUAL, &residual);
}

static void expect(const CudnnProblem *problem, const char *what, int32_t operations, bool right) {
  CudnnDescriptors descriptors = {.status = CUDNN_STATUS_SUCCESS};
  cudnnBackendDescriptor_t made[CUDNN_MAX_OPERATIONS];
  int32_t count = cudnn_describe(problem, &descriptors, made);
  bool was_right = descriptors.status == CUDNN_STATUS_SUCCESS;
  if (was_right != right)
    fail_msg("%s in direction %d, %s: %s gave code %d", what, problem->direction,
             vl_dtype_name((DType)problem->dtype[CONV_X]), was_right ? "nothing" : descriptors.failed,
             (int)descriptors.status);
  assert_int_equal(count, operations);
  cudnn_descriptors_destroy(&descriptors);
}

static const DType dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
enum { DTYPES = 3, CASES = sizeof cases / sizeof *cases };

/* ---- Tests ----------------------------------------------------------------------------------------------------- */

static void all_directions_are_accepted(void **state) {
  (void)state;
  for (int32_t c = 0; c < CASES; c++) {
    for (int32_t d = 0; d < DTYPES; d++) {
      for (int32_t direction = CONV_FORWARD; direction <= CONV_WEIGHTS; direction++) {
        CudnnProblem problem = problem_of(&cases[c], (ConvDirection)direction, dtypes[d], dtypes[d], 0);
        expect(&problem, cases[c].what, 1, true);
      }
      CudnnProblem into_f32 = problem_of(&cases[c], CONV_WEIGHTS, dtypes[d], DTYPE_F32, 0);
      expect(&into_f32, cases[c].what, 1, true);
    }
  }
}

static void endings_are_accepted(void **state) {
  (void)state;
  for (int32_t c = 0; c < CASES; c++) {
    for (int32_t d = 0; d < DTYPES; d++) {
      CudnnProblem problem = problem_of(&cases[c], CONV_FORWARD, dtypes[d], dtypes[d], 0);
      problem.adds = true;
      expect(&problem, "adding", 1, true);
      problem.adds = false;
      problem.relu = true;
      expect(&problem, "ReLU", 2, true);
      add_bias(&problem, DTYPE_F32);
      expect(&problem, "bias in f32 and ReLU", 3, true);
      add_residual(&problem);
      expect(&problem, "bias, residual and ReLU", 4, true);
      add_bias(&problem, dtypes[d]);
      problem.relu = false;
      expect(&problem, "bias and residual", 3, true);
    }
  }
}

static void views_say_how_they_are_aligned(void **state) {
  (void)state;
  static const struct {
    DType dtype;
    int64_t offset;
    int32_t bytes;
  } views[] = {
      {DTYPE_F32, 1, 4}, {DTYPE_F32, 6, 8}, {DTYPE_BF16, 3, 2}, {DTYPE_F16, 8, 16}, {DTYPE_F32, 64, 16}};
  for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
    CudnnProblem problem =
        problem_of(&cases[0], CONV_FORWARD, views[i].dtype, views[i].dtype, views[i].offset);
    assert_int_equal(problem.alignment[CONV_X], views[i].bytes);
    assert_int_equal(problem.alignment[CONV_W], 16);
    expect(&problem, "a view", 1, true);
  }
}

/* Sizes that do not belong together. */
static void wrong_sizes_are_refused(void **state) {
  (void)state;
  for (int32_t direction = CONV_FORWARD; direction <= CONV_WEIGHTS; direction++) {
    CudnnProblem large = problem_of(&cases[0], (ConvDirection)direction, DTYPE_F32, DTYPE_F32, 0);
    large.y[2] += 1;
    expect(&large, "y larger by one row", 1, false);
    CudnnProblem channels = problem_of(&cases[0], (ConvDirection)direction, DTYPE_F32, DTYPE_F32, 0);
    channels.y[1] = 31;
    expect(&channels, "y of other channels", 1, false);
    CudnnProblem groups = problem_of(&cases[0], (ConvDirection)direction, DTYPE_F32, DTYPE_F32, 0);
    groups.w[1] = 5;
    expect(&groups, "channels that make no groups", 1, false);
    CudnnProblem none = problem_of(&cases[0], (ConvDirection)direction, DTYPE_F32, DTYPE_F32, 0);
    none.x[3] = 0;
    expect(&none, "a size of zero", 1, false);
  }
}

static void expect_status(cudnnStatus_t status, bool right, const char *what) {
  if ((status == CUDNN_STATUS_SUCCESS) != right) fail_msg("%s: code %d", what, (int)status);
}

/* The rules for attributes that the double states. */
static void wrong_attributes_are_refused(void **state) {
  (void)state;
  cudnnBackendDescriptor_t tensor = NULL;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t sizes[] = {2, 3, 4, 5}, strides[] = {60, 1, 15, 3}, id = 7, alignment = 16;
  assert_int_equal(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &tensor),
                   CUDNN_STATUS_SUCCESS);
  expect_status(
      cudnnBackendSetAttribute(tensor, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &id), false,
      "a convolution's attribute");
  expect_status(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1, &id),
                false, "an attribute of another type");
  expect_status(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type),
                true, "the type");
  expect_status(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes),
                true, "dimensions");
  expect_status(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id), true,
                "the name");
  expect_status(
      cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment),
      true, "alignment");
  expect_status(cudnnBackendFinalize(tensor), false, "no strides");
  expect_status(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides),
                true, "strides");
  expect_status(cudnnBackendFinalize(tensor), true, "a whole tensor");
  expect_status(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id),
                false, "an attribute of a finalized tensor");
  expect_status(cudnnBackendDestroyDescriptor(tensor), true, "destroying");
}

/* ---- Plans for cards that are not here ------------------------------------------------------------------------- */

/* What cuDNN wants to know of a card, from NVIDIA's tables of compute capabilities and data sheets. */
typedef struct Card {
  const char *name;
  int32_t capability, multiprocessors, blocks, threads; /* the last two a multiprocessor */
  int64_t shared_bytes, cache_bytes, memory_bytes;
} Card;
static const Card cards[] = {{"T4", 750, 40, 16, 1024, 65536, 4 << 20, 16LL << 30},
                             {"A100", 800, 108, 32, 2048, 166912, 40 << 20, 80LL << 30},
                             {"H200", 900, 132, 32, 2048, 232448, 50 << 20, 140LL << 30},
                             {"RTX 4090", 890, 128, 24, 1536, 101376, 72 << 20, 24LL << 30},
                             {"B200", 1000, 148, 32, 2048, 232448, 126 << 20, 180LL << 30}};

/* Whether this cuDNN has code for it. */
static bool is_known(const Card *card) {
#ifdef CUDNN_MAX_DEVICE_VERSION
  return card->capability <= CUDNN_MAX_DEVICE_VERSION;
#else
  return card->capability <= 900;
#endif
}

#if CUDNN_VERSION >= 90800
/* NULL where the library knows no such thing. */
static cudnnBackendDescriptor_t describe_card(const Card *card) {
  char text[1024];
  cudnnBackendDescriptor_t properties = NULL;
  int size =
      snprintf(text, sizeof text,
               "{\"cudaDeviceId\":0,\"deviceName\":\"%s\",\"deviceVer\":%d,\"driverVer\":13000,"
               "\"totalGlobalMem\":%lld,\"maxGridSize\":[2147483647,65535,65535],"
               "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":%d,"
               "\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%lld,"
               "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":%d,"
               "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,\"pciDeviceId\":0,\"isTccDriver\":0,"
               "\"supportCoopLaunch\":1,\"smClockRateKHz\":1500000,\"memClockRateKHz\":1500000,"
               "\"l2CacheSize\":%lld,\"cudnnVersion\":%zu,\"schemaVersion\":1}",
               card->name, card->capability, (long long)card->memory_bytes, card->multiprocessors,
               (long long)card->shared_bytes, card->blocks, card->threads, (long long)card->cache_bytes,
               cudnnGetVersion());
  if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties) != CUDNN_STATUS_SUCCESS)
    return NULL;
  if (cudnnBackendSetAttribute(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, size,
                               text) == CUDNN_STATUS_SUCCESS &&
      cudnnBackendFinalize(properties) == CUDNN_STATUS_SUCCESS)
    return properties;
  (void)cudnnBackendDestroyDescriptor(properties);
  return NULL;
}
#else
static cudnnBackendDescriptor_t describe_card(const Card *card) {
  (void)card;
  return NULL;
}
#endif

/* Of the models, at full size. */
static const Case layers[] = {
    {"ResNet's first", 4, 1, {64, 3, 224, 224}, {64, 3, 7, 7}, {2, 2}, {3, 3}},
    {"ResNet 3x3", 4, 1, {64, 64, 56, 56}, {64, 64, 3, 3}, {1, 1}, {1, 1}},
    {"ResNet 1x1", 4, 1, {64, 256, 56, 56}, {64, 256, 1, 1}, {1, 1}, {0, 0}},
    {"ResNet 3x3 stride 2", 4, 1, {64, 128, 56, 56}, {128, 128, 3, 3}, {2, 2}, {1, 1}},
    {"U-Net", 5, 1, {2, 32, 96, 96, 96}, {32, 32, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}},
    {"U-Net's first", 5, 1, {2, 1, 96, 96, 96}, {32, 1, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}},
    {"U-Net stride 2", 5, 1, {2, 32, 96, 96, 96}, {64, 32, 3, 3, 3}, {2, 2, 2}, {1, 1, 1}},
    {"U-Net in groups", 5, 4, {2, 32, 96, 96, 96}, {32, 8, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}},
    {"U-Net's last", 5, 1, {2, 32, 96, 96, 96}, {3, 32, 1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    {"U-Net upwards", 5, 1, {2, 32, 96, 96, 96}, {64, 32, 2, 2, 2}, {2, 2, 2}, {0, 0, 0}},
};
enum { LAYERS = sizeof layers / sizeof *layers };

typedef struct Tally {
  int32_t plans;
  int64_t most_bytes;
  char most_of[128];
} Tally;

static void expect_plan(const CudnnTarget *target, const Card *card, const Case *of,
                        const CudnnProblem *problem, const char *what, Tally *tally) {
  Op op = {.name = "conv"};
  Node node = {.op = &op, .scope = of->what};
  CudnnDescriptors descriptors = {.status = CUDNN_STATUS_SUCCESS};
  CudnnPlan plan = {0};
  const char *dtype = vl_dtype_name((DType)problem->dtype[CONV_X]);
  Status status = cudnn_plan_make(target, &node, problem, &descriptors, &plan);
  if (status.code != VL_OK) fail_msg("%s, %s, %s, %s: %s", card->name, of->what, dtype, what, status.message);
  tally->plans++;
  if (plan.workspace_bytes > tally->most_bytes) {
    tally->most_bytes = plan.workspace_bytes;
    snprintf(tally->most_of, sizeof tally->most_of, "%s, %s, %s by %s", of->what, dtype, what, plan.name);
  }
  cudnn_descriptors_destroy(&descriptors);
}

/* A T4 does not multiply bf16. */
static void what_no_engine_does_is_unsupported(void **state) {
  (void)state;
  CudnnTarget target = {.properties = describe_card(&cards[0])};
  if (!target.properties) skip();
  Op op = {.name = "conv"};
  Node node = {.op = &op, .scope = "layer1"};
  CudnnProblem problem = problem_of(&cases[0], CONV_FORWARD, DTYPE_BF16, DTYPE_BF16, 0);
  CudnnDescriptors descriptors = {.status = CUDNN_STATUS_SUCCESS};
  CudnnPlan plan = {0};
  Status status = cudnn_plan_make(&target, &node, &problem, &descriptors, &plan);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "conv in layer1"));
  assert_non_null(strstr(status.message, "bf16"));
  assert_null(plan.plan);
  cudnn_descriptors_destroy(&descriptors);
  (void)cudnnBackendDestroyDescriptor(target.properties);
}

static void expect_plans(const CudnnTarget *target, const Card *card, const Case *of, DType dtype,
                         Tally *tally) {
  static const char *const names[] = {"forward", "data", "weights"};
  for (int32_t direction = CONV_FORWARD; direction <= CONV_WEIGHTS; direction++) {
    CudnnProblem problem = problem_of(of, (ConvDirection)direction, dtype, dtype, 0);
    expect_plan(target, card, of, &problem, names[direction], tally);
  }
  CudnnProblem ending = problem_of(of, CONV_FORWARD, dtype, dtype, 0);
  add_bias(&ending, dtype);
  expect_plan(target, card, of, &ending, "with a bias", tally);
  add_residual(&ending);
  ending.relu = true;
  expect_plan(target, card, of, &ending, "with bias, residual and ReLU", tally);
  CudnnProblem adding = problem_of(of, CONV_FORWARD, dtype, dtype, 0);
  adding.adds = true;
  expect_plan(target, card, of, &adding, "onto a residual", tally);
}

/* Every layer has an engine that is ready-made, with f32 sums, in every type the card multiplies,
 * deterministic or not: what conv.c asks for first. */
static void cards_have_engines(void **state) {
  (void)state;
  for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
    if (!is_known(&cards[c])) continue;
    Tally tally = {0};
    CudnnTarget target = {.properties = describe_card(&cards[c]), .deterministic = true};
    if (!target.properties) skip();
    for (int32_t d = 0; d < DTYPES; d++) {
      if (dtypes[d] == DTYPE_BF16 && cards[c].capability < 800) continue;
      for (int32_t i = 0; i < LAYERS; i++)
        expect_plans(&target, &cards[c], &layers[i], dtypes[d], &tally);
      for (int32_t i = 0; i < CASES; i++)
        expect_plans(&target, &cards[c], &cases[i], dtypes[d], &tally);
    }
    print_message("  %s: %d plans; the largest workspace, %lld bytes, for %s\n", cards[c].name, tally.plans,
                  (long long)tally.most_bytes, tally.most_of);
    (void)cudnnBackendDestroyDescriptor(target.properties);
  }
}

int main(void) {
  print_message("cuDNN %zu\n", cudnnGetVersion());
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_directions_are_accepted),        cmocka_unit_test(endings_are_accepted),
      cmocka_unit_test(views_say_how_they_are_aligned),     cmocka_unit_test(wrong_sizes_are_refused),
      cmocka_unit_test(wrong_attributes_are_refused),       cmocka_unit_test(cards_have_engines),
      cmocka_unit_test(what_no_engine_does_is_unsupported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
