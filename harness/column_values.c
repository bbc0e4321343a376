/* The values of columns: each from the cell, its result, the build or the machine, or the reason why there is
 * none. */
#include "harness/column_values.h"
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

json_t *vl_column_from_cell(const CellView *view, const Column *column, const char **reason) {
  (void)reason;
  return field_value(view->cell, column);
}

json_t *vl_column_from_result(const CellView *view, const Column *column, const char **reason) {
  (void)reason;
  return field_value(view->result, column);
}

/* ---- Values made from several ------------------------------------------------------------------------------ */

json_t *vl_column_cell_key(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  return json_string(view->key);
}

/* The store's owner fills it in: a cell does not know which suite it belongs to. */
json_t *vl_column_suite_unknown(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column;
  *reason = "not part of a suite";
  return NULL;
}

json_t *vl_column_engine_name(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_string("vramlab");
}

json_t *vl_column_kind(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  return json_string(view->cell->max_batch ? "max-batch" : "cell");
}

/* The search fills it in. */
json_t *vl_column_no_batch(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column;
  *reason = "of kind max-batch only";
  return NULL;
}

json_t *vl_column_error_text(const CellView *view, const Column *column, const char **reason) {
  *reason = "nothing went wrong";
  return field_value(view->result, column);
}

json_t *vl_column_skip_reason(const CellView *view, const Column *column, const char **reason) {
  *reason = "the cell was not skipped";
  return strcmp(view->result->status, "skipped") == 0 ? field_value(view->result, column) : NULL;
}

json_t *vl_column_settings_text(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  char text[VL_SETTINGS_BYTES];
  vl_settings_text(&view->cell->spec, text);
  *reason = "the case's own";
  return *text ? vl_json_text(text) : NULL;
}

json_t *vl_column_profile_name(const CellView *view, const Column *column, const char **reason) {
  *reason = "the machine itself";
  return field_value(view->cell, column);
}

json_t *vl_column_data_path(const CellView *view, const Column *column, const char **reason) {
  *reason = "synthetic inputs";
  return field_value(view->cell, column);
}

json_t *vl_column_queue_text(const CellView *view, const Column *column, const char **reason) {
  *reason = "samples of one size";
  return field_value(view->cell, column);
}

json_t *vl_column_capacity(const CellView *view, const Column *column, const char **reason) {
  *reason = "no limit was set";
  return view->cell->spec.capacity_bytes > 0 ? field_value(view->cell, column) : NULL;
}

json_t *vl_column_learning_rate(const CellView *view, const Column *column, const char **reason) {
  *reason = "the case's own";
  return view->cell->spec.learning_rate > 0 ? field_value(view->cell, column) : NULL;
}

json_t *vl_column_order_seed(const CellView *view, const Column *column, const char **reason) {
  *reason = "not in random order";
  return view->cell->shuffled ? field_value(view->cell, column) : NULL;
}

json_t *vl_column_timeout_limit(const CellView *view, const Column *column, const char **reason) {
  *reason = "no limit was set";
  return view->cell->timeout_s > 0 ? field_value(view->cell, column) : NULL;
}

json_t *vl_column_injected_text(const CellView *view, const Column *column, const char **reason) {
  *reason = "none was";
  return *view->cell->spec.inject ? field_value(view->cell, column) : NULL;
}

