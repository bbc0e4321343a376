/* Every op of the cuda backend. Adding one: its file, a declaration and a line here. */
#include "kernels/cuda/cuda.h"

#include <string.h>

extern const CudaOp cuda_op_attention;
extern const CudaOp cuda_op_attention_backward;
extern const CudaOp cuda_op_batch_norm_apply;
extern const CudaOp cuda_op_batch_norm_backward;
extern const CudaOp cuda_op_batch_norm_invert;
extern const CudaOp cuda_op_batch_norm_stats;
extern const CudaOp cuda_op_batch_norm_update;
extern const CudaOp cuda_op_conv;
extern const CudaOp cuda_op_conv_backward_data;
extern const CudaOp cuda_op_conv_backward_weights;
extern const CudaOp cuda_op_conv_epilogue;
extern const CudaOp cuda_op_conv_transpose;
extern const CudaOp cuda_op_instance_norm;
extern const CudaOp cuda_op_instance_norm_backward;
extern const CudaOp cuda_op_layer_norm;
extern const CudaOp cuda_op_layer_norm_backward;
extern const CudaOp cuda_op_linear;
extern const CudaOp cuda_op_matmul;
extern const CudaOp cuda_op_residual_norm;
extern const CudaOp cuda_op_residual_norm_backward;
extern const CudaOp cuda_op_softmax;
extern const CudaOp cuda_op_softmax_backward;

/* clang-format off: a line each, which merges well */
static const CudaOp *const ops[] = {
    &cuda_op_attention,
    &cuda_op_attention_backward,
    &cuda_op_batch_norm_apply,
    &cuda_op_batch_norm_backward,
    &cuda_op_batch_norm_invert,
    &cuda_op_batch_norm_stats,
    &cuda_op_batch_norm_update,
    &cuda_op_conv,
    &cuda_op_conv_backward_data,
    &cuda_op_conv_backward_weights,
    &cuda_op_conv_epilogue,
    &cuda_op_conv_transpose,
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
/* clang-format on */

const CudaOp *cuda_op_find(const char *name) {
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (strcmp(ops[i]->name, name) == 0) return ops[i];
  return NULL;
}
