#include "harness/progress.h"
#include "harness/cell_json.h"
#include "harness/columns.h"
#include "harness/options.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static const int64_t SECOND_NS = 1000000000;

static int kind_of(const SuiteCell *cell) { return strcmp(cell->spec.device, "plan") == 0; }

void vl_cell_label(const SuiteCell *cell, char *label, size_t size) {
  const CellSpec *spec = &cell->spec;
  char batch[48] = "", settings[VL_SETTINGS_BYTES], capacity[48] = "";
  int64_t accumulate = 1;
  Status status = vl_recipe_accumulate(spec->recipe, &accumulate);
  if (status.code != VL_OK || accumulate == 0) accumulate = 1; /* auto divides what the cell has */
  vl_settings_text(spec, settings);
  if (cell->max_batch)
    snprintf(batch, sizeof batch, "largest batch");
  else if (*spec->queue)
    snprintf(batch, sizeof batch, "queue %.36s%s", spec->queue, strlen(spec->queue) > 36 ? "..." : "");
  else
    snprintf(batch, sizeof batch, "batch %" PRId64,
             spec->global_batch > 0 ? spec->global_batch : spec->micro_batch * accumulate);
  if (spec->capacity_bytes > 0) {
    char bytes[32];
    vl_format_bytes(spec->capacity_bytes, bytes, sizeof bytes);
    snprintf(capacity, sizeof capacity, " in %s", bytes);
  }
  snprintf(label, size, "%s%s%s%s %s%s %s%s%s %s", spec->case_name, *settings ? " " : "", settings,
           spec->inference ? " inference" : "", batch, capacity, spec->device, *spec->profile ? ":" : "",
           spec->profile, *spec->recipe ? spec->recipe : "baseline");
}

void vl_step_time_text(const json_t *record, char *text, size_t size) {
  char median[32], interval[64] = "";
  double step_s = vl_record_real(record, "step_s"), low_s = vl_record_real(record, "step_s_low"),
         high_s = vl_record_real(record, "step_s_high");
  vl_format_seconds(step_s, median, sizeof median);
  if (isfinite(low_s) && isfinite(high_s))
    snprintf(interval, sizeof interval, " (%+.1f %% %+.1f %%)", 100 * (low_s / step_s - 1),
             100 * (high_s / step_s - 1));
  snprintf(text, size, "%s%s, median of %" PRId64, median, interval, vl_record_integer(record, "step_count"));
}

void vl_progress_start(Progress *progress, bool quiet) {
  *progress = (Progress){.quiet = quiet, .terminal = isatty(STDERR_FILENO)};
}

void vl_progress_expect(Progress *progress, const SuiteCell *cell) {
  progress->total++;
  progress->left[kind_of(cell)]++;
}

/* From the mean of those of its kind; NaN before the first. */
static double time_left_s(const Progress *progress) {
  double left = 0;
  for (int kind = 0; kind < 2; kind++) {
    if (progress->left[kind] == 0) continue;
    if (progress->finished[kind] == 0) return NAN;
    left += (double)progress->left[kind] * progress->spent_s[kind] / (double)progress->finished[kind];
  }
  return left;
}

static void print_left(const Progress *progress) {
  double left = time_left_s(progress);
  if (isnan(left) || progress->done == progress->total) return;
  char text[32];
  vl_format_seconds(left, text, sizeof text);
  fprintf(stderr, ", %s left", text);
}

/* ---- For another terminal -------------------------------------------------------------------------------------- */

static void publish(Progress *progress) {
  SuiteState *state = &progress->state;
  if (!progress->publish_to) return;
  state->total = progress->total;
  state->done = progress->done;
  state->left_s = time_left_s(progress);
  state->cell_s = *state->label ? (double)(vl_monotonic_ns() - progress->cell_start_ns) * 1e-9 : NAN;
  /* The running cell's part is in the mean of its kind. */
  if (state->cell_s > 0 && state->left_s > 0) state->left_s = fmax(0, state->left_s - state->cell_s);
  vl_utc_text(state->updated_utc, sizeof state->updated_utc);
  progress->published_ns = state->updated_ns = vl_monotonic_ns();
  vl_suite_state_write(progress->publish_to, state);
}

