/* Which cells of several stores stand side by side, and what each label has there. */
#include "harness/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b) { return strcmp(a ? a : "", b ? b : "") == 0; }

/* ---- Groups ------------------------------------------------------------------------------------------------------------ */

/* A cell that did not run may not know its gate: it is no other for that. */
static bool same_gate(const char *a, const char *b) { return !a || !b || strcmp(a, b) == 0; }

static SideGroup *group_of(Side *side, const char *recipe, const char *gate, int64_t batch,
                           int64_t capacity_bytes) {
  for (int32_t i = 0; i < side->count; i++) {
    SideGroup *group = &side->groups[i];
    if (!same_text(group->recipe, recipe) || group->batch != batch ||
        group->capacity_bytes != capacity_bytes || !same_gate(group->gate, gate))
      continue;
    if (!group->gate) group->gate = gate;
    return group;
  }
  if (side->count == side->capacity) {
    side->capacity = side->capacity ? 2 * side->capacity : 16;
    side->groups = vl_reallocate(side->groups, (size_t)side->capacity * sizeof *side->groups);
  }
  SideGroup *group = &side->groups[side->count++];
  *group = (SideGroup){.recipe = recipe, .gate = gate, .batch = batch, .capacity_bytes = capacity_bytes};
  vl_side_name_cell(recipe, batch, capacity_bytes, group->name, sizeof group->name);
  for (int32_t l = 0; l < VL_MAX_LABELS; l++)
    group->values[l] = (SideValue){.value = NAN, .low = NAN, .high = NAN};
  return group;
}

static bool is_word(const SideValue *value, const char *word) { return strcmp(value->word, word) == 0; }

/* One label has one device: numbers of another do not stand for it. */
static bool is_of_other_device(Side *side, const SideGroup *group, const SideCell *cell) {
  const SideValue *value = &group->values[cell->label];
  if (!value->record || vl_side_same_hardware(value->record, cell->record)) return false;
  char why[240];
  snprintf(why, sizeof why, "%.60s: %.80s shown, %.80s not", side->input->labels[cell->label],
           vl_record_text(value->record, "hardware"), vl_record_text(cell->record, "hardware"));
  vl_side_leave_out(side, group->name, "device", why);
  return true;
}

static const char *word_of_status(const json_t *record) {
  const char *status = vl_record_text(record, "status");
  if (!status || strcmp(status, "ok") == 0) return "n/a";
  return strcmp(status, "oom") == 0 ? "OOM" : status;
}

/* Cells come measured first: a predicted one counts where nothing was measured. */
static void take(const Side *side, const SideMetric *metric, const SideCell *cell, SideValue *value) {
  if (value->record &&
      (value->provenance != cell->provenance ? !is_word(value, "skipped") : isfinite(value->value)))
    return;
  *value = (SideValue){.provenance = cell->provenance, .record = cell->record};
  value->value = vl_side_median(side, cell, metric, &value->low, &value->high);
  if (isfinite(value->value))
    snprintf(value->word, sizeof value->word, metric->format, value->value);
  else
    snprintf(value->word, sizeof value->word, "%s", word_of_status(cell->record));
}

/* Of groups at several batches one, with each label's best. */
static void fold_batches(Side *side, const SideMetric *metric) {
  Side folded = {.groups = NULL};
  for (int32_t g = 0; g < side->count; g++) {
    const SideGroup *group = &side->groups[g];
    SideGroup *all = group_of(&folded, group->recipe, group->gate, 0, group->capacity_bytes);
    for (int32_t l = 0; l < side->input->label_count; l++) {
      const SideValue *value = &group->values[l];
      SideValue *best = &all->values[l];
      bool stronger = best->record && value->provenance < best->provenance && isfinite(value->value);
      bool weaker = best->record && value->provenance > best->provenance && isfinite(best->value);
      if (!value->record || weaker ||
          (!stronger && best->record && !(value->value > best->value) &&
           (isfinite(best->value) || !isfinite(value->value))))
        continue;
      *best = *value;
      if (!isfinite(value->value)) continue;
      char number[VL_SIDE_WORD_BYTES];
      snprintf(number, sizeof number, metric->format, value->value);
      snprintf(best->word, sizeof best->word, "%.20s at %lld", number, (long long)group->batch);
    }
  }
  free(side->groups);
  side->groups = folded.groups;
  side->count = folded.count;
  side->capacity = folded.capacity;
}

