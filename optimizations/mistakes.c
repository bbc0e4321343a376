/* Mistakes that are made, to be measured beside what is right. They are in recipes under names of their own,
 * and never advice.
 *
 * accumulate-wrong=n: each micro-batch averages over its own labels and the step over the micro-batches,
 * gradients are added up into new storage each time, and losses are kept with their graphs until the update
 * (total += loss / n; losses.append(loss); loss.backward(retain_graph=True)).
 *
 * retain-graph=every-step: what each step saved for its backward is never given back
 * (history.append(loss) with retain_graph=True): a leak.
 *
 * The others are what `vramlab diagnose` has to find: keep-loss (the loss held with its graph until the
 * update), copy-weights, oversize-workspace, keep-recomputed and grow. */
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

/* ---- keep-loss --------------------------------------------------------------------------------------------- */

static Status check_keep_loss(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  if (vl_recipe_value(recipe, "retain-graph"))
    return vl_error(VL_INVALID, "keep-loss and retain-graph exclude each other");
  return optimization_one_of(&optimization_keep_loss, value, "until-update");
}

static Status apply_keep_loss(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  if (program->retain == RETAIN_NOTHING) program->retain = RETAIN_STEP;
  return vl_ok();
}

const Optimization optimization_keep_loss = {
    .name = "keep-loss",
    .also_called = "total_loss += loss, retain_graph=True",
    .turn_on = "no equivalent on purpose: a mistake, made to be measured (total_loss += loss.item())",
    .values = "until-update",
    .help = "a mistake: the loss is held with its graph, so what forward saved stays until the update",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is kept for a backward pass",
    .mistake = true,
    .check = check_keep_loss,
    .apply = apply_keep_loss,
};

/* ---- keep-recomputed ---------------------------------------------------------------------------------------- */

static Status check_keep_recomputed(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  if (!vl_recipe_value(recipe, "checkpoint") && !vl_recipe_value(recipe, "recompute"))
    return vl_error(VL_INVALID, "keep-recomputed needs checkpoint or recompute: nothing is made again");
  return optimization_one_of(&optimization_keep_recomputed, value, "until-update");
}

static Status apply_keep_recomputed(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  program->keep_recomputed = true;
  return vl_ok();
}

const Optimization optimization_keep_recomputed = {
    .name = "keep-recomputed",
    .also_called = "activations recomputed and not freed",
    .turn_on =
        "no equivalent on purpose: a mistake, made to be measured (keep no reference in checkpointed code)",
    .values = "until-update",
    .help = "a mistake: what recomputation makes again stays until the update",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .training_only = "nothing is made again",
    .mistake = true,
    .check = check_keep_recomputed,
    .apply = apply_keep_recomputed,
};

/* ---- copy-weights ------------------------------------------------------------------------------------------- */

static Status check_copy_weights(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  return optimization_one_of(&optimization_copy_weights, value, "fp32");
}

static Status apply_copy_weights(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  program->copies_weights = true;
  return vl_ok();
}

const Optimization optimization_copy_weights = {
    .name = "copy-weights",
    .also_called = "copy.deepcopy(model.state_dict()), second master copy",
    .turn_on = "no equivalent on purpose: a mistake, made to be measured (keep copies on the host)",
    .values = "fp32",
    .help = "a mistake: an fp32 copy of every weight stands on the device beside it",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .mistake = true,
    .check = check_copy_weights,
    .apply = apply_copy_weights,
};

/* ---- oversize-workspace, grow -------------------------------------------------------------------------------- */

static Status parse_size(const Optimization *of, const char *value, int64_t *bytes) {
  Status status = vl_parse_bytes(value, bytes);
  if (status.code == VL_OK && *bytes > 0 && *bytes <= INT64_C(1) << 40) return vl_ok();
  return vl_error(VL_INVALID, "%s=%s: accepted values are %s", of->name, value, of->values);
}

static Status check_oversize(const Program *program, const char *value, const Recipe *recipe) {
  int64_t bytes;
  (void)program;
  (void)recipe;
  return parse_size(&optimization_oversize_workspace, value, &bytes);
}

static Status apply_oversize(Program *program, const char *value, const Target *target) {
  (void)target;
  return parse_size(&optimization_oversize_workspace, value, &program->oversize_bytes);
}

const Optimization optimization_oversize_workspace = {
    .name = "oversize-workspace",
    .also_called = "cudnn.benchmark, algorithm chosen without a limit",
    .turn_on =
        "no equivalent on purpose: a mistake, made to be measured (torch.backends.cudnn.benchmark_limit)",
    .values = "a size (64MiB)",
    .help = "a mistake: the kernel with the most FLOPs in forward takes so much more workspace than it needs",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .mistake = true,
    .check = check_oversize,
    .apply = apply_oversize,
};

static Status check_grow(const Program *program, const char *value, const Recipe *recipe) {
  int64_t bytes;
  (void)program;
  (void)recipe;
  return parse_size(&optimization_grow, value, &bytes);
}

static Status apply_grow(Program *program, const char *value, const Target *target) {
  (void)target;
  return parse_size(&optimization_grow, value, &program->growth_bytes);
}

const Optimization optimization_grow = {
    .name = "grow",
    .also_called = "history.append(metric), slow leak",
    .turn_on = "no equivalent on purpose: a mistake, made to be measured (history.append(metric.item()))",
    .values = "a size (1KiB)",
    .help = "a mistake: every step leaves so many bytes behind, beside its loss",
    .phase = PHASE_SCHEDULE,
    .preserves = PRESERVES_BITWISE,
    .training_only = "it has no loss",
    .mistake = true,
    .check = check_grow,
    .apply = apply_grow,
};
