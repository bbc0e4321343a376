#include "harness/checkpoint_cells.h"
#include "harness/report_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool vl_checkpoint_cell(const json_t *record, CheckpointCell *cell) {
  const char *text = vl_record_text(record, "recipe");
  Recipe recipe;
  *cell = (CheckpointCell){.granularity = CHECKPOINT_NONE};
  if (text == NULL || !vl_record_has_status(record, "ok") || vl_record_flag(record, "inference") ||
      vl_record_is_peer(record) || vl_recipe_parse(text, &recipe).code != VL_OK)
    return false;
  for (int32_t i = 0; i < recipe.count; i++) {
    if (strcmp(recipe.items[i].optimization->name, "checkpoint") != 0) continue;
    const char *value = recipe.items[i].value;
    char *end = NULL;
    bool ops = strncmp(value, "ops:", 4) == 0;
    cell->interval = strtoll(value + (ops ? 4 : 0), &end, 10); /* 0 where no digit begins the value */
    cell->granularity = ops                           ? CHECKPOINT_OPS
                        : cell->interval > 0 && !*end ? CHECKPOINT_BLOCKS
                        : strcmp(value, "model") == 0 ? CHECKPOINT_MODEL
                                                      : CHECKPOINT_OTHER;
    recipe.count--;
    memmove(&recipe.items[i], &recipe.items[i + 1], (size_t)(recipe.count - i) * sizeof recipe.items[0]);
    break;
  }
  vl_recipe_format(&recipe, cell->rest, sizeof cell->rest);
  return true;
}

bool vl_checkpoint_same_job(const json_t *a, const json_t *b) {
  static const char *const numbers[] = {"micro_batch", "capacity_bytes", "threads"};
  static const char *const texts[] = {"case", "settings", "profile", "device"};
  CheckpointCell left, right;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    if (vl_record_integer(a, numbers[i]) != vl_record_integer(b, numbers[i])) return false;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    if (!vl_record_same_text(a, b, texts[i])) return false;
  return vl_same_device(a, b) && vl_checkpoint_cell(a, &left) && vl_checkpoint_cell(b, &right) &&
         strcmp(left.rest, right.rest) == 0;
}

const json_t *vl_checkpoint_find(const RecordSet *cells, const json_t *like, Granularity granularity,
                                 int64_t interval) {
  CheckpointCell its;
  for (int32_t i = 0; i < cells->count; i++)
    if (vl_checkpoint_cell(cells->records[i], &its) && its.granularity == granularity &&
        (interval == 0 || its.interval == interval) && vl_checkpoint_same_job(cells->records[i], like))
      return cells->records[i];
  return NULL;
}

bool vl_checkpoint_is_first(const RecordSet *cells, int32_t i) {
  CheckpointCell its;
  if (!vl_checkpoint_cell(cells->records[i], &its)) return false;
  for (int32_t k = 0; k < i; k++)
    if (vl_checkpoint_same_job(cells->records[k], cells->records[i])) return false;
  return true;
}

void vl_checkpoint_job_text(const json_t *record, char *text, size_t size) {
  CheckpointCell its;
  const char *name = vl_record_text(record, "case"), *settings = vl_record_text(record, "settings");
  bool plain = !vl_checkpoint_cell(record, &its) || strcmp(its.rest, "baseline") == 0;
  snprintf(text, size, "%s%s%s, batch %lld%s%s", name != NULL ? name : "unnamed", settings != NULL ? " " : "",
           settings != NULL ? settings : "", (long long)vl_record_batch(record), plain ? "" : ", ",
           plain ? "" : its.rest);
}

double vl_checkpoint_counted(const json_t *record) {
  int64_t repeated = vl_record_integer(record, "recompute_flops");
  int64_t all = vl_record_integer(record, "flops_per_step");
  return repeated >= 0 && all > repeated ? (double)repeated / (double)(all - repeated) : NAN;
}

/* Of a cell and its repetitions. */
static double median_step(const RecordSet *cells, const json_t *like) {
  double *values = vl_allocate(sizeof(double) * (size_t)(cells->count + 1));
  int64_t count = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    double value = vl_record_real(cells->records[i], "step_s");
    if (isfinite(value) && vl_record_same_text(cells->records[i], like, "recipe") &&
        vl_checkpoint_same_job(cells->records[i], like))
      values[count++] = value;
  }
  double median = vl_statistics_median(values, count);
  free(values);
  return median;
}

double vl_checkpoint_measured(const RecordSet *cells, const json_t *baseline, const json_t *record,
                              double *low, double *high) {
  *low = *high = NAN;
  if (vl_record_is_predicted(record) || vl_record_is_emulated(record)) return NAN;
  double before = median_step(cells, baseline), after = median_step(cells, record);
  if (!(before > 0) || !(after > 0)) return NAN;
  *low = vl_record_real(record, "step_s_low") / vl_record_real(baseline, "step_s_high") - 1;
  *high = vl_record_real(record, "step_s_high") / vl_record_real(baseline, "step_s_low") - 1;
  return after / before - 1;
}
