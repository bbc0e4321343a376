/* The cells of several stores that can stand side by side, and the metrics they are compared by. */
#include "harness/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b) { return strcmp(a ? a : "", b ? b : "") == 0; }

SideProvenance vl_side_provenance(const json_t *record) {
  if (!vl_record_is_predicted(record)) return SIDE_MEASURED;
  return same_text(vl_record_text(record, "provenance"), "modelled") ? SIDE_MODELLED : SIDE_PREDICTED;
}

const char *vl_side_provenance_name(SideProvenance provenance) {
  static const char *const names[] = {"measured", "predicted", "modelled"};
  return names[provenance];
}

int32_t vl_side_label(const PlotInput *input, const json_t *record) {
  const char *label = vl_record_text(record, "label");
  for (int32_t i = 0; label && i < input->label_count; i++)
    if (strcmp(input->labels[i], label) == 0) return i;
  return -1;
}

/* ---- Metrics of a cell --------------------------------------------------------------------------------------------- */

static double real_of(const json_t *record, const char *column) { return vl_record_real(record, column); }

double vl_side_throughput(const json_t *record, double *low, double *high) {
  double rate = real_of(record, "samples_per_s"), step = real_of(record, "step_s");
  double step_low = real_of(record, "step_s_low"), step_high = real_of(record, "step_s_high");
  if (vl_record_is_emulated(record)) rate = NAN; /* its speed is not that of the hardware meant */
  *low = step_high > 0 ? rate * step / step_high : NAN;
  *high = step_low > 0 ? rate * step / step_low : NAN;
  return rate;
}

static double needed(const json_t *record, double *low, double *high) {
  double gib = real_of(record, "needed_bytes") * 0x1p-30;
  *low = *high = NAN;
  return gib > 0 ? gib : NAN;
}

static double per_gib(const json_t *record, double *low, double *high) {
  double rate = vl_side_throughput(record, low, high), none;
  double gib = needed(record, &none, &none);
  *low /= gib, *high /= gib;
  return rate / gib;
}

static double per_joule(const json_t *record, double *low, double *high) {
  double samples = (double)vl_record_batch(record) * real_of(record, "step_count");
  double joules = real_of(record, "energy_mj") * 1e-3;
  *low = *high = NAN;
  return joules > 0 && !vl_record_is_emulated(record) ? samples / joules : NAN;
}

static double largest_batch(const json_t *record, double *low, double *high) {
  *low = *high = NAN;
  return real_of(record, "batch");
}

static const SideMetric metrics[] = {
    {"max-batch", "max-batch", false, false, "samples", largest_batch, "%.0f"},
    {"throughput-equal-batch", "cell", true, false, "1/s", vl_side_throughput, "%.4g"},
    {"throughput-best", "cell", false, true, "1/s", vl_side_throughput, "%.4g"},
    {"speedup", "cell", true, false, "x", vl_side_throughput, "%.2f"},
    {"needed", "cell", true, false, "GiB", needed, "%.2f"},
    {"samples-per-gib", "cell", true, false, "1/s and GiB", per_gib, "%.4g"},
    {"samples-per-joule", "cell", true, false, "1/J", per_joule, "%.3g"},
    {"prediction-error", "cell", true, false, "%", NULL, "%+.1f"},
};

const SideMetric *vl_side_metric(const char *name) {
  for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
    if (strcmp(metrics[i].name, name) == 0) return &metrics[i];
  return NULL;
}

/* ---- Cells ------------------------------------------------------------------------------------------------------------- */

/* Once each. */
void vl_side_leave_out(Side *side, const char *name, const char *differs, const char *why) {
  SideLeftOut entry = {.name = ""}; /* all bytes set: entries are compared as a whole */
  snprintf(entry.name, sizeof entry.name, "%.120s", name);
  snprintf(entry.differs, sizeof entry.differs, "%s", differs);
  snprintf(entry.why, sizeof entry.why, "%.*s", (int)vl_display_prefix(why, sizeof entry.why - 1, SIZE_MAX),
           why);
  for (int32_t i = 0; i < side->left_out_count; i++)
    if (memcmp(&side->left_out[i], &entry, sizeof entry) == 0) return;
  if (side->left_out_count == side->left_out_capacity) {
    side->left_out_capacity = side->left_out_capacity ? 2 * side->left_out_capacity : 16;
    side->left_out = vl_reallocate(side->left_out, (size_t)side->left_out_capacity * sizeof *side->left_out);
  }
  side->left_out[side->left_out_count++] = entry;
}

static bool is_of(const Workload *workload, const json_t *record, const char *kind) {
  Workload its = vl_record_workload(record);
  return same_text(vl_record_text(record, "kind"), kind) && same_text(its.case_name, workload->case_name) &&
         same_text(its.settings, workload->settings) && same_text(its.queue, workload->queue) &&
         its.inference == workload->inference && !vl_record_is_peer(record);
}

