/* What compare.c, trial.c and variants.c share: one node, and the ways to run it. */
#ifndef VRAMLAB_TESTS_KERNELS_TRIAL_H
#define VRAMLAB_TESTS_KERNELS_TRIAL_H

#include "tests/kernels/compare.h"

/* How a node is run once. */
typedef struct Variant {
  LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  int32_t inplace[VL_MAX_OUTPUTS]; /* the input whose buffer the output takes; -1: none */
} Variant;

/* Everything about a node that does not depend on the variant. */
typedef struct Trial {
  const Subject *subject;
  const Node *node;
  const LaunchContext *context;
  double *inputs[VL_MAX_INPUTS]; /* rounded to their dtypes */
  void *typed[VL_MAX_INPUTS];    /* the same in their dtypes, dense */
  double *expected[VL_MAX_OUTPUTS];
  double *bounds[VL_MAX_OUTPUTS];
} Trial;

enum { MAX_VARIANTS = 48 };

typedef struct Variants {
  Variant list[MAX_VARIANTS];
  int32_t count;
} Variants;

/* Every way the device resolves for plain, free and blocked operands, and in place where the op allows that.
 */
Status variants_find(const Subject *subject, const Node *node, Variants *variants) VL_CHECKED;
/* "nChw16c plain -> nChw16c, output 0 over input 0" */
void variant_describe(const Subject *subject, const Node *node, const Variant *variant, char *text,
                      size_t size);
/* Runs the node once and compares. */
Status trial_run(const Trial *trial, const Variant *variant, CompareTotals *totals) VL_CHECKED;

#endif
