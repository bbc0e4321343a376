#include "tests/graph/simulate.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A value is a hash of how it was computed: of the node, the output's place and the values it read. */
typedef struct Machine {
  const Program *program;
  const Schedule *schedule;
  uint64_t *expected; /* by tensor id: what the graph says in this micro-batch */
  uint64_t *before;   /* the same in the one before */
  int32_t micro_batch;
  uint64_t *content; /* by buffer: what lies there; of a joined storage the sum of its parts' values */
  bool *held, *obtained, *read;
  bool *arriving, *leaving;          /* by buffer: a transfer writes it, reads it, and was not waited for */
  bool *waited;                      /* by instance: of a transfer */
  int32_t copied;                    /* transfers before this instance have been made */
  uint64_t *latest;                  /* by storage: what was written last */
  int32_t *first_write, *last_touch; /* by buffer */
} Machine;

static uint64_t value_of(const Node *node, int32_t output, const uint64_t *inputs) {
  uint64_t hash = vl_hash_bytes(vl_hash_start, &node->id, sizeof node->id);
  hash = vl_hash_bytes(hash, &output, sizeof output);
  return vl_hash_bytes(hash, inputs, (size_t)node->input_count * sizeof *inputs);
}

/* From one micro-batch to the next. */
static bool changes(const Storage *storage) {
  return storage->role == ROLE_INPUT || storage->role == ROLE_STATISTIC;
}

static bool is_sum(const Tensor *tensor) { return tensor->producer && tensor->producer->accumulates; }

/* What each tensor is, by the graph alone: as if every node had fresh memory and ran once a micro-batch, in
 * order. A new micro-batch: other inputs, so that whatever is made from them is another value. Its sums begin
 * with the first one's values and go on from those of the micro-batch before. */
static void evaluate_graph(Machine *machine, int32_t micro_batch) {
  const Graph *graph = machine->program->graph;
  memcpy(machine->before, machine->expected, (size_t)graph->tensor_count * sizeof *machine->before);
  machine->micro_batch = micro_batch;
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    if (tensor->producer) continue;
    uint64_t name = vl_hash_text(vl_hash_start, tensor->name);
    machine->expected[i] =
        changes(tensor->storage) ? vl_hash_bytes(name, &micro_batch, sizeof micro_batch) : name;
  }
  for (int32_t i = 0; i < machine->schedule->buffer_count; i++) {
    const Storage *storage = machine->schedule->buffers[i].storage;
    if (changes(storage) && machine->schedule->buffers[i].given)
      machine->content[i] = machine->expected[storage->root->id];
  }
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    uint64_t inputs[VL_MAX_INPUTS] = {0};
    for (int32_t k = 0; k < node->input_count; k++) {
      if (node->inputs[k]) inputs[k] = machine->expected[node->inputs[k]->id];
    }
    if (node->accumulates) {
      uint64_t *sum = &machine->expected[node->outputs[0]->id];
      inputs[0] = machine->before[node->outputs[0]->id];
      *sum = micro_batch == 0 ? inputs[1] : value_of(node, 0, inputs);
      continue;
    }
    for (int32_t k = 0; k < node->output_count; k++) {
      if (!node->outputs[k]) continue;
      uint64_t *expected = &machine->expected[node->outputs[k]->id];
      *expected = value_of(node, k, inputs);
      if (!vl_node_is_view(node)) continue;
      *expected = inputs[0];
      for (int32_t part = 1; part < node->input_count; part++)
        *expected += inputs[part];
    }
  }
}

/* A part of a joined storage, not its whole. */
static bool is_part(const Tensor *tensor) {
  return vl_storage_is_joined(tensor->storage) && tensor != tensor->storage->root;
}

static void obtain(Machine *machine, int32_t at, int32_t id) {
  const char *name = machine->schedule->buffers[id].storage->name;
  if (machine->obtained[id])
    fail_msg("%s (pass %d) is obtained twice", name, machine->schedule->buffers[id].pass);
  if (machine->schedule->buffers[id].given) fail_msg("%s is given, not obtained", name);
  if (machine->first_write[id] != at)
    fail_msg("%s is obtained at %d, first written at %d", name, at, machine->first_write[id]);
  machine->obtained[id] = machine->held[id] = true;
  machine->content[id] = 0;
}

static bool needed_after_step(const Program *program, const Buffer *buffer) {
  if (buffer->pass != 0 || buffer->micro_batch != 0 || buffer->tier != TIER_DEVICE) return false;
  bool loss = program->loss && buffer->storage == program->loss->storage;
  bool logits = !program->training && program->logits && buffer->storage == program->logits->storage;
  return loss || logits || (buffer->storage->role == ROLE_GRADIENT && !program->release_gradients);
}

