/* A cell from specification to result on the cpu: what is refused before anything runs, what is a result and
 * not a failure, and figures that agree with each other. */
#include "engine/engine.h"
#include "tests/graph/networks.h"
#include <hdf5.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static CellSpec small_spec(void) {
  CellSpec spec;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=32");
  snprintf(spec.settings[1], sizeof spec.settings[1], "classes=10");
  spec.setting_count = 2;
  spec.micro_batch = 2;
  spec.threads = 2;
  spec.steps = 2;
  return spec;
}

static CellResult run(const CellSpec *spec) {
  CellResult result;
  require_ok(vl_cell_run(spec, NULL, &result));
  return result;
}

/* ---- Refused before anything runs -------------------------------------------------------------------------------------- */

static void assert_refused(const CellSpec *spec, const char *place) {
  CellResult result;
  Status status = vl_cell_check(spec);
  if (status.code != VL_INVALID || !strstr(status.message, place)) {
    fail_msg("expected a refusal that names '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  }
  assert_int_equal(vl_cell_run(spec, NULL, &result).code, VL_INVALID);
  vl_cell_result_clear(&result);
}

static void bad_specifications_are_refused(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  require_ok(vl_cell_check(&spec));
  snprintf(spec.case_name, sizeof spec.case_name, "resnet51");
  assert_refused(&spec, "unknown case 'resnet51' (known: resnet50");
  spec = small_spec();
  snprintf(spec.recipe, sizeof spec.recipe, "amp=fp8");
  assert_refused(&spec, "amp=fp8");
  spec = small_spec();
  snprintf(spec.settings[0], sizeof spec.settings[0], "sizes=32");
  assert_refused(&spec, "no setting 'sizes=32' (takes NAME=VALUE for: size, classes");
  spec = small_spec();
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=31");
  assert_refused(&spec, "size '31' is not a whole number from 32 to 1024");
  spec = small_spec();
  spec.micro_batch = 0;
  assert_refused(&spec, "batch is 0");
  spec = small_spec();
  spec.steps = 0; /* fault case I17 */
  assert_refused(&spec, "steps is 0");
  spec = small_spec();
  spec.warmup = 0;
  assert_refused(&spec, "warmup is 0");
  spec = small_spec();
  spec.inference = true;
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=2");
  assert_refused(&spec, "accumulate=2 with inference");
  spec = small_spec();
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=auto");
  assert_refused(&spec, "accumulate=auto divides the batch until it fits: give the capacity");
  spec = small_spec();
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=4");
  spec.global_batch = 9;
  assert_refused(&spec, "9 samples in micro-batches of 2 are 5, not accumulate=4");
  spec = small_spec();
  spec.capacity_bytes = -1;
  assert_refused(&spec, "capacity");
  spec = small_spec();
  snprintf(spec.device, sizeof spec.device, "tpu");
  assert_refused(&spec, "'tpu' (known: cpu, cuda, plan)");
  spec = small_spec();
  snprintf(spec.profile, sizeof spec.profile, "V100-16GB");
  assert_refused(&spec, "a profile is for device plan");
  spec = small_spec();
  snprintf(spec.device, sizeof spec.device, "plan");
  snprintf(spec.data, sizeof spec.data, "digits.h5");
  assert_refused(&spec, "--data");
}

static void more_segments_than_blocks_are_refused_d5(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  CellResult result;
  snprintf(spec.recipe, sizeof spec.recipe, "checkpoint=segments:17");
  Status status = vl_cell_run(&spec, NULL, &result);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "only 16 blocks"));
  vl_cell_result_clear(&result);
}

/* ---- Results ----------------------------------------------------------------------------------------------------------- */

