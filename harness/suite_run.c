#include "harness/suite_run.h"
#include "harness/claims.h"
#include "harness/columns.h"
#include "harness/machine.h"
#include "harness/progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Places ---------------------------------------------------------------------------------------------------- */

void vl_default_directory(const char *suite, char *path, size_t size) {
  char utc[32], host[256];
  vl_utc_text(utc, sizeof utc);
  /* Without the punctuation that some file systems refuse. */
  char *to = utc;
  for (const char *from = utc; *from; from++)
    if (*from != '-' && *from != ':') *to++ = *from;
  *to = '\0';
  vl_host_name(host, sizeof host);
  for (int again = 1;; again++) {
    char suffix[16] = "";
    if (again > 1) snprintf(suffix, sizeof suffix, "-%d", again);
    snprintf(path, size, "vramlab-results/%s/%s-%s%s", suite, utc, host, suffix);
    if (access(path, F_OK) != 0) return;
  }
}

/* A symbolic link that is there at any moment, old or new. */
static Status point(const char *link, const char *target) {
  char temporary[512];
  snprintf(temporary, sizeof temporary, "%s.%ld.tmp", link, (long)getpid());
  unlink(temporary);
  if (symlink(target, temporary) == 0 && rename(temporary, link) == 0) return vl_ok();
  Status status = vl_error(VL_ENVIRONMENT, "cannot make the link %s: %s", link, strerror(errno));
  unlink(temporary);
  return status;
}

Status vl_mark_latest(const char *suite, const char *directory) {
  char link[300], target[600];
  const char *name = strrchr(directory, '/') + 1;
  snprintf(link, sizeof link, "vramlab-results/%s/latest", suite);
  VL_TRY(point(link, name));
  snprintf(target, sizeof target, "%s/%s", suite, name);
  return point("vramlab-results/latest", target);
}

/* ---- Room ------------------------------------------------------------------------------------------------------ */

Status vl_check_room(Runner *runner, const SuiteCell *cell, bool *fits, char *reason, size_t size) {
  *fits = true;
  if (strcmp(cell->spec.device, "cpu") != 0) return vl_ok();
  SuiteCell planned = *cell;
  snprintf(planned.spec.device, sizeof planned.spec.device, "plan");
  planned.spec.data[0] = planned.spec.load_state[0] = planned.spec.save_state[0] = '\0';
  planned.spec.timeline = planned.spec.monitor = planned.spec.cross_check = planned.spec.diagnose = false;
  planned.spec.inject[0] = '\0';
  json_t *record;
  VL_TRY(vl_runner_cell(runner, &planned, &record, NULL, NULL));
  /* A cell that meets its capacity holds what it reached then. */
  int64_t needed = vl_record_integer(record, "needed_bytes"),
          reserved = vl_record_integer(record, "peak_reserved_bytes");
  if (needed < reserved) needed = reserved;
  int64_t available = vl_machine_available_bytes();
  if (needed > available && available >= 0) {
    char needed_text[32], available_text[32];
    *fits = false;
    vl_format_bytes(needed, needed_text, sizeof needed_text);
    vl_format_bytes(available, available_text, sizeof available_text);
    snprintf(reason, size, "needs %lld bytes (%s, predicted) and the machine has %lld bytes (%s) available",
             (long long)needed, needed_text, (long long)available, available_text);
  }
  json_decref(record);
  return vl_ok();
}

/* ---- Cells ------------------------------------------------------------------------------------------------------ */

static bool has_failed(const json_t *record) {
  const char *status = vl_record_text(record, "status");
  return !status || strcmp(status, "timeout") == 0 || strcmp(status, "crashed") == 0 ||
         strcmp(status, "diverged") == 0;
}

static bool was_skipped(const json_t *record) {
  const char *status = vl_record_text(record, "status");
  return status && strcmp(status, "skipped") == 0;
}

static bool must_run(const SuiteCell *cell, const Store *store, const SuiteRunOptions *options) {
  char key[17];
  vl_cell_key(cell, key);
  const json_t *record = vl_store_find(store, key);
  return !record || (options->rerun_failed && (has_failed(record) || was_skipped(record)));
}

/* One cell to its record, whatever happens short of a request to stop. */
static Status run_cell(Runner *runner, const SuiteCell *cell, json_t **record, TimelineEvent **events,
                       int64_t *event_count) {
  bool fits;
  char reason[256];
  if (cell->max_batch) return vl_runner_max_batch(runner, cell, record);
  VL_TRY(vl_check_room(runner, cell, &fits, reason, sizeof reason));
  if (fits) return vl_runner_cell(runner, cell, record, events, event_count);
  *record = vl_record_create_failure(cell, "skipped", reason);
  return vl_ok();
}

