#include "harness/fit.h"
#include "harness/options.h"

#include <string.h>

/* Least intrusive first: an environment variable that changes no result; of inference by windows an argument,
 * for copies of what they say; a line around the model that makes it faster too; the loss in parts, a line in
 * its place for a few operations; what forbids clipping and accumulation but costs no operations; another
 * optimizer, whose results are near enough; recomputation, by how much of the forward pass is repeated;
 * copies to host memory and back, which cost what the bus does; and leaving PyTorch. What is another training
 * is not offered. */
static const FitStep ladder[] = {
    {.item = "allocator=expandable",
     .turn_on = "import os; os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"expandable_segments:True\""
                "  # before import torch"},
    {.item = "window-sums=host"},
    {.item = "attention=fused"},
    {.item = "amp=bf16", .where = FIT_WITH_BF16},
    {.item = "amp=fp16",
     .turn_on = "with torch.autocast(device_type, dtype=torch.float16):  # and a torch.amp.GradScaler",
     .where = FIT_WITHOUT_BF16},
    {.item = "weights=on-use"},
    {.item = "weights=once",
     .turn_on = "model = model.to(torch.bfloat16)  # rounds what autocast leaves in fp32 too",
     .inference_only = true},
    {.item = "fold=norm", .turn_on = "model = torch.fx.experimental.optimization.fuse(model.eval())"},
    {.item = "loss-chunks=8"},
    {.item = "update=in-backward"},
    {.item = "optimizer-state=8bit"},
    {.item = "checkpoint=auto"}, /* the fewest FLOPs that make it fit */
    {.item = "checkpoint=1"},
    {.item = "recompute=norm"},
    {.item = "offload=activations"},
    {.item = "offload=activations+optimizer"},
    {.item = "stack=vramlab",
     .replaces = "allocator",
     .turn_on = "no equivalent: vramlab's own fused and in-place layers (vramlab list optimizations)"},
};

const FitStep *vl_fit_ladder(int32_t *count) {
  *count = (int32_t)(sizeof ladder / sizeof ladder[0]);
  return ladder;
}

/* The characters of an item's key. */
static size_t key_length(const char *item) { return strcspn(item, "= \t\n"); }

/* Whether a text that begins with a key of that length begins with another item's. */
static bool is_key(const char *text, size_t length, const char *item) {
  return length == key_length(item) && strncmp(text, item, length) == 0;
}

const char *vl_fit_turn_on(const FitStep *step) {
  char key[VL_NAME_BYTES];
  if (step->turn_on) return step->turn_on;
  snprintf(key, sizeof key, "%.*s", (int)key_length(step->item), step->item);
  const Optimization *optimization = vl_optimization_find(key);
  return optimization ? optimization->turn_on : "no equivalent";
}

const char *vl_rung_end_name(RungEnd end) {
  static const char *const names[] = {"fits", "too-large", "no-gain", "refused"};
  return names[end];
}

double vl_rung_extra_flops(const Rung *rung) {
  int64_t without = rung->flops_per_step - rung->recompute_flops;
  return rung->recompute_flops > 0 && without > 0 ? (double)rung->recompute_flops / (double)without : 0.0;
}

/* The recipe with a step's item in the place of another value of its key; canonical. step NULL: as it is. */
static Status join(const char *recipe, const FitStep *step, char joined[VL_RECIPE_BYTES],
                   Preserves *preserves) {
  char text[2 * VL_RECIPE_BYTES] = "";
  size_t used = 0;
  const char *item = step ? step->item : NULL;
  for (const char *at = strcmp(recipe, "baseline") == 0 ? "" : recipe; *at;) {
    size_t length = strcspn(at, " \t\n"), key = key_length(at);
    bool replaced = item && (is_key(at, key, item) || (step->replaces && is_key(at, key, step->replaces)));
    if (!replaced) used += (size_t)snprintf(text + used, sizeof text - used, "%.*s ", (int)length, at);
    at += length;
    at += strspn(at, " \t\n");
  }
  if (item) used += (size_t)snprintf(text + used, sizeof text - used, "%s", item);
  if (used >= VL_RECIPE_BYTES)
    return vl_error(VL_INVALID, "with %s the recipe is longer than %d characters", item ? item : "",
                    VL_RECIPE_BYTES - 1);
  Recipe parsed;
  VL_TRY(vl_recipe_parse(text, &parsed));
  vl_recipe_format(&parsed, joined, VL_RECIPE_BYTES);
  *preserves = vl_recipe_preserves(&parsed, NULL);
  return vl_ok();
}

