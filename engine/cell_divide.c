/* accumulate=auto: the fewest micro-batches that fit, by planning whole cells. */
#include "engine/cell.h"
#include <stdlib.h>
#include <string.h>

/* ---- accumulate=auto ---- */

/* The cell with its batch divided into `count` micro-batches, or fewer when the last would be empty. */
static CellSpec divide(const CellSpec *spec, int64_t count) {
  CellSpec divided = *spec;
  int64_t batch = spec->micro_batch, micro_batch = (batch + count - 1) / count;
  Recipe recipe;
  Status status = vl_recipe_parse(spec->recipe, &recipe);
  for (int32_t i = 0; status.code == VL_OK && i < recipe.count; i++) {
    RecipeItem *item = &recipe.items[i];
    if (strcmp(item->optimization->name, "accumulate") == 0)
      snprintf(item->value, sizeof item->value, "%lld", (long long)((batch + micro_batch - 1) / micro_batch));
  }
  vl_recipe_format(&recipe, divided.recipe, sizeof divided.recipe);
  divided.micro_batch = micro_batch;
  divided.global_batch = batch;
  return divided;
}

Status cell_plan_fits(const CellSpec *spec, bool low_end, bool *fits) {
  CellSpec probe = *spec;
  CellResult *planned = vl_allocate(sizeof *planned);
  snprintf(probe.device, sizeof probe.device, "plan");
  probe.warmup = probe.steps = 1;
  probe.unlimited = probe.timeline = probe.monitor = probe.cross_check = false;
  probe.data[0] = probe.save_state[0] = probe.load_state[0] = '\0';
  Status status = cell_run_at_end(&probe, NULL, low_end, planned);
  bool ok = strcmp(planned->status, "ok") == 0;
  *fits = !ok ? strcmp(planned->status, "oom") != 0
              : spec->capacity_bytes == 0 || planned->needed_bytes <= spec->capacity_bytes;
  vl_cell_result_clear(planned);
  free(planned);
  return status;
}

static Status fits(const CellSpec *spec, int64_t count, bool *fits) {
  CellSpec probe = divide(spec, count);
  return cell_plan_fits(&probe, false, fits);
}

/* The fewest micro-batches that fit; when none do, those of one sample, which then run out of memory. */
Status cell_decide_accumulate(CellSpec *spec) {
  int64_t fails = 0, count = 1;
  bool enough = false;
  for (;; count = 2 * count < spec->micro_batch ? 2 * count : spec->micro_batch) {
    VL_TRY(fits(spec, count, &enough));
    if (enough || count == spec->micro_batch) break;
    fails = count;
  }
  while (enough && fails + 1 < count) {
    int64_t middle = fails + (count - fails) / 2;
    VL_TRY(fits(spec, middle, &enough));
    *(enough ? &count : &fails) = middle;
    enough = true;
  }
  *spec = divide(spec, count);
  return vl_ok();
}
