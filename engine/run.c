/* One step: walk the schedule; for each instance obtain what begins, launch or copy, release what ends. */
#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Step {
  StepResult *result;
  float *logits;
  int64_t start_ns;
  int64_t fill_ns;    /* spent on inputs, which is not the step's time */
  StepPlaces *places; /* NULL: the heap chooses */
  int64_t placed;     /* blocks so far */
  bool records;       /* places are to be found: nothing is obtained, and nothing runs */
} Step;

/* Micro-batches of one program, out of a step's; with the last of them the update. */
typedef struct Walk {
  Run run; /* of this program */
  Inputs *inputs;
  Step *step;
  const Schedule *schedule;
  int64_t samples;      /* of a micro-batch */
  int32_t begin, end;   /* which of the schedule's micro-batches run */
  int64_t first_sample; /* of the step: what the first of them begins with */
  bool is_last;         /* nothing of the step comes after */
  bool together;        /* launches between two fillings of the inputs are the device's to queue at once */
  uintptr_t *addresses; /* by buffer */
  Block **blocks;       /* by buffer: what this step obtained */
  uint64_t *events;     /* by instance: of a transfer, for its wait */
} Walk;

static Status persistent_address(const Walk *walk, const Buffer *buffer, uintptr_t *address) {
  const Storage *storage = buffer->storage;
  if (storage->role == ROLE_INPUT) {
    *address = engine_input_address(walk->inputs, storage);
    return *address ? vl_ok() : vl_error(VL_INTERNAL, "input %s was not created", storage->name);
  }
  const StateEntry *entry = engine_state_find(walk->run.state, storage->name);
  if (!entry)
    return vl_error(VL_INTERNAL, "%s is not in State: prepare it before the first step", storage->name);
  *address = entry->block->address;
  return vl_ok();
}

static Status find_given_buffers(const Walk *walk) {
  for (int32_t i = 0; i < walk->schedule->buffer_count; i++) {
    const Buffer *buffer = &walk->schedule->buffers[i];
    if (buffer->given) VL_TRY(persistent_address(walk, buffer, &walk->addresses[i]));
  }
  return vl_ok();
}

static Heap *heap_of(const Walk *walk, Tier tier) {
  return tier == TIER_OFFLOAD ? walk->run.offload_heap : walk->run.heap;
}

/* What is to outlive the step has no place in its region. */
static Status obtain(Walk *walk, Heap *heap, AllocationRequest *request, bool outlives,
                     const Instance *instance, Block **block) {
  Step *step = walk->step;
  bool placed = step->places && heap == walk->run.heap && !outlives;
  if (step->records) {
    *block = engine_places_obtain(step->places, request, placed && request->bytes > 0);
    return vl_ok();
  }
  if (placed && request->bytes > 0) VL_TRY(engine_places_of(step->places, step->placed++, request));
  Status status = vl_heap_obtain(heap, request, block);
  if (status.code == VL_OUT_OF_MEMORY) walk->run.failed_segment = vl_segment_name(instance->node->segment);
  return status;
}

static void release(Walk *walk, Heap *heap, Block **block) {
  if (walk->step->records) {
    engine_places_release(walk->step->places, block);
  } else {
    vl_heap_release(heap, block);
  }
}

static Status obtain_buffers(Walk *walk, const Instance *instance) {
  const Executable *executable = walk->run.executable;
  for (int32_t i = 0; i < instance->obtain_count; i++) {
    int32_t id = instance->obtain[i];
    const Buffer *buffer = &walk->schedule->buffers[id];
    const Storage *storage = buffer->storage;
    /* Of one pool, since a copy begins after what was launched before it and is waited for before what it
     * read is freed. */
    AllocationRequest request = {.bytes = executable->storage_bytes[storage->id],
                                 .category = engine_category_of(storage->role),
                                 .name = storage->name,
                                 .scope = storage->scope,
                                 .stream = STREAM_COMPUTE};
    VL_TRY(obtain(walk, heap_of(walk, buffer->tier), &request, buffer->leaks, instance, &walk->blocks[id]));
    walk->addresses[id] = walk->blocks[id]->address;
  }
  return vl_ok();
}

/* How many labels a loss or its gradient reads, its only whole numbers. */
static int64_t labels_read(const Node *node) {
  int64_t count = 0;
  for (int32_t i = 0; i < node->input_count; i++)
    if (!vl_dtype_is_float(node->inputs[i]->dtype)) count = vl_tensor_elements(node->inputs[i]);
  return count;
}

