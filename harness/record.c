/* Records: from a result to one JSON object, and reading values back. */
#include "harness/columns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- JSON values that cannot fail ------------------------------------------------------------------------ */

json_t *vl_json_text(const char *text) {
  json_t *json = json_string(text);
  if (json) return json;
  char *plain = vl_copy_text(text);
  for (char *c = plain; *c; c++)
    if ((unsigned char)*c >= 0x80) *c = '?';
  json = json_string(plain);
  free(plain);
  return json;
}

json_t *vl_json_real(double value) { return isfinite(value) ? json_real(value) : NULL; }

void vl_host_name(char *text, size_t size) {
  if (gethostname(text, size) != 0) snprintf(text, size, "unknown");
  text[size - 1] = '\0';
}

/* ---- Keys -------------------------------------------------------------------------------------------------- */

/* Every field that decides what is run, one a line. Strings are last on their line, so that no value can look
 * like another field. */
static void hash_field(uint64_t *hash, const char *name, const char *value) {
  *hash = vl_hash_text(*hash, name);
  *hash = vl_hash_text(*hash, "=");
  *hash = vl_hash_text(*hash, value);
  *hash = vl_hash_text(*hash, "\n");
}

static void hash_number(uint64_t *hash, const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  hash_field(hash, name, text);
}

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void canonical_recipe(const char *text, char canonical[VL_RECIPE_BYTES], Recipe *recipe) {
  memset(recipe, 0, sizeof *recipe);
  Status status = vl_recipe_parse(text, recipe);
  if (status.code == VL_OK)
    vl_recipe_format(recipe, canonical, VL_RECIPE_BYTES);
  else
    snprintf(canonical, VL_RECIPE_BYTES, "%s", text);
}

void vl_cell_key(const SuiteCell *cell, char key[17]) {
  const CellSpec *spec = &cell->spec;
  uint64_t hash = vl_hash_start;
  char recipe_text[VL_RECIPE_BYTES], rate[40];
  Recipe recipe;
  canonical_recipe(spec->recipe, recipe_text, &recipe);
  snprintf(rate, sizeof rate, "%a", spec->learning_rate > 0 ? spec->learning_rate : 0.0);
  hash_number(&hash, "schema", VL_SCHEMA_VERSION);
  hash_field(&hash, "case", spec->case_name);
  hash_field(&hash, "recipe", recipe_text);
  hash_field(&hash, "device", spec->device);
  hash_field(&hash, "profile", spec->profile);
  const char *settings[VL_MAX_SETTINGS];
  for (int32_t i = 0; i < spec->setting_count; i++)
    settings[i] = spec->settings[i];
  qsort(settings, (size_t)spec->setting_count, sizeof *settings, compare_texts);
  for (int32_t i = 0; i < spec->setting_count; i++)
    hash_field(&hash, "set", settings[i]);
  hash_number(&hash, "micro_batch", spec->micro_batch);
  if (spec->global_batch > 0) hash_number(&hash, "global_batch", spec->global_batch);
  hash_number(&hash, "capacity_bytes", spec->capacity_bytes);
  hash_number(&hash, "threads", spec->threads);
  hash_number(&hash, "warmup", spec->warmup);
  hash_number(&hash, "steps", spec->steps);
  hash_number(&hash, "seed", (int64_t)spec->seed);
  hash_number(&hash, "inference", spec->inference);
  hash_number(&hash, "timeline", spec->timeline);
  hash_field(&hash, "data", spec->data);
  hash_field(&hash, "save_state", spec->save_state);
  hash_field(&hash, "load_state", spec->load_state);
  hash_field(&hash, "learning_rate", rate);
  hash_number(&hash, "repeat", cell->repeat);
  if (spec->offload_capacity_bytes > 0)
    hash_number(&hash, "offload_capacity_bytes", spec->offload_capacity_bytes);
  if (*spec->offload_directory) hash_field(&hash, "offload_directory", spec->offload_directory);
  if (spec->monitor) hash_number(&hash, "monitor", 1);
  if (spec->cross_check) hash_number(&hash, "cross_check", 1);
  if (spec->diagnose) hash_number(&hash, "diagnose", 1);
  if (*spec->queue) hash_field(&hash, "queue", spec->queue);
  if (*spec->queue_batches) hash_field(&hash, "queue_batches", spec->queue_batches);
  if (spec->max_noise > 0) {
    char noise[64];
    snprintf(noise, sizeof noise, "%.17g %.17g", spec->max_noise, spec->max_time_s);
    hash_field(&hash, "max_noise", noise);
  }
  if (*spec->inject) hash_field(&hash, "inject", spec->inject);
  if (spec->unlimited) hash_number(&hash, "unlimited", 1);
  if (cell->max_batch) hash_field(&hash, "kind", "max-batch");
  snprintf(key, 17, "%016llx", (unsigned long long)hash);
}

