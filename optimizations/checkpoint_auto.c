/* checkpoint=auto: which blocks to recompute, in which runs, so that the step fits a budget and repeats the
 * fewest operations.
 *
 * Backward goes through the blocks in reverse. While it is in a block, what later blocks kept is gone and
 * what earlier ones keep is there, so the bytes live in a block are those of a schedule in which its own run
 * alone is recomputed, less what recomputing earlier runs saves: costs add up, and dynamic programming over
 * the boundaries finds the cheapest choice under a peak. Lowering that peak step by step gives all choices
 * worth having, from cheapest to leanest; which of them meets the budget is what the target's peak query
 * says, which knows of layouts, workspaces and the allocator's rounding too. */
#include "optimizations/internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- Costs ---------------------------------------------------------------------------------------------------- */

typedef struct Sweep {
  int64_t *peak_bytes[CHAIN_PASSES]; /* by block: most live while a node of it runs */
  int64_t end_bytes[CHAIN_PASSES];   /* live with the last node of forward, and the first of backward */
  int64_t flops;                     /* repeated */
} Sweep;

/* Attributes what is live to blocks and passes. A node of no block counts to the block that the one before it
 * counted to, a repeated one to backward. */
static void attribute(const Schedule *schedule, const int64_t *live, Sweep *result) {
  int32_t block = 0, micro_batch = -1, pass = IN_FORWARD;
  bool ended = false; /* the first micro-batch's forward */
  for (int32_t at = 0; at < schedule->instance_count; at++) {
    const Instance *instance = &schedule->instances[at];
    const Node *node = instance->node;
    if (instance->micro_batch != micro_batch) pass = IN_FORWARD;
    micro_batch = instance->micro_batch;
    if (node->segment != SEGMENT_FORWARD) pass = IN_BACKWARD;
    if (node->block > 0) block = node->block - 1;
    int64_t *peak_bytes = &result->peak_bytes[pass][block];
    if (live[at] > *peak_bytes) *peak_bytes = live[at];
    if (!ended) result->end_bytes[pass] = live[at];
    ended = ended || pass == IN_BACKWARD;
  }
}

/* Lifetimes with blocks first to last (from 0) recomputed as one run; last < first: none. */
static Status sweep(Program *program, int32_t first, int32_t last, Sweep *result) {
  Graph *graph = program->graph;
  int32_t *run = vl_allocate(((size_t)graph->node_count + 1) * sizeof *run);
  for (int32_t i = 0; i < graph->node_count; i++)
    run[i] = graph->nodes[i]->block - 1 >= first && graph->nodes[i]->block - 1 <= last;
  optimization_drop_runs(graph, run);
  free(run);
  Schedule *schedule = NULL;
  VL_TRY(vl_schedule_build(program, &schedule));
  int64_t *live = vl_allocate(((size_t)schedule->instance_count + 1) * sizeof *live);
  vl_schedule_live_bytes(program, schedule, live);
  for (int pass = 0; pass < CHAIN_PASSES; pass++)
    memset(result->peak_bytes[pass], 0, (size_t)graph->block_count * sizeof(int64_t));
  attribute(schedule, live, result);
  result->flops = schedule->recompute_flops;
  free(live);
  vl_schedule_destroy(&schedule);
  return vl_ok();
}

static Status sweep_runs(Program *program, ChainCosts *costs, Sweep *none, Sweep *one) {
  VL_TRY(sweep(program, 0, -1, none));
  for (int32_t first = 0; first < costs->blocks; first++) {
    for (int32_t last = first; last < costs->blocks; last++) {
      int32_t run = first * costs->blocks + last;
      VL_TRY(sweep(program, first, last, one));
      costs->run_flops[run] = one->flops;
      for (int pass = 0; pass < CHAIN_PASSES; pass++) {
        costs->run_saved_bytes[pass][run] = none->end_bytes[pass] - one->end_bytes[pass];
        for (int32_t block = first; block <= last; block++)
          if (one->peak_bytes[pass][block] > costs->run_peak_bytes[pass][run])
            costs->run_peak_bytes[pass][run] = one->peak_bytes[pass][block];
      }
    }
  }
  return vl_ok();
}

