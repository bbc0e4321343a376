/* Recipes: "key=value key=value", in any order, applied in phase order. */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

/* stack=vramlab: our best with equal results. A key given beside it overrides its part. */
static const char *const stack_items[][2] = {
    {"fuse", "norm+bias-gelu"}, {"fold", "norm"},       {"pool-index", "u8"},
    {"attention", "fused"},     {"dropout", "redrawn"}, {"weights", "on-use"},
    {"inplace", "all"},         {"concat", "in-place"}, {"allocator", "planned"}};

/* What the stack says of a key: blocks that are to be moved have no planned places. */
static const char *stack_value(const Recipe *recipe, size_t item) {
  bool moved = strcmp(stack_items[item][0], "allocator") == 0 && vl_recipe_value(recipe, "defragment");
  return moved ? "caching" : stack_items[item][1];
}

static Status unknown_key(const char *key) {
  char known[512] = "stack";
  int32_t count;
  const Optimization *const *all = vl_optimization_all(&count);
  for (int32_t i = 0; i < count; i++) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, ", %s", all[i]->name);
  }
  return vl_error(VL_INVALID, "unknown optimization '%s' in the recipe (known: %s)", key, known);
}

static int32_t rank_of(const Optimization *optimization) {
  int32_t count;
  const Optimization *const *all = vl_optimization_all(&count);
  for (int32_t i = 0; i < count; i++) {
    if (all[i] == optimization) return i;
  }
  return count;
}

/* Keeps the items in table order. */
static Status insert(Recipe *recipe, const Optimization *optimization, const char *value) {
  if (recipe->count == VL_MAX_RECIPE_ITEMS) {
    return vl_error(VL_INVALID, "a recipe has at most %d entries", VL_MAX_RECIPE_ITEMS);
  }
  int32_t at = recipe->count;
  while (at > 0 && rank_of(recipe->items[at - 1].optimization) > rank_of(optimization)) {
    recipe->items[at] = recipe->items[at - 1];
    at--;
  }
  recipe->items[at].optimization = optimization;
  snprintf(recipe->items[at].value, VL_RECIPE_VALUE_BYTES, "%s", value);
  recipe->count++;
  return vl_ok();
}

static Status parse_stack(Recipe *recipe, const char *value, bool *seen) {
  if (*seen) return vl_error(VL_INVALID, "stack is given twice in the recipe");
  *seen = true;
  recipe->stack_vramlab = strcmp(value, "vramlab") == 0;
  if (recipe->stack_vramlab || strcmp(value, "pytorch") == 0) return vl_ok();
  return vl_error(VL_INVALID, "stack=%s: accepted values are pytorch, vramlab", value);
}

static Status parse_item(Recipe *recipe, char *item, bool *stack_seen) {
  char *equals = strchr(item, '=');
  if (equals) *equals = '\0';
  const char *value = equals ? equals + 1 : "";
  if (strcmp(item, "stack") == 0) return parse_stack(recipe, value, stack_seen);
  const Optimization *optimization = vl_optimization_find(item);
  if (!optimization) return unknown_key(item);
  if (vl_recipe_value(recipe, item)) return vl_error(VL_INVALID, "%s is given twice in the recipe", item);
  if (!*value || strlen(value) >= VL_RECIPE_VALUE_BYTES) {
    return vl_error(VL_INVALID, "%s needs a value of at most %d characters: %s=%s", item,
                    VL_RECIPE_VALUE_BYTES - 1, item, optimization->values);
  }
  return insert(recipe, optimization, value);
}

Status vl_recipe_parse(const char *text, Recipe *recipe) {
  *recipe = (Recipe){0};
  if (strcmp(text, "baseline") == 0) return vl_ok();
  char copy[512];
  if (strlen(text) >= sizeof copy)
    return vl_error(VL_INVALID, "the recipe is longer than %zu bytes", sizeof copy);
  snprintf(copy, sizeof copy, "%s", text);
  bool stack_seen = false;
  char *rest = NULL;
  for (char *item = strtok_r(copy, " \t\n", &rest); item; item = strtok_r(NULL, " \t\n", &rest)) {
    VL_TRY(parse_item(recipe, item, &stack_seen));
  }
  for (size_t i = 0; recipe->stack_vramlab && i < sizeof stack_items / sizeof *stack_items; i++) {
    if (vl_recipe_value(recipe, stack_items[i][0])) continue;
    VL_TRY(insert(recipe, vl_optimization_find(stack_items[i][0]), stack_value(recipe, i)));
  }
  for (int32_t i = 0; i < recipe->count; i++) { /* values that no program could accept */
    const RecipeItem *item = &recipe->items[i];
    Status status = item->optimization->check(NULL, item->value, recipe);
    if (status.code == VL_INVALID) return status;
  }
  return vl_ok();
}

const char *vl_recipe_value(const Recipe *recipe, const char *key) {
  for (int32_t i = 0; i < recipe->count; i++) {
    if (strcmp(recipe->items[i].optimization->name, key) == 0) return recipe->items[i].value;
  }
  return NULL;
}

