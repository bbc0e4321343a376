#include "tests/engine/learn.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGUMENTS = 12 };

bool learn_script(const char *python, const char *script, const char *const *arguments) {
  char path[512];
  const char *all[MAX_ARGUMENTS + 4] = {python, "-B", path};
  snprintf(path, sizeof path, "%s/scripts/data/%s", VRAMLAB_SOURCE_DIR, script);
  for (int32_t i = 0; arguments[i] && i < MAX_ARGUMENTS; i++)
    all[i + 3] = arguments[i];
  pid_t child = fork();
  if (child == 0) {
    execvp(python, (char *const *)(uintptr_t)all);
    _exit(127);
  }
  int status = -1;
  bool ran = child > 0 && waitpid(child, &status, 0) == child;
  if (ran && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  fprintf(stderr,
          "skipped: scripts/data/%s did not make its file (scripts/peers/setup installs what it needs)\n",
          script);
  return false;
}

static void show_step(void *context, int32_t step, int32_t total, const StepResult *result) {
  (void)context;
  if (step % 50 == 0 || step == total)
    fprintf(stderr, "step %d of %d: loss %.4f\n", step, total, result->loss);
}

int learn_run(const CellSpec *spec, CellResult *result) {
  CellObserver observer = {.step_done = show_step};
  Status status = vl_cell_run(spec, &observer, result);
  if (status.code == VL_ENVIRONMENT) {
    fprintf(stderr, "skipped: %s\n", status.message);
    return LEARN_SKIPPED;
  }
  if (status.code == VL_OK && strcmp(result->status, "ok") == 0) return 0;
  printf("%s%s\n", status.message, result->error);
  return 1;
}