/* A limit that is not the device's own memory. */
static int64_t capacity_of(const json_t *record) {
  int64_t capacity = vl_record_integer(record, "capacity_bytes"),
          memory = vl_record_integer(record, "memory_bytes");
  return capacity <= 0 || llabs(capacity - memory) < memory / 64 ? 0 : capacity;
}

bool vl_side_same_hardware(const json_t *a, const json_t *b) {
  const char *left = vl_record_text(a, "hardware"), *right = vl_record_text(b, "hardware");
  return !left || !right || strcmp(left, right) == 0;
}

bool vl_side_same_cell(const SideCell *a, const SideCell *b) {
  return a->label == b->label && a->batch == b->batch && a->capacity_bytes == b->capacity_bytes &&
         a->provenance == b->provenance && same_text(a->recipe, b->recipe) && same_text(a->gate, b->gate) &&
         vl_side_same_hardware(a->record, b->record);
}

void vl_side_name_cell(const char *recipe, int64_t batch, int64_t capacity_bytes, char *name, size_t size) {
  char capacity[32] = "", samples[32] = "";
  if (batch > 0) snprintf(samples, sizeof samples, ", batch %lld", (long long)batch);
  if (capacity_bytes > 0) vl_format_bytes(capacity_bytes, capacity, sizeof capacity);
  snprintf(name, size, "%s%s%s%s", recipe, samples, capacity_bytes > 0 ? " in " : "", capacity);
}

/* The label's baseline at a batch, to hold a recipe's results against. */
static const json_t *baseline_of(const Side *side, const SideCell *cell) {
  for (int32_t i = 0; i < side->cell_count; i++) {
    const SideCell *other = &side->cells[i];
    if (other->label == cell->label && other->batch == cell->batch && other->provenance == cell->provenance &&
        same_text(other->recipe, "baseline") && vl_side_same_hardware(other->record, cell->record) &&
        vl_record_has_status(other->record, "ok"))
      return other->record;
  }
  return NULL;
}

static void drop_broken(Side *side) {
  int32_t kept = 0;
  bool *broken = vl_allocate((size_t)(side->cell_count + 1) * sizeof *broken);
  for (int32_t i = 0; i < side->cell_count; i++) {
    const SideCell *cell = &side->cells[i];
    /* Only what was measured has losses. */
    broken[i] = cell->provenance == SIDE_MEASURED &&
                vl_record_equality(cell->record, baseline_of(side, cell)).outcome == OUTCOME_BROKEN;
    if (!broken[i]) continue;
    char name[VL_RECIPE_BYTES + 64], why[160];
    vl_side_name_cell(cell->recipe, cell->batch, cell->capacity_bytes, name, sizeof name);
    snprintf(why, sizeof why, "%.60s: promised %.30s, its losses are not the baseline's",
             side->input->labels[cell->label], cell->gate ? cell->gate : "nothing");
    vl_side_leave_out(side, name, "gate", why);
  }
  for (int32_t i = 0; i < side->cell_count; i++)
    if (!broken[i]) side->cells[kept++] = side->cells[i];
  side->cell_count = kept;
  free(broken);
}

void vl_side_collect(const PlotInput *input, const Workload *workload, const char *kind, Side *side) {
  *side = (Side){.input = input, .workload = workload};
  const RecordSet *records = &input->records;
  side->cells = vl_allocate((size_t)(records->count + 1) * sizeof *side->cells);
  for (int pass = SIDE_MEASURED; pass < SIDE_PROVENANCE_COUNT; pass++)
    for (int32_t i = 0; i < records->count; i++) {
      const json_t *record = records->records[i];
      int32_t label = vl_side_label(input, record);
      if (label < 0 || (int)vl_side_provenance(record) != pass || !is_of(workload, record, kind)) continue;
      const char *recipe = vl_record_text(record, "recipe");
      side->cells[side->cell_count++] = (SideCell){.record = record,
                                                   .recipe = recipe ? recipe : "unnamed",
                                                   .gate = vl_record_text(record, "preserves"),
                                                   .batch = vl_record_batch(record),
                                                   .capacity_bytes = capacity_of(record),
                                                   .label = label,
                                                   .provenance = (SideProvenance)pass};
    }
  drop_broken(side);
}

double vl_side_median(const Side *side, const SideCell *cell, const SideMetric *metric, double *low,
                      double *high) {
  double *values = vl_allocate((size_t)(side->cell_count + 1) * sizeof *values), median = NAN;
  int64_t count = 0;
  *low = *high = NAN;
  for (int32_t i = 0; i < side->cell_count; i++) {
    const SideCell *other = &side->cells[i];
    if (!vl_side_same_cell(other, cell) || !vl_record_has_status(other->record, "ok")) continue;
    double its_low, its_high, value = metric->of(other->record, &its_low, &its_high);
    if (!isfinite(value)) continue;
    if (count == 0) median = value, *low = its_low, *high = its_high;
    values[count++] = value;
  }
  if (count > 1) {
    Estimate estimate = vl_statistics_estimate(values, count);
    median = estimate.median, *low = estimate.low, *high = estimate.high;
  }
  free(values);
  return median;
}
