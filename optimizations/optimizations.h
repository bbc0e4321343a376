/* optimizations: passes over a Program, one file each, and recipes, which list them. Knows only graph. */
#ifndef VRAMLAB_OPTIMIZATIONS_H
#define VRAMLAB_OPTIMIZATIONS_H

#include "graph/graph.h"

/* When a pass runs; composed in this order however a recipe is written. Differentiation comes between
 * precision and backward. */
typedef enum Phase {
  PHASE_CASE = 0,
  PHASE_GRAPH,
  PHASE_SHARD,
  PHASE_PRECISION,
  PHASE_BACKWARD,
  PHASE_SCHEDULE,
  PHASE_POLICY
} Phase;
const char *vl_phase_name(Phase phase);

/* What a pass promises about loss, gradients, statistics and weights against the baseline. */
typedef enum Preserves { PRESERVES_BITWISE = 0, PRESERVES_TOLERANCE, PRESERVES_DIFFERENT_MODEL } Preserves;
const char *vl_preserves_name(Preserves preserves);

/* What a recipe is to run on. */
typedef struct Target {
  int64_t capacity_bytes; /* 0: no limit */
  int32_t ranks;          /* 1 */
  bool unlimited;         /* what needs more than the capacity is wanted too, to tell how much */
  /* The peak query: what the program needs with another value of the recipe's `key`, as decided at the end:
   * with layouts, workspaces and the allocator's rounding. NULL: nobody can tell. */
  Status (*needed)(void *context, const char *key, const char *value, int64_t *bytes);
  void *context;
} Target;

struct Recipe;

/* One optimization: the key of a recipe. */
typedef struct Optimization {
  const char *name;
  const char *also_called; /* comma-separated synonyms, found by `list` */
  /* What to write in PyTorch: Python that scripts/peers/turn_on.py runs, with the names it lists; or "no
   * equivalent" and why. */
  const char *turn_on;
  const char *values; /* accepted values, for messages: "k (blocks per segment, 1..n)" */
  const char *help;   /* one line */
  Phase phase;
  Preserves preserves;
  const char *case_argument; /* PHASE_CASE: the argument of the case that the value is for */
  bool mistake;              /* what people do wrong, made to be measured: never advice */
  /* Why it has no place in inference, or in training; NULL: it has. */
  const char *training_only, *inference_only;
  /* VL_INVALID when the value is not accepted, VL_UNSUPPORTED with the reason when this program or the
   * recipe's other keys exclude it; changes nothing. `recipe` is the whole recipe. */
  Status (*check)(const Program *program, const char *value, const struct Recipe *recipe);
  Status (*apply)(Program *program, const char *value, const Target *target);
  /* Optional: what the pass has to do with the gradients of a training program. Called right after
   * differentiation, whatever the phase, before anything is in place. */
  Status (*apply_to_gradients)(Program *program, const char *value, const Target *target);
  /* Optional: what it promises of this program, where that depends on it. */
  Preserves (*preserves_in)(const Program *program, const char *value);
} Optimization;

const Optimization *vl_optimization_find(const char *name); /* by name only */
const Optimization *const *vl_optimization_all(int32_t *count);

enum { VL_MAX_RECIPE_ITEMS = 16, VL_RECIPE_VALUE_BYTES = 128 };

typedef struct RecipeItem {
  const Optimization *optimization;
  char value[VL_RECIPE_VALUE_BYTES];
} RecipeItem;

/* "amp=bf16 checkpoint=4": one entry per key, kept in canonical order (phase, then table). */
typedef struct Recipe {
  RecipeItem items[VL_MAX_RECIPE_ITEMS];
  int32_t count;
  bool stack_vramlab; /* stack=vramlab; default stack=pytorch */
} Recipe;

/* Parses a recipe; "" and "baseline" are the empty one. VL_INVALID names the key or value and the accepted
 * ones. stack=vramlab expands to our best with equal results: fuse=norm+bias-gelu, attention=fused,
 * dropout=redrawn, inplace=all, allocator=planned, in inference fold=norm, and so on. */
Status vl_recipe_parse(const char *text, Recipe *recipe) VL_CHECKED;
/* Canonical text: equal recipes give equal text, "stack=pytorch" is left out, empty is "baseline". */
void vl_recipe_format(const Recipe *recipe, char *text, size_t size);
/* The value of a key, NULL when the recipe does not have it. */
const char *vl_recipe_value(const Recipe *recipe, const char *key);
/* The weakest promise of its items: what the recipe's results are against the baseline. program: NULL when it
 * is not known, else one the recipe was applied to. */
Preserves vl_recipe_preserves(const Recipe *recipe, const Program *program);

/* VL_UNSUPPORTED, with the reason, when the recipe names what has no place in training, or in inference. What
 * stack=vramlab says anyway does not count. */
Status vl_recipe_check_mode(const Recipe *recipe, bool training) VL_CHECKED;
/* The recipe for evaluating with the State of a training program: without what derives weights of its own. */
void vl_recipe_for_evaluation(const Recipe *recipe, Recipe *evaluation);

/* Runs the recipe over a forward program in phase order, differentiating and adding updates in between
 * (training programs), and leaves it ready to be compiled by the engine. What has no place in a program of
 * its kind is left out. */
Status vl_recipe_apply(const Recipe *recipe, Program *program, const Target *target) VL_CHECKED;

/* ---- What theory says about checkpointing ---------------------------------------------------------------- */

/* A program as a chain of layers: its blocks, or its operators. */
typedef struct CheckpointChain {
  int32_t layers;
  double boundary_bytes; /* mean of what a layer makes that another reads */
  double inner_bytes;    /* mean of what a layer keeps for its backward when nothing is recomputed */
} CheckpointChain;
/* Of a training program; k* is vl_checkpoint_interval of the three. */
CheckpointChain vl_checkpoint_chain(const Program *program, bool operators);

/* Micro-batches of a step under the recipe: 1 when it does not accumulate, 0: accumulate=auto. */
int64_t vl_accumulate_count(const Recipe *recipe);
/* Of dynamic-batch. */
typedef struct DynamicBatch {
  bool bucketed;        /* all samples of a size together; else neighbours in the queue */
  int64_t budget_bytes; /* the most a batch may need; 0: the capacity */
} DynamicBatch;
/* False when the recipe has no dynamic-batch. */
bool vl_dynamic_batch(const Recipe *recipe, DynamicBatch *dynamic);
/* The item of a recipe that is a mistake; NULL: none is. */
const RecipeItem *vl_recipe_mistake(const Recipe *recipe);
/* What accumulate=count divides a step's samples into: micro-batches of so many, of which only the last may
 * have fewer (24 in 5: 5, 5, 5, 5, 4). VL_INVALID when some would be empty. */
Status vl_accumulate_micro_batch(int64_t samples, int64_t count, int64_t *micro_batch) VL_CHECKED;

#endif
