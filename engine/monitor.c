/* What steps do to their numbers, watched from outside: the loss scale, skipped steps, the norm of all
 * gradients and a sketch of them, what low precision flushed to zero, and the first tensor that is not
 * finite. Reads every result a node leaves, so a step that is watched tells nothing about time. */
#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Monitor {
  const Executable *executable;       /* whose storages the squares are of */
  double *squares;                    /* by storage: of a gradient, as it was written last */
  int32_t *gradient;                  /* by storage: the parameter it is the gradient of, or -1 */
  double (*sketches)[VL_SKETCH_SUMS]; /* by parameter: of its gradient, as it was written last */
  double norm;                        /* as gradient_factor says; NaN: it did not */
  Scaler before;
  Rounding rounding;
  void *host; /* where values are downloaded */
  int64_t host_bytes;
  NonFinite first;
  Status status; /* of reading, in a callback that cannot fail */
};

Monitor *engine_monitor_create(void) {
  Monitor *monitor = vl_allocate(sizeof *monitor);
  monitor->first.step = -1;
  monitor->status = vl_ok();
  return monitor;
}

void engine_monitor_destroy(Monitor **monitor) {
  if (!*monitor) return;
  free((*monitor)->squares);
  free((*monitor)->gradient);
  free((*monitor)->sketches);
  free((*monitor)->host);
  free(*monitor);
  *monitor = NULL;
}

Status engine_monitor_begin(Monitor *monitor, Run *run) {
  monitor->executable = NULL;
  monitor->norm = (double)NAN;
  monitor->rounding = (Rounding){0};
  run->rounding = &monitor->rounding;
  return vl_run_scaler(run, &monitor->before);
}

/* A step may end with another program, which writes every sum of gradients again. */
static void follow_program(Monitor *monitor, const Executable *executable) {
  if (monitor->executable == executable) return;
  const Program *program = &executable->program;
  size_t storages = (size_t)program->graph->storage_count + 1;
  free(monitor->squares);
  free(monitor->gradient);
  free(monitor->sketches);
  monitor->executable = executable;
  monitor->squares = vl_allocate(storages * sizeof *monitor->squares);
  monitor->gradient = vl_allocate(storages * sizeof *monitor->gradient);
  monitor->sketches = vl_allocate(((size_t)program->gradient_count + 1) * sizeof *monitor->sketches);
  for (size_t i = 0; i < storages; i++)
    monitor->gradient[i] = -1;
  for (int32_t i = 0; i < program->gradient_count; i++)
    monitor->gradient[program->gradients[i].gradient->storage->id] = i;
}

void engine_sketch(const char *name, const void *values, DType dtype, int64_t elements,
                   double sums[VL_SKETCH_SUMS]) {
  uint64_t named = vl_random_key(0, 0, name);
  const uint32_t key[2] = {(uint32_t)named, (uint32_t)(named >> 32)};
  const double scale = sqrt((double)VL_SKETCH_SUMS);
  uint32_t words[4] = {0};
  for (int32_t s = 0; s < VL_SKETCH_SUMS; s++)
    sums[s] = 0.0;
  for (int64_t i = 0; i < elements; i++) {
    const uint64_t block = (uint64_t)i / 4;
    if (i % 4 == 0)
      vl_philox((const uint32_t[4]){(uint32_t)block, (uint32_t)(block >> 32), 0, 0}, key, words);
    uint32_t word = words[i % 4];
    double value = scale * vl_element_get(values, dtype, i);
    sums[word % VL_SKETCH_SUMS] += word >> 31 ? -value : value;
  }
}

double vl_sketch_error(const double sketch[VL_SKETCH_SUMS], const double of[VL_SKETCH_SUMS]) {
  double difference = 0.0, norm = 0.0;
  for (int32_t s = 0; s < VL_SKETCH_SUMS; s++) {
    difference += (sketch[s] - of[s]) * (sketch[s] - of[s]);
    norm += of[s] * of[s];
  }
  return sqrt(difference / norm);
}

