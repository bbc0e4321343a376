/* Every op of the cpu backend. Adding one: its file, a declaration and a line here. */
#include "kernels/cpu/cpu.h"
#include <string.h>

extern const CpuOp cpu_op_attention, cpu_op_attention_backward;
extern const CpuOp cpu_op_cast, cpu_op_conv, cpu_op_conv_backward_data, cpu_op_conv_backward_weights,
    cpu_op_conv_epilogue, cpu_op_copy, cpu_op_linear, cpu_op_matmul;

extern const CpuOp cpu_op_layer_norm, cpu_op_layer_norm_backward, cpu_op_adamw, cpu_op_adamw_8bit, cpu_op_add,
    cpu_op_avg_pool, cpu_op_avg_pool_backward, cpu_op_batch_norm_apply, cpu_op_batch_norm_backward,
    cpu_op_batch_norm_stats, cpu_op_batch_norm_update, cpu_op_broadcast, cpu_op_correct_count, cpu_op_dropout,
    cpu_op_fill, cpu_op_gelu, cpu_op_gelu_backward, cpu_op_global_avg_pool, cpu_op_global_avg_pool_backward,
    cpu_op_max_pool, cpu_op_max_pool_backward, cpu_op_mul, cpu_op_pad, cpu_op_relu, cpu_op_relu_backward,
    cpu_op_reshape, cpu_op_scale, cpu_op_sgd, cpu_op_slice, cpu_op_softmax_cross_entropy,
    cpu_op_softmax_cross_entropy_backward, cpu_op_sum, cpu_op_transpose;

extern const CpuOp cpu_op_residual_norm, cpu_op_residual_norm_backward;
extern const CpuOp cpu_op_rsqrt, cpu_op_rsqrt_backward, cpu_op_magnitude, cpu_op_magnitude_backward,
    cpu_op_batch_norm_invert;
extern const CpuOp cpu_op_embedding, cpu_op_embedding_backward, cpu_op_gather_tokens,
    cpu_op_gather_tokens_backward, cpu_op_softmax, cpu_op_softmax_backward, cpu_op_tanh, cpu_op_tanh_backward;

extern const CpuOp cpu_op_instance_norm, cpu_op_instance_norm_backward, cpu_op_dice_cross_entropy,
    cpu_op_dice_cross_entropy_backward;

extern const CpuOp cpu_op_square_sum, cpu_op_gradient_factor;

extern const CpuOp cpu_op_concat, cpu_op_conv_transpose;

static const CpuOp *const ops[] = {
    &cpu_op_adamw,
    &cpu_op_adamw_8bit,
    &cpu_op_add,
    &cpu_op_attention,
    &cpu_op_attention_backward,
    &cpu_op_avg_pool,
    &cpu_op_avg_pool_backward,
    &cpu_op_batch_norm_apply,
    &cpu_op_batch_norm_backward,
    &cpu_op_batch_norm_invert,
    &cpu_op_batch_norm_stats,
    &cpu_op_batch_norm_update,
    &cpu_op_broadcast,
    &cpu_op_cast,
    &cpu_op_concat,
    &cpu_op_conv,
    &cpu_op_conv_backward_data,
    &cpu_op_conv_backward_weights,
    &cpu_op_conv_transpose,
    &cpu_op_conv_epilogue,
    &cpu_op_copy,
    &cpu_op_correct_count,
    &cpu_op_dice_cross_entropy,
    &cpu_op_dice_cross_entropy_backward,
    &cpu_op_dropout,
    &cpu_op_embedding,
    &cpu_op_embedding_backward,
    &cpu_op_fill,
    &cpu_op_gather_tokens,
    &cpu_op_gather_tokens_backward,
    &cpu_op_gelu,
    &cpu_op_gelu_backward,
    &cpu_op_global_avg_pool,
    &cpu_op_gradient_factor,
    &cpu_op_square_sum,
    &cpu_op_global_avg_pool_backward,
    &cpu_op_instance_norm,
    &cpu_op_instance_norm_backward,
    &cpu_op_layer_norm,
    &cpu_op_layer_norm_backward,
    &cpu_op_linear,
    &cpu_op_magnitude,
    &cpu_op_magnitude_backward,
    &cpu_op_matmul,
    &cpu_op_max_pool,
    &cpu_op_max_pool_backward,
    &cpu_op_mul,
    &cpu_op_pad,
    &cpu_op_relu,
    &cpu_op_relu_backward,
    &cpu_op_reshape,
    &cpu_op_residual_norm,
    &cpu_op_residual_norm_backward,
    &cpu_op_rsqrt,
    &cpu_op_rsqrt_backward,
    &cpu_op_scale,
    &cpu_op_sgd,
    &cpu_op_slice,
    &cpu_op_softmax,
    &cpu_op_softmax_backward,
    &cpu_op_softmax_cross_entropy,
    &cpu_op_softmax_cross_entropy_backward,
    &cpu_op_sum,
    &cpu_op_tanh,
    &cpu_op_tanh_backward,
    &cpu_op_transpose,
};

const CpuOp *cpu_op_find(const char *name) {
  for (size_t i = 0; i < sizeof ops / sizeof *ops; ++i)
    if (strcmp(ops[i]->name, name) == 0) return ops[i];
  return NULL;
}
