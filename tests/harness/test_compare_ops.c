/* compare tells where in a model something changed: ops that run another implementation are found and
 * counted, layers that moved alike are one line and those that did not stand by themselves, repetitions count
 * by their median, and what keeps no time or no ops is told without. */
#include "harness/compare_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static OpRecord op_of(const char *op, const char *scope, Segment segment, int64_t us,
                      const char *implementation) {
  OpRecord record = {.segment = (int32_t)segment, .duration_ns = us * 1000, .bytes = 1000};
  snprintf(record.op, sizeof record.op, "%s", op);
  snprintf(record.scope, sizeof record.scope, "%s", scope);
  snprintf(record.implementation, sizeof record.implementation, "%s", implementation);
  return record;
}

static OpsComparison *compare_one(OpRecord *base, int64_t n, OpRecord *now, int64_t m) {
  KeptSteps of_base = {&base, &n, 1}, of_now = {&now, &m, 1};
  return vl_compare_steps(&of_base, &of_now);
}

static void other_implementations_are_found(void **state) {
  (void)state;
  OpRecord base[] = {
      op_of("conv", "layer1.conv1", SEGMENT_FORWARD, 10, "brgconv:avx512_core_bf16"),
      op_of("add", "layer1", SEGMENT_FORWARD, 1, "own"),
      op_of("add", "layer1", SEGMENT_FORWARD, 1, "jit:uni"),
      op_of("conv", "layer2.conv1", SEGMENT_FORWARD, 100, "brgconv:avx512_core_bf16"),
      op_of("conv", "layer3.conv1", SEGMENT_FORWARD, 100, ""),
      op_of("conv", "gone", SEGMENT_FORWARD, 100, "own"),
  };
  OpRecord now[] = {
      op_of("conv", "new", SEGMENT_FORWARD, 100, "own"),
      op_of("conv", "layer1.conv1", SEGMENT_FORWARD, 30, "jit:avx512_core_bf16"),
      op_of("add", "layer1", SEGMENT_FORWARD, 1, "own"),
      op_of("add", "layer1", SEGMENT_FORWARD, 2, "own"), /* the second of its kind there */
      op_of("conv", "layer2.conv1", SEGMENT_FORWARD, 300, "jit:avx512_core_bf16"),
      op_of("conv", "layer3.conv1", SEGMENT_FORWARD, 100, "own"), /* it was not told before */
  };
  OpsComparison *ops = compare_one(base, 6, now, 6);
  assert_int_equal(ops->implementation_count, 3);
  assert_string_equal(ops->implementations[0].scope, "layer2.conv1"); /* the largest time first */
  assert_string_equal(ops->implementations[0].base, "brgconv:avx512_core_bf16");
  assert_string_equal(ops->implementations[0].now, "jit:avx512_core_bf16");
  assert_true(fabs(ops->implementations[0].now_s - 300e-6) < 1e-12);
  assert_string_equal(ops->implementations[1].scope, "layer1.conv1");
  assert_string_equal(ops->implementations[2].base, "jit:uni");
  vl_compare_ops_free(ops);
}

/* The same layer in every micro-batch is one change of many launches. */
static void micro_batches_are_one_change(void **state) {
  (void)state;
  enum { MICRO_BATCHES = 8 };
  OpRecord base[MICRO_BATCHES], now[MICRO_BATCHES];
  for (int i = 0; i < MICRO_BATCHES; i++) {
    base[i] = op_of("conv", "conv1", SEGMENT_FORWARD, 10, "a");
    now[i] = op_of("conv", "conv1", SEGMENT_FORWARD, 20, "b");
    base[i].micro_batch = now[i].micro_batch = i;
  }
  OpsComparison *ops = compare_one(base, MICRO_BATCHES, now, MICRO_BATCHES);
  assert_int_equal(ops->implementation_count, 1);
  assert_int_equal(ops->implementations[0].launches, MICRO_BATCHES);
  assert_true(fabs(ops->implementations[0].base_s - 80e-6) < 1e-12);
  vl_compare_ops_free(ops);
}

static const ScopeChange *find(const OpsComparison *ops, Segment segment, const char *scope) {
  for (int32_t i = 0; i < ops->time_count; i++)
    if (ops->times[i].segment == (int32_t)segment && strcmp(ops->times[i].scope, scope) == 0)
      return &ops->times[i];
  return NULL;
}

