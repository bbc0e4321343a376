/* The ops of a step, each with its time. A step that waits behind every launch takes longer than one that
 * does not, so this is one more, when every figure has been taken. */
#include "engine/cell.h"
#include <stdlib.h>

typedef struct OpList {
  Cell *cell;
  int64_t capacity;
  int64_t begin_ns;    /* of the first launch */
  int64_t ended_ns;    /* what is predicted: how far the step is */
  bool predicts, told; /* time is predicted; time is told at all */
} OpList;

static const char *implementation_of(const Run *run, const Kernel *kernel) {
  const DeviceInterface *interface = run->device->interface;
  const char *name = kernel && interface->implementation ? interface->implementation(kernel) : NULL;
  return name ? name : "";
}

static void take_time(OpList *list, const Run *run, const Kernel *kernel, OpRecord *op) {
  const DeviceInterface *interface = run->device->interface;
  op->start_ns = op->duration_ns = -1;
  if (!list->told) return;
  if (list->predicts) {
    op->start_ns = list->ended_ns;
    op->duration_ns = kernel ? interface->launch_ns(kernel) : 0;
    list->ended_ns += op->duration_ns;
    return;
  }
  Status ended = interface->synchronize(run->device); /* what failed is told again when the step ends */
  (void)ended;
  if (list->cell->result->op_count == 0) list->begin_ns = run->launch_start_ns;
  op->start_ns = run->launch_start_ns - list->begin_ns;
  op->duration_ns = vl_monotonic_ns() - run->launch_start_ns;
}

static void take_op(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  OpList *list = context;
  CellResult *result = list->cell->result;
  const Node *node = instance->node;
  const Kernel *kernel = run->executable->kernels[node->id];
  (void)outputs;
  OpRecord op = {.segment = (int32_t)node->segment,
                 .stream = instance->stream,
                 .micro_batch = instance->micro_batch,
                 .pass = instance->pass,
                 .flops = vl_node_flops(node),
                 .bytes = vl_node_bytes(node)};
  take_time(list, run, kernel, &op);
  if (result->op_count == list->capacity) {
    list->capacity = list->capacity ? 2 * list->capacity : 1024;
    result->ops = vl_reallocate(result->ops, (size_t)list->capacity * sizeof *result->ops);
  }
  snprintf(op.op, sizeof op.op, "%s", node->op->name);
  snprintf(op.scope, sizeof op.scope, "%s", node->scope ? node->scope : "");
  snprintf(op.implementation, sizeof op.implementation, "%s", implementation_of(run, kernel));
  result->ops[result->op_count++] = op;
}

Status cell_record_ops(Cell *cell) {
  CellResult *result = cell->result;
  if (!cell->spec->timeline || result->timeline_count == 0) return vl_ok();
  bool predicts = result->device.predicts;
  /* Emulated kernels and traced ones tell nothing of speed. */
  bool measured = result->device.has_time && !result->emulated && !cell->spec->cross_check;
  OpList list = {.cell = cell,
                 .predicts = predicts,
                 .told = predicts ? cell->device->interface->launch_ns != NULL : measured};
  cell->run.observe = take_op;
  cell->run.observe_context = &list;
  Status status = cell_repeat_step(cell);
  cell->run.observe = NULL;
  cell->run.observe_context = cell;
  if (status.code != VL_OUT_OF_MEMORY) return status;
  /* Evaluation may have left less memory than the step had. The cell has its result; this it goes without. */
  result->op_count = 0;
  return vl_ok();
}
