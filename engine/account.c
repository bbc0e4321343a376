/* What a step holds at its peak, or at another moment, reckoned from what is needed when. A tensor counts
 * from the node that makes it to the last that needs it, in the order of the graph; what recomputation makes
 * again counts from the first node of backward that needs any of its segment. No schedule is walked, no block
 * handed out and nothing counted while it runs, so that what a step really takes can be held against it. Two
 * simplifications: while a segment is made again nothing but its result counts, and blocks are rounded up but
 * leave no rests. Programs that retain what nobody needs are not reckoned. */
#include "engine/account.h"
#include <stdlib.h>
#include <string.h>

static const Life never = {INT32_MAX, -1};

static void reach(Life *life, int32_t at) {
  if (at < life->first) life->first = at;
  if (at > life->last) life->last = at;
}

/* The tensor whose bytes a view shows. */
static const Tensor *shown(const Tensor *tensor) {
  while (tensor->producer && vl_node_is_view(tensor->producer))
    tensor = tensor->producer->inputs[0];
  return tensor;
}

static bool is_dropped(const Tensor *tensor) {
  const Node *producer = tensor->producer;
  return producer && producer->segment == SEGMENT_FORWARD &&
         (producer->checkpoint_segment > 0 || producer->recompute_on_use);
}

/* A node of forward, or after it, touches what is kept. */
static void use(Account *account, const Storage *storage, int32_t at) {
  reach(&account->kept[storage->id], at);
  account->last_use[storage->id] = at;
}

/* What is read to make something again can go before the node that this is made for. */
static void use_later(Account *account, const Storage *storage, int32_t at, bool repeats) {
  int32_t *next_use = &account->next_use[storage->id];
  reach(&account->kept[storage->id], repeats ? at - 1 : at);
  if (*next_use < 0 || at < *next_use) *next_use = at;
}

static void need(Account *account, const Tensor *tensor, int32_t at, bool repeats);

/* What it takes to make a node's outputs again as part of its segment. */
static void replay(Account *account, const Node *node) {
  if (account->walked[node->position]) return;
  account->walked[node->position] = account->replayed[node->position] = true;
  int32_t at = account->replay_at[node->checkpoint_segment];
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!node->inputs[i]) continue;
    const Tensor *input = shown(node->inputs[i]);
    if (is_dropped(input) && input->producer->checkpoint_segment == node->checkpoint_segment)
      replay(account, input->producer);
    else
      need(account, input, at, true);
  }
}

/* A node at `at`, in backward or made again for it, reads the tensor. */
static void need(Account *account, const Tensor *tensor, int32_t at, bool repeats) {
  tensor = shown(tensor);
  const Storage *storage = tensor->storage;
  if (!is_dropped(tensor)) {
    use_later(account, storage, at, repeats);
    return;
  }
  const Node *producer = tensor->producer;
  int32_t segment = producer->checkpoint_segment;
  Life *life = &account->again[storage->id];
  bool first = !account->asked[tensor->id];
  account->asked[tensor->id] = true;
  reach(life, at);
  if (segment > 0 && account->replay_at[segment] < 0) account->replay_at[segment] = at;
  if (segment > 0 && !producer->recompute_on_use) replay(account, producer);
  if (segment > 0 && account->replayed[producer->position]) {
    reach(life, account->replay_at[segment]);
    return;
  }
  for (int32_t i = 0; first && i < producer->input_count; i++)
    if (producer->inputs[i]) need(account, producer->inputs[i], at, true);
}

static void visit(Account *account, const Node *node) {
  bool forward = node->segment == SEGMENT_FORWARD;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (!node->inputs[i]) continue;
    if (forward)
      use(account, node->inputs[i]->storage, node->position);
    else
      need(account, node->inputs[i], node->position, false);
  }
  for (int32_t i = 0; i < node->output_count; i++) {
    if (!node->outputs[i]) continue;
    if (forward)
      use(account, node->outputs[i]->storage, node->position);
    else
      use_later(account, node->outputs[i]->storage, node->position, false);
  }
}

static void walk(Account *account) {
  const Graph *graph = account->graph;
  for (int32_t i = 0; i < graph->storage_count; i++) {
    account->kept[i] = account->again[i] = never;
    account->last_use[i] = account->next_use[i] = -1;
  }
  memset(account->walked, 0, (size_t)graph->node_count);
  memset(account->asked, 0, (size_t)graph->tensor_count);
  for (int32_t i = 0; i < graph->node_count; i++)
    if (!vl_node_is_view(graph->nodes[i])) visit(account, graph->nodes[i]);
}

