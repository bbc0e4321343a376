/* A cell that works through a queue of samples of different sizes. Each batch is of one size and has a
 * program of its own; all share one State and one heap. With dynamic-batch the samples of a batch are as many
 * as fit: for each size a plan of the same program says what it needs, and then a plan of the whole queue,
 * byte for byte what will run, whether the pieces that other sizes leave in the heap change that. What runs
 * is decided before it runs: nothing is tried. */
#include "engine/cell.h"
#include "engine/queue.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A program for so many samples of a shape. */
typedef struct QueueProgram {
  int32_t shape;
  int64_t samples;
  Executable *executable;
} QueueProgram;

typedef struct QueueRun {
  Queue queue;
  bool bucketed;
  int64_t sizes[VL_MAX_SHAPES]; /* samples of a batch at most, by shape */
  QueueBatch *batches;
  int32_t batch_count;
  QueueProgram *programs; /* the first is the cell's own */
  int32_t program_count;
  double *shape_s; /* by pass and shape: time of its batches */
  CellSpec lead;   /* of the largest batch */
} QueueRun;

/* ---- From a shape to a cell ---------------------------------------------------------------------------------- */

static int32_t argument_count(const Case *workload) {
  int32_t count = 0;
  while (count < VL_SHAPE_ARGUMENTS && workload->shape_arguments[count])
    count++;
  return count;
}

static Status add_setting(CellSpec *spec, const char *name, int64_t value) {
  if (spec->setting_count == VL_MAX_SETTINGS)
    return vl_error(VL_INVALID, "queue: more than %d settings", VL_MAX_SETTINGS);
  snprintf(spec->settings[spec->setting_count++], VL_NAME_BYTES, "%s=%lld", name, (long long)value);
  return vl_ok();
}

/* The recipe of each batch. */
static Recipe batch_recipe(const Recipe *of) {
  Recipe recipe = {.stack_vramlab = of->stack_vramlab};
  for (int32_t i = 0; i < of->count; i++)
    if (strcmp(of->items[i].optimization->name, "dynamic-batch") != 0)
      recipe.items[recipe.count++] = of->items[i];
  return recipe;
}

/* The most that batches may need, 0: no limit. A budget that the recipe names is a capacity too. */
static int64_t capacity_of(const Cell *cell) {
  DynamicBatch dynamic;
  int64_t capacity = cell->spec->capacity_bytes;
  if (!vl_dynamic_batch(&cell->recipe, &dynamic) || dynamic.budget_bytes == 0) return capacity;
  return capacity > 0 && capacity < dynamic.budget_bytes ? capacity : dynamic.budget_bytes;
}

/* The cell for one batch of a shape, whose last size stands for those not given. */
static Status shape_spec(const Cell *cell, const QueueShape *shape, int64_t samples, CellSpec *spec) {
  const Case *workload = cell->workload;
  Recipe recipe = batch_recipe(&cell->recipe);
  *spec = *cell->spec;
  spec->queue[0] = spec->queue_batches[0] = '\0';
  spec->micro_batch = samples;
  spec->capacity_bytes = capacity_of(cell);
  vl_recipe_format(&recipe, spec->recipe, sizeof spec->recipe);
  for (int32_t i = 0; i < argument_count(workload); i++)
    VL_TRY(
        add_setting(spec, workload->shape_arguments[i], shape->sizes[i < shape->rank ? i : shape->rank - 1]));
  return vl_ok();
}

static Status arguments_of(const Cell *cell, const CellSpec *spec, int64_t *values) {
  const char *settings[VL_MAX_SETTINGS];
  for (int32_t i = 0; i < spec->setting_count; i++)
    settings[i] = spec->settings[i];
  return vl_case_arguments(cell->workload, spec->micro_batch, settings, spec->setting_count, values);
}

/* ---- Checks --------------------------------------------------------------------------------------------------- */

static bool sets(const CellSpec *spec, const char *name) {
  size_t length = strlen(name);
  for (int32_t i = 0; i < spec->setting_count; i++)
    if (strncmp(spec->settings[i], name, length) == 0 && spec->settings[i][length] == '=') return true;
  return false;
}