/* What a loss divides by when its rows are part of the step's only. */
static int64_t counted_rows(const Walk *walk, const Node *node) {
  const Storage *labels = vl_labels_of(node);
  const Program *program = &walk->run.executable->program;
  if (!labels) return 0;
  if (program->accumulate_wrong)
    return program->accumulate * engine_inputs_counted_here(walk->inputs, labels);
  bool whole = program->accumulate == 1 && labels_read(node) == labels->elements;
  return whole ? 0 : engine_inputs_counted(walk->inputs, labels);
}

static int64_t first_sample_of(const Walk *walk, int32_t micro_batch) {
  return walk->first_sample + (micro_batch - walk->begin) * walk->samples;
}

/* Conversion buffers of emulated kernels are kept apart where there is a heap for them. */
static Status obtain_workspace(Walk *walk, const Instance *instance, const Kernel *kernel, Heap **heap,
                               Block **workspace) {
  const Run *run = &walk->run;
  const DeviceInterface *interface = run->device->interface;
  bool emulated = interface->is_emulated && interface->is_emulated(kernel);
  AllocationRequest request = {.bytes = interface->workspace_bytes(kernel),
                               .category = MEMORY_WORKSPACE,
                               .name = emulated ? "workspace:emulation" : instance->node->op->name,
                               .scope = instance->node->scope,
                               .stream = instance->stream};
  if (instance->node == run->executable->oversized && instance->pass == 0)
    request.bytes += run->executable->program.oversize_bytes;
  *heap = emulated && run->emulation ? run->emulation : run->heap;
  return request.bytes > 0 ? obtain(walk, *heap, &request, false, instance, workspace) : vl_ok();
}

static Status launch(Walk *walk, const Instance *instance) {
  Run *run = &walk->run;
  const Node *node = instance->node;
  Kernel *kernel = run->executable->kernels[node->id];
  uintptr_t inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0};
  for (int32_t i = 0; i < node->input_count; i++) {
    if (instance->inputs[i] < 0) continue;
    const Tensor *tensor = node->inputs[i];
    uintptr_t address = walk->addresses[instance->inputs[i]];
    if (!address && run->executable->storage_bytes[tensor->storage->id] > 0)
      return vl_error(VL_INTERNAL, "%s in %s reads %s of a micro-batch that does not run", node->op->name,
                      node->scope, tensor->name);
    inputs[i] = address + (uintptr_t)vl_dtype_bytes(tensor->dtype, tensor->offset);
  }
  for (int32_t i = 0; i < node->output_count; i++) {
    if (instance->outputs[i] < 0) continue;
    const Tensor *tensor = node->outputs[i];
    outputs[i] =
        walk->addresses[instance->outputs[i]] + (uintptr_t)vl_dtype_bytes(tensor->dtype, tensor->offset);
  }
  Heap *heap;
  Block *workspace = NULL;
  VL_TRY(obtain_workspace(walk, instance, kernel, &heap, &workspace));
  LaunchContext context = {.seed = run->seed,
                           .step = run->step,
                           .first_sample = first_sample_of(walk, instance->micro_batch),
                           .counted_rows = counted_rows(walk, node),
                           .learning_rate = run->learning_rate,
                           .rounding = node->segment == SEGMENT_BACKWARD ? run->rounding : NULL};
  if (run->observe) run->launch_start_ns = vl_monotonic_ns();
  Status status = run->device->interface->launch(run->device, kernel, inputs, outputs,
                                                 workspace ? workspace->address : 0, &context);
  release(walk, heap, &workspace);
  if (status.code == VL_OK && run->observe) {
    run->observe(run->observe_context, run, instance, outputs);
  }
  return status;
}

static Status transfer(Walk *walk, const Instance *instance) {
  const DeviceInterface *interface = walk->run.device->interface;
  bool out = instance->kind == INSTANCE_EVICT;
  int32_t from = instance->inputs[0], to = instance->outputs[0];
  int64_t bytes = walk->run.executable->storage_bytes[walk->schedule->buffers[from].storage->id];
  *(out ? &walk->step->result->evicted_bytes : &walk->step->result->fetched_bytes) += bytes;
  return interface->offload_copy(walk->run.device, out, walk->addresses[out ? from : to],
                                 walk->addresses[out ? to : from], bytes,
                                 &walk->events[instance - walk->schedule->instances]);
}