/* A device that is not here skips its cells; the rest of the suite goes on. */
static Status run_or_skip(Runner *runner, const SuiteCell *cell, json_t **record, TimelineEvent **events,
                          int64_t *event_count) {
  *events = NULL;
  *event_count = 0;
  Status status = run_cell(runner, cell, record, events, event_count);
  const char *instead = status.code == VL_ENVIRONMENT   ? "skipped"
                        : status.code == VL_UNSUPPORTED ? "unsupported"
                        : status.code == VL_INTERNAL    ? "crashed"
                                                        : NULL;
  if (!instead) return status;
  *record = vl_record_create_failure(cell, instead, status.message);
  return vl_ok();
}

/* claims: hashes of the claims this suite decides, so that a verdict can say whether a region changed since.
 */
static void name_suite(json_t *record, const Suite *suite, json_t *claims) {
  json_t *reasons = json_object_get(record, "null_reasons");
  json_object_set_new(record, "suite", json_string(suite->name));
  json_object_set_new(record, "suite_sha256", json_string(suite->sha256));
  json_object_set(record, "claims", claims);
  json_object_del(reasons, "suite");
  json_object_del(reasons, "suite_sha256");
}

/* What all cells of a suite share while it runs. */
typedef struct Job {
  Runner *runner;
  const Suite *suite;
  json_t *claims;
  Store *store;
  Progress *progress;
} Job;

static Status run_and_store(const Job *job, const SuiteCell *cell) {
  json_t *record;
  TimelineEvent *events;
  int64_t event_count;
  vl_progress_begin(job->progress, cell);
  VL_TRY(run_or_skip(job->runner, cell, &record, &events, &event_count));
  name_suite(record, job->suite, job->claims);
  int64_t op_count;
  const OpRecord *ops = vl_runner_ops(job->runner, &op_count);
  Status status =
      vl_store_append_step(job->store, record, events, event_count, ops, event_count > 0 ? op_count : 0);
  if (status.code == VL_OK) vl_progress_end(job->progress, record); /* done is what is stored */
  json_decref(record);
  free(events);
  return status;
}

static Status run_wanted(const Job *job, const bool *wanted) {
  for (int64_t i = 0; i < job->suite->cell_count; i++) {
    if (!wanted[i]) continue;
    if (vl_runner_stop_requested(job->runner))
      return vl_error(VL_INTERRUPTED, "stopped after %lld of %lld cells", (long long)job->progress->done,
                      (long long)job->progress->total);
    VL_TRY(run_and_store(job, &job->suite->cells[i]));
  }
  return vl_ok();
}

/* Whether there are any. */
static bool want_disturbed(const Job *job, bool *wanted) {
  bool any = false;
  for (int64_t i = 0; i < job->suite->cell_count; i++) {
    char key[17];
    vl_cell_key(&job->suite->cells[i], key);
    const json_t *record = vl_store_find(job->store, key);
    wanted[i] = record && vl_record_text(record, "disturbed");
    if (wanted[i]) vl_progress_expect(job->progress, &job->suite->cells[i]);
    any = any || wanted[i];
  }
  return any;
}

static void count_cells(const SuiteCell *cells, int64_t count, const Store *store, SuiteRunCounts *counts) {
  for (int64_t i = 0; i < count; i++) {
    char key[17];
    vl_cell_key(&cells[i], key);
    const json_t *record = vl_store_find(store, key);
    counts->failed += record && has_failed(record);
    counts->skipped += record && was_skipped(record);
  }
}

Status vl_suite_run(const Suite *suite, Store *store, const SuiteRunOptions *options,
                    SuiteRunCounts *counts) {
  const SuiteCell *cells = suite->cells;
  int64_t count = suite->cell_count;
  Progress progress;
  Runner *runner;
  json_t *claims;
  *counts = (SuiteRunCounts){.cells = count};
  VL_TRY(vl_claims_hashes(NULL, suite->name, &claims));
  vl_progress_start(&progress, options->quiet);
  bool *wanted = vl_allocate((size_t)count + 1);
  for (int64_t i = 0; i < count; i++) {
    wanted[i] = must_run(&cells[i], store, options);
    if (wanted[i])
      vl_progress_expect(&progress, &cells[i]);
    else
      counts->already_there++;
  }
  vl_progress_publish(&progress, vl_store_path(store), suite->name, counts->already_there);
  RunnerOptions runner_options = {.step_done = vl_progress_step, .context = &progress};
  Status status = vl_runner_create(&runner_options, &runner);
  Job job = {runner, suite, claims, store, &progress};
  if (status.code == VL_OK) status = run_wanted(&job, wanted);
  for (int64_t i = 0; i < options->retries && status.code == VL_OK && want_disturbed(&job, wanted); i++)
    status = run_wanted(&job, wanted);
  vl_runner_destroy(&runner);
  vl_progress_finish(&progress, &status);
  json_decref(claims);
  free(wanted);
  counts->ran = progress.done;
  count_cells(cells, count, store, counts);
  return status;
}
