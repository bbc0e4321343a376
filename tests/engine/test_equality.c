/* What each optimization promises of its results, on a small net and on ResNet-50: losses over three steps,
 * gradients of the third, and all of State (weights, momentum, running statistics, batch counters)
 * afterwards.
 *
 * usage: test_engine_equality [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3, SEED = 11 };
static const char *device_name = "reference";

typedef struct Outcome {
  double losses[STEPS];
  Recording gradients, state;
  Job job; /* owns the names */
} Outcome;

typedef void (*Build)(Program *program);

static void build_small(Program *program) {
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16}, program);
}

static void build_small_dropout(Program *program) {
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16, .dropout = 0.25}, program);
}

static void build_small_adamw(Program *program) {
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16, .adamw = true, .two_losses = true}, program);
}

static void build_resnet50(Program *program) {
  const Case *resnet = vl_case_find("resnet50");
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(resnet, 2, (const char *[]){"size=32", "classes=10"}, 2, values));
  require_ok(resnet->build(values, true, program));
}

static void build_bert(Program *program) {
  const Case *bert = vl_case_find("bert-base");
  static const char *const small[] = {"layers=3", "hidden=32", "heads=2", "vocabulary=60", "sequence=16"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, 2, small, 5, values));
  require_ok(bert->build(values, true, program));
}

/* One volume, whose skips and their gradients are parts of what is concatenated. */
static void build_unet(Program *program) {
  const Case *unet = vl_case_find("unet3d");
  static const char *const small[] = {"depth=16", "height=16", "width=32", "groups=4"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(unet, 1, small, 4, values));
  require_ok(unet->build(values, true, program));
}

static void outcome_of(Build build, const char *recipe, Outcome *outcome) {
  Program program;
  *outcome = (Outcome){0};
  build(&program);
  job_open(&outcome->job, device_name, &program, recipe, SEED, 0);
  for (int32_t step = 0; step < STEPS; step++) {
    if (step == STEPS - 1) job_record_gradients(&outcome->job, &outcome->gradients);
    outcome->losses[step] = job_step(&outcome->job, (uint64_t)step);
    assert_true(isfinite(outcome->losses[step]));
  }
  job_read_state(&outcome->job, &outcome->state);
}

static void outcome_clear(Outcome *outcome) {
  recording_clear(&outcome->gradients);
  recording_clear(&outcome->state);
  job_close(&outcome->job);
}

