/* The child's side of the runner: one cell a line comes in, messages go out. A message is one JSON object a
 * line:
 *   {"event":"step","step":1,"total":6}
 *   {"event":"timeline","events":[...]}       only when asked for, before the record
 *   {"event":"ops","ops":[...]}               of that step
 *   {"event":"record","record":{...}}         ends the cell
 *   {"event":"refused","code":1,"message":""} ends the cell instead: the spec or the environment is at fault
 */
#include "harness/cell_json.h"
#include "harness/child.h"
#include "harness/columns.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Sends and frees a message; false when nobody reads any more. */
static bool send_message(int out, json_t *message) {
  char *line = vl_record_format(message);
  json_decref(message);
  if (!line) return false;
  size_t length = strlen(line) + 1, done = 0;
  line[length - 1] = '\n';
  while (done < length) {
    ssize_t written = write(out, line + done, length - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    done += (size_t)written;
  }
  free(line);
  return done == length;
}

static void step_done(void *context, int32_t step, int32_t total, const StepResult *result) {
  (void)result;
  const int *out = context;
  send_message(*out, json_pack("{ss si si}", "event", "step", "step", step, "total", total));
}

/* What a run that gave no result is stored as; NULL: it is refused instead. */
static const char *failure_status(StatusCode code) {
  switch (code) {
  case VL_OUT_OF_MEMORY: return "oom";
  case VL_UNSUPPORTED: return "unsupported";
  case VL_DIVERGED: return "diverged";
  case VL_INTERNAL: return "crashed";
  default: return NULL;
  }
}

static json_t *record_message(json_t *record) {
  return json_pack("{ss so}", "event", "record", "record", record);
}

static bool refuse(int out, Status status) {
  return send_message(out, json_pack("{ss si so}", "event", "refused", "code", (int)status.code, "message",
                                     vl_json_text(status.message)));
}

static bool serve_cell(const SuiteCell *cell, int out, CellRunFunction run) {
  CellObserver observer = {.step_done = step_done, .noise = vl_statistics_noise, .context = &out};
  CellResult *result = vl_allocate(sizeof *result);
  Status status = run(&cell->spec, &observer, result);
  bool heard = true;
  if (status.code == VL_OK) {
    if (result->timeline_count > 0)
      heard = send_message(out, json_pack("{ss so}", "event", "timeline", "events",
                                          vl_timeline_to_json(result->timeline, result->timeline_count)));
    if (result->op_count > 0 && heard)
      heard = send_message(
          out, json_pack("{ss so}", "event", "ops", "ops", vl_ops_to_json(result->ops, result->op_count)));
    heard = heard && send_message(out, record_message(vl_record_create(cell, result)));
  } else if (failure_status(status.code)) {
    json_t *record = vl_record_create_failure(cell, failure_status(status.code), status.message);
    heard = send_message(out, record_message(record));
  } else {
    heard = refuse(out, status);
  }
  vl_cell_result_clear(result);
  free(result);
  return heard;
}

int vl_worker_serve(FILE *in, int out, CellRunFunction run) {
  /* A parent that is killed must not leave a cell running; nor may a grandchild keep the pipe open. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  fcntl(out, F_SETFD, FD_CLOEXEC);
  signal(SIGPIPE, SIG_IGN);
  char *line = NULL;
  size_t room = 0;
  bool heard = true;
  for (ssize_t length; heard && (length = getline(&line, &room, in)) > 0;) {
    json_t *json = json_loadb(line, (size_t)length, 0, NULL);
    SuiteCell cell;
    Status status = vl_cell_from_json(json, &cell);
    json_decref(json);
    heard = status.code == VL_OK ? serve_cell(&cell, out, run) : refuse(out, status);
  }
  free(line);
  return heard ? 0 : 3;
}