static void gather(Side *side, const SideMetric *metric) {
  for (int32_t i = 0; i < side->cell_count; i++) {
    const SideCell *cell = &side->cells[i];
    SideGroup *group = group_of(side, cell->recipe, cell->gate,
                                metric->equal_batch || metric->best ? cell->batch : 0, cell->capacity_bytes);
    if (!is_of_other_device(side, group, cell)) take(side, metric, cell, &group->values[cell->label]);
  }
  if (metric->best) fold_batches(side, metric);
}

/* Needed memory, predicted against measured, of the same cell of one label; in percent of what was measured.
 */
static void gather_errors(Side *side) {
  const SideMetric *needed_memory = vl_side_metric("needed");
  for (int32_t i = 0; i < side->cell_count; i++) {
    const SideCell *measured = &side->cells[i];
    if (measured->provenance != SIDE_MEASURED) continue;
    for (int32_t j = 0; j < side->cell_count; j++) {
      SideCell as_measured = side->cells[j];
      as_measured.provenance = SIDE_MEASURED;
      if (side->cells[j].provenance != SIDE_PREDICTED || !vl_side_same_cell(&as_measured, measured)) continue;
      SideGroup *group =
          group_of(side, measured->recipe, measured->gate, measured->batch, measured->capacity_bytes);
      SideValue *value = &group->values[measured->label];
      if (isfinite(value->value) || is_of_other_device(side, group, measured)) break;
      double low, high;
      value->record = measured->record;
      value->value = 100 * (vl_side_median(side, &side->cells[j], needed_memory, &low, &high) /
                                vl_side_median(side, measured, needed_memory, &low, &high) -
                            1);
      if (isfinite(value->value))
        snprintf(value->word, sizeof value->word, "%+.1f", value->value);
      else
        snprintf(value->word, sizeof value->word, "%s", word_of_status(measured->record));
      break;
    }
  }
}

/* ---- What has no counterpart ------------------------------------------------------------------------------------------- */

static void append(char *text, size_t size, const char *more) {
  size_t used = strlen(text);
  snprintf(text + used, size - used, "%s", more);
}

/* What another group, of the same recipe in other labels, has in the place of what this one has. */
typedef enum Difference { DIFFERENT_GATE, DIFFERENT_CAPACITY, DIFFERENT_BATCH, DIFFERENCE_COUNT } Difference;
static const char *const difference_names[] = {"gate", "capacity", "global batch"};

static bool differs_in(const SideGroup *a, const SideGroup *b, Difference difference) {
  bool gate = !same_gate(a->gate, b->gate), capacity = a->capacity_bytes != b->capacity_bytes,
       batch = a->batch != b->batch;
  if (!same_text(a->recipe, b->recipe)) return false;
  switch (difference) {
  case DIFFERENT_GATE: return gate && !capacity && !batch;
  case DIFFERENT_CAPACITY: return capacity && !batch;
  default: return batch;
  }
}

static void value_of(const SideGroup *group, Difference difference, char *text, size_t size) {
  if (difference == DIFFERENT_GATE)
    snprintf(text, size, "%s", group->gate ? group->gate : "unknown");
  else if (difference == DIFFERENT_BATCH)
    snprintf(text, size, "%lld", (long long)group->batch);
  else if (group->capacity_bytes > 0)
    vl_format_bytes(group->capacity_bytes, text, size);
  else
    snprintf(text, size, "its own memory");
}

