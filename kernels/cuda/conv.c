/* Convolutions on cuDNN: forward with what ends it, gradient of the data, gradient of the weights.
 *
 * Activations and weights are channels last in every type: what tensor cores read directly, and what PyTorch
 * is fastest in. Bias, residual and ReLU are part of cuDNN's graph where an engine takes them, with a bias of
 * x's type, into which one in f32 is rounded. Where none does, and where y lies over the residual (which
 * cuDNN promises nothing about), the products are added to the residual in y, and own code does the rest in a
 * pass over it.
 *
 * Weight gradients are of x's type, as all ready-made engines want them; f32 is made of that. */
#include "kernels/cuda/conv_bias.h"
#include "kernels/cuda/cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_BIAS = 2, INPUT_RESIDUAL = 3 }; /* of conv, conv_transpose, conv_epilogue */
enum { WEIGHTS_X = 0, WEIGHTS_DY, WEIGHTS_MEAN, WEIGHTS_INPUTS = 6 }; /* of conv_backward_weights */

static Tensor *input_of(const Node *node, int32_t index) {
  return index < node->input_count ? node->inputs[index] : NULL;
}

static Status supports(CudaDevice *device, const Node *node) {
  DType dtype = node->inputs[0]->dtype;
  VL_TRY(cuda_supports_floats(device, node));
  if (dtype == node->inputs[1]->dtype) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cuda: %s in %s on %s and %s; accepted: both of one type", node->op->name,
                  node->scope, vl_dtype_name(dtype), vl_dtype_name(node->inputs[1]->dtype));
}

/* What choose_layouts chose. */
static Status check_layouts(const Kernel *kernel) {
  const Node *node = kernel->node;
  for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
    bool input = i < node->input_count;
    const Tensor *tensor = input ? node->inputs[i] : node->outputs[i - node->input_count];
    LayoutId layout = input ? kernel->inputs[i] : kernel->outputs[i - node->input_count];
    LayoutId wanted = tensor && tensor->rank >= 3 ? CUDA_CHANNELS_LAST : LAYOUT_PLAIN;
    if (tensor && layout != wanted)
      return vl_error(VL_INTERNAL, "cuda: %s in %s: layout %d of %s; %d was chosen", node->op->name,
                      node->scope, (int)layout, tensor->name, (int)wanted);
  }
  return vl_ok();
}

static void describe(Kernel *kernel, const CudnnPlan *plan, const char *rest) {
  snprintf(kernel->implementation, sizeof kernel->implementation, "%.40s%s", plan->name, rest);
}

/* ---- Steps: other ops before or after the library's part --------------------------------------------------------- */

/* Another op's kernel. `between` is a tensor of its node that is in this kernel's workspace. */
typedef struct Step {
  Node node; /* op NULL: nothing to do */
  Tensor between;
  Kernel kernel;
  int64_t between_at_bytes, scratch_at_bytes; /* in the workspace */
} Step;

/* Workspaces are cut at multiples of what storages are aligned to. */
static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

static LayoutId layout_of(const Tensor *tensor) {
  return tensor->rank >= 3 ? CUDA_CHANNELS_LAST : LAYOUT_PLAIN;
}

/* A tensor like another one, in the workspace. */
static Tensor *between_like(Step *step, const Tensor *like, DType dtype) {
  step->between = *like;
  step->between.dtype = dtype;
  step->between.offset = 0;
  return &step->between;
}

/* Inputs, output and params are in the step's node. */
static Status prepare_step(CudaDevice *device, const char *op, Step *step, Kernel *of) {
  Kernel *kernel = &step->kernel;
  step->node.output_count = 1;
  step->node.scope = of->node->scope;
  step->node.op = vl_op_find(op);
  kernel->device = device;
  kernel->node = &step->node;
  for (int32_t i = 0; i < step->node.input_count; i++)
    kernel->inputs[i] = layout_of(step->node.inputs[i]);
  kernel->outputs[0] = layout_of(step->node.outputs[0]);
  kernel->op = cuda_op_find(op);
  if (kernel->op->prepare) VL_TRY(kernel->op->prepare(device, kernel));
  step->between_at_bytes = of->workspace_bytes;
  of->workspace_bytes += aligned(vl_dtype_bytes(step->between.dtype, vl_tensor_elements(&step->between)));
  step->scratch_at_bytes = of->workspace_bytes;
  of->workspace_bytes += aligned(kernel->workspace_bytes);
  return vl_ok();
}