Status optimization_chain_costs(Program *program, ChainCosts *costs) {
  int32_t blocks = program->graph->block_count;
  size_t bytes = (size_t)blocks * sizeof(int64_t), square = (size_t)blocks * bytes;
  Sweep none = {0}, one = {0};
  *costs = (ChainCosts){.blocks = blocks, .run_flops = vl_allocate(square)};
  for (int pass = 0; pass < CHAIN_PASSES; pass++) {
    none.peak_bytes[pass] = costs->kept_peak_bytes[pass] = vl_allocate(bytes);
    one.peak_bytes[pass] = vl_allocate(bytes);
    costs->run_peak_bytes[pass] = vl_allocate(square);
    costs->run_saved_bytes[pass] = vl_allocate(square);
  }
  Status status = sweep_runs(program, costs, &none, &one);
  for (int pass = 0; pass < CHAIN_PASSES; pass++)
    free(one.peak_bytes[pass]);
  return status;
}

void optimization_chain_costs_free(ChainCosts *costs) {
  for (int pass = 0; pass < CHAIN_PASSES; pass++) {
    free(costs->kept_peak_bytes[pass]);
    free(costs->run_peak_bytes[pass]);
    free(costs->run_saved_bytes[pass]);
  }
  free(costs->run_flops);
  *costs = (ChainCosts){0};
}

/* ---- The cheapest choice under a peak --------------------------------------------------------------------------- */

/* A choice for all blocks before a boundary. */
typedef struct Choice {
  int64_t saved_bytes[CHAIN_PASSES], flops;
  int32_t before; /* the choice it extends: at the boundary it began at, which one there */
  int32_t length; /* of the run that extends it; 0: by a block that is kept */
} Choice;

typedef struct Choices {
  Choice *items;
  int32_t count, capacity;
} Choices;

static void add(Choices *choices, Choice choice) {
  if (choices->count == choices->capacity) {
    choices->capacity = choices->capacity ? 2 * choices->capacity : 16;
    choices->items = vl_reallocate(choices->items, (size_t)choices->capacity * sizeof *choices->items);
  }
  choices->items[choices->count++] = choice;
}

/* Fewest operations first, of equal ones the one that saves most. */
static int compare(const void *a, const void *b) {
  const Choice *x = a, *y = b;
  if (x->flops != y->flops) return x->flops < y->flops ? -1 : 1;
  for (int pass = CHAIN_PASSES - 1; pass >= 0; pass--)
    if (x->saved_bytes[pass] != y->saved_bytes[pass])
      return x->saved_bytes[pass] > y->saved_bytes[pass] ? -1 : 1;
  return 0;
}

/* Whether a cheaper one saves as much in both passes. */
static bool is_dominated(const Choices *choices, int32_t kept, const Choice *choice) {
  for (int32_t i = kept - 1; i >= 0; i--) {
    const Choice *other = &choices->items[i];
    if (other->saved_bytes[IN_FORWARD] >= choice->saved_bytes[IN_FORWARD] &&
        other->saved_bytes[IN_BACKWARD] >= choice->saved_bytes[IN_BACKWARD])
      return true;
  }
  return false;
}

static void prune(Choices *choices) {
  int32_t kept = 0;
  if (choices->count > 1) qsort(choices->items, (size_t)choices->count, sizeof *choices->items, compare);
  for (int32_t i = 0; i < choices->count; i++)
    if (!is_dominated(choices, kept, &choices->items[i])) choices->items[kept++] = choices->items[i];
  choices->count = kept;
}

/* The most live in a block or a run after what earlier runs save. */
static int64_t peak_here(int64_t *const peak_bytes[CHAIN_PASSES], int32_t at,
                         const int64_t saved_bytes[CHAIN_PASSES]) {
  int64_t forward = peak_bytes[IN_FORWARD][at] - saved_bytes[IN_FORWARD];
  int64_t backward = peak_bytes[IN_BACKWARD][at] - saved_bytes[IN_BACKWARD];
  return forward > backward ? forward : backward;
}

