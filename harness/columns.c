/* The table of columns: every value of a record, its name, unit, type and where it comes from. A new value is
 * one line here. */
#include "harness/columns.h"
#include "harness/cell_json.h"
#include "harness/control_group.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/utsname.h>

/* ---- Values that are a field ---------------------------------------------------------------------------- */

static json_t *field_value(const void *base, const Column *column) {
  const char *field = (const char *)base + column->offset;
  int32_t narrow;
  int64_t wide;
  double real;
  bool flag;
  switch (column->type) {
  case COLUMN_TEXT: return *field ? vl_json_text(field) : NULL;
  case COLUMN_INTEGER:
    if (column->width == sizeof narrow) {
      memcpy(&narrow, field, sizeof narrow);
      wide = narrow;
    } else {
      memcpy(&wide, field, sizeof wide);
    }
    return wide >= 0 ? json_integer(wide) : NULL;
  case COLUMN_REAL: memcpy(&real, field, sizeof real); return vl_json_real(real);
  case COLUMN_FLAG: memcpy(&flag, field, sizeof flag); return json_boolean(flag);
  }
  return NULL;
}

static json_t *from_cell(const CellView *view, const Column *column, const char **reason) {
  (void)reason;
  return field_value(view->cell, column);
}

static json_t *from_result(const CellView *view, const Column *column, const char **reason) {
  (void)reason;
  return field_value(view->result, column);
}

/* ---- Values made from several ------------------------------------------------------------------------------ */

static json_t *cell_key(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  return json_string(view->key);
}

/* The store's owner fills it in: a cell does not know which suite it belongs to. */
static json_t *suite_unknown(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column;
  *reason = "not part of a suite";
  return NULL;
}

static json_t *engine_name(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_string("vramlab");
}

static json_t *kind(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  return json_string(view->cell->max_batch ? "max-batch" : "cell");
}

/* The search fills it in. */
static json_t *no_batch(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column;
  *reason = "of kind max-batch only";
  return NULL;
}

static json_t *error_text(const CellView *view, const Column *column, const char **reason) {
  *reason = "nothing went wrong";
  return field_value(view->result, column);
}

static json_t *skip_reason(const CellView *view, const Column *column, const char **reason) {
  *reason = "the cell was not skipped";
  return strcmp(view->result->status, "skipped") == 0 ? field_value(view->result, column) : NULL;
}

static json_t *settings_text(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  char text[VL_SETTINGS_BYTES];
  vl_settings_text(&view->cell->spec, text);
  *reason = "the case's own";
  return *text ? vl_json_text(text) : NULL;
}

static json_t *profile_name(const CellView *view, const Column *column, const char **reason) {
  *reason = "the machine itself";
  return field_value(view->cell, column);
}

static json_t *data_path(const CellView *view, const Column *column, const char **reason) {
  *reason = "synthetic inputs";
  return field_value(view->cell, column);
}

static json_t *queue_text(const CellView *view, const Column *column, const char **reason) {
  *reason = "samples of one size";
  return field_value(view->cell, column);
}

static json_t *capacity(const CellView *view, const Column *column, const char **reason) {
  *reason = "no limit was set";
  return view->cell->spec.capacity_bytes > 0 ? field_value(view->cell, column) : NULL;
}

static json_t *learning_rate(const CellView *view, const Column *column, const char **reason) {
  *reason = "the case's own";
  return view->cell->spec.learning_rate > 0 ? field_value(view->cell, column) : NULL;
}

static json_t *order_seed(const CellView *view, const Column *column, const char **reason) {
  *reason = "not in random order";
  return view->cell->shuffled ? field_value(view->cell, column) : NULL;
}

static json_t *timeout_limit(const CellView *view, const Column *column, const char **reason) {
  *reason = "no limit was set";
  return view->cell->timeout_s > 0 ? field_value(view->cell, column) : NULL;
}

static json_t *injected_text(const CellView *view, const Column *column, const char **reason) {
  *reason = "none was";
  return *view->cell->spec.inject ? field_value(view->cell, column) : NULL;
}

static json_t *chosen(const CellView *view, const Column *column, const char **reason) {
  *reason = "of checkpoint=auto only";
  return field_value(view->result, column);
}

/* Why there is no step time. */
static const char *step_reason(const CellView *view) {
  if (view->result->step_count > 0) return NULL;
  if (view->result->monitor_count > 0) return "monitored steps tell nothing about time";
  if (view->result->cross_checked) return "cross-checked steps tell nothing about time";
  if (view->result->device.predicts && !view->result->device.has_time)
    return "memory only: no time is predicted";
  return "no step was measured";
}

static json_t *step_median(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = step_reason(view);
  return vl_json_real(view->step.median);
}

static json_t *step_spread(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = step_reason(view);
  return vl_json_real(view->step.spread);
}

static json_t *interval(const CellView *view, double value, const char **reason) {
  *reason = view->step.samples > 0 ? "fewer than 6 samples have no 95 % interval" : step_reason(view);
  return vl_json_real(value);
}

static json_t *step_low(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return interval(view, view->step.low, reason);
}

static json_t *step_high(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return interval(view, view->step.high, reason);
}

static json_t *step_coverage(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return interval(view, view->step.coverage, reason);
}

static json_t *step_outliers(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = step_reason(view);
  return view->step.samples > 0 ? json_integer(view->outliers) : NULL;
}

static json_t *stopped_by(const CellView *view, const Column *column, const char **reason) {
  *reason = "as many steps as were asked for (--max-noise measures until it is low enough)";
  return field_value(view->result, column);
}

static json_t *step_drift(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = view->step.samples > 0 ? "fewer than 6 steps show no trend" : step_reason(view);
  return vl_json_real(view->drift.change);
}

