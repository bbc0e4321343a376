#include "harness/report_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool equal_texts(const char *a, const char *b) {
  return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool is_cell(const json_t *record) {
  const char *kind = vl_record_text(record, "kind");
  return kind == NULL || strcmp(kind, "cell") == 0;
}

bool vl_record_is_predicted(const json_t *record) {
  return !equal_texts(vl_record_text(record, "provenance"), "measured");
}

int64_t vl_record_batch(const json_t *record) {
  int64_t batch = vl_record_integer(record, "global_batch");
  return batch >= 0 ? batch : vl_record_integer(record, "micro_batch");
}

/* ---- Workloads and devices -------------------------------------------------------------------------------------- */

void vl_workload_text(const Workload *workload, char *text, size_t size) {
  snprintf(text, size, "%s%s%s%s%s%s", workload->case_name != NULL ? workload->case_name : "unnamed",
           workload->settings != NULL ? " " : "", workload->settings != NULL ? workload->settings : "",
           workload->inference ? " inference" : " training", workload->queue != NULL ? " queue " : "",
           workload->queue != NULL ? workload->queue : "");
}

Workload vl_record_workload(const json_t *record) {
  return (Workload){.case_name = vl_record_text(record, "case"),
                    .settings = vl_record_text(record, "settings"),
                    .queue = vl_record_text(record, "queue"),
                    .inference = vl_record_flag(record, "inference")};
}

static bool same_workload(const Workload *a, const Workload *b) {
  return equal_texts(a->case_name, b->case_name) && equal_texts(a->settings, b->settings) &&
         equal_texts(a->queue, b->queue) && a->inference == b->inference;
}

int32_t vl_select_workloads(const RecordSet *records, Workload *workloads) {
  int32_t found = 0, counts[VL_MAX_WORKLOADS] = {0};
  for (int32_t i = 0; i < records->count; i++) {
    if (!is_cell(records->records[i])) continue;
    Workload its = vl_record_workload(records->records[i]);
    int32_t at = 0;
    while (at < found && !same_workload(&workloads[at], &its))
      at++;
    if (at == VL_MAX_WORKLOADS) continue;
    if (at == found) workloads[found++] = its;
    counts[at]++;
    for (; at > 0 && counts[at] > counts[at - 1]; at--) {
      Workload moved = workloads[at];
      int32_t count = counts[at];
      workloads[at] = workloads[at - 1];
      counts[at] = counts[at - 1];
      workloads[at - 1] = moved;
      counts[at - 1] = count;
    }
  }
  return found;
}

RecordSet vl_select_workload(const RecordSet *records, const Workload *workload, Engines engines) {
  RecordSet chosen = {.records = vl_allocate(sizeof(json_t *) * (size_t)(records->count + 1))};
  for (int32_t i = 0; i < records->count; i++) {
    Workload its = vl_record_workload(records->records[i]);
    if (engines == ENGINES_OURS && vl_record_is_peer(records->records[i])) continue;
    if (is_cell(records->records[i]) && same_workload(&its, workload))
      chosen.records[chosen.count++] = records->records[i];
  }
  return chosen;
}

void vl_device_text(const json_t *record, char *text, size_t size) {
  const char *name = vl_record_text(record, "device_name"), *hardware = vl_record_text(record, "hardware");
  if (name == NULL) name = vl_record_text(record, "device");
  snprintf(text, size, "%s%s%s%s", name != NULL ? name : "an unnamed device", hardware != NULL ? " (" : "",
           hardware != NULL ? hardware : "", hardware != NULL ? ")" : "");
}

bool vl_same_device(const json_t *a, const json_t *b) {
  static const char *const paths[] = {"device", "profile", "provenance"};
  for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
    if (!vl_record_same_text(a, b, paths[i])) return false;
  /* A cell that crashed or was skipped does not know its hardware; it is not another device for that. */
  const char *left = vl_record_text(a, "hardware"), *right = vl_record_text(b, "hardware");
  return left == NULL || right == NULL || strcmp(left, right) == 0;
}

/* ---- Engines -------------------------------------------------------------------------------------------------------- */

bool vl_record_is_peer(const json_t *record) {
  const char *engine = vl_record_text(record, "engine");
  return engine != NULL && strcmp(engine, "vramlab") != 0;
}

