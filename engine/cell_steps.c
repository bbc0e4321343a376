/* The steps of a cell, and what is read off them. */
#include "engine/cell.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The samples that inputs of this cell take. */
static int64_t samples_of(const Cell *cell, const Inputs *inputs) {
  for (int32_t i = 0; i < cell->tail_count; i++)
    if (cell->tails[i].inputs == inputs) return cell->tails[i].samples;
  return cell->spec->micro_batch;
}

static Status fill_inputs(void *context, Inputs *inputs, uint64_t step, int64_t first_sample) {
  Cell *cell = context;
  return cell_fill_inputs(cell, inputs, samples_of(cell, inputs), step, first_sample);
}

/* Begins with the micro-batch after the one from `first_sample` on. What windows leave over is filled when
 * its turn comes: it has inputs of its own. */
static void prefetch_next(Cell *cell, int64_t first_sample) {
  uint64_t step = cell->run.step;
  int64_t micro_batch = cell->spec->micro_batch, next = first_sample + micro_batch;
  int64_t left = cell_window_samples(cell, step) - next;
  if (!cell->prefetch || (left > 0 && left < micro_batch)) return;
  if (left <= 0) step++, next = 0;
  if (step < cell->end_step && cell_window_samples(cell, step) - next >= micro_batch)
    engine_prefetch_begin(cell->prefetch, step, next);
}

