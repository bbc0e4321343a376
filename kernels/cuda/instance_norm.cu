/* Instance norm, forward and backward, with the (leaky) ReLU that may end it: a group of rows a sample. */
#include "kernels/cuda/channel_norm.cuh"

extern "C" {
extern const CudaOp cuda_op_instance_norm, cuda_op_instance_norm_backward;
}

namespace {

/* Inputs and outputs as README.md of graph/ops lists them. */
enum { IN_X, IN_GAMMA, IN_BETA };
enum { OUT_Y, OUT_MEAN, OUT_RSTD };
enum { BACK_DY, BACK_X, BACK_MEAN, BACK_RSTD, BACK_GAMMA, BACK_BETA, BACK_DY2 };
enum { OUT_DX, OUT_DGAMMA, OUT_DBETA };

/* The workspace has statistics that are nobody's output, behind the sums. */
Status prepare(CudaDevice *, Kernel *kernel) {
  VL_TRY(channel_norm_check(kernel, IN_X));
  const Tensor *x = kernel->node->inputs[IN_X];
  ChannelRows rows = channel_rows(x, true);
  kernel->workspace_bytes =
      channel_statistics_bytes(&rows) + 2 * rows.groups * rows.channels * (int64_t)sizeof(float);
  return vl_ok();
}

Status launch(const Kernel *kernel, const CudaLaunch *launch) {
  const OpParams *params = &kernel->node->params;
  ChannelRows rows = channel_rows(kernel->node->inputs[IN_X], true);
  ChannelApply apply = {};
  apply.x = input_array(kernel, launch, IN_X);
  apply.y = output_array(kernel, launch, OUT_Y);
  apply.slope = params->relu != 0 ? (float)params->alpha : 1.0F;
  float *mean = (float *)output_array(kernel, launch, OUT_MEAN).at;
  float *rstd = (float *)output_array(kernel, launch, OUT_RSTD).at;
  float *spare = (float *)(launch->workspace + (uintptr_t)channel_statistics_bytes(&rows));
  if (mean == NULL) mean = spare;
  if (rstd == NULL) rstd = spare + rows.groups * rows.channels;
  apply.by.mean = mean;
  apply.by.rstd = rstd;
  apply.by.gamma = input_array(kernel, launch, IN_GAMMA);
  apply.by.beta = input_array(kernel, launch, IN_BETA);
  VL_TRY(channel_statistics(kernel, launch, &rows, apply.x, mean, NULL, rstd));
  return channel_apply(kernel, launch, &rows, &apply);
}

Status backward_prepare(CudaDevice *, Kernel *kernel) {
  VL_TRY(channel_norm_check(kernel, BACK_X));
  const Tensor *x = kernel->node->inputs[BACK_X];
  ChannelRows rows = channel_rows(x, true);
  kernel->workspace_bytes = channel_gradient_bytes(&rows);
  return vl_ok();
}

Status backward_launch(const Kernel *kernel, const CudaLaunch *launch) {
  const OpParams *params = &kernel->node->params;
  ChannelRows rows = channel_rows(kernel->node->inputs[BACK_X], true);
  ChannelGradient gradient = {};
  gradient.x = input_array(kernel, launch, BACK_X);
  gradient.dy = input_array(kernel, launch, BACK_DY).at;
  gradient.dy2 = input_array(kernel, launch, BACK_DY2).at;
  gradient.dx = output_array(kernel, launch, OUT_DX).at;
  gradient.dgamma = (float *)output_array(kernel, launch, OUT_DGAMMA).at;
  gradient.dbeta = (float *)output_array(kernel, launch, OUT_DBETA).at;
  gradient.by.mean = (const float *)launch->inputs[BACK_MEAN];
  gradient.by.rstd = (const float *)launch->inputs[BACK_RSTD];
  gradient.by.gamma = input_array(kernel, launch, BACK_GAMMA);
  gradient.by.beta = input_array(kernel, launch, BACK_BETA);
  gradient.mask = params->relu != 0 ? CHANNEL_MASK_BY_X : CHANNEL_MASK_NONE;
  gradient.slope = (float)params->alpha;
  return channel_gradient(kernel, launch, &rows, &gradient);
}

} // namespace

const CudaOp cuda_op_instance_norm = {
    .name = "instance_norm",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_channels_last,
    .prepare = prepare,
    .launch = launch,
};

const CudaOp cuda_op_instance_norm_backward = {
    .name = "instance_norm_backward",
    .supports = cuda_supports_floats,
    .choose_layouts = cuda_choose_channels_last,
    .prepare = backward_prepare,
    .launch = backward_launch,
};