/* Every way to go on from a choice at a boundary that stays under the limit. */
static void extend(const ChainCosts *costs, int64_t limit_bytes, Choices *at, int32_t block, int32_t which) {
  Choice choice = at[block].items[which];
  choice.before = which;
  choice.length = 0;
  if (peak_here(costs->kept_peak_bytes, block, choice.saved_bytes) <= limit_bytes)
    add(&at[block + 1], choice);
  for (int32_t last = block; last < costs->blocks; last++) {
    int32_t run = block * costs->blocks + last;
    if (peak_here(costs->run_peak_bytes, run, choice.saved_bytes) > limit_bytes) continue;
    Choice longer = choice;
    longer.length = last - block + 1;
    longer.flops += costs->run_flops[run];
    for (int pass = 0; pass < CHAIN_PASSES; pass++)
      longer.saved_bytes[pass] += costs->run_saved_bytes[pass][run];
    add(&at[last + 1], longer);
  }
}

/* The peak of a plan whose runs are known. */
static int64_t peak_of(const ChainCosts *costs, const int32_t *length) {
  int64_t peak_bytes = 0, saved_bytes[CHAIN_PASSES] = {0};
  for (int32_t block = 0; block < costs->blocks; block += length[block] ? length[block] : 1) {
    int32_t run = block * costs->blocks + block + length[block] - 1;
    int64_t here = length[block] ? peak_here(costs->run_peak_bytes, run, saved_bytes)
                                 : peak_here(costs->kept_peak_bytes, block, saved_bytes);
    if (here > peak_bytes) peak_bytes = here;
    for (int pass = 0; pass < CHAIN_PASSES && length[block]; pass++)
      saved_bytes[pass] += costs->run_saved_bytes[pass][run];
  }
  return peak_bytes;
}

bool optimization_cheapest_runs(const ChainCosts *costs, int64_t limit_bytes, ChainPlan *plan) {
  int32_t blocks = costs->blocks;
  Choices *at = vl_allocate(((size_t)blocks + 1) * sizeof *at);
  add(&at[0], (Choice){0});
  for (int32_t block = 0; block < blocks; block++) {
    prune(&at[block]);
    for (int32_t i = 0; i < at[block].count; i++)
      extend(costs, limit_bytes, at, block, i);
  }
  prune(&at[blocks]);
  bool found = at[blocks].count > 0;
  if (found) {
    memset(plan->length, 0, (size_t)blocks * sizeof *plan->length);
    plan->flops = at[blocks].items[0].flops;
    for (int32_t end = blocks, which = 0; end > 0;) {
      const Choice *choice = &at[end].items[which];
      end -= choice->length ? choice->length : 1;
      plan->length[end] = choice->length;
      which = choice->before;
    }
    plan->peak_bytes = peak_of(costs, plan->length);
  }
  for (int32_t block = 0; block <= blocks; block++)
    free(at[block].items);
  free(at);
  return found;
}

/* ---- The budget --------------------------------------------------------------------------------------------------- */

/* The plan as a value of checkpoint: neighbours of one length together. */
static Status write_value(const ChainPlan *plan, int32_t blocks, char value[VL_RECIPE_VALUE_BYTES]) {
  size_t used = 0;
  for (int32_t block = 0; block < blocks && used < VL_RECIPE_VALUE_BYTES;) {
    int32_t length = plan->length[block], first = block + 1;
    if (length == 0) {
      block++;
      continue;
    }
    while (block < blocks && plan->length[block] == length)
      block += length;
    used += (size_t)snprintf(value + used, VL_RECIPE_VALUE_BYTES - used, "%s%d", used ? "," : "runs:", first);
    if (block > first && used < VL_RECIPE_VALUE_BYTES)
      used += (size_t)snprintf(value + used, VL_RECIPE_VALUE_BYTES - used, "-%d", block);
    if (block - first + 1 > length && used < VL_RECIPE_VALUE_BYTES)
      used += (size_t)snprintf(value + used, VL_RECIPE_VALUE_BYTES - used, "/%d", length);
  }
  if (used == 0) snprintf(value, VL_RECIPE_VALUE_BYTES, "segments:1"); /* nothing is recomputed */
  if (used < VL_RECIPE_VALUE_BYTES) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "checkpoint=auto: what it chose for %d blocks is longer than %d characters",
                  blocks, VL_RECIPE_VALUE_BYTES - 1);
}

