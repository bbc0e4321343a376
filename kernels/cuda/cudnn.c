/* Plans of convolutions. cuDNN is told only what it must be: dimensions, strides (channels last), types, what
 * follows what. Engines are tried in the order of its heuristics, mode A and then what always works; those
 * whose numbers are not ours are passed over: sums in half precision, inputs rounded further, TF32 where it
 * was not asked for, and Winograd's tiles of more than 2x2, whose errors no bound in tests/kernels covers. So
 * are, while there is another way, those that are compiled when they are chosen. */
#include "kernels/cuda/cudnn.h"

#include <cudnn_graph.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An engine that takes more workspace than this is used only where all do. */
static const int64_t workspace_limit_bytes = (int64_t)256 << 20;

/* How many are tried where trials choose, and how often each is run. */
enum { TRIALS = 6, RUNS = 4 };

/* More than heuristics propose: of f32 the first dozen multiply in TF32. */
enum { CANDIDATES = 128 };

/* Names of tensors: operands count up from the first, tensors between operations from the second. */
enum { FIRST_ID = 1, FIRST_BETWEEN = 16 };

typedef struct PlanEntry {
  struct PlanEntry *next;
  CudnnProblem problem;
  Status status; /* of making the plan: that no engine does it is kept too */
  CudnnPlan plan;
  CudnnDescriptors descriptors; /* what the plan was made of lives as long as it */
} PlanEntry;

struct CudnnPlans {
  PlanEntry *first;
};

/* ---- Problems ---------------------------------------------------------------------------------------------- */

/* Of a tensor's first element: storages are aligned to more than cuDNN's kernels make use of. */
static int32_t alignment_of(const Tensor *tensor) {
  int64_t bytes = vl_dtype_bytes(tensor->dtype, tensor->offset) | 16;
  return (int32_t)(bytes & -bytes);
}

void cudnn_problem_add(CudnnProblem *problem, ConvOperand operand, const Tensor *tensor) {
  problem->dtype[operand] = (int32_t)tensor->dtype;
  problem->alignment[operand] = alignment_of(tensor);
}

void cudnn_problem(CudaDevice *device, const Node *node, ConvDirection direction, const Tensor *x,
                   const Tensor *w, const Tensor *y, CudnnProblem *problem) {
  memset(problem, 0, sizeof *problem);
  problem->direction = (int32_t)direction;
  problem->rank = x->rank;
  problem->tf32 = device->tf32;
  for (int32_t i = 0; i < x->rank; i++) {
    problem->x[i] = x->shape[i];
    problem->w[i] = w->shape[i];
    problem->y[i] = y->shape[i];
  }
  for (int32_t i = 0; i < x->rank - 2; i++) {
    problem->stride[i] = node->params.stride[i];
    problem->padding[i] = node->params.padding[i];
  }
  for (int32_t i = 0; i < CONV_OPERANDS; i++)
    problem->dtype[i] = CONV_ABSENT;
  cudnn_problem_add(problem, CONV_X, x);
  cudnn_problem_add(problem, CONV_W, w);
  cudnn_problem_add(problem, CONV_Y, y);
}

/* ---- Descriptors --------------------------------------------------------------------------------------------- */

