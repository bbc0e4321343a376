/* algorithms=deterministic: of the ways that a library has to compute something, none whose sums depend on
 * timing; the same bits every time. algorithms=timed: the fastest, found by running some of them before the
 * first step. A property of the device's kernels: the graph stays as it is, and what has no choice of its own
 * is refused where the device is known. */
#include "optimizations/internal.h"

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_algorithms, value, "deterministic, timed");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)program;
  (void)value;
  (void)target;
  return vl_ok();
}

const Optimization optimization_algorithms = {
    .name = "algorithms",
    .also_called = "cudnn.benchmark, autotuning, use_deterministic_algorithms, cudnn.deterministic",
    .turn_on = "torch.backends.cudnn.benchmark = True",
    .values = "deterministic, timed",
    .help = "convolutions by the same bits every time, or by the fastest of several ways, found by trial",
    .phase = PHASE_POLICY,
    .preserves = PRESERVES_TOLERANCE,
    .check = check,
    .apply = apply,
};
