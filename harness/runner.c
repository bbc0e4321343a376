/* The parent's side: sleeps in poll while a child works, so that measuring costs nothing, and classifies how
 * each cell ends. */
#include "harness/cell_json.h"
#include "harness/child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

struct Runner {
  RunnerOptions options;
  char program[32];
  int64_t grace_ns;
  int signals; /* signalfd of SIGINT, SIGTERM and SIGCHLD */
  sigset_t before;
  int was_subreaper;
  int32_t stops; /* times we were asked to stop */
  Child planner; /* the worker that plan cells share */
  OpRecord *ops; /* of the cell that ran last */
  int64_t op_count;
};

Status vl_runner_create(const RunnerOptions *options, Runner **runner) {
  Runner *created = vl_allocate(sizeof *created);
  created->options = *options;
  /* By this name the right file starts even when another was put in its place. */
  snprintf(created->program, sizeof created->program, "/proc/self/exe");
  created->grace_ns = (int64_t)((options->grace_s > 0 ? options->grace_s : 1.0) * 1e9);
  created->planner = (Child){.input = -1, .output = -1};
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGINT);
  sigaddset(&taken, SIGTERM);
  sigaddset(&taken, SIGCHLD);
  sigprocmask(SIG_BLOCK, &taken, &created->before);
  created->signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
  /* Orphans of a cell come to us, so that we can wait for them too. */
  prctl(PR_GET_CHILD_SUBREAPER, &created->was_subreaper);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  *runner = created;
  if (created->signals >= 0) return vl_ok();
  Status status = vl_error(VL_ENVIRONMENT, "cannot watch for signals: %s", strerror(errno));
  vl_runner_destroy(runner);
  return status;
}

/* Takes the signals that came. */
static void take_signals(Runner *runner) {
  struct signalfd_siginfo signal;
  while (read(runner->signals, &signal, sizeof signal) == sizeof signal)
    if (signal.ssi_signo != SIGCHLD) runner->stops++;
}

bool vl_runner_stop_requested(Runner *runner) {
  take_signals(runner);
  return runner->stops > 0;
}

void vl_runner_destroy(Runner **runner) {
  if (!*runner) return;
  Runner *ended = *runner;
  int status;
  Status end = vl_child_end(&ended->planner, false, ended->grace_ns, &status);
  if (end.code != VL_OK) fprintf(stderr, "vramlab: %s\n", end.message);
  if (ended->signals >= 0) {
    take_signals(ended); /* else they would arrive now */
    close(ended->signals);
  }
  prctl(PR_SET_CHILD_SUBREAPER, ended->was_subreaper);
  sigprocmask(SIG_SETMASK, &ended->before, NULL);
  free(ended->ops);
  free(ended);
  *runner = NULL;
}

/* ---- One cell --------------------------------------------------------------------------------------------------- */

typedef enum Ending { ENDING_RECORD = 0, ENDING_REFUSED, ENDING_GONE, ENDING_TIMEOUT, ENDING_STOPPED } Ending;

/* What came of a cell so far. */
typedef struct Outcome {
  json_t *record;
  TimelineEvent *events;
  int64_t event_count;
  OpRecord *ops;
  int64_t op_count;
  Status refusal;
} Outcome;

/* Takes the messages that are there. *ended: one of them ends the cell. */
static Status take_messages(Runner *runner, Child *child, Outcome *outcome, bool *ended) {
  json_t *message;
  *ended = false;
  VL_TRY(vl_child_receive(child));
  for (;;) {
    VL_TRY(vl_child_take(child, &message));
    if (!message) return vl_ok();
    const char *event = json_string_value(json_object_get(message, "event"));
    Status status = vl_ok();
    if (event && strcmp(event, "step") == 0 && runner->options.step_done) {
      runner->options.step_done(runner->options.context,
                                (int32_t)json_integer_value(json_object_get(message, "step")),
                                (int32_t)json_integer_value(json_object_get(message, "total")));
    } else if (event && strcmp(event, "timeline") == 0) {
      status =
          vl_timeline_from_json(json_object_get(message, "events"), &outcome->events, &outcome->event_count);
    } else if (event && strcmp(event, "ops") == 0) {
      status = vl_ops_from_json(json_object_get(message, "ops"), &outcome->ops, &outcome->op_count);
    } else if (event && strcmp(event, "record") == 0) {
      outcome->record = json_incref(json_object_get(message, "record"));
      *ended = true;
    } else if (event && strcmp(event, "refused") == 0) {
      outcome->refusal = vl_error((StatusCode)json_integer_value(json_object_get(message, "code")), "%s",
                                  json_string_value(json_object_get(message, "message")));
      *ended = true;
    }
    json_decref(message);
    if (status.code != VL_OK || *ended) return status;
  }
}

/* Milliseconds until a time, for poll; -1: for ever. */
static int wait_ms(int64_t deadline_ns) {
  if (deadline_ns == INT64_MAX) return -1;
  int64_t left = deadline_ns - vl_monotonic_ns();
  if (left <= 0) return 0;
  int64_t ms = (left + 999999) / 1000000;
  return ms < INT32_MAX ? (int)ms : INT32_MAX;
}

