/* From a program to the list of launches of one step, and the lifetimes of its buffers.
 *
 * Forward nodes run in graph order. Backward and update nodes follow in graph order; where one reads a tensor
 * whose producer was told not to keep its outputs, the producer (recompute_on_use) or the part of its
 * checkpoint segment that backward needs (checkpoint_segment) is repeated right before, into buffers of
 * their own. With accumulation, forward and backward stand once per micro-batch and the update after the
 * last; what accumulates is in the first micro-batch's buffers. Lifetimes follow from what is referenced, so
 * a dropped tensor ends with its last forward reader.
 */
#include "graph/offload.h"
#include <stdlib.h>
#include <string.h>

typedef struct Builder {
  const Program *program;
  const Graph *graph;
  Schedule *schedule;
  int32_t instance_capacity, buffer_capacity;
  int32_t micro_batch;
  int32_t *first_pass;  /* by storage: buffer of this micro-batch's pass 0, -1 before it exists */
  int32_t *summed;      /* by storage: buffer of the first micro-batch's pass 0, where sums are */
  int32_t *passes;      /* by storage: passes so far */
  int32_t *recomputed;  /* by tensor: buffer of its latest recomputation, -1 */
  bool *replay;         /* by node: its checkpoint segment's replay includes it */
  bool *replayed;       /* by checkpoint segment */
  const Tensor **value; /* by buffer: what it holds */
  int32_t segment_count;
} Builder;

static bool is_given(const Storage *storage) {
  return vl_role_is_persistent(storage->role) || storage->role == ROLE_INPUT;
}

static int32_t add_buffer(Builder *builder, Storage *storage) {
  Schedule *schedule = builder->schedule;
  if (schedule->buffer_count == builder->buffer_capacity) {
    builder->buffer_capacity = builder->buffer_capacity ? 2 * builder->buffer_capacity : 256;
    size_t count = (size_t)builder->buffer_capacity;
    schedule->buffers = vl_reallocate(schedule->buffers, count * sizeof *schedule->buffers);
    builder->value = vl_reallocate(builder->value, count * sizeof(Tensor *));
  }
  int32_t id = schedule->buffer_count++;
  bool given = is_given(storage);
  schedule->buffers[id] = (Buffer){.id = id,
                                   .storage = storage,
                                   .micro_batch = given ? 0 : builder->micro_batch,
                                   .pass = builder->passes[storage->id]++,
                                   .given = given,
                                   .first = -1,
                                   .last = -1};
  builder->value[id] = given ? storage->root : NULL;
  return id;
}

static int32_t first_pass_buffer(Builder *builder, Storage *storage) {
  int32_t *buffer = &builder->first_pass[storage->id];
  if (*buffer < 0) *buffer = add_buffer(builder, storage);
  return *buffer;
}

/* The buffer of pass 0 a tensor is in. */
static int32_t kept_buffer(Builder *builder, const Tensor *tensor) {
  bool sum = builder->micro_batch > 0 && tensor->producer && tensor->producer->accumulates;
  return sum ? builder->summed[tensor->storage->id] : first_pass_buffer(builder, tensor->storage);
}

/* The tensor whose value a node needs as an input. */
static const Tensor *read_tensor(const Node *node, int32_t input) {
  return node->accumulates && input == 0 ? node->outputs[0] : node->inputs[input];
}

/* The tensor whose bytes a view shows. Parts of a joined storage stand for the whole: none is written over
 * another. */
static const Tensor *viewed(const Tensor *tensor) {
  while (tensor->producer && vl_node_is_view(tensor->producer))
    tensor = tensor->producer->inputs[0];
  return vl_storage_is_joined(tensor->storage) ? tensor->storage->root : tensor;
}

static Status emit(Builder *builder, Node *node, bool again);

/* Whether backward gets this tensor from a repetition rather than from the forward pass. */
static bool dropped(const Tensor *tensor) {
  const Node *producer = tensor->producer;
  return producer && producer->segment == SEGMENT_FORWARD &&
         (producer->recompute_on_use || producer->checkpoint_segment > 0);
}

static Status replay_segment(Builder *builder, int32_t segment) {
  builder->replayed[segment] = true;
  for (int32_t i = 0; i < builder->graph->node_count; i++) {
    Node *node = builder->graph->nodes[i];
    if (node->checkpoint_segment == segment && builder->replay[node->id]) VL_TRY(emit(builder, node, true));
  }
  return vl_ok();
}