static json_t *step_drift_p(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = view->step.samples > 0 ? "fewer than 6 steps show no trend" : step_reason(view);
  return vl_json_real(view->drift.p);
}

static json_t *interference(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->device.predicts ? "nothing is measured" : "the system does not tell, or of a queue";
  return field_value(view->result, column);
}

static json_t *processor_share(const CellView *view, const Column *column, const char **reason) {
  if (view->result->device.predicts || view->result->involuntary_switches < 0)
    return interference(view, column, reason);
  *reason = "steps were measured for less than half a second, which is too short to tell";
  return field_value(view->result, column);
}

/* What would not be there on a machine of one's own: beyond these shares a step time is no longer the
 * program's. */
static json_t *disturbed(const CellView *view, const Column *column, const char **reason) {
  const CellResult *result = view->result;
  char text[256] = "";
  (void)column;
  *reason = "nothing was";
  if (view->step.samples == 0) return NULL;
  const struct {
    bool is;
    const char *before, *after;
    double share;
  } signs[] = {
      {result->steal_share > 0.02, "the hypervisor took", "of the processors", result->steal_share},
      {result->other_cpu_share > 0.1, "other processes used", "of the processors", result->other_cpu_share},
      {result->throttled_steps > 0, "the card was throttled in", "of the steps",
       (double)result->throttled_steps / (double)result->step_count},
      {fabs(view->drift.change) > 0.05 && view->drift.p < 0.01, "times drifted by", "over the steps",
       view->drift.change},
  };
  for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
    size_t used = strlen(text);
    if (signs[i].is)
      snprintf(text + used, sizeof text - used, "%s%s %.0f %% %s", used ? "; " : "", signs[i].before,
               100 * signs[i].share, signs[i].after);
  }
  return *text ? json_string(text) : NULL;
}

static json_t *rate(const CellView *view, int64_t count, const char **reason) {
  double per_second = vl_statistics_rate(count, view->step.median, reason);
  const char *none = step_reason(view);
  if (view->result->emulated) {
    none = "emulated: not the speed of the hardware meant";
    per_second = NAN;
  }
  if (none) *reason = none;
  return vl_json_real(per_second);
}

static json_t *samples_rate(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return rate(view, view->result->global_batch, reason);
}

static json_t *samples_rate_per_rank(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return rate(view, view->result->global_batch / view->result->ranks, reason);
}

static json_t *tokens_rate(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const CellResult *r = view->result;
  if (r->tokens_per_sample > 0) return rate(view, r->global_batch * r->tokens_per_sample, reason);
  *reason = "the case has no sequences";
  return NULL;
}

static json_t *flops_rate(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return rate(view, view->result->flops_per_step, reason);
}

static json_t *last_loss(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const CellResult *r = view->result;
  *reason = r->loss_count > 0 ? "not finite" : "nothing computed a loss";
  return r->loss_count > 0 ? vl_json_real(r->losses[r->loss_count - 1]) : NULL;
}

static json_t *moved_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "nothing compacts between steps";
  return field_value(view->result, column);
}

static json_t *unplanned_field(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->unplanned_bytes == 0 ? "everything had its place" : "of allocator=planned only";
  return field_value(view->result, column);
}

static json_t *offload_field(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->evicted_bytes >= 0 ? "nothing was waited for in a measured step"
                                             : "no step that offloads came to its end";
  return field_value(view->result, column);
}

static json_t *offload_capacity(const CellView *view, const Column *column, const char **reason) {
  *reason = "no limit was set";
  return view->cell->spec.offload_capacity_bytes > 0 ? field_value(view->cell, column) : NULL;
}

static json_t *input_time(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->device.predicts ? "not predicted" : "no step came to its end, or of a queue";
  return field_value(view->result, column);
}

static json_t *graph_share(const CellView *view, const Column *column, const char **reason) {
  *reason = strcmp(view->cell->spec.device, "cuda") == 0
                ? "launches went one by one: tiers moved, tensors were observed or ranges named"
                : "of cuda only";
  return field_value(view->result, column);
}

static json_t *graph_refusal(const CellView *view, const Column *column, const char **reason) {
  *reason = strcmp(view->cell->spec.device, "cuda") == 0 ? "none was refused" : "of cuda only";
  return field_value(view->result, column);
}

static json_t *cross_check_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "not cross-checked (--cross-check)";
  return view->result->cross_checked ? field_value(view->result, column) : NULL;
}

static json_t *volume_time(const CellView *view, const Column *column, const char **reason) {
  if (!view->result->cross_checked) return from_result(view, column, reason);
  *reason = "cross-checked volumes tell nothing about time";
  return NULL;
}

/* Either sign is a value. */
static json_t *cross_check_difference(const CellView *view, const Column *column, const char **reason) {
  const CellResult *result = view->result;
  *reason = result->cross_checked ? "allocator=expandable: not known to be traced"
                                  : "not cross-checked (--cross-check)";
  if (!result->cross_checked || !result->cross_check_compares) return NULL;
  int64_t bytes;
  memcpy(&bytes, (const char *)result + column->offset, sizeof bytes);
  return json_integer(bytes);
}

static json_t *analytic_peak(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const MemoryAccount *account = &view->result->account;
  *reason = "not reckoned";
  if (account->term_count == 0) return NULL;
  char text[192];
  snprintf(text, sizeof text, "%s%s%s (%s)", account->op, account->scope[0] ? " in " : "", account->scope,
           vl_segment_name(account->segment));
  return vl_json_text(text);
}

static json_t *oom_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "memory did not run out";
  return strcmp(view->result->status, "oom") == 0 ? field_value(view->result, column) : NULL;
}

