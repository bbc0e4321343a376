/* fit: recipes from least to most intrusive until a job fits under a capacity. The global batch stays what it
 * is; everything is planned, nothing runs. */
#ifndef VRAMLAB_HARNESS_FIT_H
#define VRAMLAB_HARNESS_FIT_H

#include "harness/harness.h"

/* Which cards a step is for. What is not on a card on paper has bf16. */
typedef enum FitWhere { FIT_ANYWHERE = 0, FIT_WITH_BF16, FIT_WITHOUT_BF16 } FitWhere;

/* One step up: an item that joins the recipe that stands, in the place of another value of its key. */
typedef struct FitStep {
  const char *item;    /* "amp=bf16" */
  const char *turn_on; /* NULL: the optimization's own line */
  FitWhere where;
  const char *replaces; /* another key whose item goes; NULL: none */
  bool inference_only;  /* though its optimization is not */
} FitStep;
/* The ladder. A new optimization is a line in its table. */
const FitStep *vl_fit_ladder(int32_t *count);
/* What to write in PyTorch for a step. */
const char *vl_fit_turn_on(const FitStep *step);

typedef enum RungEnd {
  RUNG_FITS = 0,
  RUNG_TOO_LARGE,
  RUNG_NO_GAIN, /* needs no less than the recipe it joined: left out of what follows */
  RUNG_REFUSED  /* does not apply to this case or recipe: left out of what follows */
} RungEnd;
/* "fits", "too-large", "no-gain", "refused". */
const char *vl_rung_end_name(RungEnd end);

/* A recipe that was tried. Numbers are -1 when it was refused. */
typedef struct Rung {
  const FitStep *step;          /* NULL: the recipe to start from */
  char recipe[VL_RECIPE_BYTES]; /* canonical */
  RungEnd end;
  char reason[VL_STATUS_MESSAGE_BYTES]; /* why it was left out; "" when it was not */
  Preserves preserves;                  /* the recipe's results against the baseline */
  int64_t needed_bytes;                 /* under the capacity where it fits, else without one */
  int64_t needed_low_bytes;             /* a profile: at the lower ends of its intervals */
  int64_t flops_per_step, recompute_flops;
  int64_t parameters;
  char checkpoint_chosen[VL_RECIPE_VALUE_BYTES]; /* what checkpoint=auto stands for here; "" */
} Rung;

enum { VL_MAX_RUNGS = 32 };

typedef struct Fit {
  Rung rungs[VL_MAX_RUNGS];
  int32_t rung_count;
  int32_t answer;   /* the first that fits; -1: none does */
  int32_t leanest;  /* needs least */
  char device[128]; /* what was planned for: "plan:cpu (AMD EPYC)" */
} Fit;

/* Climbs from the recipe of `start` (device plan, its micro-batch the whole batch, a capacity), until a rung
 * fits or, with `all`, to the top; what gained nothing on the way is tried again there. An error of the start
 * is returned; a step that is refused is a rung. */
Status vl_fit_climb(Runner *runner, const SuiteCell *start, const FitStep *steps, int32_t step_count,
                    bool all, Fit *fit) VL_CHECKED;

/* The largest batch of a recipe. */
typedef struct FitBatch {
  char recipe[VL_RECIPE_BYTES];
  int64_t batch;      /* 0: not even one sample fits */
  int64_t accumulate; /* of a part: how many of them make the step, the last may be smaller */
  int64_t needed_bytes;
} FitBatch;
/* For when none fits. whole: the largest batch of the leanest rung, with what gained nothing where that makes
 * it larger. part: the step in the fewest micro-batches that fit, with what accumulation excludes left out of
 * the recipe; batch 0 when it cannot be. */
Status vl_fit_largest(Runner *runner, const SuiteCell *start, const Fit *fit, FitBatch *whole,
                      FitBatch *part) VL_CHECKED;

/* Extra operations for recomputation over those of the step without it; 0 when not known. */
double vl_rung_extra_flops(const Rung *rung);

#endif