/* ---- Making a record ----------------------------------------------------------------------------------------- */

/* Sets a value at a dotted path, making the objects on the way. Takes the value over. */
static void set_path(json_t *object, const char *path, json_t *value) {
  const char *dot = strchr(path, '.');
  if (!dot) {
    json_object_set_new(object, path, value);
    return;
  }
  char name[VL_NAME_BYTES];
  snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
  json_t *inner = json_object_get(object, name);
  if (!inner) {
    inner = json_object();
    json_object_set_new(object, name, inner);
  }
  set_path(inner, dot + 1, value);
}

/* Why a number is not known when its column has nothing better to say. */
static const char *usual_reason(const CellView *view) {
  static const struct {
    const char *status, *reason;
  } reasons[] = {{"oom", "the cell ran out of memory"},
                 {"diverged", "the loss diverged"},
                 {"timeout", "the cell was ended at its time limit"},
                 {"crashed", "the cell's process died"},
                 {"unsupported", "the cell is not supported"},
                 {"skipped", "the cell was not run"}};
  for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
    if (strcmp(view->result->status, reasons[i].status) == 0) return reasons[i].reason;
  return view->result->device.predicts ? "not predicted" : "this device does not tell";
}

/* A list of numbers; one that is not finite is null and noted. */
static json_t *list_of(const double *values, int64_t count, const char *name, json_t *reasons) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count; i++) {
    json_t *value = vl_json_real(values[i]);
    if (!value) json_object_set_new(reasons, name, json_string("values that are not finite are null"));
    json_array_append_new(list, value ? value : json_null());
  }
  return list;
}

/* Bytes of every step; values NULL: none are known. */
static json_t *bytes_of_steps(const CellResult *result, const int64_t *values) {
  json_t *list = json_array();
  for (int32_t i = 0; i < result->peak_count && values; i++)
    json_array_append_new(list, json_integer((json_int_t)values[i]));
  return list;
}

static json_t *leak_list(const CellResult *result) {
  json_t *list = json_array();
  for (int32_t i = 0; i < result->leak_count; i++) {
    json_t *entry = json_object();
    json_object_set_new(entry, "name", vl_json_text(result->leaks[i].name));
    json_object_set_new(entry, "scope", vl_json_text(result->leaks[i].scope));
    json_object_set_new(entry, "bytes_per_step", json_integer(result->leaks[i].bytes_per_step));
    json_array_append_new(list, entry);
  }
  return list;
}

static json_t *anomaly_list(const CellResult *result) {
  json_t *list = json_array();
  for (int32_t i = 0; i < result->diagnosis.anomaly_count; i++) {
    const Anomaly *anomaly = &result->diagnosis.anomalies[i];
    json_t *entry = json_pack("{ss sI si sI}", "kind", vl_anomaly_name(anomaly->kind), "bytes",
                              (json_int_t)anomaly->bytes, "tensors", (int)anomaly->tensors, "largest_bytes",
                              (json_int_t)anomaly->largest_bytes);
    json_object_set_new(entry, "tensor", vl_json_text(anomaly->tensor));
    json_object_set_new(entry, "op", vl_json_text(anomaly->op));
    json_object_set_new(entry, "scope", vl_json_text(anomaly->scope));
    json_array_append_new(list, entry);
  }
  return list;
}

/* One list, VL_SKETCH_SUMS numbers a step. */
static void set_sketches(json_t *record, const CellResult *result, json_t *reasons) {
  int64_t count = (int64_t)result->monitor_count * VL_SKETCH_SUMS;
  double *values = vl_allocate((size_t)count * sizeof *values);
  for (int64_t i = 0; i < count; i++)
    values[i] = result->monitors[i / VL_SKETCH_SUMS].sketch[i % VL_SKETCH_SUMS];
  json_object_set_new(record, "monitor_gradient_sketch",
                      list_of(values, count, "monitor_gradient_sketch", reasons));
  free(values);
}

/* Of inference's outputs. */
static void set_output_sketch(json_t *record, const CellResult *result, json_t *reasons) {
  if (isnan(result->output_sketch[0])) return;
  json_object_set_new(record, "output_sketch",
                      list_of(result->output_sketch, VL_SKETCH_SUMS, "output_sketch", reasons));
}

