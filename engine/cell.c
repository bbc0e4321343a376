/* One cell from nothing to a result: check, set up, run its steps, classify how it ended. */
#include "engine/cell.h"
#include <stdlib.h>
#include <string.h>

static void set_argument(Cell *cell, const char *name, int64_t value) {
  for (int32_t i = 0; i < cell->workload->argument_count; i++) {
    if (strcmp(cell->workload->arguments[i].name, name) == 0) cell->values[i] = value;
  }
}

/* How the step's samples are divided. */
static Status check_division(const Cell *cell) {
  const CellSpec *spec = cell->spec;
  int64_t accumulate = vl_accumulate_count(&cell->recipe), global = spec->global_batch,
          micro = spec->micro_batch;
  if (spec->inference && accumulate != 1) {
    const char *key = vl_recipe_value(&cell->recipe, "accumulate") ? "accumulate" : "accumulate-wrong";
    return vl_error(VL_INVALID, "%s=%s with inference: there are no gradients to add up", key,
                    vl_recipe_value(&cell->recipe, key));
  }
  if (accumulate == 0) {
    if (spec->capacity_bytes > 0 || spec->profile[0]) return vl_ok();
    return vl_error(VL_INVALID, "accumulate=auto divides the batch until it fits: give the capacity "
                                "(--capacity 16GiB), or a number of micro-batches");
  }
  if (vl_recipe_value(&cell->recipe, "accumulate-wrong") && (global > 0 || spec->data[0]))
    return vl_error(VL_INVALID, "accumulate-wrong takes micro-batches of one size only, and no data file");
  if (global == 0 || (global + micro - 1) / micro == accumulate) return vl_ok();
  return vl_error(VL_INVALID, "%lld samples in micro-batches of %lld are %lld, not accumulate=%lld",
                  (long long)global, (long long)micro, (long long)((global + micro - 1) / micro),
                  (long long)accumulate);
}

/* A data file's sequences end where they end, and attention must know where. */
static Status decide_padding(Cell *cell) {
  const CellSpec *spec = cell->spec;
  if (!spec->data[0]) return vl_ok();
  for (int32_t i = 0; i < spec->setting_count; i++) {
    bool refuses = strncmp(spec->settings[i], "padding=", 8) == 0 && cell_argument(cell, "padding") == 0;
    if (refuses)
      return vl_error(
          VL_INVALID,
          "%s with --data: sequences of a data file end in padding, which attention must leave out "
          "(padding=1, or say nothing)",
          spec->settings[i]);
  }
  set_argument(cell, "padding", 1);
  return vl_ok();
}

/* What the recipe says about arguments is accepted, or unsupported, which is a result. */
static Status check_recipe_arguments(const Cell *cell) {
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  memcpy(values, cell->values, sizeof values);
  Status status = vl_recipe_arguments(&cell->recipe, cell->workload, values);
  return status.code == VL_UNSUPPORTED ? vl_ok() : status;
}

static Status check_spec(Cell *cell) {
  const CellSpec *spec = cell->spec;
  cell->workload = vl_case_find(spec->case_name);
  if (!cell->workload) {
    char known[256] = "";
    int32_t count;
    const Case *const *all = vl_case_all(&count);
    for (int32_t i = 0; i < count; i++) {
      size_t used = strlen(known);
      snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", all[i]->name);
    }
    return vl_error(VL_INVALID, "unknown case '%s' (known: %s)", spec->case_name, known);
  }
  const char *settings[VL_MAX_SETTINGS];
  for (int32_t i = 0; i < spec->setting_count; i++)
    settings[i] = spec->settings[i];
  VL_TRY(vl_case_arguments(cell->workload, spec->micro_batch, settings, spec->setting_count, cell->values));
  VL_TRY(decide_padding(cell));
  if (spec->data[0]) set_argument(cell, "volume", 0); /* there are real ones */
  VL_TRY(vl_recipe_parse(spec->recipe, &cell->recipe));
  VL_TRY(check_recipe_arguments(cell));
  if (spec->steps < 1 || spec->steps > VL_MAX_STEPS) {
    return vl_error(VL_INVALID, "steps is %d; accepted: 1 to %d", spec->steps, VL_MAX_STEPS);
  }
  if (spec->warmup < 1 || spec->warmup > VL_MAX_STEPS) {
    return vl_error(VL_INVALID, "warmup is %d; accepted: 1 to %d (the first step also fills caches)",
                    spec->warmup, VL_MAX_STEPS);
  }
  if (spec->monitor && spec->warmup + spec->steps > VL_MAX_MONITORED_STEPS) {
    return vl_error(VL_INVALID, "%d monitored steps; accepted: %d at most, since each keeps what it did",
                    spec->warmup + spec->steps, VL_MAX_MONITORED_STEPS);
  }
  VL_TRY(check_division(cell));
  VL_TRY(cell_check_queue(cell));
  VL_TRY(cell_check_inject(spec));
  if (spec->diagnose && *spec->queue)
    return vl_error(VL_INVALID, "diagnose: not with a queue, whose steps differ");
  if (spec->diagnose && spec->timeline)
    return vl_error(VL_INVALID, "diagnose and timeline watch the same step: choose one");
  if (spec->max_time_s > 0 && !(spec->max_noise > 0))
    return vl_error(
        VL_INVALID,
        "--max-time ends what --max-noise began, which is not given; --steps tells how many steps");
  if (spec->max_noise > 0 && (spec->timeline || spec->monitor || spec->cross_check || spec->queue[0]))
    return vl_error(VL_INVALID, "a largest noise decides how many steps there are: not with a timeline, "
                                "monitor, cross-check or queue");
  if (spec->capacity_bytes < 0 || spec->offload_capacity_bytes < 0)
    return vl_error(VL_INVALID, "capacity must not be negative");
  if (spec->data[0] && spec->device[0] == 'p') {
    return vl_error(VL_INVALID, "--data needs a device that computes, not plan");
  }
  return vl_ok();
}