/* "B: 8, 16" for each label that has the recipe, but differs; false: none does. */
static bool list_others(const Side *side, const SideGroup *group, Difference difference, char *why,
                        size_t size) {
  bool any = false;
  for (int32_t l = 0; l < side->input->label_count; l++) {
    int32_t listed = 0;
    for (int32_t g = 0; g < side->count; g++) {
      const SideGroup *other = &side->groups[g];
      if (!other->values[l].record || group->values[l].record || !differs_in(group, other, difference))
        continue;
      char text[96], value[48];
      value_of(other, difference, value, sizeof value);
      if (listed == 0)
        snprintf(text, sizeof text, "; %.40s: %.40s", side->input->labels[l], value);
      else
        snprintf(text, sizeof text, ", %s", value);
      append(why, size, listed == 4 ? ", ..." : listed < 4 ? text : "");
      listed++;
    }
    any = any || listed > 0;
  }
  return any;
}

/* Of a group that one label alone has. */
static void explain_alone(Side *side, const SideGroup *group, int32_t only) {
  char why[240], value[48];
  for (int difference = DIFFERENT_GATE; difference < DIFFERENCE_COUNT; difference++) {
    value_of(group, (Difference)difference, value, sizeof value);
    snprintf(why, sizeof why, "%.40s: %s", side->input->labels[only], value);
    if (!list_others(side, group, (Difference)difference, why, sizeof why)) continue;
    vl_side_leave_out(side, group->name, difference_names[difference], why);
    return;
  }
  snprintf(why, sizeof why, "%.40s: %.60s", side->input->labels[only], group->recipe);
  for (int32_t l = 0; l < side->input->label_count; l++) {
    if (l == only) continue;
    snprintf(value, sizeof value, "; %.32s: not run", side->input->labels[l]);
    append(why, sizeof why, value);
  }
  vl_side_leave_out(side, group->name, "recipe", why);
}

static int32_t labels_of(const Side *side, const SideGroup *group, int32_t *only) {
  int32_t labels = 0;
  for (int32_t l = 0; l < side->input->label_count; l++)
    if (group->values[l].record) labels++, *only = l;
  return labels;
}

typedef enum Known { KNOWN_NOTHING = 0, KNOWN_FAILURE, KNOWN_VALUE } Known;

static Known known_of(const Side *side, const SideGroup *group) {
  Known known = KNOWN_NOTHING;
  for (int32_t l = 0; l < side->input->label_count; l++) {
    const SideValue *value = &group->values[l];
    if (isfinite(value->value)) return KNOWN_VALUE;
    if (value->record && !is_word(value, "n/a")) known = KNOWN_FAILURE;
  }
  return known;
}

static bool is_baseline(const SideGroup *group) { return same_text(group->recipe, "baseline"); }

/* Whether a group goes above the one at `at`, of `count` that are in order: the baseline first, then recipes
 * as they came, each from the smallest batch and limit up. */
static bool comes_before(const Side *side, int32_t count, const SideGroup *group, int32_t at) {
  const SideGroup *other = &side->groups[at];
  if (same_text(group->recipe, other->recipe))
    return group->batch != other->batch ? group->batch < other->batch
                                        : group->capacity_bytes < other->capacity_bytes;
  if (is_baseline(other)) return false;
  if (is_baseline(group)) return true;
  for (int32_t g = 0; g < count && g < at; g++) /* its own are further up */
    if (same_text(side->groups[g].recipe, group->recipe)) return true;
  return false;
}

