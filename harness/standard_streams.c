/* Standard input, output and error: always open, so that no file of ours takes their numbers and nothing
 * meant for a person lands in it; and what could not be printed is told, not lost. */
#include "harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each closed one becomes a file that refuses what its number is for. */
static void open_closed_ones(void) {
  static const int contrary[] = {O_WRONLY, O_RDONLY, O_RDONLY};
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++)
    if (fcntl(file, F_GETFD) < 0 && errno == EBADF && open("/dev/null", contrary[file]) != file)
      _exit(vl_status_exit_code(VL_ENVIRONMENT));
}

static void finish_output(int exit_code, void *unused) {
  (void)unused;
  bool failed = ferror(stdout) != 0;
  errno = 0;
  if (fflush(stdout) == 0 && !failed) return;
  int problem = errno; /* 0: an earlier write failed */
  fprintf(stderr, "vramlab: cannot write all of the standard output%s%s\n", problem ? ": " : "",
          problem ? strerror(problem) : "");
  _exit(exit_code != 0 ? exit_code : vl_status_exit_code(VL_ENVIRONMENT));
}

void vl_standard_streams(void) {
  open_closed_ones();
  /* A reader that has gone has seen enough: the end, silently, whoever started us with the signal ignored. */
  signal(SIGPIPE, SIG_DFL);
  on_exit(finish_output, NULL);
}