static Status prepare_cast(CudaDevice *device, Tensor *from, Tensor *to, Step *step, Kernel *of) {
  step->node.params.dtype = (int64_t)to->dtype;
  step->node.inputs[0] = from;
  step->node.input_count = 1;
  step->node.outputs[0] = to;
  return prepare_step(device, "cast", step, of);
}

static Status build_step(CudaDevice *device, Step *step) {
  const CudaOp *op = step->kernel.op;
  return op && op->build ? op->build(device, &step->kernel) : vl_ok();
}

static uintptr_t between_of(const Step *step, const CudaLaunch *launch) {
  return launch->workspace + (uintptr_t)step->between_at_bytes;
}

static Status launch_step(const Step *step, const CudaLaunch *launch, const uintptr_t *inputs,
                          uintptr_t output) {
  CudaLaunch own = *launch;
  own.inputs = inputs;
  own.outputs = &output;
  own.workspace = launch->workspace + (uintptr_t)step->scratch_at_bytes;
  return step->kernel.op->launch(&step->kernel, &own);
}

static void destroy_step(CudaDevice *device, Step *step) {
  const CudaOp *op = step->kernel.op;
  if (op && op->destroy) op->destroy(device, &step->kernel);
  free(step->kernel.data);
}

/* ---- Forward ------------------------------------------------------------------------------------------------------ */

typedef struct Forward {
  const CudnnPlan *whole; /* NULL: no engine does all of it */
  const CudnnPlan *bare;  /* the products alone, or added to the residual in y; NULL: not needed */
  Step round_bias;        /* for `whole` */
  int64_t whole_at_bytes; /* its workspace, behind the step's */
} Forward;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* All of it in one plan, if an engine does that. */
static Status prepare_whole(CudaDevice *device, Kernel *kernel, CudnnProblem problem, Forward *own) {
  const Node *node = kernel->node;
  Tensor *bias = input_of(node, INPUT_BIAS), *residual = input_of(node, INPUT_RESIDUAL);
  bool rounds = bias && bias->dtype != node->outputs[0]->dtype;
  Tensor *added = rounds ? between_like(&own->round_bias, bias, node->outputs[0]->dtype) : bias;
  if (added) cudnn_problem_add(&problem, CONV_BIAS, added);
  if (residual) cudnn_problem_add(&problem, CONV_RESIDUAL, residual);
  problem.relu = node->params.relu != 0;
  Status status = cudnn_plan_find(device, node, &problem, &own->whole);
  if (status.code == VL_OK) {
    if (rounds) VL_TRY(prepare_cast(device, bias, added, &own->round_bias, kernel));
    own->whole_at_bytes = kernel->workspace_bytes;
    kernel->workspace_bytes += own->whole->workspace_bytes;
    return vl_ok();
  }
  own->whole = NULL;
  bool in_parts = bias || residual || problem.relu;
  return status.code == VL_UNSUPPORTED && in_parts ? vl_ok() : status;
}

static Status prepare_forward(CudaDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  const Tensor *residual = input_of(node, INPUT_RESIDUAL);
  CudnnProblem problem;
  VL_TRY(check_layouts(kernel));
  cudnn_problem(device, node, CONV_FORWARD, node->inputs[0], node->inputs[1], node->outputs[0], &problem);
  Forward *own = vl_allocate(sizeof *own);
  kernel->data = own;
  VL_TRY(prepare_whole(device, kernel, problem, own));
  if (!own->whole || residual) {
    problem.adds = residual != NULL;
    VL_TRY(cudnn_plan_find(device, node, &problem, &own->bare));
    kernel->workspace_bytes = larger(kernel->workspace_bytes, own->bare->workspace_bytes);
  }
  describe(kernel, own->whole ? own->whole : own->bare, own->whole ? "" : ", own ending");
  return vl_ok();
}

static Status build_forward(CudaDevice *device, Kernel *kernel) {
  Forward *own = kernel->data;
  return build_step(device, &own->round_bias);
}

