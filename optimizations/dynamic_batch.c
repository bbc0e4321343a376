/* dynamic-batch: of a queue of samples of different sizes (--queue), as many of one size at once as fit the
 * capacity, by planning each. in-order takes the queue as it comes, so that only neighbours of one size share
 * a batch; bucketed takes all of one size together, the largest size first. A size behind the value is a
 * budget of the recipe's own: batches need no more, however much there is. The engine sizes and runs the
 * batches; a program is what it is for its number of samples. */
#include "optimizations/internal.h"
#include <string.h>

static Status parse(const char *value, DynamicBatch *dynamic) {
  char mode[VL_RECIPE_VALUE_BYTES];
  snprintf(mode, sizeof mode, "%.*s", (int)strcspn(value, ":"), value);
  *dynamic = (DynamicBatch){.bucketed = strcmp(mode, "bucketed") == 0};
  VL_TRY(optimization_one_of(&optimization_dynamic_batch, mode, "in-order, bucketed"));
  const char *size = strchr(value, ':');
  if (!size) return vl_ok();
  VL_TRY(vl_parse_bytes(size + 1, &dynamic->budget_bytes));
  if (dynamic->budget_bytes > 0) return vl_ok();
  return vl_error(VL_INVALID, "dynamic-batch=%s: a budget of nothing holds no sample", value);
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  DynamicBatch dynamic;
  return parse(value, &dynamic);
}

bool vl_dynamic_batch(const Recipe *recipe, DynamicBatch *dynamic) {
  const char *value = vl_recipe_value(recipe, "dynamic-batch");
  *dynamic = (DynamicBatch){0};
  return value && parse(value, dynamic).code == VL_OK;
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
    .values = "in-order[:12GiB], bucketed[:12GiB] (a budget; without one the capacity)",
    .help = "with --queue: as many samples of one size a batch as fit the capacity, or a budget, in the "
            "queue's order or size by size",
    .phase = PHASE_CASE,
    .preserves = PRESERVES_DIFFERENT_MODEL,
    .check = check,
    .apply = apply,
    .preserves_in = preserves_in,
};