static void fail(CudnnDescriptors *all, cudnnStatus_t status, const char *step) {
  if (all->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
  all->status = status;
  all->failed = step;
}

static cudnnBackendDescriptor_t begin(CudnnDescriptors *all, cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = NULL;
  if (all->status != CUDNN_STATUS_SUCCESS) return NULL;
  if (all->count == CUDNN_MAX_DESCRIPTORS) {
    fail(all, CUDNN_STATUS_INTERNAL_ERROR, "more descriptors than there is room for");
    return NULL;
  }
  fail(all, cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  if (made) all->made[all->count++] = made;
  return made;
}

static void set(CudnnDescriptors *all, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  if (all->status != CUDNN_STATUS_SUCCESS) return;
  fail(all, cudnnBackendSetAttribute(descriptor, name, type, count, values), "cudnnBackendSetAttribute");
}

static void set_descriptor(CudnnDescriptors *all, cudnnBackendDescriptor_t descriptor,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
  set(all, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(CudnnDescriptors *all, cudnnBackendDescriptor_t descriptor, const char *step) {
  if (all->status == CUDNN_STATUS_SUCCESS) fail(all, cudnnBackendFinalize(descriptor), step);
}

void cudnn_descriptors_destroy(CudnnDescriptors *all) {
  while (all->count > 0)
    (void)cudnnBackendDestroyDescriptor(all->made[--all->count]);
}

static cudnnDataType_t cudnn_type(int32_t dtype) {
  return dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : dtype == DTYPE_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

/* Channels last, whatever the sizes are: a dimension of 1 keeps the stride it would have among others. */
static cudnnBackendDescriptor_t describe_tensor(CudnnDescriptors *all, int64_t id, bool between,
                                                int32_t dtype, int64_t alignment, int64_t rank,
                                                const int64_t *sizes) {
  int64_t strides[CONV_MAX_DIMS] = {0}, next = sizes[1];
  for (int64_t i = rank - 1; i >= 2; i--) {
    strides[i] = next;
    next *= sizes[i];
  }
  strides[0] = next;
  strides[1] = 1;
  cudnnDataType_t type = cudnn_type(dtype);
  cudnnBackendDescriptor_t tensor = begin(all, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(all, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(all, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, sizes);
  set(all, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides);
  set(all, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(all, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  if (between) set(all, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
  finish(all, tensor, "finalizing a tensor");
  return tensor;
}

static const int64_t *sizes_of(const CudnnProblem *problem, ConvOperand operand) {
  return operand == CONV_X ? problem->x : operand == CONV_W ? problem->w : problem->y;
}

static cudnnBackendDescriptor_t describe_operand(CudnnDescriptors *all, const CudnnProblem *problem,
                                                 ConvOperand operand) {
  int64_t bias[CONV_MAX_DIMS] = {1, problem->y[1], 1, 1, 1};
  return describe_tensor(all, FIRST_ID + (int64_t)operand, false, problem->dtype[operand],
                         problem->alignment[operand], problem->rank,
                         operand == CONV_BIAS ? bias : sizes_of(problem, operand));
}

/* What an operation that is followed by `more` others makes: y, or a y in f32 that is never written. */
static cudnnBackendDescriptor_t describe_result(CudnnDescriptors *all, const CudnnProblem *problem,
                                                int32_t more) {
  if (more == 0) return describe_operand(all, problem, CONV_Y);
  return describe_tensor(all, FIRST_BETWEEN + more, true, DTYPE_F32, 16, problem->rank, problem->y);
}

static cudnnBackendDescriptor_t describe_window(CudnnDescriptors *all, const CudnnProblem *problem) {
  static const int64_t dilation[] = {1, 1, 1};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  int64_t space = problem->rank - 2;
  cudnnBackendDescriptor_t window = begin(all, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  set(all, window, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(all, window, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  set(all, window, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &space);
  set(all, window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, space, problem->padding);
  set(all, window, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, space, problem->padding);
  set(all, window, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, space, dilation);
  set(all, window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, space, problem->stride);
  finish(all, window, "finalizing the convolution");
  return window;
}

/* Names of an operation's attributes. The groups follow from the channels of x and w. */
typedef struct ConvolutionNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t operands[3], window, alpha, beta;
} ConvolutionNames;
static const ConvolutionNames convolution_names[] = {
    [CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                      {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [CONV_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                   {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [CONV_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                      {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};

static cudnnBackendDescriptor_t describe_convolution(CudnnDescriptors *all, const CudnnProblem *problem,
                                                     cudnnBackendDescriptor_t y) {
  const ConvolutionNames *names = &convolution_names[problem->direction];
  float alpha = 1.0F, beta = problem->adds ? 1.0F : 0.0F;
  cudnnBackendDescriptor_t x = describe_operand(all, problem, CONV_X);
  cudnnBackendDescriptor_t w = describe_operand(all, problem, CONV_W);
  cudnnBackendDescriptor_t window = describe_window(all, problem);
  cudnnBackendDescriptor_t operation = begin(all, names->type);
  set_descriptor(all, operation, names->operands[CONV_X], x);
  set_descriptor(all, operation, names->operands[CONV_W], w);
  set_descriptor(all, operation, names->operands[CONV_Y], y);
  set_descriptor(all, operation, names->window, window);
  set(all, operation, names->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
  set(all, operation, names->beta, CUDNN_TYPE_FLOAT, 1, &beta);
  finish(all, operation, "finalizing the convolution's operation");
  return operation;
}

/* y = x + b, or without b a ReLU of x that lets NaN through. */
static cudnnBackendDescriptor_t describe_pointwise(CudnnDescriptors *all, cudnnBackendDescriptor_t x,
                                                   cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y) {
  cudnnPointwiseMode_t mode = b ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
  cudnnBackendDescriptor_t step = begin(all, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(all, step, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(all, step, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
  if (!b) set(all, step, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan);
  finish(all, step, "finalizing a pointwise step");
  cudnnBackendDescriptor_t operation = begin(all, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_descriptor(all, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, step);
  set_descriptor(all, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) set_descriptor(all, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  set_descriptor(all, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  finish(all, operation, "finalizing a pointwise operation");
  return operation;
}

int32_t cudnn_describe(const CudnnProblem *problem, CudnnDescriptors *all,
                       cudnnBackendDescriptor_t *operations) {
  static const ConvOperand added[] = {CONV_RESIDUAL, CONV_BIAS};
  int32_t count = 0, more = problem->relu;
  for (int32_t i = 0; i < 2; i++)
    more += problem->dtype[added[i]] != CONV_ABSENT;
  cudnnBackendDescriptor_t sum = describe_result(all, problem, more);
  operations[count++] = describe_convolution(all, problem, sum);
  for (int32_t i = 0; i < 2; i++) {
    if (problem->dtype[added[i]] == CONV_ABSENT) continue;
    cudnnBackendDescriptor_t b = describe_operand(all, problem, added[i]);
    cudnnBackendDescriptor_t y = describe_result(all, problem, --more);
    operations[count++] = describe_pointwise(all, sum, b, y);
    sum = y;
  }
  if (problem->relu)
    operations[count++] = describe_pointwise(all, sum, NULL, describe_result(all, problem, 0));
  return count;
}

/* ---- Engines --------------------------------------------------------------------------------------------------- */

static bool may_run(const CudnnTarget *target, const CudnnProblem *problem,
                    cudnnBackendNumericalNote_t note) {
  switch (note) {
  case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: return problem->dtype[CONV_X] != DTYPE_F32 || problem->tf32;
  case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: return !target->deterministic;
  case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
  case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
  case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
  case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
  case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: return false;
  default: return true;
  }
}

/* An engine with its settings, as heuristics propose it. */
typedef struct Candidate {
  cudnnBackendDescriptor_t engine, settings, plan;
  int64_t engine_index, workspace_bytes;
  bool tensor_cores;
  float run_ms; /* where trials choose */
} Candidate;

static void discard(Candidate *candidate) {
  if (candidate->plan) (void)cudnnBackendDestroyDescriptor(candidate->plan);
  if (candidate->engine) (void)cudnnBackendDestroyDescriptor(candidate->engine);
  if (candidate->settings) (void)cudnnBackendDestroyDescriptor(candidate->settings);
  *candidate = (Candidate){0};
}

static bool get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
  return cudnnBackendGetAttribute(descriptor, name, type, room, count, values) == CUDNN_STATUS_SUCCESS;
}

/* Whether the device's rules admit the engine. */
static bool is_admitted(const CudnnTarget *target, const CudnnProblem *problem, Candidate *candidate) {
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t count = 0, one = 0;
  bool known = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &candidate->engine) ==
                   CUDNN_STATUS_SUCCESS &&
               get(candidate->settings, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one,
                   &candidate->engine) &&
               get(candidate->engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one,
                   &candidate->engine_index) &&
               get(candidate->engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes);
  for (int64_t i = 0; known && i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
    if (!may_run(target, problem, notes[i])) return false;
    candidate->tensor_cores = candidate->tensor_cores || notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
  }
  return known;
}

/* Whether the engine is compiled when its plan is made, which takes seconds and a compiler on the machine. */
static bool is_compiled_late(const Candidate *candidate) {
  cudnnBackendBehaviorNote_t notes[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
  int64_t count = 0;
  if (!get(candidate->engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
           CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &count, notes))
    return false;
  for (int64_t i = 0; i < count && i < CUDNN_BEHAVIOR_NOTE_TYPE_COUNT; i++)
    if (notes[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) return true;
  return false;
}

/* A card that is only described, which cuDNN takes from 9.8 on. */
static void set_card(CudnnDescriptors *all, cudnnBackendDescriptor_t of, const CudnnTarget *target,
                     bool is_plan) {
#if CUDNN_VERSION >= 90800
  if (target->properties)
    set_descriptor(all, of, is_plan ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP : CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                   target->properties);
#else
  (void)all, (void)of, (void)target, (void)is_plan;
#endif
}

/* Heuristics propose more than can be built. */
static bool is_built(const CudnnTarget *target, Candidate *candidate) {
  int64_t one = 0;
  CudnnDescriptors own = {.status = CUDNN_STATUS_SUCCESS};
  candidate->plan = begin(&own, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set_descriptor(&own, candidate->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, candidate->settings);
  set_card(&own, candidate->plan, target, true);
  finish(&own, candidate->plan, "finalizing a plan");
  return own.status == CUDNN_STATUS_SUCCESS && get(candidate->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                   CUDNN_TYPE_INT64, 1, &one, &candidate->workspace_bytes);
}

/* The settings that a mode of the heuristics proposes, best first; they are to be discarded. */
static int64_t propose(const CudnnTarget *target, CudnnDescriptors *all, cudnnBackendDescriptor_t graph,
                       cudnnBackendHeurMode_t mode, Candidate *candidates) {
  cudnnBackendDescriptor_t settings[CANDIDATES] = {0};
  int64_t count = 0;
  cudnnBackendDescriptor_t heuristics = begin(all, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set_descriptor(all, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(all, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  set_card(all, heuristics, target, false);
  /* A mode that knows nothing of a graph is no failure. */
  if (all->status != CUDNN_STATUS_SUCCESS || cudnnBackendFinalize(heuristics) != CUDNN_STATUS_SUCCESS)
    return 0;
  for (int32_t i = 0; i < CANDIDATES; i++)
    fail(all, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &settings[i]),
         "cudnnBackendCreateDescriptor");
  if (all->status == CUDNN_STATUS_SUCCESS &&
      !get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CANDIDATES, &count,
           settings))
    count = 0;
  if (count > CANDIDATES) count = CANDIDATES;
  for (int32_t i = 0; i < CANDIDATES; i++) {
    if (i < count) candidates[i] = (Candidate){.settings = settings[i]};
    if (i >= count && settings[i]) (void)cudnnBackendDestroyDescriptor(settings[i]);
  }
  return count;
}

/* ---- Trials ---------------------------------------------------------------------------------------------------- */

static int64_t operand_bytes(const CudnnProblem *problem, ConvOperand operand) {
  const int64_t *sizes = sizes_of(problem, operand);
  int64_t elements = operand == CONV_BIAS ? problem->y[1] : 1;
  for (int32_t i = 0; operand != CONV_BIAS && i < problem->rank; i++)
    elements *= sizes[i];
  return (vl_dtype_bytes((DType)problem->dtype[operand], elements) + 255) / 256 * 256;
}

/* Runs a plan RUNS times over zeros, and once before; false where it fails. */
static bool run_plan(const CudaDevice *device, const CudnnPlan *plan, const uintptr_t *addresses,
                     uintptr_t workspace, float *run_ms) {
  cudaEvent_t begin_event = NULL, end_event = NULL;
  bool done = cudaEventCreate(&begin_event) == cudaSuccess && cudaEventCreate(&end_event) == cudaSuccess &&
              cudnn_plan_launch(device, NULL, plan, addresses, workspace).code == VL_OK &&
              cudaEventRecord(begin_event, device->stream) == cudaSuccess;
  for (int32_t i = 0; i < RUNS && done; i++)
    done = cudnn_plan_launch(device, NULL, plan, addresses, workspace).code == VL_OK;
  done = done && cudaEventRecord(end_event, device->stream) == cudaSuccess &&
         cudaEventSynchronize(end_event) == cudaSuccess &&
         cudaEventElapsedTime(run_ms, begin_event, end_event) == cudaSuccess;
  if (begin_event) (void)cudaEventDestroy(begin_event);
  if (end_event) (void)cudaEventDestroy(end_event);
  return done;
}

/* How long a candidate takes, in memory of its own, which the card must have meanwhile; false: not known. */
static bool time_candidate(const CudaDevice *device, const CudnnProblem *problem, Candidate *candidate) {
  CudnnPlan plan = {.plan = candidate->plan};
  uintptr_t addresses[CONV_OPERANDS] = {0};
  int64_t bytes = 0;
  void *memory = NULL;
  for (int32_t i = 0; i < CONV_OPERANDS; i++)
    if (problem->dtype[i] != CONV_ABSENT) bytes += operand_bytes(problem, (ConvOperand)i);
  size_t all = (size_t)(bytes + candidate->workspace_bytes);
  bool done = cudaMalloc(&memory, all) == cudaSuccess &&
              cudaMemsetAsync(memory, 0, all, device->stream) == cudaSuccess;
  bytes = 0;
  for (int32_t i = 0; i < CONV_OPERANDS; i++) {
    if (problem->dtype[i] == CONV_ABSENT) continue;
    addresses[i] = (uintptr_t)memory + (uintptr_t)bytes;
    bytes += operand_bytes(problem, (ConvOperand)i);
  }
  done = done && run_plan(device, &plan, addresses, (uintptr_t)memory + (uintptr_t)bytes, &candidate->run_ms);
  if (memory) (void)cudaFree(memory);
  (void)cudaGetLastError(); /* too little memory is an answer */
  return done;
}

/* A list of candidates to go through. */
typedef struct Round {
  cudnnBackendHeurMode_t mode;
  bool late; /* those that are compiled late, and not the others */
} Round;

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* Whether a candidate that was built takes the place of the one chosen so far. */
static bool is_better(const CudnnTarget *target, const CudnnProblem *problem, Candidate *candidate,
                      const Candidate *chosen) {
  bool within = candidate->workspace_bytes <= workspace_limit_bytes;
  bool was_within = chosen->plan && chosen->workspace_bytes <= workspace_limit_bytes;
  if (target->trials && within && !time_candidate(target->trials, problem, candidate))
    candidate->run_ms = FLT_MAX;
  if (within && was_within) return candidate->run_ms < chosen->run_ms;
  return !chosen->plan || candidate->workspace_bytes < chosen->workspace_bytes;
}

/* Takes the first candidate within the limit, or with trials the fastest; else keeps the one that needs
 * least. Says whether it is within. */
static bool choose_of_round(const CudnnTarget *target, const CudnnProblem *problem, CudnnDescriptors *all,
                            cudnnBackendDescriptor_t graph, Round round, Candidate *chosen) {
  Candidate candidates[CANDIDATES] = {{0}};
  int64_t count = propose(target, all, graph, round.mode, candidates);
  int32_t within = 0, enough = target->trials ? TRIALS : 1;
  for (int64_t i = 0; i < count; i++) {
    Candidate *candidate = &candidates[i];
    bool built = within < enough && is_admitted(target, problem, candidate) &&
                 is_compiled_late(candidate) == round.late && is_built(target, candidate);
    within += built && candidate->workspace_bytes <= workspace_limit_bytes;
    if (built && is_better(target, problem, candidate, chosen)) {
      discard(chosen);
      *chosen = *candidate;
    } else {
      discard(candidate);
    }
  }
  return within > 0;
}

/* What has an ending can be done in parts, sooner than it is compiled. */
static void choose(const CudnnTarget *target, const CudnnProblem *problem, CudnnDescriptors *all,
                   cudnnBackendDescriptor_t graph, int64_t operations, Candidate *chosen) {
  static const Round rounds[] = {
      {CUDNN_HEUR_MODE_A, false}, {CUDNN_HEUR_MODE_FALLBACK, false}, {CUDNN_HEUR_MODE_A, true}};
  int32_t count = operations > 1 ? 2 : 3;
  for (int32_t i = 0; i < count; i++) {
    if (rounds[i].late && chosen->plan) return;
    if (choose_of_round(target, problem, all, graph, rounds[i], chosen)) return;
  }
}

static Status no_engine(const Node *node, const CudnnProblem *problem) {
  static const char *const directions[] = {"a convolution", "a data gradient", "a weight gradient"};
  char why[160] = "";
  cudnnGetLastErrorString(why, sizeof why);
  return vl_error(
      VL_UNSUPPORTED,
      "cuda: %s in %s: cuDNN has no engine for %s of %s (x %lld x %lld channels, weights %lld x %lld)%s%s",
      node->op->name, node->scope, directions[problem->direction],
      vl_dtype_name((DType)problem->dtype[CONV_X]), (long long)problem->x[0], (long long)problem->x[1],
      (long long)problem->w[0], (long long)problem->w[1], why[0] ? ": " : "", why);
}

Status cudnn_plan_make(const CudnnTarget *target, const Node *node, const CudnnProblem *problem,
                       CudnnDescriptors *all, CudnnPlan *plan) {
  cudnnBackendDescriptor_t operations[CUDNN_MAX_OPERATIONS];
  Candidate chosen = {0};
  int64_t count = cudnn_describe(problem, all, operations);
  cudnnBackendDescriptor_t graph = begin(all, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (target->handle)
    set(all, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->handle);
  set(all, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, operations);
  finish(all, graph, "finalizing the graph of operations");
  choose(target, problem, all, graph, count, &chosen);
  if (!chosen.plan) {
    VL_TRY(cuda_cudnn_status((int)all->status, all->failed, node));
    return no_engine(node, problem);
  }
  *plan = (CudnnPlan){.workspace_bytes = chosen.workspace_bytes, .plan = chosen.plan};
  bool tf32 = chosen.tensor_cores && problem->dtype[CONV_X] == DTYPE_F32;
  snprintf(plan->name, sizeof plan->name, "cuDNN engine %lld%s", (long long)chosen.engine_index,
           tf32 ? " tf32" : "");
  const cudnnBackendDescriptor_t parts[] = {chosen.settings, chosen.engine, chosen.plan};
  for (int32_t i = 0; i < 3; i++)
    all->made[all->count++] = parts[i];
  return vl_ok();
}

static void destroy_entry(PlanEntry *entry) {
  cudnn_descriptors_destroy(&entry->descriptors);
  free(entry);
}

Status cudnn_plan_find(CudaDevice *device, const Node *node, const CudnnProblem *problem,
                       const CudnnPlan **plan) {
  if (!device->convolutions) device->convolutions = vl_allocate(sizeof *device->convolutions);
  PlanEntry *entry = device->convolutions->first;
  while (entry && memcmp(&entry->problem, problem, sizeof *problem) != 0)
    entry = entry->next;
  if (!entry) {
    CudnnTarget target = {.deterministic = device->deterministic, .trials = device->timed ? device : NULL};
    VL_TRY(cuda_cudnn(device, &target.handle));
    entry = vl_allocate(sizeof *entry);
    memcpy(&entry->problem, problem, sizeof *problem);
    entry->status = cudnn_plan_make(&target, node, problem, &entry->descriptors, &entry->plan);
    Status status = entry->status;
    if (status.code != VL_OK && status.code != VL_UNSUPPORTED) { /* may go better another time */
      destroy_entry(entry);
      return status;
    }
    entry->next = device->convolutions->first;
    device->convolutions->first = entry;
  }
  *plan = &entry->plan;
  return entry->status;
}

void cuda_cudnn_plans_close(CudnnPlans **plans) {
  for (PlanEntry *entry = *plans ? (*plans)->first : NULL, *next; entry; entry = next) {
    next = entry->next;
    destroy_entry(entry);
  }
  free(*plans);
  *plans = NULL;
}

/* ---- Launching ------------------------------------------------------------------------------------------------- */

Status cudnn_plan_launch(const CudaDevice *device, const Node *node, const CudnnPlan *plan,
                         const uintptr_t *addresses, uintptr_t workspace) {
  CudnnDescriptors all = {.status = CUDNN_STATUS_SUCCESS};
  int64_t ids[CONV_OPERANDS], count = 0;
  void *pointers[CONV_OPERANDS], *scratch = (void *)workspace;
  for (int32_t i = 0; i < CONV_OPERANDS; i++) {
    if (addresses[i] == 0) continue;
    ids[count] = FIRST_ID + i;
    pointers[count++] = (void *)addresses[i];
  }
  cudnnBackendDescriptor_t pack = begin(&all, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(&all, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
  set(&all, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
  set(&all, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
  finish(&all, pack, "finalizing the pointers of a launch");
  cudnnHandle_t handle = NULL;
  Status status = cuda_cudnn((CudaDevice *)device, &handle);
  if (status.code == VL_OK && all.status == CUDNN_STATUS_SUCCESS)
    fail(&all, cudnnBackendExecute(handle, plan->plan, pack), "cudnnBackendExecute");
  cudnn_descriptors_destroy(&all);
  return status.code == VL_OK ? cuda_cudnn_status((int)all.status, all.failed, node) : status;
}