void vl_record_name(const json_t *record, char *text, size_t size) {
  const char *recipe = vl_record_text(record, "recipe"), *library = vl_record_text(record, "library");
  if (recipe == NULL) recipe = "unnamed";
  if (!vl_record_is_peer(record)) {
    snprintf(text, size, "%s", recipe);
    return;
  }
  if (library == NULL) library = vl_record_text(record, "engine");
  /* The build behind the version's plus sign (+cpu, +cu130) is provenance, not a name. */
  size_t version = strcspn(library, "+"), build = strcspn(library + version, " ");
  bool named = strcmp(recipe, "baseline") != 0;
  snprintf(text, size, "%.*s%s%s%s", (int)version, library, library + version + build, named ? " " : "",
           named ? recipe : "");
}

bool vl_same_line(const json_t *a, const json_t *b) {
  static const char *const paths[] = {"recipe", "engine"};
  for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
    if (!vl_record_same_text(a, b, paths[i])) return false;
  /* Ours has one configuration a recipe, and a cell that crashed does not know its library. */
  return vl_same_device(a, b) && (!vl_record_is_peer(a) || vl_record_same_text(a, b, "library"));
}

bool vl_same_cell(const json_t *a, const json_t *b) {
  return vl_record_batch(a) == vl_record_batch(b) && vl_same_line(a, b) &&
         vl_record_integer(a, "capacity_bytes") == vl_record_integer(b, "capacity_bytes");
}

double vl_select_median(const RecordSet *cells, const json_t *like, const char *column) {
  double *values = vl_allocate(sizeof(double) * (size_t)(cells->count + 1));
  int64_t count = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    double value = vl_record_real(cells->records[i], column);
    if (isfinite(value) && vl_record_has_status(cells->records[i], "ok") &&
        vl_same_cell(cells->records[i], like))
      values[count++] = value;
  }
  double median = vl_statistics_median(values, count);
  free(values);
  return median;
}

/* ---- Comparison --------------------------------------------------------------------------------------------------- */

static int compare_steps(const void *a, const void *b) {
  double left = vl_record_real(*(const json_t *const *)a, "step_s"),
         right = vl_record_real(*(const json_t *const *)b, "step_s");
  return (left > right) - (left < right);
}

/* Of a cell's repetitions that are ok the one of median step time, which has all its numbers from one run. */
static const json_t *typical(const RecordSet *cells, const json_t *like) {
  const json_t **repetitions = vl_allocate(sizeof(*repetitions) * (size_t)(cells->count + 1));
  int32_t count = 0;
  for (int32_t i = 0; i < cells->count; i++)
    if (vl_same_cell(cells->records[i], like) && vl_record_has_status(cells->records[i], "ok"))
      repetitions[count++] = cells->records[i];
  if (count > 0 && isfinite(vl_record_real(repetitions[0], "step_s")))
    qsort(repetitions, (size_t)count, sizeof(*repetitions), compare_steps);
  const json_t *chosen = count > 0 ? repetitions[(count - 1) / 2] : like;
  free(repetitions);
  return chosen;
}

/* Adds a cell unless a repetition of it is there. */
static void add_cell(const json_t **list, int32_t *count, const RecordSet *cells, const json_t *record) {
  for (int32_t i = 0; i < *count; i++)
    if (vl_same_cell(list[i], record)) return;
  if (*count < VL_MAX_RECIPES) list[(*count)++] = typical(cells, record);
}

/* Under a capacity a cell is another question, but where a queue's batches are made to fit it. */
static bool has_comparable_capacity(const json_t *record, const json_t *like) {
  int64_t capacity = vl_record_integer(record, "capacity_bytes");
  return vl_record_text(like, "queue") != NULL ? capacity == vl_record_integer(like, "capacity_bytes")
                                               : capacity <= 0;
}

