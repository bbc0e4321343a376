/* One cell from nothing to a result: build, compile, allocate, warm up, measure. */
#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Mark {
  int64_t event_count;
  Segment segment;
} Mark;

/* The program for what a window leaves over: fewer samples than a micro-batch. */
typedef struct Tail {
  int64_t samples;
  Executable *executable;
  Inputs *inputs;
} Tail;

typedef struct Cell {
  const CellSpec *spec;
  const CellObserver *observer;
  bool low_end; /* of a profile's intervals */
  CellResult *result;
  const Case *workload;
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  Recipe recipe;
  Device *device;
  Tracker *tracker;
  Heap *heap;
  Tracker *offload_tracker; /* of the offload tier, where the recipe uses one */
  Heap *offload_heap;
  Tracker *emulation_tracker; /* with its heap only where kernels are emulated */
  Heap *emulation;
  State *state;
  Executable *executable;
  Inputs *inputs;
  Tail tails[2]; /* of a batch that the micro-batch does not divide, and of an epoch's last one */
  int32_t tail_count;
  Feed *feed;
  Retained retained;
  LiveNames *names_before; /* what lived after the first step */
  Run run;
  int64_t first_step; /* of this run: 0, or where the loaded state ended */
  const char *stage;  /* where an allocation fails outside a step */
  int64_t driver_start_bytes;
  Monitor *monitor; /* where the spec asks for it */
  Mark *marks;
  int64_t mark_count, mark_capacity;
  bool marks_segments; /* in this step, for the timeline */
} Cell;

/* The value of a case argument by name, or -1. */
static int64_t argument(const Cell *cell, const char *name) {
  for (int32_t i = 0; i < cell->workload->argument_count; i++) {
    if (strcmp(cell->workload->arguments[i].name, name) == 0) return cell->values[i];
  }
  return -1;
}

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
  if (spec->data[0]) set_argument(cell, "padding", 1); /* its sequences end where they end */
  VL_TRY(vl_recipe_parse(spec->recipe, &cell->recipe));
  if (spec->steps < 1 || spec->steps > VL_MAX_STEPS) {
    return vl_error(VL_INVALID, "steps is %d; accepted: 1 to %d", spec->steps, VL_MAX_STEPS);
  }
  if (spec->warmup < 1 || spec->warmup > VL_MAX_STEPS) {
    return vl_error(VL_INVALID, "warmup is %d; accepted: 1 to %d (the first step also fills caches)",
                    spec->warmup, VL_MAX_STEPS);
  }
  VL_TRY(check_division(cell));
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

static Status run_at_end(const CellSpec *spec, const CellObserver *observer, bool low_end,
                         CellResult *result);