static void figures_agree_with_each_other_a5(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  snprintf(spec.recipe, sizeof spec.recipe, "checkpoint=4 amp=bf16");
  CellResult r = run(&spec);
  assert_string_equal(r.status, "ok");
  assert_string_equal(r.error, "");
  assert_string_equal(r.recipe, "amp=bf16 checkpoint=4");
  assert_string_equal(r.stack, "pytorch");
  assert_string_equal(r.preserves, "tolerance");
  assert_int_equal(r.global_batch, 2);
  assert_int_equal(r.loss_count, spec.warmup + spec.steps);
  assert_int_equal(r.step_count, spec.steps);
  for (int32_t i = 0; i < r.step_count; i++)
    assert_true(r.step_s[i] > 0.0);
  for (int32_t i = 0; i < r.loss_count; i++)
    assert_true(isfinite(r.losses[i]));
  /* 23,508,032 before the last layer, 2048 x 10 + 10 in it. */
  assert_int_equal(r.parameters, 23508032 + 20490);
  assert_true(r.recompute_flops > 0 && r.recompute_flops < r.flops_per_step / 2);
  assert_true(r.peak_requested_bytes <= r.peak_allocated_bytes &&
              r.peak_allocated_bytes <= r.peak_reserved_bytes);
  int64_t sum_bytes = 0;
  for (int32_t i = 0; i < MEMORY_CATEGORY_COUNT; i++)
    sum_bytes += r.peak_by_category[i];
  assert_int_equal(sum_bytes, r.peak_allocated_bytes);
  int64_t scopes_bytes = 0;
  for (int32_t i = 0; i < r.scope_count; i++)
    scopes_bytes += r.scopes[i].bytes;
  assert_int_equal(scopes_bytes, r.peak_allocated_bytes);
  int64_t higher = r.warmup_peak_reserved_bytes > r.steady_peak_reserved_bytes ? r.warmup_peak_reserved_bytes
                                                                               : r.steady_peak_reserved_bytes;
  assert_true(r.peak_reserved_bytes >= higher);
  assert_true(r.needed_bytes >= higher);
  assert_true(r.steady_peak_allocated_bytes <= r.peak_allocated_bytes);
  assert_true(r.events_per_step > 0);
  assert_true(isnan(r.accuracy));
  vl_cell_result_clear(&r);
}

static void equal_specifications_give_equal_losses(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  CellResult first = run(&spec), second = run(&spec);
  snprintf(spec.recipe, sizeof spec.recipe, "checkpoint=2 recompute=norm update=in-backward");
  CellResult recomputed = run(&spec);
  assert_string_equal(recomputed.preserves, "bitwise");
  spec = small_spec();
  spec.seed = 1;
  CellResult reseeded = run(&spec);
  assert_int_equal(first.loss_count, 3);
  assert_memory_equal(first.losses, second.losses, 3 * sizeof(double));
  assert_memory_equal(first.losses, recomputed.losses, 3 * sizeof(double));
  assert_true(first.losses[0] != reseeded.losses[0]);
  assert_int_equal(first.peak_allocated_bytes, second.peak_allocated_bytes);
  vl_cell_result_clear(&first);
  vl_cell_result_clear(&second);
  vl_cell_result_clear(&recomputed);
  vl_cell_result_clear(&reseeded);
}

static CellSpec small_bert(void) {
  CellSpec spec;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "bert-base");
  static const char *const settings[] = {"sequence=16", "layers=1", "hidden=32", "heads=4", "vocabulary=61"};
  for (spec.setting_count = 0; spec.setting_count < 5; spec.setting_count++)
    snprintf(spec.settings[spec.setting_count], VL_NAME_BYTES, "%s", settings[spec.setting_count]);
  spec.threads = 2;
  spec.steps = 2;
  spec.micro_batch = 8;
  return spec;
}

/* Four micro-batches of two against a batch of eight: losses of all samples, the same masks, one update a
 * step. The losses are rounded to f32 where they are added up. */
static void accumulated_steps_are_those_of_the_batch(void **state) {
  (void)state;
  CellSpec spec = small_bert();
  CellResult whole = run(&spec);
  spec.micro_batch = 2;
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=4");
  CellResult parts = run(&spec);
  assert_string_equal(parts.preserves, "tolerance");
  assert_int_equal(parts.micro_batch, 2);
  assert_int_equal(parts.accumulate, 4);
  assert_int_equal(parts.global_batch, 8);
  assert_int_equal(parts.loss_count, 3);
  for (int32_t i = 0; i < 3; i++)
    assert_true(fabs(parts.losses[i] - whole.losses[i]) <= 1e-6 * whole.losses[i]);
  assert_true(parts.flops_per_step > whole.flops_per_step); /* by the additions */
  assert_true(parts.peak_by_category[MEMORY_ACTIVATION] < whole.peak_by_category[MEMORY_ACTIVATION]);
  vl_cell_result_clear(&parts);
  vl_cell_result_clear(&whole);
  spec = small_spec();
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=2");
  CellResult normalised = run(&spec);
  assert_string_equal(normalised.preserves, "different-model");
  assert_int_equal(normalised.global_batch, 4);
  vl_cell_result_clear(&normalised);
}