/* All cells of `like`'s device and batch. */
static void gather(const RecordSet *cells, const json_t *like, Comparison *comparison) {
  memset(comparison, 0, sizeof(*comparison));
  comparison->batch = vl_record_batch(like);
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *record = cells->records[i];
    if (vl_record_batch(record) != comparison->batch || !vl_same_device(record, like)) continue;
    if (!has_comparable_capacity(record, like)) continue;
    if (vl_record_is_peer(record))
      add_cell(comparison->peers, &comparison->peer_count, cells, record);
    else
      add_cell(comparison->rows, &comparison->count, cells, record);
  }
  int32_t at = 0;
  while (at < comparison->count && !equal_texts(vl_record_text(comparison->rows[at], "recipe"), "baseline"))
    at++;
  if (at == comparison->count) return;
  const json_t *baseline = comparison->rows[at];
  memmove(&comparison->rows[1], &comparison->rows[0], sizeof(comparison->rows[0]) * (size_t)at);
  comparison->rows[0] = baseline;
  if (vl_record_has_status(baseline, "ok")) comparison->baseline = baseline;
}

/* How much a comparison tells: recipes that ran, and what outweighs any number of them. */
static int64_t worth(const Comparison *comparison) {
  int64_t ran = 0;
  for (int32_t i = 0; i < comparison->count; i++)
    ran += vl_record_has_status(comparison->rows[i], "ok");
  if (ran == 0) return comparison->count > 0;
  int64_t value = 2 + ran + comparison->peer_count;
  if (comparison->baseline != NULL) value += 1000;
  if (!vl_record_is_predicted(comparison->rows[0])) value += 10000;
  return value;
}

/* Whether one of these records has gathered what this one would: a store of a thousand cells has few groups.
 */
static bool is_of_a_group(const json_t **seen, int32_t count, const json_t *record) {
  for (int32_t i = 0; i < count; i++)
    if (vl_record_batch(seen[i]) == vl_record_batch(record) && vl_same_device(seen[i], record) &&
        vl_record_same_text(seen[i], record, "hardware") &&
        vl_record_integer(seen[i], "capacity_bytes") == vl_record_integer(record, "capacity_bytes"))
      return true;
  return false;
}

void vl_select_comparison(const RecordSet *cells, Comparison *comparison) {
  memset(comparison, 0, sizeof(*comparison));
  Comparison *candidate = vl_allocate(sizeof(*candidate));
  const json_t **seen = vl_allocate(sizeof(*seen) * (size_t)(cells->count + 1));
  int32_t groups = 0;
  for (int32_t i = 0; i < cells->count; i++) {
    if (vl_record_is_peer(cells->records[i]) || is_of_a_group(seen, groups, cells->records[i])) continue;
    seen[groups++] = cells->records[i];
    gather(cells, cells->records[i], candidate);
    int64_t its = worth(candidate), best = worth(comparison);
    if (its > best || (its == best && candidate->batch > comparison->batch)) *comparison = *candidate;
  }
  free(seen);
  free(candidate);
}

/* ---- Equality -------------------------------------------------------------------------------------------------------- */

const char *vl_outcome_name(Outcome outcome) {
  static const char *const names[] = {"n/a", "bitwise", "within tolerance", "different model",
                                      "BROKEN PROMISE"};
  return names[outcome];
}

/* The largest relative difference between two lists of losses; NaN without a common step. */
static double loss_difference(const json_t *record, const json_t *baseline, double *first) {
  int64_t count = 0, other_count = 0;
  double *losses = vl_record_list(record, "losses", &count);
  double *others = vl_record_list(baseline, "losses", &other_count);
  double worst = NAN;
  *first = NAN;
  for (int64_t i = 0; i < count && i < other_count; i++) {
    if (isnan(losses[i]) || isnan(others[i])) continue;
    double difference = losses[i] == others[i] ? 0 : fabs(losses[i] - others[i]) / fabs(others[i]);
    if (i == 0) *first = difference;
    if (isnan(worst) || difference > worst) worst = difference;
  }
  free(losses);
  free(others);
  return worst;
}

double vl_record_loss_bound(const json_t *record) {
  const char *recipe = vl_record_text(record, "recipe");
  return recipe != NULL && strstr(recipe, "amp=") != NULL ? 0x1p-6 : 1e-4;
}