/* layer1 is twice as slow everywhere; of layer2 one convolution; layer10 is no part of layer1. */
static void layers_that_moved_alike_are_one(void **state) {
  (void)state;
  static const struct {
    const char *scope;
    int64_t base_us, now_us;
  } layers[] = {{"layer1.0.conv1", 100, 200}, {"layer1.0.bn1", 1, 1},        {"layer1.1.conv1", 50, 105},
                {"layer1.1.conv2", 70, 130},  {"layer10.0.conv1", 100, 100}, {"layer2.0.conv1", 90, 390},
                {"layer2.0.conv2", 90, 91},   {"layer2.1.conv1", 90, 89},    {"", 10, 10}};
  enum { LAYERS = sizeof layers / sizeof *layers };
  OpRecord base[2 * LAYERS], now[2 * LAYERS];
  for (int i = 0; i < LAYERS; i++) {
    base[i] = op_of("conv", layers[i].scope, SEGMENT_FORWARD, layers[i].base_us, "own");
    now[i] = op_of("conv", layers[i].scope, SEGMENT_FORWARD, layers[i].now_us, "own");
    base[LAYERS + i] = op_of("sgd", layers[i].scope, SEGMENT_UPDATE, layers[i].base_us, "own");
    now[LAYERS + i] = op_of("sgd", layers[i].scope, SEGMENT_UPDATE, 2 * layers[i].base_us, "own");
  }
  OpsComparison *ops = compare_one(base, 2 * LAYERS, now, 2 * LAYERS);
  const ScopeChange *layer1 = find(ops, SEGMENT_FORWARD, "layer1"), *update = find(ops, SEGMENT_UPDATE, "");
  assert_non_null(layer1);
  assert_int_equal(layer1->layers, 4);
  assert_true(fabs(layer1->now_s - 436e-6) < 1e-12);
  assert_non_null(find(ops, SEGMENT_FORWARD, "layer2.0.conv1"));
  assert_non_null(find(ops, SEGMENT_FORWARD, "layer10.0.conv1"));
  assert_non_null(find(ops, SEGMENT_FORWARD, ""));
  assert_int_equal(find(ops, SEGMENT_FORWARD, "")->layers, 1);
  assert_non_null(update);
  assert_int_equal(update->layers, LAYERS); /* the whole segment moved alike */
  assert_int_equal(ops->time_count, 1 + 6);
  assert_true(ops->times[0].segment == SEGMENT_UPDATE); /* changed most */
  double change = 0;
  for (int32_t i = 0; i < ops->time_count; i++)
    change += ops->times[i].now_s - ops->times[i].base_s;
  assert_true(fabs(change - (ops->now_s - ops->base_s)) < 1e-12); /* nothing is lost or counted twice */
  assert_int_equal(ops->traffic_count, 0);
  vl_compare_ops_free(ops);
}

/* One of three steps was disturbed: the median does not see it. Traffic is exact. */
static void repetitions_count_by_their_median(void **state) {
  (void)state;
  OpRecord steps[6][1];
  OpRecord *base[3], *now[3];
  int64_t counts[3] = {1, 1, 1};
  static const int64_t us[6] = {10, 11, 900, 12, 10, 11};
  for (int i = 0; i < 6; i++) {
    steps[i][0] = op_of("conv", "conv1", SEGMENT_FORWARD, us[i], "own");
    if (i >= 3) steps[i][0].bytes = 1500;
    (i < 3 ? base : now)[i % 3] = steps[i];
  }
  KeptSteps of_base = {base, counts, 3}, of_now = {now, counts, 3};
  OpsComparison *ops = vl_compare_steps(&of_base, &of_now);
  assert_int_equal(ops->base_steps, 3);
  assert_true(fabs(ops->base_s - 11e-6) < 1e-12 && fabs(ops->now_s - 11e-6) < 1e-12);
  assert_int_equal(ops->traffic_count, 1);
  assert_int_equal(ops->traffic[0].base_bytes, 1000);
  assert_int_equal(ops->traffic[0].now_bytes, 1500);
  vl_compare_ops_free(ops);
}

/* What is planned without rates has implementations and traffic, and no time. */
static void ops_without_time_have_none(void **state) {
  (void)state;
  OpRecord base[] = {op_of("conv", "conv1", SEGMENT_FORWARD, 1, "a")}, now[] = {base[0]};
  base[0].duration_ns = now[0].duration_ns = -1;
  snprintf(now[0].implementation, sizeof now[0].implementation, "b");
  OpsComparison *ops = compare_one(base, 1, now, 1);
  assert_true(isnan(ops->base_s) && isnan(ops->now_s));
  assert_int_equal(ops->time_count, 0);
  assert_int_equal(ops->implementation_count, 1);
  json_t *json = vl_compare_ops_json(ops);
  assert_true(json_is_null(json_object_get(json, "base_s")));
  assert_int_equal(json_array_size(json_object_get(json, "implementations")), 1);
  json_decref(json);
  vl_compare_ops_free(ops);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(other_implementations_are_found), cmocka_unit_test(micro_batches_are_one_change),
      cmocka_unit_test(layers_that_moved_alike_are_one), cmocka_unit_test(repetitions_count_by_their_median),
      cmocka_unit_test(ops_without_time_have_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