/* The products onto the residual, then the rest. */
static Status launch_in_parts(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const Forward *own = kernel->data;
  const Tensor *y = node->outputs[0], *bias = input_of(node, INPUT_BIAS);
  const uintptr_t to = launch->outputs[0];
  if (input_of(node, INPUT_RESIDUAL) && launch->inputs[INPUT_RESIDUAL] != to)
    VL_TRY(cuda_status(cudaMemcpyAsync((void *)to, (const void *)launch->inputs[INPUT_RESIDUAL],
                                       (size_t)vl_dtype_bytes(y->dtype, vl_tensor_elements(y)),
                                       cudaMemcpyDeviceToDevice, launch->stream),
                       "cudaMemcpyAsync", node));
  const uintptr_t addresses[CONV_OPERANDS] = {launch->inputs[0], launch->inputs[1], to};
  VL_TRY(cudnn_plan_launch(kernel->device, node, own->bare, addresses, launch->workspace));
  bool relu = node->params.relu != 0;
  if (!bias && !relu) return vl_ok();
  return cuda_status(cuda_conv_bias(y, to, bias, bias ? launch->inputs[INPUT_BIAS] : 0, relu, launch->stream),
                     "the launch of a bias", node);
}

static Status launch_forward(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const Forward *own = kernel->data;
  uintptr_t addresses[CONV_OPERANDS] = {launch->inputs[0], launch->inputs[1], launch->outputs[0]};
  if (input_of(node, INPUT_RESIDUAL)) addresses[CONV_RESIDUAL] = launch->inputs[INPUT_RESIDUAL];
  if (!own->whole || addresses[CONV_RESIDUAL] == addresses[CONV_Y]) return launch_in_parts(kernel, launch);
  if (input_of(node, INPUT_BIAS)) addresses[CONV_BIAS] = launch->inputs[INPUT_BIAS];
  if (own->round_bias.kernel.op) {
    uintptr_t rounded = between_of(&own->round_bias, launch);
    VL_TRY(launch_step(&own->round_bias, launch, &addresses[CONV_BIAS], rounded));
    addresses[CONV_BIAS] = rounded;
  }
  return cudnn_plan_launch(kernel->device, node, own->whole, addresses,
                           launch->workspace + (uintptr_t)own->whole_at_bytes);
}

static void destroy_forward(CudaDevice *device, Kernel *kernel) {
  Forward *own = kernel->data;
  if (own) destroy_step(device, &own->round_bias);
}

/* ---- Gradient of the data, and what computes the same as a layer ------------------------------------------------ */

static Status prepare_data(CudaDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  CudnnProblem problem;
  const CudnnPlan *plan;
  VL_TRY(check_layouts(kernel));
  cudnn_problem(device, node, CONV_DATA, node->outputs[0], node->inputs[1], node->inputs[0], &problem);
  VL_TRY(cudnn_plan_find(device, node, &problem, &plan));
  const CudnnPlan **own = vl_allocate(sizeof(const CudnnPlan *));
  *own = plan;
  kernel->data = (void *)own;
  kernel->workspace_bytes = plan->workspace_bytes;
  describe(kernel, plan, input_of(node, INPUT_BIAS) ? ", own ending" : "");
  return vl_ok();
}

static Status launch_data(const Kernel *kernel, const CudaLaunch *launch) {
  const Node *node = kernel->node;
  const CudnnPlan *const *own = kernel->data;
  const Tensor *bias = input_of(node, INPUT_BIAS);
  const uintptr_t addresses[CONV_OPERANDS] = {launch->outputs[0], launch->inputs[1], launch->inputs[0]};
  VL_TRY(cudnn_plan_launch(kernel->device, node, *own, addresses, launch->workspace));
  if (!bias) return vl_ok();
  return cuda_status(cuda_conv_bias(node->outputs[0], launch->outputs[0], bias, launch->inputs[INPUT_BIAS],
                                    false, launch->stream),
                     "the launch of a bias", node);
}

/* ---- Gradient of the weights -------------------------------------------------------------------------------------- */

typedef struct Weights {
  Step normalise; /* x, before */
  Step widen;     /* dw, behind */
  const CudnnPlan *plan;
  int64_t plan_at_bytes;
} Weights;

static Status prepare_normalise(CudaDevice *device, Kernel *kernel, Step *step) {
  const Node *node = kernel->node;
  Node *apply = &step->node;
  apply->params.epsilon = node->params.epsilon;
  apply->params.relu = node->params.relu;
  apply->inputs[0] = node->inputs[WEIGHTS_X];
  for (int32_t i = WEIGHTS_MEAN; i < WEIGHTS_INPUTS; i++)
    apply->inputs[i - WEIGHTS_MEAN + 1] = node->inputs[i];
  apply->input_count = WEIGHTS_INPUTS - WEIGHTS_MEAN + 1;
  apply->outputs[0] = between_like(step, node->inputs[WEIGHTS_X], node->inputs[WEIGHTS_X]->dtype);
  return prepare_step(device, "batch_norm_apply", step, kernel);
}

