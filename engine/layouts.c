/* Gives every storage a layout, in order of execution: the first node that touches a storage decides, and
 * where a later one wants another layout a `copy` appears in front of it. */
#include "engine/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct Copied {
  const Tensor *tensor;
  LayoutId layout;
  Segment segment;
  int32_t checkpoint_segment; /* a copy is dropped and repeated with its readers, so only those share it */
  Tensor *copy;
} Copied;

typedef struct Assigner {
  Program *program;
  Graph *graph;
  Device *device;
  Storage **parameter_of; /* by storage id: the parameter a gradient belongs to */
  int32_t storage_room;
  Copied *copies;
  int32_t copy_count, copy_capacity;
} Assigner;

static Status copy_for(Assigner *assigner, Node *reader, int32_t input, LayoutId layout) {
  Tensor *tensor = reader->inputs[input];
  for (int32_t i = 0; i < assigner->copy_count; i++) {
    const Copied *known = &assigner->copies[i];
    if (known->tensor == tensor && known->layout == layout && known->segment == reader->segment &&
        known->checkpoint_segment == reader->checkpoint_segment) {
      reader->inputs[input] = known->copy;
      return vl_ok();
    }
  }
  Graph *graph = assigner->graph;
  graph->segment = reader->segment;
  graph->block = reader->block;
  graph->scope = reader->scope;
  Node *copy = NULL;
  VL_TRY(vl_graph_add(graph, "copy", NULL, &tensor, 1, &copy));
  copy->checkpoint_segment = reader->checkpoint_segment;
  vl_graph_move_before(graph, copy, reader);
  copy->outputs[0]->storage->layout = layout;
  reader->inputs[input] = copy->outputs[0];
  if (assigner->copy_count == assigner->copy_capacity) {
    assigner->copy_capacity = assigner->copy_capacity ? 2 * assigner->copy_capacity : 64;
    assigner->copies =
        vl_reallocate(assigner->copies, (size_t)assigner->copy_capacity * sizeof *assigner->copies);
  }
  assigner->copies[assigner->copy_count++] =
      (Copied){tensor, layout, reader->segment, reader->checkpoint_segment, copy->outputs[0]};
  return vl_ok();
}

/* A view that is not legal in its input's layout gets a storage of its own and becomes a copying op. The
 * parts of a concat were looked at when they were written. */
static void settle_view(Assigner *assigner, Node *node) {
  Tensor *view = node->outputs[0];
  Storage *storage = node->inputs[0]->storage;
  if (!vl_node_is_view(node) || vl_storage_is_joined(storage)) return;
  if (storage->layout == LAYOUT_ANY) storage->layout = LAYOUT_PLAIN;
  if (assigner->device->interface->view_is_legal(assigner->device, storage->layout, view)) return;
  Graph *graph = assigner->graph;
  graph->scope = node->scope;
  Tensor *own = vl_graph_tensor(graph, view->name, ROLE_ACTIVATION, view->dtype, view->rank, view->shape);
  own->producer = node;
  node->outputs[0] = own;
  vl_graph_replace_reads(graph, view, own);
}

/* Whether an output may be written where it lies: not a part of a joined storage, or one that is a view in
 * the layout the other parts have. */
static bool fits_part(const Assigner *assigner, const Tensor *output, LayoutId layout) {
  const Storage *storage = output->storage;
  if (!vl_storage_is_joined(storage)) return true;
  if (layout == LAYOUT_ANY) layout = LAYOUT_PLAIN;
  return (storage->layout == LAYOUT_ANY || storage->layout == layout) &&
         assigner->device->interface->view_is_legal(assigner->device, layout, output);
}

/* Parts of a joined storage, of which `node` would be the next to write one, get storages of their own, and
 * the concat is a copying op. */
static void separate(Assigner *assigner, const Node *node, Storage *joined) {
  Graph *graph = assigner->graph;
  const Node *concat = joined->root->producer;
  for (int32_t i = 0; i < concat->input_count; i++) {
    const Tensor *part = concat->inputs[i];
    int64_t first = part->offset, end = first + vl_tensor_elements(part);
    graph->scope = part->producer->scope;
    Storage *own =
        vl_graph_tensor(graph, part->name, ROLE_ACTIVATION, part->dtype, part->rank, part->shape)->storage;
    for (int32_t k = 0; k < graph->tensor_count; k++) {
      Tensor *tensor = graph->tensors[k];
      if (tensor->storage != joined || tensor == joined->root || tensor->offset < first ||
          tensor->offset >= end)
        continue;
      tensor->storage = own;
      tensor->offset -= first;
      if (tensor->producer && tensor->producer->position < node->position) own->layout = joined->layout;
    }
  }
  joined->layout = LAYOUT_ANY;
}