/* The buffer that holds a tensor for a reader in backward (or in a repetition). */
static Status resolve(Builder *builder, const Tensor *tensor, int32_t *buffer) {
  tensor = viewed(tensor);
  if (!dropped(tensor)) {
    *buffer = kept_buffer(builder, tensor);
    return vl_ok();
  }
  Node *producer = tensor->producer;
  if (producer->checkpoint_segment > 0 && !builder->replayed[producer->checkpoint_segment]) {
    VL_TRY(replay_segment(builder, producer->checkpoint_segment));
  }
  if (builder->recomputed[tensor->id] < 0 || builder->value[builder->recomputed[tensor->id]] != tensor) {
    VL_TRY(emit(builder, producer, true));
  }
  *buffer = builder->recomputed[tensor->id];
  return vl_ok();
}

static Instance *add_instance(Builder *builder, Node *node) {
  Schedule *schedule = builder->schedule;
  if (schedule->instance_count == builder->instance_capacity) {
    builder->instance_capacity = builder->instance_capacity ? 2 * builder->instance_capacity : 256;
    schedule->instances =
        vl_reallocate(schedule->instances, (size_t)builder->instance_capacity * sizeof *schedule->instances);
  }
  Instance *instance = &schedule->instances[schedule->instance_count++];
  *instance = (Instance){.node = node, .micro_batch = builder->micro_batch, .transfer = -1};
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    instance->inputs[i] = -1;
  for (int32_t i = 0; i < VL_MAX_OUTPUTS; i++)
    instance->outputs[i] = -1;
  return instance;
}

static Status check_held(const Builder *builder, const Node *node, const Tensor *wanted, int32_t buffer) {
  const Tensor *held = builder->value[buffer];
  if (held == viewed(wanted)) return vl_ok();
  return vl_error(VL_INTERNAL, "%s in %s reads %s after it was overwritten by %s", node->op->name,
                  node->scope, wanted->name, held ? held->name : "nothing");
}

static Status read_inputs(Builder *builder, const Node *node, bool backward, int32_t *inputs) {
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *tensor = read_tensor(node, i);
    if (!tensor) continue;
    if (backward) {
      VL_TRY(resolve(builder, tensor, &inputs[i]));
    } else {
      inputs[i] = kept_buffer(builder, tensor);
    }
  }
  /* Repetitions for a later input may have written over an earlier one's value: check at the end. */
  for (int32_t i = 0; i < node->input_count; i++) {
    const Tensor *wanted = read_tensor(node, i);
    if (wanted) VL_TRY(check_held(builder, node, wanted, inputs[i]));
  }
  return vl_ok();
}

/* Where an output goes: over the input it shares a storage with, else the storage's buffer of this pass. */
static int32_t output_buffer(Builder *builder, const Node *node, const int32_t *inputs, int32_t which,
                             bool again) {
  Tensor *output = node->outputs[which];
  if (node->accumulates && builder->program->accumulate_wrong)
    return builder->summed[output->storage->id] = add_buffer(builder, output->storage);
  for (int32_t i = 0; i < node->input_count; i++) {
    if (node->inputs[i] && node->inputs[i]->storage == output->storage) return inputs[i];
  }
  return again ? add_buffer(builder, output->storage) : first_pass_buffer(builder, output->storage);
}

/* The first micro-batch's value is the sum so far. */
static Status begin_sum(Builder *builder, const Node *node) {
  int32_t buffer = first_pass_buffer(builder, node->outputs[0]->storage);
  VL_TRY(check_held(builder, node, node->inputs[1], buffer));
  builder->value[buffer] = node->outputs[0];
  return vl_ok();
}

