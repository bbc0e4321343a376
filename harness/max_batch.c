/* The largest batch under a capacity: doubling until one does not fit, then bisection. Memory only. */
#include "harness/harness.h"
#include "harness/options.h"

#include <string.h>

typedef struct Search {
  Runner *runner;
  SuiteCell cell;
  json_t *fitting; /* record of the largest that fitted */
  json_t *failing; /* record of the smallest that did not */
} Search;

static Status probe(void *context, int64_t micro_batch, bool *fits) {
  Search *search = context;
  json_t *record;
  if (vl_runner_stop_requested(search->runner)) return vl_error(VL_INTERRUPTED, "stopped while searching");
  search->cell.spec.micro_batch = micro_batch;
  VL_TRY(vl_runner_cell(search->runner, &search->cell, &record, NULL, NULL));
  const char *status = vl_record_text(record, "status");
  bool ok = strcmp(status, "ok") == 0, oom = strcmp(status, "oom") == 0;
  *fits = ok && vl_record_integer(record, "needed_bytes") <= search->cell.spec.capacity_bytes;
  json_t **place = *fits ? &search->fitting : &search->failing;
  const char *error = vl_record_text(record, "error");
  Status result = vl_ok();
  /* What is not a question of memory must not pass for one. */
  if (!ok && !oom)
    result = vl_error(strcmp(status, "unsupported") == 0 ? VL_UNSUPPORTED : VL_INTERNAL,
                      "at micro-batch %lld the plan ended as %s: %s", (long long)micro_batch, status,
                      error ? error : "no reason given");
  json_decref(*place);
  *place = record;
  return result;
}

static Status search_range(Search *search, int64_t high) {
  int64_t fitting = 0, next = 1, largest;
  for (bool fits = true; fits && next <= high; next *= 2) {
    VL_TRY(probe(search, next, &fits));
    if (!fits) {
      high = next - 1;
      break;
    }
    fitting = next;
  }
  return vl_bisect(fitting + 1, high, probe, search, &largest);
}

Status vl_runner_max_batch(Runner *runner, const SuiteCell *cell, json_t **record) {
  const Case *of = vl_case_find(cell->spec.case_name);
  int64_t accumulate;
  *record = NULL;
  VL_TRY(vl_recipe_accumulate(cell->spec.recipe, &accumulate));
  if (accumulate == 0)
    return vl_error(VL_INVALID, "accumulate=auto divides a given batch; the largest one needs a number");
  if (!of) return vl_error(VL_INVALID, "unknown case '%s'", cell->spec.case_name);
  Search search = {.runner = runner, .cell = *cell};
  search.cell.max_batch = false;
  Status status = search_range(&search, of->arguments[0].high);
  if (status.code == VL_OK) {
    char key[17];
    vl_cell_key(cell, key);
    *record = json_incref(search.fitting ? search.fitting : search.failing);
    json_object_set_new(*record, "kind", json_string("max-batch"));
    json_object_set_new(*record, "cell_key", json_string(key));
    json_object_set_new(*record, "batch",
                        json_integer(search.fitting ? vl_record_integer(search.fitting, "global_batch") : 0));
    json_object_del(json_object_get(*record, "null_reasons"), "batch");
  }
  json_decref(search.fitting);
  json_decref(search.failing);
  return status;
}