static Status fill_micro_batch(void *context, Inputs *inputs, int64_t first_sample) {
  Cell *cell = context;
  uint64_t step = cell->run.step;
  int64_t start_ns = vl_monotonic_ns();
  VL_TRY(cell->prefetch ? engine_prefetch_take(cell->prefetch, inputs, step, first_sample)
                        : fill_inputs(cell, inputs, step, first_sample));
  cell->fill_ns += vl_monotonic_ns() - start_ns;
  prefetch_next(cell, first_sample);
  return vl_ok();
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

void cell_observe(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  Cell *cell = context;
  if (cell->marks_segments) cell_mark_segment(cell, instance);
  if (cell->monitor) engine_monitor_observe(cell->monitor, run, instance, outputs);
}

static void raise_to(int64_t *highest, int64_t value) {
  if (value > *highest) *highest = value;
}

/* Peaks since the last reset, into the warm-up or steady fields, and the overall ones where higher. */
void cell_take_peaks(Cell *cell, bool steady) {
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
  Inputs *inputs = choose_programs(cell, cell_window_samples(cell, cell->run.step));
  /* Set-up filled in those of step 0. */
  if (cell->run.step > 0 || inputs != cell->inputs)
    VL_TRY(fill_micro_batch(cell, inputs, 0));
  else
    prefetch_next(cell, 0);
  if (cell->monitor) VL_TRY(engine_monitor_begin(cell->monitor, &cell->run));
  Status status = vl_run_step(&cell->run, inputs, step, NULL);
  if (status.code != VL_OK) {
    cell->stage = cell->run.failed_segment;
    return status;
  }
  step->step_ns += cell_inject_time(cell, step->step_ns);
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

void cell_take_step_peak(Cell *cell, bool steady) {
  MemoryStatistics statistics;
  HeapFreeSpace space;
  CellResult *result = cell->result;
  vl_tracker_statistics(cell->tracker, &statistics);
  vl_heap_free_space(cell->heap, &space);
  result->live_bytes[result->peak_count] = statistics.allocated.current_bytes;
  result->step_reserved_bytes[result->peak_count] = statistics.reserved.peak_bytes;
  result->step_fragmentation[result->peak_count] = space.fragmentation;
  result->step_peak_bytes[result->peak_count++] = statistics.allocated.peak_bytes;
  if (steady && !(result->fragmentation >= space.fragmentation)) result->fragmentation = space.fragmentation;
  if (!cell->names_before) cell->names_before = engine_live_names(cell->heap);
  cell_take_peaks(cell, steady);
  vl_tracker_reset_peaks(cell->tracker);
}

static DeviceReadings read_card(const Cell *cell) {
  DeviceReadings readings = vl_no_readings();
  const DeviceInterface *interface = cell->device->interface;
  if (interface->read) interface->read(cell->device, &readings);
  return readings;
}

/* Between steps, where its time is nobody's. */
static void take_readings(Cell *cell, bool steady) {
  CellResult *result = cell->result;
  DeviceReadings now = read_card(cell);
  raise_to(&result->peak_process_bytes, now.process_bytes);
  result->card_used_bytes = now.card_used_bytes;
  result->clock_mhz = now.clock_mhz;
  result->memory_clock_mhz = now.memory_clock_mhz;
  result->temperature_c = now.temperature_c;
  result->clock_max_mhz = now.clock_max_mhz;
  result->power_limit_mw = now.power_limit_mw;
  if (now.throttled >= 0 && result->throttled_steps < 0) result->throttled_steps = 0;
  if (steady && now.throttled > 0) result->throttled_steps++;
  if (!steady) cell->energy_start_mj = now.energy_mj;
  if (steady && cell->energy_start_mj >= 0) result->energy_mj = now.energy_mj - cell->energy_start_mj;
}

/* Of a device that is the processors. */
static void take_processors(CellResult *result) {
  ProcessorState state = engine_processor_state("");
  result->clock_mhz = state.clock_mhz;
  result->clock_max_mhz = state.clock_max_mhz;
  result->temperature_c = state.temperature_c;
  snprintf(result->governor, sizeof result->governor, "%s", state.governor);
}

/* After the last warm-up step and the last of all. */
static void take_graphs(Cell *cell, bool last) {
  CellResult *result = cell->result;
  DeviceGraphs now;
  if (!cell->device->interface->graphs) return;
  cell->device->interface->graphs(cell->device, &now);
  if (!last) {
    cell->graphs_start = now;
    return;
  }
  int64_t sequences = now.sequences - cell->graphs_start.sequences;
  if (sequences > 0)
    result->graph_share = (double)(now.as_graphs - cell->graphs_start.as_graphs) / (double)sequences;
  snprintf(result->graph_refusal, sizeof result->graph_refusal, "%s", now.refusal);
}

/* The device's own account beside the tracker's, before the first measured step and after the last. */
static Status take_cross_check(Cell *cell, bool last, int32_t steps) {
  CellResult *result = cell->result;
  DeviceCrossCheck now;
  VL_TRY(cell->device->interface->cross_check(cell->device, &now));
  if (!last) {
    cell->check_start = now;
    return vl_ok();
  }
  MemoryStatistics statistics;
  vl_tracker_statistics(cell->tracker, &statistics);
  HeapOptions options = vl_program_heap_options(vl_executable_program(cell->executable));
  result->cross_checked = true;
  result->cross_check_compares = strcmp(options.policy, "expandable") != 0;
  result->cross_check = now;
  result->cross_check_difference_bytes = now.peak_bytes - result->peak_reserved_bytes - now.own_bytes;
  result->cross_check_live_difference_bytes =
      now.live_bytes - statistics.reserved.current_bytes - now.own_bytes;
  result->kernels_per_step = (double)(now.kernels - cell->check_start.kernels) / steps;
  result->kernel_s_per_step = (double)(now.kernel_ns - cell->check_start.kernel_ns) * 1e-9 / steps;
  return vl_ok();
}

void cell_take_allocation(Cell *cell, const StepResult *step) {
  CellResult *result = cell->result;
  result->reserved_over_allocated =
      (double)result->steady_peak_reserved_bytes / (double)result->steady_peak_allocated_bytes;
  if (vl_executable_program(cell->executable)->defragment) result->moved_bytes = step->moved.bytes;
  if (!vl_heap_is_planned(cell->heap)) return;
  HeapUnplanned unplanned = vl_heap_unplanned(cell->heap);
  result->unplanned_bytes = unplanned.peak_bytes;
  if (unplanned.blocks > 0 && unplanned.name)
    snprintf(result->unplanned_name, sizeof result->unplanned_name, "%s", unplanned.name);
}

/* The last step's copies, and the mean of what measured (or predicted) ones waited. */
static void take_offload(Cell *cell, const StepResult *step, int64_t stall_ns, int32_t steps) {
  CellResult *result = cell->result;
  if (!cell->offload_heap) return;
  result->evicted_bytes = step->evicted_bytes;
  result->fetched_bytes = step->fetched_bytes;
  if (step->stall_ns >= 0) result->offload_stall_s = (double)stall_ns * 1e-9 / steps;
}

Run cell_plain_run(Cell *cell) {
  return (Run){.executable = cell->executable,
               .state = cell->state,
               .heap = cell->heap,
               .offload_heap = cell->offload_heap,
               .emulation = cell->emulation,
               .tracker = cell->tracker,
               .device = cell->device,
               .seed = cell->spec->seed,
               .learning_rate = cell->spec->learning_rate,
               .retained = &cell->retained,
               .fill = fill_micro_batch,
               .fill_context = cell,
               .observe_context = cell};
}

Status cell_repeat_step(Cell *cell) {
  StepResult step;
  Inputs *inputs = choose_programs(cell, cell_window_samples(cell, cell->run.step));
  VL_TRY(fill_micro_batch(cell, inputs, 0));
  return vl_run_step(&cell->run, inputs, &step, NULL);
}

static void *grown(void *list, int32_t count, size_t size) {
  return vl_reallocate(list, (size_t)count * size);
}

static void make_room(CellResult *result, int32_t steps, int32_t total) {
  result->step_s = grown(result->step_s, steps, sizeof(double));
  result->losses = grown(result->losses, total, sizeof(double));
  result->step_peak_bytes = grown(result->step_peak_bytes, total, sizeof(int64_t));
  result->live_bytes = grown(result->live_bytes, total, sizeof(int64_t));
  result->step_reserved_bytes = grown(result->step_reserved_bytes, total, sizeof(int64_t));
  result->step_fragmentation = grown(result->step_fragmentation, total, sizeof(double));
}

/* Whether the median is not yet known as well as the spec wants, and there is time to measure on. */
static bool wants_more(const Cell *cell, double elapsed_s) {
  enum { USUAL_TIME_S = 60 };
  const CellSpec *spec = cell->spec;
  CellResult *result = cell->result;
  double most_s = spec->max_time_s > 0 ? spec->max_time_s : USUAL_TIME_S;
  if (!(spec->max_noise > 0) || result->step_count == 0 || !cell->observer || !cell->observer->noise)
    return false;
  bool quiet = cell->observer->noise(result->step_s, result->step_count) <= spec->max_noise;
  bool out_of_time = elapsed_s >= most_s || result->step_count >= VL_MAX_STEPS;
  snprintf(result->stopped_by, sizeof result->stopped_by, "%s", quiet ? "noise" : out_of_time ? "time" : "");
  return !quiet && !out_of_time;
}

Status cell_run_steps(Cell *cell) {
  const CellSpec *spec = cell->spec;
  CellResult *result = cell->result;
  /* What plan predicts does not change after the second step: more would only repeat it. */
  const Program *program = vl_executable_program(cell->executable);
  bool leaks = program->retain == RETAIN_RUN || program->growth_bytes > 0;
  bool once = result->device.predicts && !leaks;
  int32_t steps = once ? 1 : spec->steps, warmup = once ? 1 : spec->warmup, total = warmup + steps;
  make_room(result, steps, total);
  if (spec->diagnose && cell->tail_count > 0)
    return vl_error(VL_UNSUPPORTED, "diagnose: the batch has to be a multiple of the micro-batch");
  cell->run = cell_plain_run(cell);
  if (spec->monitor && !spec->inference && !result->device.predicts) {
    cell->monitor = engine_monitor_create();
    result->monitors = vl_allocate((size_t)total * sizeof *result->monitors);
  }
  if (!result->device.predicts)
    VL_TRY(engine_prefetch_open(cell->inputs, fill_inputs, cell, &cell->prefetch));
  /* Nobody knows how many steps there will be until the noise is low. */
  cell->end_step = (uint64_t)(cell->first_step + (spec->max_noise > 0 ? warmup + VL_MAX_STEPS : total));
  StepResult step;
  int64_t stall_ns = 0, start_ns = vl_monotonic_ns();
  for (int32_t i = 0; i < total; i++) {
    if (i == warmup) cell->fill_ns = 0;
    bool last = i == total - 1;
    int64_t events_before = vl_tracker_event_count(cell->tracker);
    /* The first step's is kept when there it runs out of memory, as it mostly does if it does. */
    bool timeline = spec->timeline && (i == 0 || last);
    if (timeline) cell_begin_timeline(cell);
    Watch *watch = spec->diagnose && last ? engine_watch_begin(cell) : NULL;
    cell->run.observe = timeline || cell->monitor ? cell_observe : NULL;
    Status status = one_step(cell, i, total, &step);
    if (watch) engine_watch_end(&watch, status.code == VL_OK, &result->diagnosis);
    if (timeline && (last || status.code == VL_OUT_OF_MEMORY)) cell_end_timeline(cell);
    if (timeline && !last) cell_drop_timeline(cell);
    VL_TRY(status);
    cell_take_step_peak(cell, i >= warmup);
    take_readings(cell, i >= warmup);
    if (i == warmup - 1 || last) take_graphs(cell, last);
    if (i == warmup - 1) cell->others = engine_interference_begin();
    if (spec->cross_check && (i == warmup - 1 || last)) VL_TRY(take_cross_check(cell, last, steps));
    if (last) result->events_per_step = vl_tracker_event_count(cell->tracker) - events_before;
    if (i < warmup) continue;
    stall_ns += step.stall_ns;
    if (result->device.has_time && !cell->monitor && !spec->cross_check)
      result->step_s[result->step_count++] = (double)step.step_ns * 1e-9;
    if (!last || !wants_more(cell, (double)(vl_monotonic_ns() - start_ns) * 1e-9)) continue;
    steps++, total++;
    make_room(result, steps, total);
  }
  if (!result->device.predicts && !cell->device->interface->read) take_processors(result);
  if (!result->device.predicts) engine_interference_end(&cell->others, result);
  engine_prefetch_close(&cell->prefetch); /* others use the feed now */
  if (!result->device.predicts) result->input_s = (double)cell->fill_ns * 1e-9 / steps;
  take_offload(cell, &step, stall_ns, steps);
  cell_take_allocation(cell, &step);
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
void cell_take_leaks(Cell *cell) {
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
void cell_take_driver(Cell *cell) {
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
void cell_measure_tracker(Cell *cell) {
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

Status cell_take_outputs(Cell *cell) {
  const Program *program = vl_executable_program(cell->executable);
  if (!cell->spec->inference || cell->result->device.predicts || !program->logits) return vl_ok();
  int64_t elements = vl_tensor_elements(program->logits);
  float *outputs = vl_allocate((size_t)elements * sizeof *outputs);
  StepResult step;
  cell->run.step = (uint64_t)cell->first_step;
  Inputs *inputs = choose_programs(cell, cell_window_samples(cell, cell->run.step));
  Status status = inputs == cell->inputs ? fill_micro_batch(cell, inputs, 0) : vl_ok();
  if (status.code == VL_OK && inputs == cell->inputs)
    status = vl_run_step(&cell->run, inputs, &step, outputs);
  if (status.code == VL_OK && inputs == cell->inputs)
    engine_sketch("outputs", outputs, DTYPE_F32, elements, cell->result->output_sketch);
  free(outputs);
  return status;
}

Status cell_take_scaler(Cell *cell) {
  Scaler scaler;
  CellResult *result = cell->result;
  if (cell->spec->inference || result->device.predicts) return vl_ok();
  VL_TRY(vl_run_scaler(&cell->run, &scaler));
  result->loss_scale = scaler.scale;
  result->skipped_steps = scaler.skipped;
  return vl_ok();
}