/* The cache of torch.autocast holds casts of weights until forward ends. */
static void prolong_casts(Account *account) {
  const Graph *graph = account->graph;
  int32_t end = 0;
  while (end + 1 < graph->node_count && graph->nodes[end + 1]->segment == SEGMENT_FORWARD)
    end++;
  for (int32_t i = 0; i <= end; i++) {
    const Node *node = graph->nodes[i];
    bool of_weight = strcmp(node->op->name, "cast") == 0 && node->inputs[0]->storage->role == ROLE_PARAMETER;
    if (of_weight) reach(&account->kept[node->outputs[0]->storage->id], end);
  }
}

/* An eager program holds what a block reads until the block ends, and what it has a variable for. */
static void prolong_variables(Account *account) {
  const Graph *graph = account->graph;
  int32_t *end = vl_allocate(((size_t)graph->block_count + 1) * sizeof *end); /* by block */
  for (int32_t i = 0; i < graph->node_count; i++)
    if (!vl_node_is_view(graph->nodes[i])) end[graph->nodes[i]->block] = i;
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    for (int32_t k = 0; k < node->input_count && node->block > 0; k++) {
      Life *life = node->inputs[k] ? &account->kept[node->inputs[k]->storage->id] : NULL;
      if (life && life->first < i && graph->nodes[life->first]->block != node->block)
        reach(life, end[node->block]);
    }
    if (node->hold != HOLD_NOTHING)
      reach(&account->kept[node->outputs[0]->storage->id],
            node->hold == HOLD_BLOCK ? end[node->block] : graph->node_count - 1);
  }
  free(end);
}

/* What the step's end or the next micro-batch still needs. */
static void prolong(Account *account) {
  const Program *program = &account->executable->program;
  int32_t end = account->graph->node_count - 1;
  if (program->cast_cache) prolong_casts(account);
  if (program->holds_variables) prolong_variables(account);
  if (program->loss) reach(&account->kept[program->loss->storage->id], end);
  if (!program->training && program->logits) reach(&account->kept[program->logits->storage->id], end);
  for (int32_t i = 0; i < program->gradient_count; i++) {
    Life *life = &account->kept[program->gradients[i].gradient->storage->id];
    if (!program->release_gradients) reach(life, end);
    if (program->accumulate > 1) reach(life, 0); /* the sum so far */
  }
}

/* Whether a storage comes and goes within the step. */
static bool is_made(const Storage *storage) {
  return !vl_role_is_persistent(storage->role) && storage->role != ROLE_INPUT;
}

/* Whether it is on the device throughout. */
bool account_is_given(const Storage *storage) { return !is_made(storage) && storage->tier == TIER_DEVICE; }

static int64_t rounded(int64_t bytes) {
  return (bytes + VL_BLOCK_BYTES - 1) / VL_BLOCK_BYTES * VL_BLOCK_BYTES;
}

int64_t account_workspace(const Executable *executable, const Node *node) {
  const DeviceInterface *interface = executable->device->interface;
  const Kernel *kernel = executable->kernels[node->id];
  bool apart = !kernel || (interface->is_emulated && interface->is_emulated(kernel)); /* in no figure */
  return apart ? 0 : interface->workspace_bytes(kernel);
}

static bool is_there(const Life *life) { return life->first <= life->last; }

static void add_life(int64_t *change, const Life *life, int64_t bytes) {
  if (!is_there(life)) return;
  change[life->first] += bytes;
  change[life->last + 1] -= bytes;
}

/* With accumulation the part of the micro-batch at hand exists beside the sum. */
static Life part_of(const Account *account, const Storage *storage) {
  const Program *program = &account->executable->program;
  Life part = never;
  if (program->accumulate == 1 || storage->role != ROLE_GRADIENT) return part;
  for (int32_t i = 0; i < account->graph->node_count; i++) {
    const Node *node = account->graph->nodes[i];
    bool makes = false;
    for (int32_t k = 0; k < node->output_count; k++)
      makes = makes || (node->outputs[k] && node->outputs[k]->storage == storage);
    if (makes) reach(&part, node->position);
  }
  return part;
}

int32_t account_find_peak(const Account *account) {
  const Graph *graph = account->graph;
  int64_t given = 0;
  int64_t *change = vl_allocate(((size_t)graph->node_count + 1) * sizeof *change);
  for (int32_t i = 0; i < graph->storage_count; i++) {
    int64_t bytes = rounded(account->executable->storage_bytes[i]);
    if (account_is_given(graph->storages[i])) given += bytes;
    add_life(change, &account->fetched[i], bytes);
    if (!is_made(graph->storages[i])) continue;
    add_life(change, &account->kept[i], bytes);
    add_life(change, &account->again[i], bytes);
    add_life(change, &account->parts[i], bytes);
  }
  int64_t live = 0, most = -1;
  int32_t peak = 0;
  for (int32_t at = 0; at < graph->node_count; at++) {
    live += change[at];
    int64_t with_workspace = live + rounded(account_workspace(account->executable, graph->nodes[at]));
    if (with_workspace <= most) continue;
    most = with_workspace;
    peak = at;
  }
  free(change);
  account->result->highest_bytes = given + most;
  return peak;
}