void vl_progress_publish(Progress *progress, const char *store, const char *suite, int64_t already_there) {
  SuiteState *state = &progress->state;
  progress->publish_to = store;
  snprintf(state->suite, sizeof state->suite, "%s", suite);
  vl_host_name(state->host, sizeof state->host);
  state->process = vl_process_self();
  state->already_there = already_there;
  publish(progress);
}

void vl_progress_finish(Progress *progress, const Status *status) {
  const char *end = status->code == VL_OK            ? "finished"
                    : status->code == VL_INTERRUPTED ? "interrupted"
                                                     : "failed";
  snprintf(progress->state.end, sizeof progress->state.end, "%s", end);
  progress->state.label[0] = '\0';
  publish(progress);
}

static bool ends_badly(const json_t *record) {
  return vl_record_has_status(record, "timeout") || vl_record_has_status(record, "crashed") ||
         vl_record_has_status(record, "diverged");
}

/* ---- On this one ----------------------------------------------------------------------------------------------- */

void vl_progress_begin(Progress *progress, const SuiteCell *cell) {
  progress->kind = kind_of(cell);
  progress->cell_start_ns = vl_monotonic_ns();
  vl_cell_label(cell, progress->label, sizeof progress->label);
  snprintf(progress->state.label, sizeof progress->state.label, "%s", progress->label);
  progress->state.step = progress->state.steps = 0;
  /* Planned cells come by the hundred a second. */
  if (progress->kind == 0 || vl_monotonic_ns() - progress->published_ns > SECOND_NS) publish(progress);
  vl_progress_step(progress, 0, 0);
}

void vl_progress_step(void *context, int32_t step, int32_t total) {
  Progress *progress = context;
  progress->state.step = step;
  progress->state.steps = total;
  if (vl_monotonic_ns() - progress->published_ns > SECOND_NS) publish(progress);
  if (progress->quiet || !progress->terminal) return;
  fprintf(stderr, "\r\033[K[%" PRId64 "/%" PRId64 "] %s", progress->done + 1, progress->total,
          progress->label);
  if (total > 0) fprintf(stderr, ", step %d of %d", step, total);
  print_left(progress);
  fflush(stderr);
}

/* What a cell came to, in a few words. */
static void print_result(const json_t *record) {
  const char *status = vl_record_text(record, "status"), *error = vl_record_text(record, "error");
  int64_t needed = vl_record_integer(record, "needed_bytes"), batch = vl_record_integer(record, "batch");
  double rate = vl_record_real(record, "samples_per_s");
  fprintf(stderr, ": %s", status);
  if (batch >= 0) fprintf(stderr, ", batch %lld", (long long)batch);
  if (needed >= 0) {
    char bytes[32];
    vl_format_bytes(needed, bytes, sizeof bytes);
    fprintf(stderr, ", needs %s", bytes);
  }
  if (!isnan(rate)) {
    char step[128];
    vl_step_time_text(record, step, sizeof step);
    fprintf(stderr, ", %.1f samples/s, step %s", rate, step);
  }
  if (vl_record_text(record, "disturbed"))
    fprintf(stderr, "; disturbed: %s", vl_record_text(record, "disturbed"));
  if (strcmp(status, "ok") != 0 && error) fprintf(stderr, ": %s", error);
}

void vl_progress_end(Progress *progress, const json_t *record) {
  progress->left[progress->kind]--;
  progress->finished[progress->kind]++;
  progress->spent_s[progress->kind] += (double)(vl_monotonic_ns() - progress->cell_start_ns) * 1e-9;
  progress->done++;
  progress->state.failed += ends_badly(record);
  progress->state.skipped += vl_record_has_status(record, "skipped");
  progress->state.label[0] = '\0';
  if (progress->kind == 0 || vl_monotonic_ns() - progress->published_ns > SECOND_NS) publish(progress);
  if (progress->quiet) return;
  fprintf(stderr, "%s[%lld/%lld] %s", progress->terminal ? "\r\033[K" : "", (long long)progress->done,
          (long long)progress->total, progress->label);
  print_result(record);
  print_left(progress);
  fputc('\n', stderr);
}