/* torch.autocast keeps what it made of a weight until forward ends. */
static bool is_cached(const Program *program, const Buffer *buffer) {
  const Node *node = buffer->storage->root->producer;
  bool of_weight = node && node->segment == SEGMENT_FORWARD && strcmp(node->op->name, "cast") == 0 &&
                   node->inputs[0]->storage->role == ROLE_PARAMETER;
  return program->cast_cache && of_weight && buffer->pass == 0 && buffer->tier == TIER_DEVICE;
}

static int32_t later(int32_t a, int32_t b) { return a > b ? a : b; }

/* The last instance before the micro-batch's backward. */
static int32_t forward_end(const Schedule *schedule, int32_t micro_batch) {
  int32_t end = -1;
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Instance *instance = &schedule->instances[i];
    if (instance->micro_batch != micro_batch) continue;
    if (instance->node->segment != SEGMENT_FORWARD) break;
    end = i;
  }
  return end;
}

static int32_t last_of_block(const Schedule *schedule, int32_t block) {
  int32_t end = -1;
  for (int32_t i = 0; i < schedule->instance_count; i++)
    if (schedule->instances[i].node->block == block) end = i;
  return end;
}

/* How long an eager program's calls and variables hold a buffer; -1: not beyond its readers. */
static int32_t held_until(const Schedule *schedule, int32_t id) {
  int32_t end = -1, made = -1;
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Instance *instance = &schedule->instances[i];
    const Node *node = instance->node;
    bool reads = false;
    for (int32_t k = 0; k < VL_MAX_INPUTS; k++)
      reads = reads || instance->inputs[k] == id;
    for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++)
      if (instance->outputs[k] == id && made < 0) made = node->block;
    if (reads && node->block > 0 && node->block != made)
      end = later(end, last_of_block(schedule, node->block));
    if (instance->outputs[0] != id || node->hold == HOLD_NOTHING) continue;
    end = later(end, node->hold == HOLD_BLOCK ? last_of_block(schedule, node->block)
                                              : schedule->instance_count - 1);
  }
  return end;
}

static void release(Machine *machine, int32_t at, int32_t id) {
  const Buffer *buffer = &machine->schedule->buffers[id];
  if (!machine->held[id])
    fail_msg("%s (pass %d) is released and not held", buffer->storage->name, buffer->pass);
  if (machine->arriving[id] || machine->leaving[id])
    fail_msg("%s (pass %d) is released at %d while it is copied", buffer->storage->name, buffer->pass, at);
  int32_t end = machine->last_touch[id];
  if (is_cached(machine->program, buffer))
    end = later(end, forward_end(machine->schedule, buffer->micro_batch));
  if (machine->program->holds_variables) end = later(end, held_until(machine->schedule, id));
  if (needed_after_step(machine->program, buffer)) end = machine->schedule->instance_count - 1;
  if (at != end)
    fail_msg("%s (pass %d) is released at %d, not at %d", buffer->storage->name, buffer->pass, at, end);
  machine->held[id] = false;
}

/* Transfers are made in order and as late as can be: when one is waited for. */
static void copy_up_to(Machine *machine, int32_t end) {
  for (; machine->copied < end; machine->copied++) {
    const Instance *instance = &machine->schedule->instances[machine->copied];
    if (instance->kind != INSTANCE_EVICT && instance->kind != INSTANCE_FETCH) continue;
    machine->content[instance->outputs[0]] = machine->content[instance->inputs[0]];
  }
}

static void begin_transfer(const Machine *machine, const Instance *instance) {
  int32_t from = instance->inputs[0], to = instance->outputs[0];
  const Buffer *source = &machine->schedule->buffers[from], *target = &machine->schedule->buffers[to];
  bool out = instance->kind == INSTANCE_EVICT;
  assert_ptr_equal(source->storage, target->storage);
  assert_int_equal(source->tier, out ? TIER_DEVICE : TIER_OFFLOAD);
  assert_int_equal(target->tier, out ? TIER_OFFLOAD : TIER_DEVICE);
  assert_int_equal(instance->stream, STREAM_COPY);
  if (!machine->held[from] || !machine->held[to])
    fail_msg("%s is copied and not held", source->storage->name);
  machine->leaving[from] = machine->arriving[to] = true;
}

