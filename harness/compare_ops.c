/* The ops of kept steps: matched, summed by layer, and which run another implementation. */
#include "harness/compare_ops.h"
#include "harness/report_select.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double seconds_of(const OpRecord *op) {
  return op->duration_ns < 0 ? NAN : (double)op->duration_ns * 1e-9;
}

/* The position of a key in an index, a new one where it has none. */
static int32_t position_of(json_t *index, const char *key, int32_t *count) {
  json_t *at = json_object_get(index, key);
  if (at) return (int32_t)json_integer_value(at);
  json_object_set_new(index, key, json_integer(*count));
  return (*count)++;
}

/* ---- Implementations ---------------------------------------------------------------------------------------------- */

/* What tells a launch of a step from all others: where it is, and the how manyth of its kind there. */
static void launch_key(const OpRecord *op, json_t *seen, char *key, size_t size) {
  int written = snprintf(key, size, "%" PRId32 " %" PRId32 " %" PRId32 " %s %s", op->segment, op->micro_batch,
                         op->pass, op->op, op->scope);
  int64_t times = json_integer_value(json_object_get(seen, key));
  json_object_set_new(seen, key, json_integer(times + 1));
  snprintf(key + written, size - (size_t)written, " %" PRId64, times);
}

static bool takes_more(double a, double b) { return isnan(b) ? !isnan(a) : a > b; }

static int by_time(const void *left, const void *right) {
  const OpChange *a = left, *b = right;
  double of_a = fmax(a->base_s, a->now_s), of_b = fmax(b->base_s, b->now_s);
  if (takes_more(of_a, of_b) != takes_more(of_b, of_a)) return takes_more(of_a, of_b) ? -1 : 1;
  int order = strcmp(a->scope, b->scope);
  return order ? order : strcmp(a->op, b->op);
}

static void note_change(OpsComparison *ops, json_t *index, const OpRecord *base, const OpRecord *now) {
  char key[4 * VL_NAME_BYTES + 32];
  snprintf(key, sizeof key, "%" PRId32 " %s %s %s %s", now->segment, now->op, now->scope,
           base->implementation, now->implementation);
  int32_t before = ops->implementation_count;
  OpChange *change = &ops->implementations[position_of(index, key, &ops->implementation_count)];
  if (ops->implementation_count > before) {
    *change = (OpChange){.segment = now->segment};
    snprintf(change->op, sizeof change->op, "%s", now->op);
    snprintf(change->scope, sizeof change->scope, "%s", now->scope);
    snprintf(change->base, sizeof change->base, "%s", base->implementation);
    snprintf(change->now, sizeof change->now, "%s", now->implementation);
  }
  change->launches++;
  change->base_s += seconds_of(base);
  change->now_s += seconds_of(now);
}

/* Of the first repetition of each: what is chosen does not vary from one to the next. */
static void compare_implementations(const KeptSteps *base, const KeptSteps *now, OpsComparison *ops) {
  char key[3 * VL_NAME_BYTES + 64];
  json_t *index = json_object(), *seen = json_object(), *places = json_object();
  ops->implementations = vl_allocate((size_t)(now->counts[0] + 1) * sizeof *ops->implementations);
  for (int64_t i = 0; i < base->counts[0]; i++) {
    launch_key(&base->ops[0][i], seen, key, sizeof key);
    json_object_set_new(places, key, json_integer(i));
  }
  json_object_clear(seen);
  for (int64_t i = 0; i < now->counts[0]; i++) {
    const OpRecord *op = &now->ops[0][i];
    launch_key(op, seen, key, sizeof key);
    json_t *at = json_object_get(places, key);
    if (!at) continue;
    const OpRecord *before = &base->ops[0][json_integer_value(at)];
    bool told = *before->implementation && *op->implementation;
    if (told && strcmp(before->implementation, op->implementation) != 0) note_change(ops, index, before, op);
  }
  qsort(ops->implementations, (size_t)ops->implementation_count, sizeof *ops->implementations, by_time);
  json_decref(index);
  json_decref(seen);
  json_decref(places);
}

/* ---- Sums --------------------------------------------------------------------------------------------------------- */

static int64_t total_count(const KeptSteps *steps) {
  int64_t total = 0;
  for (int32_t i = 0; i < steps->count; i++)
    total += steps->counts[i];
  return total;
}

