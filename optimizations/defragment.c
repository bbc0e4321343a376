/* defragment=every-step: between steps, blocks that live on (weights, optimizer state, statistics, inputs)
 * are moved together, and what is then free in whole is given back. Contents stay, and so does every result.
 */
#include "optimizations/internal.h"
#include <string.h>

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  VL_TRY(optimization_one_of(&optimization_defragment, value, "every-step"));
  const char *allocator = vl_recipe_value(recipe, "allocator");
  if (allocator && strcmp(allocator, "async") == 0)
    return vl_error(VL_INVALID,
                    "defragment=%s: with allocator=async blocks lie where the driver's pool puts them, and "
                    "there is nothing to move",
                    value);
  if (!allocator || strcmp(allocator, "planned") != 0) return vl_ok();
  return vl_error(VL_INVALID,
                  "defragment=%s: with allocator=planned blocks lie where they were planned, and "
                  "there is nothing to move",
                  value);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  program->defragment = true;
  return vl_ok();
}

const Optimization optimization_defragment = {
    .name = "defragment",
    .also_called = "compaction, defragmentation, empty_cache, torch.cuda.empty_cache",
    .turn_on =
        "no equivalent: PyTorch moves no tensor; torch.cuda.empty_cache() gives back what is free in whole",
    .values = "every-step",
    .help = "move what lives between steps together, and give free memory back",
    .phase = PHASE_POLICY,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
