/* What changed in the ops of cells, as text and JSON. */
#include "harness/columns.h"
#include "harness/compare_ops.h"
#include "harness/report_select.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 10 };

/* "0.509 -> 4.26 ms"; nothing where nothing tells time. */
static void print_times(double base_s, double now_s, FILE *out) {
  char base[32] = "none", now[32] = "none";
  if (isnan(base_s) || isnan(now_s)) return;
  if (base_s > 0) snprintf(base, sizeof base, "%.3g", 1e3 * base_s);
  if (now_s > 0) snprintf(now, sizeof now, "%.3g ms", 1e3 * now_s);
  fprintf(out, "  %s -> %s", base, now);
}

static void print_rest(int64_t count, const char *indent, FILE *out) {
  if (count > SHOWN) fprintf(out, "%sand %" PRId64 " more\n", indent, count - SHOWN);
}

/* ---- Implementations ------------------------------------------------------------------------------------------------ */

/* Changes of one op from one implementation to one other, in whatever layer and cell. */
typedef struct Switch {
  const OpChange *largest;
  int64_t launches;
  double base_s, now_s;
} Switch;

static int by_time(const void *left, const void *right) {
  const Switch *a = left, *b = right;
  double of_a = fmax(a->base_s, a->now_s), of_b = fmax(b->base_s, b->now_s);
  return of_a > of_b ? -1 : of_a < of_b ? 1 : strcmp(a->largest->op, b->largest->op);
}

/* Changes come with the largest time first, so the first of a kind in a cell is its largest. */
static void add_change(const OpChange *change, json_t *index, Switch *switches, int32_t *count) {
  char key[3 * VL_NAME_BYTES + 4];
  snprintf(key, sizeof key, "%s %s %s", change->op, change->base, change->now);
  json_t *at = json_object_get(index, key);
  if (!at) {
    at = json_integer(*count);
    json_object_set_new(index, key, at);
    switches[(*count)++] = (Switch){.largest = change};
  }
  Switch *it = &switches[json_integer_value(at)];
  if (change->now_s > it->largest->now_s) it->largest = change;
  it->launches += change->launches;
  it->base_s += change->base_s;
  it->now_s += change->now_s;
}

static void print_switch(const Switch *it, FILE *out) {
  const OpChange *largest = it->largest;
  fprintf(out, "  %s %s %s: %s -> %s", largest->op, *largest->scope ? largest->scope : "(no scope)",
          vl_segment_name((Segment)largest->segment), largest->base, largest->now);
  if (it->launches > largest->launches)
    fprintf(out, ", and %" PRId64 " more launches from and to the same, together",
            it->launches - largest->launches);
  print_times(it->base_s, it->now_s, out);
  fputc('\n', out);
}

void vl_compare_print_implementations(const StoreComparison *comparison, FILE *out) {
  int64_t changes = 0, launches = 0, switched = 0;
  int32_t cells = 0, kept = 0, count = 0;
  for (int32_t i = 0; i < comparison->count; i++) {
    const OpsComparison *ops = comparison->cells[i].ops;
    if (!ops) continue;
    kept++;
    changes += ops->implementation_count;
    launches += ops->now_launches;
    cells += ops->implementation_count > 0;
  }
  if (kept == 0) return;
  if (changes == 0) {
    fprintf(out, "Implementations of ops: the same in %" PRId32 " cell%s that kept them\n", kept,
            kept == 1 ? "" : "s");
    return;
  }
  Switch *switches = vl_allocate((size_t)changes * sizeof *switches);
  json_t *index = json_object();
  for (int32_t i = 0; i < comparison->count; i++) {
    const OpsComparison *ops = comparison->cells[i].ops;
    for (int32_t k = 0; ops && k < ops->implementation_count; k++)
      add_change(&ops->implementations[k], index, switches, &count);
  }
  qsort(switches, (size_t)count, sizeof *switches, by_time);
  for (int32_t i = 0; i < count; i++)
    switched += switches[i].launches;
  fprintf(out,
          "Implementations of ops: %" PRId64 " of %" PRId64 " launches differ, in %" PRId32 " of %" PRId32
          " cells that kept them\n",
          switched, launches, cells, kept);
  for (int32_t i = 0; i < count && i < SHOWN; i++)
    print_switch(&switches[i], out);
  print_rest(count, "  ", out);
  free(switches);
  json_decref(index);
}

/* ---- A cell --------------------------------------------------------------------------------------------------------- */

