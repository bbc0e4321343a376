/* Mistakes that are made, to be measured beside what is right. They are in recipes under names of their own,
 * and never advice.
 *
 * accumulate-wrong=n: each micro-batch averages over its own labels and the step over the micro-batches,
 * gradients are added up into new storage each time, and losses are kept with their graphs until the update
 * (total += loss / n; losses.append(loss); loss.backward(retain_graph=True)).
 *
 * retain-graph=every-step: what each step saved for its backward is never given back
 * (history.append(loss) with retain_graph=True): a leak. */
#include "optimizations/internal.h"
#include <string.h>

const RecipeItem *vl_recipe_mistake(const Recipe *recipe) {
  for (int32_t i = 0; i < recipe->count; i++)
    if (recipe->items[i].optimization->mistake) return &recipe->items[i];
  return NULL;
}

static Status check_wrong(const Program *program, const char *value, const Recipe *recipe) {
  int64_t count;
  VL_TRY(optimization_parse_accumulate(value, &count));
  if (count == 0) return vl_error(VL_INVALID, "accumulate-wrong=auto: a number is needed");
  if (vl_recipe_value(recipe, "accumulate"))
    return vl_error(VL_INVALID, "accumulate and accumulate-wrong exclude each other");
  return optimization_check_accumulate(program, count);
}

static Status apply_wrong(Program *program, const char *value, const Target *target) {
  (void)target;
  int64_t count;
  VL_TRY(optimization_parse_accumulate(value, &count));
  VL_TRY(optimization_accumulate_sums(program, count));
  program->accumulate_wrong = program->accumulate > 1;
  if (program->accumulate_wrong && program->retain == RETAIN_NOTHING) program->retain = RETAIN_STEP;
  return vl_ok();
}

const Optimization optimization_accumulate_wrong = {
    .name = "accumulate-wrong",
    .also_called = "mean of means, total_loss += loss",
    .turn_on = "no equivalent on purpose: a mistake, made to be measured (use accumulate)",
    .values = "n (micro-batches per step, at least 1)",
    .help = "a mistake: means of means, gradients added up out of place, every loss kept with its graph",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_DIFFERENT_MODEL,
    .training_only = "there are no gradients to add up",
    .mistake = true,
    .check = check_wrong,
    .apply = apply_wrong,
};

static Status check_retain(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_retain_graph, value, "every-step");
}

static Status apply_retain(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  if (program->training) program->retain = RETAIN_RUN;
  return vl_ok();
}

const Optimization optimization_retain_graph = {
    .name = "retain-graph",
    .also_called = "retain_graph=True, history.append(loss)",
    .turn_on = "no equivalent on purpose: a mistake, made to be measured (keep loss.item(), not loss)",
    .values = "every-step",
    .help = "a mistake: what each step saved for backward is never given back, a leak",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is kept for a backward pass",
    .mistake = true,
    .check = check_retain,
    .apply = apply_retain,
};