/* ---- One rung ------------------------------------------------------------------------------------------------ */

/* A recipe never changes the global batch: one that accumulates divides it. */
static Status plan(Runner *runner, const SuiteCell *start, const char *recipe, bool unlimited,
                   json_t **record) {
  SuiteCell cell = *start;
  snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "%s", recipe);
  VL_TRY(vl_cell_divide(&cell.spec, start->spec.micro_batch));
  cell.spec.unlimited = unlimited;
  if (vl_runner_stop_requested(runner)) return vl_error(VL_INTERRUPTED, "stopped before %s", recipe);
  return vl_runner_cell(runner, &cell, record, NULL, NULL);
}

static bool ended_as(const json_t *record, const char *status) {
  return strcmp(vl_record_text(record, "status"), status) == 0;
}

/* What is not a question of memory must not pass for one. */
static Status no_answer(const json_t *record, const char *recipe) {
  const char *status = vl_record_text(record, "status"), *error = vl_record_text(record, "error");
  return vl_error(strcmp(status, "unsupported") == 0 ? VL_UNSUPPORTED : VL_INTERNAL,
                  "the plan of %s ended as %s: %s", recipe, status, error ? error : "no reason given");
}

/* Under the capacity, so that freeing cached memory may make it fit; when it does not, without, to tell what
 * it would take. */
static Status plan_need(Runner *runner, const SuiteCell *start, const char *recipe, json_t **record) {
  VL_TRY(plan(runner, start, recipe, false, record));
  if (ended_as(*record, "oom")) {
    json_decref(*record);
    VL_TRY(plan(runner, start, recipe, true, record));
  }
  if (ended_as(*record, "ok")) return vl_ok();
  Status status = no_answer(*record, recipe);
  json_decref(*record);
  return status;
}

static Status try_rung(Runner *runner, const SuiteCell *start, Fit *fit, Rung *rung) {
  json_t *record;
  VL_TRY(plan_need(runner, start, rung->recipe, &record));
  rung->needed_bytes = vl_record_integer(record, "needed_bytes");
  rung->needed_low_bytes = vl_record_integer(record, "needed_low_bytes");
  rung->flops_per_step = vl_record_integer(record, "flops_per_step");
  rung->recompute_flops = vl_record_integer(record, "recompute_flops");
  rung->parameters = vl_record_integer(record, "params");
  const char *chosen = vl_record_text(record, "checkpoint_chosen");
  snprintf(rung->checkpoint_chosen, sizeof rung->checkpoint_chosen, "%s", chosen ? chosen : "");
  rung->end = rung->needed_bytes <= start->spec.capacity_bytes ? RUNG_FITS : RUNG_TOO_LARGE;
  const char *device = vl_record_text(record, "device_name"), *hardware = vl_record_text(record, "hardware");
  snprintf(fit->device, sizeof fit->device, "%s (%s)", device ? device : "plan",
           hardware ? hardware : "unknown");
  json_decref(record);
  return vl_ok();
}

/* ---- The ladder ------------------------------------------------------------------------------------------------ */

static Status climb_step(Runner *runner, const SuiteCell *start, const FitStep *step, int32_t *standing,
                         Fit *fit) {
  const Rung *below = &fit->rungs[*standing];
  Rung *rung = &fit->rungs[fit->rung_count];
  *rung = (Rung){.step = step,
                 .needed_bytes = -1,
                 .needed_low_bytes = -1,
                 .flops_per_step = -1,
                 .recompute_flops = -1,
                 .parameters = -1};
  VL_TRY(join(below->recipe, step, rung->recipe, &rung->preserves));
  for (int32_t i = 0; i < fit->rung_count; i++) /* part of the recipe already, or tried on the same one */
    if (strcmp(rung->recipe, fit->rungs[i].recipe) == 0) return vl_ok();
  fit->rung_count++;
  Status status = try_rung(runner, start, fit, rung);
  if (status.code == VL_UNSUPPORTED || status.code == VL_INVALID) {
    rung->end = RUNG_REFUSED;
    snprintf(rung->reason, sizeof rung->reason, "%s", status.message);
    return vl_ok();
  }
  VL_TRY(status);
  if (rung->end == RUNG_FITS && fit->answer < 0) fit->answer = fit->rung_count - 1;
  if (rung->needed_bytes < below->needed_bytes) {
    *standing = fit->rung_count - 1;
    return vl_ok();
  }
  char needed[32], before[32];
  vl_format_bytes(rung->needed_bytes, needed, sizeof needed);
  vl_format_bytes(below->needed_bytes, before, sizeof before);
  rung->end = RUNG_NO_GAIN;
  snprintf(rung->reason, sizeof rung->reason, "needs %s with it and %s without", needed, before);
  return vl_ok();
}

