#include "harness/report_process.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The environment with every locale variable replaced by LC_ALL=C: a child must write numbers with a point
 * whatever the user's language. */
static char **environment_in_c(void) {
  size_t count = 0;
  while (environ[count] != NULL)
    count++;
  char **copy = vl_allocate(sizeof(char *) * (count + 2));
  size_t kept = 0;
  for (size_t i = 0; i < count; i++)
    if (strncmp(environ[i], "LC_", 3) != 0 && strncmp(environ[i], "LANG", 4) != 0) copy[kept++] = environ[i];
  static char c_locale[] = "LC_ALL=C";
  copy[kept] = c_locale;
  return copy;
}

static void read_back(FILE *file, char *text, size_t size) {
  if (text == NULL || size == 0) return;
  rewind(file);
  size_t bytes = fread(text, 1, size - 1, file);
  text[bytes] = '\0';
}

static Status spawn(const char *const *argv, const char *directory, FILE *out, FILE *err, int *exit_code) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none;
  sigemptyset(&none);
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  /* The caller may have signals blocked; the child must be stoppable. */
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", 0, 0);
  posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(err), STDERR_FILENO);
  if (directory != NULL) posix_spawn_file_actions_addchdir_np(&actions, directory);
  char **environment = environment_in_c();
  pid_t child = 0;
  int failed = posix_spawnp(&child, argv[0], &actions, &attributes, (char *const *)argv, environment);
  free(environment);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return vl_error(VL_ENVIRONMENT, "cannot start %s: %s", argv[0], strerror(failed));
  int state = 0;
  while (waitpid(child, &state, 0) < 0)
    if (errno != EINTR) return vl_error(VL_ENVIRONMENT, "lost %s: %s", argv[0], strerror(errno));
  *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return vl_ok();
}

Status vl_process_run(const char *const *argv, const char *directory, char *out, size_t out_size, char *err,
                      size_t err_size, int *exit_code) {
  FILE *out_file = tmpfile(), *err_file = tmpfile();
  Status status = vl_ok();
  if (out_file == NULL || err_file == NULL)
    status = vl_error(VL_ENVIRONMENT, "no temporary file for what %s writes: %s", argv[0], strerror(errno));
  if (status.code == VL_OK) status = spawn(argv, directory, out_file, err_file, exit_code);
  if (status.code == VL_OK) {
    read_back(out_file, out, out_size);
    read_back(err_file, err, err_size);
  }
  if (out_file != NULL) fclose(out_file);
  if (err_file != NULL) fclose(err_file);
  return status;
}
