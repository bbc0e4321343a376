/* Queues of samples of several sizes: how they are written, divided into batches, and sized so that what is
 * planned fits and what runs is what was planned. */
#include "engine/queue.h"
#include "tests/graph/networks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char mixed[] = "32:5,64:6,96:3";
static const int64_t mib = INT64_C(1) << 20;

static CellSpec queue_spec(const char *recipe, int64_t capacity_bytes) {
  CellSpec spec;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  snprintf(spec.settings[0], sizeof spec.settings[0], "classes=10");
  spec.setting_count = 1;
  snprintf(spec.recipe, sizeof spec.recipe, "%s", recipe);
  snprintf(spec.queue, sizeof spec.queue, "%s", mixed);
  spec.capacity_bytes = capacity_bytes;
  spec.threads = 2;
  spec.steps = 1;
  spec.inference = true;
  return spec;
}

static CellResult run_on(CellSpec spec, const char *device) {
  CellResult result;
  snprintf(spec.device, sizeof spec.device, "%s", device);
  require_ok(vl_cell_run(&spec, NULL, &result));
  return result;
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

static void queues_are_read(void **state) {
  (void)state;
  Queue queue;
  require_ok(engine_queue_parse("64x64x64:8,96:4,32x16:1", 7, &queue));
  assert_int_equal(queue.shape_count, 3);
  assert_int_equal(queue.samples, 13);
  assert_int_equal(queue.shapes[0].rank, 3);
  assert_int_equal(queue.shapes[1].sizes[0], 96);
  assert_int_equal(queue.shapes[2].first_sample, 12);
  int64_t counts[3] = {0};
  for (int64_t i = 0; i < queue.samples; i++)
    counts[queue.order[i]]++;
  for (int32_t i = 0; i < 3; i++) {
    assert_int_equal(counts[i], queue.shapes[i].samples);
    assert_true(queue.shapes[i].longest >= 1 && queue.shapes[i].longest <= counts[i]);
  }
  int64_t sizes[] = {4, 2, 1}, read[3];
  char text[VL_QUEUE_BATCHES_BYTES];
  engine_queue_write_sizes(&queue, sizes, text);
  assert_string_equal(text, "4,2,1");
  require_ok(engine_queue_read_sizes(&queue, text, read));
  assert_memory_equal(sizes, read, sizeof sizes);
  assert_int_equal(engine_queue_read_sizes(&queue, "4,2", read).code, VL_INVALID);
  assert_int_equal(engine_queue_read_sizes(&queue, "4,2,1,1", read).code, VL_INVALID);
  engine_queue_clear(&queue);
  static const char *const wrong[] = {"",      "64",          "64:",   ":3",        "64:0",
                                      "64:-1", "64:4,",       "64x:4", "1x2x3x4:1", "64:4,64:2",
                                      "0:1",   "64:99999999", "a64:1", "64.5:1",    "64:1;96:1"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    Status status = engine_queue_parse(wrong[i], 0, &queue);
    if (status.code != VL_INVALID) fail_msg("'%s' was accepted", wrong[i]);
    assert_non_null(strstr(status.message, "queue"));
    engine_queue_clear(&queue);
  }
}

/* Each sample is in one batch, of no more than its shape allows. */
static void check_batches(const Queue *queue, bool bucketed, const int64_t *sizes, int32_t most) {
  int32_t count;
  QueueBatch *batches = engine_queue_batches(queue, bucketed, sizes, &count);
  int32_t *seen = vl_allocate((size_t)queue->samples * sizeof *seen);
  for (int32_t b = 0; b < count; b++) {
    const QueueShape *shape = &queue->shapes[batches[b].shape];
    assert_true(batches[b].samples >= 1 && batches[b].samples <= sizes[batches[b].shape]);
    assert_true(batches[b].first_sample >= shape->first_sample);
    assert_true(batches[b].first_sample + batches[b].samples <= shape->first_sample + shape->samples);
    for (int64_t i = 0; i < batches[b].samples; i++)
      seen[batches[b].first_sample + i]++;
  }
  for (int64_t i = 0; i < queue->samples; i++)
    assert_int_equal(seen[i], 1);
  if (most > 0) assert_int_equal(count, most);
  free(batches);
  free(seen);
}

static void batches_hold_every_sample_once(void **state) {
  (void)state;
  const int64_t sizes[] = {2, 4, 1}, ones[] = {1, 1, 1};
  for (uint64_t seed = 0; seed < 20; seed++) {
    Queue queue;
    require_ok(engine_queue_parse(mixed, seed, &queue));
    check_batches(&queue, true, sizes, 3 + 2 + 3);
    check_batches(&queue, false, sizes, 0);
    check_batches(&queue, true, ones, 14);
    check_batches(&queue, false, ones, 14);
    int32_t count;
    QueueBatch *batches = engine_queue_batches(&queue, true, sizes, &count);
    assert_int_equal(batches[0].shape, 2); /* the largest first */
    free(batches);
    engine_queue_clear(&queue);
  }
}

/* ---- Cells ---------------------------------------------------------------------------------------------------- */

static void assert_same_memory(const CellResult *a, const CellResult *b) {
  assert_int_equal(a->peak_requested_bytes, b->peak_requested_bytes);
  assert_int_equal(a->peak_allocated_bytes, b->peak_allocated_bytes);
  assert_int_equal(a->peak_reserved_bytes, b->peak_reserved_bytes);
  assert_string_equal(a->queue_batches, b->queue_batches);
  assert_int_equal(a->shape_count, b->shape_count);
  for (int32_t i = 0; i < a->shape_count; i++) {
    assert_int_equal(a->shapes[i].peak_allocated_bytes, b->shapes[i].peak_allocated_bytes);
    assert_int_equal(a->shapes[i].peak_reserved_bytes, b->shapes[i].peak_reserved_bytes);
  }
}

static void what_runs_is_what_was_planned(void **state) {
  (void)state;
  static const char *const recipes[] = {"dynamic-batch=bucketed", "dynamic-batch=in-order",
                                        "stack=vramlab amp=bf16 weights=once dynamic-batch=bucketed",
                                        "baseline"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    for (int inference = 0; inference < 2; inference++) {
      CellSpec spec = queue_spec(recipes[i], 700 * mib);
      spec.inference = inference;
      if (!inference) snprintf(spec.queue, sizeof spec.queue, "64:6,96:3"); /* norms take a variance */
      if (!inference && strstr(recipes[i], "weights=once")) continue;
      CellResult planned = run_on(spec, "plan"), measured = run_on(spec, "cpu");
      if (strcmp(measured.status, "ok") != 0) fail_msg("%s: %s", recipes[i], measured.error);
      assert_string_equal(planned.status, "ok");
      assert_same_memory(&planned, &measured);
      assert_true(measured.peak_reserved_bytes <= spec.capacity_bytes);
      assert_int_equal(measured.global_batch, inference ? 14 : 9);
      for (int32_t s = 0; s < measured.shape_count; s++)
        assert_true(measured.shapes[s].samples_per_s > 0.0);
      assert_int_equal(measured.loss_count, inference ? 0 : 2);
      vl_cell_result_clear(&planned);
      vl_cell_result_clear(&measured);
    }
  }
}

/* The recipe is that of every batch: of one batch a pass needs what the same cell without a queue does. */
static void a_recipe_goes_for_every_batch(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline", "amp=bf16", "stack=vramlab amp=bf16 weights=once",
                                        "allocator=expandable"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    CellSpec spec = queue_spec(recipes[i], 0);
    snprintf(spec.queue, sizeof spec.queue, "96:3");
    spec.micro_batch = 3;
    CellResult of_queue = run_on(spec, "plan");
    spec.queue[0] = '\0';
    snprintf(spec.settings[spec.setting_count++], VL_NAME_BYTES, "size=96");
    CellResult alone = run_on(spec, "plan");
    assert_string_equal(of_queue.status, "ok");
    assert_int_equal(of_queue.peak_requested_bytes, alone.peak_requested_bytes);
    assert_int_equal(of_queue.peak_reserved_bytes, alone.peak_reserved_bytes);
    assert_int_equal(of_queue.flops_per_step, alone.flops_per_step);
    vl_cell_result_clear(&of_queue);
    vl_cell_result_clear(&alone);
  }
}