static void wait_for_transfer(Machine *machine, int32_t at) {
  int32_t waits_for = machine->schedule->instances[at].transfer;
  assert_in_range(waits_for, 0, at - 1);
  const Instance *transfer = &machine->schedule->instances[waits_for];
  assert_true(transfer->kind == INSTANCE_EVICT || transfer->kind == INSTANCE_FETCH);
  assert_int_equal(machine->schedule->instances[at].inputs[0], transfer->inputs[0]);
  assert_false(machine->waited[waits_for]);
  machine->waited[waits_for] = true;
  copy_up_to(machine, waits_for + 1);
  machine->leaving[transfer->inputs[0]] = machine->arriving[transfer->outputs[0]] = false;
}

static void launch(Machine *machine, int32_t at) {
  const Instance *instance = &machine->schedule->instances[at];
  const Node *node = instance->node;
  uint64_t inputs[VL_MAX_INPUTS] = {0};
  for (int32_t k = 0; k < node->input_count; k++) {
    const Tensor *tensor = node->inputs[k];
    int32_t id = instance->inputs[k];
    if (!tensor) continue;
    assert_true(id >= 0);
    const Buffer *buffer = &machine->schedule->buffers[id];
    assert_ptr_equal(buffer->storage, tensor->storage);
    if (!machine->held[id])
      fail_msg("%s in %s reads %s, which is not held", node->op->name, node->scope, tensor->name);
    if (machine->arriving[id] || buffer->tier != TIER_DEVICE)
      fail_msg("%s in %s reads %s, which is not there yet", node->op->name, node->scope, tensor->name);
    bool so_far = node->accumulates && k == 0;
    uint64_t expected = so_far ? machine->before[node->outputs[0]->id] : machine->expected[tensor->id];
    if (so_far || is_sum(tensor)) assert_int_equal(buffer->micro_batch, 0);
    if (!is_part(tensor) && machine->content[id] != expected) {
      fail_msg("%s in %s (instance %d) reads %s and finds another value", node->op->name, node->scope, at,
               tensor->name);
    }
    inputs[k] = expected;
    machine->read[id] = true;
  }
  for (int32_t k = 0; k < node->output_count; k++) {
    if (!node->outputs[k]) continue;
    int32_t id = instance->outputs[k];
    assert_true(id >= 0 && machine->held[id]);
    assert_ptr_equal(machine->schedule->buffers[id].storage, node->outputs[k]->storage);
    if (machine->arriving[id] || machine->leaving[id])
      fail_msg("%s in %s writes %s while it is copied", node->op->name, node->scope, node->outputs[k]->name);
    uint64_t value = value_of(node, k, inputs);
    if (is_part(node->outputs[k])) {
      for (int32_t i = 0; i < node->input_count; i++)
        if (node->inputs[i] && node->inputs[i]->storage == node->outputs[k]->storage) value -= inputs[i];
      value += machine->content[id];
    }
    machine->content[id] = value;
    machine->latest[node->outputs[k]->storage->id] = machine->content[id];
  }
}

/* Where each buffer is first written and last touched, from the launches alone. */
static void find_touches(Machine *machine) {
  const Schedule *schedule = machine->schedule;
  for (int32_t i = 0; i < schedule->buffer_count; i++)
    machine->first_write[i] = machine->last_touch[i] = -1;
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    for (int32_t k = 0; k < VL_MAX_INPUTS; k++) {
      if (instance->inputs[k] >= 0) machine->last_touch[instance->inputs[k]] = at;
    }
    for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++) {
      int32_t id = instance->outputs[k];
      if (id < 0) continue;
      machine->last_touch[id] = at;
      if (machine->first_write[id] < 0) machine->first_write[id] = at;
    }
  }
}

static void start(Machine *machine) {
  const Schedule *schedule = machine->schedule;
  size_t buffers = (size_t)schedule->buffer_count + 1;
  machine->expected = vl_allocate(((size_t)machine->program->graph->tensor_count + 1) * sizeof(uint64_t));
  machine->before = vl_allocate(((size_t)machine->program->graph->tensor_count + 1) * sizeof(uint64_t));
  machine->content = vl_allocate(buffers * sizeof(uint64_t));
  machine->held = vl_allocate(buffers);
  machine->obtained = vl_allocate(buffers);
  machine->read = vl_allocate(buffers);
  machine->arriving = vl_allocate(buffers);
  machine->leaving = vl_allocate(buffers);
  machine->waited = vl_allocate((size_t)schedule->instance_count + 1);
  machine->latest =
      vl_allocate(((size_t)machine->program->graph->storage_count + 1) * sizeof *machine->latest);
  machine->first_write = vl_allocate(buffers * sizeof(int32_t));
  machine->last_touch = vl_allocate(buffers * sizeof(int32_t));
  evaluate_graph(machine, 0);
  find_touches(machine);
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    const Storage *storage = schedule->buffers[i].storage;
    if (!schedule->buffers[i].given) continue;
    machine->held[i] = true;
    machine->content[i] = machine->expected[storage->root->id];
  }
}