/* Writes a recipe into a spec with another value of one of its keys. */
static Status set_value(const Recipe *of, const char *key, const char *value, CellSpec *spec) {
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
static Status plan_needed(void *context, const char *key, const char *value, int64_t *bytes) {
  const Cell *cell = context;
  CellSpec spec = *cell->spec;
  VL_TRY(set_value(&cell->recipe, key, value, &spec));
  snprintf(spec.device, sizeof spec.device, "plan");
  spec.data[0] = spec.save_state[0] = spec.load_state[0] = '\0';
  spec.unlimited = true;
  spec.timeline = false;
  CellResult *planned = vl_allocate(sizeof *planned);
  Status status = run_at_end(&spec, NULL, cell->low_end, planned);
  *bytes = planned->needed_bytes;
  if (status.code == VL_OK && strcmp(planned->status, "ok") != 0)
    status = vl_error(VL_UNSUPPORTED, "the plan of %s ended as %s: %s", spec.recipe, planned->status,
                      planned->error);
  vl_cell_result_clear(planned);
  free(planned);
  return status;
}

/* A profile's memory is a capacity too. What plan says holds for the same machine's cpu. */
static Target target_of(Cell *cell) {
  const DeviceDescription *device = &cell->result->device;
  Target target = {.capacity_bytes = cell->spec->capacity_bytes,
                   .ranks = 1,
                   .unlimited = cell->spec->unlimited,
                   .context = cell};
  if (target.capacity_bytes == 0 && cell->spec->profile[0]) target.capacity_bytes = device->memory_bytes;
  if (strcmp(cell->spec->device, "cuda") != 0) target.needed = plan_needed;
  return target;
}

static Status build_program(Cell *cell, const Recipe *recipe, bool training, int64_t samples,
                            Program *program) {
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  memcpy(values, cell->values, sizeof values);
  values[0] = samples;
  VL_TRY(cell->workload->build(values, training, program));
  Target target = target_of(cell);
  Status status = vl_recipe_apply(recipe, program, &target);
  if (status.code != VL_OK) vl_program_destroy(program);
  return status;
}

/* k* of the program as the recipe left it, before layouts add copies. */
static double optimum_of(const Program *program, bool operators) {
  CheckpointChain chain = vl_checkpoint_chain(program, operators);
  return vl_checkpoint_interval(chain.layers, chain.boundary_bytes, chain.inner_bytes);
}

static void describe_checkpointing(const Program *program, CellResult *result) {
  if (!program->training) return;
  result->checkpoint_blocks_optimum = optimum_of(program, false);
  result->checkpoint_ops_optimum = optimum_of(program, true);
  if (program->checkpoint_chosen)
    snprintf(result->checkpoint_chosen, sizeof result->checkpoint_chosen, "%s", program->checkpoint_chosen);
}

/* Counts what runs of a program in a usual step: the first `whole` micro-batches and the update, or of a tail
 * one micro-batch. */
static void count_flops(CellResult *result, const Executable *executable, int64_t whole, bool update) {
  const Schedule *schedule = vl_executable_schedule(executable);
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Instance *instance = &schedule->instances[i];
    bool is_update = instance->node->segment == SEGMENT_UPDATE;
    bool counts = is_update ? update : update ? instance->micro_batch < whole : instance->micro_batch == 1;
    if (counts && instance->kind == INSTANCE_LAUNCH) result->flops_per_step += vl_node_flops(instance->node);
  }
  result->recompute_flops +=
      schedule->recompute_flops / vl_executable_program(executable)->accumulate * whole;
}

static void describe_program(Cell *cell) {
  CellResult *result = cell->result;
  const Program *program = vl_executable_program(cell->executable);
  result->parameters = vl_graph_parameter_count(program->graph);
  result->tokens_per_sample = argument(cell, "sequence");
  result->accumulate = program->accumulate;
  result->global_batch = cell->spec->global_batch;
  if (result->global_batch == 0) result->global_batch = result->micro_batch * result->accumulate;
  count_flops(result, cell->executable, result->global_batch / result->micro_batch, true);
  result->saved_activation_bytes = program->training ? vl_program_saved_bytes(program) : 0;
  snprintf(result->preserves, sizeof result->preserves, "%s",
           vl_preserves_name(vl_recipe_preserves(&cell->recipe, program)));
  result->global_batch *= result->ranks;
  vl_executable_account(cell->executable, -1, &result->account);
}

static Status open_device(Cell *cell) {
  const CellSpec *spec = cell->spec;
  DeviceOptions options = {.threads = spec->threads,
                           .low_end = cell->low_end,
                           .unlimited = spec->unlimited,
                           .profile = spec->profile[0] ? spec->profile : NULL,
                           .offload_directory = spec->offload_directory[0] ? spec->offload_directory : NULL};
  VL_TRY(vl_device_open(spec->device, &options, &cell->device));
  cell->device->interface->describe(cell->device, &cell->result->device);
  if (vl_recipe_value(&cell->recipe, "precision") && !cell->result->device.has_tf32)
    return vl_error(VL_UNSUPPORTED,
                    "precision=tf32: %s (%s) has none; GPUs of compute capability 8.0 and up do",
                    cell->result->device.name, cell->result->device.hardware);
  snprintf(cell->result->provenance, sizeof cell->result->provenance, "%s",
           cell->result->device.predicts ? "predicted" : "measured");
  cell->driver_start_bytes = cell->device->interface->driver_bytes(cell->device);
  return vl_ok();
}

static Status open_heap(Cell *cell) {
  HeapOptions options = {.policy = vl_executable_program(cell->executable)->allocation_policy,
                         .capacity_bytes = cell->spec->unlimited ? 0 : cell->spec->capacity_bytes};
  cell->tracker = vl_tracker_create(false);
  cell->result->emulated = vl_executable_is_emulated(cell->executable);
  if (cell->result->emulated) {
    HeapOptions unlimited = {.policy = options.policy};
    cell->emulation_tracker = vl_tracker_create(false);
    VL_TRY(vl_heap_create(cell->device->interface->backing(cell->device), &unlimited, cell->emulation_tracker,
                          &cell->emulation));
  }
  return vl_heap_create(cell->device->interface->backing(cell->device), &options, cell->tracker, &cell->heap);
}