static Status prepare_weights(CudaDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  const Tensor *x = node->inputs[WEIGHTS_X];
  Tensor *dw = node->outputs[0], *made = dw;
  CudnnProblem problem;
  VL_TRY(check_layouts(kernel));
  Weights *own = vl_allocate(sizeof *own);
  kernel->data = own;
  if (node->input_count > WEIGHTS_MEAN) {
    VL_TRY(prepare_normalise(device, kernel, &own->normalise));
    x = &own->normalise.between;
  }
  if (dw->dtype != x->dtype) {
    made = between_like(&own->widen, dw, x->dtype);
    VL_TRY(prepare_cast(device, made, dw, &own->widen, kernel));
  }
  cudnn_problem(device, node, CONV_WEIGHTS, x, made, node->inputs[WEIGHTS_DY], &problem);
  VL_TRY(cudnn_plan_find(device, node, &problem, &own->plan));
  own->plan_at_bytes = kernel->workspace_bytes;
  kernel->workspace_bytes += own->plan->workspace_bytes;
  describe(kernel, own->plan, "");
  return vl_ok();
}

static Status build_weights(CudaDevice *device, Kernel *kernel) {
  Weights *own = kernel->data;
  VL_TRY(build_step(device, &own->normalise));
  return build_step(device, &own->widen);
}

static Status launch_weights(const Kernel *kernel, const CudaLaunch *launch) {
  const Weights *own = kernel->data;
  bool widens = own->widen.kernel.op != NULL;
  uintptr_t x = launch->inputs[WEIGHTS_X],
            made = widens ? between_of(&own->widen, launch) : launch->outputs[0];
  if (own->normalise.kernel.op) {
    uintptr_t inputs[WEIGHTS_INPUTS - WEIGHTS_MEAN + 1] = {x};
    for (int32_t i = WEIGHTS_MEAN; i < WEIGHTS_INPUTS; i++)
      inputs[i - WEIGHTS_MEAN + 1] = launch->inputs[i];
    x = between_of(&own->normalise, launch);
    VL_TRY(launch_step(&own->normalise, launch, inputs, x));
  }
  const uintptr_t addresses[CONV_OPERANDS] = {x, made, launch->inputs[WEIGHTS_DY]};
  VL_TRY(cudnn_plan_launch(kernel->device, kernel->node, own->plan, addresses,
                           launch->workspace + (uintptr_t)own->plan_at_bytes));
  return widens ? launch_step(&own->widen, launch, &made, launch->outputs[0]) : vl_ok();
}

static void destroy_weights(CudaDevice *device, Kernel *kernel) {
  Weights *own = kernel->data;
  if (!own) return;
  destroy_step(device, &own->normalise);
  destroy_step(device, &own->widen);
}

const CudaOp cuda_op_conv = {.name = "conv",
                             .supports = supports,
                             .choose_layouts = cuda_choose_channels_last,
                             .prepare = prepare_forward,
                             .build = build_forward,
                             .launch = launch_forward,
                             .destroy = destroy_forward};
const CudaOp cuda_op_conv_epilogue = {.name = "conv_epilogue",
                                      .supports = supports,
                                      .choose_layouts = cuda_choose_channels_last,
                                      .prepare = prepare_forward,
                                      .build = build_forward,
                                      .launch = launch_forward,
                                      .destroy = destroy_forward};
const CudaOp cuda_op_conv_backward_data = {.name = "conv_backward_data",
                                           .supports = supports,
                                           .choose_layouts = cuda_choose_channels_last,
                                           .prepare = prepare_data,
                                           .launch = launch_data};
const CudaOp cuda_op_conv_transpose = {.name = "conv_transpose",
                                       .supports = supports,
                                       .choose_layouts = cuda_choose_channels_last,
                                       .prepare = prepare_data,
                                       .launch = launch_data};
const CudaOp cuda_op_conv_backward_weights = {.name = "conv_backward_weights",
                                              .supports = supports,
                                              .choose_layouts = cuda_choose_channels_last,
                                              .prepare = prepare_weights,
                                              .build = build_weights,
                                              .launch = launch_weights,
                                              .destroy = destroy_weights};
