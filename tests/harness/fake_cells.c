#include "tests/harness/fake_cells.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

SuiteCell fake_cell(int64_t micro_batch, const char *orders) {
  SuiteCell cell = {.timeout_s = 60};
  vl_cell_spec_init(&cell.spec);
  snprintf(cell.spec.case_name, sizeof cell.spec.case_name, "resnet50");
  snprintf(cell.spec.data, sizeof cell.spec.data, "%s", orders);
  cell.spec.micro_batch = micro_batch;
  cell.spec.steps = 3;
  return cell;
}

void fake_result(const SuiteCell *cell, int32_t steps, CellResult *result) {
  const CellSpec *spec = &cell->spec;
  bool plan = strcmp(spec->device, "plan") == 0;
  int64_t bytes = spec->micro_batch << 20;
  memset(result, 0, sizeof *result);
  snprintf(result->status, sizeof result->status, "ok");
  snprintf(result->recipe, sizeof result->recipe, "%s", *spec->recipe ? spec->recipe : "baseline");
  snprintf(result->stack, sizeof result->stack, "pytorch");
  snprintf(result->preserves, sizeof result->preserves, "bitwise");
  snprintf(result->provenance, sizeof result->provenance, "%s", plan ? "predicted" : "measured");
  snprintf(result->device.name, sizeof result->device.name, "%s", spec->device);
  snprintf(result->device.hardware, sizeof result->device.hardware, "fake hardware");
  result->device.predicts = plan;
  result->device.has_time = !plan;
  result->micro_batch = spec->micro_batch;
  result->accumulate = result->ranks = 1;
  result->global_batch = spec->micro_batch;
  result->tokens_per_sample = -1;
  result->parameters = 1000;
  result->flops_per_step = 1000000 * spec->micro_batch;
  result->needed_low_bytes = result->needed_bytes = result->peak_reserved_bytes =
      result->peak_allocated_bytes = bytes;
  result->warmup_peak_reserved_bytes = bytes;
  result->steady_peak_reserved_bytes = bytes / 2;
  result->peak_driver_bytes = plan ? -1 : bytes;
  result->build_s = 0.25;
  result->tracker_share = result->accuracy = NAN;
  result->step_count = plan ? 0 : steps;
  result->step_s = vl_allocate((size_t)steps * sizeof(double) + 1);
  result->losses = vl_allocate((size_t)steps * sizeof(double) + 1);
  for (int32_t i = 0; i < result->step_count; i++) {
    result->step_s[i] = 0.5 + 0.001 * i;
    result->losses[result->loss_count++] = 7.0 / (i + 1);
  }
  result->scope_count = 1;
  snprintf(result->scopes[0].scope, VL_NAME_BYTES, "layer1");
  result->scopes[0].bytes = bytes / 4;
}

TimelineEvent *fake_timeline(int64_t count) {
  TimelineEvent *events = vl_allocate((size_t)(count + 1) * sizeof *events);
  for (int64_t i = 0; i < count; i++) {
    TimelineEvent *event = &events[i];
    event->time_ns = 1000 * i;
    event->action = (int32_t)(i % 2);
    event->category = (int32_t)(i % MEMORY_CATEGORY_COUNT);
    event->bytes = 512 * (i + 1);
    event->allocated_bytes = 4096 + i;
    event->reserved_bytes = 2 << 20;
    event->requested_bytes = 512 * (i + 1) - 4;
    event->heap_segment = (int32_t)(i / 9);
    event->offset = 512 * i;
    event->stream = (int32_t)(i % 2);
    event->segment = (int32_t)(i % 3);
    event->op = (int32_t)(i / 2 - 1);
    snprintf(event->name, sizeof event->name, "tensor%lld", (long long)i);
    snprintf(event->scope, sizeof event->scope, "layer%lld", (long long)(i / 4));
  }
  return events;
}

OpRecord *fake_ops(int64_t count) {
  OpRecord *ops = vl_allocate((size_t)(count + 1) * sizeof *ops);
  for (int64_t i = 0; i < count; i++) {
    OpRecord *op = &ops[i];
    op->segment = (int32_t)(i % 3);
    op->stream = (int32_t)(i % 2);
    op->micro_batch = (int32_t)(i / 10);
    op->pass = (int32_t)(i % 2);
    op->start_ns = 2000 * i;
    op->duration_ns = i == 3 ? -1 : 1500;
    op->flops = INT64_C(1) << 40;
    op->bytes = 4096 * i;
    snprintf(op->op, sizeof op->op, "op%lld", (long long)i);
    snprintf(op->scope, sizeof op->scope, "layer \"%lld\"", (long long)(i / 4));
    if (i != 5) snprintf(op->implementation, sizeof op->implementation, "jit:%lld", (long long)i);
  }
  return ops;
}

