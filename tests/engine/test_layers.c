/* Layers built in another way give the results of the baseline within what rounding allows: small nets, one
 * step, every gradient. The reference device computes in double, so that only the order of sums and the
 * recordings' own rounding to f32 differ there.
 *
 * usage: test_engine_layers [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEED = 5 };
static const char *device_name = "reference";

typedef void (*Build)(Program *program);

typedef struct Outcome {
  double loss;
  Recording gradients;
  Job job; /* owns the names */
} Outcome;

static void outcome_of(Build build, const char *device, const char *recipe, Outcome *outcome) {
  Program program;
  *outcome = (Outcome){0};
  build(&program);
  job_open(&outcome->job, device, &program, recipe, SEED, 0);
  job_record_gradients(&outcome->job, &outcome->gradients);
  outcome->loss = job_step(&outcome->job, 0);
}

static void outcome_clear(Outcome *outcome) {
  recording_clear(&outcome->gradients);
  job_close(&outcome->job);
}

/* Of two tensors as vectors; b NULL: the length of a. */
static double distance(const Item *a, const Item *b) {
  double square = 0.0;
  for (int64_t e = 0; e < a->bytes * 8 / vl_dtype_bits(a->dtype); e++) {
    double difference =
        vl_element_get(a->data, a->dtype, e) - (b ? vl_element_get(b->data, b->dtype, e) : 0.0);
    square += difference * difference;
  }
  return sqrt(square);
}

static const Item *found_in(const Recording *recording, const Item *item) {
  const Item *found = recording_find(recording, item->name);
  if (!found) fail_msg("%s is missing", item->name);
  assert_int_equal(found->bytes, item->bytes);
  return found;
}

/* In double: what two roundings to f32 may differ by. In f32 both are away from the truth by roundings of
 * like size, a node each, of values of like size: the variant's error is the baseline's within a factor of 4,
 * and each of its `more` nodes rounds once more. */
static void assert_close(Build build_base, const char *base, Build build, const char *variant, double more) {
  Outcome truth, whole, other;
  bool doubles = strcmp(device_name, "reference") == 0;
  outcome_of(build_base, "reference", base, &truth);
  outcome_of(build_base, device_name, base, &whole);
  outcome_of(build, device_name, variant, &other);
  double worst = 0.0;
  assert_true(truth.gradients.count > 0);
  for (int32_t i = 0; i < truth.gradients.count; i++) {
    const Item *right = &truth.gradients.items[i];
    double norm = distance(right, NULL), error = distance(found_in(&other.gradients, right), right);
    double bound = doubles ? 0x1p-23 * norm
                           : 4.0 * distance(found_in(&whole.gradients, right), right) + more * 0x1p-24 * norm;
    if (error > bound)
      fail_msg("%s: %s is off by %g of %g, at most %g", variant, right->name, error, norm, bound);
    if (error > worst * bound) worst = error / bound;
  }
  double bound = doubles ? 0x1p-23 : 4.0 * fabs(whole.loss / truth.loss - 1.0) + more * 0x1p-24;
  assert_true(fabs(other.loss / truth.loss - 1.0) <= bound);
  print_message("%s: the worst error is %.2g of its bound\n", variant, worst);
  outcome_clear(&truth);
  outcome_clear(&whole);
  outcome_clear(&other);
}

/* BERT in small, dropout on. */
enum { LAYERS = 2, NORMS = 2 * LAYERS + 2 };

static void build_bert(Program *program) {
  const Case *bert = vl_case_find("bert-base");
  const char *settings[] = {"sequence=16", "layers=2", "hidden=32", "heads=4", "vocabulary=61"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, 3, settings, 5, values));
  require_ok(bert->build(values, true, program));
}

/* Eight nodes a norm forward, twice as many backward. */
static void layer_norms_of_primitives_are_layer_norms(void **state) {
  (void)state;
  static const char *const composed[] = {"layer-norm=composed",
                                         "layer-norm=composed inplace=all checkpoint=1 update=in-backward"};
  for (size_t i = 0; i < sizeof composed / sizeof *composed; i++)
    assert_close(build_bert, "baseline", build_bert, composed[i], 24.0 * NORMS);
}

/* The sum of a bias's gradient, made of values before their rounding. */
static void fused_bias_gradients_are_those_of_sums(void **state) {
  (void)state;
  assert_close(build_bert, "baseline", build_bert, "fuse=bias-gelu", 0.0);
  assert_close(build_bert, "stack=vramlab fuse=norm", build_bert, "stack=vramlab", 0.0);
}

/* In f32 every value is rounded as the nodes of its own would round it; with a branch in bf16 one rounding of
 * it is left out each way. */
static void residuals_joined_with_their_norms_are_those_apart(void **state) {
  (void)state;
  assert_close(build_bert, "baseline", build_bert, "dropout=redrawn fuse=residual-norm", 0.0);
  assert_close(build_bert, "stack=vramlab", build_bert, "stack=vramlab fuse=norm+bias-gelu+residual-norm",
               0.0);
  assert_close(build_bert, "stack=vramlab", build_bert,
               "stack=vramlab fuse=norm+bias-gelu+residual-norm checkpoint=1 update=in-backward", 0.0);
}

static void build_bottlenecks(Program *program) {
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16}, program);
}

/* Leaky ReLUs behind norms with bounded gammas, forward; backward is what differentiation makes of it, which
 * keeps what the norms read. */
static void build_leaky(Program *program) {
  Target target = {.ranks = 1};
  build_bottlenecks(program);
  require_ok(vl_optimization_find("inplace-abn")->apply(program, "0.01", &target));
}

/* Stem and two of each block: three nodes more for each, and an input that is away from the one forward read
 * by roundings of the output it is made from. */
static void inverted_norms_are_those_that_keep_their_input(void **state) {
  (void)state;
  enum { PAIRS = 7 };
  static const char *const inverted[] = {"inplace-abn=0.01",
                                         "inplace-abn=0.01 inplace=all checkpoint=1 update=in-backward",
                                         "stack=vramlab inplace-abn=0.01"};
  for (size_t i = 0; i < sizeof inverted / sizeof *inverted; i++)
    assert_close(build_leaky, "baseline", build_bottlenecks, inverted[i], 3.0 * PAIRS);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layer_norms_of_primitives_are_layer_norms),
      cmocka_unit_test(fused_bias_gradients_are_those_of_sums),
      cmocka_unit_test(residuals_joined_with_their_norms_are_those_apart),
      cmocka_unit_test(inverted_norms_are_those_that_keep_their_input),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
