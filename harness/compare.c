/* What is compared, how it is judged, and which cells belong together. */
#include "harness/compare.h"
#include "harness/compare_ops.h"
#include "harness/report_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEP = 1 };
static const Metric metrics[] = {
    {"status", BETTER_NEITHER, COMPARE_TEXT},
    [STEP] = {"step_s", BETTER_LOWER, COMPARE_TIME},
    {"batch", BETTER_HIGHER, COMPARE_EXACT},
    {"needed_bytes", BETTER_LOWER, COMPARE_MARGIN},
    {"peak_driver_bytes", BETTER_LOWER, COMPARE_MARGIN},
    {"peak_process_bytes", BETTER_LOWER, COMPARE_MARGIN},
    {"peak_requested_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_allocated_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_reserved_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"warmup_peak_reserved_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"steady_peak_reserved_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_parameter_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_gradient_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_optimizer_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_activation_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_input_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_workspace_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_communication_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"saved_activation_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"evicted_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"peak_offload_bytes", BETTER_LOWER, COMPARE_EXACT},
    {"leak_bytes_per_step", BETTER_LOWER, COMPARE_EXACT},
    {"flops_per_step", BETTER_LOWER, COMPARE_EXACT},
    {"recompute_flops", BETTER_LOWER, COMPARE_EXACT},
    {"events_per_step", BETTER_LOWER, COMPARE_EXACT},
    {"params", BETTER_NEITHER, COMPARE_EXACT},
    {"checkpoint_chosen", BETTER_NEITHER, COMPARE_TEXT},
    {"last_loss", BETTER_NEITHER, COMPARE_LOSS},
    {"accuracy", BETTER_HIGHER, COMPARE_MARGIN},
    {"dice_mean", BETTER_HIGHER, COMPARE_MARGIN},
};
enum { METRIC_COUNT = sizeof metrics / sizeof *metrics };
_Static_assert((int)METRIC_COUNT <= (int)VL_MAX_DIFFERENCES, "a cell has room for all");

const Metric *vl_metric_all(int32_t *count) {
  *count = METRIC_COUNT;
  return metrics;
}

const char *vl_judgement_name(Judgement judgement) {
  static const char *const names[] = {"same", "unclear", "changed", "improved", "regressed"};
  return names[judgement];
}

CompareOptions vl_compare_usual(void) { return (CompareOptions){.min_change = 0.03}; }

/* ---- Cells that belong together ------------------------------------------------------------------------------- */

/* What was asked; not how often, nor by which suite. */
static const char *const asked[] = {"kind",      "engine", "case",          "settings",
                                    "inference", "queue",  "micro_batch",   "global_batch",
                                    "recipe",    "device", "profile",       "capacity_bytes",
                                    "data",      "seed",   "learning_rate", "offload_capacity_bytes"};

typedef struct Group {
  const json_t **records; /* repetitions */
  int32_t count, capacity;
} Group;

typedef struct Groups {
  Group *items;
  int32_t count;
  json_t *index; /* what was asked -> position */
} Groups;

char *vl_compare_identity(const json_t *record) {
  json_t *values = json_array();
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
    json_t *value = json_object_get(record, asked[i]);
    /* One spelling of "the largest batch that fits" and of a batch that is found. */
    bool found = strcmp(asked[i], "global_batch") == 0 || strcmp(asked[i], "micro_batch") == 0;
    const char *kind = vl_record_text(record, "kind");
    if (found && kind && strcmp(kind, "max-batch") == 0) value = NULL;
    json_array_append(values, value ? value : json_null());
  }
  if (vl_record_is_peer(record)) json_array_append(values, json_object_get(record, "device_name"));
  char *text = json_dumps(values, JSON_COMPACT | JSON_REAL_PRECISION(17));
  json_decref(values);
  return text;
}

static Groups group(const RecordSet *records) {
  Groups groups = {.items = vl_allocate((size_t)(records->count + 1) * sizeof(Group)),
                   .index = json_object()};
  for (int32_t i = 0; i < records->count; i++) {
    char *identity = vl_compare_identity(records->records[i]);
    json_t *at = json_object_get(groups.index, identity);
    if (!at) {
      at = json_integer(groups.count++);
      json_object_set_new(groups.index, identity, at);
    }
    Group *it = &groups.items[json_integer_value(at)];
    if (it->count == it->capacity) {
      it->capacity = it->capacity ? 2 * it->capacity : 4;
      it->records = vl_reallocate(it->records, (size_t)it->capacity * sizeof *it->records);
    }
    it->records[it->count++] = records->records[i];
    free(identity);
  }
  return groups;
}

static void groups_free(Groups *groups) {
  for (int32_t i = 0; i < groups->count; i++)
    free(groups->items[i].records);
  free(groups->items);
  json_decref(groups->index);
}

/* ---- Judging a cell --------------------------------------------------------------------------------------------- */

