/* Every op of the cuda backend. Adding one: its file, a declaration and a line here. */
#include "kernels/cuda/cuda.h"

#include <string.h>

extern const CudaOp cuda_op_adamw;
extern const CudaOp cuda_op_adamw_8bit;
extern const CudaOp cuda_op_add;
extern const CudaOp cuda_op_attention;
extern const CudaOp cuda_op_attention_backward;
extern const CudaOp cuda_op_avg_pool;
extern const CudaOp cuda_op_avg_pool_backward;
extern const CudaOp cuda_op_batch_norm_apply;
extern const CudaOp cuda_op_batch_norm_backward;
extern const CudaOp cuda_op_batch_norm_invert;
extern const CudaOp cuda_op_batch_norm_stats;
extern const CudaOp cuda_op_batch_norm_update;
extern const CudaOp cuda_op_broadcast;
extern const CudaOp cuda_op_cast;
extern const CudaOp cuda_op_concat;
extern const CudaOp cuda_op_conv;
extern const CudaOp cuda_op_conv_backward_data;
extern const CudaOp cuda_op_conv_backward_weights;
extern const CudaOp cuda_op_conv_epilogue;
extern const CudaOp cuda_op_conv_transpose;
extern const CudaOp cuda_op_copy;
extern const CudaOp cuda_op_correct_count;
extern const CudaOp cuda_op_dice_cross_entropy;
extern const CudaOp cuda_op_dice_cross_entropy_backward;
extern const CudaOp cuda_op_dropout;
extern const CudaOp cuda_op_embedding;
extern const CudaOp cuda_op_embedding_backward;
extern const CudaOp cuda_op_fill;
extern const CudaOp cuda_op_gather_tokens;
extern const CudaOp cuda_op_gather_tokens_backward;
extern const CudaOp cuda_op_gelu;
extern const CudaOp cuda_op_gelu_backward;
extern const CudaOp cuda_op_global_avg_pool;
extern const CudaOp cuda_op_global_avg_pool_backward;
extern const CudaOp cuda_op_gradient_factor;
extern const CudaOp cuda_op_instance_norm;
extern const CudaOp cuda_op_instance_norm_backward;
extern const CudaOp cuda_op_layer_norm;
extern const CudaOp cuda_op_layer_norm_backward;
extern const CudaOp cuda_op_linear;
extern const CudaOp cuda_op_magnitude;
extern const CudaOp cuda_op_magnitude_backward;
extern const CudaOp cuda_op_matmul;
extern const CudaOp cuda_op_max_pool;
extern const CudaOp cuda_op_max_pool_backward;
extern const CudaOp cuda_op_mul;
extern const CudaOp cuda_op_pad;
extern const CudaOp cuda_op_relu;
extern const CudaOp cuda_op_relu_backward;
extern const CudaOp cuda_op_reshape;
extern const CudaOp cuda_op_residual_norm;
extern const CudaOp cuda_op_residual_norm_backward;
extern const CudaOp cuda_op_rsqrt;
extern const CudaOp cuda_op_rsqrt_backward;
extern const CudaOp cuda_op_scale;
extern const CudaOp cuda_op_sgd;
extern const CudaOp cuda_op_slice;
extern const CudaOp cuda_op_softmax;
extern const CudaOp cuda_op_softmax_backward;
extern const CudaOp cuda_op_softmax_cross_entropy;
extern const CudaOp cuda_op_softmax_cross_entropy_backward;
extern const CudaOp cuda_op_square_sum;
extern const CudaOp cuda_op_sum;
extern const CudaOp cuda_op_tanh;
extern const CudaOp cuda_op_tanh_backward;
extern const CudaOp cuda_op_transpose;

/* clang-format off: a line each, which merges well */
static const CudaOp *const ops[] = {
    &cuda_op_adamw,
    &cuda_op_adamw_8bit,
    &cuda_op_add,
    &cuda_op_attention,
    &cuda_op_attention_backward,
    &cuda_op_avg_pool,
    &cuda_op_avg_pool_backward,
    &cuda_op_batch_norm_apply,
    &cuda_op_batch_norm_backward,
    &cuda_op_batch_norm_invert,
    &cuda_op_batch_norm_stats,
    &cuda_op_batch_norm_update,
    &cuda_op_broadcast,
    &cuda_op_cast,
    &cuda_op_concat,
    &cuda_op_conv,
    &cuda_op_conv_backward_data,
    &cuda_op_conv_backward_weights,
    &cuda_op_conv_epilogue,
    &cuda_op_conv_transpose,
    &cuda_op_copy,
    &cuda_op_correct_count,
    &cuda_op_dice_cross_entropy,
    &cuda_op_dice_cross_entropy_backward,
    &cuda_op_dropout,
    &cuda_op_embedding,
    &cuda_op_embedding_backward,
    &cuda_op_fill,
    &cuda_op_gather_tokens,
    &cuda_op_gather_tokens_backward,
    &cuda_op_gelu,
    &cuda_op_gelu_backward,
    &cuda_op_global_avg_pool,
    &cuda_op_global_avg_pool_backward,
    &cuda_op_gradient_factor,
    &cuda_op_instance_norm,
    &cuda_op_instance_norm_backward,
    &cuda_op_layer_norm,
    &cuda_op_layer_norm_backward,
    &cuda_op_linear,
    &cuda_op_magnitude,
    &cuda_op_magnitude_backward,
    &cuda_op_matmul,
    &cuda_op_max_pool,
    &cuda_op_max_pool_backward,
    &cuda_op_mul,
    &cuda_op_pad,
    &cuda_op_relu,
    &cuda_op_relu_backward,
    &cuda_op_reshape,
    &cuda_op_residual_norm,
    &cuda_op_residual_norm_backward,
    &cuda_op_rsqrt,
    &cuda_op_rsqrt_backward,
    &cuda_op_scale,
    &cuda_op_sgd,
    &cuda_op_slice,
    &cuda_op_softmax,
    &cuda_op_softmax_backward,
    &cuda_op_softmax_cross_entropy,
    &cuda_op_softmax_cross_entropy_backward,
    &cuda_op_square_sum,
    &cuda_op_sum,
    &cuda_op_tanh,
    &cuda_op_tanh_backward,
    &cuda_op_transpose,
};
/* clang-format on */

const CudaOp *cuda_op_find(const char *name) {
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (strcmp(ops[i]->name, name) == 0) return ops[i];
  return NULL;
}