static Status check_shapes(const Cell *cell, const Queue *queue) {
  int32_t count = argument_count(cell->workload);
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  if (count == 0) return vl_error(VL_INVALID, "queue: %s has no sizes to set", cell->workload->name);
  for (int32_t i = 0; i < count; i++)
    if (sets(cell->spec, cell->workload->shape_arguments[i]))
      return vl_error(VL_INVALID, "queue: it says %s; leave out the setting",
                      cell->workload->shape_arguments[i]);
  for (int32_t i = 0; i < queue->shape_count; i++) {
    CellSpec spec;
    if (queue->shapes[i].rank > count)
      return vl_error(VL_INVALID, "queue: %s has %d sizes; %s has %d", queue->shapes[i].text,
                      queue->shapes[i].rank, cell->workload->name, count);
    VL_TRY(shape_spec(cell, &queue->shapes[i], 1, &spec));
    VL_TRY(arguments_of(cell, &spec, values));
  }
  return vl_ok();
}

static Status refuse_beside(const char *what, bool given) {
  return given ? vl_error(VL_INVALID, "a queue does not go with %s", what) : vl_ok();
}

Status cell_check_queue(const Cell *cell) {
  const CellSpec *spec = cell->spec;
  const char *dynamic = vl_recipe_value(&cell->recipe, "dynamic-batch");
  if (!spec->queue[0])
    return dynamic ? vl_error(VL_INVALID, "dynamic-batch=%s sizes the batches of a queue: give one (--queue)",
                              dynamic)
                   : vl_ok();
  VL_TRY(refuse_beside("micro-batches that add up", vl_accumulate_count(&cell->recipe) != 1));
  VL_TRY(refuse_beside("a data file", spec->data[0] != '\0'));
  VL_TRY(refuse_beside("monitoring", spec->monitor));
  VL_TRY(refuse_beside("a cross-check", spec->cross_check));
  if (dynamic && capacity_of(cell) == 0 && !spec->profile[0])
    return vl_error(VL_INVALID,
                    "dynamic-batch=%s fits batches to a capacity: give it (--capacity 16GiB), or a budget "
                    "(dynamic-batch=%s:12GiB)",
                    dynamic, dynamic);
  Queue queue;
  VL_TRY(engine_queue_parse(spec->queue, spec->seed, &queue));
  Status status = check_shapes(cell, &queue);
  engine_queue_clear(&queue);
  return status;
}

/* ---- How many samples a batch has --------------------------------------------------------------------------- */

static Status cannot_fit(const Cell *cell, const QueueShape *shape) {
  char capacity[32];
  int64_t bytes = capacity_of(cell);
  vl_format_bytes(bytes, capacity, sizeof capacity);
  if (bytes == 0) snprintf(capacity, sizeof capacity, "%.31s", cell->spec->profile);
  return vl_error(VL_OUT_OF_MEMORY, "not even one sample of %s fits %s", shape->text, capacity);
}

/* The most that fit by themselves, of as many as there are to put together; 0: not even one. */
static Status size_shape(const Cell *cell, const QueueShape *shape, int64_t most, int64_t *size) {
  int64_t fits = 0, fails = most + 1;
  for (int64_t tried = most; fails - fits > 1; tried = fits + (fails - fits) / 2) {
    CellSpec spec;
    bool enough;
    VL_TRY(shape_spec(cell, shape, tried, &spec));
    VL_TRY(cell_plan_fits(&spec, cell->low_end, &enough));
    *(enough ? &fits : &fails) = tried;
  }
  *size = fits;
  return fits > 0 ? vl_ok() : cannot_fit(cell, shape);
}

/* The shape that has no place in a plan of the whole queue; -1: all have. */
static int32_t shape_too_large(const Cell *cell, const CellResult *planned) {
  int64_t capacity = capacity_of(cell);
  if (strcmp(planned->status, "oom") == 0) return planned->shape_failed;
  if (strcmp(planned->status, "ok") != 0 || capacity == 0 || planned->needed_bytes <= capacity) return -1;
  int32_t largest = 0;
  for (int32_t i = 1; i < planned->shape_count; i++)
    if (planned->shapes[i].peak_reserved_bytes > planned->shapes[largest].peak_reserved_bytes) largest = i;
  return largest;
}