/* Of repetitions the largest: they agree, but where something is wrong. */
static double value_of(const Group *group, const char *column) {
  double value = NAN;
  for (int32_t i = 0; i < group->count; i++) {
    double each = vl_record_real(group->records[i], column);
    if (!isnan(each) && !(value >= each)) value = each;
  }
  return value;
}

static Judgement judge_change(Better better, double base, double now) {
  if (better == BETTER_NEITHER) return JUDGED_CHANGED;
  return (now > base) == (better == BETTER_LOWER) ? JUDGED_WORSE : JUDGED_BETTER;
}

/* Results of a step depend on how many came before it. */
static bool same_steps(const json_t *a, const json_t *b) {
  return vl_record_integer(a, "steps") == vl_record_integer(b, "steps") &&
         vl_record_integer(a, "warmup") == vl_record_integer(b, "warmup");
}

static void judge_number(const Group *base, const Group *now, Difference *difference) {
  const Metric *metric = difference->metric;
  double a = value_of(base, metric->column), b = value_of(now, metric->column);
  difference->base = a;
  difference->now = b;
  difference->judgement = JUDGED_SAME;
  bool is_loss = metric->by == COMPARE_LOSS;
  if ((isnan(a) && isnan(b)) || (is_loss && !same_steps(base->records[0], now->records[0]))) return;
  if (isnan(a) != isnan(b)) {
    difference->judgement = JUDGED_CHANGED;
    return;
  }
  if (is_loss) {
    vl_compare_losses(base->records[0], now->records[0], difference);
    return;
  }
  double margin = metric->by == COMPARE_MARGIN ? VL_MARGIN_PERCENT / 100.0 * fabs(a) : 0;
  if (fabs(b - a) > margin) difference->judgement = judge_change(metric->better, a, b);
}

/* Of repetitions the one that differs from "ok", if any. */
static const json_t *not_ok(const Group *group) {
  for (int32_t i = 0; i < group->count; i++)
    if (!vl_record_has_status(group->records[i], "ok")) return group->records[i];
  return NULL;
}

static const char *status_of(const Group *group) {
  const json_t *record = not_ok(group);
  return record ? vl_record_text(record, "status") : "ok";
}

static bool any_ok(const Group *group) {
  for (int32_t i = 0; i < group->count; i++)
    if (vl_record_has_status(group->records[i], "ok")) return true;
  return false;
}

/* As one line, cut between characters. */
static void set_evidence(Difference *difference, const char *text) {
  char *evidence = difference->evidence;
  size_t length = strlen(text), room = sizeof difference->evidence - 1;
  if (length > room)
    for (length = room; length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80;)
      length--; /* within a character of UTF-8 */
  for (size_t i = 0; i < length; i++)
    evidence[i] = text[i] == '\n' || text[i] == '\r' ? ' ' : text[i];
  evidence[length] = '\0';
}

static void judge_text(const Group *base, const Group *now, Difference *difference) {
  bool is_status = strcmp(difference->metric->column, "status") == 0;
  const char *a = is_status ? status_of(base) : vl_record_text(base->records[0], difference->metric->column);
  const char *b = is_status ? status_of(now) : vl_record_text(now->records[0], difference->metric->column);
  difference->base_text = a ? a : "none";
  difference->now_text = b ? b : "none";
  bool same = strcmp(difference->base_text, difference->now_text) == 0;
  difference->judgement = same                                                    ? JUDGED_SAME
                          : is_status && strcmp(difference->base_text, "ok") == 0 ? JUDGED_WORSE
                          : is_status && strcmp(difference->now_text, "ok") == 0  ? JUDGED_BETTER
                                                                                  : JUDGED_CHANGED;
  const json_t *failed = is_status ? not_ok(now) : NULL;
  const char *error = failed && !same ? vl_record_text(failed, "error") : NULL;
  if (error) set_evidence(difference, error);
}

static void judge_cell(const Group *base, const Group *now, CellComparison *cell) {
  *cell = (CellComparison){.base = base->records[0], .now = now->records[0]};
  bool predicted = vl_record_is_predicted(cell->base);
  for (int32_t i = 0; i < METRIC_COUNT; i++) {
    Difference *difference = &cell->differences[cell->count];
    *difference = (Difference){.metric = &metrics[i], .base = NAN, .now = NAN, .p = NAN, .rank_p = NAN};
    difference->ratio = (Contrast){NAN, NAN, NAN};
    switch (metrics[i].by) {
    case COMPARE_TIME:
      if (predicted)
        judge_number(base, now, difference);
      else
        vl_compare_cell_times(&(RecordSet){base->records, base->count},
                              &(RecordSet){now->records, now->count}, cell, difference);
      break;
    case COMPARE_TEXT: judge_text(base, now, difference); break;
    default: judge_number(base, now, difference); break;
    }
    bool kept = metrics[i].by == COMPARE_TIME && !predicted
                    ? difference->metric != NULL
                    : difference->judgement != JUDGED_SAME || *difference->evidence;
    if (kept) cell->count++;
    /* What did not run to its end, or not at all, has figures that say nothing beside those of what did. */
    bool is_status = strcmp(metrics[i].column, "status") == 0;
    if (is_status && kept && (!any_ok(base) || !any_ok(now))) return;
  }
}