static json_t *first_nonfinite(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const NonFinite *first = &view->result->first_nonfinite;
  char text[4 * VL_NAME_BYTES];
  *reason = view->result->monitor_count > 0 ? "everything was finite" : "not monitored (--monitor)";
  if (first->step < 0) return NULL;
  snprintf(text, sizeof text, "%s of %s in %s, %s of step %lld", first->tensor, first->op, first->scope,
           first->segment, (long long)first->step + 1);
  return vl_json_text(text);
}

static json_t *scaler_field(const CellView *view, const Column *column, const char **reason) {
  if (view->cell->spec.inference) *reason = "forward only";
  return field_value(view->result, column);
}

static json_t *diagnosis_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "not asked for";
  return view->result->diagnosis.made ? field_value(view->result, column) : NULL;
}

static json_t *leak_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "too few steps to tell a leak";
  return field_value(view->result, column);
}

static json_t *power_limit(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  int64_t mw = view->result->power_limit_mw;
  return mw < 0 ? NULL : json_integer((mw + 500) / 1000);
}

static json_t *driver_field(const CellView *view, const Column *column, const char **reason) {
  *reason = strcmp(view->cell->spec.device, "cuda") == 0 ? "not told, or none" : "of cuda only";
  return field_value(view->result, column);
}

static json_t *memory_limit(const CellView *view, const Column *column, const char **reason) {
  ControlGroup group;
  (void)column;
  *reason = view->result->device.predicts ? "not predicted" : "no limit";
  if (view->result->device.predicts) return NULL;
  vl_control_group_read("", &group);
  return group.memory_limit_bytes < 0 ? NULL : json_integer(group.memory_limit_bytes);
}

static json_t *processors_limit(const CellView *view, const Column *column, const char **reason) {
  ControlGroup group;
  (void)column;
  *reason = view->result->device.predicts ? "not predicted" : "no limit";
  if (view->result->device.predicts) return NULL;
  vl_control_group_read("", &group);
  return vl_json_real(group.processors);
}

static json_t *kernel(const CellView *view, const Column *column, const char **reason) {
  struct utsname system;
  char text[2 * sizeof system.sysname];
  (void)column;
  *reason = "not predicted";
  if (view->result->device.predicts || uname(&system) != 0) return NULL;
  snprintf(text, sizeof text, "%s %s", system.sysname, system.release);
  return vl_json_text(text);
}

static json_t *compiler(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_string(vl_build_facts().compiler);
}

static json_t *host(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  char text[256];
  vl_host_name(text, sizeof text);
  return vl_json_text(text);
}

static json_t *commit(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column;
  BuildFacts facts = vl_build_facts();
  *reason = "not built from a git checkout";
  return *facts.git_commit ? json_string(facts.git_commit) : NULL;
}

static json_t *dirty(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_boolean(vl_build_facts().git_dirty);
}

static json_t *version(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_string(vl_build_facts().version);
}

static json_t *schema(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_integer(VL_SCHEMA_VERSION);
}

static json_t *created(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  return json_string(view->created_utc);
}

/* ---- The table --------------------------------------------------------------------------------------------- */

/* Where a field lies, and its size. */
#define AT(type, member) offsetof(type, member), sizeof(((type *)0)->member)
#define SPEC(member) AT(SuiteCell, spec.member)
#define RESULT(member) AT(CellResult, member)