/* Every buffer came and went, and what was repeated was read. */
static void finish(const Machine *machine) {
  const Schedule *schedule = machine->schedule;
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    const Buffer *buffer = &schedule->buffers[i];
    if (buffer->given) {
      uint64_t latest = machine->latest[buffer->storage->id];
      if (buffer->tier == TIER_OFFLOAD && latest && machine->content[i] != latest)
        fail_msg("%s is not what its update wrote", buffer->storage->name);
      continue;
    }
    if (machine->held[i])
      fail_msg("%s (pass %d) is held after the step", buffer->storage->name, buffer->pass);
    if (!machine->obtained[i])
      fail_msg("%s (pass %d) is never obtained", buffer->storage->name, buffer->pass);
  }
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    bool transfer = instance->kind == INSTANCE_EVICT || instance->kind == INSTANCE_FETCH;
    if (transfer && !machine->waited[at]) fail_msg("instance %d is not waited for", at);
    if (instance->pass == 0 || instance->kind != INSTANCE_LAUNCH) continue;
    assert_false(instance->node->op->side_effect);
    bool read = false;
    for (int32_t k = 0; k < VL_MAX_OUTPUTS; k++) {
      read = read || (instance->outputs[k] >= 0 && machine->read[instance->outputs[k]]);
    }
    if (!read) fail_msg("%s in %s is repeated for nobody", instance->node->op->name, instance->node->scope);
  }
}

void simulate_schedule(const Program *program, const Schedule *schedule, Simulation *simulation) {
  Machine machine = {.program = program, .schedule = schedule};
  start(&machine);
  *simulation = (Simulation){0};
  simulation->held_bytes = vl_allocate(((size_t)schedule->instance_count + 1) * sizeof(int64_t));
  int64_t held = 0;
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    if (instance->micro_batch != machine.micro_batch) {
      assert_int_equal(instance->micro_batch, machine.micro_batch + 1);
      evaluate_graph(&machine, instance->micro_batch);
    }
    for (int32_t i = 0; i < instance->obtain_count; i++) {
      obtain(&machine, at, instance->obtain[i]);
      const Storage *storage = schedule->buffers[instance->obtain[i]].storage;
      bool on_device = schedule->buffers[instance->obtain[i]].tier == TIER_DEVICE;
      if (storage->role == ROLE_ACTIVATION && on_device)
        held += vl_dtype_bytes(storage->dtype, storage->elements);
    }
    if (held > simulation->peak_bytes) simulation->peak_bytes = held;
    if (instance->kind == INSTANCE_LAUNCH)
      launch(&machine, at);
    else if (instance->kind == INSTANCE_WAIT)
      wait_for_transfer(&machine, at);
    else
      begin_transfer(&machine, instance);
    for (int32_t i = 0; i < instance->release_count; i++) {
      release(&machine, at, instance->release[i]);
      const Storage *storage = schedule->buffers[instance->release[i]].storage;
      bool on_device = schedule->buffers[instance->release[i]].tier == TIER_DEVICE;
      if (storage->role == ROLE_ACTIVATION && on_device)
        held -= vl_dtype_bytes(storage->dtype, storage->elements);
    }
    simulation->held_bytes[at] = held;
  }
  assert_int_equal(machine.micro_batch, program->accumulate - 1);
  finish(&machine);
  free(machine.expected);
  free(machine.before);
  free(machine.content);
  free(machine.held);
  free(machine.obtained);
  free(machine.read);
  free(machine.arriving);
  free(machine.leaving);
  free(machine.waited);
  free(machine.latest);
  free(machine.first_write);
  free(machine.last_touch);
}

void simulation_free(Simulation *simulation) { free(simulation->held_bytes); }

int32_t launches_of(const Schedule *schedule, const Node *node) {
  int32_t launches = 0;
  for (int32_t i = 0; i < schedule->instance_count; i++)
    launches += schedule->instances[i].kind == INSTANCE_LAUNCH && schedule->instances[i].node == node;
  return launches;
}