/* A list a quantity, an element a step; without monitoring there are none. */
static void set_monitors(json_t *record, const CellResult *result, json_t *reasons) {
  int32_t count = result->monitor_count;
  if (count == 0) return;
  double *values = vl_allocate((size_t)count * sizeof *values);
  for (int32_t q = 0; q < VL_MONITOR_COUNT; q++) {
    for (int32_t i = 0; i < count; i++) {
      const StepMonitor *step = &result->monitors[i];
      const double of_step[VL_MONITOR_COUNT] = {step->loss_scale, step->skipped, step->gradient_norm,
                                                step->flushed_share};
      values[i] = of_step[q];
    }
    json_object_set_new(record, vl_monitors[q].list, list_of(values, count, vl_monitors[q].list, reasons));
  }
  free(values);
  set_sketches(record, result, reasons);
}

static json_t *scope_list(const CellResult *result) {
  json_t *list = json_array();
  for (int32_t i = 0; i < result->scope_count; i++) {
    json_t *entry = json_object();
    json_object_set_new(entry, "scope", vl_json_text(result->scopes[i].scope));
    json_object_set_new(entry, "bytes", json_integer(result->scopes[i].bytes));
    json_array_append_new(list, entry);
  }
  return list;
}

static void set_known(json_t *object, const char *name, json_t *value) {
  json_object_set_new(object, name, value ? value : json_null());
}

/* Of a queue, a size each. */
static void set_shapes(json_t *record, const CellResult *result) {
  if (result->shape_count == 0) return;
  json_t *list = json_array();
  for (int32_t i = 0; i < result->shape_count; i++) {
    const ShapeResult *shape = &result->shapes[i];
    json_t *entry = json_object();
    json_object_set_new(entry, "shape", vl_json_text(shape->shape));
    json_object_set_new(entry, "samples", json_integer(shape->samples));
    json_object_set_new(entry, "batch", json_integer(shape->batch));
    json_object_set_new(entry, "batches", json_integer(shape->batches));
    set_known(entry, "samples_per_s", vl_json_real(shape->samples_per_s));
    set_known(entry, "batch_s", vl_json_real(shape->batch_s));
    set_known(entry, "peak_allocated_bytes",
              shape->peak_allocated_bytes >= 0 ? json_integer(shape->peak_allocated_bytes) : NULL);
    set_known(entry, "peak_reserved_bytes",
              shape->peak_reserved_bytes >= 0 ? json_integer(shape->peak_reserved_bytes) : NULL);
    json_array_append_new(list, entry);
  }
  json_object_set_new(record, "shapes", list);
}

static json_t *term_list(const CellResult *result) {
  json_t *list = json_array();
  for (int32_t i = 0; i < result->account.term_count; i++) {
    const MemoryTerm *term = &result->account.terms[i];
    json_array_append_new(
        list, json_pack("{s:s, s:o, s:I, s:I, s:I}", "category", vl_memory_category_name(term->category),
                        "term", vl_json_text(term->name), "count", (json_int_t)term->count, "bytes",
                        (json_int_t)term->bytes, "rounding_bytes", (json_int_t)term->rounding_bytes));
  }
  return list;
}

json_t *vl_record_create(const SuiteCell *cell, const CellResult *result) {
  char key[17], created[32];
  vl_cell_key(cell, key);
  vl_utc_text(created, sizeof created);
  CellView view = {.cell = cell, .result = result, .key = key, .created_utc = created};
  view.drift = (Drift){NAN, NAN};
  view.step = vl_statistics_estimate(result->step_s, result->step_count);
  if (result->step_count > 0) {
    bool *flags = vl_allocate((size_t)result->step_count * sizeof *flags);
    view.drift = vl_statistics_drift(result->step_s, result->step_count);
    view.outliers = vl_statistics_outliers(result->step_s, result->step_count, flags);
    free(flags);
  }

  json_t *record = json_object(), *reasons = json_object();
  int32_t count;
  const Column *columns = vl_column_all(&count);
  for (int32_t i = 0; i < count; i++) {
    const char *reason = NULL;
    json_t *value = columns[i].value(&view, &columns[i], &reason);
    if (!value)
      json_object_set_new(reasons, columns[i].name, json_string(reason ? reason : usual_reason(&view)));
    set_path(record, columns[i].path, value ? value : json_null());
  }
  json_object_set_new(record, "step_times_s",
                      list_of(result->step_s, result->step_count, "step_times_s", reasons));
  json_object_set_new(record, "losses", list_of(result->losses, result->loss_count, "losses", reasons));
  json_object_set_new(record, "dice", list_of(result->dice, result->dice_count, "dice", reasons));
  json_object_set_new(record, "step_peaks_bytes", bytes_of_steps(result, result->step_peak_bytes));
  json_object_set_new(record, "live_bytes", bytes_of_steps(result, result->live_bytes));
  json_object_set_new(record, "step_reserved_bytes", bytes_of_steps(result, result->step_reserved_bytes));
  json_object_set_new(record, "step_fragmentation",
                      list_of(result->step_fragmentation, result->step_fragmentation ? result->peak_count : 0,
                              "step_fragmentation", reasons));
  json_object_set_new(record, "leaks", leak_list(result));
  if (result->diagnosis.made) json_object_set_new(record, "anomalies", anomaly_list(result));
  set_monitors(record, result, reasons);
  set_output_sketch(record, result, reasons);
  set_shapes(record, result);
  json_object_set_new(record, "scopes", scope_list(result));
  json_object_set_new(record, "analytic_terms", term_list(result));
  json_object_set_new(record, "null_reasons", reasons);
  return record;
}