/* 24 samples in 5, 5, 5, 5 and 4. */
static void a_smaller_last_micro_batch_keeps_the_batch_f4(void **state) {
  (void)state;
  CellSpec spec = small_bert();
  spec.micro_batch = 24;
  CellResult whole = run(&spec);
  spec.micro_batch = 5;
  spec.global_batch = 24;
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=5");
  CellResult parts = run(&spec);
  snprintf(spec.device, sizeof spec.device, "plan");
  CellResult planned = run(&spec);
  assert_int_equal(parts.micro_batch, 5);
  assert_int_equal(parts.accumulate, 5);
  assert_int_equal(parts.global_batch, 24);
  for (int32_t i = 0; i < 3; i++)
    assert_true(fabs(parts.losses[i] - whole.losses[i]) <= 1e-6 * whole.losses[i]);
  assert_true(fabs((double)parts.flops_per_step - (double)whole.flops_per_step) <
              0.02 * (double)whole.flops_per_step); /* but for the additions */
  assert_int_equal(planned.peak_allocated_bytes, parts.peak_allocated_bytes);
  assert_int_equal(planned.peak_reserved_bytes, parts.peak_reserved_bytes);
  assert_int_equal(planned.events_per_step, parts.events_per_step);
  vl_cell_result_clear(&whole);
  vl_cell_result_clear(&parts);
  vl_cell_result_clear(&planned);
}

/* Whether 24 samples in `count` micro-batches are planned within the capacity; count 0: accumulate=auto,
 * whose choice is returned. */
static int64_t plan_divided(CellSpec spec, int64_t count) {
  spec.micro_batch = count > 0 ? (24 + count - 1) / count : 24;
  spec.global_batch = count > 0 ? 24 : 0;
  if (count > 0 && (24 + spec.micro_batch - 1) / spec.micro_batch != count)
    return 0; /* some would be empty */
  snprintf(spec.device, sizeof spec.device, "plan");
  snprintf(spec.recipe, sizeof spec.recipe, count > 0 ? "accumulate=%lld" : "accumulate=auto",
           (long long)count);
  CellResult planned = run(&spec);
  bool fits = strcmp(planned.status, "ok") == 0 && planned.needed_bytes <= spec.capacity_bytes;
  int64_t answer = count > 0 ? fits : fits ? planned.accumulate : -1;
  vl_cell_result_clear(&planned);
  return answer;
}

/* The fewest micro-batches whose plan fits; the row says which, the recipe stays. What is chosen runs under
 * just that capacity. */
static void accumulation_adapts_to_the_capacity(void **state) {
  (void)state;
  CellSpec spec = small_bert();
  snprintf(spec.settings[0], VL_NAME_BYTES, "sequence=64");
  snprintf(spec.settings[2], VL_NAME_BYTES, "hidden=64");
  static const int64_t capacities_mib[] = {3, 4, 5, 7, 10, 40};
  int64_t chosen[6], different = 0;
  for (size_t c = 0; c < sizeof capacities_mib / sizeof *capacities_mib; c++) {
    spec.capacity_bytes = capacities_mib[c] << 20;
    int64_t fewest = 1;
    while (fewest <= 24 && !plan_divided(spec, fewest))
      fewest++;
    chosen[c] = plan_divided(spec, 0);
    assert_int_equal(chosen[c], fewest <= 24 ? fewest : -1);
    if (c > 0) different += chosen[c] != chosen[c - 1];
  }
  assert_true(different >= 3);
  assert_int_equal(chosen[0], -1);
  assert_int_equal(chosen[5], 1);
  spec.micro_batch = 24;
  spec.capacity_bytes = 7 << 20;
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=auto");
  CellResult measured = run(&spec);
  assert_string_equal(measured.status, "ok");
  assert_string_equal(measured.recipe, "accumulate=auto");
  assert_int_equal(measured.accumulate, chosen[3]);
  assert_int_equal(measured.global_batch, 24);
  assert_true(measured.peak_reserved_bytes <= spec.capacity_bytes);
  vl_cell_result_clear(&measured);
  spec.capacity_bytes = 3 << 20;
  CellResult none = run(&spec);
  assert_string_equal(none.status, "oom");
  assert_int_equal(none.micro_batch, 1);
  vl_cell_result_clear(&none);
}