Status vl_cell_check(const CellSpec *spec) {
  Cell cell = {.spec = spec};
  VL_TRY(check_spec(&cell));
  if (strcmp(spec->device, "cpu") != 0 && strcmp(spec->device, "cuda") != 0 &&
      strcmp(spec->device, "plan") != 0) {
    return vl_error(VL_INVALID, "unknown device '%s' (known: cpu, cuda, plan)", spec->device);
  }
  if (spec->profile[0] && strcmp(spec->device, "plan") != 0) {
    return vl_error(VL_INVALID, "a profile is for device plan, not %s", spec->device);
  }
  return vl_ok();
}

/* Writes a recipe into a spec with another value of one of its keys. */
Status cell_set_value(const Recipe *of, const char *key, const char *value, CellSpec *spec) {
  Recipe recipe = *of;
  for (int32_t i = 0; i < recipe.count; i++) {
    RecipeItem *item = &recipe.items[i];
    if (strcmp(item->optimization->name, key) == 0) snprintf(item->value, sizeof item->value, "%s", value);
  }
  vl_recipe_format(&recipe, spec->recipe, sizeof spec->recipe);
  if (strlen(spec->recipe) < sizeof spec->recipe - 1) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "with %s=%s the recipe is longer than %d characters", key, value,
                  VL_RECIPE_BYTES - 2);
}

/* The peak query of a Target: plans this cell with another value of a key of its recipe. */
Status cell_plan_needed(void *context, const char *key, const char *value, int64_t *bytes) {
  const Cell *cell = context;
  CellSpec spec = *cell->spec;
  VL_TRY(cell_set_value(&cell->recipe, key, value, &spec));
  snprintf(spec.device, sizeof spec.device, "plan");
  spec.data[0] = spec.save_state[0] = spec.load_state[0] = '\0';
  spec.unlimited = true;
  spec.timeline = spec.cross_check = false;
  CellResult *planned = vl_allocate(sizeof *planned);
  Status status = cell_run_at_end(&spec, NULL, cell->low_end, planned);
  *bytes = planned->needed_bytes;
  if (status.code == VL_OK && strcmp(planned->status, "ok") != 0)
    status = vl_error(VL_UNSUPPORTED, "the plan of %s ended as %s: %s", spec.recipe, planned->status,
                      planned->error);
  vl_cell_result_clear(planned);
  free(planned);
  return status;
}

/* Held-out loss, accuracy and Dice with the evaluation graph on the same State. */
static Status evaluate_trained(Cell *cell) {
  Program program;
  Recipe recipe;
  vl_recipe_for_evaluation(&cell->recipe, &recipe);
  VL_TRY(cell_build_program(cell, &recipe, false, cell->spec->micro_batch, &program));
  program.window_sums_on_host = true; /* what a training step leaves need not hold them */
  Executable *executable = NULL;
  VL_TRY(vl_executable_create(&program, cell->device, cell->state, &executable));
  Inputs *inputs = NULL;
  Status status = vl_executable_build(executable);
  if (status.code == VL_OK) status = vl_inputs_create(executable, cell->device, cell->heap, &inputs);
  if (status.code == VL_OK) {
    Run run = cell->run;
    run.executable = executable;
    run.samples = 0;
    status = engine_feed_evaluate(cell->feed, &run, inputs, cell->result);
  }
  vl_inputs_destroy(&inputs);
  vl_executable_destroy(&executable);
  return status;
}

/* The same with the program whose steps were measured. What whole volumes need on top of a step counts. */
static Status evaluate_inferred(Cell *cell) {
  CellResult *result = cell->result;
  Run run = cell->run;
  run.executable = cell->executable;
  run.tail = NULL;
  run.samples = 0;
  cell->stage = "forward";
  VL_TRY(engine_feed_evaluate(cell->feed, &run, cell->inputs, result));
  int64_t before = result->peak_allocated_bytes;
  cell_take_peaks(cell, true);
  if (result->peak_allocated_bytes > before && !vl_executable_program(cell->executable)->window_sums_on_host)
    engine_account_besides(MEMORY_ACTIVATION, "window sums", engine_feed_window_sums_bytes(cell->feed),
                           &result->account);
  return vl_ok();
}

