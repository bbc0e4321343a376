/* A 3D U-Net learns to tell the organs of phantoms apart: on those it has not seen, its Dice is above a level
 * that takes both organs to be found, with bf16 too, and the two are equal within a margin. The rate is
 * lowered at the end: what a step of the usual one moves Dice by is about the margin.
 *
 * usage: test_engine_phantoms */
#include "tests/engine/learn.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const double LEVEL = 0.95, MARGIN = 0.02;

/* `steps` steps on, from a state where one is saved already, to it; data: as many held out as are looked at.
 */
static int train(const char *recipe, const char *data, int32_t steps, double rate, const char *from,
                 const char *to, CellResult *result) {
  static const char *const settings[] = {"size=32", "depth=16"};
  CellSpec spec;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "unet3d");
  for (int32_t i = 0; i < 2; i++)
    snprintf(spec.settings[i], sizeof spec.settings[i], "%s", settings[i]);
  spec.setting_count = 2;
  snprintf(spec.recipe, sizeof spec.recipe, "%s", recipe);
  snprintf(spec.data, sizeof spec.data, "%s", data);
  snprintf(spec.load_state, sizeof spec.load_state, "%s", from);
  snprintf(spec.save_state, sizeof spec.save_state, "%s", to);
  spec.micro_batch = 2;
  spec.warmup = 1;
  spec.steps = steps - 1;
  spec.learning_rate = rate;
  return learn_run(&spec, result);
}

/* The mean Dice after both parts. */
static int learn(const char *recipe, double *dice) {
  char directory[] = "/tmp/vramlab-phantoms-XXXXXX", state[64];
  CellResult first, second = {0};
  if (!mkdtemp(directory)) return 1;
  snprintf(state, sizeof state, "%s/state", directory);
  int code = train(recipe, "phantoms:24+1", 240, 0.03, "", state, &first);
  if (code == 0) code = train(recipe, "phantoms:24+6", 60, 0.003, state, "", &second);
  *dice = second.dice_mean;
  if (code == 0)
    printf("%-24s held-out Dice %.4f (needs %.2f): %.4f and %.4f; loss %.4f\n", recipe, *dice, LEVEL,
           second.dice[1], second.dice[2], second.held_out_loss);
  vl_cell_result_clear(&first);
  vl_cell_result_clear(&second);
  unlink(state);
  rmdir(directory);
  return code;
}

int main(void) {
  double single, low;
  int code = learn("stack=vramlab", &single);
  if (code == 0) code = learn("stack=vramlab amp=bf16", &low);
  if (code != 0) return code;
  printf("they differ by %.4f (at most %.2f)\n", fabs(single - low), MARGIN);
  return single >= LEVEL && low >= LEVEL && fabs(single - low) <= MARGIN ? 0 : 1;
}