/* What had nothing to gain while the peak was elsewhere joins what came after it. Ends, since a recipe is
 * tried once. */
static Status climb_again(Runner *runner, const SuiteCell *start, bool all, int32_t *standing, Fit *fit) {
  for (int32_t i = 0; i < fit->rung_count && fit->rung_count < VL_MAX_RUNGS; i++) {
    if (fit->answer >= 0 && !all) break;
    if (fit->rungs[i].end == RUNG_NO_GAIN)
      VL_TRY(climb_step(runner, start, fit->rungs[i].step, standing, fit));
  }
  return vl_ok();
}

/* Whether what the job is for multiplies bf16 natively. */
static Status find_bf16(const CellSpec *spec, bool *has_bf16) {
  DeviceProfile profile = {.has_bf16 = true};
  if (*spec->profile) VL_TRY(vl_profile_load(NULL, spec->profile, &profile));
  *has_bf16 = profile.has_bf16;
  return vl_ok();
}

/* Steps for training do nothing in inference, and the other way round. */
static bool is_offered(const FitStep *step, bool inference) {
  char key[VL_NAME_BYTES];
  snprintf(key, sizeof key, "%.*s", (int)key_length(step->item), step->item);
  const Optimization *optimization = vl_optimization_find(key);
  if (!optimization) return true;
  return inference ? !optimization->training_only : !optimization->inference_only && !step->inference_only;
}

/* Nothing is advised beside what is a mistake. */
static Status check_no_mistake(const char *text) {
  Recipe recipe;
  VL_TRY(vl_recipe_parse(text, &recipe));
  const RecipeItem *mistake = vl_recipe_mistake(&recipe);
  if (!mistake) return vl_ok();
  return vl_error(VL_INVALID, "%s=%s is a mistake, made to be measured: fit begins without it",
                  mistake->optimization->name, mistake->value);
}

Status vl_fit_climb(Runner *runner, const SuiteCell *start, const FitStep *steps, int32_t step_count,
                    bool all, Fit *fit) {
  Rung *first = &fit->rungs[0];
  int32_t standing = 0;
  bool has_bf16;
  memset(fit, 0, sizeof *fit);
  fit->answer = -1;
  VL_TRY(join(start->spec.recipe, NULL, first->recipe, &first->preserves));
  VL_TRY(check_no_mistake(first->recipe));
  VL_TRY(try_rung(runner, start, fit, first));
  fit->rung_count = 1;
  if (first->end == RUNG_FITS) fit->answer = 0;
  VL_TRY(find_bf16(&start->spec, &has_bf16));
  for (int32_t i = 0; i < step_count && fit->rung_count < VL_MAX_RUNGS; i++) {
    if (fit->answer >= 0 && !all) break;
    if (steps[i].where == (has_bf16 ? FIT_WITHOUT_BF16 : FIT_WITH_BF16)) continue;
    if (!is_offered(&steps[i], start->spec.inference)) continue;
    VL_TRY(climb_step(runner, start, &steps[i], &standing, fit));
  }
  VL_TRY(climb_again(runner, start, all, &standing, fit));
  fit->leanest = standing; /* what joins always needs less */
  return vl_ok();
}

/* ---- The largest batch ------------------------------------------------------------------------------------------- */

