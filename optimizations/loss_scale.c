/* loss-scale=dynamic: the loss is multiplied before differentiation so that small gradients survive fp16, and
 * a step whose gradients overflowed is skipped and the scale halved (torch.amp.GradScaler, Micikevicius et
 * al., arXiv:1710.03740). On with amp=fp16 unless a recipe says otherwise. A number is a scale that stays;
 * steps that overflow are skipped all the same. */
#include "optimizations/internal.h"
#include <string.h>

static bool is_fp16(const Program *program, const Recipe *recipe) {
  const char *amp = vl_recipe_value(recipe, "amp");
  return program ? program->amp == DTYPE_F16 : amp && strcmp(amp, "fp16") == 0;
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  double scale;
  if (strcmp(value, "off") == 0) return vl_ok();
  if (strcmp(value, "dynamic") != 0) VL_TRY(optimization_positive(&optimization_loss_scale, value, &scale));
  if (is_fp16(program, recipe)) return vl_ok();
  return vl_error(
      VL_UNSUPPORTED,
      "loss-scale=%s without amp=fp16: fp32 and bf16 have the range gradients need, so their scale "
      "stays 1",
      value);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (!program->training || strcmp(value, "off") == 0) return vl_ok();
  program->scaling = vl_loss_scaling_dynamic();
  if (strcmp(value, "dynamic") == 0) return vl_ok();
  program->scaling.growth = program->scaling.backoff = 1.0;
  return optimization_positive(&optimization_loss_scale, value, &program->scaling.initial);
}

const Optimization optimization_loss_scale = {
    .name = "loss-scale",
    .also_called = "loss scaling, gradient scaling, GradScaler, dynamic loss scale, static loss scale",
    .turn_on =
        "scaler = torch.amp.GradScaler(device_type); scaler.scale(loss).backward(); scaler.step(optimizer); "
        "scaler.update()",
    .values = "dynamic, off, or a number above 0",
    .help = "scale the loss for fp16 gradients, skip steps that overflow (amp=fp16: dynamic by itself)",
    .phase = PHASE_PRECISION,
    .preserves = PRESERVES_TOLERANCE,
    .training_only = "there is no loss",
    .check = check,
    .apply = apply,
};
