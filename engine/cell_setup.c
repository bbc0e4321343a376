/* What a cell runs on: device, programs, heaps, State, inputs. */
#include "engine/cell.h"
#include <stdlib.h>
#include <string.h>

int64_t cell_argument(const Cell *cell, const char *name) {
  for (int32_t i = 0; i < cell->workload->argument_count; i++) {
    if (strcmp(cell->workload->arguments[i].name, name) == 0) return cell->values[i];
  }
  return -1;
}

/* A profile's memory is a capacity too. What plan says holds for the same machine's cpu. */
static Target target_of(Cell *cell) {
  const DeviceDescription *device = &cell->result->device;
  Target target = {.capacity_bytes = cell->spec->capacity_bytes,
                   .ranks = 1,
                   .unlimited = cell->spec->unlimited,
                   .context = cell};
  if (target.capacity_bytes == 0 && cell->spec->profile[0]) target.capacity_bytes = device->memory_bytes;
  if (strcmp(cell->spec->device, "cuda") != 0) target.needed = cell_plan_needed;
  return target;
}

Status cell_build_program(Cell *cell, const Recipe *recipe, bool training, int64_t samples,
                          Program *program) {
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  memcpy(values, cell->values, sizeof values);
  values[0] = samples;
  VL_TRY(vl_recipe_arguments(recipe, cell->workload, values));
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
  result->tokens_per_sample = cell_argument(cell, "sequence");
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

/* What the recipe asks of the device's kernels, and not every device has. */
static Status check_device(const Cell *cell, const DeviceOptions *options) {
  const DeviceDescription *device = &cell->result->device;
  if (options->tf32 && !device->has_tf32)
    return vl_error(VL_UNSUPPORTED,
                    "precision=tf32: %s (%s) has none; GPUs of compute capability 8.0 and up do",
                    device->name, device->hardware);
  if (options->timed && !device->has_trials)
    return vl_error(VL_UNSUPPORTED, "algorithms=timed: %s (%s) runs none to choose among them; cuda does",
                    device->name, device->hardware);
  if (options->cross_check && !cell->device->interface->cross_check)
    return vl_error(VL_UNSUPPORTED, "--cross-check: %s (%s) has no tracing of its own; cuda does (CUPTI)",
                    device->name, device->hardware);
  const char *allocator = vl_recipe_value(&cell->recipe, "allocator");
  if (!allocator || strcmp(allocator, "async") != 0) return vl_ok();
  if (options->cross_check)
    return vl_error(VL_UNSUPPORTED,
                    "--cross-check with allocator=async: CUPTI's records are of blocks, and what "
                    "the pool holds beside them is in none");
  if (!cell->device->interface->backing(cell->device)->pool_obtain)
    return vl_error(VL_UNSUPPORTED, "allocator=async: %s (%s) has no stream-ordered pools; cuda does",
                    device->name, device->hardware);
  return vl_ok();
}

static Status open_device(Cell *cell) {
  const CellSpec *spec = cell->spec;
  const char *algorithms = vl_recipe_value(&cell->recipe, "algorithms");
  DeviceOptions options = {.threads = spec->threads,
                           .low_end = cell->low_end,
                           .unlimited = spec->unlimited,
                           .tf32 = vl_recipe_value(&cell->recipe, "precision") != NULL,
                           .deterministic = algorithms && strcmp(algorithms, "deterministic") == 0,
                           .timed = algorithms && strcmp(algorithms, "timed") == 0,
                           .cross_check = spec->cross_check,
                           .profile = spec->profile[0] ? spec->profile : NULL,
                           .offload_directory = spec->offload_directory[0] ? spec->offload_directory : NULL};
  VL_TRY(vl_device_open(spec->device, &options, &cell->device));
  cell->device->interface->describe(cell->device, &cell->result->device);
  VL_TRY(check_device(cell, &options));
  snprintf(cell->result->provenance, sizeof cell->result->provenance, "%s",
           cell->result->device.predicts ? "predicted" : "measured");
  cell->driver_start_bytes = cell->device->interface->driver_bytes(cell->device);
  return vl_ok();
}

static Status open_heap(Cell *cell) {
  HeapOptions options = vl_program_heap_options(vl_executable_program(cell->executable));
  options.capacity_bytes = cell->spec->unlimited ? 0 : cell->spec->capacity_bytes;
  if (cell->spec->unlimited) { /* of nothing there is no share */
    options.gc_threshold = 0.0;
  } else if (options.gc_threshold > 0.0 && options.capacity_bytes == 0) {
    options.capacity_bytes = cell->result->device.memory_bytes;
  }
  cell->tracker = vl_tracker_create(false);
  cell->result->emulated = vl_executable_is_emulated(cell->executable);
  if (cell->result->emulated) {
    HeapOptions unlimited = {.policy = "caching"};
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
  VL_TRY(cell_build_program(cell, &recipe, !cell->spec->inference, samples, &program));
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

int64_t cell_window_samples(const Cell *cell, uint64_t step) {
  return engine_feed_window(cell->feed, step, cell->result->global_batch).samples;
}

/* As many samples of a step as the inputs take. */
Status cell_fill_inputs(Cell *cell, Inputs *inputs, int64_t batch, uint64_t step, int64_t first_sample) {
  if (cell->result->device.predicts) return vl_ok();
  return engine_feed_fill(cell->feed, inputs, batch, step, cell->result->global_batch, first_sample);
}

/* Inference of a volume of so many voxels, without one: what its windows are added up in. */
static Status hold_window_sums(Cell *cell) {
  int64_t bytes = engine_window_sums_bytes(vl_executable_program(cell->executable));
  if (bytes == 0) return vl_ok();
  AllocationRequest request = {
      .bytes = bytes, .category = MEMORY_ACTIVATION, .name = "window sums", .scope = "windows"};
  PlaceCursor cursor = engine_place_begin(cell->heap, bytes);
  engine_place_next(&cursor, &request);
  return vl_heap_obtain(cell->heap, &request, &cell->window_sums);
}

Status cell_set_up(Cell *cell) {
  const CellSpec *spec = cell->spec;
  CellResult *result = cell->result;
  cell->stage = "setup";
  VL_TRY(open_device(cell));
  VL_TRY(vl_recipe_check_mode(&cell->recipe, !spec->inference));
  Program program;
  int64_t start_ns = vl_monotonic_ns();
  VL_TRY(cell_build_program(cell, &cell->recipe, !spec->inference, spec->micro_batch, &program));
  describe_checkpointing(&program, result);
  VL_TRY(vl_executable_create(&program, cell->device, NULL, &cell->executable));
  int64_t compile_ns = vl_monotonic_ns() - start_ns;
  describe_program(cell);
  VL_TRY(engine_feed_open(spec->data, vl_executable_program(cell->executable), spec->seed, &cell->feed));
  VL_TRY(open_heap(cell));
  VL_TRY(open_offload_heap(cell));
  cell->state = vl_state_create(cell->device, cell->heap);
  vl_state_use_offload_heap(cell->state, cell->offload_heap);
  vl_state_set_vocabulary(cell->state, engine_feed_vocabulary(cell->feed));
  VL_TRY(vl_state_prepare(cell->state, cell->executable, spec->seed, false));
  if (spec->save_state[0] && engine_state_is_derived(cell->state))
    return vl_error(VL_INVALID,
                    "--save-state: the recipe derives weights when it loads them and keeps no others");
  VL_TRY(vl_inputs_create(cell->executable, cell->device, cell->heap, &cell->inputs));
  if (cell_window_samples(cell, 0) >= spec->micro_batch)
    VL_TRY(cell_fill_inputs(cell, cell->inputs, spec->micro_batch, 0, 0));
  /* Base: weights and input exist and nothing else of the step does. */
  cell->device->interface->driver_peak_bytes(cell->device, true);
  result->base_bytes = cell->device->interface->driver_bytes(cell->device);
  VL_TRY(vl_state_prepare(cell->state, cell->executable, spec->seed, true));
  VL_TRY(hold_window_sums(cell));
  VL_TRY(cell_inject_block(cell));
  VL_TRY(cell_copy_weights(cell));
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

void cell_tear_down(Cell *cell) {
  engine_prefetch_close(&cell->prefetch);
  for (int32_t i = 0; i < cell->tail_count; i++) {
    vl_inputs_destroy(&cell->tails[i].inputs);
    vl_executable_destroy(&cell->tails[i].executable);
  }
  vl_retained_release(&cell->retained, cell->heap);
  engine_live_names_destroy(&cell->names_before);
  vl_inputs_destroy(&cell->inputs);
  if (cell->injected) vl_heap_release(cell->heap, &cell->injected);
  if (cell->window_sums) vl_heap_release(cell->heap, &cell->window_sums);
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
  free(cell->held);
  free(cell->batch_ends);
}