static Status open_offload_heap(Cell *cell) {
  if (vl_executable_schedule(cell->executable)->transfers == 0) return vl_ok();
  HeapOptions options = {.policy = "caching",
                         .capacity_bytes = cell->spec->unlimited ? 0 : cell->spec->offload_capacity_bytes,
                         .tier = "the offload tier"};
  const Backing *backing;
  VL_TRY(cell->device->interface->offload_open(cell->device, &backing));
  cell->offload_tracker = vl_tracker_create(false);
  return vl_heap_create(backing, &options, cell->offload_tracker, &cell->offload_heap);
}

/* As many samples of a step as the inputs take. */
static Status fill_inputs(Cell *cell, Inputs *inputs, int64_t batch, uint64_t step, int64_t first_sample) {
  if (cell->result->device.predicts) return vl_ok();
  return engine_feed_fill(cell->feed, inputs, batch, step, cell->result->global_batch, first_sample);
}

/* The samples that inputs of this cell take. */
static int64_t samples_of(const Cell *cell, const Inputs *inputs) {
  for (int32_t i = 0; i < cell->tail_count; i++)
    if (cell->tails[i].inputs == inputs) return cell->tails[i].samples;
  return cell->spec->micro_batch;
}

static Status fill_micro_batch(void *context, Inputs *inputs, int64_t first_sample) {
  Cell *cell = context;
  return fill_inputs(cell, inputs, samples_of(cell, inputs), cell->run.step, first_sample);
}

/* What checkpoint=auto chose for the whole micro-batch goes for the smaller one. */
static void decide_as_before(const Cell *cell, Recipe *recipe) {
  const char *chosen = cell->result->checkpoint_chosen;
  for (int32_t i = 0; i < recipe->count && *chosen; i++) {
    RecipeItem *item = &recipe->items[i];
    if (strcmp(item->optimization->name, "checkpoint") == 0)
      snprintf(item->value, sizeof item->value, "%s", chosen);
  }
}

/* The program for what windows of so many samples leave over. */
static Status open_tail(Cell *cell, int64_t window_samples) {
  int64_t samples = window_samples % cell->spec->micro_batch;
  if (samples == 0 || (cell->tail_count > 0 && cell->tails[0].samples == samples)) return vl_ok();
  Tail *tail = &cell->tails[cell->tail_count++];
  tail->samples = samples;
  Program program;
  Recipe recipe = cell->recipe;
  decide_as_before(cell, &recipe);
  VL_TRY(build_program(cell, &recipe, !cell->spec->inference, samples, &program));
  VL_TRY(vl_executable_create(&program, cell->device, cell->state, &tail->executable));
  VL_TRY(vl_inputs_create(tail->executable, cell->device, cell->heap, &tail->inputs));
  return vl_executable_build(tail->executable);
}

static Status open_tails(Cell *cell) {
  int64_t batch = cell->result->global_batch, count = engine_feed_count(cell->feed);
  VL_TRY(open_tail(cell, count > 0 && count < batch ? count : batch));
  if (cell->tail_count > 0 && (count == 0 || count >= batch))
    count_flops(cell->result, cell->tails[0].executable, 1, false);
  return open_tail(cell, count % batch);
}

static int64_t window_samples(const Cell *cell, uint64_t step) {
  return engine_feed_window(cell->feed, step, cell->result->global_batch).samples;
}

/* Puts the programs of a window in the run and returns the inputs its first micro-batch is in: a window
 * smaller than a micro-batch is a smaller program's alone. */
static Inputs *choose_programs(Cell *cell, int64_t samples) {
  Run *run = &cell->run;
  int64_t micro_batch = cell->spec->micro_batch, rest = samples % micro_batch;
  Tail none = {0}, *tail = &none;
  for (int32_t i = 0; i < cell->tail_count && rest > 0; i++)
    if (cell->tails[i].samples == rest) tail = &cell->tails[i];
  bool alone = samples < micro_batch, usual = samples == micro_batch * cell->result->accumulate;
  run->samples = usual ? 0 : samples;
  run->executable = alone ? tail->executable : cell->executable;
  run->tail = alone ? NULL : tail->executable;
  run->tail_inputs = alone ? NULL : tail->inputs;
  return alone ? tail->inputs : cell->inputs;
}