/* Whatever the capacity, it runs, or not even one sample fits. */
static void capacities_are_kept(void **state) {
  (void)state;
  int32_t ran = 0, refused = 0;
  for (int64_t capacity = 60 * mib; capacity <= 400 * mib; capacity += 20 * mib) {
    CellSpec spec = queue_spec("dynamic-batch=bucketed", capacity);
    CellResult r = run_on(spec, "plan");
    bool ok = strcmp(r.status, "ok") == 0;
    if (!ok) {
      assert_string_equal(r.status, "oom");
      if (!strstr(r.error, "not even one sample of")) fail_msg("%s", r.error);
      /* Nor does it by itself: batches of others do not keep it out. */
      CellSpec alone = spec;
      snprintf(alone.queue, sizeof alone.queue, "96:1");
      CellResult one = run_on(alone, "plan");
      assert_string_equal(one.status, "oom");
      vl_cell_result_clear(&one);
    } else {
      assert_true(r.needed_bytes <= capacity);
    }
    ran += ok;
    refused += !ok;
    vl_cell_result_clear(&r);
  }
  assert_true(ran > 5 && refused > 0);
}

/* One more of a size, by itself, would need more than there is. */
static void batches_are_the_largest_that_fit(void **state) {
  (void)state;
  CellSpec spec = queue_spec("dynamic-batch=bucketed", 120 * mib);
  CellResult r = run_on(spec, "plan");
  assert_string_equal(r.status, "ok");
  bool any = false;
  for (int32_t i = 0; i < r.shape_count; i++) {
    if (r.shapes[i].batch == r.shapes[i].samples) continue;
    CellSpec one = spec;
    one.queue[0] = one.recipe[0] = '\0';
    snprintf(one.settings[one.setting_count++], VL_NAME_BYTES, "size=%s", r.shapes[i].shape);
    one.micro_batch = r.shapes[i].batch + 1;
    CellResult more = run_on(one, "plan");
    assert_true(strcmp(more.status, "oom") == 0 || more.needed_bytes > spec.capacity_bytes);
    vl_cell_result_clear(&more);
    any = true;
  }
  assert_true(any);
  /* A fixed batch of the smallest size's is too large for the largest. */
  spec.micro_batch = r.shapes[0].batch > 3 ? r.shapes[0].batch : 4;
  spec.recipe[0] = '\0';
  spec.capacity_bytes = 120 * mib;
  vl_cell_result_clear(&r);
  r = run_on(spec, "plan");
  if (strcmp(r.status, "oom") == 0) assert_non_null(strstr(r.error, "at once"));
  vl_cell_result_clear(&r);
}