/* What a launch obtains. */
static Status record(Walk *walk, const Instance *instance) {
  Heap *heap;
  Block *workspace = NULL;
  const Kernel *kernel = walk->run.executable->kernels[instance->node->id];
  if (instance->kind != INSTANCE_LAUNCH) return vl_ok();
  VL_TRY(obtain_workspace(walk, instance, kernel, &heap, &workspace));
  release(walk, heap, &workspace);
  return vl_ok();
}

static Status execute(Walk *walk, const Instance *instance) {
  Device *device = walk->run.device;
  if (walk->step->records) return record(walk, instance);
  switch (instance->kind) {
  case INSTANCE_LAUNCH: return launch(walk, instance);
  case INSTANCE_EVICT:
  case INSTANCE_FETCH: return transfer(walk, instance);
  case INSTANCE_WAIT: return device->interface->offload_wait(device, walk->events[instance->transfer]);
  }
  return vl_error(VL_INTERNAL, "an instance of no kind");
}

/* What the step left of a tensor: its sum, where several were made, is the last one that lives. */
static Status download_plain_f32(const Walk *walk, const Tensor *tensor, float *values) {
  const Storage *storage = tensor->storage;
  void *host = vl_allocate((size_t)vl_dtype_bytes(storage->dtype, storage->elements) + 1);
  for (int32_t i = walk->schedule->buffer_count - 1; i >= 0; i--) {
    const Buffer *buffer = &walk->schedule->buffers[i];
    if (buffer->storage != storage || !walk->blocks[i] || buffer->tier != TIER_DEVICE) continue;
    Device *device = walk->run.device;
    Status status = device->interface->download(device, storage, walk->addresses[i], host);
    for (int64_t e = 0; e < storage->elements; e++) {
      values[e] = (float)vl_element_get(host, storage->dtype, e);
    }
    free(host);
    return status;
  }
  free(host);
  return vl_error(VL_INTERNAL, "%s is not part of the schedule", tensor->name);
}

/* Launches from `instance` on up to the next end_together. */
static void begin_together(const Walk *walk, const Instance *instance) {
  if (walk->together) walk->run.device->interface->sequence_begin(walk->run.device, instance);
}

static Status end_together(const Walk *walk) {
  return walk->together ? walk->run.device->interface->sequence_end(walk->run.device) : vl_ok();
}

/* Waits for the step and fetches what the caller asked for, while it still lives. */
static Status finish(const Walk *walk) {
  Device *device = walk->run.device;
  const Program *program = &walk->run.executable->program;
  const Step *step = walk->step;
  if (step->records) return vl_ok();
  VL_TRY(end_together(walk));
  VL_TRY(device->interface->synchronize(device));
  step->result->step_ns = vl_monotonic_ns() - step->start_ns - step->fill_ns;
  if (walk->schedule->transfers > 0) step->result->stall_ns = device->interface->offload_stall_ns(device);
  DeviceDescription description;
  device->interface->describe(device, &description);
  if (description.predicts) return vl_ok();
  if (program->loss) {
    float loss = 0.0F;
    VL_TRY(download_plain_f32(walk, program->loss, &loss));
    step->result->loss = (double)loss;
  }
  if (step->logits) VL_TRY(download_plain_f32(walk, program->logits, step->logits));
  return vl_ok();
}

/* The device may still read the inputs of the micro-batch before. */
static Status begin_micro_batch(Walk *walk, int32_t micro_batch) {
  const Run *run = &walk->run;
  if (walk->step->records) {
    engine_places_begin_micro_batch(walk->step->places);
    return vl_ok();
  }
  VL_TRY(end_together(walk));
  VL_TRY(run->device->interface->synchronize(run->device));
  int64_t start_ns = vl_monotonic_ns();
  VL_TRY(run->fill(run->fill_context, walk->inputs, first_sample_of(walk, micro_batch)));
  walk->step->fill_ns += vl_monotonic_ns() - start_ns;
  engine_inputs_begin_micro_batch(walk->inputs);
  return vl_ok();
}

/* Before the first weight changes. */
static Status check_counted(const Walk *walk) {
  const Graph *graph = walk->run.executable->program.graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Storage *labels = vl_labels_of(graph->nodes[i]);
    if (labels) VL_TRY(engine_inputs_check_counted(walk->inputs, labels));
  }
  return vl_ok();
}