static Status set_up(Cell *cell) {
  const CellSpec *spec = cell->spec;
  CellResult *result = cell->result;
  cell->stage = "setup";
  VL_TRY(open_device(cell));
  Program program;
  int64_t start_ns = vl_monotonic_ns();
  VL_TRY(build_program(cell, &cell->recipe, !spec->inference, spec->micro_batch, &program));
  describe_checkpointing(&program, result);
  VL_TRY(vl_executable_create(&program, cell->device, NULL, &cell->executable));
  int64_t compile_ns = vl_monotonic_ns() - start_ns;
  describe_program(cell);
  VL_TRY(engine_feed_open(spec->data, vl_executable_program(cell->executable), spec->seed, &cell->feed));
  VL_TRY(open_heap(cell));
  VL_TRY(open_offload_heap(cell));
  cell->state = vl_state_create(cell->device, cell->heap);
  vl_state_use_offload_heap(cell->state, cell->offload_heap);
  VL_TRY(vl_state_prepare(cell->state, cell->executable, spec->seed, false));
  VL_TRY(vl_inputs_create(cell->executable, cell->device, cell->heap, &cell->inputs));
  if (window_samples(cell, 0) >= spec->micro_batch)
    VL_TRY(fill_inputs(cell, cell->inputs, spec->micro_batch, 0, 0));
  /* Base: weights and input exist and nothing else of the step does. */
  cell->device->interface->driver_peak_bytes(cell->device, true);
  result->base_bytes = cell->device->interface->driver_bytes(cell->device);
  VL_TRY(vl_state_prepare(cell->state, cell->executable, spec->seed, true));
  if (spec->load_state[0]) {
    uint64_t seed;
    VL_TRY(vl_state_load(cell->state, spec->load_state, &cell->first_step, &seed));
    if (seed != spec->seed) {
      return vl_error(VL_INVALID,
                      "%s was saved with seed %llu, the run has %llu: masks and data would differ",
                      spec->load_state, (unsigned long long)seed, (unsigned long long)spec->seed);
    }
  }
  start_ns = vl_monotonic_ns();
  VL_TRY(vl_executable_build(cell->executable));
  VL_TRY(open_tails(cell));
  result->build_s = (double)(compile_ns + vl_monotonic_ns() - start_ns) * 1e-9;
  return vl_ok();
}

static void mark_segment(Cell *cell, const Run *run, const Instance *instance) {
  if (cell->mark_count == cell->mark_capacity) {
    cell->mark_capacity = cell->mark_capacity ? 2 * cell->mark_capacity : 1024;
    cell->marks = vl_reallocate(cell->marks, (size_t)cell->mark_capacity * sizeof *cell->marks);
  }
  int64_t events = 0;
  vl_tracker_events(run->tracker, &events);
  cell->marks[cell->mark_count++] = (Mark){events, instance->node->segment};
}

static void observe(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  Cell *cell = context;
  if (cell->marks_segments) mark_segment(cell, run, instance);
  if (cell->monitor) engine_monitor_observe(cell->monitor, run, instance, outputs);
}

static void raise_to(int64_t *highest, int64_t value) {
  if (value > *highest) *highest = value;
}

/* Peaks since the last reset, into the warm-up or steady fields, and the overall ones where higher. */
static void take_peaks(Cell *cell, bool steady) {
  CellResult *result = cell->result;
  MemoryStatistics statistics;
  vl_tracker_statistics(cell->tracker, &statistics);
  int64_t allocated = statistics.allocated.peak_bytes, reserved = statistics.reserved.peak_bytes;
  raise_to(steady ? &result->steady_peak_allocated_bytes : &result->warmup_peak_allocated_bytes, allocated);
  raise_to(steady ? &result->steady_peak_reserved_bytes : &result->warmup_peak_reserved_bytes, reserved);
  raise_to(&result->peak_requested_bytes, statistics.requested.peak_bytes);
  raise_to(&result->peak_reserved_bytes, reserved);
  if (allocated <= result->peak_allocated_bytes) return;
  result->peak_allocated_bytes = allocated;
  memcpy(result->peak_by_category, statistics.category_at_peak_bytes, sizeof result->peak_by_category);
  memcpy(result->requested_by_category, statistics.requested_at_peak_bytes,
         sizeof result->requested_by_category);
  vl_executable_account(cell->executable, statistics.place_at_peak, &result->account);
  for (int32_t i = 0; i < cell->tail_count; i++)
    engine_account_tail(cell->tails[i].executable, &result->account);
  ScopeBytes scopes[VL_MAX_SCOPES];
  int64_t count = vl_tracker_scopes_at_peak(cell->tracker, scopes, VL_MAX_SCOPES);
  result->scope_count = (int32_t)(count < VL_MAX_SCOPES ? count : VL_MAX_SCOPES);
  for (int32_t i = 0; i < result->scope_count; i++) {
    snprintf(result->scopes[i].scope, VL_NAME_BYTES, "%s", scopes[i].scope);
    result->scopes[i].bytes = scopes[i].bytes;
  }
}