json_t *vl_record_create_failure(const SuiteCell *cell, const char *status, const char *error) {
  const CellSpec *spec = &cell->spec;
  bool predicted = strcmp(spec->device, "plan") == 0;
  Recipe recipe;
  /* On the heap: with its scopes a result is large for a stack. */
  CellResult *result = vl_allocate(sizeof *result);
  vl_cell_result_init(result);
  canonical_recipe(spec->recipe, result->recipe, &recipe);
  snprintf(result->status, sizeof result->status, "%s", status);
  snprintf(result->error, sizeof result->error, "%s", error);
  snprintf(result->stack, sizeof result->stack, "%s", recipe.stack_vramlab ? "vramlab" : "pytorch");
  snprintf(result->preserves, sizeof result->preserves, "%s",
           vl_preserves_name(vl_recipe_preserves(&recipe, NULL)));
  snprintf(result->provenance, sizeof result->provenance, "%s", predicted ? "predicted" : "measured");
  result->device.predicts = predicted;
  result->device.memory_bytes = -1;
  result->device.threads = spec->threads > 0 ? spec->threads : -1;
  result->micro_batch = spec->micro_batch;
  result->accumulate = vl_accumulate_count(&recipe);
  if (result->accumulate == 0) result->accumulate = 1; /* auto, not decided */
  result->ranks = 1;
  result->global_batch =
      spec->global_batch > 0 ? spec->global_batch : result->micro_batch * result->accumulate;
  result->parameters = result->flops_per_step = result->recompute_flops = -1;
  json_t *record = vl_record_create(cell, result);
  free(result);
  return record;
}

static const json_t *get_path(const json_t *object, const char *path) {
  const char *dot = strchr(path, '.');
  if (!dot) return json_object_get(object, path);
  char name[VL_NAME_BYTES];
  snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
  return get_path(json_object_get(object, name), dot + 1);
}

void vl_record_complete(json_t *record) {
  int32_t count;
  const Column *columns = vl_column_all(&count);
  json_t *reasons = json_object_get(record, "null_reasons");
  if (!json_is_object(reasons)) {
    reasons = json_object();
    json_object_set_new(record, "null_reasons", reasons);
  }
  for (int32_t i = 0; i < count; i++) {
    if (get_path(record, columns[i].path)) continue;
    set_path(record, columns[i].path, json_null());
    json_object_set_new(reasons, columns[i].name, json_string("not kept by the vramlab that wrote this"));
  }
}

/* ---- Reading a record ------------------------------------------------------------------------------------------ */

static const json_t *get(const json_t *record, const char *name) {
  const json_t *value = get_path(record, name);
  if (value) return value;
  const Column *column = vl_column_find(name);
  return column ? get_path(record, column->path) : NULL;
}

const char *vl_record_text(const json_t *record, const char *path) {
  return json_string_value(get(record, path));
}

bool vl_record_has_status(const json_t *record, const char *status) {
  const char *its = vl_record_text(record, "status");
  return its != NULL && strcmp(its, status) == 0;
}

bool vl_record_same_text(const json_t *a, const json_t *b, const char *path) {
  const char *left = vl_record_text(a, path), *right = vl_record_text(b, path);
  return left == right || (left != NULL && right != NULL && strcmp(left, right) == 0);
}

int64_t vl_record_integer(const json_t *record, const char *path) {
  const json_t *value = get(record, path);
  return json_is_integer(value) ? json_integer_value(value) : -1;
}

double vl_record_real(const json_t *record, const char *path) {
  const json_t *value = get(record, path);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

bool vl_record_flag(const json_t *record, const char *path) { return json_is_true(get(record, path)); }

double *vl_record_list(const json_t *record, const char *path, int64_t *count) {
  const json_t *list = get(record, path);
  size_t size = json_array_size(list);
  double *values = vl_allocate((size ? size : 1) * sizeof *values);
  for (size_t i = 0; i < size; i++) {
    const json_t *value = json_array_get(list, i);
    values[i] = json_is_number(value) ? json_number_value(value) : NAN;
  }
  *count = (int64_t)size;
  return values;
}

char *vl_record_format(const json_t *record) {
  return json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(17));
}
