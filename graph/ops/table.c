/* The table of ops: one line each. */
#include "graph/ops/ops.h"

#include <string.h>

static const Op *const ops[] = {
    &op_conv,
    &op_conv_backward_data,
    &op_conv_backward_weights,
    &op_conv_transpose,
    &op_conv_epilogue,
    &op_batch_norm_stats,
    &op_batch_norm_apply,
    &op_batch_norm_update,
    &op_batch_norm_backward,
    &op_batch_norm_invert,
    &op_layer_norm,
    &op_layer_norm_backward,
    &op_residual_norm,
    &op_residual_norm_backward,
    &op_instance_norm,
    &op_instance_norm_backward,
    &op_relu,
    &op_relu_backward,
    &op_magnitude,
    &op_magnitude_backward,
    &op_gelu,
    &op_gelu_backward,
    &op_tanh,
    &op_tanh_backward,
    &op_rsqrt,
    &op_rsqrt_backward,
    &op_add,
    &op_mul,
    &op_scale,
    &op_max_pool,
    &op_max_pool_backward,
    &op_avg_pool,
    &op_avg_pool_backward,
    &op_global_avg_pool,
    &op_global_avg_pool_backward,
    &op_linear,
    &op_matmul,
    &op_sum,
    &op_broadcast,
    &op_reshape,
    &op_transpose,
    &op_slice,
    &op_pad,
    &op_concat,
    &op_attention,
    &op_attention_backward,
    &op_embedding,
    &op_embedding_backward,
    &op_gather_tokens,
    &op_gather_tokens_backward,
    &op_dropout,
    &op_softmax,
    &op_softmax_backward,
    &op_softmax_cross_entropy,
    &op_softmax_cross_entropy_backward,
    &op_dice_cross_entropy,
    &op_dice_cross_entropy_backward,
    &op_correct_count,
    &op_cast,
    &op_copy,
    &op_fill,
    &op_square_sum,
    &op_gradient_factor,
    &op_sgd,
    &op_adamw,
    &op_adamw_8bit,
};

enum { OP_COUNT = sizeof ops / sizeof *ops };

const Op *vl_op_find(const char *name) {
  for (int i = 0; i < OP_COUNT; i++) {
    if (strcmp(ops[i]->name, name) == 0) return ops[i];
  }
  return NULL;
}

const Op *const *vl_op_all(int32_t *count) {
  *count = OP_COUNT;
  return ops;
}
