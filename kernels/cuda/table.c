/* Every op of the cuda backend. Adding one: its file, a declaration and a line here. */
#include "kernels/cuda/cuda.h"

#include <string.h>

extern const CudaOp cuda_op_attention, cuda_op_attention_backward;
extern const CudaOp cuda_op_batch_norm_apply, cuda_op_batch_norm_backward, cuda_op_batch_norm_invert;
extern const CudaOp cuda_op_batch_norm_stats, cuda_op_batch_norm_update;
extern const CudaOp cuda_op_instance_norm, cuda_op_instance_norm_backward;
extern const CudaOp cuda_op_layer_norm, cuda_op_layer_norm_backward;
extern const CudaOp cuda_op_linear, cuda_op_matmul;
extern const CudaOp cuda_op_residual_norm, cuda_op_residual_norm_backward;
extern const CudaOp cuda_op_softmax, cuda_op_softmax_backward;

static const CudaOp *const ops[] = {
    &cuda_op_attention,
    &cuda_op_attention_backward,
    &cuda_op_batch_norm_apply,
    &cuda_op_batch_norm_backward,
    &cuda_op_batch_norm_invert,
    &cuda_op_batch_norm_stats,
    &cuda_op_batch_norm_update,
    &cuda_op_instance_norm,
    &cuda_op_instance_norm_backward,
    &cuda_op_layer_norm,
    &cuda_op_layer_norm_backward,
    &cuda_op_linear,
    &cuda_op_matmul,
    &cuda_op_residual_norm,
    &cuda_op_residual_norm_backward,
    &cuda_op_softmax,
    &cuda_op_softmax_backward,
};

const CudaOp *cuda_op_find(const char *name) {
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (strcmp(ops[i]->name, name) == 0) return ops[i];
  return NULL;
}