static Status emit(Builder *builder, Node *node, bool again) {
  if (node->accumulates && builder->micro_batch == 0) return begin_sum(builder, node);
  int32_t inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  for (int32_t i = 0; i < VL_MAX_INPUTS; i++)
    inputs[i] = -1;
  for (int32_t i = 0; i < VL_MAX_OUTPUTS; i++)
    outputs[i] = -1;
  VL_TRY(read_inputs(builder, node, again || node->segment != SEGMENT_FORWARD, inputs));
  if (vl_node_is_view(node)) return vl_ok();
  for (int32_t i = 0; i < node->output_count; i++) {
    if (!node->outputs[i]) continue;
    outputs[i] = output_buffer(builder, node, inputs, i, again);
    builder->value[outputs[i]] = viewed(node->outputs[i]);
    if (again) builder->recomputed[node->outputs[i]->id] = outputs[i];
  }
  Instance *instance = add_instance(builder, node);
  memcpy(instance->inputs, inputs, sizeof inputs);
  memcpy(instance->outputs, outputs, sizeof outputs);
  if (again) {
    for (int32_t i = 0; i < node->output_count; i++) {
      if (outputs[i] >= 0) instance->pass = builder->schedule->buffers[outputs[i]].pass;
    }
    builder->schedule->recompute_instances++;
    builder->schedule->recompute_flops += vl_node_flops(node);
  }
  return vl_ok();
}

/* Marks what the replay of each checkpoint segment must contain for a backward reader of tensor. `inside`:
 * the segment being replayed when the reader is itself part of that replay, else 0. */
static void mark_replay(Builder *builder, const Tensor *tensor, int32_t inside) {
  if (!tensor) return;
  tensor = viewed(tensor);
  if (!dropped(tensor)) return;
  Node *producer = tensor->producer;
  bool part_of_replay = producer->checkpoint_segment > 0 &&
                        (!producer->recompute_on_use || producer->checkpoint_segment == inside);
  if (part_of_replay && builder->replay[producer->id]) return;
  if (part_of_replay) builder->replay[producer->id] = true;
  for (int32_t i = 0; i < producer->input_count; i++) {
    mark_replay(builder, producer->inputs[i], part_of_replay ? producer->checkpoint_segment : 0);
  }
}

static void prepare(Builder *builder) {
  const Graph *graph = builder->graph;
  size_t storages = (size_t)graph->storage_count + 1, tensors = (size_t)graph->tensor_count + 1;
  int32_t highest_id = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->id > highest_id) highest_id = node->id;
    if (node->checkpoint_segment > builder->segment_count) builder->segment_count = node->checkpoint_segment;
  }
  builder->first_pass = vl_allocate(storages * sizeof *builder->first_pass);
  builder->summed = vl_allocate(storages * sizeof *builder->summed);
  builder->passes = vl_allocate(storages * sizeof *builder->passes);
  builder->recomputed = vl_allocate(tensors * sizeof *builder->recomputed);
  builder->replay = vl_allocate((size_t)highest_id + 1);
  builder->replayed = vl_allocate((size_t)builder->segment_count + 1);
  memset(builder->first_pass, -1, storages * sizeof *builder->first_pass);
  memset(builder->recomputed, -1, tensors * sizeof *builder->recomputed);
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->segment == SEGMENT_FORWARD) continue;
    for (int32_t k = 0; k < node->input_count; k++)
      mark_replay(builder, node->inputs[k], 0);
  }
}

static void touch(Buffer *buffer, int32_t at) {
  if (buffer->first < 0) buffer->first = at;
  buffer->last = at;
}

/* What must outlive its last reader: the loss, what evaluation reads, and gradients that the update leaves.
 */
static bool lives_to_the_end(const Builder *builder, const Buffer *buffer) {
  const Program *program = builder->program;
  bool first = buffer->pass == 0 && buffer->micro_batch == 0;
  if (program->accumulate_wrong) first = builder->summed[buffer->storage->id] == buffer->id;
  if (!first || buffer->tier != TIER_DEVICE) return false;
  if (program->loss && buffer->storage == program->loss->storage) return true;
  if (!program->training && program->logits && buffer->storage == program->logits->storage) return true;
  return buffer->storage->role == ROLE_GRADIENT && !program->release_gradients;
}

/* Whether backward reads what forward made here. */
static bool is_saved(const Schedule *schedule, const Buffer *buffer) {
  const Node *first = schedule->instances[buffer->first].node, *last = schedule->instances[buffer->last].node;
  return buffer->storage->role == ROLE_ACTIVATION && buffer->tier == TIER_DEVICE && buffer->pass == 0 &&
         first->segment == SEGMENT_FORWARD && last->segment == SEGMENT_BACKWARD;
}