static bool is_measured_time(const CellComparison *cell, const Difference *difference) {
  return difference->metric->by == COMPARE_TIME && !vl_record_is_predicted(cell->base);
}

/* Holm's p over all cells, then each cell's judgement. */
static void decide(const CompareOptions *options, StoreComparison *comparison) {
  int64_t count = 0, most = comparison->count + 1;
  double *p = vl_allocate((size_t)most * sizeof *p), *adjusted = vl_allocate((size_t)most * sizeof *p),
         *ratios = vl_allocate((size_t)most * sizeof *p);
  Difference **times = vl_allocate((size_t)most * sizeof *times), *together = &comparison->together;
  int64_t ratio_count = 0;
  if (vl_compare_together(comparison->cells, comparison->count, together)) {
    times[count] = together;
    p[count++] = together->p;
  }
  for (int32_t i = 0; i < comparison->count; i++) {
    CellComparison *cell = &comparison->cells[i];
    for (int32_t k = 0; k < cell->count; k++)
      if (is_measured_time(cell, &cell->differences[k])) {
        times[count] = &cell->differences[k];
        p[count++] = cell->differences[k].p;
        if (!isnan(cell->differences[k].ratio.value))
          ratios[ratio_count++] = cell->differences[k].ratio.value;
      }
  }
  vl_statistics_holm(p, count, adjusted);
  for (int64_t i = 0; i < count; i++) {
    times[i]->p = adjusted[i];
    vl_compare_decide(options->min_change, times[i]);
  }
  comparison->machine_ratio = ratio_count >= 5 ? vl_statistics_median(ratios, ratio_count) : NAN;
  for (int32_t i = 0; i < comparison->count; i++) {
    CellComparison *cell = &comparison->cells[i];
    for (int32_t k = 0; k < cell->count; k++) {
      Difference *difference = &cell->differences[k];
      if (is_measured_time(cell, difference) && difference->judgement >= JUDGED_BETTER &&
          !vl_compare_same_machine(cell->base, cell->now)) {
        difference->judgement = JUDGED_CHANGED;
        snprintf(difference->evidence, sizeof difference->evidence, "on another machine");
      }
      if (difference->judgement > cell->judgement) cell->judgement = difference->judgement;
    }
    comparison->judged[cell->judgement]++;
  }
  free(p);
  free(adjusted);
  free(ratios);
  free(times);
}

/* ---- All of it ------------------------------------------------------------------------------------------------ */

Status vl_compare_records(const RecordSet *base, const RecordSet *now, const CompareOptions *options,
                          StoreComparison *comparison) {
  *comparison = (StoreComparison){.machine_ratio = NAN, .together = {.metric = &metrics[STEP]}};
  Groups of_base = group(base), of_now = group(now);
  size_t most = (size_t)of_base.count + (size_t)of_now.count + 1;
  comparison->cells = vl_allocate(most * sizeof *comparison->cells);
  comparison->vanished = vl_allocate(most * sizeof *comparison->vanished);
  comparison->added = vl_allocate(most * sizeof *comparison->added);
  vl_compare_environments(base, now, comparison);
  const char *identity;
  json_t *at;
  json_object_foreach(of_base.index, identity, at) {
    const Group *a = &of_base.items[json_integer_value(at)];
    json_t *other = json_object_get(of_now.index, identity);
    if (other)
      judge_cell(a, &of_now.items[json_integer_value(other)], &comparison->cells[comparison->count++]);
    else
      comparison->vanished[comparison->vanished_count++] = a->records[0];
  }
  json_object_foreach(of_now.index, identity, at) if (!json_object_get(of_base.index, identity))
      comparison->added[comparison->added_count++] = of_now.items[json_integer_value(at)].records[0];
  decide(options, comparison);
  groups_free(&of_base);
  groups_free(&of_now);
  if (comparison->count == 0 && base->count > 0 && now->count > 0)
    return vl_error(VL_INVALID, "the two stores have no cell in common: %d cells and %d others", base->count,
                    now->count);
  return vl_ok();
}

bool vl_compare_regressed(const StoreComparison *comparison) {
  return comparison->judged[JUDGED_WORSE] > 0 || comparison->together.judgement == JUDGED_WORSE;
}

void vl_compare_free(StoreComparison *comparison) {
  for (int32_t i = 0; i < comparison->count; i++) {
    free(comparison->cells[i].pairs);
    vl_compare_ops_free(comparison->cells[i].ops);
  }
  free(comparison->cells);
  free(comparison->vanished);
  free(comparison->added);
  *comparison = (StoreComparison){0};
}