/* A row for every layer and segment of any of the steps. */
static void find_rows(const KeptSteps *steps, json_t *index, ScopeChange *rows, int32_t *count) {
  char key[VL_NAME_BYTES + 16];
  for (int32_t s = 0; s < steps->count; s++)
    for (int64_t i = 0; i < steps->counts[s]; i++) {
      const OpRecord *op = &steps->ops[s][i];
      snprintf(key, sizeof key, "%" PRId32 " %s", op->segment, op->scope);
      ScopeChange *row = &rows[position_of(index, key, count)];
      *row = (ScopeChange){.segment = op->segment, .layers = 1};
      snprintf(row->scope, sizeof row->scope, "%s", op->scope);
    }
}

typedef struct Sums {
  double *seconds; /* of each row the median over repetitions */
  int64_t *bytes;  /* of the first: they do not vary */
  double total_s;
} Sums;

static Sums sum_steps(const KeptSteps *steps, json_t *index, int32_t rows) {
  char key[VL_NAME_BYTES + 16];
  size_t most = (size_t)rows + 1;
  Sums sums = {vl_allocate(most * sizeof(double)), vl_allocate(most * sizeof(int64_t)), 0};
  double *all = vl_allocate(most * (size_t)steps->count * sizeof *all);
  double *totals = vl_allocate((size_t)steps->count * sizeof *totals);
  for (int32_t s = 0; s < steps->count; s++)
    for (int64_t i = 0; i < steps->counts[s]; i++) {
      const OpRecord *op = &steps->ops[s][i];
      snprintf(key, sizeof key, "%" PRId32 " %s", op->segment, op->scope);
      int32_t row = (int32_t)json_integer_value(json_object_get(index, key));
      all[row * steps->count + s] += seconds_of(op);
      totals[s] += seconds_of(op);
      if (s == 0) sums.bytes[row] += op->bytes;
    }
  for (int32_t row = 0; row < rows; row++)
    sums.seconds[row] = vl_statistics_median(all + (size_t)row * (size_t)steps->count, steps->count);
  sums.total_s = vl_statistics_median(totals, steps->count);
  free(all);
  free(totals);
  return sums;
}

static int by_scope(const void *left, const void *right) {
  const ScopeChange *a = left, *b = right;
  if (a->segment != b->segment) return a->segment < b->segment ? -1 : 1;
  const unsigned char *x = (const unsigned char *)a->scope, *y = (const unsigned char *)b->scope;
  while (*x && *x == *y)
    x++, y++;
  /* What lies below a scope follows it at once: a point before any other character. */
  int of_x = *x == '.' ? 1 : *x ? *x + 1 : 0, of_y = *y == '.' ? 1 : *y ? *y + 1 : 0;
  return of_x - of_y;
}

static int by_seconds(const void *left, const void *right) {
  const ScopeChange *a = left, *b = right;
  double of_a = fabs(a->now_s - a->base_s), of_b = fabs(b->now_s - b->base_s);
  return of_a > of_b ? -1 : of_a < of_b ? 1 : by_scope(left, right);
}

static int by_bytes(const void *left, const void *right) {
  const ScopeChange *a = left, *b = right;
  int64_t of_a = llabs(a->now_bytes - a->base_bytes), of_b = llabs(b->now_bytes - b->base_bytes);
  return of_a > of_b ? -1 : of_a < of_b ? 1 : by_scope(left, right);
}

static void keep_traffic(const ScopeChange *rows, int32_t count, OpsComparison *ops) {
  ops->traffic = vl_allocate((size_t)(count + 1) * sizeof *ops->traffic);
  for (int32_t i = 0; i < count; i++)
    if (rows[i].base_bytes != rows[i].now_bytes) ops->traffic[ops->traffic_count++] = rows[i];
  qsort(ops->traffic, (size_t)ops->traffic_count, sizeof *ops->traffic, by_bytes);
}

/* Segment by segment, then all of them by time. */
static void merge_times(ScopeChange *rows, int32_t count, OpsComparison *ops) {
  ops->times = rows;
  if (isnan(ops->base_s) || isnan(ops->now_s)) return;
  for (int32_t from = 0, to; from < count; from = to) {
    for (to = from; to < count && rows[to].segment == rows[from].segment;)
      to++;
    int32_t left = vl_scopes_merge(&rows[from], to - from);
    memmove(&rows[ops->time_count], &rows[from], (size_t)left * sizeof *rows);
    ops->time_count += left;
  }
  qsort(rows, (size_t)ops->time_count, sizeof *rows, by_seconds);
}

