/* The engine's vl_cell_check and vl_cell_run, taken by the program's test twin: cells do as they are told in
 * --data. Specs are checked as far as a case and a recipe go. */
#include "tests/harness/fake_cells.h"

Status vl_cell_check(const CellSpec *spec) {
  Recipe recipe;
  if (!vl_case_find(spec->case_name)) return vl_error(VL_INVALID, "unknown case '%s'", spec->case_name);
  return vl_recipe_parse(spec->recipe, &recipe);
}

Status vl_cell_run(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  return fake_cell_run(spec, observer, result);
}