/* Weights take 94 MB and momentum as much again. */
static void running_out_of_memory_is_a_result_f1(void **state) {
  (void)state;
  static const struct {
    int64_t capacity_mib;
    const char *segment;
  } cases[] = {{50, "setup"}, {150, "setup"}, {200, "forward"}, {300, "backward"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    CellSpec spec = small_spec();
    spec.micro_batch = 32;
    spec.capacity_bytes = cases[i].capacity_mib << 20;
    CellResult r = run(&spec);
    assert_string_equal(r.status, "oom");
    assert_true(strstr(r.error, "GiB") || strstr(r.error, "MiB") || strstr(r.error, "bytes"));
    assert_string_equal(r.oom_segment, cases[i].segment);
    assert_true(r.oom_request_bytes > 0);
    assert_true(r.oom_largest_free_bytes >= 0);
    assert_true(r.peak_reserved_bytes <= spec.capacity_bytes);
    vl_cell_result_clear(&r);
  }
}

static CellResult run_recipe(CellSpec spec, const char *recipe) {
  snprintf(spec.recipe, sizeof spec.recipe, "%s", recipe);
  return run(&spec);
}

/* fp16 on a cpu is what it is not on a card: no speed, and its conversion buffers in no other figure. A plan
 * for the same cpu has them, one for a card does not. */
static void emulated_cells_say_so(void **state) {
  (void)state;
  CellSpec spec = small_bert();
  CellResult low = run_recipe(spec, "amp=bf16 loss-scale=off"), half = run_recipe(spec, "amp=fp16");
  assert_false(low.emulated);
  assert_int_equal(low.emulation_bytes, 0);
  assert_true(low.loss_scale == 1.0);
  assert_int_equal(low.skipped_steps, 0);
  assert_true(half.emulated);
  assert_true(half.emulation_bytes > 0);
  assert_true(half.loss_scale == 65536.0);
  assert_int_equal(half.saved_activation_bytes, low.saved_activation_bytes);
  /* As much as bf16, the counters and the norm beside it; not the kernels' scratch. */
  int64_t without = half.peak_allocated_bytes - half.peak_by_category[MEMORY_WORKSPACE];
  int64_t expected = low.peak_allocated_bytes - low.peak_by_category[MEMORY_WORKSPACE];
  assert_in_range(without, expected - 4096, expected + 4096);
  vl_cell_result_clear(&low);
  snprintf(spec.device, sizeof spec.device, "plan");
  CellResult planned = run_recipe(spec, "amp=fp16");
  assert_true(planned.emulated);
  assert_int_equal(planned.emulation_bytes, half.emulation_bytes);
  assert_int_equal(planned.peak_allocated_bytes, half.peak_allocated_bytes);
  snprintf(spec.profile, sizeof spec.profile, "A100-80GB");
  CellResult card = run_recipe(spec, "amp=fp16");
  assert_false(card.emulated);
  assert_int_equal(card.emulation_bytes, 0);
  vl_cell_result_clear(&half);
  vl_cell_result_clear(&planned);
  vl_cell_result_clear(&card);
}

static void tf32_needs_a_card_that_has_it(void **state) {
  (void)state;
  static const struct {
    const char *device, *profile, *status;
  } cases[] = {{"cpu", "", "unsupported"},
               {"plan", "", "unsupported"},
               {"plan", "V100-32GB", "unsupported"},
               {"plan", "A100-80GB", "ok"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    CellSpec spec = small_bert();
    snprintf(spec.device, sizeof spec.device, "%s", cases[i].device);
    snprintf(spec.profile, sizeof spec.profile, "%s", cases[i].profile);
    CellResult result = run_recipe(spec, "precision=tf32");
    assert_string_equal(result.status, cases[i].status);
    if (strcmp(result.status, "ok") != 0) assert_non_null(strstr(result.error, "compute capability 8.0"));
    vl_cell_result_clear(&result);
  }
}

static void pools_are_of_a_card(void **state) {
  (void)state;
  static const char *const devices[] = {"cpu", "plan"};
  for (int i = 0; i < 2; i++) {
    CellSpec spec = small_bert();
    snprintf(spec.device, sizeof spec.device, "%s", devices[i]);
    CellResult result = run_recipe(spec, "allocator=async");
    assert_string_equal(result.status, "unsupported");
    assert_non_null(strstr(result.error, "allocator=async"));
    assert_non_null(strstr(result.error, devices[i]));
    vl_cell_result_clear(&result);
  }
}

/* Nothing of cpu's sums depends on timing, and it has nothing to try. */
static void algorithms_are_tried_where_there_are_several(void **state) {
  (void)state;
  CellSpec spec = small_bert();
  CellResult same = run_recipe(spec, "algorithms=deterministic"),
             tried = run_recipe(spec, "algorithms=timed");
  assert_string_equal(same.status, "ok");
  assert_string_equal(tried.status, "unsupported");
  assert_non_null(strstr(tried.error, "algorithms=timed"));
  vl_cell_result_clear(&same);
  vl_cell_result_clear(&tried);
}

/* Watching changes no number; a scale that is too large overflows and is found where it does. */
static void monitors_tell_of_every_step(void **state) {
  (void)state;
  CellSpec spec = small_bert();
  CellResult plain = run_recipe(spec, "amp=fp16");
  assert_int_equal(plain.monitor_count, 0);
  assert_true(plain.step_count > 0);
  spec.monitor = true;
  CellResult watched = run_recipe(spec, "amp=fp16"), unscaled = run_recipe(spec, "amp=fp16 loss-scale=off"),
             large = run_recipe(spec, "amp=fp16 loss-scale=1e9");
  assert_int_equal(watched.monitor_count, watched.loss_count);
  assert_int_equal(watched.step_count, 0);
  assert_int_equal(watched.first_nonfinite.step, -1);
  for (int32_t i = 0; i < watched.monitor_count; i++) {
    const StepMonitor *step = &watched.monitors[i], *without = &unscaled.monitors[i];
    assert_memory_equal(&plain.losses[i], &watched.losses[i], sizeof(double));
    assert_true(step->loss_scale == 65536.0 && without->loss_scale == 1.0);
    assert_false(step->skipped);
    /* The same gradients, one in fp16's range and one partly below it. */
    assert_true(fabs(step->gradient_norm / without->gradient_norm - 1.0) < 0.01);
    assert_true(step->flushed_share >= 0.0 && step->flushed_share < without->flushed_share);
    assert_true(large.monitors[i].skipped && !isfinite(large.monitors[i].gradient_norm));
  }
  assert_int_equal(large.first_nonfinite.step, 0);
  assert_string_equal(large.first_nonfinite.segment, "backward");
  assert_string_equal(large.first_nonfinite.op, "cast"); /* of the loss's gradient to fp16 */
  assert_int_equal(large.skipped_steps, large.loss_count);
  vl_cell_result_clear(&plain);
  vl_cell_result_clear(&watched);
  vl_cell_result_clear(&unscaled);
  vl_cell_result_clear(&large);
}

/* Sketches tell how far the gradients of two cells are apart, and how long they are. */
static void sketches_of_gradients_can_be_compared(void **state) {
  (void)state;
  CellSpec spec = small_bert();
  spec.monitor = true;
  static const struct {
    const char *recipe;
    double least, most; /* error against the baseline */
  } cases[] = {{"baseline", 0.0, 0.0},
               {"checkpoint=1", 0.0, 0.0},
               {"accumulate=2", 0.0, 1e-4}, /* the same sums in another order */
               {"amp=fp16", 1e-6, 0.02},
               {"amp=fp16 activation-gradients=fp32", 1e-6, 0.02}};
  CellResult base = run_recipe(spec, "baseline");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    spec.micro_batch = strcmp(cases[i].recipe, "accumulate=2") == 0 ? 4 : 8;
    CellResult its = run_recipe(spec, cases[i].recipe);
    double error = vl_sketch_error(its.monitors[0].sketch, base.monitors[0].sketch), squares = 0.0;
    if (!(error >= cases[i].least && error <= cases[i].most))
      fail_msg("%s: gradients off by %g", cases[i].recipe, error);
    for (int32_t s = 0; s < VL_SKETCH_SUMS; s++)
      squares += its.monitors[0].sketch[s] * its.monitors[0].sketch[s];
    double norm = sqrt(squares / VL_SKETCH_SUMS) / its.monitors[0].gradient_norm;
    assert_true(norm > 0.6 && norm < 1.4); /* three standard deviations */
    vl_cell_result_clear(&its);
  }
  vl_cell_result_clear(&base);
}

static void divergence_is_a_result(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  spec.learning_rate = 1e30;
  spec.steps = 10;
  CellResult r = run(&spec);
  assert_string_equal(r.status, "diverged");
  assert_non_null(strstr(r.error, "the loss of step"));
  assert_true(r.loss_count >= 2 && r.loss_count < 11);
  assert_true(isfinite(r.losses[0]) && !isfinite(r.losses[r.loss_count - 1]));
  vl_cell_result_clear(&r);
}

static bool stop_after_two(void *context) { return ++*(int32_t *)context == 2; }

static void a_request_to_stop_ends_after_the_step(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  CellResult result;
  int32_t steps = 0;
  CellObserver observer = {.stop_requested = stop_after_two, .context = &steps};
  spec.steps = 10;
  Status status = vl_cell_run(&spec, &observer, &result);
  assert_int_equal(status.code, VL_INTERRUPTED);
  assert_int_equal(steps, 2);
  assert_non_null(strstr(status.message, "step 2 of 11"));
  vl_cell_result_clear(&result);
}

static void a_cell_goes_on_where_a_saved_one_ended(void **state) {
  (void)state;
  char path[] = "/tmp/vramlab-cell-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  CellSpec spec = small_spec();
  spec.steps = 3;
  CellResult whole = run(&spec);
  spec.steps = 1;
  snprintf(spec.save_state, sizeof spec.save_state, "%s", path);
  CellResult first = run(&spec);
  spec.save_state[0] = '\0';
  snprintf(spec.load_state, sizeof spec.load_state, "%s", path);
  CellResult second = run(&spec);
  assert_memory_equal(first.losses, whole.losses, 2 * sizeof(double));
  assert_memory_equal(second.losses, whole.losses + 2, 2 * sizeof(double));
  vl_cell_result_clear(&whole);
  vl_cell_result_clear(&first);
  vl_cell_result_clear(&second);
  spec.seed = 1;
  Status status = vl_cell_run(&spec, NULL, &second);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "saved with seed 0, the run has 1"));
  vl_cell_result_clear(&second);
  unlink(path);
}