static Status run_cell(Cell *cell) {
  if (cell->spec->queue[0]) return cell_run_queue(cell);
  VL_TRY(cell_set_up(cell));
  VL_TRY(cell_run_steps(cell));
  bool evaluates = cell->spec->data[0];
  cell_take_leaks(cell);
  if (evaluates && cell->spec->inference) VL_TRY(evaluate_inferred(cell));
  cell_take_driver(cell);
  cell_measure_tracker(cell);
  VL_TRY(cell_take_scaler(cell));
  VL_TRY(cell_take_outputs(cell));
  if (evaluates && !cell->spec->inference) VL_TRY(evaluate_trained(cell));
  if (cell->spec->save_state[0]) {
    VL_TRY(vl_state_save(cell->state, cell->spec->save_state,
                         cell->first_step + cell->spec->warmup + cell->spec->steps, cell->spec->seed));
  }
  return cell_record_ops(cell);
}

/* Out of memory, divergence and unsupported are results. */
static Status classify(Cell *cell, Status status) {
  CellResult *result = cell->result;
  const char *name = status.code == VL_OK              ? "ok"
                     : status.code == VL_OUT_OF_MEMORY ? "oom"
                     : status.code == VL_DIVERGED      ? "diverged"
                     : status.code == VL_UNSUPPORTED   ? "unsupported"
                                                       : NULL;
  if (!name) return status;
  snprintf(result->status, sizeof result->status, "%s", name);
  snprintf(result->error, sizeof result->error, "%s", status.message);
  if (status.code == VL_DIVERGED) {
    cell_take_peaks(cell, true);
    cell_take_driver(cell);
    VL_TRY(cell_take_scaler(cell));
  }
  if (status.code != VL_OUT_OF_MEMORY) return vl_ok();
  snprintf(result->oom_segment, sizeof result->oom_segment, "%s", cell->stage);
  if (result->peak_count > 0) cell_take_leaks(cell);
  if (cell->heap) {
    HeapFailure failure = vl_heap_last_failure(cell->heap);
    if (failure.request_bytes == 0 && cell->offload_heap) failure = vl_heap_last_failure(cell->offload_heap);
    result->oom_request_bytes = failure.request_bytes;
    result->oom_largest_free_bytes = failure.largest_free_bytes;
    cell_take_peaks(cell, result->warmup_peak_reserved_bytes >= 0);
  }
  return vl_ok();
}

Status cell_run_at_end(const CellSpec *spec, const CellObserver *observer, bool low_end, CellResult *result) {
  Cell cell = {.spec = spec, .observer = observer, .low_end = low_end, .result = result, .stage = "setup"};
  vl_cell_result_init(result);
  VL_TRY(vl_cell_check(spec));
  VL_TRY(check_spec(&cell));
  vl_recipe_format(&cell.recipe, result->recipe, sizeof result->recipe);
  snprintf(result->stack, sizeof result->stack, "%s", cell.recipe.stack_vramlab ? "vramlab" : "pytorch");
  snprintf(result->preserves, sizeof result->preserves, "%s",
           vl_preserves_name(vl_recipe_preserves(&cell.recipe, NULL)));
  result->micro_batch = spec->micro_batch;
  result->global_batch = spec->global_batch > 0 ? spec->global_batch : spec->micro_batch;
  Status status = classify(&cell, run_cell(&cell));
  cell_tear_down(&cell);
  return status;
}

/* At both ends of a profile's intervals. */
static Status run_divided(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  VL_TRY(cell_run_at_end(spec, observer, false, result));
  if (!spec->profile[0]) return vl_ok();
  /* What was chosen for the upper end is what runs. */
  CellSpec same = *spec;
  Recipe recipe;
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  if (*result->checkpoint_chosen)
    VL_TRY(cell_set_value(&recipe, "checkpoint", result->checkpoint_chosen, &same));
  snprintf(same.queue_batches, sizeof same.queue_batches, "%s", result->queue_batches);
  CellResult *low = vl_allocate(sizeof *low);
  Status status = cell_run_at_end(&same, NULL, true, low);
  result->needed_low_bytes = low->needed_bytes;
  vl_cell_result_clear(low);
  free(low);
  return status;
}

Status vl_cell_run(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  Recipe recipe;
  CellSpec divided = *spec;
  vl_cell_result_init(result);
  VL_TRY(vl_cell_check(spec));
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  if (vl_accumulate_count(&recipe) == 0) VL_TRY(cell_decide_accumulate(&divided));
  VL_TRY(run_divided(&divided, observer, result));
  vl_recipe_format(&recipe, result->recipe, sizeof result->recipe);
  return vl_ok();
}