/* Plans the queue as it is divided. */
static Status plan_queue(const Cell *cell, const QueueRun *run, int32_t *too_large) {
  CellSpec probe = *cell->spec;
  snprintf(probe.device, sizeof probe.device, "plan");
  engine_queue_write_sizes(&run->queue, run->sizes, probe.queue_batches);
  probe.warmup = probe.steps = 1;
  probe.unlimited = false;
  probe.save_state[0] = probe.load_state[0] = '\0';
  CellResult *planned = vl_allocate(sizeof *planned);
  Status status = cell_run_at_end(&probe, NULL, cell->low_end, planned);
  *too_large = shape_too_large(cell, planned);
  vl_cell_result_clear(planned);
  free(planned);
  return status;
}

static double elements_of(const Queue *queue, const QueueBatch *batch) {
  const QueueShape *shape = &queue->shapes[batch->shape];
  double elements = (double)batch->samples;
  for (int32_t i = 0; i < shape->rank; i++)
    elements *= (double)shape->sizes[i];
  return elements;
}

/* Which shape's batches have a sample less: of what has no place; where that is one alone already, of the
 * largest batches, whose pieces are in its way. -1: all are of one. */
static int32_t shape_to_reduce(const QueueRun *run, int32_t too_large) {
  if (run->sizes[too_large] > 1) return too_large;
  int32_t largest = -1;
  double most = 0.0;
  for (int32_t i = 0; i < run->queue.shape_count; i++) {
    double elements = elements_of(&run->queue, &(QueueBatch){.shape = i, .samples = run->sizes[i]});
    if (run->sizes[i] == 1 || elements <= most) continue;
    most = elements;
    largest = i;
  }
  return largest;
}

/* Smaller batches, until all have a place. */
static Status settle_sizes(const Cell *cell, QueueRun *run) {
  for (;;) {
    int32_t too_large;
    VL_TRY(plan_queue(cell, run, &too_large));
    if (too_large < 0) return vl_ok();
    int32_t reduced = shape_to_reduce(run, too_large);
    if (reduced < 0) return cannot_fit(cell, &run->queue.shapes[too_large]);
    run->sizes[reduced]--;
  }
}

static Status decide_sizes(const Cell *cell, QueueRun *run) {
  const Queue *queue = &run->queue;
  DynamicBatch how;
  bool dynamic = vl_dynamic_batch(&cell->recipe, &how);
  run->bucketed = how.bucketed;
  if (cell->spec->queue_batches[0])
    return engine_queue_read_sizes(queue, cell->spec->queue_batches, run->sizes);
  for (int32_t i = 0; i < queue->shape_count; i++) {
    int64_t most = run->bucketed ? queue->shapes[i].samples : queue->shapes[i].longest;
    run->sizes[i] = cell->spec->micro_batch;
    if (dynamic) VL_TRY(size_shape(cell, &queue->shapes[i], most, &run->sizes[i]));
  }
  return dynamic ? settle_sizes(cell, run) : vl_ok();
}

/* ---- Programs ------------------------------------------------------------------------------------------------- */

static QueueProgram *find_program(const QueueRun *run, const QueueBatch *batch) {
  for (int32_t i = 0; i < run->program_count; i++) {
    QueueProgram *program = &run->programs[i];
    if (program->shape == batch->shape && program->samples == batch->samples) return program;
  }
  return NULL;
}

static Status build_program(Cell *cell, const QueueRun *run, QueueProgram *made) {
  CellSpec spec;
  Cell of_shape = *cell; /* so that what a pass asks about the cell is asked about this shape's */
  Program program;
  VL_TRY(shape_spec(cell, &run->queue.shapes[made->shape], made->samples, &spec));
  of_shape.spec = &spec;
  VL_TRY(arguments_of(cell, &spec, of_shape.values));
  VL_TRY(cell_build_program(&of_shape, &cell->recipe, !spec.inference, made->samples, &program));
  VL_TRY(vl_executable_create(&program, cell->device, cell->state, &made->executable));
  VL_TRY(vl_state_prepare(cell->state, made->executable, spec.seed, true));
  return vl_executable_build(made->executable);
}