/* A timeline begins with what was held; with the step's own events that gives what was allocated after each,
 * and every block lies in a segment held or reserved before. */
static int64_t check_held(const CellResult *r) {
  int64_t held = 0, bytes = 0, segments = 0;
  for (; held < r->timeline_count && vl_memory_is_held(r->timeline[held].action); held++) {
    const TimelineEvent *event = &r->timeline[held];
    assert_true(event->heap_segment >= 0 && event->offset >= 0);
    if (event->action == MEMORY_SEGMENT_HELD) {
      segments += event->bytes;
      assert_true(event->offset == 0 && bytes == 0);
    } else {
      bytes += event->bytes;
      assert_true(event->requested_bytes <= event->bytes && event->name[0]);
    }
  }
  assert_true(held > 0 && held < r->timeline_count);
  assert_int_equal(segments, r->timeline[0].reserved_bytes);
  assert_int_equal(bytes, r->timeline[0].allocated_bytes);
  for (int64_t i = held; i < r->timeline_count; i++) {
    const TimelineEvent *event = &r->timeline[i];
    if (event->action == MEMORY_OBTAIN) bytes += event->bytes;
    if (event->action == MEMORY_RELEASE) bytes -= event->bytes;
    assert_int_equal(bytes, event->allocated_bytes);
    assert_true(event->action == MEMORY_OOM || event->heap_segment >= 0);
  }
  return held;
}