Equality vl_record_equality(const json_t *record, const json_t *baseline) {
  Equality equality = {.outcome = OUTCOME_UNKNOWN, .loss_difference = NAN};
  const char *promise = vl_record_text(record, "preserves");
  if (promise == NULL || !vl_record_has_status(record, "ok")) return equality;
  equality.outcome = strcmp(promise, "bitwise") == 0     ? OUTCOME_BITWISE
                     : strcmp(promise, "tolerance") == 0 ? OUTCOME_TOLERANCE
                                                         : OUTCOME_DIFFERENT_MODEL;
  if (baseline == NULL || equality.outcome == OUTCOME_DIFFERENT_MODEL) return equality;
  double first = NAN;
  equality.loss_difference = loss_difference(record, baseline, &first);
  equality.checked = !isnan(equality.loss_difference);
  if (!equality.checked) return equality;
  if (equality.outcome == OUTCOME_BITWISE && equality.loss_difference != 0) equality.outcome = OUTCOME_BROKEN;
  if (equality.outcome == OUTCOME_TOLERANCE && !(first <= vl_record_loss_bound(record)))
    equality.outcome = OUTCOME_BROKEN;
  return equality;
}

static bool is_mistake(const json_t *record) {
  Recipe recipe;
  const char *text = vl_record_text(record, "recipe");
  return text != NULL && vl_recipe_parse(text, &recipe).code == VL_OK && vl_recipe_mistake(&recipe) != NULL;
}

const json_t *vl_select_leanest(const Comparison *comparison, Outcome outcome) {
  const json_t *leanest = NULL;
  for (int32_t i = 0; i < comparison->count; i++) {
    const json_t *record = comparison->rows[i];
    int64_t needed = vl_record_integer(record, "needed_bytes");
    if (needed < 0 || is_mistake(record) ||
        vl_record_equality(record, comparison->baseline).outcome != outcome)
      continue;
    if (leanest == NULL || needed < vl_record_integer(leanest, "needed_bytes")) leanest = record;
  }
  return leanest;
}

/* ---- Largest batches ---------------------------------------------------------------------------------------------------- */

static bool is_max_batch(const json_t *record, const Workload *workload) {
  Workload its = vl_record_workload(record);
  return equal_texts(vl_record_text(record, "kind"), "max-batch") && same_workload(&its, workload);
}

int32_t vl_select_capacities(const RecordSet *records, const Workload *workload, int64_t *capacities) {
  int32_t count = 0;
  for (int32_t i = 0; i < records->count; i++) {
    int64_t bytes = vl_record_integer(records->records[i], "capacity_bytes");
    if (!is_max_batch(records->records[i], workload) || bytes <= 0) continue;
    int32_t at = 0;
    while (at < count && capacities[at] < bytes)
      at++;
    if ((at < count && capacities[at] == bytes) || count == VL_MAX_CAPACITIES) continue;
    memmove(&capacities[at + 1], &capacities[at], sizeof(*capacities) * (size_t)(count - at));
    capacities[at] = bytes;
    count++;
  }
  return count;
}

int64_t vl_select_max_batch(const RecordSet *records, const Workload *workload, const char *recipe,
                            int64_t capacity_bytes) {
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    if (is_max_batch(record, workload) && equal_texts(vl_record_text(record, "recipe"), recipe) &&
        vl_record_integer(record, "capacity_bytes") == capacity_bytes)
      return vl_record_integer(record, "batch");
  }
  return -1;
}

/* ---- Parts ---------------------------------------------------------------------------------------------------------------- */

const char *vl_part_name(int32_t part) {
  if (part < MEMORY_CATEGORY_COUNT) return vl_memory_category_name((MemoryCategory)part);
  return part == MEMORY_CATEGORY_COUNT ? "cached-free" : "libraries";
}

MemoryParts vl_record_parts(const json_t *record) {
  MemoryParts parts = {.complete = true};
  int64_t sum = 0, needed = vl_record_integer(record, "needed_bytes");
  int64_t untracked = vl_record_integer(record, "untracked_bytes");
  for (int32_t i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    char path[96];
    snprintf(path, sizeof(path), "peak_by_category.%s", vl_part_name(i));
    parts.bytes[i] = vl_record_integer(record, path);
    parts.complete = parts.complete && parts.bytes[i] >= 0;
    sum += parts.bytes[i] > 0 ? parts.bytes[i] : 0;
  }
  parts.bytes[MEMORY_CATEGORY_COUNT + 1] = untracked;
  /* What is needed and in no category: cached by the policy, at the moment of the reserved peak. */
  int64_t rest = needed - sum - (untracked > 0 ? untracked : 0);
  parts.complete = parts.complete && needed >= 0 && rest >= 0;
  parts.bytes[MEMORY_CATEGORY_COUNT] = parts.complete ? rest : -1;
  return parts;
}
