/* A check of the training loop, not of the model: ResNet-50 at 32 x 32 learns handwritten digits from a data
 * file, and its evaluation graph reads at least 95 % of those it has not seen. Skipped where the file cannot
 * be made.
 *
 * usage: test_engine_digits PYTHON */
#include "tests/engine/learn.h"
#include <stdlib.h>
#include <unistd.h>

static int train(const char *path) {
  CellSpec spec;
  CellResult result;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=32");
  snprintf(spec.settings[1], sizeof spec.settings[1], "classes=10");
  spec.setting_count = 2;
  snprintf(spec.recipe, sizeof spec.recipe, "stack=vramlab");
  snprintf(spec.data, sizeof spec.data, "%s", path);
  spec.micro_batch = 32;
  spec.warmup = 1;
  spec.steps = 299;
  spec.learning_rate = 0.003;
  int code = learn_run(&spec, &result);
  if (code == 0) {
    printf("held-out accuracy %.4f (needs 0.95), loss %.4f\n", result.accuracy, result.held_out_loss);
    code = result.accuracy >= 0.95 ? 0 : 1;
  }
  vl_cell_result_clear(&result);
  return code;
}

int main(int argc, char **argv) {
  char directory[] = "/tmp/vramlab-digits-XXXXXX", path[64];
  if (!mkdtemp(directory)) return 1;
  snprintf(path, sizeof path, "%s/digits.h5", directory);
  const char *python = argc > 1 ? argv[1] : "python3";
  bool made = learn_script(python, "digits.py", (const char *[]){path, NULL});
  int code = made ? train(path) : LEARN_SKIPPED;
  unlink(path);
  rmdir(directory);
  return code;
}