/* A step runs forward, backward, update. The last forward node gives the logits back: that event is
 * forward's. */
static void the_timeline_names_segments(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  spec.timeline = true;
  CellResult r = run(&spec);
  int64_t held = check_held(&r);
  assert_int_equal(r.timeline_count - held, r.events_per_step);
  int32_t logits_released = 0, updates = 0;
  for (int64_t i = held; i < r.timeline_count; i++) {
    const TimelineEvent *event = &r.timeline[i];
    assert_true(event->time_ns >= 0 && event->name[0]);
    if (i > held) assert_true(event->segment >= r.timeline[i - 1].segment);
    assert_true(event->allocated_bytes <= event->reserved_bytes);
    updates += event->segment == SEGMENT_UPDATE;
    if (event->action != MEMORY_RELEASE || strcmp(event->name, "fc.linear") != 0) continue;
    logits_released++;
    assert_int_equal(event->segment, SEGMENT_FORWARD);
  }
  assert_int_equal(logits_released, 1);
  assert_true(updates > 0);
  vl_cell_result_clear(&r);
}

/* Ops are those of the timeline's step: each event belongs to one, in order, its block obtained in its
 * segment. Their step changes no figure of the cell. */
static void ops_are_told_beside_the_timeline(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=2");
  CellResult plain = run(&spec);
  spec.timeline = true;
  CellResult r = run(&spec);
  int64_t ended_ns = 0, flops = 0;
  assert_true(r.op_count > 50);
  for (int64_t i = 0; i < r.op_count; i++) {
    const OpRecord *op = &r.ops[i];
    assert_true(op->op[0] && op->implementation[0] && op->bytes > 0 && op->duration_ns >= 0);
    assert_true(op->start_ns >= ended_ns);
    ended_ns = op->start_ns + op->duration_ns;
    flops += op->flops;
    if (i > 0 && op->segment < r.ops[i - 1].segment) assert_int_equal(op->micro_batch, 1);
  }
  assert_int_equal(flops, r.flops_per_step);
  int32_t op = 0;
  for (int64_t i = 0; i < r.timeline_count; i++) {
    const TimelineEvent *event = &r.timeline[i];
    if (vl_memory_is_held(event->action)) {
      assert_int_equal(event->op, -1);
      continue;
    }
    assert_true(event->op >= op && event->op < r.op_count);
    op = event->op;
    assert_int_equal(event->segment, r.ops[op].segment);
    if (event->category == MEMORY_WORKSPACE) assert_string_equal(event->name, r.ops[op].op);
  }
  assert_int_equal(op, r.op_count - 1);
  assert_int_equal(r.needed_bytes >= 0, plain.needed_bytes >= 0);
  assert_int_equal(r.peak_allocated_bytes, plain.peak_allocated_bytes);
  assert_int_equal(r.peak_count, plain.peak_count);
  assert_int_equal(r.loss_count, plain.loss_count);
  assert_memory_equal(r.losses, plain.losses, (size_t)r.loss_count * sizeof(double));
  assert_memory_equal(r.step_peak_bytes, plain.step_peak_bytes, (size_t)r.peak_count * sizeof(int64_t));
  assert_int_equal(plain.op_count, 0);
  vl_cell_result_clear(&r);
  vl_cell_result_clear(&plain);
}

