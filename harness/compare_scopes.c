/* Layers that moved alike, told as one. */
#include "harness/compare_ops.h"

#include <math.h>
#include <string.h>

static const double LEAST_CHANGE = 0.03, LEAST_SHARE = 0.05;

static ScopeChange together(const ScopeChange *rows, int32_t count) {
  ScopeChange sum = {.segment = rows[0].segment};
  for (int32_t i = 0; i < count; i++) {
    sum.layers += rows[i].layers;
    sum.base_s += rows[i].base_s;
    sum.now_s += rows[i].now_s;
    sum.base_bytes += rows[i].base_bytes;
    sum.now_bytes += rows[i].now_bytes;
  }
  return sum;
}

static bool moved_alike(const ScopeChange *rows, int32_t count, const ScopeChange *sum) {
  double all = sum->now_s / sum->base_s - 1;
  if (!(sum->base_s > 0) || fabs(all) < LEAST_CHANGE) return false;
  for (int32_t i = 0; i < count; i++) {
    double least = LEAST_SHARE * (rows[i].base_s > rows[i].now_s ? sum->base_s : sum->now_s);
    if (fmax(rows[i].base_s, rows[i].now_s) < least) continue;
    double share = (rows[i].now_s / rows[i].base_s - 1) / all;
    if (!(share >= 0.5 && share <= 2)) return false;
  }
  return true;
}

/* Whether a scope is `prefix`, or below it. */
static bool is_within(const char *scope, const char *prefix, size_t length) {
  return length == 0 ||
         (strncmp(scope, prefix, length) == 0 && (scope[length] == '.' || scope[length] == '\0'));
}

/* rows are all those below a prefix of so many characters; returns how many are left of them at `to`. */
static int32_t merge_below(const ScopeChange *rows, int32_t count, size_t length, ScopeChange *to) {
  if (count > 1) {
    ScopeChange sum = together(rows, count);
    if (moved_alike(rows, count, &sum)) {
      memcpy(sum.scope, rows[0].scope, length);
      *to = sum;
      return 1;
    }
  }
  int32_t left = 0;
  for (int32_t from = 0, end; from < count; from = end) {
    const char *scope = rows[from].scope;
    size_t next = length + (length > 0 && scope[length] == '.');
    next += strcspn(scope + next, ".");
    for (end = from + 1; end < count && next > length && is_within(rows[end].scope, scope, next);)
      end++;
    if (end - from == 1) {
      ScopeChange row = rows[from]; /* `to` may be where it is */
      to[left++] = row;
    } else {
      left += merge_below(&rows[from], end - from, next, &to[left]);
    }
  }
  return left;
}

int32_t vl_scopes_merge(ScopeChange *rows, int32_t count) { return merge_below(rows, count, 0, rows); }