/* A budget of the recipe's own sizes batches as a capacity does, however much there is besides. */
static void a_budget_is_a_capacity_of_the_recipe(void **state) {
  (void)state;
  static const char *const modes[] = {"in-order", "bucketed"};
  for (int i = 0; i < 2; i++) {
    char recipe[VL_RECIPE_BYTES];
    snprintf(recipe, sizeof recipe, "dynamic-batch=%s:120MiB", modes[i]);
    CellResult budget = run_on(queue_spec(recipe, 0), "plan");
    CellResult within = run_on(queue_spec(recipe, 4096 * mib), "plan");
    CellResult less = run_on(queue_spec("dynamic-batch=bucketed:4GiB", 120 * mib), "plan");
    snprintf(recipe, sizeof recipe, "dynamic-batch=%s", modes[i]);
    CellResult capacity = run_on(queue_spec(recipe, 120 * mib), "plan");
    assert_string_equal(capacity.status, "ok");
    assert_same_memory(&budget, &capacity);
    assert_same_memory(&within, &capacity);
    if (i == 1) assert_same_memory(&less, &capacity);
    assert_true(budget.needed_bytes <= 120 * mib);
    vl_cell_result_clear(&budget);
    vl_cell_result_clear(&within);
    vl_cell_result_clear(&less);
    vl_cell_result_clear(&capacity);
  }
  CellResult small = run_on(queue_spec("dynamic-batch=bucketed:1MiB", 0), "plan");
  assert_string_equal(small.status, "oom");
  assert_non_null(strstr(small.error, "fits 1.00 MiB"));
  vl_cell_result_clear(&small);
}

static void assert_refused(const CellSpec *spec, const char *reason) {
  Status status = vl_cell_check(spec);
  if (status.code != VL_INVALID || !strstr(status.message, reason))
    fail_msg("'%s' does not say '%s'", status.message, reason);
}

static void what_makes_no_sense_is_refused(void **state) {
  (void)state;
  CellSpec spec = queue_spec("dynamic-batch=bucketed", 0);
  assert_refused(&spec, "give it (--capacity");
  spec = queue_spec("dynamic-batch=bucketed", mib);
  spec.queue[0] = '\0';
  assert_refused(&spec, "give one (--queue)");
  spec = queue_spec("dynamic-batch=bucketed:0", 0);
  assert_refused(&spec, "a budget of nothing");
  spec = queue_spec("dynamic-batch=in-order:much", 0);
  assert_refused(&spec, "much");
  spec = queue_spec("dynamic-batch=sometimes:1GiB", mib);
  assert_refused(&spec, "in-order, bucketed");
  spec = queue_spec("dynamic-batch=sometimes", mib);
  assert_refused(&spec, "in-order, bucketed");
  spec = queue_spec("baseline", mib);
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=64");
  assert_refused(&spec, "it says size");
  spec = queue_spec("baseline", mib);
  snprintf(spec.queue, sizeof spec.queue, "64x64:3");
  assert_refused(&spec, "64x64 has 2 sizes; resnet50 has 1");
  snprintf(spec.queue, sizeof spec.queue, "8:3");
  assert_refused(&spec, "size");
  spec = queue_spec("accumulate=2", mib);
  spec.inference = false;
  spec.micro_batch = 2;
  assert_refused(&spec, "micro-batches that add up");
  spec = queue_spec("baseline", mib);
  spec.monitor = true;
  assert_refused(&spec, "monitoring");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(queues_are_read),
      cmocka_unit_test(batches_hold_every_sample_once),
      cmocka_unit_test(what_runs_is_what_was_planned),
      cmocka_unit_test(a_recipe_goes_for_every_batch),
      cmocka_unit_test(capacities_are_kept),
      cmocka_unit_test(batches_are_the_largest_that_fit),
      cmocka_unit_test(a_budget_is_a_capacity_of_the_recipe),
      cmocka_unit_test(what_makes_no_sense_is_refused),
  };
  return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
