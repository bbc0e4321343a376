/* window-sums=host: what windows that slide over a volume say of its voxels is added up in host memory
 * instead of the device's, which then holds no number for every class and voxel of the volume. */
#include "optimizations/internal.h"

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  VL_TRY(optimization_one_of(&optimization_window_sums, value, "host"));
  if (!program || (program->logits && program->logits->rank == 5)) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "window-sums=%s: %s has no volumes that windows slide over", value,
                  program->graph->name);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  program->window_sums_on_host = true;
  return vl_ok();
}

const Optimization optimization_window_sums = {
    .name = "window-sums",
    .also_called = "sliding window on the CPU, stitching on the host, perform_everything_on_device=False",
    .turn_on = "no equivalent in PyTorch itself; MONAI: sliding_window_inference(..., sw_device=\"cuda\", "
               "device=\"cpu\"); nnU-Net: perform_everything_on_device=False",
    .values = "host",
    .help = "inference: add up in host memory what sliding windows say of a volume",
    .phase = PHASE_POLICY,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