static void print_place(const ScopeChange *row, FILE *out) {
  char text[VL_NAME_BYTES + 48];
  if (row->layers == 1)
    snprintf(text, sizeof text, "%s", *row->scope ? row->scope : "(no scope)");
  else if (*row->scope)
    snprintf(text, sizeof text, "%s, all %" PRId32 " layers", row->scope, row->layers);
  else
    snprintf(text, sizeof text, "all %" PRId32 " layers", row->layers);
  fprintf(out, "      %-8s  %-30s", vl_segment_name((Segment)row->segment), text);
}

/* The share is of what all ops changed by together, and means nothing where that is next to nothing. */
static double share_of(const OpsComparison *ops, const ScopeChange *row) {
  double all = ops->now_s - ops->base_s;
  return fabs(all) > 0.01 * ops->base_s ? (row->now_s - row->base_s) / all : NAN;
}

/* A change below which the ops do not tell where a time went, and the share of it that is worth a line. */
static const double LEAST_CHANGE = 0.03, LEAST_SHARE = 0.01;

static void print_where(const OpsComparison *ops, bool predicted, FILE *out) {
  bool few = ops->base_steps < 3 || ops->now_steps < 3;
  if (predicted)
    fputs("    ops by scope, predicted:", out);
  else
    fprintf(out,
            "    ops by scope, each waited for, of %" PRId32 " and %" PRId32 " steps%s:", ops->base_steps,
            ops->now_steps, few ? " (noisy)" : "");
  print_times(ops->base_s, ops->now_s, out);
  fprintf(out, "  %.2fx\n", ops->now_s / ops->base_s);
  if (fabs(ops->now_s / ops->base_s - 1) < LEAST_CHANGE) {
    fputs("      what changed is not in them\n", out);
    return;
  }
  int32_t telling = 0; /* they come by how much they changed */
  while (telling < ops->time_count && fabs(share_of(ops, &ops->times[telling])) >= LEAST_SHARE)
    telling++;
  for (int32_t i = 0; i < telling && i < SHOWN; i++) {
    const ScopeChange *row = &ops->times[i];
    print_place(row, out);
    print_times(row->base_s, row->now_s, out);
    if (row->base_s > 0) fprintf(out, "  %.2fx", row->now_s / row->base_s);
    fprintf(out, "  %.0f %% of the change\n", 100 * share_of(ops, row));
  }
  print_rest(telling, "      ", out);
}

static void print_bytes(int64_t base, int64_t now, FILE *out) {
  char change[32];
  vl_format_bytes(llabs(now - base), change, sizeof change);
  fprintf(out, "  %" PRId64 " -> %" PRId64 "  %s%s\n", base, now, now < base ? "-" : "+", change);
}

static void print_traffic(const OpsComparison *ops, FILE *out) {
  if (ops->traffic_count == 0) return;
  fprintf(out, "    bytes that ops read and write, %" PRId64 " -> %" PRId64 " launches\n", ops->base_launches,
          ops->now_launches);
  for (int32_t i = 0; i < ops->traffic_count && i < SHOWN; i++) {
    print_place(&ops->traffic[i], out);
    print_bytes(ops->traffic[i].base_bytes, ops->traffic[i].now_bytes, out);
  }
  print_rest(ops->traffic_count, "      ", out);
}

/* ---- What layers hold at the peak ------------------------------------------------------------------------------------- */

typedef struct Held {
  const char *scope;
  int64_t base, now;
} Held;

static int by_change(const void *left, const void *right) {
  const Held *a = left, *b = right;
  int64_t of_a = llabs(a->now - a->base), of_b = llabs(b->now - b->base);
  return of_a > of_b ? -1 : of_a < of_b ? 1 : strcmp(a->scope, b->scope);
}

/* Layers of both records whose bytes differ; free() them. */
static Held *held_of(const CellComparison *cell, int32_t *count) {
  json_t *base = json_object_get(cell->base, "scopes"), *now = json_object_get(cell->now, "scopes"), *item;
  json_t *before = json_object(), *value;
  size_t i;
  const char *scope;
  Held *held = vl_allocate((json_array_size(base) + json_array_size(now) + 1) * sizeof *held);
  *count = 0;
  json_array_foreach(base, i, item) {
    if (json_is_string(json_object_get(item, "scope")))
      json_object_set(before, vl_record_text(item, "scope"), json_object_get(item, "bytes"));
  }
  json_array_foreach(now, i, item) {
    scope = vl_record_text(item, "scope");
    if (!scope) continue;
    Held it = {scope, json_integer_value(json_object_get(before, scope)), vl_record_integer(item, "bytes")};
    json_object_del(before, scope);
    if (it.base != it.now) held[(*count)++] = it;
  }
  json_array_foreach(base, i, item) { /* what is left is gone; names are the record's */
    scope = vl_record_text(item, "scope");
    value = scope ? json_object_get(before, scope) : NULL;
    if (value) held[(*count)++] = (Held){scope, json_integer_value(value), 0};
  }
  json_decref(before);
  qsort(held, (size_t)*count, sizeof *held, by_change);
  return held;
}

