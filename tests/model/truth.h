/* A model's golden values beside the same step on the reference device: what its tests compare with. Failures
 * end the running cmocka test. */
#ifndef VRAMLAB_TESTS_MODEL_TRUTH_H
#define VRAMLAB_TESTS_MODEL_TRUTH_H

#include "tests/model/golden.h"
#include "tests/model/step.h"

struct CMUnitTest;

typedef struct Truth {
  const char *name; /* of the golden file, tests/goldens/<name>.json */
  StepSpec spec;    /* case and settings; batch and seed are the golden file's */
  Golden golden;
  StepRecord reference; /* GOLDEN_STEPS steps without a recipe, in double */
} Truth;

/* How far a record's gradients and statistics are from the truth, beside PyTorch's own. */
typedef struct TruthErrors {
  double worst_gradient, worst_statistic, loss;
  double worst_ratio; /* ours over PyTorch's, or over one unit of the type where that is more; gradients */
  const char *worst_name, *worst_ratio_name;
} TruthErrors;

/* What main is: runs the tests of the graph, the first `graph_count`, and those of a device, by default the
 * cpu; where the first argument names one, only the latter. Returns the exit code, 77 where the machine does
 * not offer the device. */
int truth_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count,
               size_t graph_count, int (*load)(void **state), int (*clear)(void **state));

void truth_load(Truth *truth);
void truth_clear(Truth *truth);
/* The graph is the model: parameters, and every gradient and statistic of the reference step to 1e-9. */
void truth_check_graph(const Truth *truth, int64_t parameters);
/* The losses of GOLDEN_STEPS optimizer steps on the reference device, to 1e-9. */
void truth_check_trajectory(const Truth *truth);
/* In double nothing hides behind rounding, and casts do nothing: a recipe that keeps results keeps every bit.
 */
void truth_check_every_bit(const Truth *truth, const char *recipe);
/* One step on the device, in f32 or with amp=bf16 in the recipe. */
TruthErrors truth_run(const Truth *truth, const char *recipe);

#endif