/* A cast of a weight in the cache of torch.autocast, which is emptied when forward ends. */
static bool is_cached(const Program *program, const Buffer *buffer) {
  const Node *maker = buffer->storage->root->producer;
  return program->cast_cache && buffer->pass == 0 && buffer->tier == TIER_DEVICE && maker &&
         maker->segment == SEGMENT_FORWARD && strcmp(maker->op->name, "cast") == 0 &&
         maker->inputs[0]->storage->role == ROLE_PARAMETER;
}

/* By micro-batch: the last instance of its forward pass. */
static int32_t *find_forward_ends(const Schedule *schedule) {
  int32_t micro_batches = 0;
  for (int32_t at = 0; at < schedule->instance_count; at++)
    if (schedule->instances[at].micro_batch >= micro_batches)
      micro_batches = schedule->instances[at].micro_batch + 1;
  int32_t *ends = vl_allocate(((size_t)micro_batches + 1) * sizeof *ends);
  bool *ended = vl_allocate((size_t)micro_batches + 1);
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    ended[instance->micro_batch] = ended[instance->micro_batch] || instance->node->segment != SEGMENT_FORWARD;
    if (!ended[instance->micro_batch]) ends[instance->micro_batch] = at;
  }
  free(ended);
  return ends;
}

static void prolong(Buffer *buffer, int32_t end) {
  if (buffer->last < end) buffer->last = end;
}

/* What a block reads that was made before it lives until the block ends, and what a node has a variable for
 * as long as that. */
static void hold_variables(const Graph *graph, Schedule *schedule) {
  int32_t *end = vl_allocate(((size_t)graph->block_count + 1) * sizeof *end); /* by block */
  for (int32_t at = 0; at < schedule->instance_count; at++)
    end[schedule->instances[at].node->block] = at;
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    const Node *node = instance->node;
    for (int32_t i = 0; i < VL_MAX_INPUTS && node->block > 0; i++) {
      if (instance->inputs[i] < 0) continue;
      Buffer *buffer = &schedule->buffers[instance->inputs[i]];
      if (schedule->instances[buffer->first].node->block != node->block) prolong(buffer, end[node->block]);
    }
    if (node->hold != HOLD_NOTHING && instance->outputs[0] >= 0)
      prolong(&schedule->buffers[instance->outputs[0]],
              node->hold == HOLD_BLOCK ? end[node->block] : schedule->instance_count - 1);
  }
  free(end);
}

static void find_touches(Schedule *schedule) {
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    for (int32_t i = 0; i < VL_MAX_INPUTS; i++) {
      if (instance->inputs[i] >= 0) touch(&schedule->buffers[instance->inputs[i]], at);
    }
    for (int32_t i = 0; i < VL_MAX_OUTPUTS; i++) {
      if (instance->outputs[i] >= 0) touch(&schedule->buffers[instance->outputs[i]], at);
    }
  }
}

static void find_lifetimes(Builder *builder) {
  Schedule *schedule = builder->schedule;
  int32_t count = schedule->instance_count;
  find_touches(schedule);
  if (builder->program->holds_variables) hold_variables(builder->graph, schedule);
  int32_t *begins = vl_allocate(((size_t)count + 1) * sizeof *begins);
  int32_t *ends = vl_allocate(((size_t)count + 1) * sizeof *ends);
  int32_t *forward_ends = find_forward_ends(schedule);
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    Buffer *buffer = &schedule->buffers[i];
    if (buffer->given || buffer->first < 0) {
      buffer->first = buffer->last = -1;
      continue;
    }
    if (is_cached(builder->program, buffer) && buffer->last < forward_ends[buffer->micro_batch])
      buffer->last = forward_ends[buffer->micro_batch];
    bool retained = builder->program->retain != RETAIN_NOTHING && is_saved(schedule, buffer);
    buffer->leaks = retained && builder->program->retain == RETAIN_RUN;
    bool again = builder->program->keep_recomputed && buffer->pass > 0 && buffer->tier == TIER_DEVICE;
    if (retained || again || lives_to_the_end(builder, buffer)) buffer->last = count - 1;
    begins[buffer->first]++;
    ends[buffer->last]++;
  }
  for (int32_t at = 0; at < count; at++) {
    Instance *instance = &schedule->instances[at];
    instance->obtain = vl_arena_allocate(schedule->arena, ((size_t)begins[at] + 1) * sizeof(int32_t));
    instance->release = vl_arena_allocate(schedule->arena, ((size_t)ends[at] + 1) * sizeof(int32_t));
  }
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    const Buffer *buffer = &schedule->buffers[i];
    if (buffer->first < 0) continue;
    Instance *first = &schedule->instances[buffer->first], *last = &schedule->instances[buffer->last];
    first->obtain[first->obtain_count++] = buffer->id;
    if (!buffer->leaks) last->release[last->release_count++] = buffer->id;
  }
  free(forward_ends);
  free(begins);
  free(ends);
}