/* One for each number of samples of a shape there is a batch of. */
static Status open_programs(Cell *cell, QueueRun *run) {
  int64_t start_ns = vl_monotonic_ns();
  for (int32_t i = 0; i < run->batch_count; i++) {
    if (find_program(run, &run->batches[i])) continue;
    QueueProgram *program = &run->programs[run->program_count++];
    *program = (QueueProgram){run->batches[i].shape, run->batches[i].samples, NULL};
    VL_TRY(build_program(cell, run, program));
  }
  cell->result->build_s += (double)(vl_monotonic_ns() - start_ns) * 1e-9;
  return vl_ok();
}

/* The cell is set up with the program of the largest batch. */
static Status set_up_lead(Cell *cell, QueueRun *run) {
  const QueueBatch *largest = &run->batches[0];
  for (int32_t i = 1; i < run->batch_count; i++)
    if (elements_of(&run->queue, &run->batches[i]) > elements_of(&run->queue, largest))
      largest = &run->batches[i];
  VL_TRY(shape_spec(cell, &run->queue.shapes[largest->shape], largest->samples, &run->lead));
  VL_TRY(arguments_of(cell, &run->lead, cell->values));
  cell->recipe = batch_recipe(&cell->recipe);
  cell->spec = &run->lead;
  cell->result->micro_batch = cell->result->global_batch = largest->samples;
  run->programs = vl_allocate((size_t)run->batch_count * sizeof *run->programs);
  VL_TRY(cell_set_up(cell));
  run->programs[run->program_count++] = (QueueProgram){largest->shape, largest->samples, cell->executable};
  vl_inputs_destroy(&cell->inputs); /* each batch has its own while it runs */
  return vl_ok();
}

/* ---- Running it ------------------------------------------------------------------------------------------------- */

/* What is known of the queue before it runs. */
static void describe_queue(const QueueRun *run, CellResult *result) {
  result->global_batch = run->queue.samples;
  result->tokens_per_sample = -1; /* of one size */
  result->flops_per_step = result->recompute_flops = 0;
  result->shape_count = run->queue.shape_count;
  engine_queue_write_sizes(&run->queue, run->sizes, result->queue_batches);
  for (int32_t i = 0; i < run->queue.shape_count; i++) {
    ShapeResult *row = &result->shapes[i];
    snprintf(row->shape, sizeof row->shape, "%s", run->queue.shapes[i].text);
    row->samples = run->queue.shapes[i].samples;
  }
  for (int32_t i = 0; i < run->batch_count; i++) {
    const QueueBatch *batch = &run->batches[i];
    ShapeResult *row = &result->shapes[batch->shape];
    const Schedule *schedule = vl_executable_schedule(find_program(run, batch)->executable);
    row->batches++;
    if (batch->samples > row->batch) row->batch = batch->samples;
    for (int32_t k = 0; k < schedule->instance_count; k++)
      if (schedule->instances[k].kind == INSTANCE_LAUNCH)
        result->flops_per_step += vl_node_flops(schedule->instances[k].node);
    result->recompute_flops += schedule->recompute_flops;
  }
}

static void raise_to(int64_t *highest, int64_t value) {
  if (value > *highest) *highest = value;
}

/* A batch's peaks, which end with it; those of its pass are the highest. */
static void take_batch_peaks(Cell *cell, const QueueBatch *batch, bool steady) {
  MemoryStatistics statistics;
  HeapFreeSpace space;
  CellResult *result = cell->result;
  ShapeResult *row = &result->shapes[batch->shape];
  int32_t pass = result->peak_count;
  vl_tracker_statistics(cell->tracker, &statistics);
  vl_heap_free_space(cell->heap, &space);
  raise_to(&row->peak_allocated_bytes, statistics.allocated.peak_bytes);
  raise_to(&row->peak_reserved_bytes, statistics.reserved.peak_bytes);
  raise_to(&result->step_peak_bytes[pass], statistics.allocated.peak_bytes);
  raise_to(&result->step_reserved_bytes[pass], statistics.reserved.peak_bytes);
  double *fragmentation = &result->step_fragmentation[pass];
  *fragmentation = isnan(space.fragmentation) ? NAN : fmax(*fragmentation, space.fragmentation);
  if (steady) result->fragmentation = fmax(result->fragmentation, space.fragmentation); /* NaN before */
  cell_take_peaks(cell, steady);
  vl_tracker_reset_peaks(cell->tracker);
}