/* What lies between two instances of a step of several micro-batches. */
static Status between(Walk *walk, const Instance *before, const Instance *next) {
  bool update = next->node->segment == SEGMENT_UPDATE;
  bool checked = walk->step->records || before->node->segment == SEGMENT_UPDATE;
  if (update) return checked ? vl_ok() : check_counted(walk);
  if (next->micro_batch == before->micro_batch) return vl_ok();
  VL_TRY(begin_micro_batch(walk, next->micro_batch));
  begin_together(walk, next);
  return vl_ok();
}

static bool runs(const Walk *walk, const Instance *instance) {
  if (instance->node->segment == SEGMENT_UPDATE) return walk->is_last;
  return instance->micro_batch >= walk->begin && instance->micro_batch < walk->end;
}

/* The position in the graph; of a repetition, of the node in backward that it is for. */
static int64_t place_of(const Schedule *schedule, int32_t at) {
  while (at < schedule->instance_count - 1 && schedule->instances[at].pass > 0)
    at++;
  return schedule->instances[at].node->position;
}

static Status walk_instances(Walk *walk) {
  const Schedule *schedule = walk->schedule;
  bool accumulates = walk->run.executable->program.accumulate > 1;
  const Instance *before = NULL, *last = NULL;
  for (int32_t at = 0; at < schedule->instance_count; at++)
    if (runs(walk, &schedule->instances[at])) last = &schedule->instances[at];
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    if (!runs(walk, instance)) continue;
    if (!before) begin_together(walk, instance);
    if (accumulates && before) VL_TRY(between(walk, before, instance));
    if (walk->run.tracker && !walk->step->records)
      vl_tracker_set_place(walk->run.tracker, place_of(schedule, at));
    VL_TRY(obtain_buffers(walk, instance));
    VL_TRY(execute(walk, instance));
    if (instance == last && walk->is_last) VL_TRY(finish(walk));
    for (int32_t i = 0; i < instance->release_count; i++) {
      int32_t id = instance->release[i];
      release(walk, heap_of(walk, schedule->buffers[id].tier), &walk->blocks[id]);
    }
    before = instance;
  }
  return vl_ok();
}

/* Not together: what moves between tiers waits for launches, and who observes looks at each. */
static Status walk_schedule(Walk *walk) {
  const DeviceInterface *interface = walk->run.device->interface;
  walk->together = interface->sequence_begin && !walk->step->records && !walk->run.observe &&
                   walk->schedule->transfers == 0;
  Status status = walk_instances(walk), ended = end_together(walk);
  return status.code != VL_OK ? status : ended;
}

/* ---- A step of two programs ---- */

/* Sums over the micro-batches so far go on where this schedule has them: in the buffers of its first, which
 * another program ran. */
static Status take_over_sums(Walk *walk, Walk *from) {
  const Schedule *schedule = walk->schedule;
  int32_t start = 0, at = 0;
  while (schedule->instances[start].micro_batch < walk->begin)
    start++;
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    const Buffer *buffer = &schedule->buffers[i];
    if (buffer->micro_batch > 0 || buffer->first < 0 || buffer->last < start) continue;
    int32_t searched = 0, count = from->schedule->buffer_count;
    for (; searched < count; searched++, at = (at + 1) % count) { /* in much the same order */
      const Storage *storage = from->schedule->buffers[at].storage;
      if (from->blocks[at] && strcmp(storage->name, buffer->storage->name) == 0) break;
    }
    if (searched == count)
      return vl_error(VL_INTERNAL, "no sum of %s was left by the micro-batches before",
                      buffer->storage->name);
    walk->blocks[i] = from->blocks[at];
    walk->addresses[i] = from->addresses[at];
    from->blocks[at] = NULL;
  }
  return vl_ok();
}

static void walk_open(const Run *run, Executable *executable, Inputs *inputs, Step *step, Walk *walk) {
  const Schedule *schedule = executable->schedule;
  size_t buffers = (size_t)schedule->buffer_count + 1;
  *walk = (Walk){.run = *run,
                 .inputs = inputs,
                 .step = step,
                 .schedule = schedule,
                 .samples = vl_program_samples(&executable->program),
                 .end = 1,
                 .is_last = true};
  walk->run.executable = executable;
  walk->addresses = vl_allocate(buffers * sizeof *walk->addresses);
  walk->blocks = vl_allocate(buffers * sizeof(Block *));
  walk->events = vl_allocate(((size_t)schedule->instance_count + 1) * sizeof *walk->events);
}