/* Leaves out of a recipe what refuses a program that accumulates. */
static Status drop_excluded(const SuiteCell *cell, char recipe[VL_RECIPE_BYTES]) {
  const Case *of = vl_case_find(cell->spec.case_name);
  const char *settings[VL_MAX_SETTINGS];
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  Recipe whole;
  Program program;
  if (!of) return vl_error(VL_INVALID, "unknown case '%s'", cell->spec.case_name);
  for (int32_t i = 0; i < cell->spec.setting_count; i++)
    settings[i] = cell->spec.settings[i];
  VL_TRY(vl_recipe_parse(recipe, &whole));
  VL_TRY(vl_case_arguments(of, of->arguments[0].low, settings, cell->spec.setting_count, values));
  VL_TRY(vl_recipe_arguments(&whole, of, values));
  VL_TRY(of->build(values, true, &program));
  program.accumulate = 2;
  Recipe kept = {.stack_vramlab = whole.stack_vramlab};
  for (int32_t i = 0; i < whole.count; i++) {
    const RecipeItem *item = &whole.items[i];
    if (item->optimization->check(&program, item->value, &whole).code != VL_UNSUPPORTED)
      kept.items[kept.count++] = *item;
  }
  vl_program_destroy(&program);
  vl_recipe_format(&kept, recipe, VL_RECIPE_BYTES);
  return vl_ok();
}

static Status search(Runner *runner, const SuiteCell *start, int64_t capacity_bytes, FitBatch *found) {
  SuiteCell cell = *start;
  json_t *record;
  found->batch = found->needed_bytes = 0;
  if (capacity_bytes <= 0) return vl_ok();
  cell.max_batch = true;
  cell.spec.capacity_bytes = capacity_bytes;
  snprintf(cell.spec.recipe, sizeof cell.spec.recipe, "%s", found->recipe);
  VL_TRY(vl_runner_max_batch(runner, &cell, &record));
  found->batch = vl_record_integer(record, "batch");
  if (found->batch > 0) found->needed_bytes = vl_record_integer(record, "needed_bytes");
  json_decref(record);
  return vl_ok();
}

/* What gains nothing for the whole batch may for a smaller one, whose peak is elsewhere. */
static Status try_larger(Runner *runner, const SuiteCell *start, const FitStep *step, FitBatch *whole) {
  FitBatch with;
  Preserves preserves;
  VL_TRY(join(whole->recipe, step, with.recipe, &preserves));
  if (strcmp(with.recipe, whole->recipe) == 0) return vl_ok();
  Status status = search(runner, start, start->spec.capacity_bytes, &with);
  if (status.code == VL_UNSUPPORTED || status.code == VL_INVALID)
    return vl_ok(); /* not with what came after */
  if (status.code == VL_OK && with.batch > whole->batch) *whole = with;
  return status;
}

/* The whole step in the fewest micro-batches that fit. */
static Status divide_step(Runner *runner, const SuiteCell *start, FitBatch *part) {
  char automatic[VL_RECIPE_BYTES], item[32];
  Preserves preserves;
  json_t *record;
  VL_TRY(drop_excluded(start, part->recipe));
  VL_TRY(join(part->recipe, &(FitStep){.item = "accumulate=auto"}, automatic, &preserves));
  VL_TRY(plan(runner, start, automatic, false, &record));
  Status status = ended_as(record, "ok") || ended_as(record, "oom") ? vl_ok() : no_answer(record, automatic);
  if (ended_as(record, "ok")) {
    part->batch = vl_record_integer(record, "micro_batch");
    part->accumulate = vl_record_integer(record, "accumulate");
    part->needed_bytes = vl_record_integer(record, "needed_bytes");
    snprintf(item, sizeof item, "accumulate=%lld", (long long)part->accumulate);
    status = join(automatic, &(FitStep){.item = item}, part->recipe, &preserves);
  }
  json_decref(record);
  return status;
}

Status vl_fit_largest(Runner *runner, const SuiteCell *start, const Fit *fit, FitBatch *whole,
                      FitBatch *part) {
  const Rung *leanest = &fit->rungs[fit->leanest];
  int64_t capacity = start->spec.capacity_bytes;
  snprintf(whole->recipe, sizeof whole->recipe, "%s", leanest->recipe);
  VL_TRY(search(runner, start, capacity, whole));
  for (int32_t i = 0; i < fit->rung_count; i++)
    if (fit->rungs[i].end == RUNG_NO_GAIN) VL_TRY(try_larger(runner, start, fit->rungs[i].step, whole));
  *part = (FitBatch){0};
  snprintf(part->recipe, sizeof part->recipe, "%s", whole->recipe);
  return start->spec.inference ? vl_ok() : divide_step(runner, start, part);
}