/* A profile tells the least its card takes; the plan of this machine tells no time, but what runs. */
static void ops_of_a_plan_have_predicted_times(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  spec.timeline = true;
  snprintf(spec.device, sizeof spec.device, "plan");
  CellResult plan = run(&spec);
  snprintf(spec.profile, sizeof spec.profile, "H200");
  CellResult card = run(&spec);
  assert_true(plan.op_count > 50 && card.op_count > 50);
  int64_t total_ns = 0;
  for (int64_t i = 0; i < plan.op_count; i++)
    assert_true(plan.ops[i].start_ns == -1 && plan.ops[i].duration_ns == -1);
  for (int64_t i = 0; i < card.op_count; i++) {
    assert_int_equal(card.ops[i].start_ns, total_ns);
    total_ns += card.ops[i].duration_ns;
  }
  assert_true(total_ns > 1000);
  vl_cell_result_clear(&plan);
  vl_cell_result_clear(&card);
}

/* The timeline of a step that runs out of memory ends with the request, and with what is given back for it.
 */
static void the_timeline_of_a_failed_step_is_kept(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  CellResult r = run(&spec);
  spec.timeline = true;
  spec.capacity_bytes = r.peak_allocated_bytes * 9 / 10;
  vl_cell_result_clear(&r);
  r = run(&spec);
  assert_string_equal(r.status, "oom");
  int64_t failed = -1;
  for (int64_t i = check_held(&r); i < r.timeline_count; i++) {
    if (r.timeline[i].action == MEMORY_OOM) failed = i;
    assert_true(failed < 0 || i == failed || r.timeline[i].action == MEMORY_RELEASE);
  }
  assert_true(failed > 0);
  assert_int_equal(r.timeline[failed].requested_bytes, r.oom_request_bytes);
  vl_cell_result_clear(&r);
}

static void inference_keeps_no_gradients(void **state) {
  (void)state;
  CellSpec spec = small_spec();
  spec.inference = true;
  CellResult r = run(&spec);
  assert_string_equal(r.status, "ok");
  assert_int_equal(r.loss_count, 0);
  assert_int_equal(r.peak_by_category[MEMORY_GRADIENT], 0);
  assert_int_equal(r.peak_by_category[MEMORY_OPTIMIZER], 0);
  assert_int_equal(r.saved_activation_bytes, 0);
  vl_cell_result_clear(&r);
}

/* A data file of as many samples in each part; sample n is a flat image of shade 50 n, modulo 256, and class
 * n, modulo 10. */