void vl_retained_release(Retained *retained, Heap *heap) {
  for (int64_t i = 0; i < retained->count; i++)
    vl_heap_release(heap, &retained->blocks[i]);
  free(retained->blocks);
  *retained = (Retained){0};
}

void engine_retain(Retained *retained, Block *block) {
  if (retained->count == retained->capacity) {
    retained->capacity = retained->capacity ? 2 * retained->capacity : 256;
    retained->blocks = vl_reallocate(retained->blocks, (size_t)retained->capacity * sizeof(Block *));
  }
  retained->blocks[retained->count++] = block;
}

/* What a step that ended well leaks. */
static void retain(Walk *walk) {
  for (int32_t i = 0; i < walk->schedule->buffer_count; i++) {
    if (!walk->schedule->buffers[i].leaks || !walk->blocks[i]) continue;
    engine_retain(walk->run.retained, walk->blocks[i]);
    walk->blocks[i] = NULL;
  }
}

/* The mistake `grow`: a metric that is kept on the device after every step. */
static Status grow(const Run *run) {
  const Program *program = &run->executable->program;
  Block *block;
  if (program->growth_bytes == 0 || !program->loss || !run->retained) return vl_ok();
  const Storage *loss = program->loss->storage;
  AllocationRequest request = {.bytes = program->growth_bytes,
                               .category = MEMORY_ACTIVATION,
                               .name = loss->name,
                               .scope = loss->scope,
                               .stream = STREAM_COMPUTE};
  VL_TRY(vl_heap_obtain(run->heap, &request, &block));
  engine_retain(run->retained, block);
  return vl_ok();
}

static void walk_close(Walk *walk, const Status *status) {
  if (status->code == VL_OK && walk->run.retained && !walk->step->records) retain(walk);
  if (status->code != VL_OK) { /* copies that are under way must not meet memory given back */
    Status drained = walk->run.device->interface->synchronize(walk->run.device);
    (void)drained;
  }
  for (int32_t i = 0; i < walk->schedule->buffer_count; i++)
    release(walk, heap_of(walk, walk->schedule->buffers[i].tier), &walk->blocks[i]);
  free(walk->addresses);
  free(walk->events);
  free(walk->blocks);
}

/* The last micro-batch, as the second of the smaller program: its first is what the others stand for. */
static Status run_tail(Run *run, Walk *others) {
  Walk walk;
  bool records = others->step->records;
  if (!records) engine_inputs_go_on(run->tail_inputs, others->inputs);
  walk_open(run, run->tail, run->tail_inputs, others->step, &walk);
  walk.begin = 1;
  walk.end = 2;
  walk.first_sample = first_sample_of(others, others->end);
  Status status = records ? vl_ok() : find_given_buffers(&walk);
  if (status.code == VL_OK) status = take_over_sums(&walk, others);
  if (status.code == VL_OK) status = begin_micro_batch(&walk, walk.begin);
  if (status.code == VL_OK) status = walk_schedule(&walk);
  run->failed_segment = walk.run.failed_segment;
  if (!records) engine_inputs_end_step(run->tail_inputs);
  walk_close(&walk, &status);
  return status;
}

/* Whole micro-batches, and what is left. */
static Status run_programs(Run *run, Inputs *inputs, Step *step, int32_t whole, int64_t rest) {
  Walk walk;
  walk_open(run, run->executable, inputs, step, &walk);
  walk.end = whole;
  walk.is_last = rest == 0;
  Status status = step->records ? vl_ok() : find_given_buffers(&walk);
  if (!step->records) engine_inputs_begin_step(inputs, whole * walk.samples + rest);
  step->start_ns = vl_monotonic_ns();
  if (status.code == VL_OK) status = walk_schedule(&walk);
  run->failed_segment = walk.run.failed_segment;
  if (status.code == VL_OK && rest > 0) status = run_tail(run, &walk);
  if (!step->records) engine_inputs_end_step(inputs);
  walk_close(&walk, &status);
  return status;
}

/* The places of a step on a planned heap, found before the first of its kind. */
static Status find_places(Run *run, Inputs *inputs, int32_t whole, int64_t rest, StepPlaces **places) {
  const Executable *tail = rest > 0 ? run->tail : NULL;
  *places = NULL;
  if (!vl_heap_is_planned(run->heap)) return vl_ok();
  *places = engine_places_find(run->executable, whole, tail);
  if (!*places) {
    Step recorded = {.places = engine_places_create(whole, tail), .records = true};
    Status status = run_programs(run, inputs, &recorded, whole, rest);
    if (status.code != VL_OK) {
      engine_places_destroy(&recorded.places);
      return status;
    }
    engine_places_pack(recorded.places);
    engine_places_keep(run->executable, recorded.places);
    *places = recorded.places;
  }
  vl_heap_extend_step_region(run->heap, engine_places_bytes(*places));
  return vl_ok();
}