/* Both must tell: baselines keep no lists. */
static bool tells_scopes(const CellComparison *cell) {
  return json_array_size(json_object_get(cell->base, "scopes")) > 0 &&
         json_array_size(json_object_get(cell->now, "scopes")) > 0;
}

static void print_held(const CellComparison *cell, FILE *out) {
  int32_t count;
  if (!tells_scopes(cell)) return;
  Held *held = held_of(cell, &count);
  if (count > 0) fputs("    held at the allocated peak\n", out);
  for (int32_t i = 0; i < count && i < SHOWN; i++) {
    fprintf(out, "      %-40s", *held[i].scope ? held[i].scope : "(no scope)");
    print_bytes(held[i].base, held[i].now, out);
  }
  print_rest(count, "      ", out);
  free(held);
}

void vl_compare_print_ops(const CellComparison *cell, bool times, bool memory, FILE *out) {
  if (memory) print_held(cell, out);
  if (!cell->ops) return;
  print_traffic(cell->ops, out);
  if (times && cell->ops->time_count > 0) print_where(cell->ops, vl_record_is_predicted(cell->now), out);
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------- */

static json_t *real_or_null(double value) {
  json_t *json = vl_json_real(value);
  return json ? json : json_null();
}

static json_t *implementations_json(const OpsComparison *ops) {
  json_t *list = json_array();
  for (int32_t i = 0; i < ops->implementation_count; i++) {
    const OpChange *change = &ops->implementations[i];
    json_array_append_new(
        list, json_pack("{so so ss so so sI so so}", "op", vl_json_text(change->op), "scope",
                        vl_json_text(change->scope), "segment", vl_segment_name((Segment)change->segment),
                        "base", vl_json_text(change->base), "new", vl_json_text(change->now), "launches",
                        (json_int_t)change->launches, "base_s", real_or_null(change->base_s), "new_s",
                        real_or_null(change->now_s)));
  }
  return list;
}

static json_t *place_json(const ScopeChange *row) {
  return json_pack("{so ss si}", "scope", vl_json_text(row->scope), "segment",
                   vl_segment_name((Segment)row->segment), "layers", row->layers);
}

static json_t *times_json(const OpsComparison *ops) {
  json_t *list = json_array();
  for (int32_t i = 0; i < ops->time_count && i < SHOWN; i++) {
    const ScopeChange *row = &ops->times[i];
    json_t *json = place_json(row);
    json_object_set_new(json, "base_s", real_or_null(row->base_s));
    json_object_set_new(json, "new_s", real_or_null(row->now_s));
    json_object_set_new(json, "ratio", real_or_null(row->now_s / row->base_s));
    json_object_set_new(json, "share", real_or_null(share_of(ops, row)));
    json_array_append_new(list, json);
  }
  return list;
}

static json_t *traffic_json(const OpsComparison *ops) {
  json_t *list = json_array();
  for (int32_t i = 0; i < ops->traffic_count && i < SHOWN; i++) {
    json_t *json = place_json(&ops->traffic[i]);
    json_object_set_new(json, "base_bytes", json_integer(ops->traffic[i].base_bytes));
    json_object_set_new(json, "new_bytes", json_integer(ops->traffic[i].now_bytes));
    json_array_append_new(list, json);
  }
  return list;
}

json_t *vl_compare_ops_json(const OpsComparison *ops) {
  return json_pack("{si si sI sI so so so so so}", "base_steps", ops->base_steps, "new_steps", ops->now_steps,
                   "base_launches", (json_int_t)ops->base_launches, "new_launches",
                   (json_int_t)ops->now_launches, "base_s", real_or_null(ops->base_s), "new_s",
                   real_or_null(ops->now_s), "implementations", implementations_json(ops), "scopes",
                   times_json(ops), "traffic", traffic_json(ops));
}
json_t *vl_compare_held_json(const CellComparison *cell) {
  json_t *list = json_array();
  int32_t count;
  if (!tells_scopes(cell)) return list;
  Held *held = held_of(cell, &count);
  for (int32_t i = 0; i < count && i < SHOWN; i++)
    json_array_append_new(list, json_pack("{so sI sI}", "scope", vl_json_text(held[i].scope), "base_bytes",
                                          (json_int_t)held[i].base, "new_bytes", (json_int_t)held[i].now));
  free(held);
  return list;
}
