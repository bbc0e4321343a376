/* precision=tf32: products of fp32 tensors in TF32, which keeps ten bits of the mantissa, on tensor cores
 * that have it. A property of the device's kernels: the graph and its memory stay as they are, and what has
 * no TF32 is refused where the device is known. */
#include "optimizations/internal.h"

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_precision, value, "tf32");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)program;
  (void)value;
  (void)target;
  return vl_ok();
}

const Optimization optimization_precision = {
    .name = "precision",
    .also_called = "TF32, TensorFloat-32, allow_tf32, matmul precision",
    .turn_on = "torch.set_float32_matmul_precision(\"high\"); torch.backends.cudnn.allow_tf32 = True",
    .values = "tf32",
    .help = "fp32 products in TF32 where the device has it (GPUs of compute capability 8.0 on)",
    .phase = PHASE_PRECISION,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
};