OpsComparison *vl_compare_steps(const KeptSteps *base, const KeptSteps *now) {
  OpsComparison *ops = vl_allocate(sizeof *ops);
  json_t *index = json_object();
  int32_t count = 0;
  ScopeChange *rows = vl_allocate((size_t)(total_count(base) + total_count(now) + 1) * sizeof *rows);
  *ops = (OpsComparison){.base_steps = base->count,
                         .now_steps = now->count,
                         .base_launches = base->counts[0],
                         .now_launches = now->counts[0]};
  compare_implementations(base, now, ops);
  find_rows(base, index, rows, &count);
  find_rows(now, index, rows, &count);
  Sums of_base = sum_steps(base, index, count), of_now = sum_steps(now, index, count);
  ops->base_s = of_base.total_s;
  ops->now_s = of_now.total_s;
  for (int32_t i = 0; i < count; i++) {
    rows[i].base_s = of_base.seconds[i];
    rows[i].now_s = of_now.seconds[i];
    rows[i].base_bytes = of_base.bytes[i];
    rows[i].now_bytes = of_now.bytes[i];
  }
  qsort(rows, (size_t)count, sizeof *rows, by_scope);
  keep_traffic(rows, count, ops);
  merge_times(rows, count, ops);
  free(of_base.seconds);
  free(of_base.bytes);
  free(of_now.seconds);
  free(of_now.bytes);
  json_decref(index);
  return ops;
}

void vl_compare_ops_free(OpsComparison *ops) {
  if (!ops) return;
  free(ops->implementations);
  free(ops->times);
  free(ops->traffic);
  free(ops);
}

/* ---- Of stores ------------------------------------------------------------------------------------------------------ */

/* What was asked -> keys of the cells. */
static json_t *keys_of(const Store *store) {
  json_t *keys = json_object();
  for (int64_t i = 0; i < vl_store_count(store); i++) {
    const json_t *record = vl_store_record(store, i);
    char *identity = vl_compare_identity(record);
    json_t *list = json_object_get(keys, identity);
    if (!list) json_object_set_new(keys, identity, list = json_array());
    json_array_append(list, json_object_get(record, "cell_key"));
    free(identity);
  }
  return keys;
}

static void steps_free(KeptSteps *steps) {
  for (int32_t i = 0; i < steps->count; i++)
    free(steps->ops[i]);
  free(steps->ops);
  free(steps->counts);
}

/* Of all repetitions of what was asked. */
static Status load_steps(const Store *store, const json_t *keys, KeptSteps *steps) {
  size_t most = json_array_size(keys), i;
  json_t *key;
  *steps = (KeptSteps){vl_allocate((most + 1) * sizeof *steps->ops),
                       vl_allocate((most + 1) * sizeof *steps->counts), 0};
  json_array_foreach(keys, i, key) {
    VL_TRY(
        vl_store_ops(store, json_string_value(key), &steps->ops[steps->count], &steps->counts[steps->count]));
    if (steps->counts[steps->count] > 0)
      steps->count++;
    else
      free(steps->ops[steps->count]);
  }
  return vl_ok();
}

static Status compare_cell(const Store *base, const json_t *base_keys, const Store *now,
                           const json_t *now_keys, CellComparison *cell) {
  KeptSteps of_base = {0}, of_now = {0};
  char *identity = vl_compare_identity(cell->now);
  Status status = load_steps(base, json_object_get(base_keys, identity), &of_base);
  if (status.code == VL_OK && of_base.count > 0)
    status = load_steps(now, json_object_get(now_keys, identity), &of_now);
  if (status.code == VL_OK && of_base.count > 0 && of_now.count > 0)
    cell->ops = vl_compare_steps(&of_base, &of_now);
  steps_free(&of_base);
  steps_free(&of_now);
  free(identity);
  return status;
}

Status vl_compare_ops(const Store *base, const Store *now, StoreComparison *comparison) {
  json_t *base_keys = keys_of(base), *now_keys = keys_of(now);
  Status status = vl_ok();
  for (int32_t i = 0; status.code == VL_OK && i < comparison->count; i++)
    status = compare_cell(base, base_keys, now, now_keys, &comparison->cells[i]);
  json_decref(base_keys);
  json_decref(now_keys);
  return status;
}