/* Between steps, and part of the time of the one before. */
static Status defragment(const Run *run, StepResult *result) {
  int64_t start_ns = vl_monotonic_ns();
  if (!run->executable->program.defragment) return vl_ok();
  VL_TRY(vl_heap_defragment(run->heap, &result->moved));
  result->step_ns += vl_monotonic_ns() - start_ns;
  return vl_ok();
}

/* Whole micro-batches of a step, and what is left for the tail. */
static Status divide_step(const Run *run, int32_t *whole, int64_t *rest) {
  const Program *program = &run->executable->program;
  int64_t samples = vl_program_samples(program);
  *whole = program->accumulate;
  *rest = 0;
  if (run->samples == 0) return vl_ok();
  if (samples < 1 || run->samples < samples || run->samples / samples > program->accumulate)
    return vl_error(VL_INVALID, "a step of %lld samples: %s runs 1 to %d micro-batches of %lld",
                    (long long)run->samples, program->graph->name, program->accumulate, (long long)samples);
  *whole = (int32_t)(run->samples / samples);
  *rest = run->samples % samples;
  if (*rest == 0) return vl_ok();
  const Program *tail = run->tail ? &run->tail->program : NULL;
  if (tail && tail->accumulate > 1 && vl_program_samples(tail) == *rest) return vl_ok();
  return vl_error(VL_INVALID,
                  "a step of %lld samples over micro-batches of %lld: no program adds the last %lld",
                  (long long)run->samples, (long long)samples, (long long)*rest);
}

Status vl_run_scaler(const Run *run, Scaler *scaler) {
  float scale = 1.0F;
  int64_t counters[SCALER_COUNTERS] = {0};
  *scaler = (Scaler){.scale = 1.0, .steps = (int64_t)run->step};
  DeviceDescription description;
  run->device->interface->describe(run->device, &description);
  if (!run->executable->program.loss_scale || description.predicts) return vl_ok();
  VL_TRY(run->device->interface->synchronize(run->device));
  VL_TRY(vl_state_read(run->state, "loss_scale", &scale, sizeof scale));
  VL_TRY(vl_state_read(run->state, "loss_scale.counters", counters, sizeof counters));
  *scaler = (Scaler){(double)scale, counters[SCALER_CLEAN], counters[SCALER_SKIPPED], counters[SCALER_STEPS]};
  return vl_ok();
}

static Status follow_schedule(Run *run) {
  Scaler scaler;
  if (!run->schedule) return vl_ok();
  VL_TRY(vl_run_scaler(run, &scaler));
  run->learning_rate = run->schedule(run->schedule_context, scaler.steps);
  return vl_ok();
}

Status vl_run_step(Run *run, Inputs *inputs, StepResult *result, float *logits) {
  const Program *program = &run->executable->program;
  int32_t whole;
  int64_t rest;
  *result = (StepResult){.loss = NAN};
  run->failed_segment = "";
  if (run->executable->schedule->transfers > 0 && !run->offload_heap)
    return vl_error(VL_INTERNAL, "the schedule offloads and there is no heap of the offload tier");
  if (logits && (program->training || !program->logits)) {
    return vl_error(VL_INVALID, "%s keeps no logits to the end of a step: only an evaluation program does",
                    program->graph->name);
  }
  VL_TRY(divide_step(run, &whole, &rest));
  if (program->accumulate > 1 && !run->fill) {
    return vl_error(VL_INVALID,
                    "accumulate=%d: nothing fills the inputs of the micro-batches after the first",
                    program->accumulate);
  }
  VL_TRY(follow_schedule(run));
  Step step = {.result = result, .logits = logits};
  VL_TRY(find_places(run, inputs, whole, rest, &step.places));
  const DeviceInterface *interface = run->device->interface;
  if (run->executable->schedule->transfers > 0) (void)interface->offload_stall_ns(run->device);
  VL_TRY(run_programs(run, inputs, &step, whole, rest));
  VL_TRY(grow(run));
  return defragment(run, result);
}