/* Nothing of the micro-batch before is there any more but what accumulates. Running statistics go on from
 * what it left. */
static void begin_micro_batch(Builder *builder, int32_t micro_batch) {
  const Graph *graph = builder->graph;
  if (micro_batch == 1)
    memcpy(builder->summed, builder->first_pass, (size_t)graph->storage_count * sizeof *builder->summed);
  builder->micro_batch = micro_batch;
  for (int32_t i = 0; i < graph->storage_count; i++) {
    if (is_given(graph->storages[i])) continue;
    builder->first_pass[i] = -1;
    builder->passes[i] = 0;
  }
  for (int32_t i = 0; i < builder->schedule->buffer_count; i++) {
    Storage *storage = builder->schedule->buffers[i].storage;
    if (is_given(storage)) builder->value[i] = storage->root;
  }
  memset(builder->recomputed, -1, (size_t)graph->tensor_count * sizeof *builder->recomputed);
  memset(builder->replayed, 0, (size_t)builder->segment_count + 1);
}

/* Forward and backward of every micro-batch, then the update; of one, all nodes as they stand. */
static Status emit_step(Builder *builder) {
  const Graph *graph = builder->graph;
  int32_t micro_batches = builder->program->accumulate;
  for (int32_t m = 0; m < micro_batches; m++) {
    if (m > 0) begin_micro_batch(builder, m);
    for (int32_t i = 0; i < graph->node_count; i++) {
      Node *node = graph->nodes[i];
      if (micro_batches == 1 || node->segment != SEGMENT_UPDATE) VL_TRY(emit(builder, node, false));
    }
  }
  for (int32_t i = 0; i < graph->node_count && micro_batches > 1; i++) {
    if (graph->nodes[i]->segment == SEGMENT_UPDATE) VL_TRY(emit(builder, graph->nodes[i], false));
  }
  return vl_ok();
}

Status vl_schedule_build(const Program *program, Schedule **out) {
  Builder builder = {.program = program, .graph = program->graph};
  builder.schedule = vl_allocate(sizeof *builder.schedule);
  builder.schedule->arena = vl_arena_create();
  prepare(&builder);
  Status status = emit_step(&builder);
  if (status.code == VL_OK) {
    graph_offload(program, builder.schedule);
    find_lifetimes(&builder);
  }
  free(builder.first_pass);
  free(builder.summed);
  free(builder.passes);
  free(builder.recomputed);
  free(builder.replay);
  free(builder.replayed);
  free(builder.value);
  if (status.code != VL_OK) {
    vl_schedule_destroy(&builder.schedule);
    return status;
  }
  *out = builder.schedule;
  return vl_ok();
}

void vl_schedule_destroy(Schedule **schedule) {
  if (!*schedule) return;
  vl_arena_destroy(&(*schedule)->arena);
  free((*schedule)->instances);
  free((*schedule)->buffers);
  free(*schedule);
  *schedule = NULL;
}

void vl_schedule_live_bytes(const Program *program, const Schedule *schedule, int64_t *live) {
  int64_t *change = vl_allocate(((size_t)schedule->instance_count + 1) * sizeof *change);
  int64_t given = 0, held = 0;
  for (int32_t i = 0; i < program->graph->storage_count; i++) {
    const Storage *storage = program->graph->storages[i];
    if (is_given(storage)) given += vl_dtype_bytes(storage->dtype, storage->elements);
  }
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    const Buffer *buffer = &schedule->buffers[i];
    if (buffer->first < 0) continue;
    int64_t bytes = vl_dtype_bytes(buffer->storage->dtype, buffer->storage->elements);
    change[buffer->first] += bytes;
    change[buffer->last + 1] -= bytes;
  }
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    held += change[at];
    live[at] = given + held;
  }
  free(change);
}
