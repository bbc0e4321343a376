/* Arguments of a case that a recipe sets. Apart from running a cell, so that the command line can ask for
 * them where a test has another runner in the cell's place. */
#include "engine/engine.h"
#include <string.h>

/* What `list` finds of the cases that take an argument, for a message. */
static void name_cases_with(const char *argument, char *names, size_t size) {
  int32_t count;
  const Case *const *all = vl_case_all(&count);
  snprintf(names, size, "none");
  for (int32_t c = 0, found = 0; c < count; c++) {
    for (int32_t i = 0; i < all[c]->argument_count; i++) {
      size_t used = found > 0 ? strlen(names) : 0;
      if (strcmp(all[c]->arguments[i].name, argument) != 0 || used >= size) continue;
      snprintf(names + used, size - used, "%s%s", found++ > 0 ? ", " : "", all[c]->name);
    }
  }
}

static Status set_from_recipe(const RecipeItem *item, const Case *of, int64_t *values) {
  const char *name = item->optimization->case_argument;
  for (int32_t i = 0; i < of->argument_count; i++) {
    const CaseArgument *argument = &of->arguments[i];
    if (strcmp(argument->name, name) != 0) continue;
    int64_t before = values[i];
    VL_TRY(vl_parse_integer(name, item->value, argument->low, argument->high, &values[i]));
    if (before == argument->default_value || before == values[i]) return vl_ok();
    return vl_error(VL_INVALID, "%s is set to %lld, and the recipe says %s=%s", name, (long long)before, name,
                    item->value);
  }
  char others[256];
  name_cases_with(name, others, sizeof others);
  return vl_error(VL_UNSUPPORTED, "%s=%s: case %s has no argument %s; cases that have it: %s",
                  item->optimization->name, item->value, of->name, name, others);
}

Status vl_recipe_arguments(const Recipe *recipe, const Case *of, int64_t *values) {
  for (int32_t i = 0; i < recipe->count; i++) {
    if (recipe->items[i].optimization->case_argument) VL_TRY(set_from_recipe(&recipe->items[i], of, values));
  }
  return vl_ok();
}