/* Whether stack=vramlab already says this item. */
static bool implied(const Recipe *recipe, const RecipeItem *item) {
  for (size_t i = 0; recipe->stack_vramlab && i < sizeof stack_items / sizeof *stack_items; i++) {
    if (strcmp(item->optimization->name, stack_items[i][0]) == 0) {
      return strcmp(item->value, stack_value(recipe, i)) == 0;
    }
  }
  return false;
}

void vl_recipe_format(const Recipe *recipe, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "%s", recipe->stack_vramlab ? "stack=vramlab" : "");
  for (int32_t i = 0; i < recipe->count && used < size; i++) {
    const RecipeItem *item = &recipe->items[i];
    if (implied(recipe, item)) continue;
    used += (size_t)snprintf(text + used, size - used, "%s%s=%s", used ? " " : "", item->optimization->name,
                             item->value);
  }
  if (used == 0) snprintf(text, size, "baseline");
}

/* ---- Training or inference ---------------------------------------------------------------------------------- */

/* NULL when it has a place there. */
static const char *misplaced(const Optimization *optimization, bool training) {
  return training ? optimization->inference_only : optimization->training_only;
}

Status vl_recipe_check_mode(const Recipe *recipe, bool training) {
  for (int32_t i = 0; i < recipe->count; i++) {
    const RecipeItem *item = &recipe->items[i];
    const char *why = misplaced(item->optimization, training);
    if (why && !implied(recipe, item))
      return vl_error(VL_UNSUPPORTED, "%s=%s in %s: %s", item->optimization->name, item->value,
                      training ? "training" : "inference", why);
  }
  return vl_ok();
}

void vl_recipe_for_evaluation(const Recipe *recipe, Recipe *evaluation) {
  *evaluation = (Recipe){.stack_vramlab = recipe->stack_vramlab};
  for (int32_t i = 0; i < recipe->count; i++)
    if (!recipe->items[i].optimization->inference_only)
      evaluation->items[evaluation->count++] = recipe->items[i];
}

Preserves vl_recipe_preserves(const Recipe *recipe, const Program *program) {
  Preserves weakest = PRESERVES_BITWISE;
  for (int32_t i = 0; i < recipe->count; i++) {
    const Optimization *optimization = recipe->items[i].optimization;
    Preserves promise = optimization->preserves;
    if (program && misplaced(optimization, program->training)) continue;
    if (program && optimization->preserves_in)
      promise = optimization->preserves_in(program, recipe->items[i].value);
    if (promise > weakest) weakest = promise;
  }
  return weakest;
}

static Status run_phase(const Recipe *recipe, Phase phase, Program *program, const Target *target) {
  for (int32_t i = 0; i < recipe->count; i++) {
    const RecipeItem *item = &recipe->items[i];
    if (item->optimization->phase != phase || misplaced(item->optimization, program->training)) continue;
    VL_TRY(item->optimization->check(program, item->value, recipe));
    VL_TRY(item->optimization->apply(program, item->value, target));
  }
  return vl_ok();
}

/* Differentiation and updates. */
static Status complete_training(const Recipe *recipe, Program *program, const Target *target) {
  VL_TRY(vl_program_differentiate(program));
  VL_TRY(vl_program_add_updates(program));
  for (int32_t i = 0; i < recipe->count; i++) {
    const RecipeItem *item = &recipe->items[i];
    if (!item->optimization->apply_to_gradients) continue;
    VL_TRY(item->optimization->apply_to_gradients(program, item->value, target));
  }
  return vl_ok();
}

Status vl_recipe_apply(const Recipe *recipe, Program *program, const Target *target) {
  /* A saved convolution input can go before the data gradient is made; autograd makes both at once. */
  program->weight_gradient_first = program->release_gradients = recipe->stack_vramlab;
  program->gradients_onto = recipe->stack_vramlab;
  program->holds_variables = !program->training && !recipe->stack_vramlab;
  for (Phase phase = PHASE_CASE; phase <= PHASE_PRECISION; phase++) {
    VL_TRY(run_phase(recipe, phase, program, target));
  }
  bool own_scale = vl_recipe_value(recipe, "loss-scale") != NULL;
  if (program->training && program->amp == DTYPE_F16 && !own_scale)
    VL_TRY(optimization_loss_scale.apply(program, "dynamic", target));
  /* What the source program's attention does not fuse and its dropout stores is part of the baseline too;
   * what attention leaves for dropout comes with it. */
  const char *dropout = vl_recipe_value(recipe, "dropout");
  if (!vl_recipe_value(recipe, "attention")) VL_TRY(optimization_attention.apply(program, "source", target));
  VL_TRY(optimization_dropout.apply(program, dropout ? dropout : "stored", target));
  if (program->training) VL_TRY(complete_training(recipe, program, target));
  /* What the source program itself does in place is part of the baseline. */
  if (!vl_recipe_value(recipe, "inplace")) VL_TRY(optimization_inplace.apply(program, "source", target));
  for (Phase phase = PHASE_BACKWARD; phase <= PHASE_POLICY; phase++) {
    VL_TRY(run_phase(recipe, phase, program, target));
  }
  return vl_graph_check(program->graph);
}
