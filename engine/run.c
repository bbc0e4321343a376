/* One step: walk the schedule; for each instance obtain what begins, launch or copy, release what ends. */
#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Walk {
  Run *run;
  Inputs *inputs;
  const Schedule *schedule;
  int64_t samples;      /* of a micro-batch */
  int64_t fill_ns;      /* spent on inputs, which is not the step's time */
  uintptr_t *addresses; /* by buffer */
  Block **blocks;       /* by buffer: what this step obtained */
  uint64_t *events;     /* by instance: of a transfer, for its wait */
  StepResult *result;
} Walk;

static Status persistent_address(const Walk *walk, const Buffer *buffer, uintptr_t *address) {
  const Storage *storage = buffer->storage;
  if (storage->role == ROLE_INPUT) {
    *address = engine_input_address(walk->inputs, storage);
    return *address ? vl_ok() : vl_error(VL_INTERNAL, "input %s was not created", storage->name);
  }
  const StateEntry *entry = engine_state_find(walk->run->state, storage->name);
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
  return tier == TIER_OFFLOAD ? walk->run->offload_heap : walk->run->heap;
}

static Status obtain(Walk *walk, Tier tier, const AllocationRequest *request, const Instance *instance,
                     Block **block) {
  Status status = vl_heap_obtain(heap_of(walk, tier), request, block);
  if (status.code == VL_OUT_OF_MEMORY) walk->run->failed_segment = vl_segment_name(instance->node->segment);
  return status;
}

static Status obtain_buffers(Walk *walk, const Instance *instance) {
  const Executable *executable = walk->run->executable;
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
    VL_TRY(obtain(walk, buffer->tier, &request, instance, &walk->blocks[id]));
    walk->addresses[id] = walk->blocks[id]->address;
  }
  return vl_ok();
}

/* What a loss divides by when its rows are part of the step's only. */
static int64_t counted_rows(const Walk *walk, const Node *node) {
  const Storage *labels = vl_labels_of(node);
  if (!labels) return 0;
  bool whole =
      walk->run->executable->program.accumulate == 1 && node->inputs[1]->shape[0] == labels->elements;
  return whole ? 0 : engine_inputs_counted(walk->inputs, labels);
}

static Status launch(Walk *walk, const Instance *instance) {
  Run *run = walk->run;
  const Node *node = instance->node;
  Kernel *kernel = run->executable->kernels[node->id];
  uintptr_t inputs[VL_MAX_INPUTS] = {0}, outputs[VL_MAX_OUTPUTS] = {0};
  for (int32_t i = 0; i < node->input_count; i++) {
    if (instance->inputs[i] < 0) continue;
    const Tensor *tensor = node->inputs[i];
    inputs[i] =
        walk->addresses[instance->inputs[i]] + (uintptr_t)vl_dtype_bytes(tensor->dtype, tensor->offset);
  }
  for (int32_t i = 0; i < node->output_count; i++) {
    if (instance->outputs[i] >= 0) outputs[i] = walk->addresses[instance->outputs[i]];
  }
  int64_t workspace_bytes = run->device->interface->workspace_bytes(kernel);
  Block *workspace = NULL;
  if (workspace_bytes > 0) {
    AllocationRequest request = {.bytes = workspace_bytes,
                                 .category = MEMORY_WORKSPACE,
                                 .name = node->op->name,
                                 .scope = node->scope,
                                 .stream = instance->stream};
    VL_TRY(obtain(walk, TIER_DEVICE, &request, instance, &workspace));
  }
  LaunchContext context = {.seed = run->seed,
                           .step = run->step,
                           .first_sample = instance->micro_batch * walk->samples,
                           .counted_rows = counted_rows(walk, node),
                           .learning_rate = run->learning_rate};
  Status status = run->device->interface->launch(run->device, kernel, inputs, outputs,
                                                 workspace ? workspace->address : 0, &context);
  vl_heap_release(run->heap, &workspace);
  if (status.code == VL_OK && run->observe) {
    run->observe(run->observe_context, run, instance, outputs);
  }
  return status;
}

static Status transfer(Walk *walk, const Instance *instance) {
  const DeviceInterface *interface = walk->run->device->interface;
  bool out = instance->kind == INSTANCE_EVICT;
  int32_t from = instance->inputs[0], to = instance->outputs[0];
  int64_t bytes = walk->run->executable->storage_bytes[walk->schedule->buffers[from].storage->id];
  *(out ? &walk->result->evicted_bytes : &walk->result->fetched_bytes) += bytes;
  return interface->offload_copy(walk->run->device, out, walk->addresses[out ? from : to],
                                 walk->addresses[out ? to : from], bytes,
                                 &walk->events[instance - walk->schedule->instances]);
}

static Status execute(Walk *walk, const Instance *instance) {
  Device *device = walk->run->device;
  switch (instance->kind) {
  case INSTANCE_LAUNCH: return launch(walk, instance);
  case INSTANCE_EVICT:
  case INSTANCE_FETCH: return transfer(walk, instance);
  case INSTANCE_WAIT: return device->interface->offload_wait(device, walk->events[instance->transfer]);
  }
  return vl_error(VL_INTERNAL, "an instance of no kind");
}