static Status take_monitor(Cell *cell) {
  CellResult *result = cell->result;
  VL_TRY(engine_monitor_end(cell->monitor, &cell->run, &result->monitors[result->monitor_count]));
  result->monitor_count++;
  result->first_nonfinite = *engine_monitor_first(cell->monitor);
  return vl_ok();
}

static Status one_step(Cell *cell, int32_t index, int32_t total, StepResult *step) {
  cell->run.step = (uint64_t)(cell->first_step + index);
  Inputs *inputs = choose_programs(cell, window_samples(cell, cell->run.step));
  /* Set-up filled in those of step 0. */
  if (cell->run.step > 0 || inputs != cell->inputs) VL_TRY(fill_micro_batch(cell, inputs, 0));
  if (cell->monitor) VL_TRY(engine_monitor_begin(cell->monitor, &cell->run));
  Status status = vl_run_step(&cell->run, inputs, step, NULL);
  if (status.code != VL_OK) {
    cell->stage = cell->run.failed_segment;
    return status;
  }
  if (cell->monitor) VL_TRY(take_monitor(cell));
  bool computes = !cell->result->device.predicts;
  if (computes && vl_executable_program(cell->executable)->loss) {
    cell->result->losses[cell->result->loss_count++] = step->loss;
    if (!isfinite(step->loss)) {
      return vl_error(VL_DIVERGED, "the loss of step %d is %g", index + 1, step->loss);
    }
  }
  if (cell->observer && cell->observer->step_done) {
    cell->observer->step_done(cell->observer->context, index + 1, total, step);
  }
  if (cell->observer && cell->observer->stop_requested &&
      cell->observer->stop_requested(cell->observer->context)) {
    return vl_error(VL_INTERRUPTED, "stopped after step %d of %d", index + 1, total);
  }
  return vl_ok();
}

static void keep_timeline(Cell *cell) {
  int64_t count = 0, mark = 0;
  const MemoryEvent *events = vl_tracker_events(cell->tracker, &count);
  CellResult *result = cell->result;
  result->timeline = vl_allocate((size_t)(count + 1) * sizeof *result->timeline);
  result->timeline_count = count;
  for (int64_t i = 0; i < count; i++) {
    /* A mark is set after the launch: the releases that follow it are still its instance's. */
    bool is_release = events[i].action == MEMORY_RELEASE;
    while (mark + 1 < cell->mark_count &&
           (cell->marks[mark + 1].event_count <= i || (cell->marks[mark].event_count <= i && !is_release)))
      mark++;
    TimelineEvent *to = &result->timeline[i];
    *to = (TimelineEvent){.time_ns = events[i].time_ns - events[0].time_ns,
                          .action = (int32_t)events[i].action,
                          .category = (int32_t)events[i].category,
                          .bytes = events[i].bytes,
                          .allocated_bytes = events[i].allocated_bytes,
                          .reserved_bytes = events[i].reserved_bytes,
                          .segment = cell->mark_count ? (int32_t)cell->marks[mark].segment : 0};
    snprintf(to->name, sizeof to->name, "%s", events[i].name ? events[i].name : "");
    snprintf(to->scope, sizeof to->scope, "%s", events[i].scope ? events[i].scope : "");
  }
}

/* A spike in one step must be seen with its step (a new shape, a new algorithm), so each has a peak of its
 * own. */
