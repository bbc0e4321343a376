#include "harness/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t longest_death_ns = INT64_C(10) * 1000 * 1000 * 1000;
enum { LARGEST_MESSAGE = 1 << 30 };

/* ---- Starting ----------------------------------------------------------------------------------------------- */

static int spawn(const char *program, int input, int output, pid_t *pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  sigaddset(&usual, SIGINT);
  sigaddset(&usual, SIGTERM);
  sigaddset(&usual, SIGCHLD);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, VL_WORKER_OUTPUT);
  /* What a library prints there is no result. */
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  char name[] = "vramlab", command[] = "cell";
  char *arguments[] = {name, command, NULL};
  int problem = posix_spawn(pid, program, &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return problem;
}

/* Moves a descriptor out of the way of VL_WORKER_OUTPUT: dup2 onto itself would leave it closed on exec. */
static int above_standard(int file) {
  int moved = fcntl(file, F_DUPFD_CLOEXEC, VL_WORKER_OUTPUT + 1);
  close(file);
  return moved;
}

Status vl_child_start(const char *program, Child *child) {
  int input[2], output[2];
  *child = (Child){.input = -1, .output = -1};
  /* A socket, because writing to one whose reader is gone can be an error instead of a signal. */
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
    return vl_error(VL_ENVIRONMENT, "cannot make a socket: %s", strerror(errno));
  if (pipe2(output, O_CLOEXEC) != 0) {
    close(input[0]);
    close(input[1]);
    return vl_error(VL_ENVIRONMENT, "cannot make a pipe: %s", strerror(errno));
  }
  for (int i = 0; i < 2; i++) {
    input[i] = above_standard(input[i]);
    output[i] = above_standard(output[i]);
  }
  child->others = vl_own_children();
  int problem = spawn(program, input[1], output[1], &child->pid);
  close(input[1]);
  close(output[1]);
  if (problem != 0) {
    close(input[0]);
    close(output[0]);
    child->pid = 0;
    free(child->others.pids);
    return vl_error(VL_ENVIRONMENT, "cannot start %s: %s", program, strerror(problem));
  }
  child->input = input[0];
  child->output = output[0];
  fcntl(child->output, F_SETFL, O_NONBLOCK);
  return vl_ok();
}

/* ---- Talking --------------------------------------------------------------------------------------------------- */

Status vl_child_send(Child *child, const char *line) {
  size_t length = strlen(line);
  while (length > 0) {
    ssize_t sent = send(child->input, line, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return vl_error(VL_ENVIRONMENT, "the worker does not listen: %s", strerror(errno));
    line += sent;
    length -= (size_t)sent;
  }
  return vl_ok();
}

Status vl_child_receive(Child *child) {
  for (;;) {
    if (child->length + 1 >= child->room) {
      if (child->room >= LARGEST_MESSAGE)
        return vl_error(VL_INTERNAL, "the worker sent a message above 1 GiB");
      child->room = child->room ? 2 * child->room : (size_t)1 << 16;
      child->text = vl_reallocate(child->text, child->room);
    }
    ssize_t got = read(child->output, child->text + child->length, child->room - child->length - 1);
    if (got < 0 && errno == EINTR) continue;
    child->closed = got == 0;
    if (got <= 0) return vl_ok();
    child->length += (size_t)got;
  }
}

Status vl_child_take(Child *child, json_t **message) {
  *message = NULL;
  char *end = child->length ? memchr(child->text, '\n', child->length) : NULL;
  if (!end) return vl_ok();
  size_t length = (size_t)(end - child->text);
  json_error_t problem;
  *message = json_loadb(child->text, length, 0, &problem);
  child->length -= length + 1;
  memmove(child->text, end + 1, child->length);
  return *message ? vl_ok() : vl_error(VL_INTERNAL, "the worker sent what is not JSON: %s", problem.text);
}

/* ---- Ending ---------------------------------------------------------------------------------------------------- */

bool vl_child_has_ended(const Child *child) {
  siginfo_t information = {0};
  return waitid(P_PID, (id_t)child->pid, &information, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         information.si_pid == child->pid;
}

/* Waits in small pieces: SIGCHLD may be blocked, ignored or somebody else's to take. */
static void rest(void) { poll(NULL, 0, 2); }

/* Whoever is left of the group, once its leader has ended or has had its time. The leader is reaped last of
 * all by being unreaped until the signal is sent: its number cannot have gone to another group by then. */
static Status end_group(pid_t group, int *status) {
  kill(-group, SIGKILL);
  for (int64_t start = vl_monotonic_ns(); vl_monotonic_ns() - start < longest_death_ns;) {
    int ended_status;
    pid_t ended = waitpid(-group, &ended_status, WNOHANG);
    if (ended == group) *status = ended_status;
    if (ended < 0 && errno == ECHILD) return vl_ok();
    if (ended == 0) rest();
  }
  return vl_error(VL_ENVIRONMENT, "process group %ld cannot be ended", (long)group);
}

/* What left the group (a session of its own, as mpirun gives its ranks) came to us when its parent ended.
 * Each one's own children come after it. */
static Status end_orphans(const ProcessList *others) {
  for (int64_t start = vl_monotonic_ns(); vl_monotonic_ns() - start < longest_death_ns;) {
    ProcessList now = vl_own_children();
    int32_t found = 0, left = 0;
    for (int32_t i = 0; i < now.count; i++) {
      if (vl_process_is_among(others, now.pids[i])) continue;
      found++;
      kill(now.pids[i], SIGKILL);
      left += waitpid(now.pids[i], NULL, WNOHANG) == 0;
    }
    free(now.pids);
    if (found == 0) return vl_ok();
    if (left > 0) rest();
  }
  return vl_error(VL_ENVIRONMENT, "what a cell left behind cannot be ended");
}

Status vl_child_end(Child *child, bool asked, int64_t gentle_ns, int *status) {
  *status = 0;
  if (child->pid == 0) return vl_ok();
  /* End of input asks a worker to leave. */
  close(child->input);
  if (asked) kill(-child->pid, SIGTERM);
  int64_t start = vl_monotonic_ns();
  while (!vl_child_has_ended(child) && vl_monotonic_ns() - start < gentle_ns) {
    /* A worker that is still writing must be able to. */
    if (vl_child_receive(child).code != VL_OK) break;
    rest();
  }
  Status ended = end_group(child->pid, status);
  if (ended.code == VL_OK) ended = end_orphans(&child->others);
  close(child->output);
  free(child->others.pids);
  free(child->text);
  *child = (Child){.input = -1, .output = -1};
  return ended;
}