static Status wait_for_end(Runner *runner, Child *child, double timeout_s, Outcome *outcome, Ending *ending) {
  int64_t deadline = timeout_s > 0 ? vl_monotonic_ns() + (int64_t)(timeout_s * 1e9) : INT64_MAX;
  int32_t stops = runner->stops;
  for (;;) {
    bool ended;
    /* In this order: a death after the look wakes poll, and what was written before one is read. */
    take_signals(runner);
    bool gone = vl_child_has_ended(child);
    VL_TRY(take_messages(runner, child, outcome, &ended));
    if (runner->stops > stops && stops == 0 && runner->stops == 1)
      fprintf(stderr, "vramlab: finishing the current cell; once more to abandon it\n");
    stops = runner->stops;
    *ending = outcome->record ? ENDING_RECORD : ENDING_REFUSED;
    if (ended) return vl_ok();
    *ending = ENDING_GONE;
    if (gone) return vl_ok();
    *ending = ENDING_STOPPED;
    if (runner->stops >= 2) return vl_ok();
    *ending = ENDING_TIMEOUT;
    if (vl_monotonic_ns() >= deadline) return vl_ok();
    struct pollfd watched[] = {{.fd = runner->signals, .events = POLLIN},
                               {.fd = child->output, .events = POLLIN}};
    if (poll(watched, child->closed ? 1 : 2, wait_ms(deadline)) < 0 && errno != EINTR)
      return vl_error(VL_INTERNAL, "poll: %s", strerror(errno));
  }
}

/* The record of a child that went away without one. */
static json_t *crash_record(const SuiteCell *cell, int status) {
  char text[160];
  if (WIFSIGNALED(status))
    snprintf(text, sizeof text, "the cell's process died of signal %d (%s)", WTERMSIG(status),
             strsignal(WTERMSIG(status)));
  else
    snprintf(text, sizeof text, "the cell's process ended with exit code %d before it had a result",
             WEXITSTATUS(status));
  return vl_record_create_failure(cell, "crashed", text);
}

/* Ends what must end and makes the record of a cell that could not say how it ended. A worker that may go on
 * is left alone. */
static Status settle(Runner *runner, Child *child, bool shared, const SuiteCell *cell, Ending ending,
                     Outcome *outcome) {
  int status = 0;
  char text[120];
  bool answered = ending == ENDING_RECORD || ending == ENDING_REFUSED;
  if (answered && shared) return vl_ok();
  bool asked = ending == ENDING_TIMEOUT;
  VL_TRY(vl_child_end(child, asked, ending == ENDING_STOPPED ? 0 : runner->grace_ns, &status));
  if (ending == ENDING_GONE) outcome->record = crash_record(cell, status);
  if (ending == ENDING_TIMEOUT) {
    char limit[32];
    vl_format_seconds(cell->timeout_s, limit, sizeof limit);
    snprintf(text, sizeof text, "not finished after %s; it and all it started were ended", limit);
    outcome->record = vl_record_create_failure(cell, "timeout", text);
  }
  if (ending == ENDING_RECORD && WIFSIGNALED(status))
    fprintf(stderr, "vramlab: after its result, the cell's process died of signal %d (%s)\n",
            WTERMSIG(status), strsignal(WTERMSIG(status)));
  return vl_ok();
}

/* The planner when it listens, else a new child. */
static Status start_and_send(Runner *runner, Child *child, const SuiteCell *cell) {
  json_t *json = vl_cell_to_json(cell);
  char *text = vl_record_format(json);
  json_decref(json);
  if (!text) return vl_error(VL_INTERNAL, "the cell cannot be written as JSON");
  size_t length = strlen(text);
  text = vl_reallocate(text, length + 2);
  memcpy(text + length, "\n", 2);
  Status status = vl_ok();
  int ended_status;
  if (child->pid != 0 && vl_child_has_ended(child)) status = vl_child_end(child, false, 0, &ended_status);
  if (status.code == VL_OK && child->pid == 0)
    status = vl_child_start(runner->options.program ? runner->options.program : runner->program, child);
  /* One that does not listen has died, which is seen when its answer is waited for. */
  if (status.code == VL_OK && vl_child_send(child, text).code != VL_OK) child->closed = true;
  free(text);
  return status;
}

Status vl_runner_cell(Runner *runner, const SuiteCell *cell, json_t **record, TimelineEvent **events,
                      int64_t *event_count) {
  Outcome outcome = {.refusal = vl_ok()};
  Ending ending = ENDING_GONE;
  bool shared = strcmp(cell->spec.device, "plan") == 0;
  Child own = {.input = -1, .output = -1}, *child = shared ? &runner->planner : &own;
  *record = NULL;
  Status status = start_and_send(runner, child, cell);
  if (status.code == VL_OK) status = wait_for_end(runner, child, cell->timeout_s, &outcome, &ending);
  if (status.code != VL_OK) ending = ENDING_STOPPED;
  Status settled = settle(runner, child, shared, cell, ending, &outcome);
  if (status.code == VL_OK) status = settled;
  if (status.code == VL_OK && ending == ENDING_STOPPED)
    status = vl_error(VL_INTERRUPTED, "stopped; the cell that was running is not stored");
  if (status.code == VL_OK && ending == ENDING_REFUSED) status = outcome.refusal;
  free(runner->ops);
  runner->ops = outcome.ops;
  runner->op_count = outcome.op_count;
  if (status.code != VL_OK || !events) {
    free(outcome.events);
    outcome.events = NULL;
    outcome.event_count = 0;
  }
  if (status.code == VL_OK)
    *record = outcome.record;
  else
    json_decref(outcome.record);
  if (events) {
    *events = outcome.events;
    *event_count = outcome.event_count;
  }
  return status;
}

const OpRecord *vl_runner_ops(const Runner *runner, int64_t *count) {
  *count = runner->op_count;
  return runner->ops;
}
