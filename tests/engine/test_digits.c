/* A check of the training loop, not of the model: ResNet-50 at 32 x 32 learns handwritten digits from a data
 * file, and its evaluation graph reads at least 95 % of those it has not seen. Skipped where the file cannot
 * be made.
 *
 * usage: test_engine_digits PYTHON */
#include "engine/engine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs scripts/data/digits.py; false when it or what it imports is missing. */
static bool make_file(const char *python, const char *path) {
  pid_t child = fork();
  if (child == 0) {
    execlp(python, python, "-B", VRAMLAB_SOURCE_DIR "/scripts/data/digits.py", path, (char *)NULL);
    _exit(127);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void show_step(void *context, int32_t step, int32_t total, const StepResult *result) {
  (void)context;
  if (step % 50 == 0 || step == total)
    fprintf(stderr, "step %d of %d: loss %.4f\n", step, total, result->loss);
}

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
  CellObserver observer = {.step_done = show_step};
  Status status = vl_cell_run(&spec, &observer, &result);
  if (status.code == VL_ENVIRONMENT) {
    fprintf(stderr, "skipped: %s\n", status.message);
    return 77;
  }
  bool learned = status.code == VL_OK && strcmp(result.status, "ok") == 0 && result.accuracy >= 0.95;
  printf("%s%s: held-out accuracy %.4f (needs 0.95), loss %.4f at first, %.4f at the end\n", status.message,
         result.error, result.accuracy, result.loss_count ? result.losses[0] : (double)NAN,
         result.loss_count ? result.losses[result.loss_count - 1] : (double)NAN);
  vl_cell_result_clear(&result);
  return learned ? 0 : 1;
}

int main(int argc, char **argv) {
  char directory[] = "/tmp/vramlab-digits-XXXXXX", path[64];
  if (!mkdtemp(directory)) return 1;
  snprintf(path, sizeof path, "%s/digits.h5", directory);
  int code = 77;
  if (make_file(argc > 1 ? argv[1] : "python3", path)) {
    code = train(path);
  } else {
    fprintf(stderr, "skipped: scripts/data/digits.py needs scikit-learn and h5py (scripts/peers/setup)\n");
  }
  unlink(path);
  rmdir(directory);
  return code;
}
