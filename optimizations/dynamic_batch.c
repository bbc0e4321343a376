/* dynamic-batch: of a queue of samples of different sizes (--queue), as many of one size at once as fit the
 * capacity, by planning each. in-order takes the queue as it comes, so that only neighbours of one size share
 * a batch; bucketed takes all of one size together, the largest size first. The engine sizes and runs the
 * batches; a program is what it is for its number of samples. */
#include "optimizations/internal.h"

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_dynamic_batch, value, "in-order, bucketed");
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)program;
  (void)value;
  (void)target;
  return vl_ok();
}

/* Each batch is an optimizer step: other batches are another training. */
static Preserves preserves_in(const Program *program, const char *value) {
  (void)value;
  return program->training ? PRESERVES_DIFFERENT_MODEL : PRESERVES_TOLERANCE;
}

const Optimization optimization_dynamic_batch = {
    .name = "dynamic-batch",
    .also_called = "dynamic batch size, bucketing, length bucketing, batch by size, max tokens a batch",
    .turn_on =
        "no equivalent by itself: a DataLoader's batch_sampler that yields indices of samples of one size",
    .values = "in-order, bucketed",
    .help = "with --queue: as many samples of one size a batch as fit the capacity, in the queue's order or "
            "size by "
            "size",
    .phase = PHASE_CASE,
    .preserves = PRESERVES_DIFFERENT_MODEL,
    .check = check,
    .apply = apply,
    .preserves_in = preserves_in,
};