/* Keeps what at least so many labels have, the baseline first. */
static void keep_common(Side *side, int32_t least) {
  int32_t kept = 0, only = 0;
  bool any_value = false;
  for (int32_t g = 0; g < side->count; g++)
    if (labels_of(side, &side->groups[g], &only) < least) explain_alone(side, &side->groups[g], only);
  for (int32_t g = 0; g < side->count; g++) {
    SideGroup group = side->groups[g];
    Known known = known_of(side, &group);
    int32_t labels = labels_of(side, &group, &only);
    if (known == KNOWN_NOTHING || labels < least) continue;
    any_value = any_value || known == KNOWN_VALUE;
    int32_t at = kept++;
    for (; at > 0 && comes_before(side, kept - 1, &group, at - 1); at--)
      side->groups[at] = side->groups[at - 1];
    side->groups[at] = group;
  }
  side->any_failed = kept > 0 && !any_value;
  side->count = any_value ? kept : 0;
}

/* Each over the reference's of the same group; without that there is nothing to say. */
static void divide_by_reference(Side *side) {
  int32_t reference = side->input->reference, kept = 0;
  for (int32_t g = 0; g < side->count; g++) {
    SideGroup *group = &side->groups[g];
    const SideValue by = group->values[reference];
    if (!(by.value > 0)) {
      char why[160];
      snprintf(why, sizeof why, "%.60s, the reference, has no time: %s", side->input->labels[reference],
               by.record ? by.word : "not run");
      vl_side_leave_out(side, group->name, "reference", why);
      continue;
    }
    for (int32_t l = 0; l < side->input->label_count; l++) {
      SideValue *value = &group->values[l];
      if (!isfinite(value->value)) continue;
      value->value /= by.value;
      value->low = l == reference ? NAN : value->low / by.high;
      value->high = l == reference ? NAN : value->high / by.low;
      if (value->provenance < by.provenance) value->provenance = by.provenance;
      snprintf(value->word, sizeof value->word, "%.2f", value->value);
    }
    side->groups[kept++] = *group;
  }
  side->count = kept;
}

/* "V100: resnet50 training; cpu: none": what other labels ran of the case, where one alone has the workload.
 */
static void explain_workload(Side *side, int32_t only) {
  const RecordSet *records = &side->input->records;
  char name[128], text[96], why[240];
  vl_workload_text(side->workload, text, sizeof text);
  snprintf(name, sizeof name, "all of %.100s", text);
  snprintf(why, sizeof why, "%.40s: %.80s", side->input->labels[only], text);
  for (int32_t l = 0; l < side->input->label_count; l++) {
    char more[160];
    snprintf(text, sizeof text, "none of the case");
    for (int32_t i = records->count - 1; i >= 0; i--) {
      Workload its = vl_record_workload(records->records[i]);
      if (vl_side_label(side->input, records->records[i]) == l &&
          same_text(its.case_name, side->workload->case_name))
        vl_workload_text(&its, text, sizeof text);
    }
    snprintf(more, sizeof more, "; %.40s: %.80s", side->input->labels[l], text);
    if (l != only) append(why, sizeof why, more);
  }
  vl_side_leave_out(side, name, "workload", why);
}

/* The one label that all cells have; -1: there are none, or they have several. */
static int32_t only_label(const Side *side) {
  for (int32_t i = 1; i < side->cell_count; i++)
    if (side->cells[i].label != side->cells[0].label) return -1;
  return side->cell_count > 0 ? side->cells[0].label : -1;
}

void vl_side_gather(const PlotInput *input, const Workload *workload, const SideMetric *metric, Side *side) {
  vl_side_collect(input, workload, metric->kind, side);
  int32_t only = only_label(side);
  if (metric->of && input->label_count > 1 && only >= 0) {
    explain_workload(side, only);
    return;
  }
  if (metric->of)
    gather(side, metric);
  else
    gather_errors(side);
  /* How far a plan is off needs no other label beside it. */
  keep_common(side, metric->of && input->label_count > 1 ? 2 : 1);
  if (strcmp(metric->name, "speedup") == 0) divide_by_reference(side);
}

void vl_side_clear(Side *side) {
  free(side->cells);
  free(side->groups);
  free(side->left_out);
}