static void take_step_peak(Cell *cell, bool steady) {
  MemoryStatistics statistics;
  vl_tracker_statistics(cell->tracker, &statistics);
  cell->result->live_bytes[cell->result->peak_count] = statistics.allocated.current_bytes;
  cell->result->step_peak_bytes[cell->result->peak_count++] = statistics.allocated.peak_bytes;
  if (!cell->names_before) cell->names_before = engine_live_names(cell->heap);
  take_peaks(cell, steady);
  vl_tracker_reset_peaks(cell->tracker);
}

/* The last step's copies, and the mean of what measured (or predicted) ones waited. */
static void take_offload(Cell *cell, const StepResult *step, int64_t stall_ns, int32_t steps) {
  CellResult *result = cell->result;
  if (!cell->offload_heap) return;
  result->evicted_bytes = step->evicted_bytes;
  result->fetched_bytes = step->fetched_bytes;
  if (step->stall_ns >= 0) result->offload_stall_s = (double)stall_ns * 1e-9 / steps;
}

static Status run_steps(Cell *cell) {
  const CellSpec *spec = cell->spec;
  CellResult *result = cell->result;
  /* What plan predicts does not change after the second step: more would only repeat it. */
  bool once = result->device.predicts && vl_executable_program(cell->executable)->retain != RETAIN_RUN;
  int32_t steps = once ? 1 : spec->steps, warmup = once ? 1 : spec->warmup, total = warmup + steps;
  result->step_s = vl_allocate((size_t)steps * sizeof(double));
  result->losses = vl_allocate((size_t)total * sizeof(double));
  result->step_peak_bytes = vl_allocate((size_t)total * sizeof(int64_t));
  result->live_bytes = vl_allocate((size_t)total * sizeof(int64_t));
  cell->run = (Run){.executable = cell->executable,
                    .state = cell->state,
                    .heap = cell->heap,
                    .offload_heap = cell->offload_heap,
                    .emulation = cell->emulation,
                    .tracker = cell->tracker,
                    .device = cell->device,
                    .seed = spec->seed,
                    .learning_rate = spec->learning_rate,
                    .retained = &cell->retained,
                    .fill = fill_micro_batch,
                    .fill_context = cell};
  cell->run.observe_context = cell;
  if (spec->monitor && !spec->inference && !result->device.predicts) {
    cell->monitor = engine_monitor_create();
    cell->run.observe = observe;
    result->monitors = vl_allocate((size_t)total * sizeof *result->monitors);
  }
  StepResult step;
  int64_t stall_ns = 0;
  for (int32_t i = 0; i < total; i++) {
    bool last = i == total - 1;
    int64_t events_before = vl_tracker_event_count(cell->tracker);
    if (last && spec->timeline) {
      vl_tracker_keep_events(cell->tracker, true);
      cell->marks_segments = true;
      cell->run.observe = observe;
    }
    VL_TRY(one_step(cell, i, total, &step));
    take_step_peak(cell, i >= warmup);
    if (last) result->events_per_step = vl_tracker_event_count(cell->tracker) - events_before;
    if (i < warmup) continue;
    stall_ns += step.stall_ns;
    if (result->device.has_time && !cell->monitor)
      result->step_s[result->step_count++] = (double)step.step_ns * 1e-9;
  }
  take_offload(cell, &step, stall_ns, steps);
  if (spec->timeline) {
    keep_timeline(cell);
    vl_tracker_keep_events(cell->tracker, false);
  }
  cell->run.observe = NULL;
  return vl_ok();
}

/* Conversion buffers are in no other figure; what the driver says has them. Returns what they reserved. */
static int64_t take_emulation(Cell *cell) {
  MemoryStatistics statistics = {0};
  if (cell->emulation) vl_tracker_statistics(cell->emulation_tracker, &statistics);
  cell->result->emulation_bytes = statistics.allocated.peak_bytes;
  return statistics.reserved.peak_bytes;
}

/* Live bytes after each step but the first, which also fills caches; what grew, by name. */
static void take_leaks(Cell *cell) {
  CellResult *result = cell->result;
  int32_t count = result->peak_count - 1;
  double rate = 0.0;
  LeakSign sign = count > 0 ? vl_leak_find(result->live_bytes + 1, count, &rate) : LEAK_UNKNOWN;
  if (sign == LEAK_UNKNOWN) return;
  result->leak_bytes_per_step = llround(rate);
  result->leaks_bytes_per_step = 0;
  if (sign == LEAK_FOUND) engine_live_names_grown(cell->heap, cell->names_before, count, result);
}