static Status download_plain_f32(const Walk *walk, const Tensor *tensor, float *values) {
  const Storage *storage = tensor->storage;
  void *host = vl_allocate((size_t)vl_dtype_bytes(storage->dtype, storage->elements) + 1);
  for (int32_t i = 0; i < walk->schedule->buffer_count; i++) {
    const Buffer *buffer = &walk->schedule->buffers[i];
    if (buffer->storage != storage || buffer->pass != 0 || buffer->micro_batch != 0 ||
        buffer->tier != TIER_DEVICE)
      continue;
    Device *device = walk->run->device;
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

/* Waits for the step and fetches what the caller asked for, while it still lives. */
static Status finish(const Walk *walk, int64_t start_ns, float *logits) {
  StepResult *result = walk->result;
  Device *device = walk->run->device;
  const Program *program = &walk->run->executable->program;
  VL_TRY(device->interface->synchronize(device));
  result->step_ns = vl_monotonic_ns() - start_ns - walk->fill_ns;
  if (walk->schedule->transfers > 0) result->stall_ns = device->interface->offload_stall_ns(device);
  DeviceDescription description;
  device->interface->describe(device, &description);
  if (description.predicts) return vl_ok();
  if (program->loss) {
    float loss = 0.0F;
    VL_TRY(download_plain_f32(walk, program->loss, &loss));
    result->loss = (double)loss;
  }
  if (logits) VL_TRY(download_plain_f32(walk, program->logits, logits));
  return vl_ok();
}

/* The device may still read the inputs of the micro-batch before. */
static Status begin_micro_batch(Walk *walk, int32_t micro_batch) {
  Run *run = walk->run;
  VL_TRY(run->device->interface->synchronize(run->device));
  int64_t start_ns = vl_monotonic_ns();
  VL_TRY(run->fill(run->fill_context, walk->inputs, micro_batch * walk->samples));
  walk->fill_ns += vl_monotonic_ns() - start_ns;
  engine_inputs_begin_micro_batch(walk->inputs);
  return vl_ok();
}

/* Before the first weight changes. */
static Status check_counted(const Walk *walk) {
  const Graph *graph = walk->run->executable->program.graph;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Storage *labels = vl_labels_of(graph->nodes[i]);
    if (labels) VL_TRY(engine_inputs_check_counted(walk->inputs, labels));
  }
  return vl_ok();
}

/* What lies between two instances of a step of several micro-batches. */
static Status between(Walk *walk, const Instance *before, const Instance *next) {
  if (next->micro_batch != before->micro_batch) return begin_micro_batch(walk, next->micro_batch);
  bool update = next->node->segment == SEGMENT_UPDATE && before->node->segment != SEGMENT_UPDATE;
  return update ? check_counted(walk) : vl_ok();
}

static Status walk_schedule(Walk *walk, float *logits) {
  bool accumulates = walk->run->executable->program.accumulate > 1;
  VL_TRY(find_given_buffers(walk));
  engine_inputs_begin_step(walk->inputs, walk->run->executable->program.accumulate);
  const DeviceInterface *interface = walk->run->device->interface;
  if (walk->schedule->transfers > 0) (void)interface->offload_stall_ns(walk->run->device);
  int64_t start_ns = vl_monotonic_ns();
  for (int32_t at = 0; at < walk->schedule->instance_count; at++) {
    const Instance *instance = &walk->schedule->instances[at];
    if (accumulates && at > 0) VL_TRY(between(walk, instance - 1, instance));
    VL_TRY(obtain_buffers(walk, instance));
    VL_TRY(execute(walk, instance));
    if (at == walk->schedule->instance_count - 1) VL_TRY(finish(walk, start_ns, logits));
    for (int32_t i = 0; i < instance->release_count; i++) {
      int32_t id = instance->release[i];
      vl_heap_release(heap_of(walk, walk->schedule->buffers[id].tier), &walk->blocks[id]);
    }
  }
  return vl_ok();
}

Status vl_run_step(Run *run, Inputs *inputs, StepResult *result, float *logits) {
  const Schedule *schedule = run->executable->schedule;
  *result = (StepResult){.loss = NAN};
  run->failed_segment = "";
  if (schedule->transfers > 0 && !run->offload_heap)
    return vl_error(VL_INTERNAL, "the schedule offloads and there is no heap of the offload tier");
  if (logits && (run->executable->program.training || !run->executable->program.logits)) {
    return vl_error(VL_INVALID, "%s keeps no logits to the end of a step: only an evaluation program does",
                    run->executable->program.graph->name);
  }
  if (run->executable->program.accumulate > 1 && !run->fill) {
    return vl_error(VL_INVALID,
                    "accumulate=%d: nothing fills the inputs of the micro-batches after the first",
                    run->executable->program.accumulate);
  }
  Walk walk = {.run = run,
               .inputs = inputs,
               .schedule = schedule,
               .result = result,
               .samples = vl_program_samples(&run->executable->program)};
  walk.addresses = vl_allocate(((size_t)schedule->buffer_count + 1) * sizeof *walk.addresses);
  walk.blocks = vl_allocate(((size_t)schedule->buffer_count + 1) * sizeof(Block *));
  walk.events = vl_allocate(((size_t)schedule->instance_count + 1) * sizeof *walk.events);
  Status status = walk_schedule(&walk, logits);
  if (status.code != VL_OK) { /* copies that are under way must not meet memory given back */
    Status drained = run->device->interface->synchronize(run->device);
    (void)drained;
  }
  engine_inputs_end_step(inputs);
  for (int32_t i = 0; i < schedule->buffer_count; i++)
    vl_heap_release(heap_of(&walk, schedule->buffers[i].tier), &walk.blocks[i]);
  free(walk.addresses);
  free(walk.events);
  free(walk.blocks);
  return status;
}