static void write_part(hid_t file, const char *images_name, const char *labels_name, hsize_t samples) {
  hsize_t shape[] = {samples, 3, 32, 32};
  size_t pixels = 3 * 32 * 32;
  unsigned char *images = vl_allocate((size_t)samples * pixels);
  int32_t labels[16];
  for (hsize_t n = 0; n < samples; n++) {
    memset(images + n * pixels, (int)(50 * n), pixels);
    labels[n] = (int32_t)(n % 10);
  }
  hid_t space = H5Screate_simple(4, shape, NULL), label_space = H5Screate_simple(1, shape, NULL);
  hid_t set = H5Dcreate2(file, images_name, H5T_STD_U8LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  hid_t label_set =
      H5Dcreate2(file, labels_name, H5T_STD_I32LE, label_space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(H5Dwrite(set, H5T_NATIVE_UCHAR, H5S_ALL, H5S_ALL, H5P_DEFAULT, images) >= 0);
  assert_true(H5Dwrite(label_set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, labels) >= 0);
  H5Dclose(set);
  H5Dclose(label_set);
  H5Sclose(space);
  H5Sclose(label_space);
  free(images);
}

/* Trained on a file and evaluated on its held-out part, five samples in batches of two; what was saved has
 * the same accuracy when it is only evaluated. */
static void data_gives_an_accuracy(void **state) {
  (void)state;
  char directory[] = "/tmp/vramlab-cell-XXXXXX", data[64], saved[64];
  assert_non_null(mkdtemp(directory));
  snprintf(data, sizeof data, "%s/data.h5", directory);
  snprintf(saved, sizeof saved, "%s/state", directory);
  hid_t file = H5Fcreate(data, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  write_part(file, "images", "labels", 4);
  write_part(file, "held_out_images", "held_out_labels", 5);
  H5Fclose(file);
  CellSpec spec = small_spec();
  snprintf(spec.data, sizeof spec.data, "%s", data);
  snprintf(spec.save_state, sizeof spec.save_state, "%s", saved);
  CellResult trained = run(&spec);
  assert_string_equal(trained.status, "ok");
  double of_five = trained.accuracy * 5.0;
  assert_true(of_five >= 0.0 && of_five <= 5.0 && fabs(of_five - nearbyint(of_five)) < 1e-9);
  spec.save_state[0] = '\0';
  spec.inference = true;
  snprintf(spec.load_state, sizeof spec.load_state, "%s", saved);
  CellResult evaluated = run(&spec);
  assert_string_equal(evaluated.status, "ok");
  assert_true(evaluated.accuracy == trained.accuracy);
  vl_cell_result_clear(&trained);
  vl_cell_result_clear(&evaluated);
  snprintf(spec.settings[1], sizeof spec.settings[1], "classes=4");
  spec.load_state[0] = '\0';
  Status status = vl_cell_run(&spec, NULL, &evaluated);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "label 4 of 'held_out_labels'"));
  vl_cell_result_clear(&evaluated);
  unlink(data);
  unlink(saved);
  rmdir(directory);
}

static void write_data(const char *path, hsize_t samples) {
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  write_part(file, "images", "labels", samples);
  write_part(file, "held_out_images", "held_out_labels", 1);
  H5Fclose(file);
}

/* Losses of windows of `accumulate` micro-batches of two; nothing is learned. */
static CellResult run_windows(const char *data, int32_t accumulate, int32_t updates) {
  CellSpec spec = small_spec();
  snprintf(spec.data, sizeof spec.data, "%s", data);
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=%d", accumulate);
  spec.steps = updates - 1;
  spec.learning_rate = 1e-30;
  CellResult result = run(&spec);
  assert_string_equal(result.status, "ok");
  assert_int_equal(result.loss_count, updates);
  return result;
}

/* Windows of 4 over 7 and over 3 micro-batches: ceil(7 / 4) updates an epoch, the last of three, none across
 * epochs, and one update when there are fewer than a window. */
static void epochs_end_with_a_window_of_their_own_b3(void **state) {
  (void)state;
  static const struct { int32_t batches, epochs, updates; } cases[] = {{7, 2, 4}, {3, 5, 5}};
  char path[] = "/tmp/vramlab-cell-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int32_t batches = cases[c].batches, update = 0;
    write_data(path, 2 * (hsize_t)batches);
    CellResult single = run_windows(path, 1, batches * cases[c].epochs);
    CellResult windows = run_windows(path, 4, cases[c].updates);
    for (int32_t epoch = 0; epoch < cases[c].epochs; epoch++) {
      for (int32_t first = 0; first < batches; first += 4, update++) {
        int32_t count = batches - first < 4 ? batches - first : 4;
        double mean = 0.0;
        for (int32_t n = 0; n < count; n++)
          mean += single.losses[epoch * batches + first + n] / count;
        assert_true(fabs(windows.losses[update] - mean) <= 1e-5 * mean);
      }
    }
    assert_int_equal(update, cases[c].updates);
    vl_cell_result_clear(&single);
    vl_cell_result_clear(&windows);
  }
  unlink(path);
}

int main(void) {
  Device *device = NULL;
  Status status = vl_device_open("cpu", NULL, &device);
  if (status.code != VL_OK) {
    fprintf(stderr, "skipped: %s\n", status.message);
    return 77;
  }
  vl_device_close(&device);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_specifications_are_refused),
      cmocka_unit_test(more_segments_than_blocks_are_refused_d5),
      cmocka_unit_test(figures_agree_with_each_other_a5),
      cmocka_unit_test(equal_specifications_give_equal_losses),
      cmocka_unit_test(accumulated_steps_are_those_of_the_batch),
      cmocka_unit_test(a_smaller_last_micro_batch_keeps_the_batch_f4),
      cmocka_unit_test(accumulation_adapts_to_the_capacity),
      cmocka_unit_test(running_out_of_memory_is_a_result_f1),
      cmocka_unit_test(emulated_cells_say_so),
      cmocka_unit_test(tf32_needs_a_card_that_has_it),
      cmocka_unit_test(pools_are_of_a_card),
      cmocka_unit_test(algorithms_are_tried_where_there_are_several),
      cmocka_unit_test(monitors_tell_of_every_step),
      cmocka_unit_test(sketches_of_gradients_can_be_compared),
      cmocka_unit_test(divergence_is_a_result),
      cmocka_unit_test(a_request_to_stop_ends_after_the_step),
      cmocka_unit_test(a_cell_goes_on_where_a_saved_one_ended),
      cmocka_unit_test(the_timeline_names_segments),
      cmocka_unit_test(ops_are_told_beside_the_timeline),
      cmocka_unit_test(ops_of_a_plan_have_predicted_times),
      cmocka_unit_test(the_timeline_of_a_failed_step_is_kept),
      cmocka_unit_test(inference_keeps_no_gradients),
      cmocka_unit_test(data_gives_an_accuracy),
      cmocka_unit_test(epochs_end_with_a_window_of_their_own_b3),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