/* Driver figures and what follows from them. */
static void take_driver(Cell *cell) {
  CellResult *result = cell->result;
  int64_t emulation = take_emulation(cell);
  int64_t peak = cell->device->interface->driver_peak_bytes(cell->device, false);
  if (peak >= 0) {
    result->peak_driver_bytes = peak - cell->driver_start_bytes;
    result->peak_step_bytes = peak - result->base_bytes;
    int64_t beyond = result->peak_driver_bytes - result->peak_reserved_bytes - emulation;
    result->untracked_bytes = beyond > 0 ? beyond : 0;
  }
  if (result->device.context_bytes > 0) result->untracked_bytes = result->device.context_bytes;
  if (result->base_bytes >= 0) result->base_bytes -= cell->driver_start_bytes;
  int64_t reserved = result->warmup_peak_reserved_bytes > result->steady_peak_reserved_bytes
                         ? result->warmup_peak_reserved_bytes
                         : result->steady_peak_reserved_bytes;
  result->needed_bytes = reserved + (result->untracked_bytes > 0 ? result->untracked_bytes : 0);
  result->needed_low_bytes = result->needed_bytes;
  if (cell->offload_tracker) {
    MemoryStatistics statistics;
    vl_tracker_statistics(cell->offload_tracker, &statistics);
    result->peak_offload_bytes = statistics.reserved.peak_bytes;
  }
  result->cached_free_bytes = result->peak_reserved_bytes - result->peak_allocated_bytes;
}

/* An upper bound: what a whole obtain and release costs on this heap, each counted as one event. */
static void measure_tracker(Cell *cell) {
  CellResult *result = cell->result;
  if (result->step_count == 0) return;
  enum { ROUNDS = 2000 };
  AllocationRequest request = {
      .bytes = 4096, .category = MEMORY_WORKSPACE, .name = "probe", .scope = "probe"};
  int64_t start_ns = vl_monotonic_ns();
  for (int32_t i = 0; i < ROUNDS; i++) {
    Block *block = NULL;
    if (vl_heap_obtain(cell->heap, &request, &block).code != VL_OK) return;
    vl_heap_release(cell->heap, &block);
  }
  double event_s = (double)(vl_monotonic_ns() - start_ns) * 1e-9 / (2.0 * ROUNDS);
  double step_s = 0.0;
  for (int32_t i = 0; i < result->step_count; i++)
    step_s += result->step_s[i];
  result->tracker_share = (double)result->events_per_step * event_s / (step_s / result->step_count);
}

/* Held-out loss and accuracy with the evaluation graph on the same State. */
static Status evaluate(Cell *cell) {
  Program program;
  VL_TRY(build_program(cell, &cell->recipe, false, cell->spec->micro_batch, &program));
  Executable *executable = NULL;
  VL_TRY(vl_executable_create(&program, cell->device, cell->state, &executable));
  Inputs *inputs = NULL;
  Status status = vl_executable_build(executable);
  if (status.code == VL_OK) status = vl_inputs_create(executable, cell->device, cell->heap, &inputs);
  if (status.code == VL_OK) {
    Run run = cell->run;
    run.executable = executable;
    run.samples = 0;
    status =
        engine_feed_evaluate(cell->feed, &run, inputs, &cell->result->held_out_loss, &cell->result->accuracy);
  }
  vl_inputs_destroy(&inputs);
  vl_executable_destroy(&executable);
  return status;
}

static void tear_down(Cell *cell) {
  for (int32_t i = 0; i < cell->tail_count; i++) {
    vl_inputs_destroy(&cell->tails[i].inputs);
    vl_executable_destroy(&cell->tails[i].executable);
  }
  vl_retained_release(&cell->retained, cell->heap);
  engine_live_names_destroy(&cell->names_before);
  vl_inputs_destroy(&cell->inputs);
  vl_state_destroy(&cell->state);
  vl_executable_destroy(&cell->executable);
  vl_heap_destroy(&cell->heap);
  vl_heap_destroy(&cell->offload_heap);
  vl_tracker_destroy(&cell->tracker);
  vl_tracker_destroy(&cell->offload_tracker);
  vl_heap_destroy(&cell->emulation);
  vl_tracker_destroy(&cell->emulation_tracker);
  vl_device_close(&cell->device);
  engine_feed_close(&cell->feed);
  engine_monitor_destroy(&cell->monitor);
  free(cell->marks);
}