/* ---- Terms ------------------------------------------------------------------------------------------------------ */

static MemoryTerm *find_term(MemoryAccount *result, MemoryCategory category, const char *name) {
  for (int32_t i = 0; i < result->term_count; i++)
    if (result->terms[i].category == category && strcmp(result->terms[i].name, name) == 0)
      return &result->terms[i];
  return NULL;
}

static void add_term(MemoryAccount *result, MemoryCategory category, const char *name, int64_t bytes) {
  if (bytes <= 0) return;
  MemoryTerm *term = find_term(result, category, name);
  if (!term && result->term_count >= VL_MAX_TERMS - MEMORY_CATEGORY_COUNT) {
    name = "others";
    term = find_term(result, category, name);
  }
  if (!term) {
    term = &result->terms[result->term_count++];
    *term = (MemoryTerm){.category = category};
    snprintf(term->name, sizeof term->name, "%s", name);
  }
  term->count++;
  term->bytes += bytes;
  term->rounding_bytes += rounded(bytes) - bytes;
  result->by_category[category] += bytes;
}

void engine_account_besides(MemoryCategory category, const char *name, int64_t bytes,
                            MemoryAccount *account) {
  if (account->highest_bytes < 0) return;
  add_term(account, category, name, bytes);
  account->highest_bytes += rounded(bytes);
}

int64_t engine_window_sums_bytes(const Program *program) {
  if (program->training || program->window_sums_on_host || program->window_voxels == 0) return 0;
  return (program->logits->shape[1] + 1) * program->window_voxels * (int64_t)sizeof(float);
}

/* "exp_avg" of "layers.0.qkv.weight.exp_avg". */
static const char *last_part(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot ? dot + 1 : name;
}

static void add_given(Account *account) {
  const Graph *graph = account->graph;
  char name[VL_NAME_BYTES];
  for (int32_t i = 0; i < graph->storage_count; i++) {
    const Storage *storage = graph->storages[i];
    if (!account_is_given(storage)) continue;
    bool weight = storage->role == ROLE_PARAMETER, input = storage->role == ROLE_INPUT;
    snprintf(name, sizeof name, "%s", weight ? "weights" : input ? storage->name : last_part(storage->name));
    add_term(account->result, engine_category_of(storage->role), name, account->executable->storage_bytes[i]);
  }
}

/* What made a storage first, as a reader of the model would call it. */
static void write_maker(const Storage *storage, char name[VL_NAME_BYTES], const char *prefix) {
  const Node *node = storage->root->producer;
  const char *op = node ? node->op->name : "unknown";
  bool of_weight = node && node->input_count > 0 && node->inputs[0] &&
                   shown(node->inputs[0])->storage->role == ROLE_PARAMETER;
  snprintf(name, VL_NAME_BYTES, "%s %s%s", prefix, op, of_weight ? " of weights" : "");
}

static void add_live(Account *account, int32_t i, const Life *part, int32_t at) {
  const Storage *storage = account->graph->storages[i];
  const Life *kept = &account->kept[i], *again = &account->again[i];
  MemoryCategory category = engine_category_of(storage->role);
  int64_t bytes = account->executable->storage_bytes[i];
  bool forward = storage->root->producer && storage->root->producer->segment == SEGMENT_FORWARD;
  bool accumulates = account->executable->program.accumulate > 1;
  char name[VL_NAME_BYTES];
  if (kept->first <= at && at <= kept->last) {
    bool leaves = is_there(&account->fetched[i]) && at > account->last_use[i];
    if (storage->role == ROLE_GRADIENT) {
      add_term(account->result, category,
               accumulates ? "sums over micro-batches" : "complete or in the making", bytes);
    } else {
      write_maker(storage, name, leaves ? "leaving:" : forward ? "saved:" : "passing:");
      add_term(account->result, category, name, bytes);
    }
  }
  if (again->first <= at && at <= again->last) {
    write_maker(storage, name, "made again:");
    add_term(account->result, category, name, bytes);
  }
  if (part->first <= at && at <= part->last)
    add_term(account->result, category, "of this micro-batch", bytes);
}