/* The choices worth having, from cheapest to leanest: by the limit that gives each. */
static int64_t *find_limits(const ChainCosts *costs, ChainPlan *plan, int32_t *count) {
  int64_t *limits = NULL, flops = -1;
  int32_t capacity = 0;
  *count = 0;
  for (int64_t limit = INT64_MAX; optimization_cheapest_runs(costs, limit, plan);
       limit = plan->peak_bytes - 1) {
    if (*count == capacity) {
      capacity = capacity ? 2 * capacity : 64;
      limits = vl_reallocate(limits, (size_t)capacity * sizeof *limits);
    }
    *count -= plan->flops == flops; /* as cheap as the one before, and leaner */
    flops = plan->flops;
    limits[(*count)++] = limit;
  }
  return limits;
}

typedef struct Search {
  const ChainCosts *costs;
  const Target *target;
  ChainPlan plan;
  char value[VL_RECIPE_VALUE_BYTES];
} Search;

/* Makes the choice of a limit the search's own; what it needs. */
static Status ask(Search *search, int64_t limit_bytes, int64_t *needed_bytes) {
  const Target *target = search->target;
  bool found = optimization_cheapest_runs(search->costs, limit_bytes, &search->plan);
  if (!found) return vl_error(VL_INTERNAL, "checkpoint=auto: a choice that was there is gone");
  VL_TRY(write_value(&search->plan, search->costs->blocks, search->value));
  *needed_bytes = search->plan.peak_bytes;
  return target->needed ? target->needed(target->context, "checkpoint", search->value, needed_bytes)
                        : vl_ok();
}

/* The cheapest choice that needs no more than the budget. Needs fall from choice to choice, but for the
 * rounding of blocks: bisected. */
static Status meet(Search *search, int64_t budget_bytes, const int64_t *limits, int32_t count) {
  int64_t needed_bytes;
  int32_t low = 0, high = count - 1; /* high fits */
  VL_TRY(ask(search, limits[high], &needed_bytes));
  if (needed_bytes > budget_bytes && search->target->unlimited) return vl_ok();
  if (needed_bytes > budget_bytes) {
    char least[32], budget[32];
    vl_format_bytes(needed_bytes, least, sizeof least);
    vl_format_bytes(budget_bytes, budget, sizeof budget);
    return vl_error(VL_OUT_OF_MEMORY,
                    "checkpoint=auto: the leanest choice, %s, needs %lld bytes (%s), the budget is %lld (%s)",
                    search->value, (long long)needed_bytes, least, (long long)budget_bytes, budget);
  }
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    VL_TRY(ask(search, limits[middle], &needed_bytes));
    if (needed_bytes <= budget_bytes)
      high = middle;
    else
      low = middle + 1;
  }
  return ask(search, limits[high], &needed_bytes);
}

static void take(Program *program, const ChainPlan *plan, const char *value) {
  Graph *graph = program->graph;
  int32_t *run_of_block = vl_allocate(((size_t)graph->block_count + 1) * sizeof *run_of_block);
  int32_t *run = vl_allocate(((size_t)graph->node_count + 1) * sizeof *run);
  int32_t runs = 0;
  for (int32_t block = 0; block < graph->block_count; block++) {
    runs += plan->length[block] > 0;
    for (int32_t i = 0; i < plan->length[block]; i++)
      run_of_block[block + i + 1] = runs;
  }
  for (int32_t i = 0; i < graph->node_count; i++)
    run[i] = run_of_block[graph->nodes[i]->block];
  optimization_drop_runs(graph, run);
  program->checkpoint_chosen = vl_arena_copy_text(graph->arena, value);
  free(run_of_block);
  free(run);
}

Status optimization_checkpoint_auto(Program *program, int64_t budget_bytes, const Target *target) {
  if (budget_bytes <= 0) budget_bytes = target->capacity_bytes;
  if (budget_bytes <= 0)
    return vl_error(VL_INVALID, "checkpoint=auto needs a capacity (--capacity 16GiB) or a budget of its own "
                                "(checkpoint=auto:16GiB)");
  ChainCosts costs;
  Search search = {.costs = &costs, .target = target};
  Status status = optimization_chain_costs(program, &costs);
  if (status.code == VL_OK) {
    int32_t count;
    search.plan.length = vl_allocate(((size_t)costs.blocks + 1) * sizeof *search.plan.length);
    int64_t *limits = find_limits(&costs, &search.plan, &count);
    status = meet(&search, budget_bytes, limits, count);
    if (status.code == VL_OK) take(program, &search.plan, search.value);
    free(limits);
    free(search.plan.length);
  }
  optimization_chain_costs_free(&costs);
  return status;
}