static void assert_same_results(Build build, const char *base, const char *const *others, size_t count) {
  Outcome expected, actual;
  outcome_of(build, base, &expected);
  assert_true(expected.losses[0] != expected.losses[1]);
  for (size_t i = 0; i < count; i++) {
    outcome_of(build, others[i], &actual);
    for (int32_t step = 0; step < STEPS; step++) {
      if (memcmp(&expected.losses[step], &actual.losses[step], sizeof(double)) != 0) {
        fail_msg("%s: loss %d is %.17g, with '%s' %.17g", others[i], step, actual.losses[step], base,
                 expected.losses[step]);
      }
    }
    assert_recordings_equal(&expected.gradients, &actual.gradients, others[i]);
    assert_recordings_equal(&expected.state, &actual.state, others[i]);
    outcome_clear(&actual);
  }
  outcome_clear(&expected);
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

static const char *const of_baseline[] = {
    "baseline",
    "accumulate=1",
    "inplace=all",
    "pool-index=u8",
    "dropout=redrawn",
    "dropout=mask checkpoint=1",
    "checkpoint=1",
    "checkpoint=2",
    "checkpoint=segments:2",
    "checkpoint=ops:1",
    "checkpoint=ops:5",
    "checkpoint=model",
    "checkpoint=runs:2",
    "recompute=norm",
    "recompute=inner-norm",
    "recompute=gelu",
    "update=in-backward",
    "checkpoint=ops:3 recompute=norm",
    "checkpoint=2 recompute=norm update=in-backward",
    "inplace=all pool-index=u8 checkpoint=1 recompute=norm update=in-backward",
    "offload=activations",
    "offload=activations:2",
    "offload=optimizer",
    "offload=optimizer update=in-backward",
    "checkpoint=1 offload=activations",
    "inplace=all recompute=norm offload=activations+optimizer",
};

static const char *const of_vramlab[] = {
    "stack=vramlab",
    "stack=vramlab checkpoint=1",
    "stack=vramlab checkpoint=segments:2",
    "stack=vramlab checkpoint=ops:4",
    "stack=vramlab checkpoint=model",
    "stack=vramlab recompute=norm",
    "stack=vramlab recompute=inner-norm",
    "stack=vramlab update=in-backward",
    "stack=vramlab checkpoint=1 recompute=inner-norm",
    "stack=vramlab checkpoint=2 recompute=norm update=in-backward",
    "stack=vramlab offload=activations+optimizer",
};

static const char *const of_amp[] = {
    "amp=bf16",
    "amp=bf16 inplace=all",
    "amp=bf16 checkpoint=1",
    "amp=bf16 checkpoint=ops:6",
    "amp=bf16 checkpoint=model",
    "amp=bf16 recompute=norm",
    "amp=bf16 recompute=gelu",
    "amp=bf16 checkpoint=2 recompute=norm update=in-backward",
    "amp=bf16 offload=activations",
    "amp=bf16 checkpoint=1 update=in-backward offload=activations+optimizer",
};

static const char *const of_amp_vramlab[] = {
    "stack=vramlab amp=bf16 weights=cached",
    "stack=vramlab amp=bf16 checkpoint=2",
    "stack=vramlab amp=bf16 checkpoint=2 recompute=norm update=in-backward",
};

static const char *const of_fp16[] = {
    "amp=fp16 inplace=all",
    "amp=fp16 checkpoint=1",
    "amp=fp16 checkpoint=2 recompute=norm",
    "amp=fp16 loss-scale=65536",
};

static const char *const of_fp16_vramlab[] = {"stack=vramlab amp=fp16 checkpoint=2 recompute=norm"};

static const char *const of_accumulation[] = {
    "accumulate=3",
    "accumulate=3 inplace=all pool-index=u8",
    "accumulate=3 checkpoint=1",
    "accumulate=3 checkpoint=segments:2 recompute=norm inplace=all",
    "accumulate=3 offload=activations+optimizer",
    "accumulate=3 checkpoint=1 offload=activations",
};

/* What else a recipe does leaves the sums as they are. */
static void results_are_bitwise_equal_within_accumulation(void **state) {
  (void)state;
  assert_same_results(build_small_dropout, "accumulate=3", of_accumulation, COUNT(of_accumulation));
  assert_same_results(build_small_adamw, "accumulate=3", of_accumulation, COUNT(of_accumulation));
}

/* Wherever blocks lie, and when they are moved between steps: losses, gradients and State read from where
 * they are then. */
static void results_do_not_depend_on_the_allocator(void **state) {
  (void)state;
  static const char *const recipes[] = {
      "allocator=planned",
      "allocator=planned checkpoint=1",
      "allocator=planned offload=activations+optimizer",
      "allocator=caching:max-split=20MiB,round=4 defragment=every-step",
      "allocator=expandable",
      "allocator=expandable:round=8 defragment=every-step",
      "allocator=expandable checkpoint=2 offload=optimizer defragment=every-step",
      "defragment=every-step",
  };
  static const char *const sums[] = {"accumulate=3 allocator=planned",
                                     "accumulate=3 allocator=planned offload=activations checkpoint=1",
                                     "accumulate=3 allocator=expandable defragment=every-step"};
  assert_same_results(build_small_dropout, "baseline", recipes, COUNT(recipes));
  assert_same_results(build_bert, "baseline", recipes, COUNT(recipes));
  assert_same_results(build_small_adamw, "accumulate=3", sums, COUNT(sums));
}

static void results_are_bitwise_equal_to_the_baseline_d3(void **state) {
  (void)state;
  assert_same_results(build_small, "baseline", of_baseline, COUNT(of_baseline));
}

static void results_are_bitwise_equal_with_dropout_d1(void **state) {
  (void)state;
  assert_same_results(build_small_dropout, "baseline", of_baseline, COUNT(of_baseline));
}

/* The sum of two losses, too. */
static void results_are_bitwise_equal_with_adamw(void **state) {
  (void)state;
  assert_same_results(build_small_adamw, "baseline", of_baseline, COUNT(of_baseline));
  assert_same_results(build_small_adamw, "stack=vramlab", of_vramlab, COUNT(of_vramlab));
  assert_same_results(build_small_adamw, "amp=bf16", of_amp, COUNT(of_amp));
}

/* A gradient in two parts, summed in place, by an addition or by the second part's own node. */
static void results_are_bitwise_equal_with_a_tied_table(void **state) {
  (void)state;
  assert_same_results(network_tied, "baseline", of_baseline, COUNT(of_baseline));
  assert_same_results(network_tied, "stack=vramlab", of_vramlab, COUNT(of_vramlab));
  assert_same_results(network_tied, "amp=bf16", of_amp, COUNT(of_amp));
  assert_same_results(network_tied, "stack=vramlab amp=bf16", of_amp_vramlab, COUNT(of_amp_vramlab));
}

static void build_volumes(Program *program) { network_volumes(4, 1.0, program); }

/* Instance norms are repeated from what they read, and a Dice loss's sums are those of its micro-batch. */
static void results_are_bitwise_equal_with_instance_norms(void **state) {
  (void)state;
  assert_same_results(build_volumes, "baseline", of_baseline, COUNT(of_baseline));
  assert_same_results(build_volumes, "stack=vramlab", of_vramlab, COUNT(of_vramlab));
  assert_same_results(build_volumes, "amp=bf16", of_amp, COUNT(of_amp));
  assert_same_results(build_volumes, "stack=vramlab amp=bf16", of_amp_vramlab, COUNT(of_amp_vramlab));
  assert_same_results(build_volumes, "accumulate=3", of_accumulation, COUNT(of_accumulation));
}

/* Dropout in the attention and behind it: every repetition draws the mask of its forward. */
static void bert_is_bitwise_equal_however_it_is_recomputed_d1(void **state) {
  (void)state;
  static const char *const of_attention[] = {
      "checkpoint=selective", "checkpoint=1",
      "checkpoint=2",         "checkpoint=ops:1",
      "checkpoint=ops:4",     "checkpoint=ops:11",
      "checkpoint=model",     "checkpoint=runs:2",
      "checkpoint=auto:1GiB", "checkpoint=selective inplace=all recompute=norm"};
  static const char *const of_low[] = {"amp=bf16 checkpoint=selective", "amp=bf16 checkpoint=1",
                                       "amp=bf16 checkpoint=ops:5", "amp=bf16 checkpoint=model"};
  static const char *const of_ours[] = {"stack=vramlab checkpoint=1", "stack=vramlab checkpoint=ops:3",
                                        "stack=vramlab checkpoint=model"};
  assert_same_results(build_bert, "baseline", of_attention, COUNT(of_attention));
  assert_same_results(build_bert, "amp=bf16", of_low, COUNT(of_low));
  assert_same_results(build_bert, "stack=vramlab", of_ours, COUNT(of_ours));
}

/* Layer norms, GELUs, casts and dropouts are repeated. */
static void results_are_bitwise_equal_in_bert(void **state) {
  (void)state;
  static const char *const of_vramlab_amp[] = {
      "stack=vramlab amp=bf16 recompute=norm", "stack=vramlab amp=bf16 recompute=gelu",
      "stack=vramlab amp=bf16 recompute=norm checkpoint=1 update=in-backward"};
  assert_same_results(build_bert, "baseline", of_baseline, COUNT(of_baseline));
  assert_same_results(build_bert, "stack=vramlab", of_vramlab, COUNT(of_vramlab));
  assert_same_results(build_bert, "amp=bf16", of_amp, COUNT(of_amp));
  assert_same_results(build_bert, "stack=vramlab amp=bf16", of_vramlab_amp, COUNT(of_vramlab_amp));
}

static void results_are_bitwise_equal_within_our_stack(void **state) {
  (void)state;
  assert_same_results(build_small, "stack=vramlab", of_vramlab, COUNT(of_vramlab));
}

static void results_are_bitwise_equal_within_mixed_precision(void **state) {
  (void)state;
  assert_same_results(build_small, "amp=bf16", of_amp, COUNT(of_amp));
  assert_same_results(build_small, "amp=fp16", of_fp16, COUNT(of_fp16));
  assert_same_results(build_small, "stack=vramlab amp=fp16", of_fp16_vramlab, COUNT(of_fp16_vramlab));
  assert_same_results(build_small, "stack=vramlab amp=bf16", of_amp_vramlab, COUNT(of_amp_vramlab));
}

/* Skips cross the blocks that are recomputed, offloaded or joined. */
static void unet_is_bitwise_equal(void **state) {
  (void)state;
  static const char *const of_unet[] = {"checkpoint=runs:1-4/2,9", "recompute=norm update=in-backward",
                                        "offload=activations", "inplace=all concat=in-place",
                                        "concat=in-place offload=activations checkpoint=runs:2-3"};
  static const char *const of_ours[] = {"stack=vramlab concat=copy", "stack=vramlab checkpoint=2",
                                        "stack=vramlab recompute=norm",
                                        "stack=vramlab offload=activations+optimizer"};
  assert_same_results(build_unet, "baseline", of_unet, COUNT(of_unet));
  assert_same_results(build_unet, "stack=vramlab", of_ours, COUNT(of_ours));
}

/* On the reference device tests/model does the same. */
static void resnet50_is_bitwise_equal(void **state) {
  (void)state;
  if (strcmp(device_name, "reference") == 0) skip();
  static const char *const recipes[] = {
      "checkpoint=2 recompute=norm update=in-backward inplace=all pool-index=u8", "checkpoint=ops:10",
      "checkpoint=model"};
  static const char *const ours[] = {"stack=vramlab checkpoint=2 recompute=norm update=in-backward"};
  assert_same_results(build_resnet50, "baseline", recipes, COUNT(recipes));
  assert_same_results(build_resnet50, "stack=vramlab", ours, COUNT(ours));
}

/* The loss of the first step before anything could drift. The longest chain of roundings, stem to logits,
 * passes 4 x 3 + 2 kernels, each with an error of at most a few units u of its largest value; batch norm
 * after each keeps values of order 1, and the loss moves by at most twice the largest error of a logit. */
static void assert_loss_within(const char *recipe, double unit) {
  Outcome expected, actual;
  outcome_of(build_small, "baseline", &expected);
  outcome_of(build_small, recipe, &actual);
  double bound = 2.0 * 14.0 * 4.0 * unit, error = fabs(actual.losses[0] - expected.losses[0]);
  print_message("%s: |loss - %.6f| = %.3g, bound %.3g\n", recipe, expected.losses[0], error, bound);
  assert_true(error <= bound);
  outcome_clear(&expected);
  outcome_clear(&actual);
}

static void fusion_is_within_rounding(void **state) {
  (void)state;
  assert_loss_within("fuse=norm", ldexp(1.0, -24));
  assert_loss_within("stack=vramlab", ldexp(1.0, -24));
}

/* The forward program as fuse=norm makes it. */
static void build_small_fused(Program *program) {
  Target target = {.ranks = 1};
  build_small(program);
  require_ok(vl_optimization_find("fuse")->apply(program, "norm", &target));
}

/* A sum of two gradients is rounded to f32 wherever it is made: by an addition, or inside the norm. (The
 * reference keeps it in double inside the norm.) */
static void gradient_sums_are_the_same_inside_the_norm(void **state) {
  (void)state;
  if (strcmp(device_name, "reference") == 0) skip();
  static const char *const fused[] = {"fuse=norm", "stack=vramlab recompute=norm"};
  assert_same_results(build_small_fused, "baseline", fused, COUNT(fused));
}

static void mixed_precision_is_within_rounding(void **state) {
  (void)state;
  assert_loss_within("amp=bf16", ldexp(1.0, -9));
  assert_loss_within("amp=fp16", ldexp(1.0, -12));
  assert_loss_within("stack=vramlab amp=bf16", ldexp(1.0, -9));
}

/* ---- Gradients of activations in fp32 ------------------------------------------------------------------------- */

static const char *const of_wide[] = {
    "amp=bf16 activation-gradients=fp32 inplace=all",
    "amp=bf16 activation-gradients=fp32 weights=cached",
    "amp=bf16 activation-gradients=fp32 checkpoint=1",
    "amp=bf16 activation-gradients=fp32 checkpoint=ops:6",
    "amp=bf16 activation-gradients=fp32 recompute=norm update=in-backward",
    "amp=bf16 activation-gradients=fp32 offload=activations",
};

static void results_are_bitwise_equal_with_fp32_activation_gradients(void **state) {
  (void)state;
  assert_same_results(build_small, "amp=bf16 activation-gradients=fp32", of_wide, COUNT(of_wide));
  assert_same_results(build_bert, "amp=bf16 activation-gradients=fp32", of_wide, COUNT(of_wide));
  assert_same_results(network_tied, "amp=bf16 activation-gradients=fp32", of_wide, COUNT(of_wide));
}

/* All gradients of the first step, whose loss is returned. */
static double first_gradients(Build build, const char *recipe, Recording *gradients, Job *job) {
  Program program;
  build(&program);
  job_open(job, device_name, &program, recipe, SEED, 0);
  job_record_gradients(job, gradients);
  return job_step(job, 0);
}

/* The norm of the difference over the norm. */
static double relative_error(const Recording *actual, const Recording *expected) {
  double difference = 0.0, norm = 0.0;
  for (int32_t i = 0; i < expected->count; i++) {
    const Item *want = &expected->items[i], *got = recording_find(actual, want->name);
    assert_non_null(got);
    assert_int_equal(got->dtype, want->dtype);
    for (int64_t k = 0; k < want->bytes / vl_dtype_bytes(want->dtype, 1); k++) {
      double value = vl_element_get(want->data, want->dtype, k);
      double error = vl_element_get(got->data, got->dtype, k) - value;
      difference += error * error;
      norm += value * value;
    }
  }
  return sqrt(difference / norm);
}

/* Forward is that of amp alone. Nothing is rounded on the way back, so what is left of the error is
 * forward's: no more than with both. */
static void fp32_activation_gradients_are_nearer(Build build, const char *amp, double unit) {
  Recording gradients[3] = {0};
  Job jobs[3];
  char wide[96];
  snprintf(wide, sizeof wide, "%s activation-gradients=fp32", amp);
  first_gradients(build, "baseline", &gradients[0], &jobs[0]);
  double loss = first_gradients(build, amp, &gradients[1], &jobs[1]);
  double same = first_gradients(build, wide, &gradients[2], &jobs[2]);
  assert_memory_equal(&loss, &same, sizeof loss);
  double error = relative_error(&gradients[1], &gradients[0]),
         less = relative_error(&gradients[2], &gradients[0]), bound = 2.0 * 14.0 * 4.0 * unit;
  print_message("%s: gradients off by %.3g, with fp32 activation gradients %.3g, bound %.3g\n", amp, error,
                less, bound);
  assert_true(less <= error && error <= bound);
  for (int32_t i = 0; i < 3; i++) {
    recording_clear(&gradients[i]);
    job_close(&jobs[i]);
  }
}

static void fp32_activation_gradients_are_nearer_to_fp32(void **state) {
  (void)state;
  fp32_activation_gradients_are_nearer(build_bert, "amp=bf16", ldexp(1.0, -9));
  fp32_activation_gradients_are_nearer(build_bert, "amp=fp16 loss-scale=off", ldexp(1.0, -12));
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_do_not_depend_on_the_allocator),
      cmocka_unit_test(results_are_bitwise_equal_to_the_baseline_d3),
      cmocka_unit_test(results_are_bitwise_equal_with_dropout_d1),
      cmocka_unit_test(results_are_bitwise_equal_with_adamw),
      cmocka_unit_test(results_are_bitwise_equal_with_a_tied_table),
      cmocka_unit_test(results_are_bitwise_equal_with_instance_norms),
      cmocka_unit_test(results_are_bitwise_equal_within_accumulation),
      cmocka_unit_test(bert_is_bitwise_equal_however_it_is_recomputed_d1),
      cmocka_unit_test(results_are_bitwise_equal_in_bert),
      cmocka_unit_test(results_are_bitwise_equal_within_our_stack),
      cmocka_unit_test(results_are_bitwise_equal_within_mixed_precision),
      cmocka_unit_test(unet_is_bitwise_equal),
      cmocka_unit_test(resnet50_is_bitwise_equal),
      cmocka_unit_test(fusion_is_within_rounding),
      cmocka_unit_test(gradient_sums_are_the_same_inside_the_norm),
      cmocka_unit_test(mixed_precision_is_within_rounding),
      cmocka_unit_test(results_are_bitwise_equal_with_fp32_activation_gradients),
      cmocka_unit_test(fp32_activation_gradients_are_nearer_to_fp32),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