json_t *vl_column_chosen(const CellView *view, const Column *column, const char **reason) {
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

json_t *vl_column_step_median(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = step_reason(view);
  return vl_json_real(view->step.median);
}

json_t *vl_column_step_spread(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = step_reason(view);
  return vl_json_real(view->step.spread);
}

static json_t *interval(const CellView *view, double value, const char **reason) {
  *reason = view->step.samples > 0 ? "fewer than 6 samples have no 95 % interval" : step_reason(view);
  return vl_json_real(value);
}

json_t *vl_column_step_low(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return interval(view, view->step.low, reason);
}

json_t *vl_column_step_high(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return interval(view, view->step.high, reason);
}

json_t *vl_column_step_coverage(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return interval(view, view->step.coverage, reason);
}

json_t *vl_column_step_outliers(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = step_reason(view);
  return view->step.samples > 0 ? json_integer(view->outliers) : NULL;
}

json_t *vl_column_stopped_by(const CellView *view, const Column *column, const char **reason) {
  *reason = "as many steps as were asked for (--max-noise measures until it is low enough)";
  return field_value(view->result, column);
}

json_t *vl_column_step_drift(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = view->step.samples > 0 ? "fewer than 6 steps show no trend" : step_reason(view);
  return vl_json_real(view->drift.change);
}

json_t *vl_column_step_drift_p(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  *reason = view->step.samples > 0 ? "fewer than 6 steps show no trend" : step_reason(view);
  return vl_json_real(view->drift.p);
}

json_t *vl_column_interference(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->device.predicts ? "nothing is measured" : "the system does not tell, or of a queue";
  return field_value(view->result, column);
}

json_t *vl_column_processor_share(const CellView *view, const Column *column, const char **reason) {
  if (view->result->device.predicts || view->result->involuntary_switches < 0)
    return vl_column_interference(view, column, reason);
  *reason = "steps were measured for less than half a second, which is too short to tell";
  return field_value(view->result, column);
}

/* What would not be there on a machine of one's own: beyond these shares a step time is no longer the
 * program's. */
json_t *vl_column_disturbed(const CellView *view, const Column *column, const char **reason) {
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

json_t *vl_column_samples_rate(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return rate(view, view->result->global_batch, reason);
}

json_t *vl_column_samples_rate_per_rank(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return rate(view, view->result->global_batch / view->result->ranks, reason);
}

json_t *vl_column_tokens_rate(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const CellResult *r = view->result;
  if (r->tokens_per_sample > 0) return rate(view, r->global_batch * r->tokens_per_sample, reason);
  *reason = "the case has no sequences";
  return NULL;
}

json_t *vl_column_flops_rate(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  return rate(view, view->result->flops_per_step, reason);
}

json_t *vl_column_last_loss(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const CellResult *r = view->result;
  *reason = r->loss_count > 0 ? "not finite" : "nothing computed a loss";
  return r->loss_count > 0 ? vl_json_real(r->losses[r->loss_count - 1]) : NULL;
}

json_t *vl_column_moved_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "nothing compacts between steps";
  return field_value(view->result, column);
}

json_t *vl_column_unplanned_field(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->unplanned_bytes == 0 ? "everything had its place" : "of allocator=planned only";
  return field_value(view->result, column);
}

json_t *vl_column_offload_field(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->evicted_bytes >= 0 ? "nothing was waited for in a measured step"
                                             : "no step that offloads came to its end";
  return field_value(view->result, column);
}

json_t *vl_column_offload_capacity(const CellView *view, const Column *column, const char **reason) {
  *reason = "no limit was set";
  return view->cell->spec.offload_capacity_bytes > 0 ? field_value(view->cell, column) : NULL;
}

json_t *vl_column_input_time(const CellView *view, const Column *column, const char **reason) {
  *reason = view->result->device.predicts ? "not predicted" : "no step came to its end, or of a queue";
  return field_value(view->result, column);
}

json_t *vl_column_graph_share(const CellView *view, const Column *column, const char **reason) {
  *reason = strcmp(view->cell->spec.device, "cuda") == 0
                ? "launches went one by one: tiers moved, tensors were observed or ranges named"
                : "of cuda only";
  return field_value(view->result, column);
}

json_t *vl_column_graph_refusal(const CellView *view, const Column *column, const char **reason) {
  *reason = strcmp(view->cell->spec.device, "cuda") == 0 ? "none was refused" : "of cuda only";
  return field_value(view->result, column);
}

json_t *vl_column_cross_check_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "not cross-checked (--cross-check)";
  return view->result->cross_checked ? field_value(view->result, column) : NULL;
}

json_t *vl_column_volume_time(const CellView *view, const Column *column, const char **reason) {
  if (!view->result->cross_checked) return vl_column_from_result(view, column, reason);
  *reason = "cross-checked volumes tell nothing about time";
  return NULL;
}

/* Either sign is a value. */
json_t *vl_column_cross_check_difference(const CellView *view, const Column *column, const char **reason) {
  const CellResult *result = view->result;
  *reason = result->cross_checked ? "allocator=expandable: not known to be traced"
                                  : "not cross-checked (--cross-check)";
  if (!result->cross_checked || !result->cross_check_compares) return NULL;
  int64_t bytes;
  memcpy(&bytes, (const char *)result + column->offset, sizeof bytes);
  return json_integer(bytes);
}