/* A storage's values on the host, in the order of its logical shape. */
static Status read_values(Monitor *monitor, const Run *run, const Storage *storage, uintptr_t address) {
  int64_t bytes = vl_dtype_bytes(storage->dtype, storage->elements);
  if (bytes > monitor->host_bytes) {
    monitor->host = vl_reallocate(monitor->host, (size_t)bytes);
    monitor->host_bytes = bytes;
  }
  return run->device->interface->download(run->device, storage, address, monitor->host);
}

static void remember(Monitor *monitor, const Run *run, const Instance *instance, const Tensor *tensor) {
  NonFinite *first = &monitor->first;
  const Node *node = instance->node;
  first->step = (int64_t)run->step;
  snprintf(first->tensor, sizeof first->tensor, "%s", tensor->storage->name);
  snprintf(first->op, sizeof first->op, "%s", node->op->name);
  snprintf(first->scope, sizeof first->scope, "%s", node->scope ? node->scope : "");
  snprintf(first->segment, sizeof first->segment, "%s", vl_segment_name(node->segment));
}

static Status look_at(Monitor *monitor, const Run *run, const Instance *instance, int32_t output,
                      uintptr_t address) {
  const Tensor *tensor = instance->node->outputs[output];
  const Storage *storage = tensor->storage;
  bool is_norm = output == 1 && strcmp(instance->node->op->name, "gradient_factor") == 0;
  bool searches = monitor->first.step < 0 && !is_norm;
  bool is_gradient = storage->role == ROLE_GRADIENT;
  if (!vl_dtype_is_float(tensor->dtype) || (!searches && !is_gradient && !is_norm)) return vl_ok();
  VL_TRY(read_values(monitor, run, storage, address));
  if (is_norm) monitor->norm = vl_element_get(monitor->host, storage->dtype, 0);
  double squares = 0.0;
  for (int64_t i = 0; i < storage->elements; i++) {
    double value = vl_element_get(monitor->host, storage->dtype, i);
    squares += value * value;
    if (searches && !isfinite(value)) {
      remember(monitor, run, instance, tensor);
      searches = false;
    }
  }
  if (is_gradient) monitor->squares[storage->id] = squares;
  int32_t parameter = monitor->gradient[storage->id];
  if (parameter >= 0)
    engine_sketch(run->executable->program.gradients[parameter].parameter->name, monitor->host,
                  storage->dtype, storage->elements, monitor->sketches[parameter]);
  return vl_ok();
}

void engine_monitor_observe(Monitor *monitor, const Run *run, const Instance *instance,
                            const uintptr_t *outputs) {
  follow_program(monitor, run->executable);
  for (int32_t i = 0; i < instance->node->output_count && monitor->status.code == VL_OK; i++)
    if (instance->node->outputs[i] && outputs[i])
      monitor->status = look_at(monitor, run, instance, i, outputs[i]);
}

static bool has_factor(const Graph *graph) {
  for (int32_t i = 0; i < graph->node_count; i++)
    if (strcmp(graph->nodes[i]->op->name, "gradient_factor") == 0) return true;
  return false;
}

Status engine_monitor_end(Monitor *monitor, Run *run, StepMonitor *result) {
  Scaler after;
  run->rounding = NULL;
  VL_TRY(monitor->status);
  VL_TRY(vl_run_scaler(run, &after));
  double squares = 0.0;
  for (int32_t i = 0; monitor->executable && i < monitor->executable->program.graph->storage_count; i++)
    squares += monitor->squares[i];
  bool told = monitor->executable && has_factor(monitor->executable->program.graph);
  *result = (StepMonitor){
      .loss_scale = monitor->before.scale,
      .skipped = after.skipped > monitor->before.skipped,
      .gradient_norm = told ? monitor->norm : sqrt(squares),
      .flushed_share = monitor->rounding.values > 0
                           ? (double)monitor->rounding.flushed / (double)monitor->rounding.values
                           : (double)NAN,
  };
  for (int32_t s = 0; monitor->executable && s < VL_SKETCH_SUMS; s++) {
    for (int32_t i = 0; i < monitor->executable->program.gradient_count; i++)
      result->sketch[s] += monitor->sketches[i][s] / monitor->before.scale;
  }
  return vl_ok();
}

const NonFinite *engine_monitor_first(const Monitor *monitor) { return &monitor->first; }