/* The layout an output must take: that of the input it overwrites, or its parameter's for a gradient. */
static LayoutId preset_output(const Assigner *assigner, const Tensor *output) {
  const Storage *storage = output->storage;
  if (storage->layout != LAYOUT_ANY) return storage->layout;
  if (storage->id < assigner->storage_room && assigner->parameter_of[storage->id]) {
    return assigner->parameter_of[storage->id]->layout;
  }
  return LAYOUT_ANY;
}

static Status assign_node(Assigner *assigner, Node *node) {
  Device *device = assigner->device;
  if (node->op->is_view) {
    settle_view(assigner, node);
    if (vl_node_is_view(node)) return vl_ok();
  }
  VL_TRY(device->interface->supports(device, node));
  LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++) {
    inputs[i] = i < node->input_count && node->inputs[i] ? node->inputs[i]->storage->layout : LAYOUT_ANY;
  }
  for (int32_t i = 0; i < VL_MAX_OUTPUTS; i++) {
    outputs[i] =
        i < node->output_count && node->outputs[i] ? preset_output(assigner, node->outputs[i]) : LAYOUT_ANY;
  }
  VL_TRY(device->interface->choose_layouts(device, node, inputs, outputs));
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!node->inputs[i]) continue;
    Storage *storage = node->inputs[i]->storage;
    if (inputs[i] == LAYOUT_ANY) inputs[i] = LAYOUT_PLAIN;
    if (storage->layout == LAYOUT_ANY) {
      storage->layout = inputs[i];
    } else if (storage->layout != inputs[i]) {
      VL_TRY(copy_for(assigner, node, i, inputs[i]));
    }
  }
  for (int32_t i = 0; i < node->output_count; i++) {
    if (!node->outputs[i]) continue;
    if (!fits_part(assigner, node->outputs[i], outputs[i]))
      separate(assigner, node, node->outputs[i]->storage);
    Storage *storage = node->outputs[i]->storage;
    if (storage->layout == LAYOUT_ANY) {
      storage->layout = outputs[i]; /* a cast may leave it to its first reader */
    } else if (outputs[i] != LAYOUT_ANY && storage->layout != outputs[i]) {
      return vl_error(VL_INTERNAL, "%s in %s wants its output %s in layout %s, which has %s", node->op->name,
                      node->scope, node->outputs[i]->name, device->interface->layout_name(device, outputs[i]),
                      device->interface->layout_name(device, storage->layout));
    }
  }
  return vl_ok();
}

Status engine_assign_layouts(Program *program, Device *device, const State *state) {
  Graph *graph = program->graph;
  Assigner assigner = {.program = program, .graph = graph, .device = device};
  assigner.storage_room = graph->storage_count;
  assigner.parameter_of = vl_allocate(((size_t)graph->storage_count + 1) * sizeof(Storage *));
  for (int32_t i = 0; i < program->gradient_count; i++) {
    assigner.parameter_of[program->gradients[i].gradient->storage->id] =
        program->gradients[i].parameter->storage;
  }
  for (int32_t i = 0; i < graph->storage_count; i++) {
    Storage *storage = graph->storages[i];
    const StateEntry *entry =
        state && vl_role_is_persistent(storage->role) ? engine_state_find(state, storage->name) : NULL;
    if (entry) storage->layout = entry->storage.layout;
    if (storage->role == ROLE_INPUT) storage->layout = LAYOUT_PLAIN; /* the caller writes plain data */
  }
  Status status = vl_ok();
  for (int32_t i = 0; i < graph->node_count && status.code == VL_OK;) {
    Node *node = graph->nodes[i];
    status = assign_node(&assigner, node);
    i = node->position + 1;
  }
  for (int32_t i = 0; i < graph->storage_count; i++) {
    if (graph->storages[i]->layout == LAYOUT_ANY) graph->storages[i]->layout = LAYOUT_PLAIN;
  }
  free(assigner.parameter_of);
  free(assigner.copies);
  return status;
}
