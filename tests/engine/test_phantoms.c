/* A small 3D U-Net learns to tell the organs of phantoms apart: on those it has not seen its Dice is above a
 * level that a net which tells less cannot reach, and with bf16 the same within a margin.
 *
 * usage: test_engine_phantoms */
#include "tests/engine/learn.h"
#include <math.h>
#include <stdio.h>

/* What a run of 150 steps is above in fp32; the difference that bf16 may make. */
static const double LEVEL = 0.80, MARGIN = 0.05;

static int train(const char *recipe, double *dice) {
  CellSpec spec;
  CellResult result;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "unet3d");
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=32");
  snprintf(spec.settings[1], sizeof spec.settings[1], "classes=3");
  spec.setting_count = 2;
  snprintf(spec.recipe, sizeof spec.recipe, "%s", recipe);
  snprintf(spec.data, sizeof spec.data, "phantoms:24+6");
  spec.micro_batch = 2;
  spec.warmup = 1;
  spec.steps = 149;
  int code = learn_run(&spec, &result);
  *dice = result.dice_mean;
  if (code == 0)
    printf("%-28s held-out Dice %.4f (needs %.2f): %.4f, %.4f; loss %.4f\n", recipe, *dice, LEVEL,
           result.dice[1], result.dice[2], result.held_out_loss);
  vl_cell_result_clear(&result);
  return code;
}

int main(void) {
  double single, low;
  int code = train("stack=vramlab", &single);
  if (code == 0) code = train("stack=vramlab amp=bf16", &low);
  if (code != 0) return code;
  printf("they differ by %.4f (at most %.2f)\n", fabs(single - low), MARGIN);
  return single >= LEVEL && low >= LEVEL && fabs(single - low) <= MARGIN ? 0 : 1;
}
