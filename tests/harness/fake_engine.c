/* The engine's cell functions, taken by the program's test twin: cells do as they are told in --data. Specs
 * are checked as far as a case and a recipe go. */
#include "tests/harness/fake_cells.h"

#include <stdlib.h>
#include <string.h>

void vl_cell_spec_init(CellSpec *spec) {
  *spec = (CellSpec){.device = "cpu", .micro_batch = 1, .warmup = 1, .steps = 3};
}

void vl_cell_result_clear(CellResult *result) {
  free(result->step_s);
  free(result->losses);
  free(result->timeline);
  memset(result, 0, sizeof *result);
}

Status vl_cell_check(const CellSpec *spec) {
  Recipe recipe;
  if (!vl_case_find(spec->case_name)) return vl_error(VL_INVALID, "unknown case '%s'", spec->case_name);
  return vl_recipe_parse(spec->recipe, &recipe);
}

Status vl_cell_run(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  return fake_cell_run(spec, observer, result);
}