/* What is back from the offload tier. */
static void add_fetched(Account *account, int32_t i, int32_t at) {
  const Storage *storage = account->graph->storages[i];
  const Life *fetched = &account->fetched[i];
  char name[VL_NAME_BYTES];
  if (at < fetched->first || at > fetched->last) return;
  if (is_made(storage))
    write_maker(storage, name, "fetched:");
  else
    snprintf(name, sizeof name, "fetched: %.40s", last_part(storage->name));
  add_term(account->result, engine_category_of(storage->role), name, account->executable->storage_bytes[i]);
}

static void describe_moment(Account *account, int32_t at) {
  const Node *node = account->graph->nodes[at];
  MemoryAccount *result = account->result;
  char name[VL_NAME_BYTES];
  result->segment = node->segment;
  snprintf(result->op, sizeof result->op, "%s", node->op->name);
  snprintf(result->scope, sizeof result->scope, "%s", node->scope);
  add_given(account);
  for (int32_t i = 0; i < account->graph->storage_count; i++) {
    if (is_made(account->graph->storages[i])) add_live(account, i, &account->parts[i], at);
    add_fetched(account, i, at);
  }
  snprintf(name, sizeof name, "%.*s", VL_NAME_BYTES - 1, node->op->name);
  add_term(result, MEMORY_WORKSPACE, name, account_workspace(account->executable, node));
}

static Life *no_lives(int32_t count) {
  Life *lives = vl_allocate(((size_t)count + 1) * sizeof *lives);
  for (int32_t i = 0; i <= count; i++)
    lives[i] = never;
  return lives;
}

void account_open(const Executable *executable, MemoryAccount *result, Account *account) {
  const Graph *graph = executable->program.graph;
  int32_t segments = 0;
  for (int32_t i = 0; i < graph->node_count; i++)
    if (graph->nodes[i]->checkpoint_segment > segments) segments = graph->nodes[i]->checkpoint_segment;
  *account = (Account){.executable = executable,
                       .graph = graph,
                       .kept = no_lives(graph->storage_count),
                       .again = no_lives(graph->storage_count),
                       .fetched = no_lives(graph->storage_count),
                       .last_use = vl_allocate(((size_t)graph->storage_count + 1) * sizeof(int32_t)),
                       .next_use = vl_allocate(((size_t)graph->storage_count + 1) * sizeof(int32_t)),
                       .replay_at = vl_allocate(((size_t)segments + 1) * sizeof(int32_t)),
                       .replayed = vl_allocate((size_t)graph->node_count),
                       .walked = vl_allocate((size_t)graph->node_count),
                       .asked = vl_allocate((size_t)graph->tensor_count),
                       .result = result};
  memset(account->replay_at, -1, ((size_t)segments + 1) * sizeof(int32_t));
  walk(account);
  walk(account); /* again, knowing all that is made again with each segment, whoever needs it first */
  account->parts = no_lives(graph->storage_count);
  for (int32_t i = 0; i < graph->storage_count; i++)
    account->parts[i] = part_of(account, graph->storages[i]);
  account_offload(account);
  prolong(account);
}

void account_close(Account *account) {
  free(account->kept);
  free(account->again);
  free(account->fetched);
  free(account->last_use);
  free(account->next_use);
  free(account->replay_at);
  free(account->replayed);
  free(account->walked);
  free(account->asked);
  free(account->parts);
}

void vl_executable_account(const Executable *executable, int64_t place, MemoryAccount *result) {
  const Graph *graph = executable->program.graph;
  *result = (MemoryAccount){0};
  bool retains = executable->program.retain != RETAIN_NOTHING || executable->program.keep_recomputed;
  if (graph->node_count == 0 || retains) {
    for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++)
      result->by_category[c] = -1;
    result->highest_bytes = -1;
    return;
  }
  Account account;
  account_open(executable, result, &account);
  int32_t peak = account_find_peak(&account);
  describe_moment(&account, place >= 0 && place < graph->node_count ? (int32_t)place : peak);
  engine_account_besides(MEMORY_ACTIVATION, "window sums", engine_window_sums_bytes(&executable->program),
                         result);
  account_close(&account);
}

void engine_account_tail(const Executable *tail, MemoryAccount *account) {
  const Graph *graph = tail->program.graph;
  char name[VL_NAME_BYTES];
  for (int32_t i = 0; i < graph->storage_count && account->term_count > 0; i++) {
    if (graph->storages[i]->role != ROLE_INPUT) continue;
    snprintf(name, sizeof name, "%s of the last micro-batch", graph->storages[i]->name);
    add_term(account, MEMORY_INPUT, name, tail->storage_bytes[i]);
  }
}