static Status out_of_memory_in(Cell *cell, const QueueRun *run, const QueueBatch *batch, Status status) {
  if (status.code != VL_OUT_OF_MEMORY) return status;
  cell->result->shape_failed = batch->shape;
  return vl_error(VL_OUT_OF_MEMORY, "%lld of %s at once: %s", (long long)batch->samples,
                  run->queue.shapes[batch->shape].text, status.message);
}

/* The same samples in every pass. */
static Status run_batch(Cell *cell, const QueueRun *run, const QueueBatch *batch, StepResult *step) {
  Executable *executable = find_program(run, batch)->executable;
  Inputs *inputs = NULL;
  cell->stage = "setup";
  cell->run.executable = cell->executable = executable;
  Status status = vl_inputs_create(executable, cell->device, cell->heap, &inputs);
  if (status.code == VL_OK && !cell->result->device.predicts)
    status = vl_inputs_synthesize(inputs, cell->run.seed, 0, batch->first_sample);
  if (status.code == VL_OK) {
    status = vl_run_step(&cell->run, inputs, step, NULL);
    if (status.code != VL_OK) cell->stage = cell->run.failed_segment;
  }
  vl_inputs_destroy(&inputs);
  return out_of_memory_in(cell, run, batch, status);
}

static Status take_loss(Cell *cell, const QueueBatch *batch, double loss, double *mean) {
  if (cell->result->device.predicts || !vl_executable_program(cell->executable)->loss) return vl_ok();
  *mean += loss * (double)batch->samples / (double)cell->result->global_batch;
  if (isfinite(loss)) return vl_ok();
  return vl_error(VL_DIVERGED, "the loss of a batch of %s is %g", cell->result->shapes[batch->shape].shape,
                  loss);
}

static Status run_pass(Cell *cell, QueueRun *run, int32_t pass, bool steady, double *shape_s) {
  CellResult *result = cell->result;
  double loss = 0.0, pass_s = 0.0;
  StepResult step = {.loss = NAN};
  for (int32_t b = 0; b < run->batch_count; b++) {
    const QueueBatch *batch = &run->batches[b];
    cell->run.step = (uint64_t)(cell->first_step + (int64_t)pass * run->batch_count + b);
    VL_TRY(run_batch(cell, run, batch, &step));
    cell_mark_batch(cell);
    take_batch_peaks(cell, batch, steady);
    VL_TRY(take_loss(cell, batch, step.loss, &loss));
    shape_s[batch->shape] += (double)step.step_ns * 1e-9;
    pass_s += (double)step.step_ns * 1e-9;
  }
  MemoryStatistics statistics;
  vl_tracker_statistics(cell->tracker, &statistics);
  result->live_bytes[result->peak_count++] = statistics.allocated.current_bytes;
  if (steady) cell_take_allocation(cell, &step);
  if (!cell->names_before) cell->names_before = engine_live_names(cell->heap);
  if (!result->device.predicts && vl_executable_program(cell->executable)->loss)
    result->losses[result->loss_count++] = loss;
  if (steady && result->device.has_time) result->step_s[result->step_count++] = pass_s;
  return vl_ok();
}

static Status observe_pass(const Cell *cell, int32_t pass, int32_t total) {
  const CellObserver *observer = cell->observer;
  StepResult step = {.loss = NAN};
  if (observer && observer->step_done) observer->step_done(observer->context, pass + 1, total, &step);
  if (observer && observer->stop_requested && observer->stop_requested(observer->context))
    return vl_error(VL_INTERRUPTED, "stopped after pass %d of %d", pass + 1, total);
  return vl_ok();
}

