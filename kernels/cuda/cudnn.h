/* kernels/cuda: convolutions by cuDNN's graph API, for conv.c. A problem is described as a graph of cuDNN's
 * operations; heuristics name the engines that could run it; the first that may and can becomes its plan,
 * which the device keeps. */
#ifndef VRAMLAB_KERNELS_CUDA_CUDNN_H
#define VRAMLAB_KERNELS_CUDA_CUDNN_H

#include "kernels/cuda/cuda.h"

#include <cudnn_graph.h>

/* What is computed: y of x and w, x's gradient of y's and w, or w's gradient of x and y's. */
typedef enum ConvDirection { CONV_FORWARD = 0, CONV_DATA, CONV_WEIGHTS } ConvDirection;
/* Tensors of a convolution, gradients or not. The last two are added to y, which a ReLU may follow. */
typedef enum ConvOperand { CONV_X = 0, CONV_W, CONV_Y, CONV_BIAS, CONV_RESIDUAL, CONV_OPERANDS } ConvOperand;

enum { CONV_MAX_DIMS = 5, CONV_ABSENT = -1 };

/* A convolution in all that a plan depends on; compared as bytes, so begun by cudnn_problem. All but the bias
 * is channels last. */
typedef struct CudnnProblem {
  int32_t direction, rank; /* a ConvDirection; 4 or 5 */
  int64_t x[CONV_MAX_DIMS], w[CONV_MAX_DIMS], y[CONV_MAX_DIMS];
  int64_t stride[3], padding[3];
  int32_t dtype[CONV_OPERANDS];     /* DTypes; CONV_ABSENT: not there */
  int32_t alignment[CONV_OPERANDS]; /* bytes */
  int32_t relu;
  int32_t adds; /* 1: y's products are added to what y holds; forward only, with nothing behind them */
  int32_t tf32; /* 1: f32 may be multiplied in TF32 */
} CudnnProblem;

/* The convolution of a node with stride and padding from its params, without bias, residual and ReLU. */
void cudnn_problem(CudaDevice *device, const Node *node, ConvDirection direction, const Tensor *x,
                   const Tensor *w, const Tensor *y, CudnnProblem *problem);
/* Adds an operand to the problem: the bias, or the residual. */
void cudnn_problem_add(CudnnProblem *problem, ConvOperand operand, const Tensor *tensor);

typedef struct CudnnPlan {
  int64_t workspace_bytes;
  char name[64]; /* "cuDNN engine 11" */
  cudnnBackendDescriptor_t plan;
} CudnnPlan;

/* The problem's plan, made at the first call and kept by the device. VL_UNSUPPORTED when no engine computes
 * it as asked. */
Status cudnn_plan_find(CudaDevice *device, const Node *node, const CudnnProblem *problem,
                       const CudnnPlan **plan) VL_CHECKED;
/* Queues a plan on the device's stream. Addresses by ConvOperand, 0 where absent. */
Status cudnn_plan_launch(const CudaDevice *device, const Node *node, const CudnnPlan *plan,
                         const uintptr_t *addresses, uintptr_t workspace) VL_CHECKED;

/* Descriptors made one after another; after a failure nothing more is done. */
enum { CUDNN_MAX_DESCRIPTORS = 32 };
typedef struct CudnnDescriptors {
  cudnnBackendDescriptor_t made[CUDNN_MAX_DESCRIPTORS];
  int32_t count;
  cudnnStatus_t status;
  const char *failed; /* the step that did */
} CudnnDescriptors;

/* Describes a problem by tensors and finalized operations, for which cuDNN needs no GPU. Returns how many
 * operations there are; descriptors->status tells whether all went well. */
enum { CUDNN_MAX_OPERATIONS = 4 };
int32_t cudnn_describe(const CudnnProblem *problem, CudnnDescriptors *descriptors,
                       cudnnBackendDescriptor_t *operations);
void cudnn_descriptors_destroy(CudnnDescriptors *descriptors);

/* What plans are made for: the card of a handle, or, with no card at hand, one that is described
 * (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). */
typedef struct CudnnTarget {
  cudnnHandle_t handle;                /* NULL: none */
  cudnnBackendDescriptor_t properties; /* NULL: the handle's card's */
  bool deterministic;
  const CudaDevice *trials; /* where candidates are run and the fastest is taken; NULL: the first one is */
} CudnnTarget;
/* Makes a plan out of descriptors, which it needs as long as it is. VL_UNSUPPORTED when no engine computes
 * the problem as asked. */
Status cudnn_plan_make(const CudnnTarget *target, const Node *node, const CudnnProblem *problem,
                       CudnnDescriptors *descriptors, CudnnPlan *plan) VL_CHECKED;

#endif