static Status take_scaler(Cell *cell) {
  Scaler scaler;
  CellResult *result = cell->result;
  if (cell->spec->inference || result->device.predicts) return vl_ok();
  VL_TRY(vl_run_scaler(&cell->run, &scaler));
  result->loss_scale = scaler.scale;
  result->skipped_steps = scaler.skipped;
  return vl_ok();
}

static Status run_cell(Cell *cell) {
  VL_TRY(set_up(cell));
  VL_TRY(run_steps(cell));
  take_leaks(cell);
  take_driver(cell);
  measure_tracker(cell);
  VL_TRY(take_scaler(cell));
  if (cell->spec->data[0]) VL_TRY(evaluate(cell));
  if (cell->spec->save_state[0]) {
    VL_TRY(vl_state_save(cell->state, cell->spec->save_state,
                         cell->first_step + cell->spec->warmup + cell->spec->steps, cell->spec->seed));
  }
  return vl_ok();
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
    take_peaks(cell, true);
    take_driver(cell);
    VL_TRY(take_scaler(cell));
  }
  if (status.code != VL_OUT_OF_MEMORY) return vl_ok();
  snprintf(result->oom_segment, sizeof result->oom_segment, "%s", cell->stage);
  if (result->peak_count > 0) take_leaks(cell);
  if (cell->heap) {
    HeapFailure failure = vl_heap_last_failure(cell->heap);
    if (failure.request_bytes == 0 && cell->offload_heap) failure = vl_heap_last_failure(cell->offload_heap);
    result->oom_request_bytes = failure.request_bytes;
    result->oom_largest_free_bytes = failure.largest_free_bytes;
    take_peaks(cell, result->warmup_peak_reserved_bytes >= 0);
  }
  return vl_ok();
}

static Status run_at_end(const CellSpec *spec, const CellObserver *observer, bool low_end,
                         CellResult *result) {
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
  tear_down(&cell);
  return status;
}

/* At both ends of a profile's intervals. */
static Status run_divided(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  VL_TRY(run_at_end(spec, observer, false, result));
  if (!spec->profile[0]) return vl_ok();
  /* What was chosen for the upper end is what runs. */
  CellSpec same = *spec;
  Recipe recipe;
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  if (*result->checkpoint_chosen) VL_TRY(set_value(&recipe, "checkpoint", result->checkpoint_chosen, &same));
  CellResult *low = vl_allocate(sizeof *low);
  Status status = run_at_end(&same, NULL, true, low);
  result->needed_low_bytes = low->needed_bytes;
  vl_cell_result_clear(low);
  free(low);
  return status;
}

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

/* Two planned steps, the second with all state there. What is not a question of memory passes: the run itself
 * will say it. */
static Status fits(const CellSpec *spec, int64_t count, bool *fits) {
  CellSpec probe = divide(spec, count);
  CellResult *planned = vl_allocate(sizeof *planned);
  snprintf(probe.device, sizeof probe.device, "plan");
  probe.warmup = probe.steps = 1;
  probe.unlimited = probe.timeline = probe.monitor = false;
  probe.data[0] = probe.save_state[0] = probe.load_state[0] = '\0';
  Status status = run_at_end(&probe, NULL, false, planned);
  bool ok = strcmp(planned->status, "ok") == 0;
  *fits = !ok ? strcmp(planned->status, "oom") != 0
              : spec->capacity_bytes == 0 || planned->needed_bytes <= spec->capacity_bytes;
  vl_cell_result_clear(planned);
  free(planned);
  return status;
}

/* The fewest micro-batches that fit; when none do, those of one sample, which then run out of memory. */
static Status decide_accumulate(CellSpec *spec) {
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

Status vl_cell_run(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  Recipe recipe;
  CellSpec divided = *spec;
  vl_cell_result_init(result);
  VL_TRY(vl_cell_check(spec));
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  if (vl_accumulate_count(&recipe) == 0) VL_TRY(decide_accumulate(&divided));
  VL_TRY(run_divided(&divided, observer, result));
  vl_recipe_format(&recipe, result->recipe, sizeof result->recipe);
  return vl_ok();
}
