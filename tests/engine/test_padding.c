/* Padding has no influence: BERT's loss and gradients are those of the sequences without it, whatever the
 * padding holds.
 *
 * usage: test_engine_padding [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, SHORT = 16, LONG = 40, VOCABULARY = 61, HIDDEN = 32, LAYERS = 2 };
static const char *device_name = "reference";

static int32_t drawn(const char *what, int64_t sample, int64_t element, int32_t below) {
  uint32_t word = vl_random_word(vl_random_key(3, 0, what), (uint64_t)sample, (uint64_t)element);
  return (int32_t)(((uint64_t)word * (uint64_t)below) >> 32);
}

/* Sequences of SHORT tokens, followed by padding up to `sequence`; padding: what its tokens are drawn as. */
static void write_inputs(Job *job, int64_t sequence, const char *padding) {
  enum { MOST = BATCH * LONG };
  int64_t predictions = sequence * 15 / 100 + 1, counted = SHORT * 15 / 100 + 1;
  int32_t tokens[MOST], segments[MOST], positions[MOST], labels[MOST], follows[BATCH];
  float mask[MOST];
  for (int64_t n = 0; n < BATCH; n++) {
    for (int64_t i = 0; i < sequence; i++) {
      bool real = i < SHORT;
      tokens[n * sequence + i] = drawn(real ? "tokens" : padding, n, i, VOCABULARY);
      segments[n * sequence + i] = real ? i > SHORT / 2 : drawn(padding, n, i + LONG, 2);
      mask[n * sequence + i] = real ? 0.0F : -INFINITY;
    }
    for (int64_t p = 0; p < predictions; p++) {
      bool counts = p < counted;
      positions[n * predictions + p] = counts ? drawn("positions", n, p, SHORT) : 0;
      labels[n * predictions + p] = counts ? drawn("labels", n, p, VOCABULARY) : VL_IGNORED_LABEL;
    }
    follows[n] = (int32_t)n % 2;
  }
  int64_t row = BATCH * sequence * 4, label_bytes = BATCH * predictions * 4;
  require_ok(vl_inputs_write(job->inputs, "tokens", tokens, row));
  require_ok(vl_inputs_write(job->inputs, "segments", segments, row));
  require_ok(vl_inputs_write(job->inputs, "mask", mask, row));
  require_ok(vl_inputs_write(job->inputs, "positions", positions, label_bytes));
  require_ok(vl_inputs_write(job->inputs, "labels", labels, label_bytes));
  require_ok(vl_inputs_write(job->inputs, "follows", follows, sizeof follows));
}

typedef struct Outcome {
  Job job; /* owns the gradients' names */
  Recording gradients;
  double loss;
} Outcome;

static Outcome run(int64_t sequence, const char *recipe, const char *padding) {
  const Case *bert = vl_case_find("bert-base");
  char length[32];
  const char *settings[] = {length,          "layers=2",  "hidden=32", "heads=4",
                            "vocabulary=61", "dropout=0", "padding=1"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  Program program;
  Outcome outcome = {0};
  StepResult result;
  snprintf(length, sizeof length, "sequence=%lld", (long long)sequence);
  require_ok(vl_case_arguments(bert, BATCH, settings, 7, values));
  require_ok(bert->build(values, true, &program));
  job_open(&outcome.job, device_name, &program, recipe, 1, 0);
  job_record_gradients(&outcome.job, &outcome.gradients);
  write_inputs(&outcome.job, sequence, padding);
  require_ok(vl_run_step(&outcome.job.run, outcome.job.inputs, &result, NULL));
  outcome.loss = result.loss;
  return outcome;
}

static void forget(Outcome *outcome) {
  recording_clear(&outcome->gradients);
  job_close(&outcome->job);
}

static double norm_of_difference(const Item *a, const Item *b) {
  double square = 0.0;
  for (int64_t e = 0; e < a->bytes * 8 / vl_dtype_bits(a->dtype); e++) {
    double value = vl_element_get(a->data, a->dtype, e) - (b ? vl_element_get(b->data, b->dtype, e) : 0.0);
    square += value * value;
  }
  return sqrt(square);
}

/* Of all gradients, the largest distance relative to the tensor's norm. */
static double worst_distance(const Outcome *a, const Outcome *b) {
  double worst = 0.0;
  assert_true(a->gradients.count > 0 && a->gradients.count == b->gradients.count);
  for (int32_t i = 0; i < a->gradients.count; i++) {
    const Item *x = &a->gradients.items[i], *y = recording_find(&b->gradients, x->name);
    double norm = norm_of_difference(x, NULL), distance = norm_of_difference(x, y);
    if (distance > worst * norm) worst = distance / norm;
  }
  return worst;
}

static const char *const recipes[] = {"attention=fused", "attention=materialised", "amp=bf16 attention=fused",
                                      "amp=bf16 attention=materialised", "stack=vramlab checkpoint=1"};

/* Their probabilities are zero, not small: not a bit changes. */
static void what_padding_holds_does_not_matter(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    Outcome a = run(LONG, recipes[i], "padding"), b = run(LONG, recipes[i], "other padding");
    assert_true(a.loss == b.loss);
    assert_true(worst_distance(&a, &b) == 0.0);
    forget(&a);
    forget(&b);
  }
}

/* In double the sums are the same ones with zeros among them. In f32 a product of n terms may add them up in
 * another order, which changes it by at most 2 n units of rounding of its terms; one after another there are
 * 4 products, attention's two and 2 norms a layer, and those of the heads. */
static void padding_changes_nothing(void **state) {
  (void)state;
  bool doubles = strcmp(device_name, "reference") == 0;
  double bound = doubles ? 0.0 : (8 * LAYERS + 4) * 2.0 * 4 * HIDDEN * 0x1p-24;
  for (size_t i = 0; i < 2; i++) {
    Outcome whole = run(SHORT, recipes[i], "padding"), padded = run(LONG, recipes[i], "padding");
    double off = fabs(whole.loss - padded.loss) / whole.loss;
    print_message("%s: %g of the loss, at most %g\n", recipes[i], off, bound);
    assert_true(off <= bound);
    if (doubles) assert_true(worst_distance(&whole, &padded) == 0.0);
    forget(&whole);
    forget(&padded);
  }
}

int main(int argc, char **argv) {
  if (argc > 1) device_name = argv[1];
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_padding_holds_does_not_matter),
      cmocka_unit_test(padding_changes_nothing),
  };
  return cmocka_run_group_tests_name(device_name, tests, NULL, NULL);
}
