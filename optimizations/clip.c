/* clip=<max norm>: all gradients together are scaled down to that norm where theirs is larger, after a loss
 * scale is taken away and before the update (Pascanu et al., arXiv:1211.5063). */
#include "optimizations/internal.h"

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  double norm;
  (void)program;
  (void)recipe;
  return optimization_positive(&optimization_clip, value, &norm);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  if (!program->training) return vl_ok();
  return optimization_positive(&optimization_clip, value, &program->max_norm);
}

const Optimization optimization_clip = {
    .name = "clip",
    .also_called = "gradient clipping, clip_grad_norm_, max_grad_norm",
    .turn_on = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    .values = "a norm above 0",
    .help = "scale all gradients down to this norm where theirs is larger (another training)",
    .phase = PHASE_PRECISION, /* known before the updates are added */
    .preserves = PRESERVES_DIFFERENT_MODEL,
    .training_only = "there are no gradients",
    .check = check,
    .apply = apply,
};