static const Column table[] = {
    {"cell_key", "cell_key", "", COLUMN_TEXT, "hash of what was asked; one row a key", cell_key, 0, 0},
    {"kind", "kind", "", COLUMN_TEXT, "cell: one run; max-batch: a search under a capacity", kind, 0, 0},
    {"suite", "suite", "", COLUMN_TEXT, "suite it belongs to", suite_unknown, 0, 0},
    {"suite_sha256", "suite_sha256", "", COLUMN_TEXT, "hash of the suite's file when it ran", suite_unknown,
     0, 0},
    {"status", "status", "", COLUMN_TEXT, "ok, oom, diverged, timeout, crashed, unsupported or skipped",
     from_result, RESULT(status)},
    {"error", "error", "", COLUMN_TEXT, "why, when the status is not ok", error_text, RESULT(error)},
    {"skip_reason", "skip_reason", "", COLUMN_TEXT, "why it was not run", skip_reason, RESULT(error)},
    {"case", "case", "", COLUMN_TEXT, "workload", from_cell, SPEC(case_name)},
    {"settings", "settings", "", COLUMN_TEXT, "arguments of the case that were given", settings_text, 0, 0},
    {"micro_batch", "micro_batch", "1", COLUMN_INTEGER, "samples one rank runs at once", from_result,
     RESULT(micro_batch)},
    {"accumulate", "accumulate", "1", COLUMN_INTEGER, "micro-batches an optimizer step", from_result,
     RESULT(accumulate)},
    {"ranks", "ranks", "1", COLUMN_INTEGER, "processes that share a step", from_result, RESULT(ranks)},
    {"global_batch", "global_batch", "1", COLUMN_INTEGER,
     "samples an optimizer step sees: micro_batch x accumulate x ranks, less where the last micro-batch has "
     "fewer",
     from_result, RESULT(global_batch)},
    {"batch", "batch", "1", COLUMN_INTEGER,
     "kind max-batch: the largest global batch that fits, 0: none does", no_batch, 0, 0},
    {"recipe", "recipe", "", COLUMN_TEXT, "optimizations, in canonical order", from_result, RESULT(recipe)},
    {"stack", "stack", "", COLUMN_TEXT, "pytorch or vramlab: whose eager behaviour the baseline has",
     from_result, RESULT(stack)},
    {"preserves", "preserves", "", COLUMN_TEXT,
     "results against the baseline: bitwise, tolerance or different-model", from_result, RESULT(preserves)},
    {"device", "device", "", COLUMN_TEXT, "cpu, cuda or plan", from_cell, SPEC(device)},
    {"device_name", "device_name", "", COLUMN_TEXT, "the device's full name", from_result,
     RESULT(device.name)},
    {"profile", "profile", "", COLUMN_TEXT, "device on paper that was planned for", profile_name,
     SPEC(profile)},
    {"provenance", "provenance", "", COLUMN_TEXT, "measured or predicted", from_result, RESULT(provenance)},
    {"engine", "engine", "", COLUMN_TEXT, "what ran it: vramlab, or torch for a peer", engine_name, 0, 0},
    {"inference", "inference", "1", COLUMN_FLAG, "forward only", from_cell, SPEC(inference)},
    {"capacity_bytes", "capacity_bytes", "bytes", COLUMN_INTEGER, "most the heap was allowed to hold",
     capacity, SPEC(capacity_bytes)},
    {"seed", "seed", "1", COLUMN_INTEGER, "of weights, inputs and masks", from_cell, SPEC(seed)},
    {"repeat", "repeat", "1", COLUMN_INTEGER, "which repetition of the same cell, from 0", from_cell,
     AT(SuiteCell, repeat)},
    {"order_seed", "order_seed", "1", COLUMN_INTEGER, "of the random order of cells within a round",
     order_seed, AT(SuiteCell, order_seed)},
    {"steps", "steps", "1", COLUMN_INTEGER, "measured steps asked for", from_cell, SPEC(steps)},
    {"warmup", "warmup", "1", COLUMN_INTEGER, "steps before them", from_cell, SPEC(warmup)},
    {"learning_rate", "learning_rate", "1", COLUMN_REAL, "given learning rate", learning_rate,
     SPEC(learning_rate)},
    {"data", "data", "", COLUMN_TEXT, "file the samples came from, or phantoms", data_path, SPEC(data)},
    {"queue", "queue", "", COLUMN_TEXT,
     "sizes of the samples of a pass, and how many of each; a step is a pass", queue_text, SPEC(queue)},
    {"injected", "injected", "", COLUMN_TEXT, "fault that was put into the run on purpose (--inject)",
     injected_text, SPEC(inject)},
    {"timeout_s", "timeout_s", "s", COLUMN_REAL, "time limit", timeout_limit, AT(SuiteCell, timeout_s)},

    {"samples_per_s", "samples_per_s", "1/s", COLUMN_REAL, "global batch over the median step time",
     samples_rate, 0, 0},
    {"samples_per_s_per_rank", "samples_per_s_per_rank", "1/s", COLUMN_REAL, "the same per rank (GPU)",
     samples_rate_per_rank, 0, 0},
    {"tokens_per_s", "tokens_per_s", "1/s", COLUMN_REAL,
     "samples_per_s x sequence length, padding included; null for a case without sequences", tokens_rate, 0,
     0},
    {"step_s", "step_s", "s", COLUMN_REAL, "median time of a measured step", step_median, 0, 0},
    {"step_s_spread", "step_s_spread", "s", COLUMN_REAL, "median absolute deviation of the step times",
     step_spread, 0, 0},
    {"step_s_low", "step_s_low", "s", COLUMN_REAL, "lower end of the median's interval", step_low, 0, 0},
    {"step_s_high", "step_s_high", "s", COLUMN_REAL, "upper end", step_high, 0, 0},
    {"step_s_coverage", "step_s_coverage", "1", COLUMN_REAL, "probability that the interval holds the median",
     step_coverage, 0, 0},
    {"step_outliers", "step_outliers", "1", COLUMN_INTEGER,
     "measured steps outside Tukey's fences; none is dropped", step_outliers, 0, 0},
    {"stopped_by", "stopped_by", "", COLUMN_TEXT,
     "what ended a measurement until its noise was low enough: noise, or time; null: a fixed number of steps",
     stopped_by, RESULT(stopped_by)},
    {"step_drift", "step_drift", "1", COLUMN_REAL,
     "change of step times from the first to the last measured step, as a share (Theil-Sen)", step_drift, 0,
     0},
    {"step_drift_p", "step_drift_p", "1", COLUMN_REAL, "probability of such a trend by chance (Mann-Kendall)",
     step_drift_p, 0, 0},
    {"steal_share", "steal_share", "1", COLUMN_REAL,
     "share of the processors' time that the hypervisor took in the measured steps", processor_share,
     RESULT(steal_share)},
    {"other_cpu_share", "other_cpu_share", "1", COLUMN_REAL, "share of it that other processes used",
     processor_share, RESULT(other_cpu_share)},
    {"involuntary_switches", "involuntary_switches", "1", COLUMN_INTEGER,
     "times the process was put aside for another in the measured steps", interference,
     RESULT(involuntary_switches)},
    {"load_average", "load_average", "1", COLUMN_REAL, "of one minute, when the last step had ended",
     interference, RESULT(load_average)},
    {"disturbed", "disturbed", "", COLUMN_TEXT, "what makes its times doubtful", disturbed, 0, 0},
    {"step_count", "step_count", "1", COLUMN_INTEGER, "steps that were measured", from_result,
     RESULT(step_count)},
    {"input_s", "input_s", "s", COLUMN_REAL,
     "mean time that the inputs of a measured step took and nothing overlapped; no part of step_s",
     input_time, RESULT(input_s)},
    {"build_s", "build_s", "s", COLUMN_REAL, "compiling the program and its kernels", from_result,
     RESULT(build_s)},
    {"flops_per_step", "flops_per_step", "1", COLUMN_INTEGER, "floating-point operations of a step, counted",
     from_result, RESULT(flops_per_step)},
    {"recompute_flops", "recompute_flops", "1", COLUMN_INTEGER, "those of them that repeat earlier ones",
     from_result, RESULT(recompute_flops)},
    {"checkpoint_chosen", "checkpoint_chosen", "", COLUMN_TEXT, "the value that checkpoint=auto stood for",
     chosen, RESULT(checkpoint_chosen)},
    {"checkpoint_blocks_optimum", "checkpoint_blocks_optimum", "1", COLUMN_REAL,
     "k* = sqrt(L ck / act): blocks a checkpoint at which theory has the lowest peak, for L blocks that pass "
     "on "
     "ck bytes and keep act bytes on average",
     from_result, RESULT(checkpoint_blocks_optimum)},
    {"checkpoint_ops_optimum", "checkpoint_ops_optimum", "1", COLUMN_REAL, "the same for operators",
     from_result, RESULT(checkpoint_ops_optimum)},
    {"flops_per_s", "flops_per_s", "1/s", COLUMN_REAL, "flops_per_step over step_s", flops_rate, 0, 0},
    {"last_loss", "last_loss", "1", COLUMN_REAL, "loss of the last step", last_loss, 0, 0},
    {"held_out_loss", "held_out_loss", "1", COLUMN_REAL,
     "mean loss of held-out labels: classes, masked tokens, voxels", from_result, RESULT(held_out_loss)},
    {"accuracy", "accuracy", "1", COLUMN_REAL, "share of held-out labels predicted right", from_result,
     RESULT(accuracy)},
    {"dice_mean", "dice_mean", "1", COLUMN_REAL,
     "mean Dice of all classes of volumes but the first, held out; absent classes do not count", from_result,
     RESULT(dice_mean)},
    {"volume_s", "volume_s", "s", COLUMN_REAL,
     "mean time to infer a held-out volume by sliding windows, with reading it", volume_time,
     RESULT(volume_s)},
    {"loss_scale", "loss_scale", "1", COLUMN_REAL, "after the last step; 1 without loss scaling",
     scaler_field, RESULT(loss_scale)},
    {"skipped_steps", "skipped_steps", "1", COLUMN_INTEGER, "steps whose gradients were not finite",
     scaler_field, RESULT(skipped_steps)},
    {"first_nonfinite", "first_nonfinite", "", COLUMN_TEXT,
     "monitored: the first tensor with an infinity or NaN, its op, layer and step", first_nonfinite, 0, 0},
    {"params", "params", "1", COLUMN_INTEGER, "learned parameters", from_result, RESULT(parameters)},

    {"needed_bytes", "needed_bytes", "bytes", COLUMN_INTEGER,
     "what decides whether it fits: the larger of warm-up and steady reserved peak, plus untracked",
     from_result, RESULT(needed_bytes)},
    {"needed_low_bytes", "needed_low_bytes", "bytes", COLUMN_INTEGER,
     "the same with the lower ends of a profile's intervals", from_result, RESULT(needed_low_bytes)},
    {"peak_requested_bytes", "peak_requested_bytes", "bytes", COLUMN_INTEGER,
     "live blocks as asked for, peak", from_result, RESULT(peak_requested_bytes)},
    {"peak_allocated_bytes", "peak_allocated_bytes", "bytes", COLUMN_INTEGER, "live blocks as rounded, peak",
     from_result, RESULT(peak_allocated_bytes)},
    {"peak_reserved_bytes", "peak_reserved_bytes", "bytes", COLUMN_INTEGER, "segments the heap holds, peak",
     from_result, RESULT(peak_reserved_bytes)},
    {"peak_driver_bytes", "peak_driver_bytes", "bytes", COLUMN_INTEGER,
     "driver or operating system, above the process before the model was built, peak", from_result,
     RESULT(peak_driver_bytes)},
    {"peak_process_bytes", "peak_process_bytes", "bytes", COLUMN_INTEGER,
     "NVML: this process on the card, context and libraries included, the most after any step", from_result,
     RESULT(peak_process_bytes)},
    {"card_used_bytes", "card_used_bytes", "bytes", COLUMN_INTEGER,
     "NVML: the card's memory in use by everybody, after the last step", from_result,
     RESULT(card_used_bytes)},
    {"clock_mhz", "clock_mhz", "MHz", COLUMN_INTEGER,
     "clock after the last step: of the card's multiprocessors (NVML), or of the fastest processor of those "
     "that could be used",
     from_result, RESULT(clock_mhz)},
    {"clock_max_mhz", "clock_max_mhz", "MHz", COLUMN_INTEGER,
     "the most that this clock may be (NVML, cpufreq)", from_result, RESULT(clock_max_mhz)},
    {"memory_clock_mhz", "memory_clock_mhz", "MHz", COLUMN_INTEGER,
     "NVML: clock of the card's memory after the last step", from_result, RESULT(memory_clock_mhz)},
    {"temperature_c", "temperature_c", "degC", COLUMN_INTEGER,
     "of the card (NVML) or the processors after the last step", from_result, RESULT(temperature_c)},
    {"power_limit_w", "power_limit_w", "W", COLUMN_INTEGER,
     "NVML: power above which the card's clocks go down", power_limit, 0, 0},
    {"throttled_steps", "throttled_steps", "1", COLUMN_INTEGER,
     "NVML: measured steps after which power or heat held the clocks down", from_result,
     RESULT(throttled_steps)},
    {"energy_mj", "energy_mj", "mJ", COLUMN_INTEGER, "NVML: energy of the card in the measured steps",
     from_result, RESULT(energy_mj)},
    {"graph_share", "graph_share", "1", COLUMN_REAL,
     "share of the sequences of launches in measured steps that went as a CUDA graph", graph_share,
     RESULT(graph_share)},
    {"graph_refusal", "graph_refusal", "", COLUMN_TEXT, "why launches could not be captured as a CUDA graph",
     graph_refusal, RESULT(graph_refusal)},
    {"cross_check_peak_bytes", "cross_check_peak_bytes", "bytes", COLUMN_INTEGER,
     "CUPTI: device memory that this process had allocated, libraries included, peak", cross_check_field,
     RESULT(cross_check.peak_bytes)},
    {"cross_check_live_bytes", "cross_check_live_bytes", "bytes", COLUMN_INTEGER,
     "CUPTI: the same when the last step had ended", cross_check_field, RESULT(cross_check.live_bytes)},
    {"cross_check_own_bytes", "cross_check_own_bytes", "bytes", COLUMN_INTEGER,
     "of that: what the cuda device holds beside the heap, for values of steps and to move blocks through",
     cross_check_field, RESULT(cross_check.own_bytes)},
    {"cross_check_difference_bytes", "cross_check_difference_bytes", "bytes", COLUMN_INTEGER,
     "cross_check_peak_bytes less peak_reserved_bytes and cross_check_own_bytes: what libraries allocated",
     cross_check_difference, RESULT(cross_check_difference_bytes)},
    {"cross_check_live_difference_bytes", "cross_check_live_difference_bytes", "bytes", COLUMN_INTEGER,
     "the same of what lived when the last step had ended", cross_check_difference,
     RESULT(cross_check_live_difference_bytes)},
    {"cross_check_allocations", "cross_check_allocations", "1", COLUMN_INTEGER,
     "CUPTI: allocations of device memory", cross_check_field, RESULT(cross_check.allocations)},
    {"cross_check_dropped", "cross_check_dropped", "1", COLUMN_INTEGER,
     "CUPTI: records that were lost, which the other figures then lack", cross_check_field,
     RESULT(cross_check.dropped)},
    {"kernels_per_step", "kernels_per_step", "1", COLUMN_REAL, "CUPTI: kernels of a measured step, mean",
     cross_check_field, RESULT(kernels_per_step)},
    {"kernel_s_per_step", "kernel_s_per_step", "s", COLUMN_REAL,
     "CUPTI: sum of their times, which are longer than without tracing", cross_check_field,
     RESULT(kernel_s_per_step)},
    {"peak_step_bytes", "peak_step_bytes", "bytes", COLUMN_INTEGER,
     "driver peak above the state just before the first step", from_result, RESULT(peak_step_bytes)},
    {"warmup_peak_allocated_bytes", "warmup_peak_allocated_bytes", "bytes", COLUMN_INTEGER,
     "peak_allocated of the warm-up steps", from_result, RESULT(warmup_peak_allocated_bytes)},
    {"warmup_peak_reserved_bytes", "warmup_peak_reserved_bytes", "bytes", COLUMN_INTEGER,
     "peak_reserved of the warm-up steps", from_result, RESULT(warmup_peak_reserved_bytes)},
    {"steady_peak_allocated_bytes", "steady_peak_allocated_bytes", "bytes", COLUMN_INTEGER,
     "peak_allocated of the measured steps", from_result, RESULT(steady_peak_allocated_bytes)},
    {"steady_peak_reserved_bytes", "steady_peak_reserved_bytes", "bytes", COLUMN_INTEGER,
     "peak_reserved of the measured steps", from_result, RESULT(steady_peak_reserved_bytes)},
    {"base_bytes", "base_bytes", "bytes", COLUMN_INTEGER,
     "driver, when weights and input exist and nothing else of the step does", from_result,
     RESULT(base_bytes)},
    {"untracked_bytes", "untracked_bytes", "bytes", COLUMN_INTEGER, "driver growth less reserved",
     from_result, RESULT(untracked_bytes)},
    {"emulated", "emulated", "1", COLUMN_FLAG,
     "some kernels stand in for others (fp16 on a cpu): the speed is not that of the hardware meant",
     from_result, RESULT(emulated)},
    {"emulation_bytes", "emulation_bytes", "bytes", COLUMN_INTEGER,
     "category workspace:emulation: conversion buffers of such kernels, peak; beside all other figures but "
     "the driver's",
     from_result, RESULT(emulation_bytes)},
    {"peak_parameter_bytes", "peak_by_category.parameter", "bytes", COLUMN_INTEGER,
     "weights and running statistics, live at the allocated peak", from_result,
     RESULT(peak_by_category[MEMORY_PARAMETER])},
    {"peak_gradient_bytes", "peak_by_category.gradient", "bytes", COLUMN_INTEGER,
     "gradients of parameters at that moment", from_result, RESULT(peak_by_category[MEMORY_GRADIENT])},
    {"peak_optimizer_bytes", "peak_by_category.optimizer", "bytes", COLUMN_INTEGER, "optimizer state",
     from_result, RESULT(peak_by_category[MEMORY_OPTIMIZER])},
    {"peak_activation_bytes", "peak_by_category.activation", "bytes", COLUMN_INTEGER,
     "activations and their gradients", from_result, RESULT(peak_by_category[MEMORY_ACTIVATION])},
    {"peak_input_bytes", "peak_by_category.input", "bytes", COLUMN_INTEGER, "images and labels", from_result,
     RESULT(peak_by_category[MEMORY_INPUT])},
    {"peak_workspace_bytes", "peak_by_category.workspace", "bytes", COLUMN_INTEGER, "scratch of kernels",
     from_result, RESULT(peak_by_category[MEMORY_WORKSPACE])},
    {"peak_communication_bytes", "peak_by_category.communication", "bytes", COLUMN_INTEGER,
     "buffers of collectives", from_result, RESULT(peak_by_category[MEMORY_COMMUNICATION])},
    {"peak_requested_parameter_bytes", "requested_by_category.parameter", "bytes", COLUMN_INTEGER,
     "peak_parameter_bytes as asked for, before blocks are rounded up", from_result,
     RESULT(requested_by_category[MEMORY_PARAMETER])},
    {"peak_requested_gradient_bytes", "requested_by_category.gradient", "bytes", COLUMN_INTEGER,
     "the same of gradient", from_result, RESULT(requested_by_category[MEMORY_GRADIENT])},
    {"peak_requested_optimizer_bytes", "requested_by_category.optimizer", "bytes", COLUMN_INTEGER,
     "the same of optimizer", from_result, RESULT(requested_by_category[MEMORY_OPTIMIZER])},
    {"peak_requested_activation_bytes", "requested_by_category.activation", "bytes", COLUMN_INTEGER,
     "the same of activation", from_result, RESULT(requested_by_category[MEMORY_ACTIVATION])},
    {"peak_requested_input_bytes", "requested_by_category.input", "bytes", COLUMN_INTEGER,
     "the same of input", from_result, RESULT(requested_by_category[MEMORY_INPUT])},
    {"peak_requested_workspace_bytes", "requested_by_category.workspace", "bytes", COLUMN_INTEGER,
     "the same of workspace", from_result, RESULT(requested_by_category[MEMORY_WORKSPACE])},
    {"peak_requested_communication_bytes", "requested_by_category.communication", "bytes", COLUMN_INTEGER,
     "the same of communication", from_result, RESULT(requested_by_category[MEMORY_COMMUNICATION])},
    {"analytic_parameter_bytes", "analytic_by_category.parameter", "bytes", COLUMN_INTEGER,
     "what that should be, reckoned from what is needed when", from_result,
     RESULT(account.by_category[MEMORY_PARAMETER])},
    {"analytic_gradient_bytes", "analytic_by_category.gradient", "bytes", COLUMN_INTEGER,
     "the same of gradients of parameters", from_result, RESULT(account.by_category[MEMORY_GRADIENT])},
    {"analytic_optimizer_bytes", "analytic_by_category.optimizer", "bytes", COLUMN_INTEGER,
     "the same of optimizer state", from_result, RESULT(account.by_category[MEMORY_OPTIMIZER])},
    {"analytic_activation_bytes", "analytic_by_category.activation", "bytes", COLUMN_INTEGER,
     "the same of activations and their gradients", from_result,
     RESULT(account.by_category[MEMORY_ACTIVATION])},
    {"analytic_input_bytes", "analytic_by_category.input", "bytes", COLUMN_INTEGER, "the same of inputs",
     from_result, RESULT(account.by_category[MEMORY_INPUT])},
    {"analytic_workspace_bytes", "analytic_by_category.workspace", "bytes", COLUMN_INTEGER,
     "the same of scratch of kernels", from_result, RESULT(account.by_category[MEMORY_WORKSPACE])},
    {"analytic_communication_bytes", "analytic_by_category.communication", "bytes", COLUMN_INTEGER,
     "the same of buffers of collectives", from_result, RESULT(account.by_category[MEMORY_COMMUNICATION])},
    {"analytic_peak", "analytic_peak", "", COLUMN_TEXT, "node that runs at the allocated peak", analytic_peak,
     0, 0},
    {"analytic_highest_bytes", "analytic_highest_bytes", "bytes", COLUMN_INTEGER,
     "allocated peak reckoned by itself, each tensor rounded up to a block", from_result,
     RESULT(account.highest_bytes)},
    {"cached_free_bytes", "cached_free_bytes", "bytes", COLUMN_INTEGER,
     "reserved at the reserved peak, less what was allocated then", from_result, RESULT(cached_free_bytes)},
    {"reserved_over_allocated", "reserved_over_allocated", "1", COLUMN_REAL,
     "steady reserved peak over steady allocated peak", from_result, RESULT(reserved_over_allocated)},
    {"fragmentation", "fragmentation", "1", COLUMN_REAL,
     "1 - largest free block / all that is free, when a steady step had ended, highest", from_result,
     RESULT(fragmentation)},
    {"defragment_moved_bytes", "defragment_moved_bytes", "bytes", COLUMN_INTEGER,
     "moved by the compaction after the last step", moved_field, RESULT(moved_bytes)},
    {"unplanned_bytes", "unplanned_bytes", "bytes", COLUMN_INTEGER,
     "of allocator=planned: most at once that had no place in the plan", unplanned_field,
     RESULT(unplanned_bytes)},
    {"unplanned_tensor", "unplanned_tensor", "", COLUMN_TEXT, "the largest of that", unplanned_field,
     RESULT(unplanned_name)},
    {"saved_activation_bytes", "saved_activation_bytes", "bytes", COLUMN_INTEGER,
     "forward activations that backward reads, before any recomputation", from_result,
     RESULT(saved_activation_bytes)},
    {"evicted_bytes", "evicted_bytes", "bytes", COLUMN_INTEGER, "copied to the offload tier in a step",
     offload_field, RESULT(evicted_bytes)},
    {"fetched_bytes", "fetched_bytes", "bytes", COLUMN_INTEGER, "copied back from it in a step",
     offload_field, RESULT(fetched_bytes)},
    {"offload_stall_s", "offload_stall_s", "s", COLUMN_REAL,
     "mean time of a measured step that launches waited for those copies", offload_field,
     RESULT(offload_stall_s)},
    {"peak_offload_bytes", "peak_offload_bytes", "bytes", COLUMN_INTEGER,
     "reserved in the offload tier, peak; no part of needed_bytes", offload_field,
     RESULT(peak_offload_bytes)},
    {"offload_capacity_bytes", "offload_capacity_bytes", "bytes", COLUMN_INTEGER,
     "most the offload tier was allowed to hold", offload_capacity, SPEC(offload_capacity_bytes)},
    {"oom_request_bytes", "oom_request_bytes", "bytes", COLUMN_INTEGER, "request that failed", oom_field,
     RESULT(oom_request_bytes)},
    {"oom_largest_free_bytes", "oom_largest_free_bytes", "bytes", COLUMN_INTEGER,
     "largest free block then; -1: the allocator does not tell", oom_field, RESULT(oom_largest_free_bytes)},
    {"oom_segment", "oom_segment", "", COLUMN_TEXT, "forward, backward, update or setup", oom_field,
     RESULT(oom_segment)},
    {"leak_bytes_per_step", "leak_bytes_per_step", "bytes", COLUMN_INTEGER,
     "live bytes that every step after the first adds; 0: no leak", leak_field, RESULT(leak_bytes_per_step)},
    {"leak_named_bytes_per_step", "leak_named_bytes_per_step", "bytes", COLUMN_INTEGER,
     "growth of the tensors it was traced to: equal when the rate is exact", leak_field,
     RESULT(leaks_bytes_per_step)},
    {"diagnosis_anomalies", "diagnosis_anomalies", "1", COLUMN_INTEGER,
     "kinds of anomalies in the last step, where it was diagnosed", diagnosis_field,
     RESULT(diagnosis.anomaly_count)},
    {"diagnosis_start_bytes", "diagnosis_start_bytes", "bytes", COLUMN_INTEGER,
     "of that step: live when it began", diagnosis_field, RESULT(diagnosis.start_bytes)},
    {"diagnosis_expected_start_bytes", "diagnosis_expected_start_bytes", "bytes", COLUMN_INTEGER,
     "what the program keeps between steps", diagnosis_field, RESULT(diagnosis.expected_start_bytes)},
    {"diagnosis_rest_bytes", "diagnosis_rest_bytes", "bytes", COLUMN_INTEGER,
     "of blocks that hold that: rests too small to split off", diagnosis_field, RESULT(diagnosis.rest_bytes)},
    {"diagnosis_peak_bytes", "diagnosis_peak_bytes", "bytes", COLUMN_INTEGER, "of that step: live at most",
     diagnosis_field, RESULT(diagnosis.peak_bytes)},
    {"diagnosis_expected_peak_bytes", "diagnosis_expected_peak_bytes", "bytes", COLUMN_INTEGER,
     "the most that lives by what is needed when", diagnosis_field, RESULT(diagnosis.expected_peak_bytes)},
    {"diagnosis_end_bytes", "diagnosis_end_bytes", "bytes", COLUMN_INTEGER,
     "of that step: live when it had ended", diagnosis_field, RESULT(diagnosis.end_bytes)},
    {"events_per_step", "events_per_step", "1", COLUMN_INTEGER, "obtains and releases of a step", from_result,
     RESULT(events_per_step)},
    {"tracker_share", "tracker_share", "1", COLUMN_REAL, "share of the step time spent on counting",
     from_result, RESULT(tracker_share)},

    {"hardware", "hardware", "", COLUMN_TEXT, "model of the CPU or GPU", from_result,
     RESULT(device.hardware)},
    {"isa", "isa", "", COLUMN_TEXT, "instruction set the library dispatches to", from_result,
     RESULT(device.isa)},
    {"library", "library", "", COLUMN_TEXT, "library that computes, with its version", from_result,
     RESULT(device.library)},
    {"threads", "threads", "1", COLUMN_INTEGER, "threads that computed", from_result, RESULT(device.threads)},
    {"memory_bytes", "memory_bytes", "bytes", COLUMN_INTEGER, "what the machine or card has", from_result,
     RESULT(device.memory_bytes)},
    {"memory_limit_bytes", "memory_limit_bytes", "bytes", COLUMN_INTEGER, "memory that control groups allow",
     memory_limit, 0, 0},
    {"processors_limit", "processors_limit", "1", COLUMN_REAL,
     "processors' worth of time that control groups allow", processors_limit, 0, 0},
    {"governor", "governor", "", COLUMN_TEXT, "what sets the processors' clocks (cpufreq)", from_result,
     RESULT(governor)},
    {"driver_version", "driver_version", "", COLUMN_TEXT, "NVML: version of the card's driver", driver_field,
     RESULT(device.driver)},
    {"mig_profile", "mig_profile", "", COLUMN_TEXT, "kind of instance that the card was cut into",
     driver_field, RESULT(device.mig_profile)},
    {"kernel", "kernel", "", COLUMN_TEXT, "of the operating system, with its version", kernel, 0, 0},
    {"compiler", "compiler", "", COLUMN_TEXT, "that built the program", compiler, 0, 0},
    {"hostname", "hostname", "", COLUMN_TEXT, "machine it ran on", host, 0, 0},
    {"git_commit", "git_commit", "", COLUMN_TEXT, "commit the program was built from", commit, 0, 0},
    {"git_dirty", "git_dirty", "1", COLUMN_FLAG, "whether the checkout had changes", dirty, 0, 0},
    {"tool_version", "tool_version", "", COLUMN_TEXT, "version of vramlab", version, 0, 0},
    {"schema_version", "schema_version", "1", COLUMN_INTEGER, "version of this table", schema, 0, 0},
    {"created_utc", "created_utc", "", COLUMN_TEXT, "when it ended, ISO 8601", created, 0, 0},
};

const Column *vl_column_all(int32_t *count) {
  *count = (int32_t)(sizeof table / sizeof table[0]);
  return table;
}

const Column *vl_column_find(const char *name) {
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
    if (strcmp(table[i].name, name) == 0 || strcmp(table[i].path, name) == 0) return &table[i];
  return NULL;
}

const MonitorColumn vl_monitors[VL_MONITOR_COUNT] = {
    {"monitor_loss_scale", "loss_scale", "1", "the step was computed with; 1 without loss scaling"},
    {"monitor_skipped", "skipped", "1", "1: a gradient was not finite, and nothing was updated"},
    {"monitor_gradient_norm", "gradient_norm", "1", "of all gradients together, unscaled, before clipping"},
    {"monitor_flushed_share", "flushed_share", "1",
     "of the low-precision results of backward, rounded to zero from something else"},
};
