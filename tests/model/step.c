#include "tests/model/step.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status step_build(const StepSpec *spec, Program *program) {
  const Case *of = vl_case_find(spec->case_name);
  if (!of) return vl_error(VL_INVALID, "no case '%s'", spec->case_name);
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  Recipe recipe;
  Target target = {.ranks = 1};
  VL_TRY(vl_case_arguments(of, spec->micro_batch, spec->settings, spec->setting_count, values));
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  VL_TRY(of->build(values, !spec->inference, program));
  Status status = vl_recipe_apply(&recipe, program, &target);
  if (status.code != VL_OK) vl_program_destroy(program);
  return status;
}

/* ---- Watching a step ---------------------------------------------------------------------------------------- */

typedef struct Watch {
  StepRecord *record;
  Device *device;
  bool doubles; /* the device holds every value as double */
  double loss;
  Status status;
} Watch;

static Status read_values(const Watch *watch, const Tensor *tensor, uintptr_t address, double *values) {
  const Storage *storage = tensor->storage;
  if (watch->doubles) {
    memcpy(values, (const void *)address, (size_t)storage->elements * sizeof *values);
    return vl_ok();
  }
  void *typed = vl_allocate((size_t)vl_dtype_bytes(storage->dtype, storage->elements) + 1);
  Status status = watch->device->interface->synchronize(watch->device);
  if (status.code == VL_OK)
    status = watch->device->interface->download(watch->device, storage, address, typed);
  for (int64_t i = 0; i < storage->elements; i++)
    values[i] = vl_element_get(typed, storage->dtype, i);
  free(typed);
  return status;
}

static StepTensor *find(const StepRecord *record, const char *name) {
  for (int32_t i = 0; i < record->tensor_count; i++) {
    if (strcmp(record->tensors[i].name, name) == 0) return &record->tensors[i];
  }
  return NULL;
}

/* Keeps a tensor under a name; a later write of the same name replaces it. */
static void keep(Watch *watch, const char *name, bool is_gradient, const Tensor *tensor, uintptr_t address) {
  StepRecord *record = watch->record;
  StepTensor *kept = find(record, name);
  if (!kept) {
    record->tensors =
        vl_reallocate(record->tensors, ((size_t)record->tensor_count + 1) * sizeof *record->tensors);
    kept = &record->tensors[record->tensor_count++];
    *kept = (StepTensor){.is_gradient = is_gradient, .elements = tensor->storage->elements};
    snprintf(kept->name, sizeof kept->name, "%s", name);
    kept->values = vl_allocate((size_t)kept->elements * sizeof *kept->values);
  }
  Status status = read_values(watch, tensor, address, kept->values);
  if (status.code != VL_OK) watch->status = status;
}

static void observe(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  Watch *watch = context;
  const Program *program = vl_executable_program(run->executable);
  const Node *node = instance->node;
  for (int32_t k = 0; k < node->output_count; k++) {
    const Tensor *tensor = node->outputs[k];
    if (!tensor || !outputs[k]) continue;
    if (tensor == program->loss) {
      Status status = read_values(watch, tensor, outputs[k], &watch->loss);
      if (status.code != VL_OK) watch->status = status;
    }
    if (run->step > 0) continue;
    const char *grad = strstr(tensor->storage->name, ".grad");
    if (tensor->storage->role == ROLE_GRADIENT && grad) {
      char name[96];
      snprintf(name, sizeof name, "%.*s", (int)(grad - tensor->storage->name), tensor->storage->name);
      keep(watch, name, true, tensor, outputs[k]);
    } else if (tensor->storage->role == ROLE_STATISTIC && vl_dtype_is_float(tensor->dtype)) {
      keep(watch, tensor->storage->name, false, tensor, outputs[k]);
    }
  }
}

/* ---- Running it ------------------------------------------------------------------------------------------------ */

static Status run_steps(const StepSpec *spec, Run *run, Watch *watch, Inputs *inputs) {
  run->seed = spec->seed;
  run->observe = observe;
  run->observe_context = watch;
  for (int32_t step = 0; step < spec->steps; step++) {
    StepResult result;
    run->step = (uint64_t)step;
    VL_TRY(vl_inputs_synthesize(inputs, spec->seed, run->step, 0));
    VL_TRY(vl_run_step(run, inputs, &result, NULL));
    VL_TRY(watch->status);
    watch->record->losses[step] = watch->loss;
  }
  return vl_ok();
}

static Status run_program(const StepSpec *spec, Executable *executable, Heap *heap, Tracker *tracker,
                          Watch *watch) {
  Device *device = watch->device;
  State *state = vl_state_create(device, heap);
  Inputs *inputs = NULL;
  Run run = {.executable = executable, .state = state, .heap = heap, .tracker = tracker, .device = device};
  Status status = vl_executable_build(executable);
  if (status.code == VL_OK) status = vl_state_prepare(state, executable, spec->seed, true);
  if (status.code == VL_OK) status = vl_inputs_create(executable, device, heap, &inputs);
  if (status.code == VL_OK) status = run_steps(spec, &run, watch, inputs);
  vl_inputs_destroy(&inputs);
  vl_state_destroy(&state);
  return status;
}

Status step_record_program(const StepSpec *spec, Program *program, Device *device, StepRecord *record) {
  DeviceDescription description;
  device->interface->describe(device, &description);
  *record = (StepRecord){.parameters = vl_graph_parameter_count(program->graph)};
  Watch watch = {.record = record,
                 .device = device,
                 .doubles = strcmp(description.name, "reference") == 0,
                 .status = vl_ok()};
  Executable *executable = NULL;
  VL_TRY(vl_executable_create(program, device, NULL, &executable));
  record->recomputed = vl_executable_schedule(executable)->recompute_instances;
  Tracker *tracker = vl_tracker_create(false);
  HeapOptions options = vl_program_heap_options(vl_executable_program(executable));
  Heap *heap = NULL;
  Status status = vl_heap_create(device->interface->backing(device), &options, tracker, &heap);
  if (status.code == VL_OK) status = run_program(spec, executable, heap, tracker, &watch);
  if (heap) vl_heap_destroy(&heap);
  vl_tracker_destroy(&tracker);
  vl_executable_destroy(&executable);
  if (status.code != VL_OK) step_clear(record);
  return status;
}

Status step_record(const StepSpec *spec, Device *device, StepRecord *record) {
  Program program = {0};
  VL_TRY(step_build(spec, &program));
  return step_record_program(spec, &program, device, record);
}

void step_clear(StepRecord *record) {
  for (int32_t i = 0; i < record->tensor_count; i++)
    free(record->tensors[i].values);
  free(record->tensors);
  *record = (StepRecord){0};
}

const StepTensor *step_find(const StepRecord *record, const char *name) { return find(record, name); }

double step_relative_error(const StepTensor *tensor, const StepTensor *truth) {
  double squares = 0.0, difference = 0.0;
  for (int64_t i = 0; i < truth->elements; i++) {
    squares += truth->values[i] * truth->values[i];
    double d = tensor->values[i] - truth->values[i];
    difference += d * d;
  }
  return sqrt(difference / squares);
}
