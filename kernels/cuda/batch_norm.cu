/* Batch norm: statistics, application, running statistics, gradient, and its inverse. */
#include "kernels/cuda/channel_norm.cuh"

extern "C" {
extern const CudaOp cuda_op_batch_norm_stats, cuda_op_batch_norm_apply, cuda_op_batch_norm_update,
    cuda_op_batch_norm_backward, cuda_op_batch_norm_invert;
}

namespace {

/* Inputs and outputs as README.md of graph/ops lists them; those of invert are apply's. */
enum { IN_X, IN_MEAN, IN_VAR, IN_GAMMA, IN_BETA, IN_RESIDUAL };
enum { BACK_DY, BACK_X, BACK_MEAN, BACK_VAR, BACK_GAMMA, BACK_BETA, BACK_Y, BACK_DY2 };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA, OUT_DRESIDUAL };

/* Mean, var and gamma follow each other from input `first` on. */
ChannelFactors factors_from(const Kernel *kernel, const CudaLaunch *launch, int32_t first, int32_t beta) {
  ChannelFactors by = {};
  by.mean = (const float *)launch->inputs[first];
  by.var = (const float *)launch->inputs[first + 1];
  by.gamma = input_array(kernel, launch, first + 2);
  by.beta = input_array(kernel, launch, beta);
  by.epsilon = kernel->node->params.epsilon;
  return by;
}

/* ---- Statistics ------------------------------------------------------------------------------------------------ */

Status stats_prepare(CudaDevice *, Kernel *kernel) {
  VL_TRY(channel_norm_check(kernel, 0));
  const Tensor *x = kernel->node->inputs[0];
  ChannelRows rows = channel_rows(x, false);
  kernel->workspace_bytes = channel_statistics_bytes(&rows);
  return vl_ok();
}

Status stats_launch(const Kernel *kernel, const CudaLaunch *launch) {
  ChannelRows rows = channel_rows(kernel->node->inputs[0], false);
  return channel_statistics(kernel, launch, &rows, input_array(kernel, launch, 0),
                            (float *)output_array(kernel, launch, 0).at,
                            (float *)output_array(kernel, launch, 1).at, NULL);
}

/* ---- Application and its inverse --------------------------------------------------------------------------------- */

Status apply_prepare(CudaDevice *, Kernel *kernel) { return channel_norm_check(kernel, IN_X); }

Status apply_launch(const Kernel *kernel, const CudaLaunch *launch) {
  ChannelRows rows = channel_rows(kernel->node->inputs[IN_X], false);
  ChannelApply apply = {};
  apply.x = input_array(kernel, launch, IN_X);
  apply.y = output_array(kernel, launch, 0);
  apply.residual = input_array(kernel, launch, IN_RESIDUAL).at;
  apply.by = factors_from(kernel, launch, IN_MEAN, IN_BETA);
  apply.slope = kernel->node->params.relu != 0 ? 0.0F : 1.0F;
  return channel_apply(kernel, launch, &rows, &apply);
}

Status invert_launch(const Kernel *kernel, const CudaLaunch *launch) {
  ChannelRows rows = channel_rows(kernel->node->inputs[IN_X], false);
  ChannelApply apply = {};
  apply.y = input_array(kernel, launch, IN_X);
  apply.x = output_array(kernel, launch, 0);
  apply.by = factors_from(kernel, launch, IN_MEAN, IN_BETA);
  return channel_invert(kernel, launch, &rows, &apply);
}

/* ---- Running statistics --------------------------------------------------------------------------------------------
 * r = (1 - momentum) r + momentum s, in double, rounded once; s of the variance is var * count / (count - 1).
 */

__global__ void update(int64_t channels, double momentum, double unbiased, const float *mean,
                       const float *var, const float *old_mean, const float *old_var,
                       const int64_t *old_batches, float *new_mean, float *new_var, int64_t *new_batches) {
  int64_t c = global_index();
  if (c < channels) {
    new_mean[c] = (float)((1.0 - momentum) * (double)old_mean[c] + momentum * (double)mean[c]);
    new_var[c] = (float)((1.0 - momentum) * (double)old_var[c] + momentum * unbiased * (double)var[c]);
  }
  if (c == 0) *new_batches = *old_batches + 1;
}

Status update_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const OpParams *params = &kernel->node->params;
  const uintptr_t *inputs = launch->inputs, *outputs = launch->outputs;
  int64_t channels = vl_tensor_elements(kernel->node->inputs[0]);
  cudaError_t error = cuda_launch(
      update, grid_for(channels, 128), 128, 0, launch->stream, channels, params->momentum,
      (double)params->count / (double)(params->count - 1), (const float *)inputs[0], (const float *)inputs[1],
      (const float *)inputs[2], (const float *)inputs[3], (const int64_t *)inputs[4], (float *)outputs[0],
      (float *)outputs[1], (int64_t *)outputs[2]);
  return cuda_status(error, "running statistics", kernel->node);
}

/* ---- Gradient ------------------------------------------------------------------------------------------------------- */

Status backward_prepare(CudaDevice *, Kernel *kernel) {
  VL_TRY(channel_norm_check(kernel, BACK_X));
  const Tensor *x = kernel->node->inputs[BACK_X];
  ChannelRows rows = channel_rows(x, false);
  kernel->workspace_bytes = channel_gradient_bytes(&rows);
  return vl_ok();
}

Status backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  ChannelRows rows = channel_rows(kernel->node->inputs[BACK_X], false);
  ChannelGradient gradient = {};
  gradient.x = input_array(kernel, launch, BACK_X);
  gradient.dy = input_array(kernel, launch, BACK_DY).at;
  gradient.dy2 = input_array(kernel, launch, BACK_DY2).at;
  gradient.y = input_array(kernel, launch, BACK_Y).at;
  gradient.dx = output_array(kernel, launch, OUT_DX).at;
  gradient.dresidual = output_array(kernel, launch, OUT_DRESIDUAL).at;
  gradient.dgamma = (float *)output_array(kernel, launch, OUT_DGAMMA).at;
  gradient.dbeta = (float *)output_array(kernel, launch, OUT_DBETA).at;
  gradient.by = factors_from(kernel, launch, BACK_MEAN, BACK_BETA);
  if (kernel->node->params.relu != 0) gradient.mask = gradient.y ? CHANNEL_MASK_BY_Y : CHANNEL_MASK_BY_X;
  return channel_gradient(kernel, launch, &rows, &gradient);
}

} // namespace

const CudaOp cuda_op_batch_norm_stats = {
    .name = "batch_norm_stats",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_channels_last,
    .prepare = stats_prepare,
    .launch = stats_launch,
};

const CudaOp cuda_op_batch_norm_apply = {
    .name = "batch_norm_apply",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_channels_last,
    .prepare = apply_prepare,
    .launch = apply_launch,
};

const CudaOp cuda_op_batch_norm_update = {
    .name = "batch_norm_update",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_plain,
    .launch = update_launch,
};

const CudaOp cuda_op_batch_norm_backward = {
    .name = "batch_norm_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_channels_last,
    .prepare = backward_prepare,
    .launch = backward_launch,
};

const CudaOp cuda_op_batch_norm_invert = {
    .name = "batch_norm_invert",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_channels_last,
    .prepare = apply_prepare,
    .launch = invert_launch,
};