json_t *vl_column_analytic_peak(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const MemoryAccount *account = &view->result->account;
  *reason = "not reckoned";
  if (account->term_count == 0) return NULL;
  char text[192];
  snprintf(text, sizeof text, "%s%s%s (%s)", account->op, account->scope[0] ? " in " : "", account->scope,
           vl_segment_name(account->segment));
  return vl_json_text(text);
}

json_t *vl_column_oom_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "memory did not run out";
  return strcmp(view->result->status, "oom") == 0 ? field_value(view->result, column) : NULL;
}

json_t *vl_column_first_nonfinite(const CellView *view, const Column *column, const char **reason) {
  (void)column;
  const NonFinite *first = &view->result->first_nonfinite;
  char text[4 * VL_NAME_BYTES];
  *reason = view->result->monitor_count > 0 ? "everything was finite" : "not monitored (--monitor)";
  if (first->step < 0) return NULL;
  snprintf(text, sizeof text, "%s of %s in %s, %s of step %lld", first->tensor, first->op, first->scope,
           first->segment, (long long)first->step + 1);
  return vl_json_text(text);
}

json_t *vl_column_scaler_field(const CellView *view, const Column *column, const char **reason) {
  if (view->cell->spec.inference) *reason = "forward only";
  return field_value(view->result, column);
}

json_t *vl_column_diagnosis_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "not asked for";
  return view->result->diagnosis.made ? field_value(view->result, column) : NULL;
}

json_t *vl_column_leak_field(const CellView *view, const Column *column, const char **reason) {
  *reason = "too few steps to tell a leak";
  return field_value(view->result, column);
}

json_t *vl_column_power_limit(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  int64_t mw = view->result->power_limit_mw;
  return mw < 0 ? NULL : json_integer((mw + 500) / 1000);
}

json_t *vl_column_driver_field(const CellView *view, const Column *column, const char **reason) {
  *reason = strcmp(view->cell->spec.device, "cuda") == 0 ? "not told, or none" : "of cuda only";
  return field_value(view->result, column);
}

json_t *vl_column_memory_limit(const CellView *view, const Column *column, const char **reason) {
  ControlGroup group;
  (void)column;
  *reason = view->result->device.predicts ? "not predicted" : "no limit";
  if (view->result->device.predicts) return NULL;
  vl_control_group_read("", &group);
  return group.memory_limit_bytes < 0 ? NULL : json_integer(group.memory_limit_bytes);
}

json_t *vl_column_processors_limit(const CellView *view, const Column *column, const char **reason) {
  ControlGroup group;
  (void)column;
  *reason = view->result->device.predicts ? "not predicted" : "no limit";
  if (view->result->device.predicts) return NULL;
  vl_control_group_read("", &group);
  return vl_json_real(group.processors);
}

json_t *vl_column_kernel(const CellView *view, const Column *column, const char **reason) {
  struct utsname system;
  char text[2 * sizeof system.sysname];
  (void)column;
  *reason = "not predicted";
  if (view->result->device.predicts || uname(&system) != 0) return NULL;
  snprintf(text, sizeof text, "%s %s", system.sysname, system.release);
  return vl_json_text(text);
}

json_t *vl_column_compiler(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_string(vl_build_facts().compiler);
}

json_t *vl_column_host(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  char text[256];
  vl_host_name(text, sizeof text);
  return vl_json_text(text);
}

json_t *vl_column_commit(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column;
  BuildFacts facts = vl_build_facts();
  *reason = "not built from a git checkout";
  return *facts.git_commit ? json_string(facts.git_commit) : NULL;
}

json_t *vl_column_dirty(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_boolean(vl_build_facts().git_dirty);
}

json_t *vl_column_version(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_string(vl_build_facts().version);
}

json_t *vl_column_schema(const CellView *view, const Column *column, const char **reason) {
  (void)view, (void)column, (void)reason;
  return json_integer(VL_SCHEMA_VERSION);
}

json_t *vl_column_created(const CellView *view, const Column *column, const char **reason) {
  (void)column, (void)reason;
  return json_string(view->created_utc);
}