static int compare_times(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Medians over the measured passes. */
static void take_rates(const QueueRun *run, CellResult *result) {
  int32_t shapes = run->queue.shape_count, passes = result->step_count;
  double *times = vl_allocate(((size_t)passes + 1) * sizeof *times);
  for (int32_t i = 0; i < shapes && passes > 0; i++) {
    ShapeResult *row = &result->shapes[i];
    for (int32_t p = 0; p < passes; p++)
      times[p] = run->shape_s[p * shapes + i];
    qsort(times, (size_t)passes, sizeof *times, compare_times);
    double median = 0.5 * (times[(passes - 1) / 2] + times[passes / 2]);
    row->samples_per_s = median > 0.0 ? (double)row->samples / median : (double)NAN;
    row->batch_s = median / (double)row->batches;
  }
  free(times);
}

static Status run_passes(Cell *cell, QueueRun *run) {
  const CellSpec *spec = cell->spec;
  CellResult *result = cell->result;
  bool once = result->device.predicts; /* a plan would only repeat itself */
  int32_t steps = once ? 1 : spec->steps, warmup = once ? 1 : spec->warmup, total = warmup + steps;
  int32_t shapes = run->queue.shape_count;
  result->step_s = vl_allocate((size_t)steps * sizeof(double));
  result->losses = vl_allocate((size_t)total * sizeof(double));
  result->step_peak_bytes = vl_allocate((size_t)total * sizeof(int64_t));
  result->live_bytes = vl_allocate((size_t)total * sizeof(int64_t));
  result->step_reserved_bytes = vl_allocate((size_t)total * sizeof(int64_t));
  result->step_fragmentation = vl_allocate((size_t)total * sizeof(double));
  run->shape_s = vl_allocate(((size_t)steps + 1) * (size_t)shapes * sizeof *run->shape_s);
  cell->run = cell_plain_run(cell);
  for (int32_t pass = 0; pass < total; pass++) {
    int64_t events_before = vl_tracker_event_count(cell->tracker);
    bool steady = pass >= warmup;
    double *times = run->shape_s + (steady ? pass - warmup : steps) * shapes;
    /* As of steps: the last, or the first where it runs out of memory. */
    bool last = pass == total - 1, timeline = spec->timeline && (pass == 0 || last);
    if (timeline) cell_begin_timeline(cell);
    cell->run.observe = timeline ? cell_observe : NULL;
    Status status = run_pass(cell, run, pass, steady, times);
    if (timeline && (last || status.code == VL_OUT_OF_MEMORY)) cell_end_timeline(cell);
    if (timeline && !last) cell_drop_timeline(cell);
    VL_TRY(status);
    result->events_per_step = vl_tracker_event_count(cell->tracker) - events_before;
    VL_TRY(observe_pass(cell, pass, total));
  }
  take_rates(run, result);
  return vl_ok();
}

static Status finish(Cell *cell, const QueueRun *run) {
  cell_take_leaks(cell);
  cell_take_driver(cell);
  cell_measure_tracker(cell);
  VL_TRY(cell_take_scaler(cell));
  if (!cell->spec->save_state[0]) return vl_ok();
  int64_t passes = cell->spec->warmup + cell->spec->steps;
  return vl_state_save(cell->state, cell->spec->save_state, cell->first_step + passes * run->batch_count,
                       cell->spec->seed);
}

static Status run_queue(Cell *cell, QueueRun *run) {
  Recipe whole = cell->recipe;
  VL_TRY(engine_queue_parse(cell->spec->queue, cell->spec->seed, &run->queue));
  VL_TRY(decide_sizes(cell, run));
  run->batches = engine_queue_batches(&run->queue, run->bucketed, run->sizes, &run->batch_count);
  VL_TRY(set_up_lead(cell, run));
  VL_TRY(open_programs(cell, run));
  describe_queue(run, cell->result);
  snprintf(cell->result->preserves, sizeof cell->result->preserves, "%s",
           vl_preserves_name(vl_recipe_preserves(&whole, vl_executable_program(cell->executable))));
  VL_TRY(run_passes(cell, run));
  return finish(cell, run);
}

Status cell_run_queue(Cell *cell) {
  QueueRun *run = vl_allocate(sizeof *run);
  const CellSpec *spec = cell->spec;
  Status status = run_queue(cell, run);
  if (run->program_count > 0)
    cell->executable = run->programs[0].executable; /* the one the cell gives back */
  for (int32_t i = 1; i < run->program_count; i++)
    vl_executable_destroy(&run->programs[i].executable);
  cell->spec = spec;
  engine_queue_clear(&run->queue);
  free(run->batches);
  free(run->programs);
  free(run->shape_s);
  free(run);
  return status;
}