/* ---- Orders ------------------------------------------------------------------------------------------------- */

/* What follows "name:"; "" when the order has no value; NULL: it is not among the orders. */
static const char *order(const CellSpec *spec, const char *name, char value[256]) {
  size_t length = strlen(name);
  for (const char *at = spec->data; *at;) {
    size_t run = strcspn(at, " ");
    if (strncmp(at, name, length) == 0 && (run == length || at[length] == ':')) {
      snprintf(value, 256, "%.*s", run > length ? (int)(run - length - 1) : 0, at + length + (run > length));
      return value;
    }
    at += run + (at[run] == ' ');
  }
  return NULL;
}

static void append_line(const char *path, long number) {
  FILE *file = fopen(path, "a");
  fprintf(file, "%ld\n", number);
  fclose(file);
}

static void leave_child(const char *path, bool in_session_of_its_own) {
  pid_t child = fork();
  if (child == 0) {
    if (in_session_of_its_own) setsid();
    signal(SIGTERM, SIG_IGN);
    sleep(60);
    _exit(0);
  }
  append_line(path, (long)child);
}

static void hang(void) {
  for (;;)
    pause();
}

static void spend(int64_t ms, bool busy) {
  int64_t end = vl_monotonic_ns() + ms * 1000000;
  struct timespec piece = {.tv_nsec = 2000000};
  while (vl_monotonic_ns() < end)
    if (!busy) nanosleep(&piece, NULL);
}

static Status plan(const CellSpec *spec, CellResult *result) {
  if (spec->capacity_bytes > 0 && result->needed_bytes > spec->capacity_bytes) {
    snprintf(result->status, sizeof result->status, "oom");
    snprintf(result->error, sizeof result->error, "not enough");
  }
  return vl_ok();
}

/* Appends the device the process may see, and when it began. */
static void tell_visible(const char *path) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  FILE *file = fopen(path, "a");
  fprintf(file, "%s %lld\n", visible ? visible : "all", (long long)vl_monotonic_ns());
  fclose(file);
}

static void obey_deaths(const CellSpec *spec) {
  char value[256];
  if (order(spec, "log", value)) append_line(value, (long)spec->micro_batch);
  if (order(spec, "visible", value)) tell_visible(value);
  if (order(spec, "escape", value)) leave_child(value, true);
  if (order(spec, "crash", value)) {
    signal(SIGSEGV, SIG_DFL); /* a sanitizer would make an exit of it */
    raise(SIGSEGV);
  }
  if (order(spec, "exit", value)) _exit(9);
  if (order(spec, "once", value) && access(value, F_OK) != 0) {
    append_line(value, 1);
    _exit(9);
  }
  if (order(spec, "hang", value)) hang();
  if (order(spec, "stubborn", value)) {
    leave_child(value, false);
    signal(SIGTERM, SIG_IGN);
    hang();
  }
  if (order(spec, "leave", value)) leave_child(value, false);
}

Status fake_cell_run(const CellSpec *spec, const CellObserver *observer, CellResult *result) {
  char value[256];
  SuiteCell cell = {.spec = *spec};
  memset(result, 0, sizeof *result);
  if (order(spec, "invalid", value)) return vl_error(VL_INVALID, "this order is invalid");
  if (order(spec, "environment", value)) return vl_error(VL_ENVIRONMENT, "a library is missing");
  fake_result(&cell, spec->steps, result);
  if (strcmp(spec->device, "plan") == 0) return plan(spec, result);
  obey_deaths(spec);
  for (int32_t i = 0; i < spec->steps; i++) {
    StepResult step = {.loss = 1, .step_ns = 1};
    if (order(spec, "slow", value)) spend(strtoll(value, NULL, 10), false);
    if (order(spec, "busy", value)) spend(strtoll(value, NULL, 10), true);
    if (observer && observer->step_done) observer->step_done(observer->context, i + 1, spec->steps, &step);
  }
  if (order(spec, "oom", value)) snprintf(result->status, sizeof result->status, "oom");
  if (order(spec, "diverged", value)) {
    snprintf(result->status, sizeof result->status, "diverged");
    result->losses[result->loss_count - 1] = NAN;
  }
  if (spec->timeline) {
    result->timeline = fake_timeline(50);
    result->timeline_count = 50;
    result->ops = fake_ops(25);
    result->op_count = 25;
  }
  return vl_ok();
}
